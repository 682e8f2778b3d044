"""``bernstein run --tui``: the run is a command of its own, and this one shows it.

So what becomes of the view, or of its terminal, is nothing to the run; a signal to this command is
one to the run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, BinaryIO

from bernstein.cli.tui_command import refuse_poor_terminal, show_thread
from bernstein.rundir import is_run_id

if TYPE_CHECKING:
    from bernstein.cli.app import Context
    from bernstein.rundir import RunDir

_LOOK_S = 0.05
_GOES_ON = "the run goes on until its end; Ctrl-C ends it\n"
_ENDS = "the run is being ended\n"


def run_in_view(context: Context) -> int:
    """Run what this command line asks for, show it, and give its exit code.

    Raises:
        UsageError: This is no terminal that can show it.
    """
    refuse_poor_terminal()
    # In its place: behind a "--" it would be no option.
    arguments = ["--wait" if word == "--tui" else word for word in context.arguments]
    # Its words go into files: a pipe would end with this process.
    with ExitStack() as stack:
        said, told = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        child = subprocess.Popen(  # noqa: S603 - the command that was asked for
            [sys.executable, "-P", "-m", "bernstein", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=said,
            process_group=0,  # Ctrl-C at the terminal is for the view
        )
        word = _GOES_ON
        try:
            if (run := _run_of(context, child, said)) is not None:
                answer = show_thread(context, run, is_owned=lambda: child.poll() is None)
                if answer == "end":
                    raise KeyboardInterrupt  # noqa: TRY301 - as if it had come from the terminal
        except KeyboardInterrupt:
            word = _ENDS
            child.send_signal(signal.SIGINT)
        except SystemExit:  # what SIGTERM is made of
            word = _ENDS
            child.terminate()
        finally:
            # Also where the view ended by a fault: that is told behind what the run says.
            code = _wait(child, word)
            for file, stream in ((said, sys.stderr), (told, sys.stdout)):
                file.seek(0)
                stream.write(file.read().decode("utf-8", "replace"))
        return code


def _run_of(context: Context, child: subprocess.Popen[bytes], said: BinaryIO) -> RunDir | None:
    """The run that a command has begun; None where it ends without one."""
    while True:
        has_ended = child.poll() is not None
        said.seek(0)
        for line in said.read().decode("utf-8", "replace").splitlines(keepends=True):
            # "run ID: name, N steps"
            run_id = line.removeprefix("run ").partition(": ")[0]
            if line.startswith("run ") and line.endswith("\n") and is_run_id(run_id):
                run = context.sdd.run(run_id)
                if run.has_begun():
                    return run
        if has_ended:
            return None
        time.sleep(_LOOK_S)


def _wait(child: subprocess.Popen[bytes], word: str) -> int:
    """The exit code of a command, once it has ended; a signal to us is one to it."""
    if child.poll() is None:
        sys.stderr.write(word)
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
        except SystemExit:
            child.terminate()
        else:
            return code if code >= 0 else 128 - code
