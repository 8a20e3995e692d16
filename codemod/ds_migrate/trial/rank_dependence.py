"""Settings of an optimizer that may differ by rank, such as a learning rate computed from the batch or from its loss.

A parameter that every rank steps takes each rank's own setting; a shard takes that of the rank that owns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import libcst as cst

from ds_migrate.syntax.nodes import children, code, dotted, parameters, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_Function: TypeAlias = tuple[SourceFile, cst.FunctionDef]
_Key: TypeAlias = tuple[int, str]  # identity of the function (0: anywhere), name

# What each hook is given that is the same on all ranks.
_SHARED_ARGUMENTS = frozenset({"self", "epoch_idx", "batch_idx", "checkpoint", "state"})
_HOOKS_WITH_DATA = {"train_batch": "batch", "evaluate_batch": "batch", "evaluate_full_dataset": "data_loader"}
_DIFFERENT = ("random.", "numpy.random.", "torch.rand", "time.", "torch.distributed.get_rank")
_RANKS = frozenset({"get_rank", "get_local_rank", "local_rank", "cross_rank"})
_RANK_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
_SETTINGS = frozenset({"lr", "momentum", "weight_decay", "betas", "eps"})
_LEAVES = (cst.Return, cst.Continue, cst.Break)
# What passes a value on.
_CARRIERS = (
    cst.Assign, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr, cst.WithItem, cst.Return, cst.Call
)  # fmt: skip


def setting_by_rank(trial: Trial) -> tuple[SourceFile, cst.CSTNode, str] | None:
    """Return what may set another learning rate (or other setting) on each rank: its file, the node and the reason."""
    files = tuple(dict.fromkeys([*(part.file for part in trial.parts), *trial.files]))
    outside = dict.fromkeys(file for file, _ in trial.helper_functions)
    helpers = {function for _, function in trial.helper_functions}
    writes = [
        write
        for write in _writes(trial, (*files, *outside))
        if write[0] not in outside or write[0].function(write[1]) in helpers
    ]
    if not writes:
        return None
    flow = _RankFlow(trial, (*files, *outside))
    for file, node, values, reason in writes:
        if any(flow.differs(file, value) for value in values) or flow.runs_by_rank(file, node):
            return file, node, reason
    return None


def _writes(
    trial: Trial, files: tuple[SourceFile, ...]
) -> Iterator[tuple[SourceFile, cst.CSTNode, Sequence[cst.CSTNode], str]]:
    """Yield what sets an optimizer's settings: its file, the node, the values, and the reason if these differ."""
    schedules = {wrap.target for wrap in trial.schedulers}
    given = [arg for o in trial.optimizers for e in o.built_by if isinstance(e, cst.Call) for arg in e.args]
    for optimizer in trial.optimizers:
        for wrap in optimizer.wraps:
            yield from (
                (wrap.file, wrap.call, [arg.value], f"{arg.keyword.value} of the optimizer may differ by rank")
                for arg in given
                if arg.keyword is not None and arg.keyword.value != "params" and b"rank" in wrap.file.data.lower()
            )
    for file in files:
        for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign):
            for target in targets(node):
                key = _setting(file, target)
                if key:
                    yield file, node, [node.value], f"{key} of the optimizer may differ by rank"
        for call in file.nodes(cst.Call):
            if not isinstance(call.func, cst.Attribute):
                continue
            owner, method = dotted(call.func.value) or code(call.func.value), call.func.attr.value
            values = [arg.value for arg in call.args]
            if method == "update" and _is_group(file, call.func.value):
                yield file, call, values, "the optimizer's settings may differ by rank"
            elif method == "step" and (owner in schedules or any(part in owner.lower() for part in ("sched", "plat"))):
                yield file, call, values, "a learning rate schedule may step by what differs by rank"


def _setting(file: SourceFile, target: cst.BaseExpression) -> str:
    """Return the key of ``group["lr"]`` where the group may be an optimizer's, "" for anything else."""
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return ""
    item = target.slice[0].slice
    key = _text(item.value) if isinstance(item, cst.Index) else ""
    return key if _is_group(file, target.value) or (key in _SETTINGS and _is_given(file, target.value)) else ""


