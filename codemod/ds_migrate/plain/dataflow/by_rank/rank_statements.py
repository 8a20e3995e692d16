"""Variables to which statements of a program give what differs by rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.interruptions import set_by_interruptions
from ds_migrate.plain.dataflow.by_rank.rank_expressions import (
    PROCESS,
    RankExpressions,
    accessed,
    is_data,
    literal_key,
    named_attribute,
)
from ds_migrate.plain.dataflow.calls.applied_functions import applied_inputs
from ds_migrate.plain.dataflow.calls.returned_tuples import is_plain_tuple, returns_tuples
from ds_migrate.plain.dataflow.containers.iteration import counts_items
from ds_migrate.plain.dataflow.containers.mappings import named_items
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Variable, are_all, of_kind
from ds_migrate.syntax.nodes import dotted, indices_of, targets
from ds_migrate.syntax.source import SourceFile

Give = Callable[["RankStatements"], Iterator[Variable]]
_Assignment = cst.Assign | cst.AnnAssign | cst.AugAssign | cst.NamedExpr
# These have separate state, which is followed elsewhere or equal on each rank.
_OWN_STATE = (Kind.INSTANCE, Kind.SCHEDULE, Kind.SCALER, Kind.OPTIMIZER, Kind.MODULE)
# Methods that keep nothing of their arguments: of progress bars, those of tensors and texts that return new ones, and
# those of what has been fitted before.
_KEEP_NOTHING = frozenset(
    {"set_description", "set_description_str", "set_postfix", "set_postfix_str", "expand", "expand_as", "view",
     "view_as", "reshape", "reshape_as", "repeat", "repeat_interleave", "gather", "index_select", "masked_fill",
     "masked_select", "matmul", "mm", "bmm", "mul", "div", "dot", "to", "type_as", "eq", "ne", "ge", "gt", "le", "lt",
     "new_tensor", "new_zeros", "new_ones", "forward", "format", "join", "transform", "inverse_transform", "predict",
     "predict_proba", "decode", "batch_decode", "save", "save_pretrained", "savefig"}
)  # fmt: skip


class RankStatements:
    """The assignments, loops, results and arguments of a program, by what differs in them.

    Args:
        values: the expressions of the program that differ.
    """

    def __init__(self, values: RankExpressions) -> None:
        self._values = values
        self._flow = values.flow

    @staticmethod
    def of(file: SourceFile, flow: Flow, function: cst.FunctionDef | None = None) -> Iterator[Give]:
        """Yield for each node of a file, or a function in it, how to find the variables to which it gives what differs.

        What handlers of signals set is of the whole file.
        """
        for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, below=function):
            if node.value is not None:
                yield partial(RankStatements._assigned, node=node, file=file)
        for node in file.nodes(cst.For, cst.CompFor, below=function):
            yield partial(RankStatements._of_loop, target=node.target, over=node.iter, file=file)
        for node in file.nodes(cst.WithItem, below=function):
            if node.asname is not None:
                yield partial(RankStatements._entered, item=node.item, target=node.asname.name, file=file)
        for node in file.nodes(cst.Return, cst.Yield, below=function):
            around = file.function(node)
            if node.value is not None and around is not None:
                yield partial(RankStatements._returned, node=node, function=around, file=file)
        for target in set_by_interruptions(file, flow) if function is None else ():
            yield partial(RankStatements._interrupted, target=target, file=file)
        for call in file.nodes(cst.Call, below=function):
            passed = [*flow.passed(call, file), *applied_inputs(call, file, flow)]
            yield partial(RankStatements._passed, call=call, passed=passed, file=file)
            if fields := flow.set_fields(call, file):
                yield partial(RankStatements._kept_as_fields, fields=fields, file=file)
            if named_attribute(call, "setattr") is not None:
                yield partial(RankStatements._set_by_name, call=call, file=file)

    def _assigned(self, node: _Assignment, file: SourceFile) -> Iterator[Variable]:
        assert node.value is not None
        depends = self._values.depends(node, file)
        given = depends or self._values.differs(node.value, file)
        for target in targets(node) if not isinstance(node, cst.NamedExpr) else [node.target]:
            parts = self._differing_items(target, node.value, file) if given and not depends else None
            if given or any(self._values.differs(index, file) for index in indices_of(target)):  # counts[label] += 1
                for part in [target] if parts is None else parts:
                    yield from self._set(part, node, file)

    def _differing_items(
        self, target: cst.BaseExpression, value: cst.BaseExpression, file: SourceFile
    ) -> list[cst.BaseExpression] | None:
        """Return the targets that get what differs of a tuple, or of one that functions return; None where unknown."""
        if not isinstance(target, cst.Tuple):
            return None
        names = [element.value for element in target.elements]
        if is_plain_tuple(value, len(names)):
            given = [element.value for element in value.elements]
            return [name for name, item in zip(names, given, strict=True) if self._values.differs(item, file)]
        if not isinstance(value, cst.Call):
            return None
        functions = self._values.functions_of(value, file)
        if not functions or not all(returns_tuples(key, len(names), self._flow) for key in functions):
            return None
        return [
            name for index, name in enumerate(names)
            if any(self._values.differs_in(value, (key, f"return[{index}]"), file) for key in functions)
        ]  # fmt: skip

    def _set_by_name(self, call: cst.Call, file: SourceFile) -> Iterator[Variable]:
        if self._values.differs(call.args[2].value, file) or self._values.depends(call, file):
            yield from self._values.attributes.written_by_name(str(named_attribute(call, "setattr")))

    def _interrupted(self, target: cst.CSTNode, file: SourceFile) -> Iterator[Variable]:
        """Yield what the handler of a signal, a thread or a timer sets."""
        if self._values.are_known(PROCESS):
            yield from self._variables(target, file)

    def _entered(self, item: cst.BaseExpression, target: cst.CSTNode, file: SourceFile) -> Iterator[Variable]:
        if self._values.differs(item, file):
            yield from self._variables(target, file)

    def _returned(
        self, node: cst.Return | cst.Yield, function: cst.FunctionDef, file: SourceFile
    ) -> Iterator[Variable]:
        assert node.value is not None
        depends = self._values.depends(node, file)
        if not (depends or self._values.differs(node.value, file)):
            return
        yield id(function), "return"
        for index, element in enumerate(node.value.elements if isinstance(node.value, cst.Tuple) else ()):
            if depends or self._values.differs(element.value, file):
                yield id(function), f"return[{index}]"

    def _passed(
        self, call: cst.Call, passed: Sequence[tuple[Variable, cst.BaseExpression]], file: SourceFile
    ) -> Iterator[Variable]:
        yield from (variable for variable, given in passed if self._values.differs(given, file))
        if not passed and any(
            self._values.differs(part, file) for part in (*_indices(call), *(a.value for a in call.args))
        ):
            yield from self._keepers(call, file)

    def _kept_as_fields(self, fields: Sequence[tuple[str, cst.BaseExpression]], file: SourceFile) -> Iterator[Variable]:
        """Yield the attributes that ``Result(loss=loss)`` sets to what differs."""
        for name, value in fields:
            if self._values.differs(value, file):
                yield from self._values.attributes.written_by_name(name)

    def _keepers(self, call: cst.Call, file: SourceFile) -> Iterator[Variable]:
        """Yield what may keep the arguments of a call.

        It is the receiver of an unknown method, as in ``losses.append(loss)``, or an object that is called for its
        effect, as in ``early_stopping(loss)``.
        """
        if isinstance(file.parent(call), cst.Expr) and are_all(self._flow.values(call.func, file), Kind.OBJECT):
            yield from self._variables(call.func, file)
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value in _KEEP_NOTHING:
            return
        if not isinstance(file.parent(call), cst.Expr) and _is_in_module(call, file):
            return  # the forward pass of a part
        owners = self._flow.values(call.func.value, file)
        is_library = are_all(owners, Kind.EXTERNAL)  # or None, where it is not installed
        if not is_library and not of_kind(owners, *_OWN_STATE):
            yield from self._variables(call.func.value, file)

    def _of_loop(self, target: cst.CSTNode, over: cst.BaseExpression, file: SourceFile) -> Iterator[Variable]:
        if not (
            self._values.differs(over, file) or self._values.is_share(over, file) or self._gives_shares(over, file)
        ):
            return
        parts = target.elements if isinstance(target, cst.Tuple) else ()
        if isinstance(over, cst.Call) and dotted(over.func) == "zip" and len(over.args) == len(parts):
            for element, arg in zip(parts, over.args, strict=True):
                yield from self._of_loop(element.value, arg.value, file)
            return
        if len(parts) == 2 and counts_items(over, file, self._flow.scopes(file)):
            target = parts[1].value
        yield from self._variables(target, file)

    def _gives_shares(self, over: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a loop runs over an object whose ``__iter__()`` gives what differs, as a loader's batches."""
        parts = [over, *(arg.value for arg in over.args)] if isinstance(over, cst.Call) else [over]  # enumerate(data)
        values = (value for part in parts for value in of_kind(self._flow.values(part, file), Kind.INSTANCE))
        methods = (self._flow.classes.method(value.key, "__iter__") for value in values)
        return any(method is not None and self._values.are_known((method.key, "return")) for method in methods)

    def _variables(self, target: cst.CSTNode, file: SourceFile) -> Iterator[Variable]:
        if isinstance(target, cst.Name):
            values = self._flow.values(target, file)
            is_definition = bool(of_kind(values, Kind.EXTERNAL, Kind.FILE, Kind.CLASS, Kind.FUNCTION))
            if not is_definition or self._flow.scopes(file).assigned(target):  # as loss = np.inf
                yield from self._values.written(target, file)
        elif isinstance(target, cst.Attribute):
            if is_data(target):
                yield from self._variables(target.value, file)
            elif not self._values.is_of_library(target, file):
                yield from self._values.attributes.written(target, file)
        elif (key := literal_key(target)) is not None:
            for owner, name in self._of_items(key[0], file):
                yield from ((owner, f"{name}[]"), (owner, f"{name}[{key[1]}]"))
        elif isinstance(target, (cst.Subscript, cst.StarredElement)):
            table = accessed(target)
            if table is not None:
                yield from self._variables(table, file)
            if table is None or self._is_given(table, file):
                yield from self._variables(target.value, file)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                yield from self._variables(element.value, file)

    def _of_items(self, node: cst.Name | cst.Attribute, file: SourceFile) -> Iterator[Variable]:
        """Yield the variables that hold what gets an item, as those of ``self.state`` for ``self.state["epoch"]``."""
        if isinstance(node, cst.Name):
            yield from self._values.written(node, file)
        elif is_data(node):
            yield from self._variables(node.value, file)
        elif not self._values.is_of_library(node, file):
            yield from self._values.attributes.written(node, file)

    def _is_given(self, node: cst.BaseExpression, file: SourceFile) -> bool:
        """Return whether a name is a parameter, so that a caller has what it holds under another name."""
        while isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        return self._flow.scopes(file).function_of_parameter(node) is not None

    def _set(self, target: cst.CSTNode, node: _Assignment, file: SourceFile) -> Iterator[Variable]:
        """Yield what an assignment sets: of a dict with literal keys, the items that differ, and that some do."""
        is_named = isinstance(target, (cst.Name, cst.Attribute)) and not self._values.depends(node, file)
        items = named_items(node.value) if is_named else None
        if isinstance(target, (cst.Name, cst.Attribute)) and items is not None:
            differing = [key for key, value in items.items() if self._values.differs(value, file)]
            for owner, name in self._of_items(target, file):
                yield owner, f"{name}[]"
                yield from ((owner, f"{name}[{key}]") for key in differing)
        else:
            yield from self._variables(target, file)


def _is_in_module(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a node is in a method of a class that has a forward pass."""
    owner = file.class_around(node)
    return owner is not None and any(f.name.value == "forward" for f in file.nodes(cst.FunctionDef, below=owner))


def _indices(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yield the index of the item whose method is called: of ``lists[label].append(i)``."""
    owner = call.func.value if isinstance(call.func, cst.Attribute) else None
    for element in owner.slice if isinstance(owner, cst.Subscript) else ():
        if isinstance(element.slice, cst.Index):
            yield element.slice.value
