//! Matching of a question against spans and traces.

use serde_json::Value;
use tracer_core::pattern;
use tracer_ipc::protocol::{TaskReport, TaskState};

use super::{AttributeValue, Comparison, Query, State, Test};
use crate::loaded::Trace;
use crate::span::{Attributes, Span, Status, TraceId};

impl Query {
    /// Returns whether the trace matches: one of its spans meets all terms without `-`, and none meets one with `-`.
    pub fn matches(&self, trace: &Trace) -> bool {
        let (wanted, unwanted): (Vec<_>, Vec<_>) = self.terms.iter().partition(|term| !term.is_negated);
        let holds = |test: &Test| test.of_trace(trace);
        if wanted.iter().any(|term| holds(&term.test) == Some(false))
            || unwanted.iter().any(|term| holds(&term.test) == Some(true))
        {
            return false;
        }
        let meets_all = |span: &Span| wanted.iter().all(|term| term.test.holds(span));
        let meets_none = |span: &Span| !unwanted.iter().any(|term| !term.test.is_of_trace() && term.test.holds(span));
        trace.spans.iter().any(meets_all) && (unwanted.is_empty() || trace.spans.iter().all(meets_none))
    }

    /// Returns whether every term holds of the span. Terms about its trace hold.
    pub fn matches_span(&self, span: &Span) -> bool {
        self.terms.iter().all(|term| term.test.is_of_trace() || term.test.holds(span) != term.is_negated)
    }
}

/// Answer to whether a name that a test fits may be among those of a trace.
pub(crate) type MayHaveName<'a> = dyn Fn(&dyn Fn(&str) -> bool) -> bool + 'a;

/// Facts about a trace that are known without its spans.
pub(crate) struct Outline<'a> {
    pub(crate) id: TraceId,
    pub(crate) start_unix_nano: u64,
    pub(crate) end_unix_nano: u64,
    pub(crate) has_error: bool,
    /// True if a span of it is open.
    pub(crate) is_running: bool,
    /// Returns whether a span may have a name that fits; it may say yes of one that does not.
    pub(crate) may_have_name: &'a MayHaveName<'a>,
}

/// Answer of an outline to one test.
enum Known {
    /// No span meets it.
    None,
    /// Some span meets it.
    Some,
    /// Every span meets it.
    All,
    /// It takes the spans to know.
    Unknown,
}

impl Query {
    /// Returns whether a trace matches, if that can be said without its spans.
    pub(crate) fn matches_outline(&self, outline: &Outline<'_>) -> Option<bool> {
        // Terms that some span meets, perhaps not the same.
        let (mut met_by_some, mut is_sure) = (0, true);
        for term in &self.terms {
            match (term.test.of_outline(outline), term.is_negated) {
                (Known::None, false) | (Known::Some | Known::All, true) => return Some(false),
                (Known::None, true) | (Known::All, false) => {}
                (Known::Some, false) => met_by_some += 1,
                (Known::Unknown, _) => is_sure = false,
            }
        }
        (is_sure && met_by_some <= 1).then_some(true)
    }
}

impl Query {
    /// Returns whether a task meets all terms without `-`, and none with `-`.
    pub fn matches_task(&self, task: &TaskReport) -> bool {
        self.terms.iter().all(|term| term.test.holds_of_task(task) != term.is_negated)
    }
}

impl Test {
    fn holds_of_task(&self, task: &TaskReport) -> bool {
        let name = || task.name.as_deref().unwrap_or_default();
        match self {
            Test::Error | Test::State(State::Failed) => task.state == TaskState::Failed,
            Test::Running | Test::State(State::Running) => matches!(
                task.state,
                TaskState::Running | TaskState::Cancelling | TaskState::Terminating | TaskState::Killing
            ),
            Test::State(State::Ended) => {
                matches!(task.state, TaskState::Succeeded | TaskState::Failed | TaskState::Cancelled)
            }
            Test::TaskState(state) => task.state == *state,
            Test::Name(Comparison::Different, asked) => name() != asked && task.target != *asked,
            Test::Name(comparison, asked) => {
                comparison.of_texts(name(), asked) || comparison.of_texts(&task.target, asked)
            }
            Test::Duration(comparison, nanos) => {
                let ran = task.started_unix_nano.zip(task.ended_unix_nano);
                ran.is_some_and(|(start, end)| comparison.orders(end.saturating_sub(start) as f64, *nanos as f64))
            }
            Test::Since(time) => task.submitted_unix_nano >= *time,
            Test::Until(time) => task.submitted_unix_nano <= *time,
            Test::Pid(pid) => task.worker_pid == Some(*pid),
            Test::Trace(beginning) => task.trace_id.as_ref().is_some_and(|id| id.starts_with(beginning)),
            Test::Attribute { key, value, .. } if key == tracer_core::names::TASK_ID => {
                value.number == Some(task.id.0 as f64)
            }
            Test::Attribute { key, comparison, value } => {
                let report = serde_json::to_value(task).unwrap_or_default();
                report.get(key).filter(|found| !found.is_null()).is_some_and(|found| comparison.of_values(found, value))
            }
            Test::Text(text) => [name(), &task.target, task.message.as_deref().unwrap_or_default()]
                .iter()
                .any(|found| found.to_lowercase().contains(text)),
            Test::Root | Test::Kind(_) | Test::Spans(..) | Test::Service(..) => false,
        }
    }

