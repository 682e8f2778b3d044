// What a run came to, in a few numbers.

import { counted, duration, el, number } from "./dom.js";

/** @param {import("./model.js").RunModel} run @param {boolean} isLive */
export function cardsOf(run, isLive) {
  const { rows, usage, calls, tools, failures, repeats, mutations, artifacts } = run;
  if (rows.length === 0) return [];
  const last = isLive ? Date.now() : rows[rows.length - 1].time;
  const waiting = [...tools.values()].filter((tool) => tool.said === "").length;
  const bands = [...usage].filter(([, band]) => band.calls > 0);
  return [
    card("Time", duration(Math.max(0, last - rows[0].time))),
    card("Model calls", number(calls)),
    ...bands.map(([name, band]) => {
      const cached = band.cached ? `${number(band.cached)} of them cached` : "";
      const cost = band.credits ? `$${(band.credits / 1e6).toFixed(4)}` : "";
      const counts = `${number(band.in + band.cached)} in, ${number(band.out)} out`;
      return card(`Tokens, ${name}`, counts, [cached, cost].filter(Boolean).join(", "));
    }),
    card("Tools", number(tools.size), waiting ? counted(waiting, "waits", "wait") : ""),
    card("Failures", number(failures.size), "", failures.size > 0),
    card("Repeats", number(repeats.size)),
    mutations.length
      ? card(
          "Context changed",
          counted(mutations.length, "time"),
          mutations.some((one) => one.flagged) ? "unasked" : "",
        )
      : null,
    artifacts.size ? card("Files", number(artifacts.size)) : null,
  ];
}

/** @param {string} name @param {string} value */
const card = (name, value, more = "", isBad = false) =>
  el(
    "div",
    { class: isBad ? "bad" : null },
    el("dt", {}, name),
    el("dd", {}, value, more ? el("small", {}, more) : null),
  );
