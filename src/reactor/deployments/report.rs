//! Rows for people and programs.

use super::effects::ServiceEffects;
use super::replica::{Replica, Stage};
use super::service::{Proxy, ProxyStage, Served, Services, Version, deployments};
use crate::state::Now;
use tracer_core::count::{Count, Elapsed};
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::{
    DeploymentReport, ProxyReportRow, ReplicaReportRow, ServiceNews, ServiceReport, ServiceState, ServiceVersion,
};

/// Returns every service, by name.
pub fn list_services(services: &Services, effects: &impl ServiceEffects, now: Now) -> Vec<ServiceReport> {
    let there = services.all.iter().filter(|(_, served)| served.is_there());
    there.map(|(name, served)| report(name, served, effects, now)).collect()
}

fn report(name: &str, served: &Served, effects: &impl ServiceEffects, now: Now) -> ServiceReport {
    let version = served.serving.as_ref().or(served.rollout.as_ref().map(|rollout| &rollout.version));
    let deployments = version.map(|version| of_deployments(name, served, version, effects)).unwrap_or_default();
    // Of one that is scaled, those that are still to come are no damage.
    let least = |deployment: &DeploymentReport| {
        deployment.autoscaling.map_or(deployment.num_replicas, |scaling| scaling.min.min(deployment.num_replicas))
    };
    let is_whole = deployments.iter().all(|deployment| deployment.ready >= least(deployment))
        && served.proxies.values().any(|proxy| proxy.stage == ProxyStage::Up && proxy.uses > 0);
    let state = match (&served.ending, &served.rollout, &served.serving) {
        (Some(_), ..) => ServiceState::ShuttingDown,
        (None, Some(_), None) => ServiceState::Starting,
        (None, Some(_), Some(_)) => ServiceState::RollingOut,
        (None, None, None) => ServiceState::Failed,
        (None, None, _) if is_whole => ServiceState::Running,
        (None, None, _) => ServiceState::Degraded,
    };
    ServiceReport {
        name: name.into(),
        version: served.serving.as_ref().map(|version| version.number),
        rolling_out: served.rollout.as_ref().map(|rollout| rollout.version.number),
        state,
        url: version
            .map(|version| format!("{}://{}/", version.service.http.scheme(), version.service.http.address))
            .unwrap_or_default(),
        deployments,
        replicas: served.replicas.iter().map(|(id, replica)| of_replica(name, *id, replica, effects, now)).collect(),
        proxies: served.proxies.values().map(|proxy| of_proxy(proxy, now)).collect(),
        last_failure: served.versions.back().and_then(|version| version.failure.clone()),
        warnings: warnings(served, now),
    }
}

/// Returns what a person should know about a service, most important first.
fn warnings(served: &Served, now: Now) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(unheard) = &served.unheard {
        warnings.push(format!("it is not served, and tried again every second: {}", unheard.reason));
    }
    let lost = served.events.iter().rev().find_map(|event| match &event.what {
        ServiceNews::ReplicaLost { replica, reason, .. } => Some((replica, reason)),
        _ => None,
    });
    let pause =
        served.deaths.values().map(|deaths| deaths.again_ns).filter(|again_ns| *again_ns > now.monotonic_ns).max();
    if let (Some((replica, reason)), Some(again_ns)) = (lost, pause) {
        let pause = Elapsed::from_nanos(again_ns - now.monotonic_ns);
        warnings.push(format!(
            "replicas die one after the other, the next is started in {pause}; the last was {replica}: {reason}"
        ));
    }
    let unfit = served.replicas.values().filter_map(|replica| Some((&replica.name, replica.unfit.as_ref()?)));
    warnings.extend(
        unfit.map(|(name, reason)| format!("replica {name} serves on until another one can take its place: {reason}")),
    );
    let short = served.scales.iter().filter_map(|((_, name), scale)| Some((name, scale.short.as_ref()?)));
    let short = short.map(|(name, short)| (name, short.lines().next().unwrap_or_default()));
    warnings.extend(short.map(|(name, short)| {
        format!(
            "deployment `{name}` has fewer replicas than it should have, because there is no room for one more: {short}"
        )
    }));
    let replicas = served.replicas.values().map(|replica| (&replica.name, &replica.said));
    let failed = replicas.filter_map(|(name, said)| Some((name, said.hook_failure.as_ref()?)));
    if let Some((name, reason)) = failed.clone().next() {
        let count = Count(failed.count(), "replica");
        warnings.push(format!("the hook failed in {count}, whose spans tracer writes itself; in {name}: {reason}"));
    }
    if let Some(reason) = served.proxies.values().find_map(|proxy| proxy.said.hook_failure.as_ref()) {
        warnings.push(format!("the hook failed in the proxy, whose spans tracer writes itself: {reason}"));
    }
    for proxy in served.proxies.values().filter(|proxy| proxy.stage == ProxyStage::Up) {
        warnings.extend(proxy.certificates.notes(now.unix_nano));
    }
    warnings.extend(served.serving.as_ref().and_then(|serving| serving.service.http.public_note()));
    warnings
}

