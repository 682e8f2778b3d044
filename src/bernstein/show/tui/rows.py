"""The list of a run's rows: any number of them, of which only those in sight are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

if TYPE_CHECKING:
    from bernstein.show.tui.feed import Feed, ShownRow

_HOLDS, _BROKEN, _BEHIND = (
    ("✓", Style(color="green")),
    ("✗", Style(color="red", bold=True)),
    ("?", Style(bold=True)),
)
_SOFT = Style(dim=True)
_BAD = Style(color="red", bold=True)
_TOOL = Style(color="magenta")  # which is read on light and on dark
_NARROW = 100  # columns


class RowList(ScrollView, can_focus=True):
    """The rows of a feed, one of them chosen; it follows the newest until its reader goes up."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "edge(-1)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """A row was asked for in full."""

        def __init__(self, place: int) -> None:
            super().__init__()
            self.place = place

    class Moved(Message):
        """Another row was chosen."""

    def __init__(self, feed: Feed) -> None:
        """Show the rows of a feed."""
        super().__init__()
        self.feed = feed
        self.place = 0
        self.follows = True

    def grow(self) -> None:
        """Show the rows that came."""
        self.virtual_size = Size(self.size.width, len(self.feed))
        if self.follows:
            self.place = max(0, len(self.feed) - 1)
            self.scroll_to(y=len(self.feed), animate=False, force=True, immediate=True)
        self.refresh()

    def on_resize(self) -> None:
        """Keep the chosen row in sight."""
        self.virtual_size = Size(self.size.width, len(self.feed))
        self._bring_into_sight()

    def choose(self, place: int) -> None:
        """Go to a row; at the last one the list follows."""
        last = len(self.feed) - 1
        self.place = min(max(place, 0), max(last, 0))
        self.follows = self.place == last
        self._bring_into_sight()
        self.refresh()
        self.post_message(self.Moved())

    def _bring_into_sight(self) -> None:
        top, height = round(self.scroll_offset.y), self.size.height
        if self.place < top:
            self.scroll_to(y=self.place, animate=False, force=True, immediate=True)
        elif self.place >= top + height:
            y = self.place - height + 1
            self.scroll_to(y=y, animate=False, force=True, immediate=True)

    def action_move(self, rows: int) -> None:
        """Go some rows down."""
        self.choose(self.place + rows)

    def action_page(self, pages: int) -> None:
        """Go some pages down."""
        self.choose(self.place + pages * max(1, self.size.height - 1))

    def action_edge(self, way: int) -> None:
        """Go to the first row, or to the last and follow it."""
        self.choose(0 if way < 0 else len(self.feed) - 1)

    def action_open(self) -> None:
        """Ask for the chosen row in full."""
        if len(self.feed):
            self.post_message(self.Opened(self.place))

    def render_line(self, y: int) -> Strip:
        """A line of the list, by its place on the screen."""
        place = y + round(self.scroll_offset.y)
        width = self.size.width
        if place >= len(self.feed):
            return Strip.blank(width)
        strip = Strip(self._segments(self.feed.row(place), place, width)).adjust_cell_length(width)
        return strip.apply_style(Style(reverse=True)) if place == self.place else strip

    def _segments(self, row: ShownRow, place: int, width: int) -> list[Segment]:
        sign, style = self._state(place)
        lane_width = 18 if width < _NARROW else 32
        lane = row.lane if len(row.lane) <= lane_width else "…" + row.lane[1 - lane_width :]
        bad = place in self.feed.failures
        kind_style = _TOOL if row.event.startswith("tool.") else Style()
        event_style = _BAD if bad else kind_style
        return [
            Segment(f"{sign} ", style),
            Segment(f"{row.index:>5} ", _SOFT),
            Segment(f"{row.time} ", _SOFT),
            Segment(f"{lane:<{lane_width}} ", _SOFT),
            Segment(f"{row.event:<16} ", event_style),
            Segment(row.told, _BAD if bad else Style()),
        ]

    def _state(self, place: int) -> tuple[str, Style]:
        if place < self.feed.checked:
            return _HOLDS
        return _BROKEN if place == self.feed.checked else _BEHIND
