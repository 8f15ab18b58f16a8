//! `tracer serve deploy`, `rollback` and `shutdown`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use tracer_client::driver::{Driver, DriverError};
use tracer_core::clock::now_unix_nano;
use tracer_core::exit;
use tracer_ipc::protocol::{
    ServiceAccepted, ServiceNews, ServiceQuery, ServiceRefusalCode, ServiceReply, ServiceState, ServiceVersion,
};
use tracer_settings::service_file::{Service, Subject, parse};

use super::super::connect::unexpected_reply;
use super::super::{CommandError, CommandResult, Format, FormatArgs, PlaceArgs, report};
use super::{Refused, ServiceArgs, ask, check, follow, refused, services};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The service file
    #[arg(value_name = "FILE", value_parser = super::super::path_parser())]
    file: PathBuf,
    /// Do not wait until it is rolled out
    #[arg(long)]
    no_wait: bool,
    /// Check everything and print the steps, without taking them
    #[arg(long, conflicts_with = "no_wait")]
    dry_run: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Outcome of a deploy, as `--format json` writes it.
#[derive(Serialize)]
struct Done<'a> {
    service: &'a str,
    version: u64,
    outcome: &'static str,
    steps: &'a [String],
    reason: Option<&'a str>,
    url: Option<String>,
    /// Warnings about the version that is served now, for people.
    warnings: &'a [String],
}

pub(super) fn run(args: &Args) -> CommandResult {
    let ServiceFile { text, folder, mut service } = read(&args.file)?;
    let mut driver = Driver::connect(&args.place.temp_dir())?;
    check::modules(&driver, &mut service, &folder)
        .map_err(|mistake| CommandError::new(exit::FAILED, mistake.in_file(&args.file, &text)))?;
    let query = ServiceQuery::Deploy { service: Box::new(service.clone()), is_dry_run: args.dry_run, is_bound: false };
    let accepted = accepted_by_one(&mut driver, &args.place, (&service.name, query))
        .map_err(|error| with_place_of_address(error, &args.file, &text))?;
    let format = args.format.format;
    if args.dry_run || args.no_wait {
        let outcome = if args.dry_run { "dry_run" } else { "accepted" };
        let done = done(&accepted, outcome, None, None);
        report::value(format, &done, |_| steps(&accepted, args.dry_run));
        return Ok(exit::OK);
    }
    finish(&mut driver, &args.place, &accepted, format)
}

/// Service file that was read, with the folder that it is in.
struct ServiceFile {
    text: String,
    folder: PathBuf,
    service: Service,
}

/// Names the line of the address in the head's refusal to listen there.
fn with_place_of_address(error: CommandError, file: &Path, text: &str) -> CommandError {
    match error.error.downcast_ref::<Refused>() {
        Some(Refused(refusal)) if refusal.code == ServiceRefusalCode::Address => {
            let mistake = check::Mistake { subject: Subject::Address, reason: refusal.message.clone() };
            refused(refusal.code, mistake.in_file(file, text))
        }
        _ => error,
    }
}

/// Reads a service file.
fn read(file: &Path) -> Result<ServiceFile, CommandError> {
    let usage = |text: String| CommandError::new(exit::USAGE, text);
    let text = std::fs::read_to_string(file).map_err(|error| {
        usage(format!(
            "the service file `{}` cannot be read: {error}\n(hint: `tracer serve build MODULE:NAME` prints one)",
            file.display()
        ))
    })?;
    let path = std::path::absolute(file).unwrap_or_else(|_| file.into());
    let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
    let service = parse(&text, &folder).map_err(|error| usage(format!("{}:{error}", file.display())))?;
    Ok(ServiceFile { text, folder, service })
}

pub(super) fn accepted(driver: &mut Driver, query: ServiceQuery) -> Result<ServiceAccepted, CommandError> {
    match ask(driver, query)? {
        ServiceReply::Accepted(accepted) => Ok(accepted),
        _ => Err(unexpected_reply()),
    }
}

