//! Nothing outlives its owner, however the owner ends.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Background, Cluster, HOOK, is_alive, kill, wait_until};

#[track_caller]
fn pid_in(path: &Path) -> u32 {
    wait_until(&format!("`{}` holds a process id", path.display()), || {
        fs::read_to_string(path).ok()?.trim().parse().ok()
    })
}

/// Returns a command with a child, both of which ignore that they are asked to end.
#[track_caller]
fn submit_stubborn_command(cluster: &Cluster) -> Background {
    let script = "trap '' TERM INT HUP; sleep 1000 & echo $! > child; echo $$ > own; wait; wait";
    let submission = cluster.tracer_in_background(&["submit", "command", "--crash-limit=0", "--", "sh", "-c", script]);
    pid_in(&cluster.file("child"));
    pid_in(&cluster.file("own"));
    submission
}

/// Returns a function that has started a process and waits.
#[track_caller]
fn submit_function_with_child(cluster: &Cluster) -> Background {
    let arguments = [json!(cluster.file("grandchild")).to_string(), json!(cluster.file("never")).to_string()];
    let arguments = [&*arguments[0], &*arguments[1], "--crash-limit=0"];
    let submission = cluster.submit_in_background("misbehaving_tasks:starts_a_process_and_waits", &arguments);
    pid_in(&cluster.file("grandchild"));
    submission
}

#[test]
fn workers_end_with_a_head_that_is_killed() {
    let cluster = Cluster::builder().workers(4).start();
    cluster.kill_head();
    cluster.assert_nothing_runs();
}

#[test]
fn everything_that_tasks_have_started_ends_with_a_head_that_is_killed() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let command = submit_stubborn_command(&cluster);
    let function = submit_function_with_child(&cluster);
    cluster.kill_head();
    command.wait().status(1);
    function.wait().status(1);
    cluster.assert_nothing_runs();
    cluster.start_head(&[]).success().stderr_contains("\n  recovered  2 spans that a dead head's processes left\n");
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_daemon_that_a_task_leaves_ends_with_the_head_however_that_ends() {
    for is_killed in [false, true] {
        let cluster = Cluster::untraced();
        let script = "setsid sh -c 'echo $$ > daemon; exec sleep 1000' & while [ ! -s daemon ]; do sleep 0.01; done";
        cluster.tracer(&["submit", "command", "--", "sh", "-c", script]).success();
        let daemon = pid_in(&cluster.file("daemon"));
        if is_killed {
            assert!(is_alive(daemon));
            cluster.kill_head();
            cluster.assert_nothing_runs();
        } else {
            cluster.stop().success();
            assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
        }
    }
}

#[test]
fn what_is_cancelled_or_runs_too_long_ends_with_all_that_it_has_started() {
    let cluster = Cluster::untraced();
    // Two generations in sessions of their own, which ignore that they are asked to end.
    let script = "setsid sh -c 'trap \"\" TERM HUP; setsid sleep 1000 & echo $! > inner; echo $$ > outer; wait' & \
                  echo $$ > own; while :; do sleep 1; done";
    let submit = |flags: &[&str]| {
        let names = ["own", "outer", "inner"];
        names.iter().for_each(|name| drop(fs::remove_file(cluster.file(name))));
        let all = [&["submit", "command"], flags, &["--", "sh", "-c", script]].concat();
        let submission = cluster.tracer_in_background(&all);
        (submission, names.map(|name| pid_in(&cluster.file(name))))
    };
    let workers = cluster.worker_pids();
    let (submission, pids) = submit(&[]);
    cluster.tracer(&["cancel", "1"]).success();
    submission.wait().status(1);
    assert_eq!(pids.map(is_alive), [false; 3], "what is cancelled has ended when it is said to have");
    let (submission, pids) = submit(&["--timeout", "2s"]);
    submission.wait().status(124);
    assert_eq!(pids.map(is_alive), [false; 3]);
    // A function that is asked to end, and does.
    let files = ["started", "cleaned"].map(|file| json!(cluster.file(file)).to_string());
    let submission = cluster
        .submit_in_background("misbehaving_tasks:leaves_a_process_and_listens", &files.each_ref().map(String::as_str));
    let left = pid_in(&cluster.file("started"));
    cluster.tracer(&["cancel", "3"]).success();
    submission.wait().status(1);
    cluster.wait_for_file(&cluster.file("cleaned"));
    assert!(!is_alive(left));
    assert_eq!(cluster.worker_pids(), workers, "nothing of it needed the end of a worker");
}

