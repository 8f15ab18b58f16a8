//! Stories of workers that do not get ready, and of when no more are started.

use crate::exits::LIVED_NS;
use crate::state::starts::{BRIEF_LIVES_LIMIT, FAILED_STARTS_LIMIT};
use crate::testing::*;

#[test]
fn workers_that_die_as_soon_as_they_are_ready_are_not_replaced_for_ever() {
    let mut story = Story::with_workers(1);
    for worker in 1..=BRIEF_LIVES_LIMIT {
        assert_eq!(story.state.no_worker(), None);
        story.exit(worker.into());
        story.start_missing();
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
    }
    let reason = story.state.no_worker().unwrap();
    assert!(reason.starts_with("12 workers in a row ended as soon as they were ready"), "{reason}");

    let mut story = Story::with_workers(1);
    for worker in 1..=10 {
        story.now.monotonic_ns += LIVED_NS;
        story.exit(worker);
        story.start_missing();
        for worker in std::mem::take(&mut story.effects.started) {
            story.ready(worker, None);
        }
    }
    assert_eq!(story.state.no_worker(), None, "one that has lived is replaced whatever ends it");
}

#[test]
fn workers_that_die_before_they_are_ready_are_replaced_a_few_times_only() {
    let mut story = Story::starting(1, false);
    story.state.begin();
    story.submit(2);
    for worker in 1..=FAILED_STARTS_LIMIT {
        assert_eq!(std::mem::take(&mut story.effects.started), [WorkerId(worker.into())]);
        assert_eq!(story.finished(), []);
        story.exit(worker.into());
        story.start_missing();
    }
    assert_eq!(story.effects.started, []);
    assert_eq!(story.finished(), ended([0, 1], "no_worker"), "nothing waits for what will not come");
    let reason = story.state.no_worker().unwrap();
    assert_eq!(reason, "3 workers in a row did not get ready; the last one: was killed by SIGKILL (signal 9)");
}

#[test]
fn a_worker_for_which_there_is_no_room_is_started_when_there_is() {
    let mut story = Story::with_workers(1);
    story.state.begin();
    story.exit(1);
    story.submit(1);
    story.effects.log.clear();
    for _ in 0..10 {
        start_missing_workers(&mut story.state, &mut story.effects, story.now);
        assert_eq!(std::mem::take(&mut story.effects.to_start).len(), 1);
        on_worker_start_failed(&mut story.state, &mut story.effects, "no space left", story.now);
        start_missing_workers(&mut story.state, &mut story.effects, story.now);
        assert_eq!(story.effects.to_start, [], "not at once");
        let next = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
        story.now.monotonic_ns = next.expect("it is tried again");
    }
    assert_eq!(story.state.no_worker(), None);
    assert_eq!(story.effects.log.len(), 1, "it is said once: {:?}", story.effects.log);
    story.effects.started.clear();
    story.start_missing();
    let [worker] = story.effects.started[..] else { panic!("one worker") };
    story.ready(worker, None);
    assert_eq!(story.state.start_again(), None);
    assert_eq!(story.schedule().len(), 1, "the task has waited");
}

#[test]
fn one_worker_that_lives_makes_up_for_those_that_did_not() {
    let mut story = Story::starting(1, false);
    for worker in 1..=10 {
        if worker % 3 == 0 {
            story.ready(WorkerId(worker), None);
            story.now.monotonic_ns += LIVED_NS;
        }
        story.exit(worker);
        story.start_missing();
    }
    assert_eq!(story.state.no_worker(), None);
}

#[test]
fn a_worker_that_does_not_get_ready_in_time_is_killed() {
    let mut story = Story::starting(1, false);
    story.now.monotonic_ns += START_LIMIT_NS;
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.state.starts.failed(), 1);
}

#[test]
fn a_hook_that_fails_in_a_worker_is_said_and_the_worker_works() {
    let mut story = Story::starting(1, false);
    story.ready(WorkerId(1), Some("no such host"));
    assert_eq!(story.effects.log, ["the hook failed in worker 1 (pid 101): no such host"]);
    story.submit(1);
    assert_eq!(story.schedule().len(), 1);
}

#[test]
fn a_hook_that_is_required_and_fails_makes_its_worker_useless() {
    let mut story = Story::starting(1, true);
    story.state.begin();
    for worker in 1..=3 {
        story.ready(WorkerId(worker), Some("no such host"));
        story.submit(1);
        assert_eq!(story.schedule(), []);
        story.exit(worker);
        story.start_missing();
    }
    assert_eq!(story.effects.killed, [1, 2, 3].map(WorkerId));
    assert!(story.state.no_worker().unwrap().ends_with("the last one: no such host"));
}

#[test]
fn a_worker_that_is_told_to_end_while_its_hook_fails_is_not_lost() {
    let mut story = Story::starting(1, true);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    story.ready(WorkerId(1), Some("no such host"));
    story.exit(1);
    assert_eq!((story.state.workers_lost(), story.state.no_worker()), (0, None));
}

#[test]
fn a_hook_that_is_required_and_fails_in_one_worker_ends_the_start() {
    let mut story = Story::starting(2, true);
    story.ready(WorkerId(1), None);
    story.ready(WorkerId(2), Some("no such host"));
    story.exit(2);
    let reason = "tracing is required, but the hook failed in a worker: no such host";
    assert_eq!(story.state.no_worker(), Some(reason));
    story.start_missing();
    assert_eq!(story.state.workers.len(), 1, "it is not tried again");
}

#[test]
fn workers_that_do_not_get_ready_are_blamed_on_the_hook_that_each_runs() {
    let mut story = Story::starting(1, false);
    story.state.settings.hook = Some("collector:setup".into());
    for worker in 1..=3 {
        story.exit(worker);
        story.start_missing();
    }
    let reason = story.state.no_worker().unwrap();
    let expected = "3 workers in a row did not get ready (hook `collector:setup` runs in each); the last one: ";
    assert!(reason.starts_with(expected), "{reason}");
}
