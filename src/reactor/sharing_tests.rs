use tracer_core::{ClusterTaskId, PlaceId};

use crate::testing::*;
use tracer_ipc::protocol::Import;

const ID: ClusterTaskId = ClusterTaskId { place: PlaceId(7), task: TaskId(1) };

fn joined(workers: usize) -> Story {
    let mut story = Story::with_workers(workers);
    on_driver(&mut story.state, JobId(9));
    on_joined(&mut story.state, PlaceId(6), JobId(9));
    story
}

fn of_queue(policy: Policy<'static>) -> Envelope<'static> {
    plain(Policy { queue: "default", ..policy })
}

/// Submits tasks as a driver does, and returns what it was answered at once.
fn submit(story: &mut Story, envelopes: &[Envelope<'_>]) -> Vec<Answer> {
    submit_in(story, JobId(1), envelopes)
}

fn submit_in(story: &mut Story, job: JobId, envelopes: &[Envelope<'_>]) -> Vec<Answer> {
    let encoded: Vec<Vec<u8>> = envelopes
        .iter()
        .map(|envelope| {
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            bytes
        })
        .collect();
    let mut body = Vec::new();
    body.put_u64(story.next_tag);
    encoded.iter().for_each(|envelope| body.put_bytes(envelope));
    story.next_tag += envelopes.len() as u64;
    let batch = Submissions::decode(&body).unwrap();
    let mut answers = Vec::new();
    let driver = (DriverId(1), Some(job));
    on_submit(&mut story.state, &mut story.effects, driver, batch, &mut |answer| answers.push(answer), story.now)
        .unwrap();
    story.check();
    answers
}

/// Returns what the agent was told of tasks to put into queues: task, queue, and whether it is new and known to be stored.
fn shares(story: &Story) -> Vec<(u64, String, bool, bool)> {
    let share = |message: &ToAgent| match message {
        ToAgent::Share { task, queue, is_new, is_stored, .. } => Some((task.0, queue.clone(), *is_new, *is_stored)),
        _ => None,
    };
    story.effects.to_agent.iter().filter_map(share).collect()
}

fn import(envelope: &Envelope<'_>) -> Import<'static> {
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes);
    Import {
        id: ID,
        token: b"token".into(),
        attempt: 1,
        failures: 0,
        crashes: 0,
        lost: Vec::new(),
        tasks: vec![ImportedTask { place: 0, submitted_unix_nano: 500, envelope: bytes.into() }],
        problem: None,
    }
}

fn end_of(outcome: Outcome) -> Vec<u8> {
    SharedEnd {
        attempt: 2,
        outcome,
        digest: None,
        started_unix_nano: Some(10),
        ended_unix_nano: 20,
        past: Vec::new(),
        node_id: "b".into(),
        worker: Some((WorkerId(2), 44)),
        written: None,
    }
    .encode()
}

#[test]
fn a_task_of_a_queue_is_journaled_handed_over_and_acknowledged_when_the_engine_has_it() {
    let mut story = joined(1);
    let answers = submit(&mut story, &[of_queue(NEVER_AGAIN), plain(NEVER_AGAIN)]);
    assert!(matches!(answers[..], [Answer::Later { first_tag: 0, count: 1 }, Answer::Accepted(_)]), "{answers:?}");
    assert_eq!(story.effects.submitted, [(1, 2)], "both are in the journal");
    assert_eq!(story.schedule().iter().map(|lease| lease.2).collect::<Vec<_>>(), [2], "only the other one is leased");
    assert_eq!(shares(&story), [(1, "default".into(), true, false)]);
    assert_eq!(story.effects.later, []);
    on_stored(&mut story.state, &mut story.effects, TaskId(1));
    assert_eq!(story.effects.later, [(0, Ok(1))]);
    let end = end_of(Outcome::Returned(vec![1]));
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(1), &end, story.now);
    story.check();
    assert_eq!(story.effects.finished, [(0, "ok".into())]);
    assert_eq!(story.effects.journaled, [TaskId(1)]);
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(1), &end, story.now);
    assert_eq!(story.effects.finished.len(), 1, "the first end counts");
}

#[test]
fn a_task_that_a_node_has_runs_for_those_who_ask_and_its_end_names_the_worker_of_that_node() {
    let mut story = joined(1);
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    on_stored(&mut story.state, &mut story.effects, TaskId(1));
    let row = |story: &Story| get_task(&story.state, &story.effects, TaskId(1)).unwrap();
    let reason = |story: &Story| explain_task(&story.state, &story.effects, TaskId(1)).unwrap().reasons.remove(0);
    assert_eq!((row(&story).state, reason(&story).to_string().contains("in the queue")), (TaskState::Waiting, true));
    let claim = ClaimedBy { node_id: "b".into(), attempt: 2, since_unix_nano: 10 };
    on_claimed(&mut story.state, TaskId(1), Some(claim.clone()));
    let running = row(&story);
    assert_eq!((running.state, running.attempt, running.started_unix_nano), (TaskState::Running, 2, Some(10)));
    let ClaimedBy { node_id, attempt, since_unix_nano } = claim.clone();
    assert_eq!(reason(&story), Reason::RunsElsewhere { node_id, attempt, since_unix_nano });
    on_cancel(&mut story.state, &mut story.effects, TaskId(1), None, story.now);
    assert_eq!(row(&story).state, TaskState::Cancelling);
    on_claimed(&mut story.state, TaskId(1), None);
    assert_eq!((row(&story).state, row(&story).attempt), (TaskState::Waiting, 0));
    let end = end_of(Outcome::Failed(Failure::Cancelled));
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(1), &end, story.now);
    story.check();
    let ended = row(&story);
    assert_eq!((ended.worker_id, ended.worker_pid, ended.attempts.len()), (Some(WorkerId(2)), Some(44), 1));
    on_claimed(&mut story.state, TaskId(1), Some(claim));
    assert_eq!(row(&story).state, TaskState::Cancelled, "it comes too late");
}

#[test]
fn where_no_process_may_be_had_a_child_in_a_queue_is_taken_back_and_runs_in_the_worker_that_waits_for_it() {
    let mut story = joined(1);
    story.submit(1);
    story.schedule();
    story.claim(1, 0);
    let child = story.submit_envelope(&Envelope { submitter: Some(TaskId(1)), ..of_queue(NEVER_AGAIN) });
    story.schedule();
    story.wait(1, 1, 1, &[child]);
    let taken_back = |story: &Story| {
        story.effects.to_agent.iter().filter(|it| matches!(it, ToAgent::TakeBack(id) if *id == child)).count()
    };
    story.schedule();
    assert_eq!(taken_back(&story), 0, "the engine may not have it");
    on_stored(&mut story.state, &mut story.effects, child);
    assert!(matches!(free_for_imports(&story.state), ToAgent::Free { slots: 1, free: 0, .. }), "no process is free");
    story.schedule();
    story.schedule();
    assert_eq!(taken_back(&story), 1, "once");
    // A node has it after all, and lets go of it.
    let claim = ClaimedBy { node_id: "b".into(), attempt: 1, since_unix_nano: 10 };
    on_claimed(&mut story.state, child, Some(claim));
    story.schedule();
    assert_eq!(taken_back(&story), 1);
    on_claimed(&mut story.state, child, None);
    story.schedule();
    assert_eq!(taken_back(&story), 2);
    let own = ClusterTaskId { place: PlaceId(6), task: child };
    let import = Import { id: own, ..import(&of_queue(NEVER_AGAIN)) };
    on_import(&mut story.state, &mut story.effects, import, story.now);
    let [(1, lease, task, 1)] = story.schedule()[..] else { panic!("it runs in the worker") };
    assert_eq!(lease, INLINE_LEASE | task);
    story.result(1, lease, 1_000);
    let is_end = |it: &&ToAgent| matches!(it, ToAgent::Ended { id, attempt: 1, .. } if *id == own);
    assert_eq!(story.effects.to_agent.iter().filter(is_end).count(), 1);
    on_settled(&mut story.state, own, 1);
    let end = end_of(Outcome::Returned(vec![1]));
    on_shared_ended(&mut story.state, &mut story.effects, child, &end, story.now);
    story.check();
    assert!(!story.state.workers[&WorkerId(1)].is_waiting(), "whoever waited goes on");
}

