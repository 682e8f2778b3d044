"""The members of a zip file of somebody else's, never more of them than may be read.

Rule: what an entry says of sizes is a claim; what is unpacked is counted.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from bernstein.errors import RecordingError

MAX_MEMBER_BYTES = 2**28
MAX_ARCHIVE_BYTES = 2**31
_ZSTANDARD = 93  # how newer logs of Inspect are packed
_MAX_WINDOW_BYTES = 2**27
_HEADER_BYTES = 30
# What a zip file that is none, or is broken, raises.
_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, struct.error, NotImplementedError, RuntimeError, EOFError),
    *(LookupError, OSError, OverflowError, ValueError),
)


class Archive:
    """A zip file in memory."""

    def __init__(self, data: bytes) -> None:
        """Read its directory.

        Raises:
            RecordingError: It is none, or broken.
        """
        self._data = data
        self._left_bytes = MAX_ARCHIVE_BYTES
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
        except _BROKEN as error:
            raise _unpackable(error) from error
        # In the file's order; of two of one name the last is the one.
        self.names = list(dict.fromkeys(self._archive.namelist()))

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            RecordingError: It is longer than may be read, packed in a way that is not read here, or
                broken.
        """
        limit = min(MAX_MEMBER_BYTES, self._left_bytes)
        try:
            info = self._archive.getinfo(name)
            if info.compress_type in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                with self._archive.open(info) as member:
                    data = member.read(limit + 1)
            elif info.compress_type == _ZSTANDARD:
                data = _unpacked(self._packed(info), limit)
            else:
                packing = info.compress_type
                raise RecordingError(
                    f"{name[:100]!a} is packed in a way that is not read ({packing})"
                )
        except _BROKEN as error:
            raise _unpackable(error) from error
        if len(data) > limit:
            raise RecordingError(f"{name[:100]!a} unpacks to more than {limit} bytes")
        if zlib.crc32(data) != info.CRC:
            raise RecordingError(f"{name[:100]!a} is not what was packed")
        self._left_bytes -= len(data)
        return data

    def _packed(self, info: zipfile.ZipInfo) -> bytes:
        """A member as it stands in the file, behind its own header."""
        begin = info.header_offset
        lengths = struct.unpack("<HH", self._data[begin + 26 : begin + _HEADER_BYTES])
        begin += _HEADER_BYTES + sum(lengths)
        return self._data[begin : begin + info.compress_size]


def _unpacked(packed: bytes, limit: int) -> bytes:
    """At most one byte more than ``limit`` of what was packed with Zstandard.

    Raises:
        RecordingError: It is broken, or nothing here unpacks it.
    """
    try:
        import zstandard  # noqa: PLC0415 - not a dependency: only newer logs need it
    except ImportError as error:
        raise RecordingError(
            "this log is packed with Zstandard, which nothing here unpacks\n"
            "  install it: pip install 'bernstein-replay[zstandard]'\n"
            "  or write the log as JSON: inspect log convert"
        ) from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    try:
        with unpacker.stream_reader(io.BytesIO(packed), read_across_frames=True) as stream:
            data: bytes = stream.read(limit + 1)
    except (zstandard.ZstdError, MemoryError) as error:
        raise _unpackable(error) from error
    return data


def _unpackable(error: BaseException) -> RecordingError:
    return RecordingError(f"this log cannot be unpacked: {error}")
