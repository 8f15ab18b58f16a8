//! `tracer serve`: services from their file to their end, with the built program.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

use crate::support::{Cluster, Run};

/// Returns a service file in the folder of a cluster.
fn file(cluster: &Cluster, text: &str) -> PathBuf {
    let path = cluster.file("service.toml");
    fs::write(&path, text).expect("the folder is ours");
    path
}

fn deploy(cluster: &Cluster, text: &str, further: &[&str]) -> Run {
    let path = file(cluster, text).display().to_string();
    cluster.tracer(&[&["serve", "deploy", &path], further].concat())
}

/// Returns a service of one deployment, at a port that is free.
fn service_of(import_path: &str, further: &str) -> String {
    format!(
        "name = \"shop\"\n[http]\naddress = \"127.0.0.1:0\"\n[[applications]]\nimport_path = \"{import_path}\"\n\
         [[applications.deployments]]\nimport_path = \"{import_path}\"\n{further}\n"
    )
}

#[test]
fn what_is_wrong_with_a_service_is_said_before_anything_is_changed() {
    let cluster = Cluster::builder().arg("--resources").arg("gpu=1").start();
    let taken = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let taken = taken.local_addr().expect("it is bound");
    let at_taken = service_of("shop:hello", "").replace("127.0.0.1:0", &taken.to_string());
    let _listener = TcpListener::bind(taken);
    let cases = [
        ("name = 7".to_owned(), 2, "service.toml:1: `name`: expected a string, found an integer", ""),
        (
            service_of("shop:hello", "num_replica = 2"),
            2,
            "unknown key `applications.deployments.num_replica`",
            "num_replicas",
        ),
        (
            service_of("shopp:hello", ""),
            1,
            "service.toml:7: `applications.deployments.import_path`: module `shopp` was not found",
            "Did you mean `shop`?",
        ),
        (
            service_of("shop:hellp", ""),
            1,
            "service.toml:7: `applications.deployments.import_path`: module `shop`",
            "Did you mean `hello`?",
        ),
        (
            service_of("shop:Model", ""),
            1,
            "service.toml:7: `applications.deployments.import_path`: its handler takes 1 argument: `path: String`; `arguments` has 0",
            "",
        ),
        (
            service_of("shop:Model", "\narguments = [7]"),
            1,
            "service.toml:9: `applications.deployments.arguments`: argument 1 (`path`): expected String, found `7`",
            "",
        ),
        (
            service_of("shop:hello", "cwd = \"/no/such/folder\""),
            1,
            "service.toml:8: `applications.deployments.cwd`: expected a folder, found `/no/such/folder`, which does not exist",
            "",
        ),
        (
            service_of("shop:hello", "").replace("0\"", "0\"\n[tracing]\nexporter = \"tracer_console:startup\""),
            1,
            "service.toml:5: `tracing.exporter`: ",
            "",
        ),
        (
            service_of("shop:hello", "")
                .replace("[[applications]]", "[tracing]\nexporter = \"otlp_file:exporter\"\n[[applications]]"),
            1,
            "service.toml:5: `tracing.exporter`: module `otlp_file` has no exporter `exporter`; it has none",
            "",
        ),
        (
            service_of("./no/such/lib.so:hello", ""),
            1,
            "service.toml:7: `applications.deployments.import_path`: ",
            "lib.so",
        ),
        (
            service_of("shop:hello", "resources = { gpus = 1 }"),
            1,
            "wants the resource `gpus`, which the head does not have",
            "gpu",
        ),
        (
            service_of("shop:hello", "resources = { gpu = 1 }\nnum_replicas = 2"),
            1,
            "2 would be occupied",
            "the head has 1",
        ),
        (
            at_taken,
            1,
            "service.toml:3: `http.address`: a service cannot listen on 127.0.0.1:",
            "another program has this port",
        ),
        (
            service_of("shop:hello", "").replace("127.0.0.1:0", "0.0.0.0:0"),
            2,
            "service.toml:3: `http.address`: expected an address of this machine alone, such as `127.0.0.1:0`, found `0.0.0.0:0`",
            "public = true",
        ),
        (
            service_of("shop:hello", "max_ongoing_requests = 0"),
            2,
            "service.toml:8: `applications.deployments.max_ongoing_requests`: expected a number from 1",
            "found 0",
        ),
        (
            service_of("shop:hello", "").replacen("[[app", "[tracing]\nsampling_ratio = 1.5\n[[app", 1),
            2,
            "service.toml:5: `tracing.sampling_ratio`: expected a number from 0 to 1, found `1.5`",
            "",
        ),
        (
            format!("{0}[[applications]]\nname = \"b\"\nimport_path = \"shop:echo\"\n", service_of("shop:hello", "")),
            2,
            "service.toml:9: `applications.route_prefix`: ",
            "line 4",
        ),
    ];
    for (text, code, expected, hint) in &cases {
        deploy(&cluster, text, &[]).status(*code).stderr_contains(expected).stderr_contains(hint);
        let nothing = cluster.tracer(&["serve", "status", "--format", "json"]).success().json();
        assert_eq!(nothing["services"], serde_json::json!([]), "{expected}");
    }
    let resources = service_of("shop:hello", "resources = { gpus = 1 }");
    let report = deploy(&cluster, &resources, &["--format", "json"]).status(1).json();
    assert_eq!((&report["error"]["kind"], &report["error"]["code"]), (&"failed".into(), &"resources".into()));
    for verb in [&["config"][..], &["history"], &["rollback"], &["shutdown"]] {
        let run = cluster.tracer(&[&["serve"], verb].concat());
        run.status(1).stderr_contains("no service is deployed\n(hint: `tracer serve deploy service.toml`)");
    }
    cluster.tracer(&["serve", "shutdown", "--service", "shop"]).status(1).stderr_contains("there is no service `shop`");
    cluster.tracer(&["logs", "hello#1"]).status(1).stderr_contains("there is no replica `hello#1`");
    cluster.tracer(&["serve", "deploy", "missing.toml"]).status(2).stderr_contains("`missing.toml` cannot be read");
    cluster.stop().success();
    let path = file(&cluster, &service_of("shop:hello", "")).display().to_string();
    cluster.tracer(&["serve", "deploy", &path]).status(3);
}

