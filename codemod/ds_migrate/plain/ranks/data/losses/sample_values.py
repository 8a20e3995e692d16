"""Values that have something for each sample of a batch: inputs, targets, and outputs of a model, but no loss."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.containers.iteration import loops_of
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.data.losses.batch_totals import BatchTotals
from ds_migrate.plain.ranks.data.losses.returned_values import index_in, item_of, returned_values
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.syntax.nodes import called_name, children, dotted, operands, set_values, single_index, walk
from ds_migrate.syntax.source import SourceFile

# Calls that give one number: of a batch, unless what they are given is of one sample.
_NUMBERS = frozenset({"item", "float", "int"})
_DRAWS = frozenset({"next", "__next__"})
# Calls that give something for each sample where they are given that.
_KEEPS = frozenset(
    {"detach", "cpu", "cuda", "to", "numpy", "tolist", "clone", "half", "float", "double", "long", "int", "bool",
     "type", "astype", "argmax", "argmin", "argsort", "max", "min", "topk", "sort", "softmax", "log_softmax", "sigmoid",
     "tanh", "exp", "round", "squeeze", "unsqueeze", "flatten", "view", "reshape", "ravel", "permute", "transpose",
     "contiguous", "normalize", "clamp", "eq", "ne", "gt", "lt", "list", "tuple", "dict", "zip", "enumerate", "array",
     "asarray", "tensor", "from_numpy", "stack", "vstack", "hstack", "append", "cat", "concat", "concatenate", "str",
     "items", "values", "decode", "batch_decode"}
)  # fmt: skip


class SampleValues:
    """The expressions of a program that have something for each sample of a batch.

    Args:
        plan: of the program.
        totals: what a whole batch gives.
    """

    def __init__(self, plan: ProgramPlan, totals: BatchTotals) -> None:
        self._flow = plan.facts.flow
        self._totals = totals
        self._modules = frozenset(value for site in plan.facts.sites for value in site.of)
        self._answers: dict[int, tuple[cst.CSTNode, bool]] = {}  # with the nodes, which keeps their ids
        self._losses = {
            (id(b.file.function(b.node)), name)
            for b in plan.facts.operations.backwards for name in _summands(b.loss, b.file, self._flow)
        }  # fmt: skip

    def holds(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether an expression has something for each sample, of a batch that differs by rank."""
        if id(node) not in self._answers:
            self._answers[id(node)] = node, False  # where it is made of itself
            self._answers[id(node)] = node, self._find(node, file)
        return self._answers[id(node)][1]

    def _find(self, node: cst.CSTNode, file: SourceFile) -> bool:
        if not self._totals.differs(node, file) or self._totals.is_total(node, file):
            return False
        if isinstance(node, cst.Call):
            return self._is_held_by_call(node, file)
        if isinstance(node, (cst.Name, cst.Attribute)):
            if (id(file.function(node)), dotted(node)) in self._losses:
                return False
            if isinstance(node, cst.Attribute):
                return self.holds(node.value, file)
            return (
                self._is_of_loop(node, file)
                or self._is_set(node, file)
                or any(self.holds(given, home) for given, home in self._flow.callers.inputs(node, file))
            )
        if isinstance(node, (cst.Subscript, cst.NamedExpr)):
            return self.holds(node.value, file)
        if isinstance(node, cst.BaseComp):
            return any(self.holds(p, file) for p in children(node) if not isinstance(p, cst.CompFor))
        return any(self.holds(part, file) for part in children(node))

    def _is_of_loop(self, name: cst.Name, file: SourceFile) -> bool:
        """Return whether a loop over the batches, or over something of each sample, sets a name."""
        return any(
            bool(loaders_of(loop.iter, file, self._flow)) or self.holds(loop.iter, file)
            for loop in loops_of(name, file)
        )

    def _is_set(self, name: cst.Name, file: SourceFile) -> bool:
        for line in self._flow.scopes(file).nodes(name, cst.Assign, cst.AnnAssign):
            for target, value in set_values(line):
                given = line.value if value is None else value
                if given is None or name.value not in names_in(target):
                    continue
                index = index_in(line, name.value) if value is None else None
                if isinstance(given, cst.Call):
                    if self._is_held_by_call(given, file, index):
                        return True
                elif self.holds(given, file):
                    return True
        return False

    def _is_held_by_call(self, call: cst.Call, file: SourceFile, index: int | None = None) -> bool:
        """Return whether a call gives something for each sample; or whether the item at an index is that."""
        name = called_name(call)
        given = operands(call)
        if name in _NUMBERS and not (name in ("float", "int") and isinstance(call.func, cst.Attribute)):
            return any(self._is_of_sample(part, file) for part in given)
        if self._totals.reduces(call, file):
            return False
        if name in _DRAWS:
            return self._totals.differs(call, file)
        returned = [(home, item_of(value, index)) for home, value in returned_values(call, file, self._flow)]
        if self._is_of_module(call.func, file):
            is_of_batch = any(self.holds(arg.value, file) for arg in call.args)  # and not of noise that stays the same
            return is_of_batch and not (
                returned and all(self._totals.is_total(value, home) for home, value in returned)
            )
        if returned:
            return any(self.holds(value, home) for home, value in returned)
        return name in _KEEPS and any(self.holds(part, file) for part in given)

    def _is_of_module(self, func: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether an expression is a module that trains, or a part or method of one."""
        while not self._flow.values(func, file) & self._modules:
            if not isinstance(func, cst.Attribute):
                return False
            func = func.value
        return True

    def _is_of_sample(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether something is of one sample, as an index or a loop over those of a batch gives it."""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            return self._is_of_sample(node.func.value, file)
        if isinstance(node, cst.Subscript):
            return not isinstance(single_index(node), cst.SimpleString) and self.holds(node.value, file)
        return isinstance(node, cst.Name) and any(
            not loaders_of(loop.iter, file, self._flow) and self.holds(loop.iter, file) for loop in loops_of(node, file)
        )


def _summands(loss: cst.BaseExpression, file: SourceFile, flow: Flow) -> set[str]:
    """Return the names and attributes that a loss is a sum of."""
    found = set[str]()
    todo: list[cst.CSTNode] = [loss]
    for node in todo:  # grows
        name = dotted(node)
        if name is not None and name not in found:
            found.add(name)
            if isinstance(node, (cst.Name, cst.Attribute)):
                todo += flow.scopes(file).assigned(node)
        elif isinstance(node, cst.BinaryOperation):
            todo += [node.left, node.right]
        elif isinstance(node, cst.Call) and dotted(node.func) == "sum":
            todo += [part for part in walk(node) if isinstance(part, cst.Name)]
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "scale":
            todo += [arg.value for arg in node.args]
    return found
