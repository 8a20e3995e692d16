"""The device of an engine: it moves its module there, and inputs follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import SAME_MODULE, WRAPPERS
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.engines.optional_engines import may_be_none
from ds_migrate.plain.decisions.plan import Note, PlannedEngine, ProgramPlan, Review
from ds_migrate.plain.edits.expressions import keep_part, remove_call
from ds_migrate.plain.edits.runtime_names import Converted
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

# What may be done with a module that is not on its device yet.
_ANYWHERE = frozenset({
    "parameters", "named_parameters", "buffers", "modules", "named_modules", "children", "train", "eval", "apply",
    "state_dict", "load_state_dict", "requires_grad_", "module",
})  # fmt: skip
_NEEDS_DEVICE = frozenset({"fused", "capturable"})  # options of optimizers
_MOVES = ("to", "cuda")


@dataclass(frozen=True, eq=False)
class _Move:
    """``module.to(device)`` or ``module.cuda()`` before an engine is made; ``device`` where it is named."""

    call: cst.Call
    device: cst.Name | cst.Attribute | None


def follow_engines(plan: ProgramPlan, converted: Converted, review: Review) -> None:
    """Leave moving modules to their engines, and let inputs follow to the engine's device."""
    bound: set[object] = set()
    for engine in plan.engines:
        site, flow = engine.site, plan.facts.flow
        if site not in plan.facts.sites or may_be_none(site) or not site.modules:
            continue  # the engine before it has moved the module, or no engine may
        for move in _moves(site, flow):
            variable = flow.variable(move.device, site.file) if move.device is not None else None
            if (
                move.device is not None
                and variable is not None
                and variable not in bound
                and _can_follow(move, site, flow)
            ):
                bound.add(variable)
                _bind(move, engine, converted)
                if _is_cpu(flow.values(move.device, site.file), flow):
                    message = (
                        "this is written for the CPU, and the engine takes a GPU where there is one: what is moved "
                    )
                    message += "before it is made stays on the CPU"
                    advice = (
                        "start it with CUDA_VISIBLE_DEVICES= for the CPU, or choose the GPU here where there is one"
                    )
                    review(Note(Code.PLAIN_DEVICE, site.file, move.call, message, advice))
            if site not in plan.parted and _is_left_to(engine, move, flow):
                _remove(move, site.file, converted)


def _moves(site: Site, flow: Flow) -> Iterator[_Move]:
    """Yield the moves of an engine's modules in the block where it is made, or under an ``if`` there."""
    file, block = site.file, site.file.parent(site.statement)
    for call in file.nodes(cst.Call, below=block):
        if file.position(call) > file.position(site.statement) or not _is_in(block, file.statement(call), file):
            continue
        func, args = call.func, call.args
        if not isinstance(func, cst.Attribute) or func.attr.value not in _MOVES or len(args) > 1:
            continue
        values = flow.values(func.value, file)
        values = of_kind(values, Kind.MODULE) or values  # those of libraries are objects
        if not values or not values <= site.of or not isinstance(file.parent(call), (cst.Assign, cst.Expr)):
            continue
        given = args[0].value if args else None
        if func.attr.value == "cuda" and given is None:
            yield _Move(call, None)
        is_to = func.attr.value == "to" and given is not None and not args[0].keyword
        if is_to and isinstance(given, (cst.Name, cst.Attribute)) and _is_device(flow.values(given, file), flow):
            yield _Move(call, given)


def _is_in(block: cst.CSTNode | None, statement: cst.BaseStatement, file: SourceFile) -> bool:
    """Return whether a statement is one of a block, or of an ``if`` without ``else`` there."""
    outer = file.parent(statement)
    if outer is block and not isinstance(statement, cst.If):
        return True
    choice = statement if outer is block else file.parent(outer or statement)  # of one line, or of a block
    return isinstance(choice, cst.If) and choice.orelse is None and file.parent(choice) is block


def _is_device(values: Values, flow: Flow) -> bool:
    makers = [(flow.file(value), flow.node(value)) for value in values if value.kind is Kind.OBJECT]
    return bool(makers) and len(makers) == len(values) and all(
        isinstance(call, cst.Call) and flow.is_call_of(call, file, ("torch.device",)) for file, call in makers
    )  # fmt: skip


def _is_cpu(values: Values, flow: Flow) -> bool:
    """Return whether devices are the CPU, whatever there is."""
    calls = [flow.node(value) for value in values]
    given = [c.args[0].value if isinstance(c, cst.Call) and c.args else None for c in calls]
    return bool(given) and all(isinstance(one, cst.SimpleString) and one.evaluated_value == "cpu" for one in given)


