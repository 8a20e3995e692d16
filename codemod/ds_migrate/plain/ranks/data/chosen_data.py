"""Data that each rank chooses or changes by its share: ranks train on other samples than one would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.recognition.batches.passed_objects import Passed, passed_on
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, targets, without_index
from ds_migrate.syntax.source import SourceFile

_DEEPEST = 4  # calls and names between a loader and what chooses its data
_GIVES = ("__getitem__", "__iter__", "__len__")
_OWN = frozenset({"__init__", *_GIVES})
Setting = tuple[SourceFile, cst.Assign | cst.AugAssign, str]  # with the attribute


def chosen_data(shares: Sequence[tuple[SourceFile, cst.Call]], flow: Flow, values: RankValues) -> Iterator[Note]:
    """Yield a note for each loader that ranks share, and whose dataset or sampler is made of what differs by rank.

    A sampler draws on rank 0, for a dataset of another rank: indices may be of other samples, or of none.
    """
    for file, maker in shares:
        parts = [argument(maker, place, name) for place, name in ((0, "dataset"), (3, "sampler"), (4, "batch_sampler"))]
        given = [arg for arg in parts if arg is not None] if _is_of_torch(maker, file, flow) else maker.args
        if is_made_of_what_differs([(file, arg.value) for arg in given], flow, values):
            message = (
                "this data is chosen by what differs by rank, as outputs and losses do: each rank would have another "
                "selection, and divide it by rank 0's indices"
            )
            advice = "have rank 0's selection on all ranks, by torch.distributed.broadcast_object_list()"
            yield Note(Code.PLAIN_AGREEMENT, file, maker, message, advice)


def _is_of_torch(maker: cst.Call, file: SourceFile, flow: Flow) -> bool:
    return not of_kind(flow.values(maker.func, file), Kind.CLASS, Kind.FUNCTION, Kind.METHOD)


def is_made_of_what_differs(given: Sequence[Passed], flow: Flow, values: RankValues) -> bool:
    """Return whether one of these is made of what differs by rank, as an object of the program by its arguments."""
    level, seen = list(given), set[int]()
    for _ in range(_DEEPEST + 1):
        new = {id(node): (file, node) for file, node in level if id(node) not in seen}
        if any(values.differs(node, file) for file, node in new.values()):
            return True
        seen |= new.keys()
        level = [part for file, node in new.values() for part in _parts(node, file, flow)]
    return False


def _parts(node: cst.BaseExpression, file: SourceFile, flow: Flow) -> list[Passed]:
    """Return the arguments of a call, or what a name or attribute is set to or has from other functions."""
    if isinstance(node, cst.Call):
        return [(file, arg.value) for arg in node.args]
    if not isinstance(node, (cst.Name, cst.Attribute)):
        return []
    made = [(file, value) for value in flow.scopes(file).assigned(node)]
    return made + passed_on(node, file, flow) if isinstance(node, cst.Name) else made


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
        if values.differs(line.value, file) or values.depends(line, file):
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
