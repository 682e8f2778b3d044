"""Payloads of the rows that are a trajectory's events, and of the rows beside them.

Rule: a body stands here only as a DigestRef, and no text that a model made is inline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from bernstein.canonical import DigestRef, JsonObject

RunStatus: TypeAlias = Literal["completed", "failed", "cancelled"]
StepStatus: TypeAlias = Literal["ok", "error"]
BillingStatus: TypeAlias = Literal["metered", "priced", "estimated", "unsupported"]
Decision: TypeAlias = Literal["schedule", "retry", "skip", "approve", "deny", "cancel", "finish"]
DenialReason: TypeAlias = Literal["not_allowed", "refused"]
ErrorCode: TypeAlias = Literal[
    "provider_error",
    "bad_answer",
    "signal_failed",
    "dependency_failed",
    "budget_exceeded",
    "file_refused",
    "command_failed",
    "timeout",
    "cancelled",
    "replay_miss",
    "agent_failed",
    "context_exhausted",
]
# How a program that does a step ended: by itself, well or not; at the end of its time; by a signal;
# with its run; or with its context full, which it was asked not to make shorter.
AgentOutcome: TypeAlias = Literal[
    "ok", "failed", "timeout", "killed", "cancelled", "context_exhausted"
]

RUN_STARTED = "run.started"
RUN_FINISHED = "run.finished"
STEP_STARTED = "step.started"
STEP_DECOMPOSED = "step.decomposed"
STEP_FINISHED = "step.finished"
MODEL_CALL = "model.call"
MODEL_ANSWER = "model.answer"
MODEL_USAGE = "model.usage"
AGENT_STARTED = "agent.started"
AGENT_FINISHED = "agent.finished"
TOOL_PROPOSED = "tool.proposed"
TOOL_RESULT = "tool.result"
PROVIDER_STATE_MUTATION = "provider_state_mutation"
PROVIDER_STATE_CAPABILITY = "provider_state_capability"
TOOL_APPROVED = "tool.approved"
TOOL_DENIED = "tool.denied"
TOOL_STARTED = "tool.started"
# Rows that are on disk before execution goes on: what follows them cannot be taken back.
DURABLE_EVENTS = frozenset(
    {TOOL_PROPOSED, TOOL_APPROVED, TOOL_DENIED, TOOL_STARTED, PROVIDER_STATE_MUTATION}
)
CHECKPOINT = "checkpoint"
HTTP_REQUEST = "http.request"
HTTP_RESPONSE = "http.response"
FIXTURE_ANSWERED = "fixture.answered"
ARTIFACT_WRITTEN = "artifact.written"
ARTIFACT_REMOVED = "artifact.removed"
SIGNAL_CHECKED = "signal.checked"
DECISION_MADE = "decision.made"


def run_started(agent_id: str, plan: DigestRef) -> JsonObject:
    """The first row of a run; ``plan`` covers the plan's value, not its spelling."""
    return {"agentId": agent_id, "input": plan.to_json()}


def run_finished(
    status: RunStatus, reason: ErrorCode | None, output: DigestRef | None
) -> JsonObject:
    """The last row of a run; ``output`` covers the artifacts' paths and digests."""
    payload: JsonObject = {"status": status}
    if output is not None:
        payload["output"] = output.to_json()
    if reason is not None:
        payload["reason"] = reason
    return payload


def step_started(step_id: str, parent: str | None, depth: int, label: str | None) -> JsonObject:
    """A step, or a task below one; ``label`` comes from the plan file, never from a model."""
    payload: JsonObject = {"stepId": step_id, "depth": depth}
    if parent is not None:
        payload["parentStepId"] = parent
    if label is not None:
        payload["label"] = label
    return payload


def step_decomposed(step_id: str, count: int, tasks: DigestRef) -> JsonObject:
    """What a step was made tasks of; ``tasks`` covers their ids, titles, files and order."""
    return {"stepId": step_id, "taskCount": count, "tasks": tasks.to_json()}


def step_finished(step_id: str, error_code: ErrorCode | None) -> JsonObject:
    """The end of a step or task: ok without a code, error with one."""
    if error_code is None:
        return {"stepId": step_id, "status": "ok"}
    return {"stepId": step_id, "status": "error", "errorCode": error_code}


def model_call(step_id: str | None, provider: str, model: str, prompt: DigestRef) -> JsonObject:
    """A request to a model, written before it is asked."""
    return _with_step(step_id, provider=provider, model=model, prompt=prompt.to_json())


