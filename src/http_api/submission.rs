//! The JSON of a submission, and what it means.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::problem::{COMMANDS_OFF, CONTRADICTORY, INVALID, Problem};
use crate::config::{NUM_WORKERS_LIMIT, check_memory};
use crate::driver::{SubmitRequest, split_target};
use crate::task::{
    DEFAULT_CRASH_LIMIT, DEFAULT_GRACE, DEFAULT_RETRY_BACKOFF, Demand, FunctionSpec, Policy, TaskSpec, check_resource,
    check_retry_on, sort_resources,
};
use crate::value;

/// The longest name of a module or a function.
pub(super) const NAME_LENGTH: usize = 128;
/// The most retries, and the highest crash limit.
pub(super) const RETRIES: u32 = 1000;
/// The longest duration, in milliseconds: a year of 365 days.
pub(super) const DURATION_MS: u64 = 365 * 24 * 3600 * 1000;
/// The most words of a command, and the most variables for it.
pub(super) const WORDS: usize = 4096;
/// The longest idempotency key, in bytes.
pub(super) const KEY_LENGTH: usize = 255;

/// The body of a submission, as it is sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    function: Option<String>,
    arguments: Option<Vec<Box<serde_json::value::RawValue>>>,
    command: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<PathBuf>,
    name: Option<String>,
    timeout_ms: Option<Whole>,
    queue_timeout_ms: Option<Whole>,
    idle_timeout_ms: Option<Whole>,
    grace_ms: Option<Whole>,
    retries: Option<Whole>,
    retry_backoff_ms: Option<Whole>,
    retry_on: Option<Vec<String>>,
    crash_limit: Option<Whole>,
    at_most_once: Option<bool>,
    num_cpus: Option<Whole>,
    resources: Option<BTreeMap<String, Whole>>,
    memory_bytes: Option<Whole>,
    output: Option<bool>,
    trace_runtime: Option<bool>,
}

/// A whole number. `7.0` is one too, as JSON Schema has it: to JSON it is the same number as `7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole(i64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Whole, D::Error> {
        /// From here on not every whole number has a floating point form.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        let number = serde_json::Number::deserialize(deserializer)?;
        let from_float = |float: f64| (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64);
        number
            .as_i64()
            .or_else(|| from_float(number.as_f64()?))
            .map(Whole)
            .ok_or_else(|| D::Error::custom(format!("expected a whole number, found {number}")))
    }
}

/// A task to submit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Submission {
    what: What,
    name: String,
    run_limit: Option<Duration>,
    queue_limit: Option<Duration>,
    idle_limit: Option<Duration>,
    grace: Duration,
    retries: u32,
    retry_backoff: Duration,
    retry_on: String,
    crash_limit: u32,
    at_most_once: bool,
    num_cpus: u32,
    /// In the order of their names.
    resources: Vec<(String, u64)>,
    memory_bytes: Option<u64>,
    key: String,
    /// Whether its output is kept for those who follow it.
    pub(super) wants_output: bool,
    trace_runtime: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum What {
    /// `module:function`, and its arguments as a MessagePack array.
    Function {
        target: String,
        arguments: Vec<u8>,
    },
    Command {
        words: Vec<String>,
        env: BTreeMap<String, String>,
        directory: PathBuf,
    },
}

