//! `tracer prune`.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::now_unix_nano;
use tracer_core::count::{Count, Size};
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_core::size::parse_size;
use tracer_head::restore::prune_without_head;
use tracer_ipc::identity;
use tracer_ipc::protocol::{PruneReport as Counted, PruneWhich, Query, Reply};
use tracer_ipc::session::{self, SessionError};
use tracer_ipc::spool::{Parcel, owners};

use super::connect::unexpected_reply;
use super::hooks::undelivered;
use super::trace::SourceArgs;
use super::{CommandError, CommandResult, FormatArgs, report};

/// Remove old span files, undelivered spans, put-aside journals, folders of old sessions, and tasks that have ended
///
/// Sessions are those of this place, with their logs. Span files are those named by a process, such as `4711.json`, in the folder that `tracer trace`
/// reads; a file counts as old as its last span, so that what a process wrote is kept or removed as a whole. Undelivered spans are discarded, as by
/// `tracer hooks undelivered --discard`: no exporter gets them any more. Journals that `tracer start --fresh` put aside, or that were kept because they
/// were damaged, count as old as their last record and are removed by age alone.
///
/// Tasks that have ended are forgotten with their results and idempotency keys, and leave the journal. They count as old as their end, and their
/// results are a size of their own.
///
/// Kept at any age: the session of the head that runs or was killed last, a session with undelivered spans (until the next time), files of processes
/// that live, tasks whose result a task that has not ended takes as an argument, and actors that live. Works with and without a head.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer prune --older-than 7d --dry-run\n  tracer prune --max-size 1GiB --max-tasks 1000"
)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true)))]
pub(super) struct Args {
    /// Remove files and tasks that are older, such as 12h or 7d; a number without a unit is refused
    #[arg(long, value_name = "DURATION", value_parser = parse_age, group = "which")]
    older_than: Option<Duration>,
    /// Remove the oldest until the rest takes at most this much, such as 1GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, group = "which")]
    max_size: Option<u64>,
    /// Forget the tasks that ended first until this many that have ended are left
    #[arg(long, value_name = "N", group = "which")]
    max_tasks: Option<u64>,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Takes days too, which no limit on a task is given in, and no number without a unit: seconds are meant elsewhere, days by whoever knows `find` or
/// logrotate, and what is removed is gone.
fn parse_age(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected an age with its unit, such as `30m`, `12h` or `7d`";
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 60 * 60)),
        None if text.parse::<f64>().is_ok() => {
            Err(format!("{EXPECTED}, found `{text}` without one\n(hint: `{text}d` is in days, `{text}s` in seconds)"))
        }
        None => parse_duration(text).map_err(|_| EXPECTED.to_owned()),
    }
}

#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    spans_dir: PathBuf,
    span_files: Counted,
    sessions: Counted,
    /// Files, with batches of spans for an exporter.
    undelivered: Counted,
    /// The spans that were removed with them.
    undelivered_spans_removed: u64,
    journals: Counted,
    /// Tasks that have ended, with their results.
    tasks: Counted,
}

/// Kind of a candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    SpanFile,
    Session,
    /// Spans that wait for the exporters of hooks.
    Undelivered(Parcel),
    /// A journal that is not read any more: put aside, or kept because it was damaged.
    Journal,
}

