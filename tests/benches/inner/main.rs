//! Costs of the parts from the inside: the steps that a task or a span takes once each.
//!
//! `end_to_end` says what a user pays; this says where it goes. Everything here happens per task or per span, so a microsecond
//! more in one of these is a microsecond more for every task that anyone runs.
//!
//! ```text
//! cargo bench --bench inner                  # everything
//! cargo bench --bench inner -- span          # whatever has `span` in its name
//! cargo bench --bench inner -- --quick       # a first impression
//! ```

#[path = "../../support/idle_effects.rs"]
mod idle_effects;
mod json_exporter;
mod seeing;

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group};
use idle_effects::IdleEffects;
use json_exporter::JsonExporter;
use opentelemetry::trace::{Span as _, SpanKind, Tracer as _, TracerProvider as _};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::SdkTracerProvider;
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use tracer::head::reactor::{self, Submission, WorkerExit};
use tracer::head::state::{DriverId, Now, Settings, State};
use tracer::hook::{Attribute, AttributePrefix, Recorder, SpanRequest};
use tracer::propagation::{TraceContext, TraceParent};
use tracer::protocol::frame::{FRAME_LIMIT, FrameBuffer, put_frame};
use tracer::protocol::wire::{Put, Take};
use tracer::protocol::{AttemptResult, Lease, WorkerReady, kind};
use tracer::spool::{Prefix, SLOT_COUNT, SpanOpening, Spool};
use tracer::task::{Envelope, FunctionSpec, JobId, Outcome, TaskId, TaskSpec, TraceLink, WorkerId};
use tracer_core::routes::{RoutePrefix, Routes};
use tracer_local_tmp_tracing::FileProcessor;
use tracer_sdk::hook::{DurableProcessor, Tracing};
use tracer_span_file::{ResourceJson, Rotation, SpanKind as FileSpanKind, Status, Value, write_line};

/// Spans that are committed together, as a busy worker does.
const COMMIT_EVERY: u64 = 128;
/// 2026-11-05T12:00:00Z.
const EPOCH: u64 = 1_793_880_000_000_000_000;
/// Keeps what the benchmarks write small.
const ROTATION: Rotation = Rotation { max_bytes: 16 << 20, keep: 1 };

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("inner-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("target can be written to")
}

/// Rendering one span as its line of the span file, in memory.
fn line(criterion: &mut Criterion) {
    let resource = [("service.name", Value::Str("tracer")), ("process.pid", Value::I64(4711))];
    let resource = ResourceJson::new(&resource[..], "");
    let attributes = [
        ("tracer.remote", Value::Str("function")),
        ("tracer.function", Value::Str("demo.my_function")),
        ("tracer.pid", Value::I64(4711)),
        ("tracer.queued_ns", Value::I64(123_456)),
        ("tracer.node_id", Value::Str("machine")),
    ];
    let mut buffer = Vec::with_capacity(1 << 20);
    criterion.bench_function("line of a span with 5 attributes", |bencher| {
        let mut span_id = 0u64;
        bencher.iter(|| {
            if buffer.len() > 1 << 19 {
                buffer.clear();
            }
            span_id += 1;
            let span = span_of_file(span_id, &attributes);
            write_line(&mut buffer, black_box(&span), &resource);
        });
    });
}

fn span_of_file<'a>(number: u64, attributes: &'a [(&'a str, Value<'a>)]) -> tracer_span_file::Span<'a> {
    tracer_span_file::Span {
        name: "demo.my_function tracer.remote_worker",
        // Two spans to a trace.
        trace_id: u128::from(number / 2 + 1).to_be_bytes(),
        span_id: (number + 1).to_be_bytes(),
        trace_state: "",
        kind: FileSpanKind::Consumer,
        parent_span_id: (number % 2 == 1).then(|| number.to_be_bytes()),
        start_time_unix_nano: EPOCH + number * 1000,
        end_time_unix_nano: EPOCH + number * 1000 + 500,
        status: Status::Unset,
        attributes,
        events: &[],
        links: &[],
    }
}

