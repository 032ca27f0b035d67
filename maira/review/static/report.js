/** The report of a study as elements: steps, sentences and what was done to them, assessments, reference, unsaved text. */

import { diffWords } from "./diff.js";
import { byId, button, consume, counted, element, fill } from "./dom.js";
import { boxesMoved, form, isAsked, showsReference, unanswered, units } from "./state.js";
import { describePlace, isFinding, isOpen, typable } from "./text.js";

const MOST_LETTERS = 4000;
const OWN = "\u0000own";
const MOST_BUTTONS = 10;
const VERDICTS = {
  entailment: ["yes", "✓ entailed by the reference"],
  not_entailment: ["no", "✗ not entailed by the reference"],
};
const PIECES = { kept: "span", added: "ins", removed: "del" };

export function drawReport(view) {
  const { shown: state, waiting } = view;
  const { reference, candidates } = view.study;
  const hasReference = reference !== null && showsReference(state) && (form.reference_step !== null || reference.length > 0);
  drawSteps(view, state, reference);
  const isEmpty = !state.sentences.length && !candidates.length;
  const isAdding = view.editing !== null && isFinding(view.editing);
  fill(byId("report-body"),
    element("ol", { id: "sentences" }, ...state.sentences.map((sentence, at) => row(view, sentence, at))),
    element("p", { class: "hint", hidden: !isEmpty, text: "The draft has no sentence." }),
    element("div", { class: "candidates" }, ...candidates.map((sentences, at) => element("section", {},
      element("h3", { text: `Report ${"AB"[at]}` }), ...sentences.map((text) => element("p", { text }))))),
    element("div", { hidden: !form.edits },
      isAdding ? textForm(view, view.editing, "Text of the missing finding", "") : null,
      button("+ Add a finding", () => view.startAdd(), {
        class: "add", title: "Add a finding (A)", "aria-keyshortcuts": "A", disabled: state.done, hidden: isAdding,
      })),
    element("div", { id: "answers" }, form.isWhole ? answersOf(view, { id: "", answers: state.answers }, true) : null),
    element("section", { id: "unsaved", class: "unsaved", "aria-labelledby": "unsaved-title", hidden: !waiting.length },
      element("h3", { id: "unsaved-title", text: "Not saved" }),
      element("ul", {}, ...waiting.map(([place, text]) => unsaved(view, place, text)))));
  byId("reference").hidden = !hasReference;
  fill(byId("reference-sentences"), ...(reference ?? []).map((sentence, at) => referenceRow(view, sentence, at)),
    reference?.length ? null : element("li", { class: "hint", text: "No reference report is shown." }));
  const comment = typing(view, "comment", state.comment, () => byId("report-body").focus());
  fill(byId("comment-field"), "Comment on the study ",
    element("textarea", { id: "comment", rows: "1", "aria-keyshortcuts": "C", disabled: state.done, ...comment }));
  // The option may have been chosen by a key.
  const radio = document.activeElement;
  if (radio.matches(".option input:not(:checked)")) radio.closest("fieldset").querySelector(":checked")?.focus();
}

