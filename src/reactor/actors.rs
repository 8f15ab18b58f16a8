//! Actors: a part of the [reactor](super::reactor).
//!
//! An actor is made by a task, its *creation*, whose id is the actor's. The creation is granted alone to a worker, which is the actor's from
//! then on: it is in no pool, takes the actor's calls only, and another worker is started in its place. Where as many processes run as may,
//! an actor waits; one process is always left for tasks.
//!
//! Calls are tasks too. They line up behind their actor in the order in which they were accepted, and are leased to its worker ahead of time,
//! many at once; the worker decides what runs beside what. A call whose arguments are not there yet holds up those of the same
//! submitter behind it, and no others: what is not there may hang on them.
//!
//! When the worker is lost, the actor is made again as often as its creation allows: a further attempt at the same task, whose one outcome
//! stays what it was. What had been begun is charged or fails, what had not keeps its place. Beyond that the actor is dead, and every call fails
//! with the reason.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use super::inputs;
use super::progress::Event;
use super::reactor::{Effects, LostAttempt};
use super::state::{Ended, Ending, Grant, Now, Progress, State, TargetIndex, Task, WorkerPhase};
use crate::scheduler::LEASE_LIMIT;
use tracer_core::suggestion;
use tracer_core::task::{
    ActorOptions, ActorRole, DEFAULT_GRACE, Envelope, Failure, FunctionSpec, JobId, ModuleVersion, Outcome, SpanLink,
    TaskId, TaskSpec, WorkerId,
};
use tracer_ipc::protocol::{ActorMethods, ActorReport, ActorState, Lease};
use tracer_ipc::spool::{CLAIM_COUNT, ClaimState};

/// What a task has to do with an actor, in a form that fits a [task](super::state::Task).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Nothing.
    #[default]
    None,
    /// It makes one.
    Creation,
    /// It is a method of this one.
    Call(TaskId),
}

impl Part {
    /// What an envelope says.
    pub(super) fn of(role: ActorRole<'_>) -> Part {
        match role {
            ActorRole::None => Part::None,
            ActorRole::Create(_) => Part::Creation,
            ActorRole::Call(actor) => Part::Call(actor),
        }
    }
}

/// Every actor that is remembered, and what waits because of them.
#[derive(Debug, Default)]
pub struct Actors {
    all: BTreeMap<TaskId, Actor>,
    /// Those that are not dead and have a name.
    names: HashMap<Box<str>, TaskId>,
    /// Those that wait for a worker of their own.
    to_place: BTreeSet<TaskId>,
    /// Those with calls that may be leased.
    to_serve: BTreeSet<TaskId>,
    /// How many tasks of each job have not ended; none for jobs without.
    open: BTreeMap<JobId, usize>,
    /// Actors that are to end with their jobs and are not dead, by job.
    bound: HashMap<JobId, BTreeSet<TaskId>>,
    /// Jobs whose driver is connected.
    connected: HashSet<JobId>,
    /// Jobs that have ended, and their actors not yet.
    ended_jobs: Vec<JobId>,
}

/// An actor.
#[derive(Debug)]
struct Actor {
    module: Box<str>,
    type_name: Box<str>,
    name: Box<str>,
    job: JobId,
    submitted_unix_nano: u64,
    is_detached: bool,
    max_restarts: u32,
    max_call_retries: u32,
    restarts: u32,
    /// The creation's, for the next time.
    envelope: Box<[u8]>,
    /// The attempt at its creation that it is at.
    attempt: u32,
    /// The span of that attempt, or of the one before.
    span: Option<SpanLink>,
    /// Calls that wait or are held, in the order of their turn.
    calls: BTreeSet<TaskId>,
    life: Life,
    worker: Option<WorkerId>,
    /// The methods whose calls may run beside each other. None are known before it has been made once.
    concurrent: BTreeSet<TargetIndex>,
    /// How many of those calls run at a time.
    max_concurrency: usize,
}

/// Where an actor is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Life {
    /// Its creation has not ended.
    Pending,
    /// It takes calls.
    Alive,
    /// Its creation runs again, or waits to.
    Restarting,
    /// It ends, or has ended.
    Dead(Death),
}

/// Why an actor is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// A clause that fits after a colon.
    pub cause: String,
    /// See [`Failure::ActorDied`].
    pub error_type: String,
}

impl Death {
    fn of(cause: impl Into<String>) -> Death {
        Death { cause: cause.into(), error_type: String::new() }
    }
}

impl Actor {
    fn is_dead(&self) -> bool {
        matches!(self.life, Life::Dead(_))
    }

    /// The version of its module that its creation said.
    fn version(&self) -> Option<ModuleVersion> {
        Envelope::decode(&self.envelope).ok()?.module_version
    }

    /// `counter.Counter`.
    fn target(&self) -> String {
        let target = TaskSpec::Function(FunctionSpec::of_task(&self.module, &self.type_name, &[])).target();
        if self.name.is_empty() { target } else { format!("{target} `{}`", self.name) }
    }

    fn died(&self, id: TaskId, death: &Death, has_begun: bool) -> Failure {
        let Death { cause, error_type } = death.clone();
        let (target, error_type) = (self.target().into(), error_type.into());
        Failure::ActorDied { actor: id, target, cause, error_type, has_begun }
    }
}

/// The type in `Type.new`.
fn type_of(function: &str) -> &str {
    function.rsplit_once('.').map_or(function, |(type_name, _)| type_name)
}

