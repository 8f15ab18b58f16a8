//! The children of this process, as the kernel knows them.
//!
//! Nothing is found by name. A child's number is its own until this process reaps it, so a signal to a child cannot reach anything
//! else. Among the children of a *subreaper* are also those that its descendants left.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

/// Returns every child of this process.
pub fn of_this_process() -> Vec<Pid> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    if matches!(waitid(WaitId::All, options), Err(Errno::CHILD)) {
        return Vec::new();
    }
    of_threads().unwrap_or_else(of_all_processes)
}

/// Returns the children as each thread lists them. Not every kernel does.
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

/// Returns the children, found by the parent that every process names.
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

/// Returns the memory of a process and of all that descends from it, in bytes: what is theirs alone, without files and without what they share.
pub fn memory_of_tree(root: u32) -> u64 {
    /// So that a process that starts others without end holds up nobody.
    const LOOKS: usize = 4096;
    let mut to_look_at = vec![root];
    let mut pages = 0;
    for _ in 0..LOOKS {
        let Some(pid) = to_look_at.pop() else { break };
        pages += own_pages(pid).unwrap_or(0);
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let listed = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            to_look_at.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
        }
    }
    pages * tracer_ipc::page::page_size() as u64
}

fn own_pages(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = text.split_ascii_whitespace().skip(1).map(|field| field.parse::<u64>().ok());
    let (resident, shared) = (fields.next()??, fields.next()??);
    Some(resident.saturating_sub(shared))
}

/// Reaps a child if it has ended. Only for one that nobody else waits for. True when it is gone.
pub fn reap(child: Pid) -> bool {
    !matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None))
}

/// Returns the wait status of a child that has ended, which is left to be reaped. None of one that has not.
pub fn ended_status(child: Pid) -> Option<i32> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(child), options).ok()??;
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some((code & 0xff) << 8),
        (None, Some(signal)) => Some(signal | if status.dumped() { 0x80 } else { 0 }),
        (None, None) => None,
    }
}

/// Returns whether a child has one of this process's own outputs open.
pub fn holds_output(child: Pid) -> bool {
    let target = |pid: &str, fd: u32| fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
    let child = child.as_raw_nonzero().to_string();
    let own = [target("self", 1), target("self", 2)];
    [1, 2].iter().any(|&fd| target(&child, fd).is_some_and(|found| own.contains(&Some(found))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_children_is_added_up() {
        let before = memory_of_tree(std::process::id());
        let mut child = std::process::Command::new("sh")
            .args(["-c", "x=$(head -c 8000000 /dev/zero | tr '\\0' x); echo ready; read y; echo ${#x}"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let with_child = memory_of_tree(std::process::id());
        assert!(memory_of_tree(child.id()) > 7_000_000);
        assert!(with_child > before.saturating_sub(4_000_000) + 7_000_000, "{before} {with_child}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(memory_of_tree(child.id()), 0);
    }

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
