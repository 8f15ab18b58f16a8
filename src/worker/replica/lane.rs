//! The replica's end of a lane: the requests that came over it, and the frames that go back.
//!
//! Frames are read by the loop's thread alone. Answers are queued by any thread, and written by whoever flushes. Neither a span is ended nor
//! a piece of a module's given back while the lane is locked, because both call code of others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, mem};

use rustc_hash::FxHashMap;
use tracer_core::request_names::{OUTCOME_HEADER, OUTCOME_PROGRAM_FAILED, ROUTE_HEADER};
use tracer_core::task::Failure;
use tracer_core::{http_field, value};
use tracer_host::hook::{ActiveSpan, Answered, ModuleHeaders, ModulePiece, ModuleResponse, client_text};
use tracer_ipc::claims::SharedClaims;
use tracer_ipc::fault;
use tracer_ipc::lane::{self, HEADER_LIMIT, LANE_FRAME_LIMIT, Reset};

use super::outbox::{FrameAt, Outbox, Slice};
use super::request::{End, Gone, Request};
use super::span::{self, Ending, Facts};

/// The most bytes of bodies that wait to be written to one lane.
const WAITING_LIMIT: usize = 16 << 20;
/// Headers that belong to a connection, which is not the lane's.
const OF_CONNECTION: [&[u8]; 5] = [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"];

/// A lane.
pub(super) struct Lane {
    pub(super) id: u32,
    pub(super) stream: UnixStream,
    pub(super) claims: SharedClaims,
    state: Mutex<State>,
    /// True while it is among those that are to be flushed.
    is_dirty: AtomicBool,
}

/// State behind the lock.
#[derive(Default)]
pub(super) struct State {
    pub(super) requests: FxHashMap<u32, Request>,
    pub(super) outbox: Outbox,
    /// True while the socket takes nothing.
    pub(super) is_blocked: bool,
    pub(super) is_closed: bool,
    /// Requests that wait for room because the lane has too much to write.
    pub(super) starved: Vec<u32>,
    /// Time at which an answer began last.
    answered_unix_nano: u64,
    /// Requests whose spans are being ended, after which their last frames are queued.
    ending: usize,
}

/// The end of a request that the module has ended.
struct Finishing {
    trailers: Option<Vec<(String, Vec<u8>)>>,
    span: Option<ActiveSpan>,
    facts: Facts,
    last_frame: Option<FrameAt>,
}

impl Lane {
    pub(super) fn new(id: u32, stream: OwnedFd, claims: SharedClaims) -> io::Result<Lane> {
        let stream = UnixStream::from(stream);
        stream.set_nonblocking(true)?;
        Ok(Lane { id, stream, claims, state: Mutex::default(), is_dirty: AtomicBool::new(false) })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // What the lock guards is whole after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it is closed and the module has ended all its requests.
    pub(super) fn is_over(&self) -> bool {
        let state = self.state();
        state.is_closed && state.requests.is_empty()
    }

    /// Returns whether every answer is written, or nobody wants it any more. One whose last frame is about to be queued, by another thread, is not written.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        if state.is_closed {
            return state.requests.values().all(|request| !request.is_open());
        }
        state.ending == 0 && state.outbox.is_empty() && state.requests.values().all(|request| !request.is_unanswered())
    }

    /// Returns whether it was clean, and is dirty from now on.
    pub(super) fn becomes_dirty(&self) -> bool {
        !self.is_dirty.swap(true, AcqRel)
    }

    /// Writes what there is, once. `arm` is told, while the lane is locked, when the socket begins or ends to take nothing.
    pub(super) fn flush(&self, arm: impl FnOnce(bool)) {
        self.is_dirty.store(false, Release);
        let mut done = Vec::new();
        let mut state = self.state();
        if state.is_closed || state.outbox.is_empty() {
            return;
        }
        let was_blocked = state.is_blocked;
        match state.outbox.write(&mut &self.stream, &mut done) {
            Ok(is_all) => {
                fault::point("handling_written");
                state.is_blocked = !is_all;
            }
            // The caller is gone, which the next read finds.
            Err(_) => {
                done.extend(state.outbox.clear());
                state.is_blocked = false;
            }
        }
        if state.is_blocked != was_blocked {
            arm(state.is_blocked);
        }
        drop(state);
        drop(done);
    }

    /// Begins a response.
    pub(super) fn respond(&self, id: u32, response: &ModuleResponse<'_>) -> Answered {
        fault::point("handler_answered");
        let mut state = self.state();
        let State { requests, outbox, is_closed, answered_unix_nano, .. } = &mut *state;
        let Some(request) = requests.get_mut(&id).filter(|request| request.gone.is_none() && !*is_closed) else {
            return Answered::Gone;
        };
        match sendable(response, request.has_head) {
            Ok((status, headers)) => {
                let headers = headers.iter().map(|(name, value)| (&**name, *value));
                request.facts.grpc_status(headers.clone());
                request.facts.has_program_failed = headers.clone().any(|(name, _)| name == OUTCOME_HEADER);
                let route = request.facts.route.clone().filter(|_| headers.len() < HEADER_LIMIT);
                let route = route.as_ref().map(|route| (ROUTE_HEADER, route.as_bytes()));
                let headers = headers.chain(route);
                request.last_frame = Some(outbox.frame(|out| lane::put_head(out, id, false, status, headers)));
                request.has_head = true;
                let now = request.facts.head(status);
                self.claims.note_handled(now.saturating_sub(request.facts.began_unix_nano.max(*answered_unix_nano)));
                *answered_unix_nano = now;
                Answered::Taken
            }
            Err(message) => {
                let type_name = "InvalidResponse".into();
                request.refused = Some(Failure::Error { type_name, message, stacktrace: String::new() });
                Answered::Unsendable
            }
        }
    }

    /// Takes a piece of a response's body.
    pub(super) fn send(&self, id: u32, piece: ModulePiece) -> Result<(), (Answered, ModulePiece)> {
        let mut done = Vec::new();
        let mut state = self.state();
        let State { requests, outbox, is_closed, starved, .. } = &mut *state;
        let request = requests.get_mut(&id).filter(|request| request.gone.is_none() && request.has_head);
        let Some(request) = request.filter(|request| request.is_open() && !*is_closed) else {
            return Err((Answered::Gone, piece));
        };
        let unsent: usize = request.unsent.iter().map(|slice| slice.bytes().len()).sum();
        if unsent > 0 || outbox.waiting() > WAITING_LIMIT {
            request.wants_room = true;
            if unsent == 0 {
                starved.push(id);
            }
            return Err((Answered::Full, piece));
        }
        if piece.is_empty() {
            done.push(Slice::Whole(piece));
        } else {
            request.facts.pieces += 1;
            request.unsent.push_back(Slice::Whole(piece));
            send_unsent(id, request, outbox, &mut done);
        }
        drop(state);
        Ok(())
    }

    /// Ends a response in good order, as far as there is credit.
    pub(super) fn end(&self, id: u32, trailers: ModuleHeaders<'_>, span: Option<ActiveSpan>) -> Answered {
        let trailers = (!trailers.is_empty()).then(|| checked_trailers(trailers));
        let mut state = self.state();
        let is_closed = state.is_closed;
        let Some(request) = state.requests.get_mut(&id).filter(|request| request.is_open()) else {
            drop(state);
            drop(span);
            return Answered::Gone;
        };
        if let Some(gone) = request.gone.or(is_closed.then_some(Gone::Client)) {
            let request = state.requests.remove(&id);
            drop(state);
            end_span(span, request.as_ref(), &Ending::Gone(gone));
            return Answered::Gone;
        }
        if !request.has_head {
            drop(state);
            let message = "the handler ended its response before it began it".into();
            let failure = Failure::Error { type_name: "InvalidResponse".into(), message, stacktrace: String::new() };
            self.fail(id, failure, span);
            return Answered::Unsendable;
        }
        request.end = End::Sending { trailers, span };
        drop(state);
        self.finish(id);
        Answered::Taken
    }

    /// Ends a request that the module has ended, if nothing of its body waits for credit: its span first, then the last frame.
    pub(super) fn finish(&self, id: u32) {
        let Some(mut finishing) = self.take_finished(id) else { return };
        if let Some(span) = finishing.span.take() {
            let trailers = finishing.trailers.iter().flatten().map(|(name, value)| (&**name, &**value));
            finishing.facts.grpc_status(trailers);
            span::end(span, &finishing.facts, &Ending::Whole);
        }
        fault::point("handling_span_ended");
        self.queue_last(id, finishing);
    }

    /// Takes what is left to do for a request that the module has ended, if nothing of its body waits for credit. Until [`Lane::queue_last`] has it, the lane is
    /// not idle.
    fn take_finished(&self, id: u32) -> Option<Finishing> {
        let mut state = self.state();
        let request = state.requests.get_mut(&id).filter(|request| request.unsent.is_empty())?;
        if !matches!(request.end, End::Sending { .. }) {
            return None;
        }
        let End::Sending { trailers, span } = mem::replace(&mut request.end, End::Answered) else { return None };
        let facts = mem::take(&mut request.facts);
        let (last_frame, is_over) = (request.last_frame, request.incoming.is_over());
        if is_over {
            state.requests.remove(&id);
        }
        state.ending += 1;
        Some(Finishing { trailers, span, facts, last_frame })
    }

    /// Queues the last frame of a request whose span has ended.
    fn queue_last(&self, id: u32, Finishing { trailers, last_frame, .. }: Finishing) {
        let mut state = self.state();
        state.ending -= 1;
        let outbox = &mut state.outbox;
        match trailers {
            Some(trailers) => {
                let trailers = trailers.iter().map(|(name, value)| (&**name, &**value));
                outbox.frame(|out| lane::put_trailers(out, id, trailers));
            }
            None if last_frame.is_some_and(|frame| outbox.set_last(frame)) => {}
            None => {
                outbox.frame(|out| out.extend_from_slice(&lane::data_header(id, true, 0)));
            }
        }
    }

    /// Ends a request without a whole response.
    pub(super) fn fail(&self, id: u32, failure: Failure, span: Option<ActiveSpan>) {
        let mut state = self.state();
        let is_closed = state.is_closed;
        let Some(mut request) = state.requests.remove(&id) else {
            drop(state);
            return drop(span);
        };
        state.ending += 1;
        drop(state);
        let gone = request.gone.or(is_closed.then_some(Gone::Client));
        if let Some(gone) = gone {
            end_span(span, Some(&request), &Ending::Gone(gone));
            self.state().ending -= 1;
            return;
        }
        let failure = request.refused.take().unwrap_or(failure);
        end_span(span, Some(&request), &Ending::Failed(&failure));
        if request.facts.is_call && !request.has_head {
            let mut state = self.state();
            state.ending -= 1;
            return put_failure(&mut state.outbox, id, &failure);
        }
        let reset = if request.has_head { Reset::BodyFailed } else { Reset::HandlerFailed };
        let mut state = self.state();
        state.ending -= 1;
        state.outbox.frame(|out| lane::put_reset(out, id, reset));
    }

    /// Answers a call of a method of a deployment that takes none.
    pub(super) fn refuse_call(&self, id: u32, method: &str) {
        let message = format!("the deployment has no method `{method}`; it takes requests of HTTP alone");
        let failure = Failure::Error { type_name: "NoSuchMethod".into(), message, stacktrace: String::new() };
        put_failure(&mut self.state().outbox, id, &failure);
    }

    /// Notes that the module has used so many bytes of a request's body. Returns whether there is credit to be written.
    pub(super) fn consumed(&self, id: u32, bytes: usize) -> bool {
        let mut state = self.state();
        let State { requests, outbox, .. } = &mut *state;
        let Some(request) = requests.get_mut(&id) else { return false };
        let credit = request.incoming.took(u32::try_from(bytes).unwrap_or(u32::MAX));
        if let Some(credit) = credit {
            outbox.frame(|out| lane::put_credit(out, id, credit));
        }
        credit.is_some()
    }

    /// Notes the handler's route.
    pub(super) fn set_route(&self, id: u32, route: &str) {
        let route = client_text(route);
        if let Some(request) = self.state().requests.get_mut(&id).filter(|_| http_field::is_value(route.as_bytes())) {
            request.facts.route = Some(route.to_owned());
        }
    }
}

