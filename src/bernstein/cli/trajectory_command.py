"""``bernstein trajectory``."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import click

from bernstein.chain.verify import ChainCheck, check_chain
from bernstein.cli.app import Context, print_json
from bernstein.errors import RecordingError, UnknownRunError, UsageError
from bernstein.fold.run import project
from bernstein.fold.source import EventFile
from bernstein.fold.tool_calls import project_tool_calls, tool_calls_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bernstein.rundir import RunDir

_EXAMPLE = """\b
Examples:
  bernstein trajectory latest
  bernstein trajectory latest --tool-calls
  bernstein trajectory latest --usage
  bernstein trajectory events.jsonl --run-id r1
"""


@click.command("trajectory", epilog=_EXAMPLE)
@click.argument("source", metavar="RUN | FILE | -", required=False)
@click.option("--tool-calls", is_flag=True, help="Print the tool calls in place of the run.")
@click.option("--usage", is_flag=True, help="Print what model calls used in place of the run.")
@click.option("--json", "as_json", is_flag=True, help="Print it indented, for reading.")
@click.option("--run-id", default="", help="Of a FILE or -: the run that its rows are of.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of an event.")
@click.pass_obj
def command(
    context: Context,
    source: str | None,
    *,
    tool_calls: bool,
    usage: bool,
    as_json: bool,
    run_id: str,
    schema: bool,
) -> int:
    """Fold a run's events into what it did: one line, with the same bytes each time.

    The events are a run's journal, or a FILE or standard input with an event a line, in any order:
    rows of a journal, or envelopes. An event that is none is refused, with its line.
    """
    if schema:
        from bernstein.fold.schema import event_schema  # noqa: PLC0415 - only here

        print_json(event_schema())
        return 0
    if source is None:
        raise UsageError("name a run, a file or -\n  for example: bernstein trajectory latest")
    if tool_calls and usage:
        raise UsageError("--tool-calls and --usage are two folds\n  print one, then the other")
    with events_of(context, source, run_id) as events:
        if tool_calls:
            line = tool_calls_bytes(project_tool_calls(events))
        elif usage:
            from bernstein.fold.usage import project_usage  # noqa: PLC0415 - only here

            line = project_usage(events).to_bytes()
        else:
            line = project(events).to_bytes()
    if as_json:
        print_json(json.loads(line))
    else:
        sys.stdout.buffer.write(line + b"\n")
    return 0


@contextmanager
def events_of(context: Context, source: str, run_id: str) -> Iterator[EventFile]:
    """The events that the command's argument names: of a run, a file, or standard input.

    Raises:
        UsageError: A run with ``--run-id``.
        UnknownRunError: There is no such run or file.
        RecordingError: The chain of the run's journal does not hold.
    """
    path = Path(source)
    if source == "-" or path.is_fifo():
        # To a file, since they are gone through twice where they are out of order.
        with NamedTemporaryFile() as copy:
            with sys.stdin.buffer if source == "-" else path.open("rb") as given:
                shutil.copyfileobj(given, copy)
            copy.flush()
            yield EventFile(Path(copy.name), run_id)
    elif path.is_file():
        yield EventFile(path, run_id)
    elif run_id:
        raise UsageError("--run-id is for rows of a FILE or -\n  a run of this project has its own")
    else:
        run = context.sdd.find_shown(source)
        check_journal(run)
        yield EventFile(run.journal, run.run_id)


def check_journal(run: RunDir) -> ChainCheck:
    """What the chain of a run's journal comes to, where it holds.

    Raises:
        UnknownRunError: There is no journal.
        RecordingError: The chain does not hold.
    """
    if not run.journal.exists():
        raise UnknownRunError(f"run {run.run_id} has no journal\n  list the runs: bernstein runs")
    chain = check_chain(run.journal)
    if chain.reason is not None:
        raise RecordingError(
            f"the journal of {run.run_id} does not hold at row {chain.step_index} "
            f"({chain.reason})\n  see: bernstein replay {run.run_id} --verify"
        )
    return chain
