//! Messages of queues and between nodes, and heartbeats: bytes that another node, of another version or of nobody's, may have written.

use tracer_core::ClusterTaskId;
use tracer_core::PlaceId;
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::task::TaskId;

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
}

/// Version of everything here.
const VERSION: u8 = 1;

impl<'a> TaskMessage<'a> {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_u64(self.submitted_unix_nano);
        self.terms.put(&mut out);
        out.put_bytes(self.envelope);
        out
    }

    /// Takes a message apart.
    pub fn decode(bytes: &'a [u8]) -> Result<TaskMessage<'a>, WireError> {
        let mut take = begin(bytes)?;
        let message =
            TaskMessage { submitted_unix_nano: take.u64()?, terms: Terms::take(&mut take)?, envelope: take.bytes()? };
        take.finish()?;
        Ok(message)
    }
}

fn begin(bytes: &[u8]) -> Result<Take<'_>, WireError> {
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
        let at_most_once = match take.u8()? {
            flag @ 0..=1 => flag == 1,
            _ => return Err(WireError::UnknownValue("flag")),
        };
        Ok(Terms { at_most_once, crash_limit: take.u32()? })
    }
}

/// A heartbeat of a node, which it writes every few seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The number of the start of its head.
    pub life: u64,
    /// Its name, as spans have it.
    pub node_id: String,
    /// Slots that are free.
    pub free: u32,
    /// Slots that there are.
    pub slots: u32,
    /// The queues that it serves.
    pub queues: Vec<String>,
}

impl Heartbeat {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.put_u64(self.life);
        out.put_str(&self.node_id);
        out.put_u32(self.free);
        out.put_u32(self.slots);
        out.put_u32(self.queues.len() as u32);
        self.queues.iter().for_each(|queue| out.put_str(queue));
        out
    }

    /// Takes a heartbeat apart.
    pub fn decode(bytes: &[u8]) -> Result<Heartbeat, WireError> {
        let mut take = begin(bytes)?;
        let (life, node_id) = (take.u64()?, take.str()?.to_owned());
        let (free, slots) = (take.u32()?, take.u32()?);
        let queues = (0..take.u32()?).map(|_| Ok(take.str()?.to_owned())).collect::<Result<_, WireError>>()?;
        take.finish()?;
        Ok(Heartbeat { life, node_id, free, slots, queues })
    }
}

/// A message from node to node. It may be lost, and is said again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The origin of a task wants its attempt to end.
    Stop(ClusterTaskId),
    /// Its message has come to another node. Whoever has claimed it and does not run it is to say so in its record.
    DoYouRun(ClusterTaskId),
}

const STOP: u8 = 1;
const DO_YOU_RUN: u8 = 2;

impl Told {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, id) = match self {
            Told::Stop(id) => (STOP, id),
            Told::DoYouRun(id) => (DO_YOU_RUN, id),
        };
        let mut out = vec![VERSION, kind];
        out.put_u64(id.place.0);
        out.put_u64(id.task.0);
        out
    }

    /// Takes it apart.
    pub fn decode(bytes: &[u8]) -> Result<Told, WireError> {
        let mut take = begin(bytes)?;
        let kind = take.u8()?;
        let id = ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) };
        take.finish()?;
        match kind {
            STOP => Ok(Told::Stop(id)),
            DO_YOU_RUN => Ok(Told::DoYouRun(id)),
            _ => Err(WireError::UnknownValue("message of a node")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let terms = Terms { at_most_once: true, crash_limit: 3 };
        let message = TaskMessage { submitted_unix_nano: 5, terms, envelope: b"envelope" };
        assert_eq!(TaskMessage::decode(&message.encode()), Ok(message));
        let queues = vec!["default".into(), "gpu".into()];
        let beat = Heartbeat { life: 7, node_id: "a".into(), free: 1, slots: 2, queues };
        assert_eq!(Heartbeat::decode(&beat.encode()), Ok(beat));
        let id = ClusterTaskId { place: PlaceId(1), task: TaskId(2) };
        for told in [Told::Stop(id), Told::DoYouRun(id)] {
            assert_eq!(Told::decode(&told.encode()), Ok(told));
        }
    }

    proptest! {
        #[test]
        fn bytes_of_nobody_are_refused_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (TaskMessage::decode(&bytes), Heartbeat::decode(&bytes), Told::decode(&bytes));
            let _ = crate::record::Record::decode(&bytes);
        }
    }
}
