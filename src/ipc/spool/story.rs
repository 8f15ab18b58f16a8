//! The side of whoever comes after: reads what a process left.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::fence;

use tracer_abi as abi;

use super::grants::{self, Grants};
use super::layout::{
    ENTRIES_SIZE, Header, Mapping, PARENT_IS_REMOTE, SLOT_ENDED, SLOT_OPEN, SLOT_SIZE, SLOTS_OFFSET, SlotHeader,
    SpoolError, check_start,
};
use super::record::{OwnedValue, SpanRecord, read_attributes};
use super::{claims, logs};
use crate::identity::BirthWindow;
use crate::pages::FileExt;

/// The spool of another process, dead or alive.
///
/// It is read as a file, and never mapped: whoever owns the file may cut it short at any time, which a mapping does not survive.
pub struct Story {
    /// Copy of the pages that were read last.
    copy: Mapping,
    grants: Option<Grants>,
    is_cut: bool,
}

/// A span as its process left it.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanStory {
    /// Record of the span, as far as it is known. Its end is 0 while it is open.
    pub record: SpanRecord,
    /// True if it had ended. Then it lacks nothing but the word that it is written.
    pub has_ended: bool,
    /// The task in whose attempt it was started; 0 outside of tasks.
    pub task_id: u64,
    /// True if it is the span of the attempt itself.
    pub is_attempt: bool,
    /// Attributes, events and links that did not fit.
    pub cut: u32,
    /// The [hooks](super::hooks) that do not have it yet; of an open span, all.
    pub pending: u32,
    /// Slot of the span, for [`Story::settle`].
    slot: usize,
}

/// Counts of what a process has lost, and of what it would lose if it died now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpoolCounts {
    /// Attributes, events and links that did not fit their slot, of spans that the owner has brought on from there.
    pub cut: u64,
    /// Ended spans that the first hook could not write, and has given up.
    pub dropped: u64,
    /// Ended spans that no exporter took, and that could not be put aside either.
    pub given_up: u64,
    /// Log records that a hook has given up, so that no receiver gets them.
    pub log_records_given_up: u64,
    /// Spans that processes began which were forked from the owner: the spool is not theirs.
    pub forked: u64,
    /// Spans that additional hooks have not got because there was no slot for them.
    pub missed: u64,
    /// Spans that are in the memory of the process alone: they found no slot, or their slot was needed before they were written. If the
    /// process has died, they are lost.
    pub at_risk: u64,
    /// The same of a hook that does not tell what it delivers.
    pub untold: u64,
}

impl SpoolCounts {
    /// Returns the counts of a process that lives.
    pub(super) fn of(mapping: &Mapping) -> SpoolCounts {
        let counts = SpoolCounts::of_dead(mapping);
        let dropped_since = mapping.header().dropped_since.load(Relaxed);
        if dropped_since == 0 {
            return counts;
        }
        // A hook that refuses drops what ended last, and the spool gives away the slots of what ended first. What is in neither is dropped
        // for good; what was dropped and is in a slot is lost as soon as that is free.
        let in_slots = (0..mapping.slots_backed())
            .filter(|&index| mapping.slot(index).state.load(Relaxed) == SLOT_ENDED)
            .count() as u64;
        let in_neither = dropped_since.saturating_sub(in_slots);
        let dropped = counts.dropped.saturating_add(dropped_since);
        SpoolCounts { dropped, at_risk: counts.at_risk.saturating_sub(in_neither), ..counts }
    }

    /// Returns the counts of a process that has died. What its hook has dropped since it wrote last is in a slot, or among those that were at risk.
    pub(super) fn of_dead(mapping: &Mapping) -> SpoolCounts {
        let header = mapping.header();
        if !mapping.is_sound() {
            // What something else has left there is no count.
            return SpoolCounts::default();
        }
        let unknown = header.unrecorded.load(Relaxed).saturating_add(header.evicted.load(Relaxed));
        let (at_risk, untold) = if header.is_untold.load(Relaxed) == 0 { (unknown, 0) } else { (0, unknown) };
        SpoolCounts {
            cut: header.cut.load(Relaxed),
            dropped: header.dropped.load(Relaxed),
            given_up: header.given_up.load(Relaxed),
            log_records_given_up: header.log_records_given_up.load(Relaxed).into(),
            forked: header.forked.load(Relaxed),
            missed: header.missed.load(Relaxed),
            at_risk,
            untold,
        }
    }
}

