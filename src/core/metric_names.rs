//! Names of tracer's metrics, their units and what they count: the one place that has them.
//!
//! Names and units of the `http.server.*` and `process.*` families are those of OpenTelemetry's semantic conventions; the others begin with
//! `tracer.`, as those of its spans' attributes do.

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Name as OpenTelemetry has it, in parts with dots.
    pub name: &'static str,
    /// Unit by UCUM: `s`, `By`, or a thing in braces.
    pub unit: &'static str,
    /// Kind of its values.
    pub kind: MetricKind,
    /// Description for people.
    pub help: &'static str,
}

/// Kind of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A sum that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Counts of values by size, with their sum.
    Histogram,
}

const fn metric(name: &'static str, unit: &'static str, kind: MetricKind, help: &'static str) -> Metric {
    Metric { name, unit, kind, help }
}

/// Metrics of which a series is kept in a file for each combination of attributes, so that it outlives the process. The position in this
/// list is what the file says, so new ones go to the end.
pub const KEPT: &[Metric] = &[
    metric("tracer.task.duration", "s", MetricKind::Histogram, "Run time of attempts that have ended."),
    metric(
        "tracer.task.queue.duration",
        "s",
        MetricKind::Histogram,
        "Time from submission to the first attempt's begin.",
    ),
    metric("tracer.task.ended", "{task}", MetricKind::Counter, "Tasks that have ended, by outcome."),
    metric(
        "http.server.request.duration",
        "s",
        MetricKind::Histogram,
        "Time that requests to services and to the HTTP API took.",
    ),
    metric(
        "tracer.serve.queue.duration",
        "s",
        MetricKind::Histogram,
        "Time that requests waited for a place at a replica, of those that had to.",
    ),
    metric("tracer.serve.request.body", "By", MetricKind::Counter, "Bytes of the bodies of requests, as far as read."),
    metric("tracer.serve.response.body", "By", MetricKind::Counter, "Bytes of the bodies of answers, as far as sent."),
    metric(
        "tracer.serve.requests.shed",
        "{request}",
        MetricKind::Counter,
        "Requests that got no place at a replica, by reason.",
    ),
    metric(
        "tracer.serve.requests.retried",
        "{attempt}",
        MetricKind::Counter,
        "Attempts after which another replica was asked, by reason.",
    ),
    metric(
        "tracer.serve.call.duration",
        "s",
        MetricKind::Histogram,
        "Time that calls of deployments by handlers, tasks and programs took.",
    ),
    metric("rpc.server.call.duration", "s", MetricKind::Histogram, "Time that calls of gRPC to services took."),
    metric(
        "tracer.serve.handshakes.failed",
        "{handshake}",
        MetricKind::Counter,
        "Handshakes of TLS that were not completed, by reason.",
    ),
    metric(
        "tracer.otlp.requests",
        "{request}",
        MetricKind::Counter,
        "Requests that brought OTLP, by signal and outcome.",
    ),
    metric(
        "tracer.otlp.items",
        "{item}",
        MetricKind::Counter,
        "Spans, log records and metrics' points that came by OTLP, by signal and outcome.",
    ),
    metric("tracer.otlp.written", "By", MetricKind::Counter, "Bytes written to files for what came by OTLP."),
];

/// Requests in a batch. Measured by the library of whoever has a function with `#[batch]`, in its own process.
pub const BATCH_SIZE: Metric =
    metric("tracer.serve.batch.size", "{request}", MetricKind::Histogram, "Requests in a batch.");
/// Wait of a batch, measured as its size is.
pub const BATCH_WAIT: Metric = metric(
    "tracer.serve.batch.wait",
    "s",
    MetricKind::Histogram,
    "Time that the oldest request of a batch waited for it.",
);

