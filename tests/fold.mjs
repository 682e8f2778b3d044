// The two folds, written from their description alone: `node fold.mjs < logs`, where each line of
// the input is a JSON array of events; per log two lines come out, or "refused".
import { readFileSync } from "node:fs";

class Refused extends Error {}

const refuseIf = (wrong, why) => {
  if (wrong) throw new Refused(why);
};

const canonical = (value) =>
  JSON.stringify(value, (_, v) =>
    v && typeof v === "object" && !Array.isArray(v)
      ? Object.fromEntries(Object.keys(v).sort().map((k) => [k, v[k]]))
      : v,
  );

const said = ({ kind, payload }) =>
  canonical([kind, kind === "model.usage" ? { cachedInputTokens: 0, ...payload } : payload]);

const inOrder = (events) => {
  const ordered = [];
  for (const e of [...events].sort((a, b) => a.seq - b.seq)) {
    const last = ordered.at(-1);
    refuseIf(last && last.runId !== e.runId, "two runs");
    if (last?.seq === e.seq) refuseIf(said(last) !== said(e), "two events of one seq");
    else ordered.push(e);
  }
  return ordered;
};

const project = (events) => {
  const ordered = inOrder(events);
  const zero = () => ({ inputTokens: 0, outputTokens: 0, cachedInputTokens: 0, credits: 0 });
  let status = "pending";
  const usageTotals = { metered: zero(), priced: zero(), estimated: zero(), unsupported: zero() };
  const [nodes, roots, checkpoints] = [new Map(), [], []];
  for (const { kind, payload: p, seq } of ordered) {
    if (kind === "run.started") status = "running";
    if (kind === "run.finished") status = p.status;
    if (kind === "step.started") {
      refuseIf(nodes.has(p.stepId), "a step starts twice");
      const node = { stepId: p.stepId };
      if (p.parentStepId !== undefined) node.parentStepId = p.parentStepId;
      node.depth = p.depth;
      if (p.label !== undefined) node.label = p.label;
      node.status = "running";
      node.children = [];
      (nodes.get(p.parentStepId)?.children ?? roots).push(node);
      nodes.set(p.stepId, node);
    }
    if (kind === "step.finished" && nodes.has(p.stepId)) nodes.get(p.stepId).status = p.status;
    if (kind === "model.usage") {
      const total = usageTotals[p.billingStatus];
      for (const name of Object.keys(total)) {
        total[name] += p[name] ?? 0;
        refuseIf(total[name] > Number.MAX_SAFE_INTEGER, "too large a total");
      }
    }
    if (kind === "checkpoint") {
      const mark = { checkpointId: p.checkpointId };
      if (p.label !== undefined) mark.label = p.label;
      checkpoints.push({ ...mark, seq });
    }
  }
  return { runId: ordered[0]?.runId ?? "", status, steps: roots, usageTotals, checkpoints };
};

const projectToolCalls = (events) => {
  const calls = new Map();
  for (const { kind, payload: p, seq } of inOrder(events)) {
    const call = calls.get(p.toolCallId);
    if (kind === "tool.proposed") {
      refuseIf(call, "proposed twice");
      const { digest, byteLength, encRef } = p.args;
      const args = encRef === undefined ? { digest, byteLength } : { digest, byteLength, encRef };
      const { toolCallId, stepId, name } = p;
      calls.set(toolCallId, { toolCallId, stepId, name, args, proposedSeq: seq });
    }
    if ((kind === "tool.approved" || kind === "tool.denied") && call && !call.approval) {
      call.approval = { outcome: kind.slice(5), actor: p.actor, seq };
      if (p.reason !== undefined) call.approval.reason = p.reason;
      if (call.result) {
        const { result } = call;
        delete call.result;
        call.result = result; // written behind the approval, whichever came first
      }
    }
    if (kind === "tool.result" && call && !call.result) {
      call.result = { ok: p.ok, seq };
      if (p.exitCode !== undefined) call.result.exitCode = p.exitCode;
    }
  }
  return [...calls.values()];
};

for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const events = JSON.parse(line);
  for (const fold of [project, projectToolCalls]) {
    try {
      console.log(JSON.stringify(fold(events)));
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      console.log("refused");
    }
  }
}
