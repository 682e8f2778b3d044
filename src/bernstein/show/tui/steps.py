"""The steps of a run beside its rows: each with its status, below the one it is part of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from bernstein.fold.words import plain

if TYPE_CHECKING:
    from bernstein.canonical import JsonObject
    from bernstein.show.tui.feed import Feed

_STYLES = {"error": Style(color="red", bold=True), "ok": Style(color="green")}
_RUNS = Style(bold=True)


class StepLine(NamedTuple):
    """A step as a line; nothing of it controls a terminal.

    Attributes:
        step_id: Its id, as the rows have it.
        status: running, ok or error.
        name: Its label or, of its id, what that of the step above does not say; indented.
        place: The row that begins it.
    """

    step_id: str
    status: str
    name: str
    place: int


def step_lines(feed: Feed) -> list[StepLine]:
    """The steps of the rows that have come, as a tree is read."""
    lines: list[StepLine] = []

    def add(nodes: list[JsonObject], above: str, depth: int) -> None:
        for node in nodes:
            step_id = node["stepId"]
            name = node.get("label") or step_id.removeprefix(f"{above}/")
            place = feed.step_rows.get(step_id, 0)
            lines.append(StepLine(step_id, node["status"], plain("  " * depth + name), place))
            add(node["children"], step_id, depth + 1)

    done = feed.done()
    add(done.steps if done else [], "", 0)
    return lines


class StepPane(ScrollView):
    """The steps, of which that of the chosen row is marked and in sight."""

    def __init__(self, feed: Feed) -> None:
        """Show the steps of a feed."""
        super().__init__()
        self.feed = feed
        self._lines: list[StepLine] = []
        self._places: dict[str, int] = {}
        self._count = -1
        self._marked: int | None = None

    def show(self, lane: str) -> None:
        """Show the steps as they are, and mark the one that a lane is of."""
        if self._count != self.feed.step_events:
            self._count = self.feed.step_events
            self._lines = step_lines(self.feed)
            self._places = {line.step_id: at for at, line in enumerate(self._lines)}
            self.virtual_size = Size(self.size.width, len(self._lines))
        while lane and lane not in self._places:
            lane = lane.rpartition("/")[0]
        self._marked = self._places.get(lane)
        if self._marked is not None:
            top, height = round(self.scroll_offset.y), self.size.height
            if not top <= self._marked < top + height:
                y = max(0, self._marked - height // 2)
                self.scroll_to(y=y, animate=False, force=True, immediate=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """A line of the pane, by its place on the screen."""
        at, width = y + round(self.scroll_offset.y), self.size.width
        if at >= len(self._lines):
            return Strip.blank(width)
        line = self._lines[at]
        strip = Strip(
            [
                Segment(f" {line.status:<7} ", _STYLES.get(line.status, _RUNS)),
                Segment(line.name),
            ]
        ).adjust_cell_length(width)
        return strip.apply_style(Style(reverse=True)) if at == self._marked else strip
