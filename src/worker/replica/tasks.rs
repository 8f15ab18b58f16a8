//! Tasks of handlers: a replica submits tasks and waits for them, as a driver does. They are children of the span that is current where they
//! are submitted, the request's own or one below it, and go on when the request that made them has ended.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::{Connection, Exchange};
use crate::hook::{Recorder, TaskHost, TaskSubmission, Waited};
use crate::propagation::Carrier;
use crate::protocol::{ActorReport, Role};
use crate::task::{Outcome, TaskId};
use crate::worker::submitting::{Submitting, end_actor, find_actor};

/// The submitting side of a replica. Lives as long as the process.
pub(super) struct HandlerTasks {
    submitting: Submitting,
}

impl HandlerTasks {
    pub(super) fn new(session_dir: &Path, recorder: Option<&'static Recorder>) -> HandlerTasks {
        HandlerTasks { submitting: Submitting::new(session_dir, Role::Driver, recorder) }
    }

    fn open(&self) -> Result<&Arc<Connection>, String> {
        self.submitting.open(|_| ())
    }
}

impl TaskHost for HandlerTasks {
    fn submit(&self, submission: &TaskSubmission<'_>) -> Result<u64, String> {
        let connection = self.open()?;
        let ticket = self.submitting.submit(connection, submission, Carrier::default(), None)?;
        // A handler need not wait for it.
        connection.send().map_err(|error| error.to_string())?;
        Ok(ticket)
    }

    fn wait(&self, tickets: &[u64], wanted: usize, timeout: Option<Duration>) -> Result<Waited, String> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let wanted = wanted.min(tickets.len());
        let ended = |exchange: &Exchange| -> Vec<bool> {
            tickets.iter().map(|&ticket| exchange.has_finished(ticket)).collect()
        };
        let connection = self.submitting.opened()?;
        let waited = connection.wait_for(deadline, |exchange| {
            let ended = ended(exchange);
            (ended.iter().filter(|&&has_ended| has_ended).count() >= wanted).then_some(ended)
        });
        let ended = match waited.map_err(|error| error.to_string())? {
            Some(ended) => ended,
            None => connection.with(|exchange| ended(exchange)),
        };
        Ok(Waited::Ended(ended))
    }

    fn take(&self, ticket: u64) -> Result<Option<Outcome>, String> {
        self.submitting.take(ticket)
    }

    fn watch(&self, ticket: u64, on_ended: Box<dyn FnOnce() + Send>) -> Result<(), String> {
        self.open()?.on_ended(ticket, on_ended).map_err(|error| error.to_string())
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
        if let Ok(connection) = self.submitting.opened() {
            connection.with(|exchange| exchange.forget(ticket));
        }
    }
}
