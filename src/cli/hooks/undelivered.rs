//! `tracer hooks undelivered`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use std::{fs, io};

use serde::Serialize;
use tracer_core::clock::utc;
use tracer_core::count::{Count, Size};
use tracer_core::exit;
use tracer_ipc::session;
use tracer_ipc::spool::Parcel;
use tracer_ipc::spool::owners::{self, Owners};

use super::super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};

/// Show the spans that wait for the exporters of hooks, or discard them
///
/// Spans that a hook's exporter did not deliver wait in the folder of the session for a head that has a hook of that name, this one or a later one. Works
/// with and without a head.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer hooks undelivered\n  tracer hooks undelivered otlp:setup_tracing --discard")]
pub(in crate::cli) struct Args {
    /// Show or discard the spans of this hook only, `module:attribute`
    #[arg(value_name = "MODULE:ATTRIBUTE")]
    hook: Option<String>,
    /// Discard the spans: no hook gets them any more
    #[arg(long)]
    discard: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Returns the command line that shows the undelivered spans of a place.
pub(in crate::cli) fn command(temp_dir: &Path) -> String {
    format!("tracer hooks undelivered{}", PlaceArgs::flag(temp_dir))
}

/// The spans that wait for one hook.
#[derive(Debug, Default, Serialize)]
struct OfHook {
    /// Null for parcels whose session has not left the names of its hooks.
    hook: Option<String>,
    spans: u64,
    bytes: u64,
    oldest_unix_nano: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Report {
    discarded: bool,
    /// Each once, also those that several hooks are to have.
    spans: u64,
    bytes: u64,
    hooks: Vec<OfHook>,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let mut report = Report { discarded: args.discard, spans: 0, bytes: 0, hooks: Vec::new() };
    let mut by_name: BTreeMap<Option<String>, OfHook> = BTreeMap::new();
    let mut changed: BTreeSet<PathBuf> = BTreeSet::new();
    for session in session::all_sessions(&args.place.temp_dir()) {
        let folder = session::handover_dir(&session);
        for parcel in owners::all_parcels(&folder) {
            let of = Owners::read(&folder, parcel.mark);
            let name = |hook| of.as_ref().and_then(|of| of.name(hook)).map(str::to_owned);
            let is_meant = |hook: &u32| args.hook.is_none() || args.hook == name(*hook);
            let meant: Vec<u32> = owners::bits(parcel.hooks).filter(is_meant).collect();
            if meant.is_empty() {
                continue;
            }
            let modified = fs::metadata(&parcel.path).and_then(|metadata| metadata.modified()).ok();
            let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            let age = since.and_then(|since| u64::try_from(since.as_nanos()).ok());
            if args.discard {
                let hooks = meant.iter().fold(0, |all, hook| all | hook);
                let cannot = |error: io::Error| {
                    let text = format!("`{}` cannot be removed: {error}", parcel.path.display());
                    CommandError::from(io::Error::new(error.kind(), text))
                };
                if !discard(parcel.clone(), hooks).map_err(cannot)? {
                    continue;
                }
            }
            changed.extend(args.discard.then(|| folder.clone()));
            report.spans += parcel.spans;
            report.bytes += parcel.bytes;
            for hook in meant {
                let entry = by_name.entry(name(hook)).or_default();
                entry.spans += parcel.spans;
                entry.bytes += parcel.bytes;
                entry.oldest_unix_nano = [entry.oldest_unix_nano, age].into_iter().flatten().min();
            }
        }
    }
    notify_heads(&changed);
    report.hooks = by_name.into_iter().map(|(hook, found)| OfHook { hook, ..found }).collect();
    report::value(args.format.format, &tracer_trace::json::with_times(&report), |_| render(&report));
    Ok(exit::OK)
}

/// Tells whoever is the head of these `handover` folders that parcels in them were discarded.
pub(in crate::cli) fn notify_heads<'f>(folders: impl IntoIterator<Item = &'f PathBuf>) {
    for folder in folders {
        // A head that is not told finds out when it offers them.
        let _ = session::report_discarded(folder);
    }
}

/// Returns the `handover` folder of a parcel, also of one that no hook of the session is to have.
pub(in crate::cli) fn handover_of(parcel: &Parcel) -> PathBuf {
    let folder = parcel.path.parent().unwrap_or(Path::new(""));
    let is_foreign = folder.file_name().is_some_and(|name| name == owners::FOREIGN);
    if is_foreign { folder.parent().unwrap_or(folder).into() } else { folder.into() }
}

/// Discards a parcel, as far as it is for these hooks. False when it has been delivered meanwhile.
pub(in crate::cli) fn discard(mut parcel: Parcel, hooks: u32) -> io::Result<bool> {
    let left = parcel.hooks & !hooks;
    let done = if left == 0 { fs::remove_file(&parcel.path) } else { parcel.restrict(left) };
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn render(report: &Report) -> String {
    if report.hooks.is_empty() {
        return "no undelivered spans".to_owned();
    }
    let rows = report.hooks.iter().map(|found| {
        let oldest = found.oldest_unix_nano.map_or_else(|| "-".to_owned(), |time| utc(time).to_string());
        let name = found.hook.as_deref().map_or_else(|| "(unknown)".to_owned(), report::name);
        [name, found.spans.to_string(), Size(found.bytes).to_string(), oldest]
    });
    let table = report::table(["hook", "spans", "size", "oldest"], rows);
    match report.discarded {
        true => format!("{}\ndiscarded {}", table.trim_end(), Count(report.spans, "span")),
        false => table,
    }
}
