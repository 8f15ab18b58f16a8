//! Lines that files of the session get, as they come.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracer_core::escape::whole_characters;

/// The longest line that is waited for; what is longer comes in pieces.
const LINE_LIMIT: usize = 64 << 10;
/// The most bytes of a file that are read at a time: then it is the turn of the others.
const TURN: u64 = 1 << 20;
/// Looks at a file without anything new after which it is closed, once its writer has ended: its last lines may come behind that news.
const LAST_LOOKS: u32 = 50;

/// Files that are read as they grow, each with what its lines begin with.
#[derive(Debug, Default)]
pub(in super::super) struct Tails {
    files: BTreeMap<PathBuf, Tail>,
}

/// A line, or a piece of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct TailLine<'a> {
    /// Beginning of the lines of its file.
    pub(in super::super) prefix: &'a str,
    /// Without its end, and without spaces there.
    pub(in super::super) text: &'a str,
    /// True if it does not end here.
    pub(in super::super) is_partial: bool,
}

#[derive(Debug)]
struct Tail {
    prefix: String,
    /// None until the file is there.
    file: Option<File>,
    /// A line that is not at its end.
    rest: Vec<u8>,
    /// Looks that are left, if its writer has ended.
    looks: Option<u32>,
}

impl Tails {
    /// Reads a file too, from its beginning, which may be in an older part of it.
    pub(in super::super) fn add(&mut self, path: &Path, prefix: String) {
        self.files.entry(path.into()).or_insert(Tail { prefix, file: None, rest: Vec::new(), looks: None });
    }

    /// Closes a file some time after it has come to its end, since its writer has ended.
    pub(super) fn end(&mut self, path: &Path) {
        if let Some(tail) = self.files.get_mut(path) {
            tail.looks = Some(LAST_LOOKS);
        }
    }

    /// Reads a file too, from where it ends now.
    pub(super) fn add_from_end(&mut self, path: &Path) {
        self.add(path, String::new());
        if let (Some(tail), Ok(mut file)) = (self.files.get_mut(path), File::open(path))
            && file.seek(SeekFrom::End(0)).is_ok()
        {
            tail.file = Some(file);
        }
    }