/** The steps of a review with their instructions, and the definitions of options. */
function drawSteps(view, { step, done, visited, ...state }, reference) {
  const { steps } = form;
  const isLast = step === steps.length;
  byId("steps").parentElement.hidden = steps.length < 2;
  fill(byId("steps"), ...steps.map(({ name }, at) => element("li", {}, element("button", {
    type: "button", class: visited.includes(at + 1) && (done || at + 1 !== step) ? "step past" : "step", disabled: done,
    "aria-current": at + 1 === step && "step", on: { click: () => view.go(at + 1) },
  }, element("span", { class: "step-number", text: at + 1 }), ` ${name}`))));
  const isMissing = step === form.reference_step && reference?.length === 0;
  const [first, ...rest] = done ? ["Finished. Reopen the study to change it, or continue with the next one."]
    : isMissing && step > 1 ? ["No reference report is shown. Leave a comment."] : steps[step - 1].instruction.split("\n");
  fill(byId("instruction"), element("p", { text: first }), element("ul", {}, ...rest.map((text) => element("li", { text }))));
  const defined = form.fields.flatMap(({ options }) => options.filter(({ definition }) => definition)).toReversed();
  fill(byId("answer-definitions"), ...defined.flatMap(({ key, name, definition }) => [
    element("dt", { text: key ? `${key} · ${name}` : name }),
    element("dd", {}, element("ul", {}, ...definition.split("\n").map((text) => element("li", { text })))),
  ]));
  byId("definitions").hidden = !isLast || done || !defined.length;
  byId("go-on-toggle").hidden = !isLast || done;
  const open = unanswered(state).length;
  byId("remaining").textContent = done ? "This study is finished." : isLast && open ? `${counted(open, "answer")} missing` : "";
  const [words, key] = done ? ["Next unfinished study", "U"] : isLast ? ["Finish study", "F"]
    : [`Next: ${step + 1} ${steps[step].name}`, "]"];
  byId("advance").textContent = words;
  byId("advance").title = words.startsWith("Next:") ? "Next step (])" : `${words} (${key})`;
}

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
  const classes = ["sentence", selected && "selected", view.counterparts.includes(id) && "counterpart",
    deleted && "deleted", edited && "edited", sentence.origin === "added" && "added"];
  return element("li", { class: classes, "data-key": id },
    isEdited ? textForm(view, id, `Text of sentence ${at + 1}`, text) : null,
    element("div", { class: "sentence-line", hidden: isEdited },
      element("button", { type: "button", class: "sentence-text", "aria-current": selected && "true",
        // Screen readers would read deleted and added words as one text.
        "aria-label": `${[`Sentence ${at + 1}`, ...state].join(", ")}: ${text}`,
        on: { click: () => view.select(id), dblclick: () => view.startEdit(id) } },
      element("span", { class: "number", text: at + 1 }),
      element("span", { class: "words" }, ...pieces.flatMap((piece, place) => (
        [place ? " " : null, element(PIECES[piece.kind], { text: piece.text })])))),
      element("div", { class: "tools", role: "group", "aria-label": "This sentence", hidden: !selected || view.shown.done || !form.edits },
        tool("Edit", "Edit this sentence", "E", deleted, () => view.startEdit(id)),
        tool(remove, `${remove} this sentence`, "D", false, () => view.toggleDeleted(id)),
        tool("Add box", "Add a box to this sentence", "B", deleted, () => view.addBox(id)))),
    marks(state), verdictOf(view, sentence, at), form.isWhole ? null : answersOf(view, sentence, selected));
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
function textForm(view, place, label, saved) {
  const save = () => view.endForm(place, true);
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
      on: { click: () => view.endForm(place, false), pointerdown: (event) => event.preventDefault() } }),
    element("button", { type: "submit", class: "primary", text: "Save" })));
}

/** A field with unsaved text, or else the saved one; leaving it or Ctrl+Enter (Enter in a single line) saves it. */
function typing(view, place, saved, escape, left = () => {}) {
  return { props: { value: view.typed(place) ?? saved }, on: {
    input: ({ target }) => view.keep(place, target.value),
    // For the browser, text that was typed and removed again is no change.
    blur: () => {
      if (document.hasFocus()) view.saveText(place);
      left();
    },
    keydown: (event) => {
      const isLine = event.target instanceof HTMLInputElement;
      const isEnd = event.key === "Enter" && (event.ctrlKey || event.metaKey || isLine);
      if (event.key !== "Escape" && !isEnd) return;
      consume(event);
      if (isEnd) view.saveText(place);
      else escape();
    },
  } };
}

/** The fields of the form about a sentence or the study: buttons first, then lists and texts. */
function answersOf(view, { id, answers }, selected) {
  const places = form.fields.map(({ name }) => `@${name}:${id}`);
  const isTyping = places.some((place) => view.typed(place) !== null);
  const isLast = view.shown.step === form.steps.length;
  const isShown = units(view.shown).some((unit) => unit.id === id) && (selected || isLast || isTyping);
  const asked = isShown ? form.fields.filter((field) => isAsked(field, answers)) : [];
  const buttons = asked.filter((field) => isButtons(field));
  const numbers = asked.filter(({ type }) => type === "number");
  const groups = [...new Set(numbers.map(({ group }) => group))];
  return element("div", { class: "assessment", hidden: !isShown, on: { keydown: (event) => {
    if (event.key !== "Escape") return;
    consume(event);
    view.focus(id);
  } } },
  ...buttons.map((field) => choice(view, id, field, answers[field.name])),
  ...groups.map((group) => element("fieldset", { class: "counts" }, element("legend", { text: group }),
    ...numbers.filter((field) => field.group === group).map((field) => count(view, id, field, answers[field.name] ?? null)))),
  numbers.length ? button("Set empty numbers to 0", () => view.setZeros(), { "aria-keyshortcuts": "0", disabled: view.shown.done }) : null,
  element("div", { class: "type-and-why" }, ...asked.filter((field) => !isButtons(field) && field.type !== "number")
    .flatMap((field) => (field.type === "choice" ? list : line)(view, id, field, answers[field.name] ?? null))));
}

