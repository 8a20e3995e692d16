"""Scripts of a program that start no ranks, beside others that do."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.dataflow.calls.idle_functions import is_called
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_used, files_using
from ds_migrate.plain.dataflow.torch_names import INIT
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.syntax.module_start import asks_for_main, first_to_work
from ds_migrate.syntax.source import SourceFile


def calls_that_start_ranks(flow: Flow) -> list[tuple[SourceFile, cst.Call]]:
    """Return the calls of a program by which ranks begin."""
    return flow.once(_calls_that_start)


def runs_alone(file: SourceFile, flow: Flow) -> bool:
    """Return whether nothing that may run with a file starts ranks: another script of the program may.

    A module that no script imports, as one that is found by its name, runs in those that start ranks.
    """
    if not is_called(INIT, flow):
        return True
    calls = calls_that_start_ranks(flow)
    using = files_using([file], flow)
    beside = files_used(using, flow)
    return bool(calls) and any(_is_script(one, flow) for one in using) and not any(id(at) in beside for at, _ in calls)


def _is_script(file: SourceFile, flow: Flow) -> bool:
    """Return whether a module does more where it is started than to define, and to set names to what libraries make."""
    working = file.module.body[first_to_work(file.module.body, file.imports.bindings) :]
    return any(map(asks_for_main, file.module.body)) or any(_works(statement, file, flow) for statement in working)


def _works(statement: cst.CSTNode, file: SourceFile, flow: Flow) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return isinstance(statement, (cst.For, cst.While, cst.With))
    calls = file.nodes(cst.Call, below=statement)
    return any(
        isinstance(file.parent(call), cst.Expr) or of_kind(flow.values(call.func, file), Kind.FUNCTION)
        for call in calls
    )


def may_run_alone(file: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a script that makes an engine, and starts no ranks, is this file or uses it."""
    if not is_called(INIT, facts.flow):
        return True
    scripts = {site.file for site in facts.all_sites}
    return any(runs_alone(script, facts.flow) and id(file) in files_used([script], facts.flow) for script in scripts)


def _calls_that_start(flow: Flow) -> list[tuple[SourceFile, cst.Call]]:
    return [(file, call) for file, call in flow.nodes(cst.Call) if flow.is_call_of(call, file, INIT)]
