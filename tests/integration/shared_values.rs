//! Large values of tasks of queues, over a real NATS server: they go through the engine in pieces, and go when the task has ended.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::Driver;

use crate::engine::{agent_pid, holder, origin, submit_blocked};
use crate::support::{Broker, Cluster, HOOK, kill, wait_until};

const MIB: usize = 1 << 20;

/// Returns a text in which no two pieces are alike.
fn text_of(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 16);
    let mut number = 0_u64;
    while text.len() < bytes {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text += &format!("{number:016x}");
    }
    text.truncate(bytes);
    text
}

/// Returns how many messages and bytes of values the engine has.
fn values(broker: &Broker) -> (u64, u64) {
    let info = broker.jetstream("STREAM.INFO.TRACER_default_VALUE", &json!({}));
    let state = &info["state"];
    (state["messages"].as_u64().unwrap_or(0), state["bytes"].as_u64().unwrap_or(0))
}

#[track_caller]
fn wait_for_no_values(broker: &Broker) {
    wait_until("the engine has no values", || (values(broker) == (0, 0)).then_some(()));
}

/// Returns the subject of the argument of a task.
fn value_subject(broker: &Broker, task: &str) -> String {
    let info = broker.jetstream("STREAM.INFO.TRACER_default_VALUE", &json!({"subjects_filter": ">"}));
    let subjects = info["state"]["subjects"].as_object().unwrap_or_else(|| panic!("{info}"));
    let of_task = subjects.keys().find(|subject| subject.split('.').nth(4) == Some(task));
    of_task.unwrap_or_else(|| panic!("task {task} has no value: {info}")).clone()
}

/// Returns the most memory of its own that a process has now, in bytes.
fn peak_memory(pid: u32) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn files_of(cluster: &Cluster) -> Vec<fs::DirEntry> {
    fs::read_dir(cluster.temp_dir().join("values")).unwrap().map(Result::unwrap).collect()
}

fn kill_agent(cluster: &Cluster, agent: u32) {
    kill(agent, Signal::KILL);
    wait_until("there is another agent", || {
        let pid = cluster.status()["engine"]["pid"].as_u64();
        pid.filter(|pid| *pid != u64::from(agent))
    });
}

#[test]
fn a_hundred_mebibytes_go_to_another_node_and_back_in_little_memory() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let agents = [agent_pid(&a), agent_pid(&b)];
    let before = agents.map(peak_memory);
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let text = text_of(100 * MIB);
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
    // The result of one is an argument of the next, beside another one that is large itself.
    let length = driver.remote("nested_tasks:length_of").queue("default").arg(&echoed).unwrap().submit().unwrap();
    assert_eq!(driver.get::<usize>(length).unwrap(), text.len());
    let value = driver.get_value(echoed).unwrap();
    assert!(value.decode::<&str>().unwrap() == text);
    let grown: Vec<usize> = agents.iter().zip(before).map(|(pid, before)| peak_memory(*pid) - before).collect();
    assert!(grown.iter().all(|grown| *grown < 24 * MIB), "agents have grown by {grown:?} bytes");
    drop(value);
    wait_for_no_values(&broker);
    let states: Vec<Value> = b.tasks().iter().map(|task| task["state"].clone()).collect();
    assert_eq!(states, ["succeeded", "succeeded"]);
    let attempts: Vec<Value> = a.tasks().iter().map(|task| task["attempt"].clone()).collect();
    assert_eq!(attempts, [1, 1], "copying keeps the claim");
}

#[test]
fn many_arguments_that_are_large_only_together_come_in_their_places() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let parts = [text_of(200 << 10), text_of(100), text_of(150 << 10)];
    let [first, second, third] = &parts;
    let joined = driver.remote("nested_tasks:join").queue("default");
    let joined = joined.arg(first).unwrap().arg(second).unwrap().arg(third).unwrap().submit().unwrap();
    assert!(driver.get::<String>(joined).unwrap() == parts.concat());
    wait_for_no_values(&broker);
}

#[test]
fn agents_that_are_killed_while_they_copy_begin_again() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let [of_a, of_b] = [&a, &b].map(agent_pid);
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let text = text_of(100 * MIB);
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
    driver.send().unwrap();
    wait_until("the origin's agent puts pieces into the engine", || (values(&broker).0 > 5).then_some(()));
    kill_agent(&a, of_a);
    let its_own = format!("{of_b}-");
    let is_coming = |file: &fs::DirEntry| {
        file.file_name().to_string_lossy().starts_with(&its_own) && file.metadata().is_ok_and(|file| file.len() > 0)
    };
    wait_until("the holder's agent writes the argument", || files_of(&b).iter().any(is_coming).then_some(()));
    kill_agent(&b, of_b);
    assert!(driver.get_value(echoed).unwrap().decode::<&str>().unwrap() == text);
    let mut left = files_of(&b);
    left.retain(|file| file.file_name().to_string_lossy().starts_with(&its_own));
    assert!(left.is_empty(), "what the killed one has written is removed: {left:?}");
    wait_for_no_values(&broker);
}

