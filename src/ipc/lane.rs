//! The lane: frames between a caller and a replica, over one Unix stream socket that carries many requests at once.
//!
//! A caller is a thread of the proxy, or a replica that calls another deployment. Many requests share a lane, and so share its reads and
//! writes: a busy lane carries dozens of requests with one system call, which no connection for each request can.
//!
//! ```text
//!  frame    length: u32 (of what follows) │ kind: u8 │ flags: u8 │ request: u32 │ payload
//!
//!  caller   OPEN ─▶ DATA ─▶ … ─▶ TRAILERS                 CREDIT, RESET at any time; DRAIN: no more requests
//!  replica          HEAD ─▶ DATA ─▶ … ─▶ TRAILERS         the same
//! ```
//!
//! The last frame of a direction has the flag [`LAST`]; a request without a body is one frame each way. A direction may send so many bytes of
//! DATA as the other end has given [credit](Body::Credit) for, [`WINDOW`] at first, so that a slow reader stops its own sender and nobody else.
//! RESET ends a request in both directions. Numbers of requests are given out by [`Numbers`], so that each has an entry of its own in the
//! lane's [claims](crate::claims).
//!
//! Names of headers that HTTP uses most are numbers. What crosses here is checked as if it came from the network, in both directions: a
//! replica runs code of others. A name is a token in lower case, a value has no control characters, so that no header can be forged by
//! one that is passed on; a frame that breaks a rule closes its lane and nothing else.

use tracer_core::codec::{Put, Take, WireError, text};

use crate::claims::CLAIM_COUNT;
use crate::protocol::frame::put_frame;
use tracer_core::http_field;

/// The longest frame of a lane, to be given to [`FrameBuffer::next_frame`](crate::protocol::frame::FrameBuffer::next_frame).
pub const LANE_FRAME_LIMIT: usize = 128 << 10;
/// The most bytes of a body in one frame.
pub const DATA_LIMIT: usize = 64 << 10;
/// The most headers or trailers in one frame.
pub const HEADER_LIMIT: usize = 128;
/// The bytes of a body that may be under way in one direction of one request.
pub const WINDOW: u32 = 256 << 10;

/// Least room of a read from a lane, in bytes.
pub const LEAST_ROOM: usize = 64 << 10;
/// Room of a read while reads fill what there is.
pub const MOST_ROOM: usize = 256 << 10;
/// The most blocks of memory that a reader keeps to read into again, once nobody has any piece of a body in them.
pub const BLOCKS: usize = 8;
/// Bytes below which a read is short.
pub const SHORT_READ: usize = 16 << 10;
/// Short reads in a row after which a reader keeps no block.
pub const SHORT_READS: u32 = 32;

/// Nothing follows in this direction.
pub const LAST: u8 = 1;

const OPEN: u8 = 1;
const HEAD: u8 = 2;
const DATA: u8 = 3;
const TRAILERS: u8 = 4;
const CREDIT: u8 = 5;
const RESET: u8 = 6;
const DRAIN: u8 = 7;

/// Bytes of a frame between its length and its payload.
const AFTER_LENGTH: usize = 1 + 1 + 4;

/// Error in a frame. Its lane is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// The frame is not what its kind says.
    #[error("{0}")]
    Layout(WireError),
    /// There is no such kind.
    #[error("a frame of a lane has the kind {0}, expected {open} to {drain}", open = OPEN, drain = DRAIN)]
    Kind(u8),
    /// A flag is set that this kind does not have.
    #[error("a frame of the kind {kind} has the flags {flags:#x}")]
    Flags {
        /// The kind.
        kind: u8,
        /// The flags.
        flags: u8,
    },
    /// Bytes that its place does not allow; names the part: a method, a target, a name, a value, a status.
    #[error("a frame of a lane has a {0} with bytes that none may have")]
    Text(&'static str),
    /// More headers than one frame may have.
    #[error("a frame of a lane has {0} headers, expected {most} at most", most = HEADER_LIMIT)]
    TooManyHeaders(u32),
    /// More bytes of a body than one frame may have, or than there was credit for.
    #[error("a frame of a lane has {0} bytes of a body, more than it may have")]
    TooMuchData(usize),
    /// More credit than a window has.
    #[error("a window of a lane would have {0} bytes, expected {most} at most", most = WINDOW)]
    TooMuchCredit(u64),
    /// A frame that cannot come at this point of its request; names the kind.
    #[error("unexpected lane frame of kind {0}")]
    Order(&'static str),
}

impl From<WireError> for LaneError {
    fn from(error: WireError) -> LaneError {
        LaneError::Layout(error)
    }
}

/// A frame, borrowed from the bytes that it came in.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The request that it is of; 0 for DRAIN.
    pub request: u32,
    /// True if nothing follows in this direction.
    pub is_last: bool,
    /// Content of the frame.
    pub body: Body<'a>,
}

