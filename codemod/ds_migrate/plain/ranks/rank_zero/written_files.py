"""Files that every rank would write: rank 0 writes, the others write nowhere."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import choose
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.file_readers import FileReaders
from ds_migrate.plain.ranks.files.opened_files import OPENERS, opens_to_write, path_opened
from ds_migrate.plain.ranks.files.rank_files import RankFiles
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.rank_guards import NOWHERE, is_guarded
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, called_name, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_LOGS = (
    "logging.FileHandler", "logging.handlers.RotatingFileHandler", "logging.handlers.TimedRotatingFileHandler",
    "logging.handlers.WatchedFileHandler",
)  # fmt: skip
_EXCLUSIVE = frozenset({"x", "xb", "xt", "x+", "x+b", "x+t"})
_LOCKS = frozenset({"flock", "lockf", "lock", "locking"})


def write_once(
    facts: LoopFacts,
    files: list[SourceFile],
    saving: list[SourceFile],
    readers: FileReaders,
    runtime: RuntimeNames,
    converted: Converted,
) -> list[Note]:
    """Let rank 0 alone write files that the program opens.

    Return the files that all ranks write, as they read them again where they cannot wait for each other.

    Args:
        files: of the program.
        saving: others, in which nothing may change but that rank 0 alone opens what it saves to.
    """
    for file in saving:
        for call in file.nodes(cst.Call):
            if _is_saved_to(call, file, facts) and not is_guarded(call, file):
                _open_nowhere(file, call, runtime)
                converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 writes this file")
    notes: list[Note] = []
    of_rank = RankFiles(facts.flow)
    for file in files:
        for call in file.nodes(cst.Call):
            is_opened = opens_to_write(call, file, facts.flow)
            path = None if is_opened else _log_file(call, file, facts)
            if not (is_opened or path is not None) or is_guarded(call, file) or is_idle(call, file, facts):
                continue
            if of_rank.is_path(path_opened(call) if path is None else path.value, file) or _is_lock(call, file):
                continue
            if is_opened:
                if not _is_saved_to(call, file, facts) and not _wait_for_readers(file, call, readers):
                    notes.append(_read_again(file, call))
                    continue
                _open_nowhere(file, call, runtime)
                converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 writes this file")
            elif path is not None:
                _write_nowhere(file, path, runtime)
                converted(Code.PLAIN_RANK_ZERO, file, call, "only rank 0 writes this log")
    return notes


def _wait_for_readers(file: SourceFile, call: cst.Call, readers: FileReaders) -> bool:
    """Let ranks wait before they read what a call opens to write; return whether they can, or nothing reads it."""
    found = readers.of(call, path_opened(call), file)
    if not all(map(readers.can_wait, found)):
        return False
    for read in found:
        readers.wait(read)
    return True


def _read_again(file: SourceFile, call: cst.Call) -> Note:
    message = "all ranks write this file at the same time, and read it again"
    advice = "write it on rank 0 alone (if is_main_rank(): ...), and call wait_for_all_ranks() before it is read"
    return Note(Code.PLAIN_RANK_ZERO, file, call, message, advice)


def _is_lock(call: cst.Call, file: SourceFile) -> bool:
    """Return whether a file is opened to be locked, and nothing is written to it: processes wait by it."""
    outer = file.parent(call)
    names = targets(outer) if isinstance(outer, cst.Assign) else []
    if isinstance(outer, cst.WithItem) and outer.asname is not None:
        names = [outer.asname.name]
    opened = set(map(dotted, names))
    uses = file.nodes(cst.Call, below=file.function(call) or file.module) if opened else []
    is_locked = any(
        called_name(use) in _LOCKS and any(dotted(part) in opened for arg in use.args for part in walk(arg.value))
        for use in uses
    )
    methods = [use.func for use in uses if isinstance(use.func, cst.Attribute) and dotted(use.func.value) in opened]
    return is_locked and not any(method.attr.value.startswith("write") for method in methods)


def _is_saved_to(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a file is opened for what ``torch.save()`` writes in the block behind."""
    item = file.parent(call)
    block = file.parent(item) if isinstance(item, cst.WithItem) and item.asname is not None else None
    return (
        isinstance(block, cst.With)
        and opens_to_write(call, file, facts.flow)
        and any(facts.flow.is_call_of(n, file, ("torch.save",)) for n in file.nodes(cst.Call, below=block.body))
    )


def _open_nowhere(file: SourceFile, call: cst.Call, runtime: RuntimeNames) -> None:
    """Open a file on rank 0 alone; the other ranks write nowhere."""
    file.edits.once(call, NOWHERE)
    is_by_path = dotted(call.func) in OPENERS
    if is_by_path and not any(map(_is_exclusive, call.args[1:])):
        _write_nowhere(file, call.args[0], runtime)
        return
    nowhere = cst.Arg(_nowhere(file))

    def other(updated: cst.BaseExpression) -> cst.BaseExpression:
        assert isinstance(updated, cst.Call)
        given = [_overwriting(arg) for arg in updated.args[is_by_path:]]
        args = [nowhere.with_changes(comma=updated.args[0].comma) if is_by_path else nowhere, *given]
        return updated.with_changes(func=updated.func if is_by_path else cst.Name("open"), args=args)

    choose(file, call, runtime.main_rank(file), other)


def _is_exclusive(arg: cst.Arg) -> bool:
    """Return whether an argument is a mode that only opens a file which is not there, as ``os.devnull`` always is."""
    return isinstance(arg.value, cst.SimpleString) and arg.value.evaluated_value in _EXCLUSIVE


def _overwriting(arg: cst.Arg) -> cst.Arg:
    if not _is_exclusive(arg):
        return arg
    assert isinstance(arg.value, cst.SimpleString)
    return arg.with_changes(value=arg.value.with_changes(value=arg.value.value.replace("x", "w")))


def _log_file(call: cst.Call, file: SourceFile, facts: LoopFacts) -> cst.Arg | None:
    """Return the path of a log that the standard library writes."""
    if facts.flow.is_call_of(call, file, _LOGS):
        return argument(call, 0, "filename")
    is_config = facts.flow.is_call_of(call, file, ("logging.basicConfig",))
    given = argument(call, None, "filename") if is_config else None
    return given if given is not None and dotted(given.value) != "None" else None


def _write_nowhere(file: SourceFile, path: cst.Arg, runtime: RuntimeNames) -> None:
    nowhere = _nowhere(file)
    choose(file, path.value, runtime.main_rank(file), lambda _: nowhere)


def _nowhere(file: SourceFile) -> cst.BaseExpression:
    return cst.parse_expression(f"{file.imports.module('os')}.devnull")
