use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::state::{needs::Needs, now::Now, task::Task};
use rustc_hash::FxHashMap;
use tracer_core::task::{JobId, TaskId};

/// Time that a task has to wait for its priority to count as one higher.
pub(crate) const SECONDS_PER_POINT: i64 = 60;

/// A place in the order of priorities: higher comes first. It is the same for as long as a task waits, since all of them age alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank(i64);

impl Rank {
    /// Makes the rank of a task of this priority that was submitted then.
    pub(crate) fn new(priority: i8, submitted_s: u32) -> Rank {
        Rank(i64::from(priority) * SECONDS_PER_POINT - i64::from(submitted_s))
    }

    /// Returns the rank of a task.
    pub(crate) fn of(task: &Task) -> Rank {
        Rank::new(task.extra.priority, submitted_s(task))
    }

    /// Returns the priority with what the wait counts for.
    pub(crate) fn points(self, now_unix_nano: u64) -> i64 {
        let now_s = i64::try_from(now_unix_nano / NANOS_PER_SECOND).unwrap_or(i64::MAX);
        self.0.saturating_add(now_s).div_euclid(SECONDS_PER_POINT)
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Returns when a task was submitted, in seconds since the Unix epoch.
fn submitted_s(task: &Task) -> u32 {
    u32::try_from(task.submitted_unix_nano / NANOS_PER_SECOND).unwrap_or(u32::MAX)
}

/// Tasks of equal needs that wait for their turn. Those that tasks have submitted come before those of drivers: what has begun shall end before
/// more is begun. Among each of them a task of higher *priority* comes first, and each [`SECONDS_PER_POINT`] that a task has waited since its
/// submission count as one more: so nothing starves, and of two tasks the order is the same at any time. Among tasks of equal priority jobs take
/// turns, a task each, and within a job the order is that of submission.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueue {
    of_tasks: Levels,
    of_drivers: Levels,
}

impl ReadyQueue {
    /// Returns their number.
    pub(crate) fn len(&self) -> usize {
        self.of_tasks.len() + self.of_drivers.len()
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the task whose turn it is.
    pub(crate) fn front(&self) -> Option<&TaskId> {
        self.of_tasks.front().or_else(|| self.of_drivers.front()).map(|waiting| &waiting.id)
    }

    /// Returns whether any of them has a priority.
    pub(crate) fn has_priorities(&self) -> bool {
        !self.of_tasks.others.is_empty() || !self.of_drivers.others.is_empty()
    }

    /// Returns the rank of the one whose turn it is.
    pub(crate) fn front_rank(&self) -> Option<Rank> {
        self.of_tasks.front_rank().or_else(|| self.of_drivers.front_rank())
    }

    /// Takes out whose turn it is.
    pub(crate) fn pop_front(&mut self) -> Option<TaskId> {
        self.of_tasks.pop_front().or_else(|| self.of_drivers.pop_front())
    }

    /// Adds a task behind all of its kind, priority and job.
    pub(crate) fn add_last(&mut self, id: TaskId, task: &Task) {
        let waiting = Waiting { id, submitted_s: submitted_s(task) };
        self.levels(task).level(task.extra.priority).push_back(waiting, task.job);
    }

    /// Adds a task before all of its kind, priority and job.
    pub(crate) fn add_first(&mut self, id: TaskId, task: &Task) {
        let waiting = Waiting { id, submitted_s: submitted_s(task) };
        self.levels(task).level(task.extra.priority).push_front(waiting, task.job);
    }

    /// Takes a task out, wherever it is.
    pub(crate) fn take_out(&mut self, id: TaskId, task: &Task) {
        self.levels(task).remove(id, task.extra.priority, task.job);
    }

    /// Returns all of them, in the order of their turn.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.of_tasks.iter().chain(self.of_drivers.iter())
    }

