//! Access: requests that are let in, and those that are not.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::{builder, untraced};
use crate::support::{Api, Cluster};

const METHODS: [&str; 8] = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE"];
const TARGETS: [&str; 6] =
    ["/api/v1", "/api/v1/tasks", "/api/v1/tasks/1", "/api/v1/tasks/1/cancel", "/api/v1/openapi.json", "/nowhere"];

#[test]
fn nothing_is_answered_without_the_token_whatever_the_method() {
    let (_cluster, api) = untraced();
    for (method, target) in METHODS.iter().flat_map(|method| TARGETS.map(|target| (method, target))).step_by(2) {
        let answer = api.ask(method, target).without("Authorization").send();
        assert_eq!(answer.status, 401, "{method} {target}");
        assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tracer\"");
    }
    let refused = api.get("/api/v1").status(200);
    assert_eq!(refused.header("access-control-allow-origin"), "");
    let wrong = api
        .ask("GET", "/api/v1")
        .without("Authorization")
        .header("Authorization", &format!("Bearer {}", "0".repeat(64)));
    let problem = wrong.send().problem(401, "unauthorized");
    let hint = problem["hint"].as_str().expect("a hint");
    assert!(hint.contains("http.token") && !hint.contains(&api.token), "{hint}");
    let in_url = api.ask("GET", &format!("/api/v1?token={}", api.token)).without("Authorization");
    in_url.send().problem(401, "unauthorized");
}

#[test]
fn a_page_that_was_rebound_or_is_of_another_origin_is_refused_whatever_the_method() {
    let (_cluster, api) = untraced();
    let port = api.address.port();
    for method in METHODS {
        let rebound = api.ask(method, "/api/v1/tasks").without("Host").header("Host", &format!("evil.example:{port}"));
        let answer = rebound.send().status(403);
        assert_eq!(answer.header("access-control-allow-origin"), "");
        let foreign = api.ask(method, "/api/v1/tasks").header("Origin", "http://evil.example").send();
        assert_eq!(foreign.status, 403, "{method}");
    }
    let problem =
        api.ask("GET", "/api/v1").without("Host").header("Host", "127.0.0.1").send().problem(403, "forbidden-host");
    assert_eq!(problem["detail"], "`127.0.0.1` is not a name of this server");
    api.ask("GET", "/api/v1").header("Origin", "null").send().problem(403, "forbidden-origin");
    api.ask("GET", "/api/v1").header("Host", "127.0.0.1").send().problem(400, "invalid-request");
    api.ask("GET", "/api/v1").without("Host").send().problem(400, "invalid-request");
    api.ask("GET", "http://evil.example/").send().problem(403, "forbidden-host");
    // A page of this server's own, and a name of this machine.
    let own = api.ask("GET", "/api/v1").without("Host").header("Host", &format!("localhost:{port}"));
    own.header("Origin", &format!("http://localhost:{port}")).send().status(200);
    // Who is not meant learns nothing about the token.
    let both = api.ask("GET", "/api/v1").without("Authorization").header("Origin", "http://evil.example");
    both.send().problem(403, "forbidden-origin");
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let (_cluster, api) = untraced();
    let problem = api.get("/nowhere").problem(404, "no-such-path");
    assert_eq!(problem["hint"], "GET /api/v1 lists the routes");
    api.get("/api/v1/tasks/1").problem(404, "no-such-task");
    for id in ["0", "-1", "x", "1.0", "99999999999999999999"] {
        api.get(&format!("/api/v1/tasks/{id}")).problem(400, "invalid-request");
    }
    let answer = api.ask("DELETE", "/api/v1/tasks").send();
    assert_eq!(answer.header("allow"), "POST, GET, HEAD");
    answer.problem(405, "method-not-allowed");
    api.ask("OPTIONS", "/api/v1/tasks").send().problem(405, "method-not-allowed");
    let body = json!({"function": "demo:my_function"});
    let as_form = api.ask("POST", "/api/v1/tasks").header("Content-Type", "text/plain").body(body.to_string());
    as_form.send().problem(415, "not-json");
    api.ask("POST", "/api/v1/tasks").body(body.to_string()).send().problem(415, "not-json");
    let packed = api.ask("POST", "/api/v1/tasks").header("Content-Type", "application/json");
    packed.header("Content-Encoding", "gzip").body(body.to_string()).send().problem(415, "not-json");
    api.ask("POST", "/api/v1/tasks")
        .header("Content-Type", "application/json")
        .body("{")
        .send()
        .problem(400, "invalid-request");
    for target in ["./libwordcount.so:count", "/tmp/libx.so:f", "../demo:my_function", "demo"] {
        let problem = api.submission("", &json!({"function": target})).send().problem(400, "invalid-request");
        assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("demo:my_function")), "{problem}");
    }
    let problem = api.submission("", &json!({"command": ["true"]})).send().problem(403, "commands-off");
    assert!(problem["hint"].as_str().is_some_and(|hint| hint.contains("--http-commands")), "{problem}");
    assert_eq!(api.get("/api/v1/tasks").json()["tasks"], json!([]), "nothing was accepted");
}

