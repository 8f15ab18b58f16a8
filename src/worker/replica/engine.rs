//! The engine of a replica: reads its lanes and orders when the module asks for events, and writes answers when the module says so.
//!
//! Everything happens on threads of the module's: one takes events, any may answer. What they share is behind one lock, under which nothing of the
//! module runs; pieces of the module's are dropped after it. The descriptor that the module waits on is an epoll instance over the
//! lanes, the control socket, a timer for the end of a drain, and an event descriptor for what happens outside of `take_events`.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};
use tracer_core::propagation::TRACEPARENT;
use tracer_ipc::serving::{ReplicaBegin, ReplicaOrder, ReplicaReport};

use super::commits::Commits;
use super::lane::Lane;
use super::report_to;
use super::request::{Request, RequestSpans, context_of, joined};
use crate::claims::{ClaimState, SharedClaims};
use crate::control;
use crate::fault;
use crate::hook::{Head, LoadedDeployment, ModulePiece, Recorder, ReplicaEvent, ReplicaHost, Taken, lend};
use crate::lane::{
    self, Body, Frame, HEADER_LIMIT, Headers, LANE_FRAME_LIMIT, LaneError, Opening, Reset, put_drain, put_head,
    put_reset, put_trailers,
};
use crate::task::Failure;

// What the epoll instance watches besides lanes, whose tokens follow.
const CONTROL: u64 = 0;
const TIMER: u64 = 1;
const WAKE: u64 = 2;
const LANES: u64 = 3;

/// Events of the kernel that are taken at a time.
const READY: usize = 64;
/// The order by which settings are given before the replica is ready; none of the head's.
const FIRST_SETTINGS: u64 = u64::MAX;
/// The question for health that is asked before the replica is ready.
const FIRST_HEALTH: u64 = u64::MAX - 1;

/// Headers that belong to one connection (RFC 9110, section 7.6.1).
const OF_CONNECTION: [&str; 6] = ["connection", "keep-alive", "proxy-connection", "te", "transfer-encoding", "upgrade"];

pub(super) struct Engine {
    deployment: LoadedDeployment,
    route_prefix: String,
    spans: Option<RequestSpans>,
    commits: Option<Commits>,
    epoll: OwnedFd,
    control: OwnedFd,
    timer: OwnedFd,
    wake: OwnedFd,
    state: Mutex<State>,
}

struct State {
    lanes: HashMap<u32, Lane>,
    next_lane: u32,
    requests: HashMap<u64, Request>,
    events: VecDeque<ReplicaEvent>,
    /// Requests with a piece that was not put into their lane yet.
    unsent: Vec<u64>,
    /// Lanes with something to write.
    unwritten: Vec<u32>,
    /// What to report when the handler is made and well.
    ready: Option<ReplicaReport>,
    settings: Option<Vec<u8>>,
    /// No request is taken any more.
    is_draining: bool,
    has_stopped: bool,
    failure: Option<String>,
    /// Pieces to give back, without the lock.
    done: Vec<Arc<ModulePiece>>,
}

