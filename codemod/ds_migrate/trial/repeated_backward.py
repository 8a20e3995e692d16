"""Backward passes whose gradients PyTorchTrial did not average, as another one came before through the same forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument, dotted
from ds_migrate.syntax.shared_forwards import BackwardPass, SharedForwards
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Backward, Trial


def unaveraged_passes(trial: Trial, backwards: Iterable[Backward]) -> Iterator[tuple[SourceFile, cst.Call]]:
    """Yield the backward calls that DistributedDataParallel did not average gradients in, with their files."""
    by_function: dict[cst.FunctionDef, list[Backward]] = {}
    for backward in backwards:
        function = backward.use.file.function(backward.call)
        if function is not None:
            by_function.setdefault(function, []).append(backward)
    for function, found in by_function.items():
        file = found[0].use.file
        passes = sorted(map(_pass, found), key=lambda each: file.position(each.call))
        for later in SharedForwards(file, function, passes, _ModelsRun(trial, file)).unaveraged():
            yield file, later.call


def _pass(backward: Backward) -> BackwardPass:
    call, first = backward.call, 0 if backward.is_manual else 1  # tensor.backward has no loss argument
    retains = argument(call, first + 1, "retain_graph")
    if backward.is_manual:
        loss = call.func.value if isinstance(call.func, cst.Attribute) else None
    else:
        given = argument(call, 0, "loss")
        loss = given.value if given is not None else None
    return BackwardPass(call, loss, retains.value if retains is not None else None)


class _ModelsRun:
    """The wrapped models of a trial that a call runs: itself, in a method of the trial, or by a helper it gives one."""

    def __init__(self, trial: Trial, file: SourceFile) -> None:
        self._models = {name: model for model in trial.models for name in model.names}
        self._methods = {f"self.{function.name.value}": (part.file, function) for part, function in trial.methods()}
        self._file = file

    def __call__(self, call: cst.Call) -> frozenset[object]:
        return self._run(self._file, call, frozenset())

    def _run(self, file: SourceFile, call: cst.Call, above: frozenset[str]) -> frozenset[object]:
        name = dotted(call.func) or ""
        if name in self._models:
            return frozenset([self._models[name]])
        if name in self._methods and name not in above:
            own, method = self._methods[name]
            inner = own.nodes(cst.Call, below=method)
            return frozenset().union(*(self._run(own, each, above | {name}) for each in inner))
        if isinstance(file.parent(call), cst.Expr):
            return frozenset()  # its value is not used
        given = (dotted(arg.value) or "" for arg in call.args)
        return frozenset(self._models[name] for name in given if name in self._models)