def model_answer(key: str, outcome: Literal["ok", "error"], answer: DigestRef) -> JsonObject:
    """An answer, recorded or served: it ties the recording to the chain."""
    return {"key": key, "outcome": outcome, "answer": answer.to_json()}


def model_usage(step_id: str | None, provider: str, model: str, usage: JsonObject) -> JsonObject:
    """What a call used, as reported; ``usage`` has the wire names of contract and recording."""
    return _with_step(step_id, provider=provider, model=model, **usage)


def http_request(request: DigestRef) -> JsonObject:
    """A request that asks no model: a probe, a list of models, a count of tokens."""
    return {"request": request.to_json()}


def http_response(key: str, outcome: Literal["ok", "error"], answer: DigestRef) -> JsonObject:
    """What came of such a request; ``answer`` covers status and body."""
    return {"key": key, "outcome": outcome, "answer": answer.to_json()}


def fixture_answered(
    kind: str, key: str, outcome: Literal["ok", "error"], answer: DigestRef
) -> JsonObject:
    """Payload of ``fixture.answered``: what the world beside the model answered."""
    return {"kind": kind, "key": key, "outcome": outcome, "answer": answer.to_json()}


def checkpoint(checkpoint_id: str, label: str | None, state: DigestRef) -> JsonObject:
    """A point that a stage reached; ``state`` covers the artifacts written until then."""
    payload: JsonObject = {"checkpointId": checkpoint_id, "state": state.to_json()}
    if label is not None:
        payload["label"] = label
    return payload


def artifact_written(
    step_id: str, path: str, content: DigestRef, kind: Literal["link", "exec"] | None = None
) -> JsonObject:
    """A file that a task wrote; ``path`` is relative to the workspace, with ``/``.

    ``kind`` says so where it is a link, whose content is what it leads to, or can be executed.
    """
    payload: JsonObject = {"stepId": step_id, "path": path, "content": content.to_json()}
    return payload if kind is None else {**payload, "kind": kind}


def artifact_removed(step_id: str, path: str) -> JsonObject:
    """A file that a task took away."""
    return {"stepId": step_id, "path": path}


def agent_started(step_id: str, agent: str, attempt: int, fingerprint: DigestRef) -> JsonObject:
    """A program that does a step begins; what it asks is in lanes below its own.

    ``fingerprint`` covers its arguments, its profile, and its compaction policy.
    """
    return {
        "stepId": step_id,
        "agent": agent,
        "attempt": attempt,
        "fingerprint": fingerprint.to_json(),
    }


def agent_finished(
    step_id: str, attempt: int, outcome: AgentOutcome, exit_code: int | None
) -> JsonObject:
    """How it ended; without an exit code where that is ours to say."""
    payload: JsonObject = {"stepId": step_id, "attempt": attempt, "outcome": outcome}
    return payload if exit_code is None else {**payload, "exitCode": exit_code}


def tool_proposed(step_id: str, call_id: str, name: str, args: DigestRef) -> JsonObject:
    """A tool that an agent asks for; ``call_id`` is ours."""
    return {"stepId": step_id, "toolCallId": call_id, "name": name, "args": args.to_json()}


def tool_decided(call_id: str, actor: str, reason: DenialReason | None = None) -> JsonObject:
    """Who let a tool run, or did not: of ``tool.approved`` and of ``tool.denied``."""
    payload: JsonObject = {"toolCallId": call_id, "actor": actor}
    return payload if reason is None else {**payload, "reason": reason}


def tool_started(call_id: str) -> JsonObject:
    """A tool is about to run: from here on it has run, whatever comes."""
    return {"toolCallId": call_id}


def tool_result(
    call_id: str, result: DigestRef, *, ok: bool, exit_code: int | None = None
) -> JsonObject:
    """What a tool gave."""
    payload: JsonObject = {"toolCallId": call_id, "ok": ok, "result": result.to_json()}
    return payload if exit_code is None else {**payload, "exitCode": exit_code}


def signal_checked(
    step_id: str, index: int, kind: str, *, holds: bool, result: DigestRef | None
) -> JsonObject:
    """A completion signal, by its place in the plan, and whether it holds.

    ``result`` covers exit code and output, where a command was run.
    """
    payload: JsonObject = {"stepId": step_id, "signal": index, "type": kind, "holds": holds}
    if result is not None:
        payload["result"] = result.to_json()
    return payload


def decision_made(decision: Decision, step_id: str, attempt: int) -> JsonObject:
    """A decision of the scheduler, beside its row in the decision log."""
    return {"decision": decision, "stepId": step_id, "attempt": attempt}


def _with_step(step_id: str | None, **members: object) -> JsonObject:
    return members if step_id is None else {"stepId": step_id, **members}
