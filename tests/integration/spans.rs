//! The spans of a submission: which there are, what is on them, how context gets to them, and the files that they are in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};

use crate::support::{Api, Cluster, HOOK, Run, Span, Spans, python_with, skip};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const SHELL_SPAN: &str = "b7ad6b7169203331";

/// `TRACEPARENT` of a shell that is itself in a trace.
fn trace_parent(flags: &str) -> String {
    format!("00-{TRACE_ID}-{SHELL_SPAN}-{flags}")
}

/// `tracer submit` with variables in its environment.
#[track_caller]
fn submit_with(cluster: &Cluster, variables: &[(&str, &str)], arguments: &[&str]) -> Run {
    let mut command = cluster.command(&["submit"]);
    command.args(arguments).envs(variables.iter().copied());
    cluster.run(command)
}

/// Expected value of an attribute.
#[derive(Clone, Copy, Debug)]
enum Is {
    Text(&'static str),
    /// Some text.
    AnyText,
    Integer(i64),
    /// An integer of at least this.
    AtLeast(i64),
    /// The process id that the span's file is named by.
    OwnPid,
}

/// Expects exactly these attributes, each of its type: an integer that has become a text or a float is another value.
#[track_caller]
fn assert_attributes(span: &Span, expected: &[(&str, Is)]) {
    let attributes = span.value["attributes"].as_object().expect("attributes are an object");
    let keys: BTreeSet<_> = attributes.keys().map(String::as_str).collect();
    let expected_keys: BTreeSet<_> = expected.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, expected_keys, "attributes of `{}`", span.name());
    for (key, is) in expected {
        let value = &attributes[*key];
        let fits = match is {
            Is::Text(text) => value == text,
            Is::AnyText => value.as_str().is_some_and(|text| !text.is_empty()),
            Is::Integer(number) => value.as_i64() == Some(*number),
            Is::AtLeast(least) => value.as_i64().is_some_and(|number| number >= *least),
            Is::OwnPid => value.as_u64() == Some(pid_of_file(span).into()),
        };
        assert!(fits, "`{key}` of `{}` is {value}, expected {is:?}", span.name());
    }
}

/// Returns the process whose file a span is in.
#[track_caller]
fn pid_of_file(span: &Span) -> u32 {
    let stem = span.file.file_stem().and_then(|stem| stem.to_str()).expect("a span file has a name");
    assert_eq!(span.file.extension().and_then(|extension| extension.to_str()), Some("json"));
    stem.parse().expect("a span file is named by a process")
}

const PROCESS: [(&str, Is); 10] = [
    ("tracer.pid", Is::OwnPid),
    ("tracer.worker_id", Is::Integer(1)),
    ("tracer.attempt", Is::Integer(1)),
    ("tracer.queued_ns", Is::AtLeast(1)),
    ("tracer.cpu_time_ns", Is::AtLeast(0)),
    ("tracer.peak_memory_bytes", Is::AtLeast(1 << 16)),
    ("tracer.minor_page_faults", Is::AtLeast(1)),
    ("tracer.major_page_faults", Is::AtLeast(0)),
    ("tracer.voluntary_context_switches", Is::AtLeast(0)),
    ("tracer.involuntary_context_switches", Is::AtLeast(0)),
];

/// Returns the attributes of the first task of a cluster, submitted by the first driver.
fn first_task(target: &'static str, remote: &'static str) -> Vec<(&'static str, Is)> {
    vec![
        ("tracer.remote", Is::Text(remote)),
        ("tracer.function", Is::Text(target)),
        ("tracer.job_id", Is::Integer(1)),
        ("tracer.task_id", Is::Integer(1)),
        ("tracer.node_id", Is::AnyText),
    ]
}

fn producer_attributes(target: &'static str, remote: &'static str) -> Vec<(&'static str, Is)> {
    [first_task(target, remote), vec![("tracer.pid", Is::OwnPid)]].concat()
}

