//! Services as a whole: what is told, what is done, and what holds whatever happens.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use proptest::prelude::*;
use tracer_core::task::WorkerId;
use tracer_ipc::protocol::{ServiceNews, ServiceRefusal, ServiceRefusalCode, ServiceReport, ServiceState};
use tracer_ipc::replica_table::ReplicaState;
use tracer_ipc::serving::*;

use super::*;
use crate::state::{DriverId, Now};

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000);

/// Steps that were done, and those that would be.
#[derive(Default)]
struct World {
    next: u64,
    now: u64,
    /// Processes that run: their place, once they are replicas.
    replicas: BTreeMap<WorkerId, String>,
    proxies: BTreeSet<WorkerId>,
    killed: BTreeSet<WorkerId>,
    drained: BTreeSet<WorkerId>,
    /// The table: which places take requests, with their deployment and limit.
    ready: BTreeMap<u32, (u32, u32)>,
    lanes: Vec<(WorkerId, u32)>,
    configured: Vec<(WorkerId, u64)>,
    /// Answers of proxies, whether or not they have given them.
    lanes_of_proxies: BTreeSet<(WorkerId, u32)>,
    settings_of_proxies: BTreeMap<WorkerId, u64>,
    orders: Vec<(WorkerId, u64)>,
    health: Vec<(WorkerId, u64)>,
    gone: Vec<(WorkerId, u32)>,
    journal: Vec<String>,
    listens: BTreeSet<SocketAddr>,
    refuses_start: bool,
    /// Requests that are in flight, by place, and that wait, by deployment.
    in_flight: BTreeMap<u32, u64>,
    waiting: BTreeMap<u32, u64>,
    watched: BTreeSet<u32>,
    refuses_address: bool,
}

impl ServiceEffects for World {
    fn next_process(&mut self) -> WorkerId {
        self.next += 1;
        WorkerId(self.next)
    }
    fn open_service(&mut self, _: &str) -> Result<(), ServiceRefusal> {
        Ok(())
    }
    fn close_service(&mut self, _: &str) {
        self.listens.clear();
    }
    fn listen(&mut self, _: &str, address: SocketAddr) -> Result<SocketAddr, ServiceRefusal> {
        if self.refuses_address {
            return Err(ServiceRefusal { code: ServiceRefusalCode::Address, message: "in use".into() });
        }
        self.listens.insert(address);
        Ok(address)
    }
    fn listen_only(&mut self, _: &str, address: SocketAddr) {
        self.listens.retain(|open| *open == address);
    }
    fn start_replica(&mut self, process: WorkerId, start: &ReplicaStart<'_>) -> Result<u32, String> {
        if self.refuses_start {
            return Err("no memory".into());
        }
        self.replicas.insert(process, start.name.into());
        Ok(process.0 as u32)
    }
    fn start_proxy(&mut self, process: WorkerId, start: &ProxyStart<'_>) -> Result<u32, String> {
        assert!(self.listens.contains(&start.service.http.address), "nobody listens there");
        self.proxies.insert(process);
        Ok(process.0 as u32)
    }
    fn give_lanes(&mut self, proxy: WorkerId, _: WorkerId, place: u32, _: &str) {
        self.lanes.push((proxy, place));
        self.lanes_of_proxies.insert((proxy, place));
    }
    fn order_proxy(&mut self, proxy: WorkerId, order: ProxyOrder) {
        match order {
            ProxyOrder::Drain { .. } => drop(self.drained.insert(proxy)),
            ProxyOrder::ReplicaGone { replica } => self.gone.push((proxy, replica)),
            _ => {}
        }
    }
    fn configure_proxy(&mut self, proxy: WorkerId, settings: &ProxySettings) {
        self.configured.push((proxy, settings.revision));
        self.settings_of_proxies.insert(proxy, settings.revision);
    }
    fn order_replica(&mut self, replica: WorkerId, order: ReplicaOrder) {
        match order {
            ReplicaOrder::Drain { .. } => drop(self.drained.insert(replica)),
            ReplicaOrder::Health { order } => self.health.push((replica, order)),
            _ => {}
        }
    }
    fn configure_replica(&mut self, replica: WorkerId, order: u64, _: &Deployment) {
        self.orders.push((replica, order));
    }
    fn kill(&mut self, process: WorkerId) {
        self.killed.insert(process);
    }
    fn publish(&mut self, _: &str, place: u32, index: u32, limit: u32) {
        let before = self.ready.insert(place, (index, limit));
        assert!(before.is_none(), "place {place} is another one's");
    }
    fn set_draining(&mut self, _: &str, place: u32) {
        self.ready.remove(&place);
    }
    fn set_gone(&mut self, _: &str, place: u32) {
        self.ready.remove(&place);
    }
    fn set_limit(&mut self, _: &str, place: u32, limit: u32) {
        self.ready.entry(place).and_modify(|entry| entry.1 = limit);
    }
    fn set_waiting_limit(&mut self, _: &str, _: u32, _: u32) {}
    fn state_in_table(&self, _: &str, place: u32) -> ReplicaState {
        if self.ready.contains_key(&place) { ReplicaState::Ready } else { ReplicaState::Gone }
    }
    fn in_flight(&self, _: &str, place: u32) -> u64 {
        self.in_flight.get(&place).copied().unwrap_or(0)
    }
    fn waiting(&self, _: &str, index: u32) -> u64 {
        self.waiting.get(&index).copied().unwrap_or(0)
    }
    fn watch_load(&mut self, _: &str, index: u32) {
        self.watched.insert(index);
    }
    fn journal_deployed(&mut self, version: u64, _: u64, service: &Service) {
        self.journal.push(format!("{} {version}", service.name));
    }
    fn journal_shut_down(&mut self, service: &str, _: u64) {
        self.journal.push(format!("{service} ends"));
    }
    fn log(&mut self, _: String) {}
}

/// Services with the world that they are in.
#[derive(Default)]
struct Fixture {
    services: Services,
    world: World,
}

fn service(deployments: &[(&str, &str, u32)]) -> Service {
    let deployment = |(name, import_path, num_replicas): &(&str, &str, u32)| Deployment {
        name: (*name).into(),
        num_replicas: *num_replicas,
        ..Deployment::new(import_path)
    };
    let deployments = deployments.iter().map(deployment).collect();
    let application =
        Application { name: "app".into(), route_prefix: "/".into(), hosts: Vec::new(), ingress: 0, deployments };
    Service {
        name: "shop".into(),
        http: Http {
            address: ADDRESS,
            is_public: false,
            trusted_proxies: Vec::new(),
            hosts: Vec::new(),
            request_timeout: None,
            max_body: None,
            tls: None,
        },
        tracing: ServiceTracing { is_enabled: true, sampling_ratio: None, exporters: Vec::new(), detail: Detail::Hops },
        applications: vec![application],
    }
}

impl Fixture {
    fn now(&self) -> Now {
        Now { monotonic_ns: self.world.now, unix_nano: self.world.now }
    }

    fn wait(&mut self, time: Duration) {
        self.world.now += time.as_nanos() as u64;
        self.turn();
    }

    fn turn(&mut self) -> Option<u64> {
        let now = self.now();
        let next = turn(&mut self.services, &mut self.world, now);
        self.check();
        next
    }

    fn try_deploy(&mut self, service: Service) -> Result<u64, ServiceRefusal> {
        let now = self.now();
        let accepted = on_deploy(&mut self.services, &mut self.world, service, (false, None), now);
        self.turn();
        accepted.map(|accepted| accepted.version)
    }

    fn deploy(&mut self, service: Service) -> u64 {
        self.try_deploy(service).expect("it is taken")
    }

    fn says(&mut self, replica: WorkerId, report: ReplicaReport) {
        let now = self.now();
        on_replica_report(&mut self.services, &mut self.world, replica, report, now);
        self.turn();
    }

    fn proxy_says(&mut self, proxy: WorkerId, report: ProxyReport) {
        let now = self.now();
        on_proxy_report(&mut self.services, &mut self.world, proxy, report, now);
        self.turn();
    }

