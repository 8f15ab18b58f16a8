//! The log of one worker, as a stream of lines.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use tracer_ipc::task_output::{Extent, INDEX_RECORD, extents_at, read_extents};

use super::lines::Lines;
use super::{LINE_LIMIT, Line, log_of};
use crate::known_file::{Identity, KnownFile};
use crate::merging::Key;

/// The least that is read of a log at once.
const LEAST_WINDOW: usize = 4 << 10;

/// The way in which logs are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// Lines that have not come to their end are taken too.
    pub(super) is_last: bool,
    /// The most bytes of a log that stay in memory while others are read.
    pub(super) window: usize,
    /// The files are left open until they have been read.
    pub(super) leaves_open: bool,
    /// The longest line that is put together, and how far its end may be in the log.
    pub(super) line_limit: usize,
}

/// The log of a worker, in parts, as far as it was read.
#[derive(Debug)]
pub(super) struct WorkerLog {
    worker: (u64, u32),
    /// Position in the index of each part.
    positions: HashMap<Identity, u64>,
    /// Parts that have not been read in this round, oldest first.
    parts: VecDeque<KnownFile>,
    part: Option<Part>,
    /// The part that was read last, where it begins in the whole log, and where it has ended until now.
    last: (Identity, u64, u64),
    lines: Lines,
    /// Bytes that are wanted and are passed over, since newer ones are enough.
    passed_over: u64,
}

/// A part that is being read.
#[derive(Debug)]
struct Part {
    index: KnownFile,
    /// The index and its log.
    files: Option<(File, File)>,
    /// Stretches that were read ahead.
    extents: VecDeque<Extent>,
    /// Rest of the stretch at hand.
    extent: Option<Extent>,
    /// Bytes of the log, and the offset of the first.
    window: Vec<u8>,
    window_offset: u64,
}

impl WorkerLog {
    pub(super) fn new(worker: (u64, u32)) -> WorkerLog {
        WorkerLog {
            worker,
            positions: HashMap::new(),
            parts: VecDeque::new(),
            part: None,
            last: ((0, 0), 0, 0),
            lines: Lines::default(),
            passed_over: 0,
        }
    }

    /// Begins to read what has come since the last time in these parts.
    pub(super) fn begin(&mut self, parts: Vec<KnownFile>) {
        // The inode of a part that is gone may be that of another file soon.
        self.positions.retain(|identity, _| parts.iter().any(|part| part.identity == *identity));
        self.part = None;
        self.parts = parts.into();
    }

    /// Passes over all that is wanted but the newest bytes, so many of them.
    pub(super) fn pass_over(&mut self, newest: u64, is_wanted: &mut impl FnMut(&Extent) -> bool) -> io::Result<()> {
        let mut wanted = 0;
        for part in &self.parts {
            let from = self.positions.get(&part.identity).copied().unwrap_or_default();
            let read = read_extents(&part.path, from, |extent| {
                wanted += if is_wanted(&extent) { u64::from(extent.length) } else { 0 };
            });
            match read {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                read => drop(read?),
            }
        }
        self.passed_over = wanted.saturating_sub(newest);
        Ok(())
    }

    /// Returns the place of the next line, or of one that has begun before it and has not come to its end. The text is not read.
    pub(super) fn first(
        &mut self,
        reading: Reading,
        is_wanted: &mut impl FnMut(&Extent) -> bool,
    ) -> io::Result<Option<Key>> {
        loop {
            // What has begun may end, if there is more.
            let has_more = self.part.is_some() || !self.parts.is_empty();
            let begun = self.lines.first_begun().filter(|_| has_more);
            if let Some(place) = self.lines.first_ready().or(begun) {
                return Ok(Some(place));
            }
            if !self.find_extent(reading, is_wanted)? {
                self.lines.release_all(reading.is_last);
                return Ok(self.lines.first_ready());
            }
            if let Some(Part { index, extent: Some(extent), .. }) = &self.part {
                return Ok(Some((extent.unix_nano, index.identity.1, extent.offset, 0)));
            }
        }
    }

