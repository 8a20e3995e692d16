"""The effect of a ``clip_grads`` function: plain L2 norm clipping, or something else."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import (
    argument,
    body_of,
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


def clip_norm(step: Step, trial: Trial) -> tuple[cst.BaseExpression, cst.CSTNode] | None:
    """Return the norm of a step that does nothing but clip to an L2 norm, and its definition; else None."""
    if step.clip is None:
        return None
    definition = clip_definition(step, trial) or _definition(step.clip, step, trial)
    norm = _l2_norm(step.use.file, definition) if definition is not None else None
    return None if norm is None or definition is None else (norm, definition)


def clip_definition(step: Step, trial: Trial) -> cst.FunctionDef | None:
    """Return the function, nested function or method of the trial that a step is given to clip with by its name."""
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
    """Return the lambda or partial that a name refers to, when it is set exactly once and on every path."""
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
    """Return ``C`` of ``lambda p: clip_grad_norm_(p, C)`` or ``partial(clip_grad_norm_, max_norm=C)``, or of a function
    that does nothing else."""
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
    """Return the names of the parameters that it is called with, ``self`` left out."""
    names = [p.name.value for p in node.params.params]
    return names[1:] if isinstance(node, cst.FunctionDef) and names[:1] == ["self"] else names


def _only_expression(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """Return the expression that is all a function evaluates or returns."""
    body = [s for s in body_of(function) if s is not docstring(function)]
    inner = body[0].body[0] if len(body) == 1 and isinstance(body[0], cst.SimpleStatementLine) else body[0]
    return inner.value if len(body) == 1 and isinstance(inner, (cst.Expr, cst.Return)) else None


def _is_two(arg: cst.Arg | None) -> bool:
    return arg is None or number(arg.value) == 2
