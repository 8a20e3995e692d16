"""The operations of training loops: backward, step, zero_grad, clipping."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_dead
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import CLIP_NORM, is_of_other_framework
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind, without_parts
from ds_migrate.plain.recognition.facts import Backward, Clip, Operations, Refusal, Step, ZeroGrad
from ds_migrate.plain.recognition.libraries.frameworks import framework_of, message_of
from ds_migrate.plain.recognition.origins.origin import Origin, Origins
from ds_migrate.plain.recognition.steps.attacks import attacked_names, find_attacks
from ds_migrate.plain.recognition.steps.clip_calls import is_clip
from ds_migrate.plain.recognition.steps.indirect_calls import find_indirect_calls, loss_given
from ds_migrate.plain.recognition.steps.operation_arguments import is_empty, is_of_second_order, is_off
from ds_migrate.plain.recognition.steps.stepping_classes import find_mixed_steps, is_of_unnamed_class, without_stand_ins
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import (
    argument,
    called_name,
    dotted,
    is_literal,
    last_name,
    parameters,
    receiver,
    walk,
)
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_OPTIMIZER_NAME = re.compile(r"(^|[._])(opt|optim|optimi[sz]er)(\d|s|[._]|$|_?[dgDG]\b)", re.IGNORECASE)
_PHASES = frozenset({"first_step", "second_step", "ascent_step", "descent_step", "perturb_weights"})
UNKNOWN_SCALER = (
    "cannot determine which GradScaler this is",
    "make it in this program with torch.amp.GradScaler, and pass it on as an argument or an attribute",
)
_OF_BACKWARD = frozenset({"gradient", "retain_graph", "create_graph", "inputs"})
_OWN_BACKWARD = (Kind.METHOD, Kind.FUNCTION, Kind.INSTANCE)


def find_operations(flow: Flow) -> Operations:
    """Return every operation on an optimizer in the files of a program that may run."""
    steps: list[Step] = []
    backwards: list[Backward] = []
    zero_grads: list[ZeroGrad] = []
    clips: list[Clip] = []
    refusals: list[Refusal] = []
    for file in flow.files.values():
        for call in file.nodes(cst.Call):
            name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            if is_of_unnamed_class(call, file, flow):
                continue
            if name in ("step", "backward", "zero_grad") and is_dead(call, file, flow):
                continue
            if name in ("step", "zero_grad") and is_of_wrapper(call, file, flow):
                continue
            if name == "step":
                found = list(_step(call, file, flow))
                steps += [one for one in found if isinstance(one, Step)]
                refusals += [one for one in found if isinstance(one, Refusal)]
            elif name == "backward":
                backward = _backward(call, file, flow)
                if isinstance(backward, Backward):
                    backwards.append(backward)
                elif backward is not None:
                    refusals.append(backward)
            elif name == "zero_grad":
                owner = call.func.value
                zero_grads.append(ZeroGrad(file, call, call, owner, flow.values(owner, file)))
            elif name in _PHASES and (stepped := _stepped_in_phases(call, file, flow)):
                steps.append(Step(file, call, call, call.func.value, stepped, is_phase=True))
            if is_clip(call, file, flow):
                clips.append(_clip(call, file, flow))
        zero_grads += _clearing_loops(file, flow)
        refusals += (one for one in find_indirect_calls(file, flow) if not is_dead(one.node, file, flow))
    steps, refused = without_stand_ins(steps, flow)
    refusals += refused
    attacks = find_attacks(steps, flow)
    left = [step for step in steps if step.optimizers & attacks]
    refusals = [refusal for refusal in refusals if not any(refusal.node is step.node for step in left)]
    steps = [step for step in steps if step not in left]
    refusals += find_mixed_steps(steps, flow)
    return Operations(steps, backwards, zero_grads, clips, refusals, left, frozenset(attacked_names(attacks, flow)))


def is_of_wrapper(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a class of optimizers does this to one that it keeps, as Lookahead: an engine has the outer."""
    around = file.class_around(call)
    kept = call.func.value if isinstance(call.func, cst.Attribute) else None
    return isinstance(kept, cst.Attribute) and around is not None and flow.classes.is_optimizer(around, file)


def _step(call: cst.Call, file: SourceFile, flow: Flow) -> Iterator[Step | Refusal]:
    assert isinstance(call.func, cst.Attribute)
    owner = call.func.value
    values = flow.values(owner, file)
    scaler = None
    if of_kind(values, Kind.SCALER) and call.args:
        scaler, owner = owner, call.args[0].value
        values = flow.values(owner, file)
    optimizers = of_kind(values, Kind.OPTIMIZER)
    if optimizers:
        closure = None
        if scaler is None and not all(is_empty(arg.value, file, flow) for arg in call.args):
            closure = _closure(call, file, flow)
            if closure is None:
                yield _given_to_step(call, file)
        yield Step(file, call, call, owner, optimizers, scaler, closure=closure)
        return
    if any(is_of_other_framework(value.name) for value in values):
        return
    is_known = of_kind(values, Kind.SCHEDULE, Kind.LOADER) or of_kind(flow.values(call.func, file), *_OWN_BACKWARD)
    stepped = call.args[0].value if scaler is None and call.args else None
    if not is_known and stepped is not None and of_kind(flow.values(stepped, file), Kind.OPTIMIZER):
        yield Refusal(Code.PLAIN_PRECISION, file, call, *UNKNOWN_SCALER)
        return
    if stepped is not None and _may_be_optimizer(stepped, file):
        owner = stepped
    if not is_known and _may_be_optimizer(owner, file):
        yield _untraced(call, owner, file, flow)


