//! The host's table for a replica, in types of Rust.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tracer_abi as abi;

use crate::task::Failure;

/// Headers that are handed over without an allocation.
const INLINE_HEADERS: usize = 24;

/// The functions and settings that the host has lent to this replica, which live as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct HostTable {
    raw: &'static abi::Serving,
    unsent: &'static Unsent,
}

/// Flag of answers since the last flush, which wakes the loop if it sleeps.
#[derive(Default)]
struct Unsent {
    is_there: AtomicBool,
    is_asleep: AtomicBool,
    noted: Notify,
}

// SAFETY: the contract allows calls from any thread; those for one request do not overlap, because its future makes them.
unsafe impl Send for HostTable {}
// SAFETY: as above.
unsafe impl Sync for HostTable {}

/// The host's answer to a piece of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// The client reads too slowly; an event says when to try again.
    Full,
    /// Nobody wants the rest.
    No,
}

impl Taken {
    fn of(status: Option<u32>) -> Taken {
        match status {
            Some(abi::STATUS_OK) => Taken::Yes,
            Some(abi::STATUS_FULL) => Taken::Full,
            _ => Taken::No,
        }
    }
}

impl HostTable {
    /// # Safety
    ///
    /// `serving` is as [`abi::Deployment::on_serve`] promises.
    pub(crate) unsafe fn new(serving: *const abi::Serving) -> HostTable {
        // SAFETY: promised by the caller.
        let raw = Box::leak(Box::new(unsafe { crate::host::read_sized(serving) }));
        HostTable { raw, unsent: Box::leak(Box::default()) }
    }

    pub(crate) fn settings(&self) -> &'static abi::Serving {
        self.raw
    }

    /// Readable while there are events.
    pub(crate) fn event_fd(&self) -> Result<BorrowedFd<'static>, Failure> {
        let fd = self.raw.event_fd;
        if fd < 0 {
            return Err(Failure::runtime("the host lends no event descriptor"));
        }
        // SAFETY: the host's descriptor, which is open while the process lives.
        Ok(unsafe { BorrowedFd::borrow_raw(fd) })
    }

    pub(crate) fn ready(&self) {
        if let Some(ready) = self.raw.host_ready {
            // SAFETY: the host's function with its own data.
            unsafe { ready(self.raw.data) };
        }
    }

    /// Returns whether something was answered since this was asked last.
    pub(crate) fn take_unsent(&self) -> bool {
        self.unsent.is_there.swap(false, Ordering::SeqCst)
    }

    pub(crate) fn flush(&self) {
        if let Some(flush) = self.raw.host_flush {
            // SAFETY: the host's function with its own data.
            unsafe { flush(self.raw.data) };
        }
    }

    /// Returns whether to look for events again before sleeping.
    pub(crate) fn look(&self) -> bool {
        // SAFETY: the host's function with its own data.
        self.raw.host_look.is_some_and(|look| unsafe { look(self.raw.data) } != 0)
    }

    /// Waits until something is answered that was not flushed.
    pub(crate) async fn answered(&self) {
        self.unsent.is_asleep.store(true, Ordering::SeqCst);
        while !self.unsent.is_there.load(Ordering::SeqCst) {
            self.unsent.noted.notified().await;
        }
    }

    /// Says that the loop is awake.
    pub(crate) fn stay_awake(&self) {
        self.unsent.is_asleep.store(false, Ordering::SeqCst);
    }

    /// Wakes the loop, which sleeps perhaps, to flush.
    fn note_answer(&self) {
        if !self.unsent.is_there.swap(true, Ordering::SeqCst) && self.unsent.is_asleep.swap(false, Ordering::SeqCst) {
            self.unsent.noted.notify_one();
        }
    }

    /// Fills `events` with the next ones, which are valid until the next call.
    pub(crate) fn take_events(&self, events: &mut [*const abi::RequestEvent]) -> usize {
        let Some(take) = self.raw.host_take_events else { return 0 };
        // SAFETY: the host's function with its own data, and a place for as many as is said.
        unsafe { take(self.raw.data, events.as_mut_ptr(), events.len()) }
    }

    pub(crate) fn respond(&self, request: u64, status: u16, headers: &HeaderMap, is_last: bool) -> Taken {
        let headers = raw_headers(headers);
        let head = abi::ResponseHead {
            size: size_of::<abi::ResponseHead>(),
            status: status.into(),
            is_last: is_last.into(),
            headers: headers.as_ptr(),
            header_count: headers.len(),
        };
        // SAFETY: the host's function with its own data; the head outlives the call.
        let taken = Taken::of(self.raw.host_respond.map(|respond| unsafe { respond(self.raw.data, request, &head) }));
        self.note_answer();
        taken
    }

    /// Offers a piece of the body. It comes back unless the host has taken it.
    pub(crate) fn send(&self, request: u64, bytes: Bytes) -> Result<(), (Taken, Bytes)> {
        let Some(send) = self.raw.host_send else { return Err((Taken::No, bytes)) };
        let piece = give(bytes);
        // SAFETY: the host's function with its own data; the piece is the host's from now on, if it takes it.
        match Taken::of(Some(unsafe { send(self.raw.data, request, &piece) })) {
            Taken::Yes => {
                self.note_answer();
                Ok(())
            }
            // SAFETY: the piece was made by `give`, and the host has not taken it.
            refused => Err((refused, unsafe { *take_back(&piece) })),
        }
    }

    pub(crate) fn end(&self, request: u64, trailers: Option<&HeaderMap>) {
        let trailers = trailers.map(raw_headers).unwrap_or_default();
        if let Some(end) = self.raw.host_end {
            // SAFETY: the host's function with its own data; the trailers outlive the call.
            unsafe { end(self.raw.data, request, trailers.as_ptr(), trailers.len()) };
        }
        self.note_answer();
    }

    pub(crate) fn fail(&self, request: u64, failure: &Failure) {
        if let Some(fail) = self.raw.host_fail {
            // SAFETY: the host's function with its own data; the error outlives the call.
            failure.lend(|error| unsafe { fail(self.raw.data, request, error) });
        }
        self.note_answer();
    }

    pub(crate) fn consumed(&self, request: u64, bytes: usize) {
        if let Some(consumed) = self.raw.host_consumed.filter(|_| bytes > 0) {
            // SAFETY: the host's function with its own data.
            unsafe { consumed(self.raw.data, request, bytes) };
        }
    }

    pub(crate) fn set_route(&self, request: u64, route: &str) {
        if let Some(set_route) = self.raw.host_set_route {
            // SAFETY: the host's function with its own data; the text outlives the call.
            unsafe { set_route(self.raw.data, request, abi::Str::new(route)) };
        }
    }

    /// Answers an order of the host's: a question for the health, or settings.
    pub(crate) fn answer(&self, order: u64, outcome: Result<(), Failure>) {
        let Some(answer) = self.raw.host_answer else { return };
        let (status, reason) = match outcome {
            Ok(()) => (abi::STATUS_OK, String::new()),
            Err(failure) => (abi::STATUS_FAILED, failure.message),
        };
        // SAFETY: the host's function with its own data; the text outlives the call.
        unsafe { answer(self.raw.data, order, status, abi::Str::new(&reason)) };
        self.note_answer();
    }
}

