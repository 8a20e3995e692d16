"""The names of files and folders that a program writes and reads, as far as its text shows them."""

from __future__ import annotations

import re

import libcst as cst

from ds_migrate.plain.dataflow.containers.mappings import display_items
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import is_label
from ds_migrate.syntax.nodes import called_name, dotted, parameters, set_values, single_index
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_BLANK = re.compile(r"%[-+#0-9.]*[a-zA-Z]|\{[^}]*\}")  # where a format puts a value
_UNKNOWN = re.compile(r"[<{*]")  # in a name that is not written out
BLANK = "{}"
_NO_NAMES = frozenset({"", ".", ".."})
_JOINS = frozenset({"join", "joinpath", "Path", "abspath", "expanduser", "str", "realpath", "PurePath"})
_DEEPEST = 6  # names that lead to each other
_Value = tuple[cst.BaseExpression, SourceFile]


class FileNames:
    """The last parts of paths: two calls may mean the same file where they have one of these in common."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._known: dict[tuple[int, int], tuple[cst.CSTNode, frozenset[str]]] = {}  # with the nodes, to keep their ids
        self._folders: dict[tuple[int, int], tuple[cst.CSTNode, frozenset[str]]] = {}

    def of(self, path: cst.BaseExpression, file: SourceFile, depth: int = 0) -> frozenset[str]:
        """Return the names that a path may end with; the text of what cannot be followed stands for itself."""
        question = id(path), depth
        if question not in self._known:
            self._known[question] = path, self._find(path, file, depth)
        return self._known[question][1]

    def parts(self, path: cst.BaseExpression, file: SourceFile, depth: int = 0) -> frozenset[str]:
        """Return the names of a path and of the folders that it is in; BLANK for those that are not written out."""
        names = {BLANK if _UNKNOWN.search(name) else name for name in self.of(path, file, depth)}
        return self.folders(path, file, depth) | (names - _NO_NAMES)

    def folders(self, path: cst.BaseExpression, file: SourceFile, depth: int = 0) -> frozenset[str]:
        """Return the names of the folders that a path is in; BLANK for those that are not written out."""
        question = id(path), depth
        if question not in self._folders:
            self._folders[question] = path, frozenset()  # where it is made of itself
            self._folders[question] = path, self._find_folders(path, file, depth)
        return self._folders[question][1]

    def _find_folders(self, path: cst.BaseExpression, file: SourceFile, depth: int) -> frozenset[str]:
        outer: list[cst.BaseExpression] = []  # folders as a whole
        inner: list[_Value] = []  # paths, of which the last part is no folder
        names = set[str]()
        if isinstance(path, (cst.SimpleString, cst.ConcatenatedString)):
            value = path.evaluated_value
            names.update(_folders_in(value) if isinstance(value, str) else ())
        elif isinstance(path, cst.FormattedString):
            text = "".join(p.value if isinstance(p, cst.FormattedStringText) else "{}" for p in path.parts)
            names.update(_folders_in(text))
            outer = [p.expression for p in path.parts[:-1] if isinstance(p, cst.FormattedStringExpression)]
        elif isinstance(path, cst.BinaryOperation) and isinstance(path.operator, (cst.Divide, cst.Add)):
            outer, inner = [path.left], [(path.right, file)]
        elif isinstance(path, cst.Call) and called_name(path) in _JOINS and path.args:
            owner = (
                [path.func.value] if called_name(path) == "joinpath" and isinstance(path.func, cst.Attribute) else []
            )
            *before, last = (arg.value for arg in path.args)
            outer, inner = [*owner, *before], [(last, file)]
        elif isinstance(path, (cst.Name, cst.Attribute)):
            inner = self._values(path, file)
        if depth < _DEEPEST:
            names.update(name for part in outer for name in self.parts(part, file, depth + 1))
            names.update(name for part, home in inner for name in self.folders(part, home, depth + 1))
        return frozenset(names - _NO_NAMES)

    def _find(self, path: cst.BaseExpression, file: SourceFile, depth: int) -> frozenset[str]:
        if dotted(path) == "None":
            return frozenset()
        unknown = frozenset({self._text(path, file)})
        if depth > _DEEPEST:
            return unknown
        if isinstance(path, (cst.SimpleString, cst.ConcatenatedString)):
            value = path.evaluated_value
            return frozenset({_last(value)}) if isinstance(value, str) else unknown
        if isinstance(path, cst.FormattedString):
            text = "".join(p.value if isinstance(p, cst.FormattedStringText) else "{}" for p in path.parts)
            return frozenset({_last(text)})
        if isinstance(path, cst.BinaryOperation):
            if isinstance(path.operator, cst.Modulo):
                return self.of(path.left, file, depth)
            right = self.of(path.right, file, depth)
            if isinstance(path.operator, cst.Divide):
                return right
            return frozenset(name if "/" in expression_text(path.right) else f"{{}}{name}" for name in right)
        if isinstance(path, cst.Call):
            return self._of_call(path, file, depth) or unknown
        if isinstance(path, (cst.Name, cst.Attribute)):
            values = self._values(path, file)
            found = [self.of(value, home, depth + 1) for value, home in values]
            return frozenset().union(*found) if found else unknown
        if isinstance(path, cst.Subscript) and isinstance(key := single_index(path), cst.SimpleString):
            items = self._flow.once(_items_by_key).get(str(key.evaluated_value), [])
            return unknown.union(*(self.of(value, home, depth + 1) for value, home in items))
        if isinstance(path, cst.IfExp):
            return self.of(path.body, file, depth) | self.of(path.orelse, file, depth)
        return unknown

    def _text(self, path: cst.BaseExpression, file: SourceFile) -> str:
        """Return the text of a path that cannot be followed; variables of a function are its own."""
        names = [] if isinstance(path, cst.Attribute) else file.nodes(cst.Name, below=path)
        read = [name for name in names if name.value not in ("self", "cls") and not is_label(name, file)]
        owners = {id(self._flow.scopes(file).owner(name.value, name)) for name in read}
        return f"<{expression_text(path)}{min(owners - {id(file.module)}, default='')}>"

    def _of_call(self, call: cst.Call, file: SourceFile, depth: int) -> frozenset[str]:
        name = called_name(call)
        if name in _JOINS and call.args:
            return self.of(call.args[-1].value, file, depth)
        if name == "format" and isinstance(call.func, cst.Attribute):
            return self.of(call.func.value, file, depth)
        return frozenset()

    def _values(self, node: cst.Name | cst.Attribute, file: SourceFile) -> list[_Value]:
        """Return everything that a name or an attribute is set to, or given as a parameter."""
        if isinstance(node, cst.Attribute):
            attributes = self._flow.once(_assigned_attributes)
            return attributes.get(node.attr.value, [])
        found: list[_Value] = []
        scopes = self._flow.scopes(file)
        scope = scopes.owner(node.value, node)
        if isinstance(scope, cst.FunctionDef):
            for param in parameters(scope):
                if param.name.value == node.value:
                    found += self._given(scope, param, file)
        return found + [(value, file) for value in scopes.assigned(node) if value is not node]

    def _given(self, function: cst.FunctionDef, param: cst.Param, file: SourceFile) -> list[_Value]:
        found: list[_Value] = []
        for caller, call in self._flow.callers.of(function):
            arg = self._flow.given(call, function, param.name.value, caller)
            if arg is not None and not arg.star:
                found.append((arg.value, caller))
            elif param.default is not None:
                found.append((param.default, file))
        return found


def _assigned_attributes(flow: Flow) -> dict[str, list[_Value]]:
    """Return what the attributes of a program are set to, by their names."""
    found: dict[str, list[_Value]] = {}
    for file, line in flow.nodes(cst.Assign, cst.AnnAssign):
        for target, value in set_values(line):
            if isinstance(target, cst.Attribute) and value is not None:
                found.setdefault(target.attr.value, []).append((value, file))
    return found


def _items_by_key(flow: Flow) -> dict[str, list[_Value]]:
    """Return the values that the dicts of a program are written with, by their keys."""
    found: dict[str, list[_Value]] = {}
    for file, node in flow.nodes(cst.Dict):
        for key, value in display_items(node):
            if isinstance(key, str):
                found.setdefault(key, []).append((value, file))
    return found


def _last(path: str) -> str:
    """Return the last part of a path; what is formatted into it is a blank."""
    return _BLANK.sub("{}", path).rstrip("/").rpartition("/")[2]


def may_be_one(names: frozenset[str], others: frozenset[str]) -> bool:
    """Return whether a name of a file may be one of others, where parts of both are blanks: "{}.pt" and "best.pt"."""
    known = [name for name in names if _is_partly_known(name)]
    found = [name for name in others if _is_partly_known(name)]
    return any(_matches(one, other) or _matches(other, one) for one in known for other in found)


def _is_partly_known(name: str) -> bool:
    return "<" not in name and name.replace(BLANK, "") not in _NO_NAMES


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split(BLANK))), name) is not None


def root_of(path: cst.BaseExpression) -> cst.BaseExpression:
    """Return the first folder of a path that is joined: ``root`` of ``os.path.join(root, name)``."""
    while True:
        if isinstance(path, cst.BinaryOperation):
            path = path.left
        elif isinstance(path, cst.FormattedString) and isinstance(path.parts[0], cst.FormattedStringExpression):
            path = path.parts[0].expression
        elif isinstance(path, cst.Call) and called_name(path) == "joinpath" and isinstance(path.func, cst.Attribute):
            path = path.func.value
        elif isinstance(path, cst.Call) and called_name(path) in _JOINS and path.args:
            path = path.args[0].value
        else:
            return path


def _folders_in(path: str) -> set[str]:
    """Return the names of the folders in the text of a path."""
    return {BLANK if _UNKNOWN.search(part) else part for part in path.split("/")[:-1]}