def _can_follow(move: _Move, site: Site, flow: Flow) -> bool:
    """Return whether the name of a device can be set anew behind the engine: the program only moves things there."""
    assert move.device is not None
    if isinstance(move.device, cst.Name):
        owner = flow.scopes(site.file).owner(move.device.value, move.device)
        if owner is not (site.function or site.file.module) or not _is_read_behind(move.device.value, site):
            return False
    uses = flow.once(_other_uses)
    return dotted(move.device) is not None and uses.isdisjoint(flow.values(move.device, site.file))


def _other_uses(flow: Flow) -> Values:
    """Return the values of a program that it does not use as devices alone."""
    return frozenset(
        value for file, node in flow.nodes(cst.Name, cst.Attribute) if not _only_moves(node, file)
        for value in of_kind(flow.values(node, file), Kind.OBJECT)
    )  # fmt: skip


def _is_read_behind(name: str, site: Site) -> bool:
    """Return whether a name may be read after the engine is made: of a module also elsewhere, or in the next round."""
    file = site.file
    if site.function is None or any(isinstance(o, (cst.For, cst.While)) for o in file.ancestors(site.statement)):
        return True
    return any(
        node.value == name
        and (file.position(node) > file.position(site.statement) or file.function(node) is not site.function)
        for node in file.nodes(cst.Name, below=site.function.body)
    )


def _only_moves(node: cst.Name | cst.Attribute, file: SourceFile) -> bool:
    """Return whether a reference to a device is used as one, whatever its index."""
    around = file.parent(node)
    if isinstance(around, cst.Attribute):
        return around.attr is node or around.attr.value == "type"
    return isinstance(
        around,
        (
            *(cst.Arg, cst.Param, cst.Assign, cst.AnnAssign, cst.AssignTarget, cst.Return, cst.Element),
            cst.FormattedStringExpression,
        ),
    )


def _is_left_to(engine: PlannedEngine, move: _Move, flow: Flow) -> bool:
    """Return whether nothing needs a module on its device between a move and its engine."""
    site, file = engine.site, engine.site.file
    if engine.optimizer is not None or site.new_name:
        return False
    for maker_file, maker in site.makers:
        names = {v.name for v in flow.values(maker.func, maker_file)}
        if any(arg.star or (arg.keyword is not None and arg.keyword.value in _NEEDS_DEVICE) for arg in maker.args):
            return False
        if not all(name.startswith("torch.optim.") for name in names):
            return False
    start, end = file.position(move.call), file.position(site.statement)
    last = max(file.position(node) for node in walk(site.statement) if isinstance(node, cst.Name))
    for node in file.nodes(cst.Name, cst.Attribute, below=site.function or file.module):
        if file.function(node) is not site.function or not start < file.position(node) <= max(end, last):
            continue
        if flow.values(node, file) & site.of and not _is_indifferent(node, move, file, flow):
            return False
    return not any(
        start < file.position(call) < end and of_kind(flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD)
        for call in file.nodes(cst.Call, below=site.function or file.module)
        if file.function(call) is site.function and not _is_private(move, site)
    )


def _is_private(move: _Move, site: Site) -> bool:
    """Return whether other functions do not see the module before they are given it."""
    statement = site.file.parent(move.call)
    held = [*targets(statement)] if isinstance(statement, cst.Assign) else [getattr(move.call.func, "value", None)]
    return site.function is not None and all(isinstance(one, cst.Name) for one in held)


def _is_indifferent(node: cst.Name | cst.Attribute, move: _Move, file: SourceFile, flow: Flow) -> bool:
    """Return whether a reference to a module does not depend on where that is."""
    around = file.parent(node)
    if node in (move.call.func, getattr(move.call.func, "value", None)):
        return True
    if isinstance(around, cst.Attribute):
        return around.attr is node or around.attr.value in _ANYWHERE | set(_MOVES)
    call = file.parent(around) if isinstance(around, cst.Arg) else None
    if isinstance(call, cst.Call):
        return dotted(call.func) in ("print", "len") or flow.is_call_of(call, file, WRAPPERS | SAME_MODULE)
    return isinstance(around, cst.AssignTarget)


def _bind(move: _Move, engine: PlannedEngine, converted: Converted) -> None:
    assert move.device is not None
    name, file = code(move.device), engine.site.file
    file.after(engine.site.statement, f"{name} = {engine.name}.device")
    converted(Code.PLAIN_DEVICE, file, move.device, f"{name} is the engine's device from where that is made")


def _remove(move: _Move, file: SourceFile, converted: Converted) -> None:
    converted(Code.PLAIN_DEVICE, file, move.call, "removed: the engine moves its module to its device")
    statement, func = file.parent(move.call), move.call.func
    assert isinstance(func, cst.Attribute)
    if isinstance(statement, cst.Expr):
        remove_call(file, move.call)
    else:
        keep_part(file, move.call, "func", "value")
