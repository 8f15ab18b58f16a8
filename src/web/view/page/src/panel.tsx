/** What stands beside the tree of a trace: one span, everything that was written, and what was waited for. */
import { useSignal } from "@preact/signals";
import { useFetched } from "./fetched";
import { bytes, count, elapsed, shown } from "./format";
import { ProblemText } from "./problem";
import { SpanDetails } from "./span";
import { refine } from "./url";

export interface Attempt {
  span_id: string;
  task_id: number | null;
  attempt: number;
  worker_id: number | null;
  queued_ns: number | null;
  cpu_time_ns: number | null;
  peak_memory_bytes: number | null;
  error: string | null;
  completed_by: string | null;
}

export interface Gap {
  start_ns: number;
  duration_ns: number;
  span_id: string;
  is_queued: boolean;
  why: string;
}

export interface Attempts {
  revision: number;
  attempts: Attempt[];
  gaps: Gap[];
  waiting: { span_id: string; task_id: number; why: string | null }[];
}

export const PANELS = ["span", "written", "waits"] as const;
export type Panel = (typeof PANELS)[number];
const TITLES: Record<Panel, string> = { span: "Span", written: "Written", waits: "Waits" };

interface Props {
  trace: string;
  panel: Panel;
  selected: string;
  revision: number;
  attempts: Attempts | undefined;
  durationOf: (span: string) => number | undefined;
  nameOf: (span: string) => string;
}

export function PanelView(props: Props) {
  const { panel, selected } = props;
  return (
    <aside class="details" aria-label="Details">
      <div class="tabs">
        {PANELS.map((each) => (
          <button key={each} aria-pressed={each === panel} onClick={() => refine({ panel: each === "span" ? undefined : each })}>
            {TITLES[each]}
          </button>
        ))}
        <button class="plain close" onClick={() => refine({ span: undefined, panel: undefined })} aria-label="Close" title="Close ( Esc )">
          ×
        </button>
      </div>
      <div class="inside" tabIndex={0} role="region" aria-label={TITLES[panel]}>
        {panel === "span" && (selected ? <OfSpan {...props} /> : <p class="empty">Click a span, or press j.</p>)}
        {panel === "written" && <Written {...props} />}
        {panel === "waits" && <Waits {...props} />}
      </div>
    </aside>
  );
}

function OfSpan(props: Props) {
  const { trace, selected, revision, attempts } = props;
  const own = attempts?.attempts.find((attempt) => attempt.span_id === selected);
  const waits = attempts?.waiting.find((waiting) => waiting.span_id === selected);
  const together = own && own.task_id !== null ? attempts!.attempts.filter((attempt) => attempt.task_id === own.task_id) : own ? [own] : [];
  return (
    <>
      <SpanDetails key={selected} trace={trace} span={selected} revision={revision} nameOf={props.nameOf}>
        {waits && <p class="warning">Task {waits.task_id} waits{waits.why ? `: ${shown(waits.why)}` : "."}</p>}
        {own && <Together {...props} attempts={together} />}
      </SpanDetails>
    </>
  );
}

