//! Metrics as a request of OTLP: <https://opentelemetry.io/docs/specs/otel/metrics/data-model/>.

use std::collections::HashMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    self as proto, AggregationTemporality, Gauge, Histogram, HistogramDataPoint, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tracer_core::metric_names::{Metric, MetricKind};
use tracer_ipc::metrics::instruments::{AttributeValue, Definition, InstrumentKind, Measured, NumberType};
use tracer_ipc::metrics::{BOUNDARIES, Exemplar, Series};

use super::{Sink, attributes_of};

/// Name of the scope of tracer's own metrics.
const SCOPE: &str = "tracer";

/// Time between which values were collected, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Time since which sums that are kept in files are counted.
    pub(super) place: u64,
    /// Time since which sums of the head are counted.
    pub(super) head: u64,
    /// Now.
    pub(super) now: u64,
}

/// A request in the making: sums and distributions since the beginning.
pub(super) struct Request {
    times: Times,
    metrics: Vec<proto::Metric>,
    modules: Vec<ScopeMetrics>,
}

impl Request {
    pub(super) fn new(times: Times) -> Request {
        Request { times, metrics: Vec::new(), modules: Vec::new() }
    }

    /// Adds what modules have measured.
    pub(super) fn add_modules(&mut self, modules: &[Measured]) {
        for measured in modules.iter().filter(|measured| !measured.series.is_empty()) {
            let metric = self.measured(measured);
            let Definition { scope, scope_version, .. } = &measured.definition;
            let is_it = |found: &ScopeMetrics| {
                found.scope.as_ref().is_some_and(|found| (&found.name, &found.version) == (scope, scope_version))
            };
            match self.modules.iter_mut().find(|found| is_it(found)) {
                Some(found) => found.metrics.push(metric),
                None => self.modules.push(scope_metrics(scope, scope_version, vec![metric])),
            }
        }
    }

    /// Returns the request of a resource.
    pub(super) fn finish(self, resource: Vec<(String, String)>) -> ExportMetricsServiceRequest {
        let attributes = resource.into_iter().map(|(key, value)| pair(&key, &AttributeValue::Text(value))).collect();
        let mut scopes = vec![scope_metrics(SCOPE, tracer_ipc::VERSION, self.metrics)];
        scopes.extend(self.modules);
        let resource = Resource { attributes, ..Resource::default() };
        ExportMetricsServiceRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(resource),
                scope_metrics: scopes,
                schema_url: String::new(),
            }],
        }
    }

    fn measured(&self, measured: &Measured) -> proto::Metric {
        let definition = &measured.definition;
        let (start, now) = (self.times.place, self.times.now);
        let attributes = |series: &tracer_ipc::metrics::instruments::MeasuredSeries| {
            let (attributes, pid) = attributes_of(series);
            let pid = pid.map(|(key, pid)| pair(key, &AttributeValue::Int(pid.into())));
            attributes.iter().map(|(key, value)| pair(key, value)).chain(pid).collect::<Vec<_>>()
        };
        let data = if definition.kind == InstrumentKind::Histogram {
            let point = |series: &tracer_ipc::metrics::instruments::MeasuredSeries| HistogramDataPoint {
                attributes: attributes(series),
                start_time_unix_nano: start,
                time_unix_nano: now,
                count: series.buckets.iter().sum(),
                sum: Some(f64::from_bits(series.bits)),
                bucket_counts: series.buckets.clone(),
                explicit_bounds: definition.boundaries.clone(),
                exemplars: exemplars(&series.exemplars),
                ..HistogramDataPoint::default()
            };
            histogram(measured.series.iter().map(point).collect())
        } else {
            let value = |bits: u64| match definition.number {
                NumberType::F64 => number_data_point::Value::AsDouble(f64::from_bits(bits)),
                // One above the largest of these is rare, and the form has no other integers.
                NumberType::U64 => number_data_point::Value::AsInt(i64::try_from(bits).unwrap_or(i64::MAX)),
                NumberType::I64 => number_data_point::Value::AsInt(bits.cast_signed()),
            };
            let point = |series: &tracer_ipc::metrics::instruments::MeasuredSeries| NumberDataPoint {
                attributes: attributes(series),
                start_time_unix_nano: if definition.kind.is_gauge() { 0 } else { start },
                time_unix_nano: now,
                exemplars: exemplars(&series.exemplars),
                value: Some(value(series.bits)),
                ..NumberDataPoint::default()
            };
            let points = measured.series.iter().map(point).collect();
            if definition.kind.is_gauge() {
                metric::Data::Gauge(Gauge { data_points: points })
            } else {
                sum(points, definition.kind.is_monotonic())
            }
        };
        proto::Metric {
            name: definition.name.clone(),
            description: definition.description.clone(),
            unit: definition.unit.clone(),
            data: Some(data),
            ..proto::Metric::default()
        }
    }

    /// Returns the metric that was begun last.
    fn last(&mut self) -> Option<&mut metric::Data> {
        self.metrics.last_mut()?.data.as_mut()
    }
}

