//! The figures of a head as one value.

use serde::{Deserialize, Serialize};

use super::{QueueMemoryReport, ResourceReport, SpanCounts, TaskCounts, WorkerCounts};

/// The version of [`Metrics`]. A field that is added leaves it; one that goes, or changes its meaning or unit, raises it.
pub const METRICS_VERSION: u32 = 1;

/// Every count and gauge of a head, read at one moment. `tracer status`, the HTTP API and exporters render this value and count nothing
/// themselves. A reader ignores fields that it does not know, and takes zero for those that are missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// [`METRICS_VERSION`].
    pub metrics_version: u32,
    /// Gauge, nanoseconds: how long the head has run.
    pub uptime_ns: u64,
    /// Processes of workers.
    pub workers: WorkerCounts,
    /// Tasks by state.
    pub tasks: TaskCounts,
    /// Gauge, slots: one for each worker that is wanted, taken by tasks as `--num-cpus` says.
    pub cpus: ResourceReport,
    /// Gauges, units of the resource: what tasks may ask for by name.
    pub resources: Vec<ResourceReport>,
    /// Gauge, bytes: memory of tasks that have not ended, and its limit.
    #[serde(default)]
    pub queue_memory: Option<QueueMemoryReport>,
    /// Spans that needed tracer's help, or were lost.
    pub spans: SpanCounts,
    /// Gauge, connections: drivers and workers that are connected.
    #[serde(default)]
    pub connections: u64,
    /// The journal.
    #[serde(default)]
    pub journal: JournalCounts,
    /// Counter, bytes: output of workers that was dropped from the logs of the session.
    #[serde(default)]
    pub log_dropped_bytes: u64,
}

/// Figures of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalCounts {
    /// Counter, bytes: what was appended since the head was started.
    pub written_bytes: u64,
    /// Counter, bytes: what of it is on the disk for certain. Stays 0 without `--journal-sync`.
    pub synced_bytes: u64,
    /// Gauge, 0 or 1: whether it cannot be written, so that no task is accepted.
    pub is_failing: bool,
    /// Gauge, 0 or 1: whether it cannot be synced, so that no task is acknowledged.
    pub is_sync_failing: bool,
}

#[cfg(test)]
mod tests {
    use tracer_core::hex::hex;

    use super::super::{Reply, StatusReport, put_reply, take_value};
    use super::*;

    #[test]
    fn metrics_have_golden_bytes() {
        let journal = JournalCounts { written_bytes: 5, is_failing: true, ..JournalCounts::default() };
        let expected = "84 \
             ad7772697474656e5f6279746573 05 ac73796e6365645f6279746573 00 aa69735f6661696c696e67 c3 af69735f73796e635f6661696c696e67 c2";
        assert_eq!(hex(&rmp_serde::to_vec_named(&journal).unwrap()), expected.replace(' ', ""));
    }

    #[test]
    fn metrics_survive_the_wire_among_the_fields_of_the_status() {
        let tasks = TaskCounts { waiting: 3, ..TaskCounts::default() };
        let status = StatusReport {
            version: "1".into(),
            head_pid: 2,
            node_id: "n".into(),
            session_dir: "/s".into(),
            spans_dir: "/f".into(),
            hook: None,
            tracing_off: None,
            metrics: Metrics { metrics_version: METRICS_VERSION, uptime_ns: u64::MAX, tasks, ..Metrics::default() },
            http: None,
            worker_memory: None,
            services: Vec::new(),
            warnings: vec!["w".into()],
        };
        assert_eq!(serde_json::to_value(&status).unwrap()["tasks"]["waiting"], 3);
        let mut frame = Vec::new();
        put_reply(&mut frame, 1, &Reply::Status(Box::new(status.clone())));
        let Ok((1, Reply::Status(found))) = take_value(&frame[5..]) else { panic!("it is a status") };
        assert_eq!(*found, status);
    }

    #[test]
    fn a_head_without_a_figure_is_read_as_zero_and_a_figure_that_is_not_known_is_ignored() {
        let metrics = Metrics { metrics_version: METRICS_VERSION, uptime_ns: 7, ..Metrics::default() };
        let mut json = serde_json::to_value(&metrics).unwrap();
        json.as_object_mut().unwrap().remove("journal");
        json["replicas"] = 3.into();
        assert_eq!(serde_json::from_value::<Metrics>(json).unwrap(), metrics);
    }
}
