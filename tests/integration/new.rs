//! `tracer new`: a task module from nothing.

use std::fs;

use serde_json::json;

use crate::support::{Cluster, cargo_on_new_crate};

/// The name of the crate that is built: its library is in a folder that others share.
const NAME: &str = "made_by_a_test";

#[test]
fn what_it_makes_builds_and_its_tests_tasks_actor_and_hook_work() {
    let cluster = Cluster::builder().workers(2).build();
    let made = cluster.tracer(&["new", NAME, "--actor", "--hook"]).success().stdout_text();
    let folder = cluster.file(NAME);
    cargo_on_new_crate(&folder, "test");
    let library = cargo_on_new_crate(&folder, "build").join(format!("lib{NAME}.so"));
    let target = |item: &str| format!("{}:{item}", library.display());
    // What it says is next is what works, with another target folder.
    for next in ["tracer start --head --tracing-startup-hook=", "tracer submit task ", "tracer submit call hits add 2"]
    {
        assert!(made.contains(next), "{made}");
    }
    assert!(made.contains(&format!("cd {NAME}\n")) && made.contains(&format!("/lib{NAME}.so:greet")), "{made}");
    cluster.start_head(&[&format!("--tracing-startup-hook={}", target("setup_tracing"))]).success();
    cluster.submit(&target("greet"), &["\"world\"", "2"]).success().stdout("\"hello, world; hello, world\"\n");
    cluster.submit(&target("greet"), &["\"\""]).status(1).stderr_contains("there is nobody to greet");
    cluster.tracer(&["submit", "actor", &target("Counter"), "40", "--name", "hits"]).success();
    cluster.tracer(&["submit", "call", "hits", "add", "2"]).success().stdout("42\n");
    let spans = cluster.spans();
    let span = spans.iter().find(|span| span.name() == "greet").expect("the task made a span");
    assert_eq!(span.attribute(&format!("{NAME}.times")), &json!(2));
    assert_eq!(span.value["resource"]["attributes"]["service.name"], NAME);
    cluster.stop().success();
}

#[test]
fn what_is_there_already_is_not_touched_and_what_is_missing_is_named() {
    let cluster = Cluster::builder().build();
    fs::create_dir(cluster.file("there")).expect("the folder is ours");
    fs::write(cluster.file("there/mine"), "kept").expect("the folder is ours");
    cluster.tracer(&["new", "there"]).status(2).stderr_contains("`there` is there already");
    assert_eq!(fs::read_dir(cluster.file("there")).expect("it is there").count(), 1);
    cluster.tracer(&["new", "Not-A-Name"]).status(2).stderr_contains("cannot be the name of a module");
    cluster
        .tracer(&["new", "shop", "--sdk", "there"])
        .status(2)
        .stderr_contains("expected the folder of the crate `tracer-sdk`, which is `hooks/sdk`");
    cluster.tracer(&["new", "shop", "--sdk", "nowhere"]).status(2).stderr_contains("No such file or directory");
    assert!(!cluster.file("shop").exists());
    // The plain form has neither of the two.
    cluster.tracer(&["new", "a/my-shop"]).success().stdout_contains("libmy_shop.so:greet");
    let source = fs::read_to_string(cluster.file("a/my-shop/src/lib.rs")).expect("it was made");
    assert!(source.contains("my_shop.times") && !source.contains("Counter") && !source.contains("startup_hook"));
}
