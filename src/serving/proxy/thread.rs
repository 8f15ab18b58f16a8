//! A thread of the proxy: its own runtime, listener, router and lanes. It shares nothing with the other threads but the table.

pub(super) mod serving;

use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tracer_core::hex::put_hex;
use tracer_core::lock::lock;
use tracer_core::propagation::Propagators;
use tracer_host::hook::Recorder;
use tracer_ipc::claims::SharedClaims;
use tracer_ipc::lane::Reset;
use tracer_ipc::replica_table::{CallerIndex, ReplicaIndex, ReplicaTable};
use tracer_ipc::serving::{ProxyReport, ProxySettings};

use super::access_log::{AccessLog, Line};
use super::admission::{Admission, Place};
use super::connection::Connection;
use super::exchange::{End, Exchange};
use super::figures::Figures;
use super::lanes::{Flush, Lane, LaneEnd};
use super::limits::{self, RefusalTurns, Room};
use super::reports::{Commits, Reports};
use super::rounds::Rounds;
use super::settings::Settings;
use super::spinning::Spinning;
use super::tls::Certified;

/// Pause when no connection can be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Parts that a thread begins with.
pub(super) struct Begin {
    pub(super) table: Arc<ReplicaTable>,
    pub(super) caller: CallerIndex,
    pub(super) listener: TcpListener,
    /// Event descriptor that wakes it when it was granted a place.
    pub(super) wake: OwnedFd,
    pub(super) recorder: Option<&'static Recorder>,
    pub(super) propagators: Propagators,
    pub(super) session_dir: PathBuf,
    /// The name of the service.
    pub(super) service: Arc<str>,
    pub(super) log_limit: u64,
    pub(super) room: Arc<Room>,
    pub(super) seed: u64,
    pub(super) reports: Arc<Reports>,
    pub(super) commits: Arc<Commits>,
}

/// An order to a thread. What is counted down says that it was followed.
pub(super) enum Order {
    Settings(Arc<ProxySettings>, Option<Arc<Certified>>, Arc<Countdown>),
    Lane { replica: ReplicaIndex, name: Arc<str>, socket: OwnedFd, claims: OwnedFd, done: Arc<Countdown> },
    Caller(CallerIndex, Arc<OwnedFd>),
    Refresh,
    Tell(Arc<Telling>),
    Gone(ReplicaIndex),
    Connection(OwnedFd),
    Drain { timeout: Duration, has_heir: bool, done: Arc<Countdown> },
}

/// Sends a report when the last of several threads has done something.
pub(super) struct Countdown {
    pub(super) reports: Arc<Reports>,
    pub(super) report: ProxyReport,
}

impl Drop for Countdown {
    fn drop(&mut self) {
        self.reports.send(&self.report);
    }
}

/// Says how the proxy is when the last of its threads has said what it has.
pub(super) struct Telling {
    pub(super) reports: Arc<Reports>,
    pub(super) tracing: String,
    pub(super) hook_failure: Option<String>,
    /// Of each thread that has said it, the revision of its settings and the replicas to which it has lanes.
    pub(super) lanes: Mutex<Vec<(u64, Vec<u32>)>>,
}

impl Drop for Telling {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut *lock(&self.lanes));
        let revision = threads.iter().map(|(revision, _)| *revision).min().unwrap_or(0);
        let mut lanes = threads.first().map(|(_, lanes)| lanes.clone()).unwrap_or_default();
        lanes.retain(|replica| threads.iter().all(|(_, lanes)| lanes.contains(replica)));
        let (tracing, hook_failure) = (std::mem::take(&mut self.tracing), self.hook_failure.take());
        self.reports.send(&ProxyReport::Told { tracing, hook_failure, revision, lanes });
    }
}

/// A thread, as its tasks see it.
pub(super) struct ProxyThread {
    pub(super) admission: Admission,
    pub(super) recorder: Option<&'static Recorder>,
    pub(super) propagators: Propagators,
    pub(super) old_names: OldNames,
    pub(super) spinning: Spinning,
    pub(super) figures: Figures,
    log: RefCell<AccessLog>,
    table: Arc<ReplicaTable>,
    settings: RefCell<Option<Rc<Settings>>>,
    /// By the number of the replica.
    lanes: RefCell<Vec<Option<Rc<Lane>>>>,
    /// Exchanges that lost replicas had begun, until their spans are complete.
    lost: RefCell<HashMap<ReplicaIndex, Vec<Rc<Exchange>>>>,
    flush: Rc<Flush>,
    connections: RefCell<HashMap<u64, Rc<Connection>>>,
    room: Arc<Room>,
    next_connection: Cell<u64>,
    pub(super) rounds: Rounds,
    is_draining: Cell<bool>,
    /// True while it drains for another proxy that is in its place.
    has_heir: Cell<bool>,
    random: Cell<u64>,
    reports: Arc<Reports>,
    commits: Arc<Commits>,
    /// True while somebody is about to write the log.
    is_about_to_write: Cell<bool>,
    refusal_turns: RefusalTurns,
    /// Number of clients that were turned away and of which much is taken.
    lingering: Cell<usize>,
}

