/** Pure functions over the series of metrics: what is drawn of them. */

export interface Exemplar {
  trace_id: string;
  span_id: string;
  value: number | null;
  time: string;
}

export interface Bucket {
  le: number | null;
  count: number;
  exemplar: Exemplar | null;
}

export interface Series {
  attributes: Record<string, unknown>;
  value: number | null;
  count: number | null;
  sum: number | null;
  buckets: Bucket[] | null;
  exemplar: Exemplar | null;
}

export interface Metric {
  name: string;
  unit: string;
  kind: "counter" | "gauge" | "histogram";
  description: string;
  scope: string | null;
  series: Series[];
  left_out: number;
}

/** Kinds of things that metrics are of, in the order in which they are shown. */
export const SECTIONS = ["Services", "Tasks", "Measured by modules and programs", "Workers and processes", "Spans, logs, OTLP"];

/** The kind of things that a metric is of. */
export function sectionOf({ name, scope }: Metric): string {
  const begins = (...starts: string[]) => starts.some((start) => name === start || name.startsWith(`${start}.`));
  if (scope !== null && scope !== "tracer") return SECTIONS[2];
  if (begins("tracer.serve", "http", "rpc")) return SECTIONS[0];
  if (begins("tracer.task", "tracer.tasks", "tracer.slots", "tracer.resources")) return SECTIONS[1];
  if (begins("tracer.workers", "tracer.uptime", "tracer.journal", "tracer.connections", "process")) return SECTIONS[3];
  return SECTIONS[4];
}

/** True if a series says that nothing was or is. */
export function isZero(metric: Metric, series: Series): boolean {
  return (metric.kind === "histogram" ? series.count : series.value) === 0;
}

/** A name of a series among all. */
export function keyOf(metric: Metric, series: Series): string {
  return JSON.stringify([metric.scope, metric.name, series.attributes]);
}

/** What is followed of a series over time: the value of a gauge, or how much a counter or the count of a histogram has grown a second. */
export function followed(metric: Metric, now: Series, before: Series | undefined, seconds: number): number | undefined {
  if (metric.kind === "gauge") return now.value ?? undefined;
  const of = (series: Series) => (metric.kind === "counter" ? series.value : series.count) ?? 0;
  if (!before || seconds <= 0 || of(now) < of(before)) return undefined;
  return (of(now) - of(before)) / seconds;
}

/** The value that a share of a histogram's values do not exceed: the upper boundary of its bucket; none without values. */
export function quantile(buckets: Bucket[], share: number): number | undefined {
  const all = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  let seen = 0;
  for (const { le, count } of buckets) {
    seen += count;
    if (count > 0 && seen >= share * all) return le ?? Infinity;
  }
  return undefined;
}

/** The buckets from the first to the last that has values, with one more on either side. */
export function filled(buckets: Bucket[]): Bucket[] {
  const first = buckets.findIndex((bucket) => bucket.count > 0);
  if (first < 0) return [];
  const last = buckets.findLastIndex((bucket) => bucket.count > 0);
  return buckets.slice(Math.max(0, first - 1), last + 2);
}
