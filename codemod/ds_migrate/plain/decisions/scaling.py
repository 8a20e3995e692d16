"""The GradScaler of a program: its engine uses the program's own one, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ds_migrate.plain.dataflow.dead_branches import is_dead
from ds_migrate.plain.dataflow.torch_names import SCALERS
from ds_migrate.plain.dataflow.values import Kind, Values, of_kind
from ds_migrate.plain.decisions.plan import Attachment, block_path
from ds_migrate.plain.recognition.facts import Backward, Place, Site, Step
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.nodes import argument, dotted, targets
from ds_migrate.syntax.source import SourceFile

if TYPE_CHECKING:
    from ds_migrate.plain.decisions.decider import Decider

_HARMLESS = frozenset(
    {"state_dict", "load_state_dict", "is_enabled", "get_scale", "get_growth_factor", "get_backoff_factor",
     "get_growth_interval"}
)  # fmt: skip


class InexactScalingError(Exception):
    def __init__(self, message: str, file: SourceFile, node: cst.CSTNode, way_out: str) -> None:
        super().__init__(message)
        self.file, self.node, self.way_out = file, node, way_out


def decide_scaling(decider: Decider) -> None:
    """Choose where the engine gets the scaler, and which of the scaler's calls go; refuse what is not exact so."""
    fed = [backward for backward, _ in decider.plan.backwards]
    operations: list[Step | Backward] = [*decider.operations.steps, *fed]
    scaled = [place for place in operations if place.scaler is not None]
    try:
        _check_unknown(decider, operations)
        if not scaled:
            return
        _decide(decider, scaled, [place for place in operations if place.scaler is None])
    except InexactScalingError as error:
        decider.plan.refuse(Code.PLAIN_PRECISION, error.file, error.node, str(error), error.way_out)


def _decide(decider: Decider, scaled: list[Step | Backward], others: list[Step | Backward]) -> None:
    first = scaled[0]
    if len(decider.sites) != 1:
        raise InexactScalingError(
            "a GradScaler serves several optimizers, and each engine's step() would update it", first.file, first.node,
            "give all parameters to one optimizer, or use torch.autocast with bfloat16, which needs no scaler",
        )  # fmt: skip
    own = frozenset(
        value for place in scaled if place.scaler is not None
        for value in of_kind(decider.flow.values(place.scaler, place.file), Kind.SCALER)
    )  # fmt: skip
    makers = list(_makers(decider, own))
    decider.plan.attachments = _attachments(makers, decider.sites[0], first)
    for other in others:
        if not _is_unscaled_branch(decider, other, scaled, makers):
            raise InexactScalingError(
                "a GradScaler scales some losses or steps of this optimizer, and this one not", other.file, other.node,
                "make the scaler with enabled=<the condition>, and use it on every path",
            )  # fmt: skip
    handled = {id(place.node) for place in scaled}
    handled |= {id(place.call.func.value) for place in scaled if isinstance(place.call.func, cst.Attribute)}
    steps = [place for place in scaled if isinstance(place, Step)]
    updates: list[Place] = []
    unscaled: list[Place] = []
    for file, call, name in _calls(decider, own):
        place = Place(file, call)
        if name == "update":
            updates.append(place)
        elif name == "unscale_":
            _unscale(decider, place)
            unscaled.append(place)
        elif id(call) not in handled and name not in _HARMLESS:
            raise InexactScalingError(
                "cannot determine which backward() or step() this call of a GradScaler is for",
                file, call,
                "write scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update() in the loop",
            )  # fmt: skip
    for step in steps:
        _pair(decider, own, step, updates)
    for left in updates:
        raise InexactScalingError(
            "update() follows no step() in its block", left.file, left.node, "call scaler.update() after scaler.step()"
        )  # fmt: skip
    _check_clips(decider, steps, unscaled)
    _check_escapes(decider, own)


def _makers(decider: Decider, own: Values) -> Iterator[tuple[SourceFile, cst.Call]]:
    for file in decider.flow.files.values():
        for call in file.nodes(cst.Call):
            for value in decider.flow.values(call, file):
                if value in own and value.key == id(call):
                    if value.name not in SCALERS:
                        raise InexactScalingError(
                            f"{value.name} is no GradScaler of torch", file, call, "use torch.amp.GradScaler"
                        )
                    yield file, call


