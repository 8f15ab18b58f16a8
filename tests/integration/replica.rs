//! A replica by itself: the test is its head, over a control socket, and its callers, over lanes.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal};
use serde_json::json;
use tracer::lane::{self, Body, Frame, LANE_FRAME_LIMIT, Opening, Reset};
use tracer::protocol::frame::FrameBuffer;
use tracer::protocol::{HookChoice, TracingSettings};
use tracer::spool::{ClaimRing, SLOT_COUNT, Story};
use tracer::task::WorkerId;
use tracer_ipc::claims::{ClaimState, SharedClaims};
use tracer_ipc::control;
use tracer_ipc::serving::{Deployment, ReplicaBegin, ReplicaOrder, ReplicaReport};

use crate::support::{HOOK, Random, Span, Spans, build_modules, wait_until};

/// The time that a report or a frame may take.
const LIMIT: Duration = Duration::from_secs(30);
const TRACE: [u8; 16] = [0xab; 16];
const PARENT: [u8; 8] = [0xcd; 8];

/// A replica that the test has started.
struct Replica {
    child: Child,
    control: OwnedFd,
    folder: tempfile::TempDir,
    _claims: ClaimRing,
}

impl Replica {
    /// Starts a replica of `shop:<name>`.
    fn start(name: &str) -> Replica {
        Replica::start_with(&Deployment::new(&format!("shop:{name}")))
    }

    fn start_with(deployment: &Deployment) -> Replica {
        let folder = tempfile::tempdir().unwrap();
        let spool = folder.path().join("replica.spool");
        let claims = ClaimRing::create(&spool, SLOT_COUNT).unwrap();
        let hook = HookChoice {
            import_string: HOOK.into(),
            contract: tracer::hook::HookContract::Startup,
            library: None,
            timeout_ms: 30_000,
            is_required: false,
            further: Vec::new(),
        };
        let tracing = TracingSettings { hook: Some(hook), ..TracingSettings::untraced(folder.path().join("spans")) };
        let begin = ReplicaBegin {
            service: "test".into(),
            application: "shop".into(),
            route_prefix: "/shop".into(),
            deployment: deployment.clone(),
            name: format!("{}#1", deployment.name),
            worker: WorkerId(1),
            spool,
            node_id: "node".into(),
            module_folders: vec![build_modules().into()],
            tracing: tracing.clone(),
        };
        let (control, theirs) = control::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tracer"));
        command.arg("replica").arg(folder.path()).arg(std::process::id().to_string());
        command.envs(tracing.variables()).stdin(theirs);
        // A parent-death signal comes when the thread ends that has started the process, and a test ends after its replica.
        let child = command.spawn().unwrap();
        rustix::net::sockopt::set_socket_timeout(&control, rustix::net::sockopt::Timeout::Recv, Some(LIMIT)).unwrap();
        let begin = control::send_long(&begin).unwrap();
        control::send(&control, &ReplicaOrder::Begin, &[begin.as_fd()]).unwrap();
        Replica { child, control, folder, _claims: claims }
    }

    fn report(&self) -> ReplicaReport {
        control::receive(&self.control).unwrap().expect("it reports before it ends").0
    }

    fn ready(self) -> Replica {
        let report = self.report();
        let ReplicaReport::Ready { hook_failure: None, module_version: Some(_), .. } = report else {
            panic!("{report:?}")
        };
        self
    }

    fn order(&self, order: &ReplicaOrder) {
        control::send(&self.control, order, &[]).unwrap();
    }

    fn lane(&self) -> Caller {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let (claims, file) = SharedClaims::create().unwrap();
        control::send(&self.control, &ReplicaOrder::Lane { caller: 1 }, &[theirs.as_fd(), file.as_fd()]).unwrap();
        let stream = UnixStream::from(ours);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Caller { stream, claims, buffer: FrameBuffer::new() }
    }

    fn drain(self) -> Ended {
        self.order(&ReplicaOrder::Drain { timeout: LIMIT });
        self.wait_for_end()
    }

    fn wait_for_end(mut self) -> Ended {
        assert_eq!(self.report(), ReplicaReport::Drained);
        let status = wait_until("the replica has ended", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}");
        Ended { spans: Spans::read(&self.spans_dir()), spool: self.folder.path().join("replica.spool").exists() }
    }