fn raw_headers(headers: &HeaderMap) -> SmallVec<[abi::Header; INLINE_HEADERS]> {
    let raw = |(name, value): (&HeaderName, &HeaderValue)| abi::Header {
        name: abi::Str::new(name.as_str()),
        value: abi::Bytes::new(value.as_bytes()),
    };
    headers.iter().map(raw).collect()
}

/// Names that most requests have, since the proxy or the client of a trace adds them, and that are none of HTTP's own.
static USUAL_NAMES: [HeaderName; 7] = [
    HeaderName::from_static("baggage"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-request-id"),
];

/// Returns a header's name, without an allocation if it is a usual one.
fn header_name(name: &[u8]) -> Option<HeaderName> {
    let usual = USUAL_NAMES.iter().find(|usual| usual.as_str().as_bytes() == name);
    usual.cloned().or_else(|| HeaderName::from_bytes(name).ok())
}

/// Returns the headers that the host shows. One that is none is left out: the host has checked them. Their values share one buffer.
///
/// # Safety
///
/// `headers` points to `count` headers, which are readable with their texts.
pub(crate) unsafe fn read_headers(headers: *const abi::Header, count: usize) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(count);
    // SAFETY: promised by the caller.
    let headers = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(headers, count) } };
    let mut values = BytesMut::with_capacity(headers.iter().map(|header| header.value.len).sum());
    for header in headers {
        // SAFETY: promised by the caller.
        let (name, value) = unsafe { (header.name.as_bytes(), header.value.as_bytes()) };
        values.extend_from_slice(value);
        let value = HeaderValue::from_maybe_shared(values.split().freeze());
        if let (Some(name), Ok(value)) = (header_name(name), value) {
            map.append(name, value);
        }
    }
    map
}

/// A piece of the host's, released when it is dropped.
struct Held(abi::Piece);

// SAFETY: the contract allows the release from any thread, and the bytes do not change.
unsafe impl Send for Held {}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: readable until the piece is released.
        unsafe { self.0.bytes.as_bytes() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = self.0.release {
            // SAFETY: the host's function with its own owner, once.
            unsafe { release(self.0.owner) };
        }
    }
}

/// Takes a piece of the host's over.
///
/// # Safety
///
/// The piece is this side's, and nobody else takes it over.
pub(crate) unsafe fn take_over(piece: abi::Piece) -> Bytes {
    if piece.bytes.len == 0 {
        drop(Held(piece));
        return Bytes::new();
    }
    Bytes::from_owner(Held(piece))
}

/// Hands bytes over as a piece.
fn give(bytes: Bytes) -> abi::Piece {
    let (ptr, len) = (bytes.as_ptr(), bytes.len());
    let owner = Box::into_raw(Box::new(bytes)).cast();
    abi::Piece { bytes: abi::Bytes { ptr, len }, owner, release: Some(release) }
}

/// # Safety
///
/// `piece` was made by [`give`] and is not used any more.
unsafe fn take_back(piece: &abi::Piece) -> Box<Bytes> {
    // SAFETY: promised by the caller.
    unsafe { Box::from_raw(piece.owner.cast()) }
}

/// Called from: any thread of the host's, once for each piece that it took.
unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: the host keeps to the contract of `Piece::release`.
    drop(unsafe { Box::<Bytes>::from_raw(owner.cast()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_the_host_shows_them() {
        let shown: [(&str, &[u8]); 7] = [
            ("host", b"example.org"),
            ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("x-own", b""),
            ("x-own", b"second \xff"),
            ("not a name", b"1"),
            ("x-line", b"one\ntwo"),
            ("x-request-id", b"r1"),
        ];
        let raw = shown.map(|(name, value)| abi::Header { name: abi::Str::new(name), value: abi::Bytes::new(value) });
        // SAFETY: they are readable with their texts.
        let map = unsafe { read_headers(raw.as_ptr(), raw.len()) };
        let read: Vec<_> = map.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let is_header = |(name, value): &(&str, &[u8])| !name.contains(' ') && !value.contains(&b'\n');
        assert_eq!(read, shown.into_iter().filter(is_header).collect::<Vec<_>>());
    }
}
