// Who did what: a step, task or agent a line, with what it and those below it came to.

import { duration, el, fill, number } from "./dom.js";
import { nameOf } from "./timeline.js";

const MAX_LANES = 300;
const HEAD = ["step or agent", "status", "time", "calls", "tokens in / out", "tools", "repeats", "failures"];

export class Who {
  /**
   * @param {import("./model.js").RunModel} run
   * @param {Set<string>} folded Lanes whose rows are folded.
   * @param {{ onShow: (place: number) => void, onFold: (lane: string) => void }} listener
   */
  constructor(run, folded, { onShow, onFold }) {
    this.run = run;
    this.folded = folded;
    this.onShow = onShow;
    this.onFold = onFold;
    this.node = el("div", { class: "lanes" });
  }

  draw() {
    const lanes = this.run.ordered();
    const longest = lanes.reduce((most, { sum }) => Math.max(most, sum.modelMs + sum.toolMs), 1);
    const head = HEAD.map((name, at) => el("th", { scope: "col", class: at > 2 ? "n" : null }, name));
    const body = lanes.slice(0, MAX_LANES).map((one) => this.drawLane(one, longest));
    const left = lanes.length - MAX_LANES;
    fill(
      this.node,
      el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)),
      left > 0 ? el("p", { class: "soft" }, `and ${number(left)} more; search for their names`) : null,
    );
  }

  /** @param {ReturnType<import("./model.js").RunModel["ordered"]>[number]} one @param {number} longest */
  drawLane({ lane, depth, sum }, longest) {
    const step = this.run.steps.get(lane.name);
    const isFolded = this.folded.has(lane.name);
    const attempts = step !== undefined && step.attempts > 1 ? `, attempt ${step.attempts}` : "";
    const name = step?.label || lane.name.split("/").pop() || nameOf("");
    const fold = {
      type: "button",
      class: "fold",
      "aria-expanded": String(!isFolded),
      "aria-label": `rows of ${name}`,
    };
    const times = `models ${duration(sum.modelMs)}, tools ${duration(sum.toolMs)}`;
    const tokens = sum.tokensIn + sum.tokensOut ? `${number(sum.tokensIn)} / ${number(sum.tokensOut)}` : "";
    return el(
      "tr",
      { class: step?.status === "error" ? "bad" : null },
      el(
        "th",
        { scope: "row", class: `d${Math.min(4, depth)}` },
        el("button", { ...fold, onclick: () => this.onFold(lane.name) }, isFolded ? "▸" : "▾"),
        this.link(name, lane.first, "lane", nameOf(lane.name)),
      ),
      el(
        "td",
        {},
        step === undefined ? "" : `${step.status}${step.error ? ` (${step.error})` : ""}${attempts}`,
      ),
      el(
        "td",
        {},
        el(
          "span",
          { class: "bar", title: times },
          share("model", sum.modelMs / longest),
          share("tool", sum.toolMs / longest),
        ),
        sum.modelMs + sum.toolMs ? duration(sum.modelMs + sum.toolMs) : "",
      ),
      el("td", { class: "n" }, sum.calls || ""),
      el("td", { class: "n" }, tokens),
      el("td", { class: "n" }, sum.tools || ""),
      el("td", { class: "n" }, sum.repeats || ""),
      el(
        "td",
        { class: "n" },
        sum.failures ? this.link(String(sum.failures), sum.firstFailure, "lane bad", "the first one") : "",
      ),
    );
  }

  /** @param {string} text @param {number} place @param {string} kind @param {string} title */
  link(text, place, kind, title) {
    return el("button", { type: "button", class: kind, title, onclick: () => this.onShow(place) }, text);
  }
}

/** @param {string} kind @param {number} part Of the whole bar, from 0 to 1. */
function share(kind, part) {
  const bar = el("i", { class: kind });
  bar.style.width = `${Math.round(part * 100)}%`;
  return bar;
}
