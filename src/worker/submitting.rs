//! Submission of tasks by what runs in a process of the head's: tasks of a worker, and handlers of a replica.
//!
//! The first submission opens a connection to the head of its own, with batches, ids and PRODUCER spans as every driver has. A thread reads
//! that connection for as long as the process lives, so that futures and threads that wait are woken.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tracer_client::connection::{Connection, Exchange, Origin, SubmittingTask};
use tracer_client::driver::{DriverError, SubmitRequest};
use tracer_core::lock::lock;
use tracer_core::propagation::Carrier;
use tracer_core::task::{ActorRole, FunctionSpec, Input, InputSource, Outcome, TaskId, TaskSpec};
use tracer_host::hook::{Recorder, TaskSubmission};
use tracer_ipc::fork;
use tracer_ipc::protocol::{ActorReport, Finished, Role};

/// Connection over which a process submits, made by the first submission. It is not made again when it breaks: the process does not outlive
/// its head.
pub(super) struct Submitting {
    session_dir: PathBuf,
    role: Role,
    recorder: Option<&'static Recorder>,
    connection: OnceLock<Arc<Connection>>,
    /// Held while it is made.
    opening: Mutex<()>,
}

impl Submitting {
    pub(super) fn new(session_dir: &Path, role: Role, recorder: Option<&'static Recorder>) -> Submitting {
        let session_dir = session_dir.to_owned();
        Submitting { session_dir, role, recorder, connection: OnceLock::new(), opening: Mutex::default() }
    }

    pub(super) fn session_dir(&self) -> &Path {
        &self.session_dir
    }

    /// Returns the connection, which is made if there is none; `set_up` is called before anything is read from it.
    pub(super) fn open(&self, set_up: impl FnOnce(&Connection)) -> Result<&Arc<Connection>, String> {
        if fork::is_copy() {
            return Err(
                "only the process that tracer has started can submit tasks, and not one that it has forked".into()
            );
        }
        let _opening = match self.connection.get() {
            Some(connection) => return Ok(connection),
            None => lock(&self.opening),
        };
        if let Some(connection) = self.connection.get() {
            return Ok(connection);
        }
        let connect = || {
            let connection = Arc::new(Connection::connect(&self.session_dir, self.role)?);
            connection.with(|exchange| exchange.set_recorder(self.recorder));
            set_up(&connection);
            connection.read_in_thread(|_| ())?;
            Ok::<_, DriverError>(connection)
        };
        let connection = connect().map_err(|error| format!("tasks cannot be submitted: {error}"))?;
        Ok(self.connection.get_or_init(|| connection))
    }

    /// Returns the connection, if something was submitted.
    pub(super) fn opened(&self) -> Result<&Arc<Connection>, String> {
        self.connection.get().ok_or_else(|| "nothing was submitted in this process".into())
    }

    /// Submits a task as a child of the span that is current where it is submitted, or of `own` where none is. Returns its ticket.
    pub(super) fn submit(
        &self,
        connection: &Connection,
        submission: &TaskSubmission<'_>,
        own: Carrier,
        task: Option<SubmittingTask>,
    ) -> Result<u64, String> {
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
        let origin = Origin { parent: &carrier, is_parent_remote: false, task };
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
        let ticket = connection.submit(&request, &origin, None).map_err(|error| error.to_string())?;
        Ok(ticket.tag())
    }

    /// Takes the outcome of a task that has ended, once; a large result is read from its file.
    pub(super) fn take(&self, ticket: u64) -> Result<Option<Outcome>, String> {
        let connection = self.opened()?;
        match connection.look_now(|exchange| exchange.take_finished(ticket)).map_err(|error| error.to_string())? {
            Some(Finished { outcome: Outcome::Stored(stored), task, .. }) => {
                let loaded = connection.load(&stored).map_err(|error| error.to_string());
                connection.with(|exchange| exchange.forget_result(task));
                loaded.map(|value| Some(Outcome::Returned(value.into_bytes())))
            }
            finished => Ok(finished.map(|finished| finished.outcome)),
        }
    }

    /// Waits until a task is accepted, and returns its id; none if it was refused.
    pub(super) fn task_id(&self, ticket: u64) -> Option<TaskId> {
        let look = |exchange: &mut Exchange| match exchange.id_of_tag(ticket) {
            Some(id) => Some(Some(id)),
            // Refused: it has no id, and will get none.
            None => exchange.is_settled().then_some(None),
        };
        self.connection.get()?.wait_for(None, look).ok().flatten().flatten()
    }

    /// Waits until all that was submitted is accepted or refused.
    pub(super) fn settle(&self) {
        if let Some(connection) = self.connection.get() {
            // A broken connection settles nothing any more.
            let _ = connection.wait_for(None, |exchange| exchange.is_settled().then_some(()));
        }
    }
}

/// Asks the head for an actor by its name or its id.
pub(super) fn find_actor(connection: &Connection, wanted: &str) -> Result<ActorReport, String> {
    connection.actor_report(wanted).map_err(|error| error.to_string())
}

/// Ends an actor.
pub(super) fn end_actor(connection: &Connection, actor: TaskId, grace: Duration) -> Result<(), String> {
    connection.end_actor(actor, Some(grace)).map_err(|error| error.to_string())
}
