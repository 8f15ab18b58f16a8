//! The library for programs that submit tasks: connecting, submitting, waiting, and what an error tells.

use std::collections::HashSet;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tracer::protocol::Stream;
use tracer::{CancelReport, Cluster, EmbeddedHead, Init, RemoteErrorKind, TaskHandle, as_completed, get_all, wait_any};

use crate::support::{self, kill, wait_until};

/// Connects to the head that a test has started.
#[track_caller]
fn connect(cluster: &support::Cluster) -> Cluster {
    let init = Init::new().temp_dir(cluster.temp_dir()).embedded(EmbeddedHead::Never).untraced();
    init.init().expect("the head runs")
}

/// Starts a head of this process's own.
#[track_caller]
fn embedded(workers: u32) -> Cluster {
    support::build_modules();
    let init = Init::new().embedded(EmbeddedHead::Always).executable(env!("CARGO_BIN_EXE_tracer"));
    let init = init.module_path(support::fixture_folder());
    init.num_workers(workers).init().expect("a head can be started")
}

fn release(path: &Path) {
    fs::write(path, "").expect("the folder is there");
}

#[test]
fn what_tasks_write_is_followed_line_by_line_while_they_run() {
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    let released = place.file("released");
    let script =
        format!("echo one; echo two >&2; while ! [ -e {} ]; do sleep 0.01; done; printf last", released.display());
    let command = cluster.command("sh").args(["-c", &script]).follow().submit().unwrap();
    let other = cluster.remote("misbehaving_tasks:prints_and_waits").arg("line").arg(3).arg(&released).follow();
    let other = other.submit().unwrap();
    let mut first: Vec<_> = (0..2).map(|_| command.next_line().unwrap().expect("it runs on")).collect();
    first.sort_by_key(|line| line.text.clone());
    let told: Vec<_> = first.iter().map(|line| (line.stream, line.text.as_str(), line.lost_before)).collect();
    assert_eq!(told, [(Stream::Stdout, "one", 0), (Stream::Stderr, "two", 0)]);
    assert!(place.worker_pids().contains(&first[0].worker_pid));
    assert!(!command.has_ended().unwrap());
    // In a future, of a task that runs beside it.
    let line = block_on(other.next_line_async()).unwrap().expect("it runs on");
    assert!(line.text.starts_with("line"), "{line:?}");
    release(&released);
    let rest: Vec<_> = command.lines().map(|line| line.unwrap().text).collect();
    assert_eq!(rest, ["last"]);
    command.get::<()>().unwrap();
    let mut lines = 1;
    block_on(async {
        while other.next_line_async().await.unwrap().is_some() {
            lines += 1;
        }
    });
    assert_eq!(lines, 7, "three on each side, and one without an end");
    block_on(other.get_async::<()>()).unwrap();

    let unheard = cluster.remote("demo:my_function").submit().unwrap();
    let error = unheard.next_line().unwrap_err().to_string();
    assert!(error.contains("(hint: submit it with `follow`)"), "{error}");
    let failed = cluster.command("sh").args(["-c", "echo said; exit 3"]).follow().submit().unwrap();
    assert_eq!(failed.lines().map(|line| line.unwrap().text).collect::<Vec<_>>(), ["said"]);
    assert_eq!(failed.get::<()>().unwrap_err().error_type(), "exit:3");
}

#[test]
fn results_have_types_and_come_in_the_order_of_the_handles() {
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    assert!(!cluster.is_embedded());
    let one: u64 = cluster.remote("demo:my_function").submit().unwrap().get().unwrap();
    assert_eq!(one, 1);
    let tasks = (0..500).map(|number| cluster.remote("nested_tasks:square").arg(number).submit());
    let tasks = tasks.collect::<Result<Vec<_>, _>>().unwrap();
    let squares: Vec<u64> = get_all(tasks).unwrap();
    assert_eq!(squares, (0..500).map(|number| number * number).collect::<Vec<u64>>());
    let words: u64 = cluster.remote("wordcount:count").arg("the quick brown fox").submit().unwrap().get().unwrap();
    assert_eq!(words, 4);
    let text: String = cluster.remote("misbehaving_tasks:big_result").arg(3 << 20).submit().unwrap().get().unwrap();
    assert_eq!(text.len(), 3 << 20);
}

