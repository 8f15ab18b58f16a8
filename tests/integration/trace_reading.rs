//! Reading traces: lists with filters and figures for each name.

use serde_json::{Value, json};

use crate::support::Cluster;

/// What `tracer trace …` says in JSON.
#[track_caller]
fn trace_json(cluster: &Cluster, arguments: &[&str]) -> Value {
    cluster.tracer(&[&["trace"], arguments, &["--format", "json"]].concat()).success().json()
}

/// A cluster that has run a task that succeeds and one that panics in a span of its own.
fn with_two_traces() -> Cluster {
    let cluster = Cluster::traced();
    cluster.submit("wordcount:frequencies", &["\"a b a\""]).success();
    cluster.submit("misbehaving_tasks:panics_in_span", &[]).status(1);
    cluster
}

#[test]
fn a_list_is_filtered_and_says_what_it_left_out() {
    let cluster = with_two_traces();
    let roots = |arguments: &[&str]| {
        let list = trace_json(&cluster, &[&["list"], arguments].concat());
        let traces = list["traces"].as_array().expect("traces are a list");
        let ids: Vec<Value> = traces.iter().map(|trace| trace["trace_id"].clone()).collect();
        (ids, list["left_out"].clone(), list["filtered_out"].clone())
    };
    let (all, left_out, filtered_out) = roots(&[]);
    assert_eq!((all.len(), left_out, filtered_out), (2, json!(0), json!(0)));
    let (failed, good) = (vec![all[0].clone()], vec![all[1].clone()]);
    assert_eq!(roots(&["--limit", "1"]), (failed.clone(), json!(1), json!(0)));
    assert_eq!(roots(&["--errors"]), (failed.clone(), json!(0), json!(1)));
    assert_eq!(roots(&["--name", "Frequencies"]), (good, json!(0), json!(1)));
    assert_eq!(roots(&["--name", "misbehaving", "--errors"]), (failed, json!(0), json!(1)));
    assert_eq!(roots(&["--min-duration", "1h"]), (vec![], json!(0), json!(2)));
    assert_eq!(roots(&["--min-duration", "0"]).0.len(), 2);
    cluster.tracer(&["trace", "list", "--errors"]).success().stdout_contains("1 trace does not match");
    cluster
        .tracer(&["trace", "list", "--min-duration", "soon"])
        .status(2)
        .stderr_contains("expected a duration such as `500ms`, `10s` or `2m`, found `soon`");
}

#[test]
fn figures_for_each_name_are_those_of_the_span_files() {
    let cluster = with_two_traces();
    let stats = trace_json(&cluster, &["stats"]);
    let spans = cluster.spans();
    let names = stats["names"].as_array().expect("names are a list");
    assert_eq!(stats["spans"], spans.len());
    assert_eq!(stats["left_out"], 0);
    for row in names {
        let name = row["name"].as_str().expect("a name is a text");
        let found = spans.all_named(name);
        let errors = found.iter().filter(|span| span.status_code() == "ERROR").count();
        assert_eq!((&row["count"], &row["errors"]), (&json!(found.len()), &json!(errors)), "{row}");
        assert!(row["self_ns"].as_u64() <= row["max_ns"].as_u64().map(|max| max * found.len() as u64), "{row}");
        assert!(row["p50_ns"].as_u64() <= row["p95_ns"].as_u64(), "{row}");
    }
    let own: Vec<_> = names.iter().map(|row| row["self_ns"].as_u64()).collect();
    assert!(own.is_sorted_by(|left, right| left >= right), "{own:?}");
    let text = cluster.tracer(&["trace", "stats", "--limit", "2"]).success().stdout_text();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.ends_with(&format!("{} further names not shown\n", names.len() - 2)), "{text}");
}
