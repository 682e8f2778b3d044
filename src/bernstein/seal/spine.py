"""The lineage spine: one chained, signed entry for each sealed run or artifact of a project.

Rule 1: this is the only module that writes ``spine.jsonl``.
Rule 2: an entry is taken only in its canonical spelling, behind the entry that it names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, convert, decode_canonical, sha256_hex
from bernstein.errors import CanonicalError, JournalError
from bernstein.events.entry import GENESIS
from bernstein.files import make_private
from bernstein.jsonl import append_linked, read_lines
from bernstein.seal.signing import is_signed_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bernstein.jsonl import Line
    from bernstein.seal.signing import KeyStore, SigningKey

EntryKind: TypeAlias = Literal["run", "artifact", "pruned", "forgotten", "received"]


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a run wrote: its path, its digest, and the row that says so."""

    path: str
    sha256: str
    event_index: int


class SpineEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the spine; ``seal_sha256`` is over the bytes of the run's ``seal.json``."""

    index: int
    kind: EntryKind
    run_id: str
    subject: Subject | None
    seal_sha256: str | None
    prev_hash: str
    key_id: str
    entry_hash: str
    sig: str

    def computed_hash(self) -> str:
        """The hash that this entry must state, 64 hex digits."""
        # sha256("bernstein.spine.v1\n" + JCS without entry_hash and sig)
        value: JsonObject = msgspec.to_builtins(self)
        del value["entry_hash"], value["sig"]
        return sha256_hex(b"bernstein.spine.v1\n" + canonical_bytes(value))

    def is_signed_by(self, public: bytes) -> bool:
        """Whether the signature is that of the entry's hash under ``public``."""
        # over "bernstein.spine.v1\n" + entry_hash
        return is_signed_by(public, self.sig, f"bernstein.spine.v1\n{self.entry_hash}".encode())


@dataclass(slots=True)
class SpineReading:
    """What a check of the whole spine found.

    Attributes:
        entries: The entries that hold, in order.
        broken_at: The first that does not, from 0; None where all do.
        reason: Why.
        signers: The ids of the keys that signed the entries.
    """

    entries: list[SpineEntry] = field(default_factory=list)
    broken_at: int | None = None
    reason: str = ""
    signers: set[str] = field(default_factory=set)
    _of_run: dict[str, SpineEntry] = field(default_factory=dict)

    def add(self, entry: SpineEntry) -> None:
        """Take an entry that holds."""
        self.entries.append(entry)
        self.signers.add(entry.key_id)
        if entry.kind in {"run", "received"}:
            self._of_run[entry.run_id] = entry

    def sealed(self, run_id: str) -> str | None:
        """The last ``seal_sha256`` that the spine has for a run, or None."""
        entry = self.entry_of(run_id)
        return None if entry is None else entry.seal_sha256

    def entry_of(self, run_id: str) -> SpineEntry | None:
        """The last entry that says of a run that it was sealed or received, or None."""
        return self._of_run.get(run_id)


def read_spine(path: Path, keys: KeyStore) -> SpineReading:
    """Check the whole spine; what does not hold ends it. No file is an empty spine."""
    reading = SpineReading()
    head = GENESIS
    for index, entry in enumerate(_entries(path)):
        problem = entry if isinstance(entry, str) else _problem(entry, index, head, keys)
        if problem or isinstance(entry, str):
            reading.broken_at, reading.reason = index, problem
            return reading
        reading.add(entry)
        head = entry.entry_hash
    return reading


def _entries(path: Path) -> Iterator[SpineEntry | str]:
    try:
        for line in read_lines(path):
            yield parse_entry(line.data) if line.is_whole else "torn"
    except FileNotFoundError:
        return


def parse_entry(line: bytes) -> SpineEntry | str:
    """The entry that a line spells, or why it spells none."""
    try:
        return convert(decode_canonical(line), SpineEntry)
    except CanonicalError:
        return "not an entry"


def _problem(entry: SpineEntry, index: int, head: str, keys: KeyStore) -> str:
    if entry.index != index or entry.prev_hash != head:
        return "order"
    if entry.computed_hash() != entry.entry_hash:
        return "entry hash"
    public, _ = keys.find_public(entry.key_id)
    if public is None:
        return "no public key"
    return "" if entry.is_signed_by(public) else "signature"


class Spine:
    """The only writer of a project's spine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(
        self,
        kind: EntryKind,
        run_id: str,
        seal_sha256: str | None,
        key: SigningKey,
        subject: Subject | None = None,
    ) -> SpineEntry:
        """Chain, sign and write one entry.

        Raises:
            JournalError: The spine does not end in an entry.
            OSError: The disk refuses; the spine is as before.
        """
        entries: list[SpineEntry] = []

        def link(last: Line | None) -> bytes:
            head, index = self._tail(last)
            entry = SpineEntry(index, kind, run_id, subject, seal_sha256, head, key.key_id, "", "")
            entry = msgspec.structs.replace(entry, entry_hash=entry.computed_hash())
            signature = key.sign(f"bernstein.spine.v1\n{entry.entry_hash}".encode())
            entries.append(msgspec.structs.replace(entry, sig=signature))
            return canonical_bytes(msgspec.to_builtins(entries[0]))

        make_private(self._path.parent)
        append_linked(self._path, link)
        return entries[0]

    def _tail(self, line: Line | None) -> tuple[str, int]:
        if line is None:
            return GENESIS, 0
        entry = parse_entry(line.data)
        if isinstance(entry, str):
            # Refuse, do not skip: an entry behind a broken one would hide it.
            raise JournalError(
                f"{self._path} does not end in a whole entry ({entry})\n"
                "  look at it with: bernstein lineage verify"
            )
        return entry.entry_hash, entry.index + 1
