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
//! outcomes; to the head that runs it, a driver, which submits tasks and hears of their ends. That stands: [`Progress::Shared`](crate::state::Progress), and the
//! modules `exports`, `imports` and `sharing`. What is left to join:
//!
//! | needed | where |
//! |---|---|
//! | demands of a queue | `exports::check` compares with what the queue says its tasks may ask for |
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
