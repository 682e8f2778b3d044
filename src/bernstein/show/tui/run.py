"""One run: what it came to, its rows and steps, and what waits."""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.css.query import NoMatches
from textual.widgets import Footer, Input, Static

from bernstein.canonical import decode_strict
from bernstein.errors import BernsteinError, CanonicalError
from bernstein.seal.approvals import decide_once
from bernstein.seal.evidence import verify_run
from bernstein.seal.inside import refuse_inside_run
from bernstein.show.decide import waiting_calls
from bernstein.show.texts import text_of
from bernstein.show.told import told_run
from bernstein.show.tui.dialogs import (
    HELP,
    DecideDialog,
    StepDialog,
    TextDialog,
    inert,
    row_dialog,
)
from bernstein.show.tui.feed import Feed
from bernstein.show.tui.rows import RowList
from bernstein.show.tui.runs import Own
from bernstein.show.tui.steps import StepPane, step_lines
from bernstein.show.tui.waiting import Waiting, mark_of

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from bernstein.canonical import JsonObject
    from bernstein.rundir import RunDir
    from bernstein.runner.pending import PendingCall
    from bernstein.seal.approvals import Decision

_LOOK_S = 1.0
_SHOW_S = 0.2
_WIDE = 120  # columns
_GOES_ON = {"running", "parked"}


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
        self._is_over = False

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
        rows, shown = self.query_one(RowList), -_SHOW_S
        try:
            async for batch in self.view.source(self.run):
                if self._is_left:
                    return
                if batch:
                    self.feed.take(batch)
                    rows.grow()
                # What they come to is not worth showing for each of many batches.
                if not batch or monotonic() - shown > _SHOW_S:
                    self._draw()
                    self._looks.set()
                    shown = monotonic()
        except (BernsteinError, OSError) as error:
            self._is_over = True
            why = error if self.run.path.exists() else "the run's folder is gone"
            self._tell(f"no more rows are shown: {why}")

    async def _watch(self) -> None:
        """Look at what is beside the rows: when some have come, and each second."""
        while not self._is_over:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looks.wait(), _LOOK_S)
            self._looks.clear()
            try:
                await self._look()
            except (BernsteinError, OSError) as error:
                if not self._is_over:
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

    @property
    def _is_left(self) -> bool:
        """Whether this screen is being taken down, and what it shows is gone already."""
        return not self.query(RowList)

    def _draw(self) -> None:
        # Of a screen that is being left its parts go one after the other.
        with contextlib.suppress(NoMatches):
            self._fill_in()

    def _fill_in(self) -> None:
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
        steps = self.query_one(StepPane)
        if steps.display:
            steps.show(feed.row(rows.place).lane if len(feed) else "")

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
        self.run_worker(self._show_row(place, value, state), exclusive=True, group="row")

    async def _show_row(self, place: int, value: JsonObject, state: str) -> None:
        """Show a row in full, with what was asked or said there."""
        project = self.view.sdd.project_of(self.run)
        index = value.get("index")
        text: str | None = None
        if isinstance(index, int):
            try:
                text = await asyncio.to_thread(text_of, self.run, project, self.view.keys, index)
            except (BernsteinError, OSError) as error:
                text = str(error)
        if self.is_current:  # else its reader went on meanwhile
            self.app.push_screen(row_dialog(place, value, state, text))

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
        with contextlib.suppress(NoMatches):
            self.query_one("#note", Static).update(inert(text))


def _marks(run: RunDir) -> list[tuple[int, int] | None]:
    """What is another where somebody wrote into the files of a run."""
    return [mark_of(path) for path in (run.journal, run.seal, run.run_json)]
