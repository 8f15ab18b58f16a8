/** The address of what is shown: all of it is in the fragment, so that a link is a finding. */
import { signal } from "@preact/signals";

export interface Place {
  /** `["trace", "4bf9…"]` */
  path: string[];
  parameters: URLSearchParams;
}

function parse(): Place {
  const [path, query] = location.hash.replace(/^#/, "").split("?", 2);
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

addEventListener("hashchange", () => (place.value = parse()));

export function address(path: string[], parameters: Record<string, string | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value) query.set(name, value);
  const text = query.toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** Changes parameters of the place without a step in the history. */
export function refine(changes: Record<string, string | undefined>): void {
  const parameters: Record<string, string | undefined> = Object.fromEntries(place.value.parameters);
  replace(address(place.value.path, { ...parameters, ...changes }));
}

/** Goes to a place, with a step in the history. */
export function visit(hash: string): void {
  location.hash = hash;
}

export function replace(hash: string): void {
  history.replaceState(null, "", hash);
  place.value = parse();
}
