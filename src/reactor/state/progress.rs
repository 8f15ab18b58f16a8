//! The life of a task as one table: what may happen to it where it is, and what is counted.
//!
//! | | queued | held | put off | leased | shared | let go | ended |
//! |---|---|---|---|---|---|---|---|
//! | **between** | waiting | held | retrying | not queued | shared | nobody has it | ended |
//! | **held** | waiting | held already | not begun | inputs missing | shared | between | not let go |
//! | **waiting** | queued already | held | not begun | leased | not let go | between | not let go |
//! | **retrying** | waiting | had its inputs | put off already | put off | not let go | between | not let go |
//! | **leased** | not let go | not let go | not let go | leased already | not let go | between | not let go |
//! | **shared** | not let go | not let go | not let go | not queued | shared already | between | not let go |
//! | **ended** | ended | ended | ended | ended | ended | ended | ended |
//!
//! A row is where a task [is](Progress), a column what happens (`Event`). `Task::advance` is the only function that changes either the
//! progress or the [counts](Tally); what it refuses has a name (`Refusal`).

use std::collections::BTreeSet;

use tracer_core::task::{AttemptReport, Failure, Outcome, TaskId, WorkerId};
use tracer_ipc::protocol::{TaskCounts, TaskState};

/// Progress of a task: the place in which it is.
#[derive(Debug, Default)]
pub enum Progress {
    /// Nowhere: it was just taken in or read back, or whoever had it has let go of it, and its next turn or its end follows at once.
    #[default]
    Between,
    /// A task has not ended whose result is an argument of this one, or its actor is dead and it is about to fail.
    Held,
    /// In `State::queue`, or in line for a worker of its own or behind its actor.
    Waiting,
    /// In `Tally::retrying`.
    Retrying {
        /// Time of the next attempt, in nanoseconds of the monotonic clock.
        until: u64,
    },
    /// Among the leases of a worker. Whether it has begun is in that worker's ring of claims.
    Leased {
        /// The worker.
        worker: WorkerId,
    },
    /// In a queue of the engine, or about to be put there: another node may have it, or this one as an import.
    Shared,
    /// In `State::ended` or `State::kept`, until it is forgotten.
    Ended(Box<TaskEnd>),
}

/// An event of a task.
#[derive(Debug)]
pub(crate) enum Event {
    /// It may begin, and waits for its turn.
    Queued,
    /// It may not begin yet, or never will.
    Held,
    /// An attempt failed, and the next one is to come later.
    PutOff {
        /// Time of the next attempt, in nanoseconds of the monotonic clock.
        until: u64,
    },
    /// A worker is given it.
    Leased(WorkerId),
    /// It is handed over to the engine.
    Shared,
    /// It is taken out of where it waits, or off its worker.
    LetGo,
    /// It has its one outcome.
    Ended(Box<TaskEnd>),
}

/// Reason why a task in its present state refuses an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It has ended: the first end counts, and nothing follows.
    HasEnded,
    /// Somebody has it, who has to let go of it first.
    NotLetGo,
    /// Nobody has it, so nobody can let go of it.
    NobodyHasIt,
    /// Only what waits for its turn is leased.
    NotQueued,
    /// It is leased when its arguments are there.
    InputsMissing,
    /// It is leased when its time has come.
    PutOff,
    /// It has a worker.
    LeasedAlready,
    /// The engine has it.
    SharedAlready,
    /// It waits already.
    QueuedAlready,
    /// It is held already.
    HeldAlready,
    /// Its next attempt has a time already.
    PutOffAlready,
    /// It was begun before, so its arguments were there.
    HadItsInputs,
    /// Only after an attempt is the next one put off.
    NotBegun,
}