fn consumer_attributes(
    target: &'static str,
    remote: &'static str,
    more: &[(&'static str, Is)],
) -> Vec<(&'static str, Is)> {
    [first_task(target, remote), PROCESS.into(), more.to_vec()].concat()
}

fn job_attributes(more: &[(&'static str, Is)]) -> Vec<(&'static str, Is)> {
    let known = vec![
        ("tracer.job_id", Is::Integer(1)),
        ("tracer.task_id", Is::Integer(1)),
        ("tracer.pid", Is::OwnPid),
        ("tracer.node_id", Is::AnyText),
    ];
    [known, more.to_vec()].concat()
}

const CODE_OF_COUNT: [(&str, Is); 4] = [
    ("code.function.name", Is::Text("wordcount::frequencies")),
    ("code.file.path", Is::Text("examples/wordcount/src/lib.rs")),
    ("tracer.module.version", Is::AnyText),
    ("code.line.number", Is::AtLeast(1)),
];

#[test]
fn one_submission_is_one_trace_from_the_job_to_the_users_spans() {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"to be or not to be\"", "1"]).success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 5, "{}", spans.describe());

    let job = spans.named("tracer job");
    let producer = spans.named("wordcount.frequencies tracer.remote");
    let consumer = spans.named("wordcount.frequencies tracer.remote_worker");
    let (count, sort) = (spans.named("count"), spans.named("sort"));
    assert_eq!(job.parent_id(), None);
    assert_eq!(producer.parent_id(), Some(job.span_id()));
    assert_eq!(consumer.parent_id(), Some(producer.span_id()));
    assert_eq!(count.parent_id(), Some(consumer.span_id()));
    assert_eq!(sort.parent_id(), Some(consumer.span_id()));
    for (span, kind) in [(job, "INTERNAL"), (producer, "PRODUCER"), (consumer, "CONSUMER"), (count, "INTERNAL")] {
        assert_eq!(span.kind(), format!("SpanKind.{kind}"), "{}", span.name());
        assert_eq!(span.trace_id(), job.trace_id());
        assert_eq!(span.value["status"], serde_json::json!({"status_code": "UNSET"}), "{}", span.name());
        assert!(span.events("exception").is_empty());
        assert!(span.links().is_empty());
        assert_eq!(span.value["context"]["trace_state"], "[]");
        let (start, end) = (&span.value["start_time"], &span.value["end_time"]);
        assert!(start.as_str() <= end.as_str(), "{}: {start} to {end}", span.name());
    }
    assert_attributes(job, &job_attributes(&[]));
    assert_attributes(producer, &producer_attributes("wordcount.frequencies", "function"));
    assert_attributes(consumer, &consumer_attributes("wordcount.frequencies", "function", &CODE_OF_COUNT));
    assert_attributes(count, &[("wordcount.distinct", Is::Integer(4))]);
    assert_attributes(sort, &[]);
}

#[test]
fn a_failed_function_says_why_on_its_attempt_and_on_the_job() {
    let cluster = Cluster::traced();
    cluster.submit("misbehaving_tasks:returns_typed_error", &[]).status(1);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let target = "misbehaving_tasks.returns_typed_error";
    let message = "the cork is stuck: invalid digit found in string";
    let error_type = ("error.type", Is::Text("misbehaving_tasks::OpenError"));

    let consumer = spans.named(&format!("{target} tracer.remote_worker"));
    let code = [
        ("code.function.name", Is::Text("misbehaving_tasks::returns_typed_error")),
        ("code.file.path", Is::AnyText),
        ("tracer.module.version", Is::AnyText),
        ("code.line.number", Is::AtLeast(1)),
    ];
    assert_attributes(consumer, &consumer_attributes(target, "function", &[&code[..], &[error_type]].concat()));
    assert_eq!(consumer.value["status"], serde_json::json!({"status_code": "ERROR", "description": message}));
    let exceptions = consumer.events("exception");
    assert_eq!(exceptions.len(), 1, "{}", consumer.value);
    assert_eq!(
        exceptions[0]["attributes"],
        serde_json::json!({"exception.type": "misbehaving_tasks::OpenError", "exception.message": message})
    );

    // The submission itself went well.
    let producer = spans.named(&format!("{target} tracer.remote"));
    assert_eq!(producer.status_code(), "UNSET");
    assert_attributes(producer, &producer_attributes(target, "function"));

    let job = spans.named("tracer job");
    assert_eq!((job.status_code(), job.status_description()), ("ERROR", message));
    assert_attributes(job, &job_attributes(&[error_type]));
}

#[test]
fn a_command_is_traced_by_the_name_of_its_program() {
    let cluster = Cluster::traced();
    cluster.tracer(&["submit", "command", "--", "/bin/sh", "-c", "exit 0"]).success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 3, "{}", spans.describe());
    let producer = spans.named("sh tracer.remote");
    assert_eq!(producer.kind(), "SpanKind.PRODUCER");
    assert_eq!(spans.parent_of(producer).name(), "tracer job");
    assert_attributes(producer, &producer_attributes("sh", "command"));
    let consumer = spans.named("sh tracer.remote_worker");
    assert_eq!((consumer.kind(), consumer.status_code()), ("SpanKind.CONSUMER", "UNSET"));
    assert_eq!(consumer.parent_id(), Some(producer.span_id()));
    assert_attributes(consumer, &consumer_attributes("sh", "command", &[("process.exit.code", Is::Integer(0))]));
}

#[test]
fn a_failed_command_has_its_exit_code_as_an_integer() {
    let cluster = Cluster::traced();
    cluster.tracer(&["submit", "command", "--", "sh", "-c", "exit 3"]).status(3);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let consumer = spans.named("sh tracer.remote_worker");
    let more = [("process.exit.code", Is::Integer(3)), ("error.type", Is::Text("exit:3"))];
    assert_attributes(consumer, &consumer_attributes("sh", "command", &more));
    assert_eq!((consumer.status_code(), consumer.status_description()), ("ERROR", "`sh` exited with code 3"));
    let exceptions = consumer.events("exception");
    assert_eq!(exceptions.len(), 1);
    assert_eq!(exceptions[0]["attributes"]["exception.type"], "exit:3");
    let job = spans.named("tracer job");
    assert_eq!((job.status_code(), job.status_description()), ("ERROR", "`sh` exited with code 3"));
    assert_attributes(job, &job_attributes(&[("error.type", Is::Text("exit:3"))]));
}

