"""The statements at the top of a group's files, and which of them need which, by the names in them.

What a statement needs is rather too much than too little: a name stands for every definition of that name in the files,
as an attribute or in a string too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Set
from functools import cached_property

import libcst as cst

from ds_migrate.syntax.nodes import code, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

Definition = cst.ClassDef | cst.FunctionDef

_PATH = re.compile(r"[\w.:/-]+")
_WORD = re.compile(r"[^\W\d]\w*")
# What finds a definition by a name that no source spells.
_DYNAMIC = frozenset(
    ["globals", "locals", "vars", "eval", "exec", "__dict__", "__subclasses__", "import_module", "__import__",
     "getmembers", "locate", "instantiate"]
)  # fmt: skip
_LIBRARIES = ("torch", "torchvision", "numpy", "transformers", "self")


class TopLevel:
    """The statements of several files, imports left out."""

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self.file_of: dict[cst.CSTNode, SourceFile] = {}
        self._words: dict[cst.CSTNode, frozenset[str]] = {}
        self._definers: dict[str, list[cst.CSTNode]] = {}
        self._imported: dict[SourceFile, set[str]] = {}
        self._exported: set[str] = set()
        for file in files:
            bindings = file.names.bindings
            self._imported[file] = {*bindings, *(name.rpartition(".")[2] for name in bindings.values())}
            for statement in file.module.body:
                if _is_import(statement):
                    if file.path.name == "__init__.py":
                        self._exported |= set(_WORD.findall(code(statement)))
                    continue
                self.file_of[statement] = file
                self._words[statement] = _words(file, statement)
                for name in _defined(statement):
                    self._definers.setdefault(name, []).append(statement)

    def definitions(self, names: Collection[str]) -> set[cst.CSTNode]:
        """Return the statements that define one of the names."""
        return {statement for name in names for statement in self._definers.get(name, ())}

    def needed_by(self, seeds: Iterable[cst.CSTNode], without: Collection[cst.CSTNode] = ()) -> set[cst.CSTNode]:
        """Return the statements and what they need, directly or through others, but never through ``without``."""
        return _reached(seeds, self._needs, without)

    def _needs(self, statement: cst.CSTNode) -> set[cst.CSTNode]:
        """Return the definitions of a statement's names, and what binds them in its own file or a file that it imports
        them from."""
        file = self.file_of[statement]
        return {
            definer
            for name in self._words[statement]
            for definer in self._definers.get(name, ())
            if isinstance(definer, (cst.ClassDef, cst.FunctionDef))
            or self.file_of[definer] is file
            or not self._imported[file].isdisjoint((name, self.file_of[definer].path.stem))
        }

    def users_of(self, seeds: Iterable[cst.CSTNode], without: Collection[cst.CSTNode] = ()) -> set[cst.CSTNode]:
        """Return the statements and those that need them, directly or through others, but never through ``without``."""
        return _reached(seeds, self._users, without)

    def _users(self, statement: cst.CSTNode) -> list[cst.CSTNode]:
        names = _defined(statement)
        users = [user for user, words in self._words.items() if words & names]
        return [user for user in users if statement in self._needs(user)]

    def words_outside(self, statements: Collection[cst.CSTNode], file: SourceFile) -> set[str]:
        """Return the names in the statements of a file that are none of those given."""
        own = [words for node, words in self._words.items() if self.file_of[node] is file and node not in statements]
        return set().union(*own)

    @cached_property
    def is_dynamic(self) -> bool:
        """Return whether a definition may be found by a name that is made when the code runs."""
        return any(words & _DYNAMIC for words in self._words.values()) or any(map(self._looks_up, self._words))

    def found_by_others(self) -> set[cst.CSTNode]:
        """Return the statements that code may find which does not name them: what a decorator may have registered,
        or everything where names are made when the code runs."""
        return {
            statement
            for statement in self._words
            if self.is_dynamic or (isinstance(statement, (cst.ClassDef, cst.FunctionDef)) and statement.decorators)
        }

    def unused(self, used: Collection[str]) -> Set[Definition]:
        """Return the functions and the classes without base classes, which may register or run them, that nothing in
        the files names but themselves and each other, and that are not among the names ``used``; none where a
        definition may be found by a name that is made when the code runs."""
        if self.is_dynamic:
            return set()
        found: set[Definition] = set()
        while True:
            more = {
                node
                for node in self._words
                if isinstance(node, (cst.ClassDef, cst.FunctionDef))
                and not (node in found or node.decorators or (isinstance(node, cst.ClassDef) and _has_base(node)))
                and not (node.name.value in used or self._is_named(node, found))
            }
            if not more:
                return found
            found |= more

    def _is_named(self, node: Definition, unused: Collection[cst.CSTNode]) -> bool:
        name = node.name.value
        others = (words for other, words in self._words.items() if other is not node and other not in unused)
        return name in self._exported or any(name in words for words in others)

    def _looks_up(self, statement: cst.CSTNode) -> bool:
        """Return whether a statement calls ``getattr`` with a name that is made when the code runs, for what may be a
        module of the project."""
        return any(
            isinstance(node, cst.Call)
            and dotted(node.func) == "getattr"
            and len(node.args) > 1
            and not isinstance(node.args[1].value, cst.SimpleString)
            and (self.file_of[statement].names.qualified(node.args[0].value) or "").split(".")[0] not in _LIBRARIES
            for node in walk(statement)
        )


def _reached(
    seeds: Iterable[cst.CSTNode],
    following: Callable[[cst.CSTNode], Iterable[cst.CSTNode]],
    without: Collection[cst.CSTNode],
) -> set[cst.CSTNode]:
    found: set[cst.CSTNode] = set()
    queue = [*seeds]
    while queue:
        statement = queue.pop()
        if statement not in found and statement not in without:
            found.add(statement)
            queue += following(statement)
    return found


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _has_base(node: cst.ClassDef) -> bool:
    return bool(node.keywords) or any(dotted(base.value) != "object" for base in node.bases)


def _words(file: SourceFile, statement: cst.CSTNode) -> frozenset[str]:
    """Return the names that a statement spells, also as attributes and in strings that are a name or a path, each as it
    is bound and as it was imported."""
    found: set[str] = set()
    for node in walk(statement):
        if isinstance(node, cst.Name):
            found.add(node.value)
        elif isinstance(node, cst.SimpleString):
            text = str(node.evaluated_value)
            is_name = _PATH.fullmatch(text) or isinstance(file.parent(node), cst.Annotation)
            found |= set(_WORD.findall(text)) if is_name else set()
    bindings = file.names.bindings
    return frozenset(found | {bindings[name].rpartition(".")[2] for name in found if name in bindings})


def _defined(statement: cst.CSTNode) -> set[str]:
    """Return the names that a statement binds in its module."""
    if isinstance(statement, (cst.ClassDef, cst.FunctionDef)):
        return {statement.name.value}
    bound: list[cst.CSTNode] = []
    for node in walk(statement):
        bound += targets(node)
        if isinstance(node, (cst.For, cst.NamedExpr)):
            bound.append(node.target)
        elif isinstance(node, (cst.AsName, cst.ClassDef, cst.FunctionDef)):
            bound.append(node.name)
    return {name.value for node in bound for name in walk(node) if isinstance(name, cst.Name)}
