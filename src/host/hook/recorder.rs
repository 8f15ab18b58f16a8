//! The table that tracer lends to modules, and uses itself: the hook's, with every span recorded in the spool on the way.

#![cfg_attr(tracer_without_tracing, allow(dead_code, unreachable_code, reason = "nothing leads to spans"))]

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::lock::lock;
use tracer_core::propagation::{FLAG_SAMPLED, TraceContext, TraceParent};
use tracer_core::task::{JobId, SpanLink, TaskId, WorkerId};
use tracer_ipc::fault;
use tracer_ipc::spool::record::{OwnedValue, slice};
use tracer_ipc::spool::{Additions, Committing, Prefix, SlotIndex, SpanOpening, Spool, hooks};

use super::deliveries::{self, Deliveries, Sink};
use super::log::log;
use super::logs::LogSink;
use super::records::{read_sized, text};

/// One process's tracing: the hook's table, wrapped.
///
/// Threads: any. Lives as long as the process, because modules keep pointers to its table.
pub struct Recorder {
    /// The table that is lent. Its `data` is this recorder.
    lent: abi::Tracing,
    hook: abi::Tracing,
    /// None only in processes that have nowhere to put one; their spans do not survive them.
    spool: Option<&'static Spool>,
    /// Sinks that finished spans of other processes can be brought to.
    sinks: Vec<Sink>,
    /// The additional hooks, which get finished spans and make none.
    further: Vec<abi::Tracing>,
    /// The thread that brings spans to them, and gives back those that exporters do not take.
    deliveries: Option<&'static Deliveries>,
    /// Fingerprint of this session's hooks, which tells them from those of another.
    mark: u32,
    /// The hook's tracer for the spans that tracer itself makes.
    own_tracer: AtomicPtr<c_void>,
    /// The task that runs now, or ran last. Behind a lock, so that a span of another thread gets ids that belong together.
    running_task: Mutex<Option<RunningTask>>,
    /// True if one runs: most spans of a driver are spared the lock.
    has_running_task: AtomicBool,
    /// True if somebody commits because many spans have ended.
    is_committing: AtomicBool,
    /// Has another thread commit then.
    committer: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Reason why such a commit failed, for the next that somebody asks for.
    uncommitted: Mutex<Option<String>>,
    /// Spans that the hook has given up, as it has told.
    lost: AtomicU64,
    /// Number of them that somebody who asked for a commit was told of.
    lost_told: AtomicU64,
}

// SAFETY: the tables may be used from any thread by contract, and the pointers in them live as long as the process.
unsafe impl Send for Recorder {}
// SAFETY: as above.
unsafe impl Sync for Recorder {}

/// A tracer handle: the hook's, and the scope's name and version for the spool.
struct RecordedTracer {
    recorder: &'static Recorder,
    tracer: *mut c_void,
    scope: Vec<u8>,
    scope_version: Vec<u8>,
}

/// A span handle: the hook's, and the slot. Calls of a module for one span may overlap, those to the hook may not: hence
/// the lock, which also guards the slot.
struct RecordedSpan {
    recorder: &'static Recorder,
    slot: Option<SlotIndex>,
    is_sampled: bool,
    /// Time of its start, in nanoseconds since the Unix epoch; the flag is true if that is when it was made.
    start_unix_nano: u64,
    starts_when_made: bool,
    /// Time at which it was made, by the [coarse](monotonic_ns) monotonic clock.
    made_ns: u64,
    /// True if it was to have a slot, and there was none. Then `context` says which span it is.
    is_without_slot: bool,
    state: Mutex<SpanState>,
    /// Context to propagate. This and the fields after it are set for tracer's own spans only.
    context: TraceContext,
    /// True if attributes are kept.
    is_recording: bool,
    /// True if it is more than a context.
    is_recorded: bool,
}

#[derive(Clone, Copy)]
struct SpanState {
    span: *mut c_void,
    has_ended: bool,
}

/// The name of the instrumentation scope of tracer's own spans.
pub const SCOPE: &str = "tracer";

thread_local! {
    /// The task that runs on this thread, where several run beside each other.
    static RUNNING_HERE: Cell<Option<RunningTask>> = const { Cell::new(None) };
    /// The memory of released spans. A driver has hundreds that are open at a time, more than an allocator keeps at hand.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    static SPARES: RefCell<Vec<Box<RecordedSpan>>> = const { RefCell::new(Vec::new()) };
}

/// Number of them that a thread keeps: as many as a driver waits for to be accepted, and some.
const KEPT: usize = 1024;

/// The task that a process runs.
#[derive(Clone, Copy, Debug)]
pub struct RunningTask {
    /// The task's id.
    pub task: TaskId,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The actor that it makes, or is a method of.
    pub actor: Option<TaskId>,
    /// The job that it belongs to.
    pub job: JobId,
    /// The worker that runs it.
    pub worker: WorkerId,
    /// The machine, as spans name it.
    pub node_id: &'static str,
}

/// Description of a span that tracer starts by itself.
#[derive(Clone, Copy, Debug)]
pub struct SpanRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// One of `tracer_abi::SPAN_KIND_*`.
    pub kind: u32,
    /// The span, or another process's span, that it is a child of; none for a root.
    pub parent: Option<&'a TraceContext>,
    /// True if `parent` is in another process.
    pub is_parent_remote: bool,
    /// The W3C baggage of the parent context; empty for none.
    pub baggage: &'a str,
    /// 0 for now.
    pub start_time_unix_nano: u64,
    /// The first of the attributes that it starts with, so that a sampler sees them.
    pub prefix: AttributePrefix<'a>,
    /// Attributes that come after those of the prefix.
    pub attributes: &'a [(&'a str, Attribute<'a>)],
    /// A span that it is linked to from the start.
    pub link: Option<SpanLink>,
    /// True if this is the span of an attempt.
    pub is_attempt: bool,
    /// The request to a service that it is the span of, for hooks.
    pub request: Option<&'a abi::RunningRequest>,
}

/// Attributes that other spans of this process start with too.
#[derive(Clone, Copy)]
pub struct AttributePrefix<'a> {
    /// The promise that all spans of this process with this number have the same name and start with the same attributes: what has been made
    /// of them is used again. 0 for no promise.
    pub id: u64,
    /// Puts them one after the other. Called when what it says is not known.
    pub attributes: &'a dyn Fn(PutAttribute<'_>),
}

/// Takes the key of an attribute and its value.
pub type PutAttribute<'p> = &'p mut dyn FnMut(&str, Attribute<'_>);

impl AttributePrefix<'_> {
    /// No attributes.
    pub const NONE: AttributePrefix<'static> = AttributePrefix { id: 0, attributes: &|_| {} };
}

impl fmt::Debug for AttributePrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_list();
        (self.attributes)(&mut |key, value| {
            all.entry(&(key, value));
        });
        all.finish()
    }
}

/// An attribute's value, as tracer sets them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Attribute<'a> {
    /// A text.
    Str(&'a str),
    /// A signed integer, the only kind of integer that OpenTelemetry has.
    I64(i64),
    /// A truth value.
    Bool(bool),
}

impl From<Attribute<'_>> for OwnedValue {
    fn from(value: Attribute<'_>) -> OwnedValue {
        match value {
            Attribute::Str(text) => OwnedValue::Str(text.into()),
            Attribute::I64(number) => OwnedValue::I64(number),
            Attribute::Bool(is_so) => OwnedValue::Bool(is_so),
        }
    }
}

impl<'a> From<&'a str> for Attribute<'a> {
    fn from(value: &'a str) -> Attribute<'a> {
        Attribute::Str(value)
    }
}

impl From<i64> for Attribute<'_> {
    fn from(value: i64) -> Self {
        Attribute::I64(value)
    }
}

