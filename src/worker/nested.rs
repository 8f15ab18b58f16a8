//! Tasks of tasks: what runs in this worker submits further tasks, and waits for them.
//!
//! The first submission opens a second connection to the head, which is a [`Driver`]'s. So tasks that submit have batches, ids
//! and PRODUCER spans as every driver has. A thread reads that connection for as long as the process lives, whether or not
//! anybody waits: ends of tasks wake those who wait for them.
//!
//! Every submission says which task made it. It gets that task's job, and its span is a child of the caller's.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::attempt::Attempts;
use super::results::Results;
use crate::driver::by_tag::ByTag;
use crate::driver::{Driver, DriverError, SubmitRequest};
use crate::fork;
use crate::hook::{Recorder, TaskHost, TaskSubmission, Waited, is_to_stop, was_told_to_stop};
use crate::propagation::Carrier;
use crate::protocol::wire::Take;
use crate::protocol::{ActorReport, AttemptResult, Finished, Lease, Wait};
use crate::stored;
use crate::task::{
    ActorRole, Failure, FunctionSpec, Input, InputSource, JobId, ModuleVersion, Outcome, TaskId, TaskSpec, WorkerId,
};

/// The submitting side of a worker. Lives as long as the process.
pub(super) struct Nested {
    session_dir: PathBuf,
    worker: WorkerId,
    recorder: Option<&'static Recorder>,
    link: Mutex<Link>,
    /// Whether a connection was ever made: most tasks submit nothing.
    has_link: AtomicBool,
    /// Something has arrived.
    changed: Condvar,
    /// The tasks that run in this process, each inside of the one before it.
    running: Mutex<Vec<Submitter>>,
    /// What runs tasks while others wait.
    runner: OnceLock<(Arc<Attempts>, Arc<Results>)>,
}

/// A task that runs here and may submit others.
#[derive(Clone)]
pub(super) struct Submitter {
    pub(super) task: TaskId,
    pub(super) attempt: u32,
    /// Whether others run beside it that have nothing to do with it.
    pub(super) is_beside: bool,
    pub(super) job: JobId,
    /// The module that it is in, with its version, if there are versions of it.
    pub(super) module: Option<(&'static str, ModuleVersion)>,
    /// The attempt's own span and baggage, for threads that have taken no context along.
    pub(super) carrier: Carrier,
}

/// The connection.
#[derive(Default)]
struct Link {
    driver: Option<Driver>,
    /// Which attempt submitted the task of a ticket.
    submitters: ByTag<(TaskId, u32)>,
    /// Why it broke. It is not made again: a worker does not outlive its head.
    failure: Option<String>,
    watchers: HashMap<u64, Watchers>,
    /// Tasks that are watched and whose wait the head was not told of yet, because they have no id yet.
    unannounced: Vec<u64>,
    /// The numbers of waits for tasks that are watched.
    announced: HashMap<u64, u64>,
    next_wait: u64,
}

type Watchers = Vec<Box<dyn FnOnce() + Send>>;

thread_local! {
    /// The task whose attempt this thread runs.
    static OWN_TASK: Cell<Option<TaskId>> = const { Cell::new(None) };
}

impl Nested {
    pub(super) fn new(session_dir: PathBuf, worker: WorkerId, recorder: Option<&'static Recorder>) -> Nested {
        let (link, running) = Default::default();
        let has_link = AtomicBool::new(false);
        Nested {
            session_dir,
            worker,
            recorder,
            link,
            has_link,
            changed: Condvar::new(),
            running,
            runner: OnceLock::new(),
        }
    }

    /// Where large values are.
    pub(super) fn values(&self) -> PathBuf {
        stored::folder(&self.session_dir)
    }

    /// Sets what runs tasks while others wait.
    pub(super) fn run_with(&self, attempts: Arc<Attempts>, results: Arc<Results>) {
        let _ = self.runner.set((attempts, results));
    }

    /// A task begins to run in this process, on this thread.
    pub(super) fn begin(&self, submitter: Submitter) {
        OWN_TASK.set(Some(submitter.task));
        lock(&self.running).push(submitter);
    }

    /// A task has returned on this thread. What it submitted is accepted, or refused, before anyone is told how it ended.
    pub(super) fn end(&self, task: TaskId) {
        OWN_TASK.set(None);
        if self.has_link.load(Acquire) {
            self.wait_until_settled();
        }
        lock(&self.running).retain(|submitter| submitter.task != task);
    }

