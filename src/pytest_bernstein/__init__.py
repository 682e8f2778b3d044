"""Replays what a marked test asks of model providers from a recording beside it.

    @pytest.mark.bernstein
    def test_my_agent(): ...

The recording lies in ``recordings/<module>/<test>/`` beside the test's file. Nothing of bernstein
is imported before a marked test runs.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from bernstein import EventFile, ScorePolicy, ScoreReport, TrajectoryEvent
    from bernstein.capture.gateway.inprocess import ReplayGateway
    from bernstein.rundir import RunDir

    # A run's id, its folder, a file of events, or events.
    Scored = str | Path | RunDir | EventFile | Iterable[TrajectoryEvent]
    Policy = str | Path | Mapping[str, Any] | ScorePolicy

_MODES = {
    "none": "replay only; a test without a recording fails (the default)",
    "missing": "record tests that have no recording, replay the others",
    "extend": "serve what is recorded, ask and record only the rest",
    "rewrite": "ask everything anew and replace the recording of each test that passes",
}


class _NotCalledError(Exception):
    """The test was not called."""


_open = pytest.StashKey[ExitStack]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--bernstein-record``."""
    group = parser.getgroup("bernstein", "recorded model providers")
    group.addoption(
        "--bernstein-record",
        choices=list(_MODES),
        default="none",
        help="; ".join(f"{mode}: {text}" for mode, text in _MODES.items()),
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "bernstein(profile='generic', upstreams=None): what the test asks of model providers is "
        "replayed from recordings/<module>/<test>/, see --bernstein-record",
    )


@pytest.fixture(autouse=True)
def _bernstein(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReplayGateway | None]:
    marker = request.node.get_closest_marker("bernstein")
    if marker is None:
        yield None
        return
    mode = request.config.getoption("--bernstein-record")
    stack = request.node.stash[_open] = ExitStack()
    project = tmp_path_factory.mktemp("bernstein")
    folder = recording_folder(request.node)
    try:
        yield stack.enter_context(_served(folder, project, mode, **marker.kwargs))
    finally:
        # What the call has not ended has failed before it, and is neither kept nor judged.
        with suppress(_NotCalledError):
            stack.__exit__(_NotCalledError, _NotCalledError(), None)


@pytest.fixture
def bernstein_gateway(_bernstein: ReplayGateway | None) -> ReplayGateway:
    """The gateway of a marked test: ``base_url(provider)`` for clients that take no variable."""
    if _bernstein is None:
        pytest.fail("mark the test with pytest.mark.bernstein", pytrace=False)
    return _bernstein


@pytest.fixture
def score_run() -> Callable[[Scored, Policy], ScoreReport]:
    """Holds a run against a policy: ``score_run("latest", "policy.yaml").assert_holds()``.

    The run is an id, a folder, a file of events, or events; the policy a file, or a value with the
    keys of one. Nothing is anchored in the audit chain.
    """
    return _score


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the recording or replay with the test's call, so that a miss fails the test."""
    stack = item.stash.get(_open, None)
    if stack is None:
        return (yield)
    from bernstein.errors import BernsteinError  # noqa: PLC0415 - not at start-up

    try:
        with stack:
            return (yield)
    except BernsteinError as error:
        advice = f"pytest --bernstein-record=rewrite '{item.nodeid}'"
        pytest.fail(f"{error}\n  record anew: {advice}", pytrace=False)


def recording_folder(item: pytest.Item) -> Path:
    """Where the recording of a test lies."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", item.name).strip("-")
    return item.path.parent / "recordings" / item.path.stem / name


@contextmanager
def _served(folder: Path, project: Path, mode: str, **options: Any) -> Iterator[ReplayGateway]:
    import bernstein  # noqa: PLC0415 - not at start-up
    from bernstein.settings import environment_with  # noqa: PLC0415

    is_there = (folder / "journal.jsonl").exists()
    with environment_with({"BERNSTEIN_KEYS_DIR": str(project / "keys")}):
        if mode == "none" or (mode == "missing" and is_there):
            if not is_there:
                pytest.fail(
                    f"there is no recording in {folder}\n"
                    "  make it, with the provider's key set: pytest --bernstein-record=missing",
                    pytrace=False,
                )
            with bernstein.replay(folder, sdd_dir=project / ".sdd") as opened:
                yield opened
            return
        extend = str(folder) if mode == "extend" and is_there else None
        with bernstein.record(sdd_dir=project / ".sdd", extend=extend, **options) as opened:
            yield opened
        _save(opened, project, folder)


def _save(opened: ReplayGateway, project: Path, folder: Path) -> None:
    from bernstein.rundir import SddDir  # noqa: PLC0415 - not at start-up
    from bernstein.seal.save import save_recording  # noqa: PLC0415
    from bernstein.seal.signing import default_keys  # noqa: PLC0415

    sdd = SddDir(project / ".sdd")
    folder.parent.mkdir(parents=True, exist_ok=True)
    save_recording(sdd.run(opened.run_id), sdd, default_keys(sdd), folder)


def _score(run: Scored, policy: Policy) -> ScoreReport:
    from bernstein import (  # noqa: PLC0415 - not at start-up
        ScorePolicy,
        project,
        project_tool_calls,
        score,
    )

    if isinstance(policy, str | Path):
        policy = ScorePolicy.load(policy)
    elif not isinstance(policy, ScorePolicy):
        policy = ScorePolicy.of(policy)
    events = _events_of(run)
    return score(project(events), project_tool_calls(events), policy)


def _events_of(run: Scored) -> EventFile | list[TrajectoryEvent]:
    """The events of what is scored, which can be gone through twice.

    Raises:
        RecordingError: The evidence of the run does not hold.
    """
    from bernstein import EventFile, RecordingError, verify_journal  # noqa: PLC0415
    from bernstein.rundir import RunDir, open_sdd  # noqa: PLC0415
    from bernstein.settings import read_settings  # noqa: PLC0415

    if isinstance(run, EventFile):
        return run
    if isinstance(run, Path) and run.is_file():
        return EventFile(run)
    if isinstance(run, str | Path):
        run = open_sdd(read_settings().sdd_dir).find_shown(str(run))
    if not isinstance(run, RunDir):
        return list(run)
    verdict = verify_journal(run.journal)
    if verdict.verdict == "mismatch":
        raise RecordingError(
            f"the evidence of {run.run_id} does not hold: {verdict.reason}\n"
            f"  see: bernstein replay {run.run_id} --verify"
        )
    return EventFile(run.journal, run.run_id)
