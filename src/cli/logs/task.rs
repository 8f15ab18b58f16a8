//! Output of tasks.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::Serialize;

use super::super::connect::unexpected_reply;
use super::super::named::{self, NamedTask};
use super::super::{CommandError, CommandResult, Format, report};
use super::{Args, INTERVAL};
use crate::clock::utc;
use crate::driver::{Driver, DriverError};
use crate::exit;
use crate::protocol::{ActorState, Query, Reply, Stream, TaskFilter, TaskReport};
use crate::session;
use crate::task::TaskId;
use crate::task_logs::{Line, TaskLogs, task_of};
use crate::task_output::{Extent, Owner};
use tracer_core::hex::hex;

/// The most tasks that are looked at for the methods of an actor.
const TASK_LIMIT: usize = 100_000;

/// Selection of lines.
enum Wanted {
    Tasks {
        ids: BTreeSet<TaskId>,
        /// The actor whose methods they are, if it is one.
        actor: Option<TaskId>,
        /// Time of the submission, if it is known: what was written before is of another session's task of that id.
        since_unix_nano: u64,
    },
    /// The beginning of a trace's id.
    Trace(String),
    /// Whatever wrote last; its task is found with the lines.
    Last,
}

impl Wanted {
    fn is(&self, extent: &Extent) -> bool {
        match self {
            Wanted::Tasks { ids, since_unix_nano, .. } => {
                extent.unix_nano >= *since_unix_nano && task_of(extent.owner).is_some_and(|task| ids.contains(&task))
            }
            Wanted::Trace(start) => {
                matches!(extent.owner, Owner::Attempt { trace_id, .. } if trace_id != [0; 16] && hex(&trace_id).starts_with(start))
            }
            Wanted::Last => true,
        }
    }
}

/// A line as JSON.
#[derive(Serialize)]
struct LineReport<'a> {
    task_id: Option<TaskId>,
    /// None for calls of an actor that share their output.
    attempt: Option<u32>,
    trace_id: Option<String>,
    stream: &'static str,
    worker_id: u64,
    worker_pid: u32,
    unix_nano: u64,
    is_approximate: bool,
    text: &'a str,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = match Driver::connect(&args.place.temp_dir()) {
        Ok(driver) => Some(driver),
        // The logs outlive their head.
        Err(DriverError::Session(session::SessionError::NoHead { .. })) => None,
        Err(error) => return Err(error.into()),
    };
    let mut wanted = wanted(args, driver.as_mut())?;
    let sessions = sessions(args, driver.as_ref());
    let (mut logs, mut lines) = match find(&sessions, &mut wanted)? {
        Some(found) => found,
        None => {
            let may_come = args.follow && driver.as_mut().is_some_and(|driver| goes_on(driver, &mut wanted));
            match sessions.first().filter(|_| may_come) {
                Some(own) => (TaskLogs::of_session(own), Vec::new()),
                None => return nothing_found(args, &wanted, driver.as_mut()),
            }
        }
    };
    check_one_trace(&wanted, &lines)?;
    let mut approximate = 0;
    loop {
        // Looked at before what was written last is read.
        let goes_on = args.follow && driver.as_mut().is_some_and(|driver| goes_on(driver, &mut wanted));
        lines.extend(read(&mut logs, &wanted)?);
        if !goes_on {
            lines.extend(logs.take_rest());
        }
        approximate += show(args, &wanted, &lines);
        lines.clear();
        if !goes_on {
            say_approximate(approximate);
            return Ok(exit::OK);
        }
        std::thread::sleep(INTERVAL);
    }
}

/// Finds out which lines are meant.
fn wanted(args: &Args, driver: Option<&mut Driver>) -> Result<Wanted, CommandError> {
    if let Some(trace) = &args.trace {
        return wanted_trace(trace, driver);
    }
    let name = args.id.as_deref().unwrap_or("last");
    let Some(driver) = driver else {
        return match name.parse() {
            _ if name == "last" => Ok(Wanted::Last),
            Ok(NamedTask::Id(id)) => Ok(Wanted::Tasks { ids: BTreeSet::from([id]), actor: None, since_unix_nano: 0 }),
            _ => Err(CommandError::new(
                exit::FAILED,
                format!(
                    "no head runs, so nobody knows an actor named `{name}`\n(hint: `tracer logs ID` needs no head)"
                ),
            )),
        };
    };
    if name == "last" {
        return Ok(last_task(driver)?.map_or(Wanted::Last, |task| of_task(&task)));
    }
    let named: NamedTask =
        name.parse().map_err(|error| CommandError::new(exit::USAGE, format!("`{name}` is no task id: {error}")))?;
    let id = named.id(driver)?;
    let Reply::Task(found) = driver.query(&Query::Task { id })? else { return Err(unexpected_reply()) };
    let mut wanted = match found {
        Some(task) => of_task(&task),
        // It may have been forgotten, or be of an earlier session.
        None => Wanted::Tasks { ids: BTreeSet::from([id]), actor: None, since_unix_nano: 0 },
    };
    add_methods(driver, &mut wanted);
    Ok(wanted)
}

