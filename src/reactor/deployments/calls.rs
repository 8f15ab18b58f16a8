//! Deployments and replicas, as callers that are no proxies ask for them.

use super::service::{Served, Services, deployments};
use tracer_core::suggestion;
use tracer_core::task::WorkerId;
use tracer_ipc::calling::CallRoute;
use tracer_ipc::serving::{Application, Deployment, Service};

/// Finds a deployment by its name, `application/name` or `service/application/name`: in the caller's own application first, then in its service, then in all.
/// Fails with a reason for people.
pub fn find_route(services: &Services, home: Option<(&str, &str)>, wanted: &str) -> Result<CallRoute, String> {
    let all: Vec<_> = services.all.values().flat_map(known).filter(|known| known.is_called(wanted)).collect();
    let (service, application) = home.unwrap_or_default();
    let nearness = |known: &Known<'_>| match (known.service.name == service, known.application.name == application) {
        (true, true) => 0,
        (true, false) => 1,
        (false, _) => 2,
    };
    let Some(nearest) = all.iter().map(nearness).min() else { return Err(unknown(services, wanted)) };
    let mut found = all.iter().filter(|known| nearness(known) == nearest);
    match (found.next(), found.next()) {
        (Some(only), None) => only.route(),
        _ => {
            let names: Vec<_> = all.iter().map(|known| format!("`{}`", known.path())).collect();
            Err(format!("`{wanted}` names {}\n(hint: say which, as one of these)", names.join(" and ")))
        }
    }
}

fn unknown(services: &Services, wanted: &str) -> String {
    let all: Vec<_> = services.all.values().flat_map(known).collect();
    if all.is_empty() {
        return format!(
            "there is no deployment `{wanted}`: no service is deployed\n(hint: `tracer serve deploy service.toml`)"
        );
    }
    let hint = suggestion::hint(wanted, all.iter().map(|known| known.deployment.name.as_str()));
    format!("there is no deployment `{wanted}`{hint}")
}

/// A deployment of a version that is served, or of the first one on its way.
struct Known<'s> {
    served: &'s Served,
    service: &'s Service,
    application: &'s Application,
    deployment: &'s Deployment,
}

fn known(served: &Served) -> impl Iterator<Item = Known<'_>> {
    let coming = served.rollout.as_ref().map(|rollout| &rollout.version);
    let version = served.serving.as_ref().or(coming).filter(|_| served.ending.is_none());
    version.into_iter().flat_map(move |version| {
        let service = &version.service;
        deployments(service).map(move |(application, deployment)| Known { served, service, application, deployment })
    })
}

impl Known<'_> {
    fn path(&self) -> String {
        format!("{}/{}/{}", self.service.name, self.application.name, self.deployment.name)
    }

    fn is_called(&self, wanted: &str) -> bool {
        let path = self.path();
        path.strip_suffix(wanted).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    fn route(&self) -> Result<CallRoute, String> {
        let Known { served, service, application, deployment } = self;
        let index = served.index_of(&application.name, &deployment.name);
        let index = index.ok_or_else(|| format!("deployment `{}` has no replica yet", deployment.name))?;
        Ok(CallRoute {
            service: service.name.clone(),
            application: application.name.clone(),
            route_prefix: application.route_prefix.clone(),
            deployment: deployment.name.clone(),
            index,
            queue_timeout: deployment.queue_timeout,
            is_traced: service.tracing.is_enabled,
            detail: service.tracing.detail,
        })
    }
}

/// Returns the replica at a place in the table of a service, with its name, if it can be given lanes.
pub fn replica_at<'s>(services: &'s Services, service: &str, place: u32) -> Option<(WorkerId, &'s str)> {
    let served = services.all.get(service)?;
    let found = served.replicas.iter().find(|(_, replica)| replica.place == place && replica.has_handler());
    found.map(|(process, replica)| (*process, replica.name.as_str()))
}

/// Returns the place of a replica in the table of its service.
pub fn place_of(services: &Services, process: WorkerId) -> Option<(String, u32)> {
    let service = services.by_process.get(&process)?;
    let replica = services.all.get(service)?.replicas.get(&process)?;
    Some((service.clone(), replica.place))
}
