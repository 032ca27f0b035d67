/** The filtered list of studies; only visible rows are rendered, so thousands of studies are fast. */

import { byId, counted, element } from "./dom.js";

const ROW = 44;
const BEYOND = 6;
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
  #shown = [];
  #active = 0;

  /** @param {(number: number) => void} open */
  constructor(open) {
    this.open = open;
    this.current = null;
    this.studies = [];
    this.root = byId("study-list");
    this.space = element("div", { class: "study-space", role: "presentation" });
    this.root.append(this.space);
    this.root.addEventListener("scroll", () => this.#draw(), { passive: true });
    new ResizeObserver(() => this.#draw()).observe(this.root);
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.root.addEventListener("click", (event) => {
      const row = event.target.closest("[data-number]");
      if (row) open(Number(row.dataset.number));
    });
    for (const id of ["study-filter", "study-kind"]) byId(id).addEventListener("input", () => this.#filter());
    byId("study-filter").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== "ArrowDown") return;
      event.preventDefault();
      this.focus();
    });
    for (const id of ["study-filter", "study-kind"]) {
      byId(id).addEventListener("keydown", (event) => {
        if (event.key !== "Escape") return;
        // The browser would clear the filter.
        event.preventDefault();
        event.stopPropagation();
        this.focus();
      });
    }
  }

  /** @param {{number: number, sample_id: string, status: string, step: number, corrections: number}[]} studies */
  setStudies(studies) {
    this.studies = studies;
    this.#filter();
  }

  /** Update a study. The filter is not applied again, so that no row disappears under the pointer. */
  note(number, { status, step, corrections }) {
    Object.assign(this.studies[number - 1], { status, step, corrections });
    this.#draw();
  }

  /** Mark the open study, and scroll to it. */
  mark(number) {
    this.current = number;
    const at = this.#shown.findIndex((study) => study.number === number);
    if (at >= 0) this.#activate(at);
    else this.#draw();
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

  /** Update the layout, for instance after the list was hidden. */
  refresh() {
    this.mark(this.current);
  }

  #filter() {
    const words = byId("study-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const kind = KINDS[byId("study-kind").value];
    const said = ({ number, sample_id: id }) => `${number} ${id.toLowerCase()}`;
    this.#shown = this.studies.filter((study) => kind(study) && words.every((word) => said(study).includes(word)));
    byId("study-count").textContent = this.#shown.length === this.studies.length
      ? counted(this.studies.length, "study", "studies") : `${this.#shown.length} of ${this.studies.length} studies`;
    this.#active = 0;
    this.root.scrollTop = 0;
    this.#draw();
  }

  #activate(at) {
    this.#active = Math.min(this.#shown.length - 1, Math.max(0, at));
    const [top, seen] = [this.#active * ROW, this.root.clientHeight];
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (top + ROW > this.root.scrollTop + seen) this.root.scrollTop = top + ROW - seen;
    this.#draw();
  }

  #draw() {
    const first = Math.max(0, Math.floor(this.root.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.#shown.length, Math.ceil((this.root.scrollTop + this.root.clientHeight) / ROW) + BEYOND);
    this.space.style.height = `${this.#shown.length * ROW}px`;
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(this.#row(at));
    // The active row is always rendered, because screen readers find it by its id.
    if (this.#shown.length && (this.#active < first || this.#active >= last)) rows.push(this.#row(this.#active));
    this.space.replaceChildren(...rows);
    if (this.#shown.length) this.root.setAttribute("aria-activedescendant", `study-${this.#shown[this.#active].number}`);
    else this.root.removeAttribute("aria-activedescendant");
  }

  #row(at) {
    const { number, sample_id: id, status, step, corrections } = this.#shown[at];
    const [sign, words] = SIGNS[status];
    const where = [status === "started" && `step ${step}`, corrections && `${corrections} ✎`].filter(Boolean).join(" · ");
    const row = element("div", {
      id: `study-${number}`, class: `study-row ${status}`, role: "option", "data-number": number,
      "aria-selected": String(number === this.current), "aria-setsize": this.#shown.length, "aria-posinset": at + 1,
      "aria-label": `Study ${number}, ${id}, ${words}, ${counted(corrections, "correction")}`,
    },
    element("span", { class: "sign", text: sign, title: words }), element("span", { class: "row-number", text: number }),
    element("span", { class: "row-id end-first", title: id }, element("bdi", { dir: "ltr", text: id })),
    element("span", { class: "row-state", text: where, title: corrections ? counted(corrections, "correction") : null }));
    row.classList.toggle("active", at === this.#active);
    row.style.top = `${at * ROW}px`;
    return row;
  }

  #key(event) {
    const at = {
      ArrowDown: this.#active + 1, ArrowUp: this.#active - 1, PageDown: this.#active + PAGE, PageUp: this.#active - PAGE,
      Home: 0, End: this.#shown.length - 1,
    }[event.key];
    if (at !== undefined) this.#activate(at);
    else if (event.key === "Enter" && this.#shown.length) this.open(this.#shown[this.#active].number);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
