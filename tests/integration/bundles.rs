//! Many short tasks over a queue: they travel together, do not keep single tasks waiting, and each of them ends by itself when something happens.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::engine::{agent_pid, holder, origin, submit_blocked};
use crate::support::{Background, Broker, Cluster, kill, kill_if_there, wait_until, wait_until_within};

const ATTEMPT: &str = "misbehaving_tasks.waits tracer.remote_worker";
/// Tasks of a map that end at once, and those behind them that wait.
const QUICK: u64 = 8;
const BLOCKED: u64 = 30;

fn map(origin: &Cluster, target: &str, lines: &[String]) -> Background {
    let file = origin.file(&format!("lines-{}", lines.len()));
    fs::write(&file, lines.join("\n")).expect("the folder is ours");
    let file = file.to_string_lossy().into_owned();
    origin.submit_in_background(target, &["--queue", "default", "--map", &file])
}

/// Returns a line of arguments of `misbehaving_tasks:waits`.
fn waiting(origin: &Cluster, name: &str, go: &str) -> String {
    format!("{} {}", json!(origin.file(&format!("{name}-started"))), json!(origin.file(go)))
}

fn write(origin: &Cluster, name: &str) {
    fs::write(origin.file(name), "").expect("the folder is ours");
}

/// Runs quick tasks until it is known how quick they are: so many that some go together, which on a busy machine may take a while.
fn measure(origin: &Cluster, broker: &Broker) {
    const COUNT: u64 = 20;
    write(origin, "quick");
    let had = || messages(broker, "Q") + messages(broker, "Q2");
    let mut round = 0;
    wait_until("quick tasks go together", || {
        let (before, names) = (had(), (0..COUNT).map(|number| format!("measured-{round}-{number}")));
        let lines: Vec<_> = names.map(|name| waiting(origin, &name, "quick")).collect();
        map(origin, "misbehaving_tasks:waits", &lines).wait().success();
        round += 1;
        (had() - before < COUNT).then_some(())
    });
}

/// Submits quick tasks and, behind them, so many that wait, and returns their ids.
fn submit_some_that_wait(origin: &Cluster, blocked: u64) -> (Background, Vec<u64>) {
    let first = origin.tasks().iter().filter_map(|task| task["id"].as_u64()).max().unwrap_or(0) + 1;
    let line = |number: u64| waiting(origin, &number.to_string(), if number < QUICK { "quick" } else { "go" });
    let lines: Vec<_> = (0..QUICK + blocked).map(line).collect();
    (map(origin, "misbehaving_tasks:waits", &lines), (first..first + QUICK + blocked).collect())
}

/// Returns how many messages a part of the queue has had.
fn messages(broker: &Broker, stream: &str) -> u64 {
    let info = broker.jetstream(&format!("STREAM.INFO.TRACER_default_{stream}_default"), &json!({}));
    info["state"]["last_seq"].as_u64().expect("it has a sequence")
}

fn in_cluster(origin: &Cluster, task: u64) -> String {
    format!("{}-{task}", origin.status()["engine"]["place_id"].as_str().expect("it has one"))
}

/// Returns the spans of attempts at each task: its id in the cluster, the attempt, and whether the span stands in for another.
fn attempts(clusters: &[&Cluster]) -> BTreeMap<String, Vec<(u64, bool)>> {
    let mut found: BTreeMap<String, Vec<(u64, bool)>> = BTreeMap::new();
    for cluster in clusters {
        for span in cluster.spans().all_named(ATTEMPT) {
            let id = span.attribute("tracer.cluster_task_id").as_str().expect("it has one").to_owned();
            let number = span.attribute("tracer.attempt").as_u64().expect("a number");
            found.entry(id).or_default().push((number, *span.attribute("tracer.stand_in") == json!(true)));
        }
    }
    found.values_mut().for_each(|attempts| attempts.sort_unstable());
    found
}

