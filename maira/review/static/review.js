/** The review page: reader, open study and save state. */

import { get, Refused } from "./api.js";
import { StudyView } from "./study_view.js";
import { alertBar, announce, asSentence, bindTheme, byId, checkAlert, closeOnOutsideClick, counted, notify, onClicks } from "./dom.js";
import { bindKeys } from "./keys.js";
import { BrowserStorage, keyOf, setSetting, setting, tabReader } from "./storage.js";
import { ChangeQueue } from "./queue.js";
import { askReader } from "./readers.js";
import { cancelRequests } from "./pixels.js";
import { isCorrection } from "./state.js";
import { StudyList } from "./studies.js";
import { Times } from "./times.js";

const WHAT = { edit: "an edit", delete: "a deletion", restore: "a restored sentence", add: "an added finding", boxes: "boxes",
  comment: "the comment on the study", step: "a step", finish: "finishing", reopen: "reopening",
  undo: "an undo", redo: "a redo" };
const ASSESSED = { severity: "a severity", error_type: "a type of error", comment: "the comment on a correction" };

const TITLE = document.title;

// Time between attempts to open a study.
const RETRY_MS = 2000;

/** Describe a change in words. */
function describeChange({ kind, fields }) {
  return kind === "assess" ? Object.keys(fields).map((name) => ASSESSED[name]).filter(Boolean) : [WHAT[kind]];
}

