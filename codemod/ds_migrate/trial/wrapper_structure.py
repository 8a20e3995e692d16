"""Reads of a wrapped model's structure.

On several ranks PyTorchTrial's model is a DistributedDataParallel. Its only child is the model, and the names of
parameters and modules begin with ``module.``: a test of such a name, or a walk over children, found something else than
on one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ds_migrate.syntax.nodes import code, dotted, walk
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.model import Trial
from ds_migrate.trial.wrapper_attributes import Found, Place, wrapped_uses

_CHILDREN = frozenset(["children", "named_children"])
_NAMES = frozenset(["named_parameters", "named_modules", "named_buffers"])
_PREFIX_TESTS = frozenset(["startswith", "removeprefix", "split", "partition"])
_MATCHES = frozenset(["match", "fullmatch"])


def children_of_wrapper(trial: Trial) -> Iterator[Found]:
    """Yield each call that walks over the children of a wrapped model: its file, the call and its code."""
    for file, call, shown in _calls(trial, _CHILDREN):
        yield (*(shown or (file, call)), code(call))


def names_in_wrapper(trial: Trial) -> Iterator[Found]:
    """Yield each test of a parameter's or module's name that ``module.`` before it changes, one for each loop."""
    for file, call, shown in _calls(trial, _NAMES):
        loop = _loop_over(file, call)
        name = _first_name(loop.target) if loop is not None else None
        if loop is None or name is None:
            continue
        whole = loop if isinstance(loop, cst.For) else _comprehension(file, loop)
        test = next((node for node in walk(whole) if _depends_on_prefix(node, name)), None)
        if test is not None:
            yield (*(shown or (file, test)), code(test))


def _calls(trial: Trial, methods: frozenset[str]) -> Iterator[tuple[SourceFile, cst.Call, Place | None]]:
    """Yield each call of one of the methods on a wrapped model, once."""
    seen: set[cst.CSTNode] = set()
    for file, node, shown in wrapped_uses(trial):
        method = file.parent(node)
        call = file.parent(method) if method is not None else None
        if (
            isinstance(method, cst.Attribute)
            and method.value is node
            and method.attr.value in methods
            and isinstance(call, cst.Call)
            and call.func is method
            and call not in seen
        ):
            seen.add(call)
            yield file, call, shown


def _loop_over(file: SourceFile, call: cst.Call) -> cst.For | cst.CompFor | None:
    """Return the loop over what the call returns, directly or as a list."""
    inner: cst.CSTNode = call
    for outer in file.ancestors(call):
        if isinstance(outer, (cst.For, cst.CompFor)):
            return outer if outer.iter is inner else None
        if not isinstance(outer, (cst.Call, cst.Arg)):
            return None
        inner = outer
    return None


def _comprehension(file: SourceFile, loop: cst.CompFor) -> cst.CSTNode:
    return next(a for a in file.ancestors(loop) if not isinstance(a, cst.CompFor))


def _first_name(target: cst.BaseExpression) -> str | None:
    """Return the variable that gets the name of each pair."""
    if isinstance(target, cst.Tuple) and target.elements and isinstance(target.elements[0].value, cst.Name):
        return target.elements[0].value.value
    return None


def _depends_on_prefix(node: cst.CSTNode, name: str) -> bool:
    """Return whether the expression is another one where ``module.`` stands before the name."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        method = node.func.attr.value
        if dotted(node.func.value) == name:
            return method in _PREFIX_TESTS
        return method in _MATCHES and any(dotted(arg.value) == name for arg in node.args)
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        operator, other = node.comparisons[0].operator, node.comparisons[0].comparator
        if isinstance(operator, (cst.Equal, cst.NotEqual)):
            return name in (dotted(node.left), dotted(other))
        listed = isinstance(other, (cst.List, cst.Tuple, cst.Set))
        return isinstance(operator, (cst.In, cst.NotIn)) and listed and dotted(node.left) == name
    return False
