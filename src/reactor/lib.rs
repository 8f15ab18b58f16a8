//! Decisions of the head: plain functions over its state, with every effect going out through one trait.
//!
//! **For** the head, whose loop calls it, and for tests, which play the loop's part. **Uses** `tracer-core`, and of `tracer-ipc` the messages
//! that leases and results are sent in.
//!
//! **Never** reads a clock, opens a file, knows a socket or a process, or prints. Time is an argument; effects go through [`Effects`]. There is
//! no `unsafe` code.
//!
//! Inputs come in through the `on_` functions; after a batch of them the head's loop calls [`schedule`] once. Modules, from the lowest: each uses
//! those above it in this table, and no two use each other (`tests/integration/invariants.rs`).
//!
//! | | |
//! |---|---|
//! | [`scheduler`] | batch sizes: how many leases a worker gets |
//! | [`state`] | tasks, jobs, workers, actors and queues as data; `state::progress` is the life of a task as one table |
//! | `effects`, `loss` | everything that leaves the reactor |
//! | `resources` | free slots and resources, and reservations for tasks that others have passed for long |
//! | `values` | results and arguments in files: pins, and when a file goes |
//! | `waiting` | the places where a task waits: ready queue, line behind an actor, held for its inputs |
//! | `exports`, `imports` | tasks on their way into a queue of an engine; tasks of other nodes |
//! | `children`, `history` | tasks of tasks; ended tasks that are remembered |
//! | `actors::life` | an actor from its creation to its death |
//! | `lifecycle` | the end of an attempt, and of a task |
//! | `attempt` | the beginning of an attempt |
//! | `stopping`, `cancel` | ending attempts that run, and tasks wherever they are |
//! | `deadlock`, `nesting` | calls that wait for each other; tasks that wait for their own tasks |
//! | `actors::place`, `actors::line`, `actors::listing` | workers for actors, the order of calls, rows for people |
//! | `versions` | replacing workers that have loaded an older version of a module |
//! | `starts`, `exits` | worker processes that come and go |
//! | `results`, `submit`, `prune`, `restore`, `ticks`, `shutdown` | the inputs: results, submissions, the wish to forget, what another head has left, time, the end |
//! | `sharing`, `room` | the inputs of the agent, which speaks to the engine; the room that it is told of |
//! | `follow_up`, `schedule` | what follows from ends, and which tasks begin where |
//! | `report`, `explain` | rows for people; why a task waits |
//! | `check` | invariants, compared after every step of every test |
//! | [`deployments`] | services: a state and effects of their own, beside those of tasks |
//! | [`seams`] | a page: what an engine of many machines and deployments will need |

#![forbid(unsafe_code)]

mod actors;
mod attempt;
mod bundling;
mod cancel;
mod check;
mod children;
mod deadlock;
pub mod deployments;
mod effects;
mod exits;
mod explain;
mod exports;
mod follow_up;
mod history;
mod imports;
mod lifecycle;
mod loss;
#[cfg(test)]
#[path = "machine_tests.rs"]
mod machine;
mod nesting;
#[cfg(test)]
#[path = "priority_tests.rs"]
mod priority;
mod prune;
#[cfg(test)]
#[path = "random_tests.rs"]
mod random;
mod report;
mod resources;
mod restore;
mod results;
mod room;
#[cfg(test)]
#[path = "scale_tests.rs"]
mod scale;
mod schedule;
pub mod scheduler;
pub mod seams;
mod sharing;
mod shutdown;
mod starts;
pub mod state;
mod stopping;
mod submit;
#[cfg(test)]
mod testing;
mod ticks;
mod values;
mod versions;
mod waiting;

pub use actors::life::{on_driver, on_driver_gone, on_methods, on_restored_actor};
pub use actors::listing::{find_actor, list_actors};
pub use cancel::{on_cancel, on_cancel_many};
pub use effects::{Effects, EndedAttempt, StandIn, Submission, Watcher, Watchers, watchers};
pub use exits::{on_attempt_spans, on_worker_exited};
pub use explain::explain_task;
pub use history::HISTORY_LIMIT;
pub use loss::{Loss, LostAttempt, Why, WorkerExit};
pub use nesting::{on_go_on, on_wait};
pub use prune::{PruneChoice, choose_pruned, on_prune, on_restored_prune};
pub use report::{count_running, get_import, get_task, list_tasks, list_workers};
pub use resources::Free;
pub use restore::{
    LeftClaim, PastTask, on_restored, on_restored_attempt, on_restored_bundle, on_restored_end, on_restored_key,
    on_restored_memory, on_restored_submission,
};
pub use results::on_result;
pub use room::free_for_imports;
pub use schedule::schedule;
pub use sharing::{
    follower_in_queue, has_unsettled, on_agent, on_bundle_claimed, on_claimed, on_give_back, on_import, on_joined,
    on_not_stored, on_reach, on_settled, on_shared_ended, on_shared_lost, on_stop_import, on_stored, on_superseded,
    on_unanswered, shared_counts,
};
pub use shutdown::{end_stuck, has_own_tasks, on_drain, on_stop, on_stop_overdue, on_workers_gone};
pub use starts::{
    fail_if_no_worker, on_worker_ready, on_worker_start_failed, on_worker_started, start_missing_workers, when_again,
};
pub use submit::{Answer, on_submission, on_submit, on_submitted_again};
pub use ticks::{on_output, on_tick};
pub use values::{on_result_forgotten, value_files};
pub use versions::needed_versions;
