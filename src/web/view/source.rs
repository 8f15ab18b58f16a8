//! Source of the spans: one [`Index`] for all pages, made when the first one asks, and a number that grows with each change.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_ipc::session::{all_sessions, find_head, place_of};
use tracer_trace::{Changed, INDEX_BYTES, Index, LoadError};

use super::changes::{Changes, Since};

/// Answers may be older than the present by this.
const FRESH: Duration = Duration::from_millis(50);
/// Interval at which another head is looked for.
const HEAD_INTERVAL: Duration = Duration::from_secs(1);

/// Sessions whose spools are read beside the span files.
pub(crate) enum Session {
    /// None: only what was written is there.
    None,
    /// This one.
    Of(PathBuf),
    /// Session of the head of this place, if one runs that writes to the folder.
    OfHead(PathBuf),
}

/// The span files of a folder, and the spools of the head that writes there.
pub(super) struct Source {
    session: Session,
    watched: Mutex<Watched>,
    folder: PathBuf,
    /// Apart from the rest, so that who follows does not wait for a look.
    changes: Mutex<Changes>,
}

/// Spans and messages of the last look.
pub(super) struct Watched {
    pub(super) index: Index,
    /// Number of the newest change.
    pub(super) revision: u64,
    /// Time of the look, in nanoseconds since the Unix epoch.
    pub(super) now_unix_nano: u64,
    /// Messages on files that could not be read, newest last.
    pub(super) notices: Vec<String>,
    /// The session of the head, if one writes to the folder.
    session: Option<PathBuf>,
    looked_at: Option<Instant>,
    head: Option<(Instant, Option<PathBuf>)>,
}

/// The most notices that are kept.
const NOTICES: usize = 20;

impl Source {
    pub(super) fn new(folder: PathBuf, session: Session) -> Source {
        let changes = Changes::new(now_unix_nano());
        let watched = Watched {
            index: Index::new(&folder, INDEX_BYTES),
            revision: changes.revision(),
            now_unix_nano: 0,
            notices: Vec::new(),
            session: None,
            looked_at: None,
            head: None,
        };
        Source { session, watched: Mutex::new(watched), folder, changes: Mutex::new(changes) }
    }

    /// Looks, unless somebody has done so just now, and returns what is there. It may take as long as reading all files takes.
    pub(super) fn look(&self) -> Result<MutexGuard<'_, Watched>, LoadError> {
        let mut watched = lock(&self.watched);
        if watched.looked_at.is_none_or(|time| time.elapsed() >= FRESH) {
            let changed = watched.look(&self.session)?;
            let mut changes = lock(&self.changes);
            changes.add(changed);
            watched.revision = changes.revision();
        }
        Ok(watched)
    }

    /// Returns what has changed after a revision.
    pub(super) fn since(&self, revision: Option<u64>) -> Since {
        lock(&self.changes).since(revision)
    }

    /// Gives the index up if nobody has looked for so long. Returns the time after which to ask again; none if there is no index.
    pub(super) fn forget_after(&self, idle: Duration) -> Option<Duration> {
        let mut watched = lock(&self.watched);
        let looked = watched.looked_at?.elapsed();
        if looked < idle {
            return Some(idle - looked);
        }
        watched.index = Index::new(&self.folder, INDEX_BYTES);
        watched.looked_at = None;
        // What a page knew may have changed meanwhile.
        lock(&self.changes).add(Changed::All);
        None
    }
}

impl Watched {
    fn look(&mut self, session: &Session) -> Result<Changed, LoadError> {
        let session_dir = self.session_dir(session);
        let now = now_unix_nano();
        let (changed, notices) = self.index.look(session_dir.as_deref(), now)?;
        self.session = session_dir;
        self.now_unix_nano = now;
        self.notices.extend(notices.iter().map(ToString::to_string));
        let surplus = self.notices.len().saturating_sub(NOTICES);
        self.notices.drain(..surplus);
        self.looked_at = Some(Instant::now());
        Ok(changed)
    }

    /// Returns the session of the head, if one writes to the folder.
    pub(super) fn session(&self) -> Option<&Path> {
        self.session.as_deref()
    }

    /// Returns the sessions of the head's place, in whose logs there may be lines of the folder's traces.
    pub(super) fn sessions(&self) -> Vec<PathBuf> {
        self.session.as_deref().map(|session| all_sessions(place_of(session))).unwrap_or_default()
    }

    /// Returns the session of the head, if it writes to this folder.
    fn session_dir(&mut self, session: &Session) -> Option<PathBuf> {
        let temp_dir = match session {
            Session::None => return None,
            Session::Of(session_dir) => return Some(session_dir.clone()),
            Session::OfHead(temp_dir) => temp_dir,
        };
        if let Some((_, session)) = self.head.as_ref().filter(|(time, _)| time.elapsed() < HEAD_INTERVAL) {
            return session.clone();
        }
        let folder = self.index.folder();
        let is_same = |other: &Path| other == folder || other.canonicalize().ok() == folder.canonicalize().ok();
        let session = find_head(temp_dir).ok().filter(|head| is_same(&head.spans_dir)).map(|head| head.session_dir);
        self.head = Some((Instant::now(), session.clone()));
        session
    }
}
