//! Facts that a task may know about its own call.

use std::cell::Cell;
use std::sync::OnceLock;

use tracer_abi as abi;

/// The call that runs on a thread: which task, which attempt, where.
///
/// Spans carry all of this already; it is for code that needs the numbers, such as one that names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeContext {
    /// The id of the task. It stays the same across attempts.
    pub task_id: u64,
    /// The id of the actor that the task makes, or is a method of; none for other tasks.
    pub actor_id: Option<u64>,
    /// The id of the job that the task belongs to.
    pub job_id: u64,
    /// Number of the attempt at the task, from 1.
    pub attempt: u32,
    /// The id of the worker that runs it.
    pub worker_id: u64,
    /// The machine, as spans name it.
    pub node_id: &'static str,
}

impl RuntimeContext {
    /// Returns the call that the host describes.
    ///
    /// # Safety
    ///
    /// The texts of `call` are readable.
    pub(crate) unsafe fn of_call(call: &abi::TaskCall) -> RuntimeContext {
        RuntimeContext {
            task_id: call.task_id,
            actor_id: Some(call.actor_id).filter(|&id| id != 0),
            job_id: call.job_id,
            attempt: call.attempt,
            worker_id: call.worker_id,
            // SAFETY: promised by the caller.
            node_id: node(unsafe { call.node_id.as_bytes() }),
        }
    }

    /// Returns whether this call is to end: someone has cancelled the task, or it has run for longer than it may. A function that runs for long
    /// asks now and then, cleans up and returns; what it returns then does not matter. One that does not ask, or does not return
    /// within the grace period, is ended with its worker. Futures need not ask: they are dropped.
    ///
    /// Threads: any; a thread that a task starts takes the value along. It costs a few loads from memory.
    pub fn is_cancelled(&self) -> bool {
        crate::host::is_cancelled(self.task_id, self.attempt)
    }

    /// Returns the task that runs while a hook is asked for a span.
    ///
    /// # Safety
    ///
    /// The texts of `running` are readable.
    #[cfg(feature = "hooks")]
    pub(crate) unsafe fn of_running(running: &abi::Runtime) -> RuntimeContext {
        RuntimeContext {
            task_id: running.task_id,
            actor_id: Some(running.actor_id).filter(|&id| id != 0),
            job_id: running.job_id,
            attempt: running.attempt,
            worker_id: running.worker_id,
            // SAFETY: promised by the caller.
            node_id: node(unsafe { running.node_id.as_bytes() }),
        }
    }
}

/// Keeps the name of the machine for good. A process stays on one, so that there is one name to keep.
fn node(name: &[u8]) -> &'static str {
    static NODE: OnceLock<String> = OnceLock::new();
    NODE.get_or_init(|| String::from_utf8_lossy(name).into_owned())
}

/// The trace context of a call as the W3C headers that carry it, for what is not instrumented: a message, a database comment, the
/// environment of a child.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceContext {
    /// `traceparent`, version 00; empty outside of a trace.
    pub traceparent: String,
    /// `tracestate`; empty for none.
    pub tracestate: String,
    /// `baggage`; empty for none.
    pub baggage: String,
}

/// Returns the context that is current on this thread: that of the innermost span, of the task when it has made none, or of the
/// submission when the process is not traced. None when there is neither trace nor baggage.
///
/// Threads: as with OpenTelemetry, a thread that a task starts has none, unless it takes the task's context along.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub fn current_trace_context() -> Option<TraceContext> {
    let [traceparent, tracestate, baggage] = crate::proxy::current_headers()?;
    Some(TraceContext { traceparent, tracestate, baggage })
}

thread_local! {
    static CURRENT: Cell<Option<RuntimeContext>> = const { Cell::new(None) };
}

/// Returns the call that runs on this thread, or none outside of a task.
///
/// In a hook, a span processor's `on_start` and a sampler are told the task that the process runs while a span starts, whichever thread
/// starts it. So a processor can put the ids of the task on every span; `on_end` is told nothing.
///
/// Threads and futures that a task starts are outside; take the value along.
pub fn current() -> Option<RuntimeContext> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// Makes `context` current until the guard is dropped. Calls may nest, when a task waits for another one and the
/// host runs that on the same thread.
pub(crate) fn enter(context: Option<RuntimeContext>) -> Entered {
    Entered(CURRENT.replace(context))
}

pub(crate) struct Entered(Option<RuntimeContext>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}
