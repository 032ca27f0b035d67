/** The page of a review: who reviews, which study is open, what is saved. */

import { get, Refused } from "./api.js";
import { Desk } from "./desk.js";
import { alertBar, announce, asSentence, byId, checkAlert, closeWhenLeft, counted } from "./dom.js";
import { bindKeys } from "./keys.js";
import { Kept, keyOf, setSetting, setting, tabReviewer } from "./kept.js";
import { ChangeQueue } from "./queue.js";
import { askReviewer } from "./reviewers.js";
import { isCorrection } from "./state.js";
import { StudyList } from "./studies.js";

const WHAT = { edit: "an edit", delete: "a deletion", restore: "a restored sentence", add: "an added finding", boxes: "boxes",
  comment: "the comment on the study", step: "a step", finish: "finishing", reopen: "reopening",
  undo: "an undo", redo: "a redo" };
const ASSESSED = { severity: "a severity", error_type: "a type of error", comment: "the comment on a correction" };

// How long after one look another is taken whether a study can be opened.
const LOOK_MS = 2000;

/** What a change was to do, in words. */
function whatOf({ kind, fields }) {
  return kind === "assess" ? Object.keys(fields).map((name) => ASSESSED[name]).filter(Boolean) : [WHAT[kind]];
}

/** What must be done before words of changes that were not taken can be given back, in words. */
function awaited(lost, state) {
  if (state?.done && lost.some(({ fields }) => fields.text || fields.comment)) {
    return " The study is finished; your words come back when you reopen it.";
  }
  const edited = lost.filter(({ kind }) => kind === "edit").map(({ fields }) => fields.sentence);
  const places = (state?.sentences ?? []).flatMap(({ id, deleted }, at) => (deleted && edited.includes(id) ? [at + 1] : []));
  return places.map((place) => ` Sentence ${place} is deleted; your text of it comes back when you restore it.`).join("");
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String(theme === "light"));
}

function turnTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  useTheme(theme);
  setSetting("theme", theme);
}

/** Changes that an earlier page could not send and that are of this set's drafts; others wait for their own set. */
async function leftoverOf(kept, reviewer, studies) {
  const changes = kept.changes().filter(({ number }) => number <= studies);
  const keys = new Map();
  for (const number of new Set(changes.map((change) => change.number))) {
    keys.set(number, keyOf(await get(`/api/studies/${number}?reviewer=${encodeURIComponent(reviewer)}`)));
  }
  return changes.filter(({ number, study }) => keys.get(number) === study);
}

class Review {
  constructor(set, reviewer, kept, leftover) {
    this.set = set;
    this.reviewer = reviewer;
    this.queue = new ChangeQueue(reviewer, kept, leftover);
    this.desk = new Desk(set, reviewer, kept, this.queue);
    this.list = new StudyList((number) => this.go(number));
    this.saidSaved = false;
    this.behind = false;
    // How often a study was asked for: an earlier question's answer is no longer wanted.
    this.openings = 0;
    // Windows of one browser tell one another what the server has taken.
    this.windows = new BroadcastChannel("maira-review");
  }

  async start() {
    byId("reviewer").textContent = visibleText(this.reviewer);
    for (const link of document.querySelectorAll("#export-menu a")) link.search = new URLSearchParams({ reviewer: this.reviewer });
    this.list.setStudies(await get(`/api/studies?reviewer=${encodeURIComponent(this.reviewer)}`));
    this.#listen();
    this.#bind();
    this.queue.flush();
    this.showList(setting("list") ?? window.innerWidth >= 1800);
    if (!this.#asked()) history.replaceState(null, "", `#${this.list.unfinishedAfter(0) ?? 1}`);
    await this.open();
  }

  /** The study that the address names, null where it names none. */
  #asked() {
    const number = Number(location.hash.slice(1));
    return Number.isInteger(number) && number >= 1 && number <= this.set.studies ? number : null;
  }

  go(number) {
    if (number === null) announce("All studies are finished.");
    else if (number < 1 || number > this.set.studies) return;
    else if (location.hash === `#${number}`) this.open();
    else location.hash = String(number);
  }

  /** Open the study that the address names. */
  async open() {
    const number = this.#asked();
    if (number === null) return;
    this.openings += 1;
    checkAlert();
    if (number === this.desk.number) return;
    const opening = this.openings;
    try {
      const study = await this.desk.fetch(number);
      if (opening === this.openings) this.#show(study);
    } catch (error) {
      if (opening === this.openings) this.#sayNotOpened(number, error);
    }
  }

