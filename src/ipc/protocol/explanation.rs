//! Explanation of a task: the reason why it waits, the state of its attempt, or the reason of its end.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{ActorState, TaskReport, TaskState};
use tracer_core::clock::now_unix_nano;
use tracer_core::count::{Count, Elapsed};
use tracer_core::task::{Failure, TaskId, WorkerId};

/// `tracer explain`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// The task.
    pub task: TaskReport,
    /// Reasons for its state, the nearest first.
    pub reasons: Vec<Reason>,
}

/// A part of an explanation. As text it is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// It waits for its turn.
    Behind {
        /// Number of tasks before it in the queue.
        tasks: usize,
    },
    /// It waits for its turn among the tasks that ask for the same.
    BehindAlike {
        /// Number of them that are before it in the queue.
        tasks: usize,
    },
    /// It is in a queue of the engine, or on its way there: any node that serves the queue may run it.
    InQueue {
        /// The queue.
        queue: String,
        /// True if the engine has said that it has it.
        is_stored: bool,
        /// True if it is a command, which some nodes alone run.
        is_command: bool,
    },
    /// These nodes serve the queue that it is in.
    ServedBy {
        /// The queue.
        queue: String,
        /// Their names.
        nodes: Vec<String>,
        /// Number of messages of the queue that no node has.
        waiting: u64,
    },
    /// No living node serves the queue that it is in.
    UnservedQueue {
        /// The queue.
        queue: String,
        /// Address of the engine.
        address: String,
    },
    /// The queue that it is in stands still: nobody is given its tasks.
    StuckQueue {
        /// The queue.
        queue: String,
        /// Reason for it, as a clause.
        problem: String,
        /// Address of the engine.
        address: String,
    },
    /// A command that waits in a queue whose nodes all run functions alone.
    NoCommandsTaken {
        /// The queue.
        queue: String,
        /// The nodes that serve it, which run functions alone.
        nodes: Vec<String>,
        /// Address of the engine.
        address: String,
    },
    /// Nodes that serve the queue lack the module that it runs.
    ModuleLacking {
        /// The module.
        module: String,
        /// The nodes that serve the queue and lack it.
        nodes: Vec<String>,
        /// True if no other node serves the queue: the one that takes the task fails with it.
        is_everywhere: bool,
    },
    /// Nodes that serve the queue have another build of its module than the node that submitted it, and run that.
    OtherBuild {
        /// The module.
        module: String,
        /// SHA-256 of the library at the node that submitted it.
        digest: String,
        /// The others, each with the SHA-256 of its library.
        others: Vec<(String, String)>,
    },
    /// A node has taken it from its queue.
    RunsElsewhere {
        /// The node, as spans name it.
        node_id: String,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Time at which that node took it, in nanoseconds since the Unix epoch by that node's clock.
        since_unix_nano: u64,
    },
    /// Too little of a resource is free.
    LacksResource {
        /// The resource's name.
        name: String,
        /// Amount that it asks for.
        asked: u64,
        /// Amount that is free.
        free: u64,
        /// Total amount of the head.
        total: u64,
        /// Amount of it that replicas of services have.
        #[serde(default)]
        of_replicas: u64,
        /// Tasks that have it, as far as they fit.
        holders: Vec<Holder>,
        /// Number of holders that were left out.
        left_out: usize,
    },
    /// Too few slots are free.
    LacksCpus {
        /// Number of slots that it asks for.
        asked: u32,
        /// Number of free slots.
        free: usize,
        /// Tasks that workers run, as far as they fit.
        running: Vec<RunningTask>,
        /// Number of tasks that were left out.
        left_out: usize,
    },
    /// Reservation of what it needs, for a task that has waited longer and needs more.
    KeptFor {
        /// Task for which it is kept.
        task: TaskId,
    },
    /// This head has less than it asks for, since it was started with less than the one before it.
    NeverHere {
        /// Shortage, as a clause.
        why: String,
    },
    /// No worker has room.
    WorkersBusy {
        /// Tasks that they run, as far as they fit.
        running: Vec<RunningTask>,
        /// Number of tasks that were left out.
        left_out: usize,
    },
    /// No worker takes tasks now.
    NoWorkerReady {
        /// Number of workers that are being started.
        starting: usize,
        /// Reason why that takes long, or is not done at all.
        why: Option<String>,
    },
    /// It is about to be given to a worker.
    NextTurn,
    /// It waits to be tried again.
    TriedAgain {
        /// Number of the attempt that failed, from 1.
        attempt: u32,
        /// Failure of that attempt, in words.
        failure: String,
    },
    /// Results of other tasks are arguments of it.
    NeedsResults {
        /// Tasks that have not ended.
        tasks: Vec<OtherTask>,
    },
    /// A worker has it and has not begun it.
    Leased {
        /// Id of the worker.
        worker_id: WorkerId,
        /// Process id of that worker.
        worker_pid: u32,
        /// Number of tasks that the worker has to run before it.
        tasks_before: usize,
    },
    /// A worker runs it.
    Running(RunningTask),
    /// It waits for tasks that it has submitted, and has given its slot back.
    AwaitsTasks {
        /// Tasks that have not ended.
        tasks: Vec<OtherTask>,
    },
    /// It makes an actor, which has a process for itself, and as many run as may.
    NoProcessForActor {
        /// Number of processes that are actors'.
        actors: usize,
        /// Number of processes that are replicas of services.
        #[serde(default)]
        replicas: usize,
        /// Limit of their number.
        max_processes: usize,
        /// Number of actors that wait before it.
        before: usize,
    },
    /// It is a method of an actor.
    AwaitsActor {
        /// Id of the actor.
        actor: TaskId,
        /// Stage of the actor's life.
        state: ActorState,
        /// Number of calls before it.
        calls_before: usize,
    },
    /// Tasks wait for each other in a cycle: it is one of them, or waits for one.
    Deadlock(Cycle),
    /// It has ended in its worker, and the head has not heard of it yet.
    ResultOnTheWay,
    /// Its worker is being ended.
    WorkerEnding {
        /// Reason why, in words that fit after "because".
        why: String,
    },
    /// It has ended.
    Ended {
        /// Number of the last attempt, from 1; 0 when it never began.
        attempt: u32,
        /// Node that ran it, of a task that was submitted here and ran over a queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node_id: Option<String>,
        /// Worker that ran it; none when it never began.
        worker_id: Option<WorkerId>,
        /// Process id of that worker.
        worker_pid: Option<u32>,
        /// Time that it ran, in nanoseconds.
        ran_ns: Option<u64>,
        /// `succeeded`, `failed` or `cancelled`.
        state: TaskState,
        /// Reason why it failed or was cancelled; none if it succeeded.
        failure: Option<String>,
    },
}

