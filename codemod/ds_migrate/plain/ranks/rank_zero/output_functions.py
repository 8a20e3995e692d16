"""Functions of a program that do nothing but output."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.torch_names import NO_GRAD
from ds_migrate.plain.ranks.files.opened_files import opens_to_write
from ds_migrate.plain.ranks.rank_guards import asks_for_rank
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.plain.ranks.rank_zero.skippable_expressions import is_local_target, is_made_in, local_names
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_LOGS = frozenset({"debug", "info", "warning", "warn", "error", "exception", "critical", "log"})
OnlyOutputs = Callable[[cst.Call, SourceFile], bool]


class FunctionReader:
    """Reads the statements of a function, and whether they output, and do nothing else that is seen outside of it.

    Args:
        only_outputs: returns whether another call is of functions of the program that do nothing else either.
    """

    def __init__(
        self, flow: Flow, calls: OutputCalls, only_outputs: OnlyOutputs, function: cst.FunctionDef, file: SourceFile
    ) -> None:
        self._flow = flow
        self._calls = calls
        self._only_outputs = only_outputs
        self._function = function
        self._file = file
        self._bound = local_names(function, file)
        self._open: set[str] = set()
        self.has_output = False

    def is_left_out(self, node: cst.CSTNode) -> bool:
        """Return whether nothing but output is missed when a statement does not run."""
        skippable = self._calls.skippable
        if isinstance(node, (cst.SimpleStatementLine, cst.IndentedBlock)):
            return all(self.is_left_out(inner) for inner in node.body)
        if isinstance(node, (cst.Pass, cst.Break, cst.Continue, cst.Global, cst.Import, cst.ImportFrom)):
            return True
        if isinstance(node, cst.Return):
            return node.value is None or dotted(node.value) == "None"
        if isinstance(node, cst.Assert):
            return skippable.is_skippable(node.test, self._file)
        if isinstance(node, (cst.Assign, cst.AugAssign, cst.AnnAssign)):
            return all(map(self._is_own, targets(node))) and (node.value is None or self._is_quiet(node.value))
        if isinstance(node, cst.Expr):
            return self._is_left_out_expression(node.value)
        if isinstance(node, cst.If) and asks_for_rank(node.test):  # a guard of the program
            return False
        if isinstance(node, (cst.If, cst.While)):
            rest = node.orelse is None or self.is_left_out(node.orelse)
            return skippable.is_skippable(node.test, self._file) and self.is_left_out(node.body) and rest
        if isinstance(node, cst.For):
            again = skippable.can_be_iterated_again(node.iter, self._file) and node.orelse is None
            return again and skippable.is_skippable(node.iter, self._file) and self.is_left_out(node.body)
        if isinstance(node, cst.Else):
            return self.is_left_out(node.body)
        if isinstance(node, cst.With):
            return all(self._is_quiet_context(item.item) for item in node.items) and self.is_left_out(node.body)
        return False

    def _is_own(self, target: cst.BaseExpression) -> bool:
        if is_local_target(target, self._file, self._bound):
            return True
        is_name = isinstance(target, cst.Name)
        return is_name and self._is_global_of_one(dotted(target) or "")

    def _is_global_of_one(self, name: str) -> bool:
        """Return whether a global name is read by the function alone, beside what sets it where the module begins."""
        inside = {id(node) for node in walk(self._function)}
        for other, node in self._flow.nodes(cst.Name):
            if node.value != name or id(node) in inside:
                continue
            if other is not self._file or other.function(node) is not None:
                if other is self._file or not _is_own_name(node, other):
                    return False
            elif not isinstance(other.statement(node), cst.SimpleStatementLine):
                return False
        return True

    def _is_quiet(self, value: cst.BaseExpression) -> bool:
        """Return whether a value may go unmade: it is computed, a figure, or a file that is opened to be written."""
        if self._calls.skippable.is_skippable(value, self._file):
            return True
        if not isinstance(value, cst.Call) or not self._calls.skippable.arguments_are_skippable(value, self._file):
            return False
        return self._opens_to_write(value) or self._makes_output(value)

    def _opens_to_write(self, call: cst.Call) -> bool:
        is_write = self._calls.opens_for_all(call, self._file)
        self.has_output |= is_write
        return is_write

    def _is_quiet_context(self, item: cst.BaseExpression) -> bool:
        return isinstance(item, cst.Call) and (
            self._flow.is_call_of(item, self._file, NO_GRAD)
            or (self._calls.skippable.arguments_are_skippable(item, self._file) and self._opens_to_write(item))
        )

    def _is_left_out_expression(self, value: cst.BaseExpression) -> bool:
        if isinstance(value, (cst.SimpleString, cst.ConcatenatedString)):
            return True
        if not isinstance(value, cst.Call) or self._calls.is_artifact_of_rank(value, self._file):
            return False
        if self._calls.is_output_call(value, self._file) or self._only_outputs(value, self._file):
            self.has_output = True
            return True
        quiet = self._calls.skippable.arguments_are_skippable(value, self._file)
        return quiet and (
            self._calls.is_plot(value, self._file) or self._is_log(value) or self._is_of_own_object(value)
        )

    def _is_log(self, call: cst.Call) -> bool:
        owner = call.func.value if isinstance(call.func, cst.Attribute) else None
        is_logger = owner is not None and ("log" in (dotted(owner) or "").lower())
        return is_logger and isinstance(call.func, cst.Attribute) and call.func.attr.value in _LOGS

    def _is_of_own_object(self, call: cst.Call) -> bool:
        """Return whether a call is of a method of what the function has made for its output."""
        return isinstance(call.func, cst.Attribute) and self._is_own_object(call.func.value)

    def _is_own_object(self, owner: cst.BaseExpression) -> bool:
        """Return whether the function has made a list, a figure or a file that it writes."""
        while isinstance(owner, (cst.Attribute, cst.Subscript)):
            owner = owner.value
        if isinstance(owner, cst.Call):  # csv.writer(f).writerow(...)
            return dotted(owner.func) == "csv.writer" and self._writes_to_own(owner)
        name = dotted(owner)
        if name is None:
            return False
        if name in self._open:  # it is made of itself
            return True
        if is_made_in(owner, self._function, self._file):
            return True
        made = [
            item.item for block in self._file.nodes(cst.With, below=self._function) for item in block.items
            if item.asname is not None and dotted(item.asname.name) == name
        ]  # fmt: skip
        made += [
            line.value for line in self._file.nodes(cst.Assign, below=self._function)
            if any(isinstance(n, cst.Name) and n.value == name for target in targets(line) for n in walk(target))
        ]  # fmt: skip
        self._open.add(name)
        is_own = bool(made) and all(isinstance(one, cst.Call) and self._makes_output(one) for one in made)
        self._open.remove(name)
        return is_own

    def _writes_to_own(self, writer: cst.Call) -> bool:
        """Return whether a writer writes to a file that the function has opened."""
        return bool(writer.args) and self._is_of_own_object(
            cst.Call(cst.Attribute(writer.args[0].value, cst.Name("write")))
        )

    def _makes_output(self, call: cst.Call) -> bool:
        """Return whether a call makes something that is only there for output."""
        return (
            opens_to_write(call, self._file, self._flow)
            or (dotted(call.func) in ("csv.writer", "csv.DictWriter") and self._writes_to_own(call))
            or self._calls.is_plot(call, self._file)
            or self._is_of_own_object(call)
        )


def _is_own_name(node: cst.Name, file: SourceFile) -> bool:
    """Return whether a name of another file is no variable of this one: an import of it would share it."""
    return not any(isinstance(outer, (cst.ImportAlias, cst.Attribute)) for outer in file.ancestors(node))