    fn of_outline(&self, outline: &Outline<'_>) -> Known {
        let some = |holds: bool| if holds { Known::Some } else { Known::None };
        match self {
            Test::Trace(beginning) => {
                if outline.id.to_string().starts_with(beginning) {
                    Known::All
                } else {
                    Known::None
                }
            }
            Test::Error | Test::State(State::Failed) => some(outline.has_error),
            Test::Running | Test::State(State::Running) => some(outline.is_running),
            Test::Since(time) if outline.start_unix_nano >= *time => Known::All,
            Test::Since(time) if outline.end_unix_nano < *time => Known::None,
            Test::Until(time) if outline.end_unix_nano <= *time => Known::All,
            Test::Until(time) => some(outline.start_unix_nano <= *time),
            // No span is longer than its trace.
            Test::Duration(Comparison::Greater | Comparison::GreaterOrEqual, nanos)
                if outline.end_unix_nano - outline.start_unix_nano < *nanos =>
            {
                Known::None
            }
            Test::Name(comparison, name) if *comparison != Comparison::Different => {
                if (outline.may_have_name)(&|found| comparison.of_texts(found, name)) {
                    Known::Unknown
                } else {
                    Known::None
                }
            }
            _ => Known::Unknown,
        }
    }

    fn is_of_trace(&self) -> bool {
        matches!(self, Test::Trace(_) | Test::Spans(..))
    }

    /// Returns the answer of a question about the trace; none for a question about a span.
    fn of_trace(&self, trace: &Trace) -> Option<bool> {
        match self {
            Test::Trace(beginning) => Some(trace.id.to_string().starts_with(beginning)),
            Test::Spans(comparison, spans) => Some(comparison.orders(trace.spans.len() as f64, *spans as f64)),
            _ => None,
        }
    }

    /// The answer of a question about a span. One about its trace has been asked before.
    fn holds(&self, span: &Span) -> bool {
        match self {
            Test::Trace(_) | Test::Spans(..) => true,
            Test::Error | Test::State(State::Failed) => span.status == Status::Error,
            Test::Running | Test::State(State::Running) => span.is_running(),
            Test::State(State::Ended) => !span.is_running(),
            Test::Root => span.parent_id().is_none(),
            Test::Name(comparison, name) => comparison.of_texts(span.name(), name),
            Test::Duration(comparison, nanos) => comparison.orders(span.duration_ns() as f64, *nanos as f64),
            Test::Since(time) => span.start_unix_nano >= *time,
            Test::Until(time) => span.start_unix_nano <= *time,
            Test::Kind(kind) => span.kind == *kind,
            Test::Pid(pid) => span.pid() == Some(*pid),
            Test::Service(comparison, service) => {
                span.resource().text("service.name").is_some_and(|name| comparison.of_texts(name, service))
            }
            Test::Attribute { key, comparison, value } => {
                may_contain(&span.text(), key)
                    && span.attribute(key).is_some_and(|found| comparison.of_values(&found, value))
            }
            Test::Text(text) => has_text(span, text),
            Test::TaskState(_) => false,
        }
    }
}

/// Returns whether a JSON text may have a key, without parsing it: a key with characters that JSON escapes always may.
fn may_contain(json: &str, key: &str) -> bool {
    let is_written_as_it_is = key.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '\\' && c != '/');
    !is_written_as_it_is || json.contains(key)
}

/// Returns whether the text, in lower case, is in the name of a span, its status, its attributes or its events.
fn has_text(span: &Span, text: &str) -> bool {
    let is_in = |found: &str| found.to_lowercase().contains(text);
    let in_attributes =
        |attributes: &Attributes| attributes.0.iter().any(|(key, value)| is_in(key) || is_in(&plain(value)));
    is_in(span.name())
        || span.status_description().is_some_and(|description| is_in(&description))
        || in_attributes(&span.attributes())
        || span.events().iter().any(|event| is_in(&event.name) || in_attributes(&event.attributes))
}

/// Returns the text of a value: a string without its quotes, anything else as JSON has it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

impl Comparison {
    fn orders(self, found: f64, asked: f64) -> bool {
        match self {
            Comparison::Contains | Comparison::Equal => found == asked,
            Comparison::Different => found != asked,
            Comparison::Greater => found > asked,
            Comparison::GreaterOrEqual => found >= asked,
            Comparison::Less => found < asked,
            Comparison::LessOrEqual => found <= asked,
        }
    }

    fn of_texts(self, found: &str, asked: &str) -> bool {
        match self {
            Comparison::Equal => found == asked,
            Comparison::Different => found != asked,
            _ if asked.contains(['*', '?']) => pattern::fits(&asked.to_lowercase(), &found.to_lowercase()),
            _ => found.to_lowercase().contains(&asked.to_lowercase()),
        }
    }

    fn of_values(self, found: &Value, asked: &AttributeValue) -> bool {
        // Numbers that are written differently are equal: 200, 200.0.
        let numbers = found.as_f64().zip(asked.number);
        match (self, numbers) {
            (Comparison::Contains, _) => self.of_texts(&plain(found), &asked.text),
            (_, Some((found, asked))) => self.orders(found, asked),
            (Comparison::Equal | Comparison::Different, None) => self.of_texts(&plain(found), &asked.text),
            (_, None) => false,
        }
    }
}
