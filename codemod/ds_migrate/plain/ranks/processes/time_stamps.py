"""Names made of the time, as those of folders: all ranks have rank 0's, which saves there what they load again."""

from __future__ import annotations

import builtins
from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import is_exit
from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.calls.idle_functions import IdleFunctions, idle_functions
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import wrap
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.rank_files import FOLDER, is_own_folder
from ds_migrate.plain.ranks.processes.time_texts import between, find_stamps, has_time_stamp
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import body_of, docstring, dotted, last_name, parameters
from ds_migrate.syntax.source import SourceFile

_MADE = "tempfile.mkdtemp"
_SHARED = "all ranks use the name that rank 0 makes from the time"
_OWN = (Kind.FUNCTION, Kind.METHOD, Kind.CLASS, Kind.INSTANCE, Kind.MODULE)  # what runs code of the program


def share_time_stamps(
    files: list[SourceFile], flow: Flow, runtime: RuntimeNames, converted: Converted
) -> Iterator[Note]:
    """Give all ranks the text that rank 0 makes from the time, where it is assigned and all of them come by.

    Yield a note for a temporary folder where they may not.
    """
    conditions = RankConditions(flow, lambda node, file: has_time_stamp(node, file, flow))
    idle = idle_functions(flow)
    for file in files:
        for holder in file.nodes(cst.Assign, cst.AnnAssign, cst.Arg):
            texts = (
                find_stamps(holder.value, file, flow) if _holds_names(holder, file) and holder.value is not None else []
            )
            if not texts or _may_be_rank_0s(file.function(holder), flow, set()):
                continue
            if not conditions.reach_all(holder, file):
                yield from (_other_folder(text, file) for text in texts if _makes_folder(text, file, flow, idle))
                continue
            for text in texts:
                if not is_guarded(text, file):
                    wrap(file, text, runtime.name(file, "rank_0_text"))
                    converted(Code.PLAIN_AGREEMENT, file, text, _SHARED)
        for function in file.nodes(cst.FunctionDef):
            _share_defaults(function, file, conditions, flow, runtime, converted)


def _share_defaults(
    function: cst.FunctionDef, file: SourceFile, conditions: RankConditions, flow: Flow, runtime: RuntimeNames,
    converted: Converted,
) -> None:  # fmt: skip
    """Give all ranks the defaults of rank 0: they are made where the function is, before the ranks start."""
    stamped = [p for p in parameters(function) if p.default is not None and has_time_stamp(p.default, file, flow)]
    lines = [line for line in body_of(function) if line is not docstring(function)]
    first = lines[0] if lines else None
    if not stamped or not isinstance(first, cst.BaseStatement) or not conditions.reach_all(first, file):
        return
    if _may_be_rank_0s(function, flow, set()):
        return
    for name in (parameter.name.value for parameter in stamped):
        file.before(first, f"{name} = {runtime.name(file, 'rank_0_text')}({name})")
        converted(Code.PLAIN_AGREEMENT, file, first, _SHARED)


def share_temporary_folders(
    files: list[SourceFile], flow: Flow, runtime: RuntimeNames, converted: Converted
) -> Iterator[Note]:
    """Give all ranks rank 0's folder of a ``with TemporaryDirectory()``, and have them leave it together.

    Each keeps its folder where all run a command there: the commands may write the same files.
    Yield a note for one where they may not come by together.
    """
    conditions = RankConditions(flow, lambda node, file: has_time_stamp(node, file, flow))
    idle = idle_functions(flow)
    for file in files:
        for block in file.nodes(cst.With):
            item, *others = block.items
            made = item.item
            if not (isinstance(made, cst.Call) and flow.is_call_of(made, file, (FOLDER,))):
                continue
            name = dotted(item.asname.name) if item.asname is not None else None
            lines = block.body.body
            if others or name is None or is_guarded(block, file) or is_own_folder(made, file, flow):
                continue
            leaves = list(file.nodes(cst.Return, cst.Raise, below=block.body))
            last = lines[-1]
            is_last = isinstance(last, cst.SimpleStatementLine) and all(file.statement(n) is last for n in leaves)
            if not isinstance(lines[0], cst.BaseStatement) or not isinstance(last, cst.BaseStatement):
                continue
            if not conditions.reach_all(block, file) or (leaves and not is_last):
                is_used = not _may_be_rank_0s(file.function(block), flow, set()) and not idle.hold(block, file)
                if is_used and _may_rank_0_write(block, file, flow):
                    yield _other_folder(made, file)
                continue
            file.before(lines[0], f"{name} = {runtime.name(file, 'rank_0_text')}({name})")
            wait = runtime.wait(file)
            file.before(last, wait) if leaves else file.after(last, wait)
            converted(Code.PLAIN_AGREEMENT, file, item, "all ranks have the folder that rank 0 makes")


def _makes_folder(text: cst.BaseExpression, file: SourceFile, flow: Flow, idle: IdleFunctions) -> bool:
    """Return whether a text is the path of a temporary folder that a rank makes and uses."""
    is_made = isinstance(text, cst.Call) and flow.is_call_of(text, file, (_MADE,))
    return is_made and not is_guarded(text, file) and not idle.hold(text, file)


def _may_rank_0_write(block: cst.With, file: SourceFile, flow: Flow) -> bool:
    """Return whether rank 0 alone may do something in a block, itself or in a function of the program."""
    own = flow.once(_names_of_functions)
    for call in file.nodes(cst.Call, below=block.body):
        values = flow.values(call.func, file)
        is_library = bool(values) and values == of_kind(values, Kind.EXTERNAL)
        is_given = not values and isinstance(call.func, cst.Name) and not hasattr(builtins, call.func.value)
        is_own = not is_library and (bool(of_kind(values, *_OWN)) or is_given or last_name(call.func) in own)
        if is_own or is_guarded(call, file) or flow.is_call_of(call, file, ("torch.save",)):
            return True
    return False


def _names_of_functions(flow: Flow) -> set[str]:
    return {node.name.value for _, node in flow.nodes(cst.FunctionDef, cst.ClassDef)}


def _other_folder(node: cst.BaseExpression, file: SourceFile) -> Note:
    message = "each rank has another temporary folder here, and rank 0 alone writes its files"
    advice = "have all ranks come here, and give them rank 0's: rank_0_text(folder)"
    return Note(Code.PLAIN_AGREEMENT, file, node, message, advice)


def _holds_names(holder: cst.Assign | cst.AnnAssign | cst.Arg, file: SourceFile) -> bool:
    """Return whether a value is assigned, or is the default of a command line argument."""
    call = file.parent(holder)
    is_default = isinstance(holder, cst.Arg) and isinstance(call, cst.Call) and last_name(call.func) == "add_argument"
    return not isinstance(holder, cst.Arg) or (is_default and dotted(holder.keyword) == "default")


def _may_be_rank_0s(function: cst.FunctionDef | None, flow: Flow, seen: set[int]) -> bool:
    """Return whether rank 0 alone may run a function: for an argument, as of ``torch.save()``, or under a guard."""
    if function is None or id(function) in seen:
        return False
    seen.add(id(function))
    return any(
        is_guarded(call, file)
        or any(
            isinstance(outer, cst.Call)
            and not is_exit(outer)
            and not of_kind(flow.values(outer.func, file), Kind.FUNCTION, Kind.METHOD, Kind.CLASS)
            for outer in between(call, file.statement(call), file)[1:]
        )
        or _may_be_rank_0s(file.function(call), flow, seen)
        for file, call in flow.callers.of(function)
    )
