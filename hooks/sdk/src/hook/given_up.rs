//! Log records that an exporter gives up: the host counts them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::logs::Severity;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{BatchLogProcessor, LogBatch, LogExporter, LogProcessor, SdkLogRecord};

use super::delivery::Delivery;

/// The count of log records that no receiver gets, in `tracer status`.
///
/// A batch for which an exporter returns an error is counted already. An exporter of which a receiver takes a part of a batch keeps one of these to
/// count the rest, and a [`TracingBuilder`](super::TracingBuilder::with_given_up_log_records) connects it with the host.
#[derive(Clone, Debug, Default)]
pub struct GivenUpLogRecords {
    delivery: Arc<OnceLock<Arc<Delivery>>>,
}

impl GivenUpLogRecords {
    pub(super) fn connect(&self, delivery: &Arc<Delivery>) {
        // Nobody else has set it: a builder is used once.
        let _ = self.delivery.set(Arc::clone(delivery));
    }

    /// Counts records. Where there is no host that counts them, nobody does.
    pub fn add(&self, records: u64) {
        if records > 0
            && let Some(delivery) = self.delivery.get()
        {
            delivery.give_up_log_records(records);
        }
    }
}

/// An exporter that counts the records of batches that it could not deliver.
#[derive(Debug)]
pub(super) struct CountedLogExporter<E> {
    pub(super) exporter: E,
    pub(super) given_up: GivenUpLogRecords,
    /// Records that wait, or are under way.
    pub(super) open: Arc<AtomicUsize>,
}

impl<E: LogExporter> LogExporter for CountedLogExporter<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let records = batch.iter().count();
        let exported = self.exporter.export(batch).await;
        if exported.is_err() {
            self.given_up.add(records as u64);
        }
        self.open.fetch_sub(records, Ordering::AcqRel);
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn event_enabled(&self, level: Severity, target: &str, name: Option<&str>) -> bool {
        self.exporter.event_enabled(level, target, name)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// A processor that counts the records for which its queue has no room. What the SDK's own has no room for, it drops without a word.
#[derive(Debug)]
pub(super) struct CountedLogProcessor {
    pub(super) processor: BatchLogProcessor,
    pub(super) given_up: GivenUpLogRecords,
    pub(super) open: Arc<AtomicUsize>,
    pub(super) limit: usize,
}

impl LogProcessor for CountedLogProcessor {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        if self.open.fetch_add(1, Ordering::AcqRel) < self.limit {
            self.processor.emit(record, scope);
        } else {
            self.open.fetch_sub(1, Ordering::AcqRel);
            self.given_up.add(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn event_enabled(&self, level: Severity, target: &str, name: Option<&str>) -> bool {
        self.processor.event_enabled(level, target, name)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}
