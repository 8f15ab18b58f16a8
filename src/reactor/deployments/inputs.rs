//! Inputs of services: wishes of people, reports of their processes, and what a head before this one has left.

use std::time::Duration;

use super::effects::ServiceEffects;
use super::plan::{kept, missing, steps};
use super::processes::{give_up_replica, join_proxy, join_replica, on_proxy_exit, on_replica_exit, on_told};
use super::replica::{Event, Said, Stage};
use super::rollout;
use super::scaling;
use super::service::{INDICES, PLACES, ProxyStage, Served, Services, Version, deployments};
use super::turn::{begin_end, listen_again, time_to_end};
use crate::state::{Now, task::DriverId};
use tracer_core::count::Count;
use tracer_core::suggestion;
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::{ServiceAccepted, ServiceNews, ServiceRefusal, ServiceRefusalCode};
use tracer_ipc::serving::{ProxyReport, ReplicaReport, Service};

/// Times in a row that a replica may say that it is not well.
const UNWELL_LIMIT: u32 = 3;

fn refusal<T>(code: ServiceRefusalCode, message: String) -> Result<T, ServiceRefusal> {
    Err(ServiceRefusal { code, message })
}

/// Deploys a service as this says. With a dry run nothing is done; `owner` is whose connection it ends with, if it does.
pub fn on_deploy(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    mut service: Service,
    (is_dry_run, owner): (bool, Option<DriverId>),
    now: Now,
) -> Result<ServiceAccepted, ServiceRefusal> {
    let name = service.name.clone();
    let served_at = services.all.get(&name).and_then(|served| Some(served.serving.as_ref()?.service.http.address));
    if let Some(at) = served_at.filter(|at| at.ip() == service.http.address.ip() && service.http.address.port() == 0) {
        // Any port will do, so the one that it has.
        service.http.address = at;
    }
    scaling::begin(services.all.get(&name), &mut service);
    check(services, &service)?;
    let served = services.all.get(&name);
    let steps = steps(served, &service);
    let after = served.map_or(0, |served| served.last_event);
    let version = served.map_or(0, Served::last_version) + 1;
    let accepted = ServiceAccepted { service: name.clone(), version, after, steps };
    if is_dry_run {
        return Ok(accepted);
    }
    let is_new = served.is_none_or(|served| served.serving.is_none());
    effects.open_service(&name)?;
    match effects.listen(&name, service.http.address) {
        Ok(address) => service.http.address = address,
        Err(refusal) => {
            if is_new {
                effects.close_service(&name);
            }
            return Err(refusal);
        }
    }
    let served = services.all.entry(name).or_default();
    if is_new {
        served.owner = owner;
    }
    let version = Version { number: version, deployed_unix_nano: now.unix_nano, service, failure: None };
    services.has_news = true;
    rollout::begin(services, effects, version, now);
    Ok(accepted)
}

/// Checks of a service before anything is done.
fn check(services: &Services, service: &Service) -> Result<(), ServiceRefusal> {
    if services.is_stopping {
        return refusal(ServiceRefusalCode::Stopping, "the head is stopping".into());
    }
    let name = &service.name;
    if let Some(served) = services.all.get(name) {
        if let Some(rollout) = &served.rollout {
            let version = rollout.version.number;
            let text = format!(
                "version {version} of service `{name}` is being rolled out\n(hint: `tracer serve status` shows how far it is; deploy when it is done)"
            );
            return refusal(ServiceRefusalCode::Busy, text);
        }
        if served.ending.is_some()
            || served.serving.is_none() && !(served.replicas.is_empty() && served.proxies.is_empty())
        {
            return refusal(
                ServiceRefusalCode::Busy,
                format!("service `{name}` is still ending\n(hint: deploy when it has ended)"),
            );
        }
    }
    let same_address = |(other, served): &(&String, &Served)| {
        let serving = served.serving.as_ref().map(|version| version.service.http.address);
        let coming = served.rollout.as_ref().map(|rollout| rollout.version.service.http.address);
        *other != name && [serving, coming].contains(&Some(service.http.address))
    };
    if let Some((other, _)) = services.all.iter().find(same_address) {
        let text = format!(
            "service `{other}` listens on {} already\n(hint: give `{name}` another `address` in `[http]`, or make both one service)",
            service.http.address
        );
        return refusal(ServiceRefusalCode::Address, text);
    }
    let wanted: u64 = deployments(service).map(|(_, deployment)| u64::from(deployment.num_replicas)).sum();
    let there = services.all.get(name).map_or(0, |served| served.replicas.len() as u64);
    if wanted + there > u64::from(PLACES) {
        let text = format!(
            "service `{name}` wants {wanted} replicas beside {there} that there are, expected {PLACES} in all at most"
        );
        return refusal(ServiceRefusalCode::TooLarge, text);
    }
    check_processes(services, service)?;
    check_resources(services, service)?;
    let count = deployments(service).count();
    if count > INDICES as usize / 2 {
        let text = format!("service `{name}` has {count} deployments, expected {} at most", INDICES / 2);
        return refusal(ServiceRefusalCode::TooLarge, text);
    }
    Ok(())
}

