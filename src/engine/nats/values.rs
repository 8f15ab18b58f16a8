//! Values of tasks as pieces in a stream: each value under a subject of its own, its pieces one behind the other and behind them the entry that makes them one.
//!
//! Copies take the memory of a few pieces, however large a value is. What reads and writes files, and computes digests, is on threads beside the loop. Who was
//! killed while it put a value begins again: pieces have the number of their upload, and those of others are passed over.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;

use async_nats::HeaderMap;
use async_nats::jetstream::message::{PublishMessage, StreamMessage};
use async_nats::jetstream::stream::{Config as StreamConfig, DirectGetErrorKind, DiscardPolicy, StorageType, Stream};
use ring::digest::{Context as DigestContext, SHA256};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::{JoinHandle, spawn_blocking};
use tracer_core::clock::now_unix_nano;
use tracer_core::codec::{Put, Take, WireError};
use tracer_core::hex::hex;
use tracer_core::{ClusterTaskId, Stored};
use tracer_ipc::protocol::Digest;
use tracer_ipc::stored::{ValueFile, open};

use super::{CLUSTER, HEADERS_BYTES, Nats, RECORDS_KEPT, put_error};
use crate::interface::{Answer, PutError, ValueError, ValueKey, ValueSource};

/// Copies that go on at a time: heartbeats go over the same connection, and must not wait behind many pieces.
pub(super) const COPIES: usize = 2;
/// Length of a piece.
const PIECE: usize = 256 << 10;
/// Pieces of a copy that the engine has not acknowledged.
const PIECES_ON_THE_WAY: usize = 3;
/// Pieces between a file and the loop.
const PIECES_READY: usize = 2;
/// Number of the upload that a piece is of.
const UPLOAD: &str = "Tracer-Upload";
/// Mark of the entry behind the pieces.
const COMPLETE: &str = "Tracer-Complete";

pub(super) fn stream_name() -> String {
    format!("TRACER_{CLUSTER}_VALUE")
}

/// Returns the settings of the stream.
pub(super) fn stream() -> StreamConfig {
    StreamConfig {
        name: stream_name(),
        subjects: vec![format!("tracer.{CLUSTER}.value.>")],
        max_age: RECORDS_KEPT,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        allow_direct: true,
        ..StreamConfig::default()
    }
}

fn task_subject(id: ClusterTaskId) -> String {
    format!("tracer.{CLUSTER}.value.{}.{}", id.place, id.task)
}

fn subject(id: ClusterTaskId, attempt: u32, digest: &Digest) -> String {
    format!("{}.{attempt}.{}", task_subject(id), hex(digest))
}

/// The entry behind the pieces of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Complete {
    upload: u64,
    /// Sequence of the first piece; none of an empty value.
    first: u64,
    bytes: u64,
}

impl Complete {
    fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        [self.upload, self.first, self.bytes].into_iter().for_each(|number| out.put_u64(number));
        out
    }

    fn decode(bytes: &[u8]) -> Result<Complete, WireError> {
        let mut take = Take::new(bytes);
        let complete = Complete { upload: take.u64()?, first: take.u64()?, bytes: take.u64()? };
        take.finish()?;
        Ok(complete)
    }
}

/// A copy that has come to nothing.
enum Failed<E> {
    Unreachable,
    Why(E),
}

impl Nats {
    pub(super) async fn put_value(&self, id: ClusterTaskId, attempt: u32, source: ValueSource) -> Answer {
        match self.try_to_put(id, attempt, source).await {
            Ok(digest) => Answer::ValuePut(Ok(digest)),
            Err(Failed::Unreachable) => Answer::Unreachable,
            Err(Failed::Why(why)) => Answer::ValuePut(Err(why)),
        }
    }

    pub(super) async fn get_value(&self, key: &ValueKey) -> Answer {
        match self.try_to_get(key).await {
            Ok(name) => Answer::ValueGot(Ok(name)),
            Err(Failed::Unreachable) => Answer::Unreachable,
            Err(Failed::Why(why)) => Answer::ValueGot(Err(why)),
        }
    }

