//! Hostile bytes on a lane are refused and never panic, and each frame that is taken is sent on as it came.

use tracer::lane::{Body, Frame, Incoming, LANE_FRAME_LIMIT};
use tracer::protocol::frame::FrameBuffer;

/// The bytes are what a replica sends, in pieces.
pub(super) fn holds(bytes: &[u8]) {
    let mut frames = FrameBuffer::new();
    let mut answer = Incoming::answer();
    for piece in bytes.chunks(11) {
        let mut rest = piece;
        while !rest.is_empty() {
            frames.read_from(&mut rest).expect("bytes can always be read");
        }
        loop {
            match frames.next_frame(LANE_FRAME_LIMIT) {
                Ok(Some((kind, body))) => {
                    let Ok(frame) = Frame::decode(kind, body) else { return };
                    sends_on(&frame);
                    if answer.on_frame(&frame).is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                // Such a lane is closed.
                Err(_) => return,
            }
        }
    }
}

fn sends_on(frame: &Frame<'_>) {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    let again = Frame::decode(bytes[4], &bytes[5..]).expect("what was taken can be sent on");
    assert_eq!((again.request, again.is_last), (frame.request, frame.is_last));
    // Names that are numbers may have been spelled, so that the bytes may differ.
    assert_eq!(format!("{:?}", said(&again)), format!("{:?}", said(frame)));
    for (name, value) in said(frame).1 {
        assert!(!name.bytes().any(|byte| byte.is_ascii_control() || byte == b':'), "{name}");
        assert!(!value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)), "{value:?}");
    }
}

type Headers<'a> = Vec<(&'a str, &'a [u8])>;

fn said<'a>(frame: &Frame<'a>) -> (String, Headers<'a>) {
    match frame.body {
        Body::Open(opening, headers) => (format!("{opening:?}"), headers.iter().collect()),
        Body::Head(status, headers) => (status.to_string(), headers.iter().collect()),
        Body::Trailers(trailers) => (String::new(), trailers.iter().collect()),
        ref other => (format!("{other:?}"), Vec::new()),
    }
}
