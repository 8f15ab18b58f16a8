//! Orderly ends: `tracer stop` and signals lose nothing that `kill -9` keeps.

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::Driver;

use crate::support::{Cluster, HOOK, wait_until};

/// Submits a task of `misbehaving_tasks` that counts its starts in a file and waits for another, and waits until it has begun. Returns its id.
#[track_caller]
fn count_and_wait(cluster: &Cluster, name: &str, further: &[&str]) -> u64 {
    let counter = cluster.file(name);
    let arguments = [json!(counter).to_string(), json!(cluster.file(&format!("{name}.released"))).to_string()];
    let arguments = [&[&*arguments[0], &*arguments[1], "--no-wait"], further].concat();
    let id = cluster.submit("misbehaving_tasks:counts_and_waits", &arguments).success().stdout_text();
    cluster.wait_for_file(&counter);
    id.trim().parse().expect("an id")
}

fn wait_until_it_stops(cluster: &Cluster) {
    wait_until("the worker is to end", || (cluster.workers()[0]["state"] == "stopping").then_some(()));
}

fn release(cluster: &Cluster, name: &str) {
    std::fs::write(cluster.file(&format!("{name}.released")), "").expect("the folder is ours");
}

fn submit(cluster: &Cluster, target: &str, arguments: &[&str]) {
    cluster.submit(target, &[arguments, &["--no-wait"]].concat()).success();
}

#[track_caller]
fn budgets(task: &Value) -> (&Value, &Value) {
    (&task["state"], &task["attempt"])
}

#[test]
fn what_has_not_begun_is_the_next_heads_in_its_order_with_its_trace() {
    for signal in [None, Some(Signal::TERM)] {
        let cluster = Cluster::builder().workers(1).hook(HOOK).build();
        let head = signal.map(|_| {
            let head = cluster.spawn(cluster.start_command(&["--block"]));
            head.wait_for_stderr("Ctrl-C");
            head
        });
        if head.is_none() {
            cluster.start_head(&[]).success();
        }
        count_and_wait(&cluster, "running", &[]);
        let order = cluster.file("order");
        for number in 2..=4 {
            let script = format!("echo {number} >>{}", order.display());
            cluster.tracer(&["submit", "command", "--no-wait", "--", "sh", "-c", &script]).success();
        }
        let waiting = cluster.submit_in_background("demo:my_function", &[]);
        wait_until("the last one is known", || (cluster.tasks().len() == 5).then_some(()));
        match (head, signal) {
            (Some(head), Some(signal)) => {
                head.signal(signal);
                wait_until_it_stops(&cluster);
                release(&cluster, "running");
                head.wait().success().stderr_contains(
                    "stopped 1 worker; 4 tasks kept, which the next head in this place goes on with\n",
                );
            }
            _ => {
                let stop = cluster.tracer_in_background(&["stop", "--grace-period", "60s"]);
                wait_until_it_stops(&cluster);
                release(&cluster, "running");
                stop.wait()
                    .success()
                    .stderr_contains("\nkept: 4 tasks, which the next head in this place goes on with\n");
            }
        }
        waiting
            .wait()
            .status(1)
            .stderr_contains("error: task 5 (demo.my_function) has not ended: the head was stopped");
        assert!(cluster.processes().is_empty(), "{:?}", cluster.processes());
        cluster.start_head(&[]).success().stderr_contains("restored  4 tasks that an earlier head had accepted\n");
        assert_eq!(cluster.wait_for_task(5)["result"], 1);
        assert_eq!(std::fs::read_to_string(&order).expect("they ran"), "2\n3\n4\n");
        assert_eq!(budgets(&cluster.task(1)), (&json!("succeeded"), &json!(1)));
        let spans = cluster.spans();
        spans.assert_whole(&[]);
        for id in 1..=5 {
            assert_eq!(spans.parent_of(spans.attempt_of(id)).kind(), "SpanKind.PRODUCER");
        }
    }
}

