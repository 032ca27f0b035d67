(() => {
  const { element, listStudies, linkedStudy } = Cards;
  const { studyCard, servedCard, fetchJson, scoreName } = Study;
  const BINS = 20;
  // With fewer studies, the list is more useful than a histogram.
  const FEWEST_DRAWN = 10;

  const data = Results;
  /** Whether a server has the studies. */
  const isServed = Boolean(data.api);
  /** Names of two systems whose studies are shown side by side; their scores are differences. */
  const { sides } = data;

  function fillOrders(select) {
    const names = Object.keys(data.directions).filter((name) => data.studies.some((study) => study.scores[name] !== null));
    const isNeutral = (name) => data.directions[name] === "neutral";
    const first = names.includes("logical_f1") ? "logical_f1" : names.find((name) => !isNeutral(name));
    const groups = sides
      ? { worst: "Largest decline first", best: "Largest improvement first", largest: "Largest change first", greatest: "Greatest increase first" }
      : { worst: "Worst first", best: "Best first", greatest: "Greatest first" };
    if (first) select.append(element("option", { value: `worst:${first}`, text: `${groups.worst} (${scoreName(first)})` }));
    select.append(element("option", { value: "input", text: "Input order" }));
    for (const [key, label] of Object.entries(groups)) {
      const rest = names.filter((name) => (key === "largest" || isNeutral(name) === (key === "greatest")) && (key !== "worst" || name !== first));
      if (!rest.length) continue;
      select.append(element("optgroup", { label },
        ...rest.map((name) => element("option", { value: `${key}:${name}`, text: `${scoreName(name)}, ${lowerFirst(label)}` }))));
    }
  }

  function lowerFirst(text) {
    return text[0].toLowerCase() + text.slice(1);
  }

  function ordered(studies, order) {
    if (order === "input") return studies;
    const [key, name] = order.split(/:(.*)/s);
    const sign = key !== "greatest" && key !== "largest" && (data.directions[name] === "lower") === (key === "best") ? 1 : -1;
    // An empty report is the worst, although it has no precision and F1.
    const least = key === "worst" ? -sign * Infinity : null;
    const change = (study) => {
      // From or to an empty report is the greatest change.
      if (study.scores[name] === null && study.kinds.includes("emptied")) return key === "best" ? null : key === "worst" ? least : Infinity;
      if (study.scores[name] === null && study.kinds.includes("filled")) return key === "worst" ? null : key === "best" ? -sign * Infinity : Infinity;
      return key === "largest" && study.scores[name] !== null ? Math.abs(study.scores[name]) : study.scores[name];
    };
    const value = sides ? change : (study) => study.scores[name] ?? (study.kinds.includes("empty") ? least : null);
    // Other studies without a value come last.
    return [...studies].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      return left === right ? 0 : sign * (left - right);
    });
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

  const ofKind = (key) => data.studies.filter((study) => study.kinds.includes(key)).length;

  /** Kinds of studies that exist, with their numbers. */
  function fillKinds(select) {
    select.append(element("option", { value: "all", text: `All (${data.studies.length})` }));
    for (const [group, kinds] of KINDS) {
      const options = kinds.filter(([key]) => ofKind(key)).map(([key, label]) => element("option", { value: key, text: `${label} (${ofKind(key)})` }));
      if (options.length) select.append(...(group ? [element("optgroup", { label: visibleText(group) }, ...options)] : options));
    }
  }

  function fillInputs(select) {
    const known = ofKind("inputs");
    document.getElementById("inputs-label").hidden = !known;
    select.append(element("option", { value: "", text: "All" }),
      ...Object.entries(INPUTS).flatMap(([key, label]) => [
        element("option", { value: key, text: `With ${label} (${ofKind(key)})` }),
        element("option", { value: `!${key}`, text: `Without ${label} (${known - ofKind(key)})` })]));
  }

  function hasInputs(study, choice) {
    if (!choice.startsWith("!")) return !choice || study.kinds.includes(choice);
    return study.kinds.includes("inputs") && !study.kinds.includes(choice.slice(1));
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
    for (const name of sides ? [] : Object.keys(data.directions)) {
      const values = data.studies.map((study) => study.scores[name] ?? null).filter((value) => value !== null);
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
    const row = element("div", { class: "bins", role: "group", "aria-label": `${scoreName(name)}, ${values.length} studies` }, ...bars);
    // A histogram is one stop of the Tab key; arrow keys move between bars.
    row.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = step && enabled[enabled.indexOf(document.activeElement) + step];
      if (!next) return;
      document.activeElement.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    return element("figure", { class: "histogram" },
      element("figcaption", {}, element("span", { text: scoreName(name) }), element("span", { class: "n", text: `n = ${values.length}` })),
      row, element("div", { class: "ends" }, element("span", { text: shortNumber(low) }), element("span", { text: shortNumber(high) })));
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

  function start() {
    const order = document.getElementById("order");
    const filter = document.getElementById("filter");
    const list = document.getElementById("study-list");
    const kind = document.getElementById("kind");
    const inputSelect = document.getElementById("inputs");
    const chip = document.getElementById("range");
    const only = document.getElementById("only");
    let range = null;
    fillOrders(order);
    fillKinds(kind);
    fillInputs(inputSelect);
    /** Whether a server has found the words of the filter in a study; null without words. */
    let matches = null;
    const draw = () => {
      const words = isServed ? [] : filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const choice = chosenFindings();
      const inRange = (value) => value !== null && range.holds(value);
      const fits = (study) => (kind.value === "all" || study.kinds.includes(kind.value))
        && hasInputs(study, inputSelect.value)
        && (range === null || inRange(study.scores[range.name] ?? null))
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
      document.getElementById("shown").textContent = `${found.length} of ${data.studies.length} studies`;
      const card = isServed ? servedCard : studyCard;
      listStudies(list, ordered(found, order.value), (study) => card(study, choice));
      if (data.unscored.length) {
        const drafts = isDraft ? data.unscored.filter(isNamed) : data.unscored;
        listStudies(document.getElementById("unscored-list"), drafts, (study) => card(study));
      }
      return isDraft ? "unscored" : "studies";
    };
    /** Draw what is selected now: all studies that fit, even if the address named one of them. */
    const redraw = () => {
      if (linkedStudy().study !== null) history.pushState(null, "", location.pathname + location.search);
      draw();
    };
    /** Ask the server for the studies with the words of the filter. */
    const searchServer = async () => {
      const text = filter.value.trim();
      const found = text ? await fetchJson(data.api.search + encodeURIComponent(text)) : null;
      // Ignore the response to an outdated query.
      if (text !== filter.value.trim()) return;
      matches = found && new Set(found.map((index) => data.studies[index]));
      redraw();
    };
    /** Draw what the address names. */
    const showLinked = () => {
      const section = draw();
      if (linkedStudy().study !== null) document.getElementById(section).scrollIntoView();
    };
    const chosenFindings = Findings.filters(data.studies, data.findings, redraw);
    const letGo = drawHistograms(document.getElementById("histograms"), (chosen) => {
      range = chosen;
      chip.hidden = range === null;
      if (range) chip.textContent = `${scoreName(range.name)} ${shortNumber(range.low)} to ${shortNumber(range.high)} ✕`;
      redraw();
    });
    window.addEventListener("hashchange", showLinked);
    only.addEventListener("click", redraw);
    for (const control of [order, kind, inputSelect]) control.addEventListener("change", redraw);
    filter.addEventListener("input", isServed ? searchServer : redraw);
    document.getElementById("spread").hidden = !document.querySelector(".histogram");
    chip.addEventListener("click", letGo);
    showLinked();
  }

  start();
  const scores = document.getElementById("pair-scores");
  if (scores) showScores(scores);
})();
