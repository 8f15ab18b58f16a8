//! Modules of tasks that have come over a queue: their origin is another machine, which may have another build of them, or be the only one that has them.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracer_core::hex::hex;
use tracer_core::lock::lock;
use tracer_core::names;
use tracer_core::task::{ActorRole, Envelope, Failure, FunctionSpec, JobId, ModuleVersion, Outcome};
use tracer_engine::digest;
use tracer_host::hook::{ActiveSpan, Attribute, Located, ModuleError};
use tracer_ipc::protocol::{Digest, Lease};

use super::{Attempts, Unsaid};

/// A library is not looked at again before so long has passed, as a driver does it.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Digests of the versions that tasks of queues have run here. A copy never changes, so each is read once.
#[derive(Default)]
pub(super) struct KnownDigests(Mutex<HashMap<ModuleVersion, Option<Digest>>>);

impl Attempts {
    /// Looks whether the library of a task of a queue was built anew: such tasks are of one job for as long as the head lives.
    pub(super) fn look_again(&self, job: JobId, envelope: &Envelope<'_>, module: &str) {
        let is_old = |unsaid: &Unsaid| unsaid.job == job && unsaid.looked.elapsed() >= LOOK_AGAIN_AFTER;
        if envelope.origin.is_none() || !lock(&self.loaded).unsaid.get(module).is_some_and(is_old) {
            return;
        }
        // What is wrong with a library is said when it is loaded.
        let taken = match self.search.locate(module) {
            Ok(Located::Library(library)) => self.store.take(&library).ok(),
            _ => None,
        };
        let mut loaded = lock(&self.loaded);
        match taken {
            Some(taken) => {
                loaded.unsaid.insert(module.into(), Unsaid { job, taken, looked: Instant::now() });
            }
            None => drop(loaded.unsaid.remove(module)),
        }
    }

    /// Says of a task of a queue on which build of its module it ran, where that is another one than its origin's: on its span, and in the text of a failure
    /// that may come from it. A module that this node lacks is told with what mends it.
    pub(super) fn as_of_queue(
        &self,
        outcome: Outcome,
        lease: &Lease<'_>,
        envelope: &Envelope<'_>,
        function: &FunctionSpec<'_>,
        span: Option<&ActiveSpan>,
    ) -> Outcome {
        let (Some(id), ActorRole::None) = (envelope.origin, function.actor) else { return outcome };
        let module = function.module;
        if let Outcome::Failed(Failure::Module { .. }) = &outcome
            && let Err(error @ ModuleError::NotFound { .. }) = self.search.locate(module)
        {
            let message = lacks(self.node_id, &error, envelope.policy.queue);
            return Outcome::Failed(Failure::Module { message });
        }
        let Some(at_origin) = envelope.module_digest else { return outcome };
        let Some(here) = self.digest_of(module, lease.job).filter(|here| *here != at_origin) else { return outcome };
        if let Some(span) = span.filter(|span| span.is_recording()) {
            span.set_attributes(&[
                (names::MODULE_DIGEST, Attribute::Str(&hex(&here))),
                (names::MODULE_ORIGIN_DIGEST, Attribute::Str(&hex(&at_origin))),
            ]);
        }
        let other = || {
            format!(
                "\n(hint: node `{}` has another build of `{module}` than the node of place {}, which submitted the task: {} here, {} there)",
                self.node_id,
                id.place,
                digest::short(&here),
                digest::short(&at_origin)
            )
        };
        Outcome::Failed(match outcome {
            Outcome::Failed(Failure::Module { message }) => Failure::Module { message: message + &other() },
            Outcome::Failed(Failure::Arguments { message }) => Failure::Arguments { message: message + &other() },
            outcome => return outcome,
        })
    }

    /// Returns the digest of a module as a job of tasks of queues runs it; none for what is built in, and where there is no copy.
    fn digest_of(&self, module: &str, job: JobId) -> Option<Digest> {
        let version = {
            let loaded = lock(&self.loaded);
            loaded.unsaid.get(module)?.version(job)?
        };
        let read = || digest::of_file(&self.store.find(version)?.library).ok();
        *lock(&self.digests.0).entry(version).or_insert_with(read)
    }
}

/// Returns the text of a failure because a node lacks a module.
fn lacks(node_id: &str, error: &ModuleError, queue: &str) -> String {
    format!(
        "node `{node_id}`: {error}\n\
         (hint: a node that serves the queue `{queue}` needs it in such a folder, or is started with its folder in --module-path)"
    )
}
