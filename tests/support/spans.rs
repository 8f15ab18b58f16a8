//! The spans of a test, as they are in its span files.

use std::collections::HashMap;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One span: a line of a span file, and which file it was in.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub value: Value,
    pub file: PathBuf,
}

impl Span {
    pub fn name(&self) -> &str {
        self.text(&["name"])
    }

    /// `SpanKind.CONSUMER` and so on.
    pub fn kind(&self) -> &str {
        self.text(&["kind"])
    }

    pub fn trace_id(&self) -> &str {
        self.text(&["context", "trace_id"])
    }

    pub fn span_id(&self) -> &str {
        self.text(&["context", "span_id"])
    }

    /// None for a root.
    pub fn parent_id(&self) -> Option<&str> {
        self.value["parent_id"].as_str()
    }

    /// `UNSET`, `OK` or `ERROR`.
    pub fn status_code(&self) -> &str {
        self.text(&["status", "status_code"])
    }

    /// Returns the description of the status, or nothing.
    pub fn status_description(&self) -> &str {
        self.value["status"]["description"].as_str().unwrap_or_default()
    }

    /// Null when there is none.
    pub fn attribute(&self, key: &str) -> &Value {
        &self.value["attributes"][key]
    }

    /// Returns the attribute of the span's process.
    pub fn resource_attribute(&self, key: &str) -> &Value {
        &self.value["resource"]["attributes"][key]
    }

    /// Returns the span events of a name.
    pub fn events(&self, name: &str) -> Vec<&Value> {
        self.value["events"].as_array().into_iter().flatten().filter(|event| event["name"] == name).collect()
    }

    pub fn links(&self) -> &[Value] {
        self.value["links"].as_array().map(Vec::as_slice).unwrap_or_default()
    }

    fn text(&self, path: &[&str]) -> &str {
        let found = path.iter().fold(&self.value, |value, key| &value[key]);
        found.as_str().unwrap_or_else(|| panic!("a span has no text at {path:?}: {}", self.value))
    }
}

/// Spans with look-ups; a list of [`Span`].
#[derive(Clone, Debug, Default)]
pub struct Spans {
    pub spans: Vec<Span>,
    /// Lines that are no JSON object. A test that does not expect one fails through [`Spans::read`].
    pub torn_lines: Vec<String>,
}

impl Deref for Spans {
    type Target = [Span];

    fn deref(&self) -> &[Span] {
        &self.spans
    }
}

impl Spans {
    /// Reads all span files of a folder, `*.json`. A folder that does not exist holds none.
    pub fn read(folder: &Path) -> Spans {
        let mut files: Vec<_> =
            fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
        files.sort();
        let mut spans = Spans::default();
        for file in files {
            let bytes = fs::read(&file).unwrap_or_default();
            // The line after the last line feed is still being written.
            let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            for line in String::from_utf8_lossy(&bytes[..whole]).lines().filter(|line| !line.is_empty()) {
                match serde_json::from_str(line) {
                    Ok(value @ Value::Object(_)) => spans.spans.push(Span { value, file: file.clone() }),
                    _ => spans.torn_lines.push(line.to_owned()),
                }
            }
        }
        spans
    }

    /// Returns the one span of a name.
    #[track_caller]
    pub fn named(&self, name: &str) -> &Span {
        self.only(&format!("is named `{name}`"), |span| span.name() == name)
    }

    /// Returns all spans of a name.
    pub fn all_named(&self, name: &str) -> Vec<&Span> {
        self.spans.iter().filter(|span| span.name() == name).collect()
    }

    /// Returns the one span for which `is_it` holds.
    #[track_caller]
    pub fn only(&self, what: &str, is_it: impl Fn(&Span) -> bool) -> &Span {
        let found: Vec<_> = self.spans.iter().filter(|span| is_it(span)).collect();
        assert_eq!(found.len(), 1, "expected one span that {what}, among {}", self.describe());
        found[0]
    }

    /// Returns the span of that id, in the same trace.
    #[track_caller]
    pub fn parent_of(&self, child: &Span) -> &Span {
        let parent = child.parent_id().unwrap_or_else(|| panic!("`{}` has no parent", child.name()));
        self.only(&format!("is the parent of `{}`", child.name()), |span| {
            span.trace_id() == child.trace_id() && span.span_id() == parent
        })
    }

    /// Returns the spans right below one.
    pub fn children_of(&self, parent: &Span) -> Vec<&Span> {
        let is_child =
            |span: &&Span| span.trace_id() == parent.trace_id() && span.parent_id() == Some(parent.span_id());
        self.spans.iter().filter(is_child).collect()
    }

    /// Returns the one span with this value of an attribute.
    #[track_caller]
    pub fn with_attribute(&self, key: &str, value: impl Into<Value>) -> &Span {
        let value = value.into();
        self.only(&format!("has `{key}` = {value}"), |span| *span.attribute(key) == value)
    }

    /// Returns the span of the last attempt of a task.
    #[track_caller]
    pub fn attempt_of(&self, task: u64) -> &Span {
        let is_attempt = |span: &&Span| span.kind() == "SpanKind.CONSUMER" && *span.attribute("tracer.task_id") == task;
        let attempts = self.spans.iter().filter(is_attempt);
        attempts
            .max_by_key(|span| span.attribute("tracer.attempt").as_u64())
            .unwrap_or_else(|| panic!("no attempt of task {task} among {}", self.describe()))
    }

    /// Expects that no span is there twice and none is without its parent, but for roots and those whose parent is `outside`.
    #[track_caller]
    pub fn assert_whole(&self, outside: &[&str]) {
        assert!(self.torn_lines.is_empty(), "the span files have lines that are no spans: {:?}", self.torn_lines);
        let mut count = HashMap::<(&str, &str), usize>::new();
        for span in &self.spans {
            *count.entry((span.trace_id(), span.span_id())).or_default() += 1;
        }
        for span in &self.spans {
            assert_eq!(
                count[&(span.trace_id(), span.span_id())],
                1,
                "`{}` was written twice: {}",
                span.name(),
                self.describe()
            );
            if let Some(parent) = span.parent_id().filter(|parent| !outside.contains(parent)) {
                let is_there = count.contains_key(&(span.trace_id(), parent));
                assert!(is_there, "`{}` has no parent: {}", span.name(), self.describe());
            }
        }
    }

    /// Returns the spans in short, for a message.
    pub fn describe(&self) -> String {
        let lines: Vec<_> = self
            .spans
            .iter()
            .map(|span| {
                format!(
                    "  {} {} id {} parent {} in trace {} {} {}",
                    span.name(),
                    span.kind(),
                    span.span_id(),
                    span.parent_id().unwrap_or("none"),
                    span.trace_id(),
                    span.status_code(),
                    span.status_description()
                )
            })
            .collect();
        format!("{} spans\n{}", lines.len(), lines.join("\n"))
    }
}
