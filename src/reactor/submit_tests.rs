//! Stories of what is accepted, and of what is refused and why.

use super::find_by_key;
use crate::testing::*;
use tracer_core::task::{Refusal, RefusalCode};
use tracer_ipc::protocol::frame::PAYLOAD_LIMIT;

const DRIVER: DriverId = DriverId(1);

impl Story {
    /// A driver, or the task of one without a job, submits a batch with tags from 100 on.
    fn batch(&mut self, job: Option<JobId>, envelopes: &[Envelope<'_>]) -> Result<Vec<Answer>, String> {
        let mut body = Vec::new();
        body.put_u64(100);
        for envelope in envelopes {
            let mut bytes = Vec::new();
            envelope.encode(&mut bytes);
            body.put_bytes(&bytes);
        }
        let (mut answers, batch) = (Vec::new(), Submissions::decode(&body).unwrap());
        let answer = &mut |answer| answers.push(answer);
        let taken = on_submit(&mut self.state, &mut self.effects, (DRIVER, job), batch, answer, self.now);
        self.check();
        taken.map(|()| answers)
    }

    fn of_driver(&mut self, envelopes: &[Envelope<'_>]) -> Vec<Answer> {
        self.batch(Some(JobId(1)), envelopes).unwrap()
    }
}

fn keyed(key: &'static str, function: &'static str) -> Envelope<'static> {
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", function, &[0x90]));
    Envelope { spec, ..plain(Policy { idempotency_key: key, ..NEVER_AGAIN }) }
}

/// Returns the first tag, the first task and how many, of what was accepted; else the code of the refusal.
fn short(answers: &[Answer]) -> Vec<Result<(u64, u64, u32), RefusalCode>> {
    let short = |answer| match answer {
        &Answer::Accepted(accepted) => Ok((accepted.first_tag, accepted.first_task.0, accepted.count)),
        Answer::Refused(refusal) => Err(refusal.code),
        Answer::Later { first_tag, .. } => panic!("{first_tag} is to be answered later"),
    };
    answers.iter().map(short).collect()
}

#[test]
fn a_batch_is_journaled_before_it_is_acknowledged_in_one_go() {
    let mut story = Story::with_workers(1);
    let answers = story.of_driver(&[plain(NEVER_AGAIN), plain(NEVER_AGAIN), plain(NEVER_AGAIN)]);
    assert_eq!(short(&answers), [Ok((100, 1, 3))]);
    assert_eq!(story.effects.submitted, [(1, 3)]);
    assert_eq!(story.state.tally.counts().waiting, 3);
    assert_eq!(short(&story.of_driver(&[])), [], "nothing is asked, nothing is answered");
}

#[test]
fn what_cannot_be_journaled_is_not_accepted_and_takes_no_id() {
    let mut story = Story::with_workers(1);
    story.effects.is_disk_full = true;
    let answers = story.of_driver(&[plain(NEVER_AGAIN), plain(NEVER_AGAIN)]);
    let reason = "the journal cannot be written, so nothing was accepted: no space left";
    assert_eq!(answers[0], Answer::Refused(Refusal::new(RefusalCode::JournalFailed, reason)));
    assert_eq!((answers.len(), story.state.tasks.len(), story.state.open_bytes), (1, 0, 0));
    // Of a batch with keys, what came before stays.
    story.effects.is_disk_full = false;
    story.effects.room = Some(1);
    let answers = story.of_driver(&[keyed("a", "f"), keyed("b", "f"), keyed("c", "f")]);
    assert_eq!(short(&answers)[0], Ok((100, 1, 1)));
    assert_eq!((answers.len(), story.state.tasks.len()), (2, 1), "the second is refused, and the third not looked at");
    story.effects.room = None;
    assert_eq!(short(&story.of_driver(&[plain(NEVER_AGAIN)])), [Ok((100, 2, 1))]);
}

#[test]
fn a_key_names_one_task_which_is_answered_for_however_often_it_is_submitted() {
    let mut story = Story::with_workers(1);
    let answers = story.of_driver(&[keyed("nightly", "f"), plain(NEVER_AGAIN), keyed("nightly", "f")]);
    assert_eq!(short(&answers), [Ok((100, 1, 1)), Ok((101, 2, 1)), Ok((102, 1, 1))]);
    assert_eq!(story.effects.submitted, [(1, 1), (2, 1)]);
    let lease = story.schedule()[0];
    story.claim(lease.0, lease.1);
    story.result(lease.0, lease.1, 1_000);
    assert_eq!(story.finished(), ended([100, 102], "ok"), "both wait for it");
    let answers = story.of_driver(&[keyed("nightly", "f")]);
    assert_eq!(short(&answers), [Ok((100, 1, 1))]);
    assert_eq!(story.finished(), ended([100], "ok"), "it has ended, and that is told at once");
    let answers = story.of_driver(&[keyed("nightly", "g"), keyed("other", "g")]);
    let taken = "the idempotency key `nightly` names task 1 already, which runs `demo.f` and is another one";
    assert_eq!(answers, [Answer::Refused(Refusal::new(RefusalCode::KeyTaken, taken))]);
    assert_eq!(story.state.tasks.len(), 2);
}

#[test]
fn the_files_of_arguments_go_with_a_submission_that_makes_no_task() {
    let mut story = Story::with_workers(1);
    let with_file = |function| {
        let source =
            InputSource::Stored(Stored { name: format!("1-2-{}", if function == "f" { 3 } else { 4 }), bytes: 9 });
        Envelope { inputs: vec![Input { argument: 0, source }], ..keyed("nightly", function) }
    };
    story.of_driver(&[with_file("f")]);
    assert_eq!(story.effects.unused_values, [""; 0]);
    story.of_driver(&[with_file("f")]);
    story.of_driver(&[with_file("g")]);
    story.schedule();
    assert_eq!(story.effects.unused_values, ["1-2-3", "1-2-4"]);
}

#[test]
fn a_living_actor_is_given_to_whoever_asks_for_it_by_name() {
    let mut story = Story::with_workers(1);
    let options =
        ActorOptions { name: "hits", is_detached: true, or_existing: true, max_restarts: 0, max_call_retries: 0 };
    let function =
        FunctionSpec { actor: ActorRole::Create(options), ..FunctionSpec::of_task("counter", "Counter.new", &[0x90]) };
    let creation = Envelope { spec: TaskSpec::Function(function), ..plain(NEVER_AGAIN) };
    let answers = story.of_driver(&[creation.clone(), creation]);
    assert_eq!(short(&answers), [Ok((100, 1, 1)), Ok((101, 1, 1))]);
    assert_eq!(story.effects.submitted, [(1, 1)]);
}

#[test]
fn a_demand_that_can_never_be_met_refuses_its_batch_as_a_whole() {
    let mut story = Story::with_workers(2);
    story.resources(&[("gpu", 1)]);
    let demand = |demand| Envelope { demand, ..plain(NEVER_AGAIN) };
    let gpus = |amount| demand(Demand { resources: vec![("gpu", amount)], ..Demand::default() });
    let refused = |story: &mut Story, envelope| match &story.of_driver(&[plain(NEVER_AGAIN), gpus(1), envelope])[..] {
        [Answer::Refused(Refusal { code: RefusalCode::ImpossibleDemand, text })] => text.clone(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&mut story, gpus(2)).starts_with("the task asks for `gpu=2`, but this head has 1 of it in all"));
    let cpus = demand(Demand { num_cpus: 3, ..Demand::default() });
    assert!(refused(&mut story, cpus).starts_with("the task asks for 3 cpus (--num-cpus), but this head has 2"));
    let memory = demand(Demand { memory_bytes: Some(1), ..Demand::default() });
    assert!(refused(&mut story, memory).starts_with("the memory of an attempt: "));
    assert_eq!((story.state.tasks.len(), story.effects.submitted.len()), (0, 0));
    assert_eq!(short(&story.of_driver(&[gpus(1)])), [Ok((100, 1, 1))]);
}

#[test]
fn a_full_queue_refuses_drivers_first_and_takes_more_when_some_have_ended() {
    let mut story = Story::with_workers(1);
    let answers = story.of_driver(&[plain(NEVER_AGAIN)]);
    assert_eq!(short(&answers), [Ok((100, 1, 1))]);
    let one = story.state.open_bytes;
    // A nested one says who has submitted it, so it is longer.
    story.state.settings.open_bytes_limit = 2 * one + one / 2;
    let two = [plain(NEVER_AGAIN), plain(NEVER_AGAIN)];
    let answers = story.of_driver(&two);
    assert_eq!(short(&answers), [Err(RefusalCode::QueueFull)]);
    let [Answer::Refused(refusal)] = &answers[..] else { panic!("{answers:?}") };
    assert!(refusal.text.starts_with("the queue is full: 1 task that have not ended take"), "{refusal}");
    assert_eq!(short(&story.of_driver(&two[..1])), [Ok((100, 2, 1))]);
    let nested = Envelope { submitter: Some(TaskId(1)), ..plain(NEVER_AGAIN) };
    assert_eq!(
        short(&story.batch(None, std::slice::from_ref(&nested)).unwrap()),
        [Ok((100, 3, 1))],
        "what has begun shall end"
    );
    let answers = story.batch(None, &[nested.clone(), nested.clone()]).unwrap();
    assert_eq!(short(&answers), [Err(RefusalCode::QueueFull)]);
    for _ in 0..2 {
        let lease = story.schedule()[0];
        story.claim(lease.0, lease.1);
        story.result(lease.0, lease.1, 1_000);
    }
    assert_eq!(story.of_driver(&two[..1]).len(), 1);
    assert!(matches!(&story.of_driver(&two[..0])[..], []));
}

#[test]
fn a_task_that_is_not_known_any_more_submits_nothing() {
    let mut story = Story::with_workers(1);
    let nested = |submitter| Envelope { submitter, ..plain(NEVER_AGAIN) };
    for submitter in [None, Some(TaskId(7))] {
        let answers = story.batch(None, &[nested(submitter)]).unwrap();
        assert_eq!(short(&answers), [Err(RefusalCode::UnknownSubmitter)]);
    }
    story.submit(1);
    let answers = story.batch(None, &[nested(Some(TaskId(1)))]).unwrap();
    assert_eq!(short(&answers), [Ok((100, 2, 1))]);
    assert_eq!(story.state.tasks.get(TaskId(2)).map(|task| task.job), Some(JobId(1)), "it is of the same job");
}

#[test]
fn a_head_that_stops_takes_nothing_and_what_no_lease_can_carry_ends_the_connection() {
    let mut story = Story::with_workers(1);
    let arguments = vec![0; PAYLOAD_LIMIT + 1];
    let spec = TaskSpec::Function(FunctionSpec::of_task("demo", "f", &arguments));
    let error =
        story.batch(Some(JobId(1)), &[plain(NEVER_AGAIN), Envelope { spec, ..plain(NEVER_AGAIN) }]).unwrap_err();
    assert!(error.ends_with(&format!("bytes arrived, but at most {PAYLOAD_LIMIT} are taken")), "{error}");
    assert_eq!(story.state.tasks.len(), 0);
    on_stop(&mut story.state, &mut story.effects, Unfinished::Discarded, false, story.now);
    assert_eq!(short(&story.of_driver(&[plain(NEVER_AGAIN)])), [Err(RefusalCode::Stopping)]);
}

#[test]
fn a_key_names_one_task_as_long_as_that_is_remembered() {
    let mut story = Story::with_workers(1);
    let nightly = plain(Policy { idempotency_key: "nightly", ..NEVER_AGAIN });
    assert_eq!(find_by_key(&story.state, &nightly), Ok(None));
    let id = story.submit_envelope(&nightly);
    assert_eq!(find_by_key(&story.state, &nightly), Ok(Some(id)));
    assert_eq!(find_by_key(&story.state, &plain(NEVER_AGAIN)), Ok(None), "no key is no key");
    let other = TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x91, 1]));
    let taken = find_by_key(&story.state, &Envelope { spec: other, ..nightly.clone() }).unwrap_err();
    assert_eq!((taken.key.as_str(), taken.task, taken.target.as_str()), ("nightly", id, "demo.my_function"));

    on_submitted_again(&mut story.state, &mut story.effects, id, DriverId(2), 70);
    let (worker, lease, ..) = story.schedule()[0];
    story.claim(worker, lease);
    story.result(worker, lease, 1);
    assert_eq!(story.finished(), ended([0, 70], "ok"), "who submitted it again is told too");
    on_submitted_again(&mut story.state, &mut story.effects, id, DriverId(2), 71);
    assert_eq!(story.finished(), ended([71], "ok"), "at once when it has ended");
}
