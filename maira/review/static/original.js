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
  pixels = null;
  isMagnifying = false;
  // Number of images shown, to ignore the pixels of earlier ones.
  #shows = 0;
  #isPlanned = false;

  constructor(root) {
    super(root);
    // The pixels are painted in their window.
    root.querySelector(".radiograph-filter").remove();
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.lens = element("canvas", { class: "radiograph-lens", "aria-hidden": "true", hidden: true });
    this.caption = element("p", { class: "radiograph-caption" });
    root.prepend(this.canvas);
    root.append(this.lens, this.caption);
    root.addEventListener("pointermove", ({ clientX, clientY }) => {
      this.pointer = { clientX, clientY };
      if (this.isMagnifying) this.#plan();
    });
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
  #needed(factor) {
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

  /** Fetch more pixels if the present ones are enlarged. */
  #sharpen(factor = 1) {
    if (!this.pixels || this.pixels.step === 1) return;
    if (this.#needed(factor) > 1.1 * Math.max(this.pixels.columns, this.pixels.rows)) this.#load(factor);
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

  /** Take the zoom and place of another radiograph, whatever the size of its window. */
  follow({ view: { zoom, x, y }, extent }) {
    this.view.zoom = zoom;
    const { width, height } = this.extent;
    Object.assign(this.view, { x: (x / extent.width) * width, y: (y / extent.height) * height });
    this.moveBy(0, 0);
  }

  /** Switch the magnifier on, which follows the pointer, or off. */
  magnify(isOn = !this.isMagnifying) {
    if (isOn === this.isMagnifying) return;
    this.isMagnifying = isOn;
    this.lens.hidden = !isOn;
    if (isOn) this.#sharpen(MAGNIFICATION);
    this.#plan();
    this.dispatchEvent(new Event("magnify"));
  }

  /** Paint once in the next frame, however much changes before. */
  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => {
      this.#isPlanned = false;
      this.#paint();
    });
  }

  #paint() {
    const { clientWidth, clientHeight } = this.root;
    const { width, height } = this.extent;
    const [left, top] = [(clientWidth - width) / 2 + this.view.x, (clientHeight - height) / 2 + this.view.y];
    this.#paintOn(this.canvas, [left, top, width, height]);
    if (!this.isMagnifying) return;
    const around = this.root.getBoundingClientRect();
    const [x, y] = this.pointer ? [this.pointer.clientX - around.left, this.pointer.clientY - around.top]
      : [clientWidth / 2, clientHeight / 2];
    const [middle, center] = [this.lens.clientWidth / 2, this.lens.clientHeight / 2];
    Object.assign(this.lens.style, { left: `${x - middle}px`, top: `${y - center}px` });
    this.#paintOn(this.lens, [middle - (x - left) * MAGNIFICATION, center - (y - top) * MAGNIFICATION,
      width * MAGNIFICATION, height * MAGNIFICATION]);
  }

  /** Paint the image at a place (left, top, width, height) in pixels of the page. */
  #paintOn(canvas, place) {
    const ratio = window.devicePixelRatio;
    Object.assign(canvas, { width: Math.round(canvas.clientWidth * ratio), height: Math.round(canvas.clientHeight * ratio) });
    if (this.pixels && this.colors) drawPixels(canvas, this.pixels, this.colors, place.map((length) => length * ratio));
  }
}