    fn made(&mut self, replica: WorkerId) {
        let (hook_failure, module_version) = (None, None);
        self.says(
            replica,
            ReplicaReport::Ready { tracing: "none".into(), hook_failure, module_version, is_configurable: true },
        );
    }

    fn exits(&mut self, process: WorkerId, cause: &str) {
        self.world.replicas.remove(&process);
        self.world.proxies.remove(&process);
        self.world.killed.remove(&process);
        self.world.drained.remove(&process);
        let now = self.now();
        on_exit(&mut self.services, &mut self.world, process, cause, now);
        self.turn();
    }

    /// Every process does what it was told, until nothing is left to do. Replicas that make no handler are left out.
    fn settle(&mut self, is_made: impl Fn(WorkerId) -> bool) {
        for _ in 0..1000 {
            if !self.step(&is_made) {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn step(&mut self, is_made: &impl Fn(WorkerId) -> bool) -> bool {
        let to_end: Vec<_> = self.world.killed.iter().chain(&self.world.drained).copied().collect();
        if let Some(process) = to_end.first() {
            self.exits(*process, "exited with code 0");
            return true;
        }
        let starting: Vec<WorkerId> = self.all_replicas(Stage::Starting);
        if let Some(replica) = starting.into_iter().find(|replica| is_made(*replica)) {
            self.made(replica);
            return true;
        }
        let served = self.services.all.get("shop");
        let starting = served.and_then(|served| {
            let mut starting = served.proxies.iter().filter(|(_, proxy)| proxy.state() == "starting");
            starting.next().map(|(id, _)| *id)
        });
        if let Some(proxy) = starting {
            self.proxy_says(proxy, ProxyReport::Ready { tracing: "none".into(), hook_failure: None });
            return true;
        }
        if let Some((proxy, replica)) = self.world.lanes.pop() {
            self.proxy_says(proxy, ProxyReport::LanesTaken { replica });
            return true;
        }
        if let Some((proxy, revision)) = self.world.configured.pop() {
            self.proxy_says(proxy, ProxyReport::Configured { revision, failure: None });
            return true;
        }
        if let Some((replica, order)) = self.world.orders.pop() {
            self.says(replica, ReplicaReport::Answered { order, failure: None });
            return true;
        }
        if let Some((replica, order)) = self.trial_of_health() {
            self.says(replica, ReplicaReport::Answered { order, failure: None });
            return true;
        }
        false
    }

    /// The question to a replica whether it is well with the settings that it has just taken, if it was asked.
    fn trial_of_health(&mut self) -> Option<(WorkerId, u64)> {
        let replicas = self.services.all.get("shop").into_iter().flat_map(|served| &served.replicas);
        let mut trials =
            replicas.filter_map(|(id, replica)| Some((*id, replica.trial.filter(|of| of.asks_health)?.order)));
        let trial = trials.find(|trial| self.world.health.contains(trial))?;
        self.world.health.retain(|asked| *asked != trial);
        Some(trial)
    }

    /// The head dies, with all that its processes have said and it has not heard, and another one goes on.
    fn head_dies(&mut self) {
        let known = std::mem::take(&mut self.services).all;
        let world = &mut self.world;
        (world.lanes, world.configured, world.orders) = Default::default();
        let processes = world.replicas.keys().chain(&world.proxies).copied().collect();
        let journaled = world.journal.last().map(|_| Version {
            number: world.journal.len() as u64,
            deployed_unix_nano: 0,
            service: service(&[]),
            failure: None,
        });
        let left = Left { services: known, processes };
        let now = self.now();
        let anew = take_over(&mut self.services, &mut self.world, left, journaled.into_iter().collect(), now);
        assert!(anew.is_empty(), "the service is there");
        self.turn();
        for proxy in self.world.proxies.clone() {
            let lanes = self.world.lanes_of_proxies.iter().filter(|(of, _)| *of == proxy).map(|(_, place)| *place);
            let (tracing, hook_failure) = ("none".into(), None);
            let revision = self.world.settings_of_proxies.get(&proxy).copied().unwrap_or(0);
            let told = ProxyReport::Told { tracing, hook_failure, revision, lanes: lanes.collect() };
            self.proxy_says(proxy, told);
        }
    }

    fn all_replicas(&self, stage: Stage) -> Vec<WorkerId> {
        let served = self.services.all.get("shop");
        let replicas = served.into_iter().flat_map(|served| &served.replicas);
        replicas.filter(|(_, replica)| replica.stage() == stage).map(|(id, _)| *id).collect()
    }

    fn last_news(&self) -> &ServiceNews {
        &self.services.all["shop"].events.back().expect("something has happened").what
    }

    fn report(&self) -> ServiceReport {
        list_services(&self.services, &self.world, self.now()).remove(0)
    }

    fn state(&self) -> ServiceState {
        self.report().state
    }

    /// Asserts the invariants, after each step.
    fn check(&self) {
        let served = self.services.all.get("shop");
        let known: BTreeSet<WorkerId> = served.into_iter().flat_map(|served| served.replicas.keys().copied()).collect();
        let running: BTreeSet<WorkerId> = self.world.replicas.keys().copied().collect();
        assert_eq!(known, running, "each process of a replica is known, and no other");
        let Some(served) = served else { return };
        let in_table: BTreeSet<u32> = served
            .replicas
            .values()
            .filter(|replica| replica.stage() == Stage::Serving)
            .map(|replica| replica.place)
            .collect();
        assert!(self.world.ready.keys().all(|place| in_table.contains(place)), "only what serves is in the table");
        let places: BTreeSet<u32> = served.replicas.values().map(|replica| replica.place).collect();
        assert_eq!(places.len(), served.replicas.len(), "no two have one place");
    }
}

#[test]
fn a_service_is_served_when_its_replicas_are_made_and_its_proxy_has_lanes_to_them() {
    let mut fixture = Fixture::default();
    assert_eq!(fixture.deploy(service(&[("app", "shop:app", 2)])), 1);
    assert_eq!(fixture.state(), ServiceState::Starting);
    fixture.settle(|replica| replica != WorkerId(2));
    assert!(fixture.world.ready.is_empty(), "nothing is served before all of it is ready");
    assert!(fixture.world.journal.is_empty());
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 2);
    assert_eq!(*fixture.last_news(), ServiceNews::RolledOut { version: 1 });
    assert_eq!(
        (fixture.state(), fixture.world.journal.as_slice()),
        (ServiceState::Running, &["shop 1".to_owned()][..])
    );
}

#[test]
fn what_needs_a_new_process_is_rolled_and_what_does_not_is_changed_in_place() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 2), ("Model", "models:Model", 1)]));
    fixture.settle(|_| true);
    let first: BTreeSet<_> = fixture.world.replicas.keys().copied().collect();
    let mut next = service(&[("app", "shop:app", 2), ("Model", "models:Model", 1)]);
    next.applications[0].deployments[0].max_ongoing_requests = Some(7);
    next.applications[0].deployments[0].user_config = Some(1.into());
    next.applications[0].deployments[1].env.insert("MODEL".into(), "8".into());
    next.applications[0].deployments[1].authors_max_ongoing_requests = Some(64);
    assert_eq!(fixture.deploy(next), 2);
    assert_eq!(fixture.state(), ServiceState::RollingOut);
    fixture.settle(|_| true);
    let second: BTreeSet<_> = fixture.world.replicas.keys().copied().collect();
    assert_eq!(first.intersection(&second).count(), 2, "those of `app` stay, that of `Model` is another one");
    assert_eq!(second.len(), 3);
    let limits: Vec<u32> = fixture.world.ready.values().map(|(_, limit)| *limit).collect();
    assert_eq!(limits.iter().filter(|limit| **limit == 7).count(), 2, "{limits:?}");
    assert!(limits.contains(&64), "{limits:?}");
    let served = &fixture.services.all["shop"];
    assert!(
        served
            .replicas
            .values()
            .filter(|replica| replica.deployment.name == "app")
            .all(|replica| { replica.deployment.user_config == Some(1.into()) && replica.version == 1 })
    );
}