fn options_of<'a>(envelope: &Envelope<'a>) -> Option<(FunctionSpec<'a>, ActorOptions<'a>)> {
    match envelope.spec {
        TaskSpec::Function(function) => match function.actor {
            ActorRole::Create(options) => Some((function, options)),
            ActorRole::None | ActorRole::Call(_) => None,
        },
        TaskSpec::Command(_) => None,
    }
}

/// The living actor that a creation asks for by name, if it takes one that is there.
pub fn find_existing(state: &State, envelope: &Envelope<'_>) -> Option<TaskId> {
    let (function, options) = options_of(envelope).filter(|(_, options)| options.or_existing)?;
    let id = *state.actors.names.get(options.name)?;
    let actor = state.actors.all.get(&id)?;
    (*actor.module == *function.module && *actor.type_name == *type_of(function.function)).then_some(id)
}

/// A task was taken in: if it makes an actor, that begins here.
pub(super) fn on_task(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get(id) else { return };
    let job = task.job;
    *state.actors.open.entry(job).or_default() += 1;
    if task.actor != Part::Creation {
        return;
    }
    let Ok(envelope) = Envelope::decode(task.envelope()) else { return };
    let Some((function, options)) = options_of(&envelope) else { return };
    let mut actor = Actor {
        module: function.module.into(),
        type_name: type_of(function.function).into(),
        name: options.name.into(),
        job,
        submitted_unix_nano: task.submitted_unix_nano,
        is_detached: options.is_detached,
        max_restarts: options.max_restarts,
        max_call_retries: options.max_call_retries,
        restarts: 0,
        envelope: task.envelope().into(),
        attempt: 0,
        span: None,
        calls: BTreeSet::new(),
        life: Life::Pending,
        worker: None,
        concurrent: BTreeSet::new(),
        max_concurrency: 1,
    };
    match state.actors.names.get(options.name) {
        Some(&first) => {
            let other =
                state.actors.all.get(&first).map(|first| {
                    TaskSpec::Function(FunctionSpec::of_task(&first.module, &first.type_name, &[])).target()
                });
            let other = other.unwrap_or_default();
            // It never had the name.
            actor.name = Box::default();
            actor.life = Life::Dead(Death::of(format!("actor {first} ({other}) has the name `{}`", options.name)));
        }
        None if options.name.is_empty() => {}
        None => drop(state.actors.names.insert(options.name.into(), id)),
    }
    let is_bound = !actor.is_detached && !actor.is_dead();
    state.actors.all.insert(id, actor);
    if is_bound {
        state.actors.bound.entry(job).or_default().insert(id);
    }
}

/// Why a task cannot run, if its actor is dead or there is none. Else it gets its place in the line behind its actor, if it is a call.
pub(super) fn line_up(state: &mut State, id: TaskId) -> Option<Failure> {
    match state.tasks.get(id)?.actor {
        Part::None => None,
        Part::Creation => match state.actors.all.get(&id).map(|actor| &actor.life) {
            Some(Life::Dead(death)) => Some(Failure::Refused { message: death.cause.clone() }),
            _ => None,
        },
        Part::Call(actor_id) => match state.actors.all.get_mut(&actor_id) {
            None => Some(Failure::ActorDied {
                actor: actor_id,
                target: Box::default(),
                cause: "there is none with this id, or it has been dead for so long that it is forgotten".into(),
                error_type: Box::default(),
                has_begun: false,
            }),
            Some(actor) => match &actor.life {
                Life::Dead(death) => Some(actor.died(actor_id, death, false)),
                Life::Pending | Life::Alive | Life::Restarting => {
                    actor.calls.insert(id);
                    None
                }
            },
        },
    }
}

/// A task can be begun: it goes where it waits for that.
pub(super) fn enqueue(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    task.advance(id, Event::Queued, &mut state.tally);
    match task.actor {
        Part::None => state.queue.push_back(id, task),
        Part::Creation => drop(state.actors.to_place.insert(id)),
        Part::Call(actor) => line_up_again(state, actor, id),
    }
}

/// As [`enqueue`], before all others of its kind.
pub(super) fn enqueue_first(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get_mut(id) else { return };
    match task.actor {
        Part::None => {
            task.advance(id, Event::Queued, &mut state.tally);
            state.queue.push_front(id, task);
        }
        Part::Creation | Part::Call(_) => enqueue(state, id),
    }
}

fn line_up_again(state: &mut State, actor_id: TaskId, id: TaskId) {
    let Some(failure) = line_up(state, id) else {
        state.actors.to_serve.insert(actor_id);
        return;
    };
    // It died while the call was in its worker's hands.
    if let Some(task) = state.tasks.get_mut(id) {
        task.advance(id, Event::Held, &mut state.tally);
        state.without_input.push((id, failure));
    }
}

/// A task that waits or is held will end.
pub(super) fn dequeue(state: &mut State, id: TaskId) {
    let Some(task) = state.tasks.get(id) else { return };
    match task.actor {
        Part::None => {
            if !matches!(task.progress(), Progress::Held) {
                state.queue.remove(id, task);
            }
        }
        Part::Creation => drop(state.actors.to_place.remove(&id)),
        Part::Call(actor) => {
            if let Some(actor) = state.actors.all.get_mut(&actor) {
                actor.calls.remove(&id);
            }
        }
    }
}

