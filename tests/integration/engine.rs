//! Many machines: nodes that share the tasks of a queue over a real NATS server, and what is left of it when one of them dies.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Api, Broker, Cluster, HOOK, kill, kill_if_there, wait_until, wait_until_within};

/// Starts a node that submits, and runs nothing.
pub(crate) fn origin(broker: &Broker) -> Cluster {
    Cluster::builder().workers(0).hook(HOOK).arg("--address").arg(broker.address()).start()
}

/// Starts a node that runs tasks of the queue `default`.
pub(crate) fn holder(broker: &Broker) -> Cluster {
    Cluster::builder().workers(2).hook(HOOK).arg("--address").arg(broker.address()).arg("--queue=default=2").start()
}

pub(crate) fn agent_pid(cluster: &Cluster) -> u32 {
    wait_until("there is an agent that has reached the engine", || {
        let engine = &cluster.status()["engine"];
        (engine["is_reachable"] == true).then(|| engine["pid"].as_u64()).flatten().and_then(|pid| pid.try_into().ok())
    })
}

/// Submits a task that says that it has begun and waits until it may go on, and returns its id.
pub(crate) fn submit_blocked(origin: &Cluster, flags: &[&str], name: &str) -> (u64, [String; 2]) {
    let [started, go] = ["started", "go"].map(|what| origin.file(&format!("{name}-{what}")));
    let arguments = [&started, &go].map(|path| json!(path).to_string());
    let mut command = vec!["submit", "task", "--queue", "default", "--no-wait"];
    command.extend(flags);
    command.extend(["misbehaving_tasks:waits", &arguments[0], &arguments[1]]);
    let id = origin.tracer(&command).success().stdout_text().trim().parse().expect("an id");
    (id, [started, go].map(|path| path.to_string_lossy().into_owned()))
}

/// Returns the scheduling policy of a process: see proc_pid_stat(5).
fn policy(pid: u32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, after_name) = stat.rsplit_once(") ").expect("a name in parentheses");
    after_name.split(' ').nth(38).and_then(|policy| policy.parse().ok()).expect("a policy")
}

#[test]
fn a_head_that_has_joined_and_its_agent_batch_their_wakeups_and_nothing_else_does() {
    let Some(broker) = Broker::start() else { return };
    let (joined, alone) = (holder(&broker), Cluster::builder().workers(1).start());
    let usual = policy(std::process::id());
    assert_eq!(policy(agent_pid(&joined)), libc::SCHED_BATCH);
    assert_eq!([policy(joined.head_pid()), policy(alone.head_pid())], [libc::SCHED_BATCH, usual]);
    // Also one that is started in the place of another.
    let workers = joined.worker_pids();
    kill(workers[0], Signal::KILL);
    let workers = wait_until("there are two workers again", || {
        let now = joined.worker_pids();
        (now.len() == 2 && !now.contains(&workers[0])).then_some(now)
    });
    assert!(workers.iter().all(|pid| policy(*pid) == usual));
    let of_command = joined.tracer(&["submit", "command", "--", "cat", "/proc/self/stat"]).success().stdout_text();
    assert_eq!(of_command.split_whitespace().nth(40), Some(usual.to_string().as_str()), "{of_command}");
}

