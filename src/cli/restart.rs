//! `tracer restart`, and heads of other versions.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};
use tracer_client::connection::send_order;
use tracer_client::driver::DriverError;
use tracer_core::count::{Count, Elapsed};
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_core::task::RefusalCode;
use tracer_head::settings::HeadSettings;
use tracer_ipc::protocol::order::{HeadFacts, Order, OrderAnswer, StartLine};
use tracer_ipc::protocol::{StopReport, spoken_version};
use tracer_ipc::session::{HeadRecord, find_head};

use super::start::SETTINGS_FLAG;
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};

/// Have this version of tracer, or changed settings, go on in the place of the head
///
/// Hook, engine and settings are tried first, as `tracer start` does, with the command line that the head was started with, in its folder and environment; a
/// configuration file is read again. If that fails, the head goes on as it was. Running tasks have the grace period; what has not ended then goes on with the
/// next head, as after `tracer stop`. Whoever connects meanwhile waits.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  cargo install --path . && tracer restart
  tracer restart --grace-period 1m")]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    /// Time for running tasks to end
    #[arg(short, long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, env = "TRACER_GRACE_PERIOD")]
    grace_period: Duration,
    #[command(flatten)]
    format: FormatArgs,
}

/// Time that the next head may take until it answers.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Interval at which it is looked for.
const LOOK: Duration = Duration::from_millis(10);

/// Outcome of a restart.
#[derive(Debug, serde::Serialize)]
struct RestartReport {
    head_pid: u32,
    previous_head_pid: u32,
    version: String,
    previous_version: String,
    executable: PathBuf,
    /// True if processes of services went on; false if they began anew.
    are_services_kept: bool,
    /// Workers that had to be killed.
    killed: Vec<u32>,
    /// Tasks that had not ended and go on with the next head.
    kept: usize,
    /// Tasks that had not ended and cannot go on.
    lost: usize,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let temp_dir = args.place.temp_dir();
    let before = find_head(&temp_dir).map_err(DriverError::Session)?;
    let executable = std::env::current_exe()?;
    let facts = send(&before, &Order::status())?.head;
    let keeps_services = facts.protocol_version == spoken_version();
    if facts.is_embedded {
        let text = format!(
            "the head (pid {}) belongs to a program, with which it ends\n(hint: end that program and start it again)",
            facts.head_pid
        );
        return Err(CommandError::new(exit::USAGE, text));
    }
    let Some(start) = &facts.start else {
        let text = "it is not known how the head was started\n(hint: `tracer stop` keeps its tasks and services; `tracer start` then goes on with them)";
        return Err(CommandError::new(exit::FAILED, text));
    };
    let settings = try_settings(&facts, start)?;
    let place = settings.temp_dir.canonicalize().unwrap_or_else(|_| settings.temp_dir.clone());
    if !facts.session_dir.starts_with(&place) {
        let text = format!(
            "the settings of the head now name the place `{}`, but it is in `{}`; it goes on as it was",
            settings.temp_dir.display(),
            temp_dir.display()
        );
        return Err(CommandError::new(exit::USAGE, text));
    }
    report::talk(&plan(&facts, keeps_services, args.grace_period));
    let file = facts.session_dir.join("restart.json");
    tracer_ipc::private_file::replace(
        &file,
        &file.with_extension("unfinished"),
        &serde_json::to_vec(&settings).map_err(io::Error::other)?,
    )?;
    let order = Order {
        order: Order::RESTART.into(),
        grace_ms: u64::try_from(args.grace_period.as_millis()).unwrap_or(u64::MAX),
        executable: Some(executable.clone()),
        settings: Some(file.clone()),
        protocol_version: spoken_version(),
        ..Order::default()
    };
    let answer = send(&before, &order).inspect_err(|_| drop(fs::remove_file(&file)))?;
    let stopped = answer.stopped.unwrap_or_default();
    let next = wait_for_next(&temp_dir, &facts)?;
    let report = RestartReport {
        head_pid: next.head_pid,
        previous_head_pid: facts.head_pid,
        version: next.version,
        previous_version: facts.version.clone(),
        executable,
        are_services_kept: keeps_services,
        killed: stopped.killed,
        kept: stopped.kept,
        lost: stopped.unfinished.saturating_sub(stopped.kept),
    };
    report::value(args.format.format, &report, |report| render(report, &facts));
    Ok(exit::OK)
}

