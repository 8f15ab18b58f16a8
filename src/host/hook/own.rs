//! Tracer's own tracing: for processes whose hook failed, so that their spans are in the span file all the same.
//!
//! It is a table like a hook's, and the recorder wraps it like a hook's. Ids are random; sampling is what `OTEL_TRACES_SAMPLER`
//! says, else parent-based with the configured ratio, and resource and limits are those of the environment, as in processes
//! whose hook works.

use std::ffi::c_void;
use std::path::Path;
use std::ptr;

use tracer_abi as abi;
use tracer_core::clock::now_unix_nano;
use tracer_core::{LogSettings, SamplingRatio};
use tracer_ipc::protocol::TracingSettings;
use tracer_ipc::spool::record::{EventRecord, LinkRecord, OwnedValue, SpanRecord, own_attribute, slice};
use tracer_otel_env::{DEFAULT_COUNT_LIMIT, DEFAULT_LINK_LIMIT, Limits, Reader};
use tracer_span_file::{LineQueue, ResourceJson, Rotation, SpanDirError, SpanFile};

use super::records::read_sized;

/// Settings of tracer's own tracing, without a hook.
#[derive(Clone, Copy, Debug)]
pub struct OwnSettings<'a> {
    /// The folder of the span files.
    pub spans_dir: &'a Path,
    /// The share of new traces that are sampled, unless `OTEL_TRACES_SAMPLER` says otherwise.
    pub sampling_ratio: SamplingRatio,
    /// Log records of modules: which events become some.
    pub logs: LogSettings,
}

impl<'a> OwnSettings<'a> {
    /// Takes those of a session.
    pub fn of_session(tracing: &'a TracingSettings) -> OwnSettings<'a> {
        OwnSettings { spans_dir: &tracing.spans_dir, sampling_ratio: tracing.sampling_ratio, logs: tracing.logs }
    }
}

/// Decides as the sampler of the same name in the OpenTelemetry SDK, so that a process whose hook failed samples the
/// traces that the others sample.
#[derive(Clone, Copy, Debug, PartialEq)]
struct OwnSampler {
    follows_parent: bool,
    ratio: f64,
}

impl OwnSampler {
    /// Returns what the environment says, else what is configured.
    fn new(environment: &mut Reader<'_>, configured: SamplingRatio) -> OwnSampler {
        match environment.sampler() {
            Some(said) => OwnSampler { follows_parent: said.follows_parent, ratio: said.root.ratio() },
            None => OwnSampler { follows_parent: true, ratio: configured.get() },
        }
    }

