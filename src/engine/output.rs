//! Messages with output: bytes that another node, of another version or of nobody's, may have written.

use tracer_core::codec::{Put, WireError};
use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, PlaceId};
use tracer_ipc::protocol::SharedOutput;

use crate::message::{OUTPUT, VERSION, begin};

/// A piece of output of a task, told to its origin. It may be lost, and is not said again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputMessage {
    /// The task.
    pub id: ClusterTaskId,
    /// Place of the node that runs it.
    pub place: PlaceId,
    /// Its name, as spans have it.
    pub node_id: String,
    /// The piece.
    pub output: SharedOutput,
}

impl OutputMessage {
    /// Encodes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, OUTPUT];
        [self.id.place.0, self.id.task.0, self.place.0].into_iter().for_each(|number| out.put_u64(number));
        out.put_str(&self.node_id);
        self.output.put(&mut out);
        out
    }

    /// Takes it apart.
    pub fn decode(bytes: &[u8]) -> Result<OutputMessage, WireError> {
        let mut take = begin(bytes)?;
        if take.u8()? != OUTPUT {
            return Err(WireError::UnknownValue("message of a node"));
        }
        let id = ClusterTaskId { place: PlaceId(take.u64()?), task: TaskId(take.u64()?) };
        let (place, node_id) = (PlaceId(take.u64()?), take.str()?.to_owned());
        let output = SharedOutput::take(&mut take)?;
        take.finish()?;
        if node_id.is_empty() {
            return Err(WireError::UnknownValue("name of a node"));
        }
        Ok(OutputMessage { id, place, node_id, output })
    }

    /// Returns whether a message is one with output.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(&[VERSION, OUTPUT])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tracer_ipc::protocol::{OutputSize, Stream, Written};

    use super::*;
    use crate::message::Told;

    #[test]
    fn a_message_with_output_is_read_as_it_was_written_and_as_nothing_else() {
        let before = Written { from_attempt: 2, size: OutputSize { bytes: 9, lines: 1 } };
        let output = SharedOutput { before, worker_pid: 7, stream: Stream::Stderr, bytes: b"a line\n".to_vec() };
        let id = ClusterTaskId { place: PlaceId(1), task: TaskId(2) };
        let message = OutputMessage { id, place: PlaceId(3), node_id: "b".into(), output };
        let bytes = message.encode();
        assert!(OutputMessage::is_one(&bytes) && Told::decode(&bytes).is_err());
        assert_eq!(OutputMessage::decode(&bytes), Ok(message.clone()));
        assert!((0..bytes.len()).all(|end| OutputMessage::decode(&bytes[..end]).is_err()));
        let nameless = OutputMessage { node_id: String::new(), ..message };
        assert!(OutputMessage::decode(&nameless.encode()).is_err());
        assert!(OutputMessage::decode(&Told::DoYouRun(id).encode()).is_err());
    }

    proptest! {
        #[test]
        fn bytes_of_nobody_are_refused_and_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = OutputMessage::decode(&[&[VERSION, OUTPUT][..], &bytes].concat());
        }
    }
}
