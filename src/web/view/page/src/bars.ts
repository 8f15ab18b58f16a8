/** Bars on a canvas, for the rows that can be seen. */
import type { Axis, Stretch } from "./axis";
import { type Columns, CRITICAL, ERROR, MISSING, RUNNING, type Range } from "./layout";
import { tick } from "./format";

export const ROW = 22;
const BAR = 12;
const NARROWEST = 2;
/** Pixels between two lines of the scale. */
export const SCALE = 90;
export const FONT = "11px system-ui, sans-serif";

interface Colours {
  bars: string[];
  error: string;
  critical: string;
  line: string;
  text: string;
  queued: string;
  /** Of a name on a bar. */
  named: string;
}

/** The colours of the scheme that is in force. */
export function colours(element: Element): Colours {
  const style = getComputedStyle(element);
  const get = (name: string) => style.getPropertyValue(name).trim();
  return {
    bars: [0, 1, 2, 3, 4, 5].map((index) => get(`--bar-${index}`)),
    error: get("--error"),
    critical: get("--critical"),
    line: get("--line"),
    text: get("--quiet"),
    queued: get("--queued"),
    named: get("--named"),
  };
}

/** Makes the canvas as many pixels as it takes on the screen, and returns what draws on it in CSS pixels. */
export function prepare(canvas: HTMLCanvasElement): [CanvasRenderingContext2D, number, number] | undefined {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  if (!context || width === 0) return undefined;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

/** How far a span reaches; one that runs reaches to now. */
export function durationOf(columns: Columns, row: number, sinceFetched: number): number {
  return columns.duration[row] + (columns.flags[row] & RUNNING ? sinceFetched : 0);
}

/** What is drawn beside the bars. */
export interface Marks {
  /** Times in which nothing ran. */
  gaps: Stretch[];
  /** For rows of attempts, how long they were queued. */
  queued: ReadonlyMap<number, number>;
  /** For rows that stand for several, all of these. */
  groups: ReadonlyMap<number, number[]>;
}

export function drawBars(
  canvas: HTMLCanvasElement,
  columns: Columns,
  rows: number[],
  scrollTop: number,
  axis: Axis,
  range: Range,
  sinceFetched: number,
  marks: Marks,
): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  const scale = width / (range.to - range.from || 1);
  const x = (time: number) => (axis.at(time) - range.from) * scale;
  context.fillStyle = colour.line;
  for (const time of axis.ticks(range, width / SCALE)) context.fillRect(Math.round(x(time)), 0, 1, height);
  context.fillStyle = colour.queued;
  for (const { start, duration } of marks.gaps) context.fillRect(x(start), 0, Math.max(x(start + duration) - x(start), 1), height);
  const first = Math.floor(scrollTop / ROW);
  const last = Math.min(rows.length, Math.ceil((scrollTop + height) / ROW));
  context.font = FONT;
  context.textBaseline = "middle";
  for (let at = first; at < last; at++) {
    const row = rows[at];
    const flags = columns.flags[row];
    const middle = at * ROW - scrollTop + ROW / 2;
    if (flags & MISSING) continue;
    const members = marks.groups.get(row);
    if (members) {
      context.fillStyle = colour.bars[columns.process[row] % colour.bars.length];
      let drawn = -1;
      for (const member of members) {
        const from = Math.max(x(columns.start[member]), drawn, -NARROWEST);
        const to = Math.min(Math.max(x(columns.start[member] + columns.duration[member]), from + 1), width + NARROWEST);
        // What would be beside or over what is there already is not drawn again.
        if (to - drawn < 0.5 || from > width || to < 0) continue;
        context.fillRect(from, middle - BAR / 2, to - from, BAR);
        drawn = to;
      }
      continue;
    }
    const start = columns.start[row];
    const [left, right] = [x(start), x(start + durationOf(columns, row, sinceFetched))];
    const queued = marks.queued.get(row);
    if (queued) {
      // A thin line from the submission to the start.
      const from = Math.max(x(Math.max(start - queued, 0)), 0);
      context.fillStyle = colour.text;
      context.globalAlpha = 0.5;
      if (left > from) {
        context.fillRect(from, middle - 0.5, left - from, 1);
        context.fillRect(from, middle - 3, 1, 6);
      }
      context.globalAlpha = 1;
    }
    if (right < 0 || left > width) continue;
    const from = Math.max(left, -NARROWEST);
    const wide = Math.max(Math.min(right, width + NARROWEST) - from, NARROWEST);
    const top = middle - BAR / 2;
    context.fillStyle = flags & ERROR ? colour.error : colour.bars[columns.process[row] % colour.bars.length];
    context.globalAlpha = flags & RUNNING ? 0.6 : 1;
    box(context, from, top, wide, BAR);
    context.globalAlpha = 1;
    if (flags & CRITICAL) {
      context.fillStyle = colour.critical;
      context.fillRect(from, top + BAR + 1, wide, 2);
    }
  }
}

