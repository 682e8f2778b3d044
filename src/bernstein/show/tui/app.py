"""The screens: the runs, and one run as its thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

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

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from bernstein.canonical import JsonObject
    from bernstein.rundir import RunDir, SddDir
    from bernstein.runner.pending import PendingCall
    from bernstein.seal.approvals import Decision
    from bernstein.seal.signing import KeyStore
    from bernstein.show.tui.sources import Source

_CSS = """
Screen { background: ansi_default; color: ansi_default; }
RowList { height: 1fr; background: ansi_default; scrollbar-size: 0 0; }
#head { height: 1; text-style: bold; }
#sums { height: 1; }
#note { height: auto; max-height: 3; }
#search { height: 1; border: none; padding: 0; display: none; }
OptionList { height: 1fr; border: none; background: ansi_default; }
ModalScreen { align: center middle; }
.dialog { width: 90%; max-width: 110; height: 80%; border: round ansi_default; padding: 0 1;
  background: ansi_default; }
.small { height: 8; width: 52; }
.dialog VerticalScroll { height: 1fr; }
.title { text-style: bold; }
.keys { text-style: dim; }
"""
_RUNS_EVERY_S = 2.0


class ThreadApp(App[str | None]):
    """The view; it ends with ``leave`` or ``end`` where it was left while its own run went on."""

    CSS = _CSS
    ENABLE_COMMAND_PALETTE = False

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
        super().__init__()
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
            self.push_screen(RunScreen(self._run))


class _Own(Screen[None]):
    @property
    def view(self) -> ThreadApp:
        app = self.app
        assert isinstance(app, ThreadApp)
        return app


class RunsScreen(_Own):
    """The runs of the project, newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape", "app.exit", "quit")]

    def compose(self) -> ComposeResult:
        """The list."""
        yield Static(Content("runs"), id="head")
        yield OptionList()
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Read the list, now and then again."""
        self._lines: list[tuple[str, str]] | None = None
        self._read()
        self.set_interval(_RUNS_EVERY_S, self._read)

    def _read(self) -> None:
        runs = [told_run(run) for run in reversed(self.view.sdd.list_runs())]
        lines = [(str(run["run_id"]), _run_line(run)) for run in runs]
        if lines == self._lines:
            return
        self._lines = lines
        options = self.query_one(OptionList)
        chosen = options.highlighted
        options.clear_options()
        options.add_options(Option(inert(line), id=run_id) for run_id, line in lines)
        if lines:
            options.highlighted = min(chosen or 0, len(lines) - 1)
        else:
            options.add_option(Option("no runs yet: bernstein run plan.yaml", disabled=True))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open a run."""
        run = self.view.sdd.run(str(event.option.id))
        if run.journal.exists():
            self.app.push_screen(RunScreen(run))
        else:
            self.notify("it has no journal", severity="warning")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _run_line(run: JsonObject) -> str:
    of = f" (replay of {run['source_run']})" if run["source_run"] else ""
    return f"{run['run_id']}  {run['status']:<11}  {run['name'] or ''}{of}"


class RunScreen(_Own):
    """One run."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "quit"),
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
        self._has_ended: bool | None = None

    def compose(self) -> ComposeResult:
        """What it came to, its rows, the search, and a note."""
        yield Static(id="head")
        yield Static(id="sums")
        yield RowList(self.feed)
        yield Static(id="note")
        yield Input(id="search", placeholder="search", compact=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(RowList).focus()
        self.run_worker(self._read(), exit_on_error=True)

    def on_unmount(self) -> None:
        """Give the journal up."""
        self.feed.close()

    async def _read(self) -> None:
        rows = self.query_one(RowList)
        async for batch in self.view.source(self.run):
            self.feed.take(batch)
            rows.grow()
            await self._look()

    async def _look(self) -> None:
        """Show what the rows come to, and of a run that has ended what its evidence says."""
        status = self.run.status()
        has_ended = not self.run.is_running()
        if has_ended and not self._has_ended:
            verdict = await asyncio.to_thread(
                verify_run, self.run, self.view.sdd.project_of(self.run), self.view.keys
            )
            self._seal = verdict.verdict + (f" ({verdict.reason})" if verdict.reason else "")
        self._has_ended = has_ended
        self._draw(status)

    def _draw(self, status: str) -> None:
        feed = self.feed
        told = told_run(self.run)
        if feed.problem is None:
            chain = f"{_counted(feed.checked, 'row')} verified"
        else:
            chain = f"broken at row {feed.problem.step_index}: {feed.problem.reason}"
        seal = f" · {self._seal}" if self._seal else ""
        self.query_one("#head", Static).update(
            inert(f"{told['name'] or self.run.run_id}  {status} · {chain}{seal}")
        )
        place = self.query_one(RowList).place + 1 if len(feed) else 0
        parts = [
            f"row {place} of {len(feed)}",
            _counted(feed.calls, "call"),
            _counted(feed.tools, "tool"),
            _counted(len(feed.failures), "failure"),
        ]
        done = feed.done()
        for band, sums in done.usage_totals.items() if done else ():
            if any(sums.values()):
                tokens = f"{sums['inputTokens'] + sums['cachedInputTokens']:,} in"
                parts.append(f"{band} {tokens}, {sums['outputTokens']:,} out")
        if feed.undecided and status in {"running", "parked"}:
            parts.append(f"{len(feed.undecided)} undecided: a")
        self.query_one("#sums", Static).update(inert(" · ".join(parts)))

    def on_row_list_moved(self) -> None:
        """Say which row is chosen."""
        self._draw(self.run.status())

    # --- keys

    def action_leave(self) -> None:
        """Quit; of a run of its own that goes on it is asked what becomes of it."""
        if not self.view.is_owned():
            self.app.exit(None)
            return

        def leave(answer: str | None) -> None:
            if answer is not None:
                self.app.exit(answer)

        self.app.push_screen(LeaveDialog(), leave)

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
        try:
            value = decode_strict(self.feed.data(place))
        except CanonicalError:
            value = {}
        feed = self.feed
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
        done = self.feed.done()
        steps: list[tuple[str, int]] = []

        def add(nodes: list[JsonObject], depth: int) -> None:
            for node in nodes:
                name = node.get("label") or node["stepId"]
                line = f"{node['status']:<8} {'  ' * depth}{name}"
                steps.append((line, self.feed.step_rows.get(node["stepId"], 0)))
                add(node["children"], depth + 1)

        add(done.steps if done else [], 0)
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
