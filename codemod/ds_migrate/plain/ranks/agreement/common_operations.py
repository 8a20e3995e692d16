"""Operations that all ranks do together, and the conditions that decide about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import is_exit
from ds_migrate.plain.dataflow.by_rank.rank_values import RankValues
from ds_migrate.plain.dataflow.calls.generators import generators
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import Kind, Values, Variable, of_kind
from ds_migrate.plain.decisions.plan import ProgramPlan
from ds_migrate.plain.ranks.agreement.setting_sources import source_writes
from ds_migrate.plain.ranks.rank_guards import asks_for_rank
from ds_migrate.plain.recognition.batches.loaders import loaders_of
from ds_migrate.plain.recognition.steps.weight_writes import WeightWrites
from ds_migrate.syntax.branches import upwards
from ds_migrate.syntax.nodes import children, code, elements, last_name, last_statement, targets, walk, without_index
from ds_migrate.syntax.source import SourceFile

_SETTINGS = {"lr": "learning rate", "momentum": "momentum", "weight_decay": "weight decay"}


def setting_of(target: cst.BaseExpression) -> str | None:
    """Return which number of an optimizer is set, as the learning rate."""
    return _SETTINGS.get(code(target.slice[0]).strip("'\"")) if isinstance(target, cst.Subscript) else None


Condition = cst.If | cst.While | cst.IfExp | cst.CompIf | cst.BooleanOperation
CONDITIONS = (cst.If, cst.While, cst.IfExp, cst.CompIf, cst.BooleanOperation)


def test_of(node: Condition) -> cst.BaseExpression:
    """Return what a condition asks; of ``ready and step()``, whether it is ready."""
    return node.left if isinstance(node, cst.BooleanOperation) else node.test


class CommonOperations:
    """Operations that all ranks do together, and the functions that lead to it.

    Args:
        plan: of the program.
        values: what differs by rank.
        writes: those to weights.
        changes: the lines that change the data that ranks draw from.
    """

    def __init__(
        self,
        plan: ProgramPlan,
        values: RankValues,
        writes: WeightWrites,
        changes: Sequence[tuple[SourceFile, cst.CSTNode]],
    ) -> None:
        places: list[tuple[SourceFile, cst.CSTNode]] = [(p.file, p.node) for p, _ in (*plan.steps, *plan.backwards)]
        places += changes
        loaded: set[Variable] = set()
        for file, call in plan.facts.flow.nodes(cst.Call):
            if _is_shared_call(call, file, plan):
                places.append((file, call))
                loaded.update(_variables(call.args, file, plan.facts.flow))
        loops = plan.facts.flow.once(_loops)
        places += [(file, loop) for file, loop, loaders in loops if values.are_shares(loaders)]
        settings: list[tuple[SourceFile, cst.BaseExpression]] = []
        for file in plan.facts.flow.files.values():
            for node in file.nodes(cst.Assign, cst.AugAssign):
                names = [part for target in targets(node) for part in elements(target)]
                is_loaded = bool(loaded) and not loaded.isdisjoint(_variables(names, file, plan.facts.flow))
                is_setting = any(map(setting_of, targets(node)))
                if is_setting:
                    settings.append((file, node.value))
                if is_loaded or is_setting:
                    places.append((file, node))
            places += [(file, write.node) for write in writes.of(file)]
        places += source_writes(settings, plan.facts.flow, values)
        self._nodes: set[int] = set()
        for file, node in places:  # grows: the calls of the functions around
            if id(node) in self._nodes:
                continue
            self._nodes.add(id(node))
            function = file.function(node)
            if function is not None:
                places += [(caller, call) for caller, call in plan.facts.flow.callers.of(function)]
            places += _items_of_loops(node, file, plan.facts.flow)
        self._handled = set(self._handled_errors(plan.facts.flow)) if self._nodes else set()

    def is_led_by(self, node: Condition, file: SourceFile) -> bool:
        """Return whether a condition decides if, or how often, something is done that all ranks do together."""
        if isinstance(node, cst.CompIf):  # [step(batch) for batch in loader if fits(batch)]
            made = next(outer for outer in file.ancestors(node) if isinstance(outer, cst.BaseComp))
            return any(self.holds(part) for part in children(made) if part is not made.for_in)
        if isinstance(node, cst.BooleanOperation):
            return not asks_for_rank(node.left) and self.are_reached_by([node.right], file)
        return self.are_reached_by([node.body, *([node.orelse] if node.orelse is not None else [])], file)

    def are_reached_by(self, branches: Sequence[cst.CSTNode], file: SourceFile) -> bool:
        """Return whether something that all ranks do together is in one of these branches, or left out by one."""
        if self._nodes and any(self._ends_training(b, file) and not self._is_waited_for(b, file) for b in branches):
            return True
        passed = [node for branch in branches for node in _jumped_over(branch, file)]
        if self._nodes and any(self._ends_training(n, file) for n in passed if not isinstance(n, cst.While)):
            return True
        return any(map(self.holds, (*branches, *passed)))

    def _ends_training(self, branch: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a branch ends the program, or raises an error by its class that the program handles."""
        if any(is_exit(call) for call in file.nodes(cst.Call, below=branch)):
            return True
        return any(map(self.handles, file.nodes(cst.Raise, below=branch)))

    def handles(self, line: cst.Raise) -> bool:
        """Return whether a line raises an error behind which the program continues without what all ranks do."""
        return last_name(line.exc.func if isinstance(line.exc, cst.Call) else line.exc) in self._handled

    def _handled_errors(self, flow: Flow) -> Iterator[str]:
        """Yield the names of the classes of errors after which a program continues without what all ranks do there.

        Not of those that a helper handles by itself: ranks come to it for other samples, and some more often.
        """
        for file, block in flow.nodes(cst.Try):
            for handler in block.handlers:
                if handler.type is None or isinstance(last_statement(handler.body), cst.Raise):
                    continue
                if self.holds(block.body) or any(map(self.holds, _jumped_over(handler, file))):
                    yield from map(last_name, elements(handler.type))

    def _is_waited_for(self, branch: cst.CSTNode, file: SourceFile) -> bool:
        """Return whether a branch is in a loop that waits for something, of which each rank makes other rounds."""
        function = file.function(branch)
        loops = [outer for outer in file.ancestors(branch) if isinstance(outer, cst.While)]
        return any(file.function(loop) is function and not self.holds(loop.body) for loop in loops)

    def holds(self, node: cst.CSTNode) -> bool:
        """Return whether something that all ranks do together is inside of a node, or is called there."""
        return any(id(inner) in self._nodes for inner in walk(node))


