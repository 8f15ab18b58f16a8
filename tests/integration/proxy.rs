//! The proxy of a service, as the built program, between clients and replicas that the test plays.

mod broken;
mod clients;
mod played;

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use played::{Client, FrameContent, Head};
use tracer::lane::Reset;
use tracer_ipc::serving::{ProxyOrder, ProxyReport};

use serde_json::{Value, json};

use crate::support::{Span, Spans, wait_until};

#[test]
fn a_request_is_answered_by_the_replica_and_its_spans_are_one_trace() {
    let head = Head::start();
    let mut replica = head.add_replica(3, 10);
    let mut client = head.send("GET /cart?id=7 HTTP/1.1\r\nHost: shop:8000\r\nAccept: x\r\nUser-Agent: test\r\n\r\n");
    let (request, opening, headers) = replica.take();
    assert_eq!((&*opening.method, &*opening.target, &*opening.authority), ("GET", "/cart?id=7", "shop:8000"));
    assert_eq!((opening.version, opening.has_deadline), (11, false));
    assert!(opening.client.starts_with("127.0.0.1:"));
    assert!(headers.contains(&("accept".into(), "x".into())), "{headers:?}");
    assert!(headers.contains(&("x-forwarded-for".into(), "127.0.0.1".into())), "{headers:?}");
    assert_eq!(head.in_flight(3), 1);
    replica.answer(request, 201, "hello");
    let answer = client.answer().status(201);
    assert_eq!((answer.text().as_str(), answer.header("content-length")), ("hello", "5"));
    assert_eq!(answer.header("x-request-id"), opening.request_id);
    wait_until("its place is given back", || (head.in_flight(3) == 0).then_some(()));

    let spans = head.spans(2);
    let server = spans.named("proxy_http_request hello GET /");
    let hop = spans.named("route_to_replica hello handle");
    assert_eq!((server.kind(), hop.kind()), ("SpanKind.SERVER", "SpanKind.CLIENT"));
    assert_eq!((server.parent_id(), hop.parent_id()), (None, Some(server.span_id())));
    let trace_response = format!("00-{}-{}-03", plain(server.trace_id()), plain(server.span_id()));
    assert_eq!(answer.header("traceresponse")[..52], trace_response[..52]);
    assert_eq!((opening.trace_id, opening.span_id), (plain(hop.trace_id()), plain(hop.span_id())));
    for (key, expected) in [
        ("deployment", "hello"),
        ("app", "default"),
        ("route", "/"),
        ("request_id", &opening.request_id),
        ("request_method", "GET"),
        ("http.request.method", "GET"),
        ("url.path", "/cart"),
        ("url.query", "id=7"),
        ("replica_id", "hello#3"),
        ("client.address", "127.0.0.1"),
        ("user_agent.original", "test"),
        ("network.protocol.version", "1.1"),
    ] {
        assert_eq!(*server.attribute(key), expected, "{key}");
    }
    assert_eq!(*server.attribute("http.response.status_code"), 201);
    assert_eq!(*server.attribute("tracer.response_body_bytes"), 5);
    assert_eq!((server.status_code(), hop.status_code()), ("UNSET", "UNSET"));
    assert_eq!(*hop.attribute("tracer.attempt"), 1);
    let line = wait_until("it is in the access log", || head.access_log().lines().next().map(str::to_owned));
    for part in ["\"GET /cart?id=7\" 201 5 ", &opening.request_id, &plain(server.trace_id()), "replica=hello#3"] {
        assert!(line.contains(part), "{line}");
    }
}

/// Returns an id without what span files write before it.
fn plain(id: &str) -> String {
    id.trim_start_matches("0x").to_owned()
}

fn outcome(span: &Span) -> (&str, &str, &str) {
    let text = |key| span.attribute(key).as_str().unwrap_or_default();
    (span.status_code(), text("error.type"), text("tracer.outcome"))
}