impl Story {
    /// Opens a spool to read it, and to [settle](Self::settle) its spans.
    pub fn open(path: &Path) -> Result<Story, SpoolError> {
        let io = |source| SpoolError::Io { path: path.into(), source };
        Story::of_file(File::options().read(true).write(true).open(path).map_err(io)?, path)
    }

    /// The same where the file cannot be written to.
    pub fn open_to_read(path: &Path) -> Result<Story, SpoolError> {
        let io = |source| SpoolError::Io { path: path.into(), source };
        Story::of_file(File::open(path).map_err(io)?, path)
    }

    /// Returns the story in a file that is open already and was, or is, at this path.
    pub(super) fn of_file(file: File, path: &Path) -> Result<Story, SpoolError> {
        let io = |source| SpoolError::Io { path: path.into(), source };
        let length = file.metadata().map_err(io)?.len();
        if length < SLOTS_OFFSET as u64 {
            return Err(SpoolError::Foreign { path: path.into(), found: format!("it has {length} bytes") });
        }
        check_start(&file, path)?;
        let copy = Mapping::for_copies(file, length).map_err(io)?;
        copy.copy(0, SLOTS_OFFSET).map_err(io)?;
        let is_cut = !copy.is_whole(length);
        Ok(Story { copy, grants: Grants::read(path), is_cut })
    }

    /// Reads the header again.
    fn header(&self) -> &Header {
        // What cannot be read is zero.
        let _ = self.copy.copy(0, SLOTS_OFFSET);
        self.copy.header()
    }

    /// Returns whether something has been written over what head and worker agree on, or a part of the file is gone.
    pub fn is_damaged(&self) -> bool {
        self.header();
        self.is_cut || !self.copy.is_sound()
    }

    /// Returns the process that owns the spool; none when no process has attached to it.
    pub fn pid(&self) -> Option<u32> {
        let of_worker = self.grants.as_ref().and_then(Grants::worker).map(|(pid, _)| pid);
        of_worker.or_else(|| Some(self.header().pid.load(Acquire)).filter(|&pid| pid != 0))
    }

    /// Returns whether the process that owns the spool is alive: the very one, not another with its pid.
    pub fn is_owner_alive(&self) -> bool {
        let birth = self.header().owner_birth.load(Relaxed);
        self.pid().is_some_and(|pid| crate::identity::is_alive(pid, birth))
    }

    /// Returns the process group of the command that was running, if its leader still is the very process that was started.
    pub fn identified_command_group(&self) -> Option<u32> {
        let header = self.header();
        let window = header.command_birth.load(Relaxed);
        // 1 would stand for every process there is.
        let group = Some(header.command_group.load(Acquire)).filter(|&group| group > 1)?;
        BirthWindow::is_of(window, group).then_some(group)
    }

    /// Returns the tasks that the process had claimed and which attempts at them these were, whether or not they have ended; those
    /// claimed long ago are not among them.
    pub fn claimed_tasks(&self) -> Vec<(u64, u32)> {
        self.header();
        self.grants.as_ref().map(|grants| claims::claimed_tasks(&self.copy, grants)).unwrap_or_default()
    }

    /// The same of a worker whose spool is gone or is none any more, and the worker's process.
    pub fn claimed_tasks_without_spool(spool: &Path) -> Option<(u32, Vec<(u64, u32)>)> {
        let grants = Grants::read(spool)?;
        Some((grants.worker()?.0, claims::claimed_tasks_without_spool(&grants)))
    }

    /// Returns the worker whose spool this was, and whether its attempts have spans, as the head has noted it beside the spool.
    pub fn noted_worker(spool: &Path) -> Option<(u32, bool)> {
        Grants::read(spool)?.worker()
    }

    /// Removes a spool with what is beside it.
    pub fn remove(spool: &Path) -> io::Result<()> {
        let of_grants = remove_if_there(&grants::path_of(spool));
        let of_logs = remove_if_there(&logs::path_of(spool));
        remove_if_there(spool).and(of_grants).and(of_logs)
    }

