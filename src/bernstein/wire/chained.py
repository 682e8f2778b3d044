"""What an exchange comes to in a journal: the same whether it was live or served.

Every digest is taken after the recording's normalisation: folders stand as their variables.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from bernstein.canonical import DigestRef, JsonObject, convert, digest_of, sha256_hex
from bernstein.errors import CanonicalError
from bernstein.recording.answer import LlmAnswer, LlmFailure, ToolCall, Usage
from bernstein.wire.answers import read_answer
from bernstein.wire.folders import Folders
from bernstein.wire.key import Match, Request, match_of
from bernstein.wire.profile import Profile, load_profile, profile_of
from bernstein.wire.protocol import MODEL_KINDS, Kind, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from bernstein.recording.exchanges import ExchangeRow

Result: TypeAlias = Literal["ok", "error"]


class Said(NamedTuple):
    """An exchange's outcome as a journal has it."""

    outcome: Result
    answer: DigestRef
    usage: Usage | None


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
    kind: Kind, status: int, body: bytes, to_variables: Callable[[str], str], *, is_whole: bool
) -> Said:
    """What a response comes to, ``to_variables`` applied to its texts."""
    if kind in MODEL_KINDS:
        # What has the name of an answer and not its shape is chained as any other response.
        with suppress(AttributeError, CanonicalError, KeyError, TypeError, ValueError):
            return _said_of_model(kind, status, body, to_variables, is_whole=is_whole)
    try:
        stands: JsonObject = {"text": to_variables(body.decode("utf-8"))}
    except UnicodeDecodeError:
        stands = {"sha256": sha256_hex(body)}
    # JCS {status, text}, or {status, sha256} of a body that is no text
    is_ok = is_whole and 0 < status < 400
    return Said("ok" if is_ok else "error", digest_of({"status": status, **stands}), None)


def _said_of_model(
    kind: Kind, status: int, body: bytes, to_variables: Callable[[str], str], *, is_whole: bool
) -> Said:
    """What a model said.

    Raises:
        TypeError: Nothing that is known.
    """
    outcome = read_answer(kind, status, body, is_whole=is_whole)
    if isinstance(outcome, LlmAnswer):
        return Said("ok", _mapped(outcome, to_variables).digest(), outcome.usage)
    if isinstance(outcome, LlmFailure):
        text = to_variables(outcome.text)
        partial = outcome.partial
        usage = None if partial is None else partial.usage
        return Said("error", replace(outcome, text=text, partial=None).digest(), usage)
    raise TypeError


def said_of_row(row: ExchangeRow, body: bytes, folders: Folders) -> Said:
    """What a recorded response comes to."""
    kind = kind_of(row.method, row.path)
    return said_of(kind, row.status, body, folders.to_variables, is_whole=row.end == "complete")


def _mapped(answer: LlmAnswer, to_variables: Callable[[str], str]) -> LlmAnswer:
    return LlmAnswer(
        text=to_variables(answer.text),
        tool_calls=tuple(
            ToolCall(call.name, to_variables(call.args)) for call in answer.tool_calls
        ),
        stop_reason=answer.stop_reason,
        refusal=None if answer.refusal is None else to_variables(answer.refusal),
    )
