"""Conditions that turn clipping off where its norm is zero, as a norm of zero in a config does."""

from __future__ import annotations

import libcst as cst

from ds_migrate.plain.recognition.facts import Clip
from ds_migrate.syntax.one_line import expression_text


def guard_of(clip: Clip) -> cst.If | None:
    """Return the ``if`` around a clipping that asks no more than whether its norm is above zero."""
    guard = next((a for a in clip.file.ancestors(clip.node) if isinstance(a, cst.BaseCompoundStatement)), None)
    if not isinstance(guard, cst.If) or guard.orelse is not None or clip.norm is None:
        return None
    around = clip.file.parent(guard)
    if isinstance(around, cst.If) and around.orelse is guard:
        return None
    norm = expression_text(clip.norm)
    return guard if expression_text(guard.test) == norm or _is_compared_with_zero(guard.test, norm) else None


def has_optional_norm(clip: Clip) -> bool:
    """Return whether the norm may be None, as far as the condition around the clipping shows."""
    guard = guard_of(clip)
    return guard is not None and not isinstance(guard.test, cst.Comparison)


def _is_compared_with_zero(test: cst.BaseExpression, norm: str) -> bool:
    if not isinstance(test, cst.Comparison) or len(test.comparisons) != 1 or expression_text(test.left) != norm:
        return False
    (target,) = test.comparisons
    zero = target.comparator
    return (
        isinstance(target.operator, (cst.GreaterThan, cst.NotEqual))
        and isinstance(zero, (cst.Integer, cst.Float))
        and zero.evaluated_value == 0
    )
