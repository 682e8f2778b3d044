"""Runs an agent's command beside the gateway: its surroundings, its signals, its end.

Its standard streams are its own. It has a private home and temporary folder, which are gone after
it; in a replay it is given no real key, and every proxy variable names a door that is shut.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.capture.gateway.compaction import codex_settings, gemini_settings, with_policy
from bernstein.files import make_private, remove_tree
from bernstein.settings import INSIDE_RUN, PROVIDER_KEYS, child_environment, named_url
from bernstein.wire.protocol import PROVIDERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bernstein.capture.gateway.compaction import CompactionPolicy
    from bernstein.capture.gateway.server import GatewayServer

# What clients are told so that they talk to nobody but the gateway.
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}
# Other providers by their variables. On loopback no proxy stands before them: a replay shuts them.
_ELSEWHERE = re.compile(
    r"_API_BASE$|^AZURE_OPENAI_ENDPOINT$|^(?:GOOGLE|ANTHROPIC)_(?:VERTEX|BEDROCK|FOUNDRY)_BASE_URL$"
    r"|^OLLAMA_HOST$"
)
# Nothing listens there: port 9 of loopback, the discard service, is nobody's.
_SHUT = "http://127.0.0.1:9"
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_CREDENTIAL = re.compile(r"(?:_API_KEY|_TOKEN|_SECRET|_SECRET_KEY|_ACCESS_KEY|_PASSWORD)$")
_NO_KEY = "sk-replay-no-key-is-needed"
_KILL_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The private folders of a child."""

    home: Path
    tmp: Path


@contextmanager
def surroundings(home: Path, tmp: Path) -> Iterator[Surroundings]:
    """Make a private home and temporary folder, which are removed afterwards."""
    made = Surroundings(home, tmp)
    for path in (home, tmp):
        make_private(path)
    try:
        yield made
    finally:
        for path in (home, tmp):
            remove_tree(path)


def environment(
    server: GatewayServer,
    made: Surroundings,
    upstreams: Mapping[str, str],
    *,
    is_replay: bool,
    key_names: Sequence[str] | None = None,
    policy: CompactionPolicy | None = None,
) -> dict[str, str]:
    """The environment of the child; settings of ours are not in it."""
    env = with_policy(child_environment(), policy) | _QUIET | _private(made) | {INSIDE_RUN: "1"}
    ours = pointers(server, upstreams)
    env |= ours
    if is_replay:
        env = {name: value for name, value in env.items() if not _CREDENTIAL.search(name)}
        env |= no_keys(key_names)
        env |= dict.fromkeys(_PROXIES, f"http://127.0.0.1:{server.port}")
        env |= {name: _SHUT for name in env if _ELSEWHERE.search(name) and name not in ours}
    _write_configuration(server, made, policy)
    return env


def environment_without_keys(made: Surroundings) -> dict[str, str]:
    """The environment of a command that asks nobody: no setting of ours, and no credential."""
    keys = {name for names in PROVIDER_KEYS.values() for name in names}
    env = child_environment() | _private(made)
    return {n: value for n, value in env.items() if n not in keys and not _CREDENTIAL.search(n)}


def _private(made: Surroundings) -> dict[str, str]:
    """Where a command finds its home and its temporary files."""
    folders = {
        "HOME": str(made.home),
        "TMPDIR": str(made.tmp),
        "XDG_CONFIG_HOME": str(made.home / ".config"),
        "XDG_CACHE_HOME": str(made.home / ".cache"),
        "XDG_DATA_HOME": str(made.home / ".local" / "share"),
    }
    real = child_environment()
    if real.get("HOME") and "PYTHONUSERBASE" not in real:
        # Packages that the user has installed for themself are part of the program.
        folders["PYTHONUSERBASE"] = f"{real['HOME']}/.local"
    return folders


def pointers(server: GatewayServer, upstreams: Mapping[str, str]) -> dict[str, str]:
    """The variables that point SDKs and clients at the gateway."""
    urls = {
        variable: server.base_url(name) + ending
        for name in upstreams
        if name in PROVIDERS
        for variable, ending in PROVIDERS[name].variables.items()
    }
    # A proxy must not come between: it would be given the run's secret, and the key.
    around = ",".join(filter(None, (named_url("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")))
    return urls | {"NO_PROXY": around, "no_proxy": around}


def no_keys(names: Iterable[str] | None) -> dict[str, str]:
    """Something that is no key, in each of these variables; in all where nothing is known of them.

    A client that finds more of them than when it was recorded may choose otherwise, or warn.
    """
    known = (name for names in PROVIDER_KEYS.values() for name in names)
    return dict.fromkeys(known if names is None else names, _NO_KEY)


def _write_configuration(
    server: GatewayServer, made: Surroundings, policy: CompactionPolicy | None
) -> None:
    """The files of clients that take no base URL from the environment."""
    codex = made.home / ".codex"
    make_private(codex)
    path = codex / "config.toml"
    path.write_text(
        'model_provider = "bernstein"\n'
        'approval_policy = "never"\n'
        'sandbox_mode = "danger-full-access"\n'
        "check_for_update_on_startup = false\n"
        f"{codex_settings(policy)}"
        "[model_providers.bernstein]\n"
        'name = "bernstein"\n'
        f'base_url = "{server.base_url("openai")}"\n'
        'env_key = "OPENAI_API_KEY"\n'
        'wire_api = "responses"\n'
        "request_max_retries = 1\n"
        "stream_max_retries = 1\n"
        "[analytics]\n"
        "enabled = false\n"
    )
    path.chmod(0o600)
    gemini = made.home / ".gemini"
    make_private(gemini)
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
        **gemini_settings(policy),
    }
    (gemini / "settings.json").write_text(json.dumps(settings) + "\n")


@contextmanager
def passing_on_signals(child: subprocess.Popen[bytes], *, has_own_session: bool) -> Iterator[None]:
    """Pass signals to us on to a command, from before it runs; a command that stays is ended."""
    handlers = {
        number: signal.signal(number, lambda number, _: child.send_signal(number))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    handlers[signal.SIGINT] = signal.signal(
        signal.SIGINT, lambda *_: _pass_on_sigint(child, has_own_session=has_own_session)
    )
    try:
        yield
    except BaseException:
        child.kill()
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def wait_for(child: subprocess.Popen[bytes], timeout_s: float | None) -> int:
    """Wait for a command to end, our standard streams its own.

    Returns:
        Its exit code; 128 and the number of the signal that ended it, where one did.
    """
    is_over = threading.Event()
    try:
        if timeout_s is not None:
            threading.Thread(
                target=_end_in_time, args=(child, timeout_s, is_over), daemon=True
            ).start()
        code = child.wait()
    finally:
        is_over.set()
    return 128 - code if code < 0 else code


def _pass_on_sigint(child: subprocess.Popen[bytes], *, has_own_session: bool) -> None:
    """Pass Ctrl-C on, unless the terminal has sent it to both of us."""
    try:
        if not has_own_session and os.tcgetpgrp(0) == os.getpgrp():
            return
    except OSError:
        pass  # no terminal: it was sent to us alone
    child.send_signal(signal.SIGINT)


def _end_in_time(
    child: subprocess.Popen[bytes], timeout_s: float, is_over: threading.Event
) -> None:
    if is_over.wait(timeout_s):
        return
    os.write(2, f"bernstein: {timeout_s:g} s are over, the program is ended\n".encode())
    child.terminate()
    if not is_over.wait(_KILL_AFTER_S):
        child.kill()
