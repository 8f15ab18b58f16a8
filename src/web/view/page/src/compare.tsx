/** Two traces, or two groups of traces, beside each other: what runs in the same place of both. */
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { useFetched } from "./fetched";
import { count, elapsed, figure, parts, shown, timeOfDay } from "./format";
import { useKeys } from "./keys";
import { type PathRow, lines } from "./paths";
import { ProblemText } from "./problem";
import { leaveOnEscape } from "./tasks";
import { address, place, refine } from "./url";

interface Side {
  traces: number;
  left_out: number;
  duration_ns: number;
  errors: number;
  trace: { trace_id: string; root: string; start_time: string } | null;
}

interface Comparison {
  revision: number;
  before: Side;
  after: Side;
  paths: PathRow[];
  left_out: number;
}

const PAUSE_MS = 250;
/** Differences below this part of the largest are folded away. */
const SMALL = 0.01;

export function Compare() {
  const { parameters } = place.value;
  const [before, after] = [parameters.get("before") ?? "", parameters.get("after") ?? ""];
  const isAsked = before !== "" && after !== "";
  const { value, problem } = useFetched<Comparison>(isAsked ? `compare?${new URLSearchParams({ before, after })}` : "", { delay: PAUSE_MS });
  const inputs = [useRef<HTMLInputElement>(null), useRef<HTMLInputElement>(null)];
  useKeys([
    { keys: ["b"], meaning: "the side before", action: () => inputs[0].current!.focus() },
    { keys: ["a"], meaning: "the side after", action: () => inputs[1].current!.focus() },
    { keys: ["x"], meaning: "exchange the sides", action: () => refine({ before: after, after: before }) },
  ]);
  const found = value.value;
  const side = (at: 0 | 1, name: "before" | "after", text: string) => (
    <label>
      <span>{name === "before" ? "Before" : "After"}</span>
      <input
        ref={inputs[at]}
        class="query"
        type="search"
        spellcheck={false}
        placeholder={name === "before" ? "trace id, last, or a query: name:count -error" : "trace id, last, or a query: name:count error"}
        value={text}
        onInput={(event) => refine({ [name]: event.currentTarget.value })}
        onKeyDown={leaveOnEscape}
      />
      {found && <About side={found[name]} />}
    </label>
  );
  return (
    <section class="compare">
      <h1 class="unseen">Compare</h1>
      <div class="sides">
        {side(0, "before", before)}
        <button class="plain" aria-label="Exchange the sides" title="Exchange the sides ( x )" onClick={() => refine({ before: after, after: before })}>
          ⇄
        </button>
        {side(1, "after", after)}
      </div>
      <ProblemText problem={problem.value} />
      {!isAsked && (
        <p class="empty">
          Two traces, or two groups of traces: paste the ids of traces, or write queries as in <a href={address(["traces"])}>Traces</a>. In a trace, <kbd>x</kbd> brings it here.
        </p>
      )}
      {found && <Lines found={found} />}
    </section>
  );
}

function About({ side }: { side: Side }) {
  if (side.traces === 0) return <span class="quiet">no trace is found</span>;
  if (side.trace) {
    return (
      <span class="quiet">
        <a href={address(["trace", side.trace.trace_id])}>{side.trace.trace_id.slice(0, 12)}</a> · {shown(side.trace.root)} · {timeOfDay(side.trace.start_time)} · {elapsed(side.duration_ns)}
      </span>
    );
  }
  return (
    <span class="quiet">
      {count(side.traces, "trace")}
      {side.left_out > 0 && ` (the newest; ${side.left_out.toLocaleString("en")} more)`} · {elapsed(side.duration_ns / side.traces)} on average · {count(side.errors, "error")}
    </span>
  );
}

function Lines({ found }: { found: Comparison }) {
  const showsAll = useSignal(false);
  const { before, after, paths } = found;
  if (before.traces === 0 || after.traces === 0) return null;
  const all = lines(paths, [before.traces, after.traces], 0);
  const most = Math.max(1, ...all.map((line) => Math.abs(line.own)));
  const rows = showsAll.value ? all : lines(paths, [before.traces, after.traces], most * SMALL);
  const isGrouped = before.traces > 1 || after.traces > 1;
  return (
    <>
      <table>
        <caption>
          {isGrouped ? "For each trace, on average" : "In each trace"}: what takes longer has a bar to the right, what takes less one to the left
        </caption>
        <thead>
          <tr>
            <th scope="col">Path of names</th>
            <th scope="col" class="number">
              Spans
            </th>
            <th scope="col" class="number">
              Before
            </th>
            <th scope="col" class="number">
              After
            </th>
            <th scope="col" class="change">
              Change of own time
            </th>
            <th scope="col" class="number" />
          </tr>
        </thead>
        <tbody>
          {rows.map((line, index) => {
            const [name, suffix] = parts(line.name);
            const [one, other] = [line.before, line.after];
            const errors = (other?.errors ?? 0) - (one?.errors ?? 0);
            return (
              <tr key={index} class={one === null ? "new" : other === null ? "gone" : ""}>
                <td class="wide" style={{ paddingLeft: `${line.depth * 16 + 8}px` }}>
                  {name} <i>{suffix}</i>
                  {one === null && <span class="badge">only after</span>}
                  {other === null && <span class="badge">only before</span>}
                  {errors !== 0 && <span class={`badge ${errors > 0 ? "error" : ""}`}>{`${errors > 0 ? "+" : "−"}${figure(Math.abs(errors))} failed`}</span>}
                </td>
                <td class="number">{one?.count === other?.count ? figure(one?.count ?? 0) : `${figure(one?.count ?? 0)} → ${figure(other?.count ?? 0)}`}</td>
                <td class="number">{one ? elapsed(one.total_ns) : ""}</td>
                <td class="number">{other ? elapsed(other.total_ns) : ""}</td>
                <td class="change">
                  <Change share={line.own / most} />
                </td>
                <td class={`number ${line.own > 0 ? "more" : "less"}`}>{line.own === 0 ? "" : `${line.own > 0 ? "+" : "−"}${elapsed(Math.abs(line.own))}`}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {(rows.length < all.length || showsAll.value) && (
        <button aria-pressed={showsAll.value} onClick={() => (showsAll.value = !showsAll.value)}>
          {showsAll.value ? "Only what differs" : `Show ${count(all.length - rows.length, "path")} more that hardly differ`}
        </button>
      )}
      {found.left_out > 0 && <p class="quiet">{count(found.left_out, "further path")} were left out.</p>}
    </>
  );
}

function Change({ share }: { share: number }) {
  const wide = `${Math.abs(share) * 50}%`;
  return (
    <span class="changes" aria-hidden="true">
      <i class={share > 0 ? "more" : "less"} style={share > 0 ? { left: "50%", width: wide } : { right: "50%", width: wide }} />
    </span>
  );
}
