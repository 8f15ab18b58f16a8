//! `tracer start` and `tracer stop`.

use crate::support::{Cluster, HOOK};

#[test]
fn a_head_starts_runs_a_task_and_stops() {
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    cluster.submit("wordcount:count", &["\"the quick brown fox\""]).success().stdout("4\n");
    cluster.spans().assert_whole(&[]);
    assert_eq!(cluster.worker_pids().len(), 2);
    cluster.stop().success().stderr("stopped the head (pid <pid>) and 2 workers\n");
    cluster.assert_nothing_runs();
}
