"""A YAML text as a tree of nodes that know their place in it.

ruamel.yaml serves as parser only: its events carry offsets, which is what an edit that keeps every other byte needs.
Nothing is ever dumped.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ds_migrate.files.limits import LARGEST_CONFIG

MAX_DEPTH = 100
MAX_SIZE = 1_000_000  # nodes after aliases are followed: a bound for "billion laughs" files

# What a YAML 1.1 or a 1.2 reader may take for something else than a string.
_NOT_A_STRING = re.compile(
    r"(?i:|~|null|true|false|yes|no|on|off|y|n|=|<<|[-+.]?\.?(?:inf|nan))"
    r"|[-+]?[0-9.][0-9_.,:]*(?:[eE][-+]?[0-9]+)?|0[xob][0-9a-fA-F_]+|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*"
)


class UnreadableError(Exception):
    """The text is not YAML that can be edited. ``line`` and ``column`` count from 1."""

    def __init__(self, reason: str, line: int = 1, column: int = 0) -> None:
        super().__init__(reason)
        self.reason, self.line, self.column = reason, line, column


@dataclass(eq=False)
class Node:
    """``text[start:end]``; anchors and tags belong to it. ``line`` and ``column`` count from 1."""

    kind: str  # "scalar", "mapping", "sequence" or "alias"
    start: int
    end: int
    line: int
    column: int
    anchor: str | None = None
    tag: str | None = None
    flow: bool = False
    style: str = ""  # of a scalar: "" plain, "'", '"', "|" or ">"
    value: str = ""
    pairs: list[tuple[Node, Node]] = field(default_factory=list)
    items: list[Node] = field(default_factory=list)
    target: Node | None = None  # what an alias refers to

    @property
    def real(self) -> Node:
        """Return the node itself, or what its alias refers to."""
        return self.target if self.target is not None else self

    @property
    def is_null(self) -> bool:
        plain = self.kind == "scalar" and not self.style and self.tag is None
        return plain and self.value in ("", "~", "null", "Null", "NULL")

    def index(self, key: str) -> int | None:
        """The position of ``key`` among the mapping's own pairs."""
        for i, (name, _) in enumerate(self.pairs):
            if name.kind == "scalar" and name.value == key:
                return i
        return None

    def own(self, key: str) -> Node | None:
        i = self.index(key)
        return None if i is None else self.pairs[i][1]

    def merged(self, key: str) -> bool:
        """Return whether ``key`` comes from elsewhere, by a merge key (``<<: *base``)."""
        if self.index(key) is not None:
            return False
        source = self.own("<<")
        if source is None:
            return False
        bases = source.real.items if source.real.kind == "sequence" else [source]
        return any(base.real.index(key) is not None or base.real.merged(key) for base in bases)


@dataclass(frozen=True, eq=False)
class YamlSource:
    """A file's text without its byte order mark, and the root of each document in it."""

    text: str
    bom: bytes
    roots: tuple[Node, ...]

    def encode(self, text: str) -> bytes:
        """Return an edited text as the file's bytes."""
        return self.bom + text.encode("utf-8")


def read_yaml(content: bytes) -> YamlSource:
    """Parse a file. Raises UnreadableError for anything but YAML in UTF-8, and for more than 256 KiB."""
    if len(content) > LARGEST_CONFIG:
        raise UnreadableError(f"larger than {LARGEST_CONFIG >> 10} KiB", 1)
    bom = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    try:
        text = content[len(bom) :].decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableError(f"not UTF-8: {error.reason} at byte {error.start}", line) from None
    roots = tuple(parse(text))
    for root in roots:
        data(root)  # refuses aliases that explode
    return YamlSource(text, bom, roots)


def is_string(plain: str) -> bool:
    """Return whether every YAML reader takes this plain scalar for a string."""
    return _NOT_A_STRING.fullmatch(plain) is None


