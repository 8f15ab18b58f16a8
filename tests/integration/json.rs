//! Output of every command with `--format json`.

use serde_json::{Value, json};

use crate::support::{Api, Cluster, HOOK};

/// Returns the fields of an object, in their order.
fn fields(value: &Value) -> Vec<&str> {
    value.as_object().map(|fields| fields.keys().map(String::as_str).collect()).unwrap_or_default()
}

/// Every text and number of a report is in the one form that the page of schemas names. What a span file says is as it was written.
fn check_forms(path: &str, key: &str, value: &Value) {
    match value {
        Value::Object(all) => {
            for (key, value) in all.iter().filter(|(key, _)| !["result", "spans", "attributes"].contains(&key.as_str()))
            {
                check_forms(&format!("{path}.{key}"), key, value);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| check_forms(path, key, item)),
        Value::String(text) if key.ends_with("trace_id") => {
            assert!(text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()), "{path}: {text}");
        }
        Value::String(text) if key.ends_with("_time") => {
            assert!(text.ends_with('Z') && text.as_bytes()[10] == b'T', "{path}: {text}");
        }
        Value::Number(number) if key.ends_with("_unix_ms") => {
            // What JavaScript reads without loss.
            assert!(number.as_u64().is_some_and(|number| number < 1 << 53), "{path}: {number}");
        }
        _ => assert!(!key.ends_with("unix_nano"), "{path}: {value}"),
    }
}

#[test]
fn every_report_is_an_object_of_the_documented_schema() {
    let cluster = Cluster::builder().hook(HOOK).start();
    cluster.tracer(&["submit", "actor", "actor_tasks:Traced", "--name", "a"]).success();
    for (line, code, expected) in [
        ("version", 0, &["version"] as &[&str]),
        ("submit task demo:my_function", 0, &["id", "trace_id", "result"]),
        ("submit task demo:my_function --no-wait", 0, &["id", "trace_id"]),
        (
            "submit task misbehaving_tasks:exits 3",
            1,
            &["id", "trace_id", "failure", "message", "past_attempts", "exit_code"],
        ),
        ("submit call a wrapped 1", 0, &["id", "trace_id", "result"]),
        ("submit command -- true", 0, &["id", "trace_id", "exit_code", "usage"]),
        (
            "submit command -- false",
            1,
            &["id", "trace_id", "failure", "message", "past_attempts", "exit_code", "usage"],
        ),
        ("get 2", 0, &["id", "state", "submitted_time", "submitted_unix_ms", "ended_time", "result", "attempts"]),
        ("explain 2", 0, &["task", "reasons"]),
        ("wait 2 3", 0, &["tasks", "open", "timed_out", "exit_code"]),
        ("cancel 2", 0, &["tasks"]),
        ("cancel 999", 1, &["tasks", "error"]),
        ("get 999", 1, &["error"]),
        ("get 1.5", 2, &["error"]),
        ("explain 999", 1, &["error"]),
        ("list tasks", 0, &["tasks", "left_out", "forgotten"]),
        ("list tasks --summary", 0, &["functions", "left_out", "filtered_out", "forgotten"]),
        ("list actors", 0, &["actors"]),
        ("list workers", 0, &["workers"]),
        ("list modules", 0, &["modules"]),
        ("list hooks", 0, &["hooks"]),
        ("modules show demo", 0, &["name", "version", "tasks"]),
        ("modules show nope", 1, &["error"]),
        ("hooks check local_tmp_tracing:setup_tracing", 0, &["contract", "description"]),
        ("hooks check local_tmp_tracing:nope", 4, &["refused", "error"]),
        ("hooks undelivered", 0, &["discarded", "spans", "bytes", "hooks"]),
        ("status", 0, &["version", "head_pid", "workers", "tasks", "warnings"]),
        ("start --head", 5, &["error"]),
        ("trace list", 0, &["traces", "left_out", "filtered_out"]),
        ("trace show last", 0, &["trace_id", "root", "missing_parents", "critical_path", "spans"]),
        ("trace show zzz", 2, &["error"]),
        ("trace show abcabcabc", 1, &["error"]),
        ("trace open", 0, &["time", "open", "traces"]),
        ("trace stats", 0, &["names", "left_out", "spans", "without_end"]),
        ("trace list error", 0, &["traces", "left_out", "filtered_out"]),
        ("trace list kind:consumr", 2, &["error"]),
        ("trace diff last last", 0, &["before", "after", "paths", "left_out"]),
        ("trace check --max-spans 100000", 0, &["passed", "traces", "spans", "rules"]),
        ("trace check", 2, &["error"]),
        ("version", 0, &["version"]),
        ("stop", 0, &["head_pid", "stopped"]),
    ] {
        let mut words: Vec<&str> = line.split(' ').collect();
        let at = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        // A version has no other form than this one.
        let format = if line == "version" { &[] as &[&str] } else { &["--format", "json"] };
        words.splice(at..at, format.iter().copied());
        let run = cluster.tracer(&words).status(code);
        if line == "version" {
            run.stdout(&format!("tracer {}\n", env!("CARGO_PKG_VERSION")));
            continue;
        }
        let report = run.json();
        assert_eq!(fields(&report).first(), Some(&"schema_version"), "`{line}`: {report:#}");
        assert_eq!(report["schema_version"], 1, "`{line}`");
        for field in expected {
            assert!(fields(&report).contains(field), "`{line}` has no `{field}`: {report:#}");
        }
        check_forms(line, "", &report);
        if expected.contains(&"error") {
            assert_eq!(fields(&report["error"]), ["kind", "message", "hint", "exit_code"], "`{line}`");
            assert_eq!(report["error"]["exit_code"], code, "`{line}`");
        }
    }
}

