//! Spans of a task whose process dies amid them: every way to die, hooks in Rust and in C.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Cluster, HOOK, Span, Spans, compile_c, kill, skip, wait_until};

/// Values of `error.type`, by which the tests name the ways.
const WAYS: [&str; 6] = ["signal:9", "signal:11", "signal:6", "exit:3", "timeout", "cancelled"];

#[test]
fn however_a_worker_dies_its_spans_are_completed_for_a_hook_in_rust() {
    let cluster = Cluster::builder().hook(HOOK).start();
    die_in_every_way(&cluster);
}

#[test]
fn however_a_worker_dies_its_spans_are_completed_for_a_hook_in_c() {
    let cluster = Cluster::builder().build();
    compile_c("examples/hook_c/hook_c.c", &cluster.file("libhook_c.so"));
    cluster.start_head(&["--tracing-startup-hook", "./libhook_c.so:setup_tracing"]).success();
    die_in_every_way(&cluster);
}

/// Nothing wakes the head but the death: while the task runs, it sleeps without a limit, and nobody asks it anything.
#[test]
fn the_death_of_a_worker_alone_brings_its_spans_to_the_file() {
    let cluster = Cluster::traced();
    let started = cluster.file("started");
    let arguments = [json!("signal:9").to_string(), json!(started).to_string(), "--crash-limit=0".into()];
    let submission =
        cluster.submit_in_background("misbehaving_tasks:dies_amid_spans", &arguments.each_ref().map(String::as_str));
    cluster.wait_for_file(&started);
    let head = cluster.head_pid();
    // The number of the system call and its arguments, of which the fourth is the limit.
    let system_call = || fs::read_to_string(format!("/proc/{head}/syscall")).unwrap_or_default();
    if system_call().is_empty() {
        return skip("/proc/PID/syscall", "in which system call the head waits cannot be seen");
    }
    let sleeps = || {
        let call = system_call();
        let words: Vec<_> = call.split_whitespace().collect();
        if words.first() != Some(&&*libc::SYS_epoll_pwait.to_string()) {
            return None;
        }
        // For ever, or until it looks after its files again, hours later.
        let milliseconds = u64::from_str_radix(words[4].strip_prefix("0x")?, 16).ok()?;
        (milliseconds > 3_600_000).then_some(())
    };
    wait_until("the head sleeps until something happens", sleeps);
    kill(pid_in(&started), Signal::KILL);
    let closed =
        |spans: &Spans| spans.iter().filter(|span| *span.attribute("tracer.completed_by") == "head").count() == 4;
    let spans = cluster.wait_for_spans("those that were open are closed", closed);
    assert_completed(&spans, spans.attempt_of(1), "signal:9");
    submission.wait().status(1);
    cluster.spans().assert_whole(&[]);
}

#[test]
fn more_open_spans_than_the_spool_holds_are_counted_and_nothing_is_damaged() {
    let cluster = Cluster::builder().hook(HOOK).start();
    cluster.submit("misbehaving_tasks:aborts_amid", &["6000", "--crash-limit=0"]).status(1);
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let open: Vec<_> = spans.iter().filter(|span| span.name().starts_with("open ")).collect();
    assert!((1000..6000).contains(&open.len()), "{} of 6000 fit", open.len());
    for span in open {
        assert_eq!(span.attribute("error.type"), "signal:6", "{}", span.value);
        assert_eq!(span.name(), format!("open {}", span.attribute("number")), "{}", span.value);
    }
    let lost = &cluster.status()["spans"]["lost_with_process"];
    assert!(lost.as_u64().is_some_and(|count| count > 0), "{}", cluster.status()["spans"]);
    // What comes after is whole again.
    cluster.submit("misbehaving_tasks:makes_one_span", &["7"]).success().stdout("7\n");
    cluster.spans().assert_whole(&[]);
}

/// A control group that may take 256 MiB of memory, for as long as this lives.
struct SmallMemory {
    path: PathBuf,
}

