//! Two heads whose places have one id, because one folder is a copy of the other: their tasks would have the same ids.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::engine::{agent_pid, holder, origin};
use crate::support::{Broker, Cluster, wait_until};

/// Makes a cluster whose place has this id, and a life of it that was the last one there.
fn copy_of(original: &Cluster, broker: &Broker, last_life: Option<&str>, knows_folder: bool) -> Cluster {
    let copy = Cluster::builder().workers(0).arg("--address").arg(broker.address()).arg("--engine-wait=200ms").build();
    let text = fs::read_to_string(original.temp_dir().join("place.id")).expect("it has joined");
    let [id, life, folder] = text.lines().collect::<Vec<_>>()[..] else { panic!("three lines: {text}") };
    fs::create_dir_all(copy.temp_dir()).expect("the folder is ours");
    fs::set_permissions(copy.temp_dir(), Permissions::from_mode(0o700)).expect("it is ours");
    let folder = if knows_folder { format!("{folder}\n") } else { String::new() };
    let text = format!("{id}\n{}\n{folder}", last_life.unwrap_or(life));
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
fn a_copied_place_is_refused_at_its_start_and_of_two_that_have_started_the_older_one_goes_on_alone() {
    let Some(broker) = Broker::start() else { return };
    let (a, b) = (origin(&broker), holder(&broker));
    for cluster in [&a, &b] {
        agent_pid(cluster);
    }
    let place = a.status()["engine"]["place_id"].as_str().expect("it has one").to_owned();
    // Of an older life; and of the one that goes on.
    for last_life in [Some("1"), None] {
        copy_of(&a, &broker, last_life, true)
            .start_head(&[])
            .status(1)
            .stderr_contains(&format!("has the id {place} of this place"))
            .stderr_contains("(hint: remove `place.id` in the folder of the copy");
    }
    assert_eq!(a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success().stdout_text(), "1\n");

    // Where nothing tells the folders apart, as of cloned disks, it is found out when both run.
    let copy = copy_of(&a, &broker, None, false);
    copy.start_head(&[]).success();
    wait_until_refused(&copy);
    wait_until("the original says so too", || {
        let warnings = a.status()["warnings"].to_string();
        warnings.contains("its place is a copy of this one").then_some(())
    });
    assert_eq!(a.status()["engine"]["is_reachable"], true);
    assert_eq!(a.tracer(&["submit", "task", "--queue", "default", "demo:my_function"]).success().stdout_text(), "1\n");
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
