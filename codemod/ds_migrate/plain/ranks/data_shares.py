"""The share of the data that each rank trains on."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.decisions.plan import Note, ProgramPlan, Review
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.recognition.loaders import can_be_sharded, training_loaders
from ds_migrate.rules.codes import Code


def share_data(plan: ProgramPlan, runtime: RuntimeNames, converted: Converted, review: Review) -> None:
    """Let each rank train on a share of the data."""
    for step, _ in plan.steps:
        if not training_loaders([step], plan.facts):
            message = "no DataLoader feeds this step: several ranks train on the same data, with one seed"
            advice = "let each rank draw other samples, by a separate seed or a share of the data"
            review(Note(Code.PLAIN_SAMPLER, step.file, step.node, message, advice))
    for file, maker in training_loaders([s for s, _ in plan.steps], plan.facts):
        if not can_be_sharded(maker, file, plan.facts.flow):
            continue
        name = runtime.name(file, "shard")
        func = cst.parse_expression(name)
        file.change(maker, lambda updated, func=func: cst.Call(func, [cst.Arg(updated)]))  # type: ignore[misc]
        if plan.facts.callers.may_run_often(file, maker):
            message = "this call may make loaders for evaluation too, which then give each rank a share"
            advice = "make the loader that trains by a separate call, or reduce the metrics over ranks"
            review(Note(Code.PLAIN_SAMPLER, file, maker, message, advice))
        converted(Code.PLAIN_SAMPLER, file, maker, "each rank trains on a share of the loader's data")