#[test]
fn a_result_of_another_type_is_an_error_that_names_task_type_and_value() {
    let place = support::Cluster::untraced();
    let cluster = connect(&place);
    let error = cluster.remote("demo:my_function").submit().unwrap().get::<String>().unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Result);
    assert_eq!(error.task_id(), Some(1));
    let text = error.to_string();
    assert!(text.starts_with("task 1 (demo.my_function): the result is not a alloc::string::String: "), "{text}");
    assert!(text.ends_with("; it is `1`"), "{text}");
}

#[test]
fn an_error_tells_kind_type_message_stack_and_attempts() {
    let place = support::Cluster::builder().workers(1).env("RUST_BACKTRACE", "1").start();
    let cluster = connect(&place);
    let starts = place.file("starts");
    let task = cluster
        .remote("misbehaving_tasks:fails_at_first")
        .arg(&starts)
        .arg(9)
        .retries(2)
        .retry_backoff(Duration::from_millis(1))
        .submit()
        .unwrap();
    let error = task.get::<u32>().unwrap_err();
    assert_eq!((error.kind(), error.message()), (RemoteErrorKind::Returned, "start 3 fails"));
    let past: Vec<_> = error.past_attempts().iter().filter_map(|attempt| attempt.message.as_deref()).collect();
    assert_eq!(past, ["start 1 fails", "start 2 fails"]);
    let text = error.to_string();
    assert!(
        text.starts_with("task 1 (misbehaving_tasks.fails_at_first) failed: start 3 fails\n  attempt 1 "),
        "{text}"
    );
    assert_eq!(error.trace_id(), None, "nothing is traced here");

    let error = cluster.remote("misbehaving_tasks:panics").arg("boom").submit().unwrap().get::<()>().unwrap_err();
    assert_eq!((error.kind(), error.error_type()), (RemoteErrorKind::Panicked, "panic"));
    assert!(error.stacktrace().contains("misbehaving_tasks"), "{}", error.stacktrace());

    let error = cluster.remote("demo:my_function").arg("one too many").submit().unwrap().get::<u64>().unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Arguments, "{error}");
    let error = cluster.remote("demo:other").submit().unwrap().get::<u64>().unwrap_err();
    assert_eq!((error.kind(), error.error_type()), (RemoteErrorKind::Runtime, "module"), "{error}");
}

#[test]
fn what_is_wrong_with_a_submission_is_said_by_submit() {
    let place = support::Cluster::untraced();
    let cluster = connect(&place);
    let error = cluster.remote("wordcount").submit().unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Submission);
    assert!(error.to_string().starts_with("a task is named `module:function`, but got `wordcount`"), "{error}");
    let error = cluster.remote("a:b").retry_on("exit:many").submit().unwrap_err();
    assert!(error.to_string().contains("exit:many"), "{error}");
    let error = cluster.remote("a:b").parent("00-xyz").submit().unwrap_err();
    assert!(error.to_string().starts_with("the parent `00-xyz` cannot be taken: "), "{error}");
    let poisoned = std::sync::Mutex::new(());
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = poisoned.lock();
        panic!("so that it is poisoned");
    }));
    let error = cluster.remote("a:b").arg(1).arg(&poisoned).submit().unwrap_err();
    assert!(error.to_string().starts_with("argument 2 of `a:b`: "), "{error}");
}

