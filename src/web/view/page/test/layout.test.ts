import assert from "node:assert/strict";
import test from "node:test";
import { elapsed, shown, shownLines, tick } from "../src/format";
import { type Columns, ERROR, equalSiblings, figuresOf, longGaps, nextWith, pan, subtreeEnd, ticks, visibleRows, zoom } from "../src/layout";

/** A trace from names that are indented by their depth. */
function trace(...lines: string[]): Columns {
  const names = lines.map((line) => line.trim());
  const each = <T>(value: (index: number) => T) => lines.map((_, index) => value(index));
  return {
    trace_id: "1",
    revision: 1,
    start_time: "",
    duration_ns: 1000,
    names,
    processes: [{ pid: 1, service: "" }],
    span_id: each((index) => `a${index}`),
    depth: lines.map((line) => line.length - line.trimStart().length),
    name: each((index) => index),
    process: each(() => 0),
    start: each((index) => index),
    duration: each(() => 1),
    flags: names.map((name) => (name.endsWith("!") ? ERROR : 0)),
    queued: [],
    duplicates: 0,
    left_out: 0,
    errors_left_out: 0,
    running_left_out: 0,
    cuts: [],
  };
}

const columns = trace("job", " count", "  read", "  read!", " write", "other!");

function names(folded: string[], text: string): string[] {
  return visibleRows(columns, new Set(folded), text).rows.map((row) => columns.names[row]);
}

test("folded rows hide all that is below them", () => {
  assert.deepEqual(names([], ""), columns.names);
  assert.deepEqual(names(["a1"], ""), ["job", "count", "write", "other!"]);
  assert.deepEqual(names(["a0", "a1"], ""), ["job", "other!"]);
  assert.deepEqual([0, 1, 2, 5].map((row) => subtreeEnd(columns, row)), [5, 4, 3, 6]);
});

test("what is found is shown with what is above it, and nothing else", () => {
  const { rows, matches } = visibleRows(columns, new Set(["a0"]), " READ ");
  assert.deepEqual(rows, [0, 1, 2, 3]);
  assert.deepEqual(matches, [2, 3]);
  assert.deepEqual(names([], "count"), ["job", "count"]);
  assert.deepEqual(names([], "a4"), ["job", "write"]);
  assert.deepEqual(names([], "nothing"), []);
});

test("of any tree, every match is shown once below its own parents", () => {
  let seed = 7;
  const random = (below: number) => (seed = (seed * 48271) % 2147483647) % below;
  for (let round = 0; round < 2000; round++) {
    const lines = ["r"];
    for (let row = 1; row < 1 + random(30); row++) {
      const deepest = lines[row - 1].length - lines[row - 1].trimStart().length + 1;
      lines.push(" ".repeat(random(deepest + 1)) + (random(4) === 0 ? "x" : "y"));
    }
    const columns = trace(...lines);
    const parents = (row: number): number[] => {
      const above: number[] = [];
      for (let at = row - 1, depth = columns.depth[row]; at >= 0; at--) {
        if (columns.depth[at] < depth) {
          above.push(at);
          depth = columns.depth[at];
        }
      }
      return above;
    };
    const expected = new Set<number>();
    columns.names.forEach((name, row) => name === "x" && [row, ...parents(row)].forEach((each) => expected.add(each)));
    const { rows, matches } = visibleRows(columns, new Set(), "x");
    assert.deepEqual(rows, [...expected].sort((left, right) => left - right));
    assert.deepEqual(matches.map((at) => columns.names[rows[at]]), matches.map(() => "x"));
    assert.equal(matches.length, columns.names.filter((name) => name === "x").length);
  }
});

test("the next with a flag is looked for around the end", () => {
  const all = [0, 1, 2, 3, 4, 5];
  assert.equal(nextWith(columns, all, -1, ERROR, 1), 3);
  assert.equal(nextWith(columns, all, 3, ERROR, 1), 5);
  assert.equal(nextWith(columns, all, 5, ERROR, 1), 3);
  assert.equal(nextWith(columns, all, 3, ERROR, -1), 5);
  assert.equal(nextWith(columns, [0, 1], 0, ERROR, 1), -1);
  assert.equal(nextWith(columns, [], -1, ERROR, 1), -1);
});

