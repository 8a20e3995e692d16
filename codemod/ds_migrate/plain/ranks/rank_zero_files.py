"""Files and folders that every rank would make: rank 0 writes, the others write nowhere."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.calls import is_called
from ds_migrate.plain.dataflow.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.rank_zero import guard_line, is_guarded
from ds_migrate.plain.ranks.time_stamps import has_time_stamp
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, walk
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile

_WRITES = frozenset("".join(parts) for parts in (
    (how, plus, kind) for how in "wa" for plus in ("", "+") for kind in ("", "b", "t")
)) | {"wb+", "ab+"}  # fmt: skip
EXISTS = frozenset({"exists", "isdir", "is_dir", "isfile"})


_OPENERS = frozenset({"open", "io.open", "gzip.open", "bz2.open", "lzma.open"})


def write_once(
    facts: LoopFacts, files: list[SourceFile], helpers: list[SourceFile], runtime: RuntimeNames, converted: Converted
) -> None:
    """Let rank 0 alone write files that the program opens, and make folders that may exist only once.

    Args:
        helpers: files that the program uses for saving, where rank 0 alone opens what it saves to. All ranks write
            their logs there, for which they wait until rank 0 has made a folder.
    """
    conditions = RankConditions(facts.flow, facts.callers, lambda node, file: has_time_stamp(node, file, facts.flow))
    for file in helpers:
        for call in file.nodes(cst.Call):
            if is_guarded(call, file):
                continue
            if _is_saved_to(call, file, facts):
                _open_nowhere(file, call, runtime)
                converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 writes this file")
            elif _makes_folder(call, file, facts) and isinstance(file.parent(call), cst.Expr):
                if _is_checked(call, file):
                    _make_once(file, call, runtime, converted)
                elif not is_called(INIT, facts.flow) and conditions.reach_all(call, file):
                    _make_once(file, call, runtime, converted)
                    file.after(file.statement(call), runtime.wait(file))
    read = {
        expression_text(call.args[0].value)
        for file in facts.flow.files.values() for call in file.nodes(cst.Call)
        if dotted(call.func) == "open" and call.args and _mode(call) not in _WRITES
    }  # fmt: skip
    for file in files:
        for call in file.nodes(cst.Call):
            if is_guarded(call, file):
                continue
            if _opens_to_write(call):
                is_read = dotted(call.func) == "open" and expression_text(call.args[0].value) in read
                if not is_read or _is_saved_to(call, file, facts):
                    _open_nowhere(file, call, runtime)
                    converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 writes this file")
            elif (path := _log_file(call, file, facts)) is not None:
                _write_nowhere(file, path, runtime)
                converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 writes this log")
            elif _makes_folder(call, file, facts) and isinstance(file.parent(call), cst.Expr):
                _make_once(file, call, runtime, converted)


def _opens_to_write(call: cst.Call) -> bool:
    """Return whether a call opens a file to write it: by its path, or as ``path.open("w")``."""
    if dotted(call.func) in _OPENERS:
        return bool(call.args) and _mode(call) in _WRITES
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "open"
    return is_method and _mode(call, 0) in _WRITES


def _is_saved_to(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a file is opened for what ``torch.save()`` writes in the block behind."""
    item = file.parent(call)
    block = file.parent(item) if isinstance(item, cst.WithItem) and item.asname is not None else None
    return (
        isinstance(block, cst.With)
        and _opens_to_write(call)
        and any(facts.flow.is_call_of(n, file, ("torch.save",)) for n in file.nodes(cst.Call, below=block.body))
    )


def _open_nowhere(file: SourceFile, call: cst.Call, runtime: RuntimeNames) -> None:
    """Open a file on rank 0 alone; the other ranks write nowhere."""
    if dotted(call.func) in _OPENERS:
        _write_nowhere(file, call.args[0], runtime)
        return
    condition = cst.parse_expression(runtime.main_rank(file))
    nowhere = cst.parse_expression(f"{file.imports.module('os')}.devnull")

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        other = updated.with_changes(func=cst.Name("open"), args=[cst.Arg(nowhere), *updated.args])
        return cst.IfExp(condition, updated, other)

    file.change(call, change)


def _mode(call: cst.Call, position: int = 1) -> str:
    given = argument(call, position, "mode")
    return str(given.value.evaluated_value) if given is not None and isinstance(given.value, cst.SimpleString) else "r"


def _log_file(call: cst.Call, file: SourceFile, facts: LoopFacts) -> cst.Arg | None:
    """Return the path of a log that the standard library writes."""
    if facts.flow.is_call_of(call, file, ("logging.FileHandler",)):
        return argument(call, 0, "filename")
    is_config = facts.flow.is_call_of(call, file, ("logging.basicConfig",))
    given = argument(call, None, "filename") if is_config else None
    return given if given is not None and dotted(given.value) != "None" else None


def _write_nowhere(file: SourceFile, path: cst.Arg, runtime: RuntimeNames) -> None:
    condition = cst.parse_expression(runtime.main_rank(file))
    nowhere = cst.parse_expression(f"{file.imports.module('os')}.devnull")

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Arg)
        return updated.with_changes(value=cst.IfExp(condition, updated.value, nowhere))

    file.change(path, change)


def _makes_folder(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    given = argument(call, None, "exist_ok")
    is_caught = any(isinstance(outer, cst.Try) and not _gives_up(outer, file) for outer in file.ancestors(call))
    if is_caught or (given is not None and dotted(given.value) == "True"):
        return False
    if facts.flow.is_call_of(call, file, ("os.makedirs", "os.mkdir")):
        return True
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "mkdir"
    known = of_kind(facts.flow.values(call.func, file), Kind.EXTERNAL, Kind.FUNCTION, Kind.METHOD, Kind.CLASS)
    return is_method and not known


def _gives_up(node: cst.Try, file: SourceFile) -> bool:
    """Return whether a program ends where an error is caught: every rank but the first to make a folder would."""
    return any(
        file.nodes(cst.Raise, below=handler)
        or any(dotted(call.func) in ("sys.exit", "exit", "quit") for call in file.nodes(cst.Call, below=handler))
        for handler in node.handlers
    )


def _is_checked(call: cst.Call, file: SourceFile) -> bool:
    """Return whether the program looks for a folder before it makes it."""
    return any(
        isinstance(outer, cst.If) and any(
            isinstance(n, (cst.Attribute, cst.Name)) and (dotted(n) or "").rpartition(".")[2] in EXISTS
            for n in walk(outer.test)
        )
        for outer in file.ancestors(call)
    )  # fmt: skip


def _make_once(file: SourceFile, call: cst.Call, runtime: RuntimeNames, converted: Converted) -> None:
    """Let a folder that the program looks for first be made by any rank, and another one by rank 0."""
    if not _is_checked(call, file):
        if guard_line(file, call, runtime):
            converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 makes this folder")
        return
    exist_ok = cst.parse_expression("f(exist_ok=True)")
    assert isinstance(exist_ok, cst.Call)
    func = call.func
    if dotted(func) == "mkdir":
        func = cst.parse_expression(f"{file.imports.module('os')}.makedirs")
    elif isinstance(func, cst.Attribute) and (dotted(func) or "").endswith("os.mkdir"):
        func = func.with_changes(attr=cst.Name("makedirs"))
    kept = [a for a in call.args if a.keyword is None or a.keyword.value != "exist_ok"]

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        return updated.with_changes(func=func, args=[*updated.args[: len(kept)], *exist_ok.args])

    if len(kept) == len(call.args):
        file.change(call, change)
        converted(Code.PLAIN_RANK_ZERO, file, call, "another rank may have made this folder by then")
