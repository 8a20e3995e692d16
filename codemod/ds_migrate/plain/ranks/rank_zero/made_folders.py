"""Folders that may be made only once."""

from __future__ import annotations

from itertools import pairwise

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import is_exit
from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.files.looks import looks_below
from ds_migrate.plain.ranks.idle_code import is_idle
from ds_migrate.plain.ranks.processes.time_texts import has_time_stamp
from ds_migrate.plain.ranks.rank_guards import guard_line, is_guarded
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.plain.recognition.lone_scripts import runs_alone
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, walk
from ds_migrate.syntax.source import SourceFile


def make_folders_once(
    facts: LoopFacts, files: list[SourceFile], helpers: list[SourceFile], runtime: RuntimeNames, converted: Converted
) -> None:
    """Let a folder be made once that may not be there before.

    Args:
        files: those with the loop, or with edits for it.
        helpers: others that the program uses: all ranks wait there until rank 0 has made a folder.
    """
    conditions = RankConditions(facts.flow, lambda node, file: has_time_stamp(node, file, facts.flow))
    for file in (*files, *helpers):
        for call in file.nodes(cst.Call):
            is_line = isinstance(file.parent(call), cst.Expr)
            if not is_line or not makes_folder(call, file, facts) or is_guarded(call, file):
                continue
            if is_idle(call, file, facts):
                continue
            if file in files or _is_checked(call, file):
                _make_once(file, call, runtime, converted)
            elif runs_alone(file, facts.flow):
                _make_once(file, call, runtime, converted)
                if conditions.reach_all(call, file):
                    file.after(file.statement(call), runtime.wait(file))


def makes_folder(call: cst.Call, file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a call makes a folder that may not be there before."""
    given = argument(call, None, "exist_ok")
    inner: list[cst.CSTNode] = [call, *file.ancestors(call)]
    is_caught = any(
        isinstance(outer, cst.Try) and part is outer.body and not _gives_up(outer, file)
        for part, outer in pairwise(inner)
    )
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
        (file.nodes(cst.Raise, below=handler) and not _asks_for_existence(handler))
        or any(map(is_exit, file.nodes(cst.Call, below=handler)))
        for handler in node.handlers
    )


def _asks_for_existence(handler: cst.ExceptHandler) -> bool:
    """Return whether a handler lets a folder be there already: ``if error.errno != errno.EEXIST: raise``."""
    return any(isinstance(node, (cst.Attribute, cst.Name)) and dotted(node) == "errno.EEXIST" for node in walk(handler))


def _is_checked(call: cst.Call, file: SourceFile) -> bool:
    """Return whether the program looks for a folder before it makes it: in a condition, or in what has failed then."""
    return any(
        isinstance(outer, cst.ExceptHandler) or (isinstance(outer, cst.If) and any(looks_below(outer.test, file)))
        for outer in file.ancestors(call)
    )


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