/// A process that left its group, its session and its parents, as daemons do.
const DAEMON: &str =
    "(setsid sh -c 'echo $$ > daemon; exec sleep 1000' &) ; while [ ! -s daemon ]; do sleep 0.01; done";

#[test]
fn a_daemon_ends_with_its_worker_while_the_head_lives_and_nothing_else_does() {
    for runs_on in [false, true] {
        let cluster = Cluster::builder().workers(2).start();
        // Not of the head's, though like it in every way.
        let bystander = cluster.spawn({
            let mut command = cluster.program("setsid");
            command.args(["sleep", "1000"]);
            command
        });
        let script = if runs_on { format!("{DAEMON}; exec sleep 1000") } else { DAEMON.to_owned() };
        let command = ["submit", "command", "--crash-limit=0", "--", "sh", "-c", &script];
        let submission = cluster.tracer_in_background(&command);
        let daemon = pid_in(&cluster.file("daemon"));
        if !runs_on {
            submission.wait().success();
        } else {
            wait_until("it runs", || (cluster.task(1)["state"] == "running").then_some(()));
        }
        assert!(is_alive(daemon), "it outlives its parents");
        let head = cluster.head_pid();
        for worker in cluster.worker_pids() {
            kill(worker, Signal::KILL);
        }
        wait_until("the daemon is gone", || (!is_alive(daemon)).then_some(()));
        assert_eq!(cluster.head_pid(), head);
        assert!(is_alive(bystander.pid()), "it is not the head's");
        wait_until("it is said", || {
            cluster.head_log().contains(&format!("process {daemon}, which a task had left behind, ended")).then_some(())
        });
        cluster.submit("demo:my_function", &[]).success();
        assert_eq!(cluster.status()["workers"]["lost"], 2, "the new workers are left alone");
        drop(bystander);
    }
}

#[test]
fn a_daemon_of_a_cancelled_task_ends_with_it_and_its_worker() {
    let cluster = Cluster::untraced();
    let path = cluster.file("daemon");
    let submission = submit_function_with_child(&cluster);
    cluster.tracer(&["cancel", "1", "--grace=0s"]).success();
    submission.wait().status(1);
    let script = format!("trap '' TERM; {DAEMON}; while :; do sleep 1000; done");
    let command = ["submit", "command", "--", "sh", "-c", &script];
    let submission = cluster.tracer_in_background(&command);
    let daemon = pid_in(&path);
    kill(cluster.worker_pids()[0], Signal::TERM);
    wait_until("the daemon is gone", || (!is_alive(daemon)).then_some(()));
    cluster.tracer(&["cancel", "--all", "--grace=0s"]).success();
    submission.wait().status(1);
}

#[test]
fn what_a_command_leaves_in_its_group_ends_with_it_and_is_no_leak() {
    let cluster = Cluster::traced();
    for task in 1..=20 {
        let run = cluster.tracer(&["submit", "command", "--", "sh", "-c", "sleep 1000 & sleep 1000 &"]).success();
        run.stderr("");
        assert_eq!(*cluster.spans().attempt_of(task).attribute("tracer.leaked_processes"), serde_json::Value::Null);
    }
}

#[test]
fn a_process_that_is_left_behind_with_the_output_open_is_reported_and_not_waited_for() {
    let cluster = Cluster::traced();
    let run = cluster.tracer(&["submit", "command", "--", "sh", "-c", &format!("{DAEMON}; echo done")]).success();
    let daemon = pid_in(&cluster.file("daemon"));
    let report = format!("tracer: `sh` left 1 process behind (pid {daemon}), which runs on until its worker ends");
    run.stdout("done\n").stderr_contains(&format!("{report} and has its output open\n"));
    assert_eq!(*cluster.spans().attempt_of(1).attribute("tracer.leaked_processes"), 1);
    // What closed its outputs is a leak all the same; what ended meanwhile is none.
    let quiet = "(setsid sh -c 'echo > quiet; exec sleep 1000' > /dev/null 2>&1 < /dev/null &); \
                 (setsid sh -c 'echo $$ > short' &); \
                 while ! [ -s quiet -a -s short ]; do sleep 0.01; done; short=/proc/$(cat short); \
                 while [ -e $short ] && ! grep -qs '^State:.Z' $short/status; do sleep 0.01; done";
    let run = cluster.tracer(&["submit", "command", "--", "sh", "-c", quiet]).success();
    assert!(run.stderr_text().ends_with("which runs on until its worker ends\n"), "{run:?}");
    assert!(is_alive(daemon));
    // Nothing that has ended is kept.
    kill(daemon, Signal::KILL);
    cluster.tracer(&["submit", "command", "--", "true"]).success().stderr("");
    assert!(!std::path::Path::new(&format!("/proc/{daemon}")).exists(), "it was reaped");
}

