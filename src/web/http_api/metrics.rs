//! `GET /metrics`: OpenMetrics 1.0 with exemplars for who asks for it, else the text format of Prometheus.
//!
//! Counts that outlive processes are read from files ([`tracer_ipc::metrics`]), everything else is asked of the head. The names are those of
//! [`tracer_core::metric_names`], with `_` for each `.` and the unit behind them, as OpenTelemetry's specification maps them. Prometheus drops a
//! whole scrape for one wrong exemplar, so the writer is strict: ids in hexadecimal and nothing else.
//!
//! Sources: <https://prometheus.io/docs/specs/om/open_metrics_spec/>,
//! <https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>.

pub mod export;
mod instruments;
mod otlp;
pub(super) mod received;
pub(crate) mod report;

use std::borrow::Cow;
use std::fmt::Write;

use http::{HeaderMap, header};
use instruments::Pending;
use tracer_core::hex::hex;
use tracer_core::metric_names::{self as names, KEPT, Metric, MetricKind};
use tracer_core::request_names;
use tracer_ipc::metrics::instruments::{Attributes, Measured, MeasuredSeries};
use tracer_ipc::metrics::{BOUNDARIES, Exemplar, Series};
use tracer_ipc::protocol::{
    DeploymentReport, ReplicaReportRow, ServiceReport, ServiceState, StatusReport, WorkerReport,
};
use tracer_reactor::deployments::Stage;

/// The text that a scraper gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// Returns the one that a request accepts: OpenMetrics only if it names it and does not prefer plain text.
    pub(super) fn asked(headers: &HeaderMap) -> Format {
        let mut best = (Format::Text, 0.0);
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in values.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let format = match parts.next().unwrap_or_default() {
                kind if kind.eq_ignore_ascii_case("application/openmetrics-text") => Format::OpenMetrics,
                kind if kind.eq_ignore_ascii_case("text/plain") => Format::Text,
                _ => continue,
            };
            let quality =
                parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |text| text.parse().unwrap_or(0.0));
            if quality > best.1 {
                best = (format, quality);
            }
        }
        best.0
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Memory and CPU time of a process of tracer's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProcessUse {
    pub(super) role: &'static str,
    pub(super) memory_bytes: u64,
    /// None for processes that come and go, whose sum would go back.
    pub(super) cpu_seconds: Option<f64>,
}

/// Every metric at one time.
pub(super) struct Collected {
    pub(super) kept: Vec<Series>,
    pub(super) modules: Vec<Measured>,
    /// Metrics that came by OTLP.
    pub(super) received: Vec<Measured>,
    /// Points of these that are not shown; none where no OTLP is received.
    pub(super) not_shown: Option<u64>,
    pub(super) status: Box<StatusReport>,
    pub(super) services: Vec<ServiceReport>,
    pub(super) processes: Vec<ProcessUse>,
}

/// Writes everything.
pub(super) fn render(format: Format, collected: &Collected) -> String {
    let Collected { kept, modules, received, not_shown, status, services, processes } = collected;
    let pending = Pending::new(modules.iter().chain(received));
    let mut writer = Writer { format, out: String::new(), pending };
    writer.own(kept, (status, services), processes);
    if let Some(not_shown) = not_shown {
        writer.all(&names::OTLP_NOT_SHOWN, "", &[("", *not_shown)]);
    }
    writer.modules();
    if format == Format::OpenMetrics {
        writer.out.push_str("# EOF\n");
    }
    writer.out
}

/// A form in which metrics are written.
trait Sink {
    /// Begins a metric, whose samples follow.
    fn head(&mut self, metric: &Metric);
    /// Writes a sample of a counter or a gauge.
    fn value(&mut self, metric: &Metric, attributes: &[(&str, &str)], value: f64);
    /// Writes a series that is kept in a file.
    fn series(&mut self, metric: &Metric, series: &Series);

    /// Writes everything of tracer's own.
    fn own(
        &mut self,
        kept: &[Series],
        (status, services): (&StatusReport, &[ServiceReport]),
        processes: &[ProcessUse],
    ) {
        for (position, metric) in KEPT.iter().enumerate() {
            let series: Vec<_> = kept.iter().filter(|series| series.metric == position).collect();
            if !series.is_empty() {
                self.head(metric);
                series.iter().for_each(|series| self.series(metric, series));
            }
        }
        self.gauges(status);
        self.services(services);
        self.processes(processes);
    }

    /// Writes a metric with its samples: the value of its one attribute, if it has one, and the value.
    fn all(&mut self, metric: &Metric, key: &str, samples: &[(&str, u64)]) {
        self.head(metric);
        for (attribute, value) in samples {
            let attributes = [(key, *attribute)];
            self.value(metric, if key.is_empty() { &[] } else { &attributes }, *value as f64);
        }
    }

