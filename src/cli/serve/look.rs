//! `tracer serve status`, `config` and `history`.

use serde_json::json;
use tracer_client::driver::Driver;
use tracer_core::clock::utc;
use tracer_core::count::{Count, Elapsed};
use tracer_core::exit;
use tracer_ipc::protocol::{
    DeploymentReport, ReplicaReportRow, ServiceQuery, ServiceReply, ServiceReport, ServiceVersion,
};
use tracer_settings::render::render;

use super::super::connect::unexpected_reply;
use super::super::{CommandError, CommandResult, Format, report};
use super::{ServiceArgs, ask, services};

pub(super) fn status(which: &ServiceArgs, format: Format) -> CommandResult {
    let mut driver = Driver::connect(&which.place.temp_dir())?;
    let services = services(&mut driver, which.service.as_deref())?;
    report::value(format, &tracer_trace::json::with_times(&json!({ "services": services })), |_| {
        render_services(&services)
    });
    Ok(exit::OK)
}

fn render_services(services: &[ServiceReport]) -> String {
    if services.is_empty() {
        return "no service is deployed\n(hint: `tracer serve deploy service.toml`)".into();
    }
    services.iter().map(render_service).collect::<Vec<_>>().join("\n")
}

fn render_service(service: &ServiceReport) -> String {
    let version = match (service.version, service.rolling_out) {
        (Some(version), None) => version.to_string(),
        (Some(version), Some(next)) => format!("{version}, {next} is being rolled out"),
        (None, Some(next)) => format!("{next} is being rolled out"),
        (None, None) => "none".into(),
    };
    let proxies: Vec<_> = service
        .proxies
        .iter()
        .map(|proxy| {
            format!("{} (pid {}), up {}", proxy.state, proxy.pid.unwrap_or(0), Elapsed::from_nanos(proxy.uptime_ns))
        })
        .collect();
    let mut fields = vec![
        ("service", service.name.clone()),
        ("state", service.state.name().replace('_', " ")),
        ("version", version),
        ("url", if service.url.is_empty() { "none".into() } else { service.url.clone() }),
        ("proxy", if proxies.is_empty() { "none".into() } else { proxies.join("\n") }),
    ];
    fields.extend(service.last_failure.clone().map(|failure| ("last rollout failed", failure)));
    fields.extend(service.warnings.iter().map(|warning| ("warning", warning.clone())));
    let mut text = report::fields(&fields);
    if !service.deployments.is_empty() {
        text.push('\n');
        text.push_str(&table_of_one(DEPLOYMENT_COLUMNS, service.deployments.iter().map(deployment_row)));
    }
    if !service.replicas.is_empty() {
        text.push('\n');
        text.push_str(&table_of_one(REPLICA_COLUMNS, service.replicas.iter().map(replica_row)));
    }
    text
}

/// Services as `tracer list services` shows them.
pub(in super::super) fn services_table(services: &[ServiceReport]) -> String {
    report::table(
        ["SERVICE", "STATE", "VERSION", "DEPLOYMENTS", "REPLICAS", "URL"],
        services.iter().map(|service| {
            [
                service.name.clone(),
                service.state.name().replace('_', " "),
                service.version.map(|version| version.to_string()).unwrap_or_default(),
                service.deployments.len().to_string(),
                service.replicas.len().to_string(),
                service.url.clone(),
            ]
        }),
    )
}

const DEPLOYMENT_COLUMNS: [&str; 8] =
    ["SERVICE", "DEPLOYMENT", "ROUTE", "REPLICAS", "ONGOING", "WAITING", "LOST", "HANDLER"];

fn deployment_row(deployment: &DeploymentReport) -> [String; 8] {
    [
        deployment.service.clone(),
        deployment.name.clone(),
        if deployment.is_ingress { routes(deployment) } else { String::new() },
        of_replicas(deployment),
        deployment.ongoing.to_string(),
        deployment.waiting.to_string(),
        deployment.lost.to_string(),
        deployment.import_path.clone(),
    ]
}

/// Returns the route prefix of a deployment's application, behind each of the hosts that it answers for.
fn routes(deployment: &DeploymentReport) -> String {
    if deployment.hosts.is_empty() {
        return deployment.route_prefix.clone();
    }
    let routes: Vec<_> = deployment.hosts.iter().map(|host| format!("{host}{}", deployment.route_prefix)).collect();
    routes.join(", ")
}

