"""One command's place in an open run: its private home, the terms of its requests, who answers.

A client has a run to itself; in a plan each agent has a seat in its own lanes.
"""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.canonical import digest_of
from bernstein.capture.gateway.app import Gateway
from bernstein.capture.gateway.compaction import (
    SWITCHES,
    apply_compaction_policy,
    recorded_policy,
)
from bernstein.capture.gateway.home import Home, home_of, read_home
from bernstein.capture.gateway.launcher import FIXED
from bernstein.capture.gateway.player import Player
from bernstein.capture.gateway.server import GatewayServer
from bernstein.capture.gateway.wire_run import WireRun
from bernstein.settings import named_url, provider_key_names, set_variables
from bernstein.tree import tree_digests
from bernstein.wire.chained import Terms, terms_of
from bernstein.wire.folders import Folders
from bernstein.wire.protocol import PROVIDERS

if TYPE_CHECKING:
    import socket

    from bernstein.canonical import JsonObject
    from bernstein.capture.run import OpenRun
    from bernstein.wire.profile import Profile
    from bernstein.wire.secrets import Redactor


@dataclass(frozen=True, slots=True)
class SeatOptions:
    """How a seat is made.

    Attributes:
        lane: What its lanes lie below; empty for a client that has the run to itself.
        upstreams: Base URLs of providers by name that overrule what the environment names.
        is_paced: Whether a replay is as slow as the recording was.
        is_isolated: Whether its command finds its folders at fixed places.
        folder: Where its command works; None without one. What is in it now belongs to the
            recording, and so does what the profile names of the user's home.
        rerun: The command that records again; a miss advises it.
        make_player: Makes what serves a replay.
    """

    lane: str = ""
    upstreams: Mapping[str, str] = field(default_factory=dict)
    is_paced: bool = False
    is_isolated: bool = False
    folder: Path | None = None
    rerun: str = ""
    make_player: Callable[..., Player] = Player


class Seat:
    """What a gateway serves of one run, and what stands of that in ``run.json``."""

    def __init__(
        self, run: OpenRun, redactor: Redactor, chosen: Profile, options: SeatOptions
    ) -> None:
        """Take a seat.

        Args:
            run: The run: a recording, or a replay.
            redactor: Knows the secrets of the run.
            chosen: The profile of a recording; a replay takes the recording's.
            options: The rest.
        """
        self.run = run
        self._options = options
        # Hosts that were asked for as if the gateway were a proxy, and how often.
        self.refused: Counter[str] = Counter()
        name = "home" if not options.lane else f"agents/{options.lane.replace('/', '.')}/home"
        self.home = run.dir.path / name
        # Not below the run: the path of a Unix socket has hardly a hundred characters.
        self.tmp = Path(tempfile.gettempdir()) / f"bernstein-{secrets.token_hex(6)}"
        info = self._recorded()
        # In a plan a recording need not have this agent: what goes live is as in a new one.
        recorded = terms_of(info) if info else None
        self.upstreams: dict[str, str] = info.get("upstreams") or _upstreams(options.upstreams)
        if not run.is_strict:
            self.upstreams.update(options.upstreams)
        cwd = Path.cwd() if options.folder is None else options.folder
        outside = {"cwd": str(cwd), "home": str(self.home), "tmp": str(self.tmp)}
        self.profile: Profile = chosen if recorded is None else recorded.profile
        terms = Terms(self.profile, Folders(FIXED if options.is_isolated else outside))
        # Whose keys the recorded client had: by name, and never the keys.
        self.key_names: list[str] = (
            provider_key_names() if recorded is None else info.get("key_names") or []
        )
        self.kept_home = Home()
        if run.is_strict:
            self.kept_home = home_of(info.get("home"), run.store.blobs)
        elif options.folder is not None:
            # Not by the profile of a recording: it may be anybody's, and name any file.
            self.kept_home = read_home(Path.home(), chosen)
        for secret in self.kept_home.secrets():
            redactor.know(secret)
        # Before there were policies a recording has none, and its replay is told nothing either.
        self.policy = (
            apply_compaction_policy(
                set_variables(SWITCHES), deterministic=run.context.is_deterministic
            )
            if recorded is None
            else recorded_policy(info)
        )
        self._describe(terms, redactor)
        self.wire = WireRun(run, terms, redactor, options.lane)
        self.player = (
            None
            if run.source is None
            else options.make_player(
                self.wire, recorded or terms, is_paced=options.is_paced, rerun=options.rerun
            )
        )

    def _recorded(self) -> JsonObject:
        """What ``run.json`` of the recording says of this seat; empty in a recording."""
        if self.run.source is None:
            return {}
        info = self.run.source.read_info()
        if not self._options.lane:
            return info
        found: JsonObject = (info.get("agents") or {}).get(self._options.lane) or {}
        return found

    def _describe(self, terms: Terms, redactor: Redactor) -> None:
        run, options = self.run, self._options
        said: JsonObject = {
            **terms.to_json(),
            "upstreams": {name: redactor.url(url) for name, url in self.upstreams.items()},
            "key_names": self.key_names,
            "home": self.kept_home.kept(redactor.body, run.store.own_blobs),
        }
        if options.folder is not None:
            left_out = () if run.source is None else (run.source.path,)
            entries = tree_digests(options.folder, (run.sdd.path, *left_out))
            said |= {"tree": digest_of(entries).digest, "tree_entries": entries}
            said |= {} if self.policy is None else {"compaction": self.policy.to_json()}
        run.describe_at(options.lane, said)

    def serve(self, listener: socket.socket | None) -> GatewayServer:
        """A server of this seat, on this socket, else on one of its own."""
        gateway = Gateway(self.wire, self.upstreams, self.player, self.refused)
        return GatewayServer(gateway, listener)

    @property
    def is_replay(self) -> bool:
        """Whether every answer comes from a recording."""
        return self.run.is_strict

    @property
    def known_key_names(self) -> list[str] | None:
        """The variables that held a key when this was recorded; None where that is not known."""
        is_known = bool(self.key_names or self.kept_home.credentials)
        return self.key_names if is_known else None

    @property
    def is_serving(self) -> bool:
        """Whether something is asked that is still to be answered."""
        return any(not response.lingers for _, response in list(self.wire.open.values()))

    def write_home(self) -> None:
        """Write the files of the private home that the profile names."""
        move = self.player.moved if self.player is not None else str
        self.kept_home.write(self.home, move)

    def end_open(self) -> None:
        """End what is still under way: whoever asked has gone."""
        for exchange, response in list(self.wire.open.values()):
            response.end = "left"
            self.wire.end(exchange, response)


def _upstreams(chosen: Mapping[str, str]) -> dict[str, str]:
    """The base URL of each provider: as chosen, as the environment names it, or its own."""
    own = {}
    for provider in PROVIDERS.values():
        named = (
            url.rstrip("/").removesuffix(ending)
            for variable, ending in provider.variables.items()
            if (url := named_url(variable))
        )
        own[provider.name] = next(named, provider.default)
    return {name: url.rstrip("/") for name, url in {**own, **chosen}.items()}