impl From<u64> for Attribute<'_> {
    fn from(value: u64) -> Self {
        Attribute::I64(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Attribute<'_> {
    fn from(value: u32) -> Self {
        Attribute::I64(value.into())
    }
}

/// A span that tracer itself has started. Dropping it ends it.
///
/// A thin pointer on purpose: moving the struct itself would read, in wide loads, what narrow stores have just written. Store forwarding fails for
/// that, and the load waits until the store buffer has drained, behind stores to slots of the spool that miss the cache.
pub struct ActiveSpan {
    span: NonNull<RecordedSpan>,
    /// In a build without tracing code there are no spans, and the compiler leaves out what is done with one. For benchmarks, which compare.
    #[cfg(tracer_without_tracing)]
    never: std::convert::Infallible,
}

impl Recorder {
    /// Wraps a hook's table. `further` are the tables of the hooks that get its finished spans, null for one that failed in this
    /// process: its spans reach it through another. `mark` tells the hooks of this session from those of another. During `quiet`, which is
    /// for processes that may be short-lived, exporters begin nothing: spans go to the head at once.
    ///
    /// # Safety
    ///
    /// The pointers that are not null are to tables that begin with their size, keep the contract of the ABI, and live as long as the
    /// process.
    pub unsafe fn install(
        hook: *const abi::Tracing,
        further: &[*const abi::Tracing],
        mark: u32,
        spool: Option<&'static Spool>,
        quiet: Duration,
    ) -> &'static Recorder {
        // SAFETY: promised by the caller.
        let hook: abi::Tracing = unsafe { read_sized(hook) };
        let (mut sinks, mut deliveries) = (Vec::new(), None);
        // SAFETY: promised by the caller.
        let tables = further.iter().map(|&table| (!table.is_null()).then(|| unsafe { read_sized(table) }));
        let tables: Vec<Option<abi::Tracing>> = tables.collect();
        let sink = |(index, table): (usize, &Option<abi::Tracing>)| {
            let hook = hooks::further(index);
            (hook, table.as_ref().and_then(|table| Sink::of(table, hook, abi::SINK_ALL)))
        };
        let further_sinks: Vec<_> = tables.iter().enumerate().map(sink).collect();
        if let Some(spool) = spool {
            // SAFETY: the resource lives as long as the process.
            unsafe { spool.set_resource(slice(hook.resource, hook.resource_count)) };
            let mut wanting = hooks::FILE;
            if let (Some(listen), Some(sink)) = (hook.listen, Sink::of(&hook, hooks::EXPORTERS, abi::SINK_EXPORTERS))
                // SAFETY: the hook's function with the hook's data, and a listener that lives as long as the process.
                && unsafe { listen(hook.data, deliveries::listener(spool, hooks::EXPORTERS, quiet)) } == abi::STATUS_OK
            {
                wanting = if keeps_files(&hook) { hooks::FILE | hooks::EXPORTERS } else { hooks::EXPORTERS };
                sinks.push(sink);
            }
            for (index, table) in tables.iter().enumerate() {
                let Some(table) = table else { continue };
                let listener = || deliveries::listener(spool, hooks::further(index), Duration::ZERO);
                // SAFETY: as above.
                table.listen.map(|listen| unsafe { listen(table.data, listener()) });
            }
            wanting |= further_sinks.iter().fold(0, |all, (hook, _)| all | hook);
            sinks.extend(further_sinks.iter().filter_map(|(_, sink)| *sink));
            // SAFETY: the text lives as long as the process, by contract of the ABI.
            if let Ok(path) = std::str::from_utf8(unsafe { hook.span_file.as_bytes() }) {
                spool.set_span_file(path, hook.span_file_format);
            }
            spool.set_hooks(wanting, mark);
            if wanting & hooks::FILE != 0 && !keeps_files(&hook) {
                spool.set_untold();
            }
            if wanting != hooks::FILE {
                deliveries = Deliveries::start(spool, further_sinks, mark, quiet);
            }
        }
        let lent = abi::Tracing {
            size: size_of::<abi::Tracing>(),
            data: ptr::null_mut(),
            tracer: Some(tracer),
            tracer_release: Some(tracer_release),
            span_start: Some(span_start),
            span_trace_state: hook.span_trace_state.is_some().then_some(span_trace_state as _),
            span_set_attributes: Some(span_set_attributes),
            span_add_event: Some(span_add_event),
            span_add_link: Some(span_add_link),
            span_set_status: Some(span_set_status),
            span_update_name: Some(span_update_name),
            span_end: Some(span_end),
            span_release: Some(span_release),
            commit: Some(commit),
            flush: Some(flush),
            shutdown: Some(shutdown),
            resource: hook.resource,
            resource_count: hook.resource_count,
            description: hook.description,
            // Whom the spans go to is between the host and its hooks.
            listen: None,
            sink_export: None,
            span_file: abi::Str::EMPTY,
            span_file_format: 0,
            span_end_and_release: Some(span_end_and_release),
            hand_back: None,
            // What the hook loses, the host counts.
            lost: None,
            // Log records go to the host.
            log_export: None,
        };
        let recorder = Box::leak(Box::new(Recorder {
            lent,
            hook,
            spool,
            sinks,
            further: tables.into_iter().flatten().collect(),
            deliveries,
            mark,
            own_tracer: AtomicPtr::new(ptr::null_mut()),
            running_task: Mutex::new(None),
            has_running_task: AtomicBool::new(false),
            is_committing: AtomicBool::new(false),
            committer: OnceLock::new(),
            uncommitted: Mutex::new(None),
            lost: AtomicU64::new(0),
            lost_told: AtomicU64::new(0),
        }));
        recorder.lent.data = ptr::from_mut(recorder).cast();
        let recorder: &'static Recorder = recorder;
        recorder.own_tracer.store(recorder.tracer(SCOPE, tracer_ipc::VERSION), Release);
        if let Some(spool) = spool {
            spool.set_commit(Box::leak(Box::new(move || recorder.commit_in_between())));
        }
        recorder.own_tracer.store(recorder.tracer(SCOPE, tracer_ipc::VERSION), Release);
        recorder
    }

    /// Returns the hooks that take log records.
    pub(super) fn log_sinks(&self) -> Vec<LogSink> {
        std::iter::once(&self.hook).chain(&self.further).filter_map(LogSink::of).collect()
    }

    /// Returns the table for modules.
    pub fn table(&self) -> *const abi::Tracing {
        &raw const self.lent
    }

    /// Describes the way of spans, for people to read.
    pub fn description(&self) -> String {
        text(self.hook.description)
    }

    /// Says which task runs from now on, if any, on this thread and on those that tasks have. Spans remember it, and the hook is told.
    pub fn set_running_task(&self, task: Option<RunningTask>) {
        self.set_running_here(task);
        if task.is_some() {
            *lock(&self.running_task) = task;
        }
        self.has_running_task.store(task.is_some(), Release);
    }

    /// Says which task runs on this thread from now on, if any, while others run on other threads. What threads of the tasks' own do is nobody's.
    pub fn set_running_here(&self, task: Option<RunningTask>) {
        RUNNING_HERE.set(task);
    }

    /// Returns the task that was said to run on this thread.
    pub fn running_here() -> Option<RunningTask> {
        RUNNING_HERE.try_with(Cell::get).ok().flatten()
    }

    /// Returns the task that runs.
    pub fn running_task(&self) -> Option<RunningTask> {
        let elsewhere = || self.has_running_task.load(Acquire).then(|| *lock(&self.running_task)).flatten();
        Recorder::running_here().or_else(elsewhere)
    }

    /// Starts a span of tracer's own.
    pub fn start(&'static self, request: &SpanRequest<'_>) -> ActiveSpan {
        Room::lend(request, |attributes, prefix_count| self.start_with(request, attributes, prefix_count))
    }

    /// Records a span without attributes that ends now: an INTERNAL one, of a wait that lasted so long, in nanoseconds.
    pub fn record_wait(&'static self, name: &str, parent: &TraceContext, waited_ns: u64) {
        let now = now_unix_nano();
        let span = self.start(&SpanRequest {
            name,
            kind: abi::SPAN_KIND_INTERNAL,
            parent: Some(parent),
            is_parent_remote: false,
            baggage: "",
            start_time_unix_nano: now.saturating_sub(waited_ns),
            prefix: AttributePrefix::NONE,
            attributes: &[],
            link: None,
            is_attempt: false,
            request: None,
        });
        span.end_at(now);
    }

    fn start_with(
        &'static self,
        request: &SpanRequest<'_>,
        attributes: &[abi::KeyValue],
        prefix_count: usize,
    ) -> ActiveSpan {
        let parent = request.parent.map(|parent| abi::SpanContext {
            size: size_of::<abi::SpanContext>(),
            trace_id: parent.parent.trace_id,
            span_id: parent.parent.span_id,
            trace_flags: parent.parent.flags,
            is_remote: request.is_parent_remote.into(),
            trace_state: abi::Str::new(&parent.trace_state),
        });
        let link = request.link.map(|link| abi::Link {
            size: size_of::<abi::Link>(),
            context: abi::SpanContext {
                trace_id: link.trace_id,
                span_id: link.span_id,
                trace_flags: link.trace_flags,
                is_remote: 1,
                ..abi::SpanContext::INVALID
            },
            attributes: ptr::null(),
            attribute_count: 0,
        });
        // The contract takes an array of pointers; this is one of one.
        let links = link.as_ref().map(ptr::from_ref);
        let mut start = abi::SpanStart {
            start_time_unix_nano: request.start_time_unix_nano,
            parent: parent.as_ref().map_or(ptr::null(), ptr::from_ref),
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len(),
            links: links.as_ref().map_or(ptr::null(), ptr::from_ref),
            link_count: links.iter().count(),
            baggage: abi::Str::new(request.baggage),
            prefix_id: request.prefix.id,
            prefix_count,
            request: request.request.map_or(ptr::null(), ptr::from_ref),
            ..abi::SpanStart::new(abi::Str::new(request.name), request.kind)
        };
        let mut started = abi::SpanStarted::EMPTY;
        let tracer = self.own_tracer.load(Acquire);
        // SAFETY: everything in `start` is borrowed from locals; the tracer is a RecordedTracer or null.
        let span = unsafe { self.start_recorded(tracer.cast(), &mut start, &mut started, request.is_attempt) };
        let mut span = span.unwrap_or_else(|| RecordedSpan::unrecorded(self));
        match (&request.parent, started.has_trace_state != 0) {
            (_, true) => span.context.trace_state = span.changed_trace_state(),
            (Some(parent), false) => span.context.trace_state.clone_from(&parent.trace_state),
            (None, false) => span.context.trace_state.clear(),
        }
        let context = &mut span.context.parent;
        (context.trace_id, context.span_id) = (started.trace_id, started.span_id);
        context.flags = started.trace_flags;
        span.is_recording = started.is_recording != 0;
        ActiveSpan {
            span: NonNull::from(Box::leak(span)),
            #[cfg(tracer_without_tracing)]
            never: unreachable!("this build has no spans"),
        }
    }

    /// Puts every span that has ended where a SIGKILL of this process cannot reach it: the spool has it already, and
    /// the span file gets it if the hook writes one.
    ///
    /// Log records are written then too.
    pub fn commit(&self) -> Result<(), String> {
        super::logs::write_out();
        let committed = self.commit_ended();
        let earlier = lock(&self.uncommitted).take();
        let lost = self.lost.load(Relaxed);
        let told = self.lost_told.swap(lost, Relaxed);
        let reason = match committed.err().or(earlier) {
            None if lost <= told => return Ok(()),
            reason => reason.unwrap_or_else(|| "the hook gave them up".to_owned()),
        };
        Err(match lost.saturating_sub(told) {
            0 => reason,
            lost => {
                format!("{} lost: {reason}", if lost == 1 { "1 span is".into() } else { format!("{lost} spans are") })
            }
        })
    }

    fn commit_ended(&self) -> Result<(), String> {
        self.hand_over(true, |recorder, error| {
            // SAFETY: the hook's own function with the hook's own data.
            recorder.hook.commit.map_or(abi::STATUS_NOT_DURABLE, |commit| unsafe { commit(recorder.hook.data, error) })
        })
        .map(drop)
    }

    /// Commits because many spans have ended since the last time, or because a span that starts finds no slot. One that ends while the
    /// hook commits leaves it at that.
    #[cold]
    fn commit_in_between(&self) -> Committing {
        if self.is_committing.swap(true, Acquire) {
            return Committing::Elsewhere;
        }
        let committed = self.commit_ended();
        self.is_committing.store(false, Release);
        if let Err(reason) = committed {
            *lock(&self.uncommitted) = Some(reason);
        }
        Committing::Done
    }

    /// Says how to have another thread commit when many spans have ended since the last time. Without that, whoever ends the last of them does.
    pub fn set_committer(&self, ask: Box<dyn Fn() + Send + Sync>) {
        // It is set once, by the process's role.
        let _ = self.committer.set(ask);
    }

    /// Has the spans committed of which many have ended.
    #[cold]
    fn commit_is_due(&self) {
        match self.committer.get() {
            Some(ask) => ask(),
            None => {
                self.commit_in_between();
            }
        }
    }

    /// Delivers what is queued, as far as the hook gets within `timeout`. What it did not get to stays queued.
    pub fn flush(&self, timeout: Duration) -> Result<(), String> {
        let committed = self.commit();
        if let (Some(deliveries), false) = (self.deliveries, self.further.is_empty()) {
            deliveries.give_all();
        }
        let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let status = self.hand_over(false, |recorder, error| {
            // SAFETY: the hook's own function with the hook's own data.
            recorder.hook.flush.map_or(abi::STATUS_OK, |flush| unsafe { flush(recorder.hook.data, timeout, error) })
        });
        committed.and(status.map(drop))
    }

    /// Delivers what is queued, and ends the hook's tracing. When it succeeds, no span is open and all are delivered, nothing is
    /// left for others to finish, and the spool's file is removed.
    pub fn shutdown(&self, timeout: Duration) -> Result<(), String> {
        let committed = self.commit();
        let further = self.shut_down_further(timeout);
        let outcome = committed.and(self.shut_down_first(timeout)).and(further);
        if let (Some(spool), Ok(())) = (self.spool, &outcome)
            && !spool.has_something_left()
        {
            spool.remove();
        }
        outcome
    }

    fn shut_down_first(&self, timeout: Duration) -> Result<(), String> {
        let status = self.hand_over(false, |recorder, error| {
            // SAFETY: the hook's own function with the hook's own data.
            recorder
                .hook
                .shutdown
                .map_or(abi::STATUS_OK, |shutdown| unsafe { shutdown(recorder.hook.data, millis(timeout), error) })
        });
        status.map(drop)
    }

    /// Ends the tracing of a process that is about to exit, and leaves to the head what exporters have not delivered: those that are
    /// being asked are waited for no longer than `patience`. Hooks that cannot be left so are [shut down](Self::shutdown), within `timeout`.
    pub fn hand_over_and_end(&self, patience: Duration, timeout: Duration) -> Result<(), String> {
        let (Some(spool), Some(deliveries)) = (self.spool, self.deliveries) else { return self.shutdown(timeout) };
        let committed = self.commit();
        deliveries.begin_to_leave();
        let ended = std::thread::scope(|scope| {
            let further = self.further.iter().map(|table| {
                let table = Table(table);
                scope.spawn(move || end_table(table.get(), patience, timeout))
            });
            let further: Vec<_> = further.collect();
            let first = match self.hook.hand_back {
                Some(_) => end_table(&self.hook, patience, timeout),
                None => self.shut_down_first(timeout),
            };
            further.into_iter().map(|end| end.join().unwrap_or(Ok(()))).fold(first, Result::and)
        });
        deliveries.leave();
        let outcome = committed.and(ended);
        if outcome.is_ok() && !spool.has_something_left() {
            spool.remove();
        }
        outcome
    }

    /// Gives the additional hooks what has ended, and ends them, at the same time, so that a slow one takes nothing from the others. What
    /// one of them has not got stays in the spool, for the head to bring on.
    fn shut_down_further(&self, timeout: Duration) -> Result<(), String> {
        if let (Some(deliveries), false) = (self.deliveries, self.further.is_empty()) {
            deliveries.give_all();
        }
        std::thread::scope(|scope| {
            let ends = self.further.iter().map(|table| {
                let table = Table(table);
                scope.spawn(move || shut_down(table.get(), timeout))
            });
            let ends: Vec<_> = ends.collect();
            ends.into_iter().try_for_each(|end| end.join().unwrap_or(Ok(())))
        })
    }

    /// Runs one of the hook's functions that deliver spans, and frees the slots of those delivered.
    fn hand_over(
        &self,
        is_commit: bool,
        deliver: impl FnOnce(&Recorder, &mut abi::TextBuffer) -> u32,
    ) -> Result<u32, String> {
        let batch = self.spool.map(|spool| spool.take_handed_over(is_commit));
        let mut reason = [0; 1024];
        let mut error = abi::TextBuffer::new(&mut reason);
        let status = Spool::while_delivering(|| deliver(self, &mut error));
        fault::point("after_write");
        let is_delivered = matches!(status, abi::STATUS_OK | abi::STATUS_ALREADY | abi::STATUS_LOST);
        if let (Some(spool), Some(batch)) = (self.spool, batch) {
            if is_delivered {
                spool.written(batch);
            } else {
                spool.not_written(batch);
            }
        }
        if is_commit && !matches!(status, abi::STATUS_OK | abi::STATUS_ALREADY | abi::STATUS_NOT_DURABLE) {
            self.count_lost(is_delivered);
        } else if is_commit && is_delivered && self.lost.load(Relaxed) != 0 {
            self.count_lost(true);
        }
        let filled = error.filled();
        match status {
            abi::STATUS_OK | abi::STATUS_ALREADY | abi::STATUS_NOT_DURABLE => Ok(status),
            abi::STATUS_TIMED_OUT => Err("the hook did not deliver its spans in time".into()),
            _ => Err(String::from_utf8_lossy(&reason[..filled]).into_owned()),
        }
    }

    /// Asks the hook how many spans it has given up.
    #[cold]
    fn count_lost(&self, is_committed: bool) {
        let Some(lost) = self.hook.lost else { return };
        // SAFETY: the hook's own function with the hook's own data.
        let lost = unsafe { lost(self.hook.data) };
        let before = self.lost.fetch_max(lost, Relaxed);
        if let Some(spool) = self.spool {
            spool.count_dropped(lost.saturating_sub(before), is_committed);
        }
    }

    /// Returns whether spans that are not delivered when this process ends are delivered by another.
    pub fn hands_over(&self) -> bool {
        self.has_sinks() && self.spool.is_some()
    }

    /// Returns whether spans go to exporters or additional hooks, and not to files alone.
    pub fn hands_on(&self) -> bool {
        self.deliveries.is_some()
    }

    /// Puts finished spans of programs without a hook, a request of OTLP, where the head finds them, for the exporters and additional hooks of
    /// the session.
    pub fn hand_on(&self, request: &[u8], spans: u64) -> io::Result<()> {
        self.deliveries.map_or(Ok(()), |deliveries| deliveries.hand_on(request, spans))
    }

    /// Returns whether finished spans of other processes can be brought to this one.
    pub fn has_sinks(&self) -> bool {
        !self.sinks.is_empty()
    }

    /// Brings finished spans of other processes to the hooks that want them, a request of OTLP. `hooks` are those of the session
    /// with this `mark`; if that is another, nobody here gets them. `on_done` hears once which hooks failed, as bits, the
    /// status of a failure, if there is one, and how many spans were refused by one that took the others.
    pub fn deliver(
        &self,
        request: &[u8],
        hooks: u32,
        mark: u32,
        on_done: impl FnOnce(u32, Option<u32>, u64) + Send + 'static,
    ) {
        let hooks = hooks & hooks::SINKS;
        let is_own = mark == self.mark;
        let wanted: Vec<_> = self.sinks.iter().filter(|sink| is_own && sink.hook & hooks != 0).collect();
        // A hook that failed in this process has not failed in all.
        let missing = wanted.iter().fold(hooks, |missing, sink| missing & !sink.hook);
        let status = (missing != 0).then_some(abi::STATUS_FAILED);
        if wanted.is_empty() {
            return on_done(missing, status, 0);
        }
        let done = Done { left: wanted.len(), failed: missing, status, refused: 0, on_done: Some(on_done) };
        let done = Arc::new(Mutex::new(done));
        for sink in wanted {
            let (hook, done) = (sink.hook, Arc::clone(&done));
            let one_done = move |status, refused| {
                let mut done = lock(&done);
                // Which ones it were, nobody tells: at worst, each has refused the same.
                done.refused = done.refused.max(refused);
                if status != abi::STATUS_OK {
                    done.failed |= hook;
                    done.status = Some(worse(done.status, status));
                }
                done.left -= 1;
                if done.left == 0
                    && let Some(on_done) = done.on_done.take()
                {
                    on_done(done.failed, done.status, done.refused);
                }
            };
            sink.export(request, Box::new(one_done));
        }
    }

    fn tracer(&'static self, name: &str, version: &str) -> *mut c_void {
        let scope = abi::Scope {
            size: size_of::<abi::Scope>(),
            name: abi::Str::new(name),
            version: abi::Str::new(version),
            schema_url: abi::Str::EMPTY,
            attributes: ptr::null(),
            attribute_count: 0,
        };
        // SAFETY: `data` of the lent table is this recorder, and the scope is borrowed for the call.
        unsafe { tracer(self.lent.data, &scope) }
    }

    /// Starts a span with the hook, and records it. What this host knows besides is put into `start`. None when nothing is recorded.
    ///
    /// # Safety
    ///
    /// `tracer` is null or a [`RecordedTracer`]; what `start` points to is readable.
    unsafe fn start_recorded(
        &'static self,
        tracer: *const RecordedTracer,
        start: &mut abi::SpanStart,
        started: &mut abi::SpanStarted,
        is_attempt: bool,
    ) -> Option<Box<RecordedSpan>> {
        // SAFETY: promised by the caller.
        let (tracer, span_start) = (unsafe { tracer.as_ref() }?, self.hook.span_start?);
        // The hook and the spool get the same time, and the hook a struct of the size that this host knows.
        let starts_when_made = start.start_time_unix_nano == 0;
        if starts_when_made {
            start.start_time_unix_nano = now_unix_nano();
        }
        let start_time_unix_nano = start.start_time_unix_nano;
        let running_task = self.running_task();
        let runtime = running_task.map(|running| abi::Runtime {
            size: size_of::<abi::Runtime>(),
            task_id: running.task.0,
            job_id: running.job.0,
            worker_id: running.worker.0,
            node_id: abi::Str::new(running.node_id),
            attempt: running.attempt,
            actor_id: running.actor.map_or(0, |actor| actor.0),
        });
        let mut additions = Additions::default();
        let told = additions_table(&mut additions);
        start.additions = if self.spool.is_some() { &told } else { ptr::null() };
        start.size = size_of::<abi::SpanStart>();
        start.runtime = runtime.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the hook's function with the hook's tracer; borrowed for the call.
        let span = unsafe { span_start(tracer.tracer, start, started) };
        if started.is_recording == 0 && span.is_null() {
            return None;
        }
        let changed_trace_state = match (started.has_trace_state, self.hook.span_trace_state) {
            // SAFETY: the hook's function with the hook's span, which is not released.
            (1.., Some(trace_state)) => Some(read_text(|out| unsafe { trace_state(span, out) })),
            _ => None,
        };
        let slot = self.spool.filter(|_| started.is_recording != 0).and_then(|spool| {
            // SAFETY: promised by the caller.
            let (parent, name) = unsafe { (start.parent.as_ref(), start.name.as_bytes()) };
            // SAFETY: as above.
            let attributes = unsafe { slice(start.attributes, start.attribute_count) };
            let (first, further) = match attributes.split_at_checked(start.prefix_count) {
                Some(split) if start.prefix_id != 0 => split,
                _ => (&[][..], attributes),
            };
            let opening = SpanOpening {
                trace_id: started.trace_id,
                span_id: started.span_id,
                parent_span_id: parent.map_or([0; 8], |parent| parent.span_id),
                is_parent_remote: parent.is_some_and(|parent| parent.is_remote != 0),
                trace_flags: started.trace_flags,
                // SAFETY: promised by the caller.
                trace_state: match &changed_trace_state {
                    Some(changed) => changed.as_bytes(),
                    // SAFETY: promised by the caller.
                    None => parent.map_or(&[], |parent| unsafe { parent.trace_state.as_bytes() }),
                },
                start_time_unix_nano,
                kind: start.kind,
                name,
                scope: &tracer.scope,
                scope_version: &tracer.scope_version,
                // SAFETY: as above.
                prefix: unsafe { Prefix::new(if first.is_empty() { 0 } else { start.prefix_id }, first) },
                task_id: running_task.map_or(0, |running| running.task.0),
                is_attempt,
            };
            // SAFETY: promised by the caller.
            spool.open_with(&opening, |spool, slot| unsafe {
                spool.set_attributes(slot, further);
                for &link in slice(start.links, start.link_count) {
                    spool.add_link(slot, &read_sized(link));
                }
                for &event in slice(start.events, start.event_count) {
                    spool.add_event(slot, &read_sized(event), start_time_unix_nano);
                }
                if !additions.is_empty() {
                    spool.add(slot, &additions);
                }
            })
        });
        let is_sampled = started.trace_flags & FLAG_SAMPLED != 0;
        let mut span = RecordedSpan::new(self, slot, is_sampled, span);
        (span.start_unix_nano, span.starts_when_made) = (start_time_unix_nano, starts_when_made);
        span.made_ns = monotonic_ns();
        if slot.is_none() && is_sampled && started.is_recording != 0 && self.spool.is_some() {
            span.is_without_slot = true;
            (span.context.parent.trace_id, span.context.parent.span_id) = (started.trace_id, started.span_id);
        }
        Some(span)
    }
}

