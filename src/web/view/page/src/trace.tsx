/** One trace: its summary, the layouts, and what stands beside them. */
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { Axis } from "./axis";
import { ROW, drawBars, drawMinimap, drawScale, durationOf } from "./bars";
import { ChartView } from "./chart";
import { useClock } from "./clock";
import { useFetched } from "./fetched";
import { count, elapsed, parts, shown, timeOfDay } from "./format";
import { useKeys } from "./keys";
import * as layout from "./layout";
import { type Columns, CRITICAL, ERROR, MISSING, RUNNING, type Range } from "./layout";
import { type Attempts, PANELS, PanelView } from "./panel";
import { ProblemText } from "./problem";
import { address, place, refine, visit } from "./url";

/** Rows above and below those that can be seen. */
const MARGIN = 6;
/** Typing pauses for so long before the server is asked. */
const PAUSE_MS = 150;

/** The rows that the server sends at first, and the most. */
const STEP = 20_000;
const MOST = 100_000;

const SHAPES = ["tree", "tracks", "flame"] as const;

export function TraceView({ id }: { id: string }) {
  const most = useSignal(STEP);
  const left = useSignal(0);
  const { parameters } = place.value;
  // Of a trace with more spans than that, what is selected or found has rows too.
  const wanted = { ...(most.value > STEP && { rows: String(most.value) }), ...(left.value > 0 && { span: parameters.get("span") ?? "", text: (parameters.get("find") ?? "").trim() }) };
  const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value !== "")).toString();
  const { value, problem, at } = useFetched<Columns>(`traces/${encodeURIComponent(id)}${query && "?"}${query}`, { delay: left.value > 0 ? PAUSE_MS : 0 });
  const columns = value.value;
  useEffect(() => {
    if (columns) left.value = columns.left_out;
  }, [columns]);
  return (
    <section class="trace">
      <h1 class="unseen">Trace {id}</h1>
      <ProblemText problem={problem.value} />
      {columns && columns.left_out > 0 && (
        <p class="left-out" role="status">
          {count(columns.left_out, "span")} {columns.left_out === 1 ? "has" : "have"} no row: of many equal ones the first are shown, with those that failed, run, or are found.
          {columns.errors_left_out > 0 && ` ${count(columns.errors_left_out, "error")} more.`}{" "}
          {most.value < MOST ? <button onClick={() => (most.value = Math.min(most.value * 5, MOST))}>Show more</button> : <code>tracer trace show {columns.trace_id} --no-fold</code>}
        </p>
      )}
      {columns && <Tree columns={columns} at={at.value} />}
    </section>
  );
}

function number(name: string): number | undefined {
  const value = Number.parseFloat(place.value.parameters.get(name) ?? "");
  return Number.isFinite(value) ? value : undefined;
}

/** The spans that the server finds by names, attributes and events. */
function useFound(trace: string, text: string): { ids: ReadonlySet<string> | undefined; problem: string | null } {
  const path = text.trim() === "" ? "" : `traces/${trace}/find?${new URLSearchParams({ text: text.trim() })}`;
  const found = useFetched<{ revision: number; span_ids: string[]; problem: string | null }>(path, { delay: PAUSE_MS }).value.value;
  const ids = useMemo(() => found && new Set(found.span_ids), [found]);
  return { ids, problem: found?.problem ?? null };
}

