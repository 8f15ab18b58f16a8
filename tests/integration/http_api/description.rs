//! The OpenAPI description, read by somebody else's tester: schemathesis, with all its checks.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::traced;
use crate::support::python_with;

/// Settings of the checks: two answers to a submission cannot be seen from the description, that of the draft of `Idempotency-Key`
/// when the key names another task, and that to a task that asks for more than there is.
const SETTINGS: &str = "\
[checks.positive_data_acceptance]
expected-statuses = [\"2xx\", 401, 403, 404, 422, 429, 502, 503]
";

#[test]
fn every_field_of_an_answer_is_described() {
    let (cluster, api) = traced();
    let service = cluster.file("service.toml");
    fs::write(
        &service,
        "name = \"shop\"\nhttp.address = \"127.0.0.1:0\"\n[[applications]]\nimport_path = \"shop:hello\"\n",
    )
    .expect("the folder is ours");
    cluster.tracer(&["serve", "deploy", service.to_str().expect("it is text")]).success();
    let failing =
        serde_json::json!({"function": "misbehaving_tasks:returns_error", "arguments": ["no"], "num_cpus": 0});
    api.run(&failing);
    let description = api.get("/api/v1/openapi.json").json();
    let is_described = |schema: &str, answer: &Value| {
        let properties = &description["components"]["schemas"][schema]["properties"];
        let fields = answer.as_object().unwrap_or_else(|| panic!("{schema} is an object: {answer}"));
        let unknown: Vec<_> = fields.keys().filter(|field| properties[*field].is_null()).collect();
        assert!(unknown.is_empty(), "{schema} has fields that are not described: {unknown:?}");
    };
    let task = api.get("/api/v1/tasks/1").json();
    is_described("Task", &task);
    is_described("Attempt", &task["attempts"][0]);
    is_described("Failure", &serde_json::json!({"reason": task["failure"]["reason"]}));
    let list = api.get("/api/v1/tasks").json();
    is_described("TaskList", &list);
    is_described("Task", &list["tasks"][0]);
    let workers = api.get("/api/v1/workers").json();
    is_described("WorkerList", &workers);
    is_described("Worker", &workers["workers"][0]);
    let status = api.get("/api/v1/status").json();
    is_described("Status", &status);
    is_described("ServiceSummary", &status["services"][0]);
    let lists = [("ServiceList", "services"), ("DeploymentList", "deployments"), ("ReplicaList", "replicas")];
    for (schema, name) in lists {
        let list = api.get(&format!("/api/v1/{name}")).json();
        is_described(schema, &list);
        is_described(schema.trim_end_matches("List"), &list[name][0]);
        let told = cluster.tracer(&["list", name, "--format", "json"]).success().json();
        assert_eq!(list[name][0]["name"], told[name][0]["name"], "{told}");
    }
    is_described("Proxy", &api.get("/api/v1/services").json()["services"][0]["proxies"][0]);
    let summary = api.get("/api/v1/summary").json();
    is_described("Summary", &summary);
    is_described("FunctionSummary", &summary["functions"][0]);
    is_described("ActorList", &api.get("/api/v1/actors").json());
    let traces = api.get("/api/v1/traces").json();
    is_described("TraceList", &traces);
    is_described("TraceRow", &traces["traces"][0]);
    is_described("TraceColumns", &api.get("/api/v1/traces/last").json());
    is_described("Heat", &api.get("/api/v1/heat").json());
    is_described("Differences", &api.get("/api/v1/differences").json());
    is_described("OpenSpans", &api.get("/api/v1/open").json());
    is_described("Index", &api.get("/api/v1").json());
    is_described("Cancelled", &api.ask("POST", "/api/v1/tasks/1/cancel").send().json());
    is_described("Problem", &api.get("/nowhere").json());
}

#[test]
fn schemathesis_finds_nothing_that_is_not_as_described() {
    let Some(python) = python_with("schemathesis") else { return };
    let (cluster, api) = traced();
    fs::write(cluster.file("schemathesis.toml"), SETTINGS).expect("the folder is ours");
    let url = format!("http://{}", api.address);
    let mut command = cluster.program(python);
    command.args(["-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", "--url", &url]);
    command.args(["--header", &format!("Authorization: Bearer {}", api.token)]);
    // A stream without an end is no answer that could be compared.
    command.args(["--exclude-path", "/api/v1/events"]);
    command.args(["--checks", "all", "--max-examples", "20", "--generation-deterministic", "--no-color"]);
    // Whatever it keeps, it keeps in the folder of the test.
    command.env("HOME", cluster.folder()).env("HYPOTHESIS_STORAGE_DIRECTORY", cluster.file("hypothesis"));
    command.arg(format!("{url}/api/v1/openapi.json"));
    let run = cluster.spawn(command).wait_within(Duration::from_secs(180));
    let text = run.stdout_text();
    assert!(run.output.status.success(), "{text}\n{}", run.stderr_text());
    assert!(text.contains("Operations:       34 selected / 35 total"), "{text}");
    assert!(text.contains("Tested: 34"), "{text}");
    let status = cluster.status();
    assert_eq!((&status["http"]["restarts"], &status["workers"]["lost"]), (&0.into(), &0.into()), "{status}");
}
