//! Stories of actors: where they are placed, in which order they are called, and what becomes of them.

use crate::testing::*;

#[test]
fn an_actor_gets_a_worker_for_itself_and_another_one_takes_its_place() {
    let mut story = Story::with_room(2);
    let (actor, worker) = story.living(NAMED);
    assert_eq!(story.state.workers.len(), 2);
    story.submit(1);
    let call = story.call(actor);
    let leases = story.schedule();
    let tasks = leases.iter().find(|lease| lease.0 != worker).unwrap();
    let calls = leases.iter().find(|lease| lease.0 == worker).unwrap();
    assert_eq!((leases.len(), calls.2), (2, call.0));
    story.claim(tasks.0, tasks.1);
    // The pool is busy; a further actor gets a further process.
    let second = story.create(ActorOptions { name: "", ..NAMED });
    assert!(story.schedule().is_empty());
    story.get_ready();
    let leases = story.schedule();
    assert_eq!((leases.len(), leases[0].2), (1, second.0));
}

#[test]
fn at_the_limit_an_actor_waits_and_one_process_is_left_for_tasks() {
    let mut story = Story::with_room(1);
    let (first, worker) = story.living(NAMED);
    let second = story.create(ActorOptions { name: "", ..NAMED });
    story.get_ready();
    assert!(story.schedule().is_empty());
    let explained = explain_task(&story.state, &story.effects, second).unwrap();
    let text = explained.reasons[0].to_string();
    assert!(text.contains("of the 2 that there may be 1 is taken by actors and one is kept for tasks"), "{text}");
    story.submit(1);
    assert_eq!(story.schedule().len(), 1, "tasks go on");
    on_cancel(&mut story.state, &mut story.effects, first, None, story.now);
    story.exit(worker);
    story.get_ready();
    let leases = story.schedule();
    assert_eq!((leases.len(), leases[0].2), (1, second.0));
}

#[test]
fn creations_are_placed_by_priority_and_by_age() {
    const MINUTE: u64 = 60_000_000_000;
    let mut story = Story::with_room(1);
    let create = |story: &mut Story, priority| {
        let actor = ActorRole::Create(ActorOptions { name: "", ..NAMED });
        let function = FunctionSpec { actor, ..FunctionSpec::of_task("counter", "Counter.new", &[0x90]) };
        let policy = Policy { extra: ExtraOptions { priority }, ..NEVER_AGAIN };
        story.submit_envelope(&Envelope { spec: TaskSpec::Function(function), ..plain(policy) })
    };
    let (_, worker) = story.living(NAMED);
    let low = create(&mut story, -3);
    let plain = create(&mut story, 0);
    story.now.unix_nano += 6 * MINUTE;
    let later = create(&mut story, 5);
    let high = create(&mut story, 7);
    assert!(story.schedule().is_empty());
    let order = [high, plain, later, low];
    for (before, id) in order.into_iter().enumerate() {
        assert_eq!(crate::actors::place::count_before(&story.state, id), before);
    }
    let mut placed = worker;
    for id in order {
        story.exit(placed);
        story.get_ready();
        let leases = story.schedule();
        let [(worker, lease, task, _)] = leases[..] else { panic!("{leases:?}") };
        assert_eq!(task, id.0);
        story.claim(worker, lease);
        story.result(worker, lease, 1_000);
        story.get_ready();
        placed = worker;
    }
}

#[test]
fn calls_are_leased_ahead_in_the_order_of_their_submission() {
    let mut story = Story::with_room(1);
    let actor = story.create(NAMED);
    let calls: Vec<_> = (0..300).map(|_| story.call(actor).0).collect();
    let leases = story.schedule();
    assert_eq!((leases.len(), leases[0].2), (1, actor.0), "calls wait for their actor");
    let worker = leases[0].0;
    story.claim(worker, 0);
    story.result(worker, 0, 1_000);
    let first: Vec<_> = story.schedule().iter().map(|lease| lease.2).collect();
    assert_eq!(first, calls[..256]);
    for lease in 1..=2 {
        story.claim(worker, lease);
        story.result(worker, lease, 1_000);
    }
    let next: Vec<_> = story.schedule().iter().map(|lease| lease.2).collect();
    assert_eq!(next, calls[256..258]);
}

