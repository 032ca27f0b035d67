/** The server's JSON, and the two ways in which it can fail to give it. */

/** The sentence in which the server says why not, without the name of a field; null where it says none. */
function reasonIn(body) {
  return typeof body?.error === "string" ? body.error.replace(/^field '[^']*': /, "") : null;
}

/** The server answered, and the answer is no. */
export class Refused extends Error {
  constructor(status, body) {
    super(reasonIn(body) ?? `the server refused this (${status})`);
    this.status = status;
    this.body = body;
  }
}

/** No answer, or none that can be relied on; whether the request arrived is not known, and it is sent again. */
export class Unreachable extends Error {}

// A request without an answer in this time is as good as lost; it is sent again under the same id.
const PATIENCE_MS = 15_000;

async function request(path, options) {
  let response;
  let body;
  try {
    response = await fetch(path, {
      credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS), ...options,
    });
    body = await response.json();
  } catch (error) {
    if (!response || response.ok || response.status >= 500) throw new Unreachable("no connection to the server");
  }
  if (response.status >= 500) throw new Unreachable(reasonIn(body) ?? "the server failed");
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

export function get(path) {
  return request(path, {});
}

export function post(path, body) {
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}
