"use strict";

/**
 * Text with visible bidirectional control characters, so that they cannot reorder it.
 *
 * @param {string} text
 * @returns {string}
 */
function visibleText(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (control) => `[U+${control.charCodeAt(0).toString(16).toUpperCase()}]`);
}

/** Attributes that hold text for the reader. */
const TEXT_ATTRIBUTES = ["alt", "aria-label", "label", "placeholder", "title"];

/** A new element; `on` has listeners by event, further options are attributes, and null is none of them. */
function element(tag, { text, on = {}, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) node.setAttribute(name, TEXT_ATTRIBUTES.includes(name) ? visibleText(String(value)) : value);
  }
  if (text !== undefined) node.textContent = visibleText(String(text));
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.filter((child) => child !== null));
  return node;
}

function svgElement(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/**
 * A COCO run-length mask as an SVG path, on a grid of at most `LONGEST` cells a side.
 *
 * @param {{size: [number, number], counts: string | number[]}} mask  size is (height, width)
 * @returns {{x_min, y_min, x_max, y_max, width, height, path} | null}
 *   corners as shares of the mask's grid, the cells of the drawing, the path; null for a mask without a pixel
 */
const maskDrawing = (() => {
  const LONGEST = 256;

  /** Runs of the compressed form: six-bit groups of a signed number, each but the first two stored as a difference. */
  function decodeCounts(text) {
    const counts = [];
    for (let at = 0; at < text.length;) {
      let value = 0;
      let shift = 0;
      let group;
      do {
        group = text.charCodeAt(at++) - 48;
        value |= (group & 31) << shift;
        shift += 5;
      } while (group & 32 && at < text.length);
      if (group & 16) value |= -1 << shift;
      counts.push(counts.length > 2 ? value + counts[counts.length - 2] : value);
    }
    return counts;
  }

  /** Call `visit(x, from, to)` for each span of rows of a column; runs go down the columns, first one of background. */
  function eachSpan({ size: [height, width], counts }, visit) {
    let at = 0;
    (typeof counts === "string" ? decodeCounts(counts) : counts).forEach((run, index) => {
      const end = Math.min(at + Math.max(run, 0), height * width);
      while (index % 2 && at < end) {
        const from = at % height;
        const to = Math.min(height, from + end - at);
        visit(Math.floor(at / height), from, to);
        at += to - from;
      }
      at = end;
    });
  }

  /** The borders between cells inside and outside as closed paths, so that a dashed line continues around a corner. */
  function outlineOf(inside, width, height) {
    const ends = new Map();
    const vertex = (x, y) => y * (width + 1) + x;
    const edge = (from, to) => ends.set(from, [...(ends.get(from) ?? []), to]);
    for (let y = 0; y < height; y += 1) {
      for (let x = 0; x < width; x += 1) {
        if (!inside(x, y)) continue;
        if (!inside(x, y - 1)) edge(vertex(x, y), vertex(x + 1, y));
        if (!inside(x + 1, y)) edge(vertex(x + 1, y), vertex(x + 1, y + 1));
        if (!inside(x, y + 1)) edge(vertex(x + 1, y + 1), vertex(x, y + 1));
        if (!inside(x - 1, y)) edge(vertex(x, y + 1), vertex(x, y));
      }
    }
    const parts = [];
    for (const [start, left] of ends) {
      while (left.length) {
        let [at, step] = [start, 0];
        parts.push("M");
        do {
          const next = ends.get(at).pop();
          if (next - at !== step) parts.push(`${at % (width + 1)} ${Math.floor(at / (width + 1))} `);
          [at, step] = [next, next - at];
        } while (at !== start);
        parts.push("z");
      }
    }
    return parts.join("");
  }

  return (mask) => {
    const [rows, columns] = mask.size;
    let [left, right, top, bottom] = [Infinity, 0, Infinity, 0];
    eachSpan(mask, (x, from, to) => {
      [left, right] = [Math.min(left, x), Math.max(right, x + 1)];
      [top, bottom] = [Math.min(top, from), Math.max(bottom, to)];
    });
    if (!right) return null;
    const shrink = Math.min(1, LONGEST / Math.max(right - left, bottom - top));
    const [width, height] = [right - left, bottom - top].map((length) => Math.max(1, Math.round(length * shrink)));
    const cells = new Uint8Array(width * height);
    eachSpan(mask, (x, from, to) => {
      const across = Math.floor(((x - left) * width) / (right - left));
      const row = (y) => Math.floor(((y - top) * height) / (bottom - top));
      for (let down = row(from); down <= row(to - 1); down += 1) cells[down * width + across] = 1;
    });
    const inside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && cells[y * width + x] === 1;
    return {
      x_min: left / columns, y_min: top / rows, x_max: right / columns, y_max: bottom / rows,
      width, height, path: outlineOf(inside, width, height),
    };
  };
})();

/**
 * An image with boxes and masks over it.
 *
 * Boxes are `{id, side, label, x_min, y_min, x_max, y_max}`: corners are shares of the ORIGINAL image, x to the right,
 * y down; `side` is "candidate", "reference" or "baseline" (the candidate of a first system) and sets color and line style; boxes of one sentence share one `id`.
 * With a `tint`, from 0 to 7, a box has that color (class `tint-0` and so on) instead of the color of its side.
 * A pixel mask is `{id, side, label, mask}` with `mask` in COCO run-length encoding, over the whole image.
 *
 * `root` receives two events, each with `detail: {id, side}`, or `detail: null` where the pointer left the boxes:
 * "boxhover" (the pointer is over a box) and "boxselect" (a box was clicked).
 */
class BoxViewer {
  /**
   * @param {HTMLElement} root  an empty element that becomes the viewer
   * @param {{src?: string, width?: number, height?: number, alt?: string, message?: string}} image
   *   size of the original in pixels; without `src` the boxes are drawn on an empty area that shows `message`
   */
  constructor(root, image = {}) {
    this.root = root;
    this.boxes = [];
    this.sides = new Set(["baseline", "candidate", "reference"]);
    this.only = null;
    this.strong = new Set();
    root.classList.add("box-viewer");
    this.frame = element("div", { class: "box-viewer-frame" });
    this.layer = element("div", { class: "box-viewer-layer" });
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
    const note = element("p", { class: "box-viewer-message", text: message });
    const error = ({ target }) => {
      note.textContent = "The image cannot be loaded";
      target.replaceWith(note);
    };
    const shown = src ? element("img", { class: "box-viewer-image", alt, loading: "lazy", decoding: "async", src, on: { error } }) : note;
    this.frame.replaceChildren(shown, this.layer);
  }

  /** Replace the boxes and masks. */
  setBoxes(boxes) {
    const area = (box) => (box.x_max - box.x_min) * (box.y_max - box.y_min);
    const drawn = boxes.map((box) => (box.mask ? { ...box, drawing: maskDrawing(box.mask) } : box));
    const placed = drawn.filter((box) => box.drawing !== null).map((box) => ({ ...box, ...box.drawing }));
    // The smallest box comes last, on top, so that a box inside another one can be pointed at.
    this.boxes = placed.sort((a, b) => area(b) - area(a));
    this.#draw();
  }

  /** Draw only the boxes of these sides (an iterable of "baseline", "candidate", "reference"). */
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
    const node = element("div", { class: `box-viewer-box ${box.side}`, "data-id": box.id, "data-side": box.side });
    node.classList.toggle("strong", this.strong.has(box.id));
    if (box.tint !== undefined) node.classList.add(`tint-${box.tint}`);
    const places = { left: box.x_min, top: box.y_min, width: box.x_max - box.x_min, height: box.y_max - box.y_min };
    for (const [name, share] of Object.entries(places)) node.style[name] = `${share * 100}%`;
    if (box.drawing) {
      node.classList.add("mask");
      const { width, height, path } = box.drawing;
      node.append(svgElement("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svgElement("path", { class: "rim", d: path }), svgElement("path", { class: "outline", d: path })));
    }
    if (box.label) node.append(element("span", { class: "box-viewer-label", text: box.label }));
    return node;
  }

  #tell(name, event) {
    const box = event?.target.closest(".box-viewer-box");
    if (event && !box) return;
    const detail = box ? { id: box.dataset.id, side: box.dataset.side } : null;
    this.root.dispatchEvent(new CustomEvent(name, { detail, bubbles: true }));
  }
}
