"""The typed model of one trial that every rule reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import libcst as cst

from ds_migrate.decisions.engine_options import EngineOptions
from ds_migrate.project.trials import TrialClass
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse

if TYPE_CHECKING:
    from ds_migrate.decisions.engine_location import EngineLocation
    from ds_migrate.trial.clipping import Clipping
    from ds_migrate.trial.precision import Precision


class Form(Enum):
    """How the trial's engines are made (see the design: how an engine is made)."""

    SIMPLE = "simple"  # one engine around the model itself, forwards go through it
    PER_OPTIMIZER = "per optimizer"  # one engine per optimizer, forwards go through the raw modules
    COLLECTED = "collected"  # the same, for wraps in loops, branches and helpers: engines are looked up by optimizer


@dataclass(frozen=True, eq=False)
class Part:
    """One class of the trial: the trial itself, or a base class of it in the project."""

    file: SourceFile
    node: cst.ClassDef

    @property
    def methods(self) -> dict[str, cst.FunctionDef]:
        return {s.name.value: s for s in self.node.body.body if isinstance(s, cst.FunctionDef)}


@dataclass(eq=False)
class Wrap:
    """One ``wrap_model``, ``wrap_optimizer`` or ``wrap_lr_scheduler`` call.

    ``target`` is the expression that holds the result (``self.model``, ``opt``, ``self.nets["d"]``), None when it has
    no name. ``conditional`` and ``repeated`` tell what stands around it inside its function.
    """

    use: ContextUse
    call: cst.Call
    argument: cst.BaseExpression
    target: str | None
    discarded: bool = False
    conditional: bool = False
    repeated: bool = False

    @property
    def file(self) -> SourceFile:
        return self.use.file


@dataclass(eq=False)
class Step:
    """One ``step_optimizer`` call and the optimizer it steps (None when that cannot be told).

    ``by_hand``: it is ``optimizer.step()`` (or ``scaler.step(optimizer)``), past the context and its accumulation.
    """

    use: ContextUse
    call: cst.Call
    optimizer: cst.BaseExpression
    owner: Optimizer | None = None
    clip: cst.BaseExpression | None = None
    by_hand: bool = False


@dataclass(eq=False)
class Backward:
    """One ``backward`` call and the step that follows it. ``by_hand``: it is ``loss.backward()``; ``foreign``: it is so
    for an optimizer that the context never saw."""

    use: ContextUse
    call: cst.Call
    step: Step | None = None
    owner: Optimizer | None = None
    by_hand: bool = False
    foreign: bool = False


@dataclass(eq=False)
class Model:
    """A wrapped model: where it lives, all names it has, and the wraps that may set it (one per branch)."""

    target: str
    wraps: list[Wrap]
    names: set[str] = field(default_factory=set)
    sometimes: bool = False  # on some paths it does not exist
    raw: str = ""  # the expression that deepspeed.initialize takes, when it is not the target (``net``)


@dataclass(eq=False)
class Optimizer:
    """A wrapped optimizer, the expressions that build it, and the models whose parameters it owns."""

    target: str
    wraps: list[Wrap]
    names: set[str] = field(default_factory=set)
    built_by: list[cst.BaseExpression] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    covers_model: bool = False  # it owns every trainable parameter of its one model, provably
    engine: str = ""  # the expression of its engine in the converted code
    raw: str = ""  # as for models


@dataclass(eq=False)
class Trial:
    """Everything the rules need to know of one trial."""

    facts: TrialClass
    parts: list[Part]
    uses: list[ContextUse]
    models: list[Model] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    schedulers: list[Wrap] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    backwards: list[Backward] = field(default_factory=list)
    form: Form = Form.SIMPLE
    managed: bool = True  # DeepSpeed itself counts accumulation; False: step() alone is the boundary
    stage: int = 0
    stage_reason: str = ""
    late_schedule: bool = False  # a scheduler is made after the engine, over its optimizer
    stage_refused: str = ""  # why the stage that was asked for is not exact here
    engine_scheduler: str = ""  # the scheduler that deepspeed.initialize takes (--target determined)
    files: list[SourceFile] = field(default_factory=list)  # of its family: helpers and callbacks may be in any
    helpers: list[ContextUse] = field(default_factory=list)  # wraps, backwards and steps outside of its classes
    tested_optimizer: bool = False  # on DeepSpeed's own list for ZeRO
    place: EngineLocation | None = None
    clipping: dict[Optimizer, Clipping] = field(default_factory=dict)
    precision: Precision = None  # type: ignore[assignment]  # set by the decisions
    asked: EngineOptions = field(default_factory=EngineOptions)
    ds_config: dict[str, object] = field(default_factory=dict)
    running: list[tuple[SourceFile, cst.FunctionDef]] | None = None  # what `hazards.running` found

    @property
    def name(self) -> str:
        return self.facts.facts.name

    @property
    def wraps_all(self) -> bool:
        """Whether a model and an optimizer are wrapped, by its classes or by helpers."""
        helped = {use.attr for use in self.helpers}
        return bool(self.models or "wrap_model" in helped) and bool(self.optimizers or "wrap_optimizer" in helped)

    @property
    def abstract(self) -> bool:
        """Whether it cannot be made as it is: a method that every trial needs is missing."""
        needed = ("train_batch", "build_training_data_loader", "build_validation_data_loader")
        return not all(any(True for _ in self.methods(name)) for name in needed)

    def methods(self, *names: str) -> Iterator[tuple[Part, cst.FunctionDef]]:
        """Every definition of the named methods, the trial's own before its bases' (all methods when none is named)."""
        for part in self.parts:
            for name, function in part.methods.items():
                if not names or name in names:
                    yield part, function

    def uses_of(self, *attrs: str) -> Iterator[ContextUse]:
        return (use for use in self.uses if use.attr in attrs)
