use std::collections::{BTreeSet, HashMap};

use crate::state::{target::VersionIndex, worker::Worker};
use rustc_hash::FxHashMap;
use tracer_core::task::{JobId, ModuleVersion, WorkerId};

/// Every version that a task was submitted with.
#[derive(Debug, Default)]
pub(crate) struct ModuleVersions {
    all: Vec<Entry>,
    by_number: FxHashMap<ModuleVersion, VersionIndex>,
    /// Modules by name, in [`newest`](Self::newest).
    modules: HashMap<Box<str>, usize>,
    newest: Vec<Option<Newest>>,
    /// Workers that are to be replaced and have something to do yet.
    outdated: BTreeSet<WorkerId>,
    /// True if there is one that the server has not heard of.
    has_new: bool,
}

#[derive(Debug)]
struct Entry {
    version: ModuleVersion,
    module: usize,
    /// True if a task of it has been taken in.
    is_known: bool,
}

/// The version that new submissions run.
#[derive(Clone, Copy, Debug)]
struct Newest {
    version: VersionIndex,
    /// The youngest job that has submitted it.
    job: JobId,
}

impl ModuleVersions {
    /// Returns the place of a version, which is made if there is none.
    pub(crate) fn index(&mut self, version: ModuleVersion, module: &str) -> VersionIndex {
        if let Some(&index) = self.by_number.get(&version) {
            return index;
        }
        let module = match self.modules.get(module) {
            Some(&module) => module,
            None => {
                self.newest.push(None);
                self.modules.insert(module.into(), self.newest.len() - 1);
                self.newest.len() - 1
            }
        };
        let index = VersionIndex(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        self.all.push(Entry { version, module, is_known: false });
        self.by_number.insert(version, index);
        index
    }

    fn module(&self, index: VersionIndex) -> usize {
        self.all[index.0 as usize].module
    }

    /// Returns the version at a place.
    pub(crate) fn version(&self, index: VersionIndex) -> ModuleVersion {
        self.all[index.0 as usize].version
    }

    /// Returns whether another version of this one's module is submitted now.
    pub(crate) fn is_outdated(&self, version: ModuleVersion) -> bool {
        let Some(&index) = self.by_number.get(&version) else { return false };
        self.newest[self.module(index)].is_some_and(|newest| newest.version != index)
    }

    /// Notes a task of this version that a job has submitted. Returns whether the version is from now on the one that new submissions of its
    /// module run, which it was not before.
    pub(crate) fn on_task(&mut self, index: VersionIndex, job: JobId) -> bool {
        let entry = &mut self.all[index.0 as usize];
        let (module, is_new) = (entry.module, !std::mem::replace(&mut entry.is_known, true));
        if let Some(newest) = &mut self.newest[module] {
            if newest.version == index {
                newest.job = newest.job.max(job);
                return false;
            }
            // What an older job still submits in an older version does not bring that back.
            if !is_new && job < newest.job {
                return false;
            }
        }
        self.newest[module] = Some(Newest { version: index, job });
        self.has_new = true;
        true
    }

    /// Returns the versions that new submissions run.
    pub(crate) fn newest(&self) -> impl Iterator<Item = VersionIndex> {
        self.newest.iter().flatten().map(|newest| newest.version)
    }

    /// Returns whether there is a new one that the server has not heard of, which it has then.
    pub(crate) fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.has_new)
    }

    /// Takes out the workers that are to be replaced.
    pub(crate) fn take_outdated(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.outdated)
    }

    /// Returns whether workers are to be replaced.
    pub(crate) fn has_outdated(&self) -> bool {
        !self.outdated.is_empty()
    }

    /// Puts a worker back that is to be replaced and has something to do yet.
    pub(crate) fn put_back_outdated(&mut self, id: WorkerId) {
        self.outdated.insert(id);
    }

    /// Notes that a worker is given a task of this version. A second version of one module is its last.
    pub(crate) fn on_lease(&mut self, id: WorkerId, worker: &mut Worker, index: VersionIndex) {
        if worker.versions.contains(&index) {
            return;
        }
        let has_other = self.has_other(worker, index);
        worker.versions.push(index);
        if has_other {
            self.replace(id, worker);
        }
    }

    pub(crate) fn has_other(&self, worker: &Worker, index: VersionIndex) -> bool {
        worker.versions.iter().any(|&other| other != index && self.module(other) == self.module(index))
    }

    pub(crate) fn replace(&mut self, id: WorkerId, worker: &mut Worker) {
        if worker.actor.is_none() {
            worker.is_outdated = true;
            self.outdated.insert(id);
        }
    }
}
