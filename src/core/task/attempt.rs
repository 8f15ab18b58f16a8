//! An attempt that has ended, as others are told of it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec::{Put, Take, WireError};
use crate::task::id::WorkerId;
use crate::task::outcome::Failure;

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptReport {
    /// Number of the attempt at its task, from 1.
    pub number: u32,
    /// The worker that ran it.
    pub worker_id: Option<WorkerId>,
    /// Process id of that worker.
    pub worker_pid: Option<u32>,
    /// Time of its beginning, in nanoseconds since the Unix epoch.
    pub started_unix_nano: Option<u64>,
    /// Time of its end, in nanoseconds since the Unix epoch: its beginning plus the time that it ran, whatever the wall clock was set to meanwhile.
    /// Of an attempt that was lost, the time at which the head learnt of it.
    pub ended_unix_nano: u64,
    /// Failure of the attempt, for programs; none when it succeeded.
    pub failure: Option<Failure>,
    /// The failure in words.
    pub message: Option<String>,
}

/// Bytes of a failure's message that are kept of an attempt after which the task was tried again.
const MESSAGE_LIMIT: usize = 2048;

impl AttemptReport {
    /// Returns the report of an attempt that is not the last: without stack traces, and with a message of bounded length, because there may
    /// be many.
    pub fn shortened(mut self) -> AttemptReport {
        if let Some(Failure::Error { message, stacktrace, .. } | Failure::Panic { message, stacktrace, .. }) =
            &mut self.failure
        {
            stacktrace.clear();
            shorten(message);
        }
        if let Some(message) = &mut self.message {
            shorten(message);
        }
        self
    }
}

fn shorten(text: &mut String) {
    if text.len() > MESSAGE_LIMIT {
        let end = (0..=MESSAGE_LIMIT).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

/// The attempts before the last one, a line each, to be put behind what became of that; nothing when there are none.
pub struct PastAttempts<'a>(pub &'a [AttemptReport]);

impl fmt::Display for PastAttempts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for attempt in self.0 {
            write!(f, "\n  attempt {}", attempt.number)?;
            if let (Some(worker), Some(pid)) = (attempt.worker_id, attempt.worker_pid) {
                write!(f, " (worker {worker}, pid {pid})")?;
            }
            // One line each: what else a message says is in `tracer get`.
            let message = attempt.message.as_deref().unwrap_or("succeeded");
            write!(f, ": {}", message.lines().next().unwrap_or_default())?;
        }
        Ok(())
    }
}

/// A span that another one is linked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanLink {
    /// Its trace.
    pub trace_id: [u8; 16],
    /// Its id.
    pub span_id: [u8; 8],
    /// Its W3C trace flags.
    pub trace_flags: u8,
}

impl SpanLink {
    /// Appends a link, or that there is none.
    pub fn put_option(link: Option<&SpanLink>, out: &mut Vec<u8>) {
        out.put_u8(link.is_some().into());
        if let Some(link) = link {
            out.put_exact(&link.trace_id);
            out.put_exact(&link.span_id);
            out.put_u8(link.trace_flags);
        }
    }

    /// Takes a link, or that there is none.
    pub fn take_option(take: &mut Take<'_>) -> Result<Option<SpanLink>, WireError> {
        match take.u8()? {
            0 => Ok(None),
            1 => Ok(Some(SpanLink { trace_id: take.array()?, span_id: take.array()?, trace_flags: take.u8()? })),
            _ => Err(WireError::UnknownValue("link")),
        }
    }
}
