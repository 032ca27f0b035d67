/** Dialog to choose the reviewer. */

import { post } from "./api.js";
import { asSentence, byId, element } from "./dom.js";
import { setSetting, setTabReviewer, setting } from "./storage.js";

/**
 * Ask for the reviewer; a new name is sent to the server.
 *
 * @param {string[]} names  known reviewers
 * @param {string | null} present  current reviewer; with one, the dialog can be closed
 * @returns {Promise<string | null>}  null if the dialog was closed
 */
export function askReviewer(names, present) {
  const dialog = byId("reviewer-dialog");
  const [form, input, problem] = ["reviewer-form", "reviewer-name", "reviewer-error"].map(byId);
  return new Promise((resolve) => {
    let chosen = null;
    const choose = (name) => {
      // Closed before the server responded.
      if (!dialog.open) return;
      chosen = name;
      setTabReviewer(name);
      setSetting("reviewer", name);
      dialog.close();
    };
    const submit = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      const name = input.value.trim().split(/\s+/).join(" ");
      try {
        if (name) choose((await post("/api/reviewers", { name })).name);
      } catch (error) {
        problem.textContent = asSentence(error.message);
      }
    };
    const stay = (event) => {
      if (present === null) event.preventDefault();
    };
    form.addEventListener("submit", submit);
    dialog.addEventListener("cancel", stay);
    dialog.addEventListener("close", () => {
      form.removeEventListener("submit", submit);
      dialog.removeEventListener("cancel", stay);
      // Closed although it must stay open, for instance by pressing Escape twice.
      if (chosen === null && present === null) resolve(askReviewer(names, present));
      else resolve(chosen);
    }, { once: true });
    byId("known-reviewers").replaceChildren(...names.map((name) => element("button", { type: "button",
      class: name === setting("reviewer") ? "primary" : "", text: name, on: { click: () => choose(name) } })));
    byId("reviewer-label").textContent = names.length ? "Another name" : "Your name";
    input.value = "";
    dialog.showModal();
    const known = byId("known-reviewers");
    (known.querySelector(".primary") ?? known.querySelector("button") ?? input).focus();
  });
}