def _attachments(makers: list[tuple[SourceFile, cst.Call]], site: Site, first: Place) -> list[Attachment]:
    found: list[Attachment] = []
    names = set()
    for file, call in makers:
        statement = file.statement(call)
        assign = next((a for a in file.ancestors(call) if isinstance(a, (cst.Assign, cst.AnnAssign))), None)
        held = [dotted(t) for t in targets(assign)] if assign is not None else []
        name = held[0] if len(held) == 1 else None
        names.add(name)
        own, there = block_path(call, file), block_path(site.statement, site.file)
        is_near = file is site.file and file.function(call) is site.function
        if name is None or not is_near:
            break
        if file.position(statement) > site.file.position(site.statement):
            if own[: len(there)] != there:
                break
            found.append(Attachment(file, statement, name))
        elif there[: len(own)] == own:
            found.append(Attachment(file, site.statement, name))
        else:
            break
    if len(found) != len(makers) or len(names) != 1 or not found:
        raise InexactScalingError(
            "the engine cannot get the GradScaler: it is not made under one name in the function of the optimizer",
            first.file, first.node, "make one GradScaler in the function that makes the optimizer",
        )  # fmt: skip
    if len(found) > 1 and any(each.statement is site.statement for each in found):
        return [each for each in found if each.statement is site.statement][:1] + [
            each for each in found if each.statement is not site.statement
        ]
    return found


def _is_unscaled_branch(
    decider: Decider, other: Place, scaled: list[Step | Backward], makers: list[tuple[SourceFile, cst.Call]]
) -> bool:
    """Return whether a place runs where the scaler is off or None: in the other branch of the test of that."""
    if len(makers) != 1:
        return False
    file, maker = makers[0]
    condition = _condition(file, maker)
    for test, (node, taken) in _branches(other).items():
        if taken or not any(_branches(place).get(test, (node, False))[1] for place in scaled):
            continue
        if of_kind(decider.flow.values(node, other.file), Kind.SCALER):
            if other.function is file.function(maker) or _is_given(decider, test, other, file.function(maker)):
                return True
        elif test == condition and other.function is file.function(maker) and _is_set_once(test, file):
            return other.file is file
    return False


def _is_given(decider: Decider, parameter: str, place: Place, makes: cst.FunctionDef | None) -> bool:
    """Return whether each call of a function gives it the scaler, from where that is made."""
    calls = decider.callers.of(place.function) if place.function is not None else ()
    for file, call in calls:
        assert place.function is not None
        arg = decider.flow.given(call, place.function, parameter, file)
        if arg is None or not of_kind(decider.flow.values(arg.value, file), Kind.SCALER):
            return False
        if file.function(call) is not makes:
            return False
    return bool(calls)


def _branches(place: Place) -> dict[str, tuple[cst.BaseExpression, bool]]:
    """Return the names that are tested around a place, and whether it runs where they hold and are not None."""
    found: dict[str, tuple[cst.BaseExpression, bool]] = {}
    inner: cst.CSTNode = place.node
    for outer in place.file.ancestors(place.node):
        if isinstance(outer, cst.FunctionDef):
            break
        if isinstance(outer, cst.If) and (inner is outer.body or inner is outer.orelse):
            tested, is_present = _tested(outer.test)
            name = dotted(tested)
            if name is not None:
                found.setdefault(name, (tested, (inner is outer.body) is is_present))
        inner = outer
    return found


def _tested(test: cst.BaseExpression) -> tuple[cst.BaseExpression, bool]:
    """Return what a test is about, and whether it holds where that is there."""
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        (target,) = test.comparisons
        if dotted(target.comparator) == "None" and isinstance(target.operator, (cst.Is, cst.IsNot)):
            return test.left, isinstance(target.operator, cst.IsNot)
    return test, True


def _condition(file: SourceFile, call: cst.Call) -> str | None:
    """Return the name on which a scaler depends: of its ``enabled``, or of the branch that makes it."""
    enabled = argument(call, None, "enabled")
    if enabled is not None:
        return dotted(enabled.value)
    around = file.parent(call)
    if isinstance(around, cst.IfExp) and around.body is call and dotted(around.orelse) == "None":
        return dotted(around.test)
    return None