/// The table.
fn check(progress: &Progress, event: &Event) -> Result<(), Refusal> {
    use Progress as At;
    match (progress, event) {
        (At::Between, Event::Queued | Event::Held | Event::PutOff { .. } | Event::Shared | Event::Ended(_)) => Ok(()),
        (At::Between, Event::Leased(_)) => Err(Refusal::NotQueued),
        (At::Between, Event::LetGo) => Err(Refusal::NobodyHasIt),

        (At::Held, Event::Queued | Event::Shared | Event::LetGo) => Ok(()),
        (At::Held, Event::Held) => Err(Refusal::HeldAlready),
        (At::Held, Event::PutOff { .. }) => Err(Refusal::NotBegun),
        (At::Held, Event::Leased(_)) => Err(Refusal::InputsMissing),
        (At::Held, Event::Ended(_)) => Err(Refusal::NotLetGo),

        (At::Waiting, Event::Held | Event::Leased(_) | Event::LetGo) => Ok(()),
        (At::Waiting, Event::Queued) => Err(Refusal::QueuedAlready),
        (At::Waiting, Event::PutOff { .. }) => Err(Refusal::NotBegun),
        (At::Waiting, Event::Shared | Event::Ended(_)) => Err(Refusal::NotLetGo),

        (At::Retrying { .. }, Event::Queued | Event::LetGo) => Ok(()),
        (At::Retrying { .. }, Event::Held) => Err(Refusal::HadItsInputs),
        (At::Retrying { .. }, Event::PutOff { .. }) => Err(Refusal::PutOffAlready),
        (At::Retrying { .. }, Event::Leased(_)) => Err(Refusal::PutOff),
        (At::Retrying { .. }, Event::Shared | Event::Ended(_)) => Err(Refusal::NotLetGo),

        (At::Leased { .. }, Event::LetGo) => Ok(()),
        (At::Leased { .. }, Event::Leased(_)) => Err(Refusal::LeasedAlready),
        (At::Leased { .. }, Event::Queued | Event::Held | Event::PutOff { .. } | Event::Shared | Event::Ended(_)) => {
            Err(Refusal::NotLetGo)
        }

        (At::Shared, Event::LetGo) => Ok(()),
        (At::Shared, Event::Shared) => Err(Refusal::SharedAlready),
        (At::Shared, Event::Leased(_)) => Err(Refusal::NotQueued),
        (At::Shared, Event::Queued | Event::Held | Event::PutOff { .. } | Event::Ended(_)) => Err(Refusal::NotLetGo),

        (At::Ended(_), _) => Err(Refusal::HasEnded),
    }
}

/// The tasks by progress, kept up with every change. [`check`](State::check) compares it with what is there.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: TaskCounts,
    held: usize,
    shared: usize,
    retrying: BTreeSet<(u64, TaskId)>,
}

impl Tally {
    /// Returns the tasks by state; what is held, put off or shared waits.
    pub(crate) fn counts(&self) -> TaskCounts {
        self.counts
    }

    /// Returns the number of tasks that are held.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of tasks that are in the engine, or about to be.
    pub(crate) fn shared(&self) -> usize {
        self.shared
    }

    /// Tasks that wait to be tried again, by when, in nanoseconds of the monotonic clock.
    pub(crate) fn retrying(&self) -> &BTreeSet<(u64, TaskId)> {
        &self.retrying
    }

    /// Counts an end no more that another task has too.
    pub(crate) fn leave_out(&mut self, outcome: &Outcome) {
        *self.ended_as(outcome) -= 1;
    }

    /// Number of the tasks that have ended as this one has.
    fn ended_as(&mut self, outcome: &Outcome) -> &mut u64 {
        match TaskState::of_outcome(outcome) {
            TaskState::Cancelled => &mut self.counts.cancelled,
            TaskState::Failed => &mut self.counts.failed,
            _ => &mut self.counts.succeeded,
        }
    }

    /// Notes that an ended task is remembered no more.
    pub(crate) fn forget(&mut self) {
        self.counts.forgotten += 1;
    }

    fn leave(&mut self, id: TaskId, progress: &Progress) {
        match progress {
            Progress::Between | Progress::Ended(_) => {}
            Progress::Waiting => self.counts.waiting -= 1,
            Progress::Held => {
                self.counts.waiting -= 1;
                self.held -= 1;
            }
            &Progress::Retrying { until } => {
                self.counts.waiting -= 1;
                self.retrying.remove(&(until, id));
            }
            Progress::Leased { .. } => self.counts.leased -= 1,
            Progress::Shared => {
                self.counts.waiting -= 1;
                self.shared -= 1;
            }
        }
    }

