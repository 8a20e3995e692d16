"""The conditions by which parameters are divided into groups, and whether the groups leave none out."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from ds_migrate.syntax.nodes import dotted
from ds_migrate.syntax.one_line import expression_text

_OPPOSITES: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThanEqual,
    cst.LessThanEqual: cst.GreaterThan,
    cst.Equal: cst.NotEqual,
    cst.In: cst.NotIn,
    cst.Is: cst.IsNot,
}
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}


@dataclass
class Filters:
    """The comprehensions that parameters pass through, by what they run over."""

    _conditions: dict[tuple[int, str, str], list[cst.BaseExpression]] = field(default_factory=dict)
    is_frozen_fixed: bool = True  # whether nothing in the program freezes or unfreezes a parameter
    _has_unknown: bool = False

    def add(self, node: cst.BaseComp, block: int) -> None:
        """Add a comprehension. ``block`` is the identity of the one it is in: branches exclude each other."""
        source = node.for_in
        if source.inner_for_in is not None or len(source.ifs) > 1:
            self._has_unknown = True
        elif source.ifs:
            key = block, cst.Module([]).code_for_node(source.target), expression_text(source.iter)
            self._conditions.setdefault(key, []).append(source.ifs[0].test)

    @property
    def is_partial(self) -> bool:
        """Return whether a parameter that gets a gradient may pass none of them."""
        return self._has_unknown or any(
            not (self.is_frozen_fixed and _is_of_frozen(test))
            and not any(_are_opposite(test, other) for other in tests)
            for tests in self._conditions.values()
            for test in tests
        )


def _is_of_frozen(test: cst.BaseExpression) -> bool:
    """Return whether a condition leaves out parameters without a gradient alone."""
    return isinstance(test, cst.Attribute) and test.attr.value == "requires_grad" and dotted(test) is not None


def _are_opposite(one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
    for test, negation in ((one, other), (other, one)):
        if not isinstance(negation, cst.UnaryOperation) or not isinstance(negation.operator, cst.Not):
            continue
        if expression_text(negation.expression) == expression_text(test):
            return True
    if not isinstance(one, cst.Comparison) or not isinstance(other, cst.Comparison):
        return False
    if len(one.comparisons) != 1 or len(other.comparisons) != 1:
        return False
    (first,), (second,) = one.comparisons, other.comparisons
    return (
        _OPPOSITES.get(type(first.operator)) is type(second.operator)
        and expression_text(one.left) == expression_text(other.left)
        and expression_text(first.comparator) == expression_text(second.comparator)
    )
