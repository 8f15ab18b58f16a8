//! Clients that are gone, slow, many or hostile, and processes that die: nobody else is hurt.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{builder, traced, untraced};
use crate::engine::agent_pid;
use crate::support::{Api, Broker, Cluster, HOOK, is_alive, kill, read_answer, read_head, wait_until};

/// Limits of `src/web/http_api/limits.rs`, which the description repeats.
const CONNECTIONS: usize = 256;
const WAITS: usize = 96;
const REQUESTS_PER_SECOND: usize = 1000;

/// Returns a task that runs until its file exists, and that file.
fn waiting_task(cluster: &Cluster, api: &Api) -> std::path::PathBuf {
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let body = json!({"function": "misbehaving_tasks:waits", "arguments": [started, released]});
    api.submission("", &body).send().status(202);
    cluster.wait_for_file(&started);
    released
}

fn front_pid(cluster: &Cluster) -> u32 {
    wait_until("the process of the HTTP API runs", || u32::try_from(cluster.status()["http"]["pid"].as_u64()?).ok())
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn those_who_wait_or_follow_and_go_leave_their_place() {
    let (cluster, api) = untraced();
    let released = waiting_task(&cluster, &api);
    let before = open_files(front_pid(&cluster));
    for target in ["/api/v1/tasks/1/wait?timeout_ms=60000", "/api/v1/tasks/1/logs"] {
        let follows = target.ends_with("logs");
        let mut clients: Vec<_> = (0..WAITS).map(|_| api.ask("GET", target).open().expect("it listens")).collect();
        if follows {
            clients.iter_mut().for_each(|client| assert_eq!(read_head(client).expect("it is answered").0, 200));
        }
        // A place is given before the answer, so there is none for one more.
        wait_until("there is no place left", || {
            let mut answer = api.ask("GET", &target.replace("60000", "1")).open().ok()?;
            let (status, headers) = read_head(&mut answer).ok()?;
            if status != 429 {
                // This one may have had the last place, before a client that had come earlier: which was refused, and has left it free.
                clients.push(api.ask("GET", target).open().ok()?);
                return None;
            }
            headers.iter().any(|(name, value)| name == "retry-after" && value == "1").then_some(())
        });
        // Others are served.
        api.get("/api/v1/status").status(200);
        drop(clients);
        wait_until("the places are free again", || {
            let mut answer = api.ask("GET", &target.replace("60000", "1")).open().ok()?;
            (read_head(&mut answer).ok()?.0 == 200).then_some(())
        });
    }
    wait_until("their connections are closed", || (open_files(front_pid(&cluster)) <= before + 2).then_some(()));
    fs::write(released, "").expect("the folder is ours");
    assert_eq!(api.get("/api/v1/tasks/1/wait").json()["state"], "succeeded");
}

#[test]
fn a_follower_that_does_not_read_holds_neither_the_task_nor_others_up() {
    let (_cluster, api) = untraced();
    let line = "x".repeat(1000);
    let lines = 20_000;
    let body = json!({"function": "misbehaving_tasks:prints_and_waits", "arguments": [line, lines, "/"]});
    let submitted = api.submission("", &body).send().status(202).json();
    let deaf = api.ask("GET", &format!("/api/v1/tasks/{}/logs", submitted["id"])).open().expect("it listens");
    let ended = api.get("/api/v1/tasks/1/wait?timeout_ms=60000").json();
    assert_eq!(ended["state"], "succeeded");
    drop(deaf);
    // The newest of it is kept, and it is said how much is missing.
    let events = api.get("/api/v1/tasks/1/logs").events();
    assert_eq!(events[0].0, "missed");
    let missed = events[0].2["lines"].as_u64().expect("a number");
    let kept = events.iter().filter(|(_, _, data)| data["line"].is_string()).count() as u64;
    // Two outputs, and a last line without an end.
    assert_eq!(missed + kept, 2 * lines + 1);
    assert!(kept > 500, "{kept}");
}

#[test]
fn requests_that_never_come_to_an_end_are_cut_off_and_hold_nobody_up() {
    let (cluster, api) = untraced();
    let pid = front_pid(&cluster);
    let begun = format!("GET /api/v1/status HTTP/1.1\r\nHost: {}\r\n", api.address);
    let mut slow: Vec<_> = (0..CONNECTIONS + 50).map(|_| api.connect()).collect();
    for client in &mut slow {
        // Those that came first may have had to go already.
        let _ = client.write_all(begun.as_bytes());
    }
    // More than may be open at one time, and still there is room.
    api.get("/api/v1/status").status(200);
    assert_eq!(api.run(&json!({"function": "demo:my_function"}))["result"], 1);
    assert!(open_files(pid) < CONNECTIONS + 50, "{}", open_files(pid));
    let last = slow.last_mut().expect("there are some");
    let mut rest = Vec::new();
    // It ends: with an answer that says so, or without.
    let _ = last.read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
    wait_until("all of them are closed", || (open_files(pid) < 50).then_some(()));
    // A body that never comes costs nobody else anything either.
    let head = api.submission("", &json!({})).header("Content-Length", "100").bytes();
    let head = String::from_utf8(head).expect("it is text").replace("Content-Length: 2\r\n", "");
    let mut bodiless = api.connect();
    bodiless.write_all(head.as_bytes()).expect("it reads");
    api.get("/api/v1/status").status(200);
}

#[test]
fn bytes_that_are_no_http_close_their_connection_and_nothing_else() {
    let (cluster, api) = untraced();
    let hello = {
        let mut bytes = Vec::new();
        tracer::protocol::Hello::of_this_process(tracer::protocol::Role::Driver).encode(&mut bytes);
        bytes
    };
    let host = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", api.address, api.token);
    let cases: [Vec<u8>; 8] = [
        hello,
        vec![0; 1000],
        vec![0xff; 100_000],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
        format!("POST /api/v1/tasks HTTP/1.1\r\n{host}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello")
            .into_bytes(),
        format!("POST /api/v1/tasks HTTP/1.1\r\n{host}Content-Length: -1\r\n\r\n").into_bytes(),
        format!("GET /api/v1/tasks/1\r\n HTTP/1.1\r\n{host}\r\n").into_bytes(),
    ];
    for bytes in cases {
        let mut client = api.connect();
        let _ = client.write_all(&bytes);
        let _ = client.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
        api.get("/api/v1/status").status(200);
    }
    assert_eq!(cluster.status()["http"]["restarts"], 0);
    assert_eq!(api.get("/api/v1/tasks").json()["tasks"], json!([]));
}

#[test]
fn several_requests_go_over_one_connection_one_after_the_other() {
    let (_cluster, api) = untraced();
    let mut connection = api.ask("GET", "/api/v1").open().expect("it listens");
    assert_eq!(read_answer(&mut connection, false).expect("it is answered").status, 200);
    for (method, target, status) in
        [("GET", "/api/v1/tasks/1", 404), ("HEAD", "/api/v1", 200), ("GET", "/api/v1/tasks", 200)]
    {
        connection.get_mut().write_all(&api.ask(method, target).bytes()).expect("it reads");
        assert_eq!(read_answer(&mut connection, method == "HEAD").expect("it is answered").status, status);
    }
    // A request without the token does not spoil the connection, and is not let in by it.
    connection.get_mut().write_all(&api.ask("GET", "/api/v1").without("Authorization").bytes()).expect("it reads");
    assert_eq!(read_answer(&mut connection, false).expect("it is answered").status, 401);
}

/// Asks as often over one connection, and returns the statuses.
fn ask_again_and_again(api: &Api, ask: &crate::support::Ask, count: usize) -> Vec<u16> {
    let mut connection = api.ask("GET", "/api/v1").open().expect("it listens");
    read_answer(&mut connection, false).expect("it is answered");
    let mut statuses = Vec::new();
    for _ in 0..count {
        connection.get_mut().write_all(&ask.bytes()).expect("it reads");
        let answer = read_answer(&mut connection, false).expect("it is answered");
        assert!(answer.status != 429 || answer.header("retry-after") == "1", "{:?}", answer.headers);
        statuses.push(answer.status);
    }
    statuses
}

#[test]
fn more_requests_than_a_second_has_wait_for_their_turn() {
    let (_cluster, api) = untraced();
    let start = std::time::Instant::now();
    let statuses = ask_again_and_again(&api, &api.ask("GET", "/api/v1"), 2 * REQUESTS_PER_SECOND);
    assert!(statuses.iter().all(|&status| status == 200));
    // The first thousand are at hand.
    assert!(start.elapsed() > std::time::Duration::from_millis(950), "{:?}", start.elapsed());
}

#[test]
fn those_who_would_wait_too_long_are_told_to_come_again_and_strangers_take_nothing_from_others() {
    let (_cluster, api) = untraced();
    let (list, stranger) =
        (api.ask("GET", "/api/v1/tasks?limit=1000"), api.ask("GET", "/api/v1").without("Authorization"));
    let all_at_once = |ask: &crate::support::Ask, clients: usize| -> Vec<u16> {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..clients).map(|_| scope.spawn(|| ask_again_and_again(&api, ask, 2))).collect();
            clients.into_iter().flat_map(|client| client.join().expect("it is well")).collect()
        })
    };
    let strangers = all_at_once(&stranger, 150);
    assert!(strangers.contains(&401) && strangers.contains(&429), "{strangers:?}");
    api.get("/api/v1").status(200);
    // Each list is worth many requests.
    let lists = all_at_once(&list, 100);
    assert!(lists.contains(&200) && lists.contains(&429), "{lists:?}");
    wait_until("there is room again", || (api.get("/api/v1").status == 200).then_some(()));
}

