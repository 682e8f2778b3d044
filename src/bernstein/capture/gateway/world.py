"""What a program takes from the world beside the model: tools, the clock, random numbers, ids.

Each answer is recorded, and served in a replay without the world being asked. What has a name is
matched by it, so that one more draw under another name shifts nothing; what has none is served by
kind, in the order of asking. What JSON makes of an answer is what the program gets, live too, so
that it sees the same in a replay.
"""

from __future__ import annotations

import builtins
import os
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from random import Random
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from bernstein.canonical import (
    JsonObject,
    JsonValue,
    canonical_bytes,
    decode_canonical,
    digest_of,
    sha256_hex,
)
from bernstein.errors import CanonicalError, RecordedToolError, ReplayMissError, UsageError
from bernstein.events import trajectory as event
from bernstein.recording.fixtures import Fixture, Outcome, fixture_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from bernstein.capture.run import OpenRun
    from bernstein.wire.secrets import Redactor

Kind: TypeAlias = Literal["llm", "tool", "clock", "random", "uuid", "custom"]

# Set while the world is asked: what is asked inside is part of that answer.
_is_inside: ContextVar[bool] = ContextVar("bernstein_is_inside", default=False)


class _Asked(NamedTuple):
    """An answer that is asked for; ``recorded`` serves it."""

    kind: Kind
    key: str
    lane: str
    seq: int
    request: JsonObject | None
    recorded: Fixture | None