    fn spans_dir(&self) -> PathBuf {
        self.folder.path().join("spans")
    }

    fn kill(&mut self) {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Leavings of a replica.
struct Ended {
    spans: Spans,
    /// True if the spool is there.
    spool: bool,
}

impl Ended {
    /// Returns the one span of a request.
    fn request(&self) -> &Span {
        self.spans.only("is of a request", |span| span.name().starts_with("replica_handle_request"))
    }
}

/// The caller's end of a lane.
struct Caller {
    stream: UnixStream,
    claims: SharedClaims,
    buffer: FrameBuffer,
}

/// The answer to a request.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    reset: Option<Reset>,
}

impl Answer {
    fn text(&self) -> (u16, &str) {
        assert_eq!(self.reset, None);
        (self.status, std::str::from_utf8(&self.body).unwrap())
    }
}

/// A frame, with what the tests look at.
#[derive(Debug)]
enum Came {
    Head(u16, Vec<(String, String)>),
    Data(Vec<u8>),
    Credit(u32),
    Reset(Reset),
    Drain,
}

fn opening(method: &'static str, target: &'static str) -> Opening<'static> {
    Opening {
        trace_id: TRACE,
        span_id: PARENT,
        trace_flags: 1,
        deadline_unix_nano: 0,
        is_secure: false,
        version: 11,
        method,
        authority: "shop.example:8000",
        target,
        request_id: "request-7",
        client: "192.0.2.1:4711",
    }
}

impl Caller {
    fn open(&mut self, request: u32, is_last: bool, method: &'static str, target: &'static str) {
        self.claims.grant(request.into());
        let mut out = Vec::new();
        let headers = [("tracestate", &b"a=b"[..]), ("traceparent", b"old"), ("content-type", b"application/json")];
        lane::put_open(&mut out, request, is_last, &opening(method, target), headers);
        self.stream.write_all(&out).unwrap();
    }

    fn send(&mut self, request: u32, piece: &[u8], is_last: bool) {
        self.stream.write_all(&lane::data_header(request, is_last, piece.len())).unwrap();
        self.stream.write_all(piece).unwrap();
    }

    fn put(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        put(&mut out);
        self.stream.write_all(&out).unwrap();
    }

    /// Returns the next frame: its request, whether it is the last, and what it says. None when the lane is closed.
    fn frame(&mut self) -> Option<(u32, bool, Came)> {
        loop {
            if let Some((kind, body)) = self.buffer.next_frame(LANE_FRAME_LIMIT).unwrap() {
                let frame = Frame::decode(kind, body).unwrap();
                let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
                let came = match frame.body {
                    Body::Head(status, headers) => {
                        let headers = headers.iter().map(|(name, value)| (name.to_owned(), text(value)));
                        Came::Head(status, headers.collect())
                    }
                    Body::Data(piece) => Came::Data(piece.to_vec()),
                    Body::Credit(bytes) => Came::Credit(bytes),
                    Body::Reset(reset) => Came::Reset(reset),
                    Body::Drain => Came::Drain,
                    other => panic!("{other:?}"),
                };
                return Some((frame.request, frame.is_last, came));
            }
            match self.buffer.read_from(&mut &self.stream) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the lane cannot be read: {error}"),
            }
        }
    }

    /// The answer to the one request that is open, as it comes, with credit for all of it.
    fn answer(&mut self, request: u32) -> Answer {
        let mut answer = Answer::default();
        loop {
            let (of, is_last, came) = self.frame().expect("the lane is open");
            assert!(of == request || matches!(came, Came::Drain), "{of}: {came:?}");
            match came {
                Came::Head(status, headers) => (answer.status, answer.headers) = (status, headers),
                Came::Data(piece) => {
                    answer.body.extend_from_slice(&piece);
                    if !is_last && !piece.is_empty() {
                        self.put(|out| lane::put_credit(out, request, piece.len() as u32));
                    }
                }
                Came::Reset(reset) => answer.reset = Some(reset),
                Came::Credit(_) | Came::Drain => {}
            }
            if is_last {
                return answer;
            }
        }
    }

    fn get(&mut self, request: u32, target: &'static str) -> Answer {
        self.open(request, true, "GET", target);
        self.answer(request)
    }
}

