/** Requests to the server, and the two ways in which they fail. */

function reasonIn(body) {
  return typeof body?.error === "string" ? body.error : null;
}

/** The server refused the request. */
export class Refused extends Error {
  constructor(status, body) {
    super(reasonIn(body) ?? `the server refused the request (${status})`);
    this.status = status;
    this.body = body;
  }
}

/** No response, or an unreliable one. The request may have arrived, so it is repeated. */
class Unreachable extends Error {}

// After this time without a response, a request is repeated under the same id.
const TIMEOUT_MS = 15_000;

async function request(path, options) {
  let response;
  let body;
  try {
    response = await fetch(path, {
      credentials: "same-origin", cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS), ...options,
    });
    body = await response.json();
  } catch (error) {
    if (!response || response.ok || response.status >= 500) throw new Unreachable("no connection to the server");
  }
  if (response.status >= 500) throw new Unreachable(reasonIn(body) ?? "internal server error");
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

export function get(path) {
  return request(path, {});
}

export function post(path, body, options = {}) {
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...options });
}
