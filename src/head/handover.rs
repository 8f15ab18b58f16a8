//! Redelivery: offers batches of undelivered spans, from dead processes or failed exporters, to the span sinks of living workers.
//!
//! A worker whose hook has a span sink says so by a connection of its own for it. Parcels come from processes that put spans aside, from
//! the spools of the dead, and from sessions before this one. Each is offered to one worker at a time, stays a file until that
//! worker's hook has delivered it, and goes to another worker if that one dies or fails.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::inotify;
use tracer_abi as abi;
use tracer_core::count::Count;
use tracer_ipc::protocol::{SpansDone, SpansOffer};
use tracer_ipc::session::DISCARDED;
use tracer_ipc::spool::owners::{self, Owners};
use tracer_ipc::spool::{Parcel, Pause};

/// Parcels that a worker is offered at once. Its hook delivers them one after another.
const OFFERS_LIMIT: usize = 4;
/// The same when the head stops, and there is no later.
const LAST_OFFERS_LIMIT: usize = 32;
/// Bytes of parcels that are kept. Beyond it, the oldest are given up.
const BYTES_LIMIT: u64 = 64 << 20;
/// Limit on the tries of a parcel.
const TRIES_LIMIT: u32 = 50;
/// Pause after a failure, at first and at most.
const PAUSE_FIRST_NS: u64 = 500_000_000;
const PAUSE_LIMIT_NS: u64 = 30_000_000_000;
/// Pause when a worker's hook has more than it takes.
const PAUSE_FULL_NS: u64 = 50_000_000;

/// A parcel to send to a worker's sink.
pub(super) struct Offer {
    pub(super) connection: u64,
    pub(super) spans: SpansOffer,
}

