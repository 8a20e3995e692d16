"""Data that each rank chooses or changes by its share: ranks train on other samples than one would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.data.epochs.collections import Collections
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values, set_to
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, children, dotted, indices_of, targets, without_index
from ds_migrate.syntax.source import SourceFile

_GIVES = ("__getitem__", "__iter__", "__len__")
_OWN = frozenset({"__init__", *_GIVES})
_DEPTH = 4  # of calls, into functions or back to what they are given
_ADDS = ("append", "extend", "add", "update")
Setting = tuple[SourceFile, cst.Assign | cst.AugAssign, str]  # with the attribute


def chosen_data(
    shares: Sequence[tuple[SourceFile, cst.Call]], collections: Collections, modules: Values, flow: Flow
) -> Iterator[Note]:
    """Yield a note for each loader that ranks share, and whose data outputs, or what training collects, choose.

    A sampler draws on rank 0, for a dataset of another rank: indices may be of other samples, or of none.

    Args:
        modules: those that train: their running statistics, by which outputs differ, are those of a share.
    """
    for file, maker in shares:
        parts = [argument(maker, place, name) for place, name in ((0, "dataset"), (3, "sampler"), (4, "batch_sampler"))]
        given = [arg for arg in parts if arg is not None] if _is_of_torch(maker, file, flow) else maker.args
        choice = _Choice(collections, modules, flow)
        if any(choice.is_of_share(arg.value, file) for arg in given):
            message = (
                "outputs of the model, or what training collects of a share, choose this data: each rank would have "
                "another selection, and divide it by rank 0's indices"
            )
            advice = "have rank 0's selection on all ranks, by torch.distributed.broadcast_object_list()"
            yield Note(Code.PLAIN_AGREEMENT, file, maker, message, advice)


def _is_of_torch(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    return not of_kind(flow.values(maker.func, file), Kind.CLASS, Kind.FUNCTION, Kind.METHOD)


class _Choice:
    """The making of data, through the names, calls and lists that lead to it."""

    def __init__(self, collections: Collections, modules: Values, flow: Flow) -> None:
        self._collections, self._modules, self._flow = collections, modules, flow
        self._seen: dict[tuple[int, bool], int] = {}  # the nodes that were looked into, by identity, with the depth

    def is_of_share(self, node: cst.CSTNode, file: SourceFile, depth: int = _DEPTH, is_returned: bool = False) -> bool:
        """Return whether an expression is made of what a model gives that trains, or of what a training loop keeps.

        Args:
            is_returned: whether it is what a call returns, whose arguments are known.
        """
        if self._seen.get((id(node), is_returned), -1) >= depth:
            return False
        self._seen[id(node), is_returned] = depth
        parts: list[tuple[SourceFile, cst.CSTNode]] = []
        beyond: list[tuple[SourceFile, cst.BaseExpression]] = []
        if isinstance(node, cst.Name) or (isinstance(node, cst.Attribute) and dotted(node.value) == "self"):
            if self._flow.variable(node, file) in self._collections.places:
                return True
            parts = [(file, part) for part in self._added(node, file)]
            if isinstance(node, cst.Attribute):
                beyond = [(file, value) for value in self._flow.scopes(file).assigned(node)]
            else:
                parts += set_to(node, file, self._flow)
                beyond = [(at, n) for n, at in self._flow.callers.given(node, file)] if not is_returned else []
        elif isinstance(node, cst.Call):
            if self._flow.values(node.func, file) & self._modules:
                return True
            parts = [(file, part) for part in (*children(node.func), *(arg.value for arg in node.args))]
            parts += returned_values(node, file, self._flow)
        elif not isinstance(node, cst.Lambda):
            parts = [(file, part) for part in children(node)]
        function = file.function(node)
        return any(
            self.is_of_share(part, at, depth - (is_other := at.function(part) is not function), is_returned or is_other)
            for at, part in parts
        ) or any(self.is_of_share(part, at, depth - 1) for at, part in beyond)

    def _added(self, node: cst.Name | cst.Attribute, file: SourceFile) -> Iterator[cst.BaseExpression]:
        """Yield what the function around a name adds to it, and where: ``kept.append(i)``, ``mask[i] = True``."""
        scope, name = file.function(node) or file.module, dotted(node)
        for call in file.nodes(cst.Call, below=scope):
            owner = call.func.value if isinstance(call.func, cst.Attribute) else None
            if owner is not None and called_name(call) in _ADDS and dotted(without_index(owner)) == name:
                yield from (*indices_of(owner), *(arg.value for arg in call.args))
        for line in file.nodes(cst.Assign, cst.AugAssign, below=scope):
            for target in targets(line):
                yield from indices_of(target) if dotted(without_index(target)) == name else ()


def data_settings(shares: Sequence[tuple[SourceFile, cst.Call]], flow: Flow) -> list[Setting]:
    """Return the lines that set attributes of what loaders of shares draw from, after these are made."""
    given = (value for file, maker in shares for arg in maker.args for value in flow.values(arg.value, file))
    owners = {value.key for value in given if value.kind is Kind.INSTANCE}
    read = {key: set(_read_by(key, flow)) for key in owners}
    found: list[Setting] = []
    for file in flow.files.values() if owners else ():
        for line in file.nodes(cst.Assign, cst.AugAssign):
            for target in map(without_index, targets(line)):
                if isinstance(target, cst.Attribute) and any(
                    target.attr.value in read[key] for key in _owners_of(target, line, file, flow) & owners
                ):
                    found.append((file, line, target.attr.value))
    return found


def settings_by_rank(settings: Sequence[Setting], values: RankValues) -> Iterator[Note]:
    """Yield a note for each of these lines that sets what differs by rank, or where a condition holds that does."""
    for file, line, name in settings:
        if values.of_samples.differs(line.value, file) or values.of_samples.depends(line, file):
            message = f"each rank has its own {name} of the data, by what its share gives, and draws other samples"
            advice = "set it by mean_over_ranks() or rank_0_decides() of what it follows"
            yield Note(Code.PLAIN_AGREEMENT, file, line, message, advice)


def _owners_of(target: cst.Attribute, line: cst.CSTNode, file: SourceFile, flow: Flow) -> set[int]:
    """Return the classes whose objects a line sets an attribute of, other than where they are made or drawn from."""
    function, around = file.function(line), file.class_around(line)
    is_own = isinstance(target.value, cst.Name) and target.value.value == "self"
    if is_own:
        is_setter = around is not None and function is not None and function.name.value not in _OWN
        return {id(around)} if is_setter else set()
    return {value.key for value in of_kind(flow.values(target.value, file), Kind.INSTANCE)}


def _read_by(key: int, flow: Flow) -> Iterator[str]:
    """Yield the attributes that the methods of a class read which give samples."""
    for name in _GIVES:
        method = flow.classes.method(key, name)
        function = flow.node(method) if method is not None else None
        if method is not None and isinstance(function, cst.FunctionDef):
            yield from (node.attr.value for node in flow.file(method).nodes(cst.Attribute, below=function))
