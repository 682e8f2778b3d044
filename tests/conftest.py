"""What every test starts from: a clean environment, an empty folder, and no network."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bernstein.capture.models import registry
from bernstein.rundir import SddDir

if TYPE_CHECKING:
    from collections.abc import Iterator

_DATA_VARIABLE = "BERNSTEIN_TEST_DATA"
_DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "data"
_skipped_for_data: list[str] = []
_may_use_loopback = False


def _refuse_network(event: str, args: tuple[object, ...]) -> None:
    if event == "socket.connect":
        sock, address = args[0], args[1]
        assert isinstance(sock, socket.socket)
        if sock.family == socket.AF_UNIX:
            return
        host = address[0] if isinstance(address, tuple) else address
        if not (_may_use_loopback and host in {"127.0.0.1", "::1"}):
            raise RuntimeError(f"a test reached for {address}; mark it with `loopback` if it may")


sys.addaudithook(_refuse_network)


@pytest.fixture(autouse=True)
def _clean(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    global _may_use_loopback  # noqa: PLW0603 - the hook cannot be taken out, so it is switched
    for name in list(os.environ):
        if name.startswith("BERNSTEIN_") or name.endswith(("_API_KEY", "_BASE_URL")):
            monkeypatch.delenv(name)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("BERNSTEIN_KEYS_DIR", str(tmp_path / "keys"))
    _may_use_loopback = request.node.get_closest_marker("loopback") is not None
    yield
    registry.close_providers()
    _may_use_loopback = False


@pytest.fixture
def sdd(tmp_path: Path) -> SddDir:
    """A project's folder, not made yet."""
    return SddDir(tmp_path / "work" / ".sdd")


@pytest.fixture(scope="session")
def _data_folder() -> Path | None:
    folder = Path(os.environ.get(_DATA_VARIABLE) or _DEFAULT_DATA)
    return folder if folder.is_dir() else None


@pytest.fixture
def data(request: pytest.FixtureRequest, _data_folder: Path | None) -> Path:
    """The folder of data made by others; the test is skipped, and counted, where it is absent."""
    if _data_folder is None:
        _skipped_for_data.append(request.node.nodeid)
        pytest.skip(f"{_DATA_VARIABLE} names no folder")
    return _data_folder


@pytest.fixture
def embedded_model() -> None:
    """The embedded model's packages; the test is skipped where they are not installed."""
    pytest.importorskip("xllamacpp", reason="the embedded model is not installed: make setup")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped for want of data."""
    if _skipped_for_data:
        terminalreporter.write_line(
            f"{len(_skipped_for_data)} tests skipped for want of data: set {_DATA_VARIABLE}"
        )
