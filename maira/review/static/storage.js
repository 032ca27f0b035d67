/** Browser storage of unsent changes and times, unsaved text and settings. */

const PREFIX = "maira-review";

// What a full store does not take lives as long as the page.
const memory = new Map();

function read(key) {
  return memory.get(key) ?? JSON.parse(localStorage.getItem(key));
}

function write(key, value) {
  memory.delete(key);
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, JSON.stringify(value));
  } catch {
    memory.set(key, value);
  }
}

/** A setting of this browser (theme, single keys), or null. */
export function setting(name) {
  return read(`${PREFIX}:setting:${name}`);
}

export function setSetting(name, value) {
  write(`${PREFIX}:setting:${name}`, value);
}

/** Key of a study and its draft, because the same study has other drafts in other sets. */
export function keyOf(study) {
  const drafted = study.state.sentences.map((sentence) => sentence.draft_text).filter((text) => text !== null);
  const texts = study.candidates.length ? study.candidates : drafted;
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
    const keys = new Set([...Object.keys(localStorage), ...memory.keys()].filter((key) => key.startsWith(prefix)));
    return new Map([...keys].map((key) => [key.slice(prefix.length), read(key)]));
  }

  /** Store a value; null removes it. */
  keep(kind, id, value) {
    write(`${this.prefix}:${kind}:${id}`, value);
  }
}
