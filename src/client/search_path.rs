//! The variables by which a caller finds its programs.
//!
//! A head has the environment that it was started in, and a shell in which a virtual environment was activated since then has another `PATH`. A caller expects the
//! programs of its own. Where the head has the same variables nothing is sent, so a task is no longer than before.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// The variables: the folders of programs, and the virtual environment that is active, which programs in it ask for.
const VARIABLES: [&str; 3] = ["PATH", "VIRTUAL_ENV", "CONDA_PREFIX"];

/// Returns those of this process that differ from those that its head was started with.
pub fn differing(head_pid: u32) -> Vec<(&'static str, OsString)> {
    // A head that cannot be looked at may have any.
    let head = std::fs::read(format!("/proc/{head_pid}/environ")).unwrap_or_default();
    VARIABLES
        .into_iter()
        .filter_map(|name| {
            let own = std::env::var_os(name)?;
            (value(&head, name) != Some(own.as_bytes())).then_some((name, own))
        })
        .collect()
}

/// Returns the value of a variable in an environment as the kernel shows it.
fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    environment.split(|&byte| byte == 0).find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"MANPATH=/a\0PATHS=/b\0PATH=/c=d\0EMPTY=\0";
        assert_eq!(value(environment, "PATH"), Some(&b"/c=d"[..]));
        assert_eq!((value(environment, "EMPTY"), value(environment, "HOME")), (Some(&b""[..]), None));
    }

    #[test]
    fn a_head_with_the_environment_of_the_caller_is_sent_nothing() {
        assert_eq!(differing(std::process::id()), []);
        assert_eq!(differing(0).len(), VARIABLES.iter().filter(|name| std::env::var_os(name).is_some()).count());
    }
}
