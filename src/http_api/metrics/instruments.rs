//! Metrics of modules, and of programs that send them by OTLP, in a scrape: names and labels as OpenTelemetry's specification maps them to Prometheus.
//!
//! A name that tracer has too is in the same family, told apart by the scope (`otel_scope_name`). What would clash, such as one name for a counter
//! and a gauge, is left out, because a scraper drops everything else with it.

use std::collections::HashSet;
use std::fmt::Write;

use tracer_core::metric_names::{Metric, MetricKind};
use tracer_ipc::metrics::Exemplar;
use tracer_ipc::metrics::instruments::{Definition, InstrumentKind, Measured, MeasuredSeries};

use super::{Format, Writer, escaped, family};

/// Metrics of modules that are not written yet, and the names that are.
#[derive(Default)]
pub(super) struct Pending<'a> {
    families: Vec<Family<'a>>,
    taken: HashSet<String>,
}

/// Instruments whose samples have one name.
struct Family<'a> {
    name: String,
    unit: String,
    kind: MetricKind,
    members: Vec<&'a Measured>,
}

impl<'a> Pending<'a> {
    pub(super) fn new(modules: impl IntoIterator<Item = &'a Measured>) -> Pending<'a> {
        let mut families: Vec<Family<'a>> = Vec::new();
        for measured in modules.into_iter().filter(|measured| !measured.series.is_empty()) {
            let definition = &measured.definition;
            let kind = match definition.kind {
                InstrumentKind::Counter | InstrumentKind::ObservableCounter => MetricKind::Counter,
                InstrumentKind::Histogram => MetricKind::Histogram,
                _ => MetricKind::Gauge,
            };
            let (name, unit) = name_of(definition, kind);
            match families.iter_mut().find(|family| family.name == name) {
                // Of one name and two kinds, the first one is shown.
                Some(family) if family.kind == kind => family.members.push(measured),
                Some(_) => {}
                None => families.push(Family { name, unit, kind, members: vec![measured] }),
            }
        }
        families.sort_by(|one, other| one.name.cmp(&other.name));
        Pending { families, taken: HashSet::new() }
    }
}

/// Returns the names of a family and of its samples.
fn names_of(name: &str, kind: MetricKind) -> Vec<String> {
    let suffixes: &[&str] = match kind {
        MetricKind::Counter => &["", "_total", "_created"],
        MetricKind::Histogram => &["", "_bucket", "_count", "_sum", "_created"],
        MetricKind::Gauge => &[""],
    };
    suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect()
}

/// Returns a text in which all characters that a name cannot have are `_`.
fn sanitized(text: &str) -> String {
    let mut name: String =
        text.chars().map(|char| if char.is_ascii_alphanumeric() || char == ':' { char } else { '_' }).collect();
    while name.contains("__") {
        name = name.replace("__", "_");
    }
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        name.insert(0, '_');
    }
    name
}

/// Returns the name of an instrument's family, and the unit in it.
fn name_of(definition: &Definition, kind: MetricKind) -> (String, String) {
    let mut name = sanitized(&definition.name);
    if kind == MetricKind::Counter {
        name = name.strip_suffix("_total").unwrap_or(&name).to_owned();
    }
    let unit = unit_of(&definition.unit, kind);
    let suffix = format!("_{unit}");
    if !unit.is_empty() && !name.ends_with(&suffix) {
        name.push_str(&suffix);
    }
    (name, unit)
}

/// Returns the words of a unit by UCUM; none for what is only counted.
fn unit_of(unit: &str, kind: MetricKind) -> String {
    let (unit, per) = unit.split_once('/').unwrap_or((unit, ""));
    let word = match unit {
        "1" if kind == MetricKind::Gauge && per.is_empty() => "ratio",
        "1" => "",
        "d" => "days",
        "h" => "hours",
        "min" => "minutes",
        "s" => "seconds",
        "ms" => "milliseconds",
        "us" => "microseconds",
        "ns" => "nanoseconds",
        "By" => "bytes",
        "KiBy" => "kibibytes",
        "MiBy" => "mebibytes",
        "GiBy" => "gibibytes",
        "TiBy" => "tibibytes",
        "KBy" => "kilobytes",
        "MBy" => "megabytes",
        "GBy" => "gigabytes",
        "TBy" => "terabytes",
        "m" => "meters",
        "V" => "volts",
        "A" => "amperes",
        "J" => "joules",
        "W" => "watts",
        "g" => "grams",
        "Cel" => "celsius",
        "Hz" => "hertz",
        "%" => "percent",
        unit if unit.contains('{') => "",
        unit => unit,
    };
    let per = match per {
        "" => "",
        "s" => "per_second",
        "m" => "per_minute",
        "h" => "per_hour",
        "d" => "per_day",
        "w" => "per_week",
        "mo" => "per_month",
        "y" => "per_year",
        _ => "",
    };
    let words = [word, per].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
    sanitized(&words).trim_matches('_').to_owned()
}

