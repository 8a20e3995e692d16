"""Notes for review where each rank trains on a share of the data: numbers of a share that were those of all data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.decisions.passes.distributed import broadcasts_buffers
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.agreement.buffer_writes import buffer_notes
from ds_migrate.plain.ranks.agreement.common_operations import CommonOperations
from ds_migrate.plain.ranks.data.chosen_data import Setting, chosen_data, settings_by_rank
from ds_migrate.plain.ranks.data.epochs.collected_samples import collected_samples
from ds_migrate.plain.ranks.data.epochs.collections import Collections
from ds_migrate.plain.ranks.data.epochs.counted_ends import counted_ends
from ds_migrate.plain.ranks.data.epochs.replayed_samples import replayed_samples
from ds_migrate.plain.ranks.data.epochs.share_statistics import share_statistics
from ds_migrate.plain.ranks.data.epochs.shown_sums import shown_sums
from ds_migrate.plain.ranks.data.losses.batch_statistics import batch_statistics
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.carried_numbers import carried_numbers
from ds_migrate.plain.ranks.data.losses.compared_samples import compared_samples
from ds_migrate.plain.ranks.data.losses.library_terms import library_terms
from ds_migrate.plain.ranks.data.losses.loss_parts import loss_parts
from ds_migrate.plain.ranks.data.losses.ordered_samples import ordered_samples
from ds_migrate.plain.ranks.data.losses.summed_losses import summed_losses
from ds_migrate.plain.ranks.data.shared_noise import shared_noise
from ds_migrate.plain.ranks.files.sample_files import sample_files
from ds_migrate.plain.recognition.lone_scripts import may_run_alone
from ds_migrate.syntax.source import SourceFile


def share_notes(
    plan: ProgramPlan,
    files: list[SourceFile],
    shares: Sequence[tuple[SourceFile, cst.Call]],
    settings: Sequence[Setting],
    values: RankValues,
    common: CommonOperations,
) -> Iterator[Note]:
    """Yield what is for review where each rank trains on a share of the data.

    Args:
        files: those that may run with the loop.
        shares: the calls that make the loaders of which each rank gets a share.
        settings: the lines that set attributes of what these draw from.
        values: what differs by rank.
        common: the operations that all ranks do together.
    """
    flow, totals = plan.facts.flow, BatchTotals(plan.facts.flow, values)
    parts = loss_parts(plan, totals)
    yield from share_statistics(plan, files, values, common)
    of_losses = [*compared_samples(parts, flow, values), *batch_statistics(parts, totals)]
    of_losses += [*ordered_samples(parts, totals), *carried_numbers(plan, parts, totals, values)]
    of_losses += [note for note in summed_losses(plan, values) if may_run_alone(note.file, plan.facts)]
    yield from of_losses
    noted = _places(of_losses)
    yield from library_terms(plan, noted)
    yield from settings_by_rank(settings, values)
    are_broadcast = any(broadcasts_buffers(site, plan.facts) for site in plan.facts.sites)
    collections = Collections(plan, files, totals, values)
    modules = frozenset(value for site in plan.facts.sites for value in site.of)
    yield from chosen_data(shares, collections, modules, flow)
    of_buffers = [] if are_broadcast else list(buffer_notes(files, flow, values, collections.samples))
    of_samples = [
        *shown_sums(shares, files, values, flow),
        *counted_ends(files, values, flow),
        *sample_files(plan, files, values),
        *collected_samples(plan, files, collections, values),
        *replayed_samples(plan, parts, collections, noted | _places(of_buffers)),
        *shared_noise(files, plan.facts, values),
    ]
    yield from (note for note in of_samples if may_run_alone(note.file, plan.facts))
    yield from of_buffers


def _places(notes: Iterable[Note]) -> set[int]:
    """Return the functions that have these notes, or the modules of those outside of functions, by identity."""
    return {id(note.file.function(note.node) or note.file.module) for note in notes}
