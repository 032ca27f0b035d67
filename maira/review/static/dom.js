/** Helpers for page elements. Content is always set as text, never as markup. */

import { setSetting, setting } from "./storage.js";

/** Attributes shown or read to the user. */
const TEXT_ATTRIBUTES = ["alt", "aria-label", "placeholder", "title"];

/** A new element. */
export function element(tag, { text, on = {}, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === false) continue;
    const written = value === true ? "" : String(value);
    node.setAttribute(name, TEXT_ATTRIBUTES.includes(name) ? visibleText(written) : written);
  }
  if (text !== undefined) node.textContent = visibleText(String(text));
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** The element with this id. */
export function byId(id) {
  return document.getElementById(id);
}

/** Use the stored theme, and switch it by its button. */
export function bindTheme() {
  const use = (theme) => {
    document.documentElement.dataset.theme = theme;
    byId("theme").setAttribute("aria-pressed", String(theme === "light"));
  };
  use(setting("theme") ?? "dark");
  byId("theme").addEventListener("click", () => {
    setSetting("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    use(setting("theme"));
  });
}

/** "1 study", "2 studies". */
export function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/** Text as a sentence, with a capital letter and a full stop. */
export function asSentence(words) {
  return `${words.slice(0, 1).toUpperCase()}${words.slice(1)}${/[.!?…]$/.test(words) ? "" : "."}`;
}

/** Announce something to screen readers; repeated text is announced again. */
export function announce(words) {
  const region = byId("announcer");
  region.textContent = region.textContent === words ? `${words}\u00a0` : words;
}

/** Show a message until the next key or click, and announce it. */
export function notify(words) {
  const message = byId("message");
  message.textContent = words;
  message.hidden = false;
  announce(words);
}

for (const name of ["keydown", "pointerdown"]) {
  document.addEventListener(name, () => {
    byId("message").hidden = true;
  }, { capture: true });
}

let isAlertValid = () => true;

/** Show an alert until it is dismissed, replaced or no longer valid. */
export function alertBar(words, { action = null, holds = () => true } = {}) {
  const bar = byId("alert");
  isAlertValid = holds;
  bar.hidden = words === null;
  if (words === null) {
    bar.replaceChildren();
    return;
  }
  const dismiss = element("button", { type: "button", text: "Dismiss", on: { click: () => alertBar(null) } });
  const act = action && element("button", { type: "button", text: action.label, on: { click: () => {
    alertBar(null);
    action.run();
  } } });
  bar.replaceChildren(element("span", { text: words }), ...(act ? [act] : []), dismiss);
}

/** Remove an alert that is no longer valid. */
export function checkAlert() {
  if (!isAlertValid()) alertBar(null);
}

/** Close a menu by Escape or a click outside. */
export function closeOnOutsideClick(menu) {
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    event.preventDefault();
    event.stopPropagation();
    menu.open = false;
    menu.querySelector("summary").focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!menu.contains(event.target)) menu.open = false;
  }, { capture: true });
}

/** Whether keys typed into this element are text. */
export function takesText(node) {
  return node instanceof HTMLTextAreaElement || node instanceof HTMLSelectElement
    || (node instanceof HTMLInputElement && !["checkbox", "radio", "range", "button"].includes(node.type));
}
