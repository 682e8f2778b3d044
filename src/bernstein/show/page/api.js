// What the server is asked beside the rows.

/** An answer that says no. */
export class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * @param {string} path Below `api/`.
 * @param {RequestInit} [options]
 * @returns {Promise<any>}
 */
export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(`api/${path}`, options);
  } catch {
    throw new Refused(0, "the server does not answer: is `bernstein serve` still running?");
  }
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, value.error ?? `answered ${response.status}`);
  return value;
}

/** @param {string} token */
export const bearer = (token) => ({ Authorization: `Bearer ${token}` });

/** @param {string} runId */
export const runPath = (runId) => `runs/${encodeURIComponent(runId)}`;