/// Something that may be removed.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    kind: Kind,
    bytes: u64,
    modified: SystemTime,
    is_in_use: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (spans_dir, _) = args.source.folder_and_head();
    let temp_dir = args.source.temp_dir();
    let mut candidates = span_files(&spans_dir);
    candidates.extend(sessions(&temp_dir));
    candidates.extend(undelivered_spans(&temp_dir));
    candidates.extend(journals(&temp_dir));
    let chosen = choose(&mut candidates, SystemTime::now(), args.older_than, args.max_size);
    let mut result = Report {
        dry_run: args.dry_run,
        spans_dir,
        span_files: Counted::default(),
        sessions: Counted::default(),
        undelivered: Counted::default(),
        undelivered_spans_removed: 0,
        journals: Counted::default(),
        tasks: Counted::default(),
    };
    let mut failures = 0;
    match prune_tasks(&temp_dir, args) {
        Ok(tasks) => result.tasks = tasks,
        Err(error) => {
            failures += 1;
            let why = tracer_core::causes::with_causes(error.error.as_ref());
            report::warning(&format!("the tasks of `{}` cannot be pruned: {why}", temp_dir.display()));
        }
    }
    let mut discarded: BTreeSet<PathBuf> = BTreeSet::new();
    for (candidate, is_chosen) in candidates.iter().zip(chosen) {
        let is_removed = is_chosen
            && (args.dry_run
                || remove(candidate).unwrap_or_else(|error| {
                    failures += 1;
                    report::warning(&format!("`{}` cannot be removed: {error}", candidate.path.display()));
                    false
                }));
        let counted = match &candidate.kind {
            Kind::SpanFile => &mut result.span_files,
            Kind::Session => &mut result.sessions,
            Kind::Journal => &mut result.journals,
            Kind::Undelivered(parcel) => {
                if is_removed {
                    result.undelivered_spans_removed += parcel.spans;
                    discarded.extend((!args.dry_run).then(|| undelivered::handover_of(parcel)));
                }
                &mut result.undelivered
            }
        };
        if is_removed {
            counted.removed += 1;
            counted.removed_bytes += candidate.bytes;
        } else {
            counted.kept += 1;
            counted.kept_bytes += candidate.bytes;
            counted.in_use += u64::from(candidate.is_in_use);
        }
    }
    undelivered::notify_heads(&discarded);
    report::value(args.format.format, &result, render);
    // Each of them was said.
    Ok(if failures == 0 { exit::OK } else { exit::FAILED })
}

/// Forgets ended tasks: by the head that remembers them, or, where none runs, in its journal.
fn prune_tasks(temp_dir: &Path, args: &Args) -> Result<Counted, CommandError> {
    let nanos = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    let which = PruneWhich {
        older_than_ns: args.older_than.map(nanos),
        max_tasks: args.max_tasks,
        max_bytes: args.max_size,
        dry_run: args.dry_run,
    };
    match Driver::connect(temp_dir) {
        Ok(mut driver) => match driver.query(&Query::Prune(which))? {
            Reply::Pruned(pruned) => Ok(pruned),
            _ => Err(unexpected_reply()),
        },
        Err(DriverError::Session(SessionError::NoHead { .. })) => {
            let (pruned, said) = prune_without_head(temp_dir, &which, now_unix_nano())?.unwrap_or_default();
            said.iter().for_each(|line| report::warning(line));
            Ok(pruned)
        }
        Err(error) => Err(error.into()),
    }
}

fn render(result: &Report) -> String {
    let line = |counted: &Counted, noun: &str| {
        let verb = if result.dry_run { "would remove" } else { "removed" };
        let in_use = match counted.in_use {
            0 => String::new(),
            in_use => format!(", {in_use} of them in use"),
        };
        let (removed, kept) = (Size(counted.removed_bytes), Size(counted.kept_bytes));
        format!("{verb} {} ({removed}), kept {} ({kept}{in_use})\n", Count(counted.removed, noun), counted.kept)
    };
    let mut text = line(&result.span_files, "span file") + &line(&result.sessions, "session");
    let others = [
        (&result.undelivered, "undelivered batch"),
        (&result.journals, "put-aside journal"),
        (&result.tasks, "ended task"),
    ];
    for (counted, noun) in others {
        if *counted != Counted::default() {
            text += &line(counted, noun);
        }
    }
    text
}

/// Says for each whether it is to be removed: the old ones, and of the others the oldest until they fit. Sorts them by age, the oldest first. The size is
/// that of all but journals.
fn choose(
    candidates: &mut [Candidate],
    now: SystemTime,
    older_than: Option<Duration>,
    max_bytes: Option<u64>,
) -> Vec<bool> {
    candidates.sort_by_key(|candidate| candidate.modified);
    let size = |candidate: &Candidate| if candidate.kind == Kind::Journal { 0 } else { candidate.bytes };
    let mut left: u64 = candidates.iter().map(size).sum();
    let choose = |candidate: &Candidate| {
        // One that was changed in the future, as clocks go, is new.
        let age = now.duration_since(candidate.modified).unwrap_or_default();
        let is_old = older_than.is_some_and(|limit| age > limit);
        let is_too_much = candidate.kind != Kind::Journal && max_bytes.is_some_and(|max| left > max);
        let is_chosen = !candidate.is_in_use && (is_old || is_too_much);
        left -= if is_chosen { size(candidate) } else { 0 };
        is_chosen
    };
    candidates.iter().map(choose).collect()
}