#[test]
fn tasks_of_a_job_that_has_many_in_queues_are_told_apart() {
    let mut story = joined(1);
    let of_many = |story: &Story| -> Vec<bool> {
        let is_of_many = |message: &ToAgent| match message {
            ToAgent::Share { is_of_many, .. } => Some(*is_of_many),
            _ => None,
        };
        story.effects.to_agent.iter().filter_map(is_of_many).collect()
    };
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 16]);
    story.schedule();
    assert_eq!(of_many(&story), [false; 16]);
    story.effects.to_agent.clear();
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    assert_eq!(of_many(&story), [true]);
    story.effects.to_agent.clear();
    for task in 1..=16 {
        let end = end_of(Outcome::Returned(vec![1]));
        on_shared_ended(&mut story.state, &mut story.effects, TaskId(task), &end, story.now);
    }
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    assert_eq!(of_many(&story), [false], "they have ended");
}

#[test]
fn what_the_engine_does_not_take_is_refused_and_its_driver_hears_no_end_beside_that() {
    let mut story = joined(1);
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    let refusal = Refusal::new(RefusalCode::QueueRefused, "no");
    on_not_stored(&mut story.state, &mut story.effects, TaskId(1), refusal, story.now);
    story.check();
    assert_eq!(story.effects.later, [(0, Err(RefusalCode::QueueRefused))]);
    assert_eq!((story.effects.finished.len(), &story.effects.journaled[..]), (0, &[TaskId(1)][..]));
}

#[test]
fn what_cannot_be_shared_is_refused_by_name() {
    let refusal = |story: &mut Story, envelope: &Envelope<'_>| match submit(story, std::slice::from_ref(envelope)).pop()
    {
        Some(Answer::Refused(refusal)) => (refusal.code, refusal.text),
        other => panic!("{other:?}"),
    };
    let mut alone = Story::with_workers(1);
    let (code, text) = refusal(&mut alone, &of_queue(NEVER_AGAIN));
    assert_eq!(code, RefusalCode::NoEngine);
    assert!(text.contains("`default`") && text.contains("(hint: "), "{text}");
    let mut story = joined(1);
    story.state.settings.max_shared_value = 1_000_000;
    let function = |module, actor| {
        let spec = TaskSpec::Function(FunctionSpec { actor, ..FunctionSpec::of_task(module, "f", &[0x90]) });
        Envelope { spec, ..of_queue(NEVER_AGAIN) }
    };
    let large = vec![b'x'; 120_000];
    let command = |arguments, input| {
        let (program, directory, environment) = (&b"ls"[..], &b"/"[..], vec![]);
        let replaces_environment = false;
        let spec = CommandSpec { program, arguments, environment, replaces_environment, input, directory };
        Envelope { spec: TaskSpec::Command(spec), ..of_queue(NEVER_AGAIN) }
    };
    let stored = Input { argument: 0, source: InputSource::Stored(Stored { name: "1".into(), bytes: 1 << 20 }) };
    for (envelope, part) in [
        (plain(Policy { queue: "a.b", ..NEVER_AGAIN }), "the queue `a.b` has `.` in its name"),
        (command(vec![], b"/socket"), "cannot read the standard input of its submitter (--stdin)"),
        (command(vec![&large; 5], b""), "takes 586 KiB, but at most 512 KiB are taken"),
        (function("m", ActorRole::Call(TaskId(1))), "an actor cannot"),
        (function("./libm.so", ActorRole::None), "`./libm.so` is a path of this machine"),
        (
            Envelope { inputs: vec![stored], ..of_queue(NEVER_AGAIN) },
            "an argument takes 1 MiB, but at most 977 KiB are shared",
        ),
    ] {
        let (code, text) = refusal(&mut story, &envelope);
        assert!(code == RefusalCode::QueueRefused && text.contains(part), "{part}: {text}");
    }
    assert_eq!(story.effects.submitted, [], "nothing of it is in the journal");
}

#[test]
fn what_travels_has_nothing_that_only_this_head_knows_and_results_in_their_places() {
    let mut story = joined(1);
    let first = story.submit_with(None, false);
    let inputs = vec![Input { argument: 0, source: InputSource::Task(first) }];
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "f", &[0x92, 0xc0, 0x07]));
    let policy = Policy { idempotency_key: "k", queue_limit: Some(Duration::from_secs(1)), retries: 3, ..NEVER_AGAIN };
    let module_version = ModuleVersion::of_number(5);
    let envelope =
        Envelope { spec, inputs, module_version, wants_output: true, submitter: Some(first), ..of_queue(policy) };
    let answers = submit(&mut story, &[envelope]);
    assert!(matches!(answers[..], [Answer::Accepted(_)]), "it waits here until it has its arguments: {answers:?}");
    let leases = story.schedule();
    assert_eq!(shares(&story), []);
    story.claim(leases[0].0, leases[0].1);
    story.end(leases[0].0, leases[0].1, 5, Outcome::Returned(vec![0xa1, b'x']));
    story.schedule();
    let Some(ToAgent::Share { envelope, .. }) =
        story.effects.to_agent.iter().find(|it| matches!(it, ToAgent::Share { .. }))
    else {
        panic!("{:?}", story.effects.to_agent)
    };
    let told = Envelope::decode(envelope).unwrap();
    let TaskSpec::Function(function) = &told.spec else { panic!() };
    assert_eq!(function.arguments, [0x92, 0xa1, b'x', 0x07]);
    let local = (told.submitter, told.inputs.len(), told.module_version, told.wants_output);
    assert_eq!(local, (None, 0, None, true), "somebody follows it");
    assert_eq!(told.policy, Policy { retries: 3, queue: "default", ..NEVER_AGAIN });
    assert_eq!(told.origin, Some(ClusterTaskId { place: PlaceId(6), task: TaskId(2) }));
}

#[test]
fn a_task_is_followed_over_a_queue_for_as_long_as_its_driver_is_there() {
    let followed = || Envelope { wants_output: true, ..of_queue(NEVER_AGAIN) };
    let mut story = joined(1);
    submit(&mut story, &[followed(), of_queue(NEVER_AGAIN)]);
    story.schedule();
    let follower = |story: &Story, task| follower_in_queue(&story.state, TaskId(task));
    assert_eq!(follower(&story, 1), None, "its driver does not know it yet");
    on_stored(&mut story.state, &mut story.effects, TaskId(1));
    on_stored(&mut story.state, &mut story.effects, TaskId(2));
    assert_eq!((follower(&story, 1), follower(&story, 2)), (Some(Some(DriverId(1))), Some(None)));
    assert_eq!(follower(&story, 3), None);
    story.state.tasks.get_mut(TaskId(1)).unwrap().driver = None;
    assert_eq!(follower(&story, 1), Some(None));
    // The next agent is told that nobody follows it.
    story.effects.to_agent.clear();
    on_agent(&mut story.state, &mut story.effects);
    story.schedule();
    let are_followed = story.effects.to_agent.iter().filter_map(|message| match message {
        ToAgent::Share { envelope, .. } => Some(Envelope::decode(envelope).unwrap().wants_output),
        _ => None,
    });
    assert_eq!(are_followed.collect::<Vec<_>>(), [false, false]);
}

