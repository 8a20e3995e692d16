"""The calls of an engine that take the place of those on loss, optimizer and model."""

from __future__ import annotations

from itertools import takewhile
from textwrap import indent

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import always_runs_before
from ds_migrate.plain.decisions.engines.checkpoints import HELPERS, SETTINGS
from ds_migrate.plain.decisions.gradients.averaging import distinct
from ds_migrate.plain.decisions.plan import LOOKED_UP, ProgramPlan, ScalerUse, StateCall
from ds_migrate.plain.edits.engine_creation import use_scaler
from ds_migrate.plain.edits.expressions import remove_call
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.recognition.facts import Backward, Clip, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import code, dotted
from ds_migrate.syntax.one_line import expression_text

_NO_GRAPH = (
    'raise NotImplementedError("an engine has no create_graph: choose an optimizer that is not of second order")'
)


def write_calls(plan: ProgramPlan, runtime: RuntimeNames, converted: Converted) -> None:
    """Let the engines do what the loop did, and remove what they do themselves."""
    for use in plan.scaler_uses:
        _use_scaler(use, plan, runtime, converted)
    for step, name in (pair for pair in plan.steps if not pair[0].is_phase):
        _step(step, name, runtime, converted)
    for each in distinct(plan.averagings, plan):
        name = each.engine
        if name is LOOKED_UP:
            name = f"{runtime.name(each.file, 'engine_of')}({each.optimizer})"
        averages = f"{name}.allreduce_gradients()"
        each.file.before(each.statement, f"if {each.condition}:\n    {averages}" if each.condition else averages)
        message = "gradients are averaged over ranks before they are used here"
        converted(Code.PLAIN_CLIPPING, each.file, each.statement, message)
    for backward, name in plan.backwards:
        _backward(backward, name, plan.is_managed, converted)
    for backward in plan.left:
        message = "backward() stays: an engine averages what gradients hold where it steps"
        converted(Code.PLAIN_BACKWARD, backward.file, backward.node, message)
    for place in plan.removed:
        code_ = Code.PLAIN_CLIPPING if isinstance(place, Clip) else Code.PLAIN_ZERO_GRAD
        converted(code_, place.file, place.node, "removed: engine.step() does it")
        remove_call(place.file, place.node)
    for call in plan.scaler_calls:
        converted(Code.PLAIN_PRECISION, call.file, call.node, "removed: engine.step() does it")
        remove_call(call.file, call.node)
    for file, func, name in plan.forwards:
        file.replace(func, name)
        converted(Code.PLAIN_FORWARD, file, func, f"the forward pass goes through {name}")
    for state in plan.state_calls:
        _state(state, runtime, converted)
    for file, node in plan.no_syncs:
        file.replace(node, f"{file.imports.module('contextlib')}.nullcontext")
        converted(Code.PLAIN_DISTRIBUTED, file, node, "no_sync is removed: the engine averages at the step")
    for file, line in plan.sync_switches:
        converted(Code.PLAIN_DISTRIBUTED, file, line, "removed: the engine averages at the step")
        file.remove(file.statement(line))
    for file, node in plan.joins:
        around, text = file.parent(node), f"{file.imports.module('contextlib')}.nullcontext"
        if isinstance(around, cst.Call) and around.func is node:
            file.replace(around, f"{text}()")
        else:
            file.replace(node, text)


def _step(step: Step, name: str, runtime: RuntimeNames, converted: Converted) -> None:
    name = _engine_of(step, name, runtime)
    if step.closure is not None:
        _step_with_closure(step, name, runtime, converted)
        return
    step.file.replace(step.call, f"{name}.step()")
    converted(Code.PLAIN_STEP, step.file, step.node, f"{code(step.call)} becomes {name}.step()")


def _step_with_closure(step: Step, name: str, runtime: RuntimeNames, converted: Converted) -> None:
    """Have the optimizer compute the loss with its closure, whose gradients its engine averages."""
    helper = runtime.name(step.file, "step_with")

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        closure = cst.ensure_type(updated, cst.Call).args[0].value
        return cst.Call(cst.Name(helper), [cst.Arg(cst.parse_expression(name)), cst.Arg(closure)])

    step.file.change(step.call, change)
    converted(Code.PLAIN_STEP, step.file, step.node, f"{code(step.call)} averages losses and gradients over ranks")


def _engine_of(step: Step, name: str, runtime: RuntimeNames) -> str:
    """Return the expression of the engine of a step."""
    return f"{runtime.name(step.file, 'engine_of')}({code(step.owner)})" if name is LOOKED_UP else name