/// Content of a frame, by its kind.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// A request begins.
    Open(Opening<'a>, Headers<'a>),
    /// The answer begins.
    Head(u16, Headers<'a>),
    /// A piece of a body.
    Data(&'a [u8]),
    /// Trailers, after which nothing follows.
    Trailers(Headers<'a>),
    /// Number of bytes of the body in the other direction that were taken: as many more may be sent.
    Credit(u32),
    /// The request ends here, in both directions.
    Reset(Reset),
    /// No further request will be sent, or taken.
    Drain,
}

/// Beginning of a request, besides its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening<'a> {
    /// The trace that it belongs to; all zero when it is not traced.
    pub trace_id: [u8; 16],
    /// The span of the caller that waits for the answer.
    pub span_id: [u8; 8],
    /// The W3C trace flags.
    pub trace_flags: u8,
    /// Deadline of the request, in nanoseconds since the Unix epoch; 0 for never.
    pub deadline_unix_nano: u64,
    /// True if it comes over TLS.
    pub is_secure: bool,
    /// The version of HTTP that the client speaks: 10, 11 or 20; 0 for a call from one deployment to another.
    pub version: u8,
    /// The method of HTTP; empty for a call from one deployment to another.
    pub method: &'a str,
    /// The host that it is for; empty if the client did not say.
    pub authority: &'a str,
    /// Path and query, as they came; of a call, the name of the method.
    pub target: &'a str,
    /// Request id, for people.
    pub request_id: &'a str,
    /// The client, as `address:port`; empty when unknown.
    pub client: &'a str,
}

/// Reason for which a request ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Nobody waits for the answer any more.
    ClientGone,
    /// Its time is up.
    Timeout,
    /// The handler has panicked or failed before it answered; its span says more.
    HandlerFailed,
    /// The handler's body has failed half-way.
    BodyFailed,
    /// The caller has taken the request back before it was claimed, or the replica does not take it.
    Refused,
}

const RESETS: [Reset; 5] = [Reset::ClientGone, Reset::Timeout, Reset::HandlerFailed, Reset::BodyFailed, Reset::Refused];

/// The methods that are numbers, from 1 on; 0 for one that is spelled.
const METHODS: [&str; 8] = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", ""];

/// The names of headers that are numbers, from 1 on; 0 for one that is spelled. Their order is part of the protocol: new ones go to the end.
const NAMES: [&str; 63] = [
    "host",
    "accept",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
    "access-control-max-age",
    "access-control-request-headers",
    "access-control-request-method",
    "age",
    "allow",
    "authorization",
    "baggage",
    "cache-control",
    "connection",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-security-policy",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "forwarded",
    "from",
    "grpc-accept-encoding",
    "grpc-encoding",
    "grpc-message",
    "grpc-status",
    "grpc-timeout",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "origin",
    "range",
    "referer",
    "retry-after",
    "server",
    "server-timing",
    "set-cookie",
    "strict-transport-security",
    "te",
    "traceparent",
    "tracestate",
    "user-agent",
    "vary",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-request-id",
    "x-forwarded-host",
];

