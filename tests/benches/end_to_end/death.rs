//! Time from the death of a worker until its spans are in its span file.
//!
//! A task of the fixtures opens spans in spans, on two threads, and dies in one of the ways. The clock starts when the kernel says, by the worker's
//! pidfd, that the process has ended, and stops when all five spans are in the file: those that were open closed, and the one that had ended.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::Failure;
use super::cluster::{self, Cluster};

/// Values of `error.type`, each of which is the way in which the task is to die.
pub(crate) const WAYS: [&str; 6] = ["signal:9", "signal:11", "signal:6", "exit:3", "timeout", "oom"];
/// The attempt, two open spans, one that had ended, and one on another thread.
const SPANS: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);

/// A control group that may take 256 MiB of memory, for as long as this lives.
pub(crate) struct SmallMemory {
    path: PathBuf,
}

impl SmallMemory {
    /// None where no control group can be made.
    pub(crate) fn new() -> Option<SmallMemory> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let version_1 = groups.lines().find_map(|line| line.split_once(":memory:/"));
        let version_2 = groups.lines().find_map(|line| line.split_once("0::/"));
        let (root, (_, own), limit) = match (version_1, version_2) {
            (Some(own), _) => ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes"),
            (None, own) => ("/sys/fs/cgroup", own?, "memory.max"),
        };
        let path = Path::new(root).join(own).join(format!("tracer-bench-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        let group = SmallMemory { path };
        fs::write(group.path.join(limit), "268435456").ok()?;
        Some(group)
    }

    /// Returns the file that takes processes in.
    pub(crate) fn processes(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for SmallMemory {
    fn drop(&mut self) {
        // The head in it was stopped; where it was not, the folder stays.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Lets one worker die and returns how long its spans took, in nanoseconds.
pub(crate) fn one(cluster: &Cluster<'_>, way: &str, number: usize) -> Result<f64, Failure> {
    let folder = cluster.spans_dir();
    let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changes, &folder, inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE)?;
    let started = folder.with_file_name(format!("started-{way}-{number}"));
    // Before the task begins: some ways leave no time after that.
    let workers = idle_workers(cluster)?;
    let pidfds: Vec<(u32, OwnedFd)> =
        workers.into_iter().map(|pid| Ok((pid, pidfd(pid)?))).collect::<io::Result<_>>()?;
    let deaths = std::thread::spawn(move || first_death(&pidfds));
    let mut flags = vec!["--crash-limit=0"];
    if way == "timeout" {
        flags.extend(["--timeout=100ms", "--grace=0s"]);
    }
    let mut submission = cluster.submit(
        "misbehaving_tasks:dies_amid_spans",
        &[&serde_json::to_string(way)?, &serde_json::to_string(&started)?],
        &flags,
    )?;
    if way == "signal:9" {
        let pid = read_pid(&started)?;
        kill_process(pid, Signal::KILL)?;
    }
    let (pid, died) = deaths.join().map_err(|_| "the thread that waits for the death has panicked")??;
    let file = folder.join(format!("{pid}.json"));
    let deadline = Instant::now() + LIMIT;
    let written = loop {
        if lines(&file) >= SPANS {
            break Instant::now();
        }
        if Instant::now() > deadline {
            return Err(format!("`{}` has {} spans, expected {SPANS} ({way})", file.display(), lines(&file)).into());
        }
        wait_for_change(&changes)?;
    };
    let status = submission.wait()?;
    if status.success() {
        return Err(format!("a task that was to die ({way}) has succeeded").into());
    }
    let text = fs::read_to_string(&file)?;
    if !text.contains(&format!("\"error.type\":\"{way}\"")) {
        return Err(format!("no span in `{}` says `{way}`", file.display()).into());
    }
    Ok(written.saturating_duration_since(died).as_secs_f64() * 1e9)
}

/// Returns the workers, once the one that died before was replaced.
fn idle_workers(cluster: &Cluster<'_>) -> Result<Vec<u32>, Failure> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let workers = cluster.idle_workers()?;
        if workers.len() == cluster::WORKERS {
            return Ok(workers);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("a worker that has died is not replaced".into())
}

fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Returns the process that dies first, and the time of its death.
fn first_death(pidfds: &[(u32, OwnedFd)]) -> io::Result<(u32, Instant)> {
    let mut polled: Vec<_> = pidfds.iter().map(|(_, pidfd)| PollFd::new(pidfd, PollFlags::IN)).collect();
    let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    poll(&mut polled, Some(&limit))?;
    let died = Instant::now();
    let dead = polled.iter().position(|one| !one.revents().is_empty()).ok_or(io::ErrorKind::TimedOut)?;
    Ok((pidfds[dead].0, died))
}

fn wait_for_change(changes: &OwnedFd) -> io::Result<()> {
    let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut [PollFd::new(changes, PollFlags::IN)], Some(&limit))?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(changes, &mut buffer);
    while reader.next().is_ok() {}
    Ok(())
}

fn lines(file: &Path) -> usize {
    memchr::memchr_iter(b'\n', &fs::read(file).unwrap_or_default()).count()
}

fn read_pid(path: &Path) -> Result<Pid, Failure> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        let pid = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).and_then(Pid::from_raw);
        match pid {
            Some(pid) => return Ok(pid),
            None => std::thread::yield_now(),
        }
    }
    Err(format!("the task did not begin: there is no `{}`", path.display()).into())
}
