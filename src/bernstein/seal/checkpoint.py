"""A signed checkpoint of the spine (C2SP tlog-checkpoint), and proofs against one.

A checkpoint that is kept elsewhere shows later that nothing before it was rewritten.
"""

from __future__ import annotations

import base64
import binascii
import re
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from bernstein.canonical import from_hex
from bernstein.errors import ProofError
from bernstein.seal import merkle
from bernstein.seal.signing import is_signed_by

if TYPE_CHECKING:
    from bernstein.seal.signing import SigningKey
    from bernstein.seal.spine import SpineEntry

_ED25519 = b"\x01"
# Origin, size in decimal, root in base64 (32 bytes), a blank line before the signatures.
_BODY = re.compile(r"([^\n]+)\n(0|[1-9][0-9]{0,15})\n([A-Za-z0-9+/]{43}=)\n\n")


class Checkpoint(msgspec.Struct, frozen=True):
    """How long a spine is and its root, and who says so.

    Attributes:
        origin: ``bernstein/spine/<key id>``: the log, named by the key that signs it.
        size: How many entries it has.
        root: The root hash, 32 bytes.
        text: The whole note, its signature too.
    """

    origin: str
    size: int
    root: bytes
    text: str

    @property
    def key_id(self) -> str:
        """The id of the key that must have signed it."""
        return self.origin.rsplit("/", 1)[-1]

    def is_signed_by(self, public: bytes) -> bool:
        """Whether one of the note's signatures is that of ``public``."""
        body, _, signatures = self.text.partition("\n\n")
        for line in signatures.split("\n"):
            dash, _, rest = line.partition(" ")
            name, _, encoded = rest.partition(" ")
            if dash != "—" or name != self.origin:
                continue
            try:
                raw = base64.b64decode(encoded, validate=True)
            except binascii.Error:
                continue
            # The last character of base64 has bits that nothing else checks.
            is_spelled = base64.b64encode(raw).decode() == encoded
            if is_spelled and raw[:4] == _key_hash(name, public):
                return is_signed_by(public, raw[4:].hex(), f"{body}\n".encode())
        return False


class InclusionProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That an entry stands in the spine under a checkpoint; hashes and keys in hex."""

    entry: dict[str, object]
    inclusion: list[str]
    checkpoint: str
    public_key: str


def _key_hash(name: str, public: bytes) -> bytes:
    # the first four bytes of sha256(name + "\n" + 0x01 + public key)
    return sha256(name.encode() + b"\n" + _ED25519 + public).digest()[:4]


def leaf_hashes(entries: list[SpineEntry]) -> list[bytes]:
    """The leaves of the spine: RFC 9162 hashes over each entry hash's 32 bytes."""
    return [merkle.leaf_hash(bytes.fromhex(entry.entry_hash)) for entry in entries]


def make_checkpoint(entries: list[SpineEntry], key: SigningKey) -> Checkpoint:
    """Sign the spine as it is."""
    origin = f"bernstein/spine/{key.key_id}"
    root = merkle.root(leaf_hashes(entries))
    body = f"{origin}\n{len(entries)}\n{base64.b64encode(root).decode()}\n"
    signature = bytes.fromhex(key.sign(body.encode()))
    encoded = base64.b64encode(_key_hash(origin, key.public) + signature).decode()
    return Checkpoint(origin, len(entries), root, f"{body}\n— {origin} {encoded}\n")


def parse_checkpoint(text: str) -> Checkpoint:
    """Read a checkpoint; its signature is not checked here.

    Raises:
        ProofError: It is not one.
    """
    found = _BODY.match(text)
    if found is None:
        raise ProofError("this is not a checkpoint (C2SP tlog-checkpoint)")
    return Checkpoint(found[1], int(found[2]), base64.b64decode(found[3]), text)


def prove_entry(entries: list[SpineEntry], index: int, key: SigningKey) -> InclusionProof:
    """Prove that entry ``index`` stands in the spine, under a checkpoint signed now."""
    leaves = leaf_hashes(entries)
    return InclusionProof(
        entry=msgspec.to_builtins(entries[index]),
        inclusion=[part.hex() for part in merkle.prove_inclusion(leaves, index)],
        checkpoint=make_checkpoint(entries, key).text,
        public_key=key.public.hex(),
    )


def check_proof(proof: InclusionProof, entry: SpineEntry) -> Checkpoint:
    """Check an inclusion proof by itself; whether its key is trusted is the caller's to say.

    Raises:
        ProofError: It does not hold.
    """
    checkpoint = parse_checkpoint(proof.checkpoint)
    try:
        public = from_hex(proof.public_key)
        path = [from_hex(part) for part in proof.inclusion]
    except ValueError as error:
        raise ProofError("the proof holds what is not hex") from error
    if sha256(public).hexdigest() != checkpoint.key_id or not checkpoint.is_signed_by(public):
        raise ProofError("the checkpoint is not signed by the key that it names")
    if entry.computed_hash() != entry.entry_hash:
        raise ProofError("the entry's hash is not that of its content")
    leaf = merkle.leaf_hash(bytes.fromhex(entry.entry_hash))
    if not merkle.check_inclusion(leaf, entry.index, checkpoint.size, path, checkpoint.root):
        raise ProofError("the path does not lead from the entry to the checkpoint's root")
    return checkpoint


def check_against(entries: list[SpineEntry], checkpoint: Checkpoint) -> None:
    """Check that the spine still begins with what a checkpoint, kept elsewhere, says.

    Raises:
        ProofError: It is shorter, or was rewritten.
    """
    if len(entries) < checkpoint.size:
        raise ProofError(
            f"the spine has {len(entries)} entries, the checkpoint says {checkpoint.size}"
        )
    if merkle.root(leaf_hashes(entries[: checkpoint.size])) != checkpoint.root:
        raise ProofError("the spine was rewritten since the checkpoint was made")
