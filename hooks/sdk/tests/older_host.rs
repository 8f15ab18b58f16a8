//! A host of a minor version before that of the SDK: what it can do is done, and what it would leave out in silence is refused.

#![cfg(feature = "otel-0-33")]

mod support;

use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::global;
use opentelemetry::trace::{Span as _, Tracer as _};
use serde_json::json;
use support::{Call, TRACED};
use tracer_abi::{Host, STATUS_OK, Submission, TextBuffer, Tracing};

/// Parts of submissions that a host has read.
#[derive(Debug, Default, PartialEq)]
struct Read {
    submissions: usize,
    with_policy: usize,
    with_demand: usize,
    options: Vec<Vec<u8>>,
}

static READ: Mutex<Read> = Mutex::new(Read { submissions: 0, with_policy: 0, with_demand: 0, options: Vec::new() });

fn read() -> MutexGuard<'static, Read> {
    READ.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a submission as a host does whose struct has `KNOWN` bytes: what is behind them is not there for it.
unsafe extern "C" fn submit<const KNOWN: usize>(
    submission: *const Submission,
    ticket: *mut u64,
    _error: *mut TextBuffer,
) -> u32 {
    // SAFETY: both are lent for the call, and zero is a value of every field that is not said.
    let known = unsafe {
        assert!((*submission).size >= KNOWN, "a newer struct has all that an older one has");
        let mut known = std::mem::zeroed::<Submission>();
        std::ptr::copy_nonoverlapping(submission.cast::<u8>(), (&raw mut known).cast(), KNOWN);
        *ticket = 7;
        known
    };
    // SAFETY: the bytes are lent for the call.
    let options = unsafe { known.options.as_bytes() };
    let mut read = read();
    read.submissions += 1;
    read.with_policy += usize::from(!known.policy.is_null());
    read.with_demand += usize::from(!known.demand.is_null());
    read.options.extend((!options.is_empty()).then(|| options.to_vec()));
    STATUS_OK
}

unsafe extern "C" fn task_id(ticket: u64) -> u64 {
    ticket
}

type Submit = unsafe extern "C" fn(*const Submission, *mut u64, *mut TextBuffer) -> u32;

/// Returns a host of a minor version: the size of its table, and how much of a submission it reads.
fn host(minor: u32) -> Host {
    let (size, host_submit): (usize, Submit) = match minor {
        1 => (offset_of!(Host, host_find_actor), submit::<{ offset_of!(Submission, actor_id) }>),
        2 => (size_of::<Host>(), submit::<{ offset_of!(Submission, demand) }>),
        3..=5 => (size_of::<Host>(), submit::<{ offset_of!(Submission, options) }>),
        _ => (size_of::<Host>(), submit::<{ size_of::<Submission>() }>),
    };
    static TABLE: OnceLock<Tracing> = OnceLock::new();
    // SAFETY: hosts and tables are plain data, and what they point to lives as long as the process.
    let (plain, table) = unsafe { (std::ptr::read(&raw const TRACED), std::ptr::read(TRACED.tracing)) };
    let tracing = TABLE.get_or_init(|| Tracing { size: offset_of!(Tracing, span_end_and_release), ..table });
    Host { size, abi_minor: minor, tracing, host_submit: Some(host_submit), host_task_id: Some(task_id), ..plain }
}

/// Loads the module with a host of a minor version. A process has one host at a time, so tests wait for each other.
fn load(minor: u32) -> (&'static Host, MutexGuard<'static, ()>) {
    static LOADED: Mutex<()> = Mutex::new(());
    let guard = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let host = Box::leak(Box::new(host(minor)));
    assert_eq!(support::load(support::module(host), host), (STATUS_OK, String::new()));
    *read() = Read::default();
    (host, guard)
}

#[tracer_sdk::task]
fn submits() -> Vec<String> {
    let task = || tracer_sdk::remote("a:b");
    let submissions = [
        task(),
        task().name("n").timeout(Duration::from_secs(1)),
        task().retries(1),
        task().num_cpus(2),
        task().resource("gpu", 1),
        task().memory(1 << 30),
        task().priority(7),
        task().grace(Duration::from_secs(9)),
        task().priority(-7).trace_runtime(),
    ];
    let said = submissions.into_iter().map(|task| match task.submit() {
        Ok(task) => format!("task {}", task.id().expect("it was accepted")),
        Err(error) => error.to_string(),
    });
    said.collect()
}

#[test]
fn what_a_submission_says_is_taken_by_a_host_that_knows_it_and_refused_for_an_older_one() {
    const TAKEN: &str = "task 7";
    let refused = |minor: u32, lack: &str, since: u32| {
        format!(
            "the host speaks ABI 1.{minor}, in which {lack}; it takes 1.{since}\n(hint: run the workers with a newer tracer)"
        )
    };
    // A map of what is said, by the names of the HTTP API.
    let options = [
        b"\x81\xa8priority\x07".to_vec(),
        b"\x81\xa8grace_ms\xcd\x23\x28".to_vec(),
        b"\x82\xadtrace_runtime\xc3\xa8priority\xf9".to_vec(),
    ];
    for (minor, submissions, with_policy, with_demand, read_options) in [
        (1, 2, 0, 0, &[][..]),
        (2, 3, 1, 0, &[][..]),
        (3, 6, 1, 3, &[][..]),
        (5, 6, 1, 3, &[][..]),
        (6, 9, 1, 3, &options[..]),
        (7, 9, 1, 3, &options[..]),
    ] {
        let (host, _alone) = load(minor);
        let called = Call { host, is_recorded: false, ..Call::new(json!([])) }.run("submits");
        let say = |since: u32, lack: &str| if minor < since { refused(minor, lack, since) } else { TAKEN.into() };
        let policy = say(2, "tasks cannot set the retries of tasks that they submit");
        let demand = say(3, "tasks cannot set the resources of tasks that they submit");
        let option = |names: &str| say(6, &format!("a submission cannot say {names}"));
        let expected = json!([
            TAKEN,
            TAKEN,
            policy,
            demand,
            demand,
            demand,
            option("`priority`"),
            option("`grace_ms`"),
            option("`trace_runtime` and `priority`"),
        ]);
        assert_eq!(called.result.expect("it returns"), expected, "1.{minor}");
        assert_eq!(
            *read(),
            Read { submissions, with_policy, with_demand, options: read_options.to_vec() },
            "1.{minor}"
        );
    }
}

#[tracer_sdk::task]
fn makes_spans() {
    let tracer = global::tracer("older");
    tracer.start("ended now").end();
    tracer.start("ended then").end_with_timestamp(UNIX_EPOCH + Duration::from_nanos(10));
    drop(tracer.start("dropped"));
}

#[test]
fn a_span_of_an_older_table_is_ended_and_then_given_back() {
    let (host, _alone) = load(2);
    let spans = Call { host, ..Call::new(json!([])) }.run("makes_spans").spans;
    let ended: Vec<_> = spans.iter().map(|span| (span.name.as_str(), span.ends.len(), span.releases)).collect();
    assert_eq!(ended, [("ended now", 1, 1), ("ended then", 1, 1), ("dropped", 0, 1)]);
    assert_eq!(spans[1].ends, [10]);
}
