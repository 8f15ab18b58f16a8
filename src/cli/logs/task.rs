//! Output and log records of tasks.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::utc;
use tracer_core::task::TaskId;
use tracer_core::{ClusterTaskId, exit};
use tracer_ipc::protocol::{ActorState, Query, Reply, TaskFilter, TaskPages, TaskReport};
use tracer_ipc::session;
use tracer_ipc::task_output::Owner;
use tracer_trace::log_entries::{Entry, Origin, Part, Reader, Selection, Spans, Tasks};
use tracer_trace::task_logs::TaskLogs;
use tracer_trace::{Live, LoadError, TraceId};

use super::super::connect::unexpected_reply;
use super::super::elsewhere::Submitted;
use super::super::named::{self, NamedTask};
use super::super::{CommandError, CommandResult, Format, report};
use super::{Args, INTERVAL, Level, StreamName};

/// The most tasks that are looked at for the methods of an actor.
const TASK_LIMIT: usize = 100_000;

/// Bytes of entries that are shown at once.
const BATCH: usize = 64 << 10;

/// The newest entries that are looked at for the last task, where no head knows it.
const NEWEST: usize = 1000;

/// Subject of the entries.
enum Wanted {
    Tasks {
        tasks: Tasks,
        /// The actor whose methods they are, if it is one.
        actor: Option<TaskId>,
        /// The task of a queue that it is, if it is one.
        of_queue: Option<OfQueue>,
    },
    /// The beginning of a trace's id.
    Trace(String),
    /// Whatever wrote last; its task is found with the entries.
    Last,
}

/// A task of a queue, which may begin on any node.
struct OfQueue {
    /// Its number in the submission, or of its run here for another node.
    id: TaskId,
    /// Its id in the cluster.
    cluster_id: String,
    /// The node of which was said that it has the lines.
    said: Option<String>,
    /// Its run on this node that has begun since.
    next: Option<Tasks>,
}

impl Wanted {
    fn of_id(id: TaskId) -> Wanted {
        let tasks = Tasks { ids: BTreeSet::from([id]), ..Tasks::default() };
        Wanted::Tasks { tasks, actor: None, of_queue: None }
    }

    /// Returns the selection of its entries that the flags let through.
    fn selection(&self, args: &Args) -> Selection {
        let (tasks, trace) = match self {
            Wanted::Tasks { tasks, .. } => (Some(tasks.clone()), None),
            Wanted::Trace(beginning) => (None, Some(beginning.clone())),
            Wanted::Last => (None, None),
        };
        Selection {
            tasks,
            trace,
            text: args.grep.clone(),
            origin: args.stream.map(StreamName::origin),
            least_severity: args.level.map_or(0, Level::severity),
            since_unix_nano: args.since.map_or(0, |since| since.0),
            until_unix_nano: args.until.map(|until| until.0),
        }
    }

    /// Takes the run of its task of a queue that has begun here since. False if there is none.
    fn take_next(&mut self) -> bool {
        let Wanted::Tasks { tasks, of_queue: Some(of_queue), .. } = self else { return false };
        let Some(next) = of_queue.next.take() else { return false };
        *tasks = next;
        true
    }

    /// Returns the node of which was said that it has the lines.
    fn said(&self) -> Option<&String> {
        let Wanted::Tasks { of_queue: Some(of_queue), .. } = self else { return None };
        of_queue.said.as_ref()
    }

    /// Returns the selection of all of its output.
    fn output(&self) -> Selection {
        let (tasks, trace) = match self {
            Wanted::Tasks { tasks, .. } => (Some(tasks.clone()), None),
            Wanted::Trace(beginning) => (None, Some(beginning.clone())),
            Wanted::Last => (None, None),
        };
        Selection { tasks, trace, ..Selection::default() }
    }
}