impl AsFd for Lane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Queues as much of a body as there is credit for. What is not needed any more goes to `done`.
pub(super) fn send_unsent(id: u32, request: &mut Request, outbox: &mut Outbox, done: &mut Vec<Slice>) {
    while let Some(slice) = request.unsent.pop_front() {
        let length = slice.bytes().len();
        let now = request.outgoing.take(length);
        if now == 0 {
            return request.unsent.push_front(slice);
        }
        let slice = if now < length {
            let (first, rest) = slice.split(now);
            request.unsent.push_front(rest);
            first
        } else {
            slice
        };
        request.facts.response_bytes += now as u64;
        let (frame, given_back) = outbox.data(id, slice);
        request.last_frame = Some(frame);
        done.extend(given_back);
    }
}

/// The most bytes of the message of a call's failure.
const FAILURE_LIMIT: usize = 16 << 10;

/// Queues the answer to a call that has failed: type and message.
fn put_failure(outbox: &mut Outbox, id: u32, failure: &Failure) {
    let mut message = failure.to_string();
    let cut = (0..=FAILURE_LIMIT.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
    message.truncate(cut.unwrap_or(0));
    let bytes = value::to_bytes(&(failure.error_type(), message)).unwrap_or_default();
    let none: [(&str, &[u8]); 0] = [];
    outbox.frame(|out| lane::put_head(out, id, false, 500, none));
    outbox.frame(|out| {
        out.extend_from_slice(&lane::data_header(id, true, bytes.len()));
        out.extend_from_slice(&bytes);
    });
}

fn end_span(span: Option<ActiveSpan>, request: Option<&Request>, ending: &Ending<'_>) {
    if let Some(span) = span {
        let none = Facts::default();
        span::end(span, request.map_or(&none, |request| &request.facts), ending);
    }
}

/// Returns a name of HTTP in lower case, if it is one.
fn lower_case(name: &[u8]) -> Option<std::borrow::Cow<'_, str>> {
    if !http_field::is_token(name) {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?;
    let has_upper = name.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if has_upper { name.to_ascii_lowercase().into() } else { name.into() })
}