#[test]
fn a_command_that_a_signal_kills_has_no_exit_code() {
    let cluster = Cluster::traced();
    cluster.tracer(&["submit", "command", "--", "sh", "-c", "kill -9 $$"]).status(137);
    let consumer = cluster.spans().named("sh tracer.remote_worker").clone();
    assert_attributes(&consumer, &consumer_attributes("sh", "command", &[("error.type", Is::Text("signal:9"))]));
    assert_eq!(consumer.status_description(), "`sh` was killed by SIGKILL (signal 9)");
}

#[test]
fn every_name_that_the_product_documents_is_on_some_span() {
    let settings = Cluster::builder().hook(HOOK).env("RUST_BACKTRACE", "1");
    let cluster = settings.arg("--http=127.0.0.1:0").arg("--resources=gpu=1").start();
    cluster.tracer(&["submit", "task", "--name", "mine", "demo:my_function"]).success();
    cluster.submit("wordcount:count", &["\"a\"", "--num-cpus=0", "--resource=gpu=1", "--memory=1GiB"]).success();
    let submission =
        Api::of(&cluster).submission("?wait_ms=60000", &json!({ "function": "wordcount:count", "arguments": ["a"] }));
    submission.header("user-agent", "somebody").send().status(200);
    cluster.submit("misbehaving_tasks:panics", &["\"boom\""]).status(1);
    cluster.submit("misbehaving_tasks:aborts_with_attribute_of", &["1000000", "--crash-limit=0"]).status(1);
    // It leaves a process behind.
    let daemon = "(setsid sh -c 'echo > daemon; exec sleep 1000' &) ; while [ ! -s daemon ]; do sleep 0.01; done";
    cluster.tracer(&["submit", "command", "--", "sh", "-c", daemon]).success();
    cluster.submit("demo:my_function", &["--map", "-"]).success();
    cluster.tracer(&["submit", "actor", "counter:Counter"]).success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);

    let named = spans.named("demo.my_function tracer.remote_worker");
    assert_eq!(*named.attribute("tracer.task_name"), "mine");
    assert_eq!(*spans.parent_of(named).attribute("tracer.task_name"), "mine");
    let panicked = spans.named("misbehaving_tasks.panics tracer.remote_worker");
    assert_eq!(*panicked.attribute("error.type"), "panic");
    let stack = &panicked.events("exception")[0]["attributes"]["exception.stacktrace"];
    assert!(stack.as_str().is_some_and(|stack| stack.contains("misbehaving_tasks")), "{stack}");
    let killed = spans.named("misbehaving_tasks.aborts_with_attribute_of tracer.remote_worker");
    assert_eq!(*killed.attribute("error.type"), "signal:6");
    assert_eq!(*killed.attribute("tracer.completed_by"), "head");
    assert!(killed.attribute("tracer.cut").as_i64().is_some_and(|cut| cut >= 1), "{}", killed.value);

    let mut seen = BTreeSet::new();
    let is_own = |span: &&Span| span.name().contains("tracer") || span.kind() == "SpanKind.SERVER";
    for span in spans.iter().filter(is_own) {
        let of_events = span.value["events"].as_array().into_iter().flatten().map(|event| &event["attributes"]);
        for attributes in of_events.chain([&span.value["attributes"]]) {
            seen.extend(attributes.as_object().expect("attributes are an object").keys().cloned());
        }
    }
    // Arguments, and the runtime's own spans, are there only if asked for; `config` and `runtime_spans` have their tests.
    // A program that is run has no code of ours, so the file of names is the list, and the spans are compared with it.
    let documented: BTreeSet<_> = include_str!("../../src/core/names.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = \""))
        .filter(|(constant, _)| !constant.ends_with("_SUFFIX") && !constant.ends_with("_SPAN"))
        // That of a command's resource, which `otlp_in` has tests of, is on what the command sends.
        .filter(|(constant, _)| !constant.starts_with("ARGUMENT") && *constant != "TRACEPARENT")
        .filter(|(constant, _)| !OF_QUEUES.contains(constant))
        .filter_map(|(_, rest)| rest.strip_suffix("\";"))
        .filter(|value| value.contains('.'))
        .map(String::from)
        .collect();
    assert!(documented.len() > 20, "{documented:?}");
    let seen: BTreeSet<_> = seen.into_iter().filter(|key| key != "large").collect();
    assert_eq!(seen, documented);
}

/// Names on spans of tasks of queues, which `engine`, `shared_modules` and `clocks` have tests of.
const OF_QUEUES: [&str; 7] = [
    "CLUSTER_TASK_ID",
    "QUEUE",
    "STAND_IN",
    "MODULE_DIGEST",
    "MODULE_ORIGIN_DIGEST",
    "CLOCK_OFFSET_NS",
    "ORIGIN_CLOCK_OFFSET_NS",
];

/// Attributes of the kernel's counts for an attempt.
const USAGE: [&str; 6] = [
    "tracer.cpu_time_ns",
    "tracer.peak_memory_bytes",
    "tracer.minor_page_faults",
    "tracer.major_page_faults",
    "tracer.voluntary_context_switches",
    "tracer.involuntary_context_switches",
];

