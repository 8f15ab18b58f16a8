//! A file that is known by its inode: whoever writes it may give it another name at any time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Attempts to open a file that is being renamed.
const ATTEMPTS: usize = 10;

/// Device and inode.
pub(crate) type Identity = (u64, u64);

/// Returns the identity of the file at a path.
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// A file by its identity, and the path at which it was last.
#[derive(Clone, Debug)]
pub(crate) struct KnownFile {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
}

impl KnownFile {
    /// Opens it at the name that it has now, and with `beside` the file that goes by that name too. Not found if it is gone.
    pub(crate) fn open_with<T>(&mut self, mut beside: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(File, T)> {
        for _ in 0..ATTEMPTS {
            match self.open_here(&mut beside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.find()?,
                opened => return opened,
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }

    /// Opens it.
    pub(crate) fn open(&mut self) -> io::Result<File> {
        self.open_with(|_| Ok(())).map(|(file, ())| file)
    }

    fn open_here<T>(&self, beside: &mut impl FnMut(&Path) -> io::Result<T>) -> io::Result<(File, T)> {
        let file = File::open(&self.path)?;
        let other = beside(&self.path)?;
        // It may have been renamed before the other was opened.
        if identity(&self.path)? == self.identity { Ok((file, other)) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Finds the name that it has now.
    fn find(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(self.path.parent().unwrap_or(Path::new(".")))? {
            let entry = entry?;
            if entry.ino() == self.identity.1 {
                self.path = entry.path();
                return Ok(());
            }
        }
        Err(io::ErrorKind::NotFound.into())
    }
}
