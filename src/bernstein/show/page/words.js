// Values of payloads that others may have written, read without trust in their kinds.

import { payloadOf } from "./verify.js";

/** A row's payload, as an object. @param {import("./verify.js").Row} row @returns {any} */
export function objectOf(row) {
  const payload = payloadOf(row);
  return payload !== null && typeof payload === "object" ? payload : {};
}

/** A text that is made of what others wrote: it can have members that become none. @param {() => string} make */
export function safely(make) {
  try {
    return String(make());
  } catch {
    return "(not readable)";
  }
}

/** @param {unknown} reason */
export const because = (reason) => (reason === undefined || reason === null ? "" : ` (${reason})`);

/** What ought to be a text: of another kind it is none. @param {unknown} value */
export const word = (value) => (typeof value === "string" ? value : "");

/** @param {unknown} value */
export const count = (value) => (typeof value === "number" ? value : 0);