#[test]
fn a_front_that_is_killed_comes_back_on_its_port_with_its_token_and_no_task_is_touched() {
    let (cluster, api) = traced();
    let released = waiting_task(&cluster, &api);
    let (pid, worker) = (front_pid(&cluster), cluster.worker_pids());
    kill(pid, Signal::KILL);
    wait_until("it is gone", || (!is_alive(pid)).then_some(()));
    // Who comes now waits until there is somebody again.
    let task = api.get("/api/v1/tasks/1").status(200).json();
    assert_eq!(task["state"], "running");
    assert_ne!(front_pid(&cluster), pid);
    let status = cluster.status();
    assert_eq!(status["http"]["restarts"], 1);
    let warning = status["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("the process of the HTTP API was killed by SIGKILL (signal 9), and is"), "{warning}");
    fs::write(released, "").expect("the folder is ours");
    assert_eq!(
        api.get("/api/v1/tasks/1/wait").json()["state"],
        "succeeded",
        "it is waited for by another than submitted it"
    );
    assert_eq!(cluster.worker_pids(), worker);
    api.get("/api/v1/tasks/1/logs").problem(404, "no-output-kept");
    api.run(&json!({"function": "demo:my_function"}));
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    assert_eq!(spans.all_named("POST /api/v1/tasks").len(), 2);
}

#[test]
fn a_span_that_was_open_in_a_killed_front_is_closed_with_what_happened() {
    let (cluster, api) = traced();
    let released = cluster.file("released");
    let body = json!({"function": "misbehaving_tasks:waits", "arguments": [cluster.file("started"), released]});
    let waiting = api.submission("?wait_ms=60000", &body).open().expect("it listens");
    cluster.wait_for_file(&cluster.file("started"));
    kill(front_pid(&cluster), Signal::KILL);
    fs::write(released, "").expect("the folder is ours");
    let spans = cluster.wait_for_spans("the request's", |spans| !spans.all_named("POST /api/v1/tasks").is_empty());
    assert_eq!(spans.named("POST /api/v1/tasks").status_code(), "ERROR");
    drop(waiting);
    cluster.wait_for_task(1);
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_request_whose_client_has_gone_is_a_span_that_says_so_and_its_task_goes_on() {
    let (cluster, api) = traced();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let body = json!({"function": "misbehaving_tasks:waits", "arguments": [started, released]});
    let waiting = api.submission("?wait_ms=60000", &body).open().expect("it listens");
    cluster.wait_for_file(&started);
    drop(waiting);
    let spans = cluster.wait_for_spans("the request's", |spans| !spans.all_named("POST /api/v1/tasks").is_empty());
    let request = spans.named("POST /api/v1/tasks");
    assert_eq!((request.status_code(), request.attribute("error.type")), ("ERROR", &json!("client_gone")));
    fs::write(released, "").expect("the folder is ours");
    assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
}

#[test]
fn a_front_ends_with_a_head_that_is_killed_and_its_tasks_go_on_under_the_next() {
    let cluster = builder().hook(HOOK).start();
    let api = Api::of(&cluster);
    let released = waiting_task(&cluster, &api);
    let body = json!({"function": "demo:my_function"});
    assert_eq!(api.submission("", &body).send().status(202).json()["id"], 2);
    let mut waiting = api.ask("GET", "/api/v1/tasks/2/wait?timeout_ms=60000").open().expect("it listens");
    let front = front_pid(&cluster);
    cluster.kill_head();
    wait_until("the front is gone", || (!is_alive(front)).then_some(()));
    // It may have had the time to say so.
    if let Ok(answer) = read_answer(&mut waiting, false) {
        answer.problem(503, "unavailable");
    }
    cluster.assert_nothing_runs();
    fs::write(released, "").expect("the folder is ours");
    cluster.start_head(&[]).success();
    let api = Api::of(&cluster);
    for id in [1, 2] {
        let ended = api.get(&format!("/api/v1/tasks/{id}/wait?timeout_ms=60000")).status(200).json();
        assert_eq!(ended["state"], "succeeded", "{ended}");
    }
    cluster.stop().success();
    cluster.spans().assert_whole(&[]);
}

#[test]
fn those_who_wait_hear_how_it_ended_when_the_head_is_stopped() {
    let (cluster, api) = traced();
    waiting_task(&cluster, &api);
    let mut waiting = api.ask("GET", "/api/v1/tasks/1/wait?timeout_ms=60000").open().expect("it listens");
    let mut following = api.ask("GET", "/api/v1/tasks/1/logs").open().expect("it listens");
    assert_eq!(read_head(&mut following).expect("it is answered").0, 200);
    api.get("/api/v1/status").status(200);
    let stop = cluster.tracer_in_background(&["stop", "--force", "--discard"]);
    let ended = read_answer(&mut waiting, false).expect("it is answered").json();
    assert_eq!((&ended["state"], &ended["failure"]["reason"]), (&json!("failed"), &json!("head_stopped")));
    let mut rest = String::new();
    following.read_to_string(&mut rest).expect("it ends");
    assert!(rest.contains("event: end"), "{rest}");
    stop.wait().success();
    cluster.assert_nothing_runs();
    assert!(TcpStream::connect(api.address).is_err(), "nobody listens any more");
}

#[test]
fn a_worker_that_dies_takes_along_what_it_left_and_not_the_front() {
    let (cluster, api) = untraced();
    let pid = front_pid(&cluster);
    let body = json!({"function": "misbehaving_tasks:aborts", "crash_limit": 0});
    assert_eq!(api.run(&body)["failure"]["reason"], "worker_lost");
    // The head has looked for what the worker left by the time that the next one runs a task.
    assert_eq!(api.run(&json!({"function": "demo:my_function"}))["result"], 1);
    assert_eq!((front_pid(&cluster), &cluster.status()["http"]["restarts"]), (pid, &json!(0)));
}

#[test]
fn a_front_that_hangs_does_not_keep_the_head_from_ending() {
    let (cluster, api) = untraced();
    let pid = front_pid(&cluster);
    kill(pid, Signal::STOP);
    cluster.tracer(&["submit", "task"]).success().stdout("1\n");
    cluster.stop().success();
    cluster.assert_nothing_runs();
    assert!(TcpStream::connect(api.address).is_err(), "nobody listens any more");
}

#[test]
fn the_socket_goes_on_while_http_clients_ask_without_pause() {
    let (cluster, api) = untraced();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = api.submission("?wait_ms=1000", &json!({"function": "demo:my_function"})).try_send();
                    let _ = api.ask("GET", "/api/v1/tasks?limit=1000").try_send();
                }
            });
        }
        for _ in 0..20 {
            cluster.tracer(&["submit", "task"]).success().stdout("1\n");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let status: Value = cluster.status();
    assert_eq!((&status["tasks"]["failed"], &status["http"]["restarts"]), (&json!(0), &json!(0)));
}

