//! The events that a replica hands to its module: put together in safe types, then laid out as the contract has them.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use tracer_abi as abi;
use tracer_core::propagation::TraceContext;

use crate::hook::recorder::ActiveSpan;

/// Events for the module. What they say is copied here, where it stays until all of them were taken and the next are put together; its
/// memory is used again.
#[derive(Default)]
pub struct RequestEvents {
    texts: Vec<u8>,
    headers: Vec<HeaderAt>,
    heads: Vec<HeadAt>,
    events: Vec<EventAt>,
    pub(super) spans: Vec<(u64, ActiveSpan)>,
    laid_out: LaidOut,
}

/// The same in the form of the contract. What is behind a pointer in here does not move while the events are there.
#[derive(Default)]
struct LaidOut {
    headers: Vec<abi::Header>,
    contexts: Vec<abi::SpanContext>,
    heads: Vec<abi::RequestHead>,
    events: Vec<abi::RequestEvent>,
    taken: usize,
}

/// A place in the texts.
type At = Range<usize>;

struct HeaderAt {
    name: At,
    value: At,
}

struct HeadAt {
    method: At,
    target: At,
    scheme: &'static str,
    authority: At,
    version: u32,
    has_length: bool,
    request_id: At,
    route_prefix: At,
    client: At,
    deadline_unix_nano: u64,
    span: *mut c_void,
    context: Option<ContextAt>,
    baggage: At,
}

struct ContextAt {
    context: abi::SpanContext,
    trace_state: At,
}

struct EventAt {
    kind: u32,
    is_last: bool,
    number: u64,
    head: Option<usize>,
    piece: abi::Piece,
    headers: Range<usize>,
}

/// A request that begins.
pub struct NewRequest<'a> {
    /// Its number, which no other request of this process has had.
    pub number: u64,
    /// The method of HTTP.
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// True if it came over TLS.
    pub is_secure: bool,
    /// The host that it is for; empty if the client did not say.
    pub authority: &'a str,
    /// The version of HTTP: 10, 11 or 20.
    pub version: u32,
    /// True if its head says how long the body is.
    pub has_length: bool,
    /// Request id, for people.
    pub request_id: &'a str,
    /// The prefix of the application.
    pub route_prefix: &'a str,
    /// The client, as `address:port`; empty when unknown.
    pub client: &'a str,
    /// Deadline; 0 for none.
    pub deadline_unix_nano: u64,
    /// Its span in this process, which is kept until the module has ended the request; none when the process is not traced.
    pub span: Option<ActiveSpan>,
    /// Context to propagate when there is no span.
    pub context: Option<&'a TraceContext>,
    /// The W3C baggage; empty for none.
    pub baggage: &'a str,
    /// True if it has no body.
    pub is_last: bool,
}