#[test]
fn watched_calls_run_beside_each_other_and_never_beside_what_runs_alone() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(NAMED);
    let methods = ActorMethods { actor, concurrent: vec!["Counter.beside".into()], max_concurrency: 2 };
    on_methods(&mut story.state, WorkerId(worker), &methods);
    let mut call = |method, wants_output| {
        let function =
            FunctionSpec { actor: ActorRole::Call(actor), ..FunctionSpec::of_task("counter", method, &[0x90]) };
        let spec = TaskSpec::Function(function);
        story.submit_envelope(&Envelope { spec, wants_output, ..plain(NEVER_AGAIN) }).0
    };
    let (beside, alone) = ("Counter.beside", "Counter.get");
    let calls = [
        call(beside, true),
        call(beside, false),
        call(beside, true),
        call(alone, false),
        call(beside, false),
        call(beside, true),
        call(alone, true),
        call(alone, false),
    ];
    let leased = |story: &mut Story| story.schedule().iter().map(|lease| (lease.1, lease.2)).collect::<Vec<_>>();
    let end = |story: &mut Story, leases: &[(u64, u64)]| {
        for &(lease, _) in leases {
            story.claim(worker, lease);
            story.result(worker, lease, 1_000);
        }
    };
    let first = leased(&mut story);
    assert_eq!(
        first.iter().map(|lease| lease.1).collect::<Vec<_>>(),
        calls[..3],
        "an ordinary call is not beside them"
    );
    story.claim(worker, first[0].0);
    let watchers =
        crate::watchers(&story.state, WorkerId(worker), |lease| story.effects.claim_state(WorkerId(worker), lease));
    assert_eq!((watchers.tasks.len(), watchers.is_shared), (1, false));
    story.claim(worker, first[1].0);
    let watchers =
        crate::watchers(&story.state, WorkerId(worker), |lease| story.effects.claim_state(WorkerId(worker), lease));
    assert_eq!((watchers.tasks.len(), watchers.is_shared), (1, true), "the other one may have written it");
    story.result(worker, first[0].0, 1_000);
    story.result(worker, first[1].0, 1_000);
    end(&mut story, &first[2..]);
    let second = leased(&mut story);
    assert_eq!(second.iter().map(|lease| lease.1).collect::<Vec<_>>(), calls[3..5], "nobody watches these two");
    end(&mut story, &second);
    let third = leased(&mut story);
    assert_eq!(third.iter().map(|lease| lease.1).collect::<Vec<_>>(), calls[5..6]);
    end(&mut story, &third);
    for expected in &calls[6..] {
        let one = leased(&mut story);
        assert_eq!(one.iter().map(|lease| lease.1).collect::<Vec<_>>(), [*expected], "alone");
        end(&mut story, &one);
    }
}

#[test]
fn a_call_that_is_held_holds_up_those_of_its_submitter_only() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(NAMED);
    let task = story.submit_with(None, false);
    let lease = story.schedule()[0];
    let held = story.call_with(actor, None, &[task], Duration::ZERO);
    let behind = story.call(actor);
    // What it needs calls the actor itself.
    let of_task = story.call_with(actor, Some(task), &[], Duration::ZERO);
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| lease.2).collect::<Vec<_>>(), [of_task.0]);
    story.claim(lease.0, lease.1);
    story.result(lease.0, lease.1, 1_000);
    let leases = story.schedule();
    assert_eq!(
        leases.iter().map(|lease| (lease.0, lease.2)).collect::<Vec<_>>(),
        [(worker, held.0), (worker, behind.0)]
    );
}

#[test]
fn a_call_with_a_limit_has_the_actor_for_itself() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(NAMED);
    let calls = [Duration::ZERO, Duration::from_secs(1), Duration::ZERO];
    let calls = calls.map(|limit| story.call_with(actor, None, &[], limit));
    for (call, lease) in calls.iter().zip(1..) {
        let leases = story.schedule();
        assert_eq!(leases, [(worker, lease, call.0, 1)]);
        assert!(story.schedule().is_empty());
        story.claim(worker, lease);
        story.result(worker, lease, 1_000);
    }
}

#[test]
fn without_restarts_a_lost_worker_is_the_end_of_its_actor() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(NAMED);
    let calls: Vec<_> = (0..3).map(|_| story.call(actor)).collect();
    story.schedule();
    story.claim(worker, 1);
    let loss = story.exit(worker);
    assert_eq!(loss.attempts.iter().map(|lost| lost.task).collect::<Vec<_>>(), calls[..1]);
    story.schedule();
    // Its creation was the first that was submitted.
    assert_eq!([1, 2, 3].map(|tag| story.outcome(tag).to_owned()), ["signal:9"; 3].map(str::to_owned));
    assert_eq!(story.actor(actor).state, ActorState::Dead);
    assert_eq!(story.effects.actors.len(), 1, "{:?}", story.effects.actors);
    let late = story.call(actor);
    story.schedule();
    let report = get_task(&story.state, &story.effects, late).unwrap();
    let message = report.message.unwrap();
    assert!(
        message.starts_with("actor 1 (counter.Counter `hits`) is dead: its worker (pid 101) was killed"),
        "{message}"
    );
    // The name is free again.
    story.get_ready();
    let again = story.create(NAMED);
    story.schedule();
    assert_eq!(story.actor(again).state, ActorState::Pending);
}

