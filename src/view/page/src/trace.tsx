/** One trace as a tree with bars. */
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { ChartView } from "./chart";
import { ROW, drawBars, drawMinimap, drawScale, durationOf } from "./bars";
import { useClock } from "./clock";
import { useFetched } from "./fetched";
import { count, elapsed, shown, timeOfDay } from "./format";
import * as layout from "./layout";
import { type Columns, CRITICAL, ERROR, MISSING, RUNNING, type Range } from "./layout";
import { ProblemText } from "./problem";
import { SpanDetails } from "./span";
import { place, refine } from "./url";

/** Rows above and below those that can be seen. */
const MARGIN = 10;
const KEYS: [string, string][] = [
  ["j k", "next and previous span"],
  ["h l", "fold and unfold"],
  ["w s", "zoom in and out"],
  ["a d", "earlier and later"],
  ["0", "all of the time"],
  ["/", "find in names"],
  ["n N", "next and previous that is found"],
  ["e", "next error"],
  ["c", "next on the critical path"],
  ["t", "tree, tracks, flame graph"],
  ["Escape", "close"],
];

const SHAPES = ["tree", "tracks", "flame"] as const;

export function TraceView({ id }: { id: string }) {
  const { value, problem, at } = useFetched<Columns>(`traces/${encodeURIComponent(id)}`);
  const columns = value.value;
  return (
    <section class="trace">
      <h1 class="unseen">Trace {id}</h1>
      <ProblemText problem={problem.value} />
      {columns && <Tree columns={columns} at={at.value} />}
    </section>
  );
}

function number(name: string): number | undefined {
  const value = Number.parseFloat(place.value.parameters.get(name) ?? "");
  return Number.isFinite(value) ? value : undefined;
}

