//! Large values, in files of their own: they pass the head by name only.
//!
//! A value of [`STORED_FROM`] bytes or more, an argument or a result, is written to a file in the folder `values` of the head's place by whoever
//! has it, and read by whoever needs it. The head removes the file when nobody needs it any more: an argument's with the
//! end of its task, a result's when it was taken by the only one who had its handle, or when it is forgotten. When a head
//! ends, it removes all; a head that takes over from one that was killed removes what no task that it restores knows.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::hook::now_unix_nano;
use crate::protocol::wire::{Put, Take, WireError};

/// Values of so many bytes, encoded, are stored.
pub const STORED_FROM: usize = 256 << 10;

/// A value in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stored {
    /// The name of the file, in the folder of the values; empty once it was removed.
    pub name: String,
    /// How long it is.
    pub bytes: u64,
}

/// A stored value that cannot be had.
#[derive(Debug)]
pub enum StoredError {
    /// Nobody needed it any more.
    Removed {
        /// How long it was.
        bytes: u64,
    },
    /// The file cannot be read, or is not what was written.
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for StoredError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoredError::Removed { bytes } => write!(f, "the value, of {bytes} bytes, is not kept any more"),
            StoredError::Unreadable { path, reason } => {
                write!(f, "the value in `{}` cannot be read: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for StoredError {}

impl Stored {
    /// Appends it.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_str(&self.name);
        out.put_u64(self.bytes);
    }

    /// Takes one. Its name is one that [`store`] gives, or empty, and so no way out of the folder.
    pub(crate) fn take(take: &mut Take<'_>) -> Result<Stored, WireError> {
        let stored = Stored { name: take.str()?.to_owned(), bytes: take.u64()? };
        let is_known = stored.name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        if is_known { Ok(stored) } else { Err(WireError::UnknownValue("name of a value")) }
    }
}

/// Where the values of a session's place are.
pub fn folder(session_dir: &Path) -> PathBuf {
    let place = session_dir.parent().and_then(Path::parent).unwrap_or(session_dir);
    place.join("values")
}

/// Writes a value to a file of its own.
pub fn store(folder: &Path, value: &[u8]) -> io::Result<Stored> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    // The time tells processes of one number apart.
    let name = format!("{}-{}-{count}", std::process::id(), now_unix_nano());
    let path = folder.join(&name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    if let Err(error) = file.write_all(value) {
        let _ = fs::remove_file(&path);
        return Err(error);
    }
    Ok(Stored { name, bytes: value.len() as u64 })
}

/// Reads a value.
pub fn load(folder: &Path, stored: &Stored) -> Result<Vec<u8>, StoredError> {
    if stored.name.is_empty() {
        return Err(StoredError::Removed { bytes: stored.bytes });
    }
    let path = folder.join(&stored.name);
    let mut value = Vec::with_capacity(usize::try_from(stored.bytes).unwrap_or(0));
    match File::open(&path).and_then(|mut file| file.read_to_end(&mut value)) {
        Ok(_) if value.len() as u64 == stored.bytes => Ok(value),
        Ok(_) => {
            let reason = format!("it has {} bytes, but {} were written", value.len(), stored.bytes);
            Err(StoredError::Unreadable { path, reason })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoredError::Removed { bytes: stored.bytes }),
        Err(error) => Err(StoredError::Unreadable { path, reason: error.to_string() }),
    }
}

/// Removes the values that `is_needed` does not know.
pub(crate) fn remove_others(folder: &Path, is_needed: impl Fn(&str) -> bool) {
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
        assert_eq!(load(folder.path(), &first).unwrap(), b"one");
        remove_others(folder.path(), |name| name == second.name);
        assert_eq!(load(folder.path(), &second).unwrap(), b"two");
        let error = load(folder.path(), &first).unwrap_err().to_string();
        assert_eq!(error, "the value, of 3 bytes, is not kept any more");
        fs::write(folder.path().join(&second.name), b"tw").unwrap();
        let error = load(folder.path(), &second).unwrap_err().to_string();
        assert!(error.ends_with("cannot be read: it has 2 bytes, but 3 were written"), "{error}");
        assert!(store(&folder.path().join("none"), b"x").is_err());
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        for name in ["../1", "/etc/passwd", "1/2", "."] {
            let mut bytes = Vec::new();
            Stored { name: name.into(), bytes: 1 }.put(&mut bytes);
            assert!(Stored::take(&mut Take::new(&bytes)).is_err(), "{name}");
        }
    }
}
