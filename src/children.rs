//! The children of this process, as the kernel knows them.
//!
//! Nothing is found by name. A child's number is its own until this process reaps it, so a signal to a child cannot reach anything
//! else. Among the children of a *subreaper* are also those that its descendants left.

use std::fs;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Every child of this process.
pub(crate) fn of_this_process() -> Vec<Pid> {
    of_threads().unwrap_or_else(of_all_processes)
}

/// As each thread lists them. Not every kernel does.
fn of_threads() -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let listed = match fs::read_to_string(thread.path().join("children")) {
            Ok(listed) => listed,
            // A thread that has just ended has none.
            Err(_) if !thread.path().exists() => continue,
            Err(_) => return None,
        };
        children.extend(listed.split_ascii_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)));
    }
    Some(children)
}

/// As every process names its parent.
fn of_all_processes() -> Vec<Pid> {
    let own = std::process::id().to_string();
    let is_child = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The parent follows the program's name, which is in brackets and may hold anything, and the state.
        let parent = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().nth(1)?;
        (parent == own).then(|| Pid::from_raw(pid)).flatten()
    };
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| is_child(entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

/// Reaps a child if it has ended. Only for one that nobody else waits for. True when it is gone.
pub(crate) fn reap(child: Pid) -> bool {
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}

/// Whether a child has one of this process's own outputs open.
pub(crate) fn holds_output(child: Pid) -> bool {
    let target = |pid: &str, fd: u32| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
    let child = child.as_raw_nonzero().to_string();
    let own = [target("self", 1), target("self", 2)];
    [1, 2].iter().any(|&fd| target(&child, fd).is_some_and(|found| own.contains(&Some(found))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_listed_until_it_is_reaped() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(of_this_process().contains(&pid) && of_all_processes().contains(&pid));
        assert!(!reap(pid), "it runs");
        assert!(holds_output(pid));
        drop(child.stdin.take());
        while !reap(pid) {
            std::thread::yield_now();
        }
        assert!(!of_this_process().contains(&pid) && !of_all_processes().contains(&pid));
        assert!(child.wait().is_err(), "nothing is left to wait for");
    }
}
