"""Comprehensions that make an optimizer for each of several modules: ``[Adam(net.parameters()) for net in nets]``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, are_all
from ds_migrate.plain.recognition.creation.containers import Item
from ds_migrate.syntax.nodes import dotted, receiver, targets
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_COUNTS = frozenset({"enumerate", "len", "range", "zip"})


def clause_of(comprehension: cst.BaseComp, file: SourceFile, flow: Flow) -> tuple[Item, str] | None:
    """Return an optimizer as a second comprehension has it, with its clause; None where it cannot go through the same.

    ``for optimizer, net in zip(optimizers, nets)``
    """
    assign, loop = file.parent(comprehension), comprehension.for_in
    if not isinstance(assign, (cst.Assign, cst.AnnAssign)) or not isinstance(
        comprehension, (cst.ListComp, cst.DictComp)
    ):
        return None
    (target, *more) = targets(assign)
    is_named = isinstance(target, (cst.Name, cst.Attribute)) and dotted(target) is not None
    if more or not is_named or loop.ifs or loop.inner_for_in is not None or not _can_repeat(loop.iter, file, flow):
        return None
    assert isinstance(target, (cst.Name, cst.Attribute))
    name = file.names.fresh("optimizer", "made_optimizer")
    made = f"{dotted(target)}.values()" if isinstance(comprehension, cst.DictComp) else dotted(target)
    taken = expression_text(loop.target)
    taken = f"({taken})" if isinstance(loop.target, cst.Tuple) and not loop.target.lpar else taken
    clause = f"for {name}, {taken} in zip({made}, {expression_text(loop.iter)})"
    return Item(target, name, (id(comprehension), "[]")), clause


def _can_repeat(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loop goes through the same again, as through a list and not through a generator."""
    if isinstance(node, (cst.Integer, cst.SimpleString)):
        return True
    if isinstance(node, (cst.Tuple, cst.List)):
        return all(_can_repeat(element.value, file, flow) for element in node.elements)
    if isinstance(node, cst.Call):
        mapping = receiver(node, "items", "keys", "values") if not node.args else None
        if mapping is not None:
            return _can_repeat(mapping, file, flow)
        is_range = dotted(node.func) == "range"
        return dotted(node.func) in _COUNTS and all(
            (is_range and dotted(arg.value) is not None) or _can_repeat(arg.value, file, flow) for arg in node.args
        )
    values = flow.values(node, file) if dotted(node) is not None else NOTHING
    return are_all(values, Kind.SEQUENCE, Kind.MAPPING, Kind.MODULE, Kind.PART)
