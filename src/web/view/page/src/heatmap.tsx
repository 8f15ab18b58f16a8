/** Traces by start and duration. A drag chooses a region, whose traces are listed, and compared with the others. */
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { prepare } from "./bars";
import { useFetched } from "./fetched";
import { count, elapsed, timeOfDay } from "./format";
import { type Cells, type HeatMap, type Region, cellsOf, moved, nanoseconds, regionIn, regionOf, timeText } from "./heat";
import { place, refine } from "./url";

const NONE = { since: undefined, until: undefined, min_ns: undefined, max_ns: undefined };
const COLUMNS = 120;
const ROWS = 20;

export function HeatMapView({ query }: { query: string }) {
  const path = `heat?columns=${COLUMNS}&rows=${ROWS}&query=${encodeURIComponent(query)}`;
  const { value } = useFetched<{ revision: number; map: HeatMap | null }>(path, { delay: 150 });
  const map = value.value?.map;
  const region = regionIn(place.value.parameters);
  if (map && map.traces > 1) return <Map map={map} region={region} />;
  // Of one trace, or none, there is nothing to choose: a region that was chosen before can be left.
  return value.value && region ? (
    <figure class="heat">
      <figcaption class="quiet">
        <button onClick={() => refine(NONE)}>Leave this region</button>
      </figcaption>
    </figure>
  ) : null;
}

function Map({ map, region }: { map: HeatMap; region: Region | undefined }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const dragged = useSignal<Cells | undefined>(undefined);
  const start = useRef<[number, number] | undefined>(undefined);
  const chosen = dragged.value ?? (region && cellsOf(map, region));
  const width = useSignal(0);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => (width.value = canvas.current!.clientWidth));
    observer.observe(canvas.current!);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => draw(canvas.current!, map, chosen), [map, chosen?.columns.join(), chosen?.rows.join(), width.value]);
  useEffect(() => {
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => draw(canvas.current!, map, chosen);
    scheme.addEventListener("change", redraw);
    return () => scheme.removeEventListener("change", redraw);
  });

  const cellAt = (event: PointerEvent): [number, number] => {
    const box = canvas.current!.getBoundingClientRect();
    const share = (at: number, from: number, size: number) => Math.min(Math.max((at - from) / size, 0), 0.999999);
    const column = Math.floor(share(event.clientX, box.left, box.width) * map.columns);
    return [column, map.rows - 1 - Math.floor(share(event.clientY, box.top, box.height) * map.rows)];
  };
  const between = ([column, row]: [number, number]): Cells => {
    const [fromColumn, fromRow] = start.current!;
    const sorted = (one: number, other: number): [number, number] => (one < other ? [one, other] : [other, one]);
    return { columns: sorted(fromColumn, column), rows: sorted(fromRow, row) };
  };
  const choose = (cells: Cells) => refine({ ...regionOf(map, cells) });
  const onKey = (event: KeyboardEvent) => {
    const steps: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const all: Cells = { columns: [0, map.columns - 1], rows: [0, map.rows - 1] };
    const first: Cells = { columns: [0, Math.floor(map.columns / 10)], rows: all.rows };
    choose(chosen ? moved(map, chosen, step[0], step[1], event.shiftKey) : first);
  };
  const last = timeText(nanoseconds(map.start_time) + BigInt(map.span_ns));
  return (
    <figure class="heat">
      <span class="quiet top">{elapsed(map.max_ns)}</span>
      <span class="quiet bottom">{elapsed(map.min_ns)}</span>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`Heat map of ${count(map.traces, "trace")}: start from left to right, duration from bottom to top. Arrows choose a region, with shift its size, Escape all`}
        onKeyDown={(event) => (event.key === "Escape" ? refine(NONE) : onKey(event))}
        onPointerDown={(event) => {
          start.current = cellAt(event);
          dragged.value = between(start.current);
          event.currentTarget.setPointerCapture(event.pointerId);
        }}
        onPointerMove={(event) => {
          if (start.current) dragged.value = between(cellAt(event));
        }}
        onPointerUp={(event) => {
          if (!start.current) return;
          choose(between(cellAt(event)));
          start.current = dragged.value = undefined;
        }}
        onPointerCancel={() => (start.current = dragged.value = undefined)}
      />
      <figcaption class="quiet">
        <span>{timeOfDay(map.start_time)}</span>
        {region ? (
          <button onClick={() => refine(NONE)}>Show all {count(map.traces, "trace")}</button>
        ) : (
          <span>Drag to see what is different in a region</span>
        )}
        <span>{timeOfDay(last)}</span>
      </figcaption>
    </figure>
  );
}

function draw(canvas: HTMLCanvasElement, map: HeatMap, chosen: Cells | undefined): void {
  const prepared = prepare(canvas);
  if (!prepared) return;
  const [context, width, height] = prepared;
  const style = getComputedStyle(canvas);
  const colour = (name: string) => style.getPropertyValue(name).trim();
  const [wide, high] = [width / map.columns, height / map.rows];
  const most = Math.log(1 + Math.max(...map.cells.map((cell) => cell.traces)));
  for (const { column, row, traces, errors } of map.cells) {
    const [left, top] = [column * wide, height - (row + 1) * high];
    context.globalAlpha = 0.25 + 0.75 * (Math.log(1 + traces) / most);
    context.fillStyle = colour("--bar-0");
    context.fillRect(left, top, Math.max(wide - 1, 1), high - 1);
    // The part of the cell that failed, from below.
    const failed = errors > 0 ? Math.max((high - 1) * (errors / traces), 2) : 0;
    context.fillStyle = colour("--error");
    context.fillRect(left, top + high - 1 - failed, Math.max(wide - 1, 1), failed);
  }
  context.globalAlpha = 1;
  if (!chosen) return;
  const [left, right] = [chosen.columns[0] * wide, (chosen.columns[1] + 1) * wide];
  const [top, bottom] = [height - (chosen.rows[1] + 1) * high, height - chosen.rows[0] * high];
  context.strokeStyle = colour("--accent");
  context.lineWidth = 2;
  context.strokeRect(left + 1, top + 1, Math.max(right - left - 2, 1), Math.max(bottom - top - 2, 1));
}
