//! Refusals: a code that programs tell apart, and a text for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec::{Put, Take, WireError};

/// The reason of a refusal, for programs. Numbers and names are an interface: a new reason gets new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The head and the client speak different versions of the protocol.
    ProtocolVersion = 1,
    /// The client says that it is a worker, and the head has not started it.
    UnknownWorker = 2,
    /// The head is being stopped.
    Stopping = 3,
    /// The journal cannot be written.
    JournalFailed = 4,
    /// There are as many tasks as there is memory for.
    QueueFull = 5,
    /// The idempotency key names another task.
    KeyTaken = 6,
    /// The task asks for more than the head has.
    ImpossibleDemand = 7,
    /// The task that has submitted it is not known any more.
    UnknownSubmitter = 8,
    /// Another actor has the name.
    NameTaken = 9,
    /// The task is for a queue, and the head has joined no engine.
    NoEngine = 10,
    /// The task is for a queue, and the engine cannot be reached.
    EngineUnreachable = 11,
    /// The task is for a queue that takes it not: there is none of this name, or not for such tasks.
    QueueRefused = 12,
    /// A reason without a code, or with one of a newer head.
    #[default]
    #[serde(other)]
    Other = 0,
}

impl RefusalCode {
    /// Every code.
    pub const ALL: [RefusalCode; 13] = [
        RefusalCode::Other,
        RefusalCode::ProtocolVersion,
        RefusalCode::UnknownWorker,
        RefusalCode::Stopping,
        RefusalCode::JournalFailed,
        RefusalCode::QueueFull,
        RefusalCode::KeyTaken,
        RefusalCode::ImpossibleDemand,
        RefusalCode::UnknownSubmitter,
        RefusalCode::NameTaken,
        RefusalCode::NoEngine,
        RefusalCode::EngineUnreachable,
        RefusalCode::QueueRefused,
    ];

    /// Returns its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            RefusalCode::Other => "other",
            RefusalCode::ProtocolVersion => "protocol_version",
            RefusalCode::UnknownWorker => "unknown_worker",
            RefusalCode::Stopping => "stopping",
            RefusalCode::JournalFailed => "journal_failed",
            RefusalCode::QueueFull => "queue_full",
            RefusalCode::KeyTaken => "key_taken",
            RefusalCode::ImpossibleDemand => "impossible_demand",
            RefusalCode::UnknownSubmitter => "unknown_submitter",
            RefusalCode::NameTaken => "name_taken",
            RefusalCode::NoEngine => "no_engine",
            RefusalCode::EngineUnreachable => "engine_unreachable",
            RefusalCode::QueueRefused => "queue_refused",
        }
    }

    /// Returns the low-cardinality value of `error.type`: `refused:queue_full`.
    pub fn error_type(self) -> String {
        match self {
            RefusalCode::Other => "refused".into(),
            code => format!("refused:{}", code.name()),
        }
    }

    fn of_byte(byte: u8) -> RefusalCode {
        RefusalCode::ALL.into_iter().find(|code| *code as u8 == byte).unwrap_or_default()
    }
}

/// The head's answer to what it does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people. It may end in a hint.
    pub text: String,
}

impl Refusal {
    /// Pairs a code with its text.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }

    /// Appends the body of a frame. The text comes first: clients of versions without codes, which are refused for that, read it alone.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.put_str(&self.text);
        out.put_u8(self.code as u8);
    }

    /// Reads the body of a frame. What follows the code is of a newer head, and ignored.
    pub fn decode(body: &[u8]) -> Result<Refusal, WireError> {
        let mut take = Take::new(body);
        let text = take.str()?.to_owned();
        let code = if take.is_empty() { RefusalCode::Other } else { RefusalCode::of_byte(take.u8()?) };
        Ok(Refusal { code, text })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_codes_never_change() {
        let table = RefusalCode::ALL.map(|code| (code as u8, code.name()));
        let expected = [
            (0, "other"),
            (1, "protocol_version"),
            (2, "unknown_worker"),
            (3, "stopping"),
            (4, "journal_failed"),
            (5, "queue_full"),
            (6, "key_taken"),
            (7, "impossible_demand"),
            (8, "unknown_submitter"),
            (9, "name_taken"),
            (10, "no_engine"),
            (11, "engine_unreachable"),
            (12, "queue_refused"),
        ];
        assert_eq!(table, expected);
    }

    #[test]
    fn every_code_survives_the_wire_and_json_under_its_name() {
        for code in RefusalCode::ALL {
            let refusal = Refusal::new(code, "no\n(hint: later)");
            let mut body = Vec::new();
            refusal.put(&mut body);
            assert_eq!(Refusal::decode(&body), Ok(refusal));
            let json = serde_json::to_string(&code).unwrap();
            assert_eq!(json, format!("\"{}\"", code.name()));
            assert_eq!(serde_json::from_str::<RefusalCode>(&json).unwrap(), code);
        }
    }

    #[test]
    fn a_code_of_a_newer_head_is_a_plain_refusal_with_its_text() {
        let plain = Refusal::new(RefusalCode::Other, "no");
        for after_text in [&[200][..], &[200, 1, 2, 3], &[]] {
            let body = [&[2, 0, 0, 0, b'n', b'o'], after_text].concat();
            assert_eq!(Refusal::decode(&body), Ok(plain.clone()), "{after_text:?}");
        }
        assert_eq!(serde_json::from_str::<RefusalCode>("\"too_late\"").unwrap(), RefusalCode::Other);
        assert_eq!(Refusal::decode(&[3, 0, 0, 0, b'n', b'o']), Err(WireError::Truncated));
    }
}
