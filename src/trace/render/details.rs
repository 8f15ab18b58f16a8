//! Attributes and events of a span, as lines below its own.

use tracer_core::count::{Count, Elapsed};

use super::{DIM, INDENT, NAME_MIN, clean, wrap};
use crate::log_records::LogRecord;
use crate::span::{Attributes, Span};

/// An attribute with more lines is cut; the whole value is in the report for programs.
const VALUE_LINES_MAX: usize = 12;
/// Columns by which the attributes of an event, and the further lines of a value, are moved to the right.
const STEP: usize = 2;

/// Sections that are shown of a trace besides its tree.
#[derive(Clone, Copy, Debug)]
pub struct Details<'a> {
    /// The attributes of each span.
    pub attributes: bool,
    /// The events of each span, with their attributes.
    pub events: bool,
    /// Log records of the trace, in the order of their times: each below its span, and those without one below the tree.
    pub logs: Option<&'a [LogRecord]>,
    /// Many siblings of one name take one line.
    pub folds: bool,
}

impl Default for Details<'_> {
    fn default() -> Self {
        Details { attributes: false, events: false, logs: None, folds: true }
    }
}

/// Renders what is asked for of a span. Each line begins with `gutter`, which is as wide as it is painted, and has at most `width` columns.
pub(super) fn below(
    span: &Span,
    details: &Details<'_>,
    trace_start_unix_nano: u64,
    gutter: &str,
    width: usize,
    colour: bool,
) -> String {
    // Events and records have the times of the span's own clock.
    let trace_start_unix_nano = trace_start_unix_nano.saturating_add_signed(span.clock_shift_ns().saturating_neg());
    let mut lines: Vec<(usize, String)> = Vec::new();
    if details.attributes {
        push_attributes(&span.attributes(), 0, &mut lines);
    }
    for event in details.events.then(|| span.events()).into_iter().flatten() {
        let offset = event.time_unix_nano.map(|time| time.saturating_sub(trace_start_unix_nano));
        let offset = offset.map(|offset| format!(" +{}", Elapsed::from_nanos(offset))).unwrap_or_default();
        lines.push((0, format!("◆{offset} {}", clean(&event.name))));
        push_attributes(&event.attributes, STEP, &mut lines);
    }
    let own = details.logs.into_iter().flatten().filter(|record| record.span_id == Some(span.span_id));
    own.for_each(|record| push_record(record, details, trace_start_unix_nano, &mut lines));
    laid_out(lines, gutter, width, colour)
}

/// Renders log records that belong to no span which is shown.
pub(super) fn loose<'a>(
    records: impl Iterator<Item = &'a LogRecord>,
    details: &Details<'_>,
    trace_start_unix_nano: u64,
    width: usize,
    colour: bool,
) -> String {
    let mut lines = Vec::new();
    records.for_each(|record| push_record(record, details, trace_start_unix_nano, &mut lines));
    laid_out(lines, &" ".repeat(INDENT), width, colour)
}

/// Adds a record: its time since the start of the trace, its severity, and its message, of which each line is one.
fn push_record(
    record: &LogRecord,
    details: &Details<'_>,
    trace_start_unix_nano: u64,
    lines: &mut Vec<(usize, String)>,
) {
    let message = match &record.body {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    };
    let offset = record.time_unix_nano.checked_sub(trace_start_unix_nano);
    let offset = offset.map(|offset| format!("+{} ", Elapsed::from_nanos(offset))).unwrap_or_default();
    let severity = if record.severity.is_empty() { String::new() } else { format!("{} ", record.severity) };
    let mut rows = message.lines();
    lines.push((0, clean(&format!("▸ {offset}{severity}{}", rows.next().unwrap_or_default()))));
    lines.extend(rows.map(|row| (STEP, clean(row))));
    if details.attributes {
        push_attributes(&record.attributes, STEP, lines);
    }
}

/// Breaks lines, each with its indent, into those of a terminal.
fn laid_out(lines: Vec<(usize, String)>, gutter: &str, width: usize, colour: bool) -> String {
    let mut text = String::new();
    let mut put = |indent: usize, line: &str| {
        let line = format!("{}{line}", " ".repeat(indent));
        text += &DIM.paint(&format!("{gutter}{}", line.trim_end()), colour);
        text.push('\n');
    };
    let room = width.saturating_sub(gutter.chars().count());
    for (indent, line) in lines {
        let wrapped = wrap(&line, room.saturating_sub(indent + STEP).max(NAME_MIN));
        for (number, line) in wrapped.iter().take(VALUE_LINES_MAX).enumerate() {
            put(if number == 0 { indent } else { indent + STEP }, line);
        }
        if let Some(more) = wrapped.len().checked_sub(VALUE_LINES_MAX).filter(|more| *more > 0) {
            put(indent + STEP, &format!("… {}", Count(more, "more line")));
        }
    }
    text
}

/// Values are written as JSON, which tells a text from a number and has escapes for control characters; [`clean`] replaces the others that
/// would steer a terminal.
fn push_attributes(attributes: &Attributes, indent: usize, lines: &mut Vec<(usize, String)>) {
    for (key, value) in &attributes.0 {
        lines.push((indent, clean(&format!("{key} = {value}"))));
    }
}
