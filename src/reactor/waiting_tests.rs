//! Stories of tasks that are held for their inputs.

use crate::testing::*;

#[test]
fn a_task_is_held_until_the_results_that_are_its_arguments_are_there() {
    let mut story = Story::with_workers(2);
    story.submit(2);
    let sum = story.submit_after(&[TaskId(1), TaskId(2), TaskId(1)]);
    let of_sum = story.submit_after(&[sum]);
    assert_eq!(story.state.tally.counts().waiting, 4);
    for (worker, lease, task, _) in story.schedule() {
        assert!(task <= 2);
        story.claim(worker, lease);
        story.result(worker, lease, 5_000_000);
    }
    let leases = story.schedule();
    assert_eq!(leases.iter().map(|lease| lease.2).collect::<Vec<_>>(), [sum.0]);
    let mut values = Vec::new();
    for argument in 0..3 {
        values.put_u32(argument);
        values.put_u8(0);
        values.put_bytes(&[1]);
    }
    assert_eq!(values::values(&story.state.tasks, sum), values);
    assert_eq!(get_task(&story.state, &story.effects, of_sum).unwrap().state, TaskState::Waiting);
    story.claim(leases[0].0, leases[0].1);
    story.result(leases[0].0, leases[0].1, 5_000_000);
    assert_eq!(story.schedule()[0].2, of_sum.0);
}

#[test]
fn a_task_fails_with_what_it_needs_and_so_do_those_that_need_it() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    let second = story.submit_after(&[TaskId(1)]);
    let third = story.submit_after(&[second]);
    on_cancel(&mut story.state, &mut story.effects, TaskId(1), None, story.now);
    story.schedule();
    assert_eq!(story.finished(), [(0, "cancelled".into()), (1, "input".into()), (2, "input".into())]);
    let message = get_task(&story.state, &story.effects, third).unwrap().message.unwrap();
    let cause = "task 1 (demo.my_function), whose result is an argument of it, failed: it was cancelled";
    assert_eq!(message, format!("task 2 (demo.my_function), whose result is an argument of it, failed: {cause}"));
    let later = story.submit_after(&[third]);
    let unknown = story.submit_after(&[TaskId(99)]);
    story.schedule();
    let error_type = |id| get_task(&story.state, &story.effects, id).unwrap().failure.unwrap().error_type();
    assert_eq!((error_type(later), error_type(unknown)), ("input".into(), "input".into()));
}

#[test]
fn a_held_task_can_be_cancelled_and_is_held_again_by_the_next_head() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    let held = story.submit_after(&[TaskId(1)]);
    let report = on_cancel(&mut story.state, &mut story.effects, held, None, story.now);
    assert_eq!((report, story.state.tally.held()), (CancelReport::Cancelled, 0));
    story.check();

    let mut next = Story::with_workers(1);
    for (id, inputs) in [(5, vec![]), (6, vec![Input { argument: 0, source: InputSource::Task(TaskId(5)) }])] {
        let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x91, 0xc0]));
        let envelope = Envelope { spec, inputs, ..plain(NEVER_AGAIN) };
        let mut bytes = Vec::new();
        envelope.encode(&mut bytes);
        on_restored_submission(&mut next.state, TaskId(id), JobId(1), 1, &bytes).unwrap();
    }
    on_restored(&mut next.state, &mut next.effects, &HashMap::new(), &HashMap::new(), next.now);
    next.check();
    assert_eq!(next.schedule().iter().map(|lease| lease.2).collect::<Vec<_>>(), [5]);
    next.claim(1, 0);
    next.result(1, 0, 1_000);
    assert_eq!(next.schedule().iter().map(|lease| lease.2).collect::<Vec<_>>(), [6]);
}
