// What waits for a decision, and the decision: signed by the operator's key at the server, on the row
// that is shown here, by its index and hash.

import { ask, runPath } from "./api.js";
import { counted, el, fill } from "./dom.js";
import { asOperator, operator, operatorForm } from "./operator.js";

export class Approvals {
  /** @param {string} runId @param {import("./model.js").RunModel} run */
  constructor(runId, run) {
    this.runId = runId;
    this.run = run;
    this.node = el("section", { class: "approvals", "aria-label": "Decisions", hidden: true });
    this.seen = "";
    this.note = "";
    this.isBad = false;
    /** @type {any[] | null} */
    this.calls = null;
  }

  close() {
    clearTimeout(this.timer);
  }

  /** Look whether anything waits now. @param {string} state */
  look(state) {
    this.state = state;
    const open = [...this.run.tools.values()].filter(
      (tool) => tool.said === "" && tool.span?.kind === "wait",
    );
    const now = state === "live" || state === "parked" ? open.map((tool) => tool.id).join("\n") : "";
    if (now === this.seen) return;
    this.seen = now;
    clearTimeout(this.timer);
    // A tool that the plan lets run is decided on at once.
    this.timer = setTimeout(() => this.load(), now ? 400 : 0);
  }

  async load() {
    if (this.seen === "") {
      this.calls = null;
      this.node.hidden = true;
      return;
    }
    if (operator.token === "") return this.draw();
    try {
      this.calls = await ask(`${runPath(this.runId)}/approvals`, { headers: asOperator() });
    } catch (error) {
      operator.token = "";
      this.tell(/** @type {Error} */ (error).message, true);
    }
    this.draw();
  }

  /** @param {string} note @param {boolean} isBad */
  tell(note, isBad) {
    [this.note, this.isBad] = [note, isBad];
  }

  drawNote() {
    return this.note ? el("p", { class: this.isBad ? "bad" : null, role: "alert" }, this.note) : null;
  }

  draw() {
    this.node.hidden = false;
    if (operator.token === "") return this.drawDoor();
    const calls = this.calls ?? [];
    const name = /** @type {HTMLInputElement} */ (
      el("input", {
        "aria-label": "Your name",
        placeholder: "Your name",
        value: operator.name,
        oninput: () => (operator.name = name.value),
      })
    );
    fill(
      this.node,
      el(
        "h2",
        {},
        calls.length
          ? `${counted(calls.length, "tool waits", "tools wait")} for your decision`
          : "Nothing waits for a decision",
      ),
      this.drawNote(),
      calls.length ? el("label", {}, "Decide as ", name) : null,
      ...calls.map((call) => this.drawCall(call)),
    );
  }

  /** @param {any} call */
  drawCall(call) {
    const decide = (/** @type {string} */ decision) =>
      el(
        "button",
        {
          type: "button",
          class: decision,
          disabled: decision === "approved" && !call.asked,
          onclick: () => this.send(call, decision),
        },
        decision === "approved" ? `Approve ${call.tool}` : "Deny",
      );
    return el(
      "article",
      {},
      el("p", {}, el("strong", {}, call.tool), ` asked for in row ${call.index} (${call.call})`),
      el(
        "pre",
        { tabindex: "0", "aria-label": "arguments" },
        call.asked === null ? "what it asks for cannot be read here" : call.asked,
      ),
      el("p", { class: "buttons" }, decide("approved"), decide("denied")),
    );
  }

  drawDoor() {
    fill(
      this.node,
      el("h2", {}, "This run may wait for your decision"),
      this.drawNote(),
      operatorForm("Show what is asked for", () => {
        this.tell("", false);
        this.load();
      }),
      el(
        "p",
        { class: "soft" },
        `The token is in the file that bernstein serve named. In a terminal: bernstein approve ${this.runId}`,
      ),
    );
  }

  /** @param {any} call @param {string} decision */
  async send(call, decision) {
    const actor = operator.name.trim();
    this.tell("say who decides: give your name", true);
    if (actor) {
      const body = JSON.stringify({ index: call.index, event_hash: call.event_hash, decision, actor });
      const headers = { ...asOperator(), "Content-Type": "application/json" };
      await ask(`${runPath(this.runId)}/approvals`, { method: "POST", headers, body }).then(
        (said) =>
          this.tell(
            `${said.call} is ${said.decision}${this.state === "parked" ? `; let the run go on: bernstein run --resume ${this.runId}` : ""}`,
            false,
          ),
        (error) => this.tell(error.message, true),
      );
      this.calls = await ask(`${runPath(this.runId)}/approvals`, { headers: asOperator() }).catch(() => []);
    }
    this.draw();
  }
}