#[test]
fn a_task_of_a_queue_runs_on_another_node_and_its_trace_is_unbroken() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let run = a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success();
    assert_eq!(run.stdout_text(), "1\n");

    let (of_a, of_b) = (a.spans(), b.spans());
    let producer = of_a.named("demo.my_function tracer.remote");
    let consumer = of_b.named("demo.my_function tracer.remote_worker");
    assert_eq!(consumer.trace_id(), producer.trace_id());
    assert_eq!(consumer.parent_id(), Some(producer.span_id()));
    let node = |cluster: &Cluster| cluster.status()["node_id"].clone();
    assert_ne!(node(&a), node(&b), "two heads of one machine are told apart");
    assert_eq!(*consumer.attribute("tracer.node_id"), node(&b));
    let in_cluster = json!(format!("{}-1", a.status()["engine"]["place_id"].as_str().unwrap()));
    for span in [producer, consumer] {
        let attributes = ["tracer.cluster_task_id", "tracer.queue"].map(|key| span.attribute(key).clone());
        assert_eq!(attributes, [in_cluster.clone(), json!("default")], "{}", span.value);
    }

    let folders = [a.spans_dir(), b.spans_dir()].map(|folder| folder.to_string_lossy().into_owned());
    let id = producer.trace_id();
    let shown =
        a.tracer(&["trace", "show", id, "--spans-dir", &folders[0], "--spans-dir", &folders[1], "--format", "json"]);
    let shown = shown.success().stdout_text();
    assert!([producer, consumer].iter().all(|span| shown.contains(span.span_id())), "{shown}");
    a.tracer(&["trace", "show", id, "--spans-dir", &folders[0], "--spans-dir", &folders[1]])
        .success()
        .stdout_contains("3 spans  2 processes");
    let engine = a.status()["engine"].clone();
    assert_eq!((&engine["is_reachable"], &engine["queues"], &engine["shared"]), (&json!(true), &json!({}), &json!(0)));
    assert_eq!(b.status()["engine"]["queues"], json!({"default": 2}));
    b.tracer(&["status"]).success().stdout_contains("serves default (up to 2)").stdout_contains("nats-server ");
    assert_ne!(engine["place_id"], b.status()["engine"]["place_id"]);

    let task = a.wait_for_task(1);
    assert_eq!((&task["state"], &task["result"]), (&json!("succeeded"), &json!(1)));
    let failed = a.tracer(&["submit", "task", "--queue", "default", "misbehaving_tasks:returns_error", "\"no\""]);
    failed.status(1).stderr_contains("no");
}

#[test]
fn a_head_that_has_joined_no_engine_has_no_agent_and_says_how_to_join() {
    let cluster = Cluster::untraced();
    assert_eq!(cluster.status()["engine"], Value::Null);
    assert!(cluster.processes().iter().all(|process| !process.command.contains(" agent ")));
    assert!(!cluster.temp_dir().join("place.id").exists());
    cluster
        .tracer(&["submit", "task", "--queue", "default", "demo:my_function"])
        .status(1)
        .stderr_contains("this head has joined no engine")
        .stderr_contains("(hint: start it with `tracer start --address");
}

#[test]
fn what_cannot_be_joined_or_submitted_is_told_by_name() {
    let refused = |address: &str, parts: &[&str]| {
        let (_cluster, run) = Cluster::builder().arg("--address").arg(address).try_start();
        assert!(!run.describe().is_empty());
        parts
            .iter()
            .fold(run.status(if parts[0].starts_with('`') { 2 } else { 1 }), |run, part| run.stderr_contains(part));
    };
    refused("redis://127.0.0.1", &["`--address`", "is of an engine that is not known"]);
    let Some(bare) = Broker::start_without_jetstream() else { return };
    refused(&bare.address(), &["has no JetStream", "-js -sd DIR"]);

    let Some(mut broker) = Broker::start() else { return };
    let joins = Cluster::builder().workers(0).arg("--address").arg(broker.address()).arg("--engine-wait=300ms");
    let (a, started) = joins.try_start();
    started.success().stderr_contains("serves none").stderr_contains(" --queue NAME demo:my_function");
    agent_pid(&a);
    let submit = |queue: &str| a.tracer(&["submit", "task", "--queue", queue, "demo:my_function"]);
    submit("nobodys").status(1).stderr_contains("has no such queue").stderr_contains("(hint: ");
    submit("a.b").status(1).stderr_contains("the queue `a.b` has `.` in its name");
    a.tracer(&["submit", "task", "demo:my_function"]).status(1).stderr_contains("has no workers");
    broker.kill();
    wait_until("the agent has noticed", || (a.status()["engine"]["is_reachable"] == false).then_some(()));
    submit("default").status(1).stderr_contains("could not be reached for 300 ms");
    let warnings = a.status()["warnings"].to_string();
    assert!(warnings.contains("cannot be reached, so queues stand still"), "{warnings}");

    // What was refused never runs, also when there is somebody who would.
    broker.come_back();
    let b = holder(&broker);
    agent_pid(&a);
    assert_eq!(submit("default").success().stdout_text(), "1\n");
    assert_eq!(b.tasks().len(), 1);
}

