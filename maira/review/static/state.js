/** State of a draft with changes that the server has not confirmed. The server's state always replaces it. */

/** The step from which on the reference report and RadFact's verdicts are shown. */
export const REFERENCE_STEP = 3;

/** Whether a sentence is a correction: deleted, edited, with changed boxes, or added and not deleted. */
export function isCorrection(sentence) {
  if (sentence.origin === "added") return !sentence.deleted;
  return sentence.deleted || sentence.edited || boxesMoved(sentence);
}

export function boxesMoved(sentence) {
  return sentence.origin === "draft" && !sameBoxes(sentence.boxes, sentence.draft_boxes ?? []);
}

export function sameBoxes(left, right) {
  return left.length === right.length && left.every((box, at) => box.every((share, side) => share === right[at][side]));
}

/** Corrections of a state that have no value of a field of the assessment. */
export function without(state, field) {
  return state.sentences.filter((sentence) => isCorrection(sentence) && sentence.assessment[field] === null);
}

/** Short description of the change from one state to another. */
export function difference(before, now) {
  if (before.step !== now.step) return `going to step ${now.step}`;
  if (before.done !== now.done) return now.done ? "finishing" : "reopening";
  if (before.comment !== now.comment) return "comment on the study";
  if (before.sentences.length !== now.sentences.length) return `addition of sentence ${now.sentences.length}`;
  const written = before.sentences.map((sentence) => JSON.stringify(sentence));
  const at = now.sentences.findIndex((sentence, place) => JSON.stringify(sentence) !== written[place]);
  return at < 0 ? "a change" : `${correction(before.sentences[at], now.sentences[at])} of sentence ${at + 1}`;
}

/** Description of what was done to a sentence. */
function correction(before, now) {
  if (before.deleted !== now.deleted) return now.deleted ? "deletion" : "restoration";
  if (before.text !== now.text) return "text";
  if (!sameBoxes(before.boxes, now.boxes)) return "a box";
  const names = { severity: "severity", error_type: "type of error", comment: "comment" };
  return names[Object.keys(names).find((field) => before.assessment[field] !== now.assessment[field])];
}

const UNASSESSED = { severity: null, error_type: null, comment: "" };

const CORRECTED = {
  edit: (sentence, { text }) => ({ ...sentence, text, edited: sentence.origin === "draft" && text !== sentence.draft_text }),
  delete: (sentence) => ({ ...sentence, deleted: true }),
  restore: (sentence) => ({ ...sentence, deleted: false }),
  boxes: (sentence, { boxes }) => ({ ...sentence, boxes }),
  assess: (sentence, { kind, sentence: id, ...given }) => ({ ...sentence, assessment: { ...sentence.assessment, ...given } }),
};

const MARKED = {
  comment: (state, { text }) => ({ comment: text }),
  step: (state, { step }) => ({ step, visited: [...new Set([...state.visited, step])] }),
  finish: () => ({ done: true }),
  reopen: () => ({ done: false }),
  add: (state, { text, boxes = [] }) => ({ sentences: [...state.sentences, {
    id: `a${state.version}`, origin: "added", text, draft_text: null, boxes, draft_boxes: [],
    deleted: false, edited: false, assessment: UNASSESSED,
  }] }),
};

/**
 * The state after further changes.
 *
 * Only the server knows the result of undo and redo, so these have no effect until it responds. Changes to an earlier
 * version are already in the state.
 */
export function after(state, changes) {
  return changes.reduce((shown, { version, kind, fields }) => {
    if (version < shown.version) return shown;
    const corrected = CORRECTED[kind];
    const changed = corrected
      ? { sentences: shown.sentences.map((sentence) =>
        (sentence.id === fields.sentence ? corrected(sentence, fields) : sentence)) }
      : MARKED[kind]?.(shown, fields);
    const turns = changed ? { can_undo: true, can_redo: false } : {};
    return { ...shown, ...changed, ...turns, version: shown.version + 1 };
  }, state);
}
