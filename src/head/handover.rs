//! Redelivery: offers batches of undelivered spans, from dead processes or failed exporters, to the span sinks of living workers.
//!
//! A worker whose hook has a span sink says so by a connection of its own for it. Parcels come from processes that put spans aside, from
//! the spools of the dead, and from sessions before this one. Each is offered to one worker at a time, stays a file until that
//! worker's hook has delivered it, and goes to another worker if that one dies or fails.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify;
use tracer_abi as abi;

use crate::count::Count;
use crate::protocol::{SpansDone, SpansOffer};
use crate::spool::{Parcel, Pause, hooks};

/// Parcels that a worker is offered at once. Its hook delivers them one after another.
const OFFERS_LIMIT: usize = 4;
/// The same when the head stops, and there is no later.
const LAST_OFFERS_LIMIT: usize = 32;
/// Bytes of parcels that are kept. Beyond it, the oldest are given up.
const BYTES_LIMIT: u64 = 64 << 20;
/// How often a parcel is tried.
const TRIES_LIMIT: u32 = 50;
/// How long to wait after a failure, at first and at most.
const PAUSE_FIRST_NS: u64 = 500_000_000;
const PAUSE_LIMIT_NS: u64 = 30_000_000_000;
/// How long to wait when a worker's hook has more than it takes.
const PAUSE_FULL_NS: u64 = 50_000_000;

/// What is to be sent to a worker's sink.
pub(super) struct Offer {
    pub(super) connection: u64,
    pub(super) spans: SpansOffer,
}

pub(super) struct Handover {
    folder: PathBuf,
    /// Wakes the head when a parcel comes into the folder.
    watch: OwnedFd,
    /// What waits, by the hooks that it is for: hooks that fail do not hold back what is for others.
    queues: BTreeMap<u32, Queue>,
    /// What is with a worker, by the offer's number.
    offered: HashMap<u64, (Waiting, u64)>,
    next_number: u64,
    /// The connections of workers' sinks, with how many offers each has.
    sinks: Vec<(u64, usize)>,
    /// Spans that were delivered for other processes.
    pub(super) delivered: u64,
    /// Spans that nobody took in the end.
    pub(super) given_up: u64,
}

struct Waiting {
    parcel: Parcel,
    tries: u32,
}

/// The parcels for the same hooks.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// How many are with workers.
    offered: usize,
    /// Failures in a row.
    failures: u32,
    /// No offer is made before.
    pause_until_ns: u64,
    /// The same, because a receiver was found out by some process of the session to need a pause.
    told_until_ns: u64,
}

impl Queue {
    fn may_offer(&self, now_ns: u64, is_last: bool) -> bool {
        // While nothing works, one after another is enough to find out when it does.
        let is_open = now_ns >= self.next_ns() && (self.failures == 0 || self.offered == 0);
        !self.waiting.is_empty() && (is_last || is_open)
    }

    fn next_ns(&self) -> u64 {
        self.pause_until_ns.max(self.told_until_ns)
    }
}

