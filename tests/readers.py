"""Every reader of outside bytes, by name: what it reads, and a first input that it takes.

A reader may refuse what it is given with an error of ours, and with nothing else.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from bernstein.canonical import canonical_bytes, decode_canonical, decode_strict
from bernstein.chain.compare import compare_journals
from bernstein.chain.decisions import compare_decisions, execution_fingerprint
from bernstein.chain.diff import diff_journals
from bernstein.chain.read import load_replay_events, read_rows
from bernstein.chain.verify import check_chain
from bernstein.errors import BernsteinError
from bernstein.events.entry import GENESIS, JournalEntry, event_hash, payload_hash, to_line
from bernstein.fold.rebuild import rebuild_state
from bernstein.fold.run import project
from bernstein.fold.source import EventFile
from bernstein.interop.kinds import KINDS
from bernstein.interop.members import body_bytes
from bernstein.interop.records import read_records
from bernstein.interop.transcript import Told
from bernstein.recording.blobs import BlobStore
from bernstein.recording.exchanges import ExchangeRecording, load_exchanges, read_requests
from bernstein.recording.queue import load_recording
from bernstein.recording.rows import read_prompts
from bernstein.rundir import RunDir, SddDir
from bernstein.runner.plan_file import parse_plan
from bernstein.seal.audit import audit_keys, audit_state, check_audit
from bernstein.seal.bundle import import_bundle
from bernstein.seal.checkpoint import make_checkpoint, parse_checkpoint
from bernstein.seal.evidence import verify_deep, verify_run
from bernstein.seal.export import export_run
from bernstein.seal.proven import first_difference, read_chained_run
from bernstein.seal.proven_wire import first_wrong_exchange, recorded_responses
from bernstein.seal.seals import parse_seal
from bernstein.seal.signing import KeyStore
from bernstein.seal.spine import read_spine
from bernstein.wire.answers import read_answer
from bernstein.wire.chained import TermsOfRun
from bernstein.wire.changed import changed_body
from bernstein.wire.folders import Folders
from bernstein.wire.profile import load_profile
from bernstein.wire.protocol import MODEL_KINDS, kind_of
from bernstein.wire.secrets import Redactor
from tests.told import FILES, inspect_zip
from tests.upstream import chat, messages

# The rows of one journal whose payloads are anything: what comes behind a chain that holds.
EVENTS = (
    "run.started",
    "run.finished",
    "step.started",
    "step.finished",
    "model.call",
    "model.answer",
    "model.usage",
    "tool.proposed",
    "tool.approved",
    "tool.denied",
    "tool.result",
    "checkpoint",
    "artifact.written",
    "decision.made",
    "provider_state_mutation",
    "other.event",
)


_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Reader(NamedTuple):
    """A first input, and what is done with any."""

    example: bytes
    read: Callable[[bytes], None]


def chained(data: bytes) -> bytes:
    """A journal whose chain holds; each line of ``data`` is one row's event, lane and payload."""
    head, lines = GENESIS, []
    for index, line in enumerate(data.split(b"\n")):
        event = EVENTS[line[0] % len(EVENTS)] if line else EVENTS[0]
        lane = "a" if line[1:2] == b"a" else ""
        try:
            _decode_object(line[2:])
            payload = line[2:]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            payload = b"{}"
        hashed = payload_hash(event, lane, payload)
        entry = JournalEntry(
            index,
            event,
            lane,
            msgspec.Raw(payload),
            hashed,
            head,
            event_hash(head, event, hashed, index),
            "2026-11-30T14:43:00.123456Z",
            0.000123,
        )
        lines.append(to_line(entry) + b"\n")
        head = entry.event_hash
    return b"".join(lines)


