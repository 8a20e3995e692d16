"""What is decided for a program: its engines, and how each operation is converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import libcst as cst

from ds_migrate.plain.dataflow.rank_conditions import Branch
from ds_migrate.plain.decisions.checkpoints import StateCall
from ds_migrate.plain.decisions.config_optimizer import ConfigOptimizer
from ds_migrate.plain.recognition.facts import Backward, Clip, Place, Refusal, Site, Step, ZeroGrad
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.source import SourceFile


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
    """A statement after which the engine can take a GradScaler: the one that makes it, or the engine's own."""

    file: SourceFile
    statement: cst.BaseStatement
    scaler: str


@dataclass(frozen=True, eq=False)
class Note:
    """Something to know about a place that is converted."""

    code: Code
    file: SourceFile
    node: cst.CSTNode
    message: str
    help: str | None = None


@dataclass
class ProgramPlan:
    """Everything that the edits of a program need.

    ``no_syncs`` are references to ``no_sync`` of what was wrapped.

    ``scaler_calls`` are those that the engine does; ``attachments`` give it the scaler.

    ``state_calls`` save or load the state of an optimizer of which each rank has a share; all ranks save it under
    ``undecided`` conditions.

    ``backwards`` and ``steps`` come with the expression of their engine. ``left`` are backward passes that stay as they
    are. ``forwards`` are the modules, as called, that
    become engines.
    """

    engines: list[PlannedEngine] = field(default_factory=list)
    backwards: list[tuple[Backward, str]] = field(default_factory=list)
    left: list[Backward] = field(default_factory=list)
    steps: list[tuple[Step, str]] = field(default_factory=list)
    removed: list[ZeroGrad | Clip] = field(default_factory=list)
    scaler_calls: list[Place] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    parted: set[Site] = field(default_factory=set)  # whose engines hold parts of one module
    no_syncs: list[tuple[SourceFile, cst.Attribute]] = field(default_factory=list)
    forwards: list[tuple[SourceFile, cst.BaseExpression, str]] = field(default_factory=list)
    state_calls: list[StateCall] = field(default_factory=list)
    undecided: list[Branch] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    scales_loss: bool = True

    def refuse(self, code: Code, file: SourceFile, node: cst.CSTNode, message: str, help: str) -> None:  # noqa: A002
        self.refusals.append(Refusal(code, file, node, message, help))


def block_path(node: cst.CSTNode, file: SourceFile) -> tuple[int, ...]:
    """Return the branches and loops that a node is in, outermost first, up to its function."""
    found: list[int] = []
    inner: cst.CSTNode = node
    for outer in file.ancestors(node):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, (cst.If, cst.Else, cst.For, cst.While, cst.ExceptHandler)) and inner is outer.body:
            found.append(id(outer))
        inner = outer
    return tuple(reversed(found))


def in_order(places: Sequence[Step | Backward | ZeroGrad | Clip]) -> list[Step | Backward | ZeroGrad | Clip]:
    """Return operations of one file in their order there."""
    return sorted(places, key=lambda place: place.position)
