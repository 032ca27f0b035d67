/** The scores of all studies as a table that can be sorted. */
(() => {
  const { byId, button, addressOf } = Cards;
  const { scoreName, scoreNames, sorted } = Study;
  const ROWS = 50;

  const { studies, metrics, sides } = Results;
  if (!metrics || !scoreNames.length || sides) return;

  const shown = (value) => (value === null ? "–" : value.toFixed(3));

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
        element("th", { scope: "row" }, element("a", { href: addressOf(study.sample_id), text: study.sample_id })),
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

  byId("frame").hidden = false;
  byId("frame").append(table());
})();
