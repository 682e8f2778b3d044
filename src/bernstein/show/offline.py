"""A page of one run in one file, which asks nobody and checks itself when it is opened."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from typing import TYPE_CHECKING

from bernstein.canonical import JsonObject, JsonValue
from bernstein.errors import UsageError
from bernstein.events.trajectory import RUN_FINISHED
from bernstein.fold.thread import stream_event
from bernstein.jsonl import open_regular
from bernstein.recording.misses import read_misses
from bernstein.seal.body_key import bodies_of
from bernstein.show.evidence import evidence_of
from bernstein.show.site import page_file
from bernstein.show.told import told_run

if TYPE_CHECKING:
    from bernstein.rundir import RunDir, SddDir
    from bernstein.seal.signing import KeyStore

_MAX_JOURNAL_BYTES = 2**28
_ENTRY = "offline.js"
_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>bernstein: {run_id}</title>
<style>{style}</style>
</head>
<body>
<header><span class="brand">bernstein</span></header>
<main>reading</main>
<noscript>This page reads and checks the run in your browser: it needs JavaScript.</noscript>
<script type="text/plain" id="told">{told}</script>
<script type="text/plain" id="journal">{journal}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def offline_page(run: RunDir, sdd: SddDir, keys: KeyStore) -> bytes:
    """The page of a run: its rows as they stand, its seal with the key, and its replay misses.

    Raises:
        UsageError: The journal is larger than 256 MiB.
        RecordingError, OSError: A file cannot be read.
    Source: docs/live.md.
    """
    with open_regular(run.journal) as file:
        journal = file.read(_MAX_JOURNAL_BYTES + 1)
    if len(journal) > _MAX_JOURNAL_BYTES:
        raise UsageError(
            f"the journal of run {run.run_id} is too large for one page\n  look at it with: "
            "bernstein serve"
        )
    if not run.seal.exists():
        # What is being written just now, or never was to its end, is no row yet.
        journal = journal[: journal.rfind(b"\n") + 1]
    told: JsonObject = {
        "info": told_run(run),
        "state": _state(run, journal),
        "evidence": evidence_of(run, sdd, keys),
        "misses": read_misses(run, bodies_of(run, sdd, keys)),
    }
    style, script = _text("style.css"), _bundled(_ENTRY)
    page = _PAGE.format(
        policy=(
            f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
            "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
            "trusted-types 'none'"
        ),
        run_id=run.run_id,  # of characters that mean nothing in markup
        style=style,
        script=script,
        told=_packed(_as_bytes(told)),
        journal=_packed(journal),
    )
    return page.encode()


def _state(run: RunDir, journal: bytes) -> str:
    last = stream_event(journal[journal.rfind(b"\n", 0, -1) + 1 :])
    if last is not None and last.event == RUN_FINISHED:
        return "finished"
    if run.is_running():
        return "running"
    return "parked" if run.is_parked() else "interrupted"


def _as_bytes(value: JsonValue) -> bytes:
    return json.dumps(value).encode()


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _text(name: str) -> str:
    data = page_file(name)
    assert data is not None, name
    return data.decode()


def _bundled(entry: str) -> str:
    """A module of the page and those that it imports, as one script: each in a function."""
    parts: dict[str, str] = {}

    def add(name: str) -> None:
        text = _text(name)
        for match in _IMPORT.finditer(text):
            if match[2] not in parts:
                add(match[2])
        body = _IMPORT.sub(lambda match: f"const {{{match[1]}}} = {_name(match[2])};\n", text)
        exported = ", ".join(match[1] for match in _EXPORT.finditer(body))
        body = _EXPORT.sub("", body)
        parts[name] = f"const {_name(name)} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"

    add(entry)
    return "".join(parts.values())


def _name(module: str) -> str:
    return f"module_{module.removesuffix('.js')}"
