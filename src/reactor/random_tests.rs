//! Random histories: whatever happens, every task ends once.

use crate::state::task::Task;
use crate::testing::*;

/// Something that may happen.
#[derive(Clone, Debug)]
enum Step {
    Submit(u8),
    Watched,
    Limited,
    /// A task needs the results of two others.
    After(u8, u8),
    /// A task that runs submits another.
    Nested(u8),
    /// A task that runs waits for one, or all, of those that it has submitted.
    Wait(u8, bool),
    Stubborn(u8),
    /// A task that needs so many cpus, gpus and licenses.
    Demand(u8, u8, u8),
    /// A task that runs submits one that needs so many cpus.
    NestedDemand(u8, u8),
    Fail(u8),
    Schedule,
    Claim(u8),
    Result(u8, u32),
    Exit(u8),
    Ready,
    Cancel(u8),
    Tick,
    /// All ended tasks but the newest so many are forgotten.
    Prune(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (1u8..40).prop_map(Step::Submit),
        1 => Just(Step::Watched),
        1 => Just(Step::Limited),
        2 => (any::<u8>(), any::<u8>()).prop_map(|(first, second)| Step::After(first, second)),
        3 => any::<u8>().prop_map(Step::Nested),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(which, for_all)| Step::Wait(which, for_all)),
        1 => (0u8..3).prop_map(Step::Stubborn),
        2 => (0u8..4, 0u8..3, 0u8..2).prop_map(|(cpus, gpus, licenses)| Step::Demand(cpus, gpus, licenses)),
        1 => (any::<u8>(), 0u8..4).prop_map(|(which, cpus)| Step::NestedDemand(which, cpus)),
        2 => any::<u8>().prop_map(Step::Fail),
        3 => Just(Step::Schedule),
        4 => any::<u8>().prop_map(Step::Claim),
        4 => (any::<u8>(), 0u32..4_000_000).prop_map(|(which, run_ns)| Step::Result(which, run_ns)),
        1 => any::<u8>().prop_map(Step::Exit),
        2 => Just(Step::Ready),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => Just(Step::Tick),
        1 => (0u8..20).prop_map(Step::Prune),
    ]
}

/// Returns one of the things that may be chosen, if there are any.
fn pick<T: Copy>(from: &[T], which: u8) -> Option<T> {
    (!from.is_empty()).then(|| from[usize::from(which) % from.len()])
}

impl Story {
    pub(crate) fn leases(&self, wanted: ClaimState) -> Vec<(u64, u64)> {
        let workers = self.state.workers.iter();
        workers
            .flat_map(|(id, worker)| {
                let waits = |task| worker.waits.iter().any(move |wait| wait.task == task);
                let grants = worker.leases.iter().chain(&worker.inline);
                // What waits for others does not end.
                grants.filter(move |grant| !waits(grant.task)).map(move |grant| (id, grant.number))
            })
            .filter(|&(worker, lease)| self.effects.claim_state(worker, lease) == wanted)
            .map(|(worker, lease)| (worker.0, lease))
            .collect()
    }

    /// Returns the task that each worker runs, the innermost, unless it waits.
    pub(crate) fn running(&self) -> Vec<(u64, TaskId)> {
        let running = |(id, worker): (WorkerId, &Worker)| {
            let in_ring = worker.leases.front();
            let in_ring = in_ring.filter(|grant| self.effects.claim_state(id, grant.number) == ClaimState::Claimed);
            let task = worker.inline.last().or(in_ring)?.task;
            (!worker.is_waiting()).then_some((id.0, task))
        };
        self.state.workers.iter().filter_map(running).collect()
    }