impl Writer<'_> {
    /// Notes that a family of tracer's has begun, and writes what modules have of it.
    pub(super) fn join(&mut self, metric: &Metric) {
        let name = family(metric);
        self.pending.taken.extend(names_of(&name, metric.kind));
        let is_it = |found: &Family<'_>| found.name == name && found.kind == metric.kind;
        if let Some(place) = self.pending.families.iter().position(is_it) {
            let joined = self.pending.families.remove(place);
            self.members(&joined);
        }
    }

    /// Writes all families that are modules' alone.
    pub(super) fn modules(&mut self) {
        for own in std::mem::take(&mut self.pending.families) {
            let names = names_of(&own.name, own.kind);
            if names.iter().any(|name| self.pending.taken.contains(name)) {
                continue;
            }
            self.pending.taken.extend(names);
            let description = own.members.iter().map(|measured| &measured.definition.description);
            let help = description.into_iter().find(|text| !text.is_empty()).cloned().unwrap_or_default();
            self.head_of(&own.name, own.kind, &own.unit, &help.replace('\\', r"\\").replace('\n', r"\n"));
            self.members(&own);
        }
    }

    fn members(&mut self, family: &Family<'_>) {
        for measured in &family.members {
            for series in &measured.series {
                self.measured(family, &measured.definition, series);
            }
        }
    }

    fn measured(&mut self, family: &Family<'_>, definition: &Definition, series: &MeasuredSeries) {
        let (name, labels) = (&family.name, labels_of(definition, series));
        if definition.kind != InstrumentKind::Histogram {
            let suffix = if family.kind == MetricKind::Counter { "_total" } else { "" };
            let _ = write!(self.out, "{name}{suffix}{} {}", in_braces(&labels), definition.number.value(series.bits));
            return self.end_sample(series.exemplars.first().filter(|_| family.kind == MetricKind::Counter));
        }
        let mut below = 0_u64;
        for (bucket, count) in series.buckets.iter().enumerate() {
            below = below.saturating_add(*count);
            let bound =
                definition.boundaries.get(bucket).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            let mut labels = labels.clone();
            labels.push(format!("le=\"{bound}\""));
            let _ = write!(self.out, "{name}_bucket{} {below}", in_braces(&labels));
            self.end_sample(series.exemplars.get(bucket).filter(|_| *count > 0));
        }
        let labels = in_braces(&labels);
        let _ = writeln!(self.out, "{name}_sum{labels} {}", f64::from_bits(series.bits));
        let _ = writeln!(self.out, "{name}_count{labels} {below}");
    }

    /// Writes the end of a sample: its exemplar, if it has one and the format does.
    fn end_sample(&mut self, exemplar: Option<&Option<Exemplar>>) {
        if let Some(Some(exemplar)) = exemplar
            && self.format == Format::OpenMetrics
        {
            self.exemplar(exemplar);
        }
        self.out.push('\n');
    }
}

fn in_braces(labels: &[String]) -> String {
    format!("{{{}}}", labels.join(","))
}

/// Returns the labels of a series: its attributes, of which those whose names become the same are one label, its process and the scope.
fn labels_of(definition: &Definition, series: &MeasuredSeries) -> Vec<String> {
    let mut labels: Vec<(String, String)> = Vec::new();
    for (key, value) in &series.attributes {
        let (key, value) = (sanitized(key).replace(':', "_"), value.text());
        match labels.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => *values = format!("{values};{value}"),
            None => labels.push((key, value)),
        }
    }
    let is_own = |key: &str| key == "le" || key.is_empty() || key.starts_with("otel_scope_") || key == "process_pid";
    labels.retain(|(key, _)| !is_own(key));
    if let Some(pid) = series.pid {
        labels.push(("process_pid".to_owned(), pid.to_string()));
    }
    labels.push(("otel_scope_name".to_owned(), definition.scope.clone()));
    if !definition.scope_version.is_empty() {
        labels.push(("otel_scope_version".to_owned(), definition.scope_version.clone()));
    }
    labels.into_iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(&value))).collect()
}

