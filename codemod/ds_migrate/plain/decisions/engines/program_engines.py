"""The engines of a program: one for each optimizer, with its config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, of_kind
from ds_migrate.plain.decisions.engines.checkpoints import state_calls, undecided_conditions
from ds_migrate.plain.decisions.engines.engine_options import plan_engine
from ds_migrate.plain.decisions.engines.micro_batch import micro_batch
from ds_migrate.plain.decisions.engines.zero_stage import choose_stage
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal, Site, optimizers_of
from ds_migrate.rules.codes import Code

# They step by gradients and parameters alone, without random numbers.
_BY_GRADIENTS = frozenset(
    f"transformers.{home}{name}" for home in ("", "optimization.") for name in ("AdamW", "Adafactor")
)


def decide_engines(plan: ProgramPlan) -> ProgramPlan:
    """Plan the engine of each optimizer."""
    for site in plan.facts.all_sites:
        plan = _decide_engine(site, plan)
    return replace(plan, notes=[*plan.notes, *_idle_optimizers(plan.facts)])


def _decide_engine(site: Site, plan: ProgramPlan) -> ProgramPlan:
    facts = plan.facts
    stage, reason, is_refused = choose_stage(plan, site)
    if is_refused:
        message = f"ZeRO stage {facts.options.zero} would change the numbers: {reason}"
        plan = plan.refuse([Refusal(Code.PLAIN_ENGINE, site.file, site.target, message, "leave out --zero")])
    if stage:
        states, undecided = state_calls(plan.facts, site), undecided_conditions(plan.facts, site)
        plan = replace(
            plan, state_calls=[*plan.state_calls, *states], undecided=[*plan.undecided, *undecided]
        )  # fmt: skip
    engine, notes = plan_engine(plan, site, _config(site, stage, plan), stage)
    message = f"deepspeed.initialize makes {plan.names.at_site[site]}, ZeRO stage {stage}"
    message += f": {reason}" if reason else ""
    notes = [*notes, Note(Code.PLAIN_ENGINE, site.file, site.target, message)]
    if not all(_steps_as_torch(value, facts) for value in site.optimizers):
        is_known = all(value.name != "?" for value in site.optimizers)
        which = "the optimizer is none of torch's" if is_known else "the optimizer's class is known only at run time"
        message = (
            f"{which}: with several ranks its steps are the same on each only if they depend on gradients and "
            "parameters alone"
        )
        advice = "check what its step() reads, or compare the ranks with ds-verify --plain"
        notes.append(Note(Code.PLAIN_ENGINE, site.file, site.target, message, advice))
    return replace(plan, engines=[*plan.engines, engine], notes=[*plan.notes, *notes])


def _idle_optimizers(facts: LoopFacts) -> Iterator[Note]:
    """Yield the optimizers without engines: those that functions make which nothing calls."""
    followed = frozenset(value for site in facts.all_sites for value in site.optimizers)
    for value in facts.flow.in_order(frozenset(optimizers_of(facts.operations.steps)) - followed):
        file, maker = facts.flow.file(value), facts.flow.node(value)
        function = file.function(maker)
        if function is not None:
            message = f"nothing calls {function.name.value}(): its optimizer has no engine, which the step needs now"
            yield Note(Code.PLAIN_ENGINE, file, maker, message, "remove the function, or make an engine in it too")


def _config(site: Site, stage: int, plan: ProgramPlan) -> dict[str, str]:
    config = {"train_micro_batch_size_per_gpu": micro_batch(plan, site)}
    if not plan.is_managed:
        config["managed_gradient_accumulation"] = "False"
    config["gradient_clipping"] = plan.clip_norms.get(site, "0.0")
    config["zero_optimization"] = f'{{"stage": {stage}}}'
    if stage:
        config["zero_allow_untested_optimizer"] = "True"
    return config


def _steps_as_torch(optimizer: Value, facts: LoopFacts) -> bool:
    """Return whether an optimizer steps by gradients and parameters alone.

    It is one of torch's or of transformers', or of a class of the program that leaves ``step()`` to one of torch's.
    """
    if optimizer.name.startswith("torch.optim.") or optimizer.name in _BY_GRADIENTS:
        return True
    made = facts.flow.node(optimizer)
    values = facts.flow.values(made.func, facts.flow.file(optimizer)) if isinstance(made, cst.Call) else NOTHING
    classes = of_kind(values, Kind.CLASS)
    return bool(classes) and all(
        facts.flow.classes.method(cls.key, "step") is None
        and all(name.startswith("torch.optim.") for name in facts.flow.classes.external_bases(cls.key))
        for cls in classes
    )
