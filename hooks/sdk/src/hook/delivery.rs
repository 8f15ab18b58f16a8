//! Delivery of spans to exporters: reports to the host on each span, and the exporters as the span sink uses them.
//!
//! ```text
//!   span ends ──▶ FanOut ──admitted──▶ processor ──▶ exporter ──▶ done ──┐
//!                   └── as many are under way as may be ── FULL ─────────┴──▶ listener of the host
//! ```
//!
//! An exporter that the hook has given to a builder says of each batch how it went. A span processor of the hook's own does not, so
//! it is flushed every now and then, and the outcome counts for the spans that it has got since.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};
use tracer_abi as abi;

use super::guard::{GuardedExporter, GuardedProcessor, keep_last_values, say_random};
use super::lock::lock;
use super::pause::Pause;

/// Default size of the queue of the SDK's batch processor, in spans.
const QUEUE_SIZE: usize = 2048;
const QUEUE_SIZE_VARIABLE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
/// Delay after which a span processor of the hook's own is flushed.
const FLUSH_AFTER: Duration = Duration::from_millis(500);

/// Upper bound of the time in which a process begins no delivery.
const QUIET_MAX: Duration = Duration::from_secs(60);

/// Begins the text of an error that says that spans are refused for good.
const REFUSED: &str = "refused for good: ";

/// Returns the error of an exporter whose receiver will never take the spans, whoever sends them: they are counted as lost at once. Those of
/// any other error wait and are sent again.
pub fn refused(reason: impl fmt::Display) -> OTelSdkError {
    OTelSdkError::InternalFailure(format!("{REFUSED}{reason}"))
}

/// Begins the text of an error that says how many spans are refused for good.
const REFUSED_IN_PART: &str = "refused in part: ";

/// Returns the error of an exporter whose receiver has taken a batch but for `count` spans, which it will never take: these are counted as
/// lost, and nothing is sent again. Which ones they are, OTLP does not tell.
pub fn refused_in_part(count: u64, reason: impl fmt::Display) -> OTelSdkError {
    OTelSdkError::InternalFailure(format!("{REFUSED_IN_PART}{count}: {reason}"))
}

/// Returns how many spans the receiver has not taken of a batch that it took in part.
pub(super) fn refused_of(result: &OTelSdkResult) -> Option<usize> {
    let Err(OTelSdkError::InternalFailure(text)) = result else { return None };
    text.strip_prefix(REFUSED_IN_PART)?.split_once(':')?.0.parse().ok()
}

/// Returns what became of spans, as a status of the ABI.
pub(super) fn status(result: &OTelSdkResult) -> u32 {
    match result {
        Ok(()) => abi::STATUS_OK,
        Err(OTelSdkError::AlreadyShutdown) => abi::STATUS_ALREADY,
        // The receiver has the batch.
        Err(_) if refused_of(result).is_some() => abi::STATUS_OK,
        Err(OTelSdkError::InternalFailure(text)) if text.starts_with(REFUSED) => abi::STATUS_REFUSED,
        Err(_) => abi::STATUS_FAILED,
    }
}

/// Delivery reports to the host's listener. Without a listener nobody is told, and nothing is kept count of.
#[derive(Debug)]
pub(super) struct Delivery {
    listener: OnceLock<Listener>,
    /// Number of exporters and processors that each span goes to.
    routes: usize,
    /// Spans that are under way.
    in_flight: AtomicUsize,
    /// With more than one route: what is still to be said of a span.
    open: Mutex<HashMap<Key, Open>>,
    /// True if the host brings on what is not delivered, so that no further delivery begins.
    is_handed_back: AtomicBool,
}

#[derive(Debug)]
struct Listener {
    data: *mut c_void,
    in_flight_max: usize,
    /// No delivery begins before. None after that is not asked for.
    quiet_until: Option<Instant>,
    host_delivered: unsafe extern "C" fn(*mut c_void, *const abi::SpanIdentity, usize, u32),
    host_pause: Option<unsafe extern "C" fn(*mut c_void, u64, u32)>,
    host_pause_left: Option<unsafe extern "C" fn(*mut c_void, *mut u32) -> u64>,
    host_log_records_given_up: Option<unsafe extern "C" fn(*mut c_void, u64)>,
}

// SAFETY: a listener may be called from any thread by contract, and lives as long as the process.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

#[derive(Debug)]
struct Open {
    routes_left: usize,
    status: u32,
}

