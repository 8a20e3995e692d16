"""Code of a program that does nothing but output: it prints, plots, or writes files that the program leaves behind."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.rank_guards import asks_for_rank
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls, calls_in
from ds_migrate.plain.ranks.rank_zero.output_functions import FunctionReader
from ds_migrate.syntax.nodes import body_of, docstring, dotted, walk
from ds_migrate.syntax.source import SourceFile


class OutputCode:
    """The statements and functions of a program that do nothing but output.

    Attributes:
        calls: those of the program.
    """

    def __init__(self, plan: ProgramPlan) -> None:
        self._flow = plan.facts.flow
        self.calls = OutputCalls(plan)
        self._known: dict[int, bool] = {}

    def is_output(self, statement: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a statement does nothing but output, so that it may be left out as a whole."""
        if isinstance(statement, cst.SimpleStatementLine):
            calls = calls_in(statement, file)
            return len(calls) == 1 and self.calls.is_output_call(calls[0], file)
        if file.edits.is_touched(statement):  # ranks may decide together there
            return False
        if isinstance(statement, cst.If) and not asks_for_rank(statement.test):
            rest = statement.orelse
            rest_is_output = rest is None or (
                self.is_output(rest, file) if isinstance(rest, cst.If) else self._is_output_block(rest.body, file)
            )
            is_block = self._is_output_block(statement.body, file)
            return is_block and rest_is_output and self.calls.skippable.is_skippable(statement.test, file)
        if isinstance(statement, cst.For):
            again = self.calls.skippable.can_be_iterated_again(statement.iter, file)
            is_quiet = again and self.calls.skippable.is_skippable(statement.iter, file) and statement.orelse is None
            return is_quiet and self._is_output_block(statement.body, file) and not self._leaks(statement, file)
        return False

    def _is_output_block(self, block: cst.BaseSuite, file: SourceFile) -> bool:
        return all(self.is_output(inner, file) for inner in block.body)

    def _leaks(self, loop: cst.For, file: SourceFile) -> bool:
        """Return whether what a loop counts with may be used behind it."""
        names = {n.value for n in walk(loop.target) if isinstance(n, cst.Name)}
        inside = {id(node) for node in walk(loop)}
        scope = file.function(loop) or file.module
        return any(
            node.value in names and id(node) not in inside and not _is_bound_around(node, file)
            for node in file.nodes(cst.Name, below=scope)
        )

    def only_outputs(self, function: cst.FunctionDef, file: SourceFile) -> bool:
        """Return whether a function does nothing but output, and returns nothing, so that it may be left out."""
        key = id(function)
        if key not in self._known:
            self._known[key] = False  # one that calls itself
            self._known[key] = self._only_outputs(function, file)
        return self._known[key]

    def _only_outputs(self, function: cst.FunctionDef, file: SourceFile) -> bool:
        if (
            function.asynchronous is not None
            or file.edits.is_touched(function)
            or file.nodes(cst.Yield, below=function)
        ):
            return False
        decorators = [dotted(d.decorator) or dotted(getattr(d.decorator, "func", None)) for d in function.decorators]
        if any(name not in ("staticmethod", "torch.no_grad") for name in decorators):
            return False
        if function.name.value.startswith("__") or file.nodes(cst.FunctionDef, cst.ClassDef, below=function.body):
            return False
        reader = FunctionReader(self._flow, self.calls, self._calls_output, function, file)
        text = docstring(function)
        return all(reader.is_left_out(node) for node in body_of(function) if node is not text) and reader.has_output

    def _calls_output(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is of functions of the program that only output."""
        values = self._flow.values(call.func, file)
        found = [self._flow.node_of(value.key) for value in of_kind(values, Kind.FUNCTION, Kind.METHOD)]
        return (
            bool(found)
            and len(found) == len(values)
            and all(
                one is not None and isinstance(one[1], cst.FunctionDef) and self.only_outputs(one[1], one[0])
                for one in found
            )
        )


def _is_bound_around(node: cst.Name, file: SourceFile) -> bool:
    """Return whether a name is set by a loop, a comprehension or an assignment around it, as it is used."""
    for outer in file.ancestors(node):
        if isinstance(outer, (cst.For, cst.CompFor)) and node.value in {
            n.value for n in walk(outer.target) if isinstance(n, cst.Name)
        }:
            return True
        if isinstance(outer, cst.BaseComp) and any(
            isinstance(n, cst.Name) and n.value == node.value for n in walk(outer.for_in.target)
        ):
            return True
        if isinstance(outer, (cst.AssignTarget, cst.Param)) or (isinstance(outer, cst.Arg) and outer.keyword is node):
            return True
        if isinstance(outer, cst.Attribute) and outer.attr is node:
            return True
    return False