    fn levels(&mut self, task: &Task) -> &mut Levels {
        if task.submitter.is_some() { &mut self.of_tasks } else { &mut self.of_drivers }
    }
}

/// Tasks by priority.
#[derive(Debug, Default)]
struct Levels {
    /// Tasks of priority 0, which nearly all have.
    plain: Turns,
    /// The others. None is empty.
    others: BTreeMap<i8, Turns>,
}

impl Levels {
    fn len(&self) -> usize {
        let others: usize = self.others.values().map(|turns| turns.len).sum();
        self.plain.len + others
    }

    /// Returns the level whose first task is the first of all.
    fn first(&self) -> i8 {
        if self.others.is_empty() {
            return 0;
        }
        let ranks = self.iter_levels().filter_map(|(level, turns)| Some((turns.front()?.rank(level), level)));
        ranks.max().map_or(0, |(_, level)| level)
    }

    fn iter_levels(&self) -> impl Iterator<Item = (i8, &Turns)> {
        std::iter::once((0, &self.plain)).chain(self.others.iter().map(|(&level, turns)| (level, turns)))
    }

    fn turns(&self, level: i8) -> Option<&Turns> {
        if level == 0 { Some(&self.plain) } else { self.others.get(&level) }
    }

    fn front(&self) -> Option<&Waiting> {
        self.turns(self.first())?.front()
    }

    fn front_rank(&self) -> Option<Rank> {
        let level = self.first();
        self.turns(level)?.front().map(|waiting| waiting.rank(level))
    }

    fn pop_front(&mut self) -> Option<TaskId> {
        let level = self.first();
        if level == 0 {
            return self.plain.pop_front();
        }
        let turns = self.others.get_mut(&level)?;
        let id = turns.pop_front();
        if turns.len == 0 {
            self.others.remove(&level);
        }
        id
    }

    /// Returns the level of a priority, for a task that is about to be added.
    fn level(&mut self, priority: i8) -> &mut Turns {
        if priority == 0 { &mut self.plain } else { self.others.entry(priority).or_default() }
    }

    fn remove(&mut self, id: TaskId, priority: i8, job: JobId) {
        if priority == 0 {
            return self.plain.remove(id, job);
        }
        let Some(turns) = self.others.get_mut(&priority) else { return };
        turns.remove(id, job);
        if turns.len == 0 {
            self.others.remove(&priority);
        }
    }

    fn iter(&self) -> impl Iterator<Item = TaskId> {
        let mut levels: Vec<_> = self.iter_levels().map(|(level, turns)| (level, turns.iter().peekable())).collect();
        std::iter::from_fn(move || {
            if let [(_, plain)] = levels.as_mut_slice() {
                return plain.next().map(|waiting| waiting.id);
            }
            let ranks = levels.iter_mut().enumerate();
            let ranks = ranks.filter_map(|(index, (level, turns))| Some((turns.peek()?.rank(*level), *level, index)));
            let (_, _, index) = ranks.max()?;
            levels[index].1.next().map(|waiting| waiting.id)
        })
    }
}

/// A task that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    id: TaskId,
    submitted_s: u32,
}

impl Waiting {
    fn rank(self, priority: i8) -> Rank {
        Rank::new(priority, self.submitted_s)
    }
}

/// Jobs that take turns. What is done for a turn costs the same however many jobs and tasks there are.
#[derive(Debug, Default)]
struct Turns {
    /// Jobs that have tasks here, in the order of their turn.
    jobs: VecDeque<JobId>,
    /// Their tasks; never empty.
    tasks: FxHashMap<JobId, VecDeque<Waiting>>,
    len: usize,
    /// Room for the tasks of the next job, left by one that has none any more.
    spare: VecDeque<Waiting>,
}

/// Tasks for which room is kept.
const SPARE_LIMIT: usize = 1024;

impl Turns {
    fn front(&self) -> Option<&Waiting> {
        self.tasks.get(self.jobs.front()?)?.front()
    }

