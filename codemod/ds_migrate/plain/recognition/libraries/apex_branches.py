"""Branches that train with apex.amp under a flag of the program: an engine has no place for it, and the others stay."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import libcst as cst

from ds_migrate.syntax.nodes import dotted, last_name, walk

_AMP = "apex.amp"
_KNOWN = frozenset({_AMP, "apex.parallel.DistributedDataParallel", "apex.parallel.convert_syncbn_model"})
RAISED = 'raise NotImplementedError("apex.amp does not run with DeepSpeed: use torch.autocast and GradScaler")'
_PATHS = ("sys.path.append", "sys.path.insert")
_EMPTIED = cst.parse_statement("pass")  # all that is left of a block


@dataclass(frozen=True)
class ChangedFile:
    """A file that is changed before its loops are looked at. ``lines``: the one of the original for each, from 1."""

    data: bytes
    lines: Sequence[int]


@dataclass(frozen=True)
class WithoutApex(ChangedFile):
    """A file without its branches for apex.amp. ``raises``: it ends with an error where ``amp.initialize()`` was."""

    raises: bool


def without_apex(data: bytes) -> WithoutApex | None:
    """Return a file without its branches for apex.amp; None where it has none, or uses apex otherwise."""
    if b"apex" not in data:
        return None
    try:
        module = cst.parse_module(data)
    except (cst.ParserSyntaxError, UnicodeDecodeError, SyntaxError, LookupError, RecursionError):
        return None
    imported = [node for node in walk(module) if isinstance(node, (cst.Import, cst.ImportFrom)) and _is_of_apex(node)]
    names = [_bound_by(node) for node in imported]
    bound = {name: path for each in names for name, path in each.items()}
    if not imported or not all(names) or not set(bound.values()) <= _KNOWN | {"apex"} or _uses_more(module, bound):
        return None
    available = _set_by_availability(module)
    branches = _Branches(bound, available)
    after = module.visit(branches)
    if _variables(after) & bound.keys() or any(
        isinstance(n, (cst.Import, cst.ImportFrom)) and _is_of_apex(n) for n in walk(after)
    ):
        return None
    if any(names <= available for names in branches.tested):
        return None
    new = after.bytes
    return WithoutApex(new, line_numbers(data, new), branches.raises)


def _is_of_apex(node: cst.Import | cst.ImportFrom) -> bool:
    names = [node.module] if isinstance(node, cst.ImportFrom) else [alias.name for alias in node.names]
    return any((dotted(name) or "").partition(".")[0] == "apex" for name in names if name is not None)


def _variables(node: cst.CSTNode) -> set[str]:
    """Return the names in a node that are none of attributes or keywords."""
    nodes = list(walk(node))
    labels = {id(n.attr) for n in nodes if isinstance(n, cst.Attribute)}
    labels |= {id(n.keyword) for n in nodes if isinstance(n, cst.Arg)}
    return {n.value for n in nodes if isinstance(n, cst.Name) and id(n) not in labels}


def _bound_by(node: cst.CSTNode) -> dict[str, str]:
    """Return what an import from apex binds: names with what they are."""
    if isinstance(node, cst.Import) and _is_of_apex(node):
        aliases = {alias.evaluated_alias or "apex": alias for alias in node.names}
        return {name: alias.evaluated_name if alias.asname else "apex" for name, alias in aliases.items()}
    if not isinstance(node, cst.ImportFrom) or isinstance(node.names, cst.ImportStar) or not _is_of_apex(node):
        return {}
    return {
        alias.evaluated_alias or alias.evaluated_name: f"{dotted(node.module)}.{alias.evaluated_name}"
        for alias in node.names
    }


def _uses_more(module: cst.Module, bound: Mapping[str, str]) -> bool:
    """Return whether a module uses more of the package ``apex`` than what is known, as ``apex.optimizers``."""
    packages = {name for name, path in bound.items() if path == "apex"}
    names = [node for node in walk(module) if isinstance(node, cst.Name) and node.value in packages]
    imported = {
        id(part) for node in walk(module) if isinstance(node, (cst.Import, cst.ImportFrom)) for part in walk(node)
    }
    taken = [node for node in walk(module) if isinstance(node, cst.Attribute) and id(node) not in imported]
    known = {id(node.value) for node in taken if f"apex.{node.attr.value}" == _AMP}
    known |= {
        id(node.value.value) for node in taken
        if isinstance(node.value, cst.Attribute) and f"apex.{node.value.attr.value}.{node.attr.value}" in _KNOWN
    }  # fmt: skip
    return any(id(name) not in known | imported for name in names)


def _set_by_availability(module: cst.Module) -> set[str]:
    """Return the names that are set beside an import of apex which may fail: no person chooses their value."""
    return {
        name.value
        for node in walk(module) if isinstance(node, cst.Try)
        if any(isinstance(n, (cst.Import, cst.ImportFrom)) and _is_of_apex(n) for n in walk(node.body))
        for target in walk(node) if isinstance(target, cst.AssignTarget)
        for name in walk(target) if isinstance(name, cst.Name)
    }  # fmt: skip


@dataclass
class _Branches(cst.CSTTransformer):
    """Takes the branches that use apex.amp out, and the imports of it.

    ``available``: the names that say whether apex is there. ``tested``: the names that conditions of the branches have.
    """

    bound: Mapping[str, str]
    available: Collection[str]
    raises: bool = False
    tested: list[set[str]] = field(default_factory=list)  # the names of each condition of such a branch

    def __post_init__(self) -> None:
        super().__init__()

    def _uses(self, node: cst.CSTNode | None) -> bool:
        return node is not None and bool(_variables(node) & self.bound.keys())

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        if isinstance(updated_node, cst.If):
            return cst.RemoveFromParent() if _is_emptied(updated_node) else self._without_branch(updated_node)
        if isinstance(original_node, cst.Try):
            return self._without_import(original_node)
        if isinstance(updated_node, cst.SimpleStatementLine):
            return cst.RemoveFromParent() if self._only_imports([updated_node]) else updated_node
        if isinstance(updated_node, cst.IndentedBlock) and not updated_node.body:
            return updated_node.with_changes(body=[_EMPTIED])
        return updated_node

    def _without_branch(self, node: cst.If) -> Any:
        """Return what stays of a condition one of whose branches uses apex.amp."""
        other = node.orelse
        in_body, in_other = self._uses(node.body), self._uses(other)
        if in_body is in_other or self._uses(node.test) or (in_other and isinstance(other, cst.If)):
            return node
        self.tested.append(_variables(node.test))
        used, kept = (node.body, other) if in_body else (other, node.body)
        nodes = walk(used) if used is not None else ()
        if any(self._initializes(n) for n in nodes if isinstance(n, cst.Call)):
            self.raises = True
            error = cst.IndentedBlock([cst.parse_statement(RAISED)])
            if in_body:
                return node.with_changes(test=self._asked(node.test), body=error)
            return node.with_changes(orelse=cst.Else(error))
        if kept is None:
            return cst.RemoveFromParent()
        if isinstance(kept, cst.If):
            return kept.with_changes(leading_lines=[*node.leading_lines, *kept.leading_lines])
        block = kept.body if isinstance(kept, cst.Else) else kept
        first, *rest = block.body
        if not isinstance(first, (cst.SimpleStatementLine, cst.If, cst.For, cst.While, cst.With, cst.Try)):
            return node
        return cst.FlattenSentinel(
            [first.with_changes(leading_lines=[*node.leading_lines, *first.leading_lines]), *rest]
        )  # fmt: skip

    def _asked(self, test: cst.BaseExpression) -> cst.BaseExpression:
        """Return what a condition asks for beside whether apex is there: ``has_apex and args.fp16``."""
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
            for side, other in ((test.left, test.right), (test.right, test.left)):
                if dotted(side) in self.available:
                    return other
        return test

    def _initializes(self, call: cst.Call) -> bool:
        first, _, rest = (dotted(call.func) or "").partition(".")
        return f"{self.bound.get(first)}.{rest}" == f"{_AMP}.initialize"

    def _without_import(self, node: cst.Try) -> Any:
        """Return what an import that may fail leaves where apex is not there."""
        if self._only_imports(node.body.body):
            return cst.RemoveFromParent()
        lines = [line for line in node.body.body if not self._only_imports([line])]
        left = [line for handler in node.handlers for line in handler.body.body]
        if len(lines) == len(node.body.body) or node.orelse or node.finalbody or len(node.handlers) != 1:
            return node
        sets = [line for line in left if _sets_constant(line)]
        return cst.FlattenSentinel(sets) if all(_sets_constant(x) or _is_aside(x) for x in (*lines, *left)) else node

    def _only_imports(self, lines: Sequence[cst.CSTNode]) -> bool:
        """Return whether lines do no more than import from apex."""
        return all(isinstance(line, cst.SimpleStatementLine) and all(map(_bound_by, line.body)) for line in lines)


def _is_emptied(node: cst.If) -> bool:
    """Return whether a condition did no more than import from apex, as at the start of a function."""
    is_tested = any(isinstance(part, cst.Call) for part in walk(node.test))
    return node.body.body[0] is _EMPTIED and node.orelse is None and not is_tested


def _sets_constant(line: cst.CSTNode) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Assign) and isinstance(small.value, cst.Name) for small in line.body
    )


def _is_aside(line: cst.CSTNode) -> bool:
    """Return whether a line beside an import tells that apex is missing, or where it is: ``sys.path.append()``."""
    return isinstance(line, cst.SimpleStatementLine) and all(
        isinstance(small, cst.Pass)
        or (isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) and _is_told(small.value))
        for small in line.body
    )


def _is_told(call: cst.Call) -> bool:
    return last_name(call.func) in ("print", "warn", "warning", "info") or dotted(call.func) in _PATHS


def line_numbers(before: bytes, after: bytes) -> list[int]:
    """Return the line of a text that each line of a newer one was, or comes behind."""
    old, new = ([line.strip() for line in text.split(b"\n")] for text in (before, after))
    numbers = [1] * len(new)
    for _, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for index in range(j, j_end):
            numbers[index] = min(i + index - j, max(i_end - 1, 0)) + 1
    return numbers
