// The rows of a run as they come: server-sent events, read as bytes, so that what is hashed is what
// was sent. A stream that breaks goes on behind the last row that came, on whichever server answers.

import { readRow } from "./verify.js";

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 5000;
const HIDDEN_MS = 30_000;
const decoder = new TextDecoder();

/**
 * @typedef {object} Listener
 * @property {(rows: [import("./verify.js").Row, string, string][]) => void} onRows
 * @property {(why: string) => void} onBadRow A line came that is no row.
 * @property {(state: "live" | "waiting" | "finished" | "interrupted" | "parked" | "broken" | "refused",
 *   note?: string) => void} onState
 */

/** Follows one run until it ends or `stop` is called. */
export class Stream {
  /** @param {string} runId @param {Listener} listener */
  constructor(runId, listener) {
    this.url = `api/runs/${encodeURIComponent(runId)}/events`;
    this.listener = listener;
    this.last = -1;
    this.isStopped = false;
    this.isParked = false;
    /** @type {AbortController | null} */
    this.request = null;
    this.onVisibility = () => this.pause();
    document.addEventListener("visibilitychange", this.onVisibility);
    this.follow();
  }

  stop() {
    this.isStopped = true;
    document.removeEventListener("visibilitychange", this.onVisibility);
    this.request?.abort();
  }

  /** A page that nobody sees holds no connection: a browser has few for one host. */
  pause() {
    clearTimeout(this.hiding);
    if (document.hidden) this.hiding = setTimeout(() => this.request?.abort(), HIDDEN_MS);
  }

  async follow() {
    let wait = FIRST_WAIT_MS;
    while (!this.isStopped) {
      if (document.hidden && this.last >= 0) await visible();
      const before = this.last;
      const isOver = await this.once().catch(() => false);
      if (isOver || this.isStopped) break;
      if (!this.isParked) this.listener.onState("waiting");
      wait = this.last > before ? FIRST_WAIT_MS : Math.min(wait * 2, LONGEST_WAIT_MS);
      await new Promise((resolve) => setTimeout(resolve, wait * (0.5 + Math.random() / 2)));
    }
    document.removeEventListener("visibilitychange", this.onVisibility);
  }

  /** One connection. @returns {Promise<boolean>} Whether nothing more is to come. */
  async once() {
    this.request = new AbortController();
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    if (this.last >= 0) headers["Last-Event-ID"] = String(this.last);
    const response = await fetch(this.url, { headers, signal: this.request.signal });
    if (response.status === 204) return true;
    if (response.status >= 500) return false;
    if (!response.ok || response.body === null) {
      const told = await response.json().catch(() => ({}));
      this.listener.onState("refused", `${response.status}: ${told.error ?? "refused"}`);
      return true;
    }
    if (!this.isParked) this.listener.onState("live");
    const reader = response.body.getReader();
    let rest = new Uint8Array(0);
    while (true) {
      const { done, value } = await reader.read();
      if (done || this.isStopped) return this.isStopped;
      const bytes = rest.length ? joined(rest, value) : value;
      const end = this.take(bytes);
      if (end < 0) return !this.isParked;
      rest = bytes.subarray(end);
    }
  }

  /** Take the whole events of some bytes. @param {Uint8Array} bytes @returns {number} Where they end; -1 behind the last. */
  take(bytes) {
    /** @type {any[]} */
    const rows = [];
    let [at, name, isOver] = [0, "", false];
    /** @type {Uint8Array | null} */
    let data = null;
    let end = 0;
    for (let stop = bytes.indexOf(10, at); stop >= 0; stop = bytes.indexOf(10, at)) {
      const line = bytes.subarray(at, stop);
      at = stop + 1;
      if (line.length > 0) {
        if (line[0] === DATA) data = line.subarray("data: ".length);
        else if (line[0] === EVENT) name = decoder.decode(line.subarray("event: ".length));
        continue;
      }
      end = at;
      if (data !== null && name === "end") isOver = this.finish(rows, JSON.parse(decoder.decode(data)));
      else if (data !== null) this.add(rows, data);
      [data, name] = [null, ""];
    }
    this.hand(rows);
    return isOver ? -1 : end;
  }

  /** @param {any[]} rows @param {Uint8Array} data */
  add(rows, data) {
    const read = readRow(data.slice());
    if (read === null) this.listener.onBadRow("not_a_row");
    else {
      // One that does not follow is taken too: it is the check that says so.
      this.last = Math.max(this.last, read[0].index);
      rows.push(read);
    }
  }

  /** @param {any[]} rows @param {{ run: any }} told */
  finish(rows, told) {
    this.hand(rows);
    if (told.run === "broken") this.listener.onBadRow("not_a_row");
    // A run that waits may go on: it is asked for again, and that is told once.
    if (!(this.isParked && told.run === "parked")) this.listener.onState(told.run);
    this.isParked = told.run === "parked";
    return true;
  }

  /** @param {any[]} rows */
  hand(rows) {
    if (rows.length === 0) return;
    if (this.isParked) this.listener.onState("live");
    this.isParked = false;
    this.listener.onRows(rows.splice(0));
  }
}

const DATA = "d".charCodeAt(0);
const EVENT = "e".charCodeAt(0);

/** @param {Uint8Array} one @param {Uint8Array} other */
function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

const visible = () =>
  new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve(undefined);
    };
    document.addEventListener("visibilitychange", look);
  });
