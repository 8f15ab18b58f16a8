//! Handling of panics in a hook's exporters and span processors.
//!
//! 1. The panic is caught where it happened, so that neither the SDK's locks nor its threads are harmed: an exporter that
//!    panics under the SDK's own processors would silence them for good.
//! 2. An exporter's panic is that export's failure. A processor's panic costs that processor that one span; the
//!    processors beside it get theirs.
//! 3. It is counted, and the next flush, commit or shutdown reports it.
//!
//! A provider that the hook finished itself is beyond reach: there only the table's own guard remains.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use opentelemetry::trace::{SpanContext, SpanId};
use opentelemetry::{Context, Key, KeyValue, TraceFlags, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};

use super::delivery::{Pulse, SinkTarget};
use super::direct::SpanWriter;
use super::ring::EndedRings;

/// Bit of the trace flags: the trace id is random (W3C Trace Context, level 2).
pub(super) const FLAG_RANDOM: u8 = 0x02;

/// A span processor that keeps spans on this machine's disk.
///
/// The host calls [`commit`](Self::commit) before it tells anybody that a task has ended, so that whoever sees a result
/// can rely on its spans.
pub trait DurableProcessor: SpanProcessor {
    /// Puts every span that ended before this call where a SIGKILL of the process cannot reach it. Handing the bytes to
    /// the kernel suffices; they need not survive a loss of power.
    ///
    /// Called from any thread, often, and it is on the path of every result: no network, and cheap when nothing is new.
    /// On failure: what went wrong and what becomes of the spans, for people to read. The host keeps what it has of them and tries again, so
    /// this is for spans that wait; those that are given up are told by [`take_lost`](Self::take_lost).
    fn commit(&self) -> Result<(), String>;

    /// Tells, once, of spans that were given up: they are not on the disk, and nobody will try again. Asked after each commit.
    ///
    /// By default there are none.
    fn take_lost(&self) -> Option<LostSpans> {
        None
    }

    /// Returns whether [`on_start`](SpanProcessor::on_start) may change spans: then the host is told what it adds to each, which takes a copy of the
    /// span.
    ///
    /// By default it may.
    fn changes_spans(&self) -> bool {
        true
    }

    /// Takes finished spans that are not this provider's, as an additional hook of a session does: they have ids and a resource of
    /// their own. They are on the disk when this returns.
    ///
    /// By default they are taken as spans of this provider, and their resource is lost.
    fn take_over(&self, resource: &Resource, spans: Vec<SpanData>) -> Result<(), String> {
        let _ = resource;
        spans.into_iter().for_each(|span| self.on_end(span));
        self.commit()
    }

    /// Returns what takes spans piece by piece, if it can: used in place of [`on_start`](SpanProcessor::on_start) and
    /// [`on_end`](SpanProcessor::on_end) where nobody else gets to see the spans. Asked once, when the resource is set.
    fn span_writer(&self) -> Option<Arc<dyn SpanWriter>> {
        None
    }

    /// Returns the file that holds this process's spans and the form of its lines, if the host knows that form: when the process has died, the
    /// host appends what it completes. The name begins with the process id and a dot.
    ///
    /// By default none, and the host writes to `<pid>.json` in the folder of the span files.
    fn span_file(&self) -> Option<(PathBuf, FileFormat)> {
        None
    }
}

/// Spans that a processor has given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSpans {
    /// Number of spans.
    pub spans: u64,
    /// Reason why, for people to read, as in "span file `x` could not be written".
    pub reason: String,
}

/// The form of the lines of a span file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileFormat {
    /// The objects of OpenTelemetry's Python console exporter.
    Console,
    /// OTLP in JSON, a `TracesData` with one span.
    Otlp,
}

/// An exporter whose panics are failures. The exporters given to a [`TracingBuilder`](super::TracingBuilder) are wrapped
/// in it already.
///
/// It also withholds spans that are recorded but not sampled, which the SDK's batch processor would pass on.
pub struct GuardedExporter<E> {
    exporter: E,
}

impl<E> GuardedExporter<E> {
    /// Wraps `exporter`.
    pub fn new(exporter: E) -> GuardedExporter<E> {
        GuardedExporter { exporter }
    }
}

impl<E: fmt::Debug> fmt::Debug for GuardedExporter<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exporter.fmt(f)
    }
}

