//! Replicas and proxies that begin, join each other, and end.

use super::effects::{ProxyStart, ReplicaStart, ServiceEffects};
use super::replica::{Event, Replica, Said, Stage};
use super::service::{Proxy, ProxyStage, Served, Services, Version, find};
use crate::state::Now;
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::ServiceNews;
use tracer_ipc::serving::{
    Application, CertificateReport, Deployment, ProxyOrder, ProxyRoute, ProxySettings, ReplicaOrder, Service,
};

/// Limit of time for a process to end beyond that of its requests, in nanoseconds.
const END_ALLOWANCE_NS: u64 = 5_000_000_000;

/// Starts a replica of a deployment. None when it could not be started.
pub(super) fn start_replica(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    (application, deployment): (&Application, &Deployment),
    version: &Version,
    now: Now,
) -> Option<WorkerId> {
    let service = &version.service;
    let served = services.all.get_mut(&service.name)?;
    let number = served.numbers.entry(deployment.name.clone()).or_default();
    *number += 1;
    let of = (*number, version.number);
    let mut replica = Replica::new(&application.name, deployment.clone(), &service.tracing, of, now.monotonic_ns);
    replica.index = served.index(&application.name, &deployment.name);
    replica.place = served.take_place();
    let process = effects.next_process();
    let started = effects.start_replica(
        process,
        &ReplicaStart {
            service,
            application: &application.name,
            route_prefix: &application.route_prefix,
            deployment,
            name: &replica.name,
        },
    );
    match started {
        Ok(pid) => {
            replica.pid = Some(pid);
            served.notify(ServiceNews::ReplicaStarted { replica: replica.name.clone(), pid }, now);
            served.replicas.insert(process, replica);
            services.by_process.insert(process, service.name.clone());
            Some(process)
        }
        Err(reason) => {
            served.deaths.entry(replica.index).or_default().add(now.monotonic_ns, None, now);
            let reason = format!("it could not be started: {reason}");
            effects.log(format!("replica {} of service `{}`: {reason}", replica.name, service.name));
            served.notify(ServiceNews::ReplicaLost { replica: replica.name, pid: None, reason }, now);
            None
        }
    }
}

/// Starts a proxy of a version. False when it could not be started.
pub(super) fn start_proxy(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    version: &Version,
    now: Now,
) -> bool {
    let service = &version.service;
    let Some(served) = services.all.get_mut(&service.name) else { return false };
    served.last_proxy += 1;
    let process = effects.next_process();
    match effects.start_proxy(process, &ProxyStart { service, number: served.last_proxy }) {
        Ok(pid) => {
            let proxy = Proxy {
                number: served.last_proxy,
                address: service.http.address,
                tracing: service.tracing.clone(),
                stage: ProxyStage::Starting,
                pid,
                started_ns: now.monotonic_ns,
                said: Said::default(),
                given: 0,
                uses: 0,
                is_silent: false,
                failure: None,
                certificates: CertificateReport::default(),
                accepts_no_more: false,
                kill_at_ns: None,
            };
            served.proxies.insert(process, proxy);
            served.notify(ServiceNews::ProxyStarted { pid }, now);
            services.by_process.insert(process, service.name.clone());
            true
        }
        Err(reason) => {
            served.proxy_deaths.add(now.monotonic_ns, None, now);
            let reason = format!("it could not be started: {reason}");
            effects.log(format!("the proxy of service `{}`: {reason}", service.name));
            served.notify(ServiceNews::ProxyLost { pid: None, reason }, now);
            false
        }
    }
}

/// Notes that a replica has made its handler: lanes lead to it from every proxy that is up.
pub(super) fn join_replica(served: &mut Served, effects: &mut impl ServiceEffects, process: WorkerId) {
    let proxies: Vec<_> = served.live_proxies().map(|(proxy, _)| proxy).collect();
    let Some(replica) = served.replicas.get_mut(&process) else { return };
    for proxy in proxies {
        effects.give_lanes(proxy, process, replica.place, &replica.name);
        replica.joined.insert(proxy);
    }
}

