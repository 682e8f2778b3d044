"""YAML nodes that know where they stand and what they are called, so that errors can say it."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bernstein.errors import YamlError

MAX_BYTES = 4 * 2**20
MAX_NODES = 200_000


def parse_yaml(data: bytes, file: str, kind: str, error: type[YamlError]) -> Node | None:
    """The root of the YAML that ``data`` spells; None where it is empty.

    Args:
        data: The file's bytes.
        file: What errors name.
        kind: What it should be: plan.
        error: What is raised where it is none.
    """
    if len(data) > MAX_BYTES:
        raise error(f"a {kind} is at most {MAX_BYTES} bytes", file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data[: wrong.start].count(b"\n") + 1
        raise error(f"a {kind} is UTF-8; this byte is not", file=file, line=line) from wrong
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as wrong:
        mark = wrong.problem_mark or wrong.context_mark
        raise error(
            f"not YAML: {wrong.problem or wrong.context}",
            file=file,
            line=mark.line + 1 if mark else 1,
            column=mark.column + 1 if mark else 1,
        ) from wrong
    except (yaml.YAMLError, RecursionError) as wrong:
        raise error(f"not YAML: {wrong or 'nested too deeply'}", file=file) from wrong
    if root is None:
        return None
    node = Node(root, file, f"the {kind}", error)
    _refuse_bombs(node, kind)
    return node


def _refuse_bombs(root: Node, kind: str) -> None:
    """Refuse aliases that unfold to more than a file can be: count what a walk would visit."""
    counts: dict[int, int] = {}

    def count(node: yaml.Node, depth: int) -> int:
        if id(node) in counts:
            return counts[id(node)]
        if depth > 64:
            root.at(node, root.what).fail(f"nested too deeply for a {kind}")
        counts[id(node)] = MAX_NODES  # an alias to a node it is inside of has no end
        total = 1
        if isinstance(node, yaml.MappingNode):
            total += sum(count(part, depth + 1) for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            total += sum(count(part, depth + 1) for part in node.value)
        counts[id(node)] = min(total, MAX_NODES)
        return counts[id(node)]

    if count(root.node, 0) >= MAX_NODES:
        raise root.error(
            f"the {kind}'s aliases unfold to more than a {kind} can hold", file=root.file
        )


class Node:
    """A YAML node that knows what it is called, for errors."""

    def __init__(self, node: yaml.Node, file: str, what: str, error: type[YamlError]) -> None:
        self.node = node
        self.file = file
        self.what = what
        self.error = error

    def at(self, node: yaml.Node, what: str) -> Node:
        """Another node of the same file."""
        return Node(node, self.file, what, self.error)

    def fail(self, problem: str) -> NoReturn:
        mark = self.node.start_mark
        raise self.error(problem, file=self.file, line=mark.line + 1, column=mark.column + 1)

    def shown(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        return "nothing" if self.is_null else repr(self.node.value[:60])

    @property
    def is_null(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag.endswith(":null")

    def members(self, keys: Iterable[str], required: Iterable[str] = ()) -> dict[str, Node]:
        """The members of a mapping whose keys are all known; null members are absent."""
        found = self.all_members(keys)
        for name in required:
            if name not in found or found[name].is_null:
                self.fail(f"{self.what} needs a {name!r}")
        return {name: node for name, node in found.items() if not node.is_null}

    def all_members(self, keys: Iterable[str]) -> dict[str, Node]:
        """The members of a mapping whose keys are all known, those that are null too."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"{self.what}: expected a mapping with {listed(keys)}; got {self.shown()}")
        found: dict[str, Node] = {}
        known = list(keys)
        for key_node, value_node in self.node.value:
            key = self.at(key_node, "key")
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else key.shown()
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"expected {listed(known)}"
                key.fail(f"{self.what} has no key {name!r}; {hint}")
            if name in found:
                key.fail(f"{self.what}: the key {name!r} stands here a second time")
            found[name] = self.at(value_node, name)
        return found

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            self.fail(f"{self.what}: expected text; got {self.shown()}")
        if not self.node.tag.endswith(":str"):
            self.fail(
                f"{self.what}: expected text; YAML reads {self.node.value!r} as "
                f"{self.node.tag.rsplit(':', 1)[-1]}: put it in quotes"
            )
        if "\0" in self.node.value:
            self.fail(f"{self.what}: a NUL character cannot stand here")
        return str(self.node.value)

    def line_of_text(self) -> str:
        text = self.text().strip()
        if not text:
            self.fail(f"{self.what}: expected text; got an empty one")
        return text

    def integer(self, low: int, high: int) -> int:
        value: int | None = self._scalar("int", int)
        if value is None or not low <= value <= high:
            self.fail(
                f"{self.what}: expected a whole number from {low} to {high}; got {self.shown()}"
            )
        return value

    def number(self, low: float, high: float) -> float:
        value: float | None = self._scalar("int", float)
        value = self._scalar("float", float) if value is None else value
        if value is None or not low <= value <= high:
            self.fail(
                f"{self.what}: expected a number from {low:g} to {high:g}; got {self.shown()}"
            )
        return value

    def micro_dollars(self) -> int:
        """Micro-dollars of ``"$15"``, ``15`` or ``1.50``."""
        text = self.node.value if isinstance(self.node, yaml.ScalarNode) else ""
        found = re.fullmatch(r"\$?\s*(\d{1,9})(?:\.(\d{1,6}))?", text, re.ASCII)
        if found is None:
            self.fail(f'{self.what}: expected dollars, as "$15" or 1.50; got {self.shown()}')
        return int(found[1]) * 1_000_000 + int((found[2] or "").ljust(6, "0"))

    def _scalar(self, tag: str, convert: Callable[[str], Any]) -> Any:
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.tag.endswith(f":{tag}"):
            return None
        try:
            return convert(self.node.value)
        except ValueError:
            return None

    def choice(self, values: Iterable[str]) -> str:
        text = self.text()
        if text not in (known := list(values)):
            near = difflib.get_close_matches(text, known, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            self.fail(f"{self.what}: expected {listed(known)}; got {text!r}{hint}")
        return text

    def items(self) -> list[Node]:
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail(f"{self.what}: expected a list; got {self.shown()}")
        return [self.at(item, f"{self.what}[{n}]") for n, item in enumerate(self.node.value)]

    def texts(self) -> list[Node]:
        """A list of texts, or one text for a list of one."""
        if isinstance(self.node, yaml.ScalarNode):
            return [self]
        return self.items()


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)
