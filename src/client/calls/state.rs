//! The state of the calling side: services, lanes, calls on their way, and what the head has said.

use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use rustix::event::epoll;
use tracer_core::hex::put_hex;
use tracer_core::request_names as names;
use tracer_host::hook::{CallEvent, CallHeaders, CallRequest, CallSink, Recorder, random};
use tracer_ipc::calling::{CallRoute, CallerOrder, CallerReport};
use tracer_ipc::control;
use tracer_ipc::lane::{self, Body, Frame, HEADER_LIMIT, Headers, LANE_FRAME_LIMIT, LaneError, Reset, is_final};
use tracer_ipc::replica_table::{CallerIndex, ReplicaIndex, ReplicaTable};
use tracer_ipc::spin::Spin;

use super::call::{Call, End, EndingHop, Stage, Target, in_words, is_passed_on};
use super::figures::Figures;
use super::lane::Lane;
use super::{CONTROL, FIRST_FREE};
use crate::router::{Admitted, Arrival, Preference, Router};

/// Attempts at replicas that have not begun a call.
const ATTEMPTS: u32 = 32;
/// Headers that the calling side adds.
const ADDED_HEADERS: usize = 6;
/// Pause of a call that a replica did not take: the head is about to say that it is gone.
const PAUSE_NS: u64 = 5_000_000;
/// Limit of time that calls of a lost replica wait for its spans to be complete.
const GONE_NS: u64 = 2_000_000_000;

/// Steps to be done without the lock, in their order.
#[derive(Default)]
pub(super) struct After(Vec<Step>);

enum Step {
    EndHop(EndingHop),
    Tell(Arc<CallSink>, CallEvent),
    Release(Arc<CallSink>),
}

impl After {
    pub(super) fn run(self) {
        for step in self.0 {
            match step {
                Step::EndHop(hop) => hop.end(),
                Step::Tell(sink, event) => sink(event),
                Step::Release(sink) => drop(sink),
            }
        }
    }
}

/// A service that deployments are called of.
struct Service {
    name: String,
    router: Router<u64>,
    table: Arc<ReplicaTable>,
    wake: OwnedFd,
    /// Event descriptors that wake the other callers of the table.
    callers: FxHashMap<CallerIndex, OwnedFd>,
    /// Tokens of lanes.
    lanes: FxHashMap<ReplicaIndex, u64>,
    /// Calls that wait for a lane, by the replica that it was asked for.
    asked: FxHashMap<ReplicaIndex, Vec<u64>>,
    is_gone: bool,
}

/// Services, lanes and calls.
pub(super) struct State {
    control: OwnedFd,
    epoll: OwnedFd,
    recorder: Option<&'static Recorder>,
    figures: Figures,
    home: Option<(String, String)>,
    services: Vec<Service>,
    /// Services by the tokens of their event descriptors.
    wakes: FxHashMap<u64, usize>,
    routes: FxHashMap<String, Arc<Target>>,
    finding: FxHashMap<String, Vec<u64>>,
    reports: VecDeque<CallerReport>,
    calls: FxHashMap<u64, Call>,
    last_call: u64,
    lanes: FxHashMap<u64, Lane>,
    next_token: u64,
    /// Lanes that have something to write.
    dirty: Vec<u64>,
    /// Calls by the time at which something is due.
    due: BTreeSet<(u64, u64)>,
    /// True once the head is gone.
    is_orphaned: bool,
    /// Time until which the thread sleeps; none before it has begun.
    pub(super) sleeps_until_ns: Option<u64>,
    /// Decides whether a loop looks for answers.
    pub(super) spin: Spin,
    /// True while there are calls, as `spin` knows it.
    has_calls: bool,
    /// True while a loop looks for answers whenever it has nothing else to do.
    pub(super) is_looked_for: bool,
}

impl State {
    pub(super) fn new(
        control: OwnedFd,
        epoll: OwnedFd,
        recorder: Option<&'static Recorder>,
        figures: Figures,
        home: Option<(String, String)>,
    ) -> State {
        State {
            control,
            epoll,
            recorder,
            figures,
            home,
            services: Vec::new(),
            wakes: FxHashMap::default(),
            routes: FxHashMap::default(),
            finding: FxHashMap::default(),
            reports: VecDeque::new(),
            calls: FxHashMap::default(),
            last_call: 0,
            lanes: FxHashMap::default(),
            next_token: FIRST_FREE,
            dirty: Vec::new(),
            due: BTreeSet::new(),
            is_orphaned: false,
            sleeps_until_ns: None,
            spin: Spin::default().for_answers(),
            has_calls: false,
            is_looked_for: false,
        }
    }

