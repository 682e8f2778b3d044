"""Bodies that are too large for a row, by their digest: ``.sdd/blobs/sha256/ab/<hex>``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.canonical import DigestRef, digest_of_bytes, sha256_hex
from bernstein.errors import ForgottenBodyError, RecordingError
from bernstein.rundir import make_private, write_file

if TYPE_CHECKING:
    from pathlib import Path

LARGE_BYTES = 64 * 1024


class BlobStore:
    """The blobs of a project, shared by its runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> DigestRef:
        """Keep ``data``; the same bytes are kept once."""
        ref = digest_of_bytes(data)
        path = self._path(ref.digest)
        if not path.exists() or sha256_hex(path.read_bytes()) != ref.digest:
            make_private(path.parent)
            write_file(path, data)
        return ref

    def get(self, digest: str) -> bytes:
        """The bytes with this digest, checked.

        Raises:
            ForgottenBodyError: They are not there.
            RecordingError: They are others.
        """
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError as error:
            raise ForgottenBodyError(f"the body {digest} is not in {self._folder}") from error
        if sha256_hex(data) != digest:
            raise RecordingError(f"the body {digest} in {self._folder} has been changed")
        return data

    def _path(self, digest: str) -> Path:
        if type(digest) is not str or len(digest) != 64 or digest.strip("0123456789abcdef"):
            raise RecordingError(f"{digest!a} is not a digest")
        return self._folder / digest[:2] / digest