def _is_given(file: SourceFile, node: cst.BaseExpression) -> bool:
    """Return whether the expression is a parameter of its function, which may be given a group."""
    function = file.function(node)
    return function is not None and dotted(node) in {p.name.value for p in parameters(function)}


def _reads(file: SourceFile, function: cst.FunctionDef) -> tuple[set[int], set[str]]:
    """Return the functions whose names a function may read, by id, and all words in it."""
    around = (outer for outer in file.ancestors(function) if isinstance(outer, cst.FunctionDef))
    inside = file.nodes(cst.FunctionDef, below=function)
    return {id(function), *map(id, around), *map(id, inside)}, {
        name.value for name in file.nodes(cst.Name, below=function)
    }


def _text(key: cst.BaseExpression) -> str:
    return str(key.evaluated_value) if isinstance(key, cst.SimpleString) else code(key)


def _is_group(file: SourceFile, node: cst.BaseExpression) -> bool:
    """Return whether the expression is an item of ``param_groups``, or a name that may refer to one."""
    if isinstance(node, cst.Subscript) and code(node.value).endswith("param_groups"):
        return True
    function = file.function(node)
    if not isinstance(node, cst.Name) or function is None:
        return False
    for loop in file.nodes(cst.For, below=function):
        names = {name.value for name in file.nodes(cst.Name, below=loop.target)}
        if node.value in names and "group" in code(loop.iter):
            return True
    return any("param_groups" in code(value) for value in file.values_of({node.value}, function))


