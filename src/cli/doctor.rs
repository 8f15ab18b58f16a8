//! `tracer doctor`.

use clap::ValueEnum;
use serde_json::json;
use tracer_core::count::Count;
use tracer_core::exit;
use tracer_engine::doctor::{Examination, Finding, Severity};
use tracer_engine::process::{self, AgentError};
use tracer_engine::roles::Role;
use tracer_ipc::protocol::{EngineAccess, EngineReport, Query, Reply};

use super::connect::{ask, unexpected_reply};
use super::engine::AccessArgs;
use super::{CommandError, CommandResult, FormatArgs, PlaceArgs, report};

/// Find out what is wrong with an engine, and what mends it
///
/// Without --address it is the engine that the head has joined. Nothing is changed. The exit code is 0 if there is nothing to mend, 6 if all goes on until
/// something happens for which nobody is prepared, and 1 if something does not work.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  tracer doctor\n  tracer doctor --address tls://10.0.0.5 --credentials node.nk --role node\n  tracer doctor --format json | jq '.findings[].code'"
)]
pub(super) struct Args {
    #[command(flatten)]
    access: AccessArgs,
    /// The role that the credentials are for [default: that of the head, or viewer]
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Option<RoleName>,
    /// The monitoring page of a server, which says whether it syncs; may be repeated [default: http://127.0.0.1:8222 of an engine on this machine]
    #[arg(long, value_name = "URL")]
    monitor: Vec<String>,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    format: FormatArgs,
}

/// Name of a role.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleName {
    /// Puts tasks into queues.
    Submitter,
    /// Serves queues, and submits.
    Node,
    /// Looks.
    Viewer,
    /// Makes streams.
    Admin,
}

impl RoleName {
    fn role(self) -> Role {
        match self {
            RoleName::Submitter => Role::Submitter,
            RoleName::Node => Role::Node,
            RoleName::Viewer => Role::Viewer,
            RoleName::Admin => Role::Admin,
        }
    }
}

pub(super) fn run(args: &Args) -> CommandResult {
    let (access, role, of_head) = match args.access.access() {
        Some(access) => (access, Role::Viewer, None),
        None => match of_head(&args.place)? {
            Some(joined) => joined,
            None => {
                report::value(args.format.format, &json!({ "address": null, "findings": [] }), |_| {
                    "nothing to mend: this head has joined no engine\n".to_owned()
                });
                return Ok(exit::OK);
            }
        },
    };
    let role = args.role.map_or(role, RoleName::role);
    let (examination, mut findings) = match process::examine(&access, role, &args.monitor) {
        Ok(mut examination) => {
            let findings = std::mem::take(&mut examination.findings);
            (Some(examination), findings)
        }
        Err(AgentError::Engine(error)) => (None, vec![Finding::of_error(&error)]),
        Err(error) => return Err(CommandError::new(exit::FAILED, error)),
    };
    // What it says is the reason, where it cannot be reached from here either.
    if examination.is_some() {
        findings.extend(of_head);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }
    let rows: Vec<_> = findings
        .iter()
        .map(|Finding { severity, code, text, hint }| {
            json!({ "severity": severity.name(), "code": code, "text": text, "hint": hint })
        })
        .collect();
    let report = json!({
        "address": access.address,
        "role": role.name(),
        "findings": rows,
        "sync_always": examination.as_ref().map(|seen| seen.syncs.clone()).unwrap_or_default(),
        "cluster": examination.as_ref().map(|seen| seen.survey.report()),
    });
    report::value(args.format.format, &report, |_| match &examination {
        Some(examination) if findings.is_empty() => nothing(&access, examination),
        _ => findings.iter().map(render).collect(),
    });
    Ok(exit_code(&findings))
}

/// Returns the engine that the head has joined, the role in which it has, and what is wrong if it does not reach it; none for a head that is alone.
fn of_head(place: &PlaceArgs) -> Result<Option<(EngineAccess, Role, Option<Finding>)>, CommandError> {
    let Reply::Status(status) = ask(place, &Query::Status)? else { return Err(unexpected_reply()) };
    Ok(status.engine.map(|engine| {
        let role = if engine.queues.is_empty() { Role::Submitter } else { Role::Node };
        let is_told = !engine.is_reachable && engine.text != EngineReport::NOT_YET;
        let finding = is_told.then(|| Finding::of_head(&engine.text));
        let access = EngineAccess {
            address: engine.address,
            credentials: engine.credentials,
            authority: engine.authority,
            is_insecure: engine.is_insecure,
        };
        (access, role, finding)
    }))
}

fn nothing(access: &EngineAccess, examination: &Examination) -> String {
    let survey = &examination.survey;
    let living = Count(survey.living().count(), "living node");
    format!("nothing to mend: nats-server {} at {}, {living}\n", survey.server.version, access.address)
}

fn render(finding: &Finding) -> String {
    let Finding { severity, text, hint, .. } = finding;
    format!("{}: {text}\n(hint: {hint})\n", severity.name())
}

fn exit_code(findings: &[Finding]) -> u8 {
    match findings.iter().map(|finding| finding.severity).max() {
        None => exit::OK,
        Some(Severity::Warning) => exit::WARNED,
        Some(Severity::Error) => exit::FAILED,
    }
}
