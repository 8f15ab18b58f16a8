//! Lines of output beside the log records of a trace.

use std::collections::HashMap;

use super::super::CommandError;
use super::SourceArgs;
use crate::exit;
use crate::names;
use crate::protocol::Stream;
use crate::session;
use crate::task::TaskId;
use crate::task_logs::{Line, TaskLogs, task_of};
use crate::task_output::Owner;
use crate::trace::{Attributes, Kind, LogRecord, Span, SpanId, Trace};

/// Reads what the attempts of a trace wrote from the sessions of the place: each line as a record of the attempt's span, whose severity is the name of the
/// output.
pub(super) fn of_trace(source: &SourceArgs, trace: &Trace) -> Result<Vec<LogRecord>, CommandError> {
    let (attempts, id) = (attempts(trace), trace.id.0.to_be_bytes());
    let mut records = Vec::new();
    for session in session::all_sessions(&source.temp_dir()) {
        let mut logs = TaskLogs::of_session(&session);
        let read = logs.read(|extent| matches!(extent.owner, Owner::Attempt { trace_id, .. } if trace_id == id));
        let mut lines = match read {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.map_err(|error| {
                let text = format!("the logs in `{}` cannot be read: {error}", logs.folder().display());
                CommandError::new(exit::FAILED, text)
            })?,
        };
        lines.extend(logs.take_rest());
        records.extend(lines.into_iter().map(|line| record(line, &attempts)));
    }
    Ok(records)
}

fn record(line: Line, attempts: &HashMap<(TaskId, u32), SpanId>) -> LogRecord {
    let attempt = match line.owner {
        Owner::Attempt { attempt, .. } => attempt,
        _ => 0,
    };
    LogRecord {
        time_unix_nano: line.unix_nano,
        severity: if line.stream == Stream::Stdout { "stdout" } else { "stderr" }.into(),
        span_id: task_of(line.owner).and_then(|task| attempts.get(&(task, attempt)).copied()),
        body: line.text.into(),
        attributes: Attributes::default(),
    }
}

/// Returns the spans of the attempts of a trace, by task and number.
fn attempts(trace: &Trace) -> HashMap<(TaskId, u32), SpanId> {
    let of_span = |span: &Span| {
        let attributes = span.attributes();
        let number = |key| attributes.get(key)?.as_u64();
        let attempt = u32::try_from(number(names::ATTEMPT)?).ok()?;
        Some(((TaskId(number(names::TASK_ID)?), attempt), span.span_id))
    };
    trace.spans.iter().filter(|span| span.kind == Kind::Consumer).filter_map(of_span).collect()
}