#[test]
fn what_an_attempt_uses_is_on_its_span_with_what_its_command_and_the_children_of_that_use() {
    let cluster = Cluster::traced();
    let size: u64 = 64 << 20;
    // The shell waits for its child, which is the one that needs memory and time.
    let script = format!("dd if=/dev/zero of=/dev/null bs={size} count=20 status=none; true");
    cluster.tracer(&["submit", "command", "--", "sh", "-c", &script]).success();
    cluster.submit("misbehaving_tasks:allocates", &[&size.to_string()]).success();
    cluster.tracer(&["submit", "command", "--", "true"]).success();
    let spans = cluster.spans();
    let used = |task, key| spans.attempt_of(task).attribute(key).as_u64().unwrap_or_else(|| panic!("{key} of {task}"));
    for key in USAGE {
        (1..=3).for_each(|task| _ = used(task, key));
    }
    for task in [1, 2] {
        assert!(used(task, "tracer.peak_memory_bytes") >= size);
        assert!(used(task, "tracer.minor_page_faults") >= 10);
        assert!(used(task, "tracer.cpu_time_ns") >= 1_000_000);
    }
    assert!(used(1, "tracer.voluntary_context_switches") >= 1, "the shell has waited");
    // Neither what the worker had before nor what the function has taken is the command's.
    assert!(used(3, "tracer.cpu_time_ns") < used(1, "tracer.cpu_time_ns"));
    assert!(used(3, "tracer.peak_memory_bytes") < size);
}

#[test]
fn spans_are_in_the_file_of_the_process_that_made_them() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    for _ in 0..3 {
        cluster.submit("wordcount:frequencies", &["\"a b\""]).success();
    }
    let workers = cluster.worker_pids();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 15);
    for span in spans.iter() {
        let pid = pid_of_file(span);
        assert_eq!(*span.resource_attribute("process.pid"), pid, "{}", span.name());
        assert_eq!(*span.resource_attribute("service.name"), "tracer");
        let is_of_worker = !span.name().ends_with("tracer.remote") && span.name() != "tracer job";
        assert_eq!(workers.contains(&pid), is_of_worker, "{} in the file of {pid}", span.name());
        if span.name().contains("tracer") {
            assert_eq!(*span.attribute("tracer.pid"), pid, "{}", span.name());
        }
    }
    // Three submissions are three processes, which two resources of one pid would not show.
    let instances: BTreeSet<_> =
        spans.iter().map(|span| span.resource_attribute("service.instance.id").to_string()).collect();
    let files: BTreeSet<_> = spans.iter().map(|span| &span.file).collect();
    assert_eq!(instances.len(), files.len());
}

/// The keys of an object, in their order.
struct Keys(Vec<String>);

impl<'de> serde::Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Keys, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Keys, M::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(KeysVisitor)
    }
}

fn span_files(cluster: &Cluster) -> Vec<PathBuf> {
    let files = fs::read_dir(cluster.spans_dir()).into_iter().flatten();
    files.map(|entry| entry.expect("the folder can be read").path()).collect()
}

#[test]
fn every_line_is_one_object_with_the_keys_of_pythons_console_exporter_in_order() {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b\""]).success();
    cluster.submit("misbehaving_tasks:panics", &["\"two\\nlines and a \\\"quote\\\"\""]).status(1);
    // Completed by the head, which writes lines of its own making.
    cluster.submit("misbehaving_tasks:aborts", &["--crash-limit=0"]).status(1);
    let mut lines = 0;
    for file in span_files(&cluster) {
        let text = fs::read_to_string(&file).expect("a span file is UTF-8");
        assert!(text.ends_with('\n'), "{}", file.display());
        for line in text.lines() {
            let Keys(keys) =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}\n{line}", file.display()));
            let expected = [
                "name",
                "context",
                "kind",
                "parent_id",
                "start_time",
                "end_time",
                "status",
                "attributes",
                "events",
                "links",
                "resource",
            ];
            assert_eq!(keys, expected, "{line}");
            let span: Value = serde_json::from_str(line).expect("it was parsed above");
            let hex = |value: &Value, digits: usize| {
                let id = value.as_str().and_then(|text| text.strip_prefix("0x"));
                id.is_some_and(|id| id.len() == digits && id.bytes().all(|byte| byte.is_ascii_hexdigit()))
            };
            assert!(hex(&span["context"]["trace_id"], 32) && hex(&span["context"]["span_id"], 16), "{line}");
            assert!(span["parent_id"].is_null() || hex(&span["parent_id"], 16), "{line}");
            let time = span["start_time"].as_str().expect("a time is a text");
            assert!(time.len() == "2026-11-20T20:18:04.554075Z".len() && time.ends_with('Z'), "{time}");
            lines += 1;
        }
    }
    assert_eq!(lines, 5 + 3 + 3);
}

/// The bytes of a task's two spans, without what an attempt of 50 µs or more says of its use. Where this was counted, they were 1,703; names and
/// numbers of another machine may be longer.
const TWO_SPANS: usize = 1_703 + 100;

