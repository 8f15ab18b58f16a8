use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::actor::Actor;
use tracer_core::task::{JobId, TaskId};
use tracer_ipc::protocol::Lease;

/// Every actor that is remembered, with its name, and the jobs that actors end with.
///
/// The indexes by name and by job are changed together with the actors that they lead to, in the methods below and nowhere else.
#[derive(Debug, Default)]
pub(crate) struct Actors {
    all: BTreeMap<TaskId, Actor>,
    /// Actors that are not dead and have a name, by it.
    names: HashMap<Box<str>, TaskId>,
    /// Actors that wait for a worker of their own.
    to_place: BTreeSet<TaskId>,
    /// Number of tasks of each job that have not ended; none for jobs without.
    open: BTreeMap<JobId, usize>,
    /// Actors that are to end with their jobs and are not dead, by job.
    bound: HashMap<JobId, BTreeSet<TaskId>>,
    /// Jobs whose driver is connected.
    connected: HashSet<JobId>,
}

impl Actors {
    /// Enters an actor, with its name and its job unless it is dead already.
    pub(crate) fn insert(&mut self, id: TaskId, actor: Actor) {
        if !actor.is_dead() {
            if !actor.name.is_empty() {
                self.names.insert(actor.name.clone(), id);
            }
            if !actor.is_detached {
                self.bound.entry(actor.job).or_default().insert(id);
            }
        }
        self.all.insert(id, actor);
    }

    /// Returns an actor.
    pub(crate) fn get(&self, id: TaskId) -> Option<&Actor> {
        self.all.get(&id)
    }

    /// Returns an actor, to change it.
    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut Actor> {
        self.all.get_mut(&id)
    }

    /// Returns every actor, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (TaskId, &Actor)> {
        self.all.iter().map(|(id, actor)| (*id, actor))
    }

    /// Returns every actor, to change it, oldest first.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Actor> {
        self.all.values_mut()
    }

    /// Returns the ids of all actors, oldest first.
    pub(crate) fn ids(&self) -> Vec<TaskId> {
        self.all.keys().copied().collect()
    }

    /// Returns the actor that has a name.
    pub(crate) fn named(&self, name: &str) -> Option<TaskId> {
        self.names.get(name).copied()
    }

    /// Returns every name, with the actor that has it.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, TaskId)> {
        self.names.iter().map(|(name, id)| (&**name, *id))
    }

    /// Takes a dead actor's name from it, its turn for a worker, and the tie to its job.
    pub(crate) fn bury(&mut self, id: TaskId) {
        self.to_place.remove(&id);
        let Some(actor) = self.all.get(&id) else { return };
        if self.names.get(&actor.name) == Some(&id) {
            self.names.remove(&actor.name);
        }
        if let Some(bound) = self.bound.get_mut(&actor.job)
            && bound.remove(&id)
            && bound.is_empty()
        {
            self.bound.remove(&actor.job);
        }
    }

    /// Forgets a dead actor, whose task is forgotten.
    pub(crate) fn forget(&mut self, id: TaskId) {
        self.all.remove(&id);
    }

    /// Lets an actor wait for a worker of its own.
    pub(crate) fn wait_for_worker(&mut self, id: TaskId) {
        self.to_place.insert(id);
    }

    /// Lets an actor wait no longer for a worker of its own.
    pub(crate) fn end_wait_for_worker(&mut self, id: TaskId) {
        self.to_place.remove(&id);
    }

    /// Returns the actors that wait for a worker of their own, oldest first.
    pub(crate) fn waiting_for_worker(&self) -> &BTreeSet<TaskId> {
        &self.to_place
    }

    /// Takes out all actors that wait for a worker of their own.
    pub(crate) fn take_waiting_for_worker(&mut self) -> BTreeSet<TaskId> {
        std::mem::take(&mut self.to_place)
    }

    /// Counts a task of a job that was taken in.
    pub(crate) fn begin_task(&mut self, job: JobId) {
        *self.open.entry(job).or_default() += 1;
    }

    /// Counts a task of a job that has ended. Returns whether the job is over and had actors that end with it.
    pub(crate) fn end_task(&mut self, job: JobId) -> bool {
        let Some(open) = self.open.get_mut(&job) else { return false };
        *open -= 1;
        if *open > 0 {
            return false;
        }
        self.open.remove(&job);
        self.is_over_with_actors(job)
    }

    /// Sets the numbers of tasks of each job that have not ended, after a restore.
    pub(crate) fn set_open_tasks(&mut self, open: BTreeMap<JobId, usize>) {
        self.open = open;
    }

    /// Returns the number of tasks of each job that have not ended.
    pub(crate) fn open_tasks(&self) -> &BTreeMap<JobId, usize> {
        &self.open
    }

    /// Notes that the driver of a job is connected.
    pub(crate) fn connect(&mut self, job: JobId) {
        self.connected.insert(job);
    }

    /// Notes that the driver of a job is gone. Returns whether the job is over and had actors that end with it.
    pub(crate) fn disconnect(&mut self, job: JobId) -> bool {
        self.connected.remove(&job);
        self.is_over_with_actors(job)
    }

    fn is_over_with_actors(&self, job: JobId) -> bool {
        self.bound.contains_key(&job) && !self.resumes(job)
    }

    fn resumes(&self, job: JobId) -> bool {
        self.open.contains_key(&job) || self.connected.contains(&job)
    }

    /// Returns the actors that are to end because their job is over.
    pub(crate) fn left_by(&self, job: JobId) -> BTreeSet<TaskId> {
        self.bound.get(&job).filter(|_| !self.resumes(job)).cloned().unwrap_or_default()
    }

    /// Returns each job that actors end with, with these.
    pub(crate) fn bound(&self) -> impl Iterator<Item = (JobId, &BTreeSet<TaskId>)> {
        self.bound.iter().map(|(job, bound)| (*job, bound))
    }

    /// Returns the lease to make an actor again, whose task remembers its envelope no more.
    pub(crate) fn lease_again<'a>(&'a self, id: TaskId, number: u64, inputs: &'a [u8]) -> Option<Lease<'a>> {
        self.get(id).map(|actor| Lease {
            number,
            task: id,
            attempt: actor.attempt(),
            job: actor.job,
            submitted_unix_nano: actor.submitted_unix_nano,
            previous: actor.span(),
            envelope: &actor.envelope,
            queued: None,
            inputs,
        })
    }

    /// Returns whether the inputs of a creation are needed again.
    pub(crate) fn keeps_inputs(&self, id: TaskId) -> bool {
        self.get(id).is_some_and(Actor::has_lived)
    }

    /// Returns whether a task must be remembered because its actor lives.
    pub(crate) fn is_living(&self, id: TaskId) -> bool {
        self.get(id).is_some_and(|actor| !actor.is_dead())
    }

    /// Returns the module that an actor's type is of, without the folder and the ending of a library.
    pub(crate) fn module_of(&self, id: TaskId) -> Option<&str> {
        self.get(id).map(|actor| tracer_core::task::module_stem(&actor.module))
    }

    /// Returns whether an actor outlives the job that has created it.
    pub(crate) fn is_detached(&self, id: TaskId) -> bool {
        self.get(id).is_some_and(|actor| actor.is_detached)
    }
}
