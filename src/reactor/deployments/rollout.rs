//! A version on its way: its new replicas are ready before one of the old ones goes, and when that fails nothing has changed.

use std::collections::{BTreeMap, BTreeSet};

use super::effects::ServiceEffects;
use super::plan::{kept, missing};
use super::processes::{configure_proxies, drain_proxy, drain_replica, publish, refresh, start_proxy, start_replica};
use super::replica::{Event, Replica, Stage, Trial};
use super::scaling;
use super::service::{Phase, ProxyStage, Rollout, Served, Services, Version, after, deployments, find};
use crate::state::Now;
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::ServiceNews;
use tracer_ipc::serving::{Deployment, ReplicaOrder, Service};

/// Limit of time of each phase, in nanoseconds, beside that of the replicas which start in it.
pub(super) const READY_LIMIT_NS: u64 = 300_000_000_000;

/// Begins to roll a version out.
pub(super) fn begin(services: &mut Services, effects: &mut impl ServiceEffects, version: Version, now: Now) {
    let name = version.service.name.clone();
    let Some(served) = services.all.get_mut(&name) else { return };
    served.remember(version.clone());
    let stay = kept(served, &version.service, |_| true);
    let wanted = missing(served, &version.service, &stay);
    let (mut replicas, mut failure) = (BTreeSet::new(), None);
    for (application, deployment, count) in wanted {
        for _ in 0..count {
            if failure.is_some() {
                break;
            }
            match start_replica(services, effects, (application, deployment), &version, now) {
                Some(process) => drop(replicas.insert(process)),
                None => failure = last_loss(services, &name),
            }
        }
    }
    let Some(served) = services.all.get_mut(&name) else { return };
    // A replica that takes too long is found by itself, so what is late after all of them is the proxy.
    let start = deployments(&version.service).map(|(_, deployment)| deployment.start_timeout).max();
    let until_ns = after(now, start.unwrap_or_default()).saturating_add(READY_LIMIT_NS);
    served.rollout = Some(Rollout { version, phase: Phase::Starting, replicas, until_ns, revision: 0, failure });
}

/// Returns the reason why the last lost replica was lost.
fn last_loss(services: &Services, name: &str) -> Option<String> {
    match &services.all.get(name)?.events.back()?.what {
        ServiceNews::ReplicaLost { replica, reason, .. } => Some(format!("replica {replica}: {reason}")),
        _ => None,
    }
}

/// Brings a rollout as far as it can go now.
pub(super) fn resume(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    ensure_proxy(services, effects, name, now);
    loop {
        let Some(served) = services.all.get_mut(name) else { return };
        let Some(rollout) = &mut served.rollout else { return };
        if rollout.failure.is_none()
            && let Some(late) = what_is_late(&served.replicas, rollout, now)
        {
            rollout.failure = Some(late);
        }
        let service = rollout.version.service.clone();
        if rollout.failure.is_some() {
            return fail(served, effects, now);
        }
        let phase = rollout.phase;
        let is_done = match phase {
            Phase::Starting => are_all_ready(served, &service),
            Phase::Configuring => has_configured(served, effects, &service, &mut services.last_order, now),
            Phase::Switching => has_switched(served, effects, &service),
        };
        if !is_done {
            match &served.rollout {
                Some(rollout) if rollout.failure.is_some() => continue,
                _ => return,
            }
        }
        match phase {
            Phase::Starting => set_phase(served, Phase::Configuring),
            Phase::Configuring => switch(served, effects, &service, now),
            Phase::Switching => return commit(served, effects, now),
        }
        if let Some(rollout) = &mut served.rollout {
            rollout.until_ns = now.monotonic_ns.saturating_add(READY_LIMIT_NS);
        }
    }
}

/// Starts a proxy at the address of a version on its way, if there is none.
fn ensure_proxy(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    let Some(served) = services.all.get_mut(name) else { return };
    let Some(rollout) = &served.rollout else { return };
    let service = &rollout.version.service;
    let has_proxy = served.proxies.values().any(|proxy| proxy.fits(service) && proxy.stage != ProxyStage::Draining);
    let version = rollout.version.clone();
    if !has_proxy
        && served.proxy_deaths.again_ns <= now.monotonic_ns
        && rollout.failure.is_none()
        && !start_proxy(services, effects, &version, now)
        && let Some(served) = services.all.get_mut(name)
        && let Some(ServiceNews::ProxyLost { reason, .. }) = served.events.back().map(|event| event.what.clone())
        && let Some(rollout) = &mut served.rollout
    {
        rollout.failure = Some(format!("the proxy: {reason}"));
    }
}