pub(super) fn identity(span: &SpanContext) -> Identity {
    Identity(abi::SpanIdentity { trace_id: span.trace_id().to_bytes(), span_id: span.span_id().to_bytes() })
}

/// Trace id and span id.
type Key = ([u8; 16], [u8; 8]);

/// A span's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Identity(abi::SpanIdentity);

impl Identity {
    fn key(self) -> Key {
        (self.0.trace_id, self.0.span_id)
    }
}

impl Delivery {
    /// For spans that go to so many exporters and processors.
    pub(super) fn new(routes: usize) -> Delivery {
        Delivery {
            listener: OnceLock::new(),
            routes,
            in_flight: AtomicUsize::new(0),
            open: Mutex::default(),
            is_handed_back: AtomicBool::new(false),
        }
    }

    /// Gives every span that ends from now on back to the host, and begins no export.
    pub(super) fn hand_back(&self) {
        self.is_handed_back.store(true, Ordering::SeqCst);
    }

    fn is_handed_back(&self) -> bool {
        self.is_handed_back.load(Ordering::SeqCst)
    }

    /// Returns whether there is anything to tell.
    pub(super) fn has_routes(&self) -> bool {
        self.routes > 0
    }

    /// Takes the host's listener. False when it cannot be called, or there is one. `can_hand_back` says whether spans may be given back
    /// without being tried.
    ///
    /// # Safety
    ///
    /// What it says of itself holds for as long as the process lives.
    pub(super) unsafe fn listen(&self, listener: &abi::DeliveryListener, can_hand_back: bool) -> bool {
        let Some(host_delivered) = listener.host_delivered else { return false };
        let queue = std::env::var(QUEUE_SIZE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(QUEUE_SIZE);
        let max = if listener.in_flight_max == 0 { usize::MAX } else { listener.in_flight_max };
        // What the batch processor has no room for, it would drop without a word.
        let quiet = Duration::from_millis(listener.quiet_ms);
        let quiet_until = (can_hand_back && !quiet.is_zero()).then(|| Instant::now() + quiet.min(QUIET_MAX));
        let listener = Listener {
            data: listener.data,
            in_flight_max: max.min(queue),
            quiet_until,
            host_delivered,
            host_pause: listener.host_pause,
            host_pause_left: listener.host_pause_left,
            host_log_records_given_up: listener.host_log_records_given_up,
        };
        self.listener.set(listener).is_ok()
    }

    /// Returns the pause of the receiver that the processes of the session know of; none when the host passes none on.
    pub(super) fn pause(&self) -> Option<Pause> {
        let listener = self.listener.get()?;
        let (_, left) = (listener.host_pause?, listener.host_pause_left?);
        let mut failures = 0;
        // SAFETY: the host's function with the host's data, and a place for the number.
        let left = unsafe { left(listener.data, &mut failures) };
        Some(Pause { left: Duration::from_millis(left), failures })
    }

    /// Tells the processes of the session of a pause. False when the host passes none on.
    pub(super) fn begin_pause(&self, pause: Pause) -> bool {
        let Some(listener) = self.listener.get() else { return false };
        let (Some(tell), Some(_)) = (listener.host_pause, listener.host_pause_left) else { return false };
        // Rather too long than too short.
        let left = u64::try_from(pause.left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        // SAFETY: the host's function with the host's data.
        unsafe { tell(listener.data, left, pause.failures) };
        true
    }

    /// Tells the host of log records that no receiver gets.
    pub(super) fn give_up_log_records(&self, records: u64) {
        if let Some((listener, tell)) = self.listener.get().and_then(|it| Some((it, it.host_log_records_given_up?))) {
            // SAFETY: the host's function with the host's data.
            unsafe { tell(listener.data, records) };
        }
    }

    /// Returns whether a span may set out. When not, the host has been told.
    fn admit(&self, span: Identity) -> bool {
        let Some(listener) = self.listener.get() else { return true };
        if self.is_handed_back() || listener.quiet_until.is_some_and(|until| Instant::now() < until) {
            listener.notify(&[span], abi::STATUS_FULL);
            return false;
        }
        if self.in_flight.fetch_add(1, Ordering::AcqRel) >= listener.in_flight_max {
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            listener.notify(&[span], abi::STATUS_FULL);
            return false;
        }
        if self.routes > 1 {
            lock(&self.open).insert(span.key(), Open { routes_left: self.routes, status: abi::STATUS_OK });
        }
        true
    }

    /// Says of a span that nobody is to export it.
    fn leave_out(&self, span: Identity) {
        if let Some(listener) = self.listener.get() {
            listener.notify(&[span], abi::STATUS_OK);
        }
    }

    /// Says how it went at one route.
    fn done(&self, spans: &[Identity], result: &OTelSdkResult) {
        let Some(listener) = self.listener.get() else { return };
        if let Some(count) = refused_of(result) {
            // Any of them, because only their number is known.
            let (refused_spans, taken) = spans.split_at(count.min(spans.len()));
            self.done(refused_spans, &Err(refused("")));
            return self.done(taken, &Ok(()));
        }
        let status = match status(result) {
            // What an exporter is not to have any more, another is.
            abi::STATUS_ALREADY => abi::STATUS_FAILED,
            status => status,
        };
        let mut ended: Vec<(u32, Vec<Identity>)> = Vec::new();
        let mut end = |span, status| match ended.iter_mut().find(|(known, _)| *known == status) {
            Some((_, spans)) => spans.push(span),
            None => ended.push((status, vec![span])),
        };
        if self.routes <= 1 {
            spans.iter().for_each(|&span| end(span, status));
        } else {
            let mut open = lock(&self.open);
            for &span in spans {
                let Some(entry) = open.get_mut(&span.key()) else { continue };
                // One that failed is tried again, whatever the others say.
                if entry.status != abi::STATUS_FAILED && status != abi::STATUS_OK {
                    entry.status = status;
                }
                entry.routes_left -= 1;
                if entry.routes_left == 0 {
                    end(span, entry.status);
                    open.remove(&span.key());
                }
            }
        }
        let count: usize = ended.iter().map(|(_, spans)| spans.len()).sum();
        let _ = self
            .in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |number| Some(number.saturating_sub(count)));
        ended.iter().for_each(|(status, spans)| listener.notify(spans, *status));
    }
}

impl Listener {
    fn notify(&self, spans: &[Identity], status: u32) {
        if !spans.is_empty() {
            // SAFETY: the host's function with the host's data; an `Identity` is a `SpanIdentity`, and lent for the call.
            unsafe { (self.host_delivered)(self.data, spans.as_ptr().cast(), spans.len(), status) };
        }
    }
}

/// Target that a span sink delivers to.
pub(super) trait SinkTarget: Send + Sync + fmt::Debug {
    /// Delivers spans with a resource of their own, and waits for it.
    fn deliver(&self, resource: &Resource, spans: Vec<SpanData>) -> OTelSdkResult;

