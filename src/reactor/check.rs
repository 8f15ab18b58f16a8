use crate::{
    actors::life,
    resources,
    state::{
        State,
        actor::{Actor, Life},
        progress::Progress,
        worker::Terms,
    },
};
use tracer_core::task::TaskId;

impl State {
    /// Fails with a sentence when the parts contradict each other. Tests call it after every step.
    pub fn check(&self) -> Result<(), String> {
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        for id in self.queue.iter() {
            let waits = self.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Waiting));
            ensure(waits, format!("task {id} is queued but does not wait"))?;
        }
        self.queue.check()?;
        let open: u64 = self.tasks.iter_newest_first().map(|(_, task)| task.open_bytes()).sum();
        ensure(
            open == self.open_bytes,
            format!("{open} bytes are of tasks that have not ended, {} counted", self.open_bytes),
        )?;
        let mut leased = 0;
        self.workers.check()?;
        for (worker_id, worker) in self.workers.iter() {
            ensure(worker.load.leases == worker.leases.len(), format!("worker {worker_id} miscounts its leases"))?;
            for grant in worker.leases.iter().chain(&worker.inline) {
                if worker.actor == Some(grant.task) && life::is_restart(self, grant.task) {
                    continue;
                }
                leased += 1;
                let holder = self.tasks.get(grant.task).map(|task| task.progress());
                ensure(
                    matches!(holder, Some(Progress::Leased { worker }) if *worker == worker_id),
                    format!("worker {worker_id} has task {}, which does not know", grant.task),
                )?;
                let task = self.tasks.get(grant.task);
                let limits =
                    task.and_then(|task| task.limits.as_ref()).map_or((0, 0), |limits| (limits.run_ns, limits.idle_ns));
                let needs = task.and_then(|task| task.needs.as_ref());
                let terms = worker.terms.iter().find(|terms| terms.lease == grant.number);
                ensure(
                    terms.map_or((0, 0), |terms| (terms.run_ns, terms.idle_ns)) == limits
                        && terms.and_then(|terms| terms.needs.as_ref()) == needs,
                    format!("worker {worker_id} does not know the terms of task {}", grant.task),
                )?;
            }
            let has_lease = |terms: &Terms| {
                let mut grants = worker.leases.iter().chain(&worker.inline);
                grants.any(|grant| grant.number == terms.lease)
            };
            ensure(worker.terms.iter().all(has_lease), format!("worker {worker_id} has terms of no lease"))?;
        }
        for resource in &self.settings.resources {
            let held: u64 = resources::holders(self, &resource.name).iter().map(|&(_, amount)| amount).sum();
            let (name, total) = (&resource.name, resource.total);
            ensure(held <= total, format!("{held} of the resource `{name}` are held, of {total}"))?;
            ensure(
                held == self.workers.held(name),
                format!("{held} of the resource `{name}` are held, others counted"),
            )?;
        }
        ensure(
            leased == self.tally.counts().leased,
            format!("{leased} leases are held, {} counted", self.tally.counts().leased),
        )?;
        let in_places = self.tally.held() + self.tally.retrying().len() + self.tally.shared();
        let waiting = self.queue.len() + in_places + waiting(self);
        ensure(
            waiting == self.tally.counts().waiting,
            format!("{waiting} tasks are queued, held or to be tried again, {} counted", self.tally.counts().waiting),
        )?;
        for &(until, id) in self.tally.retrying() {
            let progress = self.tasks.get(id).map(|task| task.progress());
            ensure(
                matches!(progress, Some(Progress::Retrying { until: known }) if *known == until),
                format!("task {id} is to be tried again, but does not know"),
            )?;
        }
        for &(until, id) in &self.queue_limits {
            let limits = self.tasks.get(id).and_then(|task| task.limits.as_ref());
            let is_known = limits.is_some_and(|limits| limits.queue_until == until);
            ensure(is_known, format!("task {id} has a limit to its waiting, but does not know"))?;
        }
        for (key, keyed) in &self.keys {
            let known = self.tasks.get(keyed.task).and_then(|task| task.key.as_deref());
            ensure(known == Some(key), format!("key `{key}` names task {}, which does not know", keyed.task))?;
        }
        for id in self.also_waiting.keys() {
            let has_ended = self.tasks.get(*id).is_none_or(|task| matches!(task.progress(), Progress::Ended(_)));
            ensure(!has_ended, format!("somebody waits for task {id}, which has ended"))?;
        }
        check_shared(self)?;
        check_actors(self)?;
        ensure(
            self.tasks.len() == waiting + leased + self.history.len(),
            format!("{} tasks are neither queued, held, to be tried again, leased nor ended", self.tasks.len()),
        )
    }
}

