//! `tracer trace check`.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use tracer_core::exit;
use tracer_trace::check::{Baseline, Bounds, Checked, MaxDuration};
use tracer_trace::{LAST, Query, json};

use super::{SourceArgs, parse_query, render, warn_of_doubtful_keys};
use crate::cli::{CommandError, CommandResult, path_parser, report};

#[derive(clap::Args)]
pub(super) struct Args {
    /// Only traces that this finds, as in `tracer trace list`, or `last`: the trace of the last submission or request [default: all]
    query: Vec<String>,
    /// Fail if a span has the status ERROR
    #[arg(long)]
    no_errors: bool,
    /// Fail if a span of this name, in which `*` and `?` may stand, takes so long or longer; without a name, if a trace does. May be repeated
    #[arg(long, value_name = "[NAME<]DURATION")]
    max_duration: Vec<MaxDuration>,
    /// Fail if a trace has more spans
    #[arg(long, value_name = "N")]
    max_spans: Option<usize>,
    /// Fail if p50 or p95 of a name is above that in this file, which `tracer trace stats --format json` wrote
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    baseline: Option<PathBuf>,
    /// Share by which the baseline may be exceeded
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value = "20%", requires = "baseline")]
    tolerance: f64,
    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text")]
    format: CheckFormat,
    #[command(flatten)]
    source: SourceArgs,
}

/// A format of the report.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CheckFormat {
    /// Lines for people.
    Text,
    /// One object.
    Json,
    /// XML as JUnit writes it, for services of continuous integration.
    Junit,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.strip_suffix('%').unwrap_or(text).parse().ok();
    let share = percent.map(|percent| percent / 100.0).filter(|share| share.is_finite() && *share >= 0.0);
    share.ok_or_else(|| format!("expected a share such as `20%`, found `{text}`"))
}

pub(super) fn run(args: &Args) -> CommandResult {
    // `"last"` in quotes is the text.
    let is_last = args.query == [LAST];
    let query = if is_last { Query::default() } else { parse_query(&args.query)? };
    let baseline = args.baseline.as_deref().map(|path| read_baseline(path, args.tolerance)).transpose()?;
    let bounds = Bounds {
        no_errors: args.no_errors,
        max_durations: args.max_duration.clone(),
        max_spans: args.max_spans,
        baseline,
    };
    if bounds.is_empty() {
        return Err(CommandError::new(
            exit::USAGE,
            "there is nothing to check: expected --no-errors, --max-duration, --max-spans or --baseline",
        ));
    }
    let mut checked = Checked::new(&bounds);
    if is_last {
        checked.add(&args.source.find(LAST, false)?.0);
    } else {
        args.source.traces(false)?.each(|trace| {
            if query.is_empty() || query.matches(trace) {
                checked.add(trace);
            }
        });
    }
    let checked = checked.finish();
    if checked.traces == 0 {
        warn_of_doubtful_keys(&query);
    }
    match args.format {
        CheckFormat::Text => report::text(&render::check(&checked, report::width(), report::colours_on_stdout())),
        CheckFormat::Json => report::json(&json::object(&checked)),
        CheckFormat::Junit => report::text(&render::junit(&checked)),
    }
    Ok(if checked.passed { exit::OK } else { exit::FAILED })
}

fn read_baseline(path: &Path, tolerance: f64) -> Result<Baseline, CommandError> {
    let failed = |reason: String| {
        let path = path.display();
        let hint = "(hint: `tracer trace stats --format json --limit 100000 > FILE` writes one)";
        CommandError::new(exit::FAILED, format!("cannot read the baseline `{path}`: {reason}\n{hint}"))
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let stats = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    Ok(Baseline { stats, tolerance })
}