test("zooming keeps the point, and stays within the trace", () => {
  assert.deepEqual(zoom({ from: 0, to: 1000 }, 1000, 0.5, 500), { from: 250, to: 750 });
  assert.deepEqual(zoom({ from: 0, to: 1000 }, 1000, 0.5, 0), { from: 0, to: 500 });
  assert.deepEqual(zoom({ from: 250, to: 750 }, 1000, 4, 500), { from: 0, to: 1000 });
  assert.deepEqual(zoom({ from: 0, to: 100 }, 1000, 0.5, 50), { from: 0, to: 100 }, "no narrower");
  assert.deepEqual(pan({ from: 800, to: 1000 }, 1000, 0.5), { from: 800, to: 1000 });
  assert.deepEqual(pan({ from: 400, to: 600 }, 1000, -0.5), { from: 300, to: 500 });
});

test("a scale has round times", () => {
  assert.deepEqual(ticks({ from: 0, to: 1000 }, 5), [0, 200, 400, 600, 800, 1000]);
  assert.deepEqual(ticks({ from: 150, to: 420 }, 3), [200, 300, 400]);
  assert.deepEqual(ticks({ from: 5, to: 5 }, 3), []);
});

test("durations have three digits, and hidden characters are seen", () => {
  const durations = [0, 999, 1500, 711_000, 1_250_000_000, 125_000_000_000, 7_500_000_000_000];
  assert.deepEqual(durations.map(elapsed), ["0 ns", "999 ns", "1.50 µs", "711 µs", "1.25 s", "2 min 05 s", "2 h 05 min"]);
  assert.equal(shown("a\u202eb\u0000\n<b>"), "a\\u{202e}b\\u{0}\\u{a}<b>");
});

test("many siblings of one name take one row, unless one of them matters", () => {
  const lines = ["job", ...Array.from({ length: 12 }, () => [" read", "  wait"]).flat(), " read!", " write"];
  const many = trace(...lines.map((line) => line.replace("!", "")));
  many.name = lines.map((line) => (line.trim().startsWith("read") ? 1 : line.trim() === "wait" ? 2 : 0));
  many.flags = lines.map((line) => (line.endsWith("!") ? ERROR : 0));
  const groups = equalSiblings(many);
  assert.deepEqual([...groups.keys()], [1]);
  assert.equal(groups.get(1)!.length, 12);
  const rows = visibleRows(many, new Set(), "", undefined, groups).rows;
  assert.deepEqual(rows, [0, 1, 25, 26], "the group, the one that failed, the other");
  // What is looked for is shown.
  assert.equal(visibleRows(many, new Set(), "wait", undefined, new Map()).matches.length, 12);
  many.flags[4] = ERROR;
  assert.equal(equalSiblings(many).get(1)!.length, 11, "one has an error below it");
  assert.deepEqual([...equalSiblings(trace("job", ...Array.from({ length: 9 }, () => " read"))).keys()], []);
  many.duration = many.depth.map((_, row) => row);
  assert.deepEqual(figuresOf(many, groups.get(1)!), { count: 12, median: 11, longest: 23 });
  many.cuts = [{ row: 1, count: 500_000, median_ns: 7, longest_ns: 99 }];
  assert.deepEqual(figuresOf(many, groups.get(1)!), { count: 500_000, median: 7, longest: 99 });
});

test("gaps are folded where nothing happens for most of the time", () => {
  const gaps = [{ duration: 10 }, { duration: 300 }, { duration: 200 }];
  assert.deepEqual(longGaps(gaps, 1000), gaps.slice(1));
  assert.deepEqual(longGaps(gaps, 2000), []);
});

test("times on a scale are told apart, and lines of a text stay lines", () => {
  const at = 9 * 60e9 + 56e9;
  assert.deepEqual([0, 200e6, 400e6].map((more) => tick(at + more, 200e6)), ["9 min 56.0 s", "9 min 56.2 s", "9 min 56.4 s"]);
  assert.equal(tick(at + 1_500, 500), "9 min 56.0000015 s");
  assert.deepEqual([tick(at, 10e9), tick(1.25e9, 1e3)], ["9 min 56 s", "1.25 s"]);
  assert.equal(shownLines("one\ntwo\u202e"), "one\ntwo\\u{202e}");
});
