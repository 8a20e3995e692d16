"""Build the facts of a trial from its classes, in one pass over its uses of the context."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

import libcst as cst

from ds_migrate.project.trial_class import TrialClass
from ds_migrate.syntax.nodes import dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextNames, ContextUse
from ds_migrate.trial.helper_files import NO_HELPERS, HelperFiles
from ds_migrate.trial.model import Part, Trial
from ds_migrate.trial.parameter_ownership import models_of, optimizers_of
from ds_migrate.trial.steps import backwards_of, manual_calls, steps_of
from ds_migrate.trial.training_functions import functions_in_training
from ds_migrate.trial.wraps import wrap_of

# What a helper outside of the trial may do with the context that concerns engines.
_HELPER_USES = frozenset({"wrap_model", "wrap_optimizer", "step_optimizer", "backward"})


def class_node(file: SourceFile, name: str, line: int | None = None) -> cst.ClassDef | None:
    """Return the class of that name (the one nearest to ``line`` when a file has several)."""
    found = [n for n in file.nodes(cst.ClassDef) if n.name.value == name]
    if line is not None:
        found.sort(key=lambda n: abs(file.position(n.name)[0] - line))
    return found[0] if found else None


def build_trial(
    facts: TrialClass,
    files: Mapping[Path, SourceFile],
    context_names: Mapping[SourceFile, ContextNames],
    unused: Set[cst.CSTNode] = frozenset(),
    helper_files: HelperFiles = NO_HELPERS,
) -> Trial:
    """Model one trial. ``files`` are the parsed files of its family by path; ``unused`` classes and functions of them
    run in no trial. ``helper_files``: imported files that stay as they are."""
    parts = tuple(_parts(facts, files))
    inside = {part.node for part in parts}
    replaced = _replaced(parts)
    uses = tuple(
        use
        for known in context_names.values()
        for use in known.uses
        if (use.owner in inside or use.owner not in known.classes) and use.function not in replaced
    )
    dead = {use for use in uses if unused and not unused.isdisjoint(use.file.ancestors(use.node))}
    uses = tuple(use for use in uses if use not in dead)
    outside = [u for u in (*uses, *dead) if u.owner not in inside and u.call is not None and u.attr in _HELPER_USES]
    helpers = tuple(use for use in outside if use not in dead)
    own = [use for use in uses if use.owner in inside]
    left = tuple(use for use in outside if use in dead)
    trial = _with_wraps(Trial(facts, parts, uses, tuple(context_names), helpers, left), own)
    context_uses = {use.node for known in context_names.values() for use in known.uses}
    manual = list(manual_calls(trial, replaced, context_uses))
    trial = replace(trial, steps=tuple(steps_of(trial, own, manual)))
    trial = replace(trial, backwards=tuple(backwards_of(trial, own, manual)))
    trial = replace(trial, helper_files=helper_files)
    running = list(functions_in_training(trial))
    return replace(
        trial,
        training_functions=tuple(each for each in running if each[0] not in trial.helper_files),
        helper_functions=tuple(each for each in running if each[0] in trial.helper_files),
    )


def _parts(facts: TrialClass, files: Mapping[Path, SourceFile]) -> list[Part]:
    parts: list[Part] = []
    for path, name in (facts.key, *facts.bases):
        file = files[path]
        node = class_node(file, name, facts.facts.line if name == facts.facts.name else None)
        assert node is not None, f"{name} was found in {path} by ast"
        parts.append(Part(file, node))
    return parts


def _with_wraps(trial: Trial, own: list[ContextUse]) -> Trial:
    """Add what the trial's classes wrap."""
    wraps = {attr: [w for u in own if u.attr == attr and (w := wrap_of(u)) is not None] for attr in
             ("wrap_model", "wrap_optimizer", "wrap_lr_scheduler")}  # fmt: skip
    models = tuple(models_of(wraps["wrap_model"]))
    optimizers = tuple(optimizers_of(wraps["wrap_optimizer"], models, trial))
    return replace(trial, models=models, optimizers=optimizers, schedulers=tuple(wraps["wrap_lr_scheduler"]))


def _replaced(parts: tuple[Part, ...]) -> set[cst.FunctionDef]:
    """Return methods of base classes that a more derived class redefines without calling ``super()``."""
    replaced: set[cst.FunctionDef] = set()
    for index, part in enumerate(parts):
        for name, method in part.methods.items():
            later = [other.methods[name] for other in parts[index + 1 :] if name in other.methods]
            if later and not _calls_super(method, name, [other.node.name.value for other in parts]):
                replaced.update(later)
    return replaced


def _calls_super(method: cst.FunctionDef, name: str, classes: list[str]) -> bool:
    for node in walk(method):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == name:
            receiver = node.func.value
            if isinstance(receiver, cst.Call) and dotted(receiver.func) == "super":
                return True
            if last_name(receiver) in classes:
                return True
    return False
