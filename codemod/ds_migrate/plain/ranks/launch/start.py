"""The start of the ranks of a converted script: by a launcher, one process for each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import takewhile

import libcst as cst

from ds_migrate.plain.dataflow.branches.dead_branches import is_in_test
from ds_migrate.plain.dataflow.calls.spawning import SPAWN, started
from ds_migrate.plain.dataflow.lookup.files_beside import files_used
from ds_migrate.plain.dataflow.torch_names import BACKEND, DESTROY, INIT
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import Note
from ds_migrate.plain.edits.expressions import remove_call
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.launch.beginnings import Beginning, beginnings
from ds_migrate.plain.ranks.launch.early_draws import EarlyDraws
from ds_migrate.plain.ranks.launch.other_starts import Entry, behind_condition, beside_workers, starts_group, ways_past
from ds_migrate.plain.ranks.rank_zero.log_lines import quiet_logging
from ds_migrate.plain.ranks.unwrapping.weight_copies import GivenModels
from ds_migrate.plain.recognition.facts import LoopFacts, Site
from ds_migrate.plain.recognition.lone_scripts import runs_alone
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted
from ds_migrate.syntax.source import SourceFile

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

    Where the program starts them under a condition alone, one rank starts after that, and where it begins without
    starting them, as another script of it may do, they start there. Return what is for review.

    Args:
        files: those with the loop.
        program: all that may run with them.
        fixed: those of them that other loops use as they are: ranks start behind these, which the result is about.
    """
    every = facts.flow.files.values()
    calls = [(f, call) for f in every for call in f.nodes(cst.Call) if facts.flow.is_call_of(call, f, SPAWN)]
    spawns = [(f, call) for f, call in calls if not is_in_test(call, f, facts.flow.callers)]  # which no launcher starts
    workers = [(f, call) for f, call in spawns if has_worker(f, call, facts)]
    for file, call in workers:
        _run_worker(file, call, runtime, converted)
    notes = [_beside_launcher(f, call) for f, call in spawns if (f, call) not in workers and _has_group(f, call, facts)]
    groups = [(f, call) for f in every for call in _calls_of(INIT, f, files, facts)]
    for file, call in groups:
        if not file.edits.once(call, _START):
            continue
        arguments = ", ".join([*_counts(call), *_backend(call, facts), "share_random_state=False", *_timeout(call)])
        file.replace(call, runtime.start(file, arguments, _counts(call), "".join(_timeout(call))))
        converted(Code.PLAIN_DISTRIBUTED, file, call, "init_distributed() starts the ranks, under any launcher or none")
    if any(facts.flow.callers.may_run_often(file, call) for file, call in groups) or len(groups) > 1:
        _keep_groups(facts, files, converted)
    entries: list[Entry] | None = []
    for file, call in groups:
        after = behind_condition(facts, file, call)
        entries = None if after is None or entries is None else [*entries, *after]
    one_rank = "one rank trains where the program has not started several"
    for file, statement in beside_workers(workers, groups, facts):
        if file.edits.once(statement, _START):
            file.before(statement, runtime.start_one(file), first=True)
            converted(Code.PLAIN_DISTRIBUTED, file, statement, one_rank)
    draws = EarlyDraws(program, facts.flow)
    starts = [entry for site in facts.all_sites for entry in beginnings(facts, site, fixed, draws)]
    if groups and entries is not None:
        for file, statement in entries:
            if file.edits.once(statement, _START):
                file.after(statement, runtime.start_one(file))
                converted(Code.PLAIN_DISTRIBUTED, file, statement, one_rank)
        for file, statement in ways_past(groups, facts):
            if file.edits.once(statement, _START):
                is_alone = runs_alone(file, facts.flow)
                file.before(statement, runtime.start(file) if is_alone else runtime.start_one(file), first=True)
                message = "init_distributed() starts the ranks here too" if is_alone else one_rank
                converted(Code.PLAIN_DISTRIBUTED, file, statement, message)
        starts = [entry for entry in starts if not starts_group(*entry[:2], groups, facts)]
    given = GivenModels(facts)
    for file, statement, later in starts:
        if file.edits.once(statement, _START):
            quiet = quiet_logging(program, facts.flow, file, runtime)
            shared = [
                f"{runtime.name(file, 'share_weights')}({name})" for name in given.names_to_share(statement, file)
            ]
            file.before(
                statement, "\n".join([runtime.start(file), *runtime.device_choice(file), *quiet, *shared]), first=True
            )
            notes += given.early_copies(statement, file)
            converted(Code.PLAIN_DISTRIBUTED, file, statement, "init_distributed() starts the ranks")
            if later is not None:
                message = f"the ranks start behind what {later.path.name} does first, which other loops use as it is"
                advice = "call init_distributed() where the program begins, before it draws random numbers"
                notes.append(Note(Code.PLAIN_DISTRIBUTED, file, statement, message, advice))
    modules = [module for module in program if _may_train(module, facts)]
    return [*notes, *([] if groups and entries is not None else _early(draws, modules, starts))]


