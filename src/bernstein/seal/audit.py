"""The audit chain: what was approved and what a provider changed, under a key that agents lack.

A row is JCS {index, type, payload, key_id, prev_hash, hmac}; prev_hash is the hmac before, 64 zeros
for the first. Rule: without the key nothing can be checked, and nothing is called checked.
"""

from __future__ import annotations

import contextlib
import hmac
import re
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, convert, decode_canonical
from bernstein.errors import CanonicalError, JournalError, UsageError
from bernstein.events.entry import GENESIS
from bernstein.files import make_private
from bernstein.jsonl import append_linked, read_lines
from bernstein.seal.secret import SecretKeys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bernstein.jsonl import Line

AuditVerdict: TypeAlias = Literal["verified", "mismatch", "prefix", "unchecked"]

_TYPE = re.compile(r"[a-z][a-z0-9_.]{0,63}")


class AuditRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the audit chain."""

    index: int
    type: str
    payload: JsonObject
    key_id: str
    prev_hash: str
    hmac: str

    def computed_hmac(self, key: bytes) -> str:
        """The hmac that this row must have under ``key``, 64 hex digits."""
        # HMAC-SHA256 over "bernstein.audit.v1\n" + JCS without hmac
        value: JsonObject = msgspec.to_builtins(self)
        del value["hmac"]
        return hmac.digest(key, b"bernstein.audit.v1\n" + canonical_bytes(value), "sha256").hex()


class AuditFloor(NamedTuple):
    """What seals name of the audit chain: at least so many rows, and the hmac of the last.

    ``is_latest`` is False where the seal made last is not here, which may have named more.
    """

    rows: int
    hmac: str
    is_latest: bool = True


class AuditCheck(msgspec.Struct, frozen=True):
    """What a check of the audit chain found.

    Attributes:
        verdict: verified; mismatch; prefix (rows above the highest count that a seal names hold,
            and nothing says that they are all); unchecked (a key is missing).
        rows: Rows that hold, in order.
        hmac: The last one's; 64 zeros where there is none.
        index: The first row that does not hold or cannot be checked.
        note: Why.
    """

    verdict: AuditVerdict
    rows: int
    hmac: str
    index: int | None = None
    note: str = ""


def audit_keys(keys_dir: Path) -> SecretKeys:
    """This user's audit keys; a row is checked with the key that its ``key_id`` names."""
    return SecretKeys(keys_dir, "audit")


class _UnwantedRowError(Exception):
    """A row that is not to be chained any more."""


class AuditChain:
    """The only writer of a project's ``audit.jsonl``."""

    def __init__(self, path: Path, keys: SecretKeys) -> None:
        self._path = path
        self._keys = keys

    def append(self, kind: str, payload: JsonObject) -> AuditRow:
        """Chain one row, which is on disk when this returns.

        Raises:
            KeyUnavailableError: There is no key.
            JournalError: The chain does not end in a row.
            OSError: The disk refuses; the chain is as before.
        """
        row = self.append_if(kind, payload, lambda: True)
        assert row is not None
        return row

    def append_if(
        self, kind: str, payload: JsonObject, is_wanted: Callable[[], bool]
    ) -> AuditRow | None:
        """Chain one row where ``is_wanted``, which is asked while nobody else can append.

        Returns:
            The row, or None where it is not wanted.
        Raises:
            Like ``append``.
        """
        if not _TYPE.fullmatch(kind):
            raise UsageError(f"audit type {kind!r} does not match {_TYPE.pattern}")
        key_id, key = self._keys.current()
        rows: list[AuditRow] = []

        def link(last: Line | None) -> bytes:
            if not is_wanted():
                raise _UnwantedRowError
            prev_hash, index = self._tail(last)
            row = AuditRow(index, kind, payload, key_id, prev_hash, "")
            row = msgspec.structs.replace(row, hmac=row.computed_hmac(key))
            rows.append(row)
            return canonical_bytes(msgspec.to_builtins(row))

        make_private(self._path.parent)
        try:
            append_linked(self._path, link)
        except _UnwantedRowError:
            return None
        return rows[0]

    def append_once(self, kind: str, payload: JsonObject) -> tuple[AuditRow, bool]:
        """Chain a row, unless the chain has one that says the same, under a key that is here.

        Returns:
            The row, and whether it is new.
        Raises:
            Like ``append``.
        """
        known: list[AuditRow] = []

        def is_new() -> bool:
            rows = read_audit(self._path, self._keys)
            known.extend(row for row in rows if (row.type, row.payload) == (kind, payload))
            return not known

        row = self.append_if(kind, payload, is_new)
        return (known[0], False) if row is None else (row, True)

    def _tail(self, line: Line | None) -> tuple[str, int]:
        if line is None:
            return GENESIS, 0
        row = _parse(line.data)
        if row is None:
            raise JournalError(
                f"{self._path} does not end in a whole row\n"
                "  look at it with: bernstein audit verify"
            )
        return row.hmac, row.index + 1


