//! Identity of processes: a pid with a birth.
//!
//! A pid is used again after its process has ended, and all of them after a boot. A pid together with its process's *birth* is not.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

#[cfg(test)]
#[path = "../../tests/support/skip.rs"]
mod skip;

/// Time that the workers of a dead head may take to die, before they are taken for something else.
pub const DYING_LIMIT: Duration = Duration::from_secs(2);

/// Birth of a process: its start time, as a number that no other process with its pid has: made of the kernel's start time and the id of
/// the boot. None when there is no such process.
pub fn birth(pid: u32) -> Option<u64> {
    let (_, start_ticks) = state_and_start(pid)?;
    let mixed = start_ticks ^ boot();
    // 0 means unknown where births are kept.
    Some(mixed.max(1))
}

/// Returns a number that stands for the boot.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.bytes().fold(0, |hash: u64, byte| hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte))
    })
}

/// Start time of a process as its parent knows it: between two ticks of the kernel's. The kernel itself need not be asked, which
/// costs as much as a sixth of a command's start. As good as a [`birth`]: a pid is not used again so soon.
#[derive(Clone, Copy, Debug)]
pub struct BirthWindow {
    first_tick: u64,
}

/// Bits of a window that say how many ticks it has after the first.
const WINDOW_BITS: u32 = 8;

impl BirthWindow {
    /// Notes that the process is about to be started.
    pub fn open() -> BirthWindow {
        BirthWindow { first_tick: ticks_now() }
    }

    /// Notes that it was started, and returns a number for [`is_of`](Self::is_of), in another process too. None if that took so long that the pid has to be looked up, and
    /// there is no such process any more.
    pub fn close(self, pid: u32) -> Option<u64> {
        let later = ticks_now().saturating_sub(self.first_tick);
        let (first, later) = match later {
            0..256 => (self.first_tick, later),
            _ => (state_and_start(pid)?.1, 0),
        };
        // 0 means unknown where windows are kept.
        Some(((first << WINDOW_BITS | later) ^ boot()).max(1))
    }

    /// Returns whether a process was started within a closed window.
    pub fn is_of(window: u64, pid: u32) -> bool {
        let window = window ^ boot();
        let (first, later) = (window >> WINDOW_BITS, window % (1 << WINDOW_BITS));
        state_and_start(pid).is_some_and(|(_, start)| (first..=first + later).contains(&start))
    }
}

/// Returns whether a process was started within the last so much time, to a tick.
pub fn is_younger_than(pid: u32, age: Duration) -> bool {
    let ticks = u64::try_from(age.as_nanos() * u128::from(ticks_per_second()) / 1_000_000_000).unwrap_or(u64::MAX);
    let first = ticks_now().saturating_sub(ticks.saturating_add(1));
    state_and_start(pid).is_some_and(|(_, start)| start >= first)
}

/// Returns the kernel's ticks in a second.
fn ticks_per_second() -> u64 {
    // Not by rustix, whose own ways to this and to the clock end a process that runs under valgrind, as a worker does when errors in tasks are looked for.
    static PER_SECOND: OnceLock<u64> = OnceLock::new();
    // SAFETY: it takes nothing but a number, and only tells.
    *PER_SECOND.get_or_init(|| unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.try_into().unwrap_or(100))
}

/// Now, in the kernel's ticks since the boot.
fn ticks_now() -> u64 {
    let per_second = ticks_per_second();
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    now.tv_sec as u64 * per_second + now.tv_nsec as u64 * per_second / 1_000_000_000
}

/// Returns whether that very process is alive. One that has ended and was not reaped yet is not.
pub fn is_alive(pid: u32, born: u64) -> bool {
    let is_dead = state_and_start(pid).is_none_or(|(state, _)| matches!(state, b'Z' | b'X'));
    !is_dead && birth(pid) == Some(born)
}

/// Returns whether no process has that pid, or one that has ended, or one that SIGKILL has been sent to and that the kernel is taking down.
pub fn is_gone_or_going(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let is_killed = |pending: &str| u64::from_str_radix(pending, 16).is_ok_and(|signals| signals & (1 << 8) != 0);
    field("State:").starts_with(['Z', 'X'])
        || is_killed(field("SigPnd:"))
        || is_killed(field("ShdPnd:"))
        || is_exiting(pid)
}

