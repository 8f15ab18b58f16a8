//! Spans that a killed head left: they are completed for whoever reads traces, before the next head comes and does the rest.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Background, Cluster, HOOK, Spans, is_alive, kill, skip, wait_until};

const ATTEMPT: &str = "misbehaving_tasks.waits_in_nested_spans tracer.remote_worker";
const DIED: &str = "the head of its session died, and it with it";

/// Starts a head with two workers, of which one runs a task inside of nested spans, and the submission that waits for it.
#[track_caller]
fn with_a_task_that_runs() -> (Cluster, Background) {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let waiting = submit(&cluster);
    (cluster, waiting)
}

#[track_caller]
fn submit(cluster: &Cluster) -> Background {
    let [started, released] = ["started", "released"].map(|name| json!(cluster.file(name)).to_string());
    let waiting = cluster.submit_in_background("misbehaving_tasks:waits_in_nested_spans", &[&started, &released]);
    cluster.wait_for_file(&cluster.file("started"));
    // The submission may not have been told yet that its task is accepted.
    wait_until("the span of the submission has ended", || {
        let open = read(cluster, &["open"])["traces"][0]["spans"].as_array().cloned().unwrap_or_default();
        (!open.iter().any(|span| span["kind"] == "PRODUCER")).then_some(())
    });
    waiting
}

/// Kills everything at once: none sees the other die.
#[track_caller]
pub(crate) fn kill_all(cluster: &Cluster) {
    let processes: Vec<_> = cluster.processes().iter().map(|process| process.pid).collect();
    processes.iter().for_each(|&pid| kill(pid, Signal::STOP));
    processes.iter().for_each(|&pid| kill(pid, Signal::KILL));
    wait_until("all are gone", || processes.iter().all(|&pid| !is_alive(pid)).then_some(()));
}

/// Six spans, whole, and those that were open are closed.
#[track_caller]
fn assert_completed(spans: &Spans, by: &str) {
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 6, "{}", spans.describe());
    let closed = spans.iter().filter(|span| span.status_code() == "ERROR").collect::<Vec<_>>();
    let mut names: Vec<_> = closed.iter().map(|span| span.name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["inner", ATTEMPT, "outer", "tracer job"], "{}", spans.describe());
    for span in closed {
        assert_eq!(span.status_description(), DIED, "{}", span.value);
        assert_eq!(*span.attribute("error.type"), "lost", "{}", span.value);
        assert_eq!(*span.attribute("tracer.completed_by"), by, "{}", span.value);
        assert!(span.value["end_time"].is_string(), "{}", span.value);
    }
    assert_eq!(*spans.named("outer").attribute("fixture.mark"), 7);
    assert_eq!(spans.named("inner").events("waiting").len(), 1);
    assert_eq!(spans.named("ended before").status_code(), "UNSET");
}

#[track_caller]
fn read(cluster: &Cluster, arguments: &[&str]) -> Value {
    cluster.tracer(&[&["trace"], arguments, &["--format", "json"]].concat()).success().stderr("").json()
}

/// The next head takes the task up as after any lost worker, and nothing is completed twice.
fn the_next_head_goes_on_after(readers: &[&[&str]]) {
    let (cluster, waiting) = with_a_task_that_runs();
    kill_all(&cluster);
    drop(waiting.wait());
    for (number, arguments) in readers.iter().enumerate() {
        read(&cluster, arguments);
        assert_completed(&cluster.spans(), "reader");
        assert_eq!(cluster.spans().len(), 6, "reader {number}");
    }
    let first = cluster.spans().iter().find(|span| span.name() == ATTEMPT).map(|span| span.span_id().to_owned());
    fs::remove_file(cluster.file("started")).expect("the first attempt has written it");
    let started = cluster.start_head(&[]).success();
    let recovered = started.stderr_text().contains("spans that a dead head's processes left");
    assert_eq!(recovered, readers.is_empty(), "{started:?}");
    cluster.wait_for_file(&cluster.file("started"));
    if readers.is_empty() {
        assert_completed(&cluster.spans(), "head");
    }
    fs::write(cluster.file("released"), "").expect("the test's folder can be written to");
    let task = cluster.wait_for_task(1);
    assert_eq!(task["state"], "succeeded", "{task}");
    let attempts = task["attempts"].as_array().expect("attempts are a list");
    assert_eq!((attempts.len(), &attempts[0]["failure"]["reason"]), (2, &json!("head_lost")), "{task}");
    let spans = cluster.wait_for_spans("the second attempt is written", |spans| spans.all_named(ATTEMPT).len() == 2);
    spans.assert_whole(&[]);
    assert_eq!(spans.len(), 6 + 4, "{}", spans.describe());
    let second = spans.all_named(ATTEMPT).into_iter().find(|span| *span.attribute("tracer.attempt") == 2);
    let second = second.expect("there is a second attempt");
    let first = first.unwrap_or_else(|| {
        let first = spans.all_named(ATTEMPT).into_iter().find(|span| *span.attribute("tracer.attempt") == 1);
        first.expect("there is a first attempt").span_id().to_owned()
    });
    let links = second.value["links"].as_array().expect("links are a list");
    assert_eq!(links.len(), 1, "{}", second.value);
    assert_eq!(links[0]["context"]["span_id"], first, "{}", second.value);
    let session = cluster.temp_dir().join("sessions");
    let spools = fs::read_dir(session).expect("there are sessions").flatten();
    let left = spools.filter(|session| session.path() != cluster.session_dir());
    let left: Vec<_> = left.filter_map(|session| fs::read_dir(session.path().join("spool")).ok()).flatten().collect();
    assert!(left.is_empty(), "the next head needs no spool of the dead: {left:?}");
}

