//! Points at which a test may have a process killed.
//!
//! In builds with debug assertions, a process that finds its point in `TRACER_TEST_KILL_AT` sends itself SIGKILL there, which is
//! what the kernel, an operator or the out-of-memory killer may do at any instruction. In other builds nothing of this exists.
//!
//! Every process of a head inherits the variable. So that only one of them dies, `TRACER_TEST_KILL_ONCE` names a file: whoever
//! creates it dies, and nobody does when it is there.

/// The variable: `<point>` or `<point>:<how-manieth time>`, from 1.
#[cfg(debug_assertions)]
const VARIABLE: &str = "TRACER_TEST_KILL_AT";

/// The variable that names the file.
#[cfg(debug_assertions)]
const ONCE_VARIABLE: &str = "TRACER_TEST_KILL_ONCE";

/// Dies here if a test has asked for it.
#[cfg(debug_assertions)]
pub fn point(name: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static WANTED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let wanted = WANTED.get_or_init(|| {
        let value = std::env::var(VARIABLE).ok()?;
        match value.split_once(':') {
            Some((point, time)) => Some((point.into(), time.parse().ok()?)),
            None => Some((value, 1)),
        }
    });
    if let Some((point, time)) = wanted
        && point == name
        && PASSED.fetch_add(1, Relaxed) + 1 == *time
        && std::env::var_os(ONCE_VARIABLE).is_none_or(|path| std::fs::File::create_new(path).is_ok())
    {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// Nothing.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn point(_name: &str) {}

/// The variable that names what a test wants to be without, with commas between.
#[cfg(debug_assertions)]
const WITHOUT_VARIABLE: &str = "TRACER_TEST_WITHOUT";

/// Returns whether a test wants this system to be without something that it may have.
#[cfg(debug_assertions)]
pub fn is_without(what: &str) -> bool {
    std::env::var(WITHOUT_VARIABLE).is_ok_and(|list| list.split(',').any(|named| named == what))
}

/// Returns false: in a release build nothing is taken away.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn is_without(_what: &str) -> bool {
    false
}

/// The variable that names a place and a file, as `<place>:<path>`: whoever comes to the place waits until the file is there.
#[cfg(debug_assertions)]
const HOLD_VARIABLE: &str = "TRACER_TEST_HOLD";

/// Waits here as long as a test wants.
#[cfg(debug_assertions)]
pub fn hold(place: &str) {
    let Some(value) = std::env::var_os(HOLD_VARIABLE).and_then(|value| value.into_string().ok()) else { return };
    if let Some((held, path)) = value.split_once(':')
        && held == place
    {
        while !std::path::Path::new(path).exists() {
            std::thread::park_timeout(std::time::Duration::from_millis(2));
        }
    }
}

/// Does nothing: in a release build nobody is held.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn hold(_place: &str) {}

/// The variable that changes settings which are no user's, as `<name>=<number>`.
#[cfg(debug_assertions)]
const SETTING_VARIABLE: &str = "TRACER_TEST_SETTING";

/// Returns the value that a test has set.
#[cfg(debug_assertions)]
pub fn setting(name: &str) -> Option<u64> {
    use std::sync::OnceLock;
    static SET: OnceLock<Option<(String, u64)>> = OnceLock::new();
    let set = SET.get_or_init(|| {
        let value = std::env::var(SETTING_VARIABLE).ok()?;
        let (name, number) = value.split_once('=')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    set.as_ref().filter(|(set, _)| set == name).map(|&(_, number)| number)
}

/// Returns none: in a release build nothing is set.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn setting(_name: &str) -> Option<u64> {
    None
}
