//! A folder of span files together with the spools of a session, read again and again: each time only what is new, and what is open as it is now.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::{Live, LiveSpan, LoadError, Loaded, Notice, Span, SpanId, Tail, TraceId};

/// The spans of a folder and of the processes that write to it, kept up to date.
pub struct Watch {
    folder: PathBuf,
    tail: Tail,
    live: Option<(PathBuf, Live)>,
    loaded: Loaded,
    /// The spans of the last look that were in spools, and whether they were open. They are in `loaded` until the next look.
    in_spools: HashMap<(TraceId, SpanId), bool>,
    /// Open spans of the last look, process by process.
    open: Vec<LiveSpan>,
}

impl Watch {
    /// Makes a watch of a folder, of which nothing has been read.
    pub fn new(folder: &Path) -> Watch {
        Watch {
            folder: folder.into(),
            tail: Tail::new(folder),
            live: None,
            loaded: Loaded::empty(folder),
            in_spools: HashMap::new(),
            open: Vec::new(),
        }
    }

    /// Reads what is new, at the time `now_unix_nano`, from the files and from the spools of `session_dir`; without a session nothing is open. Returns
    /// whether anything changed but the time, and what could not be read. A folder that does not exist yet holds nothing yet.
    pub fn look(&mut self, session_dir: Option<&Path>, now_unix_nano: u64) -> Result<(bool, Vec<Notice>), LoadError> {
        if self.live.as_ref().map(|(session, _)| session.as_path()) != session_dir {
            self.live = session_dir.map(|session| (session.into(), Live::new(session)));
        }
        // The spools before the files: what is written in between is then in both, and not in neither.
        let look = self.live.as_mut().map(|(_, live)| live.look(now_unix_nano, |_| true)).unwrap_or_default();
        let (written, notices) = match self.tail.read() {
            Err(LoadError::Missing { .. }) => Default::default(),
            read => read?,
        };
        let in_spools: HashMap<(TraceId, SpanId), bool> =
            look.spans.iter().map(|live| ((live.span.trace_id, live.span.span_id), live.span.is_running())).collect();
        let has_changed = !written.is_empty() || in_spools != self.in_spools;
        self.forget_spools();
        self.loaded.add(written);
        self.open = look.spans.iter().filter(|live| live.span.is_running()).cloned().collect();
        self.loaded.add(look.spans.into_iter().map(|live| live.span));
        self.in_spools = in_spools;
        Ok((has_changed, notices))
    }

    /// Returns all spans as of the last look.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Returns the spans that were open at the last look.
    pub fn open(&self) -> &[LiveSpan] {
        &self.open
    }

    /// Returns the folder of the span files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes out what the last look found in spools: the next one finds it again, or it has been written.
    fn forget_spools(&mut self) {
        if self.in_spools.is_empty() {
            return;
        }
        self.in_spools.clear();
        for trace in &mut self.loaded.traces {
            trace.spans.retain(Span::is_written);
        }
        self.loaded.traces.retain(|trace| !trace.spans.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::super::fixture::{EPOCH, span};
    use super::*;
    use crate::propagation::FLAG_SAMPLED;
    use crate::spool::{Prefix, SLOT_COUNT, SpanOpening, Spool};

    /// Returns the names of all spans, those that are open with a `*`.
    fn names(watch: &Watch) -> Vec<String> {
        let spans = watch.loaded().traces.iter().flat_map(|trace| &trace.spans);
        spans.map(|span| format!("{}{}", span.name, if span.is_running() { "*" } else { "" })).collect()
    }

    #[test]
    fn each_look_has_what_was_written_and_what_is_open_once() {
        let folder = tempfile::tempdir().unwrap();
        let (spans, session) = (folder.path().join("spans"), folder.path().join("session"));
        let mut watch = Watch::new(&spans);
        assert!(!watch.look(Some(&session), EPOCH).unwrap().0, "neither is there");

        fs::create_dir_all(session.join("spool")).unwrap();
        let spool = Spool::create(&session.join("spool/worker-1.spool"), SLOT_COUNT).unwrap();
        let slot = spool
            .open(&SpanOpening {
                trace_id: 1u128.to_be_bytes(),
                span_id: 9u64.to_be_bytes(),
                parent_span_id: [0; 8],
                is_parent_remote: false,
                trace_flags: FLAG_SAMPLED,
                trace_state: b"",
                start_time_unix_nano: EPOCH,
                kind: tracer_abi::SPAN_KIND_INTERNAL,
                name: b"open",
                scope: b"test",
                scope_version: b"",
                prefix: Prefix::NONE,
                task_id: 0,
                is_attempt: false,
            })
            .unwrap();
        fs::create_dir(&spans).unwrap();
        let mut file = fs::File::create(spans.join("1.json")).unwrap();
        file.write_all(span("first", 1, None, (0, 5)).trace(2).line().as_bytes()).unwrap();
        assert!(watch.look(Some(&session), EPOCH + 10).unwrap().0);
        assert_eq!((names(&watch), watch.open().len()), (vec!["open*".into(), "first".into()], 1));
        assert!(!watch.look(Some(&session), EPOCH + 20).unwrap().0, "only the time has changed");
        assert_eq!(watch.loaded().traces.iter().map(super::super::Trace::duration_ns).max(), Some(5000));

        spool.end(slot, EPOCH + 30);
        file.write_all(span("second", 2, None, (6, 7)).trace(2).line().as_bytes()).unwrap();
        assert!(watch.look(Some(&session), EPOCH + 40).unwrap().0);
        assert_eq!((names(&watch), watch.open().len()), (vec!["open".into(), "first".into(), "second".into()], 0));
        assert!(watch.look(None, EPOCH + 50).unwrap().0, "the session is gone, and with it what was not written");
        assert_eq!(names(&watch), ["first", "second"]);
    }
}
