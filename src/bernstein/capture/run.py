"""One open run: its folder, its journal, its recording, and in a replay the score it follows.

Rule 1: a call's recording row is written before its chain row, both under one lock, so the chain
never proves an answer that the recording lacks.
Rule 2: what a replay serves is checked against the source's chain before the first answer.
"""

from __future__ import annotations

import fcntl
import logging
import os
import platform
import random
import shutil
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from bernstein.canonical import JsonObject, decode_canonical
from bernstein.capture.context_rows import ContextRows
from bernstein.capture.guard import no_network
from bernstein.capture.models.base import ModelName, default_model
from bernstein.capture.resumed import Resumed, hold_to_resume
from bernstein.capture.source import find_source, rerun_command
from bernstein.chain.compare import Comparison, compare_journals
from bernstein.chain.decisions import DecisionLog
from bernstein.chain.journal import EventJournal
from bernstein.chain.score import Score
from bernstein.errors import (
    BernsteinError,
    BudgetError,
    ReplayMissError,
    SealError,
    UsageError,
)
from bernstein.events import trajectory as event
from bernstein.events.entry import GENESIS
from bernstein.jsonl import open_append, read_lines, utc_now
from bernstein.recording.answer import LlmAnswer, Outcome, Usage
from bernstein.recording.calls import DeterministicStore
from bernstein.recording.coverage import Answered, Coverage, Guard, recount
from bernstein.recording.exchanges import ExchangeRecording, ExchangeWriter, load_exchanges
from bernstein.recording.fixtures import FixtureStore
from bernstein.recording.hold import Hold
from bernstein.rundir import make_sdd
from bernstein.seal.body_key import find_body_key, make_body_key
from bernstein.seal.proven import (
    ChainedRun,
    read_chained_run,
    recorded_answers,
    unanswered_calls,
)
from bernstein.seal.proven_wire import recorded_responses
from bernstein.seal.proven_world import recorded_fixtures
from bernstein.seal.retention import prune_to
from bernstein.seal.seals import seal_run
from bernstein.seal.signing import KeyStore
from bernstein.version import __version__
from bernstein.wire.chained import TermsOfRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bernstein.canonical import DigestRef
    from bernstein.events.entry import JournalEntry
    from bernstein.events.provider_state import Mutation
    from bernstein.recording.exchanges import ExchangeRow
    from bernstein.recording.key import LlmCall
    from bernstein.recording.rows import CallRow
    from bernstein.rundir import RunDir, SddDir
    from bernstein.settings import Settings

logger = logging.getLogger("bernstein.run")


@dataclass(slots=True)
class ExchangeCount:
    """How many exchanges of a run have begun, and how many have ended."""

    begun: int = 0
    done: int = 0


