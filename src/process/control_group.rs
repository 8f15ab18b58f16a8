//! Control groups of the kernel, as far as they bound memory. Both versions.
//!
//! A head that may makes one for each worker whose memory is bounded: what its attempts start is in it too, daemons included. When the bound is
//! reached, and nothing can be given back to the kernel, the kernel kills in this group and nowhere else, and counts that.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// Mount point of control groups, on every system that has them.
const ROOT: &str = "/sys/fs/cgroup";
/// Prefix of the names of groups that a head makes. The head's process follows, then the worker.
const OURS: &str = "tracer-";

/// The end of the name of the group that a head and its guard move to.
const LEAF: &str = "-head";

/// In version 1, no bound is the largest number of whole pages.
const UNBOUNDED: u64 = 1 << 62;

/// Version of the kernel's interface of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    path: PathBuf,
    version: Version,
}

impl Group {
    /// Returns the group of a process that bounds its memory; none where there is no such thing.
    pub fn of(pid: u32) -> Option<Group> {
        Group::in_text(Path::new(ROOT), &fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
    }

    fn in_text(root: &Path, groups: &str) -> Option<Group> {
        let mut unified = None;
        for line in groups.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let path = path.trim_start_matches('/');
            if controllers.split(',').any(|controller| controller == "memory") {
                return Some(Group { path: root.join("memory").join(path), version: Version::One });
            }
            if controllers.is_empty() {
                unified = Some(Group { path: root.join(path), version: Version::Two });
            }
        }
        unified
    }

    /// Returns where a head may make groups for its workers, whose process this is, with its guard; none where it may not.
    pub fn for_children(ours: &[u32]) -> Option<Group> {
        let mut own = Group::of(*ours.first()?)?;
        let name = own.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(OURS)
            && name.ends_with(LEAF)
            && let Some(parent) = own.path.parent()
        {
            // The head before this one has moved the guard there.
            own.path = parent.to_owned();
        }
        own.prepare(ours).ok()?;
        own.remove_left_behind();
        Some(own)
    }

    /// Makes sure that groups inside of this one can bound memory.
    fn prepare(&self, ours: &[u32]) -> io::Result<()> {
        if self.version == Version::One {
            return Ok(());
        }
        let has_memory = |file: &str| {
            let text = fs::read_to_string(self.path.join(file))?;
            Ok::<_, io::Error>(text.split_ascii_whitespace().any(|controller| controller == "memory"))
        };
        if has_memory("cgroup.subtree_control")? {
            return Ok(());
        }
        if !has_memory("cgroup.controllers")? {
            return Err(io::Error::other("the memory controller is not here"));
        }
        // A group with processes cannot hand the controller on. If all of them are ours, they move.
        let text = fs::read_to_string(self.path.join("cgroup.procs"))?;
        let inside: Vec<u32> = text.lines().filter_map(|pid| pid.parse().ok()).collect();
        if inside.iter().all(|pid| ours.contains(pid)) && !inside.is_empty() {
            let leaf = self.child(ours[0], "head");
            match fs::create_dir(&leaf.path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => inside.iter().try_for_each(|&pid| leaf.attach(pid))?,
            }
        }
        fs::write(self.path.join("cgroup.subtree_control"), "+memory")
    }

    fn child(&self, head: u32, name: &str) -> Group {
        Group { path: self.path.join(format!("{OURS}{head}-{name}")), version: self.version }
    }

    /// Makes a group in this one, for a worker of this process.
    pub fn make(&self, worker: u64) -> io::Result<Group> {
        let group = self.child(std::process::id(), &worker.to_string());
        fs::create_dir(&group.path)?;
        if group.version == Version::Two {
            // All of a worker ends together. Kernels before 4.19 do not know it.
            let _ = fs::write(group.path.join("memory.oom.group"), "1");
        }
        Ok(group)
    }