/// Returns the number of tasks wait for a worker of their own, or for their actor. For [`State::check`].
pub(crate) fn waiting(state: &State) -> usize {
    let is_waiting =
        |id: &&TaskId| state.tasks.get(**id).is_some_and(|task| matches!(task.progress(), Progress::Waiting));
    let calls = state.actors.iter().flat_map(|(_, actor)| actor.calls());
    calls.filter(is_waiting).count() + state.actors.waiting_for_worker().iter().filter(is_waiting).count()
}

/// Contradictions among tasks that are shared with other nodes, as a sentence. For [`State::check`].
fn check_shared(state: &State) -> Result<(), String> {
    let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
    let (open, shared) = (state.shared.open.len(), state.tally.shared());
    ensure(open == shared, format!("{open} tasks are known to be shared, {shared} counted"))?;
    let of_jobs: usize = state.shared.of_job.values().sum();
    ensure(of_jobs == open, format!("{open} tasks are shared, and {of_jobs} by their jobs"))?;
    for id in state.shared.open.keys() {
        let is_shared = state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Shared));
        ensure(is_shared, format!("task {id} is said to be shared, and is not"))?;
    }
    let own = state.tasks.iter_newest_first().filter(|(_, task)| task.is_own_import()).count();
    ensure(
        own == state.shared.own_imports,
        format!("{own} imports are own ones, {} counted", state.shared.own_imports),
    )?;
    for (first, bundle) in &state.shared.bundles {
        let end = first.0 + u64::from(bundle.count);
        let open = state.shared.open.range_from(*first).take_while(|(id, _)| id.0 < end).count();
        let is_right = bundle.open as usize == open && open > 0;
        ensure(is_right, format!("bundle {first} has {open} open tasks, and {} counted", bundle.open))?;
    }
    let ids: Vec<_> = state.shared.imports.iter().map(|(task, import)| (import.id, task)).collect();
    let by_id = ids.iter().all(|(id, task)| state.shared.imports_by_id.get(id) == Some(task));
    ensure(by_id && ids.len() == state.shared.imports_by_id.len(), "imports are not known by their ids".into())
}

/// Contradictions among actors, as a sentence. For [`State::check`].
fn check_actors(state: &State) -> Result<(), String> {
    let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
    for (id, actor) in state.actors.iter() {
        let creation = state.tasks.get(id);
        ensure(creation.is_some(), format!("actor {id} has no task"))?;
        let has_ended = creation.is_some_and(|task| matches!(task.progress(), Progress::Ended(_)));
        let has_lived = actor.has_lived();
        ensure(!has_lived || has_ended, format!("actor {id} lives before its creation has ended"))?;
        ensure(
            *actor.life() != Life::Pending || !has_ended,
            format!("actor {id} waits for a creation that has ended"),
        )?;
        ensure(!actor.is_dead() || actor.calls().is_empty(), format!("actor {id} is dead and has calls"))?;
        if let Some(worker) = actor.worker().filter(|_| !actor.is_dead()) {
            let knows = state.workers.get(&worker).is_some_and(|worker| worker.actor == Some(id));
            ensure(knows, format!("actor {id} has worker {worker}, which does not know"))?;
        }
        let is_leased = actor.worker().is_some();
        ensure(
            !(is_leased && state.actors.waiting_for_worker().contains(&id)),
            format!("actor {id} has a worker and waits for one"),
        )?;
        for call in actor.calls() {
            let progress = state.tasks.get(*call).map(|task| task.progress());
            let waits = matches!(progress, Some(Progress::Waiting | Progress::Held));
            ensure(waits, format!("call {call} is in line and does not wait"))?;
        }
    }
    let open = life::open_tasks(state);
    ensure(
        open == *state.actors.open_tasks(),
        format!("{open:?} tasks of jobs have not ended, {:?} counted", state.actors.open_tasks()),
    )?;
    for (job, bound) in state.actors.bound() {
        let is_bound = |actor: &Actor| actor.job == job && !actor.is_detached && !actor.is_dead();
        let all = state.actors.iter().filter(|(_, actor)| is_bound(actor)).map(|(id, _)| id);
        ensure(!bound.is_empty() && all.eq(bound.iter().copied()), format!("job {job} does not know its actors"))?;
    }
    for (name, id) in state.actors.names() {
        let holds = state.actors.get(id).is_some_and(|actor| *actor.name == *name && !actor.is_dead());
        ensure(holds, format!("the name `{name}` is that of actor {id}, which does not know"))?;
    }
    Ok(())
}
