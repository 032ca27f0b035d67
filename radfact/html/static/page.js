(() => {
  const { element, listStudies } = Cards;
  const { studyCard, linkCard, scoreName } = Study;
  const BINS = 20;
  // With fewer studies, the list is more useful than a histogram.
  const FEWEST_DRAWN = 10;

  // More elements would make the page of a large set slow; order and filter lead to the others.
  const MOST_LISTED = 500;

  const data = Results;
  /** Whether the studies are on other pages, and this one only lists them. */
  const isList = Boolean(data.list);

  function fillOrders(select) {
    const names = Object.keys(data.directions).filter((name) => data.studies.some((study) => name in study.scores));
    const isNeutral = (name) => data.directions[name] === "neutral";
    const first = names.includes("logical_f1") ? "logical_f1" : names.find((name) => !isNeutral(name));
    const groups = { worst: "Worst first", best: "Best first", greatest: "Greatest first" };
    if (first) select.append(element("option", { value: `worst:${first}`, text: `Worst first (${scoreName(first)})` }));
    select.append(element("option", { value: "input", text: "Input order" }));
    for (const [key, label] of Object.entries(groups)) {
      const rest = names.filter((name) => isNeutral(name) === (key === "greatest") && (key !== "worst" || name !== first));
      if (!rest.length) continue;
      select.append(element("optgroup", { label },
        ...rest.map((name) => element("option", { value: `${key}:${name}`, text: `${scoreName(name)}, ${key} first` }))));
    }
  }

  function ordered(studies, order) {
    if (order === "input") return studies;
    const [key, name] = order.split(/:(.*)/s);
    const sign = key !== "greatest" && (data.directions[name] === "lower") === (key === "best") ? 1 : -1;
    // An empty report is the worst, although it has no precision and F1.
    const least = key === "worst" ? -sign * Infinity : null;
    const value = (study) => study.scores[name] ?? (study.kinds.includes("empty") ? least : null);
    // Other studies without a value come last.
    return [...studies].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === null || right === null) return (left === null) - (right === null);
      return left === right ? 0 : sign * (left - right);
    });
  }

  /** Kinds by which studies are selected; each study names its own. */
  const KINDS = {
    unsupported: "With a candidate sentence that is not entailed",
    missed: "With a reference sentence that is missed",
    misplaced: "Entailed, but elsewhere in the image",
    failed: data.metrics ? "Not scored by every metric" : "Excluded from the scores",
  };

  /** Kinds of studies that exist, with their numbers. */
  function fillKinds(select) {
    select.append(element("option", { value: "all", text: `All (${data.studies.length})` }));
    for (const [key, label] of Object.entries(KINDS)) {
      const count = data.studies.filter((study) => study.kinds.includes(key)).length;
      if (count) select.append(element("option", { value: key, text: `${label} (${count})` }));
    }
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
    for (const name of data.isPart ? [] : Object.keys(data.directions)) {
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
    const chip = document.getElementById("range");
    let range = null;
    fillOrders(order);
    fillKinds(kind);
    if (isList) filter.placeholder = "an id, or a reason of a failure";
    const redraw = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      const choice = chosenFindings();
      const inRange = (value) => value !== null && range.holds(value);
      const found = data.studies.filter((study) => (kind.value === "all" || study.kinds.includes(kind.value))
        && (range === null || inRange(study.scores[range.name] ?? null))
        && (choice === null || Findings.keysOf(study).some((key) => Findings.fits(key, choice)))
        && (!words.length || words.every((word) => searchText(study).includes(word))));
      const listed = ordered(found, order.value).slice(0, isList ? MOST_LISTED : found.length);
      const first = listed.length < found.length ? `, the first ${listed.length} are listed` : "";
      document.getElementById("shown").textContent = `${found.length} of ${data.studies.length} studies${first}`;
      listStudies(list, listed, isList ? linkCard : (study) => studyCard(study, choice));
    };
    const chosenFindings = Findings.filters(data.studies, data.findings, redraw);
    const letGo = drawHistograms(document.getElementById("histograms"), (chosen) => {
      range = chosen;
      chip.hidden = range === null;
      if (range) chip.textContent = `${scoreName(range.name)} ${shortNumber(range.low)} to ${shortNumber(range.high)} ✕`;
      redraw();
    });
    const showLinked = () => {
      if (!data.isPart || location.hash.length < 2) return;
      filter.value = decodeURIComponent(location.hash.slice(1));
      redraw();
    };
    window.addEventListener("hashchange", showLinked);
    document.getElementById("spread").hidden = !document.querySelector(".histogram");
    chip.addEventListener("click", letGo);
    order.addEventListener("change", redraw);
    kind.addEventListener("change", redraw);
    filter.addEventListener("input", redraw);
    redraw();
    showLinked();
    const unscored = document.getElementById("unscored-list");
    if (unscored) listStudies(unscored, data.unscored, (study) => studyCard(study));
  }

  start();
})();