    fn enter(&mut self, id: TaskId, progress: &Progress) {
        match progress {
            Progress::Between => {}
            Progress::Waiting => self.counts.waiting += 1,
            Progress::Held => {
                self.counts.waiting += 1;
                self.held += 1;
            }
            &Progress::Retrying { until } => {
                self.counts.waiting += 1;
                self.retrying.insert((until, id));
            }
            Progress::Leased { .. } => self.counts.leased += 1,
            Progress::Shared => {
                self.counts.waiting += 1;
                self.shared += 1;
            }
            Progress::Ended(ended) => *self.ended_as(&ended.outcome) += 1,
        }
    }
}

/// A task's progress, which only `Task::advance` changes.
#[derive(Debug, Default)]
pub(crate) struct Stage(Progress);

impl Stage {
    /// Current progress.
    pub(crate) fn progress(&self) -> &Progress {
        &self.0
    }

    /// Returns how it ended, if it has; what is kept of that may be dropped.
    pub(crate) fn end_mut(&mut self) -> Option<&mut TaskEnd> {
        match &mut self.0 {
            Progress::Ended(ended) => Some(ended),
            _ => None,
        }
    }

    /// Applies an event to its progress. What the table refuses is a mistake of the caller's, and changes nothing.
    pub(crate) fn advance(&mut self, id: TaskId, event: Event, tally: &mut Tally) {
        if let Err(refusal) = check(&self.0, &event) {
            debug_assert!(false, "task {id} is {:?}, and {event:?} is refused: {refusal:?}", self.0);
            return;
        }
        let next = match event {
            Event::Queued => Progress::Waiting,
            Event::Held => Progress::Held,
            Event::PutOff { until } => Progress::Retrying { until },
            Event::Leased(worker) => Progress::Leased { worker },
            Event::Shared => Progress::Shared,
            Event::LetGo => Progress::Between,
            Event::Ended(ended) => Progress::Ended(ended),
        };
        tally.leave(id, &self.0);
        tally.enter(id, &next);
        self.0 = next;
    }
}

/// The end of a task.
#[derive(Debug)]
pub struct TaskEnd {
    /// The one outcome, as it was told to its driver.
    pub outcome: Outcome,
    /// The worker in which it ended; none when it never began.
    pub worker: Option<WorkerId>,
    /// The pid of that worker.
    pub worker_pid: Option<u32>,
    /// Time of the attempt's beginning, in nanoseconds since the Unix epoch: as the worker says, or, for a worker that was
    /// lost, when the lease was granted. None when it never began.
    pub started_unix_nano: Option<u64>,
    /// Time of the attempt's end, in nanoseconds since the Unix epoch: [`started_unix_nano`](Self::started_unix_nano) and its run time by the
    /// monotonic clock. For a worker that was lost, or a task that never began, when the head learnt of the end.
    pub ended_unix_nano: u64,
}

impl TaskEnd {
    /// Returns the attempt that ended the task; none when it never began.
    pub fn attempt_report(&self, number: u32) -> Option<AttemptReport> {
        self.worker?;
        let failure = match &self.outcome {
            Outcome::Failed(failure) => Some(failure),
            Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => None,
        };
        Some(AttemptReport {
            number,
            worker_id: self.worker,
            worker_pid: self.worker_pid,
            started_unix_nano: self.started_unix_nano,
            ended_unix_nano: self.ended_unix_nano,
            failure: failure.cloned(),
            message: failure.map(ToString::to_string),
        })
    }

