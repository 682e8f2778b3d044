"""``bernstein doctor``."""

from __future__ import annotations

import io
import os
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from bernstein.cli.app import Context, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bernstein.agents.blind_spots import BlindSpots
    from bernstein.agents.doctor import Screen, Section
    from bernstein.canonical import JsonObject
    from bernstein.events.provider_state import MutationKind, Seen

_COLUMNS = 80
_NAME_CHARS = 13
_KIND_CHARS = 22
_WORDS = {"declared-blind": "blind", "not-requested": "request"}
_LEGEND = {
    "request": "done only where a request asks for it",
    "blind": "declared-blind: it can be done without a sign here",
}


@click.command("doctor", epilog="Example: bernstein doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_obj
def command(context: Context, *, as_json: bool) -> int:
    """Say which agents, keys and features are here, and what a run would be blind to.

    Only looks: it asks no provider, and makes no folder and no key.

    Ends with 1 where something is broken (marked with !), else with 0: what is only
    missing breaks nothing.
    """
    from bernstein.agents.blind_spots import blind_spots  # noqa: PLC0415 - heavy
    from bernstein.agents.doctor import examine  # noqa: PLC0415

    sections, spots = examine(context.settings, context.sdd, _screen()), blind_spots()
    broken = [found.name for section in sections for found in section.findings if found.is_broken]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a path need not be of the locale
    if as_json:
        print_json(
            {"broken": broken, "sections": _json(sections), "blind_spots": _spots_json(spots)}
        )
        return int(bool(broken))
    for section in sections:
        click.echo("\n".join([section.name, *_lines(section)]))
    click.echo("\n".join(["blind spots", *_spots_lines(spots)]))
    if broken:
        click.echo(f"broken: {', '.join(broken)}; mend it and look again: bernstein doctor")
    else:
        click.echo("nothing is broken")
    return int(bool(broken))


def _screen() -> Screen:
    from bernstein.agents.doctor import Screen  # noqa: PLC0415 - heavy

    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):  # no terminal, or no file at all
        return Screen()
    return Screen(size.columns, size.lines)


def _json(sections: Sequence[Section]) -> JsonObject:
    return {
        section.name: {
            found.name: {
                **found.facts,
                "text": found.text,
                "advice": found.advice,
                "is_broken": found.is_broken,
            }
            for found in section.findings
        }
        for section in sections
    }


def _lines(section: Section) -> Iterator[str]:
    for found in section.findings:
        mark = "!" if found.is_broken else " "
        yield from _wrapped(f"{mark} {found.name:<{_NAME_CHARS}}", found.text)
        if found.advice is not None:
            yield from _wrapped(" " * (_NAME_CHARS + 2), f"-> {found.advice}")


def _wrapped(start: str, text: str) -> list[str]:
    """A text behind its name, further lines below the first; words stay whole, to be copied."""
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


# --- blind spots


def _spots_json(spots: BlindSpots) -> JsonObject:
    def seen(kinds: Mapping[MutationKind, Seen]) -> JsonObject:
        return {kind: at._asdict() for kind, at in kinds.items()}

    return {
        "surfaces": [
            {
                "group": surface.group,
                "name": surface.name,
                "names_conversation": surface.names_conversation,
                "kinds": seen(surface.kinds),
            }
            for surface in spots.surfaces
        ],
        "on_request": {feature: seen(kinds) for feature, kinds in spots.on_request.items()},
        "in_steps": {agent: list(kinds) for agent, kinds in spots.in_steps.items()},
    }


def _spots_lines(spots: BlindSpots) -> Iterator[str]:
    wire: dict[str, list[Mapping[MutationKind, Seen]]] = {}
    others: dict[str, list[Mapping[MutationKind, Seen]]] = {}
    for surface in spots.surfaces:
        group = wire if surface.group == "wire" else others
        group.setdefault(surface.name, []).append(surface.kinds)
    yield "  at the wire of a provider; two words: where each request says which"
    yield "  conversation it goes on, and where not"
    yield from _table(wire)
    yield "  in what a client prints, and where call_llm asks"
    yield from _table(others)
    all_seen = [at for surface in spots.surfaces for at in surface.kinds.values()]
    channels = ", ".join(dict.fromkeys(at.channel for at in all_seen if at.channel is not None))
    yield from _named({channels: "it would be seen there", **_LEGEND}, indent=2)
    yield "  once a request asks for"
    yield from _named({name: _said(kinds) for name, kinds in spots.on_request.items()}, indent=4)
    yield "  so a step of a plan is blind to, by its agent"
    yield from _named(
        {agent: ", ".join(kinds) or "nothing" for agent, kinds in spots.in_steps.items()}, indent=4
    )


def _named(texts: Mapping[str, str], *, indent: int) -> Iterator[str]:
    width = max(map(len, texts))
    for name, text in texts.items():
        yield from _wrapped(f"{' ' * indent}{name:<{width}}  ", text)


def _said(kinds: Mapping[MutationKind, Seen]) -> str:
    """What comes of kinds: those of one word together."""
    by_word: dict[str, list[str]] = {}
    for kind, at in kinds.items():
        by_word.setdefault(_word(at), []).append(kind)
    return "; ".join(f"{', '.join(names)}: {word}" for word, names in by_word.items())


def _table(columns: Mapping[str, Sequence[Mapping[MutationKind, Seen]]]) -> Iterator[str]:
    """A line for each kind; a cell says each different word of its column once."""
    cells = {
        name: {kind: _cell([kinds[kind] for kinds in seen]) for kind in seen[0]}
        for name, seen in columns.items()
    }
    widths = {name: max(map(len, (name, *cell.values()))) for name, cell in cells.items()}
    yield _row("", {name: name for name in cells}, widths)
    for kind in next(iter(cells.values())):
        yield _row(kind, {name: cell[kind] for name, cell in cells.items()}, widths)


def _row(name: str, words: Mapping[str, str], widths: Mapping[str, int]) -> str:
    cells = (f"{word:<{widths[column]}}" for column, word in words.items())
    return f"    {name:<{_KIND_CHARS}}{'  '.join(cells)}".rstrip()


def _cell(seen: Sequence[Seen]) -> str:
    return "/".join(dict.fromkeys(map(_word, seen)))


def _word(at: Seen) -> str:
    return _WORDS.get(at.value) or at.channel or at.value