    /// Returns what is known of how fast the receiver answers.
    fn pulse(&self) -> Pulse;

    /// Waits until no export is under way, at most until `deadline`. False if one still is.
    fn wait_until_idle(&self, deadline: Instant) -> bool;
}

/// Response times of an exporter's receiver, so that nobody waits long for one that does not answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pulse {
    /// Start of the export that is under way.
    pub(super) busy_since: Option<Instant>,
    /// End of the last export.
    pub(super) last_answer: Option<Instant>,
    /// Duration of the slowest export.
    pub(super) slowest: Duration,
}

/// An exporter that the SDK's processor and the span sink use in turns: exporters are never called twice at once.
pub(super) struct SharedExporter<E> {
    /// None while somebody uses it.
    exporter: Mutex<Option<Box<GuardedExporter<E>>>>,
    is_back: Condvar,
    /// The process's own, which the exporter has whenever nobody uses it.
    resource: Mutex<Option<Resource>>,
    pulse: Mutex<Pulse>,
}

/// The exporter, for as long as somebody uses it.
struct Borrowed<'a, E> {
    home: &'a SharedExporter<E>,
    exporter: Option<Box<GuardedExporter<E>>>,
}

impl<E> SharedExporter<E> {
    pub(super) fn new(exporter: E) -> SharedExporter<E> {
        SharedExporter {
            exporter: Mutex::new(Some(Box::new(GuardedExporter::new(exporter)))),
            is_back: Condvar::new(),
            resource: Mutex::new(None),
            pulse: Mutex::default(),
        }
    }

    fn export_began(&self) {
        lock(&self.pulse).busy_since = Some(Instant::now());
    }