#[test]
fn a_service_file_of_another_program_is_told_what_it_looks_like() {
    let cluster = Cluster::untraced();
    for (text, language) in [
        ("proxy_location: EveryNode\nhttp_options:\n  host: 0.0.0.0\napplications:\n- name: shop\n", "YAML"),
        ("# of Ray Serve\n---\napplications:\n- name: shop\n", "YAML"),
        ("{\n  \"applications\": [{ \"name\": \"shop\" }]\n}\n", "JSON"),
    ] {
        deploy(&cluster, text, &[])
            .status(2)
            .stderr_contains("service.toml:")
            .stderr_contains(&format!("(hint: this looks like {language}, expected TOML: `key = value`"));
    }
    // What is TOML with a mistake is none of both.
    let run = deploy(&cluster, "name \"shop\"\n", &[]).status(2);
    assert!(!run.stderr_text().contains("looks like"), "{}", run.stderr_text());
}

#[test]
fn a_dry_run_says_what_would_be_done_and_build_prints_a_file_that_is_taken() {
    let cluster = Cluster::untraced();
    let arguments =
        ["serve", "build", "shop:hello", "--num-replicas", "3", "--address", "127.0.0.1:0", "--name", "shop"];
    let built = cluster.tracer(&arguments).success().stdout_text();
    let run = deploy(&cluster, &built, &["--dry-run"]).success();
    run.stdout_contains("version 1 of service `shop` would be rolled out:")
        .stdout_contains("  start 3 replicas of `hello` in application `hello`")
        .stdout_contains("  listen on 127.0.0.1:0");
    let report = deploy(&cluster, &built, &["--dry-run", "--format", "json"]).success().json();
    assert_eq!((&report["outcome"], &report["version"]), (&"dry_run".into(), &1.into()));
    cluster.tracer(&["serve", "build", "shop"]).status(2).stderr_contains("expected `module:attribute`");
    cluster.tracer(&["serve", "build", "shop:hello", "--address", "0.0.0.0:80"]).status(2);
    assert_eq!(cluster.workers().len(), 1, "nothing was started");
}

#[test]
fn a_service_for_other_machines_says_so_at_each_start() {
    let cluster = Cluster::untraced();
    let note = "whoever reaches this machine reaches it at 0.0.0.0:";
    let public = service_of("shop:hello", "").replace("127.0.0.1:0\"", "0.0.0.0:0\"\npublic = true");
    deploy(&cluster, &public, &[]).success().stderr_contains(note);
    let report = deploy(&cluster, &public, &["--format", "json"]).success().json();
    assert!(report["warnings"][0].as_str().is_some_and(|warning| warning.starts_with(note)), "{report}");
    cluster.tracer(&["serve", "status"]).success().stdout_contains(note);
    cluster.stop().success();
    cluster.start_head(&[]).success().stderr_contains("service `shop`: ").stderr_contains(note);
}

#[test]
fn a_service_whose_first_version_fails_is_there_until_it_is_shut_down() {
    let cluster = Cluster::untraced();
    let failing = service_of("shop:Model", "arguments = [\"\"]");
    deploy(&cluster, &failing, &[]).status(1).stderr_contains("found an empty one");
    let status = cluster.tracer(&["serve", "status"]).success().stdout_text();
    for part in ["state                failed\n", "url                  none\n", "found an empty one"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    assert!(!status.contains("REPLICA"), "a table without rows: {status}");
    cluster.tracer(&["status"]).success().stdout_contains("shop: failed, see `tracer serve status`");
    let history = cluster.tracer(&["serve", "history"]).success();
    history.stdout_contains("failed").stdout_contains("\nversion 1 failed: replica Model#1: ");
    cluster.tracer(&["serve", "rollback"]).status(1).stderr_contains("service `shop` has no version that was served");
    cluster.tracer(&["serve", "shutdown"]).success();
    assert_eq!(
        cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"],
        serde_json::json!([])
    );
    // What is for the life of a command is not there after it.
    let run = cluster.tracer(&["serve", "run", "shop:Model", "--address", "127.0.0.1:0"]);
    run.status(1).stderr_contains("its handler takes 1 argument");
    assert_eq!(
        cluster.tracer(&["serve", "status", "--format", "json"]).success().json()["services"],
        serde_json::json!([])
    );
}
