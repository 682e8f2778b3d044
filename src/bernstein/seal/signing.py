"""Keys: whose signature a seal carries, and whose this user trusts.

Rule: private halves lie in the user's keys directory, never in the project, where an agent works.
A public key in the project makes nothing trusted: own keys are those whose private half is in the
keys directory, others count once they are pinned in its ``trusted/``.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from bernstein.canonical import sha256_hex
from bernstein.errors import KeyUnavailableError
from bernstein.files import make_private, write_file
from bernstein.rundir import SddDir
from bernstein.seal.secret import is_in_keyring, read_secret, write_secret
from bernstein.settings import read_settings

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Trust: TypeAlias = Literal["own", "trusted", "unknown"]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key of this user; ``key_id`` is the sha256 of its raw public half, in hex."""

    key_id: str
    public: bytes
    private: Ed25519PrivateKey

    def sign(self, message: bytes) -> str:
        """The signature of ``message``, 128 hex digits."""
        return self.private.sign(message).hex()


class KeyStore:
    """The keys that a project's seals are made and checked with."""

    def __init__(self, keys_dir: Path, project_keys: Path) -> None:
        """Use the private keys of ``keys_dir``, and public keys beside the project's runs."""
        self.folder = keys_dir
        self._project_keys = project_keys
        self._known: dict[str, tuple[bytes | None, Trust]] = {}

    def signing_key(self) -> SigningKey:
        """The key that this user signs with now; made where there is none.

        Raises:
            KeyUnavailableError: The keys directory cannot be read or written.
        """
        try:
            current = self.folder / "current"
            if not current.exists():
                self._make_key(current)
            key = _read_key(self.folder / f"{current.read_text('ascii').strip()}.ed25519")
            self.publish(key.key_id, key.public)
        except (OSError, ValueError) as error:
            raise KeyUnavailableError(
                f"no signing key can be had from {self.folder}: {error}\n"
                "  name a folder of yours: BERNSTEIN_KEYS_DIR=DIR"
            ) from error
        return key

    def own_ids(self) -> set[str]:
        """The ids of the keys whose private half this user has."""
        return {path.stem for path in self.folder.glob("*.ed25519")}

    def find_public(self, key_id: str) -> tuple[bytes | None, Trust]:
        """The public half of a key, if it is anywhere, and whether this user trusts it."""
        if key_id not in self._known:
            public, trust = self._find_public(key_id)
            if trust != "own":
                return public, trust  # a pin may come and go
            self._known[key_id] = public, trust
        return self._known[key_id]

    def _find_public(self, key_id: str) -> tuple[bytes | None, Trust]:
        own = self.folder / f"{key_id}.ed25519"
        if len(key_id) == 64 and not key_id.strip("0123456789abcdef"):
            if own.exists() and is_in_keyring(own):
                # The name is the digest of the public half, so that need not be asked of a keyring.
                public = _read_public(self._project_keys / f"{key_id}.pub", key_id)
                return public, "own" if public is not None else "unknown"
            if own.exists():
                key = _read_key(own)
                return (key.public, "own") if key.key_id == key_id else (None, "unknown")
            for folder, trust in (
                (self.folder / "trusted", "trusted"),
                (self._project_keys, "unknown"),
            ):
                public = _read_public(folder / f"{key_id}.pub", key_id)
                if public is not None:
                    return public, "trusted" if trust == "trusted" else "unknown"
        return None, "unknown"

    def trust(self, key_id: str, public: bytes) -> None:
        """Pin another user's key: from now on its seals are verified."""
        folder = self.folder / "trusted"
        make_private(folder)
        write_file(folder / f"{key_id}.pub", public.hex().encode() + b"\n")

    def publish(self, key_id: str, public: bytes) -> None:
        """Put a public key beside the project's runs; that makes it known, not trusted."""
        path = self._project_keys / f"{key_id}.pub"
        if not path.exists():
            make_private(self._project_keys)
            write_file(path, public.hex().encode() + b"\n")

    def _make_key(self, current: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - heavy
            Ed25519PrivateKey,
        )

        make_private(self.folder)
        private = Ed25519PrivateKey.generate()
        key_id = sha256_hex(private.public_key().public_bytes_raw())
        path = self.folder / f"{key_id}.ed25519"
        write_secret(path, private.private_bytes_raw())
        named = self.folder / f".current.{secrets.token_hex(4)}"
        write_file(named, key_id.encode() + b"\n")
        try:
            # A link, not a rename: of two processes that make a first key, one is first.
            os.link(named, current)
        except FileExistsError:
            path.unlink()
        finally:
            named.unlink()


def default_keys(sdd: SddDir) -> KeyStore:
    """The keys of this user, and the public ones of the project."""
    return KeyStore(read_settings().keys_dir, sdd.keys)


def is_signed_by(public: bytes, signature: str, message: bytes) -> bool:
    """Whether ``signature`` (128 lower-case hex digits) is that of ``message`` under ``public``."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - heavy
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    if len(signature) != 128 or signature.strip("0123456789abcdef"):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read_key(path: Path) -> SigningKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415 - heavy
        Ed25519PrivateKey,
    )

    try:
        private = Ed25519PrivateKey.from_private_bytes(read_secret(path))
    except ValueError as error:
        raise KeyUnavailableError(f"{path} is not a key; restore it or take it away") from error
    public = private.public_key().public_bytes_raw()
    return SigningKey(sha256_hex(public), public, private)


def _read_public(path: Path, key_id: str) -> bytes | None:
    """A public key from a file, if it is the one that its name says."""
    try:
        public = bytes.fromhex(path.read_text("ascii").strip())
    except (OSError, ValueError):
        return None
    return public if sha256_hex(public) == key_id else None