    fn export_ended(&self) {
        let mut pulse = lock(&self.pulse);
        let now = Instant::now();
        if let Some(began) = pulse.busy_since.take() {
            pulse.slowest = pulse.slowest.max(now - began);
        }
        pulse.last_answer = Some(now);
    }

    fn borrow(&self) -> Borrowed<'_, E> {
        let mut place = lock(&self.exporter);
        loop {
            match place.take() {
                Some(exporter) => return Borrowed { home: self, exporter: Some(exporter) },
                None => place = self.is_back.wait(place).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl<E> Borrowed<'_, E> {
    fn exporter(&mut self) -> &mut GuardedExporter<E> {
        self.exporter.as_mut().expect("it is given back only when this is dropped")
    }
}

impl<E> Drop for Borrowed<'_, E> {
    fn drop(&mut self) {
        *lock(&self.home.exporter) = self.exporter.take();
        self.home.is_back.notify_one();
    }
}

impl<E> fmt::Debug for SharedExporter<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<E>())
    }
}

impl<E: SpanExporter + 'static> SinkTarget for SharedExporter<E> {
    fn deliver(&self, resource: &Resource, spans: Vec<SpanData>) -> OTelSdkResult {
        let mut borrowed = self.borrow();
        borrowed.exporter().set_resource(resource);
        self.export_began();
        let result = futures_executor::block_on(borrowed.exporter().export(spans));
        self.export_ended();
        if let Some(own) = &*lock(&self.resource) {
            borrowed.exporter().set_resource(own);
        }
        result
    }

    fn pulse(&self) -> Pulse {
        *lock(&self.pulse)
    }

    fn wait_until_idle(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.is_back.wait_timeout_while(lock(&self.exporter), left, |exporter| exporter.is_none());
        let exporter = waited.unwrap_or_else(PoisonError::into_inner).0;
        let is_idle = exporter.is_some();
        drop(exporter);
        // Whoever waits to borrow it may have missed the word that was for them.
        self.is_back.notify_one();
        is_idle
    }
}

/// An exporter as the SDK's own processors get it: it tells of every batch.
#[derive(Debug)]
pub(super) struct ToldExporter<E> {
    pub(super) exporter: Arc<SharedExporter<E>>,
    pub(super) delivery: Arc<OnceLock<Arc<Delivery>>>,
}

impl<E: SpanExporter + 'static> SpanExporter for ToldExporter<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let delivery = self.delivery.get().filter(|delivery| delivery.listener.get().is_some());
        let Some(delivery) = delivery else {
            let mut borrowed = self.exporter.borrow();
            self.exporter.export_began();
            let result = borrowed.exporter().export(batch).await;
            self.exporter.export_ended();
            return result;
        };
        let spans: Vec<Identity> = batch.iter().map(|span| identity(&span.span_context)).collect();
        let mut borrowed = self.exporter.borrow();
        if delivery.is_handed_back() {
            // The host brings them on.
            return Err(OTelSdkError::AlreadyShutdown);
        }
        self.exporter.export_began();
        let result = borrowed.exporter().export(batch).await;
        self.exporter.export_ended();
        // Told before the exporter is idle: whoever waits for that finds the spans delivered.
        delivery.done(&spans, &result);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.borrow().exporter().shutdown_with_timeout(timeout)
    }

    fn shutdown(&self) -> OTelSdkResult {
        self.exporter.borrow().exporter().shutdown()
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.borrow().exporter().force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        *lock(&self.exporter.resource) = Some(resource.clone());
        self.exporter.borrow().exporter().set_resource(resource);
    }
}

/// All processors of a hook that sends spans over a network, as one: it decides for all of them whether a span sets out.
#[derive(Debug)]
pub(super) struct FanOut {
    pub(super) processors: Vec<Arc<GuardedProcessor>>,
    pub(super) delivery: Arc<Delivery>,
    pub(super) flusher: Arc<Flusher>,
    /// True if trace ids are the SDK's random ones.
    pub(super) has_random_ids: bool,
}

impl SpanProcessor for FanOut {
    fn on_start(&self, span: &mut Span, cx: &Context) {
        self.processors.iter().for_each(|processor| processor.on_start(span, cx));
    }

