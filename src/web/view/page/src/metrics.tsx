/** Metrics: a small chart for each, and from a value the trace that it was measured in. */
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useFetched } from "./fetched";
import { bytes, count, elapsed, figure, labels, shown } from "./format";
import { useKeys } from "./keys";
import { KEPT, type Report, history, take } from "./measured";
import { ProblemText } from "./problem";
import { type Exemplar, type Metric, type Series, SECTIONS, filled, isZero, keyOf, quantile, sectionOf } from "./series";
import { Spark } from "./spark";
import { Asking, leaveOnEscape } from "./tasks";
import { address, place, refine } from "./url";

const INTERVAL_MS = 2000;
/** Series of a metric that are shown. */
const MOST = 6;

export function Metrics() {
  const text = place.value.parameters.get("text") ?? "";
  const { value, problem, at } = useFetched<Report>("metrics", { every: INTERVAL_MS });
  const finder = useRef<HTMLInputElement>(null);
  const report = value.value;
  useEffect(() => {
    if (report) take(report, at.value);
  }, [report]);
  useKeys([{ keys: ["/"], meaning: "find in names", action: () => finder.current!.focus() }]);
  const wanted = text.trim().toLowerCase();
  const metrics = report?.metrics.filter((metric) => metric.name.toLowerCase().includes(wanted) || JSON.stringify(metric.series.map((series) => series.attributes)).toLowerCase().includes(wanted)) ?? [];
  const lacks = problem.value && [404, 503].includes(problem.value.status);
  return (
    <section class="metrics">
      <h1 class="unseen">Metrics</h1>
      <div class="tools">
        <input ref={finder} type="search" aria-label="Find in names and attributes" placeholder="Find in names and attributes ( / )" spellcheck={false} value={text} onInput={(event) => refine({ text: event.currentTarget.value })} onKeyDown={leaveOnEscape} />
        {report && <span class="quiet">{count(metrics.length, "metric")}; values over time begin when this view is opened</span>}
      </div>
      {lacks ? (
        <p class="empty">
          Metrics are collected by the HTTP API of a head, and this page comes from elsewhere. <code>tracer start --head --http 127.0.0.1:8265</code> starts a head with one; then <code>tracer view</code> opens the page there.
        </p>
      ) : (
        <ProblemText problem={problem.value} />
      )}
      {report && metrics.length === 0 && <p class="empty">{wanted ? "No metric is found." : "Nothing was measured yet."}</p>}
      {!report && !problem.value && <Asking />}
      {SECTIONS.map((section) => (
        <Section key={section} title={section} metrics={metrics.filter((metric) => sectionOf(metric) === section)} />
      ))}
    </section>
  );
}

/** A value in the unit of its metric. */
function withUnit(value: number, unit: string): string {
  if (!Number.isFinite(value)) return "more";
  if (unit === "s") return elapsed(value * 1e9);
  if (unit === "By") return bytes(value);
  return `${figure(value)}${unit && !unit.startsWith("{") && unit !== "1" ? ` ${unit}` : ""}`;
}

/** Metrics of one kind of things: those that say something as cards, the names of the others in a line. */
function Section({ title, metrics }: { title: string; metrics: Metric[] }) {
  const zero = metrics.filter((metric) => metric.series.every((series) => isZero(metric, series)));
  const others = metrics.filter((metric) => !zero.includes(metric));
  const showsAll = useSignal(false);
  if (metrics.length === 0) return null;
  return (
    <section class="of-metrics" aria-label={title}>
      <h2>{title}</h2>
      <div class="cards">
        {(showsAll.value ? metrics : others).map((metric) => (
          <Card key={`${metric.scope} ${metric.name}`} metric={metric} />
        ))}
      </div>
      {zero.length > 0 && (
        <button class="link" aria-expanded={showsAll.value} onClick={() => (showsAll.value = !showsAll.value)}>
          {showsAll.value ? "Fold what is zero" : `Zero: ${zero.map((metric) => shown(metric.name)).join(", ")}`}
        </button>
      )}
    </section>
  );
}

