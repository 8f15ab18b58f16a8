//! Modules of nodes that share a queue: one that a node lacks, and one that is another build there.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::shared_deaths::signal_all;
use crate::support::{Broker, Cluster, HOOK, compile_c_with, wait_until};

/// Starts a node that finds modules in its folder `built`, and has built the module `version` there with this answer.
fn node(broker: &Broker, flags: &[&str], answer: Option<u8>) -> Cluster {
    let workers = usize::from(flags.contains(&"--queue=default"));
    let node = Cluster::builder().workers(workers).hook(HOOK).arg("--module-path").arg("built");
    let node = flags.iter().fold(node.arg("--address").arg(broker.address()), |node, flag| node.arg(flag)).build();
    fs::create_dir(node.file("built")).unwrap();
    answer.into_iter().for_each(|answer| build(&node, answer));
    node.start_head(&[]).success();
    node
}

fn library(node: &Cluster) -> PathBuf {
    node.file("built/libversion.so")
}

fn build(node: &Cluster, answer: u8) {
    let new = node.file("new.so");
    compile_c_with("tests/fixtures/c/version.c", &new, &[&format!("-DANSWER={answer}")]);
    fs::rename(new, library(node)).unwrap();
}

/// Returns the SHA-256 of a node's library, as another program computes it.
fn digest(node: &Cluster) -> String {
    let run = std::process::Command::new("sha256sum").arg(library(node)).output().expect("coreutils have it");
    String::from_utf8(run.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn name(node: &Cluster) -> String {
    node.status()["node_id"].as_str().expect("a node has a name").to_owned()
}

/// Returns the digests that nodes say they have of the module, by node.
fn told(node: &Cluster) -> Vec<(String, Option<String>)> {
    let report = node.tracer(&["list", "nodes", "--format=json"]).success().json();
    let of = |node: &Value| {
        let modules = node["modules"].as_array().expect("modules").iter();
        let digest = modules
            .filter(|module| module["name"] == "version")
            .map(|module| module["digest"].as_str().map(str::to_owned))
            .next();
        Some((node["node_id"].as_str()?.to_owned(), digest?))
    };
    report["nodes"].as_array().expect("nodes").iter().filter_map(of).collect()
}

/// Submits a task that waits because a node is stopped, and returns what is said of it before that node goes on and runs it.
fn explained_while_stopped(origin: &Cluster, holder: &Cluster) -> String {
    signal_all(holder, Signal::STOP);
    let id = origin.tracer(&["submit", "task", "version:answer", "--queue=default", "--no-wait"]).success();
    let id: u64 = id.stdout_text().trim().parse().expect("an id");
    let explained = origin.tracer(&["explain", &id.to_string()]).success().stdout_text();
    signal_all(holder, Signal::CONT);
    assert_eq!(origin.wait_for_task(id)["state"], "succeeded");
    explained
}

#[test]
fn a_task_whose_module_a_node_lacks_is_left_to_the_node_that_has_it() {
    let Some(broker) = Broker::start() else { return };
    let origin = node(&broker, &[], None);
    let (lacks, has) = (node(&broker, &["--queue=default"], None), node(&broker, &["--queue=default"], Some(1)));
    let (lacks_name, has_name) = (name(&lacks), name(&has));
    wait_until("it is told who has the module", || {
        told(&origin).contains(&(has_name.clone(), Some(digest(&has)))).then_some(())
    });
    // The one that lacks it runs what else there is in the queue.
    for _ in 0..6 {
        origin.submit("version:answer", &["--queue=default"]).success().stdout("1\n");
    }
    assert_eq!((lacks.tasks().len(), has.tasks().len()), (0, 6));
    // One that waits for the node that has it.
    let explained = explained_while_stopped(&origin, &has);
    let said = format!("the module `version` is lacking on {lacks_name}, so it is left to other nodes");
    assert!(
        explained.contains(&said) && explained.contains("(hint: copy `libversion.so` into a module"),
        "{explained}"
    );
    origin.tracer(&["doctor"]).status(6).stdout_contains(&format!(
        "warning: `{lacks_name}` serves the queue `default` and lacks the module `version`, which others of it have\n\
         (hint: copy `libversion.so` into a module folder there, or start it with that folder in --module-path)"
    ));

    // Where nobody has it, it is not given back for ever.
    has.stop().success();
    let id = origin.tracer(&["submit", "task", "version:answer", "--queue=default", "--no-wait"]).success();
    let id: u64 = id.stdout_text().split_whitespace().next().and_then(|id| id.parse().ok()).expect("an id");
    let ended = origin.wait_for_task(id);
    assert_eq!(ended["state"], "failed", "{ended}");
    let why = origin.tracer(&["explain", &id.to_string()]).success().stdout_text();
    let folder = lacks.file("built");
    for said in [
        format!(
            "node `{lacks_name}`: module `version` was not found: there is no `libversion.so` in `{}`",
            folder.display()
        ),
        "a node that serves the queue `default` needs it in such a folder".into(),
    ] {
        assert!(why.contains(&said), "{said} is not in {why}");
    }

    // No node has to be started again.
    build(&lacks, 3);
    origin.submit("version:answer", &["--queue=default"]).success().stdout("3\n");
}

#[test]
fn another_build_of_a_module_runs_and_both_digests_are_told() {
    let Some(broker) = Broker::start() else { return };
    let (origin, holder) = (node(&broker, &[], Some(1)), node(&broker, &["--queue=default"], Some(2)));
    let digests = [&origin, &holder].map(digest);
    let short = |digest: &str| digest[..12].to_owned();
    origin.submit("version:answer", &["--queue=default"]).success().stdout("2\n");
    let failed = origin.submit("version:nothing", &["--queue=default"]).status(1);
    let place = origin.status()["engine"]["place_id"].as_str().expect("it has joined").to_owned();
    failed.stderr_contains(&format!(
        "(hint: node `{}` has another build of `version` than the node of place {place}, which submitted the task: {} here, {} there)",
        name(&holder),
        short(&digests[1]),
        short(&digests[0])
    ));
    wait_until("both tell what they have", || {
        let mut told = told(&origin);
        told.sort();
        let mut expected = vec![(name(&origin), Some(digests[0].clone())), (name(&holder), Some(digests[1].clone()))];
        expected.sort();
        (told == expected).then_some(())
    });
    let warned = origin.submit("version:answer", &["--queue=default"]).success().stdout("2\n");
    let than = format!("than this one ({}): {} ({})", short(&digests[0]), name(&holder), short(&digests[1]));
    warned
        .stderr_contains(&format!("have another build of the module `version` {than}"))
        .stderr_contains("(hint: put this");
    let empty = origin.file("no-lines");
    fs::write(&empty, "").unwrap();
    let flags = ["--queue=default", "--map", empty.to_str().expect("a plain name")];
    origin
        .submit("version:answer", &flags)
        .stderr_contains(&format!("have another build of the module `version` {than}"));
    let (own, other) = (short(&digests[0]), format!("{} on {}", short(&digests[1]), name(&holder)));
    let said =
        format!("the module `version` is another build there than on this node, by SHA-256: {own} here, {other}");
    let explained = explained_while_stopped(&origin, &holder);
    assert!(explained.contains(&said), "{explained}");
    let said = origin.tracer(&["doctor"]).status(6).stdout_text();
    for (node, digest) in [&origin, &holder].into_iter().zip(&digests) {
        assert!(said.contains(&format!("{} on `{}`", short(digest), name(node))), "{said}");
    }

    // The same one everywhere: nothing to say.
    build(&holder, 1);
    assert_eq!(digest(&holder), digests[0]);
    origin.submit("version:answer", &["--queue=default"]).success().stdout("1\n");
    wait_until("nothing is left to mend", || {
        let run = origin.tracer(&["doctor"]);
        run.stdout_text().starts_with("nothing to mend").then_some(())
    });
    holder.stop().success();
    let spans = holder.spans();
    let digests_of = |target: &str| {
        let attempts = spans.all_named(&format!("{target} tracer.remote_worker"));
        let of = |key: &str| attempts.iter().map(|span| span.attribute(key).clone()).collect::<Vec<_>>();
        (of("tracer.module.digest"), of("tracer.module.origin_digest"))
    };
    let (here, there) = digests_of("version.answer");
    assert_eq!((here.len(), there.len()), (4, 4), "{}", spans.describe());
    assert!(here.contains(&json!(digests[1])) && here.contains(&Value::Null), "{here:?}");
    assert!(there.contains(&json!(digests[0])) && there.contains(&Value::Null), "{there:?}");
}