/// Bytes are what tracing costs: a third of the time of a traced run is their way into the page cache.
#[test]
fn the_two_spans_of_a_task_take_as_few_bytes_as_is_said() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    let spans = cluster.spans();
    let bytes = |suffix: &str| {
        let found = spans.named(&format!("demo.my_function {suffix}"));
        let written = fs::read_to_string(&found.file).expect("it was read before");
        let line = written.lines().find(|line| line.contains(found.span_id())).expect("it was read from there");
        let mut span = found.value.clone();
        assert_eq!(line.len(), span.to_string().len(), "nothing is between what is said");
        let attributes = span["attributes"].as_object_mut().expect("attributes are an object");
        for (key, _) in PROCESS.iter().filter(|(_, is)| matches!(is, Is::AtLeast(_))) {
            if *key != "tracer.queued_ns" {
                attributes.remove(*key);
            }
        }
        span.to_string().len() + 1
    };
    let both = bytes("tracer.remote") + bytes("tracer.remote_worker");
    assert!(both <= TWO_SPANS, "two spans take {both} bytes, at most {TWO_SPANS} are expected");
}

#[test]
fn jq_reads_the_span_files() {
    if Command::new("jq").arg("--version").stdout(Stdio::null()).status().is_err() {
        return skip("jq", "it reads the span files as people would");
    }
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b\""]).success();
    cluster.submit("misbehaving_tasks:aborts", &["--crash-limit=0"]).status(1);
    let mut jq = cluster.program("jq");
    jq.args(["-e", "-c", ".name"]).args(span_files(&cluster));
    let names = cluster.run(jq).success().stdout_text();
    assert_eq!(names.lines().count(), cluster.spans().len(), "{names}");
    assert!(names.lines().any(|name| name == "\"misbehaving_tasks.aborts tracer.remote_worker\""), "{names}");
}

#[test]
fn the_trace_of_the_shell_goes_on() {
    let cluster = Cluster::traced();
    submit_with(&cluster, &[("TRACEPARENT", &trace_parent("01"))], &["task"]).success().stdout("1\n").stderr("");
    let spans = cluster.spans();
    let shell = format!("0x{SHELL_SPAN}");
    spans.assert_whole(&[&shell]);
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|span| span.trace_id() == format!("0x{TRACE_ID}")), "{}", spans.describe());
    assert_eq!(spans.named("tracer job").parent_id(), Some(shell.as_str()));
}

