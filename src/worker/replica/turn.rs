//! One turn of the loop: reads what has come over lanes and control socket, and makes events of it.

use std::io::{ErrorKind, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Duration;

use rustc_hash::FxHashMap;
use rustix::event::{Timespec, epoll};
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};
use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_core::propagation::TraceContext;
use tracer_host::hook::{ActiveSpan, NewRequest, RequestEvents};
use tracer_ipc::claims::{CLAIM_COUNT, ClaimState, SharedClaims};
use tracer_ipc::lane::{self, Body, Frame, Headers, LaneError, Opening, Reset, frames};
use tracer_ipc::serving::{ReplicaOrder, ReplicaReport};
use tracer_ipc::{control, fault};

use super::inbox::{Frames, Inbox};
use super::lane::{Lane, send_unsent};
use super::request::{Gone, Request, number};
use super::span::{self, Context, Ending, Facts};
use super::{CONTROL, FIRST_CONFIGURE, FIRST_HEALTH, LANES, Replica, TIMER, WAKE};

/// The length of a `traceparent`.
const TRACE_PARENT: usize = 55;
/// Sources of events that are looked at in one turn.
const READY: usize = 64;

/// State of the loop's thread alone.
#[derive(Default)]
pub(super) struct Turns {
    readers: FxHashMap<u32, Reader>,
    /// Lanes that have more to read, though nothing says so.
    more: Vec<u32>,
    last_lane: u32,
    /// True if the last turn took all there was.
    was_busy: bool,
    has_stopped: bool,
    /// Settings that came before anything else.
    pub(super) first_settings: Option<Vec<u8>>,
    /// True when the handler is to be asked whether it is well, before the replica is ready.
    pub(super) asks_for_first_health: bool,
}

/// Reader of a lane.
struct Reader {
    lane: Arc<Lane>,
    inbox: Inbox,
    /// True when the caller sends no more requests.
    is_draining: bool,
}

