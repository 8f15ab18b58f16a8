//! Finishes the story of a process that died: what its spool still holds goes to its span file, and to the exporters that its hook had.
//!
//! A span that had ended is written as it was. One that was open is closed with status ERROR, `error.type` and the time of the
//! death. An attempt that was claimed but has no span yet gets one. A process can die between the write to the span file and
//! the note of it in the spool, so spans that the file has already are found in its tail and left alone. What exporters were to have
//! is put into parcels, for the exporters of another process; a span that was under way may arrive twice.
//!
//! A head does it for its own processes and, when it starts, for those that a dead head left. Whoever reads traces does it before that,
//! with [`finish_leavings`]: under a lock, and such that the next head still finds what it needs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::names;
use tracer_core::propagation::FLAG_SAMPLED;
use tracer_core::task::{Envelope, SpanLink, TaskId, TraceLink, WorkerId};
use tracer_host::attempt_span::{self, AttemptSpan};
use tracer_host::hook::LOGS_EXTENSION;
use tracer_host::module_store::ModuleStore;
use tracer_ipc::identity;
use tracer_ipc::protocol::SpanCounts;
use tracer_ipc::session::{self, HeadRecord};
use tracer_ipc::spool::otlp::export_request;
use tracer_ipc::spool::record::{EventRecord, LinkRecord, OwnedValue, SpanRecord, resource_json};
use tracer_ipc::spool::{PARCEL_SPANS, Parcel, SpanStory, SpoolError, Story, hooks, logs};
use tracer_reactor::{Loss, LostAttempt, StandIn, Why};
use tracer_span_file::{Rotation, SpanFile};

/// Bytes at the end of the span file that are searched for spans that it has already. A process writes its buffer at 64 KiB, so
/// its last write is well within.
const TAIL: u64 = 8 << 20;

/// Place in which the dead process ran, for spans that it did not begin itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeadOrigin<'a> {
    pub(super) node_id: &'a str,
    pub(super) worker: Option<WorkerId>,
    pub(super) session_dir: &'a Path,
}

/// Folders that finished spans go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Folders<'a> {
    pub(super) spans_dir: &'a Path,
    /// For [parcels](Parcel).
    pub(super) handover: &'a Path,
}

/// The process that finishes a story.
#[derive(Clone, Copy, Debug)]
pub(super) enum Finisher<'a> {
    /// A head, which needs the spool no longer.
    Head(DeadOrigin<'a>),
    /// A reader, before a head has come. The spool stays for that one, with its claims and with all that was lost.
    Reader,
}

impl Finisher<'_> {
    /// Returns what stands in [`names::COMPLETED_BY`].
    fn name(self) -> &'static str {
        match self {
            Finisher::Head(_) => "head",
            Finisher::Reader => "reader",
        }
    }

    /// Notes that a head has done all that there is to do.
    fn remove(self, spool: &Path) -> Option<io::Error> {
        match self {
            Finisher::Head(_) => Story::remove(spool).err(),
            Finisher::Reader => None,
        }
    }
}

/// Returns what the spans are closed with that the processes of a dead head left open.
pub(super) fn left_by_a_dead_head(attempts: Vec<LostAttempt>) -> Loss {
    let description = "the head of its session died, and it with it".into();
    Loss { why: Why { error_type: "lost".into(), description }, of_tasks: Vec::new(), attempts }
}

/// Result of [`finish_leavings`].
#[derive(Debug, Default)]
pub struct Leavings {
    /// The head that was killed, if one was.
    pub dead_head: Option<HeadRecord>,
    /// Spools whose spans are not all where they belong, and why.
    pub failures: Vec<(PathBuf, io::Error)>,
}

