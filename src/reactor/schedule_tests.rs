//! Stories of leases: who gets which task, how many at a time, and what is taken back.

use crate::testing::*;

#[test]
fn a_task_is_leased_once_and_its_driver_is_told_once() {
    let mut story = Story::with_workers(2);
    story.submit(1);
    let leases = story.schedule();
    assert_eq!(leases.len(), 1);
    let (worker, lease, task, attempt) = leases[0];
    assert_eq!((lease, task, attempt), (0, 1, 1));
    assert_eq!(story.schedule(), [], "nothing is left to lease");
    story.claim(worker, lease);
    story.result(worker, lease, 1_000);
    assert_eq!(story.finished(), ended([0], "ok"));
    story.result(worker, lease, 1_000);
    assert_eq!(story.finished(), [], "a result that comes twice is told once");
    assert_eq!(story.state.tally.counts().succeeded, 1);
    assert!(story.effects.log[0].contains("reported lease 0, which it does not have"));
}

#[test]
fn a_function_that_was_not_measured_is_leased_singly() {
    let mut story = Story::with_workers(2);
    story.submit(10);
    assert_eq!(story.schedule().len(), 2, "one for each worker");
}

#[test]
fn short_tasks_are_leased_in_batches_and_shared_between_workers() {
    let mut story = Story::with_workers(2);
    story.measure(1_000);
    story.submit(100);
    let leases = story.schedule();
    let of_worker = |worker| leases.iter().filter(|lease| lease.0 == worker).count();
    assert_eq!((of_worker(1), of_worker(2)), (50, 50));
}

#[test]
fn a_worker_is_topped_up_when_half_of_its_leases_are_done() {
    let mut story = Story::with_workers(1);
    story.measure(1);
    story.submit(400);
    assert_eq!(story.schedule().len(), scheduler::LEASE_LIMIT);
    for lease in 0..128 {
        story.claim(1, lease);
        story.result(1, lease, 1);
    }
    assert_eq!(story.schedule(), [], "half is still there");
    story.claim(1, 128);
    story.result(1, 128, 1);
    assert_eq!(story.schedule().len(), 129);
}

#[test]
fn a_worker_behind_is_never_granted_a_lease_whose_place_in_the_ring_is_taken() {
    let mut story = Story::with_workers(2);
    story.measure(3_000);
    story.submit(2);
    let (behind, ahead) = match story.schedule()[0].0 {
        1 => (1, 2),
        _ => (2, 1),
    };
    // One worker stays in its first task; the other does its own work, and what is taken back from the first for it.
    story.claim(behind, 0);
    for _ in 0..30 {
        story.submit(200);
        story.schedule();
        while let Some(lease) = story.state.workers[&WorkerId(ahead)].leases.front().map(|grant| grant.number) {
            story.claim(ahead, lease);
            story.result(ahead, lease, 3_000);
            story.schedule();
        }
        let worker = &story.state.workers[&WorkerId(behind)];
        assert_eq!(worker.leases[0].number, 0);
        assert!(worker.next_lease <= CLAIM_COUNT as u64, "lease {} is in the place of 0", worker.next_lease - 1);
    }
}

#[test]
fn the_worker_used_last_is_used_next() {
    let mut story = Story::with_workers(3);
    story.submit(1);
    let first = story.schedule()[0];
    story.claim(first.0, first.1);
    story.result(first.0, first.1, 5_000_000);
    story.submit(1);
    assert_eq!(story.schedule()[0].0, first.0);
}

#[test]
fn a_task_whose_output_is_watched_has_its_worker_for_itself() {
    let mut story = Story::with_workers(1);
    story.measure(1);
    story.submit_with(None, true);
    story.submit(2);
    assert_eq!(story.schedule().len(), 1);
    story.claim(1, 0);
    assert_eq!(story.schedule(), []);
    story.result(1, 0, 1);
    assert_eq!(story.schedule().len(), 2);
    story.submit_with(None, true);
    assert_eq!(story.schedule(), [], "nor is it leased beside others");
}

#[test]
fn an_idle_worker_gets_what_a_busy_one_has_not_begun() {
    let mut story = Story::with_workers(1);
    story.measure(400_000);
    story.submit(5);
    assert_eq!(story.schedule().len(), 5);
    story.claim(1, 0);
    story.state.settings.workers_wanted = 2;
    story.start_missing();
    story.ready(WorkerId(2), None);
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| (lease.0, lease.2, lease.3)).collect::<Vec<_>>(), [(2, 4, 1), (2, 5, 1)]);
    assert_eq!(story.effects.claim_state(WorkerId(1), 4), ClaimState::Revoked);
    assert_eq!(story.schedule(), [], "and no more than that");
}

