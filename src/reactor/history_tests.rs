//! Stories of what is remembered of ended tasks.

use crate::testing::*;

#[test]
fn only_the_newest_ended_tasks_are_remembered_and_the_others_counted() {
    let mut story = Story::with_workers(1);
    story.measure(1);
    let tasks = HISTORY_LIMIT as u64 + 100;
    let mut done = 0;
    for tag in 0..tasks {
        story.submit(1);
        if tag % 100 == 99 {
            story.schedule();
            for lease in done..=tag {
                story.claim(1, lease);
                story.result(1, lease, 1);
            }
            done = tag + 1;
        }
    }
    assert_eq!((story.state.tasks.len(), story.state.tally.counts().forgotten), (HISTORY_LIMIT, 100));
    let list = list_tasks(&story.state, &story.effects, 10, None, &TaskFilter::default());
    assert_eq!((list.tasks.len(), list.left_out, list.forgotten), (10, HISTORY_LIMIT - 10, 100));
    assert_eq!(list.tasks[0].id, TaskId(tasks));
    assert!(get_task(&story.state, &story.effects, TaskId(1)).is_none());
    assert_eq!(get_task(&story.state, &story.effects, TaskId(tasks)).unwrap().result.unwrap().text(), "1");
}

#[test]
fn results_that_are_still_to_be_arguments_are_remembered_beyond_the_bound() {
    let mut story = Story::with_workers(2);
    story.measure(1);
    let never = story.submit_with(None, true);
    let leases = story.schedule();
    let (its_worker, its_lease) = (leases[0].0, leases[0].1);
    story.claim(its_worker, its_lease);
    let run = |story: &mut Story| {
        for (worker, lease, _, _) in story.schedule() {
            story.claim(worker, lease);
            story.result(worker, lease, 1);
        }
    };
    let first = story.submit_with(None, false);
    run(&mut story);
    let held = story.submit_after(&[first, never]);
    for _ in 0..=HISTORY_LIMIT / 100 {
        story.submit(100);
        run(&mut story);
    }
    assert!(story.state.tasks.get(first).is_some() && story.state.tally.counts().forgotten > 0);
    assert!(story.state.history.is_kept(first), "it is not looked at with every end");
    story.result(its_worker, its_lease, 1);
    run(&mut story);
    assert_eq!(get_task(&story.state, &story.effects, held).unwrap().state, TaskState::Succeeded);
    story.submit(2);
    run(&mut story);
    assert!(story.state.tasks.get(first).is_none(), "nobody needs it any more");
}
