"use strict";

/**
 * An image with boxes over it.
 *
 * Boxes are `{id, side, label, x_min, y_min, x_max, y_max}`: corners are shares of the ORIGINAL image, x to the right,
 * y down; `side` is "candidate" or "reference" and decides colour and line; boxes of one sentence share one `id`.
 *
 * `root` receives two events, each with `detail: {id, side}`, or `detail: null` where the pointer left the boxes:
 * "boxhover" (the pointer is over a box) and "boxselect" (a box was clicked).
 */
class BoxViewer {
  /**
   * @param {HTMLElement} root  an empty element that becomes the viewer
   * @param {{src?: string, width?: number, height?: number, alt?: string, message?: string}} image
   *   size of the original in pixels; without `src` the boxes stand on an empty field that shows `message`
   */
  constructor(root, image = {}) {
    this.root = root;
    this.boxes = [];
    this.sides = new Set(["candidate", "reference"]);
    this.only = null;
    this.strong = new Set();
    root.classList.add("box-viewer");
    this.frame = this.#element("div", "box-viewer-frame");
    this.layer = this.#element("div", "box-viewer-layer");
    root.replaceChildren(this.frame);
    this.setImage(image);
    this.layer.addEventListener("pointerover", (event) => this.#tell("boxhover", event));
    this.layer.addEventListener("pointerout", (event) => {
      if (!event.relatedTarget?.closest?.(".box-viewer-box")) this.#tell("boxhover", null);
    });
    this.layer.addEventListener("click", (event) => this.#tell("boxselect", event));
  }

  /** Replace the image; the boxes stay. */
  setImage({ src, width = 1, height = 1, alt = "", message = "No image" }) {
    this.frame.style.setProperty("--ratio", String(width / height));
    this.frame.classList.toggle("blank", !src);
    const note = this.#element("p", "box-viewer-message", message);
    if (!src) {
      this.frame.replaceChildren(note, this.layer);
      return;
    }
    const img = this.#element("img", "box-viewer-image");
    img.alt = alt;
    img.loading = "lazy";
    img.decoding = "async";
    img.addEventListener("error", () => {
      note.textContent = "The image cannot be loaded";
      img.replaceWith(note);
    });
    img.src = src;
    this.frame.replaceChildren(img, this.layer);
  }

  /** Replace the boxes. */
  setBoxes(boxes) {
    const area = (box) => (box.x_max - box.x_min) * (box.y_max - box.y_min);
    // The smallest box comes last, on top, so that a box inside another one can be pointed at.
    this.boxes = [...boxes].sort((a, b) => area(b) - area(a));
    this.#draw();
  }

  /** Draw only the boxes of these sides (an iterable of "candidate", "reference"). */
  setSides(sides) {
    this.sides = new Set(sides);
    this.#draw();
  }

  /** Draw only the boxes with these ids, those in `strong` with a heavier line; `null` draws all again. */
  focus(ids, strong = []) {
    this.only = ids === null ? null : new Set(ids);
    this.strong = new Set(strong);
    this.#draw();
  }

  #draw() {
    const shown = this.boxes.filter((box) => this.sides.has(box.side) && (this.only === null || this.only.has(box.id)));
    this.layer.replaceChildren(...shown.map((box) => this.#box(box)));
  }

  #box(box) {
    const element = this.#element("div", `box-viewer-box ${box.side}`);
    element.dataset.id = box.id;
    element.dataset.side = box.side;
    element.classList.toggle("strong", this.strong.has(box.id));
    const percent = (share) => `${share * 100}%`;
    element.style.left = percent(box.x_min);
    element.style.top = percent(box.y_min);
    element.style.width = percent(box.x_max - box.x_min);
    element.style.height = percent(box.y_max - box.y_min);
    if (box.label) element.append(this.#element("span", "box-viewer-label", box.label));
    return element;
  }

  #tell(name, event) {
    const box = event?.target.closest(".box-viewer-box");
    if (event && !box) return;
    const detail = box ? { id: box.dataset.id, side: box.dataset.side } : null;
    this.root.dispatchEvent(new CustomEvent(name, { detail, bubbles: true }));
  }

  #element(tag, className, text) {
    const element = document.createElement(tag);
    element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }
}
