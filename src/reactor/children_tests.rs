//! Stories of tasks of tasks, when those end.

use crate::testing::*;

#[test]
fn a_task_that_is_tried_again_leaves_nothing_running_that_it_submits_again() {
    let mut story = Story::with_workers(2);
    story.submit_policy(TWICE);
    let leases = story.schedule();
    let worker = leases[0].0;
    story.claim(worker, leases[0].1);
    let child = story.submit_nested(TaskId(1));
    let held = {
        story.next_inputs = vec![Input { argument: 0, source: InputSource::Task(child) }];
        story.submit_from(Some(TaskId(1)), None, false)
    };
    story.wait(worker, 1, 2, &[child, held]);
    let leases = story.schedule();
    assert_eq!(leases.len(), 1);
    story.exit(worker);
    assert_eq!(story.finished(), [], "the task is tried again");
    let again: Vec<_> = story.schedule().into_iter().map(|(_, _, task, attempt)| (task, attempt)).collect();
    assert_eq!(again, [(1, 2)]);
    let ended: Vec<_> = story.finished().into_iter().map(|(_, error_type)| error_type).collect();
    assert_eq!(ended, ["abandoned", "abandoned"]);
    let message = get_task(&story.state, &story.effects, child).unwrap().message.unwrap();
    assert!(message.contains("because task 1, which had submitted it"), "{message}");
}

#[test]
fn what_a_task_has_submitted_ends_with_it_unless_it_came_to_an_end_of_its_own() {
    let mut story = Story::with_workers(2);
    story.submit(2);
    for (worker, lease, _, _) in story.schedule() {
        story.claim(worker, lease);
    }
    let left = story.submit_nested(TaskId(1));
    let (child, held) = (story.submit_nested(TaskId(2)), story.submit_nested(TaskId(2)));
    story.result(1, 0, 5_000_000);
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| lease.2).collect::<Vec<_>>(), [left.0], "it runs on");
    let grandchild = {
        story.claim(1, leases[0].1);
        story.result(1, leases[0].1, 5_000_000);
        let leases = story.schedule();
        assert_eq!(leases[0].2, child.0);
        story.claim(1, leases[0].1);
        story.submit_nested(child)
    };
    story.finished();
    on_cancel(&mut story.state, &mut story.effects, TaskId(2), Some(0), story.now);
    assert_eq!(std::mem::take(&mut story.effects.killed), [WorkerId(2)]);
    story.exit(2);
    story.schedule();
    assert_eq!(
        story.effects.steps.last().map(String::as_str),
        Some("ask 1 to end 4: Cancelled"),
        "its child runs there"
    );
    for _ in 0..2 {
        story.now.monotonic_ns += 2_000_000_000;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    }
    assert_eq!(std::mem::take(&mut story.effects.killed), [WorkerId(1)]);
    story.exit(1);
    story.schedule();
    let ended = [(1, "cancelled".into()), (4, "abandoned".into()), (3, "abandoned".into()), (5, "abandoned".into())];
    assert_eq!(story.finished(), ended);
    let message = |id| get_task(&story.state, &story.effects, id).unwrap().message.unwrap();
    assert!(message(held).contains("because task 2, which had submitted it"), "{}", message(held));
    assert!(message(grandchild).contains(&format!("because task {child},")), "{}", message(grandchild));
    assert!(story.state.children.is_empty());
}
