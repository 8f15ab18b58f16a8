//! The proxy: OpenTelemetry providers whose spans are the host's.
//!
//! Every shared library in Rust has its own copy of OpenTelemetry, with its own globals and its own current
//! context, so nothing that the hook sets up reaches it. For each version that is switched on (`otel-0-33`,
//! `otel-0-32`, `otel-0-31`) this installs a provider as the global one of that copy, which hands everything on to the table that
//! the host has lent. Task code calls the ordinary API and notices nothing.
//!
//! Around a task it makes the span of the attempt current, so that `get_active_span` sets attributes on it and new
//! spans become its children. That span is lent: ending or dropping it in a task does nothing, and once the task
//! has returned, whoever still holds it writes into the void.
//!
//! # What holds
//!
//! - Tracers may be made before the module is loaded; they go live when it is.
//! - Without a table, and under a suppressed context, spans record nothing. Without a table they still carry their
//!   parent's context, so that what they inject into a request belongs to the right trace.
//! - The current context belongs to a thread. A future given to `tokio::spawn`, or a thread, begins without one; take it
//!   along by hand, with `Context::current()` and `FutureExt::with_context` or `Context::attach`.
//! - A sampler or span processor in the hook sees the parent as a bare span context, and no values of the caller's
//!   context but its baggage.

mod lend;
#[cfg(feature = "serve")]
pub(crate) mod own;
pub(crate) mod words;

#[cfg(feature = "otel-0-31")]
pub mod otel_0_31;
#[cfg(feature = "otel-0-32")]
pub mod otel_0_32;
#[cfg(feature = "otel-0-33")]
pub mod otel_0_33;

use std::ffi::c_void;
use std::sync::Arc;

use tracer_abi::{LOG_WARN, SpanContext, Str};

use crate::host;
pub(crate) use lend::Loan;

/// The scope that [`report_displaced`] asks for. No library is called that.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
const PROBE_SCOPE: &str = "tracer-sdk/is-the-proxy-in-place";

/// Makes the proxy the global provider of every copy.
pub(crate) fn install() {
    #[cfg(feature = "otel-0-31")]
    otel_0_31::install();
    #[cfg(feature = "otel-0-32")]
    otel_0_32::install();
    #[cfg(feature = "otel-0-33")]
    otel_0_33::install();
}

/// Context that is current while a task runs. Ends the loan of the task's span when it is dropped.
pub(crate) struct Attached {
    #[cfg(feature = "otel-0-31")]
    _otel_0_31: otel_0_31::Guard,
    #[cfg(feature = "otel-0-32")]
    _otel_0_32: otel_0_32::Guard,
    #[cfg(feature = "otel-0-33")]
    _otel_0_33: otel_0_33::Guard,
    // Dropped last, when what was current has let go of it.
    _lender: Option<Lender>,
}

impl Attached {
    /// Splits it into the context, to be made current again and again, and the loan, which ends when it is dropped.
    #[cfg(feature = "serve")]
    pub(crate) fn into_held(self) -> (Held, Option<Lender>) {
        let held = Held::current();
        let Attached { _lender: lender, .. } = self;
        (held, lender)
    }
}

/// Takes the loan back when it is dropped.
pub(crate) struct Lender(Arc<Loan>);

impl Drop for Lender {
    fn drop(&mut self) {
        // Mostly nobody else has it any more, and nobody can get it from here.
        if Arc::strong_count(&self.0) > 1 {
            self.0.revoke();
        }
    }
}

/// The span, its context and the baggage that the host lends for a task or a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    /// Null when it is not recorded.
    pub(crate) span: *mut c_void,
    /// Null when there is no context.
    pub(crate) context: *const SpanContext,
    pub(crate) baggage: Str,
    /// True if the host guards the span against calls that overlap.
    pub(crate) is_guarded: bool,
}

/// Makes the span and the baggage that are lent current on this thread, in every copy.
///
/// # Safety
///
/// What `lent` points to is readable now, and its span is valid until the loan ends.
pub(crate) unsafe fn attach(lent: Lent) -> Attached {
    // SAFETY: promised by the caller.
    let parent = unsafe { words::read_context(lent.context) };
    // SAFETY: as above.
    let baggage = unsafe { words::read_text(lent.baggage) };
    let table = host::tracing().filter(|_| !lent.span.is_null());
    let loan = table.map(|table| Arc::new(Loan::new(table, lent.span, lent.is_guarded)));
    let _ = (&parent, &baggage);
    Attached {
        #[cfg(feature = "otel-0-31")]
        _otel_0_31: otel_0_31::attach(&parent, loan.clone(), &baggage),
        #[cfg(feature = "otel-0-32")]
        _otel_0_32: otel_0_32::attach(&parent, loan.clone(), &baggage),
        #[cfg(feature = "otel-0-33")]
        _otel_0_33: otel_0_33::attach(&parent, loan.clone(), &baggage),
        _lender: loan.map(Lender),
    }
}

