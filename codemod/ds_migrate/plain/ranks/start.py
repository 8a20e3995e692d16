"""The start of the ranks of a converted script: by a launcher, one process for each."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.plain.dataflow.spawning import SPAWN, started
from ds_migrate.plain.dataflow.torch_names import DESTROY, INIT
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.removal import remove_call
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.rank_zero.log_lines import quiet_logging
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.module_start import first_to_work
from ds_migrate.syntax.nodes import argument, code, docstring, walk
from ds_migrate.syntax.source import SourceFile

Entry = tuple[SourceFile, cst.BaseStatement]
Beginning = tuple[SourceFile, cst.BaseStatement, SourceFile | None]  # and the file behind which ranks start
_START = "start of the ranks"


def start_ranks(
    facts: LoopFacts,
    files: list[SourceFile],
    program: list[SourceFile],
    fixed: Collection[SourceFile],
    runtime: RuntimeNames,
    converted: Converted,
) -> list[Note]:
    """Start the ranks where the program starts them itself, else where it begins; for several loops of it once.

    Where the program starts them under a condition alone, one rank starts after that. Return what is for review.

    Args:
        files: those with the loop.
        program: all that may run with them.
        fixed: those of them that other loops use as they are: ranks start behind these, which the result is about.
    """
    every = facts.flow.files.values()
    spawns = [(f, call) for f in every for call in f.nodes(cst.Call) if facts.flow.is_call_of(call, f, SPAWN)]
    workers = [(f, call) for f, call in spawns if has_worker(f, call, facts)]
    for file, call in workers:
        _run_worker(file, call, runtime, converted)
    groups = [(f, call) for f in every for call in _calls_of(INIT, f, files, facts)]
    for file, call in groups:
        if not file.edits.once(call, _START):
            continue
        file.replace(call, runtime.start(file, _arguments(call), _counts(call)))
        converted(Code.PLAIN_DISTRIBUTED, file, call, "init_distributed() starts the ranks, under any launcher or none")
    if any(facts.callers.may_run_often(file, call) for file, call in groups) or len(groups) > 1:
        _keep_groups(facts, files, converted)
    entries: list[Entry] | None = []
    for file, call in groups:
        after = _after_condition(facts, file, call)
        entries = None if after is None or entries is None else [*entries, *after]
    alone = "world_size=1" if workers else ""  # a program that has not started the ranks it was given by a flag
    for file, statement in _alternatives(workers, groups, facts):
        if file.edits.once(statement, _START):
            file.before(statement, f"{runtime.name(file, 'init_distributed')}({alone})")
    if groups and entries is not None:
        for file, statement in entries:
            if file.edits.once(statement, _START):
                file.after(statement, f"{runtime.name(file, 'init_distributed')}({alone})")
        for file, statement in _ways_past(groups, facts):
            if file.edits.once(statement, _START):
                file.before(statement, f"{runtime.name(file, 'init_distributed')}()")
                converted(Code.PLAIN_DISTRIBUTED, file, statement, "init_distributed() starts the ranks here too")
        return []
    notes: list[Note] = []
    for file, statement, later in [entry for site in facts.all_sites for entry in _beginnings(facts, site, fixed)]:
        if file.edits.once(statement, _START):
            quiet = quiet_logging(program, facts.flow, file, runtime)
            file.before(statement, "\n".join([runtime.start(file), *runtime.device_choice(file), *quiet]))
            converted(Code.PLAIN_DISTRIBUTED, file, statement, "init_distributed() starts the ranks")
            if later is not None:
                message = f"the ranks start behind what {later.path.name} does first, which other loops use as it is"
                advice = "call init_distributed() where the program begins, before it draws random numbers"
                notes.append(Note(Code.PLAIN_DISTRIBUTED, file, statement, message, advice))
    return notes


def _calls_of(names: tuple[str, ...], file: SourceFile, files: list[SourceFile], facts: LoopFacts) -> list[cst.Call]:
    """Return the calls in a file that make, or end, the process group of these files: helpers often lie in another."""
    found = [call for call in file.nodes(cst.Call) if facts.flow.is_call_of(call, file, names)]
    trains = {id(one) for one in files} | {
        one for site in facts.all_sites for one in facts.callers.files_of(site.function)
    }
    return [call for call in found if id(file) in trains or trains & facts.callers.files_of(file.function(call))]


def _keep_groups(facts: LoopFacts, files: list[SourceFile], converted: Converted) -> None:
    """Leave out that ranks part: DeepSpeed keeps its groups, and does not start again in one process."""
    for file in facts.flow.files.values():
        for call in _calls_of(DESTROY, file, files, facts):
            if isinstance(file.parent(call), cst.Expr) and file.edits.once(call, "left out"):
                remove_call(file, call)
                message = "removed: the ranks start once, and end with their process"
                converted(Code.PLAIN_DISTRIBUTED, file, call, message)


def has_worker(file: SourceFile, call: cst.Call, facts: LoopFacts) -> bool:
    """Return whether a call starts the functions that train in other processes."""
    target = started(call, facts.flow.values(call.func, file))
    values = facts.flow.values(target, file) if target is not None else frozenset()
    return any(facts.callers.reaches(value.key, site.function) for value in values for site in facts.all_sites)


def _alternatives(
    workers: list[tuple[SourceFile, cst.Call]], groups: list[tuple[SourceFile, cst.Call]], facts: LoopFacts
) -> list[Entry]:
    """Return where branches begin that train beside those which start processes, and not by what starts a group."""
    starters = {id(function) for file, call in groups if (function := file.function(call)) is not None}
    found: list[Entry] = []
    for file, call in workers:
        conditions = [a for a in file.ancestors(call) if isinstance(a, cst.If) and not _asks_for_main(a)]
        for branch in _branches(conditions[-1]) if conditions else ():
            if file.function(branch) is not file.function(call) or any(a is branch.body for a in file.ancestors(call)):
                continue
            callees = [facts.flow.values(c.func, file) for c in file.nodes(cst.Call, below=branch.body)]
            keys = {value.key for values in callees for value in values}
            if any(facts.callers.reaches_without(starters, keys, site.function) for site in facts.all_sites):
                found.append((file, _first_of_block(branch)))
    return found


def _branches(condition: cst.If) -> list[cst.If | cst.Else]:
    """Return an ``if`` with its ``elif`` and ``else``, each for its block."""
    found: list[cst.If | cst.Else] = [condition]
    while isinstance(last := found[-1], cst.If) and last.orelse is not None:
        found.append(last.orelse)
    return [branch for branch in found if isinstance(branch.body, cst.IndentedBlock)]


def _run_worker(file: SourceFile, call: cst.Call, runtime: RuntimeNames, converted: Converted) -> None:
    """Call the function of one rank once, in the process that the launcher has started for it."""
    name = runtime.name(file, "run_worker")
    kept = {id(arg) for arg in (argument(call, 0, "fn"), argument(call, 1, "args"), argument(call, 2, "nprocs"))}
    dropped = [index for index, arg in enumerate(call.args) if id(arg) not in kept]

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.Call)
        args = [arg for index, arg in enumerate(updated.args) if index not in dropped]
        if dropped and args:
            args[-1] = args[-1].with_changes(comma=call.args[-1].comma)
        return updated.with_changes(func=cst.Name(name), args=args)

    file.change(call, change)
    converted(
        Code.PLAIN_DISTRIBUTED, file, call,
        f"{code(call.func)} becomes {name}(), once in each process that a launcher starts",
    )  # fmt: skip


def _arguments(call: cst.Call) -> str:
    return ", ".join([*_counts(call), "share_random_state=False"])


def _counts(call: cst.Call) -> list[str]:
    """Return the world size and the rank that a program computes itself, to be compared with its launcher's."""
    given = (("world_size", argument(call, 3, "world_size")), ("rank", argument(call, 4, "rank")))
    return [f"{name}={code(arg.value)}" for name, arg in given if arg is not None]


