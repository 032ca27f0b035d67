/** Unsaved words that stand in no field, for as long as they do: shown, to be gone on with or discarded. */

import { byId, element } from "./dom.js";
import { isFinding, isOpen, sentenceAt } from "./words.js";

const WHAT = { "": "text", "why:": "comment", "own:": "type of error" };

/** What words are, and what must be done before they can be gone on with. */
function described(state, place) {
  if (place === "comment") return ["Study, comment", "reopen the study"];
  const { field, sentence, number } = sentenceAt(state, place);
  const whose = sentence ? `Sentence ${number}` : "A finding that is not there";
  const what = isFinding(place) ? "Missing finding" : `${whose}, ${WHAT[field]}`;
  if (state.done) return [what, "reopen the study"];
  return [what, !sentence ? null : field ? "correct the sentence" : "restore the sentence"];
}

/**
 * Show words that wait.
 *
 * @param {object} state  of the draft
 * @param {{place: string, text: string}[]} waiting
 * @param {{goOn: (place: string) => void, discard: (place: string) => void}} handlers
 */
export function showWaiting(state, waiting, { goOn, discard }) {
  const root = byId("waiting");
  const said = waiting.map(({ place, text }) => {
    const [what, before] = described(state, place);
    const open = isOpen(state, place);
    return { place, text, open, what, words: !open && before ? `${what} (${before} to go on): ` : `${what}: ` };
  });
  const key = JSON.stringify(said);
  // Drawn anew, a button would lose the focus and a click that has begun on it.
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  if (root.contains(document.activeElement)) byId("report-body").focus();
  root.hidden = !waiting.length;
  byId("waiting-words").replaceChildren(...said.map(({ place, text, open, what, words }) => {
    const act = (label, run) => element("button", {
      type: "button", text: label, "aria-label": `${label}: ${what}`, on: { click: () => run(place) },
    });
    return element("li", {}, element("span", { class: "hint", text: words }), element("q", { text }), " ",
      open ? act("Go on", goOn) : null, " ", act("Discard", discard));
  }));
}