/// The folder of the process's one tracing.
static SPANS_DIR: OnceLock<TempDir> = OnceLock::new();

fn default_hook() -> Result<Tracing, tracer_local_tmp_tracing::SpanDirError> {
    let processor = FileProcessor::try_new(SPANS_DIR.get_or_init(folder).path(), ROTATION)?;
    Ok(Tracing::builder().with_durable_processor(processor).build())
}

/// Returns the default hook's table, wrapped by the recorder with a spool, as every process of a cluster has it.
fn recorder() -> &'static Recorder {
    static RECORDER: OnceLock<&'static Recorder> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let table = tracer_sdk::hook::export(default_hook).expect("the folder can be written to");
        let path = SPANS_DIR.get_or_init(folder).path().join("bench.spool");
        let spool: &'static Spool =
            Box::leak(Box::new(Spool::create(&path, SLOT_COUNT).expect("the folder can be written to")));
        // SAFETY: a table that a hook returned, which lives as long as the process.
        unsafe { Recorder::install(table, &[], 0, Some(spool), std::time::Duration::ZERO) }
    })
}

/// Attributes that the spans start with.
const ATTRIBUTES: [(&str, Attribute<'_>); 5] = [
    ("tracer.remote", Attribute::Str("function")),
    ("tracer.function", Attribute::Str("demo.my_function")),
    ("tracer.pid", Attribute::I64(4711)),
    ("tracer.queued_ns", Attribute::I64(123_456)),
    ("tracer.node_id", Attribute::Str("machine")),
];

fn attempt<'a>(parent: Option<&'a TraceContext>, attributes: &'a [(&'a str, Attribute<'a>)]) -> SpanRequest<'a> {
    SpanRequest {
        name: "demo.my_function tracer.remote_worker",
        kind: tracer_abi::SPAN_KIND_CONSUMER,
        parent,
        is_parent_remote: parent.is_some(),
        baggage: "",
        start_time_unix_nano: 0,
        attributes,
        prefix: AttributePrefix::NONE,
        link: None,
        is_attempt: false,
        request: None,
    }
}

/// One span from its start to the file: 5 attributes at the start, one more later, committed in batches. Once with the
/// OpenTelemetry SDK alone, as an ordinary program would, and once through the boundary to the hook and through the spool. The
/// difference is what the boundary and surviving a kill cost.
///
/// A task's spans pass the proxy of its module besides. It is not linked in here: tracer's own build has it not, and a
/// benchmark must not change the program that it measures.
fn span(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("span to file");
    group.throughput(Throughput::Elements(1));

    let direct = folder();
    let processor = FileProcessor::try_new(direct.path(), ROTATION).expect("the folder can be written to");
    let provider = SdkTracerProvider::builder().with_span_processor(processor.clone()).build();
    let tracer = provider.tracer_with_scope(InstrumentationScope::builder("bench").build());
    group.bench_function("by the SDK alone", |bencher| {
        let mut commit = Committer::default();
        bencher.iter(|| {
            let mut span = tracer.build(builder());
            span.set_attribute(KeyValue::new("tracer.cpu_time_ns", 1234));
            span.end();
            commit.after_one(|| processor.commit());
        });
    });

    let recorder = recorder();
    group.bench_function("through the boundary and the spool", |bencher| {
        let mut commit = Committer::default();
        bencher.iter(|| {
            let span = recorder.start(&attempt(None, black_box(&ATTRIBUTES)));
            span.set_attributes(&[("tracer.cpu_time_ns", 1234i64.into())]);
            span.end();
            commit.after_one(|| recorder.commit());
        });
    });
    group.bench_function("not sampled, as its parent", |bencher| {
        let parent = TraceParent { trace_id: [1; 16], span_id: [2; 8], flags: 0 };
        let parent = TraceContext { parent, trace_state: String::new() };
        bencher.iter(|| {
            let span = recorder.start(&attempt(Some(black_box(&parent)), &ATTRIBUTES[..1]));
            span.set_attributes(&[("tracer.cpu_time_ns", 1234i64.into())]);
            span.end();
        });
    });
    group.finish();
}

/// The cpu time of a span with 5 attributes from its start to the file, by this and by other means that a program has. It is the time of all threads,
/// because the SDK's batch processor works on one of its own.
fn span_cpu(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cpu time of a span to file");
    group.throughput(Throughput::Elements(1));

    let recorder = recorder();
    group.bench_function("through the boundary and the spool", |bencher| {
        let mut commit = Committer::default();
        bencher.iter_custom(|spans| {
            cpu_time(|| {
                for _ in 0..spans {
                    recorder.start(&attempt(None, &ATTRIBUTES)).end();
                    commit.after_one(|| recorder.commit());
                }
                recorder.commit().expect("the span file can be written to");
            })
        });
    });

    let direct = folder();
    let processor = FileProcessor::try_new(direct.path(), ROTATION).expect("the folder can be written to");
    let provider = SdkTracerProvider::builder().with_span_processor(processor.clone()).build();
    let tracer = provider.tracer("bench");
    group.bench_function("by the SDK and the processor of the default hook", |bencher| {
        let mut commit = Committer::default();
        bencher.iter_custom(|spans| {
            cpu_time(|| {
                for _ in 0..spans {
                    tracer.build(builder()).end();
                    commit.after_one(|| processor.commit());
                }
                processor.commit().expect("the span file can be written to");
            })
        });
    });

    let exporter = JsonExporter::new(direct.path());
    let simple = SdkTracerProvider::builder().with_simple_exporter(exporter).build();
    group.bench_function("by the SDK's simple processor and serde_json", |bencher| {
        let tracer = simple.tracer("bench");
        bencher.iter_custom(|spans| cpu_time(|| (0..spans).for_each(|_| tracer.build(builder()).end())));
    });

    let exporter = JsonExporter::new(direct.path());
    let exported = Arc::clone(&exporter.exported);
    let batch = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
    group.bench_function("by the SDK's batch processor and serde_json", |bencher| {
        let tracer = batch.tracer("bench");
        bencher.iter_custom(|spans| {
            let before = exported.load(Ordering::Relaxed);
            let time = cpu_time(|| {
                for number in 1..=spans {
                    tracer.build(builder()).end();
                    // Its queue is longer. What does not fit there is dropped, which costs less.
                    if number.is_multiple_of(1_024) {
                        batch.force_flush().expect("the file can be written to");
                    }
                }
                batch.force_flush().expect("the file can be written to");
            });
            assert_eq!(exported.load(Ordering::Relaxed) - before, spans, "spans were dropped");
            time
        });
    });
    group.finish();
}

/// Returns the cpu time that all threads of this process take meanwhile.
fn cpu_time(work: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("it is not negative");
    let before = now();
    work();
    now() - before
}

fn builder() -> opentelemetry::trace::SpanBuilder {
    opentelemetry::trace::SpanBuilder::from_name("demo.my_function tracer.remote_worker")
        .with_kind(SpanKind::Consumer)
        .with_attributes([
            KeyValue::new("tracer.remote", "function"),
            KeyValue::new("tracer.function", "demo.my_function"),
            KeyValue::new("tracer.pid", 4711),
            KeyValue::new("tracer.queued_ns", 123_456),
            KeyValue::new("tracer.node_id", "machine"),
        ])
}

/// Commits after every so many spans.
#[derive(Default)]
struct Committer {
    spans: u64,
}

impl Committer {
    fn after_one(&mut self, commit: impl FnOnce() -> Result<(), String>) {
        self.spans += 1;
        if self.spans.is_multiple_of(COMMIT_EVERY) {
            commit().expect("the span file can be written to");
        }
    }
}

/// Measures a span's slot in the spool, from open to free, which makes the span survive its process.
fn spool(criterion: &mut Criterion) {
    let folder = folder();
    let spool = Spool::create(&folder.path().join("bench.spool"), SLOT_COUNT).expect("the folder can be written to");
    let attributes: Vec<_> = ["tracer.remote", "tracer.function", "tracer.pid", "tracer.queued_ns", "tracer.node_id"]
        .into_iter()
        .map(|key| tracer_abi::KeyValue {
            key: tracer_abi::Str::new(key),
            value: tracer_abi::Value { tag: tracer_abi::VALUE_I64, as_: tracer_abi::ValueUnion { i64_: 4711 } },
        })
        .collect();
    criterion.bench_function("spool: open, 5 attributes, end, written", |bencher| {
        let mut spans = 0u64;
        bencher.iter(|| {
            spans += 1;
            let slot = spool
                .open(&SpanOpening {
                    trace_id: [1; 16],
                    span_id: spans.to_be_bytes(),
                    parent_span_id: [2; 8],
                    is_parent_remote: true,
                    trace_flags: 1,
                    trace_state: b"",
                    start_time_unix_nano: EPOCH,
                    kind: tracer_abi::SPAN_KIND_CONSUMER,
                    name: b"demo.my_function tracer.remote_worker",
                    scope: b"tracer",
                    scope_version: b"0.1.0",
                    prefix: Prefix::NONE,
                    task_id: 7,
                    is_attempt: true,
                })
                .expect("written slots are free again");
            // SAFETY: the attributes point to literals.
            unsafe { spool.set_attributes(slot, black_box(&attributes)) };
            spool.end(slot, EPOCH + 1);
            spool.handed_over(slot, true);
            if spans.is_multiple_of(COMMIT_EVERY) {
                let ended = spool.take_handed_over(true);
                spool.written(ended);
            }
        });
    });
}

fn envelope() -> Envelope<'static> {
    Envelope {
        trace: Some(TraceLink { trace_id: [1; 16], span_id: [2; 8], trace_flags: 1, trace_state: "" }),
        ..Envelope::of(TaskSpec::Function(FunctionSpec::of_task("demo", "my_function", &[0x90])))
    }
}

