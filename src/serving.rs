//! Serving: functions and types of libraries behind HTTP, each request a trace.
//!
//! The proxy is a process, `proxy`. What it and the commands of `tracer serve` stand on are plain functions over bytes and text: no socket, no
//! clock; certificates are read from their files. What replicas and the driver library need too is below: the [lane](crate::lane), the table of replicas and the router.
//!
//! | | |
//! |---|---|
//! | [`service_file`] | `service.toml`, checked as a whole before anything is changed |
//! | [`render`] | a service as the text of such a file |
//! | [`routes`] | the application of a path, by the longest prefix |
//! | [`hosts`] | what belongs to the host of a request or a handshake |
//! | [`certificates`] | certificates and keys, read and checked |
//! | [`request_head`] | what a client sends, checked before hyper parses it |
//! | `proxy` | the process that speaks to clients |

pub mod certificates;
pub mod hosts;
pub(crate) mod proxy;
pub mod render;
pub mod request_head;
pub mod routes;
pub mod service_file;
