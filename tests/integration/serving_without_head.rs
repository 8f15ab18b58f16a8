//! Services that outlive their head: it is killed under load, and no request fails, nothing is left behind, and the next head goes on with what there
//! is.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use rustix::process::Signal;
use serde_json::Value;

use super::serving_deaths::{CLIENTS, Service, assert_closed, assert_whole};
use crate::support::{Clients, Cluster, HOOK, Outcome, Random, is_alive, kill, wait_until};

/// The variable that says how often heads are killed.
const KILLS: &str = "TRACER_HEAD_KILLS";

fn kills() -> u64 {
    std::env::var(KILLS).map_or(4, |count| count.parse().expect("a number of kills"))
}

#[test]
fn no_request_fails_and_nothing_is_left_while_the_head_is_killed_again_and_again() {
    let service = Service::deploy(2);
    let mut random = Random::of_test(&service.cluster);
    let before = [service.pids("proxy"), service.pids("replica")];
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    for _ in 0..kills() {
        clients.wait_for(100 + random.below(200));
        service.cluster.kill_head_and_wait_for_the_next();
    }
    clients.wait_for(200);
    let exchanges = clients.stop();
    assert_eq!([service.pids("proxy"), service.pids("replica")], before, "they are the same processes");
    let restarts = service.cluster.status()["head_restarts"].as_u64();
    assert_eq!(restarts, Some(kills()));
    let traces = service.traces();
    service.cluster.assert_nothing_runs();
    assert_closed(&exchanges, &traces);
    for exchange in &exchanges {
        let Outcome::Whole(answer) = &exchange.outcome else { panic!("a connection broke: {exchange:?}") };
        assert_eq!(answer.status, 200, "{exchange:?}");
        assert_whole(exchange, 200, &traces);
    }
}