/// Brings on the spans that dead processes left in a place whose head was killed, while no other head has come. Those of a process that
/// lives on without its head stay where they are. What concerns tasks is left to the next head: also the spans of attempts that
/// had not begun theirs.
pub fn finish_leavings(temp_dir: &Path) -> Leavings {
    let mut leavings = Leavings::default();
    if session::find_dead_head(temp_dir).is_none() {
        return leavings;
    }
    let spools = session::all_spools(temp_dir);
    let _lock = match session::lock_leavings(temp_dir) {
        Ok(lock) => lock,
        // With nothing to finish, it does not matter that nothing can be written here.
        Err(error) => {
            leavings.dead_head = session::find_dead_head(temp_dir);
            let left = spools.into_iter().find(|spool| has_something_left(spool));
            leavings.failures.extend(left.map(|spool| (spool, io::Error::other(error))));
            return leavings;
        }
    };
    // A head that comes from here on waits for the lock before it touches a spool; one that came before has had them all.
    let Some(head) = session::find_dead_head(temp_dir) else { return leavings };
    for spool in spools {
        let owner = Story::open(&spool).ok().filter(Story::is_owner_alive).and_then(|story| story.pid());
        // A worker dies with its head, and may be dying still.
        let is_over =
            owner.is_none_or(|pid| session::is_of_head(&spool) && identity::wait_for_end(pid, identity::DYING_LIMIT));
        if !is_over {
            continue;
        }
        let Some(handover) = session::handover_of_spool(&spool) else { continue };
        let folders = Folders { spans_dir: &head.spans_dir, handover: &handover };
        let (loss, now) = (left_by_a_dead_head(Vec::new()), now_unix_nano());
        let (_, error) = finish_story(&spool, folders, &loss, Finisher::Reader, now, &mut Vec::new());
        leavings.failures.extend(error.map(|error| (spool, error)));
    }
    leavings.dead_head = Some(head);
    leavings
}

fn has_something_left(spool: &Path) -> bool {
    Story::open_to_read(spool).is_ok_and(|story| story.spans().iter().any(|span| span.pending != 0))
}

/// Brings on what is missing and, for a head, removes the spool. Returns what it did, and why not all of it. `found` gets the spans of the
/// attempts that it met; for each task the last one is that of the latest attempt.
pub(super) fn finish_story(
    spool: &Path,
    folders: Folders<'_>,
    loss: &Loss,
    finisher: Finisher<'_>,
    now_unix_nano: u64,
    found: &mut Vec<(TaskId, SpanLink)>,
) -> (SpanCounts, Option<io::Error>) {
    match Story::open(spool) {
        Ok(story) => finish_opened(story, spool, folders, loss, finisher, now_unix_nano, found),
        // A process that had nothing left to finish has removed it, or a task has.
        Err(SpoolError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            finish_without_spool(spool, folders, loss, finisher, now_unix_nano, found)
        }
        Err(error) => {
            let (counts, failure) = finish_without_spool(spool, folders, loss, finisher, now_unix_nano, found);
            (counts, failure.or(Some(io::Error::other(error))))
        }
    }
}

/// The same where nothing of the spool is left: a task has removed it, or written over it. The spans of the attempts are made for which it was.
fn finish_without_spool(
    spool: &Path,
    folders: Folders<'_>,
    loss: &Loss,
    finisher: Finisher<'_>,
    now_unix_nano: u64,
    found: &mut Vec<(TaskId, SpanLink)>,
) -> (SpanCounts, Option<io::Error>) {
    let (Finisher::Head(place), Some((pid, true))) = (finisher, Story::noted_worker(spool)) else {
        return (SpanCounts::default(), finisher.remove(spool));
    };
    let (mut lines, mut counts) = (Vec::new(), SpanCounts::default());
    for lost in loss.attempts.iter().filter(|lost| is_sampled(lost)) {
        if let Some(record) = attempt_span(lost, loss, place, pid, now_unix_nano) {
            record.write_line(&mut lines, &resource_json(&[]));
            found.push((lost.task, link_to(&record)));
            counts.closed += 1;
        }
    }
    let target = Target { folder: folders.spans_dir.into(), extension: "json".into(), is_otlp: false };
    match target.append(pid, &lines) {
        Ok(()) => (counts, finisher.remove(spool)),
        Err(error) => (SpanCounts { unwritten: counts.closed, ..SpanCounts::default() }, Some(error)),
    }
}

