import assert from "node:assert/strict";
import { test } from "node:test";
import { Axis } from "../src/axis";
import { bytes, labels, parts } from "../src/format";
import { groups } from "../src/groups";
import { Pace } from "../src/pace";
import { lines } from "../src/paths";
import { type Metric, SECTIONS, type Series, filled, followed, isZero, quantile, sectionOf } from "../src/series";
import { position, rateBetween, span, tickAges } from "../src/rates";

test("an axis without folds is the time itself", () => {
  const axis = new Axis(1000);
  assert.deepEqual([axis.total, axis.isFolded, axis.at(250), axis.time(250)], [1000, false, 250, 250]);
});

test("folded times are narrow, and every time has its place and back", () => {
  const axis = new Axis(1000, [{ start: 100, duration: 800 }]);
  assert.deepEqual([axis.at(0), axis.at(100), axis.at(900), axis.total], [0, 100, 104, 204]);
  for (const time of [0, 50, 100, 500, 900, 950, 1000]) assert.ok(Math.abs(axis.time(axis.at(time)) - time) < 1e-6, String(time));
  assert.deepEqual(axis.ticks({ from: 0, to: axis.total }, 10).filter((time) => time > 100 && time < 900), []);
  assert.ok(axis.ticks({ from: 0, to: axis.total }, 10).includes(900));
});

test("a fold at the start, at the end, beyond it, and one that is hardly long", () => {
  assert.equal(new Axis(100, [{ start: 0, duration: 50 }]).total, 51);
  assert.equal(new Axis(100, [{ start: 50, duration: 500 }]).total, 51);
  assert.equal(new Axis(100, [{ start: 200, duration: 5 }]).total, 100);
  assert.equal(new Axis(100, [{ start: 50, duration: 1 }]).total, 100);
  assert.equal(new Axis(100, [{ start: 0, duration: 100 }]).total > 0, true);
});

test("rates are between two answers of one head", () => {
  const at = (seconds: number, ended: number, pid = 1) => ({ at: seconds * 1000, pid, ended, failed: ended / 10 });
  assert.equal(rateBetween(undefined, at(0, 0)), undefined);
  assert.deepEqual(rateBetween(at(0, 0), at(2, 30)), { ended: 15, failed: 1.5 });
  assert.equal(rateBetween(at(0, 0), at(0.1, 30)), "wait");
  assert.equal(rateBetween(at(0, 50), at(2, 30)), undefined);
  assert.equal(rateBetween(at(0, 0), at(2, 30, 2)), undefined);
});

test("ages have places from now to the end, and their texts do not meet", () => {
  const longest = span(3.6e12);
  assert.deepEqual([position(0, longest), position(longest, longest), position(2 * longest, longest)], [0, 1, 1]);
  const places = tickAges(longest).map((age) => position(age, longest));
  assert.ok(places.length > 3 && places.every((place, at) => at === 0 || place - places[at - 1] > 0.09));
});

test("paths become a tree, for each trace of their side, the largest change first", () => {
  const figures = (count: number, self_ns: number) => ({ count, errors: 0, total_ns: self_ns, self_ns });
  const rows = [
    { path: ["job"], before: figures(2, 20), after: figures(1, 10), self_change_ns: -10 },
    { path: ["job", "same"], before: figures(2, 20), after: figures(1, 11), self_change_ns: 0 },
    { path: ["job", "slow"], before: figures(2, 20), after: figures(1, 110), self_change_ns: 90 },
    { path: ["job", "slow", "new"], before: null, after: figures(3, 30), self_change_ns: 30 },
  ];
  const found = lines(rows, [2, 1], 0);
  assert.deepEqual(found.map((line) => [line.name, line.depth, line.own]), [["job", 0, 0], ["slow", 1, 100], ["new", 2, 30], ["same", 1, 1]]);
  assert.deepEqual(lines(rows, [2, 1], 5).map((line) => line.name), ["job", "slow", "new"]);
});

test("traces are grouped by what they do", () => {
  const row = (does: string | null, duration_ns: number, errors = 0) => ({ trace_id: "", root: "tracer job", does, start_time: "", duration_ns, spans: 1, errors, running: 0 });
  const found = groups([row("a.b", 10), row("a.b and 2 more", 30, 1), row(null, 5)]);
  assert.deepEqual(found.map(({ name, traces, failed, p50, longest }) => [name, traces, failed, p50, longest]), [["a.b", 2, 1, 10, 30], ["tracer job", 1, 0, 5, 5]]);
  assert.deepEqual(found.map(({ example }) => example), ["a.b tracer.remote", "tracer job"]);
});