/// Notes that a proxy is up: lanes lead from it to every replica that has a handler.
pub(super) fn join_proxy(served: &mut Served, effects: &mut impl ServiceEffects, process: WorkerId) {
    for (id, replica) in served.replicas.iter_mut().filter(|(_, replica)| replica.has_handler()) {
        effects.give_lanes(process, *id, replica.place, &replica.name);
        replica.joined.insert(process);
    }
}

/// Notes what a proxy has that a head before this one had. Lanes that it has not are made.
pub(super) fn on_told(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    process: WorkerId,
    revision: u64,
    lanes: &[u32],
) {
    let Some(proxy) = served.proxies.get_mut(&process) else { return };
    if proxy.stage == ProxyStage::Starting {
        proxy.stage = ProxyStage::Up;
    }
    // It is given settings once more: those that the head before this one gave last may not have come to it.
    (proxy.given, proxy.uses) = (0, revision);
    served.revision = served.revision.max(revision);
    let is_up = proxy.stage == ProxyStage::Up;
    for (id, replica) in &mut served.replicas {
        let has_lanes = lanes.contains(&replica.place);
        if has_lanes {
            replica.joined.insert(process);
            replica.lanes.insert(process);
            continue;
        }
        replica.joined.remove(&process);
        replica.lanes.remove(&process);
        if is_up && replica.has_handler() {
            effects.give_lanes(process, *id, replica.place, &replica.name);
            replica.joined.insert(process);
        }
    }
}

/// Lets a replica end what it has, and then end.
pub(super) fn drain_replica(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    (service, process): (&str, WorkerId),
    now: Now,
) {
    let Some(replica) = served.replicas.get_mut(&process) else { return };
    let stage = replica.stage();
    if !replica.advance(Event::Drained) {
        return;
    }
    let timeout = replica.deployment.drain_timeout;
    match stage {
        Stage::Starting => effects.kill(process),
        _ => effects.order_replica(process, ReplicaOrder::Drain { timeout }),
    }
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    replica.kill_at_ns = Some(now.monotonic_ns.saturating_add(timeout_ns).saturating_add(END_ALLOWANCE_NS));
    if stage == Stage::Serving {
        effects.set_draining(service, replica.place);
        refresh(served, effects);
    }
}

/// Kills a replica that does not answer or has broken, and says why.
pub(super) fn give_up_replica(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    (service, process): (&str, WorkerId),
    reason: String,
) {
    let Some(replica) = served.replicas.get_mut(&process) else { return };
    if replica.stage() == Stage::Serving {
        effects.set_draining(service, replica.place);
    }
    replica.reason.get_or_insert(reason);
    effects.kill(process);
    refresh(served, effects);
}

/// Lets a proxy end what it has, and then end. `has_heir` says whether another one is in its place.
pub(super) fn drain_proxy(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    process: WorkerId,
    (timeout, has_heir): (std::time::Duration, bool),
    now: Now,
) {
    let Some(proxy) = served.proxies.get_mut(&process) else { return };
    match proxy.stage {
        ProxyStage::Starting => effects.kill(process),
        ProxyStage::Up => effects.order_proxy(process, ProxyOrder::Drain { timeout, has_heir }),
        // Its service ends too, so that it need not wait for clients that may ask once more.
        ProxyStage::Draining if !has_heir => {
            return effects.order_proxy(process, ProxyOrder::Drain { timeout, has_heir });
        }
        ProxyStage::Draining => return,
    }
    proxy.stage = ProxyStage::Draining;
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    proxy.kill_at_ns = Some(now.monotonic_ns.saturating_add(timeout_ns).saturating_add(END_ALLOWANCE_NS));
}

/// Tells every proxy that the table has changed.
pub(super) fn refresh(served: &Served, effects: &mut impl ServiceEffects) {
    served.live_proxies().for_each(|(proxy, _)| effects.order_proxy(proxy, ProxyOrder::Refresh));
}

/// Returns the settings of proxies for a version.
pub(super) fn settings(served: &mut Served, service: &Service) -> ProxySettings {
    served.revision += 1;
    let routes = service.applications.iter().map(|application| {
        let ingress = &application.deployments[application.ingress];
        ProxyRoute {
            route_prefix: application.route_prefix.clone(),
            hosts: application.hosts.clone(),
            application: application.name.clone(),
            deployment: ingress.name.clone(),
            index: served.index(&application.name, &ingress.name),
            queue_timeout: ingress.queue_timeout,
            queue_full: ingress.queue_full,
            retry: ingress.retry,
        }
    });
    let routes = routes.collect();
    ProxySettings { revision: served.revision, http: service.http.clone(), tracing: service.tracing.clone(), routes }
}

