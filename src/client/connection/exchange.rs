//! State of a connection, without its socket and its threads: submissions and questions become frames to send, and frames that have come
//! become ids, ends, output and answers. [`Connection`](super::Connection) locks it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tracer_core::clock::now_unix_nano;
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::propagation::{Carrier, TraceContext};
use tracer_core::task::{
    ActorRole, Envelope, Failure, Input, InputSource, JobId, ModuleVersion, Outcome, Refusal, TaskId, TaskSpec,
    TraceLink,
};
use tracer_core::value;
use tracer_host::hook::{ActiveSpan, Recorder};
use tracer_host::module_store::ModuleStore;
use tracer_host::recorded_arguments;
use tracer_ipc::protocol::frame::{PAYLOAD_LIMIT, put_frame};
use tracer_ipc::protocol::{
    Accepted, CommandUsage, Finished, Output, Query, Reply, Wait, Welcome, kind, put_query, take_task_refusal,
    take_value,
};
use tracer_ipc::stored::{self, STORED_FROM};

use super::completions::{Completions, watched_tag};
use super::following::{Follower, Following, TaskOutput};
use super::outbox::{Outbox, SubmitRequest};
use super::spans::{SubmissionPlace, SubmissionSpans};
use super::versions::Versions;
use super::watches::{Callback, Watch, Watches, Woken};
use crate::error::DriverError;

/// The W3C trace flag.
const SAMPLED: u8 = 1;

/// A task that was submitted. It names the task for its connection only, and is given up for the outcome, which there is once.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The number of the submission among those of its connection.
    pub tag: u64,
    /// All zero for a submission that is in no trace.
    trace_id: [u8; 16],
}

impl Ticket {
    /// Returns the connection's own number for the task, which [`Finished::tag`] repeats.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the trace that the submission is in; none for none.
    pub fn trace_id(&self) -> Option<[u8; 16]> {
        Some(self.trace_id).filter(|id| *id != [0; 16])
    }
}

/// Parent and submitter of a submission.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The context that it belongs to.
    pub parent: &'a Carrier,
    /// True if the span of that context is in another process.
    pub is_parent_remote: bool,
    /// The task on whose behalf it is made; none for a driver.
    pub task: Option<SubmittingTask>,
}

/// A task that submits others.
#[derive(Clone, Copy, Debug)]
pub struct SubmittingTask {
    /// The task.
    pub id: TaskId,
    /// Its job, which is that of what it submits.
    pub job: JobId,
    /// The module that it is in, with its version, if there are versions of it.
    pub module: Option<(&'static str, ModuleVersion)>,
}

/// The answers of the head to questions, by their numbers.
#[derive(Default)]
struct Replies {
    next: u64,
    /// Replies that nobody has taken yet.
    arrived: FxHashMap<u64, Reply>,
    /// Callbacks for replies, by the number of the question.
    asking: FxHashMap<u64, Box<dyn FnOnce(Reply) + Send>>,
}

/// The state of a connection to the head.
pub struct Exchange {
    welcome: Arc<Welcome>,
    /// The folder of large values.
    values: PathBuf,
    /// Versions of modules that its submissions run.
    versions: Versions,
    spans: SubmissionSpans,
    outbox: Outbox,
    completions: Completions,
    following: Following,
    watches: Watches,
    replies: Replies,
    /// The head's reason to refuse a batch, until somebody is told who does not ask for its tasks.
    refusal: Option<Refusal>,
    /// Count of frames that have come.
    received: u64,
    woken: Woken,
}

impl Exchange {
    pub(super) fn new(welcome: Arc<Welcome>) -> Exchange {
        Exchange {
            values: stored::folder(&welcome.session_dir),
            versions: Versions::new(ModuleStore::of_session(&welcome.session_dir), welcome.module_folders.clone()),
            welcome,
            spans: SubmissionSpans::new(),
            outbox: Outbox::default(),
            completions: Completions::default(),
            following: Following::default(),
            watches: Watches::default(),
            replies: Replies::default(),
            refusal: None,
            received: 0,
            woken: Woken::default(),
        }
    }

    // ---- what is sent ------------------------------------------------------------------------------------------------

