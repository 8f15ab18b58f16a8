//! Deaths of those that a task of a queue is in the hands of, at each step of its way: whatever was accepted runs and ends, what was refused never does, and
//! who comes back from the dead changes nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::engine::{agent_pid, holder, origin, submit_blocked};
use crate::support::{Broker, Cluster, is_alive, kill_if_there, wait_until, wait_until_within};

/// The variable that says how often a broker is killed right after it has acknowledged, and how often without it.
const BROKER_KILLS: &str = "TRACER_BROKER_KILLS";
const FEW_KILLS: u64 = 5;
/// Time that a take-over may take here: two intervals of redelivery, and on a busy machine some more.
const TAKEN_OVER: Duration = Duration::from_secs(60);

pub(crate) fn starts(path: &Path) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().filter(|line| *line == "begin").count()
}

pub(crate) fn signal_all(cluster: &Cluster, signal: Signal) {
    for process in cluster.processes() {
        kill_if_there(process.pid, signal);
    }
}

pub(crate) fn in_cluster(place: &str, task: u64) -> String {
    format!("{place}-{task}")
}

pub(crate) fn place_of(cluster: &Cluster) -> String {
    cluster.status()["engine"]["place_id"].as_str().expect("it has one").to_owned()
}

/// Returns a task if it has ended.
fn ended(origin: &Cluster, id: u64) -> Option<Value> {
    Some(origin.task(id)).filter(|task| ["succeeded", "failed"].iter().any(|end| task["state"] == *end))
}

/// Submits a task that notes its starts in a file, without waiting; returns its id if it was accepted.
pub(crate) fn submit_counted(origin: &Cluster, flags: &[&str], path: &Path) -> Option<u64> {
    let path = json!(path).to_string();
    let command = ["submit", "task", "--queue", "default", "--no-wait", "misbehaving_tasks:notes_when", &path];
    let run = origin.tracer(&[&command[..], flags].concat());
    run.output.status.success().then(|| run.stdout_text().trim().parse().expect("an id"))
}

/// Starts a holder and an origin, and keeps both slots of the holder busy, so that what comes behind waits: each task with the files that it has written, and
/// waits for.
pub(crate) fn with_busy_slots(broker: &Broker, flags: &[&str]) -> (Cluster, Cluster, [(u64, [String; 2]); 2]) {
    let (b, a) = (holder(broker), origin(broker));
    agent_pid(&b);
    let running = ["one", "two"].map(|name| submit_blocked(&a, flags, name));
    running.iter().for_each(|(_, [started, _])| b.wait_for_file(started.as_ref()));
    (b, a, running)
}

#[test]
fn an_origin_whose_head_or_agent_dies_at_any_step_of_a_submission_has_it_run_once() {
    let Some(broker) = Broker::start() else { return };
    let b = holder(&broker);
    agent_pid(&b);
    // In the head, in the agent, and in the head again.
    for point in ["task_journaled", "task_shared", "task_published", "task_acknowledged", "task_stored"] {
        for flags in [&["--crash-limit", "0"][..], &["--at-most-once"]] {
            let a = Cluster::builder().workers(0).arg("--address").arg(broker.address());
            let a = a.env("TRACER_TEST_KILL_AT", point).build();
            let once = a.file("once");
            let mut start = a.start_command(&[]);
            start.env("TRACER_TEST_KILL_ONCE", &once);
            a.run(start).success();
            agent_pid(&a);
            let path = a.file("counted");
            let accepted = submit_counted(&a, flags, &path);
            wait_until("somebody has died", || once.exists().then_some(()));
            let is_of_head = ["task_journaled", "task_stored"].contains(&point);
            if is_of_head {
                assert_eq!(accepted, None, "{point}: its head has died before it could answer");
                let mut start = a.start_command(&[]);
                start.env("TRACER_TEST_KILL_ONCE", &once);
                wait_until("a head starts again", || {
                    let has_started = a.head_record().is_null() || !is_alive(a.head_pid());
                    has_started.then_some(())
                });
                a.run(start).success();
            } else {
                assert!(accepted.is_some(), "{point}: the next agent has it stored");
            }
            // It was accepted, or its head knows it, or nobody does and it never runs.
            let tasks = a.tasks();
            let known: Vec<_> = tasks.iter().filter_map(|task| task["id"].as_u64()).collect();
            assert!(accepted.is_none_or(|id| known.contains(&id)), "{point}: {accepted:?} of {known:?}");
            for id in &known {
                let task = wait_until_within(TAKEN_OVER, "it ends", || ended(&a, *id));
                assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(1)), "{point}: {task}");
            }
            assert_eq!(starts(&path), known.len(), "{point} {flags:?}");
        }
    }
}