class Readers:
    """The readers, with a sealed run to take examples from; files are written to ``folder``."""

    def __init__(self, folder: Path, run: RunDir, sdd: SddDir, keys: KeyStore) -> None:
        self._folder = folder
        self._path = folder / "input"
        self._run = run
        self._sdd = sdd
        self._keys = keys
        self._copies = SddDir(folder / "copy" / ".sdd")
        ignored = shutil.ignore_patterns("workspace*")
        shutil.copytree(sdd.path, self._copies.path, ignore=ignored)
        self._copy = self._copies.run(run.run_id)

    def by_name(self) -> dict[str, Reader]:
        """Each reader with its example."""
        run, keys, sdd = self._run, self._keys, self._sdd
        bundle = self._folder / "run.zip"
        export_run(run, sdd, keys, bundle, with_bodies=True)
        checkpoint = make_checkpoint(read_spine(sdd.spine, keys).entries, keys.signing_key())
        plan = b"stages:\n- name: s\n  steps:\n  - {title: One, files: [a]}\n"
        readers = {
            "journal": Reader(run.journal.read_bytes(), self.journal),
            "history": Reader(self._history_example(), self.history),
            "calls": Reader(run.llm_calls.read_bytes(), self.calls),
            "exchanges": Reader(_exchanges_example(), self.exchanges),
            "answers": Reader(
                b"".join(messages({"text": "a"}, {"tool": "t", "input": {}})), answers
            ),
            "decisions": Reader(run.wal.read_bytes(), self.decisions),
            "spine": Reader(sdd.spine.read_bytes(), self.spine),
            "seal": Reader(run.seal.read_bytes(), self.seal),
            "checkpoint": Reader(checkpoint.text.encode(), self.checkpoint),
            "audit": Reader(b"", self.audit),
            "plan": Reader(plan, self.plan),
            "canonical": Reader(canonical_bytes({"a": [1, 1.5, "\u20ac"]}), self.canonical),
            "bundle": Reader(bundle.read_bytes(), self.bundle),
        }
        for kind, file, _ in FILES.values():
            readers.setdefault(f"import/{kind}", Reader(file, foreign(kind)))
        readers["import/inspect.eval"] = Reader(inspect_zip(), foreign("inspect"))
        places = [self._copies.spine] + [
            getattr(self._copy, name)
            for name in ("journal", "llm_calls", "fixtures", "wal", "seal", "run_json", "body_key")
        ]
        for place in places:
            readers[f"run/{place.name}"] = Reader(place.read_bytes(), self._one_file(place))
        return {name: Reader(example, _refusing(read)) for name, (example, read) in readers.items()}

    def _write(self, data: bytes) -> Path:
        self._path.write_bytes(data)
        return self._path

    def _history_example(self) -> bytes:
        rows = [json.loads(line) for line in self._run.journal.read_bytes().splitlines()]
        return b"\n".join(
            b"%c%b%b"
            % (
                EVENTS.index(row["event"]) if row["event"] in EVENTS else 15,
                b"a" if row["lane"] else b" ",
                canonical_bytes(row["payload"]),
            )
            for row in rows
        )

    def journal(self, data: bytes) -> None:
        path = self._write(data)
        check_chain(path)
        list(read_rows(path))
        list(load_replay_events(path))

    def history(self, data: bytes) -> None:
        path, run = self._write(chained(data)), self._run
        check_chain(path)
        recording = load_recording(run.llm_calls)
        blobs = BlobStore(self._sdd.blobs)
        for read in (
            lambda: rebuild_state(path, 1, "r"),
            lambda: project(EventFile(path, "r")).to_bytes(),
            lambda: diff_journals(run.journal, path),
            lambda: compare_journals(run.journal, path),
            lambda: first_difference(
                recording, read_chained_run(path).calls, blobs, is_finished=True
            ),
        ):
            _refused_or_read(read)

    def calls(self, data: bytes) -> None:
        recording = load_recording(self._write(data))
        blobs = BlobStore(self._folder / "none")
        chain = read_chained_run(self._run.journal).calls
        _refused_or_read(lambda: list(read_prompts(recording.rows, blobs)))
        for row in recording.rows:
            _refused_or_read(lambda: row.read_outcome(blobs).digest())  # noqa: B023 - at once
        _refused_or_read(lambda: first_difference(recording, chain, blobs, is_finished=True))

    def exchanges(self, data: bytes) -> None:
        rows = load_exchanges(self._write(data)).rows
        blobs = BlobStore(self._folder / "none")
        profile = msgspec.to_builtins(load_profile("codex"))
        terms = TermsOfRun({"profile": profile, "folders": {}})
        move = Folders({"cwd": "/a/b"}).moved_to(Folders({"cwd": "/c"}))
        recording = ExchangeRecording(rows)
        for read in (
            lambda: list(read_requests(rows, blobs)),
            lambda: list(recorded_responses(recording, blobs, terms)),
            lambda: first_wrong_exchange(
                recording,
                read_chained_run(self._run.journal).exchanges,
                blobs,
                terms,
                is_finished=True,
                watches=True,
            ),
            lambda: [
                changed_body(kind_of(row.method, row.path), [row.read_response(blobs)], change)
                for row in rows
                for change in (move, Redactor(["/a/b/c/d/e/f"]))
            ],
        ):
            _refused_or_read(read)

    def decisions(self, data: bytes) -> None:
        path = self._write(data)
        _refused_or_read(lambda: execution_fingerprint(path))
        compare_decisions(path, self._run.wal)

    def spine(self, data: bytes) -> None:
        read_spine(self._write(data), self._keys)

    def seal(self, data: bytes) -> None:
        parse_seal(data)

    def checkpoint(self, data: bytes) -> None:
        parse_checkpoint(data.decode("utf-8", "replace"))

    def audit(self, data: bytes) -> None:
        audit_state(self._write(data))
        check_audit(self._path, audit_keys(self._keys.folder), None)

    def plan(self, data: bytes) -> None:
        parse_plan(data, "p.yaml")

    def canonical(self, data: bytes) -> None:
        value = decode_strict(data)
        assert decode_canonical(canonical_bytes(value)) == value

    def bundle(self, data: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            import_bundle(self._write(data), SddDir(Path(name) / ".sdd"), self._keys, None)

    def _one_file(self, place: Path) -> Callable[[bytes], None]:
        original = place.read_bytes()

        def read(data: bytes) -> None:
            place.write_bytes(data)
            try:
                verdict = verify_run(self._copy, self._copies, self._keys)
                verify_deep(self._copy, self._copies, self._keys)
                assert verdict.verdict != "verified" or data == original, "verified"
            finally:
                place.write_bytes(original)

        return read


def foreign(kind: str) -> Callable[[bytes], None]:
    """Reads files of a kind that others write."""

    def read(data: bytes) -> None:
        records = read_records(data)
        for known in KINDS.values():
            known.is_one(records)
        for transcript in KINDS[kind].read(records):
            for item in transcript.events:
                if isinstance(item, Told):
                    for body in item.bodies.values():
                        body_bytes(body)

    return read


def answers(data: bytes) -> None:
    for kind in sorted(MODEL_KINDS):
        for status in (200, 500):
            read_answer(kind, status, data, is_whole=True)


def _exchanges_example() -> bytes:
    rows = []
    for n, (path, body) in enumerate(
        [("/v1/messages", messages({"text": "in /a/b/c"})), ("/v1/chat/completions", chat("x"))]
    ):
        key = f"{n}" * 64
        row = {
            "seq": n,
            "begun": n + 1,
            "after": n,
            "done": n,
            "lane": key,
            "key": key,
            "key_scheme": "wire.v1",
            "provider": "p",
            "origin": "http://127.0.0.1:1",
            "method": "POST",
            "path": path,
            "query": "",
            "headers": {},
            "request": '{"model":"m"}',
            "status": 200,
            "response_headers": [["content-type", "text/event-stream"]],
            "response": b"".join(body).decode(),
            "binary": False,
            "chunks": [len(piece) for piece in body],
            "times_ms": [1] * len(body),
            "arrived": [n + 1] * len(body),
            "end": "complete",
            "ts": "2026-11-30T14:43:00.123456Z",
            "elapsed_s": 0.5,
        }
        rows.append(canonical_bytes(row) + b"\n")
    return b"".join(rows)


def _refused_or_read(read: Callable[[], object]) -> None:
    """Call ``read``, which may refuse with an error of ours."""
    try:
        read()
    except BernsteinError:
        return


def _refusing(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """``read``, whose errors of ours are right answers."""
    return lambda data: _refused_or_read(lambda: read(data))
