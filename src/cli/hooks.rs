//! `tracer hooks`.

use std::time::Duration;

use clap::Subcommand;

use super::modules::SearchArgs;
use super::{CommandError, CommandResult, FormatArgs, report};
use crate::config::parse_duration;
use crate::exit;
use crate::hook::{HookCheck, check_hook};

/// Try tracing hooks out
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer hooks check local_tmp_tracing:setup_tracing")]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Load a hook and run it here, as every process of a head would
    Check {
        /// The hook, as `module:attribute`
        #[arg(value_name = "MODULE:ATTRIBUTE")]
        hook: String,
        /// How long it may take
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, env = "TRACER_HOOK_TIMEOUT")]
        hook_timeout: Duration,
        #[command(flatten)]
        search: SearchArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
}

pub(super) fn run(args: &Args) -> CommandResult {
    let What::Check { hook, hook_timeout, search, format } = &args.what;
    let check = check_hook(&search.search_path(), hook, *hook_timeout)
        .map_err(|error| CommandError::new(exit::HOOK_REFUSED, error))?;
    report::value(format.format, &check, |check| render(hook, check));
    Ok(exit::OK)
}

fn render(hook: &str, check: &HookCheck) -> String {
    let library = check.library.as_ref().map_or_else(|| "built in".into(), |path| path.display().to_string());
    report::fields(&[
        ("hook", format!("{hook} works")),
        ("library", library),
        ("built by", check.producer.clone()),
        ("does", check.description.clone()),
    ])
}