#[test]
fn the_http_api_and_the_command_line_say_the_same() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http").arg("127.0.0.1:0").start();
    let api = Api::of(&cluster);
    api.run(&json!({"function": "misbehaving_tasks:wide", "arguments": [7, [-7]]}));
    api.run(&json!({"function": "misbehaving_tasks:returns_error", "arguments": ["no"]}));
    for id in ["1", "2"] {
        let told = api.get(&format!("/api/v1/tasks/{id}")).status(200).json();
        let got = cluster.tracer(&["get", id, "--format", "json"]).success().json();
        assert_eq!(told, got);
        assert_eq!(fields(&told)[0], "schema_version");
        check_forms("task", "", &told);
    }
    let list = api.get("/api/v1/tasks").json();
    assert_eq!(list["tasks"], cluster.tracer(&["list", "tasks", "--format", "json"]).success().json()["tasks"]);
    for path in ["/api/v1", "/api/v1/tasks", "/api/v1/workers", "/api/v1/status"] {
        let answer = api.get(path).status(200).json();
        assert_eq!(answer["schema_version"], 1, "{path}: {answer:#}");
        check_forms(path, "", &answer);
    }
}

#[test]
fn the_answer_of_a_command_says_what_it_used() {
    let cluster = Cluster::untraced();
    let burns = "for (( i = 0; i < 100000; i++ )); do :; done; exit $1";
    for (code, wants) in [("0", 0), ("7", 7)] {
        let run = cluster.tracer(&["submit", "command", "--format", "json", "--", "bash", "-c", burns, "-", code]);
        let report = run.status(wants).json();
        let figure = |name: &str| report["usage"][name].as_u64().unwrap_or_else(|| panic!("no `{name}`: {report:#}"));
        assert!(figure("cpu_time_ns") >= 10_000_000, "{report:#}");
        assert!(figure("peak_memory_bytes") >= 500_000 && figure("minor_page_faults") > 0, "{report:#}");
        for name in ["major_page_faults", "voluntary_context_switches", "involuntary_context_switches"] {
            figure(name);
        }
    }
    let run = cluster.tracer(&["submit", "command", "--format", "json", "--", "no_such_program_here"]);
    assert_eq!(run.status(127).json()["usage"], Value::Null);
}

#[test]
fn lines_of_a_map_are_objects_too() {
    let cluster = Cluster::untraced();
    let lines = cluster.file("lines");
    std::fs::write(&lines, "0\n").expect("the folder is ours");
    let map = [
        "submit",
        "task",
        "misbehaving_tasks:makes_spans",
        "--map",
        lines.to_str().expect("a plain name"),
        "--format",
        "json",
    ];
    let report = cluster.tracer(&map).success().json();
    assert_eq!(report, json!({"schema_version": 1, "line": 1, "id": 1, "trace_id": null, "result": 0}));
}

#[test]
fn what_a_command_writes_does_not_mix_with_its_object() {
    let cluster = Cluster::untraced();
    let run =
        cluster.tracer(&["submit", "command", "--format", "json", "--", "sh", "-c", "echo out; exit 7"]).status(7);
    assert_eq!(run.json()["exit_code"], 7);
    run.stderr_contains(") out\n");
}
