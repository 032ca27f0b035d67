/** A radiograph in the values of its original: windows, magnifier, other radiographs in the same place. */

import { element } from "./dom.js";
import { drawPixels, fetchPixels, windowColors } from "./pixels.js";

const MAGNIFICATION = 3;
// Steps of gray that `Radiograph` counts the width and the level of a window in.
const GRAYS = 255;

/**
 * A radiograph that is painted from its pixels. The width and the level of its view are in 255ths of all values, so that a
 * drag changes them as those of an image of 8 bits; `window` is in output values.
 *
 * Further event: "magnify" (the magnifier was switched on or off).
 */
export class OriginalRadiograph extends Radiograph {
  // Number of images shown, to ignore the pixels of earlier ones.
  #shows = 0;
  #isPlanned = false;

  constructor(root) {
    super(root);
    // The pixels are painted in their window.
    root.querySelector(".radiograph-filter").remove();
    this.canvas = element("canvas", { class: "radiograph-canvas", "aria-hidden": "true" });
    this.lens = element("canvas", { class: "radiograph-lens", "aria-hidden": "true", hidden: true });
    this.caption = element("p", { class: "radiograph-caption" });
    root.prepend(this.canvas);
    root.append(this.lens, this.caption);
    this.pixels = null;
    this.isMagnifying = false;
    root.addEventListener("pointermove", (event) => this.#magnify(event));
    root.addEventListener("pointerleave", () => this.magnify(false));
    this.addEventListener("view", () => {
      this.#sharpen();
      this.#plan();
    });
  }

  /** Show an image with the last view of this name, or fitted in its first window. */
  show(name, image, alt) {
    this.pixels = null;
    this.#shows += 1;
    this.caption.textContent = "";
    super.show(name, null, image ? "Loading …" : alt);
    this.source = image;
    this.root.setAttribute("aria-label", alt);
    this.root.setAttribute("aria-busy", String(image !== null));
    if (image) this.#load();
  }

  /** Pixels of the image on the longest side that the screen can show, enlarged by a factor. */
  #needed(factor = 1) {
    const { clientWidth, clientHeight } = this.root;
    const { width, height } = this.pixels ? this.extent : { width: clientWidth, height: clientHeight };
    return Math.max(width, height) * window.devicePixelRatio * factor;
  }

  /** Fetch the pixels for the present zoom; the first ones end the loading state. */
  async #load(factor = 1) {
    const shows = this.#shows;
    try {
      const pixels = await fetchPixels(this.source.url, this.#needed(factor));
      if (shows !== this.#shows || (this.pixels && pixels.step >= this.pixels.step)) return;
      const isFirst = this.pixels === null;
      this.pixels = pixels;
      if (isFirst) this.#begin(pixels.info);
      else this.#plan();
    } catch (error) {
      if (shows !== this.#shows || this.pixels) return;
      this.root.setAttribute("aria-busy", "false");
      this.#resize(this.size, `The image cannot be loaded: ${error.message}`);
    }
  }

  #begin(info) {
    this.root.setAttribute("aria-busy", "false");
    this.caption.textContent = `${info.columns} × ${info.rows}, ${info.bits} bit${this.source.is_original ? "" : " · the model’s input"}`;
    this.#resize({ width: info.width, height: info.height });
    if (this.view.hasWindow) this.setGray({});
    else this.setWindow(info.windows[0]);
  }

  #resize(size, message = "") {
    this.size = size;
    this.viewer.setImage({ ...size, message });
    this.viewer.frame.append(this.overlay);
    this.moveBy(0, 0);
  }