#[test]
fn a_request_is_claimed_answered_and_traced() {
    let replica = Replica::start("hello").ready();
    let mut caller = replica.lane();
    for request in 1..=3 {
        assert_eq!(caller.get(request, "/shop/hello?secret=1").text(), (200, "hello"));
        assert_eq!(caller.claims.state(request.into()), Some(ClaimState::Claimed));
    }
    let ended = replica.drain();
    let spans = ended.spans.all_named("replica_handle_request hello handle");
    assert_eq!((spans.len(), ended.spool), (3, false), "{}", ended.spans.describe());
    let span = spans[0];
    assert_eq!((span.kind(), span.status_code()), ("SpanKind.SERVER", "UNSET"));
    assert_eq!(span.trace_id(), format!("0x{}", "ab".repeat(16)));
    assert_eq!(span.parent_id(), Some(&*format!("0x{}", "cd".repeat(8))));
    for (key, value) in [
        ("request_id", json!("request-7")),
        ("deployment", json!("hello")),
        ("app", json!("shop")),
        ("route", json!("/shop")),
        ("call_method", json!("handle")),
        ("replica_id", json!("hello#1")),
        ("http.request.method", json!("GET")),
        ("http.response.status_code", json!(200)),
        ("url.path", json!("/shop/hello")),
        ("url.query", json!("secret=1")),
        ("url.scheme", json!("http")),
        ("server.address", json!("shop.example")),
        ("server.port", json!(8000)),
        ("client.address", json!("192.0.2.1")),
        ("network.protocol.version", json!("1.1")),
        ("tracer.response_body_bytes", json!(5)),
    ] {
        assert_eq!(*span.attribute(key), value, "{key}");
    }
    assert!(span.attribute("tracer.time_to_first_byte_ns").as_u64().is_some());
}

#[test]
fn a_body_streams_through_with_windows_in_both_directions() {
    let replica = Replica::start("echo").ready();
    let mut caller = replica.lane();
    let body: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    caller.open(1, false, "POST", "/shop/echo");
    let mut sender = Caller {
        stream: caller.stream.try_clone().unwrap(),
        claims: SharedClaims::create().unwrap().0,
        buffer: FrameBuffer::new(),
    };
    // What there is credit for is sent, and what has come back is given credit for.
    let (mut credit, mut sent, mut received) = (lane::WINDOW as usize, 0, Vec::new());
    let mut status = 0;
    loop {
        while sent < body.len() && credit > 0 {
            let length = credit.min(lane::DATA_LIMIT).min(body.len() - sent);
            sender.send(1, &body[sent..sent + length], sent + length == body.len());
            (sent, credit) = (sent + length, credit - length);
        }
        let (_, is_last, came) = caller.frame().expect("the lane is open");
        match came {
            Came::Head(found, _) => status = found,
            Came::Data(piece) => {
                received.extend_from_slice(&piece);
                sender.put(|out| lane::put_credit(out, 1, piece.len() as u32));
            }
            Came::Credit(bytes) => credit += bytes as usize,
            other => panic!("{other:?}"),
        }
        if is_last {
            break;
        }
    }
    assert_eq!((status, sent, received == body), (200, body.len(), true));
    let ended = replica.drain();
    let span = ended.request();
    assert_eq!(*span.attribute("tracer.request_body_bytes"), json!(body.len()));
    assert_eq!(*span.attribute("tracer.response_body_bytes"), json!(body.len()));
    assert_eq!(*span.attribute("is_streaming"), json!(true));
}

