//! A task that calls a service over HTTP: the trace goes on in the headers of the request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use serde_json::json;

use crate::support::{Cluster, HOOK, Spans};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";

/// The headers of a request, their names in lower case.
type Headers = BTreeMap<String, String>;

/// Answers one request with that status, and returns its headers.
fn serve(status: &'static str) -> (String, JoinHandle<Headers>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let url = format!("http://{}/page", listener.local_addr().expect("it is bound"));
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client comes");
        let mut lines = BufReader::new(stream.try_clone().expect("it can be cloned")).lines();
        let request = lines.next().expect("there is a request").expect("it is text");
        assert_eq!(request, "GET /page HTTP/1.1");
        let headers = lines.map(|line| line.expect("it is text")).take_while(|line| !line.is_empty());
        let headers = headers
            .map(|line| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned())))
            .collect::<Option<Headers>>()
            .expect("every header has a value");
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello").expect("it is read");
        headers
    });
    (url, server)
}

fn fetch(cluster: &Cluster, url: &str, flags: &str, status: i32) -> String {
    let mut submit = cluster.command(&["submit", "task", "http_task:fetch"]);
    submit.arg(format!("\"{url}\""));
    submit.env("TRACEPARENT", format!("00-{TRACE_ID}-b7ad6b7169203331-{flags}"));
    submit.envs([("TRACESTATE", "rojo=1,congo=2"), ("BAGGAGE", "customer=ada")]);
    cluster.run(submit).status(status).stdout_text()
}

fn spans_of(cluster: Cluster) -> Spans {
    cluster.stop().success();
    let spans = cluster.spans();
    spans.assert_whole(&["0xb7ad6b7169203331"]);
    spans
}

#[test]
fn a_request_is_a_client_span_and_carries_the_trace_on() {
    let cluster = Cluster::builder().hook(HOOK).start();
    let (url, server) = serve("200 OK");
    let result = fetch(&cluster, &url, "01", 0);
    assert_eq!(result, "{\"status\":200,\"text\":\"hello\"}\n");
    let headers = server.join().expect("the server is well");
    let spans = spans_of(cluster);
    let client = spans.named("GET");
    assert_eq!((client.kind(), client.status_code()), ("SpanKind.CLIENT", "UNSET"));
    assert_eq!(spans.parent_of(client).name(), "http_task.fetch tracer.remote_worker");
    let port: i64 =
        url.trim_end_matches("/page").rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
    assert_eq!(
        client.value["attributes"],
        json!({
            "http.request.method": "GET",
            "url.full": url,
            "server.address": "127.0.0.1",
            "server.port": port,
            "http.response.status_code": 200,
        })
    );
    let span_id = client.span_id().trim_start_matches("0x");
    assert_eq!(headers["traceparent"], format!("00-{TRACE_ID}-{span_id}-01"));
    assert_eq!((&*headers["tracestate"], &*headers["baggage"]), ("rojo=1,congo=2", "customer=ada"));
}

#[test]
fn a_request_that_fails_is_a_span_that_says_so() {
    let cluster = Cluster::builder().hook(HOOK).start();
    let (url, server) = serve("404 Not Found");
    fetch(&cluster, &url, "01", 1);
    server.join().expect("the server is well");
    // Nobody listens there any more.
    fetch(&cluster, &url, "01", 1);
    let spans = spans_of(cluster);
    let [refused, unheard] = spans.all_named("GET")[..] else { panic!("{}", spans.describe()) };
    assert_eq!((refused.status_code(), refused.attribute("error.type")), ("ERROR", &json!("404")));
    assert_eq!(*refused.attribute("http.response.status_code"), 404);
    assert_eq!((unheard.status_code(), unheard.attribute("error.type")), ("ERROR", &json!("no_response")));
}

#[test]
fn a_trace_that_is_not_sampled_is_carried_on_as_such() {
    for hook in [Some(HOOK), None] {
        let builder = Cluster::builder();
        let cluster = if let Some(hook) = hook { builder.hook(hook) } else { builder }.start();
        let (url, server) = serve("200 OK");
        fetch(&cluster, &url, "00", 0);
        let trace_parent = server.join().expect("the server is well")["traceparent"].clone();
        assert!(
            trace_parent.starts_with(&format!("00-{TRACE_ID}-")) && trace_parent.ends_with("-00"),
            "{trace_parent}"
        );
        assert_eq!(spans_of(cluster).len(), 0);
    }
}
