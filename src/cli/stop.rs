//! `tracer stop`.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tracer_client::driver::{Driver, DriverError};
use tracer_core::count::Count;
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_ipc::protocol::order::Order;
use tracer_ipc::protocol::{Query, Reply, StopMode, StopReport};
use tracer_ipc::session::find_head;

use super::connect::unexpected_reply;
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report, restart};

/// End the head and its workers
///
/// Workers finish the task they are running, up to the grace period; then they are killed, with everything they started.
/// Tasks that have not ended are kept: the next head in this place goes on with them, and with its services. A task that may not begin twice
/// (`--at-most-once`, `--crash-limit 0`) and was killed while it ran ends as lost.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  tracer stop --grace-period 30s
  tracer stop --drain      # accepts nothing new, ends when all tasks have
  tracer stop --discard    # gives up what has not ended")]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Time for running tasks to end
    #[arg(short, long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, env = "TRACER_GRACE_PERIOD")]
    grace_period: Duration,
    /// Kill at once
    #[arg(short, long)]
    force: bool,
    /// End the tasks that have not ended as stopped, instead of keeping them for the next head
    #[arg(long)]
    discard: bool,
    /// Accept no task any more, wait until all have ended, and then stop; those in queues of an engine are kept
    #[arg(long, conflicts_with_all = ["force", "discard"])]
    drain: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// Time that the head may take to end once it has stopped everything.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// The same of a head of an old version that a signal has ended: its grace period, and this.
const SIGNAL_LIMIT: Duration = Duration::from_secs(25);

pub(super) fn run(args: &Args) -> CommandResult {
    let temp_dir = args.place.temp_dir();
    let head = find_head(&temp_dir).map_err(DriverError::Session)?;
    let connected = Driver::connect(&temp_dir);
    // Opened while the head is known to live, so that these are surely the processes that are waited for.
    let pids = [Some(head.pid), head.guard_pid];
    let pidfds: Vec<_> = pids
        .into_iter()
        .filter_map(|pid| pidfd_open(Pid::from_raw(i32::try_from(pid?).ok()?)?, PidfdFlags::empty()).ok())
        .collect();
    let grace_ms = u64::try_from(args.grace_period.as_millis()).unwrap_or(u64::MAX);
    let mode = match (args.discard, args.drain) {
        (true, _) => StopMode::Discard,
        (_, true) => StopMode::Drain,
        _ => StopMode::Keep,
    };
    let (stopped, limit) = match connected {
        Ok(mut driver) => match driver.query(&Query::Stop { grace_ms, force: args.force, mode })? {
            Reply::Stopped(stopped) => (stopped, EXIT_LIMIT),
            _ => return Err(unexpected_reply()),
        },
        Err(error) if restart::is_of_another_version(&error) => {
            let order = if args.drain { Order::DRAIN } else { Order::STOP };
            let (order, force, discard) = (order.into(), args.force, args.discard);
            let order = Order { order, grace_ms, force, discard, ..Order::default() };
            match restart::stop_another(&head, &order)? {
                Some(stopped) => (stopped, EXIT_LIMIT),
                None => (StopReport { head_pid: head.pid, ..StopReport::default() }, SIGNAL_LIMIT),
            }
        }
        Err(error) => return Err(error.into()),
    };
    for pidfd in &pidfds {
        let limit = Timespec { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(10), tv_nsec: 0 };
        let ended = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit));
        if ended == Ok(0) {
            let text = format!("the head (pid {}) has stopped its workers but does not end", stopped.head_pid);
            return Err(CommandError::new(exit::FAILED, text));
        }
    }
    match args.format.format {
        super::Format::Text => report::talk(&render(&stopped, &super::hooks::undelivered::command(&temp_dir))),
        super::Format::Json => report::value(args.format.format, &stopped, |_| String::new()),
    }
    Ok(exit::OK)
}

fn render(report: &StopReport, command: &str) -> String {
    let workers = report.stopped.len() + report.killed.len();
    let mut text = format!("stopped the head (pid {}) and {}", report.head_pid, Count(workers, "worker"));
    if !report.killed.is_empty() {
        let pids: Vec<_> = report.killed.iter().map(ToString::to_string).collect();
        text.push_str(&format!("; {} had to be killed (pid {})", report.killed.len(), pids.join(", ")));
    }
    if report.kept > 0 {
        let tasks = Count(report.kept, "task");
        text.push_str(&format!(
            "\nkept: {tasks}, which the next head in this place goes on with\n(hint: `tracer start --head` begins one; `tracer stop --discard` gives up what has not ended)"
        ));
    }
    if report.unfinished > report.kept {
        text.push_str(&format!("\n{} had not ended", Count(report.unfinished - report.kept, "task")));
    }
    if report.spans_waiting > 0 {
        let spans = Count(report.spans_waiting, "span");
        text.push_str(&format!(
            "\nundelivered: {spans}, waiting for an exporter that accepts them; the next head in this place goes on (see `{command}`)"
        ));
    }
    if report.spans_of_other_hooks > 0 {
        let spans = Count(report.spans_of_other_hooks, "span");
        text.push_str(&format!("\nundelivered: {spans} of hooks that this head did not have (see `{command}`)"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_says_what_was_stopped_and_what_had_to_be_killed() {
        let quiet = StopReport { head_pid: 7, stopped: vec![8, 9], ..StopReport::default() };
        assert_eq!(render(&quiet, "c"), "stopped the head (pid 7) and 2 workers");
        let loud = StopReport {
            head_pid: 7,
            stopped: vec![8],
            killed: vec![9, 10],
            unfinished: 3,
            kept: 2,
            spans_waiting: 3,
            spans_of_other_hooks: 1,
        };
        assert_eq!(
            render(&loud, "c"),
            "stopped the head (pid 7) and 3 workers; 2 had to be killed (pid 9, 10)\n\
             kept: 2 tasks, which the next head in this place goes on with\n\
             (hint: `tracer start --head` begins one; `tracer stop --discard` gives up what has not ended)\n1 task had not ended\n\
             undelivered: 3 spans, waiting for an exporter that accepts them; the next head in this place goes on (see `c`)\n\
             undelivered: 1 span of hooks that this head did not have (see `c`)"
        );
    }
}
