//! Turn of services: compares the processes of each service with those that there should be.

use super::effects::ServiceEffects;
use super::plan::{kept, missing, unreplaced};
use super::processes::{
    configure_proxies, drain_proxy, drain_replica, give_up_replica, publish, refresh, start_proxy, start_replica,
};
use super::replica::{Replica, Stage};
use super::rollout::{self, longest_drain};
use super::scaling;
use super::service::{Deaths, ProxyStage, Served, Services, Unheard, Version, after};
use crate::state::Now;
use std::collections::BTreeSet;
use std::time::Duration;
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::ServiceNews;
use tracer_ipc::serving::{Application, Deployment, ReplicaOrder};

/// The least that a replica may take to answer whether it is well.
const HEALTH_LEAST: Duration = Duration::from_secs(5);
/// Pause before what was killed and is still there is killed again, in nanoseconds.
const KILL_AGAIN_NS: u64 = 5_000_000_000;

/// Number of services that have ended whose events are kept for those who follow them.
pub(super) const ENDED_LIMIT: usize = 100;

/// Pause before an address is tried again on which the service of an earlier head cannot listen, in nanoseconds.
const LISTEN_AGAIN_NS: u64 = 1_000_000_000;

/// Starts, publishes and ends what is to be, after whatever has happened. Returns when something is due next, by the monotonic clock.
pub fn turn(services: &mut Services, effects: &mut impl ServiceEffects, now: Now) -> Option<u64> {
    let is_due = services.next_ns.is_some_and(|next| next <= now.monotonic_ns);
    if !std::mem::take(&mut services.has_news) && !is_due {
        return services.next_ns;
    }
    scaling::look(services, effects, now);
    let names: Vec<String> = services.all.keys().cloned().collect();
    for name in &names {
        look_at(services, effects, name, now);
    }
    forget_ended(services);
    let next = services.all.values().filter_map(|served| next_of(served, now)).min();
    services.next_ns = if std::mem::take(&mut services.has_news) { Some(now.monotonic_ns) } else { next };
    services.next_ns
}

fn look_at(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    kill_overdue(services, effects, name, now);
    if let Some(served) = services.all.get_mut(name) {
        served.report_version(now);
    }
    if services.all.get(name).is_some_and(|served| served.proxies.values().any(|proxy| proxy.is_silent)) {
        // What there is of it is not known yet.
        return;
    }
    ask_for_health(services, effects, name, now);
    if let Some(served) = services.all.get_mut(name) {
        rollout::reject_late_trials(served, now);
    }
    if services.all.get(name).is_some_and(|served| served.ending.is_some()) {
        return end(services, effects, name, now);
    }
    rollout::resume(services, effects, name, now);
    let Some(served) = services.all.get_mut(name) else { return };
    if served.unheard.as_ref().is_some_and(|unheard| unheard.again_ns <= now.monotonic_ns) {
        listen_again(served, effects, name, now);
    }
    if served.unheard.is_some() {
        return;
    }
    let Some(serving) = services.all.get(name).and_then(|served| served.serving.clone()) else { return };
    follow(services, effects, name, &serving, now);
    forget_unused(services, name);
}

/// Forgets the services that ended first, so that those with names of their own do not add up.
fn forget_ended(services: &mut Services) {
    let has_ended = |(_, served): &(&String, &Served)| !served.is_there() && served.replicas.is_empty();
    let mut ended: Vec<_> =
        services.all.iter().filter(has_ended).map(|(name, served)| (served.last_told(), name)).collect();
    let Some(surplus) = ended.len().checked_sub(ENDED_LIMIT).filter(|surplus| *surplus > 0) else { return };
    ended.sort_unstable();
    let names: Vec<_> = ended.into_iter().take(surplus).map(|(_, name)| name.clone()).collect();
    names.iter().for_each(|name| drop(services.all.remove(name)));
}

