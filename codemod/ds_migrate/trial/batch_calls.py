"""Calls of ``train_batch`` and ``evaluate_batch`` that the project makes itself: they pass a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted, last_name, parameters, targets, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.control_flow import runs_once
from ds_migrate.trial.model import Trial

BATCH_METHODS = ("train_batch", "evaluate_batch")


@dataclass(frozen=True, eq=False)
class BatchCall:
    """``to_base``: a method calls the one that it replaces. ``batch`` is the argument, None when it is hidden."""

    file: SourceFile
    call: cst.Call
    method: str
    batch: cst.Arg | None
    caller: cst.FunctionDef | None
    to_base: bool

    @property
    def runs_once(self) -> bool:
        """Return whether it only passes one call of the method on to the base's."""
        return self.to_base and self.caller is not None and runs_once(self.file, self.call, self.caller)


class BatchCalls:
    """The calls in the files of one trial's family that reach that trial."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.classes = {part.node: part for part in trial.parts}
        self.class_names = {part.node.name.value for part in trial.parts}

    def __iter__(self) -> Iterator[BatchCall]:
        for file in self.trial.files:
            for call in file.nodes(cst.Call):
                func = call.func
                if isinstance(func, cst.Attribute) and func.attr.value in BATCH_METHODS:
                    found = self._found(file, call, func)
                    if found is not None:
                        yield found

    def _found(self, file: SourceFile, call: cst.Call, func: cst.Attribute) -> BatchCall | None:
        method, caller = func.attr.value, file.function(call)
        owner = next((a for a in file.ancestors(call) if isinstance(a, cst.ClassDef)), None)
        replaced = owner in self.classes and caller is not None and caller.name.value == method
        receiver = func.value
        name = dotted(receiver) or ""
        position = 0
        if isinstance(receiver, cst.Call) and dotted(receiver.func) == "super":
            if owner not in self.classes:
                return None
        elif name.rpartition(".")[2] in self.class_names:  # Base.train_batch(self, batch, ...)
            position = 1
        elif name == "self":
            if owner not in self.classes:
                return None
            replaced = False
        elif self.is_trial(name, owner) or self._is_made(file, name, caller):
            replaced = False
        else:
            return None
        return BatchCall(file, call, method, argument(call, position, "batch"), caller, replaced)

    def is_trial(self, name: str, owner: cst.ClassDef | None) -> bool:
        """Return whether an object goes by the name of a trial, or is where a class keeps one that it was given."""
        return name.lower().endswith("trial") or name in self._kept.get(owner, ())

    def _is_made(self, file: SourceFile, name: str, caller: cst.FunctionDef | None) -> bool:
        """Return whether a name is given an object of the trial's class, or a parameter is annotated with it."""
        scope = caller or file.module
        values = [*file.values_of({name}, scope), *file.values_of({name}, file.module)]
        made = {last_name(v.func) if isinstance(v, cst.Call) else "" for v in values}
        param = next((p for p in parameters(caller) if p.name.value == name), None) if caller is not None else None
        if param is not None and param.annotation is not None:
            made.add(code(param.annotation.annotation).strip("\"'").rpartition(".")[2])
        return bool(made & self.class_names)

    def unknown(self) -> Iterator[tuple[SourceFile, cst.Call]]:
        """Yield calls outside of classes that build on the trial's, of what may be the trial: a plain name, where no
        other class of these files has such a method."""
        known = {found.call for found in self}
        others = {
            method.name.value
            for file in self.trial.files
            for node in file.nodes(cst.ClassDef)
            if node not in self.classes and node.name.value not in self.class_names
            for method in node.body.body
            if isinstance(method, cst.FunctionDef)
        }
        for file in self.trial.files:
            for call in file.nodes(cst.Call):
                func = call.func
                if not isinstance(func, cst.Attribute) or func.attr.value not in BATCH_METHODS or call in known:
                    continue
                inside = any(ancestor in self.classes for ancestor in file.ancestors(call))
                if isinstance(func.value, cst.Name) and func.attr.value not in others and not inside:
                    yield file, call

    @cached_property
    def _kept(self) -> dict[cst.ClassDef | None, set[str]]:
        """Map each class that is constructed with a trial (``Callback(self)``) to the attributes that keep it."""
        kept: dict[cst.ClassDef | None, set[str]] = {}
        classes = {node.name.value: node for file in self.trial.files for node in file.nodes(cst.ClassDef)}
        for _, function in self.trial.methods():
            for call in walk(function):
                made = classes.get(dotted(call.func) or "") if isinstance(call, cst.Call) else None
                if made is None or not isinstance(call, cst.Call):
                    continue
                init = next(
                    (s for s in made.body.body if isinstance(s, cst.FunctionDef) and s.name.value == "__init__"), None
                )
                for index, param in enumerate(parameters(init)[1:] if init is not None else ()):
                    given = argument(call, index, param.name.value)
                    if given is not None and dotted(given.value) == "self" and init is not None:
                        kept.setdefault(made, set()).update(_set_to(init, param.name.value))
        return kept


def _set_to(init: cst.FunctionDef, name: str) -> Iterator[str]:
    """Yield the attributes of self that are set to a parameter."""
    for node in walk(init):
        if isinstance(node, cst.Assign) and dotted(node.value) == name:
            yield from (text for target in targets(node) if (text := dotted(target)) is not None)