/// Returns what a rollout has waited for too long, for people.
fn what_is_late(replicas: &BTreeMap<WorkerId, Replica>, rollout: &Rollout, now: Now) -> Option<String> {
    let new = rollout.replicas.iter().filter_map(|id| replicas.get(id));
    let is_late =
        |replica: &&Replica| replica.stage() == Stage::Starting && replica.ready_until_ns() <= now.monotonic_ns;
    if let Some(replica) = new.clone().find(is_late) {
        let limit = replica.deployment.start_timeout;
        return Some(format!("replica {} is not ready after {} s", replica.name, limit.as_secs_f64()));
    }
    (rollout.until_ns <= now.monotonic_ns).then(|| {
        let mut without_lanes = new.filter(|replica| replica.lanes.is_empty());
        let late = without_lanes.next().map_or("the proxy".into(), |replica| format!("replica {}", replica.name));
        format!("{late} is not ready in time")
    })
}

/// Returns whether every new replica has its handler, and every proxy lanes to all that are to serve.
fn are_all_ready(served: &Served, service: &Service) -> bool {
    let Some(rollout) = &served.rollout else { return false };
    let new = || rollout.replicas.iter().filter_map(|id| served.replicas.get(id));
    let old = served.replicas.values().filter(|replica| replica.stage() == Stage::Serving);
    let is_up = served.live_proxies().any(|(_, proxy)| proxy.fits(service));
    is_up && new().all(|replica| replica.has_handler()) && new().chain(old).all(|replica| served.has_lanes(replica))
}

/// Gives replicas that stay their new settings, one after the other, so that the first that is refused has changed no other. Returns whether all have them.
fn has_configured(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    service: &Service,
    last_order: &mut u64,
    now: Now,
) -> bool {
    let stay = kept(served, service, |_| true);
    let is_tried = |served: &Served| stay.iter().any(|id| served.replicas[id].trial.is_some());
    for id in &stay {
        if is_tried(served) {
            break;
        }
        configure(served, effects, service, (*id, last_order), now);
    }
    !is_tried(served)
}

/// Gives a replica the `user_config` of a version, if it has another.
pub(super) fn configure(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    service: &Service,
    (id, last_order): (WorkerId, &mut u64),
    now: Now,
) {
    let Some(replica) = served.replicas.get_mut(&id) else { return };
    let Some((_, wanted)) = find(service, &replica.application, &replica.deployment.name) else { return };
    let is_other = replica.deployment.user_config != wanted.user_config || replica.is_config_uncertain;
    if is_other && replica.has_handler() && replica.trial.is_none() {
        replica.is_config_uncertain = false;
        *last_order += 1;
        let late_ns = after(now, replica.deployment.start_timeout);
        replica.trial = Some(Trial { order: *last_order, late_ns, asks_health: false });
        replica.deployment.user_config.clone_from(&wanted.user_config);
        effects.configure_replica(id, *last_order, wanted);
    }
}

/// Returns whether the settings that a replica was given last are those of a version.
fn has_settings_of(replica: &Replica, service: &Service) -> bool {
    let wanted = find(service, &replica.application, &replica.deployment.name);
    wanted.is_some_and(|(_, wanted)| wanted.user_config == replica.deployment.user_config)
}