    /// Adds a task to the batch.
    pub(super) fn submit(
        &mut self,
        request: &SubmitRequest<'_>,
        origin: &Origin<'_>,
        follower: Option<Box<dyn Follower>>,
    ) -> Result<Ticket, DriverError> {
        let module_version = self.versions.of(&request.spec, origin.task.as_ref(), self.completions.has_open())?;
        let mut inputs = request.inputs.to_vec();
        let in_files = inputs.iter().map(|input| match &input.source {
            InputSource::Stored(stored) => usize::try_from(stored.bytes).unwrap_or(usize::MAX),
            InputSource::Task(_) => 0,
        });
        let in_files = in_files.fold(0, usize::saturating_add);
        let stored = match &request.spec {
            TaskSpec::Function(function) if function.arguments.len().saturating_add(in_files) > PAYLOAD_LIMIT => {
                Err(DriverError::TooLarge { bytes: function.arguments.len().saturating_add(in_files) })
            }
            TaskSpec::Function(function) if function.arguments.len() >= STORED_FROM => {
                self.store_large(function.arguments, &mut inputs).map(Some)
            }
            TaskSpec::Function(_) | TaskSpec::Command(_) => Ok(None),
        };
        let wants_runtime =
            (request.trace_runtime || self.welcome.tracing.trace_runtime) && self.welcome.tracing.hook.is_some();
        // The PRODUCER span begins when the first of the runtime's spans in it does.
        let start_unix_nano = if wants_runtime { now_unix_nano() } else { 0 };
        let job = origin.task.map_or(self.welcome.job_id, |task| task.job);
        let place = SubmissionPlace { origin, job, node_id: &self.welcome.node_id, queue: request.policy.queue };
        let producer = self.spans.start_producer(&request.spec, request.name, &place, start_unix_nano);
        if let Some(producer) = producer.as_ref().filter(|_| self.welcome.tracing.record_arguments) {
            recorded_arguments::record(producer, &request.spec, in_files, Vec::new);
        }
        let fail = |producer: Option<ActiveSpan>, error: DriverError| {
            if let Some(producer) = producer {
                producer.set_error(&error.to_string());
            }
            Err(error)
        };
        let small = match stored {
            Ok(small) => small,
            Err(error) => return fail(producer, error),
        };
        let mut spec = request.spec.clone();
        if let (TaskSpec::Function(function), Some(small)) = (&mut spec, &small) {
            function.arguments = small;
        }
        let context: Option<&TraceContext> =
            producer.as_ref().map(ActiveSpan::context).or(origin.parent.trace_context.as_ref());
        // Where nothing is sampled, nobody needs to be asked for times.
        let traces_runtime = wants_runtime && context.is_none_or(|context| context.parent.flags & SAMPLED != 0);
        let envelope = Envelope {
            spec,
            name: request.name,
            run_limit: request.run_limit,
            policy: request.policy,
            demand: request.demand.clone(),
            module_version,
            module_digest: None,
            wants_output: request.wants_output,
            traces_runtime,
            trace: context.map(|context| TraceLink {
                trace_id: context.parent.trace_id,
                span_id: context.parent.span_id,
                trace_flags: context.parent.flags,
                trace_state: &context.trace_state,
            }),
            baggage: &origin.parent.baggage,
            submitter: origin.task.map(|task| task.id),
            inputs,
            origin: None,
            clocks: None,
        };
        let tag = match self.outbox.push(&envelope) {
            Ok(tag) => tag,
            Err(bytes) => return fail(producer, DriverError::TooLarge { bytes }),
        };
        if let (true, Some(context)) = (traces_runtime, context) {
            self.spans.trace_runtime(tag, context, start_unix_nano);
        }
        let trace_id = context.map_or([0; 16], |context| context.parent.trace_id);
        if let Some(producer) = producer {
            let is_creation = matches!(request.spec.actor(), ActorRole::Create(_));
            self.spans.submitted(producer, is_creation, !request.policy.queue.is_empty());
        }
        self.completions.submitted();
        if let Some(follower) = follower {
            self.following.begin(tag, follower);
        }
        Ok(Ticket { tag, trace_id })
    }

    /// Writes large arguments to files. Returns the arguments with nil in their places.
    fn store_large(&self, arguments: &[u8], inputs: &mut Vec<Input>) -> Result<Vec<u8>, DriverError> {
        let Some(elements) = value::elements(arguments) else { return Ok(arguments.to_vec()) };
        let mut small = Vec::with_capacity(elements.len());
        for (argument, element) in (0..).zip(elements) {
            if element.len() < STORED_FROM {
                small.push(element.to_vec());
                continue;
            }
            let stored = stored::store(&self.values, element);
            let stored = stored.map_err(|source| DriverError::Store { folder: self.values.clone(), source })?;
            inputs.push(Input { argument, source: InputSource::Stored(stored) });
            small.push(vec![0xc0]);
        }
        Ok(value::array(&small))
    }

    /// Asks the head something, and returns the number of the question.
    pub(super) fn ask(&mut self, query: &Query) -> u64 {
        let number = self.replies.next;
        self.replies.next += 1;
        put_query(self.outbox.frames(), number, query);
        number
    }

    /// Sends a query as [`ask`](Self::ask) does, and calls `on_reply` with the answer. It is dropped if the connection breaks.
    pub(super) fn ask_for(&mut self, query: &Query, on_reply: Box<dyn FnOnce(Reply) + Send>) {
        let number = self.ask(query);
        self.replies.asking.insert(number, on_reply);
    }

