//! Room for tasks of queues: the slots and resources that the agent may take some for.

use tracer_ipc::protocol::ToAgent;

use crate::{nesting, resources::Free, state::State};

/// Returns what the agent is told of the slots for tasks of queues, as far as there are processes for them: local tasks that wait come first.
pub fn free_for_imports(state: &State) -> ToAgent {
    let mut free = Free::of(state);
    let mut waiting = state.queue.plain().len();
    for (needs, count) in state.queue.demands() {
        waiting += count * (needs.cpus as usize).max(1);
        (0..count).for_each(|_| free.take_resources(state, needs));
    }
    let slots = match state.stop.is_some() {
        true => 0,
        false => free.cpus.min(nesting::processes_to_come(state)).saturating_sub(waiting),
    };
    let resources = state.settings.resources.iter().zip(&free.resources);
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    ToAgent::Free {
        slots: number(state.settings.workers_wanted),
        free: number(slots),
        resources: resources.map(|(resource, free)| (resource.name.to_string(), resource.total, *free)).collect(),
        imports: state.shared.imports_seen,
    }
}
