//! Stories of explanations.

use crate::testing::*;

#[test]
fn a_leased_task_is_explained_until_its_result_is_there() {
    let mut story = Story::with_workers(1);
    story.measure(1_000);
    story.submit(3);
    story.schedule();
    let has_it = "worker 1 (pid 101) has it and has not begun it";
    assert_eq!(explained(&story, TaskId(1)), [has_it]);
    assert_eq!(explained(&story, TaskId(3)), [format!("{has_it}; it has 2 tasks before it")]);
    story.claim(1, 0);
    assert!(explained(&story, TaskId(1))[0].starts_with("worker 1 (pid 101) has run it for "));
    story.claim(1, 1);
    assert_eq!(explained(&story, TaskId(1)), ["it has ended in its worker, and its result is on the way"]);
    on_cancel(&mut story.state, &mut story.effects, TaskId(2), None, story.now);
    assert_eq!(explained(&story, TaskId(2))[1], "its worker is being ended, because task 2 was cancelled");
    assert!(explain_task(&story.state, &story.effects, TaskId(9)).is_none());
}

#[test]
fn a_task_without_a_worker_is_told_what_the_workers_are_at() {
    let mut story = Story::starting(2, false);
    story.state.settings.hook = Some("a_hook:setup".into());
    story.submit(2);
    let starting =
        "no worker is ready; 2 workers are being started: the hook `a_hook:setup` runs in each before it takes tasks";
    assert_eq!(explained(&story, TaskId(1)), [starting]);
    assert_eq!(explained(&story, TaskId(2)), ["1 task is before it in the queue", starting]);
    story.ready(WorkerId(1), None);
    assert_eq!(explained(&story, TaskId(1)), ["it is about to be given to a worker"]);
    story.schedule();
    let starting = starting.replace("2 workers are", "1 worker is");
    assert_eq!(explained(&story, TaskId(2)), [starting]);
}
