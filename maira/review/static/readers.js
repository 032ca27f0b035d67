/** Dialog to choose the reader. */

import { post } from "./api.js";
import { asSentence, byId, element } from "./dom.js";
import { setSetting, setTabReader, setting } from "./storage.js";

/** Ask for the reader; a new name is sent to the server. */
export function askReader(names, present) {
  const dialog = byId("reader-dialog");
  const [form, input, problem] = ["reader-form", "reader-name", "reader-error"].map(byId);
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
    const submit = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      const name = input.value.trim().split(/\s+/).join(" ");
      try {
        if (name) choose((await post("/api/readers", { name })).name);
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
      if (chosen === null && present === null) resolve(askReader(names, present));
      else resolve(chosen);
    }, { once: true });
    byId("known-readers").replaceChildren(...names.map((name) => element("button", { type: "button",
      class: name === setting("reader") ? "primary" : "", text: name, on: { click: () => choose(name) } })));
    byId("reader-label").textContent = names.length ? "Another name" : "Your name";
    input.value = "";
    dialog.showModal();
    const known = byId("known-readers");
    (known.querySelector(".primary") ?? known.querySelector("button") ?? input).focus();
  });
}
