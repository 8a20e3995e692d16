"""Decisions that all ranks must take alike, where each one sees its share of the data.

Written for one process, ``if stopper.stop: break`` and ``schedule.step(loss)`` would leave ranks with other numbers of
steps, which wait for each other forever, and with other learning rates. A condition becomes rank 0's, a number the
mean over ranks. With one rank nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import libcst as cst

from ds_migrate.plain.dataflow.branches.jumps import JUMPS
from ds_migrate.plain.dataflow.by_rank.none_tests import is_none_test
from ds_migrate.plain.dataflow.by_rank.rank_expressions import are_timed
from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.calls.compiled_functions import is_compiled
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.passes.distributed import broadcasts_buffers
from ds_migrate.plain.decisions.plan import Note, ProgramPlan, Review
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.agreed_conditions import agree_on_condition, let_rank_0_decide
from ds_migrate.plain.ranks.agreement.agreed_numbers import AgreedNumbers
from ds_migrate.plain.ranks.agreement.batch_sizes import BatchSizes
from ds_migrate.plain.ranks.agreement.buffer_writes import buffer_notes
from ds_migrate.plain.ranks.agreement.common_operations import CONDITIONS, CommonOperations, setting_of, test_of
from ds_migrate.plain.ranks.agreement.empty_batches import EmptyBatches
from ds_migrate.plain.ranks.agreement.metric_syncs import leave_metrics_to_ranks
from ds_migrate.plain.ranks.agreement.share_means import ShareMeans
from ds_migrate.plain.ranks.agreement.share_sizes import sizes_differ
from ds_migrate.plain.ranks.agreement.unagreed_branches import takes_some, unagreed_branches
from ds_migrate.plain.ranks.agreement.unshared_places import UnsharedPlaces, parting_note
from ds_migrate.plain.ranks.data.chosen_data import chosen_data, data_settings, settings_by_rank
from ds_migrate.plain.ranks.data.epochs.collected_samples import collected_samples
from ds_migrate.plain.ranks.data.epochs.collections import Collections
from ds_migrate.plain.ranks.data.epochs.counted_ends import counted_ends
from ds_migrate.plain.ranks.data.epochs.replayed_samples import replayed_samples
from ds_migrate.plain.ranks.data.epochs.sample_positions import sample_positions
from ds_migrate.plain.ranks.data.epochs.share_statistics import share_statistics
from ds_migrate.plain.ranks.data.epochs.shown_sums import shown_sums
from ds_migrate.plain.ranks.data.losses.batch_statistics import batch_statistics
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.carried_numbers import carried_numbers
from ds_migrate.plain.ranks.data.losses.compared_samples import compared_samples
from ds_migrate.plain.ranks.data.losses.loss_parts import loss_parts
from ds_migrate.plain.ranks.data.losses.ordered_samples import ordered_samples
from ds_migrate.plain.ranks.data.losses.summed_losses import summed_losses
from ds_migrate.plain.ranks.data.losses.unfollowed_losses import unfollowed_losses
from ds_migrate.plain.ranks.data.shared_noise import shared_noise
from ds_migrate.plain.ranks.files.sample_files import sample_files
from ds_migrate.plain.ranks.lone_ranks import LoneRanks, parts_rank_0
from ds_migrate.plain.ranks.lone_scripts import may_run_alone
from ds_migrate.plain.recognition.batches.shardable_loaders import can_be_sharded
from ds_migrate.plain.recognition.batches.training_loaders import training_loaders
from ds_migrate.plain.recognition.steps.weight_writes import WeightWrites, Write
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, targets, walk
from ds_migrate.syntax.source import SourceFile

_MEAN = "mean_over_ranks"


def agree(
    plan: ProgramPlan,
    files: list[SourceFile],
    staying: Collection[SourceFile],
    runtime: RuntimeNames,
    converted: Converted,
    review: Review,
) -> set[int]:
    """Have all ranks of a program take the same decisions; return the statements of these, by identity.

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
    makers = training_loaders([step for step, _ in plan.steps], plan.facts)
    shares = [(file, maker) for file, maker in makers if can_be_sharded(maker, file, flow)]
    if not shares and not are_timed(files, flow):
        return decided
    loaders = frozenset(v for file, maker in shares for v in of_kind(flow.values(maker, file), Kind.LOADER))
    modules = frozenset(v for site in plan.facts.sites for v in site.of if shares)
    values = RankValues(flow, loaders, modules)
    writes = WeightWrites(flow)
    means = ShareMeans(flow, values)
    changes = data_settings(shares, flow)
    common = CommonOperations(plan, values, writes, [(file, line) for file, line, _ in changes])
    lone = LoneRanks(flow)
    numbers = AgreedNumbers(plan, values, runtime, converted, review)
    numbers.agree_on_rounds(files, common)
    for site in plan.facts.sites:
        numbers.agree_on_settings(site, files)
    leading = {
        key for site in plan.facts.all_sites for key in plan.facts.flow.callers.leading(site.file, site.function)
    }
    for step in plan.facts.operations.steps:
        leading |= plan.facts.flow.callers.leading(step.file, step.function)

    def counts(node: cst.CSTNode, file: SourceFile) -> bool:
        function = file.function(node)
        return file not in staying or _concerns(function or file.module, function, leading, plan)

    def is_timed(node: cst.CSTNode, file: SourceFile) -> bool:
        return values.differs(node, file) and not values.of_samples.differs(node, file)

    def cause_at(node: cst.CSTNode, file: SourceFile) -> str:
        return "the time that each reads" if is_timed(node, file) else "their shares of the data"

    def can_agree(node: cst.CSTNode, file: SourceFile) -> bool:
        if lone.are_never_at(node, file):
            return True
        note = lone.note(node, file, cause_at(node, file))
        if note is not None:
            review(note)
        return False

    totals = BatchTotals(flow, values)
    sizes = BatchSizes(values, [maker for _, maker in shares])

    def differs(test: cst.BaseExpression, file: SourceFile) -> bool:
        return values.differs(test, file) or sizes_differ(test, file, values, totals) or sizes.differ(test, file)

    led = [
        (file, node)
        for file in files for node in file.nodes(*CONDITIONS)
        if id(node) not in decided and counts(node, file)
        if common.is_led_by(node, file) and not parts_rank_0(test_of(node)) and differs(test_of(node), file)
    ]  # fmt: skip
    for file, node in [one for one in led if is_compiled(one[1], one[0], flow)]:
        led.remove((file, node))
        message = "ranks may part here, and cannot agree: TorchScript compiles this function"
        review(Note(Code.PLAIN_AGREEMENT, file, node, message, "decide before the call: rank_0_decides(condition)"))
    agreed = decided | {id(node) for file, node in led if lone.are_never_at(test_of(node), file)}
    settings = [(f, node) for f in files for node in f.nodes(cst.Assign, cst.AugAssign) if _is_setting(node)]
    settings += [(file, line) for file, line, _ in changes]
    jumping = (node for file, node in led if id(node) in agreed and file.nodes(*JUMPS, below=node))
    is_in_agreed = any(id(outer) in agreed for file, node in (*led, *settings) for outer in file.ancestors(node))
    if is_in_agreed or any(jumping) or any(is_none_test(part) for _, node in led for part in walk(test_of(node))):
        values = RankValues(flow, loaders, modules, agreed)
    places = UnsharedPlaces(values, differs, lambda node, file: takes_some(node, file, values, sizes, totals), common)
    is_settled = False
    while not is_settled:  # what is in a branch that ranks do not agree on, they do not either
        is_settled = True
        for file, node in [one for one in led if id(one[1]) in agreed and differs(test_of(one[1]), one[0])]:
            place = places.above(node, file, agreed)
            if place is not None:
                led.remove((file, node))
                agreed.discard(id(node))
                is_settled = False
                review(parting_note(test_of(node), file, place, cause_at(test_of(node), file)))
    empty = EmptyBatches(values, differs, sizes, common)
    for file in files:
        for node in [node for home, node in led if home is file]:
            if differs(test_of(node), file) and can_agree(test_of(node), file):
                decided.add(id(node))
                if (note := empty.agree(node, file, runtime)) is not None:
                    review(note)
                    continue
                reason = (
                    "each reads the time at another moment"
                    if is_timed(test_of(node), file)
                    else "their shares of the data differ"
                )
                is_left_out = not is_timed(test_of(node), file) and empty.leaves_out(node, file)
                agree_on_condition(node, file, values, flow, runtime, converted, review, reason, is_left_out)
        for call in file.nodes(cst.Call):
            metric = _schedule_metric(call, file, plan) if counts(call, file) else None
            if metric is not None and values.differs(metric, file) and can_agree(call, file):
                wrap(file, metric, runtime.name(file, _MEAN))
                converted(Code.PLAIN_AGREEMENT, file, call, "the schedule steps by the mean over ranks")
        for node in file.nodes(cst.Assign, cst.AugAssign):
            setting = next(filter(None, map(setting_of, targets(node))), None)
            is_set = setting is not None and counts(node, file) and values.differs(node.value, file)
            if is_set and can_agree(node.value, file):
                wrap(file, node.value, runtime.name(file, _MEAN))
                converted(Code.PLAIN_AGREEMENT, file, node, f"the {setting} is the mean over ranks")
        for write in writes.of(file):
            parted = [value for value in (*write.indices, *write.values) if values.differs(value, file)]
            if parted and counts(write.node, file) and can_agree(write.node, file):
                _agree_on_write(write, file, values, means, runtime, converted, review)
    if not shares:
        return decided
    leave_metrics_to_ranks(files, values, converted, review)
    totals = BatchTotals(flow, values)
    parts = loss_parts(plan, totals)
    for note in unagreed_branches(files, values, sizes, common, flow):
        if counts(note.node, note.file) and lone.are_never_at(note.node, note.file):
            review(note)
    for note in share_statistics(plan, files, values, common):
        review(note)
    of_losses = [*compared_samples(parts, flow, values), *batch_statistics(parts, totals)]
    of_losses += [*ordered_samples(parts, totals), *carried_numbers(plan, parts, totals, values)]
    of_losses += [note for note in summed_losses(plan, values) if may_run_alone(note.file, plan.facts)]
    noted = _places(of_losses)
    for note in (*of_losses, *unfollowed_losses(plan, totals, noted)):
        review(note)
    for note in (*chosen_data(shares, flow, values), *settings_by_rank(changes, values)):
        review(note)
    of_shares = (*shown_sums(shares, files, values, flow), *counted_ends(files, values, flow))
    collections = Collections(plan, files, totals, values)
    of_shares += (*sample_positions(files, values, collections.samples, flow),)
    of_shares += (*sample_files(plan, files, values), *collected_samples(plan, files, collections, values))
    are_broadcast = any(broadcasts_buffers(site, plan.facts) for site in plan.facts.sites)
    of_buffers = [] if are_broadcast else list(buffer_notes(files, flow, values))
    noted |= _places(of_buffers)
    of_shares += (*replayed_samples(plan, parts, collections, noted), *shared_noise(files, plan.facts, values))
    for note in of_shares:
        if may_run_alone(note.file, plan.facts):
            review(note)
    for note in of_buffers:
        review(note)
    return decided


