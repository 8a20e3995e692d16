"""The share of the data that each rank trains on."""

from __future__ import annotations

from dataclasses import replace

from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.decisions.passes.backward_passes import is_beside
from ds_migrate.plain.decisions.passes.repeated_backward import wrapped_modules
from ds_migrate.plain.decisions.plan import Note, ProgramPlan, Review
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.data.counted_batches import counted_batches, counted_draws, lengths_before_share
from ds_migrate.plain.ranks.data.epochs.epoch_averages import EpochAverages
from ds_migrate.plain.ranks.data.epochs.evaluated_shares import evaluated_shares
from ds_migrate.plain.ranks.data.epochs.sample_counts import count_own_samples
from ds_migrate.plain.ranks.data.epochs.undecided_training import undecided_training
from ds_migrate.plain.ranks.data.other_sources import other_sources
from ds_migrate.plain.ranks.lone_scripts import calls_that_start_ranks, may_run_alone, runs_alone
from ds_migrate.plain.ranks.processes.environments import unseeded_environments
from ds_migrate.plain.recognition.batches.batch_sources import sources_of
from ds_migrate.plain.recognition.batches.drawn_batches import drawn_batches
from ds_migrate.plain.recognition.batches.loader_names import may_evaluate, names_of
from ds_migrate.plain.recognition.batches.loader_uses import only_trains
from ds_migrate.plain.recognition.batches.loaders import are_mixed, loaders_of
from ds_migrate.plain.recognition.batches.own_shares import divides_data, divides_itself, is_whole_stream
from ds_migrate.plain.recognition.batches.phases import training_phase
from ds_migrate.plain.recognition.batches.shardable_loaders import can_be_sharded, items_ignore_index
from ds_migrate.plain.recognition.batches.single_draws import is_of_one_round
from ds_migrate.plain.recognition.batches.training_loaders import training_loaders  # fmt: skip
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile


def starts_ranks(step: Step, facts: LoopFacts) -> bool:
    """Return whether a program starts ranks itself where this step runs too, rather than for another loop."""
    if not is_called(INIT, facts.flow):
        return False
    calls = calls_that_start_ranks(facts.flow)
    own = facts.flow.callers.leading(step.file, step.function)
    return not calls or any(own & facts.flow.callers.leading(file, file.function(call)) for file, call in calls)


def _is_fed(step: Step, plan: ProgramPlan) -> bool:
    """Return whether loaders make the batches of a step, or those of the last backward pass before it in its function.

    So is a step behind a loop, which uses what is left of accumulated gradients.
    """
    if training_loaders([step], plan.facts):
        return True
    places = [backward for backward in plan.fed if is_beside(backward, step)]
    if not places or any(backward.position > step.position for backward in places):
        return False
    last = max(places, key=lambda backward: backward.position)
    return bool(training_loaders([replace(step, node=last.node)], plan.facts))