#[test]
fn what_the_grace_period_cuts_short_is_run_again_uncharged_or_is_lost_if_it_may_not_be() {
    let cluster = Cluster::builder().workers(3).hook(HOOK).start();
    let again = count_and_wait(&cluster, "again", &["--crash-limit=1"]);
    let once = count_and_wait(&cluster, "once", &["--at-most-once"]);
    let uncrashed = count_and_wait(&cluster, "uncrashed", &["--crash-limit=0"]);
    // Twice, which is more than its crash limit.
    for start in 2..=3 {
        cluster.tracer(&["stop", "--grace-period", "50ms"]).success().stderr_contains("\nkept: 1 task, ");
        cluster.start_head(&[]).success();
        let counter = cluster.file("again");
        wait_until("it has begun again", || {
            let starts = std::fs::read(&counter).map_or(0, |bytes| bytes.len());
            (starts >= start).then_some(())
        });
    }
    for id in [once, uncrashed] {
        let task = cluster.task(id);
        assert_eq!(budgets(&task), (&json!("failed"), &json!(1)), "{task}");
        assert_eq!(
            task["message"],
            "lost: the head was stopped while it ran; it may not be started again, and whether it was done is not known"
        );
    }
    release(&cluster, "again");
    let task = cluster.wait_for_task(again);
    assert_eq!(budgets(&task), (&json!("succeeded"), &json!(3)), "{task}");
    let failures: Vec<_> =
        task["attempts"].as_array().into_iter().flatten().map(|past| &past["failure"]["reason"]).collect();
    assert_eq!(failures, [&json!("head_stopped"), &json!("head_stopped"), &Value::Null], "{task}");
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = spans.all_named("misbehaving_tasks.counts_and_waits tracer.remote_worker");
    assert_eq!(attempts.len(), 5);
    let stopped = attempts.iter().filter(|span| span.attribute("error.type") == &json!("stopped")).count();
    assert_eq!(stopped, 4, "each says what happened");
}

#[test]
fn a_task_that_fails_while_the_head_stops_keeps_its_retries() {
    let cluster = Cluster::untraced();
    let (counter, started, released) = (cluster.file("counter"), cluster.file("started"), cluster.file("released"));
    let script = format!(
        "echo >>{0}; if [ $(wc -l <{0}) = 1 ]; then touch {1}; while [ ! -e {2} ]; do sleep 0.01; done; exit 3; fi",
        counter.display(),
        started.display(),
        released.display()
    );
    cluster.tracer(&["submit", "command", "--no-wait", "--retries", "1", "--", "sh", "-c", &script]).success();
    cluster.wait_for_file(&started);
    let stop = cluster.tracer_in_background(&["stop", "--grace-period", "60s"]);
    wait_until_it_stops(&cluster);
    std::fs::write(released, "").expect("the folder is ours");
    stop.wait().success().stderr_contains("\nkept: 1 task, ");
    cluster.start_head(&[]).success();
    let task = cluster.wait_for_task(1);
    assert_eq!(budgets(&task), (&json!("succeeded"), &json!(2)), "{task}");
}

#[test]
fn a_stop_that_discards_ends_what_has_not_ended() {
    let cluster = Cluster::untraced();
    count_and_wait(&cluster, "running", &[]);
    let waiting = cluster.submit_in_background("demo:my_function", &[]);
    wait_until("it is known", || (cluster.tasks().len() == 2).then_some(()));
    let stopped = cluster.tracer(&["stop", "--discard", "--grace-period", "50ms", "--format", "json"]).success().json();
    assert_eq!((&stopped["unfinished"], &stopped["kept"]), (&json!(2), &json!(0)), "{stopped}");
    waiting.wait().status(1).stderr_contains("failed: the head was stopped before it had ended\n");
    let start = cluster.start_head(&[]).success();
    assert!(!start.stderr_text().contains("restored"), "{start:?}");
}

