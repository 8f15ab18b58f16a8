//! Metrics as JSON, for programs that draw them: `GET /api/v1/metrics`, and the page.

use serde::Serialize;
use serde_json::{Map, Value};
use tracer_core::hex::hex;
use tracer_core::metric_names::{Metric, MetricKind};
use tracer_ipc::metrics::instruments::{InstrumentKind, Measured};
use tracer_ipc::metrics::{BOUNDARIES, Exemplar, Series};
use tracer_trace::json::time_text;

use super::{Collected, Sink, attributes_of};

/// Series that are reported of one metric; further ones are counted.
const SERIES: usize = 200;

/// All metrics at one time.
#[derive(Debug, Serialize)]
pub(crate) struct MetricsReport {
    metrics: Vec<MetricReport>,
}

#[derive(Debug, Serialize)]
struct MetricReport {
    name: String,
    unit: String,
    kind: &'static str,
    description: String,
    /// The instrumentation scope; none for tracer's own.
    scope: Option<String>,
    series: Vec<SeriesReport>,
    left_out: usize,
}

#[derive(Debug, Serialize)]
struct SeriesReport {
    attributes: Map<String, Value>,
    /// Of a counter or a gauge.
    value: Option<f64>,
    /// Of a histogram.
    count: Option<u64>,
    sum: Option<f64>,
    buckets: Option<Vec<BucketReport>>,
    exemplar: Option<ExemplarReport>,
}

#[derive(Debug, Serialize)]
struct BucketReport {
    /// Upper boundary; none for the last.
    le: Option<f64>,
    /// Values in this bucket alone.
    count: u64,
    exemplar: Option<ExemplarReport>,
}

#[derive(Debug, Serialize)]
struct ExemplarReport {
    trace_id: String,
    span_id: String,
    value: f64,
    time: String,
}

impl ExemplarReport {
    fn of(exemplar: &Exemplar) -> ExemplarReport {
        ExemplarReport {
            trace_id: hex(&exemplar.trace_id),
            span_id: hex(&exemplar.span_id),
            value: exemplar.value,
            time: time_text(exemplar.unix_nano),
        }
    }
}

impl MetricsReport {
    pub(in crate::http_api) fn of(collected: &Collected) -> MetricsReport {
        let Collected { kept, modules, received, status, services, processes, .. } = collected;
        let mut report = MetricsReport { metrics: Vec::new() };
        report.own(kept, (status, services), processes);
        modules.iter().chain(received).for_each(|measured| report.measured(measured));
        report.metrics.retain(|metric| !metric.series.is_empty());
        report
    }

    fn push(&mut self, series: impl FnOnce() -> SeriesReport) {
        let Some(metric) = self.metrics.last_mut() else { return };
        if metric.series.len() < SERIES {
            metric.series.push(series());
        } else {
            metric.left_out += 1;
        }
    }

    fn measured(&mut self, measured: &Measured) {
        let definition = &measured.definition;
        self.metrics.push(MetricReport {
            name: definition.name.clone(),
            unit: definition.unit.clone(),
            kind: match definition.kind {
                InstrumentKind::Counter | InstrumentKind::ObservableCounter => "counter",
                InstrumentKind::Histogram => "histogram",
                _ => "gauge",
            },
            description: definition.description.clone(),
            scope: Some(definition.scope.clone()),
            series: Vec::new(),
            left_out: 0,
        });
        for series in &measured.series {
            self.push(|| {
                let (attributes, pid) = attributes_of(series);
                let mut attributes: Map<String, Value> =
                    attributes.iter().map(|(key, value)| (key.clone(), value.text().into())).collect();
                attributes.extend(pid.map(|(key, pid)| (key.to_owned(), pid.into())));
                if definition.kind == InstrumentKind::Histogram {
                    let sum = f64::from_bits(series.bits);
                    return histogram(attributes, sum, &definition.boundaries, &series.buckets, &series.exemplars);
                }
                let exemplar = series.exemplars.first().and_then(Option::as_ref).map(ExemplarReport::of);
                SeriesReport { exemplar, ..single(attributes, definition.number.value(series.bits)) }
            });
        }
    }
}

