/** The scores of all studies as a table that can be sorted, and any two of them as a scatter plot. */
(() => {
  const { byId, button, addOptions, addressOf } = Cards;
  const { scoreName, scoreNames, sorted } = Study;
  const ROWS = 50;
  // A browser draws some thousand points without delay.
  const MOST_POINTS = 5000;
  const WIDTH = 640;
  const HEIGHT = 400;
  const [LEFT, RIGHT, TOP, BOTTOM] = [64, WIDTH - 16, 16, HEIGHT - 40];

  const { studies, metrics, sides } = Results;
  if (!metrics || !scoreNames.length || sides) return;

  const shown = (value) => (value === null ? "–" : value.toFixed(3));

  /** Show only one study. */
  function show(study) {
    location.hash = addressOf(study.sample_id);
  }

  function table() {
    const body = element("tbody");
    const more = button({ class: "more" }, drawMore);
    let rows = studies;
    const head = element("tr", {}, ...["", ...scoreNames].map((name) => {
      const click = ({ target }) => sort(target.parentElement, name);
      return element("th", { scope: "col", "aria-sort": "none" }, button({ class: "sort", text: name ? scoreName(name) : "Study" }, click));
    }));

    function drawMore() {
      const drawn = body.childElementCount;
      body.append(...rows.slice(drawn, drawn + ROWS).map((study) => element("tr", {},
        element("th", { scope: "row" }, button({ class: "link", text: study.sample_id }, () => show(study))),
        ...scoreNames.map((name) => element("td", { text: shown(study.scores[name]) })))));
      const left = rows.length - body.childElementCount;
      more.hidden = !left;
      more.textContent = `Show ${Math.min(ROWS, left)} more of ${left}`;
    }
    function sort(cell, name) {
      const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of head.children) other.setAttribute("aria-sort", other === cell ? order : "none");
      rows = sorted(studies, (study) => (name ? study.scores[name] : study.sample_id), order === "ascending" ? 1 : -1);
      body.replaceChildren();
      drawMore();
    }
    drawMore();
    const scroll = element("div", { class: "scroll" }, element("table", { class: "frame" }, element("thead", {}, head), body));
    return element("div", {}, scroll, more);
  }

  /** Map values to an axis. */
  function scale(values, from, to) {
    const low = values.reduce((a, b) => Math.min(a, b));
    const high = values.reduce((a, b) => Math.max(a, b));
    return { low, high, at: (value) => from + ((value - low) / (high - low || 1)) * (to - from) };
  }

  function correlation(xs, ys) {
    const centered = (values) => {
      const mean = values.reduce((sum, value) => sum + value) / values.length;
      return values.map((value) => value - mean);
    };
    const product = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
    const [x, y] = [centered(xs), centered(ys)];
    const spread = Math.sqrt(product(x, x) * product(y, y));
    return spread ? product(x, y) / spread : null;
  }

  function scatter(container, note, xName, yName) {
    const known = studies.filter(({ scores }) => scores[xName] !== null && scores[yName] !== null);
    const picture = svgElement("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "scatter", role: "img",
      "aria-label": `${scoreName(yName)} against ${scoreName(xName)}` });
    container.replaceChildren(picture);
    if (!known.length) {
      note.textContent = "No study has both scores.";
      return;
    }
    const [xs, ys] = [xName, yName].map((name) => known.map(({ scores }) => scores[name]));
    const [x, y] = [scale(xs, LEFT, RIGHT), scale(ys, BOTTOM, TOP)];
    const label = (text, left, top, anchor, more = {}) => svgElement("text", { x: left, y: top, "text-anchor": anchor, ...more }, text);
    picture.append(
      svgElement("path", { class: "axis", d: `M${LEFT} ${TOP}V${BOTTOM}H${RIGHT}` }),
      label(x.low.toFixed(2), LEFT, BOTTOM + 16, "start"),
      label(x.high.toFixed(2), RIGHT, BOTTOM + 16, "end"),
      label(scoreName(xName), (LEFT + WIDTH) / 2, BOTTOM + 32, "middle"),
      label(scoreName(yName), -(TOP + BOTTOM) / 2, 16, "middle", { class: "up" }),
      label(y.low.toFixed(2), LEFT - 6, BOTTOM, "end"),
      label(y.high.toFixed(2), LEFT - 6, TOP + 8, "end"),
    );
    const step = Math.ceil(known.length / MOST_POINTS);
    for (let place = 0; place < known.length; place += step) {
      const dot = svgElement("circle", { cx: x.at(xs[place]), cy: y.at(ys[place]), r: 4 },
        svgElement("title", {}, visibleText(`${known[place].sample_id}: ${shown(xs[place])}, ${shown(ys[place])}`)));
      dot.addEventListener("click", () => show(known[place]));
      picture.append(dot);
    }
    const r = correlation(xs, ys);
    const every = step > 1 ? `, one in ${step} of them drawn` : "";
    note.textContent = `${known.length} studies${every}; Pearson's r ${r === null ? "has no value" : r.toFixed(2)}. Choose a point to see its study.`;
  }

  function plot() {
    const [container, note] = [element("div"), element("output", { role: "status" })];
    const redraw = () => scatter(container, note, ...selects.map((select) => select.value));
    const selects = ["across", "up"].map((label, place) => {
      const select = element("select", { id: `scatter-${label}`, on: { change: redraw } });
      addOptions(select, scoreNames.map((name) => [name, scoreName(name)]));
      select.selectedIndex = Math.min(place, scoreNames.length - 1);
      return select;
    });
    redraw();
    return element("div", {}, element("div", { class: "plot-choice" }, element("label", { text: "Across " }, selects[0]),
      element("label", { text: "Up " }, selects[1]), note), container);
  }

  for (const [id, content] of [["frame", table()], ["plot", plot()]]) {
    byId(id).hidden = false;
    byId(id).append(content);
  }
})();