/// Takes out every creation and every call that can be begun and that no worker has.
pub(super) fn take_all(state: &mut State) -> Vec<TaskId> {
    let is_pending = |id: &TaskId| state.actors.all.get(id).is_some_and(|actor| actor.life == Life::Pending);
    let mut all: Vec<_> = state.actors.to_place.iter().copied().filter(is_pending).collect();
    state.actors.to_place.clear();
    let waits = |id: &TaskId| state.tasks.get(*id).is_some_and(|task| matches!(task.progress(), Progress::Waiting));
    for actor in state.actors.all.values_mut() {
        let (waiting, held) = std::mem::take(&mut actor.calls).into_iter().partition(waits);
        all.extend::<BTreeSet<_>>(waiting);
        actor.calls = held;
    }
    all
}

/// How many tasks wait for a worker of their own, or for their actor. For [`State::check`].
pub(super) fn waiting(state: &State) -> usize {
    let is_waiting =
        |id: &&TaskId| state.tasks.get(**id).is_some_and(|task| matches!(task.progress(), Progress::Waiting));
    let calls = state.actors.all.values().flat_map(|actor| &actor.calls);
    calls.filter(is_waiting).count() + state.actors.to_place.iter().filter(is_waiting).count()
}

/// Whether a lease of this task is to make an actor again: its creation has ended.
pub(super) fn is_restart(state: &State, id: TaskId) -> bool {
    state.tasks.get(id).is_some_and(|task| matches!(task.progress(), Progress::Ended(_)))
}

/// Whether what a creation was given is needed again.
pub(super) fn keeps_inputs(state: &State, id: TaskId) -> bool {
    state.actors.all.get(&id).is_some_and(|actor| matches!(actor.life, Life::Alive | Life::Restarting))
}

/// Whether a task must be remembered because its actor lives.
pub(super) fn is_living(state: &State, id: TaskId) -> bool {
    state.actors.all.get(&id).is_some_and(|actor| !actor.is_dead())
}

/// The module that an actor's type is of, without the folder and the ending of a library.
pub(super) fn module_of(state: &State, id: TaskId) -> Option<&str> {
    state.actors.all.get(&id).map(|actor| tracer_core::task::module_stem(&actor.module))
}

/// Whether an actor outlives the job that has created it.
pub(super) fn is_detached(state: &State, id: TaskId) -> bool {
    state.actors.all.get(&id).is_some_and(|actor| actor.is_detached)
}

/// The task of a dead actor is forgotten.
pub(super) fn forget(state: &mut State, id: TaskId) {
    state.actors.all.remove(&id);
}

/// How often an attempt of a call or a creation may follow one that was lost; none for what is as its policy says.
pub(super) fn crash_limit(state: &State, id: TaskId) -> Option<u32> {
    match state.tasks.get(id)?.actor {
        Part::None => None,
        Part::Creation => state.actors.all.get(&id).filter(|actor| actor.is_dead()).map(|_| 0),
        Part::Call(actor) => Some(match state.actors.all.get(&actor) {
            Some(actor) if actor.life == Life::Alive && !may_restart(state, actor) => 0,
            Some(actor) if !actor.is_dead() => actor.max_call_retries,
            Some(_) | None => 0,
        }),
    }
}

fn may_restart(state: &State, actor: &Actor) -> bool {
    let has_lived = matches!(actor.life, Life::Alive | Life::Restarting);
    has_lived && actor.restarts < actor.max_restarts && !state.is_stopping
}

/// How many actors there is room for, of those that wait for a worker. One process is always left for tasks.
pub(super) fn placeable(state: &State) -> usize {
    let most = state.max_processes.max(state.workers_wanted).saturating_sub(1);
    state.actors.to_place.len().min(most.saturating_sub(state.workers.of_actors()))
}

/// Gives actors that wait for one a worker that has nothing to do.
pub(super) fn place(state: &mut State, effects: &mut impl Effects, now: Now) {
    for _ in 0..placeable(state) {
        let Some(worker_id) = state.workers.last_idle() else { return };
        let Some(id) = state.actors.to_place.pop_first() else { return };
        if !make(state, effects, id, worker_id, now) {
            state.actors.to_place.insert(id);
            return;
        }
    }
}

/// Leases a creation to what is the actor's worker from now on.
fn make(state: &mut State, effects: &mut impl Effects, id: TaskId, worker_id: WorkerId, now: Now) -> bool {
    let Some(actor) = state.actors.all.get_mut(&id) else { return true };
    let Some(mut worker) = state.workers.get_mut(&worker_id) else { return false };
    if actor.life == Life::Restarting {
        actor.attempt += 1;
        actor.worker = Some(worker_id);
        worker.actor = Some(id);
        let limits = state.tasks.get(id).and_then(|task| task.limits.as_deref());
        worker.bound_memory(effects, worker_id, limits.map_or(0, |limits| limits.memory_bytes));
        let inputs = inputs::values(&state.tasks, id);
        let number = worker.grant(id, 0, 0, false, now);
        worker.bind(number, limits, None, now);
        effects.lease(
            worker_id,
            Lease {
                number,
                task: id,
                attempt: actor.attempt,
                job: actor.job,
                submitted_unix_nano: actor.submitted_unix_nano,
                previous: actor.span,
                envelope: &actor.envelope,
                queued: None,
                inputs: &inputs,
            },
        );
        return true;
    }
    actor.worker = Some(worker_id);
    worker.actor = Some(id);
    drop(worker);
    if !super::reactor::lease_to(state, effects, worker_id, id, now) {
        set_free(state, id);
        return false;
    }
    if let Some(actor) = state.actors.all.get_mut(&id) {
        actor.attempt += 1;
    }
    true
}

