"""The private home of a command: the files that its profile names, copied in and kept for replays.

Rule: a credential reaches the command in a recording only. What is kept of it has its shape, so
that a client that was signed in asks in the same way in a replay, and nothing of its value.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.canonical import (
    JsonObject,
    JsonValue,
    as_ref,
    canonical_bytes,
    decode_canonical,
    decode_strict,
    digest_of_bytes,
)
from bernstein.errors import CanonicalError
from bernstein.files import inside, make_private, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bernstein.recording.blobs import BlobStore
    from bernstein.wire.profile import Profile

MAX_FILE_BYTES = 256 * 2**10
_SECRET_NAMES = re.compile(r"token|secret|key|password", re.IGNORECASE)
_NOTHING = "replay-no-key-is-needed"
_FAR_MS, _FAR_S = 4_102_444_800_000, 4_102_444_800  # the year 2100


@dataclass(slots=True)
class Home:
    """Files of a home by their paths in it.

    Attributes:
        files: Configuration, as it is read; secrets are taken out of what is kept.
        credentials: The shape of what signs the client in.
        links: Where the credentials of a recorded client are: they are not copied.
        left_out: Files that are too large to be kept, and are not copied.
    """

    files: dict[str, str] = field(default_factory=dict)
    credentials: dict[str, str] = field(default_factory=dict)
    links: dict[str, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def kept(self, without_secrets: Callable[[str], str], blobs: BlobStore) -> JsonObject:
        """What ``run.json`` has of it: texts, or in an encrypted run DigestRefs of them."""
        return {
            "files": {p: _stored(without_secrets(text), blobs) for p, text in self.files.items()},
            "credentials": {path: _shape(text) for path, text in self.credentials.items()},
        }

    def secrets(self) -> list[str]:
        """The values that sign the client in."""
        return [value for text in self.credentials.values() for value in _secret_values(text)]

    def write(self, home: Path, moved: Callable[[str], str] = str) -> None:
        """Write all of it into a new home, its texts changed by ``moved``."""
        for path, text in {**self.files, **self.credentials}.items():
            target = inside(home, path)
            make_private(target.parent)
            if path in self.links:
                target.symlink_to(self.links[path])
                continue
            write_file(target, moved(text).encode("utf-8", "surrogateescape"))


def read_home(home: Path, profile: Profile) -> Home:
    """The files of a real home that the profile names."""
    found = Home()
    for path, file in _matching(home, profile.home_files):
        if file.stat().st_size > MAX_FILE_BYTES:
            found.left_out.append(path)
        else:
            found.files[path] = file.read_bytes().decode("utf-8", "surrogateescape")
    for path, file in _matching(home, profile.credential_files):
        found.credentials[path] = file.read_bytes().decode("utf-8", "surrogateescape")
        found.links[path] = file.resolve()
    return found


def home_of(kept: JsonObject | None, blobs: BlobStore) -> Home:
    """The files that a recording kept.

    Raises:
        RecordingError: The recording is encrypted, and they cannot be read.
    """
    kept = kept or {}
    files = {path: _read(stored, blobs) for path, stored in (kept.get("files") or {}).items()}
    return Home(files, dict(kept.get("credentials") or {}))


def _stored(text: str, blobs: BlobStore) -> JsonValue:
    if not blobs.encrypts:
        return text
    body = canonical_bytes(text)
    return blobs.put_encrypted(digest_of_bytes(body), body).to_json()


def _read(stored: JsonValue, blobs: BlobStore) -> str:
    ref = as_ref(stored)
    return str(stored if ref is None else decode_canonical(blobs.get(ref)))


def _matching(home: Path, globs: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    for glob in globs:
        for file in sorted(home.glob(glob)):
            if file.is_file():
                yield file.relative_to(home).as_posix(), file


def _shape(text: str) -> str:
    """A credential without its values: secrets are none, and it does not expire."""
    try:
        return json.dumps(_without_values(decode_strict(text.encode()), ""))
    except (CanonicalError, UnicodeEncodeError):
        return ""


def _without_values(value: JsonValue, name: str) -> JsonValue:
    if isinstance(value, dict):
        return {key: _without_values(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_values(item, name) for item in value]
    if isinstance(value, str) and _SECRET_NAMES.search(name):
        return _NOTHING
    if type(value) in {int, float} and "expir" in name.lower():
        return _FAR_MS if value > _FAR_S else _FAR_S
    return value


def _secret_values(text: str) -> Iterator[str]:
    try:
        waiting: list[tuple[str, JsonValue]] = [("", decode_strict(text.encode()))]
    except (CanonicalError, UnicodeEncodeError):
        return
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, item) for item in value]
        elif isinstance(value, str) and _SECRET_NAMES.search(name):
            yield value
