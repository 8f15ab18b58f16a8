//! Commands that follow something while nothing happens, for far longer than a head may take to answer, and then are used again.
//!
//! `TRACER_IDLE_SECONDS` says how long, with the head's real time to answer (30 s); without it, not long, with a short one.

use std::fs;
use std::io::{BufRead, Write};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::support::{Api, Cluster, HOOK, kill, program_path, read_head, type_in_a_terminal, wait_until};

/// The variable that says how many seconds nothing happens.
const SECONDS: &str = "TRACER_IDLE_SECONDS";
/// Seconds in a run of all tests: ten times the patience.
const FEW: u64 = 5;
/// Time that the head may take to answer in a run of all tests.
const PATIENCE: &str = "answer_ms=500";

/// The start of a program that takes no connection before a file is there.
const SLOW_SERVICE: &str = "while [ ! -e \"$1\" ]; do sleep 0.05; done; exec python3 \"$2\" \"$3\"";

#[test]
fn what_follows_something_goes_on_however_long_nothing_happens() {
    let seconds = std::env::var(SECONDS).ok().map(|seconds| seconds.parse().expect("a number of seconds"));
    let cluster = Cluster::builder().workers(4).hook(HOOK).arg("--http").arg("127.0.0.1:0").start();
    let impatient = |mut command: Command| {
        if seconds.is_none() {
            command.env("TRACER_TEST_SETTING", PATIENCE);
        }
        command
    };
    let follow = |arguments: &[&str]| cluster.spawn(impatient(cluster.command(arguments)));
    let path = |name: &str| cluster.file(name).to_str().expect("a plain path").to_owned();
    let (released, ready, began) = (path("released"), path("ready"), path("began"));

    let arguments = [json!("a").to_string(), "2".into(), json!(released).to_string()];
    let [text, lines, file] = arguments.each_ref().map(String::as_str);
    let submission = follow(&["submit", "task", "misbehaving_tasks:prints_and_waits_in_span", text, lines, file]);
    let waited_for = wait_until("the task is there", || cluster.tasks().first().and_then(|task| task["id"].as_u64()));
    let id = waited_for.to_string();
    let mut followers = vec![
        follow(&["logs", &id, "--follow"]),
        follow(&["trace", "show", "last", "--follow", "--format", "json"]),
        follow(&["wait", &id]),
        follow(&["get", &id, "--wait"]),
    ];
    followers[0].wait_for_stdout("a out 2\n");
    let mut program = cluster.program(program_path("driver_program"));
    program.args(["submits-many", "1", &began, &released]);
    followers.push(cluster.spawn(impatient(program)));
    cluster.wait_for_file(&cluster.file("began"));
    followers.push(submission);

    let mut service = follow(&["serve", "run", "shop:hello", "--address", "127.0.0.1:0"]);
    service.wait_for_stdout("/\n");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/python/http_program.py");
    let command = json!(["sh", "-c", SLOW_SERVICE, "sh", ready, program, "{socket}"]);
    let file = format!(
        "name = \"slow\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\n\
         [[applications.deployments]]\ncommand = {command}\nstart_timeout = \"1h\"\n"
    );
    fs::write(cluster.file("slow.toml"), file).expect("the folder is ours");
    let mut deploy = follow(&["serve", "deploy", &path("slow.toml")]);
    deploy.wait_for_stderr("is starting");

    let mut top = cluster.command(&["top", "--interval", "50ms"]);
    top.env("TERM", "xterm-256color");
    let (mut top, screen, mut keyboard) = type_in_a_terminal(impatient(top));
    let shows = |text: &str| {
        wait_until(text, || screen.lock().expect("no reader panics").contains(text).then_some(()));
    };
    shows("prints_and_waits");
    let mut view = follow(&["view", "--address", "127.0.0.1:0", "--format", "json"]);
    let page = wait_until("the page is served", || serde_json::from_str::<serde_json::Value>(&view.stdout_text()).ok());
    let api = Api::of(&cluster);
    let body = json!({"function": "misbehaving_tasks:prints_and_waits", "arguments": ["b", 1, released]});
    let submitted = api.submission("", &body).send().status(202).json();
    let mut events = api.ask("GET", &format!("/api/v1/tasks/{}/logs", submitted["id"])).open().expect("it listens");
    assert_eq!(read_head(&mut events).expect("it is answered").0, 200);

    // The time that passes is a fact: a command of so many seconds has ended.
    let idle = seconds.unwrap_or(FEW);
    let pause = cluster.tracer_in_background(&["submit", "command", "--", "sleep", &idle.to_string()]);
    pause.wait_within(Duration::from_secs(idle + 60)).success();
    for follower in followers.iter_mut().chain([&mut service, &mut deploy, &mut view]) {
        assert!(follower.is_running(), "{}", follower.stderr_text());
    }
    assert!(top.try_wait().expect("it can be waited for").is_none());

    // All of it is used again.
    let url = service.stdout_text();
    let at = |url: &str| url.trim().strip_prefix("http://").and_then(|url| url.strip_suffix('/')).map(str::to_owned);
    let address = at(&url).and_then(|address| address.parse().ok()).expect("an address");
    Api { address, token: String::new() }.bare("GET", "/").header("Host", "here").send().status(200);
    service.wait_for_stderr("\"GET /\" 200");
    fs::write(&ready, "").expect("the folder is ours");
    deploy.wait().success().stderr_contains("version 1 of service `slow` is served at http://");
    let address = page["url"].as_str().and_then(at).and_then(|address| address.parse().ok()).expect("an address");
    Api { address, token: String::new() }.bare("GET", "/").header("Host", &format!("{address}")).send().status(200);
    // It runs until it was seen: what has ended is not shown.
    let arguments = [json!(path("counted")).to_string(), json!(released).to_string()];
    let [counter, file] = arguments.each_ref().map(String::as_str);
    cluster.submit("misbehaving_tasks:counts_and_waits", &[counter, file, "--no-wait"]).success();
    shows("counts_and_waits");
    fs::write(&released, "").expect("the folder is ours");
    let mut text = String::new();
    while !text.contains("event: end") {
        assert_ne!(events.read_line(&mut text).expect("there is more"), 0, "it ends with an event: {text}");
    }
    let runs: Vec<_> = followers.into_iter().map(|follower| follower.wait().success()).collect();
    runs[0].stdout_text().contains("a without an end").then_some(()).expect("the logs are whole");
    assert!(runs[1].stdout_text().contains("\"inner\""), "{}", runs[1].describe());
    keyboard.write_all(b"q").expect("it can be typed");
    let ended = wait_until("it ends", || top.try_wait().expect("it can be waited for"));
    assert!(ended.success(), "{ended}");
    view.signal(Signal::INT);
    view.wait().success();
    service.signal(Signal::INT);
    service.wait().success();
}

#[test]
fn a_head_that_is_stopped_by_a_signal_is_told_to_who_follows_a_service() {
    let cluster = Cluster::untraced();
    let service = cluster.tracer_in_background(&["serve", "run", "shop:hello", "--address", "127.0.0.1:0"]);
    service.wait_for_stdout("http://");
    let head_pid = cluster.head_pid();
    kill(head_pid, Signal::STOP);
    let run = service.wait();
    kill(head_pid, Signal::CONT);
    run.status(1).stderr_contains("was stopped by a signal, so it does not answer");
    wait_until("the service ends with its command", || {
        let report = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        (report["services"] == json!([])).then_some(())
    });
}
