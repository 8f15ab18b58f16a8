//! Orders that a head of any version understands: the part of the protocol that never changes.
//!
//! Everything else is for two sides of one [`PROTOCOL_VERSION`](super::PROTOCOL_VERSION), which a hello settles. A connection that begins with a frame of kind
//! [`ORDER`] says no hello: it carries one order, whose body is JSON, and gets one frame of the same kind back. Kind, framing and the meaning of a field stay as
//! they are; fields are added, those that are missing have their defaults, and those that are not known are ignored.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::StopReport;
use super::frame::put_frame;

/// The kind of the frame, in both directions.
pub const ORDER: u8 = 47;

/// An order to a head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    /// Name of what the head is to do: [`STATUS`](Order::STATUS), [`STOP`](Order::STOP), [`DRAIN`](Order::DRAIN) or [`RESTART`](Order::RESTART).
    pub order: String,
    /// Time for running tasks to end, in milliseconds.
    pub grace_ms: u64,
    /// True to kill at once.
    pub force: bool,
    /// True to give up what has not ended.
    pub discard: bool,
    /// The program that goes on, of a restart.
    pub executable: Option<PathBuf>,
    /// The file with the settings of the next head, which that program reads.
    pub settings: Option<PathBuf>,
    /// Version of the protocol that that program speaks.
    pub protocol_version: u32,
}

impl Order {
    /// Says what the head is and has. Changes nothing.
    pub const STATUS: &'static str = "status";
    /// Ends the head and its workers. Answered when that is done.
    pub const STOP: &'static str = "stop";
    /// Accepts nothing any more, and stops once what is accepted has ended. Answered then.
    pub const DRAIN: &'static str = "drain";
    /// Ends the head and its workers, and has another program go on in its place. Answered when this head has ended its part.
    pub const RESTART: &'static str = "restart";

    /// Returns the order to say what the head is.
    pub fn status() -> Order {
        Order { order: Order::STATUS.into(), ..Order::default() }
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_json(out, self);
    }
}

/// A head's answer to an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderAnswer {
    /// The reason why the order is not followed; then nothing was done.
    pub refused: Option<String>,
    /// Facts about the head.
    pub head: HeadFacts,
    /// End of the head, of an order that ends it.
    pub stopped: Option<StopReport>,
}

impl OrderAnswer {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_json(out, self);
    }
}

/// Facts about a head.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeadFacts {
    /// Its version, for people.
    pub version: String,
    /// Version of the protocol that it speaks.
    pub protocol_version: u32,
    /// Its process.
    pub head_pid: u32,
    /// Its guard, if it has one.
    pub guard_pid: Option<u32>,
    /// Its session.
    pub session_dir: PathBuf,
    /// Tasks that wait.
    pub waiting: usize,
    /// Tasks that run.
    pub running: usize,
    /// Worker processes.
    pub workers: usize,
    /// Actors that live.
    pub actors: usize,
    /// Services that are served.
    pub services: usize,
    /// Processes of services.
    pub service_processes: usize,
    /// True while it stops, or is about to once its tasks have ended.
    pub is_stopping: bool,
    /// True if it belongs to a program, with which it ends.
    pub is_embedded: bool,
    /// Command line that it was started with; none if that is not known.
    pub start: Option<StartLine>,
}

/// Command line of a start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartLine {
    /// The arguments behind the name of the program.
    pub arguments: Vec<String>,
    /// The folder that it was given in.
    pub folder: PathBuf,
}

impl StartLine {
    /// Returns that of this process; none if it is not Unicode.
    pub fn of_this_process() -> Option<StartLine> {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.into_string().ok());
        Some(StartLine { arguments: arguments.collect::<Option<_>>()?, folder: std::env::current_dir().ok()? })
    }
}

fn put_json(out: &mut Vec<u8>, value: &impl Serialize) {
    put_frame(out, ORDER, |out| {
        // Strings, numbers and paths, which a place has only if they are Unicode.
        if let Ok(bytes) = serde_json::to_vec(value) {
            out.extend_from_slice(&bytes);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_golden_bytes() {
        let mut bytes = Vec::new();
        Order { order: Order::STOP.into(), grace_ms: 10_000, ..Order::default() }.encode(&mut bytes);
        let body = r#"{"order":"stop","grace_ms":10000,"force":false,"discard":false,"executable":null,"settings":null,"protocol_version":0}"#;
        let mut expected = u32::try_from(body.len() + 1).unwrap().to_le_bytes().to_vec();
        expected.push(47);
        expected.extend_from_slice(body.as_bytes());
        assert_eq!(bytes, expected, "these bytes are the same in every version: {}", String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn fields_that_are_not_known_are_ignored_and_those_that_are_missing_have_defaults() {
        let order: Order = serde_json::from_str(r#"{"order":"drain","later":{"a":[1]}}"#).unwrap();
        assert_eq!(order, Order { order: Order::DRAIN.into(), ..Order::default() });
        let answer: OrderAnswer =
            serde_json::from_str(r#"{"head":{"version":"9.0","new":1},"stopped":{"head_pid":7,"soon":true}}"#).unwrap();
        assert_eq!(answer.head.version, "9.0");
        assert_eq!(answer.stopped, Some(StopReport { head_pid: 7, ..StopReport::default() }));
        assert_eq!(serde_json::from_str::<OrderAnswer>("{}").unwrap(), OrderAnswer::default());
    }
}
