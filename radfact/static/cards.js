/** What pages of studies share: cards that come some at a time, and sentences that go with their boxes. */
const Cards = (() => {
  const PAGE_SIZE = 20;
  const IMAGES = { frontal: "Frontal", lateral: "Lateral", prior_frontal: "Prior frontal" };

  const viewers = new Set();
  const shownSides = new Set(["candidate", "reference"]);

  function element(tag, { text, ...attributes } = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    node.append(...children.filter((child) => child !== null));
    return node;
  }

  function titleCase(name) {
    const words = name.replaceAll("_", " ").replace(/\bf1\b/, "F1");
    return words[0].toUpperCase() + words.slice(1);
  }

  function newViewer(root, image) {
    const viewer = new BoxViewer(root, image);
    viewer.setSides(shownSides);
    viewers.add(viewer);
    return viewer;
  }

  function openLarge(title, image, boxes) {
    const dialog = document.getElementById("large");
    const root = element("div");
    document.getElementById("large-title").textContent = title;
    document.getElementById("large-view").replaceChildren(root);
    const viewer = newViewer(root, image);
    viewer.setBoxes(boxes);
    dialog.addEventListener("close", () => viewers.delete(viewer), { once: true });
    dialog.showModal();
  }

  /** Draw the boxes of one side, or leave them out, in every viewer of the page. */
  function showSide(side, shown) {
    if (shown) shownSides.add(side);
    else shownSides.delete(side);
    for (const viewer of viewers) viewer.setSides(shownSides);
  }

  function describedImage(study, kind) {
    const image = study.images?.[kind] ?? { message: "No image given" };
    return { ...image, alt: `${IMAGES[kind]} radiograph of ${study.sample_id}` };
  }

  /**
   * Keeps one card's sentences and boxes in step: what is pointed at comes first, then what was chosen.
   *
   * @param {HTMLElement} card  with `.sentence` items, each with a button and with `data-id` as its boxes have it
   * @param {{focus: (ids: string[] | null, strong: string[]) => void}[]} drawn  the card's viewers
   * @param {(id: string) => string[]} evidenceOf  ids of the sentences that are shown along with one
   */
  function connect(card, drawn, evidenceOf = () => []) {
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
    for (const [id, item] of items) {
      item.addEventListener("pointerenter", () => mark(id));
      item.addEventListener("pointerleave", () => mark(chosen));
      item.addEventListener("focusin", () => mark(id));
      item.addEventListener("focusout", () => mark(chosen));
      item.querySelector("button").addEventListener("click", () => choose(chosen === id ? null : id));
    }
    // Drawing only a hovered box would take away the box under the pointer's path, so this marks sentences alone.
    card.addEventListener("boxhover", ({ detail }) => mark(detail?.id ?? chosen, false));
    card.addEventListener("boxselect", ({ detail }) => choose(chosen === detail.id ? null : detail.id));
    card.addEventListener("keydown", (event) => {
      if (event.key === "Escape") choose(null);
    });
  }

  /** Fill an element with the cards that `draw` makes of studies, some at a time. */
  function listStudies(container, studies, draw) {
    let drawn = 0;
    const more = element("button", { type: "button", class: "more" });
    function drawMore() {
      const cards = studies.slice(drawn, drawn + PAGE_SIZE).map(draw);
      drawn += cards.length;
      more.before(...cards);
      const left = studies.length - drawn;
      more.hidden = left === 0;
      more.textContent = `Show ${Math.min(PAGE_SIZE, left)} more of ${left}`;
      return cards[0];
    }
    more.addEventListener("click", () => drawMore()?.querySelector("button")?.focus({ preventScroll: true }));
    container.replaceChildren(more);
    for (const viewer of viewers) if (!viewer.root.isConnected) viewers.delete(viewer);
    drawMore();
  }

  const dialog = document.getElementById("large");
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });

  return { IMAGES, element, titleCase, newViewer, openLarge, describedImage, connect, listStudies, showSide };
})();

