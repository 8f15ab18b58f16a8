//! Scaling: deployments that have as many replicas as their [load](super::scale) wants.
//!
//! Samples of the table are taken while there are requests, and change `num_replicas` of the served version. When there are none, the table is asked to say
//! that one has come ([`watch_load`](ServiceEffects::watch_load)), and the head sleeps until then, or until the number can fall.

use std::collections::BTreeMap;

use super::effects::ServiceEffects;
use super::replica::Stage;
use super::scale::{Load, Scale};
use super::service::{PLACES, Served, Services, deployments, find};
use crate::state::Now;
use tracer_core::count::Count;
use tracer_ipc::protocol::ServiceNews;
use tracer_ipc::serving::{Application, Autoscaling, Deployment, Service};

/// Pause before a replica is tried again for which there was no room, in nanoseconds.
const ROOM_PAUSE_NS: u64 = 1_000_000_000;

/// Takes samples that are due, and changes how many replicas there should be.
pub(super) fn look(services: &mut Services, effects: &mut impl ServiceEffects, now: Now) {
    for (name, served) in &mut services.all {
        if served.ending.is_some() || served.unheard.is_some() {
            continue;
        }
        let Some(serving) = &served.serving else { continue };
        let scaled: Vec<_> = deployments(&serving.service)
            .filter_map(|(application, deployment)| Some((place(application, deployment), deployment.autoscaling?)))
            .collect();
        for (key, scaling) in scaled {
            look_at(served, effects, (name, key, scaling), now);
        }
    }
}

fn place(application: &Application, deployment: &Deployment) -> (String, String) {
    (application.name.clone(), deployment.name.clone())
}

fn look_at(
    served: &mut Served,
    effects: &mut impl ServiceEffects,
    (service, key, scaling): (&str, (String, String), Autoscaling),
    now: Now,
) {
    let index = served.index(&key.0, &key.1);
    if !served.scales.contains_key(&key) {
        // Of an earlier head: those that it has left count.
        let live = served.replicas.values().filter(|replica| replica.index == index && replica.is_fit()).count() as u32;
        let number = number_of(served, &key);
        let current = if live > 0 { live } else { *number }.clamp(scaling.min, scaling.max);
        *number = current;
        served.scales.insert(key.clone(), Scale::new(current, now.monotonic_ns));
    }
    let Some(mut scale) = served.scales.remove(&key) else { return };
    if scale.next_ns.is_some_and(|next| next <= now.monotonic_ns) {
        let may_fall = served.rollout.is_none();
        let number = number_of(served, &key);
        let current = *number;
        let load = load(served, effects, service, index);
        let next = scale.decide(&scaling, current, load, now.monotonic_ns);
        let next = if may_fall { next } else { next.max(current) };
        *number_of(served, &key) = next;
        if next != current {
            let (application, deployment) = key.clone();
            served.notify(ServiceNews::Scaled { application, deployment, from: current, to: next }, now);
        }
        scale.look_again(&scaling, now.monotonic_ns);
        if scale.is_idle() && may_fall {
            effects.watch_load(service, index);
            // One that has come before it was watched for is seen now.
            if self::load(served, effects, service, index) == Load::default() {
                scale.sleep(&scaling, next, now.monotonic_ns);
            }
        }
    }
    served.scales.insert(key, scale);
}

/// The number of replicas that a deployment of the served version should have.
fn number_of<'s>(served: &'s mut Served, (application, name): &(String, String)) -> &'s mut u32 {
    let serving = served.serving.as_mut().expect("it is looked at what is served");
    let applications = serving.service.applications.iter_mut().filter(|of| of.name == *application);
    let mut all = applications.flat_map(|of| &mut of.deployments).filter(|deployment| deployment.name == *name);
    &mut all.next().expect("the deployment is one of it").num_replicas
}

fn load(served: &mut Served, effects: &impl ServiceEffects, service: &str, index: u32) -> Load {
    let mut load = Load { ongoing: 0, waiting: effects.waiting(service, index) };
    for replica in served.replicas.values_mut().filter(|replica| replica.index == index) {
        replica.ongoing = if replica.stage() == Stage::Serving { effects.in_flight(service, replica.place) } else { 0 };
        load.ongoing = load.ongoing.saturating_add(replica.ongoing);
    }
    load
}

/// Notes that a request has come to a deployment that had none, or that waits for its first replica.
pub fn on_wanted(services: &mut Services, service: &str, index: u32, now: Now) {
    let Some(served) = services.all.get_mut(service) else { return };
    let Some(key) = served.indices.iter().find(|(_, at)| **at == index).map(|(key, _)| key.clone()) else { return };
    // One that is not watched is looked at anyway.
    let Some(scale) = served.scales.get_mut(&key).filter(|scale| scale.is_watched) else { return };
    scale.wake(now.monotonic_ns);
    services.has_news = true;
}

