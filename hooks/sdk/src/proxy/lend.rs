//! The task's span, on loan from the host while the task runs.

use std::ffi::c_void;
use std::sync::{PoisonError, RwLock};

use tracer_abi::Tracing;

/// The host's handle of the task's span, until it is taken back.
///
/// The lock is what makes taking back safe: code that kept the span beyond its task, such as a thread that the
/// task left behind, either finishes its call before or finds nothing.
#[derive(Debug)]
pub(crate) struct Loan {
    table: &'static Tracing,
    /// True if the host guards the span against calls that overlap, as it does for a task's; else the lock does.
    is_guarded: bool,
    span: RwLock<Option<Handle>>,
}

#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);
// SAFETY: the host guards its task span against calls from several threads (see `Tracing`); for another one the lock does.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Loan {
    pub(crate) fn new(table: &'static Tracing, span: *mut c_void, is_guarded: bool) -> Loan {
        Loan { table, is_guarded, span: RwLock::new(Some(Handle(span))) }
    }

    pub(crate) fn revoke(&self) {
        *self.span.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    // Read by the API's proxies, of which a build for hooks alone has none.
    #[cfg_attr(not(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33")), allow(dead_code))]
    pub(crate) fn is_valid(&self) -> bool {
        self.span.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Calls `f` with the table and the span, unless the span was taken back.
    #[cfg_attr(not(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33")), allow(dead_code))]
    pub(crate) fn with(&self, f: impl FnOnce(&'static Tracing, *mut c_void)) {
        let call = |span: &Option<Handle>| {
            if let Some(Handle(span)) = *span {
                f(self.table, span);
            }
        };
        if self.is_guarded {
            call(&self.span.read().unwrap_or_else(PoisonError::into_inner));
        } else {
            call(&self.span.write().unwrap_or_else(PoisonError::into_inner));
        }
    }
}
