//! Log records of modules: beside the span files, with the ids of their span, whatever happens to their process.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::dead_heads::kill_all;
use crate::seen_means_recorded::Submitter;
use crate::support::{Api, Cluster, HOOK, Random, Receiver, compile_c, kill, wait_until};

/// A log record of a file, with its scope.
#[derive(Clone, Debug)]
struct Record {
    scope: String,
    value: Value,
}

impl Record {
    fn body(&self) -> &str {
        self.value["body"]["stringValue"].as_str().expect("a text")
    }

    /// Returns the span id as span files have it.
    fn span_id(&self) -> String {
        format!("0x{}", self.value["spanId"].as_str().unwrap_or_default())
    }

    fn attribute(&self, key: &str) -> &Value {
        let attributes = self.value["attributes"].as_array().expect("attributes");
        &attributes.iter().find(|attribute| attribute["key"] == key).expect("it has the attribute")["value"]
    }
}

/// Returns the log records in the files of a folder. Each line is whole.
#[track_caller]
fn records_in(folder: &Path) -> Vec<Record> {
    let files = fs::read_dir(folder).expect("the folder is there").map(|entry| entry.expect("a file").path());
    let texts = files
        .filter(|path| path.to_string_lossy().ends_with(".logs.jsonl"))
        .map(|path| fs::read_to_string(path).expect("a file of text"));
    let lines: Vec<Value> = texts
        .flat_map(|text| text.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect::<Vec<_>>())
        .collect();
    let scopes = lines.iter().flat_map(|line| line["resourceLogs"][0]["scopeLogs"].as_array().expect("scopes"));
    let of_scope = scopes.flat_map(|scope| {
        let name = scope["scope"]["name"].as_str().expect("a name").to_owned();
        let records = scope["logRecords"].as_array().expect("records");
        records.iter().map(move |value| Record { scope: name.clone(), value: value.clone() })
    });
    of_scope.collect()
}

#[test]
fn events_of_a_task_are_log_records_below_their_spans() {
    let cluster = Cluster::traced();
    cluster.submit("traced_tasks:logs", &["4"]).success().stdout("8\n");
    // As soon as the task is seen to have ended.
    let records = records_in(&cluster.spans_dir());
    let bodies: Vec<_> = records.iter().map(Record::body).collect();
    assert_eq!(bodies, ["begins", "doubling", "4 is doubled"]);
    let spans = cluster.spans();
    let (attempt, inner) = (spans.attempt_of(1), spans.named("doubles"));
    let ids: Vec<_> = records.iter().map(Record::span_id).collect();
    let id_of = |span: &crate::support::Span| span.value["context"]["span_id"].as_str().expect("an id").to_owned();
    assert_eq!(ids, [id_of(attempt), id_of(inner), id_of(attempt)]);
    let trace = attempt.value["context"]["trace_id"].as_str().expect("an id");
    assert!(
        records.iter().all(|record| format!("0x{}", record.value["traceId"].as_str().unwrap_or_default()) == trace)
    );
    let severities = records.iter().map(|record| (&record.value["severityText"], &record.value["severityNumber"]));
    let expected = [(json!("INFO"), json!(9)), (json!("WARN"), json!(13)), (json!("WARN"), json!(13))];
    assert!(severities.eq(expected.iter().map(|(text, number)| (text, number))), "{records:?}");
    assert!(records.iter().all(|record| record.scope == "traced_tasks"), "{records:?}");
    assert_eq!(records[0].attribute("number"), &json!({"intValue": "4"}));
    for (key, value) in [
        ("half", json!({"doubleValue": 0.5})),
        ("text", json!({"stringValue": "a\"b"})),
        ("right", json!({"boolValue": true})),
        ("debugged", json!({"stringValue": "Some(1)"})),
    ] {
        assert_eq!(records[1].attribute(key), &value);
    }
    for record in &records {
        let file = record.attribute("code.file.path")["stringValue"].as_str().expect("a path");
        assert!(file.ends_with("traced_tasks/src/lib.rs"), "{file}");
        let line = record.attribute("code.line.number")["intValue"].as_str().and_then(|line| line.parse::<u32>().ok());
        assert!(line.is_some_and(|line| line > 100), "{record:?}");
    }
    // Events are events of their span as well.
    assert_eq!(inner.events("doubling").len(), 1);

    let shown = cluster.tracer(&["trace", "show", "last", "--logs"]).success().stdout_text();
    let lines: Vec<_> = shown.lines().collect();
    let at =
        |text: &str| lines.iter().position(|line| line.contains(text)).unwrap_or_else(|| panic!("{text}: {shown}"));
    assert!(at("doubles") < at("WARN doubling"), "{shown}");
    assert!(at("INFO begins") < at("doubles"), "{shown}");
}

