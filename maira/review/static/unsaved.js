/**
 * Unsaved text, from the first letter until a change contains it, and again if the server refuses that change.
 *
 * A place in a study is a sentence id (its text), "new" (a missing finding), "comment" (on the study), or "why:" or "own:"
 * and a sentence id (comment on a correction, custom error type). For a finding that could not be added, "new:" and the id
 * of its change replace the sentence id.
 */

import { isCorrection } from "./state.js";

const FIELDS = ["", "why:", "own:"];

/** Whether a place is the text of a finding that is not added yet. */
export function isFinding(place) {
  return place.startsWith("new");
}

/** Sentence (or null), its number from 1, and the field of a place ("" for the text). */
export function sentenceAt(state, place) {
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

/** Saved text of an open place; null for a finding that is not added yet. */
function wordsIn(state, place) {
  if (place === "comment") return state.comment;
  if (isFinding(place)) return null;
  const { field, sentence } = sentenceAt(state, place);
  return { "": sentence.text, "why:": sentence.assessment.comment, "own:": sentence.assessment.error_type }[field];
}

/** Unsaved text of one reader by study key and place, mirrored in the browser's storage. */
export class UnsavedText {
  #studies = new Map();

  /** @param {import("./storage.js").BrowserStorage} kept */
  constructor(storage) {
    this.storage = storage;
  }

  /** Load the stored text of a study. */
  open(study) {
    this.#studies.set(study, this.storage.texts(study));
  }

  #of(study) {
    if (!this.#studies.has(study)) this.open(study);
    return this.#studies.get(study);
  }

  text(study, place) {
    return this.#of(study).get(place) ?? null;
  }

  keep(study, place, text) {
    this.#of(study).set(place, text);
    this.storage.keepText(study, place, text);
  }

  /** Remove text: a change contains it, or the reader discards it. */
  drop(study, place) {
    this.#of(study).delete(place);
    this.storage.keepText(study, place, null);
  }

  /** Remove all text of a sentence, or of a finding that is not added yet. */
  dropAll(study, place) {
    for (const field of FIELDS) this.drop(study, `${field}${place}`);
  }

  /** Move the text of one sentence to another. */
  move(study, from, to, fields = FIELDS) {
    for (const field of fields) {
      const text = this.text(study, `${field}${from}`);
      if (text === null) continue;
      this.keep(study, `${field}${to}`, text);
      this.drop(study, `${field}${from}`);
    }
  }

  /**
   * Text without a field: its place is not open, or no form is open for the text of a sentence.
   *
   * @param {string} study
   * @param {object} state
   * @param {string | null} form  the place of the form that is open
   * @returns {{place: string, text: string}[]}
   */
  waiting(study, state, form) {
    const hasField = (place) => (/^(why:|own:|comment$)/.test(place) ? isOpen(state, place) : place === form);
    return [...this.#of(study)].filter(([place, text]) => text.trim() && !hasField(place))
      .map(([place, text]) => ({ place, text })).sort((left, right) => (left.place < right.place ? -1 : 1));
  }

  /** Remove text that is already saved, for example by another window. */
  settle(study, state) {
    for (const [place, text] of [...this.#of(study)]) {
      if (isOpen(state, place) && text === wordsIn(state, place)) this.drop(study, place);
    }
  }

  /**
   * Restore the text of refused changes; text typed since has priority.
   *
   * @param {object[]} changes  of one study, oldest first
   * @param {string[]} errorTypes  predefined types; any other type was typed
   * @param {object | null} state  of the study if the server sent it; the text of a finding that it lacks belongs to a finding to add
   * @returns {string[]} sentences whose text is now that of a finding to add, because another sentence may have their id
   */
  restore(changes, errorTypes, state) {
    const gone = ({ sentence }) => state !== null && !state.sentences.some(({ id }) => id === sentence);
    const findings = new Map(changes.filter(({ kind, fields }) => kind === "add" || (kind === "edit" && gone(fields)))
      .map(({ kind, version, id, fields }) => [kind === "add" ? `a${version}` : fields.sentence, `new:${id}`]));
    for (const [sentence, finding] of findings) this.move(changes[0].study, sentence, finding);
    for (const { study, kind, version, fields } of [...changes].reverse()) {
      const sentence = kind === "add" ? `a${version}` : fields.sentence;
      const place = findings.get(sentence) ?? sentence;
      const words = {
        [kind === "comment" ? "comment" : place]: fields.text,
        [`why:${place}`]: fields.comment,
        [`own:${place}`]: errorTypes.includes(fields.error_type) ? null : fields.error_type,
      };
      for (const [where, text] of Object.entries(words)) {
        if (text && this.text(study, where) === null) this.keep(study, where, text);
      }
    }
    return [...findings.keys()];
  }
}