    fn gauges(&mut self, status: &StatusReport) {
        let metrics = &status.metrics;
        let (tasks, workers, spans) = (&metrics.tasks, &metrics.workers, &metrics.spans);
        let count = |count: usize| count as u64;
        let by_state = [("waiting", tasks.waiting), ("leased", tasks.leased), ("ending", tasks.ending)];
        self.all(&names::TASKS, names::STATE, &by_state.map(|(state, tasks)| (state, count(tasks))));
        let by_state = [
            ("starting", workers.starting),
            ("idle", workers.idle),
            ("busy", workers.busy),
            ("waiting", workers.waiting),
            ("actors", workers.actors),
        ];
        self.all(&names::WORKERS, names::STATE, &by_state.map(|(state, workers)| (state, count(workers))));
        self.all(&names::WORKERS_LOST, "", &[("", workers.lost)]);
        self.all(&names::SLOTS, names::STATE, &[("used", metrics.cpus.used), ("total", metrics.cpus.total)]);
        self.resources(status);
        let by_fate = [
            ("recovered", spans.recovered),
            ("closed", spans.closed),
            ("cut", spans.cut),
            ("lost", spans.lost),
            ("dropped", spans.dropped),
            ("lost_with_process", spans.lost_with_process),
            ("missed", spans.missed),
            ("unwritten", spans.unwritten),
            ("given_up", spans.given_up),
        ];
        self.all(&names::SPANS, names::FATE, &by_fate);
        self.all(&names::SPANS_WAITING, "", &[("", spans.waiting)]);
        self.all(&names::JOURNAL_WRITTEN, "", &[("", metrics.journal.written_bytes)]);
        let is_failing = metrics.journal.is_failing || metrics.journal.is_sync_failing;
        self.all(&names::JOURNAL_FAILING, "", &[("", is_failing.into())]);
        self.all(&names::LOGS_DROPPED, "", &[("", metrics.log_dropped_bytes)]);
        self.all(&names::METRICS_OVERFLOWED, "", &[("", metrics.metrics_overflowed)]);
        self.all(&names::LOG_RECORDS_GIVEN_UP, "", &[("", spans.log_records_given_up)]);
        self.all(&names::CONNECTIONS, "", &[("", metrics.connections)]);
        self.head(&names::UPTIME);
        self.value(&names::UPTIME, &[], metrics.uptime_ns as f64 / 1e9);
    }

    fn resources(&mut self, status: &StatusReport) {
        if status.metrics.resources.is_empty() {
            return;
        }
        self.head(&names::RESOURCES);
        for resource in &status.metrics.resources {
            for (state, amount) in [("used", resource.used), ("total", resource.total)] {
                let attributes = [(names::RESOURCE, resource.name.as_str()), (names::STATE, state)];
                self.value(&names::RESOURCES, &attributes, amount as f64);
            }
        }
    }

    /// Writes what services have and do now. Series of a deployment go with it.
    fn services(&mut self, services: &[ServiceReport]) {
        if services.is_empty() {
            return;
        }
        self.head(&names::SERVICES);
        for service in services {
            for state in ServiceState::ALL {
                let attributes = [(names::SERVICE, service.name.as_str()), (names::STATE, state.name())];
                self.value(&names::SERVICES, &attributes, f64::from(u8::from(service.state == state)));
            }
        }
        self.head(&names::REPLICAS);
        for service in services {
            for deployment in &service.deployments {
                for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Gone) {
                    let is_counted = |replica: &&ReplicaReportRow| {
                        replica.application == deployment.application
                            && replica.deployment == deployment.name
                            && replica.state == stage.name()
                    };
                    let count = service.replicas.iter().filter(is_counted).count();
                    let [of_service, application, name] = attributes(deployment);
                    let attributes = [of_service, application, name, (names::STATE, stage.name())];
                    self.value(&names::REPLICAS, &attributes, count as f64);
                }
            }
        }
        let deployments = || services.iter().flat_map(|service| &service.deployments);
        self.of_deployments(&names::REPLICAS_TARGET, deployments(), |deployment| deployment.num_replicas.into());
        self.of_deployments(&names::ACTIVE_REQUESTS, deployments(), |deployment| deployment.ongoing);
        self.of_deployments(&names::QUEUE_DEPTH, deployments(), |deployment| deployment.waiting);
    }

    fn of_deployments<'a>(
        &mut self,
        metric: &Metric,
        deployments: impl Iterator<Item = &'a DeploymentReport>,
        value: impl Fn(&DeploymentReport) -> u64,
    ) {
        self.head(metric);
        deployments.for_each(|deployment| self.value(metric, &attributes(deployment), value(deployment) as f64));
    }

    fn processes(&mut self, processes: &[ProcessUse]) {
        self.head(&names::MEMORY);
        for process in processes {
            self.value(&names::MEMORY, &[(names::ROLE, process.role)], process.memory_bytes as f64);
        }
        self.head(&names::CPU_TIME);
        for process in processes {
            if let Some(seconds) = process.cpu_seconds {
                self.value(&names::CPU_TIME, &[(names::ROLE, process.role)], seconds);
            }
        }
    }
}

