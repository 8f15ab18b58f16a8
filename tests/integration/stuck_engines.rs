//! Engines that stand still, in part or as a whole: it is said by name, with what mends it; what may be mended by a node is; and nobody is kept waiting for it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engine::{agent_pid, holder, origin};
use crate::support::{Broker, Cluster, Run, wait_until, wait_until_within};

/// Time within which a node makes again what is gone of its queues, on a busy machine.
const MENDED: Duration = Duration::from_secs(60);

fn submit(node: &Cluster) -> Run {
    node.tracer(&["submit", "task", "--queue", "default", "--no-wait", "demo:my_function"])
}

fn id_of(run: &Run) -> u64 {
    run.stdout_text().trim().parse().expect("an id")
}

/// Returns the codes of what `tracer doctor` finds.
fn findings(node: &Cluster) -> Vec<String> {
    let report = node.tracer(&["doctor", "--format", "json"]).json();
    let rows = report["findings"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| row["code"].as_str().expect("a text").to_owned()).collect()
}

/// Changes a stream as anybody could who may.
fn change(broker: &Broker, subject: &str, question: &Value) {
    let answer = broker.jetstream(subject, question);
    assert!(answer["error"].is_null(), "{subject}: {answer}");
}

#[test]
fn a_queue_that_nobody_is_given_tasks_of_is_told_by_name_and_made_again_by_a_node_that_may() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    for node in [&a, &b] {
        agent_pid(node);
    }
    submit(&a).success();
    assert_eq!(a.wait_for_task(1)["state"], "succeeded");
    b.stop().success();

    change(&broker, "CONSUMER.DELETE.TRACER_default_Q_default.w", &json!({}));
    let waiting = id_of(&submit(&a).success());
    assert!(findings(&a).contains(&"stuck_queue".to_owned()), "{:?}", findings(&a));
    let text = "the consumer `w` of its stream `TRACER_default_Q_default` is gone";
    a.tracer(&["doctor"]).status(1).stdout_contains(text).stdout_contains("(hint: `tracer engine init --address ");
    a.tracer(&["explain", &waiting.to_string()]).success().stdout_contains("stands still").stdout_contains(text);
    a.tracer(&["status"]).success().stdout_contains("it stands still: ");

    // A node that starts makes it, and one that runs does too.
    b.start_head(&[]).success();
    assert_eq!(a.wait_for_task(waiting)["state"], "succeeded");
    for (subject, what) in [
        ("CONSUMER.DELETE.TRACER_default_Q_default.w", "a consumer"),
        ("STREAM.DELETE.TRACER_default_Q_default", "a stream"),
    ] {
        change(&broker, subject, &json!({}));
        // There is no such queue until it is made again.
        let again = wait_until_within(MENDED, &format!("{what} is there again"), || {
            let run = submit(&a);
            run.output.status.success().then(|| id_of(&run))
        });
        let ended = wait_until_within(MENDED, &format!("a task ends after {what} was gone"), || {
            Some(a.task(again)["state"].clone()).filter(|state| state == "succeeded")
        });
        assert_eq!(ended, "succeeded");
    }

    b.stop().success();
    change(&broker, "STREAM.DELETE.TRACER_default_KEY", &json!({}));
    assert!(findings(&a).contains(&"no_stream".to_owned()), "{:?}", findings(&a));
    // Somebody makes a stream of the queue's name that is none.
    change(&broker, "STREAM.DELETE.TRACER_default_Q_default", &json!({}));
    let config = json!({
        "name": "TRACER_default_Q_default", "subjects": ["tracer.default.q.default.*"], "retention": "limits",
        "storage": "file", "num_replicas": 1, "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "max_age": 0,
        "discard": "old", "description": "tracer, cluster version 1",
    });
    change(&broker, "STREAM.CREATE.TRACER_default_Q_default", &config);
    a.tracer(&["doctor"]).status(1).stdout_contains("is not a work queue: somebody has made it otherwise");
}

#[test]
fn a_submission_to_an_engine_that_takes_connections_and_answers_nothing_is_accepted_in_time_and_runs_later() {
    let Some(mut broker) = Broker::start() else { return };
    let b = holder(&broker);
    let a = Cluster::builder().workers(1).arg("--address").arg(broker.address()).arg("--engine-wait=500ms").start();
    for node in [&a, &b] {
        agent_pid(node);
    }
    broker.signal(Signal::STOP);
    let begun = Instant::now();
    let id = id_of(&submit(&a).success());
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    let log = a.head_log();
    assert!(
        log.contains(&format!("the engine has not answered the submission of task {id}, which is accepted")),
        "{log}"
    );
    // Nor does what is asked beside it keep one waiting: which builds of a module in a folder there are.
    let begun = Instant::now();
    let echo = a.tracer(&["submit", "task", "--queue", "default", "--no-wait", "nested_tasks:echo", "\"x\""]);
    let other = id_of(&echo.success());
    assert!(begun.elapsed() < Duration::from_secs(4), "it took {:?}", begun.elapsed());
    a.tracer(&["submit", "task", "demo:my_function"]).success();
    wait_until("it is said that it cannot be used", || (a.status()["engine"]["is_reachable"] == false).then_some(()));
    broker.come_back();
    agent_pid(&a);
    for task in [id, other] {
        assert_eq!(a.wait_for_task(task)["state"], "succeeded");
    }
    assert_eq!(b.tasks().len(), 2);
}