    /// Takes lines that have come, of each file as many as are read at a time. Returns whether there are more.
    pub(in super::super) fn take(&mut self, mut take: impl FnMut(TailLine<'_>)) -> bool {
        let mut has_more = false;
        self.files.retain(|path, tail| {
            if tail.file.is_none() {
                tail.file = parts(path).first().and_then(|first| File::open(first).ok());
            }
            tail.begin_again_if_cut();
            let mut goes_on = tail.read(&mut take);
            if !goes_on && tail.is_replaced(path) {
                // The log goes on in a new part.
                tail.file = tail.next_part(path).and_then(|next| File::open(next).ok());
                goes_on = tail.file.is_some();
            }
            has_more |= goes_on;
            match &mut tail.looks {
                Some(0) if !goes_on => {
                    tail.take_rest(&mut take);
                    return false;
                }
                Some(looks) if !goes_on => *looks -= 1,
                _ => {}
            }
            true
        });
        has_more
    }

    /// Takes what is left of lines that have not come to their end.
    pub(in super::super) fn take_rest(&mut self, mut take: impl FnMut(TailLine<'_>)) {
        self.files.values_mut().for_each(|tail| tail.take_rest(&mut take));
    }
}

/// Returns the parts of a log that there are, oldest first.
fn parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
    let number = |part: &Path| part.file_name()?.to_str()?.strip_prefix(&name)?.parse::<u64>().ok();
    let entries = std::fs::read_dir(path.parent().unwrap_or(Path::new("."))).into_iter().flatten();
    let mut older: Vec<_> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    older.retain(|part| number(part).is_some());
    older.sort_by_key(|part| number(part));
    older.into_iter().chain([path.to_owned()]).collect()
}

impl Tail {
    fn take_rest(&mut self, take: &mut impl FnMut(TailLine<'_>)) {
        if !self.rest.is_empty() {
            let text = std::mem::take(&mut self.rest);
            take(TailLine { prefix: &self.prefix, text: &String::from_utf8_lossy(&text), is_partial: true });
        }
    }

    /// Goes back to the beginning of a file that has become shorter.
    fn begin_again_if_cut(&mut self) {
        let Some(file) = &mut self.file else { return };
        let position = file.stream_position().unwrap_or(0);
        if file.metadata().is_ok_and(|metadata| metadata.len() < position) && file.rewind().is_ok() {
            self.rest.clear();
        }
    }

    /// Returns whether another file is in the place of the one that is read.
    fn is_replaced(&self, path: &Path) -> bool {
        let now = inode(std::fs::metadata(path));
        now.is_some() && self.file.as_ref().is_some_and(|file| inode(file.metadata()) != now)
    }

    /// Returns the part behind the one that is read, or the oldest that there is, if that one is gone.
    fn next_part(&self, path: &Path) -> Option<PathBuf> {
        let mut parts = parts(path);
        let own = self.file.as_ref().and_then(|file| inode(file.metadata()));
        let at = parts.iter().position(|part| inode(std::fs::metadata(part)) == own).map_or(0, |at| at + 1);
        (at < parts.len()).then(|| parts.swap_remove(at))
    }

    /// Reads as much as is read at a time. Returns whether there is more.
    fn read(&mut self, take: &mut impl FnMut(TailLine<'_>)) -> bool {
        let Tail { prefix, file: Some(file), rest, .. } = self else { return false };
        let mut reader = BufReader::with_capacity(LINE_LIMIT, file.take(TURN));
        loop {
            // What cannot be read now is read the next time.
            let read = reader.by_ref().take((LINE_LIMIT - rest.len()) as u64).read_until(b'\n', rest).unwrap_or(0);
            if rest.last() == Some(&b'\n') {
                take(TailLine { prefix, text: String::from_utf8_lossy(rest).trim_end(), is_partial: false });
                rest.clear();
            } else if rest.len() == LINE_LIMIT {
                let cut = rest.split_off(whole_characters(rest));
                take(TailLine { prefix, text: &String::from_utf8_lossy(rest), is_partial: true });
                *rest = cut;
            } else if read == 0 {
                return reader.get_ref().limit() == 0;
            }
        }
    }
}

fn inode(metadata: std::io::Result<Metadata>) -> Option<u64> {
    metadata.ok().map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_writer_that_has_ended_is_closed_with_its_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.log");
        let mut tails = Tails::default();
        tails.add(&path, String::new());
        std::fs::write(&path, "one\n").unwrap();
        assert_eq!(taken(&mut tails), ["one"]);
        tails.end(&path);
        // What was on its way comes.
        std::fs::write(&path, "one\ntwo\nthr").unwrap();
        assert_eq!(taken(&mut tails), ["two"]);
        let looked: Vec<String> = (0..=LAST_LOOKS).flat_map(|_| taken(&mut tails)).collect();
        assert_eq!(looked, ["thr"]);
        assert!(tails.files.is_empty());
        // One that was never there.
        tails.add(&folder.path().join("b.log"), String::new());
        tails.end(&folder.path().join("b.log"));
        (0..=LAST_LOOKS).for_each(|_| assert!(taken(&mut tails).is_empty()));
        assert!(tails.files.is_empty());
    }

    fn taken(tails: &mut Tails) -> Vec<String> {
        let mut taken = Vec::new();
        while tails.take(|line| taken.push(format!("{}{}", line.prefix, line.text))) {}
        taken
    }

    #[test]
    fn lines_come_when_they_are_whole_with_what_they_begin_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut tails = Tails::default();
        tails.add(&path, "(a) ".into());
        assert!(taken(&mut tails).is_empty(), "the file is not there yet");
        std::fs::write(&path, "one\ntw").unwrap();
        assert_eq!(taken(&mut tails), ["(a) one"]);
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        assert_eq!(taken(&mut tails), ["(a) two"]);
        // It goes on in new parts, of which one is in between already, and then the last is cut.
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        std::fs::rename(&path, folder.path().join("log.1")).unwrap();
        std::fs::write(folder.path().join("log.2"), "four\n").unwrap();
        std::fs::write(&path, "five, which is longer\n").unwrap();
        assert_eq!(taken(&mut tails), ["(a) three", "(a) four", "(a) five, which is longer"]);
        std::fs::write(&path, "six\n").unwrap();
        assert_eq!(taken(&mut tails), ["(a) six"]);
        let mut tails = Tails::default();
        tails.add(&path, String::new());
        assert_eq!(taken(&mut tails), ["one", "two", "three", "four", "six"], "from the oldest part on");
    }

    #[test]
    fn a_line_without_end_comes_in_pieces_of_whole_characters() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let text = format!("a{}\nb", "é".repeat(LINE_LIMIT));
        std::fs::write(&path, &text).unwrap();
        let mut tails = Tails::default();
        tails.add(&path, String::new());
        let (mut pieces, mut longest) = (String::new(), 0);
        let mut take = |line: TailLine<'_>| {
            longest = longest.max(line.text.len());
            pieces.push_str(line.text);
            pieces.extend((!line.is_partial).then_some('\n'));
        };
        while tails.take(&mut take) {}
        tails.take_rest(&mut take);
        assert!(pieces == text && longest <= LINE_LIMIT, "{longest}");
    }

    #[test]
    fn a_long_file_is_read_in_turns() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["one", "other"].map(|name| folder.path().join(name));
        let mut tails = Tails::default();
        for path in &paths {
            std::fs::write(path, "x\n".repeat(TURN as usize)).unwrap();
            tails.add(path, path.file_name().unwrap().to_string_lossy().into_owned());
        }
        let mut lines = BTreeMap::new();
        let mut take = |line: TailLine<'_>| *lines.entry(line.prefix.to_owned()).or_insert(0) += 1;
        assert!(tails.take(&mut take));
        assert_eq!(lines.values().collect::<Vec<_>>(), [&(TURN as usize / 2); 2]);
    }
}