#[test]
fn a_rollout_that_fails_leaves_what_was_served_and_says_which_replica_said_what() {
    for way in 0..4 {
        let mut fixture = Fixture::default();
        fixture.deploy(service(&[("app", "shop:app", 2)]));
        fixture.settle(|_| true);
        let before = (fixture.world.replicas.clone(), fixture.world.ready.clone());
        fixture.deploy(service(&[("app", "shop:other", 2)]));
        let new = fixture.all_replicas(Stage::Starting);
        let expected = match way {
            0 => {
                fixture.says(new[0], ReplicaReport::Failed { reason: "no such file `/models/7`".into() });
                fixture.exits(new[0], "exited with code 1");
                "replica app#3: no such file `/models/7`"
            }
            1 => {
                fixture.exits(new[1], "was killed by SIGKILL (signal 9)");
                "replica app#4: it was killed by SIGKILL (signal 9)"
            }
            2 => {
                fixture.made(new[0]);
                fixture.wait(Duration::from_secs(301));
                "replica app#4 is not ready after 300 s"
            }
            _ => {
                fixture.made(new[0]);
                fixture.made(new[1]);
                for (proxy, replica) in std::mem::take(&mut fixture.world.lanes) {
                    fixture.proxy_says(proxy, ProxyReport::LanesTaken { replica });
                }
                let (proxy, revision) = fixture.world.configured.pop().expect("it is given the routes");
                let failure = Some("two routes are the same".to_owned());
                fixture.proxy_says(proxy, ProxyReport::Configured { revision, failure });
                "the proxy does not take the routes: two routes are the same"
            }
        };
        let failed = ServiceNews::RolloutFailed { version: 2, reason: expected.into() };
        assert!(
            fixture.services.all["shop"].events.iter().any(|event| event.what == failed),
            "{way}: {:?}",
            fixture.services.all["shop"].events
        );
        fixture.settle(|_| true);
        assert_eq!((&fixture.world.replicas, &fixture.world.ready), (&before.0, &before.1), "{way}");
        assert_eq!(fixture.state(), ServiceState::Running);
        assert_eq!(fixture.world.journal, ["shop 1"]);
        let versions = list_versions(&fixture.services.all["shop"]);
        assert_eq!(
            versions.iter().map(|version| version.failure.as_deref()).collect::<Vec<_>>(),
            [None, Some(expected)]
        );
        // The next one is not kept from being tried.
        assert_eq!(fixture.deploy(service(&[("app", "shop:third", 2)])), 3);
        fixture.settle(|_| true);
        assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 3 });
    }
}

impl Fixture {
    fn last_news_of_rollouts(&self) -> &ServiceNews {
        let events = self.services.all["shop"].events.iter().rev();
        events.map(|event| &event.what).find(|what| what.is_final()).expect("there was one")
    }
}

#[test]
fn a_first_version_that_fails_leaves_its_failure_alone() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 2)]));
    fixture.exits(WorkerId(1), "exited with code 1");
    assert!(matches!(fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { .. }));
    fixture.settle(|_| false);
    assert!(fixture.world.replicas.is_empty() && fixture.world.proxies.is_empty() && fixture.world.listens.is_empty());
    assert_eq!(fixture.state(), ServiceState::Failed);
    let failure = "replica app#1: it exited with code 1".to_owned();
    assert_eq!(fixture.report().last_failure, Some(failure));
    fixture.world.refuses_address = true;
    let refused = fixture.try_deploy(service(&[("app", "shop:app", 1)])).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::Address);
    fixture.world = World { next: 100, refuses_start: true, ..World::default() };
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    let reason = "replica app#3: it could not be started: no memory".to_owned();
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { version: 2, reason });
    let now = fixture.now();
    on_shut_down(&mut fixture.services, &mut fixture.world, "shop", now).expect("it is there");
    fixture.turn();
    fixture.settle(|_| true);
    assert!(list_services(&fixture.services, &fixture.world, fixture.now()).is_empty());
}

#[test]
fn a_first_version_that_fails_leaves_nothing_if_a_command_was_to_own_it() {
    let mut fixture = Fixture::default();
    let now = fixture.now();
    let owned = (false, Some(DriverId(7)));
    on_deploy(&mut fixture.services, &mut fixture.world, service(&[("app", "shop:app", 1)]), owned, now)
        .expect("nothing speaks against it");
    fixture.exits(WorkerId(1), "exited with code 1");
    assert!(matches!(fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { .. }));
    fixture.settle(|_| false);
    assert!(list_services(&fixture.services, &fixture.world, fixture.now()).is_empty());
}

impl Fixture {
    /// Lets time pass until there is a replica again, and returns how much, in milliseconds.
    fn wait_for_replica(&mut self) -> u64 {
        let before = self.world.now;
        while self.world.replicas.is_empty() {
            let next = self.turn().expect("it is started again");
            self.world.now = self.world.now.max(next);
            self.turn();
        }
        (self.world.now - before) / 1_000_000
    }
}

#[test]
fn a_replica_that_dies_is_replaced_and_one_that_dies_again_and_again_waits() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let replica = *fixture.world.replicas.keys().next().expect("there is one");
        fixture.exits(replica, "was killed by SIGKILL (signal 9)");
        assert_eq!(fixture.state(), ServiceState::Degraded);
        if pauses.len() == 1 {
            let warning = "replicas die one after the other, the next is started in 500 ms; the last was app#2: it was killed by SIGKILL (signal 9)";
            assert_eq!(fixture.report().warnings, [warning]);
        }
        pauses.push(fixture.wait_for_replica());
        fixture.settle(|_| true);
        assert_eq!(fixture.world.ready.len(), 1);
    }
    assert_eq!(pauses[..5], [0, 500, 1000, 2000, 2000], "one that has served is soon there again");
    assert_eq!(pauses.iter().max(), Some(&2_000));
    // One that has served for longer than the last pause is forgiven all of them.
    let replica = *fixture.world.replicas.keys().next().expect("there is one");
    fixture.wait(Duration::from_millis(2_001));
    fixture.exits(replica, "was killed by SIGKILL (signal 9)");
    assert_eq!(fixture.world.replicas.len(), 1, "the next one is there at once");
}

#[test]
fn a_replica_that_is_never_ready_waits_longer_and_longer() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        let replica = *fixture.world.replicas.keys().next().expect("there is one");
        fixture.exits(replica, "exited with code 1");
        pauses.push(fixture.wait_for_replica());
        // It lives for a while, and makes no handler.
        fixture.wait(Duration::from_secs(5));
    }
    assert_eq!(pauses[..6], [0, 500, 1000, 2000, 4000, 8000]);
    assert_eq!(pauses.iter().max(), Some(&30_000));
}

/// Returns the service with a deployment whose number of replicas follows its load.
fn scaled(min: u32, max: u32) -> Service {
    let mut spec = service(&[("app", "shop:app", 1)]);
    spec.applications[0].deployments[0].autoscaling = Some(Autoscaling { min, ..Autoscaling::up_to(max) });
    spec
}

impl Fixture {
    /// Lets time pass, in which everything that is due is done.
    fn pass(&mut self, time: Duration) {
        let until = self.world.now + time.as_nanos() as u64;
        while let Some(next) = self.turn().filter(|next| *next <= until) {
            self.world.now = self.world.now.max(next);
            // Health is asked for, and well.
            self.turn();
            for (replica, order) in std::mem::take(&mut self.world.health) {
                self.says(replica, ReplicaReport::Answered { order, failure: None });
            }
            self.settle(|_| true);
        }
        self.world.now = self.world.now.max(until);
        self.turn();
        self.settle(|_| true);
    }