#[test]
fn output_of_an_import_goes_to_its_origin_which_is_told_how_much_there_was() {
    let mut story = joined(1);
    let of_other = import(&Envelope { wants_output: true, ..of_queue(NEVER_AGAIN) });
    on_import(&mut story.state, &mut story.effects, of_other.clone(), story.now);
    let [(1, lease, task, _)] = story.schedule()[..] else { panic!("it runs") };
    story.claim(1, lease);
    let watchers = watchers(&story.state, WorkerId(1), |lease| story.effects.claim_state(WorkerId(1), lease));
    assert_eq!(watchers.tasks, [(TaskId(task), Watcher::Origin(of_other.id, of_other.attempt))]);
    story.end(1, lease, 5, Outcome::Returned(vec![1]));
    let Some(ToAgent::Ended { end, .. }) = story.effects.to_agent.last() else { panic!("it has ended") };
    let size = OutputSize { bytes: 7, lines: 1 };
    let written = Written { from_attempt: of_other.attempt, size };
    assert_eq!(SharedEnd::decode(end).unwrap().written, Some(written));
}

#[test]
fn all_that_an_engine_does_not_answer_is_accepted_in_time_and_said_in_one_line() {
    let mut story = joined(1);
    on_reach(&mut story.state, true);
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); super::ON_THE_WAY + 36]);
    story.schedule();
    let told = shares(&story).len();
    assert!(told <= super::ON_THE_WAY, "the others wait until the engine has some of those: {told}");
    let firsts: Vec<_> = shares(&story).iter().map(|(task, ..)| TaskId(*task)).collect();
    on_unanswered(&mut story.state, &mut story.effects, &firsts);
    story.check();
    assert_eq!(story.effects.later.len(), super::ON_THE_WAY + 36, "those too of which the agent was not told");
    assert!(story.effects.later.iter().all(|(_, answer)| answer.is_ok()));
    // What is accepted is not refused when the engine goes away: it is shared again, as a task that may be there.
    let away = Refusal::new(RefusalCode::EngineUnreachable, "it is away");
    on_not_stored(&mut story.state, &mut story.effects, firsts[0], away, story.now);
    story.schedule();
    let again = story.effects.to_agent.iter().rev().find_map(|told| match told {
        ToAgent::Share { task, is_new, .. } if *task == firsts[0] => Some(*is_new),
        ToAgent::ShareBundle { first, is_new, .. } if *first == firsts[0] => Some(*is_new),
        _ => None,
    });
    assert_eq!((again, story.state.counts().waiting), (Some(false), super::ON_THE_WAY + 36));
    let line = "the engine has not answered the submission of 100 tasks (1 to 100), which are accepted: they go into their queues when it answers";
    assert_eq!(story.effects.log, [line]);

    // What is submitted then does not wait behind what the engine does not answer.
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    assert_eq!(shares(&story).len(), super::ON_THE_WAY + 38);
    on_unanswered(&mut story.state, &mut story.effects, &[TaskId(101)]);
    assert!(story.effects.log[1].contains("the submission of task 101, which is accepted: it goes into its queue"));
    on_unanswered(&mut story.state, &mut story.effects, &[TaskId(101)]);
    assert_eq!(story.effects.log.len(), 2, "nobody waits any more");
}

#[test]
fn a_task_that_comes_back_over_its_queue_is_counted_and_listed_once() {
    let mut story = joined(1);
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    on_stored(&mut story.state, &mut story.effects, TaskId(1));
    let id = ClusterTaskId { place: PlaceId(6), task: TaskId(1) };
    on_import(&mut story.state, &mut story.effects, Import { id, ..import(&of_queue(NEVER_AGAIN)) }, story.now);
    let counts = |story: &Story| {
        let TaskCounts { waiting, leased, succeeded, failed, .. } = story.state.counts();
        (waiting, leased, succeeded, failed)
    };
    let listed = |story: &Story| {
        let failed = TaskFilter { states: vec![TaskState::Failed], ..TaskFilter::default() };
        let lists =
            [TaskFilter::default(), failed].map(|which| list_tasks(&story.state, &story.effects, 10, None, &which));
        let ids = lists[0].tasks.iter().map(|task| task.id.0).collect::<Vec<_>>();
        (ids, lists[0].left_out, lists[1].filtered_out)
    };
    let once = (vec![1], 0, 1);
    assert_eq!((counts(&story), listed(&story)), ((1, 0, 0, 0), once.clone()));
    let [(1, lease, 2, _)] = story.schedule()[..] else { panic!("it runs here as task 2") };
    story.claim(1, lease);
    assert_eq!((counts(&story), listed(&story)), ((0, 1, 0, 0), once.clone()));
    let now = story.now;
    assert_eq!(list_workers(&story.state, &story.effects, now)[0].task, Some(TaskId(1)), "the id by which it is known");
    story.end(1, lease, 5, Outcome::Returned(vec![1]));
    assert_eq!((counts(&story), listed(&story)), ((1, 0, 0, 0), once.clone()), "its end is on the way");
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(1), &end_of(Outcome::Returned(vec![1])), story.now);
    on_settled(&mut story.state, id, 1);
    story.check();
    assert_eq!((counts(&story), listed(&story)), ((0, 0, 1, 0), once.clone()));
    assert_eq!(get_task(&story.state, &story.effects, TaskId(2)).map(|task| task.state), Some(TaskState::Succeeded));
    let all = PruneWhich { max_tasks: Some(0), ..PruneWhich::default() };
    on_prune(&mut story.state, &mut story.effects, &all, story.now);
    story.check();
    assert_eq!(story.state.counts().forgotten, 1);

    // What this head does not know as its own any more is an import as any other.
    on_import(&mut story.state, &mut story.effects, Import { id, ..import(&of_queue(NEVER_AGAIN)) }, story.now);
    assert_eq!((counts(&story), listed(&story).0), ((1, 0, 1, 0), vec![3]));
}

#[test]
fn large_arguments_travel_by_themselves_and_of_the_others_the_largest() {
    let mut story = joined(1);
    let first = story.submit_with(None, false);
    let stored = |name: &str, bytes| Stored { name: name.into(), bytes };
    let input = |argument, source| Input { argument, source };
    let inputs = vec![input(0, InputSource::Task(first)), input(1, InputSource::Stored(stored("2", 1 << 20)))];
    let text = |length: usize, of: u8| [&[0xdb][..], &(length as u32).to_be_bytes(), &vec![of; length]].concat();
    let (long, short) = (text(200 << 10, b'l'), text(100 << 10, b's'));
    let arguments = tracer_core::value::array(&[vec![0xc0], vec![0xc0], short.clone(), long.clone()]);
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "f", &arguments));
    submit(&mut story, &[Envelope { spec, inputs, ..of_queue(NEVER_AGAIN) }]);
    let leases = story.schedule();
    story.claim(leases[0].0, leases[0].1);
    story.end(leases[0].0, leases[0].1, 5, Outcome::Stored(stored("1", 500_000)));
    story.schedule();
    let told = story.effects.to_agent.iter().find_map(|told| match told {
        ToAgent::Share { envelope, large, .. } => Some((envelope.clone(), large.clone())),
        _ => None,
    });
    let (envelope, large) = told.unwrap();
    assert!(large == [(3, long)], "the largest of those that are too many");
    let envelope = Envelope::decode(&envelope).unwrap();
    let files =
        [input(0, InputSource::Stored(stored("1", 500_000))), input(1, InputSource::Stored(stored("2", 1 << 20)))];
    assert_eq!(envelope.inputs, files);
    let TaskSpec::Function(function) = &envelope.spec else { panic!() };
    assert!(function.arguments == tracer_core::value::array(&[vec![0xc0], vec![0xc0], short, vec![0xc0]]));

    // A result that is larger than what is shared fails the task for which it would be an argument.
    story.state.settings.max_shared_value = 400_000;
    on_agent(&mut story.state, &mut story.effects);
    story.schedule();
    assert!(matches!(story.effects.finished.last(), Some((_, how)) if how != "ok"), "{:?}", story.effects.finished);
}