def _is_set_once(name: str, file: SourceFile) -> bool:
    found = [
        n for n in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign)
        if any(dotted(t) in (name, name.partition(".")[0]) for t in targets(n))
    ]  # fmt: skip
    return len(found) <= 1


def _calls(decider: Decider, own: Values) -> Iterator[tuple[SourceFile, cst.Call, str]]:
    """Yield the calls of a scaler's methods."""
    for file in decider.flow.files.values():
        for call in file.nodes(cst.Call):
            func = call.func
            if isinstance(func, cst.Attribute) and decider.flow.values(func.value, file) & own:
                yield file, call, func.attr.value


def _unscale(decider: Decider, place: Place) -> None:
    """Remove a call before clipping that moves to the config; leave others, where gradients are averaged by then."""
    site = decider.sites[0]
    moved = [c for c in decider.operations.clips if c in decider.plan.removed and c.function is place.function]
    is_kept = site not in decider.moved_clips
    paths = [block_path(clip.node, clip.file) for clip in moved]
    if is_kept and decider.is_managed:
        return
    own = block_path(place.node, place.file)
    reads = any(n.attr.value == "grad" for n in place.file.nodes(cst.Attribute))
    if is_kept or own not in paths or reads or not isinstance(place.file.parent(place.node), cst.Expr):
        raise InexactScalingError(
            "gradients are unscaled here before the engine averages them over ranks", place.file, place.node,
            "call scaler.unscale_(optimizer) and clip_grad_norm_ right before scaler.step(optimizer)",
        )  # fmt: skip
    decider.plan.scaler_calls.append(place)


def _check_clips(decider: Decider, steps: list[Step], unscaled: list[Place]) -> None:
    """Refuse gradients that are clipped while they are scaled: the engine unscales them first."""
    for clip in [clip for clip in decider.operations.clips if clip in decider.plan.removed]:
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


def _pair(decider: Decider, own: Values, step: Step, updates: list[Place]) -> None:
    """Remove the ``update()`` that follows a step in its block: the engine does both at once."""
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
        c for file, c, _ in _calls(decider, own)
        if file is step.file and step.position < file.position(c) < update.position
    ]  # fmt: skip
    is_statement = all(isinstance(step.file.parent(c), cst.Expr) for c in (call, step.call))
    if between or call.args or not is_statement:
        raise InexactScalingError(
            "step() and update() of the GradScaler cannot be done at once", step.file, call, way_out
        )
    updates.remove(update)
    decider.plan.scaler_calls.append(update)


def _check_unknown(decider: Decider, operations: list[Step | Backward]) -> None:
    """Refuse a scaler that is not known as one: it would scale what the engine steps."""
    stepped = {id(place.node) for place in operations if isinstance(place, Step)}
    found: list[Place] = [
        place for place in operations
        if isinstance(place, Backward) and place.scaler is None and _method(place.loss) == "scale"
    ]  # fmt: skip
    for file in decider.flow.files.values():
        for call in file.nodes(cst.Call):
            is_other = _method(call) == "step" and call.args and id(call) not in stepped
            if is_other and not is_dead(call, file, decider.flow, decider.callers):
                given_values = decider.flow.values(call.args[0].value, file)
                if any(given_values & site.optimizers for site in decider.sites):
                    found.append(Place(file, call))
    for place in found:
        raise InexactScalingError(
            "cannot determine which GradScaler this is", place.file, place.node,
            "make it in this program with torch.amp.GradScaler, and pass it on as an argument or an attribute",
        )  # fmt: skip


def _method(node: cst.CSTNode) -> str | None:
    """Return the name of the method that a call calls."""
    return node.func.attr.value if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) else None


def _check_escapes(decider: Decider, own: Values) -> None:
    """Refuse a scaler that is given to a call that is not of this program: what it does there is unknown."""
    for file in decider.flow.files.values():
        for call in file.nodes(cst.Call):
            given = [a for a in call.args if decider.flow.values(a.value, file) & own]
            callees = decider.flow.values(call.func, file)
            if given and not of_kind(callees, Kind.FUNCTION, Kind.METHOD, Kind.CLASS):
                raise InexactScalingError(
                    "the GradScaler is given to a call that cannot be followed", file, call,
                    "call scaler.scale(), scaler.step() and scaler.update() in the loop",
                )  # fmt: skip
