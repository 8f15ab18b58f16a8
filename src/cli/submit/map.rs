//! `tracer submit task --map` and `tracer submit command --map`: one task for each line of a file or of standard input, so many at a time.
//!
//! One thread waits for three things at once: the head, the input and Ctrl-C. So a slow input holds no result back, and a full
//! window holds the input back.

mod lines;
mod output;
mod placeholders;
mod progress;
mod repeated;

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use tracer_client::driver::{Driver, DriverError, SubmitRequest, Ticket};
use tracer_core::count::{Count, Elapsed};
use tracer_core::hex::hex;
use tracer_core::task::{CommandSpec, Failure, FunctionSpec, Outcome, TaskId, TaskSpec};
use tracer_core::value::{self, JsonText};
use tracer_core::{exit, names};
use tracer_ipc::protocol::{CancelWhich, Finished, Query, Stream};

use self::lines::{Line, Lines};
use self::output::Outputs;
use self::progress::Progress;
use self::repeated::Repeated;
use super::super::{CommandError, CommandResult, Format, report};
use super::{close_job, start_tracing};

/// Flags of `--map` of functions.
#[derive(clap::Args)]
pub(super) struct MapArgs {
    /// Submit a task for each line of FILE, or of standard input for `-`
    ///
    /// A line holds arguments as they stand on the command line: JSON values, one after the other. They follow the ARGs given
    /// there. Empty lines are skipped. Each result is printed as one line, as soon as it is there. Exits with 1 if any task failed.
    /// Output of the tasks goes to the logs of their workers.
    #[arg(long, value_name = "FILE", conflicts_with = "no_wait", help_heading = "Many tasks")]
    map: Option<PathBuf>,
    /// Take each line as one text, not as JSON
    #[arg(long, requires = "map", help_heading = "Many tasks")]
    map_text: bool,
    #[command(flatten)]
    many: ManyArgs,
}

/// Flags of `--map` of programs.
#[derive(clap::Args)]
pub(super) struct CommandMapArgs {
    /// Run the program once for each line of FILE, or of standard input for `-`
    ///
    /// In the program and its arguments, `{}` is the line, and `{1}`, `{2}` and so on are its fields, between spaces or tabs. Without any, the line
    /// is the last argument. Empty lines are skipped. What a program writes to its standard output is printed when it has ended, or by whole lines from 1 MiB on;
    /// its standard error at once, line by line. Exits with 1 if any failed.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_wait", "stdin"], help_heading = "Many tasks")]
    map: Option<PathBuf>,
    #[command(flatten)]
    many: ManyArgs,
}

/// Flags of both.
#[derive(clap::Args)]
pub(super) struct ManyArgs {
    /// Maximum number of tasks that are submitted and not yet printed
    #[arg(long, value_name = "N", default_value_t = 2000, requires = "map", help_heading = "Many tasks",
          value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    max_in_flight: usize,
    /// Print results in the order of the lines
    #[arg(long, requires = "map", help_heading = "Many tasks")]
    keep_order: bool,
    /// Stop because tasks fail: `never`, `soon` (submit no more, wait for the others) or `now` (cancel the others too), with
    /// `,fail=N` after N failures [default: `now`, once a task has failed for a reason that is the same for each line]
    #[arg(long, value_name = "WHEN", requires = "map", help_heading = "Many tasks")]
    halt: Option<Halt>,
}

/// Input and manner of a mapping.
pub(super) struct Mapping<'a> {
    input: &'a Path,
    takes_text: bool,
    many: &'a ManyArgs,
}

impl CommandMapArgs {
    /// Returns what is mapped, if anything is.
    pub(super) fn mapping(&self) -> Option<Mapping<'_>> {
        self.map.as_deref().map(|input| Mapping { input, takes_text: true, many: &self.many })
    }
}

impl MapArgs {
    /// Returns what is mapped, if anything is.
    pub(super) fn mapping(&self) -> Option<Mapping<'_>> {
        self.map.as_deref().map(|input| Mapping { input, takes_text: self.map_text, many: &self.many })
    }
}

