//! The files of the HTTP API in the folder of a session, which only its user can enter.
//!
//! ```text
//!   sessions/<time>-<pid>/
//!     http.token     0600   what clients have to show, in one line; new with each head
//!     http.json      0600   the address, and what is taken
//!     logs/http.log  0600   what the process has to say
//!   metrics.token    0600   what scrapers may show instead; made once, for every head of the place
//!   otlp.token       0600   what senders of OTLP have to show; the same
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

use super::HttpSettings;
use crate::session::place_of;
use tracer_ipc::private_file;

/// Returns the file with the token.
pub(crate) fn token_path(session_dir: &Path) -> PathBuf {
    session_dir.join("http.token")
}

/// Returns the file with the token of scrapers, in the folder that heads have one after the other.
pub(crate) fn metrics_token_path(session_dir: &Path) -> PathBuf {
    place_of(session_dir).join("metrics.token")
}

/// Returns the file with the token of those who send OTLP, in the same folder.
pub(crate) fn otlp_token_path(session_dir: &Path) -> PathBuf {
    place_of(session_dir).join("otlp.token")
}

/// Returns the file in which the process of the HTTP API counts its requests.
pub(super) fn request_metrics_path(session_dir: &Path) -> PathBuf {
    place_of(session_dir).join("metrics.http")
}

fn settings_path(session_dir: &Path) -> PathBuf {
    session_dir.join("http.json")
}

/// Makes a token, and writes both files; also the tokens of scrapers and senders, if there are none yet.
pub(crate) fn write(session_dir: &Path, settings: &HttpSettings) -> io::Result<()> {
    make_lasting_token(&metrics_token_path(session_dir))?;
    if settings.receives_otlp {
        make_lasting_token(&otlp_token_path(session_dir))?;
    }
    // A head that goes on with a session goes on with its token.
    if read(session_dir).is_ok_and(|(_, written)| written == *settings) {
        return Ok(());
    }
    create(&token_path(session_dir))?.write_all(format!("{}\n", new_token()?).as_bytes())?;
    create(&settings_path(session_dir))?.write_all(&serde_json::to_vec(settings).map_err(io::Error::other)?)
}

/// Makes a token for every head of the place, if there is none yet.
fn make_lasting_token(path: &Path) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        return Ok(());
    }
    let unfinished = path.with_extension("token.new");
    private_file::replace(path, &unfinished, format!("{}\n", new_token()?).as_bytes())
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

/// Reads the token of senders of OTLP.
pub(super) fn read_otlp_token(session_dir: &Path) -> io::Result<String> {
    let token = fs::read_to_string(otlp_token_path(session_dir))?.trim_end().to_owned();
    if token.is_empty() { Err(io::Error::other("the token is empty")) } else { Ok(token) }
}

/// Returns where the head of a session receives OTLP, and the token; none when it does not.
pub(crate) fn receiver(session_dir: &Path) -> Option<(String, String)> {
    let settings: HttpSettings = serde_json::from_slice(&fs::read(settings_path(session_dir)).ok()?).ok()?;
    let token = settings.receives_otlp.then(|| read_otlp_token(session_dir).ok())??;
    Some((settings.address.url(), token))
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
            let settings = HttpSettings {
                address: "[::1]:80".parse().unwrap(),
                allows_commands: true,
                is_metrics_only: false,
                receives_otlp: false,
            };
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
