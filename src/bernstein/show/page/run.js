// One run: what it came to, its timeline, who did what, and its rows with the one that was chosen.

import { cardsOf } from "./cards.js";
import { detailOf } from "./detail.js";
import { counted, el, fill } from "./dom.js";
import { VirtualList } from "./list.js";
import { chainChip, chip, mark, sealChips } from "./marks.js";
import { missesPanel } from "./misses.js";
import { RunModel } from "./model.js";
import { Timeline, nameOf } from "./timeline.js";
import { told } from "./told.js";
import { ChainCheck, checkSeal } from "./verify.js";
import { Who } from "./who.js";

const WATCHED = new Set(["running", "parked"]); // opened at the newest row
const TYPED_MS = 200;
const decoder = new TextDecoder();

/**
 * Where a run comes from.
 *
 * @typedef {object} Source
 * @property {string} runId
 * @property {boolean} isOffline
 * @property {Record<string, any>} info
 * @property {(listener: import("./stream.js").Listener) => { stop: () => void }} follow
 * @property {() => Promise<any>} evidence
 * @property {() => Promise<any[]>} misses
 * @property {((run: RunModel) => { node: HTMLElement, look: (state: string) => void, close: () => void }) | null} approvals
 * @property {((place: number) => string) | null} link To a row of the run.
 * @property {{ node: HTMLElement, show: (row: import("./verify.js").Row) => void } | null} text
 */

export class RunView {
  /** @param {Source} source @param {number | null} place The row to open at. */
  constructor(source, place) {
    this.source = source;
    this.wanted = place;
    this.run = new RunModel();
    this.state = "waiting";
    this.note = "";
    this.follows = place === null;
    /** @type {any} */
    this.evidence = null;
    /** @type {any} */
    this.sealed = null;
    /** @type {number[] | null} The places that are listed; null: all. */
    this.listed = null;
    this.query = "";
    /** @type {Set<string>} Lanes of which only the first and last row are listed. */
    this.folded = new Set();
    this.selected = -1;
    this.chain = new ChainCheck(() => this.refresh());

    this.chips = el("div", { class: "chips", role: "status" });
    this.cards = el("dl", { class: "cards" });
    this.who = new Who(this.run, this.folded, {
      onShow: (place) => this.show(place),
      onFold: (lane) => this.fold(lane),
    });
    this.detail = { head: el("div", {}), rest: el("div", {}) };
    this.more = el("div", { class: "more" });
    this.said = el("div", { class: "unseen", "aria-live": "polite" });
    this.search = /** @type {HTMLInputElement} */ (
      el("input", {
        type: "search",
        placeholder: "Search the rows  /",
        "aria-label": "Search the rows",
        oninput: () => this.findSoon(),
      })
    );
    this.found = el("span", { class: "soft found", role: "status" });
    this.list = new VirtualList({
      label: "Rows of the run",
      draw: (at) => this.drawRow(this.placeOf(at)),
      onSelect: (at) => this.choose(this.placeOf(at)),
      onScroll: (isAtEnd) => this.setFollows(isAtEnd && this.isLive()),
    });
    this.follow = el("button", { type: "button", class: "follow", onclick: () => this.toEnd() }, "Follow");
    this.timeline = new Timeline(this.run, (at) => this.show(at));
    this.approvals = source.approvals?.(this.run) ?? null;
    const { name, source_run: origin } = source.info;
    this.node = el(
      "section",
      { class: "run", "aria-label": `Run ${source.runId}` },
      el(
        "div",
        { class: "title" },
        el("h1", {}, String(name || source.runId)),
        el("span", { class: "soft id" }, source.runId),
        origin && !source.isOffline
          ? el(
              "a",
              { href: `#/diff/${encodeURIComponent(origin)}/${encodeURIComponent(source.runId)}` },
              "a replay: compare with its source",
            )
          : null,
        this.chips,
      ),
      this.cards,
      this.approvals?.node ?? null,
      this.more,
      this.timeline.node,
      el(
        "div",
        { class: "columns" },
        el(
          "details",
          { class: "who", open: innerWidth > 1100 },
          el("summary", {}, "Who did what"),
          this.who.node,
        ),
        el(
          "div",
          { class: "thread" },
          el(
            "div",
            { class: "tools" },
            this.search,
            this.found,
            el("button", { type: "button", title: "p", onclick: () => this.toFailure(-1) }, "‹ Failure"),
            el("button", { type: "button", title: "n", onclick: () => this.toFailure(1) }, "Failure ›"),
            this.follow,
          ),
          this.list.node,
        ),
        el(
          "aside",
          { class: "detail", "aria-label": "The chosen row" },
          this.detail.head,
          source.text?.node ?? null,
          this.detail.rest,
        ),
      ),
      this.said,
    );
    this.showDetail();
    this.onKey = (/** @type {KeyboardEvent} */ event) => this.key(event);
    document.addEventListener("keydown", this.onKey);
    this.onTheme = () => this.timeline.draw();
    addEventListener("theme", this.onTheme);
    this.clock = setInterval(() => this.timeline.isLive && this.refresh(), 1000);
    this.stream = source.follow({
      onRows: (rows) => this.take(rows),
      onBadRow: (why) => this.chain.fail(why),
      onState: (state, note = "") => this.enter(state, note),
    });
    source.misses().then(
      (misses) => fill(this.more, missesPanel(misses)),
      () => {},
    );
  }

