//! Whatever a task writes stays as it is and its own, however reads from the pipe are cut: only marks with the worker's nonce are taken out.

use tracer::task::TaskId;
use tracer::task_output::{MARK_SIZE, Mark, MarkReader, Nonce, Owner, Read};

const NONCE_BYTES: [u8; 16] = *b"\xff0123456789abcde";
const NONCE: Nonce = Nonce::of(NONCE_BYTES);

/// The bytes are what tasks write one after the other, each piece up to a `|`, which stands for the mark of the next task; the first byte is the length of
/// reads. Pieces that begin with `!` have the nonce in them without being a mark, as one that could be guessed would have it.
pub(super) fn holds(bytes: &[u8]) {
    if bytes.windows(16).any(|part| part == NONCE_BYTES) {
        // A task that knows the nonce could say anything.
        return;
    }
    let (&length, rest) = bytes.split_first().unwrap_or((&1, &[]));
    let (mut written, mut expected) = (Vec::new(), Vec::new());
    for (task, piece) in (1_u64..).zip(rest.split(|byte| *byte == b'|')) {
        let owner = match task % 3 {
            0 => Owner::Actor(TaskId(task)),
            1 => Owner::Attempt { task: TaskId(task), attempt: 1, trace_id: [task as u8; 16] },
            _ => Owner::Unmarked,
        };
        written.extend_from_slice(&Mark { function: task as u32, owner }.encode(&NONCE));
        let mut own = piece.to_vec();
        if own.first() == Some(&b'!') {
            let mut forged = Mark { function: 1, owner: Owner::None }.encode(&NONCE);
            // A kind that there is not.
            forged[16] = 77;
            own.extend_from_slice(&forged[..own.len().min(MARK_SIZE)]);
        }
        // What could be the beginning of a mark goes on as something else.
        own.push(b'.');
        written.extend_from_slice(&own);
        expected.push((owner, own));
    }
    let mut reader = MarkReader::new(NONCE);
    let mut found: Vec<(Owner, Vec<u8>)> = Vec::new();
    let mut take = |read: Read<'_>| match read {
        Read::Mark(mark) => found.push((mark.owner, Vec::new())),
        Read::Bytes(bytes) => found.last_mut().expect("a mark comes first").1.extend_from_slice(bytes),
    };
    written.chunks(usize::from(length).max(1)).for_each(|read| reader.read(read, &mut take));
    reader.flush(&mut take);
    assert_eq!(found, expected);
}
