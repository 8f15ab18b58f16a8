//! Stories of rows for people.

use crate::testing::*;

#[test]
fn a_running_task_says_since_when() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    let task = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap();
    assert_eq!((task(&story).state, task(&story).started_unix_nano), (TaskState::Leased, None));
    story.claim(1, 0);
    assert_eq!((task(&story).state, task(&story).started_unix_nano), (TaskState::Running, Some(1_000)));
}

#[test]
fn the_times_of_a_task_are_told_only_if_it_traces_the_runtime() {
    let mut story = Story::with_workers(1);
    for (traces_runtime, is_reported) in [(false, true), (true, true), (true, false)] {
        story.traces_runtime = traces_runtime;
        story.submit(1);
        let submitted = story.now.unix_nano;
        story.now.unix_nano += 2;
        let (worker, lease, ..) = story.schedule()[0];
        // It was written to the journal in the same turn: it is not leased before that.
        let queued = story.effects.queued.pop().expect("it is leased");
        assert_eq!(queued, traces_runtime.then_some((submitted + 5, submitted + 5)));
        assert_eq!(story.state.runtime_since.len(), usize::from(traces_runtime));
        story.now.unix_nano += 100;
        story.claim(worker, lease);
        let claimed = story.now.unix_nano;
        if is_reported {
            story.result(worker, lease, 20);
        } else {
            (story.now.unix_nano, story.now.monotonic_ns) = (claimed + 1_000, story.now.monotonic_ns + 1_100);
            story.exit(worker);
        }
        // As the worker says, and when it does not, when the head heard of it.
        let ended = if is_reported { claimed + 20 } else { story.now.unix_nano };
        assert_eq!(story.effects.ended.pop(), Some(traces_runtime.then_some(ended)));
        assert!(story.state.runtime_since.is_empty());
    }
    // One that has waited is leased when it is leased.
    story.start_missing();
    story.submit(1);
    let submitted = story.now.unix_nano;
    story.now.unix_nano += 700;
    story.ready(WorkerId(2), None);
    story.schedule();
    assert_eq!(story.effects.queued.pop(), Some(Some((submitted + 5, submitted + 700))));
}
