//! Stories of a head that stops.

use crate::shutdown::{has_own_tasks, on_drain};
use crate::testing::*;

#[test]
fn a_stop_that_discards_lets_running_tasks_end_and_fails_the_others() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(3);
    story.schedule();
    story.claim(1, 0);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    story.check();
    assert_eq!(story.finished(), ended([1, 2], "stopped"));
    assert_eq!((story.effects.asked.as_slice(), story.effects.killed.len()), ([WorkerId(1)].as_slice(), 0));
    story.result(1, 0, 1);
    assert_eq!(story.finished(), ended([0], "ok"));
    assert_eq!(story.schedule(), []);
    story.effects.started.clear();
    story.exit(1);
    story.start_missing();
    assert_eq!(story.effects.started, [], "nothing is started again");
    assert_eq!(story.state.workers_lost, 0, "it was asked to go");
}

#[test]
fn a_stop_that_is_overdue_kills() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    on_stop_overdue(&mut story.state, &mut story.effects);
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "stopped"));
}

#[test]
fn nothing_is_tried_again_after_a_stop_that_discards() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retry_backoff: Duration::from_secs(9), ..TWICE });
    story.submit_policy(TWICE);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    story.fail(1, lease);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    assert_eq!(story.finished(), ended([0], "stopped"), "it waited to be tried again");
    story.fail(1, lease);
    assert_eq!(story.finished(), ended([1], "E"));
}

fn stop(story: &mut Story) {
    on_stop(&mut story.state, &mut story.effects, Unfinished::Kept, false, story.now);
    story.check();
}

fn workers_gone(story: &mut Story) -> usize {
    let kept = on_workers_gone(&mut story.state, &mut story.effects, story.now);
    story.check();
    kept
}

#[test]
fn a_stop_keeps_what_has_not_begun_and_tells_who_waits_when_all_workers_are_gone() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(3);
    story.schedule();
    story.claim(1, 0);
    stop(&mut story);
    assert_eq!(story.finished(), [], "the end of what runs may change what becomes of the others");
    story.result(1, 0, 1);
    assert_eq!(story.finished(), ended([0], "ok"));
    assert_eq!(story.schedule(), []);
    story.exit(1);
    assert_eq!((workers_gone(&mut story), story.finished()), (2, ended([1, 2], "stopped")));
    assert_eq!(story.state.counts().waiting, 2, "they are where they were");
}

#[test]
fn what_a_stop_cuts_short_is_kept_uncharged_unless_it_may_not_begin_again() {
    let mut story = Story::with_workers(3);
    let policies = [TWICE, Policy { crash_limit: 0, ..TWICE }, Policy { at_most_once: true, ..TWICE }];
    let leases: Vec<_> = policies
        .into_iter()
        .map(|policy| {
            story.submit_policy(policy);
            let (worker, lease, ..) = story.schedule()[0];
            story.claim(worker, lease);
            worker
        })
        .collect();
    stop(&mut story);
    on_stop_overdue(&mut story.state, &mut story.effects);
    leases.into_iter().for_each(|worker| drop(story.exit(worker)));
    assert_eq!(story.finished(), ended([1, 2], "lost"), "neither may begin again");
    assert_eq!((workers_gone(&mut story), story.finished()), (1, ended([0], "stopped")));
    let task = story.state.task(TaskId(1)).expect("it is kept");
    let past = task.past.as_ref().expect("the attempt is noted");
    assert_eq!((past.crashes, past.failures, past.attempts.len()), (0, 0, 1));
}

#[test]
fn an_attempt_that_fails_while_the_head_stops_is_charged_and_kept() {
    let mut story = Story::with_workers(1);
    story.submit_policy(TWICE);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    stop(&mut story);
    story.fail(1, lease);
    assert_eq!(story.finished(), []);
    story.exit(1);
    assert_eq!((workers_gone(&mut story), story.finished()), (1, ended([0], "stopped")));
    let past = story.state.task(TaskId(1)).and_then(|task| task.past.as_ref()).expect("the attempt is noted");
    assert_eq!((past.crashes, past.failures), (0, 1));
}

