/** The list of traces, with a query. */
import { useSignal } from "@preact/signals";
import { useFetched } from "./fetched";
import { DifferencesView } from "./differences";
import { count, elapsed, shown, timeOfDay } from "./format";
import { regionIn } from "./heat";
import { HeatMapView } from "./heatmap";
import { ProblemText } from "./problem";
import { address, place, refine } from "./url";

interface Row {
  trace_id: string;
  root: string;
  start_time: string;
  duration_ns: number;
  spans: number;
  errors: number;
  running: number;
}

interface List {
  revision: number;
  folder: string;
  notices: string[];
  traces: Row[];
  left_out: number;
  filtered_out: number;
}

const STEP = 200;
const MOST = 5000;
/** Typing pauses for so long before it is asked. */
const PAUSE_MS = 150;

export function Traces() {
  const query = place.value.parameters.get("query") ?? "";
  const limit = useSignal(STEP);
  const region = regionIn(place.value.parameters);
  const path = `traces?${new URLSearchParams({ limit: String(limit.value), query, ...region })}`;
  const { value, problem } = useFetched<List>(path, PAUSE_MS);
  const list = value.value;
  return (
    <section class="traces">
      <h1 class="unseen">Traces</h1>
      <input
        class="query"
        type="search"
        aria-label="Query"
        placeholder={'error  name:count  duration>100ms  since:10m  region=eu  -running  "text"'}
        spellcheck={false}
        value={query}
        onInput={(event) => refine({ query: event.currentTarget.value })}
      />
      <ProblemText problem={problem.value} />
      {problem.value ? null : <HeatMapView query={query} />}
      {region && !problem.value && <DifferencesView query={query} region={region} />}
      {list && <Table list={list} query={query} />}
      {list && list.left_out > 0 && limit.value < MOST && (
        <button onClick={() => (limit.value = Math.min(limit.value * 5, MOST))}>
          Show more of {count(list.left_out, "older trace")}
        </button>
      )}
    </section>
  );
}

function Table({ list, query }: { list: List; query: string }) {
  const longest = Math.max(1, ...list.traces.map((row) => row.duration_ns));
  if (list.traces.length === 0) {
    return (
      <p class="empty">
        {query ? `No trace is found; ${count(list.filtered_out, "trace")} looked at` : "There is no trace yet"} in{" "}
        <code>{shown(list.folder)}</code>.
      </p>
    );
  }
  return (
    <>
      <table>
        <thead>
          <tr>
            <th scope="col">Start</th>
            <th scope="col">Trace</th>
            <th scope="col">Root</th>
            <th scope="col" class="number">
              Spans
            </th>
            <th scope="col" class="number">
              Duration
            </th>
            <th scope="col">
              <span class="unseen">Duration beside the longest</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {list.traces.map((row) => (
            <TraceRow key={row.trace_id} row={row} longest={longest} />
          ))}
        </tbody>
      </table>
      {list.notices.map((notice) => (
        <p key={notice} class="warning">
          {shown(notice)}
        </p>
      ))}
    </>
  );
}

function TraceRow({ row, longest }: { row: Row; longest: number }) {
  const state = row.errors > 0 ? "error" : row.running > 0 ? "running" : "";
  return (
    <tr class={state}>
      <td title={row.start_time}>{timeOfDay(row.start_time)}</td>
      <td>
        <a href={address(["trace", row.trace_id])}>
          <code>{row.trace_id.slice(0, 12)}</code>
        </a>
      </td>
      <td class="root">
        {shown(row.root)}
        {row.running > 0 && <span class="badge running">{row.running} running</span>}
        {row.errors > 0 && <span class="badge error">{count(row.errors, "error")}</span>}
      </td>
      <td class="number">{row.spans.toLocaleString("en")}</td>
      <td class="number">{elapsed(row.duration_ns)}</td>
      <td class="share">
        <meter min={0} max={longest} value={row.duration_ns} aria-label={`${elapsed(row.duration_ns)} of ${elapsed(longest)}`} />
      </td>
    </tr>
  );
}
