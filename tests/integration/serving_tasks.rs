//! Handlers that submit tasks: their results, and one trace from the client to the task.

use std::collections::HashMap;
use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::{Answer, Cluster, HOOK, Span, Spans, read_answer};

/// Deadline of a request. Generous: it is reached only by a test that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// Serves `shop:submits` with this table `[tracing]`.
#[track_caller]
fn serve(tracing: &str) -> (Cluster, BufReader<TcpStream>) {
    let cluster = Cluster::builder().hook(HOOK).start();
    let file = cluster.file("service.toml");
    let text = format!(
        "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[tracing]\n{tracing}\n[[applications]]\nimport_path = \"shop:submits\"\n"
    );
    fs::write(&file, text).expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", file.to_str().expect("it is text")]).success();
    let report = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
    let url = report["services"][0]["url"].as_str().expect("it has a URL");
    let stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches('/')).expect("it is served");
    stream.set_read_timeout(Some(LIMIT)).expect("it is a socket");
    (cluster, BufReader::new(stream))
}

#[track_caller]
fn get(client: &mut BufReader<TcpStream>, headers: &str) -> Answer {
    let request = format!("GET / HTTP/1.1\r\nhost: shop\r\n{headers}\r\n");
    client.get_mut().write_all(request.as_bytes()).expect("it is connected");
    read_answer(client, false).expect("it answers").status(200)
}

/// The spans of a request whose handler submits a task, from the first to the last.
const CHAIN: [&str; 5] = [
    "proxy_http_request submits GET /",
    "route_to_replica submits handle",
    "replica_handle_request submits handle",
    "demo.my_function tracer.remote",
    "demo.my_function tracer.remote_worker",
];

/// Expects that these are the spans of one request, each the child of the one before it.
#[track_caller]
fn assert_chain(spans: &[&Span]) {
    let mut parent = None;
    for name in CHAIN {
        let span = spans.iter().find(|span| span.name() == name);
        let span = span.unwrap_or_else(|| {
            panic!("no `{name}` among {:?}", spans.iter().map(|span| span.name()).collect::<Vec<_>>())
        });
        assert_eq!(span.parent_id(), parent, "the parent of `{name}`");
        parent = Some(span.span_id());
    }
    assert_eq!(spans.len(), CHAIN.len());
}

fn by_trace(spans: &Spans) -> HashMap<&str, Vec<&Span>> {
    let mut traces: HashMap<_, Vec<_>> = HashMap::new();
    for span in spans.iter() {
        traces.entry(span.trace_id()).or_default().push(span);
    }
    traces
}

#[test]
fn a_handler_submits_tasks_to_the_head_that_comes_after_one_that_was_killed() {
    let (cluster, mut client) = serve("");
    assert_eq!(get(&mut client, "").text(), "1");
    for _ in 0..2 {
        cluster.kill_head_and_wait_for_the_next();
        assert_eq!(get(&mut client, "").text(), "1");
    }
    cluster.stop().success();
}

#[test]
fn a_task_of_a_handler_is_below_the_span_of_its_request() {
    let (cluster, mut client) = serve("");
    for _ in 0..3 {
        assert_eq!(get(&mut client, "").text(), "1");
    }
    let unsampled = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00\r\n";
    assert_eq!(get(&mut client, unsampled).text(), "1");
    drop(client);
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let traces = by_trace(&spans);
    assert_eq!(traces.len(), 3, "a request that is not sampled has no span anywhere: {}", spans.describe());
    traces.values().for_each(|spans| assert_chain(spans));
}

#[test]
fn a_ratio_samples_requests_with_their_tasks_whole_or_not_at_all() {
    const REQUESTS: usize = 1000;
    let (cluster, mut client) = serve("sampling_ratio = 0.5");
    for _ in 0..REQUESTS {
        get(&mut client, "");
    }
    drop(client);
    cluster.stop().success();
    let spans = cluster.spans();
    let traces = by_trace(&spans);
    traces.values().for_each(|spans| assert_chain(spans));
    // Six standard deviations.
    assert!(traces.len().abs_diff(REQUESTS / 2) < 96, "{} of {REQUESTS} requests were sampled", traces.len());
}