/// Numbers of names by their [place](place_of), each at the first free one from there on; 0 where there is none.
const NUMBERS: [u8; 256] = {
    let mut numbers = [0; 256];
    let mut at = 0;
    while at < NAMES.len() {
        let mut place = place_of(NAMES[at]);
        while numbers[place] != 0 {
            place = (place + 1) % numbers.len();
        }
        numbers[place] = at as u8 + 1;
        at += 1;
    }
    numbers
};

/// Hash table of the names of headers: few of those that are numbers have length, first and last byte in common.
const fn place_of(name: &str) -> usize {
    let bytes = name.as_bytes();
    match bytes {
        [first, .., last] => (bytes.len() * 37 + *first as usize * 11 + *last as usize * 5) % 256,
        _ => 0,
    }
}

fn number_of(name: &str) -> Option<u8> {
    let places = (place_of(name)..NUMBERS.len()).chain(0..NUMBERS.len());
    let known = places.map(|place| NUMBERS[place]).take_while(|number| *number != 0);
    known.into_iter().find(|number| NAMES[usize::from(*number) - 1] == name)
}

/// Headers or trailers, checked, in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> Headers<'a> {
    /// Returns their number.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Names, in lower case, and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut take = Take::new(self.bytes);
        (0..self.count).map_while(move |_| take_header(&mut take).ok())
    }

    fn take(take: &mut Take<'a>) -> Result<Headers<'a>, LaneError> {
        let count = take.u32()?;
        if count as usize > HEADER_LIMIT {
            return Err(LaneError::TooManyHeaders(count));
        }
        let bytes = take.short()?;
        let mut rest = Take::new(bytes);
        (0..count).try_for_each(|_| take_header(&mut rest).map(drop))?;
        rest.finish()?;
        Ok(Headers { count, bytes })
    }
}

fn take_header<'a>(take: &mut Take<'a>) -> Result<(&'a str, &'a [u8]), LaneError> {
    let name = match take.u8()? {
        0 => {
            let name = take.short_str()?;
            if !http_field::is_token(name.as_bytes()) || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return Err(LaneError::Text("header name"));
            }
            name
        }
        number => NAMES.get(usize::from(number) - 1).ok_or(WireError::UnknownValue("the name of a header"))?,
    };
    let value = take.short()?;
    if !http_field::is_value(value) {
        return Err(LaneError::Text("header value"));
    }
    Ok((name, value))
}

/// Appends a frame that opens a request.
///
/// # Panics
///
/// With more headers than one frame may have.
pub fn put_open<'h>(
    out: &mut Vec<u8>,
    request: u32,
    is_last: bool,
    opening: &Opening<'_>,
    headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
) {
    put(out, OPEN, request, is_last, |out| {
        out.put_exact(&opening.trace_id);
        out.put_exact(&opening.span_id);
        out.put_u8(opening.trace_flags);
        out.put_u64(opening.deadline_unix_nano);
        out.put_u8(opening.is_secure.into());
        out.put_u8(opening.version);
        match METHODS.iter().position(|known| *known == opening.method) {
            Some(at) => out.put_u8(at as u8 + 1),
            None => {
                out.put_u8(0);
                out.put_short(opening.method.as_bytes());
            }
        }
        out.put_short(opening.authority.as_bytes());
        out.put_short(opening.target.as_bytes());
        out.put_short(opening.request_id.as_bytes());
        out.put_short(opening.client.as_bytes());
        put_headers(out, headers);
    });
}

/// Appends a frame that begins an answer.
///
/// # Panics
///
/// With more headers than one frame may have.
pub fn put_head<'h>(
    out: &mut Vec<u8>,
    request: u32,
    is_last: bool,
    status: u16,
    headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
) {
    put(out, HEAD, request, is_last, |out| {
        out.put_exact(&status.to_le_bytes());
        put_headers(out, headers);
    });
}

/// Appends a frame with trailers.
///
/// # Panics
///
/// With more of them than one frame may have.
pub fn put_trailers<'h>(out: &mut Vec<u8>, request: u32, trailers: impl IntoIterator<Item = (&'h str, &'h [u8])>) {
    put(out, TRAILERS, request, true, |out| put_headers(out, trailers));
}

