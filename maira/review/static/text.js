/**
 * Typed text, stored in this browser from the first letter until a change contains it, and again if the server refuses
 * that change.
 *
 * A place in a study is a sentence id (its text), "new" (a missing finding), "comment" (on the study), or "@FIELD:" of the
 * form and the id of what it asks about. Refused text without such a place gets one of its own.
 */

import { form, units } from "./state.js";

/** Fields of the form with text, before the id of a sentence in the names of places. */
export function textFields() {
  return form.fields.filter(({ type, allows_others: isOpen }) => type === "text" || isOpen).map(({ name }) => `@${name}:`);
}

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

/** The field of a place (undefined for a text without one) and the id of what it is about. */
export function partsOf(place) {
  return /^(?:@(?<field>\w+):)?(?<id>.*)$/.exec(place).groups;
}

/** Whether text can be typed in a place. */
export function isOpen(state, place) {
  if (state.done) return false;
  if (place === "comment" || isFinding(place)) return true;
  const { field, id } = partsOf(place);
  const sentence = state.sentences.find((each) => each.id === id);
  return field ? units(state).some((unit) => unit.id === id) : Boolean(sentence && !sentence.deleted);
}

/** What a place is, and what has to be done before its text can be continued. */
export function describePlace(state, place) {
  const { field, id } = partsOf(place);
  const at = state.sentences.findIndex((sentence) => sentence.id === id);
  const what = place === "comment" ? "Study, comment" : isFinding(place) ? "Missing finding"
    : `${at < 0 ? "A removed sentence" : `Sentence ${at + 1}`}, ${form.fields.find(({ name }) => name === field)?.label.toLowerCase() ?? "text"}`;
  const isWaiting = !isOpen(state, place) && (state.done || at >= 0);
  const needed = state.done ? "reopen the study" : field ? "correct the sentence" : "restore the sentence";
  return { what, words: isWaiting ? `${what} (${needed} to continue): ` : `${what}: ` };
}

/** Findings to add in place of refused ones, by the id that they had: the server may have assigned it to another one. */
export function refusedFindings(changes) {
  return new Map(changes.filter(({ kind }) => kind === "add").map(({ id, version }) => [`a${version}`, `new:${id}`]));
}

/** Places and texts of refused changes of a study, the latest first. */
export function refusedTexts(changes, errorTypes, state) {
  const findings = refusedFindings(changes);
  return changes.toReversed().flatMap(({ kind, id, version, fields }) => {
    const sentence = kind === "add" ? `a${version}` : fields.sentence ?? fields.unit;
    const isThere = state === null || sentence === "" || state.sentences.some((each) => each.id === sentence);
    const place = findings.get(sentence) ?? (isThere ? sentence : `new:${id}`);
    const typed = Object.entries(fields.values ?? {})
      .filter(([name, value]) => textFields().includes(`@${name}:`) && !errorTypes.has(value))
      .map(([name, value]) => [`@${name}:${place}`, value]);
    return [[kind === "comment" ? "comment" : place, fields.text], ...typed].filter(([, text]) => text);
  });
}
