//! Messages of queues and between nodes, and heartbeats: bytes that another node, of another version or of nobody's, may have written.

use std::collections::BTreeMap;

use tracer_core::codec::{Put, Take, WireError};
use tracer_core::queue::QueueBound;
use tracer_core::task::{Envelope, Failure, Input, InputSource, Outcome, TaskId};
use tracer_core::{ClusterTaskId, PlaceId, Stored};
use tracer_ipc::protocol::{CancelReport, Digest, SharedEnd, Stop};

use crate::bundle::check_count;
use crate::clock::ClockOffset;
use crate::interface::{ValueKey, ValueSource};
use crate::record::Terms;

/// The message of a task in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskMessage<'a> {
    /// Time at which its origin accepted it, in nanoseconds since the Unix epoch by that machine's clock.
    pub submitted_unix_nano: u64,
    /// See [`Terms`].
    pub terms: Terms,
    /// Its envelope, without anything that only its origin knows.
    pub envelope: &'a [u8],
    /// The digests of the arguments that are in the engine, one behind the other in the order of the envelope's inputs. Who knows of no such arguments
    /// does not read the message of a task that has some.
    pub digests: &'a [u8],
}

/// The message of a bundle in a queue. Its subject has the id of the first of its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleMessage<'a> {
    /// Limit of how often each is started again after its node or its worker was lost.
    pub crash_limit: u32,
    /// Number of tasks that it was made of.
    pub count: u32,
    /// Time that one of them is expected to run, in nanoseconds.
    pub run_ns: u64,
    /// The tasks that are still to be run, in their order.
    pub tasks: Vec<BundledTask<'a>>,
}

/// A task in the message of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundledTask<'a> {
    /// Its place in the bundle, from 0.
    pub place: u32,
    /// See [`TaskMessage::submitted_unix_nano`].
    pub submitted_unix_nano: u64,
    /// See [`TaskMessage::envelope`].
    pub envelope: &'a [u8],
}

impl<'a> BundleMessage<'a> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let envelopes = self.tasks.iter().map(|task| 16 + task.envelope.len());
        let mut out = Vec::with_capacity(32 + envelopes.sum::<usize>());
        out.put_u8(BUNDLE);
        [self.crash_limit, self.count, self.tasks.len() as u32].into_iter().for_each(|number| out.put_u32(number));
        out.put_u64(self.run_ns);
        for task in &self.tasks {
            out.put_u32(task.place);
            out.put_u64(task.submitted_unix_nano);
            out.put_bytes(task.envelope);
        }
        out
    }

    /// Takes a message apart.
    pub fn decode(bytes: &'a [u8]) -> Result<BundleMessage<'a>, WireError> {
        let mut take = Take::new(bytes);
        if take.u8()? != BUNDLE {
            return Err(WireError::UnknownValue("version of the message"));
        }
        let Counts { crash_limit, count, present, run_ns } = Counts::take(&mut take)?;
        check_count(count)?;
        let mut next = 0;
        let mut tasks = Vec::with_capacity(present.min(count) as usize);
        for _ in 0..present {
            let (place, submitted_unix_nano, envelope) = (take.u32()?, take.u64()?, take.bytes()?);
            if place < next || place >= count {
                return Err(WireError::UnknownValue("place in a bundle"));
            }
            next = place + 1;
            tasks.push(BundledTask { place, submitted_unix_nano, envelope });
        }
        take.finish()?;
        Ok(BundleMessage { crash_limit, count, run_ns, tasks })
    }

    /// Returns the envelope of the first task. Looks no further, so the rest of the message may be anything.
    #[cfg(feature = "nats")]
    pub(crate) fn first_envelope(bytes: &[u8]) -> Option<&[u8]> {
        let mut take = Take::new(bytes.strip_prefix(&[BUNDLE])?);
        let Counts { present: 1.., .. } = Counts::take(&mut take).ok()? else { return None };
        take.u32().ok()?;
        take.u64().ok()?;
        take.bytes().ok()
    }

    /// Returns whether a message is that of a bundle.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.first() == Some(&BUNDLE)
    }

    /// Returns whether the bytes are the message of a bundle that has a task in this place.
    #[cfg(feature = "nats")]
    pub(crate) fn has(bytes: &[u8], place: u32) -> bool {
        BundleMessage::decode(bytes).is_ok_and(|bundle| bundle.tasks.iter().any(|task| task.place == place))
    }

    /// Returns the terms of its tasks.
    pub fn terms(&self) -> Terms {
        Terms { at_most_once: false, crash_limit: self.crash_limit }
    }
}

