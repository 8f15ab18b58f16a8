//! The span of a batch: child of the oldest sampled caller, linked with all of them.

use std::time::Duration;

use crate::proxy::own::{Attribute, OwnSpan, OwnSpanStart};
use crate::proxy::words::PlainContext;
use crate::proxy::{Held, Lender};
use crate::serve::lent::HostTable;
use crate::task::Failure;

/// The flag of a trace that is sampled, as W3C has it.
const SAMPLED: u8 = 1;

/// Context of a caller: the span that is current there.
pub(super) struct Caller {
    held: Held,
    /// The span and its baggage, if it is sampled.
    sampled: Option<(PlainContext, String)>,
}

impl Caller {
    /// Returns what is current on this thread.
    pub(super) fn current() -> Caller {
        let sampled = current_plain().filter(|(context, _)| context.trace_flags & SAMPLED != 0);
        Caller { held: Held::current(), sampled }
    }
}

#[cfg(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33"))]
fn current_plain() -> Option<(PlainContext, String)> {
    crate::proxy::current_plain()
}

#[cfg(not(any(feature = "otel-0-31", feature = "otel-0-32", feature = "otel-0-33")))]
fn current_plain() -> Option<(PlainContext, String)> {
    None
}

/// The span of a batch that runs, and the context in which it is current. Without a sampled caller there is no span, and the context is that of the oldest
/// caller, so that spans inside are no more sampled than it is.
pub(super) struct BatchSpan {
    pub(super) held: Held,
    _lender: Option<Lender>,
    // After the loan.
    span: Option<OwnSpan>,
}

impl BatchSpan {
    /// Starts the span of a batch of these callers, oldest first, and links each sampled one to it.
    pub(super) fn start(function: &str, callers: &[Caller], waited: Duration, replica: Option<HostTable>) -> BatchSpan {
        let sampled: Vec<_> = callers.iter().filter_map(|caller| caller.sampled.as_ref()).collect();
        let span = sampled.first().and_then(|(parent, baggage)| {
            let links: Vec<_> = sampled.iter().map(|(context, _)| context).collect();
            let span = start(function, parent, baggage, &links, callers.len(), waited, replica)?;
            Some((span, baggage))
        });
        let Some((span, baggage)) = span else {
            let held = callers.first().map(|caller| caller.held.clone()).unwrap_or_default();
            return BatchSpan { held, _lender: None, span: None };
        };
        for caller in callers.iter().filter(|caller| caller.sampled.is_some()) {
            caller.held.add_link(span.context());
        }
        let (held, lender) = span.lend(baggage);
        BatchSpan { held, _lender: lender, span: Some(span) }
    }

    /// Ends the span.
    pub(super) fn end(self, failure: Option<&Failure>) {
        if let (Some(span), Some(failure)) = (self.take_back(), failure) {
            span.fail(&failure.type_name, failure);
        }
    }

    /// Ends the loan, and returns the span.
    fn take_back(self) -> Option<OwnSpan> {
        self.span
    }
}

fn start(
    function: &str,
    parent: &PlainContext,
    baggage: &str,
    links: &[&PlainContext],
    size: usize,
    waited: Duration,
    replica: Option<HostTable>,
) -> Option<OwnSpan> {
    let text = |text: tracer_abi::Str| {
        // SAFETY: texts of the host's table live as long as the process.
        std::str::from_utf8(unsafe { text.as_bytes() }).unwrap_or_default()
    };
    let settings = replica.map(|host| host.settings());
    let of = |pick: fn(&tracer_abi::Serving) -> tracer_abi::Str| settings.map_or("", |settings| text(pick(settings)));
    let deployment = of(|settings| settings.deployment);
    let name = format!("batch {deployment}.{function}");
    let integer = |number: u128| Attribute::I64(i64::try_from(number).unwrap_or(i64::MAX));
    OwnSpan::start(&OwnSpanStart {
        name: &name,
        parent,
        baggage,
        links,
        attributes: &[
            ("deployment", Attribute::Str(deployment)),
            ("app", Attribute::Str(of(|settings| settings.application))),
            ("replica_id", Attribute::Str(of(|settings| settings.replica))),
            ("call_method", Attribute::Str(function)),
            ("tracer.batch.size", integer(size as u128)),
            ("tracer.batch.waited_ns", integer(waited.as_nanos())),
        ],
    })
}