    /// Tells the head that nobody here asks for a task's result any more. It keeps it only as long as others need it.
    pub fn forget_result(&mut self, task: TaskId) {
        put_frame(self.outbox.frames(), kind::FORGET, |out| out.put_u64(task.0));
    }

    /// Asks to hear of the end of a task that another driver may have submitted. It comes under a number of its own, which is returned.
    pub fn watch_task(&mut self, task: TaskId) -> u64 {
        let tag = watched_tag(task);
        put_frame(self.outbox.frames(), kind::WATCH, |out| {
            out.put_u64(tag);
            out.put_u64(task.0);
        });
        tag
    }

    /// Asks for a task's output as [`watch_task`](Self::watch_task) does, for a follower.
    pub fn follow_task(&mut self, task: TaskId, follower: Box<dyn Follower>) {
        let tag = self.watch_task(task);
        self.following.begin(tag, follower);
    }

    /// Tells the head that a task waits.
    pub fn wait_begins(&mut self, wait: &Wait) {
        wait.encode(self.outbox.frames());
    }

    /// Tells the head that a task waits no longer, although not all has come that it waited for.
    pub fn wait_ends(&mut self, number: u64) {
        put_frame(self.outbox.frames(), kind::GO_ON, |out| out.put_u64(number));
    }

    /// Notes that nobody will ask for the end of this task.
    pub fn forget(&mut self, tag: u64) {
        self.following.stop(tag, self.completions.id_of_tag(tag));
        self.watches.forget(tag, &mut self.woken);
        if let Some(finished) = self.completions.forget(tag) {
            self.drop_result(&finished);
        }
    }

    /// Notes that nobody asks for this result; its file, if it has one, need not be kept.
    fn drop_result(&mut self, finished: &Finished) {
        if let Outcome::Stored(_) = finished.outcome {
            self.forget_result(finished.task);
        }
    }

    /// Notes that one submission was sent alone, or several.
    pub(super) fn sent(&mut self, count: u64) {
        if count == 1 {
            self.spans.sent_single();
        }
    }

    // ---- what comes --------------------------------------------------------------------------------------------------

    /// Takes in a frame.
    pub(super) fn take_frame(&mut self, frame_kind: u8, body: &[u8]) -> Result<(), DriverError> {
        self.received += 1;
        match frame_kind {
            kind::ACCEPTED => self.take_accepted(Accepted::decode(body)?)?,
            kind::FINISHED => {
                let mut take = Take::new(body);
                while !take.is_empty() {
                    self.take_finished_task(Finished::take(&mut take)?);
                }
            }
            kind::OUTPUT => {
                let Output { task, worker_pid, stream, is_shared, node_id, lost, bytes } = Output::decode(body)?;
                let (node_id, bytes) = (node_id.into(), bytes.to_vec());
                let output = TaskOutput { id: task, worker_pid, stream, is_shared, node_id, lost, bytes };
                self.following.output(&output, &mut self.woken.wakers);
            }
            kind::USAGE => {
                let (task, usage) = CommandUsage::decode(body)?;
                self.completions.used(task, usage);
            }
            kind::REPLY => {
                let (number, reply) = take_value(body)?;
                match self.replies.asking.remove(&number) {
                    Some(on_reply) => on_reply(reply),
                    None => drop(self.replies.arrived.insert(number, reply)),
                }
            }
            kind::RUN => self.woken.runs.push(body.to_vec()),
            // Whoever waits looks, because something has come.
            kind::LOOK => {}
            kind::REFUSED => {
                let (first_tag, count) = self.outbox.take_oldest().unwrap_or_default();
                self.take_refused(first_tag..first_tag + count, Refusal::decode(body)?);
            }
            kind::TASK_REFUSED => {
                let (tag, refusal) = take_task_refusal(body)?;
                if !self.outbox.answered(tag..tag.saturating_add(1)) {
                    return Err(DriverError::Protocol(WireError::UnknownValue("refused task")));
                }
                self.take_refused(tag..tag + 1, refusal);
            }
            _ => return Err(DriverError::Protocol(WireError::UnknownValue("frame kind"))),
        }
        Ok(())
    }

    fn take_accepted(&mut self, accepted: Accepted) -> Result<(), DriverError> {
        let count = u64::from(accepted.count);
        let end = accepted.first_tag.checked_add(count).filter(|_| accepted.first_task.0.checked_add(count).is_some());
        if !end.is_some_and(|end| self.outbox.answered(accepted.first_tag..end)) {
            return Err(DriverError::Protocol(WireError::UnknownValue("range of accepted tasks")));
        }
        self.spans.accepted(&accepted, self.welcome.place_id, self.outbox.is_anything_unanswered());
        self.completions.accepted(accepted);
        self.following.accepted(&accepted);
        self.watches.settled(accepted.first_tag, accepted.count.into(), &mut self.woken);
        Ok(())
    }

