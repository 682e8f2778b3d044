// Checks rows, a seal and its signature with the browser's own cryptography; the formats are those
// of docs/spec.md. Nothing is said to hold that was not computed here.

export const PENDING = 0;
export const HOLDS = 1;
export const BROKEN = 2;
export const BEHIND = 3; // it may hold in itself; a row before it does not
export const UNCHECKED = 4; // this browser cannot

const GENESIS = "0".repeat(64);
const BATCH = 256;
const EVENT = /^[a-z][a-z0-9_.]{0,63}$/;
const LANE = /^[A-Za-z0-9._/-]{0,128}$/;
const TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$/;
const START = '"payload":';
const END = ',"payload_hash":"';
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Whether this browser has what a check takes: it offers it to secure contexts alone. */
export const canVerify = () => globalThis.crypto?.subtle !== undefined;

/** @param {string | Uint8Array} data */
async function sha256(data) {
  const bytes = typeof data === "string" ? encoder.encode(data) : data;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {any} */ (bytes)));
  let hex = "";
  for (const byte of digest) hex += HEX[byte];
  return hex;
}

const HEX = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

/**
 * A row, as it stands and as it reads.
 *
 * @typedef {object} Row
 * @property {number} index
 * @property {string} event
 * @property {string} lane
 * @property {string} eventHash What the row states.
 * @property {string} prevHash
 * @property {string} payloadHash
 * @property {number} time Milliseconds since 1970, from the envelope.
 * @property {Uint8Array} bytes
 * @property {number} state
 */

/**
 * Read a line as a row.
 *
 * @param {Uint8Array} bytes Without its LF.
 * @returns {[Row, string, string] | null} The row, its payload's text, and what is wrong with its
 *   spelling or "".
 */
export function readRow(bytes) {
  try {
    const text = decoder.decode(bytes);
    const start = text.indexOf(START) + START.length;
    const end = text.lastIndexOf(END);
    if (start < START.length || end < start || text[start] !== "{") return null;
    const before = text.slice(0, start);
    const behind = text.slice(end);
    const read = JSON.parse(`${before}null${behind}`);
    const { index, event, lane, payload_hash, prev_hash, event_hash, ts, elapsed_s } = read;
    const spelled =
      before === `{"index":${index},"event":"${event}","lane":"${lane}","payload":` &&
      behind ===
        `,"payload_hash":"${payload_hash}","prev_hash":"${prev_hash}","event_hash":"${event_hash}",` +
          `"ts":"${ts}","elapsed_s":${Number(elapsed_s).toFixed(6)}}` &&
      Number.isSafeInteger(index) &&
      EVENT.test(event) &&
      LANE.test(lane) &&
      TIME.test(ts);
    const row = {
      index,
      event: String(event),
      lane: String(lane),
      eventHash: String(event_hash),
      prevHash: String(prev_hash),
      payloadHash: String(payload_hash),
      time: Date.parse(ts),
      bytes,
      state: PENDING,
    };
    return [row, text.slice(start, end), spelled ? "" : "envelope"];
  } catch {
    return null;
  }
}

/** The payload of a row, as a value; null where it is none. @param {Row} row */
export function payloadOf(row) {
  try {
    const text = decoder.decode(row.bytes);
    return JSON.parse(text.slice(text.indexOf(START) + START.length, text.lastIndexOf(END)));
  } catch {
    return null;
  }
}

/** What a row's hash and its payload's are by computation. @param {Row} row @param {string} payload */
export async function hashesOf(row, payload) {
  const inner = await sha256(`bernstein.payload.v1\n${row.event}\n${row.lane}\n${payload}`);
  const outer = await sha256(`bernstein.event.v1\n${row.prevHash}\n${row.event}\n${inner}\n${row.index}`);
  return [inner, outer];
}

/** Checks rows in the order in which they come, some hundreds at a time. */
export class ChainCheck {
  /** @param {(state: ChainCheck) => void} onChange Called behind each batch. */
  constructor(onChange) {
    this.rows = 0;
    this.checked = 0;
    this.head = GENESIS;
    /** @type {{ index: number, why: string, expected: string, actual: string } | null} */
    this.broken = null;
    this.canVerify = canVerify();
    /** @type {[Row, string, string][]} */
    this.queue = [];
    this.isBusy = false;
    this.onChange = onChange;
    /** @type {(() => void)[]} */
    this.idle = [];
  }

  /** @param {[Row, string, string]} read A row of `readRow`. */
  push(read) {
    this.rows += 1;
    if (!this.canVerify) read[0].state = UNCHECKED;
    else if (this.broken) read[0].state = BEHIND;
    else this.queue.push(read);
    if (!this.isBusy) this.run();
  }

  /** A line came that is no row. @param {string} why */
  async fail(why) {
    await this.settled();
    if (!this.broken) {
      this.broken = { index: this.rows, why, expected: "", actual: "" };
      this.onChange(this);
    }
  }