function Tree({ columns, at }: { columns: Columns; at: number }) {
  const running = useMemo(() => columns.flags.reduce((sum, flags) => sum + (flags & RUNNING ? 1 : 0), 0), [columns]);
  const errors = useMemo(() => columns.flags.reduce((sum, flags) => sum + (flags & ERROR ? 1 : 0), 0), [columns]);
  const clock = useClock(running > 0);
  const sinceFetched = running > 0 ? Math.max(0, clock.value - at) * 1e6 : 0;
  const total = Math.max(1, columns.duration_ns + sinceFetched);

  const folded = useSignal<ReadonlySet<string>>(new Set());
  const find = place.value.parameters.get("find") ?? "";
  const selected = place.value.parameters.get("span") ?? "";
  const range: Range = { from: number("from") ?? 0, to: Math.min(number("to") ?? total, total) };
  const shape = SHAPES.find((shape) => shape === place.value.parameters.get("as")) ?? "tree";
  const take = (next: string) => refine({ as: next === "tree" ? undefined : next });
  const showsKeys = useSignal(false);
  const { rows, matches } = useMemo(() => layout.visibleRows(columns, folded.value, find), [columns, folded.value, find]);
  const position = rows.findIndex((row) => columns.span_id[row] === selected);

  const scroller = useRef<HTMLDivElement>(null);
  const finder = useRef<HTMLInputElement>(null);
  const top = useSignal(0);
  const height = useSignal(600);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const observer = new ResizeObserver(() => (height.value = element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, [shape]);

  const reveal = (to: number) => {
    const element = scroller.current;
    if (!element) return;
    if (to * ROW < element.scrollTop) element.scrollTop = to * ROW;
    if ((to + 1) * ROW > element.scrollTop + element.clientHeight) element.scrollTop = (to + 1) * ROW - element.clientHeight;
  };
  const select = (to: number) => {
    if (to < 0 || to >= rows.length) return;
    refine({ span: columns.span_id[rows[to]] });
    reveal(to);
  };
  // A span in the address is shown when its trace has come.
  useEffect(() => {
    if (position >= 0) reveal(position);
  }, [columns.trace_id]);
  const show = (shown: Range) => {
    const all = shown.from <= 0 && shown.to >= total;
    refine({ from: all ? undefined : String(Math.round(shown.from)), to: all ? undefined : String(Math.round(shown.to)) });
  };
  const fold = (row: number, isFolded: boolean) => {
    const next = new Set(folded.value);
    if (isFolded) next.add(columns.span_id[row]);
    else next.delete(columns.span_id[row]);
    folded.value = next;
  };
  const match = (step: 1 | -1) => {
    if (matches.length === 0) return;
    const next = step === 1 ? matches.find((found) => found > position) : matches.findLast((found) => found < position);
    select(next ?? matches[step === 1 ? 0 : matches.length - 1]);
  };
  const flagged = (flag: number) => select(layout.nextWith(columns, rows, position, flag, 1));

  const middle = (range.from + range.to) / 2;
  const onKey = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    if (target instanceof HTMLInputElement) {
      if (event.key === "Escape" || event.key === "Enter") {
        target.blur();
        scroller.current?.focus();
        if (event.key === "Enter") match(1);
      }
      return;
    }
    const row = rows[position];
    const actions: Record<string, () => void> = {
      j: () => select(position + 1),
      ArrowDown: () => select(position + 1),
      k: () => select(position - 1),
      ArrowUp: () => select(position - 1),
      h: () => row !== undefined && fold(row, true),
      ArrowLeft: () => row !== undefined && fold(row, true),
      l: () => row !== undefined && fold(row, false),
      ArrowRight: () => row !== undefined && fold(row, false),
      w: () => show(layout.zoom(range, total, 0.5, middle)),
      s: () => show(layout.zoom(range, total, 2, middle)),
      a: () => show(layout.pan(range, total, -0.25)),
      d: () => show(layout.pan(range, total, 0.25)),
      "0": () => show({ from: 0, to: total }),
      "/": () => finder.current!.focus(),
      n: () => match(1),
      N: () => match(-1),
      e: () => flagged(ERROR),
      c: () => flagged(CRITICAL),
      t: () => take(SHAPES[(SHAPES.indexOf(shape) + 1) % SHAPES.length]),
      Escape: () => (showsKeys.value ? (showsKeys.value = false) : refine({ span: undefined })),
      "?": () => (showsKeys.value = !showsKeys.value),
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  };
  // Before the next key can come, unlike an effect after the frame: keys act on the rows that are shown.
  useLayoutEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });

  const bars = useRef<HTMLCanvasElement>(null);
  const scale = useRef<HTMLCanvasElement>(null);
  const minimap = useRef<HTMLCanvasElement>(null);
  useLayoutEffect(() => {
    const frame = requestAnimationFrame(() => {
      if (bars.current) drawBars(bars.current, columns, rows, top.value, range, sinceFetched);
      if (scale.current) drawScale(scale.current, range);
    });
    return () => cancelAnimationFrame(frame);
  });
  useLayoutEffect(() => {
    if (minimap.current) drawMinimap(minimap.current, columns, range, total, sinceFetched);
  }, [columns, range.from, range.to, running > 0 ? total : 0, height.value]);

  const first = Math.max(0, Math.floor(top.value / ROW) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((top.value + height.value) / ROW) + MARGIN);
  const rootName = columns.names[columns.name[0]] ?? "";
  return (
    <>
      <div class="summary">
        <strong>{shown(rootName)}</strong>
        <code>{columns.trace_id}</code>
        <span>{timeOfDay(columns.start_time)}</span>
        <span>{elapsed(total)}</span>
        <span>{count(columns.span_id.length, "span")}</span>
        {running > 0 && <span class="badge running">{running} running</span>}
        {errors > 0 && (
          <button class="badge error" onClick={() => flagged(ERROR)}>
            {count(errors, "error")}
          </button>
        )}
        <span class="shapes" role="group" aria-label="Layout">
          {SHAPES.map((each) => (
            <button key={each} aria-pressed={each === shape} onClick={() => take(each)}>
              {each}
            </button>
          ))}
        </span>
        <input
          ref={finder}
          type="search"
          aria-label="Find in names"
          placeholder="Find in names ( / )"
          spellcheck={false}
          value={find}
          onInput={(event) => refine({ find: event.currentTarget.value })}
        />
        {find && <span role="status">{matches.length} found</span>}
        <button onClick={() => (showsKeys.value = !showsKeys.value)} aria-expanded={showsKeys.value}>
          Keys ( ? )
        </button>
      </div>
      {showsKeys.value && (
        <dl class="keys">
          {KEYS.map(([key, meaning]) => (
            <div key={key}>
              <dt>{key}</dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
      )}
      <Minimap canvas={minimap} total={total} onRange={show} />
      <div class="columns">
        {shape !== "tree" && (
          <ChartView
            columns={columns}
            shape={shape}
            total={total}
            sinceFetched={sinceFetched}
            range={range}
            find={find}
            selected={selected}
            onSelect={(row) => refine({ span: columns.span_id[row] })}
          />
        )}
        {shape === "tree" && (
          <div class="waterfall">
            <canvas ref={scale} class="scale" aria-hidden="true" />
            <canvas ref={bars} class="bars" aria-hidden="true" />
            <div
              ref={scroller}
              class="rows"
              role="treegrid"
              tabIndex={0}
              aria-label="Spans"
              aria-rowcount={rows.length}
              aria-activedescendant={position >= first && position < last ? `span-${selected}` : undefined}
              onScroll={(event) => (top.value = event.currentTarget.scrollTop)}
              onWheel={(event) => {
                if (!event.ctrlKey && !event.shiftKey) return;
                event.preventDefault();
                const box = bars.current!.getBoundingClientRect();
                const around = range.from + ((event.clientX - box.left) / box.width) * (range.to - range.from);
                show(layout.zoom(range, total, (event.deltaY || event.deltaX) > 0 ? 1.25 : 0.8, around));
              }}
            >
              <div class="sheet" role="presentation" style={{ height: `${rows.length * ROW}px` }}>
                {rows.slice(first, last).map((row, index) => (
                  <Line
                    key={columns.span_id[row]}
                    columns={columns}
                    row={row}
                    position={first + index}
                    isSelected={columns.span_id[row] === selected}
                    isFolded={folded.value.has(columns.span_id[row])}
                    duration={durationOf(columns, row, sinceFetched)}
                    onSelect={() => select(first + index)}
                    onFold={(isFolded) => fold(row, isFolded)}
                  />
                ))}
              </div>
            </div>
          </div>
        )}
        {selected && columns.span_id.includes(selected) && (
          <SpanDetails key={selected} trace={columns.trace_id} span={selected} revision={columns.revision} />
        )}
      </div>
    </>
  );
}

interface LineProps {
  columns: Columns;
  row: number;
  position: number;
  isSelected: boolean;
  isFolded: boolean;
  duration: number;
  onSelect: () => void;
  onFold: (isFolded: boolean) => void;
}

function Line({ columns, row, position, isSelected, isFolded, duration, onSelect, onFold }: LineProps) {
  const flags = columns.flags[row];
  const depth = columns.depth[row];
  const isParent = layout.hasChildren(columns, row);
  const process = columns.processes[columns.process[row]];
  const states = [flags & ERROR && "error", flags & RUNNING && "running", flags & MISSING && "missing", isSelected && "selected"];
  const title = process ? `${layout.kind(flags)}, pid ${process.pid ?? "unknown"} ${shown(process.service)}` : "its parent was not found";
  return (
    <div
      id={`span-${columns.span_id[row]}`}
      class={["row", ...states.filter(Boolean)].join(" ")}
      role="row"
      aria-level={depth + 1}
      aria-rowindex={position + 1}
      aria-selected={isSelected}
      aria-expanded={isParent ? !isFolded : undefined}
      style={{ top: `${position * ROW}px` }}
      title={title}
      onClick={onSelect}
    >
      <span class="name" role="gridcell" style={{ paddingLeft: `${Math.min(depth, 30) * 12 + 4}px` }}>
        <span
          class={isParent ? "fold" : "leaf"}
          aria-hidden="true"
          onClick={(event) => {
            if (!isParent) return;
            event.stopPropagation();
            onFold(!isFolded);
          }}
        >
          {isParent ? (isFolded ? "▸" : "▾") : ""}
        </span>
        {flags & ERROR ? <span class="unseen">failed: </span> : null}
        {shown(columns.names[columns.name[row]])}
      </span>
      <span class="number" role="gridcell">
        {flags & MISSING ? "" : elapsed(duration)}
      </span>
    </div>
  );
}

/** All of the trace; a drag chooses the time that the bars show, a double click all of it. */
function Minimap({ canvas, total, onRange }: { canvas: { current: HTMLCanvasElement | null }; total: number; onRange: (range: Range) => void }) {
  const start = useRef<number | undefined>(undefined);
  const time = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * total;
  };
  return (
    <canvas
      ref={canvas}
      class="minimap"
      role="img"
      aria-label="The whole trace. Drag to choose a part of its time; w, s, a and d do it with keys"
      onPointerDown={(event) => {
        start.current = time(event);
        event.currentTarget.setPointerCapture(event.pointerId);
      }}
      onPointerMove={(event) => {
        if (start.current === undefined) return;
        const [from, to] = [start.current, time(event)].sort((left, right) => left - right);
        if (to - from > total / 500) onRange({ from, to });
      }}
      onPointerUp={() => (start.current = undefined)}
      onDblClick={() => onRange({ from: 0, to: total })}
    />
  );
}
