"""Ways to a loop on which a program does not start the ranks itself: one process starts there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.calls.spawning import started
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.ranks.launch.beginnings import first_of_block
from ds_migrate.plain.recognition.facts import LoopFacts
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.branches import head_of
from ds_migrate.syntax.module_start import asks_for_main
from ds_migrate.syntax.nodes import last_statement
from ds_migrate.syntax.source import SourceFile

Entry = tuple[SourceFile, cst.BaseStatement]
_WORLD = "mpi4py.MPI.COMM_WORLD"


def beside_workers(
    workers: list[tuple[SourceFile, cst.Call]], groups: list[tuple[SourceFile, cst.Call]], facts: LoopFacts
) -> list[Entry]:
    """Return where branches begin that train beside those which start processes, and not by what starts a group."""
    starters = {id(function) for file, call in groups if (function := file.function(call)) is not None}
    found: list[Entry] = []
    for file, call in workers:
        conditions = [a for a in file.ancestors(call) if isinstance(a, cst.If) and not asks_for_main(a)]
        for branch in _branches(conditions[-1]) if conditions else ():
            if file.function(branch) is not file.function(call) or any(a is branch.body for a in file.ancestors(call)):
                continue
            callees = [facts.flow.values(c.func, file) for c in file.nodes(cst.Call, below=branch.body)]
            keys = {value.key for values in callees for value in values}
            if any(facts.flow.callers.reaches_without(starters, keys, site.function) for site in facts.all_sites):
                found.append((file, first_of_block(branch)))
    return found


def _branches(condition: cst.If) -> list[cst.If | cst.Else]:
    """Return an ``if`` with its ``elif`` and ``else``, each for its block."""
    found: list[cst.If | cst.Else] = [condition]
    while isinstance(last := found[-1], cst.If) and last.orelse is not None:
        found.append(last.orelse)
    return [branch for branch in found if isinstance(branch.body, cst.IndentedBlock)]


def behind_condition(facts: LoopFacts, file: SourceFile, call: cst.Call) -> list[Entry] | None:
    """Return the statements after which ranks may not have started; None where the condition holds what trains too."""
    function = file.function(call)
    around = [a for a in file.ancestors(call) if isinstance(a, (cst.If, cst.Try, cst.For, cst.While))]
    around = [a for a in around if file.function(a) is function and not (asks_for_main(a) or _only_raises(a))]
    covers = function is None or any(
        facts.flow.callers.reaches(id(function), site.function) for site in facts.all_sites
    )
    returns = [] if function is None else file.nodes(cst.Return, below=function)
    is_left_early = any(file.function(r) is function and file.position(r) < file.position(call) for r in returns)
    calls = facts.flow.callers.of(function) if function is not None and is_left_early and not covers else ()
    left = [(caller, caller.statement(at)) for caller, at in calls]
    if around:
        outer = head_of(around[-1], file)
        if _holds_training(outer, facts, file):
            return None
        return [*left, *((None if covers else _behind_conditions_above(facts, function)) or [(file, outer)])]
    if covers or function is None:
        return None if is_left_early else []
    above = _behind_conditions_above(facts, function)
    return None if above is None else [*left, *above]


def _only_raises(node: cst.CSTNode) -> bool:
    """Return whether a node is a ``try`` behind which nothing in it has failed: each handler raises."""
    return isinstance(node, cst.Try) and all(isinstance(last_statement(h.body), cst.Raise) for h in node.handlers)


def _behind_conditions_above(facts: LoopFacts, function: cst.FunctionDef | None) -> list[Entry] | None:
    """Return the statements after which the calls of a function may not have run, as for one call."""
    found: list[Entry] = []
    for caller, at in facts.flow.callers.of(function) if function is not None else ():
        above = behind_condition(facts, caller, at)
        if above is None:
            return None
        found += above
    return found


def ways_past(groups: list[tuple[SourceFile, cst.Call]], facts: LoopFacts) -> list[Entry]:
    """Return the statements from which a site is reached without a function that makes the process group.

    A function that calls both, as where several GPUs are asked for, is left at the call that leads past, but where one
    before that makes the group and returns.
    """
    makers = [function for file, call in groups if (function := file.function(call)) is not None]
    leading = [m for m in makers if any(facts.flow.callers.reaches(id(m), site.function) for site in facts.all_sites)]
    helpers = [maker for maker in makers if maker not in leading]
    todo = [s.function for s in facts.all_sites if not _has_group(s.statement, s.file, s.function, helpers, facts)]
    found: list[Entry] = []
    for function in todo:  # grows: the functions that call these
        for caller, at in facts.flow.callers.of(function) if function is not None and function not in makers else ():
            above = caller.function(at)
            if above in makers or _has_group(at, caller, above, helpers, facts):
                continue
            is_left = any(facts.flow.callers.leading_to(maker, caller, above) for maker in makers)
            if is_left or (above is None and leading):
                found.append((caller, caller.statement(at)))
            elif above not in todo:
                todo.append(above)
    return found


def _has_group(
    node: cst.CSTNode,
    file: SourceFile,
    function: cst.FunctionDef | None,
    makers: list[cst.FunctionDef],
    facts: LoopFacts,
) -> bool:
    """Return whether a call before a node, in the same lines, has made the process group by one of these functions."""
    calls = [call for maker in makers for call in facts.flow.callers.leading_to(maker, file, function)]
    return any(file.position(call) < file.position(node) for call in calls)


def starts_group(
    file: SourceFile, statement: cst.BaseStatement, groups: list[tuple[SourceFile, cst.Call]], facts: LoopFacts
) -> bool:
    """Return whether the program makes its process group in what begins with a statement, or in all that calls this."""
    imported = files_used([file], facts.flow)
    if any(_is_imported(home, call, imported - {id(file)}, facts) for home, call in groups):
        return True
    leading = {key for home, call in groups for key in facts.flow.callers.leading(home, home.function(call))}
    function = file.function(statement)
    if function is None:
        return id(file.module) in leading
    places = [(caller, caller.function(call)) for caller, call in facts.flow.callers.of(function)]
    above = [id(caller.module) if around is None else id(around) for caller, around in places]
    return id(function) in leading or (bool(above) and leading.issuperset(above))


def _is_imported(file: SourceFile, group: cst.Call, imported: Collection[int], facts: LoopFacts) -> bool:
    """Return whether the import of one of these files makes a process group."""
    maker = file.function(group)
    if maker is None:
        return id(file) in imported
    files = [other for other in facts.flow.files.values() if id(other) in imported]
    calls = [(other, call) for other in files for call in facts.flow.callers.leading_to(maker, other, None)]
    return any(not any(asks_for_main(a) for a in other.ancestors(call)) for other, call in calls)


def _holds_training(statement: cst.CSTNode, facts: LoopFacts, file: SourceFile) -> bool:
    if any(
        site.file is file and any(a is statement for a in file.ancestors(site.statement)) for site in facts.all_sites
    ):
        return True
    return any(
        facts.flow.callers.reaches(value.key, site.function)
        for call in file.nodes(cst.Call, below=statement)
        for value in facts.flow.values(started(call, facts.flow.values(call.func, file)) or call.func, file)
        for site in facts.all_sites
    )


def ranks_of_mpi(files: Iterable[SourceFile], flow: Flow) -> Iterator[Note]:
    """Yield a note at the first place where a program asks MPI for its ranks."""
    places = ((file, node) for file in files for node in file.attributes_by_name.get("COMM_WORLD", ()))
    found = next(((file, node) for file, node in places if flow.is_named(node, file, _WORLD)), None)
    if found is not None:
        message = (
            "to MPI, each process that deepspeed or torchrun starts is rank 0 of one, also in its guards and seeds"
        )
        advice = "take the rank and the number of ranks from torch.distributed, and leave gradients to the engine"
        yield Note(Code.PLAIN_DISTRIBUTED, *found, message, advice)