test("bytes and names", () => {
  assert.deepEqual([bytes(0), bytes(1023), bytes(1536), bytes(50 * 1024 ** 2)], ["0 B", "1023 B", "1.50 KiB", "50.0 MiB"]);
  assert.deepEqual(parts("m.f tracer.remote_worker"), ["m.f", "tracer.remote_worker"]);
  assert.deepEqual(parts("tracer.remote"), ["tracer.remote", ""]);
});

test("metrics: rates, quantiles and the buckets that have values", () => {
  const series = (value: number | null, counts?: number[]): Series => ({
    attributes: {},
    value,
    count: counts ? counts.reduce((sum, each) => sum + each, 0) : null,
    sum: null,
    exemplar: null,
    buckets: counts ? counts.map((count, at) => ({ le: at === counts.length - 1 ? null : 2 ** at, count, exemplar: null })) : null,
  });
  const metric = (kind: Metric["kind"]): Metric => ({ name: "m", unit: "s", kind, description: "", scope: null, series: [], left_out: 0 });
  assert.equal(followed(metric("gauge"), series(5), undefined, 0), 5);
  assert.equal(followed(metric("counter"), series(5), undefined, 2), undefined);
  assert.equal(followed(metric("counter"), series(9), series(5), 2), 2);
  assert.equal(followed(metric("counter"), series(1), series(5), 2), undefined);
  assert.equal(followed(metric("histogram"), series(null, [3, 0, 3]), series(null, [1, 0, 1]), 2), 2);
  const buckets = series(null, [0, 0, 98, 1, 0, 1, 0]).buckets!;
  assert.deepEqual([quantile(buckets, 0.5), quantile(buckets, 0.99), quantile(buckets, 1), quantile([], 0.5)], [4, 8, 32, undefined]);
  assert.equal(quantile(series(null, [0, 2]).buckets!, 0.5), Infinity);
  assert.deepEqual(filled(buckets).map((bucket) => bucket.le), [2, 4, 8, 16, 32, null]);
  assert.deepEqual(filled(series(null, [0, 0]).buckets!), []);
});

test("a burst of requests waits for nothing, and in the long run they take a quarter of the time", () => {
  const quick = new Pace();
  const pauses = [1000, 1030, 1060, 1090].map((at) => quick.pauseAfter(at, at + 30));
  assert.deepEqual(pauses, [0, 0, 0, 0]);
  for (const each of [30, 500, 3000]) {
    const pace = new Pace();
    let [at, took] = [0, 0];
    while (at < 1000 * each) {
      took += each;
      at += each + pace.pauseAfter(at, at + each);
    }
    assert.ok(took / at < 0.3 && took / at > 0.2, `${each}: ${took / at}`);
  }
  assert.equal(new Pace().pauseAfter(5000, 7000), 7200, "one that is slow is not asked again at once");
});

test("attributes are named by the last part of their keys where that tells them apart", () => {
  assert.equal(labels({ "http.route": "/", "http.request.method": "GET" }), "route /, method GET");
  assert.equal(labels({ "a.name": 1, "b.name": true, "tracer.worker.id": "\u202e" }), "a.name 1, b.name true, id \\u{202e}");
  assert.equal(labels({}), "");
});

test("metrics have their place, and what is zero is known", () => {
  const of = (name: string, scope: string | null = null) => sectionOf({ name, scope, unit: "", kind: "gauge", description: "", series: [], left_out: 0 });
  assert.deepEqual(
    [of("http.server.request.duration"), of("tracer.tasks"), of("tracer.task.ended"), of("tracer.otlp.items"), of("process.cpu.time"), of("shop.orders", "shop"), of("tracer.serve.batch.size", "tracer")],
    [SECTIONS[0], SECTIONS[1], SECTIONS[1], SECTIONS[4], SECTIONS[3], SECTIONS[2], SECTIONS[0]],
  );
  const series = { attributes: {}, value: 0, count: 3, sum: 1, buckets: [], exemplar: null };
  const metric = { name: "a", scope: null, unit: "", description: "", series: [series], left_out: 0 };
  assert.deepEqual([isZero({ ...metric, kind: "gauge" }, series), isZero({ ...metric, kind: "histogram" }, series)], [true, false]);
});