impl<E: SpanExporter> SpanExporter for GuardedExporter<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.retain(|span| span.span_context.is_sampled());
        if batch.is_empty() {
            return Ok(());
        }
        let made = catch_unwind(AssertUnwindSafe(|| self.exporter.export(batch)));
        let mut export = pin!(made.map_err(panic_error)?);
        poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| export.as_mut().poll(context)));
            polled.unwrap_or_else(|payload| Poll::Ready(Err(panic_error(payload))))
        })
        .await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        guarded(|| self.exporter.shutdown_with_timeout(timeout))
    }

    fn shutdown(&self) -> OTelSdkResult {
        guarded(|| self.exporter.shutdown())
    }

    fn force_flush(&self) -> OTelSdkResult {
        guarded(|| self.exporter.force_flush())
    }

    fn set_resource(&mut self, resource: &Resource) {
        let set = || {
            self.exporter.set_resource(resource);
            Ok(())
        };
        // An exporter that cannot take its resource exports without it.
        let _ = guarded(set);
    }
}

fn guarded(work: impl FnOnce() -> OTelSdkResult) -> OTelSdkResult {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(panic_error(payload)))
}

fn panic_error(payload: Box<dyn Any + Send>) -> OTelSdkError {
    OTelSdkError::InternalFailure(format!("it panicked: {}", panic_text(payload)))
}

/// Returns the message of a panic. The payload is leaked, because dropping one may panic in turn.
pub(super) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "no message".to_owned(),
    };
    std::mem::forget(payload);
    text
}

/// Prefix of the keys of a resource where they are on a span of another process.
const ORIGIN_PREFIX: &str = "tracer.resource.";

/// One processor of a hook, as the provider and the table share it.
#[derive(Debug)]
pub(super) struct GuardedProcessor {
    processor: Kind,
    /// The exporter behind it, when that was given to a builder.
    target: Option<Arc<dyn SinkTarget>>,
    /// Resource of its spans.
    resource: Resource,
    /// Spans that it is to write and does not have yet.
    pub(super) ended: EndedRings,
    /// Panics that nobody has been told of yet.
    panics: AtomicU64,
    /// Outcome of the shutdown: the provider, which runs it, puts all of its processors' errors into one text.
    shutdown_timed_out: AtomicU8,
}

#[derive(Debug)]
pub(super) enum Kind {
    Plain(Box<dyn SpanProcessor>),
    /// The SDK's batch processor.
    Batch(Box<dyn SpanProcessor>),
    Durable(Box<dyn DurableProcessor>),
}

impl GuardedProcessor {
    pub(super) fn new(
        mut processor: Kind,
        target: Option<Arc<dyn SinkTarget>>,
        resource: &Resource,
    ) -> GuardedProcessor {
        let set = || {
            match &mut processor {
                Kind::Plain(processor) | Kind::Batch(processor) => processor.set_resource(resource),
                Kind::Durable(processor) => processor.set_resource(resource),
            }
            Ok(())
        };
        // A processor that cannot take its resource works without it, as an exporter does.
        let _ = guarded(set);
        GuardedProcessor {
            processor,
            target,
            resource: resource.clone(),
            ended: EndedRings::default(),
            panics: AtomicU64::new(0),
            shutdown_timed_out: AtomicU8::new(0),
        }
    }

    fn processor(&self) -> &dyn SpanProcessor {
        match &self.processor {
            Kind::Plain(processor) | Kind::Batch(processor) => &**processor,
            Kind::Durable(processor) => &**processor,
        }
    }

    /// Returns the file that it keeps, if the host knows its form.
    pub(super) fn span_file(&self) -> Option<(PathBuf, FileFormat)> {
        match &self.processor {
            Kind::Durable(processor) => catch_unwind(AssertUnwindSafe(|| processor.span_file())).ok().flatten(),
            _ => None,
        }
    }

    /// Returns what takes spans piece by piece, if it can.
    pub(super) fn span_writer(&self) -> Option<Arc<dyn SpanWriter>> {
        match &self.processor {
            Kind::Durable(processor) => catch_unwind(AssertUnwindSafe(|| processor.span_writer())).ok().flatten(),
            _ => None,
        }
    }

    pub(super) fn is_durable(&self) -> bool {
        matches!(self.processor, Kind::Durable(_))
    }

    /// Returns whether its `on_start` may change spans.
    pub(super) fn changes_spans(&self) -> bool {
        match &self.processor {
            Kind::Durable(processor) => processor.changes_spans(),
            // Those of the SDK, which a builder puts before an exporter, do not.
            Kind::Plain(_) => self.target.is_none(),
            Kind::Batch(_) => false,
        }
    }

    /// Tells, once, of spans that were given up.
    pub(super) fn take_lost(&self) -> Option<LostSpans> {
        let Kind::Durable(processor) = &self.processor else { return None };
        catch_unwind(AssertUnwindSafe(|| processor.take_lost())).ok().flatten()
    }

    /// Returns whether an exporter that was given to a builder is behind it, which tells of its deliveries itself.
    pub(super) fn is_of_exporter(&self) -> bool {
        self.target.is_some()
    }

