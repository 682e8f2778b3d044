// What was asked or said in the row that was chosen: the text whose digest stands in it.

import { ask, runPath } from "./api.js";
import { cut, el, fill } from "./dom.js";
import { asOperator, operator, operatorForm } from "./operator.js";
import { objectOf } from "./words.js";

const MEMBERS = ["prompt", "request", "answer", "args", "result"];

export class RowText {
  /** @param {string} runId @param {boolean} isOpen Whether readers see texts without the operator's token. */
  constructor(runId, isOpen) {
    this.runId = runId;
    this.isOpen = isOpen;
    this.node = el("div", { class: "text" });
    /** @type {import("./verify.js").Row | null} */
    this.row = null;
  }

  /** @param {import("./verify.js").Row} row */
  show(row) {
    if (this.row === row) return;
    this.row = row;
    const payload = objectOf(row);
    if (!MEMBERS.some((name) => typeof payload[name]?.digest === "string")) fill(this.node);
    else if (this.isOpen || operator.token) this.load(row);
    else
      fill(
        this.node,
        operatorForm("Show what was said", () => this.load(row)),
      );
  }

  /** @param {import("./verify.js").Row} row */
  async load(row) {
    const headers = operator.token ? asOperator() : {};
    try {
      const { text } = await ask(`${runPath(this.runId)}/texts/${row.index}`, { headers });
      const none = el("p", { class: "soft" }, "The recording has no text for this digest.");
      if (row === this.row) {
        fill(this.node, text === null ? none : el("pre", { tabindex: "0", "aria-label": "text" }, cut(text)));
      }
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      if (status === 401 || status === 403) operator.token = "";
      if (row !== this.row) return;
      const again =
        status === 401 || status === 403 ? operatorForm("Show what was said", () => this.load(row)) : null;
      fill(this.node, el("p", { class: "bad", role: "alert" }, message), again);
    }
  }
}
