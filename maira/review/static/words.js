/**
 * Words that are not saved: one place for all of them, from the first letter until a change holds them, and again where the
 * server does not take that change.
 *
 * A place in a study is a sentence's id (its text), "new" (a finding that is missing), "comment" (on the study), or "why:" or
 * "own:" and a sentence's id (the comment on a correction, a type of error of one's own). Of a finding that could not be
 * added, "new:" and the id of its change stand for the sentence.
 */

import { isCorrection } from "./state.js";

/** Whether a place is that of the text of a finding which is not added yet. */
export function isFinding(place) {
  return place.startsWith("new");
}

/** The sentence of a place and its number from 1, null where the state has none; and the field of it, "" for its text. */
export function sentenceAt(state, place) {
  const [, field, id] = /^(why:|own:)?(.*)$/.exec(place);
  const at = state.sentences.findIndex((sentence) => sentence.id === id);
  return { field: field ?? "", sentence: state.sentences[at] ?? null, number: at + 1 };
}

/** Whether words can be typed in a place of a state. */
export function isOpen(state, place) {
  if (state.done) return false;
  if (place === "comment" || isFinding(place)) return true;
  const { field, sentence } = sentenceAt(state, place);
  return sentence !== null && (field ? isCorrection(sentence) : !sentence.deleted);
}

/** What a state has in a place that is open; null for a finding that is not added yet. */
function wordsIn(state, place) {
  if (place === "comment") return state.comment;
  if (isFinding(place)) return null;
  const { field, sentence } = sentenceAt(state, place);
  return { "": sentence.text, "why:": sentence.assessment.comment, "own:": sentence.assessment.error_type }[field];
}

/** The unsaved words of one reviewer in this window, by the key of their study and their place; kept for the next one. */
export class Words {
  #studies = new Map();

  /** @param {import("./kept.js").Kept} kept */
  constructor(kept) {
    this.kept = kept;
  }

  /** Take what the store has of a study. */
  open(study) {
    this.#studies.set(study, this.kept.texts(study));
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
    this.kept.keepText(study, place, text);
  }

  /** Let words go: a change holds them, or the reviewer takes them back. */
  drop(study, place) {
    this.#of(study).delete(place);
    this.kept.keepText(study, place, null);
  }

  /** Let all words go that are of a sentence, or of a finding that is not added yet. */
  dropAll(study, place) {
    for (const field of ["", "why:", "own:"]) this.drop(study, `${field}${place}`);
  }

  /** Put words of one sentence where those of another are. */
  move(study, from, to, fields = ["", "why:", "own:"]) {
    for (const field of fields) {
      const text = this.text(study, `${field}${from}`);
      if (text === null) continue;
      this.keep(study, `${field}${to}`, text);
      this.drop(study, `${field}${from}`);
    }
  }

  /**
   * Words that stand in no field: since nothing can be typed in their place, or since they are a text and no form is open
   * for them. Other places have fields of their own.
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

  /** Let words go that a state has already, for instance since another window saved them. */
  settle(study, state) {
    for (const [place, text] of [...this.#of(study)]) {
      if (isOpen(state, place) && text === wordsIn(state, place)) this.drop(study, place);
    }
  }

  /**
   * Take the words in changes that were not taken; what has been typed in their places since stays.
   *
   * @param {object[]} changes  of one study, oldest first
   * @param {string[]} errorTypes  those that can be chosen; another one was typed
   * @param {object | null} state  of the study where the server told it; the text of a finding that it lacks is one to add
   * @returns {string[]} the sentences whose words are now those of a finding to add: another may have their id
   */
  takeBack(changes, errorTypes, state) {
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
