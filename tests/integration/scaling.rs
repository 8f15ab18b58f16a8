//! Deployments that have as many replicas as their requests want: from none to some and back, without a lost request.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use super::composition::serve_handlers;
use crate::support::{Answer, Cluster, HOOK, Run, read_answer, wait_until};

/// Deadline of a request. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// A service whose ingress is a deployment of the fixture `handlers`.
struct Scaled {
    cluster: Cluster,
    address: String,
}

impl Scaled {
    #[track_caller]
    fn start(cluster: Cluster, deployments: &[(&str, &str)]) -> Scaled {
        let address = serve_handlers(&cluster, deployments);
        Scaled { cluster, address }
    }

    fn status(&self) -> Value {
        let report = self.cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        report["services"][0].clone()
    }

    /// Returns how many replicas a deployment has that take requests, and how many processes of it there are.
    fn replicas(&self, deployment: &str) -> (u64, usize) {
        let status = self.status();
        let rows = status["deployments"].as_array().expect("there are deployments").clone();
        let row = rows.iter().find(|row| row["name"] == deployment).expect("it is one of them");
        let processes = status["replicas"].as_array().expect("there are rows");
        let processes = processes.iter().filter(|replica| replica["deployment"] == deployment).count();
        (row["ready"].as_u64().expect("it is a number"), processes)
    }

    #[track_caller]
    fn wait_for(&self, deployment: &str, ready: u64) {
        wait_until("it has so many replicas", || (self.replicas(deployment) == (ready, ready as usize)).then_some(()));
    }

    /// Begins a request that is in flight until the rest of its body is sent.
    #[track_caller]
    fn hold(&self) -> Held {
        let stream = TcpStream::connect(&self.address).expect("it is served");
        stream.set_read_timeout(Some(LIMIT)).expect("it is a socket");
        let mut client = BufReader::new(stream);
        client
            .get_mut()
            .write_all(b"POST /echo HTTP/1.1\r\nhost: shop\r\ncontent-length: 2\r\n\r\na")
            .expect("it is connected");
        Held(client)
    }

    #[track_caller]
    fn get(&self, path: &str) -> Answer {
        let mut client = TcpStream::connect(&self.address).expect("it is served");
        client.set_read_timeout(Some(LIMIT)).expect("it is a socket");
        client.write_all(format!("GET {path} HTTP/1.1\r\nhost: shop\r\n\r\n").as_bytes()).expect("it is connected");
        read_answer(&mut BufReader::new(client), false).expect("it answers")
    }

    fn explain(&self, deployment: &str, format: &[&str]) -> Run {
        self.cluster.tracer(&[&["explain", deployment], format].concat())
    }
}

/// A request in flight.
struct Held(BufReader<TcpStream>);

impl Held {
    #[track_caller]
    fn end(mut self) {
        self.0.get_mut().write_all(b"b").expect("it is connected");
        let answer = read_answer(&mut self.0, false).expect("it answers");
        assert_eq!((answer.status, answer.text().as_str()), (200, "ab"));
    }
}

const QUICK: &str = "upscale_delay = \"100ms\", downscale_delay = \"200ms\"";

#[test]
fn a_first_request_waits_for_its_replica_and_its_span_has_the_cold_start() {
    let autoscaling = format!("autoscaling = {{ min = 0, max = 2, {QUICK} }}");
    let cluster = Cluster::builder().hook(HOOK).start();
    // Both from the same handlers; the second is called by the first.
    let served = Scaled::start(cluster, &[("outer", &autoscaling), ("inner", &autoscaling)]);
    for name in ["outer", "inner"] {
        served.wait_for(name, 0);
    }
    assert_eq!(served.status()["state"], "running", "that there is none is as it should be");
    served.explain("inner", &[]).success().stdout_contains("the first one starts one");
    served.cluster.tracer(&["list", "deployments"]).success().stdout_contains("0/0 (0-2)");
    assert_eq!(served.get("/a").status, 200);
    for name in ["outer", "inner"] {
        served.wait_for(name, 0);
    }
    served.cluster.stop().success();
    let spans = served.cluster.spans();
    spans.assert_whole(&[]);
    let root = spans.all_named("proxy_http_request outer GET /")[0];
    for hop in ["route_to_replica outer handle", "route_to_replica inner handle"] {
        let hop = spans.iter().find(|span| span.name() == hop).expect("there is one");
        let cold =
            spans.iter().find(|span| span.parent_id() == Some(hop.span_id()) && span.name() == "tracer.cold_start");
        let cold = cold.unwrap_or_else(|| panic!("no cold start below {}: {}", hop.name(), spans.describe()));
        assert_eq!(cold.trace_id(), root.trace_id());
    }
    assert_eq!(spans.all_named("tracer.cold_start").len(), 2);
}

