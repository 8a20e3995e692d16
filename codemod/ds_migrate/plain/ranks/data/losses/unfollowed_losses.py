"""Losses that nothing shows to be means over the samples of a batch, as those are with which n ranks train like one."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.containers.mappings import display_items, literal_index
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.data.losses.batch_totals import MEANS, BatchTotals
from ds_migrate.plain.ranks.data.losses.named_parts import NamedParts, SumPart
from ds_migrate.plain.ranks.data.losses.returned_values import returned_values
from ds_migrate.plain.ranks.data.losses.torch_losses import divides_by_targets, loss_makers, makes_loss, reduction_of
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name, code, last_name, operands
from ds_migrate.syntax.source import SourceFile

_KEEPS = frozenset(
    {"float", "double", "half", "to", "type_as", "cpu", "cuda", "squeeze", "unsqueeze", "view", "reshape", "clone",
     "contiguous", "scale", "neg", "values", "stack", "cat", "item", "numpy", "detach", "nan_to_num", "requires_grad_",
     "get", "pop", "list", "tuple"}
)  # fmt: skip
_SIZES = frozenset({"len", "size", "numel"})


def unfollowed_losses(plan: ProgramPlan, totals: BatchTotals, noted: Collection[int]) -> Iterator[Note]:
    """Yield a note for each backward pass of a loss that is not followed to means over the samples of a batch.

    Args:
        noted: the functions, by identity, that have another note about their loss.
    """
    means = _Means(plan, totals)
    for backward in plan.fed:
        for file, node, *_ in means.unfollowed(SumPart(backward.file, backward.loss)):
            if id(file.function(node) or file.module) not in noted:
                message = f"cannot follow {_short(node)} to a mean over the samples of a batch, which n ranks need"
                advice = "check that it adds up, counts or compares nothing of a batch, as ds-verify --plain shows"
                yield Note(Code.PLAIN_SAMPLER, file, node, message, advice)
                break


def _short(node: cst.CSTNode) -> str:
    text = " ".join(code(node).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Means:
    def __init__(self, plan: ProgramPlan, totals: BatchTotals) -> None:
        self._flow = plan.facts.flow
        self._names = NamedParts(plan.facts.flow)
        self._totals = totals
        self._seen = set[tuple[int, int | None]]()

    def unfollowed(self, part: SumPart) -> Iterator[SumPart]:
        """Yield what a loss is made of that is neither equal on all ranks nor a mean over the samples of a batch."""
        if (id(part.node), part.item) in self._seen or not self._totals.differs(part.node, part.file):
            return
        self._seen.add((id(part.node), part.item))
        found = self._parts(part)
        if found is None:
            yield part
        for inner in found or ():
            yield from self.unfollowed(inner)

    def _parts(self, part: SumPart) -> list[SumPart] | None:
        """Return what an expression is a sum of, up to factors; None for one that is no sum and no mean."""
        node = part.node
        if isinstance(node, cst.Call):
            return self._of_call(node, part)
        if isinstance(node, cst.BinaryOperation):
            return self._of_operation(node, part)
        if isinstance(node, cst.Subscript):
            return self._of_item(node, part)
        if isinstance(node, (cst.Name, cst.Attribute)):
            return list(self._names.of(node, part)) or None
        if isinstance(node, cst.UnaryOperation):
            return [part._replace(node=node.expression)]
        if isinstance(node, cst.NamedExpr):
            return [part._replace(node=node.value)]
        if isinstance(node, cst.IfExp):
            return [part._replace(node=node.body), part._replace(node=node.orelse)]
        if isinstance(node, (cst.List, cst.Tuple, cst.Dict)):
            items = [value for key, value in display_items(node) if part.item is None or key in (part.item, None)]
            return [part._replace(node=value, item=None) for value in items]
        if isinstance(node, (cst.ListComp, cst.GeneratorExp, cst.SetComp)):
            return [part._replace(node=node.elt, item=None)]
        return [part._replace(node=node.value, item=None)] if isinstance(node, cst.DictComp) else None

    def _of_operation(self, node: cst.BinaryOperation, part: SumPart) -> list[SumPart] | None:
        sides = [part._replace(node=side) for side in (node.left, node.right) if self._totals.differs(side, part.file)]
        if isinstance(node.operator, (cst.Add, cst.Subtract)):
            return sides
        if isinstance(node.operator, cst.Divide) and not self._totals.differs(node.right, part.file):
            return [part._replace(node=node.left, is_divided=part.is_divided or self._is_size(node.right, part.file))]
        return sides if isinstance(node.operator, cst.Multiply) and len(sides) == 1 else None

    def _is_size(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a number is that of the samples of a batch: ``len(x)``, ``x.size(0)``, ``args.batch_size``."""
        if isinstance(node, cst.Name) and (made := self._flow.scopes(file).assigned(node)):
            return all(self._is_size(value, file) for value in made)
        if isinstance(node, (cst.Name, cst.Attribute)):
            return "batch" in node.value if isinstance(node, cst.Name) else "batch" in node.attr.value
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply):
            return self._is_size(node.left, file) or self._is_size(node.right, file)
        if isinstance(node, cst.Subscript) and literal_index(node) == 0:
            return last_name(node.value) == "shape" or self._is_size(node.value, file)
        return (
            isinstance(node, cst.Call)
            and called_name(node) in _SIZES
            and any(self._totals.differs(p, file) for p in operands(node))
        )

    def _of_call(self, call: cst.Call, part: SumPart) -> list[SumPart] | None:
        file, name, given = part.file, called_name(call), operands(call)
        makers = [*loss_makers(call, file, self._flow), *self._kept_losses(call, part)]
        allowed = {"mean", "sum"} if part.is_divided else {"mean"}
        if any(divides_by_targets(maker, self._flow) or reduction_of(maker) not in allowed for maker in makers):
            return None
        operand = self._totals.operand(call, file)
        if name in MEANS and operand is not None:
            return [part._replace(node=operand)] if self._totals.is_total(operand, file) else []
        returned = [part._replace(file=home, node=value) for home, value in returned_values(call, file, self._flow)]
        for inner in returned:
            self._names.enter(call, file, inner)
        if returned or makers:
            return returned
        if name == "sum" and given:
            is_list = isinstance(call.func, cst.Name) or (
                isinstance(given[0], cst.Call) and called_name(given[0]) == "stack"
            )
            is_of_totals = is_list or self._totals.is_total(given[0], file)
            return [part._replace(node=given[0])] if is_of_totals else [] if part.is_divided else None
        return [part._replace(node=given[0])] if name in _KEEPS and given else None

    def _kept_losses(self, call: cst.Call, part: SumPart) -> Iterator[cst.Call]:
        """Yield the calls that make the losses of torch in a container, of which a call chooses one."""
        items = self._of_item(call.func, part._replace(node=call.func)) if isinstance(call.func, cst.Subscript) else ()
        for file, made, *_ in items or ():
            if isinstance(made, cst.Call) and makes_loss(made, file, self._flow):
                yield made

    def _of_item(self, node: cst.Subscript, part: SumPart) -> list[SumPart] | None:
        key, owner = literal_index(node), node.value
        if isinstance(key, int):
            return [part._replace(node=owner, item=key)]
        found = list[SumPart]()
        for made in self._names.of(owner, part, key) if isinstance(owner, (cst.Name, cst.Attribute)) else ():
            items = [value for name, value in display_items(made.node) if key is None or name in (key, None)]
            found += [made._replace(node=value) for value in items] or [made]
        return found or None
