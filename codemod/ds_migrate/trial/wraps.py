"""The ``wrap_*`` calls of a trial: the name that holds the result, and what stands around the call."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import ContextUse
from ds_migrate.trial.model import Wrap

_FIRST_PARAMETER = {
    "wrap_model": "model",
    "wrap_optimizer": "optimizer",
    "wrap_lr_scheduler": "lr_scheduler",
    "wrap_scaler": "scaler",
}
_BRANCHES = (cst.If, cst.IfExp, cst.Try, cst.TryStar, cst.Match)
_LOOPS = (cst.For, cst.While, cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp, cst.Lambda)


def wrap_of(use: ContextUse) -> Wrap | None:
    """Return the wrap that this use of the context is; None when it is not called with a plain first argument."""
    if use.call is None:
        return None
    given = argument(use.call, 0, _FIRST_PARAMETER[use.attr])
    if given is None:
        return None
    target, discarded = _holder(use.file, use.call)
    if discarded:
        target = dotted(given.value)
    around: list[cst.CSTNode] = []
    nested = False
    for ancestor in use.file.ancestors(use.call):
        if isinstance(ancestor, cst.FunctionDef):
            nested = use.file.function(ancestor) is not None
            break
        around.append(ancestor)
    return Wrap(
        use=use,
        call=use.call,
        argument=given.value,
        target=target,
        is_discarded=discarded,
        is_conditional=any(isinstance(a, _BRANCHES) for a in around),
        is_repeated=nested or any(isinstance(a, _LOOPS) for a in around),  # a function inside may be called again
    )


def _holder(file: SourceFile, node: cst.CSTNode) -> tuple[str | None, bool]:
    """Return the expression that holds the value of ``node``, and whether the value is thrown away."""
    while True:
        parent = file.parent(node)
        if isinstance(parent, cst.Arg):
            call = file.parent(parent)
            if isinstance(call, cst.Call) and (file.names.qualified(call.func) or "").endswith("cast"):
                node = call
                continue
            return None, False
        if isinstance(parent, cst.Element):
            return _element_holder(file, parent), False
        if isinstance(parent, cst.DictElement) and isinstance(parent.key, cst.SimpleString):
            literal = file.parent(parent)
            holder = _assigned(file.parent(literal)) if literal is not None else None
            return (f"{holder}[{code(parent.key)}]" if holder else None), False
        if isinstance(parent, cst.Expr):
            return None, True
        return _assigned(parent), False


def _element_holder(file: SourceFile, element: cst.Element) -> str | None:
    """Return the holder in ``self.a, self.b = wrap(x), wrap(y)`` and ``self.nets = [wrap(x), wrap(y)]``."""
    sequence = file.parent(element)
    if not isinstance(sequence, (cst.Tuple, cst.List)):
        return None
    index = list(sequence.elements).index(element)
    assign = file.parent(sequence)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        if isinstance(target, (cst.Tuple, cst.List)):
            return code(target.elements[index].value) if len(target.elements) == len(sequence.elements) else None
    holder = _assigned(assign)
    return f"{holder}[{index}]" if holder else None


def _assigned(node: cst.CSTNode | None) -> str | None:
    """Return the one name that an assignment sets (``self.x`` preferred in ``x = self.x = ...``)."""
    if isinstance(node, cst.AnnAssign):
        return dotted(node.target)
    if isinstance(node, cst.NamedExpr):
        return dotted(node.target)
    if not isinstance(node, cst.Assign):
        return None
    texts = [code(t.target) for t in node.targets if isinstance(t.target, (cst.Name, cst.Attribute, cst.Subscript))]
    if len(texts) != len(node.targets):
        return None
    return next((t for t in texts if t.startswith("self.")), texts[0])
