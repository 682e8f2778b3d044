"""Normalisation profiles: declared rules that make two requests of one program the same.

A profile is data with a name and a version, stands whole in the recording, and a replay uses that
one. Rules are applied in the order given; nothing that no rule names is ever loosened.
"""

from __future__ import annotations

import re
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from bernstein.canonical import JsonObject, JsonValue, canonical_bytes, convert, decode_strict
from bernstein.errors import CanonicalError, UsageError
from bernstein.files import read_file
from bernstein.wire.folders import each_open_text
from bernstein.wire.results import hoisted, sorted_results

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROFILES = ("generic", "claude-code", "codex", "gemini-cli")

_Step: TypeAlias = "str | None"  # a member's name; None: each item of a list
Names: TypeAlias = "dict[str, dict[str, str]]"  # the new name of each id, for each kind of id
_DROP: Any = object()


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    """What every rule has: the path of what it is about, and why it is needed.

    A path is members and ``[*]`` for each item, as ``messages[*].content``; ``**`` is every text.
    """

    path: str
    why: str = ""


class Drop(_Rule, frozen=True, tag="drop"):
    """Leave a member out."""


class ParseJson(_Rule, frozen=True, tag="parse_json"):
    """Read the JSON that stands in a text."""


class Rewrite(_Rule, frozen=True, tag="rewrite"):
    """Replace what a pattern finds in texts; ``to`` may refer to its groups."""

    pattern: str = ""
    to: str = ""


class Rename(_Rule, frozen=True, tag="rename"):
    """Number what a pattern's first group finds in texts by first appearance, as ``<name-1>``.

    Without a pattern the whole text is an id. Rules of one name share their numbers.
    """

    pattern: str = ""
    name: str = "id"


class Sort(_Rule, frozen=True, tag="sort"):
    """Order a list by its items' canonical spelling."""


class SortNeighbours(_Rule, frozen=True, tag="sort_neighbours"):
    """Order items of a list that stand side by side and hold what ``pattern`` finds.

    They are compared with what ``mask`` finds left out: ids that say nothing of the order.
    """

    pattern: str = ""
    mask: str = ""


class SortResults(_Rule, frozen=True, tag="sort_results"):
    """Order the tool results of each message as their calls were, without marks of the last one.

    The path leads to a list of Anthropic's messages.
    """


class Hoist(_Rule, frozen=True, tag="hoist"):
    """Move what ``pattern`` finds in the tool results of a message to the message's end.

    The path leads to a list of Anthropic's messages. Blanks before what was moved go with it.
    """

    pattern: str = ""