  /** All values of the image: the lowest one and their range. */
  get #values() {
    const { center, width } = this.pixels.info.windows.at(-2);
    return { low: center - width / 2, unit: width / GRAYS };
  }

  /** Center and width of the window, in output values. */
  get window() {
    const { low, unit } = this.#values;
    return { center: low + this.view.level * unit, width: this.view.width * unit };
  }

  /** Set center or width of the window, in output values. */
  setWindow(given) {
    const { low, unit } = this.#values;
    const { center, width } = { ...this.window, ...given };
    this.setGray({ level: (center - low) / unit, width: width / unit });
  }

  setGray(given) {
    if (!this.pixels) return;
    const view = Object.assign(this.view, given, { hasWindow: true });
    view.width = Math.max(view.width, 1 / 100);
    this.colors = windowColors(this.pixels.info, { ...this.window, isInverted: view.inverted });
    this.#plan();
    this.dispatchEvent(new Event("gray"));
  }

  reset() {
    Object.assign(this.view, { zoom: 1, x: 0, y: 0, inverted: false });
    this.moveBy(0, 0);
    if (this.pixels) this.setWindow(this.pixels.info.windows[0]);
  }

  /** Bring boxes (in shares) into view, as a whole: zoom out if they are larger than the view. */
  revealAll(boxes) {
    const [left, top] = [0, 1].map((side) => Math.min(...boxes.map((box) => box[side])));
    const [right, bottom] = [2, 3].map((side) => Math.max(...boxes.map((box) => box[side])));
    const { clientWidth, clientHeight } = this.root;
    const { width, height } = this.extent;
    const excess = Math.max(((right - left) * width) / clientWidth, ((bottom - top) * height) / clientHeight);
    if (excess > 1) this.zoomBy(1 / excess);
    const toMiddle = (low, high, length, moved, seen) => {
      const [start, end] = [low, high].map((share) => (share - 0.5) * length + moved);
      const isSeen = start >= -seen / 2 - 1 && end <= seen / 2 + 1;
      return isSeen ? moved : -((low + high) / 2 - 0.5) * length;
    };
    const now = this.extent;
    this.view.x = toMiddle(left, right, now.width, this.view.x, clientWidth);
    this.view.y = toMiddle(top, bottom, now.height, this.view.y, clientHeight);
    this.moveBy(0, 0);
  }

  /** Zoom and place, independent of the size of the window. */
  get spot() {
    const { width, height } = this.extent;
    return { zoom: this.view.zoom, x: this.view.x / width, y: this.view.y / height };
  }

  /** Take the zoom and place of another radiograph. */
  follow({ zoom, x, y }) {
    this.view.zoom = zoom;
    const { width, height } = this.extent;
    Object.assign(this.view, { x: x * width, y: y * height });
    this.moveBy(0, 0);
  }

  /** Where the image begins in its window, in pixels. */
  get #corner() {
    const { width, height } = this.extent;
    return { left: (this.root.clientWidth - width) / 2 + this.view.x, top: (this.root.clientHeight - height) / 2 + this.view.y };
  }

  /** Fetch more pixels if the present ones are enlarged. */
  #sharpen(factor = 1) {
    if (!this.pixels || this.pixels.step === 1) return;
    if (this.#needed(factor) > 1.1 * Math.max(this.pixels.columns, this.pixels.rows)) this.#load(factor);
  }

  /** Paint once in the next frame, however much changes before. */
  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => {
      this.#isPlanned = false;
      this.#paint(this.canvas, this.root.clientWidth, this.root.clientHeight, { ...this.#corner, ...this.extent });
      if (this.isMagnifying) this.#magnify(this.pointer);
    });
  }

  /** Paint the image at a place, in pixels of the page. */
  #paint(canvas, width, height, place) {
    const ratio = window.devicePixelRatio;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    if (!this.pixels || !this.colors) return;
    const [left, top, across, down] = [place.left, place.top, place.width, place.height].map((length) => length * ratio);
    drawPixels(canvas, this.pixels, this.colors, { left, top, width: across, height: down });
  }

  /** Switch the magnifier on, which follows the pointer, or off. */
  magnify(isOn = !this.isMagnifying) {
    if (isOn === this.isMagnifying) return;
    this.isMagnifying = isOn;
    this.lens.hidden = !isOn;
    if (isOn) this.#sharpen(MAGNIFICATION);
    const { left, top, width, height } = this.root.getBoundingClientRect();
    if (isOn) this.#magnify(this.pointer ?? { clientX: left + width / 2, clientY: top + height / 2 });
    this.dispatchEvent(new Event("magnify"));
  }

  #magnify({ clientX, clientY }) {
    this.pointer = { clientX, clientY };
    if (!this.isMagnifying) return;
    const around = this.root.getBoundingClientRect();
    const [x, y] = [clientX - around.left, clientY - around.top];
    const [width, height] = [this.lens.clientWidth, this.lens.clientHeight];
    Object.assign(this.lens.style, { left: `${x - width / 2}px`, top: `${y - height / 2}px` });
    const { left, top } = this.#corner;
    const extent = this.extent;
    this.#paint(this.lens, width, height, {
      left: width / 2 - (x - left) * MAGNIFICATION, top: height / 2 - (y - top) * MAGNIFICATION,
      width: extent.width * MAGNIFICATION, height: extent.height * MAGNIFICATION,
    });
  }
}
