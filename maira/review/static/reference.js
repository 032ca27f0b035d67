/** The reference report, collapsed until its step. */

import { byId, counted, element } from "./dom.js";
import { REFERENCE_STEP } from "./state.js";

/** The reference report's sentences; choosing one shows its boxes. */
export class Reference {
  #sentences = null;

  constructor(select) {
    this.root = byId("reference");
    this.list = byId("reference-sentences");
    this.select = select;
  }

  /** Whether its sentences and their boxes are visible. */
  get isOpen() {
    return !this.root.hidden && this.root.open;
  }

  update(sentences, step, selected, counterparts) {
    this.root.hidden = sentences === null || step < REFERENCE_STEP;
    if (sentences !== this.#sentences) this.#draw(sentences ?? []);
    this.#sentences = sentences;
    for (const button of this.list.querySelectorAll("button")) {
      const chosen = button.dataset.id === selected;
      button.setAttribute("aria-pressed", String(chosen));
      button.closest("li").classList.toggle("selected", chosen);
      button.closest("li").classList.toggle("counterpart", counterparts.includes(button.dataset.id));
    }
  }

  /** Scroll a sentence into view. */
  reveal(id) {
    this.list.querySelector(`[data-id="${CSS.escape(id)}"]`)?.closest("li").scrollIntoView({ block: "nearest" });
  }

  #draw(sentences) {
    this.list.replaceChildren(...sentences.map(({ text, boxes }, at) => {
      const button = element("button", { type: "button", class: "sentence-text", "data-id": `reference-${at}`,
        on: { click: () => this.select(`reference-${at}`) } },
      element("span", { class: "number", text: `R${at + 1}` }), element("span", { class: "words", text }));
      const marks = boxes?.length ? element("div", { class: "marks" },
        element("span", { class: "mark", text: counted(boxes.length, "box", "boxes") })) : null;
      return element("li", { class: "sentence reference" }, button, marks);
    }));
    if (!sentences.length) this.list.append(element("li", { class: "hint", text: "No reference report is shown." }));
  }
}
