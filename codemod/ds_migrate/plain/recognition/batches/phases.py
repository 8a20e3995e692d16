"""Loaders of several phases, of which one trains: ``for phase in ["train", "val"]`` with ``if phase == "train"``."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.equal_tests import never_meet
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.recognition.batches.loader_rounds import LoaderName
from ds_migrate.plain.recognition.facts import Step
from ds_migrate.syntax.nodes import code, dotted, single_index, walk
from ds_migrate.syntax.source import SourceFile


def training_phase(maker: cst.Call, file: SourceFile, steps: Sequence[Step]) -> LoaderName | None:
    """Return the loader of the one phase in which there are steps, of the loaders that a call makes for each phase."""
    found = {phase_around(step.node, step.file) for step in steps}
    if len(found) != 1 or None in found:
        return None
    ((variable, phase, test, over),) = [each for each in found if each is not None]
    around = file.parent(maker)
    if isinstance(around, cst.DictComp) and around.value is maker:
        assign = file.parent(around)
        items = around.for_in.iter
        is_by_phase = isinstance(around.key, cst.Name) and dotted(around.for_in.target) == around.key.value
        known = [code(e.value).strip("\"'") for e in items.elements] if isinstance(items, (cst.List, cst.Tuple)) else []
        if not (isinstance(assign, cst.Assign) and len(assign.targets) == 1 and is_by_phase and phase in known):
            return None
        name = dotted(assign.targets[0].target)
        return None if name is None or not over else LoaderName(file, file.statement(maker), f'{name}["{phase}"]')
    if isinstance(around, cst.Assign) and len(around.targets) == 1:
        target = around.targets[0].target
        if isinstance(target, cst.Subscript) and over:
            return _of_items(target, phase, maker, file)
    if isinstance(around, cst.Assign) and len(around.targets) == 1 and isinstance(around.targets[0].target, cst.Name):
        loops = [outer for outer in file.ancestors(maker) if isinstance(outer, cst.For)]
        if any(dotted(loop.target) == variable for loop in loops) and all(step.file is file for step in steps):
            return LoaderName(file, file.statement(maker), around.targets[0].target.value, test)
    return None


def other_phases(step: Step, file: SourceFile, over: cst.BaseExpression, flow: Flow) -> Values:
    """Return what ``loaders[phase]``, that a loop around a step runs over, holds for phases in which nothing steps.

    So does a name that is set by a condition on the phase: ``loader = train_loader if training else test_loader``.
    """
    left_out = _left_out(step, file, over, flow)
    if left_out:
        return left_out
    found = phase_around(step.node, step.file)
    if found is None or file is not step.file:
        return NOTHING
    variable, phase, _, _ = found
    held, trains = set[Value](), set[Value]()
    for part in (node for node in walk(over) if isinstance(node, cst.Subscript)):
        is_of_phase = dotted(single_index(part)) == variable
        for mapping in of_kind(flow.values(part.value, file), Kind.MAPPING) if is_of_phase else ():
            for key, values in flow.literal_items(mapping):
                (trains if key == f'["{phase}"]' else held).update(values)
    return frozenset(held - trains) if trains else NOTHING


def _left_out(step: Step, file: SourceFile, over: cst.BaseExpression, flow: Flow) -> Values:
    """Return the loaders that a name has only where a condition does not hold under which alone something steps."""
    held, trains = set[Value](), set[Value]()
    for name in (node for node in walk(over) if isinstance(node, cst.Name) and file is step.file):
        for value in flow.scopes(file).assigned(name):
            for part in [value.body, value.orelse] if isinstance(value, cst.IfExp) else [value]:
                is_apart = file.function(part) is step.function and never_meet(file, part, step.node)
                (held if is_apart else trains).update(of_kind(flow.values(part, file), Kind.LOADER))
    return frozenset(held - trains) if trains else NOTHING


def _of_items(item: cst.Subscript, phase: str, maker: cst.Call, file: SourceFile) -> LoaderName | None:
    """Return the loader of a phase where a loop makes one for each: ``loaders[name] = DataLoader(...)``."""
    loop = file.around(maker, cst.For)
    name = dotted(single_index(item))
    if loop is None or name is None or dotted(loop.target) != name:
        return None
    return LoaderName(file, file.statement(maker), code(item), f'{name} == "{phase}"')


def phase_around(node: cst.CSTNode, file: SourceFile) -> tuple[str, str, str, bool] | None:
    """Return the name and the text that are compared around a node, as written, and whether the loop's loader is
    chosen by that name."""
    inner = node
    compared: tuple[str, str, str] | None = None
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, cst.If) and inner is outer.body and isinstance(outer.test, cst.Comparison):
            (target, *others) = outer.test.comparisons
            left, right = outer.test.left, target.comparator
            is_equal = isinstance(target.operator, cst.Equal) and not others
            if is_equal and isinstance(left, cst.Name) and isinstance(right, cst.SimpleString):
                compared = left.value, str(right.evaluated_value), code(outer.test)
        if isinstance(outer, cst.For) and compared is not None:
            chosen = any(
                isinstance(index.slice, cst.Index) and dotted(index.slice.value) == compared[0]
                for part in file.nodes(cst.Subscript, below=outer.iter)
                for index in part.slice
            )
            return *compared, chosen
        inner = outer
    return None
