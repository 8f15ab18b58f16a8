//! The end of the journal: appending all or nothing, and what of it is on the disk.
//!
//! A write that failed may have left a part of its bytes. Until that part has been cut off, nothing else is appended, because reading would end before
//! it: the file is *torn*. A sync that failed may have lost any page that was written before it, and the kernel tells so only once: from then on
//! nothing counts as synced until everything is in another file, which was synced as a whole. While such a file is put in the place of the old one, both get
//! what is appended, and either may be the one that the next head reads.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

/// The operations on a file of the journal that can fail and leave it in between.
pub(super) trait Storage: Clone {
    /// Appends some of these bytes, and returns how many.
    fn append(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Cuts the file to this length.
    fn cut(&self, length: u64) -> io::Result<()>;
    /// Brings everything that was appended to the disk.
    fn sync(&self) -> io::Result<()>;
}

impl Storage for Arc<File> {
    fn append(&self, bytes: &[u8]) -> io::Result<usize> {
        (&**self).write(bytes)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A file of whole records.
#[derive(Debug)]
struct Tail<S> {
    file: S,
    /// Bytes of whole records, the header included.
    length: u64,
    /// True if there may be bytes behind them.
    is_torn: bool,
}

impl<S: Storage> Tail<S> {
    /// Appends all of the bytes; after an error, none of them counts.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.mend()?;
        match write_all(&self.file, bytes) {
            Ok(()) => self.length += bytes.len() as u64,
            Err(error) => {
                self.is_torn = true;
                // Tried again before the next append.
                let _ = self.mend();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Cuts off what an append has left that failed.
    fn mend(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.file.cut(self.length)?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Takes the last bytes back that were appended.
    fn take_back(&mut self, bytes: usize) {
        self.length -= bytes as u64;
        self.is_torn = true;
        let _ = self.mend();
    }
}

fn write_all(file: &impl Storage, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.append(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The file of the journal, and the one that is about to take its place, if there is one.
#[derive(Debug)]
pub(super) struct Log<S> {
    current: Tail<S>,
    next: Option<Tail<S>>,
    /// Bytes that were appended since it was opened.
    written: u64,
    /// Number of bytes whose sync was asked for.
    wanted: u64,
    /// Number of bytes that are on the disk.
    synced: u64,
    has_sync_failed: bool,
    /// True if a sync failed that was of the next file too.
    is_next_in_doubt: bool,
}

impl<S: Storage> Log<S> {
    /// Makes a file with so many bytes of whole records, and nothing behind them.
    pub(super) fn new(file: S, length: u64) -> Log<S> {
        Log {
            current: Tail { file, length, is_torn: false },
            next: None,
            written: 0,
            wanted: 0,
            synced: 0,
            has_sync_failed: false,
            is_next_in_doubt: false,
        }
    }

    pub(super) fn file(&self) -> &S {
        &self.current.file
    }

    /// Bytes of whole records in the file, its header included.
    pub(super) fn length(&self) -> u64 {
        self.current.length
    }

    /// Returns how many bytes were appended since it was opened.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns how many of them are on the disk.
    pub(super) fn synced(&self) -> u64 {
        self.synced
    }

    pub(super) fn has_sync_failed(&self) -> bool {
        self.has_sync_failed
    }

    /// Returns whether only another file can be trusted, or taken.
    pub(super) fn needs_new_file(&self) -> bool {
        self.has_sync_failed || self.current.is_torn
    }

    /// Appends whole records, or nothing.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Some(next) = &mut self.next {
            next.mend()?;
        }
        self.current.append(bytes)?;
        if let Some(next) = &mut self.next
            && let Err(error) = next.append(bytes)
        {
            self.current.take_back(bytes.len());
            return Err(error);
        }
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// From now on this file, which holds as much as the current one, gets everything too.
    pub(super) fn begin_change(&mut self, file: S, length: u64) {
        self.next = Some(Tail { file, length, is_torn: false });
        self.is_next_in_doubt = false;
    }

    /// Returns whether another file is about to take the place of the current one.
    pub(super) fn is_changing(&self) -> bool {
        self.next.is_some()
    }

    /// Notes that the other file has taken the place. Whether it was synced as a whole before, with its name.
    pub(super) fn end_change(&mut self, is_durable: bool) {
        let Some(next) = self.next.take() else { return };
        self.current = next;
        if !is_durable || self.is_next_in_doubt {
            self.has_sync_failed = true;
        } else if self.has_sync_failed {
            self.has_sync_failed = false;
            // What was appended to it since it was synced.
            self.wanted = 0;
        }
    }

    /// Notes that the other file takes no place.
    pub(super) fn abandon_change(&mut self) {
        self.next = None;
    }

    /// Returns what to sync now, and up to where that is then on the disk; none if there is nothing more, or it is of no use.
    pub(super) fn want_sync(&mut self) -> Option<(Vec<S>, u64)> {
        if self.wanted >= self.written || self.has_sync_failed {
            return None;
        }
        self.wanted = self.written;
        let next = self.next.iter().map(|next| next.file.clone());
        Some((std::iter::once(self.current.file.clone()).chain(next).collect(), self.written))
    }

    /// Notes that a sync has ended. True if it is the first one that failed.
    pub(super) fn on_synced(&mut self, synced: &io::Result<u64>) -> bool {
        match synced {
            // What the kernel could not write it may not try to write again, and says it once: a success after that says nothing.
            Ok(position) if !self.has_sync_failed => self.synced = self.synced.max(*position),
            Ok(_) => {}
            Err(_) => {
                self.is_next_in_doubt |= self.is_changing();
                return !std::mem::replace(&mut self.has_sync_failed, true);
            }
        }
        false
    }

    /// Brings everything to the disk, and waits for it.
    pub(super) fn sync_now(&mut self) -> io::Result<()> {
        if self.has_sync_failed {
            return Err(io::Error::other("a sync of the journal has failed before"));
        }
        let position = self.written;
        let mut files = std::iter::once(&self.current).chain(&self.next);
        let synced = files.try_for_each(|tail| tail.file.sync()).map(|()| position);
        self.on_synced(&synced);
        synced.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    /// Outcome of an operation.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        Works,
        /// Nothing happens.
        Fails,
        /// A part of it happens: of a write this many bytes, of a sync none of the pages is kept.
        Breaks(usize),
    }

    #[derive(Debug, Default)]
    struct Disk {
        /// Bytes that a process reads.
        bytes: Vec<u8>,
        /// Bytes that are left after a loss of power; none where nobody can say.
        durable: Vec<u8>,
        /// After a failed sync the pages count as written, and are not.
        unwritten_from: Option<usize>,
        fates: Vec<Fate>,
    }

    /// A file in memory whose operations fail as told, and work when there is nothing told any more.
    #[derive(Clone, Debug, Default)]
    struct Simulated(Rc<RefCell<Disk>>);

    fn refused() -> io::Error {
        io::Error::from_raw_os_error(5)
    }

    impl Storage for Simulated {
        fn append(&self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.0.borrow_mut();
            match disk.fates.pop().unwrap_or(Fate::Works) {
                Fate::Works => disk.bytes.extend_from_slice(bytes),
                Fate::Fails => return Err(refused()),
                // A short write, which goes on; the next may fail.
                Fate::Breaks(part) => {
                    let part = part.min(bytes.len()).max(1);
                    disk.bytes.extend_from_slice(&bytes[..part]);
                    return Ok(part);
                }
            }
            Ok(bytes.len())
        }

        fn cut(&self, length: u64) -> io::Result<()> {
            let mut disk = self.0.borrow_mut();
            match disk.fates.pop().unwrap_or(Fate::Works) {
                Fate::Works => {
                    disk.bytes.truncate(length as usize);
                    Ok(())
                }
                Fate::Fails | Fate::Breaks(_) => Err(refused()),
            }
        }

        fn sync(&self) -> io::Result<()> {
            let mut disk = self.0.borrow_mut();
            let disk = &mut *disk;
            match disk.fates.pop().unwrap_or(Fate::Works) {
                Fate::Works => {
                    // Pages that count as written are not written again.
                    let upto = disk.unwritten_from.unwrap_or(disk.bytes.len()).min(disk.bytes.len());
                    disk.durable = disk.bytes[..upto].to_vec();
                    Ok(())
                }
                Fate::Fails | Fate::Breaks(_) => {
                    let from = disk.durable.len().min(disk.bytes.len());
                    disk.unwritten_from = Some(disk.unwritten_from.map_or(from, |before| before.min(from)));
                    Err(refused())
                }
            }
        }
    }

    const RECORD: usize = 8;

    /// Returns a record that names itself: its number, four times.
    fn record(number: u16) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record.chunks_mut(2).for_each(|chunk| chunk.copy_from_slice(&number.to_le_bytes()));
        record
    }

    /// Returns what the next head reads: whole records up to the first that is not.
    fn read(bytes: &[u8]) -> Vec<u16> {
        let number = |chunk: &[u8]| u16::from_le_bytes([chunk[0], chunk[1]]);
        let chunks = bytes.chunks(RECORD);
        chunks.take_while(|chunk| chunk.len() == RECORD && **chunk == record(number(chunk))).map(number).collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Append,
        /// A sync that the thread runs, as far as it has come.
        Sync,
        SyncNow,
        /// A new file with all that is good, which gets everything from then on.
        BeginChange,
        EndChange,
        AbandonChange,
    }

    fn fates() -> impl Strategy<Value = Vec<Fate>> {
        let fate = prop_oneof![3 => Just(Fate::Works), 3 => Just(Fate::Fails), 2 => (1..RECORD).prop_map(Fate::Breaks)];
        prop::collection::vec(fate, 0..24)
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => Just(Step::Append),
            3 => Just(Step::Sync),
            1 => Just(Step::SyncNow),
            2 => Just(Step::BeginChange),
            2 => Just(Step::EndChange),
            1 => Just(Step::AbandonChange),
        ];
        prop::collection::vec(step, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        /// Lets operations fail in any order: accepted records are read back by whoever comes after a crash, in their order, and synced ones
        /// after a loss of power.
        #[test]
        fn what_was_accepted_is_found_whatever_fails(steps in steps(), of_first in fates(), of_others in fates()) {
            let first = Simulated::default();
            first.0.borrow_mut().fates = of_first;
            let mut log = Log::new(first.clone(), 0);
            // What the name of the journal leads to.
            let mut named = first;
            let mut next: Option<Simulated> = None;
            let mut of_others = of_others;
            let (mut accepted, mut number) = (Vec::new(), 0);
            for step in steps {
                match step {
                    Step::Append => {
                        number += 1;
                        if log.append(&record(number)).is_ok() {
                            accepted.push(number);
                        }
                    }
                    Step::Sync => {
                        if let Some((files, position)) = log.want_sync() {
                            let synced = files.iter().try_for_each(Storage::sync).map(|()| position);
                            log.on_synced(&synced);
                        }
                    }
                    Step::SyncNow => drop(log.sync_now()),
                    Step::BeginChange if next.is_none() => {
                        let good = named.0.borrow().bytes[..log.length() as usize].to_vec();
                        let file = Simulated::default();
                        let length = good.len() as u64;
                        file.0.borrow_mut().bytes = good;
                        log.begin_change(file.clone(), length);
                        next = Some(file);
                    }
                    Step::EndChange => {
                        let Some(file) = next.take() else { continue };
                        if file.sync().is_err() {
                            log.abandon_change();
                            continue;
                        }
                        file.0.borrow_mut().fates = std::mem::take(&mut of_others);
                        // Between this and what follows, either may be read.
                        for either in [&named, &file] {
                            let found = read(&either.0.borrow().bytes);
                            prop_assert!(found.starts_with(&accepted), "{:?} of {:?}", found, accepted);
                        }
                        named = file;
                        log.end_change(true);
                    }
                    Step::AbandonChange => {
                        if next.take().is_some() {
                            log.abandon_change();
                        }
                    }
                    Step::BeginChange => {}
                }
                let disk = named.0.borrow();
                let found = read(&disk.bytes);
                prop_assert!(found.starts_with(&accepted), "{:?} of {:?}", found, accepted);
                let synced = log.synced() as usize / RECORD;
                let durable = read(&disk.durable);
                prop_assert!(durable.starts_with(&accepted[..synced]), "{:?} of {:?}, {} synced", durable, accepted, synced);
            }
            // In the end the disk works: whatever was torn is taken again.
            named.0.borrow_mut().fates.clear();
            if let Some(next) = &next {
                next.0.borrow_mut().fates.clear();
            }
            prop_assert!(log.append(&record(9999)).is_ok());
            prop_assert_eq!(read(&named.0.borrow().bytes).len(), accepted.len() + 1);
        }
    }
}
