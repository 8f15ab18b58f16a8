//! Tasks of tasks: what runs in this worker submits further tasks, and waits for them.
//!
//! Every submission says which task made it. It gets that task's job, and its span is a child of the caller's.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tracer_client::connection::by_tag::ByTag;
use tracer_client::connection::{Connection, Exchange, SubmittingTask};
use tracer_core::lock::lock;
use tracer_core::propagation::Carrier;
use tracer_core::task::{Failure, JobId, ModuleVersion, Outcome, TaskId, WorkerId};
use tracer_host::hook::{Recorder, TaskHost, TaskSubmission, Waited, is_to_stop, was_told_to_stop};
use tracer_ipc::protocol::wire::Take;
use tracer_ipc::protocol::{ActorReport, AttemptResult, Lease, Role, Wait};
use tracer_ipc::stored;

use super::attempt::Attempts;
use super::results::Results;
use super::submitting::{Submitting, end_actor, find_actor};

/// The submitting side of a worker. Lives as long as the process.
pub(super) struct Nested {
    submitting: Submitting,
    /// The attempt that submitted the task of a ticket.
    submitters: Mutex<ByTag<(TaskId, u32)>>,
    /// The numbers of waits that the head knows of for tasks that are watched.
    announced: Mutex<HashMap<u64, u64>>,
    last_wait: AtomicU64,
    /// The tasks that run in this process, each inside of the one before it.
    running: Mutex<Vec<Submitter>>,
    /// Runner of tasks while others wait.
    runner: OnceLock<(Arc<Attempts>, Arc<Results>)>,
}

/// A task that runs here and may submit others.
#[derive(Clone)]
pub(super) struct Submitter {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    /// The thread on which it began, as the system numbers it.
    pub(super) thread: i32,
    /// True if others run beside it that have nothing to do with it.
    pub(super) is_beside: bool,
    pub(super) job: JobId,
    /// The module that it is in, with its version, if there are versions of it.
    pub(super) module: Option<(&'static str, ModuleVersion)>,
    /// The attempt's own span and baggage, for threads that have taken no context along.
    pub(super) carrier: Carrier,
}

thread_local! {
    /// The task whose attempt this thread runs.
    static OWN_TASK: Cell<Option<TaskId>> = const { Cell::new(None) };
    /// The task that this thread was taken for one of, when it first submitted another.
    static ASSUMED_TASK: Cell<Option<TaskId>> = const { Cell::new(None) };
    /// Number of this thread. Asked for once: it costs a system call, and a thread runs many tasks.
    static THREAD_NUMBER: i32 = rustix::thread::gettid().as_raw_nonzero().get();
}

/// Returns the number that the system has given to this thread.
pub(super) fn thread_number() -> i32 {
    THREAD_NUMBER.with(|number| *number)
}

impl Nested {
    pub(super) fn new(session_dir: &Path, worker: WorkerId, recorder: Option<&'static Recorder>) -> Nested {
        Nested {
            submitting: Submitting::new(session_dir, Role::Tasks(worker), recorder),
            submitters: Mutex::default(),
            announced: Mutex::default(),
            last_wait: AtomicU64::new(0),
            running: Mutex::default(),
            runner: OnceLock::new(),
        }
    }

    /// Returns the folder of the session.
    pub(super) fn session_dir(&self) -> &Path {
        self.submitting.session_dir()
    }

    /// Returns where large values are.
    pub(super) fn values(&self) -> PathBuf {
        stored::folder(self.submitting.session_dir())
    }

    /// Sets what runs tasks while others wait.
    pub(super) fn run_with(&self, attempts: Arc<Attempts>, results: Arc<Results>) {
        let _ = self.runner.set((attempts, results));
    }

    /// Notes that a task begins to run in this process, on this thread.
    pub(super) fn begin(&self, submitter: Submitter) {
        OWN_TASK.set(Some(submitter.task));
        lock(&self.running).push(submitter);
    }

    /// Notes that a task has returned on this thread. What it submitted is accepted, or refused, before anyone is told how it ended.
    pub(super) fn end(&self, task: TaskId) {
        OWN_TASK.set(None);
        self.submitting.settle();
        lock(&self.running).retain(|submitter| submitter.task != task);
    }

