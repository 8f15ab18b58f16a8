/** The axis of time of a trace, on which times in which nothing runs can be folded. Pure. */
import { type Range, ticks } from "./layout";

/** A time of the trace, in nanoseconds since its start. */
export interface Stretch {
  start: number;
  duration: number;
}

/** A part of the axis: from and to in time, and where they are on the axis. */
interface Segment {
  from: number;
  to: number;
  at: number;
  until: number;
  isFolded: boolean;
}

/** A fold is as wide as this part of all that is not folded. */
const FOLDED = 0.02;

export class Axis {
  /** Width in the units of the axis, which are nanoseconds where nothing is folded. */
  readonly total: number;
  readonly segments: Segment[] = [];

  constructor(time: number, folds: Stretch[] = []) {
    const folded = folds.reduce((sum, fold) => sum + Math.max(0, Math.min(fold.duration, time - fold.start)), 0);
    const wide = (time - folded) * FOLDED;
    let [from, at] = [0, 0];
    const add = (to: number, width: number, isFolded: boolean) => {
      if (to <= from) return;
      this.segments.push({ from, to, at, until: at + width, isFolded });
      [from, at] = [to, at + width];
    };
    for (const fold of folds) {
      add(Math.min(fold.start, time), Math.min(fold.start, time) - from, false);
      const end = Math.min(fold.start + fold.duration, time);
      // What is hardly longer than its fold stays as it is.
      const isFolded = end - from > wide * 2;
      add(end, isFolded ? wide : end - from, isFolded);
    }
    add(time, time - from, false);
    this.total = Math.max(at, 1);
  }

  get isFolded(): boolean {
    return this.segments.length > 1;
  }

  /** Where a time is. */
  at(time: number): number {
    if (this.segments.length < 2) return time;
    const { from, to, at, until } = this.#segment((segment) => segment.to > time);
    return at + ((time - from) / (to - from)) * (until - at);
  }

  /** The time that is there. */
  time(at: number): number {
    if (this.segments.length < 2) return at;
    const segment = this.#segment((segment) => segment.until > at);
    return segment.from + ((at - segment.at) / (segment.until - segment.at)) * (segment.to - segment.from);
  }

  /** The first segment that reaches far enough, or the last. */
  #segment(reaches: (segment: Segment) => boolean): Segment {
    let [low, high] = [0, this.segments.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (reaches(this.segments[middle])) high = middle;
      else low = middle + 1;
    }
    return this.segments[low];
  }

  /** Times to be written on a part of the axis, at most so many; none in folds. */
  ticks(range: Range, most: number): number[] {
    if (this.segments.length < 2) return ticks(range, most);
    const width = range.to - range.from || 1;
    return this.segments.flatMap((segment) => {
      const [at, until] = [Math.max(segment.at, range.from), Math.min(segment.until, range.to)];
      if (segment.isFolded || until <= at) return [];
      const within = { from: this.time(at), to: segment.from + (until - segment.at) };
      return ticks(within, Math.max(1, (most * (until - at)) / width));
    });
  }
}