    /// Removes what heads have left that were killed.
    fn remove_left_behind(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let head = name.to_str().and_then(|name| name.strip_prefix(OURS)?.split('-').next()?.parse::<u32>().ok());
            if head.is_some_and(|head| !Path::new(&format!("/proc/{head}")).exists()) {
                // One with processes in it stays.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    /// Returns whether a head has made it for a worker.
    pub fn is_of_worker(&self) -> bool {
        self.path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(OURS))
    }

    /// Moves a process in. What it starts from then on is in it too.
    pub fn attach(&self, pid: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
    }

    /// Bounds the memory, or no more.
    pub fn set_limit(&self, bytes: Option<u64>) -> io::Result<()> {
        let write = |file: &str, text: &str| fs::write(self.path.join(file), text);
        match self.version {
            Version::One => {
                let text = bytes.map_or("-1".to_owned(), |bytes| bytes.to_string());
                // The bound on memory with swap must never be the lower one; it is there only with swap accounting.
                let first = write("memory.limit_in_bytes", &text);
                let _ = write("memory.memsw.limit_in_bytes", &text);
                first.or_else(|_| write("memory.limit_in_bytes", &text))?;
                // What it had before is not this attempt's.
                let _ = write("memory.max_usage_in_bytes", "0");
                Ok(())
            }
            Version::Two => {
                // Swapped out, it would be bounded by nothing.
                let _ = write("memory.swap.max", if bytes.is_some() { "0" } else { "max" });
                write("memory.max", &bytes.map_or("max".to_owned(), |bytes| bytes.to_string()))
            }
        }
    }

    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.path.join(file)).ok()?.trim().parse().ok()
    }

    /// Returns the bound on the memory, in bytes.
    pub fn limit(&self) -> Option<u64> {
        match self.version {
            // Without a bound it is the largest number of whole pages.
            Version::One => self.number("memory.limit_in_bytes").filter(|&bytes| bytes < UNBOUNDED),
            Version::Two => self.number("memory.max"),
        }
    }

    /// Returns the bounds on the memory of this group and of those above it, with the file that says each. In a container, what is above the group may be
    /// out of sight.
    pub fn limits_above(&self) -> Vec<(PathBuf, u64)> {
        let (root, names): (_, &[_]) = match self.version {
            Version::One => (Path::new(ROOT).join("memory"), &["memory.limit_in_bytes"]),
            // Above the high one the kernel slows its processes down until nothing goes on.
            Version::Two => (PathBuf::from(ROOT), &["memory.max", "memory.high"]),
        };
        let mut limits = crate::memory_limit::numbers_above(&root, &self.path, names);
        limits.retain(|(_, bytes)| *bytes < UNBOUNDED);
        limits
    }

    /// Returns the most memory that there was, in bytes.
    pub fn peak(&self) -> Option<u64> {
        self.number(match self.version {
            Version::One => "memory.max_usage_in_bytes",
            Version::Two => "memory.peak",
        })
    }

    /// Returns how many processes in it the kernel has killed for memory.
    pub fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.path.join(file)).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes it, if nothing is in it any more.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_that_bounds_memory_is_found_in_both_versions() {
        let root = Path::new("/r");
        let found = |text: &str| Group::in_text(root, text).map(|group| (group.path, group.version));
        assert_eq!(found("4:memory:/a\n0::/b\n"), Some(("/r/memory/a".into(), Version::One)));
        assert_eq!(found("1:cpu:/\n0::/b/c\n"), Some(("/r/b/c".into(), Version::Two)));
        assert_eq!(found("1:cpu:/\n"), None);
    }

    /// Returns a folder that looks like a group of version 2.
    fn version_two(folder: &Path, controllers: &str, inside: &str) -> Group {
        fs::write(folder.join("cgroup.controllers"), controllers).unwrap();
        fs::write(folder.join("cgroup.subtree_control"), "").unwrap();
        fs::write(folder.join("cgroup.procs"), inside).unwrap();
        Group { path: folder.into(), version: Version::Two }
    }

    #[test]
    fn in_version_two_a_head_that_is_alone_makes_room_and_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own = version_two(folder.path(), "cpu memory\n", "7\n8\n");
        own.prepare(&[7, 8]).unwrap();
        let read = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
        assert_eq!(read("cgroup.subtree_control"), "+memory");
        assert_eq!(read("tracer-7-head/cgroup.procs"), "8");
        let group = own.make(3).unwrap();
        assert!(group.is_of_worker() && !own.is_of_worker());
        group.set_limit(Some(1 << 20)).unwrap();
        assert_eq!((group.limit(), group.kills()), (Some(1 << 20), 0));
        fs::write(group.path.join("memory.events"), "oom 3\noom_kill 2\n").unwrap();
        fs::write(group.path.join("memory.peak"), "1048576\n").unwrap();
        assert_eq!((group.peak(), group.kills()), (Some(1 << 20), 2));
        group.set_limit(None).unwrap();
        assert_eq!(group.limit(), None);
        assert_eq!(fs::read_to_string(group.path.join("memory.swap.max")).unwrap(), "max");

        let folder = tempfile::tempdir().unwrap();
        let shared = version_two(folder.path(), "cpu\n", "7\n99\n");
        assert!(shared.prepare(&[7, 8]).is_err());
        let shared = version_two(folder.path(), "memory\n", "7\n99\n");
        // The kernel refuses this while others are inside; nobody is moved.
        shared.prepare(&[7, 8]).unwrap();
        assert!(!folder.path().join("tracer-7-head").exists());
    }
}