/// Combines the outcomes of two hooks for the same spans: those are given up only if nobody may still take them.
fn worse(first: Option<u32>, second: u32) -> u32 {
    match first {
        Some(first) if second == abi::STATUS_REFUSED => first,
        _ => second,
    }
}

/// A table that may change threads.
struct Table<'a>(&'a abi::Tracing);

impl Table<'_> {
    fn get(&self) -> &abi::Tracing {
        self.0
    }
}

// SAFETY: the tables may be used from any thread by contract, and the pointers in them live as long as the process.
unsafe impl Send for Table<'_> {}

/// Collector of answers: calls `on_done` when the last of several hooks has said what became of some spans.
struct Done<F> {
    left: usize,
    failed: u32,
    status: Option<u32>,
    refused: u64,
    on_done: Option<F>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Ends a hook's tracing: its undelivered spans are left to the head if it allows that, after `patience`.
fn end_table(table: &abi::Tracing, patience: Duration, timeout: Duration) -> Result<(), String> {
    let Some(hand_back) = table.hand_back else { return shut_down(table, timeout) };
    call_to_end(table, |table, error| {
        // SAFETY: the hook's own function with the hook's own data; the buffer is lent for the call.
        match unsafe { hand_back(table.data, millis(patience), error) } {
            // The head brings on what was under way.
            abi::STATUS_TIMED_OUT => abi::STATUS_OK,
            status => status,
        }
    })
}

fn shut_down(table: &abi::Tracing, timeout: Duration) -> Result<(), String> {
    call_to_end(table, |table, error| {
        // SAFETY: the hook's own function with the hook's own data; the buffer is lent for the call.
        table.shutdown.map_or(abi::STATUS_OK, |shutdown| unsafe { shutdown(table.data, millis(timeout), error) })
    })
}

fn call_to_end(
    table: &abi::Tracing,
    end: impl FnOnce(&abi::Tracing, &mut abi::TextBuffer) -> u32,
) -> Result<(), String> {
    let mut reason = [0; 1024];
    let mut error = abi::TextBuffer::new(&mut reason);
    let status = end(table, &mut error);
    let filled = error.filled();
    match status {
        abi::STATUS_OK | abi::STATUS_ALREADY => Ok(()),
        abi::STATUS_TIMED_OUT => Err(format!("the hook with {} did not deliver in time", text(table.description))),
        _ => Err(String::from_utf8_lossy(&reason[..filled]).into_owned()),
    }
}

/// Returns whether a hook keeps spans on this machine's disk, besides exporters or alone.
fn keeps_files(hook: &abi::Tracing) -> bool {
    let mut reason = [0; 256];
    let mut error = abi::TextBuffer::new(&mut reason);
    // SAFETY: the hook's function with the hook's data; the buffer is lent for the call. Nothing has ended yet.
    hook.commit.is_some_and(|commit| unsafe { commit(hook.data, &mut error) } != abi::STATUS_NOT_DURABLE)
}

impl RecordedSpan {
    /// Returns one that is no more than a context, in the memory of one that this thread has released, or in new one.
    fn unrecorded(recorder: &'static Recorder) -> Box<RecordedSpan> {
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop()).ok().flatten();
        let mut span = spare.unwrap_or_else(|| RecordedSpan::empty(recorder));
        span.recorder = recorder;
        span
    }

