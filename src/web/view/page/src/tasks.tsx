/** Tasks: those that the head remembers, completed from the spans of attempts. */
import { signal, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { cancel, mayCancel } from "./api";
import { useFetched } from "./fetched";
import { bytes, count, elapsed, shown, shownLines, timeOfDay } from "./format";
import { useKeys } from "./keys";
import { ProblemText } from "./problem";
import { type Column, Grid } from "./grid";
import { address, place, refine } from "./url";

interface Task {
  task_id: number | null;
  queue: string | null;
  cluster_task_id: string | null;
  node_id: string | null;
  target: string;
  state: string;
  attempt: number;
  worker_id: number | null;
  pid: number | null;
  start_time: string;
  duration_ns: number;
  queued_ns: number | null;
  cpu_time_ns: number | null;
  peak_memory_bytes: number | null;
  error: string | null;
  result: string | null;
  trace_id: string | null;
  span_id: string | null;
  is_from_spans: boolean;
}

interface History {
  revision: number;
  has_head: boolean;
  tasks: Task[];
  traces_left_out: number;
  left_out: number;
}

const STATES = ["", "waiting", "running", "succeeded", "failed"];
const STEP = 200;
const MOST = 5000;
const PAUSE_MS = 150;
const INTERVAL_MS = 2000;

const ENDED = ["succeeded", "failed", "cancelled"];
/** Why the last task that was to be cancelled was not. */
const refusal = signal("");

/** How a state is coloured. */
export function tone(state: string): string {
  if (["failed", "cancelled", "dead", "lost"].includes(state)) return "error";
  if (["running", "busy", "alive", "serving"].includes(state)) return "running";
  return "";
}

export function State({ state }: { state: string }) {
  return <span class={`state ${tone(state)}`}>{shown(state)}</span>;
}

const COLUMNS: Column<Task>[] = [
  { title: "Started", cell: (task) => timeOfDay(task.start_time), hint: (task) => task.start_time },
  { title: "Task", isNumber: true, cell: (task) => task.task_id ?? "" },
  { title: "Function", isWide: true, cell: (task) => <Function task={task} /> },
  { title: "State", cell: (task) => <State state={task.state} /> },
  { title: "Result", isMinor: true, cell: (task) => (task.result === null ? "" : <span class="result">{shown(task.result)}</span>) },
  { title: "Attempt", isNumber: true, isMinor: true, cell: (task) => (task.attempt > 1 ? task.attempt : "") },
  { title: "Queued", isNumber: true, cell: (task) => (task.queued_ns === null ? "" : elapsed(task.queued_ns)) },
  { title: "Duration", isNumber: true, cell: (task) => (task.attempt > 0 ? elapsed(task.duration_ns) : "") },
  { title: "CPU", isNumber: true, isMinor: true, cell: (task) => (task.cpu_time_ns === null ? "" : elapsed(task.cpu_time_ns)) },
  { title: "Memory", isNumber: true, isMinor: true, cell: (task) => (task.peak_memory_bytes === null ? "" : bytes(task.peak_memory_bytes)) },
  { title: "Worker", isNumber: true, isMinor: true, cell: (task) => task.worker_id ?? "", hint: (task) => (task.pid === null ? "" : `pid ${task.pid}`) },
];

/** Where tasks of queues are from and have run. */
const OF_QUEUES: Column<Task>[] = [
  { title: "Queue", isMinor: true, cell: (task) => shown(task.queue ?? ""), hint: (task) => (task.cluster_task_id === null ? "" : `${task.cluster_task_id} in the cluster`) },
  { title: "Node", cell: (task) => shown(task.node_id ?? "") },
];

function Function({ task }: { task: Task }) {
  const name = shown(task.target);
  return (
    <>
      {task.trace_id ? <a href={address(["trace", task.trace_id], { span: task.span_id ?? undefined })}>{name}</a> : name}
      {mayCancel.value && task.task_id !== null && !ENDED.includes(task.state) && (
        <button class="badge" onClick={() => cancel(task.task_id!).catch((error) => (refusal.value = String(error.message)))}>
          cancel
        </button>
      )}
      {task.error && <span class="why error">{shownLines(task.error)}</span>}
    </>
  );
}

export function Tasks() {
  const { parameters } = place.value;
  const [text, state] = [parameters.get("text") ?? "", parameters.get("state") ?? ""];
  const limit = useSignal(STEP);
  const path = `history?${new URLSearchParams({ text, ...(state && { state }), limit: String(limit.value) })}`;
  const { value, problem } = useFetched<History>(path, { delay: PAUSE_MS, every: INTERVAL_MS });
  const finder = useRef<HTMLInputElement>(null);
  const found = value.value;
  useKeys([
    { keys: ["/"], meaning: "find in functions", action: () => finder.current!.focus() },
    { keys: ["f"], meaning: "next state", action: () => refine({ state: STATES[(STATES.indexOf(state) + 1) % STATES.length] || undefined }) },
  ]);
  const forgotten = found?.has_head ? found.tasks.filter((task) => task.is_from_spans).length : 0;
  return (
    <section class="list">
      <h1 class="unseen">Tasks</h1>
      <div class="tools">
        <input ref={finder} type="search" aria-label="Find in functions" placeholder="Function ( / )" spellcheck={false} value={text} onInput={(event) => refine({ text: event.currentTarget.value })} onKeyDown={leaveOnEscape} />
        <span class="shapes" role="group" aria-label="State">
          {STATES.map((each) => (
            <button key={each} aria-pressed={each === state} onClick={() => refine({ state: each || undefined })}>
              {each || "all"}
            </button>
          ))}
        </span>
        {found && (
          <span class="quiet">
            {count(found.tasks.length, "task")}
            {forgotten > 0 && `, ${forgotten} of them from spans alone`}
            {!found.has_head && ", from spans: no head writes to this folder"}
          </span>
        )}
      </div>
      <ProblemText problem={problem.value} />
      {refusal.value && (
        <p class="problem" role="alert">
          {shown(refusal.value)}
        </p>
      )}
      {!found && !problem.value && <Asking />}
      {found && (
        <Grid
          label="Tasks"
          columns={found.tasks.some((task) => task.queue !== null) ? [...COLUMNS, ...OF_QUEUES] : COLUMNS}
          rows={found.tasks}
          id={(task) => `${task.task_id} ${task.trace_id}`}
          tone={(task) => tone(task.state)}
          empty={text || state ? "No task is found." : "There is no task yet."}
        />
      )}
      {found && found.left_out > 0 && limit.value < MOST && (
        <button onClick={() => (limit.value = Math.min(limit.value * 5, MOST))}>Show more of {count(found.left_out, "older task")}</button>
      )}
      {found && found.traces_left_out > 0 && <p class="quiet">{count(found.traces_left_out, "older trace")} {found.traces_left_out === 1 ? "was" : "were"} not looked at for tasks.</p>}
    </section>
  );
}

/** While the first answer is on its way. */
export function Asking() {
  return (
    <p class="empty" role="status">
      Asking…
    </p>
  );
}

export function leaveOnEscape(event: KeyboardEvent): void {
  if (event.key === "Escape") (event.currentTarget as HTMLElement).blur();
}
