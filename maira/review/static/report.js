/** The report of a study as elements: steps, sentences and what was done to them, assessments, reference, unsaved text. */

import { diffWords } from "./diff.js";
import { byId, button, consume, counted, element, fill } from "./dom.js";
import { boxesMoved, isCorrection, REFERENCE_STEP, without } from "./state.js";
import { describePlace, isFinding, isOpen, typable } from "./text.js";

const MOST_LETTERS = 4000;
const OWN = "\u0000own";
const VERDICTS = {
  entailment: ["yes", "✓ entailed by the reference"],
  not_entailment: ["no", "✗ not entailed by the reference"],
};
const PIECES = { kept: "span", added: "ins", removed: "del" };

/** Draw the report of a view of a study. */
export function drawReport(view) {
  const { shown: state } = view;
  const { reference } = view.study;
  const hasReference = reference !== null && state.step >= REFERENCE_STEP;
  drawSteps(view, state, reference);
  fill(byId("sentences"), ...state.sentences.map((sentence, at) => row(view, sentence, at)));
  byId("empty-draft").hidden = state.sentences.length > 0;
  const isAdding = view.editing !== null && isFinding(view.editing);
  fill(byId("adder"), isAdding ? form(view, view.editing, "Text of the missing finding", "") : null,
    button("+ Add a finding", () => view.startAdd(), {
      class: "add", title: "Add a finding (A)", "aria-keyshortcuts": "A", disabled: state.done, hidden: isAdding,
    }));
  byId("reference").hidden = !hasReference;
  fill(byId("reference-sentences"), ...(reference ?? []).map((sentence, at) => referenceRow(view, sentence, at)),
    reference?.length ? null : element("li", { class: "hint", text: "No reference report is shown." }));
  const comment = typing(view, "comment", state.comment, (text) => view.saveComment(text), () => byId("report-body").focus());
  fill(byId("comment-field"), "Comment on the study ",
    element("textarea", { id: "comment", rows: "1", "aria-keyshortcuts": "C", disabled: state.done, ...comment }));
  byId("unsaved").hidden = !view.waiting.length;
  fill(byId("unsaved-items"), ...view.waiting.map(([place, text]) => unsaved(view, place, text)));
  // The severity may have been chosen by a key.
  const radio = document.activeElement;
  if (radio.matches(".severity input:not(:checked)")) radio.closest("fieldset").querySelector(":checked")?.focus();
}

/** The four steps of a review (MAIRA-2, figure F.1) with their instructions. */
function drawSteps(view, { step, done, visited, ...state }, reference) {
  const { steps } = view.set;
  fill(byId("steps"), ...steps.map(({ number, name }) => element("li", {}, element("button", {
    type: "button", class: visited.includes(number) && (done || number !== step) ? "step past" : "step", disabled: done,
    "aria-current": number === step && "step", on: { click: () => view.go(number) },
  }, element("span", { class: "step-number", text: number }), ` ${name}`))));
  const isMissing = step === REFERENCE_STEP && reference?.length === 0;
  const [first, ...rest] = done ? ["Finished. Reopen the study to change it, or continue with the next one."]
    : isMissing ? ["No reference report is shown. Leave a comment."] : steps[step - 1].instruction.split("\n");
  fill(byId("instruction"), element("p", { text: first }), element("ul", {}, ...rest.map((text) => element("li", { text }))));
  fill(byId("severity-definitions"), ...view.set.severities.toReversed().flatMap(({ id, name, definition }) => [
    element("dt", { text: `${id} · ${name}` }),
    element("dd", {}, element("ul", {}, ...definition.split("\n").map((text) => element("li", { text })))),
  ]));
  const isLast = step === steps.length;
  for (const id of ["definitions", "go-on-toggle"]) byId(id).hidden = !isLast || done;
  const open = without(state, "severity").length;
  byId("remaining").textContent = done ? "This study is finished." : isLast && open
    ? `${counted(open, "correction")} without severity` : "";
  const [words, key] = done ? ["Next unfinished study", "U"] : isLast ? ["Finish study", "F"]
    : [`Next: ${step + 1} ${steps[step].name}`, "]"];
  byId("advance").textContent = words;
  byId("advance").title = words.startsWith("Next:") ? "Next step (])" : `${words} (${key})`;
}

/** Description of the changes of a sentence. */
function stateOf(sentence) {
  return [
    sentence.deleted && "deleted", sentence.edited && "edited", sentence.origin === "added" && "added",
    boxesMoved(sentence) && "boxes changed",
    sentence.boxes.length && counted(sentence.boxes.length, "box", "boxes"),
  ].filter(Boolean);
}

