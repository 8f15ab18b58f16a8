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
    /// Counter, values: those of metrics that are in an overflow series because the disk had no room for a series of their own.
    #[serde(default)]
    pub metrics_overflowed: u64,
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
    use super::super::{Reply, StatusReport, put_reply, take_value};
    use super::*;

    /// Metrics with a figure of its own in each field.
    fn counted() -> Metrics {
        Metrics {
            metrics_version: METRICS_VERSION,
            uptime_ns: 1 << 32,
            workers: WorkerCounts { wanted: 2, starting: 3, idle: 4, busy: 5, waiting: 6, actors: 7, lost: 8 },
            tasks: TaskCounts {
                waiting: 9,
                leased: 10,
                ending: 11,
                succeeded: 12,
                failed: 13,
                cancelled: 14,
                forgotten: 15,
            },
            cpus: ResourceReport { name: "cpu".into(), total: 16, used: 17 },
            resources: vec![ResourceReport { name: "gpu".into(), total: 18, used: 19 }],
            queue_memory: Some(QueueMemoryReport { bytes: 1 << 20, used: 20, source: "s".into() }),
            spans: SpanCounts {
                recovered: 21,
                closed: 22,
                cut: 23,
                lost: 24,
                dropped: 25,
                lost_with_process: 26,
                at_risk: 27,
                untold: 28,
                missed: 29,
                forked: 30,
                unwritten: 31,
                handed_over: 32,
                waiting: 33,
                given_up: 34,
                waiting_for_other_hooks: 35,
                log_records_given_up: 41,
            },
            connections: 36,
            journal: JournalCounts { written_bytes: 37, synced_bytes: 38, is_failing: true, is_sync_failing: false },
            log_dropped_bytes: 39,
            metrics_overflowed: 40,
        }
    }

    #[test]
    fn metrics_have_golden_bytes() {
        let bytes = rmp_serde::to_vec_named(&counted()).unwrap();
        let expected = b"\x8c\xafmetrics_version\x01\xa9uptime_ns\xcf\x00\x00\x00\x01\x00\x00\x00\x00\xa7workers\x87\xa6wanted\x02\
            \xa8starting\x03\xa4idle\x04\xa4busy\x05\xa7waiting\x06\xa6actors\x07\xa4lost\x08\xa5tasks\x87\xa7waiting\x09\
            \xa6leased\x0a\xa6ending\x0b\xa9succeeded\x0c\xa6failed\x0d\xa9cancelled\x0e\xa9forgotten\x0f\
            \xa4cpus\x83\xa4name\xa3cpu\xa5total\x10\xa4used\x11\xa9resources\x91\x83\xa4name\xa3gpu\xa5total\x12\
            \xa4used\x13\xacqueue_memory\x83\xa5bytes\xce\x00\x10\x00\x00\xa4used\x14\xa6source\xa1s\
            \xa5spans\xde\x00\x10\xa9recovered\x15\xa6closed\x16\xa3cut\x17\xa4lost\x18\xa7dropped\x19\xb1lost_with_process\x1a\
            \xa7at_risk\x1b\xa6untold\x1c\xa6missed\x1d\xa6forked\x1e\xa9unwritten\x1f\xabhanded_over\x20\xa7waiting\x21\
            \xa8given_up\x22\xb7waiting_for_other_hooks\x23\xb4log_records_given_up\x29\xabconnections\x24\xa7journal\x84\xadwritten_bytes\x25\
            \xacsynced_bytes\x26\xaais_failing\xc3\xafis_sync_failing\xc2\xb1log_dropped_bytes\x27\
            \xb2metrics_overflowed\x28";
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
        assert_eq!(rmp_serde::from_slice::<Metrics>(expected).unwrap(), counted());
    }

    #[test]
    fn metrics_survive_the_wire_among_the_fields_of_the_status() {
        let tasks = TaskCounts { waiting: 3, ..TaskCounts::default() };
        let status = StatusReport {
            version: "1".into(),
            head_restarts: 0,
            head_pid: 2,
            node_id: "n".into(),
            session_dir: "/s".into(),
            spans_dir: "/f".into(),
            hook: None,
            tracing_off: None,
            metrics: Metrics { metrics_version: METRICS_VERSION, uptime_ns: u64::MAX, tasks, ..Metrics::default() },
            http: None,
            engine: None,
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
