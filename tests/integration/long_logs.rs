//! Logs that are long, and lines that are: what reads them takes no memory for what it does not show, and loses nothing of them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{Api, Cluster, HOOK, Run, wait_until};

/// Lines of two bytes in a long log.
const LINES: usize = 100_000;
/// The most memory of its own that a process has which reads it, in KiB. All of its lines at once took as much beside what it needs with nothing to do.
const MEMORY_KIB: u64 = 32 << 10;

fn cluster() -> Cluster {
    Cluster::builder().hook(HOOK).arg("--http").arg("127.0.0.1:0").start()
}

/// Runs a script as a task.
#[track_caller]
fn write(cluster: &Cluster, script: &str) -> Run {
    cluster.tracer(&["submit", "command", "--", "sh", "-c", script]).success()
}

/// Runs `tracer`, which may have so much memory of its own.
#[track_caller]
pub(crate) fn bounded(cluster: &Cluster, arguments: &[&str]) -> Run {
    let tracer = cluster.command(arguments);
    let mut command = cluster.program("sh");
    command.args(["-c", "ulimit -d \"$0\" && exec \"$@\"", &MEMORY_KIB.to_string()]);
    command.arg(tracer.get_program()).args(tracer.get_args());
    cluster.run(command).success()
}

/// Returns the most memory that a process ever had, in KiB.
#[track_caller]
pub(crate) fn peak(pid: u64) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    peak.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn lines(run: &Run) -> Vec<Value> {
    run.stdout_text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[test]
fn readers_of_a_long_log_take_memory_for_what_they_show() {
    let cluster = cluster();
    let api = Api::of(&cluster);
    api.get("/api/v1/logs").status(200);
    let http = cluster.status()["http"]["pid"].as_u64().expect("it has a process");
    let before = peak(http);
    write(&cluster, &format!("yes | head -n {LINES}"));
    let trace = cluster.task(1)["trace_id"].as_str().expect("it is traced").to_owned();
    assert!(bounded(&cluster, &["logs", "1"]).stdout_text() == "y\n".repeat(LINES));
    let newest = lines(&bounded(&cluster, &["logs", "--trace", &trace, "--tail", "3", "--format", "json"]));
    assert_eq!(newest.iter().map(|line| &line["text"]).collect::<Vec<_>>(), ["y"; 3]);
    let shown = bounded(&cluster, &["trace", "show", "last", "--logs", "--format", "json"]);
    let report = shown.json();
    let count = report["logs"].as_array().expect("a list").len();
    assert!((1000..=10_000).contains(&count), "{count}");
    assert_eq!(report["logs_left_out"], json!(LINES - count));
    shown.stderr_contains(&format!("the first {count} entries are shown"));
    let written = api.get(&format!("/api/v1/traces/{trace}/written")).status(200).json();
    assert_eq!(written["entries"].as_array().expect("a list").len(), count);
    assert_eq!(written["left_out"], json!(LINES - count));
    assert_eq!(api.get("/api/v1/logs?limit=10").status(200).json()["left_out"], json!(LINES - 10));
    let after = peak(http);
    assert!(after < before + MEMORY_KIB, "the process of the HTTP API had {before} KiB, and then {after}");
}

#[test]
fn the_first_line_is_shown_before_the_log_has_been_read() {
    const SIZE: u64 = 8 << 20;
    let cluster = Cluster::traced();
    write(&cluster, &format!("yes '{:099}' | head -c {SIZE}", 7));
    let mut command = cluster.command(&["logs", "1"]);
    let mut logs = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be started");
    let mut output = BufReader::with_capacity(256, logs.stdout.take().expect("it is piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it is text");
    let io = fs::read_to_string(format!("/proc/{}/io", logs.id())).expect("it runs");
    let read: u64 =
        io.lines().find_map(|line| line.strip_prefix("rchar: ")).and_then(|it| it.parse().ok()).expect("a sum");
    drop(output);
    logs.wait().expect("it ends");
    assert_eq!(line, format!("{:099}\n", 7));
    assert!(read < SIZE / 2, "{read} bytes were read before the first line was shown");
}

#[test]
fn what_is_written_in_pieces_is_whole_everywhere() {
    let cluster = cluster();
    let (begun, rest) = (cluster.file("begun"), cluster.file("rest"));
    // `é` in two pieces, and a line that is longer than what is put together.
    let script = format!(
        "printf 'ab \\303'; : > {}; until test -e {}; do sleep 0.02; done; printf '\\251\\n'; yes é | head -n 100000 | tr -d '\\n'; echo",
        begun.display(),
        rest.display()
    );
    let running = cluster.tracer_in_background(&["submit", "command", "--no-wait", "--", "sh", "-c", &script]);
    running.wait().success();
    cluster.wait_for_file(&begun);
    wait_until("the first piece is in the log", || {
        cluster.tracer(&["logs", "1"]).stdout_text().starts_with("ab ").then_some(())
    });
    fs::write(&rest, "").expect("the folder is ours");
    cluster.tracer(&["wait", "1"]).success();
    let expected = format!("ab é\n{}\n", "é".repeat(100_000));
    wait_until("all is in the log", || {
        (cluster.tracer(&["logs", "1"]).success().stdout_text() == expected).then_some(())
    });
    let joined = |entries: &[Value], text: &str| {
        let end = |entry: &Value| if entry["is_partial"] == json!(true) { "" } else { "\n" };
        entries
            .iter()
            .map(|entry| format!("{}{}", entry[text].as_str().expect("a text"), end(entry)))
            .collect::<String>()
    };
    let in_json = lines(&cluster.tracer(&["logs", "1", "--format", "json"]).success());
    assert!(joined(&in_json, "text") == expected && in_json.len() == 5, "{}", in_json.len());
    let trace = cluster.task(1)["trace_id"].as_str().expect("it is traced").to_owned();
    let api = Api::of(&cluster);
    for target in ["/api/v1/logs".to_owned(), format!("/api/v1/traces/{trace}/written")] {
        let answer = api.get(&target).status(200).json();
        assert!(joined(answer["entries"].as_array().expect("a list"), "text") == expected, "{target}");
    }
    let shown = cluster.tracer(&["trace", "show", "last", "--logs", "--format", "json"]).success().json();
    let bodies: String =
        shown["logs"].as_array().expect("a list").iter().filter_map(|record| record["body"].as_str()).collect();
    assert!(bodies == expected.replace('\n', ""));
}

#[test]
fn the_newest_lines_and_those_of_a_time_are_shown() {
    let cluster = Cluster::traced();
    write(&cluster, "seq 1000");
    cluster.tracer(&["logs", "1", "--tail", "3"]).success().stdout("998\n999\n1000\n");
    cluster.tracer(&["logs", "last", "-n", "2", "--follow", "--grep", "7"]).success().stdout("987\n997\n");
    let all = cluster.tracer(&["logs", "1", "--since", "1h"]).success().stdout_text();
    assert_eq!(all.lines().count(), 1000);
    for nothing in [&["--until", "1h"][..], &["--since", "2100-01-01T00:00:00Z"], &["--tail", "0"]] {
        cluster.tracer(&[&["logs", "1"][..], nothing].concat()).success().stdout("").stderr("");
    }
    cluster.tracer(&["logs", "1", "--since", "soon"]).status(2).stderr_contains("expected a duration before now");
}
