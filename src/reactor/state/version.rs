use std::collections::{BTreeSet, HashMap};

use crate::state::{target::VersionIndex, worker::Worker};
use rustc_hash::FxHashMap;
use tracer_core::task::{JobId, ModuleVersion, WorkerId};

/// Every version that a task was submitted with.
#[derive(Debug, Default)]
pub(crate) struct ModuleVersions {
    pub(crate) all: Vec<Entry>,
    pub(crate) by_number: FxHashMap<ModuleVersion, VersionIndex>,
    /// Modules by name, in [`newest`](Self::newest).
    pub(crate) modules: HashMap<Box<str>, usize>,
    pub(crate) newest: Vec<Option<Newest>>,
    /// Workers that are to be replaced and have something to do yet.
    pub(crate) outdated: BTreeSet<WorkerId>,
    /// True if there is one that the server has not heard of.
    pub has_new: bool,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) version: ModuleVersion,
    pub(crate) module: usize,
    /// True if a task of it has been taken in.
    pub(crate) is_known: bool,
}

/// What is submitted now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newest {
    pub(crate) version: VersionIndex,
    /// The youngest job that has submitted it.
    pub(crate) job: JobId,
}

impl ModuleVersions {
    /// The place of a version, which is made if there is none.
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

    pub(crate) fn module(&self, index: VersionIndex) -> usize {
        self.all[index.0 as usize].module
    }

    /// The version at a place.
    pub(crate) fn version(&self, index: VersionIndex) -> ModuleVersion {
        self.all[index.0 as usize].version
    }

    /// Returns whether another version of this one's module is submitted now.
    pub(crate) fn is_outdated(&self, version: ModuleVersion) -> bool {
        let Some(&index) = self.by_number.get(&version) else { return false };
        self.newest[self.module(index)].is_some_and(|newest| newest.version != index)
    }

    /// A worker is given a task of this version. A second version of one module is its last.
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
