"use strict";

/**
 * The enlarged radiograph: zoom, pan, window and level, inversion. The viewer inside draws boxes.
 *
 * Events: "view" (zoom or place changed) and "gray" (window, level or inversion changed).
 */
const Radiograph = (() => {
  const MOST_ZOOM = 16;
  const ZOOM_STEP = 1.25;
  const PAN_STEP = 60;
  // A click may move the pointer by this many pixels.
  const CLICK_SLACK = 4;
  const GRAYS = 255;
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
  const FULL_WINDOW = { width: GRAYS, level: GRAYS / 2, inverted: false };

  return class extends EventTarget {
    #settings = new Map();
    #channels = [];

    /** @param {HTMLElement} root  becomes the viewport of the radiograph */
    constructor(root) {
      super();
      this.root = root;
      root.classList.add("radiograph");
      root.append(this.#filter());
      const holder = element("div");
      root.append(holder);
      this.viewer = new BoxViewer(holder, { message: "" });
      this.overlay = element("div", { class: "radiograph-overlay" });
      this.size = { width: 1, height: 1 };
      this.#settings.set(undefined, { zoom: 1, x: 0, y: 0, ...FULL_WINDOW });
      new ResizeObserver(() => this.#place()).observe(root);
      root.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
      root.addEventListener("pointerdown", (event) => this.#press(event));
      root.addEventListener("contextmenu", (event) => event.preventDefault());
      root.addEventListener("keydown", (event) => this.#key(event));
    }

    /**
     * Show an image with the last view of this name, or fitted.
     *
     * @param {string} name  name under which zoom and window are stored
     * @param {{src: string, full?: string, width: number, height: number} | null} image  size of the original in pixels;
     *   `full` is the address of the image in full resolution
     * @param {string} alt
     */
    show(name, image, alt) {
      this.name = name;
      this.image = image;
      this.size = image ?? { width: 4, height: 3 };
      if (!this.#settings.has(name)) this.#settings.set(name, { zoom: 1, x: 0, y: 0, ...FULL_WINDOW });
      this.viewer.setImage(image ? { ...image, alt } : { ...this.size, message: alt });
      this.viewer.frame.append(this.overlay);
      this.root.setAttribute("aria-label", alt);
      this.detailed = false;
      this.#place();
      this.#gray();
    }

    /** Clear the views of the images of the last study. */
    forget() {
      this.#settings.clear();
    }

    get view() {
      return this.#settings.get(this.name);
    }

    /** Size of the radiograph on the screen at the current zoom, in pixels. */
    get extent() {
      const { clientWidth, clientHeight } = this.root;
      const fit = Math.min(clientWidth / this.size.width, clientHeight / this.size.height);
      return { width: this.size.width * fit * this.view.zoom, height: this.size.height * fit * this.view.zoom };
    }

    /** A position on the screen in shares of the image, clamped to the image. */
    shareAt({ clientX, clientY }) {
      const around = this.viewer.frame.getBoundingClientRect();
      return [clamp((clientX - around.left) / around.width, 0, 1), clamp((clientY - around.top) / around.height, 0, 1)];
    }

    /** The visible part of the image, in shares: x_min, y_min, x_max, y_max. */
    get inSight() {
      const seen = this.root.getBoundingClientRect();
      const corner = (x, y) => this.shareAt({ clientX: x, clientY: y });
      return [...corner(seen.left, seen.top), ...corner(seen.right, seen.bottom)];
    }

    /** Zoom around a point (pixels from the center of the window). */
    zoomBy(factor, x = 0, y = 0) {
      const view = this.view;
      const zoom = clamp(view.zoom * factor, 1, MOST_ZOOM);
      const grown = zoom / view.zoom;
      Object.assign(view, { zoom, x: x - (x - view.x) * grown, y: y - (y - view.y) * grown });
      this.#place();
    }

    zoomIn() {
      this.zoomBy(ZOOM_STEP);
    }

    zoomOut() {
      this.zoomBy(1 / ZOOM_STEP);
    }

    moveBy(x, y) {
      this.view.x += x;
      this.view.y += y;
      this.#place();
    }

    invert() {
      this.setGray({ inverted: !this.view.inverted });
    }

    /** Connect the tools of the page: zoom, window, level, inversion and reset. */
    bindTools() {
      const [out, zoom, into, width, level, invert, reset] =
        ["zoom-out", "zoom", "zoom-in", "window-width", "window-level", "invert", "reset-radiograph"].map((id) => document.getElementById(id));
      out.addEventListener("click", () => this.zoomOut());
      into.addEventListener("click", () => this.zoomIn());
      reset.addEventListener("click", () => this.reset());
      invert.addEventListener("click", () => this.invert());
      width.addEventListener("input", () => this.setGray({ width: Number(width.value) }));
      level.addEventListener("input", () => this.setGray({ level: Number(level.value) }));
      this.addEventListener("view", () => {
        zoom.textContent = `${Math.round(this.view.zoom * 100)} %`;
      });
      this.addEventListener("gray", () => {
        width.value = String(this.view.width);
        level.value = String(this.view.level);
        invert.setAttribute("aria-pressed", String(this.view.inverted));
      });
    }

    /** Reset: fitted, with all gray levels, not inverted. */
    reset() {
      Object.assign(this.view, { zoom: 1, x: 0, y: 0, ...FULL_WINDOW });
      this.#place();
      this.#gray();
    }

    /** Set some of `width`, `level` (of 255 grays) and `inverted`. */
    setGray(given) {
      const { width, level, inverted } = { ...this.view, ...given };
      Object.assign(this.view, { width: clamp(width, 1, 2 * GRAYS), level: clamp(level, 0, GRAYS), inverted });
      this.#gray();
    }

    /** Scroll a box (in shares) into view. */
    reveal([left, top, right, bottom]) {
      const { width, height } = this.extent;
      const toMiddle = (low, high, length, moved, seen) => {
        const middle = ((low + high) / 2 - 0.5) * length;
        return Math.abs(middle + moved) > seen / 2 ? -middle : moved;
      };
      this.view.x = toMiddle(left, right, width, this.view.x, this.root.clientWidth);
      this.view.y = toMiddle(top, bottom, height, this.view.y, this.root.clientHeight);
      this.#place();
    }

    #place() {
      if (!this.root.clientWidth) return;
      const { width, height } = this.extent;
      const view = this.view;
      // The radiograph cannot be moved out of its window.
      const most = (length, seen) => Math.max(0, (length - seen) / 2);
      const [across, down] = [most(width, this.root.clientWidth), most(height, this.root.clientHeight)];
      view.x = clamp(view.x, -across, across);
      view.y = clamp(view.y, -down, down);
      Object.assign(this.viewer.frame.style, {
        width: `${width}px`, height: `${height}px`,
        left: `${(this.root.clientWidth - width) / 2 + view.x}px`, top: `${(this.root.clientHeight - height) / 2 + view.y}px`,
      });
      this.#sharpen(width);
      this.dispatchEvent(new Event("view"));
    }

    /** Load the radiograph in full resolution once the initial one is enlarged. */
    async #sharpen(width) {
      const shown = this.viewer.frame.querySelector("img");
      if (this.detailed || !this.image?.full || !shown?.complete || shown.naturalWidth >= this.size.width) return;
      if (width * window.devicePixelRatio <= shown.naturalWidth * 1.1) return;
      this.detailed = true;
      const whole = new Image();
      whole.src = this.image.full;
      try {
        await whole.decode();
      } catch {
        if (shown.isConnected) this.detailed = false;
        return;
      }
      if (shown.isConnected) shown.src = whole.src;
    }

    #gray() {
      const { width, level, inverted } = this.view;
      const slope = GRAYS / width;
      const intercept = 0.5 - slope * (level / GRAYS);
      for (const channel of this.#channels) {
        channel.setAttribute("slope", String(inverted ? -slope : slope));
        channel.setAttribute("intercept", String(inverted ? 1 - intercept : intercept));
      }
      // A filter slows down every movement, so the unchanged radiograph has none.
      this.root.classList.toggle("windowed", inverted || width !== GRAYS || level !== GRAYS / 2);
      this.dispatchEvent(new Event("gray"));
    }

    /** Filter that maps gray levels; viewer.css refers to it by its id. */
    #filter() {
      this.#channels = ["R", "G", "B"].map((name) => svgElement(`feFunc${name}`, { type: "linear", slope: "1", intercept: "0" }));
      const filter = svgElement("filter", { id: "window-filter", x: "0", y: "0", width: "100%", height: "100%",
        "color-interpolation-filters": "sRGB" }, svgElement("feComponentTransfer", {}, ...this.#channels));
      return svgElement("svg", { class: "radiograph-filter", "aria-hidden": "true", focusable: "false" }, filter);
    }

    #wheel(event) {
      event.preventDefault();
      const around = this.root.getBoundingClientRect();
      const [x, y] = [event.clientX - around.left - around.width / 2, event.clientY - around.top - around.height / 2];
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
      this.zoomBy(Math.exp(-event.deltaY * lines * 0.0015), x, y);
    }

    #press(event) {
      const toGray = event.button === 2 || (event.button === 0 && (event.ctrlKey || event.altKey));
      if (event.defaultPrevented || (event.button !== 0 && !toGray)) return;
      const start = { x: event.clientX, y: event.clientY, view: { ...this.view } };
      let moving = false;
      const move = (now) => {
        const [x, y] = [now.clientX - start.x, now.clientY - start.y];
        // Capture the pointer only now, because a captured pointer would hide the click from the box below it.
        if (!moving && Math.hypot(x, y) > CLICK_SLACK) this.root.setPointerCapture(event.pointerId);
        moving ||= Math.hypot(x, y) > CLICK_SLACK;
        if (!moving) return;
        if (toGray) this.setGray({ width: start.view.width + x, level: start.view.level + y / 2 });
        else this.moveBy(start.view.x + x - this.view.x, start.view.y + y - this.view.y);
      };
      const held = new AbortController();
      const end = () => {
        held.abort();
        this.root.classList.remove("held");
      };
      this.root.classList.add("held");
      this.root.addEventListener("pointermove", move, held);
      for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, end, held);
    }

    #key(event) {
      if (event.target !== this.root || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
      const move = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      this.moveBy(move[0] * PAN_STEP, move[1] * PAN_STEP);
    }
  };
})();
