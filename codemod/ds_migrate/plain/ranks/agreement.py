"""Decisions that all ranks must take alike, where each one sees its share of the data.

Written for one process, ``if stopper.stop: break`` and ``schedule.step(loss)`` would leave ranks with other numbers of
steps, which wait for each other forever, and with other learning rates. A condition becomes rank 0's, a number the
mean over ranks. With one rank nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.plain.dataflow.rank_values import RankValues
from ds_migrate.plain.dataflow.values import Kind, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.edits.runtime_names import Converted, RuntimeNames
from ds_migrate.plain.ranks.rank_zero import is_guarded
from ds_migrate.plain.recognition.loaders import can_be_sharded, loaders_of, training_loaders
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, code, dotted, targets, walk
from ds_migrate.syntax.source import SourceFile

_MEAN, _DECIDES = "mean_over_ranks", "rank_0_decides"
_FINITE = frozenset({"isnan", "isinf", "isfinite"})
_EXITS = frozenset({"sys.exit", "exit", "quit", "os._exit"})


def agree(plan: ProgramPlan, files: list[SourceFile], runtime: RuntimeNames, converted: Converted) -> None:
    """Have all ranks of a program take the same decisions."""
    flow = plan.facts.flow
    for file, branch in plan.undecided:
        _wrap(branch.test, file, runtime.name(file, _DECIDES))
        converted(
            Code.PLAIN_AGREEMENT, file, branch.test, "rank 0 decides for all ranks: each saves its share under this"
        )
    decided = {id(branch) for _, branch in plan.undecided}
    makers = training_loaders([step for step, _ in plan.steps], plan.facts)
    shares = [(file, maker) for file, maker in makers if can_be_sharded(maker, file, flow)]
    if not shares:
        return
    loaders = frozenset(v for file, maker in shares for v in of_kind(flow.values(maker, file), Kind.LOADER))
    modules = frozenset(v for site in plan.facts.sites for v in site.of)
    values = RankValues(flow, loaders, modules)
    common = _Common(plan, values)
    for file in files:
        for node in file.nodes(cst.If, cst.While):
            if id(node) in decided:
                continue
            if values.differs(node.test, file) and not is_guarded(node.test, file) and common.is_led_by(node, file):
                _agree_on_test(node, file, values, runtime, converted)
        for call in file.nodes(cst.Call):
            metric = _schedule_metric(call, file, plan)
            if metric is not None and values.differs(metric, file) and not is_guarded(call, file):
                _wrap(metric, file, runtime.name(file, _MEAN))
                converted(Code.PLAIN_AGREEMENT, file, call, "the schedule steps by the mean over ranks")
        for node in file.nodes(cst.Assign, cst.AugAssign):
            if any(_is_rate(target) for target in targets(node)) and values.differs(node.value, file):
                _wrap(node.value, file, runtime.name(file, _MEAN))
                converted(Code.PLAIN_AGREEMENT, file, node, "the learning rate is the mean over ranks")


def _agree_on_test(
    node: cst.If | cst.While, file: SourceFile, values: RankValues, runtime: RuntimeNames, converted: Converted
) -> None:
    finite = [
        call.args[0].value for call in file.nodes(cst.Call, below=node.test)
        if (dotted(call.func) or "").rpartition(".")[2] in _FINITE and call.args
    ]  # fmt: skip
    finite = [number for number in finite if values.differs(number, file)]
    if finite and not _differs_elsewhere(node.test, finite, file, values):
        for number in finite:
            _wrap(number, file, runtime.name(file, _MEAN))
        converted(
            Code.PLAIN_AGREEMENT, file, node.test, "all ranks look at the mean over ranks, which is NaN if one is"
        )
    else:
        _wrap(node.test, file, runtime.name(file, _DECIDES))
        converted(
            Code.PLAIN_AGREEMENT, file, node.test, "rank 0 decides for all ranks: their shares of the data differ"
        )


def _differs_elsewhere(
    test: cst.BaseExpression, numbers: list[cst.BaseExpression], file: SourceFile, values: RankValues
) -> bool:
    """Return whether a condition differs by rank besides the numbers: some ranks might not come to their mean."""
    inside = {id(inner) for number in numbers for inner in walk(number)}
    around = {id(outer) for number in numbers for outer in file.ancestors(number)}
    others = [n for n in walk(test) if isinstance(n, (cst.Name, cst.Attribute, cst.Call)) and id(n) not in inside]
    return any(values.differs(n, file) for n in others if id(n) not in around)


def _wrap(node: cst.BaseExpression, file: SourceFile, name: str) -> None:
    func = cst.Name(name)

    def wrapped(updated: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(updated, cst.BaseExpression)
        bare = updated.with_changes(lpar=[], rpar=[])
        return cst.Call(func, [cst.Arg(bare)], lpar=updated.lpar, rpar=updated.rpar)

    file.change(node, wrapped)


def _schedule_metric(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> cst.BaseExpression | None:
    """Return what a schedule is stepped by."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step" or not call.args:
        return None
    if not of_kind(plan.facts.flow.values(call.func.value, file), Kind.SCHEDULE):
        return None
    given = argument(call, 0, "metrics")
    return given.value if given is not None else None


