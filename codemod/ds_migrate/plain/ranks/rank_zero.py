"""Output that only rank 0 makes in a converted script: it prints and saves."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.syntax.source import SourceFile

_HARMLESS = frozenset(
    {"format", "item", "join", "len", "round", "str", "int", "float", "time", "get_last_lr", "get_lr", "strftime",
     "range", "sum", "max", "min", "numpy", "cpu", "tolist", "mean", "keys", "items", "values", "upper", "ljust",
     "rjust", "perf_counter", "array", "asarray", "detach", "dirname", "basename", "Path", "dumps",
     "exp", "log", "log2", "log10", "sqrt", "abs", "norm", "std", "var", "argmax", "squeeze", "size", "numel", "count",
     "get", "copy", "tanh", "sigmoid", "clock", "now", "title", "lower", "rstrip", "strip", "replace", "timedelta",
     "gmtime", "localtime", "asctime", "ctime", "today", "isoformat", "total_seconds", "parameters", "named_parameters",
     "zip", "enumerate", "sorted", "list", "dict", "tuple", "repr", "type", "vars", "is_available", "device_count",
     "get_device_name", "memory_allocated", "max_memory_allocated", "getcwd", "abspath"}
)  # fmt: skip

_PRINTS = frozenset({"print", "sys.stdout.write", "sys.stdout.flush"})
# Copying or removing what rank 0 has saved: on another rank it may not be there, or gone already.
_SAVES = (
    "torch.save", "shutil.copyfile", "shutil.copy", "shutil.copy2", "shutil.move", "os.rename", "os.replace",
    "os.remove", "os.unlink", "os.symlink", "shutil.rmtree",
)  # fmt: skip
_ARTIFACTS = (
    "matplotlib.pyplot.savefig", "torchvision.utils.save_image", "numpy.save", "numpy.savez", "numpy.savez_compressed",
    "numpy.savetxt", "tqdm.tqdm.write", "tqdm.auto.tqdm.write",
)  # fmt: skip
_SAVING_METHODS = frozenset({"savefig", "to_csv", "to_json", "to_pickle", "write_text", "write_bytes"})


def guard_saves(plan: ProgramPlan, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> None:
    """Let rank 0 alone save in files that the program uses for it."""
    for file in files:
        if b"torch.save" in file.data or b"import save" in file.data:
            _guard(plan, file, runtime, converted, prints=False)


def guard_output(plan: ProgramPlan, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> None:
    """Let rank 0 alone print and save."""
    for file in files:
        _guard(plan, file, runtime, converted, prints=True)


def _guard(plan: ProgramPlan, file: SourceFile, runtime: RuntimeNames, converted: Converted, prints: bool) -> None:
    for call in file.nodes(cst.Call):
        is_save = plan.facts.flow.is_call_of(call, file, _SAVES)
        is_print = (
            prints and dotted(call.func) in ("print", "sys.stdout.write", "sys.stdout.flush") and _is_harmless(call)
        )
        is_artifact = prints and _saves_artifact(call, file, plan) and _is_harmless(call)
        if not (is_save or is_print or is_artifact) or is_guarded(call, file):
            continue
        if not isinstance(file.parent(call), cst.Expr):
            continue
        if is_save and _gathers_state(call, file, plan):
            file.replace(call.func, runtime.name(file, "save_on_main_rank"))
            converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 saves what all ranks have a share of")
            continue
        if guard_line(file, call, runtime):
            converted(Code.PLAIN_RANK_ZERO, file, call, f"only rank 0 {'prints' if is_print else 'saves'}")


def _gathers_state(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether all ranks must evaluate what is saved, as each has a share of the optimizer's state."""
    saved = {id(node) for node in walk(call)}
    gathered = [state for state in plan.state_calls if state.name == "state_dict"]
    calls = [
        inner
        for state in gathered
        for inner in (state.call, *plan.facts.callers.leading_to(state.function, file, file.function(call)))
    ]
    return any(id(inner) in saved for inner in calls)


def guard_line(file: SourceFile, call: cst.Call, runtime: RuntimeNames) -> bool:
    """Put the line that a call is under the condition that holds on rank 0; return whether there is such a line."""
    small = file.parent(call)
    line = file.parent(small) if isinstance(small, cst.Expr) else None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    if file.edits.once(line, "rank 0"):
        file.change(line, _Guard(runtime.main_rank(file)))
    return True


def _saves_artifact(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a call writes a file that the program makes beside its training."""
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value in _SAVING_METHODS
    return bool(is_method and call.args) or plan.facts.flow.is_call_of(call, file, _ARTIFACTS)


class _Guard:
    """Puts a line under a condition, and leaves the comments above it where they are."""

    def __init__(self, condition: str) -> None:
        self._test = cst.parse_expression(condition)

    def __call__(self, updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.SimpleStatementLine)
        body = cst.IndentedBlock([updated.with_changes(leading_lines=[])])
        return cst.If(self._test, body, leading_lines=updated.leading_lines)


def _is_harmless(call: cst.Call) -> bool:
    """Return whether nothing is missed when the call's arguments are not evaluated."""
    for node in walk(call):
        if node is call:
            continue
        if isinstance(node, cst.Call):
            name = node.func.attr.value if isinstance(node.func, cst.Attribute) else dotted(node.func)
            if name not in _HARMLESS:
                return False
        if isinstance(node, (cst.NamedExpr, cst.Await, cst.Yield)):
            return False
    return True


def is_guarded(node: cst.CSTNode, file: SourceFile) -> bool:
    """Return whether a condition around a node asks for a rank already."""
    for outer in file.ancestors(node):
        if isinstance(outer, cst.If):
            words = {n.value.lower() for n in walk(outer.test) if isinstance(n, cst.Name)}
            if any("rank" in word or "master" in word or "main_process" in word or word == "gpu" for word in words):
                return True
    return False