impl Submission {
    /// Reads the body of a request. `key` is its idempotency key, or empty.
    pub(super) fn parse(body: &[u8], key: String, allows_commands: bool) -> Result<Submission, Problem> {
        let document: Document = serde_json::from_slice(body).map_err(|error| {
            let text = format!("the body is not a submission: {error}");
            Problem::new(INVALID, text)
                .hint("for example {\"function\": \"wordcount:count\", \"arguments\": [\"a b c\"]}")
        })?;
        let number = |name: &str, number: Option<Whole>, range: RangeInclusive<u64>, unit: &str| match number {
            None => Ok(None),
            Some(Whole(number)) => match u64::try_from(number).ok().filter(|number| range.contains(number)) {
                Some(number) => Ok(Some(number)),
                None => {
                    let (from, to) = (range.start(), range.end());
                    Err(invalid(format!("`{name}` is {number}, but takes {from} to {to}{unit}")))
                }
            },
        };
        let duration = |name: &str, ms: Option<Whole>, from: u64| {
            Ok(number(name, ms, from..=DURATION_MS, " milliseconds")?.map(Duration::from_millis))
        };
        let count = |name: &str, count: Option<Whole>, limit: u32, default: u32| {
            let count = number(name, count, 0..=limit.into(), "")?;
            Ok(count.and_then(|count| u32::try_from(count).ok()).unwrap_or(default))
        };
        let at_most_once = document.at_most_once.unwrap_or(false);
        let has_count = document.retries.is_some() || document.crash_limit.is_some();
        let retry_on = document.retry_on.unwrap_or_default();
        for kind in &retry_on {
            let is_one = !kind.contains(',');
            check_retry_on(kind)
                .and(if is_one { Ok(()) } else { Err(format!("`{kind}` are several kinds in one text")) })
                .map_err(|reason| invalid(format!("`retry_on`: {reason}")))?;
        }
        let name = document.name.unwrap_or_default();
        if name.chars().count() > NAME_LENGTH {
            return Err(invalid(format!("`name` has more than {NAME_LENGTH} characters")));
        }
        let resources = document.resources.unwrap_or_default();
        let resources = resources.iter().map(|(name, &Whole(amount))| check_resource(name, amount));
        let resources = resources
            .collect::<Result<Vec<_>, _>>()
            .and_then(sort_resources)
            .map_err(|reason| invalid(format!("`resources`: {reason}")))?;
        let num_cpus = count("num_cpus", document.num_cpus, NUM_WORKERS_LIMIT, 1)?;
        let memory_bytes = number("memory_bytes", document.memory_bytes, 1..=i64::MAX as u64, " bytes")?;
        memory_bytes
            .map_or(Ok(()), |bytes| check_memory(bytes).map(drop))
            .map_err(|reason| invalid(format!("`memory_bytes`: {reason}")))?;
        let what = match (document.function, document.command) {
            (Some(target), None) => {
                let only_commands = [
                    ("env", document.env.is_some()),
                    ("cwd", document.cwd.is_some()),
                    ("idle_timeout_ms", document.idle_timeout_ms.is_some()),
                ];
                if let Some((name, _)) = only_commands.iter().find(|(_, is_there)| *is_there) {
                    return Err(invalid(format!("`{name}` is for commands, and a function was named")));
                }
                function(target, document.arguments.unwrap_or_default())?
            }
            (None, Some(words)) => {
                if !allows_commands {
                    let text = "commands are not taken over HTTP, unless the head is told to";
                    let hint = "start it with --http-commands, or submit a function of a module";
                    return Err(Problem::new(COMMANDS_OFF, text).hint(hint));
                }
                if document.arguments.is_some() {
                    return Err(invalid(
                        "`arguments` are for functions; those of a command follow its program in `command`",
                    ));
                }
                command(words, document.env.unwrap_or_default(), document.cwd)?
            }
            _ => return Err(invalid("a submission has either `function` or `command`")),
        };
        let submission = Submission {
            what,
            name,
            run_limit: duration("timeout_ms", document.timeout_ms, 1)?,
            queue_limit: duration("queue_timeout_ms", document.queue_timeout_ms, 1)?,
            idle_limit: duration("idle_timeout_ms", document.idle_timeout_ms, 1)?,
            grace: duration("grace_ms", document.grace_ms, 0)?.unwrap_or(DEFAULT_GRACE),
            retries: count("retries", document.retries, RETRIES, 0)?,
            retry_backoff: duration("retry_backoff_ms", document.retry_backoff_ms, 0)?.unwrap_or(DEFAULT_RETRY_BACKOFF),
            retry_on: retry_on.join(","),
            crash_limit: count("crash_limit", document.crash_limit, RETRIES, DEFAULT_CRASH_LIMIT)?,
            at_most_once,
            num_cpus,
            resources,
            memory_bytes,
            key,
            wants_output: document.output.unwrap_or(true),
            trace_runtime: document.trace_runtime.unwrap_or(false),
        };
        let contradiction = |text: &str| Err(Problem::new(CONTRADICTORY, text));
        if at_most_once && has_count {
            return contradiction(
                "`at_most_once` is never started again, so it takes neither `retries` nor `crash_limit`",
            );
        }
        if !submission.retry_on.is_empty() && submission.retries == 0 {
            return contradiction(
                "`retry_on` says which failures are tried again, but `retries` says how often, and is 0",
            );
        }
        Ok(submission)
    }