impl RequestEvents {
    /// Returns whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Notes that a request begins.
    pub fn request<'h>(&mut self, new: NewRequest<'_>, headers: impl Iterator<Item = (&'h str, &'h [u8])>) {
        let headers = self.put_headers(headers);
        let (method, target) = (self.put(new.method.as_bytes()), self.put(new.target.as_bytes()));
        let (authority, request_id) = (self.put(new.authority.as_bytes()), self.put(new.request_id.as_bytes()));
        let (route_prefix, client) = (self.put(new.route_prefix.as_bytes()), self.put(new.client.as_bytes()));
        let baggage = self.put(new.baggage.as_bytes());
        let context = new.span.as_ref().map(ActiveSpan::context).or(new.context);
        let context = context.map(|context| ContextAt {
            context: abi::SpanContext {
                trace_id: context.parent.trace_id,
                span_id: context.parent.span_id,
                trace_flags: context.parent.flags,
                is_remote: u8::from(new.span.is_none()),
                ..abi::SpanContext::INVALID
            },
            trace_state: self.put(context.trace_state.as_bytes()),
        });
        self.heads.push(HeadAt {
            method,
            target,
            scheme: if new.is_secure { "https" } else { "http" },
            authority,
            version: new.version,
            has_length: new.has_length,
            request_id,
            route_prefix,
            client,
            deadline_unix_nano: new.deadline_unix_nano,
            span: new.span.as_ref().map_or(ptr::null_mut(), ActiveSpan::handle),
            context,
            baggage,
        });
        let head = Some(self.heads.len() - 1);
        let event = EventAt { head, headers, ..EventAt::new(abi::EVENT_REQUEST, new.number, new.is_last) };
        self.events.push(event);
        self.spans.extend(new.span.map(|span| (new.number, span)));
    }

    /// Notes that a piece of a request's body has come.
    pub fn body(&mut self, number: u64, piece: impl AsRef<[u8]> + Send + 'static, is_last: bool) {
        let event = EventAt::new(abi::EVENT_BODY, number, is_last);
        self.events.push(EventAt { piece: give(piece), ..event });
    }

    /// Notes that the body of a request has ended with trailers.
    pub fn trailers<'h>(&mut self, number: u64, trailers: impl Iterator<Item = (&'h str, &'h [u8])>) {
        let headers = self.put_headers(trailers);
        self.events.push(EventAt { headers, ..EventAt::new(abi::EVENT_BODY, number, true) });
    }

    /// Notes that the rest of a request's body will not come.
    pub fn body_cut(&mut self, number: u64) {
        self.events.push(EventAt::new(abi::EVENT_BODY_CUT, number, true));
    }

    /// Tells that there is room again for the response's body.
    pub fn room(&mut self, number: u64) {
        self.events.push(EventAt::new(abi::EVENT_ROOM, number, false));
    }

    /// Notes that nobody wants the response any more.
    pub fn gone(&mut self, number: u64) {
        self.events.push(EventAt::new(abi::EVENT_GONE, number, false));
    }

    /// Asks whether the handler is healthy.
    pub fn health(&mut self, order: u64) {
        self.events.push(EventAt::new(abi::EVENT_HEALTH, order, false));
    }

    /// Gives the handler settings, a MessagePack value.
    pub fn configure(&mut self, order: u64, settings: Vec<u8>) {
        let event = EventAt::new(abi::EVENT_CONFIGURE, order, true);
        self.events.push(EventAt { piece: give(settings), ..event });
    }

    /// No request is open and none will come.
    pub fn stop(&mut self) {
        self.events.push(EventAt::new(abi::EVENT_STOP, 0, false));
    }

    fn put(&mut self, text: &[u8]) -> At {
        let start = self.texts.len();
        self.texts.extend_from_slice(text);
        start..self.texts.len()
    }

    fn put_headers<'h>(&mut self, headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Range<usize> {
        let start = self.headers.len();
        for (name, value) in headers {
            let header = HeaderAt { name: self.put(name.as_bytes()), value: self.put(value) };
            self.headers.push(header);
        }
        start..self.headers.len()
    }

    /// Returns whether all were taken.
    pub(super) fn were_all_taken(&self) -> bool {
        self.laid_out.taken == self.laid_out.events.len()
    }

    /// Forgets those that were taken, which is all of them.
    pub(super) fn clear(&mut self) {
        self.texts.clear();
        self.headers.clear();
        self.heads.clear();
        self.events.clear();
        let LaidOut { headers, contexts, heads, events, taken } = &mut self.laid_out;
        headers.clear();
        contexts.clear();
        heads.clear();
        events.clear();
        *taken = 0;
    }

    /// Lays them out as the contract has them. Nothing is added after this.
    pub(super) fn lay_out(&mut self) {
        let RequestEvents { texts, headers, heads, events, laid_out, .. } = self;
        let bytes = |at: &At| abi::Bytes::new(&texts[at.clone()]);
        let text = |at: &At| {
            let abi::Bytes { ptr, len } = bytes(at);
            abi::Str { ptr, len }
        };
        let header = |header: &HeaderAt| abi::Header { name: text(&header.name), value: bytes(&header.value) };
        laid_out.headers.extend(headers.iter().map(header));
        let contexts = heads.iter().filter_map(|head| head.context.as_ref());
        let context = |at: &ContextAt| abi::SpanContext { trace_state: text(&at.trace_state), ..at.context };
        laid_out.contexts.extend(contexts.map(context));
        let mut contexts = laid_out.contexts.iter();
        laid_out.heads.extend(heads.iter().map(|head| abi::RequestHead {
            size: size_of::<abi::RequestHead>(),
            method: text(&head.method),
            target: text(&head.target),
            scheme: abi::Str::new(head.scheme),
            authority: text(&head.authority),
            version: head.version,
            has_length: head.has_length.into(),
            headers: ptr::null(),
            header_count: 0,
            request_id: text(&head.request_id),
            route_prefix: text(&head.route_prefix),
            client: text(&head.client),
            deadline_unix_nano: head.deadline_unix_nano,
            span: head.span,
            span_context: head.context.as_ref().and_then(|_| contexts.next()).map_or(ptr::null(), ptr::from_ref),
            baggage: text(&head.baggage),
        }));
        for event in &*events {
            let headers = &laid_out.headers[event.headers.clone()];
            if let Some(head) = event.head {
                let head = &mut laid_out.heads[head];
                (head.headers, head.header_count) = (headers.as_ptr(), headers.len());
            }
        }
        laid_out.events.extend(events.iter().map(|event| {
            let trailers = if event.head.is_some() { 0..0 } else { event.headers.clone() };
            let trailers = &laid_out.headers[trailers];
            abi::RequestEvent {
                size: size_of::<abi::RequestEvent>(),
                kind: event.kind,
                is_last: event.is_last.into(),
                number: event.number,
                head: event.head.map_or(ptr::null(), |head| &raw const laid_out.heads[head]),
                piece: event.piece,
                trailers: trailers.as_ptr(),
                trailer_count: trailers.len(),
            }
        }));
    }

    /// Takes the next ones, so many at most.
    pub(super) fn take(&mut self, capacity: usize) -> &[abi::RequestEvent] {
        let LaidOut { events, taken, .. } = &mut self.laid_out;
        let start = *taken;
        *taken = start.saturating_add(capacity).min(events.len());
        &events[start..*taken]
    }
}

