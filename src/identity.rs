//! Which process a pid means.
//!
//! A pid is used again after its process has ended, and all of them after a boot. A pid together with its process's *birth* is not.

use std::fs;
use std::sync::OnceLock;

/// When a process was started, as a number that no other process with its pid has: made of the kernel's start time and the id of
/// the boot. None when there is no such process.
pub(crate) fn birth(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets, which may hold anything; the start time is the 22nd.
    let start_ticks: u64 = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(19)?.parse().ok()?;
    static BOOT: OnceLock<u64> = OnceLock::new();
    let boot = BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte))
    });
    let mixed = start_ticks ^ boot;
    // 0 means unknown where births are kept.
    Some(mixed.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_birth_tells_processes_apart_and_stays_the_same() {
        let own = birth(std::process::id()).unwrap();
        assert_eq!(birth(std::process::id()), Some(own));
        assert_ne!(birth(1), Some(own));
        assert_eq!(birth(u32::MAX), None);
    }
}