/// Leases calls to the workers of actors that live.
pub(super) fn serve(state: &mut State, effects: &mut impl Effects, now: Now) {
    for actor in std::mem::take(&mut state.actors.to_serve) {
        while let Some(worker) = may_be_served(state, actor) {
            let Some(call) = next_call(state, actor) else { break };
            let Some(is_alone) = may_be_leased(state, actor, worker, call) else { break };
            if !super::reactor::lease_to(state, effects, worker, call, now) {
                state.actors.to_serve.insert(actor);
                break;
            }
            if let Some(mut worker) = state.workers.get_mut(&worker).filter(|_| is_alone) {
                worker.load.is_exclusive = true;
            }
            if let Some(actor) = state.actors.all.get_mut(&actor) {
                actor.calls.remove(&call);
            }
        }
    }
}

/// Whether a call may be leased beside what its actor's worker has; and if so, whether nothing may be leased beside it.
///
/// What a call writes is told from what others write by which calls run. So one whose output somebody wants is leased with no call that might
/// run just before or after it and be taken for it: alone, if its method runs alone, and else beside calls that begin while it runs.
fn may_be_leased(state: &State, actor: TaskId, worker: WorkerId, call: TaskId) -> Option<bool> {
    let (actor, task) = (state.actors.all.get(&actor)?, state.tasks.get(call)?);
    let worker = state.workers.get(&worker)?;
    let is_concurrent = |task: &Task| actor.concurrent.contains(&task.target);
    let is_alone = task.must_be_alone || (task.wants_output && !is_concurrent(task));
    let must_wait = if is_alone {
        !worker.leases.is_empty()
    } else if task.wants_output {
        worker.leases.iter().any(|grant| state.tasks.get(grant.task).is_some_and(|task| !is_concurrent(task)))
    } else {
        !worker.watched.is_empty() && !is_concurrent(task)
    };
    (!must_wait).then_some(is_alone)
}

/// Whether a call that runs waits for others, so that tasks may wait for each other in a cycle.
pub(super) fn may_block(state: &State) -> bool {
    state.workers.of_actors() > 0 && state.workers.waiting_from(WorkerId(0)).any(|(_, worker)| worker.actor.is_some())
}

/// The worker in which an actor, whose creation had ended, is being made again.
pub(super) fn worker_that_makes_again(state: &State, id: TaskId) -> Option<WorkerId> {
    state.actors.all.get(&id).filter(|actor| actor.life == Life::Restarting)?.worker
}

/// What the calls of an actor wait for that have not begun.
pub(super) struct Line {
    /// The creation, until it has ended.
    creation: Option<Rc<[TaskId]>>,
    /// What has begun and not ended, in the actor's worker.
    running: Rc<[TaskId]>,
    /// Whether that runs alone.
    runs_alone: bool,
    /// The first that has not begun of those that run alone.
    first_alone: Option<LinePlace>,
    /// How many of the others run at a time.
    max_concurrency: usize,
    /// Calls that are held, with their submitters.
    held: Vec<(TaskId, (Option<TaskId>, JobId))>,
}

/// A place in the order in which calls begin: what is leased comes before what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LinePlace {
    Leased(u64),
    InLine(TaskId),
}

/// The line of an actor; none if it is dead.
pub(super) fn line(state: &State, effects: &impl Effects, id: TaskId) -> Option<Line> {
    let actor = state.actors.all.get(&id).filter(|actor| !actor.is_dead())?;
    let runs_alone = |id: &TaskId| {
        state.tasks.get(*id).is_some_and(|task| task.must_be_alone || !actor.concurrent.contains(&task.target))
    };
    let worker = actor.worker.and_then(|worker_id| Some((worker_id, state.workers.get(&worker_id)?)));
    let leases =
        worker.into_iter().flat_map(|(worker_id, worker)| worker.leases.iter().map(move |grant| (worker_id, grant)));
    let (running, leased): (Vec<_>, Vec<_>) =
        leases.partition(|&(worker_id, grant)| effects.claim_state(worker_id, grant.number) == ClaimState::Claimed);
    let running: Rc<[TaskId]> = running.into_iter().map(|(_, grant)| grant.task).collect();
    let first_leased = leased.iter().find(|(_, grant)| runs_alone(&grant.task));
    let first_leased = first_leased.map(|(_, grant)| LinePlace::Leased(grant.number));
    let is_held = |id: &TaskId| state.tasks.get(*id).is_some_and(|task| matches!(task.progress(), Progress::Held));
    let first_in_line = || {
        let first = actor.calls.iter().copied().find(|id| !is_held(id) && runs_alone(id));
        first.map(LinePlace::InLine)
    };
    let held = actor.calls.iter().filter(|id| is_held(id)).filter_map(|&id| {
        let task = state.tasks.get(id)?;
        Some((id, (task.submitter, task.job)))
    });
    Some(Line {
        creation: (actor.life == Life::Pending).then(|| Rc::from([id])),
        runs_alone: running.iter().any(runs_alone),
        running,
        first_alone: first_leased.or_else(first_in_line),
        max_concurrency: actor.max_concurrency,
        held: held.collect(),
    })
}

