//! Records, texts and calls of the ABI, as every table of the host reads and guards them.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tracer_abi as abi;

/// Reads a record that begins with its size, filling up with zeroes what its writer did not know.
///
/// # Safety
///
/// `record` points to a record whose first field is its size, and `T` is one of the ABI's records, for which all zeroes
/// are a valid value.
#[inline]
pub(super) unsafe fn read_sized<T>(record: *const T) -> T {
    // SAFETY: promised by the caller.
    unsafe { read_prefix(record, record.cast::<usize>().read()) }
}

/// # Safety
///
/// As for [`read_sized`]; `size` bytes are readable.
#[inline]
pub(super) unsafe fn read_prefix<T>(record: *const T, size: usize) -> T {
    if size >= size_of::<T>() {
        // SAFETY: promised by the caller. A copy whose length the compiler knows is no call.
        return unsafe { record.read() };
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: promised by the caller; no more than a `T` is written.
    unsafe {
        std::ptr::copy_nonoverlapping(record.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size);
        copy.assume_init()
    }
}

/// Copies a text that came over the ABI.
pub(super) fn text(text: abi::Str) -> String {
    // SAFETY: a `Str` in a record that passed the staircase is readable (rule 3 of the ABI).
    String::from_utf8_lossy(unsafe { text.as_bytes() }).into_owned()
}

/// Runs `body`, writes its error to `error`, and turns a panic into a status.
///
/// # Safety
///
/// `error` is null or lent for the call.
pub(super) unsafe fn guard(error: *mut abi::TextBuffer, body: impl FnOnce() -> Result<u32, String>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(reason)) => {
            // SAFETY: promised by the caller.
            if let Some(error) = unsafe { error.as_mut() } {
                // SAFETY: as above.
                unsafe { error.write(&reason) };
            }
            abi::STATUS_FAILED
        }
        Err(_) => abi::STATUS_PANICKED,
    }
}

/// # Safety
///
/// The text is borrowed for the call.
pub(super) unsafe fn utf8<'a>(text: abi::Str, what: &str) -> Result<&'a str, String> {
    // SAFETY: promised by the caller.
    std::str::from_utf8(unsafe { text.as_bytes() }).map_err(|_| format!("the {what} is not UTF-8"))
}