  /** Say that a study cannot be opened, until it can be or another is asked for. */
  async #sayNotOpened(number, error) {
    const opening = this.openings;
    let isSo = true;
    const holds = () => isSo && opening === this.openings;
    byId("blank-text").textContent = "No study is open.";
    alertBar(asSentence(`Study ${number} cannot be opened: ${error.message}`), {
      action: { label: "Try again", run: () => this.open() }, holds,
    });
    while (holds()) {
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      isSo = !(await this.desk.fetch(number).catch(() => null));
      checkAlert();
    }
  }

  #show(study) {
    const { number } = study;
    this.desk.open(study);
    this.list.mark(number);
    document.title = visibleText(`${number} · ${this.set.title}`);
    byId("study-place").textContent = `${number} of ${this.set.studies} ·`;
    byId("study-id").textContent = visibleText(this.desk.sampleId);
    byId("study-name").title = visibleText(this.desk.sampleId);
    byId("previous-study").disabled = number === 1;
    byId("following-study").disabled = number === this.set.studies;
  }

  goUnfinished() {
    this.go(this.list.unfinishedAfter(this.desk.number ?? 0));
  }

  showList(shown) {
    byId("studies").hidden = !shown;
    byId("toggle-studies").setAttribute("aria-expanded", String(shown));
    if (shown) this.list.refresh();
  }

  turnList() {
    const shown = byId("studies").hidden;
    setSetting("list", shown);
    this.showList(shown);
    if (shown) this.list.focus();
    else byId("toggle-studies").focus();
  }

  #listen() {
    const { queue, desk } = this;
    queue.addEventListener("progress", () => {
      this.#sayWhatIsSaved();
      desk.render();
    });
    queue.addEventListener("answered", ({ detail: { change, state } }) => {
      this.saidSaved = true;
      desk.answered(change, state);
      this.#note(change.number, state);
      this.windows.postMessage({ reviewer: this.reviewer, number: change.number, study: change.study, state });
    });
    this.windows.addEventListener("message", ({ data }) => this.#catchUp(data));
    queue.addEventListener("overtaken", ({ detail }) => this.#lost(detail, "Another window has changed the study meanwhile."));
    queue.addEventListener("refused", ({ detail }) => this.#lost(detail, asSentence(detail.error.message)));
    desk.addEventListener("shown", () => {
      checkAlert();
      this.#sayWhatIsSaved();
      if (this.behind) this.#refresh();
    });
    desk.addEventListener("nextstudy", () => this.goUnfinished());
    window.addEventListener("hashchange", () => this.open());
    window.addEventListener("pagehide", () => desk.leave());
    window.addEventListener("beforeunload", (event) => {
      if (queue.trouble) event.preventDefault();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#refresh();
    });
    window.addEventListener("focus", () => this.#refresh());
  }

  /** Show what other windows did, once nothing is being typed here that was begun on the state before. */
  #refresh() {
    this.behind = this.desk.isChanging;
    if (!this.behind) this.desk.refresh().catch(() => {});
  }

  /** Another window of this browser has changed a study. */
  #catchUp({ reviewer, number, study, state }) {
    if (reviewer !== this.reviewer || number > this.set.studies) return;
    this.#note(number, state);
    if (number === this.desk.number && study === this.desk.key) this.#refresh();
  }

  #note(number, state) {
    this.desk.hear(number, state.version);
    const begun = state.version > 0 ? "started" : "open";
    this.list.note(number, {
      status: state.done ? "done" : begun, step: state.step, corrections: state.sentences.filter(isCorrection).length,
    });
    this.#sayProgress();
  }

  #lost({ change, lost, error }, words) {
    const what = [...new Set(lost.flatMap(whatOf))].join(", ");
    const state = error.body?.state ?? null;
    this.desk.refused(change.number, state, lost);
    alertBar(`${words} Not saved (study ${change.number}): ${what}.${awaited(lost, state)}`);
  }

  #sayProgress() {
    const { finished } = this.list;
    byId("progress").max = this.set.studies;
    byId("progress").value = finished;
    byId("progress-text").textContent = `${finished} of ${counted(this.set.studies, "study", "studies")} finished`;
  }

  #sayWhatIsSaved() {
    const { waiting, trouble } = this.queue;
    this.#sayTrouble(trouble, counted(waiting, "change"));
    const [kind, words] = trouble ? ["lost", "Not saved"]
      : waiting ? ["saving", "Saving …"]
        : this.desk.isChanging || this.desk.waiting.length ? ["saving", "Not saved yet"]
          : this.saidSaved ? ["saved", "✓ Saved"] : ["", ""];
    const output = byId("saved");
    if (output.textContent === words) return;
    output.className = kind ? `state ${kind}` : "state";
    output.textContent = words;
  }

  #sayTrouble(trouble, changes) {
    const bar = byId("trouble");
    const words = !trouble ? "" : trouble.signedOut
      ? `Signed out: ${changes} kept in this browser. Open the address that the server printed.`
      : `${asSentence(trouble.message)} ${changes} not saved, kept in this browser and sent again.`;
    bar.hidden = !words;
    if (bar.textContent !== words) bar.textContent = words;
  }

  #bind() {
    const { desk, list } = this;
    const { radiograph } = desk.inputs;
    this.#sayProgress();
    closeWhenLeft(byId("export-menu"));
    byId("toggle-studies").addEventListener("click", () => this.turnList());
    byId("previous-study").addEventListener("click", () => this.go(desk.number - 1));
    byId("following-study").addEventListener("click", () => this.go(desk.number + 1));
    byId("next-study").addEventListener("click", () => this.goUnfinished());
    byId("reviewer").addEventListener("click", async () => {
      if (await askReviewer(this.set.reviewers, this.reviewer)) location.reload();
    });
    const help = () => byId("help-dialog").showModal();
    byId("help").addEventListener("click", help);
    bindKeys([
      { keys: ["ArrowUp", "ArrowDown"], help: "previous, next sentence, on a sentence" },
      { keys: ["j"], help: "next sentence", run: () => desk.selectBy(1) },
      { keys: ["k"], help: "previous sentence", run: () => desk.selectBy(-1) },
      { keys: ["e"], help: "edit the sentence", run: () => desk.startEdit() },
      { keys: ["d", "Delete"], help: "delete the sentence, or restore it", run: () => desk.toggleDeleted() },
      { keys: ["a"], help: "add a finding", run: () => desk.startAdd() },
      { keys: ["0", "1", "2"], help: "severity of the correction: no, minor, significant",
        run: ({ key }) => desk.assess(undefined, { severity: Number(key) }) },
      { keys: ["t"], help: "type of error", run: () => desk.focusErrorType() },
      { keys: ["c"], help: "comment on the study", run: () => byId("comment").focus() },
      { keys: ["Ctrl+z"], help: "undo", run: () => desk.undo() },
      { keys: ["Ctrl+Shift+z", "Ctrl+y"], help: "redo", run: () => desk.redo() },
      { keys: ["]"], help: "next step", run: () => desk.stepBy(1) },
      { keys: ["["], help: "previous step", run: () => desk.stepBy(-1) },
      { keys: ["f"], help: "finish the study (step 4)", run: () => desk.finish() },
      { keys: ["n"], help: "next study", always: true, run: () => this.go((desk.number ?? 0) + 1) },
      { keys: ["p"], help: "previous study", run: () => this.go(desk.number - 1) },
      { keys: ["u"], help: "next study that is not finished", always: true, run: () => this.goUnfinished() },
      { keys: ["l"], help: "list of studies", always: true, run: () => this.turnList() },
      { keys: ["/"], help: "filter the list", always: true, run: () => {
        this.showList(true);
        byId("study-filter").focus();
      } },
      { keys: ["b"], help: "add a box to the sentence", run: () => desk.addBox() },
      { keys: ["ArrowLeft", "ArrowRight"], help: "with ↑ ↓ on a box: move it; with Shift resize it, with Alt finely" },
      { keys: ["Delete"], help: "on a box: remove it" },
      { keys: ["h"], help: "boxes: all, selected, none", run: () => desk.turnBoxes() },
      { keys: ["v"], help: "show or hide RadFact’s verdicts (from step 3 on)", run: () => desk.turnVerdicts() },
      { keys: ["m"], help: "to the image; arrow keys move it there", run: () => radiograph.root.focus() },
      { keys: ["x"], help: "frontal, lateral, prior image in turn", run: () => desk.turnImages() },
      { keys: ["+", "="], help: "zoom in", run: () => radiograph.zoomIn() },
      { keys: ["-"], help: "zoom out", run: () => radiograph.zoomOut() },
      { keys: ["w"], help: "window and level", run: () => byId("window-width").focus() },
      { keys: ["i"], help: "invert", run: () => desk.inputs.invert() },
      { keys: ["r"], help: "image as at first", run: () => radiograph.reset() },
      { keys: ["Escape"], help: "let go of the sentence; on a box: back to it", run: () => desk.letGo() },
      { keys: ["?"], help: "this help", always: true, run: help },
    ], () => desk.number !== null);
    list.refresh();
  }
}

async function start() {
  useTheme(setting("theme") ?? "dark");
  byId("theme").addEventListener("click", turnTheme);
  const set = await get("/api/set");
  byId("title").textContent = visibleText(set.title);
  const known = tabReviewer();
  const reviewer = set.reviewers.includes(known) ? known : await askReviewer(set.reviewers, null);
  const kept = new Kept(reviewer);
  await new Review(set, reviewer, kept, await leftoverOf(kept, reviewer, set.studies)).start();
}

start().catch((error) => {
  const words = error instanceof Refused && [401, 403].includes(error.status)
    ? "This browser is not signed in. Open the address that the server printed." : asSentence(`The review cannot begin: ${error.message}`);
  byId("blank-text").textContent = words;
  announce(words);
});