#[test]
fn a_head_in_the_foreground_that_is_killed_takes_everything_along() {
    let cluster = Cluster::builder().build();
    let mut head = cluster.spawn(cluster.start_command(&["--block"]));
    head.wait_for_stderr("Ctrl-C");
    let command = submit_stubborn_command(&cluster);
    head.signal(Signal::KILL);
    wait_until("it has ended", || (!head.is_running()).then_some(()));
    // What is left of the head was asked to stop, and gives the command its grace period unless it is asked again.
    wait_until("the head is stopping", || {
        cluster.tracer(&["submit", "task"]).stderr_text().contains("takes no more tasks").then_some(())
    });
    kill(cluster.head_pid(), Signal::TERM);
    command.wait().status(1);
    cluster.assert_nothing_runs();
}

#[test]
fn head_worker_and_submitter_killed_at_once_leave_nothing_and_lose_no_span() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let mut submission = submit_stubborn_command(&cluster);
    let workers = cluster.worker_pids();
    kill(cluster.head_pid(), Signal::STOP);
    for pid in workers {
        kill(pid, Signal::KILL);
    }
    submission.signal(Signal::KILL);
    cluster.kill_head();
    wait_until("the submitter has ended", || (!submission.is_running()).then_some(()));
    cluster.start_head(&[]).success().stderr_contains("\n  recovered  ");
    for file in ["own", "child"] {
        let pid = pid_in(&cluster.file(file));
        wait_until(&format!("{file} is gone"), || (!is_alive(pid)).then_some(()));
    }
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    for name in ["tracer job", "sh tracer.remote_worker"] {
        assert_eq!(spans.named(name).status_code(), "ERROR", "{}", spans.describe());
    }
}

#[test]
fn a_stop_takes_everything_along_that_tasks_have_started() {
    let cluster = Cluster::builder().workers(2).start();
    let left =
        cluster.submit("misbehaving_tasks:leaves_a_process", &[&json!(cluster.file("left")).to_string()]).success();
    let left: u32 = left.stdout_text().trim().parse().expect("a process id");
    assert!(is_alive(left), "a function may leave a process, for as long as its worker lives");
    let command = submit_stubborn_command(&cluster);
    cluster.tracer(&["stop", "--grace-period", "50ms"]).success();
    command.wait().status(1);
    assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
}

#[test]
fn a_worker_that_is_killed_takes_everything_along_that_its_function_has_started() {
    let cluster = Cluster::untraced();
    let submission = submit_function_with_child(&cluster);
    let grandchild = pid_in(&cluster.file("grandchild"));
    let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
    kill(worker, Signal::KILL);
    submission.wait().status(1);
    wait_until("what it started is gone", || (!is_alive(grandchild)).then_some(()));
}

#[test]
fn a_cancelled_function_takes_everything_along_that_it_has_started() {
    let cluster = Cluster::untraced();
    let submission = submit_function_with_child(&cluster);
    let grandchild = pid_in(&cluster.file("grandchild"));
    submission.signal(Signal::INT);
    submission.wait().status(130);
    wait_until("what it started is gone", || (!is_alive(grandchild)).then_some(()));
}

#[test]
fn a_stopped_head_leaves_no_socket_and_no_spool() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    cluster.tracer(&["submit", "task"]).success();
    cluster.submit("misbehaving_tasks:aborts", &["--crash-limit=0"]).status(1);
    let session = cluster.session_dir();
    cluster.stop().success();
    assert!(!session.join("head.sock").exists());
    let spools: Vec<_> =
        fs::read_dir(session.join("spool")).expect("it is kept").flatten().map(|entry| entry.path()).collect();
    assert!(spools.is_empty(), "{spools:?}");
    assert!(session.join("logs/head.log").exists(), "the logs are kept");
}

#[test]
fn ctrl_c_in_the_shell_that_started_a_head_does_not_reach_it() {
    let cluster = Cluster::untraced();
    let head = cluster.head_pid();
    let session = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let (_, fields) = stat.rsplit_once(") ").expect("the form of stat");
        fields.split(' ').nth(3).expect("the session").parse::<u32>().expect("a number")
    };
    assert_ne!(session(head), session(std::process::id()), "signals of a terminal go to its session");
}
