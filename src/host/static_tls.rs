//! Room for thread-local variables of libraries that are loaded while a process runs.
//!
//! A library with a fast allocator, such as mimalloc or jemalloc, wants its thread-local variables, and those of all that is linked into it, in the
//! block that each thread has from its start (`readelf -d` says `STATIC_TLS`). glibc keeps 1,664 bytes of it free for libraries that come later: room for one
//! or two. Nothing but the environment of a new process makes that more, so processes that load modules are executed with a tunable of glibc
//! (`ld.so --list-tunables`), and put their environment back before anything else: what they start has nothing of it.

use std::ffi::{OsStr, OsString};
use std::process::Command;

/// The environment variable for the tunables of glibc.
pub const TUNABLES_VARIABLE: &str = "GLIBC_TUNABLES";
/// The environment variable that says what the tunables were before; present in a process that was executed with room.
pub const BEFORE_VARIABLE: &str = "TRACER_TUNABLES_BEFORE";
/// The tunable for the bytes that are kept free, and its value: tens of libraries with an allocator, and a small part of the stack of a thread.
const TUNABLE: &str = "glibc.rtld.optional_static_tls";
const BYTES: usize = 32768;

/// Has a process of tracer start with room, unless its tunables say how much it is to have.
pub fn reserve(command: &mut Command) {
    let set = command.get_envs().find(|(name, _)| *name == TUNABLES_VARIABLE);
    let before = match set {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => std::env::var_os(TUNABLES_VARIABLE),
    };
    let before = before.unwrap_or_default();
    if let Some(tunables) = with_room(&before) {
        command.env(TUNABLES_VARIABLE, tunables).env(BEFORE_VARIABLE, before);
    }
}

/// Adds the tunable to others; none where they name it, or where libraries are loaded by another libc.
fn with_room(tunables: &OsStr) -> Option<OsString> {
    let is_named = tunables.to_string_lossy().split(':').any(|tunable| tunable.split('=').next() == Some(TUNABLE));
    if is_named || !cfg!(target_env = "gnu") {
        return None;
    }
    let mut with_room = tunables.to_owned();
    if !with_room.is_empty() {
        with_room.push(":");
    }
    with_room.push(format!("{TUNABLE}={BYTES}"));
    Some(with_room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_added_to_what_is_there_and_what_is_said_of_it_counts() {
        let with_room =
            |tunables: &str| with_room(OsStr::new(tunables)).map(|value| value.into_string().expect("text"));
        if !cfg!(target_env = "gnu") {
            return assert_eq!(with_room(""), None);
        }
        assert_eq!(with_room("").as_deref(), Some("glibc.rtld.optional_static_tls=32768"));
        let both = "glibc.malloc.check=1:glibc.rtld.optional_static_tls=32768";
        assert_eq!(with_room("glibc.malloc.check=1").as_deref(), Some(both));
        assert_eq!(with_room("glibc.malloc.check=1:glibc.rtld.optional_static_tls=512"), None);
        assert_eq!(with_room("glibc.rtld.optional_static_tls=512"), None);
    }

    #[test]
    fn what_a_command_is_to_have_counts_and_not_what_this_process_has() {
        let mut command = Command::new("true");
        command.env(TUNABLES_VARIABLE, "glibc.rtld.optional_static_tls=512");
        reserve(&mut command);
        assert!(command.get_envs().all(|(name, _)| name != BEFORE_VARIABLE));
        command.env(TUNABLES_VARIABLE, "a=1");
        reserve(&mut command);
        let before = command.get_envs().find(|(name, _)| *name == BEFORE_VARIABLE).and_then(|(_, value)| value);
        assert_eq!(before.is_some(), cfg!(target_env = "gnu"));
        assert!(before.is_none_or(|before| before == "a=1"));
    }
}
