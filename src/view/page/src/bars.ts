/** Bars on a canvas, for the rows that can be seen. */
import { type Columns, CRITICAL, ERROR, MISSING, RUNNING, type Range, ticks } from "./layout";
import { elapsed } from "./format";

export const ROW = 22;
const BAR = 12;
const NARROWEST = 2;
const SCALE = 90;

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

export function drawBars(
  canvas: HTMLCanvasElement,
  columns: Columns,
  rows: number[],
  scrollTop: number,
  range: Range,
  sinceFetched: number,
): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  const x = (time: number) => ((time - range.from) / (range.to - range.from || 1)) * width;
  context.fillStyle = colour.line;
  for (const time of ticks(range, width / SCALE)) context.fillRect(Math.round(x(time)), 0, 1, height);
  context.fillStyle = colour.queued;
  for (const [start, duration] of columns.queued) context.fillRect(x(start), 0, x(start + duration) - x(start), height);
  const first = Math.floor(scrollTop / ROW);
  const last = Math.min(rows.length, Math.ceil((scrollTop + height) / ROW));
  for (let at = first; at < last; at++) {
    const row = rows[at];
    const flags = columns.flags[row];
    if (flags & MISSING) continue;
    const left = x(columns.start[row]);
    const right = x(columns.start[row] + durationOf(columns, row, sinceFetched));
    if (right < 0 || left > width) continue;
    const from = Math.max(left, -NARROWEST);
    const wide = Math.max(Math.min(right, width + NARROWEST) - from, NARROWEST);
    const top = at * ROW - scrollTop + (ROW - BAR) / 2;
    context.fillStyle = flags & ERROR ? colour.error : colour.bars[columns.process[row] % colour.bars.length];
    context.globalAlpha = flags & RUNNING ? 0.55 : 1;
    context.fillRect(from, top, wide, BAR);
    context.globalAlpha = 1;
    if (flags & CRITICAL) {
      context.fillStyle = colour.critical;
      context.fillRect(from, top + BAR, wide, 2);
    }
  }
}

/** The scale above the bars. */
export function drawScale(canvas: HTMLCanvasElement, range: Range): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  for (const time of ticks(range, width / SCALE)) {
    const at = Math.round(((time - range.from) / (range.to - range.from || 1)) * width);
    context.fillStyle = colour.line;
    context.fillRect(at, 0, 1, height);
    context.fillStyle = colour.text;
    context.fillText(elapsed(time), at + 4, height / 2);
  }
}

/** All rows at once, a line of pixels each, with the range that the bars show. */
export function drawMinimap(canvas: HTMLCanvasElement, columns: Columns, range: Range, total: number, sinceFetched: number): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  const count = columns.depth.length;
  const thick = Math.max(1, Math.min(3, height / count));
  for (let row = 0; row < count; row++) {
    const flags = columns.flags[row];
    if (flags & MISSING) continue;
    context.fillStyle = flags & ERROR ? colour.error : colour.bars[columns.process[row] % colour.bars.length];
    const left = (columns.start[row] / total) * width;
    const wide = (durationOf(columns, row, sinceFetched) / total) * width;
    context.fillRect(left, (row / count) * (height - thick), Math.max(wide, 1), thick);
  }
  context.fillStyle = colour.text;
  context.globalAlpha = 0.25;
  const [from, to] = [(range.from / total) * width, (range.to / total) * width];
  context.fillRect(0, 0, from, height);
  context.fillRect(to, 0, width - to, height);
  context.globalAlpha = 1;
}
