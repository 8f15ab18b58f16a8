/** What runs this moment: a track for each process with bars that grow, the queue by function and why it waits, rates, warnings. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useClock } from "./clock";
import { useFetched } from "./fetched";
import { count, elapsed, figure, parts, shown, shownLines } from "./format";
import { type Rate, type Totals, rateBetween, span, tickAges, position } from "./rates";
import { ProblemText } from "./problem";
import { Spark } from "./spark";
import { address } from "./url";

interface Bar {
  trace_id: string;
  span_id: string;
  name: string;
  age_ns: number;
  task_id: number | null;
  depth: number;
}

export interface Track {
  pid: number;
  service: string;
  worker_id: number | null;
  state: string | null;
  runs: string | null;
  task_id: number | null;
  tasks_ended: number | null;
  spans: Bar[];
  spans_left_out: number;
}

interface Queued {
  target: string;
  tasks: number;
  oldest_task_id: number;
  oldest_ns: number;
  trace_id: string | null;
  reason: string | null;
}

interface Head {
  version: string;
  head_pid: number;
  uptime_ns: number;
  hook: unknown;
  tasks: { waiting: number; leased: number; succeeded: number; failed: number; cancelled: number; forgotten: number };
  workers: { wanted: number; idle: number; busy: number; waiting: number; starting: number; lost: number };
  cpus: { total: number; used: number };
  resources: { name: string; total: number; used: number }[];
  spans: { lost: number };
  warnings: string[];
}

interface Summary {
  revision: number;
  time: string;
  head: Head | null;
  tracks: Track[];
  tracks_left_out: number;
  queue: Queued[];
  functions_left_out: number;
  tasks_left_out: number;
}

/** Rates that are kept for the small charts. */
const KEPT = 90;
/** Interval at which it is asked again when no span tells of a change. */
const INTERVAL_MS = 1000;
const rates = signal<Rate[]>([]);
let last: Totals | undefined;

export function Now() {
  const { value, problem, at } = useFetched<Summary>("now", { every: INTERVAL_MS });
  const summary = value.value;
  useEffect(() => {
    const head = summary?.head;
    if (!head) return;
    const { succeeded, failed, cancelled, forgotten } = head.tasks;
    const totals = { at: Date.parse(summary.time), pid: head.head_pid, ended: succeeded + failed + cancelled + forgotten, failed };
    const rate = rateBetween(last, totals);
    if (rate === "wait") return;
    last = totals;
    if (rate) rates.value = [...rates.value, rate].slice(-KEPT);
  }, [summary]);
  const open = summary?.tracks.reduce((sum, track) => sum + track.spans.length, 0) ?? 0;
  const now = useClock(open > 0);
  const since = Math.max(0, now.value - at.value) * 1e6;
  return (
    <section class="now">
      <h1 class="unseen">Now</h1>
      <ProblemText problem={problem.value} />
      {summary && (
        <>
          {summary.head ? <Figures head={summary.head} open={open} /> : <Headless open={open} />}
          {summary.head?.warnings.map((warning) => (
            <p key={warning} class="warning" role="status">
              {shown(warning)}
            </p>
          ))}
          <Tracks tracks={summary.tracks} since={since} />
          {summary.tracks_left_out > 0 && <p class="quiet">and {count(summary.tracks_left_out, "further process", "further processes")}</p>}
          {summary.head && <Queue summary={summary} since={since} />}
        </>
      )}
    </section>
  );
}

function Headless({ open }: { open: number }) {
  return (
    <p class="empty">
      No head writes to this folder now, so there are no workers and no queue to show. {open > 0 ? count(open, "span") + " are open." : "Nothing is open."}
    </p>
  );
}

function Figures({ head, open }: { head: Head; open: number }) {
  const newest = rates.value.at(-1);
  const { workers, tasks } = head;
  return (
    <div class="figures">
      <Figure name="Tasks ended" value={newest ? `${figure(newest.ended)} /s` : "…"}>
        <Spark values={rates.value.map((rate) => rate.ended)} most={KEPT} label="Tasks that ended, a second" />
      </Figure>
      <Figure name="Failed" value={newest ? `${figure(newest.failed)} /s` : "…"} note={`${tasks.failed.toLocaleString("en")} in all`} tone={newest && newest.failed > 0 ? "error" : ""}>
        <Spark values={rates.value.map((rate) => rate.failed)} most={KEPT} label="Tasks that failed, a second" tone="error" />
      </Figure>
      <Figure name="Waiting" value={tasks.waiting.toLocaleString("en")} note={tasks.leased > 0 ? `${tasks.leased.toLocaleString("en")} with workers` : "none with workers"} />
      <Figure name="Workers" value={`${workers.busy + workers.waiting} of ${workers.idle + workers.busy + workers.waiting + workers.starting} busy`} note={workers.lost > 0 ? `${workers.lost} lost so far` : `${head.cpus.used} of ${head.cpus.total} slots taken`} />
      <Figure name="Open spans" value={open.toLocaleString("en")} note={head.hook ? (head.spans.lost > 0 ? `${count(head.spans.lost, "span")} lost` : "no span lost") : "not traced"} tone={head.spans.lost > 0 ? "error" : ""} />
      {head.resources.map((resource) => (
        <Figure key={resource.name} name={shown(resource.name)} value={`${resource.used} of ${resource.total}`} />
      ))}
    </div>
  );
}

