//! A host of a minor version before that of the SDK: what it can do is done, and what it would leave out in silence is refused.

#![cfg(feature = "otel-0-33")]

mod support;

use std::sync::OnceLock;

use serde_json::json;
use support::{Call, UNTRACED};
use tracer_abi::{Host, STATUS_OK, Submission, TextBuffer};

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

/// As hosts were at 1.2.
fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        // SAFETY: a host is plain data, and what it points to lives as long as the process.
        let plain = unsafe { std::ptr::read(&raw const UNTRACED) };
        Host { size: size_of::<Host>(), abi_minor: 2, host_submit: Some(submit), host_task_id: Some(task_id), ..plain }
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
