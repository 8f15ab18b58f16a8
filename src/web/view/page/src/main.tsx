/** The page: its frame, and which view is shown. */
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { access, enter, follow, isLive, refusal } from "./api";
import { Compare } from "./compare";
import { Help, toggleHelp, useKeys } from "./keys";
import { useFetched } from "./fetched";
import { Actors, UNAVAILABLE, Workers } from "./lists";
import { Logs } from "./logs";
import { Metrics } from "./metrics";
import { Now } from "./now";
import { Services } from "./services";
import { Tasks } from "./tasks";
import { TraceView } from "./trace";
import { Traces } from "./traces";
import { address, place, replace, visit } from "./url";

const VIEWS: [string, string, () => preact.JSX.Element][] = [
  ["traces", "Traces", Traces],
  ["now", "Now", Now],
  ["tasks", "Tasks", Tasks],
  ["actors", "Actors", Actors],
  ["workers", "Workers", Workers],
  ["services", "Services", Services],
  ["logs", "Logs", Logs],
  ["metrics", "Metrics", Metrics],
  ["compare", "Compare", Compare],
];

function View() {
  const [view, id] = place.value.path;
  if (view === "trace" && id) return <TraceView key={id} id={id} />;
  const Found = VIEWS.find(([path]) => path === view)?.[2] ?? Traces;
  return <Found />;
}

function Page() {
  useEffect(() => {
    if (access.value === "in") follow();
  }, [access.value]);
  useKeys([
    { keys: VIEWS.map((_, index) => String(index + 1)), meaning: VIEWS.map(([, title]) => title).join(", "), action: (key) => visit(address([VIEWS[Number(key) - 1][0]])) },
    { keys: ["?"], meaning: "these keys", action: toggleHelp },
  ]);
  if (access.value === "out") {
    return (
      <main class="notice">
        <h1>This link does not work any more</h1>
        <p>{refusal.value}. A link works once, within a minute.</p>
        <p>
          <code>tracer view</code> makes a new one; where it runs, Enter does.
        </p>
      </main>
    );
  }
  if (access.value === "asking") return <main class="notice" aria-busy="true" />;
  const current = place.value.path[0] === "trace" ? "traces" : (place.value.path[0] ?? "traces");
  return (
    <>
      <header>
        <a class="mark" href={address(["traces"])}>
          <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
            <rect x="1" y="2" width="14" height="3" rx="1.5" />
            <rect x="4" y="6.5" width="8" height="3" rx="1.5" />
            <rect x="8" y="11" width="5" height="3" rx="1.5" />
          </svg>
          tracer
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([path, title]) => (
            <a key={path} href={address([path])} aria-current={current === path ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <button class="plain" onClick={toggleHelp} aria-label="Keys" title="Keys ( ? )">
          ?
        </button>
        <Live />
      </header>
      <main>
        <View />
      </main>
      <Help />
    </>
  );
}

const HEAD_INTERVAL_MS = 5000;

/** Says whether what is shown follows what happens: the server tells of changes, and a head runs in which something can happen. */
function Live() {
  const { problem } = useFetched("status", { every: HEAD_INTERVAL_MS });
  if (!isLive.value) {
    return (
      <span class="live off" role="status">
        not connected
      </span>
    );
  }
  const isAlone = problem.value?.status === UNAVAILABLE;
  return (
    <span class={isAlone ? "live alone" : "live"} role="status" title={isAlone ? "No head writes to this folder now: only new files would be shown" : undefined}>
      {isAlone ? "no head" : "live"}
    </span>
  );
}

if (!location.hash) replace("#/traces");
// The code of a link may come while the page is open.
addEventListener("hashchange", () => location.hash.startsWith("#code=") && location.reload());
await enter().catch(() => {
  refusal.value = "the server cannot be reached";
  access.value = "out";
});
render(<Page />, document.getElementById("page")!);
