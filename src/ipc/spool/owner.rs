//! The owner's side: a process records its claims and its spans.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracer_abi as abi;
use tracer_core::propagation::FLAG_SAMPLED;
use tracer_core::task::StopReason;

use super::grants::Reach;
use super::layout::{Mapping, PARENT_IS_REMOTE, SLOT_ENDED, SLOT_FREE, SLOT_OPEN, SlotHeader, SpoolError};
use super::record::{EntryWriter, OwnedValue};
use super::slot_caches::{self, SlotCaches};
use super::story::{self, SpanStory, SpoolCounts};
use super::{claims, hooks, prefixes};
use crate::claims::CLAIM_COUNT;
use crate::fork;
use crate::identity::BirthWindow;
use crate::spool::parcel::PARCEL_SPANS;
use crate::spool::prefixes::Prefix;

/// A slot that holds a span of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(u32);

/// Description of a span that starts.
#[derive(Clone, Copy, Debug)]
pub struct SpanOpening<'a> {
    /// The trace that it belongs to.
    pub trace_id: [u8; 16],
    /// Its own id.
    pub span_id: [u8; 8],
    /// All zero for a root.
    pub parent_span_id: [u8; 8],
    /// True if the parent is in another process.
    pub is_parent_remote: bool,
    /// Its W3C trace flags. A span that is not sampled is for the processors of the hook only: nobody exports or writes it.
    pub trace_flags: u8,
    /// Its W3C `tracestate`; empty for none.
    pub trace_state: &'a [u8],
    /// Time of its start, in nanoseconds since the Unix epoch.
    pub start_time_unix_nano: u64,
    /// One of `tracer_abi::SPAN_KIND_*`.
    pub kind: u32,
    /// Its name, in UTF-8.
    pub name: &'a [u8],
    /// The name of its instrumentation scope.
    pub scope: &'a [u8],
    /// The version of its instrumentation scope; empty for none.
    pub scope_version: &'a [u8],
    /// The attributes that it has first.
    pub prefix: Prefix<'a>,
    /// 0 outside of tasks.
    pub task_id: u64,
    /// True if this is the span of the attempt itself.
    pub is_attempt: bool,
}

impl SpanOpening<'_> {
    fn is_sampled(&self) -> bool {
        self.trace_flags & FLAG_SAMPLED != 0
    }
}

/// This process's spool.
///
/// Threads: any. The functions that change one slot must not overlap for that slot; the caller holds the span's lock.
pub struct Spool {
    /// Number that tells it from the other spools of this process.
    number: u64,
    mapping: Mapping,
    /// Second copy of a worker's progress, in the file of grants.
    reach: Option<Reach>,
    path: PathBuf,
    /// True if the file is left to the next head.
    is_kept: AtomicBool,
    /// Prefix that the entries of each slot begin with. Not in the slots, which are not in the cache when they are used again.
    beginnings: Box<[Beginning]>,
    slots: Mutex<Slots>,
    /// Tells whoever brings spans on that there are some.
    has_undelivered: Condvar,
    /// Brings some of them on at once.
    relief: OnceLock<&'static (dyn Fn() + Send + Sync)>,
    /// Commit of the hook, which writes what has ended.
    commit: OnceLock<&'static (dyn Fn() -> Committing + Send + Sync)>,
    /// Tells those who wait for a slot that a commit is over.
    has_written: Condvar,
    inline: Mutex<claims::InlineEntries>,
}

/// Prefix that the entries of a slot begin with, whether or not there is a span. Changed by whoever has taken the slot.
#[derive(Default)]
struct Beginning {
    /// The number of the [`Prefix`]; 0 for none.
    prefix_id: AtomicU64,
    /// Number of attributes of the prefix.
    prefix_count: AtomicU32,
    /// Bytes of entries up to its end.
    prefix_len: AtomicU32,
}

struct Slots {
    /// Last used first, so that few pages are ever touched.
    free: Vec<u32>,
    /// Slots from the first on that are in use or in `free`. The others have no space on the disk yet.
    backed: usize,
    /// Slots that threads have in hand.
    caches: SlotCaches,
    /// Ended, oldest first, until someone says that they are written.
    ended: VecDeque<u32>,
    /// Ended, and under way to the exporters of the first hook.
    under_way: HashMap<Identity, u32>,
    /// Ended, and given back by those exporters, oldest first.
    returned: VecDeque<u32>,
    /// Ended, and not yet given to the additional hooks, oldest first.
    ungiven: VecDeque<u32>,
    /// Attempts' spans that nobody wants any more, oldest first. They stay until the results of their tasks are surely sent:
    /// should this process die before, the head learns from them which attempts have a span.
    told: VecDeque<u32>,
    /// Spans without a slot that exporters have: those of which nobody has heard what became of them. True for one whose slot was needed,
    /// false for one that never had any.
    loose: HashMap<Identity, bool>,
    /// Spans that the next commit covers besides those in `ended`.
    beside: Beside,
    /// Number of slots that commits under way will free.
    being_written: usize,
    /// True if the last commit failed.
    is_refused: bool,
    /// True if somebody has waited in vain for the commit that is under way.
    is_stuck: bool,
    /// Threads that wait for a commit.
    waiters: usize,
    /// Spans that have ended since a commit was due.
    since_due: usize,
}

/// Ended spans that the hook has and the spool has not.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// Their slots were needed.
    evicted: u64,
    /// They never had a slot.
    unrecorded: u64,
}

/// Spans that a commit covers.
#[derive(Debug, Default)]
pub struct Batch {
    /// The slots of ended spans, oldest first.
    slots: VecDeque<u32>,
    beside: Beside,
    /// True if others wait for the slots.
    is_commit: bool,
}

/// Outcome of an attempt to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committing {
    /// It is over.
    Done,
    /// Another thread is about it.
    Elsewhere,
}

thread_local! {
    /// True while this thread is in a hook's function that delivers spans. That may make spans, which cannot wait for it.
    static IS_DELIVERING: Cell<bool> = const { Cell::new(false) };
}

/// Exporters that never tell what became of a span do not fill the memory with it.
const LOOSE_LIMIT: usize = 1 << 16;

/// Time that a span that starts waits for a slot while the disk takes spans.
const PATIENCE: Duration = Duration::from_secs(5);

/// Attempts' spans that stay: as many as may have ended without a word to the head.
const TOLD_LIMIT: usize = CLAIM_COUNT;

/// Number of ended spans from which a commit is due: few enough that their slots stay in the processor's cache, and that a task which makes spans for
/// long does not fill all of them.
const COMMIT_DUE_AT: usize = 256;