    /// Notes that a call is about to begin.
    pub(super) fn note_call(&mut self) {
        if !std::mem::replace(&mut self.has_calls, true) {
            self.spin.request_began();
        }
    }

    /// Notes whether the last call has ended.
    pub(super) fn note_calls(&mut self) {
        if self.calls.is_empty() && std::mem::take(&mut self.has_calls) {
            self.spin.request_ended();
        }
    }

    /// Returns whether looking for an answer pays: there is one call, and it has followed the one before it closely.
    pub(super) fn will_look(&self) -> bool {
        self.calls.len() == 1 && self.spin.will_look()
    }

    /// Returns when something is due.
    pub(super) fn next_due_ns(&self) -> Option<u64> {
        let expiries = self.services.iter().filter_map(|service| service.router.next_expiry_ns());
        expiries.chain(self.due.first().map(|(at, _)| *at)).min()
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, mut request: CallRequest, sink: CallSink, now: u64, after: &mut After) -> u64 {
        self.last_call += 1;
        let number = self.last_call;
        if request.request_id.is_empty() {
            request.request_id = new_request_id();
        }
        let headers = request.headers.iter().filter(|(name, _)| is_passed_on(name)).count() + ADDED_HEADERS;
        let wanted = request.deployment.clone();
        let call = Call::new(request, sink, now);
        if let Some(due) = call.due_ns {
            self.due.insert((due, number));
        }
        self.calls.insert(number, call);
        if headers > HEADER_LIMIT {
            let text = format!("the request has {headers} headers, expected {HEADER_LIMIT} at most");
            self.end(number, End::new(names::OUTCOME_REFUSED, text), now, after);
        } else if self.is_orphaned {
            self.end(number, End::new(names::OUTCOME_UNAVAILABLE, "the head of this session is gone"), now, after);
        } else if let Some(target) = self.routes.get(&wanted).cloned() {
            self.attempt(number, &target, now, after);
        } else {
            let waiting = self.finding.entry(wanted.clone()).or_default();
            waiting.push(number);
            if waiting.len() == 1 {
                self.reports.push_back(CallerReport::Find { deployment: wanted, home: self.home.clone() });
            }
        }
        self.settle(now, after);
        number
    }