fn envelope_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    envelope().encode(&mut bytes);
    bytes
}

/// Measures a task on the wire: its envelope, and its share of a frame.
fn wire(criterion: &mut Criterion) {
    const LEASES: u64 = 128;
    let mut out = Vec::new();
    criterion.bench_function("envelope: encode", |bencher| {
        let envelope = envelope();
        bencher.iter(|| {
            out.clear();
            black_box(&envelope).encode(&mut out);
        });
    });
    let bytes = envelope_bytes();
    criterion.bench_function("envelope: decode", |bencher| {
        bencher.iter(|| Envelope::decode(black_box(&bytes)).expect("it was encoded before").name.len());
    });

    let lease = |number| Lease {
        number,
        task: TaskId(number),
        attempt: 1,
        job: JobId(1),
        submitted_unix_nano: EPOCH,
        previous: None,
        envelope: &bytes,
        queued: None,
        inputs: &[],
    };
    let mut group = criterion.benchmark_group("frame");
    group.throughput(Throughput::Elements(LEASES));
    let mut out = Vec::new();
    group.bench_function("encode 128 leases", |bencher| {
        bencher.iter(|| {
            out.clear();
            put_frame(&mut out, kind::LEASES, |out| (0..LEASES).for_each(|number| black_box(lease(number)).put(out)));
            out.len()
        });
    });
    let mut buffer = FrameBuffer::new();
    group.bench_function("decode 128 leases", |bencher| {
        bencher.iter(|| {
            buffer.read_from(&mut black_box(out.as_slice())).expect("a slice can be read");
            let (_, body) = buffer.next_frame(FRAME_LIMIT).expect("it is short").expect("it is whole");
            let mut take = Take::new(body);
            let mut tasks = 0;
            while !take.is_empty() {
                tasks += Lease::take(&mut take).expect("it was encoded before").task.0;
            }
            tasks
        });
    });
    let outcome = || Outcome::Returned(vec![1]);
    let result = |lease| AttemptResult {
        lease,
        started_unix_nano: EPOCH,
        run_ns: 1_000,
        span: None,
        outcome: outcome(),
        usage: None,
    };
    let mut body = Vec::new();
    (0..LEASES).for_each(|number| result(number).put(&mut body));
    group.bench_function("encode and decode 128 results", |bencher| {
        let mut out = Vec::new();
        bencher.iter(|| {
            out.clear();
            put_frame(&mut out, kind::RESULTS, |out| out.put_exact(black_box(&body)));
            let mut take = Take::new(&out[5..]);
            let mut run_ns = 0;
            while !take.is_empty() {
                run_ns += AttemptResult::take(&mut take).expect("it was encoded before").run_ns;
            }
            run_ns
        });
    });
    group.finish();
}