/// The first part of the message of a bundle.
struct Counts {
    crash_limit: u32,
    count: u32,
    /// Number of tasks that are still to be run.
    present: u32,
    run_ns: u64,
}

impl Counts {
    fn take(take: &mut Take<'_>) -> Result<Counts, WireError> {
        Ok(Counts { crash_limit: take.u32()?, count: take.u32()?, present: take.u32()?, run_ns: take.u64()? })
    }
}

/// Version of everything here.
pub(crate) const VERSION: u8 = 1;
/// Version of messages that are bundles.
const BUNDLE: u8 = 2;

impl<'a> TaskMessage<'a> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_u64(self.submitted_unix_nano);
        self.terms.put(&mut out);
        out.put_bytes(self.envelope);
        out.extend_from_slice(self.digests);
        out
    }

    /// Takes a message apart.
    pub fn decode(bytes: &'a [u8]) -> Result<TaskMessage<'a>, WireError> {
        let mut take = begin(bytes)?;
        let (submitted_unix_nano, terms, envelope) = (take.u64()?, Terms::take(&mut take)?, take.bytes()?);
        let digests = &bytes[bytes.len() - take.len()..];
        if !digests.len().is_multiple_of(size_of::<Digest>()) {
            return Err(WireError::Truncated);
        }
        Ok(TaskMessage { submitted_unix_nano, terms, envelope, digests })
    }

    /// Returns the arguments that are in the engine, in the order of the envelope's inputs; or why they cannot be known.
    pub fn values(&self, id: ClusterTaskId) -> Result<Vec<ValueKey>, WireError> {
        if self.digests.is_empty() && !Envelope::has_inputs(self.envelope) {
            return Ok(Vec::new());
        }
        let envelope = match Envelope::decode(self.envelope) {
            // Its head says what is wrong with it.
            Err(_) if self.digests.is_empty() => return Ok(Vec::new()),
            envelope => envelope?,
        };
        // An input without a digest would be a file of this node.
        let (digests, _) = self.digests.as_chunks::<{ size_of::<Digest>() }>();
        if digests.len() != envelope.inputs.len() {
            return Err(WireError::UnknownValue("input"));
        }
        let key = |(input, digest): (&Input, &Digest)| match &input.source {
            InputSource::Stored(stored) => Ok(ValueKey { id, attempt: 0, digest: *digest, bytes: stored.bytes }),
            InputSource::Task(_) => Err(WireError::UnknownValue("input")),
        };
        envelope.inputs.iter().zip(digests).map(key).collect()
    }
}

/// An envelope as it travels, with what its origin has to do before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The envelope.
    pub envelope: Vec<u8>,
    /// The arguments that are to go into the engine in the order of its inputs: those in files, and those that its head has set aside.
    pub values: Vec<ValueSource>,
    /// Slots and resources that the task asks for, if that is more than one slot.
    pub asks_for: Option<QueueBound>,
}

