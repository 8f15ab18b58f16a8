//! The default hook in this process: spans made with the SDK's own API, read back from the file.

use std::fs;
use std::path::Path;
use std::process::Command;

use opentelemetry::trace::{
    Event, Link, Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState,
    Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, SdkTracer, SdkTracerProvider, ShouldSample};
use serde_json::{Value as Json, json};
use tracer_local_tmp_tracing::{FileProcessor, setup_tracing_in};
use tracer_sdk::hook::{DurableProcessor, IntoTracing};
use tracer_span_file::{Counts, Rotation};

struct Traced {
    processor: FileProcessor,
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

fn traced_in(dir: &Path) -> Traced {
    traced_with(dir, Sampler::AlwaysOn)
}

fn traced_with(dir: &Path, sampler: impl ShouldSample + 'static) -> Traced {
    let processor = FileProcessor::try_new(dir, Rotation::default()).unwrap();
    let resource = Resource::builder_empty()
        .with_attributes([KeyValue::new("service.name", "test"), KeyValue::new("a", 1)])
        .build();
    let provider = SdkTracerProvider::builder()
        .with_sampler(Box::new(sampler) as Box<dyn ShouldSample>)
        .with_resource(resource)
        .with_span_processor(processor.clone())
        .build();
    let tracer = provider.tracer("test");
    Traced { processor, provider, tracer }
}

fn file_in(dir: &Path) -> std::path::PathBuf {
    dir.join(format!("{}.json", std::process::id()))
}

fn lines(dir: &Path) -> Vec<Json> {
    let text = fs::read_to_string(file_in(dir)).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

fn names(dir: &Path) -> Vec<String> {
    lines(dir).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_span_of_the_sdk_becomes_its_line() {
    let temp = tempfile::tempdir().unwrap();
    let traced = traced_in(temp.path());
    let state = TraceState::from_key_value([("rojo", "1")]).unwrap();
    let parent = SpanContext::new(TraceId::from(0xab), SpanId::from(0xcd), TraceFlags::SAMPLED, true, state);
    let time = |micros| std::time::UNIX_EPOCH + std::time::Duration::from_micros(micros);
    let mut span = traced
        .tracer
        .span_builder("whole")
        .with_kind(SpanKind::Producer)
        .with_start_time(time(1))
        .with_attributes([
            KeyValue::new("b", true),
            KeyValue::new("i", -1),
            KeyValue::new("f", 0.5),
            KeyValue::new("s", "t"),
            KeyValue::new("bs", Value::Array(Array::Bool(vec![true]))),
            KeyValue::new("is", Value::Array(Array::I64(vec![1, 2]))),
            KeyValue::new("fs", Value::Array(Array::F64(vec![]))),
            KeyValue::new("ss", Value::Array(Array::String(vec!["x".into(), "y".into()]))),
        ])
        .with_links(vec![Link::new(parent.clone(), vec![KeyValue::new("why", "retry")], 0)])
        .with_events(vec![Event::new("moment", time(2), vec![KeyValue::new("n", 1)], 0)])
        .start_with_context(&traced.tracer, &Context::new().with_remote_span_context(parent));
    span.set_status(Status::error("broke"));
    span.set_attribute(KeyValue::new("i", 7));
    span.end_with_timestamp(time(3));
    traced.processor.commit().unwrap();

    let own = span.span_context().span_id();
    let expected = json!({
        "name": "whole",
        "context": {
            "trace_id": format!("0x{:032x}", 0xab),
            "span_id": format!("0x{own}"),
            "trace_state": "['{key=rojo, value=1}']",
        },
        "kind": "SpanKind.PRODUCER",
        "parent_id": format!("0x{:016x}", 0xcd),
        "start_time": "1970-01-01T00:00:00.000001Z",
        "end_time": "1970-01-01T00:00:00.000003Z",
        "status": {"status_code": "ERROR", "description": "broke"},
        "attributes": {
            "b": true, "i": 7, "f": 0.5, "s": "t", "bs": [true], "is": [1, 2], "fs": [], "ss": ["x", "y"],
        },
        "events": [{"name": "moment", "timestamp": "1970-01-01T00:00:00.000002Z", "attributes": {"n": 1}}],
        "links": [{
            "context": {
                "trace_id": format!("0x{:032x}", 0xab),
                "span_id": format!("0x{:016x}", 0xcd),
                "trace_state": "['{key=rojo, value=1}']",
            },
            "attributes": {"why": "retry"},
        }],
        "resource": {"attributes": {"a": 1, "service.name": "test"}, "schema_url": ""},
    });
    assert_eq!(lines(temp.path()), [expected]);
    let text = fs::read_to_string(file_in(temp.path())).unwrap();
    assert!(
        text.ends_with(",\"resource\":{\"attributes\":{\"a\":1,\"service.name\":\"test\"},\"schema_url\":\"\"}}\n")
    );
}

#[test]
fn nothing_is_written_before_it_is_asked_for_and_everything_after() {
    let temp = tempfile::tempdir().unwrap();
    let traced = traced_in(temp.path());
    traced.processor.commit().unwrap();
    assert!(!file_in(temp.path()).exists());
    traced.tracer.start("first").end();
    assert!(!file_in(temp.path()).exists());
    traced.processor.commit().unwrap();
    assert_eq!(names(temp.path()), ["first"]);
    traced.tracer.start("second").end();
    traced.provider.force_flush().unwrap();
    traced.tracer.start("third").end();
    traced.provider.shutdown().unwrap();
    assert_eq!(names(temp.path()), ["first", "second", "third"]);
}

#[derive(Clone, Debug)]
struct RecordOnly;

impl ShouldSample for RecordOnly {
    fn should_sample(
        &self,
        _: Option<&Context>,
        _: TraceId,
        _: &str,
        _: &SpanKind,
        _: &[KeyValue],
        _: &[Link],
    ) -> SamplingResult {
        let decision = SamplingDecision::RecordOnly;
        SamplingResult { decision, attributes: Vec::new(), trace_state: TraceState::NONE }
    }
}

/// Returns how many files in `dir` this process has open.
fn open_files(dir: &Path) -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    descriptors
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.parent() == Some(dir))
        .count()
}

#[test]
fn the_file_is_complete_and_closed_at_shutdown_and_set_ups_leave_none_open() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    for set_up in 1..=10 {
        let traced = traced_in(&dir);
        drop(traced.tracer.start("before"));
        traced.provider.force_flush().unwrap();
        assert_eq!(open_files(&dir), 1, "set-up {set_up}");
        drop(traced.tracer.start("last"));
        traced.provider.shutdown().unwrap();
        assert_eq!(open_files(&dir), 0, "set-up {set_up}");
        assert_eq!(lines(&dir).len(), 2 * set_up, "set-up {set_up}");
        assert_eq!(names(&dir).last().map(String::as_str), Some("last"));
        // The tracer, which keeps the provider, is dropped after it.
        drop(traced.provider);
    }
}

