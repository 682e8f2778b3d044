// A row as one line for people.

import { because, count, objectOf, safely } from "./words.js";

/**
 * What of a payload people ask for, as one line.
 *
 * @param {import("./verify.js").Row} row
 * @param {import("./model.js").RunModel} [run] Knows the names of tools.
 */
export function told(row, run) {
  const payload = objectOf(row);
  const tool = row.event === "tool.proposed" ? undefined : run?.tools.get(payload.toolCallId);
  const text = safely(() => (TOLD[row.event] ?? others)(payload));
  return tool === undefined ? text : `${tool.name}${text && ": "}${text}`;
}

/** @param {any} payload */
const others = (payload) =>
  MEMBERS.filter((name) => Object.hasOwn(payload, name))
    .map((name) => `${name} ${text(payload[name])}`)
    .join(", ");

/** @param {unknown} value */
const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const MEMBERS = ["kind", "name", "provider", "path", "status", "outcome", "decision", "reason", "count"];

/** @type {Record<string, (payload: any) => string>} */
const TOLD = {
  __proto__: /** @type {any} */ (null),
  "run.started": (p) => `agent ${p.agentId}`,
  "run.finished": (p) => `${p.status}${because(p.reason)}`,
  "step.started": (p) => p.label ?? p.stepId,
  "step.decomposed": (p) => `into ${p.taskCount} task${p.taskCount === 1 ? "" : "s"}`,
  "step.finished": (p) => `${p.status}${because(p.errorCode)}`,
  "decision.made": (p) => `${p.decision}${p.attempt > 1 ? `, attempt ${p.attempt}` : ""}`,
  "model.call": (p) => `${p.provider}:${p.model}, ${bytes(p.prompt)}`,
  "model.answer": (p) => `${p.outcome}, ${bytes(p.answer)}`,
  "model.usage": (p) =>
    `${tokens(p.inputTokens)} in, ${p.cachedInputTokens ? `${tokens(p.cachedInputTokens)} cached, ` : ""}${tokens(p.outputTokens)} out (${p.billingStatus})`,
  "tool.proposed": (p) => `${p.name}, ${bytes(p.args)}`,
  "tool.approved": (p) => `by ${p.actor}`,
  "tool.denied": (p) => `by ${p.actor}${because(p.reason)}`,
  "tool.started": () => "",
  "tool.result": (p) =>
    `${p.ok ? "ok" : "failed"}${p.exitCode === undefined ? "" : `, exit code ${p.exitCode}`}, ${bytes(p.result)}`,
  "agent.started": (p) => `${p.agent}${p.attempt > 1 ? `, attempt ${p.attempt}` : ""}`,
  "agent.finished": (p) => `${p.outcome}${p.exitCode === undefined ? "" : `, exit code ${p.exitCode}`}`,
  "artifact.written": (p) => String(p.path),
  "artifact.removed": (p) => String(p.path),
  "signal.checked": (p) => `${p.type} ${p.holds ? "holds" : "does not hold"}`,
  checkpoint: (p) => String(p.label ?? p.checkpointId),
  provider_state_mutation: (p) => `${p.kind}${p.flagged ? ", unasked" : ""}`,
  provider_state_capability: (p) => String(p.provider),
};

/** @param {unknown} value */
const tokens = (value) => count(value).toLocaleString("en");

/** @param {any} ref */
const bytes = (ref) =>
  ref && typeof ref.byteLength === "number" ? `${ref.byteLength.toLocaleString("en")} bytes` : "";