/// Prepares an envelope for its way. `large` are arguments that its head has set aside.
pub fn prepare(envelope: &[u8], large: Vec<(u32, Vec<u8>)>) -> Result<Prepared, WireError> {
    let bytes = envelope;
    let mut envelope = Envelope::decode(bytes)?;
    let asks_for = Some(QueueBound::of(&envelope.demand)).filter(|asks_for| !QueueBound::default().has(asks_for));
    let mut values = Vec::new();
    if envelope.inputs.is_empty() && large.is_empty() {
        return Ok(Prepared { envelope: bytes.into(), values, asks_for });
    }
    for input in &mut envelope.inputs {
        let InputSource::Stored(stored) = &mut input.source else { return Err(WireError::UnknownValue("input")) };
        let name = std::mem::take(&mut stored.name);
        values.push(ValueSource::File(Stored { name, bytes: stored.bytes }));
    }
    for (argument, value) in large {
        let stored = Stored { name: String::new(), bytes: value.len() as u64 };
        envelope.inputs.push(Input { argument, source: InputSource::Stored(stored) });
        values.push(ValueSource::Bytes(value));
    }
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes);
    Ok(Prepared { envelope: bytes, values, asks_for })
}

/// Returns an envelope whose arguments in files have these names.
pub(crate) fn with_files(envelope: &[u8], names: impl IntoIterator<Item = String>) -> Result<Vec<u8>, WireError> {
    let mut envelope = Envelope::decode(envelope)?;
    for (input, file) in envelope.inputs.iter_mut().zip(names) {
        if let InputSource::Stored(stored) = &mut input.source {
            stored.name = file;
        }
    }
    let mut bytes = Vec::new();
    envelope.encode(&mut bytes);
    Ok(bytes)
}

/// Returns the end of a task whose value is in a file of this node, and the file; none if it has no such value.
pub(crate) fn value_of(end: &[u8]) -> Option<(SharedEnd, Stored)> {
    let end = Some(end).filter(|end| SharedEnd::has_stored(end))?;
    let end = SharedEnd::decode(end).ok()?;
    match &end.outcome {
        Outcome::Stored(stored) => {
            let stored = stored.clone();
            Some((end, stored))
        }
        _ => None,
    }
}

/// Returns an end whose value cannot be had.
pub(crate) fn without_value(end: &SharedEnd, message: String) -> Vec<u8> {
    SharedEnd { outcome: Outcome::Failed(Failure::Result { message }), digest: None, ..end.clone() }.encode()
}

/// The most bytes of a name that another node gives.
const NAME_LIMIT: usize = 300;

/// Takes a name that people are shown: nothing that a terminal would obey.
pub(crate) fn take_name(take: &mut Take<'_>) -> Result<String, WireError> {
    let name = take.str()?;
    if name.len() > NAME_LIMIT || name.chars().any(char::is_control) {
        return Err(WireError::UnknownValue("name"));
    }
    Ok(name.to_owned())
}

fn take_names(take: &mut Take<'_>) -> Result<Vec<String>, WireError> {
    (0..take.u32()?).map(|_| take_name(take)).collect()
}

pub(crate) fn begin(bytes: &[u8]) -> Result<Take<'_>, WireError> {
    let mut take = Take::new(bytes);
    if take.u8()? != VERSION {
        return Err(WireError::UnknownValue("version of the message"));
    }
    Ok(take)
}

impl Terms {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u8(u8::from(self.at_most_once));
        out.put_u32(self.crash_limit);
    }

    pub(crate) fn take(take: &mut Take<'_>) -> Result<Terms, WireError> {
        Ok(Terms { at_most_once: take_flag(take)?, crash_limit: take.u32()? })
    }
}

fn take_flag(take: &mut Take<'_>) -> Result<bool, WireError> {
    match take.u8()? {
        flag @ 0..=1 => Ok(flag == 1),
        _ => Err(WireError::UnknownValue("flag")),
    }
}

/// The entry of an idempotency key: the first task that was submitted with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyEntry<'a> {
    /// The key.
    pub key: &'a str,
    /// See [`Key::fingerprint`](crate::interface::Key::fingerprint).
    pub fingerprint: u64,
    /// The task.
    pub id: ClusterTaskId,
}

impl<'a> KeyEntry<'a> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_str(self.key);
        [self.fingerprint, self.id.place.0, self.id.task.0].into_iter().for_each(|number| out.put_u64(number));
        out
    }

    /// Takes an entry apart.
    pub fn decode(bytes: &'a [u8]) -> Result<KeyEntry<'a>, WireError> {
        let mut take = begin(bytes)?;
        let (key, fingerprint) = (take.str()?, take.u64()?);
        let id = ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) };
        take.finish()?;
        Ok(KeyEntry { key, fingerprint, id })
    }
}

