"""The flight recorder of agent runs: record, replay without a provider, prove two runs the same.

Everything public is importable from here, and loaded when it is first used.
"""

from __future__ import annotations

from bernstein.version import __version__

# Not typing's: importing typing takes most of the time that importing this package does.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from bernstein.canonical import DigestRef, canonical_bytes
    from bernstein.capture.gateway.compaction import CompactionPolicy, apply_compaction_policy
    from bernstein.capture.gateway.inprocess import ReplayGateway, record, replay
    from bernstein.capture.llm import acall_llm, astream_llm, call_llm, stream_llm
    from bernstein.capture.scope import scope
    from bernstein.capture.tools import new_uuid, now, rng, tool
    from bernstein.chain.compare import compare_journals
    from bernstein.chain.decisions import execution_fingerprint
    from bernstein.chain.diff import diff_journals
    from bernstein.chain.journal import EventJournal
    from bernstein.chain.read import load_replay_events
    from bernstein.chain.verify import compute_replay_fingerprint
    from bernstein.errors import (
        BernsteinError,
        BudgetError,
        CanonicalError,
        DivergedError,
        JournalError,
        KeyUnavailableError,
        ModelUnavailableError,
        PlanError,
        PolicyError,
        ProofError,
        ProviderError,
        RecordedToolError,
        RecordingError,
        ReplayMissError,
        SealError,
        SettingsError,
        UnknownRunError,
        UnsafePathError,
        UsageError,
        WorkspaceError,
    )
    from bernstein.fold.policy import ScorePolicy
    from bernstein.fold.rebuild import rebuild_state
    from bernstein.fold.run import RunProjection, project
    from bernstein.fold.scores import ScoreReport, score
    from bernstein.fold.source import EventFile, TrajectoryEvent
    from bernstein.fold.tool_calls import ProposedCall, project_tool_calls
    from bernstein.recording.answer import Chunk, LlmAnswer, ToolCall, Usage
    from bernstein.recording.calls import DeterministicStore
    from bernstein.recording.key import LlmCall, replay_key
    from bernstein.runner.plan import Plan
    from bernstein.runner.plan_file import load_plan
    from bernstein.seal.approvals import RowRef, record_thread_approval
    from bernstein.seal.evidence import Verdict, verify_journal
    from bernstein.seal.seals import seal_journal_into_spine

_HOMES = {
    "bernstein.canonical": ("DigestRef", "canonical_bytes"),
    "bernstein.capture.gateway.compaction": ("CompactionPolicy", "apply_compaction_policy"),
    "bernstein.capture.gateway.inprocess": ("ReplayGateway", "record", "replay"),
    "bernstein.capture.llm": ("acall_llm", "astream_llm", "call_llm", "stream_llm"),
    "bernstein.capture.scope": ("scope",),
    "bernstein.capture.tools": ("new_uuid", "now", "rng", "tool"),
    "bernstein.chain.compare": ("compare_journals",),
    "bernstein.chain.decisions": ("execution_fingerprint",),
    "bernstein.chain.diff": ("diff_journals",),
    "bernstein.fold.policy": ("ScorePolicy",),
    "bernstein.fold.rebuild": ("rebuild_state",),
    "bernstein.fold.run": ("RunProjection", "project"),
    "bernstein.fold.scores": ("ScoreReport", "score"),
    "bernstein.fold.source": ("EventFile", "TrajectoryEvent"),
    "bernstein.fold.tool_calls": ("ProposedCall", "project_tool_calls"),
    "bernstein.chain.journal": ("EventJournal",),
    "bernstein.chain.read": ("load_replay_events",),
    "bernstein.chain.verify": ("compute_replay_fingerprint",),
    "bernstein.seal.evidence": ("Verdict", "verify_journal"),
    "bernstein.seal.approvals": ("RowRef", "record_thread_approval"),
    "bernstein.seal.seals": ("seal_journal_into_spine",),
    "bernstein.errors": (
        "BernsteinError",
        "BudgetError",
        "CanonicalError",
        "DivergedError",
        "JournalError",
        "KeyUnavailableError",
        "ModelUnavailableError",
        "PlanError",
        "PolicyError",
        "ProofError",
        "ProviderError",
        "RecordedToolError",
        "RecordingError",
        "ReplayMissError",
        "SealError",
        "SettingsError",
        "UnknownRunError",
        "UnsafePathError",
        "UsageError",
        "WorkspaceError",
    ),
    "bernstein.recording.answer": ("Chunk", "LlmAnswer", "ToolCall", "Usage"),
    "bernstein.recording.calls": ("DeterministicStore",),
    "bernstein.recording.key": ("LlmCall", "replay_key"),
    "bernstein.runner.plan": ("Plan",),
    "bernstein.runner.plan_file": ("load_plan",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BernsteinError",
    "BudgetError",
    "CanonicalError",
    "Chunk",
    "CompactionPolicy",
    "DeterministicStore",
    "DigestRef",
    "DivergedError",
    "EventFile",
    "EventJournal",
    "JournalError",
    "KeyUnavailableError",
    "LlmAnswer",
    "LlmCall",
    "ModelUnavailableError",
    "Plan",
    "PlanError",
    "PolicyError",
    "ProofError",
    "ProposedCall",
    "ProviderError",
    "RecordedToolError",
    "RecordingError",
    "ReplayGateway",
    "ReplayMissError",
    "RowRef",
    "RunProjection",
    "ScorePolicy",
    "ScoreReport",
    "SealError",
    "SettingsError",
    "ToolCall",
    "TrajectoryEvent",
    "UnknownRunError",
    "UnsafePathError",
    "Usage",
    "UsageError",
    "Verdict",
    "WorkspaceError",
    "__version__",
    "acall_llm",
    "apply_compaction_policy",
    "astream_llm",
    "call_llm",
    "canonical_bytes",
    "compare_journals",
    "compute_replay_fingerprint",
    "diff_journals",
    "execution_fingerprint",
    "load_plan",
    "load_replay_events",
    "new_uuid",
    "now",
    "project",
    "project_tool_calls",
    "rebuild_state",
    "record",
    "record_thread_approval",
    "replay",
    "replay_key",
    "rng",
    "scope",
    "score",
    "seal_journal_into_spine",
    "stream_llm",
    "tool",
    "verify_journal",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'bernstein' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - not for a bare import

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
