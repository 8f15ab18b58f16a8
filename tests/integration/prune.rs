//! `tracer prune`: what is old and not in use goes, and nothing else.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::{Cluster, Run, wait_until};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Makes a file look as if it had been written so long ago.
fn age(path: &Path, age: Duration) {
    let file = File::open(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    file.set_modified(SystemTime::now() - age).expect("the file is ours");
}

#[track_caller]
fn prune(cluster: &Cluster, arguments: &[&str]) -> Value {
    cluster.tracer(&[&["prune", "--format", "json"], arguments].concat()).success().json()
}

fn sessions(cluster: &Cluster) -> usize {
    fs::read_dir(cluster.temp_dir().join("sessions")).expect("there is a place").count()
}

#[test]
fn old_span_files_and_sessions_go_and_what_is_in_use_stays() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
    cluster.start_head(&[]).success();
    cluster.submit("demo:my_function", &[]).success();
    let spans = cluster.spans_dir();
    let ended: Vec<_> = fs::read_dir(&spans).expect("it is there").flatten().map(|entry| entry.path()).collect();
    // The worker of the second head lives; nothing else does.
    assert_eq!(ended.len(), 4, "{ended:?}");
    for foreign in ["notes.json", "4711.json.gz", "readme.txt"] {
        fs::write(spans.join(foreign), "mine").expect("the folder is ours");
        age(&spans.join(foreign), 100 * DAY);
    }
    std::os::unix::fs::symlink(spans.join("notes.json"), spans.join("4711.json")).expect("the folder is ours");
    ended.iter().for_each(|path| age(path, 8 * DAY));

    // Nothing in the sessions is as old.
    let dry = prune(&cluster, &["--older-than", "7d", "--dry-run"]);
    assert_eq!(
        (&dry["dry_run"], &dry["span_files"]["removed"], &dry["sessions"]["removed"]),
        (&json!(true), &json!(3), &json!(0))
    );
    assert_eq!((&dry["span_files"]["in_use"], &dry["sessions"]["in_use"]), (&json!(1), &json!(1)), "{dry}");
    assert_eq!(fs::read_dir(&spans).expect("it is there").count(), 8);
    let done = prune(&cluster, &["--older-than", "7d"]);
    assert_eq!(done["span_files"], dry["span_files"]);
    let worker = spans.join(format!("{}.json", cluster.worker_pids()[0]));
    let mut left: Vec<_> = fs::read_dir(&spans).expect("it is there").flatten().map(|entry| entry.path()).collect();
    left.sort();
    let mut expected = ["4711.json", "4711.json.gz", "notes.json", "readme.txt"].map(|name| spans.join(name)).to_vec();
    expected.push(worker);
    expected.sort();
    assert_eq!(left, expected);

    // By size: the session of the head that runs stays, and goes on.
    assert_eq!(sessions(&cluster), 2);
    let text = cluster.tracer(&["prune", "--max-size", "1B"]).success().stdout_text();
    assert!(text.contains("removed 1 session (") && text.contains("kept 1 ("), "{text}");
    assert_eq!(sessions(&cluster), 1);
    cluster.submit("demo:my_function", &[]).success();

    // Without a head.
    cluster.stop().success();
    let all = prune(&cluster, &["--max-size", "1B"]);
    assert_eq!((&all["span_files"]["kept"], &all["sessions"]["kept"]), (&json!(0), &json!(0)), "{all}");
    assert_eq!(sessions(&cluster), 0);
    cluster.start_head(&[]).success();
    cluster.stop().success();
}

#[test]
fn old_undelivered_spans_and_put_aside_journals_go_with_and_without_a_head() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    cluster.stop().success();
    let session = fs::read_dir(cluster.temp_dir().join("sessions")).expect("there is one").flatten().next();
    let handover = session.expect("there is one").path().join("handover");
    let put = |folder: &Path, name: &str, is_old: bool| {
        fs::write(folder.join(name), "spans").expect("the folder is ours");
        age(&folder.join(name), if is_old { 8 * DAY } else { 6 * DAY });
    };
    // Spans of hooks that nobody knows: a head does not deliver them.
    put(&handover, "worker-1.2.00000001.7.otlp", true);
    put(&handover, "worker-2.2.00000001.5.otlp", false);
    put(&handover.join("foreign"), "worker-3.2.00000001.3.otlp", true);
    let place = cluster.temp_dir();
    put(&place, "tasks.journal.old-20251124T160000.123Z", true);
    put(&place, "tasks.journal.damaged-20251124T160000.123Z", true);
    put(&place, "tasks.journal.damaged-20251125T160000.123Z", false);
    let journals = || {
        let names = fs::read_dir(&place).expect("it is there").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("tasks.journal")).count()
    };

    let older = ["--older-than", "7d"];
    let dry = prune(&cluster, &[&older[..], &["--dry-run"]].concat());
    assert_eq!((&dry["undelivered"]["removed"], &dry["undelivered"]["kept"]), (&json!(2), &json!(1)), "{dry}");
    assert_eq!((&dry["undelivered_spans_removed"], &dry["undelivered"]["removed_bytes"]), (&json!(10), &json!(10)));
    assert_eq!((&dry["journals"]["removed"], &dry["journals"]["kept"]), (&json!(2), &json!(1)), "{dry}");
    assert_eq!(journals(), 4);
    // A head takes them over, and is told what went.
    cluster.start_head(&[]).success();
    let waiting = || cluster.status()["spans"]["waiting_for_other_hooks"].as_u64();
    assert_eq!(waiting(), Some(15));
    let done = prune(&cluster, &older);
    assert_eq!(done["undelivered"], dry["undelivered"]);
    assert_eq!((&done["undelivered_spans_removed"], journals()), (&json!(10), 2), "{done}");
    wait_until("the head knows", || (waiting() == Some(5)).then_some(()));
    cluster.stop().success();
    // By size, without a head: journals stay.
    let text = cluster.tracer(&["prune", "--max-size", "1B"]).success().stdout_text();
    assert!(text.contains("removed 1 undelivered batch (5 B)"), "{text}");
    assert!(text.contains("removed 0 put-aside journals (0 B), kept 1 (5 B)"), "{text}");
    cluster.tracer(&["hooks", "undelivered"]).success().stdout("no undelivered spans\n");
    assert_eq!(journals(), 2);
}

