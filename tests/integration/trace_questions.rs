//! Questions about traces: queries of lists, comparison of two traces, bounds for continuous integration, profiles for other tools.

use std::collections::HashMap;
use std::fs;

use serde_json::{Value, json};

use crate::support::Cluster;

/// Starts a cluster that has run a task that succeeds and one that panics in a span of its own.
fn with_two_traces() -> Cluster {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    cluster.submit("misbehaving_tasks:panics_in_span", &[]).status(1);
    cluster
}

/// Returns the roots of the traces that a query finds, in the order of the list.
#[track_caller]
fn listed(cluster: &Cluster, query: &[&str]) -> Vec<Value> {
    let list = cluster.tracer(&[&["trace", "list", "--format", "json", "--"], query].concat()).success().json();
    let traces = list["traces"].as_array().expect("traces are a list");
    traces.iter().map(|trace| trace["trace_id"].clone()).collect()
}

#[test]
fn a_query_finds_traces_by_what_their_spans_are() {
    let cluster = with_two_traces();
    let all = listed(&cluster, &[]);
    let [failed, good] = &all[..] else { panic!("two traces, found {all:?}") };
    let (failed, good) = (vec![failed.clone()], vec![good.clone()]);
    let id = failed[0].as_str().expect("an id is a text");
    for (query, found) in [
        ("error", &failed),
        ("-error", &good),
        ("state:failed duration<1h", &failed),
        ("name:FREQ", &good),
        ("name=wordcount.frequencies", &vec![]),
        ("name:*frequencies*remote*", &good),
        ("kind:consumer task:2", &failed),
        ("tracer.task_id=1", &good),
        ("since:1h spans>1", &all),
        ("until:1h", &vec![]),
        ("\"panicked\" running", &vec![]),
        (&format!("trace:{}", &id[..12]), &failed),
    ] {
        assert_eq!(listed(&cluster, &[query]), *found, "{query}");
    }
    assert_eq!(listed(&cluster, &["error", "kind:consumer"]), failed, "words of a command line are one query");
}

#[test]
fn a_query_that_does_not_parse_is_marked_with_the_nearest_word() {
    let cluster = Cluster::untraced();
    cluster
        .tracer(&["trace", "list", "name:count kind:consumr"])
        .status(2)
        .stderr_contains("  name:count kind:consumr\n                  ^^^^^^^\n(hint: did you mean `consumer`?)");
    cluster
        .tracer(&["trace", "list", "duration>soon"])
        .status(2)
        .stderr_contains("expected a duration such as `100ms`, `50us` or `2s`, found `soon`");
    cluster.tracer(&["trace", "check", "naem:count", "--no-errors", "errr"]).status(2);
}

#[test]
fn an_attribute_that_no_span_has_is_compared_with_the_fields() {
    let cluster = with_two_traces();
    cluster
        .tracer(&["trace", "list", "servce=shop"])
        .success()
        .stderr_contains("(hint: did you mean the field `service`?)");
}

#[test]
fn two_traces_are_compared_by_the_path_of_names() {
    let cluster = with_two_traces();
    let ids = listed(&cluster, &[]);
    let [after, before] = [0, 1].map(|index| ids[index].as_str().expect("an id is a text"));
    let diff = cluster.tracer(&["trace", "diff", before, "--format", "json"]).success().json();
    assert_eq!((&diff["before"]["trace_id"], &diff["after"]["trace_id"]), (&json!(before), &json!(after)));
    let spans = cluster.spans();
    let in_trace = |side: &str| -> u64 {
        let rows = diff["paths"].as_array().expect("paths are a list").iter();
        rows.map(|row| row[side]["count"].as_u64().unwrap_or(0)).sum()
    };
    assert_eq!(in_trace("before") + in_trace("after"), spans.len() as u64, "{diff}");
    let changes: Vec<u64> = diff["paths"].as_array().expect("paths are a list").iter().map(change).collect();
    assert!(changes.is_sorted_by(|left, right| left >= right), "{changes:?}");
    cluster
        .tracer(&["trace", "diff", before, before])
        .success()
        .stdout_contains("both have the same spans, with the same times\n");
    cluster.tracer(&["trace", "diff", "abcabcabc"]).status(1).stderr_contains("abcabcabc");
}

fn change(row: &Value) -> u64 {
    row["self_change_ns"].as_i64().expect("a change is an integer").unsigned_abs()
}