    /// Bytes that it keeps.
    pub fn size(&self) -> usize {
        match &self.outcome {
            Outcome::Returned(value) => value.len(),
            Outcome::Stored(stored) => stored.name.len(),
            Outcome::Completed => 0,
            Outcome::Failed(
                Failure::Error { message, stacktrace, .. } | Failure::Panic { message, stacktrace, .. },
            ) => message.len() + stacktrace.len(),
            Outcome::Failed(_) => 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracer_core::task::Outcome;

    fn ended() -> Box<TaskEnd> {
        Box::new(TaskEnd {
            outcome: Outcome::Completed,
            worker: None,
            worker_pid: None,
            started_unix_nano: None,
            ended_unix_nano: 1,
        })
    }

    /// One of each, in the order of the columns.
    fn events() -> [Event; 7] {
        let worker = WorkerId(1);
        [
            Event::Queued,
            Event::Held,
            Event::PutOff { until: 1 },
            Event::Leased(worker),
            Event::Shared,
            Event::LetGo,
            Event::Ended(ended()),
        ]
    }

    /// Returns a task that has come to each row, in their order, with what it counts for.
    fn tasks() -> Vec<(Stage, Tally)> {
        let ways: [Vec<Event>; 7] = [
            vec![],
            vec![Event::Held],
            vec![Event::Queued],
            vec![Event::PutOff { until: 1 }],
            vec![Event::Queued, Event::Leased(WorkerId(1))],
            vec![Event::Shared],
            vec![Event::Ended(ended())],
        ];
        let task = |way: Vec<Event>| {
            let (mut task, mut tally) = (Stage::default(), Tally::default());
            way.into_iter().for_each(|event| task.advance(TaskId(1), event, &mut tally));
            (task, tally)
        };
        ways.into_iter().map(task).collect()
    }

    #[test]
    fn every_pair_of_progress_and_event_is_taken_or_refused_by_name() {
        use Refusal::*;
        let ok = None;
        let table = [
            [ok, ok, ok, Some(NotQueued), ok, Some(NobodyHasIt), ok],
            [ok, Some(HeldAlready), Some(NotBegun), Some(InputsMissing), ok, ok, Some(NotLetGo)],
            [Some(QueuedAlready), ok, Some(NotBegun), ok, Some(NotLetGo), ok, Some(NotLetGo)],
            [ok, Some(HadItsInputs), Some(PutOffAlready), Some(PutOff), Some(NotLetGo), ok, Some(NotLetGo)],
            [Some(NotLetGo), Some(NotLetGo), Some(NotLetGo), Some(LeasedAlready), Some(NotLetGo), ok, Some(NotLetGo)],
            [Some(NotLetGo), Some(NotLetGo), Some(NotLetGo), Some(NotQueued), Some(SharedAlready), ok, Some(NotLetGo)],
            [Some(HasEnded); 7],
        ];
        for ((task, _), row) in tasks().iter().zip(table) {
            for (event, expected) in events().iter().zip(row) {
                assert_eq!(check(task.progress(), event).err(), expected, "{:?}, {event:?}", task.progress());
            }
        }
    }

    #[test]
    fn whatever_happens_a_task_counts_once_where_it_is() {
        for row in 0..7 {
            for column in 0..7 {
                let (mut task, mut tally) = tasks().swap_remove(row);
                let event = events().into_iter().nth(column).unwrap();
                if check(task.progress(), &event).is_err() {
                    continue;
                }
                task.advance(TaskId(1), event, &mut tally);
                let counts = tally.counts();
                let in_places = (tally.held(), tally.retrying().len(), tally.shared());
                let counted = (counts.waiting, counts.leased, counts.succeeded, in_places);
                let expected = match task.progress() {
                    Progress::Between => (0, 0, 0, (0, 0, 0)),
                    Progress::Held => (1, 0, 0, (1, 0, 0)),
                    Progress::Waiting => (1, 0, 0, (0, 0, 0)),
                    Progress::Retrying { .. } => (1, 0, 0, (0, 1, 0)),
                    Progress::Leased { .. } => (0, 1, 0, (0, 0, 0)),
                    Progress::Shared => (1, 0, 0, (0, 0, 1)),
                    Progress::Ended(_) => (0, 0, 1, (0, 0, 0)),
                };
                assert_eq!(counted, expected, "{:?}", task.progress());
            }
        }
    }
}