function Tree({ columns, at }: { columns: Columns; at: number }) {
  const running = useMemo(() => columns.flags.reduce((sum, flags) => sum + (flags & RUNNING ? 1 : 0), 0), [columns]);
  const errors = useMemo(() => columns.flags.reduce((sum, flags) => sum + (flags & ERROR ? 1 : 0), 0), [columns]);
  const rowOf = useMemo(() => new Map(columns.span_id.map((id, row) => [id, row])), [columns]);
  const clock = useClock(running > 0);
  const sinceFetched = running > 0 ? Math.max(0, clock.value - at) * 1e6 : 0;
  const time = Math.max(1, columns.duration_ns + sinceFetched);

  const folded = useSignal<ReadonlySet<string>>(new Set());
  const { parameters } = place.value;
  const find = parameters.get("find") ?? "";
  const selected = parameters.get("span") ?? "";
  const panel = PANELS.find((panel) => panel === parameters.get("panel"));
  const equals = useMemo(() => layout.equalSiblings(columns), [columns]);
  const opened = useSignal<ReadonlySet<string>>(new Set());
  const foldsEquals = parameters.get("equal") !== "shown";
  const shape = SHAPES.find((shape) => shape === parameters.get("as")) ?? "tree";
  const take = (next: string) => refine({ as: next === "tree" ? undefined : next });
  const attempts = useFetched<Attempts>(`traces/${columns.trace_id}/attempts`).value.value;
  const marks = useMemo(() => {
    const gaps = attempts ? attempts.gaps.map((gap) => ({ start: gap.start_ns, duration: gap.duration_ns })) : columns.queued.map(([start, duration]) => ({ start, duration }));
    const queued = new Map<number, number>();
    for (const { span_id, queued_ns } of attempts?.attempts ?? []) {
      const row = rowOf.get(span_id);
      if (row !== undefined && queued_ns) queued.set(row, queued_ns);
    }
    const numbers = new Map((attempts?.attempts ?? []).filter(({ attempt }) => attempt > 1).map(({ span_id, attempt }) => [span_id, attempt]));
    return { gaps, queued, numbers };
  }, [attempts, columns]);
  const gaps = parameters.get("gaps");
  const foldedGaps = gaps === "folded" ? marks.gaps : gaps === "shown" ? [] : layout.longGaps(marks.gaps, time);
  const foldsGaps = foldedGaps.length > 0;
  const axis = useMemo(() => new Axis(time, foldedGaps), [time, gaps, marks]);
  const total = axis.total;
  const range: Range = { from: number("from") ?? 0, to: Math.min(number("to") ?? total, total) };
  const found = useFound(columns.trace_id, find);
  // A span that is selected is to be seen, and so are its siblings.
  const within = useMemo(() => {
    const [row, all] = [rowOf.get(selected), new Set<number>()];
    if (row !== undefined) for (const [first, members] of equals) if (members.some((member) => member !== first && member <= row && row < layout.subtreeEnd(columns, member)) || (first < row && row < layout.subtreeEnd(columns, first))) all.add(first);
    return all;
  }, [columns, selected]);
  const groups = useMemo(
    () => (foldsEquals && find.trim() === "" ? new Map([...equals].filter(([first]) => !opened.value.has(columns.span_id[first]) && !within.has(first))) : new Map<number, number[]>()),
    [equals, foldsEquals, find.trim() === "", opened.value, within],
  );
  const { rows, matches } = useMemo(() => layout.visibleRows(columns, folded.value, find, found.ids, groups), [columns, folded.value, find, found.ids, groups]);
  const position = useMemo(() => rows.findIndex((row) => columns.span_id[row] === selected), [rows, selected]);

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
  // A span in the address is shown when its trace has come, and when it is chosen beside the tree.
  useEffect(() => {
    if (position >= 0) reveal(position);
  }, [columns.trace_id, selected]);
  const show = (shown: Range) => {
    const all = shown.from <= 0 && shown.to >= total;
    refine({ from: all ? undefined : String(Math.round(shown.from)), to: all ? undefined : String(Math.round(shown.to)) });
  };
  const openGroup = (row: number, isOpen: boolean) => {
    const next = new Set(opened.value);
    if (isOpen) next.add(columns.span_id[row]);
    else next.delete(columns.span_id[row]);
    opened.value = next;
  };
  const fold = (row: number, isFolded: boolean) => {
    if (groups.has(row)) return openGroup(row, !isFolded);
    // What is folded already, or has nothing below it, is one of its siblings again.
    const isLeaf = folded.value.has(columns.span_id[row]) || !layout.hasChildren(columns, row);
    const of = isFolded && isLeaf ? [...equals].find(([, members]) => members.includes(row)) : undefined;
    if (of && opened.value.has(columns.span_id[of[0]])) {
      if (of[0] !== row) refine({ span: columns.span_id[of[0]] });
      return openGroup(of[0], false);
    }
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
  const foldGaps = () => refine({ gaps: foldsGaps ? "shown" : "folded", from: undefined, to: undefined });
  const foldEquals = () => {
    opened.value = new Set();
    refine({ equal: foldsEquals ? "shown" : undefined });
  };
  const open = (wanted: string) => refine({ panel: panel === wanted ? undefined : wanted });

  const middle = (range.from + range.to) / 2;
  const row = rows[position];
  useKeys([
    { keys: ["j", "ArrowDown"], meaning: "next span", action: () => select(position + 1) },
    { keys: ["k", "ArrowUp"], meaning: "previous span", action: () => select(position - 1) },
    { keys: ["h", "ArrowLeft"], meaning: "fold what is below", action: () => row !== undefined && fold(row, true) },
    { keys: ["l", "ArrowRight"], meaning: "unfold it", action: () => row !== undefined && fold(row, false) },
    { keys: ["w", "s"], meaning: "zoom in, zoom out", action: (key) => show(layout.zoom(range, total, key === "w" ? 0.5 : 2, middle)) },
    { keys: ["a", "d"], meaning: "earlier, later", action: (key) => show(layout.pan(range, total, key === "a" ? -0.25 : 0.25)) },
    { keys: ["0"], meaning: "all of the time", action: () => show({ from: 0, to: total }) },
    { keys: ["g"], meaning: "fold times in which nothing runs", action: foldGaps },
    { keys: ["m"], meaning: "fold equal spans", action: foldEquals },
    { keys: ["/"], meaning: "find in names, attributes, events", action: () => finder.current!.focus() },
    { keys: ["n", "N"], meaning: "next and previous that is found", action: (key) => match(key === "n" ? 1 : -1) },
    { keys: ["e"], meaning: "next error", action: () => flagged(ERROR) },
    { keys: ["c"], meaning: "next on the critical path", action: () => flagged(CRITICAL) },
    { keys: ["t"], meaning: "tree, tracks, flame graph", action: () => take(SHAPES[(SHAPES.indexOf(shape) + 1) % SHAPES.length]) },
    { keys: ["o"], meaning: "lines, log records, events", action: () => open("written") },
    { keys: ["i"], meaning: "why nothing ran", action: () => open("waits") },
    { keys: ["x"], meaning: "compare with another trace", action: () => visit(address(["compare"], { after: columns.trace_id })) },
    { keys: ["Escape"], meaning: "close", action: () => refine({ span: undefined, panel: undefined }) },
  ]);

  const bars = useRef<HTMLCanvasElement>(null);
  const scale = useRef<HTMLCanvasElement>(null);
  const minimap = useRef<HTMLCanvasElement>(null);
  const scheme = useScheme();
  useLayoutEffect(() => {
    const frame = requestAnimationFrame(() => {
      if (bars.current) drawBars(bars.current, columns, rows, top.value, axis, range, sinceFetched, { ...marks, groups });
      if (scale.current) drawScale(scale.current, axis, range);
    });
    return () => cancelAnimationFrame(frame);
  });
  useLayoutEffect(() => {
    if (minimap.current) drawMinimap(minimap.current, columns, axis, range, sinceFetched);
  }, [columns, axis, range.from, range.to, height.value, scheme, panel, selected === ""]);

  const first = Math.max(0, Math.floor(top.value / ROW) - MARGIN);
  const last = Math.min(rows.length, Math.ceil((top.value + height.value) / ROW) + MARGIN);
  const [rootName, rootSuffix] = parts(columns.names[columns.name[0]] ?? "");
  const does = columns.depth.length > 1 && columns.depth[1] === 1 ? parts(columns.names[columns.name[1]])[0] : "";
  const nameOf = (span: string) => {
    const row = rowOf.get(span);
    return row === undefined ? "" : shown(columns.names[columns.name[row]]);
  };
  const isSpanHere = selected !== "" && rowOf.has(selected);
  return (
    <>
      <div class="summary">
        <h2>
          {rootName} <i>{rootSuffix || does}</i>
        </h2>
        {running > 0 && <span class="badge running">{running} running</span>}
        {errors > 0 && (
          <button class="badge error" title="Next error ( e )" onClick={() => flagged(ERROR)}>
            {count(errors, "error")}
          </button>
        )}
        <span class="facts">
          <strong>{elapsed(time)}</strong>
          <span>{count(columns.span_id.length + columns.left_out, "span")}</span>
          <span>{count(columns.processes.length, "process", "processes")}</span>
          <span title={columns.start_time}>{timeOfDay(columns.start_time)}</span>
          <code>{columns.trace_id}</code>
        </span>
      </div>
      <div class="tools">
        <span class="shapes" role="group" aria-label="Layout">
          {SHAPES.map((each) => (
            <button key={each} aria-pressed={each === shape} title="( t )" onClick={() => take(each)}>
              {each}
            </button>
          ))}
        </span>
        <input
          ref={finder}
          type="search"
          aria-label="Find in names, attributes and events"
          placeholder="Find in names, attributes, events ( / )"
          spellcheck={false}
          value={find}
          onInput={(event) => refine({ find: event.currentTarget.value })}
          onKeyDown={(event) => {
            if (event.key !== "Escape" && event.key !== "Enter") return;
            event.currentTarget.blur();
            scroller.current?.focus();
            if (event.key === "Enter") match(1);
          }}
        />
        {find && (
          <span role="status" class={found.problem ? "mistake" : "quiet"} title={found.problem ?? undefined}>
            {matches.length} found{found.problem && ", as text"}
          </span>
        )}
        <span class="space" />
        {marks.gaps.length > 0 && (
          <button aria-pressed={foldsGaps} title="Fold times in which nothing runs ( g )" onClick={foldGaps}>
            fold {count(marks.gaps.length, "gap")}
          </button>
        )}
        {equals.size > 0 && (
          <button aria-pressed={foldsEquals} title="Show many spans of one name below one parent as one row ( m )" onClick={foldEquals}>
            fold equal spans
          </button>
        )}
        <button aria-pressed={panel === "waits"} title="Why nothing ran ( i )" onClick={() => open("waits")}>
          waits
        </button>
        <button aria-pressed={panel === "written"} title="Lines, log records, events ( o )" onClick={() => open("written")}>
          written
        </button>
        <a class="button" href={address(["compare"], { after: columns.trace_id })} title="Compare with another trace ( x )">
          compare
        </a>
      </div>
      <Minimap canvas={minimap} total={total} onRange={show} />
      <div class="columns">
        {shape !== "tree" && (
          <ChartView
            columns={columns}
            shape={shape}
            total={time}
            sinceFetched={sinceFetched}
            axis={axis}
            range={range}
            find={find}
            found={found.ids}
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
                    // The elements of rows that are out of sight are used again.
                    key={(first + index) % (last - first)}
                    columns={columns}
                    row={row}
                    position={first + index}
                    isSelected={columns.span_id[row] === selected}
                    isFolded={folded.value.has(columns.span_id[row])}
                    group={groups.get(row)}
                    attempt={marks.numbers.get(columns.span_id[row])}
                    duration={durationOf(columns, row, sinceFetched)}
                    onSelect={() => select(first + index)}
                    onFold={(isFolded) => fold(row, isFolded)}
                  />
                ))}
              </div>
              {rows.length === 0 && <p class="empty">No span is found.</p>}
            </div>
          </div>
        )}
        {(panel !== undefined || isSpanHere) && (
          <PanelView
            trace={columns.trace_id}
            panel={panel ?? "span"}
            selected={isSpanHere ? selected : ""}
            revision={columns.revision}
            attempts={attempts}
            nameOf={nameOf}
            durationOf={(span) => {
              const row = rowOf.get(span);
              return row === undefined ? undefined : durationOf(columns, row, sinceFetched);
            }}
          />
        )}
      </div>
    </>
  );
}