/// One record for each span that has ended; the one of a span that its process left open may have come before or after its death.
#[test]
fn no_record_of_an_ended_span_is_lost_and_none_is_twice_when_workers_are_killed() {
    const KILLS: usize = 40;
    const WAVE: u64 = 250;
    let cluster = Cluster::builder().workers(2).hook(HOOK).start();
    let mut random = Random::of_test(&cluster);
    let mut submitter = Submitter::of(&cluster);
    let mut killed = Vec::new();
    let mut submitted = 0;
    for _ in 0..KILLS {
        for _ in 0..WAVE {
            submitter.submit("traced_tasks:logs", submitted);
            submitted += 1;
        }
        for _ in 0..=random.below(WAVE) {
            submitter.next_ended();
        }
        submitter.kill_a_worker(&mut random, &mut killed);
    }
    while (submitter.outcomes.len() as u64) < submitted {
        submitter.next_ended();
    }
    assert_eq!(submitted, 10_000);
    let mut bodies: HashMap<String, Vec<String>> = HashMap::new();
    for record in records_in(&cluster.spans_dir()) {
        bodies.entry(record.span_id()).or_default().push(record.body().to_owned());
    }
    let (mut attempts, mut inner) = (0, 0);
    for span in cluster.spans().iter() {
        let id = span.value["context"]["span_id"].as_str().expect("an id");
        let mut found = bodies.remove(id).unwrap_or_default();
        found.sort_unstable();
        let is_by_itself = span.attribute("tracer.completed_by").is_null();
        let mut expected = if span.name() == "doubles" {
            inner += 1;
            vec!["doubling".to_owned()]
        } else if span.name().ends_with("tracer.remote_worker") {
            attempts += 1;
            vec!["begins".to_owned(), format!("{} is doubled", argument_of(&found))]
        } else {
            Vec::new()
        };
        expected.sort_unstable();
        if is_by_itself {
            assert_eq!(found, expected, "{}", span.value);
        } else {
            assert!(found.iter().all(|body| expected.contains(body)) && found.len() <= 2, "{found:?}");
        }
    }
    assert!(attempts == 10_000 && inner > 5_000, "{attempts} attempts, {inner} inner spans");
    assert!(bodies.is_empty(), "records of no span: {bodies:?}");
    let left = fs::read_dir(cluster.session_dir().join("spool")).expect("the session's folder").count();
    assert!(left < 20, "what dead workers left is removed, but {left} files are there");
}

/// Returns the number in the last record of an attempt.
fn argument_of(bodies: &[String]) -> &str {
    let last = bodies.iter().find_map(|body| body.strip_suffix(" is doubled"));
    last.unwrap_or("no record of")
}

