/** What this browser keeps until the server has it: changes under way, and text that is still being typed. */

const PREFIX = "maira-review";

function read(store, key) {
  try {
    return JSON.parse(window[store].getItem(key));
  } catch {
    return null;
  }
}

// A full or forbidden store, of which even the name throws, must not stop a review: then only a reload in mid-edit loses
// what was typed.
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

/** A setting of this browser (theme, single keys), null where there is none. */
export function setting(name) {
  return read("localStorage", `${PREFIX}:setting:${name}`);
}

export function setSetting(name, value) {
  write("localStorage", `${PREFIX}:setting:${name}`, value);
}

/** The reviewer of this tab; another tab may have another one. */
export function tabReviewer() {
  return read("sessionStorage", `${PREFIX}:reviewer`);
}

export function setTabReviewer(name) {
  write("sessionStorage", `${PREFIX}:reviewer`, name);
}

/**
 * What marks a study together with its draft: the same study has other drafts in other sets.
 *
 * @param {{sample_id: string, state: {sentences: {draft_text: string | null}[]}}} study
 */
export function keyOf(study) {
  const texts = study.state.sentences.map((sentence) => sentence.draft_text).filter((text) => text !== null);
  return JSON.stringify([study.sample_id, texts]);
}

/** Changes and texts of one reviewer, by the key of their study. */
export class Kept {
  constructor(reviewer) {
    this.prefix = `${PREFIX}:${JSON.stringify(reviewer)}`;
  }

  /** Changes without an answer, oldest first, as earlier pages left them. */
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

  /**
   * Text being typed into one place of a study: a sentence's id, "new", "comment", or "why:" or "own:" and a sentence's id;
   * of a finding that could not be added, "new:" and the id of its change stand for the sentence.
   */
  text(study, place) {
    return read("localStorage", this.#textKey(study, place));
  }

  keepText(study, place, text) {
    write("localStorage", this.#textKey(study, place), text);
  }

  dropText(study, place) {
    write("localStorage", this.#textKey(study, place), null);
  }

  moveText(study, from, to) {
    const text = this.text(study, from);
    if (text === null) return;
    this.keepText(study, to, text);
    this.dropText(study, from);
  }

  /** Places of findings that are not added yet. */
  findings(study) {
    const [before, after] = [`${this.prefix}:text:`, `:${study}`];
    return keysOf("localStorage").filter((key) => key.startsWith(`${before}new`) && key.endsWith(after))
      .map((key) => key.slice(before.length, -after.length)).filter((place) => this.text(study, place)).sort();
  }

  /**
   * Keep the words in changes that were not taken; what has been typed in their places since stays.
   *
   * @param {object[]} changes  of one study, oldest first
   * @param {string[]} errorTypes  those that can be chosen; another one was typed
   * @param {object | null} state  of the study where the server told it; the text of a finding that it lacks is one to add
   */
  keepWords(changes, errorTypes, state) {
    const gone = ({ sentence }) => state !== null && !state.sentences.some(({ id }) => id === sentence);
    const findings = new Map(changes.filter(({ kind, fields }) => kind === "add" || (kind === "edit" && gone(fields)))
      .map(({ kind, version, id, fields }) => [kind === "add" ? `a${version}` : fields.sentence, `new:${id}`]));
    for (const { study, kind, version, fields } of [...changes].reverse()) {
      const sentence = kind === "add" ? `a${version}` : fields.sentence;
      const place = findings.get(sentence) ?? sentence;
      if (place !== sentence) {
        for (const field of ["", "why:", "own:"]) this.moveText(study, `${field}${sentence}`, `${field}${place}`);
      }
      const words = {
        [kind === "comment" ? "comment" : place]: fields.text,
        [`why:${place}`]: fields.comment,
        [`own:${place}`]: errorTypes.includes(fields.error_type) ? null : fields.error_type,
      };
      for (const [where, text] of Object.entries(words)) {
        if (text && this.text(study, where) === null) this.keepText(study, where, text);
      }
    }
  }

  #textKey(study, place) {
    return `${this.prefix}:text:${place}:${study}`;
  }
}