/// Time within which the head that follows one which has died can be reached: it takes over within 10 s, or all of it ends.
const NEXT_HEAD: Duration = Duration::from_secs(15);
/// Pause between two tries to reach it.
const NEXT_TRY: Duration = Duration::from_millis(100);

/// Returns whether a head has died while it was asked. Its services are another one's within moments.
fn has_lost_head(error: &CommandError) -> bool {
    matches!(error.error.downcast_ref(), Some(DriverError::Disconnected(_)))
}

/// Connects to the head that follows one which has died. `lost` is what is said if there is none in time.
fn connect_to_next(place: &PlaceArgs, lost: CommandError) -> Result<Driver, CommandError> {
    let until = Instant::now() + NEXT_HEAD;
    loop {
        match Driver::connect(&place.temp_dir()) {
            Ok(driver) => return Ok(driver),
            Err(_) if Instant::now() < until => std::thread::sleep(NEXT_TRY),
            Err(_) => return Err(lost),
        }
    }
}

/// Asks for something and returns what was accepted, also when the head dies meanwhile: the next one knows what the first had taken, and is asked again for
/// what it had not.
fn accepted_by_one(
    driver: &mut Driver,
    place: &PlaceArgs,
    (service, query): (&str, ServiceQuery),
) -> Result<ServiceAccepted, CommandError> {
    let begun_unix_nano = now_unix_nano();
    loop {
        let lost = match accepted(driver, query.clone()) {
            Err(error) if has_lost_head(&error) => error,
            accepted => return accepted,
        };
        *driver = connect_to_next(place, lost)?;
        let last = versions(driver, service)?.pop().filter(|last| last.deployed_unix_nano >= begun_unix_nano);
        if let Some(ServiceVersion { version, .. }) = last.filter(|_| !matches!(query, ServiceQuery::ShutDown { .. })) {
            return Ok(ServiceAccepted { service: service.into(), version, after: 0, steps: Vec::new() });
        }
    }
}

/// Returns the versions of a service, oldest first; none of one that there is not.
fn versions(driver: &mut Driver, service: &str) -> Result<Vec<ServiceVersion>, CommandError> {
    match ask(driver, ServiceQuery::Versions { service: service.into() }) {
        Ok(ServiceReply::Versions(versions)) => Ok(versions),
        Ok(_) => Err(unexpected_reply()),
        Err(error) if is_unknown_service(&error) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn is_unknown_service(error: &CommandError) -> bool {
    let refused = error.error.downcast_ref().map(|Refused(refusal)| refusal.code);
    refused == Some(ServiceRefusalCode::UnknownService)
}

/// Follows what was accepted to its end, through the deaths of heads.
fn follow_to_end(
    driver: &mut Driver,
    place: &PlaceArgs,
    accepted: &ServiceAccepted,
    format: Format,
) -> Result<ServiceNews, CommandError> {
    let mut accepted = accepted.clone();
    loop {
        let lost = match follow::until_done(driver, &accepted, &mut follow::talk_in(format)) {
            Err(error) if has_lost_head(&error) => error,
            news => return news,
        };
        if format == Format::Text {
            report::talk("the head has died; waiting for the next one");
        }
        let ended = loop {
            let lost = CommandError::new(lost.exit_code, lost.error.to_string());
            *driver = connect_to_next(place, lost)?;
            match end_of(driver, &accepted) {
                Err(error) if has_lost_head(&error) => {}
                ended => break ended?,
            }
        };
        if let Some(news) = ended {
            return Ok(news);
        }
        // What the next head says begins anew.
        accepted.after = 0;
    }
}

/// Returns how something has ended that a head before this one had accepted; none while it goes on.
fn end_of(driver: &mut Driver, accepted: &ServiceAccepted) -> Result<Option<ServiceNews>, CommandError> {
    let ServiceAccepted { service, version, .. } = accepted;
    let rows = match services(driver, Some(service)) {
        Err(error) if is_unknown_service(&error) => return Ok(Some(ServiceNews::ShutDown)),
        rows => rows?,
    };
    let own = versions(driver, service)?.into_iter().find(|own| own.version == *version);
    let is_going_on =
        rows.iter().any(|row| row.rolling_out == Some(*version) || row.state == ServiceState::ShuttingDown);
    Ok(match own {
        Some(ServiceVersion { failure: Some(reason), .. }) => {
            Some(ServiceNews::RolloutFailed { version: *version, reason })
        }
        _ if is_going_on => None,
        Some(_) => Some(ServiceNews::RolledOut { version: *version }),
        None => {
            let reason = "the head died before it had noted it\n(hint: deploy it again)".into();
            Some(ServiceNews::RolloutFailed { version: *version, reason })
        }
    })
}

fn done<'a>(
    accepted: &'a ServiceAccepted,
    outcome: &'static str,
    reason: Option<&'a str>,
    url: Option<String>,
) -> Done<'a> {
    let ServiceAccepted { service, version, steps, .. } = accepted;
    Done { service, version: *version, outcome, steps, reason, url, warnings: &[] }
}

