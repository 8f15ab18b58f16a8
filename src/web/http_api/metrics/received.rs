//! Metrics that programs send by OTLP, as `GET /metrics` shows them: the last value of each series, for five minutes.
//!
//! What is kept is bounded: 10,000 series, of them 2,000 of one metric, and texts of 4 KiB. Whose values they are is told by the labels `job` and `instance`, as
//! OpenTelemetry's specification makes them of the resource, whose other attributes are those of `target_info`. A resource without an instance is
//! told apart by its task and attempt, or its machine, and its process. A point's own attributes of these names become `exported_job` and
//! `exported_instance`, as Prometheus does it.
//!
//! Sums of differences are added up. An exponential histogram has buckets at powers of two, into which its own fall whole; summaries are not shown.
//!
//! Source: <https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/>.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use tracer_core::hex::parse_hex;
use tracer_ipc::metrics::Exemplar;
use tracer_ipc::metrics::instruments::{
    AttributeValue, BOUNDARIES_LIMIT, Definition, InstrumentKind, Measured, MeasuredSeries, NumberType,
};

use super::rename_taken;

/// Series that are kept, of all metrics.
pub(super) const SERIES: usize = 10_000;
/// Series of one metric.
pub(super) const SERIES_OF_METRIC: usize = 2000;
/// Longest text: a name, or all labels of a series.
const TEXT: usize = 4 << 10;
/// Age from which a series is not shown any more.
const AGE: Duration = Duration::from_secs(300);
/// Exponents of the boundaries of an exponential histogram, the first and the last.
const EXPONENTS: (i32, i32) = (-20, 40);
/// Temporality of differences, as OTLP numbers it.
const DELTA: u64 = 1;
/// Flag of a point that says that there was none.
const NO_VALUE: u64 = 1;

/// Labels of the program that a value is of.
const JOB: &str = "job";
const INSTANCE: &str = "instance";
/// Attributes of a resource that name the machine, or what stands for one, the narrowest first.
const MACHINES: [&str; 3] = ["container.id", "k8s.pod.name", "host.name"];

/// The last values of series.
#[derive(Debug, Default)]
pub(in crate::http_api) struct ReceivedMetrics {
    metrics: HashMap<Identity, Metric>,
    /// Series of all of them.
    series: usize,
    /// Points that found no place, or are of no kind that is shown.
    not_shown: u64,
    /// True if it was said that there is no room for some.
    is_full_said: bool,
}

/// Keys and values of labels.
type Labels = Vec<(String, String)>;

type Identity = (String, String, String, String, Shape, Vec<u64>);

/// Kind of the samples of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Counter,
    Sum,
    Gauge,
    Histogram,
}

#[derive(Debug)]
struct Metric {
    definition: Definition,
    series: HashMap<Labels, Series>,
}

#[derive(Debug)]
struct Series {
    value: f64,
    buckets: Vec<u64>,
    exemplars: Vec<Option<Exemplar>>,
    received_at: Instant,
}

/// A point of a series, in the form that is kept.
struct Point {
    shape: Shape,
    boundaries: Vec<f64>,
    value: f64,
    buckets: Vec<u64>,
    is_delta: bool,
    labels: Labels,
    exemplars: Vec<ExemplarData>,
}

impl ReceivedMetrics {
    /// Takes what a line of OTLP in JSON says.
    pub(in crate::http_api) fn take_in(&mut self, line: &[u8], now: Instant) {
        let Ok(data) = serde_json::from_slice::<MetricsData>(line) else { return };
        for ResourceMetrics { resource, scope_metrics } in data.resource_metrics {
            let (target, info) = target_of(resource);
            self.put_info(&target, info, now);
            for ScopeMetrics { scope, metrics } in scope_metrics {
                for metric in metrics {
                    self.take_metric(metric, &scope, &target, now);
                }
            }
        }
    }

