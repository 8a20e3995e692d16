"""Settings of datasets and samplers that a program changes while it trains, as the length of a curriculum's samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import targets, without_index
from ds_migrate.syntax.source import SourceFile

_GIVES = ("__getitem__", "__iter__", "__len__")
_OWN = frozenset({"__init__", *_GIVES})
Setting = tuple[SourceFile, cst.Assign | cst.AugAssign, str]  # with the attribute


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