fn of_deployments(
    name: &str,
    served: &Served,
    version: &Version,
    effects: &impl ServiceEffects,
) -> Vec<DeploymentReport> {
    let row = |(application, deployment): (&tracer_ipc::serving::Application, &tracer_ipc::serving::Deployment)| {
        let key = (application.name.clone(), deployment.name.clone());
        let index = served.index_of(&application.name, &deployment.name);
        let replicas = || served.replicas.values().filter(|replica| Some(replica.index) == index);
        DeploymentReport {
            service: name.into(),
            application: application.name.clone(),
            name: deployment.name.clone(),
            route_prefix: application.route_prefix.clone(),
            hosts: application.hosts.clone(),
            is_ingress: application.deployments[application.ingress].name == deployment.name,
            import_path: deployment.import_path.clone(),
            num_replicas: deployment.num_replicas,
            autoscaling: deployment.autoscaling,
            short: served.scales.get(&key).and_then(|scale| scale.short.clone()),
            max_ongoing_requests: deployment.ongoing_limit(),
            ready: replicas().filter(|replica| replica.stage() == Stage::Serving && replica.is_fit()).count() as u32,
            ongoing: replicas().map(|replica| ongoing(name, replica, effects)).sum(),
            waiting: index.map_or(0, |index| effects.waiting(name, index)),
            lost: index.and_then(|index| served.deaths.get(&index)).map_or(0, |deaths| deaths.total),
        }
    };
    deployments(&version.service).map(row).collect()
}

fn ongoing(service: &str, replica: &Replica, effects: &impl ServiceEffects) -> u64 {
    let is_in_table = matches!(replica.stage(), Stage::Serving | Stage::Draining);
    if is_in_table { effects.in_flight(service, replica.place) } else { 0 }
}

fn of_replica(
    service: &str,
    id: WorkerId,
    replica: &Replica,
    effects: &impl ServiceEffects,
    now: Now,
) -> ReplicaReportRow {
    ReplicaReportRow {
        name: replica.name.clone(),
        service: service.into(),
        application: replica.application.clone(),
        deployment: replica.deployment.name.clone(),
        state: replica.stage().name().into(),
        pid: replica.pid,
        worker_id: id,
        version: replica.version,
        uptime_ns: now.monotonic_ns.saturating_sub(replica.started_ns),
        ongoing: ongoing(service, replica, effects),
        tracing: replica.said.tracing.clone(),
        hook_failure: replica.said.hook_failure.clone(),
        module_version: replica.said.module_version.clone(),
        log: None,
    }
}

fn of_proxy(proxy: &Proxy, now: Now) -> ProxyReportRow {
    ProxyReportRow {
        number: proxy.number,
        state: proxy.state().into(),
        pid: Some(proxy.pid),
        uptime_ns: now.monotonic_ns.saturating_sub(proxy.started_ns),
        tracing: proxy.said.tracing.clone(),
        hook_failure: proxy.said.hook_failure.clone(),
    }
}

/// Returns the versions of a service, oldest first.
pub fn list_versions(served: &Served) -> Vec<ServiceVersion> {
    let serving = served.serving.as_ref().map(|version| version.number);
    let version = |version: &Version| ServiceVersion {
        version: version.number,
        deployed_unix_nano: version.deployed_unix_nano,
        is_served: serving == Some(version.number),
        failure: version.failure.clone(),
        service: version.service.clone(),
    };
    served.versions.iter().map(version).collect()
}