    /// Has so many requests in flight, evenly at all replicas.
    fn load(&mut self, requests: u64) {
        let places: Vec<u32> = self.world.ready.keys().copied().collect();
        let count = places.len() as u64;
        let share = |at: usize| requests / count + u64::from((at as u64) < requests % count);
        self.world.in_flight = places.iter().enumerate().map(|(at, place)| (*place, share(at))).collect();
        if requests > 0 && self.world.watched.remove(&0) {
            let now = self.now();
            on_wanted(&mut self.services, "shop", 0, now);
        }
        self.turn();
    }
}

#[test]
fn a_deployment_that_is_scaled_has_more_replicas_for_more_requests_and_those_that_go_end_what_they_have() {
    let mut fixture = Fixture::default();
    fixture.deploy(scaled(1, 3));
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 1);
    fixture.load(9);
    fixture.pass(Duration::from_secs(4));
    assert_eq!(fixture.world.ready.len(), 3);
    let row = fixture.report().deployments.remove(0);
    assert_eq!((row.num_replicas, row.ready, row.autoscaling), (3, 3, Some(Autoscaling::up_to(3))));
    let scaled = ServiceNews::Scaled { application: "app".into(), deployment: "app".into(), from: 1, to: 3 };
    assert!(fixture.services.all["shop"].events.iter().any(|event| event.what == scaled));
    // Two requests are left, at one replica: that one stays.
    let busy = *fixture.world.ready.keys().last().expect("it has some");
    fixture.world.in_flight = [(busy, 2)].into();
    fixture.pass(Duration::from_secs(65));
    assert_eq!(fixture.world.ready.keys().copied().collect::<Vec<_>>(), [busy]);
    assert_eq!(fixture.state(), ServiceState::Running);
    assert!(
        !fixture.services.all["shop"].events.iter().any(|event| matches!(event.what, ServiceNews::ReplicaLost { .. }))
    );
}

#[test]
fn without_requests_there_is_no_replica_nor_anything_to_do_and_the_first_request_starts_one() {
    let mut fixture = Fixture::default();
    fixture.deploy(scaled(0, 2));
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 1, "a deploy shows that its handler can be made");
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 1 });
    fixture.pass(Duration::from_secs(70));
    assert_eq!((fixture.world.ready.len(), fixture.world.replicas.len()), (0, 0));
    assert_eq!((fixture.turn(), fixture.state()), (None, ServiceState::Running), "nothing is due");
    assert!(fixture.world.watched.contains(&0));
    // A request comes, and waits.
    fixture.world.waiting.insert(0, 1);
    let proxy = *fixture.world.proxies.first().expect("it is there");
    fixture.proxy_says(proxy, ProxyReport::Wanted { deployment: 0 });
    assert_eq!(fixture.world.replicas.len(), 1, "it is started in the same turn");
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 1);
    fixture.world.waiting.clear();
    fixture.pass(Duration::from_secs(70));
    assert_eq!(fixture.world.replicas.len(), 0);
    // What is not watched, or not there, changes nothing.
    for deployment in [1, u32::MAX] {
        fixture.proxy_says(proxy, ProxyReport::Wanted { deployment });
    }
    assert_eq!(fixture.world.replicas.len(), 0);
    // Another version is tried with one replica too.
    let mut next = scaled(0, 2);
    next.applications[0].deployments[0].env.insert("MODEL".into(), "8".into());
    fixture.deploy(next.clone());
    assert_eq!(fixture.world.replicas.len(), 1);
    fixture.settle(|_| true);
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 2 });
    fixture.pass(Duration::from_secs(70));
    // And one that fails leaves none, and what was served.
    next.applications[0].deployments[0].env.insert("MODEL".into(), "9".into());
    fixture.deploy(next);
    let new = fixture.all_replicas(Stage::Starting)[0];
    fixture.exits(new, "exited with code 1");
    fixture.settle(|_| true);
    assert!(matches!(fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { version: 3, .. }));
    assert_eq!((fixture.world.replicas.len(), fixture.state()), (0, ServiceState::Running));
}

#[test]
fn requests_that_follow_each_other_wake_the_head_once() {
    let mut fixture = Fixture::default();
    fixture.deploy(scaled(1, 2));
    fixture.settle(|_| true);
    fixture.pass(Duration::from_secs(5));
    assert!(fixture.world.watched.remove(&0));
    let proxy = *fixture.world.proxies.first().expect("it is there");
    // The request has its answer before the head looks.
    fixture.proxy_says(proxy, ProxyReport::Wanted { deployment: 0 });
    assert!(!fixture.world.watched.contains(&0), "the next one is not told of");
    fixture.pass(Duration::from_millis(700));
    assert!(!fixture.world.watched.contains(&0));
    fixture.pass(Duration::from_secs(1));
    assert!(fixture.world.watched.contains(&0));
    assert!(
        fixture.turn().is_none_or(|next| next > fixture.world.now + 1_000_000_000),
        "and nothing is due but health"
    );
}

#[test]
fn a_rollout_under_load_begins_with_as_many_replicas_as_there_are() {
    let mut fixture = Fixture::default();
    fixture.deploy(scaled(1, 4));
    fixture.settle(|_| true);
    fixture.load(8);
    fixture.pass(Duration::from_secs(4));
    assert_eq!(fixture.world.ready.len(), 4);
    let mut next = scaled(1, 4);
    next.applications[0].deployments[0].env.insert("MODEL".into(), "8".into());
    fixture.deploy(next.clone());
    assert_eq!(fixture.all_replicas(Stage::Starting).len(), 4);
    fixture.settle(|_| true);
    assert_eq!((fixture.world.ready.len(), fixture.world.replicas.len()), (4, 4));
    let told =
        on_deploy(&mut fixture.services, &mut fixture.world, next, (true, None), Now { monotonic_ns: 0, unix_nano: 0 });
    assert_eq!(told.expect("it could be").steps, ["nothing: it is served as it is"]);
    // A fixed number takes its place, and goes again.
    fixture.deploy(service(&[("app", "shop:app", 2)]));
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 2);
    fixture.pass(Duration::from_secs(100));
    assert_eq!(fixture.world.ready.len(), 2);
}

#[test]
fn without_room_for_a_further_replica_it_is_said_what_is_short_and_tried_again() {
    let mut fixture = Fixture::default();
    fixture.services.resources = vec![("gpu".into(), 2)];
    let mut spec = scaled(1, 4);
    spec.applications[0].deployments[0].resources = vec![("gpu".into(), 1)];
    fixture.deploy(spec);
    fixture.settle(|_| true);
    fixture.services.set_held(vec![("gpu".into(), 1)]);
    fixture.load(8);
    fixture.pass(Duration::from_secs(4));
    let row = fixture.report().deployments.remove(0);
    assert_eq!((row.num_replicas, row.ready), (4, 1));
    let short = row.short.expect("it is said");
    assert!(
        short.starts_with("the resource `gpu`: one more replica needs 1, and of 2 replicas have 1 and tasks 1"),
        "{short}"
    );
    assert!(fixture.report().warnings[0].starts_with("deployment `app` has fewer replicas than it should have"));
    fixture.services.set_held(Vec::new());
    fixture.pass(Duration::from_secs(2));
    assert_eq!(fixture.world.ready.len(), 2, "there is one more");
    fixture.services.resources = vec![("gpu".into(), 8)];
    (fixture.services.room, fixture.services.others) = (Some(4), 1);
    fixture.pass(Duration::from_secs(2));
    assert_eq!(fixture.world.ready.len(), 3);
    let short = fixture.report().deployments.remove(0).short.expect("it is said");
    assert!(
        short.starts_with("processes: there are 3 replicas and 1 process of actors and tasks, and the head may have 4"),
        "{short}"
    );
    fixture.services.room = None;
    fixture.pass(Duration::from_secs(2));
    let row = fixture.report().deployments.remove(0);
    assert_eq!((row.ready, row.short), (4, None));
}

