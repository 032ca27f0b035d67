/** Dialog to choose the reviewer. */

import { post } from "./api.js";
import { asSentence, byId, element } from "./dom.js";
import { setSetting, setTabReviewer, setting } from "./storage.js";

/**
 * Ask who is reviewing; a name that is not known yet is told to the server.
 *
 * @param {string[]} names  of those who are known
 * @param {string | null} present  who reviews now; only then the question can be left without an answer
 * @returns {Promise<string | null>}  null where the question was left
 */
export function askReviewer(names, present) {
  const dialog = byId("reviewer-dialog");
  const [form, input, problem] = ["reviewer-form", "reviewer-name", "reviewer-error"].map(byId);
  return new Promise((resolve) => {
    let chosen = null;
    const choose = (name) => {
      // Left before the server answered.
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
      // Closed against its will, for instance by Escape pressed twice.
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
