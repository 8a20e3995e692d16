"""The batch size of one rank, as the config of an engine has it."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.moved_expressions import at_statement
from ds_migrate.plain.dataflow.values import Kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.recognition.batches.loaders import training_loaders
from ds_migrate.plain.recognition.creation.module_names import visible_name
from ds_migrate.plain.recognition.facts import Site
from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.source import SourceFile

_SECOND = ("torch.", "torch_geometric.loader.DataLoader", "torch_geometric.data.DataLoader")
_BATCH_SAMPLERS = frozenset({"torch.utils.data.BatchSampler", "torch.utils.data.sampler.BatchSampler"})


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
            text = at_statement(size.value, file, site.statement, site.file, facts.flow, facts.callers)
        if text is None and not is_sampled:
            loaders = facts.flow.values(maker, file)
            name = visible_name(loaders, site.statement, site.file, facts.flow)
            text = f"{name}.batch_size" if name is not None else None
        if text is not None:
            return text
    return "1"


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