#[test]
fn a_broker_that_is_killed_after_each_acknowledgement_loses_no_task() {
    let kills = std::env::var(BROKER_KILLS).map_or(FEW_KILLS, |kills| kills.parse().expect("a number"));
    let Some(mut broker) = Broker::start() else { return };
    let a = origin(&broker);
    let b = holder(&broker);
    agent_pid(&b);
    let mut tasks = Vec::new();
    for number in 0..kills {
        agent_pid(&a);
        let path = a.file(&format!("counted-{number}"));
        let flags: &[&str] = if number % 2 == 0 { &["--at-most-once"] } else { &[] };
        let id = submit_counted(&a, flags, &path).expect("it is accepted");
        broker.kill();
        broker.come_back();
        tasks.push((id, path));
    }
    for (id, path) in tasks {
        let task = wait_until_within(Duration::from_secs(120), "it ends", || ended(&a, id));
        assert_eq!((&task["state"], starts(&path)), (&json!("succeeded"), 1), "{task}");
    }
}

#[test]
fn tasks_run_although_the_server_has_forgotten_how_far_their_queue_had_come() {
    let Some(mut broker) = Broker::start() else { return };
    let (a, b) = (origin(&broker), holder(&broker));
    agent_pid(&b);
    let ends = |what: &str, flags: &[&str]| {
        agent_pid(&a);
        let path = a.file(what);
        let id = submit_counted(&a, flags, &path).expect("it is accepted");
        let task = wait_until_within(TAKEN_OVER, "it ends", || ended(&a, id));
        assert_eq!((&task["state"], starts(&path)), (&json!("succeeded"), 1), "{task}");
    };
    for number in 0..5 {
        ends(&format!("before-{number}"), &[]);
    }
    broker.kill();
    broker.wipe_messages("TRACER_default_Q_default");
    broker.come_back();
    for (number, flags) in [&[][..], &["--at-most-once"]].into_iter().enumerate() {
        ends(&format!("after-{number}"), flags);
    }
    wait_until("nothing is left in the queue", || {
        a.tracer(&["status"]).stdout_text().contains("default: 0 waiting, 0 running, served by").then_some(())
    });
}

#[test]
fn an_engine_whose_store_is_wiped_is_said_to_have_lost_writes_and_what_waited_runs() {
    let Some(mut broker) = Broker::start() else { return };
    let (b, a, running) = with_busy_slots(&broker, &["--at-most-once"]);
    let (plain, once) = (a.file("plain"), a.file("once"));
    let waiting = [submit_counted(&a, &[], &plain), submit_counted(&a, &["--at-most-once"], &once)].map(Option::unwrap);
    // What a node was told of comes from its heartbeats at the latest.
    for node in [&a, &b] {
        assert!(!node.status()["warnings"].to_string().contains("has lost writes"));
    }
    broker.kill();
    broker.wipe();
    broker.come_back();
    running.iter().for_each(|(_, [_, go])| fs::write(go, "").expect("the folder is ours"));
    let mut end_of = |id: u64| {
        wait_until_within(Duration::from_secs(120), "it ends", || {
            broker.supervise();
            ended(&a, id)
        })
    };
    let task = end_of(waiting[0]);
    assert_eq!((&task["state"], starts(&plain)), (&json!("succeeded"), 1), "{task}");
    for (id, starts_of) in [(waiting[1], starts(&once)), (running[0].0, 0), (running[1].0, 0)] {
        let task = end_of(id);
        assert_eq!((&task["failure"]["reason"], starts_of), (&json!("lost"), 0), "{task}");
        assert!(task["message"].as_str().is_some_and(|text| text.contains("the engine has lost it")), "{task}");
    }
    // A node that had heard of fewer records than there are again by then cannot tell.
    let says = wait_until("a node says that the engine has lost writes", || {
        [&a, &b].into_iter().find(|node| node.status()["warnings"].to_string().contains("has lost writes"))
    });
    says.tracer(&["status"]).success().stdout_contains("has lost writes").stdout_contains("`tracer engine config`");
}

