"""Ends what a command had started where whoever started it is killed.

A program by itself, run without site packages. Over its standard input it is told, in one line of
JSON, {"mark": text, "folders": [path]}; then it waits. Once it is told ``done`` it does nothing;
where its input ends without that, it kills every process whose environment holds the mark, and
removes the folders.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import signal
import sys
import time


def end_marked(mark: bytes) -> bool:
    """Kill each process whose environment holds ``mark``; whether there was one."""
    found = False
    for path in glob.glob("/proc/[0-9]*/environ"):
        pid = int(path.split("/")[2])
        try:
            with open(path, "rb") as file:
                is_marked = mark in file.read()
            if is_marked and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
                found = True
        except OSError:
            continue
    return found


def main() -> int:
    """Wait, and act."""
    told = sys.stdin.readline()
    if not told or sys.stdin.readline().strip() == "done":
        return 0
    what = json.loads(told)
    while end_marked(what["mark"].encode()):
        time.sleep(0.05)  # what was just being started is there by now
    for folder in what["folders"]:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(main())
