//! The files of the HTTP API in the folder of a session, which only its user can enter.
//!
//! ```text
//!   sessions/<time>-<pid>/
//!     http.token     0600   what clients have to show, in one line; new with each head
//!     viewer.token   0600   what is enough to read; pages get it for the code of a link
//!     control.token  0600   what is enough to read and to cancel tasks; the same
//!     http.json      0600   the address, and what is taken
//!     logs/http.log  0600   what the process has to say
//!   metrics.token    0600   what scrapers may show instead; made once, for every head of the place
//!   otlp.token       0600   what senders of OTLP have to show; the same
//! ```

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tracer_core::address::LoopbackAddress;

use crate::private_file;
use crate::session::place_of;

/// Settings of a head's HTTP API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpSettings {
    /// Address that it listens on.
    pub address: LoopbackAddress,
    /// True if commands are taken, and not only functions.
    pub allows_commands: bool,
    /// True if the API itself is not served, and only `GET /metrics` is answered and what else is asked for.
    #[serde(default)]
    pub is_metrics_only: bool,
    /// True if OTLP is received.
    #[serde(default)]
    pub receives_otlp: bool,
}

/// Returns the file with the token.
pub fn token_path(session_dir: &Path) -> PathBuf {
    session_dir.join("http.token")
}

/// Returns the file with the token of those who only read.
pub fn viewer_token_path(session_dir: &Path) -> PathBuf {
    session_dir.join("viewer.token")
}

/// Returns the file with the token of pages that may cancel tasks.
pub fn control_token_path(session_dir: &Path) -> PathBuf {
    session_dir.join("control.token")
}

/// Returns the file with the token of scrapers, in the folder that heads have one after the other.
pub fn metrics_token_path(session_dir: &Path) -> PathBuf {
    place_of(session_dir).join("metrics.token")
}

/// Returns the file with the token of those who send OTLP, in the same folder.
pub fn otlp_token_path(session_dir: &Path) -> PathBuf {
    place_of(session_dir).join("otlp.token")
}

/// Returns the file in which the process of the HTTP API counts its requests.
pub fn request_metrics_path(session_dir: &Path) -> PathBuf {
    place_of(session_dir).join("metrics.http")
}

/// Returns the file in which the head counts tasks, in its place.
pub fn head_metrics_path(temp_dir: &Path) -> PathBuf {
    temp_dir.join("metrics")
}

fn settings_path(session_dir: &Path) -> PathBuf {
    session_dir.join("http.json")
}

/// Makes the session's tokens, and writes them and the settings; also the tokens of scrapers and senders, if there are none yet.
pub fn write(session_dir: &Path, settings: &HttpSettings) -> io::Result<()> {
    make_lasting_token(&metrics_token_path(session_dir))?;
    if settings.receives_otlp {
        make_lasting_token(&otlp_token_path(session_dir))?;
    }
    // A head that goes on with a session goes on with its tokens.
    for path in tokens_of_session(session_dir) {
        make_lasting_token(&path)?;
    }
    let path = settings_path(session_dir);
    let settings = serde_json::to_vec(settings).map_err(io::Error::other)?;
    private_file::replace(&path, &path.with_extension("json.new"), &settings)
}

/// Makes a token, if there is none yet.
fn make_lasting_token(path: &Path) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|found| found.len() > 0) {
        return Ok(());
    }
    let unfinished = path.with_extension("token.new");
    private_file::replace(path, &unfinished, format!("{}\n", new_token()?).as_bytes())
}

fn tokens_of_session(session_dir: &Path) -> [PathBuf; 3] {
    [token_path(session_dir), viewer_token_path(session_dir), control_token_path(session_dir)]
}

/// Removes the session's tokens: nobody is let in with them any more.
pub fn remove(session_dir: &Path) {
    for path in tokens_of_session(session_dir) {
        // One that stays is of no use to anybody.
        let _ = fs::remove_file(path);
    }
}

/// The tokens of a session.
pub struct Tokens {
    pub full: String,
    pub viewer: String,
    pub control: String,
}

/// Reads what [`write()`] has written.
pub fn read(session_dir: &Path) -> io::Result<(Tokens, HttpSettings)> {
    let tokens = Tokens {
        full: read_token(&token_path(session_dir))?,
        viewer: read_token(&viewer_token_path(session_dir))?,
        control: read_token(&control_token_path(session_dir))?,
    };
    let settings = serde_json::from_slice(&fs::read(settings_path(session_dir))?).map_err(io::Error::other)?;
    Ok((tokens, settings))
}

/// Reads the token of scrapers.
pub fn read_metrics_token(session_dir: &Path) -> io::Result<String> {
    read_token(&metrics_token_path(session_dir))
}

/// Reads the token of senders of OTLP.
pub fn read_otlp_token(session_dir: &Path) -> io::Result<String> {
    read_token(&otlp_token_path(session_dir))
}

fn read_token(path: &Path) -> io::Result<String> {
    let token = fs::read_to_string(path)?.trim_end().to_owned();
    if token.is_empty() {
        return Err(io::Error::other(format!("the token in `{}` is empty", path.display())));
    }
    Ok(token)
}

/// Returns where the head of a session receives OTLP, and the token; none when it does not.
pub fn receiver(session_dir: &Path) -> Option<(String, String)> {
    let settings: HttpSettings = serde_json::from_slice(&fs::read(settings_path(session_dir)).ok()?).ok()?;
    let token = settings.receives_otlp.then(|| read_otlp_token(session_dir).ok())??;
    Some((settings.address.url(), token))
}

/// 256 random bits, in hexadecimal.
pub fn new_token() -> io::Result<String> {
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
            let dir = folder.path().join("sessions").join(session);
            fs::create_dir_all(&dir).unwrap();
            let settings = HttpSettings {
                address: "[::1]:80".parse().unwrap(),
                allows_commands: true,
                is_metrics_only: false,
                receives_otlp: false,
            };
            write(&dir, &settings).unwrap();
            for path in tokens_of_session(&dir).into_iter().chain([settings_path(&dir)]) {
                assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
            }
            let (found, read) = read(&dir).unwrap();
            assert_eq!(read, settings);
            write(&dir, &settings).unwrap();
            let again = super::read(&dir).unwrap().0;
            assert_eq!(again.full, found.full, "a head that goes on with a session goes on with its tokens");
            let other = HttpSettings { allows_commands: false, ..settings };
            write(&dir, &other).unwrap();
            let (again, read) = super::read(&dir).unwrap();
            assert_eq!((again.full, read), (found.full.clone(), other), "also with other settings");
            tokens.extend([found.full, found.viewer, found.control]);
        }
        assert!(tokens.iter().all(|token| token.len() == 64));
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 6);
    }
}