#[test]
fn an_origin_whose_place_is_wiped_has_its_tasks_run_and_any_node_reads_the_outcomes() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, running) = with_busy_slots(&broker, &[]);
    let path = a.file("counted");
    let waiting = submit_counted(&a, &[], &path).expect("it is accepted");
    let place = place_of(&a);
    signal_all(&a, Signal::KILL);
    wait_until("the origin is gone", || a.processes().is_empty().then_some(()));
    fs::remove_dir_all(a.temp_dir()).expect("it is ours");
    running.iter().for_each(|(_, [_, go])| fs::write(go, "").expect("the folder is ours"));
    for id in running.iter().map(|(id, _)| *id).chain([waiting]) {
        wait_until("any node reads the outcome", || {
            let found = b.tracer(&["get", &in_cluster(&place, id), "--format", "json"]).success().json();
            (found["state"] == "succeeded" && found["attempt"] == 1).then_some(())
        });
    }
    assert_eq!(starts(&path), 1);
    // Who comes in its place is another origin.
    a.start_head(&[]).success();
    agent_pid(&a);
    assert_ne!(place_of(&a), place);
}

#[test]
fn a_queue_that_is_full_refuses_by_name_and_what_it_refused_never_runs() {
    let Some(broker) = Broker::start() else { return };
    let (_b, a, running) = with_busy_slots(&broker, &[]);
    let stream = "TRACER_default_Q_default";
    let mut config = broker.jetstream(&format!("STREAM.INFO.{stream}"), &Value::Null)["config"].clone();
    config["max_msgs"] = json!(3);
    let changed = broker.jetstream(&format!("STREAM.UPDATE.{stream}"), &config);
    assert_eq!(changed["error"], Value::Null, "{changed}");
    let paths = ["taken", "refused"].map(|name| a.file(name));
    let taken = submit_counted(&a, &[], &paths[0]).expect("there is room for a third one");
    let path = json!(paths[1]).to_string();
    a.tracer(&["submit", "task", "--queue", "default", "misbehaving_tasks:notes_when", &path])
        .status(1)
        .stderr_contains("is full")
        .stderr_contains("(hint: submit more when some have ended)");
    running.iter().for_each(|(_, [_, go])| fs::write(go, "").expect("the folder is ours"));
    assert_eq!(a.wait_for_task(taken)["state"], "succeeded");
    // There is room again, and what comes now runs behind all that was there.
    assert_eq!(a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success().stdout_text(), "1\n");
    assert_eq!(paths.map(|path| starts(&path)), [1, 0]);
}

#[test]
fn a_node_that_was_stopped_for_longer_than_a_take_over_ends_what_it_runs_and_changes_nothing() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let submit = |name: &str| {
        let [path, go] = [name.to_owned(), format!("{name}-go")].map(|name| a.file(&name));
        let arguments = [&path, &go].map(|path| json!(path).to_string());
        let command = ["submit", "task", "--queue", "default", "--no-wait", "misbehaving_tasks:counts_and_waits"];
        let run = a.tracer(&[&command[..], &arguments.each_ref().map(String::as_str)].concat()).success();
        (run.stdout_text().trim().parse::<u64>().expect("an id"), path, go)
    };
    let tasks = ["ends", "goes-on"].map(submit);
    let count = |path: &Path| fs::read_to_string(path).unwrap_or_default().lines().count();
    wait_until("both have begun", || tasks.iter().all(|(_, path, _)| count(path) == 1).then_some(()));
    signal_all(&b, Signal::STOP);
    let c = holder(&broker);
    agent_pid(&c);
    let node_c = c.status()["node_id"].clone();
    wait_until_within(TAKEN_OVER, "another node has both", || {
        tasks.iter().all(|(_, path, _)| count(path) == 2).then_some(())
    });
    let [(ended, _, go), (open, _, open_go)] = &tasks;
    fs::write(go, "").expect("the folder is ours");
    let before = a.wait_for_task(*ended);
    assert_eq!((&before["state"], &before["attempt"], &before["result"]), (&json!("succeeded"), &json!(2), &json!(2)));

    signal_all(&b, Signal::CONT);
    // One of its attempts ends by itself, and the other one goes on until this node has found out that it counts for nothing.
    wait_until("it runs nothing any more", || {
        let tasks = b.status()["tasks"].clone();
        (tasks["waiting"] == 0 && tasks["leased"] == 0).then_some(())
    });
    assert!(!open_go.exists());
    fs::write(open_go, "").expect("the folder is ours");
    let task = a.wait_for_task(*open);
    assert_eq!((&task["state"], &task["attempt"], &task["result"]), (&json!("succeeded"), &json!(2), &json!(2)));
    assert_eq!(a.task(*ended), before, "its outcome has changed nothing");
    let place = place_of(&a);
    for id in [*ended, *open] {
        let found = b.tracer(&["get", &in_cluster(&place, id), "--format", "json"]).success().json();
        assert_eq!((&found["node_id"], &found["attempt"]), (&node_c, &json!(2)), "{found}");
    }

    for node in [&a, &b, &c] {
        node.stop().success();
        node.assert_nothing_runs();
    }
    let mut spans = a.spans();
    [&b, &c].iter().for_each(|node| spans.spans.extend(node.spans().spans));
    spans.assert_whole(&[]);
    let attempts = spans.all_named("misbehaving_tasks.counts_and_waits tracer.remote_worker");
    for id in [*ended, *open].map(|id| json!(in_cluster(&place, id))) {
        let of_task = attempts.iter().filter(|span| *span.attribute("tracer.cluster_task_id") == id);
        let mut found: Vec<_> = of_task
            .map(|span| (span.attribute("tracer.attempt").as_u64(), *span.attribute("tracer.stand_in") == json!(true)))
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(Some(1), false), (Some(1), true), (Some(2), false)], "{id}");
    }
}

