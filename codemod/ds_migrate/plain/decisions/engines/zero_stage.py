"""The ZeRO stage of an engine: 1 where it is exact, else 0."""

from __future__ import annotations

import libcst as cst

from ds_migrate.deepspeed_facts import ELEMENTWISE_OPTIMIZERS
from ds_migrate.plain.dataflow.calls.partial_calls import LAMBDA, PARTIAL
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.engines.checkpoints import handles_state, sharding_hazard
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.facts import Clip, LoopFacts, Site
from ds_migrate.syntax.nodes import called_name, code, dotted, is_literal, targets, walk
from ds_migrate.syntax.source import SourceFile

_PRECISIONS = frozenset({"double", "half", "bfloat16", "float16", "float64", "set_default_dtype", "DoubleTensor"})
_COMPLEX = frozenset({"cfloat", "cdouble", "complex32", "complex64", "complex128", "complex", "view_as_complex"})
_WRITERS = frozenset({"apply", "reset_parameters", "vector_to_parameters"})


def choose_stage(plan: ProgramPlan, site: Site) -> tuple[int, str, bool]:
    """Return the stage, why it is no higher ("" where it is), and whether ``--zero`` asked for what is not exact."""
    reason = _hazard(plan, site)
    wanted = plan.facts.options.zero
    if wanted is None:
        return (0 if reason else 1), reason, False
    if wanted >= 3:
        return 0, "forward passes of the model itself need all parameters on each rank", True
    if wanted and reason:
        return 0, reason, True
    return wanted, reason if wanted == 0 else "", False


def _hazard(plan: ProgramPlan, site: Site) -> str:
    if len(plan.facts.sites) > 1:
        return "there are several engines"
    if site.is_changed:
        return "the optimizer is replaced, or gets further groups, while it trains"
    if site.may_be_given:
        return "the optimizer may be one that is made elsewhere"
    if is_made_again(site, plan.facts):
        return "the optimizer is made anew while its module stays"
    if plan.has_scaler:
        return "a GradScaler scales the loss"
    if len(site.modules) != 1 or site.is_partial or site.tensors:
        return "the optimizer holds tensors beside modules, parts of modules, or several"
    if not plan.is_managed:
        return "not every step() follows one backward()"
    if plan.keeps_gradients:
        return "gradients are used again after step()"
    for file, maker in site.makers:
        names = {v.name for v in plan.facts.flow.values(maker.func, file)}
        if names <= {PARTIAL, LAMBDA}:
            names = {value.name for value in site.optimizers if plan.facts.flow.node(value) is maker}
        if any(value.name.endswith("?") for value in site.optimizers):
            return "the optimizer's class is known only at run time"
        if not names <= ELEMENTWISE_OPTIMIZERS:
            return "the optimizer is none of torch's elementwise ones"
        if "torch.optim.Adagrad" in names and not plan.facts.options.runtime:
            return "DeepSpeed alone replaces an Adagrad by its own"
    if any(clip not in plan.removed for clip in plan.facts.operations.clips if isinstance(clip, Clip)):
        return "gradients are clipped by the program's own code"
    for file in plan.facts.flow.files.values():
        found = _use(file, plan.facts.flow)
        if not found and not plan.facts.options.runtime:
            found = _write(file, plan.facts.flow)
        if found:
            return found
    if not plan.facts.options.runtime and handles_state(plan.facts, site):
        return "the runtime loads weights and optimizer state into shares, and is not used"
    return sharding_hazard(plan.facts, site)


def _is_new(value: cst.BaseExpression) -> bool:
    """Return whether a value is a parameter of its own, as ``nn.Parameter(torch.empty(2))``, and of no other weight."""
    given = (
        [arg.value for arg in value.args] if isinstance(value, cst.Call) and called_name(value) == "Parameter" else []
    )
    parts = {part.attr.value for part in walk(value) if isinstance(part, cst.Attribute)}
    return bool(given) and isinstance(given[0], cst.Call) and not parts & {"weight", "data"}


