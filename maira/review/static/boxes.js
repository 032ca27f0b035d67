/** Editor for the boxes of the selected sentence: move, resize, add and remove by pointer or keyboard. */

import { announce, element } from "./dom.js";
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
  #sentence = null;
  #boxes = [];
  #timer = null;
  // Stops tracking a pressed pointer.
  #release = null;

  constructor(radiograph, change, touched, back) {
    Object.assign(this, { radiograph, change, touched, back });
    this.drawing = false;
    this.layer = element("div", { class: "box-editor" });
    radiograph.overlay.append(this.layer);
    this.layer.addEventListener("pointerdown", (event) => this.#press(event));
    this.layer.addEventListener("keydown", (event) => this.#key(event));
    this.layer.addEventListener("focusout", () => this.commit());
    radiograph.root.addEventListener("pointerdown", (event) => this.#draw(event), { capture: true });
    radiograph.root.addEventListener("keydown", (event) => this.#drawKey(event), { capture: true });
  }

  /** Show the boxes of a sentence with handles; null shows none. A change in progress of another sentence is saved. */
  edit(sentence, { number = 0, locked = false } = {}) {
    if (this.#sentence && this.#sentence.id !== sentence?.id) {
      this.#release?.();
      this.commit();
      this.stopDrawing();
    }
    const changing = this.#timer !== null || this.#release !== null;
    this.#sentence = sentence;
    this.number = number;
    this.locked = locked;
    if (!sentence) this.#boxes = [];
    else if (!changing) this.#boxes = sentence.boxes;
    this.#render();
  }

  /** Whether arrow keys have moved a box without a change for it yet. */
  get isChanging() {
    return this.#timer !== null;
  }

  /** Let the next drag on the image, or Enter, make a box. */
  startDrawing() {
    if (!this.#sentence || this.locked) return;
    this.drawing = true;
    this.radiograph.root.classList.add("drawing");
    this.radiograph.root.focus();
    announce("Drag on the image, or press Enter for a box in the middle. Escape stops.");
    this.radiograph.root.dispatchEvent(new Event("drawingchange"));
  }

  stopDrawing() {
    if (!this.drawing) return;
    this.drawing = false;
    this.radiograph.root.classList.remove("drawing");
    this.radiograph.root.dispatchEvent(new Event("drawingchange"));
  }

  /** Commit what was changed, if anything was. */
  commit() {
    const wasChanging = this.isChanging;
    clearTimeout(this.#timer);
    this.#timer = null;
    if (wasChanging) this.touched();
    if (!this.#sentence || sameBoxes(this.#boxes, this.#sentence.boxes)) return;
    this.#boxes = settled(this.#boxes, [...this.#sentence.draft_boxes, ...this.#sentence.boxes], this.radiograph.size);
    if (sameBoxes(this.#boxes, this.#sentence.boxes)) {
      this.#render();
      return;
    }
    // Set first, because the change redraws the page, which calls this again.
    this.#sentence = { ...this.#sentence, boxes: this.#boxes };
    this.change(this.#sentence.id, this.#boxes);
  }

  #render() {
    while (this.layer.children.length > this.#boxes.length) this.layer.lastChild.remove();
    while (this.layer.children.length < this.#boxes.length) this.layer.append(this.#newBox());
    this.#boxes.forEach((box, at) => {
      const node = this.layer.children[at];
      const percent = (share) => `${share * 100}%`;
      Object.assign(node.style, {
        left: percent(box[0]), top: percent(box[1]), width: percent(box[2] - box[0]), height: percent(box[3] - box[1]),
      });
      node.classList.toggle("locked", this.locked);
      // The button is next to the box, where the image continues.
      node.classList.toggle("at-right", (box[0] + box[2]) / 2 > 0.5);
      node.querySelector(".box-viewer-label").textContent = String(this.number);
      node.setAttribute("aria-label", `Box ${at + 1} of ${this.#boxes.length} of sentence ${this.number}: ${where(box)}`);
    });
  }

  #newBox() {
    return element("div", { class: "edit-box", tabindex: "0", role: "button", "aria-roledescription": "box",
      "aria-keyshortcuts": "ArrowLeft ArrowRight ArrowUp ArrowDown Delete" },
    element("span", { class: "box-viewer-label" }),
    element("span", { class: "remove-box", title: "Remove this box (Del)", "aria-hidden": "true", text: "×" }),
    ...HANDLES.map((handle) => element("span", { class: `handle ${handle}`, "data-handle": handle, "aria-hidden": "true" })));
  }

  #placeOf(node) {
    return [...this.layer.children].indexOf(node.closest(".edit-box"));
  }

  #set(at, box) {
    this.#boxes = this.#boxes.map((other, place) => (place === at ? box : other));
    this.#render();
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
      const place = this.radiograph.shareAt(now);
      const [x, y] = [place[0] - start[0], place[1] - start[1]];
      this.#set(at, handle ? resized(before, handle, x, y) : moved(before, x, y));
    }, () => this.commit());
  }

  /** Call `move` with each movement of a pressed pointer and `end` when it is released. */
  #follow(event, move, end) {
    this.#release?.();
    const held = new AbortController();
    this.#release = () => {
      held.abort();
      this.#release = null;
    };
    this.layer.setPointerCapture(event.pointerId);
    this.layer.addEventListener("pointermove", move, held);
    for (const name of ["pointerup", "pointercancel"]) {
      this.layer.addEventListener(name, () => {
        this.#release();
        end();
      }, held);
    }
  }

  #draw(event) {
    if (!this.drawing || event.button !== 0) return;
    event.preventDefault();
    event.stopPropagation();
    const start = this.radiograph.shareAt(event);
    const at = this.#boxes.length;
    this.#follow(event, (now) => {
      const place = this.radiograph.shareAt(now);
      const [x, y] = [0, 1].map((axis) => [start[axis], place[axis]].sort((a, b) => a - b));
      const box = [x[0], y[0], x[1], y[1]];
      this.#boxes = [...this.#boxes.slice(0, at), box];
      this.#render();
    }, () => this.#drawn(at));
  }

  #drawn(at) {
    const box = this.#boxes[at];
    if (!box || box[2] - box[0] < SMALLEST || box[3] - box[1] < SMALLEST) {
      this.#boxes = this.#boxes.slice(0, at);
      this.#render();
      return;
    }
    this.#added(at);
  }

  #drawKey(event) {
    if (!this.drawing || !["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") {
      this.stopDrawing();
      return;
    }
    const [left, top, right, bottom] = this.radiograph.inSight;
    const [x, y] = [(left + right) / 2, (top + bottom) / 2];
    const [width, height] = [(right - left) / 10, (bottom - top) / 10];
    this.#boxes = [...this.#boxes, [x - width, y - height, x + width, y + height]];
    this.#render();
    this.#added(this.#boxes.length - 1);
  }

  #added(at) {
    this.stopDrawing();
    this.commit();
    this.layer.children[at].focus({ preventScroll: true });
    announce(`Box added: ${where(this.#boxes[at])}`);
  }

  #key(event) {
    const at = this.#placeOf(event.target);
    if (at < 0 || event.ctrlKey || event.metaKey) return;
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!direction && !["Delete", "Backspace", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === "Escape") {
      this.back(this.#sentence.id);
      return;
    }
    if (this.locked) return;
    if (!direction) {
      this.#remove(at);
      return;
    }
    // A box within half a pixel of the draft's would be the draft's.
    const { width, height } = this.radiograph.size;
    const [x, y] = direction.map((sign, axis) => sign * (event.altKey ? Math.max(FINE_STEP, 0.51 / [width, height][axis]) : STEP));
    this.#set(at, event.shiftKey ? resized(this.#boxes[at], "se", x, y) : moved(this.#boxes[at], x, y));
    this.radiograph.revealAll([this.#boxes[at]]);
    announce(where(this.#boxes[at]));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.commit(), PAUSE_MS);
    this.touched();
  }

  #remove(at) {
    this.#boxes = this.#boxes.filter((_, place) => place !== at);
    const next = this.layer.children[Math.min(at, this.#boxes.length - 1)] ?? this.radiograph.root;
    // Commit first, because moving the focus commits what remains.
    this.commit();
    this.#render();
    next.focus({ preventScroll: true });
    announce("Box removed");
  }
}

/** Description of a box in whole percent of the image. */
function where([left, top, right, bottom]) {
  const percent = (share) => Math.round(share * 100);
  return `left ${percent(left)}, top ${percent(top)}, right ${percent(right)}, bottom ${percent(bottom)} percent`;
}