    fn open(&'static self) -> Result<&'static Arc<Connection>, String> {
        self.submitting.open(|connection| connection.run_with(|lease| self.run_inline(lease)))
    }

    fn opened(&self) -> Result<&Arc<Connection>, String> {
        self.submitting.opened()
    }

    /// Runs a task while others wait, on a thread of its own: what those have on theirs, such as the current span, is not this one's.
    fn run_inline(&self, lease: Vec<u8>) {
        /// Size of the stack: that of the main thread usually.
        const STACK: usize = 8 << 20;
        let Some((attempts, results)) = self.runner.get().cloned() else { return };
        let taken = Lease::take(&mut Take::new(&lease)).map(|lease| lease.number);
        let Ok(number) = taken else {
            if let Ok(connection) = self.opened() {
                connection.fail("the head sent a task that cannot be read");
            }
            return;
        };
        let in_thread = Arc::clone(&results);
        let thread = std::thread::Builder::new().name("tracer-inline".into()).stack_size(STACK).spawn(move || {
            if let Ok(lease) = Lease::take(&mut Take::new(&lease)) {
                in_thread.push(&attempts.run_inline(&lease), false);
                // A broken connection is found by the main thread, when it reads again.
                let _ = in_thread.send();
            }
        });
        if let Err(error) = thread {
            let message = format!("a thread for it could not be started in the worker that waits for it: {error}");
            let outcome = Outcome::Failed(Failure::NoWorker { message });
            let started_unix_nano = tracer_core::clock::now_unix_nano();
            results.push(
                &AttemptResult { lease: number, started_unix_nano, run_ns: 0, span: None, outcome, usage: None },
                false,
            );
            let _ = results.send();
        }
    }

    /// Returns the task that submits: the one that is named, if it runs here, or the one that runs.
    fn submitter(&self, task: Option<TaskId>) -> Result<Submitter, String> {
        let running = lock(&self.running);
        let found = match task {
            Some(task) => running.iter().rev().find(|submitter| submitter.task == task),
            None if running.len() > 1 && running.iter().any(|submitter| submitter.is_beside) => {
                let reason = "several calls run in this process, and this thread is none of theirs\n\
                              (hint: submit on the thread of the call, or in its future)";
                return Err(reason.into());
            }
            None => assumed(&running),
        };
        match (found, task) {
            (Some(found), _) => Ok(found.clone()),
            (None, Some(task)) => Err(format!("task {task} has ended, so it cannot submit tasks any more")),
            (None, None) => Err("no task runs in this process, so none can be submitted".into()),
        }
    }
}

/// Returns the task that a thread belongs to of which nobody knows: the one that it was taken for before, while that runs, or the innermost one that
/// began before the thread did. The system numbers threads as they are made, so one with a lower number than the thread on which a task
/// began is none of that task's.
fn assumed(running: &[Submitter]) -> Option<&Submitter> {
    let before = ASSUMED_TASK.get();
    let own = thread_number();
    let known = running.iter().find(|submitter| Some(submitter.task) == before);
    let older = || running.iter().rev().find(|submitter| submitter.thread <= own);
    let found = known.or_else(older).or(running.first());
    ASSUMED_TASK.set(found.map(|submitter| submitter.task));
    found
}

impl Nested {
    fn wait_number(&self) -> u64 {
        self.last_wait.fetch_add(1, Relaxed) + 1
    }

    /// Tells the head of a task that is watched and has got its id; of one that was refused there is nothing to tell.
    fn announce(&self, ticket: u64) {
        let Ok(connection) = self.opened() else { return };
        let number = self.wait_number();
        connection.with(|exchange| {
            if exchange.has_finished(ticket) {
                return;
            }
            if let Some(id) = exchange.id_of_tag(ticket) {
                exchange.wait_begins(&Wait { number, wanted: 1, blocked: None, tasks: vec![id] });
                // Under the connection's lock, as its end is.
                lock(&self.announced).insert(ticket, number);
            }
        });
    }
}

impl TaskHost for &'static Nested {
    fn submit(&self, submission: &TaskSubmission<'_>) -> Result<u64, String> {
        let Submitter { task, attempt, job, module, carrier: own, .. } = self.submitter(submission.submitter)?;
        let submitting = SubmittingTask { id: task, job, module };
        let ticket = self.submitting.submit(self.open()?, submission, own, Some(submitting))?;
        lock(&self.submitters).insert(ticket, (task, attempt));
        Ok(ticket)
    }

