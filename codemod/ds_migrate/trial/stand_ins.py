"""Stand-ins for the trial context: classes and objects with its methods, used to try a trial without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.syntax.nodes import dotted, last_name, targets
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial

_METHODS = frozenset({"wrap_model", "wrap_optimizer", "backward", "step_optimizer"})


def stand_in_classes(files: Iterable[SourceFile]) -> dict[str, cst.ClassDef]:
    """Return the classes with at least two of the context's methods, by name."""
    return {
        node.name.value: node
        for file in files
        for node in file.nodes(cst.ClassDef)
        if len(_METHODS & {s.name.value for s in node.body.body if isinstance(s, cst.FunctionDef)}) > 1
    }


def made_with_stand_in(trial: Trial) -> Iterator[tuple[SourceFile, cst.Call, str]]:
    """Yield where the trial is constructed with a stand-in: the file, the call, and the stand-in's name."""
    classes = stand_in_classes(trial.files)
    for file in trial.files:
        patched = {
            owner
            for node in file.nodes(cst.Assign)
            for target in targets(node)
            for owner, _, method in [(dotted(target) or "").rpartition(".")]
            if method in _METHODS
        }
        for call in file.nodes(cst.Call):
            if last_name(call.func) != trial.name:
                continue
            for arg in call.args:
                name = dotted(arg.value)
                scope = file.function(call) or file.module
                values = [arg.value, *(file.values_of({name}, scope) if name is not None else ())]
                made = {_class_of(value) for value in values} & classes.keys()
                if made or name in patched:
                    yield file, call, next(iter(made), name or "")
                    break


def _class_of(value: cst.BaseExpression) -> str:
    return last_name(value.func) if isinstance(value, cst.Call) else ""
