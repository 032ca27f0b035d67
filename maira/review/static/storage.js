/** Browser storage of unsent changes and times, unsaved text and settings. */

const PREFIX = "maira-review";

// What a full or forbidden store (which can throw on any access) does not take lives as long as the page.
const memory = new Map();

function read(store, key) {
  if (memory.has(key)) return memory.get(key);
  try {
    return JSON.parse(window[store].getItem(key));
  } catch {
    return null;
  }
}

function write(store, key, value) {
  memory.delete(key);
  try {
    if (value === null) window[store].removeItem(key);
    else window[store].setItem(key, JSON.stringify(value));
  } catch {
    memory.set(key, value);
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

/** Key of a study and its draft, because the same study has other drafts in other sets. */
export function keyOf(study) {
  const texts = study.state.sentences.map((sentence) => sentence.draft_text).filter((text) => text !== null);
  return JSON.stringify([study.sample_id, texts]);
}

/** What is stored for one reader, by kind ("change", "time:DRAFTS", "text:STUDY") and id. */
export class BrowserStorage {
  constructor(reader) {
    this.prefix = `${PREFIX}:${JSON.stringify(reader)}`;
    // Earlier versions named the place before the study.
    for (const [id, text] of this.all("text")) {
      const [, place, study] = /^([^[]+):(\[.*)$/s.exec(id) ?? [];
      if (!study) continue;
      this.keep(`text:${study}`, place, text);
      this.keep("text", id, null);
    }
  }

  /** The stored values of a kind by id. */
  all(kind) {
    const prefix = `${this.prefix}:${kind}:`;
    let stored = [];
    try {
      stored = Object.keys(localStorage);
    } catch {
      // What is in memory remains.
    }
    return new Map([...new Set([...stored, ...memory.keys()])].filter((key) => key.startsWith(prefix))
      .map((key) => [key.slice(prefix.length), read("localStorage", key)]).filter(([, value]) => value !== null));
  }

  /** Store a value; null removes it. */
  keep(kind, id, value) {
    write("localStorage", `${this.prefix}:${kind}:${id}`, value);
  }
}