class OpenRun:
    """What every call and every row of a running run goes through; safe for threads."""

    def __init__(
        self,
        sdd: SddDir,
        settings: Settings,
        info: JsonObject,
        *,
        follows_score: bool,
        has_agents: bool = False,
        goes_on: RunDir | None = None,
    ) -> None:
        """Make a run's folder and open its files.

        Args:
            sdd: Where the run goes, and where the run to replay is looked for.
            settings: Seed, replay, strictness.
            info: Members of ``run.json`` that the caller knows: kind, plan or argv.
            follows_score: Whether the order of rows is ours to keep (a plan), so that a replay
                waits for each row's turn; else only the order of answers is kept.
            has_agents: Whether exchanges of agents are recorded beside the calls of a plan.
            goes_on: The run, where it is one that goes on; what it has written is passed over.
        Raises:
            UsageError: The run that is to go on has ended, or goes on elsewhere.
            UnknownRunError: The run to replay is not there.
            RecordingError: Its evidence does not hold.
            ReplayMissError: It has no recording.
        """
        self.sdd = sdd
        self.pid = os.getpid()
        self._retention = settings.retention
        self.is_closed = False
        self._is_damaged = False
        # How to end each call that is under way, by its seq.
        self.open_calls: dict[int, Callable[[], None]] = {}
        self._keys = KeyStore(settings.keys_dir, sdd.keys)
        rerun = rerun_command(settings)
        self.seal_problem: str | None = None
        self.source, self.is_source_verified = (
            find_source(sdd, settings, self._keys, rerun) if goes_on is None else (None, False)
        )
        make_sdd(sdd)
        self.dir = goes_on or sdd.new_run()
        self._lock_fd, self.resumed = self._hold(goes_on)
        # What a replay takes from its source, and a run that goes on from itself.
        before = goes_on or self.source
        source_info = before.read_info() if before else {}
        self.seed: int | None = source_info.get("seed") if before else settings.seed
        self.is_strict = self.source is not None and not settings.allow_live_miss
        self.records = goes_on is not None or (settings.record and not self.is_strict)
        self.context = ContextRows(
            sdd,
            settings.keys_dir,
            self.dir.run_id,
            # Before there were such rows a recording has none, and neither has its replay.
            is_watched=not self.is_strict or source_info.get("watches_context") is True,
            # A replay takes its mode from the recording, as it takes the seed.
            is_deterministic=self.seed is not None,
        )
        self._held = ExitStack()
        self.is_wire = info["kind"] == "client"
        self.guard: Guard = "python"
        self._info_before = source_info
        self._info = self._first_info(info, source_info, settings)
        own_key, recorded_key = self._body_keys(settings)
        self.dir.write_info(self._info)
        self.store = DeterministicStore(
            record_to=self.dir.llm_calls if self.records and not self.is_wire else None,
            replay_from=before.llm_calls if before else None,
            misses_to=self.dir.misses if self.source else None,
            blobs=sdd.blobs,
            key=own_key,
            recorded_blobs=sdd.project_of(self.source).blobs if self.source else None,
            recorded_key=recorded_key,
            strict=self.is_strict,
            rerun=rerun,
            was_cut=self.source is not None
            and source_info.get("status") not in ("completed", "failed"),
        )
        self.fixtures = FixtureStore(
            self.dir.fixtures,
            before.fixtures if before else None,
            blobs=self.store.own_blobs,
            recorded_blobs=self.store.blobs,
        )
        self.exchanges = (
            ExchangeWriter(self.dir.exchanges, self.store.own_blobs)
            if (self.is_wire or has_agents) and self.records
            else None
        )
        self.exchange_count = ExchangeCount()
        self.journal = EventJournal(self.dir.run_id, sdd.path, before_sync=self._sync_recording)
        self.decisions = DecisionLog(self.dir.wal, self.resumed.decisions if self.resumed else 0)
        self.score = Score(
            before.journal if before and follows_score else None, goes_on=goes_on is not None
        )
        self.hold = Hold(self.store.recording.rows) if self.source and not follows_score else None
        self.follows_score = follows_score
        self._unanswered = (
            unanswered_calls(self.source.journal, self.store.recording)
            if self.source
            else Counter[tuple[str, str]]()
        )
        self.lock = threading.RLock()
        self.spent_credits = self.input_tokens = self.output_tokens = 0
        self.call_count = self.row_count = 0
        self.head = GENESIS
        self.budget_credits: int | None = None
        if self.is_strict and not self.is_wire:
            self.keep_from_network()
        if self.seed is not None:
            random.seed(self.seed)

    def _hold(self, goes_on: RunDir | None) -> tuple[int, Resumed | None]:
        """Take the run's lock; and what it has written, where it goes on."""
        if goes_on is not None:
            return hold_to_resume(goes_on, self.sdd, self._keys), Resumed(goes_on)
        lock_fd = open_append(self.dir.lock)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return lock_fd, None

    def _first_info(
        self, own: JsonObject, source_info: JsonObject, settings: Settings
    ) -> JsonObject:
        """What ``run.json`` says while the run is under way."""
        if self.resumed is not None:
            return {**source_info, "status": "running"}
        return {
            "v": 1,
            "run_id": self.dir.run_id,
            **own,
            "seed": self.seed,
            "strict": self.is_strict,
            "source_run": self.source.run_id if self.source else None,
            "records": self.records,
            "watches_context": self.context.is_watched,
            "default_model": source_info.get("default_model") or list(default_model(settings)),
            "status": "running",
            "started": utc_now(),
            "versions": {"bernstein": __version__, "python": platform.python_version()},
        }

    def _body_keys(self, settings: Settings) -> tuple[bytes | None, bytes | None]:
        """The keys of this run's bodies and of its source's; None where they are in the clear."""
        recorded, is_source_encrypted = None, False
        if self.resumed is not None:
            own = find_body_key(self.dir, self._keys)
            return own, own
        if self.source is not None:
            recorded = find_body_key(self.source, self._keys)
            is_source_encrypted = self.source.read_info().get("body_key_sha256") is not None
        if not (is_source_encrypted or settings.encrypt):
            return None, None
        # A replay of an encrypted run is encrypted too: it holds the same prompts.
        try:
            own, self._info["body_key_sha256"] = make_body_key(self.dir, self._keys)
        except (BernsteinError, OSError):
            os.close(self._lock_fd)
            shutil.rmtree(self.dir.path)  # what could not begin leaves nothing
            raise
        return own, recorded

    def _sync_recording(self) -> None:
        self.store.sync()
        if self.exchanges is not None:
            self.exchanges.sync()
        self.fixtures.sync()

    def refuse_untrusted(self) -> None:
        """Refuse a recording whose answers would drive tools for somebody who is not trusted.

        Raises:
            UsageError: Nobody whom this user trusts has sealed it.
        """
        source = self.source
        if source is None or self.is_source_verified:
            return
        name = source.run_id if source.path.parent == self.sdd.runs else source.path
        raise UsageError(
            f"nobody whom you trust has sealed {source.run_id}: its answers can make an agent "
            f"run commands\n  look at it (bernstein show {name}), then use it with --trust"
        )

    def keep_from_network(self, allowed: Iterable[tuple[str, int]] = ()) -> None:
        """Refuse every connection of this process, but to these, until the run is closed."""
        self._held.enter_context(no_network(self._refuse_network, allowed))

    def _refuse_network(self, target: str) -> Exception:
        advice = "let misses go to the live model: BERNSTEIN_REPLAY_ALLOW_LIVE_MISS=1"
        if self.is_wire:
            advice = (
                "point it at the gateway, or allow it: bernstein.replay(…, allow=[(host, port)])"
            )
        miss = ReplayMissError(
            f"replay miss: the program reached for the network ({target}) in a strict replay\n"
            f"  {advice}",
            key="",
            model="",
            reason="never_recorded",
        )
        with suppress(ReplayMissError):  # raised by the hook, in the caller's place
            self.store.register_miss(miss, "")
        return miss

    @property
    def default_model(self) -> ModelName:
        """What is asked where nothing names a model: as recorded, else as configured."""
        return ModelName(*self._info["default_model"])

    @default_model.setter
    def default_model(self, name: ModelName) -> None:
        self.describe({"default_model": list(name)})

    # --- rows

    @contextmanager
    def rows(self) -> Iterator[None]:
        """Keep the rows written inside together: no other thread's row comes between."""
        with self.lock:
            yield
            self.score.settle()

    def append(self, name: str, payload: JsonObject, lane: str = "") -> JournalEntry:
        """Chain one row, and hold it against the score."""
        return self.append_all([(name, payload)], lane)[0]

    def append_all(
        self,
        rows: Sequence[tuple[str, JsonObject]],
        lane: str,
        mutations: Sequence[Mutation] = (),
    ) -> list[JournalEntry]:
        """Chain rows of one lane together, and hold them against the score.

        ``mutations`` of the model's context come behind them, and stand in the audit chain too.
        """
        with self.lock:
            entries = [] if self.resumed is None else self.resumed.pass_over(rows, lane)
            if len(entries) < len(rows) or mutations:
                rest = rows[len(entries) :]
                entries += self.journal.append_all(
                    [*rest, *self.context.mutations(mutations)], lane
                )
            self.row_count, self.head = entries[-1].index + 1, entries[-1].event_hash
            for entry in entries:
                self.score.follow(entry)
            for entry in entries[len(rows) :]:
                self.context.mirror(entry)
            return entries

    def append_end(
        self,
        status: event.RunStatus,
        reason: event.ErrorCode | None = None,
        output: DigestRef | None = None,
    ) -> None:
        """Chain what of each provider could be seen, and the run's last row."""
        for payload in self.context.capabilities():
            self.append(event.PROVIDER_STATE_CAPABILITY, payload)
        self.append(event.RUN_FINISHED, event.run_finished(status, reason, output))

    def is_new(self, entry: JournalEntry) -> bool:
        """Whether a row was written now, and not before the run went on."""
        return self.resumed is None or entry.index >= self.resumed.count

    # --- calls

    @property
    def has_recording(self) -> bool:
        """Whether there are recorded answers to look at: a replay's, or a run's that goes on."""
        return self.source is not None or self.resumed is not None

    def take_recorded(self, call: LlmCall, lane: str) -> CallRow | None:
        """The recorded call that serves this one; in a recording there is none.

        Raises:
            ReplayMissError: In a strict replay there is none.
        """
        if not self.store.is_replay:
            return None
        if self.resumed is not None and not self.store.has_next(call, lane):
            return None
        return self.store.take(call, lane)

    def begin_call(self, call: LlmCall, lane: str, step_id: str | None) -> int:
        """Count and chain a call that begins; returns its ``seq``.

        Raises:
            BudgetError: More than the run's budget is spent already.
        """
        with self.rows():
            if self.budget_credits is not None and self.spent_credits > self.budget_credits:
                raise BudgetError(
                    f"the budget of {self.budget_credits / 1e6:.2f} dollars is spent "
                    f"({self.spent_credits / 1e6:.2f})\n  raise `budget:` in the plan"
                )
            seq = self.store.begin()
            self.context.sights.called(call.provider)
            self.append(
                event.MODEL_CALL,
                event.model_call(step_id, call.provider, call.model, call.prompt_ref()),
                lane,
            )
        if self.hold is not None:
            self.hold.call_began()
        return seq

    def was_in_flight(self, call: LlmCall, lane: str) -> bool:
        """Whether the recorded run ended while this call was under way; true once for each."""
        with self.lock:
            at = (lane, call.prompt_ref().digest)
            if self.store.has_next(call, lane) or self._unanswered[at] == 0:
                return False
            self._unanswered[at] -= 1
            return True

    def finish_call(
        self,
        call: LlmCall,
        outcome: Outcome,
        *,
        seq: int,
        lane: str,
        step_id: str | None,
        begun_s: float,
        is_served: bool = False,
    ) -> None:
        """Record and chain a call's outcome; one that comes after the run's end is left out."""
        if self.pid != os.getpid():
            return  # a forked child inherits the call, and not its run
        with self.rows():
            if self.is_closed:
                return
            self._is_damaged = True  # until all rows of this answer are written
            if not (is_served and self.resumed is not None):
                self.store.record(call, outcome, seq=seq, lane=lane, begun_s=begun_s)
            self.call_count += 1
            kind: Literal["ok", "error"] = "ok" if isinstance(outcome, LlmAnswer) else "error"
            rows = [(event.MODEL_ANSWER, event.model_answer(call.key, kind, outcome.digest()))]
            usage = outcome.usage if isinstance(outcome, LlmAnswer) else None
            if usage is not None:
                self.count_usage(usage)
                used = event.model_usage(step_id, call.provider, call.model, usage.to_json())
                rows.append((event.MODEL_USAGE, used))
            self.append_all(rows, lane)
            self._is_damaged = False

    def count_usage(self, usage: Usage) -> None:
        """Add what an answer used to the run's sums."""
        self.spent_credits += usage.credits
        self.input_tokens += usage.input_tokens + usage.cached_input_tokens
        self.output_tokens += usage.output_tokens

    # --- the end

    def discard(self) -> None:
        """Take back a run that could not begin: nothing of it stays."""
        self._close_files("failed")
        shutil.rmtree(self.dir.path)

    def describe(self, members: JsonObject) -> None:
        """Add members to ``run.json``."""
        self._info |= members
        self.dir.write_info(self._info)

    def describe_at(self, lane: str, members: JsonObject) -> None:
        """Add what belongs to one agent's lane; with an empty one to the run itself."""
        if not lane:
            self.describe(members)
            return
        agents: JsonObject = self._info.get("agents") or {}
        self.describe({"agents": {**agents, lane: {**agents.get(lane, {}), **members}}})

    def describe_attempt(self, lane: str, members: JsonObject) -> None:
        """Add what came of one attempt of an agent."""
        agent: JsonObject = (self._info.get("agents") or {}).get(lane) or {}
        self.describe_at(lane, {"attempts": [*(agent.get("attempts") or ()), members]})

    def close(self, status: event.RunStatus) -> None:
        """Put the run on disk, write the end into ``run.json``, and seal it.

        What keeps it from being sealed stands in ``seal_problem``.
        """
        try:
            self._close_files(status)
            if self._is_damaged:
                raise SealError("a call could not be written whole; the run ends without a seal")
            if self.context.problem is not None:
                raise SealError(f"a mutation is not in the audit chain: {self.context.problem}")
            seal_run(self.dir, self.sdd, self._keys, status)
        except (BernsteinError, OSError) as error:
            # Not silently: whoever ran it is told, and the exit code is not 0.
            self.seal_problem = str(error)

    def park(self) -> None:
        """Let the run be as it is, to go on later: on disk, and not sealed."""
        self._close_files("parked")

    def leave(self) -> None:
        """Let a run that cannot go on be as it was."""
        self._info = self._info_before
        self._close_files(None)

    def retain(self) -> None:
        """Let old runs go, as the settings say; after everything was read of this one.

        Raises:
            BernsteinError, OSError: They cannot be removed.
        """
        if self._retention is not None:
            prune_to(self.sdd, self._retention, self._keys, ending=self.dir.run_id)

    def _close_files(self, status: event.RunStatus | Literal["parked"] | None) -> None:
        with self.lock:
            self.is_closed = True
        self.journal.close()
        self.store.close()
        if self.exchanges is not None:
            self.exchanges.close()
        self.fixtures.close()
        self.decisions.close()
        self._held.close()
        if status is None:
            self.describe({})
        else:
            self.describe({"status": status, "finished": utc_now(), "head": self.head})
        os.close(self._lock_fd)

    def coverage(self) -> Coverage | None:
        """The coverage of a closed replay, recounted from the files; None for a recording."""
        if self.source is None:
            return None
        misses: list[bool] = []
        for line in read_lines(self.dir.misses):
            misses.append(bool(decode_canonical(line.data)["strict"]))
        chained = read_chained_run(self.dir.journal)
        answers = chained.calls.answers + chained.exchanges.answers + chained.fixtures
        return recount(
            self._recorded_answers(),
            (said.answer for said in answers),
            misses,
            is_strict=self.is_strict,
            guard=self.guard if self.is_strict else "none",
        )

    @cached_property
    def source_chain(self) -> ChainedRun:
        """What the journal of the source says, which was held against its recording."""
        assert self.source is not None
        return read_chained_run(self.source.journal)

    def _recorded_answers(self) -> Iterator[Answered]:
        assert self.source is not None
        for _, answered in recorded_fixtures(self.source.fixtures):
            yield answered
        if self.source.llm_calls.exists():
            yield from recorded_answers(self.store.recording, self.store.blobs)
        # What was checked against the chain before the first answer need not be read again.
        chained = self.source_chain.exchanges.answers
        yield from (said.answer for said in chained)
        rows = self._source_exchanges.rows
        if len(rows) > len(chained):
            rest = ExchangeRecording(rows[len(chained) :])
            terms = TermsOfRun(self.source.read_info())
            yield from recorded_responses(rest, self.store.blobs, terms)

    @cached_property
    def _source_exchanges(self) -> ExchangeRecording:
        assert self.source is not None
        return load_exchanges(self.source.exchanges, is_checked=True)

    def source_exchanges(self, lane: str) -> list[ExchangeRow]:
        """The recorded exchanges of the lanes below ``lane``; of all where that is empty."""
        rows = self._source_exchanges.rows
        return [row for row in rows if row.lane.startswith(f"{lane}/")] if lane else rows

    def comparison(self) -> Comparison | None:
        """How a closed replay's journal relates to its source's; None for a recording."""
        if self.source is None:
            return None
        return compare_journals(self.source.journal, self.dir.journal)