/// Returns what goes before a piece of a body of this length, which is not copied.
///
/// # Panics
///
/// With a longer piece than one frame may have.
pub fn data_header(request: u32, is_last: bool, length: usize) -> [u8; 10] {
    assert!(length <= DATA_LIMIT, "a frame with {length} bytes of a body");
    let [a, b, c, d] = ((length + AFTER_LENGTH) as u32).to_le_bytes();
    let [e, f, g, h] = request.to_le_bytes();
    [a, b, c, d, DATA, u8::from(is_last), e, f, g, h]
}

/// Appends a frame that gives credit.
pub fn put_credit(out: &mut Vec<u8>, request: u32, bytes: u32) {
    put(out, CREDIT, request, false, |out| out.put_u32(bytes));
}

/// Appends a frame that ends a request before its end.
pub fn put_reset(out: &mut Vec<u8>, request: u32, reset: Reset) {
    put(out, RESET, request, true, |out| out.put_u8(reset as u8));
}

/// Appends a frame that says that no further request will be sent, or taken.
pub fn put_drain(out: &mut Vec<u8>) {
    put(out, DRAIN, 0, false, |_| {});
}

fn put(out: &mut Vec<u8>, kind: u8, request: u32, is_last: bool, payload: impl FnOnce(&mut Vec<u8>)) {
    put_frame(out, kind, |out| {
        out.put_u8(u8::from(is_last));
        out.put_u32(request);
        payload(out);
    });
}

fn put_headers<'h>(out: &mut Vec<u8>, headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) {
    // As many bytes as they nearly always have, so that it does not grow with each.
    let mut bytes = Vec::with_capacity(512);
    let mut count = 0;
    for (name, value) in headers {
        count += 1;
        match number_of(name) {
            Some(number) => bytes.put_u8(number),
            None => {
                bytes.put_u8(0);
                bytes.put_short(name.as_bytes());
            }
        }
        bytes.put_short(value);
    }
    assert!(count as usize <= HEADER_LIMIT, "a frame with {count} headers");
    out.put_u32(count);
    out.put_short(&bytes);
}

/// Returns the length of the whole frames that bytes begin with.
pub fn whole_frames(bytes: &[u8]) -> Result<usize, LaneError> {
    let mut at = 0;
    while let Some(length) = bytes[at..].first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > LANE_FRAME_LIMIT {
            return Err(LaneError::TooMuchData(length));
        }
        if bytes.len() - at - 4 < length {
            break;
        }
        at += 4 + length;
    }
    Ok(at)
}

/// Returns how many bytes are missing of the frame that bytes begin with, as far as they say it.
pub fn missing(bytes: &[u8]) -> usize {
    let length = bytes.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    (4 + length.min(LANE_FRAME_LIMIT)).saturating_sub(bytes.len())
}

/// Takes whole frames apart that come one after the other.
pub fn frames(mut whole: &[u8]) -> impl Iterator<Item = Result<Frame<'_>, LaneError>> {
    std::iter::from_fn(move || {
        let (length, after) = whole.split_first_chunk::<4>()?;
        let (body, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        whole = after;
        let (kind, body) = body.split_first()?;
        Some(Frame::decode(*kind, body))
    })
}

