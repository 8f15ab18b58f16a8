//! Stories of what follows from ends.

use crate::testing::*;

#[test]
fn everything_that_follows_from_an_end_is_done_in_one_turn() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let child = story.submit_nested(TaskId(1));
    let after = story.submit_after(&[child]);
    story.submit_after(&[after]);
    story.exit(1);
    assert_eq!(story.effects.finished, [(0, "signal:9".to_owned())]);
    story.schedule();
    let ended: Vec<_> = story.effects.finished.iter().map(|(tag, word)| (*tag, &**word)).collect();
    assert_eq!(ended, [(0, "signal:9"), (1, "abandoned"), (2, "input"), (3, "input")]);
    assert!(story.state.follow_ups.is_empty());
}

#[test]
fn the_next_turn_comes_at_once_when_a_limit_has_ended_what_others_need() {
    let mut story = Story::starting(1, false);
    let first = story.submit_policy(Policy { queue_limit: Some(Duration::from_secs(1)), ..NEVER_AGAIN });
    story.submit_after(&[first]);
    story.schedule();
    story.now.monotonic_ns += 1_000_000_000;
    let wake_at = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    story.check();
    assert_eq!((story.effects.finished.len(), wake_at), (1, Some(story.now.monotonic_ns)));
    story.schedule();
    assert_eq!(story.effects.finished.len(), 2);
    let wake_at = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert!(wake_at.is_none_or(|at| at > story.now.monotonic_ns));
}
