//! The spans that the living processes of a session hold: those that are open, and those that have ended and are not in a file yet.
//!
//! They are read from the spools, which costs the processes nothing. A process that has died is left out: its spans are not
//! running, and the head completes them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use tracer_core::names;
use tracer_ipc::spool::record::{OwnedValue, resource_json};
use tracer_ipc::spool::{SpanStory, SpoolError, Story};

use super::span::{Bytes, Found, Kind, Maker, Origin, Part, SpanFile};
use crate::span::{Span, SpanId, Status, TraceId};

/// The spools of a session. They stay mapped, so that looking again is cheap.
pub struct Live {
    folder: PathBuf,
    stories: HashMap<PathBuf, Story>,
}

/// A span that is in a spool.
#[derive(Clone, Debug)]
pub struct LiveSpan {
    /// The span. It [is running](Span::is_running), or has ended and is not in a file yet.
    pub span: Span,
    /// The process that it is in.
    pub pid: u32,
    /// The task in whose attempt it was started.
    pub task_id: Option<u64>,
}

/// Contents of the spools at one look.
#[derive(Debug, Default)]
pub struct Look {
    /// The spans, process by process.
    pub spans: Vec<LiveSpan>,
    /// Living processes that have spans without a slot, with how many: those are not among `spans`.
    pub unrecorded: Vec<(u32, u64)>,
    /// Traces with spans in spools of dead processes, which nobody has completed yet.
    pub orphaned: HashSet<TraceId>,
    /// Spools that could not be read.
    pub errors: Vec<SpoolError>,
}

impl Live {
    /// Opens the spools of the session in this folder. Nothing is read yet.
    pub fn new(session_dir: &Path) -> Live {
        Live { folder: session_dir.join("spool"), stories: HashMap::new() }
    }

    /// Looks at the spools, at the time `now_unix_nano`, for the spans of the traces that are wanted.
    pub fn look(&mut self, now_unix_nano: u64, is_wanted: impl Fn(TraceId) -> bool) -> Look {
        let mut look = Look::default();
        let is_left = |span: &SpanStory| span.pending != 0 && is_wanted(trace_id(span));
        let entries = fs::read_dir(&self.folder).into_iter().flatten();
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "spool"));
        paths.sort();
        self.stories.retain(|path, _| paths.binary_search(path).is_ok());
        for path in paths {
            let story = match self.stories.entry(path.clone()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => match Story::open(&path) {
                    Ok(story) => place.insert(story),
                    // Its process has ended since the folder was read.
                    Err(SpoolError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        look.errors.push(error);
                        continue;
                    }
                },
            };
            let Some(pid) = story.pid() else { continue };
            if !story.is_owner_alive() {
                look.orphaned.extend(story.spans().iter().filter(|span| is_left(span)).map(trace_id));
                continue;
            }
            let unrecorded = story.unrecorded();
            if unrecorded > 0 {
                look.unrecorded.push((pid, unrecorded));
            }
            let wanted: Vec<SpanStory> = story.spans().into_iter().filter(is_left).collect();
            if wanted.is_empty() {
                continue;
            }
            // Not those of a process that died while its spool was read.
            if !story.is_owner_alive() {
                look.orphaned.extend(wanted.iter().map(trace_id));
            } else {
                look.spans.extend(spans(&path, pid, &story.resource(), wanted, now_unix_nano));
            }
        }
        look
    }
}

fn trace_id(span: &SpanStory) -> TraceId {
    TraceId(u128::from_be_bytes(span.record.trace_id))
}

/// Makes what a spool says to spans like those of a file, with the same text; only that an open one has no end.
fn spans(
    path: &Path,
    pid: u32,
    resource: &[(String, OwnedValue)],
    stories: Vec<SpanStory>,
    now_unix_nano: u64,
) -> Vec<LiveSpan> {
    let resource = resource_json(resource);
    let mut bytes = Vec::new();
    let mut ranges = Vec::with_capacity(stories.len());
    for story in &stories {
        let start = bytes.len();
        let mut record = story.record.clone();
        if story.cut > 0 {
            record.set_attribute(names::CUT, OwnedValue::I64(story.cut.into()));
        }
        record.write_line(&mut bytes, &resource);
        if !story.has_ended {
            forget_end(&mut bytes, start);
        }
        // Without the line feed.
        ranges.push(start..bytes.len() - 1);
    }
    let file = Arc::new(SpanFile { path: path.into(), pid: Some(pid), bytes: Bytes::Here(bytes) });
    let live = |(story, range): (SpanStory, std::ops::Range<usize>)| {
        let record = story.record;
        let Bytes::Here(bytes) = &file.bytes else { unreachable!("it was made above") };
        let part = Part { offset: range.start as u64, len: range.len() as u32 };
        let maker = Arc::new(Maker { resource: part, ..Maker::new(Arc::clone(&file)) });
        let found = Found {
            span_id: SpanId(u64::from_be_bytes(record.span_id)),
            parent_id: record.parent_span_id.map(|id| SpanId(u64::from_be_bytes(id))),
            kind: kind(record.kind),
            status: match record.status {
                tracer_abi::SPAN_STATUS_OK => Status::Ok,
                tracer_abi::SPAN_STATUS_ERROR => Status::Error,
                _ => Status::Unset,
            },
            start_unix_nano: record.start_time_unix_nano,
            end_unix_nano: story.has_ended.then_some(record.end_time_unix_nano),
            marks: 0,
            origin: Arc::new(Origin {
                running_unix_nano: (!story.has_ended).then_some(now_unix_nano),
                ..Origin::new(maker, TraceId(u128::from_be_bytes(record.trace_id)), record.name.as_str().into())
            }),
            offset: part.offset,
            text: &bytes[range],
        };
        let span = Span::from(found);
        LiveSpan { span, pid, task_id: Some(story.task_id).filter(|&id| id != 0) }
    };
    stories.into_iter().zip(ranges).map(live).collect()
}

