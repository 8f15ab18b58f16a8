//! The connection to the head, shared by the runtime's thread and two of the link's own: one sends what requests ask for, which they queue, and
//! one reads.
//!
//! Many requests become few turns: each time the sending thread wakes up it takes all that is asked and sends the submissions in one batch.
//! The runtime's thread touches neither the socket nor the connection's lock: answers come to it as the reading thread has them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::AcqRel;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use tokio::sync::oneshot;
use tracer_client::connection::{Connection, Exchange, Follower, Origin, TaskOutput};
use tracer_client::driver::{Driver, DriverError};
use tracer_core::lock::lock;
use tracer_core::propagation::Carrier;
use tracer_core::task::{Failure, Outcome, Refusal, RefusalCode, TaskId};
use tracer_host::hook::Recorder;
use tracer_ipc::protocol::{Finished, Query, Reply, Welcome};

use super::output::Outputs;
use super::submission::Submission;

/// Requests that may wait for the thread.
const QUEUE: usize = 1024;

/// Reason why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkError {
    /// Too many requests wait for the head.
    Busy,
    /// The head is gone, and was not asked.
    Gone,
    /// The connection to the head has broken, and nobody knows whether it had taken what it was asked.
    Unknown,
    /// The head does not take the task; it says why.
    Refused(Refusal),
    /// The task cannot be submitted: what it says is wrong with it.
    Invalid(String),
}

type Answer<T> = oneshot::Sender<Result<T, LinkError>>;

enum Command {
    Submit {
        submission: Box<Submission>,
        carrier: Carrier,
        is_remote: bool,
        answer: Answer<TaskId>,
    },
    Query(Query, Answer<Reply>),
    Wait(TaskId, oneshot::Sender<()>),
    /// Submissions were accepted: their spans are committed.
    Accepted,
}

/// The runtime's side.
pub(super) struct Link {
    commands: SyncSender<Command>,
}

impl Link {
    /// Connects, runs the session's hook in this process, and starts the threads. Returns what the head says, and this process's tracing.
    /// `on_gone` is called once, when the head is gone.
    pub(super) fn start(
        session_dir: &Path,
        outputs: Arc<Outputs>,
        on_gone: impl FnOnce(String) + Send + 'static,
    ) -> Result<(Link, Welcome, Option<&'static Recorder>), DriverError> {
        let mut driver = Driver::connect_to_session(session_dir)?;
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
        let connection = driver.into_parts().connection;
        connection.read_in_thread(|reason| on_gone(reason.to_owned()))?;
        let (commands, queue) = sync_channel(QUEUE);
        let requests = Requests {
            connection,
            queue,
            outputs,
            acceptances: Arc::new(Acceptances { commands: commands.clone(), are_new: AtomicBool::new(false) }),
            waiting: Arc::default(),
        };
        std::thread::Builder::new()
            .name("tracer-requests".into())
            .spawn(move || requests.send_all())
            .map_err(DriverError::Disconnected)?;
        Ok((Link { commands }, welcome, recorder))
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
        answered.await.unwrap_or(Err(LinkError::Unknown))
    }

    /// Asks the head something.
    pub(super) async fn query(&self, query: Query) -> Result<Reply, LinkError> {
        let (answer, answered) = oneshot::channel();
        self.send(Command::Query(query, answer))?;
        answered.await.unwrap_or(Err(LinkError::Unknown))
    }

    /// Waits for the end of a task that the head knows.
    pub(super) async fn wait(&self, task: TaskId) -> Result<(), LinkError> {
        let (ended, end) = oneshot::channel();
        self.send(Command::Wait(task, ended))?;
        end.await.map_err(|_| LinkError::Unknown)
    }

    fn send(&self, command: Command) -> Result<(), LinkError> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => LinkError::Busy,
            TrySendError::Disconnected(_) => LinkError::Gone,
        })
    }
}

/// Waiters for the ends of tasks.
type Waiting = Arc<Mutex<HashMap<TaskId, Vec<oneshot::Sender<()>>>>>;

/// The side of the thread that sends.
struct Requests {
    connection: Arc<Connection>,
    queue: Receiver<Command>,
    outputs: Arc<Outputs>,
    acceptances: Arc<Acceptances>,
    waiting: Waiting,
}

impl Requests {
    /// Sends what is asked for until the head is gone, which the thread that reads says.
    fn send_all(&self) {
        while let Ok(command) = self.queue.recv() {
            if self.turn(command).is_err() {
                return;
            }
        }
    }

    fn turn(&self, first: Command) -> Result<(), DriverError> {
        self.take(first)?;
        while let Ok(command) = self.queue.try_recv() {
            self.take(command)?;
        }
        self.connection.send()?;
        if self.acceptances.are_new.swap(false, AcqRel) {
            let recorder = self.connection.with(|exchange| {
                exchange.forget_settled_ids();
                exchange.recorder()
            });
            // What cannot be written now stays in the spool, and is counted.
            let _ = recorder.map(Recorder::commit);
        }
        Ok(())
    }