#[test]
fn a_replica_that_does_not_answer_is_killed_and_one_that_is_not_well_serves_until_another_one_does() {
    let mut fixture = Fixture::default();
    let mut spec = service(&[("app", "shop:app", 1)]);
    spec.applications[0].deployments[0].health_check_period = Duration::from_secs(2);
    fixture.deploy(spec);
    fixture.settle(|_| true);
    let first = fixture.all_replicas(Stage::Serving)[0];
    fixture.wait(Duration::from_secs(2));
    assert_eq!(fixture.world.health.len(), 1);
    fixture.wait(Duration::from_millis(4900));
    assert!(fixture.world.killed.is_empty());
    fixture.wait(Duration::from_millis(200));
    assert!(fixture.world.killed.contains(&first) && fixture.world.ready.is_empty(), "nobody calls it any more");
    fixture.settle(|_| true);
    let second = fixture.all_replicas(Stage::Serving)[0];
    for times in 1..=3 {
        fixture.wait(Duration::from_secs(2));
        let (asked, order) = fixture.world.health.pop().expect("it is asked");
        assert_eq!(asked, second);
        fixture.says(second, ReplicaReport::Answered { order, failure: Some("out of tokens".into()) });
        assert_eq!(fixture.all_replicas(Stage::Starting).len(), usize::from(times == 3), "its successor");
        assert_eq!((fixture.all_replicas(Stage::Serving), fixture.world.killed.len()), (vec![second], 0));
    }
    assert_eq!(fixture.state(), ServiceState::Degraded);
    assert!(fixture.report().warnings[0].ends_with("3 times in a row that it is not well: out of tokens"));
    fixture.settle(|_| true);
    assert!(!fixture.world.replicas.contains_key(&second), "it has drained");
    fixture.wait(Duration::from_secs(1));
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 1);
    let lost = fixture.services.all["shop"].events.iter().filter_map(|event| match &event.what {
        ServiceNews::ReplicaLost { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    let lost: Vec<_> = lost.collect();
    assert_eq!(
        lost,
        ["it did not say within 5 s whether it is well", "it said 3 times in a row that it is not well: out of tokens"]
    );
}

#[test]
fn a_proxy_that_dies_is_replaced_by_one_with_lanes_to_all_before_it_accepts() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 3)]));
    fixture.settle(|_| true);
    let proxy = *fixture.world.proxies.first().expect("there is one");
    fixture.exits(proxy, "was killed by SIGKILL (signal 9)");
    let next = *fixture.world.proxies.first().expect("there is another one");
    fixture.proxy_says(next, ProxyReport::Ready { tracing: "none".into(), hook_failure: None });
    assert_eq!((fixture.world.lanes.len(), fixture.world.configured.len()), (3, 0));
    let (lanes, last) = (std::mem::take(&mut fixture.world.lanes), 2);
    for (at, (proxy, replica)) in lanes.into_iter().enumerate() {
        assert_eq!((proxy, fixture.world.configured.len()), (next, 0));
        fixture.proxy_says(proxy, ProxyReport::LanesTaken { replica });
        assert_eq!(fixture.world.configured.len(), usize::from(at == last));
    }
    fixture.settle(|_| true);
    assert_eq!((fixture.world.ready.len(), fixture.state()), (3, ServiceState::Running), "the replicas are the same");
}

#[test]
fn another_address_is_listened_on_before_the_first_is_left() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    let (first, replica) = (*fixture.world.proxies.first().expect("there is one"), fixture.world.replicas.clone());
    let mut next = service(&[("app", "shop:app", 1)]);
    next.http.address.set_port(9000);
    fixture.deploy(next.clone());
    assert_eq!(fixture.world.listens.len(), 2);
    assert!(!fixture.world.drained.contains(&first));
    fixture.settle(|_| true);
    assert_eq!(fixture.world.listens, [next.http.address].into());
    assert!(!fixture.world.proxies.contains(&first) && fixture.world.replicas == replica);
}

#[test]
fn a_replica_that_does_not_take_settings_gets_back_those_that_it_had_and_serves_on() {
    let mut fixture = Fixture::default();
    let with = |config: u8| {
        let mut spec = service(&[("app", "shop:app", 2)]);
        spec.applications[0].deployments[0].user_config = Some(config.into());
        spec
    };
    fixture.deploy(with(1));
    fixture.settle(|_| true);
    let before = (fixture.world.replicas.clone(), fixture.world.ready.clone());
    fixture.deploy(with(2));
    let (declines, order) = fixture.world.orders.pop().expect("it is given them");
    fixture.says(declines, ReplicaReport::Answered { order, failure: Some("too cold".into()) });
    let reason = format!("replica {} does not take its `user_config`: too cold", before.0[&declines]);
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { version: 2, reason });
    fixture.settle(|_| true);
    assert_eq!((&fixture.world.replicas, &fixture.world.ready), (&before.0, &before.1));
    let replicas = fixture.services.all["shop"].replicas.values();
    assert!(replicas.into_iter().all(|replica| replica.deployment.user_config == Some(1.into())));
}

/// A service with so many replicas whose settings can be changed while they run.
fn configured(replicas: u32, config: u8) -> Service {
    let mut spec = service(&[("app", "shop:app", replicas)]);
    spec.applications[0].deployments[0].user_config = Some(config.into());
    spec.applications[0].deployments[0].health_check_period = Duration::from_secs(2);
    spec
}

#[test]
fn settings_are_tried_by_one_replica_after_the_other_and_each_is_to_be_well_with_them() {
    let mut fixture = Fixture::default();
    fixture.deploy(configured(2, 1));
    fixture.settle(|_| true);
    let before = (fixture.world.replicas.clone(), fixture.world.ready.clone());
    fixture.deploy(configured(2, 2));
    assert_eq!(fixture.world.orders.len(), 1, "the other one has its settings still");
    let (first, order) = fixture.world.orders.pop().expect("it is given them");
    fixture.says(first, ReplicaReport::Answered { order, failure: None });
    assert!(fixture.world.orders.is_empty(), "it is asked whether it is well first");
    let (asked, order) = fixture.trial_of_health().expect("it is asked");
    assert_eq!(asked, first);
    fixture.says(first, ReplicaReport::Answered { order, failure: None });
    let (second, order) = fixture.world.orders.pop().expect("it is given them");
    assert_ne!(second, first);
    fixture.says(second, ReplicaReport::Answered { order, failure: None });
    let (_, order) = fixture.trial_of_health().expect("it is asked");
    fixture.says(second, ReplicaReport::Answered { order, failure: Some("too hot".into()) });
    let reason = format!("replica {} is not well with its `user_config`: too hot", before.0[&second]);
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { version: 2, reason });
    assert_eq!(fixture.world.orders.len(), 2, "both get back what they had");
    fixture.settle(|_| true);
    assert_eq!((&fixture.world.replicas, &fixture.world.ready), (&before.0, &before.1));
    let replicas = fixture.services.all["shop"].replicas.values();
    assert!(replicas.into_iter().all(|replica| replica.deployment.user_config == Some(1.into())));
    fixture.deploy(configured(2, 3));
    fixture.settle(|_| true);
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 3 });
    assert_eq!((&fixture.world.replicas, &fixture.world.ready), (&before.0, &before.1));
}

#[test]
fn a_replica_that_refuses_what_it_had_or_says_nothing_is_replaced_and_never_killed() {
    for answers in [true, false] {
        let mut fixture = Fixture::default();
        fixture.deploy(configured(2, 1));
        fixture.settle(|_| true);
        let before = fixture.world.replicas.clone();
        fixture.deploy(configured(2, 2));
        let (first, order) = fixture.world.orders.pop().expect("it is given them");
        if answers {
            fixture.says(first, ReplicaReport::Answered { order, failure: Some("no".into()) });
            let (again, order) = fixture.world.orders.pop().expect("it is given those that it had");
            assert_eq!(again, first);
            fixture.says(first, ReplicaReport::Answered { order, failure: Some("nor these".into()) });
        } else {
            let limit = fixture.services.all["shop"].replicas[&first].deployment.start_timeout;
            fixture.world.now += limit.as_nanos() as u64;
            for (replica, order) in std::mem::take(&mut fixture.world.health) {
                fixture.says(replica, ReplicaReport::Answered { order, failure: None });
            }
            fixture.turn();
        }
        assert!(matches!(fixture.last_news_of_rollouts(), ServiceNews::RolloutFailed { version: 2, .. }));
        assert_eq!((fixture.world.ready.len(), fixture.world.killed.len()), (2, 0), "both serve");
        fixture.settle(|_| true);
        assert!(!fixture.world.replicas.contains_key(&first), "another one is in its place");
        assert_eq!((fixture.world.ready.len(), fixture.state()), (2, ServiceState::Running));
        assert_eq!(before.keys().filter(|id| fixture.world.replicas.contains_key(id)).count(), 1);
    }
}