#[test]
fn short_tasks_of_a_map_travel_together_and_each_has_its_result_and_its_spans() {
    const COUNT: usize = 10_000;
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let lines: Vec<_> = (0..COUNT).map(|number| format!("\"{}\"", "a ".repeat(number % 7))).collect();
    fs::write(a.file("lines"), lines.join("\n")).unwrap();
    let run = a.submit("wordcount:count", &["--queue", "default", "--map", "lines", "--keep-order"]);
    let expected: String = (0..COUNT).map(|number| format!("{}\n", number % 7)).collect();
    run.success().stdout(&expected).stderr_contains(&format!("{COUNT} tasks: {COUNT} succeeded, 0 failed in "));
    let sent = messages(&broker, "Q") + messages(&broker, "Q2");
    // Until it is known how short they are, each goes by itself.
    assert!(sent < COUNT as u64 / 2, "{sent} messages for {COUNT} tasks");
    let (of_a, of_b) = (a.spans(), b.spans());
    let (producers, attempts) =
        (of_a.all_named("wordcount.count tracer.remote"), of_b.all_named("wordcount.count tracer.remote_worker"));
    assert_eq!((producers.len(), attempts.len()), (COUNT, COUNT));
    let mut parents: Vec<_> = attempts.iter().filter_map(|span| span.parent_id()).collect();
    let mut ids: Vec<_> = producers.iter().map(|span| span.span_id()).collect();
    parents.sort_unstable();
    ids.sort_unstable();
    assert_eq!(parents, ids, "each attempt has the submission of its own task as its parent");
}

#[test]
fn a_single_task_does_not_wait_for_a_map_of_20_000_in_the_same_queue() {
    const COUNT: usize = 20_000;
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    // Both slots are busy until all of the map is in the queue.
    let blocked = ["one", "two"].map(|name| submit_blocked(&a, &[], name));
    blocked.iter().for_each(|(_, [started, _])| b.wait_for_file(started.as_ref()));
    let lines = vec![String::from("\"a b\""); COUNT];
    let running = map(&a, "wordcount:count", &lines);
    // It has so many tasks at a time.
    const WINDOW: u64 = 2_000;
    let sent = || messages(&broker, "Q") + messages(&broker, "Q2");
    wait_until_within(Duration::from_secs(120), "the map is in the queue", || (sent() == WINDOW + 2).then_some(()));
    let single = a.tracer_in_background(&["submit", "task", "--queue", "default", "demo:my_function"]);
    wait_until("it is in the queue", || (sent() == WINDOW + 3).then_some(()));
    blocked.iter().for_each(|(_, [_, go])| fs::write(go, "").expect("the folder is ours"));
    assert_eq!(single.wait_within(Duration::from_secs(60)).success().stdout_text(), "1\n");
    let ended = a.tasks().iter().filter(|task| task["state"] == "succeeded").count();
    assert!(ended < COUNT / 2, "{ended} tasks of the map had ended before it");
    running.wait_within(Duration::from_secs(300)).success();
}

