//! `tracer submit actor` and `tracer submit call`.

use std::time::Duration;

use super::{CommonArgs, DemandArgs, PolicyArgs, absolute, encode_arguments, submit};
use crate::cli::{CommandError, CommandResult, FormatArgs, PlaceArgs};
use crate::config::parse_duration;
use crate::driver::{Driver, DriverError, meant_target};
use crate::exit;
use crate::task::{
    ActorOptions, ActorRole, DEFAULT_CRASH_LIMIT, DEFAULT_GRACE, DEFAULT_RETRY_BACKOFF, FunctionSpec, TaskSpec,
};
use crate::value;

#[derive(clap::Args)]
pub(super) struct CreateArgs {
    /// The type, as `module:Type`; the module is a name, or the path of its library
    #[arg(value_name = "MODULE:TYPE")]
    target: String,
    /// The arguments of its `new`, each as JSON
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    arguments: Vec<String>,
    /// A name by which it is found; while it lives, no other actor can have it
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Number of times to create it again after its worker was lost; its state begins anew
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_restarts: u32,
    /// Number of times to run a call again that was going on when the worker was lost; calls that had not begun wait in any case
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_call_retries: u32,
    /// Take the living actor of this name and type, if there is one
    #[arg(long, requires = "name")]
    get_or_create: bool,
    #[command(flatten)]
    common: CallCommonArgs,
}

#[derive(clap::Args)]
pub(super) struct CallArgs {
    /// The actor's name or id
    #[arg(value_name = "ACTOR")]
    actor: String,
    /// The method
    #[arg(value_name = "METHOD")]
    method: String,
    /// Its arguments, each as JSON
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    common: CallCommonArgs,
}

#[derive(clap::Args)]
struct CallCommonArgs {
    /// Print the id as soon as it is accepted, and do not wait for it
    #[arg(long)]
    no_wait: bool,
    /// Maximum run time. A call with a limit runs alone on its actor; if it exceeds the limit, the actor's worker is killed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Maximum wait until it begins
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    queue_timeout: Option<Duration>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

impl CallCommonArgs {
    fn common(self, name: &str) -> CommonArgs {
        CommonArgs {
            no_wait: self.no_wait,
            name: name.into(),
            timeout: self.timeout,
            trace_runtime: false,
            queue_timeout: self.queue_timeout,
            grace: DEFAULT_GRACE,
            demand: DemandArgs { num_cpus: 1, resource: Vec::new(), memory: None },
            policy: PolicyArgs {
                retries: 0,
                retry_backoff: DEFAULT_RETRY_BACKOFF,
                retry_on: None,
                crash_limit: DEFAULT_CRASH_LIMIT,
                at_most_once: false,
                idempotency_key: String::new(),
            },
            place: self.place,
            format: self.format,
        }
    }
}

pub(super) fn create(args: CreateArgs) -> CommandResult {
    let Some((module, type_name)) =
        args.target.rsplit_once(':').filter(|(module, name)| !module.is_empty() && !name.is_empty())
    else {
        let hint = match meant_target(&args.target) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "for example `counter:Counter`".to_owned(),
        };
        let text = format!("an actor is named `module:Type`, but got `{}`\n(hint: {hint})", args.target);
        return Err(CommandError::new(exit::USAGE, text));
    };
    let (module, function) = (absolute(module), format!("{type_name}.new"));
    let arguments = value::array(&encode_arguments(&args.arguments)?);
    let options = ActorOptions {
        max_restarts: args.max_restarts,
        max_call_retries: args.max_call_retries,
        is_detached: true,
        or_existing: args.get_or_create,
        name: &args.name,
    };
    let actor = ActorRole::Create(options);
    let spec = TaskSpec::Function(FunctionSpec { actor, ..FunctionSpec::of_task(&module, &function, &arguments) });
    submit(spec, None, &args.common.common(&args.name))
}

pub(super) fn call(args: CallArgs) -> CommandResult {
    let found = Driver::connect(&args.common.place.temp_dir())?.actor_report(&args.actor);
    let found = found.map_err(|error| match error {
        DriverError::Actor(text) => CommandError::new(exit::FAILED, text),
        error => error.into(),
    })?;
    let function = format!("{}.{}", found.type_name, args.method);
    let arguments = value::array(&encode_arguments(&args.arguments)?);
    let actor = ActorRole::Call(found.id);
    let spec =
        TaskSpec::Function(FunctionSpec { actor, ..FunctionSpec::of_task(&found.module, &function, &arguments) });
    submit(spec, None, &args.common.common(""))
}
