/** Dialog to choose the reader. A tab keeps its reader; another tab may have another one. */

import { post } from "./api.js";
import { asSentence, button, byId } from "./dom.js";
import { setSetting, setting } from "./storage.js";

const TAB_READER = "maira-review:reader";

/** The reader of this tab, or null. */
export function tabReader() {
  return JSON.parse(sessionStorage.getItem(TAB_READER));
}

/** Ask for the reader; a new name is sent to the server. Without a present reader the dialog stays until there is one. */
export function askReader(names, present) {
  const dialog = byId("reader-dialog");
  const [form, input, problem, known] = ["reader-form", "reader-name", "reader-error", "known-readers"].map(byId);
  return new Promise((resolve) => {
    form.onsubmit = async (event) => {
      event.preventDefault();
      problem.textContent = "";
      const name = input.value.trim().split(/\s+/).join(" ");
      try {
        if (name) dialog.close((await post("/api/readers", { name })).name);
      } catch (error) {
        problem.textContent = asSentence(error.message);
      }
    };
    dialog.onclose = () => {
      const name = dialog.returnValue;
      if (name) {
        sessionStorage.setItem(TAB_READER, JSON.stringify(name));
        setSetting("reader", name);
      }
      if (name || present !== null) resolve(name);
      else dialog.showModal();
    };
    dialog.returnValue = "";
    known.replaceChildren(...names.map((name) => (
      button(name, () => dialog.close(name), { class: name === setting("reader") ? "primary" : "" }))));
    byId("reader-label").textContent = names.length ? "Another name" : "Your name";
    input.value = "";
    dialog.showModal();
    (known.querySelector(".primary") ?? known.querySelector("button") ?? input).focus();
  });
}
