"""The engine of each step and of each backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import libcst as cst

from ds_migrate.plain.dataflow.branches.equal_tests import never_meet
from ds_migrate.plain.dataflow.values import NOTHING, Kind, of_kind
from ds_migrate.plain.decisions.engines.optional_engines import tests_of_optimizer
from ds_migrate.plain.decisions.naming.engine_names import KeptInModuleError, UntracedError
from ds_migrate.plain.decisions.naming.visible_engines import VisibleEngines
from ds_migrate.plain.decisions.plan import LOOKED_UP, Note, ProgramPlan
from ds_migrate.plain.recognition.facts import Backward, LoopFacts, Place, Refusal, Site, Step
from ds_migrate.plain.recognition.steps.operations import is_set_to_none
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import code, receiver
from ds_migrate.syntax.source import SourceFile

_Assigned = tuple[str, list[Step]]  # the engine of a backward pass, and the steps that use its gradients


def name_steps(plan: ProgramPlan) -> ProgramPlan:
    """Give each step the expression of its engine."""
    steps: list[tuple[Step, str]] = []
    refusals: list[Refusal] = []
    for step in plan.facts.operations.steps:
        try:
            steps.append((step, plan.names.at(step.owner, step.file)))
        except UntracedError as error:
            held = frozenset(value for site in plan.facts.sites for value in site.optimizers)
            if plan.facts.options.runtime and step.optimizers <= held:
                steps.append((step, LOOKED_UP))
                continue
            if isinstance(error, KeptInModuleError):
                refusals.append(
                    Refusal(
                        Code.PLAIN_IN_MODULE, error.file, error.node,
                        f"{code(error.node)} is an attribute of a module, which would have the engine as a part if it "
                        "kept that too",
                        "leave out --no-runtime, or keep the optimizer outside of the module",
                    )
                )  # fmt: skip
                continue
            refusals.append(
                Refusal(
                    Code.PLAIN_UNTRACED, error.file, error.node,
                    f"cannot follow the optimizer from where it is made to where it steps: {error}",
                    "hand it on as an argument or as an attribute of self",
                )
            )  # fmt: skip
    return replace(plan, steps=steps, keeps_scaling=_keeps_scaling(steps, plan.facts)).refuse(refusals)


def _keeps_scaling(steps: Sequence[tuple[Step, str]], facts: LoopFacts) -> bool:
    """Return whether a GradScaler stays the program's.

    So it is for several engines, without a name, where a variable keeps the scaled loss, and where ``update()`` has no
    step: a batch whose gradients are not finite may leave it out.
    """
    flow = facts.flow
    scaled = [(step, name) for step, name in steps if step.scaler is not None]
    scalers = NOTHING.union(*(flow.values(step.scaler, step.file) for step, _ in scaled if step.scaler is not None))
    calls = [
        (file, call) for file, call in flow.nodes(cst.Call)
        if (owner := receiver(call, "update", "scale")) is not None
        and of_kind(flow.values(owner, file) & scalers, Kind.SCALER)
    ]  # fmt: skip
    updates = [call for _, call in calls if receiver(call, "update") is not None and not call.args]
    is_kept = any(
        receiver(call, "scale") is not None and isinstance(file.parent(call), (cst.Assign, cst.IfExp))
        for file, call in calls
    )
    is_looked_up = any(name is LOOKED_UP for _, name in scaled)
    return bool(scaled) and (len(facts.sites) > 1 or is_looked_up or is_kept or len(updates) > len(scaled))


def assign_backwards(plan: ProgramPlan) -> ProgramPlan:
    """Determine which engine each backward pass belongs to: the one that steps next.

    Where that cannot be determined, as in a function that attacks inputs, or the program scales losses itself, it stays
    torch's own, which stage 0 allows: the engine averages what gradients hold at the step.
    """
    backwards: list[tuple[Backward, str]] = []
    fed: dict[Backward, list[Step]] = {}
    left: list[Backward] = []
    refusals: list[Refusal] = []
    for backward in plan.facts.operations.backwards:
        found = _engine_of(backward, plan)
        if isinstance(found, Refusal):
            refusals.append(found)
        elif found is None:
            left.append(backward)
        else:
            name, fed[backward] = found
            if name is LOOKED_UP or plan.keeps_scaling:
                left.append(backward)
            else:
                backwards.append((backward, name))
    is_one = len(plan.facts.sites) == 1
    is_elsewhere = is_one and any(_steps_called_beside(b, plan.facts) for b in fed if not _steps_beside(b, plan))
    used = [step for steps in fed.values() for step in steps]
    functions = {id(step.function) for step in used}
    refusals += [
        _unfed(step, plan.facts)
        for step, _ in plan.steps
        if id(step.function) not in functions and not (left or step in used)
    ]
    notes = [
        Note(
            Code.PLAIN_BACKWARD, backward.file, backward.node,
            "with an optimizer of second order this ends with an error: an engine has no create_graph",
            "choose an optimizer that takes gradients alone",
        )
        for backward, _ in backwards
        if backward.second_order is not None
    ]  # fmt: skip
    plan = replace(plan, backwards=backwards, fed=fed, left=left, steps_elsewhere=is_elsewhere)
    return replace(plan, notes=[*plan.notes, *notes]).refuse(refusals)


def _unfed(step: Step, facts: LoopFacts) -> Refusal:
    """Return why a step stays that no backward pass is known to be for."""
    if _sets_gradients(step, facts):
        return Refusal(
            Code.PLAIN_GRADIENTS, step.file, step.node,
            "step() uses gradients that are set by hand, without backward()",
            "call backward() on a loss that has these gradients",
        )  # fmt: skip
    return Refusal(
        Code.PLAIN_BACKWARD, step.file, step.node, "cannot determine which backward() this step() uses",
        "call backward() and step() in the same function",
    )  # fmt: skip


def _sets_gradients(step: Step, facts: LoopFacts) -> bool:
    """Return whether the function of a step, or one that it calls, assigns gradients: ``p.grad = p - target``."""
    return any(
        isinstance(file.parent(node), cst.AssignTarget)
        and not is_set_to_none(node, file)
        and (
            (file is step.file and file.function(node) is step.function)
            or bool(facts.flow.callers.leading_to(file.function(node), step.file, step.function))
        )
        for file, node in facts.flow.attributes("grad")
    )


def _engine_of(backward: Backward, plan: ProgramPlan) -> _Assigned | Refusal | None:
    """Return the engine of a backward pass; None where it cannot be determined."""
    steps = _steps_beside(backward, plan)
    if not steps:
        return _engine_from_afar(backward, plan)
    after = [s for s in steps if s.position > backward.position] or _next_round(backward, steps, plan)
    if not after:
        return Refusal(
            Code.PLAIN_BACKWARD, backward.file, backward.node, "no step() follows this backward()",
            "call backward() before the step() that uses its gradients",
        )  # fmt: skip
    alike = [s for s in after if not never_meet(backward.file, backward.node, s.node)]
    first = min(_always_there(backward, alike or after, plan), key=lambda s: s.position)
    if is_before_engine(backward, [site for site in plan.facts.all_sites if site.optimizers & first.optimizers]):
        return None
    return next(name for s, name in plan.steps if s is first), [first]


def _always_there(backward: Backward, steps: Sequence[Step], plan: ProgramPlan) -> Sequence[Step]:
    """Return those of the steps behind a backward pass whose optimizers no condition leaves out; all where none is."""
    others = [b.position for b in plan.facts.operations.backwards if b.position > backward.position]
    own = [s for s in steps if all(s.position < position for position in others)]
    there = [s for s in own if next(tests_of_optimizer(s, backward, plan.facts), None) is None]
    return there or steps


def _steps_beside(backward: Backward, plan: ProgramPlan) -> list[Step]:
    """Return the steps in the function of a backward pass."""
    return [s for s, _ in plan.steps if s.file is backward.file and s.function is backward.function]


def _next_round(backward: Backward, steps: Sequence[Step], plan: ProgramPlan) -> list[Step]:
    """Return the steps of the next round of a loop, where they are all of one engine."""
    loops = [a for a in backward.file.ancestors(backward.node) if isinstance(a, (cst.For, cst.While))]
    near = [s for s in steps if any(a is loop for a in s.file.ancestors(s.node) for loop in loops)]
    return near if len({name for s, name in plan.steps if s in near}) == 1 else []


def _engine_from_afar(backward: Backward, plan: ProgramPlan) -> _Assigned | None:
    """Return the engine of a backward pass in a function that steps nothing itself, but is called near a step."""
    if len(plan.facts.sites) != 1:
        return _engine_of_one(_steps_behind_calls(backward.function, plan), backward, plan)
    function, operations = backward.function, plan.facts.operations
    steps = _steps_called_beside(backward, plan.facts)
    if not steps:
        calls = plan.facts.flow.callers.of(function) if function is not None else ()
        stepping = {id(s.function) for s in operations.steps}
        own = {id(b.function) for b in operations.backwards}
        near = [id(file.function(call)) for file, call in calls if id(file.function(call)) in stepping]
        if not near or any(caller in own for caller in near):
            return None
        steps = [s for s in operations.steps if id(s.function) in stepping]
    name = VisibleEngines(plan).find(function, backward.file, plan.facts.sites[0].optimizers)
    return None if name is None else (name, steps)


def _engine_of_one(steps: list[Step], backward: Backward, plan: ProgramPlan) -> _Assigned | None:
    """Return the engine of a backward pass before steps that are all of one optimizer of several."""
    sites = [site for site in plan.facts.sites if any(step.optimizers & site.optimizers for step in steps)]
    if len(sites) != 1:
        return None
    name = VisibleEngines(plan).find(backward.function, backward.file, sites[0].optimizers)
    return None if name is None else (name, steps)


def _steps_behind_calls(function: cst.FunctionDef | None, plan: ProgramPlan) -> list[Step]:
    """Return the steps behind each call that leads to a function, up to the next one; none where a call has none."""
    found: list[Step] = []
    todo, seen = [function], [function]
    while todo:
        current = todo.pop()
        calls = plan.facts.flow.callers.of(current) if current is not None else ()
        for file, call in calls:
            around = file.function(call)
            steps = [s for s, _ in plan.steps if s.file is file and s.function is around]
            after = [s for s in steps if s.position > file.position(call)]
            if after:
                near = [s for s in after if s.position < _next_backward(call, file, plan)]
                found += near or [min(after, key=lambda s: s.position)]
            elif steps or any(around is known for known in seen):
                return []
            else:
                seen.append(around)
                todo.append(around)
        if not calls:
            return []
    return found


def _next_backward(call: cst.Call, file: SourceFile, plan: ProgramPlan) -> tuple[float, float]:
    """Return the position of what may be the next backward pass behind a call, in its function."""
    function, facts = file.function(call), plan.facts
    leading = [c for b in facts.operations.backwards for c in facts.flow.callers.leading_to(b.function, file, function)]
    own = [b.node for b in facts.operations.backwards if b.file is file and b.function is function]
    behind = [file.position(node) for node in (*leading, *own) if file.position(node) > file.position(call)]
    return min(behind, default=(inf, inf))


def _steps_called_beside(place: Place, facts: LoopFacts) -> list[Step]:
    """Return the steps in functions that are called where a place is, as in the ``step()`` of a wrapper."""
    return [s for s in facts.operations.steps if facts.flow.callers.leading_to(s.function, place.file, place.function)]


def step_places(site: Site, plan: ProgramPlan) -> list[tuple[Place, Step]]:
    """Return where the optimizer of an engine steps: where functions that do it are called beside backward()."""
    found: list[tuple[Place, Step]] = []
    for step, _ in plan.steps:
        if not step.optimizers & site.optimizers:
            continue
        around = {
            id(call): Place(backward.file, call)
            for backward, steps in (plan.fed.items() if plan.steps_elsewhere else ())
            if step in steps and backward.function is not step.function
            for call in plan.facts.flow.callers.leading_to(step.function, backward.file, backward.function)
        }
        found += [(place, step) for place in around.values()] or [(step, step)]
    return found


def is_beside(one: Place, other: Place) -> bool:
    """Return whether two places are in the same function."""
    return one.file is other.file and one.function is other.function


def is_before_engine(place: Place, sites: Sequence[Site]) -> bool:
    """Return whether a place runs before any of the engines is made: all are made in its function, behind it."""
    return bool(sites) and all(
        site.file is place.file
        and site.function is place.function
        and place.position < site.file.position(site.statement)
        for site in sites
    )


def places_beside(place: Place, site: Site, plan: ProgramPlan) -> list[tuple[Place, Step]]:
    """Return where the optimizer of an engine steps in the function of a place, as in the ``step()`` of a wrapper."""
    own: list[tuple[Place, Step]] = [(step, step) for step, _ in plan.steps if step.optimizers & site.optimizers]
    beside = [pair for pair in (*step_places(site, plan), *own) if is_beside(pair[0], place)]
    return list({id(at.node): (at, step) for at, step in beside}.values())