/// The head's decisions for one task, from its submission to its end, with many others queued. It must not grow with them.
fn head(criterion: &mut Criterion) {
    let now = Now { monotonic_ns: 1, unix_nano: EPOCH };
    let envelope = envelope_bytes();
    let mut group = criterion.benchmark_group("head: submit, schedule, end a task");
    group.throughput(Throughput::Elements(1));
    for queued in [10, 1_000, 100_000, 1_000_000] {
        group.bench_function(BenchmarkId::new("queued", queued), |bencher| {
            let mut state = State::new(Settings::of_workers(2));
            let mut effects = IdleEffects::default();
            for worker in [WorkerId(1), WorkerId(2)] {
                reactor::on_worker_started(&mut state, worker, 1000 + worker.0 as u32, now);
                let ready = WorkerReady { tracing: "none".into(), hook_failure: None };
                reactor::on_worker_ready(&mut state, &mut effects, worker, ready, now);
            }
            let submit = |state: &mut State, tag| {
                let submission = Submission {
                    driver: Some(DriverId(1)),
                    tag,
                    job: JobId(1),
                    bytes: black_box(&envelope),
                    envelope: Envelope::decode(black_box(&envelope)).expect("the envelope is whole"),
                    queued_unix_nano: EPOCH,
                };
                reactor::on_submission(state, submission, now);
            };
            (0..queued).for_each(|tag| submit(&mut state, tag));
            let mut tag = queued;
            bencher.iter(|| {
                submit(&mut state, tag);
                tag += 1;
                reactor::schedule(&mut state, &mut effects, now);
                let (worker, lease) = effects.leases.pop_front().expect("there is work, so there are leases");
                let outcome = Outcome::Returned(vec![1]);
                let result =
                    AttemptResult { lease, started_unix_nano: EPOCH, run_ns: 1_000, span: None, outcome, usage: None };
                reactor::on_result(&mut state, &mut effects, worker, result, now);
            });
            state.check().expect("the parts agree");
        });
    }
    group.finish();
}