/** Describe what must be done before the text of refused changes can be restored. */
function awaited(lost, state) {
  if (state?.done && lost.some(({ fields }) => fields.text || fields.comment)) {
    return " The study is finished; your text is restored when you reopen it.";
  }
  const edited = lost.filter(({ kind }) => kind === "edit").map(({ fields }) => fields.sentence);
  const places = (state?.sentences ?? []).flatMap(({ id, deleted }, at) => (deleted && edited.includes(id) ? [at + 1] : []));
  return places.map((place) => ` Sentence ${place} is deleted; your text is restored when you restore the sentence.`).join("");
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
  constructor(set, reader, storage, leftover) {
    this.set = set;
    this.reader = reader;
    this.queue = new ChangeQueue(reader, storage, leftover);
    this.studyView = new StudyView(set, reader, storage, this.queue);
    this.list = new StudyList((number) => this.go(number));
    this.times = new Times(reader, set.drafts, storage);
    this.saidSaved = false;
    this.behind = false;
    // Number of requests for a study, to ignore responses to earlier requests.
    this.openings = 0;
    // Windows of one browser notify each other of applied changes.
    this.windows = new BroadcastChannel("maira-review");
  }

  async start() {
    byId("reader").textContent = visibleText(this.reader);
    byId("reader").disabled = this.set.reader !== null;
    byId("reader").title = this.set.reader === null ? "Change the reader" : "Your link is for this name";
    for (const link of document.querySelectorAll("#export-menu a")) link.search = new URLSearchParams({ reader: this.reader });
    byId("export-menu").hidden = this.set.is_blinded;
    this.#showInstructions();
    this.list.setStudies(await get(`/api/studies?reader=${encodeURIComponent(this.reader)}`));
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
    byId("instructions").addEventListener("click", () => byId("instructions-dialog").showModal());
    if (!instructions || setting("instructions") === instructions) return;
    byId("instructions-dialog").showModal();
    setSetting("instructions", instructions);
  }

  /** The study in the address, or null. */
  #asked() {
    const number = Number(location.hash.slice(1));
    return Number.isInteger(number) && number >= 1 && number <= this.set.studies ? number : null;
  }

  go(number) {
    if (number === null) notify("All studies are finished.");
    else if (number < 1 || number > this.set.studies) return;
    else if (location.hash === `#${number}`) this.open();
    else location.hash = String(number);
  }

  /** Open the study in the address. */
  async open() {
    const number = this.#asked();
    if (number === null) return;
    this.openings += 1;
    checkAlert();
    if (number === this.studyView.number) return;
    const opening = this.openings;
    const loading = byId("loading");
    loading.textContent = `Loading study ${number} …`;
    loading.hidden = false;
    try {
      const study = await this.studyView.fetch(number);
      if (opening === this.openings) this.#show(study);
    } catch (error) {
      if (opening === this.openings) this.#showOpenError(number, error);
    }
    if (opening === this.openings) loading.hidden = true;
  }

  /** Fetch the images of the studies that probably follow, one after the other. */
  async #prefetch(number) {
    const opening = this.openings;
    const following = [...new Set([number + 1, this.list.unfinishedAfter(number), number + 2])]
      .filter((next) => next !== null && next <= this.set.studies);
    cancelRequests((url) => [number, ...following].some((needed) => url.startsWith(`/images/${needed}/`)));
    for (const next of following) {
      if (opening !== this.openings) return;
      const study = await this.studyView.fetch(next).catch(() => null);
      if (opening !== this.openings) return;
      if (study) await this.studyView.inputs.prefetch(study);
    }
  }

  /** Show that a study cannot be opened, until it can be or another one is requested. */
  async #showOpenError(number, error) {
    const opening = this.openings;
    let isSo = true;
    const holds = () => isSo && opening === this.openings;
    byId("blank-text").textContent = "No study is open.";
    alertBar(asSentence(`Study ${number} cannot be opened: ${error.message}`), {
      action: { label: "Try again", run: () => this.open() }, holds,
    });
    while (holds()) {
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      isSo = !(await this.studyView.fetch(number).catch(() => null));
      checkAlert();
    }
  }

  #show(study) {
    const { number } = study;
    this.studyView.open(study);
    this.times.open(number);
    this.list.mark(number);
    document.title = `${number} · ${TITLE}`;
    const label = study.label ? ` · report ${study.label}` : "";
    byId("study-place").textContent = `${number} of ${this.set.studies}${study.is_training ? " · training" : ""}${label} ·`;
    byId("study-id").textContent = visibleText(study.sample_id);
    byId("study-name").title = visibleText(study.sample_id);
    byId("previous-study").disabled = number === 1;
    byId("following-study").disabled = number === this.set.studies;
    this.#prefetch(number);
  }

  goUnfinished() {
    this.go(this.list.unfinishedAfter(this.studyView.number ?? 0));
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
    const { queue, studyView } = this;
    queue.addEventListener("progress", () => {
      this.#showSaveState();
      studyView.render();
    });
    queue.addEventListener("queued", ({ detail: { change } }) => {
      if (change.kind === "finish") this.times.finish();
    });
    queue.addEventListener("answered", ({ detail: { change, state } }) => {
      this.saidSaved = true;
      studyView.answered(change, state);
      this.#note(change.number, state);
      this.windows.postMessage({ reader: this.reader, number: change.number, study: change.study, state });
    });
    this.windows.addEventListener("message", ({ data }) => this.#onOtherWindow(data));
    queue.addEventListener("refused", ({ detail }) => this.#lost(detail));
    studyView.addEventListener("shown", () => {
      checkAlert();
      this.#showSaveState();
      if (this.behind) this.#refresh();
    });
    studyView.addEventListener("nextstudy", () => this.goUnfinished());
    window.addEventListener("hashchange", () => this.open());
    window.addEventListener("pagehide", () => studyView.leave());
    window.addEventListener("beforeunload", (event) => {
      if (queue.trouble) event.preventDefault();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#refresh();
    });
    window.addEventListener("focus", () => this.#refresh());
  }

  /** Show changes of other windows, when nothing is being typed here. */
  #refresh() {
    this.behind = this.studyView.isChanging;
    if (!this.behind) this.studyView.refresh();
  }

  /** Another window of this browser has changed a study. */
  #onOtherWindow({ reader, number, study, state }) {
    if (reader !== this.reader || number > this.set.studies) return;
    this.#note(number, state);
    if (number === this.studyView.number && study === this.studyView.key) this.#refresh();
  }

  #note(number, state) {
    this.studyView.setVersion(number, state.version);
    const status = state.version > 0 ? "started" : "open";
    this.list.note(number, {
      status: state.done ? "done" : status, step: state.step, corrections: state.sentences.filter(isCorrection).length,
    });
    this.#showProgress();
  }

  #lost({ change, lost, error }) {
    const words = error.status === 409 ? "The study was changed in another window." : asSentence(error.message);
    const what = [...new Set(lost.flatMap(describeChange))].join(", ");
    const state = error.body?.state ?? null;
    this.studyView.refused(change.number, state, lost);
    alertBar(`${words} Not saved (study ${change.number}): ${what}.${awaited(lost, state)}`);
  }

  #showProgress() {
    const { finished } = this.list;
    byId("progress").max = this.set.studies;
    byId("progress").value = finished;
    byId("progress-text").textContent = `${finished} of ${counted(this.set.studies, "study", "studies")} finished`;
  }

  #showSaveState() {
    const { waiting, trouble } = this.queue;
    this.#showTrouble(trouble, counted(waiting, "change"));
    const [kind, words] = trouble ? ["lost", "Not saved"]
      : waiting ? ["saving", "Saving …"]
        : this.studyView.isChanging || this.studyView.waiting.length ? ["saving", "Not saved yet"]
          : this.saidSaved ? ["saved", "✓ Saved"] : ["", ""];
    const output = byId("saved");
    if (output.textContent === words) return;
    output.className = kind ? `state ${kind}` : "state";
    output.textContent = words;
  }

  #showTrouble(trouble, changes) {
    const bar = byId("trouble");
    const words = !trouble ? "" : trouble.isSignedOut
      ? `Signed out: ${changes} stored in this browser. Open your link to the review again.`
      : `${asSentence(trouble.message)} ${changes} not saved; stored in this browser and sent again.`;
    bar.hidden = !words;
    if (bar.textContent !== words) bar.textContent = words;
  }

  #bind() {
    const { studyView } = this;
    const { inputs } = studyView;
    this.#showProgress();
    closeOnOutsideClick(byId("export-menu"));
    const help = () => byId("help-dialog").showModal();
    onClicks({
      help,
      "toggle-studies": () => this.toggleList(),
      "previous-study": () => this.go(studyView.number - 1),
      "following-study": () => this.go(studyView.number + 1),
      "next-study": () => this.goUnfinished(),
      reader: async () => {
        if (await askReader(this.set.readers, this.reader)) location.reload();
      },
    });
    bindKeys([
      { keys: ["ArrowUp", "ArrowDown"], help: "previous, next sentence, on a sentence" },
      { keys: ["j"], help: "next sentence", run: () => studyView.selectBy(1) },
      { keys: ["k"], help: "previous sentence", run: () => studyView.selectBy(-1) },
      { keys: ["e"], help: "edit the sentence", run: () => studyView.startEdit() },
      { keys: ["d", "Delete"], help: "delete the sentence, or restore it", run: () => studyView.toggleDeleted() },
      { keys: ["a"], help: "add a finding", run: () => studyView.startAdd() },
      { keys: ["0", "1", "2"], help: "severity of the correction: no, minor, significant",
        run: ({ key }) => studyView.assess(undefined, { severity: Number(key) }) },
      { keys: ["t"], help: "type of error", run: () => studyView.focusErrorType() },
      { keys: ["c"], help: "comment on the study", run: () => byId("comment").focus() },
      { keys: ["Ctrl+z"], help: "undo", run: () => studyView.undo() },
      { keys: ["Ctrl+Shift+z", "Ctrl+y"], help: "redo", run: () => studyView.redo() },
      { keys: ["]"], help: "next step", run: () => studyView.stepBy(1) },
      { keys: ["["], help: "previous step", run: () => studyView.stepBy(-1) },
      { keys: ["f"], help: "finish the study (step 4)", run: () => studyView.finish() },
      { keys: ["n"], help: "next study", always: true, run: () => this.go((studyView.number ?? 0) + 1) },
      { keys: ["p"], help: "previous study", run: () => this.go(studyView.number - 1) },
      { keys: ["u"], help: "next study that is not finished", always: true, run: () => this.goUnfinished() },
      { keys: ["l"], help: "list of studies", always: true, run: () => this.toggleList() },
      { keys: ["/"], help: "filter the list; Escape leaves the filter", always: true, run: () => {
        this.showList(true);
        byId("study-filter").focus();
      } },
      { keys: ["b"], help: "add a box to the sentence", run: () => studyView.addBox() },
      { keys: ["ArrowLeft", "ArrowRight"], help: "with ↑ ↓ on a box: move it; with Shift resize it, with Alt finely" },
      { keys: ["Delete"], help: "on a box: remove it" },
      { keys: ["h"], help: "boxes: all, selected, none", run: () => studyView.cycleBoxes() },
      { keys: ["v"], help: "show or hide RadFact’s verdicts (from step 3 on)", run: () => studyView.toggleVerdicts() },
      { keys: ["g"], help: "link sentences of draft and reference on the same subject", run: () => studyView.toggleLinks() },
      { keys: ["m"], help: "focus the image; arrow keys move it", run: () => inputs.active.root.focus() },
      { keys: ["x"], help: "next image (frontal, lateral, prior)", run: () => inputs.turn() },
      { keys: ["+", "="], help: "zoom in", run: () => inputs.active.zoomIn() },
      { keys: ["-"], help: "zoom out", run: () => inputs.active.zoomOut() },
      { keys: ["w"], help: "window and level, in values of the original", run: () => byId("window-width").focus() },
      { keys: ["i"], help: "invert", run: () => inputs.active.invert() },
      { keys: ["z"], help: "magnifier", run: () => inputs.active.magnify() },
      { keys: ["s"], help: "all images side by side, with linked zoom", run: () => byId("side-by-side").click() },
      { keys: ["r"], help: "reset the image", run: () => inputs.active.reset() },
      { keys: ["Escape"], help: "deselect the sentence; on a box: back to the sentence", run: () => studyView.deselect() },
      { keys: ["?"], help: "this help", always: true, run: help },
    ], () => studyView.number !== null);
  }
}

async function start() {
  bindTheme();
  const set = await get("/api/set");
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
