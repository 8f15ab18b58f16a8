//! Random histories of actors: whatever happens, every task ends once and calls keep their order.

use crate::testing::*;

#[derive(Clone, Debug)]
enum Step {
    Create {
        restarts: u32,
        retries: u32,
        is_detached: bool,
    },
    Call {
        place: usize,
        is_alone: bool,
    },
    Task,
    /// The head places what waits, and workers that were started get ready.
    Turn,
    /// A worker begins its next lease.
    Claim {
        place: usize,
    },
    /// A worker ends one that it has begun, of an actor's perhaps not the first.
    End {
        place: usize,
        which: usize,
        fails: bool,
    },
    Exit {
        place: usize,
    },
    Cancel {
        task: u64,
    },
    DriverGone,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..3_u32, 0..2_u32, any::<bool>())
            .prop_map(|(restarts, retries, is_detached)| Step::Create { restarts, retries, is_detached }),
        6 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(place, is_alone)| Step::Call { place, is_alone }),
        2 => Just(Step::Task),
        6 => Just(Step::Turn),
        6 => any::<usize>().prop_map(|place| Step::Claim { place }),
        5 => (any::<usize>(), any::<usize>(), prop::bool::weighted(0.2))
            .prop_map(|(place, which, fails)| Step::End { place, which, fails }),
        2 => any::<usize>().prop_map(|place| Step::Exit { place }),
        1 => (1..60_u64).prop_map(|task| Step::Cancel { task }),
        1 => Just(Step::DriverGone),
    ]
}

/// The last call that was begun of an actor in a worker.
type Begun = HashMap<(u64, TaskId), TaskId>;

impl Story {
    fn worker_at(&self, place: usize) -> Option<u64> {
        let workers: Vec<_> = self.state.workers.keys().collect();
        workers.get(place % workers.len().max(1)).map(|id| id.0)
    }

    fn leases_in(&self, worker: u64, wanted: ClaimState) -> Vec<(u64, TaskId)> {
        let id = WorkerId(worker);
        let grants = self.state.workers[&id].leases.iter();
        let found = grants.filter(|grant| self.effects.claim_state(id, grant.number) == wanted);
        found.map(|grant| (grant.number, grant.task)).collect()
    }

    /// Begins the next lease of a worker, and expects that its calls begin in their order.
    fn claim_next(&mut self, worker: u64, begun: &mut Begun) -> bool {
        let id = WorkerId(worker);
        let actor = self.state.workers[&id].actor;
        let is_busy = actor.is_none() && !self.leases_in(worker, ClaimState::Claimed).is_empty();
        let granted = self.leases_in(worker, ClaimState::Granted);
        let Some(&(lease, task)) = granted.first().filter(|_| !is_busy) else { return false };
        self.claim(worker, lease);
        if let Some(actor) = actor {
            assert!(
                begun.insert((worker, actor), task).is_none_or(|before| before < task),
                "call {task} overtook another"
            );
        }
        true
    }

    fn end_one(&mut self, worker: u64, which: usize, fails: bool) -> bool {
        let begun = self.leases_in(worker, ClaimState::Claimed);
        let Some(&(lease, _)) = begun.get(which % begun.len().max(1)) else { return false };
        if fails {
            self.fail(worker, lease)
        } else {
            self.result(worker, lease, 1_000)
        }
        true
    }

    fn take_step(&mut self, step: &Step, created: &mut Vec<TaskId>, begun: &mut Begun) {
        match *step {
            Step::Create { restarts, retries, is_detached } => {
                let limits = ActorOptions { max_restarts: restarts, max_call_retries: retries, ..NAMED };
                created.push(self.create(ActorOptions { name: "", is_detached, ..limits }));
            }
            Step::Call { place, is_alone } => {
                let Some(&actor) = created.get(place % created.len().max(1)) else { return };
                let limit = if is_alone { Duration::from_secs(60) } else { Duration::ZERO };
                self.call_with(actor, None, &[], limit);
            }
            Step::Task => self.submit(1),
            Step::Turn => {
                self.get_ready();
                self.schedule();
            }
            Step::Claim { place } => {
                let Some(worker) = self.worker_at(place) else { return };
                self.claim_next(worker, begun);
            }
            Step::End { place, which, fails } => {
                let Some(worker) = self.worker_at(place) else { return };
                self.end_one(worker, which, fails);
            }
            Step::Exit { place } => {
                let Some(worker) = self.worker_at(place) else { return };
                self.state.starts.note_success();
                self.exit(worker);
            }
            Step::Cancel { task } => {
                on_cancel(&mut self.state, &mut self.effects, TaskId(task), None, self.now);
                self.check();
            }
            Step::DriverGone => on_driver_gone(&mut self.state, JobId(1)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_to_actors_every_task_ends_once_and_calls_keep_their_order(
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut story = Story::with_room(2);
        on_driver(&mut story.state, JobId(1));
        let (mut created, mut begun) = (Vec::new(), HashMap::new());
        for step in &steps {
            story.take_step(step, &mut created, &mut begun);
        }
        // Everything comes to its end: what is being ended dies, what runs returns, and actors make room for each other.
        for round in 0..2000 {
            let open = story.state.tasks.iter_newest_first().filter(|(_, task)| !matches!(task.progress(), Progress::Ended(_)));
            if open.count() == 0 {
                break;
            }
            prop_assert!(round < 1999, "some task never ends: {:?}", story.state);
            let ending = |(_, worker): &(WorkerId, &Worker)| worker.ending().is_some() || worker.ends_attempt();
            let ending: Vec<_> = story.state.workers.iter().filter(ending).map(|(id, _)| id.0).collect();
            ending.into_iter().for_each(|worker| drop(story.exit(worker)));
            story.get_ready();
            story.schedule();
            let mut is_idle = true;
            for worker in story.state.workers.keys().map(|id| id.0).collect::<Vec<_>>() {
                is_idle &= !story.claim_next(worker, &mut begun);
                is_idle &= !story.end_one(worker, 0, false);
            }
            let living = created.iter().copied().find(|&id| find_actor(&story.state, &id.to_string())
                .is_ok_and(|actor| actor.state == ActorState::Alive));
            if let Some(living) = living.filter(|_| is_idle) {
                on_cancel(&mut story.state, &mut story.effects, living, Some(0), story.now);
                story.check();
            }
        }
        let mut told = HashSet::new();
        for (tag, _) in &story.effects.finished {
            prop_assert!(told.insert(*tag), "{tag} was told twice");
        }
        prop_assert_eq!(told.len() as u64, story.next_tag);
    }
}