  close() {
    this.stream.stop();
    clearInterval(this.clock);
    this.approvals?.close();
    document.removeEventListener("keydown", this.onKey);
    removeEventListener("theme", this.onTheme);
  }

  isLive() {
    return this.state === "live" || this.state === "waiting" || this.state === "parked";
  }

  /** @param {[import("./verify.js").Row, string, string][]} rows */
  take(rows) {
    for (const read of rows) {
      this.run.add(read[0]);
      this.chain.push(read);
      if (this.listed !== null && this.isListed(this.run.rows.length - 1))
        this.listed.push(this.run.rows.length - 1);
    }
    this.list.resize(this.listed?.length ?? this.run.rows.length);
    if (this.wanted !== null && this.wanted < this.run.rows.length) {
      this.show(this.wanted);
      this.wanted = null;
    } else if (this.follows && WATCHED.has(this.source.info.status)) this.list.toEnd();
    this.refresh();
  }

  /** @param {string} state @param {string} note */
  enter(state, note) {
    this.state = state;
    this.note = note;
    this.timeline.isLive = this.isLive() && this.run.status === "running" && state !== "parked";
    if (state !== "live" && state !== "waiting") this.check();
    this.approvals?.look(state);
    this.refresh();
  }

  /** What is known once no more rows come. */
  async check() {
    try {
      this.evidence = await this.source.evidence();
      await this.chain.settled();
      if (this.evidence.seal !== null) {
        this.sealed = await checkSeal(
          this.evidence.seal,
          this.evidence.public_key,
          this.chain,
          this.run.rows,
          this.source.runId,
        );
      }
    } catch (error) {
      this.note = String(/** @type {Error} */ (error).message);
    }
    this.say(this.chips.textContent ?? "");
    this.refresh();
  }