def _places(notes: Iterable[Note]) -> set[int]:
    """Return the functions that have these notes, or the modules of those outside of functions, by identity."""
    return {id(note.file.function(note.node) or note.file.module) for note in notes}


def _is_setting(node: cst.Assign | cst.AugAssign) -> bool:
    return any(map(setting_of, targets(node)))


def _concerns(
    place: cst.CSTNode, function: cst.FunctionDef | None, leading: Collection[int], plan: ProgramPlan
) -> bool:
    """Return whether a function, or a module, of another loop's file leads to this loop, or is called from there."""
    own = {id(place.file) for place in plan.facts.operations.steps}
    return id(place) in leading or bool(own & plan.facts.flow.callers.files_of(function))


def _agree_on_write(
    write: Write,
    file: SourceFile,
    values: RankValues,
    means: ShareMeans,
    runtime: RuntimeNames,
    converted: Converted,
    review: Review,
) -> None:
    if any(values.differs(index, file) for index in write.indices):
        message = "each rank may set other weights here, by its share of the data"
        advice = "choose them by what is the same on all ranks, as rank_0_decides() and mean_over_ranks() return it"
        review(Note(Code.PLAIN_AGREEMENT, file, write.node, message, advice))
        return
    found = [value for value in write.values if values.differs(value, file)]
    for value in found:
        wrap(file, value, runtime.name(file, _MEAN))
    if not all(means.is_mean(value, file) for value in found):
        message = "weights are set by the mean of what each share gives: of the whole batch it may be another number"
        advice = "make it of means over ranks: a standard deviation of those of x and of x ** 2"
        review(Note(Code.PLAIN_AGREEMENT, file, write.node, message, advice))
    elif found:
        message = "weights are set by the mean over ranks: their shares of the data differ"
        converted(Code.PLAIN_AGREEMENT, file, write.node, message)


def _schedule_metric(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> cst.BaseExpression | None:
    """Return what a schedule is stepped by."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step" or not call.args:
        return None
    if not of_kind(plan.facts.flow.values(call.func.value, file), Kind.SCHEDULE):
        return None
    given = argument(call, 0, "metrics")
    return given.value if given is not None else None