def share_data(
    plan: ProgramPlan, files: list[SourceFile], runtime: RuntimeNames, converted: Converted, review: Review
) -> None:
    """Let each rank train on a share of the data; a program that starts ranks itself knows what they draw.

    Args:
        files: the program's, in which samples may be counted.
    """
    is_of_one_process = not is_called(INIT, plan.facts.flow)
    steps = [step for step, _ in plan.steps]
    unfed = [step for step in steps if not (starts_ranks(step, plan.facts) or _is_fed(step, plan))]
    advice = (
        "let each rank draw other samples, by a separate seed or a share of the data, and rank_0_decides() "
        "what these would end or skip"
    )
    drawing = [file for file in files if may_run_alone(file, plan.facts)] if unfed else []
    is_acting = any(True for _ in unseeded_environments(drawing, plan.facts.flow))
    beside = ", beside what their separate environments give" if is_acting else ", with one seed"
    for step in {id(step.function or step.file): step for step in reversed(unfed)}.values():
        is_of_round = any(
            is_of_one_round(draw, plan.facts.flow) for draw in drawn_batches(step.file, step.node, plan.facts)
        )
        reason = (
            "each round makes this step's loaders for one batch" if is_of_round else "no DataLoader feeds this step"
        )
        message = f"{reason}: several ranks train on the same data{beside}"
        review(Note(Code.PLAIN_SAMPLER, step.file, step.node, message, advice))
    for note in other_sources(steps, plan.facts, advice) if is_of_one_process else ():
        review(note)
    makers = [(f, m) for f, m in training_loaders(steps, plan.facts) if can_be_sharded(m, f, plan.facts.flow)]
    divided = [(f, m) for f, m in makers if divides_itself(m, f, plan.facts.flow)]
    if not is_of_one_process:
        makers = [maker for maker in makers if maker not in divided]
    alone = [(file, maker) for file, maker in makers if runs_alone(file, plan.facts.flow)]
    if not is_of_one_process and wrapped_modules(plan.facts) and not divides_data(plan.facts.flow):
        for file, maker in makers:
            if (file, maker) in alone:
                continue
            message = "no sampler divides this loader: each rank trains on all its data, as it did before"
            keep = "leave it so for the same numbers, or give it a DistributedSampler"
            review(Note(Code.PLAIN_SAMPLER, file, maker, message, keep))
        makers = alone
    for file, maker in divided if is_of_one_process else ():
        message = "this data is selected by the rank, and shard() divides it once more"
        review(Note(Code.PLAIN_SAMPLER, file, maker, message, "give the loader all data, or leave out shard()"))
    if alone:
        flow = plan.facts.flow
        of_ranks = {id(m) for f, m in training_loaders(steps, plan.facts) if not runs_alone(f, flow)}
        counted = count_own_samples(alone, of_ranks, files, flow, runtime, converted)
        averages = EpochAverages(alone, of_ranks, counted, flow)
        notes = averages.divide_by_share(files, runtime, converted)
        for note in (*notes, *counted_draws(alone, flow), *counted_batches(alone, counted, flow)):
            review(note)
    mixed = {
        v.key
        for step in steps
        for file, node in sources_of(step.file, step.node, plan.facts, depth=3)
        if are_mixed(node, file, plan.facts.flow)
        for v in loaders_of(node, file, plan.facts.flow)
    }
    divided_whole, written = set[int](), set[tuple[int, str]]()
    for file, maker in makers:
        if is_whole_stream(maker, file, plan.facts.flow) and (file, maker) not in divided:
            message = "only this IterableDataset can divide what it gives: several ranks train on the same samples"
            advice = "have it give each rank others, by torch.distributed.get_rank() and get_world_size()"
            review(Note(Code.PLAIN_SAMPLER, file, maker, message, advice))
        if items_ignore_index(maker, file, plan.facts.flow):
            message = "items of this dataset do not depend on their index: ranks with one seed draw the same ones"
            advice = "draw them with a separate seed on each rank"
            review(Note(Code.PLAIN_SAMPLER, file, maker, message, advice))
        is_shared = id(maker) in mixed or may_evaluate(maker, file, steps, plan.facts)
        names = names_of(maker, steps, plan.facts) if is_shared else []
        phase = training_phase(maker, file, steps) if is_shared and not names else None
        names += [phase] if phase is not None else []
        for one in names:
            if (id(one.statement), one.text) not in written:  # several calls may make the loader of a name
                written.add((id(one.statement), one.text))
                line = f"{one.text} = {runtime.name(one.file, 'shard')}({one.text})"
                one.file.after(one.statement, f"if {one.condition}:\n    {line}" if one.condition else line)
            converted(Code.PLAIN_SAMPLER, one.file, one.statement, "each rank trains on a share of the loader's data")
            for note in lengths_before_share(maker, file, one, plan.facts) if is_of_one_process else ():
                review(note)
        if names:
            continue
        wrap(file, maker, runtime.name(file, "shard"))
        if is_shared and not only_trains(maker, file, steps, plan.facts):
            message = "this call may make loaders for evaluation too, which then give each rank a share"
            advice = "make the loader that trains by a separate call, or reduce the metrics over ranks"
            review(Note(Code.PLAIN_SAMPLER, file, maker, message, advice))
        else:
            divided_whole.add(id(maker))
        converted(Code.PLAIN_SAMPLER, file, maker, "each rank trains on a share of the loader's data")
    for note in undecided_training({id(maker) for _, maker in makers}, plan.facts) if is_of_one_process else ():
        review(note)
    for note in evaluated_shares(divided_whole, written, files, plan) if is_of_one_process else ():
        review(note)
