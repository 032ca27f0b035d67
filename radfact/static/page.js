/** What the page shows: figures and their directions, studies, drafts. */
const Results = (() => {
  const source = document.getElementById("page-data");
  const data = JSON.parse(source.textContent);
  // Of 15,000 studies the text alone takes as much memory as what was read from it.
  source.remove();
  return data;
})();

(() => {
  const { IMAGES, element, titleCase, newViewer, openLarge, describedImage, connect, listStudies } = Cards;
  const BINS = 20;
  // Of fewer studies a histogram says less than their list.
  const FEWEST_DRAWN = 10;
  // More would push the reports out of sight.
  const MOST_GROUPS = 8;
  const SHORT = { precision: "P", recall: "R", f1: "F1" };
  const LETTER = { candidate: "C", reference: "R" };
  const OTHER = { candidate: "reference", reference: "candidate" };
  const STATUS = {
    entailment: ["yes", "✓ entailed"],
    not_entailment: ["no", "✗ not entailed"],
  };
  const SPATIAL = {
    entailed: ["yes", "✓ boxes entailed"],
    not_entailed: ["no", "✗ boxes not entailed"],
    no_boxes: ["none", "no boxes"],
  };

  const data = Results;
  // Of narratives there are no boxes to speak of.
  const located = [...data.studies, ...(data.unscored ?? [])].some((study) =>
    [...study.candidate, ...(study.reference ?? [])].some((sentence) => sentence.boxes?.length || sentence.masks?.length));
  let count = 0;

  function figureGroups(figures) {
    const groups = new Map();
    for (const [name, value] of Object.entries(figures)) {
      const match = /^(.+)_(precision|recall|f1)$/.exec(name);
      const [group, part] = match ? [match[1], SHORT[match[2]]] : [name, ""];
      groups.set(group, [...(groups.get(group) ?? []), [part, value]]);
    }
    const rows = [];
    for (const [group, parts] of groups) {
      if (parts.every(([, value]) => value === null)) continue;
      const values = parts.map(([part, value]) =>
        element("span", {}, part ? element("abbr", { text: part, title: titleCase(`${group} ${longName(part)}`) }) : "",
          ` ${value === null ? "–" : value.toFixed(2)}`));
      rows.push(element("div", {}, element("dt", { text: titleCase(group) }), element("dd", {}, ...values)));
    }
    const list = element("dl", { class: "figures" }, ...rows.slice(0, MOST_GROUPS));
    if (rows.length <= MOST_GROUPS) return list;
    const rest = element("dl", { class: "figures" }, ...rows.slice(MOST_GROUPS));
    return element("div", {}, list, element("details", { class: "more-figures" },
      element("summary", { text: `${rows.length - MOST_GROUPS} more figures` }), rest));
  }

  /** What metrics say of a study: texts, lists and records, as they come. */
  function spelledOut(value) {
    if (value === null || typeof value !== "object") return element("span", { text: String(value ?? "–") });
    if (Array.isArray(value) && value.every((item) => item === null || typeof item !== "object")) {
      return element("span", { text: value.length ? value.join("\n") : "none" });
    }
    return element("dl", {}, ...Object.entries(value).map(([name, item]) =>
      element("div", {}, element("dt", { text: Array.isArray(value) ? String(Number(name) + 1) : titleCase(name) }),
        element("dd", {}, spelledOut(item)))));
  }

  function detailList(study) {
    return Object.entries(study.details ?? {}).map(([metric, detail]) =>
      element("details", { class: "details" }, element("summary", { text: `What ${metric} says` }), spelledOut(detail)));
  }

  function longName(part) {
    return Object.keys(SHORT).find((name) => SHORT[name] === part) ?? "";
  }

  /** Regions on the frontal, or those on the prior frontal. */
  function boxesOf(study, kind = "frontal") {
    return ["candidate", "reference"].flatMap((side) =>
      (study[side] ?? []).flatMap((sentence, index) => {
        const masks = (sentence.masks ?? []).map((mask) => ({ mask }));
        const regions = kind === "frontal" ? [...(sentence.boxes ?? []), ...masks] : sentence.prior_boxes ?? [];
        return regions.map((region) => ({ ...region, side, id: `${side}-${index}`, label: LETTER[side] + (index + 1) }));
      }));
  }

  function thumbnail(study, kind) {
    const image = study.images?.[kind];
    if (!image) return null;
    const name = IMAGES[kind];
    if (!image.src) return element("p", { class: "thumb missing", text: `${name}: ${image.message}` });
    const picture = element("img", { alt: "", loading: "lazy", src: image.src });
    const button = element("button", { type: "button", class: "thumb", "aria-label": `${name}: show larger` },
      picture, element("span", { text: name }));
    button.addEventListener("click", () => openLarge(`${study.sample_id} · ${name}`, describedImage(study, kind),
      kind === "prior_frontal" ? boxesOf(study, kind) : []));
    return button;
  }

  /** Frontal image with boxes and thumbnails; null for a study with neither images nor boxes. */
  function pictures(study) {
    const boxes = boxesOf(study);
    if (!boxes.length && !Object.values(study.images ?? {}).some(Boolean)) return { figure: null, viewer: null };
    const image = describedImage(study, "frontal");
    const root = element("div");
    const viewer = newViewer(root, image);
    viewer.setBoxes(boxes);
    const enlarge = element("button", { type: "button", class: "enlarge", text: "Larger",
      "aria-label": `Frontal of ${study.sample_id}: show larger` });
    enlarge.addEventListener("click", () => openLarge(`${study.sample_id} · Frontal`, image, boxes));
    const thumbs = ["lateral", "prior_frontal"].map((kind) => thumbnail(study, kind)).filter(Boolean);
    const figure = element("div", { class: thumbs.length ? "pictures with-thumbs" : "pictures" },
      element("div", { class: "main-picture" }, root, enlarge),
      thumbs.length ? element("div", { class: "thumbs" }, ...thumbs) : null);
    return { figure, viewer };
  }

  function tag([kind, words], name) {
    return element("span", { class: `tag ${kind} ${name}`, text: words });
  }

  function sentenceItem(sentence, side, index, scored) {
    const label = LETTER[side] + (index + 1);
    const id = `s${(count += 1)}`;
    const button = element("button", { type: "button", class: "sentence-text", "aria-pressed": "false" },
      element("span", { class: `number ${side}`, text: label }), element("span", { text: sentence.text }));
    const item = element("li", { class: "sentence", "data-id": `${side}-${index}` }, button);
    if (!scored) return item;
    const verdict = element("p", { class: "verdict", id }, tag(STATUS[sentence.status] ?? ["none", "not judged"], "status"));
    if (sentence.spatial && located) verdict.append(tag(SPATIAL[sentence.spatial] ?? ["none", sentence.spatial], "spatial"));
    if (sentence.evidence.length) {
      const names = sentence.evidence.map((at) => LETTER[OTHER[side]] + (at + 1)).join(", ");
      verdict.append(element("span", { class: "evidence", text: `evidence ${names}` }));
    }
    button.setAttribute("aria-describedby", id);
    item.append(verdict);
    if (sentence.why) {
      item.append(element("details", { class: "why" }, element("summary", { text: "Why" }), element("p", { text: sentence.why })));
    }
    return item;
  }

  function sentenceList(study, side) {
    const sentences = study[side];
    const heading = element("h4", {}, element("span", { class: `swatch ${side}` }), titleCase(side));
    const body = sentences.length
      ? element("ol", {}, ...sentences.map((sentence, index) => sentenceItem(sentence, side, index, study.scored && data.judged)))
      : element("p", { class: "empty", text: `The ${side} report has no sentences.` });
    return element("div", { class: "report" }, heading, body);
  }

  function context(study) {
    const list = element("dl", { class: "context" });
    for (const name of ["indication", "technique", "comparison", "prior_report", "model"]) {
      if (study[name]) list.append(element("div", {}, element("dt", { text: titleCase(name) }), element("dd", { text: study[name] })));
    }
    return list.childElementCount ? list : null;
  }

  /** Ids of the sentences that a sentence was judged by. */
  function evidenceIn(study) {
    return (id) => {
      const [side, index] = id.split("-");
      return study[side][Number(index)].evidence.map((at) => `${OTHER[side]}-${at}`);
    };
  }

  function studyCard(study) {
    const { figure, viewer } = pictures(study);
    const sides = study.scored ? ["candidate", "reference"] : ["candidate"];
    const head = element("div", { class: "card-head" }, element("h3", { text: study.sample_id }),
      study.scored ? figureGroups(study.figures) : element("span", { class: "tag unscored", text: "not scored" }));
    const card = element("article", { class: "card", "data-sample": study.sample_id, "aria-label": `Study ${study.sample_id}` }, head);
    if (study.failure) card.append(element("p", { class: "failure", text: `${data.metrics ? "Not scored by every metric" : "Left out of the figures"}: ${study.failure}` }));
    const about = context(study);
    if (about) card.append(about);
    card.append(element("div", { class: figure ? "card-body" : "card-body no-picture" }, figure,
      element("div", { class: "reports" }, ...sides.map((side) => sentenceList(study, side)))));
    card.append(...detailList(study));
    connect(card, viewer ? [viewer] : [], evidenceIn(study));
    return card;
  }

  function fillOrders(select) {
    const names = Object.keys(data.directions).filter((name) => data.studies.some((study) => name in study.figures));
    const isNeutral = (name) => data.directions[name] === "neutral";
    const first = names.includes("logical_f1") ? "logical_f1" : names.find((name) => !isNeutral(name));
    const groups = { worst: "Worst first", best: "Best first", greatest: "Greatest first" };
    if (first) select.append(element("option", { value: `worst:${first}`, text: `Worst first (${titleCase(first)})` }));
    select.append(element("option", { value: "input", text: "Input order" }));
    for (const [key, label] of Object.entries(groups)) {
      const rest = names.filter((name) => isNeutral(name) === (key === "greatest") && (key !== "worst" || name !== first));
      if (!rest.length) continue;
      select.append(element("optgroup", { label },
        ...rest.map((name) => element("option", { value: `${key}:${name}`, text: `${titleCase(name)}, ${key} first` }))));
    }
  }

  function ordered(studies, order) {
    if (order === "input") return studies;
    const [key, name] = order.split(/:(.*)/s);
    const sign = key !== "greatest" && (data.directions[name] === "lower") === (key === "best") ? 1 : -1;
    // To say nothing is the worst, though precision and F1 then have no value.
    const silent = (study) => !study.failure && study.candidate.length === 0 && study.reference.length > 0;
    const least = key === "worst" ? -sign * Infinity : null;
    const value = (study) => study.figures[name] ?? (silent(study) ? least : null);
    // Other studies without a value have no place in the order and come last.
    return [...studies].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      return left === right ? 0 : sign * (left - right);
    });
  }

  const KINDS = {
    all: ["All", () => true],
    unsupported: ["With a candidate sentence that is not entailed", (study) => has(study.candidate, "status", "not_entailment")],
    missed: ["With a reference sentence that is missed", (study) => has(study.reference, "status", "not_entailment")],
    misplaced: ["Entailed, but elsewhere in the image", (study) => [...study.candidate, ...study.reference]
      .some((sentence) => sentence.status === "entailment" && sentence.spatial === "not_entailed")],
    failed: [data.metrics ? "Not scored by every metric" : "Left out of the figures", (study) => Boolean(study.failure)],
  };

  function has(sentences, field, value) {
    return sentences.some((sentence) => sentence[field] === value);
  }

  /** Kinds of studies that are there at all, with their numbers. */
  function fillKinds(select) {
    for (const [key, [label, test]] of Object.entries(KINDS)) {
      const count = data.studies.filter(test).length;
      if (count) select.append(element("option", { value: key, text: `${label} (${count})` }));
    }
  }

  /** Histograms of the per-study figures; `choose(range)` gets the bar that was picked, or null when it was let go. */
  function drawHistograms(container, choose) {
    let chosen = null;
    const pick = (bar, range) => {
      chosen?.setAttribute("aria-pressed", "false");
      chosen = chosen === bar ? null : bar;
      chosen?.setAttribute("aria-pressed", "true");
      choose(chosen && range);
    };
    for (const name of Object.keys(data.directions)) {
      const values = data.studies.map((study) => study.figures[name] ?? null).filter((value) => value !== null);
      if (values.length >= FEWEST_DRAWN) container.append(histogram(name, values, pick));
    }
    return () => chosen && pick(chosen, null);
  }

  function histogram(name, values, pick) {
    let [low, high] = [0, 1];
    for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const width = (high - low) / BINS;
    const counts = Array(BINS).fill(0);
    const binOf = (value) => Math.min(BINS - 1, Math.floor((value - low) / width + 1e-9));
    for (const value of values) counts[binOf(value)] += 1;
    const most = Math.max(...counts);
    const bars = counts.map((count, bin) => {
      const range = { name, low: low + bin * width, high: low + (bin + 1) * width, holds: (value) => binOf(value) === bin };
      const words = `${shortNumber(range.low)} to ${shortNumber(range.high)}: ${count} ${count === 1 ? "study" : "studies"}`;
      const bar = element("button", { type: "button", class: "bin", "aria-pressed": "false", "aria-label": words, title: words,
        tabindex: "-1" }, element("span"));
      bar.firstChild.style.height = `${(100 * count) / most}%`;
      bar.disabled = !count;
      bar.addEventListener("click", () => pick(bar, range));
      return bar;
    });
    const enabled = bars.filter((bar) => !bar.disabled);
    enabled[0].tabIndex = 0;
    const row = element("div", { class: "bins", role: "group", "aria-label": `${titleCase(name)}, ${values.length} studies` }, ...bars);
    // One stop of the Tab key a histogram; the arrows go from bar to bar.
    row.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = step && enabled[enabled.indexOf(document.activeElement) + step];
      if (!next) return;
      document.activeElement.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return element("figure", { class: "histogram" },
      element("figcaption", {}, element("span", { text: titleCase(name) }), element("span", { class: "n", text: `n = ${values.length}` })),
      row, element("div", { class: "ends" }, element("span", { text: shortNumber(low) }), element("span", { text: shortNumber(high) })));
  }

  function shortNumber(value) {
    return String(Number(value.toFixed(2)));
  }

  function searchText(study) {
    study.search ??= [study.sample_id, study.indication, study.comparison, study.technique, study.prior_report, study.failure,
      ...study.candidate.map((sentence) => sentence.text), ...study.reference.map((sentence) => sentence.text)]
      .filter(Boolean).join("\n").toLowerCase();
    return study.search;
  }

  function start() {
    const order = document.getElementById("order");
    const filter = document.getElementById("filter");
    const list = document.getElementById("study-list");
    const kind = document.getElementById("kind");
    const chip = document.getElementById("range");
    let range = null;
    fillOrders(order);
    fillKinds(kind);
    const redraw = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const inRange = (value) => value !== null && range.holds(value);
      const found = data.studies.filter((study) => KINDS[kind.value][1](study)
        && (range === null || inRange(study.figures[range.name] ?? null))
        && (!words.length || words.every((word) => searchText(study).includes(word))));
      document.getElementById("shown").textContent = `${found.length} of ${data.studies.length} studies`;
      listStudies(list, ordered(found, order.value), studyCard);
    };
    const letGo = drawHistograms(document.getElementById("histograms"), (chosen) => {
      range = chosen;
      chip.hidden = range === null;
      if (range) chip.textContent = `${titleCase(range.name)} ${shortNumber(range.low)} to ${shortNumber(range.high)} ✕`;
      redraw();
    });
    document.getElementById("spread").hidden = !document.querySelector(".histogram");
    chip.addEventListener("click", letGo);
    order.addEventListener("change", redraw);
    kind.addEventListener("change", redraw);
    filter.addEventListener("input", redraw);
    for (const box of document.querySelectorAll("input[data-side]")) {
      box.closest("label").hidden = !located;
      box.addEventListener("change", () => {
        Cards.showSide(box.dataset.side, box.checked);
      });
    }
    redraw();
    const apart = document.getElementById("unscored-list");
    if (apart) listStudies(apart, data.unscored, studyCard);
  }

  start();
})();
