//! Delivery of a batch: tries, pauses between them, when to give up, and what becomes known of that.
//!
//! It is the same for every way to send, which is a [`Transport`]. After the OTLP specification: what may help is tried again with
//! growing pauses, or after the pause that the receiver asks for; what cannot help is not. All of it takes no longer than
//! the timeout of the settings, and no task ever waits for it: the SDK's batch processor has a thread for it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::logs::tonic::group_logs_by_resource_and_scope;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::logs::{LogBatch, LogExporter};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SpanData, SpanExporter};
use tracer_sdk::hook::{
    GivenUpLogRecords, Pause, SharedPause, Tracing, TracingBuilder, refused, refused_in_part, trace_state_as_sent,
};

/// The first pause; each further one is twice as long, up to the longest.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A way to send a batch to a receiver.
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// A batch, ready to be sent more than once.
    type Message;

    /// Makes it ready.
    fn encode(&self, request: ExportTraceServiceRequest) -> Self::Message;

    /// Sends it once, and waits for the answer no longer than `timeout`.
    fn send(&self, message: &Self::Message, timeout: Duration) -> Answer;
}

/// Outcome of sending a batch once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The receiver has it.
    Accepted,
    /// The receiver has it, but for some spans that it never will take.
    Partly {
        /// Number of those spans.
        rejected: u64,
        /// Reason of the rejection, in the receiver's words.
        reason: String,
    },
    /// It may help to try again.
    Later {
        /// The pause that the receiver asks for.
        pause: Option<Duration>,
        /// Reason why it was not delivered, for people to read.
        reason: String,
    },
    /// It does not help to try again.
    Refused {
        /// Reason of the refusal, for people to read.
        reason: String,
    },
}

/// A way to send log records too.
pub trait LogTransport: Transport {
    /// Makes a batch of log records ready.
    fn encode_logs(&self, request: ExportLogsServiceRequest) -> Self::Message;
}

/// Tracing that sends spans with `transport`, in batches.
pub fn tracing<T: Transport>(transport: T, receiver: String, timeout: Duration, description: String) -> Tracing {
    builder(transport, receiver, timeout, description).build()
}

/// The same of [`tracing`], to which something can be added.
pub fn builder<T: Transport>(transport: T, receiver: String, timeout: Duration, description: String) -> TracingBuilder {
    let closing = Arc::new(Closing::default());
    let pause = SharedPause::default();
    let exporter = Exporter::new(transport, receiver, timeout, Arc::clone(&closing), pause.clone());
    Tracing::builder()
        .with_shared_pause(&pause)
        .with_closing_notice(move || closing.begin())
        .with_batch_exporter(exporter)
        .with_description(description)
}

/// Adds the delivery of log records with `transport`.
pub fn with_logs<T: LogTransport>(
    builder: TracingBuilder,
    transport: T,
    receiver: String,
    timeout: Duration,
) -> TracingBuilder {
    let closing = Arc::new(Closing::default());
    let exporter = Exporter::new(transport, receiver, timeout, Arc::clone(&closing), SharedPause::default());
    let given_up = GivenUpLogRecords::default();
    builder
        .with_closing_notice(move || closing.begin())
        .with_given_up_log_records(&given_up)
        .with_log_exporter(Logs { exporter, given_up })
}

/// An exporter of log records.
struct Logs<T> {
    exporter: Exporter<T>,
    given_up: GivenUpLogRecords,
}

impl<T: fmt::Debug> fmt::Debug for Logs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exporter.fmt(f)
    }
}