struct Writer<'a> {
    format: Format,
    out: String,
    pending: Pending<'a>,
}

impl Writer<'_> {
    /// Writes the lines about a family.
    fn head_of(&mut self, name: &str, kind: MetricKind, unit: &str, help: &str) {
        let is_counter = kind == MetricKind::Counter;
        let name = if is_counter && self.format == Format::Text { format!("{name}_total") } else { name.to_owned() };
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let _ = writeln!(self.out, "# HELP {name} {help}");
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
        if !unit.is_empty() && self.format == Format::OpenMetrics {
            let _ = writeln!(self.out, "# UNIT {name} {unit}");
        }
    }

    fn exemplar(&mut self, exemplar: &Exemplar) {
        let Exemplar { value, unix_nano, trace_id, span_id } = exemplar;
        let (trace, span) = (hex(trace_id), hex(span_id));
        let (seconds, millis) = (unix_nano / 1_000_000_000, unix_nano / 1_000_000 % 1000);
        let _ = write!(self.out, " # {{trace_id=\"{trace}\",span_id=\"{span}\"}} {value} {seconds}.{millis:03}");
    }
}

impl Sink for Writer<'_> {
    fn head(&mut self, metric: &Metric) {
        self.head_of(&family(metric), metric.kind, unit(metric).unwrap_or_default(), metric.help);
        self.join(metric);
    }

    fn value(&mut self, metric: &Metric, attributes: &[(&str, &str)], value: f64) {
        let suffix = if metric.kind == MetricKind::Counter { "_total" } else { "" };
        let _ = writeln!(self.out, "{}{suffix}{} {value}", family(metric), labels(attributes));
    }

    fn series(&mut self, metric: &Metric, series: &Series) {
        let attributes: Vec<_> = series.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if metric.kind == MetricKind::Counter {
            return self.value(metric, &attributes, series.count as f64);
        }
        let name = family(metric);
        let mut below = 0_u64;
        for (bucket, count) in series.buckets.iter().enumerate() {
            below = below.saturating_add(*count);
            let bound = BOUNDARIES.get(bucket).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            let labels = labels(&[attributes.as_slice(), &[("le", bound.as_str())]].concat());
            let _ = write!(self.out, "{name}_bucket{labels} {below}");
            if let Some(exemplar) =
                series.exemplars[bucket].filter(|_| self.format == Format::OpenMetrics && *count > 0)
            {
                self.exemplar(&exemplar);
            }
            self.out.push('\n');
        }
        let labels = labels(&attributes);
        let _ = writeln!(self.out, "{name}_sum{labels} {}", series.sum);
        // Not its own count: the two may be read at different moments.
        let _ = writeln!(self.out, "{name}_count{labels} {below}");
    }
}

fn attributes(deployment: &DeploymentReport) -> [(&str, &str); 3] {
    [
        (names::SERVICE, &deployment.service),
        (request_names::APP, &deployment.application),
        (request_names::DEPLOYMENT, &deployment.name),
    ]
}

/// Returns the name of a metric's family: with the unit behind it, as OpenMetrics wants it.
fn family(metric: &Metric) -> String {
    let mut name = metric.name.replace('.', "_");
    if let Some(unit) = unit(metric) {
        name.push('_');
        name.push_str(unit);
    }
    name
}

fn unit(metric: &Metric) -> Option<&'static str> {
    match metric.unit {
        "s" => Some("seconds"),
        "By" => Some("bytes"),
        _ => None,
    }
}

fn labels(attributes: &[(&str, &str)]) -> String {
    if attributes.is_empty() {
        return String::new();
    }
    let label = |(key, value): &(&str, &str)| format!("{}=\"{}\"", key.replace('.', "_"), escaped(value));
    format!("{{{}}}", attributes.iter().map(label).collect::<Vec<_>>().join(","))
}

/// Puts `exported_` before each key that is another's, as often as it takes for no label to have it.
fn rename_taken<T>(labels: &mut [(String, T)], is_taken: impl Fn(&str) -> bool) {
    for place in 0..labels.len() {
        let mut key = labels[place].0.clone();
        if is_taken(&key) {
            while is_taken(&key) || labels.iter().any(|(known, _)| *known == key) {
                key.insert_str(0, "exported_");
            }
            labels[place].0 = key;
        }
    }
}