    /// Returns whether it delivers from a thread of its own, so that spans may be taken from it that were not tried.
    pub(super) fn is_batch_exporter(&self) -> bool {
        self.is_of_exporter() && matches!(self.processor, Kind::Batch(_))
    }

    /// Returns how the receiver of its exporter answers, if it has one.
    pub(super) fn pulse(&self) -> Option<Pulse> {
        self.target.as_ref().map(|target| target.pulse())
    }

    /// Waits until its exporter is idle, at most until `deadline`. False if it still is not.
    pub(super) fn wait_until_idle(&self, deadline: Instant) -> bool {
        self.target.as_ref().is_none_or(|target| target.wait_until_idle(deadline))
    }

    /// Commits, when the processor is durable. For another there is nothing to do.
    pub(super) fn commit(&self) -> Result<(), String> {
        let Kind::Durable(processor) = &self.processor else {
            return Ok(());
        };
        self.ended.write_all();
        catch_unwind(AssertUnwindSafe(|| processor.commit()))
            .unwrap_or_else(|payload| Err(format!("the span processor panicked: {}", panic_text(payload))))?;
        self.take_panics()
    }

    /// Delivers finished spans that are not the provider's, and waits for it.
    pub(super) fn deliver(&self, resource: &Resource, spans: Vec<SpanData>) -> OTelSdkResult {
        let failed = OTelSdkError::InternalFailure;
        match (&self.target, &self.processor) {
            (Some(target), _) => target.deliver(resource, spans),
            (None, Kind::Durable(processor)) => {
                catch_unwind(AssertUnwindSafe(|| processor.take_over(resource, spans)))
                    .unwrap_or_else(|payload| Err(format!("the span processor panicked: {}", panic_text(payload))))
                    .map_err(failed)?;
                self.take_panics().map_err(failed)
            }
            (None, Kind::Plain(_) | Kind::Batch(_)) => {
                let origin = self.origin(resource);
                for mut span in spans {
                    span.attributes.extend_from_slice(&origin);
                    self.on_end(span);
                }
                self.force_flush()
            }
        }
    }

    /// Returns what a span has to say of the process that it comes from, where its resource is not this processor's: such a processor was
    /// told one resource for all of its spans, before there were any.
    fn origin(&self, resource: &Resource) -> Vec<KeyValue> {
        let differs = |(key, value): &(&Key, &Value)| self.resource.get(key).as_ref() != Some(*value);
        let told = |(key, value): (&Key, &Value)| KeyValue::new(format!("{ORIGIN_PREFIX}{key}"), value.clone());
        resource.iter().filter(differs).map(told).collect()
    }

    /// Returns the number of spans this processor lost by panicking since the last call, as an error.
    fn take_panics(&self) -> Result<(), String> {
        match self.panics.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            1 => Err("a span processor panicked at 1 span".to_owned()),
            count => Err(format!("a span processor panicked at {count} spans")),
        }
    }

    pub(super) fn shutdown_timed_out(&self) -> bool {
        self.shutdown_timed_out.load(Ordering::Relaxed) != 0
    }

    pub(super) fn on_start(&self, span: &mut Span, cx: &Context) {
        self.count_panic(|| self.processor().on_start(span, cx));
    }

    pub(super) fn on_end(&self, span: SpanData) {
        self.count_panic(|| self.processor().on_end(span));
    }

    pub(super) fn force_flush(&self) -> OTelSdkResult {
        self.ended.write_all();
        guarded(|| self.processor().force_flush())?;
        self.take_panics().map_err(OTelSdkError::InternalFailure)
    }

    pub(super) fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.ended.write_all();
        let result = guarded(|| self.processor().shutdown_with_timeout(timeout));
        self.shutdown_timed_out.store(u8::from(matches!(result, Err(OTelSdkError::Timeout(_)))), Ordering::Relaxed);
        result?;
        self.take_panics().map_err(OTelSdkError::InternalFailure)
    }

    pub(super) fn count_panic(&self, work: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            self.panics.fetch_add(1, Ordering::Relaxed);
            std::mem::forget(payload);
        }
    }
}

/// Processor for the provider of a hook that keeps its spans on the disk: the provider wants to own its processors, and the table needs them too.
#[derive(Debug)]
pub(super) struct SharedProcessor {
    pub(super) processor: Arc<GuardedProcessor>,
    /// True if trace ids are the SDK's random ones.
    pub(super) has_random_ids: bool,
}

impl SpanProcessor for SharedProcessor {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.processor.on_start(span, cx);
    }

    fn on_end(&self, mut span: SpanData) {
        keep_last_values(&mut span.attributes);
        if self.has_random_ids {
            say_random(&mut span);
        }
        self.processor.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, _resource: &Resource) {
        // It has it already: `GuardedProcessor::new`.
    }
}