/// A client that was turned away and of which much is taken, counted until this is dropped.
pub(super) struct Lingering<'t>(&'t Cell<usize>);

impl Drop for Lingering<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The names of older conventions that spans have besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OldNames {
    pub(super) http: bool,
    pub(super) rpc: bool,
}

impl OldNames {
    /// Returns what `OTEL_SEMCONV_STABILITY_OPT_IN` asks for, a list with commas.
    fn of(list: &str) -> OldNames {
        let has = |name| list.split(',').any(|found| found.trim() == name);
        OldNames { http: has("http/dup"), rpc: has("rpc/dup") }
    }
}

/// A place at a replica that is given back unless it is used.
pub(super) struct HeldPlace<'a> {
    thread: &'a ProxyThread,
    place: Option<Place>,
    waited_ns: Option<u64>,
    is_cold: bool,
    replica: ReplicaIndex,
}

impl HeldPlace<'_> {
    pub(super) fn replica(&self) -> ReplicaIndex {
        self.replica
    }

    pub(super) fn waited_ns(&self) -> Option<u64> {
        self.waited_ns
    }

    /// Returns whether the request waited because there was no replica.
    pub(super) fn is_cold(&self) -> bool {
        self.is_cold
    }

    /// Says that a request has it now.
    pub(super) fn keep(&mut self) {
        self.place = None;
    }
}

impl Drop for HeldPlace<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.thread.admission.release(place.replica);
        }
    }
}

impl ProxyThread {
    /// Gives a connection without TLS that has nothing to do to another proxy. What its client sends meanwhile waits in the socket.
    pub(super) fn hand_over(&self, stream: TcpStream) {
        if let Ok(stream) = stream.into_std() {
            self.reports.send_with(&ProxyReport::Connection, &[stream.as_fd()]);
        }
    }

