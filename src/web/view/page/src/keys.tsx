/** Keys of the views: each view says what it takes, and `?` shows all of it. */
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

/** Keys that do the same, what they do in words, and the action of each. */
export interface Binding {
  keys: string[];
  meaning: string;
  action: (key: string) => void;
}

/** What is bound now; the newest set is asked first. */
const sets: { current: Binding[] }[] = [];
const showsHelp = signal(false);

/** Binds keys while the component is there. The bindings of the last render count: they are exchanged before the next key can come. */
export function useKeys(bindings: Binding[]): void {
  const set = useRef(bindings);
  useLayoutEffect(() => {
    set.current = bindings;
  });
  useLayoutEffect(() => {
    sets.push(set);
    return () => void sets.splice(sets.indexOf(set), 1);
  }, []);
}

function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || showsHelp.value) return;
  const target = event.target as HTMLElement;
  if (target instanceof HTMLInputElement || target instanceof HTMLSelectElement) return;
  // A chart that is focused takes its own keys.
  if (event.defaultPrevented) return;
  for (let at = sets.length - 1; at >= 0; at--) {
    const binding = sets[at].current.find(({ keys }) => keys.includes(event.key));
    if (binding) {
      event.preventDefault();
      binding.action(event.key);
      return;
    }
  }
}

addEventListener("keydown", onKey);

export function toggleHelp(): void {
  showsHelp.value = !showsHelp.value;
}

const NAMES: Record<string, string> = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", Escape: "Esc", " ": "Space" };

/** The keys of what is shown, in a dialog. */
export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = showsHelp.value;
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return (
    <dialog
      ref={dialog}
      class="help"
      aria-labelledby="help-title"
      onClose={() => (showsHelp.value = false)}
      onClick={(event) => event.target === dialog.current && (showsHelp.value = false)}
      onKeyDown={(event) => event.key === "?" && (showsHelp.value = false)}
    >
      <div>
        <h2 id="help-title">Keys</h2>
        {isOpen &&
          [...sets].reverse().map((set, index) => (
            <dl key={index}>
              {set.current.map(({ keys, meaning }) => (
                <div key={meaning}>
                  <dt>
                    {keys.map((key) => (
                      <kbd key={key}>{NAMES[key] ?? key}</kbd>
                    ))}
                  </dt>
                  <dd>{meaning}</dd>
                </div>
              ))}
            </dl>
          ))}
        <button onClick={() => (showsHelp.value = false)}>Close</button>
      </div>
    </dialog>
  );
}
