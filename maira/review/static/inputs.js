/** Input of the model: the images, one of them enlarged, and the texts. */

import { BoxEditor } from "./boxes.js";
import { byId, element } from "./dom.js";

export const IMAGES = { frontal: "Frontal", lateral: "Lateral", prior_frontal: "Prior frontal" };
const TEXTS = { indication: "Indication", technique: "Technique", comparison: "Comparison" };

export class Inputs {
  #drawn = null;

  /**
   * @param {{select: (id: string) => void, focus: (id: string) => void,
   *   changeBoxes: (id: string, boxes: number[][]) => void, touched: () => void}} handlers
   */
  constructor({ select, focus, changeBoxes, touched }) {
    this.radiograph = new Radiograph(byId("radiograph"));
    this.editor = new BoxEditor(this.radiograph, changeBoxes, touched, focus);
    this.kind = "frontal";
    this.radiograph.root.addEventListener("boxselect", ({ detail }) => select(detail.id));
    this.radiograph.root.addEventListener("drawingchange", () => this.#note());
    this.radiograph.bindTools();
  }

  /** Show the images and texts of a study, the frontal image large. */
  open(study) {
    this.study = study;
    this.radiograph.forget();
    this.#write();
    this.enlarge("frontal");
  }

  /** Enlarge another image of the study. */
  enlarge(kind) {
    this.kind = kind;
    const image = this.study.images[kind];
    const alt = `${IMAGES[kind]} radiograph of study ${this.study.number}`;
    this.radiograph.show(kind, image?.url ? { ...image, src: image.url, full: `${image.url}?full=1` } : null, image?.url ? alt : image?.message ?? "No image");
    byId("thumbs").replaceChildren(...Object.keys(IMAGES).filter((other) => other !== kind && this.study.images[other])
      .map((other) => this.#thumb(other)));
    this.#drawn = null;
    this.#note();
  }

  /** Enlarge the next image. */
  turn() {
    const there = Object.keys(IMAGES).filter((kind) => this.study.images[kind]);
    if (!there.length) return;
    this.enlarge(there[(there.indexOf(this.kind) + 1) % there.length]);
  }

  /**
   * Draw boxes, with handles for those of the selected sentence.
   *
   * @param {object[]} sentences  of the draft
   * @param {object[]} reference  visible sentences of the reference report
   * @param {{selected: string | null, locked: boolean, mode: "all" | "selected" | "none"}} how
   */
  draw(sentences, reference, { selected, locked, mode }) {
    const at = sentences.findIndex(({ id }) => id === selected);
    const onFilm = this.kind === "frontal";
    const edited = onFilm && mode !== "none" && at >= 0 ? sentences[at] : null;
    this.editor.edit(edited, { number: at + 1, locked: locked || Boolean(edited?.deleted) });
    const boxes = !onFilm || mode === "none" ? [] : [
      ...sentences.flatMap((sentence, place) => (sentence === edited || sentence.deleted ? []
        : drawn(sentence.id, "candidate", String(place + 1), sentence.boxes))),
      ...reference.flatMap((sentence, place) => drawn(`reference-${place}`, "reference", `R${place + 1}`, sentence.boxes ?? [])),
    ].filter((box) => mode === "all" || box.id === selected);
    // Redrawing under the pointer would lose a click on a box.
    const key = JSON.stringify([boxes, selected]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.radiograph.viewer.setBoxes(boxes);
    this.radiograph.viewer.focus(null, selected === null ? [] : [selected]);
  }

  #write() {
    const pairs = Object.entries(TEXTS).filter(([name]) => this.study[name])
      .map(([name, label]) => element("div", {}, element("dt", { text: label }), element("dd", { text: this.study[name] })));
    if (this.study.prior_report) {
      pairs.push(element("div", { class: "prior" }, element("dt", { text: "Prior report" }),
        element("dd", {}, element("details", {}, element("summary", { text: "Show" }), element("p", { text: this.study.prior_report })))));
    }
    byId("context").replaceChildren(...pairs);
    byId("context").hidden = !pairs.length;
  }

  #thumb(kind) {
    const { url, message } = this.study.images[kind];
    const picture = url ? element("img", { src: url, alt: "", decoding: "async" }) : element("span", { class: "hint", text: message });
    return element("button", { type: "button", class: "thumb", "aria-label": `${IMAGES[kind]}: show large`, title: `${IMAGES[kind]}: show large (X)`,
      on: { click: () => {
        this.enlarge(kind);
        this.radiograph.root.dispatchEvent(new Event("enlarged"));
        this.radiograph.root.focus({ preventScroll: true });
      } } }, picture, element("span", { class: "caption", text: IMAGES[kind] }));
  }

  #note() {
    const note = byId("radiograph-note");
    const words = this.editor.drawing ? "Drag to draw a box · Enter adds one in the center · Esc cancels"
      : this.kind === "frontal" ? "" : `${IMAGES[this.kind]} image: boxes are on the frontal one`;
    note.textContent = words;
    note.hidden = !words;
  }
}

function drawn(id, side, label, boxes) {
  return boxes.map(([left, top, right, bottom]) => ({ id, side, label, x_min: left, y_min: top, x_max: right, y_max: bottom }));
}
