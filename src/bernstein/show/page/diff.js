// Two runs beside each other: where they part, and what each did there.

import { align, foldEqual } from "./align.js";
import { ask, runPath } from "./api.js";
import { counted, el, fill } from "./dom.js";
import { VirtualList } from "./list.js";
import { chainChip, mark } from "./marks.js";
import { Stream } from "./stream.js";
import { nameOf } from "./timeline.js";
import { told } from "./told.js";
import { ChainCheck, payloadOf } from "./verify.js";

class Side {
  /** @param {string} runId @param {() => void} onChange */
  constructor(runId, onChange) {
    this.runId = runId;
    /** @type {import("./verify.js").Row[]} */
    this.rows = [];
    this.isDone = false;
    this.note = "";
    this.chain = new ChainCheck(onChange);
    this.stream = new Stream(runId, {
      onRows: (rows) => {
        for (const read of rows) {
          this.rows.push(read[0]);
          this.chain.push(read);
        }
      },
      onBadRow: (why) => this.chain.fail(why),
      onState: (state, note = "") => {
        this.note = note;
        this.isDone = state !== "live" && state !== "waiting";
        onChange();
      },
    });
  }
}

export class DiffView {
  /** @param {string} left @param {string} right */
  constructor(left, right) {
    /** @type {import("./align.js").Pair[]} */
    this.pairs = [];
    this.aligned = 0; // how many rows of both are in the pairs
    this.sides = [left, right].map((runId) => new Side(runId, () => this.refresh()));
    this.head = el("div", { class: "sides" });
    this.verdict = el("div", { class: "verdict", role: "status" });
    this.detail = el("div", { class: "both" });
    this.note = el(
      "p",
      { class: "soft" },
      "Below, rows are matched within each lane, so that lanes that only lay otherwise beside each other are the same.",
    );
    this.list = new VirtualList({
      label: "Rows of both runs",
      draw: (at) => this.drawPair(at),
      onSelect: (at) => this.choose(at),
    });
    this.node = el(
      "section",
      { class: "diff", "aria-label": "Two runs compared" },
      el("h1", {}, "Two runs compared"),
      this.verdict,
      this.note,
      el(
        "div",
        { class: "tools" },
        el("button", { type: "button", title: "p", onclick: () => this.toDifference(-1) }, "‹ Difference"),
        el("button", { type: "button", title: "n", onclick: () => this.toDifference(1) }, "Difference ›"),
      ),
      this.head,
      this.list.node,
      this.detail,
    );
    this.onKey = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "n") this.toDifference(1);
      else if (event.key === "p") this.toDifference(-1);
    };
    document.addEventListener("keydown", this.onKey);
    ask(`${runPath(left)}/diff/${encodeURIComponent(right)}`).then(
      (found) => this.tell(found.diff),
      (error) => fill(this.verdict, el("p", { class: "bad" }, error.message)),
    );
  }

  close() {
    for (const side of this.sides) side.stream.stop();
    document.removeEventListener("keydown", this.onKey);
  }

  /** What the server's own comparison says. @param {any} diff */
  tell(diff) {
    if (diff === null) {
      fill(this.verdict, el("p", {}, el("strong", {}, "The two runs are the same, row by row.")));
      return;
    }
    const fields = diff.fields
      .slice(0, 12)
      .map((/** @type {any} */ one) =>
        el(
          "li",
          {},
          el("code", {}, one.path),
          `: ${JSON.stringify(one.left)} and ${JSON.stringify(one.right)}`,
        ),
      );
    fill(
      this.verdict,
      el(
        "p",
        {},
        el("strong", {}, `They part at row ${diff.step_index}: ${REASONS[diff.reason] ?? diff.reason}.`),
        diff.realigned ? ` From rows ${diff.realigned[0]} and ${diff.realigned[1]} on they go on alike.` : "",
      ),
      diff.reason === "order" ? null : fields.length ? el("ul", {}, ...fields) : null,
    );
  }

  refresh() {
    if (this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      fill(
        this.head,
        ...this.sides.map((side) =>
          el(
            "div",
            {},
            el("a", { href: `#/run/${encodeURIComponent(side.runId)}` }, side.runId),
            " ",
            chainChip(side.chain),
            side.note ? el("span", { class: "chip bad" }, side.note) : null,
          ),
        ),
      );
      const [left, right] = this.sides;
      const count = left.rows.length + right.rows.length;
      if (count !== this.aligned && (left.isDone || right.isDone || count > 0)) {
        this.aligned = count;
        this.pairs = foldEqual(align(left.rows, right.rows));
        this.list.resize(this.pairs.length);
        if (left.isDone && right.isDone && this.list.selected < 0) this.toDifference(1);
      }
      this.list.paint();
    }, 150);
  }

  /** @param {number} at */
  drawPair(at) {
    const pair = this.pairs[at];
    if (pair.kind === "folded")
      return el("div", { class: "row folded" }, `${counted(pair.count, "row")} the same`);
    const half = (/** @type {import("./verify.js").Row | null} */ row) =>
      row === null
        ? el("span", { class: "half none" })
        : el(
            "span",
            { class: "half" },
            mark(row.state),
            el("span", { class: "index" }, String(row.index)),
            el("span", { class: "event" }, row.event),
            el("span", { class: "told" }, `${nameOf(row.lane)}  ${told(row)}`),
          );
    const [sign, words] = SIGNS[pair.kind === "only" && pair.right ? "more" : pair.kind];
    return el(
      "div",
      { class: `row pair ${pair.kind}` },
      el(
        "span",
        { class: "kind", title: words },
        el("span", { "aria-hidden": "true" }, sign),
        el("span", { class: "unseen" }, words),
      ),
      half(pair.left),
      half(pair.right),
    );
  }

  /** @param {number} at */
  choose(at) {
    const pair = this.pairs[at];
    const one = (/** @type {import("./verify.js").Row | null} */ row) =>
      el(
        "div",
        {},
        row === null
          ? el("p", { class: "soft" }, "no such row")
          : el(
              "pre",
              { tabindex: "0", "aria-label": `payload of row ${row.index}` },
              `${row.index} ${row.event} in ${nameOf(row.lane)}\n${JSON.stringify(payloadOf(row), null, 2)}`,
            ),
      );
    fill(this.detail, ...(pair.kind === "folded" ? [] : [one(pair.left), one(pair.right)]));
  }

  /** @param {1 | -1} way */
  toDifference(way) {
    for (let at = this.list.selected + way; at >= 0 && at < this.pairs.length; at += way) {
      const { kind } = this.pairs[at];
      if (kind === "changed" || kind === "only") return this.list.select(at);
    }
  }
}

/** @type {Record<string, [string, string]>} */
const SIGNS = {
  same: [" ", "the same"],
  changed: ["≠", "changed"],
  only: ["−", "only left"],
  more: ["+", "only right"],
};

/** @type {Record<string, string>} */
const REASONS = {
  payload: "the same event says something else",
  event: "another event",
  order: "the same rows in another order",
  missing: "the second lacks a row",
  extra: "the second has a row more",
  provider_state_mutation: "a change of the model's context",
  model_answer: "the model answered otherwise",
  tool_result: "a tool gave something else",
  decision: "another decision",
};
