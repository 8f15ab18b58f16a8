//! Journal compaction: a background thread copies live records from the old file to a new one, while the head appends.
//!
//! ```text
//!            head                                 thread
//!   1  appends to the old file         reads it up to where it was, writes what is kept to `<journal>.new`,
//!                                      then copies what was appended meanwhile, until little is left
//!   2  copies what is left; from now   -
//!      on appends to both files
//!   3  appends to both                 puts the new file in the place of the old one
//!   4  goes on with the new file       -
//! ```
//!
//! Whoever dies at whichever point leaves one whole journal under its name: the old one until 3 is done, which has everything, and the new one from
//! then on, which has it too. A `.new` that is left behind is removed by the next head.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;

use tracer_core::task::{ActorRole, Envelope, Input, JobId, Outcome, TaskId};
use tracer_ipc::fault;
use tracer_reactor::deployments::VERSION_LIMIT;
use tracer_reactor::{HISTORY_LIMIT, PastTask};

use super::scan::{for_each_record, for_each_wanted, task_of};
use super::{Record, header, put_key, put_next_ids, put_remembered};

/// Limit on the bytes that are left to copy when the head takes over from the thread.
const LEFT_TO_COPY: u64 = 256 << 10;
/// Limit on the rounds in which the thread copies what came meanwhile, before it leaves the rest to the head.
const ROUNDS: usize = 16;

/// A new file that holds what is worth keeping.
#[derive(Debug)]
pub(super) struct Compacted {
    pub(super) file: File,
    /// Bytes in it.
    pub(super) length: u64,
    /// Position in the old file up to which this one has its records.
    pub(super) copied_to: u64,
}

pub(super) fn new_path(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Makes the new file of the journal at `path`.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    let new_path = new_path(path);
    let _ = fs::remove_file(&new_path);
    OpenOptions::new().create_new(true).read(true).append(true).mode(0o600).open(&new_path)
}

/// Writes what is worth keeping of the journal at `path`, of which `good` says how much is whole. The journal is read as the open file that it is:
/// its name may lead elsewhere by now.
pub(super) fn compact(path: &Path, old: &File, good: &AtomicU64) -> io::Result<Compacted> {
    let file = create_new(path)?;
    let compacted = write_kept(old, good, file);
    if compacted.is_err() {
        let _ = fs::remove_file(new_path(path));
    }
    compacted
}

fn write_kept(old: &File, good: &AtomicU64, file: File) -> io::Result<Compacted> {
    let begin = good.load(Acquire);
    let kept = LiveTasks::choose(old, begin)?;
    let mut out = BufWriter::with_capacity(1 << 20, Counting { file, length: 0 });
    out.write_all(&header())?;
    kept.write(old, begin, &mut out)?;
    fault::point("compacted");
    let mut copied_to = begin;
    for _ in 0..ROUNDS {
        let end = good.load(Acquire);
        if end - copied_to <= LEFT_TO_COPY {
            break;
        }
        copy(old, copied_to, end, &mut out)?;
        copied_to = end;
    }
    let Counting { file, length } = out.into_inner().map_err(|error| error.into_error())?;
    Ok(Compacted { file, length, copied_to })
}

/// Copies a part of a file to the end of another. It does not move where the file is read or written next, which other threads share.
pub(super) fn copy(old: &File, from: u64, to: u64, out: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; (to - from).min(256 << 10) as usize];
    let mut at = from;
    while at < to {
        let length = (to - at).min(piece.len() as u64) as usize;
        old.read_exact_at(&mut piece[..length], at)?;
        out.write_all(&piece[..length])?;
        at += length as u64;
    }
    Ok(())
}

struct Counting {
    file: File,
    length: u64,
}

impl Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Tasks that are kept, and the form in which they are.
#[derive(Debug)]
struct LiveTasks {
    /// Every task that has ended, in the order of their ids.
    ended: Vec<u64>,
    /// Ended tasks that are remembered.
    remembered: HashSet<u64>,
    /// Ended tasks that have made an actor which lives: they may be begun again.
    living: HashSet<u64>,
    /// The versions that are remembered of each service that is served, by name.
    services: HashMap<String, VecDeque<u64>>,
    next_task: u64,
    next_job: u64,
}

