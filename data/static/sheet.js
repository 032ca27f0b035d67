await (async () => {
  const { IMAGES, readData, titleCase, openLarge, describedImage, connect, listStudies } = Cards;
  // Findings have the color of references; phrases to locate have the other color.
  const GROUPS = {
    findings: { name: "Grounded findings", letter: "F", side: "reference" },
    phrases: { name: "Phrases to locate", letter: "P", side: "candidate" },
    labels: { name: "Labels", letter: "L", side: "candidate" },
  };
  const SIDES = [["reference", "Finding"], ["candidate", "Phrase and label"]];
  const SECTIONS = ["findings_text", "indication", "technique", "comparison", "prior_report"];
  const KINDS = {
    all: ["All", () => true],
    narrative: ["With narrative findings", (study) => Boolean(study.findings_text)],
    grounded: ["With grounded findings", (study) => study.findings.length > 0],
    phrases: ["With phrases", (study) => study.phrases.length > 0],
    lateral: ["With a lateral", (study) => Boolean(study.images.lateral)],
    prior: ["With a prior", (study) => Boolean(study.images.prior_frontal)],
    missing: ["With an image that cannot be shown", (study) => Object.values(study.images).some((image) => image?.message)],
  };

  const { studies } = await readData();
  const regions = (sentence) => [...(sentence.boxes ?? []), ...(sentence.masks ?? []), ...(sentence.prior_boxes ?? [])];
  const located = Object.keys(GROUPS).filter((group) => studies.some((study) => study[group].some((s) => regions(s).length)));
  const isShown = (group) => document.querySelector(`input[data-group="${group}"]`).checked;

  /** Regions on the frontal or the prior frontal image. */
  function boxesOf(study, kind) {
    if (kind === "lateral") return [];
    // Findings last, on top: equal boxes remain visible through their dashes.
    return Object.entries(GROUPS).reverse().flatMap(([group, { letter, side }]) => study[group].flatMap((sentence, index) => {
      const masks = (sentence.masks ?? []).map((mask) => ({ mask }));
      const found = kind === "frontal" ? [...(sentence.boxes ?? []), ...masks] : sentence.prior_boxes ?? [];
      return found.map((region) => ({ ...region, group, side, id: `${group}-${index}`, label: letter + (index + 1) }));
    }));
  }

  /** An image with the boxes of the enabled groups, or of the sentence at the pointer. */
  function radiograph(study, kind) {
    if (!study.images[kind]) return null;
    const image = describedImage(study, kind);
    const root = element("div");
    const viewer = new BoxViewer(root, image);
    const boxes = boxesOf(study, kind);
    const switchedOn = () => boxes.filter(({ group }) => isShown(group));
    const focus = (ids, strong) => viewer.focus(ids ?? switchedOn().map(({ id }) => id), strong);
    viewer.setBoxes(boxes);
    focus(null);
    const enlarge = element("button", { type: "button", class: "enlarge", text: "Enlarge",
      "aria-label": `${IMAGES[kind]} of ${study.sample_id}: enlarge`, hidden: image.src ? null : "",
      on: { click: () => openLarge(`${study.sample_id} · ${IMAGES[kind]}`, image, switchedOn(), SIDES) } });
    const caption = element("figcaption", {}, element("span", { text: IMAGES[kind] }), enlarge);
    return { figure: element("figure", { class: "picture", "data-kind": kind }, caption, root), focus };
  }

  function sentenceItem(group, sentence, index) {
    return element("li", { class: "sentence", "data-id": `${group}-${index}` },
      element("button", { type: "button", class: "sentence-text", "aria-pressed": "false" },
        element("span", { class: `number ${group}`, text: GROUPS[group].letter + (index + 1) }),
        element("span", { text: sentence.text }),
        regions(sentence).length ? null : element("span", { class: "nowhere", text: "no boxes" })));
  }

  function texts(study) {
    const groups = Object.entries(GROUPS).filter(([group]) => study[group].length).map(([group, { name }]) => (
      element("div", { class: "report" }, element("h4", { text: name }),
        element("ol", {}, ...study[group].map((sentence, index) => sentenceItem(group, sentence, index))))));
    const sections = SECTIONS.filter((section) => study[section]).flatMap((section) => [
      element("h4", { text: titleCase(section.replace("_text", "")) }),
      element("p", { class: "prose", text: study[section] })]);
    const isEmpty = !groups.length && !sections.length;
    return element("div", { class: "texts" }, ...groups, ...sections,
      isEmpty ? element("p", { class: "empty", text: "This sample has only images." }) : null);
  }

  const radiographsOf = new WeakMap();

  function sampleCard(study) {
    const radiographs = Object.keys(IMAGES).map((kind) => radiograph(study, kind)).filter(Boolean);
    const [frontal, ...others] = radiographs.map(({ figure }) => figure);
    const pictures = element("div", { class: others.length ? "radiographs" : "radiographs alone" }, frontal,
      others.length ? element("div", { class: "others" }, ...others) : null);
    const facts = element("dl", { class: "scores" }, ...Object.entries(study.facts).map(([name, value]) => (
      element("div", {}, element("dt", { text: titleCase(name) }), element("dd", { text: value })))));
    const card = element("article", { class: "card sample", "data-sample": study.sample_id, "aria-label": `Sample ${study.sample_id}` },
      element("div", { class: "card-head" }, element("h3", { text: study.sample_id }), facts),
      element("div", { class: "card-body" }, pictures, texts(study)));
    connect(card, radiographs, () => [], study.sample_id);
    radiographsOf.set(card, radiographs);
    return card;
  }

  function searchText(study) {
    study.search ??= [study.sample_id, ...Object.values(study.facts), ...SECTIONS.map((section) => study[section]),
      ...Object.keys(GROUPS).flatMap((group) => study[group].map((sentence) => sentence.text))]
      .filter(Boolean).join("\n").toLowerCase();
    return study.search;
  }

  const [kind, filter, list] = ["kind", "filter", "study-list"].map((id) => document.getElementById(id));
  for (const [key, [label, test]] of Object.entries(KINDS)) {
    const count = studies.filter(test).length;
    if (count) kind.append(element("option", { value: key, text: `${label} (${count})` }));
  }
  for (const box of document.querySelectorAll("input[data-group]")) {
    const { group } = box.dataset;
    box.closest("label").hidden = !located.includes(group);
    // Labels repeat the boxes of findings, so they are shown initially only if there are no others.
    box.checked = group !== "labels" || located.length === 1;
    box.addEventListener("change", () => {
      for (const card of list.querySelectorAll("article")) for (const { focus } of radiographsOf.get(card)) focus(null);
    });
  }
  document.getElementById("hint").hidden = !located.length;
  const redraw = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = studies.filter((study) => KINDS[kind.value][1](study)
      && words.every((word) => searchText(study).includes(word)));
    document.getElementById("shown").textContent = `${found.length} of ${studies.length} samples`;
    listStudies(list, found, sampleCard);
  };
  kind.addEventListener("change", redraw);
  filter.addEventListener("input", redraw);
  redraw();
})();
