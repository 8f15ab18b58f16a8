/** The address of what is shown: all of it is in the fragment, so that a link is a finding. */
import { signal } from "@preact/signals";

export interface Place {
  /** `["trace", "4bf9…"]` */
  path: string[];
  parameters: URLSearchParams;
}

function parse(hash = location.hash): Place {
  const [path, query] = hash.replace(/^#/, "").split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), parameters: new URLSearchParams(query ?? "") };
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const place = signal<Place>(parse());

/** A browser takes milliseconds for a change of the address, and refuses many of them in a short time: while a key is held, it is changed so often. */
const WRITE_MS = 200;
/** The address as it was written or gone to last; what is to be written; when the last one was. */
let written = location.hash;
let pending: string | undefined;
let writtenAt = -Infinity;
let timer: ReturnType<typeof setTimeout> | undefined;

addEventListener("hashchange", () => {
  [written, pending] = [location.hash, undefined];
  place.value = parse();
});
// What leads away leaves the address as it is shown.
addEventListener("click", write, true);
addEventListener("pagehide", write);

function write(): void {
  clearTimeout(timer);
  timer = undefined;
  // Not over another place that has been gone to since.
  if (pending !== undefined && location.hash === written) {
    history.replaceState(null, "", pending);
    [written, writtenAt] = [location.hash, performance.now()];
  }
  pending = undefined;
}

export function address(path: string[], parameters: Record<string, string | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value) query.set(name, value);
  const text = query.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Changes parameters of the place without a step in the history. */
export function refine(changes: Record<string, string | undefined>): void {
  const parameters: Record<string, string | undefined> = Object.fromEntries(place.value.parameters);
  pending = address(place.value.path, { ...parameters, ...changes });
  place.value = parse(pending);
  const pause = writtenAt + WRITE_MS - performance.now();
  if (pause <= 0) write();
  else timer ??= setTimeout(write, pause);
}

/** Goes to a place, with a step in the history. */
export function visit(hash: string): void {
  write();
  location.hash = hash;
}

export function replace(hash: string): void {
  pending = hash;
  place.value = parse(hash);
  write();
}