#[test]
fn a_killed_worker_and_killed_agents_cost_a_shared_task_nothing_but_an_attempt() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let (id, [started, go]) = submit_blocked(&a, &[], "one");
    b.wait_for_file(started.as_ref());
    let running = || b.tasks().into_iter().find(|task| task["state"] == "running");
    let worker = wait_until("it runs on the other node", || running()?["worker_pid"].as_u64());
    fs::remove_file(&started).unwrap();
    kill(worker.try_into().unwrap(), Signal::KILL);
    b.wait_for_file(started.as_ref());
    for cluster in [&a, &b] {
        let agent = agent_pid(cluster);
        kill(agent, Signal::KILL);
        wait_until("there is another agent", || {
            let pid = cluster.status()["engine"]["pid"].as_u64();
            pid.filter(|pid| *pid != u64::from(agent))
        });
    }
    fs::write(&go, "").unwrap();
    let task = a.wait_for_task(id);
    assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(2)), "{task}");
    assert_eq!(task["attempts"][0]["failure"]["reason"], "worker_lost", "{task}");
    let spans = b.wait_for_spans("both attempts", |spans| {
        spans.all_named("misbehaving_tasks.waits tracer.remote_worker").len() == 2
    });
    let attempts = spans.all_named("misbehaving_tasks.waits tracer.remote_worker");
    assert_eq!(attempts[0].parent_id(), attempts[1].parent_id());
}

#[test]
fn an_origin_that_was_killed_hears_of_the_outcome_when_it_is_back() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let (id, [started, go]) = submit_blocked(&a, &[], "one");
    b.wait_for_file(started.as_ref());
    a.kill_head();
    fs::write(&go, "").unwrap();
    b.wait_for_task(1);
    a.start_head(&[]).success();
    let task = a.wait_for_task(id);
    assert_eq!(task["state"], "succeeded", "{task}");
    assert_eq!(b.tasks().len(), 1, "it ran once");
}

#[test]
fn a_broker_that_is_killed_right_after_it_has_acknowledged_loses_nothing() {
    let Some(mut broker) = Broker::start() else { return };
    let a = origin(&broker);
    let b = holder(&broker);
    agent_pid(&b);
    let running = submit_blocked(&a, &[], "one");
    b.wait_for_file(running.1[0].as_ref());
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            let run = a.tracer(&["submit", "task", "--queue", "default", "--no-wait", "demo:my_function"]);
            run.success().stdout_text().trim().parse().unwrap()
        })
        .collect();
    broker.kill();
    fs::write(&running.1[1], "").unwrap();
    broker.come_back();
    for id in ids.into_iter().chain([running.0]) {
        assert_eq!(a.wait_for_task(id)["state"], "succeeded", "task {id}");
    }
}

#[test]
fn a_shared_task_is_cancelled_where_it_waits_and_where_it_runs() {
    let Some(broker) = Broker::start() else { return };
    let b = holder(&broker);
    let a = origin(&broker);
    agent_pid(&b);
    let blocked: Vec<_> = ["one", "two", "three"].iter().map(|name| submit_blocked(&a, &[], name)).collect();
    for (_, [started, _]) in &blocked[..2] {
        b.wait_for_file(started.as_ref());
    }
    // The third one waits: the node runs two at a time.
    for (id, _) in blocked.iter().rev() {
        a.tracer(&["cancel", &id.to_string(), "--grace", "0s"]).success();
        assert_eq!(a.wait_for_task(*id)["state"], "cancelled");
    }
    assert!(!a.file("three-started").exists());
    let states: Vec<_> = b.tasks().iter().map(|task| task["state"].clone()).collect();
    assert_eq!(states, ["cancelled", "cancelled"], "they have ended there too");
}