#[test]
fn the_file_of_a_result_is_kept_until_the_agent_has_it_in_the_engine_and_one_above_the_bound_fails() {
    let stored = Stored { name: "5".into(), bytes: 1_000_000 };
    for (bound, is_shared) in [(1 << 20, true), (900_000, false)] {
        let mut story = joined(1);
        story.state.settings.max_shared_value = bound;
        let argument = Input { argument: 0, source: InputSource::Stored(Stored { name: "4".into(), bytes: 7 }) };
        let wanted = import(&Envelope { inputs: vec![argument], ..plain(NEVER_AGAIN) });
        on_import(&mut story.state, &mut story.effects, wanted, story.now);
        let lease = story.schedule()[0];
        story.claim(lease.0, lease.1);
        story.end(lease.0, lease.1, 5, Outcome::Stored(stored.clone()));
        let outcome = story.effects.to_agent.iter().rev().find_map(|told| match told {
            ToAgent::Ended { end, .. } => Some(SharedEnd::decode(end).unwrap().outcome),
            _ => None,
        });
        if is_shared {
            assert_eq!(outcome, Some(Outcome::Stored(stored.clone())));
        } else {
            let Some(Outcome::Failed(Failure::Result { message })) = outcome else { panic!("{outcome:?}") };
            assert!(message.contains("the result takes 977 KiB, but at most 879 KiB"), "{message}");
        }
        // Another large result is too many.
        story.state.settings.stored_bytes_limit = 1;
        let local = story.submit_with(None, false);
        let lease = story.schedule()[0];
        story.claim(lease.0, lease.1);
        story.end(lease.0, lease.1, 5, Outcome::Stored(Stored { name: "6".into(), bytes: 9 }));
        on_result_forgotten(&mut story.state, local);
        follow_up::follow_up(&mut story.state, &mut story.effects, story.now);
        assert_eq!(story.effects.unused_values, ["4", "6"], "the argument went with the task");
        on_settled(&mut story.state, ID, 1);
        let next = story.submit_with(None, false);
        let lease = story.schedule()[0];
        story.claim(lease.0, lease.1);
        story.end(lease.0, lease.1, 5, Outcome::Stored(Stored { name: "7".into(), bytes: 9 }));
        on_result_forgotten(&mut story.state, next);
        follow_up::follow_up(&mut story.state, &mut story.effects, story.now);
        assert!(story.effects.unused_values.contains(&"5".to_owned()), "{:?}", story.effects.unused_values);
        story.check();
    }
}

#[test]
fn a_large_result_of_another_node_is_a_file_here_and_the_agent_hears_that_the_end_is_written_down() {
    let mut story = joined(1);
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    let end = end_of(Outcome::Stored(Stored { name: "8".into(), bytes: 1 << 20 }));
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(1), &end, story.now);
    story.check();
    assert_eq!(story.effects.to_agent.last(), Some(&ToAgent::Taken(TaskId(1))));
    assert_eq!(story.effects.journaled, [TaskId(1)]);
    assert_eq!(value_files(&story.state), HashSet::from(["8".to_owned()]));
    // It comes once more, in another file.
    let again = end_of(Outcome::Stored(Stored { name: "9".into(), bytes: 1 << 20 }));
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(1), &again, story.now);
    follow_up::follow_up(&mut story.state, &mut story.effects, story.now);
    assert_eq!(story.effects.unused_values, ["9"]);
}

#[test]
fn an_import_whose_argument_cannot_be_had_fails_by_name_and_removes_no_file_that_another_node_names() {
    let mut story = joined(1);
    let argument = Input { argument: 0, source: InputSource::Stored(Stored { name: "4".into(), bytes: 7 }) };
    let wanted = import(&Envelope { inputs: vec![argument], ..plain(NEVER_AGAIN) });
    let wanted = Import { problem: Some("it is damaged".into()), ..wanted };
    on_import(&mut story.state, &mut story.effects, wanted, story.now);
    follow_up::follow_up(&mut story.state, &mut story.effects, story.now);
    assert_eq!((story.effects.unused_values.len(), story.schedule().len()), (0, 0));
    let Some(ToAgent::Ended { end, .. }) = story.effects.to_agent.last() else {
        panic!("{:?}", story.effects.to_agent)
    };
    let outcome = SharedEnd::decode(end).unwrap().outcome;
    assert_eq!(outcome, Outcome::Failed(Failure::Arguments { message: "it is damaged".into() }));
}

#[test]
fn a_new_agent_is_told_all_that_is_open_both_ways() {
    let mut story = joined(2);
    submit(&mut story, &[of_queue(NEVER_AGAIN), of_queue(NEVER_AGAIN)]);
    story.effects.has_no_agent = true;
    story.schedule();
    story.effects.has_no_agent = false;
    on_agent(&mut story.state, &mut story.effects);
    story.schedule();
    assert_eq!(shares(&story), [(1, "default".into(), true, false), (2, "default".into(), true, false)]);
    on_stored(&mut story.state, &mut story.effects, TaskId(1));
    on_cancel(&mut story.state, &mut story.effects, TaskId(2), None, story.now);
    let policy = Policy { retries: 1, retry_backoff: Duration::ZERO, ..NEVER_AGAIN };
    on_import(&mut story.state, &mut story.effects, import(&plain(policy)), story.now);
    let lease = story.schedule()[0];
    story.claim(lease.0, lease.1);
    story.fail(lease.0, lease.1);
    story.effects.to_agent.clear();
    on_agent(&mut story.state, &mut story.effects);
    story.schedule();
    assert_eq!(shares(&story), [(1, "default".into(), false, true), (2, "default".into(), false, false)]);
    let told = |wanted: fn(&ToAgent) -> bool| story.effects.to_agent.iter().filter(|it| wanted(it)).count();
    assert_eq!(told(|it| matches!(it, ToAgent::Open { attempt: 1, .. })), 1);
    assert_eq!(told(|it| matches!(it, ToAgent::AttemptFailed { attempt: 1, charge: Charge::Own, .. })), 1);
    assert_eq!(
        told(|it| matches!(it, ToAgent::Withdraw { task: TaskId(2), stops: Some(Stop { grace_ns: None }), .. })),
        1
    );
}

#[test]
fn a_task_of_another_node_runs_outside_of_the_journal_and_its_end_is_kept_until_it_is_settled() {
    let mut story = joined(1);
    let at_most_once = Policy { at_most_once: true, ..NEVER_AGAIN };
    let wanted = Import { attempt: 3, crashes: 1, ..import(&plain(at_most_once)) };
    on_import(&mut story.state, &mut story.effects, wanted, story.now);
    let lease = story.schedule()[0];
    assert_eq!(lease.3, 3, "the attempt goes on where another node was");
    story.claim(lease.0, lease.1);
    story.result(lease.0, lease.1, 5);
    assert_eq!((story.effects.submitted.len(), story.effects.journaled.len(), story.effects.starts.len()), (0, 0, 0));
    let ended = |story: &Story| story.effects.to_agent.iter().filter(|it| matches!(it, ToAgent::Ended { .. })).count();
    let Some(ToAgent::Ended { id, attempt: 3, end }) = story.effects.to_agent.last() else {
        panic!("{:?}", story.effects.to_agent)
    };
    assert_eq!(*id, ID);
    assert_eq!(SharedEnd::decode(end).unwrap().outcome, Outcome::Returned(vec![1]));
    on_agent(&mut story.state, &mut story.effects);
    assert_eq!(ended(&story), 2, "nobody has settled it");
    on_settled(&mut story.state, ID, 1);
    on_agent(&mut story.state, &mut story.effects);
    assert_eq!(ended(&story), 2);
    story.check();
}

