//! `tracer restart`: another program goes on in the place of the head; and heads of other versions, which can be stopped, drained and asked.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tracer::protocol::order::{ORDER, Order};
use tracer::session::socket_path;

use super::serving_deaths::{CLIENTS, Service, assert_closed, assert_whole};
use crate::support::{Api, Clients, Cluster, HOOK, Outcome, Run, is_alive, kill, wait_until};

/// The setting with which a program speaks another version of the protocol.
const OTHER_PROTOCOL: (&str, &str) = ("TRACER_TEST_SETTING", "protocol_version=999");

/// Runs a command of a program that speaks another version of the protocol.
fn tracer_of_another_version(cluster: &Cluster, arguments: &[&str]) -> Run {
    let mut command = cluster.command(arguments);
    command.env(OTHER_PROTOCOL.0, OTHER_PROTOCOL.1);
    cluster.run(command)
}

fn guard_pid(cluster: &Cluster) -> u64 {
    cluster.head_record()["guard_pid"].as_u64().expect("a head has a guard")
}

/// Submits a task that waits for a file, and waits until it has begun.
fn begin_waiting(cluster: &Cluster, name: &str, further: &[&str]) {
    let counter = cluster.file(name);
    let arguments = [json!(counter).to_string(), json!(cluster.file(&format!("{name}.released"))).to_string()];
    let arguments = [&[&*arguments[0], &*arguments[1], "--no-wait"], further].concat();
    cluster.submit("misbehaving_tasks:counts_and_waits", &arguments).success();
    cluster.wait_for_file(&counter);
}

fn wait_until_it_makes_way(cluster: &Cluster) {
    wait_until("it makes way", || cluster.head_log().contains("the head makes way for").then_some(()));
}

/// Sends the head an order over its socket, and returns the answer.
fn send(cluster: &Cluster, order: &Order) -> Value {
    let mut socket = UnixStream::connect(socket_path(&cluster.session_dir())).expect("the head listens");
    let mut bytes = Vec::new();
    order.encode(&mut bytes);
    socket.write_all(&bytes).expect("it reads");
    let mut header = [0; 5];
    socket.read_exact(&mut header).expect("it answers");
    let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let mut body = vec![0; length - 1];
    socket.read_exact(&mut body).expect("the answer is whole");
    assert_eq!(header[4], ORDER);
    serde_json::from_slice(&body).expect("it is JSON")
}

fn states(cluster: &Cluster) -> Vec<Value> {
    let mut tasks = cluster.tasks();
    tasks.sort_by_key(|task| task["id"].as_u64());
    tasks.iter().map(|task| json!([task["state"], task["attempt"]])).collect()
}

#[test]
fn a_copy_of_the_program_goes_on_with_place_queue_and_port_and_whoever_connects_waits() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).arg("--http=127.0.0.1:0").start();
    let before = [guard_pid(&cluster).to_string(), cluster.session_dir().display().to_string()];
    let api = Api::of(&cluster);
    begin_waiting(&cluster, "ends", &[]);
    begin_waiting(&cluster, "cut", &[]);
    for _ in 0..3 {
        cluster.submit("demo:my_function", &["--no-wait"]).success();
    }
    let head = cluster.head_pid();
    let copy = cluster.file("another tracer");
    fs::copy(env!("CARGO_BIN_EXE_tracer"), &copy).expect("it can be copied");
    let mut restart = cluster.program(&copy);
    restart.args(["restart", "--grace-period", "3s", "--format", "json"]);
    let restart = cluster.spawn(restart);
    restart.wait_for_stderr("2 running tasks: up to 3 s to end");
    wait_until_it_makes_way(&cluster);
    fs::write(cluster.file("ends.released"), "").expect("the folder is ours");
    // A new connection is neither refused nor closed.
    let listed = cluster.tracer_in_background(&["list", "tasks", "--format", "json"]);
    let asked = api.get("/api/v1/status");
    let report = restart.wait_within(Duration::from_secs(30)).success().stderr_contains("3 waiting tasks: kept").json();
    assert_eq!(listed.wait().success().json()["tasks"].as_array().map(Vec::len), Some(5));
    assert_eq!(asked.status, 200, "with the token from before: {}", asked.text());
    assert_eq!(report["previous_head_pid"], head, "{report}");
    assert_eq!(report["executable"], copy.to_string_lossy().as_ref(), "{report}");
    assert_eq!((&report["kept"], &report["lost"]), (&json!(4), &json!(0)), "{report}");
    let now = [guard_pid(&cluster).to_string(), cluster.session_dir().display().to_string()];
    assert_eq!(now, before, "guard and session are the same");
    let program = fs::read_link(format!("/proc/{}/exe", cluster.head_pid())).expect("the head lives");
    assert_eq!(program, copy);
    fs::write(cluster.file("cut.released"), "").expect("the folder is ours");
    cluster.wait_for_task(2);
    cluster.wait_for_task(5);
    let expected = [1, 2, 1, 1, 1].map(|attempt| json!(["succeeded", attempt]));
    assert_eq!(states(&cluster), expected, "what was cut short was tried again");
    cluster.stop().success();
    cluster.assert_nothing_runs();
    cluster.spans().assert_whole(&[]);
}

