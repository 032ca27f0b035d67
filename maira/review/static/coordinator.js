/** The coordinator's page of a campaign: progress, readers, and decisions on disagreements. */

import { get, post } from "./api.js";
import { alertBar, announce, asSentence, bindTheme, button, byId, counted, element, fill, notify, onClicks } from "./dom.js";
import { Inputs } from "./inputs.js";
import { sameBoxes } from "./state.js";

const STATUS = { done: "finished", started: "started", open: "not started" };
const SIGNS = { done: "✓", started: "◐", open: "○" };
const REFRESH_MS = 15_000;

const UNDECIDED = "not decided";
const KINDS = {
  all: () => true,
  "not finished by all readers": (study) => Object.values(study.readers).some((status) => status !== "done"),
  "with disagreements": (study) => study.disagreements > 0,
  [UNDECIDED]: (study) => study.disagreements > 0 && !study.is_decided,
};

class CampaignPage {
  #campaign = null;
  #study = null;
  #inputs = null;

  async start() {
    bindTheme();
    onClicks({
      pause: () => this.#act({ kind: this.#campaign.paused ? "resume" : "pause", reader: null }),
      "add-studies": () => this.#post("/api/campaign/studies", {}, "The files were read again."),
      "action-cancel": () => byId("action-dialog").close(),
      back: () => location.assign("#"),
    });
    byId("study-kind").replaceChildren(...Object.keys(KINDS).map((text) => element("option", { text })));
    byId("study-kind").addEventListener("change", () => this.#showStudies());
    byId("new-reader").addEventListener("submit", async (event) => {
      event.preventDefault();
      const name = byId("new-reader-name").value;
      if (await this.#post("/api/campaign/readers", { name }, `${name} was added.`)) byId("new-reader-name").value = "";
    });
    byId("decision").addEventListener("submit", (event) => this.#decide(event));
    window.addEventListener("hashchange", () => this.#open());
    await this.#refresh();
    await this.#open();
    setInterval(() => {
      if (document.visibilityState === "visible") this.#refresh().catch(() => {});
    }, REFRESH_MS);
  }

  async #refresh() {
    this.#show(await get("/api/campaign"));
  }

  #act(action, fail = alertBar) {
    return this.#post("/api/campaign/actions", action, "Saved.", fail);
  }

  /** Send a request, show the campaign after it or why it failed, and return whether it succeeded. */
  async #post(path, body, message, fail = alertBar) {
    try {
      this.#show(await post(path, body));
    } catch (error) {
      fail(asSentence(error.message));
      return false;
    }
    byId("alert").replaceChildren();
    notify(message);
    return true;
  }

  #show(campaign) {
    this.#campaign = campaign;
    const counts = campaign.readers.map(({ finished, studies }) => [finished, studies]);
    const [finished, total] = [0, 1].map((at) => counts.reduce((sum, pair) => sum + pair[at], 0));
    byId("progress").max = Math.max(1, total);
    byId("progress").value = finished;
    byId("progress-text").textContent = `${finished} of ${counted(total, "reading")} finished`;
    for (const id of ["pause", "add-studies", "study-kind"]) byId(id).disabled = false;
    byId("pause").textContent = campaign.paused ? "Resume" : "Pause";
    byId("state").textContent = campaign.paused ? "Paused" : "";
    fill(byId("readers"), ...campaign.readers.map((reader) => this.#readerRow(reader)));
    this.#showStudies();
    fill(byId("history"), ...campaign.history.toReversed().map(({ made, action }) => (
      element("li", {}, element("time", { datetime: made, text: new Date(made).toLocaleString() }), ` ${action}`))));
  }

  #readerRow(reader) {
    const { id, name } = reader;
    const state = [reader.excluded !== null && `excluded: ${reader.excluded}`, reader.paused && "paused"].filter(Boolean).join(", ");
    const act = (text, run) => button(text, run, { "aria-label": `${text.replace(" …", "")} ${name}` });
    const field = (attributes) => element("input", { type: "text", name: "value", required: true, ...attributes });
    const link = element("input", { type: "text", readonly: true, "aria-label": `Link of ${name}`,
      value: new URL(`/?token=${encodeURIComponent(reader.token)}`, location.href).href,
      on: { focus: (event) => event.target.select() } });
    return element("tr", { class: reader.excluded === null ? "" : "excluded", "data-key": id },
      element("th", { scope: "row", text: name }),
      element("td", { text: `${reader.finished} of ${reader.studies}` }), element("td", { text: reader.started }),
      element("td", { text: state || "active" }), element("td", {}, link),
      element("td", {},
        act(reader.paused ? "Resume" : "Pause", () => this.#act({ kind: reader.paused ? "resume" : "pause", reader: id })),
        act("Rename …", () => this.#ask({ title: `Rename ${name}`, hint: "The link stays valid.", submit: "Rename",
          field: field({ "aria-label": "New name", value: name, maxlength: 100 }),
          action: (value) => ({ kind: "rename", reader: id, name: value }) })),
        act("Merge …", () => this.#askMerge(reader)),
        reader.excluded !== null ? act("Include", () => this.#act({ kind: "include", reader: id }))
          : act("Exclude …", () => this.#ask({ title: `Exclude ${name}`, submit: "Exclude",
            hint: "The readings stay in the data, are marked in exports, and are not part of statistics.",
            field: field({ "aria-label": "Reason", placeholder: "Reason", maxlength: 1000 }),
            action: (value) => ({ kind: "exclude", reader: id, reason: value }) }))));
  }