/// The same of a story that is open, whether or not its file is still found.
pub(super) fn finish_opened(
    story: Story,
    spool: &Path,
    folders: Folders<'_>,
    loss: &Loss,
    finisher: Finisher<'_>,
    now_unix_nano: u64,
    found: &mut Vec<(TaskId, SpanLink)>,
) -> (SpanCounts, Option<io::Error>) {
    let counts = story.counts_of_dead();
    let spool_counts = SpanCounts {
        cut: counts.cut,
        dropped: counts.dropped,
        lost_with_process: counts.at_risk,
        untold: counts.untold,
        given_up: counts.given_up,
        log_records_given_up: counts.log_records_given_up,
        missed: counts.missed,
        forked: counts.forked,
        ..SpanCounts::default()
    };
    let mut counts = spool_counts;
    let Some(pid) = story.pid() else { return (counts, finisher.remove(spool)) };
    if let Err(error) = finish_logs(&story, spool, folders.spans_dir, pid, finisher) {
        // The spool stays: the next head tries again.
        return (spool_counts, Some(error));
    }
    let spans = story.spans();
    let is_noted = || Story::noted_worker(spool).is_some_and(|(_, is_traced)| is_traced);
    let is_traced = !story.resource().is_empty() || !spans.is_empty() || story.is_damaged() && is_noted();
    let attempts: Vec<_> = loss.attempts.iter().filter(|lost| is_traced && is_sampled(lost)).collect();
    if spans.is_empty() && attempts.is_empty() {
        return (counts, finisher.remove(spool));
    }
    let (hooks, mark) = story.hooks();
    let resource = story.resource();
    let begun: BTreeMap<Attempt, SpanLink> = spans.iter().filter_map(begun).collect();
    found.extend(begun.iter().map(|(attempt, link)| (attempt.0, *link)));
    let mut finished = Vec::new();
    for span in spans.iter().cloned() {
        let pending = match span.has_ended {
            _ if span.record.trace_flags & FLAG_SAMPLED == 0 => 0,
            true => span.pending,
            false => hooks,
        };
        let (is_open, cut) = (!span.has_ended, span.cut);
        let record = close(span, loss, finisher, now_unix_nano);
        finished.push(Finished { record, pending, is_open, cut, attempt: None });
    }
    complete_batches(&mut finished);
    let of_head = match finisher {
        Finisher::Head(place) => Some(place),
        Finisher::Reader => None,
    };
    let without_span = attempts.iter().filter(|lost| !begun.contains_key(&(lost.task, lost.attempt)));
    for (lost, place) in without_span.filter_map(|lost| Some((lost, of_head?))) {
        if let Some(record) = attempt_span(lost, loss, place, pid, now_unix_nano) {
            finished.push(Finished {
                record,
                pending: hooks,
                is_open: true,
                cut: 0,
                attempt: Some((lost.task, lost.attempt)),
            });
        }
    }
    let counted = |finished: &[Finished]| {
        finished.iter().fold(spool_counts, |sum, span| SpanCounts {
            cut: sum.cut + u64::from(span.cut),
            closed: sum.closed + u64::from(span.is_open),
            recovered: sum.recovered + u64::from(!span.is_open),
            ..sum
        })
    };
    let target = Target::of(&story, folders.spans_dir, pid);
    if finished.iter().any(|span| span.pending & hooks::FILE != 0) {
        let tail = target.tail(pid);
        // What an earlier try at this spool has written is in the file too, open or ended.
        for span in finished.iter_mut().filter(|span| span.pending & hooks::FILE != 0) {
            let written = match span.attempt {
                Some((task, number)) => tail.attempts.get(&(task, number, span.record.trace_id)),
                None => tail.spans.get(&span.record.span_id),
            };
            if let Some(&span_id) = written {
                span.record.span_id = span_id;
                span.pending &= !hooks::FILE;
            }
        }
    }
    found.extend(finished.iter().filter_map(|span| Some((span.attempt?.0, link_to(&span.record)))));
    finished.retain(|span| span.pending != 0);
    counts = counted(&finished);
    let brought_on = write_to_file(&finished, &resource, &target, pid)
        .and_then(|()| put_into_parcels(finished, &resource, folders.handover, (spool, pid, finisher), mark));
    if let Err(error) = brought_on {
        // The spool stays: the next head tries again.
        let unwritten = counts.recovered + counts.closed;
        return (SpanCounts { unwritten, ..spool_counts }, Some(error));
    }
    if let Finisher::Reader = finisher {
        spans.iter().for_each(|span| story.settle(span, now_unix_nano));
    }
    (counts, finisher.remove(spool))
}

