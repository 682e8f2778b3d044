// The runs of the project, newest first; two of them can be compared.

import { ask } from "./api.js";
import { el, fill } from "./dom.js";

const EVERY_MS = 3000;
const MOST = 500;

export class RunsView {
  constructor() {
    /** @type {string[]} The runs to compare, in the order in which they were chosen. */
    this.chosen = [];
    this.list = el("div", {});
    this.compare = el("p", { class: "tools" });
    this.node = el(
      "section",
      { class: "runs", "aria-label": "Runs" },
      el("h1", {}, "Runs"),
      this.compare,
      this.list,
    );
    this.draw([]);
    this.load();
    this.timer = setInterval(() => document.hidden || this.load(), EVERY_MS);
  }

  close() {
    clearInterval(this.timer);
  }

  async load() {
    try {
      this.draw(await ask(`runs?limit=${MOST + 1}`));
      this.hasLoaded = true;
    } catch (error) {
      if (/** @type {any} */ (error).status === 401) dispatchEvent(new Event("locked"));
      else fill(this.list, el("p", { class: "bad", role: "alert" }, /** @type {Error} */ (error).message));
    }
  }

  /** @param {any[]} runs */
  draw(runs) {
    const rows = runs.slice(0, MOST).map((run) => {
      const path = encodeURIComponent(run.run_id);
      return el(
        "tr",
        {},
        el(
          "td",
          {},
          el("input", {
            type: "checkbox",
            "aria-label": `compare ${run.run_id}`,
            checked: this.chosen.includes(run.run_id),
            onchange: () => this.choose(run.run_id),
          }),
        ),
        el(
          "th",
          { scope: "row" },
          el("a", { href: `#/run/${path}` }, String(run.name || run.run_id)),
          el("small", { class: "soft" }, run.run_id),
        ),
        el("td", {}, el("span", { class: `chip ${KINDS[run.status] ?? "plain"}` }, String(run.status))),
        el(
          "td",
          {},
          String(run.started ?? "")
            .slice(0, 19)
            .replace("T", " "),
        ),
        el(
          "td",
          {},
          run.source_run
            ? el("a", { href: `#/diff/${encodeURIComponent(run.source_run)}/${path}` }, "replay: compare")
            : "",
        ),
      );
    });
    const head = ["compare", "run", "status", "began (UTC)", "source"].map((name) =>
      el("th", { scope: "col" }, name),
    );
    fill(
      this.list,
      rows.length
        ? el("table", {}, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows))
        : el(
            "p",
            { class: "soft" },
            "No runs yet. Record one: bernstein run plan.yaml, or bernstein record -- COMMAND",
          ),
      runs.length > MOST ? el("p", { class: "soft" }, "and older ones: bernstein runs") : null,
    );
    this.drawCompare();
  }

  /** @param {string} runId */
  choose(runId) {
    this.chosen = this.chosen.includes(runId)
      ? this.chosen.filter((one) => one !== runId)
      : [...this.chosen, runId].slice(-2);
    for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (this.list.querySelectorAll("input"))) {
      box.checked = this.chosen.some((one) => box.getAttribute("aria-label") === `compare ${one}`);
    }
    this.drawCompare();
  }

  drawCompare() {
    const [left, right] = [...this.chosen].sort();
    fill(
      this.compare,
      right
        ? el(
            "a",
            { class: "button", href: `#/diff/${encodeURIComponent(left)}/${encodeURIComponent(right)}` },
            "Compare the two that you chose",
          )
        : el("span", { class: "soft" }, "Choose two runs to compare them."),
    );
  }
}

/** @type {Record<string, string>} */
const KINDS = { running: "live", parked: "warn", failed: "bad", interrupted: "bad", unreadable: "bad" };
