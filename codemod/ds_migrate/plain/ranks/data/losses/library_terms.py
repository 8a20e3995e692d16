"""Losses that a library other than torch computes: n ranks train like one with those that are means over samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values, set_to
from ds_migrate.plain.ranks.data.losses.torch_losses import library_losses
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, children, operands
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_DEPTH = 6  # of names and calls
_KEEPS = frozenset({"mean", "sum", "scale", "squeeze", "float", "to", "stack", "values", "get"})


def library_terms(plan: ProgramPlan, noted: Collection[int]) -> Iterator[Note]:
    """Yield a note for each backward pass of a loss with a term that a library computes.

    Args:
        noted: the functions, by identity, that have another note about their loss.
    """
    for backward in plan.fed:
        for file, call in _terms(backward.loss, backward.file, plan, _DEPTH):
            if id(file.function(call) or file.module) not in noted:
                called = expression_text(call.func)
                message = f"{called}() is of a library, and n ranks need a loss that is a mean over samples"
                advice = "check that it adds up, counts or compares nothing of a batch, as ds-verify --plain shows"
                yield Note(Code.PLAIN_SAMPLER, file, call, message, advice)
                break


def _terms(
    node: cst.BaseExpression, file: SourceFile, plan: ProgramPlan, depth: int
) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield the calls of libraries that a loss is a sum of, up to factors, through names and functions."""
    flow = plan.facts.flow
    parts: list[tuple[SourceFile, cst.BaseExpression]] = []
    if depth == 0:
        return
    if isinstance(node, cst.Call):
        names = [name for name in library_losses(node, file, flow) if "." in name]
        if names and not any(name.startswith("torch.") for name in names):
            yield file, node
            return
        parts = list(returned_values(node, file, flow))
        parts += [(file, part) for part in (operands(node) if called_name(node) in _KEEPS else ())]
    elif isinstance(node, cst.Name):
        parts = list(set_to(node, file, flow))
    elif isinstance(node, (cst.Attribute, cst.Subscript)):
        parts = [(file, node.value)]
    elif isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.IfExp)):
        parts = [(file, part) for part in children(node) if isinstance(part, cst.BaseExpression)]
    for home, part in parts:
        yield from _terms(part, home, plan, depth - 1)
