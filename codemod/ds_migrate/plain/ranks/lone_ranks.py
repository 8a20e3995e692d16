"""Functions that a rank may run alone: on rank 0, in a thread, or for samples that it draws.

None may wait for others in these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.interruptions import interrupting_functions
from ds_migrate.plain.dataflow.calls.partial_calls import PARTIAL
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.rank_guards import asks_for_rank, is_guarded
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_ONE_RANK = re.compile(r"main|master|zero|rank_?0", re.IGNORECASE)
_CHOICES = (cst.Equal, cst.NotEqual, cst.In, cst.NotIn)
_GIVE_ITEMS = frozenset({"__getitem__", "__getitems__"})
_MAKE_BATCHES = frozenset({"collate_fn", "worker_init_fn"})


class LoneRanks:
    """The places of a program that one rank may come to while the others do not."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def are_never_at(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether no rank can be at a node alone, as far as conditions on rank 0, threads and datasets show."""
        is_above = self._call_above(node, file) is not None or self._thread_above(node, file) is not None
        return not is_guarded(node, file) and not is_above and not self._makes_items(node, file)

    def note(self, node: cst.CSTNode, file: SourceFile, cause: str) -> Note | None:
        """Return what is for review where several ranks may be at a node, and one alone too.

        Args:
            cause: what differs by rank there.
        """
        if is_guarded(node, file) or self._makes_items(node, file):
            return None
        found, thread = self._call_above(node, file), self._thread_above(node, file)
        if found is not None and not self._is_of_one(node, file, set()):
            caller, call = found
            line = caller.reported_position(call)[0]
            reason = (
                f"{expression_text(call.func)}() in line {line} of {caller.path.name} is under a condition on the rank"
            )
        elif found is None and thread is not None:
            reason = f"{thread.name.value}() runs at another moment on each"
        else:
            return None
        message = f"ranks may part here, by {cause}, and cannot agree: one may be here alone, as {reason}"
        advice = "use what is the same on all ranks here, or call it on all of them"
        return Note(Code.PLAIN_AGREEMENT, file, node, message, advice)

    def _call_above(self, node: cst.CSTNode, file: SourceFile) -> tuple[SourceFile, cst.Call] | None:
        """Return a call on rank 0 that leads to the function around a node, also through others."""
        calls = (place for function in self._functions_above(node, file) for place in self._calls(function))
        return next(((caller, call) for caller, call in calls if _is_on_rank_0(call, caller)), None)

    def _thread_above(self, node: cst.CSTNode, file: SourceFile) -> cst.FunctionDef | None:
        """Return the function that a thread, a timer or a signal runs, and that leads to a node; None without one."""
        apart = interrupting_functions(self._flow)
        return next((function for function in self._functions_above(node, file) if id(function) in apart), None)

    def _makes_items(self, node: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a node may run for each item that a rank draws from a dataset, maybe in another process."""
        return any(
            function.name.value in _GIVE_ITEMS or id(function) in self._batch_makers or self._streams(function)
            for function in self._functions_above(node, file)
        )

    def _streams(self, function: cst.FunctionDef) -> bool:
        """Return whether a function is the ``__iter__()`` of an ``IterableDataset``."""
        found = self._flow.node_of(id(function)) if function.name.value == "__iter__" else None
        owner = found[0].class_around(function) if found is not None else None
        return owner is not None and any(
            name.endswith(".IterableDataset") for name in self._flow.classes.external_bases(id(owner))
        )

    @cached_property
    def _batch_makers(self) -> set[int]:
        """Return the functions that loaders call for their batches and processes, by identity."""
        return {
            function
            for file, call in self._flow.nodes(cst.Call)
            for arg in call.args
            if arg.keyword is not None and arg.keyword.value in _MAKE_BATCHES
            for function in self._called_by(arg.value, file)
        }

    def _called_by(self, given: cst.BaseExpression, file: SourceFile) -> Iterator[int]:
        """Yield the functions that run where an expression is called: also of an object, a lambda or a partial."""
        if isinstance(given, cst.Lambda):
            for call in file.nodes(cst.Call, below=given):
                yield from (v.key for v in of_kind(self._flow.values(call.func, file), Kind.FUNCTION, Kind.METHOD))
        for value in self._flow.values(given, file):
            if value.kind in (Kind.FUNCTION, Kind.METHOD):
                yield value.key
            elif value.kind is Kind.INSTANCE:
                method = self._flow.classes.method(value.key, "__call__")
                if method is not None:
                    yield method.key
            elif value.kind is Kind.OBJECT and value.name == PARTIAL:
                made = self._flow.node(value)
                if isinstance(made, cst.Call) and made.args:
                    yield from self._called_by(made.args[0].value, self._flow.file(value))

    def _functions_above(self, node: cst.CSTNode, file: SourceFile) -> Iterator[cst.FunctionDef]:
        """Yield the function around a node, and those that call it, also through others."""
        function = file.function(node)
        found = [function] if function is not None else []
        for function in found:  # grows
            yield function
            callers = (caller.function(call) for caller, call in self._calls(function))
            found += [caller for caller in dict.fromkeys(callers) if caller is not None and caller not in found]

    def _calls(self, function: cst.FunctionDef) -> Sequence[tuple[SourceFile, cst.Call]]:
        """Return the calls of a function; of a method also of those that it replaces, and of objects not followed."""
        name, takes = function.name.value, function.params.params[:1]
        known = [call for method in (function, *self._replaced(function)) for call in self._flow.callers.of(method)]
        if name.startswith("__") or not takes or takes[0].name.value != "self":
            return known
        unknown = [
            (file, call)
            for file, node in self._flow.attributes(name)
            if isinstance(call := file.parent(node), cst.Call) and call.func is node
            and not of_kind(self._flow.values(node.value, file), Kind.MODULE, Kind.INSTANCE, Kind.CLASS)
        ]  # fmt: skip
        return [*known, *unknown]

    def _replaced(self, function: cst.FunctionDef) -> Iterator[cst.FunctionDef]:
        """Yield the methods of what its class is built on that a method replaces, whose calls may run it."""
        found = self._flow.node_of(id(function))
        owner = found[0].class_around(function) if found is not None else None
        for base in self._flow.classes.bases(id(owner)) if owner is not None else ():
            method = self._flow.classes.method(base, function.name.value)
            node = self._flow.node(method) if method is not None else function
            if isinstance(node, cst.FunctionDef) and node is not function:
                yield node

    def _is_of_one(self, node: cst.CSTNode, file: SourceFile, seen: set[int]) -> bool:
        """Return whether every call that leads to the function around a node is on rank 0."""
        function = file.function(node)
        if function is None or id(function) in seen:
            return False
        calls = self._calls(function)
        return bool(calls) and all(
            _is_on_rank_0(call, caller) or self._is_of_one(call, caller, seen | {id(function)})
            for caller, call in calls
        )  # fmt: skip


def _is_on_rank_0(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a condition around a node lets one rank alone come to it, or all but that."""
    return any(
        isinstance(outer, cst.If) and outer is not node and parts_rank_0(outer.test) for outer in file.ancestors(node)
    )


def parts_rank_0(test: cst.BaseExpression) -> bool:
    """Return whether a condition on the rank parts rank 0 from others: ``rank != -1`` holds on each of several."""
    if not asks_for_rank(test):
        return False
    comparisons = [part for node in walk(test) if isinstance(node, cst.Comparison) for part in node.comparisons]
    chosen = [part.comparator for part in comparisons if isinstance(part.operator, _CHOICES)]
    if any(isinstance(n, cst.Integer) and n.value == "0" for other in chosen for n in walk(other)):
        return True
    names = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute, cst.Call))]
    return not comparisons and any(_ONE_RANK.search(dotted(n) or "") for n in names)