Rule: TypeAlias = Drop | ParseJson | Rewrite | Rename | Sort | SortNeighbours | SortResults | Hoist


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The rules for one client.

    Attributes:
        name: Its name.
        version: Raised with every change of a rule.
        headers: Names of request headers that determine answers; all others stay out of the key.
        set_headers: Those of them whose value is a set, written with commas.
        lane_headers: Names of headers that say which session or agent asks.
        rules: In the order in which they are applied.
        reported: Rules for what a provider or client reports of a change to the model's context:
            they rename its ids and drop its times.
        home_files: Configuration in the home, as globs: a recorded command finds them in its
            private home, and a replayed one finds what was recorded.
        credential_files: What signs the client in, as globs: a recorded command finds them.
    """

    name: str
    version: int
    headers: tuple[str, ...] = ()
    set_headers: tuple[str, ...] = ()
    lane_headers: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    reported: tuple[Rule, ...] = ()
    home_files: tuple[str, ...] = ()
    credential_files: tuple[str, ...] = ()

    def normalise(
        self,
        body: JsonValue,
        prepare: Callable[[str], str] | None,
        names: Names | None = None,
    ) -> JsonValue:
        """``body`` after the rules; ``prepare`` is applied first, to texts that are not signed.

        Ids that are renamed go into ``names``: by the rule's name, the new one of each old one.
        """
        value = body if prepare is None else each_open_text(body, prepare)
        names = {} if names is None else names
        for step in self._steps:
            value = step(value, names)
        return value

    def normalise_report(self, report: JsonObject, prepare: Callable[[str], str]) -> JsonObject:
        """A report of a changed context without what differs between two faithful runs."""
        value: JsonValue = each_open_text(report, prepare)
        names: Names = {}
        for step in self._reported_steps:
            value = step(value, names)
        found: JsonObject = value
        return found

    @cached_property
    def id_patterns(self) -> list[re.Pattern[str]]:
        """What finds ids in texts: the patterns of the rules that rename them."""
        return [
            re.compile(rule.pattern, re.MULTILINE)
            for rule in self.rules
            if isinstance(rule, Rename) and rule.pattern
        ]

    @cached_property
    def id_names(self) -> frozenset[str]:
        """The names of the ids that stand in texts."""
        return frozenset(
            rule.name for rule in self.rules if isinstance(rule, Rename) and rule.pattern
        )

    @cached_property
    def _steps(self) -> list[Callable[[JsonValue, Names], JsonValue]]:
        return [_compile(rule) for rule in self.rules]

    @cached_property
    def _reported_steps(self) -> list[Callable[[JsonValue, Names], JsonValue]]:
        return [_compile(rule) for rule in self.reported]


_CLIENTS = {"claude": "claude-code", "codex": "codex", "gemini": "gemini-cli"}
# Programs that start another one, named somewhere behind.
_WRAPPERS = frozenset(
    {"env", "faketime", "timeout", "nice", "nohup", "npx", "sh", "bash", "zsh", "stdbuf", "strace"}
)


def load_profile(name: str) -> Profile:
    """The profile of this name that comes with the package, or the one in a file of this path.

    Raises:
        UsageError: There is none.
    """
    if "/" in name or name.endswith(".json"):
        try:
            return parse_profile(read_file(Path(name).absolute()))
        except OSError as error:
            raise UsageError(f"the profile {name} cannot be read: {error.strerror}") from error
    if name not in PROFILES:
        raise UsageError(f"there is no profile {name!r}; expected {', '.join(PROFILES)}")
    data = files("bernstein.wire").joinpath("profiles", f"{name}.json").read_bytes()
    return parse_profile(data)


def parse_profile(data: bytes) -> Profile:
    """The profile that a file holds.

    Raises:
        UsageError: It holds none.
    """
    try:
        return profile_of(decode_strict(data))
    except CanonicalError as error:
        raise UsageError(f"this is not a profile: {error}") from error


def profile_of(value: JsonValue) -> Profile:
    """The profile that a JSON value spells, its patterns compiled: a recording may be hostile.

    Raises:
        CanonicalError: It spells none.
    """
    profile = convert(value, Profile)
    for glob in (*profile.home_files, *profile.credential_files):
        parts = glob.split("/")
        if not all(parts) or {".", ".."} & set(parts) or parts[0].startswith("*"):
            raise CanonicalError("$.home_files", f"{glob!r} names no file below a folder of a home")
        if "**" in glob and "**" not in parts:
            raise CanonicalError("$.home_files", f"{glob!r} is no glob")
    for rule in (*profile.rules, *profile.reported):
        for text in (getattr(rule, "pattern", ""), getattr(rule, "mask", "")):
            try:
                groups = re.compile(text).groups
            except (re.error, RecursionError, OverflowError) as error:
                raise CanonicalError("$.rules", f"no pattern: {error}") from error
            if isinstance(rule, Rename) and text and groups < 1:
                raise CanonicalError("$.rules", "a rename pattern needs a group")
        if isinstance(rule, Rewrite):
            try:
                # On an alternative that always matches, a replacement shows what is wrong with it.
                re.compile(f"(?:{rule.pattern})|").sub(rule.to, "")
            except (re.error, IndexError) as error:
                raise CanonicalError("$.rules", f"no replacement: {error}") from error
    return profile


def profile_for(argv: Sequence[str]) -> str:
    """The name of the profile for a command, by the name of its program, behind what starts it."""
    is_wrapped = False
    for argument in argv:
        for word in argument.split() if is_wrapped else [argument]:
            name = word.rsplit("/", 1)[-1]
            if name in _CLIENTS:
                return _CLIENTS[name]
        if not is_wrapped and argument.rsplit("/", 1)[-1] not in _WRAPPERS:
            break
        is_wrapped = True
    return "generic"


# --- rules as functions


def _compile(rule: Rule) -> Callable[[JsonValue, Names], JsonValue]:
    steps = _parse_path(rule.path)
    match rule:
        case Drop():
            return lambda value, _: _update(value, steps, lambda _: _DROP)
        case ParseJson():
            return lambda value, _: _update(value, steps, _parse_text)
        case Sort():
            return lambda value, _: _update(value, steps, _sorted)
        case SortNeighbours():
            wanted, mask = re.compile(rule.pattern), re.compile(rule.mask or "(?!)")
            return lambda value, _: _update(
                value, steps, lambda found: _sorted_neighbours(found, wanted, mask)
            )
        case SortResults():
            return lambda value, _: _update(value, steps, sorted_results)
        case Hoist():
            moved = re.compile(rule.pattern, re.DOTALL)
            return lambda value, _: _update(value, steps, lambda found: hoisted(found, moved))
        case Rewrite():
            pattern = re.compile(rule.pattern, re.MULTILINE)
            return lambda value, _: _on_texts(value, steps, lambda text: pattern.sub(rule.to, text))
        case Rename():
            ids = re.compile(rule.pattern, re.MULTILINE) if rule.pattern else None
            return lambda value, names: _on_texts(
                value, steps, _renaming(ids, rule.name, names.setdefault(rule.name, {}))
            )


def _renaming(
    pattern: re.Pattern[str] | None, name: str, seen: dict[str, str]
) -> Callable[[str], str]:
    def renamed(old: str) -> str:
        return seen.setdefault(old, f"<{name}-{len(seen) + 1}>")

    def replaced(found: re.Match[str]) -> str:
        start, end = (place - found.start() for place in found.span(1))
        return found[0][:start] + renamed(found[1]) + found[0][end:]

    return renamed if pattern is None else lambda text: pattern.sub(replaced, text)


def _parse_path(path: str) -> list[_Step] | None:
    """The steps of a path; None for every text."""
    if path == "**":
        return None
    steps: list[_Step] = []
    for part in path.split("."):
        name, *items = part.split("[*]")
        if name:
            steps.append(name)
        steps += [None] * len(items)
    return steps


def _on_texts(
    value: JsonValue, steps: list[_Step] | None, change: Callable[[str], str]
) -> JsonValue:
    if steps is None:
        return _each_text(value, change)
    return _update(value, steps, lambda found: _each_text(found, change))


def _each_text(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """``value`` with ``change`` applied to every text in it, names of members too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_each_text(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _each_text(item, change) for name, item in value.items()}
    return value