def _after_condition(facts: LoopFacts, file: SourceFile, call: cst.Call) -> list[Entry] | None:
    """Return the statements after which ranks may not have started; None where the condition holds what trains too."""
    function = file.function(call)
    around = [a for a in file.ancestors(call) if isinstance(a, (cst.If, cst.Try, cst.For, cst.While))]
    around = [a for a in around if file.function(a) is function and not _asks_for_main(a)]
    covers = function is None or any(facts.callers.reaches(id(function), site.function) for site in facts.all_sites)
    if around:
        outer = _head(around[-1], file)
        if _holds_training(outer, facts, file):
            return None
        return (None if covers else _after_conditions_above(facts, function)) or [(file, outer)]
    returns = [] if function is None else file.nodes(cst.Return, below=function)
    is_left_early = any(file.function(r) is function and file.position(r) < file.position(call) for r in returns)
    if covers or function is None:
        return None if is_left_early else []
    left = [(caller, caller.statement(at)) for caller, at in facts.callers.of(function)] if is_left_early else []
    above = _after_conditions_above(facts, function)
    return None if above is None else [*left, *above]


def _after_conditions_above(facts: LoopFacts, function: cst.FunctionDef | None) -> list[Entry] | None:
    """Return the statements after which the calls of a function may not have run, as for one call."""
    found: list[Entry] = []
    for caller, at in facts.callers.of(function) if function is not None else ():
        above = _after_condition(facts, caller, at)
        if above is None:
            return None
        found += above
    return found