/// Listens for a service that was served before, or says why it cannot and when it is tried again.
pub(super) fn listen_again(served: &mut Served, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    let Some(serving) = &served.serving else { return };
    let address = serving.service.http.address;
    let begun = effects.open_service(name).and_then(|()| effects.listen(name, address));
    let before = served.unheard.take();
    match begun {
        Ok(_) if before.is_some() => effects.log(format!("service `{name}` is served again, at {address}")),
        Ok(_) => {}
        Err(refusal) => {
            if before.is_none_or(|before| before.reason != refusal.message) {
                effects.log(format!("service `{name}` is not served for now: {}", refusal.message));
            }
            let again_ns = now.monotonic_ns + LISTEN_AGAIN_NS;
            served.unheard = Some(Unheard { reason: refusal.message, again_ns });
        }
    }
}

/// Brings replicas and proxies to what the served version wants.
fn follow(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, serving: &Version, now: Now) {
    let service = &serving.service;
    let Some(served) = services.all.get_mut(name) else { return };
    let stay = kept(served, service, |id| !served.is_new(id));
    let missing = missing(served, service, &stay);
    scaling::forget_short(served, &missing);
    for (application, deployment, count) in missing {
        for _ in 0..count {
            let index = services.all.get_mut(name).map(|served| served.index(&application.name, &deployment.name));
            let deaths = services.all.get(name).and_then(|served| served.deaths.get(&index?));
            if deaths.is_some_and(|deaths| deaths.again_ns > now.monotonic_ns)
                || !has_room(services, effects, (name, application, deployment), now)
                || start_replica(services, effects, (application, deployment), serving, now).is_none()
            {
                break;
            }
        }
    }
    let Some(served) = services.all.get_mut(name) else { return };
    let stay = kept(served, service, |id| !served.is_new(id));
    if served.rollout.is_none() {
        let last_order = &mut services.last_order;
        stay.iter().for_each(|id| rollout::configure(served, effects, service, (*id, &mut *last_order), now));
    }
    publish_ready(served, effects, serving, &stay, now);
    let unreplaced = unreplaced(served, service, &stay);
    let goes = |(id, replica): &(&WorkerId, &Replica)| {
        replica.is_live() && !stay.contains(id) && !unreplaced.contains(id) && !served.is_new(**id)
    };
    for id in served.replicas.iter().filter(goes).map(|(id, _)| *id).collect::<Vec<_>>() {
        drain_replica(served, effects, (name, id), now);
    }
    let has_proxy = |proxy: &super::service::Proxy| proxy.fits(service) && proxy.stage != ProxyStage::Draining;
    let is_missing = !served.proxies.values().any(has_proxy);
    if is_missing && served.proxy_deaths.again_ns <= now.monotonic_ns {
        start_proxy(services, effects, serving, now);
    }
}

/// Returns whether there is room for one more replica of a deployment. If there is none for the successor of one that is not as it should be, that one
/// makes room.
fn has_room(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    (name, application, deployment): (&str, &Application, &Deployment),
    now: Now,
) -> bool {
    let has_room = scaling::has_room(services, (name, application, deployment), now);
    let Some(served) = services.all.get_mut(name).filter(|_| !has_room) else { return has_room };
    let mut own = served.replicas.iter().filter(|(_, replica)| replica.is_of(application, deployment));
    let is_settled = own.clone().all(|(_, replica)| replica.stage() == Stage::Serving);
    let unfit = own.find(|(id, replica)| replica.unfit.is_some() && !served.is_new(**id)).map(|(id, _)| *id);
    if let Some(id) = unfit.filter(|_| is_settled) {
        drain_replica(served, effects, (name, id), now);
    }
    false
}

