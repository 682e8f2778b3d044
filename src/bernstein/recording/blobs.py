"""Bodies that do not stand in a row, by their digest: ``.sdd/blobs/sha256/ab/<hex>``.

A large body is named by its own digest. An encrypted one is named by that of its ciphertext, so
that no name confirms a guess at the text, and is opened with the key of its run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bernstein.canonical import DigestRef, digest_of_bytes, sha256_hex
from bernstein.errors import ForgottenBodyError, RecordingError
from bernstein.files import make_private, read_file, sweep_temporaries, write_file

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LARGE_BYTES = 64 * 1024
_NONCE_BYTES = 12


class BlobStore:
    """The blobs of a project, as one run reads and writes them."""

    def __init__(self, folder: Path, key: bytes | None = None) -> None:
        """Use the blobs in ``folder``; with ``key`` (32 bytes) bodies are encrypted."""
        self._folder = folder
        self._cipher = None if key is None else aes_gcm(key)

    @property
    def encrypts(self) -> bool:
        """Whether no body may be written in the clear."""
        return self._cipher is not None

    def put(self, data: bytes) -> DigestRef:
        """Keep ``data`` in the clear; the same bytes are kept once."""
        ref = digest_of_bytes(data)
        self._write(ref.digest, data)
        return ref

    def put_encrypted(self, ref: DigestRef, data: bytes) -> DigestRef:
        """Keep ``data``, which leads to the body that ``ref`` names, so that only the key opens it.

        Returns:
            ``ref`` with the name of the ciphertext.
        """
        assert self._cipher is not None
        nonce = os.urandom(_NONCE_BYTES)
        # nonce + AES-256-GCM, associated data "bernstein.body.v1\n" + the body's digest
        sealed = nonce + self._cipher.encrypt(nonce, data, _associated(ref.digest))
        name = sha256_hex(sealed)
        self._write(name, sealed)
        return DigestRef(ref.digest, ref.byte_length, name)

    def get(self, ref: DigestRef) -> bytes:
        """What was put under ``ref``, checked.

        Raises:
            ForgottenBodyError: It is not there, or its key is not.
            RecordingError: It is something else.
        """
        data = self.read_file(ref.name)
        if ref.enc_ref is None:
            return data
        if self._cipher is None:
            raise ForgottenBodyError(
                f"the body {ref.digest} is encrypted, and the key of its run is not here\n"
                "  name the folder that holds it: BERNSTEIN_KEYS_DIR=DIR"
            )
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - heavy

        nonce, sealed = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
        try:
            return self._cipher.decrypt(nonce, sealed, _associated(ref.digest))
        except (InvalidTag, ValueError) as error:
            raise RecordingError(
                f"the body {ref.digest} cannot be opened with the key of its run"
            ) from error

    def check(self, ref: DigestRef) -> None:
        """Raise ``RecordingError`` if other bytes than ``ref`` names are there."""
        try:
            self.get(ref)
        except ForgottenBodyError:
            return

    def can_read(self, ref: DigestRef) -> bool:
        """Whether the body is there, and its key where it has one."""
        has_key = ref.enc_ref is None or self._cipher is not None
        return has_key and self._path(ref.name).exists()

    def remove(self, name: str) -> None:
        """Destroy the body in the file of this name."""
        self._path(name).unlink(missing_ok=True)

    def _write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if path.is_symlink() or not path.exists() or sha256_hex(path.read_bytes()) != name:
            make_private(path.parent)
            write_file(path, data)

    def read_file(self, name: str) -> bytes:
        """The bytes of the file of this name, checked against it; a symlink is not followed.

        Raises:
            ForgottenBodyError: There is none.
            RecordingError: It holds other bytes.
        """
        try:
            data = read_file(self._path(name))
        except FileNotFoundError as error:
            raise ForgottenBodyError(f"the body {name} is not in {self._folder}") from error
        if sha256_hex(data) != name:
            raise RecordingError(f"the body {name} in {self._folder} has been changed")
        return data

    def sweep(self) -> None:
        """Remove what writes that were killed have left."""
        for folder in self._folder.glob("??"):
            sweep_temporaries(folder)

    def _path(self, name: str) -> Path:
        if type(name) is not str or len(name) != 64 or name.strip("0123456789abcdef"):
            raise RecordingError(f"{name!a} is not a digest")
        return self._folder / name[:2] / name


def aes_gcm(key: bytes) -> AESGCM:
    """AES-GCM under ``key``."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - heavy

    return AESGCM(key)


def _associated(digest: str) -> bytes:
    return f"bernstein.body.v1\n{digest}".encode()