    fn pop_front(&mut self) -> Option<TaskId> {
        let job = *self.jobs.front()?;
        let tasks = self.tasks.get_mut(&job)?;
        let Waiting { id, .. } = tasks.pop_front()?;
        self.len -= 1;
        if tasks.is_empty() {
            self.jobs.pop_front();
            self.forget(job);
        } else {
            self.jobs.rotate_left(1);
        }
        Some(id)
    }

    fn push_back(&mut self, waiting: Waiting, job: JobId) {
        self.len += 1;
        if let Some(tasks) = self.tasks.get_mut(&job) {
            return tasks.push_back(waiting);
        }
        self.jobs.push_back(job);
        self.begin(waiting, job);
    }

    fn push_front(&mut self, waiting: Waiting, job: JobId) {
        self.len += 1;
        if let Some(tasks) = self.tasks.get_mut(&job) {
            return tasks.push_front(waiting);
        }
        self.jobs.push_front(job);
        self.begin(waiting, job);
    }

    fn begin(&mut self, waiting: Waiting, job: JobId) {
        let mut tasks = std::mem::take(&mut self.spare);
        tasks.push_back(waiting);
        self.tasks.insert(job, tasks);
    }

    fn forget(&mut self, job: JobId) {
        if let Some(tasks) = self.tasks.remove(&job).filter(|tasks| tasks.capacity() <= SPARE_LIMIT) {
            self.spare = tasks;
        }
    }

