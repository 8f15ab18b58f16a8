/** What is open in all processes. */
import { useClock } from "./clock";
import { useFetched } from "./fetched";
import { count, elapsed, shown } from "./format";
import { ProblemText } from "./problem";
import { address } from "./url";

interface OpenSpan {
  trace_id: string;
  span_id: string;
  name: string;
  age_ns: number;
  task_id: number | null;
}

interface Open {
  revision: number;
  open: number;
  processes: { pid: number; service: string; spans: OpenSpan[] }[];
}

/** The most spans of a process that are shown. */
const MOST = 50;

export function Now() {
  const { value, problem, at } = useFetched<Open>("open");
  const open = value.value;
  const now = useClock((open?.open ?? 0) > 0);
  const since = Math.max(0, now.value - at.value) * 1e6;
  const oldest = Math.max(1, ...(open?.processes.map((process) => process.spans[0]?.age_ns ?? 0) ?? [])) + since;
  return (
    <section class="now">
      <h1 class="unseen">Now</h1>
      <ProblemText problem={problem.value} />
      {open && <p>{open.open === 0 ? "Nothing is open." : `${count(open.open, "span")} open in ${open.processes.length === 1 ? "one process" : `${open.processes.length} processes`}.`}</p>}
      {open?.processes.map((process) => (
        <section key={process.pid}>
          <h2>
            pid {process.pid} <span class="quiet">{shown(process.service)}</span>
          </h2>
          <ul>
            {process.spans.slice(0, MOST).map((span) => (
              <li key={span.span_id}>
                <a href={address(["trace", span.trace_id], { span: span.span_id })}>{shown(span.name)}</a>
                {span.task_id !== null && <span class="quiet">task {span.task_id}</span>}
                <meter min={0} max={oldest} value={span.age_ns + since} aria-label="Age beside the oldest" />
                <span class="number">{elapsed(span.age_ns + since)}</span>
              </li>
            ))}
          </ul>
          {process.spans.length > MOST && <p class="quiet">and {count(process.spans.length - MOST, "further span")}</p>}
        </section>
      ))}
    </section>
  );
}