#[test]
fn attempts_that_were_lost_with_their_nodes_have_spans_before_the_next_begins() {
    let mut story = joined(1);
    let lost = |attempt: u32| LostElsewhere {
        attempt,
        node_id: format!("node-{attempt}"),
        since_unix_nano: if attempt == 1 { 10 } else { 600 },
        until_unix_nano: if attempt == 1 { 20 } else { 590 },
    };
    let wanted = Import { attempt: 3, crashes: 2, lost: vec![lost(1), lost(2)], ..import(&plain(NEVER_AGAIN)) };
    on_import(&mut story.state, &mut story.effects, wanted, story.now);
    assert!(story.effects.leases.is_empty());
    let span = |number: u8| SpanLink { trace_id: [1; 16], span_id: [number; 8], trace_flags: 1 };
    let task = story.effects.stand_ins[0].0;
    let written = [(task, 1, "node-1".to_owned(), None), (task, 2, "node-2".to_owned(), Some(span(1)))];
    assert_eq!(story.effects.stand_ins, written);
    assert_eq!(
        story.effects.stand_in_times,
        [(500, 500), (600, 600)],
        "after the submission, and not to before they began"
    );
    assert_eq!(story.effects.to_agent.last(), Some(&ToAgent::StoodIn { id: ID, attempt: 3 }));
    let past = story.state.tasks.get(TaskId(task)).and_then(|task| task.past.as_ref());
    assert_eq!(past.and_then(|past| past.span), Some(span(2)), "the attempt that follows has a link to it");
    story.check();

    // Where one of them cannot be written, whoever takes the task next writes them again.
    for unwritable in [1, 2] {
        let mut story = joined(1);
        story.effects.unwritable = Some(unwritable);
        let wanted = Import { attempt: 3, crashes: 2, lost: vec![lost(1), lost(2)], ..import(&plain(NEVER_AGAIN)) };
        on_import(&mut story.state, &mut story.effects, wanted, story.now);
        assert_eq!(story.effects.stand_ins.len(), 2);
        assert!(!story.effects.to_agent.iter().any(|told| matches!(told, ToAgent::StoodIn { .. })), "{unwritable}");
    }
}

#[test]
fn what_another_node_sends_is_run_only_if_it_may_be() {
    let path = TaskSpec::Function(FunctionSpec::of_task("/tmp/libevil.so", "f", &[0x90]));
    let function = FunctionSpec { actor: ActorRole::Call(TaskId(1)), ..FunctionSpec::of_task("m", "f", &[0x90]) };
    let input =
        Input { argument: 0, source: InputSource::Stored(Stored { name: "../../etc/passwd".into(), bytes: 1 }) };
    let hostile = [
        Envelope { spec: path, ..plain(NEVER_AGAIN) },
        Envelope { spec: TaskSpec::command(b"rm", vec![], vec![], b"/"), ..plain(NEVER_AGAIN) },
        Envelope { spec: TaskSpec::Function(function), ..plain(NEVER_AGAIN) },
        Envelope { inputs: vec![input], ..plain(NEVER_AGAIN) },
        Envelope { submitter: Some(TaskId(1)), ..plain(NEVER_AGAIN) },
    ];
    let mut imports: Vec<_> = hostile.iter().map(import).collect();
    let mut unreadable = import(&plain(NEVER_AGAIN));
    unreadable.tasks[0].envelope = b"\xff\xff nobody's".into();
    imports.push(unreadable);
    for import in imports {
        let mut story = joined(1);
        on_import(&mut story.state, &mut story.effects, import, story.now);
        story.check();
        assert_eq!(story.schedule(), [], "nothing of it runs");
        let Some(ToAgent::Ended { end, .. }) = story.effects.to_agent.last() else {
            panic!("{:?}", story.effects.to_agent)
        };
        let outcome = SharedEnd::decode(end).unwrap().outcome;
        assert!(matches!(outcome, Outcome::Failed(Failure::Module { .. })), "{outcome:?}");
    }
}

/// Returns what the agent was told of ends, failed attempts and imports that are given back.
fn ends_told(story: &Story) -> Vec<String> {
    let words = |message: &ToAgent| match message {
        ToAgent::GivenBack { id, attempt, has_begun } => Some(format!("{} back at {attempt}, {has_begun}", id.task)),
        ToAgent::AttemptFailed { id, attempt, charge, .. } => Some(format!("{} failed {attempt}, {charge:?}", id.task)),
        ToAgent::Ended { id, attempt, .. } => Some(format!("{} ended at {attempt}", id.task)),
        _ => None,
    };
    story.effects.to_agent.iter().filter_map(words).collect()
}

#[test]
fn a_head_that_stops_gives_back_what_it_runs_for_others() {
    // In either way: what another node has put into its queue is not discarded.
    for lot in [Unfinished::Kept, Unfinished::Discarded] {
        let mut story = joined(4);
        let policies = [TWICE, NEVER_AGAIN, Policy { at_most_once: true, ..TWICE }, TWICE];
        let mut leases = Vec::new();
        for (task, policy) in (1..).zip(policies) {
            let id = ClusterTaskId { task: TaskId(task), ..ID };
            on_import(&mut story.state, &mut story.effects, Import { id, ..import(&plain(policy)) }, story.now);
            let lease = story.schedule()[0];
            story.claim(lease.0, lease.1);
            leases.push(lease);
        }
        for task in [5, 6] {
            let id = ClusterTaskId { task: TaskId(task), ..ID };
            on_import(&mut story.state, &mut story.effects, Import { id, ..import(&plain(NEVER_AGAIN)) }, story.now);
            if task == 5 {
                on_stop(&mut story.state, &mut story.effects, lot, false, story.now);
            }
        }
        story.fail(leases[3].0, leases[3].1);
        leases[..3].iter().for_each(|lease| drop(story.exit(lease.0)));
        let expected = [
            // It waits; this one comes when the stop has begun.
            "5 back at 1, false",
            "6 back at 1, false",
            // It fails by itself, and has an attempt left.
            "4 failed 1, Own",
            "4 back at 2, false",
            // It is cut short and may begin again; these may not.
            "1 failed 1, Free",
            "1 back at 2, false",
            "2 ended at 1",
            "3 ended at 1",
        ];
        assert_eq!(ends_told(&story), expected, "{lot:?}");
        assert!(has_unsettled(&story.state));
    }
}