#[test]
fn a_response_that_nobody_reads_stops_at_its_window() {
    let replica = Replica::start("echo").ready();
    let mut caller = replica.lane();
    caller.open(1, false, "POST", "/shop/echo");
    let piece = vec![7; lane::DATA_LIMIT];
    for _ in 0..4 {
        caller.send(1, &piece, false);
    }
    let mut received = 0;
    while received < lane::WINDOW as usize {
        if let (_, false, Came::Data(piece)) = caller.frame().unwrap() {
            received += piece.len();
        }
    }
    // The window of the response is used up; that of the request is given back when the handler has read it, and no later.
    caller.send(1, &piece, true);
    caller.open(2, true, "GET", "/shop/echo");
    let (mut of_first, mut has_second) = (0, false);
    while !has_second {
        match caller.frame().unwrap() {
            (1, false, Came::Data(_)) => of_first += 1,
            (2, true, _) => has_second = true,
            _ => {}
        }
    }
    assert_eq!(of_first, 0, "no credit was given");
    caller.put(|out| lane::put_credit(out, 1, lane::WINDOW));
    let answer = caller.answer(1);
    assert_eq!((answer.body.len(), answer.reset), (lane::DATA_LIMIT, None));
    replica.drain();
}

#[test]
fn events_are_sent_while_the_response_goes_on() {
    let replica = Replica::start("count").ready();
    let mut caller = replica.lane();
    caller.open(1, true, "GET", "/shop/count?events=1000000");
    let (_, _, head) = caller.frame().unwrap();
    assert!(matches!(head, Came::Head(200, _)), "{head:?}");
    let (_, is_last, first) = caller.frame().unwrap();
    assert!(matches!(&first, Came::Data(piece) if piece == b"data: 1\n\n") && !is_last, "{first:?}");
    caller.put(|out| lane::put_reset(out, 1, Reset::ClientGone));
    let ended = replica.drain();
    let span = ended.request();
    assert_eq!((span.status_code(), span.attribute("tracer.outcome")), ("UNSET", &json!("client_gone")));
}

#[test]
fn what_was_taken_back_is_not_begun() {
    let replica = Replica::start("hello").ready();
    let mut caller = replica.lane();
    caller.claims.grant(1);
    assert!(caller.claims.revoke(1));
    caller.put(|out| lane::put_open(out, 1, false, &opening("POST", "/"), []));
    caller.send(1, b"what is under way", true);
    assert_eq!(caller.get(2, "/").text(), (200, "hello"));
    assert_eq!(caller.claims.state(1), Some(ClaimState::Revoked));
    assert_eq!(replica.drain().spans.len(), 1);
}

#[test]
fn handlers_that_fail_are_told_from_bodies_that_break_off() {
    for (name, reset, error_type, message) in [
        ("panics", Reset::HandlerFailed, "panic", "out of stock"),
        ("fails", Reset::HandlerFailed, "ParseIntError", "invalid digit"),
        ("breaks_off", Reset::BodyFailed, "", "the second half is missing"),
    ] {
        let replica = Replica::start(name).ready();
        let mut caller = replica.lane();
        let answer = caller.get(1, "/");
        assert_eq!(answer.reset, Some(reset), "{name}");
        let ended = replica.drain();
        let span = ended.request();
        assert_eq!(span.status_code(), "ERROR", "{name}");
        let said = span.attribute("error.type").as_str().unwrap();
        assert!(said.contains(error_type), "{name}: {said}");
        let exception = span.events("exception");
        let text = exception[0]["attributes"]["exception.message"].as_str().unwrap();
        assert!(text.contains(message), "{name}: {text}");
        let status = if reset == Reset::BodyFailed { 200 } else { 500 };
        assert_eq!(*span.attribute("http.response.status_code"), json!(status), "{name}");
    }
}

#[test]
fn a_client_that_goes_cancels_its_request() {
    for reset in [Some(Reset::ClientGone), Some(Reset::Timeout), None] {
        let replica = Replica::start("waits").ready();
        let mut caller = replica.lane();
        caller.open(1, true, "GET", "/");
        wait_until("the request has begun", || (caller.claims.state(1) == Some(ClaimState::Claimed)).then_some(()));
        match reset {
            Some(reset) => caller.put(|out| lane::put_reset(out, 1, reset)),
            None => drop(caller),
        }
        let ended = replica.drain();
        let span = ended.request();
        let (status, outcome) =
            if reset == Some(Reset::Timeout) { ("ERROR", "timeout") } else { ("UNSET", "client_gone") };
        assert_eq!((span.status_code(), span.attribute("tracer.outcome")), (status, &json!(outcome)));
        // The handler's own span has ended too: its future was dropped.
        let own = ended.spans.named("wait");
        assert_eq!(own.parent_id(), Some(span.span_id()));
    }
}

