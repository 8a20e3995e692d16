"""Losses that compare the samples of a batch with each other, as contrastive ones: each rank has those of its share."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.rank_values import RankValues
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.returned_values import returned_values
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, code, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_PRODUCTS = frozenset({"mm", "matmul"})
_DISTANCES = frozenset({"cdist", "cosine_similarity", "pairwise_distance"})
# With the further arguments for which they transpose a matrix.
_TRANSPOSED = {"t": ((),), "transpose": (("0", "1"), ("1", "0")), "permute": (("1", "0"),)}
_Part = tuple[SourceFile, cst.CSTNode]


def compared_samples(plan: ProgramPlan, values: RankValues) -> Iterator[Note]:
    """Yield a note for each place where what a loss is made of compares all samples of a batch with all others."""
    flow = plan.facts.flow
    parts = {id(part): (file, part) for b in plan.fed for file, part in _parts((b.file, b.loss), flow)}
    for file, part in parts.values():
        if _compares(part, file, values):
            message = "the loss compares the samples of a batch with each other: each rank has those of its share alone"
            advice = "gather those of all ranks for it, as torch.distributed.nn.functional.all_gather() does"
            yield Note(Code.PLAIN_SAMPLER, file, part, message, advice)


def _parts(loss: tuple[SourceFile, cst.CSTNode], flow: Flow) -> Iterator[_Part]:
    """Yield all that a loss is made of, by names, functions of the program and forward passes."""
    todo, seen = [loss], set[object]()
    for file, node in todo:  # grows
        for part in walk(node) if id(node) not in seen else ():
            yield file, part
            if isinstance(part, cst.Name) and (variable := flow.variable(part, file)) not in seen:
                seen.add(variable)
                lines = flow.scopes(file).nodes(part, cst.Assign, cst.AugAssign)
                todo += [(file, line.value) for line in lines if part.value in _names_set(line)]
                todo += [(file, target) for line in lines for target in targets(line) if _is_item_of(target, part)]
            elif isinstance(part, cst.Call):
                todo += returned_values(part, file, flow)
        seen.add(id(node))


def _is_item_of(target: cst.CSTNode, name: cst.Name) -> bool:
    """Return whether an assignment sets items of a name, as those that a comparison chooses."""
    return isinstance(target, cst.Subscript) and target.value.deep_equals(name)


def _names_set(line: cst.Assign | cst.AugAssign) -> list[str]:
    return [name for target in targets(line) for name in names_in(target)]


def _compares(node: cst.CSTNode, file: SourceFile, values: RankValues) -> bool:
    """Return whether a node is a product of a matrix of samples with a transposed one, or their distances.

    So is the difference of a column and the same as a row, by which a loss over risk sets or ranks orders samples.
    """
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        sides: list[cst.BaseExpression] = [node.left, node.right]
        is_of_pairs = any(map(_is_transposed, sides))
    elif isinstance(node, (cst.BinaryOperation, cst.Comparison)):
        sides = _sides(node)
        owners = [_transposed(side) for side in sides]
        is_of_pairs = len(sides) == 2 and any(
            owner is not None and owner.deep_equals(other) for owner, other in zip(owners, reversed(sides), strict=True)
        )
    elif isinstance(node, cst.Call) and _is_product_of_pairs(node):
        sides, is_of_pairs = [arg.value for arg in node.args[1:]], True
    elif isinstance(node, cst.Call) and called_name(node) in _PRODUCTS | _DISTANCES:
        owner = [node.func.value] if isinstance(node.func, cst.Attribute) and len(node.args) == 1 else []
        sides = [*owner, *(arg.value for arg in node.args if arg.keyword is None)][:2]
        is_distance = called_name(node) == "cdist" or (called_name(node) in _DISTANCES and all(map(_is_spread, sides)))
        is_of_pairs = is_distance or (called_name(node) in _PRODUCTS and any(map(_is_transposed, sides)))
    else:
        return False
    return is_of_pairs and len(sides) == 2 and all(values.differs(side, file) for side in sides)


def _sides(node: cst.BinaryOperation | cst.Comparison) -> list[cst.BaseExpression]:
    """Return the two sides of a difference or an order."""
    if isinstance(node, cst.Comparison):
        return [node.left, node.comparisons[0].comparator] if len(node.comparisons) == 1 else []
    return [node.left, node.right] if isinstance(node.operator, cst.Subtract) else []


def _transposed(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """Return the matrix that an expression transposes; None where it does not."""
    if isinstance(node, cst.Attribute) and node.attr.value == "T":
        return node.value
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return None
    given = [arg.value for arg in node.args]
    if dotted(node.func.value) != "torch":
        given = [node.func.value, *given]
    orders = _TRANSPOSED.get(node.func.attr.value, ())
    return given[0] if given and tuple(map(code, given[1:])) in orders else None


def _is_product_of_pairs(call: cst.Call) -> bool:
    """Return whether ``einsum()`` multiplies each row of one matrix with each row of another: ``"ik,jk->ij"``."""
    pattern = call.args[0].value if called_name(call) == "einsum" and len(call.args) == 3 else None
    if not isinstance(pattern, cst.SimpleString):
        return False
    operands, _, result = str(pattern.evaluated_value).replace(" ", "").partition("->")
    one, _, other = operands.partition(",")
    return len(one) == len(other) == 2 and one[1] == other[1] and set(result) == {one[0], other[0]}


def _is_transposed(node: cst.BaseExpression) -> bool:
    return _transposed(node) is not None


def _is_spread(node: cst.BaseExpression) -> bool:
    """Return whether a tensor gets another dimension: ``x.unsqueeze(1)`` or ``x[:, None]``."""
    if isinstance(node, cst.Call):
        return called_name(node) == "unsqueeze"
    return isinstance(node, cst.Subscript) and any(
        isinstance(e.slice, cst.Index) and isinstance(e.slice.value, cst.Name) and e.slice.value.value == "None"
        for e in node.slice
    )
