//! Large values, in files of their own: they pass the head by name only.
//!
//! A value of [`STORED_FROM`] bytes or more, an argument or a result, is written to a file in the folder `values` of the head's place by whoever
//! has it, and read by whoever needs it. The head removes the file when nobody needs it any more: an argument's with the
//! end of its task, a result's when it was taken by the only one who had its handle, or when it is forgotten. When a head
//! ends, it removes all; a head that takes over from one that was killed removes what no task that it restores knows.
//!
//! What is encoded goes into the file as it is encoded ([`ValueWriter`]), and is read where it is ([`Value`] maps the file), so that a large text or
//! byte string is copied once on its way out and not at all on its way in. Memory that is touched for the first time costs more than the copy, and
//! so do the pages of a new file: `SpareValues` keeps a few files that nobody needs any more for the next values, and what is very large is copied
//! into their pages where they are (`in_place`). A file is locked exclusively (`flock`) while it is written and shared while it is read, so none is
//! written to that somebody reads.

use std::fs::{self, File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::ops::Deref;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::mm::{Advice, madvise};
use serde::Deserialize;

use crate::page::page_size;
use crate::pages::Pages;
pub use tracer_core::Stored;
use tracer_core::clock::now_unix_nano;
use tracer_core::value::{self, ValueError};

mod in_place;

/// Values of so many bytes, encoded, are stored.
pub const STORED_FROM: usize = 256 << 10;
/// Parts of so many bytes go into the file from where they are; shorter ones are put together first.
const DIRECT_FROM: usize = 64 << 10;
/// Memory of so many bytes may have huge pages.
const HUGE_FROM: usize = 4 << 20;
/// Limit of the spare files: those that nobody needs any more, kept for later values.
const SPARE_FILES: usize = 4;
/// Limit of the bytes of all spare files.
const SPARE_BYTES: u64 = 256 << 20;
/// Time that spare files are kept after the last one was put there.
const SPARE_FOR_NS: u64 = 5_000_000_000;
/// Limit of a file's size, as a multiple of that of its value.
const SLACK: u64 = 4;
/// The folder with these files.
pub const SPARE_FOLDER: &str = "spare_values";

/// A stored value that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// Nobody needed it any more.
    #[error("the value, of {bytes} bytes, is not kept any more")]
    Removed {
        /// Length of the value.
        bytes: u64,
    },
    /// The file cannot be read, or is not what was written.
    #[error("the value in `{}` cannot be read: {reason}", .path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Defect of the file.
        reason: String,
    },
}

/// Returns where the values of a session's place are.
pub fn folder(session_dir: &Path) -> PathBuf {
    folder_of_place(crate::session::place_of(session_dir))
}

/// Returns where the values of a place are.
pub fn folder_of_place(temp_dir: &Path) -> PathBuf {
    temp_dir.join("values")
}

/// Returns where the files are that nobody needs any more, beside those that somebody does.
fn spare_folder(folder: &Path) -> PathBuf {
    folder.with_file_name(SPARE_FOLDER)
}

/// Writes a value to a file of its own.
pub fn store(folder: &Path, value: &[u8]) -> io::Result<Stored> {
    let mut file = ValueFile::create(folder, value.len())?;
    file.write(value)?;
    file.finish()
}

/// Outcome of writing a value.
#[derive(Debug, PartialEq, Eq)]
pub enum Written {
    /// It is small.
    Small(Vec<u8>),
    /// It is in a file.
    Large(Stored),
}

