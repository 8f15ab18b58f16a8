//! Stories of a head that stops.

use crate::testing::*;

#[test]
fn a_stop_lets_running_tasks_end_and_fails_the_others() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(3);
    story.schedule();
    story.claim(1, 0);
    on_stop(&mut story.state, &mut story.effects, false, story.now);
    story.check();
    assert_eq!(story.finished(), ended([2, 1], "stopped"));
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
    on_stop(&mut story.state, &mut story.effects, false, story.now);
    on_stop_overdue(&mut story.state, &mut story.effects);
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "stopped"));
}

#[test]
fn nothing_is_tried_again_while_the_head_stops() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retry_backoff: Duration::from_secs(9), ..TWICE });
    story.submit_policy(TWICE);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    story.fail(1, lease);
    let (_, lease, ..) = story.schedule()[0];
    story.claim(1, lease);
    on_stop(&mut story.state, &mut story.effects, false, story.now);
    assert_eq!(story.finished(), ended([0], "stopped"), "it waited to be tried again");
    story.fail(1, lease);
    assert_eq!(story.finished(), ended([1], "E"));
}
