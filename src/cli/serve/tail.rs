//! Lines that files of the session get, as they come.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The longest line that is waited for; what is longer comes in pieces.
const LINE_LIMIT: usize = 64 << 10;

/// Files that are read as they grow, each with what its lines begin with.
#[derive(Debug, Default)]
pub(in super::super) struct Tails {
    files: BTreeMap<PathBuf, Tail>,
}

#[derive(Debug)]
struct Tail {
    prefix: String,
    /// None until the file is there.
    file: Option<File>,
    /// A line that is not at its end.
    rest: Vec<u8>,
}

impl Tails {
    /// Reads a file too, from its beginning.
    pub(in super::super) fn add(&mut self, path: &Path, prefix: String) {
        self.files.entry(path.into()).or_insert(Tail { prefix, file: None, rest: Vec::new() });
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

    /// Takes the lines that have come, each with what it is to begin with.
    pub(in super::super) fn take(&mut self, mut tell: impl FnMut(&str, &str)) {
        for (path, tail) in &mut self.files {
            if tail.file.is_none() {
                tail.file = File::open(path).ok();
            }
            tail.begin_again_if_cut();
            tail.read(&mut tell);
            if tail.is_replaced(path) {
                // The log goes on in a new part.
                tail.file = File::open(path).ok();
                tail.read(&mut tell);
            }
        }
    }
}

impl Tails {
    /// Takes what is left of lines that have not come to their end.
    pub(in super::super) fn take_rest(&mut self, mut tell: impl FnMut(&str, &str)) {
        for tail in self.files.values_mut().filter(|tail| !tail.rest.is_empty()) {
            tell(&tail.prefix, &String::from_utf8_lossy(&std::mem::take(&mut tail.rest)));
        }
    }
}

impl Tail {
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
        let inode = |metadata: std::io::Result<Metadata>| metadata.ok().map(|metadata| metadata.ino());
        let now = inode(std::fs::metadata(path));
        now.is_some() && self.file.as_ref().is_some_and(|file| inode(file.metadata()) != now)
    }

    fn read(&mut self, tell: &mut impl FnMut(&str, &str)) {
        let Some(file) = &mut self.file else { return };
        // What cannot be read now is read the next time.
        let _ = file.read_to_end(&mut self.rest);
        while let Some(length) = self.rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1) {
            let line: Vec<u8> = self.rest.drain(..length).collect();
            tell(&self.prefix, String::from_utf8_lossy(&line).trim_end());
        }
        if self.rest.len() > LINE_LIMIT {
            let line = std::mem::take(&mut self.rest);
            tell(&self.prefix, &String::from_utf8_lossy(&line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_when_they_are_whole_with_what_they_begin_with() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut tails = Tails::default();
        tails.add(&path, "(a) ".into());
        let mut taken = Vec::new();
        tails.take(|prefix, line| taken.push(format!("{prefix}{line}")));
        assert!(taken.is_empty(), "the file is not there yet");
        std::fs::write(&path, "one\ntw").unwrap();
        tails.take(|prefix, line| taken.push(format!("{prefix}{line}")));
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        tails.take(|prefix, line| taken.push(format!("{prefix}{line}")));
        assert_eq!(taken, ["(a) one", "(a) two"]);
        // It goes on in a new part, and then that is cut.
        std::fs::write(&path, "one\ntwo\nthree\n").unwrap();
        std::fs::rename(&path, folder.path().join("log.1")).unwrap();
        std::fs::write(&path, "four, which is longer\n").unwrap();
        tails.take(|prefix, line| taken.push(format!("{prefix}{line}")));
        std::fs::write(&path, "five\n").unwrap();
        tails.take(|prefix, line| taken.push(format!("{prefix}{line}")));
        assert_eq!(taken[2..], ["(a) three", "(a) four, which is longer", "(a) five"]);
    }
}
