"""Averages over an epoch whose divisor counts all data, or is fixed: of each rank's share they are too small."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.data.epochs.epoch_sums import EpochSums
from ds_migrate.plain.ranks.data.epochs.fixed_numbers import FixedNumbers
from ds_migrate.plain.ranks.data.epochs.sample_counts import loader_of
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, code, dotted, elements, targets, walk
from ds_migrate.syntax.source import SourceFile

_DEPTH = 4
_SCHEDULES = re.compile(r"LR$|WarmRestarts$|schedule", re.IGNORECASE)
Makers = list[tuple[SourceFile, cst.Call]]


class EpochAverages:
    """Divisions of a sum over a rank's share by a number that is made of the length of the data set."""

    def __init__(self, makers: Makers, of_ranks: Collection[int], counted: set[int], flow: Flow) -> None:
        self._flow = flow
        self._of_ranks = of_ranks
        self._makers = makers
        self._fixed = FixedNumbers(flow, self._data_sets)
        self._sums = EpochSums({id(maker) for _, maker in makers}, flow)
        self._counted = counted  # calls of len() that count the share already

    def divide_by_share(self, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> Iterator[Note]:
        """Let sums be divided by the samples of the share where the loader has a name, and yield a note elsewhere."""
        for file in files:
            for node, total, count in _divisions(file):
                if any(id(part) in self._counted for part in walk(count)):
                    continue
                found = self._sums.find(node, total, file)
                if found is None or self._sums.find(node, count, file) is not None:
                    continue
                if not _counts(count, self._data_sets(file), file, self._flow, _DEPTH):
                    loop = found.loop if found.is_here else None
                    if not found.is_counter and self._fixed.counts(count, loop, file):
                        yield _of_fixed_number(node, file)
                    continue
                loader = _loader_beside(count, found.loop, file) if found.is_here else self._loader_of(count, file)
                if loader is not None:
                    file.replace(count, f"{runtime.name(file, 'count_samples')}({loader})")
                    converted(Code.PLAIN_SAMPLER, file, node, "each rank counts the samples of its share")
                    continue
                message = "this divides the sum over a rank's share by a number that counts all data"
                yield Note(
                    Code.PLAIN_SAMPLER,
                    file,
                    node,
                    message,
                    "divide by count_samples() of the loader, or by its len() for batches",
                )

    def long_schedules(self, files: list[SourceFile]) -> Iterator[Note]:
        """Yield a note for each schedule whose number of steps is made of the length of a data set."""
        if not self._makers or any(id(maker) in self._of_ranks for _, maker in self._makers):
            return
        for file in files:
            for call in file.nodes(cst.Call):
                given = call.args[1:] if _SCHEDULES.search(called_name(call)) else ()
                if any(self._counts_all(arg.value, file, _DEPTH) for arg in given):
                    message = "this schedule counts the steps through all data, and a rank has those of its share alone"
                    advice = (
                        "make the number of len() of the loader, or divide it by torch.distributed.get_world_size()"
                    )
                    yield Note(Code.PLAIN_SAMPLER, file, call, message, advice)

    def _counts_all(self, node: cst.CSTNode, file: SourceFile, depth: int) -> bool:
        """Return whether the length of a data set is a part of a number, also through names."""
        return any(
            (isinstance(part, cst.Call) and _counts(part, self._data_sets(file), file, self._flow, _DEPTH))
            or any(depth and self._counts_all(made, file, depth - 1) for made in self._assigned(part, file))
            for part in walk(node)
        )

    def _assigned(self, node: cst.CSTNode, file: SourceFile) -> list[cst.BaseExpression]:
        return self._flow.scopes(file).assigned(node) if isinstance(node, cst.Name) else []

    def _data_sets(self, file: SourceFile) -> set[str]:
        """Return the expressions of data sets, those too that are kept by what makes the loaders: ``data.train``."""
        names = _data_sets(file)
        for call in file.nodes(cst.Call):
            data = call.args[0].value if dotted(call.func) == "len" and len(call.args) == 1 else None
            if isinstance(data, cst.Attribute) and self._makes_loaders(dotted(data.value), file):
                names.add(code(data))
        return names

    def _makes_loaders(self, owner: str | None, file: SourceFile) -> bool:
        return owner not in (None, "self") and any(
            isinstance(call.func, cst.Attribute)
            and dotted(call.func.value) == owner
            and loaders_of(call, file, self._flow)
            for call in file.nodes(cst.Call)
        )

    def _loader_of(self, count: cst.BaseExpression, file: SourceFile) -> str | None:
        """Return the loader of which a number is the length of the data set."""
        is_length = isinstance(count, cst.Call) and dotted(count.func) == "len" and len(count.args) == 1
        data = count.args[0].value if isinstance(count, cst.Call) and is_length else None
        return loader_of(data, file, self._makers, self._flow, self._of_ranks) if data is not None else None


def _of_fixed_number(node: cst.CSTNode, file: SourceFile) -> Note:
    return Note(
        Code.PLAIN_SAMPLER,
        file,
        node,
        "this divides the sum over a rank's share by a number that is the same on any number of ranks",
        "divide by count_samples() or len() of the loader, or multiply by torch.distributed.get_world_size(), if the "
        "number counts all data",
    )


def _divisions(file: SourceFile) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, cst.BaseExpression]]:
    for node in file.nodes(cst.BinaryOperation, cst.AugAssign):
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            yield node, node.left, node.right
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.DivideAssign):
            yield node, node.target, node.value