/// Sets the W3C flag for a random trace id on a root span. The SDK leaves it out; what is propagated from the span has it.
pub(super) fn say_random(span: &mut SpanData) {
    if span.parent_span_id != SpanId::INVALID {
        return;
    }
    let context = &span.span_context;
    span.span_context = SpanContext::new(
        context.trace_id(),
        context.span_id(),
        TraceFlags::new(context.trace_flags().to_u8() | FLAG_RANDOM),
        context.is_remote(),
        context.trace_state().clone(),
    );
}

/// Leaves each key once, with its last value in the place of its first. The SDK appends where the specification replaces.
pub(super) fn keep_last_values(attributes: &mut Vec<KeyValue>) {
    if all_differ(attributes) {
        return;
    }
    let mut index = 1;
    while index < attributes.len() {
        let (earlier, rest) = attributes.split_at_mut(index);
        match earlier.iter_mut().find(|earlier| earlier.key == rest[0].key) {
            Some(earlier) => {
                std::mem::swap(&mut earlier.value, &mut rest[0].value);
                attributes.remove(index);
            }
            None => index += 1,
        }
    }
}

/// True only when all keys are certain to differ, which it finds out without comparing each with each other: a filter over their
/// lengths and last bytes.
fn all_differ(attributes: &[KeyValue]) -> bool {
    let mut seen = [0_u64; 64];
    attributes.iter().all(|attribute| {
        let key = attribute.key.as_str().as_bytes();
        let last = key.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
        let mixed = (last ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        let bit = 1 << (mixed & 63);
        let word = &mut seen[(mixed >> 6) as usize % 64];
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_keeps_its_place_and_its_last_value() {
        let mut attributes = vec![
            KeyValue::new("a", 1),
            KeyValue::new("b", 2),
            KeyValue::new("a", 3),
            KeyValue::new("c", 4),
            KeyValue::new("a", 5),
        ];
        keep_last_values(&mut attributes);
        assert_eq!(attributes, [KeyValue::new("a", 5), KeyValue::new("b", 2), KeyValue::new("c", 4)]);
    }

    /// Remembers the attributes of what has ended.
    #[derive(Clone, Debug, Default)]
    struct Ended(Arc<std::sync::Mutex<Vec<Vec<KeyValue>>>>);

    impl SpanProcessor for Ended {
        fn on_start(&self, _span: &mut Span, _context: &Context) {}
        fn on_end(&self, span: SpanData) {
            self.0.lock().unwrap().push(span.attributes);
        }
        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }
        fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
            Ok(())
        }
    }

    #[test]
    fn a_plain_processor_reads_on_a_span_of_another_process_which_one_that_was() {
        let resource = |pid: i64, further: Option<KeyValue>| {
            let all = [KeyValue::new("service.name", "jobs"), KeyValue::new("process.pid", pid)];
            Resource::builder_empty().with_attributes(all.into_iter().chain(further)).build()
        };
        let ended = Ended::default();
        let own = resource(7, None);
        let processor = GuardedProcessor::new(Kind::Plain(Box::new(ended.clone())), None, &own);
        let span = || SpanData {
            span_context: SpanContext::empty_context(),
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: opentelemetry::trace::SpanKind::Internal,
            name: "step".into(),
            start_time: std::time::UNIX_EPOCH,
            end_time: std::time::UNIX_EPOCH,
            attributes: vec![KeyValue::new("k", 1)],
            dropped_attributes_count: 0,
            events: Default::default(),
            links: Default::default(),
            status: Default::default(),
            instrumentation_scope: Default::default(),
        };
        processor.deliver(&own, vec![span()]).unwrap();
        let other = resource(8, Some(KeyValue::new("host.name", "b")));
        processor.deliver(&other, vec![span(), span()]).unwrap();
        let seen = ended.0.lock().unwrap().clone();
        assert_eq!(seen[0], [KeyValue::new("k", 1)], "its own");
        for attributes in &seen[1..] {
            let mut told: Vec<_> = attributes.iter().map(|told| format!("{}={}", told.key, told.value)).collect();
            told.sort();
            assert_eq!(told, ["k=1", "tracer.resource.host.name=b", "tracer.resource.process.pid=8"]);
        }
    }

    #[test]
    fn the_message_of_a_panic_is_kept() {
        let said = catch_unwind(|| panic!("number {}", 7)).unwrap_err();
        assert_eq!(panic_text(said), "number 7");
        let unsaid = catch_unwind(|| std::panic::panic_any(7)).unwrap_err();
        assert_eq!(panic_text(unsaid), "no message");
    }
}
