/** The list of traces, with a query and a heat map. */
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { DifferencesView } from "./differences";
import { useFetched } from "./fetched";
import { count, elapsed, shown, timeOfDay } from "./format";
import { type Group, groups } from "./groups";
import { regionIn } from "./heat";
import { HeatMapView } from "./heatmap";
import { useKeys } from "./keys";
import { ProblemText } from "./problem";
import { leaveOnEscape } from "./tasks";
import { address, place, refine, visit } from "./url";

export interface Row {
  trace_id: string;
  root: string;
  /** What a job does, where the root is a job. */
  does: string | null;
  start_time: string;
  duration_ns: number;
  spans: number;
  errors: number;
  running: number;
}

/** How far back the answer goes. */
interface Reach {
  is_cut: boolean;
  scanned: number | null;
}

interface List {
  revision: number;
  folder: string;
  index: Reach;
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
  const { parameters } = place.value;
  const query = parameters.get("query") ?? "";
  const isGrouped = parameters.get("by") === "root";
  const limit = useSignal(STEP);
  const at = useSignal(-1);
  const region = regionIn(parameters);
  const path = `traces?${new URLSearchParams({ limit: String(limit.value), query, ...region })}`;
  const { value, problem } = useFetched<List>(path, { delay: PAUSE_MS });
  const list = value.value;
  const finder = useRef<HTMLInputElement>(null);
  const rows = list?.traces ?? [];
  const go = (step: number) => {
    at.value = Math.min(Math.max(at.value + step, 0), rows.length - 1);
    document.querySelectorAll("tr.trace-row")[at.value]?.scrollIntoView({ block: "nearest" });
  };
  useKeys([
    { keys: ["/"], meaning: "query", action: () => finder.current!.focus() },
    { keys: ["j", "ArrowDown"], meaning: "next trace", action: () => go(1) },
    { keys: ["k", "ArrowUp"], meaning: "previous trace", action: () => go(-1) },
    { keys: ["Enter", "l"], meaning: "open it", action: () => rows[at.value] && visit(address(["trace", rows[at.value].trace_id])) },
    { keys: ["e"], meaning: "only traces with errors, or all", action: () => refine({ query: query === "error" ? undefined : "error" }) },
    { keys: ["b"], meaning: "group by root, or one by one", action: () => refine({ by: isGrouped ? undefined : "root" }) },
    { keys: ["x"], meaning: "compare with the trace before it", action: () => rows[at.value + 1] && visit(address(["compare"], { before: rows[at.value + 1].trace_id, after: rows[at.value].trace_id })) },
  ]);
  return (
    <section class="traces list">
      <h1 class="unseen">Traces</h1>
      <div class="tools">
        <input
          ref={finder}
          class="query"
          type="search"
          aria-label="Query"
          placeholder={'error  name:count  duration>100ms  since:10m  region=eu  -running  "text"   ( / )'}
          spellcheck={false}
          value={query}
          onInput={(event) => refine({ query: event.currentTarget.value })}
          onKeyDown={leaveOnEscape}
        />
        <span class="shapes" role="group" aria-label="Rows">
          <button aria-pressed={!isGrouped} title="( b )" onClick={() => refine({ by: undefined })}>
            traces
          </button>
          <button aria-pressed={isGrouped} title="( b )" onClick={() => refine({ by: "root" })}>
            by root
          </button>
        </span>
      </div>
      <ProblemText problem={problem.value} />
      {problem.value ? null : <HeatMapView query={query} />}
      {region && !problem.value && <DifferencesView query={query} region={region} />}
      {list && list.traces.length === 0 && (
        <p class="empty">
          {query || region ? `No trace is found; ${count(list.filtered_out, "trace")} looked at` : "There is no trace yet"} in <code>{shown(list.folder)}</code>.
          {!query && !region && list.filtered_out === 0 && (
            <>
              {" "}
              <code>tracer start --head</code> starts a head that traces; then <code>tracer submit command -- echo hello</code> makes one, and it is here while it runs.
            </>
          )}
        </p>
      )}
      {list && list.traces.length > 0 && (isGrouped ? <Groups rows={rows} query={query} left={list.left_out} /> : <Table rows={rows} chosen={at.value} />)}
      {list?.index.is_cut && <p class="quiet">{reachOf(list.index, query !== "" || region !== undefined)}</p>}
      {list?.notices.map((notice) => (
        <p key={notice} class="warning">
          {shown(notice)}
        </p>
      ))}
      {list && list.left_out > 0 && limit.value < MOST && (
        <button onClick={() => (limit.value = Math.min(limit.value * 5, MOST))}>Show more of {count(list.left_out, "older trace")}</button>
      )}
    </section>
  );
}