    fn samples(self, trace_id: [u8; 16], parent_flags: Option<u8>) -> bool {
        if let (true, Some(flags)) = (self.follows_parent, parent_flags) {
            return flags & SAMPLED != 0;
        }
        let (_, low) = trace_id.split_at(8);
        let low = u64::from_be_bytes(low.try_into().expect("the other half of 16 bytes"));
        // As many bits as the SDK compares. The product is within the range of the integer.
        self.ratio >= 1.0 || low >> 1 < (self.ratio * (1_u64 << 63) as f64) as u64
    }
}

/// The state behind the table.
pub struct OwnTracing {
    resource: ResourceJson,
    sampler: OwnSampler,
    limits: Limits,
    lines: LineQueue<()>,
}

const SAMPLED: u8 = 1;
const RANDOM: u8 = 2;

impl OwnTracing {
    /// Makes a table that writes to `<spans_dir>/<pid>.json`. It lives as long as the process.
    pub fn table(settings: OwnSettings<'_>) -> Result<*const abi::Tracing, SpanDirError> {
        let file = SpanFile::try_new(settings.spans_dir, std::process::id(), Rotation::from_env())?;
        let description: &'static str = format!("{}, written by tracer itself", file.path().display()).leak();
        let pid = i64::from(std::process::id());
        let instance = random::<16>().map(|byte| format!("{byte:02x}")).concat();
        let mut environment = Reader::of_this_process();
        let said = environment.resource_attributes();
        let is_said = |key: &str| said.iter().any(|(known, _)| known == key);
        let mut resource = Vec::new();
        if !is_said("service.name") {
            // The version is that of this service.
            resource.push(text_attribute("service.name", "tracer".into()));
            resource.push(text_attribute("service.version", tracer_ipc::VERSION.into()));
        }
        if !is_said("service.instance.id") {
            resource.push(text_attribute("service.instance.id", instance));
        }
        if !is_said("process.pid") {
            resource.push(abi::KeyValue {
                key: abi::Str::new("process.pid"),
                value: abi::Value { tag: abi::VALUE_I64, as_: abi::ValueUnion { i64_: pid } },
            });
        }
        resource.extend(said.into_iter().map(|(key, value)| text_attribute(key.leak(), value)));
        let resource: &'static [abi::KeyValue] = resource.leak();
        // SAFETY: the attributes were made just now and live as long as the process.
        let owned: Vec<_> = resource.iter().filter_map(|attribute| unsafe { own_attribute(attribute) }).collect();
        let own = Box::leak(Box::new(OwnTracing {
            resource: tracer_ipc::spool::record::resource_json(&owned),
            sampler: OwnSampler::new(&mut environment, settings.sampling_ratio),
            limits: environment.limits(),
            lines: LineQueue::new(file, ()),
        }));
        Ok(Box::leak(Box::new(abi::Tracing {
            size: size_of::<abi::Tracing>(),
            data: ptr::from_mut(own).cast(),
            tracer: Some(tracer),
            tracer_release: Some(tracer_release),
            span_start: Some(span_start),
            span_trace_state: None,
            span_set_attributes: Some(span_set_attributes),
            span_add_event: Some(span_add_event),
            span_add_link: Some(span_add_link),
            span_set_status: Some(span_set_status),
            span_update_name: Some(span_update_name),
            span_end: Some(span_end),
            span_release: Some(span_release),
            commit: Some(commit),
            flush: Some(flush),
            shutdown: Some(flush),
            resource: resource.as_ptr(),
            resource_count: resource.len(),
            description: abi::Str::new(description),
            listen: None,
            sink_export: None,
            span_file: abi::Str::EMPTY,
            span_file_format: 0,
            // It is for speed, and who needs that has a hook.
            span_end_and_release: None,
            hand_back: None,
            lost: Some(lost),
            log_export: None,
        })))
    }
}

fn text_attribute(key: &'static str, value: String) -> abi::KeyValue {
    let value = abi::ValueUnion { str_: abi::Str::new(value.leak()) };
    abi::KeyValue { key: abi::Str::new(key), value: abi::Value { tag: abi::VALUE_STR, as_: value } }
}

/// Random bytes, as OpenTelemetry wants ids to be; never all zero, which would be no id.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    while bytes.iter().all(|&byte| byte == 0) {
        let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        assert!(filled.is_ok_and(|count| count == N), "the kernel has random bytes, up to 256 at once");
    }
    bytes
}

struct OwnTracer {
    own: *const OwnTracing,
    scope: String,
}

struct OwnSpan {
    own: *const OwnTracing,
    record: SpanRecord,
    has_ended: bool,
}

fn lossy(text: abi::Str) -> String {
    // SAFETY: borrowed for the call, by contract of the ABI.
    String::from_utf8_lossy(unsafe { text.as_bytes() }).into_owned()
}

// The functions of the table. The recorder is their only caller: it guards every span, catches panics, and passes nothing but
// what this table handed out.

unsafe extern "C" fn tracer(data: *mut c_void, scope: *const abi::Scope) -> *mut c_void {
    // SAFETY: the scope is borrowed for the call.
    let scope = lossy(unsafe { read_sized(scope) }.name);
    Box::into_raw(Box::new(OwnTracer { own: data.cast(), scope })).cast()
}

unsafe extern "C" fn tracer_release(tracer: *mut c_void) {
    // SAFETY: made by `tracer`, given back once.
    drop(unsafe { Box::from_raw(tracer.cast::<OwnTracer>()) });
}