/// Trace id and span id, as a slot has them.
type Identity = [u64; 3];

/// Outcome of a span at the exporters of the first hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// They have it.
    Arrived,
    /// They cannot take it now.
    Returned,
    /// They will never take it.
    Refused,
}

/// Ended spans that nobody has and nobody is bringing on.
#[derive(Debug, Default)]
pub struct Undelivered {
    /// For the exporters of the first hook, which have given them back.
    pub returned: Vec<SlotIndex>,
    /// For the additional hooks.
    pub ungiven: Vec<SlotIndex>,
}

impl Spool {
    /// Makes a spool of this process's own, with room for so many spans that are open or not written yet.
    pub fn create(path: &Path, slot_count: usize) -> Result<Spool, SpoolError> {
        Ok(Spool::over(Mapping::create(path, slot_count)?, None, path))
    }

    /// Attaches to the spool that the head has made for this process.
    pub fn attach(path: &Path) -> Result<Spool, SpoolError> {
        Ok(Spool::over(Mapping::open(path)?, Some(Reach::open(path)?), path))
    }

    fn over(mapping: Mapping, reach: Option<Reach>, path: &Path) -> Spool {
        fork::remember_process();
        let header = mapping.header();
        header.owner_birth.store(crate::identity::birth(std::process::id()).unwrap_or(0), Relaxed);
        header.pid.store(std::process::id(), Release);
        let backed = mapping.slots_backed();
        let mut free = Vec::with_capacity(mapping.slot_count());
        free.extend((0..backed as u32).rev());
        let slots = Slots {
            free,
            backed,
            caches: SlotCaches::default(),
            ended: VecDeque::new(),
            under_way: HashMap::new(),
            returned: VecDeque::new(),
            ungiven: VecDeque::new(),
            told: VecDeque::new(),
            loose: HashMap::new(),
            beside: Beside::default(),
            being_written: 0,
            is_refused: false,
            is_stuck: false,
            waiters: 0,
            since_due: 0,
        };
        header.hooks.store(hooks::FILE, Relaxed);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Spool {
            number: NEXT.fetch_add(1, Relaxed),
            beginnings: beginnings(mapping.slot_count()),
            mapping,
            reach,
            path: path.into(),
            is_kept: AtomicBool::new(false),
            slots: Mutex::new(slots),
            has_undelivered: Condvar::new(),
            relief: OnceLock::new(),
            commit: OnceLock::new(),
            has_written: Condvar::new(),
            inline: Mutex::default(),
        }
    }

    /// Count of spans that may be open or not written at once.
    pub fn slot_count(&self) -> usize {
        self.mapping.slot_count()
    }

    /// Returns its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Says for which [hooks](super::hooks) the spans of this process are, before the first of them starts. `mark` tells these
    /// hooks from those of another session.
    pub fn set_hooks(&self, hooks: u32, mark: u32) {
        self.mapping.header().hooks_mark.store(mark, Relaxed);
        self.mapping.header().hooks.store(hooks, Release);
    }

    /// Returns the [hooks](super::hooks) that the spans of this process are for.
    pub fn hooks(&self) -> u32 {
        self.mapping.header().hooks.load(Relaxed)
    }

    /// Claims a lease: from here on its task has begun. False when the head has taken it back.
    pub fn claim(&self, lease: u64, now_unix_nano: u64) -> bool {
        let header = self.mapping.header();
        header.running_since.store(now_unix_nano, Relaxed);
        header.running_lease.store(lease + 1, Release);
        let is_claimed = claims::claim(&self.mapping, lease);
        if !is_claimed {
            self.attempt_ended();
        } else if let Some(reach) = &self.reach {
            reach.claimed(lease);
        }
        is_claimed
    }

    /// Says that the attempt at the lease claimed last has ended, whether or not anyone knows how.
    pub fn attempt_ended(&self) {
        self.mapping.header().running_lease.store(0, Release);
    }

    /// Notes that an attempt at a task begins while others of this process wait. None when too many run inside of one another.
    pub fn begin_inline(&self, task: u64, attempt: u32) -> Option<usize> {
        self.inline.lock().unwrap_or_else(PoisonError::into_inner).begin(&self.mapping, task, attempt)
    }

    /// Says that such a task has ended, whether or not anyone knows how.
    pub fn end_inline(&self, entry: usize) {
        self.inline.lock().unwrap_or_else(PoisonError::into_inner).end(entry);
    }

    /// Returns why an attempt is to end, if the head has said so.
    pub fn stop_reason(&self, task: u64, attempt: u32) -> Option<StopReason> {
        claims::stop_reason(&self.mapping, task, attempt)
    }

    /// Returns whether an attempt is to end, asked by the task itself; that it knows is remembered.
    pub fn is_to_stop(&self, task: u64, attempt: u32) -> bool {
        let is_to_stop = self.stop_reason(task, attempt).is_some();
        if is_to_stop {
            self.mapping.header().stop_seen.store(task, Release);
        }
        is_to_stop
    }

    /// Returns whether the task was told that it is to end.
    pub fn was_stop_seen(&self, task: u64) -> bool {
        self.mapping.header().stop_seen.load(Acquire) == task
    }

    /// Notes the process group of a command that is about to start. Called in the process that becomes it, where only a store is
    /// allowed; the worker says more of it when it runs.
    pub fn note_command_group(&self, group: u32) {
        self.mapping.header().command_group.store(group, Release);
    }

    /// Says which process group the running command has, and within which window its leader was born.
    pub fn set_command_group(&self, group: u32, window: BirthWindow) {
        self.mapping.header().command_birth.store(window.close(group).unwrap_or(0), Relaxed);
        self.note_command_group(group);
    }

    /// Says that no command runs.
    pub fn clear_command_group(&self) {
        self.mapping.header().command_birth.store(0, Relaxed);
        self.note_command_group(0);
    }

    /// Says in which file and which form, one of `tracer_abi::SPAN_FILE_*`, the first hook keeps the spans of this process. A path
    /// that is too long is left out.
    pub fn set_span_file(&self, path: &str, format: u32) {
        // SAFETY: the bytes are within the mapping, and only this process writes them, once.
        let room = unsafe { self.mapping.span_file().as_mut() };
        let Some(room) = room.get_mut(..path.len()) else { return };
        room.copy_from_slice(path.as_bytes());
        let header = self.mapping.header();
        header.span_file_len.store(path.len() as u32, Relaxed);
        header.span_file_format.store(format, Release);
    }

