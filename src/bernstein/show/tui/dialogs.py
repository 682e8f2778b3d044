"""What is shown above the thread: a row in full, a step to jump to, what waits, the keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.widgets.option_list import Option

from bernstein.fold.words import plain
from bernstein.show.tui.choices import Choices

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from bernstein.canonical import JsonValue
    from bernstein.runner.pending import PendingCall
    from bernstein.seal.approvals import Decision


def inert(text: str) -> Content:
    """A text of a run: never markup, and nothing that a terminal acts on."""
    return Content("\n".join(plain(line) for line in text.split("\n")))


class TextDialog(ModalScreen[None]):
    """A text to read."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "back"),
    ]

    def __init__(self, title: str, text: str) -> None:
        """Show a text under a title."""
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """The title, the text, and how to leave it."""
        with Vertical(classes="dialog"):
            yield Static(inert(self._title), classes="title")
            with VerticalScroll(can_focus=True) as scroll:
                yield Static(inert(self._text))
            yield Static(Content("esc  back"), classes="keys")
        scroll.focus()


def row_dialog(
    place: int, value: dict[str, JsonValue], state: str, text: str | None = None
) -> TextDialog:
    """A row in full, and the text that its digest is of."""
    facts = "\n".join(f"{name:<12} {value[name]}" for name in _FACTS if name in value)
    payload = json.dumps(value.get("payload"), indent=2, ensure_ascii=False, sort_keys=True)
    said = "" if text is None else f"{text[:_MOST_CHARS]}{_CUT if text[_MOST_CHARS:] else ''}\n\n"
    return TextDialog(f"row {place}: {state}", f"{said}{facts}\n\n{payload}")


_MOST_CHARS = 100_000
_CUT = "… (cut here: bernstein show RUN --answers)"
_FACTS = ("event", "lane", "ts", "event_hash", "payload_hash", "prev_hash")


class StepDialog(ModalScreen[int | None]):
    """The steps of the run; gives the row of the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss(None)", "back")]

    def __init__(self, steps: list[tuple[str, int]]) -> None:
        """Offer steps, each as its line and the row at which it began."""
        super().__init__()
        self._steps = steps

    def compose(self) -> ComposeResult:
        """The list."""
        with Vertical(classes="dialog"):
            yield Static(Content("jump to a step"), classes="title")
            yield Choices(*(Option(inert(line), id=str(row)) for line, row in self._steps))
            yield Static(Content("enter  jump   esc  back"), classes="keys")

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        """A step was chosen."""
        self.dismiss(int(event.option.id or 0))


class DecideDialog(ModalScreen[tuple[int, "Decision"] | None]):
    """The calls that wait, one at a time, with all of what each asks for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "back"),
        Binding("y", "decide('approved')", "approve"),
        Binding("x", "decide('denied')", "deny"),
        Binding("right,tab", "turn(1)", "next"),
        Binding("left,shift+tab", "turn(-1)", "the one before"),
    ]

    def __init__(self, calls: list[PendingCall]) -> None:
        """Show calls to decide on."""
        super().__init__()
        self._calls = calls
        self._at = 0

    def compose(self) -> ComposeResult:
        """The call, what it asks for, and what can be said."""
        with Vertical(classes="dialog"):
            yield Static(classes="title", id="what")
            with VerticalScroll(can_focus=True) as scroll:
                yield Static(id="asked")
            yield Static(Content("y  approve   x  deny   ←→ another   esc  back"), classes="keys")
        scroll.focus()

    def on_mount(self) -> None:
        """Show the first."""
        self.action_turn(0)

    def action_turn(self, by: int) -> None:
        """Show another call."""
        self._at = (self._at + by) % len(self._calls)
        call = self._calls[self._at]
        which = f" ({self._at + 1} of {len(self._calls)})" if len(self._calls) > 1 else ""
        self.query_one("#what", Static).update(
            inert(f"let {call.name} run?{which}  {call.call_id}, row {call.row.index}")
        )
        asked = call.asked or "what it asks for cannot be read here: it can only be denied"
        self.query_one("#asked", Static).update(inert(asked))

    def action_decide(self, decision: Decision) -> None:
        """Say so."""
        if decision == "denied" or self._calls[self._at].asked:
            self.dismiss((self._at, decision))


class LeaveDialog(ModalScreen[str | None]):
    """What becomes of a run that goes on when its view is left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "back"),
        Binding("l", "dismiss('leave')", "leave it running"),
        Binding("e,ctrl+c", "dismiss('end')", "end it"),
    ]

    def compose(self) -> ComposeResult:
        """The question."""
        with Vertical(classes="dialog small"):
            yield Static(Content("The run goes on."), classes="title")
            yield Static(
                Content("l  leave the view, and wait for its end\ne  end it, as Ctrl-C does")
            )
            yield Static(Content("esc  back"), classes="keys")


HELP = """\
arrows, PageUp, PageDown   move
Home, End                  the first row; the newest, and follow it
Enter                      the row in full
/                          search; n the next hit, N the one before
f, F                       the next failure, the one before
s                          jump to a step
a, d                       decide on what waits: approve or deny
r, Esc                     the runs
q, Ctrl-C                  quit

✓  the hash of the row was recomputed, and holds
✗  it does not
?  the row is behind one that does not hold
"""