#[test]
fn a_span_that_is_only_recorded_is_not_written() {
    let temp = tempfile::tempdir().unwrap();
    let traced = traced_with(temp.path(), RecordOnly);
    let mut span = traced.tracer.start("recorded");
    assert!(span.is_recording());
    span.end();
    traced.processor.commit().unwrap();
    assert!(!file_in(temp.path()).exists());
}

#[test]
fn a_full_buffer_is_written_without_being_asked() {
    let temp = tempfile::tempdir().unwrap();
    let traced = traced_in(temp.path());
    let text = "x".repeat(10_000);
    let span = || {
        traced.tracer.span_builder("long").with_attributes([KeyValue::new("text", text.clone())]).start(&traced.tracer);
    };
    // More than 128 KiB with the last of them.
    (0..12).for_each(|_| span());
    assert!(!file_in(temp.path()).exists());
    span();
    assert_eq!(lines(temp.path()).len(), 13);
    traced.processor.commit().unwrap();
    assert_eq!(lines(temp.path()).len(), 13);
}

#[test]
fn threads_share_the_file_without_mixing_their_lines() {
    let temp = tempfile::tempdir().unwrap();
    let traced = traced_in(temp.path());
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let (tracer, processor) = (&traced.tracer, &traced.processor);
            threads.spawn(move || {
                for number in 0..500 {
                    tracer.start(format!("{thread}/{number:03}")).end();
                    if number % 50 == 0 {
                        processor.commit().unwrap();
                    }
                }
            });
        }
    });
    traced.processor.commit().unwrap();
    let names = names(temp.path());
    assert_eq!(names.len(), 4_000);
    for thread in 0..8 {
        let own: Vec<&String> = names.iter().filter(|name| name.starts_with(&format!("{thread}/"))).collect();
        assert_eq!(own.len(), 500);
        assert!(own.is_sorted(), "the spans of one thread keep their order");
    }
}

