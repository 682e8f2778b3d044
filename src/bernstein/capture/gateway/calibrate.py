"""Finds what a client varies by itself: one recording, replayed in other surroundings.

A replay here goes on after a miss with the recorded exchange of the same lane and position, so
that every turn is seen. Nothing of it is kept but what varied.
"""

from __future__ import annotations

import shutil
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bernstein.capture.gateway.command import CommandOptions, run_recorded
from bernstein.capture.gateway.player import Begin, Pause, Player, Policy
from bernstein.errors import UsageError
from bernstein.recording.exchanges import ExchangeRow, load_exchanges, read_requests
from bernstein.recording.texts import shared_ends
from bernstein.rundir import SddDir
from bernstein.tree import copy_tree
from bernstein.wire.chained import Terms, terms_of
from bernstein.wire.profile import Profile, profile_of
from bernstein.wire.variation import Variation, find_variations, suggested_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bernstein.canonical import JsonObject
    from bernstein.settings import Settings
    from bernstein.wire.key import Match, Request

_CANDIDATES = 20
_SLOW_FIRST_BYTE_S, _SLOW_PIECE_S = 0.5, 0.02
_MOVED = "+40 days"


class Surrounding(NamedTuple):
    """One way in which a replay differs from the recording."""

    name: str
    argv: Sequence[str]
    first_byte_s: float = 0.0
    piece_s: float = 0.0


