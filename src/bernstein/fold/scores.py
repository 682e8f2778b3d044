"""Holds what a run did against a policy: scores that are the same each time.

Rule: they read the two folds and nothing else, no journal, no clock, no file; so who has the
events can compute each score again, to the byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import MAX_INT, JsonObject, sha256_hex
from bernstein.events.payloads import FoldError
from bernstein.fold.policy import Approvals, BudgetOf, Repeats, ScorePolicy, ToolNames
from bernstein.fold.run import RunProjection, as_stringified
from bernstein.fold.tool_calls import ProposedCall, tool_calls_bytes
from bernstein.fold.words import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ScoreName: TypeAlias = Literal[
    "allowed_tools",
    "needless_repeats",
    "approvals",
    "budget_credits",
    "budget_tokens",
    "budget_tool_calls",
    "budget_steps",
]
Reason: TypeAlias = Literal[
    "tool_not_allowed",
    "repeated_after_success",
    "ran_after_denial",
    "approver_not_authorised",
    "ran_unasked",
    "ran_before_approval",
    "over_budget",
    "usage_without_price",
]
# The type of the audit chain's row that a result is anchored by.
SCORED = "trajectory.scored"
_TOLD = 20  # findings of a score, to people


class ScoreFinding(msgspec.Struct, frozen=True, rename="camel"):
    """What a score holds against a run: a tool call, or what was used too much of.

    ``seq`` is where the call was proposed; without a call it and ``tool_call_id`` are None.
    """

    seq: int | None
    tool_call_id: str | None
    name: str
    reason: Reason


class Score(msgspec.Struct, frozen=True):
    """One score of a run.

    Attributes:
        score: Its name.
        holds: Whether the run kept to the policy.
        count: What it counts: findings, or what was used of a budget.
        limit: The most that the policy allows.
        findings: What speaks against the run, in the order of proposal.
    """

    score: ScoreName
    holds: bool
    count: int
    limit: int
    findings: tuple[ScoreFinding, ...] = ()


class ScoreReport(msgspec.Struct, frozen=True):
    """The scores of one run by one policy, and the digests of all that they follow from."""

    run_id: str
    projection_sha256: str
    tool_calls_sha256: str
    policy_sha256: str
    scores: tuple[Score, ...]

    @property
    def holds(self) -> bool:
        """Whether the run kept to all of the policy."""
        return all(score.holds for score in self.scores)

    def to_json(self) -> JsonObject:
        """The report in its wire names, in the order in which they are written."""
        return {
            "version": 1,
            "runId": self.run_id,
            "projectionSha256": self.projection_sha256,
            "toolCallsSha256": self.tool_calls_sha256,
            "policySha256": self.policy_sha256,
            "holds": self.holds,
            "scores": [msgspec.to_builtins(score) for score in self.scores],
        }

    def to_bytes(self) -> bytes:
        """The bytes that ``JSON.stringify`` would write, in UTF-8."""
        return as_stringified(self.to_json())

    def anchor(self, head: str) -> JsonObject:
        """The payload of the audit row that binds the result to the journal with this head."""
        return {
            "run_id": self.run_id,
            "head": head,
            "projection_sha256": self.projection_sha256,
            "tool_calls_sha256": self.tool_calls_sha256,
            "policy_sha256": self.policy_sha256,
            "score_sha256": sha256_hex(self.to_bytes()),
            "holds": self.holds,
        }

    def worse_than(self, other: ScoreReport) -> list[ScoreName]:
        """The scores that count more here than there, or held there and do not here.

        Raises:
            ValueError: They were made by different policies.
        """
        if self.policy_sha256 != other.policy_sha256:
            raise ValueError("two policies give no scores that can be compared")
        before = {score.score: score for score in other.scores}
        return [
            score.score
            for score in self.scores
            if score.count > before[score.score].count
            or (before[score.score].holds and not score.holds)
        ]

    def assert_holds(self) -> None:
        """Do nothing where all scores hold.

        Raises:
            AssertionError: One does not; the message lists the findings.
        """
        if not self.holds:
            wrong = [line for score in self.scores if not score.holds for line in told(score)]
            said = "\n".join([f"run {self.run_id!r} does not keep to the policy", *wrong])
            raise AssertionError(said)


def told(score: Score) -> list[str]:
    """A score for people: a line with the reasons, and a line for each of the first findings."""
    word = "holds" if score.holds else "fails"
    reasons = ", ".join(sorted({found.reason for found in score.findings}))
    why = f" ({reasons})" if reasons else ""
    unit = " micro-dollars" if score.score == "budget_credits" else ""
    lines = [f"{word} {score.score}: {score.count} of at most {score.limit}{unit}{why}"]
    for found in score.findings[:_TOLD]:
        where = "" if found.seq is None else f"row {found.seq}, call {found.tool_call_id}, "
        lines.append(plain(f"  {where}{found.name}: {found.reason}"))
    if (rest := len(score.findings) - _TOLD) > 0:
        lines.append(f"  and {rest} more")
    return lines


def score(
    projection: RunProjection, calls: Sequence[ProposedCall], policy: ScorePolicy
) -> ScoreReport:
    """Hold a run against a policy.

    Args:
        projection: What ``project`` made of its events.
        calls: What ``project_tool_calls`` made of the same events.
        policy: What it may do.
    Returns:
        A score for each thing that the policy says.
    Raises:
        FoldError: A sum is beyond 2^53-1.
    Source: docs/scores.md.
    """
    scores: list[Score] = []
    if policy.allowed_tools is not None:
        scores.append(_allowed_tools(calls, policy.allowed_tools))
    if policy.repeats is not None:
        scores.append(_needless_repeats(calls, policy.repeats))
    if policy.approvals is not None:
        scores.append(_approvals(calls, policy.approvals))
    scores += [
        count(projection, calls, policy.budget[name])
        for name, count in _BUDGETS.items()
        if name in policy.budget
    ]
    return ScoreReport(
        projection.run_id,
        sha256_hex(projection.to_bytes()),
        sha256_hex(tool_calls_bytes(calls)),
        policy.digest(),
        tuple(scores),
    )


def _of_calls(name: ScoreName, limit: int, found: Iterable[ScoreFinding]) -> Score:
    findings = tuple(found)
    return Score(name, len(findings) <= limit, len(findings), limit, findings)


def _finding(call: ProposedCall, reason: Reason) -> ScoreFinding:
    return ScoreFinding(call.proposed_seq, call.tool_call_id, call.name, reason)


def _allowed_tools(calls: Sequence[ProposedCall], allowed: ToolNames) -> Score:
    """Calls of other tools, whether they ran or not: asking for one is what is not allowed."""
    found = (_finding(call, "tool_not_allowed") for call in calls if call.name not in allowed)
    return _of_calls("allowed_tools", 0, found)


def _needless_repeats(calls: Sequence[ProposedCall], repeats: Repeats) -> Score:
    """Calls that ask for what a call before, with this name and these arguments, had given."""
    found = []
    given: dict[tuple[str, str], int] = {}  # where the first success of each stands
    for call in calls:
        asked = (call.name, call.args.digest)
        if call.name not in repeats.exempt and given.get(asked, MAX_INT) < call.proposed_seq:
            found.append(_finding(call, "repeated_after_success"))
        if call.result is not None and call.result.ok:
            given[asked] = min(given.get(asked, MAX_INT), call.result.seq)
    return _of_calls("needless_repeats", repeats.allowed, found)


def _approvals(calls: Sequence[ProposedCall], approvals: Approvals) -> Score:
    found = (_finding(call, reason) for call in calls if (reason := _unapproved(call, approvals)))
    return _of_calls("approvals", 0, found)


def _unapproved(call: ProposedCall, approvals: Approvals) -> Reason | None:
    """Why a call was not approved as it should have been; None where it was."""
    said, came = call.approval, call.result
    ran_first = said is not None and came is not None and came.seq < said.seq
    if said is not None and said.outcome == "denied" and came is not None and not ran_first:
        return "ran_after_denial"
    if call.name not in approvals.needed_for:
        return None
    if said is None or said.outcome == "denied":
        return None if came is None else "ran_unasked"
    if approvals.approvers is not None and said.actor not in approvals.approvers:
        return "approver_not_authorised"
    return "ran_before_approval" if ran_first else None


def _within(
    name: ScoreName, count: int, limit: int, findings: tuple[ScoreFinding, ...] = ()
) -> Score:
    if count > MAX_INT:
        raise FoldError(f"what {name} counts is beyond 2^53-1")
    return Score(name, not findings, count, limit, findings)


def _used(count: int, limit: int, name: BudgetOf) -> tuple[ScoreFinding, ...]:
    return (ScoreFinding(None, None, name, "over_budget"),) if count > limit else ()


def _credits(projection: RunProjection, calls: Sequence[ProposedCall], limit: int) -> Score:
    """What was charged or has a price; what has none could have cost anything."""
    del calls
    totals = projection.usage_totals
    count = totals["metered"]["credits"] + totals["priced"]["credits"]
    unpriced = any((*totals["estimated"].values(), *totals["unsupported"].values()))
    without = ScoreFinding(None, None, "credits", "usage_without_price")
    findings = _used(count, limit, "credits") + ((without,) if unpriced else ())
    return _within("budget_credits", count, limit, findings)


def _tokens(projection: RunProjection, calls: Sequence[ProposedCall], limit: int) -> Score:
    """All tokens of all bands, cached ones too."""
    del calls
    count = sum(
        totals["inputTokens"] + totals["outputTokens"] + totals["cachedInputTokens"]
        for totals in projection.usage_totals.values()
    )
    return _within("budget_tokens", count, limit, _used(count, limit, "tokens"))


def _tool_calls(projection: RunProjection, calls: Sequence[ProposedCall], limit: int) -> Score:
    """All calls that were asked for; the first one too many is the finding."""
    del projection
    findings = tuple(_finding(call, "over_budget") for call in calls[limit : limit + 1])
    return _within("budget_tool_calls", len(calls), limit, findings)


def _steps(projection: RunProjection, calls: Sequence[ProposedCall], limit: int) -> Score:
    """All nodes of the step tree: steps, and tasks below them."""
    del calls
    count, rest = 0, list(projection.steps)
    while rest:
        node = rest.pop()
        count += 1
        rest += node["children"]
    return _within("budget_steps", count, limit, _used(count, limit, "steps"))


_BUDGETS: dict[BudgetOf, Callable[[RunProjection, Sequence[ProposedCall], int], Score]] = {
    "credits": _credits,
    "tokens": _tokens,
    "tool_calls": _tool_calls,
    "steps": _steps,
}
