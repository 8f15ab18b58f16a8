//! A span exporter as people write one: each span as the JSON of a derived type, through a buffer, which is flushed after each batch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use opentelemetry::trace::{SpanContext, SpanId, Status};
use opentelemetry::{Key, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use serde::Serialize;

/// Spans in a file, so that what the benchmarks write stays small.
const FILE_SPANS: u64 = 20_000;

/// Writes to a file that begins again when it is large.
#[derive(Debug)]
pub(crate) struct JsonExporter {
    file: Mutex<BufWriter<File>>,
    written: AtomicU64,
    resource: Resource,
    /// Spans in all.
    pub(crate) exported: Arc<AtomicU64>,
}

impl JsonExporter {
    pub(crate) fn new(folder: &Path) -> JsonExporter {
        let file = tempfile::tempfile_in(folder).expect("the folder can be written to");
        let (written, exported) = (AtomicU64::new(0), Arc::default());
        JsonExporter {
            file: Mutex::new(BufWriter::new(file)),
            written,
            resource: Resource::builder().build(),
            exported,
        }
    }
}

impl SpanExporter for JsonExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut file = self.file.lock().expect("no thread panics with it");
        for span in &batch {
            serde_json::to_writer(&mut *file, &JsonSpan::of(span, &self.resource)).map_err(failed)?;
            file.write_all(b"\n").map_err(failed)?;
        }
        file.flush().map_err(failed)?;
        if self.written.fetch_add(batch.len() as u64, Ordering::Relaxed) > FILE_SPANS {
            self.written.store(0, Ordering::Relaxed);
            file.rewind().and_then(|()| file.get_ref().set_len(0)).map_err(failed)?;
        }
        self.exported.fetch_add(batch.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.clone();
    }
}

fn failed(error: impl std::fmt::Display) -> OTelSdkError {
    OTelSdkError::InternalFailure(error.to_string())
}

/// A span with what its line in a span file has.
#[derive(Serialize)]
struct JsonSpan<'a> {
    name: &'a str,
    context: JsonContext,
    kind: String,
    parent_id: Option<String>,
    start_time: String,
    end_time: String,
    status: JsonStatus,
    attributes: BTreeMap<&'a str, JsonValue<'a>>,
    events: Vec<JsonEvent<'a>>,
    links: Vec<JsonContext>,
    resource: JsonResource<'a>,
}

#[derive(Serialize)]
struct JsonContext {
    trace_id: String,
    span_id: String,
    trace_state: String,
}

#[derive(Serialize)]
struct JsonStatus {
    status_code: &'static str,
}

#[derive(Serialize)]
struct JsonEvent<'a> {
    name: &'a str,
    timestamp: String,
    attributes: BTreeMap<&'a str, JsonValue<'a>>,
}

#[derive(Serialize)]
struct JsonResource<'a> {
    attributes: BTreeMap<&'a str, JsonValue<'a>>,
    schema_url: &'a str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonValue<'a> {
    Bool(bool),
    I64(i64),
    F64(f64),
    Text(Cow<'a, str>),
}

impl<'a> JsonSpan<'a> {
    fn of(span: &'a SpanData, resource: &'a Resource) -> JsonSpan<'a> {
        let events = span.events.iter().map(|event| JsonEvent {
            name: &event.name,
            timestamp: iso_time(event.timestamp),
            attributes: json_attributes(event.attributes.iter().map(|pair| (&pair.key, &pair.value))),
        });
        JsonSpan {
            name: &span.name,
            context: JsonContext::of(&span.span_context),
            kind: format!("{:?}", span.span_kind),
            parent_id: (span.parent_span_id != SpanId::INVALID).then(|| span.parent_span_id.to_string()),
            start_time: iso_time(span.start_time),
            end_time: iso_time(span.end_time),
            status: JsonStatus {
                status_code: match span.status {
                    Status::Unset => "UNSET",
                    Status::Ok => "OK",
                    Status::Error { .. } => "ERROR",
                },
            },
            attributes: json_attributes(span.attributes.iter().map(|pair| (&pair.key, &pair.value))),
            events: events.collect(),
            links: span.links.iter().map(|link| JsonContext::of(&link.span_context)).collect(),
            resource: JsonResource {
                attributes: json_attributes(resource.iter()),
                schema_url: resource.schema_url().unwrap_or_default(),
            },
        }
    }
}

impl JsonContext {
    fn of(context: &SpanContext) -> JsonContext {
        JsonContext {
            trace_id: context.trace_id().to_string(),
            span_id: context.span_id().to_string(),
            trace_state: context.trace_state().header(),
        }
    }
}

fn iso_time(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn json_attributes<'a>(attributes: impl Iterator<Item = (&'a Key, &'a Value)>) -> BTreeMap<&'a str, JsonValue<'a>> {
    let value = |value: &'a Value| match value {
        Value::Bool(value) => JsonValue::Bool(*value),
        Value::I64(value) => JsonValue::I64(*value),
        Value::F64(value) => JsonValue::F64(*value),
        other => JsonValue::Text(other.as_str()),
    };
    attributes.map(|(key, found)| (key.as_str(), value(found))).collect()
}