#[test]
fn replicas_that_are_not_well_serve_until_others_do_and_go_one_by_one_where_there_is_no_room() {
    for room in [None, Some(4), Some(3)] {
        let mut fixture = Fixture::default();
        fixture.services.room = room;
        fixture.deploy(configured(3, 1));
        fixture.settle(|_| true);
        let before = fixture.world.replicas.clone();
        for _ in 0..3 {
            fixture.wait(Duration::from_secs(2));
            for (replica, order) in std::mem::take(&mut fixture.world.health) {
                fixture.says(replica, ReplicaReport::Answered { order, failure: Some("it is sick".into()) });
            }
        }
        let least = if room == Some(3) { 2 } else { 3 };
        for _ in 0..1000 {
            assert!(fixture.world.ready.len() >= least && fixture.world.killed.is_empty(), "room {room:?}");
            assert!(room.is_none_or(|room| fixture.world.replicas.len() <= room), "room {room:?}");
            if fixture.step(&|_| true) {
                continue;
            }
            if !before.keys().any(|id| fixture.world.replicas.contains_key(id)) {
                break;
            }
            // Each one that is lost soon after another has its successor after a pause.
            fixture.wait(Duration::from_millis(100));
        }
        assert_eq!((fixture.world.ready.len(), fixture.state()), (3, ServiceState::Running), "room {room:?}");
    }
}

#[test]
fn a_replica_that_joins_while_settings_change_has_them_before_it_serves() {
    let mut fixture = Fixture::default();
    fixture.deploy(configured(2, 1));
    fixture.settle(|_| true);
    let gone = fixture.all_replicas(Stage::Serving)[0];
    fixture.deploy(configured(2, 2));
    fixture.exits(gone, "was killed by SIGKILL (signal 9)");
    let late = fixture.all_replicas(Stage::Starting)[0];
    fixture.settle(|replica| replica != late);
    fixture.settle(|_| true);
    let served = &fixture.services.all["shop"];
    assert_eq!(served.serving.as_ref().map(|serving| serving.number), Some(2));
    assert!(served.replicas.values().all(|replica| replica.deployment.user_config == Some(2.into())));
    assert_eq!(fixture.world.ready.len(), 2);
}

#[test]
fn other_exporters_take_other_processes_and_another_ratio_another_proxy() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    let first = (fixture.world.proxies.clone(), fixture.world.replicas.clone());
    let mut next = service(&[("app", "shop:app", 1)]);
    next.tracing.detail = Detail::Request;
    fixture.deploy(next.clone());
    fixture.settle(|_| true);
    assert_eq!((&fixture.world.proxies, &fixture.world.replicas), (&first.0, &first.1));
    next.tracing.sampling_ratio = Some("0.5".parse().expect("it is one"));
    fixture.deploy(next.clone());
    fixture.settle(|_| true);
    assert!(fixture.world.proxies.is_disjoint(&first.0) && fixture.world.proxies.len() == 1);
    assert_eq!(fixture.world.replicas, first.1, "they follow the proxy's decision");
    next.tracing.exporters = vec!["mine:exporter".into()];
    fixture.deploy(next);
    fixture.settle(|_| true);
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 4 });
    assert!(fixture.world.proxies.is_disjoint(&first.0) && fixture.world.proxies.len() == 1);
    assert!(fixture.world.replicas.keys().all(|replica| !first.1.contains_key(replica)));
    assert_eq!(fixture.world.ready.len(), 1);
}

#[test]
fn a_version_is_rolled_out_once_no_proxy_of_another_one_accepts_connections() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    let old = *fixture.world.proxies.first().expect("there is one");
    let mut next = service(&[("app", "shop:app", 1)]);
    next.tracing.sampling_ratio = Some("0.5".parse().expect("it is one"));
    fixture.deploy(next);
    while fixture.services.all["shop"].serving.as_ref().is_some_and(|version| version.number == 1) {
        assert!(fixture.step(&|_| true), "it never comes to be served");
    }
    assert!(fixture.world.drained.contains(&old));
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 1 });
    fixture.proxy_says(old, ProxyReport::AcceptsNoMore);
    assert_eq!(*fixture.last_news_of_rollouts(), ServiceNews::RolledOut { version: 2 });
    assert!(fixture.world.proxies.contains(&old), "it has connections still");
}

#[test]
fn services_that_have_ended_do_not_add_up() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    for number in 0..turn::ENDED_LIMIT + 20 {
        fixture.world.now += 1;
        let now = fixture.now();
        let ended = fixture.services.all.entry(format!("shop{number}")).or_default();
        ended.notify(ServiceNews::ShutDown, now);
        fixture.services.has_news = true;
        fixture.turn();
    }
    assert_eq!(fixture.state(), ServiceState::Running);
    assert_eq!(fixture.services.all.len(), 1 + turn::ENDED_LIMIT);
    let last = &fixture.services.all[&format!("shop{}", turn::ENDED_LIMIT + 19)];
    assert_eq!(last.events.back().map(|event| &event.what), Some(&ServiceNews::ShutDown), "its follower hears of it");
    assert!(!fixture.services.all.contains_key("shop19"), "the oldest goes first");
}

#[test]
fn a_service_that_is_shut_down_ends_its_proxies_first_and_is_forgotten() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 2)]));
    fixture.settle(|_| true);
    let now = fixture.now();
    on_shut_down(&mut fixture.services, &mut fixture.world, "shop", now).expect("it is there");
    fixture.turn();
    assert_eq!((fixture.world.drained.len(), fixture.world.ready.len()), (1, 2), "replicas go on");
    let refused = fixture.try_deploy(service(&[("app", "shop:app", 1)])).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::Busy);
    fixture.settle(|_| true);
    assert_eq!(*fixture.last_news(), ServiceNews::ShutDown);
    assert!(fixture.services.are_at_rest() && fixture.world.listens.is_empty());
    assert_eq!(fixture.world.journal, ["shop 1", "shop ends"]);
    let refused = on_shut_down(&mut fixture.services, &mut fixture.world, "shop", now).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::UnknownService);
    assert!(list_versions(&fixture.services.all["shop"]).is_empty(), "nor is any version of it remembered");
    assert_eq!(fixture.deploy(service(&[("app", "shop:app", 1)])), 1);
    fixture.settle(|_| true);
    assert_eq!(fixture.world.ready.len(), 1);
}

#[test]
fn what_does_not_end_in_time_is_killed() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 1)]));
    fixture.settle(|_| true);
    let now = fixture.now();
    on_stop(&mut fixture.services, &mut fixture.world, Duration::from_secs(3), now);
    fixture.turn();
    assert!(fixture.world.killed.is_empty());
    fixture.wait(Duration::from_secs(4));
    assert_eq!(fixture.world.killed.len(), 2, "the proxy and the replica");
    fixture.settle(|_| true);
    assert!(fixture.services.are_at_rest());
    assert_eq!(fixture.world.journal, ["shop 1"], "the next head serves it again");
}