    fn take_metric(&mut self, mut metric: MetricData, scope: &Scope, target: &[(String, String)], now: Instant) {
        let [name, description, unit] =
            [&mut metric.name, &mut metric.description, &mut metric.unit].map(std::mem::take);
        let describe = |point: &Point| Definition {
            name: name.clone(),
            unit: unit.clone(),
            description: description.chars().take(TEXT / 4).collect(),
            scope: scope.name.clone(),
            scope_version: scope.version.clone(),
            kind: match point.shape {
                Shape::Counter => InstrumentKind::Counter,
                Shape::Sum => InstrumentKind::UpDownCounter,
                Shape::Gauge => InstrumentKind::Gauge,
                Shape::Histogram => InstrumentKind::Histogram,
            },
            number: NumberType::F64,
            boundaries: point.boundaries.clone(),
        };
        let is_too_long = [&name, &unit, &scope.name, &scope.version].iter().any(|text| text.len() > TEXT);
        let (points, not_shown) = metric.points(target);
        self.not_shown += not_shown;
        for point in points {
            if is_too_long || name.is_empty() {
                self.not_shown += 1;
                continue;
            }
            self.put(describe(&point), point, now);
        }
    }

    fn put_info(&mut self, target: &[(String, String)], info: Labels, now: Instant) {
        let labels = [target, &beside_target(info)].concat();
        let definition = Definition {
            name: "target_info".to_owned(),
            unit: String::new(),
            description: "Resources of programs that send metrics.".to_owned(),
            scope: String::new(),
            scope_version: String::new(),
            kind: InstrumentKind::Gauge,
            number: NumberType::F64,
            boundaries: Vec::new(),
        };
        let (boundaries, buckets, exemplars) = (Vec::new(), Vec::new(), Vec::new());
        let point = Point { shape: Shape::Gauge, boundaries, value: 1.0, buckets, is_delta: false, labels, exemplars };
        self.put(definition, point, now);
    }

    fn put(&mut self, definition: Definition, point: Point, now: Instant) {
        let identity = (
            definition.name.clone(),
            definition.unit.clone(),
            definition.scope.clone(),
            definition.scope_version.clone(),
            point.shape,
            point.boundaries.iter().map(|boundary| boundary.to_bits()).collect(),
        );
        let bytes: usize = point.labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let is_known = self.metrics.get(&identity).is_some_and(|metric| metric.series.contains_key(&point.labels));
        if !is_known {
            if self.series >= SERIES {
                self.forget(now);
            }
            let of_metric = self.metrics.get(&identity).map_or(0, |metric| metric.series.len());
            if self.series >= SERIES || of_metric >= SERIES_OF_METRIC || bytes > TEXT {
                self.not_shown += 1;
                if !std::mem::replace(&mut self.is_full_said, true) {
                    eprintln!(
                        "tracer: `GET /metrics` does not show all series that are received: there is room for {SERIES}, of them {SERIES_OF_METRIC} of one \
                         metric, with labels of {TEXT} bytes, and `{}` has more (this is said once; `tracer.otlp.points.not_shown` counts)",
                        definition.name
                    );
                }
                return;
            }
            self.series += 1;
        }
        let metric = self.metrics.entry(identity).or_insert_with(|| Metric { definition, series: HashMap::new() });
        let slots = if point.shape == Shape::Histogram { point.buckets.len() } else { 1 };
        let series = metric.series.entry(point.labels).or_insert_with(|| Series {
            value: 0.0,
            buckets: vec![0; point.buckets.len()],
            exemplars: vec![None; slots],
            received_at: now,
        });
        series.received_at = now;
        if point.is_delta {
            series.value += point.value;
            series.buckets.iter_mut().zip(&point.buckets).for_each(|(own, more)| *own = own.saturating_add(*more));
        } else {
            series.value = point.value;
            series.buckets = point.buckets;
        }
        for exemplar in point.exemplars.into_iter().filter_map(ExemplarData::exemplar) {
            let bucket = if point.shape == Shape::Histogram { metric.definition.bucket_of(exemplar.value) } else { 0 };
            if let Some(slot) = series.exemplars.get_mut(bucket) {
                *slot = Some(exemplar);
            }
        }
    }

