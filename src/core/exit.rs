//! The exit codes of `tracer`. They are an interface: scripts rely on them.
//!
//! A command task's own exit code is not among them; where `tracer` passes one on, it says so in that command's help.

/// It went well.
pub const OK: u8 = 0;
/// The task failed, or the command could not do what it was asked.
pub const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
pub const USAGE: u8 = 2;
/// No head is running.
pub const NO_HEAD: u8 = 3;
/// The tracing hook was refused.
pub const HOOK_REFUSED: u8 = 4;
/// A head is already running in this place.
pub const HEAD_RUNNING: u8 = 5;
/// `tracer doctor` found something to mend, and no error.
pub const WARNED: u8 = 6;
/// It timed out.
pub const TIMED_OUT: u8 = 124;
/// The program was found and cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program was not found.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that killed the program; see [`from_signal`].
pub const SIGNAL_BASE: u8 = 128;
/// Interrupted with Ctrl-C: [`from_signal`] of SIGINT.
pub const INTERRUPTED: u8 = 130;

/// Returns the exit code for a program that was killed by `signal`. Signal numbers that do not fit give 255.
pub fn from_signal(signal: i32) -> u8 {
    u8::try_from(signal).ok().and_then(|signal| SIGNAL_BASE.checked_add(signal)).unwrap_or(u8::MAX)
}

/// The table of exit codes, as `--help` prints it.
pub const HELP: &str = "\
Exit codes:
    0  it went well
    1  the task failed, or the command could not do what it was asked
    2  the command line or the configuration is wrong
    3  no head is running
    4  the tracing hook was refused
    5  a head is already running in this place
    6  `doctor` found something to mend, and no error
  124  it timed out
  126  the program cannot be executed
  127  the program was not found
128+n  the program was killed by signal n
  130  interrupted with Ctrl-C";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_and_constants_agree() {
        let documented: Vec<&str> =
            HELP.lines().skip(1).map(|line| line.split_whitespace().next().expect("a line has a code")).collect();
        let constants = [
            OK.to_string(),
            FAILED.to_string(),
            USAGE.to_string(),
            NO_HEAD.to_string(),
            HOOK_REFUSED.to_string(),
            HEAD_RUNNING.to_string(),
            WARNED.to_string(),
            TIMED_OUT.to_string(),
            NOT_EXECUTABLE.to_string(),
            NOT_FOUND.to_string(),
            format!("{SIGNAL_BASE}+n"),
            INTERRUPTED.to_string(),
        ];
        assert_eq!(documented, constants);
    }

    #[test]
    fn codes_never_change() {
        assert_eq!(
            [
                OK,
                FAILED,
                USAGE,
                NO_HEAD,
                HOOK_REFUSED,
                HEAD_RUNNING,
                WARNED,
                TIMED_OUT,
                NOT_EXECUTABLE,
                NOT_FOUND,
                INTERRUPTED
            ],
            [0, 1, 2, 3, 4, 5, 6, 124, 126, 127, 130]
        );
    }

    #[test]
    fn a_signal_is_added_to_128() {
        for (signal, expected) in [(2, INTERRUPTED), (9, 137), (15, 143), (64, 192), (127, 255), (128, 255), (-1, 255)]
        {
            assert_eq!(from_signal(signal), expected, "signal {signal}");
        }
    }
}
