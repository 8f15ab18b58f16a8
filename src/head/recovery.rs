//! Finishes the story of a process that died: writes to its span file what its spool still holds.
//!
//! A span that had ended is written as it was. One that was open is closed with status ERROR, `error.type` and the time of the
//! death. An attempt that was claimed but has no span yet gets one. A process can die between the write to the span file and
//! the note of it in the spool, so spans that the file has already are found in its tail and left alone.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use tracer_abi as abi;
use tracer_span_file::{Rotation, SpanFile};

use super::reactor::{Loss, LostAttempt};
use crate::names;
use crate::protocol::SpanCounts;
use crate::spool::record::{EventRecord, OwnedValue, SpanRecord, resource_json};
use crate::spool::{SpanStory, SpoolError, Story};
use crate::task::{Envelope, TaskId, TaskSpec, WorkerId};

/// How far back the span file is searched for spans that it has already. A process writes its buffer at 64 KiB, so what it
/// wrote last is well within.
const TAIL: u64 = 8 << 20;

/// Where the dead process ran, for spans that it did not begin itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) node_id: &'a str,
    pub(super) worker: Option<WorkerId>,
}

/// Writes what is missing to `<spans_dir>/<pid>.json` and removes the spool. Counts what it did.
pub(super) fn finish_story(
    spool: &Path,
    spans_dir: &Path,
    loss: &Loss,
    place: Place<'_>,
    now_unix_nano: u64,
) -> io::Result<SpanCounts> {
    let story = match Story::open(spool) {
        Ok(story) => story,
        // A process that had nothing left to finish has removed it.
        Err(SpoolError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            return Ok(SpanCounts::default());
        }
        Err(error) => {
            let _ = std::fs::remove_file(spool);
            return Err(io::Error::other(error));
        }
    };
    let spool_counts = story.counts();
    let mut counts = SpanCounts { cut: 0, unrecorded: spool_counts.unrecorded, ..SpanCounts::default() };
    let Some(pid) = story.pid() else {
        std::fs::remove_file(spool)?;
        return Ok(counts);
    };
    let spans = story.spans();
    let attempts: Vec<_> = loss.attempts.iter().filter(|lost| is_sampled(lost)).collect();
    let is_traced = !story.resource().is_empty() || !spans.is_empty();
    if spans.is_empty() && (attempts.is_empty() || !is_traced) {
        std::fs::remove_file(spool)?;
        return Ok(counts);
    }
    let tail = Tail::read(&spans_dir.join(format!("{pid}.json")));
    let resource = resource_json(&story.resource());
    let mut lines = Vec::new();
    let mut written = 0;
    let begun: HashSet<TaskId> =
        spans.iter().filter(|span| span.is_attempt).map(|span| TaskId(span.task_id)).chain(tail.attempts()).collect();
    for span in spans {
        if span.has_ended && tail.has(&span.record.span_id) {
            continue;
        }
        counts.cut += u64::from(span.cut);
        if span.has_ended {
            counts.recovered += 1;
        } else {
            counts.closed += 1;
        }
        close(span, loss, now_unix_nano).write_line(&mut lines, &resource);
        written += 1;
    }
    for lost in attempts.iter().filter(|lost| !begun.contains(&lost.task)) {
        if let Some(record) = attempt_span(lost, loss, place, pid, now_unix_nano) {
            record.write_line(&mut lines, &resource);
            counts.closed += 1;
            written += 1;
        }
    }
    let appended = SpanFile::try_new(spans_dir, pid, Rotation::default())
        .map_err(io::Error::other)
        .and_then(|mut file| file.append(&lines).map_err(io::Error::other));
    if let Err(error) = appended {
        // The spool stays: the next head tries again.
        counts = SpanCounts { unwritten: written, ..SpanCounts::default() };
        return if counts.unwritten > 0 { Err(error) } else { Ok(counts) };
    }
    std::fs::remove_file(spool)?;
    Ok(counts)
}

/// The span as it is to be written.
fn close(span: SpanStory, loss: &Loss, now_unix_nano: u64) -> SpanRecord {
    let SpanStory { mut record, has_ended, cut, .. } = span;
    if cut > 0 {
        record.set_attribute(names::CUT, i64::from(cut).into());
    }
    if !has_ended {
        record.end_time_unix_nano = now_unix_nano.max(record.start_time_unix_nano);
        fail(&mut record, loss, span.is_attempt);
    }
    record
}

