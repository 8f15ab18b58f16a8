//! Propagators: the parts of a context that are extracted and injected at the edges of a session.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BAGGAGE, Carrier, TRACEPARENT, TRACESTATE};

/// Propagators: the part of its environment that a submission takes along, and that commands get in theirs. The names are those of
/// `OTEL_PROPAGATORS`.
///
/// Inside of a session the context always travels: without it, tasks would not be part of their submission's trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Propagators {
    /// `tracecontext`: `TRACEPARENT` and `TRACESTATE`.
    pub trace_context: bool,
    /// `baggage`: `BAGGAGE`.
    pub baggage: bool,
}

impl Default for Propagators {
    /// Both, as OpenTelemetry has it.
    fn default() -> Propagators {
        Propagators { trace_context: true, baggage: true }
    }
}

impl Propagators {
    /// Neither.
    pub const NONE: Propagators = Propagators { trace_context: false, baggage: false };

    /// Reads from `lookup` the variables that belong to a part which is taken in. The others count as not set.
    pub fn lookup(self, name: &str, lookup: impl FnOnce(&str) -> Option<OsString>) -> Option<OsString> {
        let is_taken = match name {
            TRACEPARENT | TRACESTATE => self.trace_context,
            BAGGAGE => self.baggage,
            _ => true,
        };
        if is_taken { lookup(name) } else { None }
    }

    /// Keeps the part of `carrier` that is passed on.
    pub fn pass_on(self, mut carrier: Carrier) -> Carrier {
        if !self.trace_context {
            carrier.trace_context = None;
        }
        if !self.baggage {
            carrier.baggage.clear();
        }
        carrier
    }

    /// Reads names, of which `none` stands alone. Spaces around them and repetitions mean nothing.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Propagators, PropagatorsError> {
        let mut propagators = Propagators::NONE;
        let (mut is_none, mut is_any) = (false, false);
        for name in names {
            match name.trim() {
                "tracecontext" => propagators.trace_context = true,
                "baggage" => propagators.baggage = true,
                "none" => is_none = true,
                unknown => return Err(PropagatorsError::Unknown { found: unknown.to_owned() }),
            }
            is_any = true;
        }
        match (is_none, propagators == Propagators::NONE) {
            _ if !is_any => Err(PropagatorsError::Unknown { found: String::new() }),
            (true, false) => Err(PropagatorsError::NoneAmongOthers),
            _ => Ok(propagators),
        }
    }
}

impl FromStr for Propagators {
    type Err = PropagatorsError;

    /// Names, separated by commas. Fit for use as a value parser of a flag.
    fn from_str(text: &str) -> Result<Propagators, PropagatorsError> {
        Propagators::from_names(text.split(','))
    }
}

impl fmt::Display for Propagators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.trace_context, self.baggage) {
            (true, true) => "tracecontext,baggage",
            (true, false) => "tracecontext",
            (false, true) => "baggage",
            (false, false) => "none",
        })
    }
}

/// Names that are not those of propagators. Its message says what was expected and found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PropagatorsError {
    /// A name that is not known.
    #[error("expected `tracecontext`, `baggage`, both or `none`, found `{found}`")]
    Unknown {
        /// The name.
        found: String,
    },
    /// `none` together with another name.
    #[error("expected `none` alone, found another name beside it")]
    NoneAmongOthers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (text, expected) in [
            ("tracecontext,baggage", (true, true)),
            (" baggage , tracecontext,baggage", (true, true)),
            ("tracecontext", (true, false)),
            ("baggage", (false, true)),
            ("none", (false, false)),
        ] {
            let propagators: Propagators = text.parse().expect(text);
            assert_eq!((propagators.trace_context, propagators.baggage), expected, "{text}");
            assert_eq!(propagators.to_string().parse(), Ok(propagators));
        }
    }

    #[test]
    fn what_is_no_propagator_is_refused_with_what_is_allowed() {
        for (text, expected) in [
            ("b3", "expected `tracecontext`, `baggage`, both or `none`, found `b3`"),
            ("tracecontext,", "expected `tracecontext`, `baggage`, both or `none`, found ``"),
            ("", "expected `tracecontext`, `baggage`, both or `none`, found ``"),
            ("TraceContext", "expected `tracecontext`, `baggage`, both or `none`, found `TraceContext`"),
            ("none,baggage", "expected `none` alone, found another name beside it"),
        ] {
            assert_eq!(text.parse::<Propagators>().expect_err(text).to_string(), expected);
        }
        assert!(Propagators::from_names([]).is_err());
    }

    #[test]
    fn only_what_is_propagated_is_taken_in_and_passed_on() {
        let lookup = |name: &str| {
            let value = match name {
                TRACEPARENT => "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                TRACESTATE => "a=1",
                _ => "k=v",
            };
            Some(OsString::from(value))
        };
        let (whole, _) = Carrier::from_env(lookup);
        for text in ["tracecontext,baggage", "tracecontext", "baggage", "none"] {
            let propagators: Propagators = text.parse().expect(text);
            let (taken, rejections) = Carrier::from_env(|name| propagators.lookup(name, lookup));
            assert_eq!(rejections, [], "{text}");
            assert_eq!(taken.trace_context.is_some(), propagators.trace_context, "{text}");
            assert_eq!(!taken.baggage.is_empty(), propagators.baggage, "{text}");
            assert_eq!(propagators.pass_on(whole.clone()), taken, "{text}");
        }
    }
}