fn of_task(task: &TaskReport) -> Wanted {
    let actor = task.actor_id.filter(|&actor| actor == task.id);
    Wanted::Tasks { ids: BTreeSet::from([task.id]), actor, since_unix_nano: task.submitted_unix_nano }
}

fn wanted_trace(trace: &str, driver: Option<&mut Driver>) -> Result<Wanted, CommandError> {
    if trace == "last" {
        let Some(driver) = driver else {
            return Err(CommandError::new(
                exit::FAILED,
                "no head runs, so nobody knows which trace was the last\n(hint: `tracer trace list` names traces)",
            ));
        };
        let last = last_task(driver)?.and_then(|task| task.trace_id);
        return last.map(Wanted::Trace).ok_or_else(|| {
            let text = "the last task has no trace, or there is none\n(hint: `tracer trace list` names traces)";
            CommandError::new(exit::FAILED, text)
        });
    }
    let digits = trace.strip_prefix("0x").unwrap_or(trace).to_ascii_lowercase();
    if !(1..=32).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let text = format!("expected a trace id (up to 32 hex digits), or `last`, found `{trace}`");
        return Err(CommandError::new(exit::USAGE, text));
    }
    Ok(Wanted::Trace(digits))
}

/// The task that was submitted last.
fn last_task(driver: &mut Driver) -> Result<Option<TaskReport>, CommandError> {
    let Reply::Tasks(list) = driver.query(&Query::Tasks { limit: 1, which: TaskFilter::default() })? else {
        return Err(unexpected_reply());
    };
    Ok(list.tasks.into_iter().next())
}

/// Adds the calls of an actor to its creation.
fn add_methods(driver: &mut Driver, wanted: &mut Wanted) {
    let Wanted::Tasks { ids, actor: Some(actor), .. } = wanted else { return };
    let query = Query::Tasks { limit: TASK_LIMIT, which: TaskFilter::default() };
    if let Ok(Reply::Tasks(list)) = driver.query(&query) {
        ids.extend(list.tasks.iter().filter(|task| task.actor_id == Some(*actor)).map(|task| task.id));
    }
}

/// Returns whether what is wanted may still be written.
fn goes_on(driver: &mut Driver, wanted: &mut Wanted) -> bool {
    add_methods(driver, wanted);
    match wanted {
        Wanted::Tasks { actor: Some(actor), .. } => {
            let query = Query::Actor { wanted: actor.to_string() };
            matches!(driver.query(&query), Ok(Reply::Actor(Ok(actor))) if actor.state != ActorState::Dead)
        }
        Wanted::Tasks { ids, .. } => ids.iter().any(|&id| {
            matches!(driver.query(&Query::Task { id }), Ok(Reply::Task(Some(task))) if task.ended_unix_nano.is_none())
        }),
        Wanted::Trace(_) | Wanted::Last => driver.query(&Query::Status).is_ok(),
    }
}

/// The sessions to look into: the head's, then the others, newest first.
fn sessions(args: &Args, driver: Option<&Driver>) -> Vec<PathBuf> {
    let own = driver.map(|driver| driver.welcome().session_dir.clone());
    let mut others = session::all_sessions(&args.place.temp_dir());
    others.retain(|folder| Some(folder) != own.as_ref());
    others.sort_by_key(|folder| std::cmp::Reverse(folder.metadata().and_then(|metadata| metadata.modified()).ok()));
    own.into_iter().chain(others).collect()
}

/// Finds the session in which the wanted lines are, and reads those that are there. Of the last task's, makes its task what is wanted.
fn find(sessions: &[PathBuf], wanted: &mut Wanted) -> Result<Option<(TaskLogs, Vec<Line>)>, CommandError> {
    for session in sessions {
        if let Wanted::Last = wanted {
            let last = read(&mut TaskLogs::of_session(session), wanted)?.into_iter().next_back();
            let Some(task) = last.and_then(|line| task_of(line.owner)) else { continue };
            *wanted = Wanted::Tasks { ids: BTreeSet::from([task]), actor: None, since_unix_nano: 0 };
        }
        let mut logs = TaskLogs::of_session(session);
        let lines = read(&mut logs, wanted)?;
        if !lines.is_empty() || logs.has_rest() {
            return Ok(Some((logs, lines)));
        }
    }
    Ok(None)
}

