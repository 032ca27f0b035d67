/** Browser storage of unsent changes and times, unsaved text and settings. */

const PREFIX = "maira-review";

// What a full or forbidden store (which can throw on any access) does not take lives as long as the page.
const memory = new Map();

function attempt(run, otherwise) {
  try {
    return run();
  } catch {
    return otherwise();
  }
}

function read(key, store = "localStorage") {
  return memory.get(key) ?? attempt(() => JSON.parse(window[store].getItem(key)), () => null);
}

function write(key, value, store = "localStorage") {
  memory.delete(key);
  attempt(
    () => (value === null ? window[store].removeItem(key) : window[store].setItem(key, JSON.stringify(value))),
    () => memory.set(key, value),
  );
}

/** A setting of this browser (theme, single keys), or null. */
export function setting(name) {
  return read(`${PREFIX}:setting:${name}`);
}

export function setSetting(name, value) {
  write(`${PREFIX}:setting:${name}`, value);
}

/** The reader of this tab; another tab may have another one. */
export function tabReader() {
  return read(`${PREFIX}:reader`, "sessionStorage");
}

export function setTabReader(name) {
  write(`${PREFIX}:reader`, name, "sessionStorage");
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
  }

  /** The stored values of a kind by id. */
  all(kind) {
    const prefix = `${this.prefix}:${kind}:`;
    const stored = attempt(() => Object.keys(localStorage), () => []);
    return new Map([...new Set([...stored, ...memory.keys()])].filter((key) => key.startsWith(prefix))
      .map((key) => [key.slice(prefix.length), read(key)]).filter(([, value]) => value !== null));
  }

  /** Store a value; null removes it. */
  keep(kind, id, value) {
    write(`${this.prefix}:${kind}:${id}`, value);
  }
}