#[test]
fn a_trace_of_the_client_goes_on_and_malformed_context_counts_as_none() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let mut client = head.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\ntraceparent: 00-{trace}-b7ad6b7169203331-01\r\ntracestate: a=1\r\n\
         tracestate: b=2\r\nbaggage: k=v\r\nx-request-id: mine\r\n\r\n"
    ));
    let (request, opening, headers) = replica.take();
    assert_eq!((opening.trace_id.as_str(), opening.request_id.as_str()), (trace, "mine"));
    let value = |name: &str| headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect();
    let (state, baggage, parent): (Vec<_>, Vec<_>, Vec<_>) =
        (value("tracestate"), value("baggage"), value("traceparent"));
    assert_eq!((state, baggage, parent), (vec!["a=1,b=2"], vec!["k=v"], vec![]));
    replica.answer(request, 200, "");
    assert_eq!(client.answer().status(200).header("x-request-id"), "mine");
    client.send("GET / HTTP/1.1\r\nHost: a\r\ntraceparent: 00-zz-b7ad6b7169203331-01\r\nx-request-id: a b\r\n\r\n");
    let (request, opening, _) = replica.take();
    assert!(opening.trace_id != trace && opening.request_id != "a b" && opening.request_id.len() == 32);
    replica.answer(request, 200, "");
    client.answer().status(200);
    let spans = head.spans(4);
    let first = spans.all_named("proxy_http_request hello GET /");
    let parents: Vec<_> = first.iter().filter_map(|span| span.parent_id().map(plain)).collect();
    assert_eq!(parents, ["b7ad6b7169203331"]);
}

#[test]
fn bodies_stream_in_both_directions_and_a_slow_reader_stops_its_sender_alone() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.send("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    let (request, _, _) = replica.take();
    let came = replica.next();
    assert_eq!((came.content, came.is_last), (FrameContent::Data(b"abc".to_vec()), false));
    replica.head(request, false, 200, &[]);
    replica.data(request, false, b"first");
    let (status, _) = crate::support::read_head(&mut client.0).unwrap();
    assert_eq!((status, crate::support::read_chunk(&mut client.0).unwrap().unwrap()), (200, b"first".to_vec()));
    // The answer has begun, and the request goes on.
    client.send("2\r\nde\r\n0\r\n\r\n");
    assert_eq!(replica.body(), b"de");
    replica.data(request, true, b"last");
    assert_eq!(crate::support::read_chunk(&mut client.0).unwrap().unwrap(), b"last");
    assert_eq!(crate::support::read_chunk(&mut client.0).unwrap(), None);

    // A body of more than a window waits for credit; another request does not wait.
    let body = vec![b'x'; 600 << 10];
    let sender = {
        let mut slow = head.send(format!("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", body.len()));
        let body = body.clone();
        std::thread::spawn(move || {
            slow.send(&body);
            slow.answer().status(200);
        })
    };
    let (request, _, _) = replica.take();
    let mut came = 0;
    while came < 256 << 10 {
        match replica.next().content {
            FrameContent::Data(piece) => came += piece.len(),
            what => panic!("{what:?}"),
        }
    }
    client.send("GET /c HTTP/1.1\r\nHost: a\r\n\r\n");
    let (other, opening, _) = replica.take();
    assert_eq!((opening.target.as_str(), came), ("/c", 256 << 10), "what there was no credit for waits");
    replica.answer(other, 200, "");
    client.answer().status(200);
    while came < body.len() {
        replica.credit(request, 100 << 10);
        let mut credit = 100 << 10;
        while credit > 0 && came < body.len() {
            match replica.next().content {
                FrameContent::Data(piece) => (came, credit) = (came + piece.len(), credit - piece.len()),
                what => panic!("{what:?}"),
            }
        }
    }
    assert_eq!(came, body.len());
    replica.answer(request, 200, "");
    sender.join().unwrap();
}

