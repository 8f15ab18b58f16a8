//! A log record from the event of `tracing` to its file, and a value to the counter of its series: by a module and the host, and as an ordinary
//! program does it. Both by turns in one process, which runs for that alone: it takes tracing for good.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

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

use super::super::cluster;
use super::super::report::{Figure, Variant, nanos, percentile};
use super::super::{Failure, Run, each, say};

/// The name of the role.
pub(crate) const ROLE: &str = "modules";

/// Values of a turn: so many that what a task takes besides is nothing of each.
const VALUES: u32 = 500_000;

/// Nanoseconds of one event or one value: as an ordinary program does it, and by a module.
type Pair = [f64; 2];

pub(super) fn measure(run: &mut Run) -> Result<(), Failure> {
    let count = run.effort.tasks;
    say(&format!("{count} events and values, {} times", run.effort.runs));
    let mut role = Command::new(std::env::current_exe()?);
    let role = role.args(["role", ROLE, &count.to_string(), &run.effort.runs.to_string()]).output()?;
    if !role.status.success() {
        return Err(String::from_utf8_lossy(&role.stderr).into());
    }
    let [events, values]: [Vec<Pair>; 2] = serde_json::from_slice(&role.stdout)?;
    for (name, beside, found) in [
        ("event of tracing as a log record", "tracing-subscriber to a file", events),
        ("counter with two attributes, through the ABI", "OpenTelemetry's SDK", values),
    ] {
        let figure = Figure::time(name, Variant::Traced, f64::NAN).over(&each(&found, |pair| pair[1]));
        let floor = percentile(&each(&found, |pair| pair[0]), 50);
        run.report.add(Figure { floor: Some((beside, floor)), ..figure });
    }
    Ok(())
}

/// Runs a copy of this program in its role, with a count and the number of turns. Prints JSON.
pub(crate) fn run_role(role: &[String]) -> Result<(), Failure> {
    let [_, count, turns] = role else { return Err("the role takes a count and the number of turns".into()) };
    let (count, turns): (u32, usize) = (count.parse()?, turns.parse()?);
    let folder = tempfile::Builder::new().prefix("modules-").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    offer_metrics(folder.path());
    let [logs, counts] = ["logs_many", "counts_many"].map(|task| load(folder.path(), task));
    let (logs, counts) = (logs?, counts?);
    let (subscriber, counter) = (subscriber(folder.path())?, counter());
    let (mut events, mut values) = (Vec::new(), Vec::new());
    // The first turn touches memory and files for the first time.
    for turn in 0..=turns {
        let pairs = [
            [log_by_subscriber(&subscriber, count), of_task(&logs, count, folder.path())?],
            [count_by_sdk(&counter, VALUES), of_task(&counts, VALUES, folder.path())?],
        ];
        if turn > 0 {
            events.push(pairs[0].map(|took| nanos(took) / f64::from(count)));
            values.push(pairs[1].map(|took| nanos(took) / f64::from(VALUES)));
        }
    }
    let records = folder.path().join(format!("{}.logs.jsonl", std::process::id()));
    if !records.metadata().is_ok_and(|file| file.len() > 0) {
        return Err("the log records are not in their file".into());
    }
    if read_folder(&folder.path().join(MODULES_FOLDER))?.is_empty() {
        return Err("nothing was counted".into());
    }
    println!("{}", serde_json::to_string(&[events, values])?);
    Ok(())
}

fn subscriber(folder: &Path) -> Result<tracing::Dispatch, Failure> {
    let file = Mutex::new(File::create(folder.join("log"))?);
    Ok(tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(file).with_ansi(false).finish()))
}

/// Logs events with a message, a number and a text, in a span.
fn log_by_subscriber(subscriber: &tracing::Dispatch, count: u32) -> Duration {
    tracing::dispatcher::with_default(subscriber, || {
        let _span = tracing::info_span!("a span", order = 7).entered();
        let begun = Instant::now();
        for number in 0..count {
            tracing::info!(number, text = "as most are", "an event");
        }
        begun.elapsed()
    })
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

/// A counter of the SDK, with what reads it.
type Counter = (SdkMeterProvider, opentelemetry::metrics::Counter<u64>);

fn counter() -> Counter {
    let provider = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(Nowhere).build()).build();
    let counter = provider.meter("traced_tasks").u64_counter("shop.requests").build();
    (provider, counter)
}

fn count_by_sdk((_, requests): &Counter, count: u32) -> Duration {
    let begun = Instant::now();
    for number in 0..count {
        let is_express = number.is_multiple_of(2);
        requests.add(1, &[KeyValue::new("shop.region", "east"), KeyValue::new("shop.express", is_express)]);
    }
    begun.elapsed()
}

/// Makes this process's tracing, and gets a task ready.
fn load(folder: &Path, task: &str) -> Result<LoadedTask, Failure> {
    let spool = Spool::create(&folder.join(format!("{task}.spool")), SLOT_COUNT)?;
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
    let library = Located::Library(cluster::library_path("traced_tasks")?);
    let module = Module::load_at("traced_tasks", library).map_err(|error| error.to_string())?;
    Ok(LoadedTask::find(module, task, recorder).map_err(|error| error.to_string())?)
}

/// Logs or counts so many times, and returns how long that took with all that is written meanwhile.
fn of_task(task: &LoadedTask, count: u32, folder: &Path) -> Result<Duration, Failure> {
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
    let begun = Instant::now();
    let outcome = task.run(&CallArguments::Array(arguments.into()), context, None);
    let took = begun.elapsed();
    if outcome == Outcome::Completed { Ok(took) } else { Err(format!("the task ended with {outcome:?}").into()) }
}
