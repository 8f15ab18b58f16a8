//! Stories of retries, their budgets and their charges.

use crate::testing::*;

#[test]
fn an_error_is_tried_again_after_a_while_and_charged() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retries: 1, ..NEVER_AGAIN });
    assert_eq!(story.schedule(), [(1, 0, 1, 1)]);
    story.claim(1, 0);
    story.fail(1, 0);
    assert_eq!(story.effects.attempts, [(1, 1, "E".to_owned())]);
    assert_eq!(story.finished(), [], "nobody is told of an attempt");
    assert_eq!(story.schedule(), [], "it waits");
    let report = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap();
    assert_eq!((report(&story).state, report(&story).attempts.len()), (TaskState::Retrying, 1));
    let message = report(&story).attempts[0].message.clone().unwrap();
    let expected = format!("attempt 1 failed, and it waits to be tried again: {message}");
    assert_eq!(explained(&story, TaskId(1)), [expected]);
    let again = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now).unwrap();
    assert!(
        (500_000_000..=1_000_000_001).contains(&again),
        "half of the wait at least, and all of it at most: {again}"
    );
    story.now.monotonic_ns = again - 1;
    assert_eq!(story.schedule(), []);
    story.now.monotonic_ns = again;
    assert_eq!(story.schedule(), [(1, 1, 1, 2)]);
    story.claim(1, 1);
    story.fail(1, 1);
    assert_eq!(story.finished(), ended([0], "E"), "once was granted");
    let attempts = report(&story).attempts;
    assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2]);
    assert!(attempts.iter().all(|attempt| attempt.message.as_deref() == Some("no")));
}

#[test]
fn every_attempt_is_counted_and_the_time_in_the_queue_once() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retry_backoff: Duration::ZERO, ..TWICE });
    for lease in 0..2 {
        assert_eq!(story.schedule().len(), 1);
        story.claim(1, lease);
        if lease == 0 { story.fail(1, lease) } else { story.result(1, lease, 2_000) }
    }
    let counted: Vec<_> =
        story.effects.counted.iter().map(|(_, error, ran, queued)| (error.as_str(), *ran, queued.is_some())).collect();
    assert_eq!(counted, [("E", Some(1_000), true), ("", Some(2_000), false)]);
}

#[test]
fn crashes_and_errors_have_budgets_of_their_own() {
    let mut story = Story::with_workers(1);
    story.submit_policy(Policy { retry_backoff: Duration::ZERO, ..TWICE });
    let mut worker = 1;
    for _ in 0..2 {
        let (_, lease, ..) = story.schedule()[0];
        story.claim(worker, lease);
        story.fail(worker, lease);
        let (_, lease, ..) = story.schedule()[0];
        story.claim(worker, lease);
        story.exit(worker);
        worker += 1;
        story.start_missing();
        story.ready(WorkerId(worker), None);
    }
    assert_eq!(story.finished(), []);
    assert_eq!(story.schedule()[0].3, 5);
    story.claim(worker, 0);
    story.exit(worker);
    assert_eq!(story.finished(), ended([0], "signal:9"));
    let kinds: Vec<_> = story.effects.attempts.iter().map(|attempt| attempt.2.as_str()).collect();
    assert_eq!(kinds, ["E", "signal:9", "E", "signal:9"]);
}

#[test]
fn what_is_to_start_once_is_journaled_first_and_lost_with_its_worker() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    let once = Policy { at_most_once: true, ..TWICE };
    story.submit_policy(once);
    story.submit_policy(once);
    story.effects.is_disk_full = true;
    assert_eq!(story.schedule(), [], "its start cannot be journaled");
    story.effects.is_disk_full = false;
    assert_eq!(story.schedule(), [(1, 0, 1, 1)], "leased singly");
    assert_eq!(story.effects.starts, [(1, 1), (1, 1)]);
    story.exit(1);
    story.start_missing();
    story.ready(WorkerId(2), None);
    assert_eq!(story.schedule(), [(2, 0, 1, 1)], "it had not been begun");
    story.claim(2, 0);
    story.exit(2);
    assert_eq!(story.finished(), ended([0], "lost"));
    story.start_missing();
    story.ready(WorkerId(3), None);
    assert_eq!(story.schedule(), [(3, 0, 2, 1)]);
}
