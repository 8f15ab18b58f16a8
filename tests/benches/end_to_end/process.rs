//! Figures of the kernel for a process: its share of memory and its cpu time.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Failure;
pub(crate) use super::cpu_time::cpu_ns;

/// A process at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessFigures {
    /// `head` or `worker N`.
    pub(crate) name: String,
    pub(crate) pid: u32,
    /// Bytes of memory, of which those shared with other processes count in part.
    pub(crate) pss: u64,
    /// User and system time of all of its threads, in nanoseconds.
    pub(crate) cpu_ns: u64,
}

impl ProcessFigures {
    pub(crate) fn of(name: String, pid: u32) -> Result<ProcessFigures, Failure> {
        Ok(ProcessFigures { name, pid, pss: pss(pid)?, cpu_ns: cpu_ns(pid)? })
    }
}

/// Returns the cpu time that the processes whose names begin with `role` used between two moments.
pub(crate) fn cpu_between(before: &[ProcessFigures], after: &[ProcessFigures], role: &str) -> u64 {
    let of_role = after.iter().filter(|one| one.name.starts_with(role));
    of_role
        .map(|one| {
            let earlier = before.iter().find(|earlier| earlier.pid == one.pid);
            one.cpu_ns - earlier.map_or(0, |earlier| earlier.cpu_ns)
        })
        .sum()
}

/// Returns the processes of a head in this place: those that have it in their environment.
pub(crate) fn of_place(place: &Path) -> Result<Vec<u32>, Failure> {
    let variable = [b"TRACER_TEMP_DIR=", place.as_os_str().as_bytes()].concat();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // It may have ended since.
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|one| one == variable) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns the proportional set size in bytes.
pub(crate) fn pss(pid: u32) -> Result<u64, Failure> {
    bytes_of(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// Bytes of memory now, and at the most since [`forget_peak`].
pub(crate) fn memory(pid: u32) -> Result<(u64, u64), Failure> {
    let path = format!("/proc/{pid}/status");
    Ok((bytes_of(&path, "VmRSS:")?, bytes_of(&path, "VmHWM:")?))
}

/// From now on, the most memory is what there is now.
pub(crate) fn forget_peak(pid: u32) -> Result<(), Failure> {
    Ok(std::fs::write(format!("/proc/{pid}/clear_refs"), "5")?)
}

/// Reads a figure in kilobytes from a file of the kernel, as bytes.
fn bytes_of(path: &str, name: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read `{path}`: {error}"))?;
    let line =
        text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("`{path}` has no `{name}`"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024)
}

/// Returns the threads of a process, by their ids.
pub(crate) fn tasks(pid: u32) -> Result<impl Iterator<Item = Result<i32, Failure>>, Failure> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&path).map_err(|error| format!("cannot read `{path}`: {error}"))?;
    Ok(entries.map(|entry| Ok(entry?.file_name().to_string_lossy().parse()?)))
}

/// Returns the number of threads of a process.
pub(crate) fn threads(pid: u32) -> Result<usize, Failure> {
    Ok(tasks(pid)?.count())
}

/// Returns how often all threads of a process have gone to sleep, which is how often they were woken.
pub(crate) fn sleeps(pid: u32) -> Result<u64, Failure> {
    const NAME: &str = "voluntary_ctxt_switches:";
    let of_thread = |thread: Result<i32, Failure>| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{}/status", thread?))?;
        let count = text.lines().find_map(|line| line.strip_prefix(NAME)).ok_or(NAME)?;
        Ok(count.trim().parse::<u64>()?)
    };
    tasks(pid)?.map(of_thread).sum()
}