unsafe extern "C" fn span_start(
    tracer: *mut c_void,
    start: *const abi::SpanStart,
    started: *mut abi::SpanStarted,
) -> *mut c_void {
    // SAFETY: the tracer is ours, and the rest is lent for the call.
    let (tracer, start, started) = unsafe { (&*tracer.cast::<OwnTracer>(), read_sized(start), &mut *started) };
    // SAFETY: null or lent for the call.
    let parent = unsafe { start.parent.as_ref() }.filter(|parent| parent.trace_id != [0; 16]);
    started.trace_id = parent.map_or_else(random, |parent| parent.trace_id);
    started.span_id = random();
    // SAFETY: the tracing lives as long as the process.
    let sampler = unsafe { &*tracer.own }.sampler;
    let is_sampled = sampler.samples(started.trace_id, parent.map(|parent| parent.trace_flags));
    started.trace_flags = parent.map_or(RANDOM, |parent| parent.trace_flags & RANDOM);
    if is_sampled {
        started.trace_flags |= SAMPLED;
    }
    started.has_trace_state = 0;
    started.is_recording = started.trace_flags & SAMPLED;
    if started.is_recording == 0 {
        return ptr::null_mut();
    }
    let mut record = SpanRecord {
        name: lossy(start.name),
        scope: tracer.scope.clone(),
        trace_id: started.trace_id,
        span_id: started.span_id,
        parent_span_id: parent.map(|parent| parent.span_id),
        is_parent_remote: parent.is_some_and(|parent| parent.is_remote != 0),
        trace_flags: started.trace_flags,
        trace_state: parent.map(|parent| lossy(parent.trace_state)).unwrap_or_default(),
        kind: start.kind,
        start_time_unix_nano: start.start_time_unix_nano,
        ..SpanRecord::default()
    };
    // SAFETY: what `start` points to is lent for the call.
    unsafe {
        set_attributes(&mut record, slice(start.attributes, start.attribute_count));
        slice(start.links, start.link_count).iter().for_each(|&link| add_link(&mut record, &read_sized(link)));
        slice(start.events, start.event_count).iter().for_each(|&event| add_event(&mut record, &read_sized(event)));
    }
    Box::into_raw(Box::new(OwnSpan { own: tracer.own, record, has_ended: false })).cast()
}

/// # Safety
///
/// What the attributes point to is readable.
unsafe fn set_attributes(record: &mut SpanRecord, attributes: &[abi::KeyValue]) {
    for attribute in attributes {
        // SAFETY: promised by the caller.
        if let Some((key, value)) = unsafe { own_attribute(attribute) } {
            record.set_attribute(&key, value);
        }
    }
}

/// # Safety
///
/// What the event points to is readable.
unsafe fn add_event(record: &mut SpanRecord, event: &abi::Event) {
    // SAFETY: promised by the caller.
    let attributes = unsafe { slice(event.attributes, event.attribute_count) };
    record.events.push(EventRecord {
        name: lossy(event.name),
        time_unix_nano: if event.time_unix_nano == 0 { now_unix_nano() } else { event.time_unix_nano },
        // SAFETY: promised by the caller.
        attributes: attributes.iter().filter_map(|attribute| unsafe { own_attribute(attribute) }).collect(),
    });
}

/// # Safety
///
/// What the link points to is readable.
unsafe fn add_link(record: &mut SpanRecord, link: &abi::Link) {
    // SAFETY: promised by the caller.
    let attributes = unsafe { slice(link.attributes, link.attribute_count) };
    record.links.push(LinkRecord {
        trace_id: link.context.trace_id,
        span_id: link.context.span_id,
        trace_flags: link.context.trace_flags,
        is_remote: link.context.is_remote != 0,
        trace_state: lossy(link.context.trace_state),
        // SAFETY: promised by the caller.
        attributes: attributes.iter().filter_map(|attribute| unsafe { own_attribute(attribute) }).collect(),
    });
}

/// # Safety
///
/// `span` is a handle of this table that is not released, and nobody else uses it now.
unsafe fn own_span<'a>(span: *mut c_void) -> &'a mut OwnSpan {
    // SAFETY: promised by the caller.
    unsafe { &mut *span.cast::<OwnSpan>() }
}

unsafe extern "C" fn span_set_attributes(span: *mut c_void, attributes: *const abi::KeyValue, count: usize) {
    // SAFETY: see above the functions of the table.
    unsafe { set_attributes(&mut own_span(span).record, slice(attributes, count)) };
}

unsafe extern "C" fn span_add_event(span: *mut c_void, event: *const abi::Event) {
    // SAFETY: see above the functions of the table.
    unsafe { add_event(&mut own_span(span).record, &read_sized(event)) };
}

