/** Shared by pages of studies: cards that are rendered when they come into view, and sentences linked to their boxes. */
const Cards = (() => {
  /** Number of cards that are rendered at once; the others follow when they come near the window. */
  const FIRST = 4;
  /** Distance at which cards are rendered, in heights of the window. */
  const MARGIN = "150%";
  /** Maximum number of rendered cards; the first ones are removed first. */
  const KEPT = 20;
  const IMAGES = { frontal: "Frontal", lateral: "Lateral", prior_frontal: "Prior frontal" };
  /** First letter of the numbers of sentences, by report. */
  const LETTER = { baseline: "B", candidate: "C", reference: "R" };

  const watching = new Map();
  const byId = (id) => document.getElementById(id);

  /** Data of the page, which are compressed. */
  async function readData() {
    const source = byId("page-data");
    const packed = Uint8Array.from(atob(source.textContent), (letter) => letter.charCodeAt(0));
    const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
    // For 15,000 studies, the text takes as much memory as the parsed data.
    source.remove();
    return data;
  }

  function button(attributes, click, ...children) {
    return element("button", { type: "button", on: { click }, ...attributes }, ...children);
  }

  /** Add options, [value, text][], to a select, below a heading if there is one. */
  function addOptions(select, options, label = null) {
    const items = options.map(([value, text]) => element("option", { value, text }));
    if (items.length) select.append(...(label ? [element("optgroup", { label }, ...items)] : items));
  }

  function titleCase(name) {
    const words = name.replaceAll("_", " ").replace(/\bf1\b/, "F1");
    return words[0].toUpperCase() + words.slice(1);
  }

  /** The study and the sentence that the address of the page names, each null if it names none. */
  function linkedStudy() {
    const names = new URLSearchParams(location.hash.slice(1));
    return { study: names.get("study"), sentence: names.get("sentence") };
  }

  /** Address of a study, or of one of its sentences by the id of its item. */
  function addressOf(study, sentence = null) {
    const part = (name, value) => `${name}=${encodeURIComponent(value)}`;
    return `#${part("study", study)}${sentence === null ? "" : `&${part("sentence", sentence)}`}`;
  }

  let large = null;

  /** The radiograph of the page's dialog. */
  function largeView() {
    const radiograph = new Radiograph(byId("large-view"));
    radiograph.bindTools();
    const [zoomIn, zoomOut] = [() => radiograph.zoomIn(), () => radiograph.zoomOut()];
    const keys = { "+": zoomIn, "=": zoomIn, "-": zoomOut, i: () => radiograph.invert(), r: () => radiograph.reset(),
      w: () => byId("window-width").focus() };
    dialog.addEventListener("keydown", (event) => {
      const act = keys[event.key.toLowerCase()];
      if (event.ctrlKey || event.metaKey || event.altKey || !act) return;
      event.preventDefault();
      act();
    });
    return radiograph;
  }

  /** Show an image in the page's dialog; each of `sides`, [side, name], can be hidden if it has boxes. */
  function openLarge(title, image, boxes, sides) {
    byId("large-title").textContent = visibleText(title);
    large ??= largeView();
    dialog.showModal();
    large.forget();
    large.show(title, image.src ? image : null, image.src ? image.alt : image.message);
    large.viewer.setBoxes(boxes);
    const toggles = byId("large-sides");
    const drawn = sides.filter(([side]) => boxes.some((box) => box.side === side));
    toggles.hidden = !drawn.length;
    toggles.replaceChildren(...drawn.map(([side, name]) => {
      const toggle = element("input", { type: "checkbox", "data-side": side });
      toggle.checked = true;
      return element("label", {}, toggle, element("span", { class: `swatch ${side}` }), element("span", { text: `${name} boxes` }));
    }));
    toggles.onchange = () => large.viewer.setSides([...toggles.querySelectorAll("input:checked")].map((item) => item.dataset.side));
    toggles.onchange();
  }

  function describedImage(study, kind) {
    const image = study.images?.[kind] ?? { message: "No image given" };
    return { ...image, alt: `${IMAGES[kind]} radiograph of ${study.sample_id}` };
  }

  /**
   * Synchronizes the sentences and boxes of a card: the hovered sentence has priority over the selected one.
   *
   * @param {HTMLElement} card  with `.sentence` items, each with a button and with `data-id` as its boxes have it
   * @param {{focus: (ids: string[] | null, strong: string[]) => void}[]} drawn  the card's viewers
   * @param {(id: string) => string[]} evidenceOf  ids of the sentences that are shown along with one
   * @param {string} study  id of the study, for the address
   */
  function connect(card, drawn, evidenceOf, study) {
    const items = new Map([...card.querySelectorAll(".sentence")].map((item) => [item.dataset.id, item]));
    let chosen = null;

    function mark(id, drawOnly = true) {
      const evidence = id === null ? [] : evidenceOf(id);
      for (const [key, item] of items) {
        item.classList.toggle("active", key === id);
        item.classList.toggle("is-evidence", evidence.includes(key));
      }
      if (!drawOnly) return;
      for (const viewer of drawn) viewer.focus(id === null ? null : [id, ...evidence], id === null ? [] : [id]);
    }
    function choose(id) {
      chosen = id;
      for (const [key, item] of items) item.querySelector("button").setAttribute("aria-pressed", String(key === id));
      mark(id);
    }
    function chooseAndName(id) {
      choose(id);
      // Without an entry in the history: Back leads to the page before, not to the sentence before.
      if (id !== null || linkedStudy().study === study) history.replaceState(null, "", addressOf(study, id));
    }
    for (const [id, item] of items) {
      item.addEventListener("pointerenter", () => mark(id));
      item.addEventListener("pointerleave", () => mark(chosen));
      item.addEventListener("focusin", () => mark(id));
      item.addEventListener("focusout", () => mark(chosen));
      item.querySelector("button").addEventListener("click", () => chooseAndName(chosen === id ? null : id));
    }
    // Drawing only a hovered box would take away the box under the pointer's path, so this marks sentences alone.
    card.addEventListener("boxhover", ({ detail }) => mark(detail?.id ?? chosen, false));
    card.addEventListener("boxselect", ({ detail }) => chooseAndName(chosen === detail.id ? null : detail.id));
    card.addEventListener("keydown", (event) => {
      if (event.key === "Escape") chooseAndName(null);
    });
    const { study: named, sentence } = linkedStudy();
    if (named === study && items.has(sentence)) {
      choose(sentence);
      // The card is not in the page yet.
      requestAnimationFrame(() => items.get(sentence).scrollIntoView({ block: "center" }));
    }
  }

  /** Whether removing the card would lose the reader's state: a selected sentence, an open detail, the focus. */
  function inUse(place) {
    return place.contains(document.activeElement) || place.querySelector("[aria-pressed=true], details[open]") !== null;
  }

  /**
   * Fill an element with a placeholder for every study, and render the card of a placeholder with `draw` while it is near
   * the window, so that a page of thousands of studies has the elements of a few.
   */
  function listStudies(container, studies, draw) {
    const studyOf = new Map(studies.map((study) => [element("div", { class: "place" }), study]));
    const places = [...studyOf.keys()];
    const near = new Set();
    const fill = (place) => {
      if (!place.firstChild) place.append(draw(studyOf.get(place)));
      place.style.height = "";
    };
    const empty = (place) => {
      place.style.height = `${place.offsetHeight}px`;
      place.replaceChildren();
    };
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) near[isIntersecting ? "add" : "delete"](target);
      near.forEach(fill);
      const filled = places.filter((place) => place.firstChild);
      const idle = filled.filter((place) => !near.has(place) && !inUse(place));
      idle.slice(0, Math.max(0, filled.length - KEPT)).forEach(empty);
    }, { rootMargin: `${MARGIN} 0px` });
    watching.get(container)?.observer.disconnect();
    watching.set(container, { observer, fillAll: () => places.forEach(fill) });
    places.slice(0, FIRST).forEach(fill);
    container.replaceChildren(...places);
    // A placeholder is as high as a card, so that the scroll bar shows the position.
    if (places.length) container.style.setProperty("--card-height", `${places[0].offsetHeight}px`);
    for (const place of places) observer.observe(place);
  }

  window.addEventListener("beforeprint", () => {
    for (const { fillAll } of watching.values()) fillAll();
  });

  const dialog = byId("large");
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });

  return { IMAGES, LETTER, byId, readData, button, addOptions, titleCase, linkedStudy, addressOf, openLarge, describedImage, connect, listStudies };
})();

