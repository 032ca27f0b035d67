/** Dialog to choose the reader. */

import { post } from "./api.js";
import { asSentence, button, byId } from "./dom.js";
import { setSetting, setTabReader, setting } from "./storage.js";

/** Ask for the reader; a new name is sent to the server. Without a present reader the dialog stays until there is one. */
export function askReader(names, present) {
  const dialog = byId("reader-dialog");
  const [form, input, problem, known] = ["reader-form", "reader-name", "reader-error", "known-readers"].map(byId);
  return new Promise((resolve) => {
    let chosen = null;
    const choose = (name) => {
      // Closed before the server responded.
      if (!dialog.open) return;
      chosen = name;
      setTabReader(name);
      setSetting("reader", name);
      dialog.close();
    };
    form.onsubmit = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      const name = input.value.trim().split(/\s+/).join(" ");
      try {
        if (name) choose((await post("/api/readers", { name })).name);
      } catch (error) {
        problem.textContent = asSentence(error.message);
      }
    };
    dialog.onclose = () => {
      if (chosen === null && present === null) dialog.showModal();
      else resolve(chosen);
    };
    known.replaceChildren(...names.map((name) => (
      button(name, () => choose(name), { class: name === setting("reader") ? "primary" : "" }))));
    byId("reader-label").textContent = names.length ? "Another name" : "Your name";
    input.value = "";
    dialog.showModal();
    (known.querySelector(".primary") ?? known.querySelector("button") ?? input).focus();
  });
}