def _loops(flow: Flow) -> list[tuple[SourceFile, cst.For, Values]]:
    """Return the loops of a program that run over loaders, with these."""
    found = ((file, loop, loaders_of(loop.iter, file, flow)) for file, loop in flow.nodes(cst.For))
    return [(file, loop, loaders) for file, loop, loaders in found if loaders]


def _is_shared_call(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> bool:
    """Return whether a call changes learning rates or weights, which must be the same on each rank."""
    if not isinstance(call.func, cst.Attribute):
        return False
    owner = plan.facts.flow.values(call.func.value, file)
    if call.func.attr.value == "step":
        return bool(of_kind(owner, Kind.SCHEDULE))
    trained = {v for site in plan.facts.sites for v in (*site.of, *site.optimizers)}
    return call.func.attr.value == "load_state_dict" and bool(owner & trained)


def _items_of_loops(node: cst.CSTNode, file: SourceFile, flow: Flow) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
    """Yield where generators of the program make the items of the loops around a node: each is a round of these."""
    for inner, outer in upwards(file, node):
        if isinstance(outer, cst.FunctionDef):
            return
        if isinstance(outer, cst.For) and inner is not outer.iter:
            for home, function in generators(outer.iter, file, flow):
                made = home.nodes(cst.Yield, below=function)
                yield from ((home, item) for item in made if home.function(item) is function)


def _variables(nodes: Iterable[cst.CSTNode], file: SourceFile, flow: Flow) -> Iterator[Variable]:
    """Yield the variables that are named: those that a state to be loaded is kept in, or that are assigned."""
    for node in nodes:
        value = node.value if isinstance(node, cst.Arg) else node
        variable = flow.variable(without_index(value) if isinstance(value, cst.BaseExpression) else value, file)
        if variable is not None:
            yield variable


def _jumped_over(branch: cst.CSTNode, file: SourceFile) -> Iterator[cst.CSTNode]:
    """Yield what the jumps in a branch may leave out: the rest of a loop, of a function, or of the program."""
    for jump in file.nodes(cst.Break, cst.Continue, below=branch):
        loop = next(a for a in file.ancestors(jump) if isinstance(a, (cst.For, cst.While)))
        if all(inner is not loop for inner in walk(branch)):
            yield loop
    for jump in file.nodes(cst.Return, below=branch):
        function = file.function(jump)
        if function is not None and all(inner is not function for inner in walk(branch)):
            yield from _behind(jump, file)


def _behind(jump: cst.CSTNode, file: SourceFile) -> Iterator[cst.CSTNode]:
    """Yield the statements behind one in its function, and the loops around it, which may run again."""
    for inner, outer in upwards(file, jump):
        if isinstance(outer, cst.FunctionDef):
            return
        if isinstance(outer, (cst.For, cst.While)):
            yield outer
        if isinstance(outer, cst.IndentedBlock):
            numbers = [number for number, line in enumerate(outer.body) if line is inner]
            yield from outer.body[numbers[0] + 1 :]