/// An entry as JSON, on a line of its own.
#[derive(Serialize)]
struct EntryReport<'a> {
    #[serde(flatten)]
    entry: &'a Entry,
    /// The process of the worker of a line.
    worker_pid: Option<u32>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut driver = match Driver::connect(&args.source.temp_dir()) {
        Ok(driver) => Some(driver),
        // The logs outlive their head.
        Err(DriverError::Session(session::SessionError::NoHead { .. })) => None,
        Err(error) => return Err(error.into()),
    };
    let (folder, head) = args.source.folder_and_head();
    let mut wanted = wanted(args, driver.as_mut())?;
    if let Wanted::Last = wanted {
        match last_without_head(&folder, &sessions(args, driver.as_ref()))? {
            Some(task) => wanted = Wanted::of_id(task),
            None => return nothing_found(args, &wanted, driver.as_mut()),
        }
    }
    if let (Wanted::Tasks { actor: Some(_), .. }, Some(driver)) = (&wanted, driver.as_mut()) {
        add_methods(driver, &mut wanted);
    }
    let sessions = sessions(args, driver.as_ref());
    let session = session_of(&sessions, &mut wanted)?.or(sessions.first().cloned());
    find_trace_of_task(&mut wanted, &folder)?;
    let reader_of = |wanted: &Wanted| {
        let live = head.as_ref().map(|head| Live::new(&head.session_dir));
        Reader::new(wanted.selection(args), &folder, session.as_deref(), Spans::Stored(live))
    };
    let mut reader = reader_of(&wanted);
    let mut shown = Shown::new(args);
    let (mut traces, mut is_first, mut tail) = (BTreeSet::new(), true, args.tail);
    loop {
        // Looked at before what was written last is read.
        let goes_on = args.follow && driver.as_mut().is_some_and(|driver| is_resumed(driver, &mut wanted));
        if let (Wanted::Tasks { tasks, actor: Some(_), .. }, Some(selected)) = (&wanted, &mut reader.selection().tasks)
        {
            selected.clone_from(tasks);
        }
        if begin(&mut reader, !goes_on, tail, &folder)? {
            let mut newest = tail.take().map(Newest::of);
            loop {
                let mut entries = Vec::new();
                let is_end = !read(&mut reader, &folder, |entry| match &mut newest {
                    Some(newest) => newest.take(entry),
                    None => entries.push(entry),
                })?;
                if is_end && let Some(newest) = newest.take() {
                    entries.extend(newest.entries);
                }
                reader.complete(entries.iter_mut()).map_err(|error| unreadable(&folder, &error))?;
                check_one_trace(&wanted, &entries, &reader, &mut traces)?;
                is_first = is_first && entries.is_empty();
                shown.show(&wanted, &entries);
                if is_end {
                    break;
                }
            }
            reader.take_notices().iter().for_each(|notice| report::warning(notice));
        }
        if !goes_on {
            // Another one may read now.
            drop(reader);
            if is_first && !has_filtered(args, &wanted, &folder, session.as_deref())? {
                return nothing_found(args, &wanted, driver.as_mut());
            }
            shown.end();
            if let (Wanted::Trace(beginning), Some(driver)) = (&wanted, &mut driver) {
                report_elsewhere(driver, beginning)?;
            }
            return Ok(exit::OK);
        }
        if wanted.take_next() {
            // By a new reader: what the one before has passed over may be of this run.
            reader = reader_of(&wanted);
            continue;
        }
        std::thread::sleep(INTERVAL);
    }
}

/// The newest entries.
struct Newest {
    limit: usize,
    entries: VecDeque<Entry>,
}

impl Newest {
    fn of(limit: usize) -> Newest {
        Newest { limit, entries: VecDeque::new() }
    }

    fn take(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        if self.entries.len() > self.limit {
            self.entries.pop_front();
        }
    }
}

/// Begins to read what has come, or of that so many of the newest entries. False if there is nothing to be read.
fn begin(reader: &mut Reader<'_>, is_last: bool, newest: Option<usize>, folder: &Path) -> Result<bool, CommandError> {
    match reader.begin_with(is_last, newest) {
        Ok(()) => Ok(true),
        // A session that another head is removing.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(unreadable(folder, &error)),
    }
}

/// Reads entries that are shown at once: few enough, and no longer than one waits. False if there are no more.
fn read(reader: &mut Reader<'_>, folder: &Path, mut take: impl FnMut(Entry)) -> Result<bool, CommandError> {
    let (start, mut bytes) = (Instant::now(), 0);
    for step in 1_u32.. {
        let more = reader.step(|entry| {
            bytes += entry.bytes();
            take(entry);
        });
        match more {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unreadable(folder, &error)),
        }
        if bytes >= BATCH || (bytes > 0 && step % 64 == 0 && start.elapsed() >= INTERVAL) {
            break;
        }
    }
    Ok(true)
}