#[test]
fn settings_that_would_not_start_leave_the_head_as_it_was() {
    let cluster = Cluster::builder().workers(1).build();
    let config = cluster.file("tracer.toml");
    fs::write(&config, "num_workers = 1\n").expect("the folder is ours");
    let mut start = cluster.command(&["start", "--head", "--config"]);
    start.arg(&config).env_remove("TRACER_NUM_WORKERS");
    cluster.run(start).success();
    begin_waiting(&cluster, "running", &[]);
    let head = cluster.head_pid();
    for (settings, code, said) in [
        ("[tracing]\nstartup_hook = \"no_such_module:setup\"\n", 4, "no_such_module"),
        ("num_workers = \"many\"\n", 2, "num_workers"),
    ] {
        fs::write(&config, settings).expect("the folder is ours");
        let run = cluster.tracer(&["restart"]).status(code).stderr_contains(said);
        run.stderr_contains(&format!("the head (pid {head}) goes on as it was"));
    }
    assert_eq!(cluster.head_pid(), head);
    fs::write(&config, "num_workers = 3\n").expect("the folder is ours");
    fs::write(cluster.file("running.released"), "").expect("the folder is ours");
    cluster.wait_for_task(1);
    cluster.tracer(&["restart"]).success().stdout_contains("restarted: head (pid ");
    assert_eq!(cluster.workers().len(), 3, "the file is read again");
    assert_eq!(states(&cluster), [json!(["succeeded", 1])]);
}

#[test]
fn a_program_that_cannot_be_run_leaves_the_work_to_the_one_that_is_there() {
    let cluster = Cluster::traced();
    let nothing = cluster.file("nothing");
    fs::write(&nothing, "no program").expect("the folder is ours");
    let order = Order {
        order: Order::RESTART.into(),
        executable: Some(nothing.clone()),
        settings: Some(cluster.file("settings.json")),
        protocol_version: tracer::protocol::PROTOCOL_VERSION,
        ..Order::default()
    };
    let head = cluster.head_pid();
    assert_eq!(send(&cluster, &order)["refused"], Value::Null);
    wait_until("another head is there", || (cluster.head_record()["pid"] != head).then_some(()));
    cluster.wait_for_head();
    let warning = format!("`{}` cannot go on in the place of this head, which goes on itself", nothing.display());
    let status = cluster.status();
    assert!(status["warnings"].to_string().contains(&warning), "{}", status["warnings"]);
    cluster.submit("demo:my_function", &[]).success();
    // Nothing names a program, and an order that is not known is refused by name.
    for (order, reason) in [(Order::RESTART, "names no program"), ("dance", "knows no order `dance`")] {
        let order = Order { order: order.into(), ..Order::default() };
        let answer = send(&cluster, &order);
        assert!(answer["refused"].to_string().contains(reason), "{answer}");
    }
    cluster.submit("demo:my_function", &[]).success();
}

#[test]
fn a_signal_ends_a_head_that_was_about_to_make_way() {
    let cluster = Cluster::builder().workers(1).start();
    begin_waiting(&cluster, "running", &[]);
    let guard = u32::try_from(guard_pid(&cluster)).expect("a pid");
    let restart = cluster.tracer_in_background(&["restart", "--grace-period", "60s"]);
    wait_until_it_makes_way(&cluster);
    kill(guard, Signal::TERM);
    // The first signal leaves what runs its grace.
    wait_until("it stops", || cluster.head_log().contains("no other program goes on").then_some(()));
    fs::write(cluster.file("running.released"), "").expect("the folder is ours");
    wait_until("it ends", || (!is_alive(guard)).then_some(()));
    restart.wait().status(1).stderr_contains("the next head has ended; what was accepted is kept");
    cluster.assert_nothing_runs();
    cluster.start_head(&[]).success();
    assert_eq!(states(&cluster), [json!(["succeeded", 1])], "it was not cut short");
}

/// Restarts the head of a service under load, and returns the pids of proxies and replicas before and after.
fn restart_under_load(service: &Service, restart: impl Fn() -> Run) -> [[Vec<u32>; 2]; 2] {
    let before = [service.pids("proxy"), service.pids("replica")];
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    clients.wait_for(100);
    restart().success();
    clients.wait_for(200);
    let exchanges = clients.stop();
    let after = [service.pids("proxy"), service.pids("replica")];
    let traces = service.traces();
    service.cluster.assert_nothing_runs();
    assert_closed(&exchanges, &traces);
    for exchange in &exchanges {
        let Outcome::Whole(answer) = &exchange.outcome else { panic!("a connection broke: {exchange:?}") };
        assert_eq!(answer.status, 200, "{exchange:?}");
        assert_whole(exchange, 200, &traces);
    }
    [before, after]
}

