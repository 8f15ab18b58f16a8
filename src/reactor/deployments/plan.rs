//! Comparison of a replica with what a version wants of it.

use super::replica::{Replica, Stage};
use super::service::{Served, deployments, traces_alike};
use tracer_core::count::Count;
use tracer_core::task::WorkerId;
use tracer_ipc::serving::{Deployment, Service};

/// Returns whether a replica can be one of a deployment as it is wanted, if need be after it is configured.
pub(super) fn fits(replica: &Replica, wanted: &Deployment) -> bool {
    let has = &replica.deployment;
    let is_same = has.import_path == wanted.import_path
        && has.module_version == wanted.module_version
        && has.arguments == wanted.arguments
        && has.threads == wanted.threads
        && has.resources == wanted.resources
        && has.env == wanted.env
        && has.cwd == wanted.cwd;
    is_same && (has.user_config == wanted.user_config || replica.is_configurable)
}

/// Live replicas that can stay in a version, of those that are meant: at most as many as it wants of each deployment, those that serve first, and of a
/// deployment that is scaled those that have most requests.
pub(super) fn kept(served: &Served, service: &Service, is_meant: impl Fn(WorkerId) -> bool) -> Vec<WorkerId> {
    let mut left: Vec<u32> = deployments(service).map(|(_, deployment)| deployment.num_replicas).collect();
    let mut candidates: Vec<_> =
        served.replicas.iter().filter(|(id, replica)| replica.is_fit() && is_meant(**id)).collect();
    candidates.sort_by_key(|(id, replica)| (std::cmp::Reverse((replica.stage(), replica.ongoing)), **id));
    let keep = |(id, replica): (&WorkerId, &Replica)| {
        let is_its = |of: &str, name: &str| of == replica.application && name == replica.deployment.name;
        let mut all = deployments(service).zip(&mut left);
        let ((_, wanted), left) = all.find(|((of, wanted), _)| is_its(&of.name, &wanted.name))?;
        let stays = *left > 0 && fits(replica, wanted) && traces_alike(&replica.tracing, &service.tracing);
        *left -= u32::from(stays);
        stays.then_some(*id)
    };
    candidates.into_iter().filter_map(keep).collect()
}

/// Returns the replicas that are not as they should be and serve on, because those that are to take their places do not serve yet.
pub(super) fn unreplaced(served: &Served, service: &Service, kept: &[WorkerId]) -> Vec<WorkerId> {
    let of_one = |(application, wanted)| {
        let own = served.replicas.iter().filter(move |(_, replica): &(_, &Replica)| replica.is_of(application, wanted));
        let serving =
            own.clone().filter(|(id, replica)| replica.stage() == Stage::Serving && kept.contains(id)).count();
        let fits = |replica: &Replica| fits(replica, wanted) && traces_alike(&replica.tracing, &service.tracing);
        let unfit = own.filter(|(id, replica)| {
            replica.is_live() && replica.unfit.is_some() && !served.is_new(**id) && fits(replica)
        });
        unfit.map(|(id, _)| *id).take((wanted.num_replicas as usize).saturating_sub(serving)).collect::<Vec<_>>()
    };
    deployments(service).flat_map(of_one).collect()
}

/// Returns the number of missing replicas of each deployment beside those that stay, in the order of the service.
pub(super) fn missing<'s>(
    served: &Served,
    service: &'s Service,
    kept: &[WorkerId],
) -> Vec<(&'s tracer_ipc::serving::Application, &'s Deployment, u32)> {
    let count = |application: &str, deployment: &str| {
        let of = |id: &&WorkerId| {
            let replica = served.replicas.get(id);
            replica.is_some_and(|replica| replica.application == application && replica.deployment.name == deployment)
        };
        kept.iter().filter(of).count() as u32
    };
    let all = deployments(service).map(|(application, deployment)| {
        let missing = deployment.num_replicas.saturating_sub(count(&application.name, &deployment.name));
        (application, deployment, missing)
    });
    all.filter(|(.., missing)| *missing > 0).collect()
}

/// Returns what a deploy would do, in words.
pub(super) fn steps(served: Option<&Served>, service: &Service) -> Vec<String> {
    let nothing = Served::default();
    let served = served.unwrap_or(&nothing);
    let kept = kept(served, service, |_| true);
    let mut steps: Vec<String> = Vec::new();
    for (application, deployment, missing) in missing(served, service, &kept) {
        let replicas = Count(missing, "replica");
        steps.push(format!("start {replicas} of `{}` in application `{}`", deployment.name, application.name));
    }
    let live = served.replicas.iter().filter(|(_, replica)| replica.is_live());
    let to_end = live.filter(|(id, _)| !kept.contains(id)).map(|(_, replica)| &replica.name);
    let to_end: Vec<_> = to_end.map(|name| format!("`{name}`")).collect();
    if !to_end.is_empty() {
        steps.push(format!("then end {}", to_end.join(", ")));
    }
    let Some(serving) = &served.serving else {
        steps.push(format!("listen on {}", service.http.address));
        return steps;
    };
    if serving.service.http.address != service.http.address {
        let (from, to) = (serving.service.http.address, service.http.address);
        steps.push(format!("listen on {to}, and then no more on {from}"));
    }
    if steps.is_empty() {
        let is_same = serving.service == *service;
        steps.push(if is_same { "nothing: it is served as it is" } else { "change settings while it runs" }.into());
    }
    steps
}