impl Sink for Request {
    fn head(&mut self, metric: &Metric) {
        let data = match metric.kind {
            MetricKind::Counter => sum(Vec::new(), true),
            MetricKind::Gauge => metric::Data::Gauge(Gauge::default()),
            MetricKind::Histogram => histogram(Vec::new()),
        };
        self.metrics.push(proto::Metric {
            name: metric.name.to_owned(),
            description: metric.help.to_owned(),
            unit: metric.unit.to_owned(),
            data: Some(data),
            ..proto::Metric::default()
        });
    }

    fn value(&mut self, metric: &Metric, attributes: &[(&str, &str)], value: f64) {
        let is_counter = metric.kind == MetricKind::Counter;
        let point = NumberDataPoint {
            attributes: texts(attributes.iter().copied()),
            start_time_unix_nano: if is_counter { self.times.head } else { 0 },
            time_unix_nano: self.times.now,
            value: Some(number_data_point::Value::AsDouble(value)),
            ..NumberDataPoint::default()
        };
        match self.last() {
            Some(metric::Data::Gauge(gauge)) => gauge.data_points.push(point),
            Some(metric::Data::Sum(sum)) => sum.data_points.push(point),
            _ => {}
        }
    }

    fn series(&mut self, _: &Metric, series: &Series) {
        let (start_time_unix_nano, time_unix_nano) = (self.times.place, self.times.now);
        let attributes = texts(series.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        match self.last() {
            Some(metric::Data::Sum(sum)) => sum.data_points.push(NumberDataPoint {
                attributes,
                start_time_unix_nano,
                time_unix_nano,
                value: Some(number_data_point::Value::AsInt(i64::try_from(series.count).unwrap_or(i64::MAX))),
                ..NumberDataPoint::default()
            }),
            Some(metric::Data::Histogram(histogram)) => histogram.data_points.push(HistogramDataPoint {
                attributes,
                start_time_unix_nano,
                time_unix_nano,
                count: series.buckets.iter().sum(),
                sum: Some(series.sum),
                bucket_counts: series.buckets.to_vec(),
                explicit_bounds: BOUNDARIES.to_vec(),
                exemplars: exemplars(&series.exemplars),
                ..HistogramDataPoint::default()
            }),
            _ => {}
        }
    }
}

fn scope_metrics(name: &str, version: &str, metrics: Vec<proto::Metric>) -> ScopeMetrics {
    let scope =
        InstrumentationScope { name: name.to_owned(), version: version.to_owned(), ..InstrumentationScope::default() };
    ScopeMetrics { scope: Some(scope), metrics, schema_url: String::new() }
}

fn sum(data_points: Vec<NumberDataPoint>, is_monotonic: bool) -> metric::Data {
    metric::Data::Sum(Sum {
        data_points,
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
        is_monotonic,
    })
}

fn histogram(data_points: Vec<HistogramDataPoint>) -> metric::Data {
    metric::Data::Histogram(Histogram {
        data_points,
        aggregation_temporality: AggregationTemporality::Cumulative.into(),
    })
}

fn texts<'a>(attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<KeyValue> {
    attributes.map(|(key, value)| pair(key, &AttributeValue::Text(value.to_owned()))).collect()
}

