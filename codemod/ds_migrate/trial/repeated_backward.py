"""Backward passes whose gradients PyTorchTrial did not average, as another one came before through the same forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted, dotted_names, targets, walk, without_index
from ds_migrate.syntax.shared_forwards import BackwardPass, SharedForwards
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Backward, Trial, Wrap


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
        runs = _ModelsRun(trial, file)
        for later in SharedForwards(file, function, passes, runs, runs.once).unaveraged():
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
        self._containers = {name for model in trial.models for wrap in model.wraps for name in _containers(wrap)}
        self._methods = {f"self.{function.name.value}": (part.file, function) for part, function in trial.methods()}
        self._file = file

    def __call__(self, call: cst.Call) -> frozenset[object]:
        return self._run(self._file, call, frozenset())

    def once(self, call: cst.Call) -> bool:
        """Return whether a call is one of a wrapped model."""
        return self._model(self._file, call.func) is not None

    def _run(self, file: SourceFile, call: cst.Call, above: frozenset[str]) -> frozenset[object]:
        model = self._model(file, call.func)
        if model is not None:
            return frozenset([model])
        name = dotted(call.func)
        if name in self._methods and name not in above:
            own, method = self._methods[name]
            inner = own.nodes(cst.Call, below=method)
            return frozenset().union(*(self._run(own, each, above | {name}) for each in inner))
        if isinstance(file.parent(call), cst.Expr):
            return frozenset()  # its value is not used
        given = (self._model(file, arg.value) for arg in call.args)
        return frozenset(model for model in given if model is not None)

    def _model(self, file: SourceFile, node: cst.BaseExpression) -> object | None:
        """Return the model that an expression is, or where it is kept: ``self.nets["d"]``, or ``self.nets`` for any."""
        text = code(node)
        if text in self._models:
            return self._models[text]
        if isinstance(node, cst.Name):
            function = file.function(node)
            loops = file.nodes(cst.For, cst.CompFor, below=function) if function is not None else ()
            over = (loop.iter for loop in loops if any(dotted(part) == text for part in walk(loop.target)))
            return next((name for each in over for name in dotted_names(each) if name in self._containers), None)
        container = dotted(without_index(node))
        if container not in self._containers:
            return None
        is_known = isinstance(node, cst.Subscript) and not dotted_names(node.slice[0])
        return text if is_known else container


def _containers(wrap: Wrap) -> Iterator[str]:
    """Yield what a wrapped model is put into: ``self.nets`` for ``self.nets[name] = context.wrap_model(net)``."""
    for node in wrap.file.ancestors(wrap.call):
        if isinstance(node, (cst.Assign, cst.AnnAssign)):
            holders = [without_index(target) for target in targets(node)]
        elif isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            holders = [without_index(node.func.value)]
        else:
            continue
        yield from (name for holder in holders if (name := dotted(holder)) is not None)