    pub(super) async fn drop_values(&self, id: ClusterTaskId) {
        if let Ok(stream) = self.context.get_stream_no_info(stream_name()).await {
            let _ = stream.purge().filter(format!("{}.>", task_subject(id))).await;
        }
    }

    async fn try_to_put(
        &self,
        id: ClusterTaskId,
        attempt: u32,
        source: ValueSource,
    ) -> Result<Digest, Failed<PutError>> {
        let _permit = self.copies.acquire().await.map_err(|_| Failed::Unreachable)?;
        let unreadable = |error: String| Failed::Why(PutError::Refused(format!("its value cannot be read: {error}")));
        let opened = Opened::of(&self.values, source).map_err(unreadable)?;
        // Its name is its digest: it is read twice.
        let (opened, digest) = spawn_blocking(move || opened.digest())
            .await
            .map_err(|_| Failed::Unreachable)?
            .map_err(|error| unreadable(error.to_string()))?;
        let subject = subject(id, attempt, &digest);
        let stream = self.context.get_stream_no_info(stream_name()).await.map_err(|_| Failed::Unreachable)?;
        let there = complete(&stream, &subject).await?;
        if there.is_some_and(|complete| complete.bytes == opened.bytes) {
            return Ok(digest);
        }
        let complete = self.put_pieces(&subject, opened).await?;
        let mut headers = HeaderMap::new();
        headers.insert(UPLOAD, complete.upload.to_string());
        headers.insert(COMPLETE, "1");
        let entry = PublishMessage::build().payload(complete.encode().into()).headers(headers);
        self.publish(&subject, entry).await?;
        Ok(digest)
    }

    async fn publish(&self, subject: &str, message: PublishMessage) -> Result<u64, Failed<PutError>> {
        let failed = |error| put_error(&error).map_or(Failed::Unreachable, Failed::Why);
        Ok(self.publish_and_wait(subject.to_owned(), message).await.map_err(failed)?.sequence)
    }

    async fn put_pieces(&self, subject: &str, opened: Opened) -> Result<Complete, Failed<PutError>> {
        let failed = |error| put_error(&error).map_or(Failed::Unreachable, Failed::Why);
        let (upload, bytes) = (now_unix_nano(), opened.bytes);
        let piece_bytes = PIECE.min(self.client.server_info().max_payload.saturating_sub(HEADERS_BYTES).max(1));
        let (pieces, mut read) = channel(PIECES_READY);
        // It ends when nobody takes its pieces any more.
        let _reading = spawn_blocking(move || opened.read_pieces(&pieces, piece_bytes));
        let (mut on_the_way, mut first, mut sent_bytes) = (VecDeque::new(), None, 0);
        loop {
            let piece = read.recv().await;
            while on_the_way.len() >= PIECES_ON_THE_WAY || (piece.is_none() && !on_the_way.is_empty()) {
                let Some(sent) = on_the_way.pop_front() else { break };
                let acknowledged: async_nats::jetstream::context::PublishAckFuture = sent;
                let sequence = acknowledged.await.map_err(failed)?.sequence;
                first.get_or_insert(sequence);
            }
            let Some(piece) = piece else { break };
            let piece =
                piece.map_err(|error: io::Error| Failed::Why(PutError::Refused(format!("its value: {error}"))))?;
            sent_bytes += piece.len() as u64;
            let mut headers = HeaderMap::new();
            headers.insert(UPLOAD, upload.to_string());
            let message = PublishMessage::build().payload(piece.into()).headers(headers);
            on_the_way.push_back(self.context.send_publish(subject.to_owned(), message).await.map_err(failed)?);
        }
        if sent_bytes != bytes {
            let text = format!("its value has {sent_bytes} bytes, but {bytes} were written");
            return Err(Failed::Why(PutError::Refused(text)));
        }
        Ok(Complete { upload, first: first.unwrap_or(0), bytes })
    }

