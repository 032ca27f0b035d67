/** Requests to the server, and the two ways in which they fail. */

export class Refused extends Error {
  constructor(status, body) {
    super(body?.error ?? `the server refused the request (${status})`);
    Object.assign(this, { status, body });
  }

  get isSignedOut() {
    return [401, 403].includes(this.status);
  }
}

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
  } catch {
    // No response, or an unreliable one. The request may have arrived, so it is repeated.
    if (!response || response.ok || response.status >= 500) throw new Error("no connection to the server");
  }
  if (response.status >= 500) throw new Error(body?.error ?? "internal server error");
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

export function get(path) {
  return request(path, {});
}

export function post(path, body, options = {}) {
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...options });
}