#[test]
fn a_record_of_a_task_that_runs_is_in_the_file_soon_and_stays_when_it_is_killed() {
    let cluster = Cluster::traced();
    let started = cluster.file("started");
    let argument = json!(started).to_string();
    let running = cluster.submit_in_background("traced_tasks:logs_and_waits", &[&argument, "--crash-limit=0"]);
    let record = wait_until("its record is there", || {
        fs::exists(cluster.spans_dir()).is_ok_and(|is| is).then(|| records_in(&cluster.spans_dir()))?.pop()
    });
    assert_eq!(record.body(), "waits");
    let pid = wait_until("it says its process", || fs::read_to_string(&started).ok()?.parse().ok());
    kill(pid, Signal::KILL);
    running.wait().status(1);
    let bodies: Vec<_> = records_in(&cluster.spans_dir()).iter().map(|record| record.body().to_owned()).collect();
    assert_eq!(bodies, ["waits", "goes on"]);
}

#[test]
fn a_module_in_c_makes_log_records() {
    let cluster = Cluster::builder().hook(HOOK).build();
    compile_c("examples/hook_c/hook_c.c", &cluster.file("libhook_c.so"));
    cluster.start_head(&[]).success();
    let library = cluster.file("libhook_c.so");
    cluster.submit(&format!("{}:greet", library.display()), &[]).success();
    let records = records_in(&cluster.spans_dir());
    let [record] = records.as_slice() else { panic!("one record, but found {records:?}") };
    assert_eq!((record.body(), record.scope.as_str()), ("hello from C", "hook_c"));
    assert_eq!((&record.value["severityText"], &record.value["severityNumber"]), (&json!("INFO"), &json!(9)));
    assert_eq!(record.attribute("language"), &json!({"stringValue": "C"}));
    assert_eq!(record.span_id(), cluster.spans().attempt_of(1).span_id());
}

#[test]
fn events_take_the_form_and_the_level_that_is_configured() {
    for (form, level, expected, events) in [
        ("log", "info", &["begins", "doubling", "1 is doubled"][..], 0),
        ("span", "info", &["1 is doubled"], 1),
        ("both", "warn", &["doubling", "1 is doubled"], 1),
        ("log", "debug", &["begins", "too fine", "doubling", "1 is doubled", "too fine"], 0),
        ("log", "off", &[], 1),
    ] {
        let cluster = Cluster::builder().hook(HOOK).build();
        fs::write(cluster.file("tracer.toml"), format!("[logs]\nevents = \"{form}\"\nlevel = \"{level}\"\n"))
            .expect("the test's folder is ours");
        cluster.start_head(&["--config", "tracer.toml"]).success();
        cluster.submit("traced_tasks:logs", &["1"]).success();
        let records = records_in(&cluster.spans_dir());
        let bodies: Vec<_> = records.iter().map(Record::body).collect();
        assert_eq!(bodies, expected, "{form} {level}");
        assert_eq!(cluster.spans().named("doubles").events("doubling").len(), events, "{form} {level}");
    }
}

#[test]
fn log_records_go_to_a_collector_too() {
    let Some(receiver) = Receiver::start(&["200"]) else { return };
    log_records_go_to(&receiver, "otlp:setup_tracing");
}

#[test]
fn log_records_go_to_a_collector_over_grpc_too() {
    let Some(receiver) = Receiver::start_grpc(true, &["200"]) else { return };
    log_records_go_to(&receiver, "otlp_grpc:setup_tracing");
}

