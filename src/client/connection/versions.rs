//! Choice of the version of a module that a driver's submissions run.
//!
//! A driver looks at a module's library when it first submits a task of it, and again when none of its tasks is open: so what is submitted
//! together runs the same code. A command line keeps what it saw first. The tasks of a worker run, in the modules of their own, what they are
//! themselves; of another module each job looks for itself.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::exchange::SubmittingTask;
use crate::error::DriverError;
use tracer_core::task::{ActorRole, JobId, ModuleVersion, TaskSpec};
use tracer_host::hook::{Located, locate_in};
use tracer_host::module_store::{CopyError, ModuleStore, Taken};

/// A library is not looked at again before so long has passed.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Modules that are remembered. Beyond it all are forgotten, so that ever new paths do not fill the memory.
const KNOWN_LIMIT: usize = 256;

/// Versions of modules that a driver knows.
#[derive(Debug)]
pub(super) struct Versions {
    store: ModuleStore,
    /// Folders in which the head's workers look for modules.
    folders: Vec<PathBuf>,
    known: Vec<Known>,
    /// Index among those of the last one that was looked up.
    last: usize,
    /// True if what was seen once is kept.
    pub(super) is_pinned: bool,
    /// Time at which libraries that are known were looked at last.
    looked: Option<Instant>,
    /// Number of the current round, which grows: versions that were looked at in an earlier one count no more.
    round: u64,
    /// The job on whose behalf tasks submit.
    job: JobId,
}

#[derive(Debug)]
struct Known {
    module: Box<str>,
    round: u64,
    /// None for what has no versions: it is built in, or is not found here.
    taken: Option<Taken>,
}

impl Versions {
    pub(super) fn new(store: ModuleStore, folders: Vec<PathBuf>) -> Versions {
        Versions { store, folders, known: Vec::new(), last: 0, is_pinned: false, looked: None, round: 0, job: JobId(0) }
    }

    /// Returns the version that a submission runs, which `task` makes if it is no driver's. None where there is none, and where only a worker can
    /// find out.
    pub(super) fn of(
        &mut self,
        spec: &TaskSpec<'_>,
        task: Option<&SubmittingTask>,
        has_open_tasks: bool,
    ) -> Result<Option<ModuleVersion>, DriverError> {
        let job = task.map_or(JobId(0), |task| task.job);
        if self.job != job {
            self.job = job;
            self.round += 1;
        }
        let TaskSpec::Function(function) = spec else { return Ok(None) };
        if matches!(function.actor, ActorRole::Call(_)) {
            // It runs what its actor is.
            return Ok(None);
        }
        let module = function.module;
        let own = task.and_then(|task| task.module);
        if let Some((_, version)) = own.filter(|(own, _)| *own == module) {
            return Ok(Some(version));
        }
        if !has_open_tasks && !self.is_pinned && task.is_none() {
            self.look_again();
        }
        let is_it = |known: &Known| *known.module == *module;
        if !self.known.get(self.last).is_some_and(is_it) {
            self.last = self.known.iter().position(is_it).unwrap_or(usize::MAX);
        }
        if let Some(known) = self.known.get(self.last).filter(|known| known.round == self.round) {
            return Ok(known.taken.as_ref().map(|taken| taken.version));
        }
        let taken = self.find(module)?;
        let version = taken.as_ref().map(|taken| taken.version);
        let known = Known { module: module.into(), round: self.round, taken };
        match self.known.get_mut(self.last) {
            Some(place) => *place = known,
            None => {
                if self.known.len() >= KNOWN_LIMIT {
                    self.known.clear();
                }
                self.last = self.known.len();
                self.known.push(known);
            }
        }
        Ok(version)
    }

    /// Begins a new round, in which libraries are looked at again, unless they were looked at just now.
    fn look_again(&mut self) {
        if self.known.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK_AGAIN_AFTER) {
            self.looked = Some(now);
            self.round += 1;
        }
    }

    fn find(&mut self, module: &str) -> Result<Option<Taken>, DriverError> {
        let Some(Located::Library(library)) = locate_in(&self.folders, module) else { return Ok(None) };
        match self.store.take(&library) {
            Ok(taken) => Ok(taken),
            Err(error @ CopyError::Incomplete { .. }) => Err(DriverError::Module(error.to_string())),
            // The worker that needs it says so.
            Err(CopyError::Io { .. }) => Ok(None),
        }
    }
}