def _is_rate(target: cst.BaseExpression) -> bool:
    """Return whether a learning rate of an optimizer is set."""
    return isinstance(target, cst.Subscript) and code(target.slice[0]).strip("'\"") == "lr"


class _Common:
    """Operations that all ranks do together, and the functions that lead to it."""

    def __init__(self, plan: ProgramPlan, values: RankValues) -> None:
        places = [(p.file, p.node) for p, _ in (*plan.steps, *plan.backwards)]
        for file in plan.facts.flow.files.values():
            places += [
                (file, node)
                for node in file.nodes(cst.For)
                if values.are_shares(loaders_of(node.iter, file, plan.facts.flow))
            ]
            places += [(file, call) for call in file.nodes(cst.Call) if _is_shared_call(call, file, plan)]
            places += [
                (file, node) for node in file.nodes(cst.Assign, cst.AugAssign) if any(map(_is_rate, targets(node)))
            ]
        self._nodes: set[int] = set()
        for file, node in places:  # grows: the calls of the functions around
            if id(node) in self._nodes:
                continue
            self._nodes.add(id(node))
            function = file.function(node)
            if function is not None:
                places += [(caller, call) for caller, call in plan.facts.callers.of(function)]

    def is_led_by(self, node: cst.If | cst.While, file: SourceFile) -> bool:
        """Return whether a condition decides if, or how often, something is done that all ranks do together."""
        branches = [node.body, *([node.orelse] if node.orelse is not None else [])]
        return any(self._holds(branch) for branch in branches) or any(
            self._holds(passed) for branch in branches for passed in _jumped_over(branch, file)
        )

    def _holds(self, node: cst.CSTNode) -> bool:
        return any(id(inner) in self._nodes for inner in walk(node))


def _is_shared_call(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a call changes learning rates or weights, which must be the same on each rank."""
    if not isinstance(call.func, cst.Attribute):
        return False
    owner = plan.facts.flow.values(call.func.value, file)
    if call.func.attr.value == "step":
        return bool(of_kind(owner, Kind.SCHEDULE))
    trained = {v for site in plan.facts.sites for v in (*site.of, *site.optimizers)}
    return call.func.attr.value == "load_state_dict" and bool(owner & trained)


def _jumped_over(branch: cst.CSTNode, file: SourceFile) -> Iterator[cst.CSTNode]:
    """Yield what the jumps in a branch may leave out: the rest of a loop, of a function, or of the program."""
    for jump in file.nodes(cst.Break, cst.Continue, below=branch):
        loop = next(a for a in file.ancestors(jump) if isinstance(a, (cst.For, cst.While)))
        if all(inner is not loop for inner in walk(branch)):
            yield loop
    for jump in file.nodes(cst.Return, below=branch):
        function = file.function(jump)
        if function is not None and all(inner is not function for inner in walk(branch)):
            yield function
    for call in file.nodes(cst.Call, below=branch):
        if dotted(call.func) in _EXITS:
            yield file.module
