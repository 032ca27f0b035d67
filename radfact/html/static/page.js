(() => {
  const { element, listStudies } = Cards;
  const { studyCard, scoreName } = Study;
  const BINS = 20;
  // With fewer studies, the list is more useful than a histogram.
  const FEWEST_DRAWN = 10;

  const data = Results;

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
    const silent = (study) => !study.failure && study.candidate.length === 0 && study.reference.length > 0;
    const least = key === "worst" ? -sign * Infinity : null;
    const value = (study) => study.scores[name] ?? (silent(study) ? least : null);
    // Other studies without a value come last.
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
    failed: [data.metrics ? "Not scored by every metric" : "Excluded from the scores", (study) => Boolean(study.failure)],
  };

  function has(sentences, field, value) {
    return sentences.some((sentence) => sentence[field] === value);
  }

  /** Kinds of studies that exist, with their numbers. */
  function fillKinds(select) {
    for (const [key, [label, test]] of Object.entries(KINDS)) {
      const count = data.studies.filter(test).length;
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
    for (const name of Object.keys(data.directions)) {
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
        && (range === null || inRange(study.scores[range.name] ?? null))
        && (!words.length || words.every((word) => searchText(study).includes(word))));
      document.getElementById("shown").textContent = `${found.length} of ${data.studies.length} studies`;
      listStudies(list, ordered(found, order.value), studyCard);
    };
    const letGo = drawHistograms(document.getElementById("histograms"), (chosen) => {
      range = chosen;
      chip.hidden = range === null;
      if (range) chip.textContent = `${scoreName(range.name)} ${shortNumber(range.low)} to ${shortNumber(range.high)} ✕`;
      redraw();
    });
    document.getElementById("spread").hidden = !document.querySelector(".histogram");
    chip.addEventListener("click", letGo);
    order.addEventListener("change", redraw);
    kind.addEventListener("change", redraw);
    filter.addEventListener("input", redraw);
    redraw();
    const apart = document.getElementById("unscored-list");
    if (apart) listStudies(apart, data.unscored, studyCard);
  }

  start();
})();
