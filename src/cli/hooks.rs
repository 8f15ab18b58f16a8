//! `tracer hooks`.

pub(super) mod undelivered;

use std::time::Duration;

use clap::Subcommand;
use tracer_core::duration::parse_duration;
use tracer_core::exit;
use tracer_host::hook::{HookCheck, HookContract, check_hook};

use super::modules::{SearchArgs, SearchedAs, others_can_change_it};
use super::start::{check_in_process, try_in_process};
use super::{CommandError, CommandResult, Format, FormatArgs, report};

/// Try tracing hooks out, or show the spans that they have not delivered
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tracer hooks check local_tmp_tracing:setup_tracing")]
pub(super) struct Args {
    #[command(subcommand)]
    command: HooksCommand,
}

#[derive(Subcommand)]
enum HooksCommand {
    /// Load a hook and run it in a process of its own, as every process of a head would
    #[command(after_help = "Example:\n  tracer hooks check local_tmp_tracing:setup_tracing")]
    Check {
        /// The hook, as `module:attribute`
        #[arg(value_name = "MODULE:ATTRIBUTE")]
        hook: String,
        /// Contract that it must keep [default: either]
        #[arg(long = "as", value_name = "CONTRACT", value_parser = ["startup-hook", "exporter"])]
        wanted: Option<String>,
        /// Time limit for the hook
        #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, env = "TRACER_HOOK_TIMEOUT")]
        hook_timeout: Duration,
        /// Run it in this process, which it may end.
        #[arg(long, hide = true)]
        here: bool,
        #[command(flatten)]
        search: SearchArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    Undelivered(undelivered::Args),
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (hook, wanted, hook_timeout, here, search, format) = match &args.command {
        HooksCommand::Check { hook, wanted, hook_timeout, here, search, format } => {
            (hook, wanted.as_deref(), *hook_timeout, *here, search, format)
        }
        HooksCommand::Undelivered(args) => return undelivered::run(args),
    };
    let (path, searched_as) = if here { search.searched() } else { search.search_path() };
    let checked = if here {
        report::reserve_stdout()?;
        let wanted = wanted.map(|name| match name {
            "exporter" => HookContract::Exporter,
            _ => HookContract::Startup,
        });
        check_hook(&path, hook, wanted, hook_timeout).map_err(|error| CommandError::new(exit::HOOK_REFUSED, error))
    } else {
        let mut check = check_in_process()?;
        check.args(search.arguments());
        check.args(wanted.into_iter().flat_map(|wanted| ["--as", wanted]));
        try_in_process(check, hook, hook_timeout)
    };
    let error = match checked {
        Ok(check) => {
            report::value(format.format, &HookReport::Works(check), |report| render(hook, report, &searched_as));
            return Ok(exit::OK);
        }
        Err(error) => error,
    };
    match format.format {
        Format::Text => report::error(error.error.as_ref()),
        Format::Json => {
            let refused = error.error.to_string();
            let report = HookReport::Refused { refused, error: Some(error.report().error) };
            report::value(format.format, &report, |report| render(hook, report, &searched_as));
        }
    }
    Ok(exit::HOOK_REFUSED)
}

/// The answer of `hooks check --format json`, which `tracer start` reads.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
pub(super) enum HookReport {
    Refused {
        /// Message for people.
        refused: String,
        /// The same in the form of every error.
        #[serde(skip_deserializing)]
        error: Option<super::ErrorFields>,
    },
    Works(HookCheck),
}

fn render(hook: &str, report: &HookReport, searched_as: &SearchedAs) -> String {
    let check = match report {
        HookReport::Works(check) => check,
        HookReport::Refused { refused, .. } => return refused.clone(),
    };
    let library = check.library.as_ref().map_or_else(|| "built in".into(), |path| path.display().to_string());
    let mut fields = vec![
        ("hook", format!("{hook} works")),
        ("is", format!("{} ({})", check.contract, check.contract.flag())),
        ("library", library),
        ("found", searched_as.line()),
        ("built by", check.producer.clone()),
        ("does", check.description.clone()),
        ("order", order(check).into()),
    ];
    fields.extend(check.opentelemetry.iter().map(|advice| ("warning", advice.clone())));
    fields.extend(check.changeable_by_others.as_deref().map(|said| ("warning", others_can_change_it(said))));
    report::fields(&fields)
}

fn order(check: &HookCheck) -> &'static str {
    if check.takes_spans {
        "can be the only hook, the first, or an additional one"
    } else {
        "can only be the first hook: it does not accept finished spans of other hooks"
    }
}
