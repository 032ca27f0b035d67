/** Input of the model: the images, one of them enlarged, and the texts. */

import { BoxEditor } from "./boxes.js";
import { byId, element } from "./dom.js";
import { OriginalRadiograph } from "./original.js";
import { fetchPixels } from "./pixels.js";
import { setSetting, setting } from "./storage.js";

const IMAGES = { frontal: "Frontal", lateral: "Lateral", prior_frontal: "Prior frontal" };
const TEXTS = { indication: "Indication", technique: "Technique", comparison: "Comparison" };

export class Inputs {
  #drawn = null;

  constructor({ select, focus, changeBoxes, touched }) {
    this.radiograph = new OriginalRadiograph(byId("radiograph"));
    this.companions = [...document.querySelectorAll(".companion")].map((root) => new OriginalRadiograph(root));
    // The radiograph that the tools change.
    this.active = this.radiograph;
    this.isSideBySide = setting("side-by-side") ?? false;
    this.editor = new BoxEditor(this.radiograph, changeBoxes, touched, focus);
    this.kind = "frontal";
    this.radiograph.root.addEventListener("boxselect", ({ detail }) => select(detail.id));
    this.radiograph.root.addEventListener("drawingchange", () => this.#note());
    this.#bindTools();
  }

  /** Show the images and texts of a study, the frontal image large. */
  open(study) {
    this.study = study;
    for (const radiograph of this.#all) radiograph.forget();
    this.#write();
    this.enlarge("frontal");
  }

  /** Enlarge another image of the study. */
  enlarge(kind) {
    this.kind = kind;
    const others = Object.keys(IMAGES).filter((other) => other !== kind && this.study.images[other]);
    const beside = this.isSideBySide ? others : [];
    this.companions.forEach(({ root }, at) => {
      root.hidden = at >= beside.length;
    });
    byId("panes").classList.toggle("side-by-side", beside.length > 0);
    // The enlarged one last: the others follow it.
    this.active = this.radiograph;
    beside.forEach((other, at) => this.#show(this.companions[at], other));
    this.#show(this.radiograph, kind);
    byId("thumbs").replaceChildren(...(this.isSideBySide ? [] : others).map((other) => this.#thumb(other)));
    byId("side-by-side").hidden = !others.length;
    this.#activate(this.radiograph);
    this.#drawn = null;
    this.#note();
  }

  get #all() {
    return [this.radiograph, ...this.companions];
  }

  #show(radiograph, kind) {
    const image = this.study.images[kind];
    const alt = `${IMAGES[kind]} radiograph of study ${this.study.number}`;
    radiograph.show(kind, image?.url ? image : null, image?.url ? alt : image?.message ?? "No image");
    radiograph.root.dataset.kind = IMAGES[kind];
  }

  /** Show the other images next to the enlarged one, in its zoom and place, or as thumbnails. */
  toggleSideBySide() {
    this.isSideBySide = !this.isSideBySide;
    setSetting("side-by-side", this.isSideBySide);
    byId("side-by-side").setAttribute("aria-pressed", String(this.isSideBySide));
    this.enlarge(this.kind);
  }

  /** Fetch the images of another study ahead; resolves when they are here. */
  async prefetch(study) {
    const { clientWidth, clientHeight } = this.radiograph.root;
    const kinds = this.isSideBySide ? Object.keys(IMAGES) : ["frontal"];
    const longest = Math.max(clientWidth, clientHeight) * window.devicePixelRatio;
    const urls = kinds.map((kind) => study.images[kind]?.url).filter(Boolean);
    await Promise.allSettled(urls.map((url) => fetchPixels(url, longest)));
  }

  /** Enlarge the next image. */
  turn() {
    const there = Object.keys(IMAGES).filter((kind) => this.study.images[kind]);
    if (!there.length) return;
    this.enlarge(there[(there.indexOf(this.kind) + 1) % there.length]);
  }

  /** Draw boxes, with handles for those of the selected sentence. */
  draw(sentences, reference, { selected, counterparts, locked, mode }) {
    const strong = [selected, ...counterparts].filter((id) => id !== null);
    const at = sentences.findIndex(({ id }) => id === selected);
    const onFilm = this.kind === "frontal";
    const edited = onFilm && mode !== "none" && at >= 0 ? sentences[at] : null;
    this.editor.edit(edited, { number: at + 1, locked: locked || Boolean(edited?.deleted) });
    const boxes = !onFilm || mode === "none" ? [] : [
      ...sentences.flatMap((sentence, place) => (sentence === edited || sentence.deleted ? []
        : drawn(sentence.id, "candidate", String(place + 1), sentence.boxes))),
      ...reference.flatMap((sentence, place) => drawn(`reference-${place}`, "reference", sentence.label ?? `R${place + 1}`, sentence.boxes ?? [])),
    ].filter((box) => mode === "all" || strong.includes(box.id));
    // Redrawing under the pointer would lose a click on a box.
    const key = JSON.stringify([boxes, strong]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.radiograph.viewer.setBoxes(boxes);
    this.radiograph.viewer.focus(null, strong);
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
    const { thumbnail: url, message } = this.study.images[kind];
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

  #bindTools() {
    const [width, center, preset] = ["window-width", "window-level", "window-preset"].map(byId);
    byId("zoom-in").addEventListener("click", () => this.active.zoomIn());
    byId("zoom-out").addEventListener("click", () => this.active.zoomOut());
    byId("reset-radiograph").addEventListener("click", () => this.active.reset());
    byId("invert").addEventListener("click", () => this.active.invert());
    byId("magnify").addEventListener("click", () => this.active.magnify());
    byId("side-by-side").addEventListener("click", () => {
      this.toggleSideBySide();
      this.radiograph.root.dispatchEvent(new Event("enlarged"));
    });
    byId("side-by-side").setAttribute("aria-pressed", String(this.isSideBySide));
    for (const [input, name] of [[width, "width"], [center, "center"]]) {
      input.addEventListener("input", () => {
        if (Number.isFinite(input.valueAsNumber)) this.active.setWindow({ [name]: input.valueAsNumber });
      });
      input.addEventListener("keydown", (event) => {
        if (event.key !== "Escape" && event.key !== "Enter") return;
        event.preventDefault();
        event.stopPropagation();
        this.active.root.focus();
      });
    }
    preset.addEventListener("change", () => {
      this.active.setWindow(this.active.pixels.info.windows[Number(preset.value)]);
      this.active.root.focus();
    });
    for (const radiograph of this.#all) {
      for (const name of ["pointerdown", "wheel", "focusin"]) {
        radiograph.root.addEventListener(name, () => this.#activate(radiograph), { capture: true });
      }
      radiograph.addEventListener("view", () => {
        if (radiograph !== this.active) return;
        this.#writeTools();
        if (this.isSideBySide) this.#link(radiograph);
      });
      for (const name of ["gray", "magnify"]) {
        radiograph.addEventListener(name, () => {
          if (radiograph === this.active) this.#writeTools();
        });
      }
    }
  }

  /** Take the other radiographs to the zoom and place of one. */
  #link(radiograph) {
    for (const other of this.#all) {
      if (other !== radiograph && !other.root.hidden) other.follow(radiograph.spot);
    }
  }

  #activate(radiograph) {
    this.active = radiograph;
    for (const each of this.#all) each.root.classList.toggle("active", each === radiograph && this.isSideBySide);
    this.#writeTools();
  }

  /** Show the view of the active radiograph in the tools. */
  #writeTools() {
    const { view, pixels } = this.active;
    byId("zoom").textContent = `${Math.round(view.zoom * 100)} %`;
    byId("invert").setAttribute("aria-pressed", String(view.inverted));
    byId("magnify").setAttribute("aria-pressed", String(this.active.isMagnifying));
    const windows = pixels?.info.windows ?? [];
    const window = pixels && this.active.window;
    const isInteger = pixels ? pixels.info.scale % 1 === 0 : true;
    for (const [id, name] of [["window-width", "width"], ["window-level", "center"]]) {
      const input = byId(id);
      const value = window?.[name] ?? 0;
      input.disabled = !pixels;
      // A typed number is not changed under the cursor.
      if (!(Math.abs(input.valueAsNumber - value) <= Math.abs(value) * 1e-9)) input.value = String(isInteger && Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(4)));
      input.step = isInteger ? "any" : String(windows.at(-2).width / 1000);
    }
    const preset = byId("window-preset");
    const names = windows.map(({ name }) => name);
    if (preset.dataset.names !== names.join("\n")) {
      preset.dataset.names = names.join("\n");
      preset.replaceChildren(...names.map((text, value) => element("option", { value, text })),
        element("option", { value: "", text: "Custom", disabled: true }));
    }
    preset.disabled = !pixels;
    const isSame = (one, other) => Math.abs(one - other) <= window.width * 1e-6;
    const at = windows.findIndex(({ center, width }) => isSame(center, window.center) && isSame(width, window.width));
    preset.value = at < 0 ? "" : String(at);
  }
}

function drawn(id, side, label, boxes) {
  return boxes.map(([left, top, right, bottom]) => ({ id, side, label, x_min: left, y_min: top, x_max: right, y_max: bottom }));
}
