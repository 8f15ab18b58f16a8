/** Lists of the head: workers, actors. Without a head that writes to the folder there is none to ask. */
import { useFetched } from "./fetched";
import { elapsed, shown, shownLines, timeOfDay } from "./format";
import { type Column, Grid } from "./grid";
import { ProblemText } from "./problem";
import { Asking, State, tone } from "./tasks";
import { address } from "./url";

const INTERVAL_MS = 1000;
/** The answer where no head can be asked. */
export const UNAVAILABLE = 503;

interface Worker {
  id: number;
  pid: number;
  state: string;
  uptime_ns: number;
  task: number | null;
  actor: number | null;
  replica: string | null;
  leases: number;
  cpus: number;
  resources: Record<string, number>;
  tasks_ended: number;
  tracing: string;
  hook_failure: string | null;
}

interface Actor {
  id: number;
  name: string | null;
  module: string;
  type_name: string;
  state: string;
  reason: string | null;
  is_detached: boolean;
  worker_id: number | null;
  worker_pid: number | null;
  restarts: number;
  max_restarts: number;
  calls_waiting: number;
  calls_leased: number;
  created_time: string;
  is_outdated: boolean;
}

export type List<N extends string, T> = { revision?: number } & Record<N, T[]>;

export function useList<N extends string, T>(name: N) {
  return useFetched<List<N, T>>(name, { every: INTERVAL_MS });
}

const resources = (worker: Worker) =>
  Object.entries(worker.resources)
    .map(([name, amount]) => `${shown(name)} ${amount}`)
    .join(", ");

const WORKERS: Column<Worker>[] = [
  { title: "Worker", isNumber: true, cell: (worker) => worker.id },
  { title: "Pid", isNumber: true, cell: (worker) => worker.pid },
  { title: "State", cell: (worker) => <State state={worker.state} /> },
  {
    title: "Runs",
    isWide: true,
    cell: (worker) => (
      <>
        {worker.replica ? shown(worker.replica) : worker.task !== null ? `task ${worker.task}` : worker.actor !== null ? `actor ${worker.actor}` : ""}
        {worker.hook_failure && <span class="why error">{shownLines(worker.hook_failure)}</span>}
      </>
    ),
  },
  { title: "Leases", isNumber: true, isMinor: true, cell: (worker) => worker.leases || "" },
  { title: "Slots", isNumber: true, isMinor: true, cell: (worker) => worker.cpus || "" },
  { title: "Resources", isMinor: true, cell: resources },
  { title: "Ended", isNumber: true, isMinor: true, cell: (worker) => (worker.replica && worker.tasks_ended === 0 ? "" : worker.tasks_ended.toLocaleString("en")) },
  { title: "Up", isNumber: true, isMinor: true, cell: (worker) => elapsed(worker.uptime_ns) },
  { title: "Spans go to", isMinor: true, cell: (worker) => shown(worker.tracing.replace(/^spans to /, "")) },
];

const ACTORS: Column<Actor>[] = [
  { title: "Actor", isNumber: true, cell: (actor) => actor.id },
  { title: "Name", cell: (actor) => shown(actor.name ?? "") },
  {
    title: "Type",
    isWide: true,
    cell: (actor) => (
      <>
        {shown(`${actor.module}.${actor.type_name}`)}
        {actor.is_outdated && <span class="badge">older build</span>}
        {actor.is_detached && <span class="badge">detached</span>}
        {actor.reason && <span class="why error">{shownLines(actor.reason)}</span>}
      </>
    ),
  },
  { title: "State", cell: (actor) => <State state={actor.state} /> },
  { title: "Calls waiting", isNumber: true, isMinor: true, cell: (actor) => actor.calls_waiting || "" },
  { title: "With it", isNumber: true, isMinor: true, cell: (actor) => actor.calls_leased || "" },
  { title: "Restarts", isNumber: true, isMinor: true, cell: (actor) => (actor.max_restarts > 0 ? `${actor.restarts} of ${actor.max_restarts}` : "") },
  { title: "Worker", isNumber: true, cell: (actor) => actor.worker_id ?? "", hint: (actor) => (actor.worker_pid === null ? "" : `pid ${actor.worker_pid}`) },
  { title: "Created", isMinor: true, cell: (actor) => timeOfDay(actor.created_time), hint: (actor) => actor.created_time },
];

interface Shown<T> {
  title: string;
  name: string;
  columns: Column<T>[];
  id: (row: T) => string;
  tone: (row: T) => string;
  empty: string;
}

function ListView<N extends string, T>({ of, name }: { of: Shown<T>; name: N }) {
  const { value, problem } = useList<N, T>(name);
  const found = value.value;
  return (
    <section class="list">
      <h1 class="unseen">{of.title}</h1>
      {problem.value?.status === UNAVAILABLE ? <NoHead what={of.title} /> : <ProblemText problem={problem.value} />}
      {!found && !problem.value && <Asking />}
      {found && !problem.value && <Grid label={of.title} columns={of.columns} rows={found[name]} id={of.id} tone={of.tone} empty={of.empty} />}
    </section>
  );
}

export function NoHead({ what }: { what: string }) {
  return (
    <p class="empty">
      {what} are known to a head alone, and none writes to this folder now. <code>tracer start --head</code> starts one; the traces that are in the folder are in{" "}
      <a href={address(["traces"])}>Traces</a>, and their tasks in <a href={address(["tasks"])}>Tasks</a>.
    </p>
  );
}

export function Workers() {
  return <ListView name="workers" of={{ title: "Workers", name: "workers", columns: WORKERS, id: (worker: Worker) => String(worker.id), tone: (worker) => tone(worker.state), empty: "There is no worker." }} />;
}

export function Actors() {
  return (
    <ListView
      name="actors"
      of={{ title: "Actors", name: "actors", columns: ACTORS, id: (actor: Actor) => String(actor.id), tone: (actor) => tone(actor.state), empty: "There is no actor. `tracer submit actor` makes one." }}
    />
  );
}
