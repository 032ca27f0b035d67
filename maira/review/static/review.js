/** The review page: reader, open study, the reader's actions on it, and what is saved. */

import { get, Refused } from "./api.js";
import { alertBar, announce, asSentence, bindTheme, byId, counted, fill, notify, onClicks } from "./dom.js";
import { Inputs } from "./inputs.js";
import { bindKeys } from "./keys.js";
import { cancelRequests } from "./pixels.js";
import { ChangeQueue } from "./queue.js";
import { askReader, tabReader } from "./readers.js";
import { drawReport } from "./report.js";
import { after, difference, form, isCorrection, setForm, showsReference, unanswered, units } from "./state.js";
import { BrowserStorage, keyOf, setSetting, setting } from "./storage.js";
import { StudyList } from "./studies.js";
import { isFinding, isOpen, partsOf, refusedFindings, refusedTexts, textFields, typable } from "./text.js";
import { Times } from "./times.js";

const WHAT = { edit: "an edit", delete: "a deletion", restore: "a restored sentence", add: "an added finding", boxes: "boxes",
  comment: "the comment on the study", step: "a step", finish: "finishing", reopen: "reopening",
  undo: "an undo", redo: "a redo" };

// Time between attempts to open a study.
const RETRY_MS = 2000;

function fieldOf(name) {
  return form.fields.find((field) => field.name === name);
}

/** Unsent changes of earlier pages to this set's drafts; others stay stored for their own set. */
async function unsentChanges(storage, reader, studies) {
  const changes = [...storage.all("change").values()].filter(({ number }) => number <= studies)
    .sort((one, other) => one.order - other.order);
  const keys = new Map();
  for (const number of new Set(changes.map((change) => change.number))) {
    keys.set(number, keyOf(await get(`/api/studies/${number}?reader=${encodeURIComponent(reader)}`)));
  }
  return changes.filter(({ number, study }) => keys.get(number) === study);
}

class Review {
  study = null;
  // Id of the selected sentence.
  selected = null;
  // Place of the text in the form, see text.js.
  editing = null;
  // Place of the custom option that is named.
  naming = null;
  // Remaining undo steps, negative for redo.
  #turns = 0;
  // Whether the reader was asked for missing choices that are not required.
  #askedOptional = false;
  // Unsaved text of the study by place.
  #texts = new Map();
  // Counterparts of the draft's sentences in a version of the state: `{version, counterparts}`.
  #links = null;
  // Latest known version of each study.
  #versions = new Map();
  // Whether a change of this page was saved.
  #saidSaved = false;
  // Whether another window has changed the study while something is typed here.
  #isBehind = false;
  #openError = null;
  // Number of requests for a study, to ignore responses to earlier requests.
  #openings = 0;
  // Windows of one browser notify each other of applied changes.
  #windows = new BroadcastChannel("maira-review");

  constructor(set, reader, storage, leftover) {
    Object.assign(this, { set, reader, storage, errorTypes: new Set(set.error_types) });
    this.queue = new ChangeQueue(reader, storage, leftover, this);
    this.times = new Times(reader, set.drafts, storage);
    this.inputs = new Inputs({
      // The boxes are in view: one of them was clicked.
      select: (id) => this.select(id, { reveal: true, isInView: true }),
      focus: (id) => this.focus(id),
      changeBoxes: (id, boxes) => this.change("boxes", { sentence: id, boxes }),
      touched: () => this.#settle(),
      enlarged: () => this.render(),
    });
  }