/// Lets replicas take requests that are ready and have lanes, and proxies that have lanes to all of them.
fn publish_ready(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    serving: &Version,
    stay: &[WorkerId],
    now: Now,
) {
    let service = &serving.service;
    let is_ready = |id: &&WorkerId| {
        let replica = &served.replicas[id];
        let is_well = replica.stage() == Stage::Ready && replica.trial.is_none() && replica.reason.is_none();
        is_well && served.has_lanes(replica)
    };
    let ready: Vec<_> = stay.iter().filter(is_ready).copied().collect();
    ready.iter().for_each(|id| publish(served, effects, service, *id, now));
    if !ready.is_empty() {
        refresh(served, effects);
    }
    let has_all = |id: WorkerId| {
        let mut joined =
            served.replicas.values().filter(|replica| replica.has_handler() && replica.joined.contains(&id));
        joined.all(|replica| replica.lanes.contains(&id))
    };
    let ready: BTreeSet<u64> = served
        .live_proxies()
        .filter(|(id, proxy)| proxy.given == 0 && has_all(*id))
        .map(|(_, proxy)| proxy.number)
        .collect();
    if !ready.is_empty() {
        configure_proxies(served, effects, service, |proxy| ready.contains(&proxy.number));
    }
}

/// Kills what was to have ended by now, and what is not ready by now.
fn kill_overdue(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    let Some(served) = services.all.get_mut(name) else { return };
    let is_overdue = |kill_at: &mut Option<u64>| {
        let is_overdue = kill_at.is_some_and(|kill_at| kill_at <= now.monotonic_ns);
        if is_overdue {
            *kill_at = Some(now.monotonic_ns + KILL_AGAIN_NS);
        }
        is_overdue
    };
    let (mut late, new) =
        (Vec::new(), served.rollout.as_ref().map(|rollout| rollout.replicas.clone()).unwrap_or_default());
    for (id, replica) in &mut served.replicas {
        if is_overdue(&mut replica.kill_at_ns) {
            effects.kill(*id);
        }
        if replica.stage() == Stage::Starting && replica.ready_until_ns() <= now.monotonic_ns && !new.contains(id) {
            late.push((*id, replica.deployment.start_timeout));
        }
    }
    for (id, proxy) in &mut served.proxies {
        if is_overdue(&mut proxy.kill_at_ns) {
            effects.kill(*id);
        }
    }
    for (id, limit) in late {
        let reason = format!("it was not ready after {} s", limit.as_secs_f64());
        give_up_replica(served, effects, (name, id), reason);
        if let Some(replica) = served.replicas.get_mut(&id) {
            replica.started_ns = now.monotonic_ns;
        }
    }
}

/// Asks replicas whether they are well, and gives up those that do not answer.
fn ask_for_health(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    let Some(served) = services.all.get_mut(name) else { return };
    let mut silent = Vec::new();
    for (id, replica) in served.replicas.iter_mut().filter(|(_, replica)| replica.has_handler()) {
        let period = replica.deployment.health_check_period;
        let limit = period.max(HEALTH_LEAST);
        match replica.health.asked {
            Some((_, late_ns)) if late_ns <= now.monotonic_ns => {
                replica.health.asked = None;
                silent.push((*id, limit));
            }
            None if replica.health.next_ns <= now.monotonic_ns => {
                services.last_order += 1;
                let order = services.last_order;
                replica.health.asked = Some((order, after(now, limit)));
                replica.health.next_ns = after(now, period);
                effects.order_replica(*id, ReplicaOrder::Health { order });
            }
            _ => {}
        }
    }
    for (id, limit) in silent {
        give_up_replica(
            served,
            effects,
            (name, id),
            format!("it did not say within {} s whether it is well", limit.as_secs_f64()),
        );
    }
}

