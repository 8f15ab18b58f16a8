//! Reading the journal back: into the state of a head that begins, and, where no head runs, for pruning it.

use std::collections::HashMap;
use std::path::Path;
use std::{fs, io};

use tracer_core::task::TaskId;
use tracer_ipc::protocol::{PruneReport, PruneWhich};
use tracer_ipc::session::{self, SessionError};
use tracer_ipc::stored;
use tracer_reactor::deployments::Version;
use tracer_reactor::state::{Now, Settings, State};

use super::journal::{DeployedRecord, Journal, Record, Submitted};

/// Facts in a journal beside the state.
#[derive(Debug, Default)]
pub(super) struct ReadBack {
    /// The job that comes next.
    pub(super) next_job: u64,
    /// Starts of attempts that were journaled first, by task.
    pub(super) started: HashMap<TaskId, u32>,
    /// The versions of services that are served, oldest first.
    pub(super) services: Vec<Version>,
    /// Messages for people on tasks that could not be read.
    pub(super) unread: Vec<String>,
}

/// Reads the records of a journal into a state that has no tasks yet.
pub(super) fn read_back(journal: &Journal, state: &mut State) -> io::Result<ReadBack> {
    let mut back = ReadBack::default();
    let next_job = &mut back.next_job;
    journal.read(|record| match record {
        Record::Submitted(Submitted { task, job, submitted_unix_nano, envelope }) => {
            *next_job = (*next_job).max(job.0 + 1);
            let restored = tracer_reactor::on_restored_submission(state, task, job, submitted_unix_nano, envelope);
            if let Err(error) = restored {
                back.unread.push(format!("task {task} in the journal cannot be read: {error}"));
            }
        }
        Record::Remembered(task, remembered) => {
            *next_job = (*next_job).max(remembered.job.0 + 1);
            tracer_reactor::on_restored_memory(state, task, remembered);
        }
        Record::Ended(record) => {
            tracer_reactor::on_restored_end(state, record.task, record.attempt, record.ended);
        }
        Record::Attempt { task, attempt, span } => {
            tracer_reactor::on_restored_attempt(state, task, *attempt, span);
        }
        Record::Started { task, attempt } => {
            back.started.insert(task, attempt);
        }
        Record::Bundle { first, count } => tracer_reactor::on_restored_bundle(state, first, count),
        Record::Key { task, fingerprint, key } => {
            tracer_reactor::on_restored_key(state, task, key, fingerprint);
        }
        Record::Actor { task, attempt, restarts, death } => {
            tracer_reactor::on_restored_actor(state, task, attempt, restarts, death);
        }
        Record::Pruned(tasks) => tracer_reactor::on_restored_prune(state, &tasks),
        Record::ServiceDeployed(record) => {
            let DeployedRecord { name, version, deployed_unix_nano, service } = *record;
            match service {
                Some(service) => {
                    back.services.push(Version { number: version, deployed_unix_nano, service, failure: None });
                }
                None => {
                    back.unread.push(format!("version {version} of service `{name}` in the journal cannot be read"))
                }
            }
        }
        Record::ServiceShutDown(name) => back.services.retain(|version| version.service.name != name),
        Record::NextIds { task, job } => {
            state.reserve_ids(task);
            *next_job = (*next_job).max(job.0);
        }
    })?;
    Ok(back)
}

/// Ended tasks that were pruned from a journal, and what is to be said of it.
pub(crate) type Pruned = (PruneReport, Vec<String>);

/// Prunes the ended tasks of a place in which no head runs: on its journal, as a head would. None without a journal. No head starts in the place
/// meanwhile: it waits.
///
/// # Errors
///
/// The place is a head's, or the journal cannot be read or written.
pub fn prune_without_head(temp_dir: &Path, which: &PruneWhich, now_unix_nano: u64) -> io::Result<Option<Pruned>> {
    let path = temp_dir.join("tasks.journal");
    if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let _held = session::hold_place(temp_dir).map_err(|error| match error {
        SessionError::Io { source, .. } => source,
        other => io::Error::other(other),
    })?;
    let opened = Journal::open(&path, now_unix_nano).map_err(io::Error::other)?;
    let mut said: Vec<_> = opened.damage.iter().map(ToString::to_string).collect();
    let mut journal = opened.journal;
    let mut state = State::new(Settings::of_workers(0));
    said.append(&mut read_back(&journal, &mut state)?.unread);
    let now = Now { monotonic_ns: 0, unix_nano: now_unix_nano };
    let choice = tracer_reactor::choose_pruned(&state, which, now);
    if !which.dry_run && !choice.tasks.is_empty() {
        journal.pruned(&choice.tasks);
        journal.write()?;
        tracer_reactor::on_restored_prune(&mut state, &choice.tasks);
        let values = stored::folder_of_place(temp_dir);
        for name in state.take_unused_values().iter().filter(|name| !name.is_empty()) {
            // One that is gone already is as good.
            let _ = fs::remove_file(values.join(name));
        }
        said.append(&mut journal.compact_now()?);
    }
    Ok(Some((choice.report, said)))
}