    #[cold]
    fn empty(recorder: &'static Recorder) -> Box<RecordedSpan> {
        let state = Mutex::new(SpanState { span: ptr::null_mut(), has_ended: true });
        let parent = TraceParent { trace_id: [0; 16], span_id: [0; 8], flags: 0 };
        let context = TraceContext { parent, trace_state: String::new() };
        Box::new(RecordedSpan {
            recorder,
            slot: None,
            is_sampled: false,
            start_unix_nano: 0,
            starts_when_made: false,
            made_ns: 0,
            is_without_slot: false,
            state,
            context,
            is_recording: false,
            is_recorded: false,
        })
    }

    /// Each part is written where it stays.
    fn new(
        recorder: &'static Recorder,
        slot: Option<SlotIndex>,
        is_sampled: bool,
        handle: *mut c_void,
    ) -> Box<RecordedSpan> {
        let mut span = RecordedSpan::unrecorded(recorder);
        span.slot = slot;
        (span.is_sampled, span.is_recorded) = (is_sampled, true);
        // One that was locked when its user panicked is as good as any.
        span.state.clear_poison();
        let state = span.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        (state.span, state.has_ended) = (handle, false);
        span
    }

    /// The tracestate that the hook has given it.
    fn changed_trace_state(&mut self) -> String {
        let state = *self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        match self.recorder.hook.span_trace_state {
            // SAFETY: the hook's span, which is not released.
            Some(trace_state) if !state.span.is_null() => read_text(|out| unsafe { trace_state(state.span, out) }),
            _ => String::new(),
        }
    }

