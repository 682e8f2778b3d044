"""The key that a run's bodies are encrypted with, wrapped by one that lies outside the project.

``body_key.json`` is JCS {kek, nonce, v, wrapped}; its sha256 stands in ``run.json``, which the seal
covers. Without it, or without the key that wraps it, the bodies cannot be read again.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import canonical_bytes, convert, decode_canonical, from_hex, sha256_hex
from bernstein.errors import CanonicalError, KeyUnavailableError, RecordingError
from bernstein.files import read_file, write_file
from bernstein.recording.blobs import BlobStore, aes_gcm
from bernstein.seal.secret import SecretKeys

if TYPE_CHECKING:
    from pathlib import Path

    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore


class WrappedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of ``body_key.json``: hex throughout; ``kek`` is the id of the wrapping key."""

    v: int
    kek: str
    nonce: str
    wrapped: str


def body_keys(keys_dir: Path) -> SecretKeys:
    """The keys that wrap the keys of bodies."""
    return SecretKeys(keys_dir, "bodies")


def make_body_key(run: RunDir, keys: KeyStore) -> tuple[bytes, str]:
    """Make the key of a new run and keep it, wrapped.

    Returns:
        The key, 32 bytes, and the sha256 of ``body_key.json``.
    Raises:
        KeyUnavailableError: There is no key to wrap it with.
    """
    kek_id, kek = body_keys(keys.folder).current()
    key, nonce = secrets.token_bytes(32), os.urandom(12)
    wrapped = aes_gcm(kek).encrypt(nonce, key, _associated(run.run_id))
    value = WrappedKey(1, kek_id, nonce.hex(), wrapped.hex())
    data = canonical_bytes(msgspec.to_builtins(value)) + b"\n"
    write_file(run.body_key, data)
    return key, sha256_hex(data)


def bodies_of(run: RunDir, sdd: SddDir, keys: KeyStore) -> BlobStore:
    """The bodies of a run; those that are encrypted can be read where its key can be had."""
    return BlobStore(sdd.blobs, find_body_key(run, keys))


def missing_body_key(run: RunDir, keys: KeyStore) -> str | None:
    """The id of the wrapping key that this user lacks to read the bodies of a run, or None."""
    wrapped = _read(run)
    if wrapped is None or _find_kek(wrapped, keys) is not None:
        return None
    return wrapped.kek


def _find_kek(wrapped: WrappedKey, keys: KeyStore) -> bytes | None:
    with suppress(KeyUnavailableError):  # a keyring that is locked: the proof needs no text
        return body_keys(keys.folder).find(wrapped.kek)
    return None


def check_body_key(run: RunDir) -> str | None:
    """What is wrong with ``body_key.json``, held against ``run.json``; None where nothing is."""
    try:
        data = read_file(run.body_key)
    except FileNotFoundError:
        return None  # destroyed on purpose, or not taken along
    said = run.read_info().get("body_key_sha256")
    return None if said == sha256_hex(data) else "body_key.json is not that of the run"


def find_body_key(run: RunDir, keys: KeyStore) -> bytes | None:
    """The key that a run's bodies are encrypted with, where there is one and it can be had.

    Raises:
        RecordingError: ``body_key.json`` is damaged.
    """
    wrapped = _read(run)
    if wrapped is None:
        return None
    kek = _find_kek(wrapped, keys)
    if kek is None:
        return None
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - heavy

    try:
        nonce, data = from_hex(wrapped.nonce), from_hex(wrapped.wrapped)
        return aes_gcm(kek).decrypt(nonce, data, _associated(run.run_id))
    except (InvalidTag, ValueError) as error:
        raise RecordingError(f"{run.body_key} does not open under its own key") from error


def _read(run: RunDir) -> WrappedKey | None:
    try:
        data = read_file(run.body_key)
        return convert(decode_canonical(data.removesuffix(b"\n")), WrappedKey)
    except FileNotFoundError:
        return None
    except CanonicalError as error:
        raise RecordingError(f"{run.body_key} is damaged: {error}") from error


def _associated(run_id: str) -> bytes:
    # AES-256-GCM under the wrapping key, associated data "bernstein.bodykey.v1\n" + run id
    return f"bernstein.bodykey.v1\n{run_id}".encode()