/// Error for which a value was not written.
#[derive(Debug)]
pub enum WriteError {
    /// It has more bytes than are taken.
    TooLarge {
        /// Length of the value.
        bytes: usize,
    },
    /// Its file cannot be written to.
    Io {
        /// Length of the value.
        bytes: usize,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Takes a value in parts: keeps a small one, and puts a large one into a file as it comes.
///
/// Writing to it does not fail, so that whoever encodes a value needs to know of one kind of error only; [`finish`](Self::finish) tells.
#[derive(Debug)]
pub struct ValueWriter<'a> {
    folder: &'a Path,
    /// Bytes that are not in the file.
    rest: Vec<u8>,
    file: Option<ValueFile<'a>>,
    bytes: usize,
    limit: usize,
    failure: Option<io::Error>,
}

impl<'a> ValueWriter<'a> {
    /// For a value of at most `limit` bytes.
    pub fn new(folder: &'a Path, limit: usize) -> ValueWriter<'a> {
        ValueWriter { folder, rest: Vec::new(), file: None, bytes: 0, limit, failure: None }
    }

    /// Takes the next part.
    pub fn put(&mut self, part: &[u8]) {
        self.bytes = self.bytes.saturating_add(part.len());
        if self.rest.len() + part.len() < STORED_FROM {
            self.rest.extend_from_slice(part);
            return;
        }
        let coming = if part.len() >= DIRECT_FROM { part.len() } else { 0 };
        self.flush_rest(coming);
        if coming == 0 {
            self.rest.extend_from_slice(part);
        } else {
            self.write_out(part);
        }
    }

    fn flush_rest(&mut self, coming: usize) {
        let rest = std::mem::take(&mut self.rest);
        if self.file.is_none() && self.failure.is_none() && self.bytes <= self.limit {
            match ValueFile::create(self.folder, rest.len() + coming) {
                Ok(file) => self.file = Some(file),
                Err(error) => self.failure = Some(error),
            }
        }
        self.write_out(&rest);
        self.rest = rest;
        self.rest.clear();
    }

    fn write_out(&mut self, part: &[u8]) {
        // The file of what is too large, or cannot be written, is removed at once.
        if self.bytes > self.limit {
            self.file = None;
        }
        if let Some(file) = &mut self.file
            && let Err(error) = file.write(part)
        {
            self.failure = Some(error);
            self.file = None;
        }
    }

    /// Ends the value.
    pub fn finish(mut self) -> Result<Written, WriteError> {
        let bytes = self.bytes;
        if bytes >= STORED_FROM {
            self.flush_rest(0);
        }
        if bytes > self.limit {
            return Err(WriteError::TooLarge { bytes });
        }
        let failed = |source| WriteError::Io { bytes, source };
        match (self.failure, self.file) {
            (Some(error), _) => Err(failed(error)),
            (None, Some(file)) => file.finish().map(Written::Large).map_err(failed),
            (None, None) => Ok(Written::Small(self.rest)),
        }
    }
}

impl Write for ValueWriter<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.put(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A value that was written and that the head does not know of yet. Unless it will, it is removed.
#[derive(Debug)]
pub struct Pending(Option<PathBuf>);

impl Pending {
    /// Guards the file of `stored` in `folder`.
    pub fn new(folder: &Path, stored: &Stored) -> Pending {
        Pending(Some(folder.join(&stored.name)))
    }

    /// Notes that the head will know of it.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// The file of a value that is being written. Unless it is finished, it is removed. Its name begins with the number of this process.
#[derive(Debug)]
pub struct ValueFile<'a> {
    folder: &'a Path,
    /// Empty once it was finished.
    name: String,
    file: File,
    /// Bytes written.
    bytes: u64,
    /// Length of the file, from its last use on.
    length: u64,
}

impl<'a> ValueFile<'a> {
    /// For a value of which `known` bytes are known.
    pub fn create(folder: &'a Path, known: usize) -> io::Result<ValueFile<'a>> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // The time tells processes of one number apart.
        let name = format!("{}-{}-{count}", std::process::id(), now_unix_nano());
        let path = folder.join(&name);
        if let Some((file, length)) = take_spare(folder, &path, known as u64) {
            return Ok(ValueFile { folder, name, file, bytes: 0, length });
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(ValueFile { folder, name, file, bytes: 0, length: 0 })
    }

    /// Writes the next part.
    pub fn write(&mut self, part: &[u8]) -> io::Result<()> {
        let place = self.bytes;
        self.bytes += part.len() as u64;
        have_huge_pages(part);
        let there = (part.len() as u64).min(self.length.saturating_sub(place)) as usize;
        let copied = in_place::copy(&self.file, place, &part[..there]);
        let rest = &part[copied..];
        touch(rest);
        self.file.write_all_at(rest, place + copied as u64)
    }

    /// Ends the value.
    pub fn finish(mut self) -> io::Result<Stored> {
        if self.length > self.bytes.saturating_mul(SLACK) {
            self.file.set_len(self.bytes)?;
        }
        // Said, because a child that was forked meanwhile may still have the file open.
        flock(&self.file, FlockOperation::Unlock)?;
        Ok(Stored { name: std::mem::take(&mut self.name), bytes: self.bytes })
    }
}

/// Lets memory of many bytes have huge pages, so that there is one fault for many pages where none was touched.
fn have_huge_pages(part: &[u8]) {
    if part.len() >= HUGE_FROM {
        let start = part.as_ptr().map_addr(|address| address & !(page_size() - 1));
        let bytes = part.as_ptr().addr() - start.addr() + part.len();
        // SAFETY: pages that hold readable memory; the advice changes no contents, and a kernel that does not know it is only slower.
        let _ = unsafe { madvise(start.cast_mut().cast(), bytes, Advice::LinuxHugepage) };
    }
}

/// Looks at each page of what is about to be written out. A kernel that finds out in the middle of a write that memory was never touched, as
/// that of a vector of zeroes, goes on a page at a time.
fn touch(part: &[u8]) {
    for page in part.chunks(page_size()) {
        black_box(page[0]);
    }
}

impl Drop for ValueFile<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = fs::remove_file(self.folder.join(&self.name));
        }
    }
}

/// Makes a file that nobody needs any more the one at `path`, and locks it: the smallest that has `known` bytes, else the largest. It is not much
/// larger.
fn take_spare(folder: &Path, path: &Path, known: u64) -> Option<(File, u64)> {
    let mut spares: Vec<(u64, PathBuf)> = spares(&spare_folder(folder)).collect();
    spares.retain(|(length, _)| *length <= known.saturating_mul(SLACK));
    // Those that are large enough first, of these the smallest; then the others, the largest first.
    spares.sort_by_key(|(length, _)| if *length >= known { (0, *length) } else { (1, u64::MAX - length) });
    for (length, spare) in spares {
        // Somebody else may have been quicker.
        if fs::rename(spare, path).is_err() {
            continue;
        }
        let locked = OpenOptions::new().read(true).write(true).open(path).ok();
        let locked = locked.filter(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok());
        match locked {
            Some(file) => return Some((file, length)),
            // Somebody still reads it.
            None => drop(fs::remove_file(path)),
        }
    }
    None
}

fn spares(folder: &Path) -> impl Iterator<Item = (u64, PathBuf)> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.metadata().ok()?.len(), entry.path())))
}