#[test]
fn a_check_exits_with_1_where_a_bound_is_exceeded_and_names_the_offenders() {
    let cluster = with_two_traces();
    let checked = |arguments: &[&str], code: i32| {
        let run = cluster.tracer(&[&["trace", "check", "--format", "json"], arguments].concat()).status(code);
        run.json()
    };
    let report = checked(&["--no-errors", "--max-duration", "1h", "--max-spans", "100"], 1);
    assert_eq!((&report["passed"], &report["traces"]), (&json!(false), &json!(2)));
    let rules = report["rules"].as_array().expect("rules are a list");
    let words: Vec<&str> = rules.iter().filter_map(|rule| rule["rule"].as_str()).collect();
    assert_eq!(words, ["no errors", "traces below 1 h 00 m", "at most 100 spans"]);
    let offenders: Vec<usize> = rules.iter().map(|rule| rule["offenders"].as_array().map_or(0, Vec::len)).collect();
    let failed = cluster.spans().iter().filter(|span| span.status_code() == "ERROR").count();
    assert_eq!(offenders, [failed, 0, 0]);

    assert_eq!(checked(&["-error", "--max-duration", "*<1h"], 2)["error"]["kind"], "usage", "it begins with a hyphen");
    assert_eq!(checked(&["--no-errors", "--", "-error"], 0)["passed"], json!(true));
    assert_eq!(checked(&["name:nothing_is_named_so", "--no-errors"], 1)["traces"], json!(0));
    assert_eq!(checked(&["--max-duration", "wordcount*<1ns", "--", "-error"], 1)["passed"], json!(false));

    let text = cluster.tracer(&["trace", "check", "--no-errors"]).status(1).stdout_text();
    assert!(text.starts_with("FAILED no errors\n") && text.contains("2 traces with"), "{text}");
    let junit = cluster.tracer(&["trace", "check", "--no-errors", "--format", "junit"]).status(1).stdout_text();
    assert!(junit.contains(r#"<testcase classname="tracer" name="no errors"><failure message=""#), "{junit}");
    cluster.tracer(&["trace", "check"]).status(2).stderr_contains("there is nothing to check");
}

#[test]
fn a_baseline_bounds_what_is_slower_than_before() {
    let cluster = with_two_traces();
    let baseline = cluster.file("stats.json");
    let path = baseline.to_str().expect("the test's folder is a text");
    let mut stats = cluster.tracer(&["trace", "stats", "--format", "json"]).success().json();
    fs::write(&baseline, stats.to_string()).expect("the test's folder can be written to");
    cluster.tracer(&["trace", "check", "--baseline", path, "--tolerance", "0%"]).success();

    for row in stats["names"].as_array_mut().expect("names are a list") {
        row["p50_ns"] = json!(row["p50_ns"].as_u64().expect("a number") / 2);
    }
    fs::write(&baseline, stats.to_string()).expect("the test's folder can be written to");
    cluster.tracer(&["trace", "check", "--baseline", path, "--tolerance", "90%"]).status(1);
    cluster.tracer(&["trace", "check", "--baseline", path, "--tolerance", "110%"]).success();

    fs::write(&baseline, "{").expect("the test's folder can be written to");
    cluster.tracer(&["trace", "check", "--baseline", path]).status(1).stderr_contains("cannot read the baseline");
    cluster.tracer(&["trace", "check", "--baseline", path, "--tolerance", "much"]).status(2);
}

#[test]
fn profiles_for_speedscope_nest_and_have_every_span() {
    let cluster = with_two_traces();
    let profile = cluster.tracer(&["trace", "export", "--all", "--format", "speedscope"]).success().json();
    assert_eq!(profile["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = profile["shared"]["frames"].as_array().expect("frames are a list");
    let mut found: HashMap<&str, usize> = HashMap::new();
    for thread in profile["profiles"].as_array().expect("profiles are a list") {
        let mut open = Vec::new();
        let mut at = thread["startValue"].as_u64().expect("a number");
        for event in thread["events"].as_array().expect("events are a list") {
            let (frame, time) = (&event["frame"], event["at"].as_u64().expect("a number"));
            assert!(time >= at, "{thread}");
            at = time;
            match event["type"].as_str() {
                Some("O") => {
                    let index = frame.as_u64().expect("a number") as usize;
                    *found.entry(frames[index]["name"].as_str().expect("a text")).or_default() += 1;
                    open.push(frame);
                }
                _ => assert_eq!(open.pop(), Some(frame), "{thread}"),
            }
        }
        assert!(open.is_empty() && at <= thread["endValue"].as_u64().expect("a number"), "{thread}");
    }
    let mut expected: HashMap<String, usize> = HashMap::new();
    for span in cluster.spans().iter() {
        *expected.entry(span.name().to_owned()).or_default() += 1;
    }
    let found: HashMap<String, usize> = found.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(found, expected);
}

#[test]
fn folded_stacks_are_paths_with_their_own_time() {
    let cluster = with_two_traces();
    let folded = cluster.tracer(&["trace", "export", "--all", "--format", "folded"]).success().stdout_text();
    for line in folded.lines() {
        let (path, micros) = line.rsplit_once(' ').expect(line);
        assert!(path.starts_with("tracer job") && micros.parse::<u64>().is_ok_and(|micros| micros > 0), "{line}");
    }
    assert!(folded.lines().any(|line| line.contains("panics_in_span")), "{folded}");
}
