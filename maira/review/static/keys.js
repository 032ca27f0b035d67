/** Keyboard shortcuts, and the help that lists them. */

import { byId, consume, element } from "./dom.js";
import { setSetting, setting } from "./storage.js";

/** Symbols for named keys in the help. */
const WRITTEN = { ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Delete: "Del" };

/** Elements that take keys as text. */
const TEXT_FIELDS = "textarea, select, input:not([type=checkbox], [type=radio]), [contenteditable]";

// A key within this time after one that opened no field belongs to the same text.
const PAUSE_MS = 1000;

/** Bind keys, and the buttons that name them. A binding `opens` a text field, or `repeats` while its key is held. */
export function bindKeys(bindings, isOpen) {
  const single = byId("single-keys");
  single.checked = setting("single-keys") ?? true;
  single.addEventListener("change", () => setSetting("single-keys", single.checked));
  byId("help-keys").replaceChildren(...bindings.map(({ keys, help }) => element("div", {},
    element("dt", {}, ...keys.flatMap((key, at) => [at ? " " : "", element("kbd", { text: written(key) })])),
    element("dd", { text: help }))));
  for (const { keys: [key], run } of bindings) {
    const shortcut = key.replace("Ctrl", "Control");
    document.querySelector(`button[aria-keyshortcuts="${shortcut}" i]`)?.addEventListener("click", run);
  }
  const bound = new Map(bindings.filter(({ run }) => run).flatMap((binding) => binding.keys.map((key) => [key, binding])));
  // Until when keys are text: in a text field until the reader leaves it, also after it was removed under the cursor.
  let textUntil = 0;
  let held = null;
  for (const name of ["focusin", "pointerdown"]) {
    document.addEventListener(name, ({ target }) => {
      textUntil = target.closest(TEXT_FIELDS) ? Infinity : 0;
    }, { capture: true });
  }
  document.addEventListener("keydown", (event) => {
    if (!event.repeat) held = null;
    // Keys of an input method are for it alone, and a held key is not typed into the field that it opened.
    if (event.isComposing || event.keyCode === 229) event.stopPropagation();
    else if (event.key === held) consume(event);
    else if (["Enter", "Escape", "Tab"].includes(event.key)) textUntil = 0;
    else if (event.target.closest(TEXT_FIELDS)) textUntil = Infinity;
  }, { capture: true });
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && document.querySelector(":popover-open")) return;
    if (event.target.closest(TEXT_FIELDS)) return;
    const control = event.ctrlKey || event.metaKey;
    const isText = event.timeStamp < textUntil;
    if (isText) textUntil = Math.max(textUntil, event.timeStamp + PAUSE_MS);
    if (isText || (!control && !single.checked)) return;
    // A capital letter is probably the start of a word typed without focus in a field.
    if (!control && event.shiftKey && /^\p{L}$/u.test(event.key)) return;
    const letter = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    // By its place on the keyboard, since it writes another character with Shift.
    const digit = event.shiftKey && !/\d/.test(letter) && /^Digit(\d)$/.exec(event.code);
    const plain = digit ? `Shift+${digit[1]}` : letter;
    const binding = control ? bound.get(`Ctrl+${event.shiftKey ? "Shift+" : ""}${letter}`) : bound.get(plain) ?? bound.get(letter);
    if (!binding || !(binding.always || isOpen())) return;
    event.preventDefault();
    binding.run(event);
    if (!binding.repeats) held = event.key;
    if (binding.opens && !document.activeElement.matches(TEXT_FIELDS)) textUntil = event.timeStamp + PAUSE_MS;
  });
}

function written(key) {
  return key.split("+").map((part) => WRITTEN[part] ?? (part.length === 1 ? part.toUpperCase() : part)).join("+") || "+";
}