def parse(text: str) -> list[Node]:
    """The root node of every document of ``text`` (newlines and all, but without a byte order mark).

    Raises:
        UnreadableError: not YAML, a key twice in one mapping, an alias without anchor, or nested beyond reason.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return list(_documents(YAML(typ="safe", pure=True).parse(text)))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        if mark is None:
            raise UnreadableError(reason) from None
        raise UnreadableError(reason, mark.line + 1, mark.column + 1) from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise UnreadableError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def _documents(events: object) -> Iterator[Node]:
    from ruamel.yaml import events as ev

    stack: list[tuple[Node, list[Node]]] = []
    anchors: dict[str, Node] = {}
    for event in events:  # type: ignore[attr-defined]
        if isinstance(event, ev.DocumentStartEvent):
            anchors = {}
            continue
        if isinstance(event, (ev.MappingEndEvent, ev.SequenceEndEvent)):
            node, children = stack.pop()
            node.end = event.end_mark.index
            if node.kind == "sequence":
                node.items = children
            else:
                node.pairs = list(zip(children[::2], children[1::2], strict=True))
                _refuse_duplicates(node)
        elif isinstance(event, ev.NodeEvent):
            node = _node(event)
            if isinstance(event, ev.AliasEvent):
                node.target = anchors.get(node.value)
                if node.target is None or any(node.target is parent for parent, _ in stack):
                    raise UnreadableError(f"alias *{node.value} has no anchor before it", node.line, node.column)
            elif node.anchor is not None:
                anchors[node.anchor] = node
            if node.kind in ("mapping", "sequence"):
                if len(stack) >= MAX_DEPTH:
                    raise UnreadableError(f"nested more than {MAX_DEPTH} deep", node.line, node.column)
                stack.append((node, []))
                continue
        else:
            continue
        if stack:
            stack[-1][1].append(node)
        else:
            yield node


def _node(event: object) -> Node:
    from ruamel.yaml import events as ev

    mark = event.start_mark  # type: ignore[attr-defined]
    node = Node("scalar", mark.index, event.end_mark.index, mark.line + 1, mark.column + 1)  # type: ignore[attr-defined]
    if isinstance(event, ev.AliasEvent):
        node.kind, node.value = "alias", str(event.anchor)
        return node
    node.anchor = event.anchor  # type: ignore[attr-defined]
    tag = event.tag  # type: ignore[attr-defined]
    node.tag = None if tag is None else str(tag)
    if isinstance(event, ev.ScalarEvent):
        node.value, node.style = str(event.value), event.style or ""
    else:
        node.kind = "mapping" if isinstance(event, ev.MappingStartEvent) else "sequence"
        node.flow = bool(event.flow_style)  # type: ignore[attr-defined]
    return node


def _refuse_duplicates(mapping: Node) -> None:
    seen: set[str] = set()
    for key, _ in mapping.pairs:
        if key.kind == "scalar":
            if key.value in seen:
                raise UnreadableError(f"key {key.value!r} stands twice in one mapping", key.line, key.column)
            seen.add(key.value)


def data(root: Node) -> object:
    """The meaning of a node, aliases followed: dicts, lists and ``(type, text)`` pairs, to compare and never to write.

    Raises:
        UnreadableError: aliases that expand to more than a million nodes.
    """
    return _Meaning().of(root)


class _Meaning:
    def __init__(self) -> None:
        self._known: dict[int, tuple[object, int]] = {}

    def of(self, node: Node) -> object:
        return self._measure(node)[0]

    def _measure(self, node: Node) -> tuple[object, int]:
        node = node.real
        if id(node) in self._known:
            return self._known[id(node)]
        size = 1
        result: object
        if node.kind == "scalar":
            result = scalar_data(node.value, node.style, node.tag)
        elif node.kind == "sequence":
            measured = [self._measure(item) for item in node.items]
            result, size = [value for value, _ in measured], 1 + sum(n for _, n in measured)
        else:
            content: dict[object, object] = {}
            for key, value in node.pairs:
                name, name_size = self._measure(key)
                content[name if isinstance(name, tuple) else repr(name)], value_size = self._measure(value)
                size += name_size + value_size
            result = content
        if size > MAX_SIZE:
            raise UnreadableError(f"its aliases expand to more than {MAX_SIZE} nodes", node.line, node.column)
        self._known[id(node)] = result, size
        return result, size


def scalar_data(value: str, style: str = "", tag: str | None = None) -> tuple[str, str]:
    if tag is not None:
        return tag, value
    return ("str" if style or is_string(value) else "plain"), value
