/** A value of the server that is asked for again whenever it may have changed, never twice at a time. */
import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Problem, get, revision } from "./api";

export interface Fetched<T> {
  value: Signal<T | undefined>;
  problem: Signal<Problem | undefined>;
  /** When the value came, by `performance.now()`. */
  at: Signal<number>;
}

/** As much longer than the last answer took is waited before it is asked again. */
const PAUSES = 3;

export function useFetched<T extends { revision?: number }>(path: string, delay = 0): Fetched<T> {
  const value = useSignal<T | undefined>(undefined);
  const problem = useSignal<Problem | undefined>(undefined);
  const at = useSignal(0);
  useEffect(() => {
    const ending = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isAsking = false;
    let isStale = true;
    const refresh = async () => {
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
        if (isStale) refresh();
      }, PAUSES * (performance.now() - start));
    };
    timer = setTimeout(refresh, delay);
    const stop = revision.subscribe((newest) => {
      if (value.value?.revision !== newest && value.value !== undefined) refresh();
    });
    return () => {
      ending.abort();
      clearTimeout(timer);
      stop();
    };
  }, [path]);
  return { value, problem, at };
}