    fn take_finished_task(&mut self, mut finished: Finished) {
        let tag = finished.tag;
        self.completions.complete(&mut finished);
        self.spans.delivered(&finished);
        let dropped = if self.following.is_empty() {
            self.completions.keep(finished)
        } else {
            self.following.ended(finished).and_then(|finished| self.completions.keep(finished))
        };
        if let Some(dropped) = dropped {
            self.drop_result(&dropped);
        }
        self.watches.ended(tag, &mut self.woken);
    }

    /// Notes that the head has not taken submissions in: each of these tasks ends with that.
    fn take_refused(&mut self, tags: Range<u64>, refusal: Refusal) {
        for tag in tags.clone() {
            let failure = Failure::from(refusal.clone());
            self.spans.refused(&failure);
            let outcome = Outcome::Failed(failure);
            let (task, ended_unix_nano, usage) = (TaskId(0), None, None);
            self.take_finished_task(Finished {
                tag,
                task,
                attempt: 0,
                outcome,
                ended_unix_nano,
                past: Vec::new(),
                usage,
            });
        }
        self.watches.settled(tags.start, tags.end - tags.start, &mut self.woken);
        self.refusal = Some(refusal);
    }

    // ---- what is known -----------------------------------------------------------------------------------------------

    /// Returns the id that the submission with this tag got; none while it is not accepted, or when it was refused.
    pub fn id_of_tag(&self, tag: u64) -> Option<TaskId> {
        self.completions.id_of_tag(tag)
    }

    /// Returns whether everything that was submitted is accepted or refused.
    pub fn is_settled(&self) -> bool {
        self.outbox.is_settled()
    }

    /// Returns how many ends there are that nobody has asked for.
    pub fn finished_count(&self) -> usize {
        self.completions.finished().len()
    }

    /// Returns whether the task with this tag has ended, and its outcome was not taken.
    pub fn has_finished(&self, tag: u64) -> bool {
        self.completions.finished().contains(tag)
    }

    /// Returns the end of the task with this tag, once.
    pub fn take_finished(&mut self, tag: u64) -> Option<Finished> {
        self.completions.finished_mut().remove(tag)
    }

    /// Returns an end that has arrived, if there is one; of several, that of the task that was submitted first.
    pub fn pop_finished(&mut self) -> Option<Finished> {
        self.completions.finished_mut().pop_first()
    }

    /// Returns why the head has refused a batch since this was asked last.
    pub(crate) fn take_refusal(&mut self) -> Option<Refusal> {
        self.refusal.take()
    }

    /// Returns the answer to the question of this number, once it has come.
    pub(super) fn take_reply(&mut self, number: u64) -> Option<Reply> {
        self.replies.arrived.remove(&number)
    }

    /// Notes that nobody will ask for the ids of submissions that are answered.
    pub fn forget_settled_ids(&mut self) {
        self.completions.forget_ids_before(self.outbox.first_unanswered());
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    pub(super) fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    // ---- who waits ---------------------------------------------------------------------------------------------------

    /// Watches for the end of a task.
    pub(super) fn watch_end(&mut self, tag: u64, watch: Watch) {
        self.watches.add(tag, watch);
    }

    /// Calls back when the submission is accepted or refused.
    pub(super) fn on_settled(&mut self, tag: u64, callback: Callback) {
        self.watches.on_settled(tag, callback);
    }

    /// Takes out who is to be woken.
    pub(super) fn take_woken(&mut self) -> Option<Woken> {
        (!self.woken.is_empty()).then(|| std::mem::take(&mut self.woken))
    }

    /// Notes that nothing comes any more.
    pub(super) fn break_off(&mut self) {
        self.watches.break_off(&mut self.woken);
        self.following.clear();
        self.replies.asking.clear();
    }

    // ---- how it is done ----------------------------------------------------------------------------------------------

    /// Keeps for every module the version that it has when a task of it is first submitted, whatever is built meanwhile. Otherwise a
    /// library that has changed is used when no task of this connection is open.
    pub fn keep_module_versions(&mut self) {
        self.versions.is_pinned = true;
    }

    /// Records the spans of submissions from now on.
    pub fn set_recorder(&mut self, recorder: Option<&'static Recorder>) {
        self.spans.set_recorder(recorder);
    }

    /// Returns what records the spans of submissions.
    pub fn recorder(&self) -> Option<&'static Recorder> {
        self.spans.recorder()
    }

    /// Ends and commits what spans there are.
    pub(super) fn close(&mut self) {
        self.spans.close();
    }
}