    /// Stores the resource of this process's spans, for whoever completes them.
    ///
    /// # Safety
    ///
    /// What the attributes point to is readable.
    pub unsafe fn set_resource(&self, resource: &[abi::KeyValue]) {
        // SAFETY: the bytes are within the mapping, and nobody else writes the resource of this process.
        let room = unsafe { self.mapping.resource().as_mut() };
        let mut writer = EntryWriter::new(room, 0);
        for attribute in resource {
            // SAFETY: promised by the caller.
            if !unsafe { writer.attribute(attribute) } {
                self.mapping.header().cut.fetch_add(1, Relaxed);
            }
        }
        self.mapping.header().resource_len.store(writer.len() as u32, Release);
    }

    /// Records that a span has started. None when every slot holds an open span, or the disk has no space for a further slot: that is
    /// counted.
    pub fn open(&self, opening: &SpanOpening<'_>) -> Option<SlotIndex> {
        self.open_with(opening, |_, _| ())
    }

    /// Opens a span as [`open`](Self::open) does, and records with `begin` what else it begins with. Nobody sees the span without that,
    /// whenever this process dies.
    pub fn open_with(&self, opening: &SpanOpening<'_>, begin: impl FnOnce(&Spool, SlotIndex)) -> Option<SlotIndex> {
        if fork::is_copy() {
            self.mapping.header().forked.fetch_add(1, Relaxed);
            return None;
        }
        let Some(index) = self.take_free_slot() else {
            if opening.is_sampled() {
                self.mapping.header().unrecorded.fetch_add(1, Relaxed);
            }
            return None;
        };
        let slot = self.mapping.slot(index as usize);
        // It may have been another span's until now.
        slot.state.store(SLOT_FREE, Relaxed);
        slot.start_time_unix_nano.store(opening.start_time_unix_nano, Relaxed);
        slot.end_time_unix_nano.store(0, Relaxed);
        slot.task_id.store(opening.task_id, Relaxed);
        let (high, low) = opening.trace_id.split_at(8);
        slot.trace_id[0].store(u64::from_ne_bytes(high.try_into().expect("half of 16 bytes")), Relaxed);
        slot.trace_id[1].store(u64::from_ne_bytes(low.try_into().expect("half of 16 bytes")), Relaxed);
        slot.span_id.store(u64::from_ne_bytes(opening.span_id), Relaxed);
        slot.parent_span_id.store(u64::from_ne_bytes(opening.parent_span_id), Relaxed);
        slot.kind.store(opening.kind, Relaxed);
        slot.is_attempt.store(opening.is_attempt.into(), Relaxed);
        let remote = if opening.is_parent_remote { PARENT_IS_REMOTE } else { 0 };
        slot.flags.store(u32::from(opening.trace_flags) | remote, Relaxed);
        slot.status.store(abi::SPAN_STATUS_UNSET, Relaxed);
        slot.cut.store(0, Relaxed);
        let index = SlotIndex(index);
        self.begin_entries(index, opening);
        if !opening.trace_state.is_empty() {
            self.append(index, |entries| entries.trace_state(opening.trace_state));
        }
        begin(self, index);
        slot.state.store(SLOT_OPEN, Release);
        Some(index)
    }

    /// Begins the record of a span with its name, its scope and its first attributes. If the span before it in its slot began with the same,
    /// they are there: what is written to a slot that has left the cache costs more than all that goes on in the processor meanwhile.
    fn begin_entries(&self, index: SlotIndex, opening: &SpanOpening<'_>) {
        let slot = self.mapping.slot(index.0 as usize);
        let beginning = &self.beginnings[index.0 as usize];
        let (id, count) = (opening.prefix.id, opening.prefix.attributes.len() as u32);
        if id != 0 && beginning.prefix_id.load(Relaxed) == id && beginning.prefix_count.load(Relaxed) == count {
            slot.len.store(beginning.prefix_len.load(Relaxed), Release);
            return;
        }
        slot.len.store(0, Relaxed);
        beginning.prefix_id.store(0, Relaxed);
        self.append(index, |entries| {
            let mut fits = entries.name(opening.name);
            fits &= entries.scope(opening.scope);
            if !opening.scope_version.is_empty() {
                fits &= entries.scope_version(opening.scope_version);
            }
            fits &= prefixes::append(entries, &opening.prefix);
            if fits {
                beginning.prefix_id.store(id, Relaxed);
                beginning.prefix_count.store(count, Relaxed);
                beginning.prefix_len.store(entries.len() as u32, Relaxed);
            }
            fits
        });
    }

