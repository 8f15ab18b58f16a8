//! `tracer trace`.

mod check;
mod diff;
mod follow;

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::now_unix_nano;
use tracer_core::count::Count;
use tracer_core::exit;
use tracer_head::recovery::finish_leavings;
use tracer_ipc::session::{HeadRecord, SessionError, all_sessions, find_head};
use tracer_trace::log_entries::{self, Entry, OfTrace};
use tracer_trace::render::Details;
use tracer_trace::{
    self, Filter, FindError, GatheredList, GatheredStats, INDEX_BYTES, Index, Live, LoadError, Loaded, LogRecord, Open,
    Query, Trace, TraceId, export, json, render,
};

use super::elsewhere::Submitted;
use super::{CommandError, CommandResult, Format, FormatArgs, PlaceArgs, report};

/// Read traces back from the span files
///
/// A head is needed only for spans that are open. The files are looked for where the processes of this place's head write them, else in
/// /tmp/spans. When the head was killed, and no other has come, the spans of the processes that died with it are completed first.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer trace show last")]
pub(super) struct Args {
    #[command(subcommand)]
    command: TraceCommand,
}

impl Args {
    /// Returns whether traces are checked, which the exit code tells of.
    pub(super) fn is_check(&self) -> bool {
        matches!(self.command, TraceCommand::Check(_))
    }
}