#[test]
fn what_dies_while_there_is_no_head_is_finished_and_replaced_by_the_next() {
    let service = Service::deploy(2);
    let guard = service.cluster.head_record()["guard_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let guard = guard.expect("a head has a guard");
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    clients.wait_for(100);
    // A guard that stands starts no head.
    kill(guard, Signal::STOP);
    service.cluster.kill_head();
    let (replicas, proxies) = (service.pids("replica"), service.pids("proxy"));
    clients.wait_for(100);
    kill(replicas[0], Signal::KILL);
    clients.wait_for(100);
    kill(proxies[0], Signal::KILL);
    wait_until("the proxy is gone", || (!is_alive(proxies[0])).then_some(()));
    kill(guard, Signal::CONT);
    wait_until("both are in place", || {
        let (now, proxy) = (service.pids("replica"), service.pids("proxy"));
        let are_there = now.len() == 2 && now.contains(&replicas[1]) && proxy.len() == 1;
        (are_there && !now.contains(&replicas[0]) && proxy != proxies).then_some(())
    });
    clients.wait_for(200);
    let exchanges = clients.stop();
    let traces = service.traces();
    service.cluster.assert_nothing_runs();
    assert_closed(&exchanges, &traces);
    let (mut lost, mut broken) = (0, 0);
    for exchange in &exchanges {
        match &exchange.outcome {
            Outcome::Whole(answer) => {
                lost += usize::from(answer.status == 502);
                assert_whole(exchange, answer.status, &traces);
            }
            Outcome::Refused => panic!("a connection was refused while there was neither proxy nor head"),
            Outcome::Broken(_) => broken += 1,
        }
    }
    assert!(lost <= CLIENTS && broken <= CLIENTS, "{lost} answers were lost, {broken} connections broke");
}

/// Steps of a rollout at which the head dies, with how often it comes there before the second deploy.
const STEPS: [(&str, u64); 4] =
    [("head_gives_lanes", 2), ("head_publishes", 2), ("head_configures", 1), ("head_deployed", 1)];

#[test]
fn a_rollout_goes_on_at_whichever_step_the_head_dies() {
    for (step, before) in STEPS {
        let cluster = Cluster::builder().workers(1).hook(HOOK).build();
        cluster.note(format!("the head dies at {step}"));
        let mut start = cluster.start_command(&[]);
        start.env("TRACER_TEST_KILL_AT", format!("{step}:{}", before + 1));
        start.env("TRACER_TEST_KILL_ONCE", cluster.file("killed"));
        cluster.run(start).success();
        let service = Service::deploy_to(cluster, "handlers:spanned", 2);
        let old = service.pids("replica");
        let clients = Clients::start(service.address, CLIENTS, "/", 50);
        clients.wait_for(50);
        // The command loses its head, and hears from the next one what became of the version.
        let file = service.write(2, "env = { COLOUR = \"blue\" }");
        let deployed = service.cluster.tracer(&["serve", "deploy", &file]).success();
        deployed.stderr_contains("version 2 of service `shop` is served at");
        assert!(service.cluster.file("killed").exists(), "the head has not come to {step}");
        wait_until("the second version is served by new replicas", || {
            let run = service.cluster.tracer(&["serve", "status", "--format", "json"]);
            let report: Value = serde_json::from_str(&run.stdout_text()).ok()?;
            let served = &report["services"][0];
            let now = service.pids("replica");
            let is_done = served["version"] == 2 && served["rollout"].is_null() && now.len() == 2;
            (is_done && !now.iter().any(|pid| old.contains(pid))).then_some(())
        });
        clients.wait_for(50);
        let exchanges = clients.stop();
        let traces = service.traces();
        assert_closed(&exchanges, &traces);
        for exchange in &exchanges {
            assert_eq!(exchange.status(), Some(200), "{step}: {exchange:?}");
            assert_whole(exchange, 200, &traces);
        }
    }
}

#[test]
fn all_of_it_ends_when_the_guard_is_killed_alone_or_with_the_head() {
    for is_head_killed in [false, true] {
        let service = Service::deploy(2);
        let record = service.cluster.head_record();
        let pid = |name: &str| record[name].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it is there");
        kill(pid("guard_pid"), Signal::KILL);
        if is_head_killed {
            kill(pid("pid"), Signal::KILL);
        }
        service.cluster.assert_nothing_runs();
    }
}

#[test]
fn all_of_it_ends_in_time_also_while_the_guard_is_stopped() {
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let cluster = Cluster::builder().workers(1).env("TRACER_TEST_SETTING", "head_limit_ms=500").build();
    cluster.start_head(&[]).success();
    let service = Service::deploy_at(cluster, address, "handlers:misbehaving", 2);
    let processes: Vec<u32> = ["replica", "proxy"].into_iter().flat_map(|role| service.pids(role)).collect();
    assert_eq!(processes.len(), 3);
    // One whose loop is blocked ends, too.
    let blocked = TcpStream::connect(address).unwrap();
    (&blocked).write_all(b"GET /hang HTTP/1.1\r\nhost: shop\r\n\r\n").unwrap();
    let record = service.cluster.head_record();
    let pid = |name: &str| record[name].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("it is there");
    kill(pid("guard_pid"), Signal::STOP);
    kill(pid("pid"), Signal::KILL);
    // They are the guard's to reap.
    wait_until("every process of the service has ended", || processes.iter().all(|pid| !is_alive(*pid)).then_some(()));
    kill(pid("guard_pid"), Signal::CONT);
    kill(pid("guard_pid"), Signal::KILL);
    service.cluster.assert_nothing_runs();
}

#[test]
fn all_of_it_ends_when_no_head_comes_in_time() {
    let address = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let cluster = Cluster::builder()
        .workers(1)
        .env("TRACER_TEST_KILL_AT", "head_takes_over")
        .env("TRACER_TEST_SETTING", "head_limit_ms=1000")
        .build();
    cluster.start_head(&[]).success();
    let service = Service::deploy_at(cluster, address, "shop:hello", 1);
    service.cluster.kill_head();
    service.cluster.assert_nothing_runs();
    // And another one can be started, which serves again what was served.
    let mut start = service.cluster.start_command(&[]);
    start.env_remove("TRACER_TEST_KILL_AT");
    service.cluster.run(start).success();
    let clients = Clients::start(service.address, 1, "/", 50);
    clients.wait_for(1);
    assert!(clients.stop().iter().any(|exchange| exchange.status() == Some(200)));
    service.cluster.stop().success();
}