unsafe extern "C" fn span_add_link(span: *mut c_void, link: *const abi::Link) {
    // SAFETY: see above the functions of the table.
    unsafe { add_link(&mut own_span(span).record, &read_sized(link)) };
}

unsafe extern "C" fn span_set_status(span: *mut c_void, code: u32, description: abi::Str) {
    // SAFETY: see above the functions of the table.
    let record = &mut unsafe { own_span(span) }.record;
    let is_known = matches!(code, abi::SPAN_STATUS_OK | abi::SPAN_STATUS_ERROR);
    if is_known && record.status != abi::SPAN_STATUS_OK {
        record.status = code;
        record.status_description = lossy(description);
    }
}

unsafe extern "C" fn span_update_name(span: *mut c_void, name: abi::Str) {
    // SAFETY: see above the functions of the table.
    unsafe { own_span(span) }.record.name = lossy(name);
}

unsafe extern "C" fn span_end(span: *mut c_void, end_time_unix_nano: u64) {
    // SAFETY: see above the functions of the table.
    let span = unsafe { own_span(span) };
    if std::mem::replace(&mut span.has_ended, true) {
        return;
    }
    span.record.end_time_unix_nano = end_time_unix_nano;
    // SAFETY: the state lives as long as the process.
    let own = unsafe { &*span.own };
    limit(&mut span.record, &own.limits);
    own.lines.append(std::iter::once(&span.record), |(), lines, record| record.write_line(lines, &own.resource));
}

/// Leaves of a span what the limits allow: of each thing the first, as the OpenTelemetry SDK does it.
fn limit(record: &mut SpanRecord, limits: &Limits) {
    let count = |limit: Option<usize>| limit.unwrap_or(DEFAULT_COUNT_LIMIT);
    record.events.truncate(count(limits.span_events));
    record.links.truncate(limits.span_links.unwrap_or(DEFAULT_LINK_LIMIT));
    limit_attributes(&mut record.attributes, count(limits.span_attributes), limits.span_value_length);
    for event in &mut record.events {
        limit_attributes(&mut event.attributes, count(limits.event_attributes), limits.other_value_length);
    }
    for link in &mut record.links {
        limit_attributes(&mut link.attributes, count(limits.link_attributes), limits.other_value_length);
    }
}

fn limit_attributes(attributes: &mut Vec<(String, OwnedValue)>, count: usize, length: Option<usize>) {
    attributes.truncate(count);
    let Some(length) = length else { return };
    let shorten = |text: &mut String| {
        if let Some(end) = Limits::shortened(text, length).map(str::len) {
            text.truncate(end);
        }
    };
    for (_, value) in attributes {
        match value {
            OwnedValue::Str(text) => shorten(text),
            OwnedValue::StrArray(texts) => texts.iter_mut().for_each(shorten),
            _ => {}
        }
    }
}

unsafe extern "C" fn span_release(span: *mut c_void) {
    // SAFETY: made by `span_start`, given back once.
    drop(unsafe { Box::from_raw(span.cast::<OwnSpan>()) });
}

unsafe extern "C" fn commit(data: *mut c_void, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: the state lives as long as the process.
    let own = unsafe { &*data.cast::<OwnTracing>() };
    let (status, reason) = match own.lines.commit() {
        Err(problem) => (abi::STATUS_FAILED, problem.reason),
        Ok(()) if own.lines.take_dropped() == 0 => return abi::STATUS_OK,
        Ok(()) => (abi::STATUS_LOST, "the span file could not be written, and memory was full".to_owned()),
    };
    // SAFETY: null or lent for the call.
    if let Some(error) = unsafe { error.as_mut() } {
        // SAFETY: as above.
        unsafe { error.write(&reason) };
    }
    status
}

unsafe extern "C" fn lost(data: *mut c_void) -> u64 {
    // SAFETY: the state lives as long as the process.
    unsafe { &*data.cast::<OwnTracing>() }.lines.dropped()
}