def _may_train(module: SourceFile, facts: LoopFacts) -> bool:
    """Return whether a module may run these loops, or be used by one that does: not one with other loops alone."""
    entered = {file for file in facts.flow.files.values() for site in facts.all_sites if _enters(file, site, facts)}
    makers = (call for call in module.nodes(cst.Call) if of_kind(facts.flow.values(call, module), Kind.OPTIMIZER))
    return id(module) in files_used(entered, facts.flow) or not any(True for _ in makers)


def _enters(file: SourceFile, site: Site, facts: LoopFacts) -> bool:
    return file is site.file or id(file) in facts.flow.callers.files_of(site.function)


def _early(draws: EarlyDraws, modules: list[SourceFile], starts: Collection[Beginning]) -> Iterator[Note]:
    """Yield what modules draw before the ranks start."""
    begun = {id(statement) for _, statement, _ in starts}
    for module in modules:
        before = list(takewhile(lambda statement: id(statement) not in begun, module.module.body))
        for statement, file, call in draws.of(module):
            if any(other is statement for other in before):
                drawn = f"{module.path.name} draws these random numbers while it is imported"
                message = f"{drawn}, before ranks start: each rank has other ones"
                yield Note(Code.PLAIN_AGREEMENT, file, call, message, "draw them in a function, or set a seed before")


def _calls_of(names: tuple[str, ...], file: SourceFile, files: list[SourceFile], facts: LoopFacts) -> list[cst.Call]:
    """Return the calls in a file that make, or end, the process group of these files: helpers often lie in another."""
    found = [call for call in file.nodes(cst.Call) if facts.flow.is_call_of(call, file, names)]
    trains = {id(one) for one in files} | {
        one for site in facts.all_sites for one in facts.flow.callers.files_of(site.function)
    }
    return [call for call in found if id(file) in trains or trains & facts.flow.callers.files_of(file.function(call))]


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
    return any(facts.flow.callers.reaches(value.key, site.function) for value in values for site in facts.all_sites)


def _has_group(file: SourceFile, call: cst.Call, facts: LoopFacts) -> bool:
    """Return whether the function that a call starts in other processes makes a process group of them."""
    target = started(call, facts.flow.values(call.func, file))
    keys = {value.key for value in facts.flow.values(target, file)} if target is not None else set()
    return any(
        facts.flow.callers.reaches(key, other.function(made))
        for key in keys
        for other, made in facts.flow.nodes(cst.Call)
        if facts.flow.is_call_of(made, other, INIT)
    )


def _beside_launcher(file: SourceFile, call: cst.Call) -> Note:
    message = (
        "each rank of a launcher starts further processes here, with a process group, as what they train is unknown"
    )
    advice = "have it start one process, and the launcher one for each GPU: deepspeed or torchrun"
    return Note(Code.PLAIN_DISTRIBUTED, file, call, message, advice)


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


def _backend(call: cst.Call, facts: LoopFacts) -> list[str]:
    """Return the backend that a program names, as an argument, where the program reads the name again."""
    given = argument(call, 0, "backend")
    files = facts.flow.files.values()
    is_read = any(facts.flow.is_call_of(other, file, BACKEND) for file in files for other in file.nodes(cst.Call))
    return [f"backend={code(given.value)}"] if given is not None and is_read else []


def _timeout(call: cst.Call) -> list[str]:
    """Return how long ranks wait for each other, as an argument, where the program does not leave that to torch."""
    given = argument(call, 2, "timeout")
    return [f"timeout={code(given.value)}"] if given is not None and dotted(given.value) != "None" else []


def _counts(call: cst.Call) -> list[str]:
    """Return the world size and the rank that a program computes itself, to be compared with its launcher's."""
    given = (("world_size", argument(call, 3, "world_size")), ("rank", argument(call, 4, "rank")))
    return [f"{name}={code(arg.value)}" for name, arg in given if arg is not None]