#[test]
fn a_handle_is_an_argument() {
    let place = support::Cluster::untraced();
    let cluster = connect(&place);
    let square = cluster.remote("nested_tasks:square").arg(3).submit().unwrap();
    let sum = cluster.remote("nested_tasks:add").arg(&square).arg(&square).submit().unwrap();
    assert_eq!(sum.get::<u64>().unwrap(), 18);
    assert_eq!(square.get::<u64>().unwrap(), 9);
    let failing = cluster.remote("misbehaving_tasks:returns_error").arg("no").submit().unwrap();
    let error = cluster.remote("nested_tasks:square").arg(&failing).submit().unwrap().get::<u64>().unwrap_err();
    assert_eq!(error.error_type(), "input");
    assert!(error.message().ends_with("failed: no"), "{error}");

    let elsewhere = support::Cluster::untraced();
    let error = connect(&elsewhere).remote("nested_tasks:square").arg(&failing).submit().unwrap_err();
    assert!(error.to_string().contains("it is the handle of a task in another cluster"), "{error}");
}

#[test]
fn a_command_is_a_task_whose_result_is_its_exit_code() {
    let place = support::Cluster::untraced();
    let cluster = connect(&place);
    let seen = place.file("seen");
    let script = r#"printf '%s %s' "$WORD" "$1" > "$2"; pwd >> "$2""#;
    let command = cluster.command("sh").args(["-c", script, "sh", "quick"]).arg(&seen);
    command.env("WORD", "the").current_dir(place.folder()).submit().unwrap().get::<()>().unwrap();
    assert_eq!(fs::read_to_string(&seen).unwrap(), format!("the quick{}\n", place.folder().display()));
    let error = cluster.command("sh").args(["-c", "exit 3"]).submit().unwrap().get::<()>().unwrap_err();
    assert_eq!((error.kind(), error.error_type()), (RemoteErrorKind::Runtime, "exit:3"));
    assert_eq!(error.to_string(), "task 2 (sh) failed: `sh` exited with code 3");
}

#[test]
fn the_one_that_has_ended_is_taken_out_and_a_wait_has_a_limit() {
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    let released = place.file("released");
    let slow = cluster.remote("nested_tasks:after").arg(&released).arg(7).submit().unwrap();
    let quick = cluster.remote("nested_tasks:square").arg(2).submit().unwrap();
    let mut tasks = vec![slow, quick];
    let first = wait_any(&mut tasks).unwrap().expect("there are two");
    assert_eq!(first.get::<u64>().unwrap(), 4);
    let slow = tasks.pop().expect("the other one is left");
    assert!(!slow.has_ended().unwrap());
    let slow = slow.get_within::<u64>(Duration::from_millis(20)).expect_err("it waits for a file");
    release(&released);
    assert_eq!(slow.get_within::<u64>(Duration::from_secs(60)).expect("it is released").unwrap(), 7);
    assert!(wait_any(&mut tasks).unwrap().is_none());
}

#[test]
fn results_come_as_tasks_end_and_a_program_sees_how_far_they_are() {
    let place = support::Cluster::builder().workers(1).start();
    let cluster = connect(&place);
    let (one, other) = (place.file("one"), place.file("other"));
    let submit = |path: &Path, number: u64| {
        cluster.remote("nested_tasks:after").arg(path).arg(number).submit().expect("the head takes it")
    };
    let failing = cluster.remote("misbehaving_tasks:returns_error").arg("no").submit().unwrap();
    let tasks = vec![submit(&one, 10), submit(&other, 20), failing];
    let mut results = as_completed::<u64>(tasks).unwrap();
    // One worker runs them one after the other.
    let failed = results.next().expect("one of three");
    assert_eq!((failed.index, failed.result.unwrap_err().message()), (2, "no"));
    assert!(!results.wait(Duration::from_millis(10)), "both wait for a file");
    let progress = wait_until("the first of them runs", || {
        let progress = results.progress();
        (progress.running == 1).then_some(progress)
    });
    assert_eq!((progress.total, progress.done(), progress.failed, progress.waiting()), (3, 1, 1, 1));
    release(&one);
    assert!(results.wait(Duration::from_secs(60)));
    let first = results.next().expect("two of three");
    assert_eq!((first.index, first.result.unwrap()), (0, 10));
    assert_eq!(results.size_hint(), (1, Some(1)));
    release(&other);
    let rest: Vec<_> = results.by_ref().map(|completed| (completed.index, completed.result.unwrap())).collect();
    assert_eq!(rest, [(1, 20)]);
    let progress = results.progress();
    assert_eq!((progress.succeeded, progress.failed, progress.running, progress.waiting()), (2, 1, 0, 0));
    assert!(as_completed::<u64>([]).unwrap().next().is_none());
}

