//! A host of a minor version before that of the SDK: what it can do is done, and what it would leave out in silence is refused.

#![cfg(feature = "otel-0-33")]

mod support;

use std::mem::offset_of;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use opentelemetry::global;
use opentelemetry::trace::{Span as _, Tracer as _};
use serde_json::json;
use support::{Call, TRACED};
use tracer_abi::{Host, STATUS_OK, Submission, TextBuffer, Tracing};

unsafe extern "C" fn submit(submission: *const Submission, ticket: *mut u64, _error: *mut TextBuffer) -> u32 {
    // SAFETY: both are lent for the call.
    unsafe {
        assert!((*submission).demand.is_null() && !(*submission).policy.is_null());
        *ticket = 7;
    }
    STATUS_OK
}

unsafe extern "C" fn task_id(ticket: u64) -> u64 {
    ticket
}

/// As hosts were at 1.2, with a table from before 1.5.
fn host() -> &'static Host {
    static TABLE: OnceLock<Tracing> = OnceLock::new();
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        // SAFETY: hosts and tables are plain data, and what they point to lives as long as the process.
        let (plain, table) = unsafe { (std::ptr::read(&raw const TRACED), std::ptr::read(TRACED.tracing)) };
        let tracing = TABLE.get_or_init(|| Tracing { size: offset_of!(Tracing, span_end_and_release), ..table });
        let size = size_of::<Host>();
        Host { size, abi_minor: 2, tracing, host_submit: Some(submit), host_task_id: Some(task_id), ..plain }
    })
}

#[tracer_sdk::task]
fn submits() -> Vec<String> {
    let with_policy = tracer_sdk::remote("a:b").retries(1).submit().map(|task| task.id());
    let needs = [
        tracer_sdk::remote("a:b").num_cpus(2).submit(),
        tracer_sdk::remote("a:b").resource("gpu", 1).submit(),
        tracer_sdk::remote("a:b").memory(1 << 30).submit(),
    ];
    let said = needs.into_iter().map(|task| task.expect_err("it cannot say so").to_string());
    std::iter::once(format!("{with_policy:?}")).chain(said).collect()
}

#[test]
fn what_a_task_needs_is_not_left_out_in_silence() {
    let called = Call { host: host(), is_recorded: false, ..Call::new(json!([])) }.run("submits");
    let said = called.result.expect("it returns");
    assert_eq!(said[0], "Ok(Some(7))");
    for needs in &said.as_array().expect("a list")[1..] {
        let expected = "the host speaks ABI 1.2, in which tasks cannot say what those need that they submit; it takes 1.3\n(hint: ";
        assert!(needs.as_str().expect("a text").starts_with(expected), "{needs}");
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
    let spans = Call { host: host(), ..Call::new(json!([])) }.run("makes_spans").spans;
    let ended: Vec<_> = spans.iter().map(|span| (span.name.as_str(), span.ends.len(), span.releases)).collect();
    assert_eq!(ended, [("ended now", 1, 1), ("ended then", 1, 1), ("dropped", 0, 1)]);
    assert_eq!(spans[1].ends, [10]);
}