    /// Appends entries to an open span's record. `write` says whether all of them fitted; what did not is counted.
    pub(super) fn append(&self, index: SlotIndex, write: impl FnOnce(&mut EntryWriter<'_>) -> bool) {
        if fork::is_copy() {
            // The span is another process's.
            return;
        }
        let slot = self.mapping.slot(index.0 as usize);
        // SAFETY: within the mapping; the caller holds the span's lock, so no one else writes these bytes.
        let room = unsafe { self.mapping.entries(index.0 as usize).as_mut() };
        let mut writer = EntryWriter::new(room, slot.len.load(Relaxed) as usize);
        let fits = write(&mut writer);
        let len = writer.len() as u32;
        slot.len.store(len, Release);
        if !fits {
            slot.cut.fetch_add(1, Relaxed);
        }
    }

    /// Records attributes.
    ///
    /// # Safety
    ///
    /// What the attributes point to is readable.
    pub unsafe fn set_attributes(&self, index: SlotIndex, attributes: &[abi::KeyValue]) {
        if attributes.is_empty() {
            return;
        }
        self.append(index, |entries| {
            // SAFETY: promised by the caller.
            attributes.iter().fold(true, |fits, attribute| unsafe { entries.attribute(attribute) } & fits)
        });
    }

    /// Records a span event.
    ///
    /// # Safety
    ///
    /// What the event points to is readable.
    pub unsafe fn add_event(&self, index: SlotIndex, event: &abi::Event, now: u64) {
        // SAFETY: promised by the caller.
        self.append(index, |entries| unsafe { entries.event(event, now) });
    }

    /// Records a link.
    ///
    /// # Safety
    ///
    /// What the link points to is readable.
    pub unsafe fn add_link(&self, index: SlotIndex, link: &abi::Link) {
        // SAFETY: promised by the caller.
        self.append(index, |entries| unsafe { entries.link(link) });
    }

    /// Records the status. As in OpenTelemetry, OK is final and UNSET is ignored.
    pub fn set_status(&self, index: SlotIndex, code: u32, description: &[u8]) {
        let slot = self.mapping.slot(index.0 as usize);
        let may_change = !fork::is_copy() && slot.status.load(Relaxed) != abi::SPAN_STATUS_OK;
        if may_change && matches!(code, abi::SPAN_STATUS_OK | abi::SPAN_STATUS_ERROR) {
            self.append(index, |entries| entries.status_description(description));
            slot.status.store(code, Release);
        }
    }

    /// Records a new name.
    pub fn update_name(&self, index: SlotIndex, name: &[u8]) {
        self.append(index, |entries| entries.name(name));
    }

    /// Records that the span has ended. From then on it may be [delivered](Self::delivered).
    pub fn end(&self, index: SlotIndex, end_time_unix_nano: u64) {
        if fork::is_copy() {
            return;
        }
        let slot = self.mapping.slot(index.0 as usize);
        let hooks = self.hooks();
        slot.end_time_unix_nano.store(end_time_unix_nano, Relaxed);
        slot.pending.store(hooks, Relaxed);
        slot.state.store(SLOT_ENDED, Release);
        if hooks & hooks::EXPORTERS != 0 {
            self.slots().under_way.insert(identity(slot), index.0);
        }
    }

    /// Says that the first hook has got an ended span, so that its next commit covers it. True now and then, when that should come soon,
    /// because so many wait for it.
    pub fn handed_over(&self, index: SlotIndex, is_sampled: bool) -> bool {
        if fork::is_copy() {
            return false;
        }
        let hooks = self.hooks();
        // One that only exporters want may be gone already, and its slot another's.
        if hooks & !hooks::EXPORTERS == 0 {
            return false;
        }
        if hooks == hooks::FILE && slot_caches::put_ended(self.number, index.0) {
            return false;
        }
        let mut slots = self.slots();
        let mut is_commit_due = false;
        if hooks & hooks::FILE != 0 {
            let before = slots.ended.len();
            SlotCaches::collect_own(self.number, |ended| slots.ended.push_back(ended));
            slots.ended.push_back(index.0);
            let count = slots.ended.len() - before;
            is_commit_due = slots.is_commit_due(count);
        }
        let further = hooks & !hooks::FILE & !hooks::EXPORTERS;
        if further != 0 && is_sampled {
            slots.ungiven.push_back(index.0);
            self.report_undelivered(&slots);
        } else if further != 0 {
            // It is recorded for processors of the first hook to see, and for nobody to export.
            self.settle(&mut slots, index.0, further);
        }
        is_commit_due
    }

    /// Says that a sampled span without a slot ends, before the first hook is told.
    pub fn ends_without_slot(&self, trace_id: [u8; 16], span_id: [u8; 8]) {
        if self.hooks() & hooks::EXPORTERS != 0 && !fork::is_copy() {
            self.slots().add_loose(identity_of(trace_id, span_id), false);
        }
    }

    /// Says that the first hook has got an ended span without a slot. The result is that of [`handed_over`](Self::handed_over).
    pub fn handed_over_without_slot(&self) -> bool {
        if fork::is_copy() {
            return false;
        }
        let hooks = self.hooks();
        if hooks & !hooks::FILE & !hooks::EXPORTERS != 0 {
            // Additional hooks get spans from their slots.
            self.mapping.header().missed.fetch_add(1, Relaxed);
        }
        if hooks & hooks::FILE == 0 {
            return false;
        }
        let mut slots = self.slots();
        slots.beside.unrecorded += 1;
        slots.is_commit_due(1)
    }

    /// Says how to have the hook write what has ended, when there is no slot for a span that starts.
    pub fn set_commit(&self, commit: &'static (dyn Fn() -> Committing + Send + Sync)) {
        // It is set once, by the recorder.
        let _ = self.commit.set(commit);
    }

    /// Says what the first hook has given up: of the spans that its last successful commit or one before it covered, and since.
    pub fn count_dropped(&self, spans: u64, is_committed: bool) {
        let header = self.mapping.header();
        // Those of a forked process are nobody's.
        if fork::is_copy() {
            return;
        }
        let since = header.dropped_since.fetch_add(spans, Relaxed) + spans;
        if is_committed && since > 0 {
            header.dropped.fetch_add(since, Relaxed);
            header.dropped_since.fetch_sub(since, Relaxed);
        }
    }

    /// Spans that the first hook has given up.
    pub fn dropped(&self) -> u64 {
        let header = self.mapping.header();
        header.dropped.load(Relaxed) + header.dropped_since.load(Relaxed)
    }

    /// Says that the first hook does not tell what it delivers.
    pub fn set_untold(&self) {
        self.mapping.header().is_untold.store(1, Relaxed);
    }

    /// Marks that this thread delivers spans for as long as `work` takes.
    pub fn while_delivering<R>(work: impl FnOnce() -> R) -> R {
        let before = IS_DELIVERING.replace(true);
        let result = work();
        IS_DELIVERING.set(before);
        result
    }

    /// Says what to do when there is no slot for a span that starts, while others have ended that nobody is bringing on.
    pub fn set_relief(&self, relief: &'static (dyn Fn() + Send + Sync)) {
        // It is set once, by whoever brings spans on.
        let _ = self.relief.set(relief);
    }

    /// Takes the spans that the hook has got and that are not known to be written. After the commit, either
    /// [`written`](Self::written) or [`not_written`](Self::not_written) takes them back. `is_commit` says that this will be soon, so
    /// that others may wait for it.
    pub fn take_handed_over(&self, is_commit: bool) -> Batch {
        if fork::is_copy() {
            return Batch::default();
        }
        let mut slots = self.slots();
        slots.collect();
        slots.since_due = 0;
        let batch =
            Batch { slots: std::mem::take(&mut slots.ended), beside: std::mem::take(&mut slots.beside), is_commit };
        if is_commit {
            slots.being_written += batch.slots.len();
        }
        batch
    }

    /// Frees the slots of spans whose bytes are in the span file, but for those that others want too.
    pub fn written(&self, batch: Batch) {
        let header = self.mapping.header();
        let Batch { slots: written, beside, is_commit } = batch;
        if beside.evicted + beside.unrecorded > 0 {
            header.evicted.fetch_sub(beside.evicted, Relaxed);
            header.unrecorded.fetch_sub(beside.unrecorded, Relaxed);
        }
        let count = if is_commit { written.len() } else { 0 };
        let mut slots;
        if self.hooks() == hooks::FILE {
            for &index in &written {
                self.mapping.slot(index as usize).state.store(SLOT_FREE, Release);
            }
            slots = self.slots();
            slots.free.extend(written.into_iter().rev());
        } else {
            slots = self.slots();
            written.into_iter().rev().for_each(|index| self.settle(&mut slots, index, hooks::FILE));
        }
        self.end_commit(&mut slots, count, false);
    }

    /// Keeps the slots of spans that nobody has written.
    pub fn not_written(&self, batch: Batch) {
        let Batch { slots: kept, beside, is_commit } = batch;
        let count = if is_commit { kept.len() } else { 0 };
        let mut slots = self.slots();
        slots.beside.evicted += beside.evicted;
        slots.beside.unrecorded += beside.unrecorded;
        for index in kept.into_iter().rev() {
            slots.ended.push_front(index);
        }
        self.end_commit(&mut slots, count, is_commit);
    }

    fn end_commit(&self, slots: &mut Slots, count: usize, is_refused: bool) {
        slots.being_written -= count;
        slots.is_refused = is_refused;
        // It is a system call, also when nobody waits.
        if std::mem::take(&mut slots.is_stuck) || slots.waiters > 0 {
            self.has_written.notify_all();
        }
    }

    /// Says what became of spans, by trace id and span id, at the exporters of the first hook.
    pub fn delivered(&self, spans: impl Iterator<Item = ([u8; 16], [u8; 8])>, arrival: Arrival) {
        let header = self.mapping.header();
        let mut slots = self.slots();
        for (trace_id, span_id) in spans {
            let identity = identity_of(trace_id, span_id);
            let Some(index) = slots.under_way.remove(&identity) else {
                let Some(was_evicted) = slots.loose.remove(&identity) else { continue };
                let is_written = self.hooks() & hooks::FILE != 0;
                let count =
                    if was_evicted { Some(&header.evicted) } else { (!is_written).then_some(&header.unrecorded) };
                count.map(|count| count.fetch_sub(1, Relaxed));
                if arrival != Arrival::Arrived {
                    // There is nothing left of it that could be offered again.
                    self.count_given_up(1);
                }
                continue;
            };
            if arrival == Arrival::Returned {
                slots.returned.push_back(index);
                self.report_undelivered(&slots);
                continue;
            }
            if arrival == Arrival::Refused {
                self.count_given_up(1);
            }
            self.settle(&mut slots, index, hooks::EXPORTERS);
        }
    }

    /// Wakes whoever brings spans on at the first of them, and when there are enough, and not at each.
    fn report_undelivered(&self, slots: &Slots) {
        let count = slots.returned.len() + slots.ungiven.len();
        if count == 1 || count == PARCEL_SPANS {
            self.has_undelivered.notify_one();
        }
    }

    /// Waits until spans are not delivered, and then for `linger`, or until there are `enough`.
    pub fn wait_for_undelivered(&self, linger: Duration, enough: usize) {
        let count = |slots: &Slots| slots.returned.len() + slots.ungiven.len();
        let waited = self.has_undelivered.wait_while(self.slots(), |slots| count(slots) == 0);
        let slots = waited.unwrap_or_else(PoisonError::into_inner);
        drop(self.has_undelivered.wait_timeout_while(slots, linger, |slots| count(slots) < enough));
    }

    /// Takes the spans that are not delivered, of each kind `at_most` so many. It may be that there are none.
    pub fn take_undelivered(&self, at_most: usize) -> Undelivered {
        let mut slots = self.slots();
        let (returned, ungiven) = (take(&mut slots.returned, at_most), take(&mut slots.ungiven, at_most));
        Undelivered { returned, ungiven }
    }

    /// Takes spans that the exporters have given back, without waiting for any.
    pub fn take_returned(&self, at_most: usize) -> Vec<SlotIndex> {
        take(&mut self.slots().returned, at_most)
    }

    /// Takes the spans that exporters of the first hook were given and have not told of. What they tell later is not heard.
    pub fn take_under_way(&self) -> Vec<SlotIndex> {
        self.slots().under_way.drain().map(|(_, index)| SlotIndex(index)).collect()
    }

    /// Ended spans as they are in their slots.
    pub fn stories(&self, spans: &[SlotIndex]) -> Vec<SpanStory> {
        spans.iter().filter_map(|index| story::span(&self.mapping, index.0 as usize)).collect()
    }

    /// Returns the resource of this process's spans.
    pub fn resource(&self) -> Vec<(String, OwnedValue)> {
        story::resource(&self.mapping)
    }

    /// Says that these hooks have the spans, or that somebody else brings them on.
    pub fn settled(&self, spans: &[SlotIndex], hooks: u32) {
        let mut slots = self.slots();
        spans.iter().for_each(|index| self.settle(&mut slots, index.0, hooks));
    }

    /// Counts spans that no exporter took and that could not be put aside.
    pub fn count_given_up(&self, spans: u64) {
        self.mapping.header().given_up.fetch_add(spans, Relaxed);
    }

    /// Counts log records that a hook has given up.
    pub fn count_log_records_given_up(&self, records: u64) {
        let more = u32::try_from(records).unwrap_or(u32::MAX);
        let count = &self.mapping.header().log_records_given_up;
        let _ = count.fetch_update(Relaxed, Relaxed, |before| Some(before.saturating_add(more)));
    }

    /// Counts attributes, events and links that did not fit their slot, of spans that are brought on from there.
    pub fn count_cut(&self, entries: u64) {
        self.mapping.header().cut.fetch_add(entries, Relaxed);
    }

    /// Frees a slot when nobody wants its span any more.
    fn settle(&self, slots: &mut Slots, index: u32, hooks: u32) {
        let slot = self.mapping.slot(index as usize);
        let pending = slot.pending.fetch_and(!hooks, Relaxed);
        if pending == 0 || pending & !hooks != 0 {
            return;
        }
        let freed = if slot.is_attempt.load(Relaxed) != 0 {
            slots.told.push_back(index);
            if slots.told.len() > TOLD_LIMIT { slots.told.pop_front() } else { None }
        } else {
            Some(index)
        };
        if let Some(freed) = freed {
            self.mapping.slot(freed as usize).state.store(SLOT_FREE, Release);
            slots.free.push(freed);
        }
    }

    /// Returns whether something is left for whoever finishes this spool: an open span, which nobody else can end once the process is
    /// gone, an ended one that is not delivered, or word of what was lost.
    pub fn has_something_left(&self) -> bool {
        if SpoolCounts::of(&self.mapping) != SpoolCounts::default() {
            return true;
        }
        let mut slots = self.slots();
        slots.collect();
        // With a file alone, what has ended is written by now.
        let written = if self.hooks() == hooks::FILE { slots.ended.len() } else { 0 };
        slots.free.len() + slots.caches.free() + slots.told.len() + written < slots.backed
    }

    /// Leaves the file to the next head, whatever is in it: the claims in there say what this process has begun.
    pub fn keep(&self) {
        self.is_kept.store(true, Relaxed);
    }

    /// Removes the file: this process has nothing left that someone else would have to finish.
    pub fn remove(&self) {
        if self.is_kept.load(Relaxed) || fork::is_copy() {
            return;
        }
        // A file that stays is drained and removed by the head.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(super::logs::path_of(&self.path));
    }

    #[inline]
    fn take_free_slot(&self) -> Option<u32> {
        slot_caches::take_free(self.number).or_else(|| self.take_shared_slot())
    }

    fn take_shared_slot(&self) -> Option<u32> {
        let mut slots = self.slots();
        if slots.free.is_empty() || slots.caches.is_all_given() {
            slots.collect();
        }
        if slots.free.is_empty() && slots.backed == self.slot_count() {
            slots = self.make_room(slots);
        }
        // Those without space are taken last, in order.
        if slots.free.is_empty()
            && slots.backed < self.slot_count()
            && let Ok(backed) = self.mapping.back_more_slots(slots.backed)
        {
            let before = std::mem::replace(&mut slots.backed, backed);
            slots.free.extend((before as u32..backed as u32).rev());
        }
        let free = slots.free.pop();
        if free.is_some() {
            let Slots { free, caches, .. } = &mut *slots;
            caches.give(self.number, || free.pop());
        }
        free.or_else(|| slots.told.pop_front()).or_else(|| self.evict(&mut slots))
    }

    /// Makes room when there is no slot for a span that starts: some of what has ended is brought on, by whoever brings it to other hooks, and by a
    /// commit, which is waited for as long as the disk takes spans. A burst that nobody behind it keeps up with pays for itself; the price is that of
    /// a write.
    #[cold]
    fn make_room<'a>(&'a self, mut slots: MutexGuard<'a, Slots>) -> MutexGuard<'a, Slots> {
        if !(slots.returned.is_empty() && slots.ungiven.is_empty())
            && let Some(relief) = self.relief.get()
        {
            drop(slots);
            relief();
            slots = self.slots();
        }
        let Some(commit) = self.commit.get().filter(|_| !IS_DELIVERING.get()) else { return slots };
        let mut until = None;
        while slots.free.is_empty() && !slots.is_refused && !slots.is_stuck {
            let is_under_way = slots.being_written > 0;
            if !is_under_way {
                if slots.ended.is_empty() {
                    break;
                }
                drop(slots);
                let committing = commit();
                slots = self.slots();
                if committing == Committing::Done {
                    continue;
                }
            }
            let until = *until.get_or_insert_with(|| Instant::now() + PATIENCE);
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                slots.is_stuck = true;
                break;
            }
            // One that has just begun, elsewhere, has not taken its spans yet, and would be told of too early to be heard.
            let rest = if is_under_way { rest } else { Duration::from_millis(1) };
            slots.waiters += 1;
            let woken = self.has_written.wait_timeout(slots, rest);
            slots = woken.unwrap_or_else(PoisonError::into_inner).0;
            slots.waiters -= 1;
        }
        slots
    }

