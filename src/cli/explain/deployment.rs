//! Reasons why a deployment has the replicas that it has.

use serde_json::{Value, json};
use tracer_client::driver::Driver;
use tracer_core::count::Count;
use tracer_ipc::protocol::{DeploymentReport, ReplicaReportRow, ServiceQuery, ServiceReply, ServiceReport};

use super::super::connect::unexpected_reply;
use super::super::{CommandError, report};

/// A deployment with the reasons why it is as it is.
pub(super) struct Explained {
    deployment: DeploymentReport,
    reasons: Vec<Reason>,
}

/// A reason: its name for programs, and a sentence.
#[derive(Debug, PartialEq, Eq)]
struct Reason {
    name: &'static str,
    text: String,
}

/// Finds a deployment by its name, `application/name` or `service/application/name`; none if there is no such one.
pub(super) fn find(driver: &mut Driver, name: &str) -> Result<Option<Explained>, CommandError> {
    let ServiceReply::Services(services) = crate::cli::serve::ask(driver, ServiceQuery::List)? else {
        return Err(unexpected_reply());
    };
    Ok(services.iter().find_map(|service| {
        let is_meant = |deployment: &&DeploymentReport| {
            let path = format!("{}/{}/{}", deployment.service, deployment.application, deployment.name);
            path.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        let deployment = service.deployments.iter().find(is_meant)?;
        Some(Explained { deployment: deployment.clone(), reasons: reasons(service, deployment) })
    }))
}

fn reasons(service: &ServiceReport, deployment: &DeploymentReport) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut because = |name, text: String| reasons.push(Reason { name, text });
    if let Some(short) = &deployment.short {
        because("no_room", format!("there is no room for a further replica. Too little of {short}"));
    }
    let is_its = |replica: &&ReplicaReportRow| {
        replica.application == deployment.application && replica.deployment == deployment.name
    };
    let in_state = |state: &str| -> Vec<&str> {
        let all = service.replicas.iter().filter(is_its).filter(|replica| replica.state == state);
        all.map(|replica| replica.name.as_str()).collect()
    };
    for (state, doing) in [("starting", "make their handlers"), ("ready", "wait for lanes to the proxy")] {
        let all = in_state(state);
        if !all.is_empty() {
            because("starting", format!("{doing}: {}", all.join(", ")));
        }
    }
    let draining = in_state("draining");
    if !draining.is_empty() {
        because("draining", format!("end what they have, and then end: {}", draining.join(", ")));
    }
    if deployment.ready < deployment.num_replicas
        && deployment.lost > 0
        && let Some(warning) = service.warnings.iter().find(|warning| warning.starts_with("replicas die"))
    {
        because("dying", warning.clone());
    }
    if deployment.num_replicas == 0 {
        let text =
            "it has no replica, because it has no requests: the first one starts one (`min = 0` of its `autoscaling`)";
        because("scaled_to_zero", text.into());
    }
    if let Some(scaling) = deployment.autoscaling
        && deployment.num_replicas == scaling.max
        && deployment.waiting > 0
    {
        let text = format!(
            "{} for a place, and it has as many replicas as it may (`max = {}` of its `autoscaling`)",
            waits(deployment.waiting),
            scaling.max
        );
        because("at_most", text);
    } else if deployment.waiting > 0 && deployment.ready >= deployment.num_replicas && deployment.ready > 0 {
        let text = format!(
            "{} for a place: each replica has as many as it may (`max_ongoing_requests`, {})",
            waits(deployment.waiting),
            deployment.max_ongoing_requests
        );
        because("replicas_busy", text);
    }
    if reasons.is_empty() {
        let replicas = Count(deployment.num_replicas, "replica");
        let text = format!("it has what it should have: {replicas}, of which {} can take requests", deployment.ready);
        reasons.push(Reason { name: "as_it_should_be", text });
    }
    reasons
}

fn waits(requests: u64) -> String {
    match requests {
        1 => "1 request waits".into(),
        requests => format!("{requests} requests wait"),
    }
}

impl Explained {
    /// For programs, with each reason's sentence.
    pub(super) fn json(&self) -> Value {
        let reasons: Vec<_> =
            self.reasons.iter().map(|reason| json!({ "reason": reason.name, "text": reason.text })).collect();
        json!({ "deployment": self.deployment, "reasons": reasons })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let deployment = &self.deployment;
        let mut replicas = format!("{} of {}", deployment.ready, deployment.num_replicas);
        if let Some(scaling) = deployment.autoscaling {
            replicas.push_str(&format!(
                ", scaled from {} to {} for {} requests each",
                scaling.min, scaling.max, scaling.target_ongoing_requests
            ));
        }
        let why: Vec<_> = self.reasons.iter().map(|reason| reason.text.as_str()).collect();
        report::fields(&[
            ("deployment", deployment.name.clone()),
            ("application", deployment.application.clone()),
            ("service", deployment.service.clone()),
            ("replicas", replicas),
            ("requests", format!("{} in flight, {} waiting", deployment.ongoing, deployment.waiting)),
            ("why", why.join("\n")),
        ])
    }
}

#[cfg(test)]
mod tests {
    use tracer_ipc::protocol::ServiceState;
    use tracer_ipc::serving::Autoscaling;

    use super::*;

    fn deployment() -> DeploymentReport {
        DeploymentReport {
            service: "shop".into(),
            application: "app".into(),
            name: "Model".into(),
            route_prefix: "/".into(),
            hosts: Vec::new(),
            is_ingress: true,
            import_path: "shop:Model".into(),
            num_replicas: 2,
            autoscaling: Some(Autoscaling::up_to(2)),
            short: None,
            max_ongoing_requests: 1,
            ready: 2,
            ongoing: 0,
            waiting: 0,
            lost: 0,
        }
    }

    fn why(deployment: &DeploymentReport) -> Vec<(&'static str, String)> {
        let service = ServiceReport {
            name: "shop".into(),
            version: Some(1),
            rolling_out: None,
            state: ServiceState::Running,
            url: String::new(),
            deployments: vec![deployment.clone()],
            replicas: Vec::new(),
            proxies: Vec::new(),
            last_failure: None,
            warnings: vec!["replicas die one after the other, the next is started in 2 s".into()],
        };
        reasons(&service, deployment).into_iter().map(|reason| (reason.name, reason.text)).collect()
    }

    #[test]
    fn each_reason_is_said_when_it_is_one() {
        let is = |deployment: &DeploymentReport, name: &str, text: &str| {
            let found = why(deployment);
            assert!(found.iter().any(|(of, said)| *of == name && said.contains(text)), "{found:?}");
        };
        is(&deployment(), "as_it_should_be", "2 replicas, of which 2 can take requests");
        let short = Some("the resource `gpu`: one more replica needs 1".into());
        is(&DeploymentReport { ready: 1, short, ..deployment() }, "no_room", "Too little of the resource `gpu`");
        is(
            &DeploymentReport { ready: 0, num_replicas: 0, ..deployment() },
            "scaled_to_zero",
            "the first one starts one",
        );
        is(&DeploymentReport { waiting: 3, ..deployment() }, "at_most", "3 requests wait for a place");
        let fixed = DeploymentReport { autoscaling: None, waiting: 1, ..deployment() };
        is(&fixed, "replicas_busy", "1 request waits for a place: each replica has as many as it may");
        is(&DeploymentReport { ready: 1, lost: 4, ..deployment() }, "dying", "the next is started in 2 s");
    }
}