/// Sends an order to a head. Fails with its reason if it does not follow it, and with the next step if it knows no orders.
fn send(head: &HeadRecord, order: &Order) -> Result<OrderAnswer, CommandError> {
    match send_order(&head.session_dir, order) {
        Ok(OrderAnswer { refused: Some(reason), .. }) => Err(CommandError::new(exit::FAILED, reason)),
        Ok(answer) => Ok(answer),
        Err(DriverError::Disconnected(_)) => Err(too_old(head, &order.order)),
        Err(error) => Err(error.into()),
    }
}

/// Returns the error for a head that knows no orders.
fn too_old(head: &HeadRecord, order: &str) -> CommandError {
    let text = format!(
        "the head (tracer {}, pid {}) is of a version that cannot be told to {order} by this one (tracer {})\n\
         (hint: `tracer stop` ends it, and `tracer start --head` then goes on with its tasks)",
        head.version,
        head.pid,
        tracer_ipc::VERSION
    );
    CommandError::new(exit::FAILED, text)
}

/// Has this version of tracer try all that the head was started with, and returns the settings.
fn try_settings(facts: &HeadFacts, start: &StartLine) -> Result<HeadSettings, CommandError> {
    let of_guard = facts.guard_pid.unwrap_or(facts.head_pid);
    let environment = fs::read(format!("/proc/{of_guard}/environ"))?;
    let variables = environment.split(|&byte| byte == 0).filter_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        Some((OsString::from_vec(pair[..at].to_vec()), OsString::from_vec(pair[at + 1..].to_vec())))
    });
    let mut command = Command::new(std::env::current_exe()?);
    command.env_clear().envs(variables).current_dir(&start.folder).args(&start.arguments).arg(SETTINGS_FLAG);
    // What it has to say is for whoever restarts.
    let tried = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|error| {
        let folder = start.folder.display();
        let text = format!("`tracer start` cannot be tried in `{folder}`, where the head was started: {error}");
        CommandError::new(exit::FAILED, text)
    })?;
    let settings = serde_json::from_slice(&tried.stdout).ok().filter(|_| tried.status.success());
    settings.ok_or_else(|| {
        let code = tried.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED);
        let text = format!(
            "`{} {}` would not start (above); the head (pid {}) goes on as it was",
            std::env::args().next().unwrap_or_default(),
            start.arguments.join(" "),
            facts.head_pid
        );
        CommandError::new(code, text)
    })
}

/// Says what is going to happen to what there is.
fn plan(facts: &HeadFacts, keeps_services: bool, grace: Duration) -> String {
    let mut text =
        format!("restarting the head (pid {}), tracer {} → {}", facts.head_pid, facts.version, tracer_ipc::VERSION);
    if facts.running > 0 {
        let tasks = Count(facts.running, "running task");
        text.push_str(&format!(
            "\n{tasks}: up to {} to end, then tried again at no charge, or lost if it may not begin twice",
            Elapsed(grace)
        ));
    }
    if facts.waiting > 0 {
        text.push_str(&format!("\n{}: kept", Count(facts.waiting, "waiting task")));
    }
    if facts.actors > 0 {
        let actors = Count(facts.actors, "actor");
        text.push_str(&format!("\n{actors}: ended; detached ones that may be made again are"));
    }
    if facts.services > 0 {
        let services = Count(facts.services, "service");
        let processes = Count(facts.service_processes, "process");
        text.push_str(&match keeps_services {
            true => format!("\n{services}: goes on, {processes} of tracer {} until the next deploy", facts.version),
            false => format!("\n{services}: answers what it has and begins anew; connections wait"),
        });
    }
    text
}

/// Waits until the next head answers, and returns what it says of itself.
fn wait_for_next(temp_dir: &Path, before: &HeadFacts) -> Result<HeadFacts, CommandError> {
    let deadline = Instant::now() + START_LIMIT;
    let guard = before.guard_pid.unwrap_or(before.head_pid);
    loop {
        let next = find_head(temp_dir).ok().filter(|next| next.pid != before.head_pid);
        // Until it listens, whoever connects is told that it is not there.
        let answer = next.and_then(|next| send_order(&next.session_dir, &Order::status()).ok());
        if let Some(answer) = answer {
            return Ok(answer.head);
        }
        let is_gone = !Path::new("/proc").join(guard.to_string()).exists();
        if is_gone || Instant::now() >= deadline {
            let what = if is_gone { "has ended" } else { "does not answer" };
            let log = before.session_dir.join("logs/head.log");
            let text = format!(
                "the next head {what}; what was accepted is kept\n(hint: `{}` says why; `tracer start --head` begins one in this place)",
                log.display()
            );
            return Err(CommandError::new(exit::FAILED, text));
        }
        std::thread::sleep(LOOK);
    }
}