#[test]
fn a_body_or_a_head_that_is_too_large_is_refused() {
    let (_cluster, api) = untraced();
    let large = json!({"function": "misbehaving_tasks:length", "arguments": ["x".repeat(8 << 20)]});
    api.submission("", &large).send().problem(413, "body-too-large");
    let announced = api.ask("POST", "/api/v1/tasks").header("Content-Type", "application/json");
    let mut chunked = announced.header("Transfer-Encoding", "chunked").bytes();
    // A body in chunks does not say how long it is.
    let head = String::from_utf8(chunked).expect("it is text").replace("Content-Length: 0\r\n", "");
    chunked = head.into_bytes();
    let mut stream = api.connect();
    std::io::Write::write_all(&mut stream, &chunked).expect("it reads");
    for _ in 0..9 {
        let chunk = [b"100000\r\n".as_slice(), &vec![b' '; 1 << 20], b"\r\n"].concat();
        if std::io::Write::write_all(&mut stream, &chunk).is_err() {
            break;
        }
    }
    let mut reader = std::io::BufReader::new(stream);
    crate::support::read_answer(&mut reader, false).expect("it is answered").problem(413, "body-too-large");
    let long = api.ask("GET", "/api/v1").header("X-Long", &"x".repeat(64 << 10)).try_send();
    assert!(long.is_err() || long.is_ok_and(|answer| answer.status == 431));
    let mut many = api.ask("GET", "/api/v1");
    for number in 0..100 {
        many = many.header(&format!("X-{number}"), "x");
    }
    assert_eq!(many.send().status, 431);
    api.get("/api/v1").status(200);
}

#[test]
fn the_token_is_for_its_user_alone_and_new_with_each_head() {
    let (cluster, api) = untraced();
    let path = cluster.session_dir().join("http.token");
    assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o600);
    assert_eq!(api.token.len(), 64);
    cluster.stop().success();
    assert!(!path.exists(), "it is of no use any more");
    cluster.start_head(&[]).success();
    let again = Api::of(&cluster);
    assert_ne!(again.token, api.token);
    let old = Api { token: api.token, ..again.clone() };
    old.get("/api/v1").problem(401, "unauthorized");
    again.get("/api/v1").status(200);
}

#[test]
fn an_address_that_others_can_reach_is_refused_with_a_way_that_is_safe() {
    for (address, hint) in [("0.0.0.0:8265", true), ("[::]:1", true), ("example.com:80", true), ("8265", false)] {
        let cluster = Cluster::builder().arg("--http").arg(address).build();
        let run = cluster.start_head(&[]).status(2);
        let text = run.stderr_text();
        assert!(text.contains(&format!("found `{address}`")), "{text}");
        assert_eq!(text.contains("ssh -N -L"), hint, "{text}");
        cluster.tracer(&["status"]).status(3);
    }
}

#[test]
fn a_port_that_is_taken_is_said_and_no_head_is_left() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address = taken.local_addr().expect("it is bound").to_string();
    let cluster = Cluster::builder().arg("--http").arg(&address).build();
    let text = cluster.start_head(&[]).status(1).stderr_text();
    assert!(text.contains(&format!("the HTTP API cannot listen on {address}: Address already in use")), "{text}");
    assert!(text.contains("--http 127.0.0.1:0"), "{text}");
    cluster.tracer(&["status"]).status(3);
    cluster.assert_nothing_runs();
    drop(taken);
    let cluster = builder().start();
    cluster.stop().success();
}
