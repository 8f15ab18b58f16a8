//! Parcels: finished spans on their way to an exporter, each a file in the `handover` folder of a session.
//!
//! A process puts spans aside that its exporter cannot take in now, and the head those that a dead process had not delivered. The
//! head offers parcels to living workers, and removes each when its spans are delivered. All there is to know of one is in its
//! name, so that a head that is killed loses nothing:
//!
//! `<whence>.<hooks that want it, in hexadecimal>.<mark of those hooks>.<spans>.otlp`

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Spans in a parcel at most, as in a batch of the SDK's.
pub const PARCEL_SPANS: usize = 512;
const EXTENSION: &str = "otlp";

/// A parcel that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// Its file.
    pub path: PathBuf,
    /// The hooks that want it, as [bits](super::hooks).
    pub hooks: u32,
    /// The mark of the hooks of the session that it is from.
    pub mark: u32,
    /// Number of spans.
    pub spans: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Parcel {
    /// Makes a parcel: it is there whole, or not at all. `whence` has no dot; a parcel of the same name is replaced.
    pub fn write(
        folder: &Path,
        whence: &str,
        hooks: u32,
        mark: u32,
        spans: usize,
        request: &[u8],
    ) -> io::Result<Parcel> {
        let name = format!("{whence}.{hooks:x}.{mark:08x}.{spans}.{EXTENSION}");
        let unfinished = folder.join(format!("{name}.part"));
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?.write_all(request)?;
            fs::rename(&unfinished, folder.join(&name))
        };
        write().inspect_err(|_| {
            let _ = fs::remove_file(&unfinished);
        })?;
        Ok(Parcel { path: folder.join(name), hooks, mark, spans: spans as u64, bytes: request.len() as u64 })
    }

    /// Reads what a file's name says; none when it is no parcel's.
    pub fn of_file(path: PathBuf) -> Option<Parcel> {
        let name = path.file_name()?.to_str()?.strip_suffix(EXTENSION)?.strip_suffix('.')?;
        let mut parts = name.rsplitn(4, '.');
        let spans = parts.next()?.parse().ok()?;
        let mark = u32::from_str_radix(parts.next()?, 16).ok()?;
        let hooks = u32::from_str_radix(parts.next()?, 16).ok()?;
        parts.next()?;
        let bytes = fs::metadata(&path).ok()?.len();
        Some(Parcel { path, hooks, mark, spans, bytes })
    }

    /// Returns the parcels in a folder, the oldest first.
    pub fn list(folder: &Path) -> Vec<Parcel> {
        let files = folder.read_dir().into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        let mut parcels: Vec<_> = files.filter_map(Parcel::of_file).collect();
        parcels.sort_by_cached_key(|parcel| fs::metadata(&parcel.path).and_then(|it| it.modified()).ok());
        parcels
    }

    /// Says that only these hooks still want it.
    pub fn restrict(&mut self, hooks: u32) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("")).to_owned();
        self.move_to(&folder, hooks, self.mark)
    }

    /// Moves it to this folder, for these hooks of the session with this mark.
    pub fn move_to(&mut self, folder: &Path, hooks: u32, mark: u32) -> io::Result<()> {
        let path = self.name_in(folder, hooks, mark);
        fs::rename(&self.path, &path)?;
        (self.path, self.hooks, self.mark) = (path, hooks, mark);
        Ok(())
    }

    /// Makes a second parcel of the same spans in this folder, for these hooks of the session with this mark. One of the same name is replaced.
    pub fn link_to(&self, folder: &Path, hooks: u32, mark: u32) -> io::Result<Parcel> {
        let path = self.name_in(folder, hooks, mark);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::hard_link(&self.path, &path)?,
        }
        Ok(Parcel { path, hooks, mark, ..self.clone() })
    }

    fn name_in(&self, folder: &Path, hooks: u32, mark: u32) -> PathBuf {
        let name = self.path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let whence = name.split('.').next().unwrap_or_default();
        folder.join(format!("{whence}.{hooks:x}.{mark:08x}.{}.{EXTENSION}", self.spans))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_says_all_in_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let mut parcel = Parcel::write(folder.path(), "worker-1-77-0", 6, 0xabc, 12, b"spans").unwrap();
        assert_eq!(parcel.path.file_name().unwrap(), "worker-1-77-0.6.00000abc.12.otlp");
        assert_eq!(Parcel::list(folder.path()), [parcel.clone()]);
        parcel.restrict(4).unwrap();
        assert_eq!(Parcel::list(folder.path()), [parcel]);
        fs::write(folder.path().join("worker-1.6.00000abc.12.otlp.part"), "half").unwrap();
        fs::write(folder.path().join("other"), "").unwrap();
        assert_eq!(Parcel::list(folder.path()).len(), 1);
    }
}
