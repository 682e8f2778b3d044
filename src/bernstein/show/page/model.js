// What a run did, from its rows as they come: steps, lanes with their spans of time, usage by band,
// tools and who let them run, failures, repeats. Pure: it draws nothing.

import { append } from "./maps.js";
import { because, count, objectOf, safely, word } from "./words.js";

/**
 * Something that took time in a lane.
 *
 * @typedef {object} Span
 * @property {"model" | "tool" | "agent" | "wait"} kind
 * @property {number} row Its first row.
 * @property {number} from
 * @property {number | null} to Null while it goes on.
 * @property {boolean} isBad
 */
/**
 * @typedef {object} Lane
 * @property {string} name
 * @property {number} first Its first row.
 * @property {number} last
 * @property {number} rows
 * @property {Span[]} spans
 * @property {number[]} marks Rows with a failure.
 * @property {number[]} changes Rows that tell of a changed context.
 * @property {number} calls
 * @property {number} tools
 * @property {number} repeats
 * @property {number} tokensIn
 * @property {number} tokensOut
 * @property {number} modelMs
 * @property {number} toolMs
 */
/**
 * @typedef {object} Step
 * @property {string} id
 * @property {string} label
 * @property {"running" | "ok" | "error"} status
 * @property {string} error
 * @property {number} row
 * @property {number} from
 * @property {number | null} to
 * @property {number} attempts
 */
/**
 * @typedef {object} Tool
 * @property {string} id
 * @property {string} name
 * @property {string} lane
 * @property {number} row
 * @property {string} hash The hash of the row that proposes it.
 * @property {string} said
 * @property {Span | null} span
 */

/** @typedef {Record<typeof COUNTS[number], number> & { failures: number, firstFailure: number }} Sum */
const COUNTS = /** @type {const} */ ([
  "calls",
  "tools",
  "repeats",
  "tokensIn",
  "tokensOut",
  "modelMs",
  "toolMs",
]);
const BANDS = ["metered", "priced", "estimated", "unsupported"];

/** What a row says of a failure, or "". @param {string} event @param {any} payload */
export function failureOf(event, payload) {
  switch (event) {
    case "run.finished":
      return payload.status === "completed" ? "" : `the run ${payload.status}${because(payload.reason)}`;
    case "step.finished":
      return payload.status === "ok" ? "" : `the step failed${because(payload.errorCode)}`;
    case "model.answer":
      return payload.outcome === "error" ? "the model's answer is an error" : "";
    case "agent.finished":
      return payload.outcome === "ok" ? "" : `the agent ended ${payload.outcome}`;
    case "tool.result":
      if (payload.exitCode) return `exit code ${payload.exitCode}`;
      return payload.ok === false ? "the tool failed" : "";
    case "tool.denied":
      return `denied by ${payload.actor}${because(payload.reason)}`;
    case "signal.checked":
      return payload.holds === false ? `the signal ${payload.type} does not hold` : "";
    case "http.response":
      return payload.status >= 400 ? `answered ${payload.status}` : "";
    case "provider_state_mutation":
      return payload.flagged === true ? `the context was changed: ${payload.kind}, unasked` : "";
    default:
      return "";
  }
}

export class RunModel {
  constructor() {
    /** @type {import("./verify.js").Row[]} */
    this.rows = [];
    /** @type {Map<string, Lane>} */
    this.lanes = new Map();
    /** @type {Map<string, Step>} */
    this.steps = new Map();
    /** @type {Map<string, Tool>} */
    this.tools = new Map();
    /** @type {Map<number, string>} Rows with a failure, and what it is. */
    this.failures = new Map();
    /** @type {Map<number, string>} Rows that repeat something, and what. */
    this.repeats = new Map();
    /** @type {{ row: number, kind: string, flagged: boolean }[]} */
    this.mutations = [];
    /** @type {Map<string, { calls: number, tokensIn: number, tokensOut: number }>} */
    this.models = new Map();
    this.usage = new Map(BANDS.map((band) => [band, { in: 0, cached: 0, out: 0, credits: 0, calls: 0 }]));
    this.calls = 0;
    this.artifacts = new Set();
    this.status = "pending";
    this.reason = "";
    /** @type {Map<string, number[]>} Rows of one key: a call, a tool, what is asked again. */
    this.related = new Map();
    /** @type {Map<string, Span[]>} Model calls of a lane that have no answer yet. */
    this.open = new Map();
    /** @type {Map<string, number>} How often something was asked for. */
    this.asked = new Map();
  }

  /** @param {import("./verify.js").Row} row */
  add(row) {
    const payload = objectOf(row);
    const place = this.rows.push(row) - 1;
    const lane = this.laneOf(row.lane, place);
    lane.last = place;
    lane.rows += 1;
    const failure = safely(() => failureOf(row.event, payload));
    if (failure) {
      this.failures.set(place, failure);
      lane.marks.push(place);
    }
    try {
      HANDLERS[row.event]?.(this, row, payload, lane, place);
    } catch {
      // Members of other kinds than ours: the row is shown, and counts for nothing.
    }
  }

