/** Browser storage of unsent changes and times, unsaved text and settings. */

const PREFIX = "maira-review";

function read(store, key) {
  try {
    return JSON.parse(window[store].getItem(key));
  } catch {
    return null;
  }
}

// A full or forbidden store (which can throw on any access) must not stop a review. Without it, a reload loses typed text and
// the text of refused changes.
function write(store, key, value) {
  try {
    if (value === null) window[store].removeItem(key);
    else window[store].setItem(key, JSON.stringify(value));
  } catch {
    return;
  }
}

function keysOf(store) {
  try {
    return Object.keys(window[store]);
  } catch {
    return [];
  }
}

/** A setting of this browser (theme, single keys), or null. */
export function setting(name) {
  return read("localStorage", `${PREFIX}:setting:${name}`);
}

export function setSetting(name, value) {
  write("localStorage", `${PREFIX}:setting:${name}`, value);
}

/** The reader of this tab; another tab may have another one. */
export function tabReader() {
  return read("sessionStorage", `${PREFIX}:reader`);
}

export function setTabReader(name) {
  write("sessionStorage", `${PREFIX}:reader`, name);
}

/**
 * Key of a study and its draft, because the same study has other drafts in other sets.
 *
 * @param {{sample_id: string, state: {sentences: {draft_text: string | null}[]}}} study
 */
export function keyOf(study) {
  const texts = study.state.sentences.map((sentence) => sentence.draft_text).filter((text) => text !== null);
  return JSON.stringify([study.sample_id, texts]);
}

/** Changes and texts of one reader, by the key of their study. */
export class BrowserStorage {
  constructor(reader) {
    this.prefix = `${PREFIX}:${JSON.stringify(reader)}`;
  }

  /** Unanswered changes of earlier pages, oldest first. */
  changes() {
    const prefix = `${this.prefix}:change:`;
    const keys = keysOf("localStorage").filter((key) => key.startsWith(prefix));
    return keys.map((key) => read("localStorage", key)).filter(Boolean).sort((a, b) => a.order - b.order);
  }

  keepChange(change) {
    write("localStorage", `${this.prefix}:change:${change.id}`, change);
  }

  dropChange(change) {
    write("localStorage", `${this.prefix}:change:${change.id}`, null);
  }

  /** Unsent events of times of a set of drafts, see `Times`. */
  times(drafts) {
    const prefix = `${this.prefix}:time:${drafts}:`;
    const keys = keysOf("localStorage").filter((key) => key.startsWith(prefix));
    return keys.map((key) => read("localStorage", key)).filter(Boolean).sort((a, b) => a.sequence - b.sequence);
  }

  keepTime(drafts, event) {
    write("localStorage", `${this.prefix}:time:${drafts}:${event.session}:${event.sequence}`, event);
  }

  dropTime(drafts, event) {
    write("localStorage", `${this.prefix}:time:${drafts}:${event.session}:${event.sequence}`, null);
  }

  /** Unsaved text of a study by place, see `UnsavedText`. */
  texts(study) {
    const [before, after] = [`${this.prefix}:text:`, `:${study}`];
    const keys = keysOf("localStorage").filter((key) => key.startsWith(before) && key.endsWith(after));
    return new Map(keys.map((key) => [key.slice(before.length, -after.length), read("localStorage", key)])
      .filter(([, text]) => typeof text === "string"));
  }

  /** Store unsaved text of a study; null removes it. */
  keepText(study, place, text) {
    write("localStorage", `${this.prefix}:text:${place}:${study}`, text);
  }
}