#[test]
fn spans_wait_in_memory_while_the_file_cannot_be_written() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("spans");
    let traced = traced_in(&dir);
    // A folder where the file should be.
    fs::create_dir(file_in(&dir)).unwrap();
    traced.tracer.start("first").end();
    let error = traced.processor.commit().unwrap_err();
    assert!(error.contains("cannot be written: Is a directory"), "{error}");
    assert!(error.ends_with("(1 span waits in memory)"), "{error}");
    traced.tracer.start("second").end();
    assert!(traced.provider.force_flush().is_err());
    fs::remove_dir(file_in(&dir)).unwrap();
    traced.tracer.start("third").end();
    traced.processor.commit().unwrap();
    assert_eq!(names(&dir), ["first", "second", "third"]);
    assert_eq!(traced.processor.counts().failures, 2);
}

#[test]
fn what_does_not_fit_in_memory_is_dropped_counted_and_said() {
    let temp = tempfile::tempdir().unwrap();
    let traced = traced_in(temp.path());
    fs::create_dir(file_in(temp.path())).unwrap();
    let text = "x".repeat(1 << 20);
    for number in 0..12 {
        let attributes = [KeyValue::new("text", text.clone())];
        drop(traced.tracer.span_builder(format!("{number}")).with_attributes(attributes).start(&traced.tracer));
    }
    let error = traced.processor.commit().unwrap_err();
    assert!(error.ends_with("(8 spans wait in memory)"), "{error}");
    fs::remove_dir(file_in(temp.path())).unwrap();
    drop(traced.tracer.start("one too many"));
    traced.processor.commit().unwrap();
    let lost = traced.processor.take_lost().unwrap();
    assert_eq!(lost.spans, 5);
    assert!(lost.reason.ends_with("could not be written, and memory was full"), "{}", lost.reason);
    assert_eq!(traced.processor.take_lost(), None, "it is told once");
    drop(traced.tracer.start("last"));
    traced.processor.commit().unwrap();
    let expected: Vec<String> = (0..8).map(|number| number.to_string()).chain(["last".to_owned()]).collect();
    assert_eq!(names(temp.path()), expected);
    let counts = traced.processor.counts();
    assert_eq!(counts.lines_dropped, 5);
}

#[test]
fn a_folder_that_cannot_be_used_fails_the_hook() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    let error = setup_tracing_in(&file).into_tracing().unwrap_err().to_string();
    assert!(error.contains("is not a folder"), "{error}");
}

/// The hook as a host runs it: the folder from the environment, the table, a commit. In a process of its own, because the
/// environment is the whole process's.
#[test]
fn the_hook_writes_where_the_environment_says() {
    const INSIDE: &str = "LOCAL_TMP_TRACING_TEST";
    if std::env::var_os(INSIDE).is_some() {
        let table = tracer_sdk::hook::export(tracer_local_tmp_tracing::setup_tracing).unwrap();
        // SAFETY: the table lives as long as the process, and what is passed outlives the calls.
        unsafe {
            let table = &*table;
            let scope = tracer_abi::Scope {
                size: size_of::<tracer_abi::Scope>(),
                name: tracer_abi::Str::new("test"),
                version: tracer_abi::Str::EMPTY,
                schema_url: tracer_abi::Str::EMPTY,
                attributes: std::ptr::null(),
                attribute_count: 0,
            };
            let tracer = table.tracer.unwrap()(table.data, &raw const scope);
            let start =
                tracer_abi::SpanStart::new(tracer_abi::Str::new("through the table"), tracer_abi::SPAN_KIND_CONSUMER);
            let span = table.span_start.unwrap()(tracer, &raw const start, std::ptr::null_mut());
            table.span_release.unwrap()(span);
            assert_eq!(table.commit.unwrap()(table.data, std::ptr::null_mut()), tracer_abi::STATUS_OK);
            let description = String::from_utf8_lossy(table.description.as_bytes()).into_owned();
            println!("described as: {description}");
        }
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("deep/spans");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_hook_writes_where_the_environment_says", "--nocapture"]);
    command.env(INSIDE, "1").env("TRACER_SPANS_DIR", &dir).env_remove("OTEL_SERVICE_NAME");
    let output = command.output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    let entries: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert!(stdout.contains(&format!("described as: spans to `{}`", entries[0].display())), "{stdout}");
    let line: Json = serde_json::from_str(&fs::read_to_string(&entries[0]).unwrap()).unwrap();
    assert_eq!(line["name"], "through the table");
    assert_eq!(line["kind"], "SpanKind.CONSUMER");
    let resource = &line["resource"]["attributes"];
    assert_eq!(resource["service.name"], "tracer");
    assert_eq!(entries[0].file_stem().unwrap().to_str(), Some(resource["process.pid"].to_string().as_str()));
    assert_eq!(resource["service.instance.id"].as_str().map(str::len), Some(36));
}

#[test]
fn the_counts_begin_at_nothing() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(traced_in(temp.path()).processor.counts(), Counts::default());
}
