"""Decisions that all ranks must take alike, where each one sees its share of the data.

Written for one process, ``if stopper.stop: break`` and ``schedule.step(loss)`` would leave ranks with other numbers of
steps, which wait for each other forever, and with other learning rates. A condition becomes rank 0's, a number the
mean over ranks. With one rank nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import JUMPS
from ds_migrate.plain.dataflow.by_rank.none_tests import is_none_test
from ds_migrate.plain.dataflow.by_rank.rank_expressions import are_timed
from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.calls.compiled_functions import is_compiled
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan, Review
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.agreed_conditions import agree_on_condition, let_rank_0_decide
from ds_migrate.plain.ranks.agreement.agreed_numbers import AgreedNumbers
from ds_migrate.plain.ranks.agreement.batch_sizes import BatchSizes
from ds_migrate.plain.ranks.agreement.common_operations import (
    CONDITIONS,
    CommonOperations,
    Condition,
    setting_of,
    test_of,
)
from ds_migrate.plain.ranks.agreement.empty_batches import EmptyBatches
from ds_migrate.plain.ranks.agreement.share_notes import share_notes
from ds_migrate.plain.ranks.agreement.share_sizes import sizes_differ
from ds_migrate.plain.ranks.agreement.unagreed_branches import takes_some, unagreed_branches
from ds_migrate.plain.ranks.agreement.unshared_places import UnsharedPlaces, parting_note
from ds_migrate.plain.ranks.data.chosen_data import data_settings
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.lone_ranks import LoneRanks, parts_rank_0
from ds_migrate.plain.recognition.batches.shardable_loaders import loaders_to_share
from ds_migrate.plain.recognition.lone_scripts import runs_alone
from ds_migrate.plain.recognition.steps.weight_writes import WeightWrites, Write
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, targets, walk
from ds_migrate.syntax.source import SourceFile

_MEAN = "mean_over_ranks"
_Led = list[tuple[SourceFile, Condition]]


def agree(
    plan: ProgramPlan,
    files: list[SourceFile],
    staying: Collection[SourceFile],
    runtime: RuntimeNames,
    converted: Converted,
    review: Review,
) -> tuple[set[int], RankValues | None]:
    """Have all ranks of a program take the same decisions.

    Return the statements of these, by identity, and the values that differ by rank; None where none do.

    Args:
        files: those that may run with the loop.
        staying: those of them with a loop that stays: there, only decisions count that this loop comes by.
    """
    flow = plan.facts.flow
    for file, branch in plan.undecided:
        let_rank_0_decide(branch.test, file, runtime)
        converted(
            Code.PLAIN_AGREEMENT, file, branch.test, "rank 0 decides for all ranks: each saves its share under this"
        )
    decided = {id(branch) for _, branch in plan.undecided}
    shares = loaders_to_share([step for step, _ in plan.steps], plan.facts)
    if not shares and not are_timed([file for file in files if runs_alone(file, flow)], flow):
        return decided, None
    decisions = _Decisions(plan, files, staying, shares, decided, runtime, converted, review)
    decisions.agree()
    if shares:
        for note in decisions.notes():
            review(note)
    return decided, decisions.values


class _Decisions:
    """The decisions of a program that ranks would take by what each sees.

    Args:
        shares: the calls that make the loaders of which each rank gets a share.
        decided: the conditions that ranks agree on, by identity; those found are added.

    Attributes:
        values: what differs by rank.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        files: list[SourceFile],
        staying: Collection[SourceFile],
        shares: Sequence[tuple[SourceFile, cst.Call]],
        decided: set[int],
        runtime: RuntimeNames,
        converted: Converted,
        review: Review,
    ) -> None:
        flow = self._flow = plan.facts.flow
        self._plan, self._files, self._staying, self._shares = plan, files, staying, shares
        self._decided, self._runtime, self._converted, self._review = decided, runtime, converted, review
        self._leading = _leading(plan)
        self._loaders = frozenset(v for file, maker in shares for v in of_kind(flow.values(maker, file), Kind.LOADER))
        self._modules = frozenset(v for site in plan.facts.sites for v in site.of if shares)
        self.values = RankValues(flow, self._loaders, self._modules)
        self._writes = WeightWrites(flow)
        self._changes = data_settings(shares, flow)
        changes = [(file, line) for file, line, _ in self._changes]
        self._common = CommonOperations(plan, self.values, self._writes, changes)
        self._lone = LoneRanks(flow)
        self._totals = BatchTotals(flow, self.values)
        self._sizes = BatchSizes(self.values, [maker for _, maker in shares])

    def agree(self) -> None:
        """Have ranks agree on numbers of rounds, settings, conditions, and weights that lines set."""
        numbers = AgreedNumbers(self._plan, self.values, self._runtime, self._converted, self._review)
        numbers.agree_on_rounds(self._files, self._common)
        for site in self._plan.facts.sites:
            numbers.agree_on_settings(site, self._files)
        led = self._without_compiled(self._find_led())
        agreed = self._decided | {id(node) for file, node in led if self._lone.are_never_at(test_of(node), file)}
        if self._changes_values(led, agreed):
            self.values = RankValues(self._flow, self._loaders, self._modules, agreed)
        self._leave_unshared(led, agreed)
        empty = EmptyBatches(self.values, self._differs, self._sizes, self._common)
        for file in self._files:
            for node in [node for home, node in led if home is file]:
                self._agree_on_condition(node, file, empty)
            self._agree_on_schedules(file)
            self._agree_on_settings(file)
            self._agree_on_writes(file)

    def notes(self) -> Iterator[Note]:
        """Yield what is for review: branches that ranks take alone, and numbers that are those of a share."""
        for note in unagreed_branches(self._files, self.values, self._sizes, self._common, self._flow):
            if self._counts(note.node, note.file) and self._lone.are_never_at(note.node, note.file):
                yield note
        yield from share_notes(self._plan, self._files, self._shares, self._changes, self.values, self._common)

    def _find_led(self) -> _Led:
        """Return the conditions that differ by rank and decide about operations that all ranks do together."""
        return [
            (file, node)
            for file in self._files for node in file.nodes(*CONDITIONS)
            if id(node) not in self._decided and self._counts(node, file)
            if self._common.is_led_by(node, file) and not parts_rank_0(test_of(node))
            if self._differs(test_of(node), file)
        ]  # fmt: skip

    def _without_compiled(self, led: _Led) -> _Led:
        """Return the conditions that TorchScript does not compile; the others are for review."""
        compiled = [(file, node) for file, node in led if is_compiled(node, file, self._flow)]
        for file, node in compiled:
            message = "ranks may part here, and cannot agree: TorchScript compiles this function"
            advice = "decide before the call: rank_0_decides(condition)"
            self._review(Note(Code.PLAIN_AGREEMENT, file, node, message, advice))
        return [one for one in led if one not in compiled]

    def _changes_values(self, led: _Led, agreed: Collection[int]) -> bool:
        """Return whether fewer values differ once ranks agree on these conditions."""
        settings = [(f, line) for f in self._files for line in f.nodes(cst.Assign, cst.AugAssign) if _is_setting(line)]
        settings += [(file, line) for file, line, _ in self._changes]
        is_in_agreed = any(id(outer) in agreed for file, node in (*led, *settings) for outer in file.ancestors(node))
        jumping = (node for file, node in led if id(node) in agreed and file.nodes(*JUMPS, below=node))
        return (
            is_in_agreed
            or any(jumping)
            or any(is_none_test(part) for _, node in led for part in walk(test_of(node)))
        )  # fmt: skip

    def _leave_unshared(self, led: _Led, agreed: set[int]) -> None:
        """Take out conditions that not all ranks come by, such as those in a branch that they do not agree on."""
        common, sizes, totals = self._common, self._sizes, self._totals
        places = UnsharedPlaces(
            self.values, self._differs, lambda node, file: takes_some(node, file, self.values, sizes, totals), common
        )
        is_settled = False
        while not is_settled:
            is_settled = True
            for file, node in [one for one in led if id(one[1]) in agreed and self._differs(test_of(one[1]), one[0])]:
                place = places.above(node, file, agreed)
                if place is not None:
                    led.remove((file, node))
                    agreed.discard(id(node))
                    is_settled = False
                    self._review(parting_note(test_of(node), file, place, self._cause_at(test_of(node), file)))

    def _agree_on_condition(self, node: Condition, file: SourceFile, empty: EmptyBatches) -> None:
        test = test_of(node)
        if not self._differs(test, file) or not self._can_agree(test, file):
            return
        self._decided.add(id(node))
        note = empty.agree(node, file, self._runtime)
        if note is not None:
            self._review(note)
            return
        is_timed = self._is_timed(test, file)
        reason = "each reads the time at another moment" if is_timed else "their shares of the data differ"
        is_left_out = not is_timed and empty.leaves_out(node, file)
        agree_on_condition(
            node, file, self.values, self._flow, self._runtime, self._converted, self._review, reason, is_left_out
        )

    def _agree_on_schedules(self, file: SourceFile) -> None:
        for call in file.nodes(cst.Call):
            metric = _schedule_metric(call, file, self._plan) if self._counts(call, file) else None
            if metric is not None and self.values.differs(metric, file) and self._can_agree(call, file):
                self._take_mean(metric, file)
                self._converted(Code.PLAIN_AGREEMENT, file, call, "the schedule steps by the mean over ranks")

    def _agree_on_settings(self, file: SourceFile) -> None:
        for node in file.nodes(cst.Assign, cst.AugAssign):
            setting = next(filter(None, map(setting_of, targets(node))), None)
            is_set = setting is not None and self._counts(node, file) and self.values.differs(node.value, file)
            if is_set and self._can_agree(node.value, file):
                self._take_mean(node.value, file)
                self._converted(Code.PLAIN_AGREEMENT, file, node, f"the {setting} is the mean over ranks")

    def _agree_on_writes(self, file: SourceFile) -> None:
        for write in self._writes.of(file):
            parted = [value for value in (*write.indices, *write.values) if self.values.differs(value, file)]
            if parted and self._counts(write.node, file) and self._can_agree(write.node, file):
                self._agree_on_write(write, file)

    def _agree_on_write(self, write: Write, file: SourceFile) -> None:
        if any(self.values.differs(index, file) for index in write.indices):
            message = "each rank may set other weights here, by its share of the data"
            advice = "choose them by what is the same on all ranks, as rank_0_decides() and mean_over_ranks() return it"
            self._review(Note(Code.PLAIN_AGREEMENT, file, write.node, message, advice))
            return
        found = [value for value in write.values if self.values.differs(value, file)]
        for value in found:
            self._take_mean(value, file)
        if found:
            message = (
                "weights are set by the mean of what each share gives: of the whole batch it may be another number"
            )
            advice = "make it of means over ranks: a standard deviation of those of x and of x ** 2"
            self._review(Note(Code.PLAIN_AGREEMENT, file, write.node, message, advice))

    def _take_mean(self, value: cst.BaseExpression, file: SourceFile) -> None:
        wrap(file, value, self._runtime.name(file, _MEAN))

    def _differs(self, test: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a condition differs by rank: by values, or by how many of them there are."""
        return (
            self.values.differs(test, file)
            or sizes_differ(test, file, self.values, self._totals)
            or self._sizes.differ(test, file)
        )

    def _counts(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node may run with this loop, and not just with one that stays."""
        if file not in self._staying:
            return True
        function = file.function(node)
        own = {id(step.file) for step in self._plan.facts.operations.steps}
        is_leading = id(function or file.module) in self._leading
        return is_leading or bool(own & self._flow.callers.files_of(function))

    def _can_agree(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether all ranks come by a place; where rank 0 alone may, that is for review."""
        if self._lone.are_never_at(node, file):
            return True
        note = self._lone.note(node, file, self._cause_at(node, file))
        if note is not None:
            self._review(note)
        return False

    def _is_timed(self, node: cst.CSTNode, file: SourceFile) -> bool:
        return self.values.differs(node, file) and not self.values.of_samples.differs(node, file)

    def _cause_at(self, node: cst.CSTNode, file: SourceFile) -> str:
        return "the time that each reads" if self._is_timed(node, file) else "their shares of the data"


def _leading(plan: ProgramPlan) -> set[int]:
    """Return the functions, and modules, that lead to a step or an engine, by identity."""
    facts = plan.facts
    places = [(site.file, site.function) for site in facts.all_sites]
    places += [(step.file, step.function) for step in facts.operations.steps]
    return {key for place in places for key in facts.flow.callers.leading(*place)}


def _is_setting(node: cst.Assign | cst.AugAssign) -> bool:
    return any(map(setting_of, targets(node)))


def _schedule_metric(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> cst.BaseExpression | None:
    """Return what a schedule is stepped by."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step" or not call.args:
        return None
    if not of_kind(plan.facts.flow.values(call.func.value, file), Kind.SCHEDULE):
        return None
    given = argument(call, 0, "metrics")
    return given.value if given is not None else None
