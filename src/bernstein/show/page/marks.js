// How the states of checks look and are read aloud. Green is for what this browser has computed.

import { counted, el, number } from "./dom.js";
import { BEHIND, BROKEN, HOLDS, PENDING, UNCHECKED } from "./verify.js";

/** @type {Record<number, [string, string, string]>} Sign, class, words. */
const STATES = {
  [PENDING]: ["·", "soft", "not checked yet"],
  [HOLDS]: ["✓", "good", "verified"],
  [BROKEN]: ["✕", "bad", "broken"],
  [BEHIND]: ["?", "warn", "behind a broken row"],
  [UNCHECKED]: ["–", "soft", "this browser cannot check it"],
};

/** @param {number} state */
export const wordsOf = (state) => STATES[state][2];

/** A sign to see, and words to hear. @param {number} state */
export function mark(state) {
  const [sign, kind, words] = STATES[state];
  return el(
    "span",
    { class: `mark ${kind}`, title: words },
    el("span", { "aria-hidden": "true" }, sign),
    el("span", { class: "unseen" }, words),
  );
}

/** @param {string} kind good, bad, warn or plain @param {string} name @param {string} text */
export const chip = (kind, name, text, title = "") =>
  el("span", { class: `chip ${kind}`, title: title || null, "data-chip": name }, text);

/** @type {Record<string, string>} */
const WHY = {
  payload: "its payload has another hash",
  event: "its hash is another one",
  order: "it does not follow the row before it",
  envelope: "it is spelled otherwise",
  not_a_row: "it is no row",
};

/** What the check of the rows came to. @param {import("./verify.js").ChainCheck} chain */
export function chainChip(chain) {
  if (!chain.canVerify)
    return chip(
      "plain",
      "rows",
      "rows: this browser cannot verify them",
      "it offers WebCrypto to https and to loopback alone",
    );
  if (chain.broken) {
    const { index, why, expected, actual } = chain.broken;
    return chip(
      "bad",
      "rows",
      `broken at row ${index}: ${WHY[why] ?? why}`,
      expected && `expected ${expected}, found ${actual}`,
    );
  }
  if (chain.checked < chain.rows)
    return chip("plain", "rows", `checking ${number(chain.checked)} of ${number(chain.rows)} rows`);
  if (chain.rows === 0) return chip("plain", "rows", "no rows yet");
  return chip("good", "rows", `${counted(chain.rows, "row")} verified here`);
}

/** @type {Record<string, string>} */
const TRUST = { own: "yours", trusted: "one that you trust", unknown: "not one that you trust" };

/**
 * @param {import("./verify.js").SealCheck | null} found
 * @param {{ seal: string | null, trust: string } | null} evidence
 * @param {boolean} isOffline
 */
export function sealChips(found, evidence, isOffline) {
  if (evidence === null) return [];
  if (evidence.seal === null) return [chip("warn", "seal", "no seal: rows can be missing at the end")];
  if (found === null) return [chip("plain", "seal", "checking the seal")];
  const key = found.signer.slice(0, 12);
  const whose = isOffline
    ? "compare the key with the one that you know"
    : `the server says that the key is ${TRUST[evidence.trust] ?? evidence.trust}`;
  return [
    {
      holds: () => chip("good", "seal", "the seal holds"),
      broken: () => chip("bad", "seal", `the seal is broken: ${found.why}`),
      unchecked: () => chip("plain", "seal", `seal not checked: ${found.why}`),
    }[found.seal](),
    {
      holds: () => chip("good", "signature", `signed by ${key}…`, `key ${found.signer}; ${whose}`),
      broken: () => chip("bad", "signature", "the signature is broken"),
      unchecked: () => chip("plain", "signature", "signature not checked"),
    }[found.signature](),
  ];
}
