//! Stories of tasks that wait for other tasks.

use crate::testing::*;

#[test]
fn a_task_that_waits_gives_its_slot_to_a_further_worker_which_ends_when_it_is_not_needed_any_more() {
    let mut story = Story::with_workers(1);
    story.state.settings.max_processes = 3;
    story.submit(3);
    assert_eq!(story.schedule(), [(1, 0, 1, 1)]);
    story.claim(1, 0);
    let children = [story.submit_nested(TaskId(1)), story.submit_nested(TaskId(1))];
    story.start_missing();
    assert_eq!(story.effects.started.len(), 0, "nothing waits for others yet");
    story.wait(1, 1, 2, &children);
    story.start_missing();
    assert_eq!(story.effects.started, [WorkerId(2)], "one slot, one worker");
    story.ready(WorkerId(2), None);
    assert_eq!(list_workers(&story.state, &story.effects, story.now)[0].state, WorkerState::Waiting);
    assert_eq!(story.schedule(), [(2, 0, 4, 1)], "what a task waits for comes before what nobody waits for");
    for (lease, next) in [(0, Some((2, 1, 5, 1))), (1, None)] {
        story.claim(2, lease);
        story.result(2, lease, 5_000_000);
        let leases = story.schedule();
        // The waiter goes on with the last result, and has the only slot again.
        assert_eq!(leases, next.into_iter().collect::<Vec<_>>());
    }
    assert!(story.state.workers[&WorkerId(1)].waits.is_empty());
    story.result(1, 0, 5_000_000);
    assert_eq!(story.schedule().len(), 1);
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    story.now.monotonic_ns += 10_000_000_000;
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(story.effects.asked.len(), 1);
    let (ended, lost) = (story.effects.asked[0], story.state.workers_lost);
    story.exit(ended.0);
    assert_eq!(story.state.workers_lost, lost, "it was told to");
    story.start_missing();
    assert_eq!(story.state.workers.len(), 1);
}

#[test]
fn where_no_further_worker_may_be_what_is_waited_for_runs_in_the_worker_that_waits() {
    let mut story = Story::with_workers(1);
    story.submit(2);
    story.schedule();
    story.claim(1, 0);
    let (first, second) = (story.submit_nested(TaskId(1)), story.submit_nested(TaskId(1)));
    story.wait(1, 1, 1, &[first, second]);
    let inline = |task: TaskId| INLINE_LEASE | task.0;
    assert_eq!(story.schedule(), [(1, inline(first), first.0, 1)]);
    assert_eq!(story.schedule(), [], "one at a time");
    let grandchild = story.submit_nested(first);
    story.wait(1, 2, 1, &[grandchild]);
    assert_eq!(story.schedule(), [(1, inline(grandchild), grandchild.0, 1)]);
    let loss = |story: &mut Story| story.exit(1).attempts.iter().map(|lost| lost.task.0).collect::<Vec<_>>();
    story.result(1, inline(grandchild), 1_000);
    assert_eq!(story.schedule(), [], "the child has gone on");
    story.result(1, inline(first), 1_000);
    assert_eq!(story.schedule(), [], "one was enough");
    story.wait(1, 3, 1, &[second]);
    assert_eq!(story.schedule(), [(1, inline(second), second.0, 1)]);
    assert_eq!(loss(&mut story), [1, second.0], "both die with their worker");
}

#[test]
fn what_a_thread_waits_for_that_was_taken_for_one_of_another_task_runs_and_wakes_it() {
    let inline = |task: TaskId| INLINE_LEASE | task.0;
    let begun = |waits_before_the_end: bool| {
        let mut story = Story::with_workers(1);
        story.submit(2);
        story.schedule();
        story.claim(1, 0);
        let beside = story.submit_nested(TaskId(1));
        story.wait(1, 1, 1, &[beside]);
        assert_eq!(story.schedule(), [(1, inline(beside), beside.0, 1)]);
        // A thread of task 1, for which nothing says that it is not one of the task that runs beside it.
        let awaited = story.submit_nested(beside);
        if waits_before_the_end {
            story.wait(1, 2, 1, &[awaited]);
            assert_eq!(story.schedule(), [(1, inline(awaited), awaited.0, 1)]);
            story.result(1, inline(beside), 1_000);
        } else {
            story.result(1, inline(beside), 1_000);
            story.wait(1, 2, 1, &[awaited]);
            assert_eq!(story.schedule(), [(1, inline(awaited), awaited.0, 1)]);
        }
        story.result(1, inline(awaited), 1_000);
        story
    };
    for waits_before_the_end in [false, true] {
        let mut story = begun(waits_before_the_end);
        assert!(!story.state.workers[&WorkerId(1)].is_waiting(), "the thread goes on");
        story.result(1, 0, 1_000);
        assert_eq!(story.schedule().len(), 1, "the worker takes the next task");
        assert!(story.state.awaited_in.is_empty());
    }
    // The task ends while the thread of nobody waits: its slot is free all the same.
    let mut story = Story::with_workers(1);
    story.submit(2);
    story.schedule();
    story.claim(1, 0);
    let child = story.submit_nested(TaskId(1));
    story.wait(1, 1, 1, &[child]);
    story.result(1, 0, 1_000);
    assert!(!story.state.workers[&WorkerId(1)].is_waiting());
    assert_eq!(story.schedule().len(), 2, "the second task and the child");
}

