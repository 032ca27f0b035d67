/** Times of readings: opening, focus, activity and finishing of studies, sent to the server and stored here until then. */

import { post, Refused } from "./api.js";
import { newId } from "./queue.js";

// While activity continues, it is recorded this often; the last activity before a pause always.
const ACTIVITY_MS = 5000;
const SEND_MS = 5000;
const RETRY_MS = 10_000;
// Fewer than the server accepts.
const BATCH = 200;
const ACTIVITIES = ["pointerdown", "pointermove", "wheel", "keydown", "input", "scroll"];

/** Records events of the page on a clock that never goes back; the server computes times from them. */
export class Times {
  #session = newId();
  #sequence = 0;
  #number = null;
  #unsent;
  #isSending = false;
  #timer = null;
  #recorded = -Infinity;
  // Activity since the last recorded one.
  #activity = null;

  constructor(reader, drafts, storage) {
    Object.assign(this, { reader, drafts, storage, kind: `time:${drafts}` });
    // Of earlier pages, or of other windows, which send them too; the server accepts each event once.
    this.#unsent = [...storage.all(this.kind).values()].sort((one, other) => one.sequence - other.sequence);
    for (const name of ACTIVITIES) document.addEventListener(name, () => this.#active(), { capture: true, passive: true });
    document.addEventListener("visibilitychange", () => this.#record(document.visibilityState === "visible" ? "show" : "hide"));
    for (const kind of ["focus", "blur"]) window.addEventListener(kind, () => this.#record(kind));
    window.addEventListener("online", () => this.#send());
    window.addEventListener("pagehide", () => this.#leave());
    window.addEventListener("pageshow", ({ persisted }) => {
      if (persisted) this.open(this.#number);
    });
    this.#plan();
  }

  open(number) {
    this.#record("open", number);
    if (document.visibilityState !== "visible") this.#record("hide");
    if (!document.hasFocus()) this.#record("blur");
    this.#send();
  }

  finish() {
    this.#record("finish");
    this.#send();
  }

  #active() {
    this.#activity = performance.now();
    if (this.#activity - this.#recorded >= ACTIVITY_MS) this.#recordActivity();
  }

  #recordActivity() {
    if (this.#activity === null || this.#number === null) return;
    this.#recorded = this.#activity;
    this.#append("active", this.#activity);
    this.#activity = null;
  }

  #record(kind, number = this.#number) {
    if (number === null) return;
    this.#recordActivity();
    this.#number = number;
    this.#append(kind, performance.now());
  }

  #append(kind, clock) {
    const event = {
      session: this.#session, origin: Date.now() - performance.now(), sequence: this.#sequence, number: this.#number, kind, clock,
    };
    this.#sequence += 1;
    this.#unsent.push(event);
    this.storage.keep(this.kind, `${event.session}:${event.sequence}`, event);
    this.#plan();
  }

  #plan(wait = SEND_MS) {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#recordActivity();
      this.#send();
    }, wait);
  }

  #leave() {
    this.#record("close");
    // The request outlives the page; the next page sends whatever it fails to deliver.
    if (this.#unsent.length) post("/api/times", this.#batch().body, { keepalive: true }).catch(() => {});
  }

  /** The next events of one session, and the request that sends them, with the time of now on its clock. */
  #batch() {
    const [{ session, origin }] = this.#unsent;
    const batch = this.#unsent.filter((event) => event.session === session).slice(0, BATCH);
    // The clock of an earlier page has ended; the time of day replaces it.
    const sent = session === this.#session ? performance.now() : Math.max(0, Date.now() - origin);
    const events = batch.map(({ sequence, number, kind, clock }) => ({ sequence, number, kind, clock }));
    return { batch, body: { reader: this.reader, drafts: this.drafts, session, sent, events } };
  }

  async #send() {
    if (this.#isSending) return;
    this.#isSending = true;
    while (this.#unsent.length) {
      const { batch, body } = this.#batch();
      try {
        await post("/api/times", body);
      } catch (error) {
        if (!(error instanceof Refused) || error.isSignedOut) {
          this.#plan(RETRY_MS);
          break;
        }
        // The server misses the numbers of these events, and the times of their studies count as unknown.
      }
      for (const { session, sequence } of batch) this.storage.keep(this.kind, `${session}:${sequence}`, null);
      this.#unsent = this.#unsent.filter((event) => !batch.includes(event));
    }
    this.#isSending = false;
  }
}
