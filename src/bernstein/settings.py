"""``BERNSTEIN_*`` and the providers' usual variables, read once into one frozen value.

Rule: this is the only module that reads the environment.
"""

from __future__ import annotations

import difflib
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# A provider is configured by its key; the order is that of preference where there are several.
PROVIDER_KEYS = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "google": ("GOOGLE_API_KEY", "GEMINI_API_KEY"),
}


KNOWN_VARIABLES = (
    "BERNSTEIN_BLOCK",
    "BERNSTEIN_INSIDE_RUN",
    "BERNSTEIN_DEBUG",
    "BERNSTEIN_DETERMINISTIC_SEED",
    "BERNSTEIN_ENCRYPT",
    "BERNSTEIN_KEYRING",
    "BERNSTEIN_KEYS_DIR",
    "BERNSTEIN_RECORD",
    "BERNSTEIN_REPLAY_ALLOW_LIVE_MISS",
    "BERNSTEIN_REPLAY_RETENTION",
    "BERNSTEIN_REPLAY_RUN_ID",
    "BERNSTEIN_SDD_DIR",
    "BERNSTEIN_SERVE_TOKEN_FILE",
    "BERNSTEIN_TEST_DATA",
    "BERNSTEIN_TUI_STREAM",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for.

    Attributes:
        seed: ``BERNSTEIN_DETERMINISTIC_SEED``: seeds ``random`` and the providers that take one.
        replay_run_id: ``BERNSTEIN_REPLAY_RUN_ID``: the run to replay, a unique prefix or latest.
        allow_live_miss: ``BERNSTEIN_REPLAY_ALLOW_LIVE_MISS=1``: a miss warns and goes live.
        record: False with ``BERNSTEIN_RECORD=0``.
        sdd_dir: ``BERNSTEIN_SDD_DIR``: the project's folder, instead of looking for ``.sdd``.
        keys_dir: ``BERNSTEIN_KEYS_DIR``: this user's private keys and pins; default
            ``$XDG_DATA_HOME/bernstein/keys``.
        encrypt: ``BERNSTEIN_ENCRYPT=1``: the bodies of new runs are encrypted.
        keyring: ``BERNSTEIN_KEYRING=1``: new private keys go into the system's keyring.
        retention: ``BERNSTEIN_REPLAY_RETENTION=N``: how many finished runs stay; None: all.
        configured_providers: Providers with a key in the environment, in order of preference.
    """

    seed: int | None = None
    replay_run_id: str | None = None
    allow_live_miss: bool = False
    record: bool = True
    sdd_dir: Path | None = None
    encrypt: bool = False
    keyring: bool = False
    retention: int | None = None
    configured_providers: tuple[str, ...] = field(default=())
    keys_dir: Path = field(default_factory=lambda: Path.home() / ".local/share/bernstein/keys")


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings that ``environ`` (default: the process's) asks for.

    Raises:
        SettingsError: A variable has a value that it cannot take.
    """
    env = os.environ if environ is None else environ
    sdd_dir = env.get("BERNSTEIN_SDD_DIR") or None
    return Settings(
        seed=_seed(env.get("BERNSTEIN_DETERMINISTIC_SEED")),
        replay_run_id=_replay_run_id(env),
        allow_live_miss=_switch(env, "BERNSTEIN_REPLAY_ALLOW_LIVE_MISS", default=False),
        record=_switch(env, "BERNSTEIN_RECORD", default=True),
        sdd_dir=Path(sdd_dir) if sdd_dir else None,
        encrypt=_switch(env, "BERNSTEIN_ENCRYPT", default=False),
        keyring=_switch(env, "BERNSTEIN_KEYRING", default=False),
        retention=_retention(env.get("BERNSTEIN_REPLAY_RETENTION")),
        configured_providers=tuple(
            name for name, keys in PROVIDER_KEYS.items() if any(env.get(key) for key in keys)
        ),
        keys_dir=_keys_dir(env),
    )


def named_url(*variables: str) -> str | None:
    """What the first of these variables that is set names, as a provider's base URL."""
    return next((os.environ[name] for name in variables if os.environ.get(name)), None)


def set_variables(names: Iterable[str]) -> dict[str, str]:
    """Those of these variables that are set."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def provider_key_names() -> list[str]:
    """The variables of the environment that hold a provider's key."""
    names = {name for names in PROVIDER_KEYS.values() for name in names}
    return sorted(name for name in names if os.environ.get(name))


def provider_secrets() -> list[str]:
    """The keys of providers that the environment holds."""
    return [os.environ[name] for name in provider_key_names()]


@contextmanager
def environment_with(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process until the block ends."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def serve_token_file() -> Path | None:
    """``BERNSTEIN_SERVE_TOKEN_FILE``: the file of the token that readers of ``serve`` show."""
    named = os.environ.get("BERNSTEIN_SERVE_TOKEN_FILE")
    return Path(named) if named else None


def tui_streams() -> bool:
    """``BERNSTEIN_TUI_STREAM=1``: the view in a terminal is fed by the stream, and does not poll.

    Raises:
        SettingsError: It is neither 0 nor 1.
    """
    return _switch(os.environ, "BERNSTEIN_TUI_STREAM", default=False)


def has_full_terminal() -> bool:
    """Whether ``TERM`` names a terminal on which a text can be put anywhere."""
    return os.environ.get("TERM", "dumb") not in {"", "dumb"}


# In the environment of each command that a run starts: the run, and what tells its commands apart.
INSIDE_RUN = "BERNSTEIN_INSIDE_RUN"


def is_inside_run() -> bool:
    """``BERNSTEIN_INSIDE_RUN``: whether an agent of a run started this process."""
    return bool(os.environ.get(INSIDE_RUN))


def child_environment(*hidden: str) -> dict[str, str]:
    """The environment for a command: without our variables, which are for us alone.

    Args:
        hidden: Further prefixes of variables that the command must not see.
    """
    prefixes = ("BERNSTEIN_", *hidden)
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def is_in_block() -> bool:
    """``BERNSTEIN_BLOCK``: whether this process was started inside of a block of its parent."""
    return bool(os.environ.get("BERNSTEIN_BLOCK"))


def wants_tracebacks() -> bool:
    """``BERNSTEIN_DEBUG``: whether a fault of ours is shown with its traceback."""
    return bool(os.environ.get("BERNSTEIN_DEBUG"))


def _retention(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise SettingsError(
            f"BERNSTEIN_REPLAY_RETENTION is {text!r}; expected how many runs to keep, from 1\n"
            "  unset it to keep all: unset BERNSTEIN_REPLAY_RETENTION"
        )
    return int(text)


def _replay_run_id(env: Mapping[str, str]) -> str | None:
    run_id = env.get("BERNSTEIN_REPLAY_RUN_ID")
    if run_id == "":
        # Not the same as unset: a shell variable that was empty must not turn a replay live.
        raise SettingsError(
            "BERNSTEIN_REPLAY_RUN_ID is empty; expected a run id, a prefix of one, or latest\n"
            "  unset it to record: unset BERNSTEIN_REPLAY_RUN_ID"
        )
    return run_id


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables that begin as ours do and mean nothing, with the name that was likely meant."""
    env = os.environ if environ is None else environ
    unknown = [n for n in env if n.startswith("BERNSTEIN_") and n not in KNOWN_VARIABLES]
    return {
        name: next(iter(difflib.get_close_matches(name, KNOWN_VARIABLES, 1)), "")
        for name in unknown
    }


def _keys_dir(env: Mapping[str, str]) -> Path:
    if own := env.get("BERNSTEIN_KEYS_DIR"):
        return Path(own)
    data = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or Path.home()) / ".local" / "share"
    return Path(data) / "bernstein" / "keys"


def _seed(text: str | None) -> int | None:
    if not text:
        return None
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if not 0 <= seed < 2**31:
        raise SettingsError(
            f"BERNSTEIN_DETERMINISTIC_SEED is {text!r}; expected a whole number from 0 to "
            f"{2**31 - 1}\n  for example: BERNSTEIN_DETERMINISTIC_SEED=42 bernstein run plan.yaml"
        )
    return seed


def _switch(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = env.get(name, "")
    if text == "":
        return default
    if text not in {"0", "1"}:
        raise SettingsError(f"{name} is {text!r}; expected 0 or 1\n  unset it: unset {name}")
    return text == "1"
