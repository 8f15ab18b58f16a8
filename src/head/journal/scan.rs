//! Reading a journal, in pieces: which of its bytes are whole records, whatever is between them.
//!
//! A record is whole if its length fits, its checksum is right, it can be decoded and its ids can be. After anything else, reading goes on at
//! the next place that holds a whole record, wherever that is. Finding it takes time in proportion to the bytes that are searched: the checksum of any
//! part of the file follows from those of what is before its two ends, which are taken once.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use tracer_core::task::TaskId;
use tracer_ipc::protocol::frame::FRAME_LIMIT;

use super::{
    ACTOR, ATTEMPT, BUNDLE, ENDED, HEADER, KEY, PRUNED, RECORD_HEADER, REMEMBERED, Record, SERVICE_DEPLOYED,
    SERVICE_SHUT_DOWN, STARTED, SUBMITTED, SUBMITTED_OLDER, read_record,
};

/// Bytes read at once.
const PIECE: usize = 1 << 20;
/// No record is longer.
const RECORD_LIMIT: u64 = FRAME_LIMIT as u64;
/// A kind and an id.
const SHORTEST_RECORD: u64 = 9;
/// No id is as large: ids count from 1.
const ID_LIMIT: u64 = 1 << 48;
/// An id that is so much larger than those before it is taken only if the ids after it follow it.
const JUMP_LIMIT: u64 = 1 << 32;
/// A submission takes more bytes.
const SHORTEST_SUBMISSION: u64 = 33;

/// Result of scanning a journal.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// Ranges of whole records, one after another in each.
    pub(super) parts: Vec<Range<u64>>,
    /// Number of places with something else: between or behind records, or in their place.
    pub(super) damages: usize,
    /// Number of bytes in those.
    pub(super) lost: u64,
    /// Bytes at the end of the file that are the beginning of a record: whoever wrote it died, or was out of room.
    pub(super) torn: u64,
    /// The ids that come next: above all that were read, and all that the lost bytes may have held.
    pub(super) next_task: u64,
    pub(super) next_job: u64,
}

/// Reads all of a file with this length, up to its header.
pub(super) fn scan(file: &File, end: u64) -> io::Result<Scanned> {
    let mut window = Window::new(file, end);
    let mut sums = None;
    let mut found = Found::default();
    let mut at = HEADER as u64;
    while at < end {
        if let Some(record) = whole_record(&mut window, at)? {
            at = found.note(at, &record);
            continue;
        }
        if is_torn(&mut window, at)? {
            // Something may follow all the same, if it is the length that is wrong.
            match find_record(&mut window, &mut sums, at + 1)? {
                Some(next) => at = found.note_damage(at..next),
                None => {
                    found.torn = end - at;
                    break;
                }
            }
        } else {
            let next = find_record(&mut window, &mut sums, at + 1)?;
            at = found.note_damage(at..next.unwrap_or(end));
        }
    }
    Ok(found.finish())
}

/// Returns whether a whole record is somewhere in a file, whose header may be anything.
pub(super) fn holds_records(file: &File, end: u64) -> io::Result<bool> {
    let mut window = Window::new(file, end);
    Ok(find_record(&mut window, &mut None, HEADER as u64)?.is_some())
}