class _RankFlow:
    """Names and attributes whose value may differ by rank, followed through assignments, calls and conditions."""

    def __init__(self, trial: Trial, files: tuple[SourceFile, ...]) -> None:
        self._shared = {"self", "self.context", *(n for o in trial.optimizers for n in o.names)}
        self._functions: list[_Function] = [(f, node) for f in files for node in f.nodes(cst.FunctionDef)]
        self._named: dict[str, list[_Function]] = {}
        for file, function in self._functions:
            self._named.setdefault(function.name.value, []).append((file, function))
        self._leaving: dict[cst.FunctionDef, list[cst.If]] = {}
        self._different: set[_Key] = set()
        training = {function for _, function in trial.training_functions}
        for _, function in self._functions:
            self._begin(function, function in training)
        for file, function in self._functions:
            self._follow(file, function)
        read = [(file, function, *_reads(file, function)) for file, function in self._functions]
        new = self._different.copy()
        while new:
            before = self._different.copy()
            scopes = {scope for scope, _ in new}
            words = {name.strip(".()") for scope, name in new if scope == 0}
            for file, function, own_scopes, own_words in read:
                if not (own_scopes.isdisjoint(scopes) and own_words.isdisjoint(words)):
                    self._follow(file, function)
            new = self._different - before

    def differs(self, file: SourceFile, node: cst.CSTNode) -> bool:
        """Return whether the value of the expression may differ by rank."""
        if isinstance(node, cst.Name):
            if (file.names.qualified(node) or "").startswith(_DIFFERENT) or (0, node.value) in self._different:
                return True
            functions = (outer for outer in file.ancestors(node) if type(outer) is cst.FunctionDef)
            return any((id(outer), node.value) in self._different for outer in functions)
        if isinstance(node, cst.Attribute):
            name = node.attr.value
            qualified = file.names.qualified(node) or ""
            if name in _RANKS or qualified.startswith(_DIFFERENT) or (0, f".{name}") in self._different:
                return True
            if name == "rank" and "dist" in code(node.value):
                return True
            return self.differs(file, node.value)
        if isinstance(node, cst.SimpleString):
            return node.evaluated_value in _RANK_VARIABLES
        if isinstance(node, cst.Call):
            called = code(node.func).rpartition(".")[2]
            if called == "next" or (0, f"{called}()") in self._different:
                return True
        if isinstance(node, cst.Arg):
            return self.differs(file, node.value)
        return any(self.differs(file, child) for child in children(node))

    def runs_by_rank(self, file: SourceFile, node: cst.CSTNode) -> bool:
        """Return whether only some ranks may run the node."""
        function = file.function(node)
        if function is None:
            return False
        if (id(function), "") in self._different:
            return True
        for outer in file.ancestors(node):
            if outer is function:
                break
            if isinstance(outer, (cst.If, cst.While)) and self.differs(file, outer.test):
                return True
            if isinstance(outer, cst.For) and self.differs(file, outer.iter):
                return True
        line = file.position(node)
        return any(
            file.position(test) < line and self.differs(file, test.test) for test in self._leaving_tests(file, function)
        )

    def _leaving_tests(self, file: SourceFile, function: cst.FunctionDef) -> list[cst.If]:
        """Return the conditions of a function that return, continue or break."""
        if function not in self._leaving:
            tests = file.nodes(cst.If, below=function)
            self._leaving[function] = [test for test in tests if file.nodes(*_LEAVES, below=test)]
        return self._leaving[function]

    def _begin(self, function: cst.FunctionDef, is_training: bool) -> None:
        """Mark what the loop gives a hook that is of one rank."""
        name, given = function.name.value, parameters(function)
        if name in _HOOKS_WITH_DATA and is_training and len(given) > 1:
            self._mark(function, given[1].name.value)
        elif is_training and name.startswith("on_"):
            for parameter in given:
                is_shared = name == "on_validation_end" or parameter.name.value in _SHARED_ARGUMENTS
                if not is_shared:
                    self._mark(function, parameter.name.value)

    def _follow(self, file: SourceFile, function: cst.FunctionDef) -> None:
        for node in file.nodes(*_CARRIERS, below=function):
            if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)):
                if node.value is not None and (self.differs(file, node.value) or self.runs_by_rank(file, node)):
                    for target in targets(node):
                        self._mark_target(file, function, target)
            elif isinstance(node, (cst.For, cst.CompFor)):
                if self.differs(file, node.iter):
                    self._mark_target(file, function, node.target)
            elif isinstance(node, cst.NamedExpr):
                if self.differs(file, node.value):
                    self._mark_target(file, function, node.target)
            elif isinstance(node, cst.WithItem):
                if node.asname is not None and self.differs(file, node.item):
                    self._mark_target(file, function, node.asname.name)
            elif isinstance(node, cst.Return):
                if node.value is not None and (self.differs(file, node.value) or self.runs_by_rank(file, node)):
                    self._different.add((0, f"{function.name.value}()"))
            elif isinstance(node, cst.Call):
                self._follow_call(file, function, node)

    def _follow_call(self, file: SourceFile, function: cst.FunctionDef, call: cst.Call) -> None:
        differing = [arg for arg in call.args if self.differs(file, arg.value)]
        called = code(call.func).rpartition(".")[2]
        by_rank = self.runs_by_rank(file, call)
        for _, callee in self._named.get(called, []) if differing or by_rank else ():
            if by_rank:
                self._mark(callee, "")
            names = [p.name.value for p in parameters(callee)]
            names = names[1:] if names[:1] in (["self"], ["cls"]) else names
            for arg in differing:
                index = call.args.index(arg)
                for name in (
                    names if arg.star else [arg.keyword.value] if arg.keyword is not None else names[index:][:1]
                ):
                    self._mark(callee, name)
        if differing and isinstance(call.func, cst.Attribute):  # losses.append(loss), meter.update(loss)
            self._mark_target(file, function, call.func.value)
        if called == "setattr" and len(call.args) == 3 and (differing or by_rank):
            self._different.add((0, f".{_text(call.args[1].value)}"))

    def _mark_target(self, file: SourceFile, function: cst.FunctionDef, target: cst.BaseExpression) -> None:
        """Mark what an assignment, or a call that may keep an argument, gives a value that differs by rank."""
        while isinstance(target, cst.Subscript):
            if _is_group(file, target):
                return  # the writes themselves are what is looked for
            target = target.value
        if isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._mark_target(file, function, element.value)
            return
        name = dotted(target)
        if name is None or name in self._shared or name.startswith("self.context."):
            return
        if name.partition(".")[0] in file.names.bindings:
            return
        if isinstance(target, cst.Attribute):
            self._different.add((0, f".{target.attr.value}"))
            return
        globals_ = {item.name.value for node in file.nodes(cst.Global, below=function) for item in node.names}
        if name in globals_:
            self._different.add((0, name))
        else:
            self._mark(function, name)

    def _mark(self, function: cst.FunctionDef, name: str) -> None:
        self._different.add((id(function), name))