    /// Returns what the process has lost, and what it would lose if it died now.
    pub fn counts(&self) -> SpoolCounts {
        self.header();
        SpoolCounts::of(&self.copy)
    }

    /// Spans of a living process that found no slot, and are open or not delivered yet.
    pub fn unrecorded(&self) -> u64 {
        self.header().unrecorded.load(Relaxed)
    }

    /// Returns what the process had lost when it died, and what died with it.
    pub fn counts_of_dead(&self) -> SpoolCounts {
        self.header();
        SpoolCounts::of_dead(&self.copy)
    }

    /// Returns the process's [hooks](super::hooks), and what tells them from those of another session.
    pub fn hooks(&self) -> (u32, u32) {
        let header = self.header();
        // A process that has not come as far as its hook: whatever it began is for the span file.
        let hooks = Some(header.hooks.load(Acquire)).filter(|&hooks| hooks != 0).unwrap_or(super::hooks::FILE);
        (hooks, header.hooks_mark.load(Relaxed))
    }

    /// Returns the file in which the process's hook keeps its spans, and in which form, one of `tracer_abi::SPAN_FILE_*`; none when the hook
    /// does not say.
    pub fn span_file(&self) -> Option<(PathBuf, u32)> {
        let header = self.header();
        let format = Some(header.span_file_format.load(Acquire)).filter(|&format| format != 0)?;
        let len = header.span_file_len.load(Relaxed) as usize;
        // SAFETY: within the mapping, and nobody but this copies anything there.
        let bytes = unsafe { self.copy.span_file().as_ref() }.get(..len)?;
        Some((std::str::from_utf8(bytes).ok()?.into(), format))
    }

    /// Returns the resource of the process's spans.
    pub fn resource(&self) -> Vec<(String, OwnedValue)> {
        self.header();
        resource(&self.copy)
    }

    /// Returns the spans that are open, or have ended and are not known to be written, in order of their start.
    pub fn spans(&self) -> Vec<SpanStory> {
        self.header();
        let count = self.copy.slots_backed();
        let _ = self.copy.copy(SLOTS_OFFSET, count * SLOT_SIZE);
        let mut spans: Vec<_> = (0..count).filter_map(|index| self.span(index)).collect();
        spans.sort_by_key(|span| span.record.start_time_unix_nano);
        spans
    }

    fn span(&self, index: usize) -> Option<SpanStory> {
        let found = span(&self.copy, index)?;
        let before = identity(self.copy.slot(index));
        // An owner that lives may have given the slot to another span while it was read, of which this would be a mixture.
        let _ = self.copy.copy(SLOTS_OFFSET + index * SLOT_SIZE, size_of::<SlotHeader>());
        let slot = self.copy.slot(index);
        let is_the_same = identity(slot) == before && matches!(slot.state.load(Relaxed), SLOT_OPEN | SLOT_ENDED);
        is_the_same.then_some(found)
    }

