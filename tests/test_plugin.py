"""The pytest plugin, by test runs of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.upstream import own_answer, serving

pytest.importorskip("openai", reason="the providers' packages are not installed")
pytestmark = pytest.mark.loopback
pytest_plugins = ["pytester"]

TEST = """\
import pytest
from openai import OpenAI

WORD = "word"

@pytest.fixture
def client():
    return OpenAI()

@pytest.mark.bernstein
def test_asks(client):
    said = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": WORD}])
    print("SAID", said.choices[0].message.content)
    assert WORD in said.choices[0].message.content

def test_asks_nobody():
    assert WORD
"""


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    pytester.makepyfile(test_agent=TEST)
    return pytester.path / "recordings" / "test_agent" / "test_asks"


def record(pytester: pytest.Pytester, mode: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the tests against a provider; returns how often that was asked."""
    with serving(own_answer) as upstream, monkeypatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", f"{upstream.base_url}/v1")
        patch.setenv("OPENAI_API_KEY", "sk-canary-0123456789abcdef")
        pytester.runpytest_subprocess("-q", f"--bernstein-record={mode}").assert_outcomes(passed=2)
        return len(upstream.seen)


def test_a_test_that_passes_while_it_is_recorded_passes_on_every_replay(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record(pytester, "missing", monkeypatch) == 1
    assert {path.name for path in folder.iterdir()} == {
        "exchanges.jsonl",
        "journal.jsonl",
        "run.json",
    }
    files = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"canary" not in files
    for _ in range(2):
        pytester.runpytest_subprocess("-q").assert_outcomes(passed=2)
    assert record(pytester, "missing", monkeypatch) == 0
    assert record(pytester, "extend", monkeypatch) == 0
    assert record(pytester, "rewrite", monkeypatch) == 1


def test_without_a_recording_a_test_fails_and_says_how_to_make_one(
    pytester: pytest.Pytester, folder: Path
) -> None:
    done = pytester.runpytest_subprocess("-q")
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*there is no recording in*", "*--bernstein-record=missing*"])
    assert not folder.exists()


def test_a_changed_request_fails_the_test_and_is_explained_even_if_it_is_caught(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(pytester, "missing", monkeypatch)
    caught = TEST.replace('WORD = "word"', 'WORD = "other"').replace(
        "    said =", "    try:\n      said ="
    )
    caught = caught.replace(
        '    print("SAID"', '    except Exception:\n        return\n    print("SAID"'
    )
    pytester.makepyfile(test_agent=caught)
    done = pytester.runpytest_subprocess("-q")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        ["*replay miss: no recorded answer*", "*recorded 'word', asked 'other'*", "*rewrite*"]
    )


def test_an_answer_that_nobody_asks_for_any_more_fails_the_test(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(pytester, "missing", monkeypatch)
    pytester.makepyfile(
        test_agent="import pytest\n@pytest.mark.bernstein\ndef test_asks():\n    pass\n"
    )
    done = pytester.runpytest_subprocess("-q")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*replay diverged*"])


def test_what_failed_while_it_was_recorded_is_not_kept(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_agent=TEST.replace("assert WORD in", "assert WORD not in"))
    with serving(own_answer) as upstream:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{upstream.base_url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        done = pytester.runpytest_subprocess("-q", "--bernstein-record=missing")
    done.assert_outcomes(passed=1, failed=1)
    assert not folder.exists()


def test_in_a_replay_nothing_reaches_the_network(
    pytester: pytest.Pytester, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(pytester, "missing", monkeypatch)
    around = TEST.replace(
        "    said =",
        "    import urllib.request\n"
        "    with pytest.raises(Exception):\n"
        "        urllib.request.urlopen('http://127.0.0.1:9/')\n"
        "    said =",
    )
    pytester.makepyfile(test_agent=around)
    done = pytester.runpytest_subprocess("-q")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*reached for the network*"])


def test_the_plugin_imports_nothing_of_ours_before_a_marked_test(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        "import sys\ndef test_it():\n    assert not [m for m in sys.modules if m == 'bernstein']\n"
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
    assert "pytest_bernstein" in sys.modules


def test_help_says_each_mode(pytester: pytest.Pytester) -> None:
    said = pytester.runpytest_subprocess("--help").stdout.str()
    for mode in ("none:", "missing:", "extend:", "rewrite:"):
        assert mode in said
