//! The host, as this module knows it: the table for spans and the log.
//!
//! Until the host has loaded the module, and in a process that is not traced, there is no table. Whoever needs
//! it asks each time; nothing is decided at the first question.

#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use tracer_abi::{Host, Str, Tracing};

/// Table that the host has lent. Never freed, because tracers and spans point into it.
struct Lent {
    host: *const Host,
    tracing: Option<Tracing>,
    log: Option<unsafe extern "C" fn(u32, Str)>,
    /// Copy of the host's table, with the entries that it has.
    entries: Host,
}

static LENT: AtomicPtr<Lent> = AtomicPtr::new(ptr::null_mut());

/// A struct of the contract that begins with its writer's size, and for which all bits zero mean "not given".
///
/// # Safety
///
/// The first field is `size: usize`, and zero bits are a value of every field.
pub(crate) unsafe trait Growing {}
// SAFETY: pointers, integers, nullable functions.
unsafe impl Growing for Host {}
// SAFETY: as above.
unsafe impl Growing for Tracing {}
// SAFETY: as above.
unsafe impl Growing for tracer_abi::TaskCall {}
// SAFETY: as above.
unsafe impl Growing for tracer_abi::SpanContext {}
// SAFETY: as above.
unsafe impl Growing for tracer_abi::TaskError {}
// SAFETY: as above.
unsafe impl Growing for tracer_abi::ActorIdentity {}
// SAFETY: as above; a descriptor of 0 is none that a host lends.
#[cfg(feature = "serve")]
unsafe impl Growing for tracer_abi::Serving {}
// SAFETY: as above.
#[cfg(feature = "serve")]
unsafe impl Growing for tracer_abi::RequestEvent {}
// SAFETY: as above.
#[cfg(feature = "serve")]
unsafe impl Growing for tracer_abi::RequestHead {}
// SAFETY: as above.
#[cfg(feature = "serve")]
unsafe impl Growing for tracer_abi::CallEvent {}

/// Copies as much of `*record` as both sides know; the rest is zero.
///
/// # Safety
///
/// `record` points to a struct whose first field says how many bytes of it are there.
pub(crate) unsafe fn read_sized<T: Growing>(record: *const T) -> T {
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the first field is the size, and `copied` bytes are within both the record and the copy.
    unsafe {
        let copied = record.cast::<usize>().read().min(size_of::<T>());
        ptr::copy_nonoverlapping(record.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), copied);
        copy.assume_init()
    }
}

/// Remembers the host. A second call with the same host changes nothing; one with another host replaces it for
/// every tracer that has not found a table yet.
///
/// # Safety
///
/// `host` is null or points to a host that lives as long as the process.
pub(crate) unsafe fn bind(host: *const Host) {
    if host.is_null() {
        return;
    }
    let known = LENT.load(Ordering::Acquire);
    // SAFETY: what `LENT` points to is never freed.
    if unsafe { known.as_ref() }.is_some_and(|lent| ptr::eq(lent.host, host)) {
        return;
    }
    // SAFETY: promised by the caller; the table lives as long as the host.
    let lent = unsafe {
        let record = read_sized(host);
        Lent {
            host,
            tracing: record.tracing.as_ref().map(|table| read_sized(table)),
            log: record.host_log,
            entries: record,
        }
    };
    LENT.store(Box::into_raw(Box::new(lent)), Ordering::Release);
}

fn lent() -> Option<&'static Lent> {
    // SAFETY: null, or a box that is never freed.
    unsafe { LENT.load(Ordering::Acquire).as_ref() }
}

/// Returns the host's table, or none: the module is not loaded yet, or the process is not traced.
pub(crate) fn tracing() -> Option<&'static Tracing> {
    lent()?.tracing.as_ref()
}

/// Returns an entry of the host's table, or why there is none.
pub(crate) fn entry<F>(pick: impl FnOnce(&Host) -> Option<F>) -> Result<F, String> {
    entry_since(1, "tasks cannot submit tasks", pick)
}

