//! `tracer submit command --map`: a program for each line.

use std::fs;

use crate::support::{Cluster, HOOK};

fn map<'a>(flags: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["submit", "command", "--map", "lines"], flags, &["--"], command].concat()
}

#[test]
fn a_line_and_its_fields_stand_where_they_are_asked_for() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    fs::write(cluster.file("lines"), "a 1\n\n  \nb  2 x\n").expect("the folder is ours");
    let run = |command: &[&str]| cluster.tracer(&map(&["--keep-order"], command)).success().stdout_text();
    assert_eq!(run(&["printf", "%s\\n", "<{}>"]), "<a 1>\n<b  2 x>\n");
    assert_eq!(run(&["printf", "%s\\n", "{2}-{1}", "{1}"]), "1-a\na\n2-b\nb\n");
    // Without a place it is the last argument, one of them.
    assert_eq!(run(&["printf", "%s|%s\\n", "x"]), "x|a 1\nx|b  2 x\n");
    let few = cluster.tracer(&map(&["--keep-order"], &["echo", "{3}"])).status(1).stdout("x\n");
    few.stderr_contains("line 1 failed: there is no field 3 for `{3}` in it: it has 2\n")
        .stderr_contains("2 tasks: 1 succeeded, 1 failed in ");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn what_two_write_at_a_time_is_not_mixed_and_their_errors_are_theirs() {
    let cluster = Cluster::builder().workers(2).start();
    fs::write(cluster.file("lines"), "a b\nb a\n").expect("the folder is ours");
    // Each writes a half, and the rest when the other one has.
    let script = "printf \"$0 begins, \"; touch $0; while [ ! -e $1 ]; do sleep 0.01; done; echo $0 ends; echo $0 failed >&2; exit 3";
    let run = cluster.tracer(&map(&[], &["sh", "-c", script, "{1}", "{2}"])).status(1);
    let mut lines: Vec<_> = run.stdout_text().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a begins, a ends", "b begins, b ends"]);
    for name in ["a", "b"] {
        let is_there = |line: &str| line.starts_with("(sh pid=") && line.ends_with(&format!(") {name} failed"));
        assert!(run.stderr_text().lines().any(is_there), "{}", run.describe());
    }
    // The same failure twice is one message and a count.
    let text = run.stderr_text();
    assert_eq!(text.matches(" failed: `sh` exited with code 3\n").count(), 1, "{text}");
    assert!(text.contains("1 further line failed as line "), "{text}");
}

#[test]
fn halt_and_a_program_that_is_not_there_stop_it() {
    let cluster = Cluster::builder().workers(1).start();
    let lines: String = (0..3000).map(|line| format!("{line}\n")).collect();
    fs::write(cluster.file("lines"), lines).expect("the folder is ours");
    let run = cluster.tracer(&map(&["--max-in-flight=20"], &["no-such-program"])).status(1).stdout("");
    run.stderr_contains("could not be started: there is no such program in PATH\n").stderr_contains(
        "stopping, because each line would fail for the same reason\n(hint: `--halt never` goes on)\n",
    );
    assert!(cluster.tasks().len() < 100, "{}", cluster.tasks().len());
    let run = cluster.tracer(&map(&["--max-in-flight=4", "--halt=soon,fail=2"], &["sh", "-c", "exit 1"])).status(1);
    assert!(!run.stderr_text().contains("stopping, because"), "{}", run.describe());
    cluster.tracer(&map(&["--stdin"], &["cat"])).status(2).stderr_contains("cannot be used with");
    cluster.tracer(&map(&["--no-wait"], &["cat"])).status(2).stderr_contains("cannot be used with");
}