def _update(
    value: JsonValue, steps: list[_Step] | None, change: Callable[[JsonValue], JsonValue]
) -> JsonValue:
    """``value`` with ``change`` applied to what the steps lead to, where they lead anywhere."""
    if not steps:
        return change(value)
    first, rest = steps[0], steps[1:]
    if first is None:
        if not isinstance(value, list):
            return value
        changed = [_update(item, rest, change) for item in value]
        return [item for item in changed if item is not _DROP]
    if not isinstance(value, dict) or first not in value:
        return value
    found = _update(value[first], rest, change)
    if found is _DROP:
        return {name: item for name, item in value.items() if name != first}
    return {**value, first: found}


def _parse_text(value: JsonValue) -> JsonValue:
    if not isinstance(value, str):
        return value
    try:
        return decode_strict(value.encode())
    except (CanonicalError, UnicodeEncodeError):
        return value


def _sorted_neighbours(
    value: JsonValue, wanted: re.Pattern[str], mask: re.Pattern[str]
) -> JsonValue:
    if not isinstance(value, list):
        return value
    spelled = [canonical_bytes(item).decode() for item in value]
    out: list[JsonValue] = []
    run: list[tuple[str, int]] = []
    for index, text in enumerate([*spelled, ""]):
        if index < len(value) and wanted.search(text):
            run.append((mask.sub("", text), index))
            continue
        out += [value[place] for _, place in sorted(run)]
        run = []
        if index < len(value):
            out.append(value[index])
    return out


def _sorted(value: JsonValue) -> JsonValue:
    return sorted(value, key=canonical_bytes) if isinstance(value, list) else value
