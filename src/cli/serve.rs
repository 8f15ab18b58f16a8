//! `tracer serve`.

mod check;
mod console;
mod deploy;
mod follow;
mod look;
mod reload;
mod run;
pub(super) mod tail;

use std::fmt;

use clap::Subcommand;
pub(super) use look::{deployments_table, replicas_table, services_table};
use tracer_client::driver::Driver;
use tracer_core::exit;
use tracer_ipc::protocol::{
    Query, Reply, ServiceQuery, ServiceRefusal, ServiceRefusalCode, ServiceReply, ServiceReport,
};

use super::connect::unexpected_reply;
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs};

/// Put functions and types of libraries behind HTTP
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  tracer serve run shop:app
  tracer serve deploy service.toml
  tracer serve status")]
pub(super) struct Args {
    #[command(subcommand)]
    command: ServeCommand,
}

#[derive(Subcommand)]
enum ServeCommand {
    /// Serve a deployment of a library until Ctrl-C
    ///
    /// Uses the head of this place; if none runs, starts one for the life of this command. Output of replicas and the access log are shown as they come.
    /// Ctrl-C lets requests in progress finish, and then ends the service; a second one ends it at once.
    #[command(
        after_help = "Example:\n  tracer serve run shop:app --num-replicas 2\n  tracer serve run -- uvicorn shop:app --uds {socket} --forwarded-allow-ips '*'"
    )]
    Run(run::Args),
    /// Roll a service file out, and wait until it is served
    ///
    /// Nothing is changed before all of the file was checked. New replicas are ready before old ones end; if
    /// one cannot get ready, the version before stays served.
    #[command(after_help = "Example:\n  tracer serve deploy service.toml --dry-run")]
    Deploy(deploy::Args),
    /// Show services with their deployments, replicas and proxies
    #[command(after_help = "Example:\n  tracer serve status --format json | jq '.services[].state'")]
    Status {
        /// The service [default: every one]
        #[arg(long, value_name = "NAME")]
        service: Option<String>,
        #[command(flatten)]
        place: PlaceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Print the service file of the version that is served
    #[command(after_help = "Example:\n  tracer serve config > service.toml")]
    Config {
        #[command(flatten)]
        which: ServiceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// List the versions of a service that were deployed
    #[command(after_help = "Example:\n  tracer serve history")]
    History {
        #[command(flatten)]
        which: ServiceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Serve an earlier version again
    #[command(after_help = "Example:\n  tracer serve rollback 3")]
    Rollback {
        /// The version, as `tracer serve history` lists them [default: the one before the served version]
        version: Option<u64>,
        #[command(flatten)]
        which: ServiceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// End a service: finish requests in progress, and accept no new ones
    #[command(after_help = "Example:\n  tracer serve shutdown --service shop")]
    Shutdown {
        #[command(flatten)]
        which: ServiceArgs,
        #[command(flatten)]
        format: FormatArgs,
    },
    /// Print the service file that `run` would use
    #[command(after_help = "Example:\n  tracer serve build shop:app > service.toml")]
    Build(run::ServiceOfArgs),
}

/// Choice of a service.
#[derive(Clone, Debug, clap::Args)]
struct ServiceArgs {
    /// The service [default: the only one that there is]
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
}

pub(super) fn run(args: Args) -> CommandResult {
    match args.command {
        ServeCommand::Run(args) => run::run(&args),
        ServeCommand::Deploy(args) => deploy::run(&args),
        ServeCommand::Status { service, place, format } => look::status(&ServiceArgs { service, place }, format.format),
        ServeCommand::Config { which, format } => look::config(&which, format.format),
        ServeCommand::History { which, format } => look::history(&which, format.format),
        ServeCommand::Rollback { version, which, format } => deploy::roll_back(&which, version, format.format),
        ServeCommand::Shutdown { which, format } => deploy::shut_down(&which, format.format),
        ServeCommand::Build(args) => run::build(&args),
    }
}

/// A refusal of the head about a service.
#[derive(Debug)]
pub(super) struct Refused(pub(super) ServiceRefusal);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Refused {}

fn refused(code: ServiceRefusalCode, message: String) -> CommandError {
    CommandError::new(exit::FAILED, Refused(ServiceRefusal { code, message }))
}

/// Asks the head something about services.
pub(super) fn ask(driver: &mut Driver, query: ServiceQuery) -> Result<ServiceReply, CommandError> {
    match driver.query(&Query::Service(query))? {
        Reply::Service(ServiceReply::Refused(refusal)) => Err(CommandError::new(exit::FAILED, Refused(refusal))),
        Reply::Service(reply) => Ok(reply),
        _ => Err(unexpected_reply()),
    }
}

/// Returns the services of a place.
pub(super) fn list(place: &PlaceArgs) -> Result<Vec<ServiceReport>, CommandError> {
    services(&mut Driver::connect(&place.temp_dir())?, None)
}

/// Returns the services that there are, or the one that is meant.
pub(super) fn services(driver: &mut Driver, wanted: Option<&str>) -> Result<Vec<ServiceReport>, CommandError> {
    let ServiceReply::Services(mut services) = ask(driver, ServiceQuery::List)? else { return Err(unexpected_reply()) };
    let Some(wanted) = wanted else { return Ok(services) };
    let names: Vec<_> = services.iter().map(|service| service.name.clone()).collect();
    services.retain(|service| service.name == wanted);
    if services.is_empty() {
        let hint = tracer_core::suggestion::hint(wanted, names.iter().map(String::as_str));
        return Err(refused(ServiceRefusalCode::UnknownService, format!("there is no service `{wanted}`{hint}")));
    }
    Ok(services)
}

impl ServiceArgs {
    /// Connects to the head, and finds the name of the service that is meant.
    fn connect(&self) -> Result<(Driver, String), CommandError> {
        let mut driver = Driver::connect(&self.place.temp_dir())?;
        let services = services(&mut driver, self.service.as_deref())?;
        match services.as_slice() {
            [service] => Ok((driver, service.name.clone())),
            [] => {
                let text = "no service is deployed\n(hint: `tracer serve deploy service.toml`)";
                Err(refused(ServiceRefusalCode::UnknownService, text.into()))
            }
            several => {
                let names: Vec<_> = several.iter().map(|service| format!("`{}`", service.name)).collect();
                let text =
                    format!("there are several services, {}\n(hint: --service NAME chooses one)", names.join(" and "));
                Err(CommandError::new(exit::USAGE, text))
            }
        }
    }
}