/// Checks that there may be as many processes as a service wants, for as long as old and new replicas are there beside each other.
fn check_processes(services: &Services, service: &Service) -> Result<(), ServiceRefusal> {
    let Some(room) = services.room else { return Ok(()) };
    let nothing = Served::default();
    let served = services.all.get(&service.name).unwrap_or(&nothing);
    let stay = kept(served, service, |_| true);
    let wanted: usize = missing(served, service, &stay).iter().map(|(.., count)| *count as usize).sum();
    let (replicas, others) = (services.replicas(), services.others);
    if wanted == 0 || wanted + replicas + others <= room {
        return Ok(());
    }
    let wanted = Count(wanted, "new replica");
    let there = match others {
        0 => format!("{} that there are", Count(replicas, "replica")),
        others => format!("{} and {} of actors and tasks", Count(replicas, "replica"), Count(others, "process")),
    };
    let text = format!(
        "service `{}` wants {wanted} beside {there}, and the head may have {room} such processes beside its workers\n\
         (hint: start the head with a higher --max-processes, or deploy with fewer replicas first)",
        service.name
    );
    refusal(ServiceRefusalCode::Resources, text)
}

/// Checks that the head has what a service wants of named resources, for as long as old and new replicas are there beside each other.
fn check_resources(services: &Services, service: &Service) -> Result<(), ServiceRefusal> {
    let served = services.all.get(&service.name);
    let nothing = Served::default();
    let served = served.unwrap_or(&nothing);
    let stay = kept(served, service, |_| true);
    let mut wanted = services.occupied();
    for (_, deployment, count) in missing(served, service, &stay) {
        for (name, amount) in &deployment.resources {
            *wanted.entry(name.clone()).or_default() += amount * u64::from(count);
        }
    }
    let known = || services.resources.iter().map(|(name, _)| name.as_str());
    for (_, deployment) in deployments(service) {
        for (name, _) in &deployment.resources {
            let total = services.resources.iter().find(|(known, _)| known == name).map(|(_, total)| *total);
            let Some(total) = total else {
                let hint = match suggestion::hint(name, known()) {
                    hint if hint.is_empty() => {
                        format!("\n(hint: `tracer start --head --resources {name}=1` says that there is one)")
                    }
                    hint => hint,
                };
                let text = format!(
                    "deployment `{}` wants the resource `{name}`, which the head does not have{hint}",
                    deployment.name
                );
                return refusal(ServiceRefusalCode::Resources, text);
            };
            let needed = wanted.get(name).copied().unwrap_or(0);
            if needed > total {
                let text = format!(
                    "deployment `{}` wants the resource `{name}`: {needed} would be occupied while old and new replicas are there beside each other, and the head has {total}\n\
                     (hint: fewer replicas at first, or `tracer serve shutdown` before the deploy)",
                    deployment.name
                );
                return refusal(ServiceRefusalCode::Resources, text);
            }
        }
    }
    Ok(())
}

/// Finds a service that is there, by name.
pub fn find_service<'s>(services: &'s Services, name: &str) -> Result<&'s Served, ServiceRefusal> {
    let known = || services.all.iter().filter(|(_, served)| served.is_there()).map(|(name, _)| name.as_str());
    match services.all.get(name).filter(|served| served.is_there()) {
        Some(served) => Ok(served),
        None => {
            let hint = suggestion::hint(name, known());
            let text = match known().next() {
                None => "no service is deployed\n(hint: `tracer serve deploy service.toml`)".to_owned(),
                Some(_) => format!("there is no service `{name}`{hint}"),
            };
            refusal(ServiceRefusalCode::UnknownService, text)
        }
    }
}

