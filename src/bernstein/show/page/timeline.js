// The run as bars over time, a lane under the other; what is idle for long is drawn short.

import { duration, el, shown } from "./dom.js";

const LANE = 20;
const LABELS = 190;
const GAP = 26; // pixels of an idle stretch
const HIGHEST = 260;

/**
 * Where times lie: stretches in which something went on, and idle ones between them.
 *
 * @param {import("./model.js").RunModel} run
 * @param {number} now
 */
export function stretches(run, now) {
  const busy = [];
  for (const lane of run.lanes.values()) {
    for (const span of lane.spans) {
      if (span.kind !== "wait") busy.push([span.from, Math.max(span.from, span.to ?? now)]);
    }
  }
  for (const row of run.rows) busy.push([row.time, row.time]);
  busy.sort((one, other) => one[0] - other[0]);
  const total = busy.length ? busy[busy.length - 1][1] - busy[0][0] : 0;
  const idle = Math.max(2000, total / 50);
  /** @type {[number, number][]} */
  const found = [];
  for (const [from, to] of busy) {
    const last = found[found.length - 1];
    if (last === undefined || from - last[1] > idle) found.push([from, to]);
    else if (to > last[1]) last[1] = to;
  }
  return found;
}

export class Timeline {
  /** @param {import("./model.js").RunModel} run @param {(place: number) => void} onPick */
  constructor(run, onPick) {
    this.run = run;
    this.onPick = onPick;
    this.selected = -1;
    this.isLive = false;
    this.canvas = /** @type {HTMLCanvasElement} */ (el("canvas", { "aria-hidden": "true" }));
    this.space = el("div", { class: "space" });
    this.node = el(
      "div",
      {
        class: "timeline",
        onscroll: () => this.draw(),
        onclick: (/** @type {MouseEvent} */ event) => this.pick(event),
        onmousemove: (/** @type {MouseEvent} */ event) => this.hint(event),
      },
      this.canvas,
      this.space,
    );
    /** @type {[number, number, number, string][]} Left, right and top of what was drawn, its row. */
    this.drawn = [];
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  draw() {
    cancelAnimationFrame(this.frame ?? 0);
    this.frame = requestAnimationFrame(() => this.drawNow());
  }

  drawNow() {
    const lanes = this.run
      .ordered()
      .map(({ lane }) => lane)
      .filter((lane) => lane.spans.length || lane.marks.length || lane.changes.length);
    this.node.hidden = lanes.length === 0;
    const high = Math.min(HIGHEST, lanes.length * LANE + 18);
    const wide = this.node.clientWidth;
    if (!wide) return;
    this.node.style.height = `${high}px`;
    this.space.style.height = `${Math.max(0, lanes.length * LANE + 18 - high)}px`;
    const scale = devicePixelRatio || 1;
    this.canvas.width = wide * scale;
    this.canvas.height = high * scale;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    const pen = this.canvas.getContext("2d");
    if (pen === null) return;
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`);
    const last = this.run.rows.length ? this.run.rows[this.run.rows.length - 1].time : 0;
    const now = this.isLive ? Math.max(Date.now(), last) : last;
    const parts = stretches(this.run, now);
    const labels = wide < 560 ? 90 : LABELS;
    const at = placer(parts, labels, wide - labels - 12);
    this.drawn = [];
    const top = this.node.scrollTop;
    pen.fillStyle = colour("faint");
    parts.slice(1).forEach((part, number) => {
      const [left, right] = [at(parts[number][1]), at(part[0])];
      pen.fillRect(left, 0, right - left, high);
    });
    lanes.forEach((lane, number) => {
      const y = number * LANE - top + 2;
      if (y < -LANE || y > high - 16) return;
      pen.fillStyle = colour("line");
      pen.fillRect(labels, y + LANE / 2 - 1, wide - labels, 1);
      pen.fillStyle = colour("text");
      pen.fillText(cut(pen, shown(nameOf(lane.name)), labels - 12), 4, y + LANE / 2 - 1);
      let end = -1;
      for (const span of lane.spans) {
        const left = at(span.from);
        const right = Math.max(at(span.to ?? now), left + 2);
        if (right <= end + 0.5 && !span.isBad) continue; // it would lie on the one before
        end = right;
        pen.fillStyle = colour(span.isBad ? "bad" : span.kind);
        const thin = span.kind === "wait" || span.kind === "agent" ? 4 : 0;
        pen.fillRect(left, y + 3 + thin, right - left, LANE - 8 - 2 * thin);
        this.drawn.push([left, right, number, String(span.row)]);
      }
      pen.fillStyle = colour("bad");
      for (const place of lane.marks) {
        const x = at(this.run.rows[place].time);
        pen.beginPath();
        pen.moveTo(x, y + 1);
        pen.lineTo(x + 4, y - 3);
        pen.lineTo(x - 4, y - 3);
        pen.fill();
        this.drawn.push([x - 4, x + 4, number, String(place)]);
      }
      pen.fillStyle = colour("accent");
      for (const place of lane.changes) {
        const x = at(this.run.rows[place].time);
        pen.beginPath();
        for (const [right, down] of [
          [0, -6],
          [5, 0],
          [0, 6],
          [-5, 0],
        ])
          pen.lineTo(x + right, y + 8 + down);
        pen.fill();
        this.drawn.push([x - 5, x + 5, number, String(place)]);
      }
    });
    pen.fillStyle = colour("ground");
    pen.fillRect(0, high - 16, wide, 16);
    pen.fillStyle = colour("soft");
    pen.textAlign = "left";
    let free = labels;
    for (const [number, part] of parts.entries()) {
      const text = number === 0 ? "0" : `+${duration(part[0] - parts[0][0])}`;
      const x = Math.max(at(part[0]), labels);
      if (x < free) continue;
      pen.fillText(text, x, high - 8);
      free = x + pen.measureText(text).width + 16;
    }
    if (parts.length) {
      const text = `+${duration(now - parts[0][0])}`;
      const x = wide - 8 - pen.measureText(text).width;
      if (x > free) pen.fillText(text, x, high - 8);
    }
    if (this.selected >= 0 && this.run.rows[this.selected]) {
      pen.fillStyle = colour("accent");
      pen.fillRect(at(this.run.rows[this.selected].time) - 0.5, 0, 1.5, high - 16);
    }
  }

  /** @param {MouseEvent} event @returns {number} A row, or -1. */
  under(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = Math.floor((y + this.node.scrollTop - 2) / LANE);
    let [best, near] = [-1, 12];
    for (const [left, right, number, place] of this.drawn) {
      const far = x < left ? left - x : x > right ? x - right : 0;
      if (number === lane && far <= near) [best, near] = [Number(place), far];
    }
    return best;
  }

  /** @param {MouseEvent} event */
  pick(event) {
    const place = this.under(event);
    if (place >= 0) this.onPick(place);
  }

  /** @param {MouseEvent} event */
  hint(event) {
    const place = this.under(event);
    const row = this.run.rows[place];
    this.node.title = row === undefined ? "" : shown(`row ${row.index}: ${row.event} in ${nameOf(row.lane)}`);
    this.node.style.cursor = row === undefined ? "default" : "pointer";
  }
}

/** @param {string} lane */
export const nameOf = (lane) => lane || "(the run)";

/** @param {[number, number][]} parts @param {number} left @param {number} wide @returns {(time: number) => number} */
function placer(parts, left, wide) {
  const gaps = Math.min(GAP, wide / 2 / Math.max(1, parts.length));
  const busy = parts.reduce((total, [from, to]) => total + (to - from), 0);
  const perMs = Math.max(1, wide - gaps * (parts.length - 1)) / Math.max(1, busy);
  let at = left;
  const starts = parts.map(([from, to]) => {
    const start = at;
    at += (to - from) * perMs + gaps;
    return start;
  });
  return (time) => {
    let [low, high] = [0, parts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (parts[middle][0] <= time) low = middle;
      else high = middle - 1;
    }
    const part = parts[low];
    if (part === undefined) return left;
    return starts[low] + Math.max(0, Math.min(time, part[1]) - part[0]) * perMs;
  };
}

/** @param {CanvasRenderingContext2D} pen @param {string} text @param {number} wide */
function cut(pen, text, wide) {
  if (pen.measureText(text).width <= wide) return text;
  let kept = text.slice(-60);
  while (kept && pen.measureText(`…${kept}`).width > wide) kept = kept.slice(1);
  return `…${kept}`;
}