function Figure(props: { name: string; value: string; note?: string; tone?: string; children?: preact.ComponentChildren }) {
  return (
    <div class={`figure ${props.tone ?? ""}`}>
      <span class="quiet">{props.name}</span>
      <strong>{props.value}</strong>
      {props.children ?? <span class="quiet note">{props.note ?? ""}</span>}
    </div>
  );
}

/** Tracks over one scale of age, which is logarithmic: from a millisecond to hours each is as legible. */
function Tracks({ tracks, since }: { tracks: Track[]; since: number }) {
  const oldest = Math.max(0, ...tracks.flatMap((track) => track.spans.map((bar) => bar.age_ns))) + since;
  const longest = span(oldest);
  if (tracks.length === 0) return null;
  const workers = tracks.filter((track) => track.worker_id !== null);
  const others = tracks.filter((track) => track.worker_id === null);
  return (
    <section class="tracks" aria-label="Processes">
      <div class="ages" aria-hidden="true">
        <span class="quiet">{workers.length > 0 ? "Workers" : "Processes"}</span>
        <div>
          {tickAges(longest).map((age) => (
            <span key={age} style={{ left: `${(1 - position(age, longest)) * 100}%` }}>
              {elapsed(age)}
            </span>
          ))}
          <span class="present">now</span>
        </div>
      </div>
      {workers.map((track) => (
        <TrackRow key={track.pid} track={track} since={since} longest={longest} />
      ))}
      {others.length > 0 && workers.length > 0 && <h2>Submitters and other processes</h2>}
      {others.map((track) => (
        <TrackRow key={track.pid} track={track} since={since} longest={longest} />
      ))}
    </section>
  );
}

/** The bars of a track that are drawn as lines of their own. */
const LINES = 12;

function TrackRow({ track, since, longest }: { track: Track; since: number; longest: number }) {
  const { worker_id, spans } = track;
  const bars = spans.slice(0, LINES);
  const more = spans.length + track.spans_left_out - bars.length;
  const state = track.state ?? "open";
  return (
    <div class={`track ${state}`}>
      <div class="who">
        <strong>
          <i class="dot" aria-hidden="true" />
          {worker_id === null ? shown(track.service || "process") : `worker ${worker_id}`}
        </strong>
        <span class="quiet">
          pid {track.pid}
          {worker_id !== null && ` · ${state}`}
          {track.tasks_ended !== null && track.tasks_ended > 0 && ` · ${track.tasks_ended.toLocaleString("en")} ended`}
        </span>
        {bars.length === 0 && track.runs && <span>{shown(track.runs)}</span>}
      </div>
      <ul>
        {bars.length === 0 && <li class="idle" aria-label={state} />}
        {bars.map((bar) => {
          const wide = Math.max(position(bar.age_ns + since, longest) * 100, 0.4);
          const [name, suffix] = parts(bar.name);
          return (
            <li key={bar.span_id}>
              <a class={`bar ${suffix ? "" : "user"}`} style={{ width: `${wide}%` }} href={address(["trace", bar.trace_id], { span: bar.span_id })} title={`${name} ${suffix}${bar.task_id === null ? "" : `, task ${bar.task_id}`}`}>
                <span class="text">
                  {name} {suffix && <i>{bar.task_id === null ? suffix : `task ${bar.task_id}`}</i>}
                </span>
                <span class="number">{elapsed(bar.age_ns + since)}</span>
              </a>
            </li>
          );
        })}
        {more > 0 && <li class="quiet more">and {count(more, "further span")}</li>}
      </ul>
    </div>
  );
}

function Queue({ summary, since }: { summary: Summary; since: number }) {
  const { queue } = summary;
  const most = Math.max(1, ...queue.map((row) => row.tasks));
  return (
    <section aria-labelledby="queue-title">
      <h2 id="queue-title">Waiting, by function</h2>
      {queue.length === 0 ? (
        <p class="empty">Nothing waits.</p>
      ) : (
        <table class="queue">
          <thead>
            <tr>
              <th scope="col">Function</th>
              <th scope="col" class="number">
                Tasks
              </th>
              <th scope="col" class="share">
                <span class="unseen">Beside the most</span>
              </th>
              <th scope="col" class="number">
                Oldest
              </th>
              <th scope="col">Why the oldest waits</th>
            </tr>
          </thead>
          <tbody>
            {queue.map((row) => (
              <tr key={row.target}>
                <td class="wide">{row.trace_id ? <a href={address(["trace", row.trace_id])}>{shown(row.target)}</a> : shown(row.target)}</td>
                <td class="number">{row.tasks.toLocaleString("en")}</td>
                <td class="share">
                  <meter min={0} max={most} value={row.tasks} aria-label={`${row.tasks} of ${most}`} />
                </td>
                <td class="number">{elapsed(row.oldest_ns + since)}</td>
                <td class="wide">{row.reason ? shownLines(row.reason) : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {summary.functions_left_out > 0 && <p class="quiet">and {count(summary.functions_left_out, "further function")}</p>}
      {summary.tasks_left_out > 0 && <p class="quiet">Of the newest tasks; {count(summary.tasks_left_out, "older one waits", "older ones wait")} too.</p>}
    </section>
  );
}