/// False if it has been changed meanwhile: then it is in use.
fn remove(candidate: &Candidate) -> std::io::Result<bool> {
    match &candidate.kind {
        Kind::Session => return fs::remove_dir_all(&candidate.path).map(|()| true),
        Kind::Undelivered(parcel) => return undelivered::discard(parcel.clone(), parcel.hooks),
        Kind::SpanFile | Kind::Journal => {}
    }
    if fs::symlink_metadata(&candidate.path)?.modified()? != candidate.modified {
        return Ok(false);
    }
    fs::remove_file(&candidate.path).map(|()| true)
}

/// Returns the process that a span file is named by: `4711.json`, or `4711.2.json` after a rotation.
fn pid_of_file(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (pid, rotation) = name.split_once('.').map_or((name, None), |(pid, rotation)| (pid, Some(rotation)));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(pid) || !rotation.is_none_or(is_number) {
        return None;
    }
    pid.parse().ok()
}

impl Candidate {
    /// Returns a regular file of this user's. Links and what others have put there are none.
    fn of_file(path: PathBuf, kind: Kind, is_in_use: impl FnOnce() -> bool) -> Option<Candidate> {
        let is_own = |metadata: &Metadata| metadata.uid() == rustix::process::geteuid().as_raw();
        let metadata = fs::symlink_metadata(&path).ok().filter(|metadata| metadata.is_file() && is_own(metadata))?;
        let is_in_use = is_in_use();
        Some(Candidate { path, kind, bytes: metadata.len(), modified: metadata.modified().ok()?, is_in_use })
    }
}

/// Returns the span files in a folder.
fn span_files(folder: &Path) -> Vec<Candidate> {
    let candidate = |path: PathBuf| {
        let pid = pid_of_file(&path)?;
        Candidate::of_file(path, Kind::SpanFile, || !identity::is_gone_or_going(pid))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| candidate(entry.path())).collect()
}

/// Returns the spans in all sessions of a place that wait for exporters.
fn undelivered_spans(temp_dir: &Path) -> Vec<Candidate> {
    let sessions = session::all_sessions(temp_dir);
    let parcels = sessions.iter().flat_map(|session| owners::all_parcels(&session::handover_dir(session)));
    parcels.filter_map(|parcel| Candidate::of_file(parcel.path.clone(), Kind::Undelivered(parcel), || false)).collect()
}

/// Returns the journals of a place that no head reads any more.
fn journals(temp_dir: &Path) -> Vec<Candidate> {
    let entries = fs::read_dir(temp_dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path()).filter(|path| is_put_aside(path));
    paths.filter_map(|path| Candidate::of_file(path, Kind::Journal, || false)).collect()
}

/// Returns whether a file is named as a journal that was put aside, or kept because it was damaged.
fn is_put_aside(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    ["tasks.journal.old-", "tasks.journal.damaged-"].iter().any(|start| name.starts_with(start))
}

/// Returns the sessions of a place.
fn sessions(temp_dir: &Path) -> Vec<Candidate> {
    // The first look at the sessions: one that comes later is not in the list.
    let folders = session::all_sessions(temp_dir);
    let current = session::find_head(temp_dir).ok().or_else(|| session::find_dead_head(temp_dir));
    let candidate = |path: PathBuf| {
        let metadata = fs::symlink_metadata(&path).ok().filter(Metadata::is_dir)?;
        // Undelivered spans are counted for themselves.
        let handover = session::handover_dir(&path);
        let (bytes, modified) = measure(&path, &handover, metadata.modified().ok()?);
        let is_empty = |name: &str| fs::read_dir(path.join(name)).map_or(true, |mut entries| entries.next().is_none());
        let has_parcels = !owners::all_parcels(&handover).is_empty();
        let is_current = current.as_ref().is_some_and(|head| head.session_dir.file_name() == path.file_name());
        let is_in_use = is_current || !is_empty("spool") || has_parcels;
        Some(Candidate { path, kind: Kind::Session, bytes, modified, is_in_use })
    };
    folders.into_iter().filter_map(candidate).collect()
}