def check_audit(path: Path, keys: SecretKeys, sealed: AuditFloor | None) -> AuditCheck:
    """Check the whole audit chain.

    Args:
        path: The ``audit.jsonl``.
        keys: This user's keys.
        sealed: The highest count that a seal names; None without one.
    Raises:
        UsageError: There is no chain.
    """
    if not path.exists():
        if sealed is not None and sealed.rows > 0:
            return AuditCheck("mismatch", 0, GENESIS, 0, f"{sealed.rows} rows were sealed")
        raise UsageError("there is no audit chain: nothing has been approved in this project")
    head, sealed_hmac, count = GENESIS, GENESIS, 0
    for index, line in enumerate(read_lines(path)):
        row = _parse(line.data) if line.is_whole else None
        if row is None or row.index != index or row.prev_hash != head:
            return AuditCheck("mismatch", index, head, index, "order" if row else "not a row")
        key = keys.find(row.key_id)
        if key is None:
            note = f"the key {row.key_id} is not here, so this cannot be checked"
            return AuditCheck("unchecked", index, head, index, note)
        if not hmac.compare_digest(row.computed_hmac(key), row.hmac):
            return AuditCheck("mismatch", index, head, index, "hmac")
        head, count = row.hmac, index + 1
        if sealed is not None and count == sealed.rows:
            sealed_hmac = head
    if sealed is not None and (count < sealed.rows or sealed_hmac != sealed.hmac):
        note = (
            f"{sealed.rows} rows were sealed, there are {count}" if count < sealed.rows else "seal"
        )
        return AuditCheck("mismatch", count, head, min(count, sealed.rows), note)
    if sealed is None or count > sealed.rows:
        first = 0 if sealed is None else sealed.rows
        return AuditCheck("prefix", count, head, first, "no seal names the rows from here on")
    if not sealed.is_latest:
        note = "the seal made last is not here, and may have named more rows"
        return AuditCheck("prefix", count, head, None, note)
    return AuditCheck("verified", count, head)


def read_audit(path: Path, keys: SecretKeys) -> Iterator[AuditRow]:
    """The rows that somebody with a key of this user has written, in their order."""
    with contextlib.suppress(FileNotFoundError):
        for line in read_lines(path):
            row = _parse(line.data) if line.is_whole else None
            key = None if row is None else keys.find(row.key_id)
            if row is None or key is None:
                continue
            if hmac.compare_digest(row.computed_hmac(key), row.hmac):
                yield row


def audit_state(path: Path) -> tuple[int, str]:
    """How many rows follow each other from the first, and the last one's hmac: what a seal names.

    The hmacs themselves are checked by ``check_audit``, under the key.
    """
    count, head = 0, GENESIS
    with contextlib.suppress(FileNotFoundError):
        for line in read_lines(path):
            row = _parse(line.data) if line.is_whole else None
            if row is None or (row.index, row.prev_hash) != (count, head):
                break
            count, head = count + 1, row.hmac
    return count, head


def _parse(line: bytes) -> AuditRow | None:
    try:
        return convert(decode_canonical(line), AuditRow)
    except CanonicalError:
        return None