    /// Says of a span of a process that has died that everyone has it who is to have it. It stays, as one that has ended and that is
    /// [pending](SpanStory::pending) for nobody: whoever comes next learns from it which attempts have a span.
    pub fn settle(&self, span: &SpanStory, end_time_unix_nano: u64) {
        let slot = SLOTS_OFFSET + span.slot * SLOT_SIZE;
        let write = |offset: usize, bytes: &[u8]| drop(self.copy.file.write_all_at(bytes, (slot + offset) as u64));
        write(offset_of!(SlotHeader, pending), &0_u32.to_ne_bytes());
        if !span.has_ended {
            write(offset_of!(SlotHeader, end_time_unix_nano), &end_time_unix_nano.to_ne_bytes());
            write(offset_of!(SlotHeader, status), &abi::SPAN_STATUS_ERROR.to_ne_bytes());
        }
        write(offset_of!(SlotHeader, state), &SLOT_ENDED.to_ne_bytes());
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Returns the resource of the spans in a spool.
pub(super) fn resource(mapping: &Mapping) -> Vec<(String, OwnedValue)> {
    let len = mapping.header().resource_len.load(Acquire) as usize;
    // SAFETY: within the mapping; copied at once, so a write at the same time could at worst garble the copy,
    // whose reader checks every length.
    let bytes = unsafe { mapping.resource().as_ref() }.get(..len).unwrap_or_default().to_vec();
    read_attributes(&bytes)
}

/// Returns the span in a slot, if there is one.
pub(super) fn span(mapping: &Mapping, index: usize) -> Option<SpanStory> {
    let slot = mapping.slot(index);
    let state = slot.state.load(Acquire);
    if state != SLOT_OPEN && state != SLOT_ENDED {
        return None;
    }
    let identity = identity(slot);
    let len = slot.len.load(Acquire) as usize;
    // No span, but bytes that a task has left where it should not write.
    let is_no_span = identity[2] == 0
        || len > ENTRIES_SIZE
        || slot.kind.load(Relaxed) > abi::SPAN_KIND_CONSUMER
        || slot.status.load(Relaxed) > abi::SPAN_STATUS_ERROR;
    if is_no_span {
        return None;
    }
    // SAFETY: as in `resource`.
    let entries = unsafe { mapping.entries(index).as_ref() }.get(..len).unwrap_or_default().to_vec();
    let mut trace_id = [0; 16];
    trace_id[..8].copy_from_slice(&slot.trace_id[0].load(Relaxed).to_ne_bytes());
    trace_id[8..].copy_from_slice(&slot.trace_id[1].load(Relaxed).to_ne_bytes());
    let parent = slot.parent_span_id.load(Relaxed);
    let flags = slot.flags.load(Relaxed);
    let mut record = SpanRecord {
        trace_id,
        span_id: slot.span_id.load(Relaxed).to_ne_bytes(),
        parent_span_id: (parent != 0).then(|| parent.to_ne_bytes()),
        is_parent_remote: flags & PARENT_IS_REMOTE != 0,
        trace_flags: flags as u8,
        kind: slot.kind.load(Relaxed),
        start_time_unix_nano: slot.start_time_unix_nano.load(Relaxed),
        end_time_unix_nano: slot.end_time_unix_nano.load(Relaxed),
        status: slot.status.load(Acquire),
        ..SpanRecord::default()
    };
    record.read_entries(&entries);
    // An owner that lives may have given the slot to another span meanwhile, of which this would be a mixture.
    fence(Acquire);
    let is_the_same = self::identity(slot) == identity && matches!(slot.state.load(Relaxed), SLOT_OPEN | SLOT_ENDED);
    is_the_same.then(|| SpanStory {
        record,
        has_ended: state == SLOT_ENDED,
        task_id: slot.task_id.load(Relaxed),
        is_attempt: slot.is_attempt.load(Relaxed) != 0,
        cut: slot.cut.load(Relaxed),
        pending: if state == SLOT_ENDED { slot.pending.load(Relaxed) } else { mapping.header().hooks.load(Relaxed) },
        slot: index,
    })
}

/// Returns what tells the span in a slot from the one before it.
fn identity(slot: &SlotHeader) -> [u64; 4] {
    [&slot.trace_id[0], &slot.trace_id[1], &slot.span_id, &slot.start_time_unix_nano].map(|word| word.load(Relaxed))
}

impl SpanStory {
    /// Returns the span as it is known, with the count of what was cut as an attribute.
    pub fn into_record(self) -> super::record::SpanRecord {
        let SpanStory { mut record, cut, .. } = self;
        if cut > 0 {
            record.set_attribute(tracer_core::names::CUT, super::record::OwnedValue::I64(i64::from(cut)));
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use tracer_abi as abi;
    use tracer_core::propagation::FLAG_SAMPLED;

    use super::super::hooks;
    use super::*;
    use crate::spool::layout::SLOT_COUNT;
    use crate::spool::owner::{Arrival, SpanOpening, Spool};
    use crate::spool::prefixes::Prefix;

    fn spool() -> (tempfile::TempDir, Spool, Story) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("test.spool");
        let spool = Spool::create(&path, SLOT_COUNT).unwrap();
        let story = Story::open(&path).unwrap();
        (folder, spool, story)
    }

    fn opening(span_id: u8) -> SpanOpening<'static> {
        SpanOpening {
            trace_id: [7; 16],
            span_id: [span_id; 8],
            parent_span_id: [0; 8],
            is_parent_remote: false,
            trace_flags: FLAG_SAMPLED,
            trace_state: b"",
            start_time_unix_nano: 1000 + u64::from(span_id),
            kind: abi::SPAN_KIND_CONSUMER,
            name: b"step",
            scope: b"test",
            scope_version: b"",
            prefix: Prefix::NONE,
            task_id: 5,
            is_attempt: true,
        }
    }

    fn attribute(key: &'static str, value: i64) -> abi::KeyValue {
        abi::KeyValue {
            key: abi::Str::new(key),
            value: abi::Value { tag: abi::VALUE_I64, as_: abi::ValueUnion { i64_: value } },
        }
    }

    #[test]
    fn a_span_is_not_there_before_all_that_it_begins_with() {
        let (_folder, spool, story) = spool();
        let slot = spool.open_with(&opening(1), |spool, slot| {
            // SAFETY: the attributes are borrowed from statics.
            unsafe { spool.set_attributes(slot, &[attribute("number", 1)]) };
            assert_eq!(story.spans().len(), 0, "a process that died now has not begun the span");
        });
        assert!(slot.is_some());
        assert_eq!(story.spans()[0].record.attributes.len(), 1);
    }

    #[test]
    fn an_open_span_is_told_with_all_that_was_said_of_it() {
        let (_folder, spool, story) = spool();
        let slot = spool.open(&SpanOpening { parent_span_id: [9; 8], trace_state: b"a=1", ..opening(1) }).unwrap();
        let words = [abi::Str::new("x"), abi::Str::new("y")];
        let list = abi::KeyValue {
            key: abi::Str::new("words"),
            value: abi::Value {
                tag: abi::VALUE_STR_ARRAY,
                as_: abi::ValueUnion { array: abi::Array { ptr: words.as_ptr().cast(), count: 2 } },
            },
        };
        let event = abi::Event {
            size: size_of::<abi::Event>(),
            name: abi::Str::new("exception"),
            time_unix_nano: 0,
            attributes: &attribute("code", 4),
            attribute_count: 1,
        };
        let link = abi::Link {
            size: size_of::<abi::Link>(),
            context: abi::SpanContext { trace_id: [3; 16], span_id: [4; 8], ..abi::SpanContext::INVALID },
            attributes: std::ptr::null(),
            attribute_count: 0,
        };
        // SAFETY: everything points to locals.
        unsafe {
            spool.set_attributes(slot, &[attribute("n", 1), list]);
            spool.set_attributes(slot, &[attribute("n", 2)]);
            spool.add_event(slot, &event, 42);
            spool.add_link(slot, &link);
        }
        spool.set_status(slot, abi::SPAN_STATUS_ERROR, b"it broke");
        spool.update_name(slot, b"better");

        let spans = story.spans();
        assert_eq!(spans.len(), 1);
        let SpanStory { record, has_ended, task_id, is_attempt, cut, .. } = &spans[0];
        assert_eq!((*has_ended, *task_id, *is_attempt, *cut), (false, 5, true, 0));
        assert_eq!((record.name.as_str(), record.scope.as_str()), ("better", "test"));
        assert_eq!(record.parent_span_id, Some([9; 8]));
        assert_eq!(record.trace_state, "a=1");
        assert_eq!(
            record.attributes,
            [
                ("n".to_owned(), OwnedValue::I64(2)),
                ("words".to_owned(), OwnedValue::StrArray(vec!["x".into(), "y".into()]))
            ]
        );
        assert_eq!(record.events[0].time_unix_nano, 42);
        assert_eq!(record.events[0].attributes, [("code".to_owned(), OwnedValue::I64(4))]);
        assert_eq!(record.links[0].span_id, [4; 8]);
        assert_eq!((record.status, record.status_description.as_str()), (abi::SPAN_STATUS_ERROR, "it broke"));
    }

    #[test]
    fn a_slot_is_free_only_when_the_span_is_written() {
        let (_folder, spool, story) = spool();
        let slot = spool.open(&opening(1)).unwrap();
        spool.end(slot, 2000);
        spool.handed_over(slot, true);
        assert!(story.spans()[0].has_ended);
        let batch = spool.take_handed_over(true);
        spool.not_written(batch);
        assert_eq!(story.spans().len(), 1, "a commit that failed keeps the span");
        let batch = spool.take_handed_over(true);
        spool.written(batch);
        assert_eq!(story.spans(), []);
        let mut used = vec![slot];
        for _ in 0..1000 {
            let slot = spool.open(&opening(2)).unwrap();
            spool.end(slot, 2000);
            spool.handed_over(slot, true);
            spool.written(spool.take_handed_over(true));
            if !used.contains(&slot) {
                used.push(slot);
            }
        }
        assert!((2..=16).contains(&used.len()), "slots used last are used first, and not {used:?} in turn");
    }

    #[test]
    fn a_slot_is_free_when_every_hook_has_its_span_and_additional_hooks_get_sampled_ones_only() {
        let (_folder, spool, story) = spool();
        spool.set_hooks(hooks::FILE | hooks::further(0) | hooks::further(1), 0);
        let opening = |id| SpanOpening { is_attempt: false, ..opening(id) };
        let [sampled, only_recorded] = [1, 2].map(|id| spool.open(&opening(id)).unwrap());
        for (slot, is_sampled) in [(sampled, true), (only_recorded, false)] {
            spool.end(slot, 2000);
            spool.handed_over(slot, is_sampled);
        }
        spool.written(spool.take_handed_over(true));
        let given = spool.take_undelivered(10).ungiven;
        assert_eq!(given, [sampled]);
        assert_eq!(story.spans().len(), 1, "the other is for the file only");
        spool.settled(&given, hooks::further(1));
        assert_eq!(story.spans()[0].pending, hooks::further(0), "a hook has not got it");
        spool.settled(&given, hooks::further(0));
        assert_eq!(story.spans(), []);
    }

    #[test]
    fn the_span_of_an_attempt_stays_when_it_is_delivered_until_others_need_the_slot() {
        let (_folder, spool, story) = spool();
        spool.set_hooks(hooks::EXPORTERS, 0);
        let deliver = |is_attempt| {
            let slot = spool.open(&SpanOpening { is_attempt, ..opening(1) }).expect("there is a slot");
            spool.end(slot, 2000);
            spool.delivered([([7; 16], [1; 8])].into_iter(), Arrival::Arrived);
            slot
        };
        deliver(false);
        assert_eq!(story.spans(), [], "nobody needs to know of another span");
        let first = deliver(true);
        assert!(matches!(&story.spans()[..], [SpanStory { has_ended: true, pending: 0, .. }]));
        assert!(!spool.has_something_left(), "it is told, and no more");
        for _ in 0..2 * SLOT_COUNT {
            deliver(true);
        }
        assert!(story.spans().len() < SLOT_COUNT / 2);
        let slots: Vec<_> = (0..SLOT_COUNT).map_while(|_| spool.open(&opening(2))).collect();
        assert_eq!((slots.len(), spool.has_something_left()), (SLOT_COUNT, true));
        assert!(slots.contains(&first));
        assert_eq!(story.counts(), SpoolCounts::default(), "none was evicted");
    }

    #[test]
    fn more_open_spans_than_slots_are_counted_and_harm_nothing() {
        let (_folder, spool, story) = spool();
        let slots: Vec<_> = (0..SLOT_COUNT + 3).filter_map(|_| spool.open(&opening(1))).collect();
        assert_eq!(slots.len(), SLOT_COUNT);
        assert_eq!(story.counts(), SpoolCounts { at_risk: 3, ..SpoolCounts::default() });
        spool.end(slots[0], 1);
        spool.handed_over(slots[0], true);
        assert_eq!(spool.open(&opening(2)), Some(slots[0]), "an ended span makes room");
        assert_eq!(story.counts().at_risk, 4);
        assert_eq!(story.spans().len(), SLOT_COUNT);
    }

    #[test]
    fn what_does_not_fit_a_slot_is_cut_whole_and_counted() {
        let (_folder, spool, story) = spool();
        let slot = spool.open(&opening(1)).unwrap();
        let long = "x".repeat(3000);
        let big = abi::KeyValue {
            key: abi::Str::new("big"),
            value: abi::Value { tag: abi::VALUE_STR, as_: abi::ValueUnion { str_: abi::Str::new(&long) } },
        };
        // SAFETY: everything points to locals.
        unsafe { spool.set_attributes(slot, &[attribute("before", 1), big, attribute("after", 2)]) };
        let span = &story.spans()[0];
        assert_eq!(span.cut, 1);
        let keys: Vec<_> = span.record.attributes.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["before", "after"]);
    }

    #[test]
    fn a_name_that_does_not_fit_keeps_its_beginning_up_to_a_character() {
        for (name, expected) in [
            ("n".repeat(1_000_000), format!("{}…", "n".repeat(512))),
            // 512 is amid a character of three bytes.
            ("語".repeat(1_000), format!("{}…", "語".repeat(170))),
            ("n".repeat(1_500), "n".repeat(1_500)),
        ] {
            let (_folder, spool, story) = spool();
            let slot = spool.open(&SpanOpening { name: name.as_bytes(), ..opening(1) }).unwrap();
            // SAFETY: the attribute is borrowed from statics.
            unsafe { spool.set_attributes(slot, &[attribute("after", 1)]) };
            let span = &story.spans()[0];
            assert_eq!((&span.record.name, span.cut), (&expected, u32::from(name != expected)));
            assert_eq!(span.record.attributes.len(), 1);
            spool.update_name(slot, "short".as_bytes());
            assert_eq!(story.spans()[0].record.name, "short");
            spool.update_name(slot, "m".repeat(10_000).as_bytes());
            let [span] = &story.spans()[..] else { panic!("there is one") };
            assert!(span.record.name.starts_with("mmm") && span.record.name.ends_with("m…"), "{}", span.record.name);
        }
    }

    #[test]
    fn a_file_that_is_no_spool_is_refused_by_what_was_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.spool");
        std::fs::write(&path, "hello").unwrap();
        let error = Story::open(&path).err().unwrap().to_string();
        assert!(error.contains("it has 5 bytes"), "{error}");
        let mut bytes = vec![
            0;
            std::fs::metadata({
                let good = folder.path().join("good.spool");
                Spool::create(&good, SLOT_COUNT).unwrap();
                good
            })
            .unwrap()
            .len() as usize
        ];
        std::fs::write(&path, &bytes).unwrap();
        assert!(Story::open(&path).err().unwrap().to_string().contains("the mark of a spool"));
        bytes[..8].copy_from_slice(b"TRACERSP");
        bytes[8] = 99;
        std::fs::write(&path, &bytes).unwrap();
        assert!(Story::open(&path).err().unwrap().to_string().contains("it has version 99"));
    }