/// Returns an entry of the host's table that hosts have since a minor version of the ABI; `lack` says what older ones cannot do.
pub(crate) fn entry_since<F>(since: u32, lack: &str, pick: impl FnOnce(&Host) -> Option<F>) -> Result<F, String> {
    let Some(lent) = lent() else {
        return Err("tasks can be submitted in a task only, and no host has loaded this module\n\
                    (hint: submit in a function with `#[task]` that a worker of tracer runs)"
            .to_owned());
    };
    pick(&lent.entries).ok_or_else(|| {
        let (major, minor) = (lent.entries.abi_major, lent.entries.abi_minor);
        format!(
            "the host speaks ABI {major}.{minor}, in which {lack}; it takes {major}.{since}\n\
             (hint: run the workers with a newer tracer)"
        )
    })
}

/// Returns whether the host speaks this minor version of the ABI; in older ones `lack`.
pub(crate) fn since(since: u32, lack: &str) -> Result<(), String> {
    entry_since(since, lack, |host| (host.abi_minor >= since).then_some(()))
}

/// Returns whether the host wants an attempt to end. A host that cannot say so does not.
pub(crate) fn is_cancelled(task_id: u64, attempt: u32) -> bool {
    // SAFETY: the host's function, which may be called from any thread.
    lent().and_then(|lent| lent.entries.host_is_cancelled).is_some_and(|ask| unsafe { ask(task_id, attempt) } != 0)
}

/// Returns the host's function for log records, if it takes some.
#[cfg(any(feature = "tracing", feature = "tracing-0-32", feature = "tracing-0-31"))]
pub(crate) fn host_log_record() -> Option<unsafe extern "C" fn(*const tracer_abi::LogRecord) -> u32> {
    lent()?.entries.host_log_record
}

/// Returns whether the host wants log records of this severity.
#[cfg(any(feature = "tracing", feature = "tracing-0-32", feature = "tracing-0-31"))]
pub(crate) fn wants_records(severity: u32) -> bool {
    lent().is_some_and(|lent| lent.entries.host_log_record.is_some() && severity >= lent.entries.log_severity)
}

/// The host's functions for metrics.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
#[derive(Clone, Copy)]
pub(crate) struct HostMetrics {
    pub(crate) instrument: unsafe extern "C" fn(*const tracer_abi::Instrument) -> *mut c_void,
    pub(crate) measure: unsafe extern "C" fn(*mut c_void, *const tracer_abi::Measurement) -> u32,
    pub(crate) exemplar: unsafe extern "C" fn(*mut c_void, *const tracer_abi::Measurement),
    pub(crate) observe: unsafe extern "C" fn(*mut c_void, Option<unsafe extern "C" fn(*mut c_void)>) -> u32,
}

/// Returns the host's functions for metrics; none before there is a host, and of an older one.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub(crate) fn metrics() -> Option<HostMetrics> {
    let entries = &lent()?.entries;
    Some(HostMetrics {
        instrument: entries.host_instrument?,
        measure: entries.host_measure?,
        exemplar: entries.host_exemplar?,
        observe: entries.host_observe?,
    })
}

/// Returns the forms that events take; events of spans, as they always have, where the host does not say.
#[cfg(any(feature = "tracing", feature = "tracing-0-32", feature = "tracing-0-31"))]
pub(crate) fn log_events() -> u32 {
    match lent().map_or(0, |lent| lent.entries.log_events) {
        0 => tracer_abi::EVENTS_AS_SPAN_EVENTS,
        events => events,
    }
}

/// Writes a line to the host's log; to standard error before there is one.
pub(crate) fn log(level: u32, text: &str) {
    match lent().and_then(|lent| lent.log) {
        // SAFETY: the host's function, with a text that outlives the call.
        Some(log) => unsafe { log(level, Str::new(text)) },
        None => eprintln!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_writers_size_are_zero() {
        let mut written = tracer_abi::SpanContext::INVALID;
        written.trace_id = [1; 16];
        written.is_remote = 1;
        written.trace_state = Str::new("a=1");
        // As a writer would say it whose struct ends before the tracestate.
        written.size = std::mem::offset_of!(tracer_abi::SpanContext, trace_state);
        // SAFETY: the size is no larger than the struct.
        let read = unsafe { read_sized(&written) };
        assert_eq!((read.trace_id, read.is_remote, read.trace_state.len), ([1; 16], 1, 0));
        // And one that is newer and longer than what this side knows.
        let longer = [written.size.max(1000); 125];
        // SAFETY: the array is as long as its first element says.
        let read = unsafe { read_sized(longer.as_ptr().cast::<tracer_abi::SpanContext>()) };
        assert_eq!(read.size, 1000);
    }
}