#[test]
fn a_request_is_recorded_with_its_model_and_with_the_host_that_it_names() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    for (host, address, port) in [
        ("shop.example:8443", "shop.example", json!(8443)),
        ("[::1]:80", "::1", json!(80)),
        ("shop.example", "shop.example", Value::Null),
    ] {
        let mut client = head.send(format!("GET /{host} HTTP/1.1\r\nHost: {host}\r\nx-model-id: lamps\r\n\r\n"));
        let (request, _, _) = replica.take();
        replica.answer(request, 200, "");
        client.answer().status(200);
        let spans = wait_until("it is recorded", || {
            let spans = Spans::read(&head.spans_dir());
            spans.iter().any(|span| *span.attribute("url.path") == format!("/{host}")).then_some(spans)
        });
        let server = spans.only("is the request", |span| *span.attribute("url.path") == format!("/{host}"));
        assert_eq!((server.kind(), server.attribute("multiplexed_model_id")), ("SpanKind.SERVER", &json!("lamps")));
        let told = ["server.address", "server.port"].map(|key| server.attribute(key));
        assert_eq!(told, [&json!(address), &port], "{host}");
    }
}

#[test]
fn a_request_that_a_replica_has_no_more_time_for_was_drained() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.get("/");
    let (request, _, _) = replica.take();
    replica.reset(request, tracer::lane::Reset::Timeout);
    let answer = client.answer().status(504);
    assert_eq!(answer.json()["type"], "urn:tracer:problem:drained", "{}", answer.text());
    let mut client = head.get("/begun");
    let (request, _, _) = replica.take();
    replica.head(request, false, 200, &[]);
    replica.data(request, false, b"x");
    replica.reset(request, tracer::lane::Reset::Timeout);
    assert!(client.rest().starts_with("HTTP/1.1 200"));
    let spans = head.spans(4);
    for server in spans.all_named("proxy_http_request hello GET /") {
        assert_eq!(outcome(server), ("ERROR", "drained", "drained"));
    }
}

#[test]
fn a_path_without_an_application_is_told_so() {
    let head = Head::start_with(1, |settings| settings.routes[0].route_prefix = "/shop".into());
    let mut replica = head.add_replica(0, 10);
    let mut client = head.get("/shopping");
    let answer = client.answer().status(404);
    assert_eq!(answer.header("content-type"), "application/problem+json");
    assert!(answer.json()["detail"].as_str().unwrap().contains("/shopping"));
    assert!(!answer.header("x-request-id").is_empty() && !answer.header("traceresponse").is_empty());
    client.send("GET /shop/a HTTP/1.1\r\nHost: a\r\n\r\n");
    let (request, opening, _) = replica.take();
    assert_eq!(opening.target, "/shop/a");
    replica.answer(request, 200, "");
    client.answer().status(200);
    let spans = head.spans(3);
    assert_eq!(outcome(spans.named("proxy_http_request GET")), ("UNSET", "", "refused"));
}

#[test]
fn what_has_no_place_waits_in_order_and_what_is_beyond_the_queue_is_refused() {
    let head = Head::start();
    head.table.set_waiting_limit(head.table.deployment(0).unwrap(), 1);
    let mut replica = head.add_replica(0, 1);
    let mut first = head.get("/first");
    let (request, _, _) = replica.take();
    let mut second = head.get("/second");
    wait_until("the second waits", || (head.waiting() == 1).then_some(()));
    let refused = head.get("/third").answer().status(503);
    assert!(refused.header("retry-after").parse::<u64>().is_ok_and(|seconds| seconds >= 1));
    replica.answer(request, 200, "");
    first.answer().status(200);
    let (request, opening, _) = replica.take();
    assert_eq!(opening.target, "/second");
    replica.answer(request, 200, "");
    second.answer().status(200);
    let spans = head.spans(6);
    let queue = spans.named("tracer.queue");
    let hop = spans.only("is the hop that has waited", |span| Some(span.span_id()) == queue.parent_id());
    assert!(hop.attribute("tracer.queued_ns").as_u64().is_some_and(|queued| queued > 0));
    let shed = spans.only("was shed", |span| outcome(span).2 == "shed" && span.kind() == "SpanKind.SERVER");
    assert_eq!(outcome(shed), ("ERROR", "shed", "shed"));
}

