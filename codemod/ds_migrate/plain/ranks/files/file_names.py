"""The names of files that a program writes and reads, as far as its text shows them."""

from __future__ import annotations

import re

import libcst as cst

from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.syntax.nodes import called_name, parameters, set_values
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_BLANK = re.compile(r"%[-+#0-9.]*[a-zA-Z]|\{[^}]*\}")  # where a format puts a value
_DEEPEST = 6
_Value = tuple[cst.BaseExpression, SourceFile]


class FileNames:
    """The last parts of paths: two calls may mean the same file where they have one of these in common."""

    def __init__(self, flow: Flow, callers: Callers) -> None:
        self._flow = flow
        self._callers = callers
        self._known: dict[tuple[int, int], tuple[cst.CSTNode, frozenset[str]]] = {}  # with the nodes, to keep their ids

    def of(self, path: cst.BaseExpression, file: SourceFile, depth: int = 0) -> frozenset[str]:
        """Return the names that a path may end with; the text of what cannot be followed stands for itself."""
        question = id(path), depth
        if question not in self._known:
            self._known[question] = path, self._find(path, file, depth)
        return self._known[question][1]

    def _find(self, path: cst.BaseExpression, file: SourceFile, depth: int) -> frozenset[str]:
        unknown = frozenset({f"<{expression_text(path)}>"})
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
                return self.of(path.left, file, depth + 1)
            right = self.of(path.right, file, depth + 1)
            if isinstance(path.operator, cst.Divide):
                return right
            return frozenset(name if "/" in expression_text(path.right) else f"{{}}{name}" for name in right)
        if isinstance(path, cst.Call):
            return self._of_call(path, file, depth) or unknown
        if isinstance(path, (cst.Name, cst.Attribute)):
            values = self._values(path, file)
            found = [self.of(value, home, depth + 1) for value, home in values]
            return frozenset().union(*found) if found else unknown
        if isinstance(path, cst.IfExp):
            return self.of(path.body, file, depth + 1) | self.of(path.orelse, file, depth + 1)
        return unknown

    def _of_call(self, call: cst.Call, file: SourceFile, depth: int) -> frozenset[str]:
        name = called_name(call)
        if name in ("join", "joinpath", "Path", "abspath", "expanduser", "str", "realpath", "PurePath") and call.args:
            return self.of(call.args[-1].value, file, depth + 1)
        if name == "format" and isinstance(call.func, cst.Attribute):
            return self.of(call.func.value, file, depth + 1)
        return frozenset()

    def _values(self, node: cst.Name | cst.Attribute, file: SourceFile) -> list[_Value]:
        """Return everything that a name or an attribute is set to, or given as a parameter."""
        if isinstance(node, cst.Attribute):
            attributes = self._flow.once("assigned attributes", lambda: _assigned_attributes(self._flow))
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
        for caller, call in self._callers.of(function):
            arg = self._flow.given(call, function, param.name.value, caller)
            if arg is not None and not arg.star:
                found.append((arg.value, caller))
            elif param.default is not None:
                found.append((param.default, file))
        return found


def _assigned_attributes(flow: Flow) -> dict[str, list[_Value]]:
    """Return what the attributes of a program are set to, by their names."""
    found: dict[str, list[_Value]] = {}
    for file in flow.files.values():
        for line in file.nodes(cst.Assign, cst.AnnAssign):
            for target, value in set_values(line):
                if isinstance(target, cst.Attribute) and value is not None:
                    found.setdefault(target.attr.value, []).append((value, file))
    return found


def _last(path: str) -> str:
    """Return the last part of a path; what is formatted into it is a blank."""
    return _BLANK.sub("{}", path).rstrip("/").rpartition("/")[2]
