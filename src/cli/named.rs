//! Tasks as the command line names them.

use std::num::ParseIntError;
use std::str::FromStr;

use tracer_client::driver::{Driver, DriverError};
use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId, exit};
use tracer_ipc::protocol::{Query, Reply, TaskReport};

use super::CommandError;
use super::connect::unexpected_reply;

/// A task on the command line: its id here or in the cluster, or the name of an actor, which stands for the task that creates the actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamedTask {
    Id(TaskId),
    /// A task of any node of the engine that the head has joined.
    Cluster(ClusterTaskId),
    Actor(String),
}

impl FromStr for NamedTask {
    type Err = ParseIntError;

    /// Takes what looks like a number for an id, also when it is a wrong one.
    fn from_str(text: &str) -> Result<NamedTask, ParseIntError> {
        if text.is_empty() || text.parse::<f64>().is_ok_and(f64::is_finite) {
            return text.parse().map(NamedTask::Id);
        }
        Ok(text.parse().map_or_else(|_| NamedTask::Actor(text.to_owned()), NamedTask::Cluster))
    }
}

impl NamedTask {
    /// Returns the id of the task. It need not be one that the head knows.
    pub(super) fn id(&self, driver: &mut Driver) -> Result<TaskId, CommandError> {
        let name = match self {
            NamedTask::Id(id) => return Ok(*id),
            NamedTask::Cluster(id) if driver.welcome().place_id == Some(id.place) => return Ok(id.task),
            NamedTask::Cluster(id) => {
                let Reply::Task(here) = driver.query(&Query::Import { id: id.to_string() })? else {
                    return Err(unexpected_reply());
                };
                if let Some(task) = here {
                    return Ok(task.id);
                }
                let node_id = match driver.query(&Query::Shared { id: id.to_string() })? {
                    Reply::Shared(found) => found.ok().and_then(|found| found.node_id),
                    _ => None,
                };
                let there = match node_id {
                    Some(node_id) => format!("and the node `{node_id}` has it: this can be asked on these two"),
                    None => "and this can be asked only there".to_owned(),
                };
                let text = format!(
                    "task {id} was submitted on another node, {there}\n\
                     (hint: `tracer get {id}` shows on any node what became of it, and `tracer cancel {id}` ends it)"
                );
                return Err(CommandError::new(exit::FAILED, text));
            }
            NamedTask::Actor(name) => name,
        };
        match driver.actor_report(name) {
            Ok(actor) => Ok(actor.id),
            Err(DriverError::Actor(mut text)) => {
                if !text.contains("\n(hint: ") {
                    text.push_str("\n(hint: `tracer list tasks` shows the ids of tasks, `tracer list actors` the names of actors)");
                }
                Err(CommandError::new(exit::FAILED, text))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the id of the task if it is of another place than this one.
    pub(super) fn elsewhere(&self, here: Option<PlaceId>) -> Option<ClusterTaskId> {
        match self {
            NamedTask::Cluster(id) => Some(*id).filter(|id| here != Some(id.place)),
            NamedTask::Id(_) | NamedTask::Actor(_) => None,
        }
    }

    /// Returns the ids of the tasks.
    pub(super) fn ids<'a>(
        named: impl IntoIterator<Item = &'a NamedTask>,
        driver: &mut Driver,
    ) -> Result<Vec<TaskId>, CommandError> {
        named.into_iter().map(|named| named.id(driver)).collect()
    }
}

/// Asks the head for a task.
pub(super) fn task(driver: &mut Driver, id: TaskId) -> Result<TaskReport, CommandError> {
    let Reply::Task(task) = driver.query(&Query::Task { id })? else { return Err(unexpected_reply()) };
    task.map(|task| *task).ok_or_else(|| no_task(id))
}

/// Returns the error for an id that the head does not know.
pub(super) fn no_task(id: TaskId) -> CommandError {
    let text = format!(
        "there is no task {id}: it was never submitted to this head, or ended too long ago\n\
         (hint: `tracer list tasks` shows those that are known)"
    );
    CommandError::new(exit::FAILED, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_the_name_of_an_actor() {
        assert_eq!("7".parse(), Ok(NamedTask::Id(TaskId(7))));
        let id = "c3f9a2m4q7cxw-1042";
        assert_eq!(id.parse(), Ok(NamedTask::Cluster(id.parse().unwrap())));
        for name in ["hits", "c3f9a2m4q7cx-1042", "x7", "7x", "inf", "nan", "a.b", "0x7"] {
            assert_eq!(name.parse(), Ok(NamedTask::Actor(name.into())));
        }
        for wrong in ["", "-1", "1.5", "99999999999999999999999"] {
            assert!(wrong.parse::<NamedTask>().is_err(), "{wrong}");
        }
    }
}
