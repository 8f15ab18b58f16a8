/** Pure functions that put the paths of a comparison into a tree. */

export interface Figures {
  count: number;
  errors: number;
  total_ns: number;
  self_ns: number;
}

export interface PathRow {
  path: string[];
  before: Figures | null;
  after: Figures | null;
  self_change_ns: number;
}

/** A line of the comparison: a path with its depth, figures for each trace of its side. */
export interface Line {
  name: string;
  depth: number;
  before: Figures | null;
  after: Figures | null;
  /** Difference of the times together, for each trace. */
  total: number;
  /** Difference of the times of their own, for each trace. */
  own: number;
  /** The largest difference of own time below it, itself included. */
  largest: number;
}

interface Node {
  name: string;
  row: PathRow | undefined;
  children: Map<string, Node>;
}

function each(figures: Figures | null, traces: number): Figures | null {
  if (!figures || traces === 0) return null;
  const { count, errors, total_ns, self_ns } = figures;
  return { count: count / traces, errors: errors / traces, total_ns: total_ns / traces, self_ns: self_ns / traces };
}

/** The paths as a tree, children by the largest difference below them, for each trace of their side. With `only` those that differ by at least that. */
export function lines(rows: PathRow[], traces: [number, number], least: number): Line[] {
  const root: Node = { name: "", row: undefined, children: new Map() };
  for (const row of rows) {
    let node = root;
    for (const name of row.path) {
      let child = node.children.get(name);
      if (!child) node.children.set(name, (child = { name, row: undefined, children: new Map() }));
      node = child;
    }
    node.row = row;
  }
  const visit = (node: Node, depth: number): [Line[], number] => {
    const [before, after] = [each(node.row?.before ?? null, traces[0]), each(node.row?.after ?? null, traces[1])];
    const own = (after?.self_ns ?? 0) - (before?.self_ns ?? 0);
    const below = [...node.children.values()].map((child) => visit(child, depth + 1));
    below.sort((one, other) => other[1] - one[1]);
    const largest = Math.max(Math.abs(own), ...below.map(([, largest]) => largest));
    if (largest < least) return [[], largest];
    const line: Line = { name: node.name, depth, before, after, own, total: (after?.total_ns ?? 0) - (before?.total_ns ?? 0), largest };
    return [[line, ...below.flatMap(([lines]) => lines)], largest];
  };
  return visit(root, -1)[0].slice(1);
}