#[test]
fn a_head_serves_what_the_one_before_it_served() {
    let mut fixture = Fixture::default();
    let version = |number, import_path| Version {
        number,
        deployed_unix_nano: 7,
        service: service(&[("app", import_path, 2)]),
        failure: None,
    };
    on_restored(&mut fixture.services, version(1, "shop:app"));
    on_restored(&mut fixture.services, version(2, "shop:other"));
    let now = fixture.now();
    begin_restored(&mut fixture.services, &mut fixture.world, now);
    fixture.turn();
    fixture.settle(|_| true);
    assert_eq!((fixture.world.ready.len(), fixture.state()), (2, ServiceState::Running));
    assert!(fixture.world.journal.is_empty(), "it is there already");
    let now = fixture.now();
    let accepted = on_rollback(&mut fixture.services, &mut fixture.world, ("shop", None), now).expect("there is one");
    assert_eq!(accepted.version, 3);
    fixture.turn();
    fixture.settle(|_| true);
    let served = fixture.services.all["shop"].serving.as_ref().expect("it is served");
    assert_eq!((served.number, &*served.service.applications[0].deployments[0].import_path), (3, "shop:app"));
    let refused = on_rollback(&mut fixture.services, &mut fixture.world, ("shop", Some(9)), now).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::UnknownVersion);
}

#[test]
fn a_service_of_an_earlier_head_whose_address_is_taken_says_so_and_is_served_once_it_is_free() {
    let mut fixture = Fixture::default();
    let service = service(&[("app", "shop:app", 1)]);
    let version = Version { number: 4, deployed_unix_nano: 7, service: service.clone(), failure: None };
    on_restored(&mut fixture.services, version);
    fixture.world.refuses_address = true;
    let now = fixture.now();
    begin_restored(&mut fixture.services, &mut fixture.world, now);
    assert!(fixture.turn().is_some_and(|next| next > fixture.world.now), "it is tried again, later");
    let warnings = |fixture: &Fixture| fixture.report().warnings;
    assert_eq!(warnings(&fixture), ["it is not served, and tried again every second: in use"]);
    assert_eq!((fixture.state(), fixture.world.next), (ServiceState::Degraded, 0), "nothing was started");
    fixture.wait(Duration::from_secs(1));
    assert_eq!(fixture.world.next, 0);
    fixture.world.refuses_address = false;
    fixture.wait(Duration::from_secs(1));
    fixture.settle(|_| true);
    assert_eq!((fixture.state(), warnings(&fixture)), (ServiceState::Running, Vec::new()));
    assert_eq!(fixture.services.all["shop"].last_version(), 4);
    // One that is deployed at another address is served there.
    let mut fixture = Fixture::default();
    on_restored(
        &mut fixture.services,
        Version { number: 1, deployed_unix_nano: 7, service: service.clone(), failure: None },
    );
    fixture.world.refuses_address = true;
    begin_restored(&mut fixture.services, &mut fixture.world, now);
    fixture.turn();
    fixture.world.refuses_address = false;
    let address = SocketAddr::new(ADDRESS.ip(), 8001);
    fixture.deploy(Service { http: Http { address, ..service.http.clone() }, ..service });
    fixture.settle(|_| true);
    assert_eq!((fixture.state(), warnings(&fixture)), (ServiceState::Running, Vec::new()));
}

#[test]
fn a_service_ends_with_the_connection_that_it_is_bound_to() {
    let mut fixture = Fixture::default();
    let now = fixture.now();
    let owner = Some(DriverId(7));
    on_deploy(&mut fixture.services, &mut fixture.world, service(&[("app", "shop:app", 1)]), (false, owner), now)
        .expect("it is taken");
    fixture.turn();
    fixture.settle(|_| true);
    on_owner_gone(&mut fixture.services, &mut fixture.world, DriverId(8), now);
    fixture.turn();
    assert!(fixture.world.drained.is_empty());
    on_owner_gone(&mut fixture.services, &mut fixture.world, DriverId(7), now);
    fixture.turn();
    fixture.settle(|_| true);
    assert!(fixture.services.are_at_rest() && fixture.world.journal.is_empty(), "no other head serves it");
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 2), ("old", "shop:old", 1)]));
    fixture.settle(|_| true);
    let next = service(&[("app", "shop:app", 1), ("new", "shop:new", 2)]);
    let now = fixture.now();
    let told = on_deploy(&mut fixture.services, &mut fixture.world, next, (true, None), now).expect("it could be");
    assert_eq!(told.steps, ["start 2 replicas of `new` in application `app`", "then end `app#2`, `old#1`"]);
    assert_eq!((told.version, fixture.world.replicas.len()), (2, 3));
    let same = service(&[("app", "shop:app", 2), ("old", "shop:old", 1)]);
    let told = on_deploy(&mut fixture.services, &mut fixture.world, same, (true, None), now).expect("it could be");
    assert_eq!(told.steps, ["nothing: it is served as it is"]);
}

#[test]
fn more_processes_than_there_may_be_are_refused_before_anything_is_done() {
    let mut fixture = Fixture::default();
    (fixture.services.room, fixture.services.others) = (Some(5), 1);
    fixture.deploy(service(&[("app", "shop:app", 2)]));
    fixture.settle(|_| true);
    assert_eq!(fixture.services.replicas(), 2);
    let refused = fixture.try_deploy(service(&[("app", "shop:app", 5)])).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::Resources);
    let text = "service `shop` wants 3 new replicas beside 2 replicas and 1 process of actors and tasks, and the head may have 5 such processes";
    assert!(refused.message.starts_with(text), "{}", refused.message);
    // With old and new beside each other there is just enough.
    fixture.deploy(service(&[("app", "shop:other", 2)]));
    fixture.settle(|_| true);
    assert_eq!(fixture.services.replicas(), 2);
    fixture.services.room = Some(2);
    fixture.deploy(service(&[("app", "shop:other", 1)]));
    fixture.settle(|_| true);
    assert_eq!(fixture.services.replicas(), 1, "fewer need no room");
}

#[test]
fn a_service_may_have_a_thousand_deployments_and_more_are_refused() {
    let names: Vec<String> = (0..1025).map(|number| format!("app-{number}")).collect();
    let deployments: Vec<_> = names.iter().map(|name| (&**name, "shop:app", 1)).collect();
    let mut fixture = Fixture::default();
    let refused = fixture.try_deploy(service(&deployments)).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::TooLarge);
    assert_eq!(refused.message, "service `shop` has 1025 deployments, expected 1024 at most");
    fixture.deploy(service(&deployments[1..]));
    assert_eq!(fixture.services.replicas(), 1024);
}

#[test]
fn a_resource_that_there_is_not_enough_of_is_refused_before_anything_is_done() {
    let mut fixture = Fixture::default();
    fixture.services.resources = vec![("gpu".into(), 3)];
    let with = |name: &str, handler: &str, replicas| {
        let mut spec = service(&[("app", handler, replicas)]);
        spec.applications[0].deployments[0].resources = vec![(name.into(), 1)];
        spec
    };
    let refused = fixture.try_deploy(with("gpus", "shop:app", 1)).unwrap_err();
    assert_eq!(refused.code, ServiceRefusalCode::Resources);
    assert!(
        refused.message.contains("`gpus`, which the head does not have") && refused.message.contains("`gpu`"),
        "{}",
        refused.message
    );
    fixture.deploy(with("gpu", "shop:app", 2));
    fixture.settle(|_| true);
    assert_eq!(fixture.services.occupied().get("gpu"), Some(&2));
    let refused = fixture.try_deploy(with("gpu", "shop:other", 2)).unwrap_err();
    assert!(
        refused.message.contains("4 would be occupied") && refused.message.contains("the head has 3"),
        "{}",
        refused.message
    );
    assert_eq!(fixture.deploy(with("gpu", "shop:other", 1)), 2);
    fixture.settle(|_| true);
    assert_eq!(fixture.services.occupied().get("gpu"), Some(&1));
}

