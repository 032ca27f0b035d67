/** Findings of both reports of a study, with their links, and the choice of studies by finding. */
const Findings = (() => {
  const { LETTER, byId, addOptions, titleCase } = Cards;
  const SIDES = ["candidate", "reference"];
  const VERDICTS = {
    // Of two systems.
    worse: [],
    improved: [],
    omitted: ["no", "✗ omitted"],
    unsupported: ["no", "✗ unsupported"],
    contradicted: ["no", "✗ contradicted"],
    attribute_error: ["open", "≠ attribute error"],
    correct: ["yes", "✓ correct"],
  };
  const TIERS = ["urgent", "actionable", "minor", "expected"];
  const OTHERS = { both: "In both reports", candidate: "Only in the candidate", reference: "Only in the reference" };

  const isError = (kind) => !["correct", "worse", "improved"].includes(kind);
  /** Compared findings of a study by system and metric; `side` is that of the candidate. */
  const comparisonsOf = (study) => [["baseline", study.baseline_findings], ["candidate", study.findings]].flatMap(([side, findings]) =>
    Object.entries(findings ?? {}).map(([metric, { links, others }]) => ({ side, metric, links, others })));
  const kindsOf = (link) => [link.verdict, ...link.attributes.map((name) => `${link.verdict}:${name}`)];

  /** Whether a finding is chosen; `choice` has a concept, a tier and a kind, each of which may be empty. */
  function fits([concept, tier, kind], choice) {
    return (!choice.concept || concept === choice.concept) && (!choice.tier || tier === choice.tier)
      && (!choice.kind || (choice.kind === "error" ? isError(kind) : kind === choice.kind));
  }

  /** The selects of the toolbar: `choice()` is null while all are empty. */
  function filters(studies, names, redraw) {
    const selects = Object.fromEntries(["concept", "tier", "kind"].map((name) => [name, byId(`finding-${name}`)]));
    byId("finding-filters").hidden = !studies.some((study) => study.keys.length);
    /** [value, label with the number of studies][] of the values of the keys at a place. */
    const counted = (place, label) => {
      const counts = new Map();
      for (const study of studies) {
        for (const value of new Set(study.keys.map((key) => key[place]))) counts.set(value, (counts.get(value) ?? 0) + 1);
      }
      return [...counts].sort((a, b) => b[1] - a[1]).map(([value, count]) => [value, `${label(value)} (${count})`]);
    };
    const concepts = counted(0, (concept) => titleCase(names[concept])).sort((a, b) => a[1].localeCompare(b[1]));
    const tiers = counted(1, titleCase).sort((a, b) => TIERS.indexOf(a[0]) - TIERS.indexOf(b[0]));
    const order = Object.keys(VERDICTS);
    const kinds = counted(2, (kind) => titleCase(kind).replace(":", ": "));
    const wrong = studies.filter((study) => study.keys.some(([, , kind]) => isError(kind))).length;
    // A verdict comes before its attributes.
    const rank = ([kind]) => order.indexOf(kind.split(":")[0]) + (kind.includes(":") ? 0.5 : 0);
    const errors = wrong ? [["error", `Any error (${wrong})`]] : [];
    for (const [name, options] of Object.entries({ concept: concepts, tier: tiers,
      kind: [...errors, ...kinds.sort((a, b) => rank(a) - rank(b))] })) addOptions(selects[name], [["", "All"], ...options]);
    for (const select of Object.values(selects)) select.addEventListener("change", redraw);
    for (const button of document.querySelectorAll("[data-concept]")) {
      button.addEventListener("click", () => {
        for (const select of Object.values(selects)) select.value = "";
        selects.concept.value = button.dataset.concept;
        redraw();
        byId("studies").scrollIntoView();
      });
    }
    return () => {
      const choice = Object.fromEntries(Object.entries(selects).map(([name, select]) => [name, select.value]));
      return Object.values(choice).some(Boolean) ? choice : null;
    };
  }

  /** Ids of what belongs to each finding of a study by the id of the finding: its sentence, and the linked findings. */
  function evidenceByFinding(study) {
    const evidence = new Map();
    let place = 0;
    for (const { side: own, links } of comparisonsOf(study)) {
      const report = { candidate: own, reference: "reference" };
      for (const link of links) {
        for (const side of SIDES) {
          const other = SIDES.find((name) => name !== side);
          link[side].forEach(({ sentence }, index) => evidence.set(`${report[side]}-${place}-${index}`, [
            ...(sentence === undefined ? [] : [`${report[side]}-${sentence}`]),
            ...link[other].map((_, at) => `${report[other]}-${place}-${at}`),
          ]));
        }
        place += 1;
      }
    }
    return evidence;
  }

  /** Findings of one report, named as its sentences are; `isNumbered` tells whether to name these. */
  function cell(link, side, report, place, isNumbered) {
    const items = link[side].map(({ text, sentence }, index) =>
      element("div", { class: "sentence", "data-id": `${report}-${place}-${index}` },
        element("button", { type: "button", class: "sentence-text", "aria-pressed": "false" }, element("span", { text }),
          isNumbered && sentence !== undefined ? element("span", { class: "source", text: LETTER[report] + (sentence + 1) }) : null)));
    return element("td", { "data-label": titleCase(side) }, ...(items.length ? items : [element("span", { class: "empty", text: "–" })]));
  }

  function row(study, link, own, place, choice) {
    const [kind, label] = VERDICTS[link.verdict];
    const differences = link.differences.length ? `: ${link.differences.join(", ")}` : "";
    const chosen = choice && link.concepts.some((concept) => kindsOf(link).some((name) => fits([concept, link.tier, name], choice)));
    const cells = SIDES.map((side) => {
      const report = side === "candidate" ? own : side;
      return cell(link, side, report, place, study[report].length > 1);
    });
    return element("tr", chosen ? { class: "chosen" } : {}, cells[0],
      element("td", {},
        element("div", { class: "tags" }, element("span", { class: `tag ${kind}`, text: label + differences }),
          element("span", { class: `tag tier ${link.tier}`, text: link.tier }),
          chosen ? element("span", { class: "visually-hidden", text: "chosen" }) : null),
        element("p", { class: "reason", text: link.reason })),
      cells[1]);
  }

  function othersList(others) {
    const groups = Object.entries(OTHERS).filter(([group]) => others[group]);
    if (!groups.length) return null;
    const count = groups.reduce((sum, [group]) => sum + others[group].length, 0);
    return element("details", {}, element("summary", { text: `Absent or normal, without an error (${count})` }),
      element("dl", { class: "context" }, ...groups.map(([group, label]) =>
        element("div", {}, element("dt", { text: label }), element("dd", { text: others[group].join("; ") })))));
  }

  /** The findings of a study by each metric that compares them; chosen ones are marked. */
  function sections(study, choice) {
    let place = 0;
    const all = comparisonsOf(study);
    const metrics = new Set(all.map(({ metric }) => metric));
    return all.map(({ side, metric, links, others }) => {
      const rows = links.map((link) => row(study, link, side, place++, choice));
      const system = study.baseline ? Results.sides[side] : undefined;
      const head = element("tr", {}, ...[system ?? "Candidate", "Verdict", "Reference"].map((text) => element("th", { scope: "col", text })));
      const name = `Findings${system ? ` of ${system}` : ""}${metrics.size > 1 ? ` (${metric})` : ""}`;
      return element("section", { class: "finding-list", "aria-label": `${name} of ${study.sample_id}` }, element("h4", { text: name }),
        rows.length ? element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))
          : element("p", { class: "empty", text: "Neither report states a finding." }),
        othersList(others));
    });
  }

  return { sections, filters, fits, evidenceByFinding };
})();
