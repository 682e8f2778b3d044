"""Follows a journal as it grows: the rows that are there, then those that come, until the run ends.

Rule: nothing is kept of what was read. A reader that is slow reads later, and costs nobody memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bernstein.events.trajectory import RUN_FINISHED
from bernstein.fold.thread import StreamEvent, seek_behind, stream_event
from bernstein.jsonl import MAX_LINE_BYTES, open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bernstein.rundir import RunDir

POLL_S = 0.05


def follow(
    run: RunDir, after_index: int | None, wait: Callable[[float], object]
) -> Iterator[StreamEvent]:
    """The events of a run behind ``after_index``, as they come; ends with the run.

    Args:
        run: A run with a journal.
        after_index: The last row that was seen, or None.
        wait: Lets the given number of seconds pass where there is nothing to read.
    Raises:
        UsageError: There is no such row.
    """
    with open_regular(run.journal) as file:
        if after_index is not None:
            seek_behind(file, after_index)
        while True:
            # Before the read: what a run writes last is there once it runs no more.
            is_running = run.is_running()
            at = file.tell()
            line = file.readline(MAX_LINE_BYTES + 1)
            event = stream_event(line) if line else None
            if event is not None:
                yield event
                if event.event == RUN_FINISHED:
                    return
            elif line.endswith(b"\n") or len(line) > MAX_LINE_BYTES or not is_running:
                return
            else:
                file.seek(at)
                wait(POLL_S)