#[derive(Subcommand)]
enum TraceCommand {
    /// List traces, the newest first
    ///
    /// A query has terms that all have to hold of one span of a trace: `error`, `running`, `root`, `name:count`, `duration>100ms`, `since:10m`,
    /// `until:TIME`, `state:failed`, `kind:consumer`, `service:shop`, `task:7`, `pid:4711`, an attribute such as `region=eu` or `code>=500`, and
    /// "a text" in quotes. `:` asks for a part of a text (`*` and `?` may stand in it), `=` for the whole. `-` before a term: of no span of the trace.
    /// `trace:4bf9` and `spans>100` ask about the trace itself. A query that begins with `-` comes after `--`.
    #[command(
        after_help = "Examples:\n  tracer trace list 'name:count duration>100ms since:10m'\n  tracer trace list -- '-error code>=500'"
    )]
    List {
        /// Only traces that this finds
        query: Vec<String>,
        /// Only traces with a span that failed
        #[arg(long)]
        errors: bool,
        /// Only traces with a span whose name has this text in it
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// Only traces that took at least this long, for example 500ms
        #[arg(long, value_name = "DURATION", value_parser = tracer_settings::parse_duration)]
        min_duration: Option<Duration>,
        /// Maximum number of traces to show
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show one trace as a tree with durations
    ///
    /// A `*` marks the spans of the critical path, which the end of the trace waited for. Where nothing ran for long, the waterfall is
    /// folded: one column with `⋯` stands for that time, and a line in the tree says how long it was. In JSON, `critical_path` has the
    /// path's stretches from the start to the end.
    ///
    /// Ten siblings and more of one name take one line, with their count, the median and the longest of their durations, and what is
    /// below them is put together likewise. Spans that failed, that run, or that the end of the trace waited for considerably, keep their own lines.
    ///
    /// On a terminal, what is longer than the screen is shown through TRACER_PAGER, PAGER, or `less -FRX`.
    Show {
        /// The trace's id, its beginning, or `last`: the trace of the last submission or request
        #[arg(default_value = "last")]
        trace: String,
        /// Go on until every span and every task of the trace has ended
        ///
        /// On a terminal the tree is drawn again while it grows. Elsewhere each span is a line of its own once it has ended;
        /// in JSON, an object as it is in the span file.
        #[arg(long)]
        follow: bool,
        /// Show the attributes of each span below it; in JSON they always are
        #[arg(long)]
        attributes: bool,
        /// Show the events of each span below it, each with its time since the start of the trace; in JSON they always are
        #[arg(long)]
        events: bool,
        /// Show the log records of the trace and the lines that its attempts wrote, each below its span with its time since the start of the trace
        ///
        /// Records have their severity, and with --attributes their attributes. They are read from the files `*.logs.jsonl` of the spans folder, to which
        /// `tracer start --otlp` writes what programs send. Lines have the name of the output; they are those of `tracer logs --trace ID`.
        #[arg(long, conflicts_with = "follow")]
        logs: bool,
        /// Show each span on a line of its own, also many siblings of one name
        #[arg(long, visible_alias = "all")]
        no_fold: bool,
        /// Write to the terminal itself, however long it is
        #[arg(long)]
        no_pager: bool,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show all spans that are open now, in all processes of the running head
    ///
    /// Spans of tasks and of submissions, your own included, each with its age. They are read from the head's spools; the processes
    /// do not notice. A process that has died has nothing open: its spans are completed.
    Open {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Write ended spans in the format of other tools: OTLP, Perfetto, speedscope, flame graphs
    #[command(after_help = "Example:\n  tracer trace export last --format chrome --output trace.json")]
    Export {
        /// The trace's id, its beginning, or `last`: the trace of the last submission or request
        #[arg(default_value = "last", conflicts_with = "all")]
        trace: String,
        /// All traces
        #[arg(long)]
        all: bool,
        /// Format of the output
        #[arg(long, value_enum, value_name = "FORMAT")]
        format: ExportFormat,
        /// File to write to, instead of standard output
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Compare two traces by the path of names from the root
    ///
    /// Spans that have the same names above them are one line: their count, their own time in both traces, and its change. Lines that are the same in both are left
    /// out; the largest change is first.
    #[command(after_help = "Example:\n  tracer trace diff 4bf92f35 last")]
    Diff(diff::Args),
    /// Check that traces keep bounds: for continuous integration
    ///
    /// Exits with 1 if a bound is exceeded, or if there is no trace to check.
    #[command(
        after_help = "Examples:\n  tracer trace check last --no-errors\n  tracer trace check 'since:10m' --no-errors --max-duration 'count<100ms'\n  tracer trace stats --format json > stats.json\n  tracer trace check --baseline stats.json --tolerance 20%"
    )]
    Check(check::Args),
    /// Show count, durations, errors and own time for each name of a span
    ///
    /// The own time of a span is that in which none of its children runs. Names are in the order of their own time.
    Stats {
        /// One trace alone: its id, its beginning, or `last`: the trace of the last submission or request [default: all]
        trace: Option<String>,
        /// Maximum number of names to show
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// A format of other tools.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExportFormat {
    /// OTLP in JSON, one `TracesData` a line, as the OpenTelemetry Collector reads it.
    Otlp,
    /// Chrome's trace event format, for https://ui.perfetto.dev.
    Chrome,
    /// One profile for each thread, for https://www.speedscope.app.
    Speedscope,
    /// Folded stacks: the path of names, and its own time in microseconds, for flame graphs.
    Folded,
}

/// Bytes of span files that are read at once, and of the index of those of a larger folder.
const READ_AT_ONCE: u64 = 48 << 20;

/// The most log records and lines that are shown with a trace.
const RECORDS: usize = 10_000;

/// Reads the log records of a trace and the lines that its attempts wrote, by time, and says how many there are besides.
fn log_records(source: &SourceArgs, trace: &Trace, parts: Vec<TraceId>) -> Result<(Vec<LogRecord>, u64), CommandError> {
    let (folder, _) = source.folder_and_head();
    let of_trace: Vec<String> = parts.iter().chain([&trace.id]).map(TraceId::to_string).collect();
    let OfTrace { entries, left_out, notices } =
        log_entries::of_trace(&folder, &all_sessions(&source.temp_dir()), trace, parts, RECORDS)
            .map_err(|error| CommandError::new(exit::FAILED, format!("what was written cannot be read: {error}")))?;
    notices.iter().for_each(|notice| report::warning(notice));
    if left_out > 0 {
        let shown = tracer_core::count::Count(entries.len() as u64, "entry");
        report::warning(&format!(
            "the first {shown} are shown, and {left_out} more are not\n(hint: `tracer logs --trace {}` shows all)",
            trace.id
        ));
    }
    let mut submitted = Submitted::of_spans(trace);
    match Driver::connect(&source.temp_dir()) {
        Ok(mut driver) => {
            submitted.ask(&mut driver, &of_trace.iter().map(String::as_str).collect::<Vec<_>>())?;
        }
        Err(_) => submitted.take_as_here(),
    }
    submitted.report(&trace.id.to_string());
    Ok((entries.into_iter().map(Entry::into_log_record).collect(), left_out))
}

/// Source of the spans: a folder of span files, and the place of the head.
#[derive(clap::Args)]
pub(super) struct SourceArgs {
    /// The folder of the span files; repeat it for those of several nodes
    #[arg(long, value_name = "DIR", env = tracer_settings::SPANS_DIR_VARIABLE, value_parser = super::path_parser())]
    spans_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) place: PlaceArgs,
}

impl SourceArgs {
    /// Returns the folder of the head's sessions.
    pub(super) fn temp_dir(&self) -> PathBuf {
        self.place.temp_dir()
    }

    /// Returns the head that runs, or the one that was killed and that no other has followed. Then the spans of the processes that died with it
    /// are in the span files, but for what a warning says.
    fn head(&self) -> Result<HeadRecord, SessionError> {
        let temp_dir = self.place.temp_dir();
        let leavings = finish_leavings(&temp_dir);
        for (spool, error) in &leavings.failures {
            let why = tracer_core::causes::with_causes(error);
            let spool = spool.display();
            report::warning(&format!(
                "spans of a process that died are still in `{spool}`, for the next head to complete: {why}"
            ));
        }
        leavings.dead_head.map_or_else(|| find_head(&temp_dir), Ok)
    }

    /// Returns the folders that were named.
    fn spans_dirs(&self) -> impl Iterator<Item = &PathBuf> {
        self.spans_dir.iter().filter(|path| !path.as_os_str().is_empty())
    }

    /// Adds the spans of the further folders that were named.
    fn add_further(&self, loaded: &mut Loaded) -> Result<(), CommandError> {
        for folder in self.spans_dirs().skip(1) {
            let further = tracer_trace::load(folder).map_err(|error| CommandError::new(exit::FAILED, error))?;
            warn_of(&further);
            loaded.add(further.traces.into_iter().flat_map(|trace| trace.spans));
        }
        Ok(())
    }

    /// Returns the folder of the span files, the first if several were named, and the head that runs or was killed, if it writes there.
    pub(super) fn folder_and_head(&self) -> (PathBuf, Option<HeadRecord>) {
        let said = self.spans_dirs().next().cloned();
        let head = self.head().ok();
        let of_head = head.as_ref().map(|head| head.spans_dir.clone());
        let folder = match (said, of_head) {
            // A variable of this shell says less of where spans are than the head that writes them.
            (Some(said), Some(of_head)) if !said.exists() && of_head.exists() && is_by_variable(&said) => {
                warn_of_folder(&said, &of_head);
                Some(of_head)
            }
            (said, of_head) => said.or(of_head),
        };
        let folder = folder.unwrap_or_else(|| tracer_settings::DEFAULT_SPANS_DIR.into());
        let is_same = |other: &Path| other == folder || other.canonicalize().ok() == folder.canonicalize().ok();
        let head = head.filter(|head| is_same(&head.spans_dir));
        (folder, head)
    }

    /// Returns the error for a folder that cannot be read, with where the spans of the head are, if these are elsewhere.
    fn unreadable(&self, error: &LoadError) -> CommandError {
        let of_head = self.head().ok().map(|head| head.spans_dir);
        let hint = match (error, of_head) {
            (LoadError::Missing { folder }, Some(of_head)) if *folder != of_head => {
                format!("\n(hint: the head here writes its spans to `{0}`: --spans-dir {0})", of_head.display())
            }
            (LoadError::Missing { .. }, None) if self.spans_dirs().next().is_none() => {
                "\n(hint: where a head runs, its folder is read; --spans-dir names another one)".to_owned()
            }
            _ => String::new(),
        };
        CommandError::new(exit::FAILED, format!("{error}{hint}"))
    }

    /// Loads the span files.
    fn load(&self) -> Result<Loaded, CommandError> {
        let (folder, _) = self.folder_and_head();
        let mut loaded = tracer_trace::load(&folder).map_err(|error| self.unreadable(&error))?;
        warn_of(&loaded);
        self.add_further(&mut loaded)?;
        Ok(loaded)
    }

    /// Finds a trace, and the traces that are parts of it, among what is written, and with `with_running` among what living processes have not written yet
    /// too. The other traces of the folder are in memory as rows of an index alone.
    pub(super) fn find(&self, text: &str, with_running: bool) -> Result<(Trace, Vec<TraceId>), CommandError> {
        let [found] = self.find_each([text], with_running)?;
        Ok(found)
    }

    /// Finds several traces in the same way.
    fn find_each<const N: usize>(
        &self,
        texts: [&str; N],
        with_running: bool,
    ) -> Result<[(Trace, Vec<TraceId>); N], CommandError> {
        let mut found = Vec::with_capacity(N);
        if self.spans_dirs().count() > 1 {
            let loaded = if with_running { self.load_with_running()? } else { self.load()? };
            for text in texts {
                let trace = loaded.find(text)?.clone();
                let parts = loaded.parts().filter(|(_, trunk)| *trunk == trace.id).map(|(part, _)| part).collect();
                found.push((trace, parts));
            }
        } else {
            let (folder, head) = self.folder_and_head();
            let mut index = Index::new(&folder, INDEX_BYTES);
            let session = head.filter(|_| with_running).map(|head| head.session_dir);
            let (_, notices) = index
                .look(session.as_deref(), now_unix_nano())
                .map_err(|error| CommandError::new(exit::FAILED, error))?;
            notices.iter().for_each(|notice| report::warning(&notice.to_string()));
            for text in texts {
                let trace = index.find(text).map_err(|error| match error {
                    FindError::Empty { folder } if !folder.exists() => self.unreadable(&LoadError::Missing { folder }),
                    error => error.into(),
                })?;
                let parts = index.parts_of(trace.id);
                found.push((trace, parts));
            }
        }
        Ok(found.try_into().unwrap_or_else(|_| unreachable!("one was found for each text")))
    }

    /// Opens the span files, and with `with_running` also what living processes have not written there yet.
    /// Of a large folder only an index is in memory.
    fn traces(&self, with_running: bool) -> Result<Traces, CommandError> {
        let (folder, head) = self.folder_and_head();
        let files = tracer_trace::span_files(&folder).unwrap_or_default();
        let bytes: u64 = files.iter().map(|(_, metadata)| metadata.len()).sum();
        if self.spans_dirs().count() > 1 || bytes <= READ_AT_ONCE {
            let loaded = if with_running { self.load_with_running()? } else { self.load()? };
            return Ok(Traces::Loaded(Box::new(loaded)));
        }
        let mut index = Index::new(&folder, READ_AT_ONCE as usize);
        let session = head.filter(|_| with_running).map(|head| head.session_dir);
        let (_, notices) = index.look(session.as_deref(), now_unix_nano()).map_err(|error| self.unreadable(&error))?;
        let notices = tracer_trace::other_files(&folder).into_iter().chain(notices);
        notices.for_each(|notice| report::warning(&notice.to_string()));
        Ok(Traces::Indexed(Box::new(index)))
    }

    /// Loads the span files, and the spans that living processes have not written there yet.
    pub(super) fn load_with_running(&self) -> Result<Loaded, CommandError> {
        let (folder, head) = self.folder_and_head();
        let Some(head) = head else { return self.load() };
        // The spools first: what is written in between is then in both, and not in neither.
        let look = Live::new(&head.session_dir).look(now_unix_nano(), |_| true);
        let mut loaded = match tracer_trace::load(&folder) {
            Err(LoadError::Missing { .. }) if !look.spans.is_empty() => Loaded::empty(&folder),
            loaded => loaded.map_err(|error| self.unreadable(&error))?,
        };
        warn_of(&loaded);
        loaded.add(look.spans.into_iter().map(|live| live.span));
        self.add_further(&mut loaded)?;
        Ok(loaded)
    }
}

/// The traces of a folder.
enum Traces {
    Loaded(Box<Loaded>),
    Indexed(Box<Index>),
}

impl Traces {
    /// Hands over each trace. Of those in an index a few are in memory at a time.
    fn each(self, take: impl FnMut(&Trace)) {
        match self {
            Traces::Loaded(loaded) => loaded.traces.iter().for_each(take),
            Traces::Indexed(index) => index.each_trace(take),
        }
    }
}

/// Returns whether a folder was named by the variable, and not on the command line.
fn is_by_variable(folder: &Path) -> bool {
    let typed = |argument: OsString| argument.to_str().is_some_and(|text| text.starts_with("--spans-dir"));
    std::env::var_os(tracer_settings::SPANS_DIR_VARIABLE).is_some_and(|said| Path::new(&said) == folder)
        && !std::env::args_os().any(typed)
}

/// Says once that the head's folder is read.
fn warn_of_folder(said: &Path, of_head: &Path) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let variable = tracer_settings::SPANS_DIR_VARIABLE;
        report::warning(&format!(
            "there is no spans folder `{}`, which `{variable}` names: `{}` is read, where the head here writes its spans",
            said.display(),
            of_head.display()
        ));
    });
}