    /// Takes the slot of an ended span that can best be done without, when there is no room for one that starts.
    fn evict(&self, slots: &mut Slots) -> Option<u32> {
        let slot = |index: u32| self.mapping.slot(index as usize);
        let evicted = &self.mapping.header().evicted;
        // One that the exporters have given back, and nobody else wants: there is nothing else of it.
        if let Some(&index) = slots.returned.front()
            && slot(index).pending.load(Relaxed) == hooks::EXPORTERS
        {
            self.count_given_up(1);
            return slots.returned.pop_front();
        }
        // With one hook it is the first of them.
        let is_only_for_the_file = |&index: &u32| slot(index).pending.load(Relaxed) == hooks::FILE;
        if let Some(position) = slots.ended.iter().position(is_only_for_the_file) {
            slots.beside.evicted += 1;
            evicted.fetch_add(1, Relaxed);
            return slots.ended.remove(position);
        }
        // Exporters that keep more under way than they may.
        let waits = slots.under_way.iter().filter(|&(_, &index)| slot(index).pending.load(Relaxed) == hooks::EXPORTERS);
        let oldest = *waits.min_by_key(|&(_, &index)| slot(index).end_time_unix_nano.load(Relaxed))?.0;
        evicted.fetch_add(1, Relaxed);
        slots.add_loose(oldest, true);
        slots.under_way.remove(&oldest)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // The lists are whole after every statement, so a panic while they were locked harmed nothing.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    /// Counts spans that have ended. True when they are enough for a commit.
    fn is_commit_due(&mut self, count: usize) -> bool {
        self.since_due += count;
        let is_due = self.since_due >= COMMIT_DUE_AT;
        if is_due {
            self.since_due = 0;
        }
        is_due
    }

    fn add_loose(&mut self, identity: Identity, was_evicted: bool) {
        if self.loose.len() < LOOSE_LIMIT {
            self.loose.insert(identity, was_evicted);
        }
    }

    /// Takes what threads have put down, and what those had that are gone.
    fn collect(&mut self) {
        let Slots { free, caches, ended, .. } = self;
        caches.collect(|slot| ended.push_back(slot), |slot| free.push(slot));
    }
}

/// One for each slot, in memory that is not touched before its slot is.
fn beginnings(slot_count: usize) -> Box<[Beginning]> {
    const { assert!(size_of::<Beginning>() == size_of::<[u64; 2]>()) };
    const { assert!(align_of::<Beginning>() == align_of::<[u64; 2]>()) };
    let zeroes = Box::into_raw(vec![[0_u64; 2]; slot_count].into_boxed_slice());
    // SAFETY: memory of the same layout by the assertions, which nobody else has, and atomics that are zero are what `default` makes.
    unsafe { Box::from_raw(zeroes as *mut [Beginning]) }
}

fn take(queue: &mut VecDeque<u32>, at_most: usize) -> Vec<SlotIndex> {
    let count = queue.len().min(at_most);
    queue.drain(..count).map(SlotIndex).collect()
}

fn identity_of(trace_id: [u8; 16], span_id: [u8; 8]) -> Identity {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("half of 16 bytes"));
    let (high, low) = trace_id.split_at(8);
    [word(high), word(low), u64::from_ne_bytes(span_id)]
}

