//! Tasks of handlers: a replica submits tasks and waits for them, as a driver does. They are children of the span that is current where they
//! are submitted, the request's own or one below it, and go on when the request that made them has ended.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracer_client::connection::Exchange;
use tracer_core::lock::lock;
use tracer_core::propagation::Carrier;
use tracer_core::task::{Outcome, TaskId};
use tracer_host::hook::{Recorder, TaskHost, TaskSubmission, Waited};
use tracer_ipc::protocol::{ActorReport, Role};

use crate::submitting::{Submitting, end_actor, find_actor};

/// Bits of a ticket that are its number on its connection; the others say which connection that is.
const NUMBER_BITS: u32 = 48;

/// The submitting side of a replica. Lives as long as the process, and may outlive its head: with the next one it has another connection.
pub(super) struct HandlerTasks {
    session_dir: PathBuf,
    recorder: Option<&'static Recorder>,
    /// One for each head.
    heads: Mutex<Vec<Arc<Submitting>>>,
}

impl HandlerTasks {
    pub(super) fn new(session_dir: &Path, recorder: Option<&'static Recorder>) -> HandlerTasks {
        HandlerTasks { session_dir: session_dir.to_owned(), recorder, heads: Mutex::default() }
    }

    /// Returns the side that submits to the head of now, and its number; a new one if the head is another.
    fn current(&self) -> (Arc<Submitting>, u64) {
        let mut heads = lock(&self.heads);
        let has_broken = |last: &Arc<Submitting>| last.opened().is_ok_and(|connection| connection.has_broken());
        if heads.last().is_none_or(has_broken) {
            heads.push(Arc::new(Submitting::new(&self.session_dir, Role::Driver, self.recorder)));
        }
        let number = heads.len() - 1;
        (Arc::clone(&heads[number]), number as u64)
    }

    /// Returns the side that a ticket is of, and the ticket there.
    fn of(&self, ticket: u64) -> Result<(Arc<Submitting>, u64), String> {
        let heads = lock(&self.heads);
        let found = usize::try_from(ticket >> NUMBER_BITS).ok().and_then(|number| heads.get(number));
        let found = found.ok_or("nothing was submitted under this number")?;
        Ok((Arc::clone(found), ticket % (1 << NUMBER_BITS)))
    }
}

impl TaskHost for HandlerTasks {
    fn submit(&self, submission: &TaskSubmission<'_>) -> Result<u64, String> {
        let (submitting, head) = self.current();
        let connection = submitting.open(|_| ())?;
        let of_head = |&(argument, ticket): &(u32, u64)| {
            let is_its = ticket >> NUMBER_BITS == head;
            let lost = "a task whose result is to be an argument was submitted to a head that is gone";
            is_its.then_some((argument, ticket % (1 << NUMBER_BITS))).ok_or(lost)
        };
        let references = submission.references.iter().map(of_head).collect::<Result<_, _>>()?;
        let submission = TaskSubmission { references, ..submission.clone() };
        let ticket = submitting.submit(connection, &submission, Carrier::default(), None)?;
        // A handler need not wait for it.
        connection.send().map_err(|error| error.to_string())?;
        Ok(head << NUMBER_BITS | ticket)
    }

    fn wait(&self, tickets: &[u64], wanted: usize, timeout: Option<Duration>) -> Result<Waited, String> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let wanted = wanted.min(tickets.len());
        let Some(first) = tickets.first() else { return Ok(Waited::Ended(Vec::new())) };
        let (submitting, _) = self.of(*first)?;
        if tickets.iter().any(|ticket| ticket >> NUMBER_BITS != first >> NUMBER_BITS) {
            return Err("some of these tasks were submitted to a head that is gone".into());
        }
        let tickets: Vec<u64> = tickets.iter().map(|ticket| ticket % (1 << NUMBER_BITS)).collect();
        let ended = |exchange: &Exchange| -> Vec<bool> {
            tickets.iter().map(|&ticket| exchange.has_finished(ticket)).collect()
        };
        let connection = submitting.opened()?;
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
        let (submitting, ticket) = self.of(ticket)?;
        submitting.take(ticket)
    }

    fn watch(&self, ticket: u64, on_ended: Box<dyn FnOnce() + Send>) -> Result<(), String> {
        let (submitting, ticket) = self.of(ticket)?;
        submitting.opened()?.on_ended(ticket, on_ended).map_err(|error| error.to_string())
    }

    fn task_id(&self, ticket: u64) -> Option<TaskId> {
        let (submitting, ticket) = self.of(ticket).ok()?;
        submitting.task_id(ticket)
    }

    fn find_actor(&self, wanted: &str) -> Result<ActorReport, String> {
        find_actor(self.current().0.open(|_| ())?, wanted)
    }

    fn end_actor(&self, actor: TaskId, grace: Duration) -> Result<(), String> {
        end_actor(self.current().0.open(|_| ())?, actor, grace)
    }

    fn forget(&self, ticket: u64) {
        if let Ok((submitting, ticket)) = self.of(ticket)
            && let Ok(connection) = submitting.opened()
        {
            connection.with(|exchange| exchange.forget(ticket));
        }
    }
}
