import assert from "node:assert/strict";
import test from "node:test";
import { type Columns, ERROR } from "../src/layout";
import { type Box, boxAt, flame, tracks } from "../src/shapes";

/** A trace of rows: name, depth, process, start, duration. */
function trace(...rows: [string, number, number, number, number][]): Columns {
  const names = [...new Set(rows.map((row) => row[0]))];
  const pids = [...new Set(rows.map((row) => row[2]))];
  return {
    trace_id: "1",
    revision: 1,
    start_time: "2026-11-05T12:00:00Z",
    duration_ns: Math.max(...rows.map((row) => row[3] + row[4])),
    names,
    processes: pids.map((pid) => ({ pid, service: "s" })),
    span_id: rows.map((_, index) => String(index)),
    depth: rows.map((row) => row[1]),
    name: rows.map((row) => names.indexOf(row[0])),
    process: rows.map((row) => pids.indexOf(row[2])),
    start: rows.map((row) => row[3]),
    duration: rows.map((row) => row[4]),
    flags: rows.map(() => 0),
    queued: [],
    duplicates: 0,
    left_out: 0,
    errors_left_out: 0,
    running_left_out: 0,
    cuts: [],
  };
}

function byLine(boxes: Box[]): Map<number, Box[]> {
  const lines = new Map<number, Box[]>();
  for (const box of boxes) lines.set(box.line, [...(lines.get(box.line) ?? []), box]);
  return lines;
}

/** A trace whose spans have random depths, processes and times; the same for the same seed. */
function random(seed: number): Columns {
  const next = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
  let depth = 0;
  return trace(
    ...Array.from({ length: 40 }, (_, row): [string, number, number, number, number] => {
      depth = row === 0 ? 0 : Math.floor(next() * Math.min(depth + 2, 6));
      return [`n${Math.floor(next() * 5)}`, depth, row === 0 ? 0 : Math.floor(next() * 3), Math.floor(next() * 1000), Math.floor(next() * 300)];
    }),
  );
}

test("no box of a track covers another, and every span has one in a line of its process", () => {
  for (let seed = 1; seed <= 300; seed++) {
    const columns = random(seed);
    const chart = tracks(columns, columns.duration_ns, 0);
    assert.equal(chart.boxes.length, 40);
    const lines = byLine(chart.boxes);
    for (const [line, boxes] of lines) {
      const sorted = [...boxes].sort((one, other) => one.from - other.from);
      for (let at = 1; at < sorted.length; at++) assert.ok(sorted[at - 1].to <= sorted[at].from, `seed ${seed}`);
      const title = chart.titles.findLast((title) => title.line < line)!;
      for (const box of boxes) assert.ok(title.text.startsWith(`pid ${columns.processes[columns.process[box.row]].pid}`));
    }
  }
});

test("a child is below its parent where both are of one process", () => {
  const columns = trace(["root", 0, 7, 0, 100], ["child", 1, 7, 10, 20], ["far", 1, 8, 40, 10], ["beside", 1, 7, 15, 30]);
  const lines = Object.fromEntries(tracks(columns, 100, 0).boxes.map((box) => [box.text, box.line]));
  assert.ok(lines.root < lines.child && lines.root < lines.beside && lines.child !== lines.beside);
});

test("a flame graph puts what has the same path together, and holds what is below within what is above", () => {
  const columns = trace(["root", 0, 1, 0, 100], ["step", 1, 1, 0, 10], ["leaf", 2, 1, 0, 5], ["step", 1, 1, 20, 30], ["leaf", 2, 1, 20, 5], ["end", 1, 1, 60, 50]);
  columns.flags[4] = ERROR;
  const chart = flame(columns, 0);
  const box = (text: string) => chart.boxes.find((box) => box.text === text)!;
  assert.deepEqual([box("root").from, box("root").to, chart.total, chart.lines], [0, 100, 100, 3]);
  assert.deepEqual([box("end").from, box("end").to, box("step").from, box("step").to], [0, 50, 50, 90]);
  assert.deepEqual([box("step").count, box("leaf").count, box("leaf").to - box("leaf").from], [2, 2, 10]);
  assert.deepEqual([box("leaf").hasError, box("step").hasError], [true, false]);
});

test("boxes of any flame graph are within their parents' and beside each other", () => {
  for (let seed = 1; seed <= 300; seed++) {
    const chart = flame(random(seed), 0);
    for (const [line, boxes] of byLine(chart.boxes)) {
      const sorted = [...boxes].sort((one, other) => one.from - other.from || one.to - other.to);
      for (let at = 1; at < sorted.length; at++) assert.ok(sorted[at - 1].to <= sorted[at].from, `seed ${seed}`);
      for (const box of boxes) {
        const isWithin = chart.boxes.some((above) => above.line === line - 1 && above.from <= box.from && box.to <= above.to);
        assert.ok(line === 0 || isWithin, `seed ${seed}`);
      }
    }
  }
});

test("the box at a point is the nearest one in its line", () => {
  const chart = tracks(trace(["one", 0, 1, 0, 10], ["other", 0, 1, 20, 0]), 100, 0);
  assert.equal(boxAt(chart, 1, 5, 0)?.text, "one");
  assert.equal(boxAt(chart, 1, 19, 2)?.text, "other");
  assert.equal(boxAt(chart, 1, 15, 2), undefined);
  assert.equal(boxAt(chart, 0, 5, 0), undefined);
});
