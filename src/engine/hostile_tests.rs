//! The agent over an engine in which anybody has written anything: no message, record, heartbeat or word of another node makes it panic or grow.

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tracer_core::task::{Envelope, FunctionSpec, TaskSpec};
use tracer_ipc::protocol::{CancelReport, OpenTask};

use super::*;
use crate::bundle::{BundleEvent, change_bundle};
use crate::interface::{Delivery, ValueError};
use crate::message::{BundleMessage, BundledTask, KeyEntry, ListedModules, TaskMessage};

const QUEUE: &str = "default";
const SECOND: u64 = 1_000_000_000;
const TERMS: Terms = Terms { at_most_once: false, crash_limit: 2 };
const OWN: Holder = Holder { place: PlaceId(1), life: 3 };
const OTHER: Holder = Holder { place: PlaceId(2), life: 5 };

fn agent() -> Agent {
    let settings = Settings {
        own: OWN,
        node_id: "own".into(),
        queues: vec![(QUEUE.into(), usize::MAX)],
        shared_commands: false,
        ack_wait_ns: 10 * SECOND,
        keep_ns: 3 * SECOND,
        engine_wait_ns: 5 * SECOND,
        max_value: 1 << 20,
        signs_as: None,
        on_partition: OnPartition::Continue,
    };
    let mut agent = Agent::new(settings, 0);
    agent.on_reachable(0);
    agent.on_free(4, 4, 0);
    agent
}

fn envelope() -> Vec<u8> {
    let mut bytes = Vec::new();
    Envelope::of(TaskSpec::Function(FunctionSpec::of_task("module", "function", &[0x90]))).encode(&mut bytes);
    bytes
}

fn task_message() -> Vec<u8> {
    TaskMessage { submitted_unix_nano: 7, terms: TERMS, envelope: &envelope(), digests: &[] }.encode()
}

fn bundle_message() -> Vec<u8> {
    let envelope = envelope();
    let task = |place| BundledTask { place, submitted_unix_nano: 7, envelope: &envelope };
    BundleMessage { crash_limit: 2, count: 3, run_ns: 1000, tasks: (0..3).map(task).collect() }.encode()
}

fn mark(node_id: &str) -> Mark {
    Mark { node_id: node_id.into(), unix_nano: 9 }
}

/// Everything that an engine may have, as tracer writes it.
fn seeds() -> Vec<Vec<u8>> {
    let claim = |holder| Claim::first(holder, mark("node"));
    let past = Claim { attempt: u32::MAX, failures: u32::MAX, crashes: 2, ..claim(OTHER) };
    let records = [
        Record::Claimed(claim(OWN)),
        Record::Claimed(past.clone()),
        Record::Suspected { claim: claim(OTHER), by: OWN },
        Record::GivenBack { claim: past.clone(), has_begun: true },
        Record::Ended(End::Outcome { attempt: 1, holder: Some(OTHER), outcome: vec![1, 2, 3] }),
        Record::Ended(End::NodesLost(past.clone())),
        Record::Claimed(Claim { wish: Some(Box::from([1])), ..past.clone() }),
    ];
    let delivered =
        |to| BundleEvent::Delivered { to, mark: mark("node"), sight: Sight::NewLife, terms: TERMS, count: 3 };
    let whole = change_bundle(None, delivered(OTHER)).expect("nobody has it");
    let apart = change_bundle(Some(&whole), delivered(OWN)).expect("its life is over");
    let beat = Heartbeat {
        life: 6,
        node_id: "node".into(),
        version: "0.1.0".into(),
        free: 1,
        slots: 2,
        queues: vec![QUEUE.into()],
        shared_commands: true,
        too_large: vec![QUEUE.into()],
        resources: vec![("gpu".into(), 1)],
        modules: ListedModules { modules: [("m".into(), None), ("n".into(), Some([7; 32]))].into(), left_out: 1 },
        clock: Some(ClockOffset { offset_ns: i64::MIN, error_ns: u64::MAX }),
    };
    let id = ClusterTaskId { place: OWN.place, task: TaskId(10) };
    let told =
        [Told::Stop(id, Stop { grace_ns: None }), Told::DoYouRun(id), Told::NeedsValues(id), Told::DoYouRunBundle(id)];
    let entry = |place| KeyEntry { key: "key", fingerprint: 7, id: ClusterTaskId { place, task: TaskId(1) } }.encode();
    let mut seeds = vec![
        entry(OWN.place),
        entry(OTHER.place),
        task_message(),
        bundle_message(),
        beat.encode(),
        whole.encode(),
        apart.encode(),
    ];
    seeds.extend(records.iter().map(Record::encode));
    seeds.extend(told.iter().map(Told::encode));
    seeds.push(Told::Cancel(id, Stop { grace_ns: Some(0) }, id.place).encode());
    seeds.extend(CancelReport::ALL.map(|report| Told::CancelAnswered(id, report).encode()));
    seeds.push(Vec::new());
    seeds
}

