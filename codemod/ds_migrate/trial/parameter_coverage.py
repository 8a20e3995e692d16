"""Proof that an optimizer owns every trainable parameter of a model."""

from __future__ import annotations

import libcst as cst

from ds_migrate.syntax.nodes import argument, code, dotted, walk
from ds_migrate.trial.model import Model, Wrap

EXPANSION_DEPTH = 4  # how many names back an expression is followed


def owns_all(wrap: Wrap, model: Model) -> bool:
    """Return whether the optimizer provably owns every trainable parameter of the model.

    ``M.parameters()`` itself, filtered by ``requires_grad`` or not, or the usual two groups with and without decay.
    """
    constructor = _resolve(wrap.argument, wrap)
    if not isinstance(constructor, cst.Call):
        return False
    first = argument(constructor, 0, "params")
    if first is None or first.star:
        return False
    return _all_parameters(_resolve(first.value, wrap), model, wrap)


def _resolve(node: cst.BaseExpression, wrap: Wrap) -> cst.BaseExpression:
    """Return what a local name or attribute that is set once in the function was set to; else the node itself."""
    for _ in range(EXPANSION_DEPTH):
        name = dotted(node)
        if name is None or wrap.use.function is None:
            return node
        values = [v for v in wrap.file.values_of({name}, wrap.use.function) if wrap.call not in set(walk(v))]
        if len(values) != 1:
            return node
        node = values[0]
    return node


def _all_parameters(node: cst.BaseExpression, model: Model, wrap: Wrap) -> bool:
    if isinstance(node, cst.Call):
        func = node.func
        if isinstance(func, cst.Attribute) and func.attr.value == "parameters" and not node.args:
            return dotted(func.value) in model.names
        if dotted(func) in ("list", "tuple", "iter") and len(node.args) == 1:
            return _all_parameters(node.args[0].value, model, wrap)
        if dotted(func) == "filter" and len(node.args) == 2 and "requires_grad" in code(node.args[0].value):
            return "not " not in code(node.args[0].value) and _all_parameters(node.args[1].value, model, wrap)
        return False
    if isinstance(node, (cst.ListComp, cst.GeneratorExp)):
        source = node.for_in
        plain = source.inner_for_in is None and all(
            "requires_grad" in code(i.test) and "not " not in code(i.test) for i in source.ifs
        )
        return plain and same_name(node.elt, source.target) and _all_parameters(source.iter, model, wrap)
    if isinstance(node, cst.List):
        return _decay_groups(node, model, wrap)
    return False


def same_name(one: cst.CSTNode, other: cst.CSTNode) -> bool:
    return isinstance(one, cst.Name) and isinstance(other, cst.Name) and one.value == other.value


def _decay_groups(node: cst.List, model: Model, wrap: Wrap) -> bool:
    """Return whether two groups part the model's parameters by a condition and its opposite, or one group has them all.

    ``[{"params": [p for n, p in M.named_parameters() if not any(...)]}, {"params": [... if any(...)]}]``.
    """
    conditions: list[cst.BaseExpression] = []
    for element in node.elements:
        params = _params_of_group(element.value)
        if params is None:
            return False
        params = _resolve(params, wrap)
        if len(node.elements) == 1 and _all_parameters(params, model, wrap):
            return True
        condition = _selection(params, model, wrap)
        if condition is None:
            return False
        conditions.append(condition)
    return len(conditions) == 2 and opposite(*conditions)


def _params_of_group(group: cst.BaseExpression) -> cst.BaseExpression | None:
    if not isinstance(group, cst.Dict):
        return None
    keyed = [e for e in group.elements if isinstance(e, cst.DictElement) and isinstance(e.key, cst.SimpleString)]
    return next((e.value for e in keyed if getattr(e.key, "evaluated_value", None) == "params"), None)


def _selection(node: cst.BaseExpression, model: Model, wrap: Wrap) -> cst.BaseExpression | None:
    """Return the condition of ``[p for ... in M.parameters() if condition]`` (``p.requires_grad`` does not count)."""
    if not isinstance(node, (cst.ListComp, cst.GeneratorExp)) or node.for_in.inner_for_in is not None:
        return None
    source = _resolve(node.for_in.iter, wrap)
    if isinstance(source, cst.Call) and dotted(source.func) in ("list", "tuple") and source.args:
        source = source.args[0].value
    func = source.func if isinstance(source, cst.Call) else None
    if not isinstance(func, cst.Attribute) or func.attr.value not in ("named_parameters", "parameters"):
        return None
    tests = [t for i in node.for_in.ifs for t in _conjuncts(i.test) if not code(t).endswith(".requires_grad")]
    return tests[0] if len(tests) == 1 and dotted(func.value) in model.names else None


def _conjuncts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
        return [*_conjuncts(node.left), *_conjuncts(node.right)]
    return [node]


_OPPOSITES = (
    (cst.In, cst.NotIn),
    (cst.Equal, cst.NotEqual),
    (cst.Is, cst.IsNot),
    (cst.LessThan, cst.GreaterThanEqual),
    (cst.LessThanEqual, cst.GreaterThan),
)


def opposite(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    """Return whether exactly one of two conditions holds for every parameter."""
    return any(_negates(a, b) or _compares_opposite(a, b) for a, b in ((one, other), (other, one)))


def _negates(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    negated = isinstance(one, cst.UnaryOperation) and isinstance(one.operator, cst.Not)
    return negated and _text(one.expression) == _text(other)  # type: ignore[attr-defined]


def _compares_opposite(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    if not isinstance(one, cst.Comparison) or not isinstance(other, cst.Comparison):
        return False
    if len(one.comparisons) != 1 or len(other.comparisons) != 1 or _text(one.left) != _text(other.left):
        return False
    left, right = one.comparisons[0], other.comparisons[0]
    pair = (type(left.operator), type(right.operator))
    return pair in _OPPOSITES and _text(left.comparator) == _text(right.comparator)


def _text(node: cst.BaseExpression) -> str:
    return "".join(code(node.with_changes(lpar=[], rpar=[])).split())