  async start() {
    byId("reader").textContent = visibleText(this.reader);
    byId("reader").disabled = this.set.reader !== null;
    byId("reader").title = this.set.reader === null ? "Change the reader" : "Your link is for this name";
    for (const link of document.querySelectorAll("#exports a")) {
      link.search = new URLSearchParams({ reader: this.reader });
      if (!this.set.exports.includes(link.pathname.split("/").at(-1))) link.remove();
    }
    byId("export").hidden = !this.set.exports.length;
    byId("report-title").textContent = visibleText(form.title);
    byId("verdict-toggle").hidden = !this.set.verdicts;
    this.#showInstructions();
    this.list = new StudyList(await get(`/api/studies?reader=${encodeURIComponent(this.reader)}`), (number) => {
      this.visit(number);
      // In a narrow window, the list covers the study.
      if (getComputedStyle(byId("studies")).position === "absolute") this.showList(false);
    });
    this.#listen();
    this.#bind();
    this.queue.flush();
    this.showList(setting("list") ?? window.innerWidth >= 1800);
    if (!this.#asked()) history.replaceState(null, "", `#${this.list.unfinishedAfter(0) ?? 1}`);
    await this.open();
  }

  /** Show the instructions of a campaign before the first study, and by a button. */
  #showInstructions() {
    const { instructions } = this.set;
    byId("instructions").hidden = !instructions;
    byId("instructions-text").textContent = visibleText(instructions);
    if (!instructions || setting("instructions") === instructions) return;
    byId("instructions-dialog").showModal();
    setSetting("instructions", instructions);
  }

