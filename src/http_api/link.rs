//! The connection to the head: a driver like any other, on a thread of its own, which the runtime's thread asks through a queue.
//!
//! Many requests become few turns: each time the thread wakes up it takes all that is asked, sends the submissions in one batch, and
//! takes in all that has arrived.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tokio::sync::oneshot;

use super::output::Outputs;
use super::submission::Submission;
use crate::driver::{Driver, DriverError};
use crate::hook::Recorder;
use crate::propagation::Carrier;
use crate::protocol::{Query, Reply, Welcome};
use crate::task::{Failure, Outcome, Refusal, RefusalCode, TaskId};

/// Requests that may wait for the thread.
const QUEUE: usize = 1024;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkError {
    /// Too many requests wait for the head.
    Busy,
    /// The connection to the head is broken.
    Gone,
    /// The head does not take the task; it says why.
    Refused(Refusal),
    /// The task cannot be submitted: what it says is wrong with it.
    Invalid(String),
}

type Answer<T> = oneshot::Sender<Result<T, LinkError>>;

enum Command {
    Submit { submission: Box<Submission>, carrier: Carrier, is_remote: bool, answer: Answer<TaskId> },
    Query(Query, Answer<Reply>),
    Wait(TaskId, oneshot::Sender<()>),
}

/// The runtime's side.
pub(super) struct Link {
    commands: SyncSender<Command>,
    bell: Arc<OwnedFd>,
}

impl Link {
    /// Connects, runs the session's hook in this process, and starts the thread. Returns what the head says, and this process's tracing.
    /// `on_gone` is called once, when the head is gone.
    pub(super) fn start(
        session_dir: &Path,
        outputs: Arc<Outputs>,
        on_gone: impl FnOnce(String) + Send + 'static,
    ) -> Result<(Link, Welcome, Option<&'static Recorder>), DriverError> {
        let mut driver = Driver::of_service(session_dir)?;
        let failure = driver.start_tracing().map(|failure| {
            format!("the hook failed in the process of the HTTP API, whose spans tracer writes itself: {failure}")
        });
        let further = driver.further_failures().iter().map(|failure| {
            format!(
                "an additional hook failed in the process of the HTTP API; it gets its spans through another process: {failure}"
            )
        });
        let failures: Vec<_> = failure.into_iter().chain(further).collect();
        failures.iter().for_each(|failure| eprintln!("tracer: {failure}"));
        if !failures.is_empty() {
            driver.query(&Query::HttpTracing { pid: std::process::id(), failures })?;
        }
        let (welcome, recorder) = (driver.welcome().clone(), driver.recorder());
        let (commands, queue) = sync_channel(QUEUE);
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| DriverError::Disconnected(error.into()))?;
        let bell = Arc::new(bell);
        let worker = Thread {
            driver,
            queue,
            bell: Arc::clone(&bell),
            outputs,
            submitted: Vec::new(),
            live: HashSet::new(),
            waiting: HashMap::new(),
        };
        std::thread::Builder::new()
            .name("tracer-link".into())
            .spawn(move || on_gone(worker.run().to_string()))
            .map_err(DriverError::Disconnected)?;
        Ok((Link { commands, bell }, welcome, recorder))
    }

    /// Submits a task as a child of `carrier`'s span, which is of another process if `is_remote`.
    pub(super) async fn submit(
        &self,
        submission: Submission,
        carrier: Carrier,
        is_remote: bool,
    ) -> Result<TaskId, LinkError> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Submit { submission: Box::new(submission), carrier, is_remote, answer })?;
        answered.await.unwrap_or(Err(LinkError::Gone))
    }

    /// Asks the head something.
    pub(super) async fn query(&self, query: Query) -> Result<Reply, LinkError> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Query(query, answer))?;
        answered.await.unwrap_or(Err(LinkError::Gone))
    }

    /// Waits for the end of a task that the head knows.
    pub(super) async fn wait(&self, task: TaskId) -> Result<(), LinkError> {
        let (ended, end) = oneshot::channel();
        self.send(Command::Wait(task, ended))?;
        end.await.map_err(|_| LinkError::Gone)
    }

    fn send(&self, command: Command) -> Result<(), LinkError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => LinkError::Busy,
            TrySendError::Disconnected(_) => LinkError::Gone,
        })?;
        // It fails only when it has rung so often that it need not ring again.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// The thread's side.