#[test]
fn replicas_follow_the_requests_and_those_that_go_end_what_they_have() {
    let autoscaling = format!("autoscaling = {{ max = 2, target_ongoing_requests = 2, {QUICK} }}");
    let served = Scaled::start(Cluster::untraced(), &[("inner", &autoscaling)]);
    assert_eq!(served.replicas("inner"), (1, 1));
    let mut held: Vec<_> = (0..4).map(|_| served.hold()).collect();
    served.wait_for("inner", 2);
    // The next request is at the second replica, and of the first four all but one end: each replica has one, and one replica is enough.
    let other = served.hold();
    wait_until("it is in flight", || (served.status()["deployments"][0]["ongoing"] == 5).then_some(()));
    let last = held.pop().expect("there are four");
    held.into_iter().for_each(Held::end);
    wait_until("one of them takes no more", || {
        let status = served.status();
        let states =
            status["replicas"].as_array().expect("there are replicas").iter().map(|replica| replica["state"].clone());
        states.into_iter().any(|state| state == "draining").then_some(())
    });
    other.end();
    last.end();
    served.wait_for("inner", 1);
    assert_eq!(served.status()["deployments"][0]["lost"], 0);
    assert_eq!(served.get("/b").text(), "/b");
    let config = served.cluster.tracer(&["serve", "config"]).success().stdout_text();
    assert!(
        config.contains("autoscaling = { min = 1, max = 2, target_ongoing_requests = 2, upscale_delay = \"100ms\""),
        "{config}"
    );
}

#[test]
fn replicas_follow_the_requests_over_the_death_of_a_head() {
    let autoscaling = format!("autoscaling = {{ min = 0, max = 2, target_ongoing_requests = 2, {QUICK} }}");
    let served = Scaled::start(Cluster::untraced(), &[("inner", &autoscaling)]);
    served.wait_for("inner", 0);
    // From none to one, while there is no head.
    served.cluster.kill_head();
    let mut held = vec![served.hold()];
    served.cluster.wait_for_head();
    served.wait_for("inner", 1);
    held.extend((1..4).map(|_| served.hold()));
    served.wait_for("inner", 2);
    // The next head has the same two replicas, and keeps them for as long as they have requests.
    let pids = |status: Value| -> Vec<Value> {
        let replicas = status["replicas"].as_array().expect("there are replicas");
        replicas.iter().map(|replica| replica["pid"].clone()).collect()
    };
    let before = pids(served.status());
    served.cluster.kill_head_and_wait_for_the_next();
    assert_eq!(pids(served.status()), before);
    served.wait_for("inner", 2);
    // They end while there is no head, which sees it when it comes.
    served.cluster.kill_head();
    held.into_iter().for_each(Held::end);
    served.cluster.wait_for_head();
    served.wait_for("inner", 0);
    assert_eq!(served.status()["deployments"][0]["lost"], 0);
    assert_eq!(served.get("/b").text(), "/b");
}

#[test]
fn when_there_is_no_room_it_is_said_what_is_short() {
    let cluster = Cluster::builder().arg("--resources").arg("gpu=1").start();
    let lines = format!("resources = {{ gpu = 1 }}\nautoscaling = {{ max = 3, target_ongoing_requests = 1, {QUICK} }}");
    let served = Scaled::start(cluster, &[("inner", &lines)]);
    let held: Vec<_> = (0..3).map(|_| served.hold()).collect();
    let short = "the resource `gpu`: one more replica needs 1, and of 1 replicas have 1 and tasks 0";
    wait_until("it is said", || {
        let explained = served.explain("inner", &["--format", "json"]).success().json();
        let reasons = explained["reasons"].as_array().expect("there are reasons").clone();
        let is_it = |reason: &Value| {
            reason["reason"] == "no_room" && reason["text"].as_str().is_some_and(|text| text.contains(short))
        };
        (reasons.iter().any(is_it) && explained["deployment"]["num_replicas"] == 3).then_some(())
    });
    assert_eq!(served.replicas("inner"), (1, 1));
    served.explain("shop/main/inner", &[]).success().stdout_contains("there is no room for a further replica");
    served.explain("nothing", &[]).status(1).stderr_contains("nothing");
    held.into_iter().for_each(Held::end);
}