def _stepped_in_phases(call: cst.Call, file: SourceFile, flow: Flow) -> Values:
    """Return the optimizers of which a call is one phase of a step, where it is not in the class that has it."""
    assert isinstance(call.func, cst.Attribute)
    around = file.class_around(call)
    is_inside = around is not None and flow.classes.is_optimizer(around, file)
    return NOTHING if is_inside else of_kind(flow.values(call.func.value, file), Kind.OPTIMIZER)


def _closure(call: cst.Call, file: SourceFile, flow: Flow) -> cst.BaseExpression | None:
    """Return the function of the program that a step is given each time; None where it may be given anything else."""
    (first, *others) = call.args
    function = file.function(call)
    optional = {p.name.value for p in (parameters(function) if function is not None else ()) if p.default is not None}
    is_function = isinstance(first.value, cst.Lambda) or of_kind(flow.values(first.value, file), *_OWN_BACKWARD[:2])
    is_given = not others and not first.star and dotted(first.value) not in optional
    return first.value if is_function and is_given else None


def _given_to_step(call: cst.Call, file: SourceFile) -> Refusal:
    """Return why the arguments of a step do not reach the optimizer through an engine."""
    text = ", ".join(expression_text(arg.value) for arg in call.args)
    if len(call.args) == 1 and "closure" in text.lower():
        return Refusal(
            Code.PLAIN_CLOSURE, file, call, f"step() is given {text}, and no function of this program is known as that",
            "name the function in the call, or compute the loss and call backward() before step()",
        )  # fmt: skip
    return Refusal(
        Code.PLAIN_CLOSURE, file, call, f"step() is given {text}, which engine.step() does not take",
        "set it as an attribute of the optimizer before step(), and call step() without arguments",
    )  # fmt: skip


def _untraced(call: cst.Call, owner: cst.BaseExpression, file: SourceFile, flow: Flow) -> Refusal:
    """Return why the optimizer of a step cannot be followed to where it is made."""
    origin, text = Origins(flow).of(owner, file), expression_text(owner)
    if origin.function:
        return Refusal(
            Code.PLAIN_UNTRACED, file, call,
            f"the optimizer of {text}.step() comes from outside of these files: {origin.reason}",
            f"name the file that calls {origin.function} too, so that one run converts both",
        )  # fmt: skip
    return Refusal(
        Code.PLAIN_UNTRACED, file, call, f"cannot determine which optimizer {text}.step() moves: {origin.reason}",
        "make the optimizer in this program, and pass it on as an argument or an attribute",
    )  # fmt: skip


def _may_be_optimizer(node: cst.BaseExpression, file: SourceFile) -> bool:
    """Return whether something that cannot be followed is an optimizer, by its name or as ``zero_grad()`` clears it."""
    name = dotted(node.value if isinstance(node, cst.Subscript) else node) or ""
    if _OPTIMIZER_NAME.search(name):
        return "sched" not in name.lower()
    cleared = file.attributes_by_name.get("zero_grad", ())
    return bool(name) and any(dotted(clear.value) == dotted(node) for clear in cleared)


def _backward(call: cst.Call, file: SourceFile, flow: Flow) -> Backward | Refusal | None:
    assert isinstance(call.func, cst.Attribute)
    given = loss_given(call, file, flow)
    loss = call.func.value if given is None else given
    values = flow.values(loss, file)
    callees = flow.values(call.func, file)
    if of_kind(callees, *_OWN_BACKWARD) or of_kind(values, Kind.INSTANCE, Kind.CLASS):
        return None
    is_kept = isinstance(file.parent(call), (cst.Assign, cst.AnnAssign)) and len(call.args) > 1  # torch's gives None
    if is_kept:
        return None
    if any(value.kind is Kind.EXTERNAL and value.name in ("torch.autograd", "torch.Tensor") for value in values):
        return None  # an indirect call
    scaler = None
    scales = receiver(loss, "scale")
    is_scaled = scales is not None and bool(of_kind(flow.values(scales, file), Kind.SCALER))
    if isinstance(loss, cst.Call) and len(loss.args) == 1 and is_scaled:
        scaler, loss = scales, loss.args[0].value
    gradient = argument(call, 0, "gradient") if given is None else None
    gradient = None if gradient is not None and is_literal(gradient.value, "None") else gradient
    asked = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value in ("inputs", "create_graph")]
    asked = [arg for arg in asked if not is_off(arg.value, file, flow)]
    graph = next((a.value for a in asked if is_of_second_order(a.value, file, flow)), None)
    unknown = [arg.keyword.value for arg in asked if arg.keyword is not None and arg.value is not graph]
    known = _OF_BACKWARD if given is None else _OF_BACKWARD | {"tensors"}
    unknown += [a.keyword.value for a in call.args if a.keyword is not None and a.keyword.value not in known]
    unknown += ["retain_graph by position"] if len([arg for arg in call.args if arg.keyword is None]) > 1 else []
    unknown += ["a gradient besides a GradScaler"] if gradient is not None and scaler is not None else []
    if unknown or not all(is_empty(arg.value, file, flow) for arg in call.args if arg.star):
        return Refusal(
            Code.PLAIN_BACKWARD, file, call,
            f"backward() is given {', '.join(unknown) or '*arguments'}, which engine.backward() does not take",
            "call backward() with gradient= and retain_graph= at most",
        )  # fmt: skip
    if gradient is not None and isinstance(loss, (cst.Name, cst.Attribute)):
        origin = Origins(flow).foreign(loss, file)
        if origin is not None:
            return _of_object(call, origin, file)
    retains = argument(call, None, "retain_graph")
    return Backward(
        file, call, call, loss, scaler,
        retains.value if retains is not None else None, gradient.value if gradient is not None else None, graph,
        is_function=given is not None,
    )  # fmt: skip