/// Tasks of a function that used to be short were leased together, and one of them is not short: those behind it used to wait for it
/// while another worker had nothing to do.
#[test]
fn tasks_do_not_wait_behind_one_that_turns_out_to_be_long() {
    let mut story = Story::with_workers(2);
    story.measure(1_000);
    story.submit(6);
    assert_eq!(story.schedule().len(), 6);
    story.claim(1, 0);
    for lease in 0..3 {
        story.claim(2, lease);
        story.result(2, lease, 1_000);
    }
    assert_eq!(story.schedule(), [], "it may still be as short as the others");
    let next = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(next, Some(story.now.monotonic_ns + BEHIND_NS), "the head looks again by itself");
    story.now.monotonic_ns += BEHIND_NS;
    story.now.unix_nano += BEHIND_NS;
    let moved: Vec<_> = story.schedule().iter().map(|lease| (lease.0, lease.3)).collect();
    assert_eq!(moved, [(2, 1)]);
    story.claim(2, 3);
    story.result(2, 3, 1_000);
    assert_eq!(story.schedule().len(), 1, "and the last one too");
    assert_eq!(on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now), None);
}

#[test]
fn short_commands_are_leased_ahead_unless_something_of_them_is_watched_and_a_cancel_reaches_the_one_that_runs() {
    let mut story = Story::with_workers(1);
    let submit = |story: &mut Story, envelope: Envelope<'static>| {
        let spec = TaskSpec::command(b"true", vec![], vec![], b"/");
        story.submit_envelope(&Envelope { spec, ..envelope });
    };
    submit(&mut story, plain(NEVER_AGAIN));
    story.schedule();
    story.claim(1, 0);
    story.result(1, 0, 500_000);
    (0..6).for_each(|_| submit(&mut story, plain(NEVER_AGAIN)));
    assert_eq!(story.schedule().iter().map(|lease| lease.1).collect::<Vec<_>>(), [1, 2, 3, 4]);
    // Those behind it are taken back first, so that none of them can begin and get the signal.
    story.claim(1, 1);
    let running = CancelWhich::Ids(vec![TaskId(2)]);
    on_cancel_many(&mut story.state, &mut story.effects, &running, None, story.now);
    assert_eq!(story.state.workers[&WorkerId(1)].leases.len(), 1);
    assert_eq!(story.effects.steps, ["ask 1 to end 2: Cancelled", "TERM for the command of 1"]);
    assert_eq!(story.schedule(), []);
    story.end(1, 1, 500_000, Outcome::Failed(Failure::Cancelled));
    let watched = [
        Envelope { wants_output: true, ..plain(NEVER_AGAIN) },
        Envelope { run_limit: Some(Duration::from_secs(1)), ..plain(NEVER_AGAIN) },
        plain(Policy { idle_limit: Some(Duration::from_secs(1)), ..NEVER_AGAIN }),
    ];
    for envelope in watched {
        let mut story = Story::with_workers(1);
        submit(&mut story, plain(NEVER_AGAIN));
        story.schedule();
        story.claim(1, 0);
        story.result(1, 0, 500_000);
        (0..2).for_each(|_| submit(&mut story, envelope.clone()));
        assert_eq!(story.schedule().len(), 1, "alone");
    }
}

#[test]
fn a_wall_clock_that_is_set_back_or_ahead_makes_no_worker_look_stuck_and_hides_none() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    for (ran_ns, set_ns, is_stuck) in [
        (2 * BEHIND_NS, 0, true),
        (2 * BEHIND_NS, -(HOUR_NS as i64), true),
        (BEHIND_NS / 2, -(HOUR_NS as i64), false),
        (BEHIND_NS / 2, HOUR_NS as i64, false),
    ] {
        let mut story = Story::with_workers(2);
        story.now.unix_nano = 10 * HOUR_NS;
        story.measure(1_000);
        story.submit(6);
        assert_eq!(story.schedule().len(), 6);
        story.claim(1, 0);
        for lease in 0..3 {
            story.claim(2, lease);
            story.result(2, lease, 1_000);
        }
        assert_eq!(story.schedule(), [], "it has only begun");
        story.now.monotonic_ns += ran_ns;
        story.now.unix_nano = (story.now.unix_nano + ran_ns).saturating_add_signed(set_ns);
        let moved = story.schedule().len();
        assert_eq!(moved > 0, is_stuck, "{ran_ns} ns, and the clock was set by {set_ns} ns");
    }
}