#[test]
fn what_a_killed_head_left_is_not_removed() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    cluster.kill_head();
    cluster.assert_nothing_runs();
    let kept = prune(&cluster, &["--max-size", "1B"]);
    assert_eq!((&kept["sessions"]["removed"], &kept["sessions"]["in_use"]), (&json!(0), &json!(1)), "{kept}");
}

/// Returns the ids of the tasks that are remembered, the oldest first.
fn remembered(cluster: &Cluster) -> Vec<u64> {
    let mut ids: Vec<_> = cluster.tasks().iter().map(|task| task["id"].as_u64().expect("an id")).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn ended_tasks_are_forgotten_by_their_number_and_stay_forgotten_under_the_next_head() {
    let cluster = Cluster::builder().workers(1).start();
    let with_key =
        || cluster.tracer(&["submit", "task", "demo:my_function", "--idempotency-key", "nightly", "--no-wait"]);
    let id = |run: &Run| run.stdout_text().trim().to_owned();
    let first = with_key().success();
    cluster.tracer(&["wait", "1"]).success();
    for _ in 0..4 {
        cluster.submit("demo:my_function", &[]).success();
    }
    let gate = cluster.file("gate");
    let waits = ["sh", "-c", "while [ ! -e \"$0\" ]; do sleep 0.01; done", gate.to_str().expect("a plain path")];
    cluster.tracer(&[&["submit", "command", "--no-wait", "--"], &waits[..]].concat()).success();
    let dry = prune(&cluster, &["--max-tasks", "2", "--dry-run"]);
    assert_eq!((&dry["tasks"]["removed"], &dry["tasks"]["kept"]), (&json!(3), &json!(2)), "{dry}");
    assert_eq!(remembered(&cluster), [1, 2, 3, 4, 5, 6]);
    assert_eq!(id(&with_key().success()), id(&first), "the key is known");
    let done = prune(&cluster, &["--max-tasks", "2"]);
    assert_eq!(done["tasks"], dry["tasks"]);
    assert_eq!(remembered(&cluster), [4, 5, 6], "what runs stays");
    cluster.tracer(&["get", "1"]).status(1);
    assert_eq!(id(&with_key().success()), "7", "and the key is free");

    // The head dies at once: what is pruned stays so, and what had not ended goes on.
    cluster.kill_head();
    cluster.assert_nothing_runs();
    fs::write(&gate, "").expect("the folder is ours");
    let without = prune(&cluster, &["--max-tasks", "1", "--dry-run"]);
    assert_eq!((&without["tasks"]["removed"], &without["tasks"]["kept"]), (&json!(1), &json!(1)), "{without}");
    let text = cluster.tracer(&["prune", "--max-tasks", "1"]).success().stdout_text();
    assert!(text.contains("removed 1 ended task ("), "{text}");
    cluster.start_head(&[]).success();
    cluster.tracer(&["wait", "6", "7"]).success();
    assert_eq!(remembered(&cluster), [5, 6, 7]);
    cluster.stop().success();
    // After a stop there is a journal too.
    let all = prune(&cluster, &["--older-than", "0s"]);
    assert_eq!((&all["tasks"]["removed"], &all["tasks"]["kept"]), (&json!(3), &json!(0)), "{all}");
    cluster.start_head(&[]).success();
    assert_eq!(remembered(&cluster), [0_u64; 0]);
    let next = cluster.tracer(&["submit", "task", "demo:my_function", "--no-wait"]).success();
    assert_eq!(id(&next), "8", "no id is given out twice");
    cluster.stop().success();
}

#[test]
fn a_limit_has_to_be_given() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["prune"]).status(2);
    cluster
        .tracer(&["prune", "--older-than", "soon"])
        .status(2)
        .stderr_contains("an age with its unit, such as `30m`, `12h` or `7d`");
    cluster.tracer(&["prune", "--older-than", "1d"]).success().stdout_contains("removed 0 span files");
}
