"""A list to choose from, a line each, whose chosen one is seen on any terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from textual.widgets import OptionList

if TYPE_CHECKING:
    from textual.strip import Strip

_CHOSEN = Style(reverse=True)


class Choices(OptionList):
    """Options of one line; style sheets cannot reverse the chosen one, and colours may be none."""

    def render_line(self, y: int) -> Strip:
        """A line of the list, by its place on the screen."""
        strip = super().render_line(y)
        is_chosen = y + round(self.scroll_offset.y) == self.highlighted
        return strip.apply_style(_CHOSEN) if is_chosen else strip