#[test]
fn imports_that_are_another_nodes_or_may_be_are_ended_as_if_cancelled_and_given_back() {
    let retried = Policy { retries: 5, ..NEVER_AGAIN };
    let mut story = joined(1);
    on_import(&mut story.state, &mut story.effects, import(&plain(retried)), story.now);
    let other = ClusterTaskId { task: TaskId(2), ..ID };
    on_import(&mut story.state, &mut story.effects, Import { id: other, ..import(&plain(retried)) }, story.now);
    let local = story.submit_with(None, false);
    let (worker, lease, task, _) = story.schedule()[0];
    story.claim(worker, lease);
    for id in [other, ID, ID, ClusterTaskId { task: TaskId(3), ..ID }] {
        on_superseded(&mut story.state, &mut story.effects, id, story.now);
    }
    assert_eq!(story.effects.steps, [format!("ask {worker} to end {task}: Superseded")]);
    for _ in 0..2 {
        story.now.monotonic_ns += 60_000_000_000;
        on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    }
    assert_eq!(story.effects.steps[1..], [format!("TERM for {worker}")]);
    assert_eq!(story.effects.killed, [WorkerId(worker)]);
    assert_eq!(story.exit(worker).why.error_type, "superseded", "of the spans that were open");
    let given_back: Vec<_> =
        story.effects.to_agent.iter().filter(|it| matches!(it, ToAgent::GivenBack { .. })).cloned().collect();
    let expected = [
        ToAgent::GivenBack { id: other, attempt: 1, has_begun: false },
        ToAgent::GivenBack { id: ID, attempt: 1, has_begun: true },
    ];
    assert_eq!(given_back, expected);
    let progress = story.state.tasks.get(local).map(|task| matches!(task.progress(), Progress::Waiting));
    assert_eq!(progress, Some(true), "what is of no queue is not touched");

    // One that comes to its end all the same has it, and one that would be tried again is not tried here.
    let error = Failure::Error { type_name: "E".into(), message: "no".into(), stacktrace: String::new() };
    for (outcome, is_end) in [(Outcome::Returned(vec![1]), true), (Outcome::Failed(error), false)] {
        let mut story = joined(1);
        on_import(&mut story.state, &mut story.effects, import(&plain(retried)), story.now);
        let (worker, lease, ..) = story.schedule()[0];
        story.claim(worker, lease);
        on_superseded(&mut story.state, &mut story.effects, ID, story.now);
        story.end(worker, lease, 5, outcome);
        let last = story.effects.to_agent.last();
        assert_eq!(matches!(last, Some(ToAgent::Ended { .. })), is_end, "{last:?}");
        assert_eq!(matches!(last, Some(ToAgent::GivenBack { has_begun: true, .. })), !is_end, "{last:?}");
        story.check();
    }
}

#[test]
fn slots_are_offered_to_other_nodes_when_no_task_of_this_one_waits_for_them() {
    let mut story = joined(2);
    let free = |story: &Story| match free_for_imports(&story.state) {
        ToAgent::Free { slots: 2, free, .. } => free,
        other => panic!("{other:?}"),
    };
    assert_eq!(free(&story), 2);
    story.submit(1);
    story.schedule();
    assert_eq!(free(&story), 1);
    story.submit(3);
    assert_eq!(free(&story), 0);
}

#[test]
fn what_other_nodes_may_take_of_resources_is_what_no_task_of_this_one_has_or_waits_for() {
    let mut story = joined(4);
    story.state.settings.resources = vec![Resource { name: "gpu".into(), total: 3 }];
    let free = |story: &Story| match free_for_imports(&story.state) {
        ToAgent::Free { slots: 4, free, resources, .. } => (free, resources),
        other => panic!("{other:?}"),
    };
    let gpus = |free| vec![("gpu".to_owned(), 3, free)];
    assert_eq!(free(&story), (4, gpus(3)));
    let demand = Demand { num_cpus: 2, resources: vec![("gpu", 1)], memory_bytes: None };
    submit(&mut story, &[Envelope { demand, ..plain(NEVER_AGAIN) }]);
    assert_eq!(free(&story), (2, gpus(2)), "it waits");
    story.schedule();
    assert_eq!(free(&story), (2, gpus(2)), "it has them");
}

