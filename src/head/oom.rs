//! Detection of workers that the kernel killed because memory ran out.
//!
//! Such a process ends by SIGKILL like any other that is killed. But the kernel counts those it kills for memory, in the control group that the process was in
//! (`memory.events.local`, in version 1 `memory.oom_control`) and, for processes in no such group, for the whole machine (`/proc/vmstat`).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use tracer_core::task::OUT_OF_MEMORY;
use tracer_reactor::WorkerExit;

/// File of the kernel's counts for the machine.
const MACHINE: &str = "/proc/vmstat";

/// The counts of the kernel, as they were when last looked at.
pub(super) struct OomKills {
    /// File of the kernel's counts for the group that this process and its workers begin in.
    own: PathBuf,
    seen: HashMap<PathBuf, u64>,
}

impl OomKills {
    /// From now on.
    pub(super) fn watch() -> OomKills {
        let own = counter_of(std::process::id()).unwrap_or_else(|| MACHINE.into());
        let seen = count(&own).map(|kills| (own.clone(), kills)).into_iter().collect();
        OomKills { own, seen }
    }

    /// Says of a worker that has ended whether that was for memory: it was killed by SIGKILL, and the kernel has killed a process of its group since this
    /// was asked last. `counter` is what [`counter_of`] said before the worker was reaped. When two are killed at once, and one of them by
    /// somebody else, they may be taken for each other.
    pub(super) fn explain(&mut self, exit: WorkerExit, counter: Option<PathBuf>) -> WorkerExit {
        if exit.error_type != "signal:9" {
            return exit;
        }
        let counter = counter.unwrap_or_else(|| self.own.clone());
        match count(&counter) {
            Some(kills) => self.judge(exit, counter, kills),
            None => exit,
        }
    }

    fn judge(&mut self, exit: WorkerExit, counter: PathBuf, kills: u64) -> WorkerExit {
        // A group that was not seen before was made for the worker.
        let seen = self.seen.insert(counter, kills).unwrap_or(0);
        if kills <= seen {
            return exit;
        }
        let cause = "was killed by the kernel, because memory ran out (signal 9)".into();
        WorkerExit { cause, error_type: OUT_OF_MEMORY.into(), memory: None }
    }
}

/// Returns where the kernel counts for a process's own group. None for one in no group of its own; in version 1 of control groups that is every process that
/// has ended.
pub(super) fn counter_of(pid: u32) -> Option<PathBuf> {
    counter_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

fn counter_in(groups: &str) -> Option<PathBuf> {
    let mut unified = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let path = path.trim_start_matches('/');
        if controllers.split(',').any(|controller| controller == "memory") {
            let group = || Path::new("/sys/fs/cgroup/memory").join(path).join("memory.oom_control");
            // With version 1 of this controller there is none of version 2.
            return (!path.is_empty()).then(group);
        }
        if controllers.is_empty() && !path.is_empty() {
            unified = Some(Path::new("/sys/fs/cgroup").join(path).join("memory.events.local"));
        }
    }
    unified
}

/// None where the kernel does not count.
fn count(counter: &Path) -> Option<u64> {
    count_in(&fs::read_to_string(counter).ok()?)
}

fn count_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_read_in_each_of_its_forms() {
        assert_eq!(count_in("oom_kill_disable 0\nunder_oom 0\noom_kill 42\n"), Some(42));
        assert_eq!(count_in("low 0\noom 3\noom_kill 2\noom_group_kill 7\n"), Some(2));
        assert_eq!(count_in("nr_free_pages 1\n"), None);
        assert_eq!(count_in("oom_kill many\n"), None);
    }

    #[test]
    fn the_group_of_a_process_is_found_in_both_versions() {
        for (groups, expected) in [
            ("4:memory:/jobs/a\n3:cpu,cpuacct:/\n0::/b\n", Some("/sys/fs/cgroup/memory/jobs/a/memory.oom_control")),
            ("0::/b\n2:cpuset,memory:/a\n", Some("/sys/fs/cgroup/memory/a/memory.oom_control")),
            ("0::/jobs/a:b\n", Some("/sys/fs/cgroup/jobs/a:b/memory.events.local")),
            ("4:memory:/\n0::/b\n", None),
            ("0::/\n", None),
            ("nonsense\n", None),
        ] {
            assert_eq!(counter_in(groups), expected.map(PathBuf::from), "{groups}");
        }
    }

    #[test]
    fn each_kill_explains_one_end() {
        let killed = || WorkerExit { cause: "was killed".into(), error_type: "signal:9".into(), memory: None };
        let (known, new) = (PathBuf::from("/known"), PathBuf::from("/new"));
        let mut kills = OomKills { own: MACHINE.into(), seen: HashMap::from([(known.clone(), 5)]) };
        assert_eq!(kills.judge(killed(), known.clone(), 5), killed());
        assert_eq!(kills.judge(killed(), known.clone(), 6).error_type, "oom");
        assert_eq!(kills.judge(killed(), known, 6), killed());
        assert_eq!(kills.judge(killed(), new.clone(), 0), killed());
        assert_eq!(kills.judge(killed(), new, 1).error_type, "oom");
        let exited = WorkerExit { cause: "exited".into(), error_type: "exit:3".into(), memory: None };
        assert_eq!(kills.explain(exited.clone(), None), exited);
    }
}