  /** The study in the address, or null. */
  #asked() {
    const number = Number(location.hash.slice(1));
    return Number.isInteger(number) && number >= 1 && number <= this.set.studies ? number : null;
  }

  /** Put a study into the address. */
  visit(number) {
    if (number === null) notify("All studies are finished.");
    else if (number < 1 || number > this.set.studies) return;
    else if (location.hash === `#${number}`) this.open();
    else location.hash = String(number);
  }

  /** Open the study in the address. */
  async open() {
    const number = this.#asked();
    if (number === null) return;
    this.#openings += 1;
    this.#openError?.remove();
    byId("loading").textContent = number === this.number ? "" : `Loading study ${number} …`;
    if (number === this.number) return;
    const opening = this.#openings;
    const study = await this.fetch(number).catch((error) => error);
    if (opening !== this.#openings) return;
    byId("loading").textContent = "";
    if (study instanceof Error) this.#showOpenError(number, study);
    else this.#show(study);
  }

  /** Fetch the images of the studies that probably follow, one after the other. */
  async #prefetch(number) {
    const opening = this.#openings;
    const following = [...new Set([number + 1, this.list.unfinishedAfter(number), number + 2])]
      .filter((next) => next !== null && next <= this.set.studies);
    cancelRequests((url) => [number, ...following].some((needed) => url.startsWith(`/images/${needed}/`)));
    for (const next of following) {
      if (opening !== this.#openings) return;
      const study = await this.fetch(next).catch(() => null);
      if (study && opening === this.#openings) await this.inputs.prefetch(study);
    }
  }

  /** Show that a study cannot be opened, until it can be or another one is requested. */
  async #showOpenError(number, error) {
    const opening = this.#openings;
    byId("blank-text").textContent = "No study is open.";
    this.#openError = alertBar(asSentence(`Study ${number} cannot be opened: ${error.message}`));
    let study = null;
    while (!study && opening === this.#openings) {
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      study = await this.fetch(number).catch(() => null);
    }
    if (opening !== this.#openings) return;
    if (this.study) this.#openError.remove();
    else this.open();
  }

  #show(study) {
    this.leave();
    // No row of another study, whose sentences have the same ids; leaving a field saves it.
    if (byId("sentences").contains(document.activeElement)) document.activeElement.blur();
    byId("sentences").replaceChildren();
    Object.assign(this, { study, selected: null, naming: null });
    this.#turns = 0;
    this.#askedOptional = false;
    this.#links = null;
    this.#texts = this.storage.all(`text:${this.key}`);
    byId("study").hidden = false;
    byId("blank").hidden = true;
    const { number, label, sample_id: id, is_training: isTraining, state } = study;
    document.title = `${number} · Review of draft reports`;
    byId("study-place").textContent = `${number} of ${this.set.studies}${isTraining ? " · training" : ""}${label ? ` · report ${label}` : ""} ·`;
    byId("study-id").textContent = visibleText(id);
    byId("study-name").title = visibleText(id);
    byId("previous-study").disabled = number === 1;
    byId("following-study").disabled = number === this.set.studies;
    this.inputs.open(study);
    const hasInputs = Object.values(study.images).some(Boolean) || byId("context").hasChildNodes();
    byId("study").classList.toggle("without-inputs", !hasInputs);
    byId("reference").open = state.step === (form.reference_step ?? 1);
    byId("report-body").scrollTop = 0;
    window.scrollTo(0, 0);
    this.render();
    this.#restoreUnsaved();
    announce(`Study ${number}, ${counted(state.sentences.length, "sentence")}, step ${state.step}`);
    this.times.open(number);
    this.list.mark(number);
    this.#prefetch(number);
  }

  goUnfinished() {
    this.visit(this.list.unfinishedAfter(this.number ?? 0));
  }

  showList(shown) {
    byId("studies").hidden = !shown;
    byId("toggle-studies").setAttribute("aria-expanded", String(shown));
    if (shown && this.list.current) this.list.mark(this.list.current);
  }

  toggleList() {
    const shown = byId("studies").hidden;
    setSetting("list", shown);
    this.showList(shown);
    byId(shown ? "study-list" : "toggle-studies").focus();
  }

  #listen() {
    this.#windows.addEventListener("message", ({ data: { reader, number, study, state } }) => {
      if (reader !== this.reader || number > this.set.studies) return;
      this.#note(number, state);
      if (number === this.number && study === this.key) this.#catchUp();
    });
    window.addEventListener("hashchange", () => this.open());
    window.addEventListener("pagehide", () => this.leave());
    window.addEventListener("beforeunload", (event) => {
      if (this.queue.trouble) event.preventDefault();
    });
    window.addEventListener("focus", () => this.#catchUp());
    byId("go-on").checked = setting("go-on") ?? false;
    byId("go-on").addEventListener("change", ({ target }) => setSetting("go-on", target.checked));
    for (const id of ["box-mode", "verdicts"]) byId(id).addEventListener("change", () => this.render());
    byId("reference").addEventListener("toggle", () => this.render());
    byId("links").addEventListener("change", () => this.#link());
    byId("report").addEventListener("click", ({ target }) => {
      if (!target.closest(".sentence, button, a, label, summary, textarea")) this.deselect();
    });
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

  /** Show changes of other windows, when nothing is being typed here. */
  #catchUp() {
    this.#isBehind = this.isChanging;
    if (!this.#isBehind) this.refresh();
  }

  /** Record the latest known state of a study, from this or another window. */
  #note(number, state) {
    this.#versions.set(number, Math.max(state.version, this.#versions.get(number) ?? 0));
    const status = state.done ? "done" : state.version > 0 ? "started" : "open";
    this.list.note(number, { status, step: state.step, corrections: state.sentences.filter(isCorrection).length });
    this.#showProgress();
  }

  #showProgress() {
    const finished = this.list.studies.filter((study) => study.status === "done").length;
    byId("progress").max = this.set.studies;
    byId("progress").value = finished;
    byId("progress-text").textContent = `${finished} of ${counted(this.set.studies, "study", "studies")} finished`;
  }

  #showSaveState() {
    const { waiting, trouble } = this.queue;
    const changes = counted(waiting.length, "change");
    fill(byId("trouble"), !trouble ? null : trouble.isSignedOut
      ? `Signed out: ${changes} stored in this browser. Open your link to the review again.`
      : `${asSentence(trouble.message)} ${changes} not saved; stored in this browser and sent again.`);
    const [kind, words] = trouble ? ["lost", "Not saved"]
      : waiting.length ? ["saving", "Saving …"]
        : this.study && (this.isChanging || this.waiting.length) ? ["saving", "Not saved yet"]
          : this.#saidSaved ? ["saved", "✓ Saved"] : ["", ""];
    byId("saved").className = `state ${kind}`;
    fill(byId("saved"), words);
  }

  #bind() {
    this.#showProgress();
    const { inputs } = this;
    onClicks({
      instructions: () => byId("instructions-dialog").showModal(),
      advance: () => this.advance(),
      reopen: () => this.reopen(),
      reader: () => askReader(this.set.readers, this.reader).then((name) => name && location.reload()),
    });
    bindKeys([
      { keys: ["ArrowUp", "ArrowDown"], help: "previous, next sentence, on a sentence" },
      { keys: ["j"], repeats: true, help: "next sentence", run: () => this.selectBy(1) },
      { keys: ["k"], repeats: true, help: "previous sentence", run: () => this.selectBy(-1) },
      ...form.edits ? [
        { keys: ["e"], opens: true, help: "edit the sentence", run: () => this.startEdit() },
        { keys: ["d", "Delete"], help: "delete the sentence, or restore it", run: () => this.toggleDeleted() },
        { keys: ["a"], opens: true, help: "add a finding", run: () => this.startAdd() },
        { keys: ["b"], help: "add a box to the sentence", run: () => this.addBox() },
        { keys: ["ArrowLeft", "ArrowRight"], help: "with ↑ ↓ on a box: move it; with Shift resize it, with Alt finely" },
        { keys: ["Delete"], help: "on a box: remove it" },
      ] : [],
      ...this.#fieldKeys(),
      { keys: ["c"], opens: true, help: "comment on the study", run: () => byId("comment").focus() },
      { keys: ["Ctrl+z"], repeats: true, help: "undo", run: () => this.turn(1) },
      { keys: ["Ctrl+Shift+z", "Ctrl+y"], repeats: true, help: "redo", run: () => this.turn(-1) },
      { keys: ["]"], help: "next step", run: () => this.go(this.shown.step + 1) },
      { keys: ["["], help: "previous step", run: () => this.go(this.shown.step - 1) },
      { keys: ["f"], help: "finish the study (in the last step)", run: () => this.finish() },
      { keys: ["n"], repeats: true, help: "next study", always: true, run: () => this.visit((this.number ?? 0) + 1) },
      { keys: ["p"], repeats: true, help: "previous study", run: () => this.visit(this.number - 1) },
      { keys: ["u"], help: "next study that is not finished", always: true, run: () => this.goUnfinished() },
      { keys: ["l"], help: "list of studies", always: true, run: () => this.toggleList() },
      { keys: ["/"], help: "filter the list; Escape leaves the filter", always: true, run: () => {
        this.showList(true);
        byId("study-filter").focus();
      } },
      { keys: ["h"], help: "boxes: all, selected, none", run: () => this.cycleBoxes() },
      { keys: ["v"], help: "show or hide RadFact’s verdicts (with the reference)", run: () => this.toggle("verdicts", "RadFact’s verdicts are shown") },
      { keys: ["g"], help: "link sentences of draft and reference on the same subject", run: () => this.toggle("links", "Sentences are linked to the reference report") },
      { keys: ["m"], help: "focus the image; arrow keys move it", run: () => inputs.active.root.focus() },
      { keys: ["x"], help: "next image (frontal, lateral, prior)", run: () => inputs.turn() },
      { keys: ["+", "="], repeats: true, help: "zoom in", run: () => inputs.active.zoomIn() },
      { keys: ["-"], repeats: true, help: "zoom out", run: () => inputs.active.zoomOut() },
      { keys: ["w"], help: "window and level, in values of the original", run: () => byId("window-width").focus() },
      { keys: ["i"], help: "invert", run: () => inputs.active.invert() },
      { keys: ["z"], help: "magnifier", run: () => inputs.active.magnify() },
      { keys: ["s"], help: "all images side by side, with linked zoom", run: () => byId("side-by-side").click() },
      { keys: ["r"], help: "reset the image", run: () => inputs.active.reset() },
      { keys: ["Escape"], help: "deselect the sentence, as a click next to it; on a box: back to the sentence", run: () => this.deselect() },
      { keys: ["?"], help: "this help", always: true, run: () => byId("help-dialog").showModal() },
    ], () => this.number !== null);
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

  /** Places of unsaved text in open fields, without those of forms that replace a sentence. */
  get #fieldTexts() {
    return [...this.#texts.keys()].filter((place) => /^(comment$|@)/.test(place) && isOpen(this.shown, place));
  }

  /** Unsaved text of the study that no open field shows, by place. */
  get waiting() {
    const shown = this.study ? [this.editing, ...this.#fieldTexts] : [];
    return [...this.#texts].filter(([place, text]) => text.trim() && !shown.includes(place)).sort();
  }

  get key() {
    return keyOf(this.study);
  }

  /** Whether the sentences and boxes of the reference are visible. */
  get #isReferenceOpen() {
    return byId("reference").open && this.study.reference !== null && showsReference(this.shown);
  }

  #sentence(id) {
    return this.shown.sentences.find((sentence) => sentence.id === id);
  }

  /** Commit changes in progress before the study or the page is left. */
  leave() {
    if (!this.study) return;
    this.inputs.editor.commit();
    this.inputs.editor.stopDrawing();
    this.editing = null;
    this.saveText("comment");
  }

  async fetch(number) {
    const path = `/api/studies/${number}?reader=${encodeURIComponent(this.reader)}`;
    const study = await get(path);
    // The response to a change may have arrived in the meantime; this response is older then.
    return study.state.version < (this.#versions.get(number) ?? 0) ? get(path) : study;
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
  answered({ number, study, kind }, state) {
    this.#saidSaved = true;
    if (number === this.number) this.#take(kind, state);
    this.#note(number, state);
    this.#windows.postMessage({ reader: this.reader, number, study, state });
  }

  /** Show the state of the open study after a change. */
  #take(kind, state) {
    const before = this.study.state;
    this.study.state = state;
    this.render();
    if (kind === "undo") notify(`Undone: ${difference(state, before)}`);
    if (kind === "redo") notify(`Redone: ${difference(before, state)}`);
    // A restored sentence may have unsaved text.
    if (kind === "undo" || kind === "redo") this.#restoreUnsaved();
    this.turn();
    if (showsReference(state) && this.study.reference === null && form.reference_step) this.refresh();
  }

  /** Say what the server refused, and return its text. */
  refused({ number }, lost, error) {
    const words = error.status === 409 ? "The study was changed in another window." : asSentence(error.message);
    const what = lost.flatMap(({ kind, fields: { values } }) => (
      values ? Object.keys(values).map((name) => fieldOf(name).label.toLowerCase()) : WHAT[kind] ?? "an answer"));
    const state = error.body?.state ?? null;
    this.#returnTexts(number, state, lost);
    alertBar(`${words} Not saved (study ${number}): ${[...new Set(what)].join(", ")}.`);
  }

  /** Show the server's state and the text of refused changes; text typed since has priority. */
  #returnTexts(number, state, lost) {
    const kind = `text:${lost[0].study}`;
    const findings = refusedFindings(lost);
    const typed = this.storage.all(kind);
    const moves = [...findings].flatMap(([id, place]) => ["", ...textFields()].map((field) => [field + id, field + place]));
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
    this.#settle();
  }

  discard(place) {
    this.keep(place, null);
    this.render();
  }

  render() {
    if (this.study) this.#draw();
    this.#settle();
  }

  /** Show what follows from anything that changed: whether all is saved, changes of other windows. */
  #settle() {
    this.#showSaveState();
    if (this.#isBehind) this.#catchUp();
  }

  #draw() {
    const state = this.shown;
    const isThere = this.selected?.startsWith("reference-") ? this.#isReferenceOpen : this.#sentence(this.selected);
    if (!isThere) this.selected = null;
    // Unsaved text of a form without a sentence waits for the sentence.
    if (this.editing !== null && !isOpen(state, this.editing)) this.editing = null;
    // An option that a reader added is offered everywhere.
    for (const { name } of form.fields.filter(({ allows_others: isOpen }) => isOpen)) {
      for (const { answers } of units(this.study.state)) if (answers[name]) this.errorTypes.add(answers[name]);
    }
    byId("verdicts").disabled = !showsReference(state);
    byId("links").disabled = !this.#canLink;
    byId("link-toggle").hidden = !this.#canLink;
    drawReport(this);
    this.inputs.draw(state.sentences, this.#isReferenceOpen ? this.study.reference : [], {
      selected: this.selected, counterparts: this.counterparts, locked: state.done, mode: byId("box-mode").value,
    });
    byId("undo").disabled = !state.can_undo || this.queue.trouble !== null;
    byId("redo").disabled = !state.can_redo || this.queue.trouble !== null;
    byId("reopen").hidden = !state.done;
  }

  /** RadFact's verdict on a sentence of the draft, if it is to be shown. */
  verdictAt(at) {
    const { checked, disabled } = byId("verdicts");
    return checked && !disabled ? this.study.verdicts?.find(({ index }) => index === at) : undefined;
  }

  get #canLink() {
    return !form.isWhole && showsReference(this.shown) && Boolean(this.study.reference?.length);
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
    else if (checked && this.selected && byId("message").matches(":empty")) {
      notify("No sentence on the same subject in the other report");
    }
  }

  #rowOf(id) {
    return byId("report").querySelector(`.sentence[data-key="${CSS.escape(id)}"]`);
  }

  #reveal(id) {
    this.#rowOf(id)?.scrollIntoView({ block: "nearest" });
  }

  /** Move the focus to a sentence or, with the id "", to the study's answers, or to a part of it. */
  focus(id, part = ".sentence-text") {
    const row = id === "" ? byId("report-body") : this.#rowOf(id);
    (part === ".sentence-text" && id === "" ? row : row?.querySelector(part))?.focus({ preventScroll: id !== "" });
    this.#reveal(id);
  }

  /** Select a sentence of the draft or the reference, and bring its boxes into view; null deselects. */
  select(id, { reveal = false, focus = false, isInView = false } = {}) {
    this.selected = id;
    const place = id?.startsWith("reference-") ? Number(id.slice("reference-".length)) : null;
    const boxes = (place === null ? this.#sentence(id) : this.study.reference?.[place])?.boxes ?? [];
    if (boxes.length && this.inputs.kind !== "frontal") this.inputs.enlarge("frontal");
    else this.render();
    if (boxes.length && !isInView) this.inputs.radiograph.revealAll(boxes);
    if (id !== null && byId("links").checked) this.#link();
    if (focus) this.focus(id);
    else if (reveal) this.#reveal(id);
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
    else notify("This sentence is deleted; restore it (D) to change it.");
    return null;
  }

  /** The given or the selected unit of the form; null, after a message, if it cannot be answered. */
  #answerable(id = form.isWhole ? "" : this.selected) {
    if (!this.#isOpen()) return null;
    const unit = units(this.shown).find((each) => each.id === id);
    if (unit) return unit;
    notify(this.#sentence(id) ? "Only a corrected sentence has these answers." : "Select a sentence of the draft first.");
    return null;
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
    if (hadFocus && isFinding(place)) byId("report-body").querySelector(".add").focus();
    else if (hadFocus) this.focus(place);
    if (isSaved && text) (isFinding(place) ? this.#add : this.#edit).call(this, place, text);
    else if (isFinding(place)) for (const field of textFields()) this.keep(field + place, null);
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
    for (const field of textFields()) {
      const refused = this.#texts.get(field + place);
      if (refused) this.keep(field + id, refused);
      this.keep(field + place, null);
    }
    this.change("add", { text });
    this.select(id, { focus: true });
    announce(`Sentence ${this.shown.sentences.length} added`);
  }

  /** Save the unsaved text of a field, if there is any. */
  saveText(place) {
    if (this.typed(place) === null) return;
    const text = typable(this.typed(place)).trim();
    const { field, id } = partsOf(place);
    if (field && fieldOf(field).type === "choice") this.saveOwn(place, text);
    else if (field) this.answer(id, { [field]: text || null });
    else {
      if (text !== this.shown.comment) this.change("comment", { text });
      this.discard("comment");
    }
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

  /** Set answers about a unit, by default the selected one. */
  answer(id, values) {
    const unit = this.#answerable(id);
    if (!unit) return;
    const changed = Object.entries(values).filter(([name, value]) => (unit.answers[name] ?? null) !== value);
    if (changed.length) this.change("answer", { unit: unit.id, values });
    for (const [name, value] of Object.entries(values)) {
      this.keep(`@${name}:${unit.id}`, null);
      const { label, type, options } = fieldOf(name);
      if (type !== "text") announce(`${label}: ${options.find((option) => option.value === value)?.name ?? value ?? "none"}`);
    }
    this.render();
  }

  /** Count one more or less; the first one begins at 0. */
  countBy(id, name, by) {
    const unit = this.#answerable(id);
    const { min, max } = fieldOf(name);
    if (unit) this.answer(unit.id, { [name]: Math.min(max, Math.max(min, (unit.answers[name] ?? 0) + by)) });
  }

  /** Take a typed number, or say which ones are possible. */
  enterNumber(id, name, input) {
    const { label, min, max } = fieldOf(name);
    if (input.validity.valid) this.answer(id, { [name]: input.value === "" ? null : input.valueAsNumber });
    else notify(`${label}: expected a whole number from ${min} to ${max}.`);
    this.render();
  }

  setZeros() {
    const unit = this.#answerable();
    if (!unit) return;
    const empty = form.fields.filter(({ name, type, min }) => type === "number" && min <= 0 && (unit.answers[name] ?? null) === null);
    if (empty.length) this.answer(unit.id, Object.fromEntries(empty.map(({ name }) => [name, 0])));
  }

  /** Keys of options choose them, those of numbers count, those of other fields focus them. */
  #fieldKeys() {
    const { fields } = form;
    const bindings = fields.flatMap(({ name, label, type, key, options }) => {
      const chosen = options.filter((option) => option.key);
      const texts = chosen.map((option) => option.name.toLowerCase().replace(/ implications$/, "")).join(", ");
      const focus = (unit) => unit && this.focus(unit.id, `[data-field="${name}"]`);
      const choose = ({ value }) => this.answer(undefined, { [name]: value });
      return [
        { keys: chosen.map((option) => option.key), help: `${label.toLowerCase()}: ${texts}`,
          run: ({ key: pressed }) => choose(chosen.find((option) => option.key === pressed.toLowerCase())) },
        type === "number" ? { keys: [key], help: `one more: ${label}`, run: () => this.countBy(undefined, name, 1) }
          : { keys: [key], help: label.toLowerCase(), run: () => focus(this.#answerable()) },
      ];
    }).filter(({ keys: [first] }) => first);
    const hasZero = fields.some(({ type }) => type === "number") && !bindings.some(({ keys }) => keys.includes("0"));
    return hasZero ? [...bindings, { keys: ["0"], help: "set empty numbers to 0", run: () => this.setZeros() }] : bindings;
  }

  /** Open the field of a custom option, whose place is "@FIELD:ID". */
  nameOwn(place) {
    this.naming = place;
    this.render();
    this.focus(partsOf(place).id, ".own-type");
  }

  /** Use a custom option and close its field; no name discards what was typed. */
  saveOwn(place, text) {
    const { field, id } = partsOf(place);
    const hadFocus = document.activeElement.matches(".own-type");
    this.naming = null;
    if (text) this.answer(id, { [field]: text.split(/\s+/).join(" ") });
    else this.discard(place);
    if (hadFocus) this.focus(id, ".type");
  }

  /** The field of a custom option is left: without text, it closes. */
  leaveOwn(place) {
    if (this.naming !== place || this.typed(place) !== null) return;
    this.naming = null;
    // Not while the page is drawn, which may have removed the field.
    queueMicrotask(() => this.render());
  }

  /** Undo (1) or redo (-1) once more; each waits for the response to the previous one. */
  turn(by = 0) {
    this.#turns += by;
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
    const { steps } = form;
    if (this.shown.done || step < 1 || step > steps.length || step === this.shown.step) return;
    this.change("step", { step });
    byId("reference").open = step === form.reference_step;
    announce(`Step ${step}, ${steps[step - 1].name}: ${steps[step - 1].instruction}`);
  }

  /** The button below the report: next step, finish, or next study. */
  advance() {
    if (this.shown.done) this.goUnfinished();
    else if (this.shown.step < form.steps.length) this.go(this.shown.step + 1);
    else this.finish();
  }

  finish() {
    if (this.shown.done) return;
    // A field with unsaved text of an earlier page never lost the focus, so it was not saved.
    for (const place of this.#fieldTexts) this.saveText(place);
    const state = this.shown;
    const missed = [2, form.reference_step].find((step) => step > 1 && step <= form.reference_step && !state.visited.includes(step));
    const [open] = unanswered(state);
    const optional = unanswered(state, false);
    if (state.step < form.steps.length) {
      notify(`A study is finished in step ${form.steps.length}.`);
    } else if (missed) {
      this.go(missed);
      notify(`Step ${missed} comes before finishing.`);
    } else if (open) {
      if (open.id !== "") this.select(open.id, { focus: true });
      this.focus(open.id, `:is([data-field="${open.field.name}"], [name="${open.field.name}-${open.id}"])`);
      const keys = open.field.options.map(({ key }) => key).filter(Boolean);
      notify(`Not answered yet: ${open.field.label}${keys.length ? ` (${keys.join(", ").toUpperCase()})` : ""}.`);
    } else if (optional.length && !this.#askedOptional) {
      this.#askedOptional = true;
      if (optional[0].id !== "") this.select(optional[0].id, { focus: true });
      notify(`Without ${optional[0].field.label.toLowerCase()}: ${optional.length}. Finish again to leave it so.`);
    } else if (this.waiting.length) {
      byId("unsaved").scrollIntoView({ block: "nearest" });
      notify("Some text is not saved: continue or discard it.");
    } else {
      this.change("finish", {});
      this.times.finish();
      announce("Study finished");
      if (byId("go-on").checked) this.goUnfinished();
    }
  }

  reopen() {
    this.change("reopen", {});
    this.#restoreUnsaved();
  }

  deselect() {
    this.inputs.editor.stopDrawing();
    this.select(null);
  }

  cycleBoxes() {
    const select = byId("box-mode");
    select.selectedIndex = (select.selectedIndex + 1) % select.length;
    announce(`Boxes: ${select.value}`);
    this.render();
  }

  /** Change a setting that is available with the reference report. */
  toggle(id, words) {
    if (!byId(id).disabled) byId(id).click();
    else notify(showsReference(this.shown) ? "No sentences can be linked in this study." : `${words} from step ${form.reference_step} on.`);
  }
}

async function start() {
  bindTheme();
  const set = await get("/api/set");
  setForm(set.form);
  const known = tabReader();
  const reader = set.reader ?? (set.readers.includes(known) ? known : await askReader(set.readers, null));
  const storage = new BrowserStorage(set.reader_id ?? reader);
  await new Review(set, reader, storage, await unsentChanges(storage, reader, set.studies)).start();
}

start().catch((error) => {
  const words = error instanceof Refused && error.isSignedOut
    ? "This browser is not signed in. Open your link to the review again." : asSentence(`The review cannot start: ${error.message}`);
  byId("blank-text").textContent = words;
  announce(words);
});
