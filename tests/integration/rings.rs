//! Requests that follow one another closely pass by the sockets; and nothing is lost when an end of a ring dies.

use rustix::process::Signal;

use crate::support::{Background, Cluster, HOOK, kill, program_path, wait_until};

/// Before and after the middle.
const REQUESTS: usize = 100;

/// Starts a head with one worker and a program that has sent half of its requests, when both have rings.
#[track_caller]
fn amid_requests() -> (Cluster, Background) {
    // Whether looking pays is up to the machine, so it is told to look.
    let cluster = Cluster::builder().hook(HOOK).env("TRACER_TEST_SPINNING", "always").start();
    let (started, released) = (cluster.file("started"), cluster.file("released"));
    let mut program = cluster.program(program_path("driver_program"));
    let count = (2 * REQUESTS).to_string();
    program.args(["goes-back-and-forth".as_ref(), count.as_ref(), started.as_os_str(), released.as_os_str()]);
    let program = cluster.spawn(program);
    cluster.wait_for_file(&started);
    assert_eq!(rings(&cluster), 2, "the program has rings, and the worker");
    (cluster, program)
}

/// Returns the number of connections of the head that have rings.
fn rings(cluster: &Cluster) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", cluster.head_pid())).expect("the head runs");
    maps.matches("memfd:tracer-rings").count()
}

#[test]
fn requests_that_follow_one_another_closely_go_through_rings() {
    let (cluster, program) = amid_requests();
    std::fs::write(cluster.file("released"), "").unwrap();
    program.wait().success();
    wait_until("the program's rings are gone", || (rings(&cluster) == 1).then_some(()));
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let attempts = spans.iter().filter(|span| span.name() == "demo.my_function tracer.remote_worker");
    assert_eq!(attempts.count(), 2 * REQUESTS);
}

#[test]
fn a_worker_that_dies_with_rings_loses_nothing_and_the_next_one_has_rings_too() {
    let (cluster, program) = amid_requests();
    kill(cluster.worker_pids()[0], Signal::KILL);
    std::fs::write(cluster.file("released"), "").unwrap();
    program.wait().success();
    let spans = cluster.spans();
    spans.assert_whole(&[]);
    let named = |name: &str| spans.iter().filter(|span| span.name() == name).collect::<Vec<_>>();
    assert_eq!(named("demo.my_function tracer.remote_worker").len(), 2 * REQUESTS);
    let attempts = named("misbehaving_tasks.waits_in_span tracer.remote_worker");
    assert_eq!(attempts.iter().filter(|span| span.status_code() == "ERROR").count(), 1, "{}", spans.describe());
    assert_eq!(attempts.len(), 2);
}

#[test]
fn a_program_with_rings_whose_head_dies_hears_of_it() {
    let (cluster, program) = amid_requests();
    cluster.kill_head();
    program.wait().status(1).stderr_contains("the connection to the head broke");
}