#[test]
fn a_drain_refuses_what_comes_and_gives_up_what_takes_too_long() {
    let replica = Replica::start("waits").ready();
    let mut caller = replica.lane();
    caller.open(1, true, "GET", "/");
    wait_until("the request has begun", || (caller.claims.state(1) == Some(ClaimState::Claimed)).then_some(()));
    replica.order(&ReplicaOrder::Drain { timeout: Duration::from_millis(200) });
    assert!(matches!(caller.frame(), Some((0, _, Came::Drain))));
    caller.open(2, true, "GET", "/");
    assert!(matches!(caller.frame(), Some((2, true, Came::Reset(Reset::Refused)))));
    assert_eq!(caller.claims.state(2), Some(ClaimState::Granted), "another replica may have it");
    assert!(matches!(caller.frame(), Some((1, true, Came::Reset(Reset::Timeout)))));
    let ended = replica.wait_for_end();
    assert_eq!(ended.request().status_code(), "ERROR");
}

#[test]
fn a_drain_waits_for_what_has_begun() {
    let replica = Replica::start("echo").ready();
    let mut caller = replica.lane();
    caller.open(1, false, "POST", "/");
    wait_until("the request has begun", || (caller.claims.state(1) == Some(ClaimState::Claimed)).then_some(()));
    replica.order(&ReplicaOrder::Drain { timeout: LIMIT });
    while !matches!(caller.frame(), Some((0, _, Came::Drain))) {}
    caller.send(1, b"the rest", true);
    let mut body = Vec::new();
    while let Some((_, is_last, came)) = caller.frame() {
        if let Came::Data(piece) = came {
            body.extend(piece);
        }
        if is_last {
            break;
        }
    }
    assert_eq!(body, b"the rest");
    replica.wait_for_end();
}

#[test]
fn a_hostile_frame_closes_its_lane_and_no_other() {
    let replica = Replica::start("echo").ready();
    let mut good = replica.lane();
    good.open(1, false, "POST", "/");
    let too_much: &dyn Fn(&mut Vec<u8>) = &|out| {
        lane::put_open(out, 1, false, &opening("POST", "/"), []);
        // Twice the window: what the handler has read, and what nobody has.
        for _ in 0..12 {
            out.extend_from_slice(&lane::data_header(1, false, lane::DATA_LIMIT));
            out.resize(out.len() + lane::DATA_LIMIT, 0);
        }
    };
    type Spoil<'a> = &'a dyn Fn(&mut Vec<u8>);
    let cases: [Spoil<'_>; 6] = [
        &|out| out.extend_from_slice(&[1, 0, 0, 0, 99]),
        &|out| out.extend_from_slice(&[0xff; 64]),
        &|out| lane::put_head(out, 1, true, 200, []),
        &|out| {
            lane::put_open(out, 1, false, &opening("POST", "/"), []);
            lane::put_open(out, 1, false, &opening("POST", "/"), []);
        },
        &|out| {
            lane::put_drain(out);
            lane::put_open(out, 1, false, &opening("POST", "/"), []);
        },
        too_much,
    ];
    for (number, hostile) in cases.into_iter().enumerate() {
        let mut bad = replica.lane();
        bad.claims.grant(1);
        let mut out = Vec::new();
        hostile(&mut out);
        // It may be closed before all is written.
        let _ = bad.stream.write_all(&out);
        let mut rest = Vec::new();
        let _ = bad.stream.read_to_end(&mut rest);
        wait_until(&format!("lane {number} is closed"), || bad.stream.write_all(&[0]).is_err().then_some(()));
    }
    good.send(1, b"still here", true);
    assert_eq!(good.answer(1).text(), (200, "still here"));
    replica.drain();
}