/// Writes the log records that the process has left in its buffer. A line that the process has written itself before it died is not written again.
fn finish_logs(story: &Story, spool: &Path, folder: &Path, pid: u32, finisher: Finisher<'_>) -> io::Result<()> {
    let records = logs::left_behind(spool)?;
    let mut line = Vec::new();
    logs::write_line(&mut line, &logs::line_head(&story.resource()), &records);
    let target = Target { folder: folder.into(), extension: LOGS_EXTENSION.into(), is_otlp: true };
    if !line.is_empty() && !ends_with(&folder.join(format!("{pid}.{LOGS_EXTENSION}")), &line)? {
        target.append(pid, &line)?;
    }
    match finisher {
        Finisher::Reader if !records.is_empty() => logs::remove(spool),
        _ => Ok(()),
    }
}

/// Returns whether a file ends with these bytes.
fn ends_with(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    let Some(start) = file.metadata()?.len().checked_sub(bytes.len() as u64) else { return Ok(false) };
    file.seek(SeekFrom::Start(start))?;
    let mut end = Vec::with_capacity(bytes.len());
    file.take(bytes.len() as u64).read_to_end(&mut end)?;
    Ok(end == bytes)
}

/// The beginning of the names of batches' spans.
const BATCH_SPAN: &str = "batch ";

/// A span that is finished, and who is to have it.
struct Finished {
    record: SpanRecord,
    pending: u32,
    /// True if it was open when its process died.
    is_open: bool,
    cut: u32,
    /// The attempt, for a span that its process had not begun.
    attempt: Option<Attempt>,
}

/// The file that the spans of a dead process go to.
struct Target {
    folder: PathBuf,
    /// The part of its name after the pid and a dot.
    extension: String,
    is_otlp: bool,
}

impl Target {
    /// Returns the target of the process's hook, if it said which that is, in a form that is known; else `<pid>.json` in the folder of the span files.
    fn of(story: &Story, spans_dir: &Path, pid: u32) -> Target {
        let own = || Target { folder: spans_dir.into(), extension: "json".into(), is_otlp: false };
        let Some((path, format)) = story.span_file() else { return own() };
        let name = path.file_name().and_then(|name| name.to_str());
        let extension = name.and_then(|name| name.strip_prefix(&format!("{pid}.")));
        match (path.parent(), extension, format) {
            (Some(folder), Some(extension), abi::SPAN_FILE_CONSOLE | abi::SPAN_FILE_OTLP) if path.is_absolute() => {
                let is_otlp = format == abi::SPAN_FILE_OTLP;
                Target { folder: folder.into(), extension: extension.into(), is_otlp }
            }
            _ => own(),
        }
    }

    fn append(&self, pid: u32, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() {
            return Ok(());
        }
        let (extension, rotation) = (self.extension.clone(), Rotation::from_env());
        let mut file =
            SpanFile::try_with_extension(&self.folder, pid, extension, rotation).map_err(io::Error::other)?;
        file.append(lines).map_err(io::Error::other)
    }

    fn tail(&self, pid: u32) -> Tail {
        let take = if self.is_otlp { Tail::take_otlp } else { Tail::take };
        Tail::read(&self.folder, [format!("{pid}.{}", self.extension), format!("{pid}.1.{}", self.extension)], take)
    }
}

fn write_to_file(spans: &[Finished], resource: &[(String, OwnedValue)], target: &Target, pid: u32) -> io::Result<()> {
    let of_file = || spans.iter().filter(|span| span.pending & hooks::FILE != 0).map(|span| &span.record);
    let mut lines = Vec::new();
    if target.is_otlp {
        // As the hook would have written them, which its own library knows best.
        let request = export_request(resource, of_file().cloned().collect());
        lines = tracer_otlp_file::lines(&request).map_err(io::Error::other)?;
    } else {
        let resource = resource_json(resource);
        of_file().for_each(|record| record.write_line(&mut lines, &resource));
    }
    target.append(pid, &lines)
}