/// Returns whether there are entries that the flags have kept out.
fn has_filtered(args: &Args, wanted: &Wanted, folder: &Path, session: Option<&Path>) -> Result<bool, CommandError> {
    let has_time = args.since.is_some() || args.until.is_some() || args.tail == Some(0);
    if args.grep.is_none() && args.stream.is_none() && args.level.is_none() && !has_time {
        return Ok(false);
    }
    let reader = Reader::new(wanted.output(), folder, session, Spans::Stored(None));
    let page = reader.page(Part::Newest { before: None }, 1).map_err(|error| unreadable(folder, &error))?;
    Ok(!page.entries.is_empty())
}

fn unreadable(folder: &Path, error: &std::io::Error) -> CommandError {
    let text = format!("the logs, or the files in `{}`, cannot be read: {error}", folder.display());
    CommandError::new(exit::FAILED, text)
}

/// Finds the task of the newest entry that is of one.
fn last_without_head(folder: &Path, sessions: &[PathBuf]) -> Result<Option<TaskId>, CommandError> {
    for session in sessions.iter().map(|session| Some(session.as_path())).chain([None]) {
        let reader = Reader::new(Selection::default(), folder, session, Spans::Stored(None));
        let page = reader.page(Part::Newest { before: None }, NEWEST).map_err(|error| unreadable(folder, &error))?;
        // Without its spans, a record may be of any session's task.
        let last = page.entries.iter().rev().find(|entry| session.is_none() || entry.origin != Origin::Record);
        if let Some(task) = last.and_then(|entry| entry.task) {
            return Ok(Some(task));
        }
    }
    Ok(None)
}

/// Looks through all spans, where the traces of a task are not known, for the last of its traces.
fn find_trace_of_task(wanted: &mut Wanted, folder: &Path) -> Result<(), CommandError> {
    let Wanted::Tasks { tasks, .. } = wanted else { return Ok(()) };
    if !tasks.traces.is_empty() || tasks.since_unix_nano > 0 {
        return Ok(());
    }
    match tracer_trace::last_trace_of(folder, &tasks.ids) {
        Ok(found) => tasks.traces.extend(found),
        Err(LoadError::Missing { .. }) => {}
        Err(error) => return Err(CommandError::new(exit::FAILED, error)),
    }
    Ok(())
}

/// Finds out what is meant.
fn wanted(args: &Args, driver: Option<&mut Driver>) -> Result<Wanted, CommandError> {
    if let Some(trace) = &args.trace {
        return wanted_trace(trace, driver);
    }
    let name = args.id.as_deref().unwrap_or("last");
    let Some(driver) = driver else {
        return match name.parse() {
            _ if name == "last" => Ok(Wanted::Last),
            Ok(NamedTask::Id(id)) => Ok(Wanted::of_id(id)),
            Ok(NamedTask::Cluster(id)) => Err(CommandError::new(
                exit::FAILED,
                format!(
                    "no head runs, so nobody knows whether task {id} is of this place\n(hint: `tracer logs {}` if it is)",
                    id.task
                ),
            )),
            _ => Err(CommandError::new(
                exit::FAILED,
                format!(
                    "no head runs, so nobody knows an actor named `{name}`\n(hint: `tracer logs ID` needs no head)"
                ),
            )),
        };
    };
    if name == "last" {
        return Ok(match last_task(driver)? {
            Some(task) => wanted_task(driver, task)?,
            None => Wanted::Last,
        });
    }
    let named: NamedTask =
        name.parse().map_err(|error| CommandError::new(exit::USAGE, format!("`{name}` is no task id: {error}")))?;
    let id = named.id(driver)?;
    let Reply::Task(found) = driver.query(&Query::Task { id })? else { return Err(unexpected_reply()) };
    Ok(match found {
        Some(task) => wanted_task(driver, *task)?,
        // It may have been forgotten, or be of an earlier session.
        None => Wanted::of_id(id),
    })
}

/// Returns the lines of a task: those of its run on this node, if it is of a queue and has run here.
fn wanted_task(driver: &mut Driver, task: TaskReport) -> Result<Wanted, CommandError> {
    let Some(cluster_id) = task.cluster_task_id.clone() else { return Ok(of_task(&task)) };
    let of_queue = OfQueue { id: task.id, cluster_id, said: None, next: None };
    let here = run_here(driver, &of_queue.cluster_id)?;
    let mut wanted = of_task(&here.unwrap_or(task));
    if let Wanted::Tasks { of_queue: of_wanted, .. } = &mut wanted {
        *of_wanted = Some(of_queue);
    }
    Ok(wanted)
}

