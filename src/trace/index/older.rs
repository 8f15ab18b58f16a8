//! Traces that an index has no room for, read from the files for one question.

use std::collections::HashSet;
use std::fs::File;
use std::path::PathBuf;

use super::{Among, Index, IndexedFile, Region, Run, TraceRow, read_pieces};
use crate::span::{Span, TraceId};

/// Traces that have left an index, and those of which the positions have. They are read without the index, so that it can go on.
pub struct Older {
    folder: PathBuf,
    /// Path, process and length of each file when the index was looked at.
    files: Vec<(PathBuf, Option<u32>, u64)>,
    /// Traces that the index has answered for, parts of others included.
    answered: HashSet<TraceId>,
    /// Times that the files are read: each time an index of a part of the traces is made, which keeps to the bound.
    passes: u64,
}

impl Index {
    /// Returns what a question needs beyond the index; none if it needs nothing, or asks for all that there is: then the answer is the index's, and
    /// [`Reach`](super::Reach) says that it is cut. `deferred` are the traces for which the index has not answered.
    pub(super) fn older(&self, among: &Among, deferred: HashSet<TraceId>) -> Option<Older> {
        self.older_since(among, among.region.since_unix_nano, deferred)
    }

    /// The same, of traces that may end after a time.
    pub(super) fn older_since(&self, among: &Among, since_unix_nano: u64, deferred: HashSet<TraceId>) -> Option<Older> {
        let asks_for_all = among.query.is_empty() && among.region == Region::default();
        let since = since_unix_nano.max(among.query.earliest_unix_nano().unwrap_or(0));
        let may_be_lost = self.lost_rows.count > 0 && self.lost_rows.until_unix_nano >= since;
        if asks_for_all || !may_be_lost && deferred.is_empty() {
            return None;
        }
        let is_deferred =
            |id: TraceId| deferred.contains(&id) || self.stems.get(&id).is_some_and(|id| deferred.contains(id));
        let answered = self.rows.iter().map(TraceRow::trace_id).chain(self.spooled.keys().copied());
        let answered = answered.filter(|id| !is_deferred(*id)).collect();
        Some(self.passes_for(answered, self.lost_rows.count, u64::from(self.first_run)))
    }

    /// Returns all that is in the files.
    pub(super) fn all_traces(&self) -> Older {
        let (rows, runs) = (self.rows.len() as u64, self.runs.len() as u64);
        self.passes_for(HashSet::new(), self.lost_rows.count + rows, u64::from(self.first_run) + runs)
    }

    /// Returns as many passes over the files as it takes for so many rows and runs.
    fn passes_for(&self, answered: HashSet<TraceId>, rows: u64, runs: u64) -> Older {
        // An index grows by doubling.
        let bytes = 2 * (rows * (size_of::<TraceRow>() as u64 + 12) + runs * size_of::<Run>() as u64);
        Older {
            folder: self.folder.clone(),
            files: self.files.iter().map(|file| (file.path.clone(), file.pid, file.read)).collect(),
            answered,
            passes: bytes.div_ceil(self.limit as u64).max(1),
        }
    }
}

impl Older {
    /// Reads the files, and hands over an index of some of the traces at a time. Returns the number of traces.
    pub fn scan(self, mut take: impl FnMut(&Index)) -> usize {
        let mut traces = 0;
        for pass in 0..self.passes {
            let index = self.index(pass);
            traces += index.rows.len();
            take(&index);
        }
        traces
    }

    /// Returns how often the files are read.
    pub(super) fn passes(&self) -> u64 {
        self.passes
    }

    /// Reads the files, and returns an index of the traces of a pass.
    pub(super) fn index(&self, pass: u64) -> Index {
        let mut index = Index::new(&self.folder, usize::MAX);
        for (path, pid, read) in &self.files {
            let number = index.files.len();
            index.files.push(IndexedFile::new(path.clone(), *pid));
            let Ok(file) = File::open(path) else { continue };
            // What cannot be read was said when it was read first.
            let _ = read_pieces(&file, path, 0..*read, |place, found| {
                found.retain(|span| self.is_in(pass, span));
                index.take(number, &place, found);
            });
        }
        index.sort();
        index
    }

    /// Returns whether a span is of a trace that is looked for in this pass; parts of a trace are with it.
    pub(super) fn is_in(&self, pass: u64, span: &Span) -> bool {
        let trunk = span.stem().map_or(span.trace_id(), |(trunk, _)| trunk);
        !self.answered.contains(&span.trace_id())
            && !self.answered.contains(&trunk)
            && mixed(trunk) % self.passes == pass
    }
}

/// Returns bits of an id that are about as often 0 as 1, also of one that is counted up.
fn mixed(id: TraceId) -> u64 {
    (id.0 as u64 ^ (id.0 >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}