/// A task that a worker runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningTask {
    /// The task.
    pub task: TaskId,
    /// Id of the worker.
    pub worker_id: WorkerId,
    /// Process id of that worker.
    pub worker_pid: u32,
    /// Time of its beginning, in nanoseconds since the Unix epoch.
    pub since_unix_nano: u64,
}

/// A task that has some of a resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The task.
    pub task: TaskId,
    /// `module.function`, or the program.
    pub target: String,
    /// Amount that it has.
    pub amount: u64,
    /// True if it waits for the task that is explained, so that neither can go on.
    pub waits_for_this: bool,
}

/// A task that has to do with the one that is explained.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherTask {
    /// The task.
    pub id: TaskId,
    /// `module.function`, or the program.
    pub target: String,
    /// Stage of its life.
    pub state: TaskState,
}

/// Tasks of which each waits for the next, and the last for the first. As text it is a clause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cycle {
    /// In that order.
    pub tasks: Vec<BlockedTask>,
}

/// A task in a [`Cycle`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockedTask {
    /// The task.
    pub id: TaskId,
    /// `module.function`, or the program.
    pub target: String,
    /// Event of the next task that it waits for.
    pub waits_for: WaitsFor,
}

/// Event of another task that a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitsFor {
    /// Its end, for which it waits in its code.
    End,
    /// Its result, which is an argument.
    Argument,
    /// Its place in their actor, which does not run both at a time.
    Actor,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.tasks.first() else { return Ok(()) };
        write!(f, "task {} ({}) ", first.id, first.target)?;
        for (index, task) in self.tasks.iter().enumerate() {
            if index > 0 {
                f.write_str(", which ")?;
            }
            let next = match self.tasks.get(index + 1) {
                Some(next) => format!("task {} ({})", next.id, next.target),
                None => format!("task {}", first.id),
            };
            match task.waits_for {
                WaitsFor::End => write!(f, "waits for {next}")?,
                WaitsFor::Argument => write!(f, "needs the result of {next}")?,
                WaitsFor::Actor => write!(f, "cannot begin before {next} has ended")?,
            }
        }
        Ok(())
    }
}