/// Returns the task under whose number this node has run one of a queue.
fn run_here(driver: &mut Driver, cluster_id: &str) -> Result<Option<TaskReport>, CommandError> {
    let Reply::Task(here) = driver.query(&Query::Import { id: cluster_id.to_owned() })? else {
        return Err(unexpected_reply());
    };
    Ok(here.map(|here| *here))
}

/// Looks for the run on this node of a task of a queue, and says once which other node has it. Returns whether it may still be written.
fn follow_of_queue(driver: &mut Driver, tasks: &Tasks, of_queue: &mut OfQueue) -> Result<bool, CommandError> {
    let Reply::Task(task) = driver.query(&Query::Task { id: of_queue.id })? else { return Err(unexpected_reply()) };
    let task = task.filter(|task| task.ended_unix_nano.is_none());
    // Asked also of what has ended, which may have begun since it was asked last.
    if let Some(here) = run_here(driver, &of_queue.cluster_id)?.filter(|here| !tasks.ids.contains(&here.id)) {
        of_queue.next = Some(tasks_of(&here));
        return Ok(true);
    }
    let Some(task) = task else { return Ok(false) };
    let elsewhere = task.node_id.filter(|node_id| *node_id != driver.welcome().node_id);
    if let Some(node_id) = &elsewhere
        && elsewhere != of_queue.said
    {
        report::talk(&format!(
            "task {} runs on the node `{node_id}`, whose log has what it writes\n(hint: `tracer logs {} --follow` there)",
            of_queue.id, of_queue.cluster_id
        ));
        of_queue.said = elsewhere;
    }
    Ok(true)
}

/// Returns the number under which a task was submitted here, if that is another one than that under which it has run here.
fn submitted_as(driver: &Driver, task: &TaskReport) -> Option<TaskId> {
    let id: ClusterTaskId = task.cluster_task_id.as_deref()?.parse().ok()?;
    (driver.welcome().place_id == Some(id.place)).then_some(id.task)
}

fn tasks_of(task: &TaskReport) -> Tasks {
    Tasks {
        ids: BTreeSet::from([task.id]),
        traces: trace_of(task).into_iter().collect(),
        since_unix_nano: task.submitted_unix_nano,
    }
}

fn of_task(task: &TaskReport) -> Wanted {
    Wanted::Tasks { tasks: tasks_of(task), actor: task.actor_id.filter(|&actor| actor == task.id), of_queue: None }
}

fn trace_of(task: &TaskReport) -> Option<TraceId> {
    task.trace_id.as_deref()?.parse().ok()
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
    let Reply::Tasks(list) = driver.query(&Query::Tasks { limit: 1, which: TaskFilter::default(), before: None })?
    else {
        return Err(unexpected_reply());
    };
    Ok(list.tasks.into_iter().next())
}

/// Adds the calls of an actor to its creation.
fn add_methods(driver: &mut Driver, wanted: &mut Wanted) {
    let Wanted::Tasks { tasks, actor: Some(actor), .. } = wanted else { return };
    let mut pages = TaskPages::new(TASK_LIMIT, TaskFilter::default());
    while let Ok(Some(listed)) = driver.next_tasks(&mut pages) {
        let calls = listed.iter().filter(|task| task.actor_id == Some(*actor));
        for call in calls {
            tasks.ids.insert(call.id);
            tasks.traces.extend(trace_of(call));
        }
    }
}

/// Returns whether what is wanted may still be written.
fn is_resumed(driver: &mut Driver, wanted: &mut Wanted) -> bool {
    add_methods(driver, wanted);
    match wanted {
        Wanted::Tasks { actor: Some(actor), .. } => {
            let query = Query::Actor { wanted: actor.to_string() };
            matches!(driver.query(&query), Ok(Reply::Actor(Ok(actor))) if actor.state != ActorState::Dead)
        }
        Wanted::Tasks { tasks, of_queue: Some(of_queue), .. } => {
            follow_of_queue(driver, tasks, of_queue).unwrap_or(false)
        }
        Wanted::Tasks { tasks, .. } => tasks.ids.iter().any(|&id| {
            matches!(driver.query(&Query::Task { id }), Ok(Reply::Task(Some(task))) if task.ended_unix_nano.is_none())
        }),
        Wanted::Trace(_) | Wanted::Last => driver.query(&Query::Status).is_ok(),
    }
}

