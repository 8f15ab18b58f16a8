//! Questions, their mistakes, and what they match.

use super::super::Loaded;
use super::super::fixture::{EPOCH, loaded, span};
use super::*;

const NOW: u64 = EPOCH + 3_600_000_000_000;

fn parsed(text: &str) -> Query {
    Query::parse(text, NOW).unwrap_or_else(|error| panic!("{error}"))
}

fn three_traces() -> Loaded {
    let lines = [
        span("tracer job", 1, None, (0, 500_000)).trace(0xa1),
        span("count words", 2, 1, (10, 200_010)).trace(0xa1).kind("CONSUMER").attributes(
            r#"{"region": "eu-west", "code": 200, "tracer.queued_ns": 5000000, "tracer.task_id": 7, "path": "a b", "q\"k": "odd"}"#,
        ),
        span("tracer job", 3, None, (1_000_000, 1_400_000)).trace(0xa2),
        span("count words", 4, 3, (1_000_000, 1_050_000))
            .trace(0xa2)
            .failed("Deadline passed")
            .exception("TimeoutError", "timed out after 3 s")
            .attributes(r#"{"region": "us", "code": 503.5}"#),
        span("load", 5, None, (2_000_000, 2_000_001)).trace(0xb1),
    ];
    let text: String = lines.iter().map(|line| line.line()).collect();
    loaded([("17.json", text.into_bytes())])
}

/// Returns the low byte of the id of each trace that matches.
fn matching(question: &str) -> Vec<u8> {
    let query = parsed(question);
    three_traces().traces.iter().filter(|trace| query.matches(trace)).map(|trace| trace.id.0 as u8).collect()
}

#[test]
fn a_trace_matches_if_one_of_its_spans_meets_all_terms() {
    for (question, expected) in [
        ("", vec![0xa1, 0xa2, 0xb1]),
        ("error", vec![0xa2]),
        ("-error", vec![0xa1, 0xb1]),
        ("name:COUNT", vec![0xa1, 0xa2]),
        ("name:c*s", vec![0xa1, 0xa2]),
        ("name=count", vec![]),
        ("name=\"count words\"", vec![0xa1, 0xa2]),
        ("name!=load", vec![0xa1, 0xa2]),
        ("name:count error", vec![0xa2]),
        // No one span meets both.
        ("name:job error", vec![]),
        ("name:job -error", vec![0xa1]),
        ("duration>100ms", vec![0xa1, 0xa2]),
        ("duration>=500ms", vec![0xa1]),
        ("name:count duration>100ms", vec![0xa1]),
        ("duration<2us", vec![0xb1]),
        ("region=us", vec![0xa2]),
        ("region:EU", vec![0xa1]),
        ("region!=us", vec![0xa1]),
        ("-region=us", vec![0xa1, 0xb1]),
        ("code>=500", vec![0xa2]),
        ("code=200.0", vec![0xa1]),
        ("code:20", vec![0xa1]),
        ("tracer.queued_ns>4ms", vec![0xa1]),
        ("tracer.queued_ns>5ms", vec![]),
        ("region>5", vec![]),
        ("path=\"a b\"", vec![0xa1]),
        ("task:7", vec![0xa1]),
        ("task:8", vec![]),
        ("kind:consumer", vec![0xa1]),
        ("kind:Internal", vec![0xa1, 0xa2, 0xb1]),
        ("state:failed", vec![0xa2]),
        ("state:running", vec![]),
        ("-state:running", vec![0xa1, 0xa2, 0xb1]),
        ("running", vec![]),
        ("root duration<450ms name:job", vec![0xa2]),
        ("service:trac", vec![0xa1, 0xa2, 0xb1]),
        ("pid:17", vec![0xa1, 0xa2, 0xb1]),
        ("pid:18", vec![]),
        ("trace:00000000000000000000000000000b", vec![]),
        ("trace:0x000000000000000000000000000000B", vec![0xb1]),
        ("-trace:000000000000000000000000000000b", vec![0xa1, 0xa2]),
        ("spans>1", vec![0xa1, 0xa2]),
        ("-spans>1", vec![0xb1]),
        ("\"timed OUT\"", vec![0xa2]),
        ("\"deadline\"", vec![0xa2]),
        ("\"eu-west\"", vec![0xa1]),
        ("-\"eu-west\" name:count", vec![0xa2]),
        ("since:1h", vec![0xa1, 0xa2, 0xb1]),
        ("since:3599s", vec![0xa2, 0xb1]),
        ("since:2026-11-05T12:00:02Z", vec![0xb1]),
        ("until:2026-11-05T12:00:00.5Z", vec![0xa1]),
    ] {
        assert_eq!(matching(question), expected, "{question}");
    }
}

#[test]
fn a_key_that_json_escapes_is_found_too() {
    let query = Query {
        terms: vec![Term {
            is_negated: false,
            test: Test::Attribute {
                key: "q\"k".into(),
                comparison: Comparison::Equal,
                value: AttributeValue { text: "odd".into(), number: None },
            },
        }],
    };
    assert!(query.matches(&three_traces().traces[0]));
}

#[test]
fn a_mistake_is_marked_and_the_nearest_word_is_said() {
    for (question, expected) in [
        (
            "eror name:count",
            "expected `error`, `running`, `root`, a field with its value such as `name:count` or `duration>100ms`, or a \"text\" in quotes, \
             found `eror`\n  eror name:count\n  ^^^^\n(hint: did you mean `error`?)",
        ),
        (
            "error -state:runing",
            "expected one of `running`, `ended`, `failed`, found `runing`\n  error -state:runing\n               ^^^^^^\n(hint: did you mean `running`?)",
        ),
        (
            "duration>soon",
            "expected a duration such as `100ms`, `50us` or `2s`, found `soon`\n  duration>soon\n           ^^^^",
        ),
        ("name>x", "expected `:` or `=` or `!=` after `name`, found `>`\n  name>x\n      ^"),
        (
            "code>high",
            "expected a number or a duration, because it is compared by size, found `high`\n  code>high\n       ^^^^",
        ),
        ("name:", "expected a name of a span, found nothing\n  name:\n       ^"),
        ("\"no end", "expected a `\"` at the end of the text, found `\"no end`\n  \"no end\n  ^^^^^^^"),
        ("=5", "expected the name of a field or the key of an attribute before this, found `=`\n  =5\n  ^"),
        ("\"a\"b", "expected a space between two terms, found `b`\n  \"a\"b\n     ^"),
        ("pid:x", "expected the id of a process, found `x`\n  pid:x\n      ^"),
    ] {
        let error = Query::parse(question, NOW).expect_err(question);
        assert_eq!(error.to_string(), expected);
    }
    for question in
        ["trace:xyz", "since:yesterday", "spans>many", "-", "task:seven", "kind:worker", "name:\"\"", "error!", "a!b"]
    {
        assert!(Query::parse(question, NOW).is_err(), "{question}");
    }
}

#[test]
fn attributes_that_are_near_to_a_field_are_doubtful() {
    let query = parsed("nmae:count region=eu");
    assert_eq!(query.doubtful_keys().collect::<Vec<_>>(), [("nmae", "name")]);
}

proptest::proptest! {
    #[test]
    fn any_text_parses_or_is_refused_with_a_mark_inside_of_it(text in "[a-z:=<>!\"\\\\ \\-é0-9.]{0,40}") {
        if let Err(error) = Query::parse(&text, NOW) {
            proptest::prop_assert!(error.mark.0 + error.mark.1 <= text.chars().count());
            proptest::prop_assert!(error.to_string().contains("expected"));
        }
    }
}

fn task(report: serde_json::Value) -> tracer_ipc::protocol::TaskReport {
    let mut all = serde_json::json!({
        "id": 7, "name": "nightly", "target": "wordcount.count", "state": "failed", "job_id": 1,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "attempt": 2, "attempts": [], "worker_id": 3, "worker_pid": 4711,
        "submitted_unix_nano": 1_000_000_000, "started_unix_nano": 2_000_000_000, "ended_unix_nano": 2_500_000_000_u64,
        "result": null, "failure": null, "message": "it timed out",
    });
    for (key, value) in report.as_object().expect("an object") {
        all[key] = value.clone();
    }
    serde_json::from_value(all).expect("it has all fields")
}

#[test]
fn tasks_are_asked_for_in_the_same_words() {
    let failed = task(serde_json::json!({}));
    let waiting = task(serde_json::json!({"id": 8, "state": "waiting", "name": null, "attempt": 0, "worker_pid": null,
        "started_unix_nano": null, "ended_unix_nano": null, "message": null}));
    for (text, of_failed, of_waiting) in [
        ("", true, true),
        ("error", true, false),
        ("-error", false, true),
        ("running", false, false),
        ("state:waiting", false, true),
        ("state:ended name:COUNT", true, false),
        ("-state:failed name:count", false, true),
        ("name=nightly", true, false),
        ("name!=nightly", false, true),
        ("duration>=500ms", true, false),
        ("duration>500ms", false, false),
        ("attempt>1 worker_id=3", true, false),
        ("target=wordcount.count", true, true),
        ("task:7", true, false),
        ("pid:4711", true, false),
        ("trace:4BF9", true, true),
        ("\"TIMED out\"", true, false),
        ("since:2026-01-01T00:00:00Z", false, false),
    ] {
        let query = Query::parse_for_tasks(text, 0).unwrap();
        assert_eq!((query.matches_task(&failed), query.matches_task(&waiting)), (of_failed, of_waiting), "{text}");
    }
    for (text, part) in [
        ("state:wating", "did you mean `waiting`?"),
        ("kind:consumer", "a field of tasks"),
        ("root", "expected `error`, `running`, a field"),
        ("runing", "did you mean `running`?"),
        ("nothing:x", "expected a field of tasks, such as `state:failed` or `attempt>1`, found `nothing`"),
        ("durtion>1ms", "did you mean `duration`?"),
    ] {
        let said = Query::parse_for_tasks(text, 0).unwrap_err().to_string();
        assert!(said.contains(part), "{text}: {said}");
    }
    assert!(Query::parse("state:waiting", 0).is_err(), "no span waits");
}
