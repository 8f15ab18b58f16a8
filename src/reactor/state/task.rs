use std::borrow::Cow;
use std::sync::Arc;

use super::progress::{Event, Progress, Tally, TaskEnd};
use crate::state::{actor::Part, needs::Needs, progress::Stage, target::TargetIndex};
use tracer_core::ClusterTaskId;
use tracer_core::task::{AttemptReport, Envelope, EnvelopeHead, ExtraOptions, Input, JobId, SpanLink, TaskId};
use tracer_ipc::protocol::{self, Lease, Period};

/// A connected driver, as the server numbers its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct DriverId(pub u64);

/// Limits of a task. Times are in nanoseconds, and 0 is for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Time that an attempt may run.
    pub run_ns: u64,
    /// Time that a command may write nothing.
    pub idle_ns: u64,
    /// Time that the first attempt may be waited for.
    pub queue_ns: u64,
    /// Time at which that is reached, by the monotonic clock: its entry in [`State::queue_limits`].
    pub queue_until: u64,
    /// The most memory of an attempt, in bytes; 0 for what every worker may take.
    pub memory_bytes: u64,
}

/// Record of a task's ended attempts, once one of them has failed and the task was tried again.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Attempts that failed of their own.
    pub failures: u32,
    /// Attempts whose worker was lost.
    pub crashes: u32,
    /// The attempts, oldest first; the newest of them when there are very many.
    pub attempts: Vec<AttemptReport>,
    /// The span of the newest of them, if it was traced.
    pub span: Option<SpanLink>,
}

/// A task's description.
#[derive(Debug)]
pub(crate) enum Description {
    /// Everything, until it has ended.
    Envelope(Box<[u8]>),
    /// The part that is shown of it afterwards; none for a task without a name that was not traced.
    Shown(Option<Box<Shown>>),
}

/// The part of a task's description that is shown after its end.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The name given with `--name`; empty for none.
    pub name: Box<str>,
    /// All zero when the submission was not traced.
    pub trace_id: [u8; 16],
    /// Set for a task of a queue.
    pub of_queue: Option<Box<OfQueue>>,
}

/// The part that is shown of a task of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfQueue {
    /// The queue.
    pub queue: Box<str>,
    /// Its id in the cluster, if it has come from there.
    pub origin: Option<ClusterTaskId>,
    /// The node that ran it; empty if none has, or if it has come from there.
    pub node_id: Box<str>,
}

/// A task that the head has accepted. There may be very many, so what few have is behind a pointer, and what the envelope says is not said twice.
#[derive(Debug)]
pub struct Task {
    /// Its description.
    pub(crate) description: Description,
    /// Its target, by which people call it.
    pub(crate) target: TargetIndex,
    /// The task that has submitted it; none for a driver's.
    pub(crate) submitter: Option<TaskId>,
    /// Its relations to other tasks' results; none for most.
    pub(crate) links: Option<Box<Links>>,
    /// The driver that waits for it.
    pub(crate) driver: Option<DriverId>,
    /// The driver's own number for it.
    pub(crate) tag: u64,
    /// The driver's job that it belongs to.
    pub(crate) job: JobId,
    /// Time at which it was accepted, in nanoseconds since the Unix epoch.
    pub(crate) submitted_unix_nano: u64,
    /// Its limits; none for most.
    pub(crate) limits: Option<Box<Limits>>,
    /// Resources that it needs; none for the many that need a slot and nothing else.
    pub(crate) needs: Option<Arc<Needs>>,
    /// True if it is a command.
    pub(crate) is_command: bool,
    /// Options of which most tasks have none.
    pub(crate) extra: ExtraOptions,
    /// Its relation to an actor.
    pub(crate) actor: Part,
    /// The attempt that it is at, from 1; 0 while no worker was given it.
    pub(crate) attempt: u32,
    /// True if no other task is leased to a worker beside it: a task with a limit, or one whose output is wanted, so that it is
    /// told from that of others.
    pub(crate) must_be_alone: bool,
    /// True if its driver is sent what it writes.
    pub(crate) wants_output: bool,
    /// True if the runtime's own work for it is traced: its times are then in [`State::runtime_since`].
    pub(crate) traces_runtime: bool,
    /// True if its start is journaled first, and it is never started again.
    pub(crate) at_most_once: bool,
    /// Its relation to the queues of an engine.
    pub(crate) sharing: Sharing,
    /// Its key among [`State::keys`].
    pub(crate) key: Option<Box<Box<str>>>,
    /// Record of its ended attempts; none for the many that have had none.
    pub(crate) past: Option<Box<Past>>,
    /// Its stage: see [`Task::progress`].
    pub(crate) stage: Stage,
}

/// Results that are arguments.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// The tasks whose results are arguments of this one.
    pub inputs: Vec<Input>,
    /// Number of them that have not ended; only while this one is [held](Progress::Held).
    pub open_inputs: usize,
    /// Tasks that are held until this one has ended.
    pub dependants: Vec<TaskId>,
    /// Tasks that have not ended and of which this one's result is an argument. It is remembered as long as there are any.
    pub pins: usize,
    /// True if nobody can ask for its result any more, save for those.
    pub is_forgotten: bool,
}

/// Relation of a task to the queues of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// A task in no queue: this head's workers run it.
    Local,
    /// A submission to a queue, from which a node takes it.
    Submitted,
    /// Taken from a queue, and in no journal here.
    Import,
    /// Taken from a queue to which it was submitted here: the submission is counted and listed, and this one is not.
    OwnImport,
}

