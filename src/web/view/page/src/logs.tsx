/** All lines and log records in one list, by time; each leads to its span. */
import { useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { get } from "./api";
import { useFetched } from "./fetched";
import { count, parts, shown, timeOfDay } from "./format";
import { useKeys } from "./keys";
import { ProblemText } from "./problem";
import { leaveOnEscape } from "./tasks";
import { address, place, refine } from "./url";

interface Entry {
  time: string | null;
  stream: "stdout" | "stderr" | "record";
  text: string;
  severity: string | null;
  severity_number: number | null;
  attributes: Record<string, unknown> | null;
  task_id: number | null;
  attempt: number | null;
  trace_id: string | null;
  span_id: string | null;
  span_name: string | null;
  worker_id: number | null;
  pid: number | null;
  is_approximate: boolean;
}

interface List {
  revision?: number;
  entries: Entry[];
  left_out: number;
  before: string | null;
  notices: string[];
}

const STREAMS = ["", "stdout", "stderr", "record"];
const TITLES: Record<string, string> = { "": "all", stdout: "out", stderr: "err", record: "log" };
const LEVELS = ["", "debug", "info", "warn", "error"];
const LIMIT = "500";
const PAUSE_MS = 200;
const INTERVAL_MS = 2000;

/** What a place of the page asks for, as parameters of the request. */
function asked(): Record<string, string> {
  const { parameters } = place.value;
  const found: Record<string, string> = { limit: LIMIT };
  for (const name of ["text", "stream", "level", "task", "trace"]) {
    const value = parameters.get(name);
    if (value) found[name] = value;
  }
  return found;
}

export function Logs() {
  const { parameters } = place.value;
  const [text, stream, level] = ["text", "stream", "level"].map((name) => parameters.get(name) ?? "");
  const request = asked();
  const path = `logs?${new URLSearchParams(request)}`;
  const { value, problem } = useFetched<List>(path, { delay: PAUSE_MS, every: INTERVAL_MS });
  const older = useSignal<{ path: string; entries: Entry[]; before: string | null }>({ path, entries: [], before: null });
  const finder = useRef<HTMLInputElement>(null);
  const end = useRef<HTMLDivElement>(null);
  const found = value.value;
  const before = older.value.path === path ? older.value : { path, entries: [], before: null };
  const newest = found?.entries ?? [];
  const entries = [...before.entries, ...newest];
  // The newest stays in sight unless somebody has scrolled away from it.
  const follows = useRef(true);
  useLayoutEffect(() => {
    if (follows.current) end.current?.scrollIntoView({ block: "end" });
  }, [found]);
  const more = async () => {
    const first = before.before ?? found?.before;
    if (!first) return;
    const answer = await get<List>(`logs?${new URLSearchParams({ ...request, before: first })}`);
    older.value = { path, entries: [...answer.entries, ...before.entries], before: answer.entries.length > 0 ? answer.before : null };
  };
  const step = (all: string[], name: string, at: string) => refine({ [name]: all[(all.indexOf(at) + 1) % all.length] || undefined });
  useKeys([
    { keys: ["/"], meaning: "find in lines and messages", action: () => finder.current!.focus() },
    { keys: ["f"], meaning: "next stream", action: () => step(STREAMS, "stream", stream) },
    { keys: ["v"], meaning: "next severity", action: () => step(LEVELS, "level", level) },
    { keys: ["m"], meaning: "older ones", action: more },
  ]);
  const only = ["task", "trace"].filter((name) => parameters.get(name));
  const isMissing = problem.value?.status === 404;
  return (
    <section class="logs">
      <h1 class="unseen">Logs</h1>
      <div class="tools">
        <input ref={finder} type="search" aria-label="Find in lines and messages" placeholder="Find in lines and messages ( / )" spellcheck={false} value={text} onInput={(event) => refine({ text: event.currentTarget.value })} onKeyDown={leaveOnEscape} />
        <span class="shapes" role="group" aria-label="Stream">
          {STREAMS.map((each) => (
            <button key={each} aria-pressed={each === stream} onClick={() => refine({ stream: each || undefined })}>
              {TITLES[each]}
            </button>
          ))}
        </span>
        <span class="shapes" role="group" aria-label="Severity of log records, at least">
          {LEVELS.map((each) => (
            <button key={each} aria-pressed={each === level} onClick={() => refine({ level: each || undefined })}>
              {each || "any level"}
            </button>
          ))}
        </span>
        {only.map((name) => (
          <button key={name} title="Show all" onClick={() => refine({ [name]: undefined })}>
            {name} {shown(parameters.get(name)!.slice(0, 12))} ×
          </button>
        ))}
        {found && <span class="quiet">{count(entries.length, "entry", "entries")}{found.left_out > 0 && ", the newest"}</span>}
      </div>
      {isMissing ? <p class="empty">This server has no list of lines and log records. In a trace, <kbd>o</kbd> shows what was written in it.</p> : <ProblemText problem={problem.value} />}
      {found && entries.length === 0 && <p class="empty">{Object.keys(request).length > 1 ? "Nothing is found." : "Nothing was written yet. Lines of tasks are here as they come, and the log records of their modules."}</p>}
      <div class="lines" tabIndex={0} role="region" aria-label="Lines and log records" onScroll={({ currentTarget: at }) => (follows.current = at.scrollTop + at.clientHeight >= at.scrollHeight - 40)}>
        {found && found.left_out > 0 && (before.entries.length === 0 || before.before) && <button onClick={more}>Show older ones</button>}
        <ol>
          {entries.map((entry, index) => (
            <Line key={index} entry={entry} />
          ))}
        </ol>
        <div ref={end} />
      </div>
      {found?.notices.map((notice) => (
        <p key={notice} class="warning">
          {shown(notice)}
        </p>
      ))}
    </section>
  );
}

/** Severities of OpenTelemetry from which on a record is a warning, and an error. */
const WARN = 13;
const ERROR = 17;

function Line({ entry }: { entry: Entry }) {
  const severity = entry.severity_number ?? 0;
  const tone = severity >= ERROR ? "error" : severity >= WARN ? "warn" : "";
  const who = entry.span_name ? parts(entry.span_name)[0] : entry.task_id !== null ? `task ${entry.task_id}` : entry.worker_id !== null ? `worker ${entry.worker_id}` : entry.pid !== null ? `pid ${entry.pid}` : "";
  const { "code.file.path": file, "code.line.number": line, ...others } = entry.attributes ?? {};
  const attributes = typeof file === "string" ? others : (entry.attributes ?? {});
  return (
    <li class={`${entry.stream} ${tone}`}>
      <span class="number">{entry.time ? timeOfDay(entry.time) : ""}</span>
      <span class="kind" title={entry.is_approximate ? "it may be another task's" : undefined}>
        {entry.is_approximate ? "≈ " : ""}
        {entry.stream === "record" ? shown((entry.severity || "log").toLowerCase()) : TITLES[entry.stream]}
      </span>
      <span class="of">{entry.trace_id ? <a href={address(["trace", entry.trace_id], { span: entry.span_id ?? undefined, panel: "written" })}>{who || entry.trace_id.slice(0, 8)}</a> : who}</span>
      <span class="text">
        {shown(entry.text)}
        {Object.entries(attributes).map(([key, value]) => (
          <i key={key}>
            {" "}
            {shown(key)}={shown(typeof value === "string" ? value : JSON.stringify(value))}
          </i>
        ))}
        {typeof file === "string" && (
          <i title={shown(file)}>
            {" "}
            {shown(file.slice(file.lastIndexOf("/") + 1))}
            {line !== undefined && `:${shown(String(line))}`}
          </i>
        )}
      </span>
    </li>
  );
}
