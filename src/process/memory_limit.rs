//! Limit on the memory of this process, and its origin.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::control_group::Group;

/// The smallest bound on the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    pub bytes: u64,
    /// Origin of the limit, as a noun phrase.
    pub source: String,
}

/// Returns the smallest of the machine's memory, the bounds of the control groups above this process, and its own limits.
pub fn of_this_process() -> MemoryLimit {
    let info = rustix::system::sysinfo();
    let machine = info.totalram.saturating_mul(info.mem_unit.into());
    let machine = MemoryLimit { bytes: machine, source: "the machine's memory".into() };
    let groups = Group::of(std::process::id()).into_iter().flat_map(|group| group.limits_above());
    let of_groups = groups.map(|(file, bytes)| MemoryLimit { bytes, source: of_group(&file) });
    let own = [(Resource::As, "ulimit -v"), (Resource::Data, "ulimit -d")];
    let own = own.into_iter().filter_map(|(resource, command)| {
        let source = format!("the limit of this process (`{command}`)");
        Some(MemoryLimit { bytes: getrlimit(resource).current?, source })
    });
    smallest(machine, of_groups.chain(own))
}

/// Returns the first of the smallest.
fn smallest(first: MemoryLimit, others: impl Iterator<Item = MemoryLimit>) -> MemoryLimit {
    others.fold(first, |least, other| if other.bytes < least.bytes { other } else { least })
}

fn of_group(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let group = file.parent().unwrap_or(file).display();
    format!("the control group `{group}` ({name})")
}

/// Numbers in files of these names, in a folder and those above it up to `root`.
pub fn numbers_above(root: &Path, folder: &Path, names: &[&str]) -> Vec<(PathBuf, u64)> {
    let folders = folder.ancestors().take_while(|folder| folder.starts_with(root));
    let files = folders.flat_map(|folder| names.iter().map(|name| folder.join(name)));
    files.filter_map(|file| Some((file.clone(), fs::read_to_string(&file).ok()?.trim().parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_bound_is_the_one_that_counts() {
        let limit = |bytes, source: &str| MemoryLimit { bytes, source: source.into() };
        let machine = || limit(100, "machine");
        assert_eq!(smallest(machine(), [].into_iter()), machine());
        let others = [limit(300, "group"), limit(50, "parent"), limit(50, "ulimit")];
        assert_eq!(smallest(machine(), others.into_iter()), limit(50, "parent"));
    }

    #[test]
    fn bounds_are_read_up_the_tree_and_no_bound_is_none() {
        let root = tempfile::tempdir().unwrap();
        let inner = root.path().join("a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(inner.join("memory.high"), "2000\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        let found = numbers_above(root.path(), &inner, &["memory.max", "memory.high"]);
        let expected = [(inner.join("memory.high"), 2000), (root.path().join("a/memory.max"), 1000)];
        assert_eq!(found, expected);
        assert_eq!(
            of_group(Path::new("/sys/fs/cgroup/a/memory.max")),
            "the control group `/sys/fs/cgroup/a` (memory.max)"
        );
    }
}
