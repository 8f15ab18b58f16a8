//! Propagation of a trace context: W3C Trace Context level 2, W3C Baggage, and the environment as their carrier.
//!
//! The parsers are strict: what the recommendations call invalid is refused and the reason is named, and what is valid survives unchanged.
//! A wrong value never fails the caller: it counts as absent, and is reported beside the result as a [`Rejection`].
//! This module reads and writes texts; it starts no span, spawns no process and never changes the process's own environment.
//!
//! Specifications: <https://www.w3.org/TR/trace-context-2/>, <https://www.w3.org/TR/baggage/>, and OpenTelemetry's
//! "Environment Variables as Context Propagation Carriers".

mod baggage;
mod propagators;
mod trace_parent;
mod trace_state;

use std::ffi::OsString;
use std::fmt;

use serde::{Deserialize, Serialize};

pub use baggage::{
    BAGGAGE_BYTES_LIMIT, BAGGAGE_MEMBERS_LIMIT, Baggage, BaggageEntry, BaggageError, BaggageMemberError,
};
pub use propagators::{Propagators, PropagatorsError};
pub use trace_parent::{FLAG_RANDOM, FLAG_SAMPLED, TraceParent, TraceParentError};
pub use trace_state::{TRACE_STATE_CHARACTERS_LIMIT, TRACE_STATE_MEMBERS_LIMIT, TraceState, TraceStateError};

/// The environment variable for `traceparent`.
pub const TRACEPARENT: &str = "TRACEPARENT";
/// The environment variable for `tracestate`.
pub const TRACESTATE: &str = "TRACESTATE";
/// The environment variable for `baggage`.
pub const BAGGAGE: &str = "BAGGAGE";
/// All of them: what a process that continues a trace has in its environment.
pub const VARIABLES: [&str; 3] = [TRACEPARENT, TRACESTATE, BAGGAGE];

/// A place in a trace, with what vendors say about it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TraceContext {
    /// The trace, the span in it, and the flags.
    pub parent: TraceParent,
    /// The `tracestate` header as it is sent; empty for none. A [`TraceState`] reads and changes it.
    pub trace_state: String,
}

/// Everything that travels with a task, a request or a child process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Carrier {
    /// The caller's place in its trace; `None` when the caller is in none.
    pub trace_context: Option<TraceContext>,
    /// The `baggage` header as it is sent; empty for none. A [`Baggage`] reads and changes it.
    pub baggage: String,
}

/// A value that was not carried on, or not whole, and why. Its message is a sentence for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The header or the environment variable.
    pub name: &'static str,
    /// Error in it.
    pub reason: Reason,
}

/// Defect of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The value is not UTF-8.
    NotUtf8,
    /// `traceparent` came more than once.
    SeveralTraceParents,
    /// `traceparent` is malformed. `tracestate` is ignored with it.
    TraceParent(TraceParentError),
    /// `tracestate` came without a usable `traceparent`, and means nothing alone.
    TraceStateAlone,
    /// `tracestate` is malformed. `traceparent` is used without it.
    TraceState(TraceStateError),
    /// `tracestate` is too long; as many of its members as this were left out.
    TraceStateCut(usize),
    /// Something in `baggage` was left out. The rest is used.
    Baggage(BaggageError),
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.reason {
            Reason::NotUtf8 => write!(f, "`{name}` is ignored: it is not UTF-8"),
            Reason::SeveralTraceParents => write!(f, "`{name}` is ignored: it is there more than once"),
            Reason::TraceParent(error) => {
                write!(f, "`{name}` is ignored: {error}")?;
                f.write_str("\n(hint: it is `00-<32 hex digits>-<16 hex digits>-01`; without one, a new trace begins)")
            }
            Reason::TraceStateAlone => write!(f, "`{name}` is ignored: there is no valid traceparent with it"),
            Reason::TraceState(error) => write!(f, "`{name}` is ignored: {error}"),
            Reason::TraceStateCut(members) => {
                let members = crate::count::Count(*members, "member");
                write!(
                    f,
                    "`{name}` is cut: {members} left out to stay within {TRACE_STATE_CHARACTERS_LIMIT} characters"
                )
            }
            Reason::Baggage(error) => write!(f, "`{name}` is cut: {error}"),
        }
    }
}

impl std::error::Error for Rejection {}