  /** Resolves once all rows that came are checked. */
  async settled() {
    if (this.isBusy) await new Promise((resolve) => this.idle.push(() => resolve(undefined)));
  }

  async run() {
    this.isBusy = true;
    while (this.queue.length > 0) {
      const batch = this.queue.splice(0, BATCH);
      const hashes = await Promise.all(batch.map(([row, payload]) => hashesOf(row, payload)));
      batch.forEach(([row, , problem], place) => {
        if (this.broken) row.state = BEHIND;
        else this.take(row, problem, hashes[place]);
      });
      this.onChange(this);
    }
    this.isBusy = false;
    this.idle.splice(0).forEach((resolve) => resolve());
    this.onChange(this);
  }

  /** @param {Row} row @param {string} problem @param {string[]} hashes */
  take(row, problem, [inner, outer]) {
    /** @type {[string, string, string] | null} */
    let wrong = null;
    if (row.index !== this.checked) wrong = ["order", String(this.checked), String(row.index)];
    else if (row.prevHash !== this.head) wrong = ["order", this.head, row.prevHash];
    else if (row.payloadHash !== inner) wrong = ["payload", inner, row.payloadHash];
    else if (row.eventHash !== outer) wrong = ["event", outer, row.eventHash];
    else if (problem) wrong = [problem, "", ""];
    if (wrong) {
      const [why, expected, actual] = wrong;
      row.state = BROKEN;
      this.broken = { index: this.checked, why, expected, actual };
      return;
    }
    row.state = HOLDS;
    this.head = outer;
    this.checked += 1;
  }
}

/** JSON as RFC 8785 spells it. @param {any} value @returns {string} */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
}

/** @param {string} text */
function unhex(text) {
  if (!/^([0-9a-f]{2})*$/.test(text)) return null;
  return Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

/**
 * What a check of a seal came to.
 *
 * @typedef {object} SealCheck
 * @property {"holds" | "broken" | "unchecked"} seal
 * @property {"holds" | "broken" | "unchecked"} signature
 * @property {string} signer The id of the key that it names.
 * @property {string} why
 */

/**
 * Hold rows that were checked against their seal.
 *
 * @param {string} text The seal as it stands.
 * @param {string | null} publicKey The key that it names, in hex.
 * @param {ChainCheck} chain All rows, checked.
 * @param {Row[]} rows
 * @param {string} runId
 * @returns {Promise<SealCheck>}
 */
export async function checkSeal(text, publicKey, chain, rows, runId) {
  /** @type {SealCheck} */
  const found = { seal: "unchecked", signature: "unchecked", signer: "", why: "" };
  if (!chain.canVerify) return { ...found, why: "this browser offers no WebCrypto here" };
  /** @type {any} */
  let seal;
  try {
    seal = JSON.parse(text);
  } catch {
    seal = null;
  }
  if (seal === null || typeof seal !== "object" || `${canonical(seal)}\n` !== text || seal.v !== 1) {
    return { ...found, seal: "broken", why: "the seal is not in its only spelling" };
  }
  found.signer = String(seal.key_id);
  const wrong = await firstWrong(seal, chain, rows, runId);
  found.seal = wrong ? "broken" : "holds";
  found.why = wrong;
  const { sig, ...unsigned } = seal;
  const [raw, signature] = [unhex(publicKey ?? ""), unhex(String(sig))];
  if (publicKey === null || raw === null) {
    return { ...found, why: found.why || "the key that it names is not here" };
  }
  if (raw.length !== 32 || signature === null || (await sha256(raw)) !== seal.key_id) {
    return { ...found, signature: "broken", why: found.why || "the key is not the one that it names" };
  }
  const message = encoder.encode(`bernstein.seal.v1\n${canonical(unsigned)}`);
  let key;
  try {
    key = await crypto.subtle.importKey("raw", raw, { name: "Ed25519" }, false, ["verify"]);
  } catch {
    return { ...found, why: found.why || "this browser does not check Ed25519" };
  }
  const holds = await crypto.subtle.verify("Ed25519", key, signature, message);
  found.signature = holds ? "holds" : "broken";
  if (!holds) found.why ||= "the signature is not that of this key";
  return found;
}

/** @param {any} seal @param {ChainCheck} chain @param {Row[]} rows @param {string} runId */
async function firstWrong(seal, chain, rows, runId) {
  if (chain.broken) return `the chain is broken at row ${chain.broken.index}`;
  if (seal.run_id !== runId) return "it is of another run";
  if (seal.count !== chain.checked) return `it names ${seal.count} rows, and ${chain.checked} are here`;
  if (seal.head !== chain.head) return "it names another head";
  const size = rows.reduce((total, row) => total + row.bytes.length + 1, 0);
  const journal = new Uint8Array(size);
  let at = 0;
  for (const row of rows) {
    journal.set(row.bytes, at);
    at += row.bytes.length;
    journal[at++] = 10;
  }
  return (await sha256(journal)) === seal.journal_sha256 ? "" : "the journal's bytes are others";
}