    async fn try_to_get(&self, key: &ValueKey) -> Result<String, Failed<ValueError>> {
        let _permit = self.copies.acquire().await.map_err(|_| Failed::Unreachable)?;
        let damaged = |how: String| Failed::Why(ValueError::Damaged(how));
        let subject = subject(key.id, key.attempt, &key.digest);
        let stream = self.context.get_stream_no_info(stream_name()).await.map_err(|_| Failed::Unreachable)?;
        let complete = complete(&stream, &subject).await?.ok_or(Failed::Why(ValueError::Missing))?;
        if complete.bytes != key.bytes {
            return Err(damaged(format!("it has {} bytes, but {} were expected", complete.bytes, key.bytes)));
        }
        let (pieces, written) = channel(PIECES_READY);
        let (folder, bytes) = (self.values.clone(), key.bytes);
        let writing: JoinHandle<io::Result<Option<(Stored, Digest)>>> =
            spawn_blocking(move || write_pieces(&folder, bytes, written));
        let got = get_pieces(&stream, &subject, complete, &pieces).await;
        if got.is_ok() {
            // It is whole: without that, what was written is removed.
            let _ = pieces.send(None).await;
        }
        drop(pieces);
        let written = writing.await.map_err(|_| Failed::Unreachable)?;
        got?;
        let unwritable = |error: io::Error| Failed::Why(ValueError::Unwritable(error.to_string()));
        let Some((stored, digest)) = written.map_err(unwritable)? else { return Err(Failed::Unreachable) };
        if digest != key.digest {
            let _ = std::fs::remove_file(self.values.join(&stored.name));
            return Err(damaged(format!("it has the SHA-256 {}, but {} was expected", hex(&digest), hex(&key.digest))));
        }
        Ok(stored.name)
    }
}

/// Hands on the pieces of a value in their order.
async fn get_pieces(
    stream: &Stream<()>,
    subject: &str,
    complete: Complete,
    pieces: &Sender<Option<Vec<u8>>>,
) -> Result<(), Failed<ValueError>> {
    let (mut next, mut got) = (complete.first, 0);
    while got < complete.bytes {
        let message = match stream.direct_get_next_for_subject(subject, Some(next)).await {
            Ok(message) => message,
            Err(error) => return Err(get_failed(error.kind())),
        };
        next = message.sequence + 1;
        if is_complete(&message) && upload_of(&message) == Some(complete.upload) {
            let how = format!("{got} of its {} bytes are there", complete.bytes);
            return Err(Failed::Why(ValueError::Damaged(how)));
        }
        if is_complete(&message) || upload_of(&message) != Some(complete.upload) {
            continue;
        }
        got += message.payload.len() as u64;
        if pieces.send(Some(message.payload.to_vec())).await.is_err() {
            // It cannot be written, which the thread says.
            return Ok(());
        }
    }
    Ok(())
}

fn get_failed(kind: DirectGetErrorKind) -> Failed<ValueError> {
    match kind {
        DirectGetErrorKind::NotFound => Failed::Why(ValueError::Missing),
        _ => Failed::Unreachable,
    }
}

fn is_complete(message: &StreamMessage) -> bool {
    message.headers.get(COMPLETE).is_some()
}

fn upload_of(message: &StreamMessage) -> Option<u64> {
    message.headers.get(UPLOAD)?.as_str().parse().ok()
}

/// Reads the entry behind the pieces of a value; none if it is not there.
async fn complete<E>(stream: &Stream<()>, subject: &str) -> Result<Option<Complete>, Failed<E>> {
    match stream.direct_get_last_for_subject(subject).await {
        Ok(message) if is_complete(&message) => Ok(Complete::decode(&message.payload).ok()),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == DirectGetErrorKind::NotFound => Ok(None),
        Err(_) => Err(Failed::Unreachable),
    }
}

/// A value that is to be read twice.
struct Opened {
    content: Content,
    bytes: u64,
}

enum Content {
    File(File),
    Bytes(Vec<u8>),
}

impl Opened {
    fn of(folder: &Path, source: ValueSource) -> Result<Opened, String> {
        match source {
            ValueSource::Bytes(bytes) => {
                let length = bytes.len() as u64;
                Ok(Opened { content: Content::Bytes(bytes), bytes: length })
            }
            ValueSource::File(stored) => {
                let file = open(folder, &stored).map_err(|error| error.to_string())?;
                Ok(Opened { content: Content::File(file), bytes: stored.bytes })
            }
        }
    }