@dataclass(slots=True)
class Calibration:
    """What was found.

    Attributes:
        requests: How many requests were recorded.
        variations: What varied, with the names of the surroundings in which it did.
        asked: How many requests came, by surroundings.
        unlike: How many requests had no recorded one to be compared with.
        matched: Of the requests that missed, how many match under the suggested profile.
        missed: How many requests missed.
        profile: The profile that is suggested; the one that was used where it needs nothing.
        notes: What could not be tried.
    """

    requests: int = 0
    variations: dict[Variation, set[str]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    unlike: int = 0
    matched: int = 0
    missed: int = 0
    profile: Profile | None = None
    notes: list[str] = field(default_factory=list)


def calibrate(
    settings: Settings,
    options: CommandOptions,
    work: Path,
    report: Callable[[str], None],
) -> Calibration:
    """Record a command once and replay it in other surroundings.

    Args:
        settings: Whose settings the recording uses; its keys are made anew.
        options: The command; it works in copies of its folder.
        work: An empty folder for all of it.
        report: Told what begins.
    Raises:
        BernsteinError: It cannot be recorded.
    """
    sdd = SddDir(work / ".sdd")
    settings = replace(settings, keys_dir=work / "keys", replay_run_id=None)
    found = Calibration()
    report("recording")
    recorded_in = _copy(options.folder, work / "recorded")
    with redirect_stderr(StringIO()):
        run_recorded(sdd, settings, replace(options, folder=recorded_in))
    run = sdd.find_run("latest")
    rows = load_exchanges(run.exchanges).rows
    found.requests = len(rows)
    if not rows:
        raise UsageError(
            "the command asked no provider, so there is nothing to calibrate\n"
            "  point it at the gateway: see the variables in docs/gateway.md"
        )
    terms = terms_of(run.read_info())
    pairs: list[tuple[Match, Match]] = []
    for around in _surroundings(options.argv, found.notes):
        report(f"replaying: {around.name}")
        seen: list[_Pair] = []
        player = partial(_LenientPlayer, around=around, seen=seen, asked=found.asked)
        folder = _copy(options.folder, work / around.name.replace(" ", "-"))
        with redirect_stderr(StringIO()):
            run_recorded(
                sdd,
                replace(settings, replay_run_id=run.run_id),
                replace(
                    options, argv=around.argv, folder=folder, make_player=player, is_quiet=True
                ),
            )
        for asked, recorded in seen:
            if recorded is None or recorded.scheme != "wire.v1":
                found.unlike += 1  # nothing to be compared, or no rule could hold it
                continue
            pairs.append((recorded, asked))
            for variation in find_variations(recorded.request, asked.request):
                found.variations.setdefault(variation, set()).add(around.name)
    found.missed = len(pairs)
    found.profile = _suggested(terms, found.variations)
    found.matched = sum(_matches(found.profile, *pair) for pair in pairs)
    return found


def _copy(folder: Path, place: Path) -> Path:
    # Under its own name: a client may show the name of its folder.
    target = place / (folder.name or "workspace")
    place.mkdir(mode=0o700)
    copy_tree(folder, target)
    return target


def _surroundings(argv: Sequence[str], notes: list[str]) -> Iterator[Surrounding]:
    yield Surrounding("fast", argv)
    yield Surrounding("slow", argv, _SLOW_FIRST_BYTE_S, _SLOW_PIECE_S)
    if shutil.which("faketime") is None:
        notes.append("the clock was not moved: there is no faketime (a package of that name)")
    else:
        yield Surrounding("another date", ["faketime", "-f", _MOVED, *argv])


def _suggested(terms: Terms, variations: dict[Variation, set[str]]) -> Profile:
    inside = [
        variation._replace(path=variation.path.removeprefix("body.").removeprefix("body"))
        for variation in variations
        if variation.path.startswith("body")
    ]
    rules = suggested_rules(inside)
    profile: JsonObject = msgspec.to_builtins(terms.profile)
    if not rules:
        return terms.profile
    name = profile["name"].removesuffix("-calibrated")
    return profile_of(
        {
            **profile,
            "name": f"{name}-calibrated",
            "version": profile["version"] + 1,
            "rules": [*profile["rules"], *rules],
        }
    )


def _matches(profile: Profile, recorded: Match, asked: Match) -> bool:
    """Whether two requests, both after the old rules, are one after the new ones."""
    sides = [
        {**match.request, "body": profile.normalise(match.request["body"], None)}
        for match in (recorded, asked)
    ]
    return sides[0] == sides[1]


class _Pair(NamedTuple):
    """A request that missed, and the recorded one that answered it, if one did."""

    asked: Match
    recorded: Match | None


class _LenientPlayer(Player):
    """Goes on after a miss with the recorded exchange of the same lane and position."""

    def __init__(
        self,
        *arguments: Any,
        around: Surrounding,
        seen: list[_Pair],
        asked: dict[str, int],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._around = around
        self._asked = asked
        self._seen = seen
        self.hold.give_up()  # what comes is not what was recorded
        self._texts: dict[int, str] = {
            row.seq: text
            for row, text in read_requests(self._rows, self._wire.run.store.blobs)
            if text is not None
        }

    def take(self, request: Request, match: Match) -> tuple[str, ExchangeRow | None]:
        """See ``Player.take``; a row that is like it where none is equal."""
        lane, row = super().take(request, match)
        with self._wire.lock:
            self._asked[self._around.name] = self._asked.get(self._around.name, 0) + 1
        if row is not None:
            return lane, row
        with self._wire.lock:
            row = self._like(request, lane, match)
            if row is not None:
                self._queues[row.lane, row.key].remove(row)
                self._used.add(row.seq)
        recorded = None if row is None else self._recorded.match_row(row, self._texts[row.seq])
        self._seen.append(_Pair(match, recorded))
        return lane, row

    def _lane(self, request: Request, match: Match) -> str:
        client = self._wire.client_lane(request)
        lane = super()._lane(request, match)
        if client is None or any(row.lane == lane for row in self._rows):
            return lane
        # A lane without a hit: the first recorded one that is nobody's yet.
        taken = set(self._bound.values())
        free = [
            row.lane for row in sorted(self._rows, key=lambda r: r.seq) if row.lane not in taken
        ]
        self._bound[client] = free[0] if free else lane
        return self._bound[client]

    def _like(self, request: Request, lane: str, match: Match) -> ExchangeRow | None:
        """The next row of the lane; without a lane the one with the largest share of equal text."""
        waiting = [
            row
            for row in sorted(self._rows, key=lambda row: row.seq)
            if row.seq not in self._used
            and row.seq in self._texts
            and (row.method, row.provider) == (request.method, request.provider)
            and (row.path == request.path or lane != match.key)
        ]
        if lane != match.key:
            return next((row for row in waiting if row.lane == lane), None)
        text = request.body.decode("utf-8", "surrogateescape")
        return max(
            waiting[:_CANDIDATES],
            key=lambda row: sum(shared_ends(text, self._texts[row.seq])),
            default=None,
        )

    def play(self, *arguments: Any) -> Policy:
        """See ``Player.play``; as slowly as the surroundings say."""
        policy = super().play(*arguments)
        try:
            effect = next(policy)
            while True:
                if isinstance(effect, Begin) and self._around.first_byte_s:
                    yield Pause(self._around.first_byte_s)
                elif isinstance(effect, bytes) and self._around.piece_s:
                    yield Pause(self._around.piece_s)
                effect = policy.send((yield effect))
        except StopIteration:
            return
        finally:
            policy.close()
