/** Keyboard shortcuts, and the help that lists them. */

import { byId, element } from "./dom.js";
import { setSetting, setting } from "./storage.js";

/** Symbols for named keys in the help. */
const WRITTEN = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Delete: "Del" };

/** Elements that take keys as text. */
const TEXT_FIELDS = "textarea, select, input:not([type=checkbox], [type=radio])";

/** Bind keys. */
export function bindKeys(bindings, isOpen) {
  const single = byId("single-keys");
  single.checked = setting("single-keys") ?? true;
  single.addEventListener("change", () => setSetting("single-keys", single.checked));
  byId("help-keys").replaceChildren(...bindings.map(({ keys, help }) => element("div", {},
    element("dt", {}, ...keys.flatMap((key, at) => [at ? " " : "", element("kbd", { text: written(key) })])),
    element("dd", { text: help }))));
  const bound = new Map(bindings.filter(({ run }) => run).flatMap((binding) => binding.keys.map((key) => [key, binding])));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && document.querySelector(":popover-open")) return;
    const control = event.ctrlKey || event.metaKey;
    if (event.target.matches(TEXT_FIELDS) || (!control && !single.checked)) return;
    // A capital letter is probably the start of a word typed without focus in a field.
    if (!control && event.shiftKey && /^\p{L}$/u.test(event.key)) return;
    const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const binding = bound.get(control ? `Ctrl+${event.shiftKey ? "Shift+" : ""}${letter}` : letter);
    if (!binding || !(binding.always || isOpen())) return;
    event.preventDefault();
    binding.run(event);
  });
}

function written(key) {
  return key.split("+").map((part) => WRITTEN[part] ?? (part.length === 1 ? part.toUpperCase() : part)).join("+") || "+";
}