/// Condition under which failures end it all. The words are GNU parallel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    Never,
    /// Submits no more after so many failures.
    Soon(u64),
    /// And cancels what has been submitted.
    Now(u64),
}

impl FromStr for Halt {
    type Err = String;

    fn from_str(text: &str) -> Result<Halt, String> {
        let (word, rest) = text.split_once(',').map_or((text, None), |(word, rest)| (word, Some(rest)));
        let failures = match rest.map(|rest| rest.strip_prefix("fail=").map(str::parse)) {
            None => Some(1),
            Some(Some(Ok(failures @ 1..))) => Some(failures),
            Some(_) => None,
        };
        match (word, rest, failures) {
            ("never", None, _) => Ok(Halt::Never),
            ("soon", _, Some(failures)) => Ok(Halt::Soon(failures)),
            ("now", _, Some(failures)) => Ok(Halt::Now(failures)),
            _ => Err("expected `never`, `soon`, `now`, `soon,fail=N` or `now,fail=N`, with N from 1".into()),
        }
    }
}

/// Parts that all tasks have in common.
pub(super) struct Template<'a> {
    pub(super) body: Body<'a>,
    /// All but the task itself.
    pub(super) request: SubmitRequest<'a>,
    pub(super) temp_dir: &'a Path,
    pub(super) format: Format,
}

/// A task, but for what a line adds.
pub(super) enum Body<'a> {
    Function {
        module: &'a str,
        function: &'a str,
        /// MessagePack values, before those of a line.
        arguments: Vec<Vec<u8>>,
    },
    Command(CommandSpec<'a>),
}

impl Body<'_> {
    fn is_command(&self) -> bool {
        matches!(self, Body::Command(_))
    }
}

/// Submits a task for each line, and prints what becomes of them.
pub(super) fn run(template: &Template<'_>, mapping: &Mapping<'_>) -> CommandResult {
    report::reserve_stdout()?;
    let (input, total) = open(mapping.input)?;
    let (signals, signal_tx) = UnixStream::pair()?;
    let was_interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends this process at once, whatever it waits for. What it has not finished of its trace, the head finishes.
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), Arc::clone(&was_interrupted))?;
        flag::register(signal, Arc::clone(&was_interrupted))?;
        pipe::register(signal, signal_tx.try_clone()?)?;
    }
    let mut driver = Driver::connect(template.temp_dir)?;
    driver.keep_module_versions();
    start_tracing(&mut driver);
    if let Body::Function { module, .. } = template.body {
        super::builds::warn_of_others(&mut driver, module, template.request.policy.queue)?;
    }
    let job = driver.start_job();
    let trace_id = job.as_ref().filter(|job| job.is_recording()).map(|job| hex(&job.context().parent.trace_id));
    let mut map = Map {
        template,
        takes_text: mapping.takes_text,
        args: mapping.many,
        outputs: Outputs::of(&template.request.spec.short_name(), mapping.many.keep_order),
        repeated: Repeated::default(),
        input: Some(input),
        signals,
        lines: Lines::default(),
        window: HashMap::new(),
        held: BTreeMap::new(),
        next_to_print: 0,
        submissions: 0,
        counts: Counts::default(),
        first_failure: None,
        stopped: None,
        first_submitted: None,
        is_interrupted: false,
        trace_id,
        out: Vec::new(),
        progress: Progress::new(total),
    };
    let ended = map.run_to_end(&mut driver);
    let counts = map.counts;
    map.progress.finish();
    map.repeated.lines().for_each(|line| report::talk(&line));
    let failure = match (&ended, map.first_failure) {
        (Err(error), _) => Some(("submission".to_owned(), error.to_string())),
        (Ok(()), Some(error_type)) => Some((error_type, counts.to_string())),
        (Ok(()), None) => None,
    };
    close_job(job, &driver, &[(names::TASK_COUNT, map.submissions.into())], failure);
    if let Err(error) = ended {
        report::talk(&format!("{counts}, and then:"));
        return Err(error.into());
    }
    report::talk(&format!("{counts} in {}", Elapsed(map.progress.elapsed())));
    Ok(match (map.is_interrupted, counts.unsuccessful()) {
        (true, _) => exit::INTERRUPTED,
        (false, 0) => exit::OK,
        (false, _) => exit::FAILED,
    })
}