fn read(logs: &mut TaskLogs, wanted: &Wanted) -> Result<Vec<Line>, CommandError> {
    match logs.read(|extent| wanted.is(extent)) {
        Ok(lines) => Ok(lines),
        // A session that another head is removing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => {
            let text = format!("the logs in `{}` cannot be read: {error}", logs.folder().display());
            Err(CommandError::new(exit::FAILED, text))
        }
    }
}

/// Refuses the beginning of an id that several traces have.
fn check_one_trace(wanted: &Wanted, lines: &[Line]) -> Result<(), CommandError> {
    let Wanted::Trace(start) = wanted else { return Ok(()) };
    let ids: BTreeSet<String> = lines.iter().filter_map(trace_of).collect();
    if ids.len() < 2 {
        return Ok(());
    }
    let ids: Vec<_> = ids.iter().take(5).map(|id| format!("`{id}`")).collect();
    let text = format!("several traces begin with `{start}`: {}\n(hint: give more of its digits)", ids.join(", "));
    Err(CommandError::new(exit::USAGE, text))
}

fn trace_of(line: &Line) -> Option<String> {
    match line.owner {
        Owner::Attempt { trace_id, .. } if trace_id != [0; 16] => Some(hex(&trace_id)),
        _ => None,
    }
}

/// Shows the lines that the flags let through, and returns how many of them are approximate.
fn show(args: &Args, wanted: &Wanted, lines: &[Line]) -> usize {
    let stream = args.stream.map(super::StreamName::stream);
    let chosen = lines.iter().filter(|line| {
        stream.is_none_or(|stream| stream == line.stream)
            && args.grep.as_ref().is_none_or(|text| line.text.contains(text.as_str()))
    });
    let is_one_task = matches!(wanted, Wanted::Tasks { ids, .. } if ids.len() == 1);
    let (mut text, mut approximate) = (String::new(), 0);
    for line in chosen {
        approximate += usize::from(line.is_approximate);
        match args.format.format {
            Format::Json => text.push_str(&report::json_line(&line_report(line))),
            Format::Text => {
                if args.times {
                    text.push_str(&format!("{} ", utc(line.unix_nano)));
                }
                if !is_one_task && let Some(task) = task_of(line.owner) {
                    text.push_str(&format!("(task {task} pid={}) ", line.worker.1));
                }
                if line.is_approximate {
                    text.push_str("~ ");
                }
                text.push_str(&line.text);
                text.push('\n');
            }
        }
    }
    if !text.is_empty() {
        match args.format.format {
            Format::Json => report::json(text.trim_end_matches('\n')),
            Format::Text => report::text(&text),
        }
    }
    approximate
}

fn line_report(line: &Line) -> LineReport<'_> {
    LineReport {
        task_id: task_of(line.owner),
        attempt: match line.owner {
            Owner::Attempt { attempt, .. } => Some(attempt),
            _ => None,
        },
        trace_id: trace_of(line),
        stream: if line.stream == Stream::Stdout { "stdout" } else { "stderr" },
        worker_id: line.worker.0,
        worker_pid: line.worker.1,
        unix_nano: line.unix_nano,
        is_approximate: line.is_approximate,
        text: &line.text,
    }
}

fn say_approximate(count: usize) {
    if count > 0 {
        report::talk(&format!(
            "`~`: {} came while the task ran in its worker, and may be of the one before or after it: its function had written nothing until then",
            crate::count::Count(count, "line")
        ));
    }
}

/// Says that nothing was found, and why that may be.
fn nothing_found(args: &Args, wanted: &Wanted, driver: Option<&mut Driver>) -> CommandResult {
    if let Wanted::Tasks { ids, .. } = wanted
        && let (Some(&id), Some(driver)) = (ids.first(), driver)
    {
        let task = named::task(driver, id)?;
        let mut text = match task.ended_unix_nano {
            Some(_) => format!("task {id} has written nothing"),
            None => format!("task {id} has written nothing yet"),
        };
        if let Some(actor) = task.actor_id.filter(|&actor| actor != id) {
            text.push_str(&format!(
                "\n(hint: what calls of an actor write beside each other is the actor's: `tracer logs {actor}`)"
            ));
        }
        report::talk(&text);
        return Ok(exit::OK);
    }
    let place = args.place.temp_dir();
    let what = match wanted {
        Wanted::Trace(start) => format!("no task of a trace `{start}` has written anything that is kept"),
        Wanted::Tasks { ids, .. } if !ids.is_empty() => {
            format!("no output of task {} is kept", ids.first().unwrap_or(&TaskId(0)))
        }
        _ => "no output of a task is kept".into(),
    };
    Err(CommandError::new(
        exit::FAILED,
        format!(
            "{what} in `{}`\n(hint: `tracer list tasks` and `tracer trace list` name tasks and traces)",
            place.display()
        ),
    ))
}
