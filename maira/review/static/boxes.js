/** Editor for the boxes of the selected sentence: move, resize, add and remove by pointer or keyboard. */

import { announce, consume, element, fill } from "./dom.js";
import { sameBoxes } from "./state.js";

const HANDLES = ["nw", "n", "ne", "e", "se", "s", "sw", "w"];
const STEP = 0.01;
const FINE_STEP = 0.002;
// Arrow keys pressed within this time make one change.
const PAUSE_MS = 700;
// A click may move the pointer by this many pixels of the screen, as on the image.
const CLICK_SLACK = 4;
// A box smaller than this came from a click, not from a drag.
const SMALLEST = 0.008;

const within = (value, low, high) => Math.min(high, Math.max(low, value));

/** A box moved by a share of the image, clamped to the image. */
function moved([left, top, right, bottom], x, y) {
  const [across, down] = [within(x, -left, 1 - right), within(y, -top, 1 - bottom)];
  return [left + across, top + down, right + across, bottom + down];
}

/** A box with the sides of a handle moved; opposite sides never cross. */
function resized([left, top, right, bottom], handle, x, y) {
  return [
    handle.includes("w") ? within(left + x, 0, right - SMALLEST) : left,
    handle.includes("n") ? within(top + y, 0, bottom - SMALLEST) : top,
    handle.includes("e") ? within(right + x, left + SMALLEST, 1) : right,
    handle.includes("s") ? within(bottom + y, top + SMALLEST, 1) : bottom,
  ];
}

/**
 * Boxes as they are saved: a box within half a pixel of one of the draft is that one, and the shares of others are rounded to
 * five places, a fifth of a pixel of a large radiograph.
 */
function settled(boxes, drafted, { width, height }) {
  const isSame = (box, other) => box.every((share, side) => Math.abs(share - other[side]) * (side % 2 ? height : width) < 0.5);
  return boxes.map((box) => drafted.find((other) => isSame(box, other)) ?? box.map((share) => Number(share.toFixed(5))));
}

export class BoxEditor {
  drawing = false;
  #sentence = null;
  #boxes = [];
  #timer = null;