/// Opens the input. With it comes the number of its lines, if that can be found out, for the time left.
fn open(path: &Path) -> Result<(File, Option<u64>), CommandError> {
    if path.as_os_str() == "-" {
        return Ok((File::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3).map_err(io::Error::from)?), None));
    }
    let failed = |error: io::Error| {
        CommandError::new(exit::USAGE, format!("the lines for `--map` cannot be read from {}: {error}", path.display()))
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if !metadata.is_file() || !progress::is_shown() {
        return Ok((file, None));
    }
    let lines = lines::count(File::open(path).map_err(failed)?).map_err(failed)?;
    Ok((file, Some(lines)))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    succeeded: u64,
    failed: u64,
    cancelled: u64,
}

impl Counts {
    /// Returns the number of tasks without a result.
    fn unsuccessful(&self) -> u64 {
        self.failed + self.cancelled
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Counts { succeeded, failed, cancelled } = *self;
        let all = succeeded + self.unsuccessful();
        write!(f, "{}: {succeeded} succeeded, {failed} failed", Count(all, "task"))?;
        if cancelled > 0 { write!(f, ", {cancelled} cancelled") } else { Ok(()) }
    }
}

/// Manner of a stop, after which no more lines are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// Submitted tasks go on.
    Soon,
    /// Submitted tasks are cancelled; `cancelled` submissions were when that was done last.
    Now { cancelled: u64 },
}

/// The mapping while it goes on.
struct Map<'a> {
    template: &'a Template<'a>,
    takes_text: bool,
    args: &'a ManyArgs,
    /// Output of commands that was not printed yet.
    outputs: Outputs,
    /// Messages of failures that were printed.
    repeated: Repeated,
    /// None once it is at its end.
    input: Option<File>,
    signals: UnixStream,
    lines: Lines,
    /// The lines of submissions that have not ended, by their tags: number in the input, and number among the tasks.
    window: HashMap<u64, LineOrigin>,
    /// Ends that wait for those of lines before them.
    held: BTreeMap<u64, FinishedLine>,
    /// The next that is printed, when the order is kept.
    next_to_print: u64,
    /// Tasks so far, with lines that could not become one.
    submissions: u64,
    counts: Counts,
    /// Its `error.type`.
    first_failure: Option<String>,
    stopped: Option<Stopped>,
    first_submitted: Option<Instant>,
    is_interrupted: bool,
    trace_id: Option<String>,
    /// Data that was not written yet.
    out: Vec<u8>,
    progress: Progress,
}

/// Origin of a task.
#[derive(Clone, Copy, Debug)]
struct LineOrigin {
    /// The line in the input, from 1.
    line: u64,
    /// The how-manieth task, from 0.
    order: u64,
    task: Option<TaskId>,
}

/// A task that has ended, or a line that could not become one.
struct FinishedLine {
    place: LineOrigin,
    outcome: Result<Outcome, String>,
    /// The rest of its standard output.
    output: Vec<u8>,
}

/// A line of the answer.
#[derive(serde::Serialize)]
struct LineReport<'a> {
    line: u64,
    id: Option<TaskId>,
    trace_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a JsonText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_loss: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
}

/// Tasks that are submitted before it is known how the first of them ends.
/// Where each line fails for the same reason, the head has to remember no more of them, and forgets no others for these.
const FIRST: usize = 64;
/// Time for which only those are submitted, if none ends. What cannot begin ends sooner, unless it waits for a worker.
const FIRST_WAIT: Duration = Duration::from_millis(500);

