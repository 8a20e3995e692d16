"""Code before a ``step()`` that needs averaged gradients, where an engine averages them in ``step()`` alone.

There ``engine.allreduce_gradients()`` averages them before that code; ``step()`` does it again, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.dataflow.scopes import names_in
from ds_migrate.plain.dataflow.values import NOTHING, Values
from ds_migrate.plain.decisions.engines.optional_engines import tests_of_optimizer
from ds_migrate.plain.decisions.naming.visible_engines import VisibleEngines
from ds_migrate.plain.decisions.passes.backward_passes import is_beside, places_beside, step_places
from ds_migrate.plain.decisions.plan import LOOKED_UP, Averaging, ProgramPlan
from ds_migrate.plain.recognition.facts import Place, Site, Step
from ds_migrate.syntax.nodes import code, dotted, indices_of, parameters, walk, without_index
from ds_migrate.syntax.source import SourceFile

LOOPS = (cst.For, cst.CompFor)
_BINDING = (cst.AssignTarget, cst.AnnAssign, cst.Element, cst.For, cst.CompFor, cst.NamedExpr, cst.AsName, cst.Del)


def find_averagings(place: Place, plan: ProgramPlan, modules: Values = NOTHING) -> list[Averaging]:
    """Return where engines average the gradients that a place needs averaged, each time before a step.

    Nothing where a step that follows is not known each time, or DeepSpeed is alone, which averages in ``step()`` only.

    Args:
        modules: those whose gradients the place needs, where they are known; else its arguments show them.
    """
    held = frozenset(value for site in plan.facts.sites for value in site.of)
    if not plan.facts.options.runtime or (len(plan.facts.sites) > 1 and not modules <= held):
        return []
    needed = modules & held
    found: list[Averaging] = []
    for each in in_stepping_functions(place, plan):
        known = needed if each is place and needed else _given(each, needed or held, plan)
        before = before_next_step(each, plan, known)
        if not before:
            return []
        found += before
    return found


def find_behind_backward(read: Place, plan: ProgramPlan) -> list[Averaging]:
    """Return where the engine of a backward pass averages what a function uses behind it, and no step follows.

    In a loop, the step of the next round may use what the place makes of the gradients of this one.
    """
    statement = _statement(read, plan) if plan.facts.options.runtime else None
    steps = [step for step, _ in plan.steps if step.file is read.file and step.function is read.function]
    if statement is None or not all(is_behind(read, step) for step in steps):
        return []
    last = max((step.position for step in steps), default=(0, 0))
    behind = [(b, name) for b, name in plan.backwards if is_behind(read, b) and b.position > last]
    return [Averaging(read.file, statement, name) for name in {name: None for _, name in behind}]


def is_behind(read: Place, backward: Place) -> bool:
    """Return whether a place is behind a backward pass in its function."""
    return is_beside(read, backward) and read.position > backward.position


def distinct(averagings: Sequence[Averaging], plan: ProgramPlan) -> list[Averaging]:
    """Return those that an earlier one in the same block does not make superfluous."""
    found: list[Averaging] = []
    for each in sorted(averagings, key=lambda one: (str(one.file.path), one.file.position(one.statement))):
        if not any(_covers(known, each, plan) for known in found):
            found.append(each)
    return found


def _covers(one: Averaging, other: Averaging, plan: ProgramPlan) -> bool:
    if one.file is not other.file or (one.engine, one.optimizer) != (other.engine, other.optimizer):
        return False
    if block_path(one.statement, one.file) != block_path(other.statement, one.file):
        return False
    first, last = one.file.position(one.statement), one.file.position(other.statement)
    function = one.file.function(one.statement)
    return function is one.file.function(other.statement) and not any(
        first <= one.file.position(event) < last for event in _events(one.file, function, plan)
    )


def in_stepping_functions(place: Place, plan: ProgramPlan) -> list[Place]:
    """Return a place that is in a function with a step, or else the calls in such functions that lead to it."""
    functions = {(id(p.file), id(p.function)): p for site in plan.facts.sites for p, _ in step_places(site, plan)}
    if (id(place.file), id(place.function)) in functions or any(is_beside(step, place) for step, _ in plan.steps):
        return [place]
    if place.function is None:
        return []
    callers = plan.facts.flow.callers
    return [
        Place(p.file, call)
        for p in functions.values()
        for call in callers.leading_to(place.function, p.file, p.function)
    ]


def _given(place: Place, modules: Values, plan: ProgramPlan) -> Values:
    """Return those of several modules that a call is given, or a loop goes through, or all where none is shown."""
    sources = (
        [arg.value for arg in place.node.args]
        if isinstance(place.node, cst.Call)
        else [loop.iter for loop in place.file.ancestors(place.node) if isinstance(loop, LOOPS)]
    )
    given = [node for source in sources for node in walk(source) if isinstance(node, cst.BaseExpression)]
    return modules & frozenset(v for node in given for v in plan.facts.flow.values(node, place.file)) or modules


def before_next_step(place: Place, plan: ProgramPlan, modules: Values) -> list[Averaging]:
    """Return where the engines of the next step behind a place in its function average; nothing where none follows."""
    after = [
        (position, step, site)
        for site in plan.facts.sites for position, step in places_beside(place, site, plan)
        if position.position > place.position
    ]  # fmt: skip
    own = [each for each in after if modules & each[2].of]
    if not after or not modules <= frozenset(value for each in own for value in each[2].of):
        return []
    statement = _statement(place, plan)
    first = min(each[0].position for each in (own or after))
    nearest = [each for each in own or after if each[0].position == first]
    chosen = nearest if not own or all(_is_enough(place, *each, modules, plan) for each in nearest) else own
    if statement is None or any(_may_be_left_out(place, step, site, plan) for _, step, site in chosen):
        return []
    around = Place(place.file, statement)
    names: dict[tuple[str, str], str] = {}
    for position, step, site in chosen:
        name = _engine(place, position, step, site, plan)
        if name is None:
            return []
        names.setdefault(name, _condition(name[0], step, around, plan))
    return [Averaging(place.file, statement, *name, condition) for name, condition in names.items()]


def _is_enough(place: Place, position: Place, _: Step, site: Site, modules: Values, plan: ProgramPlan) -> bool:
    """Return whether a step always follows a place, and its engine holds all of the modules: others hold them, too."""
    behind, here = (block_path(each.node, each.file) for each in (position, place))
    is_whole = site not in plan.parted and not (site.is_partial and site.tensors)
    return is_whole and modules <= site.of and here[: len(behind)] == behind


def _may_be_left_out(place: Place, step: Step, site: Site, plan: ProgramPlan) -> bool:
    """Return whether a place uses gradients that no engine averages where a condition leaves out the optimizer."""
    if next(tests_of_optimizer(step, place, plan.facts), None) is None:
        return False
    return any(
        isinstance(node, cst.BaseExpression) and plan.facts.flow.values(node, place.file) & site.of
        for node in walk(place.node)
    )


def _condition(engine: str, step: Step, place: Place, plan: ProgramPlan) -> str:
    """Return the conditions under which there is the engine of a step, as they are written at a place before."""
    is_given = plan.facts.flow.variable(step.owner, step.file) in plan.names.passed
    own = {code(step.owner), f"{code(step.owner)} is not None"}
    tests = sorted(tests_of_optimizer(step, place, plan.facts))
    if is_given and any(text in own for text, _ in tests):
        tests = [(f"{engine} is not None", True), *((text, holds) for text, holds in tests if text not in own)]
    return " and ".join(
        text if holds and len(tests) == 1 else f"({text})" if holds else f"not ({text})" for text, holds in tests
    )


def _engine(place: Place, position: Place, step: Step, site: Site, plan: ProgramPlan) -> tuple[str, str] | None:
    """Return the name of an engine, and that of the optimizer that leads to it where it has none."""
    if position.node is step.node:
        name = next(name for known, name in plan.steps if known is step)
        if name is not LOOKED_UP:
            return name, ""
        if steps_one_optimizer(step) or _is_of_one_round(step, place) or _is_held_between(step, place):
            return name, code(step.owner)
    found = VisibleEngines(plan).find(position.function, position.file, site.optimizers)
    return None if found is None else (found, "")


def steps_one_optimizer(step: Step) -> bool:
    """Return whether what a step is called on is one optimizer all the time: a parameter, or an attribute of a name.

    Either is assigned once at most, before the loop.
    """
    function, owner, file = step.function, step.owner, step.file
    first = owner.value if isinstance(owner, cst.Attribute) else owner
    if not isinstance(first, cst.Name):
        return False
    scope = function.body if function is not None else file.module
    bound = [
        node
        for node in file.nodes(cst.AssignTarget, cst.For, cst.CompFor, cst.NamedExpr, cst.AsName, below=scope)
        for target in [node.name if isinstance(node, cst.AsName) else node.target]
        if first.value in names_in(target) or dotted(target) == dotted(owner)
    ]
    is_parameter = function is not None and any(param.name.value == first.value for param in parameters(function))
    if first is owner and not is_parameter:
        return False
    around = [outer for outer in file.ancestors(step.node) if isinstance(outer, (*LOOPS, cst.While))]
    is_before = all(isinstance(node, cst.AssignTarget) and file.position(node) < step.position for node in bound)
    is_outside = not any(outer is loop for node in bound for outer in file.ancestors(node) for loop in around)
    return not bound or (first is not owner and len(bound) == 1 and is_before and is_outside)


def _is_held_between(step: Step, place: Place) -> bool:
    """Return whether a name that is stepped holds the same optimizer at a place before, in the same round of loops."""
    owner, file, function = step.owner, step.file, step.function
    around = next((outer for outer in file.ancestors(step.node) if isinstance(outer, (*LOOPS, cst.While))), None)
    if not isinstance(owner, cst.Name) or not (around is None or any(a is around for a in file.ancestors(place.node))):
        return False
    return not any(
        place.position < file.position(node) < step.position
        for node in file.nodes(cst.Name, below=function.body if function is not None else file.module)
        if node.value == owner.value and isinstance(file.parent(node), _BINDING)
    )


def _is_of_one_round(step: Step, place: Place) -> bool:
    """Return whether a loop around both goes through optimizers, and the place names what the loop is at."""
    owner, file = step.owner, step.file
    index = next(indices_of(owner), None) if isinstance(owner, cst.Subscript) else owner
    if not isinstance(index, cst.Name) or dotted(without_index(owner)) is None:
        return False
    loops = [loop for loop in _loops(step) if index.value in names_in(loop.target)][:1]
    inner = [loop for loop in _loops(place) if not any(loop is outer for outer in _loops(step))]
    if not loops or not any(loops[0] is loop for loop in _loops(place)):
        return False
    below = file.nodes(cst.AssignTarget, cst.For, cst.CompFor, below=loops[0].body)
    named = {
        n.value for part in (place.node, *(loop.iter for loop in inner)) for n in walk(part) if isinstance(n, cst.Name)
    }
    is_bound_again = any(index.value in names_in(node.target) for node in below)
    return not is_bound_again and not named.isdisjoint(names_in(loops[0].target))


def _loops(place: Place) -> list[cst.For]:
    return [outer for outer in place.file.ancestors(place.node) if isinstance(outer, cst.For)]


def _statement(place: Place, plan: ProgramPlan) -> cst.BaseStatement | None:
    """Return the statement before which all ranks average: the outermost that holds no backward pass and no step.

    None where a handler of exceptions holds the place, as one rank may come there alone.
    """
    file = place.file
    events = {id(node) for node in _events(file, place.function, plan)}
    found: cst.BaseStatement | None = None
    is_outermost = False
    for outer in (place.node, *file.ancestors(place.node)):
        if isinstance(outer, cst.ExceptHandler):
            return None
        if isinstance(outer, (cst.FunctionDef, cst.ClassDef)):
            break
        if any(id(node) in events for node in walk(outer)):
            is_outermost = True
        if is_outermost:
            continue
        around = file.parent(outer)
        is_elif = isinstance(around, cst.If) and around.orelse is outer
        if isinstance(outer, (cst.SimpleStatementLine, cst.BaseCompoundStatement)) and not is_elif:
            found = outer
    return found


def _events(file: SourceFile, function: cst.FunctionDef | None, plan: ProgramPlan) -> list[cst.CSTNode]:
    """Return what computes or uses gradients in a function, also through others that it calls."""
    operations: list[Place] = [*plan.facts.operations.steps, *plan.facts.operations.backwards]
    found: list[cst.CSTNode] = []
    for each in operations:
        if each.file is file and each.function is function:
            found.append(each.node)
        else:
            found += plan.facts.flow.callers.leading_to(each.function, file, function)
    return found