#[test]
fn tracestate_is_on_every_span_and_in_the_environment_of_a_command() {
    let cluster = Cluster::traced();
    let shell = [("TRACEPARENT", &*trace_parent("01")), ("TRACESTATE", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")];
    submit_with(&cluster, &shell, &["task", "wordcount:frequencies", "\"a b\""]).success();
    submit_with(&cluster, &shell, &["command", "--", "printenv", "TRACESTATE"])
        .success()
        .stdout("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE\n");
    let spans = cluster.spans();
    assert_eq!(spans.len(), 5 + 3);
    for span in spans.iter() {
        let expected = "['{key=rojo, value=00f067aa0ba902b7}', '{key=congo, value=t61rcWkgMzE}']";
        assert_eq!(span.value["context"]["trace_state"], expected, "{}", span.name());
    }
}

/// Tracestates whose keys only level 2 of W3C Trace Context allows.
pub(crate) fn level_2_trace_states() -> [String; 3] {
    let long = format!("{}@{}=1", "t".repeat(242), "v".repeat(13));
    let longest = format!("{}@{}={}", "t".repeat(230), "v".repeat(25), "x".repeat(256));
    ["foo@@bar=1,bar=2".into(), format!("a@b@c=:,{long},rojo=1"), longest]
}

#[test]
fn a_tracestate_of_level_2_is_carried_on_as_it_came() {
    for hooks in [&[HOOK][..], &["otlp_file:setup_tracing"], &[HOOK, "otlp_file:setup_tracing"]] {
        let builder = Cluster::builder().hook(hooks[0]);
        let cluster = hooks[1..]
            .iter()
            .fold(builder, |builder, hook| builder.arg(format!("--tracing-startup-hook={hook}")))
            .start();
        for state in level_2_trace_states() {
            let shell = [("TRACEPARENT", &*trace_parent("01")), ("TRACESTATE", &*state)];
            let run = submit_with(&cluster, &shell, &["task", "traced_tasks:headers"]).success().stderr("");
            let seen = run.json();
            for headers in seen.as_array().expect("it returns a list").iter().take(3) {
                assert_eq!(headers[1], *state, "{hooks:?}: {seen}");
            }
            submit_with(&cluster, &shell, &["command", "--", "printenv", "TRACESTATE"])
                .success()
                .stdout(&format!("{state}\n"));
            let exported = cluster.tracer(&["trace", "export", TRACE_ID, "--format", "otlp"]).success();
            let lines = exported.stdout_text();
            assert!(lines.contains(&format!("\"traceState\":\"{state}\"")), "{hooks:?}, {state}: {lines}");
            assert!(!lines.contains("tracer-level2"), "{lines}");
        }
        cluster.stop().success();
        let files = std::fs::read_dir(cluster.spans_dir()).expect("there are span files");
        let mut spans = 0;
        for file in files {
            let text = std::fs::read_to_string(file.expect("it can be read").path()).expect("it is text");
            assert!(!text.contains("tracer-level2"), "{text}");
            for line in text.lines() {
                assert!(line.contains("foo@@bar") || line.contains("a@b@c") || line.contains("ttt@vvv"), "{line}");
                spans += 1;
            }
        }
        assert!(spans >= 3 * 7, "{spans}");
    }
}

#[test]
fn a_new_trace_says_that_its_id_is_random_and_an_inherited_one_what_it_said() {
    let new = |cluster: &Cluster| {
        let mut command = cluster.command(&["submit", "command", "--", "printenv", "TRACEPARENT"]);
        command.env_remove("TRACEPARENT");
        let text = cluster.run(command).success().stdout_text();
        text.trim().rsplit('-').next().unwrap_or_default().to_owned()
    };
    for hook in [HOOK, "console:setup_tracing"] {
        let cluster = Cluster::builder().hook(hook).start();
        assert_eq!(new(&cluster), "03", "{hook}");
        for flags in ["00", "01", "02", "03"] {
            let parent = trace_parent(flags);
            let run = submit_with(&cluster, &[("TRACEPARENT", &parent)], &["command", "--", "printenv", "TRACEPARENT"])
                .success();
            assert!(run.stdout_text().trim().ends_with(&format!("-{flags}")), "{hook}: {run:?}");
        }
        cluster.stop().success();
        let cluster = Cluster::builder().hook(hook).arg("--tracing-sampling-ratio=0").start();
        assert_eq!(new(&cluster), "02", "{hook}, not sampled");
        cluster.stop().success();
    }
}

#[test]
fn baggage_reaches_a_task_and_a_command() {
    let cluster = Cluster::traced();
    let shell = [("BAGGAGE", "customer=ada%20l,plan=50%25")];
    let run = submit_with(&cluster, &shell, &["task", "misbehaving_tasks:baggage"]).success();
    assert_eq!(run.json(), serde_json::json!({"customer": "ada l", "plan": "50%"}));
    let run = submit_with(&cluster, &shell, &["command", "--", "printenv", "BAGGAGE"]).success();
    assert_eq!(run.stdout_text(), "customer=ada%20l,plan=50%25\n");
}

#[test]
fn a_command_gets_the_context_of_its_own_attempt() {
    let cluster = Cluster::traced();
    let run =
        submit_with(&cluster, &[("TRACEPARENT", &trace_parent("01"))], &["command", "--", "printenv", "TRACEPARENT"]);
    let attempt = cluster.spans().named("printenv tracer.remote_worker").clone();
    let span_id = attempt.span_id().trim_start_matches("0x");
    run.success().stdout(&format!("00-<trace>-{span_id}-01\n"));
    assert_eq!(attempt.trace_id(), format!("0x{TRACE_ID}"));
}

#[test]
fn a_malformed_trace_parent_starts_a_new_trace_and_says_so() {
    let cluster = Cluster::traced();
    let shell = [("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"), ("TRACESTATE", "rojo=1")];
    let run = submit_with(&cluster, &shell, &["task"]).success().stdout("1\n");
    let run = run.stderr_contains("`TRACEPARENT` is ignored: ");
    run.stderr_contains("`TRACESTATE` is ignored: there is no valid traceparent with it");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let job = spans.named("tracer job");
    assert_eq!(job.parent_id(), None);
    assert_ne!(job.trace_id(), format!("0x{TRACE_ID}"));
    assert!(spans.iter().all(|span| span.value["context"]["trace_state"] == "[]"));
}

#[test]
fn an_unsampled_trace_leaves_no_span_and_its_tasks_run() {
    let cluster = Cluster::traced();
    let shell = [("TRACEPARENT", &*trace_parent("00"))];
    submit_with(&cluster, &shell, &["task", "wordcount:frequencies", "\"a\""])
        .success()
        .stdout("[{\"word\":\"a\",\"count\":1}]\n");
    submit_with(&cluster, &shell, &["task", "misbehaving_tasks:panics", "\"boom\""]).status(1);
    // Not even a worker that dies leaves one.
    submit_with(&cluster, &shell, &["task", "misbehaving_tasks:aborts", "--crash-limit=0"]).status(1);
    let run = submit_with(&cluster, &shell, &["command", "--", "printenv", "TRACEPARENT"]).success();
    let text = run.stdout_text();
    let ids: Vec<_> = text.trim().split('-').collect();
    assert_eq!((ids[1], ids[3]), (TRACE_ID, "00"), "{text}");
    cluster.stop().success();
    assert_eq!(cluster.spans().len(), 0, "{}", cluster.spans().describe());
    assert_eq!(span_files(&cluster), Vec::<PathBuf>::new());
}

#[test]
fn without_waiting_the_job_ends_when_the_task_is_accepted() {
    let cluster = Cluster::traced();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let arguments = [&started, &released].map(|path| format!("\"{}\"", path.display()));
    let mut command = cluster.command(&["submit", "task", "--no-wait", "misbehaving_tasks:waits"]);
    command.args(&arguments);
    cluster.run(command).success().stdout("1\n");

    let spans = cluster.spans();
    let job = spans.named("tracer job").clone();
    assert_eq!((job.status_code(), job.parent_id()), ("UNSET", None));
    assert_attributes(&job, &job_attributes(&[]));
    assert_eq!(spans.parent_of(spans.named("misbehaving_tasks.waits tracer.remote")), &job);
    cluster.wait_for_file(&started);
    assert_eq!(cluster.spans().len(), 2, "the attempt has not ended");

    fs::write(&released, "").expect("the test's folder can be written to");
    cluster.wait_for_task(1);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempt = spans.named("misbehaving_tasks.waits tracer.remote_worker");
    assert!(job.value["end_time"].as_str() < attempt.value["end_time"].as_str());
}

#[test]
fn an_untraced_head_writes_nothing_and_passes_the_context_on() {
    let cluster = Cluster::untraced();
    let parent = trace_parent("01");
    let shell = [("TRACEPARENT", &*parent), ("TRACESTATE", "rojo=1"), ("BAGGAGE", "customer=ada")];
    cluster.submit("wordcount:frequencies", &["\"a\""]).success();
    submit_with(&cluster, &shell, &["command", "--", "sh", "-c", "echo $TRACEPARENT $TRACESTATE $BAGGAGE"])
        .success()
        .stdout(&format!("{} rojo=1 customer=ada\n", parent.replace(TRACE_ID, "<trace>")));
    let run = submit_with(&cluster, &shell, &["task", "misbehaving_tasks:baggage"]).success();
    assert_eq!(run.json(), serde_json::json!({"customer": "ada"}));
    // Nothing stale is passed on where there is no context.
    cluster.tracer(&["submit", "command", "--", "printenv", "TRACEPARENT"]).status(1).stdout("");
    cluster.stop().success();
    assert!(!cluster.spans_dir().exists());
}

#[test]
fn the_context_of_the_shell_that_starts_the_head_is_not_that_of_its_tasks() {
    let cluster = Cluster::builder()
        .hook(HOOK)
        .env("TRACEPARENT", trace_parent("01"))
        .env("TRACESTATE", "rojo=1")
        .env("BAGGAGE", "customer=ada")
        .start();
    let mut command = cluster.command(&["submit", "task", "misbehaving_tasks:variable", "\"TRACEPARENT\""]);
    command.env_remove("TRACEPARENT").env_remove("TRACESTATE").env_remove("BAGGAGE");
    cluster.run(command).success().stdout("null\n");
    let mut command = cluster.command(&["submit", "command", "--", "sh", "-c", "echo $TRACESTATE $BAGGAGE"]);
    command.env_remove("TRACEPARENT").env_remove("TRACESTATE").env_remove("BAGGAGE");
    cluster.run(command).success().stdout("\n");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert!(spans.iter().all(|span| span.trace_id() != format!("0x{TRACE_ID}")), "{}", spans.describe());
}

#[test]
fn span_files_are_for_their_user_alone() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    let mode = |path: &std::path::Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o7777;
    assert_eq!(mode(&cluster.spans_dir()), 0o700);
    let files = span_files(&cluster);
    assert_eq!(files.len(), 2);
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

#[test]
fn the_span_folder_is_what_the_flag_says_and_else_what_the_variable_says() {
    let by_variable = Cluster::traced();
    by_variable.submit("demo:my_function", &[]).success();
    assert_eq!(by_variable.spans().len(), 3);

    let folder = tempfile::tempdir().expect("a folder for the test");
    let flag = folder.path().join("by flag");
    let by_flag = Cluster::builder().hook(HOOK).arg("--spans-dir").arg(&flag).start();
    by_flag.submit("demo:my_function", &[]).success();
    // The submission writes where the head said, whatever its own environment says.
    assert_eq!(Spans::read(&flag).len(), 3);
    assert!(!by_flag.spans_dir().exists());
    let mut list = by_flag.command(&["trace", "list", "--format", "json"]);
    list.env_remove("TRACER_SPANS_DIR");
    let traces = by_flag.run(list).success().json();
    assert_eq!(traces["traces"][0]["spans"], 3, "{traces}");
}

#[test]
fn the_last_trace_is_shown_as_a_tree_with_durations() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    cluster.submit("wordcount:frequencies", &["\"a b\""]).success();
    let mut show = cluster.command(&["trace", "show", "last"]);
    show.env("COLUMNS", "120");
    let text = cluster.run(show).success().stdout_text();
    let mut lines = text.lines();
    let spans = cluster.spans();
    let trace_id = spans.named("wordcount.frequencies tracer.remote").trace_id().trim_start_matches("0x").to_owned();
    let head = lines.next().expect("a first line");
    assert!(head.starts_with(&format!("trace {trace_id}  5 spans  2 processes  ")) && head.ends_with("  ok"), "{text}");
    let tree = [
        "* tracer job  ",
        "* └─ wordcount.frequencies tracer.remote  ",
        "*    └─ wordcount.frequencies tracer.remote_worker  ",
        "*       ├─ count  ",
        "*       └─ sort  ",
    ];
    for start in tree {
        let line = lines.next().unwrap_or_else(|| panic!("`{start}` is missing in\n{text}"));
        assert!(line.starts_with(start), "expected `{start}` in\n{text}");
        assert!(line.contains(" µs") || line.contains(" ms") || line.contains(" s"), "no duration: {line}");
    }
    assert_eq!(lines.next(), Some(""), "{text}");
    assert!(lines.next().is_some_and(|line| line.starts_with("* The critical path, ")), "{text}");
}

#[test]
fn the_official_python_sdk_continues_the_trace_in_a_command() {
    let Some(python) = python_with("opentelemetry.sdk") else { return };
    let cluster = Cluster::traced();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/command_python/main.py");
    let text = cluster.file("text");
    fs::write(&text, "one two three\n").expect("the test's folder can be written to");
    let mut command = cluster.command(&["submit", "command", "--"]);
    command.arg(&python).arg(program).arg(&text);
    command.envs([("TRACEPARENT", &*trace_parent("01")), ("TRACESTATE", "rojo=1"), ("BAGGAGE", "customer=ada%20l")]);
    cluster.run(command).success().stdout("       3 <folder>/text\n").stderr("");

    let spans = cluster.spans();
    spans.assert_whole(&[&format!("0x{SHELL_SPAN}")]);
    assert_eq!(spans.len(), 5, "{}", spans.describe());
    let (outer, inner) = (spans.named("count files"), spans.named("count file"));
    let attempt = spans.parent_of(outer);
    assert_eq!(attempt.kind(), "SpanKind.CONSUMER");
    assert!(attempt.name().ends_with(" tracer.remote_worker"), "{}", attempt.name());
    assert_eq!(spans.parent_of(inner), outer);
    assert_eq!(*outer.attribute("baggage.customer"), "ada l");
    assert_eq!(*inner.attribute("words"), 3);
    for span in [outer, inner] {
        assert_eq!(*span.resource_attribute("telemetry.sdk.language"), "python");
        assert_eq!(*span.resource_attribute("process.pid"), pid_of_file(span));
        assert_eq!(span.trace_id(), format!("0x{TRACE_ID}"));
        assert_eq!(span.value["context"]["trace_state"], "['{key=rojo, value=1}']");
        // Both exporters make the same keys.
        let keys =
            |span: &Span| span.value.as_object().expect("a span is an object").keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(span), keys(attempt));
    }
    let mut show = cluster.command(&["trace", "show", "last"]);
    show.env("COLUMNS", "120");
    let tree = cluster.run(show).success().stdout_text();
    let indent = |name: &str| {
        let line = tree.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("no {name} in\n{tree}"));
        line[..line.find(name).expect("it contains it")].chars().count()
    };
    let names = [attempt.name(), "count files", "count file "];
    let indents: BTreeMap<_, _> = names.iter().map(|name| (indent(name), *name)).collect();
    assert_eq!(indents.into_values().collect::<Vec<_>>(), names, "{tree}");
}

