//! The index beside a log: which stretch of it which attempt wrote.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use tracer_core::task::TaskId;

use crate::protocol::message::Stream;
use crate::task_output::mark::Owner;

/// The beginning of an index, as long as a record.
pub const HEADER: [u8; INDEX_RECORD] = *b"tracer output index 1\n                                  ";
/// Bytes of a record.
pub const INDEX_RECORD: usize = 8 + 8 + 8 + 8 + 4 + 4 + 16;

/// A stretch of a log that one owner wrote to one stream: a record of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Position of its first byte in the log.
    pub offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// The stream that it was written to.
    pub stream: Stream,
    /// The owner, an attempt or an actor: others are not put into an index.
    pub owner: Owner,
    /// True if the owner is the attempt that ran when the head read the bytes, and no mark says that it wrote them.
    pub is_approximate: bool,
    /// Time at which the head read it, in nanoseconds since the Unix epoch.
    pub unix_nano: u64,
}

const STDERR: u8 = 1;
const SHARED: u8 = 2;
const APPROXIMATE: u8 = 4;

impl Extent {
    /// Returns the record.
    #[must_use]
    pub fn encode(&self) -> [u8; INDEX_RECORD] {
        let (TaskId(task), attempt, trace_id, shared) = match self.owner {
            Owner::None | Owner::Unmarked => (TaskId(0), 0, [0; 16], 0),
            Owner::Attempt { task, attempt, trace_id } => (task, attempt, trace_id, 0),
            Owner::Actor(actor) => (actor, 0, [0; 16], SHARED),
        };
        let stream = if self.stream == Stream::Stderr { STDERR } else { 0 };
        let approximate = if self.is_approximate { APPROXIMATE } else { 0 };
        let mut record = [0; INDEX_RECORD];
        record[..8].copy_from_slice(&self.offset.to_le_bytes());
        record[8..16].copy_from_slice(&u64::from(self.length).to_le_bytes());
        record[16..24].copy_from_slice(&self.unix_nano.to_le_bytes());
        record[24..32].copy_from_slice(&task.to_le_bytes());
        record[32..36].copy_from_slice(&attempt.to_le_bytes());
        record[36] = stream | shared | approximate;
        record[40..].copy_from_slice(&trace_id);
        record
    }

    /// Returns what a record says.
    #[must_use]
    pub fn decode(record: &[u8; INDEX_RECORD]) -> Extent {
        let number = |from: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&record[from..from + 8]);
            u64::from_le_bytes(bytes)
        };
        let task = TaskId(number(24));
        let mut trace_id = [0; 16];
        trace_id.copy_from_slice(&record[40..]);
        let attempt = u32::from_le_bytes([record[32], record[33], record[34], record[35]]);
        let flags = record[36];
        Extent {
            offset: number(0),
            length: u32::try_from(number(8)).unwrap_or(u32::MAX),
            stream: if flags & STDERR == 0 { Stream::Stdout } else { Stream::Stderr },
            owner: if flags & SHARED == 0 { Owner::Attempt { task, attempt, trace_id } } else { Owner::Actor(task) },
            is_approximate: flags & APPROXIMATE != 0,
            unix_nano: number(16),
        }
    }
}

/// Returns the path of the index of a log: `worker-1-4711.log` has `worker-1-4711.index`, its part `worker-1-4711.log.2` has
/// `worker-1-4711.index.2`.
#[must_use]
pub fn index_path(log: &Path) -> PathBuf {
    let name = log.file_name().unwrap_or_default().to_string_lossy();
    let name = match name.rsplit_once(".log") {
        Some((worker, part)) => format!("{worker}.index{part}"),
        None => format!("{name}.index"),
    };
    log.with_file_name(name)
}

/// Reads at most `limit` records of an index, from a position on. A record that is not whole is none, and a file that is no index, or of another
/// version, has none.
pub fn extents_at(index: &File, from: u64, limit: usize) -> io::Result<Vec<Extent>> {
    let mut header = [0; INDEX_RECORD];
    if fill(index, &mut header, 0)? < INDEX_RECORD || header != HEADER {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; limit.max(1) * INDEX_RECORD];
    let length = fill(index, &mut bytes, from.max(INDEX_RECORD as u64))?;
    Ok(bytes[..length].as_chunks().0.iter().map(Extent::decode).collect())
}

/// Reads bytes at a position, as far as there are any, and returns how many.
fn fill(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads the records of an index from a position on, and returns the position behind the last whole one.
pub fn read_extents(index: &Path, from: u64, mut take: impl FnMut(Extent)) -> io::Result<u64> {
    let file = File::open(index)?;
    let mut position = from;
    loop {
        let extents = extents_at(&file, position, 1 << 10)?;
        if extents.is_empty() {
            return Ok(position);
        }
        position = position.max(INDEX_RECORD as u64) + (extents.len() * INDEX_RECORD) as u64;
        extents.into_iter().for_each(&mut take);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent() -> impl Strategy<Value = Extent> {
        let owner = prop_oneof![
            (any::<u64>(), any::<u32>(), any::<[u8; 16]>()).prop_map(|(task, attempt, trace_id)| Owner::Attempt {
                task: TaskId(task),
                attempt,
                trace_id
            }),
            any::<u64>().prop_map(|actor| Owner::Actor(TaskId(actor))),
        ];
        let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
        (any::<u64>(), any::<u32>(), stream, owner, any::<bool>(), any::<u64>()).prop_map(
            |(offset, length, stream, owner, is_approximate, unix_nano)| Extent {
                offset,
                length,
                stream,
                owner,
                is_approximate,
                unix_nano,
            },
        )
    }

    #[test]
    fn an_index_is_beside_its_log() {
        for (log, index) in
            [("/l/worker-1-7.log", "/l/worker-1-7.index"), ("/l/worker-1-7.log.12", "/l/worker-1-7.index.12")]
        {
            assert_eq!(index_path(Path::new(log)), Path::new(index));
        }
    }

    #[test]
    fn a_record_that_is_not_whole_is_read_when_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker-1-7.index");
        let owner = Owner::Attempt { task: TaskId(3), attempt: 1, trace_id: [1; 16] };
        let extent =
            Extent { offset: 5, length: 7, stream: Stream::Stderr, owner, is_approximate: false, unix_nano: 9 };
        let mut bytes = HEADER.to_vec();
        bytes.extend(extent.encode());
        bytes.extend(&extent.encode()[..20]);
        std::fs::write(&path, &bytes).unwrap();
        let mut found = Vec::new();
        let position = read_extents(&path, 0, |extent| found.push(extent)).unwrap();
        assert_eq!((found.as_slice(), position), (&[extent][..], 2 * INDEX_RECORD as u64));
        bytes.extend(&extent.encode()[20..]);
        std::fs::write(&path, &bytes).unwrap();
        let position = read_extents(&path, position, |extent| found.push(extent)).unwrap();
        assert_eq!((found.len(), position), (2, 3 * INDEX_RECORD as u64));
    }

    #[test]
    fn a_file_that_is_no_index_has_no_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker-1-7.index");
        for text in [String::new(), "short".into(), "something else".repeat(40)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_extents(&path, 0, |extent| panic!("{extent:?}")).unwrap(), 0);
        }
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(extent in extent()) {
            prop_assert_eq!(Extent::decode(&extent.encode()), extent);
        }
    }
}