#[test]
fn what_a_dead_replica_had_not_begun_goes_to_another_and_what_it_had_begun_is_lost() {
    let head = Head::start();
    let mut dying = head.add_replica(0, 10);
    let mut begun = head.get("/begun");
    let (request, _, _) = dying.take();
    let mut unclaimed = head.send("POST /unclaimed HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    let (_, opening, _) = dying.take_unclaimed();
    assert_eq!((opening.target.as_str(), dying.body()), ("/unclaimed", b"body".to_vec()));
    let mut other = head.add_replica(1, 10);
    head.table.set_state(head.table.replica(0).unwrap(), tracer_ipc::replica_table::ReplicaState::Draining);
    drop(dying);
    let (again, opening, _) = other.take();
    assert_eq!((opening.target.as_str(), other.body()), ("/unclaimed", b"body".to_vec()));
    other.answer(again, 200, "again");
    assert_eq!(unclaimed.answer().status(200).text(), "again");
    head.order(&ProxyOrder::ReplicaGone { replica: 0 }, &[]);
    let lost = begun.answer().status(502);
    assert_eq!(lost.json()["type"], "urn:tracer:problem:replica-lost");
    let _ = request;
    let spans = head.spans(5);
    let server =
        spans.only("is the lost one", |span| outcome(span).2 == "replica_lost" && span.kind() == "SpanKind.SERVER");
    assert_eq!(outcome(server), ("ERROR", "replica_lost", "replica_lost"));
    let failed = spans.only("is the attempt that was not begun", |span| outcome(span).2 == "not_begun");
    let second = spans.only("is the second attempt", |span| *span.attribute("tracer.attempt") == 2);
    assert_eq!(plain(second.links()[0]["context"]["span_id"].as_str().unwrap()), plain(failed.span_id()));
    assert_eq!(*second.attribute("http.request.resend_count"), 1);
    assert_eq!((failed.parent_id(), failed.trace_id()), (second.parent_id(), second.trace_id()));
}

#[test]
fn a_client_that_goes_away_is_told_to_the_replica_and_is_no_error() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let client = head.get("/");
    let (request, _, _) = replica.take();
    drop(client);
    let came = replica.next();
    assert_eq!((came.request, came.content), (request, FrameContent::Reset(Reset::ClientGone)));
    wait_until("its place is given back", || (head.in_flight(0) == 0).then_some(()));
    let spans = head.spans(2);
    assert_eq!(outcome(spans.named("proxy_http_request hello GET /")), ("UNSET", "", "client_gone"));
}

#[test]
fn frames_that_none_may_send_close_their_lane_and_nothing_else() {
    let mut head = Head::start();
    for (number, bytes) in [
        [0, 0, 0, 0].to_vec(),
        [255, 255, 255, 127, 1].to_vec(),
        [6, 0, 0, 0, 99, 0, 1, 0, 0, 0].to_vec(),
        [6, 0, 0, 0, 7, 0, 1, 0, 0, 0].to_vec(),
        tracer::lane::data_header(1, false, 0).to_vec(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut replica = head.add_replica(number as u32, 10);
        let mut client = head.get("/");
        replica.take();
        replica.write(&bytes);
        let ProxyReport::LaneBroken { replica: broken, .. } = head.report() else { panic!("the lane is broken") };
        assert_eq!(broken, number as u32);
        head.set_state(broken, tracer_ipc::replica_table::ReplicaState::Gone);
        assert_eq!(replica.try_next(), None, "the lane is closed");
        head.order(&ProxyOrder::ReplicaGone { replica: broken }, &[]);
        client.answer().status(502);
    }
    let mut replica = head.add_replica(7, 10);
    let mut client = head.get("/");
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "");
    client.answer().status(200);
    assert!(head.is_running());
}