impl LiveTasks {
    /// Reads everything once.
    fn choose(old: &File, end: u64) -> io::Result<LiveTasks> {
        let mut ends = Vec::new();
        let mut inputs: Vec<(u64, u64)> = Vec::new();
        let mut pruned: HashSet<u64> = HashSet::new();
        let mut services: HashMap<String, VecDeque<u64>> = HashMap::new();
        // Creations of actors, with whether there is an actor.
        let mut creations: HashMap<u64, bool> = HashMap::new();
        let (mut next_task, mut next_job) = (1, 1);
        for_each_record(old, end, |_, record| {
            match record {
                Record::Submitted(submitted) => {
                    (next_task, next_job) = (next_task.max(submitted.task.0 + 1), next_job.max(submitted.job.0 + 1));
                    if let Ok(envelope) = Envelope::decode(&submitted.envelope) {
                        if let ActorRole::Create(_) = envelope.spec.actor() {
                            creations.insert(submitted.task.0, false);
                        }
                        inputs.extend(
                            envelope.inputs.iter().filter_map(Input::task).map(|task| (submitted.task.0, task.0)),
                        );
                    }
                }
                Record::Remembered(task, remembered) => {
                    (next_task, next_job) = (next_task.max(task.0 + 1), next_job.max(remembered.job.0 + 1));
                }
                Record::Ended(record) => {
                    ends.push(record.task.0);
                    if let Some(lives) = creations.get_mut(&record.task.0) {
                        *lives = !matches!(record.ended.outcome, Outcome::Failed(_));
                    }
                }
                Record::Actor { task, death: Some(_), .. } => drop(creations.remove(&task.0)),
                Record::Pruned(tasks) => pruned.extend(tasks.iter().map(|task| task.0)),
                Record::NextIds { task, job } => (next_task, next_job) = (next_task.max(task.0), next_job.max(job.0)),
                Record::ServiceDeployed(record) => {
                    let versions = services.entry(record.name.to_owned()).or_default();
                    versions.push_back(record.version);
                    if versions.len() > VERSION_LIMIT {
                        versions.pop_front();
                    }
                }
                Record::ServiceShutDown(name) => drop(services.remove(name)),
                Record::Attempt { .. }
                | Record::Started { .. }
                | Record::Bundle { .. }
                | Record::Key { .. }
                | Record::Actor { .. } => {}
            }
            Ok(())
        })?;
        let known = ends.iter().rev().filter(|task| !pruned.contains(task));
        let mut remembered: HashSet<_> = known.take(HISTORY_LIMIT).copied().collect();
        let mut ended = ends;
        ended.sort_unstable();
        let living: HashSet<_> = creations.into_iter().filter(|&(_, lives)| lives).map(|(task, _)| task).collect();
        let is_open = |task: &u64| ended.binary_search(task).is_err() || living.contains(task);
        // Their results are still to be arguments.
        let needed = inputs.into_iter().filter(|(task, _)| is_open(task)).map(|(_, input)| input);
        remembered.extend(needed.filter(|input| !pruned.contains(input)));
        Ok(LiveTasks { ended, remembered, living, services, next_task, next_job })
    }

    fn has_ended(&self, task: u64) -> bool {
        // Nearly always all of them have, and a task is as far from the first as its id says.
        let first = self.ended.first().copied().unwrap_or(0);
        let guess = usize::try_from(task.wrapping_sub(first)).ok().and_then(|place| self.ended.get(place));
        guess == Some(&task) || self.ended.binary_search(&task).is_ok()
    }

    /// Returns whether a record is kept in some form, as far as its bytes tell without their being decoded.
    fn may_keep(&self, raw: &[u8]) -> bool {
        task_of(raw).is_none_or(|TaskId(task)| {
            !self.has_ended(task) || self.remembered.contains(&task) || self.living.contains(&task)
        })
    }

    /// Reads everything again and writes what is kept. What is left of a task that has ended is what is shown of it.
    fn write(&self, old: &File, end: u64, out: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::new();
        // Tasks that have not ended, in the order of their ids.
        let mut open = Vec::new();
        let may_keep = |raw: &[u8]| self.may_keep(raw);
        for_each_wanted(old, end, may_keep, |raw, record| {
            let task = match &record {
                Record::Submitted(submitted) => submitted.task,
                Record::Ended(record) => record.task,
                Record::Remembered(task, _)
                | Record::Attempt { task, .. }
                | Record::Started { task, .. }
                | Record::Actor { task, .. }
                | Record::Key { task, .. } => *task,
                Record::Bundle { first, count } => {
                    let next = open.partition_point(|task| *task < first.0);
                    let is_open = open.get(next).is_some_and(|task| task - first.0 < u64::from(*count));
                    return if is_open { out.write_all(raw) } else { Ok(()) };
                }
                Record::ServiceDeployed(record) => {
                    let is_kept = self.services.get(record.name).is_some_and(|all| all.contains(&record.version));
                    return if is_kept { out.write_all(raw) } else { Ok(()) };
                }
                // What they name is left out.
                Record::Pruned(_) | Record::ServiceShutDown(_) | Record::NextIds { .. } => return Ok(()),
            };
            if !self.has_ended(task.0) || self.living.contains(&task.0) {
                if let Record::Submitted(_) = record {
                    open.push(task.0);
                }
                return out.write_all(raw);
            }
            match record {
                Record::Submitted(submitted) => {
                    bytes.clear();
                    let envelope = Envelope::decode(&submitted.envelope).map_err(io::Error::other)?;
                    let remembered = PastTask {
                        job: submitted.job,
                        submitted_unix_nano: submitted.submitted_unix_nano,
                        trace_id: envelope.trace.map_or([0; 16], |trace| trace.trace_id),
                        target: &envelope.spec.target(),
                        name: envelope.name,
                    };
                    put_remembered(&mut bytes, task, &remembered);
                    let key = envelope.policy.idempotency_key;
                    if !key.is_empty() {
                        put_key(&mut bytes, task, envelope.spec.fingerprint(), key);
                    }
                    out.write_all(&bytes)
                }
                // They matter only until the end.
                Record::Started { .. } | Record::Actor { .. } => Ok(()),
                _ => out.write_all(raw),
            }
        })?;
        bytes.clear();
        put_next_ids(&mut bytes, TaskId(self.next_task), JobId(self.next_job));
        out.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_ended_wherever_its_id_is_among_those_that_have() {
        let ended = vec![3, 4, 5, 9, 10, 1 << 40];
        let tasks = LiveTasks {
            ended: ended.clone(),
            remembered: HashSet::new(),
            living: HashSet::new(),
            services: HashMap::new(),
            next_task: 1,
            next_job: 1,
        };
        for task in (0..20).chain([u64::MAX, (1 << 40) - 1, 1 << 40, (1 << 40) + 1]) {
            assert_eq!(tasks.has_ended(task), ended.contains(&task), "{task}");
        }
        assert!(!LiveTasks { ended: Vec::new(), ..tasks }.has_ended(0));
    }
}
