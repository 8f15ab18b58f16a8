//! Stories of what another head has left.

use crate::testing::*;

#[test]
fn what_a_dead_head_had_accepted_waits_again_and_what_its_workers_had_begun_is_lost() {
    let mut story = Story::with_workers(1);
    let mut envelope = Vec::new();
    Envelope { name: "mine", wants_output: true, ..plain(NEVER_AGAIN) }.encode(&mut envelope);
    for id in [40, 41, 42] {
        on_restored_submission(&mut story.state, TaskId(id), JobId(5), 77, &envelope).unwrap();
    }
    let remembered =
        PastTask { job: JobId(2), submitted_unix_nano: 8, trace_id: [1; 16], target: "wordcount.count", name: "old" };
    on_restored_memory(&mut story.state, TaskId(43), remembered);
    let ended = TaskEnd {
        outcome: Outcome::Returned(vec![4]),
        worker: Some(WorkerId(9)),
        worker_pid: Some(900),
        started_unix_nano: Some(9),
        ended_unix_nano: 10,
    };
    on_restored_end(&mut story.state, TaskId(43), 1, ended);
    assert_eq!(story.effects.journaled, [], "what was read back is not written again");
    let claim = LeftClaim { attempt: 1, worker: WorkerId(8), worker_pid: 800 };
    let claims = HashMap::from([(TaskId(41), claim), (TaskId(43), claim)]);
    let lost = on_restored(&mut story.state, &mut story.effects, &claims, &HashMap::new(), story.now);
    story.check();
    assert_eq!(lost.iter().map(|lost| lost.task.0).collect::<Vec<_>>(), [41]);
    assert_eq!(story.effects.journaled, [TaskId(41)]);
    assert_eq!(story.schedule(), [(1, 0, 40, 1)], "its output is no longer watched, but it was to be alone");
    let task = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap();
    assert_eq!(task(41).message.unwrap(), "the head died while it ran, and its worker with it");
    assert_eq!((task(41).worker_id, task(41).worker_pid), (Some(WorkerId(8)), Some(800)));
    assert_eq!((task(43).target.as_str(), task(43).name.as_deref()), ("wordcount.count", Some("old")));
    assert_eq!((task(43).result.unwrap().to_string(), task(43).trace_id), ("4".into(), Some("01".repeat(16))));
    assert_eq!((task(42).submitted_unix_nano, task(42).job_id), (77, JobId(5)));
    assert_eq!(story.submit_with(None, false), TaskId(44), "ids go on");
}

#[test]
fn what_a_dead_heads_workers_had_begun_is_charged_once_and_tried_again() {
    let mut story = Story::with_workers(1);
    let (mut again, mut once) = (Vec::new(), Vec::new());
    plain(Policy { crash_limit: 1, ..NEVER_AGAIN }).encode(&mut again);
    plain(Policy { at_most_once: true, ..NEVER_AGAIN }).encode(&mut once);
    for (id, envelope) in [(1, &again), (2, &again), (3, &again), (4, &once), (5, &once)] {
        on_restored_submission(&mut story.state, TaskId(id), JobId(5), 77, envelope).unwrap();
    }
    let lost_with = |worker| AttemptReport {
        number: 1,
        worker_id: Some(WorkerId(worker)),
        worker_pid: Some(800),
        started_unix_nano: None,
        ended_unix_nano: 9,
        failure: Some(Failure::HeadLost),
        message: Some("gone".into()),
    };
    on_restored_attempt(&mut story.state, TaskId(2), lost_with(8), None);
    on_restored_attempt(&mut story.state, TaskId(3), lost_with(8), None);
    let claim = |attempt| LeftClaim { attempt, worker: WorkerId(8), worker_pid: 800 };
    // The journal knows of the claim of 2, and not of the second one of 3.
    let claims = HashMap::from([(TaskId(1), claim(1)), (TaskId(2), claim(1)), (TaskId(3), claim(2))]);
    let started = HashMap::from([(TaskId(5), 1)]);
    let lost = on_restored(&mut story.state, &mut story.effects, &claims, &started, story.now);
    story.check();
    assert_eq!(lost.iter().map(|lost| (lost.task.0, lost.attempt)).collect::<Vec<_>>(), [(1, 1), (3, 2), (5, 1)]);
    assert_eq!(story.effects.attempts, [(1, 1, "lost".to_owned())], "2 is in the journal already, 3 and 5 have ended");
    assert_eq!(story.effects.journaled, [TaskId(3), TaskId(5)]);
    let task = |id| get_task(&story.state, &story.effects, TaskId(id)).unwrap();
    let states: Vec<_> = (1..=5).map(|id| (task(id).state, task(id).attempt)).collect();
    use TaskState::{Failed, Waiting};
    assert_eq!(states, [(Waiting, 1), (Waiting, 1), (Failed, 2), (Waiting, 0), (Failed, 1)]);
    assert!(task(5).message.unwrap().starts_with("lost: the head died while it ran"));
}