impl<'a> Frame<'a> {
    /// Takes a frame apart that came with this kind and this body.
    pub fn decode(kind: u8, body: &'a [u8]) -> Result<Frame<'a>, LaneError> {
        let mut take = Take::new(body);
        let (flags, request) = (take.u8()?, take.u32()?);
        let may_be_last = matches!(kind, OPEN | HEAD | DATA);
        let must_be_last = matches!(kind, TRAILERS | RESET);
        let is_last = flags & LAST != 0;
        if flags & !LAST != 0 || (must_be_last && !is_last) || (is_last && !may_be_last && !must_be_last) {
            return Err(LaneError::Flags { kind, flags });
        }
        let body = match kind {
            OPEN => {
                let opening = Opening::take(&mut take)?;
                Body::Open(opening, Headers::take(&mut take)?)
            }
            HEAD => {
                let status = u16::from_le_bytes(take.array()?);
                // An interim answer is followed by another.
                if !(100..1000).contains(&status) || (status < 200 && is_last) {
                    return Err(LaneError::Text("status"));
                }
                Body::Head(status, Headers::take(&mut take)?)
            }
            DATA => {
                let length = body.len() + 1 - AFTER_LENGTH;
                if length > DATA_LIMIT {
                    return Err(LaneError::TooMuchData(length));
                }
                Body::Data(take.exact(length)?)
            }
            TRAILERS => Body::Trailers(Headers::take(&mut take)?),
            CREDIT => Body::Credit(take.u32()?),
            RESET => {
                let reset = RESETS.get(usize::from(take.u8()?));
                Body::Reset(*reset.ok_or(WireError::UnknownValue("why a request ends"))?)
            }
            DRAIN => Body::Drain,
            _ => return Err(LaneError::Kind(kind)),
        };
        take.finish()?;
        if matches!(body, Body::Drain) && request != 0 {
            return Err(WireError::UnknownValue("the request of a frame that is of none").into());
        }
        Ok(Frame { request, is_last, body })
    }

    /// Appends the same frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self.body {
            Body::Open(opening, headers) => put_open(out, self.request, self.is_last, &opening, headers.iter()),
            Body::Head(status, headers) => put_head(out, self.request, self.is_last, status, headers.iter()),
            Body::Data(piece) => {
                out.put_exact(&data_header(self.request, self.is_last, piece.len()));
                out.put_exact(piece);
            }
            Body::Trailers(trailers) => put_trailers(out, self.request, trailers.iter()),
            Body::Credit(bytes) => put_credit(out, self.request, bytes),
            Body::Reset(reset) => put_reset(out, self.request, reset),
            Body::Drain => put_drain(out),
        }
    }
}

impl<'a> Opening<'a> {
    fn take(take: &mut Take<'a>) -> Result<Opening<'a>, LaneError> {
        let (trace_id, span_id) = (take.array()?, take.array()?);
        let (trace_flags, deadline_unix_nano) = (take.u8()?, take.u64()?);
        let is_secure = match take.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::UnknownValue("whether a request is secure").into()),
        };
        let version = take.u8()?;
        if !matches!(version, 0 | 10 | 11 | 20) {
            return Err(WireError::UnknownValue("the version of HTTP").into());
        }
        let method = match take.u8()? {
            0 => take.short_str()?,
            number => METHODS.get(usize::from(number) - 1).ok_or(WireError::UnknownValue("the method"))?,
        };
        if !method.bytes().all(http_field::is_token_byte) {
            return Err(LaneError::Text("method"));
        }
        let mut visible = |part| {
            let found = text(take.short()?)?;
            if found.bytes().all(|byte| byte.is_ascii_graphic()) { Ok(found) } else { Err(LaneError::Text(part)) }
        };
        let (authority, target) = (visible("host")?, visible("target")?);
        let (request_id, client) = (visible("request id")?, visible("client")?);
        Ok(Opening {
            trace_id,
            span_id,
            trace_flags,
            deadline_unix_nano,
            is_secure,
            version,
            method,
            authority,
            target,
            request_id,
            client,
        })
    }
}

/// One direction of one request, as seen by its receiver: which frames may come, and how much of the body.
#[derive(Debug)]
pub struct Incoming {
    stage: Stage,
    /// Bytes that the sender may still send.
    window: u32,
    /// Bytes that were taken since credit was given.
    taken: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Answer,
    Body,
    Over,
}

/// Returns whether the answer with this status is the last one: all from 200 on, and the change of the protocol, after which the bodies are what goes over
/// the connection in either direction.
pub const fn is_final(status: u16) -> bool {
    status >= 200 || status == SWITCHING_PROTOCOLS
}

/// Status of an answer after which the connection speaks another protocol (RFC 9110, section 15.2.2).
pub const SWITCHING_PROTOCOLS: u16 = 101;