#[test]
fn a_task_in_a_bundle_is_looked_up_cancelled_and_ended_by_itself() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let c = origin(&broker);
    agent_pid(&c);
    measure(&a, &broker);
    let ask = |id: u64| c.tracer(&["get", &in_cluster(&a, id), "--format", "json"]);
    let get = |id: u64| ask(id).success().json();
    let blocked = ["one", "two"].map(|name| submit_blocked(&a, &[], name));
    blocked.iter().for_each(|(_, [started, _])| b.wait_for_file(started.as_ref()));
    let before = messages(&broker, "Q") + messages(&broker, "Q2");
    let (running, ids) = submit_some_that_wait(&a, 1);
    let waits = wait_until("all are in the queue", || {
        // Another node hears of a task once it is in the engine.
        let task = Some(ask(*ids.last().unwrap())).filter(|run| run.output.status.success())?.json();
        (task["queue"] == "default").then_some(task)
    });
    assert_eq!(waits["state"], "waiting", "{waits}");
    assert!(messages(&broker, "Q") + messages(&broker, "Q2") - before < ids.len() as u64, "some are together");
    let cancelled = ids[1];
    a.tracer(&["cancel", &cancelled.to_string()]).success();
    assert_eq!(a.wait_for_task(cancelled)["state"], "cancelled");
    assert_eq!(get(cancelled)["state"], "cancelled");
    blocked.iter().for_each(|(_, [_, go])| fs::write(go, "").expect("the folder is ours"));
    // What ends at once is not kept waiting by what does not.
    for id in ids[..QUICK as usize].iter().filter(|id| **id != cancelled) {
        assert_eq!(a.wait_for_task(*id)["state"], "succeeded");
        assert_eq!(get(*id)["state"], "succeeded");
    }
    b.wait_for_file(&a.file(&format!("{QUICK}-started")));
    let running_one = ids[QUICK as usize];
    let task = get(running_one);
    assert_eq!((&task["state"], &task["node_id"]), (&json!("running"), &b.status()["node_id"]), "{task}");
    a.tracer(&["cancel", &running_one.to_string(), "--grace", "0s"]).success();
    assert_eq!(a.wait_for_task(running_one)["state"], "cancelled");
    running.wait().status(1).stderr_contains(&format!("{} succeeded", ids.len() - 2));
    for id in &ids {
        let expected = if [cancelled, running_one].contains(id) { "cancelled" } else { "succeeded" };
        let [here, there] = [a.task(*id), get(*id)];
        assert_eq!([&here["state"], &there["state"]], [&json!(expected); 2], "{here} {there}");
    }
    assert!(!a.file("1-started").exists(), "what was cancelled while it waited never ran");
}

#[test]
fn killed_agents_and_a_killed_worker_in_the_middle_of_a_bundle_cost_nothing_but_an_attempt() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    measure(&a, &broker);
    let (running, ids) = submit_some_that_wait(&a, BLOCKED);
    let first = format!("{QUICK}-started");
    b.wait_for_file(&a.file(&first));
    for cluster in [&a, &b] {
        let agent = agent_pid(cluster);
        kill(agent, Signal::KILL);
        wait_until("there is another agent", || {
            let pid = cluster.status()["engine"]["pid"].as_u64();
            pid.filter(|pid| *pid != u64::from(agent))
        });
    }
    let worker: u32 = fs::read_to_string(a.file(&first)).unwrap().parse().unwrap();
    kill(worker, Signal::KILL);
    wait_until("another worker takes its place", || (!b.worker_pids().contains(&worker)).then_some(()));
    write(&a, "go");
    running.wait_within(Duration::from_secs(120)).success();
    assert_ne!(fs::read_to_string(a.file(&first)).unwrap(), worker.to_string(), "it was begun again");
    let lost = ids.iter().filter(|id| a.task(**id)["attempt"] != 1).count();
    assert!((1..=2).contains(&lost), "{lost} tasks were begun again");
    let found = attempts(&[&b]);
    for id in &ids {
        let count = a.task(*id)["attempt"].as_u64().unwrap();
        let expected: Vec<_> = (1..=count).map(|number| (number, false)).collect();
        assert_eq!(found[&in_cluster(&a, *id)], expected, "task {id}");
    }
}

/// Starts a holder and an origin, and submits a bundle of which some tasks have ended and others run. Returns the submission, and the numbers of its tasks.
fn with_a_bundle_under_way(broker: &Broker) -> (Cluster, Cluster, Background, Vec<u64>) {
    let (b, a) = (holder(broker), origin(broker));
    agent_pid(&b);
    measure(&a, broker);
    let (running, ids) = submit_some_that_wait(&a, BLOCKED);
    b.wait_for_file(&a.file(&format!("{QUICK}-started")));
    (b, a, running, ids)
}