/// Notes that a replica has answered to settings on trial. Those of a version on its way it is to be well with, too; when it refuses them the version
/// is given up, and it gets back those that it had.
pub(super) fn on_tried(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    id: WorkerId,
    (failure, last_order): (Option<String>, &mut u64),
    now: Now,
) {
    let Some(replica) = served.replicas.get_mut(&id) else { return };
    let Some(trial) = replica.trial.take() else { return };
    let trying = served
        .rollout
        .as_mut()
        .filter(|rollout| rollout.phase == Phase::Configuring && has_settings_of(replica, &rollout.version.service));
    match (failure, trying) {
        (None, Some(rollout)) if !trial.asks_health && rollout.failure.is_none() => {
            *last_order += 1;
            let late_ns = after(now, replica.deployment.start_timeout);
            replica.trial = Some(Trial { order: *last_order, late_ns, asks_health: true });
            effects.order_replica(id, ReplicaOrder::Health { order: *last_order });
        }
        (None, _) => replica.health.unwell = 0,
        (Some(failure), Some(rollout)) => {
            replica.is_config_uncertain = true;
            let said = if trial.asks_health { "is not well with" } else { "does not take" };
            let reason = format!("replica {} {said} its `user_config`: {failure}", replica.name);
            rollout.failure.get_or_insert(reason);
        }
        (Some(failure), None) => {
            let serving = served.serving.as_ref();
            // Other settings are on their way to it if these are not those that are served.
            replica.is_config_uncertain = true;
            if serving.is_some_and(|serving| has_settings_of(replica, &serving.service)) && served.rollout.is_none() {
                // It refuses what all others have.
                let reason = format!("it does not take its `user_config`: {failure}");
                replace(served, id, reason);
            }
        }
    }
}

/// Gives up settings on trial to which a replica says nothing: what it has nobody knows.
pub(super) fn reject_late_trials(served: &mut Served, now: Now) {
    let is_late = |replica: &Replica| replica.trial.is_some_and(|trial| trial.late_ns <= now.monotonic_ns);
    let late: Vec<_> = served.replicas.iter().filter(|(_, replica)| is_late(replica)).map(|(id, _)| *id).collect();
    for id in late {
        let Some(replica) = served.replicas.get_mut(&id) else { continue };
        replica.trial = None;
        replica.is_config_uncertain = true;
        let limit = replica.deployment.start_timeout.as_secs_f64();
        let reason = format!("did not answer to its `user_config` within {limit} s");
        if let Some(rollout) = served.rollout.as_mut().filter(|rollout| rollout.phase == Phase::Configuring) {
            rollout.failure.get_or_insert(format!("replica {} {reason}", replica.name));
        }
        replace(served, id, format!("it {reason}"));
    }
}

/// Has another replica take the place of one that lives and answers, and is not as it should be. A version on its way is given up if it is one of that.
pub(super) fn replace(served: &mut Served, id: WorkerId, reason: String) {
    let Some(replica) = served.replicas.get_mut(&id) else { return };
    match &mut served.rollout {
        Some(rollout) if rollout.replicas.contains(&id) => {
            rollout.failure.get_or_insert(format!("replica {}: {reason}", replica.name));
        }
        _ => drop(replica.unfit.get_or_insert(reason)),
    }
}

fn set_phase(served: &mut Served, phase: Phase) {
    if let Some(rollout) = &mut served.rollout {
        rollout.phase = phase;
    }
}

/// Enters the new replicas in the table, and gives proxies the new routes.
fn switch(served: &mut Served, effects: &mut impl ServiceEffects, service: &Service, now: Now) {
    let new: Vec<_> = served.rollout.iter().flat_map(|rollout| rollout.replicas.iter().copied()).collect();
    for id in new {
        publish(served, effects, service, id, now);
    }
    give_routes(served, effects, service, |_| true);
    refresh(served, effects);
    set_phase(served, Phase::Switching);
}

fn give_routes(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    service: &Service,
    which: impl Fn(&super::service::Proxy) -> bool,
) {
    configure_proxies(served, effects, service, which);
    let revision = served.revision;
    if let Some(rollout) = &mut served.rollout {
        rollout.revision = if rollout.revision == 0 { revision } else { rollout.revision };
    }
}

/// Returns whether the proxies at the address use the new routes. One that has come up meanwhile is given them.
fn has_switched(served: &mut Served, effects: &mut impl ServiceEffects, service: &Service) -> bool {
    let revision = served.rollout.as_ref().map_or(0, |rollout| rollout.revision);
    let new: Vec<_> = served.rollout.iter().flat_map(|rollout| rollout.replicas.iter().copied()).collect();
    let is_here = |proxy: &super::service::Proxy| proxy.fits(service) && proxy.stage != ProxyStage::Draining;
    let has_lanes =
        served.replicas.values().filter(|replica| replica.has_handler()).all(|replica| served.has_lanes(replica));
    if has_lanes
        && served
            .proxies
            .values()
            .any(|proxy| is_here(proxy) && proxy.stage == ProxyStage::Up && proxy.given < revision)
    {
        give_routes(served, effects, service, |proxy| proxy.given < revision);
    }
    let failure = served.proxies.values().filter(|proxy| is_here(proxy)).find_map(|proxy| proxy.failure.clone());
    if let (Some(failure), Some(rollout)) = (failure, &mut served.rollout) {
        rollout.failure.get_or_insert(format!("the proxy does not take the routes: {failure}"));
        return false;
    }
    let mut here = served.proxies.values().filter(|proxy| is_here(proxy)).peekable();
    let are_serving =
        new.iter().all(|id| served.replicas.get(id).is_some_and(|replica| replica.stage() == Stage::Serving));
    here.peek().is_some() && here.all(|proxy| proxy.given >= revision && proxy.uses == proxy.given) && are_serving
}

