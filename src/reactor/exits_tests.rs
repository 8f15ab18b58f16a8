//! Stories of workers that are lost with what they ran.

use crate::testing::*;

#[test]
fn a_lost_worker_fails_what_it_had_begun_and_gives_the_rest_back_free_of_charge() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(5);
    assert_eq!(story.schedule().len(), 5);
    story.claim(1, 0);
    story.result(1, 0, 1_000);
    story.claim(1, 1);
    story.claim(1, 2);
    story.finished();
    let loss = story.exit(1);
    assert_eq!(story.finished(), ended([1, 2], "signal:9"));
    assert_eq!(loss.why.error_type, "signal:9");
    assert_eq!(loss.why.description, "the worker was killed by SIGKILL (signal 9)");
    assert_eq!(loss.attempts.iter().map(|lost| lost.task.0).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(story.state.workers_lost, 1);

    story.start_missing();
    assert_eq!(story.effects.started, [WorkerId(2)], "it is replaced");
    story.ready(WorkerId(2), None);
    let leases = story.schedule();
    assert_eq!(leases, [(2, 0, 4, 1), (2, 1, 5, 1)], "in their order, and still the first attempt");
}

#[test]
fn a_task_that_had_ended_when_its_worker_died_is_told_apart_from_the_one_that_ran() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(2);
    story.schedule();
    story.claim(1, 0);
    story.claim(1, 1);
    story.exit(1);
    let message = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap().message.unwrap();
    assert_eq!(
        message(1),
        "its worker (pid 101) was killed by SIGKILL (signal 9) after the task had ended and before its result was sent"
    );
    assert_eq!(message(2), "its worker (pid 101) was killed by SIGKILL (signal 9)");
}

#[test]
fn an_attempt_lasts_as_long_as_it_ran_whatever_the_wall_clock_is_set_to() {
    const DAY: u64 = 86_400_000_000_000;
    let times = |story: &Story| {
        let task = get_task(&story.state, &story.effects, TaskId(1)).unwrap();
        (task.started_unix_nano, task.ended_unix_nano)
    };
    let began = Now { monotonic_ns: 7_000, unix_nano: 10 * DAY };
    let later = |unix_nano| Now { monotonic_ns: began.monotonic_ns + 900, unix_nano };
    // The clock, when the end is learnt of, and how long an attempt ran by it that nobody reported.
    for (now, lost_ns) in [
        (later(9 * DAY), 900),
        (later(0), 900),
        (later(10 * DAY), 0),
        (later(10 * DAY + 850), 850),
        (later(11 * DAY), 900),
        (later(u64::MAX), 900),
    ] {
        let begin = || {
            let mut story = Story::with_workers(1);
            story.now = began;
            story.submit(1);
            story.schedule();
            story.claim(1, 0);
            story
        };
        let mut story = begin();
        story.now = now;
        let outcome = Outcome::Returned(vec![1]);
        let started_unix_nano = began.unix_nano;
        let result = AttemptResult { lease: 0, started_unix_nano, run_ns: 700, span: None, outcome, usage: None };
        on_result(&mut story.state, &mut story.effects, WorkerId(1), result, now);
        story.check();
        assert_eq!(times(&story), (Some(10 * DAY), Some(10 * DAY + 700)), "{now:?}");

        let mut story = begin();
        story.now = now;
        story.exit(1);
        assert_eq!(times(&story), (Some(10 * DAY), Some(10 * DAY + lost_ns)), "{now:?}");
    }
}

#[test]
fn a_lost_worker_is_charged_for_what_was_claimed_and_not_for_what_was_only_leased() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    (0..5).for_each(|_| _ = story.submit_policy(TWICE));
    assert_eq!(story.schedule().len(), 5);
    // The first two have ended, and their results were on the way.
    (0..3).for_each(|lease| story.claim(1, lease));
    story.exit(1);
    assert_eq!(story.effects.attempts.iter().map(|attempt| attempt.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(story.finished(), []);
    story.start_missing();
    story.ready(WorkerId(2), None);
    let mut leases = story.schedule();
    leases.sort_unstable_by_key(|lease| lease.2);
    let attempts: Vec<_> = leases.iter().map(|&(_, _, task, attempt)| (task, attempt)).collect();
    assert_eq!(attempts, [(1, 2), (2, 2), (3, 2), (4, 1), (5, 1)]);
}
