/** Values of metrics over time, from when a view that shows them is opened. */
import { signal } from "@preact/signals";
import { type Metric, type Series, followed, keyOf } from "./series";

export interface Report {
  revision?: number;
  metrics: Metric[];
}

/** Values of a series that are kept while the page is open. */
export const KEPT = 90;
/** Metrics that count requests to services. */
const REQUESTS = ["http.server.request.duration", "rpc.server.call.duration"];

/** Values over time, by series. */
export const history = signal<ReadonlyMap<string, number[]>>(new Map());
let last: { at: number; series: Map<string, Series>; metrics: Metric[] } = { at: 0, series: new Map(), metrics: [] };

/** Takes in a report, once. */
export function take(report: Report, at: number): void {
  if (at <= last.at) return;
  const seconds = (at - last.at) / 1000;
  const [series, values] = [new Map<string, Series>(), new Map<string, number[]>()];
  for (const metric of report.metrics) {
    for (const each of metric.series) {
      const key = keyOf(metric, each);
      const value = followed(metric, each, last.series.get(key), seconds);
      const before = history.value.get(key) ?? [];
      values.set(key, value === undefined ? before : [...before, value].slice(-KEPT));
      series.set(key, each);
    }
  }
  last = { at, series, metrics: report.metrics };
  history.value = values;
}

/** Requests a second over time, of all series with these attributes. */
export function rateOf(attributes: Record<string, string>): number[] {
  const known = history.value;
  const wanted = Object.entries(attributes);
  const all = last.metrics
    .filter((metric) => metric.scope === null && REQUESTS.includes(metric.name))
    .flatMap((metric) => metric.series.filter((series) => wanted.every(([key, value]) => series.attributes[key] === value)).map((series) => known.get(keyOf(metric, series)) ?? []));
  const length = Math.max(0, ...all.map((values) => values.length));
  // The newest are at the end of each.
  return Array.from({ length }, (_, at) => all.reduce((sum, values) => sum + (values[at - length + values.length] ?? 0), 0));
}
