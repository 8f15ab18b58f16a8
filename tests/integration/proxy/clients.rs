//! Clients of both versions of HTTP: versions of HTTP, pipelining, `HEAD`, `Expect`, limits, time limits.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use tracer::lane::Reset;
use tracer_ipc::serving::Retry;

use super::played::{Client, FrameContent, Head};
use super::{outcome, plain};
use crate::support::wait_until;

#[test]
fn requests_that_come_at_once_are_answered_in_their_order() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut client = head.send(one("/1") + &one("/2") + &one("/3"));
    for number in 1..=3 {
        let (request, opening, _) = replica.take();
        assert_eq!(opening.target, format!("/{number}"));
        replica.answer(request, 200, &opening.target);
        assert_eq!(client.answer().status(200).text(), format!("/{number}"));
    }
}

#[test]
fn the_answer_to_head_is_a_head_alone() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
    let (request, opening, _) = replica.take();
    assert_eq!(opening.method, "HEAD");
    replica.head(request, true, 200, &[("content-length", "1000")]);
    let (status, headers) = crate::support::read_head(&mut client.0).unwrap();
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-length".into(), "1000".into())), "{headers:?}");
    let (request, _, _) = replica.take();
    replica.head(request, true, 204, &[]);
    let (status, headers) = crate::support::read_head(&mut client.0).unwrap();
    assert!(status == 204 && !headers.iter().any(|(name, _)| name == "content-length"), "{headers:?}");
    // A handler that says more than there can be says it to nobody.
    client.send("HEAD /more HTTP/1.1\r\nHost: a\r\n\r\nGET /last HTTP/1.1\r\nHost: a\r\n\r\n");
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "more");
    assert_eq!(crate::support::read_head(&mut client.0).unwrap().0, 200);
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "last");
    assert_eq!(client.answer().text(), "last");
}

#[test]
fn http_1_0_is_answered_and_closed() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.send("GET / HTTP/1.0\r\n\r\n");
    let (request, opening, _) = replica.take();
    assert_eq!((opening.version, opening.authority.as_str()), (10, ""));
    replica.answer(request, 200, "old");
    let rest = client.rest();
    assert!(rest.starts_with("HTTP/1.0 200") && rest.ends_with("\r\n\r\nold"), "{rest}");
}

