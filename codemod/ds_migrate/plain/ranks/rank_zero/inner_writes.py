"""Writes inside of expressions that only rank 0 makes: ``_ = shutil.copy(a, b)``, ``return numpy.save(path, x)``."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.edits.expressions import choose
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.rank_guards import GUARD
from ds_migrate.plain.ranks.rank_zero.output_calls import OutputCalls
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import last_name, targets
from ds_migrate.syntax.source import SourceFile

# Those that return a path, a number, or whether they wrote; all others return None.
_RETURNS = frozenset(
    {"copy", "copy2", "copyfile", "copytree", "move", "make_archive", "rename", "replace", "imwrite", "dump",
     "write_text", "write_bytes", "save_pretrained", "imsave", "WriteImage", "show", "vwrite"}
)  # fmt: skip


class InnerWrites:
    """The calls of a program that write files inside of expressions."""

    def __init__(self, flow: Flow, calls: OutputCalls, runtime: RuntimeNames, converted: Converted) -> None:
        self._flow = flow
        self._calls = calls
        self._runtime = runtime
        self._converted = converted

    def guard(self, call: cst.Call, file: SourceFile, verb: str) -> None:
        """Let rank 0 alone evaluate a call, where the other ranks miss nothing but the file."""
        if self._flow.is_call_of(call, file, ("torch.save",)):  # all ranks may have a share of what it saves
            file.replace(call.func, self._runtime.name(file, "save_on_main_rank"))
        elif _is_missed(call, file) or not self._calls.skippable.arguments_are_skippable(call, file):
            return
        else:
            choose(file, call, self._runtime.main_rank(file), lambda _: cst.Name("None"))
        file.edits.once(call, GUARD)
        self._converted(Code.PLAIN_RANK_ZERO, file, call, f"only rank 0 {verb}")


def _is_missed(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a program reads what a call returns, and that is not None."""
    if last_name(call.func) not in _RETURNS:
        return False
    node: cst.CSTNode = call
    while True:
        outer = file.parent(node)
        if isinstance(outer, cst.Expr):
            return False
        if isinstance(outer, cst.Assign):
            names = [target.value if isinstance(target, cst.Name) else None for target in targets(outer)]
            return any(name is None or _is_read(name, outer, file) for name in names)
        is_part = isinstance(outer, (cst.ListComp, cst.SetComp)) and outer.elt is node
        is_part |= isinstance(outer, cst.BooleanOperation) and outer.right is node
        is_part |= isinstance(outer, cst.IfExp) and outer.test is not node
        if outer is None or not (is_part or isinstance(outer, (cst.Element, cst.Tuple, cst.List))):
            return True
        node = outer


def _is_read(name: str, line: cst.Assign, file: SourceFile) -> bool:
    """Return whether the code around a line that sets a name reads it."""
    scope = file.function(line) or file.module
    return any(
        node.value == name and not isinstance(file.parent(node), cst.AssignTarget)
        for node in file.nodes(cst.Name, below=scope)
    )