/// Returns the message of a task as it is under another id.
pub(crate) fn with_origin(message: &[u8], id: ClusterTaskId) -> Result<Vec<u8>, WireError> {
    let message = TaskMessage::decode(message)?;
    let mut envelope = Vec::new();
    Envelope { origin: Some(id), ..Envelope::decode(message.envelope)? }.encode(&mut envelope);
    Ok(TaskMessage { envelope: &envelope, ..message }.encode())
}

/// Modules that a node finds by name, those alone of which there is room to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedModules {
    /// Each with the SHA-256 of its library, if that was read.
    pub modules: BTreeMap<String, Option<Digest>>,
    /// Number of those that are not told of.
    pub left_out: u32,
}

impl ListedModules {
    /// The most modules.
    const COUNT: usize = 64;
    /// The most bytes of their names.
    const BYTES: usize = 4096;

    /// Returns as many of these as there is room for, those first that `is_used`.
    pub fn of(all: BTreeMap<String, Option<Digest>>, is_used: impl Fn(&str) -> bool) -> ListedModules {
        let mut sorted: Vec<_> = all.into_iter().collect();
        sorted.sort_by_key(|(name, digest)| (!is_used(name), digest.is_none()));
        let (mut listed, mut bytes) = (ListedModules::default(), 0);
        for (name, digest) in sorted {
            let is_shown = name.len() <= NAME_LIMIT && !name.chars().any(char::is_control);
            if !is_shown || listed.modules.len() == Self::COUNT || bytes + name.len() > Self::BYTES {
                listed.left_out = listed.left_out.saturating_add(1);
                continue;
            }
            bytes += name.len();
            listed.modules.insert(name, digest);
        }
        listed
    }

    /// Returns whether a node that says this has a module, as far as it is told.
    pub fn may_have(&self, module: &str) -> bool {
        self.modules.contains_key(module) || self.left_out > 0
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.modules.len() as u32);
        for (name, digest) in &self.modules {
            out.put_str(name);
            out.put_u8(digest.is_some().into());
            digest.iter().for_each(|digest| out.put_exact(digest));
        }
        out.put_u32(self.left_out);
    }

    fn take(take: &mut Take<'_>) -> Result<ListedModules, WireError> {
        let count = take.u32()?;
        if count as usize > Self::COUNT {
            return Err(WireError::UnknownValue("number of modules"));
        }
        let module = |_| {
            let name = take_name(take)?;
            let digest = if take_flag(take)? { Some(take.array()?) } else { None };
            Ok((name, digest))
        };
        let modules = (0..count).map(module).collect::<Result<_, WireError>>()?;
        Ok(ListedModules { modules, left_out: take.u32()? })
    }
}

/// A heartbeat of a node, which it writes every few seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The number of the start of its head.
    pub life: u64,
    /// Its name, as spans have it.
    pub node_id: String,
    /// Its version of tracer.
    pub version: String,
    /// Slots that are free.
    pub free: u32,
    /// Slots that there are.
    pub slots: u32,
    /// The queues that it serves.
    pub queues: Vec<String>,
    /// True if it runs commands of these queues too.
    pub shared_commands: bool,
    /// Queues that it was started for and takes nothing from: their tasks may ask for more than it has.
    pub too_large: Vec<String>,
    /// Named resources that it has, free or not.
    pub resources: Vec<(String, u64)>,
    /// Modules that it has.
    pub modules: ListedModules,
    /// Offset of its clock; none while it has not measured any, and of nodes that measure none.
    pub clock: Option<ClockOffset>,
}