/// The sessions to look into: the head's, then the others, newest first.
fn sessions(args: &Args, driver: Option<&Driver>) -> Vec<PathBuf> {
    let own = driver.map(|driver| driver.welcome().session_dir.clone());
    let mut others = session::all_sessions(&args.source.temp_dir());
    others.retain(|folder| Some(folder) != own.as_ref());
    others.sort_by_key(|folder| std::cmp::Reverse(folder.metadata().and_then(|metadata| metadata.modified()).ok()));
    own.into_iter().chain(others).collect()
}

/// Finds the session in whose logs there is wanted output, and notes the traces of the tasks that wrote it.
fn session_of(sessions: &[PathBuf], wanted: &mut Wanted) -> Result<Option<PathBuf>, CommandError> {
    let selection = wanted.output();
    for session in sessions {
        let logs = TaskLogs::of_session(session);
        let (mut found, mut traces) = (false, BTreeSet::new());
        let read = logs.owners(|extent| {
            if selection.wants(extent, |id| id) {
                found = true;
                if let Owner::Attempt { trace_id, .. } = extent.owner {
                    traces.extend(Some(TraceId(u128::from_be_bytes(trace_id))).filter(|id| id.0 != 0));
                }
            }
        });
        match read {
            // A session that another head is removing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.map_err(|error| unreadable(session, &error))?,
        }
        if found {
            if let Wanted::Tasks { tasks, .. } = wanted {
                tasks.traces.extend(traces);
            }
            return Ok(Some(session.clone()));
        }
    }
    Ok(None)
}

/// Refuses the beginning of an id that several traces have.
fn check_one_trace(
    wanted: &Wanted,
    entries: &[Entry],
    reader: &Reader<'_>,
    found: &mut BTreeSet<TraceId>,
) -> Result<(), CommandError> {
    let Wanted::Trace(start) = wanted else { return Ok(()) };
    found.extend(entries.iter().filter_map(|entry| reader.trunk_of(entry)));
    if found.len() < 2 {
        return Ok(());
    }
    let ids: Vec<_> = found.iter().take(5).map(|id| format!("`{id}`")).collect();
    let text = format!("several traces begin with `{start}`: {}\n(hint: give more of its digits)", ids.join(", "));
    Err(CommandError::new(exit::USAGE, text))
}

/// The writer of a line: task, attempt, worker and output.
type Writer = (Option<TaskId>, Option<u32>, Option<u64>, Origin);

/// Entries on their way to standard output.
struct Shown<'a> {
    args: &'a Args,
    /// The writer of the line that was shown last, if it does not end there.
    open: Option<Writer>,
    /// Number of lines that may be another task's.
    approximate: usize,
}

impl Shown<'_> {
    fn new(args: &Args) -> Shown<'_> {
        Shown { args, open: None, approximate: 0 }
    }

    fn show(&mut self, wanted: &Wanted, entries: &[Entry]) {
        let is_one_task = matches!(wanted, Wanted::Tasks { tasks, .. } if tasks.ids.len() == 1);
        let mut text = String::new();
        for entry in entries {
            let is_line = entry.origin != Origin::Record;
            let is_approximate = entry.is_approximate && is_line;
            self.approximate += usize::from(is_approximate);
            match self.args.format.format {
                Format::Json => {
                    let worker_pid = entry.pid.filter(|_| is_line);
                    text.push_str(&report::object_line(&EntryReport { entry, worker_pid }));
                }
                Format::Text => {
                    let writer = (entry.task, entry.attempt, entry.worker_id, entry.origin);
                    let goes_on = self.open.is_some_and(|open| open == writer);
                    if self.open.is_some() && !goes_on {
                        text.push('\n');
                    }
                    if self.args.times && !goes_on {
                        text.push_str(&format!("{} ", utc(entry.unix_nano)));
                    }
                    if !is_one_task && !goes_on {
                        text.push_str(&origin(entry));
                    }
                    if is_approximate && !goes_on {
                        text.push_str("~ ");
                    }
                    if is_line {
                        text.push_str(&entry.text);
                    } else {
                        text.push_str(&record(entry));
                    }
                    self.open = entry.is_partial.then_some(writer);
                    if self.open.is_none() {
                        text.push('\n');
                    }
                }
            }
        }
        if !text.is_empty() {
            match self.args.format.format {
                Format::Json => report::json(text.trim_end_matches('\n')),
                Format::Text => report::part(&text),
            }
        }
    }

    /// Ends the last line, and says what was shown that may be of others.
    fn end(self) {
        if self.open.is_some() {
            report::part("\n");
        }
        say_approximate(self.approximate);
    }
}

