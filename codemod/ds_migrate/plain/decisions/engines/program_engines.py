"""The engines of a program: one for each optimizer, with its config."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.branches.set_names import is_always_set
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.moved_expressions import at_statement
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Value, Values, of_kind
from ds_migrate.plain.decisions.engines.checkpoints import state_calls, undecided_conditions
from ds_migrate.plain.decisions.engines.engine_options import plan_engine
from ds_migrate.plain.decisions.engines.zero_stage import choose_stage
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.recognition.batches.training_loaders import training_loaders
from ds_migrate.plain.recognition.creation.module_names import visible_name
from ds_migrate.plain.recognition.facts import LoopFacts, Refusal, Site, optimizers_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, targets
from ds_migrate.syntax.source import SourceFile

# They step by gradients and parameters alone, without random numbers.
_BY_GRADIENTS = frozenset(
    f"transformers.{home}{name}" for home in ("", "optimization.") for name in ("AdamW", "Adafactor")
)
_SECOND = ("torch.", "torch_geometric.loader.DataLoader", "torch_geometric.data.DataLoader")
_BATCH_SAMPLERS = frozenset({"torch.utils.data.BatchSampler", "torch.utils.data.sampler.BatchSampler"})


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
    made = _made_at(site)
    if not all(_steps_as_torch(value, facts) for value in made):
        is_known = all(value.name != "?" for value in made)
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


def _made_at(site: Site) -> Values:
    """Return the optimizers that a site makes itself, of those that its variable holds; all where it makes none."""
    inside = set(map(id, site.file.nodes(cst.Call, below=site.statement)))
    return frozenset(value for value in site.optimizers if value.key in inside) or site.optimizers


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


def micro_batch(plan: ProgramPlan, site: Site) -> str:
    """Return the batch size of one rank, as it can be written where the engine is made; "1" where it is unknown."""
    facts = plan.facts
    steps = [s for s, _ in plan.steps if s.optimizers <= site.optimizers]
    steps = steps or [s for s, _ in plan.steps if s.optimizers & site.optimizers]
    makers = training_loaders(steps, facts)
    for file, maker in sorted(makers, key=lambda place: place[0].function(place[1]) is not site.function):
        made = facts.flow.construction(maker, file)
        sampler, size = argument(made, None, "batch_sampler"), argument(made, None, "batch_size")
        if size is None and _is_of_torch(maker, file, facts.flow):
            size = argument(made, 1, "batch_size")
        is_sampled = sampler is not None and dotted(sampler.value) != "None"
        if sampler is not None and is_sampled:
            size = _sampler_size(sampler.value, file, facts.flow)
        elif size is not None and dotted(size.value) == "None":
            continue
        text = None
        if size is not None:
            text = at_statement(size.value, file, site.statement, site.file, facts.flow)
        if text is None and not is_sampled:
            loaders = facts.flow.values(maker, file)
            name = visible_name(loaders, site.statement, site.file, facts.flow)
            text = f"{name}.batch_size" if name is not None and _has_value(name, site) else None
        if text is not None:
            return text
    return "1"


def _has_value(name: str, site: Site) -> bool:
    """Return whether a local name has a value wherever the engine is made: not one of a branch alone."""
    scope = site.file.function(site.statement)
    assigned = site.file.nodes(cst.Assign, below=scope or site.file.module)
    is_local = any(name in names_in(t) and site.file.function(n) is scope for n in assigned for t in targets(n))
    return not is_local or is_always_set(name, site.statement, site.file)


def _is_of_torch(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a loader's class takes the batch size second: others, as DGL's, have another order."""
    callees = flow.values(maker.func, file) | flow.chosen_by(maker, file)
    return bool(callees) and all(v.kind is Kind.EXTERNAL and v.name.startswith(_SECOND) for v in callees)


def _sampler_size(sampler: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.Arg | None:
    """Return the batch size of torch's ``BatchSampler``, made in the same file: its loader knows none."""
    values = [value for value in flow.values(sampler, file) if value.key]
    made = flow.node(values[0]) if len(values) == 1 and flow.file(values[0]) is file else None
    is_of_torch = isinstance(made, cst.Call) and flow.is_call_of(made, file, _BATCH_SAMPLERS)
    return argument(made, 1, "batch_size") if isinstance(made, cst.Call) and is_of_torch else None