#[test]
fn a_task_reads_its_context_as_headers() {
    for hook in [Some(HOOK), None] {
        let builder = Cluster::builder();
        let cluster = if let Some(hook) = hook { builder.hook(hook) } else { builder }.start();
        let shell =
            [("TRACEPARENT", &*trace_parent("03")), ("TRACESTATE", "b=2,a=1"), ("BAGGAGE", "key=value%20x;p=1")];
        let read = submit_with(&cluster, &shell, &["task", "traced_tasks:headers"]).success().json();
        let spans = cluster.spans();
        let [task, span] = if hook.is_some() {
            ["traced_tasks.headers tracer.remote_worker", "sends"]
                .map(|name| spans.named(name).span_id()[2..].to_owned())
        } else {
            // Without a hook, what the shell said arrives as it was.
            let parent = trace_parent("03").split('-').nth(2).expect("it has four parts").to_owned();
            [parent.clone(), parent]
        };
        let headers = |id: &str| json!([format!("00-{TRACE_ID}-{id}-03"), "b=2,a=1", "key=value%20x;p=1"]);
        assert_eq!(read, json!([headers(&task), headers(&span), headers(&task), null]), "{hook:?}");
    }
}

#[test]
fn attributes_without_a_key_are_dropped_wherever_they_are() {
    let exporter = "--tracing-exporter=hook_forms:stamping_exporter".to_owned();
    let hooks = [HOOK, "otlp_file:setup_tracing"].map(|hook| format!("--tracing-startup-hook={hook}"));
    for hook in hooks.into_iter().chain([exporter]) {
        let cluster = Cluster::builder().arg(&hook).start();
        cluster.submit("traced_tasks:keyless", &[]).success();
        cluster.stop().success();
        let mut folders = vec![cluster.spans_dir(), cluster.file("exported")];
        folders.retain(|folder| folder.is_dir());
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("it is there").flatten());
        let text: String = files.map(|file| std::fs::read_to_string(file.path()).expect("it is text")).collect();
        for kept in ["of.link", "of.span", "of.later_link", "of.event"] {
            assert!(text.contains(kept), "{hook}: {text}");
        }
        assert!(!text.contains("\"\":") && !text.contains("\"key\":\"\""), "{hook}: {text}");
    }
}
