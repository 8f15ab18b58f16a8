//! The messages of OTLP as tables: what each field is called, its number in protobuf and its type.
//!
//! Both decoders read by them, so that a field is written down once. Fields that are not here are stepped over, as the specification asks of
//! receivers: newer senders may have more.
//!
//! Source: opentelemetry-proto 1.9, `opentelemetry/proto/{common,resource,trace,logs,metrics}/v1`.

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    /// Its name in the specification.
    pub(super) name: &'static str,
    /// Its fields, by number.
    pub(super) fields: &'static [Field],
    pub(super) role: Role,
}

/// The part that a message plays for a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Part,
    /// A span, a log record or a data point: accepted or rejected as a whole.
    Record,
    /// The same, which is nothing without a trace id, a span id and the time of its start.
    Span,
    /// A value, of which one field is set, and which may hold others.
    Value,
}

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) number: u32,
    /// Its name in JSON, in lower camel case.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) is_repeated: bool,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Message(&'static Message),
    String,
    /// Bytes, in base64 in JSON.
    Bytes,
    /// An id of so many bytes, in hexadecimal digits in JSON; empty or all zeroes for none.
    Id(usize),
    Bool,
    Double,
    Uint32,
    /// `int32` of an enumeration, none of which has a value below zero, with the names of its values from zero on.
    Enumeration(&'static [&'static str]),
    Sint32,
    Fixed32,
    /// In JSON all numbers of 64 bits are texts.
    Int64,
    Uint64,
    Fixed64,
    Sfixed64,
}

impl Message {
    /// Returns the index of the field with a number.
    pub(super) fn by_number(&self, number: u32) -> Option<usize> {
        self.fields.iter().position(|field| field.number == number)
    }

    /// Returns the index of the field with a name in JSON: lower camel case, or as it is in the specification.
    pub(super) fn by_name(&self, name: &str) -> Option<usize> {
        let is_same = |field: &Field| field.name == name || name.contains('_') && is_snake_of(name, field.name);
        self.fields.iter().position(is_same)
    }
}

/// Returns whether a name with underscores is one in lower camel case.
fn is_snake_of(snake: &str, camel: &str) -> bool {
    let mut written = snake.chars();
    let is_same = camel.chars().all(|character| match character.is_ascii_uppercase() {
        true => written.next() == Some('_') && written.next() == Some(character.to_ascii_lowercase()),
        false => written.next() == Some(character),
    });
    is_same && written.next().is_none()
}

const fn one(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind, is_repeated: false }
}

const fn many(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind, is_repeated: true }
}

const fn attributes(number: u32) -> Field {
    many(number, "attributes", Kind::Message(&KEY_VALUE))
}

const fn dropped_attributes(number: u32) -> Field {
    one(number, "droppedAttributesCount", Kind::Uint32)
}

const SPAN_KINDS: &[&str] = &[
    "SPAN_KIND_UNSPECIFIED",
    "SPAN_KIND_INTERNAL",
    "SPAN_KIND_SERVER",
    "SPAN_KIND_CLIENT",
    "SPAN_KIND_PRODUCER",
    "SPAN_KIND_CONSUMER",
];
const STATUS_CODES: &[&str] = &["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"];
const TEMPORALITIES: &[&str] =
    &["AGGREGATION_TEMPORALITY_UNSPECIFIED", "AGGREGATION_TEMPORALITY_DELTA", "AGGREGATION_TEMPORALITY_CUMULATIVE"];
const SEVERITIES: &[&str] = &[
    "SEVERITY_NUMBER_UNSPECIFIED",
    "SEVERITY_NUMBER_TRACE",
    "SEVERITY_NUMBER_TRACE2",
    "SEVERITY_NUMBER_TRACE3",
    "SEVERITY_NUMBER_TRACE4",
    "SEVERITY_NUMBER_DEBUG",
    "SEVERITY_NUMBER_DEBUG2",
    "SEVERITY_NUMBER_DEBUG3",
    "SEVERITY_NUMBER_DEBUG4",
    "SEVERITY_NUMBER_INFO",
    "SEVERITY_NUMBER_INFO2",
    "SEVERITY_NUMBER_INFO3",
    "SEVERITY_NUMBER_INFO4",
    "SEVERITY_NUMBER_WARN",
    "SEVERITY_NUMBER_WARN2",
    "SEVERITY_NUMBER_WARN3",
    "SEVERITY_NUMBER_WARN4",
    "SEVERITY_NUMBER_ERROR",
    "SEVERITY_NUMBER_ERROR2",
    "SEVERITY_NUMBER_ERROR3",
    "SEVERITY_NUMBER_ERROR4",
    "SEVERITY_NUMBER_FATAL",
    "SEVERITY_NUMBER_FATAL2",
    "SEVERITY_NUMBER_FATAL3",
    "SEVERITY_NUMBER_FATAL4",
];

