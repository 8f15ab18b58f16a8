use crate::{
    actors::place,
    state::{
        State,
        actor::{Actor, Life, Part},
        worker::Grant,
    },
};
use tracer_core::suggestion;
use tracer_core::task::{ModuleVersion, TaskId};
use tracer_ipc::protocol::{ActorReport, ActorState};

/// Returns the rows of every actor that is remembered, newest first.
pub fn list_actors(state: &State) -> Vec<ActorReport> {
    state.actors.iter().rev().map(|(id, actor)| report(state, id, actor)).collect()
}

/// Returns one actor, by its id or its name; else why there is none.
pub fn find_actor(state: &State, wanted: &str) -> Result<ActorReport, String> {
    // The dead have no name any more; the newest that had it says why.
    let by_name = state.actors.named(wanted);
    let dead = || state.actors.iter().rev().find(|(_, actor)| *actor.name == *wanted).map(|(id, _)| id);
    let id = by_name.or_else(dead).or_else(|| wanted.parse().ok());
    if let Some((id, actor)) = id.and_then(|id| Some((id, state.actors.get(id)?))) {
        return Ok(report(state, id, actor));
    }
    match id.filter(|&id| state.tasks.get(id).is_some()) {
        Some(id) => Err(format!("task {id} is no actor")),
        None => {
            let names = state.actors.iter().map(|(_, actor)| &*actor.name).filter(|name| !name.is_empty());
            Err(format!("there is no actor `{wanted}`{}", suggestion::hint(wanted, names)))
        }
    }
}

/// Returns the versions of their modules that actors are of that are not dead.
pub(crate) fn versions(state: &State) -> impl Iterator<Item = ModuleVersion> {
    state.actors.iter().map(|(_, actor)| actor).filter(|actor| !actor.is_dead()).filter_map(Actor::version)
}

pub(crate) fn report(state: &State, id: TaskId, actor: &Actor) -> ActorReport {
    let version = actor.version();
    let worker = actor.worker().and_then(|worker| Some((worker, state.workers.get(&worker)?)));
    let is_call = |grant: &&Grant| grant.task != id;
    ActorReport {
        id,
        name: (!actor.name.is_empty()).then(|| actor.name.to_string()),
        module: actor.module.to_string(),
        type_name: actor.type_name.to_string(),
        state: match actor.life() {
            Life::Pending => ActorState::Pending,
            Life::Alive => ActorState::Alive,
            Life::Restarting => ActorState::Restarting,
            Life::Dead(_) => ActorState::Dead,
        },
        reason: match actor.life() {
            Life::Dead(death) => Some(death.cause.clone()),
            Life::Pending | Life::Alive | Life::Restarting => None,
        },
        died_unix_nano: actor.died_unix_nano,
        job_id: actor.job,
        is_detached: actor.is_detached,
        worker_id: worker.map(|(id, _)| id),
        worker_pid: worker.map(|(_, worker)| worker.pid),
        restarts: actor.restarts(),
        max_restarts: actor.max_restarts,
        max_call_retries: actor.max_call_retries,
        calls_waiting: actor.calls().len(),
        calls_leased: worker.map_or(0, |(_, worker)| worker.leases.iter().filter(is_call).count()),
        created_unix_nano: actor.submitted_unix_nano,
        module_version: version.map(|version| version.to_string()),
        is_outdated: !actor.is_dead() && version.is_some_and(|version| state.versions.is_outdated(version)),
    }
}

/// Returns why a creation or a call waits, for [`explain`](super::explain).
pub(crate) fn why_it_waits(state: &State, id: TaskId) -> Option<tracer_ipc::protocol::Reason> {
    use tracer_ipc::protocol::Reason;
    match state.tasks.get(id)?.actor {
        Part::None => None,
        Part::Creation => {
            let most = state.settings.max_processes.max(state.settings.workers_wanted);
            let before = place::count_before(state, id);
            if place::placeable(state) > before {
                return Some(Reason::NoWorkerReady { starting: state.workers.starting(), why: None });
            }
            let (actors, replicas) = (state.workers.of_actors(), state.replicas);
            Some(Reason::NoProcessForActor { actors, replicas, max_processes: most, before })
        }
        Part::Call(actor_id) => {
            let actor = state.actors.get(actor_id)?;
            let before = actor.calls().iter().take_while(|&&other| other != id).count();
            let row = report(state, actor_id, actor);
            Some(Reason::AwaitsActor { actor: actor_id, state: row.state, calls_before: before + row.calls_leased })
        }
    }
}