    fn on_end(&self, mut span: SpanData) {
        keep_last_values(&mut span.attributes);
        if self.has_random_ids {
            say_random(&mut span);
        }
        let identity = identity(&span.span_context);
        let is_sampled = span.span_context.is_sampled();
        // A span that is recorded and not sampled is for processors to see, and for nobody to export.
        let sets_out = is_sampled && self.delivery.admit(identity);
        let takes = |processor: &&Arc<GuardedProcessor>| {
            sets_out || processor.is_durable() || (!is_sampled && !processor.is_of_exporter())
        };
        let mut takers = self.processors.iter().filter(takes).peekable();
        while let Some(processor) = takers.next() {
            if takers.peek().is_none() {
                processor.on_end(span);
                break;
            }
            processor.on_end(span.clone());
        }
        if !is_sampled {
            self.delivery.leave_out(identity);
        } else if sets_out {
            self.flusher.add(identity);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.each(GuardedProcessor::force_flush)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        let result = self.each(|processor| processor.shutdown_with_timeout(timeout));
        if result.is_ok() {
            self.flusher.all_delivered();
        }
        result
    }
}

impl FanOut {
    /// Calls `work` with every processor, and returns the first error.
    fn each(&self, work: impl Fn(&GuardedProcessor) -> OTelSdkResult) -> OTelSdkResult {
        let errors: Vec<_> = self.processors.iter().filter_map(|processor| work(processor).err()).collect();
        errors.into_iter().next().map_or(Ok(()), Err)
    }
}

/// Flushes the processors that do not tell, and tells for them.
pub(super) struct Flusher {
    /// Processors that do not tell which spans they have delivered.
    processors: Vec<Arc<GuardedProcessor>>,
    delivery: Arc<Delivery>,
    /// Spans that they have got since the last flush.
    spans: Mutex<Vec<Identity>>,
    has_spans: Condvar,
    has_thread: OnceLock<bool>,
}

impl fmt::Debug for Flusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flusher").field("processors", &self.processors).finish_non_exhaustive()
    }
}

impl Flusher {
    pub(super) fn new(processors: Vec<Arc<GuardedProcessor>>, delivery: Arc<Delivery>) -> Flusher {
        Flusher {
            processors,
            delivery,
            spans: Mutex::default(),
            has_spans: Condvar::new(),
            has_thread: OnceLock::new(),
        }
    }

    fn add(self: &Arc<Self>, span: Identity) {
        if self.processors.is_empty() || self.delivery.listener.get().is_none() {
            return;
        }
        let was_empty = {
            let mut spans = lock(&self.spans);
            spans.push(span);
            spans.len() == 1
        };
        if was_empty {
            self.has_thread.get_or_init(|| {
                let flusher = Arc::clone(self);
                std::thread::Builder::new().name("tracer-delivery".into()).spawn(move || flusher.run()).is_ok()
            });
            self.has_spans.notify_one();
        }
    }

    fn run(&self) {
        let _suppressed = Context::enter_telemetry_suppressed_scope();
        loop {
            let waiting = lock(&self.spans);
            drop(self.has_spans.wait_while(waiting, |spans| spans.is_empty()).unwrap_or_else(PoisonError::into_inner));
            // Others join meanwhile, so that a flush is worth it.
            std::thread::sleep(FLUSH_AFTER);
            let spans = std::mem::take(&mut *lock(&self.spans));
            for processor in &self.processors {
                let result = processor.force_flush();
                // What a processor gets at its end, its shutdown delivers.
                let result = if matches!(result, Err(OTelSdkError::AlreadyShutdown)) { Ok(()) } else { result };
                self.delivery.done(&spans, &result);
            }
        }
    }

    /// Notes that a shutdown has delivered everything.
    fn all_delivered(&self) {
        let spans = std::mem::take(&mut *lock(&self.spans));
        self.processors.iter().for_each(|_| self.delivery.done(&spans, &Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_says_what_becomes_of_spans() {
        let failed = OTelSdkError::InternalFailure("it is away".to_owned());
        for (result, expected, refused_count) in [
            (Ok(()), abi::STATUS_OK, None),
            (Err(failed), abi::STATUS_FAILED, None),
            (Err(refused("no such key")), abi::STATUS_REFUSED, None),
            (Err(refused_in_part(3, "too large: 7 MB")), abi::STATUS_OK, Some(3)),
            (Err(OTelSdkError::AlreadyShutdown), abi::STATUS_ALREADY, None),
        ] {
            assert_eq!(status(&result), expected, "{result:?}");
            assert_eq!(refused_of(&result), refused_count, "{result:?}");
        }
    }
}
