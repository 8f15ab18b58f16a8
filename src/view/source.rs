//! Source of the spans: one [`Watch`] for all pages, and a number that grows with each change.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tracer_core::clock::now_unix_nano;

use crate::session::find_head;
use crate::trace::{LoadError, Watch};
use tracer_core::lock::lock;

/// Answers may be older than the present by this.
const FRESH: Duration = Duration::from_millis(50);
/// Interval at which another head is looked for.
const HEAD_INTERVAL: Duration = Duration::from_secs(1);

/// The span files of a folder, and the spools of the head that writes there.
pub(super) struct Source {
    /// The place of the head.
    temp_dir: Option<PathBuf>,
    watched: Mutex<Watched>,
}

/// Spans and messages of the last look.
pub(super) struct Watched {
    pub(super) watch: Watch,
    /// Grows whenever something has changed but the time.
    pub(super) revision: u64,
    /// Time of the look, in nanoseconds since the Unix epoch.
    pub(super) now_unix_nano: u64,
    /// Messages on files that could not be read, newest last.
    pub(super) notices: Vec<String>,
    looked_at: Option<Instant>,
    head: Option<(Instant, Option<PathBuf>)>,
}

/// The most notices that are kept.
const NOTICES: usize = 20;

impl Source {
    pub(super) fn new(folder: PathBuf, temp_dir: Option<PathBuf>) -> Source {
        let watched = Watched {
            watch: Watch::new(&folder),
            revision: 0,
            now_unix_nano: 0,
            notices: Vec::new(),
            looked_at: None,
            head: None,
        };
        Source { temp_dir, watched: Mutex::new(watched) }
    }

    /// Looks, unless somebody has done so just now, and returns what is there. It may take as long as reading all files takes.
    pub(super) fn look(&self) -> Result<MutexGuard<'_, Watched>, LoadError> {
        let mut watched = lock(&self.watched);
        if watched.looked_at.is_none_or(|time| time.elapsed() >= FRESH) {
            watched.look(self.temp_dir.as_deref())?;
        }
        Ok(watched)
    }
}

impl Watched {
    /// Returns the session of the head that writes to the folder, as of the last look.
    pub(super) fn session(&self) -> Option<&Path> {
        self.head.as_ref().and_then(|(_, session)| session.as_deref())
    }

    fn look(&mut self, temp_dir: Option<&Path>) -> Result<(), LoadError> {
        let session_dir = self.session_dir(temp_dir);
        let now = now_unix_nano();
        let (has_changed, notices) = self.watch.look(session_dir.as_deref(), now)?;
        self.revision += u64::from(has_changed);
        self.now_unix_nano = now;
        self.notices.extend(notices.iter().map(ToString::to_string));
        let surplus = self.notices.len().saturating_sub(NOTICES);
        self.notices.drain(..surplus);
        self.looked_at = Some(Instant::now());
        Ok(())
    }

    /// Returns the session of the head, if it writes to this folder.
    fn session_dir(&mut self, temp_dir: Option<&Path>) -> Option<PathBuf> {
        let temp_dir = temp_dir?;
        if let Some((_, session)) = self.head.as_ref().filter(|(time, _)| time.elapsed() < HEAD_INTERVAL) {
            return session.clone();
        }
        let folder = self.watch.folder();
        let is_same = |other: &Path| other == folder || other.canonicalize().ok() == folder.canonicalize().ok();
        let session = find_head(temp_dir).ok().filter(|head| is_same(&head.spans_dir)).map(|head| head.session_dir);
        self.head = Some((Instant::now(), session.clone()));
        session
    }
}