#[test]
fn a_task_with_a_bound_on_its_memory_has_a_process_of_its_own_or_fails_and_names_the_limit() {
    let bounded = Demand { memory_bytes: Some(64 << 20), ..Demand::default() };
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let (first, plain) = (story.submit_demand(Some(TaskId(1)), bounded.clone()), story.submit_nested(TaskId(1)));
    story.wait(1, 1, 2, &[first, plain]);
    assert_eq!(story.schedule(), [(1, INLINE_LEASE | plain.0, plain.0, 1)], "the other one needs no process");
    assert_eq!(story.schedule(), [], "something goes on");
    story.result(1, INLINE_LEASE | plain.0, 1_000);
    assert_eq!(story.schedule(), []);
    let message = "it may take 64 MiB of memory (--memory), so it needs a process of its own, but all 1 worker process that \
                   there may be wait for other tasks\n(hint: start the head with a higher --max-processes)";
    assert!(
        matches!(story.state.tasks.get(first).map(|task| task.progress()), Some(Progress::Ended(ended))
            if matches!(&ended.outcome, Outcome::Failed(Failure::NoWorker { message: said }) if said == message)),
        "{:?}",
        story.state.tasks.get(first)
    );
    assert!(!story.state.workers.values().any(|worker| worker.is_waiting()), "whoever waited goes on");

    // One with room for another process gets it.
    let mut story = Story::with_workers(1);
    story.state.settings.max_processes = 2;
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let first = story.submit_demand(Some(TaskId(1)), bounded);
    story.wait(1, 1, 1, &[first]);
    assert_eq!(story.schedule(), []);
    assert_eq!(nesting::missing_workers(&story.state), 1);
}

#[test]
fn a_wait_may_end_before_what_it_waits_for_and_one_for_what_has_ended_is_none() {
    let mut story = Story::with_workers(2);
    story.submit(1);
    let leases = story.schedule();
    let parent = leases[0].0;
    story.claim(parent, 0);
    let child = story.submit_nested(TaskId(1));
    story.wait(parent, 7, 1, &[child]);
    assert!(story.state.workers[&WorkerId(parent)].is_waiting());
    on_go_on(&mut story.state, WorkerId(parent), 7);
    assert!(!story.state.workers[&WorkerId(parent)].is_waiting());
    let leases = story.schedule();
    story.claim(leases[0].0, leases[0].1);
    story.result(leases[0].0, leases[0].1, 1_000);
    story.wait(parent, 8, 1, &[child]);
    assert!(!story.state.workers[&WorkerId(parent)].is_waiting());
}

#[test]
fn tasks_beyond_the_depth_that_fits_one_process_fail_and_name_the_limit() {
    let mut story = Story::with_workers(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let mut parent = TaskId(1);
    for depth in 0..tracer_ipc::spool::INLINE_LIMIT as u64 {
        let child = story.submit_nested(parent);
        story.wait(1, depth, 1, &[child]);
        assert_eq!(story.schedule().len(), 1);
        parent = child;
    }
    let child = story.submit_nested(parent);
    story.wait(1, 1000, 1, &[child]);
    story.finished();
    assert_eq!(story.schedule(), []);
    let report = get_task(&story.state, &story.effects, child).unwrap();
    assert!(report.message.unwrap().contains("--max-processes"));
    assert!(!story.state.workers[&WorkerId(1)].is_waiting(), "its parent goes on");
}
