// The row that was chosen, in full.

import { cut, el } from "./dom.js";
import { mark, wordsOf } from "./marks.js";
import { nameOf } from "./timeline.js";
import { payloadOf } from "./verify.js";

const MOST_RELATED = 20;
const HELP =
  "Choose a row. Arrows, Home and End move; n and p go to the next and the last failure, / searches, f follows.";
const decoder = new TextDecoder();

/**
 * What is at the top of it, and what is below its text.
 *
 * @param {import("./model.js").RunModel} run
 * @param {import("./verify.js").ChainCheck} chain
 * @param {number} place
 * @param {(place: number) => void} onShow
 */
export function detailOf(run, chain, place, onShow) {
  const row = run.rows[place];
  if (row === undefined) return { head: [el("p", { class: "soft" }, HELP)], rest: [] };
  const [failure, repeat] = [run.failures.get(place), run.repeats.get(place)];
  const payload = payloadOf(row);
  /** @type {[string, string][]} */
  const facts = [
    ["lane", nameOf(row.lane)],
    ["time", Number.isNaN(row.time) ? "" : new Date(row.time).toISOString()],
    ["hash", row.eventHash],
    ["payload", row.payloadHash],
    ["before", row.prevHash],
  ];
  if (chain.broken?.index === place && chain.broken.expected) {
    facts.push(["expected", chain.broken.expected], ["found", chain.broken.actual]);
  }
  return {
    head: [
      el("h2", {}, `Row ${row.index}: ${row.event}`),
      el(
        "p",
        { class: "state" },
        mark(row.state),
        el("span", { "aria-hidden": "true" }, ` ${wordsOf(row.state)}`),
      ),
      failure ? el("p", { class: "bad" }, failure) : null,
      repeat ? el("p", { class: "warn" }, repeat) : null,
    ],
    rest: [
      el(
        "dl",
        {},
        ...facts.flatMap(([name, value]) => [
          el("dt", {}, name),
          el("dd", { class: value.length === 64 ? "hash" : null }, value),
        ]),
      ),
      el(
        "pre",
        { tabindex: "0", "aria-label": "payload" },
        cut(payload === null ? decoder.decode(row.bytes) : JSON.stringify(payload, null, 2)),
      ),
      ...related(run, place, onShow),
    ],
  };
}

/** @param {import("./model.js").RunModel} run @param {number} place @param {(place: number) => void} onShow */
function related(run, place, onShow) {
  const places = run.relatedTo(place).filter((other) => other !== place);
  if (places.length === 0) return [];
  const buttons = places.slice(0, MOST_RELATED).map((other) => {
    const { index, event } = run.rows[other];
    return el("button", { type: "button", class: "lane", onclick: () => onShow(other) }, `${index} ${event}`);
  });
  return [el("p", {}, "with ", ...buttons.flatMap((button) => [button, " "]))];
}
