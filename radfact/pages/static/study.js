/** Data of the page: scores and their directions, studies, drafts. */
const Results = await (async () => {
  const data = await Cards.readData();
  const { ids, scores, failures, kinds, findings } = data.list;
  // A page from a file has all of each study, a served page has the columns of the list alone.
  data.studies = ids.map((id, place) => ({ sample_id: id, scored: true, failure: failures[place] ?? null, kinds: [], keys: [],
    scores: Object.fromEntries(Object.entries(scores).map(([name, column]) => [name, column[place]])), ...data.studies?.[place] }));
  for (const [kind, places] of Object.entries(kinds)) for (const place of places) data.studies[place].kinds.push(kind);
  for (const [text, places] of Object.entries(findings)) {
    const key = text.split("\t");
    for (const place of places) data.studies[place].keys.push(key);
  }
  return data;
})();

/** The card of a study, as in MAIRA-2, figure E.1: inputs of the model, both reports, their boxes side by side. */
const Study = (() => {
  const { IMAGES, LETTER, button, titleCase, addressOf, openLarge, describedImage, connect } = Cards;
  // Colors of viewer.css.
  const TINTS = 8;
  const SHORT = { precision: "P", recall: "R", f1: "F1" };
  const OTHER = { baseline: "reference", candidate: "reference", reference: "candidate" };
  const SECTIONS = ["indication", "technique", "comparison", "prior_report"];
  const STATUS = {
    entailment: ["yes", "✓ supported"],
    not_entailment: ["no", "✗ not supported"],
  };
  const ERRORS = { contradiction: "no", neutral: "open" };
  const SPATIAL = {
    entailed: ["yes", "✓ box in place"],
    not_entailed: ["no", "✗ misplaced box"],
    no_boxes: ["none", "no box"],
    no_area: ["none", "box without area"],
  };
  // The score counts boxes without evidence as misplaced.
  const NO_EVIDENCE = ["no", "✗ box not supported"];
  const NO_EVIDENCE_BOXES = ["no", "✗ no box in the evidence"];

  const data = Results;
  const isLocated = (sentence) => Boolean(sentence.boxes?.length || sentence.masks?.length);
  /** Reports of a study; of two systems, the baseline is the first one and the candidate the other one. */
  const sidesOf = (study) => (!study.scored ? ["candidate"]
    : study.baseline ? ["baseline", "candidate", "reference"] : ["candidate", "reference"]);
  /** Name of a report; on the page of two systems, a study of one of them has the usual names. */
  const sideName = (side, study = null) => (study && !study.baseline ? titleCase(side) : data.sides?.[side] ?? titleCase(side));
  /** [side of the evidence, verdict] of a sentence; of two systems, a reference sentence has a verdict for each. */
  const verdictsOf = (sentence, side) => (sentence.verdicts ? Object.entries(sentence.verdicts) : [[OTHER[side], sentence]]);
  // Narratives have no boxes.
  const located = data.located ?? [...data.studies, ...(data.unscored ?? [])].some((study) =>
    sidesOf(study).some((side) => study[side]?.some(isLocated)));
  /** Names of the scores that a study has. */
  const scoreNames = Object.keys(data.directions).filter((name) => data.studies.some((study) => study.scores[name] !== null));
  const failureLabel = data.metrics ? "Not scored by every metric" : "Excluded from the scores";
  let count = 0;

  /** Readable name of a score or of a group of scores. */
  function scoreName(name) {
    return data.names[name] ?? titleCase(name);
  }

  /** Studies in the order of a value; those without one come last. */
  function sorted(studies, value, sign) {
    return [...studies].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      return sign * (Number(left > right) - Number(left < right));
    });
  }

  /** A score, or the scores of two systems; the second one is marked where it differs. */
  function shownValue(value) {
    const text = (number) => (number === null ? "–" : number.toFixed(2));
    if (!Array.isArray(value)) return [` ${text(value)}`];
    const [first, second] = value.map(text);
    return first === second ? [` ${first}`] : [` ${first} → `, element("strong", { text: second })];
  }

  function scoreGroups(scores) {
    const groups = new Map();
    for (const [name, value] of Object.entries(scores)) {
      const [, start, part, end = ""] = /^(.+)_(precision|recall|f1)(_(?:positive|negative|implied))?$/.exec(name) ?? [];
      const group = part ? start + end : name;
      groups.set(group, [...(groups.get(group) ?? []), [part, value, name]]);
    }
    const known = [...groups].filter(([, parts]) => parts.some(([, value]) => [value].flat().some((number) => number !== null)));
    const list = (isMain) => element("dl", { class: "scores" }, ...known
      .filter(([, parts]) => parts.some(([, , name]) => data.main.includes(name)) === isMain)
      .map(([group, parts]) => element("div", {}, element("dt", { text: scoreName(group) }),
        element("dd", {}, ...parts.map(([part, value]) => element("span", {},
          part ? element("abbr", { text: SHORT[part], title: scoreName(`${group}_${part}`) }) : null, ...shownValue(value)))))));
    const [main, others] = [list(true), list(false)];
    return others.firstChild ? element("div", {}, main, element("details", { class: "more-scores" },
      element("summary", { text: `${others.childElementCount} more scores` }), others)) : main;
  }

  /** Details that metrics report about a study: texts, lists and records. */
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
    return [["baseline", study.baseline_details], ["candidate", study.details]].flatMap(([side, details]) =>
      Object.entries(details ?? {}).map(([metric, detail]) => element("details", { class: "details" },
        element("summary", { text: `${metric} details${study.baseline ? ` for ${sideName(side)}` : ""}` }), spelledOut(detail))));
  }

  /** Ids of the evidence of a sentence; `onlyEntailed` skips that of other verdicts. */
  function evidenceOf(study, id, onlyEntailed = false) {
    const [side, index] = id.split("-");
    return verdictsOf(study[side][Number(index)], side)
      .filter(([, { status }]) => !onlyEntailed || status === "entailment")
      .flatMap(([other, { evidence }]) => evidence.map((at) => `${other}-${at}`));
  }

  /** Ids of the evidence of a sentence, or of what belongs to a finding. */
  function evidenceIn(study) {
    const byFinding = Findings.evidenceByFinding(study);
    return (id) => byFinding.get(id) ?? evidenceOf(study, id);
  }

  /** Sentences with boxes by id, each with its color: a sentence and its evidence share one. */
  function tintsOf(study) {
    const near = new Map(sidesOf(study).flatMap((side) => study[side].flatMap((sentence, index) =>
      (isLocated(sentence) ? [[`${side}-${index}`, new Set()]] : []))));
    for (const id of near.keys()) {
      for (const other of evidenceOf(study, id, true)) {
        near.get(other)?.add(id);
        if (near.has(other)) near.get(id).add(other);
      }
    }
    const tints = new Map();
    const spread = (id, tint) => {
      if (tints.has(id)) return;
      tints.set(id, tint);
      for (const other of near.get(id)) spread(other, tint);
    };
    let groups = 0;
    for (const id of near.keys()) if (!tints.has(id)) spread(id, groups++ % TINTS);
    return tints;
  }

  /** Regions of one report on the frontal or the prior frontal image. */
  function boxesOf(study, tints, side, kind = "frontal") {
    return (study[side] ?? []).flatMap((sentence, index) => {
      const id = `${side}-${index}`;
      const masks = (sentence.masks ?? []).map((mask) => ({ mask }));
      const regions = kind === "frontal" ? [...(sentence.boxes ?? []), ...masks] : sentence.prior_boxes ?? [];
      return regions.map((region) => ({ ...region, side, id, label: LETTER[side] + (index + 1), tint: tints.get(id) }));
    });
  }

  /** The dialog with an image and the boxes of all reports on it. */
  function openBoth(study, kind, boxes) {
    openLarge(`${study.sample_id} · ${IMAGES[kind]}`, describedImage(study, kind), boxes, sidesOf(study).map((side) => [side, sideName(side, study)]));
  }

  function thumbnail(study, tints, kind) {
    const image = study.images?.[kind];
    if (!image) return null;
    const name = IMAGES[kind];
    if (!image.src) return element("p", { class: "thumb missing", text: `${name}: ${image.message}` });
    // The frontal image as the model received it, without boxes.
    const boxes = kind === "prior_frontal" ? sidesOf(study).flatMap((side) => boxesOf(study, tints, side, kind)) : [];
    return button({ class: "thumb", "aria-label": `${name}: enlarge` }, () => openBoth(study, kind, boxes),
      element("img", { alt: "", loading: "lazy", src: image.src }), element("span", { text: name }));
  }

  /** Inputs of the model: images and sections; null if the manifest does not have the study. */
  function inputs(study, tints) {
    if (!study.images) return null;
    const thumbs = Object.keys(IMAGES).map((kind) => thumbnail(study, tints, kind)).filter(Boolean);
    const list = element("dl", { class: "context" });
    const row = (name, text) => list.append(element("div", {}, element("dt", { text: name }), element("dd", { text })));
    for (const name of SECTIONS) if (study[name]) row(titleCase(name), study[name]);
    const absent = [...Object.keys(IMAGES).filter((kind) => !study.images[kind]), ...SECTIONS.filter((name) => !study[name])];
    if (absent.length) row("Not given", absent.map((name) => name.replaceAll("_", " ")).join(", "));
    if (study.model) row("Model", study.model);
    return element("section", { class: "inputs", "aria-label": `Inputs of ${study.sample_id}` },
      thumbs.length ? element("div", { class: "thumbs" }, ...thumbs) : null, list);
  }

  function picture(image, boxes, caption) {
    const root = element("div");
    const viewer = new BoxViewer(root, image);
    viewer.setBoxes(boxes);
    return { viewer, figure: element("figure", { class: "picture" }, caption, root) };
  }

  /** The frontal image, once per report with boxes, or once without boxes; nothing without image and boxes. */
  function pictures(study, tints) {
    const sides = sidesOf(study);
    const boxes = new Map(sides.map((side) => [side, boxesOf(study, tints, side)]));
    const all = [...boxes.values()].flat();
    if (!all.length && !study.images?.frontal) return { figure: null, viewers: [] };
    const image = describedImage(study, "frontal");
    const drawn = all.length
      ? sides.map((side) => picture({ ...image, alt: `${image.alt}, boxes of the ${side === "reference" ? side : sideName(side, study)}` }, boxes.get(side),
        element("figcaption", {}, element("span", { class: `swatch ${side}` }), element("span", { text: `${sideName(side, study)} boxes` }))))
      : [picture(image, [], null)];
    const enlarge = button({ class: "enlarge", text: drawn.length > 1 ? "Enlarge with all boxes" : "Enlarge",
      "aria-label": `Frontal of ${study.sample_id}: enlarge` }, () => openBoth(study, "frontal", all));
    const row = element("div", { class: "picture-row" }, ...drawn.map(({ figure }) => figure));
    return { figure: element("div", { class: "pictures" }, row, enlarge), viewers: drawn.map(({ viewer }) => viewer) };
  }

  function tag([kind, text], name) {
    return element("span", { class: `tag ${kind} ${name}`, text });
  }

  /** What is wrong with a sentence; without a relation, the judge tells only that it is not supported. */
  function verdictTag({ status, relation, error }) {
    return tag(error ? [ERRORS[relation] ?? "no", `✗ ${error}`] : STATUS[status] ?? ["none", "not judged"], "status");
  }

  /** The spatial verdict, with the share of the boxes inside those of the evidence, which the score compares. */
  function spatialTag({ overlap, spatial, status, evidence }, premises) {
    const isOpen = spatial === "not_entailed" && (status === "not_entailment" || !evidence.some((at) => isLocated(premises[at])));
    if (isOpen) return tag(status === "not_entailment" ? NO_EVIDENCE : NO_EVIDENCE_BOXES, "spatial");
    const [kind, words] = SPATIAL[spatial] ?? ["none", spatial];
    if (overlap === undefined) return tag([kind, words], "spatial");
    const { threshold, strict } = data.overlap ?? {};
    const percent = 100 * overlap;
    // A rounded share must not look like the threshold that it misses.
    const shown = Math.round(percent) === Math.round(100 * threshold) && overlap !== threshold ? percent.toFixed(1) : Math.round(percent);
    const item = tag([kind, `${words}: ${shown}% inside`], "spatial");
    item.title = `${percent.toFixed(2)}% of the area of these boxes lies inside the boxes of the evidence.`
      + (data.overlap ? ` The score needs ${strict ? "more than" : "at least"} ${100 * threshold}%.` : "");
    return item;
  }

  function sentenceItem(study, sentence, side, index, tint, judged) {
    const verdictId = `s${(count += 1)}`;
    const number = element("span", { class: tint === undefined ? "number" : `number tint-${tint}`, text: LETTER[side] + (index + 1) });
    const text = element("button", { type: "button", class: "sentence-text", "aria-pressed": "false",
      "aria-describedby": judged ? verdictId : null }, number, element("span", { text: sentence.text }));
    const item = element("li", { class: "sentence", "data-id": `${side}-${index}` }, text);
    if (!judged) return item;
    const verdicts = verdictsOf(sentence, side);
    const lines = element("div", { class: "verdicts", id: verdictId });
    // A verdict against an empty report, or of a judge with two answers, has no relation.
    const areRelated = verdicts.every(([, { relation }]) => relation);
    const kinds = verdicts.map(([, { status, relation, spatial }]) => [areRelated ? relation : status, spatial].join());
    if (kinds.some((kind) => kind !== kinds[0])) lines.append(element("p", { class: "verdict" }, tag(["open", "≠ verdicts differ"], "differs")));
    item.append(lines);
    for (const [other, verdict] of verdicts) {
      const line = element("p", { class: "verdict" },
        verdicts.length > 1 ? element("span", { class: "system", text: sideName(other) }) : null,
        verdictTag(verdict));
      if (verdict.spatial && located) line.append(spatialTag(verdict, study[other] ?? []));
      if (verdict.evidence.length) {
        const names = verdict.evidence.map((at) => LETTER[other] + (at + 1)).join(", ");
        line.append(element("span", { class: "evidence", text: `evidence ${names}` }));
      }
      lines.append(line);
      if (!verdict.why) continue;
      if (verdict.status === "entailment") {
        const summary = verdicts.length > 1 ? `Why (${sideName(other)})` : "Why";
        item.append(element("details", { class: "why" }, element("summary", { text: summary }), element("p", { text: verdict.why })));
      } else {
        line.append(element("span", { class: "why", text: verdict.why }));
      }
    }
    return item;
  }

  function sentenceList(study, side, tints) {
    const judged = study.scored && (study.judged ?? data.judged);
    const body = study[side].length
      ? element("ol", {}, ...study[side].map((sentence, index) =>
        sentenceItem(study, sentence, side, index, tints.get(`${side}-${index}`), judged)))
      : element("p", { class: "empty", text: `No ${side === "reference" ? side : "candidate"} sentences.` });
    return element("div", { class: `report ${side}` }, element("h4", { text: sideName(side, study) }), body,
      ...(study.removed?.[side] ? removedParts(study.removed[side], side) : []));
  }

  /** What the splitter removed from a report: struck through in the narrative, or listed if it was not located there. */
  function removedParts({ narrative, unlocated }, side) {
    const struck = ({ text, reason }) => [element("del", { text }),
      element("span", { class: "reason", text: ` [removed${reason ? `: ${reason}` : ""}]` })];
    const parts = narrative.flatMap((part) => (part.removed ? struck(part) : [element("span", { text: part.text })]));
    return [
      ...(parts.length ? [element("h5", { text: "Original narrative" }), element("p", { class: "narrative" }, ...parts)] : []),
      ...(unlocated.length ? [element("ul", { class: "removed", "aria-label": `Removed from the report: ${sideName(side)}` },
        ...unlocated.map((part) => element("li", {}, ...struck(part))))] : []),
    ];
  }

  function cardHead(study) {
    // The list of two systems has differences of scores; the study has both.
    const scores = data.sides && !Object.values(study.scores).some(Array.isArray) ? {} : study.scores;
    const link = element("a", { href: addressOf(study.sample_id), text: study.sample_id, title: "Link to this study" });
    return element("div", { class: "card-head" }, element("h3", {}, link),
      study.scored ? scoreGroups(scores) : element("span", { class: "tag unscored", text: "not scored" }));
  }

  /** A card with the heading and the failure of a study. */
  function emptyCard(study) {
    const card = element("article", { class: "card", "data-sample": study.sample_id, "aria-label": `Study ${study.sample_id}` },
      cardHead(study));
    const failures = study.failures ? Object.entries(study.failures).map(([side, failure]) => `${sideName(side)}: ${failure}`) : [study.failure];
    for (const failure of failures.filter(Boolean)) card.append(element("p", { class: "failure", text: `${failureLabel}: ${failure}` }));
    return card;
  }

  /** The card of a study; `choice` marks findings (`Findings.filters`). */
  function studyCard(study, choice = null) {
    const tints = tintsOf(study);
    const { figure, viewers } = pictures(study, tints);
    const lists = sidesOf(study).map((side) => sentenceList(study, side, tints));
    const card = emptyCard(study);
    card.append(...[inputs(study, tints)].filter(Boolean),
      element("div", { class: lists.length > 2 ? "sides compared" : "sides" }, figure, ...lists),
      ...Findings.sections(study, choice), ...detailList(study));
    connect(card, viewers, evidenceIn(study), study.sample_id);
    return card;
  }

  /** A study of two systems whose references differ: one card each. */
  function separateCards(study) {
    const card = emptyCard(study);
    card.append(element("p", { class: "failure", text: "The reference reports of the two runs differ, or were split into other sentences." }));
    for (const [side, own] of Object.entries(study.separate)) card.append(element("h4", { text: sideName(side) }), studyCard(own));
    return card;
  }

  /** The card of a study that the server has; it is filled once the study is loaded. */
  function servedCard(study, choice = null) {
    const card = emptyCard(study);
    const note = element("p", { class: "hint", role: "status", text: "Loading …" });
    card.append(note);
    card.classList.add("loading");
    study.whole ??= fetchJson(data.api.study + encodeURIComponent(study.sample_id));
    study.whole.then((whole) => card.replaceWith(whole.separate ? separateCards(whole) : studyCard(whole, choice)), (error) => {
      delete study.whole;
      note.textContent = visibleText(`This study cannot be shown: ${error.message}`);
    });
    return card;
  }

  async function fetchJson(address) {
    const answer = await fetch(address);
    const content = await answer.json();
    if (!answer.ok) throw new Error(content.error);
    return content;
  }

  return { studyCard, servedCard, fetchJson, scoreName, scoreNames, sorted };
})();
