//! `tracer start` and `tracer stop`: what is said, when they return, and what is left.

use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Background, Cluster, HOOK, is_alive, kill, module_folder, wait_until};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Submits a task that runs until the returned file exists, and waits until it runs.
#[track_caller]
fn submit_waiting(cluster: &Cluster, task: &str) -> (Background, PathBuf) {
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let arguments = [json!(started).to_string(), json!(released).to_string()];
    let submission = cluster.submit_in_background(task, &[&*arguments[0], &*arguments[1], "--crash-limit=0"]);
    cluster.wait_for_file(&started);
    (submission, released)
}

/// Returns the commands that `tracer start` says come next.
#[track_caller]
fn next_commands(banner: &str) -> Vec<String> {
    let (_, next) = banner.split_once("\nNext\n").expect("the banner says what is next");
    let command = |line: &str| line.trim().split_once("  ").map(|(_, command)| command.trim().to_owned());
    next.lines().filter_map(command).collect()
}

/// Returns a shell that knows nothing of the cluster but where `tracer` is.
fn shell(cluster: &Cluster, script: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = cluster.program("sh");
    shell.args(["-c", script]).env("PATH", format!("{}:{path}", module_folder().display()));
    shell.env_remove("TRACER_TEMP_DIR").env_remove("TRACER_SPANS_DIR");
    shell
}

#[test]
fn a_head_goes_to_the_background_and_says_what_is_running_and_what_is_next() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).arg("--queue-memory=1GiB").build();
    let start = cluster.start_head(&[]).success().stdout("").stderr(&format!(
        "tracer {VERSION} is running: head (pid <pid>) and 2 workers\n\
         \n  session  <folder>/place/sessions/<session>\
         \n  tracing  local_tmp_tracing:setup_tracing, from <bin>/liblocal_tmp_tracing.so\
         \n           spans to `<folder>/spans/<pid>.json`\
         \n           all new traces are sampled, unless the hook decides\
         \n  queue    takes up to 1 GiB of memory, as --queue-memory says\
         \n\nNext\
         \n  submit a task  tracer submit task demo:my_function\
         \n  see its trace  tracer trace show last\
         \n  see its state  tracer status\
         \n  stop it        tracer stop\n"
    ));
    let head_pid = cluster.head_pid();
    assert!(start.stderr_text().contains(&format!("head (pid {head_pid})")), "{start:?}");
    let status = cluster.status();
    assert_eq!((&status["workers"]["idle"], &status["workers"]["starting"]), (&json!(2), &json!(0)), "all are ready");
    cluster.stop().success().stdout("").stderr("stopped the head (pid <pid>) and 2 workers\n");
    assert!(!is_alive(head_pid));
    assert!(cluster.processes().is_empty(), "nothing is left when stop returns: {:?}", cluster.processes());
}

#[test]
fn every_command_that_start_prints_works_as_it_is_printed() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let place = cluster.file("it's a place");
    let start = cluster.run(cluster.start_command(&["--temp-dir", place.to_str().expect("UTF-8")])).success();
    let commands = next_commands(&start.stderr_text());
    assert_eq!(commands.len(), 4, "{start:?}");
    let runs: Vec<_> = commands.iter().map(|command| cluster.run(shell(&cluster, command)).success()).collect();
    assert_eq!(runs[0].stdout_text(), "1\n");
    assert!(runs[1].stdout_text().contains("─ demo.my_function tracer.r"), "{:?}", runs[1]);
    assert!(runs[2].stdout_text().starts_with("head "), "{:?}", runs[2]);
    assert!(runs[3].stderr_text().starts_with("stopped the head"), "{:?}", runs[3]);
}

#[test]
fn without_a_hook_start_says_how_to_turn_tracing_on() {
    let cluster = Cluster::builder().build();
    let start = cluster
        .start_head(&[])
        .success()
        .stderr_contains("\n  tracing  off (--tracing-startup-hook=local_tmp_tracing:setup_tracing turns it on)\n");
    assert!(!start.stderr_text().contains("trace show"), "{start:?}");
    cluster.tracer(&["submit", "task"]).success();
    assert!(!cluster.spans_dir().exists(), "nothing is traced");
}

