/** Queue of changes to the server: sent one at a time in order, each stored in this browser until the response. */

import { post, Refused } from "./api.js";

const WAITS_MS = [500, 1000, 2000, 4000];

/** Sends changes, and repeats them under the same id without a response, so that none is applied twice. */
export class ChangeQueue {
  /** Why no change is sent: `{isSignedOut, message}`, or null if the last request was answered. */
  trouble = null;
  #sending = false;
  #failures = 0;
  #timer = null;

  /** The page has `render()`, `answered(change, state)` and `refused(change, lost, error)`. */
  constructor(reader, storage, leftover, page) {
    // Unanswered changes.
    Object.assign(this, { reader, storage, page, waiting: leftover });
    window.addEventListener("online", () => this.flush());
  }

  /** Unanswered changes of one study, in order. */
  of(number) {
    return this.waiting.filter((change) => change.number === number);
  }

  push(number, study, version, kind, fields) {
    const last = this.waiting.at(-1)?.order ?? 0;
    const change = { id: newId(), order: Math.max(Date.now(), last + 1), number, study, version, kind, fields };
    this.waiting.push(change);
    this.storage.keep("change", change.id, change);
    this.flush();
  }

  async flush() {
    clearTimeout(this.#timer);
    this.page.render();
    if (this.#sending) return;
    this.#sending = true;
    while (this.waiting.length && await this.#send(this.waiting[0]));
    this.#sending = false;
    this.page.render();
  }

  /** Send a change, and return whether it was answered. */
  async #send(change) {
    const { id, number, version, kind, fields } = change;
    try {
      const { state } = await post(`/api/studies/${number}/changes`, { reader: this.reader, id, version, kind, ...fields });
      this.#remove([change]);
      this.page.answered(change, state);
    } catch (error) {
      if (!(error instanceof Refused) || error.isSignedOut) {
        this.trouble = error;
        const wait = WAITS_MS[Math.min(this.#failures, WAITS_MS.length - 1)];
        this.#failures += 1;
        this.#timer = setTimeout(() => this.flush(), wait);
        return false;
      }
      // The changes after a refused one apply to a state that does not exist.
      const lost = this.of(number);
      this.#remove(lost);
      this.page.refused(change, lost, error);
    }
    this.page.render();
    return true;
  }

  #remove(changes) {
    this.waiting = this.waiting.filter((change) => !changes.includes(change));
    for (const { id } of changes) this.storage.keep("change", id, null);
    this.#failures = 0;
    this.trouble = null;
  }
}

/** 128 random bits; `crypto.randomUUID` is only available on https and loopback. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