#[test]
fn services_go_on_while_the_head_makes_way_for_one_of_the_same_protocol() {
    let service = Service::deploy(2);
    let [before, after] = restart_under_load(&service, || {
        service
            .cluster
            .tracer(&["restart"])
            .stderr_contains("1 service: goes on")
            .stdout_contains("services: 1 went on")
    });
    assert_eq!(before, after, "they are the same processes");
}

#[test]
fn services_begin_anew_and_no_connection_is_refused_where_the_next_head_speaks_another_protocol() {
    let service = Service::deploy(2);
    let restart = || {
        // What it finds in the place is of its own version: the head has the environment that it was started with.
        tracer_of_another_version(&service.cluster, &["restart"])
            .stderr_contains("1 service: answers what it has and begins anew; connections wait")
    };
    let before = [service.pids("proxy"), service.pids("replica")];
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    clients.wait_for(100);
    // The next head has the version of the one before, so this program cannot ask it how it is.
    restart();
    clients.wait_for(200);
    let exchanges = clients.stop();
    let after = [service.pids("proxy"), service.pids("replica")];
    for (before, after) in before.iter().zip(&after) {
        assert!(after.iter().all(|pid| !before.contains(pid)) && !after.is_empty(), "{before:?} {after:?}");
    }
    let mut broken = 0;
    for exchange in &exchanges {
        match &exchange.outcome {
            Outcome::Whole(answer) => assert_eq!(answer.status, 200, "{exchange:?}"),
            Outcome::Refused => panic!("a connection was refused: {exchange:?}"),
            // A request that is sent while the server closes a connection that is kept (RFC 9112, section 9.5).
            Outcome::Broken(_) => broken += 1,
        }
    }
    assert!(broken <= CLIENTS, "{broken} connections broke, of {}", exchanges.len());
    service.cluster.stop().success();
    service.cluster.assert_nothing_runs();
}

#[test]
fn a_head_of_another_version_is_asked_drained_and_stopped() {
    let cluster = Cluster::builder().workers(1).start();
    tracer_of_another_version(&cluster, &["list", "tasks"])
        .status(1)
        .stderr_contains("speaks version 10 of the protocol, but this program speaks version 999")
        .stderr_contains("(hint: `tracer restart` has this version go on in the head's place");
    let status = tracer_of_another_version(&cluster, &["status", "--format", "json"]).success().json();
    assert_eq!((&status["head_pid"], &status["workers"]), (&json!(cluster.head_pid()), &json!(1)), "{status}");
    tracer_of_another_version(&cluster, &["status"])
        .success()
        .stdout_contains("they speak different versions of the protocol")
        .stdout_contains("tasks     0 waiting, 0 running");
    begin_waiting(&cluster, "running", &[]);
    let drain = {
        let mut command = cluster.command(&["stop", "--drain"]);
        command.env(OTHER_PROTOCOL.0, OTHER_PROTOCOL.1);
        cluster.spawn(command)
    };
    wait_until("it drains", || {
        let status = tracer_of_another_version(&cluster, &["status", "--format", "json"]).success().json();
        (status["is_stopping"] == true).then_some(())
    });
    fs::write(cluster.file("running.released"), "").expect("the folder is ours");
    drain.wait().success().stderr_contains("and 1 worker");
    cluster.assert_nothing_runs();
    cluster.start_head(&[]).success();
    assert_eq!(states(&cluster), [json!(["succeeded", 1])]);
    tracer_of_another_version(&cluster, &["stop"]).success().stderr_contains("and 1 worker");
    cluster.assert_nothing_runs();
}

#[test]
fn a_head_from_before_there_were_orders_is_stopped_by_a_signal() {
    let cluster = Cluster::builder().workers(1).env("TRACER_TEST_WITHOUT", "orders").start();
    let too_old = "is of a version that cannot be told to";
    tracer_of_another_version(&cluster, &["status"])
        .status(1)
        .stderr_contains(too_old)
        .stderr_contains("(hint: `tracer stop` ends it");
    for arguments in [&["stop", "--drain"][..], &["stop", "--discard"], &["restart"]] {
        tracer_of_another_version(&cluster, arguments).status(1).stderr_contains(too_old);
    }
    let head = cluster.head_pid();
    tracer_of_another_version(&cluster, &["stop"]).success().stderr_contains(&format!("stopped the head (pid {head})"));
    cluster.assert_nothing_runs();
}

#[test]
fn the_head_of_a_program_does_not_make_way() {
    let cluster = Cluster::builder().workers(1).build();
    let mut command = cluster.command(&["start", "--head", "--embedded", "--keep-place"]);
    command.stdin(std::process::Stdio::piped());
    let mut head = cluster.spawn(command);
    let stdin = head.take_stdin();
    head.wait_for_stdout("head_pid");
    cluster.tracer(&["restart"]).status(2).stderr_contains("belongs to a program, with which it ends");
    drop(stdin);
    head.wait_within(Duration::from_secs(20));
    cluster.assert_nothing_runs();
}
