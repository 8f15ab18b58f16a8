//! The JSON of a submission, and what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tracer_client::driver::{SubmitRequest, split_target};
use tracer_core::problem::{COMMANDS_OFF, CONTRADICTORY, INVALID, Problem};
use tracer_core::size::check_memory;
use tracer_core::task::{FunctionSpec, TaskSpec};
use tracer_core::value;
use tracer_options::{Raw, Row, Scope, TaskOptions};

/// The longest name of a module or a function.
pub(super) const NAME_LENGTH: usize = 128;
/// The most words of a command, and the most variables for it.
pub(super) const WORDS: usize = 4096;
/// The longest idempotency key, in bytes.
pub(super) const KEY_LENGTH: usize = 255;

/// The body of a submission, as it is sent: what runs, and options.
#[derive(Debug, Default)]
struct Document {
    function: Option<String>,
    arguments: Option<Vec<Box<serde_json::value::RawValue>>>,
    command: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<PathBuf>,
    output: Option<bool>,
    /// In the order in which they came, each once.
    options: Vec<(&'static Row<TaskOptions>, Raw)>,
}

/// The fields of a submission that are no options.
const OWN_FIELDS: [&str; 6] = ["function", "arguments", "command", "env", "cwd", "output"];

/// Returns the options that are fields of a submission.
pub(super) fn rows() -> impl Iterator<Item = &'static Row<TaskOptions>> {
    TaskOptions::ROWS.iter().filter(|row| !row.face.json.is_empty())
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Document, D::Error> {
        deserializer.deserialize_map(OfBody)
    }
}

struct OfBody;

impl<'de> Visitor<'de> for OfBody {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `function` or `command`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let mut document = Document::default();
        let mut seen = BTreeSet::new();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "function" => document.function = map.next_value()?,
                "arguments" => document.arguments = map.next_value()?,
                "command" => document.command = map.next_value()?,
                "env" => document.env = map.next_value()?,
                "cwd" => document.cwd = map.next_value()?,
                "output" => document.output = map.next_value()?,
                _ => {
                    let Some(row) = rows().find(|row| row.face.json == name) else {
                        let known: Vec<_> = OWN_FIELDS.into_iter().chain(rows().map(|row| row.face.json)).collect();
                        let known = known.join("`, `");
                        return Err(A::Error::custom(format!("unknown field `{name}`, expected one of `{known}`")));
                    };
                    document.options.extend(map.next_value_seed(row.face.kind)?.map(|raw| (row, raw)));
                }
            }
            if let Some(twice) = seen.replace(name) {
                return Err(A::Error::custom(format!("duplicate field `{twice}`")));
            }
        }
        Ok(document)
    }
}

/// A task to submit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Submission {
    spec: Spec,
    options: TaskOptions,
    /// True if its output is kept for those who follow it.
    pub(super) wants_output: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Spec {
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
        let has = |name: &str| document.options.iter().any(|(row, _)| row.name == name);
        let idle =
            document.options.iter().find(|(row, _)| row.face.scope == Scope::Commands).map(|(row, _)| row.face.json);
        let contradiction = document
            .options
            .iter()
            .find(|(row, raw)| *raw != Raw::Flag(false) && row.face.excludes.iter().any(|other| has(other)));
        let spec = match (document.function, document.command) {
            (Some(target), None) => {
                let only_commands = [
                    ("env", document.env.is_some()),
                    ("cwd", document.cwd.is_some()),
                    (idle.unwrap_or_default(), idle.is_some()),
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
        if let Some((row, _)) = contradiction {
            let others = row.face.excludes.join("` nor `");
            let text = format!("`{}` is never started again, so it takes neither `{others}`", row.face.json);
            return Err(Problem::new(CONTRADICTORY, text));
        }
        let mut options = TaskOptions { idempotency_key: key, ..TaskOptions::default() };
        for (row, raw) in document.options {
            (row.set)(&mut options, row.check(raw).map_err(invalid)?);
        }
        let memory = options.memory.map_or(Ok(()), |bytes| check_memory(bytes).map(drop));
        memory.map_err(|reason| invalid(format!("`memory_bytes`: {reason}")))?;
        if !options.retry_on.is_empty() && options.retries == 0 {
            let text = "`retry_on` says which failures are tried again, but `retries` says how often, and is 0";
            return Err(Problem::new(CONTRADICTORY, text));
        }
        Ok(Submission { spec, options, wants_output: document.output.unwrap_or(true) })
    }

    /// Hands it over, in the form that drivers take.
    pub(super) fn with_request<T>(&self, submit: impl FnOnce(&SubmitRequest<'_>) -> T) -> T {
        let spec = match &self.spec {
            Spec::Function { target, arguments } => {
                let (module, function) = split_target(target).expect("it was checked");
                TaskSpec::Function(FunctionSpec::of_task(module, function, arguments))
            }
            Spec::Command { words, env, directory } => {
                let (program, arguments) = words.split_first().expect("it was checked");
                let arguments = arguments.iter().map(String::as_bytes).collect();
                let env = env.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
                TaskSpec::command(program.as_bytes(), arguments, env, directory.as_os_str().as_bytes())
            }
        };
        submit(&SubmitRequest { wants_output: self.wants_output, ..SubmitRequest::new(spec, &self.options) })
    }
}

fn invalid(text: impl Into<String>) -> Problem {
    Problem::new(INVALID, text)
}

/// Returns a function of a module that is found by its name; the path of a library is none.
fn function(target: String, arguments: Vec<Box<serde_json::value::RawValue>>) -> Result<Spec, Problem> {
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
    Ok(Spec::Function { target, arguments: value::array(&values) })
}

fn command(words: Vec<String>, env: BTreeMap<String, String>, cwd: Option<PathBuf>) -> Result<Spec, Problem> {
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
    Ok(Spec::Command { words, env, directory })
}

/// Returns the value of an `Idempotency-Key` header: a structured field's string, in quotes, or the bare key.
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
    use std::time::Duration;

    use proptest::prelude::*;
    use tracer_core::task::{Demand, Policy};

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
            (serde_json::json!([]), "the body is not a submission: invalid type: sequence, expected an object"),
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
