//! Python, for what others wrote in it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::skip::skip;

/// Returns a Python that can import `module`: what `PYTHON` says, else the system's. None, which skips the test, when there is none.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let candidates = [std::env::var_os("PYTHON").map(PathBuf::from), Some("python3".into())];
    let found = candidates.into_iter().flatten().find(|python| {
        let mut check = Command::new(python);
        check.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
        check.status().is_ok_and(|status| status.success())
    });
    if found.is_none() {
        skip("python3 modules", format_args!("`{module}`; PYTHON can name a Python that has it"));
    }
    found
}
