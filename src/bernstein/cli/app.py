"""Parses a command line, loads the command that it names, and turns errors into exit codes."""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bernstein.cli import COMMANDS, help_text
from bernstein.errors import BernsteinError
from bernstein.rundir import SddDir, open_sdd
from bernstein.settings import Settings, read_settings, unknown_variables, wants_tracebacks
from bernstein.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Context:
    """What every command is given: the settings, where the runs lie, and the words as typed."""

    settings: Settings
    sdd: SddDir
    arguments: tuple[str, ...]


class _App(click.Group):
    """Loads each command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"bernstein.cli.{COMMANDS[cmd_name][0]}_command")
        own = {name: name for name in ("approve", "deny", "export")} | {"import": "import_"}
        command: click.Command = getattr(module, own.get(cmd_name, "command"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib  # noqa: PLC0415 - only where a name is wrong

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)

    def get_help(self, ctx: click.Context) -> str:
        del ctx
        return help_text().rstrip("\n")


@click.group(cls=_App, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--sdd", type=click.Path(path_type=Path, file_okay=False), default=None)
@click.version_option(__version__, message="bernstein %(version)s")
@click.pass_context
def app(ctx: click.Context, sdd: Path | None) -> None:
    """The whole command line."""
    for name, near in unknown_variables().items():
        hint = f"; did you mean {near}?" if near else ""
        sys.stderr.write(f"bernstein: the variable {name} means nothing here{hint}\n")
    settings = read_settings()
    if sdd is not None:
        settings = replace(settings, sdd_dir=sdd)
    ctx.obj = Context(settings, open_sdd(settings.sdd_dir), ctx.obj)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; every failure becomes lines on standard error and an exit code."""
    logging.basicConfig(format="bernstein: %(message)s", stream=sys.stderr, level=logging.WARNING)
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        code = app.main(
            args=list(arguments),
            obj=tuple(arguments),
            prog_name="bernstein",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ""
        return _fail(f"{error.format_message()}\n  see: {where or 'bernstein'} --help", 2)
    except BernsteinError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output has left, as `head` does; keep the exit from writing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}\n  mend that and run the command again", 1)
    except Exception as error:
        if wants_tracebacks():
            raise
        return _fail(
            f"this is a fault of bernstein: {type(error).__name__}: {error}\n"
            "  see where with BERNSTEIN_DEBUG=1, and report it",
            1,
        )
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"bernstein: {message}\n")
    return code


def _on_sigterm(number: int, frame: Any) -> None:
    del frame
    sys.exit(128 + number)


def print_json(value: object) -> None:
    """Print one JSON document on standard output."""
    import json  # noqa: PLC0415 - only where a machine reads

    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
    click.echo(text.encode("utf-8", "backslashreplace"))  # a lone surrogate is escaped
