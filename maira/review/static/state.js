/** State of a draft with changes that the server has not confirmed. The server's state always replaces it. */

/** What readers are asked. */
export let form;

export function setForm(asked) {
  form = { ...asked, edits: asked.unit === "correction", isWhole: ["study", "pair"].includes(asked.unit) };
}

/** Whether the reference report and RadFact's verdicts are shown: from a step on, or only without images. */
export function showsReference({ step }) {
  return step >= (form.reference_step ?? 1);
}

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

/** What the form asks about: corrections, sentences, or the study, which has the id "". */
export function units(state) {
  return form.isWhole ? [{ id: "", answers: state.answers }] : state.sentences.filter((each) => !form.edits || isCorrection(each));
}

/** Whether a field is asked after other answers. */
export function isAsked({ when }, answers) {
  return Object.entries(when).every(([name, values]) => values.includes(answers[name] ?? null));
}

/** Fields without an answer, with the id of what they are about: the required ones, or the other choices. */
export function unanswered(state, isRequired = true) {
  const fields = form.fields.filter(({ required, type }) => required === isRequired && (required || type === "choice"));
  return units(state).flatMap(({ id, answers }) => fields
    .filter((field) => isAsked(field, answers) && (answers[field.name] ?? null) === null).map((field) => ({ id, field })));
}

/** Short description of the change from one state to another. */
export function difference(before, now) {
  if (before.step !== now.step) return `going to step ${now.step}`;
  if (before.done !== now.done) return now.done ? "finishing" : "reopening";
  if (before.comment !== now.comment) return "comment on the study";
  const answered = changedAnswer(before.answers, now.answers);
  if (answered) return answered;
  if (before.sentences.length !== now.sentences.length) return `addition of sentence ${now.sentences.length}`;
  const at = now.sentences.findIndex((sentence, place) => correction(before.sentences[place], sentence));
  return at < 0 ? "a change" : `${correction(before.sentences[at], now.sentences[at])} of sentence ${at + 1}`;
}

function correction(before, now) {
  if (before.deleted !== now.deleted) return now.deleted ? "deletion" : "restoration";
  if (before.text !== now.text) return "text";
  if (!sameBoxes(before.boxes, now.boxes)) return "a box";
  return changedAnswer(before.answers, now.answers);
}

function changedAnswer(before, now) {
  return form.fields.find(({ name }) => (before[name] ?? null) !== (now[name] ?? null))?.label.toLowerCase();
}

const CORRECTED = {
  edit: (sentence, { text }) => ({ ...sentence, text, edited: sentence.origin === "draft" && text !== sentence.draft_text }),
  delete: (sentence) => ({ ...sentence, deleted: true }),
  restore: (sentence) => ({ ...sentence, deleted: false }),
  boxes: (sentence, { boxes }) => ({ ...sentence, boxes }),
  answer: (sentence, { values }) => ({ ...sentence, answers: { ...sentence.answers, ...values } }),
};

const MARKED = {
  comment: (state, { text }) => ({ comment: text }),
  step: (state, { step }) => ({ step, visited: [...new Set([...state.visited, step])] }),
  answer: ({ answers }, { values }) => ({ answers: { ...answers, ...values } }),
  finish: () => ({ done: true }),
  reopen: () => ({ done: false }),
  add: (state, { text, boxes = [] }) => ({ sentences: [...state.sentences, {
    id: `a${state.version}`, origin: "added", text, draft_text: null, boxes, draft_boxes: [],
    deleted: false, edited: false, answers: {},
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
    const corrected = fields.unit === "" ? null : CORRECTED[kind];
    const changed = corrected
      ? { sentences: shown.sentences.map((sentence) =>
        (sentence.id === (fields.sentence ?? fields.unit) ? corrected(sentence, fields) : sentence)) }
      : MARKED[kind]?.(shown, fields);
    const turns = changed ? { can_undo: true, can_redo: false } : {};
    return { ...shown, ...changed, ...turns, version: shown.version + 1 };
  }, state);
}
