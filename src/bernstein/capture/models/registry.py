"""Finds the provider that a call names; each is imported only when it is asked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from bernstein.capture.models.base import DEFAULT_MODELS, PROVIDERS
from bernstein.capture.portal import submit
from bernstein.errors import ModelUnavailableError

if TYPE_CHECKING:
    from bernstein.capture.models.base import Provider

_CLOSE_S = 5.0
_made: dict[tuple[str, str], Provider] = {}
_lock = threading.Lock()


def register_provider(name: str, model: str, provider: Provider) -> None:
    """Answer calls to ``name`` and ``model`` by ``provider`` in this process."""
    with _lock:
        _made[name, model] = provider


def find_provider(name: str, model: str) -> Provider:
    """The provider of a call; made once a process.

    Raises:
        ModelUnavailableError: There is no such provider, or its packages are missing.
    """
    with _lock:
        provider = _made.get((name, model))
        if provider is None:
            provider = _made[name, model] = _make(name, model)
        return provider


def close_providers() -> None:
    """Forget every provider of this process, and close those that hold connections."""
    with _lock:
        providers = list(_made.values())
        _made.clear()
    for provider in providers:
        close = getattr(provider, "aclose", None)
        if close is not None:
            submit(close()).result(_CLOSE_S)


def _make(name: str, model: str) -> Provider:
    if name == "local":
        from bernstein.capture.models.local import LocalProvider  # noqa: PLC0415

        return LocalProvider(model)
    if name == "scripted":
        from bernstein.capture.models.scripted import ScriptedProvider  # noqa: PLC0415

        return ScriptedProvider.from_file(Path(model))
    if name in DEFAULT_MODELS:
        from bernstein.capture.models.remote import RemoteProvider  # noqa: PLC0415

        return RemoteProvider(name, model)
    raise ModelUnavailableError(
        f"there is no provider {name!r}; expected one of {', '.join(PROVIDERS)}"
    )