/// Begins to end a service: its proxies end what they have first, then its replicas.
pub(super) fn begin_end(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    (timeout, is_shut_down): (Duration, bool),
    now: Now,
) {
    if served.rollout.is_some() {
        if let Some(rollout) = &mut served.rollout {
            rollout.failure.get_or_insert("the service is being shut down".into());
        }
        rollout::fail(served, effects, now);
    }
    let until_ns = after(now, timeout);
    let before = served.ending;
    served.ending = Some(super::service::Ending {
        until_ns: before.map_or(until_ns, |before| before.until_ns.min(until_ns)),
        are_replicas_told: before.is_some_and(|before| before.are_replicas_told),
        is_shut_down: is_shut_down || before.is_some_and(|before| before.is_shut_down),
    });
    for id in served.proxies.keys().copied().collect::<Vec<_>>() {
        drain_proxy(served, effects, id, (timeout, false), now);
    }
}

/// Brings the end of a service on.
fn end(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, now: Now) {
    let Some(served) = services.all.get_mut(name) else { return };
    let Some(mut ending) = served.ending else { return };
    if ending.until_ns <= now.monotonic_ns {
        served.proxies.keys().chain(served.replicas.keys()).for_each(|id| effects.kill(*id));
        ending.until_ns = now.monotonic_ns + KILL_AGAIN_NS;
    }
    if served.proxies.is_empty() && !ending.are_replicas_told {
        ending.are_replicas_told = true;
        for id in served.replicas.keys().copied().collect::<Vec<_>>() {
            drain_replica(served, effects, (name, id), now);
        }
    }
    served.ending = Some(ending);
    if served.proxies.is_empty() && served.replicas.is_empty() && ending.is_shut_down {
        served.ending = None;
        served.serving = None;
        served.owner = None;
        served.unheard = None;
        served.indices.clear();
        served.deaths.clear();
        served.scales.clear();
        served.proxy_deaths = Deaths::default();
        served.versions.clear();
        served.notify(ServiceNews::ShutDown, now);
        effects.close_service(name);
        effects.log(format!("service `{name}` is shut down"));
    }
}

/// Returns the longest that a service may take to end of itself.
pub(super) fn time_to_end(served: &Served) -> Duration {
    served.serving.as_ref().map_or(Duration::ZERO, |serving| longest_drain(&serving.service))
}

/// Numbers in the table of deployments that are no more can be another one's.
fn forget_unused(services: &mut Services, name: &str) {
    let Some(served) = services.all.get_mut(name) else { return };
    if served.rollout.is_some() {
        return;
    }
    let used: BTreeSet<u32> = served.replicas.values().map(|replica| replica.index).collect();
    let Some(serving) = &served.serving else { return };
    let is_wanted = |(application, deployment): &(String, String)| {
        super::service::find(&serving.service, application, deployment).is_some()
    };
    served.indices.retain(|key, index| used.contains(index) || is_wanted(key));
}

/// Returns the time at which something is due in a service.
fn next_of(served: &Served, now: Now) -> Option<u64> {
    let of_replica = |replica: &Replica| {
        let health = match replica.health.asked {
            _ if !replica.has_handler() => None,
            Some((_, late_ns)) => Some(late_ns),
            None => Some(replica.health.next_ns),
        };
        let is_starting = replica.stage() == Stage::Starting;
        let ready = is_starting.then(|| replica.ready_until_ns());
        let trial = replica.trial.map(|trial| trial.late_ns);
        health.into_iter().chain(ready).chain(trial).chain(replica.kill_at_ns)
    };
    let replicas = served.replicas.values().flat_map(of_replica);
    let proxies = served.proxies.values().filter_map(|proxy| proxy.kill_at_ns);
    let rollout = served.rollout.as_ref().map(|rollout| rollout.until_ns);
    let ending = served.ending.map(|ending| ending.until_ns);
    let again = served.deaths.values().chain([&served.proxy_deaths]).map(|deaths| deaths.again_ns);
    let again = again.filter(|again| *again > now.monotonic_ns);
    let listen = served.unheard.as_ref().map(|unheard| unheard.again_ns);
    let scaled = scaling::next_ns(served);
    replicas.chain(proxies).chain(rollout).chain(ending).chain(again).chain(listen).chain(scaled).min()
}