def _use(file: SourceFile, flow: Flow) -> str:
    """Return what a file does that is only exact where parameters, gradients and state are plain tensors."""
    for node in file.nodes(cst.Attribute):
        name = node.attr.value
        if name == "grad" and dotted(node) not in ("torch.autograd.grad", "autograd.grad"):
            return "the program reads or writes gradients"
        if name == "state" and of_kind(flow.values(node.value, file), Kind.OPTIMIZER):
            return "the program reads or writes the optimizer's state"
        if name == "requires_grad_" and _may_freeze(node, file, flow):
            return "the program switches requires_grad"
        if name in _PRECISIONS and not _is_in_autocast(node, file):
            return "the program may have parameters of another precision than float32"
        if name in _COMPLEX:
            return "the program may have complex parameters, which cannot be in one tensor with others"
    for string in file.nodes(cst.SimpleString):
        if string.evaluated_value == "params" and isinstance(file.parent(string), cst.Index):
            return "the program reads the parameters of the optimizer's groups"
    for node in file.nodes(cst.Assign):
        for target in targets(node):
            if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad":
                return "the program switches requires_grad"
            if isinstance(target, cst.Attribute) and target.attr.value == "weight" and not _is_new(node.value):
                return "parameters are shared between modules"
    return ""


def _may_freeze(node: cst.Attribute, file: SourceFile, flow: Flow) -> bool:
    """Return whether ``requires_grad_()`` may be a module's, or may switch off: else it is of an input."""
    call = file.parent(node)
    is_on = isinstance(call, cst.Call) and all(is_literal(arg.value, "True") for arg in call.args)
    return not is_on or bool(of_kind(flow.values(node.value, file), Kind.MODULE, Kind.PART, Kind.INSTANCE))


def _is_in_autocast(node: cst.CSTNode, file: SourceFile) -> bool:
    calls = [outer for outer in file.ancestors(node) if isinstance(outer, cst.Call)]
    return any("autocast" in (dotted(call.func) or "") for call in calls)


def _write(file: SourceFile, flow: Flow) -> str:
    """Return what may write to parameters, which only the runtime lets an engine step."""
    for node in file.nodes(cst.Attribute):
        name = node.attr.value
        is_used = isinstance(file.parent(node), (cst.Attribute, cst.AssignTarget, cst.AugAssign))
        if name == "data" and is_used and not of_kind(flow.values(node, file), Kind.EXTERNAL):  # torch.utils.data
            return "the program uses .data, which may be a parameter's"
        if name in _WRITERS or (name.endswith("_") and not name.startswith("_") and name != "requires_grad_"):
            return f"{name}() may write to parameters"
    for node in file.nodes(cst.AugAssign, cst.AssignTarget):
        if isinstance(node, cst.AugAssign) or isinstance(node.target, cst.Subscript):
            blocks = [outer for outer in file.ancestors(node) if isinstance(outer, cst.With)]
            if any("no_grad" in code(item.item) for block in blocks for item in block.items):
                return "what is assigned without gradients may be a parameter"
    return ""


_LOOPS = (cst.For, cst.While)


def is_made_again(site: Site, facts: LoopFacts) -> bool:
    """Return whether an optimizer may be made again for modules that live on: in a loop, or in a function called twice.

    Each time its engine is made again too. The one before may be left as it is at ZeRO stage 0 alone.
    """
    return any(_outlives(value_makers, site, facts) for value_makers in _makers(site, facts))


def _makers(site: Site, facts: LoopFacts) -> list[set[int]]:
    """Return, for each module, the calls that make it or lead to that, by identity."""
    copies = facts.flow.copies
    return [{id(facts.flow.node(v)), *(id(call) for _, call in copies.calls(v))} for v in site.of]


def _outlives(makers: set[int], site: Site, facts: LoopFacts) -> bool:
    """Return whether a module is made outside of what makes the optimizer several times."""
    file, function = site.file, site.function
    node: cst.CSTNode = site.statement
    reached: set[int] = set()
    while True:
        loops = [a for a in file.ancestors(node) if isinstance(a, _LOOPS) and file.function(a) is function]
        if any(not _holds(loop, makers) for loop in loops):
            return True
        if function is None or id(function) in reached or _holds(function, makers):
            return False
        reached.add(id(function))
        calls = facts.flow.callers.of(function)
        if len(calls) != 1:
            return facts.flow.callers.has_several(function)
        file, node = calls[0]
        function = file.function(node)


def _holds(node: cst.CSTNode, makers: set[int]) -> bool:
    return any(id(below) in makers for below in walk(node))
