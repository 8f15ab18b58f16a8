//! The reasons why an actor is as it is.

use serde_json::{Value, json};
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::utc;
use tracer_core::count::Count;
use tracer_ipc::protocol::{ActorReport, ActorState, TaskReport};

use super::super::{CommandError, report};

/// An actor with the reasons why it is as it is.
pub(super) struct Explained {
    actor: ActorReport,
    /// The task that creates it; none if it has been forgotten.
    creation: Option<TaskReport>,
    reasons: Vec<Value>,
}

/// Finds an actor by its name; none if there is no such one.
pub(super) fn find(driver: &mut Driver, name: &str) -> Result<Option<ActorReport>, CommandError> {
    match driver.actor_report(name) {
        Ok(actor) => Ok(Some(actor)),
        Err(DriverError::Actor(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Explained {
    /// Explains an actor. `waits` are the reasons why its creation waits, if it does.
    pub(super) fn new(actor: ActorReport, creation: Option<TaskReport>, waits: Vec<Value>) -> Explained {
        let mut reasons: Vec<_> =
            reasons(&actor).into_iter().map(|(reason, text)| json!({"reason": reason, "text": text})).collect();
        reasons.extend(waits);
        Explained { actor, creation, reasons }
    }

    pub(super) fn json(&self) -> Value {
        json!({"actor": self.actor, "task": self.creation, "reasons": self.reasons})
    }

    pub(super) fn text(&self) -> String {
        let actor = &self.actor;
        let mut fields = vec![("actor", format!("{} ({}:{})", actor.id, actor.module, actor.type_name))];
        fields.extend(actor.name.as_deref().map(|name| ("name", report::name(name))));
        fields.push(("state", actor.state.to_string()));
        fields.push(("created", utc(actor.created_unix_nano).to_string()));
        let why: Vec<_> = self.reasons.iter().filter_map(|reason| reason["text"].as_str()).collect();
        fields.push(("why", why.join("\n")));
        report::fields(&fields)
    }
}

/// Returns the reasons: the name of each for programs, and a sentence.
fn reasons(actor: &ActorReport) -> Vec<(&'static str, String)> {
    let mut reasons = Vec::new();
    let worker = match (actor.worker_id, actor.worker_pid) {
        (Some(id), Some(pid)) => format!(" in worker {id} (pid {pid})"),
        _ => String::new(),
    };
    match actor.state {
        ActorState::Dead => {
            let since = actor.died_unix_nano.map(|died| format!(" since {}", utc(died))).unwrap_or_default();
            let cause = actor.reason.as_deref().unwrap_or("nobody knows why");
            reasons.push(("died", format!("it is dead{since}: {cause}")));
        }
        ActorState::Alive => {
            let (running, waiting) = (Count(actor.calls_leased, "call"), Count(actor.calls_waiting, "call"));
            reasons.push(("alive", format!("it takes calls{worker}: {running} there, {waiting} waiting")));
        }
        ActorState::Restarting => {
            reasons.push(("restarting", format!("its worker was lost, and it is made again{worker}")))
        }
        ActorState::Pending => reasons.push(("pending", format!("it is being made for the first time{worker}"))),
    }
    let (restarts, most) = (actor.restarts, actor.max_restarts);
    if most > 0 || restarts > 0 {
        reasons.push(("restarts", format!("it was made again {} of {most} at most", Count(restarts as usize, "time"))));
    } else if actor.state == ActorState::Dead {
        reasons.push(("restarts", "it is not made again when its worker is lost, as `max_restarts` is 0".into()));
    }
    if actor.is_outdated {
        reasons.push((
            "outdated",
            "its module has been built anew since: it keeps the older build until it is made again".into(),
        ));
    }
    reasons
}
