"""Attributes that the settings of an optimizer are made of, as ``self.delta`` of ``rate = self.steps * self.delta``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Variable
from ds_migrate.syntax.nodes import targets, walk
from ds_migrate.syntax.source import SourceFile

_Place = tuple[SourceFile, cst.CSTNode]


def source_writes(
    settings: Iterable[tuple[SourceFile, cst.BaseExpression]], flow: Flow, values: RankValues
) -> Iterator[_Place]:
    """Yield the assignments of attributes that settings are made of, where these are the same on all ranks so far.

    Args:
        settings: what settings are set to.
        values: those that differ by rank, which are agreed on where they become a setting.
    """
    sources = set(_sources(settings, flow))
    for file, line in flow.nodes(cst.Assign, cst.AugAssign):
        for target in targets(line):
            is_source = isinstance(target, cst.Attribute) and flow.variable(target, file) in sources
            if is_source and not values.differs(target, file):
                yield file, line


def _sources(settings: Iterable[tuple[SourceFile, cst.BaseExpression]], flow: Flow) -> Iterator[Variable]:
    todo, seen = list(settings), set[Variable]()
    for file, node in todo:  # grows
        for part in walk(node):
            variable = flow.variable(part, file) if isinstance(part, (cst.Name, cst.Attribute)) else None
            if variable is None or variable in seen:
                continue
            assert isinstance(part, (cst.Name, cst.Attribute))
            seen.add(variable)
            lines = [line for line in flow.scopes(file).nodes(part, cst.AugAssign) if line.target.deep_equals(part)]
            todo += [(file, value) for value in (*flow.scopes(file).assigned(part), *(line.value for line in lines))]
            if isinstance(part, cst.Attribute):
                yield variable
