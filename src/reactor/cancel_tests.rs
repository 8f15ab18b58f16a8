//! Stories of cancellation.

use crate::testing::*;

#[test]
fn a_task_is_cancelled_wherever_it_is() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(3);
    assert_eq!(story.schedule().len(), 2);
    story.claim(1, 0);
    let cancel = |story: &mut Story, id| {
        let report = on_cancel(&mut story.state, &mut story.effects, TaskId(id), Some(0), story.now);
        story.check();
        report
    };
    assert_eq!(cancel(&mut story, 3), CancelReport::Cancelled, "waiting");
    assert_eq!(cancel(&mut story, 2), CancelReport::Cancelled, "leased and not begun");
    assert_eq!((story.finished(), story.effects.killed.len()), (ended([2, 1], "cancelled"), 0));
    assert_eq!(cancel(&mut story, 1), CancelReport::Cancelling, "running");
    assert_eq!(story.effects.killed, [WorkerId(1)]);
    assert_eq!(story.finished(), [], "it has not ended yet");
    story.exit(1);
    assert_eq!(story.finished(), ended([0], "cancelled"));
    assert_eq!(cancel(&mut story, 1), CancelReport::Ended);
    assert_eq!(cancel(&mut story, 9), CancelReport::Unknown);
}

/// The result of an ended task may wait in its worker for more; cancelling the task in that moment used to kill the worker, and with it
/// the task that it was running by then.
#[test]
fn cancelling_a_task_whose_result_is_on_the_way_harms_nobody() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(3);
    assert_eq!(story.schedule().len(), 3);
    story.claim(1, 0);
    story.claim(1, 1);
    let report = on_cancel(&mut story.state, &mut story.effects, TaskId(1), Some(0), story.now);
    assert_eq!((report, story.effects.killed.len()), (CancelReport::Ended, 0));
    story.check();
    story.result(1, 0, 1_000);
    assert_eq!(story.finished(), ended([0], "ok"));
    assert_eq!(story.schedule(), [(1, 3, 3, 1)], "what was taken back for a moment is leased again");
}

#[test]
fn tasks_are_cancelled_by_name_and_all_together() {
    let mut story = Story::with_workers(1);
    for name in ["nightly-1", "nightly-2", "hourly"] {
        story.submit_envelope(&Envelope { name, ..plain(NEVER_AGAIN) });
    }
    let cancel = |story: &mut Story, which: CancelWhich| {
        let reports = on_cancel_many(&mut story.state, &mut story.effects, &which, None, story.now);
        story.check();
        reports.into_iter().map(|(id, report)| (id.0, report)).collect::<Vec<_>>()
    };
    use CancelReport::{Cancelled, Ended, Unknown};
    assert_eq!(cancel(&mut story, CancelWhich::Named("nightly-*".into())), [(1, Cancelled), (2, Cancelled)]);
    assert_eq!(cancel(&mut story, CancelWhich::Ids(vec![TaskId(9), TaskId(2)])), [(2, Ended), (9, Unknown)]);
    assert_eq!(cancel(&mut story, CancelWhich::All), [(3, Cancelled)]);
    assert_eq!(cancel(&mut story, CancelWhich::All), []);
}

/// A task that waits is looked for from both ends of its queue. A million that were named in any order kept the head busy for minutes.
#[test]
fn tasks_that_are_named_end_newest_first() {
    let mut story = Story::with_workers(1);
    story.measure(1_000_000);
    story.submit(6);
    let which = CancelWhich::Ids([2, 5, 1, 6, 4, 3].map(TaskId).into());
    let reports = on_cancel_many(&mut story.state, &mut story.effects, &which, None, story.now);
    story.check();
    assert!(reports.iter().map(|(id, _)| id.0).eq(1..=6), "they are told in the order of their ids");
    assert_eq!(story.finished(), ended([5, 4, 3, 2, 1, 0], "cancelled"));
}
