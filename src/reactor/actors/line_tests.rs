//! Stories of calls: the order in which an actor is leased them, and which run beside each other.

use crate::testing::*;

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