    fn wait_until_settled(&self) {
        let mut link = lock(&self.link);
        loop {
            let is_settled = match &mut link.driver {
                None => true,
                Some(driver) => driver.send().is_err() || driver.is_settled(),
            };
            if is_settled || link.failure.is_some() {
                break;
            }
            link = self.changed.wait(link).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The connection, which is made if there is none.
    fn open<'a>(&'static self, link: &'a mut Link) -> Result<&'a mut Driver, String> {
        if fork::is_copy() {
            return Err("only the task's own process can submit tasks, and not one that it has forked".into());
        }
        if let Some(reason) = &link.failure {
            return Err(reason.clone());
        }
        if link.driver.is_none() {
            let driver = Driver::of_tasks(&self.session_dir, self.worker, self.recorder)
                .map_err(|error| format!("tasks cannot be submitted: {error}"))?;
            let stream = driver.stream().map_err(|error| format!("tasks cannot be submitted: {error}"))?;
            std::thread::Builder::new()
                .name("tracer-tasks".into())
                .spawn(move || self.read(&stream))
                .map_err(|error| format!("tasks cannot be submitted: {error}"))?;
            link.driver = Some(driver);
            self.has_link.store(true, Release);
        }
        Ok(link.driver.as_mut().expect("it was made if there was none"))
    }

    /// Takes in what the head sends.
    fn read(&self, stream: &std::os::unix::net::UnixStream) {
        loop {
            match poll(&mut [PollFd::new(stream, PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return self.fail(&error.to_string()),
            }
            let mut link = lock(&self.link);
            let Some(driver) = &mut link.driver else { return };
            // Whoever submits looks at what has arrived as well, so there may be nothing left.
            if let Err(error) = driver.receive_what_is_there() {
                drop(link);
                return self.fail(&error.to_string());
            }
            let runs = driver.take_runs();
            link.announce();
            let woken = link.take_woken();
            drop(link);
            runs.into_iter().for_each(|lease| self.run_inline(lease));
            self.changed.notify_all();
            woken.into_iter().for_each(|on_ended| on_ended());
        }
    }

    /// Runs a task while others wait, on a thread of its own: what those have on theirs, such as the current span, is not this one's.
    fn run_inline(&self, lease: Vec<u8>) {
        /// As much as the main thread usually has.
        const STACK: usize = 8 << 20;
        let Some((attempts, results)) = self.runner.get().cloned() else { return };
        let taken = Lease::take(&mut Take::new(&lease)).map(|lease| lease.number);
        let Ok(number) = taken else { return self.fail("the head sent a task that cannot be read") };
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

    /// Asks the head something. Whatever else arrives meanwhile is seen to as well.
    fn ask<T>(&'static self, ask: impl FnOnce(&mut Driver) -> Result<T, DriverError>) -> Result<T, String> {
        let mut link = lock(&self.link);
        let driver = self.open(&mut link)?;
        let answer = ask(driver);
        let runs = driver.take_runs();
        link.announce();
        let woken = link.take_woken();
        drop(link);
        runs.into_iter().for_each(|lease| self.run_inline(lease));
        self.changed.notify_all();
        woken.into_iter().for_each(|on_ended| on_ended());
        answer.map_err(|error| error.to_string())
    }

    fn fail(&self, reason: &str) {
        let mut link = lock(&self.link);
        link.failure = Some(reason.into());
        let woken: Vec<_> = link.watchers.drain().flat_map(|(_, watchers)| watchers).collect();
        drop(link);
        self.changed.notify_all();
        woken.into_iter().for_each(|on_ended| on_ended());
    }

    /// The task that submits: the one that is named, if it runs here, or the one that runs.
    fn submitter(&self, task: Option<TaskId>) -> Result<Submitter, String> {
        let running = lock(&self.running);
        let found = match task {
            Some(task) => running.iter().rev().find(|submitter| submitter.task == task),
            None if running.len() > 1 && running.iter().any(|submitter| submitter.is_beside) => {
                let reason = "several calls run in this process, and this thread is none of theirs\n\
                              (hint: submit on the thread of the call, or in its future)";
                return Err(reason.into());
            }
            None => running.last(),
        };
        match (found, task) {
            (Some(found), _) => Ok(found.clone()),
            (None, Some(task)) => Err(format!("task {task} has ended, so it cannot submit tasks any more")),
            (None, None) => Err("no task runs in this process, so none can be submitted".into()),
        }
    }
}

impl Link {
    fn wait_number(&mut self) -> u64 {
        self.next_wait += 1;
        self.next_wait
    }

    /// Tells the head of watched tasks that have got their ids.
    fn announce(&mut self) {
        for ticket in std::mem::take(&mut self.unannounced) {
            let number = self.wait_number();
            let Some(driver) = &mut self.driver else { return };
            if driver.has_finished(ticket) || !self.watchers.contains_key(&ticket) {
                continue;
            }
            let Some(id) = driver.id_of_tag(ticket) else {
                self.unannounced.push(ticket);
                continue;
            };
            // A broken connection is found by the thread that reads.
            let _ = driver.wait_begins(&Wait { number, wanted: 1, blocked: None, tasks: vec![id] });
            self.announced.insert(ticket, number);
        }
    }

    /// The watchers of tasks that have ended.
    fn take_woken(&mut self) -> Watchers {
        let Some(driver) = &self.driver else { return Vec::new() };
        if self.watchers.is_empty() {
            return Vec::new();
        }
        let ended: Vec<_> = self.watchers.keys().copied().filter(|&ticket| driver.has_finished(ticket)).collect();
        self.announced.retain(|ticket, _| !ended.contains(ticket));
        ended.into_iter().filter_map(|ticket| self.watchers.remove(&ticket)).flatten().collect()
    }
}

impl TaskHost for &'static Nested {
    fn submit(&self, submission: &TaskSubmission<'_>) -> Result<u64, String> {
        let Submitter { task, attempt, job, module, carrier: own, .. } = self.submitter(submission.submitter)?;
        let carrier = match &submission.parent {
            Some((context, baggage)) => {
                Carrier { trace_context: Some(context.clone()), baggage: (*baggage).to_owned() }
            }
            None => own,
        };
        let input = |&(argument, ticket): &(u32, u64)| {
            let task = self.task_id(ticket).ok_or("a task whose result is to be an argument was refused")?;
            Ok::<_, String>(Input { argument, source: InputSource::Task(task) })
        };
        let inputs = submission.references.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let mut link = lock(&self.link);
        let driver = self.open(&mut link)?;
        driver.set_submitter(task, job, module);
        driver.set_parent(carrier, false);
        let spec = TaskSpec::Function(FunctionSpec {
            module: submission.module,
            function: submission.function,
            arguments: submission.arguments,
            actor: submission.actor,
        });
        let name = match submission.actor {
            ActorRole::Create(options) => options.name,
            ActorRole::None | ActorRole::Call(_) => &submission.options.name,
        };
        let request = SubmitRequest { name, inputs: &inputs, ..SubmitRequest::new(spec, &submission.options) };
        let submitted = driver.submit(&request);
        let received_during_submit = driver.received_during_submit();
        if let Ok(ticket) = &submitted {
            link.submitters.insert(ticket.tag(), (task, attempt));
        }
        if received_during_submit {
            // What has come amid submissions nobody else will read.
            link.announce();
            let woken = link.take_woken();
            drop(link);
            self.changed.notify_all();
            woken.into_iter().for_each(|on_ended| on_ended());
        }
        submitted.map(|ticket| ticket.tag()).map_err(|error| error.to_string())
    }

    fn wait(&self, tickets: &[u64], wanted: usize, timeout: Option<Duration>) -> Result<Waited, String> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let wanted = wanted.min(tickets.len());
        let blocked = OWN_TASK.get().filter(|_| deadline.is_none());
        let mut link = lock(&self.link);
        let mut announced = None;
        // One that knows already may wait for what it cleans up.
        let waiter = tickets.first().and_then(|ticket| link.submitters.get(*ticket).copied());
        let waiter = waiter.filter(|&(task, attempt)| !was_told_to_stop(task, attempt));
        loop {
            if let Some(reason) = &link.failure {
                return Err(reason.clone());
            }
            let number = link.wait_number();
            let Some(driver) = &mut link.driver else { return Err("nothing was submitted in this process".into()) };
            driver.send().map_err(|error| error.to_string())?;
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let is_up = left.is_some_and(|left| left.is_zero());
            // There are at least as many ends as there are of these tasks, and counting those costs nothing.
            if is_up || driver.finished_count() >= wanted {
                let ended: Vec<_> = tickets.iter().map(|&ticket| driver.has_finished(ticket)).collect();
                if is_up || ended.iter().filter(|&&has_ended| has_ended).count() >= wanted {
                    if let (true, Some(number)) = (is_up, announced) {
                        driver.wait_ends(number).map_err(|error| error.to_string())?;
                    }
                    return Ok(Waited::Ended(ended));
                }
            }
            // The head wakes this process when it has said so.
            if waiter.is_some_and(|(task, attempt)| is_to_stop(task, attempt)) {
                if let Some(number) = announced {
                    driver.wait_ends(number).map_err(|error| error.to_string())?;
                }
                return Ok(Waited::Cancelled);
            }
            // The slot goes back as soon as all of them have ids; what was refused has ended already.
            let is_known = |&ticket: &u64| driver.id_of_tag(ticket).is_some() || driver.has_finished(ticket);
            if announced.is_none() && tickets.iter().all(is_known) {
                let tasks: Vec<_> = tickets.iter().filter(|&&ticket| !driver.has_finished(ticket)).copied().collect();
                let ended = tickets.len() - tasks.len();
                let tasks: Vec<_> = tasks.into_iter().filter_map(|ticket| driver.id_of_tag(ticket)).collect();
                let wanted = u32::try_from(wanted - ended).unwrap_or(u32::MAX);
                driver.wait_begins(&Wait { number, wanted, blocked, tasks }).map_err(|error| error.to_string())?;
                announced = Some(number);
            }
            link = match left {
                Some(left) => self.changed.wait_timeout(link, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(link).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn take(&self, ticket: u64) -> Result<Option<Outcome>, String> {
        let mut link = lock(&self.link);
        let taken = link.driver.as_mut().and_then(|driver| driver.take_finished(ticket));
        match (taken, &link.failure) {
            (Some(Finished { outcome: Outcome::Stored(stored), task, .. }), _) => {
                let driver = link.driver.as_mut().expect("it had the result");
                let folder = stored::folder(&self.session_dir);
                let loaded = stored::load(&folder, &stored).map_err(|error| error.to_string());
                let _ = driver.forget_result(task);
                loaded.map(|value| Some(Outcome::Returned(value.into_bytes())))
            }
            (Some(finished), _) => Ok(Some(finished.outcome)),
            (None, Some(reason)) => Err(reason.clone()),
            (None, None) => Ok(None),
        }
    }

    fn watch(&self, ticket: u64, on_ended: Box<dyn FnOnce() + Send>) -> Result<(), String> {
        let mut link = lock(&self.link);
        let driver = self.open(&mut link)?;
        driver.send().map_err(|error| error.to_string())?;
        if driver.has_finished(ticket) {
            drop(link);
            on_ended();
        } else {
            link.watchers.entry(ticket).or_default().push(on_ended);
            link.unannounced.push(ticket);
            link.announce();
        }
        Ok(())
    }

    fn task_id(&self, ticket: u64) -> Option<TaskId> {
        let mut link = lock(&self.link);
        loop {
            let driver = link.driver.as_mut()?;
            let _ = driver.send();
            if let Some(id) = driver.id_of_tag(ticket) {
                return Some(id);
            }
            // Refused: it has no id, and will get none.
            if driver.is_settled() || link.failure.is_some() {
                return None;
            }
            link = self.changed.wait(link).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn find_actor(&self, wanted: &str) -> Result<ActorReport, String> {
        self.ask(|driver| driver.actor_report(wanted))
    }

    fn end_actor(&self, actor: TaskId, grace: Duration) -> Result<(), String> {
        self.ask(|driver| driver.end_actor(actor, Some(grace)))
    }

    fn forget(&self, ticket: u64) {
        let mut link = lock(&self.link);
        let watchers = link.watchers.remove(&ticket).unwrap_or_default();
        let announced = link.announced.remove(&ticket);
        link.submitters.remove(ticket);
        if let Some(driver) = &mut link.driver {
            if let Some(number) = announced {
                let _ = driver.wait_ends(number);
            }
            driver.forget(ticket);
        }
        drop(link);
        watchers.into_iter().for_each(|on_ended| on_ended());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
