/** The scores of all studies as a table that can be sorted, and any two of them as a scatter plot. */
(() => {
  const { element, addressOf } = Cards;
  const { scoreName } = Study;
  const ROWS = 50;
  // A browser draws some thousand points without delay.
  const MOST_POINTS = 5000;
  const WIDTH = 640;
  const HEIGHT = 400;
  const MARGIN = { left: 64, right: 16, top: 16, bottom: 40 };
  const SVG = "http://www.w3.org/2000/svg";

  const section = document.getElementById("frame");
  const data = Results;
  const names = Object.keys(data.directions).filter((name) =>
    data.studies.some((study) => (study.scores[name] ?? null) !== null));
  if (!data.metrics || !names.length || data.sides) return;
  section.hidden = false;

  const valueOf = (study, name) => study.scores[name] ?? null;
  const shown = (value) => (value === null ? "–" : value.toFixed(3));

  /** Show only one study. */
  function show(study) {
    location.hash = addressOf(study.sample_id);
  }

  function table() {
    const body = element("tbody");
    const more = element("button", { type: "button", class: "more" });
    let rows = data.studies;
    let drawn = 0;
    const head = element("tr", {}, ...["", ...names].map((name) => {
      const button = element("button", { type: "button", class: "sort", text: name ? scoreName(name) : "Study" });
      const cell = element("th", { scope: "col", "aria-sort": "none" }, button);
      button.addEventListener("click", () => sort(cell, name));
      return cell;
    }));

    function drawMore() {
      const next = rows.slice(drawn, drawn + ROWS).map((study) => {
        const link = element("button", { type: "button", class: "link", text: study.sample_id });
        link.addEventListener("click", () => show(study));
        return element("tr", {}, element("th", { scope: "row" }, link),
          ...names.map((name) => element("td", { text: shown(valueOf(study, name)) })));
      });
      drawn += next.length;
      body.append(...next);
      more.hidden = drawn >= rows.length;
      more.textContent = `Show ${Math.min(ROWS, rows.length - drawn)} more of ${rows.length - drawn}`;
    }
    function sort(cell, name) {
      const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of head.children) other.setAttribute("aria-sort", "none");
      cell.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = name ? (study) => valueOf(study, name) : (study) => study.sample_id;
      // Studies without a value come last.
      rows = [...data.studies].sort((a, b) => {
        const [left, right] = [key(a), key(b)];
        if (left === null || right === null) return (left === null) - (right === null);
        return sign * (left < right ? -1 : Number(left > right));
      });
      drawn = 0;
      body.replaceChildren();
      drawMore();
    }
    more.addEventListener("click", drawMore);
    drawMore();
    return element("div", { class: "panel" }, element("table", { class: "frame" }, element("thead", {}, head), body), more);
  }

  function draw(tag, attributes = {}, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  /** Map the values of a score to an axis. */
  function scale(values, from, to) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const width = high - low || 1;
    return { low, high, at: (value) => from + ((value - low) / width) * (to - from) };
  }

  function correlation(points) {
    const mean = (place) => points.reduce((sum, point) => sum + point[place], 0) / points.length;
    const [left, right] = [mean(0), mean(1)];
    let [both, first, second] = [0, 0, 0];
    for (const [x, y] of points) {
      both += (x - left) * (y - right);
      first += (x - left) ** 2;
      second += (y - right) ** 2;
    }
    return first && second ? both / Math.sqrt(first * second) : null;
  }

  function scatter(container, said, xName, yName) {
    const points = data.studies.map((study) => [valueOf(study, xName), valueOf(study, yName), study])
      .filter(([x, y]) => x !== null && y !== null);
    const picture = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "scatter", role: "img",
      "aria-label": `${scoreName(yName)} against ${scoreName(xName)}` });
    container.replaceChildren(picture);
    if (!points.length) {
      said.textContent = "No study has both scores.";
      return;
    }
    const x = scale(points.map((point) => point[0]), MARGIN.left, WIDTH - MARGIN.right);
    const y = scale(points.map((point) => point[1]), HEIGHT - MARGIN.bottom, MARGIN.top);
    const [bottom, left] = [HEIGHT - MARGIN.bottom, MARGIN.left];
    picture.append(
      draw("path", { class: "axis", d: `M${left} ${MARGIN.top}V${bottom}H${WIDTH - MARGIN.right}` }),
      draw("text", { x: left, y: bottom + 16 }, x.low.toFixed(2)),
      draw("text", { x: WIDTH - MARGIN.right, y: bottom + 16, "text-anchor": "end" }, x.high.toFixed(2)),
      draw("text", { x: (left + WIDTH) / 2, y: bottom + 32, "text-anchor": "middle" }, scoreName(xName)),
      draw("text", { x: -(MARGIN.top + bottom) / 2, y: 16, "text-anchor": "middle", class: "up" }, scoreName(yName)),
      draw("text", { x: left - 6, y: bottom, "text-anchor": "end" }, y.low.toFixed(2)),
      draw("text", { x: left - 6, y: MARGIN.top + 8, "text-anchor": "end" }, y.high.toFixed(2)),
    );
    const step = Math.ceil(points.length / MOST_POINTS);
    for (const [across, up, study] of points.filter((_, place) => place % step === 0)) {
      const dot = draw("circle", { cx: x.at(across), cy: y.at(up), r: 4 });
      dot.append(draw("title", {}, `${study.sample_id}: ${shown(across)}, ${shown(up)}`));
      dot.addEventListener("click", () => show(study));
      picture.append(dot);
    }
    const r = correlation(points);
    const every = step > 1 ? `, one in ${step} of them drawn` : "";
    said.textContent = `${points.length} studies${every}; Pearson's r ${r === null ? "has no value" : r.toFixed(2)}. Choose a point to see its study.`;
  }

  function plot() {
    const selects = ["across", "up"].map((label, place) => {
      const select = element("select", { id: `scatter-${label}` },
        ...names.map((name) => element("option", { value: name, text: scoreName(name) })));
      select.selectedIndex = Math.min(place, names.length - 1);
      return select;
    });
    const container = element("div");
    const said = element("output", { role: "status" });
    const redraw = () => scatter(container, said, selects[0].value, selects[1].value);
    for (const select of selects) select.addEventListener("change", redraw);
    redraw();
    return element("div", { class: "panel" },
      element("div", { class: "plot-choice" }, element("label", { text: "Across " }, selects[0]),
        element("label", { text: "Up " }, selects[1]), said), container);
  }

  document.getElementById("frame-body").append(
    element("details", {}, element("summary", { text: "Table of all scores, to be sorted" }), table()),
    element("details", { open: "" }, element("summary", { text: "Two scores against each other" }), plot()),
  );
})();
