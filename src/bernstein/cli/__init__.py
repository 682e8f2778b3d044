"""The command line: one module a command; it prints and picks exit codes, and has no logic.

Rule: nothing is imported here that ``bernstein --help`` does not need.
"""

from __future__ import annotations

import sys

# Command, module, what it does. One table for the help page and for loading.
COMMANDS = {
    "run": ("run", "Run a plan and record it, or replay a recorded run of it."),
    "record": ("record", "Run any agent and record what it asks of its provider."),
    "calibrate": ("calibrate", "Find what a client varies by itself, and rules against it."),
    "gateway": ("gateway", "Serve one run to clients that somebody else starts."),
    "approve": ("approve", "Let a tool run that a parked run asks about."),
    "deny": ("approve", "Refuse such a tool."),
    "apply": ("apply", "Bring the changes of a run's workspace over into the folder."),
    "runs": ("runs", "List the runs, newest first."),
    "show": ("show", "Show a run: steps, calls, artifacts."),
    "thread": ("thread", "Watch a run as it happens, and prove what is shown."),
    "tui": ("tui", "Show a run in the terminal, as it happens."),
    "serve": ("serve", "Show runs in a browser, as they happen."),
    "replay": ("replay", "Check a run, rebuild its state, or find where two runs part."),
    "trajectory": ("trajectory", "Print what a run did, in bytes that are the same each time."),
    "usage": ("usage", "Sum what model calls used, by band, without claims beyond."),
    "score": ("score", "Hold runs against a policy: tools, approvals, repeats, budget."),
    "save": ("save", "Write a recording into a folder to commit."),
    "verify": ("verify", "Check the evidence of many runs, or their decisions."),
    "export": ("bundle", "Write a run with its proof into one file, or as others read it."),
    "import": ("bundle", "Take a run from such a file, or make runs of files of others."),
    "forget": ("forget", "Destroy a run's prompts and answers; its proof stays."),
    "audit": ("audit", "Check the audit chain, or make it a new key."),
    "lineage": ("lineage", "The spine: what was sealed, and where a file came from."),
    "doctor": ("doctor", "Say what is here, and what a run would be blind to."),
}

_HELP = """\
Usage: bernstein [OPTIONS] COMMAND [ARGS]...

  The flight recorder of agent runs: record a run, replay it without one call
  to a provider, and prove that two executions are the same.

  Record:  BERNSTEIN_DETERMINISTIC_SEED=42 bernstein run plan.yaml
  Replay:  BERNSTEIN_REPLAY_RUN_ID=latest bernstein run plan.yaml
  Any agent: bernstein record -- CMD…, and bernstein replay latest -- CMD…

Options:
  --sdd DIR   The project's folder of runs (default: .sdd here or above).
  --version   Show the version and exit.
  --help      Show this message and exit.

Commands:
"""


def help_text() -> str:
    """The page of ``bernstein --help``."""
    return _HELP + "".join(f"  {name:<10}  {text}\n" for name, (_, text) in COMMANDS.items())


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments in ([], ["--help"], ["-h"]):
        sys.stdout.write(help_text())
        return 0
    if arguments == ["--version"]:
        from bernstein.version import __version__  # noqa: PLC0415 - not for the help page

        sys.stdout.write(f"bernstein {__version__}\n")
        return 0
    try:
        from bernstein.cli.app import run_command  # noqa: PLC0415 - not for the help page

        return run_command(arguments)
    except KeyboardInterrupt:
        return 130