/// Something that may happen.
#[derive(Clone, Debug)]
enum Step {
    /// A version with so many replicas of a handler of this number.
    Deploy(u8, u8, u8),
    /// Processes do what they were told, so many steps.
    GoOn(u8),
    /// A process dies, whichever it is.
    Dies(u8),
    /// A replica says that it failed.
    Fails(u8),
    /// A replica does not take what it was configured with.
    Declines,
    /// A replica has taken it, and is not well with it.
    IsNotWell,
    /// All that are asked whether they are well say no, for so many times.
    AreNotWell(u8),
    Waits(u16),
    ShutDown,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u8..4, 0u8..3, 0u8..3).prop_map(|(count, handler, config)| Step::Deploy(count, handler, config)),
        12 => (1u8..12).prop_map(Step::GoOn),
        3 => any::<u8>().prop_map(Step::Dies),
        1 => any::<u8>().prop_map(Step::Fails),
        1 => Just(Step::Declines),
        1 => Just(Step::IsNotWell),
        1 => (1u8..5).prop_map(Step::AreNotWell),
        2 => (0u16..20_000).prop_map(Step::Waits),
        1 => Just(Step::ShutDown),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn whatever_happens_nothing_is_leaked_and_a_rollout_takes_nothing_away(steps in prop::collection::vec(step(), 1..60)) {
        let mut fixture = Fixture::default();
        for step in steps {
            let before = (fixture.world.ready.len(), fixture.services.all.get("shop").and_then(|served| {
                served.rollout.as_ref().map(|rollout| (rollout.version.number, served.serving.as_ref().map(|version| version.number)))
            }));
            let mut is_loss = false;
            match step {
                Step::Deploy(count, handler, config) => {
                    let mut spec = service(&[("app", &format!("shop:app{handler}"), count.into())]);
                    spec.applications[0].deployments[0].user_config = Some(config.into());
                    let _ = fixture.try_deploy(spec);
                }
                Step::GoOn(count) => {
                    is_loss = true;
                    for _ in 0..count {
                        let serving = |fixture: &Fixture| fixture.services.all.get("shop").and_then(|served| {
                            if served.ending.is_some() {
                                return None;
                            }
                            let wanted = served.serving.as_ref()?.service.applications[0].deployments[0].num_replicas;
                            Some((wanted as usize, served.rollout.is_some()))
                        });
                        let (at, ready) = (serving(&fixture), fixture.world.ready.len());
                        fixture.step(&|_| true);
                        // What processes do that are told to never takes a replica away that is wanted.
                        if let (Some((wanted, _)), Some((after, _))) = (at, serving(&fixture))
                            && fixture.services.all["shop"].events.back().is_none_or(|event| !matches!(event.what, ServiceNews::ReplicaLost { .. })) {
                            let least = ready.min(wanted).min(after);
                            prop_assert!(fixture.world.ready.len() >= least, "{} of {least} are ready", fixture.world.ready.len());
                        }
                    }
                }
                Step::Dies(which) => {
                    is_loss = true;
                    let all: Vec<_> = fixture.world.replicas.keys().chain(&fixture.world.proxies).copied().collect();
                    if !all.is_empty() {
                        fixture.exits(all[usize::from(which) % all.len()], "was killed by SIGKILL (signal 9)");
                    }
                }
                Step::Fails(which) => {
                    let all = fixture.all_replicas(Stage::Starting);
                    if !all.is_empty() {
                        let replica = all[usize::from(which) % all.len()];
                        // It ends by itself.
                        fixture.world.drained.insert(replica);
                        fixture.says(replica, ReplicaReport::Failed { reason: "no".into() });
                    }
                }
                Step::Declines => {
                    is_loss = true;
                    if let Some((replica, order)) = fixture.world.orders.pop() {
                        fixture.says(replica, ReplicaReport::Answered { order, failure: Some("no".into()) });
                    }
                }
                Step::IsNotWell => {
                    if let Some((replica, order)) = fixture.trial_of_health() {
                        fixture.says(replica, ReplicaReport::Answered { order, failure: Some("no".into()) });
                    }
                }
                Step::AreNotWell(times) => {
                    is_loss = true;
                    for _ in 0..times {
                        fixture.wait(Duration::from_secs(10));
                        for (replica, order) in std::mem::take(&mut fixture.world.health) {
                            fixture.says(replica, ReplicaReport::Answered { order, failure: Some("no".into()) });
                        }
                    }
                }
                Step::Waits(ms) => {
                    is_loss = true;
                    fixture.wait(Duration::from_millis(ms.into()));
                    for (replica, order) in std::mem::take(&mut fixture.world.health) {
                        fixture.says(replica, ReplicaReport::Answered { order, failure: None });
                    }
                }
                Step::ShutDown => {
                    let now = fixture.now();
                    let _ = on_shut_down(&mut fixture.services, &mut fixture.world, "shop", now);
                    is_loss = true;
                    fixture.turn();
                }
            }
            prop_assert!(is_loss || fixture.world.ready.len() >= before.0, "what is deployed takes nothing away at once");
        }
        // Left alone, it comes to what is wanted.
        for _ in 0..50 {
            fixture.settle(|_| true);
            fixture.wait(Duration::from_secs(31));
            for (replica, order) in std::mem::take(&mut fixture.world.health) {
                fixture.says(replica, ReplicaReport::Answered { order, failure: None });
            }
        }
        fixture.settle(|_| true);
        let Some(served) = fixture.services.all.get("shop") else { return Ok(()) };
        prop_assert!(served.rollout.is_none(), "a rollout ends");
        let wanted = served.serving.as_ref().map_or(0, |version| version.service.applications[0].deployments[0].num_replicas as usize);
        prop_assert_eq!((fixture.world.replicas.len(), fixture.world.ready.len()), (wanted, wanted));
        prop_assert_eq!(fixture.world.proxies.len(), usize::from(wanted > 0));
        let now = fixture.now();
        on_stop(&mut fixture.services, &mut fixture.world, Duration::from_secs(1), now);
        fixture.turn();
        fixture.settle(|_| true);
        prop_assert!(fixture.services.are_at_rest() && fixture.world.replicas.is_empty() && fixture.world.proxies.is_empty());
    }
}

#[test]
fn a_rollout_is_finished_by_the_next_head_whenever_the_one_before_it_dies() {
    for steps in 0..30 {
        let mut fixture = Fixture::default();
        fixture.deploy(service(&[("app", "shop:app", 2), ("Model", "models:Model", 1)]));
        fixture.settle(|_| true);
        let mut next = service(&[("app", "shop:app", 2), ("Model", "models:Model", 1)]);
        next.applications[0].deployments[0].env.insert("COLOUR".into(), "blue".into());
        next.applications[0].deployments[1].user_config = Some(1.into());
        fixture.deploy(next);
        let taken = (0..steps).take_while(|_| fixture.step(&|_| true)).count();
        fixture.head_dies();
        fixture.settle(|_| true);
        let served = &fixture.services.all["shop"];
        assert_eq!(served.serving.as_ref().map(|serving| serving.number), Some(2), "after {taken} steps");
        assert!(served.rollout.is_none() && served.ending.is_none(), "after {taken} steps");
        assert_eq!((fixture.world.ready.len(), fixture.state()), (3, ServiceState::Running), "after {taken} steps");
        let old = served.replicas.values().filter(|replica| replica.deployment.env.is_empty());
        assert_eq!(old.count(), 1, "after {taken} steps: only the one that needed no new process");
    }
}

#[test]
fn a_head_ends_processes_that_it_does_not_know_and_replaces_those_that_are_gone() {
    let mut fixture = Fixture::default();
    fixture.deploy(service(&[("app", "shop:app", 2)]));
    fixture.settle(|_| true);
    let gone = *fixture.world.replicas.keys().next().expect("there are two");
    fixture.world.replicas.remove(&gone);
    let unknown = fixture.world.next_process();
    fixture.world.proxies.insert(unknown);
    let known = std::mem::take(&mut fixture.services).all;
    let processes = fixture.world.replicas.keys().chain(&fixture.world.proxies).copied().collect();
    let serving = known["shop"].serving.clone().expect("it is served");
    let now = fixture.now();
    let left = Left { services: known, processes };
    take_over(&mut fixture.services, &mut fixture.world, left, vec![serving], now);
    assert_eq!(fixture.world.killed, BTreeSet::from([unknown]));
    assert!(!fixture.world.ready.contains_key(&0), "the one that is gone takes no requests");
    assert!(fixture.world.gone.iter().any(|(_, place)| *place == 0), "its proxy is told");
}
