//! The log of a process: lines about hooks and modules that are no error of whoever called.
//!
//! The processes of the `tracer` command have a standard error that is a log, or that somebody watches. The standard error of a program that
//! uses the library belongs to that program, so its lines go to a file of the session: `logs/program-PID.log`.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

/// True if this process is one of the `tracer` command.
static HAS_STANDARD_ERROR: AtomicBool = AtomicBool::new(false);
/// The folder of the session that this process traces in.
static SESSION: Mutex<Option<PathBuf>> = Mutex::new(None);
/// Limit on the bytes of a program's log.
const MAX_BYTES: u64 = 1 << 20;

/// Makes standard error the log, as it is in the processes of the `tracer` command.
pub fn log_to_standard_error() {
    HAS_STANDARD_ERROR.store(true, Ordering::Relaxed);
}

/// Makes a file in the session's folder the log, unless standard error is.
pub fn log_in(session_dir: &Path) {
    *SESSION.lock().unwrap_or_else(PoisonError::into_inner) = Some(session_dir.into());
}

/// Writes a line. In a program that is in no session there is no log, and the line is dropped.
pub(super) fn log(line: &str) {
    if HAS_STANDARD_ERROR.load(Ordering::Relaxed) {
        eprintln!("tracer: {line}");
        return;
    }
    let session = SESSION.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(session_dir) = &*session {
        // A line that cannot be written is no reason to stop the program.
        let _ = append(&session_dir.join(format!("logs/program-{}.log", std::process::id())), line);
    }
}

fn append(path: &Path, line: &str) -> std::io::Result<()> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(no_follow).open(path)?;
    if file.metadata()?.len() < MAX_BYTES {
        file.write_all(format!("tracer: {line}\n").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_its_log_in_the_session_and_bounded() {
        let session = tempfile::tempdir().unwrap();
        std::fs::create_dir(session.path().join("logs")).unwrap();
        log("said in no session");
        log_in(session.path());
        log("a warning");
        let path = session.path().join(format!("logs/program-{}.log", std::process::id()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "tracer: a warning\n");
        let line = "x".repeat(1 << 16);
        (0..40).for_each(|_| log(&line));
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!((MAX_BYTES..MAX_BYTES + 2 * line.len() as u64).contains(&bytes), "{bytes}");
    }
}
