//! Two nodes and one idempotency key, request by request.

use tracer_core::task::{Envelope, FunctionSpec, TaskSpec};

use super::*;
use crate::message::{KeyEntry, TaskMessage};

const SECOND: u64 = 1_000_000_000;
const A: Holder = Holder { place: PlaceId(1), life: 1 };
const B: Holder = Holder { place: PlaceId(2), life: 1 };
/// The task of node A, and that of node B.
const OF_A: ClusterTaskId = ClusterTaskId { place: A.place, task: TaskId(4) };
const OF_B: TaskId = TaskId(9);

fn agent(own: Holder) -> Agent {
    let settings = Settings {
        own,
        node_id: own.place.to_string(),
        queues: Vec::new(),
        shared_commands: false,
        ack_wait_ns: 10 * SECOND,
        keep_ns: 3 * SECOND,
        engine_wait_ns: 5 * SECOND,
        max_value: 1000,
        signs_as: None,
        on_partition: OnPartition::Continue,
    };
    let mut agent = Agent::new(settings, 0);
    agent.on_reachable(0);
    agent.take_effects();
    agent
}

fn sharing(origin: ClusterTaskId, fingerprint: u64) -> Sharing {
    let spec = TaskSpec::Function(FunctionSpec::of_task("module", "function", &[0x90]));
    let mut envelope = Vec::new();
    Envelope { origin: Some(origin), ..Envelope::of(spec) }.encode(&mut envelope);
    let terms = Terms { at_most_once: false, crash_limit: 2 };
    Sharing {
        queue: "default".into(),
        tier: Tier::First,
        message: TaskMessage { submitted_unix_nano: 0, terms, envelope: &envelope, digests: &[] }.encode(),
        values: Vec::new(),
        key: Some(Key { name: "key".into(), fingerprint }),
        asks_for: None,
        is_new: true,
        is_stored: false,
    }
}

fn share(agent: &mut Agent, task: TaskId, fingerprint: u64) {
    let origin = ClusterTaskId { place: agent.settings.own.place, task };
    agent.on_share(task, sharing(origin, fingerprint), 0);
}

/// Returns the only request, and what the head is told.
fn asked(agent: &mut Agent) -> (u64, Request) {
    let of = |effect| if let Effect::Ask(number, request) = effect { Some((number, request)) } else { None };
    let all: Vec<_> = agent.take_effects().into_iter().filter_map(of).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all.into_iter().next().expect("there is one")
}

fn told(agent: &mut Agent) -> Vec<ToHead> {
    let of = |effect| if let Effect::Tell(told) = effect { Some(told) } else { None };
    agent.take_effects().into_iter().filter_map(of).collect()
}

fn entry_of(id: ClusterTaskId, fingerprint: u64) -> Vec<u8> {
    KeyEntry { key: "key", fingerprint, id }.encode()
}

/// Has node B submit what the key names as the task of node A, and returns the request that follows.
fn follow(b: &mut Agent) -> (u64, Request) {
    share(b, OF_B, 7);
    let (number, request) = asked(b);
    assert!(matches!(request, Request::EnterKey { .. }), "{request:?}");
    b.on_answer(number, Answer::Key(Ok(entry_of(OF_A, 7))));
    asked(b)
}

fn ended() -> Record {
    Record::Ended(End::Outcome { attempt: 1, holder: Some(A), outcome: b"outcome".to_vec() })
}

#[test]
fn a_key_is_entered_before_its_task_is_published() {
    let mut a = agent(A);
    share(&mut a, OF_A.task, 7);
    let (number, request) = asked(&mut a);
    let Request::EnterKey { key, entry } = request else { panic!("{request:?}") };
    assert_eq!((&*key, &entry), ("key", &entry_of(OF_A, 7)));
    // Nothing is known after this, and it is asked again.
    a.on_answer(number, Answer::Unreachable);
    assert!(a.take_effects().is_empty());
    a.on_tick(3 * SECOND);
    let again = a.take_effects().into_iter().find_map(|effect| match effect {
        Effect::Ask(number, Request::EnterKey { .. }) => Some(number),
        _ => None,
    });
    a.on_answer(again.expect("it is asked again"), Answer::Key(Ok(entry)));
    let (_, request) = asked(&mut a);
    assert!(matches!(request, Request::Put { id: OF_A, .. }), "{request:?}");
}

