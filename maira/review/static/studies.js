/** The filtered list of studies. */

import { byId, counted, element } from "./dom.js";

const PAGE = 10;
const KINDS = {
  all: () => true,
  unfinished: (study) => study.status !== "done",
  open: (study) => study.status === "open",
  started: (study) => study.status === "started",
  done: (study) => study.status === "done",
  corrected: (study) => study.corrections > 0,
};
const SIGNS = { open: ["○", "not started"], started: ["◐", "started"], done: ["●", "finished"] };

export class StudyList {
  #active = 1;

  constructor(open) {
    this.open = open;
    this.current = null;
    this.studies = [];
    this.root = byId("study-list");
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("click", (event) => {
      const row = event.target.closest("[data-number]");
      if (row) open(Number(row.dataset.number));
    });
    for (const id of ["study-filter", "study-kind"]) {
      byId(id).addEventListener("input", () => this.#filter());
      byId(id).addEventListener("keydown", (event) => {
        if (event.key !== "Escape" && !(id === "study-filter" && ["Enter", "ArrowDown"].includes(event.key))) return;
        // The browser would clear the filter.
        event.preventDefault();
        event.stopPropagation();
        this.focus();
      });
    }
  }

  setStudies(studies) {
    this.studies = studies;
    this.root.replaceChildren(...studies.map((study) => this.#row(study)));
    this.#filter();
  }

  /** Update a study. The filter is not applied again, so that no row disappears under the pointer. */
  note(number, { status, step, corrections }) {
    Object.assign(this.studies[number - 1], { status, step, corrections });
    const before = this.root.children[number - 1];
    const row = this.#row(this.studies[number - 1]);
    row.hidden = before.hidden;
    before.replaceWith(row);
    this.#mark();
  }

  /** Mark the open study, and scroll to it. */
  mark(number) {
    this.current = number;
    this.#mark();
    this.#activate(number);
  }

  get finished() {
    return this.studies.filter((study) => study.status === "done").length;
  }

  /** The first unfinished study after a place, or else before it; null if all are finished. */
  unfinishedAfter(number) {
    const unfinished = this.studies.filter((study) => study.status !== "done" && study.number !== number);
    return (unfinished.find((study) => study.number > number) ?? unfinished[0])?.number ?? null;
  }

  focus() {
    this.root.focus();
  }

  get #shown() {
    return this.studies.filter(({ number }) => !this.root.children[number - 1].hidden).map(({ number }) => number);
  }

  #filter() {
    const words = byId("study-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = KINDS[byId("study-kind").value];
    this.studies.forEach((study, at) => {
      const said = `${study.number} ${study.sample_id.toLowerCase()}`;
      this.root.children[at].hidden = !(kind(study) && words.every((word) => said.includes(word)));
    });
    const shown = this.#shown;
    byId("study-count").textContent = shown.length === this.studies.length
      ? counted(this.studies.length, "study", "studies") : `${shown.length} of ${this.studies.length} studies`;
    this.#activate(shown[0]);
  }

  #activate(number) {
    const row = this.root.children[number - 1];
    if (!row || row.hidden) return;
    this.#active = number;
    this.#mark();
    row.scrollIntoView({ block: "nearest" });
  }

  #mark() {
    for (const row of this.root.querySelectorAll(".active, [aria-selected=true]")) {
      row.classList.remove("active");
      row.setAttribute("aria-selected", "false");
    }
    this.root.children[this.current - 1]?.setAttribute("aria-selected", "true");
    this.root.children[this.#active - 1]?.classList.add("active");
    this.root.setAttribute("aria-activedescendant", `study-${this.#active}`);
  }

  #row({ number, sample_id: id, status, step, corrections }) {
    const [sign, words] = SIGNS[status];
    const where = [status === "started" && `step ${step}`, corrections && `${corrections} ✎`].filter(Boolean).join(" · ");
    return element("div", {
      id: `study-${number}`, class: `study-row ${status}`, role: "option", "data-number": number, "aria-selected": "false",
      "aria-label": `Study ${number}, ${id}, ${words}, ${counted(corrections, "correction")}`,
    },
    element("span", { class: "sign", text: sign, title: words }), element("span", { class: "row-number", text: number }),
    element("span", { class: "row-id end-first", title: id }, element("bdi", { dir: "ltr", text: id })),
    element("span", { class: "row-state", text: where, title: corrections ? counted(corrections, "correction") : null }));
  }

  #key(event) {
    const shown = this.#shown;
    const now = shown.indexOf(this.#active);
    const at = {
      ArrowDown: now + 1, ArrowUp: now - 1, PageDown: now + PAGE, PageUp: now - PAGE, Home: 0, End: shown.length - 1,
    }[event.key];
    if (at !== undefined) this.#activate(shown[Math.min(shown.length - 1, Math.max(0, at))]);
    else if (event.key === "Enter" && now >= 0) this.open(this.#active);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
