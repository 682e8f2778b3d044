"""What programs are written with: tools, the time, ids and random numbers that a replay repeats.

Inside a ``bernstein.record()`` or ``bernstein.replay()`` block they are recorded or served; outside
they are what they say.
"""

from __future__ import annotations

import functools
import inspect
import random
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from bernstein.errors import UsageError
from bernstein.settings import is_in_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bernstein.capture.gateway.world import World

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _world() -> World | None:
    from bernstein.capture.gateway.inprocess import open_world  # noqa: PLC0415 - a server is heavy

    world = open_world()
    if world is None and is_in_block():
        # Not live: in a replay nobody would know.
        raise UsageError(
            "a child process of a record or replay block asks the world, and has no recording\n"
            "  call tools, and draw numbers, in the process that opened the block"
        )
    return world


@overload
def tool(
    function: Callable[Arguments, Result], *, name: str | None = ..., errors: Sequence[Any] = ...
) -> Callable[Arguments, Result]: ...


@overload
def tool(
    function: None = None, *, name: str | None = ..., errors: Sequence[Any] = ...
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    errors: Sequence[type[Exception]] = (),
) -> Any:
    """Record what a function gives for its arguments, and serve that in a replay.

    Arguments and result are values of JSON; the function may be a coroutine function, or a method,
    whose object is no part of the key. What it asks inside is part of its answer.

    Args:
        function: The function; without it, ``tool`` gives a decorator.
        name: What it is known by in a recording, instead of its module and name.
        errors: Exceptions of yours that a replay raises again as themselves.
    Raises:
        UsageError: It is a generator, or (when it is called) is given what JSON does not hold.
        ReplayMissError: It is called in a strict replay with what was not recorded.
    """
    if function is None:
        return functools.partial(tool, name=name, errors=errors)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{function.__qualname__} gives its answer in pieces: a tool gives it whole\n"
            "  decorate a function that returns a list"
        )
    known = name or f"{function.__module__}.{function.__qualname__}"
    signature = inspect.signature(function)

    def request(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        first = next(iter(given), None)
        if first in {"self", "cls"}:
            del given[first]
        return {"name": known, "arguments": given}

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            world = _world()
            if world is None:
                return await function(*args, **kwargs)
            return await world.aanswer(
                "tool", request(args, kwargs), lambda: function(*args, **kwargs), errors
            )

        return acall

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        world = _world()
        if world is None:
            return function(*args, **kwargs)
        return world.answer(
            "tool", request(args, kwargs), lambda: function(*args, **kwargs), errors
        )

    return call


def now(name: str | None = None) -> datetime:
    """The time, in UTC; with a name, one that no other draw shifts.

    Raises:
        ReplayMissError: A strict replay has no (further) time under this name.
    """
    world = _world()
    if world is None:
        return datetime.now(UTC)
    request = None if name is None else {"name": name}
    said = world.answer("clock", request, lambda: datetime.now(UTC).isoformat())
    return datetime.fromisoformat(cast("str", said))


def new_uuid(name: str | None = None) -> uuid.UUID:
    """A random UUID, version 4; with a name, one that no other draw shifts.

    Under a seed it follows from the seed, the name and how many this name has had.

    Raises:
        ReplayMissError: A strict replay has no (further) one under this name.
    """
    world = _world()
    if world is None:
        return uuid.uuid4()

    def draw() -> str:
        number = int(world.seed_of("uuid", name or "")[:32], 16)
        return str(uuid.UUID(int=number, version=4))

    request = None if name is None else {"name": name}
    return uuid.UUID(cast("str", world.answer("uuid", request, draw)))


def rng(name: str) -> random.Random:
    """The random numbers of this name: how many others draw does not matter to them.

    Under a seed they follow from the seed and the name.

    Raises:
        ReplayMissError: A strict replay has none under this name.
    """
    world = _world()
    return random.Random() if world is None else world.generator(name)  # noqa: S311 - no secrets
