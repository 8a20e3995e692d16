"""Samples, outputs and rows that a training loop collects of a rank's share, and that are saved or scored behind it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.epochs.collections import Collections, Place
from ds_migrate.plain.ranks.data.losses.returned_values import index_in, item_of, returned_values
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, children, code, dotted, operands, set_values, walk
from ds_migrate.syntax.source import SourceFile

_SCORES = ("sklearn.metrics.", "seqeval.metrics.", "scipy.stats.")
# Those that are means over samples, of which a rank's share gives an estimate as the average of a loss is.
_MEANS = frozenset(
    {"accuracy_score", "zero_one_loss", "hamming_loss", "log_loss", "brier_score_loss", "mean_squared_error",
     "mean_absolute_error", "root_mean_squared_error", "mean_absolute_percentage_error", "mean_squared_log_error"}
)  # fmt: skip
_ESTIMATORS = ("sklearn.", "umap.", "hdbscan.")
_SHAPES = frozenset({"view", "reshape"})
_FITS = frozenset({"fit_transform", "fit_predict"})
_PLOTS = frozenset(
    {"scatter", "hist", "hist2d", "kdeplot", "histplot", "boxplot", "violinplot", "add_embedding", "add_histogram",
     "add_pr_curve"}
)  # fmt: skip
# Calls whose result has the samples that they are given.
_KEEPS = frozenset(
    {"cat", "concat", "concatenate", "stack", "vstack", "hstack", "array", "asarray", "tensor", "as_tensor",
     "from_numpy", "Tensor", "FloatTensor", "LongTensor", "DataFrame", "Series", "from_dict", "dict", "list", "tuple",
     "zip", "sorted", "enumerate", "items", "values", "numpy", "cpu", "detach", "clone", "tolist", "astype", "float",
     "long", "int", "double", "str", "join", "dumps", "argmax", "round", "squeeze", "reshape", "view", "flatten",
     "ravel", "transpose", "sigmoid", "softmax", "chain", "from_iterable", "copy", "deepcopy", "set_index"}
)  # fmt: skip


def collected_samples(
    plan: ProgramPlan, files: list[SourceFile], collections: Collections, values: RankValues
) -> Iterator[Note]:
    """Yield a note for each call that saves what a training loop collects of a share, or that scores it as a whole."""
    if not collections.places:
        return
    finder = _Finder(plan, collections, values)
    calls = OutputCalls(plan)
    for file in files:
        datasets = _datasets(file, plan)
        for call in file.nodes(cst.Call):
            use = _use(call, file, plan, calls) or _use_beside_all(call, file, values, datasets)
            if use is None:
                continue
            around = {id(outer) for outer in file.ancestors(call)}
            places = (place for part in operands(call) for place in finder.collected_in(part, file, set()))
            if any(id(place) not in around for place in places):
                yield Note(
                    Code.PLAIN_RANK_ZERO, file, call,
                    f"this {use} what a loop collects of a rank's share of the data: rank 0 has 1/n of it on n ranks",
                    "gather it before, by torch.distributed.all_gather_object() on all ranks, or collect it in a loop "
                    "over a separate loader of all data",
                )  # fmt: skip


def _use(call: cst.Call, file: SourceFile, plan: ProgramPlan, calls: OutputCalls) -> str | None:
    """Return what a call does with all samples that it is given; None where it may make any use of them."""
    name = called_name(call)
    if _is_score(call, file, plan):
        return "scores"
    if calls.writes(call, file):
        return "saves"
    if name in _PLOTS and (isinstance(call.func, cst.Attribute) or calls.is_plot(call, file)):
        return "plots"
    is_fit = name in _FITS or (name == "fit" and _is_estimator(call, file, plan))
    return "fits" if is_fit else None


def _datasets(file: SourceFile, plan: ProgramPlan) -> set[str]:
    """Return the names by which loaders of a file are given their data."""
    flow = plan.facts.flow
    makers = [call for call in file.nodes(cst.Call) if call.args and of_kind(flow.values(call, file), Kind.LOADER)]
    return {part.value for call in makers for part in walk(call.args[0].value) if isinstance(part, cst.Name)}


def _use_beside_all(call: cst.Call, file: SourceFile, values: RankValues, datasets: set[str]) -> str | None:
    """Return what a call does with samples by what there is of all: ``outputs.view(data.shape[0], 8)``, ``zip()``."""
    name = called_name(call)
    if name == "zip" and len(call.args) > 1:
        others = [arg.value for arg in call.args if not values.differs(arg.value, file)]
        named = {part.value for other in others for part in walk(other) if isinstance(part, cst.Name)}
        return "pairs with all data" if named & datasets else None
    if name not in _SHAPES or not isinstance(call.func, cst.Attribute):
        return None
    sizes = [arg.value for arg in call.args]
    counted = [one for size in sizes for part in walk(size) for one in _counted(part)]
    is_of_all = bool(counted) and not any(values.differs(one, file) for one in counted)
    return "gives the shape of all data to" if is_of_all and "-1" not in map(code, sizes) else None


def _counted(node: cst.CSTNode) -> list[cst.BaseExpression]:
    """Return what a node takes the number of samples of: ``x.shape[0]``, ``x.size(0)`` or ``len(x)``."""
    if isinstance(node, cst.Subscript) and isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape":
        return [node.value.value] if [*map(code, node.slice)] == ["0"] else []
    if isinstance(node, cst.Call) and dotted(node.func) == "len":
        return [arg.value for arg in node.args]
    is_size = isinstance(node, cst.Call) and called_name(node) == "size" and [*map(code, node.args)] == ["0"]
    return operands(node)[:1] if isinstance(node, cst.Call) and is_size else []


def _is_estimator(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a call is of a method of an object of scikit-learn or a library like it."""
    flow = plan.facts.flow
    owner = call.func.value if isinstance(call.func, cst.Attribute) else call
    made = [flow.node(value) for value in of_kind(flow.values(owner, file), Kind.OBJECT)] or [owner]
    makers = [maker.func for maker in made if isinstance(maker, cst.Call)]
    return any(value.name.startswith(_ESTIMATORS) for maker in makers for value in flow.values(maker, file))


