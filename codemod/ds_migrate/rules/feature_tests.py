"""Tests for the platform (``hasattr(context, "wrap_model")``): they have a constant result, and are folded away."""

from __future__ import annotations

import libcst as cst

from ds_migrate.conversion.rule_context import RuleContext
from ds_migrate.rules.codes import Code
from ds_migrate.syntax.comments import comments
from ds_migrate.syntax.nodes import code, is_literal
from ds_migrate.syntax.one_line import expression_text
from ds_migrate.syntax.source import SourceFile
from ds_migrate.trial.context import AttributeTest, ContextUse

CODE = Code.CONTEXT_API

# What every PyTorchTrialContext has, and DeepSpeedTrialContext lacks.
_ALWAYS_THERE = frozenset(
    [
        "wrap_model",
        "wrap_optimizer",
        "wrap_scaler",
        "step_optimizer",
        "configure_apex_amp",
        "autocast_forward_pass",
        "backward",
        "experimental",
    ]
)
# What its ``experimental`` held, and the context itself holds now.
MOVED = frozenset(
    {"disable_dataset_reproducibility_checks", "wrap_reducer", "reset_reducers", "reduce_metrics", "_wrap_reducer"}
)
_EXPERIMENTAL = MOVED - {"_wrap_reducer"} | {"use_amp", "disable_auto_to_device"}


def fold_comparison(ctx: RuleContext, use: ContextUse) -> bool:
    """Fold ``context.wrap_model is not None``, which always held; return whether the use is such a test."""
    comparison = use.file.parent(use.node)
    if use.call is not None or not isinstance(comparison, cst.Comparison):
        return False
    operators = [code(c).strip() for c in comparison.comparisons]
    if operators not in (["is not None"], ["is None"]):
        return False
    if use.file.edits.once(comparison, CODE):
        _fold(use.file, comparison, operators == ["is not None"])
        always = "held" if operators == ["is not None"] else "failed"
        ctx.converted(CODE, use.file, comparison, f"context.{use.attr} was always there, so the test always {always}")
    return True


def fold_attribute_test(ctx: RuleContext, file: SourceFile, test: AttributeTest) -> bool:
    """Fold ``hasattr(context, name)`` and ``hasattr(context.experimental, name)``; return whether the result is known.

    ``getattr(context.experimental, name, ...)`` becomes the context's attribute where that has it.
    """
    name, call = test.name, test.call
    known = name in _ALWAYS_THERE or test.is_experimental
    if name is None or not known:
        return False
    holds = name in (_EXPERIMENTAL if test.is_experimental else _ALWAYS_THERE)
    if code(call.func) == "getattr":
        if not (test.is_experimental and name in MOVED):
            return False
        if file.edits.once(call, CODE):
            file.replace(call, f"{expression_text(test.context)}.{name}")
            ctx.converted(CODE, file, call, f"{name} is on the context itself")
        return True
    if file.edits.once(call, CODE):
        _fold(file, call, holds)
        group = "context.experimental" if test.is_experimental else "context"
        ctx.converted(CODE, file, call, f"{group} {'always' if holds else 'never'} had {name}")
    return True


def _fold(file: SourceFile, test: cst.BaseExpression, holds: bool) -> None:
    """Replace a test by its result, and what branches on it by the branch that runs, unless comments would go."""
    around = file.parent(test)
    while isinstance(around, cst.UnaryOperation) and isinstance(around.operator, cst.Not):
        test, holds, around = around, not holds, file.parent(around)
    if isinstance(around, cst.If) and around.test is test and _is_foldable(file, around, holds):
        file.change(around, lambda updated: _branch(updated, holds))
    elif isinstance(around, cst.IfExp) and around.test is test and not comments(around):
        file.change(around, lambda updated: _value(updated, holds))
    else:
        file.replace(test, str(holds))


def _is_foldable(file: SourceFile, node: cst.If, holds: bool) -> bool:
    """Return whether the branch that runs can stand alone, and the other one has no comment."""
    kept, gone = (node.body, node.orelse) if holds else (node.orelse, node.body)
    if isinstance(file.parent(node), cst.If) or (gone is not None and comments(gone)):
        return False  # an elif has no place for the statements of a branch
    if isinstance(kept, cst.Else):
        kept = kept.body
    return isinstance(kept, cst.IndentedBlock) and not any(line.comment for line in kept.footer)


def _branch(updated: cst.CSTNode, holds: bool) -> cst.FlattenSentinel[cst.CSTNode]:
    """Return the statements of the branch that runs, in the place of the ``if`` and with its comments."""
    assert isinstance(updated, cst.If)
    lines = list(updated.leading_lines)
    block: cst.BaseSuite = updated.body
    if not holds:
        assert isinstance(updated.orelse, cst.Else)
        lines += updated.orelse.leading_lines
        block = updated.orelse.body
    assert isinstance(block, cst.IndentedBlock)
    if block.header.comment is not None:
        lines.append(cst.EmptyLine(comment=block.header.comment))
    first, *others = block.body
    lines += getattr(first, "leading_lines", ())
    return cst.FlattenSentinel([first.with_changes(leading_lines=lines), *others])


def _value(updated: cst.CSTNode, holds: bool) -> cst.BaseExpression:
    assert isinstance(updated, cst.IfExp)
    value = updated.body if holds else updated.orelse
    needs = updated.lpar and not value.lpar and not is_literal(value, "None")
    return value.with_changes(lpar=updated.lpar, rpar=updated.rpar) if needs else value