    /// Hands it over, in the form that drivers take.
    pub(super) fn with_request<T>(&self, submit: impl FnOnce(&SubmitRequest<'_>) -> T) -> T {
        let spec = match &self.what {
            What::Function { target, arguments } => {
                let (module, function) = split_target(target).expect("it was checked");
                TaskSpec::Function(FunctionSpec::of_task(module, function, arguments))
            }
            What::Command { words, env, directory } => {
                let (program, arguments) = words.split_first().expect("it was checked");
                let arguments = arguments.iter().map(String::as_bytes).collect();
                let env = env.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
                TaskSpec::command(program.as_bytes(), arguments, env, directory.as_os_str().as_bytes())
            }
        };
        let policy = Policy {
            retries: self.retries,
            retry_backoff: self.retry_backoff,
            retry_on: &self.retry_on,
            crash_limit: self.crash_limit,
            at_most_once: self.at_most_once,
            idempotency_key: &self.key,
            queue_limit: self.queue_limit,
            idle_limit: self.idle_limit,
            grace: self.grace,
        };
        submit(&SubmitRequest {
            spec,
            name: &self.name,
            run_limit: self.run_limit,
            policy,
            demand: Demand {
                num_cpus: self.num_cpus,
                resources: self.resources.iter().map(|(name, amount)| (name.as_str(), *amount)).collect(),
                memory_bytes: self.memory_bytes,
            },
            wants_output: self.wants_output,
            trace_runtime: self.trace_runtime,
            inputs: &[],
        })
    }
}

fn invalid(text: impl Into<String>) -> Problem {
    Problem::new(INVALID, text)
}

/// A function of a module that is found by its name; the path of a library is none.
fn function(target: String, arguments: Vec<Box<serde_json::value::RawValue>>) -> Result<What, Problem> {
    let is_name = |name: &str, further: &[u8]| {
        (1..=NAME_LENGTH).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || further.contains(&byte))
    };
    match target.split_once(':') {
        Some((module, function)) if is_name(module, b"_-") && is_name(function, b"_") => {}
        _ => {
            let text = format!(
                "`function` is `{}`, which is not the name of a module, a colon, and a name",
                target.escape_debug()
            );
            let hint = "for example demo:my_function; over HTTP a module is named, and found in the folders that the head knows";
            return Err(invalid(text).hint(hint));
        }
    }
    let mut values = Vec::with_capacity(arguments.len());
    for argument in &arguments {
        values.push(value::from_json(argument).map_err(|error| invalid(format!("`arguments`: {error}")))?);
    }
    Ok(What::Function { target, arguments: value::array(&values) })
}

fn command(words: Vec<String>, env: BTreeMap<String, String>, cwd: Option<PathBuf>) -> Result<What, Problem> {
    if words.first().is_none_or(String::is_empty) {
        return Err(invalid("`command` has no program"));
    }
    if words.len() > WORDS || env.len() > WORDS {
        return Err(invalid(format!("a command takes at most {WORDS} words and as many variables")));
    }
    let is_name = |name: &String| !name.is_empty() && !name.contains('=');
    if let Some(name) = env.keys().find(|name| !is_name(name)) {
        return Err(invalid(format!("`env`: `{}` is no name of a variable", name.escape_debug())));
    }
    let directory = match cwd {
        Some(cwd) if !cwd.is_absolute() => return Err(invalid("`cwd` is not an absolute path")),
        Some(cwd) => cwd,
        None => std::env::current_dir().unwrap_or_else(|_| Path::new("/").into()),
    };
    let texts = words.iter().chain(env.keys()).chain(env.values());
    if texts.into_iter().any(|text| text.contains('\0')) || directory.as_os_str().as_bytes().contains(&0) {
        return Err(invalid("a command cannot be given a null character"));
    }
    Ok(What::Command { words, env, directory })
}

