"""Names every file under ``.sdd/``, and finds a run by what a user types.

Rule: every path made from outside input is checked to stay inside its folder.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bernstein.canonical import JsonObject, canonical_bytes, convert, decode_strict
from bernstein.errors import CanonicalError, RecordingError, SettingsError, UnknownRunError
from bernstein.files import make_private, read_file, write_file

if TYPE_CHECKING:
    from collections.abc import Iterable

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RESERVED_RUN_IDS = frozenset({"latest", "diff"})


def new_run_id(now: datetime | None = None) -> str:
    """A run id that sorts by time: UTC to the microsecond and 24 random bits."""
    moment = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{moment}-{secrets.token_hex(3)}"


def is_run_id(text: str) -> bool:
    """Whether ``text`` can name a run: one path segment, and not a reserved word."""
    return RUN_ID.fullmatch(text) is not None and text not in RESERVED_RUN_IDS


class _RunInfo(msgspec.Struct):
    """The members of ``run.json`` that are read, with the types that they must have."""

    run_id: str | None = None
    kind: str | None = None
    plan: dict[str, Any] | None = None
    argv: list[str] = []
    seed: int | None = None
    strict: bool = False
    source_run: str | None = None
    records: bool = False
    default_model: tuple[str, str] | None = None
    status: str = "unknown"
    head: str | None = None
    tree: str | None = None
    tree_entries: dict[str, str] = {}
    key_names: list[str] = []
    home: dict[str, dict[str, Any]] = {}
    upstreams: dict[str, str] = {}
    signal: int | None = None
    body_key_sha256: str | None = None
    profile: dict[str, Any] | None = None
    folders: dict[str, str] = {}


class RunDir:
    """The files of one run, ``.sdd/runs/<run_id>/``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.run_json = path / "run.json"
        self.journal = path / "journal.jsonl"
        self.llm_calls = path / "llm_calls.jsonl"
        self.exchanges = path / "exchanges.jsonl"
        self.fixtures = path / "fixtures.jsonl"
        self.misses = path / "misses.jsonl"
        self.wal = path / "wal.jsonl"
        self.seal = path / "seal.json"
        self.proof = path / "proof.json"
        self.body_key = path / "body_key.json"
        self.divergence_report = path / "divergence_report.json"
        self.lock = path / "run.lock"
        self.keep = path / "keep"
        self.workspace = path / "workspace"
        self.workspace_base = path / "workspace-base.json"
        self.originals = path / "originals"
        self.agents = path / "agents"

    def read_info(self) -> JsonObject:
        """The content of ``run.json``; an empty object where there is none.

        Raises:
            RecordingError: The file is there and is not a JSON object.
        """
        try:
            data = read_file(self.run_json)
        except FileNotFoundError:
            return {}
        try:
            try:
                msgspec.json.decode(data, type=_RunInfo)
                info: JsonObject = msgspec.json.decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                # msgspec reads no lone surrogates: a file's name can hold one.
                info = decode_strict(data)
                convert(info, _RunInfo)
        except CanonicalError as error:
            raise RecordingError(
                f"{self.run_json} is damaged: {error}\n  restore it, or look at another run: "
                "bernstein runs"
            ) from error
        return info

    def has_begun(self) -> bool:
        """Whether there is a row: one that was killed while it began says nothing."""
        try:
            return self.journal.lstat().st_size > 0
        except OSError:
            return False

    def is_parked(self) -> bool:
        """Whether it waits for somebody, to go on then."""
        try:
            return not self.seal.exists() and self.read_info().get("status") == "parked"
        except RecordingError:
            return False

    def is_running(self) -> bool:
        """Whether a process holds the run's lock."""
        try:
            fd = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def status(self) -> str:
        """How the run stands, by ``run.json`` and its lock: a run that died is interrupted."""
        status = str(self.read_info().get("status", "unknown"))
        return "interrupted" if status == "running" and not self.is_running() else status

    def write_info(self, info: JsonObject) -> None:
        """Replace ``run.json`` as a whole."""
        write_file(self.run_json, canonical_bytes(info) + b"\n")


