//! `tracer trace diff`.

use tracer_core::exit;
use tracer_trace::Diff;

use super::{SourceArgs, render};
use crate::cli::{CommandResult, FormatArgs, report};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The trace to compare with: its id, or the beginning of its id
    before: String,
    /// The trace that is compared
    #[arg(default_value = "last")]
    after: String,
    /// Maximum number of paths to show
    #[arg(long, default_value_t = 50)]
    limit: usize,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

pub(super) fn run(args: &Args) -> CommandResult {
    let [(before, _), (after, _)] = args.source.find_each([&args.before, &args.after], false)?;
    let diff = Diff::new(&before, &after, Some(args.limit));
    report::value(args.format.format, &diff, |diff| render::diff(diff, report::width(), report::colours_on_stdout()));
    Ok(exit::OK)
}