function Card({ metric }: { metric: Metric }) {
  // Of a metric that is not zero, the series that are go without a line.
  const told = metric.series.filter((series) => !isZero(metric, series));
  const weight = (series: Series) => Math.abs(series.count ?? series.value ?? 0);
  const all = (told.length > 0 ? told : [...metric.series]).sort((one, other) => weight(other) - weight(one));
  const series = all.slice(0, MOST);
  const more = all.length - series.length + metric.left_out;
  return (
    <article class="card">
      <h2>{shown(metric.name)}</h2>
      <p class="quiet">{shown(metric.description)}</p>
      {series.map((each) => (
        <SeriesView key={keyOf(metric, each)} metric={metric} series={each} />
      ))}
      {more > 0 && <p class="quiet">and {count(more, "further series", "further series")}</p>}
      {all.length < metric.series.length && <p class="quiet" title={metric.series.filter((series) => !all.includes(series)).map((series) => labels(series.attributes)).join("\n")}>{count(metric.series.length - all.length, "other")} zero</p>}
    </article>
  );
}

function SeriesView({ metric, series }: { metric: Metric; series: Series }) {
  const values = history.value.get(keyOf(metric, series)) ?? [];
  const name = labels(series.attributes);
  const whole = Object.entries(series.attributes).map(([key, value]) => `${shown(key)}=${shown(String(value))}`);
  const { buckets } = series;
  const rate = values.at(-1);
  return (
    <div class="series">
      <div>
        <span class="of" title={whole.join("\n")}>
          {name || "all"}
        </span>
        <strong>
          {metric.kind === "histogram" && buckets ? <Quantiles buckets={buckets} unit={metric.unit} /> : withUnit(series.value ?? 0, metric.unit)}
          {metric.kind !== "gauge" && rate !== undefined && rate > 0 && <i> {figure(rate)} /s</i>}
        </strong>
        {series.exemplar && <Example exemplar={series.exemplar} unit={metric.unit} />}
      </div>
      {metric.kind === "histogram" && buckets ? <Buckets series={series} unit={metric.unit} /> : <Spark values={values} most={KEPT} label={`${shown(metric.name)} ${name}`} />}
    </div>
  );
}

function Quantiles({ buckets, unit }: { buckets: NonNullable<Series["buckets"]>; unit: string }) {
  const of = (share: number) => quantile(buckets, share);
  const [half, most] = [of(0.5), of(0.99)];
  if (half !== undefined && half === most) return `all ≤ ${withUnit(half, unit)}`;
  return half === undefined ? "none" : `p50 ≤ ${withUnit(half, unit)}, p99 ≤ ${withUnit(most!, unit)}`;
}

function Example({ exemplar, unit }: { exemplar: Exemplar; unit: string }) {
  return (
    <a href={address(["trace", exemplar.trace_id], { span: exemplar.span_id })} title={exemplar.time}>
      {exemplar.value === null ? "example" : withUnit(exemplar.value, unit)}
    </a>
  );
}

/** The buckets of a histogram; one with an exemplar leads to its trace. */
function Buckets({ series, unit }: { series: Series; unit: string }) {
  const buckets = filled(series.buckets!);
  const most = Math.max(1, ...buckets.map((bucket) => bucket.count));
  return (
    <div class="buckets" role="group" aria-label={`${count(series.count ?? 0, "value")} in ${count(buckets.length, "bucket")}`}>
      {buckets.map((bucket) => {
        const { exemplar } = bucket;
        const text = `${count(bucket.count, "value")} up to ${bucket.le === null ? "any" : withUnit(bucket.le, unit)}`;
        const bar = <span style={{ height: `${bucket.count > 0 ? Math.max((100 * bucket.count) / most, 6) : 0}%` }} />;
        return exemplar ? (
          <a key={bucket.le} class="bucket" href={address(["trace", exemplar.trace_id], { span: exemplar.span_id })} title={`${text}; opens the trace of ${exemplar.value === null ? "one" : withUnit(exemplar.value, unit)}`} aria-label={`${text}, with a trace`}>
            {bar}
          </a>
        ) : (
          <span key={bucket.le} class="bucket" title={text}>
            {bar}
          </span>
        );
      })}
    </div>
  );
}