impl Map<'_> {
    fn run_to_end(&mut self, driver: &mut Driver) -> Result<(), DriverError> {
        loop {
            self.submit_what_fits(driver)?;
            let window = self.window.len();
            while let Some(finished) = driver.try_next_finished()? {
                self.take_outputs(driver);
                self.on_finished(driver, finished);
            }
            self.take_outputs(driver);
            self.write_out();
            if let Some(Stopped::Now { cancelled }) = self.stopped
                && cancelled < self.submissions
            {
                self.cancel_window(driver)?;
                continue;
            }
            let takes_no_more = self.stopped.is_some() || (self.input.is_none() && self.lines.is_empty());
            if takes_no_more && self.window.is_empty() {
                self.write_out();
                return Ok(());
            }
            // There may be room for lines that are here already.
            if self.window.len() == window {
                self.wait(driver)?;
            }
        }
    }

    fn in_flight(&self) -> usize {
        // What is held back for the order's sake counts, so that it is bounded.
        self.window.len() + self.held.len()
    }

    /// Returns how many tasks may be under way, and the time that is left until it may be more, if that is not the most.
    fn room(&self) -> (usize, Option<Duration>) {
        let has_ended = self.counts.succeeded + self.counts.unsuccessful() > 0;
        let left = FIRST_WAIT.checked_sub(self.first_submitted.map_or(Duration::ZERO, |first| first.elapsed()));
        match left.filter(|left| !left.is_zero() && !has_ended && self.args.halt.is_none()) {
            Some(left) => (self.args.max_in_flight.min(FIRST), self.first_submitted.map(|_| left)),
            None => (self.args.max_in_flight, None),
        }
    }

    fn submit_what_fits(&mut self, driver: &mut Driver) -> Result<(), DriverError> {
        let (room, _) = self.room();
        while self.stopped.is_none() && self.in_flight() < room {
            let Some(line) = self.lines.next(self.input.is_none()) else { break };
            let number = line.number();
            let place = LineOrigin { line: number, order: self.submissions, task: None };
            let text = match &line {
                Line::Whole { text, .. } => Ok(text.as_slice()),
                Line::TooLong { limit, .. } => Err(format!("it has more than {limit} bytes")),
            };
            let submitted = match text.and_then(|text| self.submit_line(driver, text)) {
                Ok(None) => continue,
                Ok(Some(submitted)) => submitted,
                Err(reason) => {
                    self.submissions += 1;
                    self.on_ended(FinishedLine { place, outcome: Err(reason), output: Vec::new() });
                    continue;
                }
            };
            self.submissions += 1;
            match submitted {
                Ok(task) => {
                    self.first_submitted.get_or_insert_with(Instant::now);
                    self.window.insert(task.tag(), place);
                }
                Err(error @ DriverError::TooLarge { .. }) => {
                    self.on_ended(FinishedLine { place, outcome: Err(error.to_string()), output: Vec::new() });
                }
                Err(error) => return Err(error),
            }
        }
        driver.send()
    }

    /// Submits the task of a line; none if the line is empty. Fails with why it cannot become one.
    fn submit_line(&self, driver: &mut Driver, line: &[u8]) -> Result<Option<Result<Ticket, DriverError>>, String> {
        let Template { body, request, .. } = self.template;
        match body {
            Body::Function { module, function, arguments } => {
                let of_line = if self.takes_text { text_argument(line).map(Some) } else { json_arguments(line) };
                let Some(of_line) = of_line? else { return Ok(None) };
                let all = value::array(&arguments.iter().cloned().chain(of_line).collect::<Vec<_>>());
                let spec = TaskSpec::Function(FunctionSpec::of_task(module, function, &all));
                Ok(Some(driver.submit(&SubmitRequest { spec, ..request.clone() })))
            }
            Body::Command(_) if line.trim_ascii().is_empty() => Ok(None),
            Body::Command(command) => {
                let words = std::iter::once(&command.program).chain(&command.arguments).copied();
                let words = placeholders::fill(words, line)?;
                let (program, arguments) = words.split_first().expect("there is a program");
                let arguments = arguments.iter().map(Vec::as_slice).collect();
                let spec = TaskSpec::Command(CommandSpec { program, arguments, ..command.clone() });
                Ok(Some(driver.submit(&SubmitRequest { spec, ..request.clone() })))
            }
        }
    }

    /// Takes in what commands have written. What is for standard error is written at once.
    fn take_outputs(&mut self, driver: &mut Driver) {
        for mut output in driver.take_outputs() {
            if self.template.format == Format::Json {
                // Standard output is for the answer.
                output.stream = Stream::Stderr;
            }
            let lines = self.outputs.add(output);
            self.out.extend_from_slice(&lines.stdout);
            if !lines.stderr.is_empty() {
                self.progress.suspend(|| report::task_lines(&lines.prefix, &lines.stderr));
            }
        }
    }

    fn on_finished(&mut self, driver: &Driver, finished: Finished) {
        if let Some(place) = self.window.remove(&finished.tag) {
            let place = LineOrigin { task: Some(finished.task), ..place };
            let outcome = match finished.outcome {
                Outcome::Stored(stored) => driver
                    .load(&stored)
                    .map(|value| Outcome::Returned(value.into_bytes()))
                    .map_err(|error| error.to_string()),
                outcome => Ok(outcome),
            };
            let rest = self.outputs.end(finished.task);
            if !rest.stderr.is_empty() {
                self.progress.suspend(|| report::task_lines(&rest.prefix, &rest.stderr));
            }
            self.on_ended(FinishedLine { place, outcome, output: rest.stdout });
        }
    }

    fn on_ended(&mut self, ended: FinishedLine) {
        let error_type = match &ended.outcome {
            Ok(Outcome::Failed(failure)) => Some(failure.error_type()),
            Ok(_) => None,
            Err(_) => Some("arguments".into()),
        };
        match error_type {
            None => self.counts.succeeded += 1,
            Some(error_type) => {
                match &ended.outcome {
                    Ok(Outcome::Failed(failure)) if failure.is_cancellation() => self.counts.cancelled += 1,
                    _ => self.counts.failed += 1,
                }
                self.first_failure.get_or_insert_with(|| error_type.to_string());
                self.halt_if_wanted(&ended.outcome);
            }
        }
        if !self.args.keep_order {
            return self.print(&ended);
        }
        self.held.insert(ended.place.order, ended);
        while let Some(next) = self.held.remove(&self.next_to_print) {
            self.next_to_print += 1;
            self.print(&next);
        }
    }

    fn halt_if_wanted(&mut self, outcome: &Result<Outcome, String>) {
        let unsuccessful = self.counts.unsuccessful();
        let stop = match self.args.halt {
            Some(Halt::Soon(failures)) if unsuccessful >= failures => Stopped::Soon,
            Some(Halt::Now(failures)) if unsuccessful >= failures => Stopped::Now { cancelled: 0 },
            None if matches!(outcome, Ok(Outcome::Failed(failure)) if self.is_of_each_line(failure)) => {
                Stopped::Now { cancelled: 0 }
            }
            _ => return,
        };
        if self.stopped.is_none() {
            self.stopped = Some(stop);
            if self.args.halt.is_none() {
                let hint = "(hint: `--halt never` goes on)";
                let text = format!("stopping, because each line would fail for the same reason\n{hint}");
                self.progress.suspend(|| report::talk(&text));
            }
        }
    }

    /// Returns whether each line will fail for the same reason. What depends on arguments may be of this line alone, if others have succeeded.
    fn is_of_each_line(&self, failure: &Failure) -> bool {
        match failure {
            Failure::Module { .. } => true,
            Failure::NotStarted { .. } => self.counts.succeeded == 0,
            Failure::Arguments { message } => self.counts.succeeded == 0 && is_about_their_number(message),
            _ => false,
        }
    }

    fn print(&mut self, ended: &FinishedLine) {
        let line = ended.place.line;
        let result = match &ended.outcome {
            Ok(Outcome::Returned(bytes)) => JsonText::of(bytes).map_err(|error| error.to_string()),
            // What is stored was read when its task had ended.
            Ok(Outcome::Completed | Outcome::Stored(_)) => Ok(JsonText::null()),
            Ok(Outcome::Failed(failure)) => Err(failure.to_string()),
            Err(reason) => Err(reason.clone()),
        };
        if self.template.format == Format::Json {
            let failure = match &ended.outcome {
                Ok(Outcome::Failed(failure)) => Some(failure),
                _ => None,
            };
            let value = LineReport {
                line,
                id: ended.place.task,
                trace_id: self.trace_id.as_deref(),
                result: result.as_ref().ok(),
                result_loss: result.as_ref().ok().and_then(JsonText::loss),
                failure,
                message: result.as_ref().err().map(String::as_str),
            };
            self.out.extend_from_slice(report::object_line(&value).as_bytes());
            return;
        }
        self.out.extend_from_slice(&ended.output);
        match result {
            // A command has no result but its output.
            Ok(_) if self.template.body.is_command() => {}
            Ok(result) => {
                if let Some(loss) = result.loss() {
                    self.progress.suspend(|| report::warning(&format!("line {line}: {loss}")));
                }
                self.out.extend_from_slice(report::json_line(&result).as_bytes());
            }
            // The last line counts them.
            Err(_) if self.stopped.is_some() && is_cancelled(&ended.outcome) => {}
            Err(message) if self.repeated.was_printed(line, &message) => {}
            Err(message) => {
                let task = ended.place.task.map(|id| format!(" (task {id})")).unwrap_or_default();
                // Results of lines before it come before it on a terminal.
                self.write_out();
                self.progress.suspend(|| report::talk(&format!("line {line}{task} failed: {message}")));
            }
        }
    }

    fn write_out(&mut self) {
        if !self.out.is_empty() {
            self.progress.suspend(|| report::raw(&self.out));
            self.out.clear();
        }
        self.progress.show(self.counts.succeeded, self.counts.unsuccessful());
    }

    /// Waits for the head, the input or a signal, and takes in what is there.
    fn wait(&mut self, driver: &mut Driver) -> Result<(), DriverError> {
        let (room, until_more) = self.room();
        let wants_input = self.stopped.is_none() && self.in_flight() < room;
        let input = self.input.as_ref().filter(|_| wants_input);
        let (has_signal, has_input) = {
            let mut wanted = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(driver, PollFlags::IN)];
            wanted.extend(input.map(|input| PollFd::new(input, PollFlags::IN)));
            let timeout = self.progress.interval().into_iter().chain(until_more).min().map(|interval| Timespec {
                tv_sec: 0,
                tv_nsec: i64::try_from(interval.as_nanos()).unwrap_or(i64::MAX),
            });
            match poll(&mut wanted, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(DriverError::Disconnected(error.into())),
            }
            (!wanted[0].revents().is_empty(), wanted.get(2).is_some_and(|input| !input.revents().is_empty()))
        };
        if has_signal {
            self.on_interrupt();
        }
        if has_input && let Some(input) = &mut self.input {
            match self.lines.read_from(input) {
                Ok(0) => self.input = None,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.input = None;
                    self.progress
                        .suspend(|| report::warning(&format!("the input cannot be read any further: {error}")));
                    let place = LineOrigin { line: self.lines.taken() + 1, order: self.submissions, task: None };
                    self.submissions += 1;
                    let outcome = Err(format!("the line cannot be read: {error}"));
                    self.on_ended(FinishedLine { place, outcome, output: Vec::new() });
                }
            }
        }
        Ok(())
    }

    fn on_interrupt(&mut self) {
        let mut byte = [0];
        let _ = self.signals.read(&mut byte);
        self.is_interrupted = true;
        self.stopped = Some(Stopped::Now { cancelled: 0 });
        let open = Count(self.window.len(), "task");
        self.progress.suspend(|| report::talk(&format!("cancelling {open} (Ctrl-C again leaves them)")));
    }

    /// Cancels all that was submitted and has not ended.
    fn cancel_window(&mut self, driver: &mut Driver) -> Result<(), DriverError> {
        self.stopped = Some(Stopped::Now { cancelled: self.submissions });
        let ids: Result<Vec<_>, _> = self.window.keys().map(|&tag| driver.accepted_tag(tag)).collect();
        driver.query(&Query::Cancel { which: CancelWhich::Ids(ids?), grace_ms: None })?;
        Ok(())
    }
}

