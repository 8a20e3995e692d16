"""The calls of a GradScaler's methods: those that an engine does go, and each other one must be harmless."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from ds_migrate.plain.dataflow.branches.blocks import block_path
from ds_migrate.plain.dataflow.branches.dead_branches import is_dead
from ds_migrate.plain.dataflow.flow import Flow
from ds_migrate.plain.dataflow.values import NOTHING, Kind, Values, of_kind
from ds_migrate.plain.decisions.gradients.averaging import find_averagings
from ds_migrate.plain.decisions.plan import Averaging, ProgramPlan
from ds_migrate.plain.decisions.scaling.scaler_branches import InexactScalingError
from ds_migrate.plain.recognition.facts import Backward, Clip, LoopFacts, Place, Site, Step
from ds_migrate.plain.recognition.steps.operations import UNKNOWN_SCALER
from ds_migrate.syntax.nodes import argument
from ds_migrate.syntax.source import SourceFile

_HARMLESS = frozenset(
    {"state_dict", "load_state_dict", "is_enabled", "get_scale", "get_growth_factor", "get_backoff_factor",
     "get_growth_interval"}
)  # fmt: skip


_METHODS = ("scale", "step", "unscale_", "update")
_UNKNOWN_CALL = "cannot determine which backward() or step() this call of a GradScaler is for"
_WRITE = "write scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update() in the loop"


def calls_of_engine(
    plan: ProgramPlan, own: Values, scaled: Iterable[Step | Backward]
) -> tuple[list[Place], list[Place]]:
    """Return the calls of a scaler that its engine does, and those of ``unscale_()`` that need averaged gradients.

    Args:
        own: the scaler.
        scaled: the steps and backward passes that it scales.

    Raises:
        InexactScalingError: the engine would not do the same.
    """
    flow, scaled = plan.facts.flow, list(scaled)
    steps = [place for place in scaled if isinstance(place, Step)]
    handled = {id(place.node) for place in scaled}
    handled |= {id(place.call.func.value) for place in scaled if isinstance(place.call.func, cst.Attribute)}
    _check_references(own, flow)
    updates: list[Place] = []
    unscaled: list[Place] = []
    removed: list[Place] = []
    kept: list[Place] = []
    for file, call, name in _calls(own, flow):
        place = Place(file, call)
        if name == "update" and call.args:
            continue  # it sets the scale, which the engine reads at the next step
        if name == "update":
            updates.append(place)
        elif name == "unscale_":
            unscaled.append(place)
            (removed if _goes_with_clipping(place, plan) else kept).append(place)
        elif id(call) not in handled and name not in _HARMLESS and not (plan.keeps_scaling and name == "scale"):
            raise InexactScalingError(_UNKNOWN_CALL, file, call, _WRITE)
    if plan.keeps_scaling:
        _check_clips(steps, unscaled, plan)
        _check_escapes(own, flow)
        return removed, kept
    for step in steps:
        update = _update_after(step, updates, own, flow)
        updates.remove(update)
        removed.append(update)
    _check_clips(steps, unscaled, plan)
    _check_escapes(own, flow)
    return removed, [] if plan.is_managed else kept


def check_unknown(operations: Iterable[Step | Backward], facts: LoopFacts) -> None:
    """Refuse a scaler that is not known as one: it would scale what the engine steps.

    Raises:
        InexactScalingError: there is one.
    """
    operations = list(operations)
    stepped = {id(place.node) for place in operations if isinstance(place, Step)}
    found: list[Place] = [
        place for place in operations
        if isinstance(place, Backward) and place.scaler is None and _method(place.loss) == "scale"
    ]  # fmt: skip
    for file, call in facts.flow.nodes(cst.Call):
        is_other = _method(call) == "step" and call.args and id(call) not in stepped
        if is_other and not is_dead(call, file, facts.flow):
            given = facts.flow.values(call.args[0].value, file)
            if any(given & site.optimizers for site in facts.sites):
                found.append(Place(file, call))
    for place in found:
        message, way_out = UNKNOWN_SCALER
        raise InexactScalingError(message, place.file, place.node, way_out)


def _check_references(own: Values, flow: Flow) -> None:
    """Refuse methods of a scaler that are not called where they are named: ``step = scaler.step``."""
    for file in flow.files.values():
        for node in (node for name in _METHODS for node in file.attributes_by_name.get(name, ())):
            around = file.parent(node)
            if not (isinstance(around, cst.Call) and around.func is node) and flow.values(node.value, file) & own:
                raise InexactScalingError(_UNKNOWN_CALL, file, node, _WRITE)


def _calls(own: Values, flow: Flow) -> Iterator[tuple[SourceFile, cst.Call, str]]:
    """Yield the calls of a scaler's methods."""
    for file, call in flow.nodes(cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and flow.values(func.value, file) & own:
            yield file, call, func.attr.value


def _method(node: cst.CSTNode) -> str | None:
    """Return the name of the method that a call calls."""
    return node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None


def _are_gradients_read(place: Place, plan: ProgramPlan) -> bool:
    """Return whether gradients may be read around an ``unscale_()``, other than behind the step that uses them."""
    steps = [s.position for s, _ in plan.steps if s.file is place.file and s.function is place.function]
    step = min((position for position in steps if position > place.position), default=None)
    backwards = [b.position for b in plan.fed if b.file is place.file and b.function is place.function]
    backward = max((position for position in backwards if position < place.position), default=None)
    reads = [
        Place(place.file, node) for node in place.file.attributes_by_name.get("grad", ())
        if not of_kind(plan.facts.flow.values(node.value, place.file), Kind.EXTERNAL)  # torch.autograd.grad
        and not plan.facts.operations.is_attacked(node.value, place.file)
    ]  # fmt: skip
    if step is None or backward is None:
        return bool(reads)
    return any(read.function is not place.function or backward < read.position < step for read in reads)


def _goes_with_clipping(place: Place, plan: ProgramPlan) -> bool:
    """Return whether ``unscale_()`` goes, as it is before clipping that moves to the config.

    Raises:
        InexactScalingError: it stays, and gradients are not averaged by then.
    """
    sites = _unscaled_sites(place, plan)
    is_kept = not any(site in plan.clip_norms for site in sites)
    if is_kept and (plan.is_managed or averagings_of(place, plan)):
        return False
    moved = [c for c in plan.facts.operations.clips if c in plan.removed and c.function is place.function]
    is_beside = block_path(place.node, place.file) in [block_path(clip.node, clip.file) for clip in moved]
    if (
        is_kept
        or not all(site in plan.clip_norms for site in sites)
        or not is_beside
        or _are_gradients_read(place, plan)
        or not isinstance(place.file.parent(place.node), cst.Expr)
    ):
        raise InexactScalingError(
            "gradients are unscaled here before the engine averages them over ranks", place.file, place.node,
            "call scaler.unscale_(optimizer) and clip_grad_norm_ right before scaler.step(optimizer)",
        )  # fmt: skip
    return True


def averagings_of(place: Place, plan: ProgramPlan) -> list[Averaging]:
    """Return where engines average the gradients that an ``unscale_()`` divides."""
    modules = frozenset(value for site in _unscaled_sites(place, plan) for value in site.of)
    return find_averagings(place, plan, modules if len(plan.facts.sites) > 1 else NOTHING)


def _unscaled_sites(place: Place, plan: ProgramPlan) -> list[Site]:
    """Return the sites of the optimizers whose gradients an ``unscale_()`` divides; all where that is unknown."""
    assert isinstance(place.node, cst.Call)
    given = argument(place.node, 0, "optimizer")
    held = plan.facts.flow.values(given.value, place.file) if given is not None else NOTHING
    return [site for site in plan.facts.sites if held & site.optimizers] or list(plan.facts.sites)


def _update_after(step: Step, updates: list[Place], own: Values, flow: Flow) -> Place:
    """Return the ``update()`` that follows a step in its block: the engine does both at once.

    Raises:
        InexactScalingError: there is none, or something is between them.
    """
    after = [
        u for u in updates
        if u.file is step.file and u.function is step.function and u.position > step.position
        and block_path(u.node, u.file) == block_path(step.node, step.file)
    ]  # fmt: skip
    update = min(after, key=lambda u: u.position, default=None)
    way_out = "call scaler.update() without arguments right after scaler.step(optimizer)"
    if update is None:
        raise InexactScalingError("no update() of the GradScaler follows this step()", step.file, step.node, way_out)
    call = update.node
    assert isinstance(call, cst.Call)
    between = [
        c for file, c, _ in _calls(own, flow)
        if file is step.file and step.position < file.position(c) < update.position
    ]  # fmt: skip
    is_statement = all(isinstance(step.file.parent(c), cst.Expr) for c in (call, step.call))
    if between or not is_statement:
        raise InexactScalingError(
            "step() and update() of the GradScaler cannot be done at once", step.file, call, way_out
        )
    return update


def _check_clips(steps: list[Step], unscaled: list[Place], plan: ProgramPlan) -> None:
    """Refuse gradients that are clipped while they are scaled: the engine unscales them first."""
    for clip in [c for c in plan.removed if isinstance(c, Clip)]:
        path = block_path(clip.node, clip.file)
        near = [p for p in (*steps, *unscaled) if p.file is clip.file and p.function is clip.function]
        near = [p for p in near if block_path(p.node, p.file) == path]
        if any(isinstance(p, Step) for p in near) and not any(
            p.position < clip.position and not isinstance(p, Step) for p in near
        ):
            raise InexactScalingError(
                "gradients are clipped here while they are still scaled", clip.file, clip.node,
                "call scaler.unscale_(optimizer) right before clip_grad_norm_",
            )  # fmt: skip


def _check_escapes(own: Values, flow: Flow) -> None:
    """Refuse a scaler that is given to a call that is not of this program: what it does there is unknown."""
    for file, call in flow.nodes(cst.Call):
        given = [a for a in call.args if flow.values(a.value, file) & own]
        callees = flow.values(call.func, file)
        if given and not of_kind(callees, Kind.FUNCTION, Kind.METHOD, Kind.CLASS):
            raise InexactScalingError(
                "the GradScaler is given to a call that cannot be followed", file, call,
                "call scaler.scale(), scaler.step() and scaler.update() in the loop",
            )  # fmt: skip
