//! `tracer prune`.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::trace::SourceArgs;
use super::{CommandResult, FormatArgs, report};
use crate::config::{parse_duration, parse_size};
use crate::count::{Count, Size};
use crate::exit;
use crate::identity;
use crate::session;
use crate::spool::owners;

/// Remove old span files and the folders of old sessions
///
/// Sessions are those of this place, with their logs. Span files are those named by a process, such as `4711.json`, in the folder that `tracer trace`
/// reads; a file counts as old as its last span, so that what a process wrote is kept or removed as a whole.
///
/// What is in use stays, whatever its age: the session of the head that runs or was killed last, a session with spans that were not delivered yet, and
/// files of processes that live. Works with and without a head.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer prune --older-than 7d --dry-run\n  tracer prune --max-size 1GiB")]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true)))]
pub(super) struct Args {
    /// Remove what is older, such as 12h or 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_age, group = "which")]
    older_than: Option<Duration>,
    /// Remove the oldest until the rest takes at most this much, such as 1GiB
    #[arg(long, value_name = "SIZE", value_parser = parse_size, group = "which")]
    max_size: Option<u64>,
    /// Remove nothing, and say what would be
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Takes days too, which no limit on a task is given in.
fn parse_age(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    match days {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 60 * 60)),
        None => parse_duration(text).map_err(|error| format!("{error}, or days such as `7d`")),
    }
}

/// What there is of one kind, and what becomes of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Counted {
    removed: u64,
    removed_bytes: u64,
    kept: u64,
    kept_bytes: u64,
    /// Those of the kept ones that are in use.
    in_use: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    spans_dir: PathBuf,
    span_files: Counted,
    sessions: Counted,
}

/// A span file or a session.
#[derive(Debug)]
struct Candidate {
    path: PathBuf,
    is_session: bool,
    bytes: u64,
    modified: SystemTime,
    is_in_use: bool,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (spans_dir, _) = args.source.folder_and_head();
    let temp_dir = args.source.temp_dir();
    let mut candidates = span_files(&spans_dir);
    candidates.extend(sessions(&temp_dir));
    let chosen = choose(&mut candidates, SystemTime::now(), args.older_than, args.max_size);
    let mut result =
        Report { dry_run: args.dry_run, spans_dir, span_files: Counted::default(), sessions: Counted::default() };
    let mut failures = 0;
    for (candidate, is_chosen) in candidates.iter().zip(chosen) {
        let is_removed = is_chosen
            && (args.dry_run
                || remove(candidate).unwrap_or_else(|error| {
                    failures += 1;
                    report::warning(&format!("`{}` cannot be removed: {error}", candidate.path.display()));
                    false
                }));
        let counted = if candidate.is_session { &mut result.sessions } else { &mut result.span_files };
        if is_removed {
            counted.removed += 1;
            counted.removed_bytes += candidate.bytes;
        } else {
            counted.kept += 1;
            counted.kept_bytes += candidate.bytes;
            counted.in_use += u64::from(candidate.is_in_use);
        }
    }
    report::value(args.format.format, &result, render);
    // Each of them was said.
    Ok(if failures == 0 { exit::OK } else { exit::FAILED })
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
    line(&result.span_files, "span file") + &line(&result.sessions, "session")
}

/// Says for each whether it is to be removed: the old ones, and of the others the oldest until they fit. Sorts them by age, the oldest first.
fn choose(
    candidates: &mut [Candidate],
    now: SystemTime,
    older_than: Option<Duration>,
    max_bytes: Option<u64>,
) -> Vec<bool> {
    candidates.sort_by_key(|candidate| candidate.modified);
    let mut left: u64 = candidates.iter().map(|candidate| candidate.bytes).sum();
    let choose = |candidate: &Candidate| {
        // One that was changed in the future, as clocks go, is new.
        let age = now.duration_since(candidate.modified).unwrap_or_default();
        let is_old = older_than.is_some_and(|limit| age > limit);
        let is_chosen = !candidate.is_in_use && (is_old || max_bytes.is_some_and(|max| left > max));
        left -= if is_chosen { candidate.bytes } else { 0 };
        is_chosen
    };
    candidates.iter().map(choose).collect()
}

/// False if it has been changed meanwhile: then it is in use.
fn remove(candidate: &Candidate) -> std::io::Result<bool> {
    if candidate.is_session {
        return fs::remove_dir_all(&candidate.path).map(|()| true);
    }
    if fs::symlink_metadata(&candidate.path)?.modified()? != candidate.modified {
        return Ok(false);
    }
    fs::remove_file(&candidate.path).map(|()| true)
}

/// The process that a span file is named by: `4711.json`, or `4711.2.json` after a rotation.
fn pid_of_file(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_suffix(".json")?;
    let (pid, rotation) = name.split_once('.').map_or((name, None), |(pid, rotation)| (pid, Some(rotation)));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(pid) || !rotation.is_none_or(is_number) {
        return None;
    }
    pid.parse().ok()
}

/// This user's span files in a folder. Links and what others have put there are not.
fn span_files(folder: &Path) -> Vec<Candidate> {
    let is_own = |metadata: &Metadata| metadata.uid() == rustix::process::geteuid().as_raw();
    let candidate = |path: PathBuf| {
        let pid = pid_of_file(&path)?;
        let metadata = fs::symlink_metadata(&path).ok().filter(|metadata| metadata.is_file() && is_own(metadata))?;
        let is_in_use = !identity::is_gone_or_going(pid);
        Some(Candidate {
            path,
            is_session: false,
            bytes: metadata.len(),
            modified: metadata.modified().ok()?,
            is_in_use,
        })
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| candidate(entry.path())).collect()
}

/// The sessions of a place.
fn sessions(temp_dir: &Path) -> Vec<Candidate> {
    // The first look at the sessions: one that comes later is not in the list.
    let folders = session::all_sessions(temp_dir);
    let current = session::find_head(temp_dir).ok().or_else(|| session::find_dead_head(temp_dir));
    let candidate = |path: PathBuf| {
        let metadata = fs::symlink_metadata(&path).ok().filter(Metadata::is_dir)?;
        let (bytes, modified) = measure(&path, metadata.modified().ok()?);
        let is_empty = |name: &str| fs::read_dir(path.join(name)).map_or(true, |mut entries| entries.next().is_none());
        let has_parcels = !owners::all_parcels(&session::handover_dir(&path)).is_empty();
        let is_current = current.as_ref().is_some_and(|head| head.session_dir.file_name() == path.file_name());
        let is_in_use = is_current || !is_empty("spool") || has_parcels;
        Some(Candidate { path, is_session: true, bytes, modified, is_in_use })
    };
    folders.into_iter().filter_map(candidate).collect()
}

/// The bytes of the files below a folder, and when one of them was last changed.
fn measure(folder: &Path, modified: SystemTime) -> (u64, SystemTime) {
    let (mut bytes, mut modified) = (0, modified);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            // Of the entry itself, not of what a link leads to.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
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
    fn the_old_go_and_then_the_oldest_until_the_rest_fits() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        let candidate = |age: u64, bytes, is_in_use| Candidate {
            path: age.to_string().into(),
            is_session: false,
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
        assert!(parse_age("soon").is_err_and(|error| error.contains("days such as `7d`")));
    }
}