class SddDir:
    """A project's ``.sdd`` folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.blobs = path / "blobs" / "sha256"
        self.spine = path / "lineage" / "spine.jsonl"
        self.audit = path / "audit" / "audit.jsonl"
        self.audit_seal = path / "audit" / "seal.json"
        self.keys = path / "keys"
        self.provider_state = path / "runtime" / "provider_state"
        self.prune_lock = path / "prune.lock"

    def run(self, run_id: str) -> RunDir:
        """The folder of the run with this id, which need not be there.

        Raises:
            UnknownRunError: No run can have this id.
        """
        if not is_run_id(run_id):
            raise UnknownRunError(
                f"{run_id!r} is not a run id\n  list the runs with: bernstein runs"
            )
        return RunDir(self.runs / run_id)

    def new_run(self, run_id: str | None = None) -> RunDir:
        """Make the folder of a new run."""
        make_private(self.runs)
        run = self.run(run_id or new_run_id())
        run.path.mkdir(mode=0o700)
        return run

    def project_of(self, run: RunDir) -> SddDir:
        """The folder that holds a run's bodies and spine: a saved recording has its own."""
        return self if run.path.parent == self.runs else SddDir(run.path)

    def list_runs(self) -> list[RunDir]:
        """Every run, oldest first; symlinks and foreign names are passed over."""
        try:
            entries = list(os.scandir(self.runs))
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = sorted(
            entry.name
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and is_run_id(entry.name)
        )
        return [RunDir(self.runs / name) for name in names]

    def find_run(self, text: str) -> RunDir:
        """The run that ``text`` names: an id, a unique prefix of one, or ``latest``.

        ``latest`` is the newest recording that has begun; a strict replay records nothing of its
        own.

        Raises:
            UnknownRunError: There is none, or more than one.
        """
        runs = self.list_runs()
        if text == "latest":
            for run in reversed(runs):
                with suppress(RecordingError):  # a run that cannot be read is not the newest
                    if run.read_info().get("records") and run.has_begun():
                        return run
            raise UnknownRunError(
                f"there is no recording in {self.path}\n  record one with: bernstein run plan.yaml"
            )
        exact = [run for run in runs if run.run_id == text]
        found = exact or [run for run in runs if text and run.run_id.startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UnknownRunError(
                f"{text!r} is the start of {len(found)} run ids: {_some(found)}\n"
                "  give more of the id"
            )
        raise UnknownRunError(
            f"there is no run {text!r} in {self.path}\n  list the runs with: bernstein runs"
        )

    def find_shown(self, text: str) -> RunDir:
        """The run that ``text`` names, or the saved recording in a folder of this name."""
        if (Path(text) / "journal.jsonl").is_file():
            return RunDir(Path(text).absolute())
        return self.find_run(text)

    def find_recording(self, text: str) -> RunDir:
        """The run to play from: as ``find_run``, but a replay without a recording of its own
        stands for its source. A folder that holds a journal is a saved recording.
        """
        run = self.find_shown(text)
        if run.path.parent != self.runs:
            return run
        seen = {run.run_id}
        while (info := run.read_info()).get("source_run") and not info.get("records"):
            source = info["source_run"]
            if not isinstance(source, str) or source in seen:
                raise RecordingError(f"{run.run_json} names a source run that leads nowhere")
            seen.add(source)
            run = self.find_run(source)
        return run


def _some(runs: Iterable[RunDir]) -> str:
    names = [run.run_id for run in runs]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def find_sdd(start: Path, home: Path) -> Path | None:
    """The ``.sdd`` of the project that ``start`` is in, or None.

    Looks in ``start`` and upwards to the git root, ``home`` or the file system's border.

    Raises:
        SettingsError: The folder found belongs to another user.
    """
    here = start.resolve()
    device = here.stat().st_dev
    for folder in (here, *here.parents):
        if folder.stat().st_dev != device:
            return None
        found = folder / ".sdd"
        if found.is_dir():
            _refuse_foreign(found)
            return found
        if (folder / ".git").exists() or folder == home.resolve():
            return None
    return None


def _refuse_foreign(path: Path) -> None:
    if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():
        raise SettingsError(
            f"{path} belongs to another user\n  use your own: bernstein --sdd DIR … "
            "or BERNSTEIN_SDD_DIR=DIR"
        )


def open_sdd(sdd_dir: Path | None = None) -> SddDir:
    """The project's folder: ``sdd_dir`` where given, else the one found; made by the first run."""
    if sdd_dir is not None:
        if sdd_dir.is_dir():
            _refuse_foreign(sdd_dir)
        elif sdd_dir.exists():
            raise SettingsError(f"{sdd_dir} is not a folder\n  name one: bernstein --sdd DIR …")
        # Without `..` and links on the way: it is looked for in what a command says.
        return SddDir(Path(os.path.realpath(sdd_dir.parent), sdd_dir.name))
    cwd = Path.cwd()
    return SddDir(find_sdd(cwd, Path.home()) or cwd / ".sdd")


def make_sdd(sdd: SddDir) -> None:
    """Make the project's folder, with a ``.gitignore`` that keeps recordings out of commits."""
    make_private(sdd.path)
    ignore = sdd.path / ".gitignore"
    if not ignore.exists():
        write_file(ignore, b"*\n")
