/** View of one study, and the reader's actions on it. */

import { get } from "./api.js";
import { alertBar, announce, byId, counted, notify } from "./dom.js";
import { Inputs } from "./inputs.js";
import { keyOf } from "./storage.js";
import { Reference } from "./reference.js";
import { SentenceList } from "./sentences.js";
import { after, difference, isCorrection, REFERENCE_STEP, unassessed, unnamed } from "./state.js";
import { Steps } from "./steps.js";
import { FIELDS, isFinding, isOpen, persistentField, refusedFindings, refusedTexts, showUnsaved, typable, waiting } from "./text.js";

const NEEDED_STEPS = [2, REFERENCE_STEP];
const BOX_MODES = ["all", "selected", "none"];

/** Events: "shown" (anything may look different) and "nextstudy" (the reader is done with this one). */
export class StudyView extends EventTarget {
  #study = null;
  #selected = null;
  // Remaining undo steps, negative for redo.
  #turns = 0;
  // Whether the reader was asked for missing error types.
  #askedTypes = false;
  // Unsaved text of the study by place, see text.js.
  #texts = new Map();
  // Counterparts of the draft's sentences in a version of the state: `{version, counterparts}`.
  #links = null;
  // Latest known version of each study.
  #versions = new Map();

  constructor(set, reader, storage, queue) {
    super();
    Object.assign(this, { reader, storage, queue });
    this.errorTypes = set.error_types;
    this.inputs = new Inputs({
      // The boxes are in view: one of them was clicked.
      select: (id) => this.select(id, { reveal: true, isInView: true }),
      focus: (id) => this.focus(id),
      changeBoxes: (id, boxes) => this.change("boxes", { sentence: id, boxes }),
      touched: () => this.dispatchEvent(new Event("shown")),
    });
    this.inputs.radiograph.root.addEventListener("enlarged", () => this.render());
    this.steps = new Steps(set, (step) => this.go(step));
    this.reference = new Reference((id) => this.toggle(id));
    this.reference.root.addEventListener("toggle", () => this.render());
    this.sentences = new SentenceList(byId("sentences"), byId("adder"), set, this);
    this.comment = persistentField(byId("comment"), {
      typed: () => (this.#study ? this.typed("comment") : null),
      keep: (text) => this.keep("comment", text),
      save: (text) => this.#saveComment(text),
    });
    byId("comment").addEventListener("keydown", (event) => {
      if (event.key === "Escape") byId("report-body").focus();
    });
    byId("undo").addEventListener("click", () => this.undo());
    byId("redo").addEventListener("click", () => this.redo());
    byId("advance").addEventListener("click", () => this.advance());
    byId("reopen").addEventListener("click", () => this.reopen());
    byId("box-mode").addEventListener("change", () => this.render());
    byId("verdicts").addEventListener("change", () => this.render());
    byId("verdict-toggle").hidden = !set.verdicts;
    byId("links").addEventListener("change", () => this.#link());
  }

  get number() {
    return this.#study?.number ?? null;
  }

  get sampleId() {
    return this.#study?.sample_id ?? "";
  }

  /** The state including unconfirmed changes. */
  get shown() {
    return after(this.#study.state, this.queue.of(this.number));
  }

  /** Whether there is typed text or a moved box that is not in a change yet. */
  get isChanging() {
    return this.sentences.isTyping || this.comment.isTyping || this.inputs.editor.isChanging;
  }

  /** Unsaved text of the study without a field. */
  get waiting() {
    return this.#study ? waiting(this.#texts, this.shown, this.sentences.place) : [];
  }

  /** Key of the study together with its draft. */
  get key() {
    return keyOf(this.#study);
  }

  get #sentence() {
    return this.#study ? this.shown.sentences.find(({ id }) => id === this.#selected) ?? null : null;
  }

  /** Show a study from `fetch`. */
  open(study) {
    this.leave();
    this.sentences.clear();
    this.#study = study;
    this.#selected = null;
    this.#turns = 0;
    this.#askedTypes = false;
    this.#links = null;
    this.#texts = this.storage.all(`text:${this.key}`);
    byId("study").hidden = false;
    byId("blank").hidden = true;
    this.inputs.open(study);
    this.steps.open();
    this.reference.root.open = study.state.step === REFERENCE_STEP;
    byId("report-body").scrollTop = 0;
    window.scrollTo(0, 0);
    this.render();
    this.#restoreUnsaved();
    announce(`Study ${study.number}, ${counted(study.state.sentences.length, "sentence")}, step ${study.state.step}`);
  }

  /** Commit changes in progress before the study or the page is left. */
  leave() {
    if (!this.#study) return;
    this.inputs.editor.commit();
    this.inputs.editor.stopDrawing();
    this.sentences.closeForm();
    this.comment.save();
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
    const study = await this.fetch(number);
    if (this.number !== number || this.queue.of(number).length || study.state.version < this.shown.version) return;
    this.#study = study;
    this.render();
  }

  /** Apply the response to a change. */
  answered({ number, kind }, state) {
    if (number !== this.number) return;
    const before = this.#study.state;
    this.#study.state = state;
    this.render();
    if (kind === "undo") notify(`Undone: ${difference(state, before)}`);
    if (kind === "redo") notify(`Redone: ${difference(before, state)}`);
    // A restored sentence may have unsaved text.
    if (kind === "undo" || kind === "redo") this.#restoreUnsaved();
    this.#turn();
    if (state.step >= REFERENCE_STEP && this.#study.reference === null) this.refresh().catch(() => {});
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
    this.#texts = this.storage.all(`text:${this.key}`);
    this.sentences.forget([...findings.keys()]);
    if (findings.has(this.#selected)) this.#selected = null;
    if (state) this.#study.state = state;
    this.render();
    this.#restoreUnsaved();
    if (!state) this.refresh().catch(() => {});
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

  keep(place, text) {
    this.#texts.set(place, text);
    this.storage.keep(`text:${this.key}`, place, text);
    this.dispatchEvent(new Event("shown"));
  }

  discard(place) {
    this.#drop(place);
    this.render();
  }

  /** Remove text: a change contains it, or the reader discards it. */
  #drop(place) {
    this.#texts.delete(place);
    this.storage.keep(`text:${this.key}`, place, null);
  }

  render() {
    if (!this.#study) return;
    const state = this.shown;
    const mode = byId("box-mode").value;
    const verdicts = byId("verdicts");
    if (this.#selected && !this.#isThere(state)) this.#selected = null;
    for (const { assessment } of this.#study.state.sentences) this.#noteType(assessment.error_type);
    verdicts.disabled = state.step < REFERENCE_STEP;
    byId("link-toggle").hidden = !this.#canLink;
    const counterparts = this.#counterparts;
    this.steps.update(state, this.#study.reference);
    this.sentences.update(state, {
      selected: this.#selected, counterparts, locked: state.done, showAssessment: state.step === 4, errorTypes: this.errorTypes,
      verdictOf: (at) => (verdicts.checked && !verdicts.disabled
        ? this.#study.verdicts?.find(({ index }) => index === at) ?? null : null),
    });
    byId("empty-draft").hidden = state.sentences.length > 0;
    this.reference.update(this.#study.reference, state.step, this.#selected, counterparts);
    this.inputs.draw(state.sentences, this.reference.isOpen ? this.#study.reference : [], {
      selected: this.#selected, counterparts, locked: state.done, mode,
    });
    this.comment.show(state.comment);
    showUnsaved(state, this.waiting, { continueTyping: (place) => this.#continueTyping(place), discard: (place) => this.discard(place) });
    byId("comment").disabled = state.done;
    byId("undo").disabled = !state.can_undo || this.queue.trouble !== null;
    byId("redo").disabled = !state.can_redo || this.queue.trouble !== null;
    byId("reopen").hidden = !state.done;
    this.dispatchEvent(new Event("shown"));
  }

  get #canLink() {
    return this.shown.step >= REFERENCE_STEP && Boolean(this.#study.reference?.length);
  }

  /** Sentences on the same subject as the selected one, in the other report. */
  get #counterparts() {
    if (!byId("links").checked || !this.#canLink || this.#selected === null || this.#links === null) return [];
    const ofDraft = ({ id, edited }, at) => {
      // The evidence of RadFact's verdict would reveal the verdict.
      const verdict = byId("verdicts").checked && !edited && this.#study.verdicts?.find(({ index }) => index === at);
      const places = verdict && verdict.evidence.length ? verdict.evidence : this.#links.counterparts[id] ?? [];
      return places.map((place) => `reference-${place}`);
    };
    const { sentences } = this.shown;
    if (!this.#selected.startsWith("reference-")) {
      return sentences.flatMap((sentence, at) => (sentence.id === this.#selected ? ofDraft(sentence, at) : []));
    }
    return sentences.filter((sentence, at) => ofDraft(sentence, at).includes(this.#selected)).map(({ id }) => id);
  }

  /** Link the selected sentence to the other report, and bring its first counterpart into view. */
  async #link() {
    const { number } = this;
    if (byId("links").checked && this.#canLink && this.#links?.version !== this.shown.version) {
      const path = `/api/studies/${number}/counterparts?reader=${encodeURIComponent(this.reader)}`;
      const links = await get(path).catch(() => null);
      if (this.number !== number) return;
      this.#links = links ?? this.#links;
    }
    this.render();
    const [first] = this.#counterparts;
    if (first?.startsWith("reference-")) this.reference.reveal(first);
    else if (first) this.sentences.reveal(first);
    else if (byId("links").checked && this.#selected) notify("No sentence on the same subject in the other report");
  }

  toggleLinks() {
    if (this.#canLink) byId("links").click();
    else notify(`Sentences are linked to the reference report from step ${REFERENCE_STEP} on.`);
  }

  /** Offer an error type for every correction. */
  #noteType(name) {
    if (name !== null && !this.errorTypes.includes(name)) this.errorTypes.push(name);
  }

  #isThere(state) {
    return this.reference.isOpen && this.#selected.startsWith("reference-")
      || state.sentences.some(({ id }) => id === this.#selected);
  }

  /** Boxes of the selected sentence of the draft or the reference. */
  get #boxes() {
    const selected = this.#selected?.startsWith("reference-")
      ? this.#study.reference?.[Number(this.#selected.slice("reference-".length))] : this.#sentence;
    return selected?.boxes ?? [];
  }

  /** Select a sentence of the draft or the reference, and bring its boxes into view; null deselects. */
  select(id, { reveal = false, focus = false, isInView = false } = {}) {
    this.#selected = id;
    const boxes = this.#boxes;
    if (boxes.length && this.inputs.kind !== "frontal") this.inputs.enlarge("frontal");
    this.render();
    if (boxes.length && !isInView) this.inputs.radiograph.revealAll(boxes);
    if (id !== null && byId("links").checked) this.#link();
    if (focus) this.sentences.focus(id);
    else if (reveal) document.querySelector(`#report-body [data-id="${CSS.escape(id)}"]`)?.scrollIntoView({ block: "nearest" });
  }

  /** Select a sentence, or deselect it. */
  toggle(id) {
    this.select(id === this.#selected ? null : id);
  }

  focus(id) {
    this.sentences.focus(id);
  }

  selectBy(step) {
    const ids = this.shown.sentences.map(({ id }) => id);
    if (!ids.length) return;
    const at = ids.indexOf(this.#selected);
    const next = at < 0 ? (step > 0 ? 0 : ids.length - 1) : Math.min(ids.length - 1, Math.max(0, at + step));
    this.select(ids[next], { focus: true });
  }

  /** Whether the study can be changed; otherwise a message says why. */
  #isOpen() {
    if (this.shown.done) notify("This study is finished; reopen it to change it.");
    return !this.shown.done;
  }

  /** The given or the selected sentence; null, after a message, if it cannot be changed. */
  #changeable(id = this.#selected) {
    if (!this.#isOpen()) return null;
    const sentence = this.shown.sentences.find((each) => each.id === id);
    if (!sentence) notify("Select a sentence of the draft first.");
    return sentence ?? null;
  }

  /** The given or the selected correction; null, after a message, if it cannot be assessed. */
  #assessable(id) {
    const sentence = this.#changeable(id);
    if (!sentence || isCorrection(sentence)) return sentence;
    notify("Only a corrected sentence has a severity and a type of error.");
    return null;
  }

  startEdit(id) {
    const sentence = this.#changeable(id);
    if (!sentence) return;
    if (sentence.deleted) {
      this.#explainDeleted(sentence);
      return;
    }
    if (this.#selected !== sentence.id) this.select(sentence.id);
    this.sentences.openForm(sentence.id, {
      label: `Text of sentence ${this.#numberOf(sentence)}`,
      text: this.typed(sentence.id) || sentence.text,
      keep: (text) => this.keep(sentence.id, text),
      save: (text) => this.#save(sentence.id, () => this.#edit(sentence.id, text)),
      cancel: () => this.#save(sentence.id, null),
    });
    this.render();
  }

  #explainDeleted(sentence) {
    const { number } = this;
    alertBar("This sentence is deleted; restore it to change it.", {
      action: { label: "Restore", run: () => this.#setDeleted(sentence, "restore") },
      holds: () => this.number === number && !this.shown.done
        && this.shown.sentences.some(({ id, deleted }) => id === sentence.id && deleted),
    });
  }

  #numberOf(sentence) {
    return this.shown.sentences.findIndex(({ id }) => id === sentence.id) + 1;
  }

  /** If a change was refused, the sentence may have changed since the form was opened. */
  #edit(id, text) {
    const sentence = this.shown.sentences.find((each) => each.id === id);
    if (text === typable(sentence.text).trim()) return;
    this.change("edit", { sentence: id, text });
    announce(`Sentence ${this.#numberOf(sentence)} changed`);
  }

  startAdd(place = "new") {
    if (!this.#isOpen()) return;
    this.sentences.openForm(place, {
      label: "Text of the missing finding",
      text: this.typed(place) ?? "",
      keep: (text) => this.keep(place, text),
      save: (text) => this.#save(place, () => this.#add(text, place)),
      cancel: () => {
        for (const field of FIELDS) this.#drop(field + place);
        this.#save(place, null);
      },
    });
    this.render();
  }

  #add(text, place) {
    const id = `a${this.shown.version}`;
    for (const field of FIELDS) {
      const refused = this.#texts.get(field + place);
      if (refused) this.keep(field + id, refused);
      this.#drop(field + place);
    }
    this.change("add", { text });
    this.select(id, { focus: true });
    announce(`Sentence ${this.shown.sentences.length} added`);
  }

  /** End typing: store the change first, then remove its unsaved text. */
  #save(place, change) {
    change?.();
    this.#drop(place);
    if (this.sentences.place === place) this.sentences.closeForm();
    this.render();
  }

  #saveComment(text) {
    if (text !== this.shown.comment) this.change("comment", { text });
    this.discard("comment");
  }

  /** Continue typing after a reload or a refused change. */
  #restoreUnsaved() {
    const next = this.waiting.find(({ place }) => isOpen(this.shown, place));
    if (next && this.sentences.place === null) {
      this.#continueTyping(next.place);
      notify("Unsaved text was restored.");
    }
    this.render();
  }

  #continueTyping(place) {
    if (isFinding(place)) this.startAdd(place);
    else this.startEdit(place);
  }

  toggleDeleted(id) {
    const sentence = this.#changeable(id);
    if (sentence) this.#setDeleted(sentence, sentence.deleted ? "restore" : "delete");
  }

  #setDeleted(sentence, kind) {
    this.change(kind, { sentence: sentence.id });
    if (kind === "restore") this.#restoreUnsaved();
    announce(`Sentence ${this.#numberOf(sentence)} ${kind === "delete" ? "deleted" : "restored"}`);
  }

  addBox(id) {
    const sentence = this.#changeable(id);
    if (!sentence) return;
    if (sentence.deleted) {
      this.#explainDeleted(sentence);
      return;
    }
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
    if ("comment" in fields) this.#drop(`why:${sentence.id}`);
    if ("error_type" in fields) this.#drop(`own:${sentence.id}`);
    if ("severity" in fields) announce(`Severity ${fields.severity}`);
    this.render();
  }

  focusErrorType() {
    const sentence = this.#assessable();
    if (sentence) this.sentences.focusErrorType(sentence.id);
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
      notify(kind === "undo" ? "Nothing to undo" : "Nothing to redo");
      return;
    }
    this.#turns -= Math.sign(this.#turns);
    this.#push(kind, {});
  }

  go(step) {
    const state = this.shown;
    if (state.done || step < 1 || step > this.steps.steps.length || step === state.step) return;
    this.change("step", { step });
    this.reference.root.open = step === REFERENCE_STEP;
    const { name, instruction } = this.steps.steps[step - 1];
    announce(`Step ${step}, ${name}: ${instruction}`);
  }

  stepBy(by) {
    this.go(this.shown.step + by);
  }

  /** The button below the report: next step, finish, or next study. */
  advance() {
    if (this.shown.done) this.dispatchEvent(new Event("nextstudy"));
    else if (this.shown.step < this.steps.steps.length) this.stepBy(1);
    else this.finish();
  }

  finish() {
    if (this.shown.done) return;
    // A field with unsaved text of an earlier page never lost the focus, so it was not saved.
    this.comment.save();
    this.sentences.saveAssessments();
    const state = this.shown;
    const missed = NEEDED_STEPS.find((step) => !state.visited.includes(step));
    const [open] = unassessed(state);
    const nameless = unnamed(state);
    if (state.step < this.steps.steps.length) {
      this.steps.showHint("A study is finished in step 4.");
    } else if (missed) {
      this.go(missed);
      this.steps.showHint(`Step ${missed} comes before finishing.`);
    } else if (open) {
      this.select(open.id, { focus: true });
      this.sentences.focusSeverity(open.id);
      notify("This correction has no severity yet: choose one, or press 0, 1 or 2.");
    } else if (nameless.length && !this.#askedTypes) {
      this.#askedTypes = true;
      this.select(nameless[0].id, { focus: true });
      this.steps.showHint(`${counted(nameless.length, "correction has", "corrections have")} no type of error (T). Finish again to leave it so.`);
    } else if (this.waiting.length) {
      byId("unsaved").scrollIntoView({ block: "nearest" });
      this.steps.showHint("Some text is not saved: continue or discard it.");
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
    const verdicts = byId("verdicts");
    if (verdicts.disabled) notify(`RadFact’s verdicts are shown from step ${REFERENCE_STEP} on.`);
    else verdicts.click();
  }

  cycleImages() {
    this.inputs.turn();
    this.render();
  }
}
