//! `tracer submit actor` and `tracer submit call`.

use tracer_client::driver::{Driver, DriverError, meant_target};
use tracer_core::task::{ActorRole, FunctionSpec, TaskSpec};
use tracer_core::{exit, value};
use tracer_options::ActorOptions;

use super::options::{Flags, OfCall};
use super::{CommonArgs, absolute, encode_arguments, submit};
use crate::cli::{CommandError, CommandResult};

#[derive(clap::Args)]
pub(super) struct CreateArgs {
    /// The type, as `module:Type`; the module is a name, or the path of its library
    #[arg(value_name = "MODULE:TYPE")]
    target: String,
    /// The arguments of its `new`, each as JSON
    #[arg(value_name = "ARG", allow_negative_numbers = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    actor: Flags<ActorOptions>,
    #[command(flatten)]
    common: CommonArgs<OfCall>,
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
    common: CommonArgs<OfCall>,
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
    // Nobody is there whose end could be the actor's.
    let options = ActorOptions { detached: true, ..args.actor.options };
    let actor = ActorRole::Create((&options).into());
    let spec = TaskSpec::Function(FunctionSpec { actor, ..FunctionSpec::of_task(&module, &function, &arguments) });
    let mut common = args.common.checked()?;
    common.options.name.clone_from(&options.name);
    submit(spec, false, &common)
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
    submit(spec, false, &args.common.checked()?)
}