/** The attempts at a task, with what each used. */
function Together({ attempts, selected, durationOf }: Omit<Props, "attempts"> & { attempts: Attempt[] }) {
  return (
    <table class="together">
      <caption>{attempts.length === 1 ? "The only attempt" : `${attempts.length} attempts`} at task {attempts[0].task_id}</caption>
      <thead>
        <tr>
          <th scope="col">Attempt</th>
          <th scope="col" class="number">
            Queued
          </th>
          <th scope="col" class="number">
            Took
          </th>
          <th scope="col" class="number">
            CPU
          </th>
          <th scope="col" class="number">
            Memory
          </th>
        </tr>
      </thead>
      <tbody>
        {attempts.map((attempt) => (
          <tr key={attempt.span_id} class={attempt.error ? "error" : ""}>
            <td>
              <button class="link" aria-current={attempt.span_id === selected} onClick={() => refine({ span: attempt.span_id })}>
                {attempt.attempt} in worker {attempt.worker_id ?? "?"}
              </button>
              {attempt.error && <span class="why error">{shown(attempt.error)}</span>}
              {attempt.completed_by && <span class="why">its span was written by the {shown(attempt.completed_by)}</span>}
            </td>
            <td class="number">{attempt.queued_ns === null ? "" : elapsed(attempt.queued_ns)}</td>
            <td class="number">{elapsed(durationOf(attempt.span_id) ?? 0)}</td>
            <td class="number">{attempt.cpu_time_ns === null ? "" : elapsed(attempt.cpu_time_ns)}</td>
            <td class="number">{attempt.peak_memory_bytes === null ? "" : bytes(attempt.peak_memory_bytes)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

interface Entry {
  at_ns: number;
  kind: "event" | "record" | "stdout" | "stderr";
  span_id: string | null;
  severity: string;
  text: string;
  attributes: Record<string, unknown>;
  is_approximate: boolean;
}

interface WrittenAnswer {
  revision: number;
  entries: Entry[];
  left_out: number;
  notices: string[];
}

const KINDS: Record<Entry["kind"], string> = { event: "event", record: "log", stdout: "out", stderr: "err" };
/** Entries that are shown before more are asked for. */
const STEP = 500;

function Written({ trace, selected, nameOf }: Props) {
  const { value, problem } = useFetched<WrittenAnswer>(`traces/${trace}/written`);
  const text = useSignal("");
  const most = useSignal(STEP);
  const onlySelected = useSignal(false);
  const found = value.value;
  const wanted = text.value.trim().toLowerCase();
  const entries = found?.entries.filter(
    (entry) =>
      (!wanted || entry.text.toLowerCase().includes(wanted) || JSON.stringify(entry.attributes).toLowerCase().includes(wanted)) &&
      (!onlySelected.value || entry.span_id === selected),
  );
  return (
    <section class="written">
      <div class="tools">
        <input type="search" aria-label="Find in what was written" placeholder="Find in lines, records, events" spellcheck={false} value={text.value} onInput={(event) => (text.value = event.currentTarget.value)} />
        {selected && (
          <button aria-pressed={onlySelected.value} onClick={() => (onlySelected.value = !onlySelected.value)}>
            this span
          </button>
        )}
      </div>
      <ProblemText problem={problem.value} />
      {entries?.length === 0 && <p class="empty">{found!.entries.length === 0 ? "No line was written in this trace, no log record and no event." : "Nothing is found."}</p>}
      <ol>
        {entries?.slice(0, most.value).map((entry, index) => (
          <Line key={index} entry={entry} selected={selected} nameOf={nameOf} />
        ))}
      </ol>
      {entries && entries.length > most.value && <button onClick={() => (most.value += STEP)}>Show more of {count(entries.length - most.value, "further entry", "further entries")}</button>}
      {found && found.left_out > 0 && <p class="quiet">{count(found.left_out, "later entry", "later entries")} were left out.</p>}
      {found?.notices.map((notice) => (
        <p key={notice} class="warning">
          {shown(notice)}
        </p>
      ))}
    </section>
  );
}

const SEVERE = /^(err|fatal|crit)/i;
const WARN = /^warn/i;

function Line({ entry, selected, nameOf }: { entry: Entry; selected: string; nameOf: (span: string) => string }) {
  const { span_id } = entry;
  const tone = SEVERE.test(entry.severity) ? "error" : WARN.test(entry.severity) ? "warn" : "";
  const attributes = Object.entries(entry.attributes).filter(([key]) => !key.startsWith("exception."));
  const body = (
    <>
      <span class="number">{entry.at_ns < 0 ? `−${elapsed(-entry.at_ns)}` : `+${elapsed(entry.at_ns)}`}</span>
      <span class="kind" title={entry.is_approximate ? "it may be another task's" : undefined}>
        {entry.is_approximate ? "≈ " : ""}
        {entry.kind === "record" && entry.severity ? shown(entry.severity.toLowerCase()) : KINDS[entry.kind]}
      </span>
      <span class="text">
        {shown(entry.text)}
        {attributes.map(([key, value]) => (
          <i key={key}>
            {" "}
            {shown(key)}={shown(typeof value === "string" ? value : JSON.stringify(value))}
          </i>
        ))}
      </span>
    </>
  );
  return (
    <li class={`${entry.kind} ${tone} ${span_id && span_id === selected ? "own" : ""}`}>
      {span_id ? (
        <button class="link" title={nameOf(span_id)} onClick={() => refine({ span: span_id, panel: "written" })}>
          {body}
        </button>
      ) : (
        <span class="link">{body}</span>
      )}
    </li>
  );
}

function Waits({ attempts, nameOf }: Props) {
  if (!attempts) return null;
  const { gaps, waiting } = attempts;
  const all = gaps.reduce((sum, gap) => sum + gap.duration_ns, 0);
  return (
    <section class="waits">
      {gaps.length + waiting.length === 0 && <p class="empty">There is no time in which nothing ran, but for less than 1 % of the trace.</p>}
      {gaps.length > 0 && (
        <p>
          In {elapsed(all)} nothing of this trace ran. <kbd>g</kbd> folds these times.
        </p>
      )}
      <ol>
        {gaps.map((gap) => (
          <li key={gap.start_ns}>
            <button class="link" title={nameOf(gap.span_id)} onClick={() => refine({ span: gap.span_id, panel: "waits" })}>
              <strong>{elapsed(gap.duration_ns)}</strong> <span class="quiet">from +{elapsed(gap.start_ns)}</span>
              <span class="text">{shown(gap.why)}</span>
            </button>
          </li>
        ))}
        {waiting.map((task) => (
          <li key={task.span_id}>
            <button class="link" onClick={() => refine({ span: task.span_id, panel: "waits" })}>
              <strong>task {task.task_id} waits</strong>
              <span class="text">{task.why ? shown(task.why) : "it has no attempt yet"}</span>
            </button>
          </li>
        ))}
      </ol>
    </section>
  );
}