/// The files that nobody needs any more and whose pages the next values shall have. The head puts them there; whoever has a value takes them.
#[derive(Debug)]
pub struct SpareValues {
    folder: PathBuf,
    /// Time at which the last one was put there, in nanoseconds of the monotonic clock.
    last_ns: Option<u64>,
}

impl SpareValues {
    /// Opens the folder of spare files beside that with the values. Files that another head has left there are removed.
    pub fn new(folder: &Path) -> SpareValues {
        let spare = SpareValues { folder: spare_folder(folder), last_ns: None };
        spare.remove_all();
        spare
    }

    /// Puts back a value that nobody needs any more.
    pub fn put(&mut self, value: &Path, now_ns: u64) {
        let is_kept = self.has_room_for(value) && {
            let name = value.file_name().unwrap_or_default();
            fs::rename(value, self.folder.join(name)).is_ok()
        };
        if is_kept {
            self.last_ns = Some(now_ns);
        } else {
            // What is left behind goes when the head ends.
            let _ = fs::remove_file(value);
        }
    }

    fn has_room_for(&self, value: &Path) -> bool {
        let Ok(metadata) = value.metadata() else { return false };
        let (count, bytes) =
            spares(&self.folder).fold((0, 0), |(count, bytes), (length, _)| (count + 1, bytes + length));
        count < SPARE_FILES && bytes + metadata.len() <= SPARE_BYTES
    }

    /// Returns the time of the next removal, if there is any.
    pub fn expires_ns(&self) -> Option<u64> {
        self.last_ns.map(|last| last + SPARE_FOR_NS)
    }

    /// Removes them when none has come for a while.
    pub fn expire(&mut self, now_ns: u64) {
        if self.expires_ns().is_some_and(|expires| expires <= now_ns) {
            self.last_ns = None;
            self.remove_all();
        }
    }

    /// Removes all spare files.
    pub fn remove_all(&self) {
        remove_others(&self.folder, |_| false);
    }
}

/// A value, encoded in MessagePack: bytes, or the file that has them, mapped.
#[derive(Debug)]
pub struct Value(Content);

#[derive(Debug)]
enum Content {
    Bytes(Vec<u8>),
    File(MappedFile),
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Value {
        Value(Content::Bytes(bytes))
    }
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Content::Bytes(bytes) => bytes,
            Content::File(mapped) => mapped.bytes(),
        }
    }
}

impl Value {
    /// Returns the value itself. A `&str` and a `&[u8]` borrow from it, and so may what has them in it.
    ///
    /// A byte string is what `serde` calls bytes; a `Vec<u8>` is a sequence of numbers to it, each of which is encoded on its own.
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ValueError> {
        value::from_bytes(self)
    }

