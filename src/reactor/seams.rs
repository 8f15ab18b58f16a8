//! Seams for a second engine, and what deployments still need: a page without code.
//!
//! The page says what each needs of the reactor, where that goes, and what is missing, so that whoever builds it
//! changes the places named here and no others.
//!
//! # What stands already
//!
//! | seam | what it gives |
//! |---|---|
//! | `submit` | one function accepts: checks, [`journal_submit`](crate::Effects::journal_submit), and only then the answer, by a callback and not by a connection |
//! | `state::progress` | one table of progress and events; a further progress is a row, a further event a column, and the compiler asks for each pair |
//! | [`Effects`](crate::Effects) | whatever leaves the reactor is a method of it, and tests remember it |
//! | `end_attempt`, `end_task` in `lifecycle` | each attempt ends in the first, each task in the second, wherever it ran |
//!
//! # An engine that many machines share
//!
//! An *agent*, a process beside the head, speaks to the engine. To the head that accepted a task it is a worker, which takes tasks and reports
//! outcomes; to the head that runs it, a driver, which submits tasks and hears of their ends.
//!
//! | needed | where |
//! |---|---|
//! | a task that somebody else holds | `Progress::Shared`: entered from *between* when the engine has acknowledged the task; left by *let go*, when it is withdrawn or ended. It counts as leased, or has a count of its own in `Tally` |
//! | handing tasks over | an effect `share(task, envelope)` where `waiting::queue_or_hold` queues today; the answer is a further `on_` function, which acknowledges. So acceptance may be *open*: `submit` answers a batch later than it takes it in, as the journal's sync makes the loop do now |
//! | ids beyond this head | the place's id is a constant of the state and the head's to know; tasks keep their numbers. Envelopes that leave carry no submitter, input or actor by number, which `submit` checks with the demand |
//! | an attempt number that begins elsewhere | imports set `Task::attempt` and the span of the attempt before as [`on_restored_attempt`](crate::on_restored_attempt) does |
//! | an outcome with a fence | `end_attempt` takes the attempt that it ends, and ignores an older one. Today the lease number is that fence, because a worker reports a lease once |
//! | withdrawal | `on_cancel`, the queue's limit and `nesting::run_in_waiters` ask to have a task back where they revoke a lease today; the answer comes later, so each of them gets a state of waiting for it |
//! | room for imports | an effect that tells free slots and named resources when `Free` changes, at the end of `schedule` |
//! | imports are in no journal | an attribute of the task that `journal_submit`, `journal_end` and `journal_attempt` look at |
//!
//! # Deployments
//!
//! They stand: [`deployments`](crate::deployments) is a state and effects of its own beside those of tasks. A request is no task and does not pass
//! the head. What is left to join:
//!
//! | needed | where |
//! |---|---|
//! | room for a rollout without twice the replicas | `rollout::begin` starts all new replicas at once; in batches, a failure would have to bring old ones back |
//! | resources that tasks hold | replicas are counted into what is free for tasks, and wait for tasks to end only where a deployment is scaled |
//! | processes | replicas are beside the limit of processes, which counts those of tasks |