/// Something that an engine may say, with bytes that begin as tracer's do.
#[derive(Clone, Debug)]
struct Step {
    what: u8,
    place: u64,
    task: u64,
    seed: prop::sample::Index,
    cut: prop::sample::Index,
    is_cut: bool,
    changes: Vec<(prop::sample::Index, u8)>,
}

impl Step {
    fn any() -> impl Strategy<Value = Step> {
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
        let task = prop_oneof![Just(1_u64), Just(10), 10..14_u64, Just(u64::MAX), any::<u64>()];
        let (what, place) = (any::<u8>(), 1..4_u64);
        (
            what,
            place,
            task,
            any::<prop::sample::Index>(),
            any::<prop::sample::Index>(),
            prop::bool::weighted(0.2),
            changes,
        )
            .prop_map(|(what, place, task, seed, cut, is_cut, changes)| Step {
                what,
                place,
                task,
                seed,
                cut,
                is_cut,
                changes,
            })
    }

    fn id(&self) -> ClusterTaskId {
        ClusterTaskId { place: PlaceId(self.place), task: TaskId(self.task) }
    }

    fn bytes(&self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = self.seed.get(seeds).clone();
        if self.is_cut {
            bytes.truncate(self.cut.index(bytes.len() + 1));
        }
        for (at, byte) in &self.changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
        }
        bytes
    }
}

/// Returns an answer to a request, with these bytes wherever it has any.
fn answer(request: &Request, step: &Step, bytes: Vec<u8>) -> Option<Answer> {
    let entry = || Some(Entry { revision: 4, stamp_ns: 20 * SECOND, value: bytes.clone() });
    Some(match request {
        _ if step.what.is_multiple_of(13) => Answer::Unreachable,
        Request::Put { .. } => Answer::Put(Ok(())),
        Request::EnterKey { .. } => Answer::Key(Ok(bytes)),
        Request::Has { .. } => Answer::Has(step.what.is_multiple_of(2)),
        Request::Pull { .. } => Answer::Pulled,
        Request::Read(_) => Answer::Record(if step.what.is_multiple_of(3) { None } else { entry() }),
        Request::Swap { .. } => Answer::Swapped((!step.what.is_multiple_of(3)).then_some(5)),
        Request::ReadHeartbeats(_) => Answer::Heartbeats { of_other: entry(), own: entry() },
        Request::PutValue { .. } => Answer::ValuePut(Ok([7; 32])),
        Request::GetValue(_) => Answer::ValueGot(Err(ValueError::Missing)),
        Request::FindMessage(_) => Answer::InQueue(None),
        _ => return None,
    })
}

