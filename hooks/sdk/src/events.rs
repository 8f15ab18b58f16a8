//! Events of `tracing` and of `log` as log records of the host, with the ids of the span that they are in.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::ops::Range;
use std::ptr;

use smallvec::SmallVec;
use tracer_abi::{
    EVENTS_AS_LOG_RECORDS, EVENTS_AS_SPAN_EVENTS, KeyValue, LogRecord, SEVERITY_DEBUG, SEVERITY_ERROR, SEVERITY_INFO,
    SEVERITY_TRACE, SEVERITY_WARN, SpanContext, Str, VALUE_BOOL, VALUE_F64, VALUE_I64, VALUE_STR, Value, ValueUnion,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::api;
use crate::host;
use api::trace::TraceContextExt as _;

/// The attribute with the path of the source file, as OpenTelemetry names it.
const FILE: &str = "code.file.path";
/// The attribute with the line in it.
const LINE: &str = "code.line.number";

thread_local! {
    /// True while this thread is in a record: whatever is logged meanwhile is none.
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
}

/// A layer that turns spans into spans of the task, around which events become what the host wants: log records, events of their span, or both.
pub(super) struct Events<L>(pub(super) L);

impl<L> Events<L> {
    /// Makes an event that is at level `error` the status of its span, as the inner layer does for events of spans.
    fn set_status(event: &Event<'_>) {
        if *event.metadata().level() == Level::ERROR && event.is_contextual() {
            api::Context::current().span().set_status(api::trace::Status::error(""));
        }
    }
}

impl<S, L> Layer<S> for Events<L>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    L: Layer<S>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.0.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.0.on_record(id, values, context);
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        self.0.on_follows_from(id, follows, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.0.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.0.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.0.on_close(id, context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let wanted = host::log_events();
        if wanted & EVENTS_AS_SPAN_EVENTS != 0 {
            self.0.on_event(event, context);
        } else if context.lookup_current().is_some() {
            Self::set_status(event);
        }
        if wanted & EVENTS_AS_LOG_RECORDS != 0 {
            record_event(event);
        }
    }

    // SAFETY: the inner layer's promise about its own pointers; this one has none.
    unsafe fn downcast_raw(&self, id: std::any::TypeId) -> Option<*const ()> {
        // SAFETY: as above.
        unsafe { self.0.downcast_raw(id) }
    }
}

fn severity(level: Level) -> u32 {
    match level {
        Level::TRACE => SEVERITY_TRACE,
        Level::DEBUG => SEVERITY_DEBUG,
        Level::INFO => SEVERITY_INFO,
        Level::WARN => SEVERITY_WARN,
        Level::ERROR => SEVERITY_ERROR,
    }
}

/// Hands an event of `tracing` to the host.
fn record_event(event: &Event<'_>) {
    let metadata = event.metadata();
    let severity = severity(*metadata.level());
    if !host::wants_records(severity) {
        return;
    }
    // An event of a bridge from `log` has its origin in fields.
    let is_of_log = metadata.target() == "log";
    let mut fields = Fields { is_of_log, ..Fields::default() };
    event.record(&mut fields);
    let text = |place: &Option<Range<usize>>| place.clone().map(|place| fields.text(&place));
    let target = text(&fields.target).unwrap_or(metadata.target());
    let body = text(&fields.body).unwrap_or_default();
    let mut attributes: SmallVec<[KeyValue; 12]> =
        fields.values.iter().map(|(key, value)| fields.pair(key, value)).collect();
    put_place(&mut attributes, metadata.file().filter(|_| !is_of_log), metadata.line());
    hand_over(span_of(event), severity, metadata.level().as_str(), target, body, &attributes);
}

/// Returns the span that an event is in: the one that it names, or else the current one.
fn span_of(event: &Event<'_>) -> Option<SpanContext> {
    if event.is_root() {
        return None;
    }
    #[cfg(any(feature = "tracing", feature = "tracing-0-32"))]
    if let Some(id) = event.parent() {
        let named = tracing::dispatcher::get_default(|dispatch| super::bridge::get_otel_context(id, dispatch));
        return named.as_ref().and_then(ids_in);
    }
    api::Context::map_current(ids_in)
}

/// Returns the ids of the span in a context.
fn ids_in(context: &api::Context) -> Option<SpanContext> {
    context.has_active_span().then(|| {
        let span = context.span();
        let context = span.span_context();
        SpanContext {
            trace_id: context.trace_id().to_bytes(),
            span_id: context.span_id().to_bytes(),
            trace_flags: context.trace_flags().to_u8(),
            ..SpanContext::INVALID
        }
    })
}

/// Adds the place in the source.
fn put_place(attributes: &mut SmallVec<[KeyValue; 12]>, file: Option<&str>, line: Option<u32>) {
    let Some(file) = file else { return };
    attributes.push(pair(FILE, VALUE_STR, ValueUnion { str_: Str::new(file) }));
    if let Some(line) = line {
        attributes.push(pair(LINE, VALUE_I64, ValueUnion { i64_: line.into() }));
    }
}

fn pair(key: &str, tag: u32, as_: ValueUnion) -> KeyValue {
    KeyValue { key: Str::new(key), value: Value { tag, as_ } }
}

/// Hands a record of a span, or of none, to the host.
fn hand_over(
    span: Option<SpanContext>,
    severity: u32,
    severity_text: &str,
    target: &str,
    body: &str,
    attributes: &[KeyValue],
) {
    let Some(host_log_record) = host::host_log_record() else { return };
    let record = LogRecord {
        size: size_of::<LogRecord>(),
        time_unix_nano: 0,
        span_context: span.as_ref().map_or(ptr::null(), ptr::from_ref),
        severity,
        severity_text: Str::new(severity_text),
        target: Str::new(target),
        body: Str::new(body),
        attributes: attributes.as_ptr(),
        attribute_count: attributes.len(),
    };
    IS_RECORDING.with(|is_recording| {
        if !is_recording.replace(true) {
            // SAFETY: the host's function; all that the record points to outlives the call.
            // A record that is lost is counted by the host, which says so.
            unsafe { host_log_record(&record) };
            is_recording.set(false);
        }
    });
}

/// Value of a field.
enum FieldValue {
    I64(i64),
    F64(f64),
    Bool(bool),
    /// Place of a text.
    Text(Range<usize>),
}

/// Fields of an event. All texts are in one piece of memory.
#[derive(Default)]
struct Fields {
    is_of_log: bool,
    body: Option<Range<usize>>,
    target: Option<Range<usize>>,
    values: SmallVec<[(&'static str, FieldValue); 10]>,
    texts: SmallVec<[u8; 512]>,
}

impl Fields {
    fn text(&self, place: &Range<usize>) -> &str {
        std::str::from_utf8(&self.texts[place.clone()]).unwrap_or_default()
    }

    fn pair(&self, key: &str, value: &FieldValue) -> KeyValue {
        match value {
            FieldValue::I64(value) => pair(key, VALUE_I64, ValueUnion { i64_: *value }),
            FieldValue::F64(value) => pair(key, VALUE_F64, ValueUnion { f64_: *value }),
            FieldValue::Bool(value) => pair(key, VALUE_BOOL, ValueUnion { bool_: (*value).into() }),
            FieldValue::Text(place) => pair(key, VALUE_STR, ValueUnion { str_: Str::new(self.text(place)) }),
        }
    }

    fn put(&mut self, field: &Field, value: FieldValue) {
        let name = match field.name() {
            "log.file" if self.is_of_log => FILE,
            "log.line" if self.is_of_log => LINE,
            "log.module_path" if self.is_of_log => return,
            name => name.strip_prefix("r#").unwrap_or(name),
        };
        self.values.push((name, value));
    }

    fn put_text(&mut self, field: &Field, place: Range<usize>) {
        match field.name() {
            "message" => self.body = Some(place),
            "log.target" if self.is_of_log => self.target = Some(place),
            _ => self.put(field, FieldValue::Text(place)),
        }
    }
}

/// Appends formatted text.
struct Texts<'a>(&'a mut SmallVec<[u8; 512]>);

impl fmt::Write for Texts<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, FieldValue::F64(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, FieldValue::I64(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.put(field, FieldValue::I64(value)),
            // OpenTelemetry has no larger integer.
            Err(_) => self.record_debug(field, &value),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, FieldValue::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let start = self.texts.len();
        self.texts.extend_from_slice(value.as_bytes());
        self.put_text(field, start..self.texts.len());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let start = self.texts.len();
        // A value whose text fails has as much of it as it came to.
        let _ = write!(Texts(&mut self.texts), "{value:?}");
        self.put_text(field, start..self.texts.len());
    }
}

/// The logger of the `log` crate in a module that sets none.
#[cfg(feature = "log")]
pub(super) mod of_log {
    use std::sync::OnceLock;

    use tracing_subscriber::filter::Targets;

    use super::{KeyValue, SmallVec, hand_over, host, put_place, severity};

    struct Logger;

    static LOGGER: Logger = Logger;
    static FILTER: OnceLock<Targets> = OnceLock::new();

    /// Sets it, unless the author has set one. A host that takes no records is logged to by nobody.
    pub(in super::super) fn install(filter: &Targets) {
        if host::host_log_record().is_none() || log::set_logger(&LOGGER).is_err() {
            return;
        }
        let _ = FILTER.set(filter.clone());
        log::set_max_level(log::LevelFilter::Trace);
    }

    fn level(level: log::Level) -> tracing::Level {
        match level {
            log::Level::Error => tracing::Level::ERROR,
            log::Level::Warn => tracing::Level::WARN,
            log::Level::Info => tracing::Level::INFO,
            log::Level::Debug => tracing::Level::DEBUG,
            log::Level::Trace => tracing::Level::TRACE,
        }
    }

    impl log::Log for Logger {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            let level = level(metadata.level());
            host::wants_records(severity(level))
                && FILTER.get().is_some_and(|filter| filter.would_enable(metadata.target(), &level))
        }

        fn log(&self, record: &log::Record<'_>) {
            if !self.enabled(record.metadata()) {
                return;
            }
            let formatted;
            let body = match record.args().as_str() {
                Some(body) => body,
                None => {
                    formatted = record.args().to_string();
                    &formatted
                }
            };
            let mut attributes: SmallVec<[KeyValue; 12]> = SmallVec::new();
            put_place(&mut attributes, record.file(), record.line());
            let level = level(record.level());
            let span = super::api::Context::map_current(super::ids_in);
            hand_over(span, severity(level), level.as_str(), record.target(), body, &attributes);
        }

        fn flush(&self) {}
    }
}
