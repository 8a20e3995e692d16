"""Files that libraries write on every rank of a program, as no condition can be put around the calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.by_rank.rank_conditions import runs_in_turn
from ds_migrate.plain.dataflow.values import Kind, Value, of_kind
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.ranks.files.opened_files import opens_archive_to_write, opens_to_change
from ds_migrate.plain.ranks.files.path_texts import PathTexts
from ds_migrate.plain.ranks.files.rank_files import RankFiles
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import called_name
from ds_migrate.syntax.source import SourceFile

_WRITERS = (
    "cv2.VideoWriter", "imageio.get_writer", "imageio.v2.get_writer", "torch.onnx.export",
    "zarr.save", "SimpleITK.ImageFileWriter", "matplotlib.backends.backend_pdf.PdfPages",
    "gym.wrappers.Monitor", "gym.wrappers.RecordVideo", "gymnasium.wrappers.RecordVideo",
    "gymnasium.wrappers.vector.RecordVideo", "stable_baselines3.common.vec_env.VecVideoRecorder",
)  # fmt: skip
_WRITES = re.compile(r"(save|export|write|dump|to)_?[a-z0-9_]*")
# Methods of an open file, and of what saves no file.
_NO_FILES = frozenset({"save_for_backward", "save_hyperparameters", "write", "writelines", "to"})
_CLASS = re.compile(r"(^|\.)_*[A-Z]")
_DEPTH = 4


class LibraryWriters:
    """The calls of a program that write files on all ranks."""

    def __init__(self, plan: ProgramPlan) -> None:
        self._plan = plan
        self._flow = plan.facts.flow
        self._calls = OutputCalls(plan)
        self._paths = PathTexts(plan.facts.flow)
        self._of_rank = RankFiles(plan.facts.flow)

    def notes(self, files: Sequence[SourceFile]) -> Iterator[Note]:
        """Yield a note for each call in these files that no condition on the rank is around."""
        all_files = self._flow.files.values()
        own = {node.name.value for file in all_files for node in file.nodes(cst.FunctionDef, cst.ClassDef)}
        for file in files:
            for call in file.nodes(cst.Call):
                if self._opens(call, file):
                    message = "every rank opens this file to write it, at the same time"
                elif self._writes(call, file) or self._may_write(call, file, own):
                    message = "every rank writes this file, at the same time"
                else:
                    continue
                if self._runs_on_all(call, file):
                    advice = "do so on rank 0 alone: if is_main_rank(): ..."
                    yield Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)

    def _opens(self, call: cst.Call, file: SourceFile) -> bool:
        may_write = (
            opens_to_change(call, file, self._flow)
            or opens_archive_to_write(call, file, self._flow)
            or self._flow.is_call_of(call, file, _WRITERS)
        )
        return may_write and not any(self._of_rank.is_one(arg.value, file) for arg in call.args[:1])

    def _writes(self, call: cst.Call, file: SourceFile) -> bool:
        """Return whether a call is a known one that writes a file."""
        is_known = self._calls.is_artifact(call, file) or self._calls.saves(call, file)
        return is_known and not self._calls.gathers_state(call, file)

    def _may_write(self, call: cst.Call, file: SourceFile, own: set[str]) -> bool:
        """Return whether a statement calls something unknown by a name that writes, and gives it a path."""
        name = called_name(call)
        is_function = bool(of_kind(self._flow.values(call.func, file), Kind.EXTERNAL))
        is_method = isinstance(call.func, cst.Attribute)  # else what the name holds is known: save = model.save
        if (
            (name in own and is_method and not self._is_of_library(call, file, own))
            or (name in _NO_FILES and not (is_function and name == "write"))
            or not _WRITES.fullmatch(name)
            or not isinstance(file.parent(call), cst.Expr)
        ):
            return False
        values = self._flow.values(call.func, file)
        if self._calls.saves(call, file) or self._calls.is_artifact(call, file):  # a known one
            return False
        if self._calls.is_artifact_of_rank(call, file):
            return False
        is_own = of_kind(values, Kind.FUNCTION, Kind.METHOD, Kind.CLASS)
        return not is_own and any(self._paths.is_path(arg.value, file) for arg in call.args)

    def _is_of_library(self, call: cst.Call, file: SourceFile, own: set[str]) -> bool:
        """Return whether a call is of a method of what classes of libraries have made."""
        made = self._flow.values(call.func.value, file) if isinstance(call.func, cst.Attribute) else frozenset()
        return bool(made) and all(self._is_made_by_library(value, own) for value in made)

    def _is_made_by_library(self, value: Value, own: set[str]) -> bool:
        """Return whether a class of a library makes a value: ``Model("name")``, ``Model.from_pretrained("name")``."""
        maker = self._flow.node(value) if value.key and not value.of else None
        makers = self._flow.values(maker.func, self._flow.file(value)) if isinstance(maker, cst.Call) else frozenset()
        return bool(makers) and all(
            m.kind is Kind.EXTERNAL and _CLASS.search(m.name) and own.isdisjoint(m.name.split(".")) for m in makers
        )

    def _runs_on_all(self, node: cst.CSTNode, file: SourceFile, depth: int = _DEPTH) -> bool:
        """Return whether other ranks than 0 come to a node."""
        if is_guarded(node, file) or runs_in_turn(node, file) or is_idle(node, file, self._plan.facts):
            return False
        function = file.function(node)
        callers = self._plan.facts.flow.callers.of(function) if function is not None and depth else ()
        return not callers or any(self._runs_on_all(call, home, depth - 1) for home, call in callers)
