//! Metrics of modules, and of programs that send them by OTLP, in a scrape: names and labels as OpenTelemetry's specification maps them to Prometheus.
//!
//! A name that tracer has too is in the same family, told apart by the scope (`otel_scope_name`). A scraper takes a series once and drops the rest, so
//! series are told apart by the labels that it sees: sums of one instrument whose labels become the same are added up, and what would clash otherwise,
//! such as one name for a counter and a gauge, is left out and counted.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use tracer_core::metric_names::{Metric, MetricKind, SERIES_NOT_SHOWN};
use tracer_ipc::metrics::Exemplar;
use tracer_ipc::metrics::instruments::{Definition, InstrumentKind, Measured, MeasuredSeries};

use super::{Format, Sink, Writer, attributes_of, escaped, family, rename_taken};

/// Metrics of modules that are not written yet, and the names that are.
#[derive(Default)]
pub(super) struct Pending<'a> {
    families: Vec<Family<'a>>,
    taken: HashSet<String>,
    /// Series that clash with others.
    not_shown: u64,
}

/// Instruments whose samples have one name.
struct Family<'a> {
    name: String,
    unit: String,
    kind: MetricKind,
    help: &'a str,
    rows: Vec<Row<'a>>,
    /// Positions of rows, by their labels as a scraper tells them apart.
    known: HashMap<Labels, usize>,
}

/// Keys and values of labels.
type Labels = Vec<(String, String)>;

/// Series of an instrument whose labels are the same, as one.
struct Row<'a> {
    definition: &'a Definition,
    labels: Labels,
    value: f64,
    buckets: Cow<'a, [u64]>,
    exemplars: Cow<'a, [Option<Exemplar>]>,
}

impl<'a> Pending<'a> {
    pub(super) fn new(modules: impl IntoIterator<Item = &'a Measured>) -> Pending<'a> {
        let (mut families, mut not_shown): (Vec<Family<'a>>, _) = (Vec::new(), 0);
        for measured in modules.into_iter().filter(|measured| !measured.series.is_empty()) {
            let definition = &measured.definition;
            let kind = kind_of(definition.kind);
            let (name, unit) = name_of(definition, kind);
            let place = families.iter().position(|family| family.name == name).unwrap_or_else(|| {
                families.push(Family { name, unit, kind, help: "", rows: Vec::new(), known: HashMap::new() });
                families.len() - 1
            });
            let family = &mut families[place];
            // Of one name and two kinds, the first one is shown.
            if family.kind != kind {
                not_shown += measured.series.len() as u64;
                continue;
            }
            if family.help.is_empty() {
                family.help = &definition.description;
            }
            not_shown += measured.series.iter().filter(|series| !family.add(definition, series)).count() as u64;
        }
        families.sort_by(|one, other| one.name.cmp(&other.name));
        Pending { families, taken: HashSet::new(), not_shown }
    }
}

impl<'a> Family<'a> {
    /// Adds a series. Returns whether it is shown.
    fn add(&mut self, definition: &'a Definition, series: &'a MeasuredSeries) -> bool {
        let labels = labels_of(definition, series);
        // A label without a value is none.
        let mut key: Labels = labels.iter().filter(|(_, value)| !value.is_empty()).cloned().collect();
        key.sort();
        let value = definition.number.value(series.bits);
        let value = if self.kind == MetricKind::Histogram { f64::from_bits(series.bits) } else { value };
        match self.known.get(&key) {
            Some(place) => self.rows[*place].merge(definition, value, series),
            None => {
                self.known.insert(key, self.rows.len());
                let (buckets, exemplars) = (series.buckets.as_slice().into(), series.exemplars.as_slice().into());
                self.rows.push(Row { definition, labels, value, buckets, exemplars });
                true
            }
        }
    }
}

impl Row<'_> {
    /// Adds a series with the same labels, if it can be added up with this one. Returns whether it was.
    fn merge(&mut self, definition: &Definition, value: f64, series: &MeasuredSeries) -> bool {
        let own = self.definition;
        let is_one_instrument = (&own.name, &own.unit, kind_of(own.kind), &own.boundaries)
            == (&definition.name, &definition.unit, kind_of(definition.kind), &definition.boundaries);
        if !is_one_instrument || own.kind.is_gauge() || definition.kind.is_gauge() {
            return false;
        }
        self.value += value;
        for (count, more) in self.buckets.to_mut().iter_mut().zip(&series.buckets) {
            *count = count.saturating_add(*more);
        }
        for (exemplar, other) in self.exemplars.to_mut().iter_mut().zip(&series.exemplars) {
            *exemplar = exemplar.or(*other);
        }
        true
    }
}

fn kind_of(kind: InstrumentKind) -> MetricKind {
    match kind {
        InstrumentKind::Counter | InstrumentKind::ObservableCounter => MetricKind::Counter,
        InstrumentKind::Histogram => MetricKind::Histogram,
        _ => MetricKind::Gauge,
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
            self.rows(&joined);
        }
    }

