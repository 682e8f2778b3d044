"""The list of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets.option_list import Option

from bernstein.show.told import told_run
from bernstein.show.tui.choices import Choices
from bernstein.show.tui.dialogs import inert

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from bernstein.canonical import JsonObject
    from bernstein.show.tui.app import ThreadApp

_EVERY_S = 2.0
_DAY_AND_MINUTE = slice(5, 16)  # of 2026-12-01T00:00:00Z


class Own(Screen[None]):
    """A screen of the view."""

    @property
    def view(self) -> ThreadApp:
        """The view."""
        return cast("ThreadApp", self.app)


class RunsScreen(Own):
    """The runs of the project, newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open"),  # for the footer: the list takes it
        Binding("q,escape", "app.leave", "quit"),
    ]

    def compose(self) -> ComposeResult:
        """The list."""
        yield Static(Content("runs"), id="head")
        yield Choices()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Read the list, now and then again."""
        self._lines: list[tuple[str, str]] | None = None
        self._read()
        self.set_interval(_EVERY_S, self._read)

    def _read(self) -> None:
        if not self.is_current and self._lines is not None:
            return
        runs = [told_run(run) for run in reversed(self.view.sdd.list_runs())]
        lines = [(str(run["run_id"]), _line(run)) for run in runs]
        if lines == self._lines:
            return
        options = self.query_one(Choices)
        at = options.highlighted
        chosen = self._lines[at][0] if self._lines and at is not None else None
        self._lines = lines
        options.clear_options()
        options.add_options(Option(inert(line), id=run_id) for run_id, line in lines)
        if lines:
            # The run stays chosen where others come above it.
            ids = [run_id for run_id, _ in lines]
            options.highlighted = ids.index(chosen) if chosen in ids else 0
        else:
            options.add_option(Option("no runs yet: bernstein run plan.yaml", disabled=True))

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        """Open a run."""
        run = self.view.sdd.run(str(event.option.id))
        if run.journal.exists():
            self.view.open(run)
        else:
            self.notify("it has no journal", severity="warning")


def _line(run: JsonObject) -> str:
    began = str(run["started"] or "")[_DAY_AND_MINUTE].replace("T", " ")
    of = f" (replay of {run['source_run']})" if run["source_run"] else ""
    return f"{run['run_id']}  {run['status']:<11}  {began:<11}  {run['name'] or ''}{of}".rstrip()