def _is_score(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a library computes a number of all samples that is no mean over them."""
    called = of_kind(plan.facts.flow.values(call.func, file), Kind.EXTERNAL)
    return any(v.name.startswith(_SCORES) and v.name.rpartition(".")[2] not in _MEANS for v in called)


class _Finder:
    """The samples that training loops collect, as the expressions of a program have them."""

    def __init__(self, plan: ProgramPlan, collections: Collections, values: RankValues) -> None:
        self._flow = plan.facts.flow
        self._by_rank = values
        self._collections = collections

    def collected_in(self, node: cst.CSTNode, file: SourceFile, seen: set[int]) -> Iterator[Place]:
        """Yield the loops and functions whose samples an expression has.

        Args:
            seen: the nodes that were looked into, by identity.
        """
        if id(node) in seen or not self._by_rank.differs(node, file):
            return
        seen.add(id(node))
        if isinstance(node, (cst.Name, cst.Attribute)):
            variable = self._flow.variable(node, file)
            if variable is not None and (places := self._collections.places.get(variable)):
                yield from places if self._is_collected(node, places, file) else ()
                return
        for part, home in self._parts(node, file):
            yield from self.collected_in(part, home, seen)

    def _is_collected(self, node: cst.Name | cst.Attribute, places: list[Place], file: SourceFile) -> bool:
        """Return whether an attribute may be that of an object in which these functions collect."""
        if not isinstance(node, cst.Attribute) or dotted(node.value) == "self":
            return True
        functions = [place for place in places if isinstance(place, cst.FunctionDef)]
        return len(functions) < len(places) or any(
            self._collections.may_be_of(node.value, function, file) for function in functions
        )

    def _parts(self, node: cst.CSTNode, file: SourceFile) -> Iterator[tuple[cst.CSTNode, SourceFile]]:
        if isinstance(node, cst.Call):
            returned = list(self._returned(node, None, file))
            yield from returned or ((part, file) for part in operands(node) if called_name(node) in _KEEPS)
        elif isinstance(node, cst.Name):
            for line in self._flow.scopes(file).nodes(node, cst.Assign):
                yield from self._values(line, node, file)
            yield from self._flow.callers.given(node, file)
        elif isinstance(node, (cst.Attribute, cst.Subscript)):
            yield node.value, file
        elif isinstance(node, cst.BaseComp):
            yield node.for_in.iter, file
        elif not isinstance(node, (cst.Lambda, cst.IfExp)):
            yield from ((part, file) for part in children(node))

    def _values(self, line: cst.Assign, name: cst.Name, file: SourceFile) -> Iterator[tuple[cst.CSTNode, SourceFile]]:
        """Yield what a line sets a name to: of what a call returns, the item that the name gets."""
        for target, value in set_values(line):
            if dotted(target) == name.value and value is not None:
                yield value, file
            elif dotted(target) == name.value and isinstance(line.value, cst.Call):
                yield from self._returned(line.value, index_in(line, name.value), file)

    def _returned(
        self, call: cst.Call, index: int | None, file: SourceFile
    ) -> Iterator[tuple[cst.CSTNode, SourceFile]]:
        """Yield what a call returns, unless it is given another loader than one whose data ranks share."""
        if isinstance(call.func, cst.Attribute) and dotted(call.func.value) != "self":
            methods = of_kind(self._flow.values(call.func, file), Kind.METHOD)
            functions = [node for value in methods if isinstance(node := self._flow.node(value), cst.FunctionDef)]
            if not all(self._collections.may_be_of(call.func.value, function, file) for function in functions):
                return
        given = [loaders for arg in call.args if (loaders := loaders_of(arg.value, file, self._flow))]
        if not given or any(self._by_rank.are_shares(loaders) for loaders in given):
            yield from ((item_of(value, index), home) for home, value in returned_values(call, file, self._flow))
