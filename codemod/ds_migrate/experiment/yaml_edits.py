"""The edits of one document: what it is to mean, and the splices that make it so, kept side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ds_migrate.experiment import yaml_splices
from ds_migrate.experiment.yaml_nodes import Node, UnreadableError, data, parse, scalar_data
from ds_migrate.experiment.yaml_splices import Splice, Value
from ds_migrate.rules.codes import Code

Path = tuple[str, ...]


class RefusedError(Exception):
    """An edit cannot be made. ``rule`` and ``node`` name the reason and the place, ``advice`` what a person can do."""

    def __init__(self, code: Code, node: Node, message: str, advice: str | None = None) -> None:
        super().__init__(message)
        self.code, self.node, self.advice = code, node, advice


class Change:
    """Edits of one document, by path. An edit inside a shared or merged node is refused by the check of its meaning."""

    def __init__(self, text: str, root: Node, careful: bool = False) -> None:
        """``careful``: parse after each insertion, to find the layout that fits, or the one to refuse. Without, the
        first layout is taken, which is right for nearly all configs; whoever uses the result compares its meaning."""
        self.text, self.root, self._careful = text, root, careful
        self._meaning = data(root)
        self._splices: list[Splice] = []

    @property
    def meaning(self) -> object:
        """The meaning of the document after the edits, as ``yaml_nodes.data`` gives it."""
        return self._meaning

    def splices(self) -> list[Splice]:
        return list(self._splices)

    def add(self, splices: Sequence[Splice]) -> None:
        """Splices whose meaning :meth:`set` states."""
        self._splices += splices

    def set(self, path: Path, value: Value | Sequence[str]) -> None:
        self._meaning = _with(self._meaning, path, _meaning(value))

    def replace(self, path: Path, node: Node, value: int) -> None:
        """Replace the scalar at ``path`` by ``value``. An alias there is replaced by a number, and what several paths
        share through an anchor is written once."""
        self.set(path, value)
        start = node.start if node.kind == "alias" else node.end - len(node.value)
        edit = Splice(start, node.end, str(value))
        if edit not in self._splices:
            self._splices.append(edit)

    def remove(self, path: Path, keys: Sequence[str]) -> None:
        """Keys of the mapping at ``path`` go, the mapping with them when it would be empty."""
        owner = self._own(path)
        indices = [i for i, (key, _) in enumerate(owner.pairs) if key.value in keys]
        if len(indices) == len(owner.pairs) and path:
            self.remove(path[:-1], path[-1:])
            return
        self._splices += yaml_splices.remove(self.text, owner, indices)
        self._meaning = _with(self._meaning, path, None, [("str", key) for key in keys])

    def insert(self, path: Path, pairs: Mapping[str, Value], comments: Mapping[str, str]) -> None:
        """Add pairs to the mapping at ``path``, making the mapping when the parent has none.

        Raises:
            RefusedError: the mapping is shared (an alias, or an anchor that others use) or comes from a merge key.
        """
        owner = self._own(path[:-1])
        key = path[-1]
        if owner.merged(key):
            raise RefusedError(Code.SHARED_THROUGH_ANCHOR, owner, f"{key} comes from a merge key (<<),")
        node = owner.own(key)
        candidates: list[list[Splice]]
        if node is None:
            anchor = owner.index("entrypoint")
            after = len(owner.pairs) - 1 if anchor is None else anchor
            candidates = [
                yaml_splices.insert(
                    self.text, owner, {key: pairs}, after=after, step=self._step(owner), comments=comments
                )
            ]
        elif node.kind == "alias":
            raise RefusedError(Code.SHARED_THROUGH_ANCHOR, node, f"{key} is an alias (*{node.value}),")
        elif node.kind == "mapping":
            step = self._step(node) if node.flow else self._step_between(owner, node)
            last = yaml_splices.insert(self.text, node, pairs, after=len(node.pairs) - 1, step=step, comments=comments)
            first = (
                []
                if node.flow
                else yaml_splices.insert(self.text, node, pairs, after=None, step=step, comments=comments)
            )
            candidates = [last, first] if first else [last]
        elif node.is_null and node.anchor is None:
            candidates = [self._fill(owner, key, node, pairs, comments)]
        else:
            raise RefusedError(Code.VALUE_NOT_EDITABLE, node, f"{key} is no mapping,")
        where = (*path,)
        added = {name: _meaning(value) for name, value in pairs.items()}
        alone = data(self.root)  # this edit is judged by itself, so that the refusal names the right one
        for name, value in added.items():
            alone = _with(alone, (*where, name), value)
        for candidate in candidates:
            if not self._careful or _means(yaml_splices.apply(self.text, candidate), alone):
                self._splices += candidate
                for name, value in added.items():
                    self._meaning = _with(self._meaning, (*where, name), value)
                return
        raise RefusedError(
            Code.SHARED_THROUGH_ANCHOR,
            node or owner,
            f"{key} is shared through an anchor, or laid out in a way that no edit fits,",
        )

    def _fill(
        self, owner: Node, key: str, node: Node, pairs: Mapping[str, Value], comments: Mapping[str, str]
    ) -> list[Splice]:
        name = owner.pairs[owner.index(key) or 0][0]
        if node.start == node.end and not owner.flow:
            return yaml_splices.insert_under(
                self.text, name, pairs, yaml_splices.indent_of(self.text, owner), self._step(owner), comments
            )
        blank = " " if node.start == node.end and not self.text[: node.start].endswith(" ") else ""
        start = node.start if node.start != node.end else self.text.find(":", name.end) + 1
        return [Splice(start, max(start, node.end), blank + yaml_splices.render(pairs))]

    def _own(self, path: Path) -> Node:
        node = self.root
        for i, key in enumerate(path):
            below = node.own(key)
            if below is None or below.kind != "mapping":
                name = ".".join(path[: i + 1])
                raise RefusedError(
                    Code.SHARED_THROUGH_ANCHOR,
                    below or node,
                    f"{name} is not a separate mapping,",
                    f"write {name} out in this config",
                )
            node = below
        return node

    def _step(self, owner: Node) -> str:
        """The indentation that the file uses: that of the first block mapping below ``owner``, else two blanks."""
        for _, value in owner.pairs:
            if value.kind == "mapping" and not value.flow:
                return self._step_between(owner, value)
        return "  "

    def _step_between(self, owner: Node, inner: Node) -> str:
        return " " * max(inner.pairs[0][0].column - owner.pairs[0][0].column, 1)


def _meaning(value: Value | Sequence[str]) -> object:
    if isinstance(value, Mapping):
        return {("str", key): _meaning(item) for key, item in value.items()}
    if isinstance(value, int):
        return "plain", str(value)
    if isinstance(value, str):
        return scalar_data(value)
    return [scalar_data(item) for item in value]


def _with(meaning: object, path: Path, value: object, gone: Sequence[object] = ()) -> object:
    """A copy with ``value`` at ``path`` (or with the keys ``gone`` taken from there); shared parts stay untouched."""
    if not path:
        if not gone:
            return value
        assert isinstance(meaning, dict)
        return {key: item for key, item in meaning.items() if key not in gone}
    inner = dict(meaning) if isinstance(meaning, dict) else {}
    key = ("str", path[0])
    inner[key] = _with(inner.get(key), path[1:], value, gone)
    return inner


def _means(text: str, intended: object) -> bool:
    """Return whether one of the documents of ``text`` means ``intended``."""
    try:
        return any(_equal(data(root), intended) for root in parse(text))
    except UnreadableError:
        return False


def same_meaning(text: str, intended: Sequence[object]) -> str | None:
    """Why ``text`` does not hold exactly the documents ``intended``, None when it does."""
    try:
        roots = parse(text)
    except UnreadableError as error:
        return f"line {error.line}: {error.reason}"
    if len(roots) != len(intended) or not all(_equal(data(r), i) for r, i in zip(roots, intended, strict=True)):
        return "its meaning changed in a place that no edit claimed"
    return None


def _equal(one: object, other: object) -> bool:
    return _normal(one) == _normal(other)


def _normal(meaning: object) -> object:
    """An entrypoint is a command: its words count, not the blanks between them (a folded one may break at another
    place), and in a list not whether a word is quoted (``"3"``)."""
    if isinstance(meaning, dict):
        entry = meaning.get(("str", "entrypoint"))
        if isinstance(entry, tuple) and isinstance(entry[1], str):
            return {**meaning, ("str", "entrypoint"): ("words", *entry[1].split())}
        if isinstance(entry, list):
            return {**meaning, ("str", "entrypoint"): [item[1] if isinstance(item, tuple) else item for item in entry]}
    return meaning
