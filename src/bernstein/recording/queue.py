"""Recorded answers in the order in which they are served: first in, first out, per lane and key."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from bernstein.errors import RecordingError
from bernstein.jsonl import read_lines
from bernstein.recording.rows import CallRow, parse_call_row

if TYPE_CHECKING:
    from pathlib import Path


class Recording(msgspec.Struct):
    """The rows of one ``llm_calls.jsonl``.

    Attributes:
        rows: The rows in file order, which is that of ``done``.
        stale_rows: How many lines are of an older key scheme.
        has_torn_end: The last line is torn: the recording was cut while it was written.
        exists: False where there is no file.
    """

    rows: list[CallRow]
    stale_rows: int = 0
    has_torn_end: bool = False
    exists: bool = True


def load_recording(path: Path) -> Recording:
    """Read a recording.

    Raises:
        RecordingError: A whole line is not a recorded call; it names the line.
    """
    recording = Recording([])
    try:
        for number, line in enumerate(read_lines(path), 1):
            if not line.is_whole:
                recording.has_torn_end = True
                break
            try:
                row = parse_call_row(line.data)
            except RecordingError as error:
                raise RecordingError(
                    f"{path}, line {number} is damaged: {error}\n"
                    "  it is not replayed: restore the file, or record again with "
                    "BERNSTEIN_REPLAY_RUN_ID unset and BERNSTEIN_DETERMINISTIC_SEED set"
                ) from error
            if row is None:
                recording.stale_rows += 1
            else:
                recording.rows.append(row)
    except FileNotFoundError:
        recording.exists = False
    return recording


class AnswerQueue:
    """Serves each recorded row once."""

    def __init__(self, rows: list[CallRow]) -> None:
        self._rows = rows
        self._queues: dict[tuple[str, str], deque[CallRow]] = {}
        # A file is in the order of `done`; the page's FIFO is in call order, that of `seq`.
        for row in sorted(rows, key=lambda row: row.seq):
            self._queues.setdefault((row.lane, row.key), deque()).append(row)

    def take(self, lane: str, key: str) -> CallRow | None:
        """The next row for this key in this lane, or None."""
        queue = self._queues.get((lane, key))
        return queue.popleft() if queue else None

    def has_next(self, lane: str, key: str) -> bool:
        """Whether there is a row left for this key in this lane."""
        return bool(self._queues.get((lane, key)))

    def recorded(self, lane: str, key: str) -> int:
        """How many answers this key had in this lane, served ones too."""
        return sum(row.key == key and row.lane == lane for row in self._rows)