class World:
    """The world as one run sees it; safe for threads."""

    def __init__(self, run: OpenRun, redactor: Redactor) -> None:
        self._run = run
        self._redactor = redactor
        self._generators: dict[str, Random] = {}
        self._drawn: Counter[tuple[str, str]] = Counter()
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._first_draw = threading.Lock()

    def answer(
        self,
        kind: Kind,
        request: JsonObject | None,
        produce: Callable[[], JsonValue],
        errors: Sequence[type[Exception]] = (),
    ) -> JsonValue:
        """See ``ReplayGateway.answer``."""
        if _is_inside.get():
            return produce()
        asked = self._begin(kind, request)
        if asked.recorded is not None:
            return self._serve(asked, asked.recorded, errors)
        try:
            with _inside():
                value = _plain(produce(), kind)
        except (UsageError, ReplayMissError):
            raise  # ours: it is no answer of the world
        except Exception as error:
            self._fail(asked, error)
            raise
        return self._end(asked, value)

    async def aanswer(
        self,
        kind: Kind,
        request: JsonObject | None,
        produce: Callable[[], Awaitable[JsonValue]],
        errors: Sequence[type[Exception]] = (),
    ) -> JsonValue:
        """Like ``answer``, for what is awaited."""
        if _is_inside.get():
            return await produce()
        asked = self._begin(kind, request)
        if asked.recorded is not None:
            return self._serve(asked, asked.recorded, errors)
        try:
            with _inside():
                value = _plain(await produce(), kind)
        except (UsageError, ReplayMissError):
            raise  # ours: it is no answer of the world
        except Exception as error:
            self._fail(asked, error)
            raise
        return self._end(asked, value)

    def generator(self, name: str) -> Random:
        """The random numbers of this name; their seed is recorded."""
        if _is_inside.get():
            # What a tool draws is part of its answer, and must not move the program's own numbers.
            return Random(self.seed_of("inside", name))  # noqa: S311 - they are to repeat
        with self._first_draw:  # of two threads that begin at once one asks for the seed
            if name not in self._generators:
                seed = self.answer("random", {"name": name}, lambda: self.seed_of("random", name))
                self._generators[name] = Random(str(seed))  # noqa: S311 - they are to repeat
            return self._generators[name]

    def seed_of(self, kind: str, name: str) -> str:
        """64 hex digits for the next draw of this name: another draw shifts none but its own."""
        with self._lock:
            count = self._drawn[kind, name]
            self._drawn[kind, name] += 1
        if self._run.seed is None:
            return os.urandom(32).hex()
        # sha256("bernstein.draw.v1\n" + JCS [seed, kind, name, count])
        spelled = canonical_bytes([self._run.seed, kind, name, count])
        return sha256_hex(b"bernstein.draw.v1\n" + spelled)

    # --- what both ways of asking do

    def _begin(self, kind: Kind, request: JsonObject | None) -> _Asked:
        run = self._run
        if run.is_closed:
            raise UsageError(f"the run has ended: {kind} cannot be asked any more")
        if run.pid != os.getpid():
            raise UsageError(
                f"a forked child asks for {kind}, and what it is answered is in no recording\n"
                "  ask in a thread, or before the fork"
            )
        if run.is_strict and run.store.first_miss is not None:
            raise run.store.first_miss  # after a miss nothing is served any more
        kept = None if request is None else self._kept(_plain(request, kind))
        key = "" if kept is None else fixture_key(kind, kept)
        with self._lock:
            # Each asking of one thing is a lane by itself: equal ones may end in any order.
            lane = f"{key or kind}/{self._asked[key or kind]}"
            self._asked[key or kind] += 1
            seq = run.fixtures.begin()
        recorded = None
        if run.source is not None:
            recorded = run.fixtures.take(kind, key, lane)
            if recorded is None:
                run.store.register_miss(self._miss(kind, key, kept, lane), lane)
        return _Asked(kind, key, lane, seq, kept, recorded)

    def _kept(self, value: JsonValue) -> JsonValue:
        return self._redactor.value(value)

    def _serve(
        self, asked: _Asked, recorded: Fixture, errors: Sequence[type[Exception]]
    ) -> JsonValue:
        self._record(asked, recorded.outcome, recorded.response)
        response = recorded.response
        assert isinstance(response, dict)
        if recorded.outcome == "error":
            raise _raised_again(response, errors)
        return response["value"]

    def _end(self, asked: _Asked, value: JsonValue) -> JsonValue:
        self._record(asked, "ok", {"value": self._kept(value)})
        return value

    def _fail(self, asked: _Asked, error: Exception) -> None:
        kind = type(error)
        said: JsonObject = {"type": f"{kind.__module__}.{kind.__qualname__}", "message": str(error)}
        args = list(error.args)
        if isinstance(error, OSError) and error.filename is not None:
            args.append(error.filename)
        with suppress(CanonicalError):
            said["args"] = decode_canonical(canonical_bytes(args))
        self._record(asked, "error", self._kept(_plain(said, asked.kind)))

    def _record(self, asked: _Asked, outcome: Outcome, response: JsonValue) -> None:
        run = self._run
        payload = event.fixture_answered(asked.kind, asked.key, outcome, digest_of(response))
        with run.rows():
            if run.is_closed:
                return
            if run.records:
                request = None if asked.request is None else {"asked": asked.request}
                run.fixtures.record(
                    asked.kind,
                    asked.key,
                    asked.lane,
                    response,
                    seq=asked.seq,
                    outcome=outcome,
                    request=request,
                )
            run.append(event.FIXTURE_ANSWERED, payload, asked.lane)

    def _miss(self, kind: Kind, key: str, request: JsonObject | None, lane: str) -> ReplayMissError:
        count = int(lane.rpartition("/")[2])
        what = f"for {_shown(request)}" if key else "without a key"
        if count:
            times = "once" if count == 1 else f"{count} times"
            lines = [
                f"replay miss: kind {kind} was recorded {times} {what}, and is asked once more"
            ]
        else:
            lines = [f"replay miss: no recorded answer of kind {kind} {what}"]
        nearest: JsonObject | None = None
        waiting = self._run.fixtures.waiting(kind)
        if key and waiting:
            asked = waiting[0][1]
            nearest = {"key": waiting[0][0], "request": asked}
            shown = _shown(asked.get("asked") if isinstance(asked, dict) else None)
            lines.append(f"  the next that is recorded and not asked for yet: {shown}")
        return ReplayMissError(
            "\n".join(lines),
            key=key,
            model="",
            recorded=count,
            requested=count + 1,
            nearest=nearest,
            reason="exhausted" if count else "never_recorded",
        )


@contextmanager
def _inside() -> Iterator[None]:
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def _plain(value: JsonValue, kind: str) -> JsonValue:
    """The value as JSON gives it back."""
    try:
        plain: JsonValue = decode_canonical(canonical_bytes(value))
    except CanonicalError as error:
        raise UsageError(
            f"what {kind} takes or gives is kept as JSON, and this is none: {error}\n"
            "  give plain values: numbers, texts, lists, dicts with string keys"
        ) from error
    return plain


def _raised_again(said: JsonObject, errors: Sequence[type[Exception]]) -> Exception:
    name, message, args = str(said["type"]), str(said["message"]), said.get("args")
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in errors}
    found = known.get(name) or getattr(builtins, name.removeprefix("builtins."), None)
    if isinstance(args, list) and isinstance(found, type) and issubclass(found, Exception):
        try:
            # Without its __init__, which would make something else of what it made its arguments.
            error = found.__new__(found, *args)
        except (TypeError, ValueError):
            pass
        else:
            error.args = error.args if isinstance(error, OSError) else tuple(args)
            return error
    return RecordedToolError(f"{name}: {message}")


def _shown(value: JsonValue) -> str:
    text = ascii(value)
    return text if len(text) <= 200 else text[:200] + "…"
