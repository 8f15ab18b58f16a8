//! Why a task waits, what it is at, or why it ended as it did.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{TaskReport, TaskState};
use crate::count::{Count, Elapsed};
use crate::hook::now_unix_nano;
use crate::task::{TaskId, WorkerId};

/// `tracer explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The task.
    pub task: TaskReport,
    /// What explains its state, the nearest first.
    pub reasons: Vec<Reason>,
}

/// A part of an explanation. As text it is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// It waits for its turn.
    Behind {
        /// How many tasks are before it in the queue.
        tasks: usize,
    },
    /// No worker has room.
    WorkersBusy {
        /// What they run, as far as it fits.
        running: Vec<RunningTask>,
        /// How many more there are.
        left_out: usize,
    },
    /// No worker takes tasks now.
    NoWorkerReady {
        /// How many are being started.
        starting: usize,
        /// Why that takes long, or is not done at all.
        why: Option<String>,
    },
    /// It is about to be given to a worker.
    NextTurn,
    /// It waits to be tried again.
    TriedAgain {
        /// Which attempt failed, from 1.
        attempt: u32,
        /// Why.
        failure: String,
    },
    /// Results of other tasks are arguments of it.
    NeedsResults {
        /// Those that have not ended.
        tasks: Vec<OtherTask>,
    },
    /// A worker has it and has not begun it.
    Leased {
        /// Which worker.
        worker_id: WorkerId,
        /// That worker's process.
        worker_pid: u32,
        /// What the worker has to run before it.
        tasks_before: usize,
    },
    /// A worker runs it.
    Running(RunningTask),
    /// It waits for tasks that it has submitted, and has given its slot back.
    AwaitsTasks {
        /// Those that have not ended.
        tasks: Vec<OtherTask>,
    },
    /// It has ended in its worker, and the head has not heard of it yet.
    ResultOnTheWay,
    /// Its worker is being ended.
    WorkerEnding {
        /// Why, in words that fit after "because".
        why: String,
    },
    /// It has ended.
    Ended {
        /// Which attempt that was, from 1; 0 when it never began.
        attempt: u32,
        /// Where it ran; none when it never began.
        worker_id: Option<WorkerId>,
        /// That worker's process.
        worker_pid: Option<u32>,
        /// How long it ran, in nanoseconds.
        ran_ns: Option<u64>,
        /// Why it failed; none if it did not.
        failure: Option<String>,
    },
}

/// A task that a worker runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningTask {
    /// The task.
    pub task: TaskId,
    /// Which worker.
    pub worker_id: WorkerId,
    /// That worker's process.
    pub worker_pid: u32,
    /// Since when, in nanoseconds since the Unix epoch.
    pub since_unix_nano: u64,
}

/// A task that has to do with the one that is explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherTask {
    /// The task.
    pub id: TaskId,
    /// `module.function`, or the program.
    pub target: String,
    /// Where it is in its life.
    pub state: TaskState,
}

/// How many other tasks and workers a sentence names.
const NAMED: usize = 5;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Behind { tasks: 1 } => f.write_str("1 task is before it in the queue"),
            Reason::Behind { tasks } => write!(f, "{tasks} tasks are before it in the queue"),
            Reason::WorkersBusy { running, left_out } => {
                let named: Vec<_> = running.iter().take(NAMED).map(ToString::to_string).collect();
                let more = running.len() - named.len() + left_out;
                write!(f, "every worker is busy: {}", named.join("; "))?;
                if more > 0 { write!(f, "; and {more} more") } else { Ok(()) }
            }
            Reason::NoWorkerReady { starting, why } => {
                f.write_str("no worker is ready")?;
                if *starting > 0 {
                    let verb = if *starting == 1 { "is" } else { "are" };
                    write!(f, "; {} {verb} being started", Count(*starting, "worker"))?;
                }
                why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            Reason::NextTurn => f.write_str("it is about to be given to a worker"),
            Reason::TriedAgain { attempt, failure } => {
                write!(f, "attempt {attempt} failed, and it waits to be tried again: {failure}")
            }
            Reason::NeedsResults { tasks } => {
                write!(f, "its arguments are results of tasks that have not ended: {}", list(tasks))
            }
            Reason::Leased { worker_id, worker_pid, tasks_before } => {
                write!(f, "worker {worker_id} (pid {worker_pid}) has it and has not begun it")?;
                if *tasks_before > 0 {
                    write!(f, "; it has {} before it", Count(*tasks_before, "task"))
                } else {
                    Ok(())
                }
            }
            Reason::Running(running) => write!(
                f,
                "worker {} (pid {}) has run it for {}",
                running.worker_id,
                running.worker_pid,
                since(running.since_unix_nano)
            ),
            Reason::AwaitsTasks { tasks } => write!(f, "it waits for tasks that it has submitted: {}", list(tasks)),
            Reason::ResultOnTheWay => f.write_str("it has ended in its worker, and its result is on the way"),
            Reason::WorkerEnding { why } => write!(f, "its worker is being ended, because {why}"),
            Reason::Ended { attempt, worker_id, worker_pid, ran_ns, failure } => {
                match (worker_id, worker_pid) {
                    (Some(worker), Some(pid)) => write!(f, "attempt {attempt} in worker {worker} (pid {pid}) ")?,
                    _ => f.write_str("it was never begun and ")?,
                }
                f.write_str(if failure.is_some() { "failed" } else { "succeeded" })?;
                ran_ns.map_or(Ok(()), |ran| write!(f, " after {}", Elapsed::from_nanos(ran)))?;
                failure.as_ref().map_or(Ok(()), |failure| write!(f, ": {failure}"))
            }
        }
    }
}

impl fmt::Display for RunningTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunningTask { task, worker_id, worker_pid, since_unix_nano } = self;
        write!(f, "worker {worker_id} (pid {worker_pid}) has run task {task} for {}", since(*since_unix_nano))
    }
}

fn since(unix_nano: u64) -> Elapsed {
    Elapsed::from_nanos(now_unix_nano().saturating_sub(unix_nano))
}

fn list(tasks: &[OtherTask]) -> String {
    let mut text: Vec<_> =
        tasks.iter().take(NAMED).map(|task| format!("{} ({}, {})", task.id, task.target, task.state)).collect();
    if tasks.len() > NAMED {
        text.push(format!("and {} more", tasks.len() - NAMED));
    }
    text.join(", ")
}
