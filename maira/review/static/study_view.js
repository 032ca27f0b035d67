/** View of one study, and the reader's actions on it. */

import { get } from "./api.js";
import { alertBar, announce, byId, counted, notify } from "./dom.js";
import { Inputs } from "./inputs.js";
import { drawReport } from "./report.js";
import { after, difference, isCorrection, REFERENCE_STEP, unassessed, unnamed } from "./state.js";
import { keyOf } from "./storage.js";
import { FIELDS, hasField, isFinding, isOpen, refusedFindings, refusedTexts, typable } from "./text.js";

const NEEDED_STEPS = [2, REFERENCE_STEP];
const BOX_MODES = ["all", "selected", "none"];

/** Events: "shown" (anything may look different) and "nextstudy" (the reader is done with this one). */
export class StudyView extends EventTarget {
  study = null;
  // Id of the selected sentence.
  selected = null;
  // Place of the text in the form, see text.js.
  editing = null;
  // Id of the sentence that gets a custom error type.
  naming = null;
  // Remaining undo steps, negative for redo.
  #turns = 0;
  // Whether the reader was asked for missing error types.
  #askedTypes = false;
  // Unsaved text of the study by place.
  #texts = new Map();
  // Counterparts of the draft's sentences in a version of the state: `{version, counterparts}`.
  #links = null;
  // Latest known version of each study.
  #versions = new Map();
  // Message next to the button of the next step, and the version of the state that it applies to.
  #hint = { words: "", version: null };

