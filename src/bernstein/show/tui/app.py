"""The view in a terminal: its screens, its looks, and how it is left."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.worker import WorkerFailed

from bernstein.show.tui.dialogs import LeaveDialog
from bernstein.show.tui.run import RunScreen
from bernstein.show.tui.runs import RunsScreen

if TYPE_CHECKING:
    from collections.abc import Callable

    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore
    from bernstein.show.tui.sources import Source

_CSS = """
Screen { background: ansi_default; color: ansi_default; }
#thread { height: 1fr; }
RowList { width: 1fr; background: ansi_default; scrollbar-size: 0 0; }
StepPane { width: 40; background: ansi_default; scrollbar-size: 0 0; display: none;
  border-left: solid ansi_bright_black; }
.-wide StepPane { display: block; }
#head { height: 1; text-style: bold; }
#sums { height: 1; }
#waits { height: 1; text-style: bold; color: ansi_magenta; display: none; }
#note { height: auto; max-height: 3; }
#search { height: 1; border: none; padding: 0; display: none; }
Choices { height: 1fr; border: none; background: ansi_default; scrollbar-size-vertical: 1;
  text-wrap: nowrap; text-overflow: ellipsis; }
Choices > .option-list--option-highlighted, Choices:focus > .option-list--option-highlighted {
  color: ansi_default; background: ansi_default; text-style: none; }
ModalScreen { align: center middle; }
.dialog { width: 90%; max-width: 110; height: 80%; border: round ansi_default; padding: 0 1;
  background: ansi_default; }
.small { height: 6; width: 52; }
.dialog VerticalScroll { height: 1fr; }
.title { text-style: bold; }
.keys { text-style: dim; }
"""
TERMINATED = "terminated"


class ThreadApp(App[str | None]):
    """The view; it ends with ``leave`` or ``end`` where it was left while its own run went on, and
    with ``TERMINATED`` where it was told to end.
    """

    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "leave", show=False, system=True)]

    def __init__(
        self, sdd: SddDir, keys: KeyStore, source: Source, actor: str, run: RunDir | None = None
    ) -> None:
        """Show a run, or the list of them.

        Args:
            sdd: The project.
            keys: What seals are checked with, and decisions signed.
            source: Where rows come from.
            actor: Who decides.
            run: The run; None: the list.
        """
        super().__init__(ansi_color=True)  # from the first, or NO_COLOR is black on black
        self.theme = "ansi-dark"  # the terminal's own colours, light or dark
        self.sdd = sdd
        self.keys = keys
        self.source = source
        self.actor = actor
        self.is_owned: Callable[[], bool] = lambda: False
        self._run = run

    def on_mount(self) -> None:
        """Show what was asked for."""
        # Raised in the midst of a task it could be lost there, and the terminal left as it is.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, TERMINATED)
        self.push_screen(RunsScreen())
        if self._run is not None:
            self.open(self._run)

    def open(self, run: RunDir) -> None:
        """Show a run that has a journal."""
        self.push_screen(RunScreen(run))

    @property
    def fault(self) -> BaseException | None:
        """What went wrong, where the view ended by that."""
        error = self._exception
        return error.error if isinstance(error, WorkerFailed) else error

    def _fatal_error(self) -> None:
        """End; ``fault`` says why. Textual would print every variable of every frame."""
        self._close_messages_no_wait()

    def action_leave(self) -> None:
        """Quit; of a run of its own that goes on it is asked what becomes of it."""
        if not self.is_owned():
            self.exit(None)
        elif not isinstance(self.screen, LeaveDialog):
            self.push_screen(LeaveDialog(), self._leave)

    async def action_quit(self) -> None:
        """The same, by the key that every such program has."""
        self.action_leave()

    def _leave(self, answer: str | None) -> None:
        if answer is not None:
            self.exit(answer)
