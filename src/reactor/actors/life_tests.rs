//! Stories of actors from their creation to their death: restarts, names, jobs and the next head.

use crate::testing::*;

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