#[test]
fn a_stop_that_discards_is_not_taken_back() {
    let mut story = Story::with_workers(0);
    story.submit(1);
    stop(&mut story);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    assert_eq!(story.finished(), ended([0], "stopped"));
    stop(&mut story);
    assert_eq!(workers_gone(&mut story), 0);
}

#[test]
fn a_drain_takes_tasks_of_tasks_only_and_is_over_with_the_last_one() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    on_drain(&mut story.state);
    assert!(has_own_tasks(&story.state));
    story.result(1, 0, 1);
    assert!(!has_own_tasks(&story.state));
}

/// Lets what has come up to now end what waits for what is kept, and returns the workers that were killed.
fn stuck(story: &mut Story) -> Vec<WorkerId> {
    end_stuck(&story.state, &mut story.effects);
    std::mem::take(&mut story.effects.killed)
}

/// Returns a head with a task that runs in worker 1 and has submitted as many others, which wait.
fn parent_of(children: usize, workers: usize) -> (Story, Vec<TaskId>) {
    let mut story = Story::with_workers(workers);
    story.state.settings.max_processes = workers;
    story.submit_policy(TWICE);
    story.schedule();
    story.claim(1, 0);
    let children = (0..children).map(|_| story.submit_nested(TaskId(1))).collect();
    (story, children)
}

#[test]
fn a_stop_does_not_wait_for_a_task_that_waits_for_what_is_kept() {
    let (mut story, children) = parent_of(2, 1);
    story.block(TaskId(1), 1, 2, &children);
    assert_eq!(stuck(&mut story), [], "nothing stops");
    stop(&mut story);
    assert_eq!(stuck(&mut story), [WorkerId(1)]);
    story.exit(1);
    workers_gone(&mut story);
    assert_eq!(story.outcome(0), "stopped", "it is kept");
    let past = story.state.task(TaskId(1)).and_then(|task| task.past.as_ref()).expect("the attempt is noted");
    assert_eq!((past.crashes, past.failures, past.attempts.len()), (0, 0, 1), "it is charged to nothing");
}

#[test]
fn a_task_that_begins_to_wait_while_the_head_stops_is_not_waited_for_either() {
    let (mut story, children) = parent_of(1, 1);
    stop(&mut story);
    assert_eq!(stuck(&mut story), [], "it runs");
    story.block(TaskId(1), 1, 1, &children);
    assert_eq!(stuck(&mut story), [WorkerId(1)]);
}

#[test]
fn a_stop_waits_for_a_task_whose_wait_may_end() {
    // By its own limit, or in one of several futures.
    let (mut story, children) = parent_of(1, 1);
    story.wait(1, 1, 1, &children);
    stop(&mut story);
    assert_eq!(stuck(&mut story), []);

    // By the end of what runs in another worker; then it waits for the one that is kept.
    let (mut story, children) = parent_of(2, 2);
    let (worker, lease, task, _) = story.schedule()[0];
    assert_eq!((worker, task), (2, children[0].0));
    story.claim(worker, lease);
    story.block(TaskId(1), 1, 2, &children);
    stop(&mut story);
    assert_eq!(stuck(&mut story), [], "the other one runs");
    story.result(worker, lease, 1);
    assert_eq!(stuck(&mut story), [WorkerId(1)]);
}

#[test]
fn tasks_that_wait_for_each_others_kept_tasks_are_not_waited_for() {
    let (mut story, children) = parent_of(1, 2);
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    let grandchild = story.submit_nested(children[0]);
    story.block(TaskId(1), 1, 1, &children);
    story.block(children[0], worker, 1, &[grandchild]);
    stop(&mut story);
    assert_eq!(stuck(&mut story), [WorkerId(1), WorkerId(2)]);
}

#[test]
fn a_stop_that_discards_lets_a_task_go_on_that_waits_for_what_was_discarded() {
    let (mut story, children) = parent_of(1, 1);
    story.block(TaskId(1), 1, 1, &children);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    assert_eq!(stuck(&mut story), []);
}
