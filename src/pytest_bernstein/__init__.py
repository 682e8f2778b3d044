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
    from collections.abc import Generator, Iterator

    from bernstein.capture.gateway.inprocess import ReplayGateway

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
