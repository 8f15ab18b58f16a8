//! The runtime's own spans, for tasks that trace it: what happens to a task between its submission and its outcome, apart from its own work.
//!
//! The head makes no spans. It says when things happened, in the messages about such a task, and the worker and the driver make the
//! spans from that. Whoever runs the attempt has the spans of its parts open while they last, so that a process that dies leaves them
//! as it leaves the others.

use std::sync::{Mutex, PoisonError};

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::names;
use tracer_core::propagation::TraceContext;
use tracer_core::task::TaskId;
use tracer_ipc::protocol::Period;

use crate::hook::recorder::{ActiveSpan, Attribute, AttributePrefix, Recorder, SpanRequest};

/// Parent and common attributes of the runtime's spans of one task.
#[derive(Clone)]
pub struct RuntimeParent {
    /// Records them.
    pub recorder: &'static Recorder,
    /// The parent span.
    pub context: TraceContext,
    /// True if that span is in another process.
    pub is_remote: bool,
    /// The task.
    pub task: TaskId,
    /// From 1; 0 for what belongs to no attempt.
    pub attempt: u32,
}

impl RuntimeParent {
    /// Makes the span of something that is over. One that would end before it starts has no length.
    pub fn record(&self, name: &str, period: Period) {
        self.start(name, period.start_unix_nano).end_at(period.end_unix_nano.max(period.start_unix_nano));
    }

    fn start(&self, name: &str, start_time_unix_nano: u64) -> ActiveSpan {
        let attributes: [(&str, Attribute<'_>); 2] =
            [(names::TASK_ID, self.task.0.into()), (names::ATTEMPT, self.attempt.into())];
        self.recorder.start(&SpanRequest {
            name,
            kind: abi::SPAN_KIND_INTERNAL,
            parent: Some(&self.context),
            is_parent_remote: self.is_remote,
            baggage: "",
            start_time_unix_nano,
            attributes: if self.attempt == 0 { &attributes[..1] } else { &attributes },
            prefix: AttributePrefix::NONE,
            link: None,
            is_attempt: false,
            request: None,
        })
    }
}

/// The parts of an attempt, of which one is going on at a time.
pub struct Phases {
    parent: RuntimeParent,
    open: Mutex<Option<ActiveSpan>>,
}

impl Phases {
    /// Makes the phases of an attempt, none of which has begun.
    pub fn new(parent: RuntimeParent) -> Phases {
        Phases { parent, open: Mutex::new(None) }
    }

    /// Ends the part that is going on, and begins the one of that name; none for something else, which has no span.
    pub fn begin(&self, name: Option<&str>) {
        let now = now_unix_nano();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(span) = open.take() {
            span.end_at(now);
        }
        *open = name.map(|name| self.parent.start(name, now));
    }

    /// Notes that the part that is going on has failed.
    pub fn fail(&self, message: &str) {
        if let Some(span) = &*self.open.lock().unwrap_or_else(PoisonError::into_inner) {
            span.set_error(message);
        }
    }
}

/// Returns the span of a part of a call that a module tells of; none for one that has no span.
pub fn name_of_phase(phase: u32) -> Option<&'static str> {
    match phase {
        abi::TASK_PHASE_DECODE => Some(names::DECODE_SPAN),
        abi::TASK_PHASE_RUN => Some(names::RUN_SPAN),
        abi::TASK_PHASE_ENCODE => Some(names::ENCODE_SPAN),
        _ => None,
    }
}