fn steps(accepted: &ServiceAccepted, is_dry_run: bool) -> String {
    let ServiceAccepted { service, version, steps, .. } = accepted;
    let head = if is_dry_run { "would be" } else { "is being" };
    let mut text = format!("version {version} of service `{service}` {head} rolled out:");
    steps.iter().for_each(|step| text.push_str(&format!("\n  {step}")));
    text
}

/// Waits for the end of what was asked for, and says how it was.
fn finish(driver: &mut Driver, place: &PlaceArgs, accepted: &ServiceAccepted, format: Format) -> CommandResult {
    let news = follow_to_end(driver, place, accepted, format)?;
    let (service, version) = (&accepted.service, accepted.version);
    match &news {
        ServiceNews::RolledOut { .. } => {
            let rows = services(driver, Some(service))?;
            let url = rows.first().map(|service| service.url.clone());
            let warnings = rows.first().map(|service| service.warnings.clone()).unwrap_or_default();
            let text =
                format!("version {version} of service `{service}` is served at {}", url.as_deref().unwrap_or_default());
            let done = Done { warnings: &warnings, ..done(accepted, "rolled_out", None, url) };
            print(format, &done, &text);
            if format == Format::Text {
                warnings.iter().for_each(|warning| report::warning(warning));
            }
            Ok(exit::OK)
        }
        ServiceNews::RolloutFailed { reason, .. } => {
            let goes_on = match services(driver, Some(service)) {
                Ok(rows) => {
                    rows.first().and_then(|row| row.version).map(|version| format!("version {version} is served on"))
                }
                Err(_) => None,
            };
            let goes_on = goes_on.unwrap_or_else(|| "nothing of it is served".into());
            let text =
                format!("version {version} of service `{service}` could not be rolled out, and {goes_on}: {reason}");
            match format {
                Format::Text => Err(CommandError::new(exit::FAILED, text)),
                Format::Json => {
                    report::value(format, &done(accepted, "failed", Some(reason), None), |_| String::new());
                    Ok(exit::FAILED)
                }
            }
        }
        _ => {
            print(format, &done(accepted, "shut_down", None, None), &format!("service `{service}` is shut down"));
            Ok(exit::OK)
        }
    }
}

fn print(format: Format, done: &Done<'_>, text: &str) {
    match format {
        Format::Text => report::talk(text),
        Format::Json => report::value(format, done, |_| String::new()),
    }
}

pub(super) fn roll_back(which: &ServiceArgs, version: Option<u64>, format: Format) -> CommandResult {
    let (mut driver, service) = which.connect()?;
    let query = ServiceQuery::Rollback { service: service.clone(), version };
    let accepted = accepted_by_one(&mut driver, &which.place, (&service, query))?;
    finish(&mut driver, &which.place, &accepted, format)
}

pub(super) fn shut_down(which: &ServiceArgs, format: Format) -> CommandResult {
    let (mut driver, service) = which.connect()?;
    let query = ServiceQuery::ShutDown { service: service.clone() };
    let accepted = accepted_by_one(&mut driver, &which.place, (&service, query))?;
    finish(&mut driver, &which.place, &accepted, format)
}