#[track_caller]
fn log_records_go_to(receiver: &Receiver, hook: &str) {
    let cluster = Cluster::builder()
        .hook(hook)
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
        .env("OTEL_LOGS_EXPORTER", "otlp")
        .env("OTEL_BLRP_SCHEDULE_DELAY", "20")
        .start();
    cluster.submit("traced_tasks:logs", &["4"]).success();
    let arrived = || -> Vec<Value> {
        let requests = receiver.requests().into_iter().filter(|request| request["path"] == "/v1/logs");
        requests.flat_map(|request| request["logs"].as_array().expect("a list").clone()).collect()
    };
    let records = wait_until("three records have arrived", || Some(arrived()).filter(|records| records.len() >= 3));
    let kept = records_in(&cluster.spans_dir());
    assert_eq!((records.len(), kept.len()), (3, 3), "{records:?}");
    for (record, kept) in records.iter().zip(&kept) {
        assert_eq!(record["body"]["string_value"], kept.value["body"]["stringValue"]);
        assert_eq!(record["scope"], kept.scope.as_str());
        assert_eq!(record["trace_id"], kept.value["traceId"]);
        assert_eq!(record["span_id"], kept.value["spanId"]);
        assert_eq!(record["severity_number"], kept.value["severityNumber"]);
        assert_eq!(record["time_unix_nano"].to_string(), kept.value["timeUnixNano"].as_str().expect("a text"));
        assert_eq!(record["resource"]["service.name"]["string_value"], "tracer");
    }
    assert_eq!(records[1]["attributes"]["half"], json!({"double_value": 0.5}));
}

#[test]
fn records_that_an_absent_collector_does_not_get_are_in_the_file_and_counted() {
    for hook in ["otlp:setup_tracing", "otlp_grpc:setup_tracing"] {
        let cluster = Cluster::builder()
            .hook(hook)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
            .env("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
            .env("OTEL_LOGS_EXPORTER", "otlp")
            .env("OTEL_BLRP_SCHEDULE_DELAY", "20")
            // Most find no room in the queue, the others are sent in vain.
            .env("OTEL_BLRP_MAX_QUEUE_SIZE", "10")
            .start();
        let [worker] = cluster.worker_pids()[..] else { panic!("one worker") };
        cluster.submit("traced_tasks:logs_many", &["100"]).success();
        let given_up = || cluster.status()["spans"]["log_records_given_up"].as_u64().expect("a number");
        wait_until("all are counted", || (given_up() == 100).then_some(()));
        assert_eq!(records_in(&cluster.spans_dir()).len(), 100);
        let line = "100 log records given up: no exporter took them; they are in the files of log records";
        cluster.tracer(&["status"]).success().stdout_contains(line);
        kill(worker, Signal::KILL);
        wait_until("the worker is replaced", || (cluster.worker_pids() != [worker]).then_some(()));
        assert_eq!(given_up(), 100, "they stay counted");
    }
}

#[test]
fn records_that_a_collector_rejects_are_counted_and_the_others_have_arrived() {
    let receivers = [
        ("otlp:setup_tracing", Receiver::start(&["partial:2"])),
        ("otlp_grpc:setup_tracing", Receiver::start_grpc(true, &["partial:2"])),
    ];
    for (hook, receiver) in receivers {
        let Some(receiver) = receiver else { return };
        let cluster = Cluster::builder()
            .hook(hook)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint())
            .env("OTEL_LOGS_EXPORTER", "otlp")
            .env("OTEL_BLRP_SCHEDULE_DELAY", "20")
            .start();
        cluster.submit("traced_tasks:logs_many", &["3"]).success();
        let given_up = || cluster.status()["spans"]["log_records_given_up"].as_u64().expect("a number");
        wait_until("two are counted", || (given_up() == 2).then_some(()));
    }
}

#[test]
fn a_hook_may_bring_an_exporter_of_log_records() {
    let cluster = Cluster::builder().hook("exporters:log_records").build();
    let exported = cluster.file("exported");
    let mut start = cluster.start_command(&[]);
    start.env("EXPORTED_DIR", &exported).env("OTEL_BLRP_SCHEDULE_DELAY", "20");
    cluster.run(start).success();
    let mut submit = cluster.command(&["submit", "task", "traced_tasks:logs", "4"]);
    submit.env("EXPORTED_DIR", &exported);
    cluster.run(submit).success();
    let lines = wait_until("they are exported", || fs::read_to_string(exported.join("log_records")).ok());
    for expected in
        ["traced_tasks Some(Info) Some(String", "begins", "doubling", "half,text,right,debugged,code.file.path"]
    {
        assert!(lines.contains(expected), "{expected}: {lines}");
    }
    assert!(lines.contains(&cluster.spans().attempt_of(1).span_id()[2..]), "{lines}");
}

