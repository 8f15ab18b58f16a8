/** Traces by what they do: pure. */
import type { Row } from "./traces";

export interface Group {
  name: string;
  /** Name of a span by which the group's traces are found. */
  example: string;
  traces: number;
  failed: number;
  p50: number;
  p95: number;
  longest: number;
}

/** Groups of the same root, or, where the root is a job, of the same first submission; the one with the most time first. */
export function groups(rows: Row[]): Group[] {
  const found = new Map<string, Row[]>();
  for (const row of rows) {
    const name = (row.does ?? row.root).replace(/ and \d+ more$/, "");
    const group = found.get(name);
    if (group) group.push(row);
    else found.set(name, [row]);
  }
  const groups = [...found].map(([name, rows]) => {
    const durations = rows.map((row) => row.duration_ns).sort((one, other) => one - other);
    // One of the durations: nearest rank.
    const quantile = (share: number) => durations[Math.max(0, Math.ceil(share * durations.length) - 1)];
    return {
      name,
      example: rows[0].does ? `${name} tracer.remote` : name,
      traces: rows.length,
      failed: rows.filter((row) => row.errors > 0).length,
      p50: quantile(0.5),
      p95: quantile(0.95),
      longest: durations[durations.length - 1],
      all: durations.reduce((sum, duration) => sum + duration, 0),
    };
  });
  return groups.sort((one, other) => other.all - one.all);
}