impl Carrier {
    /// Reads `TRACEPARENT`, `TRACESTATE` and `BAGGAGE`. `lookup` is usually [`std::env::var_os`].
    ///
    /// A variable that is set to nothing counts as not set.
    pub fn from_env(mut lookup: impl FnMut(&str) -> Option<OsString>) -> (Carrier, Vec<Rejection>) {
        let mut rejections = Vec::new();
        let mut read = |name: &'static str| {
            let value = lookup(name).filter(|value| !value.is_empty())?;
            value.into_string().inspect_err(|_| rejections.push(Rejection { name, reason: Reason::NotUtf8 })).ok()
        };
        let (trace_parent, trace_state, baggage) = (read(TRACEPARENT), read(TRACESTATE), read(BAGGAGE));
        let carrier = extract(
            [TRACEPARENT, TRACESTATE, BAGGAGE],
            trace_parent.as_deref().into_iter(),
            trace_state.as_deref().into_iter(),
            baggage.as_deref().into_iter(),
            &mut rejections,
        );
        (carrier, rejections)
    }

    /// Reads the header lines of a request: of each name all the values there are, in order.
    ///
    /// Several `tracestate` or `baggage` lines are one list; several `traceparent` lines are an error. The caller
    /// matches header names without regard to case.
    pub fn from_headers<'a>(
        trace_parents: impl IntoIterator<Item = &'a str>,
        trace_states: impl IntoIterator<Item = &'a str>,
        baggages: impl IntoIterator<Item = &'a str>,
    ) -> (Carrier, Vec<Rejection>) {
        let mut rejections = Vec::new();
        let carrier = extract(
            ["traceparent", "tracestate", "baggage"],
            // Spaces and tabs around a header's value are not part of it (RFC 9110, section 5.5).
            trace_parents.into_iter().map(trim_ows),
            trace_states.into_iter(),
            baggages.into_iter(),
            &mut rejections,
        );
        (carrier, rejections)
    }

    /// Returns the variables for a child's environment: `Some` is to be set, `None` is to be removed, so that the child
    /// inherits nothing stale.
    pub fn to_env(&self) -> [(&'static str, Option<String>); 3] {
        let is_said = |text: &String| !text.is_empty();
        let trace_context = self.trace_context.as_ref();
        [
            (TRACEPARENT, trace_context.map(|context| context.parent.to_string())),
            (TRACESTATE, trace_context.map(|context| context.trace_state.clone()).filter(is_said)),
            (BAGGAGE, Some(self.baggage.clone()).filter(is_said)),
        ]
    }
}

fn extract<'a>(
    [trace_parent_name, trace_state_name, baggage_name]: [&'static str; 3],
    mut trace_parents: impl Iterator<Item = &'a str>,
    trace_states: impl Iterator<Item = &'a str>,
    baggages: impl Iterator<Item = &'a str>,
    rejections: &mut Vec<Rejection>,
) -> Carrier {
    let mut reject = |name, reason| rejections.push(Rejection { name, reason });
    let parent = match (trace_parents.next(), trace_parents.next()) {
        (None, _) => None,
        (Some(_), Some(_)) => {
            reject(trace_parent_name, Reason::SeveralTraceParents);
            None
        }
        (Some(text), None) => match TraceParent::parse(text) {
            Ok(parent) => Some(parent),
            Err(error) => {
                reject(trace_parent_name, Reason::TraceParent(error));
                None
            }
        },
    };
    let trace_context = match parent {
        None => {
            if trace_states.into_iter().any(|text| !trim_ows(text).is_empty()) {
                reject(trace_state_name, Reason::TraceStateAlone);
            }
            None
        }
        Some(parent) => {
            let mut trace_state = TraceState::parse(trace_states).unwrap_or_else(|error| {
                reject(trace_state_name, Reason::TraceState(error));
                TraceState::default()
            });
            let cut = trace_state.truncate(TRACE_STATE_CHARACTERS_LIMIT);
            if cut > 0 {
                reject(trace_state_name, Reason::TraceStateCut(cut));
            }
            Some(TraceContext { parent, trace_state: trace_state.to_string() })
        }
    };
    let (baggage, errors) = Baggage::parse(baggages);
    for error in errors {
        reject(baggage_name, Reason::Baggage(error));
    }
    Carrier { trace_context, baggage: baggage.to_string() }
}

/// Trims what HTTP calls optional whitespace: spaces and tabs, nothing else.
fn trim_ows(text: &str) -> &str {
    text.trim_matches([' ', '\t'])
}

#[cfg(test)]
mod tests;