#[test]
fn what_died_between_its_key_and_its_message_is_published_by_who_submits_it_again() {
    let mut b = agent(B);
    let (number, request) = follow(&mut b);
    assert_eq!(request, Request::Read(RecordKey::Task(OF_A)), "its record is looked at first");
    b.on_answer(number, Answer::Record(None));
    let (number, request) = asked(&mut b);
    let Request::Put { id: OF_A, message, .. } = request else { panic!("{request:?}") };
    let message = TaskMessage::decode(&message).expect("it is a message");
    assert_eq!(Envelope::decode(message.envelope).expect("it has an envelope").origin, Some(OF_A));
    b.on_answer(number, Answer::Put(Ok(())));
    assert_eq!(told(&mut b), [ToHead::Stored(OF_B)]);
    // From then on the record is looked at with every heartbeat, and its message is left alone.
    let look = |b: &mut Agent, at: u64| {
        b.on_tick(at * SECOND);
        let is_look = |effect: &Effect| matches!(effect, Effect::Ask(_, Request::Read(RecordKey::Task(OF_A))));
        match b.take_effects().into_iter().find(is_look) {
            Some(Effect::Ask(number, _)) => number,
            _ => panic!("it is looked at"),
        }
    };
    let number = look(&mut b, 3);
    b.on_answer(number, Answer::Record(None));
    assert!(b.take_effects().is_empty());
    let number = look(&mut b, 6);
    b.on_answer(number, Answer::Record(Some(Entry { revision: 5, stamp_ns: 0, value: ended().encode() })));
    let Record::Ended(end) = ended() else { unreachable!() };
    assert_eq!(told(&mut b), [ToHead::Ended(OF_B, end)]);
    assert!(b.follows.is_empty() && b.followed.is_empty() && b.shares.is_empty());
}

#[test]
fn cancelling_what_follows_another_task_cancels_that_one() {
    let mut b = agent(B);
    let (number, _) = follow(&mut b);
    b.on_answer(number, Answer::Record(None));
    b.take_effects();
    b.on_withdraw(OF_B, b"cancelled".to_vec(), None);
    let (number, request) = asked(&mut b);
    assert_eq!(request, Request::Read(RecordKey::Task(OF_A)));
    b.on_answer(number, Answer::Record(None));
    let (number, request) = asked(&mut b);
    assert!(matches!(request, Request::Swap { key: RecordKey::Task(OF_A), revision: None, .. }), "{request:?}");
    b.on_answer(number, Answer::Swapped(Some(1)));
    let end = End::Outcome { attempt: 0, holder: None, outcome: b"cancelled".to_vec() };
    assert_eq!(told(&mut b), [ToHead::Ended(OF_B, end)]);
}

#[test]
fn a_key_that_names_something_else_is_a_refusal_and_one_that_cannot_be_read_too() {
    let mut b = agent(B);
    share(&mut b, OF_B, 8);
    let (number, _) = asked(&mut b);
    b.on_answer(number, Answer::Key(Ok(entry_of(OF_A, 7))));
    assert_eq!(told(&mut b), [ToHead::NotStored(OF_B, NotStored::KeyTaken("key".into(), OF_A))]);

    for answer in [Answer::Key(Ok(b"rubbish".to_vec())), Answer::Key(Err(PutError::NoQueue))] {
        share(&mut b, OF_B, 7);
        let (number, _) = asked(&mut b);
        b.on_answer(number, answer);
        assert!(matches!(&told(&mut b)[..], [ToHead::NotStored(OF_B, NotStored::Put(_))]));
        assert!(b.shares.is_empty());
    }
}

#[test]
fn values_of_a_task_with_a_key_are_left_to_age() {
    let mut a = agent(A);
    let values = vec![ValueSource::Bytes(b"value".to_vec())];
    a.on_share(OF_A.task, Sharing { values, ..sharing(OF_A, 7) }, 0);
    a.take_effects();
    a.on_record(RecordKey::Task(OF_A), &ended().encode());
    a.on_taken(OF_A.task);
    let drops = |effect: &Effect| matches!(effect, Effect::Ask(_, Request::DropValues(_)));
    assert!(!a.take_effects().iter().any(drops), "whoever submits it again may not have them yet");
}
