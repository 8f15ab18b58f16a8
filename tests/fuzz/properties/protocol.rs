//! Hostile bytes on a socket are refused and never panic, and what was understood is encoded to what is understood alike.

use tracer::protocol::frame::{FrameBuffer, HELLO_LIMIT};
use tracer::protocol::wire::Take;
use tracer::protocol::{
    Accepted, AttemptResult, Finished, Hello, Lease, Output, Query, Reply, Submissions, Welcome, put_query, take_value,
};
use tracer::task::Envelope;
use tracer::value;

/// The bytes are a stream of frames, of which each body is taken for every message there is.
pub(super) fn holds(bytes: &[u8]) {
    let mut frames = FrameBuffer::new();
    for piece in bytes.chunks(7) {
        let mut rest = piece;
        while !rest.is_empty() {
            frames.read_from(&mut rest).expect("bytes can always be read");
        }
        loop {
            match frames.next_frame(HELLO_LIMIT) {
                Ok(Some((_, body))) => take(body),
                Ok(None) => break,
                // Such a connection is closed.
                Err(_) => return,
            }
        }
    }
    take(bytes);
}

fn take(body: &[u8]) {
    if let Ok(envelope) = Envelope::decode(body) {
        let mut encoded = Vec::new();
        envelope.encode(&mut encoded);
        assert_eq!(Envelope::decode(&encoded).as_ref(), Ok(&envelope));
    }
    if let Ok(hello) = Hello::decode(body) {
        let mut encoded = Vec::new();
        hello.encode(&mut encoded);
        assert!(!encoded.is_empty());
    }
    if let Ok(accepted) = Accepted::decode(body) {
        let mut encoded = Vec::new();
        accepted.encode(&mut encoded);
        assert!(!encoded.is_empty());
    }
    let _ = Submissions::decode(body);
    let _ = Output::decode(body);
    let _ = Lease::take(&mut Take::new(body));
    let _ = Finished::take(&mut Take::new(body));
    let _ = AttemptResult::take(&mut Take::new(body));
    let _ = take_value::<Welcome>(body);
    let _ = take_value::<Reply>(body);
    if let Ok(query) = take_value::<Query>(body) {
        put_query(&mut Vec::new(), 1, &query);
    }
    if let Ok(json) = value::to_json(body) {
        let encoded = value::to_bytes(&json).expect("JSON can be encoded");
        assert!(value::to_json(&encoded).is_ok());
    }
}
