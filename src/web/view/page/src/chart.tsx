/** A trace as tracks or as a flame graph, on a canvas; the tree has the same for readers of the screen. */
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { Axis } from "./axis";
import { FONT, ROW, SCALE, colours, drawScale, prepare } from "./bars";
import { count, elapsed, shown } from "./format";
import type { Columns, Range } from "./layout";
import { type Box, type Chart, boxAt, flame, tracks } from "./shapes";

/** The narrowest box in which there is a name. */
const NAMED = 24;

interface Props {
  columns: Columns;
  shape: "tracks" | "flame";
  total: number;
  sinceFetched: number;
  axis: Axis;
  range: Range;
  find: string;
  /** Spans that the server has found. */
  found: ReadonlySet<string> | undefined;
  selected: string;
  onSelect: (row: number) => void;
}

/** Boxes that grow are laid out so often. */
const STEP_NS = 250e6;

export function ChartView({ columns, shape, total, sinceFetched, axis, range, find, found, selected, onSelect }: Props) {
  const grown = Math.floor(sinceFetched / STEP_NS) * STEP_NS;
  const chart = useMemo(
    () => (shape === "tracks" ? tracks(columns, total, grown) : flame(columns, grown)),
    [columns, shape, grown],
  );
  // A flame graph has no time that could be chosen.
  const shownRange = shape === "tracks" ? range : { from: 0, to: chart.total };
  const shownAxis = useMemo(() => (shape === "tracks" ? axis : new Axis(chart.total)), [shape, axis, chart]);
  const scale = useRef<HTMLCanvasElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const size = useSignal("");
  const top = useSignal(0);
  const pointed = useSignal<Box | undefined>(undefined);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([{ contentRect }]) => (size.value = `${contentRect.width} ${contentRect.height}`));
    observer.observe(scroller.current!);
    return () => observer.disconnect();
  }, []);
  useEffect(() => {
    const frame = requestAnimationFrame(() => {
      draw(canvas.current!, columns, chart, shownAxis, shownRange, top.value, find, found, selected);
      drawScale(scale.current!, shownAxis, shownRange);
    });
    return () => cancelAnimationFrame(frame);
  });
  const boxOf = (event: MouseEvent): Box | undefined => {
    const area = canvas.current!.getBoundingClientRect();
    const each = (shownRange.to - shownRange.from) / area.width;
    const line = Math.floor((event.clientY - area.top + top.value) / ROW);
    return boxAt(chart, line, shownAxis.time(shownRange.from + (event.clientX - area.left) * each), 3 * each);
  };
  const box = pointed.value;
  return (
    <div class="chart">
      <canvas ref={scale} class="scale" aria-hidden="true" />
      <canvas ref={canvas} class="boxes" role="img" aria-label={`${shape === "tracks" ? "Tracks" : "Flame graph"} of ${count(columns.depth.length, "span")}; the tree has the same as text`} />
      <div
        ref={scroller}
        class="over"
        tabIndex={0}
        role="group"
        aria-label="Scrolls the chart"
        onScroll={(event) => (top.value = event.currentTarget.scrollTop)}
        onPointerMove={(event) => (pointed.value = boxOf(event))}
        onPointerLeave={() => (pointed.value = undefined)}
        onClick={(event) => {
          const found = boxOf(event);
          if (found) onSelect(found.row);
        }}
      >
        <div style={{ height: `${chart.lines * ROW}px` }} />
      </div>
      <p class="pointed quiet" aria-hidden="true">
        {box ? `${shown(box.text)} · ${elapsed(box.to - box.from)}${box.count > 1 ? ` in ${count(box.count, "span")}` : ""}` : " "}
      </p>
    </div>
  );
}

function draw(
  canvas: HTMLCanvasElement,
  columns: Columns,
  chart: Chart,
  axis: Axis,
  range: Range,
  top: number,
  find: string,
  found: ReadonlySet<string> | undefined,
  selected: string,
): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const colour = colours(canvas);
  const wanted = find.trim().toLowerCase();
  const x = (time: number) => ((axis.at(time) - range.from) / (range.to - range.from || 1)) * width;
  context.fillStyle = colour.line;
  for (const time of axis.ticks(range, width / SCALE)) context.fillRect(Math.round(x(time)), 0, 1, height);
  context.font = FONT;
  context.textBaseline = "middle";
  for (const { line, text } of chart.titles) {
    context.fillStyle = colour.text;
    context.fillText(shown(text), 4, line * ROW - top + ROW / 2);
  }
  for (const box of chart.boxes) {
    const y = box.line * ROW - top;
    if (y < -ROW || y > height) continue;
    const [left, right] = [x(box.from), x(box.to)];
    if (right < 0 || left > width) continue;
    const from = Math.max(left, 0);
    const wide = Math.max(Math.min(right, width) - from, 1.5);
    context.globalAlpha = wanted === "" || box.text.toLowerCase().includes(wanted) || found?.has(columns.span_id[box.row]) ? 1 : 0.2;
    context.fillStyle = box.hasError ? colour.error : colour.bars[columns.process[box.row] % colour.bars.length];
    context.fillRect(from, y + 2, Math.max(wide - 1, 1), ROW - 4);
    if (columns.span_id[box.row] === selected) {
      context.strokeStyle = colour.critical;
      context.lineWidth = 2;
      context.strokeRect(from + 1, y + 3, Math.max(wide - 3, 1), ROW - 6);
    }
    if (wide < NAMED) continue;
    context.save();
    context.beginPath();
    context.rect(from, y, wide - 4, ROW);
    context.clip();
    context.fillStyle = colour.named;
    context.fillText(shown(box.text), from + 4, y + ROW / 2);
    context.restore();
  }
  context.globalAlpha = 1;
}
