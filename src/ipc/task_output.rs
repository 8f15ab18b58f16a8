//! Attribution of what workers write: marks in their pipes, and the index beside each log.
//!
//! Several attempts write to the pipes of one worker, and bytes carry no owner. So a worker writes a *mark* into both pipes when an attempt
//! begins: a record of [`MARK_SIZE`] bytes that names the attempt and its trace, in one write, which a pipe keeps together (`PIPE_BUF`). It begins
//! with a [`Nonce`] of its worker that no task can guess, and whose first byte occurs in no UTF-8 text. The head takes marks out of what it reads
//! ([`MarkReader`]) and writes an [`Extent`] for each stretch of bytes of one attempt into the index of the worker's log, which stays plain text.
//!
//! Attempts of functions that have been seen to write nothing are not marked: see [`Marking`].

mod index;
mod mark;

pub use index::{Extent, HEADER, INDEX_RECORD, extents_at, index_path, read_extents};
pub use mark::{MARK_SIZE, Mark, MarkReader, Marking, Nonce, Owner, Read};