    /// Forgets what has not come for long.
    fn forget(&mut self, now: Instant) {
        for metric in self.metrics.values_mut() {
            metric.series.retain(|_, series| now.saturating_duration_since(series.received_at) < AGE);
        }
        self.metrics.retain(|_, metric| !metric.series.is_empty());
        self.series = self.metrics.values().map(|metric| metric.series.len()).sum();
    }

    /// Returns what came in the last five minutes, by name and labels.
    pub(in crate::http_api) fn measured(&mut self, now: Instant) -> Vec<Measured> {
        self.forget(now);
        let mut all: Vec<Measured> = self.metrics.values().map(Metric::measured).collect();
        let key = |measured: &Measured| {
            let Definition { name, scope, scope_version, .. } = &measured.definition;
            (name.clone(), scope.clone(), scope_version.clone())
        };
        all.sort_by_key(key);
        all
    }

    /// Returns how many points were not shown so far.
    pub(in crate::http_api) fn not_shown(&self) -> u64 {
        self.not_shown
    }
}

impl Metric {
    fn measured(&self) -> Measured {
        let mut series: Vec<_> = self.series.iter().collect();
        series.sort_by_key(|(labels, _)| *labels);
        let series = series.into_iter().map(|(labels, series)| MeasuredSeries {
            attributes: labels.iter().map(|(key, value)| (key.clone(), AttributeValue::Text(value.clone()))).collect(),
            pid: None,
            bits: series.value.to_bits(),
            buckets: series.buckets.clone(),
            exemplars: series.exemplars.clone(),
        });
        Measured { definition: self.definition.clone(), series: series.collect() }
    }
}

/// Returns the labels by which the samples of a resource are told apart, and those of its `target_info`.
fn target_of(resource: Resource) -> (Labels, Labels) {
    let mut attributes = labels_of(resource.attributes);
    let mut take = |key: &str| {
        let place = attributes.iter().position(|(known, _)| known == key)?;
        Some(attributes.remove(place).1)
    };
    let job = match (take("service.namespace"), take("service.name")) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (_, name) => name.unwrap_or_default(),
    };
    let instance = take("service.instance.id");
    let get = |key: &str| attributes.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
    let by_task = || Some(format!("task {} attempt {}", get("tracer.task_id")?, get("tracer.attempt")?));
    let by_machine = || MACHINES.iter().find_map(|key| get(key)).map(str::to_owned);
    let instance = instance.unwrap_or_else(|| {
        let place = by_task().or_else(by_machine).unwrap_or_default();
        // Processes of one task are told apart too.
        get("process.pid").map_or(place.clone(), |pid| format!("{place}:{pid}"))
    });
    (vec![(JOB.to_owned(), job), (INSTANCE.to_owned(), instance)], attributes)
}

/// Renames attributes that have the name of a label of the target.
fn beside_target(mut labels: Labels) -> Labels {
    rename_taken(&mut labels, |key| key == JOB || key == INSTANCE);
    labels
}

fn labels_of(attributes: Vec<KeyValue>) -> Labels {
    let mut labels: Vec<_> = attributes.into_iter().map(|pair| (pair.key, text_of(&pair.value))).collect();
    labels.sort();
    labels
}

/// Returns a value as the text of a label: texts as they are, the rest as JSON.
fn text_of(value: &Value) -> String {
    let Some((kind, value)) = value.as_object().and_then(|object| object.iter().next()) else { return String::new() };
    match (kind.as_str(), value) {
        ("stringValue" | "intValue", Value::String(text)) => text.clone(),
        (_, value) => value.to_string(),
    }
}

/// Returns a number that may be written as a text.
fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => match text.as_str() {
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            text => text.parse().ok(),
        },
        value => value.as_f64(),
    }
}