/// Puts the spans that exporters are to have into parcels. Their names follow from the spool's, so that a second try replaces what a
/// first one has left.
fn put_into_parcels(
    spans: Vec<Finished>,
    resource: &[(String, OwnedValue)],
    folder: &Path,
    (spool, pid, finisher): (&Path, u32, Finisher<'_>),
    mark: u32,
) -> io::Result<()> {
    let mut by_hooks: BTreeMap<u32, Vec<SpanRecord>> = BTreeMap::new();
    for span in spans.into_iter().filter(|span| span.pending & hooks::SINKS != 0) {
        by_hooks.entry(span.pending & hooks::SINKS).or_default().push(span.record);
    }
    let stem = spool.file_stem().and_then(|stem| stem.to_str()).unwrap_or("spool");
    // A head after a reader has other spans, which replace none of that one's.
    let kind = match finisher {
        Finisher::Head(_) => "left",
        Finisher::Reader => "read",
    };
    for (hooks, records) in by_hooks {
        for (number, records) in records.chunks(PARCEL_SPANS).enumerate() {
            let request = export_request(resource, records.to_vec());
            Parcel::write(folder, &format!("{stem}-{pid}-{number}-{kind}"), hooks, mark, records.len(), &request)?;
        }
    }
    Ok(())
}

/// A task and which attempt at it.
type Attempt = (TaskId, u32);

/// Returns the attempt that a span is of, if it is of one.
fn begun(span: &SpanStory) -> Option<(Attempt, SpanLink)> {
    let number = span.record.attributes.iter().find(|(key, _)| key == names::ATTEMPT).map(|(_, value)| value);
    let number = match number {
        Some(OwnedValue::I64(number)) => u32::try_from(*number).ok()?,
        _ => return None,
    };
    span.is_attempt.then(|| ((TaskId(span.task_id), number), link_to(&span.record)))
}

fn link_to(record: &SpanRecord) -> SpanLink {
    let &SpanRecord { trace_id, span_id, trace_flags, .. } = record;
    SpanLink { trace_id, span_id, trace_flags }
}

/// Returns the span as it is to be written.
fn close(span: SpanStory, loss: &Loss, finisher: Finisher<'_>, now_unix_nano: u64) -> SpanRecord {
    let SpanStory { mut record, has_ended, cut, .. } = span;
    if cut > 0 {
        record.set_attribute(names::CUT, i64::from(cut).into());
    }
    if !has_ended {
        record.end_time_unix_nano = now_unix_nano.max(record.start_time_unix_nano);
        fail(&mut record, loss.why(TaskId(span.task_id)), finisher, span.is_attempt);
    }
    record
}

/// Completes the links of batches that had no room for all of them in their slots: each request of a batch has a link to it, so what is missing is known from those.
fn complete_batches(finished: &mut [Finished]) {
    for at in 0..finished.len() {
        let batch = &finished[at];
        if batch.cut == 0 || !batch.record.name.starts_with(BATCH_SPAN) {
            continue;
        }
        let of = |link: &LinkRecord| (link.trace_id, link.span_id);
        let own = (batch.record.trace_id, batch.record.span_id);
        let known: HashSet<_> = batch.record.links.iter().map(of).collect();
        let requests =
            finished.iter().map(|span| &span.record).filter(|record| record.links.iter().any(|link| of(link) == own));
        let missing = requests.filter(|record| !known.contains(&(record.trace_id, record.span_id)));
        let missing = missing.map(|record| LinkRecord {
            trace_id: record.trace_id,
            span_id: record.span_id,
            trace_flags: record.trace_flags,
            ..LinkRecord::default()
        });
        let missing: Vec<_> = missing.collect();
        let batch = &mut finished[at];
        batch.cut = batch.cut.saturating_sub(u32::try_from(missing.len()).unwrap_or(u32::MAX));
        batch.record.links.extend(missing);
        match batch.cut {
            0 => batch.record.attributes.retain(|(key, _)| key != names::CUT),
            cut => batch.record.set_attribute(names::CUT, i64::from(cut).into()),
        }
    }
}

fn fail(record: &mut SpanRecord, why: &Why, finisher: Finisher<'_>, is_attempt: bool) {
    record.status = abi::SPAN_STATUS_ERROR;
    record.status_description.clone_from(&why.description);
    record.set_attribute(names::ERROR_TYPE, why.error_type.as_str().into());
    record.set_attribute(names::COMPLETED_BY, finisher.name().into());
    if is_attempt {
        record.events.push(EventRecord {
            name: names::EXCEPTION_EVENT.into(),
            time_unix_nano: record.end_time_unix_nano,
            attributes: vec![
                (names::EXCEPTION_TYPE.into(), why.error_type.as_str().into()),
                (names::EXCEPTION_MESSAGE.into(), why.description.as_str().into()),
            ],
        });
    }
}

fn is_sampled(lost: &LostAttempt) -> bool {
    let trace = Envelope::decode(&lost.envelope).ok().and_then(|envelope| envelope.trace);
    trace.is_some_and(|trace| trace.trace_flags & FLAG_SAMPLED != 0)
}

/// Returns the span of an attempt that was claimed and did not get as far as its span.
fn attempt_span(
    lost: &LostAttempt,
    loss: &Loss,
    place: DeadOrigin<'_>,
    pid: u32,
    now_unix_nano: u64,
) -> Option<SpanRecord> {
    let envelope = Envelope::decode(&lost.envelope).ok()?;
    let trace = envelope.trace?;
    let target = envelope.spec.target();
    let mut record = record_of(&trace, &target, (lost.granted_unix_nano, now_unix_nano));
    let store = ModuleStore::of_session(place.session_dir);
    let module_version = envelope.module_version.map(|version| store.name(version));
    let span = AttemptSpan {
        envelope: &envelope,
        target: &target,
        task: lost.task,
        attempt: lost.attempt,
        job: lost.job,
        worker: place.worker?,
        pid,
        node_id: place.node_id,
        queued_ns: lost.granted_unix_nano.saturating_sub(lost.submitted_unix_nano),
        code: None,
        module_version: module_version.as_deref(),
    };
    span.put_first(&mut |key, value| record.set_attribute(key, value.into()));
    span.with_further(|further| further.iter().for_each(|(key, value)| record.set_attribute(key, (*value).into())));
    record.links.extend(lost.previous.map(link_back));
    fail(&mut record, loss.why(lost.task), Finisher::Head(place), true);
    Some(record)
}

/// Returns the span of an attempt whose own process has not begun it.
fn record_of(trace: &TraceLink<'_>, target: &str, (start_unix_nano, end_unix_nano): (u64, u64)) -> SpanRecord {
    SpanRecord {
        name: format!("{target} {}", names::REMOTE_WORKER_SUFFIX),
        scope: tracer_host::hook::SCOPE.into(),
        scope_version: tracer_ipc::VERSION.into(),
        trace_id: trace.trace_id,
        span_id: tracer_host::hook::random(),
        parent_span_id: Some(trace.span_id),
        is_parent_remote: true,
        trace_flags: trace.trace_flags,
        trace_state: trace.trace_state.into(),
        kind: abi::SPAN_KIND_CONSUMER,
        start_time_unix_nano: start_unix_nano,
        end_time_unix_nano: end_unix_nano.max(start_unix_nano),
        ..SpanRecord::default()
    }
}

/// Returns the link to the span of the attempt before.
fn link_back(previous: SpanLink) -> LinkRecord {
    LinkRecord {
        trace_id: previous.trace_id,
        span_id: previous.span_id,
        trace_flags: previous.trace_flags,
        is_remote: true,
        trace_state: String::new(),
        attributes: Vec::new(),
    }
}

/// The value of `error.type` of an attempt that was lost with its node.
const NODE_LOST: &str = "node:lost";

/// Writes the span of an attempt that was lost with another node. `model` is the story of a process of this head whose span file, resource and exporters are
/// those of a session's processes; without one, the span goes to the span folder alone. Returns nothing for a task that is not sampled.
pub(super) fn write_stand_in(
    of: &StandIn<'_>,
    model: Option<&Story>,
    folders: Folders<'_>,
    finisher: Finisher<'_>,
    pid: u32,
) -> io::Result<Option<SpanLink>> {
    let Ok(envelope) = Envelope::decode(of.envelope) else { return Ok(None) };
    let Some(trace) = envelope.trace.filter(|trace| trace.trace_flags & FLAG_SAMPLED != 0) else { return Ok(None) };
    let lost = of.lost;
    let mut record = record_of(&trace, &envelope.spec.target(), (lost.since_unix_nano, lost.until_unix_nano));
    let attributes: [(&str, OwnedValue); 8] = [
        (names::REMOTE, attempt_span::remote(&envelope.spec).into()),
        (names::FUNCTION, envelope.spec.target().as_str().into()),
        (names::PID, i64::from(pid).into()),
        (names::JOB_ID, i64::try_from(of.job.0).unwrap_or(i64::MAX).into()),
        (names::NODE_ID, lost.node_id.as_str().into()),
        (names::TASK_ID, i64::try_from(of.task.0).unwrap_or(i64::MAX).into()),
        (names::ATTEMPT, i64::from(lost.attempt).into()),
        (names::STAND_IN, true.into()),
    ];
    attributes.into_iter().for_each(|(key, value)| record.set_attribute(key, value));
    if let Some(id) = of.shared {
        record.set_attribute(names::CLUSTER_TASK_ID, id.to_string().as_str().into());
        record.set_attribute(names::QUEUE, envelope.policy.queue.into());
    }
    // Its times are by the clock of this node.
    if let Some(clocks) = envelope.clocks {
        record.set_attribute(names::CLOCK_OFFSET_NS, clocks.holder_ns.into());
        record.set_attribute(names::ORIGIN_CLOCK_OFFSET_NS, clocks.origin_ns.into());
    }
    record.links.extend(of.previous.map(link_back));
    let description = format!("node `{}`, which ran it, was lost", lost.node_id);
    let why = Why { error_type: NODE_LOST.into(), description };
    fail(&mut record, &why, finisher, true);
    let link = link_to(&record);
    let (pending, mark) = model.map_or((hooks::FILE, 0), Story::hooks);
    let mut resource = model.map(Story::resource).unwrap_or_default();
    for (_, value) in resource.iter_mut().filter(|(key, _)| key == "process.pid") {
        *value = i64::from(pid).into();
    }
    let target = match model.and_then(|story| Some((story, story.pid()?))) {
        Some((story, of_story)) => Target::of(story, folders.spans_dir, of_story),
        None => Target { folder: folders.spans_dir.into(), extension: "json".into(), is_otlp: false },
    };
    let finished = vec![Finished { record, pending, is_open: true, cut: 0, attempt: None }];
    write_to_file(&finished, &resource, &target, pid)?;
    let name = PathBuf::from(format!("lost-{}-{}", of.task.0, lost.attempt));
    put_into_parcels(finished, &resource, folders.handover, (&name, pid, finisher), mark)?;
    Ok(Some(link))
}

/// Contents of the end of a process's span file.
#[derive(Default)]
struct Tail {
    spans: HashSet<[u8; 8]>,
    /// The spans of attempts by task, attempt and trace: ids of tasks may have been given out twice, in places of their own.
    attempts: HashMap<(TaskId, u32, [u8; 16]), [u8; 8]>,
}

impl Tail {
    /// Reads the end of a file, and of the one before, because it may have been rotated since.
    fn read(folder: &Path, names: [String; 2], take: fn(&mut Tail, &str)) -> Tail {
        let mut tail = Tail::default();
        let mut left = TAIL;
        for name in names {
            // A file that is not there has nothing; one that cannot be read cannot be appended to either, which is said then.
            let text = read_end(&folder.join(name), left).unwrap_or_default();
            // A torn last line is no span.
            text.split_inclusive('\n').filter(|line| line.ends_with('\n')).for_each(|line| take(&mut tail, line));
            left = left.saturating_sub(text.len() as u64);
        }
        tail
    }

    /// Takes a line in. The span's own ids come before those of its parent and its links.
    fn take(&mut self, line: &str) {
        let Some(span_id) = id_after(line, "span_id") else { return };
        self.spans.insert(span_id);
        if line.contains("\"SpanKind.CONSUMER\"")
            && let Some(trace_id) = id_after(line, "trace_id")
            && let Some(task) = value_after(line, names::TASK_ID).and_then(number)
            && let Some(attempt) = value_after(line, names::ATTEMPT).and_then(number)
            && let Ok(attempt) = u32::try_from(attempt)
        {
            self.attempts.insert((TaskId(task), attempt, trace_id), span_id);
        }
    }
}

impl Tail {
    /// The same for a line of OTLP. The span comes after its resource and its scope, its own ids before those of its links.
    fn take_otlp(&mut self, line: &str) {
        let Some(span) = after(line, "\"spans\":[{") else { return };
        let Some(span_id) = after(span, "\"spanId\":\"").and_then(hex) else { return };
        self.spans.insert(span_id);
        let integer =
            |key: &str| after(span, &format!("{{\"key\":\"{key}\",\"value\":{{\"intValue\":\"")).and_then(number);
        if span.contains("\"kind\":5,")
            && let Some(trace_id) = after(span, "\"traceId\":\"").and_then(hex)
            && let Some(task) = integer(names::TASK_ID)
            && let Some(attempt) = integer(names::ATTEMPT)
            && let Ok(attempt) = u32::try_from(attempt)
        {
            self.attempts.insert((TaskId(task), attempt, trace_id), span_id);
        }
    }
}

/// Returns the last `length` bytes of a file.
fn read_end(path: &Path, length: u64) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(length)))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(key).map(|(_, rest)| rest)
}