fn kind(code: u32) -> Kind {
    match tracer_span_file::SpanKind::from_code(code) {
        tracer_span_file::SpanKind::Internal => Kind::Internal,
        tracer_span_file::SpanKind::Server => Kind::Server,
        tracer_span_file::SpanKind::Client => Kind::Client,
        tracer_span_file::SpanKind::Producer => Kind::Producer,
        tracer_span_file::SpanKind::Consumer => Kind::Consumer,
    }
}

/// Makes the end of the line that begins at `start` null.
fn forget_end(bytes: &mut Vec<u8>, start: usize) {
    // No string before it can hold this: a quote in a string has a backslash before it.
    const KEY: &[u8] = b"\"end_time\":";
    let value = memchr::memmem::find(&bytes[start..], KEY).map(|at| start + at + KEY.len());
    let Some(value) = value else { return };
    if let Some(len) = memchr::memchr(b',', &bytes[value..]) {
        bytes.splice(value..value + len, *b"null");
    }
}

#[cfg(test)]
mod tests {
    use tracer_abi as abi;
    use tracer_core::propagation::FLAG_SAMPLED;
    use tracer_ipc::spool::{Prefix, SLOT_COUNT, SpanOpening, Spool};

    use super::*;
    use crate::fixture::EPOCH;
    use crate::loaded::Loaded;

    fn opening(span_id: u8, name: &'static str) -> SpanOpening<'static> {
        SpanOpening {
            trace_id: [7; 16],
            span_id: [span_id; 8],
            parent_span_id: [0; 8],
            is_parent_remote: false,
            trace_flags: FLAG_SAMPLED,
            trace_state: b"",
            start_time_unix_nano: EPOCH + u64::from(span_id),
            kind: abi::SPAN_KIND_CONSUMER,
            name: name.as_bytes(),
            scope: b"test",
            scope_version: b"",
            prefix: Prefix::NONE,
            task_id: 5,
            is_attempt: false,
        }
    }

    #[test]
    fn what_runs_is_seen_with_its_age_and_what_ended_with_its_end() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("spool")).unwrap();
        let spool = Spool::create(&folder.path().join("spool/worker-1.spool"), SLOT_COUNT).unwrap();
        // A name that could be taken for the key.
        spool.open(&opening(1, r#"x", "end_time": "no"#)).unwrap();
        let ended = spool.open(&opening(2, "ended")).unwrap();
        spool.end(ended, EPOCH + 50);
        fs::write(folder.path().join("spool/broken.spool"), "x").unwrap();
        let mut live = Live::new(folder.path());
        let look = live.look(EPOCH + 1001, |_| true);
        assert_eq!(look.errors.len(), 1);
        let [running, ended] = look.spans.as_slice() else { panic!("{look:?}") };
        assert_eq!((running.pid, running.task_id), (std::process::id(), Some(5)));
        assert!(running.span.is_running() && !ended.span.is_running());
        assert_eq!((running.span.duration_ns(), ended.span.duration_ns()), (1000, 48));
        let written: serde_json::Value = serde_json::from_str(&running.span.text()).unwrap();
        assert_eq!(written["end_time"], serde_json::Value::Null);
        assert_eq!(written["name"], *running.span.name());
        assert_eq!(live.look(0, |_| false).spans.len(), 0);

        let mut loaded = Loaded::empty(folder.path());
        loaded.add(look.spans.iter().map(|live| live.span.clone()));
        loaded.add(look.spans.into_iter().map(|live| live.span));
        assert_eq!((loaded.traces.len(), loaded.traces[0].spans.len(), loaded.traces[0].running_count()), (1, 2, 1));
        assert_eq!(loaded.traces[0].duration_ns(), 1000);
    }
}