/// Frames of a caller, right ones and others, for requests that there are and others.
fn hostile_frame(random: &mut Random, out: &mut Vec<u8>) {
    let number = if random.below(6) == 0 { random.below(u64::from(u32::MAX)) } else { random.below(5) } as u32;
    let is_last = random.below(3) == 0;
    match random.below(7) {
        0 | 1 => {
            let target = *random.choose(&["/", "/a?b=c", "*", "http://x/y", "//", "x"]).expect("there are some");
            let method = *random.choose(&["GET", "POST", "CONNECT", "X-Y"]).expect("there are some");
            let headers =
                [("content-length", &b"5"[..]), ("tracestate", b"\xff"), ("baggage", b"a=b"), ("upgrade", b"x")];
            let count = random.below(5) as usize;
            lane::put_open(out, number, is_last, &opening(method, target), headers.into_iter().take(count));
        }
        2 | 3 => {
            let length = *random.choose(&[0, 1, 5, lane::DATA_LIMIT]).expect("there are some");
            out.extend_from_slice(&lane::data_header(number, is_last, length));
            out.resize(out.len() + length, b'x');
        }
        4 => lane::put_trailers(out, number, [("x-end", &b"1"[..])]),
        5 => lane::put_credit(out, number, *random.choose(&[0, 1, 1 << 18, u32::MAX]).expect("there are some")),
        _ => lane::put_reset(out, number, Reset::ClientGone),
    }
}

/// Whatever a caller writes, its lane is closed at worst, and the replica serves the others.
#[test]
fn a_caller_that_writes_anything_loses_its_lane_alone() {
    let replica = Replica::start("echo").ready();
    let mut random = Random::of_test_alone();
    let mut good = replica.lane();
    for round in 0..200 {
        let mut bad = replica.lane();
        (0..5).filter(|_| random.below(4) > 0).for_each(|number| bad.claims.grant(number));
        let mut out = Vec::new();
        (0..=random.below(12)).for_each(|_| hostile_frame(&mut random, &mut out));
        if random.below(3) > 0 {
            random.spoil(&mut out);
        }
        // It may be closed before all is written.
        let _ = bad.stream.write_all(&out);
        if round % 4 == 0 {
            assert_eq!(good.get(1 + round / 4, "/").text(), (200, ""));
        }
    }
    assert_eq!(good.get(100, "/").text(), (200, ""));
    replica.drain();
}

#[test]
fn lanes_share_a_replica_and_a_closed_one_takes_its_requests_along() {
    let replica = Replica::start("echo").ready();
    let (mut first, mut second) = (replica.lane(), replica.lane());
    first.open(5, false, "POST", "/");
    second.open(5, false, "POST", "/");
    first.send(5, b"one", true);
    assert_eq!(first.answer(5).text(), (200, "one"));
    drop(first);
    second.send(5, b"two", true);
    assert_eq!(second.answer(5).text(), (200, "two"));
    assert_eq!(replica.drain().spans.len(), 2);
}

#[test]
fn a_caller_that_goes_while_its_lane_is_full_holds_up_neither_lanes_nor_the_drain() {
    let replica = Replica::start("echo").ready();
    let files = || std::fs::read_dir(format!("/proc/{}/fd", replica.child.id())).unwrap().count();
    let before = files();
    for _ in 0..4 {
        let mut caller = replica.lane();
        caller.open(1, false, "POST", "/");
        // The window of the answer: more than the socket takes while nobody reads.
        for _ in 0..lane::WINDOW as usize / lane::DATA_LIMIT {
            caller.send(1, &[0; lane::DATA_LIMIT], false);
        }
        let mut waiting = 0;
        wait_until("the socket takes no more of the answer", || {
            let last = std::mem::replace(&mut waiting, rustix::io::ioctl_fionread(&caller.stream).unwrap());
            (waiting == last && waiting > lane::DATA_LIMIT as u64).then_some(())
        });
    }
    wait_until("every lane's socket is closed", || (files() == before).then_some(()));
    replica.drain();
}

#[test]
fn many_requests_at_once_are_all_answered() {
    const REQUESTS: u32 = 200;
    let replica = Replica::start("add").ready();
    let mut caller = replica.lane();
    for request in 1..=REQUESTS {
        caller.open(request, false, "POST", "/");
        caller.send(request, format!("[{request},1]").as_bytes(), true);
    }
    let mut answers = vec![Vec::new(); REQUESTS as usize];
    let mut open = REQUESTS;
    while open > 0 {
        let (of, is_last, came) = caller.frame().unwrap();
        if let Came::Data(piece) = came {
            answers[of as usize - 1].extend(piece);
        }
        open -= u32::from(is_last);
    }
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(String::from_utf8_lossy(answer), (at + 2).to_string());
    }
    let ended = replica.drain();
    assert_eq!(ended.spans.all_named("replica_handle_request add handle").len(), REQUESTS as usize);
    for own in ended.spans.all_named("add up") {
        assert!(ended.spans.parent_of(own).name().starts_with("replica_handle_request"));
    }
}