    /// Returns its bytes, copied if they are in a file.
    pub fn into_bytes(self) -> Vec<u8> {
        match self.0 {
            Content::Bytes(bytes) => bytes,
            Content::File(mapped) => mapped.bytes().to_vec(),
        }
    }
}

/// The first bytes of a file, mapped to be read, and a lock on it.
#[derive(Debug)]
struct MappedFile {
    pages: Pages,
    /// Lock file, which holds the lock while it is open.
    _file: File,
}

impl MappedFile {
    /// Maps `bytes` bytes, which are at least one, of a file that has as many and is locked.
    fn map(file: File, bytes: usize) -> Result<MappedFile, File> {
        match Pages::read_only(&file, bytes) {
            Ok(pages) => Ok(MappedFile { pages, _file: file }),
            Err(_) => Err(file),
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long, and the file was when it was mapped. The file is in a folder of this user's that nobody else can
        // enter, and has mode 0600. Processes of tracer write to a file of a value, or cut it, only under an exclusive lock, and this one has a
        // shared lock on it for as long as it lives; removing the file does nothing to the mapping.
        unsafe { std::slice::from_raw_parts(self.pages.base().as_ptr(), self.pages.bytes()) }
    }
}

/// Opens the file of a value to read it, and locks it for as long as it is open.
pub fn open(folder: &Path, stored: &Stored) -> Result<File, StoredError> {
    let removed = || StoredError::Removed { bytes: stored.bytes };
    if stored.name.is_empty() {
        return Err(removed());
    }
    let path = folder.join(&stored.name);
    let unreadable = |reason: String| StoredError::Unreadable { path: path.clone(), reason };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => removed(),
        _ => unreadable(error.to_string()),
    };
    let file = File::open(&path).map_err(failed)?;
    // Someone writes another value to it.
    flock(&file, FlockOperation::NonBlockingLockShared).map_err(|_| removed())?;
    let metadata = file.metadata().map_err(failed)?;
    // It was given up before it was locked, and may have been written to since.
    if path.metadata().map_err(failed)?.ino() != metadata.ino() {
        return Err(removed());
    }
    if metadata.len() < stored.bytes {
        let reason = format!("it has {} bytes, but {} were written", metadata.len(), stored.bytes);
        return Err(unreadable(reason));
    }
    Ok(file)
}

/// Reads a value, where it is.
pub fn load(folder: &Path, stored: &Stored) -> Result<Value, StoredError> {
    let file = open(folder, stored)?;
    let unreadable = |reason: String| StoredError::Unreadable { path: folder.join(&stored.name), reason };
    let bytes = usize::try_from(stored.bytes).map_err(|error| unreadable(error.to_string()))?;
    if bytes == 0 {
        return Ok(Vec::new().into());
    }
    match MappedFile::map(file, bytes) {
        Ok(mapped) => Ok(Value(Content::File(mapped))),
        // Not every file system can.
        Err(file) => {
            let mut value = Vec::with_capacity(bytes);
            file.take(stored.bytes).read_to_end(&mut value).map_err(|error| unreadable(error.to_string()))?;
            Ok(value.into())
        }
    }
}