macro_rules! messages {
    ($($(#[$doc:meta])* $static:ident = $name:literal $role:ident [$($field:expr),* $(,)?];)*) => {
        $($(#[$doc])* pub(super) static $static: Message = Message { name: $name, fields: &[$($field),*], role: Role::$role };)*
        /// All of them.
        #[cfg(test)]
        pub(crate) static ALL: &[&Message] = &[$(&$static),*];
    };
}

use Kind::*;

messages! {
    ANY_VALUE = "AnyValue" Value [
        one(1, "stringValue", String),
        one(2, "boolValue", Bool),
        one(3, "intValue", Int64),
        one(4, "doubleValue", Double),
        one(5, "arrayValue", Kind::Message(&ARRAY_VALUE)),
        one(6, "kvlistValue", Kind::Message(&KEY_VALUE_LIST)),
        one(7, "bytesValue", Bytes),
    ];
    ARRAY_VALUE = "ArrayValue" Part [many(1, "values", Kind::Message(&ANY_VALUE))];
    KEY_VALUE_LIST = "KeyValueList" Part [many(1, "values", Kind::Message(&KEY_VALUE))];
    KEY_VALUE = "KeyValue" Part [one(1, "key", String), one(2, "value", Kind::Message(&ANY_VALUE))];
    SCOPE = "InstrumentationScope" Part [
        one(1, "name", String),
        one(2, "version", String),
        attributes(3),
        dropped_attributes(4),
    ];
    ENTITY_REF = "EntityRef" Part [
        one(1, "schemaUrl", String),
        one(2, "type", String),
        many(3, "idKeys", String),
        many(4, "descriptionKeys", String),
    ];
    RESOURCE = "Resource" Part [
        attributes(1),
        dropped_attributes(2),
        many(3, "entityRefs", Kind::Message(&ENTITY_REF)),
    ];

    /// The body of a request to `/v1/traces`.
    TRACES = "ExportTraceServiceRequest" Part [many(1, "resourceSpans", Kind::Message(&RESOURCE_SPANS))];
    RESOURCE_SPANS = "ResourceSpans" Part [
        one(1, "resource", Kind::Message(&RESOURCE)),
        many(2, "scopeSpans", Kind::Message(&SCOPE_SPANS)),
        one(3, "schemaUrl", String),
    ];
    SCOPE_SPANS = "ScopeSpans" Part [
        one(1, "scope", Kind::Message(&SCOPE)),
        many(2, "spans", Kind::Message(&SPAN)),
        one(3, "schemaUrl", String),
    ];
    SPAN = "Span" Span [
        one(1, "traceId", Id(16)),
        one(2, "spanId", Id(8)),
        one(3, "traceState", String),
        one(4, "parentSpanId", Id(8)),
        one(5, "name", String),
        one(6, "kind", Enumeration(SPAN_KINDS)),
        one(7, "startTimeUnixNano", Fixed64),
        one(8, "endTimeUnixNano", Fixed64),
        attributes(9),
        dropped_attributes(10),
        many(11, "events", Kind::Message(&EVENT)),
        one(12, "droppedEventsCount", Uint32),
        many(13, "links", Kind::Message(&LINK)),
        one(14, "droppedLinksCount", Uint32),
        one(15, "status", Kind::Message(&STATUS)),
        one(16, "flags", Fixed32),
    ];
    EVENT = "Event" Part [
        one(1, "timeUnixNano", Fixed64),
        one(2, "name", String),
        attributes(3),
        dropped_attributes(4),
    ];
    LINK = "Link" Part [
        one(1, "traceId", Id(16)),
        one(2, "spanId", Id(8)),
        one(3, "traceState", String),
        attributes(4),
        dropped_attributes(5),
        one(6, "flags", Fixed32),
    ];
    STATUS = "Status" Part [one(2, "message", String), one(3, "code", Enumeration(STATUS_CODES))];

    /// The body of a request to `/v1/logs`.
    LOGS = "ExportLogsServiceRequest" Part [many(1, "resourceLogs", Kind::Message(&RESOURCE_LOGS))];
    RESOURCE_LOGS = "ResourceLogs" Part [
        one(1, "resource", Kind::Message(&RESOURCE)),
        many(2, "scopeLogs", Kind::Message(&SCOPE_LOGS)),
        one(3, "schemaUrl", String),
    ];
    SCOPE_LOGS = "ScopeLogs" Part [
        one(1, "scope", Kind::Message(&SCOPE)),
        many(2, "logRecords", Kind::Message(&LOG_RECORD)),
        one(3, "schemaUrl", String),
    ];
    LOG_RECORD = "LogRecord" Record [
        one(1, "timeUnixNano", Fixed64),
        one(2, "severityNumber", Enumeration(SEVERITIES)),
        one(3, "severityText", String),
        one(5, "body", Kind::Message(&ANY_VALUE)),
        attributes(6),
        dropped_attributes(7),
        one(8, "flags", Fixed32),
        one(9, "traceId", Id(16)),
        one(10, "spanId", Id(8)),
        one(11, "observedTimeUnixNano", Fixed64),
        one(12, "eventName", String),
    ];

    /// The body of a request to `/v1/metrics`.
    METRICS = "ExportMetricsServiceRequest" Part [many(1, "resourceMetrics", Kind::Message(&RESOURCE_METRICS))];
    RESOURCE_METRICS = "ResourceMetrics" Part [
        one(1, "resource", Kind::Message(&RESOURCE)),
        many(2, "scopeMetrics", Kind::Message(&SCOPE_METRICS)),
        one(3, "schemaUrl", String),
    ];
    SCOPE_METRICS = "ScopeMetrics" Part [
        one(1, "scope", Kind::Message(&SCOPE)),
        many(2, "metrics", Kind::Message(&METRIC)),
        one(3, "schemaUrl", String),
    ];
    METRIC = "Metric" Part [
        one(1, "name", String),
        one(2, "description", String),
        one(3, "unit", String),
        one(5, "gauge", Kind::Message(&GAUGE)),
        one(7, "sum", Kind::Message(&SUM)),
        one(9, "histogram", Kind::Message(&HISTOGRAM)),
        one(10, "exponentialHistogram", Kind::Message(&EXPONENTIAL_HISTOGRAM)),
        one(11, "summary", Kind::Message(&SUMMARY)),
        many(12, "metadata", Kind::Message(&KEY_VALUE)),
    ];
    GAUGE = "Gauge" Part [many(1, "dataPoints", Kind::Message(&NUMBER_POINT))];
    SUM = "Sum" Part [
        many(1, "dataPoints", Kind::Message(&NUMBER_POINT)),
        one(2, "aggregationTemporality", Enumeration(TEMPORALITIES)),
        one(3, "isMonotonic", Bool),
    ];
    HISTOGRAM = "Histogram" Part [
        many(1, "dataPoints", Kind::Message(&HISTOGRAM_POINT)),
        one(2, "aggregationTemporality", Enumeration(TEMPORALITIES)),
    ];
    EXPONENTIAL_HISTOGRAM = "ExponentialHistogram" Part [
        many(1, "dataPoints", Kind::Message(&EXPONENTIAL_POINT)),
        one(2, "aggregationTemporality", Enumeration(TEMPORALITIES)),
    ];
    SUMMARY = "Summary" Part [many(1, "dataPoints", Kind::Message(&SUMMARY_POINT))];
    NUMBER_POINT = "NumberDataPoint" Record [
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "asDouble", Double),
        many(5, "exemplars", Kind::Message(&EXEMPLAR)),
        one(6, "asInt", Sfixed64),
        attributes(7),
        one(8, "flags", Uint32),
    ];
    HISTOGRAM_POINT = "HistogramDataPoint" Record [
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "count", Fixed64),
        one(5, "sum", Double),
        many(6, "bucketCounts", Fixed64),
        many(7, "explicitBounds", Double),
        many(8, "exemplars", Kind::Message(&EXEMPLAR)),
        attributes(9),
        one(10, "flags", Uint32),
        one(11, "min", Double),
        one(12, "max", Double),
    ];
    EXPONENTIAL_POINT = "ExponentialHistogramDataPoint" Record [
        attributes(1),
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "count", Fixed64),
        one(5, "sum", Double),
        one(6, "scale", Sint32),
        one(7, "zeroCount", Fixed64),
        one(8, "positive", Kind::Message(&BUCKETS)),
        one(9, "negative", Kind::Message(&BUCKETS)),
        one(10, "flags", Uint32),
        many(11, "exemplars", Kind::Message(&EXEMPLAR)),
        one(12, "min", Double),
        one(13, "max", Double),
        one(14, "zeroThreshold", Double),
    ];
    BUCKETS = "Buckets" Part [one(1, "offset", Sint32), many(2, "bucketCounts", Uint64)];
    SUMMARY_POINT = "SummaryDataPoint" Record [
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "count", Fixed64),
        one(5, "sum", Double),
        many(6, "quantileValues", Kind::Message(&QUANTILE)),
        attributes(7),
        one(8, "flags", Uint32),
    ];
    QUANTILE = "ValueAtQuantile" Part [one(1, "quantile", Double), one(2, "value", Double)];
    EXEMPLAR = "Exemplar" Part [
        one(2, "timeUnixNano", Fixed64),
        one(3, "asDouble", Double),
        one(4, "spanId", Id(8)),
        one(5, "traceId", Id(16)),
        one(6, "asInt", Sfixed64),
        many(7, "filteredAttributes", Kind::Message(&KEY_VALUE)),
    ];
}