    fn take(&self, command: Command) -> Result<(), DriverError> {
        match command {
            Command::Submit { submission, carrier, is_remote, answer } => {
                self.submit(&submission, &carrier, is_remote, answer)
            }
            // A client that has gone meanwhile costs the head nothing.
            Command::Query(_, answer) if answer.is_closed() => Ok(()),
            Command::Query(query, answer) => {
                self.connection.query_then(&query, move |reply| drop(answer.send(Ok(reply))))
            }
            Command::Wait(task, ended) => {
                self.wait(task, ended);
                Ok(())
            }
            Command::Accepted => Ok(()),
        }
    }

    fn submit(
        &self,
        submission: &Submission,
        carrier: &Carrier,
        is_remote: bool,
        answer: Answer<TaskId>,
    ) -> Result<(), DriverError> {
        let origin = Origin { parent: carrier, is_parent_remote: is_remote, task: None };
        let answer = Arc::new(Mutex::new(Some(answer)));
        let follower = Submitted {
            answer: Arc::clone(&answer),
            outputs: submission.wants_output.then(|| Arc::clone(&self.outputs)),
            acceptances: Arc::clone(&self.acceptances),
        };
        match submission.with_request(|request| self.connection.submit(request, &origin, Some(Box::new(follower)))) {
            Ok(_) => Ok(()),
            Err(error @ (DriverError::Disconnected(_) | DriverError::Protocol(_))) => Err(error),
            Err(error) => {
                notify(&answer, Err(LinkError::Invalid(error.to_string())));
                Ok(())
            }
        }
    }

    fn wait(&self, task: TaskId, ended: oneshot::Sender<()>) {
        let mut waiting = lock(&self.waiting);
        let is_watched = waiting.contains_key(&task);
        let waiters = waiting.entry(task).or_default();
        waiters.retain(|waiter| !waiter.is_closed());
        waiters.push(ended);
        drop(waiting);
        if !is_watched {
            let watched = Watched { task, waiting: Some(Arc::clone(&self.waiting)) };
            self.connection.with(|exchange: &mut Exchange| exchange.follow_task(task, Box::new(watched)));
        }
    }
}

/// Tells the sending thread of acceptances.
struct Acceptances {
    commands: SyncSender<Command>,
    are_new: AtomicBool,
}

impl Acceptances {
    fn notify(&self) {
        if !self.are_new.swap(true, AcqRel) {
            // Where the queue is full, the thread looks soon.
            let _ = self.commands.try_send(Command::Accepted);
        }
    }
}

/// A submission that somebody waits for to be accepted.
struct Submitted {
    answer: Arc<Mutex<Option<Answer<TaskId>>>>,
    /// Store of its output, if that is wanted.
    outputs: Option<Arc<Outputs>>,
    acceptances: Arc<Acceptances>,
}

fn notify(answer: &Mutex<Option<Answer<TaskId>>>, accepted: Result<TaskId, LinkError>) {
    if let Some(answer) = answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = answer.send(accepted);
    }
}

impl Follower for Submitted {
    fn accepted(&mut self, task: TaskId) {
        if let Some(outputs) = &self.outputs {
            outputs.begin(task);
        }
        notify(&self.answer, Ok(task));
        self.acceptances.notify();
    }

    fn output(&mut self, output: &TaskOutput) -> Option<Waker> {
        if let Some(outputs) = &self.outputs {
            outputs.push(output);
        }
        None
    }

    /// Notes that the result is nobody's here: whoever wants it asks the head.
    fn ended(self: Box<Self>, finished: Finished) -> Option<Finished> {
        if let Some(outputs) = &self.outputs {
            outputs.end(finished.task);
        }
        let refusal = match finished.outcome {
            Outcome::Failed(Failure::Refused { code, message }) => Refusal::new(code, message),
            _ => Refusal::new(RefusalCode::Other, "it was not accepted"),
        };
        notify(&self.answer, Err(LinkError::Refused(refusal)));
        None
    }
}

/// A task whose end somebody waits for.
struct Watched {
    task: TaskId,
    /// None when it has ended.
    waiting: Option<Waiting>,
}

impl Follower for Watched {
    fn ended(mut self: Box<Self>, _: Finished) -> Option<Finished> {
        let waiters = self.waiting.take().and_then(|waiting| lock(&waiting).remove(&self.task));
        for waiter in waiters.into_iter().flatten() {
            let _ = waiter.send(());
        }
        None
    }
}

impl Drop for Watched {
    /// Notes that the connection is broken: nobody waits for longer.
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            lock(waiting).remove(&self.task);
        }
    }
}