#[test]
fn a_body_is_asked_for_when_there_is_a_place_and_not_before() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 1);
    let mut first = head.get("/first");
    let (holding, _, _) = replica.take();
    let mut second = head.send("POST /second HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    wait_until("the second waits", || (head.waiting() == 1).then_some(()));
    second.0.get_ref().set_nonblocking(true).unwrap();
    let mut byte = [0];
    assert_eq!(second.0.get_ref().peek(&mut byte).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    second.0.get_ref().set_nonblocking(false).unwrap();
    replica.answer(holding, 200, "");
    first.answer().status(200);
    let (request, _, headers) = replica.take();
    assert!(!headers.iter().any(|(name, _)| name == "expect"), "{headers:?}");
    let (status, _) = crate::support::read_head(&mut second.0).unwrap();
    assert_eq!(status, 100);
    second.send("body");
    assert_eq!(replica.body(), b"body");
    replica.answer(request, 200, "");
    second.answer().status(200);
    // One that is refused is not asked for.
    head.table.set_waiting_limit(head.table.deployment(0).unwrap(), 0);
    first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    replica.take();
    second.send("POST /third HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    second.answer().status(503);
}

#[test]
fn a_body_that_is_too_long_is_refused_by_its_length_or_when_it_has_come() {
    let head = Head::start_with(1, |settings| settings.http.max_body = Some(10));
    let mut replica = head.add_replica(0, 10);
    head.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n").answer().status(413);
    let mut client = head.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n");
    let (request, _, _) = replica.take();
    assert_eq!(replica.next().content, FrameContent::Data(b"abcde".to_vec()));
    client.send("6\r\nabcdef\r\n");
    client.answer().status(413);
    let came = replica.next();
    assert_eq!((came.request, came.content), (request, FrameContent::Reset(Reset::ClientGone)));
}

#[test]
fn a_request_whose_time_is_up_ends_at_the_client_and_at_the_replica() {
    let head = Head::start_with(1, |settings| settings.http.request_timeout = Some(Duration::from_millis(300)));
    let mut replica = head.add_replica(0, 10);
    let mut client = head.get("/");
    let (request, opening, _) = replica.take();
    assert!(opening.has_deadline);
    client.answer().status(504);
    assert_eq!(replica.next().request, request);
    wait_until("its place is given back", || (head.in_flight(0) == 0).then_some(()));
    // One that has begun is cut.
    let mut client = head.get("/begun");
    let (request, _, _) = replica.take();
    replica.head(request, false, 200, &[]);
    replica.data(request, false, b"x");
    let rest = client.rest();
    assert!(rest.starts_with("HTTP/1.1 200") && rest.ends_with("1\r\nx\r\n"), "{rest}");
    assert_eq!(replica.next().content, FrameContent::Reset(Reset::Timeout));
    let spans = head.spans(4);
    for server in spans.all_named("proxy_http_request hello GET /") {
        assert_eq!(outcome(server), ("ERROR", "timeout", "timeout"));
    }
}

#[test]
fn without_a_replica_a_request_waits_as_long_as_it_may() {
    let head = Head::start_with(1, |settings| settings.routes[0].queue_timeout = Some(Duration::from_millis(50)));
    let answer = head.get("/").answer().status(503);
    assert!(!answer.header("retry-after").is_empty());
    let spans = head.spans(2);
    assert_eq!(outcome(spans.named("proxy_http_request hello GET /")), ("ERROR", "unavailable", "unavailable"));
    assert_eq!(head.waiting(), 0);
    let mut client = head.get("/");
    let mut replica = head.add_replica(0, 10);
    let (request, _, _) = replica.take();
    replica.answer(request, 200, "");
    client.answer().status(200);
}

#[test]
fn what_a_dead_replica_had_begun_begins_again_if_its_deployment_says_so() {
    let head = Head::start_with(1, |settings| settings.routes[0].retry = Retry::Idempotent);
    let mut dying = head.add_replica(0, 10);
    let mut safe = head.get("/safe");
    dying.take();
    let mut unsafe_one = head.send("POST /unsafe HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    dying.take();
    let mut other = head.add_replica(1, 10);
    head.set_state(0, tracer_ipc::replica_table::ReplicaState::Gone);
    drop(dying);
    head.order(&tracer_ipc::serving::ProxyOrder::ReplicaGone { replica: 0 }, &[]);
    let (request, opening, _) = other.take();
    assert_eq!(opening.target, "/safe");
    other.answer(request, 200, "");
    safe.answer().status(200);
    unsafe_one.answer().status(502);
}

#[test]
fn a_place_that_one_thread_gives_back_goes_to_one_that_waits_at_another() {
    let head = Head::start_with(2, |_| {});
    let mut lanes = head.add_replicas(0, 1);
    // Connections come to the threads as the kernel likes; so many come to both.
    let mut clients: Vec<Client> = (0..24).map(|_| head.get("/")).collect();
    for lane in &lanes {
        lane.socket.set_nonblocking(true).unwrap();
    }
    let mut served = [0; 2];
    while served.iter().sum::<usize>() < clients.len() {
        let (at, request) = wait_until("a request comes", || {
            lanes.iter_mut().enumerate().find_map(|(at, lane)| Some((at, lane.try_take()?)))
        });
        assert_eq!(head.in_flight(0), 1);
        served[at] += 1;
        lanes[at].answer(request, 200, "");
    }
    clients.iter_mut().for_each(|client| drop(client.answer().status(200)));
    assert!(served.iter().all(|count| *count > 0), "{served:?}");
    wait_until("all places are given back", || (head.in_flight(0) + head.waiting() == 0).then_some(()));
}

#[test]
fn other_hosts_are_refused_and_trusted_peers_speak_for_clients() {
    let head = Head::start_with(1, |settings| {
        settings.http.hosts = vec!["shop.example".into()];
        settings.http.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
    });
    let mut replica = head.add_replica(0, 10);
    head.get("/").answer().status(421);
    let mut client = head.send("GET / HTTP/1.1\r\nHost: shop.example:80\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n");
    let (request, _, headers) = replica.take();
    assert!(headers.contains(&("x-forwarded-for".into(), "1.2.3.4, 127.0.0.1".into())), "{headers:?}");
    replica.answer(request, 200, "");
    client.answer().status(200);
    let spans = head.spans(3);
    spans.only("is of the client", |span| span.attribute("client.address") == "1.2.3.4");
}

/// Returns a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Headers without compression.
fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend(text.bytes());
        }
    }
    block
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Returns the next frame: kind, flags, stream, payload.
fn next_frame(client: &mut Client) -> (u8, u8, u32, Vec<u8>) {
    let mut header = [0; 9];
    client.0.read_exact(&mut header).unwrap();
    let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
    let mut payload = vec![0; length as usize];
    client.0.read_exact(&mut payload).unwrap();
    (header[3], header[4], u32::from_be_bytes(header[5..].try_into().unwrap()), payload)
}

/// Returns the next frame of this kind.
fn next_of(client: &mut Client, kind: u8) -> (u8, u32, Vec<u8>) {
    loop {
        let (found, flags, stream, payload) = next_frame(client);
        if found == kind {
            return (flags, stream, payload);
        }
    }
}

fn asked(path: &str, method: &str) -> Vec<u8> {
    header_block(&[(":method", method), (":scheme", "http"), (":path", path), (":authority", "shop")])
}

/// A thread refuses some at once, and then one each two milliseconds.
#[test]
fn refused_clients_that_come_back_at_once_wait_for_their_turns() {
    const CLIENTS: u32 = 500;
    const LEAST: Duration = Duration::from_millis(2 * (CLIENTS as u64 - 64 - 1));
    let head = Head::start();
    let start = Instant::now();
    for _ in 0..CLIENTS {
        let mut client = head.send("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
        client.answer().status(400);
        assert_eq!(client.rest(), "");
    }
    let over_1 = start.elapsed();
    // DATA of no stream.
    let wrong = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(DATA, 0, 0, b"a")].concat();
    for _ in 0..CLIENTS {
        let mut client = head.send(&wrong);
        next_of(&mut client, GOAWAY);
        client.0.read_to_end(&mut Vec::new()).unwrap();
    }
    let over_2 = start.elapsed() - over_1;
    assert!(over_1 >= LEAST && over_2 >= LEAST, "{over_1:?} over HTTP/1, {over_2:?} over HTTP/2, of {LEAST:?}");
}

#[test]
fn http_2_has_many_requests_on_one_connection_and_resets_reach_the_replica() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.connect();
    client.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
    client.send(frame(HEADERS, 5, 1, &asked("/one", "GET")));
    client.send([frame(HEADERS, 4, 3, &asked("/two", "POST")), frame(DATA, 1, 3, b"body")].concat());
    let (one, opening, _) = replica.take();
    assert_eq!((opening.target.as_str(), opening.version, opening.authority.as_str()), ("/one", 20, "shop"));
    let (two, opening, _) = replica.take();
    assert_eq!((opening.target.as_str(), opening.method.as_str(), replica.body()), ("/two", "POST", b"body".to_vec()));
    // The second is answered first.
    replica.answer(two, 200, "2");
    let (_, stream, headers) = next_of(&mut client, HEADERS);
    assert_eq!((stream, headers[0]), (3, 0x88), "it is `:status 200`");
    assert_eq!(next_of(&mut client, DATA), (1, 3, b"2".to_vec()));
    client.send(frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
    let came = replica.next();
    assert_eq!((came.request, came.content), (one, FrameContent::Reset(Reset::ClientGone)));
    // An answer that breaks off resets its stream and no other.
    client.send(frame(HEADERS, 5, 5, &asked("/three", "GET")));
    let (three, _, _) = replica.take();
    replica.head(three, false, 200, &[]);
    next_of(&mut client, HEADERS);
    replica.reset(three, Reset::BodyFailed);
    assert_eq!(next_of(&mut client, RST_STREAM).1, 5);
    client.send(frame(HEADERS, 5, 7, &asked("/four", "GET")));
    let (four, _, _) = replica.take();
    replica.answer(four, 200, "4");
    assert_eq!(next_of(&mut client, DATA), (1, 7, b"4".to_vec()));
    let spans = head.spans(8);
    let server = spans.only("is that of HTTP/2", |span| span.attribute("url.path") == "/two");
    assert_eq!(*server.attribute("network.protocol.version"), "2");
    assert!(plain(server.trace_id()).len() == 32);
}

#[test]
fn a_proxy_that_drains_tells_clients_of_http_2_to_go() {
    let mut head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.connect();
    client.send([PREFACE, &frame(SETTINGS, 0, 0, &[]), &frame(HEADERS, 5, 1, &asked("/", "GET"))].concat());
    let (request, _, _) = replica.take();
    head.order(&tracer_ipc::serving::ProxyOrder::Drain { timeout: Duration::from_secs(20), has_heir: true }, &[]);
    next_of(&mut client, GOAWAY);
    replica.answer(request, 200, "last");
    assert_eq!(next_of(&mut client, DATA).2, b"last");
    let _ = client.0.get_mut().shutdown(std::net::Shutdown::Write);
    head.given_away(0);
    assert_eq!(head.report(), tracer_ipc::serving::ProxyReport::Drained);
    assert!(head.wait());
}

fn call(stream: u32, path: &str, timeout: &str) -> Vec<u8> {
    let mut block = asked(path, "POST");
    let headers = [("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", timeout)];
    block.extend(header_block(&headers));
    [frame(HEADERS, 4, stream, &block), frame(DATA, 1, stream, &[0; 5])].concat()
}

#[test]
fn grpc_passes_with_its_trailers_and_its_status_is_on_the_span() {
    let head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.connect();
    client.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
    for (number, status) in [(0, "0"), (1, "14"), (2, "5")] {
        let stream = 2 * number + 1;
        client.send(call(stream, "/pkg.Service/Do", "10S"));
        let (request, opening, headers) = replica.take();
        assert!(opening.has_deadline && headers.contains(&("te".into(), "trailers".into())), "{headers:?}");
        assert_eq!(replica.body(), [0; 5]);
        replica.head(request, false, 200, &[("content-type", "application/grpc")]);
        replica.data(request, false, &[0; 5]);
        replica.trailers(request, &[("grpc-status", status)]);
        assert_eq!(next_of(&mut client, HEADERS).1, stream);
        assert_eq!(next_of(&mut client, DATA), (0, stream, vec![0; 5]));
        let (flags, _, trailers) = next_of(&mut client, HEADERS);
        assert!(flags & 1 != 0 && !trailers.is_empty());
    }
    // What the proxy answers itself is a status of gRPC too.
    client.send(call(7, "/pkg.Service/Do", "100m"));
    replica.take();
    let (flags, stream, _) = next_of(&mut client, HEADERS);
    assert_eq!((flags & 1, stream), (1, 7));
    let spans = head.spans(8);
    let servers = spans.all_named("proxy_grpc_request hello /pkg.Service/Do");
    let text = |span: &crate::support::Span, key: &str| span.attribute(key).as_str().unwrap_or_default().to_owned();
    let found: Vec<_> = servers
        .iter()
        .map(|span| (text(span, "rpc.response.status_code"), span.status_code().to_owned(), text(span, "error.type")))
        .collect();
    let expected = [
        ("OK", "UNSET", ""),
        ("UNAVAILABLE", "ERROR", "UNAVAILABLE"),
        ("NOT_FOUND", "UNSET", ""),
        ("DEADLINE_EXCEEDED", "ERROR", "timeout"),
    ];
    assert_eq!(found, expected.map(|(code, status, kind)| (code.into(), status.into(), kind.into())));
    assert_eq!(
        (text(servers[0], "rpc.method"), text(servers[0], "request_type")),
        ("pkg.Service/Do".into(), "grpc".into())
    );
}

#[test]
fn hostile_http_2_ends_its_connection_alone() {
    let mut head = Head::start();
    let mut replica = head.add_replica(0, 10);
    let resets = (0..200).flat_map(|number| {
        let stream = 2 * number + 1;
        [frame(HEADERS, 5, stream, &asked("/", "GET")), frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes())].concat()
    });
    let hostile = [
        frame(DATA, 0, 1, b"x"),
        frame(HEADERS, 5, 1, &[0xff; 20]),
        frame(SETTINGS, 0, 0, &[1; 5]),
        frame(99, 0, 0, &[0; 1 << 15]),
        resets.collect(),
    ];
    for bytes in hostile {
        let mut client = head.connect();
        let _ = client.0.get_mut().write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &bytes].concat());
        next_of(&mut client, GOAWAY);
    }
    let target = "/after";
    let mut client = head.get(target);
    loop {
        let came = replica.next();
        if let FrameContent::Open { opening, .. } = came.content
            && opening.target == target
        {
            replica.claims.claim(came.request.into());
            replica.answer(came.request, 200, "");
            break;
        }
    }
    client.answer().status(200);
    assert!(head.is_running());
}