function reachOf({ scanned }: Reach, asksForSome: boolean): string {
  if (scanned !== null) return `${count(scanned, "older trace")} beyond the index ${scanned === 1 ? "was" : "were"} read from the files for this.`;
  return asksForSome ? "The newest traces were looked at, and no older ones beyond the index." : "Older traces are beyond the index; a query reads them from the files.";
}

function Table({ rows, chosen }: { rows: Row[]; chosen: number }) {
  const longest = Math.max(1, ...rows.map((row) => row.duration_ns));
  return (
    <table>
      <thead>
        <tr>
          <th scope="col">Start</th>
          <th scope="col">Root</th>
          <th scope="col" class="number">
            Spans
          </th>
          <th scope="col" class="number">
            Duration
          </th>
          <th scope="col" class="share">
            <span class="unseen">Duration beside the longest</span>
          </th>
          <th scope="col">Trace</th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row, index) => (
          <TraceRow key={row.trace_id} row={row} longest={longest} isChosen={index === chosen} />
        ))}
      </tbody>
    </table>
  );
}

function TraceRow({ row, longest, isChosen }: { row: Row; longest: number; isChosen: boolean }) {
  const state = row.errors > 0 ? "error" : row.running > 0 ? "running" : "";
  const open = address(["trace", row.trace_id]);
  return (
    <tr class={`trace-row ${state} ${isChosen ? "selected" : ""}`} onClick={(event) => event.target instanceof HTMLAnchorElement || visit(open)}>
      <td class="number" title={row.start_time}>
        {timeOfDay(row.start_time)}
      </td>
      <td class="root">
        {row.does ? (
          <>
            {shown(row.does)} <i>{shown(row.root)}</i>
          </>
        ) : (
          shown(row.root)
        )}
        {row.running > 0 && <span class="badge running">{row.running} running</span>}
        {row.errors > 0 && <span class="badge error">{count(row.errors, "error")}</span>}
      </td>
      <td class="number">{row.spans.toLocaleString("en")}</td>
      <td class="number">{elapsed(row.duration_ns)}</td>
      <td class="share">
        <meter min={0} max={longest} value={row.duration_ns} aria-label={`${elapsed(row.duration_ns)} of ${elapsed(longest)}`} />
      </td>
      <td>
        <a href={open}>
          <code>{row.trace_id.slice(0, 12)}</code>
        </a>
      </td>
    </tr>
  );
}

function Groups({ rows, query, left }: { rows: Row[]; query: string; left: number }) {
  const found = groups(rows);
  const most = Math.max(1, ...found.map((group) => group.p95));
  const only = (group: Group) => refine({ by: undefined, query: `${query} name="${group.example.replace(/["\\]/g, "\\$&")}"`.trim() });
  return (
    <table>
      <caption>
        {count(rows.length, "trace")}
        {left > 0 && ", the newest"}, by {count(found.length, "root")}
      </caption>
      <thead>
        <tr>
          <th scope="col">Root</th>
          <th scope="col" class="number">
            Traces
          </th>
          <th scope="col" class="number">
            Failed
          </th>
          <th scope="col" class="number">
            p50
          </th>
          <th scope="col" class="number">
            p95
          </th>
          <th scope="col" class="number">
            Longest
          </th>
          <th scope="col" class="share">
            <span class="unseen">p95 beside the largest</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {found.map((group) => (
          <tr key={group.name} class={group.failed > 0 ? "error" : ""}>
            <td class="root">
              <button class="link" title="Only these" onClick={() => only(group)}>
                {shown(group.name)}
              </button>
            </td>
            <td class="number">{group.traces.toLocaleString("en")}</td>
            <td class="number">{group.failed > 0 ? `${group.failed.toLocaleString("en")} · ${Math.round((100 * group.failed) / group.traces)} %` : ""}</td>
            <td class="number">{elapsed(group.p50)}</td>
            <td class="number">{elapsed(group.p95)}</td>
            <td class="number">{elapsed(group.longest)}</td>
            <td class="share">
              <meter min={0} max={most} value={group.p95} aria-label={`${elapsed(group.p95)} of ${elapsed(most)}`} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