/// Returns the attributes of a series and that of its process, if the value is one process's: each key is there once.
fn attributes_of(series: &MeasuredSeries) -> (Cow<'_, Attributes>, Option<(&'static str, u32)>) {
    const PID: &str = "process.pid";
    let mut attributes = Cow::Borrowed(&series.attributes);
    if series.pid.is_some() && attributes.iter().any(|(key, _)| key == PID) {
        rename_taken(attributes.to_mut(), |key| key == PID);
    }
    (attributes, series.pid.map(|pid| (PID, pid)))
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

/// Looks at the processes of a head: itself, this one and the workers together.
pub(super) fn processes(head_pid: u32, workers: &[WorkerReport]) -> Vec<ProcessUse> {
    let own = std::process::id();
    let one = |role, pid| ProcessUse { role, memory_bytes: memory_of(pid), cpu_seconds: Some(cpu_seconds_of(pid)) };
    let of_workers = workers.iter().map(|worker| memory_of(worker.pid)).sum();
    vec![
        one("head", head_pid),
        one("http", own),
        ProcessUse { role: "worker", memory_bytes: of_workers, cpu_seconds: None },
    ]
}

/// Resident bytes of a process; 0 when it is gone.
fn memory_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages * tracer_ipc::page::page_size() as u64
}

/// CPU time of a process in seconds; 0 when it is gone.
fn cpu_seconds_of(pid: u32) -> f64 {
    /// Ticks of `/proc/<pid>/stat` in a second, on every architecture of Linux (`USER_HZ`).
    const TICKS: f64 = 100.0;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, which may have blanks and parentheses, ends with the last one.
    let fields = text.rsplit_once(") ").map(|(_, fields)| fields.split(' ').skip(11).take(2));
    let ticks: u64 = fields.into_iter().flatten().filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use tracer_ipc::metrics::{BUCKETS, SeriesFile, read};

    use super::*;

    fn asked(accept: &[&'static str]) -> Format {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, HeaderValue::from_static(value));
        }
        Format::asked(&headers)
    }

    #[test]
    fn openmetrics_is_for_who_asks_for_it() {
        assert_eq!(asked(&[]), Format::Text);
        assert_eq!(asked(&["*/*"]), Format::Text);
        assert_eq!(asked(&["text/plain"]), Format::Text);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(asked(&[prometheus]), Format::OpenMetrics);
        assert_eq!(asked(&["text/plain;q=0.9", "application/openmetrics-text;q=0.5"]), Format::Text);
        assert_eq!(asked(&["application/openmetrics-text;q=0"]), Format::Text);
    }

    #[test]
    fn a_histogram_has_its_buckets_its_sum_and_its_exemplars_and_names_are_escaped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let mut file = SeriesFile::open(&path).unwrap();
        let series = file.series(names::TASK_DURATION, &[(names::FUNCTION, "a\"b\\c\nd")]);
        let bucket = file.observe(series, 0.75);
        file.observe(series, 3.0);
        let exemplar =
            Exemplar { value: 0.75, unix_nano: 1_700_000_000_123_000_000, trace_id: [0xAB; 16], span_id: [1; 8] };
        file.set_exemplar(series, bucket, &exemplar);
        let kept = read(&path).unwrap();
        let mut writer = Writer { format: Format::OpenMetrics, out: String::new(), pending: Pending::default() };
        writer.head(&KEPT[names::TASK_DURATION]);
        writer.series(&KEPT[names::TASK_DURATION], &kept[0]);
        let lines: Vec<_> = writer.out.lines().collect();
        assert_eq!(lines.len(), 3 + BUCKETS + 2, "{}", writer.out);
        let name = "tracer_task_duration_seconds";
        assert_eq!(lines[1], format!("# TYPE {name} histogram"));
        assert_eq!(lines[2], format!("# UNIT {name} seconds"));
        let function = r#"tracer_function="a\"b\\c\nd""#;
        assert_eq!(lines[3], format!("{name}_bucket{{{function},le=\"0.0001220703125\"}} 0"));
        let ids = format!("{{trace_id=\"{}\",span_id=\"{}\"}}", "ab".repeat(16), "01".repeat(8));
        assert_eq!(lines[3 + bucket], format!("{name}_bucket{{{function},le=\"1.0\"}} 1 # {ids} 0.75 1700000000.123"));
        assert_eq!(lines[3 + BUCKETS - 1], format!("{name}_bucket{{{function},le=\"+Inf\"}} 2"));
        assert_eq!(lines[3 + BUCKETS], format!("{name}_sum{{{function}}} 3.75"));
        assert_eq!(lines[4 + BUCKETS], format!("{name}_count{{{function}}} 2"));
        let mut text = Writer { format: Format::Text, out: String::new(), pending: Pending::default() };
        text.series(&KEPT[names::TASK_DURATION], &kept[0]);
        assert!(!text.out.contains('#'), "the text format has no exemplars: {}", text.out);
    }
}
