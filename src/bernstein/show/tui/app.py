"""The screens: the runs, and one run as its thread."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Footer, Input, Static
from textual.worker import WorkerFailed

from bernstein.canonical import decode_strict
from bernstein.errors import BernsteinError, CanonicalError
from bernstein.seal.approvals import decide_once
from bernstein.seal.evidence import verify_run
from bernstein.seal.inside import refuse_inside_run
from bernstein.show.decide import waiting_calls
from bernstein.show.told import told_run
from bernstein.show.tui.dialogs import (
    HELP,
    DecideDialog,
    LeaveDialog,
    StepDialog,
    TextDialog,
    inert,
    row_dialog,
)
from bernstein.show.tui.feed import Feed
from bernstein.show.tui.rows import RowList
from bernstein.show.tui.runs import Own, RunsScreen
from bernstein.show.tui.steps import StepPane, step_lines
from bernstein.show.tui.waiting import Waiting, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from bernstein.rundir import RunDir, SddDir
    from bernstein.runner.pending import PendingCall
    from bernstein.seal.approvals import Decision
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
_LOOK_S = 1.0
_WIDE = 120  # columns
_GOES_ON = {"running", "parked"}


class ThreadApp(App[str | None]):
    """The view; it ends with ``leave`` or ``end`` where it was left while its own run went on."""

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


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class RunScreen(Own):
    """One run."""

    HORIZONTAL_BREAKPOINTS: ClassVar[list[tuple[int, str]]] = [  # type: ignore[misc]
        (0, "-narrow"),
        (_WIDE, "-wide"),
    ]
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "app.leave", "quit"),
        Binding("r,escape", "runs", "runs"),
        Binding("slash", "search", "search"),
        Binding("n", "hit(1)", show=False),
        Binding("N", "hit(-1)", show=False),
        Binding("f", "failure(1)", "failure"),
        Binding("F", "failure(-1)", show=False),
        Binding("s", "step", "step"),
        Binding("a,d", "decide", "decide"),
        Binding("question_mark", "keys", "keys"),
    ]

    def __init__(self, run: RunDir) -> None:
        """Show a run with a journal."""
        super().__init__()
        self.run = run
        self.feed = Feed(run)
        self._query = ""
        self._seal = ""
        self._sealed: object = None
        self._looks = asyncio.Event()

    def compose(self) -> ComposeResult:
        """What it came to, its rows and steps, the search, and a note."""
        yield Static(id="head")
        yield Static(id="sums")
        yield Static(id="waits")
        with Horizontal(id="thread"):
            yield RowList(self.feed)
            yield StepPane(self.feed)
        yield Static(id="note")
        yield Input(id="search", placeholder="search", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(RowList).focus()
        self._waiting = Waiting(self.view.sdd, self.view.keys.folder, self.run)
        self.run_worker(self._read())
        self.run_worker(self._watch())

    def on_unmount(self) -> None:
        """Give the journal up."""
        self.feed.close()

    async def _read(self) -> None:
        rows = self.query_one(RowList)
        try:
            async for batch in self.view.source(self.run):
                if batch:
                    self.feed.take(batch)
                    rows.grow()
                    self._draw()
                self._looks.set()
        except (BernsteinError, OSError) as error:
            self._tell(f"no more rows are shown: {error}")

    async def _watch(self) -> None:
        """Look at what is beside the rows: when some have come, and each second."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looks.wait(), _LOOK_S)
            self._looks.clear()
            try:
                await self._look()
            except (BernsteinError, OSError) as error:
                self._tell(str(error))
            self._draw()

    async def _look(self) -> None:
        """See what waits, whether rows are gone, and what the evidence of an ended run says."""
        self.feed.notice_cut()
        is_running = self.run.is_running()
        status = told_run(self.run)["status"]
        undecided = list(self.feed.undecided.values()) if status in _GOES_ON else []
        await asyncio.to_thread(self._waiting.look, undecided)
        if is_running or status == "parked":
            self._seal, self._sealed = "", None
        elif (files := _marks(self.run)) != self._sealed:
            project = self.view.sdd.project_of(self.run)
            verdict = await asyncio.to_thread(verify_run, self.run, project, self.view.keys)
            self._seal = verdict.verdict + (f" ({verdict.reason})" if verdict.reason else "")
            self._sealed = files

    def _draw(self) -> None:
        feed, rows = self.feed, self.query_one(RowList)
        told = told_run(self.run)
        if feed.problem is None:
            chain = f"{_counted(feed.checked, 'row')} verified"
        else:
            chain = f"broken at row {feed.problem.step_index}: {feed.problem.reason}"
        seal = f" · {self._seal}" if self._seal else ""
        self.query_one("#head", Static).update(
            inert(f"{told['name'] or self.run.run_id}  {told['status']} · {chain}{seal}")
        )
        parts = [
            f"row {rows.place + 1 if len(feed) else 0} of {len(feed)}",
            _counted(feed.calls, "call"),
            _counted(feed.tools, "tool"),
            _counted(len(feed.failures), "failure"),
        ]
        done = feed.done()
        for band, sums in done.usage_totals.items() if done else ():
            if any(sums.values()):
                tokens = f"{sums['inputTokens'] + sums['cachedInputTokens']:,} in"
                parts.append(f"{band} {tokens}, {sums['outputTokens']:,} out")
        self.query_one("#sums", Static).update(inert(" · ".join(parts)))
        waits = self.query_one("#waits", Static)
        waits.display = bool(self._waiting.calls)
        for call in self._waiting.calls[:1]:
            more = len(self._waiting.calls) - 1
            and_more = f" and {more} more" if more else ""
            waits.update(inert(f"{call.name}{and_more} waits: a approve, d deny   {call.call_id}"))
        self.query_one(StepPane).show(feed.row(rows.place).lane if len(feed) else "")

    def on_row_list_moved(self) -> None:
        """Say which row is chosen."""
        self._draw()

    # --- keys

    def action_runs(self) -> None:
        """Go back to the list, or from the search to the rows."""
        field = self.query_one("#search", Input)
        if field.has_focus:
            field.display = False
            self.query_one(RowList).focus()
        else:
            self.app.pop_screen()

    def action_keys(self) -> None:
        """Say what the keys do."""
        self.app.push_screen(TextDialog("keys", HELP))

    def on_row_list_opened(self, opened: RowList.Opened) -> None:
        """Show a row in full."""
        place = opened.place
        feed = self.feed
        try:
            value = decode_strict(feed.data(place))
        except CanonicalError:
            value = {}
        state = "it holds" if place < feed.checked else "it is behind a broken row"
        if feed.problem is not None and place == feed.problem.step_index:
            state = f"broken: {feed.problem.reason}"
        self.app.push_screen(row_dialog(place, value, state))

    def action_failure(self, way: int) -> None:
        """Go to the next failure."""
        rows = self.query_one(RowList)
        places = self.feed.failures if way > 0 else reversed(self.feed.failures)
        found = next((place for place in places if (place - rows.place) * way > 0), None)
        self._go(found, "no more failures that way")

    def action_step(self) -> None:
        """Choose a step to jump to."""
        steps = [(f"{line.status:<8} {line.name}", line.place) for line in step_lines(self.feed)]
        if steps:
            self.app.push_screen(StepDialog(steps), self._go)
        else:
            self.notify("there are no steps")

    def _go(self, place: int | None, otherwise: str = "") -> None:
        if place is not None:
            self.query_one(RowList).choose(place)
        elif otherwise:
            self.notify(otherwise)

    def action_search(self) -> None:
        """Ask what to search for."""
        field = self.query_one("#search", Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Search."""
        self._query = event.value
        event.input.display = False
        self.query_one(RowList).focus()
        self.action_hit(1)

    def action_hit(self, way: int) -> None:
        """Go to the next row that holds what is searched for."""
        if self._query:
            rows = self.query_one(RowList)
            self._go(self.feed.find(self._query, rows.place + way, way), "no more hits that way")

    def action_decide(self) -> None:
        """Show what waits for a decision."""
        self.run_worker(self._decide(), exclusive=True, group="decide")

    async def _decide(self) -> None:
        try:
            view = self.view
            calls = await asyncio.to_thread(waiting_calls, view.sdd, view.keys.folder, self.run)
        except (BernsteinError, OSError) as error:
            self._tell(str(error))
            return
        if not calls:
            self.notify("nothing waits for a decision")
            return
        said = await self.app.push_screen_wait(DecideDialog(calls))
        if said is not None:
            try:
                self._tell(await asyncio.to_thread(self._say, calls[said[0]], said[1]))
            except (BernsteinError, OSError) as error:
                self._tell(str(error))

    def _say(self, call: PendingCall, decision: Decision) -> str:
        view = self.view
        refuse_inside_run(view.sdd)
        said, is_new = decide_once(view.sdd, view.keys.folder, call.row, decision, view.actor)
        if not is_new:
            return f"{call.call_id} was {said.decision} before, by {said.actor}: that stands"
        more = "" if self.run.is_running() else f"; go on: bernstein run --resume {self.run.run_id}"
        return f"{call.call_id} ({call.name}): {said.decision} by {said.actor}{more}"

    def _tell(self, text: str) -> None:
        self.query_one("#note", Static).update(inert(text))


def _marks(run: RunDir) -> list[tuple[int, int] | None]:
    """What is another where somebody wrote into the files of a run."""
    return [mark_of(path) for path in (run.journal, run.seal, run.run_json)]