#[test]
fn a_command_of_a_queue_is_run_where_that_was_permitted_and_nowhere_else() {
    let command = |input: &'static [u8]| {
        let TaskSpec::Command(spec) = TaskSpec::command(b"true", Vec::new(), Vec::new(), b"/") else { panic!() };
        Envelope::of(TaskSpec::Command(CommandSpec { input, ..spec }))
    };
    let large = Envelope { demand: Demand { num_cpus: 2, ..Demand::default() }, ..plain(NEVER_AGAIN) };
    for (permitted, envelope, problem) in [
        (true, command(b""), None),
        (false, command(b""), Some("no commands (--shared-commands)")),
        (true, command(b"/socket"), Some("a socket of its own node")),
        (true, large, Some("the task asks for 2 cpus (--num-cpus), but this head has 1")),
    ] {
        let mut story = joined(1);
        story.state.settings.shared_commands = permitted;
        on_import(&mut story.state, &mut story.effects, import(&envelope), story.now);
        assert_eq!(story.schedule().len(), usize::from(problem.is_none()), "{envelope:?}");
        let ended = story.effects.to_agent.iter().find_map(|it| match it {
            ToAgent::Ended { end, .. } => Some(SharedEnd::decode(end).unwrap().outcome),
            _ => None,
        });
        match (problem, ended) {
            (None, None) => {}
            (Some(problem), Some(Outcome::Failed(Failure::Module { message }))) => {
                assert!(message.contains(problem), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_shared_task_that_waits_too_long_is_withdrawn_if_nobody_has_begun_it() {
    let mut story = joined(1);
    let policy = Policy { queue_limit: Some(Duration::from_secs(1)), ..NEVER_AGAIN };
    submit(&mut story, &[of_queue(policy)]);
    story.schedule();
    story.now.monotonic_ns += 2_000_000_000;
    on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    let Some(ToAgent::Withdraw { task: TaskId(1), stops: None, end }) = story.effects.to_agent.last() else {
        panic!("{:?}", story.effects.to_agent)
    };
    let outcome = SharedEnd::decode(end).unwrap().outcome;
    assert!(matches!(outcome, Outcome::Failed(Failure::TimedOut { limit: TimeLimit::Queue, .. })), "{outcome:?}");
    story.check();
}

/// Has the engine run one task of the target of [`of_queue`] that took so long.
fn measure(story: &mut Story, run_ns: u64) {
    submit(story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    let task = TaskId(story.effects.submitted.last().unwrap().0);
    on_stored(&mut story.state, &mut story.effects, task);
    let mut end = SharedEnd::decode(&end_of(Outcome::Returned(vec![1]))).unwrap();
    (end.started_unix_nano, end.ended_unix_nano) = (Some(10), 10 + run_ns);
    on_shared_ended(&mut story.state, &mut story.effects, task, &end.encode(), story.now);
    story.effects.to_agent.clear();
}

/// A bundle that the agent was told of: its first task, the number of its tasks, and those that are in it.
type Told = (u64, u32, Vec<u64>);

/// Returns the bundles that the agent was told of, and the tasks that go by themselves.
fn handed_over(story: &Story) -> (Vec<Told>, Vec<u64>) {
    let bundle = |message: &ToAgent| match message {
        ToAgent::ShareBundle { first, count, tasks, .. } => {
            Some((first.0, *count, tasks.iter().map(|task| task.id.0).collect()))
        }
        _ => None,
    };
    let bundles = story.effects.to_agent.iter().filter_map(bundle).collect();
    (bundles, shares(story).into_iter().map(|share| share.0).collect())
}

#[test]
fn short_tasks_of_one_job_go_together_once_it_is_known_how_short_they_are() {
    let mut story = joined(1);
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 3]);
    story.schedule();
    assert_eq!(handed_over(&story), (vec![], vec![1, 2, 3]), "nobody knows how long they run");
    story.effects.to_agent.clear();
    measure(&mut story, 1_000_000);
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 25]);
    story.schedule();
    let expected = [(5, 20, (5..25).collect()), (25, 5, (25..30).collect())];
    assert_eq!(handed_over(&story), (expected.to_vec(), vec![]), "20 ms of work at the most");
    assert_eq!(story.effects.bundles, [(5, 20), (25, 5)], "it is in the journal");
    // One answer is for all of them, and each ends by itself.
    story.effects.later.clear();
    on_stored(&mut story.state, &mut story.effects, TaskId(25));
    assert_eq!(story.effects.later.len(), 5);
    for task in 25..30 {
        let end = end_of(Outcome::Returned(vec![1]));
        on_shared_ended(&mut story.state, &mut story.effects, TaskId(task), &end, story.now);
        story.check();
    }
    assert_eq!(story.state.shared.bundles.keys().copied().collect::<Vec<_>>(), [TaskId(5)]);
    let refusal = Refusal::new(RefusalCode::QueueFull, "no");
    on_not_stored(&mut story.state, &mut story.effects, TaskId(5), refusal, story.now);
    story.check();
    assert_eq!((story.effects.later.len(), story.state.shared.bundles.len()), (25, 0));
}

#[test]
fn what_is_not_like_its_neighbours_or_has_terms_of_its_own_goes_by_itself() {
    let plain = || of_queue(NEVER_AGAIN);
    let other = |policy: Policy<'static>| Envelope { policy: Policy { queue: "default", ..policy }, ..plain() };
    let cases = [
        ("another queue", Envelope { policy: Policy { queue: "other", ..NEVER_AGAIN }, ..plain() }),
        ("at most once", other(Policy { at_most_once: true, ..NEVER_AGAIN })),
        ("a limit to its run", Envelope { run_limit: Some(Duration::from_secs(1)), ..plain() }),
        ("a limit to its waiting", other(Policy { queue_limit: Some(Duration::from_secs(1)), ..NEVER_AGAIN })),
        ("its output is followed", Envelope { wants_output: true, ..plain() }),
        ("another number of crashes", other(Policy { crash_limit: 9, ..NEVER_AGAIN })),
        (
            "another function",
            Envelope { spec: TaskSpec::Function(FunctionSpec::of_task("m", "another", &[0x90])), ..plain() },
        ),
    ];
    for (what, different) in cases {
        let mut story = joined(1);
        measure(&mut story, 1_000);
        submit(&mut story, &[plain(), plain(), different, plain(), plain()]);
        story.schedule();
        let (bundles, alone) = handed_over(&story);
        assert_eq!(bundles, [(2, 2, vec![2, 3]), (5, 2, vec![5, 6])], "{what}");
        assert_eq!(alone, [4], "{what}");
        story.check();
    }
}

#[test]
fn a_bundle_is_the_same_for_every_agent_and_every_later_head() {
    let mut story = joined(1);
    measure(&mut story, 1_000);
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 3]);
    story.schedule();
    assert_eq!(handed_over(&story).0, [(2, 3, vec![2, 3, 4])]);
    story.effects.to_agent.clear();
    let end = end_of(Outcome::Returned(vec![1]));
    on_shared_ended(&mut story.state, &mut story.effects, TaskId(2), &end, story.now);
    on_agent(&mut story.state, &mut story.effects);
    submit(&mut story, &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    assert_eq!(handed_over(&story), (vec![(2, 3, vec![3, 4])], vec![5]), "without the one that has ended");
    story.check();

    let mut next = joined(1);
    for task in 1..=4 {
        let mut bytes = Vec::new();
        of_queue(NEVER_AGAIN).encode(&mut bytes);
        on_restored_submission(&mut next.state, TaskId(task), JobId(1), 5, bytes).unwrap();
    }
    on_restored_bundle(&mut next.state, TaskId(2), 2);
    let unstarted = lifecycle::unstarted(Failure::Cancelled, next.now);
    on_restored_end(&mut next.state, TaskId(3), 0, unstarted);
    on_restored(&mut next.state, &mut next.effects, &HashMap::new(), &HashMap::new(), next.now);
    next.check();
    next.schedule();
    assert_eq!(handed_over(&next), (vec![(2, 2, vec![2])], vec![1, 4]));
}

#[test]
fn a_bundle_that_cannot_be_journaled_is_none() {
    let mut story = joined(1);
    measure(&mut story, 1_000);
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 2]);
    story.effects.is_disk_full = true;
    story.schedule();
    assert_eq!(handed_over(&story), (vec![], vec![2, 3]));
}

#[test]
fn short_tasks_wait_for_a_whole_bundle_while_others_are_on_the_way() {
    let mut story = joined(1);
    measure(&mut story, 1_000_000);
    on_reach(&mut story.state, true);
    for _ in 0..2 {
        submit(&mut story, &[of_queue(NEVER_AGAIN)]);
        story.schedule();
    }
    assert_eq!(handed_over(&story), (vec![], vec![2, 3]), "nothing is on the way, or little");
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 25]);
    story.schedule();
    assert_eq!(handed_over(&story).0, [(4, 20, (4..24).collect())], "five wait");
    on_stored(&mut story.state, &mut story.effects, TaskId(2));
    story.schedule();
    assert_eq!(handed_over(&story).0.len(), 1);
    on_stored(&mut story.state, &mut story.effects, TaskId(4));
    story.schedule();
    assert_eq!(handed_over(&story).0[1], (24, 5, (24..29).collect()));

    // One that is cancelled while it waits for others is in no bundle.
    story.effects.to_agent.clear();
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 7]);
    story.schedule();
    assert_eq!(handed_over(&story), (vec![], vec![]), "two are on the way");
    let report = on_cancel(&mut story.state, &mut story.effects, TaskId(33), None, story.now);
    assert_eq!(report, CancelReport::Cancelling);
    on_stored(&mut story.state, &mut story.effects, TaskId(3));
    on_stored(&mut story.state, &mut story.effects, TaskId(24));
    story.schedule();
    assert_eq!(handed_over(&story).0[0], (29, 4, (29..33).collect()));
    assert_eq!(handed_over(&story).1, [33]);
    story.check();
}

#[test]
fn short_tasks_wait_a_moment_for_a_whole_bundle_while_others_are_in_a_queue() {
    let mut story = joined(1);
    measure(&mut story, 1_000_000);
    on_reach(&mut story.state, true);
    let submit_some = |story: &mut Story, count| {
        submit(story, &vec![of_queue(NEVER_AGAIN); count]);
        story.schedule();
        handed_over(story).0.last().map(|told| (told.0, told.1))
    };
    // Few are before them.
    for first in [2, 6, 10, 14] {
        assert_eq!(submit_some(&mut story, 4), Some((first, 4)));
        on_stored(&mut story.state, &mut story.effects, TaskId(first));
    }
    assert_eq!(submit_some(&mut story, 3), Some((14, 4)), "they wait");
    let again = on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now);
    assert_eq!(again, Some(story.now.monotonic_ns + 2_000_000));
    story.now.monotonic_ns += 1_500_000;
    assert_eq!(submit_some(&mut story, 4), Some((14, 4)), "the first one counts");
    story.now.monotonic_ns += 500_000;
    story.schedule();
    assert_eq!(handed_over(&story).0.last().map(|told| (told.0, told.1)), Some((18, 7)));
    assert_eq!(on_tick(&mut story.state, &mut story.effects, START_LIMIT_NS, story.now), None);
    on_stored(&mut story.state, &mut story.effects, TaskId(18));
    // There are enough.
    assert_eq!(submit_some(&mut story, 21), Some((25, 20)));
    on_stored(&mut story.state, &mut story.effects, TaskId(25));
    story.now.monotonic_ns += 2_000_000;
    story.schedule();
    assert_eq!(handed_over(&story).1, [45]);
    // Whoever may go with no others does not wait.
    submit(&mut story, &[of_queue(Policy { idle_limit: Some(std::time::Duration::from_secs(1)), ..NEVER_AGAIN })]);
    story.schedule();
    assert_eq!(handed_over(&story).1, [45, 46]);
    // Nor does one of a job that has few.
    for stored in [45, 46] {
        on_stored(&mut story.state, &mut story.effects, TaskId(stored));
    }
    on_driver(&mut story.state, JobId(5));
    submit_in(&mut story, JobId(5), &[of_queue(NEVER_AGAIN)]);
    story.schedule();
    assert_eq!(handed_over(&story).1, [45, 46, 47]);
    story.check();
}

