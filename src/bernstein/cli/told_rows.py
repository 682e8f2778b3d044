"""Rows of a journal that are told one by one: what an agent came to, what changed a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.events import trajectory as event

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject


def agent_finished(payload: JsonObject) -> str:
    """How an agent ended."""
    code, attempt = payload.get("exitCode"), payload.get("attempt")
    with_code = "" if code is None else f" with {code}"
    again = f", attempt {attempt}" if attempt != 1 else ""
    return f"the agent of {payload.get('stepId')} ended {payload.get('outcome')}{with_code}{again}"


def mutation(payload: JsonObject) -> str:
    """How the context was changed."""
    tokens = payload.get("tokens") or {}
    counts = ", ".join(f"{name} {n}" for name, n in tokens.items() if type(n) is int)
    counted = f" ({counts} tokens)" if counts else ""
    flagged = ", flagged: the run asked for none" if payload.get("flagged") else ""
    return f"the context was changed: {payload.get('kind')}{counted}{flagged}"


def capability(payload: JsonObject) -> str:
    """What of a provider or client could not be seen."""
    hidden: dict[str, list[str]] = {}
    for kind, at in (payload.get("kinds") or {}).items():
        if at.get("value") in {"declared-blind", "incomplete"}:
            hidden.setdefault(at["value"], []).append(kind)
    said = "; ".join(f"{value} to {', '.join(kinds)}" for value, kinds in sorted(hidden.items()))
    return f"{payload.get('provider')}: {said or 'all that could be done would be seen'}"


TOLD_ROWS = {
    event.AGENT_FINISHED: agent_finished,
    event.PROVIDER_STATE_MUTATION: mutation,
    event.PROVIDER_STATE_CAPABILITY: capability,
}