def _use_scaler(use: ScalerUse, plan: ProgramPlan, runtime: RuntimeNames, converted: Converted) -> None:
    """Have the engine scale the next loss, or step, as the program does."""
    file, node = use.place.file, use.place.node
    engine = _engine_of(use.place, use.engine, runtime) if isinstance(use.place, Step) else use.engine
    scaler = code(use.scaler) if use.scaler is not None else "None"
    line = use_scaler(engine, scaler, file, plan, runtime)
    maker = _maker_above(use, plan)
    if maker is not None:
        if file.edits.once(maker, line):
            file.after(maker, line)
            converted(Code.PLAIN_PRECISION, file, maker, f"{engine} scales losses with {scaler}")
        return
    for inner, outer in takewhile(lambda pair: not isinstance(pair[0], cst.BaseStatement), upwards(file, node)):
        if isinstance(outer, cst.IfExp) and inner is not outer.test:
            test, opposite = expression_text(outer.test), "not {}" if dotted(outer.test) else "not ({})"
            line = f"if {test if inner is outer.body else opposite.format(test)}:\n{indent(line, '    ')}"
    file.before(file.statement(node), line)
    action = "steps" if isinstance(use.place, Step) else "scales this loss"
    converted(Code.PLAIN_PRECISION, file, node, f"{engine} {action} with {scaler}")


def _maker_above(use: ScalerUse, plan: ProgramPlan) -> cst.BaseStatement | None:
    """Return the line that makes the scaler of a backward pass, above it in the function that gets the engine."""
    file, function = use.place.file, use.place.function
    if isinstance(use.place, Step) or not isinstance(use.scaler, cst.Name):
        return None
    beside = [other for other in plan.scaler_uses if other.place.function is function and other.place.file is file]
    is_one = all(other.scaler is not None and dotted(other.scaler) == use.scaler.value for other in beside)
    is_given = function is not None and all(site.function is not function for site in plan.facts.all_sites)
    name, scopes = use.scaler.value, plan.facts.flow.scopes(file)
    made = [node for node in scopes.bindings.get(name, ()) if scopes.owner(name, node) is function]
    line = file.statement(made[0]) if len(made) == 1 and is_one and is_given else None
    is_line = isinstance(line, cst.SimpleStatementLine) and always_runs_before(line, use.place.node, file)
    return line if is_line else None


def _backward(backward: Backward, name: str, is_managed: bool, converted: Converted) -> None:
    if backward.second_order is not None:
        line = f"if {code(backward.second_order)}:\n    {_NO_GRAPH}"
        backward.file.before(backward.file.statement(backward.node), line)
    options = []
    if not is_managed:
        options.append("scale_wrt_gas=False")
    if backward.retains_graph is not None:
        options.insert(0, f"retain_graph={code(backward.retains_graph)}")
    func = cst.parse_expression(f"{name}.backward")
    extra = [
        cst.Arg(
            cst.parse_expression(o.partition("=")[2]),
            keyword=cst.Name(o.partition("=")[0]),
            equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
        )
        for o in options
    ]

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call) and isinstance(updated.func, cst.Attribute)
        loss = updated.args[0].value if backward.is_function else updated.func.value
        if backward.scaler is not None:
            assert isinstance(loss, cst.Call)
            loss = loss.args[0].value
        if backward.gradient is not None:  # the gradient of the sum of their product is the gradient that is given
            given = updated.args[0].value
            loss = cst.parse_expression(f"({_factor(loss)} * {_factor(given)}).sum()")
        elif "\n" not in code(loss):
            loss = loss.with_changes(lpar=loss.lpar[1:], rpar=loss.rpar[1:])
        return cst.Call(func, [cst.Arg(loss), *extra])

    backward.file.change(backward.call, change)
    converted(
        Code.PLAIN_BACKWARD, backward.file, backward.node, f"backward() becomes {name}.backward(loss)"
    )  # fmt: skip


def _state(state: StateCall, runtime: RuntimeNames, converted: Converted) -> None:
    """Have the runtime save or load the whole state of an optimizer of which each rank has a share."""
    if state.name == SETTINGS:
        _read_setting(state, converted)
        return
    helper = HELPERS[state.name]
    func = cst.parse_expression(runtime.name(state.file, helper))

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call) and isinstance(updated.func, cst.Attribute)
        return cst.Call(func, [cst.Arg(updated.func.value), *updated.args])

    state.file.change(state.call, change)
    message = "is saved whole" if state.name == "state_dict" else "may be of any number of ranks"
    converted(Code.PLAIN_CHECKPOINT, state.file, state.node, f"the optimizer's state {message}")


def _read_setting(state: StateCall, converted: Converted) -> None:
    """Read a setting of an optimizer from its groups, for which no state is gathered."""

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Subscript) and isinstance(updated.value, cst.Call)
        return cst.ensure_type(updated.value.func, cst.Attribute).with_changes(attr=cst.Name(SETTINGS))

    groups = state.file.parent(state.call)
    assert groups is not None
    state.file.change(groups, change)
    converted(Code.PLAIN_CHECKPOINT, state.file, state.node, "the optimizer's setting is read from its groups")


def _factor(node: cst.BaseExpression) -> str:
    """Return an expression as it can be written in a product."""
    bare = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)) or node.lpar
    return code(node) if bare else f"({code(node)})"