impl Heartbeat {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_u64(self.life);
        out.put_str(&self.node_id);
        out.put_str(&self.version);
        out.put_u32(self.free);
        out.put_u32(self.slots);
        out.put_u32(self.queues.len() as u32);
        self.queues.iter().for_each(|queue| out.put_str(queue));
        out.put_u8(self.shared_commands.into());
        out.put_u32(self.too_large.len() as u32);
        self.too_large.iter().for_each(|queue| out.put_str(queue));
        out.put_u32(self.resources.len() as u32);
        for (name, amount) in &self.resources {
            out.put_str(name);
            out.put_u64(*amount);
        }
        self.modules.put(&mut out);
        if let Some(ClockOffset { offset_ns, error_ns }) = self.clock {
            out.put_exact(&offset_ns.to_le_bytes());
            out.put_u64(error_ns);
        }
        out
    }

    /// Takes a heartbeat apart.
    pub fn decode(bytes: &[u8]) -> Result<Heartbeat, WireError> {
        let mut take = begin(bytes)?;
        let (life, node_id, version) = (take.u64()?, take_name(&mut take)?, take_name(&mut take)?);
        let (free, slots) = (take.u32()?, take.u32()?);
        let queues = take_names(&mut take)?;
        let shared_commands = take_flag(&mut take)?;
        let too_large = take_names(&mut take)?;
        let count = take.u32()?;
        let resource = |_| Ok((take_name(&mut take)?, take.u64()?));
        let resources = (0..count).map(resource).collect::<Result<_, WireError>>()?;
        let modules = ListedModules::take(&mut take)?;
        let clock = match take.is_empty() {
            true => None,
            false => Some(ClockOffset { offset_ns: i64::from_le_bytes(take.array()?), error_ns: take.u64()? }),
        };
        take.finish()?;
        Ok(Heartbeat {
            life,
            node_id,
            version,
            free,
            slots,
            queues,
            shared_commands,
            too_large,
            resources,
            modules,
            clock,
        })
    }
}

/// A message from node to node. It may be lost, and is said again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The origin of a task wants its attempt to end.
    Stop(ClusterTaskId, Stop),
    /// Its arguments are not in the engine, although it is in the queue.
    NeedsValues(ClusterTaskId),
    /// Its message has come to another node. Whoever has claimed it and does not run it is to say so in its record.
    DoYouRun(ClusterTaskId),
    /// The same of a bundle, by its first task.
    DoYouRunBundle(ClusterTaskId),
    /// Its message, or that of its bundle by the first task, was refused by the node of this place.
    Refused(ClusterTaskId, Distrust, PlaceId),
    /// Notice that nobody follows its output any more.
    NotFollowed(ClusterTaskId),
    /// Somebody at the node of this place wants it to end. Answered by [`Told::CancelAnswered`].
    Cancel(ClusterTaskId, Stop, PlaceId),
    /// Outcome of a [`Told::Cancel`] at its origin.
    CancelAnswered(ClusterTaskId, CancelReport),
}

/// Reason why a node does not trust a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// Message without a signature.
    Unsigned,
    /// Message signed by a key that is not trusted.
    OfOther,
    /// Message whose signature by a trusted key does not fit: it was altered, or was made for another queue or id.
    Altered,
}

impl Distrust {
    const ALL: [Distrust; 3] = [Distrust::Unsigned, Distrust::OfOther, Distrust::Altered];
}

/// The most bytes of what one node tells another.
#[cfg(feature = "nats")]
pub(crate) const TOLD_LIMIT: usize = 1024;
const STOP: u8 = 1;
const DO_YOU_RUN: u8 = 2;
const NEEDS_VALUES: u8 = 3;
const DO_YOU_RUN_BUNDLE: u8 = 4;
const REFUSED: u8 = 10;
/// See [`OutputMessage`](crate::output::OutputMessage).
pub(crate) const OUTPUT: u8 = 5;
const NOT_FOLLOWED: u8 = 6;
const CANCEL: u8 = 7;
const CANCEL_ANSWERED: u8 = 8;