/// The head's decisions with each wake-up of its loop, in memory alone, with few and many workers and tasks. They must grow with neither. What it
/// takes of memory is written to standard error.
fn scale(criterion: &mut Criterion) {
    for (workers, queued) in
        [10, 1_000, 10_000].into_iter().flat_map(|workers| [(workers, 1_000), (workers, 10_000_000)])
    {
        let mut group = criterion.benchmark_group(format!("head: {workers} workers, {queued} tasks"));
        // Only if something of the group is wanted: it takes a while.
        let mut simulation = None;
        for tasks in [1, 128] {
            group.throughput(Throughput::Elements(tasks));
            group.bench_function(
                BenchmarkId::new("a wake-up with so many submissions and results", tasks),
                |bencher| {
                    let simulation = simulation.get_or_insert_with(|| Simulation::new(workers, queued));
                    bencher.iter(|| simulation.wake_up(tasks));
                },
            );
        }
        group.throughput(Throughput::Elements(1));
        group.bench_function("a wake-up with the start and the end of a worker", |bencher| {
            let simulation = simulation.get_or_insert_with(|| Simulation::new(workers, queued));
            bencher.iter(|| simulation.start_and_end_worker());
        });
        group.finish();
        if let Some(simulation) = simulation {
            simulation.state.check().expect("the parts agree");
        }
    }
}

