//! `tracer wait`, and the waiting of `tracer get --wait`.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use tracer_client::driver::{Driver, DriverError};
use tracer_core::count::{Count, Elapsed};
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_core::task::{Failure, Outcome, TaskId};
use tracer_ipc::protocol::{Query, Reply, TaskState};

use super::connect::unexpected_reply;
use super::live_line::{self, LiveLine};
use super::named::{self, NamedTask};
use super::submit::exit_code;
use super::{CommandError, CommandResult, Format, FormatArgs, PlaceArgs, report};

/// Wait until tasks have ended
///
/// Says of each task how it has ended, on standard error. `tracer get ID` prints a result. Tasks that had ended before count too. An id that
/// is not known is an error, and then nothing is waited for. Ctrl-C ends the waiting; the tasks go on.
///
/// The exit code is 0 if all tasks that were waited for have succeeded. Else it is the highest of those that `tracer submit` would have
/// ended with: 1 for a task that failed or was cancelled, 124 for one that ran into a limit, and the exit code of a command. It is 124 too when
/// --timeout is over, and 130 after Ctrl-C.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer wait 7 8 9 --timeout 10m\n  tracer wait --any 7 8 9 --format json | jq '.tasks[].id'"
)]
pub(super) struct Args {
    /// The ids of the tasks, or the names of actors, for the tasks that create them
    #[arg(value_name = "ID", required = true)]
    ids: Vec<NamedTask>,
    /// Wait until one of them has ended, and not all
    #[arg(long)]
    any: bool,
    /// Maximum wait
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    let mut ids = NamedTask::ids(&args.ids, &mut driver)?;
    ids.sort_unstable();
    ids.dedup();
    let is_text = args.format.format == Format::Text;
    let place = args.place.temp_dir();
    let awaited = Awaited { ids: &ids, any: args.any, timeout: args.timeout, line_of: is_text.then_some(&place) };
    let waited = wait(&mut driver, &awaited, |id, outcome| {
        if is_text {
            report::talk(&describe(id, outcome));
        }
    })?;
    let code = waited.exit_code();
    if !is_text {
        let rows: Vec<_> = waited.ended.iter().map(|(id, outcome)| row(*id, outcome)).collect();
        let answer = serde_json::json!({
            "tasks": rows, "open": waited.open, "timed_out": waited.end == End::TimedOut, "exit_code": code,
        });
        report::value(Format::Json, &answer, |_| String::new());
        return Ok(code);
    }
    waited.say_end(args.timeout);
    Ok(code)
}

fn failure(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::Failed(failure) => Some(failure),
        Outcome::Returned(_) | Outcome::Stored(_) | Outcome::Completed => None,
    }
}

fn describe(id: TaskId, outcome: &Outcome) -> String {
    match (TaskState::of_outcome(outcome), failure(outcome)) {
        (TaskState::Cancelled, _) => format!("task {id} was cancelled"),
        (_, Some(failure)) => format!("task {id} {}: {failure}", failure.predicate()),
        (_, None) => format!("task {id} succeeded"),
    }
}

fn row(id: TaskId, outcome: &Outcome) -> serde_json::Value {
    let failure = failure(outcome);
    serde_json::json!({
        "id": id,
        "state": TaskState::of_outcome(outcome),
        "exit_code": failure.map_or(exit::OK, exit_code),
        "failure": failure,
        "message": failure.map(ToString::to_string),
    })
}

/// Result of waiting.
pub(super) struct Waited {
    /// Tasks that have ended, in the order in which that was heard of.
    pub(super) ended: Vec<(TaskId, Outcome)>,
    /// Tasks that have not ended.
    pub(super) open: Vec<TaskId>,
    pub(super) end: End,
}

/// Reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The tasks that were waited for have ended.
    Ended,
    /// `--timeout` is over.
    TimedOut,
    /// A Ctrl-C or SIGTERM came.
    Interrupted,
}

impl Waited {
    /// The one that the command ends with.
    pub(super) fn exit_code(&self) -> u8 {
        match self.end {
            End::Interrupted => exit::INTERRUPTED,
            End::TimedOut => exit::TIMED_OUT,
            End::Ended => {
                let codes = self.ended.iter().filter_map(|(_, outcome)| failure(outcome)).map(exit_code);
                codes.max().unwrap_or(exit::OK)
            }
        }
    }