#[test]
fn no_line_of_the_log_and_no_span_is_forged_or_broken_by_what_a_client_sends() {
    let head = Head::start_with(1, |settings| settings.http.request_timeout = Some(Duration::from_millis(20)));
    let forged = "\" 200 5 0.1ms request=x trace=x replica=x service=shop";
    let mut requests = 0;
    for target in ["/\"", "/a\"b\"c", "/\\\"", "/{\"a\":1}", "/%22%0a%00", "/'$(x)|"] {
        for header in [
            format!("User-Agent: {forged}"),
            format!("User-Agent: \u{85}\u{2028}\t{forged}\\"),
            "X-Request-Id: a\"b\\".into(),
            format!("X-Request-Id: {forged}"),
            "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nTracestate: a=\"\\".into(),
            "Baggage: a=%22%0a,b=\"".into(),
        ] {
            let mut client =
                head.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{header}\r\nConnection: close\r\n\r\n"));
            assert!(client.rest().starts_with("HTTP/1.1 "), "{target}, {header}");
            requests += 1;
        }
    }
    // Over HTTP/2 a path is text.
    let mut client = head.connect();
    client.send([PREFACE, &frame(SETTINGS, 0, 0, &[])].concat());
    for (number, path) in ["/\"", "/\u{85}x", "/\u{2028}\u{202e}", "/\"\u{e4}"].into_iter().enumerate() {
        client.send(frame(HEADERS, 5, 2 * number as u32 + 1, &asked(path, "GET")));
    }
    requests += 4;
    let log = wait_until("all requests are in the log", || {
        let log = head.access_log();
        (log.lines().count() >= requests - 4).then_some(log)
    });
    for line in log.lines() {
        assert!(line.is_ascii() && !line.bytes().any(|byte| byte.is_ascii_control()), "{line:?}");
        assert_eq!((line.matches('"').count(), line.split(' ').count()), (2, 11), "{line}");
    }
    let spans = head.spans(requests - 4);
    assert!(spans.torn_lines.is_empty(), "{:?}", spans.torn_lines);
}

#[test]
fn a_proxy_that_looks_for_the_next_request_finds_it_and_sleeps_when_there_is_none() {
    let head = Head::start_looking();
    let mut replica = head.add_replica(0, 10);
    let mut client = head.connect();
    for number in 0..200 {
        client.send(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let (request, opening, _) = replica.take();
        replica.answer(request, 200, &opening.target);
        assert_eq!(client.answer().status(200).text(), format!("/{number}"));
    }
    let is_asleep = || (0..20).all(|_| head.sleeps());
    wait_until("it sleeps", || is_asleep().then_some(()));
}
