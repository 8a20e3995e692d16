"""Metrics that add up over ranks what each rank has computed of all data: torchmetrics does so in ``compute()``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name
from ds_migrate.syntax.source import SourceFile

_LIBRARY = "torchmetrics."
_OPTION = "sync_on_compute"
_FEEDS = frozenset({"update", "forward"})
# Parts of the names of metrics that are means, or extremes: of the same data n times, they are the same.
_MEANS = (
    "Accuracy", "Precision", "Recall", "F1", "FBeta", "Specificity", "Jaccard", "Dice", "AUROC", "ROC", "Hamming",
    "Mean", "Max", "Min", "Error", "Perplexity", "PeakSignal", "StructuralSimilarity", "CohenKappa", "Matthews",
    "ExplainedVariance", "R2Score", "CosineSimilarity", "KLDivergence", "ErrorRate", "BLEUScore", "Calibration",
)  # fmt: skip


def metrics_of_all_data(files: Iterable[SourceFile], values: RankValues) -> Iterator[Note]:
    """Yield a note for each metric of data that each rank has whole: counts over ranks are n times too large."""
    fed = dict[int, set[bool]]()
    for file in files:
        for call in file.nodes(cst.Call):
            is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _FEEDS
            metric = call.func.value if is_method and isinstance(call.func, cst.Attribute) else call.func
            for value in of_kind(values.flow.values(metric, file), Kind.OBJECT):
                if value.name.startswith(_LIBRARY) and call.args:
                    fed.setdefault(value.key, set()).update(_are_shares(call, file, values, set()))
    for file in files:
        for maker in file.nodes(cst.Call):
            for metric in _counts(maker, file, values) if False in fed.get(id(maker), ()) else ():
                message = "this metric adds up over ranks what each computes of all data: counts are too large"
                advice = f"make one for such data alone, with {_OPTION}=False"
                yield Note(Code.PLAIN_SAMPLER, file, metric, message, advice)


def _counts(maker: cst.Call, file: SourceFile, values: RankValues) -> Iterator[cst.Call]:
    """Yield the calls that make the metrics which are no means: of a collection or wrapper, those inside."""
    calls = [call for arg in maker.args for call in file.nodes(cst.Call, below=arg)]
    inner = [c for c in calls for v in of_kind(values.flow.values(c, file), Kind.OBJECT) if v.name.startswith(_LIBRARY)]
    if argument(maker, None, _OPTION) is None and not any(name in called_name(maker) for name in _MEANS):
        yield from (part for call in inner for part in _counts(call, file, values)) if inner else (maker,)


def _are_shares(node: cst.CSTNode, file: SourceFile, values: RankValues, seen: set[int]) -> Iterator[bool]:
    """Yield for each loop over a loader around a node, or its function's calls, whether each rank has a share of it."""
    for outer in file.ancestors(node):
        loaders = loaders_of(outer.iter, file, values.flow) if isinstance(outer, cst.For) else ()
        if loaders:
            yield values.are_shares(frozenset(loaders))
            return
    function = file.function(node)
    if function is not None and id(function) not in seen:
        seen.add(id(function))
        for home, call in values.flow.callers.of(function):
            yield from _are_shares(call, home, values, seen)