impl Line {
    /// What has to end before this call, which has not begun, can: of each of these sets, so many.
    pub(super) fn blockers(&self, state: &State, id: TaskId, task: &Task) -> Vec<(usize, Rc<[TaskId]>)> {
        if let Some(creation) = &self.creation {
            return vec![(1, Rc::clone(creation))];
        }
        let place = match task.progress() {
            Progress::Leased { worker } => {
                let lease = state.workers.get(worker).and_then(|worker| worker.lease_of(id));
                LinePlace::Leased(lease.unwrap_or_default())
            }
            _ => LinePlace::InLine(id),
        };
        let running = self.running.len();
        // One that runs alone waits for all that run, and those behind it wait for it.
        let is_behind = self.first_alone.is_some_and(|first| first <= place);
        let wanted = match self.runs_alone || is_behind {
            true => running,
            false => (running + 1).saturating_sub(self.max_concurrency.max(1)),
        };
        let mut blockers = Vec::new();
        if wanted > 0 {
            blockers.push((wanted, Rc::clone(&self.running)));
        }
        let submitter = (task.submitter, task.job);
        let held = self.held.iter().take_while(|&&(held, _)| held < id).filter(|(_, of)| *of == submitter);
        let held: Vec<_> = held.map(|&(held, _)| held).collect();
        if place == LinePlace::InLine(id) && !held.is_empty() {
            blockers.push((held.len(), held.into()));
        }
        blockers
    }
}

/// The worker of an actor has made it, and says which of its methods run beside each other.
pub fn on_methods(state: &mut State, worker: WorkerId, methods: &ActorMethods) {
    let Some(actor) = state.actors.all.get_mut(&methods.actor).filter(|actor| actor.worker == Some(worker)) else {
        return;
    };
    actor.concurrent = methods.concurrent.iter().map(|method| state.targets.index(method)).collect();
    actor.max_concurrency = methods.max_concurrency as usize;
}

/// The worker of an actor, if it may be leased a call.
fn may_be_served(state: &State, id: TaskId) -> Option<WorkerId> {
    let actor = state.actors.all.get(&id).filter(|actor| actor.life == Life::Alive && !actor.calls.is_empty())?;
    let worker_id = actor.worker?;
    let worker = state.workers.get(&worker_id)?;
    let is_open = worker.phase == WorkerPhase::Ready && worker.stopping.is_none() && worker.ending.is_none();
    // The ring has room for this many numbers from the oldest lease on.
    let in_ring = worker.leases.front().map_or(0, |oldest| worker.next_lease - oldest.number);
    let has_room = worker.leases.len() < LEASE_LIMIT && in_ring < CLAIM_COUNT as u64;
    (is_open && has_room && !worker.load.is_exclusive).then_some(worker_id)
}

/// The call of an actor whose turn it is. One that is held holds up those of its submitter that came after it.
fn next_call(state: &State, actor: TaskId) -> Option<TaskId> {
    let mut held = HashSet::new();
    for &id in &state.actors.all.get(&actor)?.calls {
        let Some(task) = state.tasks.get(id) else { continue };
        let submitter = (task.submitter, task.job);
        match task.progress() {
            Progress::Waiting if !held.contains(&submitter) => return Some(id),
            Progress::Waiting => {}
            _ => drop(held.insert(submitter)),
        }
    }
    None
}

/// A lease has ended in the worker of an actor: there is room for another.
pub(super) fn on_lease_ended(state: &mut State, actor: TaskId) {
    state.actors.to_serve.insert(actor);
}

