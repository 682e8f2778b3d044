"""What an exchange comes to in a journal: the same whether it was live or served.

Every digest is taken after the recording's normalisation: folders stand as their variables.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from bernstein.canonical import (
    DigestRef,
    JsonObject,
    JsonValue,
    convert,
    digest_of,
    sha256_hex,
)
from bernstein.errors import CanonicalError
from bernstein.events.provider_state import Mutation
from bernstein.recording.answer import LlmAnswer, LlmFailure, Outcome, ToolCall, Usage
from bernstein.wire.answers import (
    outcome_of,
    read_failure,
    read_values,
    readable_values,
)
from bernstein.wire.folders import Folders
from bernstein.wire.key import Match, Request, match_of
from bernstein.wire.profile import Profile, load_profile, profile_of
from bernstein.wire.protocol import MODEL_KINDS, READ_KINDS, Kind, kind_of
from bernstein.wire.reported import mutation_of_report, reported_in_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from bernstein.recording.exchanges import ExchangeRow

Result: TypeAlias = Literal["ok", "error"]


class Said(NamedTuple):
    """An exchange's outcome as a journal has it, and what its response reported beside that.

    ``is_read`` is False where a body of a kind that is known could not be read.
    """

    outcome: Result
    answer: DigestRef
    usage: Usage | None
    mutations: tuple[Mutation, ...] = ()
    is_read: bool = True


class Asked(NamedTuple):
    """A request as far as its answer is read by it: its path, and its body after the rules."""

    path: str
    body: JsonValue


class Terms(NamedTuple):
    """What the requests of one recording are matched by."""

    profile: Profile
    folders: Folders

    def to_json(self) -> JsonObject:
        """The members of ``run.json`` that say so."""
        return {
            "profile": msgspec.to_builtins(self.profile),
            "folders": dict(self.folders.paths),
        }

    def match_row(self, row: ExchangeRow, request: str) -> Match:
        """What a recorded request is matched by; its secrets are gone already."""
        asked = _request_of(row, request)
        has_forms = row.key_scheme != "raw.v1"
        return match_of(asked, self.profile, self.folders, has_forms=has_forms)


def terms_of(info: JsonObject) -> Terms:
    """The terms that ``run.json`` carries.

    Raises:
        CanonicalError: It carries none that can be read.
    """
    profile = info.get("profile")
    return Terms(
        load_profile("generic") if profile is None else profile_of(profile),
        Folders(convert(info.get("folders") or {}, dict[str, str])),
    )


class TermsOfRun:
    """The terms of a run's exchanges: one for all, or in a plan one for each agent's lane.

    Raises:
        CanonicalError: ``run.json`` carries none that can be read.
    """

    def __init__(self, info: JsonObject) -> None:
        """Read them from the members of ``run.json``."""
        agents = info.get("agents") or {}
        self._of_agents = {lane: terms_of(said) for lane, said in agents.items()}
        self._of_run = terms_of(info)

    def of(self, lane: str) -> Terms:
        """The terms of the exchanges in ``lane``."""
        return self._of_agents.get(lane.rpartition("/")[0], self._of_run)


def _request_of(row: ExchangeRow, request: str) -> Request:
    return Request(
        row.method,
        row.provider,
        row.origin,
        row.path,
        row.query,
        list(row.headers.items()),
        request.encode("utf-8", "surrogateescape"),
    )


def said_of(
    kind: Kind,
    status: int,
    body: bytes,
    prepare: Callable[[str], str],
    *,
    is_whole: bool,
    terms: Terms | None = None,
    asked: Asked | None = None,
) -> Said:
    """What a response comes to.

    Args:
        kind: What was asked for.
        status, body: The response.
        prepare: Makes of a text of the response the one that is chained.
        is_whole: False where the connection was cut.
        terms, asked: With both, what it reports of a changed context is worked out too.
    """
    values: list[JsonObject] = []
    is_read = False
    if status < 400 and kind in READ_KINDS:
        try:
            values = list(read_values(body))
            is_read = True
        except CanonicalError:
            values = readable_values(body)  # what else a broken stream reports counts
    mutations: tuple[Mutation, ...] = ()
    if terms is not None and asked is not None and values:
        mutations = tuple(
            mutation_of_report(report, terms.profile, prepare)
            for report in reported_in_response(kind, asked.path, asked.body, values)
        )
    if kind in MODEL_KINDS:
        # What has the name of an answer and not its shape is chained as any other response.
        with suppress(AttributeError, CanonicalError, KeyError, TypeError, ValueError):
            outcome: Outcome | None = None
            if status >= 400:
                outcome = read_failure(status, body)
            elif is_read:
                outcome = outcome_of(kind, values, is_whole=is_whole)
            said = _said_of_model(outcome, prepare)
            return said._replace(mutations=mutations, is_read=is_read or status >= 400)
    try:
        stands: JsonObject = {"text": prepare(body.decode("utf-8"))}
    except UnicodeDecodeError:
        stands = {"sha256": sha256_hex(body)}
    # JCS {status, text}, or {status, sha256} of a body that is no text
    is_ok = is_whole and 0 < status < 400
    digest = digest_of({"status": status, **stands})
    return Said("ok" if is_ok else "error", digest, None, mutations, is_read or status >= 400)


def _said_of_model(outcome: Outcome | None, prepare: Callable[[str], str]) -> Said:
    """What a model said.

    Raises:
        TypeError: Nothing that is known.
    """
    if isinstance(outcome, LlmAnswer):
        return Said("ok", _mapped(outcome, prepare).digest(), outcome.usage)
    if isinstance(outcome, LlmFailure):
        text = prepare(outcome.text)
        partial = outcome.partial
        usage = None if partial is None else partial.usage
        return Said("error", replace(outcome, text=text, partial=None).digest(), usage)
    raise TypeError


def said_of_row(
    row: ExchangeRow, body: bytes, terms: Terms, asked: JsonValue = None, *, watches: bool = False
) -> Said:
    """What a recorded response comes to; ``watches``: also what it reports, to ``asked``."""
    return said_of(
        kind_of(row.method, row.path),
        row.status,
        body,
        terms.folders.to_variables,
        is_whole=row.end == "complete",
        terms=terms,
        asked=Asked(row.path, asked) if watches else None,
    )


def _mapped(answer: LlmAnswer, to_variables: Callable[[str], str]) -> LlmAnswer:
    return LlmAnswer(
        text=to_variables(answer.text),
        tool_calls=tuple(
            ToolCall(call.name, to_variables(call.args)) for call in answer.tool_calls
        ),
        stop_reason=answer.stop_reason,
        refusal=None if answer.refusal is None else to_variables(answer.refusal),
    )
