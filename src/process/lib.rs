//! One process and those around it, as the operating system has them.
//!
//! **For** the processes of a session. **Uses** `tracer-ipc`, for the session that a parent belongs to.
//!
//! **Never** decides what a task does next, starts a process, or signals any but itself and its group. `unsafe` code is here for the allocator of the C library.
//!
//! | | |
//! |---|---|
//! | [`parent`] | the head as the parent of this process, and the socket that it hands over |
//! | [`children`] | the children of this process, reaped and measured |
//! | [`standard_input`] | the standard input of a submitter, handed over to a command |
//! | [`control_group`], [`memory_limit`] | the cgroup of this process, and how much memory there is for it |
//! | [`allocator`] | memory that the allocator gives back to the system |

pub mod allocator;
pub mod children;
pub mod control_group;
pub mod memory_limit;
pub mod parent;
pub mod standard_input;