    /// Forgets ended tasks until so many are left. What open tasks need stays.
    fn prune_to(&mut self, most: u64) {
        let is_open = |task: &Task| !matches!(task.progress(), Progress::Ended(_));
        let needed: Vec<_> = {
            let open = self.state.tasks.iter_newest_first().filter(|(_, task)| is_open(task));
            let inputs = open.flat_map(|(_, task)| task.links.iter().flat_map(|links| &links.inputs));
            inputs.filter_map(Input::task).filter(|&id| self.state.tasks.get(id).is_some()).collect()
        };
        let which = PruneWhich { max_tasks: Some(most), ..PruneWhich::default() };
        let dry = choose_pruned(&self.state, &PruneWhich { dry_run: true, ..which }, self.now);
        let before = self.state.tasks.len();
        let report = on_prune(&mut self.state, &mut self.effects, &which, self.now);
        assert_eq!(dry.report, report);
        assert_eq!(before - self.state.tasks.len(), dry.tasks.len());
        assert!(report.kept <= most || report.in_use > 0, "{report:?}");
        assert!(dry.tasks.iter().all(|id| self.state.tasks.get(*id).is_none() && self.effects.journaled.contains(id)));
        assert!(needed.iter().all(|id| self.state.tasks.get(*id).is_some()), "an open task lost its argument");
        self.check();
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Submit(count) => self.submit((*count).into()),
            Step::Watched => drop(self.submit_with(None, true)),
            Step::Limited => drop(self.submit_with(Some(Duration::from_millis(1)), false)),
            Step::After(first, second) => {
                let id = |which: u8| TaskId(u64::from(which) % self.state.tasks.next_id().0);
                self.submit_after(&[id(*first), id(*second)]);
            }
            Step::Nested(which) => {
                if let Some((_, task)) = pick(&self.running(), *which) {
                    self.submit_nested(task);
                }
            }
            Step::Wait(which, for_all) => {
                if let Some((worker, task)) = pick(&self.running(), *which) {
                    let children = self.state.tasks.iter_newest_first();
                    let children: Vec<_> = children
                        .filter(|(_, child)| child.submitter == Some(task))
                        .filter(|(_, child)| !matches!(child.progress(), Progress::Ended(_)))
                        .map(|(id, _)| id)
                        .collect();
                    let wanted = if *for_all { children.len() as u32 } else { 1 };
                    self.next_wait += 1;
                    self.wait(worker, self.next_wait, wanted, &children);
                }
            }
            Step::Stubborn(0) => drop(self.submit_policy(Policy { at_most_once: true, ..NEVER_AGAIN })),
            Step::Stubborn(times) => {
                let times = u32::from(*times);
                let again = Policy {
                    retries: times,
                    crash_limit: times,
                    retry_backoff: Duration::from_millis(2),
                    ..NEVER_AGAIN
                };
                self.submit_policy(again);
            }
            Step::Demand(cpus, gpus, licenses) => {
                let amounts = [("gpu", u64::from(*gpus)), ("license", u64::from(*licenses))];
                let resources = amounts.into_iter().filter(|&(_, amount)| amount > 0).collect();
                self.submit_demand(None, Demand { num_cpus: (*cpus).into(), resources, memory_bytes: None });
            }
            Step::NestedDemand(which, cpus) => {
                if let Some((_, task)) = pick(&self.running(), *which) {
                    self.submit_demand(Some(task), Demand { num_cpus: (*cpus).into(), ..Demand::default() });
                }
            }
            Step::Fail(which) => {
                if let Some((worker, lease)) = pick(&self.leases(ClaimState::Claimed), *which) {
                    self.fail(worker, lease);
                }
            }
            Step::Schedule => drop(self.schedule()),
            Step::Claim(which) => {
                if let Some((worker, lease)) = pick(&self.leases(ClaimState::Granted), *which) {
                    self.claim(worker, lease);
                }
            }
            Step::Result(which, run_ns) => {
                if let Some((worker, lease)) = pick(&self.leases(ClaimState::Claimed), *which) {
                    self.result(worker, lease, (*run_ns).into());
                }
            }
            Step::Exit(which) => {
                let workers: Vec<_> = self.state.workers.keys().collect();
                if let Some(worker) = pick(&workers, *which) {
                    self.exit(worker.0);
                }
            }
            Step::Ready => {
                self.start_missing();
                for worker in std::mem::take(&mut self.effects.started) {
                    if self.state.workers.get(&worker).is_some() {
                        self.ready(worker, None);
                    }
                }
            }
            Step::Cancel(which) => {
                let id = TaskId(u64::from(*which) + 1);
                let grace_ns = [None, Some(0)][usize::from(*which) % 2];
                on_cancel(&mut self.state, &mut self.effects, id, grace_ns, self.now);
            }
            Step::Tick => {
                self.now.monotonic_ns += 1_000_000;
                on_tick(&mut self.state, &mut self.effects, START_LIMIT_NS, self.now);
            }
            Step::Prune(most) => self.prune_to((*most).into()),
        }
        // A worker that was killed ends.
        for worker in std::mem::take(&mut self.effects.killed) {
            if self.state.workers.get(&worker).is_some() {
                self.exit(worker.0);
            }
        }
        self.check();
    }
}

proptest! {
    #[test]
    fn whatever_happens_every_task_ends_once(steps in prop::collection::vec(step(), 0..200), more_processes in 0u8..3) {
        let mut story = Story::with_workers(3);
        story.resources(&[("gpu", 2), ("license", 1)]);
        story.state.settings.max_processes = 3 + usize::from(more_processes);
        for step in &steps {
            story.take(step);
        }
        // Then nothing more goes wrong.
        story.state.starts.forgive();
        let mut rounds = 0;
        while story.state.tally.counts().waiting + story.state.tally.counts().leased > 0 {
            rounds += 1;
            prop_assert!(rounds < 100_000, "nothing goes on");
            story.take(&Step::Ready);
            story.take(&Step::Tick);
            story.take(&Step::Schedule);
            for (worker, lease) in story.leases(ClaimState::Granted) {
                story.claim(worker, lease);
            }
            for (worker, lease) in story.leases(ClaimState::Claimed) {
                story.result(worker, lease, 1_000);
            }
        }
        let starts: HashSet<_> = story.effects.starts.iter().map(|(task, _)| task).collect();
        let claimed_twice = story.effects.claimed.iter().filter(|(task, count)| starts.contains(task) && **count > 1);
        prop_assert_eq!(claimed_twice.count(), 0, "what is to start once was started twice");
        let mut tags: Vec<_> = story.finished().into_iter().map(|(tag, _)| tag).collect();
        tags.sort_unstable();
        prop_assert_eq!(tags, (0..story.next_tag).collect::<Vec<_>>());
    }
}
