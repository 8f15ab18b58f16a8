//! Services that outlive their head: it is killed under load, and no request fails, nothing is left behind, and the next head goes on with what there
//! is.

use rustix::process::Signal;

use super::serving_deaths::{CLIENTS, Service, assert_closed, assert_whole};
use crate::support::{Clients, Outcome, Random, kill, wait_until};

/// The variable that says how often heads are killed.
const KILLS: &str = "TRACER_HEAD_KILLS";

fn kills() -> u64 {
    std::env::var(KILLS).map_or(4, |count| count.parse().expect("a number of kills"))
}

/// Kills the head, and waits until the next one serves its clients. Returns that one's pid.
fn kill_head(service: &Service) -> u32 {
    let before = service.cluster.head_pid();
    kill(before, Signal::KILL);
    wait_until("another head has come", || {
        let record = service.cluster.head_record();
        let pid = u32::try_from(record["pid"].as_u64()?).ok()?;
        (pid != before && service.cluster.tracer(&["status"]).output.status.success()).then_some(pid)
    })
}

#[test]
fn no_request_fails_and_nothing_is_left_while_the_head_is_killed_again_and_again() {
    let service = Service::deploy(2);
    let mut random = Random::of_test(&service.cluster);
    let before = [service.pids("proxy"), service.pids("replica")];
    let clients = Clients::start(service.address, CLIENTS, "/", 50);
    for _ in 0..kills() {
        clients.wait_for(100 + random.below(200));
        kill_head(&service);
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