type Sendable<'a> = (u16, Vec<(std::borrow::Cow<'a, str>, &'a [u8])>);

/// Status and headers of a response, or why it cannot be sent.
fn sendable<'a>(response: &ModuleResponse<'a>, has_head: bool) -> Result<Sendable<'a>, String> {
    if has_head {
        return Err("the handler began its response twice".into());
    }
    let is_status = |status: &u16| (100..1000).contains(status) && lane::is_final(*status);
    let status = u16::try_from(response.status).ok().filter(is_status);
    let status =
        status.ok_or_else(|| format!("expected a status from 200 to 999, or 101, found {}", response.status))?;
    let mut headers = Vec::new();
    let mut bytes = 0;
    for (name, value) in response.headers.iter() {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let name = lower_case(name).ok_or_else(|| format!("the response has a header with the name {:?}", shown()))?;
        if !http_field::is_value(value) {
            return Err(format!("the value of the response's header `{name}` has control characters"));
        }
        let is_own = name == ROUTE_HEADER || (name == OUTCOME_HEADER && *value != *OUTCOME_PROGRAM_FAILED.as_bytes());
        if OF_CONNECTION.contains(&name.as_bytes()) || is_own {
            continue;
        }
        bytes += name.len() + value.len() + 16;
        headers.push((name, value));
    }
    if headers.len() > HEADER_LIMIT || bytes > LANE_FRAME_LIMIT / 2 {
        let count = headers.len();
        return Err(format!(
            "the response has {count} headers of {bytes} bytes, expected {HEADER_LIMIT} of {} at most",
            LANE_FRAME_LIMIT / 2
        ));
    }
    Ok((status, headers))
}