unsafe extern "C" fn flush(data: *mut c_void, _timeout_ms: u64, error: *mut abi::TextBuffer) -> u32 {
    // SAFETY: see above the functions of the table.
    unsafe { commit(data, error) }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

    use super::*;

    #[test]
    fn a_trace_is_sampled_exactly_if_the_opentelemetry_sdk_samples_it() {
        for (name, argument, configured, sdk) in [
            ("", "", 0.5, parent_based(Sampler::TraceIdRatioBased(0.5))),
            ("", "0.1", 1.0, parent_based(Sampler::AlwaysOn)),
            ("always_on", "", 0.5, Sampler::AlwaysOn),
            ("always_off", "", 0.5, Sampler::AlwaysOff),
            ("traceidratio", "0.25", 0.5, Sampler::TraceIdRatioBased(0.25)),
            ("traceidratio", "a quarter", 0.5, Sampler::TraceIdRatioBased(1.0)),
            ("parentbased_always_on", "", 0.0, parent_based(Sampler::AlwaysOn)),
            ("parentbased_always_off", "", 1.0, parent_based(Sampler::AlwaysOff)),
            ("parentbased_traceidratio", "0.75", 0.0, parent_based(Sampler::TraceIdRatioBased(0.75))),
            // Ignored, because it is not known.
            ("xray", "", 0.0, parent_based(Sampler::TraceIdRatioBased(0.0))),
        ] {
            let lookup = |variable: &str| match variable {
                "OTEL_TRACES_SAMPLER" => Some(name.into()),
                "OTEL_TRACES_SAMPLER_ARG" => Some(argument.into()),
                _ => None,
            };
            let configured = SamplingRatio::try_from(configured).expect("a ratio");
            let own = OwnSampler::new(&mut Reader::new(lookup), configured);
            for number in 0..2000 {
                let trace_id = random::<16>();
                let parent_flags = [None, Some(0), Some(1)][number % 3];
                let parent = parent_flags.map(|flags| {
                    let (trace_id, span_id) = (TraceId::from_bytes(trace_id), SpanId::from(1));
                    let flags = TraceFlags::new(flags);
                    let context = SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE);
                    opentelemetry::Context::new().with_remote_span_context(context)
                });
                let result = sdk.should_sample(
                    parent.as_ref(),
                    TraceId::from_bytes(trace_id),
                    "span",
                    &SpanKind::Internal,
                    &[],
                    &[],
                );
                let expected = result.decision == SamplingDecision::RecordAndSample;
                assert_eq!(own.samples(trace_id, parent_flags), expected, "{own:?} {trace_id:?} {parent_flags:?}");
            }
        }
    }

    #[test]
    fn of_each_thing_the_first_are_left_and_texts_are_shortened() {
        let attributes = |count: usize| -> Vec<_> {
            (0..count).map(|number| (format!("key{number}"), OwnedValue::Str("äbcdef".into()))).collect()
        };
        let event = EventRecord { attributes: attributes(3), ..EventRecord::default() };
        let link = LinkRecord { attributes: attributes(3), ..LinkRecord::default() };
        let mut record = SpanRecord {
            attributes: attributes(3),
            events: vec![event; 3],
            links: vec![link; 3],
            ..SpanRecord::default()
        };
        record.set_attribute("key1", OwnedValue::StrArray(vec!["abcdef".into(), "ab".into()]));
        let unlimited = record.clone();
        limit(&mut record, &Limits::default());
        assert_eq!(record, unlimited);
        let limits = Limits {
            span_attributes: Some(2),
            span_events: Some(2),
            span_links: Some(1),
            event_attributes: Some(1),
            link_attributes: Some(0),
            span_value_length: Some(4),
            other_value_length: Some(1),
        };
        limit(&mut record, &limits);
        let shortened = [
            ("key0".to_owned(), OwnedValue::Str("äbcd".into())),
            ("key1".to_owned(), OwnedValue::StrArray(vec!["abcd".into(), "ab".into()])),
        ];
        assert_eq!(record.attributes, shortened);
        assert_eq!(record.events.len(), 2);
        assert_eq!(record.events[0].attributes, [("key0".to_owned(), OwnedValue::Str("ä".into()))]);
        assert_eq!((record.links.len(), record.links[0].attributes.len()), (1, 0));
    }

    fn parent_based(root: Sampler) -> Sampler {
        Sampler::ParentBased(Box::new(root))
    }
}
