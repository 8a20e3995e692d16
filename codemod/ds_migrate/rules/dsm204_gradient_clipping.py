"""Convert ``clip_grads`` to ``gradient_clipping``, or keep the trial's function where a config cannot express it.

The engine's config (DSM205) gets the norm from here, the converted step (DSM302) the call of a function that is kept.
"""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_plan import EnginePlan
from ds_migrate.decisions.gradient_clipping import shared_literal, shared_norm
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import is_literal, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.clipping import clip_definition
from ds_migrate.trial.model import Optimizer, Step

CODE = Code.GRADIENT_CLIPPING


def apply(ctx: RuleContext) -> None:
    for step in ctx.trial.steps:
        if step.clip is None:
            continue
        clipping = ctx.plan.clipping.get(step.owner) if step.owner is not None else None
        if clipping is not None and clipping.max_norm is not None:
            norm = expression_text(clipping.max_norm)
            message = f"clipping to an L2 norm of {norm} is the engine's gradient_clipping"
        else:
            message = "this clipping has no config form: the function is kept and called between backward and step"
        ctx.converted(CODE, step.use.file, step.clip, message)


# -- in the engine's config -------------------------------------------------------------------------------------------


def config_entries(plan: EnginePlan) -> list[str]:
    """Return the entry of a config for all engines, where their norm is one that is known at run time only."""
    norm = shared_norm(plan.clipping, plan.trial.optimizers)
    return [] if norm is None else [f'"gradient_clipping": {norm},']


def engine_config(plan: EnginePlan, optimizer: Optimizer, config: str) -> str:
    """Return the config of one engine, an expression: ``config`` itself where all engines clip to the same norm."""
    clipping, optimizers = plan.clipping.get(optimizer), plan.trial.optimizers
    if clipping is None or clipping.max_norm is None:
        return config
    if shared_norm(plan.clipping, optimizers) is not None or shared_literal(plan.clipping, optimizers) is not None:
        return config
    return f'{{**{config}, "gradient_clipping": {expression_text(clipping.max_norm)}}}'


# -- between backward and step ----------------------------------------------------------------------------------------


def keeps_function(ctx: RuleContext, step: Step) -> bool:
    """Return whether the step's clipping stays the trial's own function."""
    if step.clip is None:
        return False
    clipping = ctx.plan.clipping.get(step.owner) if step.owner is not None else None
    return clipping is None or clipping.max_norm is None


def clip_in(step: Step, updated: cst.Call) -> cst.BaseExpression | None:
    """Return the step's clipping function as the other rules left it."""
    at = [arg.value for arg in step.call.args]
    return updated.args[at.index(step.clip)].value if step.clip is not None else None


def kept_clip(
    ctx: RuleContext, step: Step, engine: str, optimizer: cst.BaseExpression, clip: cst.BaseExpression
) -> list[str]:
    """Return the trial's own function, called on the optimizer's parameters as PyTorchTrial called it."""
    # such an engine reduces in step() only, and every rank must clip the same gradients
    reduce = [] if ctx.plan.managed else [f"{engine}.allreduce_gradients()"]
    names = step.use.file.names
    group = names.fresh("group", "param_group")
    param = names.fresh("p", "param")
    parameters = f'[{param} for {group} in {expression_text(optimizer)}.param_groups for {param} in {group}["params"]]'
    names.taken -= {group, param}
    return [*reduce, *_called(ctx, step, clip, parameters)]


def _called(ctx: RuleContext, step: Step, clip: cst.BaseExpression, parameters: str) -> list[str]:
    """Return the call of what is clipped with, unless it is None."""
    function = expression_text(clip)
    if isinstance(clip, cst.Lambda):
        name = _free_parameter(step, clip)
        if name is None:
            return [f"({expression_text(clip.with_changes(lpar=[], rpar=[]))})({parameters})"]
        read = any(isinstance(n, cst.Name) and n.value == name for n in walk(clip.body))
        return [*([f"{name} = {parameters}"] if read else []), expression_text(clip.body)]
    if isinstance(clip, cst.IfExp) and is_literal(clip.orelse, "None"):
        return [f"if {expression_text(clip.test)}:", *(f"    {x}" for x in _called(ctx, step, clip.body, parameters))]
    if isinstance(clip, (cst.Name, cst.Attribute, cst.Subscript)):
        call = f"{function}({parameters})"
        if clip_definition(step, ctx.trial) is not None:
            return [call]
        return [f"if {function} is not None:", f"    {call}"]
    if isinstance(clip, cst.Call) and (step.use.file.names.qualified(clip.func) or "").endswith("partial"):
        return [f"{function}({parameters})"]
    name = step.use.file.names.free("clip", "clip_gradients")
    return [f"{name} = {function}", f"if {name} is not None:", f"    {name}({parameters})"]


def _free_parameter(step: Step, clip: cst.Lambda) -> str | None:
    """Return the name of a lambda's one parameter if it is free as a local name of the method."""
    function, params = step.use.function, clip.params.params
    if function is None or len(params) != 1 or params[0].default is not None:
        return None
    if step.use.file.nodes(cst.Global, cst.Nonlocal, below=function):
        return None  # what the lambda reads may be declared below it
    name = params[0].name.value
    lambdas = {n for other in walk(function) if isinstance(other, cst.Lambda) for n in walk(other)}
    taken = {n.value for n in walk(function) if isinstance(n, cst.Name) and n not in lambdas}
    return None if name in taken else name
