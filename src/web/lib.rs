//! The web side of a head: the HTTP API for programs, and the page that shows traces, in a process of their own.
//!
//! **For** the program. **Uses** the reader of traces, the client of a head, and the files of a session.
//!
//! **Never** holds a task: what is submitted goes to the head as any driver's does.
//!
//! | | |
//! |---|---|
//! | [`http_api`] | the HTTP API, OTLP that is received, `GET /metrics` |
//! | [`view`] | the page, and the server of `tracer view` |

#![forbid(unsafe_code)]

pub mod http_api;
pub mod view;
