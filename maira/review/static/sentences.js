/** The sentences of the draft: select, edit in place, delete, add. */

import { Assessment } from "./assessment.js";
import { diffWords } from "./diff.js";
import { counted, element } from "./dom.js";
import { boxesMoved, isCorrection } from "./state.js";
import { isFinding, isOpen, sentenceForm } from "./text.js";

const VERDICTS = { entailment: ["yes", "✓ entailed by the reference"], not_entailment: ["no", "✗ not entailed by the reference"] };

/** Description of the changes of a sentence. */
function stateOf(sentence) {
  return [
    sentence.deleted && "deleted", sentence.edited && "edited", sentence.origin === "added" && "added",
    boxesMoved(sentence) && "boxes changed",
    sentence.boxes.length && counted(sentence.boxes.length, "box", "boxes"),
  ].filter(Boolean);
}

/** One sentence with its tools; a row exists as long as its sentence, so that it keeps the focus. */
class Row {
  constructor(id, set, handlers) {
    this.id = id;
    this.handlers = handlers;
    this.number = element("span", { class: "number" });
    this.words = element("span", { class: "words" });
    this.button = element("button", { type: "button", class: "sentence-text", "aria-pressed": "false",
      on: { click: () => handlers.toggle(id), dblclick: () => handlers.startEdit(id) } }, this.number, this.words);
    this.marks = element("div", { class: "marks" });
    const tool = (text, label, keys, run) => element("button", { type: "button", text, title: `${label} (${keys})`,
      "aria-label": label, "aria-keyshortcuts": keys, on: { click: run } });
    this.edit = tool("Edit", "Edit this sentence", "E", () => handlers.startEdit(id));
    this.remove = tool("Delete", "Delete this sentence", "D", () => handlers.toggleDeleted(id));
    this.box = tool("Add box", "Add a box to this sentence", "B", () => handlers.addBox(id));
    this.tools = element("div", { class: "tools", role: "group", "aria-label": "This sentence" }, this.edit, this.remove, this.box);
    this.verdict = element("div", { class: "verdict", hidden: true });
    this.assessment = new Assessment(id, set, handlers);
    this.line = element("div", { class: "sentence-line" }, this.button, this.tools);
    this.root = element("li", { class: "sentence" }, this.line, this.marks, this.verdict, this.assessment.root);
    this.root.dataset.id = id;
  }

  update(sentence, { number, selected, isCounterpart, locked, showAssessment, verdict, errorTypes }) {
    const corrected = isCorrection(sentence);
    const state = stateOf(sentence);
    this.number.textContent = String(number);
    this.#write(sentence);
    this.button.setAttribute("aria-pressed", String(selected));
    // Screen readers would read deleted and added words as one text.
    this.button.setAttribute("aria-label", visibleText(`${[`Sentence ${number}`, ...state].join(", ")}: ${sentence.text}`));
    this.root.classList.toggle("selected", selected);
    this.root.classList.toggle("counterpart", isCounterpart);
    for (const name of ["deleted", "edited"]) this.root.classList.toggle(name, sentence[name]);
    this.root.classList.toggle("added", sentence.origin === "added");
    this.marks.replaceChildren(...state.map((text) => element("span", { class: `mark ${text.replaceAll(/\W/g, "-")}`, text })));
    this.marks.hidden = !state.length;
    this.tools.hidden = !selected || locked;
    this.remove.textContent = sentence.deleted ? "Restore" : "Delete";
    this.remove.setAttribute("aria-label", `${this.remove.textContent} this sentence`);
    this.edit.disabled = this.box.disabled = sentence.deleted;
    this.#judge(verdict, sentence);
    this.assessment.root.hidden = !corrected || !(selected || showAssessment || this.assessment.isTyping);
    this.assessment.update(sentence.assessment, { errorTypes, locked });
  }

  /** Replace the text by a form. */
  open(form) {
    this.line.hidden = true;
    this.line.before(form);
  }

  close() {
    this.root.querySelector(".sentence-form")?.remove();
    this.line.hidden = false;
  }

  /** Update only changed text, because replacing a word under the pointer loses a double click. */
  #write(sentence) {
    const wanted = JSON.stringify([sentence.text, sentence.edited, sentence.deleted]);
    if (wanted === this.written) return;
    this.written = wanted;
    if (!sentence.edited || sentence.deleted) {
      this.words.replaceChildren(element(sentence.deleted ? "del" : "span", { text: sentence.text }));
      return;
    }
    const tags = { kept: "span", added: "ins", removed: "del" };
    const pieces = diffWords(sentence.draft_text, sentence.text);
    this.words.replaceChildren(...pieces.flatMap(({ kind, text }) => [element(tags[kind], { text }), " "]));
  }

  #judge(verdict, { edited }) {
    this.verdict.hidden = !verdict;
    if (!verdict) return;
    const [kind, words] = VERDICTS[verdict.status] ?? ["none", "no verdict"];
    const evidence = verdict.evidence?.length ? element("span", { text: `evidence: ${verdict.evidence.map((at) => `R${at + 1}`).join(", ")}` }) : null;
    this.verdict.replaceChildren(...(edited ? [element("span", { text: "the draft’s sentence:" })] : []),
      element("span", { class: `tag ${kind}`, text: words }),
      ...[evidence, verdict.why ? element("span", { class: "why-text", text: verdict.why }) : null].filter(Boolean));
  }
}