impl Told {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, id) = match self {
            Told::Stop(id, _) => (STOP, id),
            Told::DoYouRun(id) => (DO_YOU_RUN, id),
            Told::NeedsValues(id) => (NEEDS_VALUES, id),
            Told::DoYouRunBundle(id) => (DO_YOU_RUN_BUNDLE, id),
            Told::Refused(id, ..) => (REFUSED, id),
            Told::NotFollowed(id) => (NOT_FOLLOWED, id),
            Told::Cancel(id, ..) => (CANCEL, id),
            Told::CancelAnswered(id, _) => (CANCEL_ANSWERED, id),
        };
        let mut out = vec![VERSION, kind];
        out.put_u64(id.place.0);
        out.put_u64(id.task.0);
        match self {
            Told::Stop(_, stop) => stop.put(&mut out),
            Told::Refused(_, why, by) => {
                out.put_u8(*why as u8);
                out.put_u64(by.0);
            }
            Told::Cancel(_, stop, by) => {
                stop.put(&mut out);
                out.put_u64(by.0);
            }
            Told::CancelAnswered(_, report) => report.put(&mut out),
            Told::DoYouRun(_) | Told::NeedsValues(_) | Told::DoYouRunBundle(_) | Told::NotFollowed(_) => {}
        }
        out
    }

    /// Takes it apart.
    pub fn decode(bytes: &[u8]) -> Result<Told, WireError> {
        let mut take = begin(bytes)?;
        let kind = take.u8()?;
        let id = ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) };
        let told = match kind {
            STOP => Told::Stop(id, Stop::take(&mut take)?),
            DO_YOU_RUN => Told::DoYouRun(id),
            NEEDS_VALUES => Told::NeedsValues(id),
            DO_YOU_RUN_BUNDLE => Told::DoYouRunBundle(id),
            REFUSED => {
                let why = usize::from(take.u8()?);
                let why = Distrust::ALL.get(why).ok_or(WireError::UnknownValue("reason of a refusal"))?;
                Told::Refused(id, *why, PlaceId(take.u64()?))
            }
            NOT_FOLLOWED => Told::NotFollowed(id),
            CANCEL => Told::Cancel(id, Stop::take(&mut take)?, PlaceId(take.u64()?)),
            CANCEL_ANSWERED => Told::CancelAnswered(id, CancelReport::take(&mut take)?),
            _ => return Err(WireError::UnknownValue("message of a node")),
        };
        take.finish()?;
        Ok(told)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let terms = Terms { at_most_once: true, crash_limit: 3 };
        let message = TaskMessage { submitted_unix_nano: 5, terms, envelope: b"envelope", digests: &[] };
        assert_eq!(TaskMessage::decode(&message.encode()), Ok(message));
        let message = TaskMessage { digests: &[7; 64], ..message };
        assert_eq!(TaskMessage::decode(&message.encode()), Ok(message));
        assert!(TaskMessage::decode(&message.encode()[1..]).is_err());
        let task = |place| BundledTask { place, submitted_unix_nano: 5, envelope: b"envelope" };
        let bundle = BundleMessage { crash_limit: 2, count: 3, run_ns: 7, tasks: vec![task(0), task(2)] };
        assert_eq!(BundleMessage::decode(&bundle.encode()), Ok(bundle.clone()));
        assert!(TaskMessage::decode(&bundle.encode()).is_err() && BundleMessage::is_one(&bundle.encode()));
        for tasks in [vec![task(0), task(0)], vec![task(2), task(1)], vec![task(3)]] {
            let bundle = BundleMessage { tasks, ..bundle.clone() };
            assert!(BundleMessage::decode(&bundle.encode()).is_err(), "{bundle:?}");
        }
        for count in [0, 1, crate::bundle::BUNDLE_LIMIT + 1, u32::MAX] {
            let bundle = BundleMessage { count, ..bundle.clone() };
            assert!(BundleMessage::decode(&bundle.encode()).is_err(), "{count}");
        }
        let queues = vec!["default".into(), "gpu".into()];
        let (node_id, version) = ("a".into(), "0.1.0".into());
        let all: BTreeMap<_, _> = (0..70).map(|number| (format!("m{number:02}"), None)).collect();
        let all =
            [("x\n".to_owned(), None), ("y".into(), Some([8; 32])), ("z".into(), Some([9; 32]))].into_iter().chain(all);
        let modules = ListedModules::of(all.collect(), |name| name == "m69");
        assert_eq!((modules.modules.len(), modules.left_out), (64, 9));
        assert_eq!(
            (modules.modules.get("m69"), modules.modules["z"]),
            (Some(&None), Some([9; 32])),
            "those in use first"
        );
        let (too_large, resources) = (vec!["gpu".into()], vec![("gpu".into(), 3)]);
        let beat = Heartbeat {
            life: 7,
            node_id,
            version,
            free: 1,
            slots: 2,
            queues,
            shared_commands: true,
            too_large,
            resources,
            modules,
            clock: None,
        };
        assert_eq!(Heartbeat::decode(&beat.encode()), Ok(beat.clone()));
        let clock = Some(ClockOffset { offset_ns: -5, error_ns: u64::MAX });
        let measured = Heartbeat { clock, ..beat.clone() };
        assert_eq!(Heartbeat::decode(&measured.encode()), Ok(measured.clone()));
        assert!(measured.encode().starts_with(&beat.encode()), "those of nodes that measure none are read");
        for cut in 1..16 {
            assert!(Heartbeat::decode(&measured.encode()[..measured.encode().len() - cut]).is_err(), "{cut}");
        }
        assert!(Heartbeat::decode(&[&measured.encode()[..], b"x"].concat()).is_err());
        for node_id in ["\x1b[2J".to_owned(), "a".repeat(NAME_LIMIT + 1)] {
            assert!(Heartbeat::decode(&Heartbeat { node_id, ..beat.clone() }.encode()).is_err());
        }
        let id = ClusterTaskId { place: PlaceId(1), task: TaskId(2) };
        let stop = |grace_ns| Told::Stop(id, Stop { grace_ns });
        let refused = Distrust::ALL.map(|why| Told::Refused(id, why, PlaceId(3)));
        let others = [Told::DoYouRun(id), Told::NeedsValues(id), Told::DoYouRunBundle(id), Told::NotFollowed(id)];
        let cancels = CancelReport::ALL.map(|report| Told::CancelAnswered(id, report)).into_iter();
        let cancels = cancels.chain([Told::Cancel(id, Stop { grace_ns: Some(7) }, PlaceId(3))]);
        for told in [stop(None), stop(Some(0))].into_iter().chain(others).chain(refused).chain(cancels) {
            assert_eq!(Told::decode(&told.encode()), Ok(told));
        }
    }

    #[test]
    fn an_input_that_is_not_in_the_engine_is_refused() {
        let spec =
            tracer_core::task::TaskSpec::Function(tracer_core::task::FunctionSpec::of_task("m", "f", &[0x91, 0xc0]));
        let stored = Stored { name: "7-1".into(), bytes: 1 };
        let of_file = Input { argument: 0, source: InputSource::Stored(stored) };
        let of_task = Input { argument: 0, source: InputSource::Task(TaskId(1)) };
        let id = ClusterTaskId { place: PlaceId(1), task: TaskId(2) };
        let terms = Terms { at_most_once: true, crash_limit: 3 };
        for (inputs, digests) in [(vec![of_file.clone()], 0), (vec![of_file], 64), (vec![of_task], 32), (vec![], 32)] {
            let mut envelope = Vec::new();
            Envelope { inputs, ..Envelope::of(spec.clone()) }.encode(&mut envelope);
            let digests = vec![1; digests];
            let message = TaskMessage { submitted_unix_nano: 5, terms, envelope: &envelope, digests: &digests };
            assert!(message.values(id).is_err(), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn bytes_of_nobody_are_refused_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (TaskMessage::decode(&bytes), Heartbeat::decode(&bytes), Told::decode(&bytes));
            let _ = (BundleMessage::decode(&bytes), crate::bundle::BundleRecord::decode(&bytes));
            let _ = crate::record::Record::decode(&bytes);
        }
    }
}
