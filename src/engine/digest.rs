//! Digests of the libraries of modules, by which nodes tell whether they run the same.

#[cfg(feature = "nats")]
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

#[cfg(feature = "nats")]
use ring::digest::{Context, SHA256};
use tracer_core::hex::hex;
use tracer_ipc::protocol::Digest;

/// Digits of a digest that people are shown.
const SHORT: usize = 12;

/// Returns the SHA-256 of a file, as `sha256sum` shows it.
#[cfg(feature = "nats")]
pub fn of_file(path: &Path) -> io::Result<Digest> {
    let mut context = Context::new(&SHA256);
    read(path, |piece| context.update(piece))?;
    let mut digest = Digest::default();
    digest.copy_from_slice(context.finish().as_ref());
    Ok(digest)
}

/// Lends the pieces of a file, one after another.
#[cfg(feature = "nats")]
fn read(path: &Path, mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => each(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the first digits of a digest.
pub fn short(digest: &Digest) -> String {
    let mut digits = hex(digest);
    digits.truncate(SHORT);
    digits
}