def _data_sets(file: SourceFile) -> set[str]:
    """Return the expressions of data sets: what loaders are made of, and what these are split off."""
    makers = [call for call in file.nodes(cst.Call) if (dotted(call.func) or "").endswith("DataLoader") and call.args]
    samplers = [argument(maker, None, name) for maker in makers for name in ("sampler", "batch_sampler")]
    given = [arg.value for arg in (*(maker.args[0] for maker in makers), *filter(None, samplers))]
    names = {code(part) for value in given for part in (value, *_named_parts(value))}
    for _ in range(_DEPTH):
        names |= {code(part.value) for part in file.nodes(cst.Subscript) if code(part) in names}
        for assign in file.nodes(cst.Assign):
            bound = {code(each) for target in targets(assign) for each in (target, *elements(target))}
            names |= {code(part) for part in _named_parts(assign.value)} if bound & names else set()
    return names


def _named_parts(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the names that a call is given, or that are values of a dict."""
    if isinstance(value, cst.Call):
        return [arg.value for arg in value.args if dotted(arg.value) is not None]
    return [e.value for e in value.elements if dotted(e.value) is not None] if isinstance(value, cst.Dict) else []


def _counts(node: cst.BaseExpression, data: set[str], file: SourceFile, flow: Flow, depth: int) -> bool:
    """Return whether a number is made of the length of a data set, also through names and dicts."""
    if depth == 0:
        return False
    if isinstance(node, cst.Call):
        inner = [arg.value for arg in node.args]
        if dotted(node.func) == "len":
            return bool(inner) and (code(inner[0]) in data or _is_data_given(inner[0], file, flow))
        return dotted(node.func) in ("int", "float", "max") and any(_counts(i, data, file, flow, depth) for i in inner)
    if isinstance(node, cst.BinaryOperation):
        is_amount = isinstance(node.operator, (cst.Add, cst.Subtract, cst.Multiply))
        return is_amount and any(_counts(n, data, file, flow, depth) for n in (node.left, node.right))
    if isinstance(node, cst.Subscript):
        return _counts(node.value, data, file, flow, depth)
    if isinstance(node, cst.DictComp):
        return _counts(node.value, data, file, flow, depth)
    if isinstance(node, cst.Dict):
        return any(_counts(e.value, data, file, flow, depth) for e in node.elements)
    name = dotted(node)
    if name is None:
        return False
    scope = flow.scopes(file).owner(name, node) if isinstance(node, cst.Name) else file.module
    assigned = file.values_of({name}, scope)
    return bool(assigned) and all(_counts(value, data, file, flow, depth - 1) for value in assigned)


def _is_data_given(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether an expression is the ``dataset`` of a loader, or an argument for which a call gives a data set."""
    function = flow.scopes(file).function_of_parameter(node) if isinstance(node, cst.Name) else None
    if function is None:
        return code(node).endswith(".dataset")
    calls = [(caller, flow.given(call, function, code(node), caller)) for caller, call in flow.callers.of(function)]
    return any(given is not None and code(given.value) in _data_sets(caller) for caller, given in calls)


def _loader_beside(count: cst.BaseExpression, loop: cst.For, file: SourceFile) -> str | None:
    """Return the loader of which a dict beside that of the loaders has the number of samples: ``sizes[phase]``."""
    if not isinstance(count, cst.Subscript) or not isinstance(count.value, cst.Name):
        return None
    for part in file.nodes(cst.Subscript, below=loop.iter):
        if not isinstance(part.value, cst.Name) or [code(s) for s in part.slice] != [code(s) for s in count.slice]:
            continue
        sizes, loaders = (_only_value(name.value, file) for name in (count.value, part.value))
        if isinstance(sizes, cst.DictComp) and isinstance(loaders, cst.DictComp) and _are_beside(sizes, loaders):
            return code(part)
    return None


def _are_beside(sizes: cst.DictComp, loaders: cst.DictComp) -> bool:
    """Return whether dicts have the number of samples and the loader of the same data sets."""
    size, maker = sizes.value, loaders.value
    if not (isinstance(size, cst.Call) and isinstance(maker, cst.Call) and size.args and maker.args):
        return False
    names = {code(sizes.key), code(loaders.key), dotted(sizes.for_in.target), dotted(loaders.for_in.target)}
    return len(names) == 1 and dotted(size.func) == "len" and code(size.args[0].value) == code(maker.args[0].value)


def _only_value(name: str, file: SourceFile) -> cst.BaseExpression | None:
    values = file.values_of({name}, file.module)
    return values[0] if len(values) == 1 else None