  #askMerge({ id, name }) {
    const others = this.#campaign.readers.filter((other) => other.id !== id);
    this.#ask({ title: `Merge ${name} into another reader`, submit: "Merge",
      hint: "The other reader gets all studies. Where both have read a study, the other reader’s reading counts. The link of the merged reader stops working.",
      field: element("select", { name: "value", "aria-label": "Reader", required: true },
        ...others.map((other) => element("option", { value: other.id, text: other.name }))),
      action: (value) => ({ kind: "merge", reader: id, into: value }) });
  }

  #ask({ title, hint, field, submit, action }) {
    const dialog = byId("action-dialog");
    const texts = { title, hint, submit, error: "" };
    for (const [name, text] of Object.entries(texts)) byId(`action-${name}`).textContent = text;
    byId("action-field").replaceChildren(field);
    byId("action-form").onsubmit = async (event) => {
      event.preventDefault();
      const fail = (words) => byId("action-error").replaceChildren(words);
      if (await this.#act(action(field.value), fail)) dialog.close();
    };
    dialog.showModal();
    field.focus();
  }

  #showStudies() {
    // In one arm by reader, some studies are read in no arm.
    const studies = this.#campaign.studies.filter(({ readers }) => Object.keys(readers).length);
    const shown = studies.filter(KINDS[byId("study-kind").value]);
    byId("study-count").textContent = shown.length === studies.length ? counted(studies.length, "study", "studies")
      : `${shown.length} of ${studies.length} studies`;
    fill(byId("studies"), ...shown.map((study) => this.#studyRow(study)));
  }

  #studyRow(study) {
    const readers = Object.entries(study.readers).map(([name, status]) => (
      element("span", { title: `${name}: ${STATUS[status]}`, text: `${SIGNS[status]} ${name}: ${STATUS[status]}. ` })));
    const label = this.#campaign.labels[study.arm];
    const status = `${counted(study.disagreements, "disagreement")}, ${study.is_decided ? "decided" : "not decided"}`;
    return element("tr", { "data-key": study.number }, element("td", { text: study.number }),
      element("th", { scope: "row", text: study.sample_id }),
      element("td", { text: [study.arm && `${study.arm} (${label})`, study.is_training && "training"].filter(Boolean).join(", ") }),
      element("td", {}, ...readers),
      element("td", {}, study.disagreements ? element("a", { href: `#${study.number}`, text: status }) : "–"));
  }

  /** Open the study in the address, or the campaign. */
  async #open() {
    const number = Number(location.hash.slice(1));
    const before = this.#study?.number;
    try {
      this.#study = number ? await get(`/api/campaign/studies/${number}`) : null;
    } catch (error) {
      alertBar(asSentence(error.message));
      return;
    }
    byId("campaign").hidden = number > 0;
    byId("study").hidden = !number;
    if (number) this.#showStudy();
    const target = number ? byId("report") : byId("studies").querySelector(`[href="#${before}"]`);
    target?.focus();
  }

  #showStudy() {
    const { number, sample_id: id, arm, items, comments, decision, reference } = this.#study;
    // The label, not the name, so that the arm does not influence the decision; the table of studies shows both.
    const label = this.#campaign.labels[arm];
    byId("item-title").textContent = visibleText([`Study ${number}`, id, label && `report ${label}`].filter(Boolean).join(" · "));
    byId("items").replaceChildren(...items.map((item, at) => this.#item(item, at, decision)),
      items.length ? "" : element("li", { text: "No reader has finished this study." }),
      ...Object.entries(comments).map(([name, text]) => element("li", {}, element("p", { text: `Comment of ${name}: ${text}` }))),
      reference.length ? element("li", {}, element("details", {}, element("summary", { text: "Reference report" }),
        ...reference.map((text) => element("p", { text })))) : "");
    byId("decision-comment").value = decision?.comment ?? "";
    byId("decide").disabled = !items.some(({ is_disagreement: differs }) => differs);
    // All boxes are locked, so that nothing else happens to them.
    this.#inputs ??= new Inputs({ select: () => {}, enlarged: () => this.#draw() });
    byId("box-mode").onchange = () => this.#draw();
    this.#inputs.open(this.#study);
    announce(`Study ${number}, ${counted(items.length, "sentence")}`);
  }

  #draw() {
    const sentences = this.#study.items.map(({ id, draft_boxes: boxes }) => ({ id, boxes, deleted: false }));
    const changed = this.#study.items.flatMap(({ draft_boxes: drafted, readings }, at) => readings
      .filter(({ boxes }) => !sameBoxes(boxes, drafted))
      .map(({ reader, boxes }) => ({ label: `${at + 1} ${visibleText(reader)}`, boxes })));
    this.#inputs.draw(sentences, changed, { selected: null, counterparts: [], locked: true, mode: byId("box-mode").value });
  }

  #item({ id, draft_text: drafted, is_disagreement: differs, readings }, at, decision) {
    const readers = element("dl", { class: "readings" }, ...readings.map(({ reader, reading, text, error_type: type, comment }) => (
      element("div", {}, element("dt", { text: reader }), element("dd", { text: asSentence(reading) }),
        drafted !== null && text !== drafted ? element("dd", { text }) : null,
        type || comment ? element("dd", { class: "hint", text: [type, comment].filter(Boolean).join(" · ") }) : null))));
    const choice = element("fieldset", {}, element("legend", { text: "Final decision" }), ...[[null, "no correction"], ...this.#campaign.severities].map(([severity, text]) => (
      element("label", {}, element("input", { type: "radio", name: id, value: String(severity), required: true,
        checked: decision !== null && id in decision.severities && decision.severities[id] === severity }), ` ${text}`))));
    return element("li", {}, element("p", { text: `${at + 1}. ${drafted ?? `Added: ${readings[0].text}`}` }), readers, differs ? choice : null);
  }

  async #decide(event) {
    event.preventDefault();
    const { number, items } = this.#study;
    const values = new FormData(byId("decision"));
    const disputed = items.filter(({ is_disagreement: differs }) => differs);
    const severities = Object.fromEntries(disputed.map(({ id }) => [id, JSON.parse(values.get(id))]));
    if (!await this.#act({ kind: "decide", study: number, severities, comment: byId("decision-comment").value })) return;
    const next = this.#campaign.studies.find((study) => study.number > number && KINDS[UNDECIDED](study));
    location.hash = next ? String(next.number) : "";
  }
}

new CampaignPage().start().catch((error) => alertBar(asSentence(`The campaign cannot be shown: ${error.message}`)));