/// Position of the run time of attempts in [`KEPT`].
pub const TASK_DURATION: usize = 0;
/// Position of the time in the queue in [`KEPT`].
pub const QUEUE_DURATION: usize = 1;
/// Position of the counter of ended tasks in [`KEPT`].
pub const TASKS_ENDED: usize = 2;
/// Position of the duration of requests in [`KEPT`].
pub const HTTP_DURATION: usize = 3;
/// Position of the time that requests wait for a place in [`KEPT`].
pub const SERVE_QUEUE_DURATION: usize = 4;
/// Position of the bytes of requests in [`KEPT`].
pub const REQUEST_BODIES: usize = 5;
/// Position of the bytes of answers in [`KEPT`].
pub const RESPONSE_BODIES: usize = 6;
/// Position of the counter of requests without a place in [`KEPT`].
pub const SERVE_SHED: usize = 7;
/// Position of the counter of attempts that were followed by another in [`KEPT`].
pub const SERVE_RETRIES: usize = 8;
/// Position of the duration of calls of deployments in [`KEPT`].
pub const CALL_DURATION: usize = 9;
/// Position of the duration of calls of gRPC in [`KEPT`].
pub const RPC_DURATION: usize = 10;
/// Position of the counter of handshakes of TLS that have failed in [`KEPT`].
pub const SERVE_HANDSHAKE_FAILURES: usize = 11;
/// Position of the counter of requests with OTLP in [`KEPT`].
pub const OTLP_REQUESTS: usize = 12;
/// Position of the counter of what came by OTLP in [`KEPT`].
pub const OTLP_ITEMS: usize = 13;
/// Position of the bytes that were written for what came by OTLP in [`KEPT`].
pub const OTLP_WRITTEN: usize = 14;

/// Tasks by state.
pub const TASKS: Metric = metric("tracer.tasks", "{task}", MetricKind::Gauge, "Tasks that have not ended, by state.");
/// Workers by state.
pub const WORKERS: Metric = metric("tracer.workers", "{worker}", MetricKind::Gauge, "Worker processes, by state.");
/// Workers that died.
pub const WORKERS_LOST: Metric = metric(
    "tracer.workers.lost",
    "{worker}",
    MetricKind::Counter,
    "Worker processes that ended without being told to, since the head's start.",
);
/// Slots of tasks.
pub const SLOTS: Metric = metric("tracer.slots", "{slot}", MetricKind::Gauge, "Slots of tasks, used and in all.");
/// Named resources.
pub const RESOURCES: Metric =
    metric("tracer.resources", "{unit}", MetricKind::Gauge, "Named resources, used and in all.");
/// Spans that needed tracer's help, or were lost.
pub const SPANS: Metric = metric(
    "tracer.spans",
    "{span}",
    MetricKind::Counter,
    "Spans that needed help or were lost, by fate, since the head's start.",
);
/// Spans that wait for a receiver.
pub const SPANS_WAITING: Metric = metric(
    "tracer.spans.waiting",
    "{span}",
    MetricKind::Gauge,
    "Spans that the head holds for hooks that could not deliver them.",
);
/// Bytes of the journal.
pub const JOURNAL_WRITTEN: Metric = metric(
    "tracer.journal.written",
    "By",
    MetricKind::Counter,
    "Bytes appended to the journal since the head's start.",
);
/// State of the journal.
pub const JOURNAL_FAILING: Metric = metric(
    "tracer.journal.failing",
    "1",
    MetricKind::Gauge,
    "1 while the journal cannot be written or synced, else 0.",
);
/// Output that was dropped.
pub const LOGS_DROPPED: Metric = metric(
    "tracer.logs.dropped",
    "By",
    MetricKind::Counter,
    "Bytes of output dropped from the session's logs since the head's start.",
);
/// Values without a series of their own.
pub const METRICS_OVERFLOWED: Metric = metric(
    "tracer.metrics.overflowed",
    "{value}",
    MetricKind::Counter,
    "Values in the series otel.metric.overflow because the disk had no room for one of their own, since the head's start.",
);
/// Log records that were given up.
pub const LOG_RECORDS_GIVEN_UP: Metric = metric(
    "tracer.log_records.given_up",
    "{record}",
    MetricKind::Counter,
    "Log records that no receiver gets, because a hook has given them up, since the head's start.",
);
/// Connections.
pub const CONNECTIONS: Metric = metric(
    "tracer.connections",
    "{connection}",
    MetricKind::Gauge,
    "Drivers and workers that are connected to the head.",
);
/// Requests in flight.
pub const ACTIVE_REQUESTS: Metric =
    metric("http.server.active_requests", "{request}", MetricKind::Gauge, "Requests in flight at replicas.");
/// Requests that wait for a place.
pub const QUEUE_DEPTH: Metric =
    metric("tracer.serve.queue.depth", "{request}", MetricKind::Gauge, "Requests that wait for a place at a replica.");
/// Replicas by state.
pub const REPLICAS: Metric =
    metric("tracer.serve.replicas", "{replica}", MetricKind::Gauge, "Replicas of deployments, by state.");
/// Replicas that there should be.
pub const REPLICAS_TARGET: Metric = metric(
    "tracer.serve.replicas.target",
    "{replica}",
    MetricKind::Gauge,
    "Replicas that deployments should have, which follows the load of those that are scaled.",
);
/// State of services.
pub const SERVICES: Metric =
    metric("tracer.serve.services", "{service}", MetricKind::Gauge, "1 for the state that a service is in.");
