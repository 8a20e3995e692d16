"""Files that ranks load while rank 0 may still save them."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from ds_migrate.plain.dataflow.branches.pure_operations import PURE
from ds_migrate.plain.dataflow.by_rank.rank_conditions import RankConditions
from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.decisions.plan import Note, ProgramPlan
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.agreement.agreed_conditions import let_rank_0_decide
from ds_migrate.plain.ranks.files.file_readers import FileReaders, is_removed_later
from ds_migrate.plain.ranks.files.looks import first_look
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_EARLY = "a rank may load this file before rank 0 has saved it"
_ADVICE = "keep the weights in memory, or let all ranks wait before they load"
_OF_MODULES = ("eval", "train", "parameters", "state_dict")


def wait_for_saves(
    plan: ProgramPlan,
    files: list[SourceFile],
    decided: Collection[int],
    values: RankValues | None,
    readers: FileReaders,
    runtime: RuntimeNames,
    converted: Converted,
) -> list[Note]:
    """Let ranks that load what rank 0 may just have saved wait for it. Return where not all of them would wait.

    Args:
        decided: conditions that rank 0 decides already, by identity of their statements.
        values: those that differ by rank. All ranks have the same arguments and settings otherwise.
        readers: of other files, before which ranks wait already.
    """
    notes: list[Note] = []
    conditions = RankConditions(plan.facts.flow)
    saves = [(f, c) for f in files for c in f.nodes(cst.Call) if plan.facts.flow.is_call_of(c, f, ("torch.save",))]
    if not saves:
        return []
    agreed, waits = set(decided), set[int]()
    for file in files:
        for call in file.nodes(cst.Call):
            if not loads_weights(call, file, plan.facts.flow) or not _may_follow_training(call, file, plan):
                continue
            place = first_look(call, file)
            branches = conditions.undecided(place, file)
            if branches is None:
                early = [readers.wait_above((file, call), save) for save in readers.saves_of(call, file, saves)]
                if not all(early):
                    notes.append(Note(Code.PLAIN_RANK_ZERO, file, call, _EARLY, _ADVICE))
                continue
            for other, branch in branches:
                differs = values is not None and values.differs(branch.test, other)
                if id(branch) not in agreed and (differs or _is_computed(branch.test, other, plan.facts.flow)):
                    let_rank_0_decide(branch.test, other, runtime)
                    message = "rank 0 decides for all ranks, which wait for each other below this condition"
                    converted(Code.PLAIN_AGREEMENT, other, branch.test, message)
                agreed.add(id(branch))
            if id(place) not in waits and not readers.waits_before(place):
                file.before(place, runtime.wait(file))
                converted(Code.PLAIN_RANK_ZERO, file, call, "ranks wait until rank 0 has saved what they load")
            waits.add(id(place))
            if is_removed_later(call, file) and not readers.waits_before(place):
                file.after(file.statement(call), runtime.wait(file))
    return notes


def _is_computed(test: cst.BaseExpression, file: SourceFile, flow: Flow) -> bool:
    """Return whether a condition is made of what a call returns, rather than of arguments and settings alone."""
    names = (node for node in walk(test) if isinstance(node, cst.Name))
    parts = [test, *(value for name in names for value in flow.scopes(file).assigned(name))]
    return any(isinstance(n, cst.Call) and dotted(n.func) not in PURE for part in parts for n in walk(part))


def loads_weights(call: cst.Call, file: SourceFile, flow: Flow) -> bool:
    """Return whether what ``torch.load()`` returns is given to ``load_state_dict()``, or used as a module."""
    if not flow.is_call_of(call, file, ("torch.load",)):
        return False
    names = {dotted(target) for a in file.ancestors(call) if isinstance(a, cst.Assign) for target in targets(a)}
    used = (node.value for name in _OF_MODULES for node in file.attributes_by_name.get(name, ()))
    if any(part is call or dotted(part) in names - {None} for part in used):
        return True
    for node in file.attributes_by_name.get("load_state_dict", ()):
        taker = file.parent(node)
        if isinstance(taker, cst.Call) and taker.func is node:
            if any(part is call for part in walk(taker)):
                return True
            same = file.function(taker) is file.function(call)
            if same and any(dotted(part) in names for arg in taker.args for part in walk(arg)):
                return True
    return False


def _may_follow_training(call: cst.Call, file: SourceFile, plan: ProgramPlan, depth: int = 5) -> bool:
    """Return whether steps may come before a call: in its function, in a loop around it, or where that is called."""
    function = file.function(call)
    steps = [step for step, _ in plan.steps]
    places = [s.node for s in steps if s.file is file and s.function is function]
    for other in file.nodes(cst.Call, below=function or file.module):
        if file.function(other) is function and any(
            plan.facts.flow.callers.reaches(value.key, step.function)
            for value in plan.facts.flow.values(other.func, file)
            for step in steps
        ):
            places.append(other)
    if any(file.position(place) < file.position(call) for place in places):
        return True
    loops = [a for a in file.ancestors(call) if isinstance(a, (cst.For, cst.While)) and file.function(a) is function]
    if any(node is place for loop in loops for node in walk(loop) for place in places):
        return True
    if function is None:
        return False
    calls = plan.facts.flow.callers.of(function)
    return depth == 0 or not calls or any(_may_follow_training(c, f, plan, depth - 1) for f, c in calls)