/// Memory of the head for a task that waits, beyond its description; an estimate, in bytes.
pub const TASK_BYTES: u64 = 192;

impl Task {
    /// Returns true if it was taken from a queue, and is in no journal here.
    pub(crate) fn is_import(&self) -> bool {
        matches!(self.sharing, Sharing::Import | Sharing::OwnImport)
    }

    /// Returns true if it was taken from a queue to which it was submitted here.
    pub(crate) fn is_own_import(&self) -> bool {
        self.sharing == Sharing::OwnImport
    }

    /// Current progress.
    pub fn progress(&self) -> &Progress {
        self.stage.progress()
    }

    /// Returns who waits for it.
    pub fn driver(&self) -> Option<DriverId> {
        self.driver
    }

    /// End of the task, if it has ended; a part of it may be dropped.
    pub(crate) fn end_mut(&mut self) -> Option<&mut TaskEnd> {
        self.stage.end_mut()
    }

    /// Moves the task on by an event.
    pub(crate) fn advance(&mut self, id: TaskId, event: Event, tally: &mut Tally) {
        self.stage.advance(id, event, tally);
        if let (true, Progress::Ended(ended)) = (self.is_own_import(), self.stage.progress()) {
            tally.leave_out(&ended.outcome);
        }
    }

    /// Returns the attempt that it is at, as it is leased.
    pub fn lease<'a>(&'a self, id: TaskId, number: u64, queued: Option<Period>, inputs: &'a [u8]) -> Lease<'a> {
        Lease {
            number,
            task: id,
            attempt: self.attempt,
            job: self.job,
            submitted_unix_nano: self.submitted_unix_nano,
            previous: self.past.as_ref().and_then(|past| past.span),
            envelope: self.envelope(),
            queued,
            inputs,
        }
    }

    /// Returns its envelope; empty once it has ended.
    pub fn envelope(&self) -> &[u8] {
        match &self.description {
            Description::Envelope(envelope) => envelope,
            Description::Shown(_) => &[],
        }
    }

    /// Returns what is shown of its description.
    pub fn shown(&self) -> EnvelopeHead<'_> {
        match &self.description {
            Description::Envelope(envelope) => Envelope::head_of(envelope).unwrap_or_default(),
            Description::Shown(shown) => shown.as_ref().map_or_else(EnvelopeHead::default, |shown| EnvelopeHead {
                name: &shown.name,
                trace_id: shown.trace_id,
            }),
        }
    }

    /// Returns what it counts for in `State::open_bytes` while it has not ended.
    pub fn open_bytes(&self) -> u64 {
        match &self.description {
            Description::Envelope(envelope) => envelope.len() as u64 + TASK_BYTES,
            Description::Shown(_) => 0,
        }
    }

    /// Returns what is shown of it as a task of a queue; none for others.
    pub(crate) fn of_queue(&self) -> Option<Cow<'_, OfQueue>> {
        if self.sharing == Sharing::Local {
            return None;
        }
        match &self.description {
            Description::Shown(shown) => shown.as_ref()?.of_queue.as_deref().map(Cow::Borrowed),
            Description::Envelope(envelope) => {
                let Envelope { policy, origin, .. } = Envelope::decode(envelope).ok()?;
                Some(Cow::Owned(OfQueue { queue: policy.queue.into(), origin, node_id: "".into() }))
            }
        }
    }

    /// Notes the node that ran a task of a queue, which has ended.
    pub(crate) fn note_node(&mut self, node_id: &str) {
        if let Description::Shown(Some(shown)) = &mut self.description
            && let Some(of_queue) = &mut shown.of_queue
        {
            of_queue.node_id = node_id.into();
        }
    }

    /// Forgets the description, but for what is shown of it.
    pub fn forget_envelope(&mut self) {
        let (shown, of_queue) = (self.shown(), self.of_queue());
        let is_shown = shown != EnvelopeHead::default() || of_queue.is_some();
        let of_queue = of_queue.map(|of_queue| Box::new(of_queue.into_owned()));
        let shown = is_shown.then(|| Box::new(Shown { name: shown.name.into(), trace_id: shown.trace_id, of_queue }));
        self.description = Description::Shown(shown);
    }

    /// Returns what it asked for, if that is more than a slot.
    pub(crate) fn demand_report(&self) -> Option<protocol::DemandReport> {
        let memory_bytes = self.limits.as_ref().map(|limits| limits.memory_bytes).filter(|&bytes| bytes > 0);
        match &self.needs {
            Some(needs) => Some(protocol::DemandReport { memory_bytes, ..needs.report() }),
            None => memory_bytes.map(|_| protocol::DemandReport { num_cpus: 1, memory_bytes, ..Default::default() }),
        }
    }
}

impl Task {
    /// Returns a task of which nothing is known but its target and its job, before it enters the table.
    pub(crate) fn plain(target: TargetIndex, job: JobId) -> Task {
        Task {
            description: Description::Shown(None),
            target,
            submitter: None,
            links: None,
            driver: None,
            tag: 0,
            job,
            submitted_unix_nano: 0,
            traces_runtime: false,
            limits: None,
            needs: None,
            is_command: false,
            extra: ExtraOptions::NONE,
            actor: Part::None,
            attempt: 0,
            must_be_alone: false,
            wants_output: false,
            at_most_once: false,
            sharing: Sharing::Local,
            key: None,
            past: None,
            stage: Stage::default(),
        }
    }

    /// Returns a task with nothing special about it.
    #[cfg(test)]
    pub(crate) fn sample(tag: u64) -> Task {
        Task { tag, ..Task::plain(TargetIndex::default(), JobId(1)) }
    }
}
