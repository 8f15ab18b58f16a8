//! How many instructions a task's two spans cost, as valgrind counts them: the same on every day and under any load, so that a
//! change that makes spans dearer is seen. Their bytes are counted by `spans::the_two_spans_of_a_task_take_as_few_bytes_as_is_said`.
//!
//! ```text
//! cargo bench --profile counted --bench instructions
//! ```
//!
//! It fails when a span takes a tenth more than is said here. Another compiler or processor may need other figures. Without valgrind it says so,
//! and counts nothing.
//!
//! The spans are those of a task, made as driver and worker make them: through the boundary to the default hook, recorded in a spool,
//! written in batches. The rest of a process is not in them.

use std::process::{Command, ExitCode};

use tracer::hook::{Attribute, Recorder, SpanRequest};
use tracer::spool::Spool;

/// Instructions of a PRODUCER and a CONSUMER span, from start to file.
const TWO_SPANS: u64 = 16_000;
/// What more is let pass, in percent.
const TOLERANCE: u64 = 10;
/// Spans between two commits, as in a batch of results.
const COMMIT_EVERY: u64 = 64;
/// Pairs of spans that are counted, after as many that are not.
const PAIRS: u64 = 5_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("make"), Some(pairs)) => {
            make(pairs.parse().expect("a number of spans"));
            ExitCode::SUCCESS
        }
        _ => compare(),
    }
}

/// Makes so many pairs of spans.
fn make(pairs: u64) {
    let folder = tempfile::tempdir().expect("a folder");
    // SAFETY: no other thread is there yet.
    unsafe { std::env::set_var("TRACER_SPANS_DIR", folder.path().join("spans")) };
    let table =
        tracer_sdk::hook::export(tracer_local_tmp_tracing::setup_tracing).expect("the folder can be written to");
    let spool = Spool::create(&folder.path().join("test.spool")).expect("the folder can be written to");
    // SAFETY: a table that a hook returned, which lives as long as the process.
    let recorder = unsafe { Recorder::install(table, &[], 0, Some(Box::leak(Box::new(spool)))) };
    for number in 1..=pairs {
        pair(recorder, number as i64);
        if number.is_multiple_of(COMMIT_EVERY) {
            recorder.commit().expect("the folder can be written to");
        }
    }
}

fn pair(recorder: &'static Recorder, number: i64) {
    let request = SpanRequest {
        name: "demo.my_function tracer.remote",
        kind: tracer_abi::SPAN_KIND_PRODUCER,
        parent: None,
        is_parent_remote: false,
        baggage: "",
        start_time_unix_nano: 0,
        attributes: &[
            ("tracer.remote", Attribute::Str("function")),
            ("tracer.function", Attribute::Str("demo.my_function")),
            ("tracer.pid", Attribute::I64(4711)),
            ("tracer.job_id", Attribute::I64(1)),
            ("tracer.node_id", Attribute::Str("machine")),
        ],
        link: None,
        is_attempt: false,
    };
    let producer = recorder.start(&request);
    let consumer = recorder.start(&SpanRequest {
        name: "demo.my_function tracer.remote_worker",
        kind: tracer_abi::SPAN_KIND_CONSUMER,
        parent: Some(producer.context()),
        is_parent_remote: true,
        attributes: &[
            ("tracer.remote", Attribute::Str("function")),
            ("tracer.function", Attribute::Str("demo.my_function")),
            ("tracer.pid", Attribute::I64(4711)),
            ("tracer.job_id", Attribute::I64(1)),
            ("tracer.task_id", Attribute::I64(number)),
            ("tracer.worker_id", Attribute::I64(2)),
            ("tracer.node_id", Attribute::Str("machine")),
            ("tracer.attempt", Attribute::I64(1)),
            ("tracer.queued_ns", Attribute::I64(123_456 + number)),
        ],
        is_attempt: true,
        ..request
    });
    consumer.set_attributes(&[
        ("code.function.name", Attribute::Str("tracer_demo::my_function")),
        ("code.file.path", Attribute::Str("hooks/demo/src/lib.rs")),
        ("code.line.number", Attribute::I64(8)),
    ]);
    consumer.end();
    producer.set_attributes(&[("tracer.task_id", Attribute::I64(number))]);
    producer.end();
}

fn compare() -> ExitCode {
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("instructions of spans are not counted: there is no valgrind (hint: apt-get install valgrind)");
        return ExitCode::SUCCESS;
    }
    // What the process does besides, and what it does once, is in both.
    let (few, many) = match (count(PAIRS), count(2 * PAIRS)) {
        (Ok(few), Ok(many)) => (few, many),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let each = many.saturating_sub(few) / PAIRS;
    let most = TWO_SPANS * (100 + TOLERANCE) / 100;
    println!("the two spans of a task take {each} instructions, {TWO_SPANS} are said, at most {most} let pass");
    if each <= most { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The instructions of a process that makes so many pairs of spans.
fn count(pairs: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(own).args(["make", &pairs.to_string()]);
    let output = valgrind.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    collected.and_then(|(_, number)| number.trim().parse().ok()).ok_or_else(|| format!("valgrind said: {said}"))
}
