//! Stories of actors that get a worker for themselves, or wait for one.

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