  /** Draw again what depends on the rows, a few times a second at most. */
  refresh() {
    if (this.timer !== undefined) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.drawChips();
      fill(this.cards, ...cardsOf(this.run, this.timeline.isLive));
      this.who.draw();
      this.list.paint();
      this.timeline.draw();
      this.approvals?.look(this.state);
      this.follow.classList.toggle("on", this.follows && this.isLive());
      this.follow.hidden = !this.isLive();
      if (this.selected >= 0) this.showDetail();
      if (this.chain.broken && !this.hasToldBreak) {
        this.hasToldBreak = true;
        this.say(`The run is broken at row ${this.chain.broken.index}`);
        this.showDetail();
      }
    }, 120);
  }

  drawChips() {
    const { verdict } = this.evidence ?? {};
    const server =
      verdict &&
      chip(
        verdict.verdict === "mismatch" ? "bad" : "plain",
        "server",
        `${this.source.isOffline ? "the check where this page was made" : "the server's own check"}: ${verdict.verdict}${verdict.reason ? ` (${verdict.reason})` : ""}`,
        verdict.note || "it also checks recordings, the spine and who signed",
      );
    fill(
      this.chips,
      stateChip(this.state, this.run, this.note),
      chainChip(this.chain),
      ...sealChips(this.sealed, this.evidence, this.source.isOffline),
      server || null,
    );
  }

  /** @param {number} place */
  drawRow(place) {
    const row = this.run.rows[place];
    if (row === undefined) return el("div", { class: "row" });
    const failure = this.run.failures.get(place);
    const repeat = this.run.repeats.get(place);
    const since = `+${((row.time - this.run.rows[0].time) / 1000).toFixed(2)}`;
    const text = told(row, this.run);
    const isFolded = this.folded.has(row.lane) && this.run.lanes.get(row.lane)?.first === place;
    const hidden = isFolded ? (this.run.lanes.get(row.lane)?.rows ?? 0) - 2 : 0;
    return el(
      "div",
      {
        class: `row ${failure ? "failed" : ""} ${row.event.split(".")[0]}`,
      },
      mark(row.state),
      el("span", { class: "index" }, String(row.index)),
      el("span", { class: "since" }, since),
      el("span", { class: "where" }, el("bdi", { dir: "ltr" }, nameOf(row.lane))),
      el("span", { class: "event" }, row.event),
      el(
        "span",
        { class: "told" },
        hidden > 0 ? `${text}  (${counted(hidden, "row")} folded)` : text,
        failure && !text.includes(failure) ? el("em", {}, ` ${failure}`) : null,
        repeat ? el("em", { class: "again" }, ` ${repeat}`) : null,
      ),
    );
  }

  /** @param {number} at A place of the list. */
  placeOf(at) {
    return this.listed === null ? at : (this.listed[at] ?? -1);
  }

  /** @param {number} place */
  isListed(place) {
    const row = this.run.rows[place];
    for (let name = /** @type {string | null} */ (row.lane); name !== null; name = this.run.parentOf(name)) {
      if (!this.folded.has(name)) continue;
      const lane = this.run.lanes.get(name);
      if (lane && place !== lane.first && place !== lane.last) return false;
    }
    if (this.query === "") return true;
    return (
      decoder.decode(row.bytes).toLowerCase().includes(this.query) ||
      told(row, this.run).toLowerCase().includes(this.query)
    );
  }

  /** List what the search and the folded lanes leave. */
  filter() {
    const isAll = this.query === "" && this.folded.size === 0;
    const places = [...this.run.rows.keys()];
    this.listed = isAll ? null : places.filter((place) => this.isListed(place));
    this.list.resize(this.listed?.length ?? places.length);
    this.list.selected = this.listed === null ? this.selected : this.listed.indexOf(this.selected);
    this.found.textContent = this.query === "" ? "" : counted(this.listed?.length ?? 0, "row");
    this.list.paint();
  }

  /** Search once nothing more is typed for a moment: every row is looked through. */
  findSoon() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.find(this.search.value), TYPED_MS);
  }

  /** @param {string} text */
  find(text) {
    clearTimeout(this.typing);
    this.query = text.toLowerCase();
    this.filter();
    if (this.list.count > 0) this.list.select(0);
  }

  /** @param {string} lane */
  fold(lane) {
    if (!this.folded.delete(lane)) this.folded.add(lane);
    this.filter();
    this.who.draw();
  }

  /** Bring a row into sight and choose it, whatever is folded or searched for. @param {number} place */
  show(place) {
    if (this.listed !== null && !this.listed.includes(place)) {
      this.query = this.search.value = "";
      for (
        let name = /** @type {string | null} */ (this.run.rows[place].lane);
        name !== null;
        name = this.run.parentOf(name)
      )
        this.folded.delete(name);
      this.filter();
      this.who.draw();
    }
    const at = this.listed === null ? place : this.listed.indexOf(place);
    this.list.select(at);
    this.setFollows(false);
  }

  /** @param {number} place */
  choose(place) {
    this.selected = this.timeline.selected = place;
    if (this.source.link) history.replaceState(null, "", this.source.link(place));
    this.timeline.draw();
    this.showDetail();
    this.source.text?.show(this.run.rows[place]);
  }

  toEnd() {
    this.setFollows(true);
    this.list.toEnd();
  }

  /** @param {boolean} follows */
  setFollows(follows) {
    this.follows = follows;
    this.follow.classList.toggle("on", follows && this.isLive());
    this.follow.setAttribute("aria-pressed", String(follows));
  }

  /** @param {1 | -1} way */
  toFailure(way) {
    const places = [...this.run.failures.keys()];
    const next =
      way > 0
        ? places.find((place) => place > this.selected)
        : places.findLast((place) => place < this.selected || this.selected < 0);
    if (next === undefined) this.say(places.length ? "No more failures that way" : "There are no failures");
    else this.show(next);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape" && target === this.search) {
      this.search.value = "";
      this.find("");
      this.list.node.focus();
    }
    if (target.closest("input, textarea, select")) return;
    if (event.key === "n") this.toFailure(1);
    else if (event.key === "p") this.toFailure(-1);
    else if (event.key === "f") this.toEnd();
    else if (event.key === "/") {
      event.preventDefault();
      this.search.focus();
    } else if (
      (event.key === "Home" || event.key === "End" || event.key.startsWith("Arrow")) &&
      target === document.body
    ) {
      this.list.node.focus();
      this.list.onKey(event);
    }
    if (event.key === "End") this.setFollows(this.isLive());
  }

  showDetail() {
    const { head, rest } = detailOf(this.run, this.chain, this.selected, (place) => this.show(place));
    const link =
      this.source.link && this.selected >= 0
        ? el("p", {}, el("a", { href: this.source.link(this.selected) }, "link to this row"))
        : null;
    fill(this.detail.head, ...head);
    fill(this.detail.rest, ...rest, link);
  }

  /** @param {string} text */
  say(text) {
    this.said.textContent = text;
  }
}

/** @param {string} state @param {RunModel} run @param {string} note */
function stateChip(state, run, note) {
  if (note) return chip("bad", "state", note);
  if (state === "live") return chip("live", "state", run.status === "running" ? "live" : "reading");
  if (state === "waiting") return chip("warn", "state", "connecting");
  if (state === "parked") return chip("warn", "state", "parked: it waits for a decision");
  if (state === "running") return chip("warn", "state", "it ran on when this page was made");
  if (state === "interrupted") return chip("bad", "state", "interrupted");
  if (state === "broken") return chip("bad", "state", "its journal is damaged");
  return chip(
    run.status === "completed" ? "plain" : "bad",
    "state",
    `${run.status}${run.reason ? ` (${run.reason})` : ""}`,
  );
}