/// Says how many replicas a version begins with whose deployments are scaled: as many as there should be of each now, and one at least, which shows that
/// its handler can be made.
pub(super) fn begin(served: Option<&Served>, service: &mut Service) {
    let serving = served.and_then(|served| served.serving.as_ref()).map(|version| &version.service);
    for application in &mut service.applications {
        let name = application.name.clone();
        for deployment in &mut application.deployments {
            let Some(scaling) = deployment.autoscaling else { continue };
            let before = serving.and_then(|serving| find(serving, &name, &deployment.name));
            let before = before.map_or(0, |(_, before)| before.num_replicas);
            deployment.num_replicas = before.clamp(scaling.min, scaling.max).max(1);
        }
    }
}

/// Begins to look at the deployments of a version that is served from now on, which has as many replicas at first as the version before has now.
pub(super) fn commit(served: &mut Served, service: &mut Service, now: Now) {
    let serving = served.serving.as_ref().map(|version| &version.service);
    for application in &mut service.applications {
        for deployment in &mut application.deployments {
            let Some(scaling) = deployment.autoscaling else { continue };
            let before = serving.and_then(|serving| find(serving, &application.name, &deployment.name));
            let before = before.map_or(0, |(_, before)| before.num_replicas);
            deployment.num_replicas = deployment.num_replicas.max(before.min(scaling.max));
            let key = (application.name.clone(), deployment.name.clone());
            served.scales.insert(key, Scale::new(deployment.num_replicas, now.monotonic_ns));
        }
    }
    let is_scaled = |(application, name): &(String, String)| {
        find(service, application, name).is_some_and(|(_, deployment)| deployment.autoscaling.is_some())
    };
    served.scales.retain(|key, _| is_scaled(key));
}

/// Returns when a sample is due, in a service.
pub(super) fn next_ns(served: &Served) -> Option<u64> {
    let is_looked_at = served.serving.is_some() && served.ending.is_none() && served.unheard.is_none();
    served.scales.values().filter(|_| is_looked_at).filter_map(|scale| scale.next_ns).min()
}

/// Returns whether there is room for one more replica of a deployment that is scaled, or of one beside which a replica is to be replaced; if not, it is noted what is short, and tried again soon.
pub(super) fn has_room(
    services: &mut Services,
    (service, application, deployment): (&str, &Application, &Deployment),
    now: Now,
) -> bool {
    // One that is not as it should be is there beside its successor for a while; all others have had room since the deploy.
    let own = services.all.get(service).into_iter().flat_map(|served| served.replicas.values());
    let is_replacing =
        own.filter(|replica| replica.is_of(application, deployment)).any(|replica| replica.unfit.is_some());
    if deployment.autoscaling.is_none() && !is_replacing {
        return true;
    }
    if services.all.get(service).is_some_and(|served| served.replicas.len() >= PLACES as usize) {
        return false;
    }
    let short = what_is_short(services, deployment);
    let key = place(application, deployment);
    let Some(scale) = services.all.get_mut(service).and_then(|served| served.scales.get_mut(&key)) else {
        return short.is_none();
    };
    if short.is_some() {
        let again_ns = now.monotonic_ns.saturating_add(ROOM_PAUSE_NS);
        scale.next_ns = Some(scale.next_ns.map_or(again_ns, |next| next.min(again_ns)));
    }
    scale.short = short;
    scale.short.is_none()
}

/// Forgets what was short for deployments that have all replicas which they should have.
pub(super) fn forget_short(served: &mut Served, missing: &[(&Application, &Deployment, u32)]) {
    let is_missing = |key: &(String, String)| {
        missing.iter().any(|(application, deployment, _)| application.name == key.0 && deployment.name == key.1)
    };
    served.scales.iter_mut().filter(|(key, _)| !is_missing(key)).for_each(|(_, scale)| scale.short = None);
}

/// Returns what there is too little of for one more replica of a deployment, in words.
fn what_is_short(services: &Services, deployment: &Deployment) -> Option<String> {
    let replicas = services.replicas();
    if let Some(room) = services.room
        && replicas + services.others >= room
    {
        let others = match services.others {
            0 => String::new(),
            others => format!(" and {} of actors and tasks", Count(others, "process")),
        };
        return Some(format!(
            "processes: there are {}{others}, and the head may have {room} such processes beside its workers\n\
             (hint: start the head with a higher --max-processes)",
            Count(replicas, "replica")
        ));
    }
    let occupied = services.occupied();
    let held: BTreeMap<&str, u64> = services.held.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
    for (name, amount) in &deployment.resources {
        let total = services.resources.iter().find(|(known, _)| known == name).map_or(0, |(_, total)| *total);
        let (of_replicas, of_tasks) =
            (occupied.get(name).copied().unwrap_or(0), held.get(name.as_str()).copied().unwrap_or(0));
        if of_replicas.saturating_add(of_tasks).saturating_add(*amount) > total {
            return Some(format!(
                "the resource `{name}`: one more replica needs {amount}, and of {total} replicas have {of_replicas} and tasks {of_tasks}\n\
                 (hint: it is tried again every second; `tracer list tasks --state running` shows what holds it)"
            ));
        }
    }
    None
}
