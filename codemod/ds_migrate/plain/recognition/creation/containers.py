"""Lists and dicts that hold what a call makes: ``[Adam(a), SGD(b)]``, ``{"g": Adam(a)}``, ``found.append(Adam(a))``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.containers.container_items import appended, item_name
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Variable, are_all, of_kind
from ds_migrate.syntax.nodes import code, dotted, receiver, single_index, targets
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True, eq=False)
class Item:
    """An item of a container.

    Attributes:
        container: the name or attribute that holds the container.
        text: the expression of the item, behind the statement that puts it there.
        variable: what the item is known by.
    """

    container: cst.Name | cst.Attribute
    text: str
    variable: Variable


def item_made_by(node: cst.CSTNode, file: SourceFile, flow: Flow) -> Item | None:
    """Return the item that an expression becomes; None where it becomes none that can be written."""
    around = file.parent(node)
    if isinstance(around, cst.Element):
        listed = file.parent(around)
        index = list(listed.elements).index(around) if isinstance(listed, (cst.List, cst.Tuple)) else 0
        return _of_display(listed, str(index), f"[{index}]", file)
    if isinstance(around, cst.DictElement) and isinstance(around.key, cst.SimpleString):
        return _of_display(file.parent(around), around.key.value, item_name(around.key.evaluated_value), file)
    if isinstance(around, cst.Assign) and len(around.targets) == 1:
        target = around.targets[0].target
        return item_at(target, file, flow) or _item_by_name(target, file, flow)
    call = file.parent(around) if isinstance(around, cst.Arg) else None
    key = around.keyword if isinstance(around, cst.Arg) else None
    if call is not None and key is not None and of_kind(flow.values(call, file), Kind.MAPPING):
        return _of_display(call, f'"{key.value}"', item_name(key.value), file)
    container = receiver(call, "append")
    if call is not None and isinstance(container, (cst.Name, cst.Attribute)):
        held, name = of_kind(flow.values(container, file), Kind.SEQUENCE), dotted(container)
        if len(held) == 1 and name is not None:
            return Item(container, f"{name}[-1]", (next(iter(held)).key, appended(call)))
    return None


def item_at(node: cst.CSTNode, file: SourceFile, flow: Flow) -> Item | None:
    """Return the item that ``container["key"]`` or ``container[0]`` means; None where that is not known."""
    index = single_index(node)
    if not isinstance(node, cst.Subscript) or not isinstance(index, (cst.SimpleString, cst.Integer)):
        return None
    container = node.value
    held = of_kind(flow.values(container, file), Kind.MAPPING, Kind.SEQUENCE)
    if len(held) != 1 or not isinstance(container, (cst.Name, cst.Attribute)) or dotted(container) is None:
        return None
    return Item(container, expression_text(node), (next(iter(held)).key, item_name(index.evaluated_value)))


def _item_by_name(node: cst.CSTNode, file: SourceFile, flow: Flow) -> Item | None:
    """Return the item that ``container[name]`` sets; None for anything else."""
    if not isinstance(node, cst.Subscript) or dotted(single_index(node)) is None:
        return None
    held = of_kind(flow.values(node.value, file), Kind.MAPPING)
    if len(held) != 1 or not isinstance(node.value, (cst.Name, cst.Attribute)) or dotted(node.value) is None:
        return None
    return Item(node.value, code(node), (next(iter(held)).key, appended(node)))


def _of_display(display: cst.CSTNode | None, index: str, name: str, file: SourceFile) -> Item | None:
    assign = file.parent(display) if display is not None else None
    if not isinstance(assign, (cst.Assign, cst.AnnAssign)) or assign.value is not display:
        return None
    (target, *more) = targets(assign)
    if more or not isinstance(target, (cst.Name, cst.Attribute)) or dotted(target) is None:
        return None
    return Item(target, f"{dotted(target)}[{index}]", (id(display), name))


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