fn is_cancelled(outcome: &Result<Outcome, String>) -> bool {
    matches!(outcome, Ok(Outcome::Failed(failure)) if failure.is_cancellation())
}

/// Returns whether a refusal of arguments, in the words of the SDK, is about how many there are: `… takes 1 argument (text: String), but got 2`, or that one of them is
/// missing.
fn is_about_their_number(message: &str) -> bool {
    message.contains(" is missing; it takes ")
        || message.rsplit_once(", but got ").is_some_and(|(_, count)| count.parse::<usize>().is_ok())
}

/// Returns the arguments of a line; none if it is empty.
fn json_arguments(line: &[u8]) -> Result<Option<Vec<Vec<u8>>>, String> {
    let mut arguments = Vec::new();
    for argument in serde_json::Deserializer::from_slice(line).into_iter::<Box<serde_json::value::RawValue>>() {
        let argument = argument.map_err(|_| not_json(line))?;
        arguments.push(value::from_json(&argument).map_err(|error| error.to_string())?);
    }
    Ok((!arguments.is_empty()).then_some(arguments))
}

fn not_json(line: &[u8]) -> String {
    let shown: String = String::from_utf8_lossy(line).chars().take(60).collect();
    format!("it is not JSON: `{shown}`\n(hint: with --map-text each line is taken as a text)")
}

