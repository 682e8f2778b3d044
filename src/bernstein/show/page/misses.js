// What a replay asked for and did not find.

import { counted, el } from "./dom.js";

/** @type {Record<string, string>} */
const WHY = {
  never_recorded: "was never recorded",
  exhausted: "was asked for more often than it was recorded",
  stale_key_scheme: "was recorded under an older key scheme",
  no_recording: "has no recording to be found in",
};

/** @param {any[]} misses @returns {HTMLElement | null} */
export function missesPanel(misses) {
  if (misses.length === 0) return null;
  return el(
    "details",
    { class: "misses", open: true },
    el("summary", {}, counted(misses.length, "replay miss", "replay misses")),
    ...misses.slice(0, 50).map(miss),
    misses.length > 50
      ? el("p", { class: "soft" }, `and ${misses.length - 50} more: bernstein replay RUN --explain`)
      : null,
  );
}

/** @param {any} told */
function miss(told) {
  const nearest = told.nearest ?? {};
  const differs = (nearest.differs ?? []).map((/** @type {any} */ one) =>
    Array.isArray(one) ? `${one[0]}: recorded ${one[1]}, asked ${one[2]}` : String(one),
  );
  return el(
    "article",
    {},
    el(
      "p",
      {},
      `A call in ${String(told.lane || "the run")} ${WHY[told.reason] ?? String(told.reason)}.`,
      el("small", { class: "soft" }, ` key ${String(told.key).slice(0, 12)}`),
    ),
    differs.length
      ? el(
          "p",
          {},
          `The nearest one, call ${nearest.seq} in ${String(nearest.lane || "the run")}, differs in:`,
        )
      : null,
    differs.length ? el("ul", {}, ...differs.map((/** @type {string} */ text) => el("li", {}, text))) : null,
    nearest.diff?.length ? el("pre", { tabindex: "0" }, nearest.diff.join("\n")) : null,
  );
}
