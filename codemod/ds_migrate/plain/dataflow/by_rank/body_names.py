"""Names that a loop or a ``with`` statement binds: in its body, they are nothing that other statements bind to them.

So are those that lines of a block bind and delete again: between these, and nowhere else.
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.scopes import Scopes, names_in
from ds_migrate.syntax.nodes import dotted, elements, last_name, targets, walk
from ds_migrate.syntax.source import SourceFile

_Binding = cst.For | cst.With
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)


class BodyNames:
    """The loops and ``with`` statements of a file, by the names that they alone bind in their bodies."""

    def __init__(self, file: SourceFile, scopes: Scopes) -> None:
        self._file = file
        self._scopes = scopes
        self._lent = {item.name.value for node in file.nodes(cst.Global, cst.Nonlocal) for item in node.names}
        self._of_name: dict[str, set[int]] = {}
        self._bindings: dict[cst.Name, _Binding | cst.BaseComp | None] = {}
        self._deleted = {dotted(part) for node in file.nodes(cst.Del) for part in elements(node.target)}
        self._leaves: dict[tuple[int, str], bool] = {}  # by the block and the name
        self._of_comprehensions = {name for node in file.nodes(cst.CompFor) for name in names_in(node.target)}

    def binding(self, name: cst.Name) -> _Binding | cst.BaseComp | None:
        """Return the statement or comprehension that binds a name, where it is one of its targets or read in its body.

        Elsewhere None.
        """
        if name not in self._bindings:
            self._bindings[name] = self._find_binding(name)
        return self._bindings[name]

    def _find_binding(self, name: cst.Name) -> _Binding | cst.BaseComp | None:
        comprehension = self._comprehension(name) if name.value in self._of_comprehensions else None
        if comprehension is not None:
            return comprehension
        if name.value not in self._of_name:
            self._of_name[name.value] = self._find(name.value)
        found = self._of_name[name.value]
        inner: cst.CSTNode = name
        for outer in self._file.ancestors(name) if found else ():
            if isinstance(outer, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
                return None
            if isinstance(outer, (cst.For, cst.With)) and id(outer) in found:
                is_target = isinstance(outer, cst.For) and inner is outer.target  # those of ``with`` are in its items
                if is_target or inner is outer.body:
                    return outer
            if isinstance(outer, cst.AsName):
                statement = self._statement(outer)
                return statement if id(statement) in found else None
            inner = outer
        return None

    def deletion(self, name: cst.Name) -> cst.Del | None:
        """Return the statement that deletes a name behind the lines around it, the first of which binds it."""
        if name.value not in self._deleted or name.value in self._lent:
            return None
        inner: cst.CSTNode = name
        for outer in self._file.ancestors(name):
            if isinstance(outer, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
                return None
            if isinstance(outer, cst.IndentedBlock):
                found = self._deletion_in(outer, inner, name.value)
                if found is not None:
                    return found
            inner = outer
        return None

    def _deletion_in(self, block: cst.IndentedBlock, line: cst.CSTNode, name: str) -> cst.Del | None:
        """Return the statement that deletes a name in a block for sure, where a line before this one binds it there."""
        lines = list(block.body)
        at = next(number for number, other in enumerate(lines) if other is line)
        begins = [number for number, other in enumerate(lines[: at + 1]) if _binds_alone(other, name)]
        ends = [number for number, other in enumerate(lines[at:], at) if _deletes(other, name)]
        if not begins or not ends or any(_deletes(other, name) for other in lines[begins[0] : at]):
            return None
        key = id(block), name
        if key not in self._leaves:
            self._leaves[key] = self._may_leave(block, name)
        dels: list[cst.Del] = self._file.nodes(cst.Del, below=lines[ends[0]])
        return None if self._leaves[key] else dels[0]

    def _may_leave(self, block: cst.IndentedBlock, name: str) -> bool:
        """Return whether a block may end before a line of it deletes a name, or a function in it may read that."""
        function = self._file.function(block)
        around = [outer for outer in self._file.ancestors(block) if self._file.function(outer) is function]
        goes_on = any(
            isinstance(outer, cst.Try) or (isinstance(outer, cst.With) and "suppress" in map(_called, outer.items))
            for outer in around
        )
        inside = self._file.nodes(cst.Lambda, cst.FunctionDef, below=function.body if function else self._file.module)
        is_lent = any(part.value == name for one in inside for part in self._file.nodes(cst.Name, below=one))
        return bool(self._file.nodes(cst.Break, cst.Continue, below=block)) or goes_on or is_lent

    def _comprehension(self, name: cst.Name) -> cst.BaseComp | None:
        """Return the innermost comprehension that binds a name; what its first loop runs over is outside of it."""
        inner: cst.CSTNode = name
        outside: cst.CSTNode | None = None
        for outer in self._file.ancestors(name):
            if isinstance(outer, cst.CompFor) and inner is outer.iter:
                outside = self._file.parent(outer)
            elif isinstance(outer, _COMPREHENSIONS) and outer is not outside and name.value in _bound_in(outer):
                return outer
            elif isinstance(outer, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return None
            inner = outer
        return None

    def _find(self, name: str) -> set[int]:
        """Return the statements in whose body a name is bound by them alone, by identity."""
        nodes = self._scopes.bindings.get(name, ())
        if len(nodes) < 2 or name in self._lent:  # one binding is the variable itself
            return set()
        statements = {id(node): statement for node in nodes if (statement := self._statement(node)) is not None}
        bodies = {id(statement.body): id(statement) for statement in statements.values()}
        around = {id(outer) for node in nodes for outer in self._file.ancestors(node)}
        return {statement for body, statement in bodies.items() if body not in around}

    def _statement(self, node: cst.CSTNode) -> _Binding | None:
        """Return the statement whose targets a node that binds names is."""
        if isinstance(node, cst.AsName):
            item = self._file.parent(node)
            statement = self._file.parent(item) if isinstance(item, cst.WithItem) else None
            return statement if isinstance(statement, cst.With) else None
        return node if isinstance(node, cst.For) else None


def _binds_alone(line: cst.CSTNode, name: str) -> bool:
    """Return whether a line sets a name, and reads nothing of it."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1 or not isinstance(line.body[0], cst.Assign):
        return False
    is_target = any(dotted(part) == name for part in targets(line.body[0]))
    return is_target and not any(isinstance(part, cst.Name) and part.value == name for part in walk(line.body[0].value))


def _called(item: cst.WithItem) -> str:
    return last_name(item.item.func) if isinstance(item.item, cst.Call) else ""


def _deletes(line: cst.CSTNode, name: str) -> bool:
    small = line.body if isinstance(line, cst.SimpleStatementLine) else ()
    return any(isinstance(one, cst.Del) and name in map(dotted, elements(one.target)) for one in small)


def _bound_in(comprehension: cst.BaseComp) -> set[str]:
    loop: cst.CompFor | None = comprehension.for_in
    found = set[str]()
    while loop is not None:
        found.update(names_in(loop.target))
        loop = loop.inner_for_in
    return found
