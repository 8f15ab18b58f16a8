//! What the head decides: plain functions over its state, with every effect going out through one trait.
//!
//! **For** the head, whose loop calls it, and for tests, which play the loop's part. **Uses** `tracer-core`, and of `tracer-ipc` the messages
//! that leases and results are sent in.
//!
//! **Never** reads a clock, opens a file, knows a socket or a process, or prints. Time is an argument; effects go through
//! [`reactor::Effects`]. There is no `unsafe` code.
//!
//! | | |
//! |---|---|
//! | [`reactor`] | what is done about each input: submissions, results, exits, cancellations, the passing of time |
//! | [`state`] | tasks, jobs, workers and actors as data, with their invariants (`State::check`) |
//! | [`submit`] | what is accepted: checked, journaled, acknowledged |
//! | [`progress`] | the life of a task as one table, and what is counted |
//! | [`scheduler`], [`lanes`], [`workers`] | which tasks begin where, and how many are leased at a time |
//! | [`actors`], [`inputs`], [`nesting`] | actors, tasks that wait for results of others, tasks that wait for their own tasks |
//! | `deadlock` | calls that wait for each other in a cycle: found when a wait begins, and broken |
//! | [`seams`] | a page: what an engine of many machines and deployments will need |
//! | [`explain`] | why a task waits, what it is at, why it ended as it did |

#![forbid(unsafe_code)]

pub mod actors;
mod deadlock;
pub mod explain;
pub mod inputs;
pub mod lanes;
pub mod nesting;
pub mod progress;
pub mod reactor;
pub mod scheduler;
pub mod seams;
pub mod state;
pub mod submit;
mod table;
pub mod versions;
pub mod workers;