/// A context in every copy, to be made current again and again; by default one in which there is nothing.
#[cfg(feature = "async")]
#[derive(Clone, Default)]
pub(crate) struct Held {
    #[cfg(feature = "otel-0-31")]
    otel_0_31: otel_0_31::Held,
    #[cfg(feature = "otel-0-32")]
    otel_0_32: otel_0_32::Held,
    #[cfg(feature = "otel-0-33")]
    otel_0_33: otel_0_33::Held,
}

/// Guard that makes a [`Held`] current until it is dropped.
#[cfg(feature = "async")]
pub(crate) struct HeldGuard {
    #[cfg(feature = "otel-0-31")]
    _otel_0_31: otel_0_31::Guard,
    #[cfg(feature = "otel-0-32")]
    _otel_0_32: otel_0_32::Guard,
    #[cfg(feature = "otel-0-33")]
    _otel_0_33: otel_0_33::Guard,
}

#[cfg(feature = "async")]
impl Held {
    /// Returns what is current on this thread.
    pub(crate) fn current() -> Held {
        Held {
            #[cfg(feature = "otel-0-31")]
            otel_0_31: otel_0_31::Held::current(),
            #[cfg(feature = "otel-0-32")]
            otel_0_32: otel_0_32::Held::current(),
            #[cfg(feature = "otel-0-33")]
            otel_0_33: otel_0_33::Held::current(),
        }
    }

    pub(crate) fn attach(&self) -> HeldGuard {
        HeldGuard {
            #[cfg(feature = "otel-0-31")]
            _otel_0_31: self.otel_0_31.clone().attach(),
            #[cfg(feature = "otel-0-32")]
            _otel_0_32: self.otel_0_32.clone().attach(),
            #[cfg(feature = "otel-0-33")]
            _otel_0_33: self.otel_0_33.clone().attach(),
        }
    }

    /// Links the span that is current in it to another one: that of the newest OpenTelemetry in which there is one.
    #[cfg(feature = "serve")]
    pub(crate) fn add_link(&self, to: &words::PlainContext) {
        let is_linked = false;
        #[cfg(feature = "otel-0-33")]
        let is_linked = is_linked || otel_0_33::add_link(&self.otel_0_33, to);
        #[cfg(feature = "otel-0-32")]
        let is_linked = is_linked || otel_0_32::add_link(&self.otel_0_32, to);
        #[cfg(feature = "otel-0-31")]
        let is_linked = is_linked || otel_0_31::add_link(&self.otel_0_31, to);
        let _ = (is_linked, to);
    }
}

/// Returns what is current on this thread, as headers: that of the newest OpenTelemetry in which there is anything.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub(crate) fn current_headers() -> Option<[String; 3]> {
    let of_copies = [
        #[cfg(feature = "otel-0-33")]
        otel_0_33::current_headers(),
        #[cfg(feature = "otel-0-32")]
        otel_0_32::current_headers(),
        #[cfg(feature = "otel-0-31")]
        otel_0_31::current_headers(),
    ];
    of_copies.into_iter().find(|headers| headers.iter().any(|header| !header.is_empty()))
}

/// Returns what is current on this thread: the span of the newest OpenTelemetry in which there is one, and the baggage beside it.
#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
pub(crate) fn current_plain() -> Option<(words::PlainContext, String)> {
    let of_copies = [
        #[cfg(feature = "otel-0-33")]
        otel_0_33::current_plain(),
        #[cfg(feature = "otel-0-32")]
        otel_0_32::current_plain(),
        #[cfg(feature = "otel-0-31")]
        otel_0_31::current_plain(),
    ];
    of_copies.into_iter().find(|(context, _)| context.is_valid())
}

/// Says so in the host's log, if the author's code has put another provider in the proxy's place. Such spans never
/// reach the host.
pub(crate) fn report_displaced(module: &str) {
    let displaced: &[&str] = &[
        #[cfg(feature = "otel-0-31")]
        (if otel_0_31::is_in_place() { "" } else { "0.31" }),
        #[cfg(feature = "otel-0-32")]
        (if otel_0_32::is_in_place() { "" } else { "0.32" }),
        #[cfg(feature = "otel-0-33")]
        (if otel_0_33::is_in_place() { "" } else { "0.33" }),
    ];
    for version in displaced.iter().filter(|version| !version.is_empty()) {
        let text = format!(
            "module `{module}` has replaced its global tracer provider (OpenTelemetry {version}), so its spans do not \
             belong to its tasks\n(hint: leave `set_tracer_provider` to the startup hook)"
        );
        host::log(LOG_WARN, &text);
    }
}