/// Deploys an earlier version of a service again; in the one before that which is served, if none is said.
pub fn on_rollback(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    (name, version): (&str, Option<u64>),
    now: Now,
) -> Result<ServiceAccepted, ServiceRefusal> {
    let served = find_service(services, name)?;
    let serving = served.serving.as_ref().map_or(0, |serving| serving.number);
    let candidates = || served.versions.iter().rev().filter(|other| other.failure.is_none());
    let wanted = match version {
        Some(version) => candidates().find(|other| other.number == version),
        None => candidates().find(|other| other.number < serving),
    };
    let Some(wanted) = wanted else {
        let text = match version {
            Some(version) => format!(
                "service `{name}` has no version {version} that was served\n(hint: `tracer serve history` lists them)"
            ),
            None if serving == 0 => format!("service `{name}` has no version that was served"),
            None => format!("service `{name}` has no version before {serving} that was served"),
        };
        return refusal(ServiceRefusalCode::UnknownVersion, text);
    };
    let service = wanted.service.clone();
    on_deploy(services, effects, service, (false, None), now)
}

/// Begins to end a service: it takes no more requests, and ends those that it has.
pub fn on_shut_down(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    name: &str,
    now: Now,
) -> Result<ServiceAccepted, ServiceRefusal> {
    let served = find_service(services, name)?;
    let (after, timeout) = (served.last_event, time_to_end(served));
    let version = served.serving.as_ref().map_or(0, |serving| serving.number);
    if served.owner.is_none() {
        effects.journal_shut_down(name, now.unix_nano);
    }
    if let Some(served) = services.all.get_mut(name) {
        begin_end(served, effects, (timeout + END_ALLOWANCE, true), now);
    }
    services.has_news = true;
    Ok(ServiceAccepted {
        service: name.into(),
        version,
        after,
        steps: vec!["finish requests in progress, then end all processes".into()],
    })
}

/// Limit of time for a service to end, beyond that of its requests.
const END_ALLOWANCE: Duration = Duration::from_secs(5);

/// Notes that a connection has ended: so do the services that were to end with it.
pub fn on_owner_gone(services: &mut Services, effects: &mut impl ServiceEffects, owner: DriverId, now: Now) {
    let owned: Vec<_> =
        services.all.iter().filter(|(_, served)| served.owner == Some(owner)).map(|(name, _)| name.clone()).collect();
    for name in owned {
        // One that is not there any more has ended already.
        let _ = on_shut_down(services, effects, &name, now);
    }
}

/// Begins to end every service, which may take so long: the head stops.
pub fn on_stop(services: &mut Services, effects: &mut impl ServiceEffects, grace: Duration, now: Now) {
    services.is_stopping = true;
    services.has_news = true;
    for served in services.all.values_mut().filter(|served| served.is_there()) {
        begin_end(served, effects, (grace, false), now);
    }
}

/// Notes that a service was served when the head before this one ended: it is served again.
pub fn on_restored(services: &mut Services, version: Version) {
    let served = services.all.entry(version.service.name.clone()).or_default();
    served.remember(version.clone());
    served.serving = Some(version);
    services.has_news = true;
}

/// Notes that a service was shut down before the head before this one ended.
pub fn on_restored_shut_down(services: &mut Services, name: &str) {
    if let Some(served) = services.all.get_mut(name) {
        served.serving = None;
    }
}

/// Listens for the services that were served before. One for which it cannot is tried again, and says so.
pub fn begin_restored(services: &mut Services, effects: &mut impl ServiceEffects, now: Now) {
    for (name, served) in services.all.iter_mut().filter(|(_, served)| served.serving.is_some()) {
        listen_again(served, effects, name, now);
    }
}

/// Notes that a replica has said something.
pub fn on_replica_report(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    process: WorkerId,
    report: ReplicaReport,
    now: Now,
) {
    services.has_news = true;
    let Some((name, served)) = services.served_of(process) else { return };
    let Some(replica) = served.replicas.get_mut(&process) else { return };
    match report {
        ReplicaReport::Ready { tracing, hook_failure, module_version, is_configurable } => {
            // One that has failed is about to end.
            if replica.reason.is_none() && replica.advance(Event::Made) {
                replica.said = Said { tracing, hook_failure, module_version };
                replica.is_configurable = is_configurable;
                let period = u64::try_from(replica.deployment.health_check_period.as_nanos()).unwrap_or(u64::MAX);
                replica.health.next_ns = now.monotonic_ns.saturating_add(period);
                let news = ServiceNews::ReplicaReady { replica: replica.name.clone(), pid: replica.pid };
                served.notify(news, now);
                join_replica(served, effects, process);
            }
        }
        ReplicaReport::Failed { reason } => {
            replica.reason.get_or_insert(reason);
            replica.kill_at_ns.get_or_insert(now.monotonic_ns + FAILED_LIMIT_NS);
        }
        ReplicaReport::Answered { order, failure } => {
            on_answer(services, effects, (&name, process), order, failure, now);
        }
        // Its end follows.
        ReplicaReport::Drained => {}
    }
}

