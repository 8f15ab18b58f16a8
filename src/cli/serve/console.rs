//! Spans of a service as lines, when they have ended.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tracer_core::count::Elapsed;
use tracer_trace::{Span, Tail};

use super::super::report;

/// The span files of a session, of which the spans of known processes are shown.
pub(super) struct Console {
    tail: Tail,
    /// Prefixes of the lines of processes, by pid.
    names: Arc<Mutex<HashMap<u32, String>>>,
}

impl Console {
    /// Begins behind what is in the files already.
    pub(super) fn start(folder: &Path, names: Arc<Mutex<HashMap<u32, String>>>) -> Console {
        let mut tail = Tail::new(folder);
        // A folder that is not there yet has nothing in it.
        drop(tail.read());
        Console { tail, names }
    }

    /// Shows the spans that have come.
    pub(super) fn show(&mut self) {
        // What cannot be read now may be read the next time.
        let Ok((mut spans, _)) = self.tail.read() else { return };
        spans.sort_by_key(|span| span.end_unix_nano());
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        for span in &spans {
            if let Some(prefix) = span.pid().and_then(|pid| names.get(&pid)) {
                report::talk(&format!("{prefix}{}", line(span)));
            }
        }
    }
}

fn line(span: &Span) -> String {
    let (name, took) = (report::name(span.name()), Elapsed::from_nanos(span.duration_ns()));
    let error = span.attribute("error.type").map(|error| format!(" error={}", report::name(&error.to_string())));
    format!("span {name} {took}{} trace={}", error.unwrap_or_default(), span.trace_id())
}
