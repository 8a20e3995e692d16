"""The name that a trial's methods give to the trial itself."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import dotted, walk
from ds_migrate.trial.model import Part, Trial

_WITHOUT_TRIAL = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})


def other_than_self(trial: Trial) -> tuple[Part, cst.FunctionDef, str] | None:
    """Return the first method that uses the trial by another name than ``self``, and that name; None without.

    Names such as ``self.model`` are compared across methods, and are written into methods other than their own.
    """
    for part in trial.parts:
        for method in (s for s in part.node.body.body if isinstance(s, cst.FunctionDef)):
            name = _own_name(method)
            if name == "self" or name is None:
                continue
            if _is_called_through_class(part, method):
                continue
            if any(isinstance(node, cst.Name) and node.value == name for node in walk(method.body)):
                return part, method, name
    return None


def _is_called_through_class(part: Part, method: cst.FunctionDef) -> bool:
    """Return True for a function that is used as ``Trial.function`` alone: its first argument need not be the trial."""
    used = {dotted(n.value) for n in part.file.nodes(cst.Attribute) if n.attr.value == method.name.value}
    return used == {part.node.name.value}


def _own_name(method: cst.FunctionDef) -> str | None:
    """Return the method's first parameter, which is the trial; None where it is another."""
    decorators = {d.decorator.value for d in method.decorators if isinstance(d.decorator, cst.Name)}
    if method.name.value in _WITHOUT_TRIAL or decorators & {"staticmethod", "classmethod"}:
        return None
    params = method.params
    for parameter in (*params.posonly_params, *params.params):
        return parameter.name.value
    return params.star_arg.name.value if isinstance(params.star_arg, cst.Param) else None