/// Serves the version from now on. What is not of it goes with the next turn.
fn commit(served: &mut Served, effects: &mut impl ServiceEffects, now: Now) {
    let Some(rollout) = served.rollout.take() else { return };
    let mut version = rollout.version;
    scaling::commit(served, &mut version.service, now);
    let service = &version.service;
    for id in kept(served, service, |_| true) {
        let Some(replica) = served.replicas.get_mut(&id) else { continue };
        let Some((_, wanted)) = find(service, &replica.application, &replica.deployment.name) else { continue };
        // One that was not asked to take its settings is asked in the next turn.
        let user_config = replica.deployment.user_config.take();
        replica.deployment = Deployment { user_config, ..wanted.clone() };
        if replica.stage() == Stage::Serving {
            effects.set_limit(&service.name, replica.place, wanted.ongoing_limit());
        }
    }
    if served.owner.is_none() {
        effects.journal_deployed(version.number, version.deployed_unix_nano, service);
    }
    let number = version.number;
    let address = service.http.address;
    let others: Vec<_> = served.proxies.iter().filter(|(_, proxy)| !proxy.fits(service)).map(|(id, _)| *id).collect();
    for id in others {
        drain_proxy(served, effects, id, (longest_drain(service), true), now);
    }
    effects.listen_only(&service.name, address);
    served.unheard = None;
    served.proxy_deaths.forgive();
    served.deaths.values_mut().for_each(super::service::Deaths::forgive);
    served.remember(version.clone());
    served.serving = Some(version);
    served.untold = Some(number);
    served.report_version(now);
}

/// Returns the longest that a request of a service may take to end.
pub(super) fn longest_drain(service: &Service) -> std::time::Duration {
    let all = super::service::deployments(service).map(|(_, deployment)| deployment.drain_timeout);
    all.max().unwrap_or_default()
}

/// Gives the version up. What was served before is, all of it.
pub(super) fn fail(served: &mut Served, effects: &mut impl ServiceEffects, now: Now) {
    let Some(rollout) = served.rollout.take() else { return };
    let Rollout { mut version, phase, replicas, failure, .. } = rollout;
    let reason = failure.unwrap_or_else(|| "it was given up".into());
    let service = version.service.name.clone();
    for id in replicas {
        match served.replicas.get_mut(&id) {
            Some(replica) if replica.stage() == Stage::Serving => {
                drain_replica(served, effects, (&service, id), now);
            }
            Some(replica) => {
                replica.advance(Event::Drained);
                effects.kill(id);
            }
            None => {}
        }
    }
    let serving = served.serving.as_ref().map(|serving| serving.service.clone());
    for (id, proxy) in &mut served.proxies {
        if serving.as_ref().is_none_or(|serving| !proxy.fits(serving)) && proxy.stage != ProxyStage::Draining {
            proxy.stage = ProxyStage::Draining;
            effects.kill(*id);
        }
    }
    match &serving {
        Some(serving) => {
            if phase == Phase::Switching {
                configure_proxies(served, effects, serving, |_| true);
            }
            effects.listen_only(&service, serving.http.address);
        }
        None => effects.close_service(&service),
    }
    // What was for the life of a command ends with that, and is no more than what the command says of it.
    let is_forgotten = serving.is_none() && served.owner.take().is_some();
    let number = version.number;
    effects.log(format!("version {number} of service `{service}` is not rolled out: {reason}"));
    version.failure = Some(reason.clone());
    served.remember(version);
    if is_forgotten {
        served.versions.clear();
    }
    served.notify(ServiceNews::RolloutFailed { version: number, reason }, now);
}
