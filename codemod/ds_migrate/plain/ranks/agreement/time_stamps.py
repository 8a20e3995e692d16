"""Names made of the time, as those of folders: all ranks have rank 0's, which saves there what they load again."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.branches.program_exits import is_exit
from ds_migrate.plain.dataflow.branches.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.calls.callers import Callers
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.edits.wrapping import wrap
from ds_migrate.plain.ranks.rank_guards import is_guarded
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, last_name, walk
from ds_migrate.syntax.source import SourceFile

_NOW = frozenset({"now", "today", "utcnow"})
_CLOCKS = frozenset({"time.time", "time.time_ns", "uuid.uuid1", "uuid.uuid4", "os.getpid"})
_FOLDER = "tempfile.TemporaryDirectory"
_TEXT = frozenset({"join", "Path", "str", "replace", "lower", "int", "round"})  # of what only makes a name


def share_time_stamps(
    files: list[SourceFile], flow: Flow, callers: Callers, runtime: RuntimeNames, converted: Converted
) -> None:
    """Give all ranks the text that rank 0 makes of the time, where it is assigned and all of them come by."""
    conditions = RankConditions(flow, callers, lambda node, file: has_time_stamp(node, file, flow))
    for file in files:
        for assign in file.nodes(cst.Assign):
            text = _stamp(assign.value, file, flow)
            if text is None or is_guarded(text, file) or not conditions.reach_all(assign, file):
                continue
            if _may_be_rank_0s(file.function(assign), flow, callers, set()):
                continue
            wrap(file, text, runtime.name(file, "rank_0_text"))
            converted(Code.PLAIN_AGREEMENT, file, text, "all ranks have the name that rank 0 makes of the time")


def share_temporary_folders(
    files: list[SourceFile], flow: Flow, callers: Callers, runtime: RuntimeNames, converted: Converted
) -> None:
    """Give all ranks rank 0's folder of a ``with TemporaryDirectory()``, and have them leave it together."""
    conditions = RankConditions(flow, callers, lambda node, file: has_time_stamp(node, file, flow))
    for file in files:
        for block in file.nodes(cst.With):
            item, *others = block.items
            is_folder = isinstance(item.item, cst.Call) and flow.is_call_of(item.item, file, (_FOLDER,))
            name = dotted(item.asname.name) if item.asname is not None else None
            lines = block.body.body
            if others or not is_folder or name is None or is_guarded(block, file):
                continue
            leaves = list(file.nodes(cst.Return, cst.Raise, below=block.body))
            last = lines[-1]
            is_last = isinstance(last, cst.SimpleStatementLine) and all(file.statement(n) is last for n in leaves)
            if not isinstance(lines[0], cst.BaseStatement) or not conditions.reach_all(block, file):
                continue
            if not isinstance(last, cst.BaseStatement) or (leaves and not is_last):
                continue
            file.before(lines[0], f"{name} = {runtime.name(file, 'rank_0_text')}({name})")
            wait = runtime.wait(file)
            file.before(last, wait) if leaves else file.after(last, wait)
            converted(Code.PLAIN_AGREEMENT, file, item, "all ranks have the folder that rank 0 makes")


def has_time_stamp(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a value is a name made of the time."""
    return _stamp(value, file, flow) is not None


def _may_be_rank_0s(function: cst.FunctionDef | None, flow: Flow, callers: Callers, seen: set[int]) -> bool:
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
            for outer in _between(call, file.statement(call), file)[1:]
        )
        or _may_be_rank_0s(file.function(call), flow, callers, seen)
        for file, call in callers.of(function)
    )


def _stamp(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.Call | cst.FormattedString | None:
    """Return the text in a value that is made of the time; None where more is made of it than a name."""
    for call in file.nodes(cst.Call, below=value):
        around = _between(call, value, file)
        if _is_time_as_text(call, file, flow) or flow.is_call_of(call, file, ("tempfile.mkdtemp",)):
            return call if all(_only_makes_text(outer) for outer in around if outer is not call) else None
        if flow.is_call_of(call, file, _CLOCKS):
            text = next((outer for outer in around if isinstance(outer, cst.FormattedString)), None)
            rest = [outer for outer in around if outer is not call]
            return text if all(_only_makes_text(outer) for outer in rest) else None
    return _text_of_now(value, file, flow)


def _text_of_now(value: cst.BaseExpression, file: SourceFile, flow: Flow) -> cst.Call | cst.FormattedString | None:
    """Return the text into which a value puts parts of ``datetime.now()``, outside of loops, which report by it."""
    texts: list[cst.Call | cst.FormattedString] = file.nodes(cst.FormattedString, cst.Call, below=value)
    for text in texts:
        if isinstance(text, cst.Call) and not (dotted(text.func) == "str" or _is_format(text)):
            continue
        around = _between(text, value, file)[1:]
        is_name = all(_only_makes_text(outer) for outer in around)
        names = (part for part in walk(text) if isinstance(part, (cst.Name, cst.Call)))
        if is_name and any(v.name.rpartition(".")[2] in _NOW for part in names for v in flow.values(part, file)):
            is_looped = any(isinstance(outer, (cst.For, cst.While)) for outer in file.ancestors(text))
            return None if is_looped else text
    return None


def _is_format(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "format"


def _between(node: cst.CSTNode, value: cst.CSTNode, file: SourceFile) -> list[cst.CSTNode]:
    """Return a node and what is around it, up to the value that it is in."""
    found = [node]
    for outer in file.ancestors(node) if node is not value else ():
        found.append(outer)
        if outer is value:
            break
    return found


def _is_time_as_text(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether a call is ``time.strftime(...)``, or ``datetime.now().strftime(...)`` and the like."""
    if flow.is_call_of(call, file, ("time.strftime", "time.ctime", "time.asctime")):
        return len(call.args) < 2 or (dotted(getattr(call.args[1].value, "func", None)) or "").startswith("time.")
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("strftime", "isoformat"):
        return False
    return any(value.name.rpartition(".")[2] in _NOW for value in flow.values(call.func.value, file))


def _only_makes_text(node: cst.CSTNode) -> bool:
    """Return whether a node around the time makes a name of it, and nothing that only rank 0 may do."""
    if isinstance(node, cst.Call):
        return last_name(node.func) in _TEXT or _is_format(node)
    return not isinstance(node, (cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.BaseComp))
