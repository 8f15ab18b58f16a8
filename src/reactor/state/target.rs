use std::collections::HashMap;

use crate::scheduler::RunTime;
use rustc_hash::FxHashMap;

/// The functions and programs that were submitted, by name, with how long they take.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    by_name: HashMap<Box<str>, TargetIndex>,
    /// Targets of a version of their module, by the place of their name.
    of_version: FxHashMap<(TargetIndex, VersionIndex), TargetIndex>,
    all: Vec<Target>,
}

/// A place in [`Targets`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TargetIndex(u32);

impl TargetIndex {
    /// Returns its number, from 0.
    pub(crate) fn number(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug)]
pub(crate) struct Target {
    name: Box<str>,
    version: Option<VersionIndex>,
    run_time: RunTime,
}

/// The most targets that are told apart. Beyond it they share one entry, so that a driver that submits ever new programs
/// does not fill the memory.
const TARGET_LIMIT: usize = 65_536;

impl Targets {
    /// Returns the place of a name, which is made if there is none.
    pub(crate) fn index(&mut self, name: &str) -> TargetIndex {
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        let name = if !self.is_full() { name } else { "(others)" };
        if let Some(&index) = self.by_name.get(name) {
            return index;
        }
        let index = TargetIndex(u32::try_from(self.all.len()).expect("targets are limited"));
        self.all.push(Target { name: name.into(), version: None, run_time: RunTime::default() });
        self.by_name.insert(name.into(), index);
        index
    }

    /// Returns the place of a target in a version of its module; `name` is where its name is.
    pub(crate) fn of_version(&mut self, name: TargetIndex, version: VersionIndex) -> TargetIndex {
        if let Some(&index) = self.of_version.get(&(name, version)) {
            return index;
        }
        if self.is_full() {
            return name;
        }
        let index = TargetIndex(u32::try_from(self.all.len()).expect("targets are limited"));
        let name_there = self.all[name.0 as usize].name.clone();
        self.all.push(Target { name: name_there, version: Some(version), run_time: RunTime::default() });
        self.of_version.insert((name, version), index);
        index
    }

    /// Returns the version of the module at a place; none for what has none.
    pub(crate) fn version(&self, index: TargetIndex) -> Option<VersionIndex> {
        self.all.get(index.0 as usize)?.version
    }

    /// Returns whether further ones are not told apart.
    pub(crate) fn is_full(&self) -> bool {
        self.all.len() >= TARGET_LIMIT
    }

    /// Returns the name at a place that [`index`](Self::index) of this value returned.
    pub(crate) fn name(&self, index: TargetIndex) -> &str {
        &self.all[index.0 as usize].name
    }

    /// Returns what is known of how long its tasks take, at a place that [`index`](Self::index) of this value returned.
    pub(crate) fn run_time(&mut self, index: TargetIndex) -> &mut RunTime {
        &mut self.all[index.0 as usize].run_time
    }
}

/// A place in [`ModuleVersions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VersionIndex(pub(crate) u32);
