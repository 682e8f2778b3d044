"""The Merkle tree of RFC 9162 over a list of leaves: roots, inclusion and consistency proofs."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf."""
    # sha256(0x00 + data)
    return sha256(b"\0" + data).digest()


def _node(left: bytes, right: bytes) -> bytes:
    # sha256(0x01 + left + right)
    return sha256(b"\1" + left + right).digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes; that of an empty list is sha256 of nothing."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = _split(len(leaves))
    return _node(root(leaves[:split]), root(leaves[split:]))


def prove_inclusion(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The path that leads from leaf ``index`` to the root (RFC 9162, 2.1.3.1)."""
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*prove_inclusion(leaves[:split], index), root(leaves[split:])]
    return [*prove_inclusion(leaves[split:], index - split), root(leaves[:split])]


def check_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], expected_root: bytes
) -> bool:
    """Whether ``leaf`` is leaf ``index`` of the ``size`` leaves under the root (2.1.3.2)."""
    if not 0 <= index < size:
        return False
    number, last, found = index, size - 1, leaf
    for part in path:
        if last == 0:
            return False
        if number & 1 or number == last:
            found = _node(part, found)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            found = _node(found, part)
        number, last = number >> 1, last >> 1
    return last == 0 and found == expected_root


def prove_consistency(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """The path that shows the first ``old_size`` leaves to be unchanged (2.1.4.1)."""
    if not 0 < old_size <= len(leaves):
        return []
    return _subproof(leaves, old_size, is_whole=True)


def check_consistency(
    old_size: int, old_root: bytes, size: int, new_root: bytes, path: Sequence[bytes]
) -> bool:
    """Whether a tree of ``size`` leaves begins with the one of ``old_size`` (2.1.4.2)."""
    if old_size == size:
        return not path and old_root == new_root
    if old_size == 0:
        return not path and old_root == root(())
    if not 0 < old_size < size or not path:
        return False
    parts = list(path)
    if old_size & (old_size - 1) == 0:
        parts.insert(0, old_root)
    number, last = old_size - 1, size - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old = new = parts[0]
    for part in parts[1:]:
        if last == 0:
            return False
        if number & 1 or number == last:
            old, new = _node(part, old), _node(part, new)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new = _node(new, part)
        number, last = number >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _subproof(leaves: Sequence[bytes], old_size: int, *, is_whole: bool) -> list[bytes]:
    if old_size == len(leaves):
        return [] if is_whole else [root(leaves)]
    split = _split(len(leaves))
    if old_size <= split:
        return [*_subproof(leaves[:split], old_size, is_whole=is_whole), root(leaves[split:])]
    return [*_subproof(leaves[split:], old_size - split, is_whole=False), root(leaves[:split])]


def _split(count: int) -> int:
    """The largest power of two below ``count``."""
    return 1 << ((count - 1).bit_length() - 1)
