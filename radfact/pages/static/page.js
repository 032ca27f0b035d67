(() => {
  const { byId, button, addOptions, listStudies, linkedStudy } = Cards;
  const { studyCard, servedCard, fetchJson, scoreName, scoreNames, sorted } = Study;
  const BINS = 20;
  // With fewer studies, the list is more useful than a histogram.
  const FEWEST_DRAWN = 10;

  const data = Results;
  /** Whether a server has the studies. */
  const isServed = Boolean(data.api);
  /** Names of two systems whose studies are shown side by side; their scores are differences. */
  const { sides } = data;

  function fillOrders(select) {
    const isNeutral = (name) => data.directions[name] === "neutral";
    const first = scoreNames.includes("logical_f1") ? "logical_f1" : scoreNames.find((name) => !isNeutral(name));
    const orders = sides
      ? { worst: "Largest decline first", best: "Largest improvement first", largest: "Largest change first", greatest: "Greatest increase first" }
      : { worst: "Worst first", best: "Best first", greatest: "Greatest first" };
    if (first) addOptions(select, [[`worst:${first}`, `${orders.worst} (${scoreName(first)})`]]);
    addOptions(select, [["input", "Input order"]]);
    for (const [key, label] of Object.entries(orders)) {
      const rest = scoreNames.filter((name) => (key === "largest" || isNeutral(name) === (key === "greatest")) && (key !== "worst" || name !== first));
      addOptions(select, rest.map((name) => [`${key}:${name}`, `${scoreName(name)}, ${label[0].toLowerCase()}${label.slice(1)}`]), label);
    }
  }

  function ordered(studies, order) {
    if (order === "input") return studies;
    const [key, name] = order.split(/:(.*)/s);
    const sign = ["worst", "best"].includes(key) && (data.directions[name] === "lower") === (key === "best") ? 1 : -1;
    return sorted(studies, ({ scores, kinds }) => {
      const score = scores[name];
      if (score !== null) return key === "largest" ? Math.abs(score) : score;
      // An empty report is the worst, although it has no precision and F1; from or to one is the greatest change.
      const isFirst = sides ? (key !== "best" && kinds.includes("emptied")) || (key !== "worst" && kinds.includes("filled"))
        : key === "worst" && kinds.includes("empty");
      return isFirst ? -sign * Infinity : null;
    }, sign);
  }

  /** Kinds by which studies are selected; each study names its own. */
  const VERDICTS = {
    unsupported: "With a candidate sentence that is not entailed",
    missed: "With a reference sentence that is missed",
    contradicted: "With a contradicted sentence",
    misplaced: "Entailed, but elsewhere in the image",
    failed: data.metrics ? "Not scored by every metric" : "Excluded from the scores",
  };
  /** [label of a group or null, [kind, label][]]. */
  const KINDS = !sides ? [[null, Object.entries(VERDICTS)]] : [
    [null, Object.entries({
      lost: `With a reference sentence that only ${sides.baseline} entails`,
      gained: `With a reference sentence that only ${sides.candidate} entails`,
      changed: "With different drafts",
      emptied: `Only ${sides.candidate} is empty`,
      filled: `Only ${sides.baseline} is empty`,
      other_reference: "With different references",
    })],
    ...["baseline", "candidate"].map((side) => [sides[side], Object.entries(VERDICTS).map(([kind, label]) => [`${side}:${kind}`, label])]),
  ];

  /** What a study has in addition to the frontal image; `inputs` marks studies that are in a manifest. */
  const INPUTS = { lateral: "lateral", prior: "prior image or report" };

  const ofKind = (kind) => data.studies.filter((study) => study.kinds.includes(kind)).length;

  /** Kinds of studies that exist, with their numbers. */
  function fillKinds(select) {
    addOptions(select, [["all", `All (${data.studies.length})`]]);
    for (const [group, kinds] of KINDS) {
      addOptions(select, kinds.filter(([kind]) => ofKind(kind)).map(([kind, label]) => [kind, `${label} (${ofKind(kind)})`]), group);
    }
  }

  function fillInputs(select) {
    const known = ofKind("inputs");
    byId("inputs-label").hidden = !known;
    addOptions(select, [["", "All"], ...Object.entries(INPUTS).flatMap(([kind, label]) => [
      [kind, `With ${label} (${ofKind(kind)})`], [`!${kind}`, `Without ${label} (${known - ofKind(kind)})`]])]);
  }

  function hasInputs({ kinds }, choice) {
    return choice.startsWith("!") ? kinds.includes("inputs") && !kinds.includes(choice.slice(1)) : !choice || kinds.includes(choice);
  }

  /** Histograms of the per-study scores; `choose(range)` gets the selected bar, or null when it is deselected. */
  function drawHistograms(container, choose) {
    let chosen = null;
    const pick = (bar, range) => {
      chosen?.setAttribute("aria-pressed", "false");
      chosen = chosen === bar ? null : bar;
      chosen?.setAttribute("aria-pressed", "true");
      choose(chosen && range);
    };
    for (const name of sides ? [] : scoreNames) {
      const values = data.studies.map((study) => study.scores[name]).filter((value) => value !== null);
      if (values.length >= FEWEST_DRAWN) container.append(histogram(name, values, pick));
    }
    if (container) byId("spread").hidden = !container.firstChild;
    return () => chosen && pick(chosen, null);
  }

  function histogram(name, values, pick) {
    const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [0, 1]);
    const width = (high - low) / BINS;
    const counts = Array(BINS).fill(0);
    const binOf = (value) => Math.min(BINS - 1, Math.floor((value - low) / width + 1e-9));
    for (const value of values) counts[binOf(value)] += 1;
    const bars = counts.map((count, bin) => {
      const label = `${shortNumber(low + bin * width)} to ${shortNumber(low + (bin + 1) * width)}`;
      const text = `${label}: ${count} ${count === 1 ? "study" : "studies"}`;
      const range = { name, label, holds: (value) => value !== null && binOf(value) === bin };
      const bar = button({ class: "bin", "aria-pressed": "false", "aria-label": text, title: text, tabindex: "-1" },
        () => pick(bar, range), element("span"));
      bar.firstChild.style.height = `${(100 * count) / Math.max(...counts)}%`;
      bar.disabled = !count;
      return bar;
    });
    const enabled = bars.filter((bar) => !bar.disabled);
    enabled[0].tabIndex = 0;
    // A histogram is one stop of the Tab key; arrow keys move between bars.
    const keydown = ({ key }) => {
      const next = enabled[enabled.indexOf(document.activeElement) + ({ ArrowRight: 1, ArrowLeft: -1 }[key] ?? NaN)];
      if (!next) return;
      document.activeElement.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    };
    return element("figure", { class: "histogram" },
      element("figcaption", {}, element("span", { text: scoreName(name) }), element("span", { class: "n", text: `n = ${values.length}` })),
      element("div", { class: "bins", role: "group", "aria-label": `${scoreName(name)}, ${values.length} studies`, on: { keydown } }, ...bars),
      element("div", { class: "ends" }, ...[low, high].map((end) => element("span", { text: shortNumber(end) }))));
  }

  function shortNumber(value) {
    return String(Number(value.toFixed(2)));
  }

  /** Scores of two systems, which take a while to compute. */
  async function showScores(container) {
    container.replaceChildren(element("p", { class: "hint", role: "status", text: "Computing intervals and tests …" }));
    try {
      const { headings, rows, main, notes } = await fetchJson(data.api.scores);
      const table = (listed) => element("div", { class: "panel" }, element("table", {},
        element("thead", {}, element("tr", {}, ...headings.map((text) => element("th", { scope: "col", text })))),
        element("tbody", {}, ...listed.map(([[name], ...cells]) => element("tr", {}, element("th", { scope: "row", text: name }),
          ...cells.map(([text, kind]) => element("td", {}, element("span", kind ? { class: `tag ${kind}`, text } : { text }))))))));
      container.replaceChildren(table(main.map((index) => rows[index])),
        element("details", {}, element("summary", { text: `All ${rows.length} scores, and how they are compared` }), table(rows),
          ...notes.map((text) => element("p", { class: "hint", text }))));
    } catch (error) {
      container.replaceChildren(element("p", { class: "failure", text: `The scores cannot be compared: ${error.message}` }));
    }
  }

  function searchText(study) {
    study.search ??= [study.sample_id, study.indication, study.comparison, study.technique, study.prior_report, study.failure,
      ...[...(study.candidate ?? []), ...(study.reference ?? [])].map((sentence) => sentence.text)]
      .filter(Boolean).join("\n").toLowerCase();
    return study.search;
  }

  /** Whether a server has found the words of the filter in a study; null without words. */
  let matches = null;
  /** The bar of a histogram that is chosen. */
  let range = null;
  const [order, kind, inputs, filter, only, chip] = ["order", "kind", "inputs", "filter", "only", "range"].map(byId);

  function draw() {
    const words = isServed ? [] : filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const choice = chosenFindings();
    const fits = (study) => (kind.value === "all" || study.kinds.includes(kind.value))
      && hasInputs(study, inputs.value)
      && (range === null || range.holds(study.scores[range.name]))
      && (choice === null || study.keys.some((key) => Findings.fits(key, choice)))
      && (matches === null || matches.has(study))
      && words.every((word) => searchText(study).includes(word));
    // The address names one study; all others are hidden, whatever is selected.
    const linked = linkedStudy().study;
    const isNamed = (study) => study.sample_id === linked;
    const isDraft = data.unscored.some(isNamed);
    only.hidden = linked === null;
    only.textContent = `Study ${visibleText(linked ?? "")} ✕`;
    const found = data.studies.filter(linked === null || isDraft ? fits : isNamed);
    byId("shown").textContent = `${found.length} of ${data.studies.length} studies`;
    const card = isServed ? servedCard : studyCard;
    listStudies(byId("study-list"), ordered(found, order.value), (study) => card(study, choice));
    if (data.unscored.length) {
      listStudies(byId("unscored-list"), isDraft ? data.unscored.filter(isNamed) : data.unscored, (study) => card(study));
    }
    return byId(isDraft ? "unscored" : "studies");
  }

  /** Draw what is selected now: all studies that fit, even if the address named one of them. */
  function redraw() {
    if (linkedStudy().study !== null) history.pushState(null, "", location.pathname + location.search);
    draw();
  }

  /** Draw what the address names. */
  function showLinked() {
    const section = draw();
    if (linkedStudy().study !== null) section.scrollIntoView();
  }

  /** Ask the server for the studies with the words of the filter. */
  async function searchServer() {
    const text = filter.value.trim();
    const found = text ? await fetchJson(data.api.search + encodeURIComponent(text)) : null;
    // Ignore the response to an outdated query.
    if (text !== filter.value.trim()) return;
    matches = found && new Set(found.map((index) => data.studies[index]));
    redraw();
  }

  fillOrders(order);
  fillKinds(kind);
  fillInputs(inputs);
  const chosenFindings = Findings.filters(data.studies, data.findings, redraw);
  const clearRange = drawHistograms(byId("histograms"), (chosen) => {
    range = chosen;
    chip.hidden = range === null;
    if (range) chip.textContent = `${scoreName(range.name)} ${range.label} ✕`;
    redraw();
  });
  for (const control of [order, kind, inputs]) control.addEventListener("change", redraw);
  filter.addEventListener("input", isServed ? searchServer : redraw);
  only.addEventListener("click", redraw);
  chip.addEventListener("click", clearRange);
  window.addEventListener("hashchange", showLinked);
  showLinked();
  if (byId("pair-scores")) showScores(byId("pair-scores"));
})();
