//! The files of the HTTP API in the folder of a session, which only its user can enter.
//!
//! ```text
//!   sessions/<time>-<pid>/
//!     http.token     0600   what clients have to show, in one line; new with each head
//!     http.json      0600   the address, and what is taken
//!     logs/http.log  0600   what the process has to say
//!   metrics.token    0600   what scrapers may show instead; made once, for every head of the place
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

use super::HttpSettings;
use tracer_ipc::private_file;

/// The file with the token.
pub(crate) fn token_path(session_dir: &Path) -> PathBuf {
    session_dir.join("http.token")
}

/// The file with the token of scrapers, in the folder that heads have one after the other.
pub(crate) fn metrics_token_path(session_dir: &Path) -> PathBuf {
    of_place(session_dir).join("metrics.token")
}

/// The file in which the process of the HTTP API counts its requests.
pub(super) fn request_metrics_path(session_dir: &Path) -> PathBuf {
    of_place(session_dir).join("metrics.http")
}

/// The folder of the place that a session is in: `<place>/sessions/<session>`.
pub(super) fn of_place(session_dir: &Path) -> &Path {
    session_dir.parent().and_then(Path::parent).unwrap_or(session_dir)
}

fn settings_path(session_dir: &Path) -> PathBuf {
    session_dir.join("http.json")
}

/// Makes a token, and writes both files; also the token of scrapers, if there is none yet.
pub(crate) fn write(session_dir: &Path, settings: &HttpSettings) -> io::Result<()> {
    let of_scrapers = metrics_token_path(session_dir);
    if fs::metadata(&of_scrapers).map_or(true, |found| found.len() == 0) {
        let unfinished = of_scrapers.with_extension("token.new");
        private_file::replace(&of_scrapers, &unfinished, format!("{}\n", new_token()?).as_bytes())?;
    }
    create(&token_path(session_dir))?.write_all(format!("{}\n", new_token()?).as_bytes())?;
    create(&settings_path(session_dir))?.write_all(&serde_json::to_vec(settings).map_err(io::Error::other)?)
}

/// Removes the token: nobody is let in with it any more.
pub(crate) fn remove(session_dir: &Path) {
    // One that stays is of no use to anybody.
    let _ = fs::remove_file(token_path(session_dir));
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Reads what [`write`] has written.
pub(super) fn read(session_dir: &Path) -> io::Result<(String, HttpSettings)> {
    let token = fs::read_to_string(token_path(session_dir))?.trim_end().to_owned();
    let settings = serde_json::from_slice(&fs::read(settings_path(session_dir))?).map_err(io::Error::other)?;
    if token.is_empty() { Err(io::Error::other("the token is empty")) } else { Ok((token, settings)) }
}

/// Reads the token of scrapers.
pub(super) fn read_metrics_token(session_dir: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(metrics_token_path(session_dir))?.trim_end().to_owned())
}

/// 256 random bits, in hexadecimal.
pub(crate) fn new_token() -> io::Result<String> {
    let mut bits = [0; 32];
    let mut filled = 0;
    while filled < bits.len() {
        filled += getrandom(&mut bits[filled..], GetRandomFlags::empty())?;
    }
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_token_is_long_new_each_time_and_for_its_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut tokens = Vec::new();
        for session in ["a", "b"] {
            let dir = folder.path().join(session);
            fs::create_dir(&dir).unwrap();
            let settings =
                HttpSettings { address: "[::1]:80".parse().unwrap(), allows_commands: true, is_metrics_only: false };
            write(&dir, &settings).unwrap();
            assert_eq!(fs::metadata(token_path(&dir)).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::metadata(settings_path(&dir)).unwrap().permissions().mode() & 0o777, 0o600);
            let (token, read) = read(&dir).unwrap();
            assert_eq!((token.len(), read), (64, settings));
            assert!(write(&dir, &settings).is_err(), "a token that is there is not written over");
            tokens.push(token);
        }
        assert_ne!(tokens[0], tokens[1]);
    }
}
