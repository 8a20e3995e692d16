"""The facts of one trial that every decision and rule reads. Nothing here changes once the builder has made it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ds_migrate.project.trial_class import TrialClass
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.helper_files import NO_HELPERS, HelperFiles


@dataclass(frozen=True, eq=False)
class Part:
    """One class of the trial: the trial itself, or a base class of it in the project."""

    file: SourceFile
    node: cst.ClassDef

    @property
    def methods(self) -> dict[str, cst.FunctionDef]:
        return {s.name.value: s for s in self.node.body.body if isinstance(s, cst.FunctionDef)}


@dataclass(frozen=True, eq=False)
class Wrap:
    """One ``wrap_model``, ``wrap_optimizer`` or ``wrap_lr_scheduler`` call.

    ``target`` is the expression that holds the result (``self.model``, ``opt``, ``self.nets["d"]``), None when it has
    no name. ``is_conditional`` and ``is_repeated`` describe what stands around it inside its function.
    """

    use: ContextUse
    call: cst.Call
    argument: cst.BaseExpression
    target: str | None
    is_discarded: bool = False
    is_conditional: bool = False
    is_repeated: bool = False

    @property
    def file(self) -> SourceFile:
        return self.use.file


@dataclass(frozen=True, eq=False)
class Model:
    """A wrapped model: the expression that holds it, all its names, and the wraps that may set it (one per branch)."""

    target: str
    wraps: tuple[Wrap, ...]
    names: frozenset[str] = frozenset()
    is_optional: bool = False  # on some paths it does not exist


@dataclass(frozen=True, eq=False)
class Optimizer:
    """A wrapped optimizer, the expressions that build it, and the models whose parameters it owns."""

    target: str
    wraps: tuple[Wrap, ...]
    names: frozenset[str] = frozenset()
    built_by: tuple[cst.BaseExpression, ...] = ()
    models: tuple[Model, ...] = ()
    covers_model: bool = False  # it owns every trainable parameter of its one model, provably


@dataclass(frozen=True, eq=False)
class Step:
    """One ``step_optimizer`` call and the optimizer it steps (None when that cannot be determined).

    ``is_manual``: it is ``optimizer.step()`` (or ``scaler.step(optimizer)``), past the context and its accumulation.
    """

    use: ContextUse
    call: cst.Call
    optimizer: cst.BaseExpression
    owner: Optimizer | None = None
    clip: cst.BaseExpression | None = None
    is_manual: bool = False


@dataclass(frozen=True, eq=False)
class Backward:
    """One ``backward`` call and the step that follows it. ``is_manual``: it is ``loss.backward()``; ``is_foreign``: it
    is so for an optimizer that the context never saw."""

    use: ContextUse
    call: cst.Call
    step: Step | None = None
    owner: Optimizer | None = None
    is_manual: bool = False
    is_foreign: bool = False


@dataclass(frozen=True, eq=False)
class Trial:
    """Everything that the source of one trial shows.

    ``files``: those of its family; helpers and callbacks may be in any. ``helpers``: wraps, backwards and steps outside
    of its classes; ``unused``: the same in classes and functions that nothing in the files names.
    ``training_functions``: functions that run during training, with their files. ``helper_files``: imported files of
    the project that stay as they are; ``helper_functions``: what training calls there, with their files.
    """

    facts: TrialClass
    parts: tuple[Part, ...]
    uses: tuple[ContextUse, ...]
    files: tuple[SourceFile, ...] = ()
    helpers: tuple[ContextUse, ...] = ()
    unused: tuple[ContextUse, ...] = ()
    models: tuple[Model, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    schedulers: tuple[Wrap, ...] = ()
    steps: tuple[Step, ...] = ()
    backwards: tuple[Backward, ...] = ()
    training_functions: tuple[tuple[SourceFile, cst.FunctionDef], ...] = ()
    helper_files: HelperFiles = NO_HELPERS
    helper_functions: tuple[tuple[SourceFile, cst.FunctionDef], ...] = ()

    @property
    def name(self) -> str:
        return self.facts.facts.name

    @property
    def names(self) -> frozenset[str]:
        """Every name of a wrapped model or optimizer."""
        return frozenset().union(*(model.names for model in self.models), *(o.names for o in self.optimizers))

    @property
    def wraps(self) -> tuple[Wrap, ...]:
        """The wraps of optimizers, then those of models."""
        return (*(wrap for o in self.optimizers for wrap in o.wraps), *(wrap for m in self.models for wrap in m.wraps))

    @property
    def wraps_model(self) -> bool:
        """Return whether its classes or helpers wrap a model."""
        return bool(self.models) or any(use.attr == "wrap_model" for use in self.helpers)

    @property
    def wraps_optimizer(self) -> bool:
        """Return whether its classes or helpers wrap an optimizer."""
        return bool(self.optimizers) or any(use.attr == "wrap_optimizer" for use in self.helpers)

    @property
    def unused_definitions(self) -> dict[cst.ClassDef | cst.FunctionDef, ContextUse]:
        """The classes and functions with a use that nothing names, each with the first of their uses."""
        found: dict[cst.ClassDef | cst.FunctionDef, ContextUse] = {}
        for use in sorted(self.unused, key=lambda use: use.file.position(use.node)):
            for node in use.file.ancestors(use.node):
                if node in use.file.module.body and isinstance(node, (cst.ClassDef, cst.FunctionDef)):
                    found.setdefault(node, use)
        return found

    @property
    def is_abstract(self) -> bool:
        """Return whether a method that every trial needs is missing."""
        needed = ("train_batch", "build_training_data_loader", "build_validation_data_loader")
        return not all(any(True for _ in self.methods(name)) for name in needed)

    def methods(self, *names: str) -> Iterator[tuple[Part, cst.FunctionDef]]:
        """Yield every definition of the named methods, the trial's own before its bases' (all when none is named)."""
        for part in self.parts:
            for name, function in part.methods.items():
                if not names or name in names:
                    yield part, function

    def uses_of(self, *attrs: str) -> Iterator[ContextUse]:
        """Yield the uses of the context's named attributes."""
        return (use for use in self.uses if use.attr in attrs)