    /// Looks for a place for a call.
    fn attempt(&mut self, number: u64, target: &Arc<Target>, now: u64, after: &mut After) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.begin_attempt(self.recorder, target);
        let service = &mut self.services[target.service];
        let arrival = service.router.arrive_for(target.index, Preference::of_model(&call.request.model), number, now);
        if let Some(first) = service.router.next_first() {
            let deployment = u32::try_from(first.get()).unwrap_or(u32::MAX);
            self.reports.push_back(CallerReport::Wanted { service: service.name.clone(), deployment });
        }
        match arrival {
            Arrival::Admitted(_, replica) => self.place(number, replica),
            Arrival::Waits(ticket) => {
                call.is_cold = !service.router.has_replica(target.index);
                call.stage = Stage::Waiting(ticket);
            }
            Arrival::Refused { retry_after_s, .. } => {
                let text = format!(
                    "the queue of deployment `{}` is full (`max_queued_requests`); it may have room in {retry_after_s} s",
                    target.route.deployment
                );
                call.stage = Stage::Finding;
                self.end(number, End::new(names::OUTCOME_SHED, text), now, after);
            }
        }
    }

    /// Notes that a call has a place, and sends it if there is a lane.
    fn place(&mut self, number: u64, replica: ReplicaIndex) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let Some(target) = call.target.clone() else { return };
        call.stage = Stage::Placed(replica);
        let service = &mut self.services[target.service];
        if let Some(token) = service.lanes.get(&replica).copied() {
            return self.send(number, token);
        }
        let waiting = service.asked.entry(replica).or_default();
        waiting.push(number);
        if waiting.len() == 1 {
            let place = u32::try_from(replica.get()).unwrap_or(u32::MAX);
            self.reports.push_back(CallerReport::Lane { service: service.name.clone(), replica: place });
        }
    }

    /// Asks once more what the head has not answered.
    fn ask_again(&mut self) {
        for wanted in self.finding.keys() {
            self.reports.push_back(CallerReport::Find { deployment: wanted.clone(), home: self.home.clone() });
        }
        for service in &self.services {
            for replica in service.asked.keys() {
                let replica = u32::try_from(replica.get()).unwrap_or(u32::MAX);
                self.reports.push_back(CallerReport::Lane { service: service.name.clone(), replica });
            }
        }
    }

    /// Sends a call that has a place, or has it wait for a number.
    fn send(&mut self, number: u64, token: u64) {
        let (Some(call), Some(lane)) = (self.calls.get_mut(&number), self.lanes.get_mut(&token)) else { return };
        let Some(id) = lane.numbers.take() else {
            lane.waiting.push_back(number);
            return;
        };
        lane.calls.insert(id, number);
        call.stage = Stage::Sent { lane: token, number: id };
        call.replica = Some(Arc::clone(&lane.name));
        lane.claims.grant(id.into());
        lane.put(|out| call.open(out, id));
        send_body(lane, id, call);
        self.dirty.push(token);
    }

    /// Gives the places of calls that did not use them back, and does what has become possible.
    pub(super) fn settle(&mut self, now: u64, after: &mut After) {
        loop {
            let mut is_at_rest = true;
            for at in 0..self.services.len() {
                while let Some(Admitted { request, replica, waited_ns }) = self.services[at].router.next_admitted() {
                    is_at_rest = false;
                    match self.calls.get_mut(&request) {
                        Some(call) if matches!(call.stage, Stage::Waiting(_)) => {
                            call.waited(self.recorder, waited_ns);
                            if let Some(target) = &call.target {
                                self.figures.count_wait(target, waited_ns);
                            }
                            self.place(request, replica);
                        }
                        _ => self.services[at].router.release(replica, now),
                    }
                }
                while let Some((_, request)) = self.services[at].router.next_expired(now) {
                    is_at_rest = false;
                    self.expire(request, now, after);
                }
                let service = &mut self.services[at];
                while let Some(caller) = service.router.next_wake() {
                    if let Some(wake) = service.callers.get(&caller) {
                        // One that is full wakes whoever has it all the same.
                        let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
                    }
                }
            }
            if is_at_rest {
                break;
            }
        }
        for token in std::mem::take(&mut self.dirty) {
            self.flush(token);
        }
        self.send_reports();
    }

    fn flush(&mut self, token: u64) {
        let Some(lane) = self.lanes.get_mut(&token) else { return };
        if lane.flush() {
            let room = if lane.is_blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let data = epoll::EventData::new_u64(token);
            let _ = epoll::modify(&self.epoll, &*lane, data, epoll::EventFlags::IN | room);
        }
    }

    /// Sends what there is room for, and hears of room as long as there is none.
    fn send_reports(&mut self) {
        let had_any = !self.reports.is_empty();
        while let Some(report) = self.reports.front() {
            match control::send(&self.control, report, &[]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The head is gone, which is seen when it is read.
                _ => drop(self.reports.pop_front()),
            }
        }
        if had_any {
            let mut flags = epoll::EventFlags::IN;
            flags.set(epoll::EventFlags::OUT, !self.reports.is_empty());
            let _ = epoll::modify(&self.epoll, &self.control, epoll::EventData::new_u64(CONTROL), flags);
        }
    }

    /// Ends a call whose time in the queue is up.
    fn expire(&mut self, number: u64, now: u64, after: &mut After) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        call.stage = Stage::Finding;
        let Some(target) = call.target.clone() else { return };
        let CallRoute { deployment, queue_timeout, .. } = &target.route;
        let limit = in_words(queue_timeout.unwrap_or_default());
        let ready = self.services[target.service].table.ready(target.index).count();
        let why = match ready {
            0 => "it has no replica that is ready".to_owned(),
            1 => "its replica has as many requests as it may (`max_ongoing_requests`)".to_owned(),
            count => format!("its {count} replicas have as many requests as they may (`max_ongoing_requests`)"),
        };
        let hint =
            "(hint: deployments that call each other in a circle wait for themselves when all their limits are taken)";
        let hint = if ready > 0 { format!("\n{hint}") } else { String::new() };
        let text = format!(
            "no replica of deployment `{deployment}` had a place within {limit} (`queue_timeout`): {why}{hint}"
        );
        self.end(number, End::new(names::OUTCOME_UNAVAILABLE, text), now, after);
    }

    /// Ends a call in whatever stage it is.
    fn end(&mut self, number: u64, end: End, now: u64, after: &mut After) {
        let Some(mut call) = self.calls.remove(&number) else { return };
        if let Some(due) = call.due_ns {
            self.due.remove(&(due, number));
        }
        self.give_up(number, &call, end.outcome, now);
        self.figures.count_end(&call, end.outcome);
        if let Some(hop) = call.end_attempt(end.outcome) {
            after.0.push(Step::EndHop(hop));
        }
        let sink = Arc::clone(&call.sink);
        if end.outcome != names::OUTCOME_CLIENT_GONE {
            after.0.push(Step::Tell(Arc::clone(&sink), Call::event(end)));
        }
        drop(call);
        after.0.push(Step::Release(sink));
    }

    /// Takes back what a call holds of its stage.
    fn give_up(&mut self, number: u64, call: &Call, outcome: &str, now: u64) {
        let service = call.target.as_ref().map(|target| target.service);
        match (call.stage, service) {
            (Stage::Finding | Stage::Paused | Stage::Lost(_), _) | (_, None) => {}
            (Stage::Waiting(ticket), Some(at)) => drop(self.services[at].router.give_up(ticket)),
            (Stage::Placed(replica), Some(at)) => {
                if let Some(asked) = self.services[at].asked.get_mut(&replica) {
                    asked.retain(|other| *other != number);
                }
                self.services[at].router.release(replica, now);
            }
            (Stage::Sent { lane: token, number: id }, Some(at)) => {
                let Some(lane) = self.lanes.get_mut(&token) else { return };
                if !call.incoming.is_over() || !call.is_sent {
                    lane.claims.revoke(id.into());
                    let reason = if outcome == names::OUTCOME_TIMEOUT { Reset::Timeout } else { Reset::ClientGone };
                    lane.put(|out| lane::put_reset(out, id, reason));
                    self.dirty.push(token);
                }
                let replica = lane.replica;
                lane.forget(id);
                // One that was given up meanwhile is none.
                let waiting = std::iter::from_fn(|| lane.waiting.pop_front());
                let next = waiting.into_iter().find(|next| self.calls.contains_key(next));
                self.services[at].router.release(replica, now);
                if let Some(next) = next {
                    self.send(next, token);
                }
            }
        }
    }

    /// Ends an attempt at a replica that has not begun the call, and has it tried again.
    fn try_again(&mut self, number: u64, now: u64, after: &mut After) {
        let Some(mut call) = self.calls.remove(&number) else { return };
        if call.attempts >= ATTEMPTS {
            let deployment = call.target.as_ref().map_or("", |target| &target.route.deployment).to_owned();
            self.calls.insert(number, call);
            let text = format!("no replica of deployment `{deployment}` has taken the call in {ATTEMPTS} attempts");
            return self.end(number, End::new(names::OUTCOME_UNAVAILABLE, text), now, after);
        }
        self.give_up(number, &call, names::OUTCOME_NOT_BEGUN, now);
        self.figures.count_retry(&call, names::OUTCOME_NOT_BEGUN);
        if let Some(hop) = call.end_attempt(names::OUTCOME_NOT_BEGUN) {
            after.0.push(Step::EndHop(hop));
        }
        call.begin_again();
        call.stage = Stage::Paused;
        self.calls.insert(number, call);
        self.set_due(number, now + PAUSE_NS);
    }

    fn set_due(&mut self, number: u64, at: u64) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let at = call.deadline_ns.map_or(at, |deadline| deadline.min(at));
        if let Some(before) = call.due_ns.replace(at) {
            self.due.remove(&(before, number));
        }
        self.due.insert((at, number));
    }

    /// Does what is due.
    pub(super) fn keep_time(&mut self, now: u64, after: &mut After) {
        while let Some((at, number)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, number));
            let Some(call) = self.calls.get_mut(&number) else { continue };
            call.due_ns = None;
            if let Some(deadline) = call.deadline_ns {
                if deadline <= now {
                    let text = "the answer did not come before the deadline of the call";
                    self.end(number, End::new(names::OUTCOME_TIMEOUT, text), now, after);
                    continue;
                }
                self.set_due(number, deadline);
            }
            let Some(call) = self.calls.get(&number) else { continue };
            match (call.stage, call.target.clone()) {
                (Stage::Paused, Some(target)) => {
                    let target = self.routes.get(&call.request.deployment).cloned().unwrap_or(target);
                    match self.services[target.service].is_gone {
                        true => self.end_of_service(number, &target, now, after),
                        false => self.attempt(number, &target, now, after),
                    }
                }
                (Stage::Lost(_), _) => self.lost(number, now, after),
                _ => {}
            }
        }
    }

    fn end_of_service(&mut self, number: u64, target: &Target, now: u64, after: &mut After) {
        let CallRoute { service, deployment, .. } = &target.route;
        let text = format!("service `{service}` of deployment `{deployment}` has ended");
        self.end(number, End::new(names::OUTCOME_UNAVAILABLE, text), now, after);
    }

    fn lost(&mut self, number: u64, now: u64, after: &mut After) {
        let replica = self.calls.get(&number).and_then(|call| call.replica.clone()).unwrap_or_else(|| "".into());
        let text = format!(
            "replica {replica} was lost after it had begun the call\n(hint: `tracer serve status` says how it ended)"
        );
        self.end(number, End::new(names::OUTCOME_REPLICA_LOST, text), now, after);
    }

    /// Gives a call up that nobody waits for.
    pub(super) fn cancel(&mut self, number: u64, now: u64, after: &mut After) {
        self.end(number, End::new(names::OUTCOME_CLIENT_GONE, "nobody waits for the answer"), now, after);
    }

    /// Notes that bytes of an answer were used.
    pub(super) fn consumed(&mut self, number: u64, bytes: usize) {
        let Some(call) = self.calls.get_mut(&number) else { return };
        let Stage::Sent { lane: token, number: id } = call.stage else { return };
        let credit = call.incoming.took(u32::try_from(bytes).unwrap_or(u32::MAX));
        if let (Some(credit), Some(lane)) = (credit, self.lanes.get_mut(&token)) {
            lane.put(|out| lane::put_credit(out, id, credit));
            self.dirty.push(token);
        }
    }

    /// Takes what has come over a lane, or places that other callers have granted.
    pub(super) fn on_ready(&mut self, token: u64, now: u64, after: &mut After) {
        if let Some(at) = self.wakes.get(&token).copied() {
            let service = &mut self.services[at];
            let _ = rustix::io::read(&service.wake, &mut [0; 8]);
            service.router.collect(now);
            return;
        }
        self.flush(token);
        self.read_lane(token, now, after);
        self.resume_sending(token);
    }

    /// Sends bodies for which there is room again.
    fn resume_sending(&mut self, token: u64) {
        let Some(lane) = self.lanes.get_mut(&token) else { return };
        let unsent: Vec<_> = lane.calls.iter().map(|(id, call)| (*id, *call)).collect();
        for (id, number) in unsent {
            if let Some(call) = self.calls.get_mut(&number).filter(|call| !call.is_sent) {
                send_body(lane, id, call);
            }
        }
        self.dirty.push(token);
    }

    fn read_lane(&mut self, token: u64, now: u64, after: &mut After) {
        loop {
            let Some(lane) = self.lanes.get_mut(&token) else { return };
            let is_over = match lane.inbox.read_from(&mut &lane.stream) {
                Ok(0) => true,
                Ok(_) => self.take_frames(token, now, after).is_err(),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => true,
            };
            if is_over {
                return self.close_lane(token, now, after);
            }
            let Some(lane) = self.lanes.get(&token) else { return };
            if !lane.inbox.is_full() {
                return;
            }
        }
    }

    fn take_frames(&mut self, token: u64, now: u64, after: &mut After) -> Result<(), LaneError> {
        let Some(mut inbox) = self.lanes.get_mut(&token).map(|lane| std::mem::take(&mut lane.inbox)) else {
            return Ok(());
        };
        let taken = loop {
            match inbox.next_frame(LANE_FRAME_LIMIT) {
                Ok(None) => break Ok(()),
                Err(_) => break Err(LaneError::TooMuchData(LANE_FRAME_LIMIT)),
                Ok(Some((kind, body))) => {
                    let taken = Frame::decode(kind, body).and_then(|frame| self.take_frame(token, &frame, now, after));
                    if taken.is_err() {
                        break taken;
                    }
                }
            }
        };
        if let Some(lane) = self.lanes.get_mut(&token) {
            lane.inbox = inbox;
        }
        taken
    }

    fn take_frame(&mut self, token: u64, frame: &Frame<'_>, now: u64, after: &mut After) -> Result<(), LaneError> {
        let Some(lane) = self.lanes.get_mut(&token) else { return Ok(()) };
        if matches!(frame.body, Body::Drain) {
            lane.is_draining = true;
            return Ok(());
        }
        let id = frame.request;
        // What is said of a call that was ended here was on its way then.
        let Some(number) = lane.calls.get(&id).copied() else { return Ok(()) };
        let Some(call) = self.calls.get_mut(&number) else { return Ok(()) };
        call.incoming.on_frame(frame)?;
        let mut tell = |event| after.0.push(Step::Tell(Arc::clone(&call.sink), event));
        match frame.body {
            Body::Credit(credit) => {
                call.outgoing.on_credit(credit)?;
                send_body(lane, id, call);
                self.dirty.push(token);
            }
            // Answers in between, such as 103, are not passed on.
            Body::Head(status, headers) if is_final(status) => {
                call.status = status;
                tell(CallEvent::Head(status, kept(headers)));
            }
            Body::Data([]) => {}
            Body::Data(piece) => tell(CallEvent::Body(piece.to_vec())),
            Body::Trailers(trailers) => tell(CallEvent::Trailers(kept(trailers))),
            Body::Reset(Reset::Refused) if !call.has_begun && lane.claims.revoke(id.into()) => {
                call.is_sent = true;
                self.try_again(number, now, after);
                return Ok(());
            }
            Body::Reset(reason) => {
                call.is_sent = true;
                let end = self.reset(number, reason);
                self.end(number, end, now, after);
                return Ok(());
            }
            Body::Head(..) | Body::Open(..) | Body::Drain => {}
        }
        if let Some(call) = self.calls.get_mut(&number) {
            call.has_begun = true;
            if frame.is_last {
                let has_failed = call.request.method.is_empty() && call.status >= 500;
                let outcome = if has_failed { names::OUTCOME_HANDLER_FAILED } else { "" };
                self.end(number, End { outcome, message: String::new() }, now, after);
            }
        }
        Ok(())
    }

    /// Returns the end of a call that its replica has reset.
    fn reset(&self, number: u64, reason: Reset) -> End {
        let name = self.calls.get(&number).and_then(|call| call.replica.clone()).unwrap_or_else(|| "".into());
        match reason {
            Reset::HandlerFailed => End::new(
                names::OUTCOME_HANDLER_FAILED,
                format!("the handler of replica {name} has failed\n(hint: its span has the exception)"),
            ),
            Reset::BodyFailed => {
                End::new(names::OUTCOME_STREAM_ABORTED, format!("the answer of replica {name} broke off half-way"))
            }
            Reset::Timeout => End::new(names::OUTCOME_TIMEOUT, format!("replica {name} had no more time for the call")),
            Reset::ClientGone | Reset::Refused => {
                End::new(names::OUTCOME_REPLICA_LOST, format!("replica {name} does not take the call"))
            }
        }
    }

    /// Closes a lane. Calls that its replica had not begun go to another one; the others end when its spans are complete.
    fn close_lane(&mut self, token: u64, now: u64, after: &mut After) {
        let Some(lane) = self.lanes.remove(&token) else { return };
        let _ = epoll::delete(&self.epoll, &lane);
        let _ = lane.stream.shutdown(std::net::Shutdown::Both);
        let service = &mut self.services[lane.service];
        if service.lanes.get(&lane.replica) == Some(&token) {
            service.lanes.remove(&lane.replica);
        }
        for number in &lane.waiting {
            self.try_again(*number, now, after);
        }
        for (id, number) in &lane.calls {
            let Some(call) = self.calls.get_mut(number) else { continue };
            // `give_up` finds no lane any more.
            self.services[lane.service].router.release(lane.replica, now);
            if !call.has_begun && lane.claims.revoke((*id).into()) {
                self.try_again(*number, now, after);
            } else {
                call.stage = Stage::Lost(lane.replica);
                self.set_due(*number, now + GONE_NS);
            }
        }
    }

    /// Takes what the head has said.
    pub(super) fn take_orders(&mut self, now: u64, after: &mut After) {
        loop {
            match control::receive::<CallerOrder>(&self.control) {
                Ok(Some((order, files))) => self.take_order(order, files, now, after),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.send_reports(),
                Ok(None) | Err(_) => return self.orphan(now, after),
            }
        }
    }

    /// Notes that the head is gone: what waits for it fails.
    fn orphan(&mut self, now: u64, after: &mut After) {
        let _ = epoll::delete(&self.epoll, &self.control);
        self.is_orphaned = true;
        let waits = |call: &Call| matches!(call.stage, Stage::Finding | Stage::Placed(_) | Stage::Paused);
        let waiting: Vec<u64> = self.calls.iter().filter(|(_, call)| waits(call)).map(|(number, _)| *number).collect();
        for number in waiting {
            self.end(number, End::new(names::OUTCOME_UNAVAILABLE, "the head of this session is gone"), now, after);
        }
    }

    fn service(&self, name: &str) -> Option<usize> {
        self.services.iter().position(|service| service.name == name && !service.is_gone)
    }

    fn take_order(&mut self, order: CallerOrder, files: Vec<OwnedFd>, now: u64, after: &mut After) {
        let mut files = files.into_iter();
        match order {
            CallerOrder::Service { service, caller } => {
                if let (Some(table), Some(wake)) = (files.next(), files.next()) {
                    // One that cannot be mapped is not there, so its deployments are not found.
                    let _ = self.add_service(service, caller, &table, wake);
                }
            }
            CallerOrder::Route { wanted, route } => self.take_route(wanted, route, now, after),
            CallerOrder::Caller { service, caller } => {
                if let (Some(at), Some(wake)) = (self.service(&service), files.next())
                    && let Some(caller) = self.services[at].table.caller(caller as usize)
                {
                    self.services[at].callers.insert(caller, wake);
                }
            }
            CallerOrder::Lane { service, replica, name } => {
                if let (Some(socket), Some(claims)) = (files.next(), files.next()) {
                    self.add_lane(&service, replica, &name, (socket, claims), now, after);
                }
            }
            CallerOrder::NoLane { service, replica } | CallerOrder::ReplicaGone { service, replica } => {
                self.replica_gone(&service, replica, now, after);
            }
            CallerOrder::Refresh { service } => {
                let Some(at) = self.service(&service) else { return };
                let all: Vec<_> = self.routes.values().filter(|target| target.service == at).cloned().collect();
                all.iter().for_each(|target| self.services[at].router.refresh(target.index, now));
            }
            CallerOrder::Again => self.ask_again(),
            CallerOrder::ServiceGone { service } => {
                let Some(at) = self.service(&service) else { return };
                self.services[at].is_gone = true;
                self.routes.retain(|_, target| target.service != at);
                let waits = |call: &Call| {
                    call.target.as_ref().is_some_and(|target| target.service == at)
                        && !matches!(call.stage, Stage::Sent { .. } | Stage::Lost(_))
                };
                let waiting: Vec<_> = self.calls.iter().filter(|(_, call)| waits(call)).map(|(n, _)| *n).collect();
                for number in waiting {
                    if let Some(target) = self.calls.get(&number).and_then(|call| call.target.clone()) {
                        self.end_of_service(number, &target, now, after);
                    }
                }
            }
        }
    }

    fn add_service(&mut self, name: String, caller: u32, table: &OwnedFd, wake: OwnedFd) -> std::io::Result<()> {
        let table = Arc::new(ReplicaTable::attach(table)?);
        let caller = table.caller(caller as usize).ok_or(ErrorKind::InvalidData)?;
        rustix::io::ioctl_fionbio(&wake, true)?;
        let token = self.give_token();
        epoll::add(&self.epoll, &wake, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        self.wakes.insert(token, self.services.len());
        let router = Router::new(Arc::clone(&table), caller, u64::from_ne_bytes(random()));
        self.services.push(Service {
            name,
            router,
            table,
            wake,
            callers: FxHashMap::default(),
            lanes: FxHashMap::default(),
            asked: FxHashMap::default(),
            is_gone: false,
        });
        Ok(())
    }

    fn give_token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token - 1
    }

    fn take_route(&mut self, wanted: String, route: Result<CallRoute, String>, now: u64, after: &mut After) {
        let waiting = self.finding.remove(&wanted).unwrap_or_default();
        let found = route.and_then(|route| {
            let service = self.service(&route.service);
            let service = service.ok_or_else(|| format!("the table of service `{}` cannot be used", route.service))?;
            let index = self.services[service].table.deployment(route.index as usize);
            let index = index.ok_or_else(|| format!("deployment `{}` is not in the table", route.deployment))?;
            Ok(Target { service, index, route, series: Mutex::default() })
        });
        match found {
            Ok(target) => {
                let target = Arc::new(target);
                let timeout = target.route.queue_timeout;
                let timeout = timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
                self.services[target.service].router.set_queue_timeout(target.index, timeout);
                self.routes.insert(wanted, Arc::clone(&target));
                for number in waiting {
                    self.attempt(number, &target, now, after);
                }
            }
            Err(reason) => {
                self.routes.remove(&wanted);
                for number in waiting {
                    self.end(number, End::new(names::OUTCOME_REFUSED, reason.clone()), now, after);
                }
            }
        }
    }

    fn add_lane(
        &mut self,
        service: &str,
        place: u32,
        name: &str,
        (socket, claims): (OwnedFd, OwnedFd),
        now: u64,
        after: &mut After,
    ) {
        let Some(at) = self.service(service) else { return };
        let Some(replica) = self.services[at].table.replica(place as usize) else { return };
        let token = self.give_token();
        let data = epoll::EventData::new_u64(token);
        let lane = Lane::new((at, replica), name, socket, claims);
        let lane = lane.and_then(|lane| {
            epoll::add(&self.epoll, lane.as_fd(), data, epoll::EventFlags::IN)?;
            Ok(lane)
        });
        let Ok(lane) = lane else { return self.replica_gone(service, place, now, after) };
        self.lanes.insert(token, lane);
        if let Some(before) = self.services[at].lanes.insert(replica, token) {
            self.close_lane(before, now, after);
        }
        for number in self.services[at].asked.remove(&replica).unwrap_or_default() {
            self.send(number, token);
        }
    }

    /// Reads what a replica that is gone has sent, and ends what it had begun beyond that: its spans are complete.
    fn replica_gone(&mut self, service: &str, place: u32, now: u64, after: &mut After) {
        let Some(at) = self.service(service) else { return };
        let Some(replica) = self.services[at].table.replica(place as usize) else { return };
        if let Some(token) = self.services[at].lanes.get(&replica).copied() {
            self.read_lane(token, now, after);
            self.close_lane(token, now, after);
        }
        for number in self.services[at].asked.remove(&replica).unwrap_or_default() {
            self.try_again(number, now, after);
        }
        let is_lost = |call: &Call| {
            call.stage == Stage::Lost(replica) && call.target.as_ref().is_some_and(|target| target.service == at)
        };
        let lost: Vec<_> = self.calls.iter().filter(|(_, call)| is_lost(call)).map(|(number, _)| *number).collect();
        for number in lost {
            self.lost(number, now, after);
        }
    }
}

/// Queues as much of a call's body as there is room for.
fn send_body(lane: &mut Lane, id: u32, call: &mut Call) {
    while !call.is_sent && lane.has_room() {
        let left = &call.request.body[call.sent_bytes..];
        let count = call.outgoing.take(left.len());
        if count == 0 {
            return;
        }
        let is_last = count == left.len();
        lane.put(|out| {
            out.extend_from_slice(&lane::data_header(id, is_last, count));
            out.extend_from_slice(&left[..count]);
        });
        call.sent_bytes += count;
        call.is_sent = is_last;
    }
}

/// Returns the headers that are the caller's.
fn kept(headers: Headers<'_>) -> CallHeaders {
    const OF_CONNECTION: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
    let headers = headers.iter().filter(|(name, _)| !OF_CONNECTION.contains(name));
    headers.map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
}

fn new_request_id() -> String {
    let mut digits = [0; 32];
    put_hex(&mut digits, &random::<16>());
    String::from_utf8_lossy(&digits).into_owned()
}