impl<T: LogTransport> LogExporter for Logs<T> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let _suppressed = Context::enter_telemetry_suppressed_scope();
        let resource_logs = group_logs_by_resource_and_scope(&batch, &self.exporter.resource);
        let message = self.exporter.transport.encode_logs(ExportLogsServiceRequest { resource_logs });
        let Err(undelivered) = self.exporter.deliver(&message) else { return Ok(()) };
        let (Undelivered::Later(reason) | Undelivered::Refused(reason) | Undelivered::Partly(_, reason)) = &undelivered;
        self.exporter.complain("log records", reason);
        if let Undelivered::Partly(rejected, _) = undelivered {
            // The rest has arrived.
            self.given_up.add(rejected);
            return Ok(());
        }
        let receiver = &self.exporter.receiver;
        Err(OTelSdkError::InternalFailure(format!("log records are not delivered to {receiver}: {reason}")))
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.resource = resource.into();
    }
}

/// Delivers batches. [`export`](SpanExporter::export) is well only when the receiver has accepted the whole batch.
pub struct Exporter<T> {
    transport: T,
    /// For people to read.
    receiver: String,
    timeout: Duration,
    first_pause: Duration,
    resource: ResourceAttributesWithSchema,
    closing: Arc<Closing>,
    /// Pause until the receiver may be asked again, by any process of the session.
    pause: SharedPause,
    has_complained: AtomicBool,
    random: RandomIdGenerator,
}

/// Error for which a batch was not delivered, for people to read.
#[derive(Debug, PartialEq, Eq)]
enum Undelivered {
    /// It may be, later.
    Later(String),
    /// It never will be.
    Refused(String),
    /// It was, but for so many spans that never will be.
    Partly(u64, String),
}

impl<T: fmt::Debug> fmt::Debug for Exporter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exporter").field("transport", &self.transport).field("timeout", &self.timeout).finish()
    }
}

impl<T: Transport> Exporter<T> {
    fn new(
        transport: T,
        receiver: String,
        timeout: Duration,
        closing: Arc<Closing>,
        pause: SharedPause,
    ) -> Exporter<T> {
        Exporter {
            transport,
            receiver,
            timeout,
            first_pause: PAUSE,
            resource: ResourceAttributesWithSchema::default(),
            closing,
            pause,
            has_complained: AtomicBool::new(false),
            random: RandomIdGenerator::default(),
        }
    }

    fn deliver(&self, message: &T::Message) -> Result<(), Undelivered> {
        let deadline = Instant::now() + self.timeout;
        // Why it has failed.
        let mut failure = None;
        loop {
            let pause = self.wait(deadline, failure.take())?;
            let answer = self.transport.send(message, deadline.saturating_duration_since(Instant::now()));
            if !matches!(answer, Answer::Later { .. }) && pause.failures > 0 {
                self.pause.end();
            }
            match answer {
                Answer::Accepted => return Ok(()),
                Answer::Partly { rejected, reason } => {
                    return Err(Undelivered::Partly(rejected, format!("it rejected {rejected} of them: {reason}")));
                }
                Answer::Refused { reason } => return Err(Undelivered::Refused(reason)),
                Answer::Later { pause: asked, reason } => {
                    let again = self.first_pause.saturating_mul(1 << pause.failures.min(16)).min(PAUSE_MAX);
                    self.pause.begin(match asked {
                        Some(left) => Pause { left, failures: 0 },
                        None => Pause { left: self.varied(again), failures: pause.failures + 1 },
                    });
                    failure = Some(reason);
                }
            }
        }
    }

    /// Waits until the pause of the receiver is over, and returns it as it was last. A batch that was not sent yet is sent all the same in a
    /// process that is about to end, unless the receiver has asked for the pause.
    fn wait(&self, deadline: Instant, failure: Option<String>) -> Result<Pause, Undelivered> {
        loop {
            let pause = self.pause.now();
            let is_urgent = failure.is_none() && pause.failures > 0;
            if pause.left.is_zero() || is_urgent && self.closing.has_begun() {
                return Ok(pause);
            }
            let next = Instant::now().checked_add(pause.left).filter(|&next| next < deadline);
            if next.is_none_or(|next| !self.closing.pause_until(next) && !is_urgent) {
                let reason = match pause.failures {
                    0 => "it asked for a pause that is not over",
                    _ => "it failed just now, and is asked again later",
                };
                return Err(Undelivered::Later(failure.unwrap_or_else(|| reason.to_owned())));
            }
        }
    }

