/** Pure functions that lay a trace out otherwise than as a tree: as tracks of its processes, and as a flame graph by path of names. */
import { type Columns, ERROR, MISSING, RUNNING } from "./layout";

/** A box of a chart: from and to in units of the chart's width, in a line of the chart. */
export interface Box {
  line: number;
  from: number;
  to: number;
  text: string;
  /** A row of the columns; the first one of those that a box of a flame graph stands for. */
  row: number;
  count: number;
  hasError: boolean;
}

export interface Chart {
  boxes: Box[];
  lines: number;
  /** Titles of groups of lines, each above its first line. */
  titles: { line: number; text: string }[];
  /** Width in nanoseconds. */
  total: number;
}

function ending(columns: Columns, row: number, sinceFetched: number): number {
  const since = columns.flags[row] & RUNNING ? sinceFetched : 0;
  return columns.start[row] + columns.duration[row] + since;
}

/** The row of each row's parent; -1 for a root. */
function parents(columns: Columns): Int32Array {
  const found = new Int32Array(columns.depth.length).fill(-1);
  const above: number[] = [];
  for (let row = 0; row < columns.depth.length; row++) {
    above.length = columns.depth[row];
    if (above.length > 0) found[row] = above[above.length - 1];
    above.push(row);
  }
  return found;
}

/**
 * Tracks: the spans of each process in as few lines as are needed for none to cover another, below their parents where those are of the same process.
 */
export function tracks(columns: Columns, total: number, sinceFetched: number): Chart {
  const parent = parents(columns);
  const order = columns.start.map((_, row) => row).filter((row) => !(columns.flags[row] & MISSING));
  order.sort((one, other) => columns.start[one] - columns.start[other] || columns.duration[other] - columns.duration[one]);
  const busyUntil: number[][] = columns.processes.map(() => []);
  const lane = new Int32Array(columns.depth.length).fill(-1);
  for (const row of order) {
    const process = columns.process[row];
    const lanes = busyUntil[process];
    const above = parent[row];
    let at = above >= 0 && columns.process[above] === process ? lane[above] + 1 : 0;
    while (at < lanes.length && lanes[at] > columns.start[row]) at++;
    lane[row] = at;
    lanes[at] = Math.max(ending(columns, row, sinceFetched), columns.start[row] + 1);
  }
  const first: number[] = [];
  const titles: Chart["titles"] = [];
  let lines = 0;
  columns.processes.forEach((process, index) => {
    titles.push({ line: lines, text: `pid ${process.pid ?? "unknown"} ${process.service}`.trim() });
    first[index] = lines + 1;
    lines += 1 + busyUntil[index].length;
  });
  const boxes = order.map((row) => ({
    line: first[columns.process[row]] + lane[row],
    from: columns.start[row],
    to: ending(columns, row, sinceFetched),
    text: columns.names[columns.name[row]],
    row,
    count: 1,
    hasError: (columns.flags[row] & ERROR) !== 0,
  }));
  return { boxes, lines, titles, total };
}

interface Node {
  name: number;
  row: number;
  time: number;
  count: number;
  hasError: boolean;
  children: Map<number, Node>;
}

/** A flame graph: spans with the same path of names are one box, as wide as they took together, or as what is below them took. */
export function flame(columns: Columns, sinceFetched: number): Chart {
  const root: Node = { name: -1, row: -1, time: 0, count: 0, hasError: false, children: new Map() };
  const above: Node[] = [];
  for (let row = 0; row < columns.depth.length; row++) {
    above.length = columns.depth[row];
    const within = above[above.length - 1] ?? root;
    const name = columns.name[row];
    let node = within.children.get(name);
    if (!node) {
      node = { name, row, time: 0, count: 0, hasError: false, children: new Map() };
      within.children.set(name, node);
    }
    node.count++;
    if (!(columns.flags[row] & MISSING)) node.time += ending(columns, row, sinceFetched) - columns.start[row];
    node.hasError ||= (columns.flags[row] & ERROR) !== 0;
    above.push(node);
  }
  const boxes: Box[] = [];
  let lines = 0;
  const widths = new Map<Node, number>();
  const width = (node: Node): number => {
    let children = 0;
    for (const child of node.children.values()) children += width(child);
    const wide = Math.max(node.time, children);
    widths.set(node, wide);
    return wide;
  };
  const total = width(root);
  const place = (node: Node, line: number, from: number) => {
    lines = Math.max(lines, line);
    // The widest first, so that what matters is in one place from run to run.
    const children = [...node.children.values()].sort((one, other) => widths.get(other)! - widths.get(one)! || one.name - other.name);
    for (const child of children) {
      const to = from + widths.get(child)!;
      const { row, count, hasError } = child;
      boxes.push({ line, from, to, text: columns.names[child.name], row, count, hasError });
      place(child, line + 1, from);
      from = to;
    }
  };
  place(root, 0, 0);
  return { boxes, lines, titles: [], total: Math.max(total, 1) };
}

/** The box at a point. Boxes that are narrower than `slack` are found beside themselves. */
export function boxAt(chart: Chart, line: number, at: number, slack: number): Box | undefined {
  const near = (box: Box) => Math.max(box.from - at, at - box.to, 0);
  let found: Box | undefined;
  for (const box of chart.boxes) {
    if (box.line === line && near(box) <= slack && (!found || near(box) < near(found))) found = box;
  }
  return found;
}