fn text_argument(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    value::to_bytes(&text).map(|argument| vec![argument]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halt_takes_the_words_of_parallel() {
        for (text, expected) in [
            ("never", Some(Halt::Never)),
            ("soon", Some(Halt::Soon(1))),
            ("now", Some(Halt::Now(1))),
            ("soon,fail=3", Some(Halt::Soon(3))),
            ("now,fail=100", Some(Halt::Now(100))),
            ("never,fail=1", None),
            ("now,fail=0", None),
            ("now,fail=-1", None),
            ("now,fail=", None),
            ("now,done=1", None),
            ("later", None),
            ("", None),
        ] {
            assert_eq!(text.parse::<Halt>().ok(), expected, "{text}");
        }
    }

    #[test]
    fn a_line_holds_arguments_as_on_the_command_line() {
        let values = |line: &str| {
            json_arguments(line.as_bytes()).map(|arguments| {
                let json = |bytes: &Vec<u8>| value::to_json(bytes).expect("it is one value").to_string();
                arguments.map(|arguments| arguments.iter().map(json).collect::<Vec<_>>())
            })
        };
        assert_eq!(
            values(r#""a b" 3 {"x": [1, 2]} null"#),
            Ok(Some(vec!["\"a b\"".into(), "3".into(), r#"{"x":[1,2]}"#.into(), "null".into()]))
        );
        assert_eq!(values("[1, 2]"), Ok(Some(vec!["[1,2]".into()])));
        assert_eq!(values("1\r"), Ok(Some(vec!["1".into()])));
        assert_eq!(values(" \t\r"), Ok(None));
        assert_eq!(values(""), Ok(None));
        assert!(values("fox").is_err_and(|error| error.starts_with("it is not JSON: `fox`")));
        assert!(values("1 2 {").is_err());
        assert!(json_arguments(b"\"\xff\"").is_err());
    }
}