fn fail(record: &mut SpanRecord, loss: &Loss, is_attempt: bool) {
    record.status = abi::SPAN_STATUS_ERROR;
    record.status_description.clone_from(&loss.description);
    record.set_attribute(names::ERROR_TYPE, loss.error_type.as_str().into());
    record.set_attribute(names::COMPLETED_BY, "head".into());
    if is_attempt {
        record.events.push(EventRecord {
            name: names::EXCEPTION_EVENT.into(),
            time_unix_nano: record.end_time_unix_nano,
            attributes: vec![
                (names::EXCEPTION_TYPE.into(), loss.error_type.as_str().into()),
                (names::EXCEPTION_MESSAGE.into(), loss.description.as_str().into()),
            ],
        });
    }
}

fn is_sampled(lost: &LostAttempt) -> bool {
    let trace = Envelope::decode(&lost.envelope).ok().and_then(|envelope| envelope.trace);
    trace.is_some_and(|trace| trace.trace_flags & crate::propagation::FLAG_SAMPLED != 0)
}

/// The span of an attempt that was claimed and did not get as far as its span.
fn attempt_span(lost: &LostAttempt, loss: &Loss, place: Place<'_>, pid: u32, now_unix_nano: u64) -> Option<SpanRecord> {
    let envelope = Envelope::decode(&lost.envelope).ok()?;
    let trace = envelope.trace?;
    let target = envelope.spec.target();
    let mut record = SpanRecord {
        name: format!("{target} {}", names::REMOTE_WORKER_SUFFIX),
        scope: "tracer".into(),
        trace_id: trace.trace_id,
        span_id: crate::hook::random(),
        parent_span_id: Some(trace.span_id),
        trace_state: trace.trace_state.into(),
        kind: abi::SPAN_KIND_CONSUMER,
        start_time_unix_nano: lost.granted_unix_nano,
        end_time_unix_nano: now_unix_nano.max(lost.granted_unix_nano),
        ..SpanRecord::default()
    };
    let remote = match envelope.spec {
        TaskSpec::Function(_) => names::REMOTE_FUNCTION,
        TaskSpec::Command(_) => names::REMOTE_COMMAND,
    };
    let integer = |value: u64| OwnedValue::I64(i64::try_from(value).unwrap_or(i64::MAX));
    record.set_attribute(names::REMOTE, remote.into());
    record.set_attribute(names::FUNCTION, target.as_str().into());
    record.set_attribute(names::PID, integer(pid.into()));
    record.set_attribute(names::JOB_ID, integer(lost.job.0));
    record.set_attribute(names::TASK_ID, integer(lost.task.0));
    record.set_attribute(names::NODE_ID, place.node_id.into());
    record.set_attribute(names::ATTEMPT, integer(lost.attempt.into()));
    if let Some(worker) = place.worker {
        record.set_attribute(names::WORKER_ID, integer(worker.0));
    }
    fail(&mut record, loss, true);
    Some(record)
}

/// The end of a span file.
#[derive(Default)]
struct Tail {
    text: String,
}

impl Tail {
    fn read(path: &Path) -> Tail {
        let read = || -> io::Result<String> {
            let mut file = File::open(path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            let mut bytes = Vec::new();
            file.take(TAIL).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        // A file that is not there has nothing; one that cannot be read cannot be appended to either, which is said then.
        Tail { text: read().unwrap_or_default() }
    }

    fn has(&self, span_id: &[u8; 8]) -> bool {
        let id: String = span_id.iter().map(|byte| format!("{byte:02x}")).collect();
        // Only the span's own id has this key; its parent's has another, and a torn last line has no line feed.
        let mark = format!("\"span_id\": \"0x{id}\", \"trace_state\"");
        self.text.rfind(&mark).is_some_and(|place| {
            let line_start = self.text[..place].rfind('\n').map_or(0, |feed| feed + 1);
            let is_own = self.text[line_start..place].matches("\"span_id\"").count() == 0;
            is_own && self.text[place..].contains('\n')
        })
    }

    /// The tasks whose attempt's span is in the file.
    fn attempts(&self) -> impl Iterator<Item = TaskId> + '_ {
        let key = format!("\"{}\": ", names::TASK_ID);
        self.text
            .split_inclusive('\n')
            .filter(|line| line.ends_with('\n') && line.contains("SpanKind.CONSUMER"))
            .filter_map(move |line| {
                let rest = &line[line.find(&key)? + key.len()..];
                let digits = rest.find(|character: char| !character.is_ascii_digit())?;
                rest[..digits].parse().ok()
            })
    }
}
