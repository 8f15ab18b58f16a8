//! The spans of submissions: a PRODUCER span for each, which ends when the head has accepted it, and those of the runtime's own work.
//!
//! Ended spans are committed in groups, so that a few slots of the spool serve all of them and stay in the processor's cache.

use std::collections::{HashMap, VecDeque};

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::propagation::TraceContext;
use tracer_core::task::{ActorRole, Failure, JobId, SpanNameTable, TaskId, TaskSpec};
use tracer_core::{ClusterTaskId, PlaceId, names};
use tracer_host::attempt_span::{put_actor, remote};
use tracer_host::hook::{ActiveSpan, Attribute, AttributePrefix, PutAttribute, Recorder, SpanRequest};
use tracer_host::runtime_spans::RuntimeParent;
use tracer_ipc::protocol::{Accepted, Finished, Period};

use super::exchange::Origin;

/// Ended spans that trigger a commit under load: the kernel takes a large write for half of what it takes for small ones.
const COMMIT_THRESHOLD_BUSY: usize = 192;
/// Ended spans that trigger a commit when nothing is in flight, so that few are left when the driver does something else.
const COMMIT_THRESHOLD_IDLE: usize = 64;
/// Ended spans that trigger a commit right after a single submission, while its answer is awaited.
const COMMIT_THRESHOLD_SINGLE: usize = 16;

/// The spans that a connection makes.
pub(super) struct SubmissionSpans {
    recorder: Option<&'static Recorder>,
    names: SpanNameTable,
    /// PRODUCER spans of submissions that are not acknowledged, in the order of their tags, and whether they make an actor.
    producers: VecDeque<Submitted>,
    /// For tasks that trace the runtime and have not ended, by tag: what its spans are children of, and when it was submitted.
    runtime: HashMap<u64, (RuntimeParent, u64)>,
    /// Spans that have ended since the last commit.
    uncommitted: usize,
    /// Asking for it takes a system call each time.
    pid: u32,
}

/// The span of a submission that is not acknowledged.
struct Submitted {
    producer: ActiveSpan,
    is_creation: bool,
    is_of_queue: bool,
}

/// Parent and attributes of a submission's span that are not in its request.
pub(super) struct SubmissionPlace<'a> {
    pub(super) origin: &'a Origin<'a>,
    pub(super) job: JobId,
    pub(super) node_id: &'a str,
    /// Queue that it is for; empty for none.
    pub(super) queue: &'a str,
}

impl SubmissionSpans {
    pub(super) fn new() -> SubmissionSpans {
        SubmissionSpans {
            recorder: None,
            names: SpanNameTable::new(names::REMOTE_SUFFIX),
            producers: VecDeque::new(),
            runtime: HashMap::new(),
            uncommitted: 0,
            pid: std::process::id(),
        }
    }