    /// Returns the pause, somewhat longer or shorter, so that many processes do not all come back at once.
    fn varied(&self, pause: Duration) -> Duration {
        pause.mul_f64(0.75 + f64::from(self.random.new_span_id().to_bytes()[0]) / 512.0)
    }

    /// Says once in the life of the process that something does not arrive.
    fn complain(&self, what: &str, reason: &str) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            eprintln!(
                "tracer: {what} are not delivered to {}: {reason} (tasks run on; this is said once)",
                self.receiver
            );
        }
    }
}

/// Gives spans and links the tracestates that came, which OpenTelemetry's own type cannot all hold as they are.
fn unescape_trace_states(spans: &mut ResourceSpans) {
    for span in spans.scope_spans.iter_mut().flat_map(|scope| &mut scope.spans) {
        let links = span.links.iter_mut().map(|link| &mut link.trace_state);
        std::iter::once(&mut span.trace_state).chain(links).for_each(|state| {
            *state = trace_state_as_sent(std::mem::take(state));
        });
    }
}

impl<T: Transport> SpanExporter for Exporter<T> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let _suppressed = Context::enter_telemetry_suppressed_scope();
        let mut resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        resource_spans.iter_mut().for_each(unescape_trace_states);
        let message = self.transport.encode(ExportTraceServiceRequest { resource_spans });
        self.deliver(&message).map_err(|undelivered| {
            let (Undelivered::Later(reason) | Undelivered::Refused(reason) | Undelivered::Partly(_, reason)) =
                &undelivered;
            self.complain("spans", reason);
            let text = format!("spans are not delivered to {}: {reason}", self.receiver);
            match undelivered {
                Undelivered::Later(_) => OTelSdkError::InternalFailure(text),
                Undelivered::Refused(_) => refused(text),
                Undelivered::Partly(count, _) => refused_in_part(count, text),
            }
        })
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.resource = resource.into();
    }
}

/// Signal that the process is about to end. Then nothing is waited for but answers, and each batch is sent once.
#[derive(Debug, Default)]
struct Closing {
    is_closing: Mutex<bool>,
    has_begun: Condvar,
}

impl Closing {
    fn begin(&self) {
        *lock(&self.is_closing) = true;
        self.has_begun.notify_all();
    }

    fn has_begun(&self) -> bool {
        *lock(&self.is_closing)
    }

