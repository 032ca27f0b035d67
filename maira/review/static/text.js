/**
 * Typed text, stored in this browser from the first letter until a change contains it, and again if the server refuses
 * that change.
 *
 * A place in a study is a sentence id (its text), "new" (a missing finding), "comment" (on the study), or "why:" or "own:"
 * and a sentence id (comment on a correction, custom error type). Refused text without such a place gets one of its own.
 */

import { byId, element } from "./dom.js";
import { isCorrection } from "./state.js";

/** Fields of a correction, before the id of its sentence in the names of places. */
export const FIELDS = ["why:", "own:"];
const MOST_LETTERS = 4000;
const WHAT = { "": "text", "why:": "comment", "own:": "type of error" };

/**
 * Text without invisible characters, as `readable` of changes.py: control characters, controls of the writing direction,
 * byte order marks.
 */
export function typable(text) {
  return text.replace(/\r\n?/g, "\n").replace(/[\p{Cs}\u202a-\u202e\u2066-\u2069\ufeff]|(?![\n\t])\p{Cc}/gu, "");
}

/** Whether a place is the text of a finding that is not added yet. */
export function isFinding(place) {
  return place.startsWith("new");
}

/** Sentence (or null), its number from 1, and the field of a place ("" for the text). */
function sentenceAt(state, place) {
  const [, field, id] = /^(why:|own:)?(.*)$/.exec(place);
  const at = state.sentences.findIndex((sentence) => sentence.id === id);
  return { field: field ?? "", sentence: state.sentences[at] ?? null, number: at + 1 };
}

/** Whether text can be typed in a place. */
export function isOpen(state, place) {
  if (state.done) return false;
  if (place === "comment" || isFinding(place)) return true;
  const { field, sentence } = sentenceAt(state, place);
  return sentence !== null && (field ? isCorrection(sentence) : !sentence.deleted);
}

/** Text without a field: its place is not open, or no form is open for the text of a sentence. */
export function waiting(texts, state, form) {
  const hasField = (place) => (/^(why:|own:|comment$)/.test(place) ? isOpen(state, place) : place === form);
  return [...texts].filter(([place, text]) => text.trim() && !hasField(place))
    .map(([place, text]) => ({ place, text })).sort((left, right) => (left.place < right.place ? -1 : 1));
}

/** Findings to add in place of refused ones, by the id that they had: the server may have assigned it to another one. */
export function refusedFindings(changes) {
  return new Map(changes.filter(({ kind }) => kind === "add").map(({ id, version }) => [`a${version}`, `new:${id}`]));
}

/** Places and texts of refused changes of a study, the latest first. */
export function refusedTexts(changes, errorTypes, state) {
  const findings = refusedFindings(changes);
  return changes.toReversed().flatMap(({ kind, id, version, fields }) => {
    const sentence = kind === "add" ? `a${version}` : fields.sentence;
    const isThere = state === null || state.sentences.some((each) => each.id === sentence);
    const place = findings.get(sentence) ?? (isThere ? sentence : `new:${id}`);
    const own = errorTypes.includes(fields.error_type) ? null : fields.error_type;
    return [[kind === "comment" ? "comment" : place, fields.text], [`why:${place}`, fields.comment], [`own:${place}`, own]]
      .filter(([, text]) => text);
  });
}

/** List text without an open field, to continue or discard. */
export function showUnsaved(state, texts, { continueTyping, discard }) {
  const root = byId("unsaved");
  const items = texts.map(({ place, text }) => {
    const { field, sentence, number } = sentenceAt(state, place);
    const what = place === "comment" ? "Study, comment" : isFinding(place) ? "Missing finding"
      : `${sentence ? `Sentence ${number}` : "A removed sentence"}, ${WHAT[field]}`;
    const before = state.done ? "reopen the study" : !sentence ? "" : field ? "correct the sentence" : "restore the sentence";
    const open = isOpen(state, place);
    return { place, text, open, what, words: !open && before ? `${what} (${before} to continue): ` : `${what}: ` };
  });
  const key = JSON.stringify(items);
  // Redrawing a button would lose its focus, and a click that has started on it.
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  if (root.contains(document.activeElement)) byId("report-body").focus();
  root.hidden = !items.length;
  const button = (label, what, run) => element("button", { type: "button", text: label, "aria-label": `${label}: ${what}`, on: { click: run } });
  byId("unsaved-items").replaceChildren(...items.map(({ place, text, open, what, words }) => (
    element("li", {}, element("span", { class: "hint", text: words }), element("q", { text }), " ",
      open ? button("Continue", what, () => continueTyping(place)) : null, " ", button("Discard", what, () => discard(place))))));
}

/** A form that replaces a sentence while its text is edited. Enter or leaving it saves text that is not empty, Escape does not. */
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
  const fit = () => {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + 2}px`;
  };
  area.addEventListener("input", () => {
    fit();
    keep(area.value);
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end(cancel);
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) finish();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  const form = element("form", { class: "sentence-form", on: { submit: (event) => {
    event.preventDefault();
    finish();
  } } }, area, element("div", { class: "form-end" },
    element("span", { class: "hint", text: "Enter saves, Escape does not" }),
    // Pressing Cancel would first move the focus, which saves.
    element("button", { type: "button", text: "Cancel", on: { click: () => end(cancel), pointerdown: (event) => event.preventDefault() } }),
    element("button", { type: "submit", class: "primary", text: "Save" })));
  form.addEventListener("focusout", (event) => {
    if (!form.contains(event.relatedTarget) && document.hasFocus()) finish();
  });
  const begin = () => {
    fit();
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  };
  // Removing a form with the focus would save it.
  return { form, begin, release: () => end(() => {}) };
}

/**
 * Save a field when it is left or on Ctrl+Enter (Enter in a single line). It shows the unsaved text (`typed`), or else the
 * saved text.
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
