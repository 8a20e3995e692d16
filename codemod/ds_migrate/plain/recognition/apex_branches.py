"""Branches that train with apex.amp under a flag of the program: an engine has no place for it, and the others stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import libcst as cst

from ds_migrate.syntax.nodes import dotted, walk

RAISED = 'raise NotImplementedError("apex.amp does not run with DeepSpeed: use torch.autocast and GradScaler")'


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
    names = {_amp_bound_by(node) for node in imported}
    if not imported or len(names) != 1 or None in names:
        return None
    branches = _Branches(next(iter(names)) or "")
    after = module.visit(branches)
    uses = [node for node in walk(after) if isinstance(node, cst.Name) and node.value == branches.amp]
    if uses or any(isinstance(n, (cst.Import, cst.ImportFrom)) and _is_of_apex(n) for n in walk(after)):
        return None
    if branches.tested & _set_by_availability(module):
        return None
    new = after.bytes
    return WithoutApex(new, line_numbers(data, new), branches.raises)


def _is_of_apex(node: cst.Import | cst.ImportFrom) -> bool:
    names = [node.module] if isinstance(node, cst.ImportFrom) else [alias.name for alias in node.names]
    return any((dotted(name) or "").partition(".")[0] == "apex" for name in names if name is not None)


def _amp_bound_by(node: cst.CSTNode) -> str | None:
    """Return the name that an import gives to apex.amp, where it imports just that."""
    if not isinstance(node, cst.ImportFrom) or dotted(node.module) != "apex" or isinstance(node.names, cst.ImportStar):
        return None
    (alias, *others) = node.names
    return None if others or alias.evaluated_name != "amp" else alias.evaluated_alias or "amp"


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

    ``tested``: the names that the conditions of these branches have.
    """

    amp: str
    raises: bool = False
    tested: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def _uses(self, node: cst.CSTNode | None) -> bool:
        return node is not None and any(isinstance(n, cst.Name) and n.value == self.amp for n in walk(node))

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        if isinstance(updated_node, cst.If):
            return self._without_branch(updated_node)
        if isinstance(original_node, cst.Try):
            return cst.RemoveFromParent() if self._only_imports(original_node.body.body) else updated_node
        if isinstance(updated_node, cst.SimpleStatementLine):
            return cst.RemoveFromParent() if self._only_imports([updated_node]) else updated_node
        if isinstance(updated_node, cst.IndentedBlock) and not updated_node.body:
            return updated_node.with_changes(body=[cst.parse_statement("pass")])
        return updated_node

    def _without_branch(self, node: cst.If) -> Any:
        """Return what stays of a condition one of whose branches uses apex.amp."""
        other = node.orelse
        in_body, in_other = self._uses(node.body), self._uses(other)
        if in_body is in_other or self._uses(node.test) or isinstance(other, cst.If):
            return node
        self.tested |= {name.value for name in walk(node.test) if isinstance(name, cst.Name)}
        used, kept = (node.body, other) if in_body else (other, node.body)
        nodes = walk(used) if used is not None else ()
        if any(dotted(n.func) == f"{self.amp}.initialize" for n in nodes if isinstance(n, cst.Call)):
            self.raises = True
            error = cst.IndentedBlock([cst.parse_statement(RAISED)])
            if in_body:
                return node.with_changes(body=error)
            return node.with_changes(orelse=cst.Else(error))
        if kept is None:
            return cst.RemoveFromParent()
        block = kept.body if isinstance(kept, cst.Else) else kept
        first, *rest = block.body
        if not isinstance(first, (cst.SimpleStatementLine, cst.If, cst.For, cst.While, cst.With, cst.Try)):
            return node
        return cst.FlattenSentinel(
            [first.with_changes(leading_lines=[*node.leading_lines, *first.leading_lines]), *rest]
        )  # fmt: skip

    def _only_imports(self, lines: Sequence[cst.CSTNode]) -> bool:
        """Return whether lines do no more than import apex.amp."""
        return all(
            isinstance(line, cst.SimpleStatementLine) and all(_amp_bound_by(small) == self.amp for small in line.body)
            for line in lines
        )


def line_numbers(before: bytes, after: bytes) -> list[int]:
    """Return the line of a text that each line of a newer one was, or comes behind."""
    old, new = ([line.strip() for line in text.split(b"\n")] for text in (before, after))
    numbers = [1] * len(new)
    for _, i, i_end, j, j_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for index in range(j, j_end):
            numbers[index] = min(i + index - j, max(i_end - 1, 0)) + 1
    return numbers
