/** The four steps of a review (MAIRA-2, figure F.1) with their instructions. */

import { announce, byId, counted, element } from "./dom.js";
import { REFERENCE_STEP, unassessed } from "./state.js";

const WITHOUT_REFERENCE = "No reference report is shown. Leave a comment.";

export class Steps {
  // Message next to the button of the next step, and the version of the state that it applies to.
  #hint = { words: "", version: null };
  #version = null;

  constructor({ steps, severities }, go) {
    this.steps = steps;
    this.buttons = steps.map(({ number, name }) => element("button", { type: "button", class: "step", on: { click: () => go(number) } },
      element("span", { class: "step-number", text: String(number) }), ` ${name}`));
    byId("steps").replaceChildren(...this.buttons.map((button) => element("li", {}, button)));
    byId("severity-definitions").replaceChildren(...[...severities].reverse().flatMap(({ id, name, definition }) => [
      element("dt", { text: `${id} · ${name}` }),
      element("dd", {}, element("ul", {}, ...definition.split("\n").map((text) => element("li", { text })))),
    ]));
  }

  /** Start another study. */
  open() {
    this.#hint = { words: "", version: null };
  }

  /** Show why the study cannot be finished, until the next change. */
  showHint(words) {
    this.#hint = { words, version: this.#version };
    byId("remaining").textContent = words;
    announce(words);
  }

  update(state, reference) {
    const { step, done, visited } = state;
    this.#version = state.version;
    this.buttons.forEach((button, at) => {
      button.classList.toggle("past", visited.includes(at + 1) && (done || at + 1 !== step));
      if (at + 1 === step) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
      button.disabled = done;
    });
    const isMissing = step === REFERENCE_STEP && reference?.length === 0;
    this.#instruct(isMissing ? WITHOUT_REFERENCE : this.steps[step - 1].instruction, done);
    byId("definitions").hidden = step !== this.steps.length || done;
    const open = unassessed(state).length;
    const last = step === this.steps.length;
    const hint = this.#hint.version === state.version ? this.#hint.words : "";
    byId("remaining").textContent = done ? "This study is finished." : hint || (last && open
      ? `${counted(open, "correction has", "corrections have")} no severity yet` : "");
    byId("advance").textContent = done ? "Next unfinished study" : last ? "Finish study" : `Next: ${step + 1} ${this.steps[step].name}`;
    byId("advance").title = done ? "Next unfinished study (U)" : last ? "Finish study (F)" : "Next step (])";
  }

  #instruct(instruction, done) {
    const [first, ...rest] = instruction.split("\n");
    const words = done ? "Finished. Reopen the study to change it, or continue with the next one." : first;
    const list = rest.length && !done ? element("ul", {}, ...rest.map((text) => element("li", { text }))) : null;
    byId("instruction").replaceChildren(element("p", { text: words }), ...(list ? [list] : []));
  }
}
