//! Ids that hold beyond one head: of a place, and of a task on any node of a cluster.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::task::TaskId;

/// The id of a place: 64 random bits, which stay with its journal. It prints as 13 digits and lower-case letters, without those that are taken for one
/// another (i, l, o, u).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlaceId(pub u64);

/// The id of a task on any node of a cluster: the place whose head accepted it, and its number there. It prints as `c3f9a2m4q7cxw-1042`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClusterTaskId {
    /// The place whose head accepted it.
    pub place: PlaceId,
    /// Its number there.
    pub task: TaskId,
}

/// Text that is no such id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 13 digits and letters, as in c3f9a2m4q7cxw, and for a task its number behind a hyphen")]
pub struct PlaceIdError;

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Characters of an id: 5 bits each, of which the first has 4.
const LENGTH: usize = 13;

impl PlaceId {
    fn digits(self) -> [u8; LENGTH] {
        std::array::from_fn(|at| DIGITS[(self.0 >> (5 * (LENGTH - 1 - at)) & 31) as usize])
    }
}

impl fmt::Display for PlaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(&self.digits()).unwrap_or_default())
    }
}

impl FromStr for PlaceId {
    type Err = PlaceIdError;

    fn from_str(text: &str) -> Result<PlaceId, PlaceIdError> {
        if text.len() != LENGTH {
            return Err(PlaceIdError);
        }
        let mut id: u128 = 0;
        for byte in text.bytes() {
            let digit = DIGITS.iter().position(|&digit| digit == byte).ok_or(PlaceIdError)?;
            id = id << 5 | digit as u128;
        }
        u64::try_from(id).map(PlaceId).map_err(|_| PlaceIdError)
    }
}

impl fmt::Display for ClusterTaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.place, self.task)
    }
}

/// Length of the longest id of a task in the cluster: that of a place, a hyphen, and the digits of a number.
const TEXT_LENGTH: usize = LENGTH + 1 + 20;

/// Text of a [`ClusterTaskId`], made without allocation: spans of every task of a queue have it.
#[derive(Clone, Copy, Debug)]
pub struct ClusterTaskText {
    bytes: [u8; TEXT_LENGTH],
    length: usize,
}

impl ClusterTaskText {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl ClusterTaskId {
    /// Returns the id as text.
    pub fn text(self) -> ClusterTaskText {
        let mut bytes = [0; TEXT_LENGTH];
        let mut rest = &mut bytes[..];
        // There is room for every id.
        let _ = write!(rest, "{self}");
        let length = TEXT_LENGTH - rest.len();
        ClusterTaskText { bytes, length }
    }
}

impl FromStr for ClusterTaskId {
    type Err = PlaceIdError;

    fn from_str(text: &str) -> Result<ClusterTaskId, PlaceIdError> {
        let (place, task) = text.split_once('-').ok_or(PlaceIdError)?;
        // A number is written in one way.
        let is_plain = task.bytes().all(|byte| byte.is_ascii_digit()) && !(task.len() > 1 && task.starts_with('0'));
        let task = task.parse().ok().filter(|_| is_plain).map(TaskId).ok_or(PlaceIdError)?;
        Ok(ClusterTaskId { place: place.parse()?, task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_read_as_it_is_written() {
        for id in [0, 1, 31, 32, 0x0123_4567_89ab_cdef, u64::MAX] {
            let text = PlaceId(id).to_string();
            assert_eq!((text.len(), text.parse()), (13, Ok(PlaceId(id))), "{text}");
            let task = ClusterTaskId { place: PlaceId(id), task: TaskId(id) };
            assert_eq!(task.to_string().parse(), Ok(task));
            assert_eq!(task.text().as_str(), task.to_string());
        }
        assert_eq!(PlaceId(u64::MAX).to_string(), "fzzzzzzzzzzzz");
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "k3f9a2m4q7cx",
            "c3f9a2m4q7cxww",
            "zzzzzzzzzzzzz",
            "0000000000000-",
            "000000000000l-1",
            "0000000000000-01",
        ] {
            assert_eq!(text.parse::<ClusterTaskId>(), Err(PlaceIdError), "{text}");
        }
        for text in ["zzzzzzzzzzzzz", "000000000000l", "000000000000I", "00000000000é"] {
            assert_eq!(text.parse::<PlaceId>(), Err(PlaceIdError), "{text}");
        }
        assert_eq!("0000000000001-+1".parse::<ClusterTaskId>(), Err(PlaceIdError));
    }
}
