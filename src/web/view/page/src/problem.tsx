import type { Problem } from "./api";
import { shown } from "./format";

/** What went wrong, as the server said it: a query that does not parse has its mistake marked on a line of its own. */
export function ProblemText({ problem }: { problem: Problem | undefined }) {
  if (!problem) return null;
  return (
    <div class="problem" role="alert">
      <pre>{problem.message.split("\n").map(shown).join("\n")}</pre>
      {problem.hint && <p>{shown(problem.hint)}</p>}
    </div>
  );
}
