//! Many tasks: who lists them takes memory for a page of them, and so does the head that is asked.

use std::fs;

use serde_json::{Value, json};

use super::long_logs::{bounded, peak};
use crate::support::Cluster;

/// Ended tasks that a head remembers.
const TASKS: usize = 10_000;
/// The most memory that the head takes to tell of them, in KiB. Those of one answer took three times as much.
const HEAD_KIB: u64 = 6 << 10;

#[test]
fn a_list_of_many_tasks_takes_memory_for_a_page() {
    let cluster = Cluster::untraced();
    let lines: String = (1..=TASKS).map(|line| format!("{line}\n")).collect();
    fs::write(cluster.file("lines"), lines).expect("the folder is ours");
    cluster.submit("wordcount:count", &["--map", "lines", "--map-text"]).success();
    cluster.tracer(&["list", "tasks"]).success().stdout_contains(&format!("and {} older tasks", TASKS - 100));
    let head = u64::from(cluster.head_pid());
    let before = peak(head);
    let table = bounded(&cluster, &["list", "tasks", "--limit", "1000000"]).stdout_text();
    assert_eq!(table.matches(" succeeded ").count(), TASKS);
    assert!(
        table.starts_with("ID ") && table.matches("TARGET").count() == 1 && !table.contains("older"),
        "{table:.500}"
    );
    let list = bounded(&cluster, &["list", "tasks", "--limit", "1000000", "--format", "json"]).json();
    let ids = list["tasks"].as_array().expect("a list").iter().map(|task| task["id"].as_u64().expect("a number"));
    assert!(ids.eq((1..=TASKS as u64).rev()), "each is there once, newest first");
    assert_eq!(rest(&list), (0, 0));
    let newest = bounded(&cluster, &["list", "tasks", "--limit", "2500", "--format", "json"]).json();
    assert_eq!((newest["tasks"].as_array().map(Vec::len), rest(&newest)), (Some(2500), (TASKS - 2500, 0)));
    let chosen = bounded(&cluster, &["list", "tasks", "--limit", "2500", "--format", "json", "name:count"]).json();
    assert_eq!((chosen["tasks"].as_array().map(Vec::len), rest(&chosen)), (Some(2500), (TASKS - 2500, 0)));
    let none = bounded(&cluster, &["list", "tasks", "--limit", "2500", "--format", "json", "state:failed"]).json();
    assert_eq!((&none["tasks"], rest(&none)), (&json!([]), (0, TASKS)));
    let summary = bounded(&cluster, &["list", "tasks", "--summary", "--format", "json"]).json();
    assert_eq!(summary["functions"][0]["succeeded"], json!(TASKS));
    let after = peak(head);
    assert!(after < before + HEAD_KIB, "the head had {before} KiB, and then {after}");
}

/// Returns how many tasks a list leaves out, and how many it has not chosen.
fn rest(list: &Value) -> (usize, usize) {
    let number = |field: &str| list[field].as_u64().expect("a number") as usize;
    (number("left_out"), number("filtered_out"))
}