#[test]
fn start_and_stop_as_json_are_complete() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).build();
    let started = cluster.start_head(&["--format", "json"]).success().stderr("").json();
    assert_eq!(started["head_pid"], cluster.head_pid());
    assert_eq!(started["session_dir"], json!(cluster.session_dir()));
    assert_eq!((&started["workers_ready"], &started["hook_failures"]), (&json!(2), &json!([])));
    let head_pid = cluster.head_pid();
    let mut pids = cluster.worker_pids();
    let stopped = cluster.tracer(&["stop", "--format", "json"]).success().stderr("").json();
    let mut reported: Vec<u32> = serde_json::from_value(stopped["stopped"].clone()).expect("process ids");
    pids.sort_unstable();
    reported.sort_unstable();
    assert_eq!(reported, pids);
    assert_eq!(
        (&stopped["head_pid"], &stopped["killed"], &stopped["unfinished"]),
        (&json!(head_pid), &json!([]), &json!(0))
    );
}

#[test]
fn a_stop_counts_the_tasks_that_had_not_ended_when_it_was_done() {
    let cluster = Cluster::builder().workers(1).start();
    let (started, go) = (json!(cluster.file("started")).to_string(), json!(cluster.file("go")).to_string());
    cluster.submit("misbehaving_tasks:waits", &[&started, &go, "--no-wait"]).success();
    cluster.wait_for_file(&cluster.file("started"));
    for _ in 0..2 {
        cluster.submit("demo:my_function", &["--no-wait"]).success();
    }
    let stop = cluster.tracer_in_background(&["stop", "--grace-period", "60s", "--format", "json"]);
    let mut accepted = 2;
    wait_until("the stop is under way", || {
        let waiting = cluster.tracer(&["submit", "task", "--no-wait"]);
        accepted += u32::from(waiting.output.status.success());
        waiting.stderr_text().contains("the head is stopping").then_some(())
    });
    std::fs::write(cluster.file("go"), "").expect("the folder is ours");
    let stopped = stop.wait().success().json();
    // The one that ran has ended within the grace period.
    assert_eq!((&stopped["unfinished"], &stopped["killed"]), (&json!(accepted), &json!([])), "{stopped}");
}

#[test]
fn by_default_there_is_a_worker_for_each_cpu() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["start", "--head"]).success();
    let cpus = std::thread::available_parallelism().expect("cpus can be counted").get();
    assert_eq!(cluster.status()["workers"]["wanted"], cpus);
}

#[test]
fn start_without_head_says_what_is_missing() {
    let cluster = Cluster::builder().build();
    cluster.tracer(&["start"]).status(2).stdout("").stderr(
        "error: `tracer start` starts a head, and needs --head to say so\n\
         (hint: `tracer start --head`; or `tracer start --address nats://127.0.0.1:4222` for one that shares tasks with others)\n",
    );
}

#[test]
fn a_head_in_the_foreground_stays_until_a_signal_and_takes_its_workers_along() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let cluster = Cluster::builder().workers(2).hook(HOOK).build();
        let mut head = cluster.spawn(cluster.start_command(&["--block"]));
        head.wait_for_stderr("\n  stop it        Ctrl-C\n");
        cluster.tracer(&["submit", "task"]).success().stdout("1\n");
        assert!(head.is_running());
        head.signal(signal);
        head.wait().success().stdout("").stderr_contains("\nstopped 2 workers\n");
        assert!(cluster.processes().is_empty(), "{signal:?} leaves {:?}", cluster.processes());
        cluster.spans().assert_whole(&[]);
    }
}

#[test]
fn a_second_signal_does_not_wait_for_running_tasks() {
    let cluster = Cluster::builder().build();
    let head = cluster.spawn(cluster.start_command(&["--block"]));
    head.wait_for_stderr("Ctrl-C");
    let (submission, _) = submit_waiting(&cluster, "misbehaving_tasks:waits");
    head.signal(Signal::TERM);
    wait_until("the head is stopping", || {
        cluster.tracer(&["submit", "task"]).stderr_text().contains("the head is stopping").then_some(())
    });
    head.signal(Signal::TERM);
    head.wait().success();
    submission.wait().status(1).stderr_contains("error: task 1 (misbehaving_tasks.waits) failed: ");
    cluster.assert_nothing_runs();
}

#[test]
fn a_second_head_is_refused_and_told_of_the_first_even_if_that_is_frozen() {
    let cluster = Cluster::untraced();
    let head_pid = cluster.head_pid();
    let refuse = || {
        let refusal = cluster.start_head(&[]).status(5).stdout("").stderr(&format!(
            "error: a head is already running in `<folder>/place` (pid <pid>, tracer {VERSION})\n\
             (hint: use it, end it with `tracer stop`, or start another with --temp-dir)\n"
        ));
        assert!(refusal.stderr_text().contains(&format!("pid {head_pid}")), "{refusal:?}");
        cluster.run(cluster.start_command(&["--block"])).status(5);
    };
    refuse();
    kill(head_pid, Signal::STOP);
    refuse();
    kill(head_pid, Signal::CONT);
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
}