#[test]
fn the_log_of_its_process_stays_within_its_share() {
    // A sixteenth of a MiB.
    const SHARE: u64 = 1 << 16;
    let cluster = builder().hook("console:setup_tracing").arg("--max-log-size=1MiB").start();
    let api = Api::of(&cluster);
    let size =
        |name: &str| std::fs::metadata(cluster.session_dir().join("logs").join(name)).map_or(0, |found| found.len());
    let body = json!({"function": "demo:my_function", "name": "x".repeat(100)});
    wait_until("the log was put aside twice", || {
        let before = size("http.log.1");
        for _ in 0..10 {
            api.submission("", &body).send().status(202);
        }
        assert!(size("http.log") + size("http.log.1") < 4 * SHARE, "{} and {}", size("http.log"), size("http.log.1"));
        (before > 0 && size("http.log.1") != before).then_some(())
    });
    assert!(size("http.log.1") > SHARE / 2);
}

#[test]
fn nobody_is_told_that_a_task_was_not_taken_that_the_next_head_may_run_and_with_its_key_it_is_one() {
    let Some(broker) = Broker::start() else { return };
    // The head dies with the task in its journal, before it has answered; or while one waits for the end of a task that is accepted.
    for (point, query, key) in [("task_journaled", "", "one"), ("", "?wait_ms=60000", "two")] {
        let cluster = builder().arg("--address").arg(broker.address()).arg("--queue=default");
        let cluster = cluster.env("TRACER_TEST_KILL_AT", point).build();
        let start = || {
            let mut start = cluster.start_command(&[]);
            start.env("TRACER_TEST_KILL_ONCE", cluster.file("once"));
            cluster.run(start).success();
            agent_pid(&cluster);
            (Api::of(&cluster), cluster.head_pid())
        };
        let (api, head) = start();
        let (started, released) = (cluster.file("started"), cluster.file("released"));
        let function = "misbehaving_tasks:waits";
        let body = json!({"function": function, "arguments": [&started, &released], "queue": "default"});
        let mut submission = api.submission(query, &body).header("Idempotency-Key", key).open().expect("it listens");
        let is_accepted = point.is_empty();
        if is_accepted {
            cluster.wait_for_file(&started);
            kill(head, Signal::KILL);
        }
        // The process of the API may have ended before it could say so.
        if let Ok(answer) = read_answer(&mut submission, false) {
            let location = if is_accepted { "/api/v1/tasks/1" } else { "" };
            assert_eq!((answer.header("retry-after"), answer.header("location")), ("", location), "{}", answer.text());
            let problem = answer.problem(502, "outcome-unknown");
            let names_key = problem["hint"].as_str().is_some_and(|hint| hint.contains("Idempotency-Key"));
            assert_eq!(names_key, !is_accepted, "{problem}");
        }
        wait_until("the head is gone", || (!is_alive(head)).then_some(()));
        fs::write(&released, "").expect("the folder is ours");
        let (api, _) = start();
        let again = api.submission("", &body).header("Idempotency-Key", key).send().status(202).json();
        assert_eq!(again["id"], 1, "{again}");
        assert_eq!(cluster.wait_for_task(1)["state"], "succeeded");
    }
}