#[test]
fn a_process_that_dies_between_the_line_and_the_note_of_it_leaves_no_record_twice() {
    let cluster = Cluster::builder().hook(HOOK).build();
    let mut start = cluster.start_command(&[]);
    start.env("TRACER_TEST_KILL_AT", "log_records_written:1").env("TRACER_TEST_KILL_ONCE", cluster.file("killed"));
    cluster.run(start).success();
    cluster.submit("traced_tasks:logs", &["4", "--crash-limit=0"]).status(1);
    let bodies = |cluster: &Cluster| -> Vec<String> {
        records_in(&cluster.spans_dir()).iter().map(|record| record.body().to_owned()).collect()
    };
    assert!(cluster.file("killed").exists(), "it died there");
    assert_eq!(bodies(&cluster), ["begins", "doubling", "4 is doubled"]);
}

#[test]
fn what_a_dead_head_and_its_workers_have_left_is_there_for_whoever_reads() {
    let cluster = Cluster::traced();
    let started = cluster.file("started");
    let argument = json!(started).to_string();
    let _running = cluster.submit_in_background("traced_tasks:logs_and_waits", &[&argument]);
    cluster.wait_for_file(&started);
    kill_all(&cluster);
    for _ in 0..2 {
        let shown = cluster.tracer(&["trace", "show", "last", "--logs"]).success().stdout_text();
        assert_eq!((shown.matches("INFO waits").count(), shown.matches("WARN goes on").count()), (1, 1), "{shown}");
    }
}

