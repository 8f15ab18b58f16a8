/** Attributes by which the traces of a region differ from the others. */
import { useFetched } from "./fetched";
import { count, shown } from "./format";
import type { Region } from "./heat";
import { ProblemText } from "./problem";
import { address, place, refine } from "./url";

interface Difference {
  key: string;
  value: string;
  query: string | null;
  selected: number;
  others: number;
  difference: number;
  example: string;
}

interface Differences {
  revision: number;
  selected: number;
  others: number;
  values: Difference[];
  left_out: number;
}

/** Differences that are shown. */
const MOST = 12;

export function DifferencesView({ query, region }: { query: string; region: Region }) {
  const parameters = new URLSearchParams({ query, limit: String(MOST), ...region });
  const { value, problem } = useFetched<Differences>(`differences?${parameters}`);
  const found = value.value;
  return (
    <section class="differences">
      <ProblemText problem={problem.value} />
      {found && <Found found={found} />}
    </section>
  );
}

function Found({ found }: { found: Differences }) {
  const { selected, others, values } = found;
  if (selected === 0) return <p>No trace is in this region any more.</p>;
  if (others === 0) return <p>All traces are in this region.</p>;
  if (values.length === 0) return <p>No attribute differs between {count(selected, "trace")} here and {count(others, "other")}.</p>;
  return (
    <table>
      <caption>
        What is different in {count(selected, "trace")}, beside {count(others, "other")}
      </caption>
      <thead>
        <tr>
          <th scope="col">Attribute</th>
          <th scope="col">Value</th>
          <th scope="col">Share here</th>
          <th scope="col">Elsewhere</th>
          <th scope="col">Example</th>
        </tr>
      </thead>
      <tbody>
        {values.map((row) => (
          <tr key={`${row.key}=${row.value}`}>
            <td>
              <code>{shown(row.key)}</code>
            </td>
            <td class="value">{row.query ? <Term row={row} /> : shown(row.value)}</td>
            <Share part={row.selected} whole={selected} />
            <Share part={row.others} whole={others} />
            <td>
              <a href={address(["trace", row.example])}>
                <code>{row.example.slice(0, 12)}</code>
              </a>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** A value that is added to the query. */
function Term({ row }: { row: Difference }) {
  const query = place.value.parameters.get("query") ?? "";
  const wanted = `${query} ${row.query}`.trim();
  return (
    <button class="term" title={`Only traces with ${row.query}`} onClick={() => refine({ query: wanted })}>
      {shown(row.value)}
    </button>
  );
}

function Share({ part, whole }: { part: number; whole: number }) {
  const share = `${Math.round((100 * part) / whole)} %`;
  return (
    <td class="share-of">
      <meter min={0} max={whole} value={part} aria-label={share} /> <span class="number">{share}</span>
    </td>
  );
}
