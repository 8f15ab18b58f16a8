//! Lines that files of the session get, as they come.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
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

    /// Takes the lines that have come.
    pub(in super::super) fn take(&mut self, mut tell: impl FnMut(&str)) {
        for (path, tail) in &mut self.files {
            if tail.file.is_none() {
                tail.file = File::open(path).ok();
            }
            tail.read(&mut tell);
        }
    }
}

impl Tails {
    /// Takes what is left of lines that have not come to their end.
    pub(in super::super) fn take_rest(&mut self, mut tell: impl FnMut(&str)) {
        for tail in self.files.values_mut().filter(|tail| !tail.rest.is_empty()) {
            tell(&format!("{}{}", tail.prefix, String::from_utf8_lossy(&std::mem::take(&mut tail.rest))));
        }
    }
}

impl Tail {
    fn read(&mut self, tell: &mut impl FnMut(&str)) {
        let Some(file) = &mut self.file else { return };
        // What cannot be read now is read the next time.
        let _ = file.read_to_end(&mut self.rest);
        while let Some(length) = self.rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1) {
            let line: Vec<u8> = self.rest.drain(..length).collect();
            tell(&format!("{}{}", self.prefix, String::from_utf8_lossy(&line).trim_end()));
        }
        if self.rest.len() > LINE_LIMIT {
            let line = std::mem::take(&mut self.rest);
            tell(&format!("{}{}", self.prefix, String::from_utf8_lossy(&line)));
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
        tails.take(|line| taken.push(line.to_owned()));
        assert!(taken.is_empty(), "the file is not there yet");
        std::fs::write(&path, "one\ntw").unwrap();
        tails.take(|line| taken.push(line.to_owned()));
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        tails.take(|line| taken.push(line.to_owned()));
        assert_eq!(taken, ["(a) one", "(a) two"]);
    }
}