/// Points of metrics that are not shown.
pub const OTLP_NOT_SHOWN: Metric = metric(
    "tracer.otlp.points.not_shown",
    "{point}",
    MetricKind::Counter,
    "Points of metrics that came by OTLP and are not shown here: no room, or of no kind that is.",
);
/// Series that a scrape leaves out.
pub const SERIES_NOT_SHOWN: Metric = metric(
    "tracer.metrics.series.not_shown",
    "{series}",
    MetricKind::Gauge,
    "Series of modules and of programs that this scrape leaves out, because others have their name or their labels.",
);
/// Age of the head.
pub const UPTIME: Metric = metric("tracer.uptime", "s", MetricKind::Gauge, "Time since the head's start.");
/// Memory of processes.
pub const MEMORY: Metric =
    metric("process.memory.usage", "By", MetricKind::Gauge, "Resident memory of tracer's processes, by role.");
/// CPU time of processes.
pub const CPU_TIME: Metric = metric(
    "process.cpu.time",
    "s",
    MetricKind::Counter,
    "CPU time of tracer's own processes since their start, by role.",
);

/// Attribute of a function or command.
pub const FUNCTION: &str = "tracer.function";
/// Attribute of the error that an attempt ended with; missing when it succeeded.
pub const ERROR_TYPE: &str = "error.type";
/// Attribute of a service.
pub const SERVICE: &str = "tracer.service";
/// Attribute of a state.
pub const STATE: &str = "tracer.state";
/// Attribute of a signal: traces, logs or metrics.
pub const SIGNAL: &str = "tracer.signal";
/// Attribute of what became of spans.
pub const FATE: &str = "tracer.span.fate";
/// Attribute of a named resource.
pub const RESOURCE: &str = "tracer.resource";
/// Attribute of what a process is for.
pub const ROLE: &str = "tracer.process.role";
/// Attribute of the series that takes what no other series has room for, as OpenTelemetry's specification has it.
pub const OVERFLOW: &str = "otel.metric.overflow";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_of_lower_case_parts() {
        let single = [
            BATCH_SIZE,
            BATCH_WAIT,
            TASKS,
            WORKERS,
            WORKERS_LOST,
            SLOTS,
            RESOURCES,
            SPANS,
            SPANS_WAITING,
            JOURNAL_WRITTEN,
            JOURNAL_FAILING,
            LOGS_DROPPED,
            METRICS_OVERFLOWED,
            LOG_RECORDS_GIVEN_UP,
            CONNECTIONS,
            ACTIVE_REQUESTS,
            QUEUE_DEPTH,
            REPLICAS,
            REPLICAS_TARGET,
            SERVICES,
            OTLP_NOT_SHOWN,
            SERIES_NOT_SHOWN,
            UPTIME,
            MEMORY,
            CPU_TIME,
        ];
        let names: Vec<_> = KEPT.iter().chain(&single).map(|metric| metric.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let is_part =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        for name in names {
            assert!(name.split('.').all(is_part), "{name}");
        }
        assert_eq!(KEPT[TASK_DURATION].name, "tracer.task.duration");
        assert_eq!(KEPT[QUEUE_DURATION].name, "tracer.task.queue.duration");
        assert_eq!(KEPT[TASKS_ENDED].name, "tracer.task.ended");
        assert_eq!(KEPT[HTTP_DURATION].name, "http.server.request.duration");
        assert_eq!(KEPT[SERVE_QUEUE_DURATION].name, "tracer.serve.queue.duration");
        assert_eq!(KEPT[REQUEST_BODIES].name, "tracer.serve.request.body");
        assert_eq!(KEPT[RESPONSE_BODIES].name, "tracer.serve.response.body");
        assert_eq!(KEPT[SERVE_SHED].name, "tracer.serve.requests.shed");
        assert_eq!(KEPT[SERVE_RETRIES].name, "tracer.serve.requests.retried");
        assert_eq!(KEPT[SERVE_HANDSHAKE_FAILURES].name, "tracer.serve.handshakes.failed");
        assert_eq!(KEPT[CALL_DURATION].name, "tracer.serve.call.duration");
        assert_eq!(KEPT[RPC_DURATION].name, "rpc.server.call.duration");
        assert_eq!(KEPT[OTLP_REQUESTS].name, "tracer.otlp.requests");
        assert_eq!(KEPT[OTLP_ITEMS].name, "tracer.otlp.items");
        assert_eq!(KEPT[OTLP_WRITTEN].name, "tracer.otlp.written");
    }
}