/// Returns the task and the process of an entry, as they stand before its text.
fn origin(entry: &Entry) -> String {
    let pid = entry.pid.map(|pid| format!("pid={pid}"));
    let task = entry.task.map(|task| format!("task {task}"));
    let words: Vec<String> = task.into_iter().chain(pid).collect();
    if words.is_empty() { String::new() } else { format!("({}) ", words.join(" ")) }
}

/// Returns a record as one line, or as several where its message has several: `WARN span: message key=value`.
fn record(entry: &Entry) -> String {
    let mut text = String::new();
    if !entry.severity.is_empty() {
        text.push_str(&format!("{} ", entry.severity));
    }
    if let Some(name) = &entry.span_name {
        text.push_str(&format!("{name}: "));
    }
    text.push_str(&entry.text.trim_end_matches('\n').replace('\n', "\n  "));
    for (key, value) in &entry.attributes.0 {
        // Its place in the source is for programs.
        if !key.starts_with("code.") {
            text.push_str(&format!(" {key}={value}"));
        }
    }
    text
}

fn say_approximate(count: usize) {
    if count > 0 {
        report::talk(&format!(
            "`~`: {} came while the task ran in its worker, and may be of the one before or after it: its function had written nothing until then",
            tracer_core::count::Count(count, "line")
        ));
    }
}

/// Says where the lines are of a task of a queue that was submitted here; none if that is not known, or if they are here.
fn of_other_log(driver: &mut Driver, task: &TaskReport) -> Result<Option<String>, CommandError> {
    let (Some(cluster_id), Some(node_id)) = (&task.cluster_task_id, &task.node_id) else { return Ok(None) };
    let id = task.id;
    let Reply::Task(here) = driver.query(&Query::Import { id: cluster_id.clone() })? else {
        return Err(unexpected_reply());
    };
    Ok(Some(match here.filter(|here| here.id != id) {
        Some(here) => format!(
            "task {id} has run on this node as task {0}, whose log has what it wrote\n(hint: `tracer logs {0}`)",
            here.id
        ),
        None => format!(
            "task {id} has run on the node `{node_id}`, whose log has what it wrote\n(hint: `tracer logs {cluster_id}` there)"
        ),
    }))
}

/// Says which other nodes have lines of a trace. False if none has.
fn report_elsewhere(driver: &mut Driver, beginning: &str) -> Result<bool, CommandError> {
    let mut submitted = Submitted::default();
    submitted.ask(driver, &[beginning])?;
    Ok(submitted.report(beginning))
}

/// Says that nothing was found, and why that may be.
fn nothing_found(args: &Args, wanted: &Wanted, mut driver: Option<&mut Driver>) -> CommandResult {
    if let (Wanted::Trace(beginning), Some(driver)) = (wanted, driver.as_deref_mut())
        && report_elsewhere(driver, beginning)?
    {
        return Ok(exit::OK);
    }
    if let Wanted::Tasks { tasks, .. } = wanted
        && let (Some(&id), Some(driver)) = (tasks.ids.first(), driver)
    {
        let task = named::task(driver, id)?;
        if let Some(text) = of_other_log(driver, &task)? {
            if wanted.said() != task.node_id.as_ref() {
                report::talk(&text);
            }
            return Ok(exit::OK);
        }
        let id = submitted_as(driver, &task).unwrap_or(id);
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
    let place = args.source.temp_dir();
    let what = match wanted {
        Wanted::Trace(start) => format!("no task of a trace `{start}` has written or logged anything that is kept"),
        Wanted::Tasks { tasks, .. } if !tasks.ids.is_empty() => {
            format!("no output of task {} is kept", tasks.ids.first().unwrap_or(&TaskId(0)))
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
