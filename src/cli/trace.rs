//! `tracer trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;

use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};
use crate::config;
use crate::exit;
use crate::hook::now_unix_nano;
use crate::session::find_head;
use crate::trace::{self, Filter, Loaded, render};

/// Read traces back from the span files
///
/// No head is needed. The files are looked for where the running head's processes write them, else in /tmp/spans.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer trace show last")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List traces, the newest first
    List {
        /// Only traces with a span that failed
        #[arg(long)]
        errors: bool,
        /// Only traces with a span whose name has this text in it
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// Only traces that took at least so long, for example 500ms
        #[arg(long, value_name = "DURATION", value_parser = config::parse_duration)]
        min_duration: Option<Duration>,
        /// The most to show
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show one trace as a tree with durations
    Show {
        /// The trace's id, its beginning, or `last`
        #[arg(default_value = "last")]
        trace: String,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Show count, durations, errors and own time for each name of a span
    ///
    /// The own time of a span is that in which none of its children runs. Names are in the order of their own time.
    Stats {
        /// The most names to show
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
}

/// Where the span files are.
#[derive(clap::Args)]
struct SourceArgs {
    /// The folder of the span files
    #[arg(long, value_name = "DIR", env = config::SPANS_DIR_VARIABLE, value_parser = super::path_parser())]
    spans_dir: Option<PathBuf>,
    #[command(flatten)]
    place: PlaceArgs,
}

impl SourceArgs {
    fn load(&self) -> Result<Loaded, CommandError> {
        let said = self.spans_dir.clone().filter(|path| !path.as_os_str().is_empty());
        let running = || find_head(&self.place.temp_dir()).ok().map(|head| head.spans_dir);
        let folder = said.or_else(running).unwrap_or_else(|| config::DEFAULT_SPANS_DIR.into());
        let loaded = trace::load(&folder).map_err(|error| CommandError::new(exit::FAILED, error))?;
        for notice in &loaded.notices {
            report::warning(&notice.to_string());
        }
        Ok(loaded)
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.what {
        What::List { errors, name, min_duration, limit, source, format } => {
            let min_duration_ns =
                min_duration.map_or(0, |duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
            let filter = Filter { errors: *errors, name: name.clone(), min_duration_ns };
            let list = source.load()?.list(&filter, Some(*limit));
            report::value(format.format, &list, |list| {
                render::list(list, now_unix_nano(), report::width(), report::colours_on_stdout())
            });
        }
        What::Show { trace, source, format } => {
            let loaded = source.load()?;
            let trace = loaded.find(trace).map_err(|error| CommandError::new(exit::FAILED, error))?;
            report::value(format.format, &trace.report(), |_| {
                render::show(trace, report::width(), report::colours_on_stdout())
            });
        }
        What::Stats { limit, source, format } => {
            let stats = source.load()?.stats(Some(*limit));
            report::value(format.format, &stats, |stats| {
                render::stats(stats, report::width(), report::colours_on_stdout())
            });
        }
    }
    Ok(exit::OK)
}