fn pair(key: &str, value: &AttributeValue) -> KeyValue {
    let value = match value {
        AttributeValue::Text(text) => any_value::Value::StringValue(text.clone()),
        AttributeValue::Int(value) => any_value::Value::IntValue(*value),
        AttributeValue::Float(value) => any_value::Value::DoubleValue(*value),
        AttributeValue::Bool(value) => any_value::Value::BoolValue(*value),
    };
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

fn exemplars(exemplars: &[Option<Exemplar>]) -> Vec<proto::Exemplar> {
    let exemplar = |exemplar: &Exemplar| proto::Exemplar {
        time_unix_nano: exemplar.unix_nano,
        span_id: exemplar.span_id.to_vec(),
        trace_id: exemplar.trace_id.to_vec(),
        value: Some(proto::exemplar::Value::AsDouble(exemplar.value)),
        ..proto::Exemplar::default()
    };
    exemplars.iter().flatten().map(exemplar).collect()
}

/// Turns growing sums and distributions into what came since a request before, which has them since the beginning. Series in which nothing came
/// are left out, and sums that shrink stay as they are.
pub(super) fn since(before: &ExportMetricsServiceRequest, request: &mut ExportMetricsServiceRequest) {
    let mut numbers = HashMap::new();
    let mut distributions = HashMap::new();
    each_metric(before, |scope, metric| match &metric.data {
        Some(metric::Data::Sum(sum)) => {
            for point in &sum.data_points {
                numbers.insert(key(scope, metric, &point.attributes), point);
            }
        }
        Some(metric::Data::Histogram(histogram)) => {
            for point in &histogram.data_points {
                distributions.insert(key(scope, metric, &point.attributes), point);
            }
        }
        _ => {}
    });
    for scope in request.resource_metrics.iter_mut().flat_map(|resource| &mut resource.scope_metrics) {
        let name = scope.scope.clone().unwrap_or_default();
        for metric in &mut scope.metrics {
            let described = proto::Metric { data: None, ..metric.clone() };
            match &mut metric.data {
                Some(metric::Data::Sum(sum)) if sum.is_monotonic => {
                    sum.aggregation_temporality = AggregationTemporality::Delta.into();
                    sum.data_points.retain_mut(|point| {
                        numbers.get(&key(&name, &described, &point.attributes)).is_none_or(|old| less(point, old))
                    });
                }
                Some(metric::Data::Histogram(histogram)) => {
                    histogram.aggregation_temporality = AggregationTemporality::Delta.into();
                    histogram.data_points.retain_mut(|point| {
                        let old = distributions.get(&key(&name, &described, &point.attributes));
                        old.is_none_or(|old| less_in_buckets(point, old))
                    });
                }
                _ => {}
            }
        }
    }
}

fn each_metric<'a>(
    request: &'a ExportMetricsServiceRequest,
    mut each: impl FnMut(&'a InstrumentationScope, &'a proto::Metric),
) {
    for scope in request.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics) {
        if let Some(name) = &scope.scope {
            scope.metrics.iter().for_each(|metric| each(name, metric));
        }
    }
}

fn key(scope: &InstrumentationScope, metric: &proto::Metric, attributes: &[KeyValue]) -> String {
    format!("{}\0{}\0{}\0{}\0{attributes:?}", scope.name, scope.version, metric.name, metric.unit)
}

/// Takes the value before away from a sum. Returns whether anything is left.
fn less(point: &mut NumberDataPoint, old: &NumberDataPoint) -> bool {
    use number_data_point::Value::{AsDouble, AsInt};
    // One that began anew since is whole.
    let rest = match (point.value, old.value) {
        (Some(AsInt(now)), Some(AsInt(before))) if now >= before => AsInt(now - before),
        (Some(AsDouble(now)), Some(AsDouble(before))) if now >= before => AsDouble(now - before),
        _ => return true,
    };
    point.start_time_unix_nano = old.time_unix_nano;
    point.value = Some(rest);
    rest != AsInt(0) && rest != AsDouble(0.0)
}