/// Returns the bytes of the files below a folder but for one folder in it, and when one of them was last changed.
fn measure(folder: &Path, without: &Path, modified: SystemTime) -> (u64, SystemTime) {
    let (mut bytes, mut modified) = (0, modified);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            // Of the entry itself, not of what a link leads to.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.extend(Some(entry.path()).filter(|path| path != without));
            } else {
                bytes += metadata.len();
                modified = modified.max(metadata.modified().unwrap_or(modified));
            }
        }
    }
    (bytes, modified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_a_process_names_are_span_files() {
        for (name, expected) in [
            ("4711.json", Some(4711)),
            ("4711.2.json", Some(4711)),
            ("/a/b/1.json", Some(1)),
            ("notes.json", None),
            ("4711.json.gz", None),
            ("4711.txt", None),
            ("47x.json", None),
            (".json", None),
            ("1..json", None),
            ("1.2.3.json", None),
            ("99999999999.json", None),
        ] {
            assert_eq!(pid_of_file(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn only_journals_that_nobody_reads_are_pruned() {
        for (name, expected) in [
            ("tasks.journal.old-20251124T160000.123Z", true),
            ("/a/tasks.journal.damaged-20251124T160000.123Z-2", true),
            ("tasks.journal", false),
            ("tasks.journal.new", false),
            ("tasks.journal.replaced-20251124T160000.123Z", false),
            ("my.tasks.journal.old-1", false),
        ] {
            assert_eq!(is_put_aside(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn journals_go_by_age_alone() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let candidate = |kind, age| Candidate {
            path: "x".into(),
            kind,
            bytes: 10,
            modified: now - Duration::from_secs(age),
            is_in_use: false,
        };
        let chosen = |older_than, max_bytes| {
            let mut all = [candidate(Kind::Journal, 500), candidate(Kind::SpanFile, 400), candidate(Kind::Journal, 10)];
            choose(&mut all, now, older_than, max_bytes)
        };
        assert_eq!(chosen(Some(Duration::from_secs(100)), None), [true, true, false]);
        assert_eq!(chosen(None, Some(10)), [false; 3], "they are not counted");
        assert_eq!(chosen(None, Some(9)), [false, true, false]);
    }

    #[test]
    fn the_old_go_and_then_the_oldest_until_the_rest_fits() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let candidate = |age: u64, bytes, is_in_use| Candidate {
            path: age.to_string().into(),
            kind: Kind::SpanFile,
            bytes,
            modified: now - Duration::from_secs(age),
            is_in_use,
        };
        let left = |older_than: Option<u64>, max_bytes| {
            let mut all = vec![
                candidate(10, 1, false),
                candidate(500, 8, true),
                candidate(300, 4, false),
                candidate(50, 2, false),
            ];
            let chosen = choose(&mut all, now, older_than.map(Duration::from_secs), max_bytes);
            let kept = all.iter().zip(chosen).filter(|(_, is_chosen)| !is_chosen);
            kept.map(|(candidate, _)| candidate.bytes).collect::<Vec<_>>()
        };
        assert_eq!(left(Some(100), None), [8, 2, 1]);
        assert_eq!(left(Some(300), None), [8, 4, 2, 1], "it has to be older");
        assert_eq!(left(None, Some(15)), [8, 4, 2, 1]);
        assert_eq!(left(None, Some(14)), [8, 2, 1]);
        assert_eq!(left(None, Some(10)), [8, 1]);
        assert_eq!(left(None, Some(0)), [8], "what is in use stays");
        assert_eq!(left(Some(20), Some(9)), [8, 1]);
    }

    #[test]
    fn an_age_may_be_in_days() {
        assert_eq!(parse_age("7d"), Ok(Duration::from_secs(7 * 24 * 3600)));
        assert_eq!(parse_age("90m"), Ok(Duration::from_secs(90 * 60)));
        assert!(parse_age("soon").is_err_and(|error| error.contains("such as `30m`, `12h` or `7d`")));
        for text in ["7", "0", "1.5"] {
            let hint = format!("(hint: `{text}d` is in days, `{text}s` in seconds)");
            assert!(parse_age(text).is_err_and(|error| error.contains(&hint)), "{text}");
        }
    }
}