#[test]
fn an_actor_is_made_again_and_calls_that_had_not_begun_keep_their_order() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(ActorOptions { max_restarts: 1, ..NAMED });
    let calls: Vec<_> = (0..4).map(|_| story.call(actor).0).collect();
    story.schedule();
    story.claim(worker, 1);
    story.exit(worker);
    assert_eq!(story.outcome(1), "signal:9");
    assert_eq!(story.actor(actor).state, ActorState::Restarting);
    let leases = story.schedule();
    let [(second, 0, task, 2)] = leases[..] else { panic!("{leases:?}") };
    assert_eq!(task, actor.0);
    story.claim(second, 0);
    story.result(second, 0, 1_000);
    story.get_ready();
    let leases: Vec<_> = story.schedule().iter().map(|lease| (lease.0, lease.2, lease.3)).collect();
    assert_eq!(leases, [(second, calls[1], 1), (second, calls[2], 1), (second, calls[3], 1)]);
    assert_eq!(story.effects.finished.iter().filter(|(tag, _)| *tag == 0).count(), 1, "one outcome is told");
    story.exit(second);
    story.schedule();
    assert_eq!(story.actor(actor).state, ActorState::Dead);
    assert_eq!((2..=4).map(|tag| story.outcome(tag).to_owned()).collect::<Vec<_>>(), ["signal:9"; 3]);
}

#[test]
fn a_call_that_was_going_on_is_run_again_before_those_behind_it() {
    let mut story = Story::with_room(1);
    let options = ActorOptions { max_restarts: 2, max_call_retries: 1, ..NAMED };
    let (actor, mut worker) = story.living(options);
    let calls: Vec<_> = (0..3).map(|_| story.call(actor).0).collect();
    story.schedule();
    story.claim(worker, 1);
    for attempt in 2..=3 {
        story.exit(worker);
        story.get_ready();
        let leases = story.schedule();
        let [(next, 0, task, number)] = leases[..] else { panic!("{leases:?}") };
        assert_eq!((task, number), (actor.0, attempt));
        worker = next;
        story.claim(worker, 0);
        story.result(worker, 0, 1_000);
        story.get_ready();
        let leases: Vec<_> = story.schedule().iter().map(|lease| lease.2).collect();
        let expected = if attempt == 2 { &calls[..] } else { &calls[1..] };
        assert_eq!(leases, expected);
        if attempt == 2 {
            story.claim(worker, 1);
        }
    }
    assert_eq!(story.outcome(1), "signal:9", "it was run again once");
}

#[test]
fn a_creation_that_fails_gives_its_worker_back_and_fails_the_calls() {
    let mut story = Story::with_room(1);
    let actor = story.create(NAMED);
    let call = story.call(actor);
    let lease = story.schedule()[0];
    story.claim(lease.0, lease.1);
    story.fail(lease.0, lease.1);
    story.schedule();
    let message = get_task(&story.state, &story.effects, call).unwrap().message.unwrap();
    assert_eq!(message, "actor 1 (counter.Counter `hits`) is dead: its `new` failed: no");
    story.submit(1);
    assert_eq!(story.schedule()[0].0, lease.0);
}

#[test]
fn a_name_is_one_actors_and_is_given_to_who_asks_for_it() {
    let mut story = Story::with_room(3);
    let (first, _) = story.living(NAMED);
    let second = story.create(NAMED);
    story.schedule();
    let message = get_task(&story.state, &story.effects, second).unwrap().message.unwrap();
    assert_eq!(message, "the head refused it: actor 1 (counter.Counter) has the name `hits`");
    assert_eq!(find_actor(&story.state, "hits").unwrap().id, first);
    let error = find_actor(&story.state, "hist").unwrap_err();
    assert_eq!(error, "there is no actor `hist`\n(hint: did you mean `hits`?)");
    let function = |type_name| FunctionSpec {
        actor: ActorRole::Create(ActorOptions { or_existing: true, ..NAMED }),
        ..FunctionSpec::of_task("counter", type_name, &[])
    };
    let existing = |type_name| {
        let envelope = Envelope { spec: TaskSpec::Function(function(type_name)), ..plain(NEVER_AGAIN) };
        actors::life::find_existing(&story.state, &envelope)
    };
    assert_eq!((existing("Counter.new"), existing("Other.new")), (Some(first), None));
}