impl Handover {
    pub(super) fn new(folder: PathBuf) -> io::Result<Handover> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, &folder, inotify::WatchFlags::MOVED_TO)?;
        Ok(Handover {
            folder,
            watch,
            queues: BTreeMap::new(),
            offered: HashMap::new(),
            next_number: 1,
            sinks: Vec::new(),
            delivered: 0,
            given_up: 0,
        })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn watched(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Something has come into the folder.
    pub(super) fn on_change(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        // What has come is in the folder, also when there were too many events to tell of each.
        while reader.next().is_ok() {}
        self.look();
    }

    /// Takes up the parcels in the folder that are not known.
    pub(super) fn look(&mut self) {
        let known: HashSet<PathBuf> = self.all().map(|waiting| waiting.parcel.path.clone()).collect();
        for parcel in Parcel::list(&self.folder).into_iter().filter(|parcel| !known.contains(&parcel.path)) {
            self.queue(parcel.hooks).waiting.push_back(Waiting { parcel, tries: 0 });
        }
        while self.bytes() > BYTES_LIMIT {
            // Of the hooks that take the least.
            let longest = self.queues.values_mut().max_by_key(|queue| queue.waiting.len());
            let Some(oldest) = longest.and_then(|queue| queue.waiting.pop_front()) else { break };
            self.give_up(&oldest);
        }
    }

    /// Takes parcels of other sessions over into this one's folder.
    pub(super) fn take_over(&mut self, parcels: Vec<Parcel>) -> u64 {
        let mut spans = 0;
        for parcel in parcels {
            let Some(name) = parcel.path.file_name() else { continue };
            // One that cannot be moved is tried again by the next head.
            if fs::rename(&parcel.path, self.folder.join(name)).is_ok() {
                spans += parcel.spans;
            }
        }
        self.look();
        spans
    }

    fn queue(&mut self, hooks: u32) -> &mut Queue {
        self.queues.entry(hooks).or_default()
    }

    /// What waits and what is with workers.
    fn all(&self) -> impl Iterator<Item = &Waiting> {
        let offered = self.offered.values().map(|(waiting, _)| waiting);
        self.queues.values().flat_map(|queue| &queue.waiting).chain(offered)
    }

    fn bytes(&self) -> u64 {
        self.all().map(|waiting| waiting.parcel.bytes).sum()
    }

    fn give_up(&mut self, waiting: &Waiting) {
        self.given_up += waiting.parcel.spans;
        let _ = fs::remove_file(&waiting.parcel.path);
    }

    /// Spans that wait.
    pub(super) fn spans_waiting(&self) -> u64 {
        self.all().map(|waiting| waiting.parcel.spans).sum()
    }

    /// A worker has opened a connection for its sink.
    pub(super) fn on_sink(&mut self, connection: u64) {
        self.sinks.push((connection, 0));
    }

    /// The connections of sinks.
    pub(super) fn sinks(&self) -> impl Iterator<Item = u64> {
        self.sinks.iter().map(|(connection, _)| *connection)
    }

    /// A connection is gone; what it was offered goes to another.
    pub(super) fn on_gone(&mut self, connection: u64) {
        self.sinks.retain(|(sink, _)| *sink != connection);
        let numbers: Vec<_> =
            self.offered.iter().filter(|(_, (_, to))| *to == connection).map(|(&number, _)| number).collect();
        for number in numbers {
            if let Some((waiting, _)) = self.offered.remove(&number) {
                let queue = self.queue(waiting.parcel.hooks);
                queue.offered -= 1;
                queue.waiting.push_front(waiting);
            }
        }
    }

    /// A worker says what became of what it was offered. Returns what is worth a line in the log.
    pub(super) fn on_done(&mut self, connection: u64, done: &SpansDone, now_ns: u64) -> Option<String> {
        let (mut waiting, _) = self.offered.remove(&done.number)?;
        if let Some((_, count)) = self.sinks.iter_mut().find(|(sink, _)| *sink == connection) {
            *count = count.saturating_sub(1);
        }
        let queue = self.queue(waiting.parcel.hooks);
        queue.offered -= 1;
        let Some(status) = done.failure else {
            queue.failures = 0;
            let refused = done.refused.min(waiting.parcel.spans);
            self.delivered += waiting.parcel.spans - refused;
            self.given_up += refused;
            let _ = fs::remove_file(&waiting.parcel.path);
            let spans = Count(refused, "span");
            return (refused > 0).then(|| format!("{spans} of a batch were given up: their receiver refuses them"));
        };
        if done.failed_hooks & waiting.parcel.hooks != 0 && done.failed_hooks != waiting.parcel.hooks {
            // The others have it. Where the file cannot be renamed, they get it again.
            let _ = waiting.parcel.restrict(done.failed_hooks & waiting.parcel.hooks);
        }
        let queue = self.queues.entry(waiting.parcel.hooks).or_default();
        match status {
            abi::STATUS_FULL => {
                queue.pause_until_ns = now_ns.saturating_add(PAUSE_FULL_NS);
                queue.waiting.push_front(waiting);
                None
            }
            abi::STATUS_REFUSED => {
                queue.failures = 0;
                self.give_up(&waiting);
                Some(format!("{} are given up: their receiver refuses them", Count(waiting.parcel.spans, "span")))
            }
            abi::STATUS_ALREADY => {
                // The worker ends.
                self.sinks.retain(|(sink, _)| *sink != connection);
                queue.waiting.push_front(waiting);
                None
            }
            _ => {
                let pause = PAUSE_FIRST_NS.saturating_mul(1 << queue.failures.min(10)).min(PAUSE_LIMIT_NS);
                queue.pause_until_ns = now_ns.saturating_add(pause);
                queue.failures += 1;
                waiting.tries += 1;
                let is_first = queue.failures == 1;
                let spans = Count(waiting.parcel.spans, "span");
                if waiting.tries >= TRIES_LIMIT {
                    self.give_up(&waiting);
                    return Some(format!("{spans} were given up: no exporter took them"));
                }
                let text = format!("an exporter did not take {spans}; it is tried again and again");
                // Behind the others: perhaps only this one is at fault.
                queue.waiting.push_back(waiting);
                is_first.then_some(text)
            }
        }
    }

    /// What to offer now, and to whom.
    pub(super) fn offers(&mut self, now_ns: u64, is_last: bool) -> Vec<Offer> {
        let mut offers = Vec::new();
        let limit = if is_last { LAST_OFFERS_LIMIT } else { OFFERS_LIMIT };
        for (&hooks, queue) in self.queues.iter_mut().filter(|(_, queue)| queue.may_offer(now_ns, false)) {
            let bits = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| hooks & hooks::SINKS & bit != 0);
            let left = bits.map(|hook| Pause::read(&self.folder, hook).left).max().unwrap_or_default();
            queue.told_until_ns = now_ns.saturating_add(left.as_nanos() as u64);
        }
        while let Some(queue) = self.queues.values_mut().find(|queue| queue.may_offer(now_ns, is_last)) {
            let Some((connection, count)) = self.sinks.iter_mut().min_by_key(|(_, count)| *count) else { break };
            if *count >= limit {
                break;
            }
            let Some(waiting) = queue.waiting.pop_front() else { break };
            queue.offered += 1;
            *count += 1;
            let number = self.next_number;
            self.next_number += 1;
            let parcel = &waiting.parcel;
            let spans = SpansOffer { number, hooks: parcel.hooks, mark: parcel.mark, path: parcel.path.clone() };
            offers.push(Offer { connection: *connection, spans });
            self.offered.insert(number, (waiting, *connection));
        }
        offers
    }

    /// When to look again although nothing happens.
    pub(super) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let waiting = self.queues.values().filter(|queue| !queue.waiting.is_empty());
        let pauses = waiting.map(Queue::next_ns).filter(|&until| until > now_ns);
        pauses.min().filter(|_| !self.sinks.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover(parcels: usize) -> (tempfile::TempDir, Handover) {
        let folder = tempfile::tempdir().unwrap();
        let mut handover = Handover::new(folder.path().into()).unwrap();
        for number in 0..parcels {
            Parcel::write(folder.path(), &format!("worker-1-{number}"), 6, 9, 10, b"spans").unwrap();
        }
        handover.on_change();
        (folder, handover)
    }

    fn done(number: u64, failed_hooks: u32, failure: Option<u32>) -> SpansDone {
        SpansDone { number, failed_hooks, failure, refused: 0 }
    }

    #[test]
    fn a_parcel_is_there_until_somebody_has_delivered_it() {
        let (folder, mut handover) = handover(2);
        assert_eq!(handover.spans_waiting(), 20);
        assert!(handover.offers(0, false).is_empty(), "there is no worker");
        handover.on_sink(5);
        let offers = handover.offers(0, false);
        assert_eq!(offers.len(), 2);
        assert_eq!(handover.on_done(5, &done(offers[0].spans.number, 0, None), 1), None);
        assert!(!offers[0].spans.path.exists() && offers[1].spans.path.exists());
        // The worker dies; another gets what it had.
        handover.on_gone(5);
        handover.on_sink(6);
        let again = handover.offers(2, false);
        assert_eq!((again[0].connection, &again[0].spans.path), (6, &offers[1].spans.path));
        assert_eq!(handover.on_done(6, &done(again[0].spans.number, 0, None), 3), None);
        assert_eq!((handover.delivered, handover.spans_waiting()), (20, 0));
        assert_eq!(Parcel::list(folder.path()), []);
    }

    #[test]
    fn what_a_receiver_refuses_of_a_parcel_that_it_takes_is_given_up() {
        let (folder, mut handover) = handover(1);
        handover.on_sink(5);
        let offers = handover.offers(0, false);
        let done = SpansDone { refused: 3, ..done(offers[0].spans.number, 0, None) };
        let line = handover.on_done(5, &done, 1).unwrap();
        assert_eq!(line, "3 spans of a batch were given up: their receiver refuses them");
        assert_eq!((handover.delivered, handover.given_up, handover.spans_waiting()), (7, 3, 0));
        assert_eq!(Parcel::list(folder.path()), []);
    }

    #[test]
    fn after_a_failure_one_parcel_is_tried_after_a_pause_for_those_that_failed() {
        let (_folder, mut handover) = handover(2);
        handover.on_sink(5);
        let offers = handover.offers(0, false);
        let line = handover.on_done(5, &done(offers[0].spans.number, 4, Some(abi::STATUS_FAILED)), 0).unwrap();
        assert!(line.starts_with("an exporter did not take 10 spans"), "{line}");
        assert_eq!(handover.on_done(5, &done(offers[1].spans.number, 4, Some(abi::STATUS_FAILED)), 0), None);
        assert!(handover.offers(1, false).is_empty(), "not before the pause is over");
        let next = handover.next_ns(1).unwrap();
        let again = handover.offers(next, false);
        assert_eq!(again.len(), 1);
        assert_eq!(again[0].spans.hooks, 4, "the other hook has it");
        handover.on_done(5, &done(again[0].spans.number, 0, None), next);
        assert_eq!(handover.offers(next, false).len(), 1);
    }

    #[test]
    fn a_hook_that_fails_holds_nothing_back_from_another() {
        let (folder, mut handover) = handover(1);
        handover.on_sink(5);
        let offers = handover.offers(0, false);
        handover.on_done(5, &done(offers[0].spans.number, 4, Some(abi::STATUS_FAILED)), 0);
        assert!(handover.offers(1, false).is_empty(), "what failed waits");
        Parcel::write(folder.path(), "worker-2-0", 2, 9, 10, b"spans").unwrap();
        Parcel::write(folder.path(), "worker-3-0", 4, 9, 10, b"spans").unwrap();
        handover.on_change();
        let offers = handover.offers(1, false);
        assert_eq!(offers.iter().map(|offer| offer.spans.hooks).collect::<Vec<_>>(), [2]);
        handover.on_done(5, &done(offers[0].spans.number, 0, None), 1);
        assert_eq!((handover.delivered, handover.spans_waiting()), (10, 20));
        let next = handover.next_ns(1).unwrap();
        assert_eq!(handover.offers(next, false).len(), 1, "one of the two is tried");
    }

    #[test]
    fn what_a_receiver_that_needs_a_pause_is_to_have_waits_until_that_is_over() {
        let (folder, mut handover) = handover(2);
        handover.on_sink(5);
        let pause = std::time::Duration::from_secs(100);
        Pause::begin(folder.path(), 4, pause, 0).unwrap();
        assert!(handover.offers(7, false).is_empty(), "they are for this hook too");
        let next = handover.next_ns(7).unwrap();
        assert!((50_000_000_000..=100_000_000_007).contains(&next), "{next}");
        Parcel::write(folder.path(), "worker-3-0", 2, 9, 10, b"spans").unwrap();
        handover.on_change();
        let offers = handover.offers(8, false);
        assert_eq!(offers.iter().map(|offer| offer.spans.hooks).collect::<Vec<_>>(), [2]);
        handover.on_done(5, &done(offers[0].spans.number, 0, None), 9);
        Pause::end(folder.path(), 4);
        assert_eq!(handover.offers(next, false).len(), 2);
    }

    #[test]
    fn a_worker_that_ends_is_offered_nothing_more_and_no_harm_is_done() {
        let (_folder, mut handover) = handover(1);
        handover.on_sink(5);
        let offers = handover.offers(0, false);
        handover.on_done(5, &done(offers[0].spans.number, 6, Some(abi::STATUS_ALREADY)), 0);
        assert!(handover.offers(0, true).is_empty());
        assert_eq!((handover.spans_waiting(), handover.given_up), (10, 0));
    }
}