/// A head without a process.
struct Simulation {
    state: State,
    effects: IdleEffects,
    envelope: Vec<u8>,
    next_tag: u64,
    next_worker: u64,
}

impl Simulation {
    const START: Now = Now { monotonic_ns: 1, unix_nano: EPOCH };
    /// The workers have lived for a while.
    const LATER: Now = Now { monotonic_ns: 5_000_000_000, unix_nano: EPOCH + 5_000_000_000 };

    fn new(workers: u64, queued: u64) -> Simulation {
        let mut simulation = Simulation {
            state: State::new(Settings::of_workers(workers as usize)),
            effects: IdleEffects::default(),
            envelope: envelope_bytes(),
            next_tag: 0,
            next_worker: 1,
        };
        for _ in 0..workers {
            simulation.start_worker(Simulation::START);
        }
        (0..queued).for_each(|_| simulation.submit());
        eprintln!("{} bytes of memory with {workers} workers and {queued} tasks", resident_bytes());
        // Until it is known how long the tasks take, each worker is given one.
        (0..workers.min(queued)).for_each(|_| simulation.wake_up(1));
        simulation
    }

    fn start_worker(&mut self, now: Now) -> WorkerId {
        let worker = WorkerId(self.next_worker);
        self.next_worker += 1;
        reactor::on_worker_started(&mut self.state, worker, 1000 + worker.0 as u32, now);
        let ready = WorkerReady { tracing: "none".into(), hook_failure: None };
        reactor::on_worker_ready(&mut self.state, &mut self.effects, worker, ready, now);
        worker
    }

    fn submit(&mut self) {
        let submission = Submission {
            driver: Some(DriverId(1)),
            tag: self.next_tag,
            job: JobId(1),
            bytes: black_box(&self.envelope),
            envelope: Envelope::decode(black_box(&self.envelope)).expect("the envelope is whole"),
            queued_unix_nano: EPOCH,
        };
        self.next_tag += 1;
        reactor::on_submission(&mut self.state, submission, Simulation::LATER);
    }

    /// Simulates a wake-up: so many tasks come, and as many of those end that were begun.
    fn wake_up(&mut self, tasks: u64) {
        for _ in 0..tasks {
            self.submit();
            let Some((worker, lease)) = self.effects.leases.pop_front() else { continue };
            let outcome = Outcome::Returned(vec![1]);
            let result =
                AttemptResult { lease, started_unix_nano: EPOCH, run_ns: 1_000, span: None, outcome, usage: None };
            reactor::on_result(&mut self.state, &mut self.effects, worker, result, Simulation::LATER);
        }
        self.decide();
    }

    /// A worker gets ready and is gone before it is given anything.
    fn start_and_end_worker(&mut self) {
        let worker = self.start_worker(Simulation::LATER);
        let exit = WorkerExit { cause: "exited with code 3".into(), error_type: "exit:3".into(), memory: None };
        reactor::on_worker_exited(&mut self.state, &mut self.effects, worker, &exit, Simulation::LATER);
        self.decide();
    }

    /// Makes the decisions of the head at the end of a wake-up.
    fn decide(&mut self) {
        let (state, effects, now) = (&mut self.state, &mut self.effects, Simulation::LATER);
        reactor::start_missing_workers(state, effects, now);
        reactor::fail_if_no_worker(state, effects, now);
        reactor::schedule(state, effects, now);
        black_box(reactor::on_tick(state, effects, 30_000_000_000, now));
    }
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("a process can read of itself");
    let pages: usize = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second is a number");
    pages * rustix::param::page_size()
}