/// A task has ended, and nobody was told yet.
pub(super) fn on_task_ended(state: &mut State, effects: &mut impl Effects, id: TaskId, outcome: &Outcome) {
    let Some(task) = state.tasks.get(id) else { return };
    let job = task.job;
    let is_creation = task.actor == Part::Creation;
    if let Some(open) = state.actors.open.get_mut(&job) {
        *open -= 1;
        if *open == 0 {
            state.actors.open.remove(&job);
            note_if_over(&mut state.actors, job);
        }
    }
    if !is_creation {
        return;
    }
    match outcome {
        Outcome::Failed(failure) => {
            let death = Death::of(failed_to_begin(failure));
            set_free(state, id);
            die(state, effects, id, death);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => begin_life(state, id),
    }
}

/// If a job is over, its actors end with the next turn.
fn note_if_over(actors: &mut Actors, job: JobId) {
    if actors.bound.contains_key(&job) && !actors.open.contains_key(&job) && !actors.connected.contains(&job) {
        actors.ended_jobs.push(job);
    }
}

fn failed_to_begin(failure: &Failure) -> String {
    match failure {
        Failure::Refused { message } => message.clone(),
        failure => format!("its `new` failed: {failure}"),
    }
}

fn begin_life(state: &mut State, id: TaskId) {
    if let Some(actor) = state.actors.all.get_mut(&id).filter(|actor| !actor.is_dead()) {
        actor.life = Life::Alive;
        state.actors.to_serve.insert(id);
    }
}

/// The span of the attempt that has made an actor is known.
pub(super) fn on_span(state: &mut State, id: TaskId, span: SpanLink) {
    if let Some(actor) = state.actors.all.get_mut(&id) {
        actor.span = Some(span);
    }
}

/// The worker that an actor had is none any more; it goes back to the others if it lives.
fn set_free(state: &mut State, id: TaskId) {
    let Some(worker_id) = state.actors.all.get_mut(&id).and_then(|actor| actor.worker.take()) else { return };
    if let Some(mut worker) = state.workers.get_mut(&worker_id).filter(|worker| worker.actor == Some(id)) {
        worker.actor = None;
    }
}

/// A creation that was leased goes back to those that wait: the first one, or, when that has ended, one that is to make the actor again.
pub(super) fn put_back(state: &mut State, id: TaskId) {
    set_free(state, id);
    let Some(actor) = state.actors.all.get_mut(&id) else { return };
    actor.attempt = actor.attempt.saturating_sub(1);
    if actor.life == Life::Restarting {
        state.actors.to_place.insert(id);
    }
}

/// An actor was to be made again, and that has ended.
pub(super) fn on_restart_result(state: &mut State, effects: &mut impl Effects, id: TaskId, outcome: &Outcome) {
    match outcome {
        Outcome::Failed(failure) => {
            let death = Death::of(format!("it was to begin again, and {}", failed_to_begin(failure)));
            set_free(state, id);
            die(state, effects, id, death);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => begin_life(state, id),
    }
}

/// What is needed to make the span of a further creation that was lost before it had one.
pub(super) fn lost_restart(state: &State, grant: &Grant) -> Option<LostAttempt> {
    let actor = state.actors.all.get(&grant.task)?;
    Some(LostAttempt {
        task: grant.task,
        attempt: actor.attempt,
        job: actor.job,
        submitted_unix_nano: actor.submitted_unix_nano,
        granted_unix_nano: grant.granted.unix_nano,
        previous: actor.span,
        envelope: actor.envelope.clone(),
    })
}

/// What a call fails with that was going on when its actor's worker was lost.
pub(super) fn why_lost(state: &State, call: TaskId, cause: &str, error_type: &str) -> Option<Failure> {
    let Part::Call(id) = state.tasks.get(call)?.actor else { return None };
    let death = Death { cause: cause.into(), error_type: error_type.into() };
    let actor = state.actors.all.get(&id)?;
    Some(match &actor.life {
        Life::Dead(death) => actor.died(id, death, true),
        Life::Pending | Life::Alive | Life::Restarting => actor.died(id, &death, true),
    })
}

/// The worker of an actor is gone, and what it ran is charged. `had_begun` says whether its creation had begun in it.
pub(super) fn on_worker_lost(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    (cause, error_type): (String, String),
    had_begun: bool,
) {
    let Some(actor) = state.actors.all.get_mut(&id) else { return };
    actor.worker = None;
    match actor.life {
        // The creation has gone back or is charged like any task.
        Life::Pending | Life::Dead(_) => return,
        Life::Restarting if !had_begun => return,
        Life::Alive | Life::Restarting => {}
    }
    let death = Death { cause, error_type };
    match state.actors.all.get(&id).filter(|actor| may_restart(state, actor)) {
        Some(_) => begin_again(state, effects, id, &death),
        None => die(state, effects, id, death),
    }
}

fn begin_again(state: &mut State, effects: &mut impl Effects, id: TaskId, death: &Death) {
    let Some(actor) = state.actors.all.get_mut(&id) else { return };
    actor.restarts += 1;
    actor.life = Life::Restarting;
    effects.journal_actor(id, actor.attempt, actor.restarts, None);
    let left = actor.max_restarts - actor.restarts;
    effects.log(format!("actor {id} ({}) is made again, {left} more times at most: {}", actor.target(), death.cause));
    state.actors.to_place.insert(id);
}

/// An actor is dead from now on: its name is free, and what waits for it fails with the next turn.
fn die(state: &mut State, effects: &mut impl Effects, id: TaskId, death: Death) {
    let Some(actor) = state.actors.all.get_mut(&id).filter(|actor| !actor.is_dead()) else { return };
    let kept_inputs = matches!(actor.life, Life::Alive | Life::Restarting);
    effects.log(format!("actor {id} ({}) is dead: {}", actor.target(), death.cause));
    if kept_inputs {
        effects.journal_actor(id, actor.attempt, actor.restarts, Some(&death));
    }
    let calls = end_life(state, id, death);
    for call in calls {
        let failure = line_up(state, call);
        let Some(task) = state.tasks.get_mut(call) else { continue };
        if matches!(task.progress(), Progress::Waiting) {
            task.advance(call, Event::Held, &mut state.tally);
        }
        state.without_input.extend(failure.map(|failure| (call, failure)));
    }
    if kept_inputs {
        inputs::release(state, id);
    }
}

fn end_life(state: &mut State, id: TaskId, death: Death) -> BTreeSet<TaskId> {
    let Some(actor) = state.actors.all.get_mut(&id) else { return BTreeSet::new() };
    if state.actors.names.get(&actor.name) == Some(&id) {
        state.actors.names.remove(&actor.name);
    }
    actor.life = Life::Dead(death);
    let calls = std::mem::take(&mut actor.calls);
    let job = actor.job;
    state.actors.to_place.remove(&id);
    state.actors.to_serve.remove(&id);
    super::reactor::keep_no_longer(state, id);
    if let Some(bound) = state.actors.bound.get_mut(&job)
        && bound.remove(&id)
        && bound.is_empty()
    {
        state.actors.bound.remove(&job);
    }
    calls
}

/// Someone wants an actor to end, or its job has ended. False when there is nothing to end.
pub(super) fn end(
    state: &mut State,
    effects: &mut impl Effects,
    id: TaskId,
    cause: &str,
    grace_ns: Option<u64>,
    now: Now,
) -> bool {
    let Some(actor) = state.actors.all.get(&id).filter(|actor| !actor.is_dead()) else { return false };
    let worker_id = actor.worker;
    if actor.life == Life::Pending {
        // It is still a task like any other.
        super::reactor::on_cancel(state, effects, id, grace_ns, now);
        return true;
    }
    die(state, effects, id, Death::of(cause));
    let Some(worker_id) = worker_id else { return true };
    super::reactor::take_back_unclaimed(state, effects, worker_id);
    // If it was to be made again there and that had not begun, the worker is any task's again.
    let worker = state.workers.get_mut(&worker_id).filter(|worker| worker.actor == Some(id));
    let Some(mut worker) = worker else { return true };
    let default_ns = u64::try_from(DEFAULT_GRACE.as_nanos()).unwrap_or(u64::MAX);
    let grace_ns = grace_ns.unwrap_or(default_ns);
    worker.ending.get_or_insert(Ending::ActorEnded { actor: id, until_ns: now.monotonic_ns.saturating_add(grace_ns) });
    worker.phase = WorkerPhase::Stopping;
    if grace_ns == 0 {
        effects.kill(worker_id);
    } else {
        effects.ask_to_end(worker_id);
    }
    true
}

/// Ends the actors of jobs that have ended.
pub(super) fn end_with_jobs(state: &mut State, effects: &mut impl Effects, now: Now) {
    for job in std::mem::take(&mut state.actors.ended_jobs) {
        let goes_on = state.actors.open.contains_key(&job) || state.actors.connected.contains(&job);
        let bound = state.actors.bound.get(&job).filter(|_| !goes_on);
        for id in bound.cloned().unwrap_or_default() {
            end(state, effects, id, "the job that had created it has ended", None, now);
        }
    }
}

/// A driver has connected, and this is its job.
pub fn on_driver(state: &mut State, job: JobId) {
    state.actors.connected.insert(job);
}

/// The driver of a job is gone.
pub fn on_driver_gone(state: &mut State, job: JobId) {
    state.actors.connected.remove(&job);
    note_if_over(&mut state.actors, job);
}

/// No worker is left, and none will be started.
pub(super) fn fail_all(state: &mut State, effects: &mut impl Effects, message: &str) {
    for id in std::mem::take(&mut state.actors.to_place) {
        if is_restart(state, id) {
            die(state, effects, id, Death::of(format!("no worker can run it: {message}")));
        } else {
            state.actors.to_place.insert(id);
        }
    }
}

/// The head stops: no actor is there afterwards.
pub(super) fn on_stop(state: &mut State, effects: &mut impl Effects) {
    for id in state.actors.all.keys().copied().collect::<Vec<_>>() {
        if keeps_inputs(state, id) {
            die(state, effects, id, Death::of("the head was stopped"));
        }
    }
}

/// What the journal says of an actor is read back.
pub fn on_restored_actor(state: &mut State, id: TaskId, attempt: u32, restarts: u32, death: Option<Death>) {
    let Some(actor) = state.actors.all.get_mut(&id) else { return };
    (actor.attempt, actor.restarts) = (attempt, restarts);
    if let Some(death) = death {
        end_life(state, id, death);
    }
}

/// The end of a creation is read back.
pub(super) fn on_restored_end(state: &mut State, id: TaskId, attempt: u32, ended: &Ended) {
    let Some(actor) = state.actors.all.get_mut(&id) else { return };
    match &ended.outcome {
        Outcome::Failed(failure) => {
            let death = Death::of(failed_to_begin(failure));
            end_life(state, id, death);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed if !actor.is_dead() => {
            actor.life = Life::Alive;
            actor.attempt = actor.attempt.max(attempt);
        }
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => {}
    }
}

const JOB_GONE: &str = "the head died, and the job that had created it is gone";

/// Everything is read back. What lived has lost its worker with the head; of those, the detached begin again as often as they may.
pub(super) fn on_restored(state: &mut State, effects: &mut impl Effects, claimed: impl Fn(TaskId) -> Option<u32>) {
    state.actors.open = open_tasks(state);
    for id in state.actors.all.keys().copied().collect::<Vec<_>>() {
        let Some(actor) = state.actors.all.get_mut(&id) else { continue };
        // What the dead head's workers had claimed of further creations counts.
        actor.attempt = actor.attempt.max(claimed(id).unwrap_or(0));
        let death = Death::of("the head died, and its worker with it");
        let may_restart = actor.restarts < actor.max_restarts;
        match (&actor.life, actor.is_detached) {
            (Life::Dead(_), _) | (Life::Pending, true) => {}
            // It fails with the next turn.
            (Life::Pending, false) => drop(end_life(state, id, Death::of(JOB_GONE))),
            (Life::Alive | Life::Restarting, true) if may_restart => {
                begin_again(state, effects, id, &death);
            }
            (Life::Alive | Life::Restarting, true) => die(state, effects, id, death),
            (Life::Alive | Life::Restarting, false) => {
                die(state, effects, id, Death::of(JOB_GONE));
            }
        }
    }
}

/// How many tasks of each job have not ended.
fn open_tasks(state: &State) -> BTreeMap<JobId, usize> {
    let mut open = BTreeMap::new();
    for (_, task) in state.tasks.iter_newest_first().filter(|(_, task)| !matches!(task.progress(), Progress::Ended(_)))
    {
        *open.entry(task.job).or_default() += 1;
    }
    open
}

/// The rows of every actor that is remembered, newest first.
pub fn list(state: &State) -> Vec<ActorReport> {
    state.actors.all.iter().rev().map(|(&id, actor)| report(state, id, actor)).collect()
}

/// One actor, by its id or its name; else why there is none.
pub fn find(state: &State, wanted: &str) -> Result<ActorReport, String> {
    // The dead have no name any more; the newest that had it says why.
    let by_name = state.actors.names.get(wanted).copied();
    let dead = || state.actors.all.iter().rev().find(|(_, actor)| *actor.name == *wanted).map(|(&id, _)| id);
    let id = by_name.or_else(dead).or_else(|| wanted.parse().ok());
    if let Some((id, actor)) = id.and_then(|id| Some((id, state.actors.all.get(&id)?))) {
        return Ok(report(state, id, actor));
    }
    match id.filter(|&id| state.tasks.get(id).is_some()) {
        Some(id) => Err(format!("task {id} is no actor")),
        None => {
            let names = state.actors.all.values().map(|actor| &*actor.name).filter(|name| !name.is_empty());
            Err(format!("there is no actor `{wanted}`{}", suggestion::hint(wanted, names)))
        }
    }
}

/// The versions of their modules that actors are of that are not dead.
pub fn versions(state: &State) -> impl Iterator<Item = ModuleVersion> {
    state.actors.all.values().filter(|actor| !actor.is_dead()).filter_map(Actor::version)
}

fn report(state: &State, id: TaskId, actor: &Actor) -> ActorReport {
    let version = actor.version();
    let worker = actor.worker.and_then(|worker| Some((worker, state.workers.get(&worker)?)));
    let is_call = |grant: &&Grant| grant.task != id;
    ActorReport {
        id,
        name: (!actor.name.is_empty()).then(|| actor.name.to_string()),
        module: actor.module.to_string(),
        type_name: actor.type_name.to_string(),
        state: match actor.life {
            Life::Pending => ActorState::Pending,
            Life::Alive => ActorState::Alive,
            Life::Restarting => ActorState::Restarting,
            Life::Dead(_) => ActorState::Dead,
        },
        reason: match &actor.life {
            Life::Dead(death) => Some(death.cause.clone()),
            Life::Pending | Life::Alive | Life::Restarting => None,
        },
        job_id: actor.job,
        is_detached: actor.is_detached,
        worker_id: worker.map(|(id, _)| id),
        worker_pid: worker.map(|(_, worker)| worker.pid),
        restarts: actor.restarts,
        max_restarts: actor.max_restarts,
        max_call_retries: actor.max_call_retries,
        calls_waiting: actor.calls.len(),
        calls_leased: worker.map_or(0, |(_, worker)| worker.leases.iter().filter(is_call).count()),
        created_unix_nano: actor.submitted_unix_nano,
        module_version: version.map(|version| version.to_string()),
        is_outdated: !actor.is_dead() && version.is_some_and(|version| state.versions.is_outdated(version)),
    }
}

/// Contradictions among actors, as a sentence. For [`State::check`].
pub(super) fn check(state: &State) -> Result<(), String> {
    let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
    for (&id, actor) in &state.actors.all {
        let creation = state.tasks.get(id);
        ensure(creation.is_some(), format!("actor {id} has no task"))?;
        let has_ended = creation.is_some_and(|task| matches!(task.progress(), Progress::Ended(_)));
        let has_lived = matches!(actor.life, Life::Alive | Life::Restarting);
        ensure(!has_lived || has_ended, format!("actor {id} lives before its creation has ended"))?;
        ensure(actor.life != Life::Pending || !has_ended, format!("actor {id} waits for a creation that has ended"))?;
        ensure(!actor.is_dead() || actor.calls.is_empty(), format!("actor {id} is dead and has calls"))?;
        if let Some(worker) = actor.worker.filter(|_| !actor.is_dead()) {
            let knows = state.workers.get(&worker).is_some_and(|worker| worker.actor == Some(id));
            ensure(knows, format!("actor {id} has worker {worker}, which does not know"))?;
        }
        let is_leased = actor.worker.is_some();
        ensure(
            !(is_leased && state.actors.to_place.contains(&id)),
            format!("actor {id} has a worker and waits for one"),
        )?;
        for call in &actor.calls {
            let progress = state.tasks.get(*call).map(|task| task.progress());
            let waits = matches!(progress, Some(Progress::Waiting | Progress::Held));
            ensure(waits, format!("call {call} is in line and does not wait"))?;
        }
    }
    let open = open_tasks(state);
    ensure(
        open == state.actors.open,
        format!("{open:?} tasks of jobs have not ended, {:?} counted", state.actors.open),
    )?;
    for (job, bound) in &state.actors.bound {
        let is_bound = |actor: &Actor| actor.job == *job && !actor.is_detached && !actor.is_dead();
        let all = state.actors.all.iter().filter(|(_, actor)| is_bound(actor)).map(|(id, _)| id);
        ensure(!bound.is_empty() && all.eq(bound), format!("job {job} does not know its actors"))?;
    }
    for (name, id) in &state.actors.names {
        let holds = state.actors.all.get(id).is_some_and(|actor| *actor.name == **name && !actor.is_dead());
        ensure(holds, format!("the name `{name}` is that of actor {id}, which does not know"))?;
    }
    Ok(())
}

/// Why a creation or a call waits, for [`explain`](super::explain).
pub(super) fn why_it_waits(state: &State, id: TaskId) -> Option<tracer_ipc::protocol::Reason> {
    use tracer_ipc::protocol::Reason;
    match state.tasks.get(id)?.actor {
        Part::None => None,
        Part::Creation => {
            let most = state.max_processes.max(state.workers_wanted);
            let before = state.actors.to_place.iter().take_while(|&&other| other != id).count();
            if placeable(state) > before {
                return Some(Reason::NoWorkerReady { starting: state.workers.starting(), why: None });
            }
            Some(Reason::NoProcessForActor { actors: state.workers.of_actors(), max_processes: most, before })
        }
        Part::Call(actor_id) => {
            let actor = state.actors.all.get(&actor_id)?;
            let before = actor.calls.iter().take_while(|&&other| other != id).count();
            let row = report(state, actor_id, actor);
            Some(Reason::AwaitsActor { actor: actor_id, state: row.state, calls_before: before + row.calls_leased })
        }
    }
}
