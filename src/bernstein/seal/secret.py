"""A secret of this user's, in a file of the keys directory or in the system's keyring.

With ``BERNSTEIN_KEYRING=1`` new secrets go into the keyring, and the file says only that.
"""

from __future__ import annotations

import functools
import secrets
from typing import TYPE_CHECKING

from bernstein.canonical import sha256_hex
from bernstein.errors import KeyUnavailableError
from bernstein.files import make_private, write_file
from bernstein.settings import read_settings

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

_SERVICE = "bernstein"
_IN_KEYRING = "in the system keyring"


def write_secret(path: Path, secret: bytes) -> None:
    """Keep ``secret`` under the name of ``path``.

    Raises:
        KeyUnavailableError: There is no keyring, and it was asked for.
        OSError: The disk refuses.
    """
    text = secret.hex()
    if read_settings().keyring:
        keyring = _keyring()
        try:
            keyring.set_password(_SERVICE, path.name, text)
        except Exception as error:
            raise _unavailable(error) from error
        text = _IN_KEYRING
    write_file(path, text.encode() + b"\n")


def is_in_keyring(path: Path) -> bool:
    """Whether the secret that is kept under the name of ``path`` lies in the keyring."""
    return path.read_text("ascii", "replace").strip() == _IN_KEYRING


def read_secret(path: Path) -> bytes:
    """The secret that is kept under the name of ``path``.

    Raises:
        KeyUnavailableError: The keyring does not give it out.
        OSError, ValueError: The file cannot be read, or holds none.
    """
    text = path.read_text("ascii").strip()
    return _from_keyring(path.name) if text == _IN_KEYRING else bytes.fromhex(text)


class SecretKeys:
    """Symmetric keys of one purpose, ``<purpose>-<key id>.key``, one of them current.

    The id of a key is its sha256.
    """

    def __init__(self, keys_dir: Path, purpose: str) -> None:
        self._dir = keys_dir
        self._purpose = purpose
        self._current = keys_dir / f"{purpose}-current"

    def current(self) -> tuple[str, bytes]:
        """The id and bytes of the key to use now; made where there is none.

        Raises:
            KeyUnavailableError: The keys directory cannot be read or written.
        """
        try:
            if not self._current.exists():
                self.rotate()
            key_id = self._current.read_text("ascii").strip()
            key = self.find(key_id)
        except OSError as error:
            raise KeyUnavailableError(
                f"no {self._purpose} key can be had from {self._dir}: {error}\n"
                "  name a folder of yours: BERNSTEIN_KEYS_DIR=DIR"
            ) from error
        if key is None:
            raise KeyUnavailableError(f"the {self._purpose} key {key_id} is not in {self._dir}")
        return key_id, key

    def find(self, key_id: str) -> bytes | None:
        """The key with this id, if this user has it."""
        if len(key_id) != 64 or key_id.strip("0123456789abcdef"):
            return None
        try:
            key = read_secret(self._dir / f"{self._purpose}-{key_id}.key")
        except (OSError, ValueError):
            return None
        return key if sha256_hex(key) == key_id else None

    def rotate(self) -> str:
        """Make a new key for what is to come; old keys stay, for what was made with them."""
        make_private(self._dir)
        key = secrets.token_bytes(32)
        key_id = sha256_hex(key)
        write_secret(self._dir / f"{self._purpose}-{key_id}.key", key)
        write_file(self._current, key_id.encode() + b"\n")
        return key_id


@functools.cache
def _from_keyring(name: str) -> bytes:
    keyring = _keyring()
    try:
        text = keyring.get_password(_SERVICE, name)
    except Exception as error:
        raise _unavailable(error) from error
    if text is None:
        raise KeyUnavailableError(
            f"the system keyring holds no {name} for {_SERVICE}\n"
            "  restore it there, or take the file of this name out of the keys directory"
        )
    return bytes.fromhex(text)


def _keyring() -> ModuleType:
    try:
        import keyring  # noqa: PLC0415 - heavy, and not installed for all
    except ImportError as error:
        raise KeyUnavailableError(
            "the system keyring needs a package that is not here\n"
            '  install it: pip install "bernstein-replay[keyring]"'
        ) from error
    return keyring


def _unavailable(error: Exception) -> KeyUnavailableError:
    why = (str(error) or type(error).__name__).splitlines()[0]
    return KeyUnavailableError(
        f"the system keyring cannot be used: {why}\n"
        "  unlock or set one up, or keep keys in files: unset BERNSTEIN_KEYRING"
    )