fn count_of(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.parse().unwrap_or(0),
        value => value.as_u64().unwrap_or(0),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricsData {
    #[serde(default)]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceMetrics {
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Default, Deserialize)]
struct Resource {
    #[serde(default)]
    attributes: Vec<KeyValue>,
}

#[derive(Deserialize)]
struct ScopeMetrics {
    #[serde(default)]
    scope: Scope,
    #[serde(default)]
    metrics: Vec<MetricData>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Scope {
    name: String,
    version: String,
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct MetricData {
    name: String,
    description: String,
    unit: String,
    gauge: Option<Data>,
    sum: Option<Data>,
    histogram: Option<Data>,
    exponential_histogram: Option<Data>,
    summary: Option<Data>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Data {
    data_points: Vec<DataPoint>,
    aggregation_temporality: u64,
    is_monotonic: bool,
}

/// A point of any kind.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct DataPoint {
    attributes: Vec<KeyValue>,
    as_double: Value,
    as_int: Value,
    sum: Value,
    bucket_counts: Vec<Value>,
    explicit_bounds: Vec<f64>,
    scale: i32,
    zero_count: Value,
    positive: Buckets,
    negative: Buckets,
    exemplars: Vec<ExemplarData>,
    flags: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Buckets {
    offset: i32,
    bucket_counts: Vec<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExemplarData {
    time_unix_nano: Value,
    as_double: Value,
    as_int: Value,
    trace_id: String,
    span_id: String,
}

impl ExemplarData {
    fn exemplar(self) -> Option<Exemplar> {
        Some(Exemplar {
            value: number_of(&self.as_double).or_else(|| number_of(&self.as_int))?,
            unix_nano: count_of(&self.time_unix_nano),
            trace_id: parse_hex(&self.trace_id)?,
            span_id: parse_hex(&self.span_id)?,
        })
    }
}

impl MetricData {
    /// Returns the points of what is shown, and how many others there are.
    fn points(self, target: &[(String, String)]) -> (Vec<Point>, u64) {
        let summaries = self.summary.map_or(0, |summary| summary.data_points.len());
        let (mut points, mut not_shown) = (Vec::new(), summaries as u64);
        let kinds = [
            (self.gauge, DataKind::Gauge),
            (self.sum, DataKind::Sum),
            (self.histogram, DataKind::Histogram),
            (self.exponential_histogram, DataKind::Exponential),
        ];
        for (data, kind) in kinds {
            let Some(data) = data else { continue };
            let (is_delta, is_monotonic) = (data.aggregation_temporality == DELTA, data.is_monotonic);
            for point in data.data_points.into_iter().filter(|point| point.flags & NO_VALUE == 0) {
                match point.into_point(kind, is_monotonic, target) {
                    Some(point) => points.push(Point { is_delta: is_delta && kind != DataKind::Gauge, ..point }),
                    None => not_shown += 1,
                }
            }
        }
        (points, not_shown)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DataKind {
    Gauge,
    Sum,
    Histogram,
    Exponential,
}

impl DataPoint {
    fn into_point(self, kind: DataKind, is_monotonic: bool, target: &[(String, String)]) -> Option<Point> {
        let number = || number_of(&self.as_double).or_else(|| number_of(&self.as_int));
        let (shape, value, boundaries, buckets) = match kind {
            DataKind::Gauge => (Shape::Gauge, number()?, Vec::new(), Vec::new()),
            DataKind::Sum if is_monotonic => (Shape::Counter, number()?.max(0.0), Vec::new(), Vec::new()),
            DataKind::Sum => (Shape::Sum, number()?, Vec::new(), Vec::new()),
            DataKind::Histogram => {
                let buckets: Vec<u64> = self.bucket_counts.iter().map(count_of).collect();
                let bounds = &self.explicit_bounds;
                let is_in_order = bounds.windows(2).all(|pair| pair[0] < pair[1]);
                let is_whole = buckets.len() == bounds.len() + 1 && bounds.len() <= BOUNDARIES_LIMIT;
                if !is_whole || !is_in_order || bounds.iter().any(|bound| !bound.is_finite()) {
                    return None;
                }
                (Shape::Histogram, number_of(&self.sum).unwrap_or(0.0), bounds.clone(), buckets)
            }
            DataKind::Exponential => {
                let (boundaries, buckets) = self.powers_of_two();
                (Shape::Histogram, number_of(&self.sum).unwrap_or(0.0), boundaries, buckets)
            }
        };
        let labels = [target, &beside_target(labels_of(self.attributes))].concat();
        Some(Point { shape, boundaries, value, buckets, is_delta: false, labels, exemplars: self.exemplars })
    }

    /// Returns the buckets of an exponential histogram, each in that of the power of two that is not below it.
    fn powers_of_two(&self) -> (Vec<f64>, Vec<u64>) {
        let (first, last) = EXPONENTS;
        let boundaries: Vec<f64> = (first..=last).map(|exponent| 2_f64.powi(exponent)).collect();
        let mut buckets = vec![0_u64; boundaries.len() + 1];
        let below: u64 = self.negative.bucket_counts.iter().map(count_of).fold(0, u64::saturating_add);
        buckets[0] = below.saturating_add(count_of(&self.zero_count));
        for (index, count) in self.positive.bucket_counts.iter().enumerate() {
            let upper = i64::from(self.positive.offset)
                + i64::try_from(index).unwrap_or(i64::MAX - 1 - i64::from(i32::MAX))
                + 1;
            // The upper boundary is 2^(upper / 2^scale).
            let exponent = match u32::try_from(self.scale) {
                Ok(scale) => upper.div_euclid(1 << scale.min(40)) + i64::from(upper.rem_euclid(1 << scale.min(40)) > 0),
                Err(_) => upper.saturating_mul(1 << self.scale.unsigned_abs().min(20)),
            };
            let place = (exponent - i64::from(first)).clamp(0, boundaries.len() as i64);
            let place = usize::try_from(place).unwrap_or(0);
            buckets[place] = buckets[place].saturating_add(count_of(count));
        }
        (boundaries, buckets)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::instruments::Pending;
    use super::super::{Format, Writer};
    use super::*;

    fn resource(pairs: &[(&str, &str)]) -> Value {
        let pairs = pairs.iter().map(|(key, value)| json!({"key": key, "value": {"stringValue": value}}));
        json!({ "attributes": pairs.collect::<Vec<_>>() })
    }

    fn line(resource: &Value, metrics: Value) -> Vec<u8> {
        let scope = json!({"scope": {"name": "shop", "version": "1"}, "metrics": metrics});
        json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}).to_string().into_bytes()
    }

    fn samples(received: &mut ReceivedMetrics, now: Instant) -> Vec<String> {
        let measured = received.measured(now);
        let pending = Pending::new(&measured);
        let mut writer = Writer { format: Format::OpenMetrics, out: String::new(), pending };
        writer.modules();
        let is_own = |line: &&str| line.starts_with('#') || line.starts_with("tracer_metrics_series_not_shown");
        writer.out.lines().filter(|line| !is_own(line)).map(str::to_owned).collect()
    }

    fn sum(name: &str, value: i64, temporality: u64, is_monotonic: bool) -> Value {
        json!({"name": name, "unit": "{order}", "sum": {"aggregationTemporality": temporality, "isMonotonic": is_monotonic,
               "dataPoints": [{"asInt": value.to_string(), "attributes": [{"key": "a.b", "value": {"boolValue": true}}]}]}})
    }

    #[test]
    fn values_of_two_programs_are_told_apart_and_the_last_one_counts() {
        let (mut received, now) = (ReceivedMetrics::default(), Instant::now());
        let one = resource(&[
            ("service.name", "a"),
            ("service.namespace", "n"),
            ("service.instance.id", "1"),
            ("os.type", "linux"),
        ]);
        let other = resource(&[("service.name", "a"), ("tracer.task_id", "7"), ("tracer.attempt", "2")]);
        for value in [5, 9] {
            received.take_in(&line(&one, json!([sum("shop.orders", value, 2, true)])), now);
        }
        received.take_in(&line(&other, json!([sum("shop.orders", 3, 2, true)])), now);
        let scope = "otel_scope_name=\"shop\",otel_scope_version=\"1\"";
        assert_eq!(
            samples(&mut received, now),
            [
                format!("shop_orders_total{{job=\"a\",instance=\"task 7 attempt 2\",a_b=\"true\",{scope}}} 3"),
                format!("shop_orders_total{{job=\"n/a\",instance=\"1\",a_b=\"true\",{scope}}} 9"),
                "target_info{job=\"a\",instance=\"task 7 attempt 2\",tracer_attempt=\"2\",tracer_task_id=\"7\"} 1"
                    .to_owned(),
                "target_info{job=\"n/a\",instance=\"1\",os_type=\"linux\"} 1".to_owned(),
            ]
        );
        assert_eq!(samples(&mut received, now + AGE), [""; 0], "it has not come for long");
    }

    #[test]
    fn attributes_of_points_with_names_of_the_target_are_kept_beside_it() {
        let (mut received, now) = (ReceivedMetrics::default(), Instant::now());
        let point =
            |pairs: &[(&str, &str)], value: u64| json!({"asInt": value, "attributes": resource(pairs)["attributes"]});
        let points = [
            point(&[("job", "nightly")], 1),
            point(&[("job", "hourly")], 2),
            point(&[("instance", "a"), ("exported_instance", "b")], 3),
        ];
        let own = resource(&[("service.name", "shop"), ("job", "mine")]);
        received.take_in(&line(&own, json!([{"name": "g", "gauge": {"dataPoints": points}}])), now);
        let scope = "otel_scope_name=\"shop\",otel_scope_version=\"1\"";
        assert_eq!(
            samples(&mut received, now),
            [
                format!(
                    "g{{job=\"shop\",instance=\"\",exported_instance=\"b\",exported_exported_instance=\"a\",{scope}}} 3"
                ),
                format!("g{{job=\"shop\",instance=\"\",exported_job=\"hourly\",{scope}}} 2"),
                format!("g{{job=\"shop\",instance=\"\",exported_job=\"nightly\",{scope}}} 1"),
                "target_info{job=\"shop\",instance=\"\",exported_job=\"mine\"} 1".to_owned(),
            ]
        );
        assert_eq!(received.not_shown(), 0);
    }

    #[test]
    fn programs_without_an_instance_are_told_apart_by_what_they_say_of_their_machine_and_process() {
        for (pairs, expected) in [
            (&[("host.name", "h")][..], "h"),
            (&[("host.name", "h"), ("process.pid", "7")], "h:7"),
            (&[("host.name", "h"), ("k8s.pod.name", "p")], "p"),
            (&[("tracer.task_id", "1"), ("tracer.attempt", "2"), ("process.pid", "7")], "task 1 attempt 2:7"),
            (&[("service.instance.id", "i"), ("process.pid", "7")], "i"),
            (&[], ""),
        ] {
            let resource = serde_json::from_value(resource(pairs)).unwrap();
            assert_eq!(target_of(resource).0[1].1, expected, "{pairs:?}");
        }
    }

    #[test]
    fn differences_are_added_up_and_values_that_go_down_are_gauges() {
        let (mut received, now) = (ReceivedMetrics::default(), Instant::now());
        for value in [5, 9] {
            let metrics =
                json!([sum("delta", value, 1, true), sum("level", value, 1, false), sum("now", value, 2, false)]);
            received.take_in(&line(&resource(&[]), metrics), now);
        }
        let values: Vec<_> =
            samples(&mut received, now).iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect();
        assert_eq!(values, ["14", "14", "9", "1"]);
    }

    #[test]
    fn histograms_have_their_buckets_and_exemplars_and_exponential_ones_those_of_powers_of_two() {
        let (mut received, now) = (ReceivedMetrics::default(), Instant::now());
        let exemplar = json!({"timeUnixNano": "1700000000123000000", "asDouble": 0.5, "traceId": "ab".repeat(16), "spanId": "01".repeat(8)});
        let explicit = json!({"name": "h", "histogram": {"aggregationTemporality": 2, "dataPoints": [{
            "sum": 3.5, "count": "3", "bucketCounts": ["2", "1"], "explicitBounds": [1.0], "exemplars": [exemplar]}]}});
        // Of scale 1, the boundaries are 2^(1/2), 2, 2^(3/2), 4.
        let exponential = json!({"name": "x", "exponentialHistogram": {"aggregationTemporality": 2, "dataPoints": [{
            "sum": 8.0, "count": "7", "scale": 1, "zeroCount": "1", "positive": {"offset": 0, "bucketCounts": ["1", "2", "0", "3"]}}]}});
        received.take_in(&line(&resource(&[]), json!([explicit, exponential])), now);
        let shown = samples(&mut received, now);
        let ids = format!("{{trace_id=\"{}\",span_id=\"{}\"}}", "ab".repeat(16), "01".repeat(8));
        assert!(
            shown[0].starts_with("h_bucket{")
                && shown[0].ends_with(&format!("le=\"1.0\"}} 2 # {ids} 0.5 1700000000.123")),
            "{}",
            shown[0]
        );
        let at = |bound: &str| {
            let line =
                shown.iter().find(|line| line.starts_with("x_bucket") && line.contains(&format!("le=\"{bound}\"")));
            line.unwrap_or_else(|| panic!("{bound}")).rsplit(' ').next().unwrap().to_owned()
        };
        assert_eq!([at("1.0"), at("2.0"), at("4.0"), at("+Inf")], ["1", "4", "7", "7"]);
    }

    #[test]
    fn what_is_too_much_or_of_no_kind_that_is_shown_is_counted() {
        let (mut received, now) = (ReceivedMetrics::default(), Instant::now());
        let points: Vec<_> = (0..SERIES_OF_METRIC + 5)
            .map(
                |number| json!({"asInt": "1", "attributes": [{"key": "n", "value": {"intValue": number.to_string()}}]}),
            )
            .collect();
        received.take_in(&line(&resource(&[]), json!([{"name": "g", "gauge": {"dataPoints": points}}])), now);
        assert_eq!((received.not_shown(), received.series), (5, SERIES_OF_METRIC + 1));
        for wrong in [
            json!({"name": "s", "summary": {"dataPoints": [{}]}}),
            json!({"name": "", "gauge": {"dataPoints": [{"asInt": "1"}]}}),
            json!({"name": "h", "histogram": {"dataPoints": [{"bucketCounts": ["1"], "explicitBounds": [2.0, 1.0]}]}}),
            json!({"name": "g", "gauge": {"dataPoints": [{}]}}),
        ] {
            let before = received.not_shown();
            received.take_in(&line(&resource(&[]), json!([wrong])), now);
            assert_eq!(received.not_shown(), before + 1, "{wrong}");
        }
        for metric in 0..20 {
            let points: Vec<_> = (0..1000)
                .map(|n| json!({"asInt": "1", "attributes": [{"key": "n", "value": {"intValue": n}}]}))
                .collect();
            received.take_in(
                &line(&resource(&[]), json!([{"name": format!("g{metric}"), "gauge": {"dataPoints": points}}])),
                now,
            );
        }
        assert_eq!(received.series, SERIES);
        assert_eq!(received.measured(now).iter().map(|measured| measured.series.len()).sum::<usize>(), SERIES);
    }
}
