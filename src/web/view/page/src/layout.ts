/** Pure functions over the columns of a trace: which rows are shown, and where their bars are. */

export interface Columns {
  trace_id: string;
  revision: number;
  start_time: string;
  duration_ns: number;
  names: string[];
  processes: { pid: number | null; service: string }[];
  span_id: string[];
  depth: number[];
  name: number[];
  process: number[];
  start: number[];
  duration: number[];
  flags: number[];
  queued: [number, number][];
  duplicates: number;
  /** Spans without a row, and how many of them failed or run. */
  left_out: number;
  errors_left_out: number;
  running_left_out: number;
  /** Equal siblings of which only the first have rows: the row of the first, and figures of all. */
  cuts: Cut[];
}

export interface Cut {
  row: number;
  count: number;
  median_ns: number;
  longest_ns: number;
}

export const ERROR = 1;
export const RUNNING = 2;
export const CRITICAL = 4;
export const MISSING = 8;
const KINDS = ["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"];

export function kind(flags: number): string {
  return KINDS[flags >> 4] ?? "INTERNAL";
}

/** The row behind all that is below this one. */
export function subtreeEnd(columns: Columns, row: number): number {
  let end = row + 1;
  while (end < columns.depth.length && columns.depth[end] > columns.depth[row]) end++;
  return end;
}

export function hasChildren(columns: Columns, row: number): boolean {
  return row + 1 < columns.depth.length && columns.depth[row + 1] > columns.depth[row];
}

/** From so many siblings of one name and kind on, they take one row. */
const GROUPED = 10;
/** One with this part of the trace on the critical path keeps its row. */
const PATH_PART = 10;

/**
 * Siblings that take one row: the first of each name and kind below a parent, with all of them. One keeps its row if what is in its subtree failed, runs, or
 * was waited for considerably.
 */
export function equalSiblings(columns: Columns): Map<number, number[]> {
  const total = columns.depth.length;
  const parent: number[] = new Array(total);
  const above: number[] = [];
  const keeps: boolean[] = new Array(total);
  for (let row = 0; row < total; row++) {
    above.length = columns.depth[row];
    parent[row] = above.at(-1) ?? -1;
    above.push(row);
    const flags = columns.flags[row];
    const isLong = columns.duration[row] * PATH_PART >= columns.duration_ns;
    keeps[row] = (flags & (ERROR | RUNNING | MISSING)) !== 0 || ((flags & CRITICAL) !== 0 && isLong);
  }
  for (let row = total - 1; row > 0; row--) if (keeps[row] && parent[row] >= 0) keeps[parent[row]] = true;
  const found = new Map<string, number[]>();
  for (let row = 0; row < total; row++) {
    if (keeps[row] || parent[row] < 0) continue;
    const key = `${parent[row]} ${columns.name[row]} ${columns.flags[row] >> 4}`;
    const members = found.get(key);
    if (members) members.push(row);
    else found.set(key, [row]);
  }
  return new Map([...found.values()].filter((members) => members.length >= GROUPED).map((members) => [members[0], members]));
}

/** Figures of a group: how many there are, the median duration, the longest. Of one whose members have not all rows, the server knows them. */
export function figuresOf(columns: Columns, members: number[]): { count: number; median: number; longest: number } {
  const cut = columns.cuts.find(({ row }) => row === members[0]);
  if (cut) return { count: cut.count, median: cut.median_ns, longest: cut.longest_ns };
  const durations = members.map((row) => columns.duration[row]).sort((one, other) => one - other);
  return { count: members.length, median: durations[Math.ceil(durations.length / 2) - 1], longest: durations.at(-1)! };
}

/** Those gaps that are folded unless it is said: of an eighth of the trace each, if they are a third of it together. */
export function longGaps<T extends { duration: number }>(gaps: T[], time: number): T[] {
  const long = gaps.filter((gap) => gap.duration >= time / 8);
  return long.reduce((sum, gap) => sum + gap.duration, 0) >= time / 3 ? long : [];
}

export interface Rows {
  /** Indexes of the columns, in the order in which they are shown. */
  rows: number[];
  /** Those of `rows` that are found, as positions in `rows`; empty without a text. */
  matches: number[];
}

/**
 * The rows that are shown: those whose parents are not folded, and, where a text is looked for, those that have it in their names or are among the
 * spans that the server has found, with all that is above them.
 */
export function visibleRows(columns: Columns, folded: ReadonlySet<string>, text: string, also?: ReadonlySet<string>, groups: ReadonlyMap<number, number[]> = new Map()): Rows {
  const wanted = text.trim().toLowerCase();
  const total = columns.depth.length;
  if (wanted === "") {
    const rows: number[] = [];
    const hidden = new Set([...groups.values()].flatMap((members) => members.slice(1)));
    for (let row = 0; row < total; ) {
      const isHidden = hidden.has(row);
      if (!isHidden) rows.push(row);
      const isFolded = isHidden || groups.has(row) || (folded.size > 0 && folded.has(columns.span_id[row]));
      row = isFolded ? subtreeEnd(columns, row) : row + 1;
    }
    return { rows, matches: [] };
  }
  const isNamed = columns.names.map((name) => name.toLowerCase().includes(wanted));
  const isMatch = (row: number) =>
    isNamed[columns.name[row]] || columns.span_id[row].startsWith(wanted) || (also !== undefined && also.has(columns.span_id[row]));
  const rows: number[] = [];
  const matches: number[] = [];
  // The rows above the present one, and how many of them are shown already.
  const above: number[] = [];
  let shown = 0;
  for (let row = 0; row < total; row++) {
    above.length = columns.depth[row];
    shown = Math.min(shown, above.length);
    if (isMatch(row)) {
      for (; shown < above.length; shown++) rows.push(above[shown]);
      matches.push(rows.length);
      rows.push(row);
      shown++;
    }
    above.push(row);
  }
  return { rows, matches };
}

/** The next of `rows` from `position` on that has a flag, around the end; -1 if none has. */
export function nextWith(columns: Columns, rows: number[], position: number, flag: number, step: 1 | -1): number {
  for (let distance = 1; distance <= rows.length; distance++) {
    const at = (position + step * distance + rows.length * distance) % rows.length;
    if (columns.flags[rows[at]] & flag) return at;
  }
  return -1;
}

/** A part of the time of a trace, in nanoseconds since its start. */
export interface Range {
  from: number;
  to: number;
}

const NARROWEST_NS = 100;

/** Zooms around a point; a factor below 1 shows less. */
export function zoom(range: Range, total: number, factor: number, around: number): Range {
  const width = Math.min(Math.max((range.to - range.from) * factor, NARROWEST_NS), total);
  const share = (around - range.from) / (range.to - range.from || 1);
  return within({ from: around - share * width, to: around + (1 - share) * width }, total);
}

export function pan(range: Range, total: number, share: number): Range {
  const by = (range.to - range.from) * share;
  return within({ from: range.from + by, to: range.to + by }, total);
}

function within({ from, to }: Range, total: number): Range {
  const width = Math.min(to - from, total);
  const start = Math.min(Math.max(from, 0), total - width);
  return { from: start, to: start + width };
}

/** Times of the lines of a scale, at round numbers. */
export function ticks(range: Range, most: number): number[] {
  const rough = (range.to - range.from) / most;
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough)!;
  const times: number[] = [];
  for (let time = Math.ceil(range.from / step) * step; time <= range.to; time += step) times.push(time);
  return times;
}
