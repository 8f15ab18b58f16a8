//! Serving: functions and types of libraries behind HTTP, each request a trace.
//!
//! **For** the program, which runs the proxy as a process. **Uses** `tracer-core`, `tracer-ipc`, the host's recorder of spans, and the client's
//! choice of replicas.
//!
//! **Never** starts a replica, reads `service.toml` (`tracer-settings`), or knows the head's state: orders and reports go over its socket.
//! Lane and table of replicas, which replicas need too, are in `tracer-ipc`; the router, which the driver library needs too, is in `tracer-client`.
//!
//! | | |
//! |---|---|
//! | [`certificates`] | certificates and keys, read and checked |
//! | [`request_head`] | what a client sends, checked before hyper parses it |
//! | [`proxy`] | the process that speaks to clients |

#![forbid(unsafe_code)]

pub mod certificates;
pub mod proxy;
pub mod request_head;