#[test]
fn what_is_no_request_is_refused_below_http_when_what_was_asked_before_is_answered() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    for (bytes, status) in [
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(65 << 10)), 431),
        (&format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(100)), 431),
    ] {
        let mut client = head.send(bytes);
        let answer = client.answer().status(status);
        assert_eq!(answer.header("content-type"), "application/problem+json");
        assert!(!answer.header("x-request-id").is_empty());
        assert_eq!(client.rest(), "", "it is closed");
    }
    // One header fewer is passed on, with what the proxy says.
    let mut client = head.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(99)));
    let (request, _, headers) = replica.take();
    assert_eq!(headers.iter().filter(|(name, _)| name == "x").count(), 99);
    replica.answer(request, 200, "many");
    assert_eq!(client.answer().status(200).text(), "many");
    let mut client = head.send("GET /good HTTP/1.1\r\nHost: a\r\n\r\nGET /bad HTTP/1.1\r\nHost: a\r\n x\r\n\r\n");
    let (request, opening, _) = replica.take();
    assert_eq!(opening.target, "/good");
    replica.answer(request, 200, "good");
    assert_eq!(client.answer().status(200).text(), "good");
    client.answer().status(400);
    assert_eq!(client.rest(), "");
    // In the middle of a body the request that it is of is refused.
    let mut client = head.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na");
    let (request, _, _) = replica.take();
    client.send("b");
    client.answer().status(400);
    let mut came = replica.next();
    while matches!(came.content, FrameContent::Data(_)) {
        came = replica.next();
    }
    assert_eq!((came.request, came.content), (request, FrameContent::Reset(Reset::ClientGone)));
}

#[test]
fn little_is_taken_of_what_a_refused_client_still_sends_until_its_connection_is_closed() {
    let head = Head::start();
    let mut client = head.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "y".repeat(65 << 10)));
    let stream = client.0.get_mut();
    stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    let (piece, mut sent) = (vec![b'y'; 64 << 10], 0);
    let ended = loop {
        match stream.write(&piece) {
            Ok(count) => sent += count,
            Err(error) => break error.kind(),
        }
    };
    assert!(matches!(ended, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{ended}");
    // It is closed after a second, in which several hundred MiB could be taken.
    assert!(sent < 128 << 20, "{} MiB were taken", sent >> 20);
}

#[test]
fn heads_that_come_byte_by_byte_are_answered_and_so_is_what_is_asked_after_them() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 100);
    let mut clients: Vec<_> = (0..40).map(|_| head.send("")).collect();
    let requests: Vec<_> = (0..40).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    for at in 0..requests.iter().map(String::len).max().unwrap_or(0) {
        for (client, request) in clients.iter_mut().zip(&requests) {
            client.send(request.get(at..=at).unwrap_or_default());
        }
    }
    let mut answer_all = |clients: &mut [Client]| {
        for _ in 0..clients.len() {
            let (request, opening, _) = replica.take();
            replica.answer(request, 200, &opening.target);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.answer().status(200).text(), format!("/{number}"));
        }
    };
    answer_all(&mut clients);
    clients.iter_mut().zip(&requests).for_each(|(client, request)| client.send(request));
    answer_all(&mut clients);
}

#[test]
fn a_handler_that_fails_is_a_500_and_one_that_fails_half_way_is_cut() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.get("/");
    let (request, opening, _) = replica.take();
    replica.reset(request, Reset::HandlerFailed);
    let answer = client.answer().status(500);
    assert!(answer.text().contains(&opening.request_id), "{}", answer.text());
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (request, _, _) = replica.take();
    replica.head(request, false, 200, &[("content-length", "10")]);
    replica.data(request, false, b"half");
    let (status, _) = crate::support::read_head(&mut client.0).unwrap();
    assert_eq!(status, 200);
    replica.reset(request, Reset::BodyFailed);
    assert_eq!(client.rest(), "half");
    // What came with the failure reaches the client all the same.
    for part in ["", "half"] {
        let mut client = head.get("/");
        let (request, _, _) = replica.take();
        replica.answer_in_part(request, part);
        let (status, _) = crate::support::read_head(&mut client.0).expect("a head");
        assert_eq!((status, client.rest().as_str()), (200, part));
    }
    let spans = head.spans(8);
    let outcomes: Vec<_> = spans.all_named("proxy_http_request hello GET /").into_iter().map(outcome).collect();
    let aborted = ("ERROR", "stream_aborted", "stream_aborted");
    assert_eq!(outcomes, [("ERROR", "500", ""), aborted, aborted, aborted]);
}

