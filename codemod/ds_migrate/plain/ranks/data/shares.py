"""The share of the data that each rank trains on."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.decisions.passes.backward_passes import is_beside
from ds_migrate.plain.decisions.plan import Note, ProgramPlan, Review
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.data.counted_batches import counted_batches, counted_draws, lengths_before_share
from ds_migrate.plain.ranks.data.epochs.epoch_averages import EpochAverages
from ds_migrate.plain.ranks.data.epochs.evaluated_shares import evaluated_shares
from ds_migrate.plain.ranks.data.epochs.sample_counts import count_own_samples
from ds_migrate.plain.ranks.data.other_sources import other_sources, undecided_training
from ds_migrate.plain.ranks.processes.unshared_generators import separate_environments
from ds_migrate.plain.recognition.batches.batch_sources import sources_of
from ds_migrate.plain.recognition.batches.drawn_batches import drawn_batches
from ds_migrate.plain.recognition.batches.loader_names import may_evaluate, names_of
from ds_migrate.plain.recognition.batches.loader_rounds import LoaderName
from ds_migrate.plain.recognition.batches.loader_uses import only_trains
from ds_migrate.plain.recognition.batches.loaders import are_mixed, loaders_of
from ds_migrate.plain.recognition.batches.own_shares import divides_itself, draws_itself, is_whole_stream, streams
from ds_migrate.plain.recognition.batches.phases import training_phase
from ds_migrate.plain.recognition.batches.shardable_loaders import items_ignore_index, loaders_to_share
from ds_migrate.plain.recognition.batches.single_draws import is_of_one_round
from ds_migrate.plain.recognition.batches.training_loaders import training_loaders  # fmt: skip
from ds_migrate.plain.recognition.facts import LoopFacts, Step
from ds_migrate.plain.recognition.lone_scripts import calls_that_start_ranks, may_run_alone, runs_alone
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name
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


def _is_fed_by_callers(step: Step, facts: LoopFacts) -> bool:
    """Return whether a loop around a step runs over a parameter of a function for which no call gives anything."""
    flow = facts.flow
    return any(
        isinstance(part, cst.Name)
        and flow.scopes(file).function_of_parameter(part) is not None
        and not flow.callers.given(part, file)
        for file, source in sources_of(step.file, step.node, facts, depth=3)
        for part in (source, *(_batches_of(source) if isinstance(source, cst.Call) else ()))
    )


def _batches_of(call: cst.Call) -> list[cst.BaseExpression]:
    """Return what a call passes on one after the other, as ``enumerate()`` does; a range counts."""
    return [arg.value for arg in call.args if called_name(call) not in ("range", "trange")]


def share_data(
    plan: ProgramPlan, files: list[SourceFile], runtime: RuntimeNames, converted: Converted, review: Review
) -> None:
    """Let each rank train on a share of the data; a program that starts ranks itself knows what they draw.

    Args:
        files: the program's, in which samples may be counted.
    """
    _Shares(plan, files, runtime, converted, review).write()


class _Shares:
    """The loaders of a program that each rank gets a share of.

    Attributes:
        divided: those that the program divides by the rank already.
        makers: those that are divided here: of scripts that run on one rank as they are.
    """

    def __init__(
        self, plan: ProgramPlan, files: list[SourceFile], runtime: RuntimeNames, converted: Converted, review: Review
    ) -> None:
        self._plan = plan
        self._facts = plan.facts
        self._flow = plan.facts.flow
        self._files = files
        self._runtime = runtime
        self._converted = converted
        self._review = review
        self._evaluating = set[int]()  # the functions, by identity, whose loaders are for review
        self._is_of_one_process = not is_called(INIT, self._flow)
        self._steps = [step for step, _ in plan.steps]
        makers = loaders_to_share(self._steps, self._facts)
        self.divided = [(f, m) for f, m in makers if divides_itself(m, f, self._flow)]
        self.makers = [m for m in makers if self._is_of_one_process or m not in self.divided]

    def write(self) -> None:
        """Divide the loaders, and review what that changes."""
        self._note_sources()
        self._note_samplers()
        if self.makers:
            self._count_samples()
        whole, written = set[int](), set[tuple[int, str]]()
        mixed = self._mixed()
        for file, maker in self.makers:
            if self._note_data(file, maker):
                continue
            is_shared = id(maker) in mixed or may_evaluate(maker, file, self._steps, self._facts)
            names = names_of(maker, self._steps, self._facts) if is_shared else []
            phase = training_phase(maker, file, self._steps) if is_shared and not names else None
            names += [phase] if phase is not None else []
            if names:
                self._divide_names(maker, file, names, written)
            elif not self._divide(maker, file, is_shared):
                whole.add(id(maker))
        if self._is_of_one_process:
            undecided = undecided_training({id(maker) for _, maker in self.makers}, self._facts)
            for note in (*undecided, *evaluated_shares(whole, written, self._files, self._plan)):
                self._review(note)

    def _note_sources(self) -> None:
        """Review the steps in loops that no loader feeds; without a loop, code that is not here has one."""
        callers = self._flow.callers
        unfed = [
            step for step in self._steps
            if callers.may_run_often(step.file, step.node)
            and not (starts_ranks(step, self._facts) or _is_fed(step, self._plan))
        ]  # fmt: skip
        advice = (
            "let each rank draw other samples, by a separate seed or a share of the data, and rank_0_decides() "
            "what these would end or skip"
        )
        drawing = [file for file in self._files if may_run_alone(file, self._facts)] if unfed else []
        is_acting = any(True for _ in separate_environments(drawing, self._flow))
        beside = ", but for what environments without a common seed give" if is_acting else ", with one seed"
        for step in {id(step.function or step.file): step for step in reversed(unfed)}.values():
            draws = drawn_batches(step.file, step.node, self._facts)
            is_of_round = any(is_of_one_round(draw, self._flow) for draw in draws)
            reason = (
                "each round makes this step's loaders for one batch" if is_of_round else "no DataLoader feeds this step"
            )
            message = f"{reason}: several ranks train on the same data{beside}"
            if _is_fed_by_callers(step, self._facts):
                message = "a caller that is not here gives this step its batches, which nothing divides among ranks"
            self._note(step.file, step.node, message, advice)
        for note in other_sources(self._steps, self._facts, advice) if self._is_of_one_process else ():
            self._review(note)

    def _note_samplers(self) -> None:
        """Review loaders that are divided twice."""
        for file, maker in self.divided if self._is_of_one_process else ():
            if not streams(maker, file, self._flow):
                message = "this data is selected by the rank, and shard() divides it once more"
                self._note(file, maker, message, "give the loader all data, or leave out shard()")

    def _count_samples(self) -> None:
        """Let counts and averages be those of a rank's share."""
        training = training_loaders(self._steps, self._facts)
        of_ranks = {id(m) for f, m in training if not runs_alone(f, self._flow)}
        counted = count_own_samples(self.makers, of_ranks, self._files, self._flow, self._runtime, self._converted)
        averages = EpochAverages(self.makers, of_ranks, counted, self._flow)
        notes = averages.divide_by_share(self._files, self._runtime, self._converted)
        draws = counted_draws(self.makers, self._flow)
        for note in (
            *notes,
            *averages.long_schedules(self._files),
            *draws,
            *counted_batches(self.makers, counted, self._flow),
        ):
            self._review(note)

    def _mixed(self) -> set[int]:
        """Return the calls whose loaders a step takes batches of beside other data, by identity."""
        return {
            value.key
            for step in self._steps
            for file, node in sources_of(step.file, step.node, self._facts, depth=3)
            if are_mixed(node, file, self._flow)
            for value in loaders_of(node, file, self._flow)
        }

    def _note_data(self, file: SourceFile, maker: cst.Call) -> bool:
        """Review data of which no sampler gives ranks other samples. Return whether the loader uses no sampler."""
        if draws_itself(maker, file, self._flow):
            message = "the class of this loader draws its batches itself: several ranks train on the same data"
            self._note(file, maker, message, "have it take what its batch_sampler gives, which shard() divides")
            return True
        if is_whole_stream(maker, file, self._flow) and (file, maker) not in self.divided:
            message = "only this IterableDataset can divide what it gives: several ranks train on the same samples"
            advice = "have it give each rank others, by torch.distributed.get_rank() and get_world_size()"
            self._note(file, maker, message, advice)
        if items_ignore_index(maker, file, self._flow):
            message = "items of this dataset do not depend on their index: ranks with one seed draw the same ones"
            self._note(file, maker, message, "draw them with a separate seed on each rank")
        return False

    def _divide_names(
        self, maker: cst.Call, file: SourceFile, names: list[LoaderName], written: set[tuple[int, str]]
    ) -> None:
        """Divide the loaders that train behind the lines that name them; several calls may make that of a name."""
        for one in names:
            if (id(one.statement), one.text) not in written:
                written.add((id(one.statement), one.text))
                line = f"{one.text} = {self._runtime.name(one.file, 'shard')}({one.text})"
                one.file.after(one.statement, f"if {one.condition}:\n    {line}" if one.condition else line)
            self._share(one.file, one.statement)
            for note in lengths_before_share(maker, file, one, self._facts) if self._is_of_one_process else ():
                self._review(note)

    def _divide(self, maker: cst.Call, file: SourceFile, is_shared: bool) -> bool:
        """Divide all that a call makes. Return whether these may be loaders for evaluation too."""
        wrap(file, maker, self._runtime.name(file, "shard"))
        may_evaluate = is_shared and not only_trains(maker, file, self._steps, self._facts)
        function = id(file.function(maker) or maker)
        if may_evaluate and function not in self._evaluating:
            self._evaluating.add(function)
            message = "this call may make loaders for evaluation too, which then give each rank a share"
            advice = "make the loader that trains by a separate call, or reduce the metrics over ranks"
            self._note(file, maker, message, advice)
        self._share(file, maker)
        return may_evaluate

    def _share(self, file: SourceFile, node: cst.CSTNode) -> None:
        self._converted(Code.PLAIN_SAMPLER, file, node, "each rank trains on a share of the loader's data")

    def _note(self, file: SourceFile, node: cst.CSTNode, message: str, advice: str) -> None:
        self._review(Note(Code.PLAIN_SAMPLER, file, node, message, advice))
