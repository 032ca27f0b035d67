/** Assessment of a correction: severity, error type and comment. */

import { element } from "./dom.js";
import { persistentField } from "./text.js";

const OWN = "\u0000own";

/** The choices below a corrected sentence. */
export class Assessment {
  constructor(id, set, handlers) {
    this.id = id;
    this.handlers = handlers;
    this.radios = set.severities.map(({ id: severity, name, definition }) => {
      const radio = element("input", { type: "radio", name: `severity-${id}`, value: severity,
        on: { change: () => handlers.assess(id, { severity }) } });
      return { radio, label: element("label", { class: `severity severity-${severity}`, title: definition }, radio,
        element("span", {}, element("kbd", { text: String(severity) }), ` ${name.replace(/ implications$/, "")}`)) };
    });
    this.type = element("select", { class: "type", "aria-label": "Error type", on: { change: () => this.#chooseType() } });
    this.ownInput = element("input", { type: "text", class: "own-type", "aria-label": "Custom error type", maxlength: "100",
      placeholder: "custom type, then Enter", hidden: true, on: { keydown: (event) => this.#ownKey(event) } });
    this.own = persistentField(this.ownInput, {
      typed: () => handlers.typed(`own:${id}`),
      keep: (text) => handlers.keep(`own:${id}`, text),
      save: (name) => this.#saveOwn(name),
    });
    // An empty field means no type. Typed text is saved before this.
    this.ownInput.addEventListener("blur", () => {
      if (!this.own.isTyping) this.#closeOwn();
    });
    const why = element("input", { type: "text", class: "why", "aria-label": "Comment on this correction",
      placeholder: "Comment on this correction" });
    this.why = persistentField(why, {
      typed: () => handlers.typed(`why:${id}`),
      keep: (text) => handlers.keep(`why:${id}`, text),
      save: (comment) => handlers.assess(id, { comment }),
    });
    this.root = element("div", { class: "assessment" },
      element("fieldset", { class: "severities" }, element("legend", { text: "Implications", title: "Clinical implications on patient treatment" }),
        ...this.radios.map(({ label }) => label)),
      element("div", { class: "type-and-why" }, this.type, this.ownInput, why));
    this.root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      handlers.focus(id);
    });
  }

  /** Whether there is typed text that is not in a change yet. */
  get isTyping() {
    return this.why.isTyping || this.own.isTyping;
  }

  update(assessment, { errorTypes, locked }) {
    for (const { radio } of this.radios) {
      radio.checked = Number(radio.value) === assessment.severity;
      radio.disabled = locked;
    }
    if (this.radios.some(({ radio }) => radio === document.activeElement)) this.focusSeverity();
    this.#showOwn();
    this.#fillTypes(errorTypes, assessment.error_type);
    for (const field of this.root.querySelectorAll("select, input[type=text]")) field.disabled = locked;
    this.why.show(assessment.comment);
    this.root.classList.toggle("missing", assessment.severity === null);
  }

  /** Show the field of a custom type while it has text or the focus. */
  #showOwn() {
    this.own.show("");
    if (this.ownInput.value) this.ownInput.hidden = false;
    else if (this.ownInput !== document.activeElement) this.ownInput.hidden = true;
  }

  #fillTypes(names, chosen) {
    const known = chosen === null || names.includes(chosen) ? names : [...names, chosen];
    const wanted = ["", ...known, OWN];
    const present = [...this.type.options].map((option) => option.value);
    if (wanted.join("\n") !== present.join("\n")) {
      this.type.replaceChildren(element("option", { value: "", text: "Error type …" }),
        ...known.map((name) => element("option", { value: name, text: name })),
        element("option", { value: OWN, text: "Another type …" }));
    }
    this.type.value = this.ownInput.hidden ? chosen ?? "" : OWN;
    this.chosen = chosen;
    this.type.title = visibleText(chosen ?? "");
  }

  /** Move the focus to the chosen severity, or else to the first. */
  focusSeverity() {
    const [{ radio }] = this.radios;
    (this.radios.find((each) => each.radio.checked)?.radio ?? radio).focus();
  }

  /** Commit the typed text. */
  save() {
    this.why.save();
    this.own.save();
  }

  #chooseType() {
    const own = this.type.value === OWN;
    this.ownInput.hidden = !own;
    if (own) this.ownInput.focus();
    else this.handlers.assess(this.id, { error_type: this.type.value || null });
  }

  /** Escape discards the typed text; Enter and leaving the field save it. */
  #ownKey(event) {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    this.handlers.discard(`own:${this.id}`);
    this.#closeOwn();
  }

  #saveOwn(name) {
    if (name) this.handlers.assess(this.id, { error_type: name.split(/\s+/).join(" ") });
    else this.handlers.discard(`own:${this.id}`);
    this.#closeOwn();
  }

  #closeOwn() {
    if (this.ownInput.hidden) return;
    const had = this.ownInput === document.activeElement;
    this.ownInput.hidden = true;
    this.ownInput.value = "";
    this.type.value = this.chosen ?? "";
    if (had) this.type.focus();
  }
}