/// Returns the replicas of a deployment, with how many there should be, and within which bounds that follows the load.
fn of_replicas(deployment: &DeploymentReport) -> String {
    let bounds = deployment.autoscaling.map(|scaling| format!(" ({}-{})", scaling.min, scaling.max));
    format!("{}/{}{}", deployment.ready, deployment.num_replicas, bounds.unwrap_or_default())
}

/// Deployments as a table.
pub(in super::super) fn deployments_table(deployments: &[DeploymentReport]) -> String {
    report::table(DEPLOYMENT_COLUMNS, deployments.iter().map(deployment_row))
}

const REPLICA_COLUMNS: [&str; 8] = ["SERVICE", "REPLICA", "STATE", "PID", "VERSION", "UP", "ONGOING", "SPANS"];

fn replica_row(replica: &ReplicaReportRow) -> [String; 8] {
    let spans = replica.tracing.strip_prefix("spans to ").unwrap_or(&replica.tracing);
    [
        replica.service.clone(),
        replica.name.clone(),
        replica.state.clone(),
        replica.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        replica.version.to_string(),
        Elapsed::from_nanos(replica.uptime_ns).to_string(),
        replica.ongoing.to_string(),
        replica.hook_failure.clone().unwrap_or_else(|| spans.to_owned()),
    ]
}

/// Replicas as a table.
pub(in super::super) fn replicas_table(replicas: &[ReplicaReportRow]) -> String {
    report::table(REPLICA_COLUMNS, replicas.iter().map(replica_row))
}

/// Returns a table of one service, whose name is above it.
fn table_of_one(columns: [&str; 8], rows: impl Iterator<Item = [String; 8]>) -> String {
    let [_, columns @ ..] = columns;
    report::table(columns, rows.map(|[_, cells @ ..]| cells))
}

fn versions(which: &ServiceArgs) -> Result<Vec<ServiceVersion>, CommandError> {
    let (mut driver, service) = which.connect()?;
    match ask(&mut driver, ServiceQuery::Versions { service })? {
        ServiceReply::Versions(versions) => Ok(versions),
        _ => Err(unexpected_reply()),
    }
}

pub(super) fn config(which: &ServiceArgs, format: Format) -> CommandResult {
    let versions = versions(which)?;
    let Some(served) = versions.iter().find(|version| version.is_served) else {
        let text = "no version of it is served yet\n(hint: `tracer serve status` shows how far it is)";
        return Err(CommandError::new(exit::FAILED, text));
    };
    let text = render(&served.service);
    let report = json!({ "service": served.service.name, "version": served.version, "file": text });
    report::value(format, &report, |_| text.clone());
    Ok(exit::OK)
}

pub(super) fn history(which: &ServiceArgs, format: Format) -> CommandResult {
    let versions = versions(which)?;
    let rows = versions.iter().map(|version| {
        json!({
            "service": version.service.name,
            "version": version.version,
            "deployed_unix_nano": version.deployed_unix_nano,
            "is_served": version.is_served,
            "failure": version.failure,
            "file": render(&version.service),
        })
    });
    let report = json!({ "versions": rows.collect::<Vec<_>>() });
    report::value(format, &tracer_trace::json::with_times(&report), |_| render_versions(&versions));
    Ok(exit::OK)
}

fn render_versions(versions: &[ServiceVersion]) -> String {
    let table = report::table(
        ["VERSION", "DEPLOYED", "STATE", "APPLICATIONS"],
        versions.iter().map(|version| {
            let state = match &version.failure {
                Some(_) => "failed",
                None if version.is_served => "served",
                None => "",
            };
            let applications = &version.service.applications;
            let names: Vec<_> = applications.iter().map(|application| application.name.as_str()).collect();
            let deployments = applications.iter().map(|application| application.deployments.len()).sum::<usize>();
            [
                version.version.to_string(),
                utc(version.deployed_unix_nano).to_string(),
                state.into(),
                format!("{} ({})", names.join(", "), Count(deployments, "deployment")),
            ]
        }),
    );
    let failures = versions
        .iter()
        .filter_map(|version| Some(format!("\nversion {} failed: {}\n", version.version, version.failure.as_ref()?)));
    table + &failures.collect::<String>()
}
