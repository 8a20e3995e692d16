"""The decisions on a program: its engines, and how each operation is converted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_conditions import Branch
from ds_migrate.plain.decisions.naming.engine_names import EngineNames
from ds_migrate.plain.recognition.facts import Backward, Clip, LoopFacts, Place, Refusal, Site, Step, ZeroGrad
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile


@dataclass(frozen=True, eq=False)
class ConfigOptimizer:
    """An optimizer that moves to the config. ``statement`` made it; ``config`` is the expression of its section."""

    statement: cst.Assign
    config: str


@dataclass(frozen=True, eq=False)
class PlannedEngine:
    """An engine to make.

    Attributes:
        name: what it is called where it is made.
        config: its DeepSpeed config, keys with expressions, in order.
        json: the file that the config is written to, where it is not written into the code.
        optimizer: the optimizer that DeepSpeed makes from the config, if it does.
    """

    site: Site
    name: str
    config: dict[str, str]
    json: Path | None = None
    optimizer: ConfigOptimizer | None = None


@dataclass(frozen=True, eq=False)
class Attachment:
    """A statement after which the engine of a site can take a GradScaler: the one that makes it, or the engine's own.

    ``condition``: under which the scaler is made, where the engine is made behind that.
    """

    site: Site
    file: SourceFile
    statement: cst.BaseStatement
    scaler: str
    condition: str = ""


@dataclass(frozen=True, eq=False)
class ScalerUse:
    """A backward pass or step before which the engine takes the GradScaler that is used there; None where none is."""

    place: Backward | Step
    engine: str
    scaler: cst.BaseExpression | None


@dataclass(frozen=True, eq=False)
class Averaging:
    """A statement before which an engine averages gradients over ranks, for what reads or changes them there.

    ``optimizer``: what leads to the engine where that is looked up.
    ``condition``: under which there is an engine, where the statement also runs without.
    """

    file: SourceFile
    statement: cst.BaseStatement
    engine: str
    optimizer: str = ""
    condition: str = ""


@dataclass(frozen=True, eq=False)
class Note:
    """Something to know about a place that is converted."""

    code: Code
    file: SourceFile
    node: cst.CSTNode
    message: str
    help: str | None = None


Review = Callable[[Note], None]


@dataclass(frozen=True, eq=False)
class StateCall(Place):
    """``optimizer.state_dict()`` or ``optimizer.load_state_dict(state)``."""

    call: cst.Call
    name: str


LOOKED_UP = ""  # in the place of an engine's expression: no name leads to it, and its optimizer does when it runs


@dataclass(frozen=True, eq=False)
class ProgramPlan:
    """Everything that the edits of a program need; each decision returns a plan with its own part.

    Attributes:
        facts: what the plan follows from.
        names: what each file calls the engines.
        steps: with the expression of their engine.
        backwards: likewise.
        left: the backward passes that stay as they are.
        fed: the steps that use the gradients of a backward pass.
        steps_elsewhere: whether a backward pass is used by steps in functions that are called beside it.
        parted: the optimizers whose engines hold parts of one module.
        overlaps: whether several engines may hold the same parameters.
        is_managed: whether each step follows one backward pass, so that the engine counts them itself.
        keeps_scaling: whether the program scales losses and updates its GradScaler itself, and engines step with it.
        no_syncs: references to ``no_sync`` of what was wrapped.
        sync_switches: the assignments of ``require_backward_grad_sync`` of what was wrapped.
        joins: references to ``join`` of what was wrapped.
        clip_norms: the expression that an engine clips at.
        removed: what an engine does itself.
        averagings: where engines average gradients that the program uses before a step.
        attachments: where an engine is given the program's GradScaler.
        scaler_uses: the backward passes or steps that give it to the engine, where no statement that makes it can.
        scaler_calls: those that the engine does.
        keeps_gradients: whether ``step()`` leaves gradients, and ``zero_grad()`` stays where it is.
        forwards: the modules, as called, that become engines.
        state_calls: those that save or load the state of an optimizer of which each rank has a share.
        undecided: the conditions under which all ranks save such a state.
        refusals: everything that prevents the conversion.
    """

    facts: LoopFacts
    names: EngineNames
    steps: Sequence[tuple[Step, str]] = ()
    backwards: Sequence[tuple[Backward, str]] = ()
    left: Sequence[Backward] = ()
    fed: Mapping[Backward, Sequence[Step]] = field(default_factory=dict)
    steps_elsewhere: bool = False
    parted: frozenset[Site] = frozenset()
    overlaps: bool = False
    is_managed: bool = False
    keeps_scaling: bool = False
    no_syncs: Sequence[tuple[SourceFile, cst.Attribute]] = ()
    sync_switches: Sequence[tuple[SourceFile, cst.Assign]] = ()
    joins: Sequence[tuple[SourceFile, cst.Attribute]] = ()
    clip_norms: Mapping[Site, str] = field(default_factory=dict)
    removed: Sequence[ZeroGrad | Clip] = ()
    averagings: Sequence[Averaging] = ()
    attachments: Sequence[Attachment] = ()
    scaler_uses: Sequence[ScalerUse] = ()
    scaler_calls: Sequence[Place] = ()
    keeps_gradients: bool = False
    forwards: Sequence[tuple[SourceFile, cst.BaseExpression, str]] = ()
    engines: Sequence[PlannedEngine] = ()
    state_calls: Sequence[StateCall] = ()
    undecided: Sequence[Branch] = ()
    notes: Sequence[Note] = ()
    refusals: Sequence[Refusal] = ()

    @property
    def has_scaler(self) -> bool:
        """Return whether the engine scales losses with a GradScaler of the program."""
        return bool(self.attachments or self.scaler_uses)

    def refuse(self, refusals: Iterable[Refusal]) -> ProgramPlan:
        """Return the plan with further reasons not to convert."""
        return replace(self, refusals=(*self.refusals, *refusals))