  /** @param {string} name @param {number} place @returns {Lane} */
  laneOf(name, place) {
    let lane = this.lanes.get(name);
    if (lane === undefined) {
      const [calls, tools, repeats, tokensIn, tokensOut, modelMs, toolMs] = [0, 0, 0, 0, 0, 0, 0];
      lane = {
        name,
        first: place,
        last: place,
        rows: 0,
        spans: [],
        marks: [],
        changes: [],
        calls,
        tools,
        repeats,
        tokensIn,
        tokensOut,
        modelMs,
        toolMs,
      };
      this.lanes.set(name, lane);
    }
    return lane;
  }

  /**
   * The lanes, each behind the one that it is below of, with what it and those below it came to.
   *
   * @returns {{ lane: Lane, depth: number, sum: Sum }[]}
   */
  ordered() {
    /** @type {Map<string | null, Lane[]>} */
    const below = new Map();
    for (const lane of this.lanes.values()) {
      append(below, this.parentOf(lane.name), lane);
    }
    /** @type {{ lane: Lane, depth: number, sum: Sum }[]} */
    const found = [];
    const visit = (/** @type {Lane} */ lane, /** @type {number} */ depth) => {
      const { calls, tools, repeats, tokensIn, tokensOut, modelMs, toolMs } = lane;
      const sum = {
        calls,
        tools,
        repeats,
        tokensIn,
        tokensOut,
        modelMs,
        toolMs,
        failures: lane.marks.length,
        firstFailure: lane.marks[0] ?? Infinity,
      };
      found.push({ lane, depth, sum });
      for (const child of below.get(lane.name) ?? []) {
        const more = visit(child, depth + 1);
        for (const name of COUNTS) sum[name] += more[name];
        sum.failures += more.failures;
        sum.firstFailure = Math.min(sum.firstFailure, more.firstFailure);
      }
      return sum;
    };
    for (const lane of below.get(null) ?? []) visit(lane, 0);
    return found;
  }

  /** The nearest lane that this one is below of, or null. @param {string} name */
  parentOf(name) {
    for (let end = name.lastIndexOf("/"); end > 0; end = name.lastIndexOf("/", end - 1)) {
      if (this.lanes.has(name.slice(0, end))) return name.slice(0, end);
    }
    return null;
  }

  /** The rows that belong to one thing: a call and its answer, a tool from proposal to result. @param {number} place */
  relatedTo(place) {
    const key = this.keyOf(this.rows[place]);
    return key === "" ? [] : (this.related.get(key) ?? []);
  }

  /** @param {import("./verify.js").Row} row */
  keyOf(row) {
    const payload = objectOf(row);
    if (typeof payload.toolCallId === "string") return `tool ${payload.toolCallId}`;
    if (row.event.startsWith("step.") || row.event.startsWith("agent.")) return `step ${payload.stepId}`;
    return "";
  }

  /** Remember that something was asked for. @param {string} key @param {string} what @param {Lane} lane @param {number} place */
  again(key, what, lane, place) {
    const times = (this.asked.get(key) ?? 0) + 1;
    this.asked.set(key, times);
    if (times > 1) {
      lane.repeats += 1;
      this.repeats.set(place, `${what} for the ${times}${ordinal(times)} time`);
    }
  }

  /** @param {string} key @param {number} place */
  relate(key, place) {
    append(this.related, key, place);
  }
}