  /** Handlers: `change(id, boxes)`, `touched()` (by keys), `back(id)` (to the sentence) and `drawing()` (it starts or stops). */
  constructor(radiograph, handlers) {
    Object.assign(this, { radiograph, handlers });
    this.layer = element("div", { class: "box-editor" });
    radiograph.overlay.append(this.layer);
    this.layer.addEventListener("pointerdown", (event) => this.#press(event));
    this.layer.addEventListener("keydown", (event) => this.#key(event));
    this.layer.addEventListener("focusout", () => this.commit());
    radiograph.root.addEventListener("pointerdown", (event) => this.#draw(event), { capture: true });
    radiograph.root.addEventListener("keydown", (event) => this.#drawKey(event), { capture: true });
  }

  /** Show the boxes of a sentence with handles; null shows none. A change in progress of another sentence is saved. */
  edit(sentence, { number, locked }) {
    if (this.#sentence && this.#sentence.id !== sentence?.id) {
      this.#letGo();
      this.commit();
      this.stopDrawing();
    }
    Object.assign(this, { number, locked });
    this.#sentence = sentence;
    const isChanging = this.isChanging || this.layer.onpointermove !== null;
    this.#show(isChanging && sentence ? this.#boxes : sentence?.boxes ?? []);
  }

  /** Whether arrow keys have moved a box without a change for it yet. */
  get isChanging() {
    return this.#timer !== null;
  }

  /** Let the next drag on the image, or Enter, make a box. */
  startDrawing() {
    if (!this.#sentence || this.locked) return;
    this.#setDrawing(true);
    this.radiograph.root.focus();
    announce("Drag on the image, or press Enter for a box in the middle. Escape stops.");
  }

  stopDrawing() {
    if (this.drawing) this.#setDrawing(false);
  }

  #setDrawing(isOn) {
    this.drawing = isOn;
    this.radiograph.root.classList.toggle("drawing", isOn);
    this.handlers.drawing();
  }

  /** Commit what was changed, if anything was. */
  commit() {
    const wasChanging = this.isChanging;
    clearTimeout(this.#timer);
    this.#timer = null;
    if (wasChanging) this.handlers.touched();
    if (!this.#sentence || sameBoxes(this.#boxes, this.#sentence.boxes)) return;
    const boxes = settled(this.#boxes, [...this.#sentence.draft_boxes, ...this.#sentence.boxes], this.radiograph.size);
    const isSame = sameBoxes(boxes, this.#sentence.boxes);
    // Set first, because both redraw, and removing a box that has the focus calls this again.
    this.#sentence = { ...this.#sentence, boxes };
    this.#boxes = boxes;
    if (isSame) this.#show(boxes);
    else this.handlers.change(this.#sentence.id, boxes);
  }

  #show(boxes) {
    this.#boxes = boxes;
    fill(this.layer, ...boxes.map((box, at) => this.#box(box, at)));
    boxes.forEach(([left, top, right, bottom], at) => {
      const [x, y, width, height] = [left, top, right - left, bottom - top].map((share) => `${share * 100}%`);
      Object.assign(this.layer.children[at].style, { left: x, top: y, width, height });
    });
  }

  #box(box, at) {
    // The button to remove it is next to the box, where the image continues.
    const classes = ["edit-box box-viewer-box strong", this.locked && "locked", box[0] + box[2] > 1 && "at-right"];
    return element("div", { class: classes, tabindex: "0", role: "button", "aria-roledescription": "box",
      "aria-keyshortcuts": "ArrowLeft ArrowRight ArrowUp ArrowDown Delete",
      "aria-label": `Box ${at + 1} of ${this.#boxes.length} of sentence ${this.number}: ${where(box)}` },
    element("span", { class: "box-viewer-label", text: this.number }),
    element("span", { class: "remove-box", title: "Remove this box (Del)", "aria-hidden": "true", text: "×" }),
    ...HANDLES.map((handle) => element("span", { class: `handle ${handle}`, "data-handle": handle, "aria-hidden": "true" })));
  }

  #placeOf(node) {
    return [...this.layer.children].indexOf(node.closest(".edit-box"));
  }

  #press(event) {
    const at = this.#placeOf(event.target);
    if (event.button !== 0 || event.ctrlKey || event.altKey || at < 0 || this.locked) return;
    event.preventDefault();
    if (event.target.classList.contains("remove-box")) {
      this.#remove(at);
      return;
    }
    this.layer.children[at].focus({ preventScroll: true });
    const handle = event.target.dataset.handle;
    const [start, before] = [this.radiograph.shareAt(event), this.#boxes[at]];
    let isDragged = false;
    this.#follow(event, (now) => {
      isDragged ||= Math.hypot(now.clientX - event.clientX, now.clientY - event.clientY) > CLICK_SLACK;
      if (!isDragged) return;
      const [x, y] = this.radiograph.shareAt(now).map((share, axis) => share - start[axis]);
      this.#show(this.#boxes.with(at, handle ? resized(before, handle, x, y) : moved(before, x, y)));
    }, () => this.commit());
  }

  /** Call `move` with each movement of a pressed pointer and `end` when it is released. */
  #follow(event, move, end) {
    this.layer.setPointerCapture(event.pointerId);
    this.layer.onpointermove = move;
    this.layer.onlostpointercapture = () => {
      this.#letGo();
      end();
    };
  }

  #letGo() {
    this.layer.onpointermove = null;
    this.layer.onlostpointercapture = null;
  }

  #draw(event) {
    if (!this.drawing || event.button !== 0) return;
    consume(event);
    const start = this.radiograph.shareAt(event);
    const before = this.#boxes;
    this.#follow(event, (now) => {
      const place = this.radiograph.shareAt(now);
      const [x, y] = [0, 1].map((axis) => [start[axis], place[axis]].sort((a, b) => a - b));
      this.#show([...before, [x[0], y[0], x[1], y[1]]]);
    }, () => {
      const [left, top, right, bottom] = this.#boxes[before.length] ?? [0, 0, 0, 0];
      if (right - left < SMALLEST || bottom - top < SMALLEST) this.#show(before);
      else this.#added();
    });
  }

  #drawKey(event) {
    if (!this.drawing || !["Enter", "Escape"].includes(event.key)) return;
    consume(event);
    if (event.key === "Escape") {
      this.stopDrawing();
      return;
    }
    const [left, top, right, bottom] = this.radiograph.inSight;
    const [x, y] = [(left + right) / 2, (top + bottom) / 2];
    const [width, height] = [(right - left) / 10, (bottom - top) / 10];
    this.#show([...this.#boxes, [x - width, y - height, x + width, y + height]]);
    this.#added();
  }

  #added() {
    this.stopDrawing();
    this.commit();
    this.layer.lastChild.focus({ preventScroll: true });
    announce(`Box added: ${where(this.#boxes.at(-1))}`);
  }

  #key(event) {
    const at = this.#placeOf(event.target);
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const isKnown = direction || ["Delete", "Backspace", "Escape"].includes(event.key);
    if (at < 0 || event.ctrlKey || event.metaKey || !isKnown) return;
    consume(event);
    if (event.key === "Escape") this.handlers.back(this.#sentence.id);
    else if (!this.locked && direction) this.#move(at, direction, event);
    else if (!this.locked) this.#remove(at);
  }

  #move(at, direction, { altKey, shiftKey }) {
    // A box within half a pixel of the draft's would be the draft's.
    const { width, height } = this.radiograph.size;
    const [x, y] = direction.map((sign, axis) => sign * (altKey ? Math.max(FINE_STEP, 0.51 / [width, height][axis]) : STEP));
    const box = shiftKey ? resized(this.#boxes[at], "se", x, y) : moved(this.#boxes[at], x, y);
    this.#show(this.#boxes.with(at, box));
    this.radiograph.revealAll([box]);
    announce(where(box));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.commit(), PAUSE_MS);
    this.handlers.touched();
  }

  #remove(at) {
    this.#boxes = this.#boxes.toSpliced(at, 1);
    const next = this.layer.children[Math.min(at, this.#boxes.length - 1)] ?? this.radiograph.root;
    // Commit first, because moving the focus commits what remains.
    this.commit();
    this.#show(this.#boxes);
    next.focus({ preventScroll: true });
    announce("Box removed");
  }
}

/** Description of a box in whole percent of the image. */
function where(box) {
  const [left, top, right, bottom] = box.map((share) => Math.round(share * 100));
  return `left ${left}, top ${top}, right ${right}, bottom ${bottom} percent`;
}