impl Engine {
    pub(super) fn start(
        control: OwnedFd,
        begin: &ReplicaBegin,
        deployment: LoadedDeployment,
        ready: ReplicaReport,
        recorder: Option<&'static Recorder>,
    ) -> io::Result<Engine> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        rustix::io::ioctl_fionbio(&control, true)?;
        for (fd, token) in [(&control, CONTROL), (&timer, TIMER), (&wake, WAKE)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        }
        let settings = begin.deployment.user_config.as_ref().map(super::to_message_pack).transpose();
        let settings = settings.map_err(io::Error::other)?;
        if settings.is_some() && !deployment.is_configurable() {
            return Err(io::Error::other(
                "the deployment has a `user_config`, and its handler takes none\n(hint: give it `pub async fn reconfigure(&self, settings: …)`)",
            ));
        }
        Ok(Engine {
            deployment,
            route_prefix: begin.route_prefix.clone(),
            spans: recorder.map(|recorder| RequestSpans::new(recorder, begin)),
            commits: recorder.map(Commits::start).transpose()?,
            epoll,
            control,
            timer,
            wake,
            state: Mutex::new(State {
                lanes: HashMap::new(),
                next_lane: 0,
                requests: HashMap::new(),
                events: VecDeque::new(),
                unsent: Vec::new(),
                unwritten: Vec::new(),
                ready: Some(ready),
                settings,
                is_draining: false,
                has_stopped: false,
                failure: None,
                done: Vec::new(),
            }),
        })
    }

    /// What the module waits on.
    pub(super) fn event_fd(&'static self) -> BorrowedFd<'static> {
        self.epoll.as_fd()
    }

    /// Why the replica could not get ready, if it could not.
    pub(super) fn failure(&self) -> Option<String> {
        self.lock().failure.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` with the lock, then gives back, without it, the pieces that it was done with.
    fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.lock();
        let result = work(&mut state);
        let done = std::mem::take(&mut state.done);
        drop(state);
        drop(done);
        result
    }

    /// Makes the descriptor readable that the module waits on.
    fn wake_up(&self) {
        // It fails when it is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn report(&self, report: &ReplicaReport) {
        if report_to(&self.control, report).is_err() {
            end_without_head();
        }
    }

    /// Takes in what the kernel has. False when that is nothing.
    fn poll(&self, state: &mut State) -> bool {
        let mut ready: [epoll::Event; READY] =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; READY];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok(count) = epoll::wait(&self.epoll, &mut ready[..], Some(&at_once)) else { return true };
        for event in &ready[..count] {
            let (token, flags) = (event.data.u64(), event.flags);
            match token {
                CONTROL => self.take_orders(state),
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
                    state.end_all(Reset::Timeout);
                }
                WAKE => drop(rustix::io::read(&self.wake, &mut [0_u8; 8])),
                token => {
                    let id = (token - LANES) as u32;
                    if flags.contains(epoll::EventFlags::OUT) {
                        self.write(state, id);
                    }
                    if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                        self.read_lane(state, id);
                    }
                }
            }
        }
        count > 0
    }

    fn take_orders(&self, state: &mut State) {
        loop {
            match control::receive::<ReplicaOrder>(&self.control) {
                Ok(Some((order, files))) => self.take_order(state, order, files),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => end_without_head(),
            }
        }
    }

    fn take_order(&self, state: &mut State, order: ReplicaOrder, mut files: Vec<OwnedFd>) {
        match order {
            // Twice is as good as once.
            ReplicaOrder::Begin => {}
            ReplicaOrder::Lane { caller } => {
                let taken = match (files.pop(), files.pop()) {
                    (Some(claims), Some(socket)) => self.add_lane(state, socket, &claims),
                    _ => Err(io::ErrorKind::InvalidInput.into()),
                };
                if let Err(error) = taken {
                    eprintln!("tracer: the lane from caller {caller} cannot be used: {error}");
                }
            }
            ReplicaOrder::Health { order } if self.deployment.has_health() => {
                state.events.push_back(ReplicaEvent::Health(order));
            }
            // That it is said here shows that the module's loop runs.
            ReplicaOrder::Health { order } => self.report(&ReplicaReport::Answered { order, failure: None }),
            ReplicaOrder::Configure { order } => {
                let settings = files.pop().ok_or_else(|| "no settings came along".to_owned());
                let settings = settings.and_then(|file| {
                    let json: serde_json::Value = control::receive_long(file).map_err(|error| error.to_string())?;
                    super::to_message_pack(&json)
                });
                match settings {
                    Ok(settings) if self.deployment.is_configurable() => {
                        state.events.push_back(ReplicaEvent::Configure(order, settings));
                    }
                    Ok(_) => {
                        let failure = Some("its handler takes no settings".into());
                        self.report(&ReplicaReport::Answered { order, failure });
                    }
                    Err(failure) => self.report(&ReplicaReport::Answered { order, failure: Some(failure) }),
                }
            }
            ReplicaOrder::Drain { timeout } => {
                state.is_draining = true;
                for (id, lane) in &mut state.lanes {
                    lane.put(put_drain);
                    state.unwritten.push(*id);
                }
                self.write_all(state);
                let at = Timespec {
                    tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: i64::from(timeout.subsec_nanos()).max(1),
                };
                let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
                let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
                state.stop_if_drained();
            }
        }
    }

    fn add_lane(&self, state: &mut State, socket: OwnedFd, claims: &OwnedFd) -> io::Result<()> {
        let lane = Lane::new(socket, SharedClaims::attach(claims)?)?;
        let id = state.next_lane;
        state.next_lane += 1;
        let token = epoll::EventData::new_u64(LANES + u64::from(id));
        epoll::add(&self.epoll, lane.socket(), token, epoll::EventFlags::IN)?;
        state.lanes.insert(id, lane);
        Ok(())
    }

    fn read_lane(&self, state: &mut State, id: u32) {
        let Some(lane) = state.lanes.get_mut(&id) else { return };
        let is_open = loop {
            match lane.read() {
                Ok(true) if lane.inbox.is_full() => {}
                Ok(is_open) => break is_open,
                Err(_) => break false,
            }
        };
        // Taken out, so that frames are borrowed from it while requests change.
        let mut inbox = std::mem::take(&mut lane.inbox);
        let taken = loop {
            match inbox.next_frame(LANE_FRAME_LIMIT) {
                Ok(Some((kind, body))) => {
                    let taken = Frame::decode(kind, body).and_then(|frame| self.take_frame(state, id, &frame));
                    if let Err(error) = taken {
                        break Err(error.to_string());
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error.to_string()),
            }
        };
        if let Some(lane) = state.lanes.get_mut(&id) {
            lane.inbox = inbox;
        }
        if let Err(reason) = &taken {
            eprintln!("tracer: a caller's lane is closed: {reason}");
        }
        if !is_open || taken.is_err() {
            self.close(state, id);
        }
    }

    /// A lane is of no use any more: nobody wants the answers to its requests.
    fn close(&self, state: &mut State, id: u32) {
        let Some(lane) = state.lanes.remove(&id) else { return };
        let _ = epoll::delete(&self.epoll, lane.socket());
        let of_lane: Vec<u64> =
            state.requests.iter().filter(|(_, request)| request.lane == id).map(|(key, _)| *key).collect();
        for key in of_lane {
            state.give_up(key, Reset::ClientGone);
        }
    }

    fn take_frame(&self, state: &mut State, id: u32, frame: &Frame<'_>) -> Result<(), LaneError> {
        let key = key_of(id, frame.request);
        match frame.body {
            Body::Open(opening, headers) => return self.begin(state, id, frame, &opening, &headers),
            Body::Head(..) => return Err(LaneError::Order("HEAD")),
            Body::Drain => return Ok(()),
            Body::Data(_) | Body::Trailers(_) | Body::Credit(_) | Body::Reset(_) => {}
        }
        // What comes late, for a request that has ended here.
        let Some(request) = state.requests.get_mut(&key) else { return Ok(()) };
        request.incoming.on_frame(frame)?;
        match frame.body {
            Body::Data(piece) => {
                request.received_bytes += piece.len() as u64;
                let event = ReplicaEvent::Body {
                    number: key,
                    piece: piece.to_vec(),
                    trailers: Vec::new(),
                    is_last: frame.is_last,
                };
                state.push_unless_gone(key, event);
            }
            Body::Trailers(trailers) => {
                let trailers = trailers.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
                state.push_unless_gone(
                    key,
                    ReplicaEvent::Body { number: key, piece: Vec::new(), trailers, is_last: true },
                );
            }
            Body::Credit(bytes) => {
                request.outgoing.on_credit(bytes)?;
                state.send_piece(key);
                self.write_all(state);
            }
            Body::Reset(reason) => state.give_up(key, reason),
            _ => {}
        }
        Ok(())
    }

    /// Takes a request: opens its span, claims it, and tells the module.
    fn begin(
        &self,
        state: &mut State,
        id: u32,
        frame: &Frame<'_>,
        opening: &Opening<'_>,
        headers: &Headers<'_>,
    ) -> Result<(), LaneError> {
        let (number, key) = (frame.request, key_of(id, frame.request));
        if state.requests.contains_key(&key) {
            return Err(LaneError::Order("OPEN"));
        }
        let is_draining = state.is_draining;
        let Some(lane) = state.lanes.get_mut(&id) else { return Ok(()) };
        if is_draining {
            lane.put(|out| put_reset(out, number, Reset::Refused));
            state.unwritten.push(id);
            self.write_all(state);
            return Ok(());
        }
        // The caller may have taken it back already; then there is nothing to open a span for.
        if lane.claims.state(u64::from(number)) != Some(ClaimState::Granted) {
            return Ok(());
        }
        let (parent, baggage) = (context_of(opening, headers), joined(headers, "baggage"));
        fault::point("before_request_span");
        let span = self.spans.as_ref().map(|spans| spans.start(opening, parent.as_ref(), &baggage));
        fault::point("after_request_span");
        if !lane.claims.claim(u64::from(number)) {
            if let Some(span) = span {
                let outcome = crate::hook::Attribute::Str(tracer_core::request_names::OUTCOME_NOT_BEGUN);
                span.set_attributes(&[(tracer_core::request_names::OUTCOME, outcome)]);
            }
            return Ok(());
        }
        fault::point("after_request_claim");
        let context = span.as_ref().map(|span| span.context().clone()).or(parent);
        let own = |(name, value): (&str, &[u8])| match &context {
            Some(context) if name == TRACEPARENT => (name.to_owned(), context.parent.to_string().into_bytes()),
            _ => (name.to_owned(), value.to_vec()),
        };
        let mut all: Vec<_> = headers.iter().map(own).collect();
        if let Some(context) = context.as_ref().filter(|_| !all.iter().any(|(name, _)| name == TRACEPARENT)) {
            all.push((TRACEPARENT.to_owned(), context.parent.to_string().into_bytes()));
        }
        let head = Box::new(Head {
            method: opening.method.to_owned(),
            target: opening.target.to_owned(),
            scheme: if opening.is_secure { "https" } else { "http" },
            authority: opening.authority.to_owned(),
            version: opening.version.into(),
            headers: all,
            request_id: opening.request_id.to_owned(),
            route_prefix: self.route_prefix.clone(),
            client: opening.client.to_owned(),
            deadline_unix_nano: opening.deadline_unix_nano,
            span: lend(span.as_ref()),
            context,
            baggage,
        });
        state.requests.insert(key, Request::new(id, number, frame.is_last, span));
        state.events.push_back(ReplicaEvent::Request { number: key, head, is_last: frame.is_last });
        Ok(())
    }

    /// Writes what waits in each lane.
    fn write_all(&self, state: &mut State) {
        for id in std::mem::take(&mut state.unwritten) {
            if state.lanes.get(&id).is_some_and(|lane| !lane.waits_to_write) {
                self.write(state, id);
            }
        }
    }

    fn write(&self, state: &mut State, id: u32) {
        let Some(lane) = state.lanes.get_mut(&id) else { return };
        let (waited, was_full) = (lane.waits_to_write, lane.is_full());
        if lane.write(&mut state.done).is_err() {
            return self.close(state, id);
        }
        if waited != lane.waits_to_write {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, lane.waits_to_write);
            let token = epoll::EventData::new_u64(LANES + u64::from(id));
            let _ = epoll::modify(&self.epoll, lane.socket(), token, flags);
        }
        if was_full && !lane.is_full() {
            let of_lane: Vec<u64> =
                state.requests.iter().filter(|(_, request)| request.lane == id).map(|(key, _)| *key).collect();
            of_lane.into_iter().for_each(|key| state.send_piece(key));
        }
    }

    /// The handler is made: gives it its first settings and asks whether it is well, then says so.
    fn get_ready(&self, state: &mut State) {
        if let Some(settings) = state.settings.take() {
            state.events.push_back(ReplicaEvent::Configure(FIRST_SETTINGS, settings));
        } else if self.deployment.has_health() {
            state.events.push_back(ReplicaEvent::Health(FIRST_HEALTH));
        } else {
            self.say_ready(state);
        }
    }

    fn say_ready(&self, state: &mut State) {
        if let Some(ready) = state.ready.take() {
            self.report(&ready);
        }
    }
}

impl ReplicaHost for Engine {
    fn ready(&self) {
        self.with(|state| self.get_ready(state));
        self.wake_up();
    }

    fn take_events(&self, limit: usize, events: &mut Vec<ReplicaEvent>) {
        self.with(|state| {
            while state.events.is_empty() && self.poll(state) {}
            self.write_all(state);
            let count = state.events.len().min(limit);
            events.extend(state.events.drain(..count));
        });
    }

    fn respond(&self, key: u64, status: u32, headers: &[(&str, &[u8])], is_last: bool) -> Taken {
        self.with(|state| {
            let Some(request) = state.requests.get_mut(&key) else { return Taken::Gone };
            if request.gone.is_some() {
                return Taken::Gone;
            }
            if request.has_head {
                return Taken::No;
            }
            let checked = check_head(status, headers);
            let (status, headers) = match checked {
                Ok(checked) => checked,
                Err(reason) => {
                    request.unfit = Some(reason);
                    return Taken::No;
                }
            };
            let number = request.number;
            request.begin_answer(status);
            let headers = headers.iter().map(|(name, value)| (name.as_str(), *value));
            if is_last {
                let mut alone = Vec::new();
                put_head(&mut alone, number, true, status, headers);
                request.head_alone = Some(alone);
            } else if let Some(lane) = state.lanes.get_mut(&request.lane) {
                lane.put(|out| put_head(out, number, false, status, headers));
                state.unwritten.push(request.lane);
            }
            Taken::Yes
        })
    }

    fn send(&self, key: u64, piece: ModulePiece) -> Result<(), (Taken, ModulePiece)> {
        self.with(|state| {
            state.send_piece(key);
            let Some(request) = state.requests.get_mut(&key).filter(|request| request.gone.is_none()) else {
                return Err((Taken::Gone, piece));
            };
            if !request.has_head || request.trailers.is_some() || request.head_alone.is_some() {
                return Err((Taken::No, piece));
            }
            if request.piece.is_some() {
                request.wants_room = true;
                return Err((Taken::Full, piece));
            }
            // It is put into the lane with the next piece, the end, or the flush: so the last one carries the end.
            request.piece = Some((Arc::new(piece), 0));
            state.unsent.push(key);
            Ok(())
        })
    }

    fn end(&self, key: u64, trailers: &[(&str, &[u8])]) -> Taken {
        self.with(|state| {
            let Some(request) = state.requests.get_mut(&key) else { return Taken::Gone };
            if request.gone.is_some() {
                state.forget(key, &Failure::Cancelled);
                return Taken::Gone;
            }
            let is_fit = |(name, value): &&(&str, &[u8])| is_name(name) && is_value(value);
            let fit = trailers.iter().filter(is_fit).take(HEADER_LIMIT);
            request.trailers = Some(fit.map(|(name, value)| (name.to_lowercase(), value.to_vec())).collect());
            state.send_piece(key);
            Taken::Yes
        })
    }

    fn fail(&self, key: u64, failure: Failure) {
        self.with(|state| state.forget(key, &failure));
    }

    fn consumed(&self, key: u64, bytes: usize) {
        self.with(|state| {
            let Some(request) = state.requests.get_mut(&key) else { return };
            let Some(credit) = request.incoming.took(u32::try_from(bytes).unwrap_or(u32::MAX)) else { return };
            let (id, number) = (request.lane, request.number);
            if let Some(lane) = state.lanes.get_mut(&id) {
                lane.put(|out| lane::put_credit(out, number, credit));
                state.unwritten.push(id);
                // Whoever reads a body may wait for the rest of it before anything is answered.
                self.write_all(state);
            }
        });
    }

    fn set_route(&self, key: u64, route: &str) {
        self.with(|state| {
            if let Some(request) = state.requests.get_mut(&key) {
                request.set_route(route);
            }
        });
    }

    fn answer(&self, order: u64, failure: Option<String>) {
        self.with(|state| match (order, failure) {
            (FIRST_SETTINGS, None) if self.deployment.has_health() => {
                state.events.push_back(ReplicaEvent::Health(FIRST_HEALTH));
            }
            (FIRST_SETTINGS | FIRST_HEALTH, None) => self.say_ready(state),
            (FIRST_SETTINGS, Some(reason)) => {
                state.fail(format!("its handler does not take its `user_config`: {reason}"))
            }
            (FIRST_HEALTH, Some(reason)) => state.fail(format!("its handler is not well: {reason}")),
            (order, failure) => self.report(&ReplicaReport::Answered { order, failure }),
        });
        self.wake_up();
    }

    fn flush(&self) {
        let has_events = self.with(|state| {
            for key in std::mem::take(&mut state.unsent) {
                state.send_piece(key);
            }
            self.write_all(state);
            !state.events.is_empty()
        });
        if let Some(commits) = &self.commits {
            commits.ask();
        }
        if has_events {
            self.wake_up();
        }
    }
}

impl State {
    fn push_unless_gone(&mut self, key: u64, event: ReplicaEvent) {
        if self.requests.get(&key).is_some_and(|request| request.gone.is_none()) {
            self.events.push_back(event);
        }
    }

    /// Nobody wants the answer to a request any more.
    fn give_up(&mut self, key: u64, reason: Reset) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        if request.gone.is_none() {
            request.gone = Some(reason);
            self.done.extend(request.piece.take().map(|(piece, _)| piece));
            if request.trailers.is_some() {
                // The module has ended it: only its last bytes were still to be sent.
                self.forget(key, &Failure::Cancelled);
            } else {
                self.events.push_back(ReplicaEvent::Gone(key));
            }
        }
    }

    fn end_all(&mut self, reason: Reset) {
        let all: Vec<u64> = self.requests.keys().copied().collect();
        for key in all {
            if let Some(request) = self.requests.get(&key)
                && let Some(lane) = self.lanes.get_mut(&request.lane)
            {
                let number = request.number;
                lane.put(|out| put_reset(out, number, reason));
                self.unwritten.push(request.lane);
            }
            self.give_up(key, reason);
        }
    }

    /// The module has failed to answer a request, or has dropped what handled it.
    fn forget(&mut self, key: u64, failure: &Failure) {
        let Some(mut request) = self.requests.remove(&key) else { return };
        request.fail_span(failure);
        if request.gone.is_none()
            && let Some(lane) = self.lanes.get_mut(&request.lane)
        {
            let reset =
                if request.has_head && request.head_alone.is_none() { Reset::BodyFailed } else { Reset::HandlerFailed };
            lane.put(|out| put_reset(out, request.number, reset));
            self.unwritten.push(request.lane);
        }
        self.done.extend(request.piece.take().map(|(piece, _)| piece));
        self.stop_if_drained();
    }

    /// Puts into the lane what there is credit for of the answer's body, and its end.
    fn send_piece(&mut self, key: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let Some(lane) = self.lanes.get_mut(&request.lane) else { return };
        let (id, number) = (request.lane, request.number);
        let ends = |request: &Request| request.trailers.as_ref().is_some_and(Vec::is_empty);
        let mut has_ended = false;
        while let Some((piece, sent)) = &mut request.piece {
            let count = if lane.is_full() { 0 } else { request.outgoing.take(piece.len() - *sent) };
            if count == 0 && *sent < piece.len() {
                break;
            }
            let (range, is_whole) = (*sent..*sent + count, *sent + count == piece.len());
            let piece = Arc::clone(piece);
            *sent += count;
            request.sent_bytes += count as u64;
            has_ended = is_whole && ends(request);
            if has_ended {
                fault::point("before_request_span_end");
                request.end_span();
                fault::point("before_last_frame");
            }
            lane.put_data(number, has_ended, &piece, range);
            self.unwritten.push(id);
            if is_whole {
                request.piece = None;
            }
            self.done.push(piece);
        }
        if request.piece.is_some() {
            return;
        }
        if let Some(trailers) = request.trailers.as_ref().filter(|_| !has_ended).cloned() {
            has_ended = true;
            request.end_span();
            let pairs = trailers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
            match request.head_alone.take() {
                Some(head) => lane.put(|out| out.extend_from_slice(&head)),
                None if trailers.is_empty() => {
                    lane.put(|out| out.extend_from_slice(&lane::data_header(number, true, 0)))
                }
                None => lane.put(|out| put_trailers(out, number, pairs)),
            }
            self.unwritten.push(id);
        }
        if has_ended {
            self.requests.remove(&key);
            self.stop_if_drained();
        } else if std::mem::take(&mut request.wants_room) {
            self.events.push_back(ReplicaEvent::Room(key));
        }
    }

    fn stop_if_drained(&mut self) {
        if self.is_draining && self.requests.is_empty() && !std::mem::replace(&mut self.has_stopped, true) {
            self.events.push_back(ReplicaEvent::Stop);
        }
    }

    /// The replica cannot get ready.
    fn fail(&mut self, reason: String) {
        self.failure = Some(reason);
        self.is_draining = true;
        self.stop_if_drained();
    }
}

/// The number by which the module knows a request: unique while the process lives.
fn key_of(lane: u32, request: u32) -> u64 {
    u64::from(lane) << 32 | u64::from(request)
}

/// A status and headers, with names in lower case, as they may be sent.
type FitHead<'a> = (u16, Vec<(String, &'a [u8])>);

/// Checks the head of an answer, and leaves out what belongs to the connection.
fn check_head<'a>(status: u32, headers: &[(&str, &'a [u8])]) -> Result<FitHead<'a>, String> {
    let fit = u16::try_from(status).ok().filter(|status| (200..1000).contains(status));
    let status =
        fit.ok_or_else(|| format!("the handler has answered with the status {status}, expected 200 to 999"))?;
    let mut all = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        if !is_name(name) || !is_value(value) {
            let name = name.escape_debug();
            return Err(format!("the handler has answered with a header `{name}` that has bytes which none may have"));
        }
        let name = name.to_ascii_lowercase();
        if !OF_CONNECTION.contains(&name.as_str()) {
            all.push((name, *value));
        }
    }
    if all.len() > HEADER_LIMIT {
        return Err(format!("the handler has answered with {} headers, expected {HEADER_LIMIT} at most", all.len()));
    }
    let bytes: usize = all.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    if bytes > LANE_FRAME_LIMIT / 2 {
        return Err(format!(
            "the handler has answered with {bytes} bytes of headers, expected {} at most",
            LANE_FRAME_LIMIT / 2
        ));
    }
    Ok((status, all))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn is_value(value: &[u8]) -> bool {
    value.iter().all(|&byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}

/// The head is gone, and takes this process along.
fn end_without_head() -> ! {
    eprintln!("tracer: the head of this replica is gone");
    std::process::exit(crate::exit::FAILED.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_answers_are_checked_and_lose_what_belongs_to_the_connection() {
        let headers: [(&str, &[u8]); 3] =
            [("X-One", b"1"), ("Connection", b"close"), ("transfer-encoding", b"chunked")];
        assert_eq!(check_head(201, &headers), Ok((201, vec![("x-one".into(), &b"1"[..])])));
        for (status, headers, reason) in [
            (101, vec![], "the status 101"),
            (1000, vec![], "the status 1000"),
            (200, vec![("a b", &b"x"[..])], "`a b`"),
            (200, vec![("a", &b"x\r\ny: z"[..])], "`a`"),
            (200, vec![("", &b"x"[..])], "``"),
            (200, vec![("a", &b"x"[..]); 129], "129 headers"),
            (200, vec![("a", &[b'x'; 70_000][..])], "bytes of headers"),
        ] {
            let error = check_head(status, &headers).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
