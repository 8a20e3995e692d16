"""What a ``clip_grads`` function does: plain L2 norm clipping that a config can say, or something only code can."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from ds_migrate.syntax.nodes import (
    argument,
    body_of,
    children,
    code,
    docstring,
    dotted,
    has_star,
    number,
    targets,
    walk,
)
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Step, Trial

_NORM_CLIPS = frozenset(
    {
        "torch.nn.utils.clip_grad_norm_",
        "torch.nn.utils.clip_grad_norm",
        "torch.nn.utils.clip_grad.clip_grad_norm_",
        "torch.nn.utils.clip_grad.clip_grad_norm",
    }
)


@dataclass(frozen=True)
class Clipping:
    """``max_norm`` is the L2 norm as an expression of ``__init__`` (None: the function is kept and called)."""

    max_norm: cst.BaseExpression | None
    function: cst.BaseExpression | None = None

    @property
    def literal(self) -> int | float | None:
        """The norm when it is written as a number."""
        return None if self.max_norm is None else number(self.max_norm)


def clipping_of(step: Step, trial: Trial, engine_function: cst.FunctionDef | None) -> Clipping | None:
    """How a step clips; None when it does not. ``engine_function`` is where the engine is made."""
    if step.clip is None:
        return None
    function = clip_definition(step, trial) or _definition(step.clip, step, trial)
    norm = _l2_norm(step.use.file, function) if function is not None else None
    if norm is not None and _known_at(norm, function, step, trial, engine_function):
        return Clipping(norm)
    return Clipping(None, step.clip)


def clip_definition(step: Step, trial: Trial) -> cst.FunctionDef | None:
    """The function, nested function or method of the trial that a step is given to clip with, under its own name."""
    name = dotted(step.clip) if step.clip is not None else None
    if name is None:
        return None
    scope, _, attribute = name.rpartition(".")
    if scope == "self" or any(part.node.name.value == scope for part in trial.parts):
        return next((method for _, method in trial.methods(attribute)), None)
    defined = [
        f
        for f in step.use.file.nodes(cst.FunctionDef)
        if f.name.value == name and step.use.file.function(f) in (step.use.function, None)
    ]
    bound = [t for n in step.use.file.nodes(cst.Assign, cst.AnnAssign) for t in targets(n) if dotted(t) == name]
    return defined[0] if len(defined) == 1 and not bound and not scope else None


def _definition(node: cst.BaseExpression, step: Step, trial: Trial) -> cst.BaseExpression | None:
    """The lambda or partial that a name stands for, when it is set exactly once and on every path."""
    name = dotted(node)
    if name is None:
        return node
    found: list[tuple[SourceFile, cst.Assign | cst.AnnAssign]] = []
    scopes = [f for _, f in trial.methods()] if name.startswith("self.") else [step.use.function]
    for scope in scopes:
        for inner in walk(scope) if scope is not None else ():
            if any(dotted(t) == name for t in targets(inner)) and isinstance(inner, (cst.Assign, cst.AnnAssign)):
                found.append((step.use.file, inner))
    if len(found) != 1 or found[0][1].value is None:
        return None
    file, assign = found[0]
    for ancestor in file.ancestors(assign):
        if isinstance(ancestor, cst.FunctionDef):
            break
        if isinstance(ancestor, (cst.If, cst.For, cst.While, cst.Try)):
            return None
    return assign.value


def _l2_norm(file: SourceFile, node: cst.BaseExpression | cst.FunctionDef) -> cst.BaseExpression | None:
    """``C`` of ``lambda p: clip_grad_norm_(p, C)`` or ``partial(clip_grad_norm_, max_norm=C)``, or of a function that
    does nothing else."""
    body = _only_expression(node) if isinstance(node, cst.FunctionDef) else getattr(node, "body", None)
    params = _own_parameters(node) if isinstance(node, (cst.Lambda, cst.FunctionDef)) else []
    if isinstance(body, cst.Call) and len(params) == 1:
        call, parameter = body, params[0]
        first = argument(call, 0, "parameters")
        if file.names.qualified(call.func) not in _NORM_CLIPS or has_star(call) or first is None:
            return None
        if dotted(first.value) != parameter:
            return None
        norm = argument(call, 1, "max_norm")
        rest = {a.keyword.value for a in call.args if a.keyword is not None} - {"parameters", "max_norm", "norm_type"}
        if rest or norm is None or not _is_two(argument(call, 2, "norm_type")):
            return None
        if any(isinstance(n, cst.Name) and n.value == parameter for n in walk(norm.value)):
            return None
        return norm.value
    if isinstance(node, cst.Call) and (file.names.qualified(node.func) or "").endswith("partial") and node.args:
        if file.names.qualified(node.args[0].value) not in _NORM_CLIPS or has_star(node):
            return None
        norm = argument(node, None, "max_norm")
        rest = {a.keyword.value for a in node.args[1:] if a.keyword is not None} - {"max_norm", "norm_type"}
        if norm is None or rest or len(node.args) != 1 + sum(a.keyword is not None for a in node.args):
            return None
        return norm.value if _is_two(argument(node, None, "norm_type")) else None
    return None


def _own_parameters(node: cst.Lambda | cst.FunctionDef) -> list[str]:
    """Names of the parameters that it is called with, ``self`` left out."""
    names = [p.name.value for p in node.params.params]
    return names[1:] if isinstance(node, cst.FunctionDef) and names[:1] == ["self"] else names


def _only_expression(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """The expression that is all a function evaluates or returns."""
    body = [s for s in body_of(function) if s is not docstring(function)]
    inner = body[0].body[0] if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) else body[0]
    return inner.value if len(body) == 1 and isinstance(inner, (cst.Expr, cst.Return)) else None


def _is_two(arg: cst.Arg | None) -> bool:
    return arg is None or number(arg.value) == 2


def _known_at(
    norm: cst.BaseExpression,
    definition: cst.BaseExpression | cst.FunctionDef | None,
    step: Step,
    trial: Trial,
    engine_function: cst.FunctionDef | None,
) -> bool:
    """Whether the norm has its final value where the engine is made: nothing local to another function, nothing set
    again after ``__init__``."""
    if number(norm) is not None:
        return True
    file = step.use.file
    around = (definition, *file.ancestors(definition)) if definition is not None else ()
    home = next((a for a in around if isinstance(a, cst.FunctionDef)), None)
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
    """Attributes of self set in ``__init__``, and those set anywhere else: in other methods, by name, on the trial by
    whoever holds it."""
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