fn warn_of(loaded: &Loaded) {
    for notice in &loaded.notices {
        report::warning(&notice.to_string());
    }
}

/// Parses the words of a query on the command line.
fn parse_query(words: &[String]) -> Result<Query, CommandError> {
    super::parse::check_query("tracer trace list", words)?;
    Query::parse_words(words, now_unix_nano()).map_err(|error| CommandError::new(exit::USAGE, error))
}

/// Names the attributes of a query that found nothing which are hardly attributes.
fn warn_of_doubtful_keys(query: &Query) {
    for (key, field) in query.doubtful_keys() {
        report::warning(&format!(
            "no span with an attribute `{key}` matches\n(hint: did you mean the field `{field}`?)"
        ));
    }
}

/// Writes traces that were read.
type Writer = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()>>;
/// Writes traces that are all in memory.
type WriteAll = fn(&[&Trace], &mut dyn Write) -> io::Result<()>;

/// Reads a trace, or all traces, and returns what writes them in a format. What has to see all spans first reads them all at once.
fn writer(source: &SourceArgs, trace: Option<&str>, format: ExportFormat) -> Result<Writer, CommandError> {
    let (trace, write): (_, WriteAll) = match (trace, format) {
        (None, ExportFormat::Otlp) => {
            let traces = source.traces(false)?;
            return Ok(Box::new(|out| {
                let (mut otlp, mut written) = (export::Otlp::default(), Ok(()));
                traces.each(|trace| {
                    if written.is_ok() {
                        written = otlp.write(trace, out);
                    }
                });
                written.and_then(|()| otlp.finish(out))
            }));
        }
        (None, ExportFormat::Folded) => {
            let mut folded = export::Folded::default();
            source.traces(false)?.each(|trace| folded.add(trace));
            return Ok(Box::new(|out| folded.finish(out)));
        }
        (trace, ExportFormat::Otlp) => (trace, export::otlp),
        (trace, ExportFormat::Folded) => (trace, export::folded),
        (trace, ExportFormat::Chrome) => (trace, export::chrome),
        (trace, ExportFormat::Speedscope) => (trace, export::speedscope),
    };
    let traces = match trace {
        None => source.load()?.traces,
        Some(trace) => vec![source.find(trace, false)?.0],
    };
    Ok(Box::new(move |out| write(&traces.iter().collect::<Vec<_>>(), out)))
}