/// Limit of the other tasks and workers that a sentence names.
const NAMED: usize = 5;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Behind { tasks: 1 } => f.write_str("1 task is before it in the queue"),
            Reason::Behind { tasks } => write!(f, "{tasks} tasks are before it in the queue"),
            Reason::InQueue { queue, is_stored: true, is_command } => {
                let which = if *is_command { "serves it and runs commands" } else { "serves it" };
                write!(f, "it is in the queue `{queue}`, and any node that {which} may run it")
            }
            Reason::InQueue { queue, is_stored: false, .. } => {
                write!(f, "it waits for the engine to take it into the queue `{queue}`")
            }
            Reason::ServedBy { queue, nodes, waiting } => {
                write!(f, "the queue `{queue}` is served by {}, and ", nodes.join(", "))?;
                match waiting {
                    1 => f.write_str("1 message waits in it"),
                    waiting => write!(f, "{waiting} messages wait in it"),
                }
            }
            Reason::UnservedQueue { queue, address } => write!(
                f,
                "no living node serves the queue `{queue}`\n(hint: `tracer start --address {address} --queue {queue}`)"
            ),
            Reason::StuckQueue { queue, problem, address } => write!(
                f,
                "the queue `{queue}` stands still: {problem}\n\
                 (hint: `tracer engine init --address {address} --queue {queue}` makes what is missing; `tracer doctor` says more)"
            ),
            Reason::NoCommandsTaken { queue, nodes, address } => write!(
                f,
                "it is a command, and the living nodes that serve the queue `{queue}` run functions alone: {}\n\
                 (hint: `tracer start --address {address} --queue {queue} --shared-commands` starts one that runs commands too)",
                nodes.join(", ")
            ),
            Reason::ModuleLacking { module, nodes, is_everywhere } => {
                let nodes = nodes.join(", ");
                match is_everywhere {
                    true => write!(f, "every living node that serves the queue lacks the module `{module}`: {nodes}")?,
                    false => write!(f, "the module `{module}` is lacking on {nodes}, so it is left to other nodes")?,
                }
                write!(
                    f,
                    "\n(hint: copy `lib{module}.so` into a module folder of each; `tracer doctor` looks for such nodes)"
                )
            }
            Reason::OtherBuild { module, digest, others } => {
                let short = |digest: &str| digest.chars().take(12).collect::<String>();
                let others: Vec<_> =
                    others.iter().map(|(node, digest)| format!("{} on {node}", short(digest))).collect();
                write!(
                    f,
                    "the module `{module}` is another build there than on this node, by SHA-256: {} here, {}",
                    short(digest),
                    others.join(", ")
                )
            }
            Reason::BehindAlike { tasks: 1 } => f.write_str("1 task that asks for the same is before it in the queue"),
            Reason::BehindAlike { tasks } => {
                write!(f, "{tasks} tasks that ask for the same are before it in the queue")
            }
            Reason::LacksResource { name, asked, free, total, of_replicas, holders, left_out } => {
                write!(f, "it asks for {asked} of the resource `{name}`, and {free} of {total} are free; ")?;
                let mut named: Vec<_> = holders.iter().take(NAMED).map(ToString::to_string).collect();
                let more = holders.len() - named.len() + left_out;
                if *of_replicas > 0 {
                    named.insert(
                        0,
                        format!("replicas of services have {of_replicas} (`tracer list replicas` names them)"),
                    );
                }
                f.write_str(&named.join("; "))?;
                if more > 0 {
                    write!(f, "; and {more} more")?;
                }
                if holders.iter().any(|holder| holder.waits_for_this) {
                    f.write_str("; so neither can go on until one of them is cancelled")?;
                }
                Ok(())
            }
            Reason::LacksCpus { asked, free, running, left_out } => {
                let verb = if *free == 1 { "is" } else { "are" };
                write!(f, "it asks for {asked} cpus, and {free} {verb} free: ")?;
                let named: Vec<_> = running.iter().take(NAMED).map(ToString::to_string).collect();
                f.write_str(&named.join("; "))?;
                let more = running.len() - named.len() + left_out;
                if more > 0 { write!(f, "; and {more} more") } else { Ok(()) }
            }
            Reason::KeptFor { task } => {
                write!(f, "the free part is reserved for task {task}, which needs more and has waited longer")
            }
            Reason::NeverHere { why } => {
                write!(f, "{why}; it waits for a head that is started in this place with enough")
            }
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
            Reason::RunsElsewhere { node_id, attempt, since_unix_nano } => {
                write!(f, "node `{node_id}` has had it for {}, at attempt {attempt}", since(*since_unix_nano))
            }
            Reason::Running(running) => write!(
                f,
                "worker {} (pid {}) has run it for {}",
                running.worker_id,
                running.worker_pid,
                since(running.since_unix_nano)
            ),
            Reason::AwaitsTasks { tasks } => write!(f, "it waits for tasks that it has submitted: {}", list(tasks)),
            Reason::NoProcessForActor { actors, replicas, max_processes, before } => {
                write!(f, "an actor has a process for itself, and of the {max_processes} that there may be ")?;
                write!(
                    f,
                    "{actors} {} taken by actors and one is kept for tasks",
                    if *actors == 1 { "is" } else { "are" }
                )?;
                if *replicas > 0 {
                    let verb = if *replicas == 1 { "is a replica" } else { "are replicas" };
                    write!(f, "; {replicas} of them {verb} of a service")?;
                }
                if *before > 0 {
                    write!(f, "; {} before it", Count(*before, "actor"))?;
                }
                f.write_str("\n(hint: end one with `tracer cancel`, or start the head with a higher --max-processes)")
            }
            Reason::AwaitsActor { actor, state, calls_before } => match (state, calls_before) {
                (ActorState::Alive, 0) => write!(f, "it is about to be given to actor {actor}"),
                (_, 0) => write!(f, "it waits for actor {actor}, which is {state}"),
                (ActorState::Alive, before) => {
                    write!(f, "it waits for {} of actor {actor}", Count(*before, "earlier call"))
                }
                (_, before) => write!(
                    f,
                    "it waits for actor {actor}, which is {state}, and for {} of it",
                    Count(*before, "earlier call")
                ),
            },
            Reason::Deadlock(cycle) => {
                write!(f, "deadlock: {cycle}; none of them goes on before one is cancelled or stops waiting")
            }
            Reason::ResultOnTheWay => f.write_str("it has ended in its worker, and its result is on the way"),
            Reason::WorkerEnding { why } => write!(f, "its worker is being ended, because {why}"),
            Reason::Ended { attempt, node_id, worker_id, worker_pid, ran_ns, state, failure } => {
                let there = node_id.as_ref().map(|node| format!(" on the node `{node}`")).unwrap_or_default();
                match (worker_id, worker_pid) {
                    (Some(worker), Some(pid)) => write!(f, "attempt {attempt}{there} in worker {worker} (pid {pid}) ")?,
                    _ => f.write_str("it was never begun and ")?,
                }
                let was = if *state == TaskState::Cancelled { "was " } else { "" };
                write!(f, "{was}{state}")?;
                ran_ns.map_or(Ok(()), |ran| write!(f, " after {}", Elapsed::from_nanos(ran)))?;
                // "was cancelled: it was cancelled" says it twice.
                let says_more = |failure: &&String| **failure != Failure::Cancelled.to_string();
                failure.as_ref().filter(says_more).map_or(Ok(()), |failure| write!(f, ": {failure}"))
            }
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} ({}) has {}", self.task, self.target, self.amount)?;
        if self.waits_for_this { f.write_str(" and waits for this task") } else { Ok(()) }
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
