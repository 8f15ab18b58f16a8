//! More spans than the disk takes, or the spool holds: none is lost while the file can be written, and what would be lost is told as that.
//!
//! `TRACER_STORM_ROUNDS` says how many times each thread makes two spans.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Cluster, HOOK, kill, wait_until};

/// Returns the spans in the files of a folder: their ids, and those of their parents. Reads less carefully than `Spans`, and faster.
fn ids_in(folder: &Path, keys: (&str, &str)) -> Vec<(String, Option<String>)> {
    let mut ids = Vec::new();
    for entry in fs::read_dir(folder).expect("there are span files").flatten() {
        let text = fs::read_to_string(entry.path()).expect("a span file is UTF-8");
        assert!(text.ends_with('\n'), "{} has a torn line", entry.path().display());
        ids.extend(text.lines().map(|line| {
            let value = |key: &str| {
                let (_, rest) = line.split_once(key)?;
                let digits = rest.trim_start_matches([' ', '"']).trim_start_matches("0x");
                Some(digits.chars().take_while(char::is_ascii_hexdigit).collect()).filter(|id: &String| id.len() == 16)
            };
            (value(keys.0).unwrap_or_else(|| panic!("a span has no id: {line}")), value(keys.1))
        }));
    }
    ids
}

/// Threads that end spans as fast as they can, with the span files in a folder.
fn a_storm(hook: &str, keys: (&str, &str), folder: Option<PathBuf>) {
    const THREADS: usize = 16;
    // Each makes two spans.
    let rounds = std::env::var("TRACER_STORM_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2_500);
    let mut builder = Cluster::builder().hook(hook).env("TRACER_SPANS_MAX_BYTES", "1000000000000");
    if let Some(folder) = &folder {
        builder = builder.env("TRACER_SPANS_DIR", folder);
    }
    let cluster = builder.start();
    let folder = folder.unwrap_or_else(|| cluster.spans_dir());
    cluster.submit("traced_tasks:storm", &[&THREADS.to_string(), &usize::to_string(&rounds)]).success();
    let ids = ids_in(&folder, keys);
    // With the job, the submission and the attempt.
    assert_eq!(ids.len(), THREADS * rounds * 2 + 3);
    let known: HashMap<&str, ()> = ids.iter().map(|(id, _)| (id.as_str(), ())).collect();
    assert_eq!(known.len(), ids.len(), "a span is there twice");
    let orphans = ids.iter().filter_map(|(_, parent)| parent.as_deref()).filter(|parent| !known.contains_key(parent));
    assert_eq!(orphans.count(), 0);
    let counts = cluster.status()["spans"].clone();
    assert_eq!((&counts["lost"], &counts["at_risk"]), (&json!(0), &json!(0)), "{counts}");
    cluster.stop().success();
}

#[test]
fn threads_that_end_spans_faster_than_the_disk_takes_them_lose_none() {
    a_storm(HOOK, ("\"span_id\":", "\"parent_id\":"), None);
}

#[test]
fn threads_that_end_spans_faster_than_they_can_be_written_as_otlp_lose_none() {
    // In memory, if there is such a place.
    let shared = Path::new("/dev/shm");
    let folder = tempfile::Builder::new().prefix("tracer-storm-").tempdir_in(shared).ok();
    let spans = folder.as_ref().map(|folder| folder.path().join("spans"));
    a_storm("otlp_file:setup_tracing", ("\"spanId\":", "\"parentSpanId\":"), spans);
}

/// More than the spool has slots.
const OPEN: usize = 5_000;
/// With the attempt's own span.
const WITHOUT_SLOT: usize = OPEN + 1 - tracer::spool::SLOT_COUNT;

/// Submits a task that has [`OPEN`] spans open, and waits until they are.
fn open_many(cluster: &Cluster, number: u32) {
    let text = |name: &str| json!(cluster.file(&format!("{name} {number}"))).to_string();
    let arguments = [&OPEN.to_string(), &text("opened"), &text("go"), "--no-wait", "--crash-limit=0"];
    cluster.submit("traced_tasks:opens", &arguments).success();
    cluster.wait_for_file(&cluster.file(&format!("opened {number}")));
}

fn count_of(cluster: &Cluster, name: &str) -> Value {
    cluster.status()["spans"][name].clone()
}

#[test]
fn spans_that_found_no_slot_are_at_risk_while_they_are_open_and_lost_if_their_process_dies() {
    let cluster = Cluster::traced();
    open_many(&cluster, 1);
    assert_eq!(count_of(&cluster, "at_risk"), WITHOUT_SLOT);
    cluster.tracer(&["status"]).success().stdout_contains("at risk  905 spans not written yet, and in no spool");
    assert_eq!(count_of(&cluster, "lost"), 0);
    fs::write(cluster.file("go 1"), "").expect("the folder is ours");
    assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
    assert_eq!((count_of(&cluster, "at_risk"), count_of(&cluster, "lost")), (json!(0), json!(0)));
    assert_eq!(cluster.spans().all_named("one of many").len(), OPEN);

    open_many(&cluster, 2);
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    kill(worker, Signal::KILL);
    cluster.wait_for_task(2);
    let lost = wait_until("what died with it is counted", || {
        Some(count_of(&cluster, "lost_with_process")).filter(|lost| *lost != 0)
    });
    let missing = 2 * OPEN - cluster.spans().all_named("one of many").len();
    assert_eq!((lost, missing), (json!(WITHOUT_SLOT), WITHOUT_SLOT));
    assert_eq!((count_of(&cluster, "at_risk"), count_of(&cluster, "lost")), (json!(0), json!(WITHOUT_SLOT)));
    cluster.stop().success();
}