def _ways_past(groups: list[tuple[SourceFile, cst.Call]], facts: LoopFacts) -> list[Entry]:
    """Return the statements from which a site is reached without a function that makes the process group.

    A function that calls both, as where several GPUs are asked for, is left at the call that leads past.
    """
    makers = [function for file, call in groups if (function := file.function(call)) is not None]
    leading = [m for m in makers if any(facts.callers.reaches(id(m), site.function) for site in facts.all_sites)]
    todo = [site.function for site in facts.all_sites] if leading else []
    found: list[Entry] = []
    for function in todo:  # grows: the functions that call these
        for caller, at in facts.callers.of(function) if function is not None and function not in makers else ():
            above = caller.function(at)
            if above is None or any(facts.callers.reaches(id(above), maker) for maker in makers):
                if above not in makers:
                    found.append((caller, caller.statement(at)))
            elif above not in todo:
                todo.append(above)
    return found


def _head(node: cst.CSTNode, file: SourceFile) -> cst.BaseStatement:
    """Return the ``if`` whose ``elif`` a node is, else the node."""
    while isinstance(outer := file.parent(node), cst.If) and outer.orelse is node:
        node = outer
    assert isinstance(node, cst.BaseStatement)
    return node


def _holds_training(statement: cst.CSTNode, facts: LoopFacts, file: SourceFile) -> bool:
    if any(
        site.file is file and any(a is statement for a in file.ancestors(site.statement)) for site in facts.all_sites
    ):
        return True
    return any(
        facts.callers.reaches(value.key, site.function)
        for call in file.nodes(cst.Call, below=statement)
        for value in facts.flow.values(started(call, facts.flow.values(call.func, file)) or call.func, file)
        for site in facts.all_sites
    )


def _asks_for_main(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.If) and "__name__" in {n.value for n in walk(node.test) if isinstance(n, cst.Name)}


def _beginnings(facts: LoopFacts, site: Site, fixed: Collection[SourceFile]) -> list[Beginning]:
    """Return the first statements of the modules from which a site is reached, where they begin to work.

    Where such a module stays as it is, ranks start in the functions that it calls.
    """
    seen: list[tuple[SourceFile, cst.FunctionDef | None, cst.CSTNode]] = [(site.file, site.function, site.statement)]
    found: list[Beginning] = []
    behind: list[Beginning] = []
    for file, function, reached in seen:
        if function is None:
            first = _first_of_module(file, reached, is_call=reached is not site.statement)
            if first is not None:
                found.append((file, first, None))
            continue
        callers = facts.callers.of(function)
        for caller, at in callers:
            entry = (caller, caller.function(at), at)
            if entry[1] is None or not any(f is caller and fn is entry[1] for f, fn, _ in seen):
                seen.append(entry)
        body = [s for s in function.body.body if s is not docstring(function)]
        if not body or not isinstance(body[0], cst.BaseStatement):
            continue
        if not callers:
            found.append((file, body[0], None))
        staying = [caller for caller, _ in callers if caller in fixed]
        if staying and file not in fixed:
            behind.append((file, body[0], staying[0]))
    own = [beginning for beginning in found if beginning[0] not in fixed]
    return own if own == found else [*own, *behind]


def _first_of_module(file: SourceFile, reached: cst.CSTNode, is_call: bool) -> cst.BaseStatement | None:
    """Return the first statement that works, behind the imports with which the module begins.

    Where that is a call in the block of ``__main__``, or the block itself, the first statement of the block.
    """
    above = [reached, *file.ancestors(reached)]
    for outer in above if is_call else ():
        if isinstance(outer, cst.If) and file.parent(outer) is file.module and _asks_for_main(outer):
            return _first_of_block(outer)
    body = file.module.body
    begin = body[: first_to_work(body, file.imports.bindings)]
    imports = [i for i, statement in enumerate(begin) if _is_import(statement)]
    for statement in body[imports[-1] + 1 if imports else 0 :]:
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)) or _is_preparation(statement):
            continue
        if isinstance(statement, cst.If) and "TYPE_CHECKING" in {
            n.value for n in walk(statement.test) if isinstance(n, cst.Name)
        }:
            continue
        if isinstance(statement, cst.Try) and all(_is_preparation(s) for s in statement.body.body):
            continue
        if isinstance(statement, cst.If) and _asks_for_main(statement) and any(a is statement for a in above):
            return _first_of_block(statement)
        return statement if isinstance(statement, cst.BaseStatement) else None
    return None


def _first_of_block(block: cst.If | cst.Else) -> cst.BaseStatement:
    first = block.body.body[0]
    if isinstance(first, cst.BaseStatement):
        return first
    assert isinstance(block, cst.If)
    return block


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body
    )


def _is_preparation(statement: cst.CSTNode) -> bool:
    """Return whether a statement imports, is a docstring, or sets a constant or a variable of the environment."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    for small in statement.body:
        if isinstance(small, (cst.Import, cst.ImportFrom)):
            continue
        if isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString)):
            continue
        if isinstance(small, cst.Assign) and not any(isinstance(n, cst.Call) for n in walk(small)):
            continue
        return False
    return True
