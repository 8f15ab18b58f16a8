//! Stories of attempts that are to end: asked, then signalled, then killed.

use crate::testing::*;

#[test]
fn a_function_that_runs_into_its_limit_is_asked_then_gets_a_signal_then_costs_its_worker_and_nobody_else() {
    let mut story = Story::with_workers(2);
    story.submit_with(Some(Duration::from_secs(2)), false);
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    let next = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(next, Some(2_000_000_001), "the head wakes up when the limit is reached");
    story.now.monotonic_ns = 2_000_000_001;
    let state = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap().state;
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(tick(&mut story), Some(4_000_000_001), "its grace period");
    assert_eq!(state(&story), TaskState::Cancelling);
    story.submit(1);
    assert_ne!(story.schedule()[0].0, worker, "a worker whose task is being ended gets nothing");
    story.now.monotonic_ns = 4_000_000_001;
    assert_eq!(tick(&mut story), Some(6_000_000_001));
    assert_eq!((state(&story), story.effects.killed.len()), (TaskState::Terminating, 0));
    assert_eq!(story.effects.steps, [format!("ask {worker} to end 1: RunTimeout"), format!("TERM for {worker}")]);
    story.now.monotonic_ns = 6_000_000_001;
    assert_eq!(tick(&mut story), None, "nothing but its end is waited for");
    assert_eq!((state(&story), &*story.effects.killed), (TaskState::Killing, &[WorkerId(worker)][..]));
    let loss = story.exit(worker);
    assert_eq!((loss.why.error_type.as_str(), story.finished()), ("timeout", ended([0], "timeout")));
}

/// Returns a command on worker 1 that was begun.
fn with_command(policy: Policy<'static>, run_limit: Option<Duration>) -> Story {
    let mut story = Story::with_workers(1);
    let spec = TaskSpec::command(b"sleep", vec![b"9"], vec![], b"/");
    story.submit_envelope(&Envelope { spec, run_limit, ..plain(policy) });
    story.schedule();
    story.claim(1, 0);
    story
}

#[test]
fn a_cancelled_command_gets_its_signals_and_its_worker_goes_on() {
    let mut story = with_command(NEVER_AGAIN, None);
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    let cancel = |story: &mut Story, grace_ns| {
        on_cancel_many(&mut story.state, &mut story.effects, &CancelWhich::All, grace_ns, story.now)
    };
    // It has been claimed, and its process is about to start.
    story.effects.has_no_command = true;
    assert_eq!(cancel(&mut story, None), [(TaskId(1), CancelReport::Cancelling)]);
    assert_eq!(story.effects.steps, ["ask 1 to end 1: Cancelled", "TERM for the command of 1"]);
    story.effects.has_no_command = false;
    story.now.monotonic_ns = tick(&mut story).unwrap();
    story.effects.steps.clear();
    assert_eq!(tick(&mut story), Some(story.now.monotonic_ns + 2_000_000_000));
    assert_eq!(story.effects.steps, ["TERM for the command of 1"]);
    // A second time, and at once.
    assert_eq!(cancel(&mut story, Some(0)), [(TaskId(1), CancelReport::Cancelling)]);
    assert_eq!(story.effects.steps, ["TERM for the command of 1", "KILL for the command of 1"]);
    assert_eq!(story.effects.killed, []);
    story.submit(1);
    assert_eq!(story.schedule(), []);
    story.end(1, 0, 1_000, Outcome::Failed(Failure::Cancelled));
    assert_eq!(story.finished(), ended([0], "cancelled"));
    assert_eq!(story.schedule().len(), 1, "the worker takes the next");
    assert_eq!((tick(&mut story), story.effects.killed.len()), (None, 0));
}

#[test]
fn a_command_that_does_not_end_costs_its_worker_at_last() {
    let mut story = with_command(NEVER_AGAIN, Some(Duration::from_secs(1)));
    for steps in [1, 2, 3] {
        story.now.monotonic_ns += 2_000_000_001;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
        story.check();
        assert_eq!(story.effects.steps.len(), 3.min(steps + 1));
    }
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "timeout"));
}

#[test]
fn a_command_is_idle_when_it_writes_nothing_and_only_then() {
    let mut story = with_command(Policy { idle_limit: Some(Duration::from_secs(3)), ..NEVER_AGAIN }, None);
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(tick(&mut story), Some(3_000_000_001));
    for second in 1..=9 {
        story.now.monotonic_ns = second * 1_000_000_000;
        on_output(&mut story.state, WorkerId(1), story.now);
        assert_eq!(tick(&mut story), Some(story.now.monotonic_ns + 3_000_000_000));
    }
    story.now.monotonic_ns = 12_000_000_000;
    tick(&mut story);
    assert_eq!(story.effects.steps, ["ask 1 to end 1: IdleTimeout", "TERM for the command of 1"]);
}

#[test]
fn a_task_inside_of_another_is_asked_to_end_and_one_of_a_worker_at_a_time() {
    let inside = || {
        let mut story = Story::with_workers(1);
        story.submit_policy(TWICE);
        story.schedule();
        story.claim(1, 0);
        let inner = story.submit_nested(TaskId(1));
        story.wait(1, 1, 1, &[inner]);
        assert_eq!(story.schedule(), [(1, INLINE_LEASE | inner.0, inner.0, 1)]);
        (story, inner)
    };
    let cancel = |story: &mut Story, id: TaskId| {
        let report = on_cancel(&mut story.state, &mut story.effects, id, None, story.now);
        story.check();
        report
    };
    let (mut story, inner) = inside();
    assert_eq!(cancel(&mut story, inner), CancelReport::Cancelling);
    assert_eq!(std::mem::take(&mut story.effects.steps), ["ask 1 to end 2: Cancelled"]);
    assert_eq!(cancel(&mut story, TaskId(1)), CancelReport::Cancelling);
    assert_eq!(std::mem::take(&mut story.effects.steps), [""; 0], "the worker is told of one at a time");
    story.result(1, INLINE_LEASE | inner.0, 1_000);
    assert_eq!(std::mem::take(&mut story.effects.steps), ["ask 1 to end 1: Cancelled"]);
    story.result(1, 0, 1_000);
    assert_eq!(story.effects.killed, [], "both have ended");
    story.submit(1);
    assert_eq!(story.schedule().len(), 1, "the worker goes on");

    let (mut story, inner) = inside();
    cancel(&mut story, inner);
    cancel(&mut story, TaskId(1));
    for _ in 0..2 {
        story.now.monotonic_ns += 2_000_000_000;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    }
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    story.schedule();
    let error_types: Vec<_> = story.finished().into_iter().map(|(_, error_type)| error_type).collect();
    assert_eq!(error_types, ["cancelled", "abandoned"], "neither is tried again");
}