    /// Writes all families that are modules' alone, and how many series are left out.
    pub(super) fn modules(&mut self) {
        let families = std::mem::take(&mut self.pending.families);
        let mut not_shown = self.pending.not_shown;
        let own_names = names_of(&family(&SERIES_NOT_SHOWN), SERIES_NOT_SHOWN.kind);
        self.pending.taken.extend(own_names);
        for own in families {
            let names = names_of(&own.name, own.kind);
            if names.iter().any(|name| self.pending.taken.contains(name)) {
                not_shown += own.rows.len() as u64;
                continue;
            }
            self.pending.taken.extend(names);
            self.head_of(&own.name, own.kind, &own.unit, &own.help.replace('\\', r"\\").replace('\n', r"\n"));
            self.rows(&own);
        }
        self.all(&SERIES_NOT_SHOWN, "", &[("", not_shown)]);
    }

    fn rows(&mut self, family: &Family<'_>) {
        family.rows.iter().for_each(|row| self.row(family, row));
    }

    fn row(&mut self, family: &Family<'_>, row: &Row<'_>) {
        let (name, value) = (&family.name, row.value);
        let labels: Vec<_> = row.labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
        if family.kind != MetricKind::Histogram {
            let suffix = if family.kind == MetricKind::Counter { "_total" } else { "" };
            let _ = write!(self.out, "{name}{suffix}{} {value}", in_braces(&labels));
            return self.end_sample(row.exemplars.first().filter(|_| family.kind == MetricKind::Counter));
        }
        let mut below = 0_u64;
        for (bucket, count) in row.buckets.iter().enumerate() {
            below = below.saturating_add(*count);
            let bound =
                row.definition.boundaries.get(bucket).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
            let mut labels = labels.clone();
            labels.push(format!("le=\"{bound}\""));
            let _ = write!(self.out, "{name}_bucket{} {below}", in_braces(&labels));
            self.end_sample(row.exemplars.get(bucket).filter(|_| *count > 0));
        }
        let labels = in_braces(&labels);
        let _ = writeln!(self.out, "{name}_sum{labels} {value}");
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
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// Returns the labels of a series: its attributes, of which those whose names become the same are one label, its process and the scope. An attribute
/// whose name is that of another label has `exported_` before it, as Prometheus does it.
fn labels_of(definition: &Definition, series: &MeasuredSeries) -> Labels {
    let mut labels: Labels = Vec::new();
    let (attributes, pid) = attributes_of(series);
    for (key, value) in &*attributes {
        let (key, value) = (sanitized(key).replace(':', "_"), value.text());
        let key = if key.is_empty() { "_".to_owned() } else { key };
        match labels.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => *values = format!("{values};{value}"),
            None => labels.push((key, value)),
        }
    }
    let is_own = |key: &str| key == "le" || key.starts_with("otel_scope_") || pid.is_some() && key == "process_pid";
    rename_taken(&mut labels, is_own);
    if let Some((_, pid)) = pid {
        labels.push(("process_pid".to_owned(), pid.to_string()));
    }
    for (key, value) in [("otel_scope_name", &definition.scope), ("otel_scope_version", &definition.scope_version)] {
        if !value.is_empty() {
            labels.push((key.to_owned(), value.clone()));
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use tracer_core::metric_names as names;
    use tracer_ipc::metrics::instruments::{AttributeValue, NumberType};

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
        writer.out.lines().filter(|line| !line.contains(NOT_SHOWN)).map(|line| format!("{line}\n")).collect()
    }

    const NOT_SHOWN: &str = "tracer_metrics_series_not_shown";

    /// Returns the samples of instruments, and how many series are not shown.
    fn samples(modules: &[Measured]) -> (Vec<String>, String) {
        let mut writer = Writer { format: Format::OpenMetrics, out: String::new(), pending: Pending::new(modules) };
        writer.modules();
        let lines = writer.out.lines().filter(|line| !line.starts_with('#')).map(str::to_owned);
        let (not_shown, samples): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with(NOT_SHOWN));
        let count = not_shown[0].rsplit(' ').next().unwrap_or_default().to_owned();
        (samples, count)
    }

    /// Returns an instrument with a series for each set of attributes and value.
    fn with_series(name: &str, unit: &str, kind: InstrumentKind, all: &[(&[(&str, &str)], u64)]) -> Measured {
        let mut measured = measured(name, unit, kind, 0);
        let empty = measured.series.remove(0);
        measured.definition.scope_version.clear();
        for (attributes, bits) in all {
            let text = |value: &str| AttributeValue::Text(value.to_owned());
            let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect();
            measured.series.push(MeasuredSeries { attributes, bits: *bits, pid: None, ..empty.clone() });
        }
        measured
    }

    #[test]
    fn sums_whose_labels_become_the_same_are_one_series() {
        let same: &[(&[(&str, &str)], u64)] = &[
            (&[("a.b", "v")], 1),
            (&[("a_b", "v")], 2),
            (&[("a-b", "v")], 4),
            (&[("a-b", "w")], 8),
            (&[("a-b", "w"), ("c", "")], 16),
        ];
        let (found, not_shown) = samples(&[with_series("n", "", InstrumentKind::Counter, same)]);
        let line = |value: &str, count: u64| format!("n_total{{a_b=\"{value}\",otel_scope_name=\"shop\"}} {count}");
        assert_eq!((found, not_shown.as_str()), (vec![line("v", 7), line("w", 24)], "0"));
        let sums: Vec<_> =
            [1.0_f64, 2.0, 4.0].iter().zip(same).map(|(sum, (attributes, _))| (*attributes, sum.to_bits())).collect();
        let (found, not_shown) = samples(&[with_series("h", "", InstrumentKind::Histogram, &sums)]);
        assert_eq!((found.len(), not_shown.as_str()), (5, "0"), "{found:?}");
        assert!(
            found[2].ends_with("le=\"+Inf\"} 9") && found[3].ends_with("} 7") && found[4].ends_with("} 9"),
            "{found:?}"
        );
    }

    #[test]
    fn what_cannot_be_told_apart_and_not_added_up_is_left_out_and_counted() {
        let same: &[(&[(&str, &str)], u64)] = &[(&[("a.b", "v")], 1), (&[("a_b", "v")], 2)];
        let (found, not_shown) = samples(&[with_series("g", "", InstrumentKind::Gauge, same)]);
        assert_eq!((found.len(), not_shown.as_str()), (1, "1"), "{found:?}");
        let one: &[(&[(&str, &str)], u64)] = &[(&[], 1)];
        let clashing = [
            [
                with_series("lat", "s", InstrumentKind::Counter, one),
                with_series("lat.seconds", "", InstrumentKind::Counter, one),
            ],
            [with_series("x", "", InstrumentKind::Counter, one), with_series("x", "", InstrumentKind::Gauge, one)],
            [
                with_series("x", "", InstrumentKind::UpDownCounter, one),
                with_series("x", "", InstrumentKind::Gauge, one),
            ],
            [
                with_series("x", "", InstrumentKind::Counter, one),
                with_series("x_total", "", InstrumentKind::Gauge, one),
            ],
            [with_series("x", "", InstrumentKind::Histogram, one), {
                let mut other = with_series("x", "", InstrumentKind::Histogram, one);
                other.definition.boundaries = vec![1.0, 20.0];
                other
            }],
        ];
        for pair in clashing {
            let (found, not_shown) = samples(&pair);
            let expected = if pair[0].definition.kind == InstrumentKind::Histogram { 5 } else { 1 };
            assert_eq!((found.len(), not_shown.as_str()), (expected, "1"), "{found:?}");
        }
    }

    #[test]
    fn attributes_with_the_name_of_another_label_are_kept_under_their_own() {
        let bounds: &[(&[(&str, &str)], u64)] = &[(&[("le", "1")], 1), (&[("le", "2")], 2)];
        for (kind, lines) in [(InstrumentKind::Gauge, 2), (InstrumentKind::Histogram, 10)] {
            let (found, not_shown) = samples(&[with_series("g", "", kind, bounds)]);
            assert_eq!((found.len(), not_shown.as_str()), (lines, "0"), "{found:?}");
            assert_eq!(
                found.iter().filter(|line| line.contains("{exported_le=\"1\",")).count(),
                lines / 2,
                "{found:?}"
            );
        }
        let pids: &[(&[(&str, &str)], u64)] =
            &[(&[("process.pid", "1")], 1), (&[("process.pid", "2")], 2), (&[("otel.scope.name", "s"), ("", "e")], 3)];
        let mut of_process = with_series("g", "", InstrumentKind::Gauge, pids);
        of_process.series.iter_mut().for_each(|series| series.pid = Some(7));
        let (found, not_shown) = samples(&[of_process]);
        assert_eq!(not_shown, "0");
        assert_eq!(
            found,
            [
                "g{exported_process_pid=\"1\",process_pid=\"7\",otel_scope_name=\"shop\"} 1",
                "g{exported_process_pid=\"2\",process_pid=\"7\",otel_scope_name=\"shop\"} 2",
                "g{exported_otel_scope_name=\"s\",_=\"e\",process_pid=\"7\",otel_scope_name=\"shop\"} 3",
            ]
        );
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
