//! Log records out of OTLP: what the host hands to a table goes through the SDK's logger to the exporters.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry::{Array, InstrumentationScope, SpanId, TraceFlags, TraceId, Value};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::logs::v1 as proto;
use opentelemetry_sdk::logs::{SdkLogRecord, SdkLoggerProvider};
use prost::Message;

use super::otlp;

/// Severities by their numbers, from 1.
const SEVERITIES: [Severity; 24] = {
    use Severity::*;
    [
        Trace, Trace2, Trace3, Trace4, Debug, Debug2, Debug3, Debug4, Info, Info2, Info3, Info4, Warn, Warn2, Warn3,
        Warn4, Error, Error2, Error3, Error4, Fatal, Fatal2, Fatal3, Fatal4,
    ]
};

/// Emits the records of an encoded `ExportLogsServiceRequest`. On failure: what is wrong with it, for people to read.
pub(super) fn emit(provider: &SdkLoggerProvider, request: &[u8]) -> Result<(), String> {
    let request = ExportLogsServiceRequest::decode(request)
        .map_err(|error| format!("the log records are no OTLP `ExportLogsServiceRequest`: {error}"))?;
    for scoped in request.resource_logs.into_iter().flat_map(|group| group.scope_logs) {
        let scope = scoped.scope.unwrap_or_default();
        let mut builder = InstrumentationScope::builder(scope.name.clone());
        if !scope.version.is_empty() {
            builder = builder.with_version(scope.version);
        }
        let logger = provider.logger_with_scope(builder.build());
        for found in scoped.log_records {
            let mut record = logger.create_log_record();
            fill(&mut record, found);
            record.set_target(scope.name.clone());
            logger.emit(record);
        }
    }
    Ok(())
}

fn fill(record: &mut SdkLogRecord, found: proto::LogRecord) {
    record.set_timestamp(time(found.time_unix_nano));
    record.set_observed_timestamp(time(found.observed_time_unix_nano));
    let at = usize::try_from(found.severity_number).ok().and_then(|number| number.checked_sub(1));
    if let Some(&severity) = at.and_then(|at| SEVERITIES.get(at)) {
        record.set_severity_number(severity);
        record.set_severity_text(severity.name());
    }
    if let Some(Any::StringValue(body)) = found.body.and_then(|body| body.value) {
        record.set_body(AnyValue::String(body.into()));
    }
    for attribute in found.attributes {
        if let Some(value) = attribute.value.and_then(|value| otlp::value(value.value?)) {
            record.add_attribute(attribute.key, any(value));
        }
    }
    let ids = (<[u8; 16]>::try_from(found.trace_id), <[u8; 8]>::try_from(found.span_id));
    if let (Ok(trace_id), Ok(span_id)) = ids {
        let flags = TraceFlags::new(found.flags as u8);
        record.set_trace_context(TraceId::from_bytes(trace_id), SpanId::from_bytes(span_id), Some(flags));
    }
}

fn time(unix_nano: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(unix_nano)
}

fn any(value: Value) -> AnyValue {
    fn list<T>(values: Vec<T>, any: impl Fn(T) -> AnyValue) -> AnyValue {
        AnyValue::ListAny(Box::new(values.into_iter().map(any).collect()))
    }
    match value {
        Value::Bool(value) => AnyValue::Boolean(value),
        Value::I64(value) => AnyValue::Int(value),
        Value::F64(value) => AnyValue::Double(value),
        Value::String(value) => AnyValue::String(value),
        Value::Array(Array::Bool(values)) => list(values, AnyValue::Boolean),
        Value::Array(Array::I64(values)) => list(values, AnyValue::Int),
        Value::Array(Array::F64(values)) => list(values, AnyValue::Double),
        Value::Array(Array::String(values)) => list(values, AnyValue::String),
        other => AnyValue::String(other.as_str().into_owned().into()),
    }
}