/** A rectangle with round corners, where it is wide enough for them. */
function box(context: CanvasRenderingContext2D, x: number, y: number, wide: number, high: number): void {
  if (wide < 6) {
    context.fillRect(x, y, wide, high);
    return;
  }
  context.beginPath();
  context.roundRect(x, y, wide, high, 2);
  context.fill();
}

/** The scale above the bars. */
export function drawScale(canvas: HTMLCanvasElement, axis: Axis, range: Range): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  context.font = FONT;
  context.textBaseline = "middle";
  const scale = width / (range.to - range.from || 1);
  const folds = axis.segments.filter((segment) => segment.isFolded).map(({ at, until }) => [(at - range.from) * scale, (until - range.from) * scale]);
  let free = -1;
  const times = axis.ticks(range, width / SCALE);
  const step = times.reduce((least, time, at) => (at > 0 ? Math.min(least, time - times[at - 1]) : least), Infinity);
  for (const time of times) {
    const at = Math.round((axis.at(time) - range.from) * scale);
    context.fillStyle = colour.line;
    context.fillRect(at, 0, 1, height);
    const text = tick(time, step);
    const end = at + context.measureText(text).width + 6;
    if (at < free || end > width || folds.some(([from, to]) => at < to && end > from)) continue;
    context.fillStyle = colour.text;
    context.fillText(text, at + 4, height / 2);
    free = end + 4;
  }
  for (const [from, to] of folds) {
    if (to < 0 || from > width) continue;
    context.fillStyle = colour.text;
    context.textAlign = "center";
    context.fillText("⋯", (from + to) / 2, height / 2);
    context.textAlign = "start";
  }
}

/** A picture of all rows, kept while nothing of it changes. */
interface Picture {
  of: unknown[];
  canvas: HTMLCanvasElement;
}

let picture: Picture | undefined;

/** All rows at once, a line of pixels each, with the range that the bars show. */
export function drawMinimap(canvas: HTMLCanvasElement, columns: Columns, axis: Axis, range: Range, sinceFetched: number): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  const of = [columns, axis.total, axis.segments.length, canvas.width, canvas.height, colour.error, sinceFetched];
  if (!picture || of.some((value, at) => value !== picture!.of[at])) {
    picture = { of, canvas: document.createElement("canvas") };
    [picture.canvas.width, picture.canvas.height] = [canvas.width, canvas.height];
    drawRows(picture.canvas, columns, axis, sinceFetched, colour);
  }
  context.drawImage(picture.canvas, 0, 0, width, height);
  const [from, to] = [(range.from / axis.total) * width, (range.to / axis.total) * width];
  if (from <= 0 && to >= width) return;
  context.fillStyle = colour.text;
  context.globalAlpha = 0.25;
  context.fillRect(0, 0, from, height);
  context.fillRect(to, 0, width - to, height);
  context.globalAlpha = 1;
  context.strokeStyle = colour.text;
  context.strokeRect(from + 0.5, 0.5, to - from - 1, height - 1);
}

/** A colour as the four bytes of a pixel. */
function pixel(context: CanvasRenderingContext2D, colour: string): number {
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer)[0];
}

/** Pixels are written one by one: there may be a hundred times as many rows as lines. */
function drawRows(canvas: HTMLCanvasElement, columns: Columns, axis: Axis, sinceFetched: number, colour: Colours): void {
  const context = canvas.getContext("2d")!;
  const { width, height } = canvas;
  const [error, ...bars] = [colour.error, ...colour.bars].map((each) => pixel(context, each));
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const count = columns.depth.length;
  const thick = Math.max(1, Math.min(Math.round(3 * devicePixelRatio), Math.floor(height / count)));
  for (let row = 0; row < count; row++) {
    const flags = columns.flags[row];
    if (flags & MISSING) continue;
    const start = columns.start[row];
    const left = Math.min(Math.floor((axis.at(start) / axis.total) * width), width - 1);
    const right = Math.max(Math.min(Math.ceil((axis.at(start + durationOf(columns, row, sinceFetched)) / axis.total) * width), width), left + 1);
    const top = Math.floor((row / count) * (height - thick));
    const value = flags & ERROR ? error : bars[columns.process[row] % bars.length];
    for (let y = top; y < top + thick; y++) pixels.fill(value, y * width + left, y * width + right);
  }
  context.putImageData(image, 0, 0);
}
