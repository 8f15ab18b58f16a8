//! Services whose processes have outlived the head: the next one goes on with what there is.
//!
//! What the head before this one knew is as old as its last turn. What decides is what can be seen: which processes there are, what the table says
//! of the replicas, what a proxy says it has, and the journal. Whatever may have been said by a head that is gone, or to it, is said again.

use std::collections::{BTreeMap, BTreeSet};

use super::effects::ServiceEffects;
use super::inputs::{on_exit, on_shut_down};
use super::replica::Stage;
use super::rollout::{READY_LIMIT_NS, longest_drain};
use super::service::{Phase, ProxyStage, Served, Services, Version, after, deployments};
use super::turn::begin_end;
use crate::state::Now;
use tracer_core::task::WorkerId;
use tracer_ipc::serving::{ProxyOrder, ReplicaOrder};

/// Time within which a proxy must say what it has, in nanoseconds.
const TELL_LIMIT_NS: u64 = 5_000_000_000;

/// Services and processes of a head that has died.
#[derive(Debug, Default)]
pub struct Left {
    /// The services, as it knew them.
    pub services: BTreeMap<String, Served>,
    /// The processes of them that were not reaped.
    pub processes: BTreeSet<WorkerId>,
}

/// Goes on with what a head has left that has died. Versions of the journal whose services it has not left are returned: they begin anew.
pub fn take_over(
    services: &mut Services,
    effects: &mut impl ServiceEffects,
    left: Left,
    journaled: Vec<Version>,
    now: Now,
) -> Vec<Version> {
    services.has_news = true;
    // Higher than that of any order that a process still answers.
    services.last_order = now.monotonic_ns;
    let served_in_journal: BTreeSet<String> = journaled.iter().map(|version| version.service.name.clone()).collect();
    let names: Vec<String> = left.services.keys().cloned().collect();
    let mut known = BTreeSet::new();
    for (name, served) in left.services {
        for process in served.replicas.keys().chain(served.proxies.keys()) {
            known.insert(*process);
            services.by_process.insert(*process, name.clone());
        }
        services.all.insert(name, served);
    }
    // One that was started and not noted any more. Nobody calls it.
    left.processes.difference(&known).for_each(|process| effects.kill(*process));
    // One whose end was heard of and not noted any more.
    for process in known.difference(&left.processes) {
        on_exit(services, effects, *process, "ended when its head did", now);
    }
    for name in &names {
        resume(services, effects, name, !served_in_journal.contains(name), now);
    }
    journaled.into_iter().filter(|version| !services.all.contains_key(&version.service.name)).collect()
}

fn resume(services: &mut Services, effects: &mut impl ServiceEffects, name: &str, is_not_in_journal: bool, now: Now) {
    let Some(served) = services.all.get_mut(name) else { return };
    for (id, replica) in &mut served.replicas {
        replica.take_over(effects.state_in_table(name, replica.place), now.monotonic_ns);
        match replica.stage() {
            Stage::Starting => effects.order_replica(*id, ReplicaOrder::Tell),
            Stage::Draining => {
                let timeout = replica.deployment.drain_timeout;
                effects.order_replica(*id, ReplicaOrder::Drain { timeout });
                replica.kill_at_ns.get_or_insert(after(now, timeout).saturating_add(TELL_LIMIT_NS));
            }
            Stage::Ready | Stage::Serving | Stage::Gone => {}
        }
    }
    let drain = served.serving.as_ref().map(|serving| longest_drain(&serving.service)).unwrap_or_default();
    let has_heir = served.ending.is_none();
    for (id, proxy) in &mut served.proxies {
        if proxy.stage == ProxyStage::Draining {
            effects.order_proxy(*id, ProxyOrder::Drain { timeout: drain, has_heir });
            continue;
        }
        proxy.is_silent = true;
        proxy.kill_at_ns = Some(now.monotonic_ns + TELL_LIMIT_NS);
        effects.order_proxy(*id, ProxyOrder::Tell);
    }
    if let Some(rollout) = &mut served.rollout {
        // Each of its steps finds out what is done already.
        (rollout.phase, rollout.revision) = (Phase::Starting, 0);
        let start = deployments(&rollout.version.service).map(|(_, deployment)| deployment.start_timeout).max();
        rollout.until_ns = after(now, start.unwrap_or_default()).saturating_add(READY_LIMIT_NS);
    }
    if served.owner.is_some() {
        // Its connection has ended with the head. One that is not there any more has ended already.
        let _ = on_shut_down(services, effects, name, now);
    } else if is_not_in_journal && served.serving.is_some() && served.ending.is_none() {
        // It was to be shut down.
        begin_end(served, effects, (drain, true), now);
    }
}