#[test]
fn the_next_head_goes_on_after_a_reader_as_without_one() {
    the_next_head_goes_on_after(&[]);
    the_next_head_goes_on_after(&[&["show", "last"], &["list"], &["open"], &["stats"]]);
}

#[test]
fn a_reader_shows_what_a_dead_head_and_its_processes_left() {
    let (cluster, waiting) = with_a_task_that_runs();
    kill_all(&cluster);
    drop(waiting.wait());
    let shown = read(&cluster, &["show", "last"]);
    assert_eq!((shown["spans"].as_array().map(Vec::len), &shown["running"]), (Some(6), &json!(0)), "{shown}");
    let list = read(&cluster, &["list"]);
    assert_eq!((&list["traces"][0]["spans"], &list["traces"][0]["errors"]), (&json!(6), &json!(4)), "{list}");
    assert_eq!(read(&cluster, &["open"])["open"], 0);
    assert_completed(&cluster.spans(), "reader");
}

#[test]
fn readers_and_a_head_that_come_together_write_no_span_twice_and_lose_none() {
    for round in 0..4 {
        let (cluster, waiting) = with_a_task_that_runs();
        kill_all(&cluster);
        drop(waiting.wait());
        let list = || cluster.tracer_in_background(&["trace", "list", "--format", "json"]);
        let mut readers = vec![list(), list()];
        let start = (round % 2 == 0).then(|| cluster.spawn(cluster.start_command(&[])));
        readers.push(list());
        let listed: Vec<Value> = readers.into_iter().map(|reader| reader.wait().success().stderr("").json()).collect();
        if let Some(start) = start {
            start.wait().success();
        } else {
            listed.iter().for_each(|list| assert_eq!(list["traces"][0]["spans"], 6, "{list}"));
        }
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        for name in [ATTEMPT, "inner", "outer", "tracer job", "ended before"] {
            assert_eq!(spans.all_named(name).len(), 1, "{}", spans.describe());
        }
    }
}

/// A submission that stands still has not noticed that its head is gone, and ends its spans itself.
#[test]
fn a_reader_leaves_alone_what_lives_on_without_its_head() {
    let (cluster, waiting) = with_a_task_that_runs();
    waiting.signal(Signal::STOP);
    cluster.kill_head();
    wait_until("only the submission is left", || (cluster.processes().len() == 1).then_some(()));
    let open = read(&cluster, &["open"]);
    assert_eq!((&open["open"], &open["traces"][0]["spans"][0]["name"]), (&json!(1), &json!("tracer job")), "{open}");
    let shown = read(&cluster, &["show", "last"]);
    assert_eq!(shown["running"], 1, "{shown}");
    assert_eq!(cluster.spans().all_named("tracer job").len(), 0);
    assert_eq!(*cluster.spans().named("inner").attribute("error.type"), "lost");
    waiting.signal(Signal::CONT);
    waiting.wait().status(1).stderr_contains("the connection to the head broke");
    assert_eq!(read(&cluster, &["open"])["open"], 0);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(*spans.named("tracer job").attribute("error.type"), "submission");
}

#[test]
fn a_place_that_cannot_be_written_to_is_read_as_far_as_it_goes() {
    let (cluster, waiting) = with_a_task_that_runs();
    kill_all(&cluster);
    drop(waiting.wait());
    let lock = cluster.temp_dir().join("leavings.lock");
    fs::remove_file(&lock).expect("the head has made it");
    fs::create_dir(&lock).expect("the test's folder can be written to");
    let list = cluster.tracer(&["trace", "list", "--format", "json"]);
    let list = list.success().stderr_contains("warning: spans of a process that died are still in `").json();
    assert_eq!(list["traces"].as_array().map(Vec::len), Some(0), "{list}");
    fs::remove_dir(&lock).expect("it is empty");
    assert_eq!(read(&cluster, &["list"])["traces"][0]["spans"], 6);
    // With nothing left, nothing is said.
    fs::remove_file(&lock).expect("a reader has made it");
    fs::create_dir(&lock).expect("the test's folder can be written to");
    assert_eq!(read(&cluster, &["list"])["traces"][0]["spans"], 6);
}

/// Nothing is written as root in the place of somebody else: it would be in the way of that one's next head.
#[test]
fn in_the_place_of_somebody_else_nothing_is_written() {
    if !rustix::process::geteuid().is_root() {
        return skip("root", "only root can give a folder to somebody else");
    }
    let (cluster, waiting) = with_a_task_that_runs();
    kill_all(&cluster);
    drop(waiting.wait());
    let lock = cluster.temp_dir().join("leavings.lock");
    fs::remove_file(&lock).expect("the head has made it");
    std::os::unix::fs::chown(cluster.temp_dir(), Some(65534), None).expect("root may do that");
    let list = cluster.tracer(&["trace", "list", "--format", "json"]);
    let list =
        list.success().stderr_contains("the place belongs to user 65534, but this process runs as user 0").json();
    assert_eq!(list["traces"].as_array().map(Vec::len), Some(0), "{list}");
    assert!(!lock.exists());
    std::os::unix::fs::chown(cluster.temp_dir(), Some(0), None).expect("root may do that");
    assert_eq!(read(&cluster, &["list"])["traces"][0]["spans"], 6);
}
