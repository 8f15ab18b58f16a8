//! The instructions of a round trip in each process, in user space: the kernel stops each thread after every one of them. It takes a thousand times as
//! long, and is the same under any load. The head needs calls of the kernel that valgrind does not know everywhere.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use super::cluster::Cluster;
use super::{Failure, cluster};

/// Number of trips.
const TRIPS: usize = 10;
/// The processes of a trip.
const PROCESSES: [&str; 3] = ["head", "workers together", "driver"];
/// Given to the compiler, it leaves out what is done with spans.
const WITHOUT_TRACING: &str = "tracer_without_tracing";

/// Returns the instructions of a round trip, by the names of the figures.
pub(crate) fn of_round_trip(cluster: &Cluster<'_>) -> Result<HashMap<String, f64>, Failure> {
    let processes = cluster.processes()?;
    let mut driver = cluster.driver(&["stepped".into(), TRIPS.to_string()])?;
    let mut driver = driver.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut input, output) = (driver.stdin.take().ok_or("no pipe")?, driver.stdout.take().ok_or("no pipe")?);
    let mut output = BufReader::new(output);
    let mut next_line = || output.read_line(&mut String::new());
    next_line()?;
    let pids = processes.iter().map(|one| one.pid).chain([driver.id()]).collect();
    let steps = Steps::attach(pids)?;
    input.write_all(b"\n")?;
    next_line()?;
    let steps = steps.finish()?;
    drop(input);
    if !driver.wait()?.success() {
        return Err("the driver failed".into());
    }
    let names = processes.iter().map(|one| one.name.as_str()).chain(["driver"]);
    let mut found = HashMap::new();
    for (name, steps) in names.zip(steps) {
        let process = PROCESSES.into_iter().find(|known| name.starts_with(&known[..4])).ok_or("an unknown process")?;
        *found.entry(figure(process)).or_default() += steps as f64 / TRIPS as f64;
    }
    Ok(found)
}

fn figure(process: &str) -> String {
    format!("instructions of a round trip, {process}")
}

/// The same of this program without tracing code, which is built for it. None if this is that.
pub(crate) fn without_tracing() -> Result<Option<HashMap<String, f64>>, Failure> {
    if cfg!(tracer_without_tracing) {
        return Ok(None);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("without_tracing");
    let json = folder.join("untraced.json");
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut bench = cluster::cargo("bench");
    bench.arg("--bench").arg("end_to_end").arg("--target-dir").arg(&folder);
    bench.args(["--", "--only", "untraced", "--json"]).arg(&json);
    bench.env("RUSTFLAGS", format!("{flags} --cfg {WITHOUT_TRACING}"));
    if !bench.stdout(Stdio::null()).status()?.success() {
        return Err("the same without tracing code failed".into());
    }
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json)?)?;
    let figures = report["figures"].as_array().ok_or("a report has figures")?;
    let figures = figures.iter().filter_map(|one| Some((one["name"].as_str()?.to_owned(), one["value"].as_f64()?)));
    Ok(Some(figures.collect()))
}

/// Processes that are stopped after each instruction, until [`finish`](Steps::finish).
struct Steps {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<u64>>>,
}

impl Steps {
    /// Returns when every instruction of the threads that the processes have counts.
    fn attach(pids: Vec<u32>) -> Result<Steps, Failure> {
        let is_over = Arc::new(AtomicBool::new(false));
        let (is_attached, attached) = channel();
        let thread = {
            let is_over = Arc::clone(&is_over);
            // The kernel takes requests only from the thread that has attached.
            std::thread::spawn(move || count(&pids, &is_attached, &is_over))
        };
        // When it has failed instead, `finish` says why.
        let _ = attached.recv();
        Ok(Steps { is_over, thread })
    }

    /// Leaves them alone. What each has executed.
    fn finish(self) -> Result<Vec<u64>, Failure> {
        self.is_over.store(true, Ordering::Relaxed);
        let counted = self.thread.join().map_err(|_| "the thread that counts panicked")?;
        Ok(counted.map_err(|error| format!("instructions cannot be counted: {error}"))?)
    }
}

fn count(pids: &[u32], is_attached: &Sender<()>, is_over: &AtomicBool) -> io::Result<Vec<u64>> {
    let mut steps = vec![0; pids.len()];
    pin(0)?;
    let mut threads = HashMap::new();
    for (index, pid) in pids.iter().enumerate() {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = thread?.file_name();
            let thread = name.to_str().and_then(|name| name.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
            // To wake another core for each instruction takes ten times as long.
            pin(thread)?;
            request(libc::PTRACE_SEIZE, thread, 0)?;
            request(libc::PTRACE_INTERRUPT, thread, 0)?;
            threads.insert(thread, (index, None));
        }
    }
    let _ = is_attached.send(());
    let mut is_ending = false;
    while !threads.is_empty() {
        if !is_ending && is_over.load(Ordering::Relaxed) {
            is_ending = true;
            threads.keys().try_for_each(|&thread| request(libc::PTRACE_INTERRUPT, thread, 0))?;
        }
        let Some((thread, status)) = next_stop()? else {
            std::thread::yield_now();
            continue;
        };
        let Some((index, last)) = threads.get_mut(&thread) else { continue };
        if !libc::WIFSTOPPED(status) {
            threads.remove(&thread);
            continue;
        }
        let is_interrupted = status >> 16 == libc::PTRACE_EVENT_STOP;
        let signal = match libc::WSTOPSIG(status) {
            _ if is_interrupted => 0,
            libc::SIGTRAP => {
                // One that repeats itself stops each time, and is one.
                let address = Some(address(thread)?);
                steps[*index] += u64::from(address != *last);
                *last = address;
                0
            }
            signal => signal,
        };
        if is_interrupted && is_ending {
            request(libc::PTRACE_DETACH, thread, 0)?;
            threads.remove(&thread);
        } else {
            request(libc::PTRACE_SINGLESTEP, thread, signal)?;
        }
    }
    Ok(steps)
}

fn request(request: libc::c_uint, thread: i32, signal: i32) -> io::Result<()> {
    let signal = ptr::without_provenance_mut::<libc::c_void>(signal.unsigned_abs() as usize);
    // SAFETY: none of the requests reads or writes memory of this process.
    let outcome = unsafe { libc::ptrace(request, thread, ptr::null_mut::<libc::c_void>(), signal) };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps a thread on the first core; 0 is the calling one.
fn pin(thread: i32) -> io::Result<()> {
    // SAFETY: all zeroes are a valid set, and the call reads it only.
    let outcome = unsafe {
        let mut first: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut first);
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &first)
    };
    if outcome < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the address at which a thread has stopped after an instruction.
fn address(thread: i32) -> io::Result<usize> {
    // SAFETY: all zeroes are a valid siginfo, which the call fills in; it is that of a stop after an instruction, which has an address.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let into = ptr::from_mut(&mut info).cast::<libc::c_void>();
        if libc::ptrace(libc::PTRACE_GETSIGINFO, thread, ptr::null_mut::<libc::c_void>(), into) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(info.si_addr().addr())
    }
}

/// Returns a thread that has stopped, or ended, and how; only of those that this thread has attached to.
fn next_stop() -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    // SAFETY: it writes the status only.
    let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG) };
    if thread < 0 { Err(io::Error::last_os_error()) } else { Ok((thread > 0).then_some((thread, status))) }
}