#[test]
fn tasks_of_two_clusters_are_not_waited_for_together() {
    let place = support::Cluster::untraced();
    let (one, other) = (connect(&place), connect(&place));
    let submit = |cluster: &Cluster| cluster.remote("demo:my_function").submit().unwrap();
    let mut tasks = vec![submit(&one), submit(&other)];
    let error = wait_any(&mut tasks).unwrap_err();
    assert!(error.to_string().starts_with("the tasks were submitted through several clusters"), "{error}");
    assert_eq!(get_all::<u64>(tasks).unwrap(), [1, 1], "one after the other they can be had");
}

#[test]
fn a_task_is_cancelled_and_a_dropped_handle_lets_it_run_on() {
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    let (started, released) = (place.file("started"), place.file("released"));
    let task = cluster.remote("misbehaving_tasks:sleeps_for_ever").arg(&started).arg(place.file("dropped")).submit();
    let task = task.unwrap();
    cluster.flush().unwrap();
    place.wait_for_file(&started);
    assert_eq!(task.cancel().unwrap(), CancelReport::Cancelling);
    let error = task.get::<()>().unwrap_err();
    assert_eq!((error.error_type(), error.message()), ("cancelled", "it was cancelled"));
    assert_eq!(error.kind(), RemoteErrorKind::Cancelled);

    let left = cluster.remote("nested_tasks:after").arg(&released).arg(3).submit().unwrap();
    let id = left.id().expect("it was accepted");
    drop(left);
    release(&released);
    assert_eq!(place.wait_for_task(id)["result"], 3);

    let waiting: Vec<_> = (0..5)
        .map(|_| cluster.remote("nested_tasks:after").arg(place.file("never")).arg(0).submit().unwrap())
        .collect();
    let others = connect(&place);
    let spared = others.remote("nested_tasks:square").arg(5).submit().unwrap();
    others.flush().unwrap();
    assert_eq!(cluster.cancel_all().unwrap(), 5);
    for task in waiting {
        assert_eq!(task.get::<u64>().unwrap_err().error_type(), "cancelled");
    }
    assert_eq!(spared.get::<u64>().unwrap(), 25, "another program's task is left alone");
}