/** The list, and the form below it that adds a finding. */
export class SentenceList {
  #rows = new Map();
  #form = null;

  constructor(list, adder, set, handlers) {
    this.list = list;
    this.adder = adder;
    this.set = set;
    this.handlers = handlers;
    this.addButton = element("button", { type: "button", class: "add", text: "+ Add a finding", title: "Add a finding (A)",
      "aria-keyshortcuts": "A", on: { click: () => handlers.startAdd() } });
    adder.append(this.addButton);
    list.addEventListener("keydown", (event) => this.#key(event));
    list.addEventListener("pointerdown", () => this.#holdHeights());
    list.addEventListener("pointerleave", () => this.#releaseHeights());
    document.addEventListener("keydown", () => this.#releaseHeights());
  }

  /** Keep the height of rows, so that closing the tools of a row does not move the rows below the pointer. */
  #holdHeights() {
    for (const { root } of this.#rows.values()) {
      if (root.classList.contains("selected")) root.style.minHeight = `${root.getBoundingClientRect().height}px`;
    }
  }

  #releaseHeights() {
    for (const { root } of this.#rows.values()) root.style.minHeight = "";
  }

  /** Place where text is being typed, see text.js, or null. */
  get place() {
    return this.#form?.place ?? null;
  }

  /** Whether there is typed text that is not in a change yet. */
  get isTyping() {
    return this.#form !== null || [...this.#rows.values()].some((row) => row.assessment.isTyping);
  }

  update(state, { selected, counterparts, locked, showAssessment, errorTypes, verdictOf }) {
    const rows = state.sentences.map((sentence, at) => {
      const row = this.#rows.get(sentence.id) ?? new Row(sentence.id, this.set, this.handlers);
      row.update(sentence, {
        number: at + 1, selected: sentence.id === selected, isCounterpart: counterparts.includes(sentence.id), locked, showAssessment, errorTypes,
        verdict: sentence.origin === "draft" ? verdictOf(at) : null,
      });
      return [sentence.id, row];
    });
    const gone = [...this.#rows.keys()].filter((id) => !rows.some(([other]) => other === id));
    // Unsaved text of a form without a sentence waits for the sentence.
    if (this.place !== null && !isOpen(state, this.place)) this.closeForm();
    this.forget(gone);
    rows.forEach(([, row], at) => {
      if (this.list.children[at] !== row.root) this.list.insertBefore(row.root, this.list.children[at] ?? null);
    });
    this.#rows = new Map(rows);
    this.addButton.disabled = locked;
  }

  /** Remove rows, with their unsaved text. */
  forget(ids) {
    if (ids.includes(this.place)) this.closeForm();
    for (const id of ids) {
      const root = this.#rows.get(id)?.root;
      if (root?.contains(document.activeElement)) this.list.parentElement.focus();
      root?.remove();
      this.#rows.delete(id);
    }
  }

  /** Commit the typed text of the corrections. */
  saveAssessments() {
    for (const { assessment } of this.#rows.values()) assessment.save();
  }

  /** Remove the rows of another study. */
  clear() {
    this.closeForm();
    for (const row of this.#rows.values()) row.root.remove();
    this.#rows.clear();
  }

  /** Open the form for the text of a sentence, or of a missing finding. */
  openForm(place, options) {
    this.closeForm();
    const { form, begin, release } = sentenceForm(options);
    this.#form = { place, form, release };
    if (isFinding(place)) {
      this.addButton.hidden = true;
      this.adder.append(form);
    } else {
      this.#rows.get(place).open(form);
    }
    begin();
  }

  closeForm() {
    const open = this.#form;
    if (!open) return;
    this.#form = null;
    open.release();
    const had = open.form.contains(document.activeElement);
    if (isFinding(open.place)) {
      open.form.remove();
      this.addButton.hidden = false;
      if (had) this.addButton.focus();
    } else {
      this.#rows.get(open.place)?.close();
      if (had) this.focus(open.place);
    }
  }

  /** Scroll a sentence into view. */
  reveal(id) {
    this.#rows.get(id)?.root.scrollIntoView({ block: "nearest" });
  }

  focus(id) {
    const row = this.#rows.get(id);
    row?.button.focus({ preventScroll: true });
    row?.root.scrollIntoView({ block: "nearest" });
  }

  /** Move the focus to the severities of a row. */
  focusSeverity(id) {
    this.#rows.get(id)?.assessment.focusSeverity();
  }

  focusErrorType(id) {
    this.#rows.get(id)?.assessment.type.focus();
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.classList.contains("sentence-text")) return;
    event.preventDefault();
    event.stopPropagation();
    this.handlers.selectBy(step);
  }
}

