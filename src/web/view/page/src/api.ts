/** Requests to the server: each shows the token in a header; there are no cookies. */
import { signal } from "@preact/signals";
import { replace } from "./url";

const KEY = "tracer.viewer";
const CONTROL_KEY = "tracer.control";

const JSON_BODY = { "content-type": "application/json" };

export type Access = "asking" | "in" | "out";
export const access = signal<Access>("asking");
/** Why the page was not let in. */
export const refusal = signal("");
/** True if the link was made to control: tasks may be cancelled. */
export const mayCancel = signal(localStorage.getItem(CONTROL_KEY) === "yes");
/** The newest revision of which the server has told, and whether it is being listened to. */
export const revision = signal(0);
export const isLive = signal(false);

/** What a server says when something is wrong (RFC 9457). */
export class Problem extends Error {
  constructor(readonly status: number, message: string, readonly hint: string | undefined) {
    super(message);
  }
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const { detail, title, hint } = await response.json();
    return new Problem(response.status, detail ?? title, hint);
  } catch {
    return new Problem(response.status, `the server answered with ${response.status}`, undefined);
  }
}

/** Exchanges the code of the link for a token, or takes the token that this browser has for the server. */
export async function enter(): Promise<void> {
  const link = new URLSearchParams(location.hash.replace(/^#/, ""));
  const code = link.get("code");
  if (code) {
    // Out of the address before anything else: it must not stay in the history.
    replace(`#${link.get("to") ?? "/traces"}`);
    const response = await fetch("api/v1/viewer", { method: "POST", headers: JSON_BODY, body: JSON.stringify({ code }) });
    if (response.ok) {
      const { token, may_cancel } = await response.json();
      localStorage.setItem(KEY, token);
      localStorage.setItem(CONTROL_KEY, may_cancel ? "yes" : "no");
      mayCancel.value = may_cancel;
    } else if (!localStorage.getItem(KEY)) {
      return leave(await problemOf(response));
    }
  }
  if (!localStorage.getItem(KEY)) return leave(new Problem(401, "this page has no link", undefined));
  access.value = "in";
}

function leave(problem: Problem): void {
  localStorage.removeItem(KEY);
  refusal.value = problem.message;
  access.value = "out";
}

async function ask(path: string, signal?: AbortSignal, method = "GET"): Promise<Response> {
  const headers = { authorization: `Bearer ${localStorage.getItem(KEY)}` };
  const response = await fetch(`api/v1/${path}`, { method, headers, signal });
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401) leave(problem);
  throw problem;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, signal)).json();
}

/** Cancels a task; it fails unless `mayCancel`. */
export async function cancel(task: number): Promise<void> {
  await ask(`tasks/${task}/cancel`, undefined, "POST");
}

const RETRY_MS = [250, 500, 1000, 2000];

/** Follows the revisions while the page can be seen, over interruptions. */
export async function follow(): Promise<void> {
  for (let failures = 0; access.value === "in"; ) {
    if (document.hidden) {
      await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
      continue;
    }
    const hidden = new AbortController();
    const onHidden = () => document.hidden && hidden.abort();
    document.addEventListener("visibilitychange", onHidden);
    try {
      // The server says what has changed since the last event that came.
      const events = revision.value > 0 ? `events?after=${revision.value}` : "events";
      await read(await ask(events, hidden.signal), () => (failures = 0));
    } catch {
      // Below it is tried again.
    } finally {
      document.removeEventListener("visibilitychange", onHidden);
      isLive.value = false;
    }
    if (!hidden.signal.aborted) {
      const pause = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
}

async function read(response: Response, onEvent: () => void): Promise<void> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  isLive.value = true;
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (text + value).split("\n\n");
    text = events.pop()!;
    for (const event of events) {
      const id = /^id: (\d+)$/m.exec(event);
      if (id) {
        onEvent();
        revision.value = Number(id[1]);
      }
    }
  }
}