/// Trailers, without those that cannot be sent.
fn checked_trailers(trailers: ModuleHeaders<'_>) -> Vec<(String, Vec<u8>)> {
    let checked = trailers.iter().filter(|(_, value)| http_field::is_value(value));
    let checked = checked.filter_map(|(name, value)| Some((lower_case(name)?.into_owned(), value.to_vec())));
    let mut bytes = 0;
    checked
        .take_while(|(name, value)| {
            bytes += name.len() + value.len() + 16;
            bytes <= LANE_FRAME_LIMIT / 2
        })
        .take(HEADER_LIMIT)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_not_idle_until_the_last_frame_of_each_answer_is_written() {
        let (own, _other) = UnixStream::pair().unwrap();
        let (claims, _file) = SharedClaims::create().unwrap();
        let lane = Lane::new(1, own.into(), claims).unwrap();
        let mut request = Request::new(true, Facts::default());
        request.end = End::Sending { trailers: None, span: None };
        lane.state().requests.insert(7, request);
        assert!(!lane.is_idle(), "it is not answered");
        let finishing = lane.take_finished(7).expect("the module has ended it");
        assert!(!lane.is_idle(), "its span is being ended by another thread");
        lane.queue_last(7, finishing);
        assert!(!lane.is_idle(), "its last frame is not written");
        lane.flush(|_| ());
        assert!(lane.is_idle());
    }
}
