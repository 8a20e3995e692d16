"""The decisions that every rule builds on, taken in the order in which they need each other."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.decisions.engine_layout import decide
from ds_migrate.decisions.engine_location import EngineLocationError, after_names, bare_name, locate_engine
from ds_migrate.decisions.option_checks import ask
from ds_migrate.decisions.zero_hazards import handles_gradients, hooks_gradients
from ds_migrate.rules.codes import Code
from ds_migrate.rules.wrap_edits import engine_name
from ds_migrate.syntax.nodes import code, dotted, dotted_names
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.clipping import Clipping, clipping_of
from ds_migrate.trial.model import Form, Optimizer, Trial
from ds_migrate.trial.precision import Precision, precision_of


def prepare(plan: RuleContext) -> None:
    """Place, clipping, form, stage, precision and engine names; blocks a trial that has none of it."""
    trial = plan.trial
    trial.precision = Precision()
    helped = {use.attr for use in trial.helpers}
    if not trial.models and "wrap_model" not in helped:
        _incomplete(plan, "wraps no model")
        return
    if not trial.optimizers and "wrap_optimizer" not in helped:
        _incomplete(plan, "wraps no optimizer")
        return
    try:
        trial.place = locate_engine(trial)
    except EngineLocationError as problem:
        file, node = _where(problem, trial)
        plan.blocked(
            Code.ENGINE, file, node, f"there is no place to make the engine: {problem}",
            "wrap models, optimizers and schedulers in __init__",
        )  # fmt: skip
        return
    trial.clipping = _clipping(trial)
    norms = [c.max_norm for c in trial.clipping.values() if c.max_norm is not None]
    trial.place = after_names(trial.place, {name for norm in norms for name in dotted_names(norm)})
    kept = any(c.max_norm is None for c in trial.clipping.values())
    looks = handles_gradients(trial) or hooks_gradients(trial)
    plan.averages_late = looks and plan.accumulates and plan.experiment_average and plan.target.ships_helpers
    decide(trial, plan.options, clips=bool(trial.clipping), keeps_clip=kept, sums=plan.averages_late)
    if trial.form is Form.COLLECTED:  # the engines share one config, so every function is kept
        trial.clipping = {owner: Clipping(None, c.function or c.max_norm) for owner, c in trial.clipping.items()}
    if trial.form is Form.SIMPLE:
        model, optimizer = trial.models[0], trial.optimizers[0]
        optimizer.engine = model.target
        model.raw, optimizer.raw = bare_name(trial, model), bare_name(trial, optimizer)
    else:
        _name_engines(plan)
    trial.precision = precision_of(trial)
    if trial.precision.condition:
        condition = cst.parse_expression(trial.precision.condition)
        trial.place = after_names(trial.place, dotted_names(condition) - {"self"})


def agree(plans: Sequence[RuleContext]) -> None:
    """Trials whose engines are made by the same lines of a shared ``__init__`` need them the same: counted by hand and
    unsharded where one of them does, and blocked where what differs cannot be reconciled. Then what the command line
    asks of the engines is settled."""
    shared: dict[cst.CSTNode, list[RuleContext]] = {}
    for plan in plans:
        if plan.trial.place is not None:
            shared.setdefault(plan.trial.place.statement, []).append(plan)
    for group in shared.values():
        first = group[0].trial
        for plan in group[1:]:
            if _engines_of(plan.trial) != _engines_of(first):
                part = plan.trial.parts[0]
                plan.blocked(
                    Code.ENGINE, part.file, part.node.name,
                    f"{plan.trial.name} and {first.name} share their __init__ and need its engines made differently",
                    "give each trial an __init__ of its own, or let both clip and step alike",
                )  # fmt: skip
        least = min((plan.trial for plan in group), key=lambda trial: (trial.stage, trial.managed))
        managed = all(plan.trial.managed for plan in group)
        for plan in group:
            plan.trial.managed, plan.trial.stage, plan.trial.stage_reason = managed, least.stage, least.stage_reason
    for plan in plans:
        if plan.trial.place is not None:
            plan.trial.asked = ask(plan.trial, plan.options, plan.target)


def _engines_of(trial: Trial) -> tuple[object, ...]:
    """What the lines that make the engines say, but for what ``agree`` reconciles."""
    norms = {o.engine: code(c.max_norm) for o, c in trial.clipping.items() if c.max_norm is not None}
    precision = (trial.precision.condition, trial.precision.dtype)
    return trial.form, [o.engine for o in trial.optimizers], norms, precision


def _name_engines(plan: RuleContext) -> None:
    """A name of its own for each engine, one that no class of the family uses on itself."""
    taken = {
        name
        for file in plan.context_names
        for node in file.nodes(cst.Attribute)
        if (name := dotted(node)) is not None and name.startswith("self.")
    }
    for optimizer in plan.trial.optimizers:
        optimizer.engine = engine_name(optimizer, taken)
        taken.add(optimizer.engine)


def _clipping(trial: Trial) -> dict[Optimizer, Clipping]:
    """How each optimizer's steps clip; steps of one optimizer that clip differently keep their functions."""
    assert trial.place is not None
    found: dict[Optimizer, Clipping] = {}
    for step in trial.steps:
        if step.owner is None:
            continue
        clipping = clipping_of(step, trial, trial.place.function)
        if clipping is None:
            continue
        known = found.get(step.owner)
        found[step.owner] = clipping if known is None or _same(known, clipping) else Clipping(None, step.clip)
    for step in trial.steps:
        # One step clips, another does not: only code can say that.
        if step.owner is not None and step.clip is None and step.owner in found:
            found[step.owner] = Clipping(None, found[step.owner].function)
    return found


def _same(one: Clipping, other: Clipping) -> bool:
    return one.max_norm is not None and other.max_norm is not None and one.max_norm.deep_equals(other.max_norm)


def _where(problem: EngineLocationError, trial: Trial) -> tuple[SourceFile, cst.CSTNode]:
    if problem.wrap is not None:
        return problem.wrap.file, problem.wrap.call
    return trial.parts[0].file, trial.parts[0].node.name


def _incomplete(plan: RuleContext, what: str) -> None:
    part = plan.trial.parts[0]
    plan.blocked(
        Code.ENGINE, part.file, part.node.name, f"{plan.trial.name} {what} that can be seen here",
        "wrap it in __init__ through the context",
    )  # fmt: skip
