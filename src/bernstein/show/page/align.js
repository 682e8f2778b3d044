// Two runs beside each other: which rows are the same, which changed, and which only one has.
// What is the same in another order of lanes is the same here; the server's comparison says that.

import { append } from "./maps.js";

const AHEAD = 400; // how far to look for where two runs go on alike
const ALIKE = 3; // rows in a row that must be the same there
const AROUND = 3; // equal rows that stay in sight around a difference

/**
 * @typedef {object} Pair
 * @property {import("./verify.js").Row | null} left
 * @property {import("./verify.js").Row | null} right
 * @property {"same" | "changed" | "only" | "folded"} kind
 * @property {number} count Of rows that are folded here.
 */

/** What makes two rows the same, wherever they stand. @param {import("./verify.js").Row} row */
const identity = (row) => `${row.event} ${row.lane} ${row.payloadHash}`;

/**
 * Match the rows of two runs, lane by lane: how lanes lay between each other is no difference here.
 *
 * @param {import("./verify.js").Row[]} left
 * @param {import("./verify.js").Row[]} right
 * @returns {Pair[]} In the order of the left run; what only the right one has stands behind the row
 *   of its lane that is before it.
 */
export function align(left, right) {
  const theirs = byLane(right);
  /** @type {Map<import("./verify.js").Row, Pair[]>} Pairs that are shown at a row of the left run. */
  const shown = new Map();
  for (const [lane, rows] of byLane(left)) {
    let at = rows[0];
    for (const pair of alignLane(rows, theirs.get(lane) ?? [])) {
      at = pair.left ?? at;
      append(shown, at, pair);
    }
    theirs.delete(lane);
  }
  const rest = [...theirs.values()].flatMap((rows) => alignLane([], rows));
  return [...left.flatMap((row) => shown.get(row) ?? []), ...rest];
}

/** @param {import("./verify.js").Row[]} rows */
function byLane(rows) {
  /** @type {Map<string, import("./verify.js").Row[]>} */
  const lanes = new Map();
  for (const row of rows) append(lanes, row.lane, row);
  return lanes;
}

/** @param {import("./verify.js").Row[]} left @param {import("./verify.js").Row[]} right @returns {Pair[]} */
function alignLane(left, right) {
  const [ours, theirs] = [left.map(identity), right.map(identity)];
  /** @type {Pair[]} */
  const pairs = [];
  let [a, b] = [0, 0];
  while (a < left.length || b < right.length) {
    if (a < left.length && b < right.length && ours[a] === theirs[b]) {
      pairs.push({ left: left[a++], right: right[b++], kind: "same", count: 0 });
      continue;
    }
    const [toA, toB] = meeting(ours, theirs, a, b);
    while (a < toA || b < toB) {
      const [one, other] = [a < toA ? left[a] : null, b < toB ? right[b] : null];
      if (one !== null && other !== null && one.event === other.event && one.lane === other.lane) {
        pairs.push({ left: one, right: other, kind: "changed", count: 0 });
        [a, b] = [a + 1, b + 1];
      } else if (one !== null && (other === null || toA - a >= toB - b)) {
        pairs.push({ left: one, right: null, kind: "only", count: 0 });
        a += 1;
      } else {
        pairs.push({ left: null, right: other, kind: "only", count: 0 });
        b += 1;
      }
    }
  }
  return pairs;
}

/** The next places from which both go on alike. @param {string[]} ours @param {string[]} theirs @param {number} a @param {number} b @returns {[number, number]} */
function meeting(ours, theirs, a, b) {
  /** @type {Map<string, number[]>} */
  const places = new Map();
  for (let at = b; at < Math.min(theirs.length, b + AHEAD); at++) append(places, theirs[at], at);
  let [best, found] = [Infinity, /** @type {[number, number]} */ ([ours.length, theirs.length])];
  for (let at = a; at < Math.min(ours.length, a + AHEAD) && at - a < best; at++) {
    for (const place of places.get(ours[at]) ?? []) {
      const far = at - a + (place - b);
      if (far >= best) break;
      const length = Math.min(ALIKE, ours.length - at, theirs.length - place);
      let same = 1;
      while (same < length && ours[at + same] === theirs[place + same]) same += 1;
      if (same === length) [best, found] = [far, [at, place]];
    }
  }
  return found;
}

/** Long stretches without a difference become one line. @param {Pair[]} pairs @returns {Pair[]} */
export function foldEqual(pairs) {
  /** @type {Pair[]} */
  const kept = [];
  for (let at = 0; at < pairs.length;) {
    let end = at;
    while (end < pairs.length && pairs[end].kind === "same") end += 1;
    const [head, tail] = [at === 0 ? 0 : AROUND, end === pairs.length ? 0 : AROUND];
    if (end - at > head + tail + 1) {
      kept.push(
        ...pairs.slice(at, at + head),
        { left: null, right: null, kind: "folded", count: end - at - head - tail },
        ...pairs.slice(end - tail, end),
      );
    } else kept.push(...pairs.slice(at, end));
    if (end < pairs.length) kept.push(pairs[end++]);
    at = end;
  }
  return kept;
}