function isButtons({ type, options, allows_others: isOpen }) {
  return type === "choice" && !isOpen && options.length <= MOST_BUTTONS;
}

/** A choice as radio buttons with their keys. */
function choice(view, id, { name, label, options }, given) {
  return element("fieldset", { class: "options" }, element("legend", { text: label }),
    ...options.map(({ value, name: text, key, definition }) => element("label", { class: "option", title: definition || null },
      element("input", { type: "radio", name: `${name}-${id}`, value, disabled: view.shown.done, props: { checked: value === given },
        on: { change: () => view.answer(id, { [name]: value }) } }),
      element("span", {}, key ? element("kbd", { text: key.toUpperCase() }) : null,
        key === text ? "" : ` ${text.replace(/ implications$/, "")}`))));
}

function count(view, id, { name, label, key, min, max }, given) {
  const step = (by) => button(by < 0 ? "−" : "+", () => view.countBy(id, name, by), {
    "aria-label": `${by < 0 ? "One less" : "One more"}: ${label}`, "data-field": by > 0 && name, disabled: view.shown.done || given === (by < 0 ? min : max),
  });
  return element("div", { class: "count" },
    element("label", { for: `${name}-${id}` }, key ? element("kbd", { text: key.replace("Shift+", "⇧") }) : null, ` ${label}`),
    step(-1),
    element("input", { id: `${name}-${id}`, type: "number", inputmode: "numeric", min, max,
      disabled: view.shown.done, props: { value: given ?? "" }, on: { change: ({ target }) => view.enterNumber(id, name, target) } }),
    step(1));
}

/** A choice as a list; readers may add other options. */
function list(view, id, { name, label, options, allows_others: isOpen }, given) {
  const place = `@${name}:${id}`;
  const isOwn = isOpen && (view.naming === place || Boolean(view.typed(place)));
  const names = Object.fromEntries(options.map((option) => [option.value, option.name]));
  const others = isOpen ? [...view.errorTypes].filter((type) => !(type in names)) : [];
  const values = [...options.map(({ value }) => value), ...others];
  const shown = [["", `${label} …`], ...values.map((value) => [value, names[value] ?? value]),
    isOpen ? [OWN, `Another ${label.toLowerCase().split(" ").at(-1)} …`] : null];
  const choose = (at) => view.answer(id, { [name]: at < 1 ? null : values[at - 1] });
  const own = typing(view, place, "", () => view.saveOwn(place, ""), () => view.leaveOwn(place));
  return [element("select", { class: "type", "data-field": name, "aria-label": label, title: names[given] ?? given ?? "",
    disabled: view.shown.done, props: { value: isOwn ? OWN : String(given ?? "") },
    on: { change: ({ target }) => (target.value === OWN ? view.nameOwn(place) : choose(target.selectedIndex)) } },
  ...shown.filter(Boolean).map(([value, text]) => element("option", { value, text }))),
  isOpen ? element("input", { type: "text", class: "own-type", "aria-label": `Custom ${label.toLowerCase()}`, maxlength: "100",
    hidden: !isOwn, disabled: view.shown.done, placeholder: "custom, then Enter", ...own }) : null];
}

function line(view, id, { name, label }, given) {
  return element("input", { type: "text", class: "why", "data-field": name, "aria-label": label, title: label, placeholder: label,
    disabled: view.shown.done, ...typing(view, `@${name}:${id}`, given ?? "", () => view.focus(id)) });
}

/** One sentence of the reference report; choosing it shows its boxes. */
function referenceRow(view, { text, boxes }, at) {
  const id = `reference-${at}`;
  const selected = view.selected === id;
  const classes = ["sentence reference", selected && "selected", view.counterparts.includes(id) && "counterpart"];
  return element("li", { class: classes, "data-key": id },
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