#[test]
fn of_many_heads_that_are_started_at_once_one_wins() {
    let cluster = Cluster::builder().build();
    let starts: Vec<_> = (0..4).map(|_| cluster.spawn(cluster.start_command(&[]))).collect();
    let runs: Vec<_> = starts.into_iter().map(Background::wait).collect();
    let codes: Vec<_> = runs.iter().map(|run| run.output.status.code()).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "{runs:?}");
    assert_eq!(codes.iter().filter(|code| **code == Some(5)).count(), 3, "{runs:?}");
    for refused in runs.iter().filter(|run| run.output.status.code() == Some(5)) {
        assert!(refused.stderr_text().starts_with("error: a head is already "), "{refused:?}");
    }
    assert_eq!(cluster.worker_pids().len(), 1);
}

#[test]
fn two_places_hold_two_heads() {
    let (one, other) = (Cluster::untraced(), Cluster::untraced());
    one.stop().success();
    other.tracer(&["submit", "task"]).success().stdout("1\n");
}

#[test]
fn after_a_killed_head_a_new_one_starts_and_completes_the_spans() {
    let cluster = Cluster::traced();
    let (submission, _) = submit_waiting(&cluster, "misbehaving_tasks:waits_in_span");
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    cluster.kill_head();
    submission.wait().status(1).stdout("").stderr_contains("error: the connection to the head broke");
    wait_until("the worker is gone with its head", || (!is_alive(worker)).then_some(()));
    cluster.tracer(&["status"]).status(3);

    cluster.start_head(&[]).success().stderr_contains("\n  recovered  2 spans that a dead head's processes left\n");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let (attempt, inner) = (spans.named("misbehaving_tasks.waits_in_span tracer.remote_worker"), spans.named("inner"));
    for span in [attempt, inner] {
        assert_eq!((span.status_code(), span.attribute("error.type")), ("ERROR", &json!("lost")));
    }
    assert_eq!(cluster.status()["spans"]["closed"], 2);
    cluster.tracer(&["status"]).success().stdout_contains("2 spans of dead processes completed");
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");

    cluster.stop().success();
    let again = cluster.start_head(&[]).success();
    assert!(!again.stderr_text().contains("recovered"), "they are completed once: {again:?}");
}

#[test]
fn stop_lets_a_running_task_finish_and_takes_no_more() {
    let cluster = Cluster::traced();
    let (running, released) = submit_waiting(&cluster, "misbehaving_tasks:waits");
    let waiting = cluster.submit_in_background("wordcount:count", &["\"never\""]);
    wait_until("the second task is known", || (cluster.tasks().len() == 2).then_some(()));
    let stop = cluster.tracer_in_background(&["stop", "--grace-period", "1h"]);
    let refused = wait_until("the head is stopping", || {
        // One that is accepted just before fails with the other task.
        let run = cluster.tracer(&["submit", "task"]);
        run.stderr_text().contains("takes no more tasks").then_some(run)
    });
    refused.status(1).stdout("").stderr("error: the head refused: the head is stopping and takes no more tasks\n");
    std::fs::write(released, "").expect("the folder is ours");
    running.wait().success();
    waiting.wait().status(1).stderr_contains(
        "error: task 2 (wordcount.count) has not ended: the head was stopped before it had ended; it is kept for the next head in this place\n\
         (hint: `tracer start --head` goes on with it, and `tracer get 2 --wait` waits for it)\n",
    );
    stop.wait().success().stderr_contains("stopped the head (pid <pid>) and 1 worker\nkept: ");
    cluster.assert_nothing_runs();
    cluster.spans().assert_whole(&[]);
}

#[test]
fn stop_kills_what_runs_beyond_the_grace_period_and_says_so() {
    let cluster = Cluster::traced();
    let (running, _) = submit_waiting(&cluster, "misbehaving_tasks:waits_in_span");
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    let stop = cluster.tracer(&["stop", "--grace-period", "100ms"]).success();
    let text = stop.stderr_text();
    assert!(
        text.ends_with(&format!(" and 1 worker; 1 had to be killed (pid {worker})\n1 task had not ended\n")),
        "{stop:?}"
    );
    running.wait().status(1).stderr_contains("error: task 1 (misbehaving_tasks.waits_in_span) failed: ");
    assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.named("inner").status_code(), "ERROR");
    assert_eq!(spans.attempt_of(1).status_code(), "ERROR");
}

