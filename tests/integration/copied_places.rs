//! Two heads whose places have one id, because one folder is a copy of the other: their tasks would have the same ids.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::engine::{agent_pid, holder, origin};
use crate::support::{Broker, Cluster, wait_until};

/// Makes a cluster whose place has this id, and a life of it that was the last one there.
fn copy_of(original: &Cluster, broker: &Broker, last_life: Option<&str>) -> Cluster {
    let copy = Cluster::builder().workers(0).arg("--address").arg(broker.address()).arg("--engine-wait=200ms").build();
    let text = fs::read_to_string(original.temp_dir().join("place.id")).expect("it has joined");
    let (id, life) = text.trim_end().split_once('\n').expect("two lines");
    fs::create_dir_all(copy.temp_dir()).expect("the folder is ours");
    fs::set_permissions(copy.temp_dir(), Permissions::from_mode(0o700)).expect("it is ours");
    let text = format!("{id}\n{}\n", last_life.unwrap_or(life));
    fs::write(copy.temp_dir().join("place.id"), text).expect("the folder is ours");
    copy
}

fn wait_until_refused(cluster: &Cluster) {
    wait_until("it says that its place is copied", || {
        let engine = &cluster.status()["engine"];
        let is_told = engine["text"].as_str().is_some_and(|text| text.contains("one of the two places is a copy"));
        (is_told && engine["is_reachable"] == false).then_some(())
    });
    let warnings = cluster.status()["warnings"].to_string();
    assert!(warnings.contains("remove `place.id` in the copy's folder"), "{warnings}");
}

#[test]
fn a_copied_place_is_refused_at_its_start_and_two_that_have_started_use_no_engine_until_one_is_alone() {
    let Some(broker) = Broker::start() else { return };
    let (a, b) = (origin(&broker), holder(&broker));
    for cluster in [&a, &b] {
        agent_pid(cluster);
    }
    let place = a.status()["engine"]["place_id"].as_str().expect("it has one").to_owned();
    copy_of(&a, &broker, Some("1"))
        .start_head(&[])
        .status(1)
        .stderr_contains(&format!("has the id {place} of this place"))
        .stderr_contains("(hint: remove `place.id` in the folder of the copy");

    let copy = copy_of(&a, &broker, None);
    copy.start_head(&[]).success();
    [&a, &copy].into_iter().for_each(wait_until_refused);
    copy.tracer(&["submit", "task", "--queue", "default", "demo:my_function"])
        .status(1)
        .stderr_contains("one of the two places is a copy of the other");
    copy.stop().success();
    agent_pid(&a);
    assert_eq!(a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success().stdout_text(), "1\n");

    fs::remove_file(copy.temp_dir().join("place.id")).expect("it is ours");
    copy.start_head(&[]).success();
    agent_pid(&copy);
    assert_ne!(copy.status()["engine"]["place_id"], place.as_str());
}
