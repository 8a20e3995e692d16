"""Decisions about a trial, taken from its facts before any edit: engines, ZeRO stage, location, options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from ds_migrate.decisions.autocast import choose_autocast
from ds_migrate.decisions.engine_layout import Form, choose_form, has_one_backward_and_step, is_on_library_base
from ds_migrate.decisions.engine_location import after_names
from ds_migrate.decisions.engine_names import name_engines, raw_name
from ds_migrate.decisions.engine_options import choose_options
from ds_migrate.decisions.engine_plan import Accumulation, Blocked, EnginePlan
from ds_migrate.decisions.gradient_clipping import Clipping, choose_clipping
from ds_migrate.decisions.location_search import EngineLocationError, locate_engine
from ds_migrate.decisions.zero_stage import choose_stage
from ds_migrate.options import Options
from ds_migrate.project.library_bases import LIBRARY_PATH, TRANSFORMER_TRIAL
from ds_migrate.syntax.nodes import code, dotted_names
from ds_migrate.targets import Target
from ds_migrate.trial.gradient_access import handles_gradients, hooks_gradients
from ds_migrate.trial.model import Model, Optimizer, Trial
from ds_migrate.trial.own_name import other_than_self


def decide(trial: Trial, options: Options, target: Target, accumulation: Accumulation) -> EnginePlan | Blocked:
    """Return the decisions on one trial, in the order in which they need each other, or why it gets no engines."""
    if (unusual := other_than_self(trial)) is not None:
        part, method, name = unusual
        return Blocked(
            trial, part.file, method.name,
            f"{method.name.value}() calls the trial {name}, and other methods would get lines with that name",
            "call the first parameter of every method self",
        )  # fmt: skip
    if not trial.wraps_model:
        return _incomplete(trial, "wrap_model")
    if not trial.wraps_optimizer:
        return _incomplete(trial, "wrap_optimizer")
    if (blocked := _refused_by_library(trial, target, accumulation)) is not None:
        return blocked
    try:
        location = locate_engine(trial)
    except EngineLocationError as error:
        return _without_location(trial, error)
    clipping = choose_clipping(trial, location.function)
    norms = [c.max_norm for c in clipping.values() if c.max_norm is not None]
    location = after_names(location, {name for norm in norms for name in dotted_names(norm)})
    keeps_clip = any(c.max_norm is None for c in clipping.values())
    looks = handles_gradients(trial) or hooks_gradients(trial)
    averages_late = looks and accumulation.is_used and accumulation.averages and target.ships_helpers
    form = choose_form(trial, location, clips=bool(clipping))
    managed = form is Form.SIMPLE and not averages_late and has_one_backward_and_step(trial)
    zero = choose_stage(trial, location, form, managed, keeps_clip, options)
    raw_names: dict[Model | Optimizer, str] = {}
    if form is Form.SIMPLE:
        model, optimizer = trial.models[0], trial.optimizers[0]
        engine_names = {optimizer: model.target}
        raw_names = {owner: name for owner in (model, optimizer) if (name := raw_name(trial, owner, location))}
    else:
        engine_names = name_engines(trial)
    if form is Form.COLLECTED:  # the engines share one config, so every function is kept
        clipping = {owner: Clipping(None, c.function or c.max_norm) for owner, c in clipping.items()}
    autocast = choose_autocast(trial, form, location.function)
    if autocast.condition:
        location = after_names(location, dotted_names(cst.parse_expression(autocast.condition)) - {"self"})
    engine_options = choose_options(trial, form, location, zero, autocast, options, target)
    return EnginePlan(
        trial, accumulation, location, form, managed, averages_late, zero, clipping, autocast, engine_options,
        engine_names, raw_names,
    )  # fmt: skip


def reconcile(plans: Sequence[EnginePlan], options: Options, target: Target) -> tuple[list[EnginePlan], list[Blocked]]:
    """Return the plans with what trials need the same whose engines are made by the same lines of a shared
    ``__init__``, and the trials that cannot share them.

    Accumulation is counted manually and state is not sharded where one of them needs that.
    """
    shared: dict[cst.CSTNode, list[EnginePlan]] = {}
    for plan in plans:
        shared.setdefault(plan.location.statement, []).append(plan)
    blocked = [
        _differing(plan.trial, group[0].trial)
        for group in shared.values()
        for plan in group[1:]
        if _engine_code(plan) != _engine_code(group[0])
    ]
    return [_agreeing(plan, shared[plan.location.statement], options, target) for plan in plans], blocked


def _agreeing(plan: EnginePlan, group: Sequence[EnginePlan], options: Options, target: Target) -> EnginePlan:
    """Return the plan with the least of what the group can have."""
    least = min(group, key=lambda other: (other.zero.stage, other.managed)).zero
    managed = all(other.managed for other in group)
    if (managed, least.stage, least.reason) == (plan.managed, plan.zero.stage, plan.zero.reason):
        return plan
    zero = replace(plan.zero, stage=least.stage, reason=least.reason)
    engine_options = choose_options(plan.trial, plan.form, plan.location, zero, plan.autocast, options, target)
    return replace(plan, managed=managed, zero=zero, options=engine_options)


def _engine_code(plan: EnginePlan) -> tuple[object, ...]:
    """Return what the lines that make the engines hold, but for what ``reconcile`` settles."""
    names = plan.engine_names
    norms = {names[o]: code(c.max_norm) for o, c in plan.clipping.items() if c.max_norm is not None}
    return plan.form, [*names.values()], norms, (plan.autocast.condition, plan.autocast.dtype)


def _refused_by_library(trial: Trial, target: Target, accumulation: Accumulation) -> Blocked | None:
    """Return why a trial on a library's base class gets no engines: the runtime's class makes them in its ``__init__``,
    for what is wrapped there, and averages gradients."""
    if not is_on_library_base(trial):
        return None
    part = trial.parts[0]
    if not target.ships_helpers:
        return Blocked(
            trial, part.file, part.node.name,
            f"{trial.name} is built on {TRANSFORMER_TRIAL}, and {target.package} has none for DeepSpeed",
            "convert for the bundled runtime (--target runtime)",
        )  # fmt: skip
    sums = accumulation.is_used and not accumulation.averages
    if sums and any(backward.use.file.path == LIBRARY_PATH for backward in trial.backwards):
        return Blocked(
            trial, part.file, part.node.name,
            f"{TRANSFORMER_TRIAL}.train_batch averages the gradients of the micro-batches, and a config has "
            "average_aggregated_gradients: false",
            f"write train_batch in {trial.name}, or average and divide max_grad_norm by aggregation_frequency",
        )  # fmt: skip
    in_library = [wrap for wrap in trial.wraps if wrap.file.path == LIBRARY_PATH]
    own = [wrap for wrap in trial.wraps if wrap.file.path != LIBRARY_PATH]
    file, node = (own[0].file, own[0].call) if own else (part.file, part.node.name)
    if not in_library or not (own or trial.helpers):
        return None
    return Blocked(
        trial, file, node,
        f"{TRANSFORMER_TRIAL}.__init__ makes the engine of the model that it wraps, and {trial.name} wraps another "
        "model or optimizer beside it",
        "wrap everything in the trial's own __init__, without super().__init__(), as the base class does it",
    )  # fmt: skip


def _differing(trial: Trial, first: Trial) -> Blocked:
    part = trial.parts[0]
    return Blocked(
        trial, part.file, part.node.name,
        f"{trial.name} and {first.name} inherit the same __init__ but need different engines",
        "give each trial its own __init__, or let both clip and step alike",
    )  # fmt: skip


def _without_location(trial: Trial, error: EngineLocationError) -> Blocked:
    part, wrap = trial.parts[0], error.wrap
    file, node = (part.file, part.node.name) if wrap is None else (wrap.file, wrap.call)
    message = f"there is no place to make the engine: {error}"
    return Blocked(trial, file, node, message, "wrap models, optimizers and schedulers in __init__")


def _incomplete(trial: Trial, call: str) -> Blocked:
    part = trial.parts[0]
    message = f"found no {call}() in {trial.name}"
    return Blocked(trial, part.file, part.node.name, message, f"call self.context.{call} in __init__")
