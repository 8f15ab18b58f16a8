/** Pure functions of the view of now: rates between two answers, and the logarithmic scale of ages. */

/** Counters of a head at a time, in milliseconds since the Unix epoch. */
export interface Totals {
  at: number;
  pid: number;
  ended: number;
  failed: number;
}

export interface Rate {
  ended: number;
  failed: number;
}

/** Rates over less time than this say little. */
const SHORTEST_MS = 500;

/** The rates from one answer to another: none after a new head, which counts from 0; `wait` if too little time has passed. */
export function rateBetween(before: Totals | undefined, after: Totals): Rate | undefined | "wait" {
  if (!before || before.pid !== after.pid || after.ended < before.ended) return undefined;
  const ms = after.at - before.at;
  if (ms < SHORTEST_MS) return "wait";
  const each = (from: number, to: number) => (Math.max(0, to - from) * 1000) / ms;
  return { ended: each(before.ended, after.ended), failed: each(before.failed, after.failed) };
}

/** Below this age a bar has its least width. */
const YOUNGEST_NS = 1e6;
const AGES: number[] = [1e6, 1e7, 1e8, 1e9, 1e10, 6e10, 6e11, 3.6e12, 3.6e13, 8.64e13, 8.64e14];

/** The end of the scale for the oldest age: a bit more, so that bars grow within it, and at least a second. */
export function span(oldest: number): number {
  return Math.max(oldest * 1.3, 1.2e9);
}

/** How far from now an age is on the scale, from 0 to 1. */
export function position(age: number, longest: number): number {
  return Math.min(Math.log1p(age / YOUNGEST_NS) / Math.log1p(longest / YOUNGEST_NS), 1);
}

/** The ages that are written on the scale: those that leave room between each other. */
export function tickAges(longest: number): number[] {
  const found: number[] = [];
  for (const age of AGES) {
    const at = position(age, longest);
    const before = found.length > 0 ? position(found[found.length - 1], longest) : 0;
    if (at < 0.97 && at - before > 0.09) found.push(age);
  }
  return found;
}