    /// Keeps the memory for another span of this thread.
    fn keep_memory(mut self: Box<RecordedSpan>) {
        // What a new one is.
        self.context.trace_state = String::new();
        (self.slot, self.is_recorded, self.is_without_slot) = (None, false, false);
        *self.state.get_mut().unwrap_or_else(PoisonError::into_inner) =
            SpanState { span: ptr::null_mut(), has_ended: true };
        // A thread that ends has nothing any more.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < KEPT {
                spares.push(self);
            }
        });
    }

    /// Does something to a span that has not ended, in the spool and with the hook.
    fn change(&self, record: impl FnOnce(&Spool, SlotIndex), tell: impl FnOnce(&abi::Tracing, *mut c_void)) {
        let state = lock(&self.state);
        self.change_alone(&state, record, tell);
    }

    /// The same, for whoever has the lock, or is the only owner.
    fn change_alone(
        &self,
        state: &SpanState,
        record: impl FnOnce(&Spool, SlotIndex),
        tell: impl FnOnce(&abi::Tracing, *mut c_void),
    ) {
        if state.has_ended {
            return;
        }
        if let (Some(spool), Some(slot)) = (self.recorder.spool, self.slot) {
            record(spool, slot);
        }
        if !state.span.is_null() {
            tell(&self.recorder.hook, state.span);
        }
    }

    /// For whoever has the lock, or is the only owner.
    ///
    /// # Safety
    ///
    /// What the attributes point to is readable.
    unsafe fn set_attributes(&self, state: &SpanState, attributes: &[abi::KeyValue]) {
        self.change_alone(
            state,
            // SAFETY: promised by the caller.
            |spool, slot| unsafe { spool.set_attributes(slot, attributes) },
            |hook, span| {
                if let Some(set) = hook.span_set_attributes {
                    // SAFETY: the hook's span, which is not released.
                    unsafe { set(span, attributes.as_ptr(), attributes.len()) };
                }
            },
        );
    }

    fn end(&self, end_time_unix_nano: u64) {
        let mut state = lock(&self.state);
        if !std::mem::replace(&mut state.has_ended, true) {
            let span_end = self.recorder.hook.span_end.filter(|_| !state.span.is_null());
            // SAFETY: the hook's span, which is not released; calls do not overlap under the lock.
            self.end_now(end_time_unix_nano, |time| unsafe { span_end.map_or((), |end| end(state.span, time)) });
        }
    }

    /// Records the end of a span that has not ended, and has `tell` tell the hook when it was.
    fn end_now(&self, end_time_unix_nano: u64, tell: impl FnOnce(u64)) {
        let end_time_unix_nano = self.time(end_time_unix_nano);
        let recorded = self.recorder.spool.zip(self.slot);
        if let Some((spool, slot)) = recorded {
            spool.end(slot, end_time_unix_nano);
        }
        if self.is_without_slot {
            return self.end_without_slot(|| tell(end_time_unix_nano));
        }
        tell(end_time_unix_nano);
        if let Some((spool, slot)) = recorded
            && spool.handed_over(slot, self.is_sampled)
        {
            self.recorder.commit_is_due();
        }
    }
}

/// A clock that was set back by less is not noticed: the coarse clock is as coarse as this.
const CLOCK_STEP_NS: u64 = 20_000_000;
/// A time that is said and is as near to the clock's is what somebody read from the clock just now.
const NOW_NS: u64 = 1_000_000_000;

impl RecordedSpan {
    /// Returns when something happens to the span, in nanoseconds since the Unix epoch: at the time that is said, or now if that is 0. When the
    /// clock was set back since the span was made, now is as long after its start as it is by a clock that is never set.
    #[inline]
    fn time(&self, said_unix_nano: u64) -> u64 {
        let time = if said_unix_nano == 0 { now_unix_nano() } else { said_unix_nano };
        match time.checked_sub(self.start_unix_nano) {
            Some(after) if said_unix_nano != 0 || !self.starts_when_made || after < CLOCK_STEP_NS / 2 => time,
            _ => self.time_by_duration(said_unix_nano, time),
        }
    }

    #[cold]
    fn time_by_duration(&self, said_unix_nano: u64, time: u64) -> u64 {
        if said_unix_nano != 0 && said_unix_nano.abs_diff(now_unix_nano()) > NOW_NS {
            // It is not the clock's, and means what it says.
            return time;
        }
        let by_duration = self.start_unix_nano.saturating_add(monotonic_ns().saturating_sub(self.made_ns));
        // One that was set forward looks like a machine that slept.
        if time.saturating_add(CLOCK_STEP_NS) < by_duration || time < self.start_unix_nano { by_duration } else { time }
    }

    #[cold]
    fn end_without_slot(&self, tell: impl FnOnce()) {
        let Some(spool) = self.recorder.spool else { return tell() };
        let TraceParent { trace_id, span_id, .. } = self.context.parent;
        spool.ends_without_slot(trace_id, span_id);
        tell();
        if spool.handed_over_without_slot() {
            self.recorder.commit_is_due();
        }
    }
}

// SAFETY: the handle is a RecordedSpan, which guards itself: functions of the lent table may be called from any thread.
unsafe impl Send for ActiveSpan {}

impl ActiveSpan {
    fn recorded(&self) -> &RecordedSpan {
        // SAFETY: it lives until this is dropped. Nobody changes more than the state, which is behind a lock.
        unsafe { self.span.as_ref() }
    }

    /// Returns the context to propagate.
    pub fn context(&self) -> &TraceContext {
        &self.recorded().context
    }

    /// Returns whether attributes are kept; when not, there is no need to work them out.
    pub fn is_recording(&self) -> bool {
        self.recorded().is_recording
    }

    /// Returns the handle to lend to a module; null when nothing is recorded.
    pub(super) fn handle(&self) -> *mut c_void {
        if self.recorded().is_recorded { self.span.as_ptr().cast() } else { ptr::null_mut() }
    }

