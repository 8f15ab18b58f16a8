//! Stories of limits on waiting.

use crate::testing::*;

#[test]
fn a_task_that_waits_for_too_long_fails_and_one_that_has_begun_does_not() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    let patient = Policy { queue_limit: Some(Duration::from_secs(5)), retries: 1, ..NEVER_AGAIN };
    story.submit_policy(patient);
    story.submit_policy(patient);
    story.schedule();
    story.claim(1, 0);
    story.submit_with(None, true);
    story.submit_policy(patient);
    let tick = |story: &mut Story| on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    story.now.monotonic_ns = 5_000_000_000;
    tick(&mut story);
    assert_eq!(story.finished(), []);
    story.now.monotonic_ns += 1;
    tick(&mut story);
    story.check();
    assert_eq!(story.finished(), ended([1, 3], "timeout"), "leased and not begun, and queued");
    let message = get_task(&story.state, &story.effects, TaskId(2)).unwrap().message.unwrap();
    assert_eq!(message, "timed out: it was still waiting for a worker after 5 s");
    // The wait between attempts is another one.
    story.fail(1, 0);
    story.now.monotonic_ns += 10_000_000_000;
    tick(&mut story);
    assert_eq!(story.finished(), []);
}
