//! `tracer prune`: what is old and not in use goes, and nothing else.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::support::Cluster;

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
fn what_a_killed_head_left_is_not_removed() {
    let cluster = Cluster::traced();
    cluster.submit("demo:my_function", &[]).success();
    cluster.kill_head();
    cluster.assert_nothing_runs();
    let kept = prune(&cluster, &["--max-size", "1B"]);
    assert_eq!((&kept["sessions"]["removed"], &kept["sessions"]["in_use"]), (&json!(0), &json!(1)), "{kept}");
}

#[test]
fn a_limit_has_to_be_given() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["prune"]).status(2);
    cluster.tracer(&["prune", "--older-than", "soon"]).status(2).stderr_contains("days such as `7d`");
    cluster.tracer(&["prune", "--older-than", "1d"]).success().stdout_contains("removed 0 span files");
}
