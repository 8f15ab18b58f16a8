/** Pure functions over a heat map: which traces its cells stand for, and where a region is on it. */

export interface HeatMap {
  start_time: string;
  span_ns: number;
  min_ns: number;
  max_ns: number;
  columns: number;
  rows: number;
  traces: number;
  cells: { column: number; row: number; traces: number; errors: number }[];
}

/** Bounds of start and duration, as the parameters of a request: times as text of RFC 3339, durations in nanoseconds. Ends are outside. */
export interface Region {
  since: string;
  until: string;
  min_ns: string;
  max_ns: string;
}

/** Cells from one to another; both ends are inside. */
export interface Cells {
  columns: [number, number];
  rows: [number, number];
}

const SECOND = 1_000_000_000n;

/** A time in nanoseconds since the Unix epoch; a number has not enough digits for it. */
export function nanoseconds(text: string): bigint {
  const fraction = /\.(\d+)/.exec(text)?.[1] ?? "";
  return (BigInt(Date.parse(text.replace(/\.\d+/, ""))) / 1000n) * SECOND + BigInt(fraction.padEnd(9, "0").slice(0, 9));
}

export function timeText(nanoseconds: bigint): string {
  const seconds = new Date(Number(nanoseconds / SECOND) * 1000).toISOString().slice(0, 19);
  return `${seconds}.${String(nanoseconds % SECOND).padStart(9, "0")}Z`;
}

function columnEdge(map: HeatMap, column: number): bigint {
  const columns = BigInt(map.columns);
  return (BigInt(column) * BigInt(map.span_ns) + columns - 1n) / columns;
}

export function rowEdge(map: HeatMap, row: number): number {
  if (row >= map.rows) return map.max_ns;
  return Math.ceil(map.min_ns * (map.max_ns / map.min_ns) ** (row / map.rows));
}

/** The region that cells stand for. */
export function regionOf(map: HeatMap, { columns, rows }: Cells): Region {
  const start = nanoseconds(map.start_time);
  return {
    since: timeText(start + columnEdge(map, columns[0])),
    until: timeText(start + columnEdge(map, columns[1] + 1)),
    min_ns: String(rows[0] === 0 ? map.min_ns : rowEdge(map, rows[0])),
    max_ns: String(rowEdge(map, rows[1] + 1)),
  };
}

/** The cells in which a region is, as far as it is on the map; none if it is beside it. */
export function cellsOf(map: HeatMap, region: Region): Cells | undefined {
  const start = nanoseconds(map.start_time);
  const column = (time: string) => Number(((nanoseconds(time) - start) * BigInt(map.columns)) / BigInt(map.span_ns));
  const row = (ns: number) => (Math.log(Math.max(ns, 1) / map.min_ns) / Math.log(map.max_ns / map.min_ns)) * map.rows;
  const columns: [number, number] = [column(region.since), column(timeText(nanoseconds(region.until) - 1n))];
  // Half a cell beside an edge, which is rounded.
  const rows: [number, number] = [Math.floor(row(Number(region.min_ns)) + 0.5), Math.ceil(row(Number(region.max_ns)) - 0.5) - 1];
  if (columns[1] < 0 || columns[0] >= map.columns || rows[1] < 0 || rows[0] >= map.rows) return undefined;
  return { columns: within(columns, map.columns), rows: within([rows[0], Math.max(rows[0], rows[1])], map.rows) };
}

function within([from, to]: [number, number], count: number): [number, number] {
  const inside = (at: number) => Math.min(Math.max(at, 0), count - 1);
  return [inside(from), inside(to)];
}

/** Moves cells, or with `grows` their end, and keeps them on the map. */
export function moved(map: HeatMap, cells: Cells, columns: number, rows: number, grows: boolean): Cells {
  const move = ([from, to]: [number, number], by: number, count: number): [number, number] => {
    if (grows) return [from, Math.min(Math.max(to + by, from), count - 1)];
    const step = Math.min(Math.max(by, -from), count - 1 - to);
    return [from + step, to + step];
  };
  return { columns: move(cells.columns, columns, map.columns), rows: move(cells.rows, rows, map.rows) };
}

/** The region in parameters of an address; none unless all of its bounds are there. */
export function regionIn(parameters: URLSearchParams): Region | undefined {
  const get = (name: string) => parameters.get(name) ?? "";
  const region = { since: get("since"), until: get("until"), min_ns: get("min_ns"), max_ns: get("max_ns") };
  const isTime = (text: string) => Number.isFinite(Date.parse(text));
  const isNumber = (text: string) => /^\d{1,20}$/.test(text);
  const isWhole = isTime(region.since) && isTime(region.until) && isNumber(region.min_ns) && isNumber(region.max_ns);
  return isWhole ? region : undefined;
}
