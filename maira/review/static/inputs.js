/** Input of the model: the images, one of them enlarged, and the texts. */

import { BoxEditor } from "./boxes.js";
import { byId, consume, element, fill, onClicks } from "./dom.js";
import { OriginalRadiograph } from "./original.js";
import { fetchPixels } from "./pixels.js";
import { setSetting, setting } from "./storage.js";

const IMAGES = { frontal: "Frontal", lateral: "Lateral", prior_frontal: "Prior frontal" };
const TEXTS = { indication: "Indication", technique: "Technique", comparison: "Comparison" };

export class Inputs {
  kind = "frontal";
  #drawn = null;

  constructor({ select, focus, changeBoxes, touched, enlarged }) {
    this.radiographs = [...document.querySelectorAll(".radiograph")].map((root) => new OriginalRadiograph(root));
    [this.radiograph] = this.radiographs;
    // The radiograph that the tools change.
    this.active = this.radiograph;
    this.enlarged = enlarged;
    this.isSideBySide = setting("side-by-side") ?? false;
    this.editor = new BoxEditor(this.radiograph, { change: changeBoxes, touched, back: focus, drawing: () => this.#note() });
    this.radiograph.root.addEventListener("boxselect", ({ detail }) => select(detail.id));
    this.#bindTools();
  }

  /** Show the images and texts of a study, the frontal image large. */
  open(study) {
    this.study = study;
    for (const radiograph of this.radiographs) radiograph.forget();
    const prior = study.prior_report && element("details", {}, element("summary", { text: "Show" }), element("p", { text: study.prior_report }));
    const texts = Object.entries(TEXTS).map(([name, label]) => [label, study[name]]);
    const shown = [...texts, ["Prior report", prior]].filter(([, text]) => text);
    byId("context").replaceChildren(...shown.map(([label, text]) => (
      element("div", {}, element("dt", { text: label }), element("dd", {}, text instanceof Element ? text : visibleText(text))))));
    this.enlarge("frontal");
  }

  enlarge(kind) {
    this.kind = kind;
    const others = Object.keys(IMAGES).filter((other) => other !== kind && this.study.images[other]);
    const beside = this.isSideBySide ? others : [];
    byId("panes").classList.toggle("side-by-side", beside.length > 0);
    // The enlarged one last: the others follow it.
    this.active = this.radiograph;
    this.radiographs.slice(1).forEach((companion, at) => {
      companion.root.hidden = at >= beside.length;
      if (at < beside.length) this.#show(companion, beside[at]);
    });
    this.#show(this.radiograph, kind);
    byId("thumbs").replaceChildren(...(this.isSideBySide ? [] : others).map((other) => this.#thumb(other)));
    byId("side-by-side").hidden = !others.length;
    this.#activate(this.radiograph);
    this.#drawn = null;
    this.#note();
    this.enlarged();
  }

  #show(radiograph, kind) {
    const image = this.study.images[kind];
    const alt = `${IMAGES[kind]} radiograph of study ${this.study.number}`;
    radiograph.show(kind, image?.url ? image : null, image?.url ? alt : image?.message ?? "No image");
    radiograph.root.dataset.kind = IMAGES[kind];
  }

  /** Show the other images next to the enlarged one, in its zoom and place, or as thumbnails. */
  #toggleSideBySide() {
    this.isSideBySide = !this.isSideBySide;
    setSetting("side-by-side", this.isSideBySide);
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

  turn() {
    const there = Object.keys(IMAGES).filter((kind) => this.study.images[kind]);
    if (there.length) this.enlarge(there[(there.indexOf(this.kind) + 1) % there.length]);
  }

  /** Draw boxes, with handles for those of the selected sentence. */
  draw(sentences, reference, { selected, counterparts, locked, mode }) {
    const strong = [selected, ...counterparts].filter((id) => id !== null);
    const at = sentences.findIndex(({ id }) => id === selected);
    const hasBoxes = this.kind === "frontal" && mode !== "none";
    const edited = hasBoxes && at >= 0 ? sentences[at] : null;
    this.editor.edit(edited, { number: at + 1, locked: locked || Boolean(edited?.deleted) });
    const boxes = !hasBoxes ? [] : [
      ...sentences.flatMap((sentence, place) => (sentence === edited || sentence.deleted ? []
        : drawn(sentence.id, "candidate", String(place + 1), sentence.boxes))),
      ...reference.flatMap(({ label, boxes: of }, place) => drawn(`reference-${place}`, "reference", label ?? `R${place + 1}`, of ?? [])),
    ].filter((box) => mode === "all" || strong.includes(box.id));
    // Redrawing under the pointer would lose a click on a box.
    const key = JSON.stringify([boxes, strong]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.radiograph.viewer.setBoxes(boxes);
    this.radiograph.viewer.focus(null, strong);
  }

  #thumb(kind) {
    const { thumbnail: url, message } = this.study.images[kind];
    const enlarge = () => {
      this.enlarge(kind);
      this.radiograph.root.focus({ preventScroll: true });
    };
    return element("button", { type: "button", class: "thumb", "aria-label": `${IMAGES[kind]}: show large`,
      title: `${IMAGES[kind]}: show large (X)`, on: { click: enlarge } },
    url ? element("img", { src: url, alt: "", decoding: "async" }) : element("span", { class: "hint", text: message }),
    element("span", { class: "caption", text: IMAGES[kind] }));
  }

  #note() {
    byId("radiograph-note").textContent = this.editor.drawing
      ? "Drag to draw a box · Enter adds one in the center · Esc cancels"
      : this.kind === "frontal" ? "" : `${IMAGES[this.kind]} image: boxes are on the frontal one`;
  }

  #bindTools() {
    onClicks({
      "zoom-in": () => this.active.zoomIn(), "zoom-out": () => this.active.zoomOut(),
      "reset-radiograph": () => this.active.reset(), invert: () => this.active.invert(), magnify: () => this.active.magnify(),
      "side-by-side": () => this.#toggleSideBySide(),
    });
    for (const [id, name] of [["window-width", "width"], ["window-level", "center"]]) {
      byId(id).addEventListener("input", ({ target }) => {
        if (Number.isFinite(target.valueAsNumber)) this.active.setWindow({ [name]: target.valueAsNumber });
      });
      byId(id).addEventListener("keydown", (event) => {
        if (event.key !== "Escape" && event.key !== "Enter") return;
        consume(event);
        this.active.root.focus();
      });
    }
    byId("window-preset").addEventListener("change", ({ target }) => {
      this.active.setWindow(this.active.pixels.info.windows[Number(target.value)]);
      this.active.root.focus();
    });
    for (const radiograph of this.radiographs) {
      for (const name of ["pointerdown", "wheel", "focusin"]) {
        radiograph.root.addEventListener(name, () => this.#activate(radiograph), { capture: true });
      }
      for (const name of ["view", "gray", "magnify"]) {
        radiograph.addEventListener(name, () => {
          if (radiograph !== this.active) return;
          this.#writeTools();
          // The others take its zoom and place.
          const others = this.radiographs.filter((other) => other !== radiograph && !other.root.hidden);
          if (name === "view" && this.isSideBySide) for (const other of others) other.follow(radiograph);
        });
      }
    }
  }

  #activate(radiograph) {
    this.active = radiograph;
    for (const each of this.radiographs) each.root.classList.toggle("active", each === radiograph && this.isSideBySide);
    this.#writeTools();
  }

  #writeTools() {
    const { view, pixels, isMagnifying } = this.active;
    byId("zoom").textContent = `${Math.round(view.zoom * 100)} %`;
    const pressed = { invert: view.inverted, magnify: isMagnifying, "side-by-side": this.isSideBySide };
    for (const [id, isOn] of Object.entries(pressed)) byId(id).setAttribute("aria-pressed", String(isOn));
    const windows = pixels?.info.windows ?? [];
    const { center, width } = pixels ? this.active.window : { center: 0, width: 0 };
    const isInteger = pixels === null || pixels.info.scale % 1 === 0;
    for (const [id, value] of [["window-width", width], ["window-level", center]]) {
      const input = byId(id);
      input.disabled = !pixels;
      input.step = isInteger ? "any" : String(windows.at(-2).width / 1000);
      // A typed number is not changed under the cursor.
      if (Math.abs(input.valueAsNumber - value) <= Math.abs(value) * 1e-9) continue;
      input.value = String(isInteger && Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(4)));
    }
    const isShown = (each) => [each.center - center, each.width - width].every((change) => Math.abs(change) <= width * 1e-6);
    const preset = byId("window-preset");
    preset.disabled = !pixels;
    fill(preset, ...windows.map(({ name: text }, value) => element("option", { value, text })),
      element("option", { value: "", text: "Custom", disabled: true }));
    preset.value = windows.some(isShown) ? String(windows.findIndex(isShown)) : "";
  }
}

function drawn(id, side, label, boxes) {
  return boxes.map(([left, top, right, bottom]) => ({ id, side, label, x_min: left, y_min: top, x_max: right, y_max: bottom }));
}