#[test]
fn a_type_has_arguments_settings_and_health() {
    let mut deployment = Deployment::new("shop:Model");
    deployment.arguments = vec![json!("/models/7")];
    deployment.user_config = Some(json!({ "temperature": 20.5 }));
    let replica = Replica::start_with(&deployment).ready();
    let mut caller = replica.lane();
    caller.open(1, false, "POST", "/");
    caller.send(1, b"abc", true);
    assert_eq!(caller.answer(1).text(), (200, r#"{"path":"/models/7","temperature":20.5,"length":3}"#));
    replica.order(&ReplicaOrder::Health { order: 1 });
    assert_eq!(replica.report(), ReplicaReport::Answered { order: 1, failure: None });
    for (order, temperature, failure) in [(2, 200.0, None), (3, -1.0, Some("from 0 on"))] {
        let file = control::send_long(&json!({ "temperature": temperature })).unwrap();
        control::send(&replica.control, &ReplicaOrder::Configure { order }, &[file.as_fd()]).unwrap();
        let ReplicaReport::Answered { order: answered, failure: said } = replica.report() else { panic!() };
        assert_eq!((answered, said.is_some()), (order, failure.is_some()), "{said:?}");
        assert!(failure.is_none_or(|part| said.unwrap().contains(part)));
    }
    replica.order(&ReplicaOrder::Health { order: 4 });
    let ReplicaReport::Answered { order: 4, failure: Some(reason) } = replica.report() else { panic!() };
    assert!(reason.contains("too hot"), "{reason}");
    replica.drain();
}

#[test]
fn what_cannot_be_served_says_why() {
    let model = |arguments: serde_json::Value, config: Option<serde_json::Value>| Deployment {
        arguments: arguments.as_array().unwrap().clone(),
        user_config: config,
        ..Deployment::new("shop:Model")
    };
    for (deployment, expected) in [
        (Deployment::new("shop:helo"), "Did you mean `hello`?"),
        (Deployment::new("no_such_module:hello"), "no_such_module"),
        (model(json!([""]), None), "expected the path of a model"),
        (model(json!([]), None), "path"),
        (model(json!(["/m"]), Some(json!({ "temperature": -1.0 }))), "did not take its `user_config`"),
        (model(json!(["/m"]), Some(json!({}))), "temperature"),
        (Deployment { user_config: Some(json!(1)), ..Deployment::new("shop:hello") }, "its handler takes none"),
    ] {
        let mut replica = Replica::start_with(&deployment);
        let ReplicaReport::Failed { reason } = replica.report() else { panic!("{expected}") };
        assert!(reason.contains(expected), "{reason}");
        let status = wait_until("the replica has ended", || replica.child.try_wait().unwrap());
        assert!(!status.success());
    }
}

#[test]
fn a_replica_that_is_killed_leaves_its_spans() {
    let mut replica = Replica::start("waits").ready();
    let mut caller = replica.lane();
    caller.open(1, true, "GET", "/shop/waits");
    let spool = replica.folder.path().join("replica.spool");
    let open = |spool: &Path| {
        let spans = Story::open_to_read(spool).unwrap().spans();
        spans.into_iter().filter(|span| !span.has_ended).collect::<Vec<_>>()
    };
    wait_until("both spans are open", || (open(&spool).len() == 2).then_some(()));
    replica.kill();
    assert!(caller.frame().is_none(), "its lanes end with it");
    let spans = open(&spool);
    let names: Vec<_> = spans.iter().map(|span| &*span.record.name).collect();
    assert!(names.contains(&"replica_handle_request waits handle") && names.contains(&"wait"), "{names:?}");
    let request = spans.iter().find(|span| span.record.name.starts_with("replica")).unwrap();
    assert_eq!(request.record.trace_id, TRACE);
}