    /// Waits until `then`. False: it waited no longer, because the process is about to end.
    fn pause_until(&self, then: Instant) -> bool {
        let mut is_closing = lock(&self.is_closing);
        while !*is_closing {
            let left = then.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            is_closing = self.has_begun.wait_timeout(is_closing, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
    use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};

    use super::*;

    /// Answers as it was told to, the last answer again and again, and counts.
    #[derive(Debug, Clone)]
    struct Scripted {
        answers: Arc<Mutex<VecDeque<Answer>>>,
        sent: Arc<Mutex<Vec<usize>>>,
    }

    impl Transport for Scripted {
        type Message = usize;

        fn encode(&self, request: ExportTraceServiceRequest) -> usize {
            request.resource_spans[0].scope_spans.iter().map(|scope| scope.spans.len()).sum()
        }

        fn send(&self, message: &usize, _timeout: Duration) -> Answer {
            lock(&self.sent).push(*message);
            let mut answers = lock(&self.answers);
            if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() }
        }
    }

    struct Case {
        exporter: Exporter<Scripted>,
        closing: Arc<Closing>,
        sent: Arc<Mutex<Vec<usize>>>,
    }

    fn case(answers: &[Answer], timeout: Duration) -> Case {
        let sent = Arc::default();
        let answers = Arc::new(Mutex::new(answers.iter().cloned().collect()));
        let transport = Scripted { answers, sent: Arc::clone(&sent) };
        let closing = Arc::new(Closing::default());
        let mut exporter =
            Exporter::new(transport, "a test".into(), timeout, Arc::clone(&closing), SharedPause::default());
        exporter.first_pause = Duration::from_millis(1);
        Case { exporter, closing, sent }
    }

    fn export(exporter: &Exporter<Scripted>, count: usize) -> OTelSdkResult {
        let context = SpanContext::new(TraceId::from(1), SpanId::from(2), TraceFlags::SAMPLED, false, TraceState::NONE);
        let span = SpanData {
            span_context: context,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: "span".into(),
            start_time: std::time::UNIX_EPOCH,
            end_time: std::time::UNIX_EPOCH,
            attributes: vec![],
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: opentelemetry::InstrumentationScope::default(),
        };
        let mut exporting = std::pin::pin!(exporter.export(vec![span; count]));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match exporting.as_mut().poll(&mut context) {
            std::task::Poll::Ready(result) => result,
            std::task::Poll::Pending => panic!("an export blocks, it does not wait"),
        }
    }

    fn later(pause: Option<Duration>) -> Answer {
        Answer::Later { pause, reason: "busy".into() }
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn what_may_help_is_tried_again_until_it_is_accepted() {
        let case = case(&[later(None), later(Some(Duration::ZERO)), later(None), Answer::Accepted], LONG);
        export(&case.exporter, 3).unwrap();
        assert_eq!(*lock(&case.sent), [3, 3, 3, 3]);
    }

    #[test]
    fn what_cannot_help_is_tried_once_and_fails() {
        let case = case(&[Answer::Refused { reason: "no such key".into() }, Answer::Accepted], LONG);
        let error = export(&case.exporter, 2).unwrap_err();
        let expected = refused("spans are not delivered to a test: no such key");
        assert_eq!(error.to_string(), expected.to_string());
        assert_eq!(lock(&case.sent).len(), 1);
        // The next batch is another matter.
        export(&case.exporter, 1).unwrap();
    }

    #[test]
    fn tries_end_with_the_timeout() {
        let case = case(&[later(None)], Duration::from_millis(20));
        let error = export(&case.exporter, 1).unwrap_err();
        assert!(error.to_string().ends_with("a test: busy"), "{error}");
        assert!(lock(&case.sent).len() > 1);
    }

    #[test]
    fn a_pause_longer_than_the_timeout_is_kept_by_later_batches_too() {
        let case = case(&[later(Some(LONG)), Answer::Accepted], Duration::from_millis(20));
        export(&case.exporter, 1).unwrap_err();
        let error = export(&case.exporter, 1).unwrap_err();
        assert!(error.to_string().ends_with("it asked for a pause that is not over"), "{error}");
        assert_eq!(lock(&case.sent).len(), 1, "the receiver has its pause");
    }

    #[test]
    fn a_batch_of_which_some_spans_are_rejected_is_not_sent_again() {
        let case = case(&[Answer::Partly { rejected: 2, reason: "too large".into() }], LONG);
        let error = export(&case.exporter, 5).unwrap_err();
        let expected = refused_in_part(2, "spans are not delivered to a test: it rejected 2 of them: too large");
        assert_eq!(error.to_string(), expected.to_string());
        assert_eq!(*lock(&case.sent), [5]);
    }

    #[test]
    fn a_process_that_ends_sends_each_batch_once() {
        let case = case(&[later(None), later(Some(LONG)), Answer::Accepted], 2 * LONG);
        case.closing.begin();
        export(&case.exporter, 1).unwrap_err();
        assert_eq!(lock(&case.sent).len(), 1);
    }

    #[test]
    fn the_end_of_the_process_cuts_a_pause_short() {
        let case = case(&[later(Some(LONG))], 2 * LONG);
        std::thread::scope(|scope| {
            let exporting = scope.spawn(|| export(&case.exporter, 1));
            while lock(&case.sent).is_empty() {
                std::thread::yield_now();
            }
            case.closing.begin();
            exporting.join().unwrap().unwrap_err();
        });
    }
}