    pub(super) fn recorder(&self) -> Option<&'static Recorder> {
        self.recorder
    }

    pub(super) fn set_recorder(&mut self, recorder: Option<&'static Recorder>) {
        self.recorder = recorder;
    }

    /// Starts the span of a submission; none without tracing.
    pub(super) fn start_producer(
        &mut self,
        spec: &TaskSpec<'_>,
        task_name: &str,
        place: &SubmissionPlace<'_>,
        start_time_unix_nano: u64,
    ) -> Option<ActiveSpan> {
        let recorder = self.recorder?;
        let span_names = self.names.of(spec);
        let of_function = |put: PutAttribute<'_>| {
            put(names::REMOTE, Attribute::Str(remote(spec)));
            put(names::FUNCTION, Attribute::Str(&span_names.target));
            put_actor(spec, put);
            put(names::PID, self.pid.into());
            put(names::JOB_ID, place.job.0.into());
            put(names::NODE_ID, Attribute::Str(place.node_id));
        };
        let mut attributes = [(names::TASK_NAME, Attribute::Str(task_name)); 3];
        let mut count = usize::from(!task_name.is_empty());
        if !place.queue.is_empty() {
            attributes[count] = (names::QUEUE, Attribute::Str(place.queue));
            count += 1;
        }
        if let ActorRole::Call(actor) = spec.actor() {
            attributes[count] = (names::ACTOR_ID, actor.0.into());
            count += 1;
        }
        Some(recorder.start(&SpanRequest {
            name: &span_names.span,
            kind: abi::SPAN_KIND_PRODUCER,
            parent: place.origin.parent.trace_context.as_ref(),
            is_parent_remote: place.origin.is_parent_remote,
            baggage: &place.origin.parent.baggage,
            start_time_unix_nano,
            prefix: AttributePrefix { id: span_names.prefix_id(place.job, false), attributes: &of_function },
            attributes: &attributes[..count],
            link: None,
            is_attempt: false,
            request: None,
        }))
    }

    /// Traces the runtime's own work for the submission with this tag, which began at that time.
    pub(super) fn trace_runtime(&mut self, tag: u64, context: &TraceContext, submitted_unix_nano: u64) {
        let Some(recorder) = self.recorder else { return };
        let parent =
            RuntimeParent { recorder, context: context.clone(), is_remote: false, task: TaskId(0), attempt: 0 };
        self.runtime.insert(tag, (parent, submitted_unix_nano));
    }

    /// Keeps the span of a submission until it is acknowledged.
    pub(super) fn submitted(&mut self, producer: ActiveSpan, is_creation: bool, is_of_queue: bool) {
        self.producers.push_back(Submitted { producer, is_creation, is_of_queue });
    }

    /// Notes that one submission was sent alone: its answer takes longer than a commit.
    pub(super) fn sent_single(&mut self) {
        self.commit_from(COMMIT_THRESHOLD_SINGLE);
    }

    /// Ends the spans of submissions that were accepted.
    pub(super) fn accepted(&mut self, accepted: &Accepted, place: Option<PlaceId>, is_anything_unanswered: bool) {
        // All of them are known to be accepted from now on.
        let now = if self.producers.is_empty() { 0 } else { now_unix_nano() };
        for offset in 0..u64::from(accepted.count) {
            let task = TaskId(accepted.first_task.0 + offset);
            if let Some(journaled) = accepted.journaled {
                self.trace_acceptance(accepted.first_tag + offset, task, journaled);
            }
            if let Some(Submitted { producer, is_creation, is_of_queue }) = self.producers.pop_front() {
                let cluster_id = place.filter(|_| is_of_queue).map(|place| ClusterTaskId { place, task }.text());
                let further = match &cluster_id {
                    Some(id) => Some((names::CLUSTER_TASK_ID, Attribute::Str(id.as_str()))),
                    None => is_creation.then_some((names::ACTOR_ID, task.0.into())),
                };
                let own = (names::TASK_ID, task.0.into());
                match further {
                    Some(further) => producer.end_with(&[own, further], now),
                    None => producer.end_with(&[own], now),
                }
                self.uncommitted += 1;
            }
        }
        self.commit_from(if is_anything_unanswered { COMMIT_THRESHOLD_BUSY } else { COMMIT_THRESHOLD_IDLE });
    }

    /// Makes the spans of how a submission was accepted, if it traces the runtime.
    fn trace_acceptance(&mut self, tag: u64, task: TaskId, journaled: Period) {
        let Some((parent, submitted)) = self.runtime.get_mut(&tag) else { return };
        parent.task = task;
        let accept = Period { start_unix_nano: *submitted, end_unix_nano: journaled.start_unix_nano };
        parent.record(names::ACCEPT_SPAN, accept);
        parent.record(names::JOURNAL_SPAN, journaled);
    }

    /// Ends the span of the oldest submission that is not acknowledged: it was refused.
    pub(super) fn refused(&mut self, failure: &Failure) {
        if let Some(Submitted { producer, .. }) = self.producers.pop_front() {
            producer.set_attributes(&[(names::ERROR_TYPE, Attribute::Str(&failure.error_type()))]);
            producer.set_error(&failure.to_string());
        }
    }

    /// Makes the span of how an end came here, if its task traces the runtime.
    pub(super) fn delivered(&mut self, finished: &Finished) {
        if let Some(ended) = finished.ended_unix_nano
            && let Some((parent, _)) = self.runtime.remove(&finished.tag)
        {
            let delivery = Period { start_unix_nano: ended, end_unix_nano: now_unix_nano() };
            parent.record(names::DELIVER_SPAN, delivery);
        }
    }

    /// Commits when at least so many spans have ended.
    fn commit_from(&mut self, count: usize) {
        if self.uncommitted >= count
            && let Some(recorder) = self.recorder
        {
            self.uncommitted = 0;
            // What could not be written stays in the spool, and the hook counts what it had to drop.
            let _ = recorder.commit();
        }
    }

    /// Ends all spans and commits them: nothing more is submitted.
    pub(super) fn close(&mut self) {
        self.producers.clear();
        if let Some(recorder) = self.recorder {
            let _ = recorder.commit();
        }
    }
}
