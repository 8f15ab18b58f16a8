//! A request that a replica has claimed, from its first frame to its last.

use std::collections::VecDeque;

use tracer_core::task::Failure;
use tracer_host::hook::ActiveSpan;
use tracer_ipc::lane::{Incoming, Outgoing};

use super::outbox::{FrameAt, Slice};
use super::span::Facts;

/// Returns the number that the module knows a request by: the lane, and the request in it.
pub(super) fn number(lane: u32, request: u32) -> u64 {
    u64::from(lane) << 32 | u64::from(request)
}

/// Returns the lane and the request of such a number.
pub(super) fn place(number: u64) -> (u32, u32) {
    ((number >> 32) as u32, number as u32)
}

/// Reason why nobody wants the answer to a request any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// The client has gone, or the caller.
    Client,
    /// Time is up.
    Timeout,
}

/// A request.
pub(super) struct Request {
    /// Frames that come.
    pub(super) incoming: Incoming,
    /// Credit for those that go.
    pub(super) outgoing: Outgoing,
    /// Facts for its span, set at its end.
    pub(super) facts: Facts,
    /// True from the head of the response on.
    pub(super) has_head: bool,
    /// Reason why the response cannot be sent as the module made it.
    pub(super) refused: Option<Failure>,
    /// Set when nobody wants the answer.
    pub(super) gone: Option<Gone>,
    /// The last frame that was queued.
    pub(super) last_frame: Option<FrameAt>,
    /// Parts of the body that there was no credit for.
    pub(super) unsent: VecDeque<Slice>,
    /// True if the module waits for room.
    pub(super) wants_room: bool,
    /// The end, from the time when the module has ended it.
    pub(super) end: End,
}

/// Progress of the end of a request.
pub(super) enum End {
    /// The module has not ended it.
    Open,
    /// The module has, but parts of its body wait for credit. Then come these trailers.
    Sending { trailers: Option<Vec<(String, Vec<u8>)>>, span: Option<ActiveSpan> },
    /// All is queued. What still comes of the request's body is taken and dropped.
    Answered,
}

impl Request {
    pub(super) fn new(is_last: bool, facts: Facts) -> Request {
        Request {
            incoming: Incoming::request(is_last),
            outgoing: Outgoing::default(),
            facts,
            has_head: false,
            refused: None,
            gone: None,
            last_frame: None,
            unsent: VecDeque::new(),
            wants_room: false,
            end: End::Open,
        }
    }

    /// Returns whether the module has it.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.end, End::Open)
    }

    /// Returns whether an answer is still to be written.
    pub(super) fn is_unanswered(&self) -> bool {
        !matches!(self.end, End::Answered)
    }
}