#[test]
fn stop_with_force_does_not_wait() {
    let cluster = Cluster::untraced();
    let (running, _) = submit_waiting(&cluster, "misbehaving_tasks:waits");
    let stop = cluster.tracer(&["stop", "--force", "--grace-period", "1h", "--format", "json"]).success().json();
    assert_eq!(stop["killed"].as_array().map(Vec::len), Some(1), "{stop}");
    running.wait().status(1);
    assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
}

#[test]
fn without_a_head_every_command_that_needs_one_says_so() {
    let cluster = Cluster::builder().build();
    for arguments in [
        &["stop"][..],
        &["status"],
        &["submit", "task"],
        &["submit", "command", "true"],
        &["list", "tasks"],
        &["list", "workers"],
        &["get", "1"],
    ] {
        cluster.tracer(arguments).status(3).stdout("").stderr(
            "error: no head is running in `<folder>/place`\n\
             (hint: start one with `tracer start --head`, or name its place with --temp-dir)\n",
        );
    }
    let cluster = Cluster::untraced();
    cluster.stop().success();
    cluster.stop().status(3);
    assert_eq!(cluster.head_record(), Value::Null);
}

#[test]
fn a_head_that_was_stopped_can_be_started_again_and_again() {
    let cluster = Cluster::builder().hook(HOOK).build();
    for round in 1..=3 {
        cluster.start_head(&[]).success();
        cluster.tracer(&["submit", "task"]).success().stdout("1\n");
        cluster.stop().success();
        assert_eq!(cluster.spans().all_named("demo.my_function tracer.remote_worker").len(), round);
    }
}

#[test]
fn a_fresh_start_forgets_what_has_ended_and_goes_on_counting() {
    let cluster = Cluster::untraced();
    let journals = || {
        let names = std::fs::read_dir(cluster.temp_dir()).expect("there is a place").flatten();
        names.filter(|name| name.file_name().to_string_lossy().starts_with("tasks.journal.old-")).count()
    };
    for id in 1..=2 {
        cluster.submit("demo:my_function", &["--no-wait", "--idempotency-key", &format!("key {id}")]).success();
        cluster.wait_for_task(id);
    }
    cluster.stop().success();
    cluster.start_head(&["--fresh"]).success().stderr_contains(
        "\n  fresh    2 tasks of earlier heads are forgotten\n           their journal is now `<folder>/place/tasks.journal.old-",
    );
    assert_eq!((cluster.tasks(), journals()), (Vec::new(), 1));
    cluster.submit("demo:my_function", &["--no-wait", "--idempotency-key", "key 1"]).success().stdout("3\n");
    cluster.wait_for_task(3);
    // What runs on is not given up but on demand, also when it has left a claim behind.
    let (submission, released) = submit_waiting(&cluster, "misbehaving_tasks:waits");
    cluster.submit("demo:my_function", &["--no-wait"]).success().stdout("5\n");
    cluster.kill_head();
    drop(submission.wait());
    let refused = cluster.start_head(&["--fresh"]).status(1);
    refused
        .stderr_contains("--fresh would forget tasks that are not done: 2 tasks have not ended\n(hint: start without");
    assert_eq!(journals(), 1);
    cluster.start_head(&["--fresh", "--discard-unfinished", "--format", "json"]).success().json();
    assert_eq!((cluster.tasks(), journals()), (Vec::new(), 2));
    assert!(!released.exists());
    // An actor that lives is not given up either.
    cluster.tracer(&["submit", "actor", "counter:Counter", "1", "--max-restarts", "1", "--name", "hits"]).success();
    cluster.kill_head();
    cluster.start_head(&["--fresh"]).status(1).stderr_contains("tasks that are not done: 1 actor lives\n");
    cluster.start_head(&[]).success();
    cluster.tracer(&["cancel", "hits"]).success();
    cluster.stop().success();
    // Nothing to forget is nothing to say; a place that is new has no tasks.
    cluster.start_head(&["--fresh"]).success();
    cluster.stop().success();
    let start = cluster.start_head(&["--fresh"]).success();
    assert!(!start.stderr_text().contains("forgotten"), "{start:?}");
    cluster.tracer(&["start", "--head", "--discard-unfinished"]).status(2).stderr_contains("--fresh");
}