impl Replica {
    /// Takes what has come, and makes events of it.
    pub(super) fn turn(&self, turns: &mut Turns, events: &mut RequestEvents) {
        if let Some(settings) = turns.first_settings.take() {
            events.configure(FIRST_CONFIGURE, settings);
        }
        if std::mem::take(&mut turns.asks_for_first_health) {
            events.health(FIRST_HEALTH);
        }
        // Whoever has taken events asks again, to hear that there are no more. What has come in between makes the descriptor readable again.
        if turns.was_busy && turns.more.is_empty() && !self.is_stopping.load(Acquire) {
            turns.was_busy = false;
            return;
        }
        loop {
            let mut ready = [const { MaybeUninit::<epoll::Event>::uninit() }; READY];
            let at_once = Timespec::default();
            let found = match epoll::wait(&self.epoll, &mut ready, Some(&at_once)) {
                Ok((found, _)) => found,
                Err(_) => return,
            };
            let more = std::mem::take(&mut turns.more);
            let is_idle = found.is_empty() && more.is_empty();
            for id in more {
                self.read_lane(turns, id, events);
            }
            for event in &*found {
                match event.data.u64() {
                    CONTROL => self.read_control(turns, events),
                    WAKE => {
                        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                    }
                    TIMER => self.time_is_up(turns, events),
                    token => {
                        let id = (token - LANES) as u32;
                        let flags = event.flags;
                        if flags.contains(epoll::EventFlags::OUT) {
                            self.write_lane(turns, id, events);
                        }
                        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                            self.read_lane(turns, id, events);
                        }
                    }
                }
            }
            self.flush_lanes();
            self.stop_if_idle(turns, events);
            if is_idle || !events.is_empty() {
                turns.was_busy = !events.is_empty();
                return;
            }
        }
    }

    /// Ends the loop when it is to end and nothing is open.
    fn stop_if_idle(&self, turns: &mut Turns, events: &mut RequestEvents) {
        if turns.has_stopped || !self.is_stopping.load(Acquire) || !self.is_idle() {
            return;
        }
        turns.has_stopped = true;
        events.stop();
    }

    fn read_control(&self, turns: &mut Turns, events: &mut RequestEvents) {
        loop {
            let (order, mut files) = match control::receive::<ReplicaOrder>(&self.control) {
                Ok(Some(received)) => received,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(None) => self.end_without_head("the head is gone"),
                Err(error) => self.end_without_head(&format!("an order of the head cannot be read: {error}")),
            };
            match order {
                ReplicaOrder::Begin => eprintln!("tracer: warning: a second order to begin was passed over"),
                ReplicaOrder::Lane { caller } => {
                    if let Err(error) = self.add_lane(turns, files) {
                        eprintln!("tracer: a lane from caller {caller} cannot be used: {error}");
                    }
                }
                ReplicaOrder::Health { order } if self.has_health => {
                    self.expect_answer(order);
                    events.health(order);
                }
                ReplicaOrder::Health { order } => self.report(&ReplicaReport::Answered { order, failure: None }),
                ReplicaOrder::Configure { order } => {
                    match files.pop().map_or(Err("it came without a file".into()), super::settings) {
                        _ if !self.is_configurable => {
                            let failure = Some(super::not_configurable(&self.names));
                            self.report(&ReplicaReport::Answered { order, failure });
                        }
                        Ok(settings) => {
                            self.expect_answer(order);
                            events.configure(order, settings);
                        }
                        Err(reason) => {
                            let failure = Some(format!("the settings cannot be read: {reason}"));
                            self.report(&ReplicaReport::Answered { order, failure });
                        }
                    }
                }
                ReplicaOrder::Tell => {
                    let said = lock(&self.said).clone();
                    if let Some(said) = said {
                        self.report(&said);
                    }
                }
                ReplicaOrder::Drain { timeout } => self.drain(timeout),
            }
        }
    }

    fn add_lane(&self, turns: &mut Turns, mut files: Vec<std::os::fd::OwnedFd>) -> std::io::Result<()> {
        let (Some(claims), Some(stream), None) = (files.pop(), files.pop(), files.pop()) else {
            return Err(std::io::Error::other("expected a socket and a file of claims"));
        };
        turns.last_lane += 1;
        let id = turns.last_lane;
        let lane = Arc::new(Lane::new(id, stream, SharedClaims::attach(claims)?)?);
        let data = epoll::EventData::new_u64(LANES + u64::from(id));
        epoll::add(&self.epoll, lane.as_fd(), data, epoll::EventFlags::IN)?;
        self.lanes_mut().insert(id, Arc::clone(&lane));
        if self.is_stopping.load(Acquire) {
            lane.state().outbox.frame(lane::put_drain);
            self.note(&lane);
        }
        turns.readers.insert(id, Reader { lane, inbox: Inbox::default(), is_draining: false });
        Ok(())
    }

    /// Takes no more requests, and sees to it that those there are do not take longer than `timeout`.
    fn drain(&self, timeout: Duration) {
        if self.is_stopping.swap(true, Release) {
            return;
        }
        for lane in self.lanes().values() {
            lane.state().outbox.frame(lane::put_drain);
            self.note(lane);
        }
        // A time of nothing would be no time.
        let timeout = timeout.max(Duration::from_nanos(1));
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let value = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        let timer = Itimerspec { it_interval: Timespec::default(), it_value: value };
        if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer) {
            eprintln!("tracer: warning: nothing bounds the time in which requests end: {error}");
        }
    }

    /// Cancels what has not ended in time.
    fn time_is_up(&self, turns: &mut Turns, events: &mut RequestEvents) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        for Reader { lane, .. } in turns.readers.values() {
            let ids: Vec<u32> = lane.state().requests.keys().copied().collect();
            for id in ids {
                self.give_up(lane, id, Gone::Timeout, events);
                lane.state().outbox.frame(|out| lane::put_reset(out, id, Reset::Timeout));
            }
            self.note(lane);
        }
    }

    /// Notes that nobody wants the answer to a request any more.
    fn give_up(&self, lane: &Lane, id: u32, gone: Gone, events: &mut RequestEvents) {
        let mut state = lane.state();
        let Some(request) = state.requests.get_mut(&id) else { return };
        if request.is_open() {
            if request.gone.is_none() {
                request.gone = Some(gone);
                let is_over = request.incoming.is_over();
                let unsent = std::mem::take(&mut request.unsent);
                drop(state);
                drop(unsent);
                let number = number(lane.id, id);
                if !is_over {
                    events.body_cut(number);
                }
                events.gone(number);
            }
            return;
        }
        let request = state.requests.remove(&id);
        drop(state);
        if let Some(Request { end: super::request::End::Sending { span: Some(span), .. }, facts, .. }) = request {
            span::end(span, &facts, &Ending::Gone(gone));
        }
    }

    fn write_lane(&self, turns: &mut Turns, id: u32, events: &mut RequestEvents) {
        let Some(reader) = turns.readers.get(&id) else { return };
        let lane = Arc::clone(&reader.lane);
        self.flush_lane(&lane);
        let mut state = lane.state();
        let starved = if state.is_blocked { Vec::new() } else { std::mem::take(&mut state.starved) };
        for id in starved {
            let request = state.requests.get_mut(&id).filter(|request| request.is_open());
            if request.is_some_and(|request| std::mem::take(&mut request.wants_room)) {
                events.room(number(lane.id, id));
            }
        }
    }

    fn read_lane(&self, turns: &mut Turns, id: u32, events: &mut RequestEvents) {
        let Some(reader) = turns.readers.get_mut(&id) else { return };
        let why = match reader.inbox.read_from(&reader.lane.stream) {
            Ok(0) => Some(None),
            Ok(_) => {
                if reader.inbox.is_full() {
                    turns.more.push(id);
                }
                self.take_frames(reader, events).err().map(Some)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => None,
            Err(_) => Some(None),
        };
        if let Some(reason) = why {
            if let Some(reason) = reason {
                eprintln!("tracer: a lane was closed: {reason}");
            }
            self.close_lane(turns, id, events);
        }
    }

    fn close_lane(&self, turns: &mut Turns, id: u32, events: &mut RequestEvents) {
        turns.more.retain(|&other| other != id);
        let Some(Reader { lane, .. }) = turns.readers.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, lane.as_fd());
        let _ = lane.stream.shutdown(std::net::Shutdown::Both);
        let ids: Vec<u32> = lane.state().requests.keys().copied().collect();
        for id in ids {
            self.give_up(&lane, id, Gone::Client, events);
        }
        let mut state = lane.state();
        state.is_closed = true;
        state.is_blocked = false;
        let slices = state.outbox.clear();
        drop(state);
        drop(slices);
        self.forget_if_over(&lane);
    }

    fn take_frames(&self, reader: &mut Reader, events: &mut RequestEvents) -> Result<(), LaneError> {
        let Reader { lane, inbox, is_draining } = reader;
        let Some(whole) = inbox.take_whole()? else { return Ok(()) };
        for frame in frames(&whole) {
            self.take_frame(lane, is_draining, (&frame?, &whole), events)?;
        }
        Ok(())
    }

    fn take_frame(
        &self,
        lane: &Arc<Lane>,
        is_draining: &mut bool,
        (frame, whole): (&Frame<'_>, &Frames<'_>),
        events: &mut RequestEvents,
    ) -> Result<(), LaneError> {
        let id = frame.request;
        match &frame.body {
            Body::Open(_, _) if *is_draining => Err(LaneError::Order("OPEN")),
            Body::Open(opening, headers) => self.open(lane, frame, opening, headers, events),
            Body::Head(..) => Err(LaneError::Order("HEAD")),
            Body::Drain => {
                *is_draining = true;
                Ok(())
            }
            Body::Reset(reset) => {
                let gone = if *reset == Reset::Timeout { Gone::Timeout } else { Gone::Client };
                self.give_up(lane, id, gone, events);
                Ok(())
            }
            Body::Credit(bytes) => self.take_credit(lane, id, *bytes, events),
            Body::Data(piece) => self.take_body(
                lane,
                frame,
                piece.len(),
                |number, is_last, events: &mut RequestEvents| match whole.share(piece) {
                    Some(piece) => events.body(number, piece, is_last),
                    None => events.body(number, piece.to_vec(), is_last),
                },
                events,
            ),
            Body::Trailers(trailers) => self.take_body(
                lane,
                frame,
                0,
                |number, _, events: &mut RequestEvents| events.trailers(number, trailers.iter()),
                events,
            ),
        }
    }

    /// Takes a part of a request's body. One of a request that has ended meanwhile is passed over.
    fn take_body(
        &self,
        lane: &Arc<Lane>,
        frame: &Frame<'_>,
        bytes: usize,
        tell: impl FnOnce(u64, bool, &mut RequestEvents),
        events: &mut RequestEvents,
    ) -> Result<(), LaneError> {
        let mut state = lane.state();
        let Some(request) = state.requests.get_mut(&frame.request) else { return Ok(()) };
        request.incoming.on_frame(frame)?;
        request.facts.request_bytes += bytes as u64;
        if request.is_open() && request.gone.is_none() {
            drop(state);
            tell(number(lane.id, frame.request), frame.is_last, events);
            return Ok(());
        }
        let credit = request.incoming.took(u32::try_from(bytes).unwrap_or(u32::MAX));
        if request.incoming.is_over() && !request.is_unanswered() {
            state.requests.remove(&frame.request);
        } else if let Some(credit) = credit {
            state.outbox.frame(|out| lane::put_credit(out, frame.request, credit));
            drop(state);
            self.note(lane);
        }
        Ok(())
    }

    fn take_credit(&self, lane: &Arc<Lane>, id: u32, bytes: u32, events: &mut RequestEvents) -> Result<(), LaneError> {
        let mut done = Vec::new();
        let mut state = lane.state();
        let super::lane::State { requests, outbox, .. } = &mut *state;
        let Some(request) = requests.get_mut(&id) else { return Ok(()) };
        request.outgoing.on_credit(bytes)?;
        if request.unsent.is_empty() {
            return Ok(());
        }
        send_unsent(id, request, outbox, &mut done);
        let (is_sent, is_open) = (request.unsent.is_empty(), request.is_open());
        let has_room = is_sent && is_open && std::mem::take(&mut request.wants_room);
        drop(state);
        drop(done);
        if has_room {
            events.room(number(lane.id, id));
        }
        if is_sent && !is_open {
            lane.finish(id);
        }
        self.note(lane);
        Ok(())
    }

    /// Begins a request: its span first, then the claim, then the event.
    fn open(
        &self,
        lane: &Arc<Lane>,
        frame: &Frame<'_>,
        opening: &Opening<'_>,
        headers: &Headers<'_>,
        events: &mut RequestEvents,
    ) -> Result<(), LaneError> {
        let id = frame.request;
        let mut state = lane.state();
        if state.requests.contains_key(&id) || state.requests.len() >= CLAIM_COUNT {
            return Err(LaneError::Order("OPEN"));
        }
        let is_call = opening.version == 0;
        if self.is_stopping.load(Acquire) {
            state.outbox.frame(|out| lane::put_reset(out, id, Reset::Refused));
            drop(state);
            self.note(lane);
            return Ok(());
        }
        drop(state);
        // The caller has taken it back, and gives it to another replica.
        if lane.claims.state(id.into()) != Some(ClaimState::Granted) {
            return Ok(());
        }
        let began_unix_nano = now_unix_nano();
        let context = Context::of(opening, headers);
        let facts = Facts::new(began_unix_nano, &context);
        if is_call && !self.takes_calls {
            if lane.claims.claim(id.into()) {
                lane.refuse_call(id, opening.target);
                self.note(lane);
            }
            return Ok(());
        }
        let span = self.recorder.map(|recorder| span::start(recorder, &self.names, opening, &context, began_unix_nano));
        fault::point("handling_span_begun");
        if !lane.claims.claim(id.into()) {
            if let Some(span) = span {
                span::end(span, &facts, &Ending::NotBegun);
            }
            return Ok(());
        }
        fault::point("handling_claimed");
        let passed_on = span.as_ref().map(ActiveSpan::context).or(context.parent.as_ref());
        let mut room = [0; TRACE_PARENT];
        let trace_parent = passed_on.and_then(|context| written(&mut room, context));
        let has_own = trace_parent.is_some();
        let own = trace_parent.into_iter().map(|text| ("traceparent", text));
        let others = headers.iter().filter(|(name, _)| !has_own || *name != "traceparent");
        let new = NewRequest {
            number: number(lane.id, id),
            method: opening.method,
            target: opening.target,
            is_secure: opening.is_secure,
            authority: opening.authority,
            version: opening.version.into(),
            has_length: context.has_length,
            request_id: opening.request_id,
            route_prefix: self.names.route_prefix,
            client: opening.client,
            deadline_unix_nano: opening.deadline_unix_nano,
            span,
            context: context.parent.as_ref(),
            baggage: &context.baggage,
            is_last: frame.is_last,
        };
        self.spinning.request_began();
        lane.state().requests.insert(id, Request::new(frame.is_last, facts));
        events.request(new, own.chain(others));
        Ok(())
    }
}

/// Returns a context as the header has it.
fn written<'r>(room: &'r mut [u8; TRACE_PARENT], context: &TraceContext) -> Option<&'r [u8]> {
    write!(&mut room[..], "{}", context.parent).ok()?;
    Some(room)
}
