/** Text fields whose content is stored in this browser until it is saved. */

import { element } from "./dom.js";

const MOST_LETTERS = 4000;

/**
 * Text without invisible characters, as `readable` of changes.py: control characters, controls of the writing direction,
 * byte order marks.
 */
export function typable(text) {
  return text.replace(/\r\n?/g, "\n").replace(/[\p{Cs}\u202a-\u202e\u2066-\u2069\ufeff]|(?![\n\t])\p{Cc}/gu, "");
}

/** Grow a text area with its text. */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

/**
 * A form that replaces a sentence while its text is edited. Enter or leaving it saves, Escape does not.
 *
 * @param {{label: string, text: string, keep: (text: string) => void, save: (text: string) => void,
 *   cancel: () => void}} options  `save` gets a text that is not empty
 */
export function sentenceForm({ label, text, keep, save, cancel }) {
  let ended = false;
  const end = (how) => {
    if (ended) return;
    ended = true;
    how();
  };
  // A longer draft can be shortened step by step.
  const area = element("textarea", { "aria-label": label, rows: "1", maxlength: Math.max(MOST_LETTERS, text.length) });
  area.value = typable(text);
  const finish = () => {
    const typed = typable(area.value).trim();
    end(() => (typed ? save(typed) : cancel()));
  };
  area.addEventListener("input", () => {
    fit(area);
    keep(area.value);
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end(cancel);
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) finish();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const form = element("form", { class: "sentence-form" }, area,
    element("div", { class: "form-end" },
      element("span", { class: "hint", text: "Enter saves, Escape does not" }),
      element("button", { type: "button", text: "Cancel", on: { click: () => end(cancel) } }),
      element("button", { type: "submit", class: "primary", text: "Save" })));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    finish();
  });
  // Pressing Cancel would first move the focus, which saves.
  form.querySelector("button[type=button]").addEventListener("pointerdown", (event) => event.preventDefault());
  form.addEventListener("focusout", (event) => {
    if (!form.contains(event.relatedTarget) && document.hasFocus()) finish();
  });
  const begin = () => {
    fit(area);
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  };
  // Removing a form with the focus would save it.
  const release = () => end(() => {});
  return { form, begin, release };
}

/**
 * Save a field when it is left or on Ctrl+Enter (Enter in a single line). The field does not store typed text: it shows the
 * unsaved text, or else the saved text.
 *
 * @param {HTMLInputElement | HTMLTextAreaElement} field
 * @param {{typed: () => string | null, keep: (text: string) => void, save: (text: string) => void}} options  `typed`: the
 *   unsaved text of this field, as passed to `keep`
 * @returns {{isTyping: boolean, show: (saved: string) => void, save: () => void}}
 */
export function persistentField(field, { typed, keep, save }) {
  const finish = () => {
    const text = typed();
    if (text !== null) save(typable(text).trim());
  };
  field.addEventListener("input", () => keep(field.value));
  // For the browser, text that was typed and removed again is no change.
  field.addEventListener("blur", () => {
    if (document.hasFocus()) finish();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey || field instanceof HTMLInputElement)) return;
    event.preventDefault();
    event.stopPropagation();
    finish();
  });
  return {
    get isTyping() {
      return typed() !== null;
    },
    show(saved) {
      const shown = typed() ?? saved;
      if (field.value !== shown) field.value = shown;
    },
    save: finish,
  };
}