  constructor(set, reader, storage, queue) {
    super();
    Object.assign(this, { set, reader, storage, queue, errorTypes: set.error_types });
    this.inputs = new Inputs({
      // The boxes are in view: one of them was clicked.
      select: (id) => this.select(id, { reveal: true, isInView: true }),
      focus: (id) => this.focus(id),
      changeBoxes: (id, boxes) => this.change("boxes", { sentence: id, boxes }),
      touched: () => this.dispatchEvent(new Event("shown")),
      enlarged: () => this.render(),
    });
    for (const name of ["undo", "redo", "advance", "reopen"]) byId(name).addEventListener("click", () => this[name]());
    for (const id of ["box-mode", "verdicts"]) byId(id).addEventListener("change", () => this.render());
    byId("reference").addEventListener("toggle", () => this.render());
    byId("links").addEventListener("change", () => this.#link());
    byId("verdict-toggle").hidden = !set.verdicts;
    byId("sentences").addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || !event.target.classList.contains("sentence-text")) return;
      event.preventDefault();
      this.selectBy(step);
    });
    // Closing the tools of a sentence does not move those below the pointer.
    const holdHeight = (isHeld) => {
      for (const row of byId("sentences").children) row.style.minHeight = isHeld ? `${row.offsetHeight}px` : "";
    };
    byId("sentences").addEventListener("pointerdown", () => holdHeight(true));
    byId("sentences").addEventListener("pointerleave", () => holdHeight(false));
    document.addEventListener("keydown", () => holdHeight(false));
  }

  get number() {
    return this.study?.number ?? null;
  }

  /** The state including unconfirmed changes. */
  get shown() {
    return after(this.study.state, this.queue.of(this.number));
  }

  /** Whether there is typed text or a moved box that is not in a change yet. */
  get isChanging() {
    return this.editing !== null || this.inputs.editor.isChanging || this.#fieldTexts.length > 0;
  }

  /** Places of unsaved text in open fields. */
  get #fieldTexts() {
    return [...this.#texts.keys()].filter((place) => hasField(place) && isOpen(this.shown, place));
  }

  /** Unsaved text of the study that no open field shows, by place. */
  get waiting() {
    const shown = this.study ? [this.editing, ...this.#fieldTexts] : [];
    return [...this.#texts].filter(([place, text]) => text.trim() && !shown.includes(place)).sort();
  }

  get hint() {
    return this.#hint.version === this.shown.version ? this.#hint.words : "";
  }

  /** Key of the study together with its draft. */
  get key() {
    return keyOf(this.study);
  }

  /** Whether the sentences and boxes of the reference are visible. */
  get #isReferenceOpen() {
    return byId("reference").open && this.study.reference !== null && this.shown.step >= REFERENCE_STEP;
  }

  #sentence(id) {
    return this.shown.sentences.find((sentence) => sentence.id === id);
  }

  /** Show a study from `fetch`. */
  open(study) {
    this.leave();
    // No row of another study, whose sentences have the same ids; leaving a field saves it.
    if (byId("sentences").contains(document.activeElement)) document.activeElement.blur();
    byId("sentences").replaceChildren();
    Object.assign(this, { study, selected: null, naming: null });
    this.#turns = 0;
    this.#askedTypes = false;
    this.#links = null;
    this.#hint = { words: "", version: null };
    this.#texts = this.storage.all(`text:${this.key}`);
    byId("study").hidden = false;
    byId("blank").hidden = true;
    this.inputs.open(study);
    byId("reference").open = study.state.step === REFERENCE_STEP;
    byId("report-body").scrollTop = 0;
    window.scrollTo(0, 0);
    this.render();
    this.#restoreUnsaved();
    announce(`Study ${study.number}, ${counted(study.state.sentences.length, "sentence")}, step ${study.state.step}`);
  }

  /** Commit changes in progress before the study or the page is left. */
  leave() {
    if (!this.study) return;
    this.inputs.editor.commit();
    this.inputs.editor.stopDrawing();
    this.editing = null;
    const comment = this.typed("comment");
    if (comment !== null) this.saveComment(typable(comment).trim());
  }

  /** Request a study from the server. */
  async fetch(number) {
    const path = `/api/studies/${number}?reader=${encodeURIComponent(this.reader)}`;
    const study = await get(path);
    // The response to a change may have arrived in the meantime; this response is older then.
    return study.state.version < (this.#versions.get(number) ?? 0) ? get(path) : study;
  }

  /** Record the latest known version of a study, from this or another window. */
  setVersion(number, version) {
    this.#versions.set(number, Math.max(version, this.#versions.get(number) ?? 0));
  }

  /** Request the open study again, for content that a step reveals and for changes of other windows. */
  async refresh() {
    const { number } = this;
    if (number === null || this.queue.of(number).length) return;
    const study = await this.fetch(number).catch(() => null);
    if (!study || this.number !== number || this.queue.of(number).length) return;
    if (study.state.version < this.shown.version) return;
    this.study = study;
    this.render();
  }

  /** Apply the response to a change. */
  answered({ number, kind }, state) {
    if (number !== this.number) return;
    const before = this.study.state;
    this.study.state = state;
    this.render();
    if (kind === "undo") notify(`Undone: ${difference(state, before)}`);
    if (kind === "redo") notify(`Redone: ${difference(before, state)}`);
    // A restored sentence may have unsaved text.
    if (kind === "undo" || kind === "redo") this.#restoreUnsaved();
    this.#turn();
    if (state.step >= REFERENCE_STEP && this.study.reference === null) this.refresh();
  }

  /** Handle a refused change: show the server's state and restore its text; text typed since has priority. */
  refused(number, state, lost) {
    const kind = `text:${lost[0].study}`;
    const findings = refusedFindings(lost);
    const typed = this.storage.all(kind);
    const moves = [...findings].flatMap(([id, place]) => ["", ...FIELDS].map((field) => [field + id, field + place]));
    const texts = moves.map(([from, to]) => [to, typed.get(from)]).filter(([, text]) => text);
    for (const [from] of moves) this.storage.keep(kind, from, null);
    for (const [place, text] of [...texts, ...refusedTexts(lost, this.errorTypes, state)]) {
      if (!this.storage.all(kind).has(place)) this.storage.keep(kind, place, text);
    }
    if (number !== this.number) return;
    this.#turns = 0;
    this.#texts = this.storage.all(kind);
    if (findings.has(this.editing)) this.editing = null;
    if (findings.has(this.selected)) this.selected = null;
    if (state) this.study.state = state;
    this.render();
    this.#restoreUnsaved();
    if (!state) this.refresh();
  }

  change(kind, fields) {
    this.#turns = 0;
    this.#push(kind, fields);
  }

  #push(kind, fields) {
    this.queue.push(this.number, this.key, this.shown.version, kind, fields);
    this.render();
  }

  /** Unsaved text of a place; null if there is none, or the place is not open. */
  typed(place) {
    return isOpen(this.shown, place) ? this.#texts.get(place) ?? null : null;
  }

  /** Store unsaved text; null removes it: a change contains it, or the reader discards it. */
  keep(place, text) {
    if (text === null) this.#texts.delete(place);
    else this.#texts.set(place, text);
    this.storage.keep(`text:${this.key}`, place, text);
    this.dispatchEvent(new Event("shown"));
  }

  discard(place) {
    this.keep(place, null);
    this.render();
  }

  render() {
    if (!this.study) return;
    const state = this.shown;
    const isThere = this.selected?.startsWith("reference-") ? this.#isReferenceOpen : this.#sentence(this.selected);
    if (!isThere) this.selected = null;
    // Unsaved text of a form without a sentence waits for the sentence.
    if (this.editing !== null && !isOpen(state, this.editing)) this.editing = null;
    // An error type is offered for every correction.
    for (const { assessment: { error_type: name } } of this.study.state.sentences) {
      if (name !== null && !this.errorTypes.includes(name)) this.errorTypes.push(name);
    }
    byId("verdicts").disabled = state.step < REFERENCE_STEP;
    byId("link-toggle").hidden = !this.#canLink;
    drawReport(this);
    this.inputs.draw(state.sentences, this.#isReferenceOpen ? this.study.reference : [], {
      selected: this.selected, counterparts: this.counterparts, locked: state.done, mode: byId("box-mode").value,
    });
    byId("undo").disabled = !state.can_undo || this.queue.trouble !== null;
    byId("redo").disabled = !state.can_redo || this.queue.trouble !== null;
    byId("reopen").hidden = !state.done;
    this.dispatchEvent(new Event("shown"));
  }

  /** RadFact's verdict on a sentence of the draft, if it is to be shown. */
  verdictAt(at) {
    const { checked, disabled } = byId("verdicts");
    return checked && !disabled ? this.study.verdicts?.find(({ index }) => index === at) : undefined;
  }

  get #canLink() {
    return this.shown.step >= REFERENCE_STEP && Boolean(this.study.reference?.length);
  }

  /** Sentences on the same subject as the selected one, in the other report. */
  get counterparts() {
    if (!byId("links").checked || !this.#canLink || this.selected === null || this.#links === null) return [];
    const ofDraft = ({ id, edited }, at) => {
      // The evidence of RadFact's verdict would reveal the verdict.
      const evidence = edited ? [] : this.verdictAt(at)?.evidence ?? [];
      const places = evidence.length ? evidence : this.#links.counterparts[id] ?? [];
      return places.map((place) => `reference-${place}`);
    };
    const pairs = this.shown.sentences.flatMap((sentence, at) => ofDraft(sentence, at).map((id) => [sentence.id, id]));
    return pairs.filter((pair) => pair.includes(this.selected)).map((pair) => pair.find((id) => id !== this.selected));
  }

  /** Link the selected sentence to the other report, and bring its first counterpart into view. */
  async #link() {
    const { number } = this;
    const { checked } = byId("links");
    if (checked && this.#canLink && this.#links?.version !== this.shown.version) {
      const path = `/api/studies/${number}/counterparts?reader=${encodeURIComponent(this.reader)}`;
      const links = await get(path).catch(() => null);
      if (this.number !== number) return;
      this.#links = links ?? this.#links;
    }
    this.render();
    const [first] = this.counterparts;
    if (first) this.#reveal(first);
    else if (checked && this.selected) notify("No sentence on the same subject in the other report");
  }

  toggleLinks() {
    if (this.#canLink) byId("links").click();
    else notify(`Sentences are linked to the reference report from step ${REFERENCE_STEP} on.`);
  }

  #rowOf(id) {
    return byId("report").querySelector(`.sentence[data-key="${CSS.escape(id)}"]`);
  }

  #reveal(id) {
    this.#rowOf(id)?.scrollIntoView({ block: "nearest" });
  }

  /** Move the focus to a sentence, or to a part of it. */
  focus(id, part = ".sentence-text") {
    this.#rowOf(id)?.querySelector(part)?.focus({ preventScroll: true });
    this.#reveal(id);
  }

  /** Select a sentence of the draft or the reference, and bring its boxes into view; null deselects. */
  select(id, { reveal = false, focus = false, isInView = false } = {}) {
    this.selected = id;
    const place = id?.startsWith("reference-") ? Number(id.slice("reference-".length)) : null;
    const boxes = (place === null ? this.#sentence(id) : this.study.reference?.[place])?.boxes ?? [];
    if (boxes.length && this.inputs.kind !== "frontal") this.inputs.enlarge("frontal");
    this.render();
    if (boxes.length && !isInView) this.inputs.radiograph.revealAll(boxes);
    if (id !== null && byId("links").checked) this.#link();
    if (focus) this.focus(id);
    else if (reveal) this.#reveal(id);
  }

  /** Select a sentence, or deselect it. */
  toggle(id) {
    this.select(id === this.selected ? null : id);
  }

  selectBy(step) {
    const ids = this.shown.sentences.map(({ id }) => id);
    if (!ids.length) return;
    const at = ids.indexOf(this.selected);
    const next = at < 0 ? (step > 0 ? 0 : ids.length - 1) : Math.min(ids.length - 1, Math.max(0, at + step));
    this.select(ids[next], { focus: true });
  }

  /** Whether the study can be changed; otherwise a message says why. */
  #isOpen() {
    if (this.shown.done) notify("This study is finished; reopen it to change it.");
    return !this.shown.done;
  }

  /** The given or the selected sentence; null, after a message, if it cannot be changed. */
  #changeable(id = this.selected, { canBeDeleted = false } = {}) {
    if (!this.#isOpen()) return null;
    const sentence = this.#sentence(id);
    if (!sentence) notify("Select a sentence of the draft first.");
    else if (!sentence.deleted || canBeDeleted) return sentence;
    else this.#explainDeleted(sentence);
    return null;
  }

  /** The given or the selected correction; null, after a message, if it cannot be assessed. */
  #assessable(id) {
    const sentence = this.#changeable(id, { canBeDeleted: true });
    if (!sentence || isCorrection(sentence)) return sentence;
    notify("Only a corrected sentence has a severity and a type of error.");
    return null;
  }

  #explainDeleted({ id }) {
    const { number } = this;
    alertBar("This sentence is deleted; restore it to change it.", {
      action: { label: "Restore", run: () => this.toggleDeleted(id) },
      holds: () => this.number === number && !this.shown.done && Boolean(this.#sentence(id)?.deleted),
    });
  }

  #numberOf(id) {
    return this.shown.sentences.findIndex((sentence) => sentence.id === id) + 1;
  }

  startEdit(id) {
    const sentence = this.#changeable(id);
    if (!sentence) return;
    if (this.selected !== sentence.id) this.select(sentence.id);
    this.#openForm(sentence.id);
  }

  startAdd(place = "new") {
    if (this.#isOpen()) this.#openForm(place);
  }

  #openForm(place) {
    if (!this.#texts.get(place)) this.keep(place, null);
    this.editing = place;
    this.render();
    const area = byId("report-body").querySelector(".sentence-form textarea");
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  /** Close the form of a place. Its text is first stored in a change, then removed. */
  endForm(place, isSaved) {
    if (this.editing !== place) return;
    const hadFocus = document.activeElement.closest(".sentence-form") !== null;
    const text = typable(this.#texts.get(place) ?? "").trim();
    // Removing a form with the focus would save it.
    this.editing = null;
    this.render();
    if (hadFocus && isFinding(place)) byId("adder").querySelector(".add").focus();
    else if (hadFocus) this.focus(place);
    if (isSaved && text) (isFinding(place) ? this.#add : this.#edit).call(this, place, text);
    else if (isFinding(place)) for (const field of FIELDS) this.keep(field + place, null);
    this.discard(place);
  }

  /** If a change was refused, the sentence may have changed since the form was opened. */
  #edit(id, text) {
    if (text === typable(this.#sentence(id).text).trim()) return;
    this.change("edit", { sentence: id, text });
    announce(`Sentence ${this.#numberOf(id)} changed`);
  }

  #add(place, text) {
    const id = `a${this.shown.version}`;
    for (const field of FIELDS) {
      const refused = this.#texts.get(field + place);
      if (refused) this.keep(field + id, refused);
      this.keep(field + place, null);
    }
    this.change("add", { text });
    this.select(id, { focus: true });
    announce(`Sentence ${this.shown.sentences.length} added`);
  }

  saveComment(text) {
    if (text !== this.shown.comment) this.change("comment", { text });
    this.discard("comment");
  }

  /** Continue typing after a reload or a refused change. */
  #restoreUnsaved() {
    const [place] = this.waiting.find(([waiting]) => isOpen(this.shown, waiting)) ?? [];
    if (!place || this.editing !== null) return;
    this.continueTyping(place);
    notify("Unsaved text was restored.");
  }

  continueTyping(place) {
    if (isFinding(place)) this.startAdd(place);
    else this.startEdit(place);
  }

  toggleDeleted(id) {
    const sentence = this.#changeable(id, { canBeDeleted: true });
    if (!sentence) return;
    this.change(sentence.deleted ? "restore" : "delete", { sentence: sentence.id });
    if (sentence.deleted) this.#restoreUnsaved();
    announce(`Sentence ${this.#numberOf(sentence.id)} ${sentence.deleted ? "restored" : "deleted"}`);
  }

  addBox(id) {
    const sentence = this.#changeable(id);
    if (!sentence) return;
    if (byId("box-mode").value === "none") byId("box-mode").value = "all";
    if (this.inputs.kind !== "frontal") this.inputs.enlarge("frontal");
    this.select(sentence.id);
    this.inputs.editor.startDrawing();
  }

  /** Set severity, error type or comment of a correction. */
  assess(id, fields) {
    const sentence = this.#assessable(id);
    if (!sentence) return;
    const differs = Object.entries(fields).some(([name, value]) => sentence.assessment[name] !== value);
    if (differs) this.change("assess", { sentence: sentence.id, ...fields });
    if ("comment" in fields) this.keep(`why:${sentence.id}`, null);
    if ("error_type" in fields) this.keep(`own:${sentence.id}`, null);
    if ("severity" in fields) announce(`Severity ${fields.severity}`);
    this.render();
  }

  /** Open the field of a custom error type. */
  nameType(id) {
    this.naming = id;
    this.render();
    this.focus(id, ".own-type");
  }

  /** Use a custom error type and close its field; no name discards what was typed. */
  saveType(id, name) {
    const hadFocus = this.#rowOf(id)?.querySelector(".own-type") === document.activeElement;
    this.naming = null;
    if (name) this.assess(id, { error_type: name.split(/\s+/).join(" ") });
    else this.discard(`own:${id}`);
    if (hadFocus) this.focus(id, ".type");
  }

  /** The field of a custom error type is left: without text, it closes. */
  leaveType(id) {
    if (this.naming !== id || this.typed(`own:${id}`) !== null) return;
    this.naming = null;
    // Not while the page is drawn, which may have removed the field.
    queueMicrotask(() => this.render());
  }

  focusErrorType() {
    const sentence = this.#assessable();
    if (sentence) this.focus(sentence.id, ".type");
  }

  undo() {
    this.#turns += 1;
    this.#turn();
  }

  redo() {
    this.#turns -= 1;
    this.#turn();
  }

  /** Undo or redo the requested number of times; each waits for the response to the previous one. */
  #turn() {
    if (!this.#turns || this.queue.of(this.number).length) return;
    const kind = this.#turns > 0 ? "undo" : "redo";
    if (!this.shown[`can_${kind}`]) {
      this.#turns = 0;
      notify(`Nothing to ${kind}`);
      return;
    }
    this.#turns -= Math.sign(this.#turns);
    this.#push(kind, {});
  }

  go(step) {
    const { steps } = this.set;
    if (this.shown.done || step < 1 || step > steps.length || step === this.shown.step) return;
    this.change("step", { step });
    byId("reference").open = step === REFERENCE_STEP;
    announce(`Step ${step}, ${steps[step - 1].name}: ${steps[step - 1].instruction}`);
  }

  stepBy(by) {
    this.go(this.shown.step + by);
  }

  /** The button below the report: next step, finish, or next study. */
  advance() {
    if (this.shown.done) this.dispatchEvent(new Event("nextstudy"));
    else if (this.shown.step < this.set.steps.length) this.stepBy(1);
    else this.finish();
  }

  /** Show why the study cannot be finished, until the next change. */
  #showHint(words) {
    this.#hint = { words, version: this.shown.version };
    this.render();
    announce(words);
  }

  finish() {
    if (this.shown.done) return;
    // A field with unsaved text of an earlier page never lost the focus, so it was not saved.
    for (const place of this.#fieldTexts) {
      const [text, id] = [typable(this.#texts.get(place)).trim(), place.slice("own:".length)];
      if (place === "comment") this.saveComment(text);
      else if (place.startsWith("own:")) this.saveType(id, text);
      else this.assess(id, { comment: text });
    }
    const state = this.shown;
    const missed = NEEDED_STEPS.find((step) => !state.visited.includes(step));
    const [open] = unassessed(state);
    const nameless = unnamed(state);
    if (state.step < this.set.steps.length) {
      this.#showHint("A study is finished in step 4.");
    } else if (missed) {
      this.go(missed);
      this.#showHint(`Step ${missed} comes before finishing.`);
    } else if (open) {
      this.select(open.id, { focus: true });
      this.focus(open.id, ".severity input");
      notify("This correction has no severity yet: choose one, or press 0, 1 or 2.");
    } else if (nameless.length && !this.#askedTypes) {
      this.#askedTypes = true;
      this.select(nameless[0].id, { focus: true });
      const corrections = counted(nameless.length, "correction has", "corrections have");
      this.#showHint(`${corrections} no type of error (T). Finish again to leave it so.`);
    } else if (this.waiting.length) {
      byId("unsaved").scrollIntoView({ block: "nearest" });
      this.#showHint("Some text is not saved: continue or discard it.");
    } else {
      this.change("finish", {});
      announce("Study finished");
    }
  }

  reopen() {
    this.change("reopen", {});
    this.#restoreUnsaved();
  }

  /** Clear the selection. */
  deselect() {
    this.inputs.editor.stopDrawing();
    this.select(null);
  }

  cycleBoxes() {
    const select = byId("box-mode");
    select.value = BOX_MODES[(BOX_MODES.indexOf(select.value) + 1) % BOX_MODES.length];
    announce(`Boxes: ${select.value}`);
    this.render();
  }

  toggleVerdicts() {
    if (byId("verdicts").disabled) notify(`RadFact’s verdicts are shown from step ${REFERENCE_STEP} on.`);
    else byId("verdicts").click();
  }
}