function marks(words) {
  return element("div", { class: "marks", hidden: !words.length },
    ...words.map((text) => element("span", { class: `mark ${text.replaceAll(/\W/g, "-")}`, text })));
}

/** One sentence of the draft with its tools, or the form for its text. */
function row(view, sentence, at) {
  const { id, text, deleted, edited } = sentence;
  const selected = view.selected === id;
  const isEdited = view.editing === id;
  const remove = deleted ? "Restore" : "Delete";
  const state = stateOf(sentence);
  const tool = (name, label, keys, disabled, run) => button(name, run,
    { title: `${label} (${keys})`, "aria-label": label, "aria-keyshortcuts": keys, disabled });
  const pieces = edited && !deleted ? diffWords(sentence.draft_text, text) : [{ kind: deleted ? "removed" : "kept", text }];
  const marked = view.counterparts.includes(id) && "counterpart";
  const classes = ["sentence", selected && "selected", marked, deleted && "deleted", edited && "edited",
    sentence.origin === "added" && "added"];
  return element("li", { class: classes.filter(Boolean).join(" "), "data-key": id },
    isEdited ? form(view, id, `Text of sentence ${at + 1}`, text) : null,
    element("div", { class: "sentence-line", hidden: isEdited },
      element("button", { type: "button", class: "sentence-text", "aria-current": selected && "true",
        // Screen readers would read deleted and added words as one text.
        "aria-label": `${[`Sentence ${at + 1}`, ...state].join(", ")}: ${text}`,
        on: { click: () => view.select(id), dblclick: () => view.startEdit(id) } },
      element("span", { class: "number", text: at + 1 }),
      element("span", { class: "words" }, ...pieces.flatMap((piece, place) => (
        [place ? " " : null, element(PIECES[piece.kind], { text: piece.text })])))),
      element("div", { class: "tools", role: "group", "aria-label": "This sentence", hidden: !selected || view.shown.done },
        tool("Edit", "Edit this sentence", "E", deleted, () => view.startEdit(id)),
        tool(remove, `${remove} this sentence`, "D", false, () => view.toggleDeleted(id)),
        tool("Add box", "Add a box to this sentence", "B", deleted, () => view.addBox(id)))),
    marks(state), verdictOf(view, sentence, at), assessment(view, sentence, selected));
}

function verdictOf(view, { origin, edited }, at) {
  const verdict = origin === "draft" ? view.verdictAt(at) : undefined;
  const [kind, words] = VERDICTS[verdict?.status] ?? ["none", "no verdict"];
  const evidence = verdict?.evidence?.map((place) => `R${place + 1}`).join(", ");
  return element("div", { class: "verdict", hidden: !verdict }, ...(verdict ? [
    edited ? element("span", { text: "the draft’s sentence:" }) : null,
    element("span", { class: `tag ${kind}`, text: words }),
    evidence ? element("span", { text: `evidence: ${evidence}` }) : null,
    verdict.why ? element("span", { text: verdict.why }) : null,
  ] : []));
}

/** A form that replaces a sentence while it is edited. Enter or leaving it saves text that is not empty, Escape does not. */
function form(view, place, label, saved) {
  const save = () => view.endForm(place, true);
  const cancel = () => view.endForm(place, false);
  return element("form", { class: "sentence-form", "data-key": `form ${place}`, on: {
    submit: (event) => {
      event.preventDefault();
      save();
    },
    focusout: ({ currentTarget, relatedTarget }) => {
      if (!currentTarget.contains(relatedTarget) && document.hasFocus()) save();
    },
  } },
  // A longer draft can be shortened step by step.
  element("textarea", { "aria-label": label, rows: "3", maxlength: Math.max(MOST_LETTERS, saved.length),
    props: { value: view.typed(place) ?? typable(saved) }, on: {
      input: ({ target }) => view.keep(place, target.value),
      keydown: (event) => {
        const isEnd = event.key === "Enter" && !event.shiftKey;
        if (event.key !== "Escape" && !isEnd) return;
        consume(event);
        view.endForm(place, isEnd);
      },
    } }),
  element("div", { class: "form-end" }, element("span", { class: "hint", text: "Enter saves, Escape does not" }),
    // Pressing Cancel would first move the focus, which saves.
    element("button", { type: "button", text: "Cancel",
      on: { click: cancel, pointerdown: (event) => event.preventDefault() } }),
    element("button", { type: "submit", class: "primary", text: "Save" })));
}