/// Returns what follows the first key of this name, with or without a space between: files of an older version have one.
fn value_after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    after(line, &format!("\"{key}\":")).map(str::trim_start)
}

fn id_after<const N: usize>(line: &str, key: &str) -> Option<[u8; N]> {
    hex(value_after(line, key)?.strip_prefix("\"0x")?)
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn number(text: &str) -> Option<u64> {
    text[..text.find(|character: char| !character.is_ascii_digit())?].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_the_links_again_that_its_slot_had_no_room_for() {
        let span = |name: &str, id: u8, links: &[u8], cut| {
            let link = |id: &u8| LinkRecord { trace_id: [*id; 16], span_id: [*id; 8], ..LinkRecord::default() };
            let links = links.iter().map(link).collect();
            let (trace_id, span_id) = ([id; 16], [id; 8]);
            let mut record =
                SpanRecord { name: name.into(), trace_id, span_id, trace_flags: 1, links, ..SpanRecord::default() };
            if cut > 0 {
                record.set_attribute(names::CUT, i64::from(cut).into());
            }
            Finished { record, pending: 1, is_open: true, cut, attempt: None }
        };
        let mut finished = vec![
            span("batch app.predict", 1, &[2], 3),
            span("a request", 2, &[1], 0),
            span("another request", 3, &[9, 1], 0),
            span("a request of another batch", 4, &[9], 0),
            span("one more request", 5, &[1], 0),
            span("of a user, linked from 2", 9, &[], 2),
        ];
        complete_batches(&mut finished);
        let ids = |span: &Finished| {
            span.record.links.iter().map(|link| (link.span_id[0], link.trace_flags)).collect::<Vec<_>>()
        };
        assert_eq!(ids(&finished[0]), [(2, 0), (3, 1), (5, 1)]);
        let told = |span: &Finished| {
            span.record.attributes.iter().find(|(key, _)| key == names::CUT).map(|(_, value)| value.clone())
        };
        assert_eq!((finished[0].cut, told(&finished[0])), (1, Some(OwnedValue::I64(1))));
        assert_eq!((finished[5].cut, ids(&finished[5])), (2, Vec::new()), "what is no batch has what it had");
        finished[0].cut = 2;
        finished[0].record.links.truncate(1);
        complete_batches(&mut finished);
        assert_eq!((finished[0].cut, told(&finished[0])), (0, None), "nothing is missing");
    }

    #[test]
    fn spans_in_a_file_are_known_with_and_without_spaces_between_its_tokens() {
        let line = r#"{"name": "a", "context": {"trace_id": "0x0af7651916cd43dd8448eb211c80319c", "span_id": "0xb7ad6b7169203331"}, "kind": "SpanKind.CONSUMER", "parent_id": "0x00f067aa0ba902b7", "attributes": {"tracer.task_id": 7, "tracer.attempt": 2}}"#;
        for line in [line.to_owned(), line.replace(": ", ":").replace(", ", ",")] {
            let mut tail = Tail::default();
            tail.take(&line);
            let span_id = [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31];
            assert_eq!(tail.spans, HashSet::from([span_id]), "{line}");
            let attempts: Vec<_> =
                tail.attempts.iter().map(|((task, attempt, _), id)| (task.0, *attempt, *id)).collect();
            assert_eq!(attempts, [(7, 2, span_id)], "{line}");
        }
    }
}