/** True while the scheme is dark: what is drawn is drawn again when it changes. */
export function useScheme(): boolean {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const isDark = useSignal(query.matches);
  useEffect(() => {
    const onChange = () => (isDark.value = query.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, []);
  return isDark.value;
}

/** Pixels by which a row is further to the right than its parent. */
const INDENT = 14;

interface LineProps {
  columns: Columns;
  row: number;
  position: number;
  isSelected: boolean;
  isFolded: boolean;
  /** All for which it stands, if it stands for several. */
  group: number[] | undefined;
  /** Its number, from the second attempt on. */
  attempt: number | undefined;
  duration: number;
  onSelect: () => void;
  onFold: (isFolded: boolean) => void;
}

function Line({ columns, row, position, isSelected, isFolded, group, attempt, duration, onSelect, onFold }: LineProps) {
  const flags = columns.flags[row];
  const depth = columns.depth[row];
  const isParent = group !== undefined || layout.hasChildren(columns, row);
  if (group) isFolded = true;
  const figures = group && layout.figuresOf(columns, group);
  const process = columns.processes[columns.process[row]];
  const states = [flags & ERROR && "error", flags & RUNNING && "running", flags & MISSING && "missing", isSelected && "selected"];
  const title = process ? `${layout.kind(flags)}, pid ${process.pid ?? "unknown"} ${shown(process.service)}` : "its parent was not found";
  const [name, suffix] = parts(columns.names[columns.name[row]]);
  const indent = Math.min(depth, 30) * INDENT;
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
      <span class="name" role="gridcell" style={{ paddingLeft: `${indent + 6}px`, backgroundSize: `${indent}px 100%` }}>
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
        {attempt !== undefined && <b class="badge">attempt {attempt}</b>}
        {figures && <b>{figures.count.toLocaleString("en")} × </b>}
        {name}
        {suffix && <i> {suffix}</i>}
        {figures && <i> median {elapsed(figures.median)}, longest</i>}
      </span>
      <span class="number" role="gridcell">
        {flags & MISSING ? "" : elapsed(figures?.longest ?? duration)}
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