/// Takes the values before away from a distribution. Returns whether any is left.
fn less_in_buckets(point: &mut HistogramDataPoint, old: &HistogramDataPoint) -> bool {
    let is_same = point.explicit_bounds == old.explicit_bounds;
    let pairs = || point.bucket_counts.iter().zip(&old.bucket_counts);
    if !is_same || pairs().any(|(now, before)| now < before) {
        return true;
    }
    point.bucket_counts = pairs().map(|(now, before)| now - before).collect();
    point.count = point.bucket_counts.iter().sum();
    point.sum = point.sum.zip(old.sum).map(|(now, before)| (now - before).max(0.0));
    point.start_time_unix_nano = old.time_unix_nano;
    point.exemplars.retain(|exemplar| exemplar.time_unix_nano >= old.time_unix_nano);
    point.count > 0
}

#[cfg(test)]
mod tests {
    use tracer_core::metric_names as names;
    use tracer_ipc::metrics::{SeriesFile, read};

    use super::*;

    fn request(file: &std::path::Path, now: u64) -> ExportMetricsServiceRequest {
        let mut request = Request::new(Times { place: 1, head: 2, now });
        for (position, metric) in names::KEPT.iter().enumerate() {
            request.head(metric);
            read(file)
                .unwrap()
                .iter()
                .filter(|series| series.metric == position)
                .for_each(|s| request.series(metric, s));
        }
        request.finish(vec![("service.name".into(), "tracer".into())])
    }

    fn points(request: &ExportMetricsServiceRequest, name: &str) -> Option<metric::Data> {
        let mut found = None;
        each_metric(request, |_, metric| {
            if metric.name == name {
                found = metric.data.clone();
            }
        });
        found
    }

    #[test]
    fn what_came_since_is_the_difference_and_what_did_not_change_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let mut file = SeriesFile::open(&path).unwrap();
        let (good, bad) =
            (file.series(names::TASKS_ENDED, &[("s", "good")]), file.series(names::TASKS_ENDED, &[("s", "bad")]));
        file.count(good, 5);
        file.count(bad, 7);
        let ran = file.series(names::TASK_DURATION, &[("f", "a")]);
        file.observe(ran, 0.5);
        let before = request(&path, 10);
        file.count(good, 3);
        file.observe(ran, 0.5);
        file.observe(ran, 2.0);
        let whole = request(&path, 20);
        let Some(metric::Data::Sum(sum)) = points(&whole, "tracer.task.ended") else { panic!("it is a sum") };
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsInt(8)));
        let mut delta = whole.clone();
        since(&before, &mut delta);
        let Some(metric::Data::Sum(sum)) = points(&delta, "tracer.task.ended") else { panic!("it is a sum") };
        assert_eq!(sum.aggregation_temporality, i32::from(AggregationTemporality::Delta));
        let [point] = sum.data_points.as_slice() else { panic!("one has changed: {sum:?}") };
        assert_eq!(point.value, Some(number_data_point::Value::AsInt(3)));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (10, 20));
        let Some(metric::Data::Histogram(ran)) = points(&delta, "tracer.task.duration") else { panic!("it is one") };
        assert_eq!((ran.data_points[0].count, ran.data_points[0].sum), (2, Some(2.5)));
        assert_eq!(ran.data_points[0].bucket_counts.iter().sum::<u64>(), 2);
        // Nothing came since the whole one.
        let mut nothing = whole.clone();
        since(&whole, &mut nothing);
        let Some(metric::Data::Sum(sum)) = points(&nothing, "tracer.task.ended") else { panic!("it is a sum") };
        assert_eq!(sum.data_points, []);
        // A sum that began anew is whole.
        since(&whole, &mut delta);
        let mut anew = before.clone();
        since(&whole, &mut anew);
        let Some(metric::Data::Sum(sum)) = points(&anew, "tracer.task.ended") else { panic!("it is a sum") };
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsInt(5)));
    }
}