/// Limit of time for a failed replica to end, in nanoseconds.
const FAILED_LIMIT_NS: u64 = 5_000_000_000;

/// Notes that a replica has answered an order.
fn on_answer(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    (name, process): (&str, WorkerId),
    order: u64,
    failure: Option<String>,
    now: Now,
) {
    let Some(served) = services.all.get_mut(name) else { return };
    let Some(replica) = served.replicas.get_mut(&process) else { return };
    if replica.trial.is_some_and(|trial| trial.order == order) {
        return rollout::on_tried(served, effects, process, (failure, &mut services.last_order), now);
    }
    if replica.health.asked.is_some_and(|(asked, _)| asked == order) {
        replica.health.asked = None;
        let Some(failure) = failure else {
            replica.health.unwell = 0;
            return;
        };
        replica.health.unwell += 1;
        if replica.health.unwell >= UNWELL_LIMIT {
            let reason = format!("it said {UNWELL_LIMIT} times in a row that it is not well: {failure}");
            rollout::replace(served, process, reason);
        }
    }
}

/// Notes that a proxy has said something.
pub fn on_proxy_report(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    process: WorkerId,
    report: ProxyReport,
    now: Now,
) {
    if let ProxyReport::Wanted { deployment } = report {
        if let Some(service) = services.service_of(process).map(str::to_owned) {
            scaling::on_wanted(services, &service, deployment, now);
        }
        return;
    }
    services.has_news = true;
    let Some((name, served)) = services.served_of(process) else { return };
    let Some(proxy) = served.proxies.get_mut(&process) else { return };
    match report {
        ProxyReport::Ready { tracing, hook_failure } => {
            if proxy.stage == ProxyStage::Starting {
                proxy.stage = ProxyStage::Up;
                proxy.said = Said { tracing, hook_failure, module_version: None };
                join_proxy(served, effects, process);
            }
        }
        ProxyReport::Told { tracing, hook_failure, revision, lanes } => {
            if std::mem::take(&mut proxy.is_silent) {
                proxy.kill_at_ns = None;
                proxy.said = Said { tracing, hook_failure, module_version: None };
                on_told(served, effects, process, revision, &lanes);
            }
        }
        ProxyReport::Configured { revision, failure } => {
            if revision == proxy.given {
                proxy.uses = if failure.is_none() { revision } else { proxy.uses };
                let is_useless = failure.is_some() && proxy.uses == 0 && served.rollout.is_none();
                proxy.failure = failure;
                if is_useless {
                    // Such as one in the place of another that has died, while a certificate cannot be read. The next one may do better.
                    effects.kill(process);
                }
            }
        }
        ProxyReport::Certificates(report) => proxy.certificates = report,
        ProxyReport::LanesTaken { replica } => {
            let joined = served.replicas.values_mut().find(|joined| joined.place == replica);
            if let Some(joined) = joined.filter(|joined| joined.joined.contains(&process)) {
                joined.lanes.insert(process);
            }
        }
        ProxyReport::LaneBroken { replica, reason } => {
            let broken =
                served.replicas.iter().find(|(_, broken)| broken.place == replica && broken.stage() != Stage::Gone);
            if let Some(id) = broken.map(|(id, _)| *id) {
                give_up_replica(served, effects, (&name, id), format!("it sent an invalid message: {reason}"));
            }
        }
        ProxyReport::AcceptsNoMore => proxy.accepts_no_more = true,
        // Its end follows. A connection without its file is nobody's.
        ProxyReport::Drained | ProxyReport::Connection | ProxyReport::Wanted { .. } => {}
    }
}

/// Returns the proxy that may have connections of one that drains; none when its service ends.
pub fn heir(services: &Services, process: WorkerId) -> Option<WorkerId> {
    let served = services.all.get(services.by_process.get(&process)?)?;
    let mut live = served.live_proxies().filter(|(other, proxy)| *other != process && proxy.uses > 0);
    live.next().map(|(heir, _)| heir)
}

/// Notes that the process of a replica or a proxy has ended, and its spans are complete. `cause` says how, as `was killed by signal 9`.
pub fn on_exit(services: &mut Services, effects: &mut impl ServiceEffects, process: WorkerId, cause: &str, now: Now) {
    services.has_news = true;
    let Some(name) = services.by_process.get(&process).cloned() else { return };
    let is_proxy = services.all.get(&name).is_some_and(|served| served.proxies.contains_key(&process));
    if is_proxy {
        on_proxy_exit(services, effects, (&name, process), cause, now);
    } else {
        on_replica_exit(services, effects, (&name, process), cause, now);
    }
}
