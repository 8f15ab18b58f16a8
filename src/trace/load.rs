//! Reading a folder once, all of it or some of its traces.

use std::ops::Range;
use std::path::Path;
use std::{fs, io};

use crate::loaded::{Gathering, Loaded};
use crate::read::{LoadError, Notice, Problem, Scanner, Tail, each_piece, find, pid_of, span_files};
use crate::span::{Span, SpanFile, TraceId};

/// Reads every `*.json`, `*.txt` and `*.jsonl` file in `folder`, not in folders below it.
pub fn load(folder: &Path) -> Result<Loaded, LoadError> {
    let mut gathering = Gathering::new(folder);
    let notices = Tail::new(folder).read_each(|span| gathering.take(span))?;
    Ok(gathering.finish(notices))
}

/// The most texts that are looked for one after the other, before it is faster to read everything.
pub(crate) const NEEDLES: usize = 16;

/// Reads, of a folder as [`load`] does, the traces whose ids begin with one of these digits in lower case, and what commands have made in attempts
/// of theirs. Objects in which no such id is found are not parsed.
pub fn load_traces(folder: &Path, beginnings: &[String]) -> Result<Loaded, LoadError> {
    let is_wanted = |id: TraceId| {
        let id = id.to_string();
        beginnings.iter().any(|beginning| id.starts_with(beginning.as_str()))
    };
    let mut gathering = Gathering::new(folder);
    let mut notices = Vec::new();
    for (path, _) in span_files(folder)? {
        let mut read = || -> io::Result<()> {
            let file = fs::File::open(&path)?;
            let metadata = file.metadata()?;
            let mut scanner = Scanner::new(SpanFile::stored(&path, pid_of(&path), &metadata));
            each_piece(&file, 0..metadata.len(), |bytes, offset, _| {
                let all = 0..bytes.len();
                let objects = if beginnings.len() > NEEDLES { vec![all] } else { objects_with(bytes, beginnings) };
                for object in objects {
                    let at = offset + object.start as u64;
                    // What else is in the file is for those to tell who read all of it.
                    scanner.scan(&bytes[object], at, |_, spans| {
                        let of_wanted = |span: &Span| {
                            is_wanted(span.trace_id()) || span.stem().is_some_and(|(id, _)| is_wanted(id))
                        };
                        spans.drain(..).filter(of_wanted).for_each(|span| gathering.take(span));
                    });
                }
            })
        };
        match read() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                notices.push(Notice { path, problem: Problem::Unreadable(error.to_string()) });
            }
            _ => {}
        }
    }
    Ok(gathering.finish(notices))
}

/// Returns where the objects are in which one of the texts is found, in order. In every layout, a line that begins with a brace begins an object.
fn objects_with(bytes: &[u8], texts: &[String]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for text in texts {
        let finder = memchr::memmem::Finder::new(text.as_bytes());
        let mut from = 0;
        while let Some(found) = finder.find(&bytes[from..]).map(|found| from + found) {
            let start = memchr::memmem::rfind(&bytes[..found], b"\n{").map_or(0, |line| line + 1);
            let end = found + find(&bytes[found..], b"\n{");
            let end = (end + 1).min(bytes.len());
            ranges.push(start..end);
            from = end;
        }
    }
    ranges.sort_by_key(|range| range.start);
    ranges.dedup();
    ranges
}
