//! Serving: functions and types of libraries behind HTTP, each request a trace.
//!
//! This is what the proxy and the commands of `tracer serve` stand on, as plain functions over bytes and text: no socket, no clock. What
//! replicas and the driver library need too is below: the [lane](crate::lane), the table of replicas and the router.
//!
//! | | |
//! |---|---|
//! | [`service_file`] | `service.toml`, checked as a whole before anything is changed |
//! | [`routes`] | the application of a path, by the longest prefix |
//! | [`request_head`] | what a client sends, checked before hyper parses it |

pub mod request_head;
pub mod routes;
pub mod service_file;
