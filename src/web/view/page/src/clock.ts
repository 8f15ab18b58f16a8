/** A time that moves on while something runs, so that its bar grows between two answers of the server. */
import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { whileSeen } from "./fetched";

const INTERVAL_MS = 100;

/** `performance.now()`, ten times a second while `moves`, and not in a hidden tab. */
export function useClock(moves: boolean): Signal<number> {
  const now = useSignal(performance.now());
  useEffect(() => {
    now.value = performance.now();
    if (!moves) return;
    return whileSeen(INTERVAL_MS, () => (now.value = performance.now()));
  }, [moves]);
  return now;
}