fn single(attributes: Map<String, Value>, value: f64) -> SeriesReport {
    SeriesReport { attributes, value: Some(value), count: None, sum: None, buckets: None, exemplar: None }
}

fn histogram(
    attributes: Map<String, Value>,
    sum: f64,
    boundaries: &[f64],
    counts: &[u64],
    exemplars: &[Option<Exemplar>],
) -> SeriesReport {
    let bucket = |(at, &count): (usize, &u64)| BucketReport {
        le: boundaries.get(at).copied(),
        count,
        exemplar: exemplars.get(at).and_then(Option::as_ref).filter(|_| count > 0).map(ExemplarReport::of),
    };
    SeriesReport {
        attributes,
        value: None,
        count: Some(counts.iter().fold(0, |sum, count| sum.saturating_add(*count))),
        sum: Some(sum),
        buckets: Some(counts.iter().enumerate().map(bucket).collect()),
        exemplar: None,
    }
}

impl Sink for MetricsReport {
    fn head(&mut self, metric: &Metric) {
        self.metrics.push(MetricReport {
            name: metric.name.to_owned(),
            unit: metric.unit.to_owned(),
            kind: match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            },
            description: metric.help.to_owned(),
            scope: None,
            series: Vec::new(),
            left_out: 0,
        });
    }

    fn value(&mut self, _metric: &Metric, attributes: &[(&str, &str)], value: f64) {
        let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        self.push(|| single(attributes, value));
    }

    fn series(&mut self, metric: &Metric, series: &Series) {
        self.push(|| {
            let attributes =
                series.attributes.iter().map(|(key, value)| (key.clone(), value.as_str().into())).collect();
            match metric.kind {
                MetricKind::Histogram => {
                    histogram(attributes, series.sum, &BOUNDARIES, &series.buckets, &series.exemplars)
                }
                _ => single(attributes, series.count as f64),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tracer_core::metric_names::{KEPT, TASK_DURATION, TASKS_ENDED};
    use tracer_ipc::metrics::{SeriesFile, read};

    use super::*;

    #[test]
    fn series_have_their_attributes_values_and_exemplars() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics");
        let mut file = SeriesFile::open(&path).unwrap();
        let ended = file.series(TASKS_ENDED, &[("tracer.state", "succeeded")]);
        file.count(ended, 3);
        let ran = file.series(TASK_DURATION, &[("tracer.function", "m.f")]);
        let bucket = file.observe(ran, 0.75);
        let exemplar = Exemplar { value: 0.75, unix_nano: 1, trace_id: [0xAB; 16], span_id: [1; 8] };
        file.set_exemplar(ran, bucket, &exemplar);
        let mut report = MetricsReport { metrics: Vec::new() };
        for position in [TASKS_ENDED, TASK_DURATION] {
            report.head(&KEPT[position]);
            let all = read(&path).unwrap();
            all.iter().filter(|series| series.metric == position).for_each(|one| report.series(&KEPT[position], one));
        }
        let value = serde_json::to_value(&report).unwrap();
        let [ended, ran] = [&value["metrics"][0], &value["metrics"][1]];
        assert_eq!((&ended["name"], &ended["kind"]), (&json!("tracer.task.ended"), &json!("counter")));
        assert_eq!(ended["series"][0]["attributes"], json!({"tracer.state": "succeeded"}));
        assert_eq!((&ended["series"][0]["value"], &ended["series"][0]["buckets"]), (&json!(3.0), &Value::Null));
        assert_eq!((&ran["series"][0]["count"], &ran["series"][0]["sum"]), (&json!(1), &json!(0.75)));
        let filled = &ran["series"][0]["buckets"][bucket];
        assert_eq!((&filled["le"], &filled["count"]), (&json!(1.0), &json!(1)));
        assert_eq!(
            filled["exemplar"],
            json!({"trace_id": "ab".repeat(16), "span_id": "01".repeat(8), "value": 0.75, "time": "1970-01-01T00:00:00.000000001Z"})
        );
        let last = ran["series"][0]["buckets"].as_array().unwrap().last().unwrap();
        assert_eq!(last["le"], Value::Null);
    }
}
