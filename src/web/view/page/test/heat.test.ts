import assert from "node:assert/strict";
import test from "node:test";
import { type HeatMap, cellsOf, moved, nanoseconds, regionIn, regionOf, timeText } from "../src/heat";

const map: HeatMap = {
  start_time: "2026-11-05T12:00:00.000001Z",
  span_ns: 1_000_003,
  min_ns: 1000,
  max_ns: 1_000_000_001,
  columns: 7,
  rows: 6,
  traces: 3,
  cells: [],
};

test("times keep their nanoseconds", () => {
  for (const text of ["2026-11-05T12:00:00.000001234Z", "1970-01-01T00:00:00.000000000Z", "2026-12-31T23:59:59.999999999Z"]) {
    assert.equal(timeText(nanoseconds(text)), text);
  }
  assert.equal(nanoseconds("2026-11-05T12:00:00Z") + 5n, nanoseconds("2026-11-05T12:00:00.000000005Z"));
});

test("the region of cells is found in the same cells again, for all of them", () => {
  for (let column = 0; column < map.columns; column++) {
    for (let end = column; end < map.columns; end++) {
      for (let row = 0; row < map.rows; row++) {
        for (let top = row; top < map.rows; top++) {
          const cells = { columns: [column, end] as [number, number], rows: [row, top] as [number, number] };
          assert.deepEqual(cellsOf(map, regionOf(map, cells)), cells);
        }
      }
    }
  }
});

test("regions beside each other leave no time and no duration out", () => {
  const region = (at: number) => regionOf(map, { columns: [at, at], rows: [at, at] });
  for (let at = 1; at < 6; at++) {
    assert.equal(region(at - 1).until, region(at).since);
    assert.equal(region(at - 1).max_ns, region(at).min_ns);
  }
  assert.equal(region(0).min_ns, "1000");
  assert.equal(regionOf(map, { columns: [0, 6], rows: [0, 5] }).max_ns, "1000000001");
  assert.equal(regionOf(map, { columns: [0, 6], rows: [0, 5] }).until, timeText(nanoseconds(map.start_time) + 1_000_003n));
});

test("a region beside the map is on none of its cells, one that reaches over its edge on those at the edge", () => {
  const region = regionOf(map, { columns: [2, 3], rows: [1, 2] });
  assert.equal(cellsOf(map, { ...region, since: "2027-01-01T00:00:00Z", until: "2027-01-02T00:00:00Z" }), undefined);
  assert.equal(cellsOf(map, { ...region, min_ns: "1", max_ns: "2" }), undefined);
  assert.deepEqual(cellsOf(map, { ...region, since: "2020-01-01T00:00:00Z" })?.columns, [0, 3]);
});

test("arrows move a region to the edge and no further, and with shift its end alone", () => {
  const cells = { columns: [5, 6] as [number, number], rows: [0, 1] as [number, number] };
  assert.deepEqual(moved(map, cells, 1, 0, false), cells);
  assert.deepEqual(moved(map, cells, -1, 0, false).columns, [4, 5]);
  assert.deepEqual(moved(map, cells, 0, -1, false), cells);
  assert.deepEqual(moved(map, cells, 0, 1, true).rows, [0, 2]);
  assert.deepEqual(moved(map, { ...cells, columns: [5, 5] }, -1, 0, true).columns, [5, 5]);
});

test("only a whole region is one", () => {
  const region = { since: "2026-11-05T12:00:00Z", until: "2026-11-05T12:00:01Z", min_ns: "1", max_ns: "2" };
  assert.deepEqual(regionIn(new URLSearchParams(region)), region);
  for (const wrong of [{ since: "yesterday" }, { min_ns: "-1" }, { max_ns: "" }]) {
    assert.equal(regionIn(new URLSearchParams({ ...region, ...wrong })), undefined);
  }
});