/// `tracer trace` on a full folder: reading and grouping everything, figures, other formats.
fn load(criterion: &mut Criterion) {
    const SPANS: u64 = 100_000;
    let folder = folder();
    write_spans(folder.path(), SPANS);
    let mut group = criterion.benchmark_group("trace");
    group.throughput(Throughput::Elements(SPANS)).sample_size(10);
    group.bench_function("load 100,000 spans", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                let loaded = tracer::trace::load(folder.path()).expect("the folder can be read");
                assert_eq!(loaded.traces.len() as u64, SPANS / 2);
                loaded
            },
            BatchSize::PerIteration,
        );
    });
    let loaded = tracer::trace::load(folder.path()).expect("the folder can be read");
    let traces: Vec<_> = loaded.traces.iter().collect();
    let of_otlp = self::folder();
    let mut lines = Vec::new();
    // A span a line, as the hook `otlp_file` writes them.
    for trace in &traces {
        for span in &trace.spans {
            let one = tracer::trace::Trace { id: trace.id, spans: vec![span.clone()], duplicates: 0 };
            tracer::trace::export::otlp(&[&one], &mut lines).expect("a vector takes everything");
        }
    }
    std::fs::write(of_otlp.path().join("1.otlp.jsonl"), lines).expect("the folder can be written to");
    group.bench_function("load 100,000 spans in OTLP", |bencher| {
        bencher.iter_batched(
            || (),
            |()| {
                let loaded = tracer::trace::load(of_otlp.path()).expect("the folder can be read");
                assert_eq!(loaded.traces.len() as u64, SPANS / 2);
                loaded
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("figures of 100,000 spans", |bencher| bencher.iter(|| loaded.stats(None)));
    group.bench_function("100,000 spans to OTLP", |bencher| {
        bencher.iter(|| tracer::trace::export::otlp(&traces, &mut std::io::sink()).expect("a sink takes everything"));
    });
    group.bench_function("100,000 spans to Chrome's events", |bencher| {
        bencher.iter(|| tracer::trace::export::chrome(&traces, &mut std::io::sink()).expect("a sink takes everything"));
    });
    group.finish();
}

fn write_spans(folder: &Path, count: u64) {
    let resource = ResourceJson::new(&[("service.name", Value::Str("tracer")), ("process.pid", Value::I64(1))][..], "");
    let mut lines = Vec::new();
    for number in 0..count {
        let attributes = [
            ("tracer.remote", Value::Str("function")),
            ("tracer.function", Value::Str("demo.my_function")),
            ("tracer.pid", Value::I64(1)),
            ("tracer.task_id", Value::I64(number as i64)),
            ("tracer.node_id", Value::Str("machine")),
        ];
        write_line(&mut lines, &span_of_file(number, &attributes), &resource);
    }
    std::fs::write(folder.join("1.json"), lines).expect("the folder can be written to");
}

/// Finding the application of a path: of one route, and of 1,000.
fn routes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route of a path");
    for count in [1, 1_000] {
        let prefix = |number: usize| -> RoutePrefix { format!("/of/{number}").parse().expect("it is one") };
        let routes = Routes::new((0..count).map(|number| (prefix(number), number))).expect("each is another");
        let path = format!("/of/{}/and/further", count - 1);
        group.bench_function(BenchmarkId::from_parameter(count), |bencher| {
            bencher.iter(|| routes.find(black_box(&path)).map(|(_, number)| *number));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(3));
    targets = line, span, span_cpu, spool, wire, head, scale, load,
        routes, seeing::seeing
}

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    // The tracing of a process is never dropped, so its folder is not either.
    if let Some(folder) = SPANS_DIR.get() {
        let _ = std::fs::remove_dir_all(folder.path());
    }
}