/// Returns whether a process was stopped by a signal, or is traced and stands.
pub fn is_stopped(pid: u32) -> bool {
    state_and_start(pid).is_some_and(|(state, _)| matches!(state, b'T' | b't'))
}

/// Returns a descriptor for a process, which is readable once it has ended. None when there is no such process.
pub fn open_pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended. False if it has not within the limit.
pub fn wait_for_end(pid: u32, limit: Duration) -> bool {
    let Some(pidfd) = open_pidfd(pid) else { return true };
    let timeout =
        Timespec { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(0), tv_nsec: limit.subsec_nanos().into() };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) != Ok(0)
}

/// Returns whether the kernel has begun to take the process down: `PF_EXITING` among its flags.
fn is_exiting(pid: u32) -> bool {
    const PF_EXITING: u32 = 4;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The flags are the ninth field, the seventh after the program's name.
    let after_name = stat.rfind(')').map_or("", |end| &stat[end + 1..]);
    let flags = after_name.split_ascii_whitespace().nth(6).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}

/// Returns the state of a process and when it was started, in the kernel's ticks since the boot.
fn state_and_start(pid: u32) -> Option<(u8, u64)> {
    if cfg!(miri) {
        return None;
    }
    // It is shorter, and comes whole: one call, and not the several of a file whose length is not known.
    let mut bytes = [0; 1024];
    let count = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut bytes).ok()?;
    let stat = String::from_utf8_lossy(&bytes[..count]);
    // The second field is the program's name in brackets, which may hold anything; the state is the third, the start the 22nd.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn a_process_is_going_from_its_kill_on() {
        assert!(!is_gone_or_going(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(!is_gone_or_going(child.id()));
        child.kill().unwrap();
        assert!(is_gone_or_going(child.id()), "at once, before it has ended or was reaped");
        child.wait().unwrap();
        assert!(is_gone_or_going(child.id()));
    }

    #[test]
    fn a_birth_tells_processes_apart_and_stays_the_same() {
        let own = birth(std::process::id()).unwrap();
        assert_eq!(birth(std::process::id()), Some(own));
        assert_ne!(birth(1), Some(own));
        assert_eq!(birth(u32::MAX), None);
        assert!(is_alive(std::process::id(), own) && !is_alive(std::process::id(), own + 1));
    }

    #[test]
    fn a_parent_knows_when_a_process_was_started_without_a_look() {
        let earlier = BirthWindow::open();
        let other = earlier.close(1).unwrap();
        assert!(!BirthWindow::is_of(other, 1), "it was started long before");
        let mut children = Vec::new();
        for _ in 0..50 {
            let window = BirthWindow::open();
            let child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
            children.push((window.close(child.id()).unwrap(), child));
        }
        assert!(children.iter().all(|(window, child)| BirthWindow::is_of(*window, child.id())));
        let late = BirthWindow { first_tick: ticks_now() - 1_000 }.close(children[0].1.id()).unwrap();
        assert!(BirthWindow::is_of(late, children[0].1.id()) && !BirthWindow::is_of(late, 1));
        let last = children[49].1.id();
        assert!(BirthWindow::is_of(earlier.close(last).unwrap(), last), "it was started some ticks after the first");
        for (window, mut child) in children {
            drop(child.stdin.take());
            child.wait().unwrap();
            assert!(!BirthWindow::is_of(window, child.id()), "there is none any more");
        }
    }

    /// Runs a test as a worker runs whose tasks are searched for errors. Own ways of asking the kernel may not work under valgrind.
    pub(crate) fn assert_passes_under_valgrind(test: &str) {
        let program = std::env::current_exe().unwrap();
        match std::process::Command::new("valgrind").arg("--quiet").arg(program).args(["--exact", test]).output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
            }
            Err(error) => skip::skip("valgrind", error),
        }
    }

    #[test]
    fn a_parent_knows_it_under_valgrind_too() {
        assert_passes_under_valgrind("identity::tests::a_parent_knows_when_a_process_was_started_without_a_look");
    }

    #[test]
    fn a_process_that_has_ended_and_was_not_reaped_is_not_alive() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let born = birth(child.id()).unwrap();
        assert!(is_alive(child.id(), born));
        drop(child.stdin.take());
        let pid = rustix::process::Pid::from_child(&child);
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
        assert_eq!(birth(child.id()), Some(born), "its number is not free yet");
        assert!(!is_alive(child.id(), born));
        child.wait().unwrap();
    }
}