    /// Takes the next line.
    pub(super) fn take(
        &mut self,
        reading: Reading,
        is_wanted: &mut impl FnMut(&Extent) -> bool,
    ) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.lines.take() {
                if let Some(part) = &mut self.part {
                    part.rest(reading);
                }
                return Ok(Some(line));
            }
            if !self.find_extent(reading, is_wanted)? {
                self.lines.release_all(reading.is_last);
                return Ok(self.lines.take());
            }
            match self.read(reading) {
                Ok(()) => {}
                // It has gone to make room.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.part = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a line that was taken the next one again.
    pub(super) fn put_back(&mut self, line: Line) {
        self.lines.put_back(line);
    }

    /// Returns how many bytes of lines wait for the end of another one.
    pub(super) fn waiting(&self) -> usize {
        self.lines.bytes()
    }

    #[cfg(test)]
    pub(super) fn bytes_in_memory(&self) -> usize {
        self.lines.bytes() + self.part.as_ref().map_or(0, |part| part.window.capacity())
    }

    /// Goes on to the next stretch that is wanted, through all parts. False if there is none.
    fn find_extent(&mut self, reading: Reading, is_wanted: &mut impl FnMut(&Extent) -> bool) -> io::Result<bool> {
        loop {
            if self.part.is_none() {
                let Some(index) = self.parts.pop_front() else { return Ok(false) };
                if self.last.0 != index.identity {
                    self.last = (index.identity, self.last.2, self.last.2);
                }
                self.part = Some(Part::new(index));
            }
            match self.find_in_part(reading, is_wanted) {
                Ok(true) => return Ok(true),
                // At its end, or it has gone to make room.
                Ok(false) => self.part = None,
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.part = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// Goes on to the next stretch of the part at hand. False if there is no more.
    fn find_in_part(&mut self, reading: Reading, is_wanted: &mut impl FnMut(&Extent) -> bool) -> io::Result<bool> {
        let Some(part) = &mut self.part else { return Ok(false) };
        let (_, start, end) = &mut self.last;
        while part.extent.is_none() {
            let position = self.positions.entry(part.index.identity).or_default();
            if part.extents.is_empty() && !part.read_index(*position, reading)? {
                return Ok(false);
            }
            if let Some(extent) = part.extents.pop_front() {
                *position = (*position).max(INDEX_RECORD as u64) + INDEX_RECORD as u64;
                *end = (*end).max(*start + extent.offset + u64::from(extent.length));
                part.extent = Some(extent).filter(|extent| extent.length > 0 && is_wanted(extent));
                self.lines.release(*start + extent.offset, reading.line_limit);
                if self.passed_over > 0
                    && let Some(extent) = &part.extent
                {
                    let length = u64::from(extent.length);
                    if length <= self.passed_over {
                        part.extent = None;
                    }
                    self.passed_over = self.passed_over.saturating_sub(length);
                }
            }
        }
        Ok(true)
    }

    /// Reads a piece of the stretch at hand.
    fn read(&mut self, reading: Reading) -> io::Result<()> {
        let Some(part) = &mut self.part else { return Ok(()) };
        let (_, start, _) = self.last;
        let Some(mut extent) = part.extent.take() else { return Ok(()) };
        let inode = part.index.identity.1;
        let bytes = part.bytes(&extent)?;
        let length = memchr::memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
        let position = start + extent.offset;
        self.lines.put(&extent, self.worker, inode, position, &bytes[..length], reading.line_limit);
        extent.offset += length as u64;
        extent.length -= u32::try_from(length).unwrap_or(extent.length);
        self.lines.release(start + extent.offset, reading.line_limit);
        part.extent = Some(extent).filter(|extent| extent.length > 0);
        Ok(())
    }
}

impl Part {
    fn new(index: KnownFile) -> Part {
        Part { index, files: None, extents: VecDeque::new(), extent: None, window: Vec::new(), window_offset: 0 }
    }

    fn files(&mut self) -> io::Result<&(File, File)> {
        if self.files.is_none() {
            let log = |index: &std::path::Path| File::open(log_of(index).ok_or(io::ErrorKind::NotFound)?.0);
            self.files = Some(self.index.open_with(log)?);
        }
        self.files.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Reads stretches ahead. False if there are no more.
    fn read_index(&mut self, position: u64, reading: Reading) -> io::Result<bool> {
        let (index, _) = self.files()?;
        self.extents = extents_at(index, position, reading.window / INDEX_RECORD / 2)?.into();
        if !reading.leaves_open {
            self.files = None;
        }
        Ok(!self.extents.is_empty())
    }

    /// Keeps no more in memory than may stay there while others are read.
    fn rest(&mut self, reading: Reading) {
        if reading.leaves_open {
            return;
        }
        self.files = None;
        let next = self.extent.map_or(u64::MAX, |extent| extent.offset).saturating_sub(self.window_offset);
        let next = usize::try_from(next).unwrap_or(usize::MAX).min(self.window.len());
        if self.window.len() > reading.window {
            let end = self.window.len().min(next + reading.window);
            (self.window, self.window_offset) = (self.window[next..end].to_vec(), self.window_offset + next as u64);
        }
    }

    /// Returns the next bytes of a stretch, at least one.
    fn bytes(&mut self, extent: &Extent) -> io::Result<&[u8]> {
        let end = self.window_offset + self.window.len() as u64;
        if !(self.window_offset..end).contains(&extent.offset) {
            let mut window = std::mem::take(&mut self.window);
            window.resize((extent.length as usize).clamp(LEAST_WINDOW, LINE_LIMIT), 0);
            let (_, log) = self.files()?;
            let length = loop {
                match log.read_at(&mut window, extent.offset) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    read => break read?,
                }
            };
            if length == 0 {
                let path = log_of(&self.index.path).map(|(log, _)| log).unwrap_or_default();
                let text = format!("`{}` is shorter than its index says", path.display());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            window.truncate(length);
            (self.window, self.window_offset) = (window, extent.offset);
        }
        let from = usize::try_from(extent.offset - self.window_offset).unwrap_or_default();
        let length = (self.window.len() - from).min(extent.length as usize);
        Ok(&self.window[from..from + length])
    }
}
