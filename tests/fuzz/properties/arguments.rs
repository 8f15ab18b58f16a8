//! Sends anything as the arguments of a task: it fits or is an error that says so; no panic, and one answer.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Once;

use serde::{Deserialize, Serialize};
use tracer_abi as abi;

/// A value of every shape.
#[derive(Debug, Deserialize, Serialize)]
enum Shape {
    Unit,
    Pair(i8, u64),
    Named { text: String, inner: Option<Box<Shape>> },
    List(Vec<Shape>),
    Table(BTreeMap<u16, f32>),
    Wide(u128, char, bool),
}

/// Takes values of every shape and gives them back.
#[tracer_sdk::task]
fn echo(shape: Shape, text: &str, bytes: &[u8], limit: Option<i64>) -> (Shape, String, Vec<u8>, Option<i64>) {
    (shape, text.to_owned(), bytes.to_owned(), limit)
}

tracer_sdk::builtin_module! {
    fn module, tasks = [echo]
}

/// Returns a host that offers nothing but its version.
fn host() -> &'static abi::Host {
    // SAFETY: the contract has it that what is absent is zero: numbers, and pointers that may be null.
    let nothing: abi::Host = unsafe { std::mem::zeroed() };
    let size = size_of::<abi::Host>();
    Box::leak(Box::new(abi::Host { size, abi_major: abi::ABI_MAJOR, abi_minor: abi::ABI_MINOR, ..nothing }))
}

/// Answers to the callbacks: a result, or the kind of the error.
type Answers = Vec<Result<Vec<u8>, u32>>;

unsafe extern "C" fn host_result(data: *mut c_void, value: abi::Bytes) {
    // SAFETY: `data` are the answers of the call that is going on, and the value is borrowed for this one.
    unsafe { (*data.cast::<Answers>()).push(Ok(value.as_bytes().to_vec())) };
}

unsafe extern "C" fn host_error(data: *mut c_void, error: *const abi::TaskError) {
    // SAFETY: as above; the module was built with this very contract.
    unsafe { (*data.cast::<Answers>()).push(Err((*error).kind)) };
}

/// The bytes are the encoded arguments of [`echo`].
pub(super) fn holds(bytes: &[u8]) {
    static LOADED: Once = Once::new();
    // SAFETY: a record that is linked in, which lives as long as the process.
    let module = unsafe { &*module() };
    LOADED.call_once(|| {
        let mut buffer = [0; 100];
        let mut error = abi::TextBuffer::new(&mut buffer);
        // SAFETY: the host lives as long as the process, and the buffer as long as the call.
        assert_eq!(unsafe { module.on_load.expect("it has one")(host(), &mut error) }, abi::STATUS_OK);
    });
    // SAFETY: there is one task.
    let task = unsafe { &**module.tasks };
    if let Ok(value) = call(task, bytes) {
        // What fitted once fits again, and is the same.
        assert_eq!(call(task, &value), Ok(value));
    }
}

fn call(task: &'static abi::Task, arguments: &[u8]) -> Result<Vec<u8>, u32> {
    let mut answers = Answers::new();
    // SAFETY: as for the host: what is absent is zero.
    let nothing: abi::TaskCall = unsafe { std::mem::zeroed() };
    let call = abi::TaskCall {
        size: size_of::<abi::TaskCall>(),
        arguments: abi::Bytes::new(arguments),
        task_id: 1,
        attempt: 1,
        job_id: 1,
        worker_id: 1,
        data: std::ptr::from_mut(&mut answers).cast(),
        host_result: Some(host_result),
        host_error: Some(host_error),
        ..nothing
    };
    // SAFETY: everything in the call outlives it.
    let status = unsafe { task.on_run.expect("it has one")(task, &call) };
    assert_eq!(answers.len(), 1, "exactly one callback is called");
    let answer = answers.remove(0);
    assert_eq!(status, if answer.is_ok() { abi::STATUS_OK } else { abi::STATUS_FAILED });
    // The result can always be encoded, so only the arguments can be wrong.
    assert!(matches!(answer, Ok(_) | Err(abi::TASK_ERROR_ARGUMENTS)), "{answer:?}");
    answer
}