#[cfg(test)]
mod tests {
    use tracer_core::metric_names as names;
    use tracer_ipc::metrics::instruments::{AttributeValue, NumberType};

    use super::super::Sink;
    use super::*;

    fn measured(name: &str, unit: &str, kind: InstrumentKind, bits: u64) -> Measured {
        let is_histogram = kind == InstrumentKind::Histogram;
        let series = MeasuredSeries {
            attributes: vec![("shop.region".into(), AttributeValue::Text("eu\"1".into()))],
            pid: kind.is_gauge().then_some(7),
            bits,
            buckets: if is_histogram { vec![1, 0, 2] } else { Vec::new() },
            exemplars: vec![None; if is_histogram { 3 } else { 1 }],
        };
        let [name, unit, description] = [name, unit, "What\nit is."].map(str::to_owned);
        let boundaries = if is_histogram { vec![1.0, 10.0] } else { Vec::new() };
        let (scope, scope_version) = ("shop".to_owned(), "1.0".to_owned());
        let number = NumberType::U64;
        let definition = Definition { name, unit, description, scope, scope_version, kind, number, boundaries };
        Measured { definition, series: vec![series] }
    }

    fn written(format: Format, modules: &[Measured], before: Option<&Metric>) -> String {
        let mut writer = Writer { format, out: String::new(), pending: Pending::new(modules) };
        before.into_iter().for_each(|metric| writer.head(metric));
        writer.modules();
        writer.out
    }

    #[test]
    fn instruments_have_the_names_that_the_specification_gives_them() {
        let cases = [
            ("shop.orders", "{order}", InstrumentKind::Counter, "shop_orders_total"),
            ("shop.orders_total", "", InstrumentKind::Counter, "shop_orders_total"),
            ("shop.wait", "ms", InstrumentKind::ObservableCounter, "shop_wait_milliseconds_total"),
            ("cache.fill", "1", InstrumentKind::Gauge, "cache_fill_ratio"),
            ("io.rate", "By/s", InstrumentKind::ObservableGauge, "io_rate_bytes_per_second"),
            ("2-fast", "", InstrumentKind::UpDownCounter, "_2_fast"),
            ("x.seconds", "s", InstrumentKind::Gauge, "x_seconds"),
        ];
        for (name, unit, kind, expected) in cases {
            let text = written(Format::OpenMetrics, &[measured(name, unit, kind, 5)], None);
            let sample = text.lines().last().unwrap_or_default();
            let pid = if kind.is_gauge() { ",process_pid=\"7\"" } else { "" };
            let labels = format!("shop_region=\"eu\\\"1\"{pid},otel_scope_name=\"shop\",otel_scope_version=\"1.0\"");
            assert_eq!(sample, format!("{expected}{{{labels}}} 5"));
            assert!(
                text.starts_with(&format!("# HELP {} What\\nit is.\n", expected.trim_end_matches("_total"))),
                "{text}"
            );
        }
    }

    #[test]
    fn a_histogram_has_its_own_boundaries() {
        let sum = 24.5_f64.to_bits();
        let text = written(Format::Text, &[measured("h", "s", InstrumentKind::Histogram, sum)], None);
        let values: Vec<_> = text.lines().skip(2).map(|line| line.rsplit(' ').next().unwrap()).collect();
        assert_eq!(values, ["1", "1", "3", "24.5", "3"], "{text}");
        assert!(text.contains("h_seconds_bucket{shop_region=\"eu\\\"1\",otel_scope_name=\"shop\",otel_scope_version=\"1.0\",le=\"10.0\"} 1"));
    }

    #[test]
    fn a_name_of_tracers_is_one_family_and_what_clashes_is_left_out() {
        let http = &names::KEPT[names::HTTP_DURATION];
        let own = measured(http.name, http.unit, InstrumentKind::Histogram, 0);
        let text = written(Format::OpenMetrics, std::slice::from_ref(&own), Some(http));
        assert_eq!(text.matches("# TYPE").count(), 1);
        assert!(text.contains("http_server_request_duration_seconds_count{"), "{text}");
        let other_kind = measured(http.name, http.unit, InstrumentKind::Gauge, 0);
        let text = written(Format::OpenMetrics, &[other_kind], Some(http));
        assert!(!text.contains("shop"), "{text}");
        let pair = [
            measured("x", "", InstrumentKind::Counter, 1),
            measured("x", "", InstrumentKind::Gauge, 2),
            measured("x_total", "", InstrumentKind::Gauge, 3),
        ];
        let text = written(Format::OpenMetrics, &pair, None);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples.len(), 1, "{text}");
    }
}
