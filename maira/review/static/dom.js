/** Helpers for page elements. Content is always set as text, never as markup. */

import { setSetting, setting } from "./storage.js";

/** A new element, as of viewer.js, with listeners (`on`) that `fill` can replace, and properties (`props`). */
export function element(tag, { on = {}, props = {}, ...attributes } = {}, ...children) {
  const written = Object.entries(attributes).filter(([, value]) => value !== false)
    .map(([name, value]) => [name, value === true ? "" : value]);
  const node = window.element(tag, Object.fromEntries(written), ...children);
  if (Array.isArray(attributes.class)) node.className = attributes.class.filter(Boolean).join(" ");
  Object.assign(node, props, { props, listeners: on });
  for (const name of Object.keys(on)) node.addEventListener(name, (event) => node.listeners[name](event));
  return node;
}

export function button(text, click, attributes = {}) {
  return element("button", { type: "button", text, ...attributes, on: { click } });
}

/**
 * Give an element these children. Present ones of the same `data-key`, or of the same tag in the same place, become like the
 * new ones instead of being replaced: focus, cursor and a click in progress stay.
 */
export function fill(parent, ...children) {
  const wanted = children.filter((child) => child !== null)
    .map((child) => (child instanceof Node ? child : new Text(child)));
  const keys = new Set(wanted.map((child) => child.dataset?.key));
  for (const child of [...parent.children]) if (child.dataset.key && !keys.has(child.dataset.key)) child.remove();
  wanted.forEach((child, at) => {
    const present = parent.childNodes[at] ?? null;
    const isSame = present?.nodeName === child.nodeName && present.dataset?.key === child.dataset?.key;
    if (isSame) become(present, child);
    else parent.insertBefore(child, present);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function become(node, wanted) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (node.data !== wanted.data) node.data = wanted.data;
    return;
  }
  for (const { name } of [...node.attributes, ...wanted.attributes]) {
    const value = wanted.getAttribute(name);
    if (value === null && name !== "style") node.removeAttribute(name);
    else if (value !== null && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  node.listeners = wanted.listeners;
  fill(node, ...wanted.childNodes);
  for (const [name, value] of Object.entries(wanted.props)) if (node[name] !== value) node[name] = value;
}

export function byId(id) {
  return document.getElementById(id);
}

export function onClicks(actions) {
  for (const [id, run] of Object.entries(actions)) byId(id).addEventListener("click", run);
}

/** Handle an event alone, without the browser's action. */
export function consume(event) {
  event.preventDefault();
  event.stopPropagation();
}

/** Use the stored theme, and switch it by its button. */
export function bindTheme() {
  const { dataset } = document.documentElement;
  const use = (theme) => {
    setSetting("theme", theme);
    dataset.theme = theme;
    byId("theme").setAttribute("aria-pressed", String(theme === "light"));
  };
  use(setting("theme") ?? "dark");
  byId("theme").addEventListener("click", () => use(dataset.theme === "dark" ? "light" : "dark"));
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
  byId("message").textContent = words;
  announce(words);
}

for (const name of ["keydown", "pointerdown"]) {
  document.addEventListener(name, () => byId("message").replaceChildren(), { capture: true });
}

/** Show an alert until it is dismissed or replaced; returns its element. */
export function alertBar(text) {
  const bar = element("div", { class: "alert" }, element("span", { text }), button("Dismiss", () => bar.remove()));
  byId("alert").replaceChildren(bar);
  return bar;
}