    /// Counts one more client of which much is taken though it was turned away. None if there are as many as may be.
    pub(super) fn linger(&self) -> Option<Lingering<'_>> {
        let others = self.lingering.get();
        (others < limits::LINGERING).then(|| {
            self.lingering.set(others + 1);
            Lingering(&self.lingering)
        })
    }

    /// Returns how long the next refused client waits for its turn. None if it is not told that it is refused.
    pub(super) fn take_refusal_turn(&self) -> Option<Duration> {
        self.refusal_turns.take(Instant::now())
    }

    /// Returns the settings, which there are once connections are accepted.
    pub(super) fn settings(&self) -> Rc<Settings> {
        let settings = self.settings.borrow();
        Rc::clone(settings.as_ref().expect("nothing is accepted before there are settings"))
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.get()
    }

    /// Returns whether another proxy is in the place of this one, which drains.
    pub(super) fn has_heir(&self) -> bool {
        self.has_heir.get()
    }

    /// Returns the number of the last look at connections, at one of which something happens.
    pub(super) fn look(&self) -> u32 {
        self.rounds.look()
    }

    /// The connections, by their numbers.
    pub(super) fn connections(&self) -> Ref<'_, HashMap<u64, Rc<Connection>>> {
        self.connections.borrow()
    }

    /// Makes a name for a request.
    pub(super) fn new_request_id(&self) -> HeaderValue {
        let mut digits = [0; 32];
        for half in digits.chunks_exact_mut(16) {
            put_hex(half, &self.next_random().to_le_bytes());
        }
        HeaderValue::from_bytes(&digits).expect("digits can be a header")
    }

    /// Returns the next of numbers that are different from each other (splitmix64).
    fn next_random(&self) -> u64 {
        let state = self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.random.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Adds a line to the access log, and has spans written that have ended.
    pub(super) fn ended(self: &Rc<Self>, line: &Line<'_>) {
        self.log.borrow_mut().add(line);
        if self.recorder.is_some() {
            self.commits.ask();
        }
        if !self.is_about_to_write.replace(true) {
            let thread = Rc::clone(self);
            drop(tokio::task::spawn_local(async move {
                tokio::time::sleep(limits::WRITE).await;
                thread.is_about_to_write.set(false);
                thread.log.borrow_mut().write();
            }));
        }
    }

    pub(super) fn hold(&self, place: Place) -> HeldPlace<'_> {
        let Place { replica, waited_ns, is_cold } = place;
        HeldPlace { thread: self, place: Some(place), waited_ns, is_cold, replica }
    }

    /// Returns the lane to a replica, if requests may be sent there.
    pub(super) fn lane(&self, replica: ReplicaIndex) -> Option<Rc<Lane>> {
        self.lanes.borrow().get(replica.get())?.clone().filter(|lane| lane.is_open())
    }

    /// Returns how many requests a replica is done with in the time of waking another one: with fewer, one more may as well go there. Requests that come
    /// together are handled in one batch then, however many replicas there are.
    pub(super) fn quick_room(&self, replica: ReplicaIndex) -> u64 {
        self.lane(replica).map_or(0, |lane| lane.quick_room())
    }

    /// Gives up a request that a replica may still have.
    pub(super) fn abandon(&self, exchange: &Rc<Exchange>, reason: Reset) {
        if exchange.lane.forget(exchange.number) {
            exchange.lane.reset(exchange.number, reason);
            self.admission.release(exchange.lane.replica);
        }
        exchange.end(End::Reset(reason));
    }

    /// Forgets a request of which the replica says nothing more.
    fn over(&self, exchange: &Rc<Exchange>) {
        if exchange.lane.forget(exchange.number) {
            if exchange.has_begun() && !exchange.is_sent.get() {
                // The rest of the request is not wanted.
                exchange.lane.reset(exchange.number, Reset::ClientGone);
            }
            self.admission.release(exchange.lane.replica);
        }
    }

    fn take_lane(self: &Rc<Self>, replica: ReplicaIndex, name: &str, socket: OwnedFd, claims: &OwnedFd) {
        match self.try_take_lane(replica, name, socket, claims) {
            Ok((lane, reader)) => {
                let before = self.lanes.borrow_mut()[replica.get()].replace(Rc::clone(&lane));
                if let Some(before) = before {
                    self.close_lane(&before);
                }
                drop(tokio::task::spawn_local(Rc::clone(self).read_lane(lane, reader)));
            }
            Err(error) => {
                let reason = format!("the lane cannot be used: {error}");
                self.reports.send(&ProxyReport::LaneBroken { replica: replica.get() as u32, reason });
            }
        }
    }

    fn try_take_lane(
        &self,
        replica: ReplicaIndex,
        name: &str,
        socket: OwnedFd,
        claims: &OwnedFd,
    ) -> std::io::Result<(Rc<Lane>, pipe::Receiver)> {
        let claims = SharedClaims::attach(claims)?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        Lane::new(replica, name.into(), socket, claims, Rc::clone(&self.flush))
    }

    async fn read_lane(self: Rc<Self>, lane: Rc<Lane>, reader: pipe::Receiver) {
        let end = lane.read(reader, || self.spinning.something_came(), |exchange| self.over(exchange)).await;
        if let LaneEnd::Broken(reason) = end {
            self.reports.send(&ProxyReport::LaneBroken { replica: lane.replica.get() as u32, reason });
        }
        if let Some(known) = self.lanes.borrow_mut().get_mut(lane.replica.get()) {
            known.take_if(|known| Rc::ptr_eq(known, &lane));
        }
        self.close_lane(&lane);
    }

    /// Closes a lane. What its replica had begun ends when its spans are complete, or when that takes too long.
    fn close_lane(self: &Rc<Self>, lane: &Rc<Lane>) {
        let all = lane.close();
        all.iter().for_each(|_| self.admission.release(lane.replica));
        let begun: Vec<_> = all.into_iter().filter(|exchange| !exchange.is_over()).collect();
        if begun.is_empty() {
            return;
        }
        self.lost.borrow_mut().entry(lane.replica).or_default().extend(begun.iter().cloned());
        let (thread, replica) = (Rc::clone(self), lane.replica);
        drop(tokio::task::spawn_local(async move {
            tokio::time::sleep(limits::GONE).await;
            begun.iter().for_each(|exchange| exchange.end(End::Lost));
            let mut lost = thread.lost.borrow_mut();
            if let Some(of_replica) = lost.get_mut(&replica) {
                of_replica.retain(|exchange| !exchange.is_over());
            }
        }));
    }

    /// Reads what a replica that is gone has sent, and ends what it had begun beyond that: its spans are complete, or it has taken too long.
    fn gone(self: &Rc<Self>, replica: ReplicaIndex) {
        let lane = self.lanes.borrow_mut()[replica.get()].take();
        if let Some(lane) = lane {
            lane.read_rest(|exchange| self.over(exchange));
            self.close_lane(&lane);
        }
        let lost = self.lost.borrow_mut().remove(&replica);
        lost.into_iter().flatten().for_each(|exchange| exchange.end(End::Lost));
    }

    /// Says which settings and lanes it has.
    fn notify(&self, telling: &Telling) {
        let revision = self.settings.borrow().as_ref().map_or(0, |settings| settings.revision);
        let lanes = self.lanes.borrow();
        let open = lanes.iter().flatten().filter(|lane| lane.is_open()).map(|lane| lane.replica.get() as u32);
        lock(&telling.lanes).push((revision, open.collect()));
    }

    fn refresh(&self) {
        let settings = self.settings.borrow().clone();
        settings.iter().flat_map(|settings| &settings.all).for_each(|route| self.admission.refresh(route.deployment));
    }

    fn configure(&self, settings: &Arc<ProxySettings>, certified: Option<Arc<Certified>>) {
        // It was checked before it was sent here.
        if let Ok(settings) = Settings::new(settings, certified, &self.table) {
            *self.settings.borrow_mut() = Some(Rc::new(settings));
            self.figures.forget_routes();
            self.refresh();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_names_are_there_for_those_who_ask_for_both() {
        assert_eq!(OldNames::of("database, http/dup"), OldNames { http: true, rpc: false });
        assert_eq!(OldNames::of("http,rpc/dup"), OldNames { http: false, rpc: true });
        assert_eq!(OldNames::of(""), OldNames { http: false, rpc: false });
    }
}
