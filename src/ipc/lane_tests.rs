//! Frames there and back, cut and forged.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::protocol::frame::FrameBuffer;

const OPENING: Opening<'static> = Opening {
    trace_id: [1; 16],
    span_id: [2; 8],
    trace_flags: 1,
    deadline_unix_nano: 12,
    is_secure: true,
    version: 11,
    method: "GET",
    authority: "localhost:8000",
    target: "/cart?item=1",
    request_id: "abc-1",
    client: "127.0.0.1:5000",
};

type Pairs = Vec<(String, Vec<u8>)>;

fn pairs(headers: Headers<'_>) -> Pairs {
    headers.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
}

fn borrowed(headers: &Pairs) -> impl Iterator<Item = (&str, &[u8])> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()))
}

/// Kind and body of each frame.
fn split(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut buffer = FrameBuffer::new();
    let mut rest = bytes;
    while buffer.read_from(&mut rest).unwrap() > 0 {}
    let mut frames = Vec::new();
    while let Some((kind, body)) = buffer.next_frame(LANE_FRAME_LIMIT).unwrap() {
        frames.push((kind, body.to_vec()));
    }
    assert!(!buffer.is_torn());
    frames
}

fn only(bytes: &[u8]) -> (u8, Vec<u8>) {
    let mut frames = split(bytes);
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

fn error_of(kind: u8, body: &[u8]) -> LaneError {
    Frame::decode(kind, body).expect_err("it is no frame")
}

#[test]
fn a_request_and_its_answer_arrive_as_they_were_sent() {
    let mut bytes = Vec::new();
    let headers = [("accept", &b"*/*"[..]), ("x-own", b"\xe4 b\t"), ("accept", b"")];
    put_open(&mut bytes, 7, false, &OPENING, headers);
    bytes.extend(data_header(7, true, 5));
    bytes.extend(b"hello");
    put_head(&mut bytes, 7, false, 200, [("content-type", &b"text/plain"[..])]);
    put_credit(&mut bytes, 7, 70_000);
    put_trailers(&mut bytes, 7, [("grpc-status", &b"0"[..])]);
    put_reset(&mut bytes, u32::MAX, Reset::BodyFailed);
    put_drain(&mut bytes);
    let frames = split(&bytes);
    let decoded: Vec<_> = frames.iter().map(|(kind, body)| Frame::decode(*kind, body).unwrap()).collect();
    let Body::Open(opening, found) = decoded[0].body else { panic!("{:?}", decoded[0]) };
    assert_eq!((opening, found.len(), found.is_empty()), (OPENING, 3, false));
    assert_eq!(found.iter().collect::<Vec<_>>(), headers);
    assert!(matches!(decoded[1], Frame { request: 7, is_last: true, body: Body::Data(b"hello") }));
    assert!(matches!(decoded[2], Frame { is_last: false, body: Body::Head(200, headers), .. } if headers.len() == 1));
    assert!(matches!(decoded[3].body, Body::Credit(70_000)));
    assert!(matches!(decoded[4], Frame { is_last: true, body: Body::Trailers(_), .. }));
    assert!(matches!(decoded[5], Frame { request: u32::MAX, body: Body::Reset(Reset::BodyFailed), .. }));
    assert!(matches!(decoded[6], Frame { request: 0, is_last: false, body: Body::Drain }));
}

#[test]
fn names_that_http_uses_most_take_a_byte_and_are_in_lower_case_and_once_there() {
    assert_eq!(NAMES.iter().collect::<HashSet<_>>().len(), NAMES.len());
    assert!(NAMES.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')));
    for (at, name) in NAMES.iter().enumerate() {
        assert_eq!(number_of(name), Some(at as u8 + 1));
        let mut bytes = Vec::new();
        put_headers(&mut bytes, [(*name, &b"v"[..])]);
        assert_eq!(bytes.len(), 4 + 1 + 3);
    }
    assert_eq!((number_of("x-own"), number_of("Host"), number_of("")), (None, None, None));
    assert_eq!(METHODS.iter().collect::<HashSet<_>>().len(), METHODS.len());
}

#[test]
fn what_could_forge_a_header_or_a_line_is_refused() {
    let open = |opening: Opening<'_>| {
        let mut bytes = Vec::new();
        put_open(&mut bytes, 1, true, &opening, []);
        let (kind, body) = only(&bytes);
        Frame::decode(kind, &body).err()
    };
    assert_eq!(open(OPENING), None);
    assert_eq!(open(Opening { method: "PROPFIND", ..OPENING }), None);
    assert_eq!(open(Opening { method: "", target: "predict", authority: "", request_id: "", ..OPENING }), None);
    let cases = [
        (Opening { method: "GET /", ..OPENING }, "method"),
        (Opening { method: "GÉT", ..OPENING }, "method"),
        (Opening { target: "/a b", ..OPENING }, "target"),
        (Opening { target: "/a\r\nx: y", ..OPENING }, "target"),
        (Opening { authority: "a\0", ..OPENING }, "host"),
        (Opening { request_id: "a\nb", ..OPENING }, "request id"),
        (Opening { client: "a b", ..OPENING }, "client"),
    ];
    for (opening, part) in cases {
        assert_eq!(open(opening), Some(LaneError::Text(part)), "{opening:?}");
    }
    let head = |name: &str, value: &[u8]| {
        let mut bytes = Vec::new();
        put_head(&mut bytes, 1, true, 200, [(name, value)]);
        let (kind, body) = only(&bytes);
        Frame::decode(kind, &body).err()
    };
    for name in ["", "a b", "a:", "X-Own", ":path", "a\r\n", "ä"] {
        assert_eq!(head(name, b"v"), Some(LaneError::Text("header name")), "{name}");
    }
    for value in [&b"a\r\nx: y"[..], b"a\n", b"\0", b"\x7f", b"\x1b[31m"] {
        assert_eq!(head("x", value), Some(LaneError::Text("header value")), "{value:?}");
    }
    assert_eq!(head("x", b"\t \xff~"), None);
}

#[test]
fn a_frame_that_is_not_as_its_kind_is_closes_the_lane_and_says_why() {
    let cases: Vec<(u8, Vec<u8>, &str)> = vec![
        (0, vec![0; 5], "has the kind 0, expected 1 to 7"),
        (8, vec![0; 5], "has the kind 8"),
        (DRAIN, vec![0; 4], "ends too early"),
        (DRAIN, vec![0; 6], "has bytes after its end"),
        (DRAIN, vec![0, 1, 0, 0, 0], "the request of a frame that is of none"),
        (DRAIN, vec![1, 0, 0, 0, 0], "the kind 7 has the flags 0x1"),
        (CREDIT, vec![1, 0, 0, 0, 0, 1, 0, 0, 0], "the kind 5 has the flags 0x1"),
        (CREDIT, vec![0, 0, 0, 0, 0, 1], "ends too early"),
        (RESET, vec![0, 1, 0, 0, 0, 0], "the kind 6 has the flags 0x0"),
        (RESET, vec![1, 1, 0, 0, 0, 5], "unknown value for `why a request ends`"),
        (DATA, vec![2, 1, 0, 0, 0], "the kind 3 has the flags 0x2"),
        (DATA, vec![0; 5 + DATA_LIMIT + 1], "has 65537 bytes of a body"),
        (HEAD, vec![0, 1, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0], "a status with bytes that none may have"),
        (HEAD, vec![1, 1, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0], "a status"),
        (HEAD, vec![0, 1, 0, 0, 0, 200, 0, 129, 0, 0, 0, 0], "has 129 headers, expected 128 at most"),
        (HEAD, vec![0, 1, 0, 0, 0, 200, 0, 1, 0, 0, 0, 2, 64, 0], "unknown value for `the name of a header`"),
        (HEAD, vec![0, 1, 0, 0, 0, 200, 0, 1, 0, 0, 0, 3, 1, 0, 0], "has bytes after its end"),
        (HEAD, vec![0, 1, 0, 0, 0, 200, 0, 2, 0, 0, 0, 2, 1, 0], "ends too early"),
    ];
    for (kind, body, expected) in cases {
        let error = error_of(kind, &body).to_string();
        assert!(error.contains(expected), "{kind} {body:?}: {error}");
    }
}

#[test]
fn frames_come_in_order_or_close_the_lane() {
    let empty = Headers { count: 0, bytes: &[] };
    let frame = |body, is_last| Frame { request: 1, is_last, body };
    let head = |status| frame(Body::Head(status, empty), false);
    let data = frame(Body::Data(b"x"), false);
    let trailers = frame(Body::Trailers(empty), true);
    let run = |mut incoming: Incoming, frames: &[Frame<'_>]| {
        frames.iter().try_for_each(|frame| incoming.on_frame(frame)).map(|()| incoming.is_over())
    };
    assert_eq!(run(Incoming::answer(), &[head(103), head(100), head(200), data, data, trailers]), Ok(true));
    assert_eq!(run(Incoming::answer(), &[head(204), data]), Ok(false));
    assert_eq!(run(Incoming::answer(), &[frame(Body::Head(404, empty), true)]), Ok(true));
    assert_eq!(run(Incoming::answer(), &[frame(Body::Reset(Reset::Timeout), true)]), Ok(true));
    assert_eq!(run(Incoming::answer(), &[frame(Body::Credit(1), false)]), Ok(false));
    assert_eq!(run(Incoming::request(false), &[data, frame(Body::Data(b""), true)]), Ok(true));
    for (incoming, frames, kind) in [
        (Incoming::answer(), vec![data], "DATA"),
        (Incoming::answer(), vec![trailers], "TRAILERS"),
        (Incoming::answer(), vec![head(200), head(200)], "HEAD"),
        (Incoming::answer(), vec![head(200), trailers, data], "DATA"),
        (Incoming::answer(), vec![frame(Body::Open(OPENING, empty), false)], "OPEN"),
        (Incoming::answer(), vec![frame(Body::Drain, false)], "DRAIN"),
        (Incoming::request(true), vec![data], "DATA"),
        (Incoming::request(false), vec![head(200)], "HEAD"),
    ] {
        assert_eq!(run(incoming, &frames), Err(LaneError::Order(kind)), "{frames:?}");
    }
}

#[test]
fn a_sender_stops_when_its_window_is_full_and_goes_on_when_the_reader_has_taken_half_of_it() {
    let (mut incoming, mut outgoing) = (Incoming::request(false), Outgoing::default());
    let piece = vec![0; DATA_LIMIT];
    let send = |incoming: &mut Incoming, outgoing: &mut Outgoing| {
        let length = outgoing.take(usize::MAX);
        let frame = Frame { request: 1, is_last: false, body: Body::Data(&piece[..length]) };
        incoming.on_frame(&frame).unwrap();
        length
    };
    for _ in 0..WINDOW as usize / DATA_LIMIT {
        assert_eq!(send(&mut incoming, &mut outgoing), DATA_LIMIT);
    }
    assert_eq!(outgoing.take(1), 0);
    let one_more = Frame { request: 1, is_last: false, body: Body::Data(b"x") };
    assert_eq!(incoming.on_frame(&one_more), Err(LaneError::TooMuchData(1)), "a sender that does not stop");
    assert_eq!(incoming.took(WINDOW / 2 - 1), None);
    let credit = incoming.took(1).unwrap();
    assert_eq!(credit, WINDOW / 2);
    outgoing.on_credit(credit).unwrap();
    assert_eq!(send(&mut incoming, &mut outgoing), DATA_LIMIT);
    let error = outgoing.on_credit(WINDOW).unwrap_err();
    assert_eq!(error, LaneError::TooMuchCredit((WINDOW + WINDOW / 2 - DATA_LIMIT as u32).into()));
    assert_eq!(incoming.took(u32::MAX), Some(WINDOW / 2 + DATA_LIMIT as u32), "no more than was sent");
}

#[test]
fn numbers_of_requests_that_are_under_way_have_entries_of_their_own_and_come_again_late() {
    let mut numbers = Numbers::default();
    let taken: Vec<u32> = std::iter::from_fn(|| numbers.take()).collect();
    let entries = |taken: &[u32]| taken.iter().map(|number| number % CLAIM_COUNT as u32).collect::<HashSet<_>>().len();
    assert_eq!((taken.len(), entries(&taken)), (CLAIM_COUNT, CLAIM_COUNT));
    numbers.give_back(taken[5]);
    let next = numbers.take().unwrap();
    assert_eq!((next % CLAIM_COUNT as u32, next != taken[5]), (taken[5] % CLAIM_COUNT as u32, true));
    for last in [u32::MAX, u32::MAX - 1023, u32::MAX - 1022] {
        numbers.give_back(last);
        let next = numbers.take().unwrap();
        assert_eq!(next % CLAIM_COUNT as u32, last % CLAIM_COUNT as u32);
        assert!((1..=CLAIM_COUNT as u32).contains(&next), "{next}");
    }
    assert_eq!(numbers.take(), None);
}

fn headers() -> impl Strategy<Value = Pairs> {
    let name = prop_oneof!["[a-z][a-z0-9_-]{0,20}", proptest::sample::select(&NAMES[..]).prop_map(str::to_owned)];
    vec((name, vec(prop_oneof![b' '..=b'~', 0x80_u8..=0xff, Just(b'\t')], 0..80)), 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn every_frame_that_can_be_sent_is_read_as_it_was(
        request: u32, is_last: bool, status in 200_u16..1000, sent in headers(), piece in vec(any::<u8>(), 0..2000),
        (trace_id, span_id, trace_flags, deadline_unix_nano, is_secure) in any::<([u8; 16], [u8; 8], u8, u64, bool)>(),
        (method, authority, target, request_id) in ("[A-Z]{0,12}", "[!-~]{0,300}", "/[!-~]{0,300}", "[!-~]{0,40}"),
    ) {
        let (method, authority, target, request_id) = (&*method, &*authority, &*target, &*request_id);
        let opening = Opening { trace_id, span_id, trace_flags, deadline_unix_nano, is_secure, version: 20, method, authority, target, request_id, client: authority };
        let mut bytes = Vec::new();
        put_open(&mut bytes, request, is_last, &opening, borrowed(&sent));
        put_head(&mut bytes, request, is_last, status, borrowed(&sent));
        bytes.extend(data_header(request, is_last, piece.len()));
        bytes.extend(&piece);
        put_trailers(&mut bytes, request, borrowed(&sent));
        let frames = split(&bytes);
        let mut again = Vec::new();
        for (kind, body) in &frames {
            let frame = Frame::decode(*kind, body).unwrap();
            prop_assert_eq!(frame.request, request);
            match frame.body {
                Body::Open(found, headers) => prop_assert_eq!((found, pairs(headers)), (opening, sent.clone())),
                Body::Head(found, headers) => prop_assert_eq!((found, pairs(headers)), (status, sent.clone())),
                Body::Data(found) => prop_assert_eq!((found, frame.is_last), (&piece[..], is_last)),
                Body::Trailers(trailers) => prop_assert_eq!(pairs(trailers), sent.clone()),
                _ => prop_assert!(false, "{:?}", frame),
            }
            frame.encode(&mut again);
        }
        prop_assert_eq!(again, bytes);
    }

    #[test]
    fn hostile_bytes_are_refused_or_are_a_frame_and_never_panic(kind in 0_u8..9, mut body in vec(any::<u8>(), 0..200), cut: prop::sample::Index) {
        let _ = Frame::decode(kind, &body);
        // One that begins well.
        let mut bytes = Vec::new();
        put_open(&mut bytes, 1, true, &OPENING, [("a", &b"b"[..]), ("host", b"c")]);
        let (kind, mut good) = only(&bytes);
        let at = cut.index(good.len());
        body.truncate(3);
        good.splice(at..at, body);
        let _ = Frame::decode(kind, &good);
        prop_assert!(Frame::decode(kind, &good[..at]).is_err());
    }
}
