/** The filtered list of studies. */

import { byId, consume, counted, element } from "./dom.js";

const PAGE = 10;
const KINDS = {
  all: () => true,
  unfinished: (study) => study.status !== "done",
  "not started": (study) => study.status === "open",
  started: (study) => study.status === "started",
  finished: (study) => study.status === "done",
  "with corrections": (study) => study.corrections > 0,
};
const SIGNS = { open: ["○", "not started"], started: ["◐", "started"], done: ["●", "finished"] };

export class StudyList {
  current = null;
  // Number of the study that Enter opens.
  #active = 1;
  // The studies that the filter shows.
  #shown = [];

  constructor(studies, open) {
    byId("study-kind").replaceChildren(...Object.keys(KINDS).map((text) => element("option", { text })));
    Object.assign(this, { studies, open, root: byId("study-list") });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("click", (event) => {
      const row = event.target.closest("[data-key]");
      if (row) open(Number(row.dataset.key));
    });
    for (const id of ["study-filter", "study-kind"]) {
      byId(id).addEventListener("input", () => this.#filter());
      byId(id).addEventListener("keydown", (event) => {
        if (event.key !== "Escape" && !(id === "study-filter" && ["Enter", "ArrowDown"].includes(event.key))) return;
        // The browser would clear the filter.
        consume(event);
        this.root.focus();
      });
    }
    this.#filter();
  }

  /** Update a study. The filter is not applied again, so that no row disappears under the pointer. */
  note(number, progress) {
    Object.assign(this.studies[number - 1], progress);
    byId(`study-${number}`)?.replaceWith(this.#row(this.studies[number - 1]));
    this.#mark();
  }

  /** Mark the open study, and scroll to it. */
  mark(number) {
    this.current = number;
    this.#activate(number);
  }

  /** The first unfinished study after a place, or else before it; null if all are finished. */
  unfinishedAfter(number) {
    const unfinished = this.studies.filter((study) => study.status !== "done" && study.number !== number);
    return (unfinished.find((study) => study.number > number) ?? unfinished[0])?.number ?? null;
  }

  #filter() {
    const words = byId("study-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = KINDS[byId("study-kind").value];
    this.#shown = this.studies.filter((study) => (
      kind(study) && words.every((word) => `${study.number} ${study.sample_id.toLowerCase()}`.includes(word))));
    const [shown, all] = [this.#shown.length, this.studies.length];
    byId("study-count").textContent = shown === all ? counted(all, "study", "studies") : `${shown} of ${all} studies`;
    this.root.replaceChildren(...this.#shown.map((study) => this.#row(study)));
    this.#activate(this.#shown[0]?.number);
  }

  #activate(number) {
    if (this.#shown.some((study) => study.number === number)) this.#active = number;
    this.#mark();
    byId(`study-${this.#active}`)?.scrollIntoView({ block: "nearest" });
  }

  #mark() {
    for (const row of this.root.children) {
      row.classList.toggle("active", row.dataset.key === String(this.#active));
      row.setAttribute("aria-selected", String(row.dataset.key === String(this.current)));
    }
    this.root.setAttribute("aria-activedescendant", `study-${this.#active}`);
  }

  #row({ number, sample_id: id, status, step, corrections }) {
    const [sign, words] = SIGNS[status];
    const where = [status === "started" && `step ${step}`, corrections && `${corrections} ✎`].filter(Boolean).join(" · ");
    return element("div", {
      id: `study-${number}`, "data-key": number, class: `study-row ${status}`, role: "option",
      "aria-label": `Study ${number}, ${id}, ${words}, ${counted(corrections, "correction")}`,
    },
    element("span", { class: "sign", text: sign, title: words }), element("span", { text: number }),
    element("span", { class: "end-first", title: id }, element("bdi", { dir: "ltr", text: id })),
    element("span", { class: "row-state", text: where, title: corrections ? counted(corrections, "correction") : null }));
  }

  #key(event) {
    const now = this.#shown.findIndex(({ number }) => number === this.#active);
    const last = this.#shown.length - 1;
    const at = { ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + PAGE, PageUp: now - PAGE, Home: 0, End: last }[event.key];
    if (at !== undefined) this.#activate(this.#shown[Math.min(last, Math.max(0, at))]?.number);
    else if (event.key === "Enter" && now >= 0) this.open(this.#active);
    else return;
    consume(event);
  }
}