    fn remove(&mut self, id: TaskId, job: JobId) {
        let Some(tasks) = self.tasks.get_mut(&job) else { return };
        // From both ends: whoever takes many out takes the oldest or the newest.
        let last = tasks.len().saturating_sub(1);
        let near = |distance| [distance, last - distance].into_iter().find(|&place| tasks[place].id == id);
        let Some(place) = (0..=last / 2).find_map(near) else { return };
        tasks.remove(place);
        self.len -= 1;
        if tasks.is_empty() {
            self.jobs.retain(|&other| other != job);
            self.forget(job);
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Waiting> {
        let mut left: VecDeque<_> =
            self.jobs.iter().filter_map(|job| self.tasks.get(job)).map(VecDeque::iter).collect();
        std::iter::from_fn(move || {
            loop {
                let mut tasks = left.pop_front()?;
                if let Some(waiting) = tasks.next() {
                    left.push_back(tasks);
                    return Some(waiting);
                }
            }
        })
    }
}

/// Inserts tasks of priority 0 that were submitted at the beginning of time: for tests of turns alone.
#[cfg(test)]
impl ReadyQueue {
    fn levels_of(&mut self, submitter: Option<TaskId>) -> &mut Levels {
        if submitter.is_some() { &mut self.of_tasks } else { &mut self.of_drivers }
    }

    fn push_back(&mut self, id: TaskId, submitter: Option<TaskId>, job: JobId) {
        self.levels_of(submitter).plain.push_back(Waiting { id, submitted_s: 0 }, job);
    }

    fn push_front(&mut self, id: TaskId, submitter: Option<TaskId>, job: JobId) {
        self.levels_of(submitter).plain.push_front(Waiting { id, submitted_s: 0 }, job);
    }

    fn remove(&mut self, id: TaskId, submitter: Option<TaskId>, job: JobId) {
        self.levels_of(submitter).plain.remove(id, job);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn jobs_take_turns_and_tasks_of_tasks_come_first() {
        let mut queue = ReadyQueue::default();
        for id in 1..=3 {
            queue.push_back(TaskId(id), None, JobId(1));
        }
        queue.push_back(TaskId(4), None, JobId(2));
        queue.push_back(TaskId(5), Some(TaskId(1)), JobId(1));
        queue.push_back(TaskId(6), None, JobId(3));
        let order = [5, 1, 4, 6, 2, 3].map(TaskId);
        assert!(queue.iter().eq(order));
        assert_eq!(queue.len(), order.len());
        let popped: Vec<_> = std::iter::from_fn(|| queue.pop_front()).collect();
        assert_eq!(popped, order);
        assert!(queue.is_empty() && queue.of_drivers.plain.tasks.is_empty() && queue.of_drivers.plain.jobs.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Submit { job: u64 },
        Turn,
        PutBack,
        Remove { place: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..JOBS).prop_map(|job| Step::Submit { job }),
            3 => Just(Step::Turn),
            1 => Just(Step::PutBack),
            1 => any::<usize>().prop_map(|place| Step::Remove { place }),
        ]
    }

    const JOBS: u64 = 5;

    proptest! {
        #[test]
        fn a_job_is_first_in_first_out_and_none_starves(steps in prop::collection::vec(step(), 0..300)) {
            let mut queue = ReadyQueue::default();
            let mut model: BTreeMap<u64, VecDeque<TaskId>> = BTreeMap::new();
            // How many turns of others each job with tasks has seen since its own.
            let mut waited: BTreeMap<u64, u64> = BTreeMap::new();
            let mut last = None;
            for (number, step) in (1..).zip(steps) {
                match step {
                    Step::Submit { job } => {
                        queue.push_back(TaskId(number), None, JobId(job));
                        model.entry(job).or_default().push_back(TaskId(number));
                    }
                    Step::Turn => {
                        let announced = queue.iter().next();
                        prop_assert_eq!(queue.front().copied(), announced);
                        let id = queue.pop_front();
                        prop_assert_eq!(id, announced);
                        let Some(id) = id else { continue };
                        let job = model.iter().find(|(_, tasks)| tasks.contains(&id)).map(|(&job, _)| job).unwrap();
                        let tasks = model.get_mut(&job).unwrap();
                        prop_assert_eq!(tasks.pop_front(), Some(id), "first in, first out");
                        last = Some((id, job));
                        waited.remove(&job);
                        for (&other, _) in model.iter().filter(|&(&other, tasks)| other != job && !tasks.is_empty()) {
                            let waited = waited.entry(other).or_default();
                            *waited += 1;
                            prop_assert!(*waited < JOBS, "job {} starves", other);
                        }
                    }
                    Step::PutBack => {
                        let Some((id, job)) = last.take() else { continue };
                        queue.push_front(id, None, JobId(job));
                        model.entry(job).or_default().push_front(id);
                        // Its turn does not count: it was given back.
                        waited.values_mut().for_each(|waited| *waited = waited.saturating_sub(1));
                    }
                    Step::Remove { place } => {
                        let all: Vec<_> = queue.iter().collect();
                        let Some(&id) = all.get(place % all.len().max(1)) else { continue };
                        let (&job, tasks) = model.iter_mut().find(|(_, tasks)| tasks.contains(&id)).unwrap();
                        queue.remove(id, None, JobId(job));
                        tasks.retain(|&known| known != id);
                        if tasks.is_empty() {
                            waited.remove(&job);
                        }
                    }
                }
                let mut all: Vec<_> = queue.iter().collect();
                all.sort();
                let mut expected: Vec<_> = model.values().flatten().copied().collect();
                expected.sort();
                prop_assert_eq!(queue.len(), all.len());
                prop_assert_eq!(all, expected);
            }
        }
    }
}

/// Tasks that wait for their turn, by what they need.
#[derive(Debug, Default)]
pub(crate) struct ReadyQueues {
    /// Tasks that need a slot and nothing else.
    plain: ReadyQueue,
    /// Turn from which the first of those has been first.
    plain_turn: u64,
    /// The others, by what they need. None of them is empty.
    by_needs: BTreeMap<Arc<Needs>, DemandingQueue>,
    /// Number of tasks in those.
    demanding: usize,
    next_turn: u64,
    /// The task for which something is kept, as it was when tasks were begun last.
    reserved_for: Option<TaskId>,
    /// Actors that have calls with priorities, and whether one has come since calls of theirs were leased.
    calls_with_priority: BTreeMap<TaskId, bool>,
}

/// Tasks of equal needs.
#[derive(Debug)]
struct DemandingQueue {
    queue: ReadyQueue,
    /// Queues with lower numbers come first.
    turn: u64,
    /// Time since which its first task has been looked at, by the monotonic clock.
    first_since_ns: Option<u64>,
}

/// Key of a ready queue: the needs of its tasks; none for the plain queue.
pub(crate) type QueueKey = Option<Arc<Needs>>;

impl ReadyQueues {
    /// Returns the queue of the tasks that need a slot and nothing else.
    pub(crate) fn plain(&self) -> &ReadyQueue {
        &self.plain
    }

    /// Returns the needs of the other tasks, each with the number of those that have them.
    pub(crate) fn demands(&self) -> impl Iterator<Item = (&Needs, usize)> {
        self.by_needs.iter().map(|(needs, entry)| (&**needs, entry.queue.len()))
    }

    /// Returns the task for which something is kept, as it was when tasks were begun last.
    pub(crate) fn reserved_for(&self) -> Option<TaskId> {
        self.reserved_for
    }

    /// Sets the task for which something is kept.
    pub(crate) fn reserve_for(&mut self, task: Option<TaskId>) {
        self.reserved_for = task;
    }

    /// Notes that a call with a priority has come to an actor.
    pub(crate) fn note_priority_call(&mut self, actor: TaskId) {
        self.calls_with_priority.insert(actor, true);
    }

    /// Returns whether an actor has calls with priorities.
    pub(crate) fn has_priority_calls(&self, actor: TaskId) -> bool {
        self.calls_with_priority.contains_key(&actor)
    }

    /// Notes that calls of an actor are leased. Returns whether one with a priority has come since they were leased last.
    pub(crate) fn lease_priority_calls(&mut self, actor: TaskId) -> bool {
        self.calls_with_priority.get_mut(&actor).is_some_and(std::mem::take)
    }

    /// Forgets that an actor has calls with priorities: none waits.
    pub(crate) fn forget_priority_calls(&mut self, actor: TaskId) {
        self.calls_with_priority.remove(&actor);
    }

    /// Returns the number of tasks.
    pub(crate) fn len(&self) -> usize {
        self.plain.len() + self.demanding
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.demanding == 0
    }

    /// Returns whether any of them needs something else than a slot.
    pub(crate) fn has_demanding(&self) -> bool {
        self.demanding > 0
    }

    /// Returns the needs in the form in which all tasks with them share them.
    pub(crate) fn share(&self, needs: Needs) -> Arc<Needs> {
        let needs = Arc::new(needs);
        self.by_needs.get_key_value(&needs).map_or(needs, |(known, _)| Arc::clone(known))
    }

    /// Adds a task behind all of its kind and job.
    pub(crate) fn push_back(&mut self, id: TaskId, task: &Task) {
        self.queue_of(task).add_last(id, task);
    }

    /// Adds a task before all of its kind and job.
    pub(crate) fn push_front(&mut self, id: TaskId, task: &Task) {
        self.queue_of(task).add_first(id, task);
    }

    fn queue_of(&mut self, task: &Task) -> &mut ReadyQueue {
        let Some(needs) = &task.needs else { return &mut self.plain };
        self.demanding += 1;
        let next_turn = &mut self.next_turn;
        let entry = self.by_needs.entry(Arc::clone(needs)).or_insert_with(|| {
            *next_turn += 1;
            DemandingQueue { queue: ReadyQueue::default(), turn: *next_turn, first_since_ns: None }
        });
        &mut entry.queue
    }

    /// Takes a task out, wherever it is.
    pub(crate) fn remove(&mut self, id: TaskId, task: &Task) {
        let Some(needs) = &task.needs else { return self.plain.take_out(id, task) };
        let Some(entry) = self.by_needs.get_mut(needs) else { return };
        let was_first = entry.queue.front() == Some(&id);
        let before = entry.queue.len();
        entry.queue.take_out(id, task);
        self.demanding -= before - entry.queue.len();
        if was_first {
            entry.first_since_ns = None;
        }
        if entry.queue.is_empty() {
            self.by_needs.remove(needs);
        }
    }

    /// Returns the task whose turn it is in a queue.
    pub(crate) fn front(&self, key: &QueueKey) -> Option<TaskId> {
        match key {
            None => self.plain.front().copied(),
            Some(needs) => self.by_needs.get(needs)?.queue.front().copied(),
        }
    }

    /// Takes out whose turn it is in a queue.
    pub(crate) fn pop_front(&mut self, key: &QueueKey) -> Option<TaskId> {
        let Some(needs) = key else { return self.plain.pop_front() };
        let entry = self.by_needs.get_mut(needs)?;
        let id = entry.queue.pop_front()?;
        self.demanding -= 1;
        if entry.queue.is_empty() {
            self.by_needs.remove(needs);
        }
        Some(id)
    }

    /// Notes that a queue has had its turn.
    pub(crate) fn end_turn(&mut self, key: &QueueKey) {
        self.next_turn += 1;
        match key {
            None => self.plain_turn = self.next_turn,
            Some(needs) => {
                if let Some(entry) = self.by_needs.get_mut(needs) {
                    entry.turn = self.next_turn;
                    entry.first_since_ns = None;
                }
            }
        }
    }

    /// Returns the queues that have tasks, in the order of their turn, each with since when its first task has been first. If any task has a
    /// priority, queues whose first task has a higher one come first, with what its wait counts for.
    pub(crate) fn in_turn(&mut self, now: Now) -> Vec<(QueueKey, u64)> {
        let has_priorities =
            self.plain.has_priorities() || self.by_needs.values().any(|entry| entry.queue.has_priorities());
        let points = |queue: &ReadyQueue| match queue.front_rank().filter(|_| has_priorities) {
            Some(rank) => Reverse(rank.points(now.unix_nano)),
            None => Reverse(0),
        };
        let mut queues: Vec<_> = Vec::with_capacity(self.by_needs.len() + 1);
        for (needs, entry) in &mut self.by_needs {
            let since = *entry.first_since_ns.get_or_insert(now.monotonic_ns);
            queues.push(((points(&entry.queue), entry.turn), Some(Arc::clone(needs)), since));
        }
        if !self.plain.is_empty() {
            queues.push(((points(&self.plain), self.plain_turn), None, now.monotonic_ns));
        }
        queues.sort_unstable_by_key(|&(place, ..)| place);
        queues.into_iter().map(|(_, key, since)| (key, since)).collect()
    }

    /// Returns all of them, queue after queue, each in the order of its turn.
    pub(crate) fn iter(&self) -> impl Iterator<Item = TaskId> {
        self.plain.iter().chain(self.by_needs.values().flat_map(|entry| entry.queue.iter()))
    }

    /// Returns the tasks of a task's queue, in the order of their turn.
    pub(crate) fn alike(&self, task: &Task) -> impl Iterator<Item = TaskId> {
        let queue = match &task.needs {
            None => Some(&self.plain),
            Some(needs) => self.by_needs.get(needs).map(|entry| &entry.queue),
        };
        queue.into_iter().flat_map(ReadyQueue::iter)
    }

    /// Fails with a sentence when the parts contradict each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        let counted: usize = self.by_needs.values().map(|entry| entry.queue.len()).sum();
        if counted != self.demanding || self.by_needs.values().any(|entry| entry.queue.is_empty()) {
            return Err(format!("{counted} tasks need more than a slot, {} counted", self.demanding));
        }
        Ok(())
    }
}
