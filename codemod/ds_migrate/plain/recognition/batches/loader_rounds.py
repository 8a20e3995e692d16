"""Loaders that a loop makes one by one, of which some train: ``for phase in ("train", "val")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from ds_migrate.plain.dataflow.branches.written_rounds import Bindings, rounds_of
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import code, targets, walk
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True, eq=False)
class LoaderName:
    """A name by which a loader that trains is known behind a statement.

    Attributes:
        text: the name, or ``self.loader``, or ``loaders["train"]``.
        condition: under which that loader trains, where the statement makes others too; "" where it always does.
    """

    file: SourceFile
    statement: cst.BaseStatement
    text: str
    condition: str = ""


def in_rounds(
    names: Iterable[LoaderName],
    node: cst.CSTNode,
    file: SourceFile,
    is_left_out: Callable[[Bindings], bool],
    is_conditional: bool,
    flow: Flow,
) -> Iterator[LoaderName | None]:
    """Yield names, each with its condition where a loop sets it in each round; None where this cannot be followed.

    Args:
        node: what leads to training, in ``file``.
        is_left_out: returns whether a round of the loop around the node trains nothing.
        is_conditional: whether a condition that no round shows may keep a node from training.
    """
    rounds = rounds_of(node, file, flow)
    trained = [each for each in rounds if not is_left_out(each)]
    around = [outer for outer in file.ancestors(node) if isinstance(outer, cst.For)]
    for name in names:
        made = {part.value for part in walk(name.statement) if isinstance(part, cst.Name)}
        inside = [loop for loop in around if any(outer is loop for outer in file.ancestors(name.statement))]
        variables = [each for loop in inside for each in names_in(loop.target) if each in made]
        if not variables or (len(trained) == len(rounds) and not is_conditional):
            yield name
        elif len(trained) == len(rounds):
            yield None
        else:
            texts = [each.get(variables[0]) for each in trained]
            is_written = all(isinstance(text, cst.SimpleString) for text in texts)
            yield replace(name, condition=_is_one_of(variables[0], texts)) if is_written and texts else None


def _is_one_of(name: str, texts: Sequence[cst.BaseExpression | None]) -> str:
    written = [code(text) for text in texts if text is not None]
    return f"{name} == {written[0]}" if len(written) == 1 else f"{name} in ({', '.join(written)})"


def is_under_condition(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a condition around a node in its function asks for nothing that rounds of batches set."""
    asked = list[cst.BaseExpression]()
    for inner, outer in upwards(file, node):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, cst.If) and inner is not outer.test:
            asked.append(outer.test)
        if isinstance(outer, cst.For):
            asked = [test for test in asked if not is_of_batch(test, outer, file)]
    return bool(asked)


def is_of_batch(test: cst.BaseExpression, loop: cst.For, file: SourceFile) -> bool:
    """Return whether a condition asks for what each round of a loop sets, as a batch or its loss."""
    lines = file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, below=loop.body)
    kept = {name for line in lines for target in targets(line) for name in names_in(target)}
    kept |= {name for line in lines if isinstance(line, cst.NamedExpr) for name in names_in(line.target)}
    return bool((kept | set(names_in(loop.target))) & {n.value for n in walk(test) if isinstance(n, cst.Name)})