/// Writes a file that only this user can read: attributes may hold what is nobody else's business.
fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    let mut out = io::BufWriter::new(file);
    write(&mut out).and_then(|()| out.flush())
}

/// Returns the spans that are open in the processes of the running head, or in those that live on without theirs.
fn look_for_open(source: &SourceArgs) -> Result<Open, CommandError> {
    let head = source.head().map_err(DriverError::Session)?;
    let now = now_unix_nano();
    let look = Live::new(&head.session_dir).look(now, |_| true);
    for error in &look.errors {
        report::warning(&error.to_string());
    }
    for (pid, spans) in &look.unrecorded {
        let spans = Count(*spans, "span");
        report::warning(&format!("process {pid} had more open spans than its spool holds: {spans} cannot be seen"));
    }
    let folder = source.spans_dirs().next().cloned().unwrap_or(head.spans_dir);
    Ok(Open::new(look.spans, now, || tracer_trace::load(&folder).ok()))
}

pub(super) fn run(args: &Args) -> CommandResult {
    // Of a large folder there is much that is needed for a moment.
    tracer_process::allocator::release_at_once();
    match &args.command {
        TraceCommand::Diff(args) => return diff::run(args),
        TraceCommand::Check(args) => return check::run(args),
        TraceCommand::List { query, errors, name, min_duration, limit, source, format } => {
            let query = parse_query(query)?;
            let min_duration_ns =
                min_duration.map_or(0, |duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
            let filter = Filter { query, errors: *errors, name: name.clone(), min_duration_ns, ..Filter::default() };
            let mut list = GatheredList::new(&filter, Some(*limit));
            source.traces(true)?.each(|trace| list.add(trace));
            let list = list.finish();
            if list.rows.is_empty() {
                warn_of_doubtful_keys(&filter.query);
            }
            report::value(format.format, &list, |list| {
                render::list(list, now_unix_nano(), report::width(), report::colours_on_stdout())
            });
        }
        TraceCommand::Show { trace, follow, attributes, events, logs, no_fold, no_pager, source, format } => {
            let details = Details { attributes: *attributes, events: *events, logs: None, folds: !no_fold };
            if *follow {
                follow::run(source, trace, &details, format.format)?;
                return Ok(exit::OK);
            }
            let (mut trace, parts) = source.find(trace, true)?;
            let records = if *logs { Some(log_records(source, &trace, parts)?) } else { None };
            trace.put_on_one_clock();
            let trace = &trace;
            let logs = records.as_ref().map(|(records, _)| records.as_slice());
            let details = Details { logs, ..details };
            let render = || render::show(trace, &details, report::width(), report::colours_on_stdout());
            match format.format {
                Format::Text if !no_pager => report::page(&render()),
                Format::Text => report::text(&render()),
                Format::Json => {
                    let left_out = records.as_ref().map_or(0, |(_, left_out)| *left_out);
                    let shown = trace.report().with_log_records(logs, left_out);
                    report::stream(|out| json::write(&shown, out).and_then(|()| out.write_all(b"\n")))?;
                }
            }
        }
        TraceCommand::Open { source, format } => {
            report::value(format.format, &look_for_open(source)?, |open| {
                render::open(open, report::width(), report::colours_on_stdout())
            });
        }
        TraceCommand::Export { trace, all, format, output, source } => {
            let write = writer(source, (!all).then_some(trace.as_str()), *format)?;
            match output {
                None => report::stream(write)?,
                Some(path) => write_file(path, write).map_err(|error| {
                    CommandError::new(exit::FAILED, format!("cannot write `{}`: {error}", path.display()))
                })?,
            }
        }
        TraceCommand::Stats { trace, limit, source, format } => {
            let stats = match trace {
                None => {
                    let mut stats = GatheredStats::default();
                    source.traces(false)?.each(|trace| stats.add(trace));
                    stats.finish(Some(*limit))
                }
                Some(trace) => source.find(trace, true)?.0.stats(Some(*limit)),
            };
            report::value(format.format, &stats, |stats| {
                render::stats(stats, report::width(), report::colours_on_stdout())
            });
        }
    }
    Ok(exit::OK)
}