/// The variable that says how often a node is stopped and started again.
const RESTARTS: &str = "TRACER_ROLLING_RESTARTS";
const FEW_RESTARTS: usize = 4;

#[test]
fn a_rolling_restart_of_three_nodes_fails_and_charges_nothing() {
    let Some(broker) = Broker::start() else { return };
    let restarts = std::env::var(RESTARTS).map_or(FEW_RESTARTS, |count| count.parse().expect("a number of restarts"));
    let nodes = [holder(&broker), holder(&broker), holder(&broker)];
    let a = origin(&broker);
    for node in nodes.iter().chain([&a]) {
        agent_pid(node);
    }
    let count = 100 * restarts;
    let paths = |name: &str, further: &str| {
        let lines: String =
            (0..count).map(|number| format!("{}{further}\n", json!(a.file(&format!("{name}-{number}"))))).collect();
        let file = a.file(&format!("{name}.lines"));
        fs::write(&file, lines).expect("the folder is ours");
        file.to_string_lossy().into_owned()
    };
    let maps: Vec<_> = [
        ("hostile_tasks:notes_and_sleeps", paths("uncrashed", ""), &["--crash-limit=0"][..]),
        ("hostile_tasks:notes_and_sleeps", paths("once", ""), &["--at-most-once"]),
        ("misbehaving_tasks:fails_at_first", paths("retried", " 1"), &["--crash-limit=0", "--retries=1"]),
    ]
    .into_iter()
    .map(|(target, lines, flags)| {
        let command = ["submit", "task", "--queue", "default", target, "--map", &*lines];
        a.tracer_in_background(&[&command[..], flags].concat())
    })
    .collect();
    wait_until("tasks run", || (a.status()["tasks"]["succeeded"].as_u64() > Some(0)).then_some(()));
    for restart in 0..restarts {
        let node = &nodes[restart % nodes.len()];
        if restart % 2 == 0 {
            node.stop().success();
            node.start_head(&[]).success();
        } else {
            node.tracer(&["restart"]).success();
        }
    }
    maps.into_iter().for_each(|map| drop(map.wait_within(Duration::from_secs(120)).success()));
    let list = a.tracer(&["list", "tasks", "--limit", "10000", "--format", "json"]).success().json();
    let tasks = list["tasks"].as_array().expect("a list");
    assert_eq!(tasks.len(), 3 * count);
    let wrong = |task: &&Value| {
        let attempts = if task["target"] == "misbehaving_tasks.fails_at_first" { 2 } else { 1 };
        task["attempt"] != attempts
    };
    assert_eq!(tasks.iter().find(wrong), None, "no attempt was charged");
    let mut spans = a.spans();
    for node in &nodes {
        node.stop().success();
        spans.spans.extend(node.spans().spans);
    }
    spans.assert_whole(&[]);
    let attempts = |name: &str| spans.all_named(&format!("{name} tracer.remote_worker")).len();
    let found = (attempts("hostile_tasks.notes_and_sleeps"), attempts("misbehaving_tasks.fails_at_first"));
    assert_eq!(found, (2 * count, 2 * count), "each attempt has one span");
}
