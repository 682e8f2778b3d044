from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bernstein

SOURCE = Path(bernstein.__file__).parent
ROOT = SOURCE.parents[1]


def test_all_is_sorted_and_every_name_is_there() -> None:
    assert bernstein.__all__ == sorted(bernstein.__all__)
    for name in bernstein.__all__:
        assert getattr(bernstein, name) is not None
    assert set(bernstein.__all__) - {"__version__"} == set(bernstein._HOME_OF)


def test_the_typed_imports_are_those_of_the_table() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    typed = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {(home, name) for name, home in bernstein._HOME_OF.items()}


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import bernstein; "
        "print(sorted(m for m in set(sys.modules) - before if not m.startswith('bernstein')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ast.literal_eval(done.stdout))
    assert not loaded & {"msgspec", "click", "yaml", "rich", "asyncio", "pydantic", "httpx2"}


def test_a_replay_needs_no_provider_package() -> None:
    code = (
        "import sys\n"
        "import bernstein.runner.session, bernstein.cli.run_command\n"
        "print([m for m in ('pydantic_ai', 'openai', 'anthropic', 'xllamacpp', 'httpx', 'httpx2', "
        "'genai_prices') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nope"):
        bernstein.nope  # noqa: B018


def test_one_module_reads_the_environment() -> None:
    readers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text())
    }
    assert readers == {"settings.py"}


def test_one_module_writes_the_journal() -> None:
    writers = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "open_append(self.path)" in path.read_text()
    }
    assert writers == {"chain/journal.py"}