struct Thread {
    driver: Driver,
    queue: Receiver<Command>,
    bell: Arc<OwnedFd>,
    outputs: Arc<Outputs>,
    /// Submissions that are not accepted yet, in their order.
    submitted: Vec<Submitted>,
    /// Tasks whose end the head will tell.
    live: HashSet<TaskId>,
    /// Who waits for which.
    waiting: HashMap<TaskId, Vec<oneshot::Sender<()>>>,
}

struct Submitted {
    tag: u64,
    wants_output: bool,
    answer: Answer<TaskId>,
}

impl Thread {
    /// Works until the head is gone, and says why.
    fn run(mut self) -> DriverError {
        loop {
            if let Err(error) = self.turn() {
                return error;
            }
        }
    }

    fn turn(&mut self) -> Result<(), DriverError> {
        {
            let mut wanted =
                [PollFd::new(&self.driver, PollFlags::IN), PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
            // Interrupted or not, it is looked at what there is.
            let _ = poll(&mut wanted, None);
        }
        let _ = rustix::io::read(&*self.bell, &mut [0; 8]);
        while let Ok(command) = self.queue.try_recv() {
            self.take(command)?;
        }
        self.driver.send()?;
        self.driver.receive_what_is_there()?;
        self.answer_submissions();
        self.take_ends_and_output();
        Ok(())
    }

    fn take(&mut self, command: Command) -> Result<(), DriverError> {
        match command {
            Command::Submit { submission, carrier, is_remote, answer } => {
                self.driver.set_parent(carrier, is_remote);
                match submission.with_request(|request| self.driver.submit(request)) {
                    Ok(task) => {
                        let wants_output = submission.wants_output;
                        self.submitted.push(Submitted { tag: task.tag(), wants_output, answer });
                    }
                    Err(error @ (DriverError::Disconnected(_) | DriverError::Protocol(_))) => return Err(error),
                    Err(error) => drop(answer.send(Err(LinkError::Invalid(error.to_string())))),
                }
            }
            Command::Query(query, answer) => {
                // A client that has gone meanwhile costs the head nothing.
                if !answer.is_closed() {
                    let reply = self.driver.query(&query)?;
                    let _ = answer.send(Ok(reply));
                }
            }
            Command::Wait(task, ended) => {
                let waiting = self.waiting.entry(task).or_default();
                waiting.retain(|waiting| !waiting.is_closed());
                waiting.push(ended);
                if self.live.insert(task) {
                    self.driver.watch(task)?;
                }
            }
        }
        Ok(())
    }

    fn answer_submissions(&mut self) {
        if self.submitted.is_empty() {
            return;
        }
        for Submitted { tag, wants_output, answer } in std::mem::take(&mut self.submitted) {
            if let Some(task) = self.driver.id_of_tag(tag) {
                self.live.insert(task);
                if wants_output {
                    self.outputs.begin(task);
                }
                let _ = answer.send(Ok(task));
            } else if self.driver.has_finished(tag) {
                let refusal = match self.driver.take_finished(tag).map(|finished| finished.outcome) {
                    Some(Outcome::Failed(Failure::Refused { code, message })) => Refusal::new(code, message),
                    _ => Refusal::new(RefusalCode::Other, "it was not accepted"),
                };
                let _ = answer.send(Err(LinkError::Refused(refusal)));
            } else {
                self.submitted.push(Submitted { tag, wants_output, answer });
            }
        }
        self.driver.forget_ids_before(self.submitted.first().map(|submitted| submitted.tag));
        if let Some(recorder) = self.driver.recorder() {
            // What cannot be written now stays in the spool, and is counted.
            let _ = recorder.commit();
        }
    }

    fn take_ends_and_output(&mut self) {
        for output in self.driver.take_outputs() {
            self.outputs.push(&output);
        }
        // Nothing is read in between: an end never comes before its submission was answered above.
        while let Some(finished) = self.driver.pop_finished() {
            self.outputs.end(finished.task);
            self.live.remove(&finished.task);
            for waiting in self.waiting.remove(&finished.task).into_iter().flatten() {
                let _ = waiting.send(());
            }
        }
    }
}