/// Calls with each record of a file of whole records up to `end`, and with its bytes, header included.
pub(super) fn for_each_record(
    file: &File,
    end: u64,
    take: impl FnMut(&[u8], Record<'_>) -> io::Result<()>,
) -> io::Result<()> {
    for_each_wanted(file, end, |_| true, take)
}

/// Calls with each record but those that are not wanted, of which the bytes tell it, header included: those are neither checked nor decoded.
pub(super) fn for_each_wanted(
    file: &File,
    end: u64,
    is_wanted: impl Fn(&[u8]) -> bool,
    mut take: impl FnMut(&[u8], Record<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "a record in the journal is damaged");
    let mut window = Window::new(file, end);
    let mut at = HEADER as u64;
    while at < end {
        let length = record_length(&mut window, at)?.ok_or_else(damaged)?;
        let raw = window.get(at, RECORD_HEADER as u64 + length)?;
        if is_wanted(raw) {
            take(raw, decode(raw).ok_or_else(damaged)?)?;
        }
        at += RECORD_HEADER as u64 + length;
    }
    Ok(())
}

/// Result of the scan so far.
#[derive(Debug, Default)]
struct Found {
    parts: Vec<Range<u64>>,
    damages: usize,
    lost: u64,
    torn: u64,
    /// The largest ids in their order.
    last_task: u64,
    last_job: u64,
    /// The largest id of what is said of tasks.
    mentioned: u64,
    /// A record whose id is far beyond the others, and these as they were before it.
    suspect: Option<(Range<u64>, u64, u64)>,
}

/// The facts of a record that count here.
struct Noted {
    length: u64,
    task: u64,
    job: Option<u64>,
    /// True if it brings the task in, or says which ids come next.
    gives_id: bool,
}

impl Found {
    /// Notes a whole record, and returns where it ends.
    fn note(&mut self, at: u64, record: &Noted) -> u64 {
        let end = at + record.length;
        match self.parts.last_mut().filter(|last| last.end == at) {
            Some(last) => last.end = end,
            None => self.parts.push(at..end),
        }
        if record.gives_id {
            self.judge_suspect(record.task);
            if record.task > self.last_task.saturating_add(JUMP_LIMIT) {
                self.suspect = Some((at..end, self.last_task, self.last_job));
            }
            self.last_task = self.last_task.max(record.task);
            self.last_job = self.last_job.max(record.job.unwrap_or(0));
        } else if record.task <= self.last_task.saturating_add(JUMP_LIMIT) {
            self.mentioned = self.mentioned.max(record.task);
        }
        end
    }

    /// Decides whether the id of the suspect is right, by whether one near it follows.
    fn judge_suspect(&mut self, next: u64) {
        let Some((range, last_task, last_job)) = self.suspect.take() else { return };
        let is_followed = next >= self.last_task && next - self.last_task <= JUMP_LIMIT;
        if !is_followed {
            (self.last_task, self.last_job) = (last_task, last_job);
            self.refuse(range);
        }
    }

    /// Refuses a record that was taken as whole and is none.
    fn refuse(&mut self, range: Range<u64>) {
        let Some(index) = self.parts.iter().position(|part| part.contains(&range.start)) else { return };
        let part = self.parts.remove(index);
        let pieces = [part.start..range.start, range.end..part.end];
        self.parts.splice(index..index, pieces.into_iter().filter(|piece| !piece.is_empty()));
        self.damages += 1;
        self.lost += range.end - range.start;
        // What was said of it says nothing of others.
        self.mentioned = self.mentioned.min(self.last_task);
    }

    fn note_damage(&mut self, range: Range<u64>) -> u64 {
        self.damages += 1;
        self.lost += range.end - range.start;
        range.end
    }

    fn finish(mut self) -> Scanned {
        self.judge_suspect(0);
        // As many submissions may have been in what cannot be read.
        let unread = (self.lost + self.torn) / SHORTEST_SUBMISSION;
        Scanned {
            next_task: (self.last_task.max(self.mentioned) + 1).saturating_add(unread),
            next_job: (self.last_job + 1).saturating_add(unread),
            parts: self.parts,
            damages: self.damages,
            lost: self.lost,
            torn: self.torn,
        }
    }
}

/// Returns the task that a record is about, by its bytes alone, header included; none if it is about several, or about something else.
pub(super) fn task_of(raw: &[u8]) -> Option<TaskId> {
    let (kind, id) = (raw.get(RECORD_HEADER)?, raw.get(RECORD_HEADER + 1..)?.first_chunk()?);
    let is_of_one = matches!(*kind, SUBMITTED_OLDER | SUBMITTED | ENDED | REMEMBERED | ATTEMPT | STARTED | KEY | ACTOR);
    is_of_one.then(|| TaskId(u64::from_le_bytes(*id)))
}

/// Returns the whole record at an offset.
fn whole_record(window: &mut Window<'_>, at: u64) -> io::Result<Option<Noted>> {
    let Some(length) = record_length(window, at)? else { return Ok(None) };
    let length = RECORD_HEADER as u64 + length;
    Ok(decode(window.get(at, length)?).and_then(|record| Noted::of(&record, length)))
}

impl Noted {
    /// None for ids that no head gives out.
    fn of(record: &Record<'_>, length: u64) -> Option<Noted> {
        let (task, job, gives_id) = match record {
            Record::Submitted(submitted) => (submitted.task, Some(submitted.job), true),
            Record::Remembered(task, remembered) => (*task, Some(remembered.job), true),
            Record::Ended(record) => (record.task, None, false),
            Record::Attempt { task, .. }
            | Record::Started { task, .. }
            | Record::Actor { task, .. }
            | Record::Key { task, .. } => (*task, None, false),
            Record::Bundle { first, .. } => (*first, None, false),
            Record::Pruned(tasks) => (tasks.iter().copied().max()?, None, false),
            Record::ServiceDeployed(_) | Record::ServiceShutDown(_) => (TaskId(0), None, false),
            // It names those that come next.
            Record::NextIds { task, job } => {
                let (task, job) = (task.0.saturating_sub(1), job.0.saturating_sub(1));
                let fits = task < ID_LIMIT && job < ID_LIMIT;
                return fits.then_some(Noted { length, task, job: Some(job), gives_id: true });
            }
        };
        let fits = task.0 < ID_LIMIT && job.is_none_or(|job| job.0 < ID_LIMIT);
        fits.then_some(Noted { length, task: task.0, job: job.map(|job| job.0), gives_id })
    }
}

/// Returns the length that the record at an offset says it has, if it can be that.
fn record_length(window: &mut Window<'_>, at: u64) -> io::Result<Option<u64>> {
    if window.end.saturating_sub(at) < RECORD_HEADER as u64 + SHORTEST_RECORD {
        return Ok(None);
    }
    let header = window.get(at, RECORD_HEADER as u64)?;
    let length = u64::from(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
    let fits = (SHORTEST_RECORD..=RECORD_LIMIT).contains(&length) && at + RECORD_HEADER as u64 + length <= window.end;
    Ok(fits.then_some(length))
}

fn decode(raw: &[u8]) -> Option<Record<'_>> {
    let (header, body) = raw.split_at(RECORD_HEADER);
    if crc32fast::hash(body).to_le_bytes() != header[4..] {
        return None;
    }
    read_record(body).ok()
}

/// Returns whether what is at an offset may be the beginning of a record that goes beyond the end of the file, or space that was never written.
fn is_torn(window: &mut Window<'_>, at: u64) -> io::Result<bool> {
    let left = window.end - at;
    if left < RECORD_HEADER as u64 {
        return Ok(true);
    }
    let header = window.get(at, RECORD_HEADER as u64)?;
    let length = u64::from(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
    if length > 0 {
        return Ok(at + RECORD_HEADER as u64 + length > window.end);
    }
    let mut at = at;
    while at < window.end {
        let piece = window.get(at, (window.end - at).min(PIECE as u64))?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += piece.len() as u64;
    }
    Ok(true)
}

/// Returns where the first whole record is from an offset on.
fn find_record(window: &mut Window<'_>, sums: &mut Option<Sums>, from: u64) -> io::Result<Option<u64>> {
    /// Length of the part that is checked before any checksum: length, checksum, kind and id.
    const LOOK: u64 = RECORD_HEADER as u64 + SHORTEST_RECORD;
    let mut from = from;
    let mut candidates = Vec::new();
    while window.end.saturating_sub(from) >= LOOK {
        let end = window.end;
        let piece = window.get(from, (end - from).min(PIECE as u64))?;
        let looks = piece.windows(LOOK as usize);
        let next = from + looks.len() as u64;
        for (place, look) in (from..).zip(looks) {
            let length = u64::from(u32::from_le_bytes([look[0], look[1], look[2], look[3]]));
            let is_like_one = (SHORTEST_RECORD..=RECORD_LIMIT).contains(&length)
                && place + RECORD_HEADER as u64 + length <= end
                && is_beginning(look[8], &look[9..17]);
            if is_like_one {
                candidates.push((place, length, u32::from_le_bytes([look[4], look[5], look[6], look[7]])));
            }
        }
        for (place, length, checksum) in candidates.drain(..) {
            let sums = match sums {
                Some(sums) => sums,
                None => sums.insert(Sums::take(window)?),
            };
            let start = place + RECORD_HEADER as u64;
            if sums.of(window, start..start + length)? == checksum && whole_record(window, place)?.is_some() {
                return Ok(Some(place));
            }
        }
        from = next;
    }
    Ok(None)
}

/// Returns whether a record may begin with this kind and these bytes.
fn is_beginning(kind: u8, next: &[u8]) -> bool {
    match kind {
        // The name of a service, or a time.
        SERVICE_DEPLOYED | SERVICE_SHUT_DOWN => true,
        // An id, which is less than 2^48.
        SUBMITTED_OLDER..=KEY | ACTOR..=PRUNED | BUNDLE => next.ends_with(&[0, 0]),
        _ => false,
    }
}

/// Checksums of the file up to every so many bytes, from which that of any part follows.
struct Sums {
    blocks: Vec<u32>,
}

impl Sums {
    const BLOCK: u64 = 1024;

    /// Reads all of the file once.
    fn take(window: &mut Window<'_>) -> io::Result<Sums> {
        let mut hasher = crc32fast::Hasher::new();
        let mut blocks = vec![0];
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < window.end {
            let length = (window.end - at).min(PIECE as u64) as usize;
            window.file.read_exact_at(&mut piece[..length], at)?;
            for block in piece[..length].chunks(Self::BLOCK as usize) {
                hasher.update(block);
                blocks.push(hasher.clone().finalize());
            }
            at += length as u64;
        }
        Ok(Sums { blocks })
    }

    /// Returns the checksum of everything up to an offset.
    fn up_to(&self, file: &File, offset: u64) -> io::Result<u32> {
        let block = offset / Self::BLOCK;
        let mut rest = [0; Self::BLOCK as usize];
        let rest = &mut rest[..(offset % Self::BLOCK) as usize];
        file.read_exact_at(rest, block * Self::BLOCK)?;
        let mut hasher = crc32fast::Hasher::new_with_initial(self.blocks[block as usize]);
        hasher.update(rest);
        Ok(hasher.finalize())
    }

    /// Returns the checksum of a part of the file.
    fn of(&self, window: &Window<'_>, part: Range<u64>) -> io::Result<u32> {
        let (before, with) = (self.up_to(window.file, part.start)?, self.up_to(window.file, part.end)?);
        // CRC(a + b) is CRC(a), moved by the length of b, xor CRC(b).
        let mut moved = crc32fast::Hasher::new_with_initial_len(before, part.start);
        moved.combine(&crc32fast::Hasher::new_with_initial_len(0, part.end - part.start));
        Ok(moved.finalize() ^ with)
    }
}

/// A file, of which a piece is in memory.
struct Window<'f> {
    file: &'f File,
    end: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'f> Window<'f> {
    fn new(file: &'f File, end: u64) -> Window<'f> {
        Window { file, end, start: 0, bytes: Vec::new() }
    }

    /// Bytes that are in the file.
    fn get(&mut self, at: u64, length: u64) -> io::Result<&[u8]> {
        let has = self.start..self.start + self.bytes.len() as u64;
        if at < has.start || at + length > has.end {
            let wanted = length.max(PIECE as u64).min(self.end.saturating_sub(at)).max(length) as usize;
            if self.bytes.capacity() > 2 * PIECE && wanted <= PIECE {
                // A long record is rare, and its memory is not kept.
                self.bytes = Vec::new();
            }
            self.bytes.resize(wanted, 0);
            self.start = at;
            if let Err(error) = self.file.read_exact_at(&mut self.bytes, at) {
                self.bytes.clear();
                return Err(error);
            }
        }
        let from = (at - self.start) as usize;
        Ok(&self.bytes[from..from + length as usize])
    }
}