/** @param {number} n */
const ordinal = (n) => (n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th"));

/** @param {Lane} lane @param {Span["kind"]} kind @param {import("./verify.js").Row} row @param {number} place */
function begin(lane, kind, row, place) {
  /** @type {Span} */
  const span = { kind, row: place, from: row.time, to: null, isBad: false };
  lane.spans.push(span);
  return span;
}

/** @param {RunModel} run @param {import("./verify.js").Row} row @param {Lane} lane @param {boolean} isBad */
function endCall(run, row, lane, isBad) {
  const span = run.open.get(lane.name)?.shift();
  if (span === undefined) return;
  span.to = row.time;
  span.isBad = isBad;
  lane.modelMs += Math.max(0, span.to - span.from);
}

/** @param {RunModel} run @param {import("./verify.js").Row} row @param {Lane} lane @param {number} place */
function beginCall(run, row, lane, place) {
  const span = begin(lane, "model", row, place);
  append(run.open, lane.name, span);
}

/** @type {Record<string, (run: RunModel, row: import("./verify.js").Row, payload: any, lane: Lane, place: number) => void>} */
const HANDLERS = {
  __proto__: /** @type {any} */ (null),
  "run.started": (run) => {
    run.status = "running";
  },
  "run.finished": (run, row, payload) => {
    run.status = word(payload.status);
    run.reason = word(payload.reason);
  },
  "step.started": (run, row, payload, lane, place) => {
    run.relate(`step ${payload.stepId}`, place);
    if (run.steps.has(payload.stepId)) return;
    run.steps.set(payload.stepId, {
      id: word(payload.stepId),
      label: word(payload.label),
      status: "running",
      error: "",
      row: place,
      from: row.time,
      to: null,
      attempts: 1,
    });
  },
  "step.finished": (run, row, payload, lane, place) => {
    run.relate(`step ${payload.stepId}`, place);
    const step = run.steps.get(payload.stepId);
    if (step === undefined) return;
    step.status = payload.status === "ok" ? "ok" : "error";
    step.error = word(payload.errorCode);
    step.to = row.time;
  },
  "decision.made": (run, row, payload) => {
    const step = run.steps.get(payload.stepId);
    if (step !== undefined && count(payload.attempt) > step.attempts) step.attempts = payload.attempt;
  },
  "model.call": (run, row, payload, lane, place) => {
    run.calls += 1;
    lane.calls += 1;
    beginCall(run, row, lane, place);
    run.again(
      `${row.lane} asks ${payload.model} ${payload.prompt?.digest}`,
      "the same is asked",
      lane,
      place,
    );
  },
  "model.answer": (run, row, payload, lane) => endCall(run, row, lane, payload.outcome === "error"),
  "http.request": (run, row, payload, lane, place) => beginCall(run, row, lane, place),
  "http.response": (run, row, payload, lane) => endCall(run, row, lane, count(payload.status) >= 400),
  "model.usage": (run, row, payload, lane) => {
    const band = run.usage.get(payload.billingStatus);
    if (band === undefined) return;
    const [tokensIn, cached, tokensOut] = [
      payload.inputTokens,
      payload.cachedInputTokens,
      payload.outputTokens,
    ].map(count);
    band.in += tokensIn;
    band.cached += cached;
    band.out += tokensOut;
    band.credits += count(payload.credits);
    band.calls += 1;
    lane.tokensIn += tokensIn + cached;
    lane.tokensOut += tokensOut;
    const name = `${payload.provider}:${payload.model}`;
    const model = run.models.get(name) ?? { calls: 0, tokensIn: 0, tokensOut: 0 };
    run.models.set(name, {
      calls: model.calls + 1,
      tokensIn: model.tokensIn + tokensIn + cached,
      tokensOut: model.tokensOut + tokensOut,
    });
  },
  "agent.started": (run, row, payload, lane, place) => {
    run.relate(`step ${payload.stepId}`, place);
    const step = run.steps.get(payload.stepId);
    if (step !== undefined && count(payload.attempt) > step.attempts) step.attempts = payload.attempt;
    begin(lane, "agent", row, place);
  },
  "agent.finished": (run, row, payload, lane, place) => {
    run.relate(`step ${payload.stepId}`, place);
    const span = lane.spans.findLast((one) => one.kind === "agent" && one.to === null);
    if (span === undefined) return;
    span.to = row.time;
    span.isBad = payload.outcome !== "ok";
  },
  "tool.proposed": (run, row, payload, lane, place) => {
    const id = word(payload.toolCallId);
    run.relate(`tool ${id}`, place);
    lane.tools += 1;
    run.again(
      `${row.lane} ${payload.name} ${payload.args?.digest}`,
      `${payload.name} with the same arguments`,
      lane,
      place,
    );
    run.tools.set(id, {
      id,
      name: word(payload.name),
      lane: row.lane,
      row: place,
      hash: row.eventHash,
      said: "",
      span: begin(lane, "wait", row, place),
    });
  },
  "tool.approved": (run, row, payload, lane, place) =>
    decided(run, row, payload, place, `approved by ${payload.actor}`),
  "tool.denied": (run, row, payload, lane, place) =>
    decided(run, row, payload, place, `denied by ${payload.actor}`),
  "tool.started": (run, row, payload, lane, place) => {
    run.relate(`tool ${payload.toolCallId}`, place);
    const tool = run.tools.get(payload.toolCallId);
    if (tool !== undefined) tool.span = begin(lane, "tool", row, place);
  },
  "tool.result": (run, row, payload, lane, place) => {
    run.relate(`tool ${payload.toolCallId}`, place);
    const tool = run.tools.get(payload.toolCallId);
    const span = tool?.span;
    if (tool === undefined || !span) return;
    span.to = row.time;
    span.isBad = payload.ok === false || Boolean(payload.exitCode);
    if (span.kind === "tool") lane.toolMs += Math.max(0, span.to - span.from);
    tool.span = null;
    if (tool.said === "") tool.said = "ran";
  },
  provider_state_mutation: (run, row, payload, lane, place) => {
    lane.changes.push(place);
    run.mutations.push({ row: place, kind: word(payload.kind), flagged: payload.flagged === true });
  },
  "artifact.written": (run, row, payload) => run.artifacts.add(word(payload.path)),
  "artifact.removed": (run, row, payload) => run.artifacts.delete(word(payload.path)),
};

/** @param {RunModel} run @param {import("./verify.js").Row} row @param {any} payload @param {number} place @param {string} said */
function decided(run, row, payload, place, said) {
  run.relate(`tool ${payload.toolCallId}`, place);
  const tool = run.tools.get(payload.toolCallId);
  if (tool === undefined || tool.said !== "") return;
  tool.said = said;
  if (tool.span !== null) tool.span.to = row.time;
}