fn render(report: &RestartReport, before: &HeadFacts) -> String {
    let mut text = format!("restarted: head (pid {}), tracer {}", report.head_pid, report.version);
    if report.kept > 0 {
        text.push_str(&format!("\nkept: {}, which it goes on with", Count(report.kept, "task")));
    }
    if report.lost > 0 {
        text.push_str(&format!("\nlost: {}, which may not begin twice", Count(report.lost, "task")));
    }
    if before.services > 0 {
        let how = if report.are_services_kept { "went on" } else { "began anew" };
        text.push_str(&format!("\nservices: {} {how}", before.services));
    }
    text
}

// ---- heads of other versions ----

/// Returns whether a head did not take a connection because it speaks another version of the protocol.
pub(super) fn is_of_another_version(error: &DriverError) -> bool {
    matches!(error, DriverError::Refused(refusal) if refusal.code == RefusalCode::ProtocolVersion)
}

/// Says what is known of a head of another version.
pub(super) fn show_status_of_another(temp_dir: &Path, format: super::Format) -> CommandResult {
    let head = find_head(temp_dir).map_err(DriverError::Session)?;
    let facts = match send_order(&head.session_dir, &Order::status()) {
        Ok(answer) => answer.head,
        Err(DriverError::Disconnected(_)) => return Err(too_old(&head, Order::STATUS)),
        Err(error) => return Err(error.into()),
    };
    report::value(format, &facts, |facts| {
        let state = if facts.is_stopping { "stopping" } else { "running" };
        let fields = [
            ("head", format!("pid {}, {state}", facts.head_pid)),
            ("session", facts.session_dir.display().to_string()),
            ("tasks", format!("{} waiting, {} running", facts.waiting, facts.running)),
            ("workers", facts.workers.to_string()),
            ("actors", facts.actors.to_string()),
            ("services", format!("{}, {}", facts.services, Count(facts.service_processes, "process"))),
        ];
        format!(
            "the head is tracer {}, this is tracer {}: they speak different versions of the protocol\n\
             (hint: `tracer restart` has this version go on in its place)\n{}",
            facts.version,
            tracer_ipc::VERSION,
            report::fields(&fields).trim_end()
        )
    });
    Ok(exit::OK)
}

/// Ends a head of another version, by an order, or, if it knows none, by a signal. None if it was a signal, of which nothing is told.
pub(super) fn stop_another(head: &HeadRecord, order: &Order) -> Result<Option<StopReport>, CommandError> {
    match send_order(&head.session_dir, order) {
        Ok(OrderAnswer { refused: Some(reason), .. }) => Err(CommandError::new(exit::FAILED, reason)),
        Ok(OrderAnswer { stopped, .. }) => Ok(Some(stopped.unwrap_or_default())),
        Err(DriverError::Disconnected(_)) if order.order == Order::DRAIN || order.discard => {
            Err(too_old(head, if order.discard { "discard what it has" } else { Order::DRAIN }))
        }
        Err(DriverError::Disconnected(_)) => {
            let pid = i32::try_from(head.pid).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| io::Error::other("the lock of the place names no process"))?;
            kill_process(pid, Signal::TERM).map_err(io::Error::from)?;
            if order.force {
                // A second one does not wait.
                kill_process(pid, Signal::TERM).map_err(io::Error::from)?;
            }
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_says_what_becomes_of_each_kind_of_thing_that_there_is() {
        let idle = HeadFacts { head_pid: 7, version: "0.1.0".into(), ..HeadFacts::default() };
        let first = format!("restarting the head (pid 7), tracer 0.1.0 → {}", tracer_ipc::VERSION);
        assert_eq!(plan(&idle, true, Duration::from_secs(10)), first);
        let busy = HeadFacts { running: 2, waiting: 1, actors: 1, services: 1, service_processes: 3, ..idle };
        let text = plan(&busy, true, Duration::from_secs(10));
        let lines: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            lines,
            [
                "2 running tasks: up to 10 s to end, then tried again at no charge, or lost if it may not begin twice",
                "1 waiting task: kept",
                "1 actor: ended; detached ones that may be made again are",
                "1 service: goes on, 3 processes of tracer 0.1.0 until the next deploy",
            ]
        );
        let other = plan(&busy, false, Duration::from_secs(10));
        assert!(other.ends_with("1 service: answers what it has and begins anew; connections wait"), "{other}");
    }
}
