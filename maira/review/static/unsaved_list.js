/** List of unsaved text without an open field, to continue or discard. */

import { byId, element } from "./dom.js";
import { isFinding, isOpen, sentenceAt } from "./unsaved.js";

const WHAT = { "": "text", "why:": "comment", "own:": "type of error" };

/** Description of a place, and what must be done before its text can be continued. */
function described(state, place) {
  if (place === "comment") return ["Study, comment", "reopen the study"];
  const { field, sentence, number } = sentenceAt(state, place);
  const whose = sentence ? `Sentence ${number}` : "A removed sentence";
  const what = isFinding(place) ? "Missing finding" : `${whose}, ${WHAT[field]}`;
  if (state.done) return [what, "reopen the study"];
  return [what, !sentence ? null : field ? "correct the sentence" : "restore the sentence"];
}

/**
 * Show unsaved text.
 *
 * @param {object} state  of the draft
 * @param {{place: string, text: string}[]} waiting
 * @param {{continueTyping: (place: string) => void, discard: (place: string) => void}} handlers
 */
export function showUnsaved(state, waiting, { continueTyping, discard }) {
  const root = byId("unsaved");
  const items = waiting.map(({ place, text }) => {
    const [what, before] = described(state, place);
    const open = isOpen(state, place);
    return { place, text, open, what, words: !open && before ? `${what} (${before} to continue): ` : `${what}: ` };
  });
  const key = JSON.stringify(items);
  // Redrawing a button would lose its focus, and a click that has started on it.
  if (root.dataset.key === key) return;
  root.dataset.key = key;
  if (root.contains(document.activeElement)) byId("report-body").focus();
  root.hidden = !waiting.length;
  byId("unsaved-items").replaceChildren(...items.map(({ place, text, open, what, words }) => {
    const act = (label, run) => element("button", {
      type: "button", text: label, "aria-label": `${label}: ${what}`, on: { click: () => run(place) },
    });
    return element("li", {}, element("span", { class: "hint", text: words }), element("q", { text }), " ",
      open ? act("Continue", continueTyping) : null, " ", act("Discard", discard));
  }));
}