#[test]
fn many_threads_share_a_cluster() {
    const THREADS: u64 = 8;
    const EACH: u64 = 300;
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    let run = |thread: u64| {
        let cluster = cluster.clone();
        move || {
            for number in 0..EACH {
                let number = thread * EACH + number;
                let task = cluster.remote("nested_tasks:square").arg(number).submit().expect("the head takes it");
                assert_eq!(task.get::<u64>().expect("it ends well"), number * number);
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(run(thread))).collect();
    // Handles go from thread to thread as well.
    let tasks: Vec<_> = (0..EACH).map(|n| cluster.remote("nested_tasks:square").arg(n).submit().unwrap()).collect();
    let elsewhere = thread::spawn(move || get_all::<u64>(tasks).expect("they end well"));
    assert_eq!(elsewhere.join().expect("no panic").len() as u64, EACH);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn when_the_head_dies_every_wait_ends_with_an_error() {
    let place = support::Cluster::builder().workers(1).start();
    let cluster = connect(&place);
    let never = place.file("never");
    let submit = || cluster.remote("nested_tasks:after").arg(&never).arg(0).submit().expect("the head takes it");
    let (one, two, three) = (submit(), submit(), submit());
    let id = one.id().expect("it was accepted");
    let done = cluster.remote("demo:my_function").submit().unwrap();
    let waiters = [thread::spawn(move || one.get::<u64>()), thread::spawn(move || two.get::<u64>())];
    place.kill_head();
    for waiter in waiters {
        let error = waiter.join().expect("no panic").expect_err("nobody is left to answer");
        assert_eq!(error.kind(), RemoteErrorKind::Submission);
        assert!(error.to_string().contains("the connection to the head broke"), "{error}");
    }
    let told = as_completed::<u64>([three, done]).unwrap();
    assert_eq!(told.filter(|completed| completed.result.is_err()).count(), 2);
    assert!(cluster.remote("demo:my_function").submit().and_then(TaskHandle::get::<u64>).is_err());
    assert!(id > 0);
}

#[test]
fn a_head_of_its_own_lives_as_long_as_the_cluster() {
    let cluster = embedded(2);
    assert!(cluster.is_embedded());
    let other = embedded(1);
    let place = cluster.embedded_temp_dir().expect("it has one");
    assert_ne!(Some(&place), other.embedded_temp_dir().as_ref());
    let status = cluster.status().unwrap();
    assert_eq!((status.metrics.workers.wanted, other.status().unwrap().metrics.workers.wanted), (2, 1));
    let task = cluster.remote("nested_tasks:square").arg(4).submit().unwrap();
    let never = place.join("never");
    let runs = cluster.remote("nested_tasks:after").arg(&never).arg(0).submit().unwrap();
    drop(cluster);
    assert_eq!(task.get::<u64>().unwrap(), 16, "a handle keeps it");
    assert!(support::is_alive(status.head_pid));
    let begun = Instant::now();
    drop(runs);
    assert!(!support::is_alive(status.head_pid), "it ends before the drop does");
    assert!(begun.elapsed() < Duration::from_secs(10), "a task that runs does not keep it: {:?}", begun.elapsed());
    assert!(!place.exists(), "nothing is left of it");
    assert_eq!(other.remote("demo:my_function").submit().unwrap().get::<u64>().unwrap(), 1, "another one goes on");
}

#[test]
fn a_submission_says_what_it_needs() {
    let init = Init::new().embedded(EmbeddedHead::Always).executable(env!("CARGO_BIN_EXE_tracer")).num_workers(1);
    let cluster = init.start_argument("--resources=gpu=2").init().expect("a head can be started");
    let submit = |gpus| cluster.remote("demo:my_function").num_cpus(1).resource("gpu", gpus).submit().unwrap();
    assert_eq!(submit(2).get::<u64>().unwrap(), 1);
    let error = submit(3).get::<u64>().unwrap_err();
    assert_eq!(error.kind(), RemoteErrorKind::Submission, "{error}");
    assert!(error.to_string().contains("gpu"), "{error}");
    let error = cluster.remote("demo:my_function").resource("cpu", 1).submit().unwrap_err();
    assert!(error.to_string().starts_with("`cpu` is no resource by name"), "{error}");
}

#[test]
fn a_head_of_its_own_that_was_killed_leaves_nothing() {
    let cluster = embedded(1);
    let place = cluster.embedded_temp_dir().expect("it has one");
    let task = cluster.remote("nested_tasks:after").arg(place.join("never")).arg(0).submit().unwrap();
    task.id().expect("it was accepted");
    let head = cluster.status().unwrap().head_pid;
    kill(head, rustix::process::Signal::KILL);
    assert!(task.get::<u64>().is_err());
    drop(cluster);
    assert!(!support::is_alive(head));
    assert!(!place.exists());
}

#[test]
fn a_panic_stops_the_head_of_its_own() {
    let (head_tx, head_rx) = std::sync::mpsc::channel();
    let panicked = thread::spawn(move || {
        let cluster = embedded(1);
        let task = cluster.remote("demo:my_function").submit().unwrap();
        head_tx.send((cluster.status().unwrap().head_pid, cluster.embedded_temp_dir().unwrap())).unwrap();
        assert_eq!(task.get::<u64>().unwrap(), 2, "on purpose");
    });
    let (head, place) = head_rx.recv().unwrap();
    assert!(panicked.join().is_err());
    assert!(!support::is_alive(head) && !place.exists());
}

#[test]
fn without_a_head_it_is_said_what_to_do() {
    let place = support::Cluster::builder().build();
    let init = || Init::new().temp_dir(place.temp_dir());
    let error = init().embedded(EmbeddedHead::Never).init().unwrap_err();
    assert!(error.to_string().starts_with("no head is running in `"), "{error}");
    let error = init().executable("/no/such/tracer").init().unwrap_err().to_string();
    assert!(error.contains("looked for `/no/such/tracer`\n(hint: set `TRACER_EXECUTABLE`"), "{error}");
    let error = init().executable("/bin/false").init().unwrap_err().to_string();
    let expected =
        "a head of this program's own (`/bin/false`) did not start: it exited with code 1 before it was ready";
    assert_eq!(error, expected);
    let hooked = || init().executable(env!("CARGO_BIN_EXE_tracer")).spans_dir(place.spans_dir());
    let error = hooked().tracing_startup_hook("no_such_module:setup").init().unwrap_err().to_string();
    assert!(error.contains("did not start: ") && error.contains("`no_such_module`"), "{error}");
    let error = hooked().num_workers(0).init().unwrap_err().to_string();
    assert!(error.contains("`--num-workers`: expected a number from 1"), "{error}");
    place.assert_nothing_runs();
}

#[test]
fn a_running_cluster_that_is_other_than_was_asked_for_is_an_error() {
    let place = support::Cluster::traced();
    let init = || Init::new().temp_dir(place.temp_dir()).embedded(EmbeddedHead::IfNoneRuns).untraced();
    let error = init().tracing_startup_hook("otlp:setup_tracing").init().unwrap_err().to_string();
    let expected = format!(
        "expected a cluster with `otlp:setup_tracing`, but the one in `{}` has `local_tmp_tracing:setup_tracing`\n(hint: ",
        place.temp_dir().display()
    );
    assert!(error.starts_with(&expected), "{error}");
    let error = init().tracing_exporter(support::HOOK).init().unwrap_err().to_string();
    assert!(error.starts_with("expected a cluster with"), "of another contract: {error}");
    let error = init().tracing_startup_hook(support::HOOK).tracing_startup_hook("console:setup_tracing").init();
    assert!(error.unwrap_err().to_string().contains("and `console:setup_tracing`"));
    let error = init().num_workers(4).init().unwrap_err().to_string();
    assert!(error.starts_with("`num_workers` asked for 4 workers, but the cluster in `"), "{error}");
    let error = init().start_argument("--resources=gpu=2").init().unwrap_err().to_string();
    assert!(error.starts_with("`start_argument` asked for `--resources=gpu=2`, but the cluster in `"), "{error}");
    let error = init().spans_dir("/elsewhere").init().unwrap_err().to_string();
    assert!(error.starts_with("`spans_dir` asked for `/elsewhere`, but the cluster that runs in `"), "{error}");
    let error = init().module_path("/modules").init().unwrap_err().to_string();
    assert!(error.contains("asked for `/modules`") && error.contains(" has "), "{error}");
    let cluster = init().tracing_startup_hook(support::HOOK).spans_dir(place.spans_dir()).init().unwrap();
    assert_eq!(cluster.remote("demo:my_function").submit().unwrap().get::<u64>().unwrap(), 1);

    let untraced = support::Cluster::untraced();
    let error = Init::new().temp_dir(untraced.temp_dir()).tracing_startup_hook(support::HOOK).init().unwrap_err();
    assert!(error.to_string().contains(" has no hook\n"), "{error}");
}

/// Wakes a thread that polls one future.
struct Unpark(Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, SeqCst);
        self.0.unpark();
    }
}

/// Runs a future on the simplest executor there is.
fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark(thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    loop {
        while !unpark.1.swap(false, SeqCst) {
            thread::park();
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
}

#[test]
fn a_future_needs_no_runtime() {
    let place = support::Cluster::untraced();
    let cluster = connect(&place);
    let task = cluster.remote("nested_tasks:square").arg(6).submit().unwrap();
    assert_eq!(block_on(task.get_async::<u64>()).unwrap(), 36);
    let error = cluster.remote("misbehaving_tasks:returns_error").arg("no").submit().unwrap();
    assert_eq!(block_on(error.get_async::<()>()).unwrap_err().message(), "no");
    let tasks = (0..20).map(|n| cluster.remote("nested_tasks:square").arg(n).submit().unwrap());
    let mut results = as_completed::<u64>(tasks).unwrap();
    let sum = block_on(async {
        let mut sum = 0;
        while let Some(completed) = results.next_async().await {
            sum += completed.result.unwrap();
        }
        sum
    });
    assert_eq!(sum, (0..20_u64).map(|n| n * n).sum::<u64>());
    // Blocking and not blocking go together.
    let task = cluster.remote("nested_tasks:square").arg(7).submit().unwrap();
    assert_eq!(task.get::<u64>().unwrap(), 49);
}

#[test]
fn a_future_leaves_the_executor_free_and_may_be_dropped() {
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    let released = place.file("released");
    // One thread: if a wait blocked it, nobody would write the file that the task waits for.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let slow = cluster.remote("nested_tasks:after").arg(&released).arg(1).submit().unwrap();
        let abandoned = cluster.remote("nested_tasks:after").arg(&released).arg(2).submit().unwrap();
        let abandoned_id = abandoned.id().expect("it was accepted");
        let limit = Duration::from_millis(20);
        assert!(tokio::time::timeout(limit, abandoned.get_async::<u64>()).await.is_err(), "it waits for a file");
        let (result, ()) = tokio::join!(slow.get_async::<u64>(), async {
            tokio::task::yield_now().await;
            release(&released);
        });
        assert_eq!(result.unwrap(), 1);
        assert_eq!(place.wait_for_task(abandoned_id)["result"], 2, "it ran on");
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let found = runtime.block_on(async {
        let spawn = |n: u64| {
            let cluster = cluster.clone();
            tokio::spawn(async move {
                cluster.remote("nested_tasks:square").arg(n).submit().unwrap().get_async::<u64>().await.unwrap()
            })
        };
        let tasks: Vec<_> = (0..200).map(spawn).collect();
        let mut found = HashSet::new();
        for task in tasks {
            found.insert(task.await.expect("no panic"));
        }
        found
    });
    assert_eq!(found, (0..200).map(|n| n * n).collect());
}

#[test]
fn a_future_ends_with_an_error_when_the_head_dies() {
    let place = support::Cluster::untraced();
    let cluster = connect(&place);
    let never = place.file("never");
    let task = cluster.remote("nested_tasks:after").arg(&never).arg(0).submit().unwrap();
    let other = cluster.remote("nested_tasks:after").arg(&never).arg(0).submit().unwrap();
    task.id().expect("it was accepted");
    let waiting = thread::spawn(move || block_on(task.get_async::<u64>()));
    let set = thread::spawn(move || {
        let mut results = as_completed::<u64>([other]).expect("one cluster");
        block_on(results.next_async()).expect("one task").result
    });
    place.kill_head();
    assert!(waiting.join().expect("no panic").is_err());
    assert!(set.join().expect("no panic").is_err());
}

#[test]
fn waits_end_while_another_thread_submits_without_pause() {
    let place = support::Cluster::builder().workers(2).start();
    let cluster = connect(&place);
    for round in 0..3 {
        let future = cluster.remote("nested_tasks:square").arg(round).submit().unwrap();
        let blocking = cluster.remote("nested_tasks:square").arg(round).submit().unwrap();
        cluster.flush().unwrap();
        let waiting = [
            thread::spawn(move || block_on(future.get_async::<u64>()).expect("it ends well")),
            thread::spawn(move || blocking.get::<u64>().expect("it ends well")),
        ];
        // Whoever submits looks now and then at what has come, and waits for nothing.
        let mut submitted = 0;
        while !waiting.iter().all(thread::JoinHandle::is_finished) {
            drop(cluster.remote("demo:my_function").submit().unwrap());
            submitted += 1;
            assert!(submitted < 1_000_000, "nobody was woken");
        }
        waiting.into_iter().for_each(|thread| assert_eq!(thread.join().expect("no panic"), round * round));
        // The next two shall not wait behind all of those.
        cluster.cancel_all().unwrap();
    }
}