#[test]
fn what_cannot_be_in_a_bundle_waits_for_no_others() {
    let mut story = joined(1);
    measure(&mut story, 1_000_000);
    on_reach(&mut story.state, true);
    for _ in 0..2 {
        submit(&mut story, &[of_queue(NEVER_AGAIN)]);
        story.schedule();
    }
    let limited = Policy { idle_limit: Some(std::time::Duration::from_secs(1)), ..NEVER_AGAIN };
    submit(&mut story, &[of_queue(limited)]);
    story.schedule();
    assert_eq!(handed_over(&story), (vec![], vec![2, 3, 4]));
    // Nor does it go with those that can.
    submit(&mut story, &[of_queue(NEVER_AGAIN), of_queue(limited), of_queue(NEVER_AGAIN)]);
    for stored in [2, 3, 4] {
        on_stored(&mut story.state, &mut story.effects, TaskId(stored));
    }
    story.schedule();
    assert_eq!(handed_over(&story), (vec![], vec![2, 3, 4, 5, 6]), "two are on the way");
    on_stored(&mut story.state, &mut story.effects, TaskId(5));
    story.schedule();
    assert_eq!(handed_over(&story), (vec![], vec![2, 3, 4, 5, 6, 7]));
    story.check();
}

#[test]
fn what_waits_for_an_engine_that_is_there_is_handed_over_bit_by_bit_and_all_of_it_when_it_is_away() {
    let mut story = joined(1);
    on_reach(&mut story.state, true);
    submit(&mut story, &vec![of_queue(NEVER_AGAIN); 100]);
    story.schedule();
    assert_eq!(handed_over(&story).1.len(), 64);
    on_stored(&mut story.state, &mut story.effects, TaskId(1));
    story.schedule();
    assert_eq!(handed_over(&story).1.len(), 65);
    on_reach(&mut story.state, false);
    story.schedule();
    assert_eq!(handed_over(&story).1.len(), 100);
}

#[test]
fn who_has_a_bundle_is_told_of_each_of_its_tasks_and_what_is_in_none_any_more_may_be_taken_back() {
    let mut story = joined(1);
    measure(&mut story, 1_000_000);
    submit(&mut story, &[plain(NEVER_AGAIN)]);
    let [(1, lease, parent, 1)] = story.schedule()[..] else { panic!("it runs here") };
    story.claim(1, lease);
    let parent = TaskId(parent);
    let child = Envelope { submitter: Some(parent), ..of_queue(NEVER_AGAIN) };
    let children = [0; 3].map(|_| story.submit_envelope(&child));
    story.schedule();
    let first = children[0];
    assert_eq!(handed_over(&story).0, [(first.0, 3, children.map(|child| child.0).to_vec())]);
    on_stored(&mut story.state, &mut story.effects, first);
    let claim = ClaimedBy { node_id: "b".into(), attempt: 1, since_unix_nano: 10 };
    let states = |story: &Story| children.map(|child| get_task(&story.state, &story.effects, child).unwrap().state);
    assert_eq!(states(&story), [TaskState::Waiting; 3]);
    story.wait(1, 1, 1, &children);
    let taken_back = |story: &Story| {
        let is_one = |message: &&ToAgent| matches!(message, ToAgent::TakeBack(_));
        story.effects.to_agent.iter().filter(is_one).count()
    };
    story.schedule();
    assert_eq!(taken_back(&story), 1);
    on_bundle_claimed(&mut story.state, first, Some(claim.clone()));
    assert_eq!(states(&story), [TaskState::Running; 3]);
    let row = get_task(&story.state, &story.effects, children[1]).unwrap();
    assert_eq!((row.started_unix_nano, row.attempt), (Some(10), 1));
    story.schedule();
    assert_eq!(taken_back(&story), 1, "it has begun");
    // Of what the bundle has become, one is still that node's.
    on_bundle_claimed(&mut story.state, first, None);
    on_claimed(&mut story.state, children[0], Some(claim));
    assert_eq!(states(&story), [TaskState::Running, TaskState::Waiting, TaskState::Waiting]);
    story.schedule();
    assert!(matches!(story.effects.to_agent.last(), Some(ToAgent::TakeBack(id)) if *id == children[1]));
    story.check();
}

#[test]
fn what_waits_for_a_process_that_none_will_give_is_given_back_to_its_queue() {
    let mut story = joined(1);
    submit(&mut story, &[plain(NEVER_AGAIN)]);
    let [(1, lease, parent, 1)] = story.schedule()[..] else { panic!("it runs here") };
    let of_other = import(&of_queue(NEVER_AGAIN));
    let id = of_other.id;
    on_import(&mut story.state, &mut story.effects, of_other.clone(), story.now);
    story.claim(1, lease);
    let given_back = |story: &Story| {
        let is_one = |message: &&ToAgent| {
            matches!(message, ToAgent::GivenBack { id: given, attempt, has_begun: false }
                if (*given, *attempt) == (id, of_other.attempt))
        };
        story.effects.to_agent.iter().filter(is_one).count()
    };
    story.schedule();
    assert_eq!(given_back(&story), 0, "the task before it may end");
    let child = story.submit_envelope(&Envelope { submitter: Some(TaskId(parent)), ..of_queue(NEVER_AGAIN) });
    on_stored(&mut story.state, &mut story.effects, child);
    story.schedule();
    story.wait(1, 1, 1, &[child]);
    story.schedule();
    assert_eq!(given_back(&story), 1, "every process waits");
    on_settled(&mut story.state, id, 1);
    story.check();
    // It may come again.
    on_import(&mut story.state, &mut story.effects, of_other.clone(), story.now);
    story.schedule();
    assert_eq!(given_back(&story), 2);
}

#[test]
fn an_import_that_waits_for_a_slot_is_given_back_when_its_agent_asks_and_one_that_has_begun_is_not() {
    let mut story = joined(1);
    let of_other = import(&of_queue(NEVER_AGAIN));
    on_import(&mut story.state, &mut story.effects, of_other.clone(), story.now);
    let [(1, lease, ..)] = story.schedule()[..] else { panic!("it runs here") };
    story.claim(1, lease);
    let waiting = Import { id: ClusterTaskId { task: TaskId(2), ..ID }, ..of_other.clone() };
    on_import(&mut story.state, &mut story.effects, waiting.clone(), story.now);
    let unknown = ClusterTaskId { task: TaskId(3), ..ID };
    for id in [of_other.id, waiting.id, waiting.id, unknown] {
        on_give_back(&mut story.state, &mut story.effects, id, story.now);
    }
    let given_back = |message: &ToAgent| match message {
        ToAgent::GivenBack { id, attempt, has_begun } => Some((*id, *attempt, *has_begun)),
        _ => None,
    };
    let given_back: Vec<_> = story.effects.to_agent.iter().filter_map(given_back).collect();
    assert_eq!(given_back, [(waiting.id, 1, false)]);
    story.check();
}