    fn wait(&self, tickets: &[u64], wanted: usize, timeout: Option<Duration>) -> Result<Waited, String> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let wanted = wanted.min(tickets.len());
        let blocked = OWN_TASK.get().filter(|_| deadline.is_none());
        let connection = self.opened()?;
        let mut announced = None;
        // One that knows already may wait for what it cleans up.
        let waiter = tickets.first().and_then(|ticket| lock(&self.submitters).get(*ticket).copied());
        let waiter = waiter.filter(|&(task, attempt)| !was_told_to_stop(task, attempt));
        let ended = |exchange: &Exchange| -> Vec<bool> {
            tickets.iter().map(|&ticket| exchange.has_finished(ticket)).collect()
        };
        let waited = connection.wait_for(deadline, |exchange| {
            // There are at least as many ends as there are of these tasks, and counting those costs nothing.
            if exchange.finished_count() >= wanted {
                let ended = ended(exchange);
                if ended.iter().filter(|&&has_ended| has_ended).count() >= wanted {
                    return Some(Waited::Ended(ended));
                }
            }
            // The head wakes this process when it has said so.
            if waiter.is_some_and(|(task, attempt)| is_to_stop(task, attempt)) {
                if let Some(number) = announced {
                    exchange.wait_ends(number);
                }
                return Some(Waited::Cancelled);
            }
            // The slot goes back as soon as all of them have ids; what was refused has ended already.
            let is_known = |&ticket: &u64| exchange.id_of_tag(ticket).is_some() || exchange.has_finished(ticket);
            if announced.is_none() && tickets.iter().all(is_known) {
                let tasks: Vec<_> = tickets.iter().filter(|&&ticket| !exchange.has_finished(ticket)).copied().collect();
                let ended = tickets.len() - tasks.len();
                let tasks: Vec<_> = tasks.into_iter().filter_map(|ticket| exchange.id_of_tag(ticket)).collect();
                let wanted = u32::try_from(wanted - ended).unwrap_or(u32::MAX);
                let number = self.wait_number();
                exchange.wait_begins(&Wait { number, wanted, blocked, tasks });
                announced = Some(number);
            }
            None
        });
        match waited.map_err(|error| error.to_string())? {
            Some(waited) => Ok(waited),
            None => Ok(connection.with(|exchange| {
                if let Some(number) = announced {
                    exchange.wait_ends(number);
                }
                Waited::Ended(ended(exchange))
            })),
        }
    }

    fn take(&self, ticket: u64) -> Result<Option<Outcome>, String> {
        self.submitting.take(ticket)
    }

    fn watch(&self, ticket: u64, on_ended: Box<dyn FnOnce() + Send>) -> Result<(), String> {
        let nested: &'static Nested = self;
        let connection = self.open()?;
        let on_ended = Box::new(move || {
            lock(&nested.announced).remove(&ticket);
            on_ended();
        });
        connection.on_ended(ticket, on_ended).map_err(|error| error.to_string())?;
        connection.on_settled(ticket, Box::new(move || nested.announce(ticket))).map_err(|error| error.to_string())
    }

    fn task_id(&self, ticket: u64) -> Option<TaskId> {
        self.submitting.task_id(ticket)
    }

    fn find_actor(&self, wanted: &str) -> Result<ActorReport, String> {
        find_actor(self.open()?, wanted)
    }

    fn end_actor(&self, actor: TaskId, grace: Duration) -> Result<(), String> {
        end_actor(self.open()?, actor, grace)
    }

    fn forget(&self, ticket: u64) {
        let announced = lock(&self.announced).remove(&ticket);
        lock(&self.submitters).remove(ticket);
        if let Ok(connection) = self.opened() {
            connection.with(|exchange| {
                if let Some(number) = announced {
                    exchange.wait_ends(number);
                }
                exchange.forget(ticket);
            });
        }
    }
}
