//! Instructions that spans cost, as valgrind counts them: the same on every day and under any load, so that a change that makes
//! spans dearer is seen. The bytes of a task's two are counted by `spans::the_two_spans_of_a_task_take_as_few_bytes_as_is_said`.
//!
//! ```text
//! cargo bench --profile counted --bench instructions
//! ```
//!
//! It fails when a span takes a tenth more than is said here. Another compiler or processor may need other figures. Without valgrind it says so,
//! and counts nothing.
//!
//! The spans of a task are made as driver and worker make them: through the boundary to the default hook, recorded in a spool, written in
//! batches. A span with 5 attributes in a task is made with OpenTelemetry's traits in `traced_tasks:many`, and takes the same way from
//! there. The rest of a process is not in them.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::ptr;

use tracer::hook::{Attribute, AttributePrefix, Recorder, SpanRequest};
use tracer::spool::{SLOT_COUNT, Spool};
use tracer_abi as abi;

#[path = "../support/skip.rs"]
mod skip;

/// A workload that is counted: its name, its description, its instructions, and the function that makes so many.
type Counted = (&'static str, &'static str, u64, fn(&'static Recorder, u64));
const COUNTED: [Counted; 2] =
    [("task", "the two spans of a task", 8_050, pairs), ("in-task", "a span in a task", 6_350, in_task)];
/// Percentage of further instructions that is let pass.
const TOLERANCE: u64 = 10;
/// Spans between two commits, as in a batch of results.
const COMMIT_EVERY: u64 = 64;
/// Number of each that are counted, after as many that are not.
const COUNT: u64 = 5_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if let (Some(name), Some(count)) = (arguments.next(), arguments.next()) {
        let (_, _, _, make) = COUNTED.into_iter().find(|counted| counted.0 == name).expect("something that is counted");
        with_recorder(|recorder| make(recorder, count.parse().expect("a number of spans")));
        return ExitCode::SUCCESS;
    }
    if !Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success()) {
        skip::skip("valgrind", "instructions of spans are not counted (hint: apt-get install valgrind)");
        return ExitCode::SUCCESS;
    }
    match build_module().and_then(|()| COUNTED.iter().try_fold(true, |all, counted| Ok(compare(counted)? && all))) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sets tracing up as in a worker, in a folder of its own.
fn with_recorder(make: impl FnOnce(&'static Recorder)) {
    let folder = tempfile::tempdir().expect("a folder");
    // SAFETY: no other thread is there yet.
    unsafe { std::env::set_var("TRACER_SPANS_DIR", folder.path().join("spans")) };
    let table =
        tracer_sdk::hook::export(tracer_local_tmp_tracing::setup_tracing).expect("the folder can be written to");
    let spool = Spool::create(&folder.path().join("test.spool"), SLOT_COUNT).expect("the folder can be written to");
    // SAFETY: a table that a hook returned, which lives as long as the process.
    make(unsafe { Recorder::install(table, &[], 0, Some(Box::leak(Box::new(spool))), std::time::Duration::ZERO) });
}

/// Makes a PRODUCER and a CONSUMER span so many times, from start to file.
fn pairs(recorder: &'static Recorder, count: u64) {
    for number in 1..=count {
        pair(recorder, number as i64);
        if number.is_multiple_of(COMMIT_EVERY) {
            recorder.commit().expect("the folder can be written to");
        }
    }
}

fn pair(recorder: &'static Recorder, number: i64) {
    let request = SpanRequest {
        name: "demo.my_function tracer.remote",
        kind: abi::SPAN_KIND_PRODUCER,
        parent: None,
        is_parent_remote: false,
        baggage: "",
        start_time_unix_nano: 0,
        prefix: AttributePrefix {
            id: 1,
            attributes: &|put| {
                put("tracer.remote", Attribute::Str("function"));
                put("tracer.function", Attribute::Str("demo.my_function"));
                put("tracer.pid", Attribute::I64(4711));
                put("tracer.job_id", Attribute::I64(1));
                put("tracer.node_id", Attribute::Str("machine"));
            },
        },
        attributes: &[],
        link: None,
        is_attempt: false,
        request: None,
    };
    let producer = recorder.start(&request);
    let consumer = recorder.start(&SpanRequest {
        name: "demo.my_function tracer.remote_worker",
        kind: abi::SPAN_KIND_CONSUMER,
        parent: Some(producer.context()),
        is_parent_remote: true,
        prefix: AttributePrefix {
            id: 2,
            attributes: &|put| {
                put("tracer.remote", Attribute::Str("function"));
                put("tracer.function", Attribute::Str("demo.my_function"));
                put("tracer.pid", Attribute::I64(4711));
                put("tracer.job_id", Attribute::I64(1));
                put("tracer.worker_id", Attribute::I64(2));
                put("tracer.node_id", Attribute::Str("machine"));
                put("code.function.name", Attribute::Str("tracer_demo::my_function"));
                put("code.file.path", Attribute::Str("hooks/demo/src/lib.rs"));
                put("code.line.number", Attribute::I64(8));
            },
        },
        attributes: &[
            ("tracer.task_id", Attribute::I64(number)),
            ("tracer.attempt", Attribute::I64(1)),
            ("tracer.queued_ns", Attribute::I64(123_456 + number)),
        ],
        is_attempt: true,
        request: None,
        ..request
    });
    consumer.end();
    producer.set_attributes(&[("tracer.task_id", Attribute::I64(number))]);
    producer.end();
}

/// Runs a task that makes so many spans, time and again, as a worker does.
fn in_task(recorder: &'static Recorder, count: u64) {
    // SAFETY: a module of this workspace, which is never unloaded.
    let library = unsafe { libloading::Library::new(module()) }.expect("it was built");
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    let host: &'static abi::Host = Box::leak(Box::new(abi::Host { tracing: recorder.table(), ..NO_HOST }));
    // SAFETY: the module keeps the contract: its record, and what it points to, lives as long as the process.
    let task = unsafe {
        let entry: libloading::Symbol<'_, abi::ModuleEntry> = library.get(abi::ENTRY_SYMBOL).expect("a module");
        let module = &*entry();
        let mut error = [0; 256];
        let status = module.on_load.expect("it has tasks")(host, &mut abi::TextBuffer::new(&mut error));
        assert_eq!(status, abi::STATUS_OK);
        let tasks = std::slice::from_raw_parts(module.tasks, module.task_count);
        &**tasks.iter().find(|task| (***task).name.as_bytes() == b"many").expect("the task")
    };
    let attempt = recorder.start(&SpanRequest {
        name: "traced_tasks.many tracer.remote_worker",
        kind: abi::SPAN_KIND_CONSUMER,
        parent: None,
        is_parent_remote: false,
        baggage: "",
        start_time_unix_nano: 0,
        prefix: AttributePrefix::NONE,
        attributes: &[],
        link: None,
        is_attempt: true,
        request: None,
    });
    let parent = attempt.context().parent;
    let span_context = abi::SpanContext {
        trace_id: parent.trace_id,
        span_id: parent.span_id,
        trace_flags: parent.flags,
        ..abi::SpanContext::INVALID
    };
    let call = abi::TaskCall {
        size: size_of::<abi::TaskCall>(),
        // A MessagePack array of one number.
        arguments: abi::Bytes::new(&[0x91, COMMIT_EVERY as u8]),
        span: ptr::null_mut(),
        span_context: &span_context,
        baggage: abi::Str::EMPTY,
        task_id: 7,
        attempt: 1,
        job_id: 1,
        worker_id: 1,
        data: ptr::null_mut(),
        host_result: Some(take_result),
        host_error: None,
        node_id: abi::Str::EMPTY,
        host_phase: None,
        actor_id: 0,
        state: ptr::null_mut(),
        argument_values: ptr::null(),
        argument_value_count: 0,
        host_result_part: None,
    };
    for _ in 0..count / COMMIT_EVERY {
        // SAFETY: a task of the module, and a call that outlives it.
        let status = unsafe { task.on_run.expect("a function")(task, &call) };
        assert_eq!(status, abi::STATUS_OK);
        recorder.commit().expect("the folder can be written to");
    }
}

unsafe extern "C" fn take_result(_data: *mut c_void, _value: abi::Bytes) {}

/// Host table of a task that does nothing but spans.
const NO_HOST: abi::Host = abi::Host {
    size: size_of::<abi::Host>(),
    abi_major: abi::ABI_MAJOR,
    abi_minor: abi::ABI_MINOR,
    tracing: ptr::null(),
    host_log: None,
    host_submit: None,
    host_wait: None,
    host_take: None,
    host_watch: None,
    host_task_id: None,
    host_forget: None,
    host_is_cancelled: None,
    host_find_actor: None,
    host_end_actor: None,
    host_log_record: None,
    log_severity: 0,
    log_events: 0,
    host_call: None,
    host_call_consumed: None,
    host_call_cancel: None,
    host_instrument: None,
    host_measure: None,
    host_exemplar: None,
    host_observe: None,
};

/// Builds the module of [`in_task`], a fixture and so an example, beside tracer.
fn build_module() -> Result<(), String> {
    let folder = folder();
    let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "traced_tasks", "--example", "traced_tasks", "--profile"])
        .arg(profile);
    cargo.arg("--target-dir").arg(folder.parent().ok_or("tracer is in no target folder")?);
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err("the module `traced_tasks` cannot be built".into()) }
}

fn module() -> PathBuf {
    folder().join("examples/libtraced_tasks.so")
}

/// Returns the folder that tracer was built in.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tracer")).parent().expect("it is in a folder")
}

/// Counts, says what was counted, and whether that is let pass.
fn compare((name, what, said, _): &Counted) -> Result<bool, String> {
    // What the process does besides, and what it does once, is in both.
    let each = count(name, 2 * COUNT)?.saturating_sub(count(name, COUNT)?) / COUNT;
    let most = said * (100 + TOLERANCE) / 100;
    println!("{what}: {each} instructions, {said} are said, at most {most} let pass");
    Ok(each <= most)
}

/// Returns the instructions of a process that makes so many spans.
fn count(name: &str, count: u64) -> Result<u64, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(own).args([name, &count.to_string()]);
    let output = valgrind.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("the spans were not made: {said}"));
    }
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    collected.and_then(|(_, number)| number.trim().parse().ok()).ok_or_else(|| format!("valgrind said: {said}"))
}