#[test]
fn nothing_that_an_engine_says_makes_it_panic_or_grow() {
    let seeds = seeds();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(600));
    let result = runner.run(&prop::collection::vec(Step::any(), 1..80), |steps| {
        let mut agent = agent();
        let message = task_message();
        let sharing = Sharing {
            queue: QUEUE.into(),
            tier: Tier::First,
            message: message.clone(),
            values: Vec::new(),
            key: Some(Key { name: "key".into(), fingerprint: 7 }),
            asks_for: None,
            is_new: true,
            is_stored: false,
        };
        agent.on_share(TaskId(1), sharing, 0);
        let envelope = envelope();
        let tasks =
            (10..13).map(|id| OpenTask { id: TaskId(id), submitted_unix_nano: 7, envelope: &envelope }).collect();
        let queue = QUEUE.into();
        let bundle =
            SharingBundle { queue, crash_limit: 2, count: 3, run_ns: 1000, tasks, is_new: true, is_stored: false };
        agent.on_share_bundle(TaskId(10), bundle, 0);
        let mut open = VecDeque::new();
        for (at, step) in steps.iter().enumerate() {
            let (id, bytes) = (step.id(), step.bytes(&seeds));
            match step.what % 8 {
                0 => {
                    let handle = Handle(at.to_string().into());
                    let is_again = step.what.is_multiple_of(16);
                    let queue = QUEUE.to_owned();
                    agent.on_delivered(Delivery { queue, handle, id, message: bytes, is_again }, 9);
                }
                1 => agent.on_told(&bytes, 9),
                2 => agent.on_record(RecordKey::Task(id), &bytes),
                3 => agent.on_record(RecordKey::Bundle(id), &bytes),
                4 => agent.on_find(at as u64, id, 0),
                5 => drop(agent.on_tick(at as u64 * SECOND)),
                _ => {
                    if let Some((number, request)) = open.pop_front()
                        && let Some(answer) = answer(&request, step, bytes)
                    {
                        agent.on_answer(number, answer);
                    }
                }
            }
            for effect in agent.take_effects() {
                if let Effect::Ask(number, request) = effect {
                    open.push_back((number, request));
                }
            }
            // A bundle has at most 64 tasks, and a step brings one message.
            let most = 64 * (at + 2);
            let lengths = [agent.held.len(), agent.bundles.len(), agent.changes.len(), agent.bundle_changes.len()];
            prop_assert!(lengths.iter().all(|length| *length <= most), "{lengths:?} after {at} steps");
            prop_assert!(agent.shares.len() <= 4 && agent.giving.is_empty());
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_message_that_cannot_be_read_is_put_aside_and_takes_no_slot() {
    let mut agent = agent();
    agent.take_effects();
    let id = ClusterTaskId { place: OTHER.place, task: TaskId(1) };
    let last = ClusterTaskId { task: TaskId(u64::MAX - 1), ..id };
    for (id, message, reason) in [
        (id, b"rubbish".to_vec(), "version of the message"),
        (id, Vec::new(), "ends too early"),
        (id, task_message()[..9].to_vec(), "ends too early"),
        (id, [bundle_message(), vec![0]].concat(), "bytes after its end"),
        (last, bundle_message(), "id of a bundle"),
    ] {
        let (queue, handle) = (QUEUE.to_owned(), Handle("7".into()));
        agent
            .on_delivered(Delivery { queue, handle: handle.clone(), id, message: message.clone(), is_again: false }, 0);
        match &agent.take_effects()[..] {
            [Effect::Ask(_, Request::PutAside(dead))] => {
                assert_eq!((&dead.handle, &dead.message, &dead.name), (&handle, &message, &id.to_string()));
                assert!(dead.reason.contains(reason), "{dead:?}");
            }
            other => panic!("{reason}: {other:?}"),
        }
        assert_eq!((agent.held.len(), agent.bundles.len(), agent.room()), (0, 0, 4));
    }
}

#[test]
fn questions_and_records_without_end_take_bounded_memory() {
    let mut agent = agent();
    for task in 0..3 * QUESTIONS as u64 {
        let id = ClusterTaskId { place: OTHER.place, task: TaskId(task / 2) };
        for told in [Told::DoYouRun(id), Told::DoYouRunBundle(id)] {
            agent.on_told(&told.encode(), 0);
        }
        agent.on_record(RecordKey::Bundle(ClusterTaskId { place: OWN.place, ..id }), b"rubbish");
        agent.on_record(RecordKey::Task(ClusterTaskId { place: OWN.place, ..id }), b"rubbish");
    }
    let lines = agent.take_effects().into_iter().filter(|effect| matches!(effect, Effect::Tell(ToHead::Log(_))));
    assert_eq!(lines.count(), UNREAD, "each is said once, and not all");
    assert_eq!([agent.changes.len(), agent.bundle_changes.len()], [QUESTIONS; 2], "and each is asked for once");
    assert!(agent.changes.values().all(|change| change.todo.only().is_some()));
}