/// Removes the values that `is_needed` does not know.
pub fn remove_others(folder: &Path, is_needed: impl Fn(&str) -> bool) {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(&is_needed) {
            // What cannot be removed now is tried again by the next head.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = [b"one".as_slice(), b"two"].map(|value| store(folder.path(), value).unwrap());
        assert_ne!(first.name, second.name);
        let read = load(folder.path(), &first).unwrap();
        remove_others(folder.path(), |name| name == second.name);
        assert_eq!(*load(folder.path(), &second).unwrap(), *b"two");
        assert_eq!(*read, *b"one", "what was read before stays");
        let error = load(folder.path(), &first).unwrap_err().to_string();
        assert_eq!(error, "the value, of 3 bytes, is not kept any more");
        fs::write(folder.path().join(&second.name), b"tw").unwrap();
        let error = load(folder.path(), &second).unwrap_err().to_string();
        assert!(error.ends_with("cannot be read: it has 2 bytes, but 3 were written"), "{error}");
        assert!(store(&folder.path().join("none"), b"x").is_err());
    }

    /// Returns a folder for values beside one for spare ones.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("values");
        fs::create_dir(&folder).unwrap();
        fs::create_dir(spare_folder(&folder)).unwrap();
        (place, folder)
    }

    fn inode(folder: &Path, stored: &Stored) -> u64 {
        folder.join(&stored.name).metadata().unwrap().ino()
    }

    #[test]
    fn parts_of_any_length_are_one_value() {
        let (_place, folder) = place();
        for lengths in [vec![], vec![STORED_FROM - 1], vec![1, STORED_FROM - 1], vec![5, 1 << 20, 7], vec![30_000; 40]]
        {
            let mut writer = ValueWriter::new(&folder, 16 << 20);
            let mut expected = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let part = vec![number as u8; *length];
                writer.put(&part);
                expected.extend(part);
            }
            match writer.finish().unwrap() {
                Written::Small(bytes) => assert!(bytes == expected && bytes.len() < STORED_FROM),
                Written::Large(stored) => {
                    assert!(*load(&folder, &stored).unwrap() == *expected);
                    assert!(expected.len() >= STORED_FROM && stored.bytes == expected.len() as u64);
                }
            }
        }
    }

    #[test]
    fn a_large_value_is_one_under_valgrind_too() {
        crate::identity::tests::assert_passes_under_valgrind("stored::tests::parts_of_any_length_are_one_value");
    }

    #[test]
    fn what_is_too_large_or_cannot_be_written_leaves_nothing() {
        let (_place, folder) = place();
        let mut writer = ValueWriter::new(&folder, 1 << 20);
        for _ in 0..3 {
            writer.put(&vec![1; 1 << 19]);
        }
        assert!(matches!(writer.finish(), Err(WriteError::TooLarge { bytes: 1_572_864 })));
        let mut writer = ValueWriter::new(&folder, 1 << 20);
        writer.put(&vec![1; STORED_FROM]);
        drop(writer);
        assert_eq!(folder.read_dir().unwrap().count(), 0);
        let nowhere = folder.join("none");
        let mut writer = ValueWriter::new(&nowhere, 1 << 20);
        writer.put(&vec![1; STORED_FROM]);
        assert!(matches!(writer.finish(), Err(WriteError::Io { bytes: STORED_FROM, .. })));
    }

    #[test]
    fn a_file_is_used_again_unless_somebody_reads_it() {
        let (_place, folder) = place();
        let mut spare = SpareValues::new(&folder);
        let first = store(&folder, &[1; 5000]).unwrap();
        let inode_of_first = inode(&folder, &first);
        spare.put(&folder.join(&first.name), 0);
        assert!(matches!(load(&folder, &first), Err(StoredError::Removed { bytes: 5000 })));
        let second = store(&folder, &[2; 4000]).unwrap();
        assert_eq!(inode(&folder, &second), inode_of_first);
        let read = load(&folder, &second).unwrap();
        assert!(*read == [2; 4000]);
        spare.put(&folder.join(&second.name), 0);
        let third = store(&folder, &[3; 5000]).unwrap();
        assert_ne!(inode(&folder, &third), inode_of_first);
        assert!(*read == [2; 4000], "what is read is not written to");
    }

    #[test]
    fn a_large_value_takes_the_pages_of_one_before_and_more() {
        let (_place, folder) = place();
        let mut spare = SpareValues::new(&folder);
        let mut inodes = std::collections::HashSet::new();
        for length in [10 << 20, 9 << 20, (20 << 20) + 5, (20 << 20) - 5, 30 << 20] {
            let value: Vec<u8> = (0..length).map(|place: usize| (place / 1000 + length) as u8).collect();
            let mut writer = ValueWriter::new(&folder, 1 << 30);
            value.chunks(17 << 20).for_each(|part| writer.put(part));
            let Written::Large(stored) = writer.finish().unwrap() else { panic!("it is large") };
            inodes.insert(inode(&folder, &stored));
            assert!(*load(&folder, &stored).unwrap() == *value, "{length}");
            spare.put(&folder.join(&stored.name), 0);
        }
        assert_eq!(inodes.len(), 1);
    }

    #[test]
    fn spare_files_are_few_and_go() {
        let (_place, folder) = place();
        let mut spare = SpareValues::new(&folder);
        let count = || spares(&spare_folder(&folder)).count();
        let values: Vec<_> = (0..SPARE_FILES + 2).map(|_| store(&folder, &[1; 100]).unwrap()).collect();
        for stored in &values {
            spare.put(&folder.join(&stored.name), 7);
        }
        assert_eq!((count(), folder.read_dir().unwrap().count()), (SPARE_FILES, 0));
        // One that is much larger than the value is not for it.
        let small = store(&folder, &[1; 20]).unwrap();
        assert_eq!((count(), small.bytes), (SPARE_FILES, 20));
        spare.expire(SPARE_FOR_NS);
        assert_eq!(count(), SPARE_FILES);
        spare.expire(spare.expires_ns().unwrap());
        assert_eq!((count(), spare.expires_ns()), (0, None));
    }
}
