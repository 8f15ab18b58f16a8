//! A log record from the event of `tracing` to its file, and a value to the counter of its series: by a module and the host, and as an ordinary
//! program does it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider, Temporality};
use tracer::hook::{CallArguments, LoadedTask, Located, Module, OwnSettings, TaskContext, offer_metrics, run_hook};
use tracer::protocol::HookChoice;
use tracer::spool::{SLOT_COUNT, Spool};
use tracer::stored::ValueWriter;
use tracer::task::{JobId, Outcome, TaskId, WorkerId};
use tracer_core::{HookContract, LogEvents, LogSettings};
use tracer_ipc::metrics::instruments::{MODULES_FOLDER, read_folder};

/// Measures events with a message, a number and a text, in a span.
pub(super) fn log_record(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("log record");
    group.throughput(Throughput::Elements(1));
    let folder = super::folder();
    let file = File::create(folder.path().join("log")).expect("the folder can be written to");
    let subscriber = tracing_subscriber::fmt().with_writer(Mutex::new(file)).with_ansi(false).finish();
    let subscriber = tracing::Dispatch::new(subscriber);
    group.bench_function("by tracing-subscriber to a file", |bencher| {
        tracing::dispatcher::with_default(&subscriber, || {
            let _span = tracing::info_span!("a span", order = 7).entered();
            let mut number = 0_u64;
            bencher.iter(|| {
                number += 1;
                tracing::info!(number, text = "as most are", "an event");
            });
        });
    });
    let mut task = None;
    group.bench_function("by a module to the file of log records", |bencher| {
        let task = task.get_or_insert_with(|| load(folder.path(), "logs_many"));
        bencher.iter_custom(|count| {
            let took = run(task, u32::try_from(count).unwrap_or(u32::MAX), folder.path());
            let file = folder.path().join(format!("{}.logs.jsonl", std::process::id()));
            assert!(
                count < 10_000 || file.metadata().is_ok_and(|file| file.len() > 0),
                "the records are in their file"
            );
            took
        });
    });
    group.finish();
}

/// An exporter that is not asked for anything while its metrics are counted.
struct Nowhere;

impl PushMetricExporter for Nowhere {
    async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

/// Measures a counter with two attributes.
pub(super) fn counter(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("counter with two attributes");
    group.throughput(Throughput::Elements(1));
    let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(Nowhere).build()).build();
    let requests = provider.meter("traced_tasks").u64_counter("shop.requests").build();
    group.bench_function("by OpenTelemetry's SDK", |bencher| {
        let mut number = 0_u64;
        bencher.iter(|| {
            number += 1;
            let is_express = number.is_multiple_of(2);
            requests.add(1, &[KeyValue::new("shop.region", "east"), KeyValue::new("shop.express", is_express)]);
        });
    });
    let folder = super::folder();
    offer_metrics(folder.path());
    let mut task = None;
    group.bench_function("by a module to the file of its values", |bencher| {
        let task = task.get_or_insert_with(|| load(folder.path(), "counts_many"));
        bencher.iter_custom(|count| run(task, u32::try_from(count).unwrap_or(u32::MAX), folder.path()));
    });
    group.finish();
    let counted = read_folder(&folder.path().join(MODULES_FOLDER)).expect("the values are in their file");
    assert!(!counted.is_empty(), "nothing was counted");
}

/// Makes this process's tracing, and gets a task ready.
fn load(folder: &Path, task: &str) -> LoadedTask {
    let spool = Spool::create(&folder.join("bench.spool"), SLOT_COUNT).expect("the folder can be written to");
    let settings = OwnSettings {
        spans_dir: folder,
        sampling_ratio: Default::default(),
        logs: LogSettings { events: LogEvents::Log, ..LogSettings::default() },
    };
    let nobody = HookChoice {
        import_string: "no_such_module:hook".into(),
        contract: HookContract::Startup,
        library: Some(folder.join("no_such_module.so")),
        timeout_ms: 1000,
        is_required: false,
        further: Vec::new(),
    };
    // Without a hook, tracer writes spans itself, to this folder.
    let recorder = run_hook(&nobody, settings, Some(Box::leak(Box::new(spool))), Duration::ZERO).recorder;
    let module = Module::load_at("traced_tasks", Located::Library(build())).expect("it was built");
    LoadedTask::find(module, task, recorder).expect("it has the task")
}

/// Logs or counts so many times, and returns how long that took with all that is written meanwhile.
fn run(task: &LoadedTask, count: u32, folder: &Path) -> Duration {
    let context = TaskContext {
        task: TaskId(1),
        attempt: 1,
        actor: None,
        job: JobId(1),
        worker: WorkerId(1),
        node_id: "",
        span: None,
        trace_context: None,
        baggage: "",
        phases: None,
        on_wait: None,
        result: ValueWriter::new(folder, 100),
        keep: &|_| Outcome::Completed,
    };
    let mut arguments = vec![0x91, 0xce];
    arguments.extend(count.to_be_bytes());
    let start = Instant::now();
    let outcome = task.run(&CallArguments::Array(arguments.into()), context, None);
    let took = start.elapsed();
    assert_eq!(outcome, Outcome::Completed);
    took
}

/// Builds the module beside tracer.
fn build() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_tracer")).parent().expect("it is in a folder");
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--package", "traced_tasks", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(folder.parent().expect("it is in a target folder"));
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo can be started");
    assert!(status.success(), "the module `traced_tasks` cannot be built");
    folder.join("libtraced_tasks.so")
}