#[test]
fn a_node_that_stops_gives_back_what_it_runs_and_another_one_takes_it() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let (id, [started, go]) = submit_blocked(&a, &[], "one");
    b.wait_for_file(started.as_ref());
    fs::remove_file(&started).unwrap();
    let c = holder(&broker);
    agent_pid(&c);
    b.tracer(&["stop", "--grace-period", "0s"]).success();
    // Long before the engine would deliver by itself what nobody acknowledges.
    wait_until_within(Duration::from_secs(5), "it runs on the other one", || {
        fs::exists(&started).unwrap().then_some(())
    });
    fs::write(&go, "").unwrap();
    let task = a.wait_for_task(id);
    assert_eq!((&task["state"], &task["attempt"]), (&json!("succeeded"), &json!(2)), "{task}");
}

#[test]
fn a_node_that_is_killed_whole_is_replaced_by_another_one() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    let (id, [started, go]) = submit_blocked(&a, &[], "one");
    let (lost, _) = submit_blocked(&a, &["--at-most-once"], "two");
    b.wait_for_file(started.as_ref());
    b.wait_for_file(a.file("two-started").as_ref());
    fs::remove_file(&started).unwrap();
    let c = holder(&broker);
    agent_pid(&c);
    let [node_b, node_c] = [&b, &c].map(|node| node.status()["node_id"].clone());
    for process in b.processes() {
        kill_if_there(process.pid, Signal::KILL);
    }
    fs::write(&go, "").unwrap();
    let task = wait_until_within(Duration::from_secs(60), "another node has it", || {
        let task = a.task(id);
        (task["state"] == "succeeded").then_some(task)
    });
    assert_eq!(task["attempt"], 2, "{task}");
    c.wait_for_file(started.as_ref());
    let task = wait_until_within(Duration::from_secs(60), "the other one is lost", || {
        let task = a.task(lost);
        (task["state"] == "failed").then_some(task)
    });
    assert_eq!(task["failure"]["reason"], "lost", "{task}");

    // Nobody but the lost node knows its spans, so others stand in for them: who took the task over, and the origin of the one that nobody may take.
    const ATTEMPT: &str = "misbehaving_tasks.waits tracer.remote_worker";
    let (of_a, of_c) = (a.spans(), c.spans());
    let of_attempt =
        |number: u64| of_c.all_named(ATTEMPT).into_iter().find(|span| *span.attribute("tracer.attempt") == number);
    let (stand_in, second) = (of_attempt(1).expect("it is written"), of_attempt(2).expect("it has ended"));
    let of_lost = of_a.named(ATTEMPT);
    for span in [stand_in, of_lost] {
        assert_eq!(span.kind(), "SpanKind.CONSUMER");
        let [attempt, is_stand_in, error] =
            ["tracer.attempt", "tracer.stand_in", "error.type"].map(|key| span.attribute(key).clone());
        assert_eq!([attempt, is_stand_in, error], [json!(1), json!(true), json!("node:lost")], "{}", span.value);
        let local = if std::ptr::eq(span, of_lost) { lost } else { id };
        let in_cluster = format!("{}-{local}", a.status()["engine"]["place_id"].as_str().unwrap());
        let attributes = ["tracer.cluster_task_id", "tracer.queue"].map(|key| span.attribute(key).clone());
        assert_eq!(attributes, [json!(in_cluster), json!("default")], "{}", span.value);
        assert_eq!(*span.attribute("tracer.node_id"), node_b);
        assert_eq!(span.value["status"]["status_code"], "ERROR", "{}", span.value);
    }
    assert_eq!(stand_in.parent_id(), second.parent_id());
    assert_eq!(*second.attribute("tracer.node_id"), node_c);
    assert_eq!(
        second.value["links"][0]["context"]["span_id"], stand_in.value["context"]["span_id"],
        "{}",
        second.value
    );
    assert!(of_a.iter().any(|span| Some(span.span_id()) == stand_in.parent_id()), "its parent is the submission");

    // The lost node comes back, and completes what it had: each attempt is shown once.
    let folders = [&a, &b, &c].map(|node| node.spans_dir().to_string_lossy().into_owned());
    let attempts = || {
        let folders = folders.iter().flat_map(|folder| ["--spans-dir", folder]);
        let command: Vec<_> =
            ["trace", "show", stand_in.trace_id(), "--format", "json"].into_iter().chain(folders).collect();
        let shown = a.tracer(&command).success().json();
        let spans = shown["spans"].as_array().expect("it has spans").clone();
        let of_task = spans.into_iter().filter(|span| span["name"] == ATTEMPT);
        of_task.map(|span| span["context"]["span_id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    let shown = attempts();
    assert_eq!(shown, [stand_in.span_id(), second.span_id()]);
    b.run(b.start_command(&[])).success();
    let of_b = b.spans();
    let real = of_b.all_named(ATTEMPT).into_iter().find(|span| span.trace_id() == stand_in.trace_id());
    let real = real.expect("its next head has completed it");
    assert_ne!(real.span_id(), stand_in.span_id());
    assert_eq!(attempts(), [real.span_id(), second.span_id()]);
}

#[test]
fn a_task_is_looked_up_by_its_id_in_the_cluster_on_any_node() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    agent_pid(&b);
    let c = origin(&broker);
    agent_pid(&c);
    let get = |node: &Cluster, id: &str| node.tracer(&["get", id, "--format", "json"]).success().json();
    let submitted = a.tracer(&["submit", "task", "--queue", "default", "demo:my_function", "--format", "json"]);
    let id = submitted.success().json()["cluster_task_id"].as_str().expect("it has one").to_owned();
    assert!(id.ends_with("-1") && id.starts_with(a.status()["engine"]["place_id"].as_str().unwrap()), "{id}");
    for node in [&b, &c] {
        let task = get(node, &id);
        let shown = ["cluster_task_id", "state", "result", "attempt"].map(|key| task[key].clone());
        assert_eq!(shown, [json!(id), json!("succeeded"), json!(1), json!(1)], "{task}");
        assert_eq!(task["node_id"], b.status()["node_id"]);
    }
    c.tracer(&["get", &id]).success().stdout_contains("succeeded").stdout_contains("result");
    assert_eq!(get(&a, &id)["id"], 1, "its origin knows more of it");
    let b_name = b.status()["node_id"].clone();
    let of_queue = |task: &Value| ["queue", "cluster_task_id", "node_id"].map(|key| task[key].clone());
    assert_eq!(of_queue(&get(&a, &id)), [json!("default"), json!(id), b_name.clone()]);
    assert_eq!(of_queue(&a.tasks()[0]), [json!("default"), json!(id), b_name.clone()]);
    assert_eq!(of_queue(&b.tasks()[0]), [json!("default"), json!(id), Value::Null], "it has come from there");
    for command in ["get", "explain"] {
        let text = a.tracer(&[command, "1"]).success().stdout_text();
        assert!([&id, "default", b_name.as_str().unwrap()].iter().all(|part| text.contains(part)), "{text}");
    }
    let ran = format!("attempt 1 on the node `{}` in worker ", b_name.as_str().unwrap());
    a.tracer(&["explain", "1"]).success().stdout_contains(&ran);
    let listed = a.tracer(&["list", "tasks"]).success().stdout_text();
    let row = format!("succeeded  default  {}", b_name.as_str().unwrap());
    assert!(listed.contains("QUEUE") && listed.contains("NODE") && listed.contains(&row), "{listed}");

    // One runs, one runs beside it, and one waits.
    let blocked = ["one", "two", "three"].map(|name| submit_blocked(&a, &[], name));
    let of = |local: u64| format!("{}-{local}", id.rsplit_once('-').unwrap().0);
    blocked[..2].iter().for_each(|(_, [started, _])| b.wait_for_file(started.as_ref()));
    assert_eq!(a.task(blocked[0].0)["node_id"], b_name);
    let running = get(&c, &of(blocked[0].0));
    assert_eq!((&running["state"], &running["node_id"]), (&json!("running"), &b.status()["node_id"]), "{running}");
    let waiting = get(&c, &of(blocked[2].0));
    assert_eq!((&waiting["state"], &waiting["queue"]), (&json!("waiting"), &json!("default")), "{waiting}");
    c.tracer(&["get", &of(99)]).status(1).stderr_contains("it was never put into a queue").stderr_contains("(hint: ");
    for command in ["explain", "wait"] {
        let refused = c.tracer(&[command, &of(blocked[2].0)]).status(1);
        refused.stderr_contains("was submitted on another node").stderr_contains("(hint: `tracer get ");
    }
    a.tracer(&["explain", &of(blocked[2].0)]).success();
    a.tracer(&["cancel", &of(blocked[2].0)]).success();
    assert_eq!(a.wait_for_task(blocked[2].0)["state"], "cancelled");
    assert_eq!(get(&c, &of(blocked[2].0))["state"], "cancelled");

    // Its origin is gone before it ends, and a large result is still there.
    let large =
        a.tracer(&["submit", "task", "--queue", "default", "--no-wait", "misbehaving_tasks:big_result", "300000"]);
    let large: u64 =
        large.success().stderr_contains("in the cluster it is task ").stdout_text().trim().parse().unwrap();
    for process in a.processes() {
        kill_if_there(process.pid, Signal::KILL);
    }
    blocked[..2].iter().for_each(|(_, [_, go])| fs::write(go, "").unwrap());
    let ended = |local: u64| {
        wait_until("it has ended", || Some(get(&c, &of(local))).filter(|task| task["state"] == "succeeded"))
    };
    ended(blocked[0].0);
    assert_eq!(ended(large)["result"], "x".repeat(300_000));
    let left = fs::read_dir(c.temp_dir().join("values")).unwrap().count();
    assert_eq!(left, 0, "what was brought to be shown is removed");

    let alone = Cluster::untraced();
    alone.tracer(&["get", &id]).status(1).stderr_contains("this head has joined no engine").stderr_contains("(hint: ");
}

#[test]
fn a_task_that_its_own_node_runs_over_a_queue_is_one_task_to_everybody() {
    let Some(broker) = Broker::start() else { return };
    let node = Cluster::builder().workers(2).hook(HOOK).arg("--address").arg(broker.address());
    let node = node.arg("--queue=default=2").arg("--http=127.0.0.1:0").start();
    agent_pid(&node);
    let prints = ["submit", "task", "--queue", "default", "misbehaving_tasks:prints_bytes", "[104,105,10]"];
    (0..2).for_each(|_| drop(node.tracer(&prints).success()));
    node.submit("demo:my_function", &[]).success();
    // One that has begun is running, and not waiting besides.
    let (blocked, [started, go]) = submit_blocked(&node, &[], "one");
    node.wait_for_file(started.as_ref());
    let counted = |node: &Cluster| {
        let tasks = node.status()["tasks"].take();
        ["waiting", "leased", "succeeded", "failed"].map(|key| tasks[key].as_u64().expect("a number"))
    };
    wait_until("all is known of it", || (counted(&node) == [0, 1, 3, 0]).then_some(()));
    let workers = node.tracer(&["list", "workers", "--format", "json"]).success().json();
    assert!(workers["workers"].as_array().unwrap().iter().any(|worker| worker["task"] == blocked), "{workers}");
    fs::write(go, "").expect("the folder is ours");
    assert_eq!(node.wait_for_task(blocked)["state"], "succeeded");
    assert_eq!(counted(&node), [0, 0, 4, 0]);
    let listed = node.tasks();
    assert_eq!(listed.len(), 4, "{listed:?}");
    node.tracer(&["status"]).success().stdout_contains("4 succeeded");
    let summary = node.tracer(&["list", "tasks", "--summary", "--format", "json"]).success().json();
    let count: u64 = summary["functions"].as_array().unwrap().iter().filter_map(|row| row["succeeded"].as_u64()).sum();
    assert_eq!(count, 4, "{summary}");

    // Its lines are those of the task that runs here.
    let first = listed.last().expect("there are some")["id"].as_u64().expect("a number");
    for id in [first.to_string(), listed.last().unwrap()["cluster_task_id"].as_str().unwrap().to_owned()] {
        node.tracer(&["logs", &id]).success().stdout_contains("hi");
    }

    // Over HTTP too.
    let api = Api::of(&node);
    let asked = json!({ "function": "demo:my_function", "queue": "default" });
    let accepted = api.submission("", &asked).send().json();
    let of_queue = |task: &Value| ["queue", "cluster_task_id", "node_id"].map(|key| task[key].clone());
    let id = accepted["id"].as_u64().expect("an id");
    let place = node.status()["engine"]["place_id"].as_str().expect("it has one").to_owned();
    let cluster_id = json!(format!("{place}-{id}"));
    assert_eq!(accepted["cluster_task_id"], cluster_id, "{accepted}");
    node.wait_for_task(id);
    let shown = api.get(&format!("/api/v1/tasks/{id}")).json();
    assert_eq!(of_queue(&shown), [json!("default"), cluster_id.clone(), node.status()["node_id"].clone()], "{shown}");
    let listed = api.get("/api/v1/tasks").json();
    let tasks = listed["tasks"].as_array().expect("a list");
    assert_eq!(tasks.iter().filter(|task| task["cluster_task_id"] == cluster_id).count(), 1, "{listed}");
}

#[test]
fn who_looks_for_lines_that_another_node_has_is_told_which_and_there_they_are_by_the_same_id() {
    let Some(broker) = Broker::start() else { return };
    let (b, a, c) = (holder(&broker), origin(&broker), origin(&broker));
    for node in [&a, &b, &c] {
        agent_pid(node);
    }
    let prints =
        ["submit", "task", "--queue", "default", "--no-wait", "misbehaving_tasks:prints_bytes", "[104,105,10]"];
    let submit = |node: &Cluster| node.tracer(&prints).success().stdout_text().trim().parse::<u64>().expect("an id");
    let id = submit(&a);
    let task = a.wait_for_task(id);
    let (cluster_id, node) = (task["cluster_task_id"].as_str().unwrap(), b.status()["node_id"].clone());
    let node = node.as_str().expect("it has a name");
    a.tracer(&["logs", &id.to_string()])
        .success()
        .stderr_contains(&format!("task {id} has run on the node `{node}`, whose log has what it wrote"))
        .stderr_contains(&format!("(hint: `tracer logs {cluster_id}` there)"));
    b.tracer(&["logs", cluster_id]).success().stdout_contains("hi");
    c.tracer(&["logs", cluster_id]).status(1).stderr_contains(&format!("and the node `{node}` has it"));

    // The node that has submitted it and ran it too has its lines.
    let own = submit(&b);
    b.wait_for_task(own);
    b.tracer(&["logs", &own.to_string()]).success().stdout_contains("hi");
    b.tracer(&["logs", "last"]).success().stdout_contains("hi");
    let silent = b.submit("demo:my_function", &["--queue", "default", "--no-wait"]).success().stdout_text();
    b.wait_for_task(silent.trim().parse().expect("an id"));
    let said = b.tracer(&["logs", silent.trim()]).success();
    said.stderr_contains(&format!("task {} has written nothing", silent.trim()));
}

/// Submits a task to the queue that prints lines and waits for a file, and returns its id.
fn submit_printing(node: &Cluster, released: &std::path::Path) -> u64 {
    let arguments = [json!("a").to_string(), "2".into(), json!(released).to_string()];
    let mut command = vec!["submit", "task", "--queue", "default", "--no-wait", "misbehaving_tasks:prints_and_waits"];
    command.extend(arguments.iter().map(String::as_str));
    node.tracer(&command).success().stdout_text().trim().parse().expect("an id")
}

#[test]
fn who_looks_at_a_trace_is_told_which_node_has_the_lines_of_its_tasks() {
    let Some(broker) = Broker::start() else { return };
    let (b, a) = (holder(&broker), origin(&broker));
    for node in [&a, &b] {
        agent_pid(node);
    }
    let prints = ["submit", "task", "--queue", "default", "misbehaving_tasks:prints_bytes", "[104,105,10]"];
    a.tracer(&prints).success();
    let task = a.tasks().remove(0);
    let (id, trace) = (task["cluster_task_id"].as_str().unwrap(), task["trace_id"].as_str().unwrap());
    let node = b.status()["node_id"].as_str().expect("it has a name").to_owned();
    let said = format!("what task {id} of this trace wrote is in the log of the node `{node}`");
    let hint = format!("(hint: `tracer logs {id}` there)");
    for asked in [["trace", "show", trace, "--logs"].as_slice(), &["logs", "--trace", trace]] {
        a.tracer(asked).success().stderr_contains(&said).stderr_contains(&hint);
    }
    a.tracer(&["trace", "show", trace]).success().stderr("");
    b.tracer(&["trace", "show", trace, "--logs"]).success().stdout_contains("hi").stderr("");
    b.tracer(&["logs", "--trace", trace]).success().stdout_contains("hi").stderr("");

    // Without its head, nobody knows which.
    a.tracer(&["stop"]).success();
    let said = format!("what task {id} of this trace wrote is in the log of the node that ran it");
    a.tracer(&["trace", "show", trace, "--logs"]).success().stderr_contains(&said).stderr_contains(&hint);

    // The node that has submitted it and ran it too has its lines.
    b.tracer(&prints).success();
    b.tracer(&["trace", "show", "last", "--logs"]).success().stdout_contains("hi").stderr("");
}

#[test]
fn the_lines_of_a_task_that_waits_in_its_queue_are_followed_once_it_begins_here_and_named_elsewhere() {
    let Some(broker) = Broker::start() else { return };
    let b = Cluster::builder().workers(2).hook(HOOK).arg("--address").arg(broker.address());
    let (b, a) = (b.arg("--queue=default=1").start(), origin(&broker));
    for node in [&a, &b] {
        agent_pid(node);
    }
    let (_, [started, go]) = submit_blocked(&b, &[], "first");
    b.wait_for_file(started.as_ref());
    let (released, released_there) = (b.file("released"), a.file("released"));
    let (here, there) = (submit_printing(&b, &released), submit_printing(&a, &released_there));
    let cluster_id = a.task(there)["cluster_task_id"].as_str().expect("it has one").to_owned();
    let follow = |node: &Cluster, id: u64| {
        let id = id.to_string();
        node.tracer_in_background(&["logs", &id, "--follow", "--stream", "stdout"])
    };
    let (of_here, of_there) = (follow(&b, here), follow(&a, there));
    // They look at it by now.
    b.tracer(&["logs", &here.to_string()]).success().stderr_contains("has written nothing yet");
    fs::write(go, "").expect("the folder is ours");
    of_here.wait_for_stdout("a out 2\n");
    fs::write(released, "").expect("the folder is ours");
    of_here.wait().success().stdout("a out 1\na out 2\na without an end\n").stderr("");
    let node = b.status()["node_id"].as_str().expect("it has a name").to_owned();
    let said = format!(
        "task {there} runs on the node `{node}`, whose log has what it writes\n\
         (hint: `tracer logs {cluster_id} --follow` there)\n"
    );
    of_there.wait_for_stderr(&said);
    fs::write(released_there, "").expect("the folder is ours");
    of_there.wait().success().stdout("").stderr(&said);
}