    /// Says which tasks were not waited for to the end.
    pub(super) fn say_end(&self, timeout: Option<Duration>) {
        let open = Count(self.open.len(), "task");
        match self.end {
            End::Ended => {}
            End::TimedOut => {
                let limit = Elapsed(timeout.unwrap_or_default());
                report::talk(&format!("{open} had not ended after {limit} (--timeout): {}", list(&self.open)));
            }
            End::Interrupted => {
                let verb = if self.open.len() == 1 { "goes" } else { "go" };
                report::talk(&format!("interrupted; {open} {verb} on: {}", list(&self.open)));
            }
        }
    }
}

/// Returns the first of them.
fn list(ids: &[TaskId]) -> String {
    const NAMED: usize = 10;
    let mut text: Vec<_> = ids.iter().take(NAMED).map(ToString::to_string).collect();
    if ids.len() > NAMED {
        text.push(format!("and {} more", ids.len() - NAMED));
    }
    text.join(", ")
}

/// Tasks that are waited for.
pub(super) struct Awaited<'a> {
    pub(super) ids: &'a [TaskId],
    /// True to wait for one of them.
    pub(super) any: bool,
    pub(super) timeout: Option<Duration>,
    /// The place of the head, if a terminal shows what they are at.
    pub(super) line_of: Option<&'a PathBuf>,
}

/// Waits until all tasks have ended, or one of them, and tells of each as it ends.
pub(super) fn wait(
    driver: &mut Driver,
    awaited: &Awaited<'_>,
    mut on_ended: impl FnMut(TaskId, &Outcome),
) -> Result<Waited, CommandError> {
    let Awaited { ids, any, timeout, line_of } = *awaited;
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (mut signals, signal_tx) = UnixStream::pair()?;
    let was_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends this process at once, whatever it waits for.
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), Arc::clone(&was_interrupted))?;
        flag::register(signal, Arc::clone(&was_interrupted))?;
        pipe::register(signal, signal_tx.try_clone()?)?;
    }
    let mut waited = Waited { ended: Vec::new(), open: ids.to_vec(), end: End::Ended };
    // Watched before it is asked for: so none is forgotten in between.
    ids.iter().try_for_each(|&id| driver.watch(id))?;
    let mut target = String::new();
    for &id in ids {
        let Reply::Task(task) = driver.query(&Query::Task { id })? else { return Err(unexpected_reply()) };
        take_ended(driver, &mut waited, &mut on_ended, |other| other == id);
        if task.is_none() && waited.open.contains(&id) {
            return Err(named::no_task(id));
        }
        target = task.map(|task| task.target).unwrap_or_default();
    }
    let ended = Arc::new(AtomicUsize::new(waited.ended.len()));
    let _line = match (line_of.filter(|_| live_line::is_possible()), ids) {
        (None, _) => None,
        (Some(place), &[id]) => LiveLine::start(place, id, &target),
        (Some(_), _) => LiveLine::of_several(ids.len(), Arc::clone(&ended)),
    };
    loop {
        take_ended(driver, &mut waited, &mut on_ended, |_| true);
        ended.store(waited.ended.len(), Relaxed);
        if waited.open.is_empty() || (any && !waited.ended.is_empty()) {
            return Ok(waited);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            waited.end = End::TimedOut;
            return Ok(waited);
        }
        if wait_for_either(driver, &signals, left)? {
            let _ = signals.read(&mut [0]);
            waited.end = End::Interrupted;
            return Ok(waited);
        }
        driver.receive_available()?;
    }
}

/// Moves those that have ended, of those that are looked at.
fn take_ended(
    driver: &mut Driver,
    waited: &mut Waited,
    on_ended: &mut impl FnMut(TaskId, &Outcome),
    is_looked_at: impl Fn(TaskId) -> bool,
) {
    let Waited { ended, open, .. } = waited;
    open.retain(|&id| {
        let finished = if is_looked_at(id) { driver.take_watched(id) } else { None };
        let Some(finished) = finished else { return true };
        on_ended(id, &finished.outcome);
        ended.push((id, finished.outcome));
        false
    });
}

/// Waits for the head or a signal, and returns whether there was a signal.
fn wait_for_either(driver: &Driver, signals: &UnixStream, left: Option<Duration>) -> Result<bool, CommandError> {
    let mut wanted = [PollFd::new(signals, PollFlags::IN), PollFd::new(driver, PollFlags::IN)];
    let timeout = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    match poll(&mut wanted, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!wanted[0].revents().is_empty()),
        Err(error) => Err(DriverError::Disconnected(error.into()).into()),
    }
}