fn identity(slot: &SlotHeader) -> Identity {
    [&slot.trace_id[0], &slot.trace_id[1], &slot.span_id].map(|word| word.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::super::layout::SLOTS_PER_STEP;
    use super::*;
    use crate::spool::layout::{SLOT_COUNT, SLOT_SIZE};
    use crate::spool::story::Story;

    fn opening(span_id: u8) -> SpanOpening<'static> {
        SpanOpening {
            trace_id: [7; 16],
            span_id: [span_id; 8],
            parent_span_id: [0; 8],
            is_parent_remote: false,
            trace_flags: FLAG_SAMPLED,
            trace_state: b"",
            start_time_unix_nano: 1000,
            kind: abi::SPAN_KIND_INTERNAL,
            name: b"step",
            scope: b"test",
            scope_version: b"",
            prefix: Prefix::NONE,
            task_id: 0,
            is_attempt: false,
        }
    }

    fn number(key: &'static str, value: i64) -> abi::KeyValue {
        let value = abi::Value { tag: abi::VALUE_I64, as_: abi::ValueUnion { i64_: value } };
        abi::KeyValue { key: abi::Str::new(key), value }
    }

    #[test]
    fn a_prefix_is_laid_out_as_its_attributes_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let first = [number("a", 1), number("b", 2)];
        let all = |last| [first[0], first[1], number("last", last)];
        // The second and the fourth are found again, the third is in the place of the others.
        let spans = [(1, 2, 1), (1, 2, 2), (1 << 40, 2, 3), (1, 2, 4), (0, 0, 5), (3, 3, 6), (1, 2, 7), (2, 0, 8)];
        for (id, count, last) in spans {
            let attributes = all(last);
            let (first, further) = attributes.split_at(count);
            // SAFETY: the attributes are constants.
            let prefix = unsafe { Prefix::new(id, first) };
            // SAFETY: as above.
            let begin = |spool: &Spool, slot| unsafe { spool.set_attributes(slot, further) };
            assert!(spool.open_with(&SpanOpening { prefix, ..opening(last as u8) }, begin).is_some());
        }
        let story = Story::open(&path).unwrap();
        let attributes = |span: &SpanStory| (span.record.attributes.clone(), span.cut);
        let mut found: Vec<_> = story.spans().iter().map(attributes).collect();
        found.sort_by_key(|(attributes, _)| format!("{:?}", attributes.last()));
        let own = |(key, value): (&str, i64)| (key.to_owned(), OwnedValue::I64(value));
        let said = spans.map(|(_, _, last)| ([("a", 1), ("b", 2), ("last", last)].map(own).to_vec(), 0));
        assert_eq!(found, said);
    }

    #[test]
    fn a_prefix_that_does_not_fit_is_cut_and_is_whole_where_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let text: &'static str = "x".repeat(SLOT_SIZE / 2).leak();
        let value = abi::Value { tag: abi::VALUE_STR, as_: abi::ValueUnion { str_: abi::Str::new(text) } };
        let prefix = [number("a", 1), abi::KeyValue { key: abi::Str::new("long"), value }];
        let long_name: &'static [u8] = text.as_bytes();
        for (span_id, name) in [(1, long_name), (2, b"short"), (3, long_name), (4, b"short")] {
            // SAFETY: the attributes are constants.
            let prefix = unsafe { Prefix::new(7 + span_id % 2, &prefix) };
            assert!(spool.open(&SpanOpening { name, prefix, ..opening(span_id as u8) }).is_some());
        }
        for span in Story::open(&path).unwrap().spans() {
            let is_long = span.record.span_id[0] % 2 == 1;
            assert_eq!((span.record.attributes.len(), span.cut), if is_long { (1, 1) } else { (2, 0) });
        }
    }

    #[test]
    fn a_slot_that_is_used_again_says_what_its_new_span_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let story = Story::open(&path).unwrap();
        let open = |id: u64, name, trace_state, last: i64| {
            let attributes = [number("of_prefix", id as i64), number("last", last)];
            // SAFETY: the attributes are constants.
            let prefix = unsafe { Prefix::new(id, &attributes[..1]) };
            // SAFETY: as above.
            let begin = |spool: &Spool, slot| unsafe { spool.set_attributes(slot, &attributes[1..]) };
            spool.open_with(&SpanOpening { name, trace_state, prefix, ..opening(1) }, begin).unwrap()
        };
        let mut slots = std::collections::HashSet::new();
        let spans =
            [(1, ""), (1, ""), (2, ""), (1, "a=1"), (1, ""), (0, ""), (0, "b=2"), (1, "c=3"), (1, "d=4"), (0, "")];
        for ((id, trace_state), last) in spans.into_iter().cycle().zip(0..100) {
            let name: &'static [u8] = [b"none".as_slice(), b"one", b"two"][id as usize];
            let slot = open(id, name, trace_state.as_bytes(), last);
            slots.insert(slot.0);
            spool.update_name(slot, if last % 7 == 0 { b"renamed" } else { name });
            let [span] = &story.spans()[..] else { panic!("there is one") };
            let own = |(key, value): (&str, i64)| (key.to_owned(), OwnedValue::I64(value));
            assert_eq!(span.record.attributes, [("of_prefix", id as i64), ("last", last)].map(own));
            assert_eq!((span.record.trace_state.as_str(), span.record.scope.as_str()), (trace_state, "test"));
            assert_eq!(span.record.name.as_bytes(), if last % 7 == 0 { b"renamed" } else { name });
            spool.end(slot, 2000);
            spool.handed_over(slot, true);
            spool.written(spool.take_handed_over(true));
        }
        assert!(slots.len() < 20, "{} slots were used", slots.len());
    }

    #[test]
    fn what_threads_make_and_others_commit_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let commit = || {
            let batch = spool.take_handed_over(true);
            let count = batch.slots.len();
            spool.written(batch);
            count
        };
        let make = |count: usize| {
            let commits = (0..count).map(|_| {
                let slot = spool.open(&opening(1)).expect("there are more slots than are open");
                spool.end(slot, 2000);
                if spool.handed_over(slot, true) { commit() } else { 0 }
            });
            commits.sum::<usize>()
        };
        let by_threads = std::thread::scope(|scope| {
            let threads = [1, 20, 300, 20_000].map(|count| scope.spawn(move || make(count)));
            threads.map(|thread| thread.join().unwrap()).iter().sum::<usize>()
        });
        assert!(by_threads >= 20_000 - 300 - COMMIT_DUE_AT * 4, "{by_threads} were committed on the way");
        let left = spool.open(&opening(2)).unwrap();
        assert_eq!(by_threads + commit(), 20_321);
        assert!(spool.has_something_left(), "a span is open");
        spool.end(left, 2000);
        spool.handed_over(left, true);
        assert_eq!(commit(), 1);
        assert!(!spool.has_something_left());
        assert!(Story::open(&path).unwrap().spans().is_empty());
        // What the threads had is there for others.
        (0..SLOT_COUNT).for_each(|count| assert!(spool.open(&opening(3)).is_some(), "after {count} spans"));
        assert!(spool.open(&opening(4)).is_none());
    }

    #[test]
    fn a_commit_is_due_now_and_then() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::create(&folder.path().join("test.spool"), SLOT_COUNT).unwrap();
        for _ in 0..3 {
            let is_due = |_: &usize| {
                let slot = spool.open(&opening(1)).unwrap();
                spool.end(slot, 2000);
                spool.handed_over(slot, true)
            };
            let count = (1..).find(is_due).unwrap();
            assert!((COMMIT_DUE_AT..COMMIT_DUE_AT + COMMIT_DUE_AT / 4).contains(&count), "after {count} spans");
            let batch = spool.take_handed_over(true);
            assert_eq!(batch.slots.len(), count);
            spool.written(batch);
        }
    }

    /// None of them has so many that it would ask for a commit alone.
    #[test]
    fn many_threads_with_few_spans_each_are_committed_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        for per_thread in [1, 5, 12] {
            let (mut uncommitted, mut most) = (0, 0);
            for _ in 0..1_000 {
                let make = || {
                    let is_due = |_| {
                        let slot = spool.open(&opening(1)).unwrap();
                        spool.end(slot, 2000);
                        spool.handed_over(slot, true)
                    };
                    (0..per_thread).map(is_due).filter(|is_due| *is_due).count()
                };
                let due = std::thread::scope(|scope| scope.spawn(make).join().unwrap());
                uncommitted += per_thread;
                most = most.max(uncommitted);
                if due > 0 {
                    let batch = spool.take_handed_over(true);
                    assert_eq!(batch.slots.len(), uncommitted);
                    spool.written(batch);
                    uncommitted = 0;
                }
            }
            assert!(most <= 3 * COMMIT_DUE_AT, "{most} waited for a commit");
            spool.written(spool.take_handed_over(true));
        }
        assert_eq!(Story::open(&path).unwrap().counts().at_risk, 0);
    }

    /// A store to a page of a mapping for which a full disk has no space ends the process.
    #[test]
    fn no_slot_is_touched_before_its_space_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let space = || std::fs::metadata(&path).unwrap().blocks() as usize * 512;
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let at_first = space();
        assert!(at_first >= SLOTS_PER_STEP * SLOT_SIZE, "{at_first} bytes for the first slots");
        assert_eq!(spool.mapping.slots_backed(), SLOTS_PER_STEP);
        let slots: Vec<_> = (0..SLOTS_PER_STEP).map(|_| spool.open(&opening(1)).unwrap()).collect();
        assert_eq!(space(), at_first, "there was space for all of them");
        let next = spool.open(&opening(2)).unwrap();
        assert_eq!(spool.mapping.slots_backed(), 2 * SLOTS_PER_STEP);
        assert!(space() >= at_first + SLOTS_PER_STEP * SLOT_SIZE, "{} bytes for the next slots", space());
        for slot in slots.into_iter().chain([next]) {
            spool.end(slot, 2000);
            spool.handed_over(slot, true);
        }
        spool.written(spool.take_handed_over(true));
        (0..2 * SLOTS_PER_STEP).for_each(|_| assert!(spool.open(&opening(3)).is_some()));
        assert_eq!(spool.mapping.slots_backed(), 2 * SLOTS_PER_STEP, "slots that have space are used first");
        assert_eq!(Story::open(&path).unwrap().spans().len(), 2 * SLOTS_PER_STEP);
    }

    #[test]
    fn a_spool_may_have_many_slots_and_those_that_no_span_needs_cost_nothing() {
        const MANY: usize = 60_000;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let space = || std::fs::metadata(&path).unwrap().blocks() as usize * 512;
        let spool = Spool::create(&path, MANY).unwrap();
        assert_eq!(spool.slot_count(), MANY);
        assert!(space() < 1 << 20, "{} bytes for slots that nobody uses", space());
        (0..=SLOT_COUNT).for_each(|_| assert!(spool.open(&opening(1)).is_some()));
        assert!(space() < (SLOT_COUNT + 3 * SLOTS_PER_STEP) * SLOT_SIZE, "{} bytes", space());
        let story = Story::open(&path).unwrap();
        assert_eq!((story.spans().len(), story.is_damaged()), (SLOT_COUNT + 1, false));
        (SLOT_COUNT + 1..MANY).for_each(|count| assert!(spool.open(&opening(1)).is_some(), "after {count} spans"));
        assert_eq!((spool.open(&opening(2)), story.counts().at_risk), (None, 1));
        assert_eq!(story.spans().len(), MANY);
    }

    #[test]
    fn a_spool_is_read_by_the_size_of_its_file_whatever_its_header_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, 100).unwrap();
        (0..100).for_each(|_| assert!(spool.open(&opening(1)).is_some()));
        for said in [0, 1, 99, 101, u32::MAX] {
            spool.mapping.header().slot_count.store(said, Relaxed);
            let story = Story::open(&path).unwrap();
            assert_eq!((story.spans().len(), story.is_damaged()), (100, true), "{said} slots");
            let error = Mapping::open(&path).err().unwrap().to_string();
            assert!(error.contains(&format!("for {said} slots")), "{error}");
        }
        spool.mapping.header().slot_count.store(100, Relaxed);
        spool.mapping.header().slots_backed.store(u32::MAX, Relaxed);
        assert_eq!(Story::open(&path).unwrap().spans().len(), 100);
        assert_eq!(spool.open(&opening(2)), None, "the owner knows how many slots it has");
        spool.mapping.file.set_len((super::super::layout::SLOTS_OFFSET + 10 * SLOT_SIZE) as u64).unwrap();
        let story = Story::open(&path).unwrap();
        assert_eq!((story.spans().len(), story.is_damaged()), (10, true));
        assert_eq!(story.counts().at_risk, 1, "the counts are in the part that is left");
        // The owner may not touch its mapping any more.
        std::mem::forget(spool);
    }
}