#[test]
fn an_engine_that_is_killed_in_the_middle_of_a_value_loses_nothing() {
    let Some(mut broker) = Broker::start() else { return };
    let b = holder(&broker);
    // Three servers that were all killed need longer until one leads than a submission waits by itself.
    let a = Cluster::builder().workers(0).arg("--address").arg(broker.address());
    let a = if broker.servers() > 1 { a.arg("--engine-wait=60s") } else { a }.start();
    agent_pid(&a);
    agent_pid(&b);
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let text = text_of(60 * MIB);
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
    driver.send().unwrap();
    wait_until("the origin's agent puts pieces into the engine", || (values(&broker).0 > 5).then_some(()));
    broker.kill();
    broker.come_back();
    assert!(driver.get_value(echoed).unwrap().decode::<&str>().unwrap() == text);
    wait_for_no_values(&broker);
}

#[test]
fn what_is_above_the_bound_is_refused_by_name() {
    let Some(broker) = Broker::start() else { return };
    let bounded = |bound: &str, workers, queue: &[&str]| {
        let node = Cluster::builder().workers(workers).hook(HOOK).arg("--address").arg(broker.address());
        queue.iter().fold(node.arg(format!("--max-shared-value={bound}")), |node, queue| node.arg(queue)).start()
    };
    let (b, a) = (bounded("2MiB", 2, &["--queue=default"]), bounded("1MiB", 0, &[]));
    agent_pid(&b);
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let large = driver.remote("nested_tasks:echo").queue("default").arg(text_of(MIB)).unwrap().submit();
    let refused = large.and_then(|task| driver.get::<String>(task)).unwrap_err().to_string();
    assert!(refused.contains("an argument takes 1 MiB, but at most 1 MiB are shared over a queue"), "{refused}");
    assert!(refused.contains("--max-shared-value"), "{refused}");
    let fails = |driver: &mut Driver, bytes: usize| {
        let task = driver.remote("nested_tasks:text_of").queue("default").arg(bytes).unwrap().submit().unwrap();
        driver.get::<String>(task).unwrap_err().to_string()
    };
    let text = fails(&mut driver, 3 * MIB);
    assert!(text.contains("the result takes 3 MiB, but at most 2 MiB are shared over a queue"), "{text}");
    let text = fails(&mut driver, MIB + MIB / 2);
    assert!(text.contains("this node takes values of at most 1 MiB") && text.contains("(hint: "), "{text}");
    wait_for_no_values(&broker);
}

#[test]
fn a_damaged_value_is_an_error_by_name_and_one_that_the_engine_has_lost_is_put_there_again() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    // Its slots are taken until the values are as they are to be.
    let blocked = ["one", "two"].map(|name| submit_blocked(&a, &[], name));
    blocked.iter().for_each(|(_, [started, _])| b.wait_for_file(started.as_ref()));
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let text = text_of(300 << 10);
    let mut submit = || {
        let task = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
        let id = driver.accepted(&task).unwrap();
        (task, value_subject(&broker, &id.to_string()))
    };
    let [(damaged, subject), (lost, lost_subject)] = [submit(), submit()];
    // Encoded, a text of that length has five bytes before it.
    let piece = vec![b'x'; text.len() + 5];
    let stored: Value = serde_json::from_slice(&broker.request(&subject, &["Tracer-Upload: 1"], &piece)).unwrap();
    let entry = [1, stored["seq"].as_u64().unwrap(), piece.len() as u64].map(u64::to_le_bytes).concat();
    broker.request(&subject, &["Tracer-Upload: 1", "Tracer-Complete: 1"], &entry);
    broker.jetstream("STREAM.PURGE.TRACER_default_VALUE", &json!({"filter": lost_subject}));
    blocked.iter().for_each(|(_, [_, go])| fs::write(go, "").unwrap());
    let error = driver.get::<String>(damaged).unwrap_err().to_string();
    assert!(error.contains("is damaged in the engine: it has the SHA-256 "), "{error}");
    assert!(error.contains("(hint: submit the task again)"), "{error}");
    assert!(driver.get::<String>(lost).unwrap() == text);
    wait_for_no_values(&broker);
}

#[test]
fn an_origin_that_was_killed_still_has_its_large_argument_and_gets_the_large_result() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let blocked = ["one", "two"].map(|name| submit_blocked(&a, &[], name));
    blocked.iter().for_each(|(_, [started, _])| b.wait_for_file(started.as_ref()));
    let text = text_of(600 << 10);
    let mut driver = Driver::connect(&a.temp_dir()).unwrap();
    let echoed = driver.remote("nested_tasks:echo").queue("default").arg(&text).unwrap().submit().unwrap();
    let id = driver.accepted(&echoed).unwrap();
    a.kill_head();
    // The engine has lost the value meanwhile, and nobody but the origin has it.
    broker.jetstream("STREAM.PURGE.TRACER_default_VALUE", &json!({}));
    a.start_head(&[]).success();
    blocked.iter().for_each(|(_, [_, go])| fs::write(go, "").unwrap());
    assert_eq!(a.wait_for_task(id.0)["state"], "succeeded");
    let shown = a.tracer(&["get", &id.to_string(), "--format", "json"]).success().json();
    assert!(shown["result"] == text);
    wait_for_no_values(&broker);
}