    /// Sets attributes; the last value of a key wins. Nothing happens when the span is not recorded.
    pub fn set_attributes(&self, attributes: &[(&str, Attribute<'_>)]) {
        let span = self.recorded();
        if span.is_recorded {
            // SAFETY: borrowed for the call.
            with_key_values(attributes, |attributes| unsafe { span.set_attributes(&lock(&span.state), attributes) });
        }
    }

    /// Adds a span event, now. Nothing happens when the span is not recorded.
    pub fn add_event(&self, name: &str, attributes: &[(&str, Attribute<'_>)]) {
        if !self.recorded().is_recorded {
            return;
        }
        with_key_values(attributes, |attributes| {
            let event = abi::Event {
                size: size_of::<abi::Event>(),
                name: abi::Str::new(name),
                time_unix_nano: 0,
                attributes: attributes.as_ptr(),
                attribute_count: attributes.len(),
            };
            // SAFETY: the handle is a RecordedSpan; borrowed for the call.
            unsafe { span_add_event(self.handle(), &event) };
        });
    }

    /// Sets the status to ERROR.
    pub fn set_error(&self, description: &str) {
        // SAFETY: the handle is null or a RecordedSpan; borrowed for the call.
        unsafe { span_set_status(self.handle(), abi::SPAN_STATUS_ERROR, abi::Str::new(description)) };
    }

    /// Ends the span now.
    pub fn end(self) {
        drop(self);
    }

    /// Ends it at a time that has passed, in nanoseconds since the Unix epoch.
    pub fn end_at(self, end_time_unix_nano: u64) {
        // SAFETY: made by `start`, and not used any more.
        unsafe { release(ManuallyDrop::new(self).span.as_ptr(), end_time_unix_nano) };
    }

    /// Sets attributes, and ends the span at a time that has passed, in nanoseconds since the Unix epoch.
    pub fn end_with(mut self, attributes: &[(&str, Attribute<'_>)], end_time_unix_nano: u64) {
        // SAFETY: whoever it was lent to has given it back, so this is its only owner.
        let span = unsafe { self.span.as_mut() };
        if span.is_recorded {
            let state = *span.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: borrowed for the call.
            with_key_values(attributes, |attributes| unsafe { span.set_attributes(&state, attributes) });
        }
        self.end_at(end_time_unix_nano);
    }
}

impl Drop for ActiveSpan {
    fn drop(&mut self) {
        // SAFETY: made by `start`, and not used any more.
        unsafe { release(self.span.as_ptr(), 0) };
    }
}

/// Returns the attributes that have a key, as OpenTelemetry wants it: an empty one is none. That some have none is said once.
///
/// # Safety
///
/// The keys are readable.
#[inline]
unsafe fn with_keys(attributes: &[abi::KeyValue]) -> Cow<'_, [abi::KeyValue]> {
    if attributes.iter().all(|attribute| attribute.key.len > 0) {
        return attributes.into();
    }
    static WARNING: Once = Once::new();
    WARNING.call_once(|| {
        log("an attribute with an empty key was dropped, as are further ones\n\
             (hint: OpenTelemetry wants a key that is not empty)");
    });
    attributes.iter().filter(|attribute| attribute.key.len > 0).copied().collect()
}

/// The links of a span that starts, without their attributes that have no key.
struct LinksWithKeys<'a> {
    pointers: Vec<*const abi::Link>,
    /// Targets of the pointers.
    _links: Vec<(Box<abi::Link>, Cow<'a, [abi::KeyValue]>)>,
}

impl<'a> LinksWithKeys<'a> {
    /// Returns none if all attributes have a key, as nearly always.
    ///
    /// # Safety
    ///
    /// The links are readable, and borrowed for `'a`.
    unsafe fn of(links: &[*const abi::Link]) -> Option<LinksWithKeys<'a>> {
        // SAFETY: promised by the caller.
        let read = |&link: &*const abi::Link| unsafe {
            let link: abi::Link = read_sized(link);
            (with_keys(slice(link.attributes, link.attribute_count)), link)
        };
        if !links.iter().any(|link| matches!(read(link).0, Cow::Owned(_))) {
            return None;
        }
        let with_keys = |link| {
            let (attributes, mut link) = read(link);
            link.size = size_of::<abi::Link>();
            (link.attributes, link.attribute_count) = (attributes.as_ptr(), attributes.len());
            (Box::new(link), attributes)
        };
        let links: Vec<_> = links.iter().map(with_keys).collect();
        Some(LinksWithKeys { pointers: links.iter().map(|(link, _)| ptr::from_ref(&**link)).collect(), _links: links })
    }
}

/// Monotonic time in nanoseconds (`CLOCK_MONOTONIC_COARSE`), to the tick of the kernel: read in a fifth of the time.
fn monotonic_ns() -> u64 {
    // Not by rustix, whose own look for the vDSO ends a process that runs under valgrind.
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Number of prefixes that a thread remembers; a power of two. Each takes the place of another one now and then.
const ROOMS: usize = 8;

thread_local! {
    static ROOMS_HERE: [Cell<Option<Box<Room>>>; ROOMS] = const { [const { Cell::new(None) }; ROOMS] };
}

/// Attributes in the form of the contract: those of a prefix, which stay, and after them those of one span.
#[derive(Default)]
struct Room {
    prefix_id: u64,
    prefix_count: usize,
    /// Attributes: those of the prefix first. There may be more than are in use; the others mean nothing.
    attributes: Vec<abi::KeyValue>,
    /// Texts that those of the prefix point to. Not boxes, which may be pointed to only until they are moved.
    texts: Vec<Rc<str>>,
}

impl Room {
    /// Lends the attributes that a span starts with, and says how many of them are those of its prefix.
    fn lend<R>(request: &SpanRequest<'_>, work: impl FnOnce(&[abi::KeyValue], usize) -> R) -> R {
        let (prefix, further) = (&request.prefix, request.attributes);
        let place = prefix.id as usize % ROOMS;
        // Should the hook start another span meanwhile, that one has a room of its own, as has one on a thread that ends.
        let kept = ROOMS_HERE.try_with(|rooms| rooms[place].take()).ok().flatten();
        let mut room = kept.unwrap_or_default();
        if room.prefix_id != prefix.id || prefix.id == 0 {
            room.begin(prefix);
        }
        let count = room.prefix_count + further.len();
        if room.attributes.len() < count {
            room.attributes.resize(count, NO_KEY_VALUE);
        }
        let places = &mut room.attributes[room.prefix_count..count];
        places.iter_mut().zip(further).for_each(|(place, attribute)| put(place, attribute));
        let done = work(&room.attributes[..count], room.prefix_count);
        let _ = ROOMS_HERE.try_with(|rooms| rooms[place].set(Some(room)));
        done
    }

    #[cold]
    fn begin(&mut self, prefix: &AttributePrefix<'_>) {
        // Should it panic, nothing is remembered.
        self.prefix_id = 0;
        self.attributes.clear();
        self.texts.clear();
        let Room { attributes, texts, .. } = self;
        (prefix.attributes)(&mut |key, value| {
            let mut keep = |text: &str| {
                texts.push(text.into());
                abi::Str::new(texts.last().map_or("", |text| text))
            };
            let mut attribute = key_value(&("", value));
            attribute.key = keep(key);
            if let Attribute::Str(text) = value {
                attribute.value.as_.str_ = keep(text);
            }
            attributes.push(attribute);
        });
        (self.prefix_id, self.prefix_count) = (prefix.id, attributes.len());
    }
}

/// Lends attributes in the form of the contract. As many as spans of tracer's own have need no memory of their own.
fn with_key_values<R>(attributes: &[(&str, Attribute<'_>)], work: impl FnOnce(&[abi::KeyValue]) -> R) -> R {
    match attributes.len() {
        0 => work(&[]),
        1..=4 => work(lend(attributes, &mut [NO_KEY_VALUE; 4])),
        5..=8 => work(lend(attributes, &mut [NO_KEY_VALUE; 8])),
        9..=16 => work(lend(attributes, &mut [NO_KEY_VALUE; 16])),
        _ => work(&attributes.iter().map(key_value).collect::<Vec<_>>()),
    }
}

const NO_KEY_VALUE: abi::KeyValue = abi::KeyValue {
    key: abi::Str::EMPTY,
    value: abi::Value { tag: abi::VALUE_BOOL, as_: abi::ValueUnion { bool_: 0 } },
};

/// Fills the first places.
#[inline]
fn lend<'a>(attributes: &[(&str, Attribute<'_>)], room: &'a mut [abi::KeyValue]) -> &'a [abi::KeyValue] {
    room.iter_mut().zip(attributes).for_each(|(place, attribute)| put(place, attribute));
    &room[..attributes.len()]
}

fn key_value(attribute: &(&str, Attribute<'_>)) -> abi::KeyValue {
    let mut place = NO_KEY_VALUE;
    put(&mut place, attribute);
    place
}

/// Writes each part where it stays: what is put together elsewhere and then moved is read back before it has left the processor.
#[inline]
fn put(place: &mut abi::KeyValue, (key, value): &(&str, Attribute<'_>)) {
    place.key = abi::Str::new(key);
    let (tag, as_) = (&mut place.value.tag, &mut place.value.as_);
    match *value {
        Attribute::Str(value) => (*tag, as_.str_) = (abi::VALUE_STR, abi::Str::new(value)),
        Attribute::I64(value) => (*tag, as_.i64_) = (abi::VALUE_I64, value),
        Attribute::Bool(value) => (*tag, as_.bool_) = (abi::VALUE_BOOL, value.into()),
    }
}

/// Returns what a hook calls to tell what it adds to a span that starts.
fn additions_table(additions: &mut Additions) -> abi::SpanAdditions {
    abi::SpanAdditions {
        size: size_of::<abi::SpanAdditions>(),
        data: ptr::from_mut(additions).cast(),
        host_set_attributes: Some(host_set_attributes),
        host_add_event: Some(host_add_event),
        host_add_link: Some(host_add_link),
        host_set_status: Some(host_set_status),
        host_update_name: Some(host_update_name),
    }
}

/// # Safety
///
/// `data` is that of [`additions_table`], whose additions nobody else uses during the call.
unsafe fn with_additions(data: *mut c_void, work: impl FnOnce(&mut Additions)) {
    // SAFETY: promised by the caller.
    guard((), || work(unsafe { &mut *data.cast::<Additions>() }));
}

unsafe extern "C" fn host_set_attributes(data: *mut c_void, attributes: *const abi::KeyValue, count: usize) {
    // SAFETY: called in `span_start`, with what is borrowed for the call.
    unsafe {
        with_additions(data, |additions| {
            with_keys(slice(attributes, count)).iter().for_each(|attribute| additions.set_attribute(attribute));
        });
    }
}

unsafe extern "C" fn host_add_event(data: *mut c_void, event: *const abi::Event) {
    // SAFETY: as above.
    unsafe {
        with_additions(data, |additions| {
            let mut event: abi::Event = read_sized(event);
            let attributes = with_keys(slice(event.attributes, event.attribute_count));
            (event.attributes, event.attribute_count) = (attributes.as_ptr(), attributes.len());
            additions.add_event(&event);
        });
    }
}

unsafe extern "C" fn host_add_link(data: *mut c_void, link: *const abi::Link) {
    // SAFETY: as above.
    unsafe {
        with_additions(data, |additions| {
            let mut link: abi::Link = read_sized(link);
            let attributes = with_keys(slice(link.attributes, link.attribute_count));
            (link.attributes, link.attribute_count) = (attributes.as_ptr(), attributes.len());
            additions.add_link(&link);
        });
    }
}

unsafe extern "C" fn host_set_status(data: *mut c_void, code: u32, description: abi::Str) {
    // SAFETY: as above.
    unsafe { with_additions(data, |additions| additions.set_status(code, description.as_bytes())) };
}

unsafe extern "C" fn host_update_name(data: *mut c_void, name: abi::Str) {
    // SAFETY: as above.
    unsafe { with_additions(data, |additions| additions.update_name(name.as_bytes())) };
}

/// Lends a buffer that is large enough for any tracestate.
fn read_text(write: impl FnOnce(&mut abi::TextBuffer)) -> String {
    let mut buffer = vec![0; 8192];
    let mut out = abi::TextBuffer::new(&mut buffer);
    write(&mut out);
    let filled = out.filled();
    String::from_utf8_lossy(&buffer[..filled]).into_owned()
}

/// Runs `body`; a panic ends here, because unwinding out of an `extern "C"` function aborts the process.
fn guard<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// # Safety
///
/// `span` is null or a handle that `span_start` of the lent table returned and that is not released.
unsafe fn recorded<'a>(span: *mut c_void) -> Option<&'a RecordedSpan> {
    // SAFETY: promised by the caller.
    unsafe { span.cast::<RecordedSpan>().as_ref() }
}

// The lent table. `data`, `tracer` and `span` are what this table handed out, by contract of the ABI.

unsafe extern "C" fn tracer(data: *mut c_void, scope: *const abi::Scope) -> *mut c_void {
    guard(ptr::null_mut(), || {
        // SAFETY: `data` is the recorder, which lives as long as the process.
        let recorder: &'static Recorder = unsafe { &*data.cast::<Recorder>() };
        let Some(tracer) = recorder.hook.tracer else { return ptr::null_mut() };
        // SAFETY: the hook's function with the hook's data; the scope is borrowed for the call.
        let (tracer, scope) = unsafe { (tracer(recorder.hook.data, scope), read_sized(scope)) };
        if tracer.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: borrowed for the call.
        let (scope, scope_version) = unsafe { (scope.name.as_bytes().to_vec(), scope.version.as_bytes().to_vec()) };
        Box::into_raw(Box::new(RecordedTracer { recorder, tracer, scope, scope_version })).cast()
    })
}

unsafe extern "C" fn tracer_release(tracer: *mut c_void) {
    guard((), || {
        if tracer.is_null() {
            return;
        }
        // SAFETY: made by `tracer`, and given back once.
        let tracer = unsafe { Box::from_raw(tracer.cast::<RecordedTracer>()) };
        if let Some(release) = tracer.recorder.hook.tracer_release {
            // SAFETY: the hook's tracer, given back once.
            unsafe { release(tracer.tracer) };
        }
    });
}

unsafe extern "C" fn span_start(
    tracer: *mut c_void,
    span: *const abi::SpanStart,
    started: *mut abi::SpanStarted,
) -> *mut c_void {
    guard(ptr::null_mut(), || {
        let mut local = abi::SpanStarted::EMPTY;
        // SAFETY: made by `tracer`.
        let Some(recorder) = (unsafe { tracer.cast::<RecordedTracer>().as_ref() }).map(|tracer| tracer.recorder) else {
            return ptr::null_mut();
        };
        // SAFETY: `span` is borrowed for the call.
        let mut start = unsafe { read_sized(span) };
        // SAFETY: as above.
        let attributes = unsafe { with_keys(slice(start.attributes, start.attribute_count)) };
        (start.attributes, start.attribute_count) = (attributes.as_ptr(), attributes.len());
        // SAFETY: as above.
        let links = unsafe { LinksWithKeys::of(slice(start.links, start.link_count)) };
        if let Some(links) = &links {
            (start.links, start.link_count) = (links.pointers.as_ptr(), links.pointers.len());
        }
        // The numbers are the host's.
        (start.prefix_id, start.prefix_count) = (0, 0);
        // SAFETY: as above.
        let recorded = unsafe { recorder.start_recorded(tracer.cast(), &mut start, &mut local, false) };
        if !started.is_null() {
            // SAFETY: the caller says how large its struct is; no more than that is written, and its size stays.
            unsafe {
                let size = (*started).size.min(size_of::<abi::SpanStarted>());
                local.size = (*started).size;
                ptr::copy_nonoverlapping(ptr::from_ref(&local).cast::<u8>(), started.cast::<u8>(), size);
            }
        }
        recorded.map_or(ptr::null_mut(), |span| Box::into_raw(span).cast())
    })
}

unsafe extern "C" fn span_trace_state(span: *mut c_void, out: *mut abi::TextBuffer) {
    guard((), || {
        // SAFETY: a handle of this table.
        let Some(span) = (unsafe { recorded(span) }) else { return };
        let state = lock(&span.state);
        if let (Some(trace_state), false) = (span.recorder.hook.span_trace_state, state.span.is_null()) {
            // SAFETY: the hook's span, which is not released.
            unsafe { trace_state(state.span, out) };
        }
    });
}

unsafe extern "C" fn span_set_attributes(span: *mut c_void, attributes: *const abi::KeyValue, count: usize) {
    guard((), || {
        // SAFETY: a handle of this table; the attributes are borrowed for the call.
        let (Some(span), attributes) = (unsafe { (recorded(span), with_keys(slice(attributes, count))) }) else {
            return;
        };
        // SAFETY: as above.
        unsafe { span.set_attributes(&lock(&span.state), &attributes) };
    });
}

unsafe extern "C" fn span_add_event(span: *mut c_void, event: *const abi::Event) {
    guard((), || {
        // SAFETY: a handle of this table; the event is borrowed for the call.
        let (Some(span), mut event) = (unsafe { (recorded(span), read_sized(event)) }) else { return };
        event.size = size_of::<abi::Event>();
        event.time_unix_nano = span.time(event.time_unix_nano);
        // SAFETY: as above.
        let attributes = unsafe { with_keys(slice(event.attributes, event.attribute_count)) };
        (event.attributes, event.attribute_count) = (attributes.as_ptr(), attributes.len());
        span.change(
            // SAFETY: as above.
            |spool, slot| unsafe { spool.add_event(slot, &event, event.time_unix_nano) },
            |hook, span| {
                if let Some(add) = hook.span_add_event {
                    // SAFETY: the hook's span, which is not released.
                    unsafe { add(span, &event) };
                }
            },
        );
    });
}

unsafe extern "C" fn span_add_link(span: *mut c_void, link: *const abi::Link) {
    guard((), || {
        // SAFETY: a handle of this table; the link is borrowed for the call.
        let (Some(span), mut link) = (unsafe { (recorded(span), read_sized(link)) }) else { return };
        link.size = size_of::<abi::Link>();
        // SAFETY: as above.
        let attributes = unsafe { with_keys(slice(link.attributes, link.attribute_count)) };
        (link.attributes, link.attribute_count) = (attributes.as_ptr(), attributes.len());
        span.change(
            // SAFETY: as above.
            |spool, slot| unsafe { spool.add_link(slot, &link) },
            |hook, span| {
                if let Some(add) = hook.span_add_link {
                    // SAFETY: the hook's span, which is not released.
                    unsafe { add(span, &link) };
                }
            },
        );
    });
}

unsafe extern "C" fn span_set_status(span: *mut c_void, code: u32, description: abi::Str) {
    guard((), || {
        // SAFETY: a handle of this table; the description is borrowed for the call.
        let (Some(span), bytes) = (unsafe { (recorded(span), description.as_bytes()) }) else { return };
        span.change(
            |spool, slot| spool.set_status(slot, code, bytes),
            |hook, span| {
                if let Some(set) = hook.span_set_status {
                    // SAFETY: the hook's span, which is not released.
                    unsafe { set(span, code, description) };
                }
            },
        );
    });
}

unsafe extern "C" fn span_update_name(span: *mut c_void, name: abi::Str) {
    guard((), || {
        // SAFETY: a handle of this table; the name is borrowed for the call.
        let (Some(span), bytes) = (unsafe { (recorded(span), name.as_bytes()) }) else { return };
        span.change(
            |spool, slot| spool.update_name(slot, bytes),
            |hook, span| {
                if let Some(update) = hook.span_update_name {
                    // SAFETY: the hook's span, which is not released.
                    unsafe { update(span, name) };
                }
            },
        );
    });
}

unsafe extern "C" fn span_end(span: *mut c_void, end_time_unix_nano: u64) {
    guard((), || {
        // SAFETY: a handle of this table.
        if let Some(span) = unsafe { recorded(span) } {
            span.end(end_time_unix_nano);
        }
    });
}

unsafe extern "C" fn span_release(span: *mut c_void) {
    if !span.is_null() {
        // SAFETY: a handle of this table, given back once.
        unsafe { release(span.cast(), 0) };
    }
}

unsafe extern "C" fn span_end_and_release(span: *mut c_void, end_time_unix_nano: u64) {
    if !span.is_null() {
        // SAFETY: a handle of this table, given back once.
        unsafe { release(span.cast(), end_time_unix_nano) };
    }
}

/// Ends a span that has not ended, at this time or, if that is 0, now, and gives it back.
///
/// # Safety
///
/// `span` was made by `start_recorded`, or is an unrecorded one; nobody uses it any more.
unsafe fn release(span: *mut RecordedSpan, end_time_unix_nano: u64) {
    guard((), || {
        // SAFETY: promised by the caller.
        let mut span = unsafe { Box::from_raw(span) };
        // Nobody else has it any more, so the lock is free.
        let SpanState { span: handle, has_ended } = *span.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let hook = &span.recorder.hook;
        if has_ended {
            // SAFETY: the hook's span, given back once.
            unsafe { give_back(hook, handle) };
        } else {
            // SAFETY: as above, and it has not ended.
            span.end_now(end_time_unix_nano, |time| unsafe { end_and_give_back(hook, handle, time) });
        }
        span.keep_memory();
    });
}

/// # Safety
///
/// `span` is null or a span of the hook's, which nobody uses any more.
unsafe fn give_back(hook: &abi::Tracing, span: *mut c_void) {
    if let (Some(release), false) = (hook.span_release, span.is_null()) {
        // SAFETY: promised by the caller.
        unsafe { release(span) };
    }
}

/// # Safety
///
/// As for [`give_back`].
unsafe fn end_and_give_back(hook: &abi::Tracing, span: *mut c_void, end_time_unix_nano: u64) {
    if span.is_null() {
        return;
    }
    // SAFETY: promised by the caller.
    unsafe {
        if let Some(end_and_release) = hook.span_end_and_release {
            return end_and_release(span, end_time_unix_nano);
        }
        if let Some(span_end) = hook.span_end {
            span_end(span, end_time_unix_nano);
        }
        give_back(hook, span);
    }
}

/// # Safety
///
/// `error` is null or lent for the call.
unsafe fn delivered(error: *mut abi::TextBuffer, status: Result<u32, String>) -> u32 {
    match status {
        Ok(status) => status,
        Err(reason) => {
            // SAFETY: promised by the caller.
            if let Some(error) = unsafe { error.as_mut() } {
                // SAFETY: as above.
                unsafe { error.write(&reason) };
            }
            abi::STATUS_FAILED
        }
    }
}

unsafe extern "C" fn commit(data: *mut c_void, error: *mut abi::TextBuffer) -> u32 {
    guard(abi::STATUS_PANICKED, || {
        // SAFETY: `data` is the recorder.
        let recorder = unsafe { &*data.cast::<Recorder>() };
        let status = recorder.hand_over(true, |recorder, error| {
            // SAFETY: the hook's function with the hook's data.
            recorder.hook.commit.map_or(abi::STATUS_NOT_DURABLE, |commit| unsafe { commit(recorder.hook.data, error) })
        });
        // SAFETY: `error` is lent for the call.
        unsafe { delivered(error, status) }
    })
}

unsafe extern "C" fn flush(data: *mut c_void, timeout_ms: u64, error: *mut abi::TextBuffer) -> u32 {
    guard(abi::STATUS_PANICKED, || {
        // SAFETY: `data` is the recorder.
        let recorder = unsafe { &*data.cast::<Recorder>() };
        let status = recorder.hand_over(false, |recorder, error| {
            // SAFETY: the hook's function with the hook's data.
            recorder.hook.flush.map_or(abi::STATUS_OK, |flush| unsafe { flush(recorder.hook.data, timeout_ms, error) })
        });
        // SAFETY: `error` is lent for the call.
        unsafe { delivered(error, status) }
    })
}

unsafe extern "C" fn shutdown(_data: *mut c_void, _timeout_ms: u64, _error: *mut abi::TextBuffer) -> u32 {
    // The process's tracing is not a module's to end.
    abi::STATUS_ALREADY
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tracer_ipc::spool::record::OwnedValue;
    use tracer_ipc::spool::{SLOT_COUNT, Story};

    use super::super::own::{OwnSettings, OwnTracing};
    use super::*;

    /// Returns a recorder with the default hook's format, all of whose files are in `folder`.
    fn recorder(folder: &Path) -> &'static Recorder {
        let spans_dir = folder.join("spans");
        let settings =
            OwnSettings { spans_dir: &spans_dir, sampling_ratio: Default::default(), logs: Default::default() };
        let hook = OwnTracing::table(settings).unwrap();
        let spool: &'static Spool = Box::leak(Box::new(Spool::create(&folder.join("test.spool"), SLOT_COUNT).unwrap()));
        // SAFETY: a table that lives as long as the process.
        unsafe { Recorder::install(hook, &[], 0, Some(spool), Duration::ZERO) }
    }

    fn request(name: &str) -> SpanRequest<'_> {
        SpanRequest {
            name,
            kind: abi::SPAN_KIND_INTERNAL,
            parent: None,
            is_parent_remote: false,
            baggage: "",
            start_time_unix_nano: 0,
            attributes: &[],
            prefix: AttributePrefix::NONE,
            link: None,
            is_attempt: false,
            request: None,
        }
    }

    #[test]
    fn many_spans_are_written_before_anybody_asks_and_fill_few_slots() {
        const COUNT: usize = 10_000;
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        (0..COUNT).for_each(|_| recorder.start(&request("one of many")).end());
        let story = Story::open(&folder.path().join("test.spool")).unwrap();
        let waiting = story.spans().len();
        assert!(waiting < 1_000, "{waiting} wait for a commit");
        let path = folder.path().join(format!("spans/{}.json", std::process::id()));
        let written = || std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(written() >= COUNT - waiting);
        recorder.commit().unwrap();
        assert_eq!((written(), story.spans().len()), (COUNT, 0));
    }

    #[test]
    fn why_many_spans_could_not_be_written_is_told_to_whoever_commits_next() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        let spans_dir = folder.path().join("spans");
        std::fs::remove_dir_all(&spans_dir).unwrap();
        std::fs::write(&spans_dir, "a file").unwrap();
        (0..1_000).for_each(|_| recorder.start(&request("one of many")).end());
        std::fs::remove_file(&spans_dir).unwrap();
        let error = recorder.commit().unwrap_err();
        assert!(error.contains("is not a folder"), "{error}");
        recorder.commit().unwrap();
        let path = spans_dir.join(format!("{}.json", std::process::id()));
        assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 1_000);
    }

    /// Returns what spans say that are not released, in the order in which they were started.
    fn attributes_in(folder: &Path) -> Vec<Vec<(String, OwnedValue)>> {
        let mut spans = Story::open(&folder.join("test.spool")).unwrap().spans();
        spans.sort_by_key(|span| span.record.start_time_unix_nano);
        spans.into_iter().map(|span| span.record.attributes).collect()
    }

    #[test]
    fn a_prefix_is_asked_once_what_it_says_and_keeps_its_texts() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        let asked = Cell::new(0);
        let start = |time, id, text: String, further: &[(&str, Attribute<'_>)]| {
            let say = |put: PutAttribute<'_>| {
                asked.set(asked.get() + 1);
                put("text", Attribute::Str(&text));
                put(&format!("key of {id}"), Attribute::Bool(true));
            };
            let prefix = AttributePrefix { id, attributes: &say };
            let request = SpanRequest { start_time_unix_nano: time, prefix, attributes: further, ..request("step") };
            (recorder.start(&request), asked.take())
        };
        let (one, two) = (("one", Attribute::I64(1)), ("two", Attribute::Str("2")));
        // Two numbers that take each other's place, and a third.
        let (first, other, third) = (7, 7 + ROOMS as u64, 9);
        let open = [
            start(1, first, "a".into(), &[one, two]),
            start(2, third, "b".into(), &[]),
            start(3, first, "not asked".into(), &[two]),
            start(4, other, "c".into(), &[one]),
            start(5, first, "a".into(), &[]),
            start(6, 0, "e".into(), &[one]),
            start(7, 0, "f".into(), &[]),
            start(8, third, "not asked".into(), &[one; 20]),
        ];
        assert_eq!(open.each_ref().map(|(_, asked)| *asked), [1, 1, 0, 1, 1, 1, 1, 0]);
        let told = |text: &str, id: u64, further: &[(&str, Attribute<'_>)]| {
            let key = format!("key of {id}");
            let all = [("text", Attribute::Str(text)), (key.as_str(), Attribute::Bool(true))];
            let mut record = tracer_ipc::spool::record::SpanRecord::default();
            all.iter().chain(further).for_each(|(key, value)| record.set_attribute(key, (*value).into()));
            record.attributes
        };
        let expected = [
            told("a", first, &[one, two]),
            told("b", third, &[]),
            told("a", first, &[two]),
            told("c", other, &[one]),
            told("a", first, &[]),
            told("e", 0, &[one]),
            told("f", 0, &[]),
            told("b", third, &[one]),
        ];
        assert_eq!(attributes_in(folder.path()), expected);
        drop(open);
    }

    #[test]
    fn a_span_ends_after_it_begins_when_the_clock_was_set_back_and_what_is_said_of_its_end_holds() {
        const DAYS: u64 = 3 * 24 * 60 * 60 * 1_000_000_000;
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        let mut span = recorder.start(&request("step"));
        // As if the clock had been set back since.
        // SAFETY: nobody else has it.
        let made = unsafe { span.span.as_mut() };
        made.start_unix_nano += DAYS;
        made.made_ns -= 5_000_000_000;
        let start = made.start_unix_nano;
        let (now, five) = (now_unix_nano(), 5_000_000_000..DAYS);
        assert!(five.contains(&(made.time(0) - start)), "as long as it is by the other clock");
        assert!(five.contains(&(made.time(now) - start)), "somebody has read the clock");
        assert_eq!(made.time(1), 1, "a time of the user's own");
        assert_eq!(made.time(start + 7), start + 7);
        // One that says itself when it began may have begun before it was made.
        made.start_unix_nano = now - DAYS;
        made.starts_when_made = false;
        assert!(made.time(0) >= now);
        span.end();
    }

    #[test]
    fn attributes_without_a_key_are_dropped_wherever_a_module_sets_them() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        let tracer = recorder.tracer("a module", "");
        let pairs = [("", 1), ("a", 2), ("", 3)].map(|(key, value)| key_value(&(key, Attribute::I64(value))));
        let event = abi::Event {
            size: size_of::<abi::Event>(),
            name: abi::Str::new("event"),
            time_unix_nano: 0,
            attributes: pairs.as_ptr(),
            attribute_count: pairs.len(),
        };
        let start = abi::SpanStart {
            attributes: pairs.as_ptr(),
            attribute_count: pairs.len(),
            ..abi::SpanStart::new(abi::Str::new("step"), abi::SPAN_KIND_INTERNAL)
        };
        let mut started = abi::SpanStarted::EMPTY;
        // SAFETY: a tracer of the lent table; everything is borrowed for the calls.
        let span = unsafe { span_start(tracer, &start, &mut started) };
        // SAFETY: as above.
        unsafe {
            span_set_attributes(span, pairs.as_ptr(), pairs.len());
            span_add_event(span, &event);
        }
        let spans = Story::open(&folder.path().join("test.spool")).unwrap().spans();
        let only = vec![("a".to_owned(), OwnedValue::I64(2))];
        assert_eq!((&spans[0].record.attributes, &spans[0].record.events[0].attributes), (&only, &only));
        // SAFETY: handles of the lent table, each given back once.
        unsafe {
            span_release(span);
            tracer_release(tracer);
        }
        recorder.commit().unwrap();
        let path = folder.path().join(format!("spans/{}.json", std::process::id()));
        assert!(!std::fs::read_to_string(path).unwrap().contains("\"\":"));
    }

    #[test]
    fn a_module_that_does_not_want_to_know_the_ids_of_its_span_gets_a_span() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        let tracer = recorder.tracer("a module", "");
        let start = abi::SpanStart::new(abi::Str::new("step"), abi::SPAN_KIND_INTERNAL);
        // SAFETY: a tracer of the lent table; the rest is borrowed for the call.
        let span = unsafe { span_start(tracer, &start, ptr::null_mut()) };
        assert!(!span.is_null());
        let spans = Story::open(&folder.path().join("test.spool")).unwrap().spans();
        assert_eq!(spans[0].record.name, "step");
        // SAFETY: handles of the lent table, each given back once.
        unsafe {
            span_release(span);
            tracer_release(tracer);
        }
    }

    #[test]
    fn the_numbers_of_prefixes_that_a_module_uses_mean_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let recorder = recorder(folder.path());
        let tracer = recorder.tracer("a module", "");
        let spans = [1, 2].map(|number| {
            let attribute = key_value(&("number", Attribute::I64(number)));
            let start = abi::SpanStart {
                attributes: &attribute,
                attribute_count: 1,
                prefix_id: 7,
                prefix_count: 1,
                ..abi::SpanStart::new(abi::Str::new("step"), abi::SPAN_KIND_INTERNAL)
            };
            let mut started = abi::SpanStarted::EMPTY;
            // SAFETY: a tracer of the lent table; everything is borrowed for the call.
            unsafe { span_start(tracer, &start, &mut started) }
        });
        let story = Story::open(&folder.path().join("test.spool")).unwrap();
        let mut found: Vec<_> = story.spans().iter().map(|span| span.record.attributes.clone()).collect();
        found.sort_by_key(|attributes| format!("{attributes:?}"));
        assert_eq!(found, [1, 2].map(|number| vec![("number".to_owned(), OwnedValue::I64(number))]));
        // SAFETY: handles of the lent table, each given back once.
        unsafe {
            spans.into_iter().for_each(|span| span_release(span));
            tracer_release(tracer);
        }
    }
}