impl SmallMemory {
    /// None, which skips the test, where no control group can be made.
    fn new() -> Option<SmallMemory> {
        let skip = |detail: &dyn Display| {
            skip("control groups", detail);
            None
        };
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let version_1 = groups.lines().find_map(|line| line.split_once(":memory:/"));
        let version_2 = groups.lines().find_map(|line| line.split_once("0::/"));
        let (root, (_, own), limit) = match (version_1, version_2) {
            (Some(own), _) => ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes"),
            (None, Some(own)) => ("/sys/fs/cgroup", own, "memory.max"),
            (None, None) => return skip(&"this process is in none"),
        };
        let path = Path::new(root).join(own).join(format!("tracer-test-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            return skip(&error);
        }
        let group = SmallMemory { path };
        match fs::write(group.path.join(limit), "268435456") {
            Ok(()) => Some(group),
            Err(error) => skip(&format_args!("their memory cannot be limited: {error}")),
        }
    }

    /// Starts the head of `cluster` in the group.
    fn start(&self, cluster: &Cluster) {
        let start = cluster.start_command(&["--tracing-startup-hook", HOOK]);
        let mut shell = cluster.program("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.path.join("cgroup.procs"));
        shell.arg(start.get_program()).args(start.get_args());
        cluster.run(shell).success();
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn a_worker_that_the_kernel_kills_for_memory_is_told_from_one_that_somebody_kills() {
    let Some(group) = SmallMemory::new() else { return };
    let cluster = Cluster::builder().build();
    group.start(&cluster);
    let started = cluster.file("started");
    let arguments = [json!("oom").to_string(), json!(started).to_string()];
    let submission =
        cluster.submit_in_background("misbehaving_tasks:dies_amid_spans", &arguments.each_ref().map(String::as_str));
    submission.wait().status(1).stderr_contains("was killed by the kernel, because memory ran out");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = spans.all_named("misbehaving_tasks.dies_amid_spans tracer.remote_worker");
    assert!(!attempts.is_empty(), "{}", spans.describe());
    attempts.into_iter().for_each(|attempt| assert_completed(&spans, attempt, "oom"));
}

fn die_in_every_way(cluster: &Cluster) {
    for (way, task) in WAYS.into_iter().zip(1..) {
        let started = cluster.file(&format!("started-{task}"));
        let (way_argument, started_argument) = (json!(way).to_string(), json!(started).to_string());
        let mut arguments = vec![way_argument.as_str(), started_argument.as_str(), "--crash-limit=0"];
        if way == "timeout" {
            arguments.extend(["--timeout", "3s"]);
        }
        let submission = cluster.submit_in_background("misbehaving_tasks:dies_amid_spans", &arguments);
        cluster.wait_for_file(&started);
        match way {
            "signal:9" => kill(pid_in(&started), Signal::KILL),
            "cancelled" => drop(cluster.tracer(&["cancel", &task.to_string()]).success()),
            _ => {}
        }
        submission.wait().status(match way {
            "timeout" => 124,
            _ => 1,
        });
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        let attempts: Vec<_> = spans
            .all_named("misbehaving_tasks.dies_amid_spans tracer.remote_worker")
            .into_iter()
            .filter(|attempt| *attempt.attribute("tracer.task_id") == task)
            .collect();
        assert!(!attempts.is_empty(), "{way}: {}", spans.describe());
        attempts.into_iter().for_each(|attempt| assert_completed(&spans, attempt, way));
    }
}

fn pid_in(file: &Path) -> u32 {
    fs::read_to_string(file).expect("it is there").parse().expect("a process id")
}

/// The spans under an attempt, each under its own parent, with what it had: those that were open are closed, the other is as it was.
#[track_caller]
fn assert_completed(spans: &Spans, attempt: &Span, way: &str) {
    let child = |parent: &Span, name: &str| {
        let children = spans.children_of(parent);
        let named: Vec<_> = children.into_iter().filter(|child| child.name() == name).collect();
        let [child] = named[..] else { panic!("{way}: one `{name}` under {}: {}", parent.name(), spans.describe()) };
        child.clone()
    };
    let outer = child(attempt, "outer");
    let (done, inner) = (child(&outer, "done"), child(&outer, "inner"));
    let elsewhere = child(&inner, "elsewhere");
    for (span, kept) in [(&outer, 1), (&done, 2), (&inner, 3), (&elsewhere, 4)] {
        assert_eq!(*span.attribute("kept"), kept, "{way}: {}", span.value);
        assert!(span.value["end_time"].is_string(), "{way}: {}", span.value);
    }
    for span in [attempt, &outer, &inner, &elsewhere] {
        assert_eq!(span.status_code(), "ERROR", "{way}: {}", span.value);
        assert_eq!(span.attribute("error.type"), way, "{}", span.value);
    }
    assert_eq!(inner.events("nearly").len(), 1, "{way}: {}", inner.value);
    assert_eq!((done.status_code(), done.attribute("error.type")), ("UNSET", &json!(null)), "{way}: {}", done.value);
}