pub(super) struct Handover {
    folder: PathBuf,
    /// The hooks of the session.
    own: Owners,
    /// Spans that wait for hooks which this session has not.
    foreign_spans: u64,
    /// Wakes the head when a parcel comes into the folder.
    watch: OwnedFd,
    /// Parcels that wait, by the hooks that they are for: hooks that fail do not hold back what is for others.
    queues: BTreeMap<u32, Queue>,
    /// Parcels that are with a worker, by the offer's number.
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
    /// Number of parcels that are with workers.
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
    /// `own` are the hooks of the session; without any, all parcels are other hooks'.
    pub(super) fn new(folder: PathBuf, own: Owners) -> io::Result<Handover> {
        match fs::DirBuilder::new().mode(0o700).create(owners::foreign_dir(&folder)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => own.write(&folder)?,
        }
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, &folder, inotify::WatchFlags::MOVED_TO)?;
        Ok(Handover {
            folder,
            own,
            foreign_spans: 0,
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

    /// Notes that something has come into the folder.
    pub(super) fn on_change(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        let mut is_discarded = false;
        // What has come is in the folder, also when there were too many events to tell of each.
        while let Ok(event) = reader.next() {
            is_discarded |= event.file_name().is_some_and(|name| name.to_bytes() == DISCARDED.as_bytes());
        }
        if is_discarded {
            let _ = fs::remove_file(self.folder.join(DISCARDED));
            self.queues.values_mut().for_each(|queue| queue.waiting.retain(|it| it.parcel.path.exists()));
            self.count_foreign();
        }
        self.look();
    }

    /// Takes up the parcels in the folder that are not known.
    pub(super) fn look(&mut self) {
        let known: HashSet<PathBuf> = self.all().map(|waiting| waiting.parcel.path.clone()).collect();
        let new = Parcel::list(&self.folder).into_iter().filter(|parcel| !known.contains(&parcel.path));
        for parcel in new.filter_map(|parcel| self.own_part(parcel)).collect::<Vec<_>>() {
            self.queue(parcel.hooks).waiting.push_back(Waiting { parcel, tries: 0 });
        }
        while self.bytes() > BYTES_LIMIT {
            // Of the hooks that take the least.
            let longest = self.queues.values_mut().max_by_key(|queue| queue.waiting.len());
            let Some(oldest) = longest.and_then(|queue| queue.waiting.pop_front()) else { break };
            self.give_up(&oldest);
        }
    }

    /// Takes the parcels in the folders of other sessions over into this one's.
    pub(super) fn take_over(&mut self, folders: &[PathBuf]) {
        for folder in folders {
            // Without the names of their hooks, they are nobody's: they stay where they are, for the next head.
            if Owners::copy_all(folder, &self.folder).is_err() {
                continue;
            }
            for mut parcel in owners::all_parcels(folder) {
                let (hooks, mark) = (parcel.hooks, parcel.mark);
                // One that cannot be moved is tried again by the next head.
                let _ = parcel.move_to(&self.folder, hooks, mark);
            }
        }
        self.count_foreign();
        self.look();
    }

    /// Returns the part of a parcel that is for hooks of this session. What is for others is put where it waits for a head that has them.
    fn own_part(&mut self, mut parcel: Parcel) -> Option<Parcel> {
        if parcel.mark == self.own.mark {
            return Some(parcel);
        }
        let of = Owners::read(&self.folder, parcel.mark);
        let (own, foreign) = self.own.translate(parcel.hooks, of.as_ref());
        if foreign == 0 {
            parcel.move_to(&self.folder, own, self.own.mark).ok()?;
            return Some(parcel);
        }
        // First the part that is for this session: who comes after a kill between the two does it again.
        let of_own = (own != 0).then(|| parcel.link_to(&self.folder, own, self.own.mark)).transpose().ok()?;
        let mark = parcel.mark;
        if parcel.move_to(&owners::foreign_dir(&self.folder), foreign, mark).is_ok() {
            self.foreign_spans += parcel.spans;
            self.bound_foreign();
        }
        of_own
    }

    /// Gives up the oldest of what waits for other hooks, where it is too much.
    fn bound_foreign(&mut self) {
        let parcels = Parcel::list(&owners::foreign_dir(&self.folder));
        let mut bytes: u64 = parcels.iter().map(|parcel| parcel.bytes).sum();
        for parcel in parcels {
            if bytes <= BYTES_LIMIT {
                break;
            }
            if fs::remove_file(&parcel.path).is_ok() {
                bytes -= parcel.bytes;
                self.foreign_spans = self.foreign_spans.saturating_sub(parcel.spans);
                self.given_up += parcel.spans;
            }
        }
    }

    fn count_foreign(&mut self) {
        self.foreign_spans = Parcel::list(&owners::foreign_dir(&self.folder)).iter().map(|parcel| parcel.spans).sum();
    }

    /// Spans that wait for hooks which this session has not.
    pub(super) fn spans_of_others(&self) -> u64 {
        self.foreign_spans
    }

    fn queue(&mut self, hooks: u32) -> &mut Queue {
        self.queues.entry(hooks).or_default()
    }

    /// Returns what waits and what is with workers.
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

    /// Notes that a worker has opened a connection for its sink.
    pub(super) fn on_sink(&mut self, connection: u64) {
        self.sinks.push((connection, 0));
    }

    /// Returns the connections of sinks.
    pub(super) fn sinks(&self) -> impl Iterator<Item = u64> {
        self.sinks.iter().map(|(connection, _)| *connection)
    }

    /// Notes that a connection is gone; what it was offered goes to another.
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

    /// Notes that a worker says what became of what it was offered. Returns what is worth a line in the log.
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
                let text = format!("an exporter did not take {spans}; they are offered again until one does");
                // Behind the others: perhaps only this one is at fault.
                queue.waiting.push_back(waiting);
                is_first.then_some(text)
            }
        }
    }

    /// Returns what to offer now, and to whom.
    pub(super) fn offers(&mut self, now_ns: u64, is_last: bool) -> Vec<Offer> {
        let mut offers = Vec::new();
        let limit = if is_last { LAST_OFFERS_LIMIT } else { OFFERS_LIMIT };
        for (&hooks, queue) in self.queues.iter_mut().filter(|(_, queue)| queue.may_offer(now_ns, false)) {
            let left = owners::bits(hooks).map(|hook| Pause::read(&self.folder, hook).left).max().unwrap_or_default();
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

    /// Returns when to look again although nothing happens.
    pub(super) fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let waiting = self.queues.values().filter(|queue| !queue.waiting.is_empty());
        let pauses = waiting.map(Queue::next_ns).filter(|&until| until > now_ns);
        pauses.min().filter(|_| !self.sinks.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(mark: u32, names: &[&str]) -> Owners {
        Owners { mark, names: names.iter().map(|&name| name.to_owned()).collect() }
    }

    fn handover(parcels: usize) -> (tempfile::TempDir, Handover) {
        let folder = tempfile::tempdir().unwrap();
        let mut handover = Handover::new(folder.path().into(), owners(9, &["a:a", "b:b"])).unwrap();
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
    fn parcels_of_an_earlier_session_go_to_the_hooks_of_the_same_name_and_others_wait() {
        let (earlier, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        owners(3, &["b:b", "c:c"]).write(earlier.path()).unwrap();
        for (number, hooks, mark) in [(1, 2, 3), (2, 4, 3), (3, 2 | 4, 3), (4, 2, 77), (5, 4, 9)] {
            Parcel::write(earlier.path(), &format!("worker-{number}"), hooks, mark, 10, b"spans").unwrap();
        }
        let mut handover = Handover::new(folder.path().into(), owners(9, &["a:a", "b:b"])).unwrap();
        handover.take_over(&[earlier.path().into()]);
        assert_eq!((handover.spans_waiting(), handover.spans_of_others()), (30, 30));
        handover.on_sink(5);
        let mut offered: Vec<_> = handover.offers(0, false).into_iter().map(|offer| offer.spans).collect();
        offered.sort_by(|one, other| one.path.cmp(&other.path));
        let offered: Vec<_> = offered.iter().map(|spans| (spans.hooks, spans.mark)).collect();
        assert_eq!(offered, [(4, 9); 3]);
        let mut others: Vec<_> = Parcel::list(&owners::foreign_dir(folder.path()));
        others.sort_by(|one, other| one.path.cmp(&other.path));
        let others: Vec<_> = others.iter().map(|parcel| (parcel.hooks, parcel.mark)).collect();
        assert_eq!(others, [(4, 3), (4, 3), (2, 77)]);
        // A head with the other hook comes.
        let next = tempfile::tempdir().unwrap();
        let mut handover = Handover::new(next.path().into(), owners(5, &["c:c"])).unwrap();
        handover.take_over(&[folder.path().into()]);
        assert_eq!((handover.spans_waiting(), handover.spans_of_others()), (20, 40));
        assert_eq!(owners::all_parcels(folder.path()), []);
        // Somebody discards them all.
        for parcel in owners::all_parcels(next.path()) {
            fs::remove_file(parcel.path).unwrap();
        }
        session_discarded(next.path());
        handover.on_change();
        assert_eq!((handover.spans_waiting(), handover.spans_of_others()), (0, 0));
    }

    fn session_discarded(folder: &Path) {
        tracer_ipc::session::report_discarded(folder).unwrap();
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