def _of_object(call: cst.Call, origin: Origin, file: SourceFile) -> Refusal:
    """Return why a call is no ``backward()`` of a tensor: ``accelerator.backward(loss)``."""
    framework = framework_of(origin.library)
    if framework is not None:
        return Refusal(Code.PLAIN_FRAMEWORK, file, call, message_of(framework), framework.way_out)
    return Refusal(
        Code.PLAIN_BACKWARD, file, call,
        f"cannot determine whether {expression_text(call)} is of a tensor: {origin.reason}",
        "call backward() of the loss",
    )  # fmt: skip


def _clearing_loops(file: SourceFile, flow: Flow) -> Iterator[ZeroGrad]:
    """Yield the loops over all parameters of a module that set each gradient to None."""
    for node in file.attributes_by_name.get("grad", ()):
        if not is_set_to_none(node, file):
            continue
        block = file.parent(file.statement(node))
        loop = file.parent(block) if block is not None else None
        if not isinstance(loop, cst.For) or loop.body is not block or dotted(loop.target) != dotted(node.value):
            continue
        over, owner = loop.iter, receiver(loop.iter, "parameters")
        if isinstance(over, cst.Call) and owner is not None:
            yield ZeroGrad(file, over, over, owner, flow.values(owner, file), is_loop=True)


def is_set_to_none(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a gradient is cleared by an assignment of None."""
    target = file.parent(node)
    line = file.parent(target) if isinstance(target, cst.AssignTarget) else None
    return isinstance(line, cst.Assign) and dotted(line.value) == "None"


def is_set_to_zero(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a gradient is cleared by an assignment of zeros, by which a step moves what none reaches later."""
    target = file.parent(node)
    line = file.parent(target) if isinstance(target, cst.AssignTarget) else None
    value = line.value if isinstance(line, cst.Assign) else None
    while isinstance(value, cst.Call) and last_name(value.func) == "Variable" and value.args:
        value = value.args[0].value
    return isinstance(value, cst.Call) and called_name(value) in ("zero_", "zeros_like")


def _clip(call: cst.Call, file: SourceFile, flow: Flow) -> Clip:
    parameters, norm = argument(call, 0, "parameters"), argument(call, 1, "max_norm")
    kind = argument(call, 2, "norm_type")
    modules = frozenset(
        value for node in (walk(parameters.value) if parameters is not None else ())
        for value in parameter_owners(node, file, flow)
    )  # fmt: skip
    is_euclidean = kind is None or (
        isinstance(kind.value, (cst.Integer, cst.Float)) and kind.value.evaluated_value == 2
    )
    strict = argument(call, 3, "error_if_nonfinite")  # engines step with NaN, or skip the step
    is_statement = isinstance(file.parent(call), cst.Expr) and (strict is None or dotted(strict.value) == "False")
    is_whole = parameters is not None and _is_whole(parameters.value)
    is_norm = flow.is_call_of(call, file, CLIP_NORM)
    known = norm.value if norm is not None and is_norm and is_euclidean and is_statement and is_whole else None
    return Clip(file, call, call, without_parts(modules), known)


def _is_whole(node: cst.BaseExpression) -> bool:
    """Return whether parameters are all of some modules: ``list(a.parameters()) + list(b.parameters())`` are."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        return _is_whole(node.left) and _is_whole(node.right)
    return isinstance(node, cst.Call)


def parameter_owners(node: cst.CSTNode, file: SourceFile, flow: Flow) -> Iterator[Value]:
    """Yield the modules whose ``parameters()`` a node is."""
    if (owner := receiver(node, "parameters")) is not None:
        yield from of_kind(flow.values(owner, file), Kind.MODULE, Kind.OBJECT, Kind.PART, Kind.INSTANCE)