impl Incoming {
    /// Returns the body of a request that has been opened.
    pub fn request(is_last: bool) -> Incoming {
        Incoming { stage: if is_last { Stage::Over } else { Stage::Body }, window: WINDOW, taken: 0 }
    }

    /// Returns the answer to a request.
    pub fn answer() -> Incoming {
        Incoming { stage: Stage::Answer, window: WINDOW, taken: 0 }
    }

    /// Checks a frame of this direction that has come; CREDIT is about the other one.
    pub fn on_frame(&mut self, frame: &Frame<'_>) -> Result<(), LaneError> {
        match (&frame.body, self.stage) {
            (Body::Reset(_), _) => self.stage = Stage::Over,
            (Body::Credit(_), _) => return Ok(()),
            (Body::Head(status, _), Stage::Answer) if is_final(*status) => self.stage = Stage::Body,
            (Body::Head(..), Stage::Answer) => {}
            (Body::Data(piece), Stage::Body) => {
                let length = u32::try_from(piece.len()).unwrap_or(u32::MAX);
                let left = self.window.checked_sub(length);
                self.window = left.ok_or(LaneError::TooMuchData(piece.len()))?;
            }
            (Body::Trailers(_), Stage::Body) => {}
            (Body::Open(..), _) => return Err(LaneError::Order("OPEN")),
            (Body::Head(..), _) => return Err(LaneError::Order("HEAD")),
            (Body::Data(_), _) => return Err(LaneError::Order("DATA")),
            (Body::Trailers(_), _) => return Err(LaneError::Order("TRAILERS")),
            (Body::Drain, _) => return Err(LaneError::Order("DRAIN")),
        }
        if frame.is_last {
            self.stage = Stage::Over;
        }
        Ok(())
    }

    /// Says that bytes of the body were taken. Returns the credit to give for them, once it is worth a frame.
    pub fn took(&mut self, bytes: u32) -> Option<u32> {
        self.taken = self.taken.saturating_add(bytes).min(WINDOW - self.window);
        if self.stage == Stage::Over || self.taken < WINDOW / 2 {
            return None;
        }
        self.window += self.taken;
        Some(std::mem::take(&mut self.taken))
    }

    /// Returns whether nothing follows.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }
}

/// One direction of one request, as seen by its sender: how much of the body may be sent.
#[derive(Debug)]
pub struct Outgoing {
    window: u32,
}

impl Default for Outgoing {
    fn default() -> Outgoing {
        Outgoing { window: WINDOW }
    }
}

impl Outgoing {
    /// Takes what there is credit for, of so many bytes, and no more than one frame may have.
    pub fn take(&mut self, bytes: usize) -> usize {
        let length = bytes.min(self.window as usize).min(DATA_LIMIT);
        self.window -= length as u32;
        length
    }

    /// Takes credit that has come.
    pub fn on_credit(&mut self, bytes: u32) -> Result<(), LaneError> {
        let window = u64::from(self.window) + u64::from(bytes);
        if window > WINDOW.into() {
            return Err(LaneError::TooMuchCredit(window));
        }
        self.window = window as u32;
        Ok(())
    }
}

/// The numbers of the requests of a lane. Each has an entry in the [claims](crate::claims) that no other one has at the same time, and comes
/// again so late that a frame which comes late is not taken for one of the next request with its entry.
#[derive(Debug)]
pub struct Numbers {
    /// Entries without a request, with the number that the next one gets. Those used last come last.
    free: std::collections::VecDeque<u32>,
}

impl Default for Numbers {
    fn default() -> Numbers {
        // 0 is no request's.
        Numbers { free: (1..=CLAIM_COUNT as u32).collect() }
    }
}

impl Numbers {
    /// Takes a number; none while the lane has as many requests as it can.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_front()
    }

    /// Gives the number of a request back that has ended in both directions.
    pub fn give_back(&mut self, number: u32) {
        // The first entry begins again at its own number, which is not 0.
        let next = number.checked_add(CLAIM_COUNT as u32).unwrap_or(number % CLAIM_COUNT as u32);
        self.free.push_back(if next == 0 { CLAIM_COUNT as u32 } else { next });
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
