//! The span sink of a table: finished spans that did not begin in it, on their way to its exporters.
//!
//! They wait in a queue for one thread, which hands each batch to every exporter and says what became of it. Nobody else
//! waits: the queue is bounded, and what it has no room for is not taken.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::SpanData;
use tracer_abi as abi;

use super::delivery::{refused_of, status};
use super::guard::GuardedProcessor;
use super::lock::lock;
use super::otlp;

/// Batches that may wait.
const QUEUE_LIMIT: usize = 32;

/// The queue and its thread.
#[derive(Default)]
pub(super) struct Sink {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Batch>,
    /// True if the thread has taken a batch and not said yet what became of it.
    is_busy: bool,
    has_thread: bool,
    is_shut_down: bool,
}

/// Spans with whoever waits to hear of them.
struct Batch {
    groups: Vec<(Resource, Vec<SpanData>)>,
    wanted: u32,
    reply: Reply,
}

/// Whom to tell what became of a batch.
pub(super) struct Reply {
    pub(super) data: *mut c_void,
    pub(super) host_delivered: Option<unsafe extern "C" fn(*mut c_void, u32)>,
    pub(super) host_refused: Option<unsafe extern "C" fn(*mut c_void, u64)>,
}

// SAFETY: the host's function may be called from any thread, with the data that goes with it.
unsafe impl Send for Reply {}

impl Reply {
    fn notify(self, status: u32) {
        self.report_refused(status, 0);
    }

    /// The same of spans of which the receiver took all but so many.
    fn report_refused(self, status: u32, refused: u64) {
        // Those of a batch that is to be sent again may be refused again.
        if let Some(host_refused) = self.host_refused.filter(|_| status == abi::STATUS_OK && refused > 0) {
            // SAFETY: the host's function with the host's data, before that data is given back.
            unsafe { host_refused(self.data, refused) };
        }
        if let Some(host_delivered) = self.host_delivered {
            // SAFETY: the host's function with the host's data, once.
            unsafe { host_delivered(self.data, status) };
        }
    }
}

impl Sink {
    /// Takes a batch, or says why not.
    pub(super) fn take(
        self: &Arc<Self>,
        processors: &[Arc<GuardedProcessor>],
        request: &[u8],
        wanted: u32,
        reply: Reply,
    ) -> Result<(), (u32, String)> {
        let refuse = |status, text: &str| Err((status, text.to_owned()));
        // Decoded here, so that what is no OTLP is refused where it comes from.
        let groups = otlp::decode(request).map_err(|reason| (abi::STATUS_FAILED, reason))?;
        let mut state = lock(&self.state);
        if state.is_shut_down {
            return refuse(abi::STATUS_ALREADY, "it was shut down before");
        }
        if state.queue.len() >= QUEUE_LIMIT {
            return refuse(abi::STATUS_FULL, "too many spans wait already");
        }
        if !state.has_thread {
            let (sink, processors) = (Arc::clone(self), processors.to_vec());
            let thread = std::thread::Builder::new().name("tracer-sink".into()).spawn(move || sink.run(&processors));
            if thread.is_err() {
                return refuse(abi::STATUS_FAILED, "there is no room for a thread");
            }
            state.has_thread = true;
        }
        state.queue.push_back(Batch { groups, wanted, reply });
        self.changed.notify_all();
        Ok(())
    }

    fn run(&self, processors: &[Arc<GuardedProcessor>]) {
        // What an exporter does to send spans must not make spans.
        let _suppressed = Context::enter_telemetry_suppressed_scope();
        let mut state = lock(&self.state);
        loop {
            let Some(batch) = state.queue.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            };
            state.is_busy = true;
            drop(state);
            let Batch { groups, wanted, reply } = batch;
            let (status, refused) = deliver(processors, groups, wanted);
            reply.report_refused(status, refused);
            state = lock(&self.state);
            state.is_busy = false;
            self.changed.notify_all();
        }
    }

    /// Waits until everything is delivered. False if that took too long.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let is_working = |state: &mut State| state.is_busy || !state.queue.is_empty();
        let waited = self.changed.wait_timeout_while(lock(&self.state), timeout, is_working);
        !waited.unwrap_or_else(std::sync::PoisonError::into_inner).1.timed_out()
    }

    /// Takes nothing more, and gives back what it has not begun to deliver.
    pub(super) fn give_back(&self) {
        let mut state = lock(&self.state);
        state.is_shut_down = true;
        let left = std::mem::take(&mut state.queue);
        drop(state);
        left.into_iter().for_each(|batch| batch.reply.notify(abi::STATUS_ALREADY));
    }

    /// Takes nothing more, waits for what it has, and gives back what is left after `timeout`.
    pub(super) fn shut_down(&self, timeout: Duration) {
        lock(&self.state).is_shut_down = true;
        self.flush(timeout);
        self.give_back();
    }
}

/// Delivers spans to all that are wanted; one that fails keeps none of the others from its spans. Returns how it went, and of how many
/// spans it is known that somebody has refused them for good.
fn deliver(processors: &[Arc<GuardedProcessor>], groups: Vec<(Resource, Vec<SpanData>)>, wanted: u32) -> (u32, u64) {
    let mut outcome: OTelSdkResult = Ok(());
    let mut refused = 0;
    for (resource, spans) in groups {
        // Which ones it were, nobody tells: at worst, each has refused the same.
        let mut refused_here = 0;
        for processor in processors.iter().filter(|it| wanted != abi::SINK_EXPORTERS || !it.is_durable()) {
            let result = processor.deliver(&resource, spans.clone());
            refused_here = refused_of(&result).unwrap_or(0).min(spans.len()).max(refused_here);
            // One that was taken in part is not to be sent again, unless another is.
            if status(&outcome) == abi::STATUS_OK {
                outcome = result;
            }
        }
        refused += refused_here as u64;
    }
    (status(&outcome), refused)
}