#[test]
fn an_origin_and_a_broker_that_are_killed_lose_no_task_of_a_bundle() {
    let Some(mut broker) = Broker::start() else { return };
    let (b, a, running, ids) = with_a_bundle_under_way(&broker);
    a.kill_head();
    drop(running);
    broker.kill();
    write(&a, "go");
    broker.come_back();
    a.start_head(&[]).success();
    let runs: Vec<Value> = ids.iter().map(|id| a.wait_for_task(*id)).collect();
    assert!(runs.iter().all(|task| task["state"] == "succeeded" && task["attempt"] == 1), "{runs:?}");
    let found = attempts(&[&b]);
    assert!(ids.iter().all(|id| found[&in_cluster(&a, *id)] == [(1, false)]), "each ran once: {found:?}");
}

#[test]
fn a_node_that_stops_in_the_middle_of_a_bundle_gives_back_what_has_not_ended() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, running, ids) = with_a_bundle_under_way(&broker);
    let c = holder(&broker);
    agent_pid(&c);
    b.tracer(&["stop", "--grace-period", "0s"]).success();
    write(&a, "go");
    running.wait_within(Duration::from_secs(60)).success();
    let begun_again = ids.iter().filter(|id| a.task(**id)["attempt"] != 1).count();
    assert!(begun_again <= 4, "{begun_again} tasks were charged, of which two slots can have begun few");
}

#[test]
fn what_waits_behind_slow_tasks_of_a_bundle_is_run_by_a_node_with_free_slots() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, running, ids) = with_a_bundle_under_way(&broker);
    let c = holder(&broker);
    wait_until("both nodes run as many as they have slots", || {
        let begun = (QUICK..QUICK + BLOCKED).filter(|number| a.file(&format!("{number}-started")).exists());
        (begun.count() == 4).then_some(())
    });
    write(&a, "go");
    running.wait_within(Duration::from_secs(60)).success();
    let found = attempts(&[&b, &c]);
    assert!(ids.iter().all(|id| found[&in_cluster(&a, *id)] == [(1, false)]), "each ran once: {found:?}");
    assert!(!attempts(&[&c]).is_empty());
}

#[test]
fn a_node_that_is_killed_whole_in_the_middle_of_a_bundle_is_replaced_and_each_attempt_has_its_span() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, running, ids) = with_a_bundle_under_way(&broker);
    for process in b.processes() {
        kill_if_there(process.pid, Signal::KILL);
    }
    let c = holder(&broker);
    agent_pid(&c);
    write(&a, "go");
    running.wait_within(Duration::from_secs(120)).success();
    let ended: BTreeMap<u64, u64> = ids.iter().map(|id| (*id, a.task(*id)["attempt"].as_u64().unwrap())).collect();
    assert!(ended.values().all(|attempt| (1..=2).contains(attempt)), "{ended:?}");
    assert_eq!(ended[&ids[QUICK as usize]], 2, "it cannot have ended before: {ended:?}");
    for (id, attempt) in &ended {
        let found = c.tracer(&["get", &in_cluster(&a, *id), "--format", "json"]).success().json();
        assert_eq!((&found["state"], found["attempt"].as_u64()), (&json!("succeeded"), Some(*attempt)), "{found}");
    }
    // Nobody but the lost node knows its spans until it is back: others stand in for them.
    let of_c = attempts(&[&c]);
    for (id, attempt) in ended.iter().filter(|(_, attempt)| **attempt == 2) {
        assert_eq!(
            of_c[&in_cluster(&a, *id)],
            [(1, true), (2, false)],
            "task {id}, which ended with attempt {attempt}"
        );
    }
    b.run(b.start_command(&[])).success();
    let all = attempts(&[&b, &c]);
    for (id, attempt) in &ended {
        let own: Vec<_> = all[&in_cluster(&a, *id)].iter().filter(|(_, is_stand_in)| !is_stand_in).collect();
        let numbers: Vec<_> = own.iter().map(|(number, _)| *number).collect();
        let mut unique = numbers.clone();
        unique.dedup();
        assert_eq!(numbers, unique, "task {id} has two spans of one attempt");
        assert!(numbers.contains(attempt), "task {id}: {numbers:?}");
    }
}
