/** The page: its frame, and which view is shown. */
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { access, enter, follow, isLive, refusal } from "./api";
import { Now } from "./now";
import { TraceView } from "./trace";
import { Traces } from "./traces";
import { address, place, replace } from "./url";

const VIEWS = [
  ["traces", "Traces"],
  ["now", "Now"],
];

function View() {
  const [view, id] = place.value.path;
  if (view === "trace" && id) return <TraceView key={id} id={id} />;
  if (view === "now") return <Now />;
  return <Traces />;
}

function Page() {
  useEffect(() => {
    if (access.value === "in") follow();
  }, [access.value]);
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
  const current = place.value.path[0] ?? "traces";
  return (
    <>
      <header>
        <a class="mark" href={address(["traces"])}>
          tracer
        </a>
        <nav aria-label="Views">
          {VIEWS.map(([path, title]) => (
            <a key={path} href={address([path])} aria-current={current === path ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <span class={isLive.value ? "live" : "live off"} role="status">
          {isLive.value ? "live" : "not connected"}
        </span>
      </header>
      <main>
        <View />
      </main>
    </>
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