/** A field with unsaved text, or else the saved one; leaving it or Ctrl+Enter (Enter in a single line) saves it. */
function typing(view, place, saved, save, escape, left = () => {}) {
  const finish = () => {
    const text = view.typed(place);
    if (text !== null) save(typable(text).trim());
  };
  return { props: { value: view.typed(place) ?? saved }, on: {
    input: ({ target }) => view.keep(place, target.value),
    // For the browser, text that was typed and removed again is no change.
    blur: () => {
      if (document.hasFocus()) finish();
      left();
    },
    keydown: (event) => {
      const isLine = event.target instanceof HTMLInputElement;
      const isEnd = event.key === "Enter" && (event.ctrlKey || event.metaKey || isLine);
      if (event.key !== "Escape" && !isEnd) return;
      consume(event);
      if (isEnd) finish();
      else escape();
    },
  } };
}

/** The choices below a corrected sentence: severity, error type and comment. */
function assessment(view, sentence, selected) {
  const { id, assessment: { severity, error_type: chosen, comment } } = sentence;
  const { error_type_names: names } = view.set;
  const disabled = view.shown.done;
  const own = `own:${id}`;
  const isOwn = view.naming === id || Boolean(view.typed(own));
  const field = (label, attributes) => element("input", { type: "text", "aria-label": label, disabled, ...attributes });
  const isTyping = [own, `why:${id}`].some((place) => view.typed(place) !== null);
  const isShown = isCorrection(sentence) && (selected || view.shown.step === view.set.steps.length || isTyping);
  const types = chosen === null || view.errorTypes.includes(chosen) ? view.errorTypes : [...view.errorTypes, chosen];
  return element("div", { class: "assessment", hidden: !isShown, on: { keydown: (event) => {
    if (event.key !== "Escape") return;
    consume(event);
    view.focus(id);
  } } },
  element("fieldset", { class: "severities" },
    element("legend", { text: "Implications", title: "Clinical implications on patient treatment" }),
    ...view.set.severities.map(({ id: value, name, definition }) => (
      element("label", { class: "severity", title: definition },
        element("input", { type: "radio", name: `severity-${id}`, value, disabled, props: { checked: value === severity },
          on: { change: () => view.assess(id, { severity: value }) } }),
        element("span", {}, element("kbd", { text: value }), ` ${name.replace(/ implications$/, "")}`))))),
  element("div", { class: "type-and-why" },
    element("select", { class: "type", "aria-label": "Error type", title: names[chosen] ?? chosen ?? "", disabled,
      props: { value: isOwn ? OWN : chosen ?? "" },
      on: { change: ({ target: { value } }) => (
        value === OWN ? view.nameType(id) : view.assess(id, { error_type: value || null })) } },
    ...[["", "Error type …"], ...types.map((type) => [type, names[type] ?? type]), [OWN, "Another type …"]]
      .map(([value, text]) => element("option", { value, text }))),
    field("Custom error type", { class: "own-type", maxlength: "100", hidden: !isOwn, placeholder: "custom type, then Enter",
      ...typing(view, own, "", (name) => view.saveType(id, name), () => view.saveType(id, ""), () => view.leaveType(id)) }),
    field("Comment on this correction", { class: "why", placeholder: "Comment on this correction",
      ...typing(view, `why:${id}`, comment, (text) => view.assess(id, { comment: text }), () => view.focus(id)) })));
}

/** One sentence of the reference report; choosing it shows its boxes. */
function referenceRow(view, { text, boxes }, at) {
  const id = `reference-${at}`;
  const selected = view.selected === id;
  const classes = ["sentence reference", selected && "selected", view.counterparts.includes(id) && "counterpart"];
  return element("li", { class: classes.filter(Boolean).join(" "), "data-key": id },
    element("button", { type: "button", class: "sentence-text", "aria-current": selected && "true",
      on: { click: () => view.select(id) } },
    element("span", { class: "number", text: `R${at + 1}` }), element("span", { class: "words", text })),
    marks(boxes?.length ? [counted(boxes.length, "box", "boxes")] : []));
}

/** Text without an open field, to continue or discard. */
function unsaved(view, place, text) {
  const { what, words } = describePlace(view.shown, place);
  const hidden = !isOpen(view.shown, place);
  return element("li", { "data-key": place }, element("span", { class: "hint", text: words }), element("q", { text }), " ",
    button("Continue", () => view.continueTyping(place), { "aria-label": `Continue: ${what}`, hidden }), " ",
    button("Discard", () => view.discard(place), { "aria-label": `Discard: ${what}` }));
}
