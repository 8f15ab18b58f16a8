/** Texts for people. */

const UNITS: [number, string, number][] = [
  [1e3, "ns", 1],
  [1e6, "µs", 1e3],
  [1e9, "ms", 1e6],
  [60e9, "s", 1e9],
];

/** A duration in nanoseconds with three digits: `711 µs`, `1.25 s`, `2 min 05 s`. */
export function elapsed(ns: number): string {
  for (const [below, unit, size] of UNITS) {
    if (ns < below) {
      const value = ns / size;
      return `${value.toFixed(size === 1 || value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
    }
  }
  const seconds = Math.floor(ns / 1e9);
  const two = (value: number) => String(value).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${two(Math.floor(seconds / 60) % 60)} min`;
}

/** The characters that steer a terminal, hide, or turn the direction of text around. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text from a span, with characters that would not be seen written as `\u{202e}`. */
export function shown(text: string): string {
  return text.replace(UNSEEN, (c) => `\\u{${c.charCodeAt(0).toString(16)}}`);
}

/** A text of several lines, each as `shown` has it. */
export function shownLines(text: string): string {
  return text.split("\n").map(shown).join("\n");
}

/** A time on a scale with lines so far from each other: with as many digits as tell it from the next one. */
export function tick(ns: number, step: number): string {
  if (ns < 60e9 || step >= 1e9) return elapsed(ns);
  const seconds = ns % 60e9 / 1e9;
  const digits = Math.min(9, Math.ceil(9 - Math.log10(step)));
  return `${Math.floor(ns / 60e9)} min ${seconds.toFixed(digits).padStart(digits + 3, "0")} s`;
}

/** The time of day of a text of RFC 3339, in this place, with milliseconds. */
export function timeOfDay(text: string): string {
  const time = new Date(text);
  const two = (value: number, digits = 2) => String(value).padStart(digits, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${two(time.getMilliseconds(), 3)}`;
}

/** `1 span`, `2 spans`. */
export function count(number: number, noun: string, nouns = `${noun}s`): string {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : nouns}`;
}

/** A number of bytes with three digits: `34.5 MiB`. */
export function bytes(number: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (number >= 1024 && at < units.length - 1) {
    number /= 1024;
    at++;
  }
  return `${number.toFixed(at === 0 || number >= 100 ? 0 : number >= 10 ? 1 : 2)} ${units[at]}`;
}

/** A number with three digits: `12.3`, `4,560`. */
export function figure(number: number): string {
  return number.toLocaleString("en", { maximumFractionDigits: number >= 100 ? 0 : number >= 10 ? 1 : 2 });
}

/** The part of a name that says what tracer does there, behind the function's: `tracer.remote_worker`. */
const SUFFIX = / (tracer\.remote(?:_worker)?)$/;

/** A name in two parts: what it is of, and what tracer does there. */
export function parts(name: string): [string, string] {
  const found = SUFFIX.exec(name);
  return found ? [shown(name.slice(0, found.index)), found[1]] : [shown(name), ""];
}

/** Attributes in few words: keys by their last part, unless two of them end alike. */
export function labels(attributes: Record<string, unknown>): string {
  const last = (key: string) => key.slice(key.lastIndexOf(".") + 1);
  const keys = Object.keys(attributes);
  const name = (key: string) => (keys.some((other) => other !== key && last(other) === last(key)) ? key : last(key));
  return keys.map((key) => `${shown(name(key))} ${shown(String(attributes[key]))}`).join(", ");
}
