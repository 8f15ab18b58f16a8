//! Proof with a whole backend that others wrote: [Phoenix](https://pypi.org/project/arize-phoenix/), asked back over its API.
//!
//! It is large, so the test is asked for with `TRACER_TEST_PHOENIX`, which names its executable:
//!
//! ```text
//! python3 -m venv phoenix && phoenix/bin/pip install arize-phoenix
//! TRACER_TEST_PHOENIX=$PWD/phoenix/bin/phoenix cargo test --test integration whole_backend
//! ```
//!
//! Phoenix keeps no links, no resource, no scope, no kind and no trace state; these are tested in `collectors`. Its times are
//! floating-point numbers of microseconds.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Background, Cluster, free_port, skip, wait_until, wait_until_within};

const VARIABLE: &str = "TRACER_TEST_PHOENIX";

/// It reads thousands of files before it listens.
const START_LIMIT: Duration = Duration::from_secs(300);

/// Returns the JSON at a path of the API; none while there is no good answer.
fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| serde_json::from_str(body).expect("the API speaks JSON"))
}

/// Without the keys that have no value.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => members
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, without_nulls(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

/// Returns the attributes by key, each value with its type.
fn attributes(list: &Value) -> Value {
    let pairs = list.as_array().into_iter().flatten();
    pairs.map(|pair| (pair["key"].as_str().expect("a key is a text").to_owned(), pair["value"].clone())).collect()
}

struct Phoenix {
    _process: Background,
    port: u16,
    grpc_port: u16,
}

impl Phoenix {
    fn start(cluster: &Cluster, executable: &str) -> Phoenix {
        let (port, grpc_port) = (free_port(), free_port());
        let mut serve = cluster.program(executable);
        serve.arg("serve").env("PHOENIX_WORKING_DIR", cluster.file("phoenix")).env("PHOENIX_HOST", "127.0.0.1");
        serve.env("PHOENIX_PORT", port.to_string()).env("PHOENIX_GRPC_PORT", grpc_port.to_string());
        let process = cluster.spawn(serve);
        wait_until_within(START_LIMIT, "Phoenix answers", || get(port, "/v1/projects"));
        Phoenix { _process: process, port, grpc_port }
    }

    /// Returns the spans of a trace, when so many are there: it takes them in at its own pace.
    #[track_caller]
    fn wait_for_trace(&self, trace_id: &str, count: usize) -> Vec<Value> {
        wait_until(&format!("Phoenix has {count} spans of {trace_id}"), || {
            let path = format!("/v1/projects/default/spans/otlpv1?limit=100&trace_id={trace_id}");
            let found = get(self.port, &path)?["data"].as_array()?.clone();
            (found.len() == count).then(|| found.into_iter().map(without_nulls).collect())
        })
    }
}

#[test]
fn a_whole_backend_has_the_traces_of_both_hooks() {
    let Ok(executable) = std::env::var(VARIABLE) else {
        return skip("phoenix", format_args!("{VARIABLE} does not name its executable"));
    };
    // Phoenix runs in the folder of this one, which outlives those of the heads.
    let place = Cluster::builder().build();
    let phoenix = Phoenix::start(&place, &executable);
    let hooks = [("otlp:setup_tracing", phoenix.port), ("otlp_grpc:setup_tracing", phoenix.grpc_port)];
    for (hook, port) in hooks {
        let cluster = Cluster::builder()
            .hook(hook)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{port}"))
            .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
            .env("OTEL_BSP_SCHEDULE_DELAY", "20")
            .start();
        let submitted = cluster.tracer(&["submit", "task", "--format", "json", "traced_tasks:rich"]).success().json();
        let trace_id = submitted["trace_id"].as_str().expect("the submission is traced");
        let spans = phoenix.wait_for_trace(trace_id, 4);
        let named = |name: &str| spans.iter().find(|span| span["name"] == name).unwrap_or_else(|| panic!("{spans:#?}"));
        let job = named("tracer job");
        let producer = named("traced_tasks.rich tracer.remote");
        let consumer = named("traced_tasks.rich tracer.remote_worker");
        let rich = named("rich and renamed");
        assert_eq!(job["parent_span_id"], Value::Null);
        assert_eq!(producer["parent_span_id"], job["span_id"]);
        assert_eq!(consumer["parent_span_id"], producer["span_id"]);
        assert_eq!(rich["parent_span_id"], consumer["span_id"]);
        for span in &spans {
            assert_eq!(span["trace_id"], trace_id);
            let time = |key: &str| span[key].as_u64().expect("a time is a number");
            assert!(time("start_time_unix_nano") <= time("end_time_unix_nano"), "{span:#}");
        }
        assert_eq!(
            attributes(&consumer["attributes"])["tracer.function"],
            json!({"string_value": "traced_tasks.rich"})
        );
        assert_eq!(rich["status"], json!({"code": 2, "message": "it did not go well"}));
        assert_eq!(
            attributes(&rich["attributes"]),
            json!({
                "bool": {"bool_value": true},
                "int": {"int_value": 8},
                "float": {"double_value": 2.5},
                "text": {"string_value": "é\n\"quoted\""},
                "bools": {"array_value": {"values": [{"bool_value": true}, {"bool_value": false}]}},
                "ints": {"array_value": {"values": [{"int_value": 1}, {"int_value": i64::MIN}]}},
                "floats": {"array_value": {"values": [{"double_value": 0.5}]}},
                "texts": {"array_value": {"values": [{"string_value": "a"}, {"string_value": "b"}]}},
            })
        );
        assert_eq!(rich["events"].as_array().map(Vec::len), Some(1), "{rich:#}");
        assert_eq!(rich["events"][0]["name"], "moment");
        assert_eq!(attributes(&rich["events"][0]["attributes"]), json!({"at": {"string_value": "noon"}}));
        cluster.stop().success();
    }
}