impl EventAt {
    fn new(kind: u32, number: u64, is_last: bool) -> EventAt {
        EventAt { kind, is_last, number, head: None, piece: abi::Piece::EMPTY, headers: 0..0 }
    }
}

/// Hands bytes over as a piece.
pub(super) fn give<B: AsRef<[u8]> + Send + 'static>(bytes: B) -> abi::Piece {
    // In its place before its bytes are asked for, which may be inside of it.
    let owner = Box::new(bytes);
    let bytes: &[u8] = (*owner).as_ref();
    let (ptr, len) = (bytes.as_ptr(), bytes.len());
    if len == 0 {
        return abi::Piece::EMPTY;
    }
    abi::Piece { bytes: abi::Bytes { ptr, len }, owner: Box::into_raw(owner).cast(), release: Some(release::<B>) }
}

/// Called from: any thread of the module's, once for each piece.
unsafe extern "C" fn release<B>(owner: *mut c_void) {
    // SAFETY: made by `give` of this type, and released once, by contract of the ABI.
    drop(unsafe { Box::<B>::from_raw(owner.cast()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a text of the contract.
    fn text(text: abi::Str) -> String {
        // SAFETY: the events are there.
        String::from_utf8(unsafe { text.as_bytes() }.to_vec()).unwrap()
    }

    fn get(number: u64) -> NewRequest<'static> {
        NewRequest {
            number,
            method: "GET",
            target: "/a?b",
            is_secure: true,
            authority: "here",
            version: 11,
            has_length: false,
            request_id: "r",
            route_prefix: "/",
            client: "1.2.3.4:5",
            deadline_unix_nano: 7,
            span: None,
            context: None,
            baggage: "k=v",
            is_last: false,
        }
    }

    #[test]
    fn events_say_what_was_put_into_them_and_are_taken_in_parts() {
        let mut events = RequestEvents::default();
        for round in 0..3_u64 {
            events.request(get(round), [("a", &b"1"[..]), ("b", b"")].into_iter());
            events.body(round, vec![1, 2, 3], false);
            events.trailers(round, [("sum", &b"6"[..])].into_iter());
            events.gone(round);
            events.lay_out();
            let taken: Vec<_> = [2, 1, 9]
                .iter()
                .flat_map(|&count| events.take(count).iter().map(ptr::from_ref).collect::<Vec<_>>())
                .collect();
            assert!(events.were_all_taken() && events.take(9).is_empty());
            // SAFETY: they are there until the next are put together.
            let taken: Vec<&abi::RequestEvent> = taken.iter().map(|&event| unsafe { &*event }).collect();
            let kinds: Vec<_> = taken.iter().map(|event| (event.kind, event.is_last, event.number)).collect();
            let (first, body) = (abi::EVENT_REQUEST, abi::EVENT_BODY);
            assert_eq!(kinds, [(first, 0, round), (body, 0, round), (body, 1, round), (abi::EVENT_GONE, 0, round)]);
            // SAFETY: as above, for the head and the headers.
            let (head, headers) = unsafe {
                let head = &*taken[0].head;
                (head, std::slice::from_raw_parts(head.headers, head.header_count))
            };
            assert_eq!(
                (text(head.target), text(head.scheme), text(head.baggage)),
                ("/a?b".into(), "https".into(), "k=v".into())
            );
            assert_eq!(headers.iter().map(|header| text(header.name)).collect::<Vec<_>>(), ["a", "b"]);
            assert!(head.span.is_null() && head.span_context.is_null());
            assert_eq!(taken[2].trailer_count, 1);
            let piece = taken[1].piece;
            // SAFETY: the piece is this side's, and given back once.
            unsafe {
                assert_eq!(piece.bytes.as_bytes(), [1, 2, 3]);
                piece.release.unwrap()(piece.owner);
            }
            events.clear();
        }
    }
}