#[test]
fn a_proxy_that_drains_answers_what_it_has_and_ends() {
    let mut head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut idle = head.get("/");
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "");
    idle.answer().status(200);
    let mut busy = head.get("/busy");
    let (request, _, _) = replica.take();
    head.order(&ProxyOrder::Drain { timeout: std::time::Duration::from_secs(20), has_heir: true }, &[]);
    // That which has nothing to do.
    head.given_away(1);
    replica.answer(request, 200, "late");
    assert_eq!(busy.answer().status(200).header("connection"), "close");
    assert_eq!(busy.rest(), "");
    assert_eq!(head.report(), ProxyReport::Drained);
    assert!(head.wait());
    assert_eq!(head.spans(4).len(), 4);
}

#[test]
fn connections_that_have_nothing_to_do_when_a_proxy_drains_are_another_ones() {
    let (mut head, other) = (Head::start(), Head::start());
    let mut replica = head.add_replica(0, 10);
    let mut of_other = other.add_replica(0, 10);
    let mut silent = head.connect();
    let mut idle = head.get("/");
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "");
    idle.answer().status(200);
    head.order(&ProxyOrder::Drain { timeout: std::time::Duration::from_secs(20), has_heir: true }, &[]);
    let sockets = head.given_away(2);
    assert_eq!(head.report(), ProxyReport::Drained);
    assert!(head.wait());
    // What was sent meanwhile waits in the socket.
    idle.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    sockets.iter().for_each(|socket| other.order(&ProxyOrder::Connection, &[socket.as_fd()]));
    drop(sockets);
    silent.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    for _ in 0..2 {
        let (request, opening, _) = of_other.take();
        assert_eq!(opening.target, "/next");
        of_other.answer(request, 200, "next");
    }
    for client in [&mut idle, &mut silent] {
        assert_eq!(client.answer().status(200).text(), "next");
    }
}

#[test]
fn a_service_has_the_spans_that_it_asks_for_and_the_trace_goes_on_without_any() {
    use tracer_ipc::serving::Detail;
    let mut head = Head::start_with(1, |settings| settings.tracing.detail = Detail::Request);
    let mut replica = head.add_replica(0, 10);
    let mut client = head.get("/");
    let (request, opening, _) = replica.take();
    replica.answer(request, 200, "");
    client.answer().status(200);
    assert_eq!(opening.span_id, plain(head.spans(1).named("proxy_http_request hello GET /").span_id()));
    head.settings.tracing.is_enabled = false;
    head.settings.revision += 1;
    head.configure();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    client.send(format!("GET / HTTP/1.1\r\nHost: a\r\ntraceparent: 00-{trace}-b7ad6b7169203331-01\r\n\r\n"));
    let (request, opening, _) = replica.take();
    assert_eq!(
        (opening.trace_id.as_str(), opening.span_id.as_str(), opening.trace_flags),
        (trace, "b7ad6b7169203331", 1)
    );
    replica.answer(request, 200, "");
    let answer = client.answer().status(200);
    assert!(answer.header("traceresponse").is_empty() && !answer.header("x-request-id").is_empty());
    head.order(&ProxyOrder::Drain { timeout: std::time::Duration::ZERO, has_heir: true }, &[]);
    head.given_away(0);
    assert_eq!(head.report(), ProxyReport::Drained);
    assert!(head.wait());
    assert_eq!(head.spans(1).len(), 1);
}

#[test]
fn settings_that_cannot_be_used_are_refused_and_the_others_stay() {
    let mut head = Head::start();
    let route = head.settings.routes[0].clone();
    head.settings.routes.push(route);
    head.settings.revision = 2;
    head.order(&ProxyOrder::Configure, &[tracer_ipc::control::send_long(&head.settings).unwrap().as_fd()]);
    let ProxyReport::Configured { revision: 2, failure: Some(failure) } = head.report() else {
        panic!("it is refused")
    };
    assert!(failure.contains("`/` is there twice"), "{failure}");
    let mut replica = head.add_replica(0, 10);
    let mut client = head.get("/");
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "");
    client.answer().status(200);
}