/// The value of an `Idempotency-Key` header: a structured field's string, in quotes, or the bare key.
pub(super) fn idempotency_key(header: &[u8]) -> Result<String, Problem> {
    let wrong = || {
        let text = format!("`Idempotency-Key` is not a text in quotes of 1 to {KEY_LENGTH} printable ASCII characters");
        invalid(text).hint("for example Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\"")
    };
    let header = header.trim_ascii();
    let mut key = String::new();
    match header.strip_prefix(b"\"") {
        Some(quoted) => {
            let mut bytes = quoted.strip_suffix(b"\"").ok_or_else(wrong)?.iter();
            while let Some(&byte) = bytes.next() {
                let byte = match byte {
                    b'"' => return Err(wrong()),
                    b'\\' => *bytes.next().filter(|byte| b"\\\"".contains(byte)).ok_or_else(wrong)?,
                    byte => byte,
                };
                key.push(byte.into());
            }
        }
        None => key.extend(header.iter().map(|&byte| char::from(byte))),
    }
    let is_printable = key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_printable && (1..=KEY_LENGTH).contains(&key.len()) { Ok(key) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(body: serde_json::Value) -> Result<Submission, Problem> {
        Submission::parse(body.to_string().as_bytes(), String::new(), false)
    }

    fn text_of(problem: Problem) -> String {
        String::from_utf8(problem.json()).unwrap()
    }

    #[test]
    fn names_of_modules_are_taken_and_paths_are_not() {
        for target in ["demo:my_function", "a-b:c", "x:y", "M0:f_1"] {
            parse(serde_json::json!({ "function": target })).expect(target);
        }
        for target in [
            "",
            ":",
            "a:",
            ":b",
            "a",
            "./liba.so:b",
            "/tmp/liba.so:b",
            "../a:b",
            "a/b:c",
            "liba.so:b",
            "a:b:c",
            "a b:c",
            "a:b c",
            "a\0:b",
            "ä:b",
            "a:b\n",
            ".:b",
            "..:b",
        ] {
            let problem = parse(serde_json::json!({ "function": target })).expect_err(target);
            assert_eq!(problem.kind, INVALID, "{target}");
        }
        let long = format!("{}:f", "m".repeat(NAME_LENGTH + 1));
        assert!(parse(serde_json::json!({ "function": long })).is_err());
    }

    #[test]
    fn what_is_wrong_with_a_submission_is_said() {
        for (body, expected) in [
            (serde_json::json!([]), "the body is not a submission: invalid length 0"),
            (serde_json::json!({}), "a submission has either `function` or `command`"),
            (
                serde_json::json!({"function": "a:b", "command": ["c"]}),
                "a submission has either `function` or `command`",
            ),
            (serde_json::json!({"functions": "a:b"}), "unknown field `functions`, expected one of `function`"),
            (serde_json::json!({"function": "a:b", "arguments": "x"}), "invalid type: string"),
            (
                serde_json::json!({"function": "a:b", "timeout_ms": 0}),
                "`timeout_ms` is 0, but takes 1 to 31536000000 milliseconds",
            ),
            (serde_json::json!({"function": "a:b", "retries": 1001}), "`retries` is 1001, but takes 0 to 1000"),
            (
                serde_json::json!({"function": "a:b", "retry_on": ["exit:0"]}),
                "`exit:0` in `exit:0`: an exit code is 1 to 255",
            ),
            (serde_json::json!({"function": "a:b", "retry_on": ["exit,error"]}), "are several kinds in one text"),
            (serde_json::json!({"function": "a:b", "env": {}}), "`env` is for commands, and a function was named"),
            (
                serde_json::json!({"function": "a:b", "retries": 1, "at_most_once": true}),
                "`at_most_once` is never started again",
            ),
            (serde_json::json!({"function": "a:b", "retry_on": ["panic"]}), "`retries` says how often, and is 0"),
        ] {
            let text = text_of(parse(body.clone()).unwrap_err());
            assert!(text.contains(expected), "{body}: {text}");
        }
    }

    #[test]
    fn commands_are_taken_only_if_they_are_allowed() {
        let body = serde_json::json!({"command": ["sh", "-c", "true"], "env": {"A": "b=c"}, "cwd": "/tmp"}).to_string();
        let refused = Submission::parse(body.as_bytes(), String::new(), false).unwrap_err();
        assert_eq!(refused.kind, COMMANDS_OFF);
        assert!(text_of(refused).contains("--http-commands"));
        let submission = Submission::parse(body.as_bytes(), "key".into(), true).unwrap();
        submission.with_request(|request| {
            let TaskSpec::Command(command) = &request.spec else { panic!("{request:?}") };
            assert_eq!(
                (command.program, &*command.arguments, command.directory),
                (&b"sh"[..], &[&b"-c"[..], b"true"][..], &b"/tmp"[..])
            );
            assert_eq!(command.environment, [(&b"A"[..], &b"b=c"[..])]);
            assert_eq!(request.policy.idempotency_key, "key");
        });
        for body in [
            serde_json::json!({"command": []}),
            serde_json::json!({"command": [""]}),
            serde_json::json!({"command": ["a\0b"]}),
            serde_json::json!({"command": ["a"], "cwd": "here"}),
            serde_json::json!({"command": ["a"], "env": {"": "b"}}),
            serde_json::json!({"command": ["a"], "env": {"a=b": "c"}}),
            serde_json::json!({"command": ["a"], "arguments": []}),
        ] {
            let parsed = Submission::parse(body.to_string().as_bytes(), String::new(), true);
            assert_eq!(parsed.map_err(|problem| problem.kind), Err(INVALID), "{body}");
        }
    }

    #[test]
    fn what_is_not_said_is_as_on_the_command_line() {
        let submission = parse(serde_json::json!({"function": "a:b"})).unwrap();
        submission.with_request(|request| {
            assert_eq!(request.policy, Policy::default());
            assert_eq!(request.demand, Demand::default());
            assert_eq!((request.run_limit, request.trace_runtime, request.wants_output), (None, false, true));
        });
    }

    #[test]
    fn a_whole_number_may_be_written_with_decimals() {
        let body = br#"{"function": "a:b", "retries": 3.0, "timeout_ms": 1e3, "resources": {"gpu": 2.0}, "memory_bytes": 1e9}"#;
        Submission::parse(body, String::new(), false).unwrap().with_request(|request| {
            assert_eq!((request.policy.retries, request.run_limit), (3, Some(Duration::from_secs(1))));
            assert_eq!(
                (&*request.demand.resources, request.demand.memory_bytes),
                (&[("gpu", 2)][..], Some(1_000_000_000))
            );
        });
    }

    #[test]
    fn keys_are_structured_texts_or_bare() {
        for (header, expected) in [
            ("\"8e03978e-40d5\"", Some("8e03978e-40d5")),
            ("8e03978e-40d5", Some("8e03978e-40d5")),
            (" \"a \\\"b\\\\\" ", Some("a \"b\\")),
            ("a\"b", Some("a\"b")),
            ("", None),
            ("\"\"", None),
            ("\"", None),
            ("\"a", None),
            ("\"a\"b\"", None),
            ("\"a\\b\"", None),
            ("\"a\\", None),
            ("\u{fc}", None),
            ("a\tb", None),
        ] {
            assert_eq!(idempotency_key(header.as_bytes()).ok().as_deref(), expected, "{header}");
        }
        assert!(idempotency_key(&vec![b'x'; KEY_LENGTH]).is_ok());
        assert!(idempotency_key(&vec![b'x'; KEY_LENGTH + 1]).is_err());
    }

    fn any_json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            any::<f64>().prop_filter("JSON has no others", |number| number.is_finite()).prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| map.into_iter().collect::<serde_json::Map<_, _>>().into()),
            ]
        })
    }

    proptest! {
        #[test]
        fn arguments_arrive_as_they_were_sent(arguments in prop::collection::vec(any_json(), 0..6)) {
            let submission = parse(serde_json::json!({"function": "a:b", "arguments": arguments})).unwrap();
            submission.with_request(|request| {
                let TaskSpec::Function(function) = &request.spec else { panic!("{request:?}") };
                assert_eq!((function.module, function.function), ("a", "b"));
                assert_eq!(value::to_json(function.arguments).unwrap(), serde_json::Value::from(arguments.clone()));
            });
        }

        #[test]
        fn no_body_and_no_key_brings_it_down(body: Vec<u8>, key: Vec<u8>, json in any_json(), allows_commands: bool) {
            let _ = Submission::parse(&body, String::new(), allows_commands);
            let _ = Submission::parse(json.to_string().as_bytes(), String::new(), allows_commands);
            let _ = idempotency_key(&key);
        }
    }
}
