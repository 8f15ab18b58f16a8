/** A value of the server that is asked for again whenever it may have changed, never twice at a time. */
import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Problem, get, isLive, revision } from "./api";
import { Pace } from "./pace";

export interface Fetched<T> {
  value: Signal<T | undefined>;
  problem: Signal<Problem | undefined>;
  /** When the value came, by `performance.now()`. */
  at: Signal<number>;
}

export interface Times {
  /** Waited before the first request: typing pauses. */
  delay?: number;
  /** Asked again so often, in milliseconds, also when no revision is told: for what changes without spans. Not in a hidden tab. */
  every?: number;
}

/** An empty path asks for nothing. */
export function useFetched<T extends { revision?: number }>(path: string, { delay = 0, every = 0 }: Times = {}): Fetched<T> {
  const value = useSignal<T | undefined>(undefined);
  const problem = useSignal<Problem | undefined>(undefined);
  const at = useSignal(0);
  useEffect(() => {
    if (!path) {
      [value.value, problem.value] = [undefined, undefined];
      return;
    }
    const ending = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isAsking = false;
    let isStale = true;
    const pace = new Pace();
    const isBehind = () => problem.value !== undefined || value.value?.revision !== revision.value;
    const refresh = async () => {
      // A hidden tab asks for nothing; when it is seen again, the stream tells of a revision.
      if (document.hidden && value.value !== undefined) return;
      if (isAsking) {
        isStale = true;
        return;
      }
      [isAsking, isStale] = [true, false];
      const start = performance.now();
      try {
        const found = await get<T>(path, ending.signal);
        [at.value, value.value, problem.value] = [performance.now(), found, undefined];
      } catch (error) {
        if (ending.signal.aborted) return;
        problem.value = error instanceof Problem ? error : new Problem(0, "the server cannot be reached", undefined);
      }
      timer = setTimeout(() => {
        isAsking = false;
        if (isStale && isBehind()) refresh();
      }, pace.pauseAfter(start, performance.now()));
    };
    timer = setTimeout(refresh, delay);
    const stop = revision.subscribe((newest) => {
      if (value.value?.revision !== newest && value.value !== undefined) refresh();
    });
    // What failed while the server was away is asked again when it is back, also if nothing has changed.
    const stopLive = isLive.subscribe((live) => {
      const status = problem.value?.status;
      if (live && status !== undefined && (status === 0 || status >= 500)) refresh();
    });
    const stopTimer = every > 0 ? whileSeen(every, refresh) : () => {};
    return () => {
      stopTimer();
      ending.abort();
      clearTimeout(timer);
      stop();
      stopLive();
    };
  }, [path]);
  return { value, problem, at };
}

/** Does something again and again while the tab can be seen, and once when it is seen again; returns what ends it. */
export function whileSeen(interval: number, action: () => void): () => void {
  let timer: ReturnType<typeof setInterval> | undefined;
  const onChange = () => {
    clearInterval(timer);
    timer = document.hidden ? undefined : setInterval(action, interval);
  };
  const onSeen = () => {
    onChange();
    if (!document.hidden) action();
  };
  onChange();
  document.addEventListener("visibilitychange", onSeen);
  return () => {
    clearInterval(timer);
    document.removeEventListener("visibilitychange", onSeen);
  };
}
