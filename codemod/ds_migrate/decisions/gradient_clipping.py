"""The clipping of each optimizer's gradients: by its engine, to a norm in the config, or by the trial's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from ds_migrate.syntax.nodes import children, code, dotted, number, targets
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.trial.clipping import clip_norm
from ds_migrate.trial.model import Optimizer, Step, Trial


@dataclass(frozen=True)
class Clipping:
    """``max_norm`` is the L2 norm as an expression of ``__init__`` (None: the function is kept and called)."""

    max_norm: cst.BaseExpression | None
    function: cst.BaseExpression | None = None

    @property
    def literal(self) -> int | float | None:
        """The norm when it is written as a number."""
        return None if self.max_norm is None else number(self.max_norm)


def choose_clipping(trial: Trial, engine_function: cst.FunctionDef) -> dict[Optimizer, Clipping]:
    """Return how each optimizer's steps clip, without those that do not clip.

    Steps of one optimizer that clip differently keep their functions. ``engine_function`` is where the engine is made.
    """
    found: dict[Optimizer, Clipping] = {}
    for step in trial.steps:
        if step.owner is None or step.clip is None:
            continue
        clipping = _clipping_of(step, step.clip, trial, engine_function)
        known = found.get(step.owner)
        found[step.owner] = clipping if known is None or _is_same(known, clipping) else Clipping(None, step.clip)
    for step in trial.steps:
        # One step clips, another does not: only code can do that.
        if step.owner is not None and step.clip is None and step.owner in found:
            found[step.owner] = Clipping(None, found[step.owner].function)
    return found


def shared_norm(clipping: Mapping[Optimizer, Clipping], optimizers: Sequence[Optimizer]) -> str | None:
    """Return the norm's expression when it is known at run time only and is the same for every engine."""
    norms = {expression_text(c.max_norm) for c in clipping.values() if c.max_norm is not None and c.literal is None}
    plain = [o for o in optimizers if o not in clipping or clipping[o].max_norm is None]
    literal = any(c.literal is not None for c in clipping.values())
    return norms.pop() if len(norms) == 1 and not plain and not literal else None


def shared_literal(clipping: Mapping[Optimizer, Clipping], optimizers: Sequence[Optimizer]) -> int | float | None:
    """Return the norm when it is written as the same number for every engine."""
    values = {clipping[o].literal if o in clipping else None for o in optimizers}
    return values.pop() if len(values) == 1 else None


def _clipping_of(step: Step, clip: cst.BaseExpression, trial: Trial, engine_function: cst.FunctionDef) -> Clipping:
    found = clip_norm(step, trial)
    if found is not None and _is_known_at(*found, step, trial, engine_function):
        return Clipping(found[0])
    return Clipping(None, clip)


def _is_same(one: Clipping, other: Clipping) -> bool:
    return one.max_norm is not None and other.max_norm is not None and one.max_norm.deep_equals(other.max_norm)


def _is_known_at(
    norm: cst.BaseExpression,
    definition: cst.CSTNode,
    step: Step,
    trial: Trial,
    engine_function: cst.FunctionDef,
) -> bool:
    """Return whether the norm has its final value where the engine is made: nothing local to another function, nothing
    set again after ``__init__``."""
    if number(norm) is not None:
        return True
    file = step.use.file
    home = next((a for a in (definition, *file.ancestors(definition)) if isinstance(a, cst.FunctionDef)), None)
    set_in_init, set_later = _attribute_writes(trial)
    changing = {item.name.value for node in file.nodes(cst.Global, cst.Nonlocal) for item in node.names}
    stack: list[cst.CSTNode] = [norm]
    local = {p.name.value for f in (home, step.use.function) if f is not None for p in f.params.params} | {
        n.target.value
        for f in (home, step.use.function)
        if f is not None
        for n in file.nodes(cst.AssignTarget, below=f)
        if isinstance(n.target, cst.Name)
    }
    while stack:
        node = stack.pop()
        name = dotted(node)
        if name is not None:
            parts = name.split(".")
            if parts[0] == "self":
                if len(parts) < 2 or parts[1] in set_later or parts[1] not in set_in_init:
                    return False
                continue
            if (parts[0] in local and home is not engine_function) or parts[0] in changing:
                return False
            continue
        if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr, cst.Lambda)):
            return False
        if isinstance(node, cst.Arg):
            stack.append(node.value)
            continue
        stack.extend(children(node))
    return True


def _attribute_writes(trial: Trial) -> tuple[set[str], set[str]]:
    """Return the attributes of self set in ``__init__``, and those set anywhere else: in other methods, by
    name, on the trial by other code."""
    first: set[str] = set()
    later: set[str] = set()
    own: set[cst.CSTNode] = set()
    for part, function in trial.methods():
        into = first if function.name.value == "__init__" else later
        for node in part.file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign, below=function):
            own.add(node)
            for target in targets(node):
                text = dotted(target) or code(target)
                if text.startswith("self."):
                    into.add(text.split(".")[1].split("[")[0])
    for file in trial.files:
        for node in file.nodes(cst.Assign, cst.AnnAssign, cst.AugAssign):
            for target in targets(node) if node not in own else ():
                holder, _, name = (dotted(target) or "").rpartition(".")
                if holder not in ("", "self"):
                    later.add(name)
        for call in file.nodes(cst.Call):
            if dotted(call.func) == "setattr" and len(call.args) == 3:
                name = call.args[1].value
                later.update([str(name.evaluated_value)] if isinstance(name, cst.SimpleString) else first)
    return first, later