#[test]
fn servers_that_are_away_are_told_and_so_is_that_nothing_is_stored_any_more() {
    let Some(mut brokers) = Broker::start_three() else { return };
    let node = |workers: usize| {
        let builder = Cluster::builder().workers(workers).arg("--address").arg(brokers[0].address());
        builder.arg("--insecure-engine").arg("--engine-wait=500ms")
    };
    let (b, a) = (node(2).arg("--queue=default=2").start(), node(1).start());
    for node in [&a, &b] {
        agent_pid(node);
    }
    let found = |code: &str| findings(&a).iter().any(|found| found == code);
    assert!(!found("server_away"));
    brokers[2].kill();
    wait_until("the server that is away is named", || found("server_away").then_some(()));
    a.tracer(&["doctor"]).stdout_contains("the server `tracer-3` is away").stdout_contains("(hint: start it again");
    wait_until_within(MENDED, "the two others go on", || submit(&a).output.status.success().then_some(()));

    brokers[1].kill();
    wait_until("nothing is stored any more", || (a.status()["engine"]["is_reachable"] == false).then_some(()));
    let said = a.status()["warnings"].to_string();
    assert!(said.contains("has stored nothing of this node for 10 s") || said.contains("cannot be reached"), "{said}");
    let begun = Instant::now();
    submit(&a);
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    assert_ne!(findings(&a), [""; 0]);
    brokers[1..].iter_mut().for_each(Broker::come_back);
    wait_until_within(MENDED, "all of them go on", || submit(&a).output.status.success().then_some(()));
}

#[test]
fn a_head_starts_without_its_engine_which_delays_nothing_of_its_own_and_joins_it_when_it_is_there() {
    let Some(mut broker) = Broker::start() else { return };
    broker.kill();
    let joins = Cluster::builder().workers(1).arg("--address").arg(broker.address()).arg("--queue=default");
    let (a, started) = joins.arg("--engine-wait=300ms").try_start();
    let port = broker.port();
    started
        .success()
        .stderr_contains(&format!(
            "no engine can be reached at `nats://127.0.0.1:{port}`: IO error: Connection refused"
        ))
        .stderr_contains("the head starts without it")
        .stderr_contains(&format!("(hint: start one with `nats-server -a 127.0.0.1 -p {port} -js"));
    assert_eq!(a.tracer(&["submit", "task", "demo:my_function"]).success().stdout_text(), "1\n");
    submit(&a).status(1).stderr_contains("could not be reached for 300 ms");
    a.tracer(&["doctor"]).status(1).stdout_contains("no engine can be reached");
    broker.come_back();
    agent_pid(&a);
    assert_eq!(a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success().stdout_text(), "1\n");
}

#[test]
fn an_engine_that_takes_small_messages_alone_is_warned_of_and_what_does_not_fit_fails_by_name() {
    let Some(broker) = Broker::start_configured("max_payload: 65536\n") else { return };
    let joins = Cluster::builder().workers(2).arg("--address").arg(broker.address()).arg("--queue=default");
    let (a, started) = joins.try_start();
    started.success().stderr_contains("takes messages of at most 64 KiB").stderr_contains("(hint: `max_payload: 1MB`");
    agent_pid(&a);
    let echo =
        |text: &str| a.tracer(&["submit", "task", "--queue", "default", "nested_tasks:echo", &json!(text).to_string()]);
    echo(&"x".repeat(100_000))
        .status(1)
        .stderr_contains("its message takes")
        .stderr_contains("(hint: a larger `max_payload`");
    // A small message with a large result, and a bundle with many results.
    let grown = a.tracer(&["submit", "task", "--queue", "default", "misbehaving_tasks:big_result", "100000"]);
    grown
        .status(1)
        .stderr_contains("the result is not taken by the engine")
        .stderr_contains("(hint: a larger `max_payload`");
    std::fs::write(a.file("lines"), "2000\n".repeat(100)).expect("the folder is ours");
    let lines = a.file("lines").display().to_string();
    let map = a.tracer(&["submit", "task", "--queue", "default", "misbehaving_tasks:big_result", "--map", &lines]);
    assert_eq!(map.success().stdout_text().lines().count(), 100);
}