/// Gives these settings to the proxies that are up at the address of a version, and to the table.
pub(super) fn configure_proxies(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    service: &Service,
    which: impl Fn(&Proxy) -> bool,
) {
    let settings = settings(served, service);
    for (application, deployment) in super::service::deployments(service) {
        let index = served.index(&application.name, &deployment.name);
        effects.set_waiting_limit(&service.name, index, deployment.max_queued_requests);
    }
    for (id, proxy) in &mut served.proxies {
        if proxy.stage == ProxyStage::Up && proxy.fits(service) && which(proxy) {
            proxy.given = settings.revision;
            proxy.failure = None;
            effects.configure_proxy(*id, &settings);
        }
    }
}

/// Enters a replica in the table, with the limit that a version says.
pub(super) fn publish(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    service: &Service,
    process: WorkerId,
    now: Now,
) {
    let Some(replica) = served.replicas.get_mut(&process) else { return };
    if !replica.advance(Event::Published) {
        return;
    }
    replica.served_since_ns = Some(now.monotonic_ns);
    let wanted = find(service, &replica.application, &replica.deployment.name);
    if let Some((_, wanted)) = wanted {
        replica.deployment.max_ongoing_requests = wanted.max_ongoing_requests;
        replica.deployment.authors_max_ongoing_requests = wanted.authors_max_ongoing_requests;
    }
    effects.publish(&service.name, replica.place, replica.index, replica.deployment.ongoing_limit());
}

/// Notes that the process of a replica has ended, and its spans are complete.
pub(super) fn on_replica_exit(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    (service, process): (&str, WorkerId),
    cause: &str,
    now: Now,
) {
    services.by_process.remove(&process);
    let Some(served) = services.all.get_mut(service) else { return };
    let Some(mut replica) = served.replicas.remove(&process) else { return };
    let was_to_end = replica.stage() == Stage::Draining && replica.reason.is_none() && replica.unfit.is_none();
    replica.advance(Event::Exited);
    effects.set_gone(service, replica.place);
    for (proxy, _) in served.proxies.iter().filter(|(proxy, _)| replica.joined.contains(proxy)) {
        effects.order_proxy(*proxy, ProxyOrder::ReplicaGone { replica: replica.place });
    }
    let name = replica.name;
    if was_to_end {
        served.notify(ServiceNews::ReplicaEnded { replica: name, pid: replica.pid }, now);
        return;
    }
    let reason = match replica.reason.or(replica.unfit) {
        Some(reason) => reason,
        None => format!("it {cause}"),
    };
    served.deaths.entry(replica.index).or_default().add(replica.started_ns, replica.served_since_ns, now);
    if let Some(rollout) = &mut served.rollout
        && rollout.replicas.remove(&process)
    {
        rollout.failure.get_or_insert(format!("replica {name}: {reason}"));
    }
    effects.log(format!("replica {name} of service `{service}` (pid {}): {reason}", replica.pid.unwrap_or(0)));
    served.notify(ServiceNews::ReplicaLost { replica: name, pid: replica.pid, reason }, now);
}

/// Notes that the process of a proxy has ended, and its spans are complete.
pub(super) fn on_proxy_exit(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    (service, process): (&str, WorkerId),
    cause: &str,
    now: Now,
) {
    services.by_process.remove(&process);
    let Some(served) = services.all.get_mut(service) else { return };
    let Some(proxy) = served.proxies.remove(&process) else { return };
    for replica in served.replicas.values_mut() {
        replica.lanes.remove(&process);
        replica.joined.remove(&process);
    }
    if proxy.stage == ProxyStage::Draining {
        return;
    }
    let served_since_ns = (proxy.uses > 0).then_some(proxy.started_ns);
    served.proxy_deaths.add(proxy.started_ns, served_since_ns, now);
    let reason = format!("it {cause}");
    effects.log(format!("the proxy of service `{service}` (pid {}): {reason}", proxy.pid));
    served.notify(ServiceNews::ProxyLost { pid: Some(proxy.pid), reason }, now);
}