#[test]
fn an_actor_that_is_ended_is_asked_and_then_killed() {
    let mut story = Story::with_room(1);
    let (actor, worker) = story.living(ActorOptions { max_restarts: 9, ..NAMED });
    let (running, waiting) = (story.call(actor), story.call(actor));
    story.schedule();
    story.claim(worker, 1);
    let report = on_cancel(&mut story.state, &mut story.effects, actor, None, story.now);
    assert_eq!(report, CancelReport::Cancelling);
    story.schedule();
    assert_eq!(story.outcome(waiting.0 - 1), "actor_died");
    assert_eq!(story.effects.asked, [WorkerId(worker)]);
    story.now.monotonic_ns += 3_000_000_000;
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(story.effects.killed, [WorkerId(worker)]);
    story.exit(worker);
    story.schedule();
    assert_eq!(story.outcome(running.0 - 1), "actor_died");
    let message = get_task(&story.state, &story.effects, running).unwrap().message.unwrap();
    assert_eq!(message, "actor 1 (counter.Counter `hits`) died while it ran: it was cancelled");
    assert_eq!(on_cancel(&mut story.state, &mut story.effects, actor, None, story.now), CancelReport::Ended);
}

#[test]
fn an_actor_ends_with_its_job_unless_it_is_detached() {
    let mut story = Story::with_room(2);
    on_driver(&mut story.state, JobId(1));
    let (bound, worker) = story.living(ActorOptions { is_detached: false, name: "", ..NAMED });
    let (detached, _) = story.living(NAMED);
    story.submit(1);
    let lease = story.schedule()[0];
    on_driver_gone(&mut story.state, JobId(1));
    story.schedule();
    assert_eq!(story.actor(bound).state, ActorState::Alive, "a task of the job goes on");
    story.claim(lease.0, lease.1);
    story.result(lease.0, lease.1, 1_000);
    story.schedule();
    assert_eq!(story.actor(bound).reason.as_deref(), Some("the job that had created it has ended"));
    assert_eq!(story.effects.asked, [WorkerId(worker)]);
    assert_eq!(story.actor(detached).state, ActorState::Alive);
}

#[test]
fn under_the_next_head_a_detached_actor_begins_again_and_another_is_dead() {
    let mut story = Story::starting(1, false);
    story.state.settings.max_processes = 4;
    let options = ActorOptions { max_restarts: 2, max_call_retries: 1, ..NAMED };
    let creations =
        [options, ActorOptions { name: "spent", ..options }, ActorOptions { is_detached: false, name: "", ..options }];
    let mut bytes = Vec::new();
    let mut id = 0;
    for role in creations.map(ActorRole::Create).into_iter().chain([1, 1, 3].map(|id| ActorRole::Call(TaskId(id)))) {
        id += 1;
        bytes.clear();
        let function = FunctionSpec { actor: role, ..FunctionSpec::of_task("counter", "Counter.new", &[0x90]) };
        Envelope { spec: TaskSpec::Function(function), ..plain(NEVER_AGAIN) }.encode(&mut bytes);
        on_restored_submission(&mut story.state, TaskId(id), JobId(1), 5, &bytes).unwrap();
    }
    let ended =
        || TaskEnd { outcome: Outcome::Returned(vec![0xc0]), ..lifecycle::unstarted(Failure::HeadLost, story.now) };
    let ended = [ended(), ended(), ended()];
    for (id, ended) in (1..).zip(ended) {
        on_restored_end(&mut story.state, TaskId(id), 1, ended);
    }
    on_restored_actor(&mut story.state, TaskId(2), 3, 2, None);
    // The first of the calls was going on.
    let claim = LeftClaim { attempt: 1, worker: WorkerId(9), worker_pid: 77 };
    let claimed = HashMap::from([(TaskId(4), claim)]);
    on_restored(&mut story.state, &mut story.effects, &claimed, &HashMap::new(), story.now);
    story.check();
    let states = [1, 2, 3].map(|id| story.actor(TaskId(id)).state);
    assert_eq!(states, [ActorState::Restarting, ActorState::Dead, ActorState::Dead]);
    for worker in std::mem::take(&mut story.effects.started) {
        story.ready(worker, None);
    }
    let leases = story.schedule();
    let [(worker, 0, 1, 2)] = leases[..] else { panic!("{leases:?}") };
    story.claim(worker, 0);
    story.result(worker, 0, 1_000);
    story.get_ready();
    let leases: Vec<_> = story.schedule().iter().map(|lease| (lease.2, lease.3)).collect();
    assert_eq!(leases, [(4, 2), (5, 1)]);
    let message = get_task(&story.state, &story.effects, TaskId(6)).unwrap().message.unwrap();
    assert!(message.ends_with("is dead: the head died, and the job that had created it is gone"), "{message}");
}

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
            let ending = |(_, worker): &(WorkerId, &Worker)| worker.ending.is_some() || worker.stopping.is_some();
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