/// Returns the entries of `tracer logs`.
#[track_caller]
fn entries(cluster: &Cluster, arguments: &[&str]) -> Vec<Value> {
    let arguments: Vec<&str> = ["logs", "--format", "json"].into_iter().chain(arguments.iter().copied()).collect();
    let run = cluster.tracer(&arguments).success();
    run.stdout_text().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

#[track_caller]
fn sorted_texts(entries: &[Value]) -> Vec<&str> {
    let mut texts: Vec<_> = entries.iter().map(|entry| entry["text"].as_str().expect("a text")).collect();
    texts.sort_unstable();
    texts
}

#[test]
fn records_stand_beside_lines_in_the_order_of_their_times_with_their_spans() {
    let cluster = Cluster::builder().hook(HOOK).arg("--http").arg("127.0.0.1:0").start();
    cluster.submit("traced_tasks:logs_and_prints", &["1"]).success();
    cluster.submit("traced_tasks:logs_and_prints", &["2"]).success();
    let spans = cluster.spans();
    let attempt = spans.attempt_of(2);
    let of_task = entries(&cluster, &["2"]);
    assert_eq!(sorted_texts(&of_task), ["begins", "doubling", "printed 2"]);
    let times: Vec<_> = of_task.iter().map(|entry| entry["unix_nano"].as_u64().expect("a time")).collect();
    assert!(times.is_sorted(), "{times:?}");
    let trace = &cluster.task(2)["trace_id"];
    for entry in &of_task {
        let span = if entry["text"] == "doubling" { "doubles" } else { attempt.name() };
        assert_eq!((&entry["span_name"], &entry["task_id"], &entry["attempt"]), (&json!(span), &json!(2), &json!(1)));
        assert_eq!(&entry["trace_id"], trace);
        let is_line = entry["text"] == "printed 2";
        assert_eq!(entry["stream"], if is_line { "stdout" } else { "record" });
        assert_eq!(entry["severity"].is_null(), is_line);
        if entry["text"] != "doubling" {
            assert_eq!(format!("0x{}", entry["span_id"].as_str().expect("an id")), attempt.span_id());
        }
    }
    let shown = cluster.tracer(&["logs", "2", "--level", "warn"]).success().stdout_text();
    assert_eq!(shown, "WARN doubles: doubling half=0.5 text=\"a\\\"b\" right=true debugged=\"Some(1)\"\n");
    cluster.tracer(&["logs", "2", "--stream", "stdout"]).success().stdout("printed 2\n");
    let of_trace = cluster.tracer(&["logs", "--trace", "last", "--grep", "doub"]).success().stdout_text();
    assert!(of_trace.starts_with("(task 2 pid=") && of_trace.contains("WARN doubles: doubling"), "{of_trace}");

    let api = Api::of(&cluster);
    let answer = |query: &str| api.get(&format!("/api/v1/logs{query}")).status(200).json();
    let of_both = answer("");
    assert_eq!((of_both["entries"].as_array().map(Vec::len), &of_both["left_out"]), (Some(6), &json!(0)));
    let listed = answer("?task=2")["entries"].clone();
    let without_pid = |entry: &Value| {
        let mut entry = entry.clone();
        let fields = entry.as_object_mut().expect("an object");
        fields.retain(|name, _| name != "worker_pid" && name != "schema_version");
        entry
    };
    assert_eq!(listed, Value::Array(of_task.iter().map(without_pid).collect()));
    let trace = trace.as_str().expect("it is traced");
    assert_eq!(answer(&format!("?trace={trace}&stream=record&text=begins"))["entries"][0]["task_id"], 2);
    let newest = answer("?limit=2");
    assert_eq!(newest["left_out"], 4);
    let before = newest["before"].as_str().expect("there are older ones");
    let older = answer(&format!("?limit=10&before={before}"));
    assert_eq!(older["entries"].as_array().map(Vec::len), Some(4));
    let after = older["after"].as_str().expect("a place");
    assert_eq!(answer(&format!("?after={after}"))["entries"], newest["entries"]);
    api.get("/api/v1/logs?task=77").problem(404, "no-such-task");
    api.get("/api/v1/logs?level=loud").problem(400, "invalid-request");

    // Nobody is asked for what lies in files.
    cluster.stop().success();
    assert_eq!(sorted_texts(&entries(&cluster, &["1"])), ["begins", "doubling", "printed 1"]);
    assert_eq!(sorted_texts(&entries(&cluster, &["last"])), ["begins", "doubling", "printed 2"]);
    assert_eq!(sorted_texts(&entries(&cluster, &["--trace", trace])), ["begins", "doubling", "printed 2"]);
}

#[test]
fn records_of_a_running_task_are_followed_and_those_of_its_killed_worker_are_shown() {
    let cluster = Cluster::traced();
    let started = cluster.file("started");
    let argument = json!(started).to_string();
    let _running = cluster.submit_in_background("traced_tasks:logs_and_waits", &[&argument, "--crash-limit=0"]);
    cluster.wait_for_file(&started);
    let following = cluster.tracer_in_background(&["logs", "1", "--follow"]);
    following.wait_for_stdout("waits\n");
    let pid = fs::read_to_string(&started).expect("the pid").parse().expect("a number");
    kill(pid, Signal::KILL);
    let shown = following.wait().success().stdout_text();
    let messages: Vec<_> = shown.lines().map(|line| line.rsplit(": ").next().unwrap_or_default()).collect();
    assert_eq!(messages, ["waits", "goes on"], "{shown}");
}

#[test]
fn an_event_that_names_its_span_is_in_that_one() {
    let cluster = Cluster::traced();
    cluster.submit("traced_tasks:logs_elsewhere", &[]).success();
    let records = records_in(&cluster.spans_dir());
    let bodies: Vec<_> = records.iter().map(Record::body).collect();
    assert_eq!(bodies, ["said elsewhere", "said by nobody"]);
    assert_eq!(records[0].span_id(), cluster.spans().named("elsewhere").span_id());
    assert!(records[1].value["traceId"].is_null() && records[1].value["spanId"].is_null(), "{records:?}");
}