    fn digest(self) -> io::Result<(Opened, Digest)> {
        let mut context = DigestContext::new(&SHA256);
        self.for_each_piece(PIECE, &mut |piece| {
            context.update(&piece);
            true
        })?;
        Ok((self, digest_of(context)))
    }

    fn read_pieces(self, pieces: &Sender<io::Result<Vec<u8>>>, piece_bytes: usize) {
        if let Err(error) = self.for_each_piece(piece_bytes, &mut |piece| pieces.blocking_send(Ok(piece)).is_ok()) {
            let _ = pieces.blocking_send(Err(error));
        }
    }

    /// Hands out its pieces for as long as they are wanted.
    fn for_each_piece(&self, piece_bytes: usize, take: &mut dyn FnMut(Vec<u8>) -> bool) -> io::Result<()> {
        match &self.content {
            Content::Bytes(bytes) => {
                bytes.chunks(piece_bytes).all(|piece| take(piece.to_vec()));
                Ok(())
            }
            Content::File(file) => {
                use std::os::unix::fs::FileExt;
                let mut at = 0;
                while at < self.bytes {
                    let length = usize::try_from(self.bytes - at).unwrap_or(piece_bytes).min(piece_bytes);
                    let mut piece = vec![0; length];
                    file.read_exact_at(&mut piece, at)?;
                    at += length as u64;
                    if !take(piece) {
                        break;
                    }
                }
                Ok(())
            }
        }
    }
}

fn digest_of(context: DigestContext) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

/// Writes pieces to a file as they come. None if they end before their end was said.
fn write_pieces(
    folder: &Path,
    bytes: u64,
    mut pieces: Receiver<Option<Vec<u8>>>,
) -> io::Result<Option<(Stored, Digest)>> {
    let known = usize::try_from(bytes).unwrap_or(usize::MAX);
    let (mut file, mut context) = (ValueFile::create(folder, known)?, DigestContext::new(&SHA256));
    while let Some(piece) = pieces.blocking_recv() {
        let Some(piece) = piece else { return Ok(Some((file.finish()?, digest_of(context)))) };
        context.update(&piece);
        file.write(&piece)?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use tracer_core::PlaceId;
    use tracer_core::task::TaskId;

    use super::*;

    #[test]
    fn the_values_of_a_task_are_under_its_own_subject_alone() {
        let id = ClusterTaskId { place: PlaceId(1), task: TaskId(1) };
        let of_eleventh = subject(ClusterTaskId { task: TaskId(11), ..id }, 0, &[1; 32]);
        assert!(subject(id, 2, &[0xab; 32]).starts_with(&format!("{}.2.abab", task_subject(id))));
        assert!(!of_eleventh.starts_with(&format!("{}.", task_subject(id))));
    }

    #[test]
    fn the_entry_behind_the_pieces_is_read_as_it_was_written() {
        let complete = Complete { upload: 1, first: 2, bytes: 3 };
        assert_eq!(Complete::decode(&complete.encode()), Ok(complete));
        assert!(Complete::decode(b"short").is_err());
    }

    #[test]
    fn a_file_and_bytes_have_one_digest_and_a_file_that_is_cut_short_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let value: Vec<u8> = (0..3 * PIECE + 5).map(|at| (at / 7) as u8).collect();
        let stored = tracer_ipc::stored::store(folder.path(), &value).unwrap();
        let digest = |source| Opened::of(folder.path(), source).unwrap().digest().map(|(_, digest)| digest);
        let of_file = digest(ValueSource::File(stored.clone())).unwrap();
        assert_eq!(of_file, digest(ValueSource::Bytes(value)).unwrap());
        let opened = Opened::of(folder.path(), ValueSource::File(stored.clone())).unwrap();
        std::fs::File::options().write(true).open(folder.path().join(&stored.name)).unwrap().set_len(5).unwrap();
        assert!(opened.digest().is_err());
    }

    #[test]
    fn what_ends_before_its_end_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let (pieces, written) = channel(4);
        pieces.try_send(Some(vec![1; 10])).unwrap();
        drop(pieces);
        assert!(write_pieces(folder.path(), 20, written).unwrap().is_none());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