    proptest::proptest! {
        #[test]
        fn damaged_entries_never_panic(entries: Vec<u8>) {
            let mut record = SpanRecord::default();
            record.read_entries(&entries);
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        /// Notes that a task may leave any bytes there.
        #[test]
        fn whatever_is_in_a_spool_is_read_without_harm(
            pieces in proptest::collection::vec((12_usize..400_000, proptest::collection::vec(proptest::prelude::any::<u8>(), 1..300)), 0..40),
            repeated in proptest::option::of(proptest::prelude::any::<u8>()),
            cut in proptest::option::of(0_u64..400_000),
        ) {
            let (folder, spool, _) = spool();
            spool.open(&opening(1)).unwrap();
            let path = folder.path().join("test.spool");
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            if let Some(byte) = repeated {
                file.write_all_at(&vec![byte; 400_000], 12).unwrap();
            }
            for (offset, bytes) in &pieces {
                file.write_all_at(bytes, *offset as u64).unwrap();
            }
            if let Some(length) = cut {
                file.set_len(length).unwrap();
            }
            if let Ok(story) = Story::open(&path) {
                let mut lines = Vec::new();
                for span in story.spans() {
                    span.record.write_line(&mut lines, &super::super::record::resource_json(&story.resource()));
                    story.settle(&span, 7);
                }
                drop((story.claimed_tasks(), story.counts(), story.hooks(), story.span_file(), story.is_damaged()));
                let _ = (story.identified_command_group(), story.is_owner_alive());
            }
            // The owner may not touch its mapping any more.
            std::mem::forget(spool);
        }
    }
}