#[test]
fn a_drain_takes_nothing_new_and_stops_when_all_has_ended() {
    let cluster = Cluster::untraced();
    count_and_wait(&cluster, "running", &[]);
    submit(&cluster, "demo:my_function", &[]);
    let drain = cluster.tracer_in_background(&["stop", "--drain", "--format", "json"]);
    wait_until("it takes nothing new", || {
        let run = cluster.tracer(&["submit", "task", "--no-wait"]);
        run.stderr_text().contains("the head is stopping and takes no more tasks").then_some(())
    });
    assert_eq!(cluster.status()["workers"]["busy"], 1, "what runs goes on");
    release(&cluster, "running");
    let stopped = drain.wait().success().json();
    assert_eq!((&stopped["unfinished"], &stopped["kept"]), (&json!(0), &json!(0)), "{stopped}");
    cluster.start_head(&[]).success();
    for id in [1, 2] {
        assert_eq!(cluster.task(id)["state"], "succeeded");
    }
}

#[test]
fn large_arguments_and_results_outlive_a_stop() {
    const BYTES: usize = 400_000;
    let cluster = Cluster::untraced();
    cluster.submit("misbehaving_tasks:big_result", &[&BYTES.to_string(), "--no-wait"]).success().stdout("1\n");
    cluster.wait_for_task(1);
    count_and_wait(&cluster, "running", &[]);
    let mut driver = Driver::connect(&cluster.temp_dir()).expect("the head runs");
    let task = driver.remote("misbehaving_tasks:length").arg("x".repeat(BYTES)).expect("a text").submit();
    driver.accepted(&task.expect("it is sent")).expect("it is accepted");
    cluster.tracer(&["stop", "--force"]).success().stderr_contains("\nkept: 2 tasks, ");
    cluster.start_head(&[]).success();
    release(&cluster, "running");
    assert_eq!(cluster.wait_for_task(3)["result"], BYTES);
    assert_eq!(cluster.task(1)["result"].as_str().map(str::len), Some(BYTES));
}

#[test]
fn a_detached_actor_that_may_be_made_again_and_its_calls_outlive_a_stop() {
    let cluster = Cluster::builder().workers(1).start();
    let create = |name: &str, further: &[&str]| {
        let arguments = ["submit", "actor", "counter:Counter", "--name", name];
        cluster.tracer(&[&arguments[..], further].concat()).success();
    };
    create("again", &["--max-restarts", "2"]);
    create("never", &[]);
    cluster.tracer(&["submit", "call", "again", "increment", "1"]).success();
    cluster.stop().success();
    cluster.start_head(&[]).success();
    // It is made again, from its arguments.
    cluster.tracer(&["submit", "call", "again", "increment", "1"]).success().stdout("1\n");
    cluster.tracer(&["submit", "call", "never", "increment", "1"]).status(1).stderr_contains("the head was stopped");
}

#[test]
fn a_stop_does_not_wait_for_a_task_that_waits_for_what_is_kept() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    count_and_wait(&cluster, "other", &[]);
    let (said, path) = (cluster.file("said"), cluster.file("path"));
    let arguments = [json!(said).to_string(), json!(path).to_string()];
    let arguments = ["3", &arguments[0], &arguments[1], "--no-wait", "--crash-limit=1"];
    let parent = cluster.submit("nested_tasks:waits_for_children", &arguments).success().stdout_text();
    let parent: u64 = parent.trim().parse().expect("an id");
    let is_running = |task: &&Value| task["state"] == "running";
    wait_until("one of its children runs", || (cluster.tasks().iter().filter(is_running).count() == 3).then_some(()));
    let stop = cluster.tracer_in_background(&["stop", "--grace-period", "1h"]);
    wait_until_it_stops(&cluster);
    assert_eq!(budgets(&cluster.task(parent)), (&json!("running"), &json!(1)), "what it waits for may be cancelled");
    std::fs::write(&path, "").expect("the folder is ours");
    release(&cluster, "other");
    stop.wait().success().stderr_contains("\nkept: 1 task, ");

    cluster.start_head(&[]).success();
    let task = cluster.wait_for_task(parent);
    assert_eq!(budgets(&task), (&json!("succeeded"), &json!(2)), "{task}");
    assert_eq!(task["attempts"][0]["failure"]["reason"], "head_stopped", "{task}");
    cluster.spans().assert_whole(&[]);
}
